//! What the simulator's own functions (not the driver calls) refuse, and what it saw go wrong.
use super::{Span, StreamId};
use crate::driver::{Call, DriverError};
use std::fmt;

/// Why the simulator refused to be built or to do something a driver has no call for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimError {
    /// A machine has 1 to 64 devices.
    Devices(usize),
    /// A capacity is 1 byte to 2 TiB.
    Capacity(u64),
    /// A granularity is a power of two, 4 KiB to 1 GiB.
    Granularity(u64),
    /// A page is a power of two, 4 KiB to 1 GiB.
    PageBytes(u64),
    /// A device has at most 64 TiB of addresses for ranges.
    AddressBytes(u64),
    /// There is no such stream (any more), or it is the default stream, which stays.
    UnknownStream(StreamId),
    /// The bytes are not all inside one live range, nor mapped and accessible in one reserved range.
    OutOfBounds(Span),
    /// The device only keeps addresses ([`super::Backing::AddressOnly`]).
    NoBytes,
    /// The stream is being captured.
    Capturing(StreamId),
    /// The stream is not being captured, or another stream began the capture.
    NotCapturing(StreamId),
    /// An illegal call spoiled the capture.
    CaptureInvalidated(StreamId),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SimError::Devices(n) => write!(f, "a machine of {n} devices, not 1 to 64"),
            SimError::Capacity(bytes) => write!(f, "a capacity of {bytes} bytes, not 1 to 2^41"),
            SimError::Granularity(bytes) => {
                write!(f, "a granularity of {bytes} bytes, not a power of two from 2^12 to 2^30")
            }
            SimError::PageBytes(bytes) => {
                write!(f, "a page of {bytes} bytes, not a power of two from 2^12 to 2^30")
            }
            SimError::AddressBytes(bytes) => {
                write!(f, "{bytes} addresses for ranges, not 0 to 2^46")
            }
            SimError::UnknownStream(s) => write!(f, "stream {:#x} is not one to do this with", s.0),
            SimError::OutOfBounds(span) => write!(f, "{span} is not all live memory"),
            SimError::NoBytes => f.write_str("the device keeps addresses only, no bytes"),
            SimError::Capturing(s) => write!(f, "stream {:#x} is being captured", s.0),
            SimError::NotCapturing(s) => write!(f, "stream {:#x} began no capture", s.0),
            SimError::CaptureInvalidated(s) => {
                write!(f, "the capture of stream {:#x} was spoiled by an illegal call", s.0)
            }
        }
    }
}

impl std::error::Error for SimError {}

/// A misuse of memory by work, collected by the device instead of failing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Work was launched on bytes that are not all inside one live range, nor mapped and accessible in
    /// one reserved range.
    DeadAtLaunch {
        /// The stream of the work.
        stream: StreamId,
        /// The bytes.
        span: Span,
    },
    /// The range that work was launched on was freed, or a part of it unmapped, before the work was
    /// done, whether or not other memory lies there now.
    DeadAtCompletion {
        /// The stream of the work.
        stream: StreamId,
        /// The bytes.
        span: Span,
    },
    /// A range was freed while work launched on it was not done (only without waiting frees).
    FreedInUse {
        /// The whole range.
        span: Span,
        /// Uses by work that was not done.
        uses: u64,
    },
    /// Memory was unmapped while work launched on it was not done.
    UnmappedInUse {
        /// Where one handle was mapped.
        span: Span,
        /// Uses by work that was not done.
        uses: u64,
    },
    /// A call on virtual memory broke its contract; it failed and changed nothing.
    Refused {
        /// Which call.
        call: Call,
        /// What it answered.
        error: DriverError,
    },
    /// Work found another byte than it expected.
    WrongByte {
        /// The stream of the work.
        stream: StreamId,
        /// Where the first wrong byte is.
        address: u64,
        /// The byte the work expected.
        expected: u8,
        /// The byte that is there.
        found: u8,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Violation::DeadAtLaunch { stream, span } => {
                write!(f, "stream {:#x} launched work on {span}, which is not live", stream.0)
            }
            Violation::DeadAtCompletion { stream, span } => {
                write!(f, "{span} was gone before the work of stream {:#x} was done", stream.0)
            }
            Violation::FreedInUse { span, uses } => write!(f, "{span} was freed in {uses} uses"),
            Violation::UnmappedInUse { span, uses } => {
                write!(f, "{span} were unmapped in {uses} uses")
            }
            Violation::Refused { call, error } => write!(f, "{call} was refused: {error}"),
            Violation::WrongByte { stream, address, expected, found } => write!(
                f,
                "stream {:#x} expected {expected:#04x} at {address:#x} and found {found:#04x}",
                stream.0
            ),
        }
    }
}
