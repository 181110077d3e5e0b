//! What can go wrong, with the numbers a reader needs.
use crate::driver::{DriverError, StreamId};
use crate::oom::OomReport;
use crate::policies::SpecError;
use std::fmt;

/// Why an allocator call failed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AllocError {
    /// Everything was tried; the report says what the memory looked like.
    OutOfMemory(Box<OomReport>),
    /// No device could ever hold so much.
    TooLarge {
        /// Bytes asked, or [`u64::MAX`] where the number itself overflowed.
        bytes: u64,
        /// The largest size that is passed on, in bytes.
        limit: u64,
    },
    /// `len` elements of `element_bytes` overflow a 64-bit size.
    LengthOverflow {
        /// Number of elements.
        len: usize,
        /// Bytes of each.
        element_bytes: usize,
    },
    /// The alignment is no power of two from 1 to 2 MiB.
    BadAlignment {
        /// What was asked, in bytes.
        align: u64,
    },
    /// The address is not that of a live allocation of this allocator turned into an address.
    NotLive {
        /// The address.
        address: u64,
        /// Whether it lies in memory of this allocator: then it was freed before, or never turned into
        /// an address.
        inside: bool,
    },
    /// The device would have to be asked for memory, which is illegal while a stream is captured.
    Capturing {
        /// The stream being captured.
        stream: StreamId,
        /// Bytes asked.
        bytes: u64,
    },
    /// This process was forked from the one that made the allocator; device memory does not follow.
    Forked,
    /// A policy gave an answer that the books contradict; nothing was changed.
    Policy {
        /// Name of the policy.
        policy: String,
        /// What it did.
        what: &'static str,
    },
    /// The driver refused, for another reason than memory.
    Driver(DriverError),
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::OutOfMemory(report) => report.fmt(f),
            AllocError::TooLarge { bytes, limit } => {
                write!(f, "{bytes} bytes asked, more than any device holds (at most {limit} bytes)")
            }
            AllocError::LengthOverflow { len, element_bytes } => {
                write!(f, "{len} elements of {element_bytes} bytes overflow a 64-bit size")
            }
            AllocError::BadAlignment { align } => {
                write!(f, "alignment {align} is not a power of two from 1 to 2097152 bytes")
            }
            AllocError::NotLive { address, inside: true } => write!(
                f,
                "address {address:#x} is in this allocator's memory but not live: freed before, \
                 or never turned into an address with into_raw"
            ),
            AllocError::NotLive { address, inside: false } => {
                write!(f, "address {address:#x} is not from this allocator")
            }
            AllocError::Capturing { stream, bytes } => write!(
                f,
                "no cached block of {bytes} bytes, and the device cannot be asked for memory while \
                 stream {:#x} is captured: run the step once before capturing it",
                stream.0
            ),
            AllocError::Forked => f.write_str(
                "the allocator belongs to the parent of this forked process; build one after the fork",
            ),
            AllocError::Policy { policy, what } => write!(f, "policy {policy} {what}"),
            AllocError::Driver(error) => write!(f, "driver: {error}"),
        }
    }
}

impl std::error::Error for AllocError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AllocError::Driver(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DriverError> for AllocError {
    fn from(error: DriverError) -> Self {
        AllocError::Driver(error)
    }
}

impl AllocError {
    /// The report, where memory ran out.
    pub fn oom(&self) -> Option<&OomReport> {
        match self {
            AllocError::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }
}

/// Why an allocator could not be built.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BuildError {
    /// The policy's text is not one.
    Policy(SpecError),
    /// The policy contradicts itself.
    BadPolicy {
        /// Name of the policy.
        policy: String,
        /// What is wrong with it.
        what: String,
    },
    /// A fraction is not over 0 and at most 1.
    BadFraction(f64),
    /// A slack is negative, or not a number.
    BadSlack(f64),
    /// The device's granularity is not a power of two of at least 512 bytes.
    BadGranularity(u64),
    /// Paged backing was asked for on a device without virtual memory.
    NoVirtualMemory,
    /// An allocator is installed for the device already.
    AlreadyInstalled {
        /// Number of the device.
        device: usize,
    },
    /// There is no place for a device of that number.
    NoSuchDevice {
        /// Number of the device.
        device: usize,
        /// Devices there is place for.
        most: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Policy(error) => error.fmt(f),
            BuildError::BadPolicy { policy, what } => write!(f, "policy {policy}: {what}"),
            BuildError::BadFraction(x) => {
                write!(f, "{x} is no fraction of a device: it must be over 0 and at most 1")
            }
            BuildError::BadSlack(x) => write!(f, "slack {x} must be a number of at least 0"),
            BuildError::BadGranularity(g) => {
                write!(f, "granularity {g} is not a power of two of at least 512 bytes")
            }
            BuildError::NoVirtualMemory => f.write_str(
                "the device cannot map memory page by page: choose backing segments, or auto",
            ),
            BuildError::AlreadyInstalled { device } => {
                write!(
                    f,
                    "device {device} has an allocator already; install it once, before its use"
                )
            }
            BuildError::NoSuchDevice { device, most } => {
                write!(f, "device {device}: devices are numbered from 0 to {}", most - 1)
            }
        }
    }
}

impl std::error::Error for BuildError {}

impl From<SpecError> for BuildError {
    fn from(error: SpecError) -> Self {
        BuildError::Policy(error)
    }
}
