//! Virtual memory of one device: reserved ranges of addresses, physical memory, and what is mapped
//! where. Knows neither the budget nor streams.
use super::error::Violation;
use super::holes::Holes;
use super::memory::Span;
use crate::driver::{Call, DriverError, HandleFlags, HandleId};
use std::collections::{BTreeMap, HashMap};

/// Addresses that a device has for ranges; device 0's begin at [`START`].
pub(super) const WINDOW_BYTES: u64 = 1 << 46;

/// Above the addresses that any device allocates at.
pub(super) const START: u64 = 1 << 49;

/// Physical memory of a simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Physical {
    /// How much.
    pub bytes: u64,
    /// What it was asked to be able to do.
    pub flags: HandleFlags,
    /// At how many addresses it is mapped.
    pub mappings: u32,
}

/// What virtual memory is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Whose it is, and how many devices the machine has.
    pub(super) device: u32,
    pub(super) devices: u32,
    pub(super) page_bytes: u64,
    /// Addresses that may be reserved.
    pub(super) address_bytes: u64,
}

/// What is reserved, created and mapped.
#[derive(Debug)]
pub(super) struct VirtualMemory {
    extent: Extent,
    holes: Holes,
    reserved: BTreeMap<u64, Range>,
    reserved_bytes: u64,
    handles: HashMap<HandleId, Physical>,
    handles_made: u64,
    /// By address.
    mapped: BTreeMap<u64, Mapping>,
    mappings_made: u64,
}

/// A reserved range.
#[derive(Debug)]
struct Range {
    bytes: u64,
}

/// One handle at one address.
#[derive(Debug)]
struct Mapping {
    handle: HandleId,
    bytes: u64,
    /// Devices that may touch it, a bit each; the device itself is one of them, or there is none.
    accessors: u64,
    /// Grows with each mapping that is made.
    serial: u64,
    /// Accesses by work that is queued.
    uses: u64,
}

impl VirtualMemory {
    pub(super) fn new(extent: Extent) -> VirtualMemory {
        let start = START + u64::from(extent.device) * WINDOW_BYTES;
        let mut holes = Holes::default();
        if extent.address_bytes > 0 {
            holes.give(start, extent.address_bytes);
        }
        VirtualMemory {
            extent,
            holes,
            reserved: BTreeMap::new(),
            reserved_bytes: 0,
            handles: HashMap::new(),
            handles_made: 0,
            mapped: BTreeMap::new(),
            mappings_made: 0,
        }
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.require_pages(bytes, Call::Reserve)?;
        let address = self.holes.take(bytes).ok_or(DriverError::OutOfMemory { bytes })?;
        self.reserved.insert(address, Range { bytes });
        self.reserved_bytes += bytes;
        Ok(address)
    }

    pub(super) fn unreserve(&mut self, address: u64) -> Result<(), DriverError> {
        let range = self.reserved.get(&address).ok_or(DriverError::UnknownAddress(address))?;
        let bytes = range.bytes;
        if self.mapped.range(address..address + bytes).next().is_some() {
            return Err(DriverError::InvalidValue(Call::Unreserve));
        }
        self.reserved.remove(&address);
        self.holes.give(address, bytes);
        self.reserved_bytes -= bytes;
        Ok(())
    }

    /// Whether `bytes` may be created; whether the device has them is not asked here.
    pub(super) fn require_creatable(&self, bytes: u64) -> Result<(), DriverError> {
        self.require_pages(bytes, Call::Create)
    }

    pub(super) fn create(&mut self, bytes: u64, flags: HandleFlags) -> HandleId {
        self.handles_made += 1;
        let handle = HandleId(self.handles_made);
        self.handles.insert(handle, Physical { bytes, flags, mappings: 0 });
        handle
    }

    /// The bytes that are physical memory no longer.
    pub(super) fn release(&mut self, handle: HandleId) -> Result<u64, DriverError> {
        let physical = self.handles.get(&handle).ok_or(DriverError::UnknownHandle(handle))?;
        if physical.mappings > 0 {
            return Err(DriverError::InvalidValue(Call::ReleaseHandle));
        }
        let bytes = physical.bytes;
        self.handles.remove(&handle);
        Ok(bytes)
    }

    pub(super) fn map(&mut self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        let physical = self.handles.get(&handle).ok_or(DriverError::UnknownHandle(handle))?;
        let span = Span { address, bytes: physical.bytes };
        let is_free = self.range_of(span).is_some() && self.under(span).next().is_none();
        if !is_free || !address.is_multiple_of(self.extent.page_bytes) {
            return Err(DriverError::InvalidValue(Call::Map));
        }
        self.handles.entry(handle).and_modify(|physical| physical.mappings += 1);
        self.mappings_made += 1;
        let serial = self.mappings_made;
        let mapping = Mapping { handle, bytes: span.bytes, accessors: 0, serial, uses: 0 };
        self.mapped.insert(address, mapping);
        Ok(())
    }

    /// How many mappings are gone; those in use are noted as violations.
    pub(super) fn unmap(
        &mut self,
        span: Span,
        violations: &mut Vec<Violation>,
    ) -> Result<u64, DriverError> {
        let starts = self.tiles(span).ok_or(DriverError::InvalidValue(Call::Unmap))?;
        for address in &starts {
            let Some(mapping) = self.mapped.remove(address) else { continue };
            self.handles.entry(mapping.handle).and_modify(|physical| physical.mappings -= 1);
            if mapping.uses > 0 {
                let span = Span { address: *address, bytes: mapping.bytes };
                violations.push(Violation::UnmappedInUse { span, uses: mapping.uses });
            }
        }
        Ok(starts.len() as u64)
    }

    /// How many mappings it was about.
    pub(super) fn set_access(&mut self, span: Span, peers: &[u32]) -> Result<u64, DriverError> {
        let invalid = DriverError::InvalidValue(Call::SetAccess);
        let starts = self.tiles(span).ok_or(invalid)?;
        if peers.iter().any(|&peer| peer >= self.extent.devices) {
            return Err(invalid);
        }
        let accessors = peers.iter().fold(1 << self.extent.device, |all, peer| all | 1u64 << peer);
        for (_, mapping) in self.mapped.range_mut(span.address..span.address + span.bytes) {
            mapping.accessors |= accessors;
        }
        Ok(starts.len() as u64)
    }

    /// Notes that queued work is going to touch `span`: the number of the newest mapping; nothing if
    /// `span` is not all mapped and accessible.
    pub(super) fn hold(&mut self, span: Span) -> Option<u64> {
        if !self.is_accessible(span, self.extent.device) {
            return None;
        }
        self.under_mut(span).for_each(|(_, mapping)| mapping.uses += 1);
        Some(self.mappings_made)
    }

    /// Ends what [`VirtualMemory::hold`] began: whether all of `span` is still mapped as it was then.
    /// Mappings do not move, so one with an older number was there.
    pub(super) fn let_go(&mut self, span: Span, newest: u64) -> bool {
        let mut next = span.address;
        for (start, mapping) in self.under_mut(span).filter(|(_, m)| m.serial <= newest) {
            mapping.uses -= 1;
            if start <= next {
                next = start + mapping.bytes;
            }
        }
        next - span.address >= span.bytes.max(1)
    }

    /// Whether all of `span` is mapped in one reserved range, and `device` was let in.
    pub(super) fn is_accessible(&self, span: Span, device: u32) -> bool {
        let bit = 1u64.checked_shl(device).unwrap_or(0);
        let mut next = span.address;
        for (start, mapping) in self.under(span) {
            if start > next || mapping.accessors & bit == 0 {
                return false;
            }
            next = start + mapping.bytes;
        }
        next - span.address >= span.bytes.max(1) && self.range_of(span).is_some()
    }

    /// Every mapping, by address.
    pub(super) fn mappings(&self) -> Vec<(Span, HandleId)> {
        let span = |(&address, mapping): (&u64, &Mapping)| {
            (Span { address, bytes: mapping.bytes }, mapping.handle)
        };
        self.mapped.iter().map(span).collect()
    }

    pub(super) fn physical(&self, handle: HandleId) -> Option<Physical> {
        self.handles.get(&handle).copied()
    }

    pub(super) fn live_handles(&self) -> usize {
        self.handles.len()
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.extent.page_bytes
    }

    fn require_pages(&self, bytes: u64, call: Call) -> Result<(), DriverError> {
        let are_pages = bytes > 0 && bytes.is_multiple_of(self.extent.page_bytes);
        are_pages.then_some(()).ok_or(DriverError::InvalidValue(call))
    }

    /// The reserved range that `span` lies in, and its start. No bytes count as one.
    fn range_of(&self, span: Span) -> Option<(u64, &Range)> {
        let (&start, range) = self.reserved.range(..=span.address).next_back()?;
        let end = (span.address - start).checked_add(span.bytes.max(1))?;
        (end <= range.bytes).then_some((start, range))
    }

    /// The mappings that overlap `span`, by address. No bytes count as one.
    fn under(&self, span: Span) -> impl Iterator<Item = (u64, &Mapping)> {
        let (first, end) = self.bounds(span);
        self.mapped.range(first..end).map(|(&start, mapping)| (start, mapping))
    }

    fn under_mut(&mut self, span: Span) -> impl Iterator<Item = (u64, &mut Mapping)> {
        let (first, end) = self.bounds(span);
        self.mapped.range_mut(first..end).map(|(&start, mapping)| (start, mapping))
    }

    /// Between which starts the mappings lie that overlap `span`.
    fn bounds(&self, span: Span) -> (u64, u64) {
        let end = span.address.saturating_add(span.bytes.max(1));
        let below = self.mapped.range(..=span.address).next_back();
        let reaching = below.filter(|(start, mapping)| span.address - *start < mapping.bytes);
        (reaching.map_or(span.address, |(&start, _)| start), end)
    }

    /// Where the mappings start that tile `span` exactly, if it lies in one reserved range.
    fn tiles(&self, span: Span) -> Option<Vec<u64>> {
        self.range_of(span).filter(|_| span.bytes > 0)?;
        let end = span.address + span.bytes;
        let (mut next, mut starts) = (span.address, Vec::new());
        for (&start, mapping) in self.mapped.range(span.address..end) {
            if start != next {
                return None;
            }
            next = start + mapping.bytes;
            starts.push(start);
        }
        (next == end).then_some(starts)
    }
}
