//! One log of allocation requests: recorded from a program, replayed, fuzzed and measured. Knows
//! what was asked for and when; does not know where any block was placed.
//!
//! # Format
//!
//! Lines of text, fields apart by spaces, numbers in decimal digits:
//!
//! | line | meaning |
//! |---|---|
//! | `a <id> <bytes> <stream>` | a block is allocated; `bytes` is what was asked for |
//! | `f <id>` | the block is freed; its id may be used again |
//! | `r <id> <stream>` | the block is used on a further stream |
//! | `s <label>` | a step or phase begins; the rest of the line is its label |
//! | `e` | the program gave its cached memory back to the device |
//! | `t <thread>` | what follows was done by this thread; thread 0 until told |
//!
//! Ids, stream handles and threads are any `u64`; bytes go to 2^62; a line has at most 64 KiB.
//! Blank lines and lines that begin with `#` are skipped. Files may be gzip or zstd.

mod builder;
mod error;
mod file;
mod labels;
mod lines;
mod op;
mod reader;
mod ring;
mod slots;
mod source;
mod writer;
#[cfg(feature = "compress")]
mod zstd;

pub use builder::TraceBuilder;
pub use error::{Fault, Packing, TraceError};
pub use file::TraceFile;
pub use op::{LabelIndex, Op, Slot, StreamIndex, ThreadIndex};
pub use ring::{Block, TraceRing};
pub use writer::TraceWriter;

use op::Packed;
use std::borrow::Cow;

/// The most bytes one allocation may ask for: 2^62.
pub const BYTES_MAX: u64 = 1 << 62;

/// The longest line of a trace in bytes, without its line feed.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// A recorded sequence of allocation requests, 16 bytes each, and facts about it.
///
/// Two traces are equal if they ask for the same in the same order; ids do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    ops: Vec<Packed>,
    labels: Vec<Box<str>>,
    streams: Vec<u64>,
    threads: Vec<u64>,
    slots: u32,
    op_count: u64,
    peak_live_bytes: u64,
}

impl Trace {
    /// Every operation in order, marks and thread switches included.
    pub fn ops(&self) -> impl ExactSizeIterator<Item = Op> + DoubleEndedIterator + Clone + '_ {
        self.ops.iter().map(|packed| packed.op())
    }

    /// The number of operations of every kind: what [`ops`](Trace::ops) yields.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there is no operation of any kind.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The number of allocations, frees and cache releases: what rates per operation divide by.
    pub fn op_count(&self) -> u64 {
        self.op_count
    }

    /// The most blocks live together; every [`Slot`] is below it.
    pub fn slots(&self) -> usize {
        self.slots as usize
    }

    /// The highest sum of the bytes asked for by live blocks: no allocator can reserve less.
    /// Stops at `u64::MAX`.
    pub fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }

    /// The stream handles in the order of their first use.
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// The threads in the order of their first use; the first is 0.
    pub fn threads(&self) -> &[u64] {
        &self.threads
    }

    /// The labels of the marks in order, one for each mark.
    pub fn labels(&self) -> &[Box<str>] {
        &self.labels
    }
}

/// The longest label that fits in a line behind its verb.
const LABEL_BYTES_MAX: usize = LINE_BYTES_MAX - 2;

/// A label that a line can hold: no control characters, not blank, not too long.
fn clean_label(label: &str) -> Cow<'_, str> {
    let label = cut(label.trim(), LABEL_BYTES_MAX).trim_end();
    if label.is_empty() {
        return Cow::Borrowed("-");
    }
    if !label.contains(char::is_control) {
        return Cow::Borrowed(label);
    }
    let spaced = label.replace(char::is_control, " ");
    match spaced.trim() {
        "" => Cow::Borrowed("-"),
        text => Cow::Owned(text.to_string()),
    }
}

/// The longest start of a text that has at most so many bytes.
fn cut(text: &str, bytes_max: usize) -> &str {
    let fits = |&end: &usize| text.is_char_boundary(end);
    &text[..(0..=bytes_max.min(text.len())).rev().find(fits).unwrap_or(0)]
}
