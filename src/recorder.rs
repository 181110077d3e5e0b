//! Records the requests of a running allocator into a ring, for a trace of what led here.
use crate::driver::StreamId;
use crate::trace::{Block, ThreadIndex, TraceRing};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// One row of numbers for all recordings, so that a block recorded before is told from a new one.
static SERIALS: AtomicU64 = AtomicU64::new(1);
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// A small number for the calling thread, in order of first use.
fn thread_number() -> u64 {
    THREAD.with(|t| {
        if t.get() == u64::MAX {
            t.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        t.get()
    })
}

/// See the module's page.
pub(crate) struct Recorder {
    ring: TraceRing,
}

impl Recorder {
    pub(crate) fn new(events: usize) -> Self {
        Recorder { ring: TraceRing::new(events) }
    }

    fn thread(&mut self) -> ThreadIndex {
        self.ring.thread(thread_number())
    }

    fn block(&mut self, serial: u64, bytes: u64, stream: StreamId) -> Block {
        Block { serial, bytes, stream: self.ring.stream(stream.0) }
    }

    /// Records an allocation; the number by which its free has to be told. Never 0.
    pub(crate) fn allocated(&mut self, bytes: u64, stream: StreamId) -> u64 {
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        let (block, thread) = (self.block(serial, bytes, stream), self.thread());
        self.ring.alloc(block, thread);
        serial
    }

    /// Records a free. A block from before the recording (serial 0) is not in the trace.
    pub(crate) fn freed(&mut self, serial: u64, bytes: u64, stream: StreamId) {
        if serial != 0 {
            let (block, thread) = (self.block(serial, bytes, stream), self.thread());
            self.ring.free(block, thread);
        }
    }

    pub(crate) fn used_on(&mut self, serial: u64, bytes: u64, stream: StreamId, on: StreamId) {
        if serial != 0 {
            let (block, thread) = (self.block(serial, bytes, stream), self.thread());
            let further = self.ring.stream(on.0);
            self.ring.record_stream(block, further, thread);
        }
    }

    pub(crate) fn mark(&mut self, label: &str) {
        let thread = self.thread();
        self.ring.mark(label, thread);
    }

    pub(crate) fn empty_cache(&mut self) {
        let thread = self.thread();
        self.ring.empty_cache(thread);
    }

    /// Writes the trace; `live` are the blocks out now with their serials, bytes and streams.
    pub(crate) fn write_to(
        &mut self,
        out: &mut dyn io::Write,
        live: &[(u64, u64, StreamId)],
    ) -> io::Result<()> {
        let live: Vec<Block> = live
            .iter()
            .filter(|l| l.0 != 0)
            .map(|&(serial, bytes, stream)| self.block(serial, bytes, stream))
            .collect();
        self.ring.write_to(out, &live)
    }
}
