//! A driver that remembers its last calls. Knows arguments and results, not what they mean.
use super::{
    Call, Capture, Driver, DriverError, EventId, HandleFlags, HandleId, MemoryInfo, StreamId,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;

/// One call, in the order in which calls returned. Displays as a line:
/// `17 allocate 2097152 bytes -> 0x40000000000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// 1 for the first call of the driver.
    pub number: u64,
    /// Which call.
    pub call: Call,
    /// What it was asked.
    pub arguments: Arguments,
    /// What it answered.
    pub outcome: Outcome,
}

/// What a driver call was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// Nothing.
    None,
    /// An amount of memory.
    Bytes(u64),
    /// A range, by its address.
    Address(u64),
    /// A stream.
    Stream(StreamId),
    /// An event.
    Event(EventId),
    /// A stream and an event.
    StreamEvent(StreamId, EventId),
    /// An amount of physical memory and what it must be able to do.
    Physical(u64, HandleFlags),
    /// Physical memory.
    Handle(HandleId),
    /// Where to put physical memory.
    AddressHandle(u64, HandleId),
    /// A mapped run: its address and bytes.
    Run(u64, u64),
    /// A mapped run and how many peers are to be let in.
    RunPeers(u64, u64, usize),
}

/// What a driver call answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success without an answer.
    Done,
    /// Memory of the device.
    Memory(MemoryInfo),
    /// A new range, by its address.
    Address(u64),
    /// A new event.
    Event(EventId),
    /// New physical memory.
    Handle(HandleId),
    /// Whether an event has passed.
    Passed(bool),
    /// Whether a stream is being captured.
    Capture(Capture),
    /// A refusal.
    Error(DriverError),
}

type Sink = Box<dyn Fn(&Entry) + Send + Sync>;

/// Any driver, keeping its last calls.
///
/// ```
/// use aquifer::driver::{Driver, logged::Logged, sim::Sim};
///
/// let sim = Sim::builder().build()?;
/// let driver = Logged::new(sim.device(0).expect("there is one device"), 100);
/// driver.allocate(2 << 20)?;
/// assert_eq!(driver.lines(), ["1 allocate 2097152 bytes -> 0x40000000000"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Logged<D> {
    inner: D,
    kept_max: usize,
    kept: Mutex<Kept>,
    sink: Option<Sink>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: VecDeque<Entry>,
    calls: u64,
}

impl<D> Logged<D> {
    /// `inner`, keeping its last `kept_max` calls.
    pub fn new(inner: D, kept_max: usize) -> Logged<D> {
        Logged { inner, kept_max, kept: Mutex::default(), sink: None }
    }

    /// The same, and `sink` sees each call after it returned, on the thread that made it and one at a
    /// time. The sink must not call this driver.
    pub fn with_sink(mut self, sink: impl Fn(&Entry) + Send + Sync + 'static) -> Logged<D> {
        self.sink = Some(Box::new(sink));
        self
    }

    /// The driver inside. Calls made there directly are not kept.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The calls kept, oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        self.kept.lock().entries.iter().copied().collect()
    }

    /// The calls kept, as text, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.kept.lock().entries.iter().map(Entry::to_string).collect()
    }

    fn keep<T: Copy>(
        &self,
        (call, arguments): (Call, Arguments),
        result: Result<T, DriverError>,
        outcome: impl FnOnce(T) -> Outcome,
    ) -> Result<T, DriverError> {
        let outcome = result.map_or_else(Outcome::Error, outcome);
        let mut kept = self.kept.lock();
        kept.calls += 1;
        let entry = Entry { number: kept.calls, call, arguments, outcome };
        if self.kept_max > 0 {
            if kept.entries.len() == self.kept_max {
                kept.entries.pop_front();
            }
            kept.entries.push_back(entry);
        }
        if let Some(sink) = &self.sink {
            sink(&entry);
        }
        result
    }
}

impl<D: Driver> Driver for Logged<D> {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let asked = (Call::MemoryInfo, Arguments::None);
        self.keep(asked, self.inner.memory_info(), Outcome::Memory)
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        let asked = (Call::Allocate, Arguments::Bytes(bytes));
        self.keep(asked, self.inner.allocate(bytes), Outcome::Address)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        let asked = (Call::Free, Arguments::Address(address));
        self.keep(asked, self.inner.free(address), |()| Outcome::Done)
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        let asked = (Call::RecordEvent, Arguments::Stream(stream));
        self.keep(asked, self.inner.record_event(stream), Outcome::Event)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        let asked = (Call::QueryEvent, Arguments::Event(event));
        self.keep(asked, self.inner.query_event(event), Outcome::Passed)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        let asked = (Call::WaitEvent, Arguments::Event(event));
        self.keep(asked, self.inner.wait_event(event), |()| Outcome::Done)
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        let asked = (Call::StreamWaitEvent, Arguments::StreamEvent(stream, event));
        self.keep(asked, self.inner.stream_wait_event(stream, event), |()| Outcome::Done)
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        let asked = (Call::ReleaseEvent, Arguments::Event(event));
        self.keep(asked, self.inner.release_event(event), |()| Outcome::Done)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        let asked = (Call::Synchronize, Arguments::None);
        self.keep(asked, self.inner.synchronize(), |()| Outcome::Done)
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        let asked = (Call::Capture, Arguments::Stream(stream));
        self.keep(asked, self.inner.capture(stream), Outcome::Capture)
    }

    fn page_bytes(&self) -> Option<u64> {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        let asked = (Call::Reserve, Arguments::Bytes(bytes));
        self.keep(asked, self.inner.reserve(bytes), Outcome::Address)
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        let asked = (Call::Unreserve, Arguments::Address(address));
        self.keep(asked, self.inner.unreserve(address), |()| Outcome::Done)
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        let asked = (Call::Create, Arguments::Physical(bytes, flags));
        self.keep(asked, self.inner.create(bytes, flags), Outcome::Handle)
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        let asked = (Call::ReleaseHandle, Arguments::Handle(handle));
        self.keep(asked, self.inner.release(handle), |()| Outcome::Done)
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        let asked = (Call::Map, Arguments::AddressHandle(address, handle));
        self.keep(asked, self.inner.map(address, handle), |()| Outcome::Done)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let asked = (Call::Unmap, Arguments::Run(address, bytes));
        self.keep(asked, self.inner.unmap(address, bytes), |()| Outcome::Done)
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        let asked = (Call::SetAccess, Arguments::RunPeers(address, bytes, peers.len()));
        self.keep(asked, self.inner.set_access(address, bytes, peers), |()| Outcome::Done)
    }
}

impl<D: fmt::Debug> fmt::Debug for Logged<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Logged");
        debug.field("inner", &self.inner).field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{} -> {}", self.number, self.call, self.arguments, self.outcome)
    }
}

/// With a space in front, or nothing.
impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Arguments::None => Ok(()),
            Arguments::Bytes(bytes) => write!(f, " {bytes} bytes"),
            Arguments::Address(address) => write!(f, " {address:#x}"),
            Arguments::Stream(stream) => write!(f, " stream {:#x}", stream.0),
            Arguments::Event(event) => write!(f, " event {}", event.0),
            Arguments::StreamEvent(stream, event) => {
                write!(f, " stream {:#x} event {}", stream.0, event.0)
            }
            Arguments::Physical(bytes, flags) => {
                write!(f, " {bytes} bytes")?;
                f.write_str(if flags.gpu_direct { " for gpu direct" } else { "" })?;
                f.write_str(if flags.shareable { " to share" } else { "" })
            }
            Arguments::Handle(handle) => write!(f, " handle {}", handle.0),
            Arguments::AddressHandle(address, handle) => {
                write!(f, " {address:#x} handle {}", handle.0)
            }
            Arguments::Run(address, bytes) => write!(f, " {address:#x} {bytes} bytes"),
            Arguments::RunPeers(address, bytes, peers) => {
                write!(f, " {address:#x} {bytes} bytes {peers} peers")
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Memory(info) => write!(f, "{} of {} bytes free", info.free, info.total),
            Outcome::Address(address) => write!(f, "{address:#x}"),
            Outcome::Event(event) => write!(f, "event {}", event.0),
            Outcome::Handle(handle) => write!(f, "handle {}", handle.0),
            Outcome::Passed(true) => f.write_str("passed"),
            Outcome::Passed(false) => f.write_str("not passed"),
            Outcome::Capture(Capture::None) => f.write_str("not captured"),
            Outcome::Capture(Capture::Active(graph)) => write!(f, "captured into graph {graph}"),
            Outcome::Capture(Capture::Invalidated) => f.write_str("capture invalidated"),
            Outcome::Error(error) => write!(f, "error: {error}"),
        }
    }
}
