//! Builds a trace one operation at a time and holds it to the format's rules. Does not know where
//! the operations come from: the reader calls it, and so may a program that makes a trace up.

use std::collections::HashMap;

use super::error::Fault;
use super::op::{LabelIndex, Op, Packed, StreamIndex, ThreadIndex};
use super::slots::{Live, Refused, Slots};
use super::{BYTES_MAX, Trace, clean_label};

/// A trace in the making. A call that fails changes nothing.
///
/// ```
/// let mut builder = aquifer::trace::TraceBuilder::new();
/// builder.alloc(1, 4096, 0)?;
/// builder.free(1)?;
/// let trace = builder.finish();
/// assert_eq!((trace.op_count(), trace.peak_live_bytes()), (2, 4096));
/// # Ok::<(), aquifer::trace::Fault>(())
/// ```
#[derive(Debug)]
pub struct TraceBuilder {
    ops: Vec<Packed>,
    labels: Vec<Box<str>>,
    streams: Numbered,
    threads: Numbered,
    slots: Slots,
    line: u64,
    op_count: u64,
    live_bytes: u128,
    live_bytes_peak: u128,
}

impl Default for TraceBuilder {
    fn default() -> Self {
        TraceBuilder {
            ops: Vec::new(),
            labels: Vec::new(),
            streams: Numbered::default(),
            threads: Numbered { values: vec![0], ..Numbered::default() },
            slots: Slots::default(),
            line: 0,
            op_count: 0,
            live_bytes: 0,
            live_bytes_peak: 0,
        }
    }
}

impl TraceBuilder {
    /// An empty trace, on thread 0.
    pub fn new() -> TraceBuilder {
        TraceBuilder::default()
    }

    /// Sets the line that an error about a live id will name.
    #[inline]
    pub(super) fn at_line(&mut self, line: u64) {
        self.line = line;
    }

    /// Appends an allocation of `bytes` under `id` on the stream of this handle.
    ///
    /// # Errors
    ///
    /// [`Fault::AlreadyLive`], [`Fault::TooLarge`] above [`BYTES_MAX`], [`Fault::TooMany`].
    #[inline]
    pub fn alloc(&mut self, id: u64, bytes: u64, stream: u64) -> Result<(), Fault> {
        if bytes > BYTES_MAX {
            return Err(Fault::TooLarge { field: "bytes", max: BYTES_MAX });
        }
        let slot = match self.slots.insert(id, Live { bytes, line: self.line }) {
            Ok(slot) => slot,
            Err(Refused::Live(live)) => {
                return Err(Fault::AlreadyLive { id, since_line: live.line });
            }
            Err(Refused::Full) => {
                return Err(Fault::TooMany { things: "live blocks", max: u32::MAX.into() });
            }
        };
        let stream = match self.stream(stream) {
            Ok(stream) => stream,
            Err(fault) => {
                self.slots.remove(id);
                return Err(fault);
            }
        };
        self.live_bytes += u128::from(bytes);
        self.live_bytes_peak = self.live_bytes_peak.max(self.live_bytes);
        self.op_count += 1;
        self.push(Op::Alloc { slot, bytes, stream });
        Ok(())
    }

    /// Appends the free of a live block; its id may be used again.
    ///
    /// # Errors
    ///
    /// [`Fault::FreeNotLive`].
    #[inline]
    pub fn free(&mut self, id: u64) -> Result<(), Fault> {
        let (slot, live) = self.slots.remove(id).ok_or(Fault::FreeNotLive { id })?;
        self.live_bytes -= u128::from(live.bytes);
        self.op_count += 1;
        self.push(Op::Free { slot });
        Ok(())
    }

    /// Appends the use of a live block on a further stream.
    ///
    /// # Errors
    ///
    /// [`Fault::RecordNotLive`], [`Fault::TooMany`].
    pub fn record_stream(&mut self, id: u64, stream: u64) -> Result<(), Fault> {
        let slot = self.slots.get(id).ok_or(Fault::RecordNotLive { id })?;
        let stream = self.stream(stream)?;
        self.push(Op::RecordStream { slot, stream });
        Ok(())
    }

    /// Appends a step or phase mark. Control characters become spaces, the ends are trimmed, the
    /// text is cut at the format's line length; a label with nothing left becomes `-`.
    pub fn mark(&mut self, label: &str) {
        let index = LabelIndex(self.labels.len() as u32);
        self.labels.push(clean_label(label).into());
        self.push(Op::Mark { label: index });
    }

    /// Appends a request to give the cached memory back.
    pub fn empty_cache(&mut self) {
        self.op_count += 1;
        self.push(Op::EmptyCache);
    }

    /// Appends a switch: the operations that follow belong to this thread.
    ///
    /// # Errors
    ///
    /// [`Fault::TooMany`].
    pub fn thread(&mut self, thread: u64) -> Result<(), Fault> {
        let index = self.threads.index(thread);
        let thread = index.ok_or(Fault::TooMany { things: "threads", max: NUMBERED_MAX.into() })?;
        self.push(Op::Thread { thread: ThreadIndex(thread) });
        Ok(())
    }

    /// The trace, which may be empty.
    pub fn finish(mut self) -> Trace {
        self.ops.shrink_to_fit();
        Trace {
            ops: self.ops,
            labels: self.labels,
            streams: self.streams.values,
            threads: self.threads.values,
            slots: self.slots.count(),
            op_count: self.op_count,
            peak_live_bytes: u64::try_from(self.live_bytes_peak).unwrap_or(u64::MAX),
        }
    }

    #[inline]
    fn stream(&mut self, handle: u64) -> Result<StreamIndex, Fault> {
        let index = self.streams.index(handle);
        index.map(StreamIndex).ok_or(Fault::TooMany { things: "streams", max: NUMBERED_MAX.into() })
    }

    #[inline]
    fn push(&mut self, op: Op) {
        self.ops.push(Packed::new(op));
    }
}

const NUMBERED_MAX: u32 = Packed::STREAMS_MAX;

/// Handles numbered in the order of their first use.
#[derive(Debug, Default)]
struct Numbered {
    values: Vec<u64>,
    /// Every value from the [`SCANNED`]-th on; the ones before are found by looking at each.
    map: HashMap<u64, u32>,
}

const SCANNED: usize = 8;

impl Numbered {
    /// The number of a handle, a new one on its first use; none if the numbers are used up.
    #[inline]
    fn index(&mut self, value: u64) -> Option<u32> {
        let scanned = &self.values[..self.values.len().min(SCANNED)];
        match scanned.iter().position(|&known| known == value) {
            Some(index) => Some(index as u32),
            None => self.index_mapped(value),
        }
    }

    fn index_mapped(&mut self, value: u64) -> Option<u32> {
        if let Some(&index) = self.map.get(&value) {
            return Some(index);
        }
        let index = u32::try_from(self.values.len()).ok().filter(|&index| index < NUMBERED_MAX)?;
        if index as usize >= SCANNED {
            self.map.insert(value, index);
        }
        self.values.push(value);
        Some(index)
    }
}
