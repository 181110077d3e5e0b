//! What can be wrong with buffers or their offsets, and how a search can end without a packing.

use std::error::Error;
use std::fmt;

/// Why there is no packing, or why a packing is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackError {
    /// A buffer's `lower` is above its `upper`.
    Backwards {
        /// Which buffer.
        buffer: usize,
    },
    /// Sizes, or an offset and a size, add up to more than 2^64 - 1 bytes.
    TooLarge,
    /// Proven: more bytes live at one time than there is room for.
    OverCapacity {
        /// The most bytes that live at one time.
        peak: u64,
        /// The bytes there are.
        capacity: u64,
    },
    /// Proven: the whole search came to nothing.
    Exhausted {
        /// Nodes of the search.
        nodes: u64,
    },
    /// The search was stopped, by its limit or from outside: there may be a packing or not.
    Stopped {
        /// Nodes of the search.
        nodes: u64,
    },
    /// Two buffers that live at the same time lie on the same byte.
    Overlap {
        /// One of them.
        first: usize,
        /// The other, which begins no earlier.
        second: usize,
    },
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PackError::Backwards { buffer } => {
                write!(f, "buffer {buffer} (counted from 0) ends before it begins")
            }
            PackError::TooLarge => write!(f, "sizes add up to more than 2^64 - 1 bytes"),
            PackError::OverCapacity { peak, capacity } => {
                write!(
                    f,
                    "{peak} bytes live at one time, more than the capacity of {capacity} bytes"
                )
            }
            PackError::Exhausted { nodes } => {
                write!(f, "no packing fits: the search ended after {nodes} nodes, all of it")
            }
            PackError::Stopped { nodes } => {
                write!(f, "no packing found within {nodes} nodes; there may be one")
            }
            PackError::Overlap { first, second } => {
                write!(f, "buffers {first} and {second} (counted from 0) overlap")
            }
        }
    }
}

impl Error for PackError {}
