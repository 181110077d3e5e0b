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
}

/// Why the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverError {
    /// The device has no range of that many bytes.
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
    /// The call is illegal while a stream is being captured into a graph.
    Capturing(Call),
    /// The arguments break the contract of the call.
    InvalidValue(Call),
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
            DriverError::Capturing(c) => write!(f, "{c} is illegal while a stream is captured"),
            DriverError::InvalidValue(c) => {
                write!(f, "{c} was called with arguments it does not take")
            }
            DriverError::Failed { call, code } => {
                write!(f, "{call} failed with driver code {code}")
            }
        }
    }
}

impl std::error::Error for DriverError {}
