//! Virtual memory of one device: reserved ranges of addresses, physical memory, and what is mapped
//! where. Knows neither the budget nor streams; mappings are in `mappings`, bytes in `remap`.
use super::error::{SimError, Violation};
use super::holes::Holes;
use super::mappings::Mappings;
use super::memory::Span;
use super::remap::{HostFile, Window};
use crate::driver::{Call, DriverError, HandleFlags, HandleId};
use std::collections::{BTreeMap, HashMap};
use std::io;

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
    pub(super) has_bytes: bool,
}

/// What is reserved, created and mapped.
#[derive(Debug)]
pub(super) struct VirtualMemory {
    extent: Extent,
    holes: Holes,
    reserved: BTreeMap<u64, Range>,
    reserved_bytes: u64,
    handles: HashMap<HandleId, Handle>,
    handles_made: u64,
    /// The bytes of all handles, if they have any.
    file: Option<HostFile>,
    mapped: Mappings,
}

/// A reserved range.
#[derive(Debug)]
struct Range {
    bytes: u64,
    window: Option<Window>,
}

#[derive(Debug)]
struct Handle {
    physical: Physical,
    /// In the file.
    place: u64,
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
            file: extent.has_bytes.then(HostFile::new),
            mapped: Mappings::default(),
        }
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.require_pages(bytes, Call::Reserve)?;
        let address = self.holes.take(bytes).ok_or(DriverError::OutOfMemory { bytes })?;
        let window = match self.extent.has_bytes.then(|| Window::reserve(bytes)).transpose() {
            Ok(window) => window,
            Err(error) => {
                self.holes.give(address, bytes);
                return Err(host_error(Call::Reserve, bytes, &error));
            }
        };
        self.reserved.insert(address, Range { bytes, window });
        self.reserved_bytes += bytes;
        Ok(address)
    }

    pub(super) fn unreserve(&mut self, address: u64) -> Result<(), DriverError> {
        let range = self.reserved.get(&address).ok_or(DriverError::UnknownAddress(address))?;
        let bytes = range.bytes;
        if self.mapped.any_in(Span { address, bytes }) {
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

    /// Creates `bytes` that may be created and that the device has.
    pub(super) fn create(
        &mut self,
        bytes: u64,
        flags: HandleFlags,
    ) -> Result<HandleId, DriverError> {
        let place = self.file.as_mut().map_or(Ok(0), |file| file.create(bytes));
        let place = place.map_err(|error| host_error(Call::Create, bytes, &error))?;
        self.handles_made += 1;
        let id = HandleId(self.handles_made);
        let physical = Physical { bytes, flags, mappings: 0 };
        self.handles.insert(id, Handle { physical, place });
        Ok(id)
    }

    /// The bytes that are physical memory no longer.
    pub(super) fn release(&mut self, id: HandleId) -> Result<u64, DriverError> {
        let handle = self.handles.get(&id).ok_or(DriverError::UnknownHandle(id))?;
        let Physical { bytes, mappings, .. } = handle.physical;
        if mappings > 0 {
            return Err(DriverError::InvalidValue(Call::ReleaseHandle));
        }
        if let Some(file) = &mut self.file {
            let released = file.release(handle.place, bytes);
            released.map_err(|error| host_error(Call::ReleaseHandle, bytes, &error))?;
        }
        self.handles.remove(&id);
        Ok(bytes)
    }

    /// Keeps books only: nobody may touch the bytes before [`VirtualMemory::set_access`].
    pub(super) fn map(&mut self, address: u64, id: HandleId) -> Result<(), DriverError> {
        let handle = self.handles.get(&id).ok_or(DriverError::UnknownHandle(id))?;
        let span = Span { address, bytes: handle.physical.bytes };
        let is_free = self.range_of(span).is_some() && !self.mapped.any_in(span);
        if !is_free || !address.is_multiple_of(self.extent.page_bytes) {
            return Err(DriverError::InvalidValue(Call::Map));
        }
        self.handles.entry(id).and_modify(|handle| handle.physical.mappings += 1);
        self.mapped.insert(span, id);
        Ok(())
    }

    /// How many mappings are gone; those in use are noted as violations.
    pub(super) fn unmap(
        &mut self,
        span: Span,
        violations: &mut Vec<Violation>,
    ) -> Result<u64, DriverError> {
        let starts = self.tiles(span).ok_or(DriverError::InvalidValue(Call::Unmap))?;
        let closed = self.close(span);
        closed.map_err(|error| host_error(Call::Unmap, span.bytes, &error))?;
        for &address in &starts {
            let mapping = self.mapped.remove(address).expect("a tile is a mapping");
            self.handles.entry(mapping.handle).and_modify(|handle| handle.physical.mappings -= 1);
            if mapping.uses > 0 {
                let span = Span { address, bytes: mapping.bytes };
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
        self.open(&starts).map_err(|error| host_error(Call::SetAccess, span.bytes, &error))?;
        let own = 1u64 << self.extent.device;
        let accessors = peers.iter().fold(own, |all, peer| all | 1 << peer);
        self.mapped.let_in(span, accessors);
        Ok(starts.len() as u64)
    }

    /// The bytes of `span`.
    pub(super) fn slice(&self, span: Span) -> Result<&[u8], SimError> {
        let (window, at) = self.window(span)?;
        Ok(window.slice(at, span.bytes as usize))
    }

    pub(super) fn slice_mut(&mut self, span: Span) -> Result<&mut [u8], SimError> {
        let (_, at) = self.window(span)?;
        let below = self.reserved.range_mut(..=span.address).next_back();
        let window = below.and_then(|(_, range)| range.window.as_mut());
        Ok(window.expect("it was found just now").slice_mut(at, span.bytes as usize))
    }

    pub(super) fn pointer(&self, span: Span) -> Result<*mut u8, SimError> {
        let (window, at) = self.window(span)?;
        Ok(window.pointer(at))
    }

    /// Notes that queued work is going to touch `span`, and says what [`VirtualMemory::let_go`] must be
    /// told; nothing if `span` is not accessible.
    pub(super) fn hold(&mut self, span: Span) -> Option<u64> {
        let is_accessible = self.is_accessible(span, self.extent.device);
        is_accessible.then(|| self.mapped.hold(span))
    }

    /// Ends what [`VirtualMemory::hold`] began: whether all of `span` is still mapped as it was then.
    pub(super) fn let_go(&mut self, span: Span, newest: u64) -> bool {
        self.mapped.let_go(span, newest)
    }

    /// Whether all of `span` is mapped in one reserved range and `device` was let in.
    pub(super) fn is_accessible(&self, span: Span, device: u32) -> bool {
        self.range_of(span).is_some() && self.mapped.is_accessible(span, device)
    }

    /// Every mapping, by address.
    pub(super) fn mappings(&self) -> Vec<(Span, HandleId)> {
        self.mapped.all()
    }

    pub(super) fn physical(&self, handle: HandleId) -> Option<Physical> {
        self.handles.get(&handle).map(|handle| handle.physical)
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

    /// The window that all of `span` is open in, and where.
    fn window(&self, span: Span) -> Result<(&Window, usize), SimError> {
        let is_accessible = self.is_accessible(span, self.extent.device);
        let range = self.range_of(span).filter(|_| is_accessible);
        let (start, range) = range.ok_or(SimError::OutOfBounds(span))?;
        let window = range.window.as_ref().ok_or(SimError::NoBytes)?;
        Ok((window, (span.address - start) as usize))
    }

    /// Lets the host touch the mappings at `starts`, all in one range. What it opened before it failed
    /// stays open until it is unmapped: the books let nobody in.
    fn open(&mut self, starts: &[u64]) -> io::Result<()> {
        let first = starts.first().copied().unwrap_or(0);
        let below = self.reserved.range_mut(..=first).next_back();
        let Some((&base, Range { window: Some(window), .. })) = below else { return Ok(()) };
        let file = self.file.as_ref().expect("windows are made for a file");
        for &address in starts {
            let mapping = self.mapped.get_mut(address).expect("a tile is a mapping");
            if !mapping.is_open {
                let (at, bytes) = ((address - base) as usize, mapping.bytes as usize);
                window.open(at, bytes, file, self.handles[&mapping.handle].place)?;
                mapping.is_open = true;
            }
        }
        Ok(())
    }

    /// Lets the host touch `span`, which is in one range, no more.
    fn close(&mut self, span: Span) -> io::Result<()> {
        match self.reserved.range_mut(..=span.address).next_back() {
            Some((&base, Range { window: Some(window), .. })) => {
                window.close((span.address - base) as usize, span.bytes as usize)
            }
            _ => Ok(()),
        }
    }

    /// Where the mappings start that tile `span` exactly, if it lies in one reserved range.
    fn tiles(&self, span: Span) -> Option<Vec<u64>> {
        self.range_of(span).and_then(|_| self.mapped.tiles(span))
    }
}

/// What a device answers where its host refuses.
fn host_error(call: Call, bytes: u64, error: &io::Error) -> DriverError {
    match error.kind() {
        io::ErrorKind::OutOfMemory => DriverError::OutOfMemory { bytes },
        _ => DriverError::Failed { call, code: error.raw_os_error().unwrap_or(-1) },
    }
}
