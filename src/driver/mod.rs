//! The narrow waist: everything the allocator asks of a device.
//!
//! Addresses, streams and events are integers here; only an implementation knows what is behind them.
//! An implementation is free to lock inside; none of its methods is called while a lane's front or
//! heap is held, so a slow call delays nobody's hit.
mod call;
pub mod faults;
pub mod faulty;
pub mod limited;
pub mod logged;
pub mod sim;

pub use call::Call;

use std::fmt;
use std::sync::Arc;

/// A stream, by the integer the device knows it by. 0 is the device's default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A point in a stream's work; made by [`Driver::record_event`], ended by [`Driver::release_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// Physical memory; made by [`Driver::create`], ended by [`Driver::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// What physical memory must be able to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandleFlags {
    /// Other hardware (a network card) may read and write it: GPUDirect RDMA.
    pub gpu_direct: bool,
    /// It can be exported to other processes.
    pub shareable: bool,
}

/// What a device says of its memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All the memory of the device.
    pub total: u64,
    /// What the device could still give.
    pub free: u64,
    /// What this process holds on the device, context included, where the device can tell processes
    /// apart.
    pub held_by_process: Option<u64>,
}

/// Whether a stream's work is being recorded into a graph instead of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// Work runs.
    None,
    /// Work is recorded into the graph with this number.
    Active(u64),
    /// A call that is illegal during capture has spoiled it; it can only be ended.
    Invalidated,
}

/// A device's memory and ordering primitives.
///
/// Every call may fail, and a call that failed must have changed nothing.
///
/// The calls from [`Driver::page_bytes`] on keep addresses and physical memory apart: a range of
/// addresses is reserved, physical memory is created, mapped in the range and opened with
/// [`Driver::set_access`]. A device without virtual memory leaves them out.
///
/// ```
/// use aquifer::driver::{Driver, HandleFlags, sim::{Sim, Span}};
///
/// let device = Sim::builder().build()?.device(0).expect("there is one device");
/// let page = device.page_bytes().expect("it has virtual memory");
/// let range = device.reserve(100 * page)?;
/// let handle = device.create(2 * page, HandleFlags::default())?;
/// device.map(range + page, handle)?;
/// device.set_access(range + page, 2 * page, &[])?;
/// assert!(device.is_accessible(Span { address: range + page, bytes: 2 * page }, 0));
///
/// device.unmap(range + page, 2 * page)?;
/// device.release(handle)?;
/// device.unreserve(range)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Driver: Send + Sync {
    /// Total and free memory now, other processes' use included.
    fn memory_info(&self) -> Result<MemoryInfo, DriverError>;

    /// The unit in which the device really hands out memory, in bytes; a power of two.
    fn granularity(&self) -> u64;

    /// Memory of `bytes` (a multiple of the granularity, not 0): its address, a multiple of the
    /// granularity or of 2 MiB, whichever is smaller.
    fn allocate(&self, bytes: u64) -> Result<u64, DriverError>;

    /// Hands back a whole range from [`Driver::allocate`]. May wait for all work of the device
    /// (`cudaFree` does).
    fn free(&self, address: u64) -> Result<(), DriverError>;

    /// Marks the present end of `stream`'s work.
    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError>;

    /// Whether the work before `event` is done. Never waits.
    fn query_event(&self, event: EventId) -> Result<bool, DriverError>;

    /// Makes the calling thread wait until the work before `event` is done.
    fn wait_event(&self, event: EventId) -> Result<(), DriverError>;

    /// Makes later work of `stream` wait for `event`; the calling thread does not wait.
    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError>;

    /// Says that `event` will not be asked about again. Waits already queued on it stay valid.
    fn release_event(&self, event: EventId) -> Result<(), DriverError>;

    /// Makes the calling thread wait for all work of the device.
    fn synchronize(&self) -> Result<(), DriverError>;

    /// Whether `stream` is being captured.
    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError>;

    /// The unit of the calls below in bytes, a power of two; none where the device has no virtual
    /// memory, and then they are [`DriverError::Unsupported`].
    fn page_bytes(&self) -> Option<u64> {
        None
    }

    /// A range of `bytes` addresses (whole pages, not 0) with nothing behind them; its first address, a
    /// multiple of the page.
    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        let _ = bytes;
        Err(DriverError::Unsupported(Call::Reserve))
    }

    /// Gives back the whole range that [`Driver::reserve`] put at `address`. Nothing may be mapped in
    /// it.
    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        let _ = address;
        Err(DriverError::Unsupported(Call::Unreserve))
    }

    /// Physical memory of `bytes` (whole pages, not 0) that can do what `flags` ask for.
    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        let _ = (bytes, flags);
        Err(DriverError::Unsupported(Call::Create))
    }

    /// Gives physical memory back. It must be mapped nowhere: `cuMemRelease` would only drop a
    /// reference, and the memory would be free at some later unmap.
    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        let _ = handle;
        Err(DriverError::Unsupported(Call::ReleaseHandle))
    }

    /// Puts the whole of `handle` at `address`, a multiple of the page, inside one reserved range and
    /// where nothing is mapped. The contents are those of the handle. Nobody may touch them there
    /// before [`Driver::set_access`].
    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        let _ = (address, handle);
        Err(DriverError::Unsupported(Call::Map))
    }

    /// Takes away what is mapped in `bytes` from `address` on: whole mappings of one reserved range,
    /// without gaps.
    ///
    /// No stream orders this call and it waits for no work: work that still uses the addresses faults.
    /// The caller must know that it is over.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let _ = (address, bytes);
        Err(DriverError::Unsupported(Call::Unmap))
    }

    /// Lets this device and `peers` (ordinals of devices) read and write `bytes` from `address` on:
    /// whole mappings of one reserved range, without gaps. Whoever was let in before stays in.
    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        let _ = (address, bytes, peers);
        Err(DriverError::Unsupported(Call::SetAccess))
    }
}

impl<D: Driver + ?Sized> Driver for Arc<D> {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        (**self).memory_info()
    }

    fn granularity(&self) -> u64 {
        (**self).granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        (**self).allocate(bytes)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        (**self).free(address)
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        (**self).record_event(stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        (**self).query_event(event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        (**self).wait_event(event)
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        (**self).stream_wait_event(stream, event)
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        (**self).release_event(event)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        (**self).synchronize()
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        (**self).capture(stream)
    }

    fn page_bytes(&self) -> Option<u64> {
        (**self).page_bytes()
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        (**self).reserve(bytes)
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        (**self).unreserve(address)
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        (**self).create(bytes, flags)
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        (**self).release(handle)
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        (**self).map(address, handle)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        (**self).unmap(address, bytes)
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        (**self).set_access(address, bytes, peers)
    }
}

/// Why the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverError {
    /// The device has no range of that many bytes, or not that many addresses to reserve.
    OutOfMemory {
        /// Bytes asked of it.
        bytes: u64,
    },
    /// The device does not know the stream (any more).
    UnknownStream(StreamId),
    /// The device does not know the event.
    UnknownEvent(EventId),
    /// The address is not the start of a live range of this device.
    UnknownAddress(u64),
    /// The device does not know the physical memory.
    UnknownHandle(HandleId),
    /// The call is illegal while a stream is being captured into a graph.
    Capturing(Call),
    /// The arguments break the contract of the call.
    InvalidValue(Call),
    /// The device cannot do this at all.
    Unsupported(Call),
    /// Anything else; the code is the vendor's.
    Failed {
        /// Which call.
        call: Call,
        /// The vendor's code.
        code: i32,
    },
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DriverError::OutOfMemory { bytes } => write!(f, "device has no {bytes} bytes left"),
            DriverError::UnknownStream(s) => {
                write!(f, "stream {:#x} is not one of the device's", s.0)
            }
            DriverError::UnknownEvent(e) => write!(f, "event {} is not one of the device's", e.0),
            DriverError::UnknownAddress(a) => {
                write!(f, "address {a:#x} is not the start of a live range of the device")
            }
            DriverError::UnknownHandle(h) => {
                write!(f, "handle {} is not one of the device's", h.0)
            }
            DriverError::Capturing(c) => write!(f, "{c} is illegal while a stream is captured"),
            DriverError::InvalidValue(c) => {
                write!(f, "{c} was called with arguments it does not take")
            }
            DriverError::Unsupported(c) => write!(f, "the device has no {c}"),
            DriverError::Failed { call, code } => {
                write!(f, "{call} failed with driver code {code}")
            }
        }
    }
}

impl std::error::Error for DriverError {}
