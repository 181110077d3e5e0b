//! The memory of one simulated device: live ranges, and the bytes in them if it keeps them. Knows nothing
//! of streams, and leaves what is mapped to `virtual_memory`.
use super::budget::Budget;
use super::error::{SimError, Violation};
use super::holes::Holes;
use super::host::HostBytes;
use super::virtual_memory::{self, VirtualMemory};
use crate::driver::{Call, DriverError, HandleFlags, HandleId};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes between the first addresses of two devices, and so the address space of each.
pub(super) const WINDOW_BYTES: u64 = 1 << 42;

/// `bytes` from `address` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub address: u64,
    /// How many.
    pub bytes: u64,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

/// What lies behind an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: addresses are numbers, and a device of any size costs nothing.
    #[default]
    AddressOnly,
    /// Host memory, zeroed when allocated or created. The host spends only what is touched. Virtual
    /// memory has host pages behind it, and exists on Linux only.
    HostBytes,
}

/// The memory of a device, as work sees it when it runs.
#[derive(Debug)]
pub struct Memory {
    pub(super) granularity: u64,
    pub(super) budget: Budget,
    backing: Backing,
    holes: Holes,
    live: BTreeMap<u64, Range>,
    ranges_made: u64,
    pub(super) virtual_memory: Option<VirtualMemory>,
    pub(super) violations: Vec<Violation>,
}

#[derive(Debug)]
struct Range {
    bytes: u64,
    /// Tells this range from earlier and later ones at its address.
    serial: u64,
    /// Accesses by work that is queued.
    uses: u64,
    contents: Option<HostBytes>,
}

/// Memory as it was when work was launched on it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    /// In a live range.
    Range { start: u64, serial: u64 },
    /// Mapped; `newest` is the number of the newest mapping there was.
    Mapped { span: Span, newest: u64 },
}

/// What a device has at the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) capacity_bytes: u64,
    pub(super) granularity: u64,
    pub(super) backing: Backing,
}

impl Memory {
    pub(super) fn new(start: u64, shape: Shape, virtual_memory: Option<VirtualMemory>) -> Memory {
        Memory {
            granularity: shape.granularity,
            budget: Budget::new(shape.capacity_bytes),
            backing: shape.backing,
            holes: Holes::new(start, WINDOW_BYTES),
            live: BTreeMap::new(),
            ranges_made: 0,
            virtual_memory,
            violations: Vec::new(),
        }
    }

    /// Copies the bytes at `address` out.
    ///
    /// # Errors
    /// [`SimError::OutOfBounds`], [`SimError::NoBytes`].
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), SimError> {
        let span = Span { address, bytes: into.len() as u64 };
        into.copy_from_slice(self.slice(span)?);
        Ok(())
    }

    /// Copies `from` to the bytes at `address`.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), SimError> {
        let span = Span { address, bytes: from.len() as u64 };
        self.slice_mut(span)?.copy_from_slice(from);
        Ok(())
    }

    /// Sets each byte of `span`.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn fill(&mut self, span: Span, byte: u8) -> Result<(), SimError> {
        self.slice_mut(span)?.fill(byte);
        Ok(())
    }

    /// Copies the bytes of `from` to `to`; the two may overlap.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn copy(&mut self, from: Span, to: u64) -> Result<(), SimError> {
        let target = Span { address: to, bytes: from.bytes };
        self.slice(target)?;
        let bytes = self.slice(from)?.to_vec();
        self.slice_mut(target)?.copy_from_slice(&bytes);
        Ok(())
    }

    /// The bytes of `span`.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn slice(&self, span: Span) -> Result<&[u8], SimError> {
        if is_virtual(span) {
            let memory = self.virtual_memory.as_ref().ok_or(SimError::OutOfBounds(span))?;
            return memory.slice(span);
        }
        let (start, range) = self.locate(span).ok_or(SimError::OutOfBounds(span))?;
        let contents = range.contents.as_ref().ok_or(SimError::NoBytes)?;
        let at = (span.address - start) as usize;
        Ok(&contents.as_slice()[at..at + span.bytes as usize])
    }

    /// The bytes of `span`, to change.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn slice_mut(&mut self, span: Span) -> Result<&mut [u8], SimError> {
        if is_virtual(span) {
            let memory = self.virtual_memory.as_mut().ok_or(SimError::OutOfBounds(span))?;
            return memory.slice_mut(span);
        }
        let (start, _) = self.locate(span).ok_or(SimError::OutOfBounds(span))?;
        let range = self.live.get_mut(&start).expect("located ranges are live");
        let contents = range.contents.as_mut().ok_or(SimError::NoBytes)?;
        let at = (span.address - start) as usize;
        Ok(&mut contents.as_mut_slice()[at..at + span.bytes as usize])
    }

    /// Where `span` lies in host memory; the start of a range, allocated or reserved, is on a 4096-byte
    /// boundary there.
    ///
    /// The pointer holds until the range is freed. In a reserved range an address keeps its pointer, and
    /// what is read there is what is mapped; while that is nothing, a touch faults. Whoever goes through it sees to it that no other
    /// access to these bytes, the device's own included, happens at the same time.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn pointer(&self, span: Span) -> Result<*mut u8, SimError> {
        if is_virtual(span) {
            let memory = self.virtual_memory.as_ref().ok_or(SimError::OutOfBounds(span))?;
            return memory.pointer(span);
        }
        let (start, range) = self.locate(span).ok_or(SimError::OutOfBounds(span))?;
        let contents = range.contents.as_ref().ok_or(SimError::NoBytes)?;
        Ok(contents.pointer().wrapping_add((span.address - start) as usize))
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity) {
            return Err(DriverError::InvalidValue(Call::Allocate));
        }
        let short = DriverError::OutOfMemory { bytes };
        self.budget.require(bytes)?;
        let contents = match self.backing {
            Backing::AddressOnly => None,
            Backing::HostBytes => Some(HostBytes::zeroed(bytes).ok_or(short)?),
        };
        let address = self.holes.take(bytes).ok_or(short)?;
        self.ranges_made += 1;
        let range = Range { bytes, serial: self.ranges_made, uses: 0, contents };
        self.live.insert(address, range);
        self.budget.take(bytes);
        Ok(address)
    }

    pub(super) fn require_start(&self, address: u64) -> Result<(), DriverError> {
        let live = self.live.contains_key(&address);
        live.then_some(()).ok_or(DriverError::UnknownAddress(address))
    }

    pub(super) fn free(&mut self, address: u64) -> Result<(), DriverError> {
        let range = self.live.remove(&address).ok_or(DriverError::UnknownAddress(address))?;
        self.holes.give(address, range.bytes);
        self.budget.give(range.bytes);
        if range.uses > 0 {
            let span = Span { address, bytes: range.bytes };
            self.violations.push(Violation::FreedInUse { span, uses: range.uses });
        }
        Ok(())
    }

    pub(super) fn create(
        &mut self,
        bytes: u64,
        flags: HandleFlags,
    ) -> Result<HandleId, DriverError> {
        let memory = self.virtual_memory.as_mut().ok_or(DriverError::Unsupported(Call::Create))?;
        memory.require_creatable(bytes)?;
        self.budget.require(bytes)?;
        let handle = memory.create(bytes, flags)?;
        self.budget.take(bytes);
        Ok(handle)
    }

    pub(super) fn release(&mut self, handle: HandleId) -> Result<(), DriverError> {
        let unsupported = DriverError::Unsupported(Call::ReleaseHandle);
        let bytes = self.virtual_memory.as_mut().ok_or(unsupported)?.release(handle)?;
        self.budget.give(bytes);
        Ok(())
    }

    /// How many mappings are gone.
    pub(super) fn unmap(&mut self, span: Span) -> Result<u64, DriverError> {
        let memory = self.virtual_memory.as_mut().ok_or(DriverError::Unsupported(Call::Unmap))?;
        memory.unmap(span, &mut self.violations)
    }

    /// Notes that queued work is going to touch `span`; nothing if it is not inside a live range, nor
    /// mapped and accessible.
    pub(super) fn hold(&mut self, span: Span) -> Option<Use> {
        if is_virtual(span) {
            let newest = self.virtual_memory.as_mut()?.hold(span)?;
            return Some(Use::Mapped { span, newest });
        }
        let (start, _) = self.locate(span)?;
        let range = self.live.get_mut(&start)?;
        range.uses += 1;
        Some(Use::Range { start, serial: range.serial })
    }

    /// Ends what [`Memory::hold`] began: whether the memory is still the same.
    pub(super) fn let_go(&mut self, held: Use) -> bool {
        match held {
            Use::Range { start, serial } => match self.live.get_mut(&start) {
                Some(range) if range.serial == serial => {
                    range.uses -= 1;
                    true
                }
                _ => false,
            },
            Use::Mapped { span, newest } => {
                self.virtual_memory.as_mut().is_some_and(|memory| memory.let_go(span, newest))
            }
        }
    }

    pub(super) fn live_ranges(&self) -> Vec<Span> {
        self.live.iter().map(|(&address, range)| Span { address, bytes: range.bytes }).collect()
    }

    pub(super) fn has_bytes(&self) -> bool {
        self.backing == Backing::HostBytes
    }

    /// The live range that `span` lies in, and its start.
    fn locate(&self, span: Span) -> Option<(u64, &Range)> {
        let (&start, range) = self.live.range(..=span.address).next_back()?;
        let end = (span.address - start).checked_add(span.bytes)?;
        (end <= range.bytes && span.address - start < range.bytes).then_some((start, range))
    }
}

fn is_virtual(span: Span) -> bool {
    span.address >= virtual_memory::START
}
