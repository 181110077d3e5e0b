//! The last so many requests of a running program, kept in a ring of fixed size so that a trace
//! of what led here can be written at any time. Plain data: it takes no lock and reads no clock,
//! and does not know the allocator that fills it.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use super::labels::Labels;
use super::op::{StreamIndex, ThreadIndex};
use super::{BYTES_MAX, TraceWriter};

/// A block as the ring is told of it, and as it is told again at the free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// A number that no other live block has; best one that is never given again.
    pub serial: u64,
    /// The bytes asked for. More than [`BYTES_MAX`] is recorded as that.
    pub bytes: u64,
    /// The stream it was allocated on, from [`TraceRing::stream`].
    pub stream: StreamIndex,
}

/// The newest events, at most as many as were asked for, in 24 bytes each.
///
/// ```
/// use aquifer::trace::{Block, Trace, TraceRing};
///
/// let mut ring = TraceRing::new(1);
/// let (stream, thread) = (ring.stream(0), ring.thread(0));
/// let block = Block { serial: 1, bytes: 512, stream };
/// ring.alloc(block, thread);
/// ring.free(block, thread);
/// let mut text = Vec::new();
/// ring.write_to(&mut text, &[])?;
/// // The allocation has left the ring, and the free says that the block was live.
/// assert_eq!(text, b"s window-start\na 1 512 0\nf 1\n");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct TraceRing {
    /// In order from `oldest` once the ring is full.
    events: Vec<Event>,
    capacity: usize,
    oldest: usize,
    overwritten: u64,
    labels: Labels,
    streams: Handles,
    threads: Handles,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    /// The block's serial, or the label's number of a mark.
    serial: u64,
    bytes: u64,
    stream: u16,
    /// The further stream of a record.
    further_stream: u16,
    thread: u16,
    verb: Verb,
}

const _: () = assert!(size_of::<Event>() == 24);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Alloc,
    Free,
    RecordStream,
    Mark,
    EmptyCache,
}

/// The label under which the blocks stand that were live before the first event.
const WINDOW_START: &str = "window-start";

impl TraceRing {
    /// An empty ring for this many events, at least 1. The address range is taken at once, so that
    /// recording never moves the events; the system backs it with memory as they come.
    pub fn new(capacity: usize) -> TraceRing {
        let capacity = capacity.max(1);
        TraceRing {
            events: Vec::with_capacity(capacity),
            capacity,
            oldest: 0,
            overwritten: 0,
            labels: Labels::default(),
            streams: Handles::default(),
            threads: Handles::default(),
        }
    }

    /// The index of a stream handle, for the calls below. After 65,535 handles every further one
    /// shares an index and is written as `u64::MAX`.
    pub fn stream(&mut self, handle: u64) -> StreamIndex {
        StreamIndex(self.streams.index(handle).into())
    }

    /// The index of a thread, limited as [`stream`](TraceRing::stream).
    pub fn thread(&mut self, thread: u64) -> ThreadIndex {
        ThreadIndex(self.threads.index(thread).into())
    }

    /// The number of events held.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether no event is held.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The number of events that newer ones have displaced.
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// Records an allocation.
    #[inline]
    pub fn alloc(&mut self, block: Block, thread: ThreadIndex) {
        self.push(Event::of_block(Verb::Alloc, block, thread));
    }

    /// Records a free; `block` as at its allocation.
    #[inline]
    pub fn free(&mut self, block: Block, thread: ThreadIndex) {
        self.push(Event::of_block(Verb::Free, block, thread));
    }

    /// Records the use of a block on a further stream; `block` as at its allocation.
    #[inline]
    pub fn record_stream(&mut self, block: Block, further: StreamIndex, thread: ThreadIndex) {
        let event = Event::of_block(Verb::RecordStream, block, thread);
        self.push(Event { further_stream: narrow(further.0), ..event });
    }

    /// Records a mark. Labels are kept up to 128 bytes; with 4,096 different ones in the ring,
    /// a further one is recorded as `-`.
    pub fn mark(&mut self, label: &str, thread: ThreadIndex) {
        let label = self.labels.take(label);
        self.push(Event::of_no_block(Verb::Mark, label.into(), thread));
    }

    /// Records a request to give the cached memory back.
    pub fn empty_cache(&mut self, thread: ThreadIndex) {
        self.push(Event::of_no_block(Verb::EmptyCache, 0, thread));
    }

    #[inline]
    fn push(&mut self, event: Event) {
        if self.events.len() < self.capacity {
            self.events.push(event);
            return;
        }
        let displaced = std::mem::replace(&mut self.events[self.oldest], event);
        if displaced.verb == Verb::Mark {
            self.labels.give_back(displaced.serial as u32);
        }
        self.oldest += 1;
        if self.oldest == self.capacity {
            self.oldest = 0;
        }
        self.overwritten += 1;
    }

    /// Writes the events as a trace that the reader accepts. First, under the label `window-start`,
    /// come the blocks live before the first event, in the order of their serials: those that an
    /// event speaks of, and those of `still_live`, the blocks live now, which the ring may have
    /// heard of too long ago (none need be given). Ids are serials.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn write_to(&self, output: impl Write, still_live: &[Block]) -> io::Result<()> {
        let mut writer = TraceWriter::new(output);
        writer.mark(WINDOW_START)?;
        let mut live = HashSet::new();
        for block in self.live_at_start(still_live) {
            self.write_alloc(&mut writer, block)?;
            live.insert(block.serial);
        }
        let mut thread = 0;
        for event in self.in_order() {
            let of = self.threads.handle(event.thread);
            if of != thread {
                writer.thread(of)?;
                thread = of;
            }
            self.write_event(&mut writer, event, &mut live)?;
        }
        writer.finish().map(|_| ())
    }

    fn in_order(&self) -> impl Iterator<Item = &Event> {
        self.events[self.oldest..].iter().chain(&self.events[..self.oldest])
    }

    /// A block was live before the first event if the first event that names it is no allocation,
    /// or if none names it and it is live now.
    fn live_at_start(&self, still_live: &[Block]) -> Vec<Block> {
        let mut named = HashSet::new();
        let mut blocks = Vec::new();
        for event in self.in_order() {
            let of_block = !matches!(event.verb, Verb::Mark | Verb::EmptyCache);
            if of_block && named.insert(event.serial) && event.verb != Verb::Alloc {
                blocks.push(event.block());
            }
        }
        blocks.extend(still_live.iter().filter(|block| named.insert(block.serial)));
        blocks.sort_by_key(|block| block.serial);
        blocks
    }

    /// Leaves out what contradicts the live blocks, such as a second free, so that a program's
    /// error does not cost its trace.
    fn write_event<W: Write>(
        &self,
        writer: &mut TraceWriter<W>,
        event: &Event,
        live: &mut HashSet<u64>,
    ) -> io::Result<()> {
        match event.verb {
            Verb::Alloc if live.insert(event.serial) => self.write_alloc(writer, event.block()),
            Verb::Free if live.remove(&event.serial) => writer.free(event.serial),
            Verb::RecordStream if live.contains(&event.serial) => {
                writer.record_stream(event.serial, self.streams.handle(event.further_stream))
            }
            Verb::Mark => writer.mark(self.labels.text(event.serial as u32)),
            Verb::EmptyCache => writer.empty_cache(),
            Verb::Alloc | Verb::Free | Verb::RecordStream => Ok(()),
        }
    }

    fn write_alloc<W: Write>(&self, writer: &mut TraceWriter<W>, block: Block) -> io::Result<()> {
        let stream = self.streams.handle(narrow(block.stream.0));
        writer.alloc(block.serial, block.bytes.min(BYTES_MAX), stream)
    }
}

impl Event {
    #[inline]
    fn of_block(verb: Verb, block: Block, thread: ThreadIndex) -> Event {
        let Block { serial, bytes, stream } = block;
        let (stream, thread) = (narrow(stream.0), narrow(thread.0));
        Event { serial, bytes, stream, further_stream: 0, thread, verb }
    }

    fn of_no_block(verb: Verb, serial: u64, thread: ThreadIndex) -> Event {
        let thread = narrow(thread.0);
        Event { serial, bytes: 0, stream: 0, further_stream: 0, thread, verb }
    }

    fn block(&self) -> Block {
        let stream = StreamIndex(self.stream.into());
        Block { serial: self.serial, bytes: self.bytes, stream }
    }
}

/// The index in an event; every one that [`Handles`] gives fits.
#[inline]
fn narrow(index: u32) -> u16 {
    u16::try_from(index).unwrap_or(OTHER)
}

/// The index shared by the handles that came after the table was full.
const OTHER: u16 = u16::MAX;

/// Stream handles or threads in the order of their first use.
#[derive(Debug, Default)]
struct Handles {
    values: Vec<u64>,
    map: HashMap<u64, u16>,
}

impl Handles {
    fn index(&mut self, value: u64) -> u16 {
        if let Some(&index) = self.map.get(&value) {
            return index;
        }
        let index = narrow(self.values.len() as u32);
        if index != OTHER {
            self.values.push(value);
            self.map.insert(value, index);
        }
        index
    }

    /// The handle of an index; `u64::MAX` for one that is not in the table.
    fn handle(&self, index: u16) -> u64 {
        self.values.get(usize::from(index)).copied().unwrap_or(u64::MAX)
    }
}
