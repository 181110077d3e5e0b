//! One simulated device: the lock, and what a test or an experiment does to it from outside. The calls
//! of the driver trait are in `calls`.
use super::capture::{Captures, Graph};
use super::clock::{CallCounts, Clock};
use super::error::{SimError, Violation};
use super::events::Events;
use super::memory::{Memory, Span};
use super::streams::Streams;
use super::virtual_memory::{Physical, VirtualMemory};
use super::work::Work;
use crate::driver::faults::FaultPlan;
use crate::driver::{Call, DriverError, HandleId, StreamId};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;

/// A simulated device; a [`crate::driver::Driver`].
///
/// One lock guards it all, and waiting calls run the scheduler while they hold it.
pub struct Device {
    pub(super) index: usize,
    pub(super) granularity: u64,
    pub(super) page_bytes: Option<u64>,
    pub(super) free_waits: bool,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) memory: Memory,
    pub(super) streams: Streams,
    pub(super) events: Events,
    pub(super) captures: Captures,
    pub(super) clock: Clock,
    pub(super) faults: FaultPlan,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let granularity = &self.granularity;
        let mut debug = f.debug_struct("Device");
        debug.field("index", &self.index).field("granularity", granularity).finish_non_exhaustive()
    }
}

/// Streams and their work.
impl Device {
    /// A new stream without work.
    pub fn create_stream(&self) -> StreamId {
        self.lock().streams.create()
    }

    /// Forgets `stream`; what is queued on it still completes, and its events stay valid.
    ///
    /// # Errors
    /// [`SimError::UnknownStream`], also for the default stream; [`SimError::Capturing`].
    pub fn destroy_stream(&self, stream: StreamId) -> Result<(), SimError> {
        let state = &mut *self.lock();
        let slot = state.slot(stream)?;
        if stream == StreamId::default() {
            return Err(SimError::UnknownStream(stream));
        }
        if state.captures.of(slot).is_some() {
            return Err(SimError::Capturing(stream));
        }
        state.streams.destroy(slot);
        Ok(())
    }

    /// Queues `work` on `stream`, or records it if the stream is being captured.
    ///
    /// Cost: some ten nanoseconds for [`Work::until`] and [`Work::unit`]; other work is boxed.
    ///
    /// # Errors
    /// [`SimError::UnknownStream`], [`SimError::CaptureInvalidated`].
    pub fn launch(&self, stream: StreamId, work: Work) -> Result<(), SimError> {
        self.lock().launch(stream, work)
    }

    /// Queues all work of `graph` on `stream`, in the order in which it was recorded.
    ///
    /// # Errors
    /// As [`Device::launch`].
    pub fn launch_graph(&self, stream: StreamId, graph: &Graph) -> Result<(), SimError> {
        let mut state = self.lock();
        graph.work.iter().try_for_each(|work| state.launch(stream, work.clone()))
    }

    /// Completes one item that waits for nothing but the scheduler, chosen by the seed; false if there
    /// is none. Items that wait for a tick are none: they complete when the tick comes.
    pub fn step(&self) -> bool {
        let state = &mut *self.lock();
        state.streams.step(&mut state.memory)
    }

    /// Lets time pass until `tick`, which completes what waited for it. An earlier tick changes nothing.
    pub fn advance_to(&self, tick: u64) {
        let state = &mut *self.lock();
        state.streams.advance_to(tick, &mut state.memory);
    }

    /// Completes all that is queued, letting as much time pass as that takes.
    pub fn run_all(&self) {
        let state = &mut *self.lock();
        let done = state.streams.run_all(&mut state.memory);
        done.expect("queued items wait only for earlier ones or for a tick");
    }

    /// The device's time. Host waits move it on to what they wait for.
    pub fn tick(&self) -> u64 {
        self.lock().streams.tick()
    }

    /// Items queued and not done, on all streams.
    pub fn pending(&self) -> u64 {
        self.lock().streams.pending()
    }

    /// Events recorded and not released.
    pub fn live_events(&self) -> usize {
        self.lock().events.live()
    }
}

/// Capture into graphs.
impl Device {
    /// Starts recording what `stream` is told to do; the number of the graph.
    ///
    /// While any stream of the device is being captured, [`Call::Allocate`], [`Call::Free`],
    /// [`Call::QueryEvent`], [`Call::WaitEvent`], [`Call::Synchronize`], [`Call::Unmap`],
    /// [`Call::ReleaseHandle`] and [`Call::Unreserve`] are illegal: they fail and spoil each open
    /// capture. A stream that is told to wait for an event of a graph joins the capture.
    ///
    /// CUDA does not list the calls that are illegal. That physical memory may be created, mapped and
    /// opened in a capture is taken from PyTorch, whose expandable segments grow in one, where its
    /// `cudaMalloc` needs the relaxed mode. Nothing is known of their opposites, so they are taken to be
    /// like a free.
    ///
    /// # Errors
    /// [`SimError::UnknownStream`], [`SimError::Capturing`].
    pub fn begin_capture(&self, stream: StreamId) -> Result<u64, SimError> {
        let state = &mut *self.lock();
        let slot = state.slot(stream)?;
        if state.captures.of(slot).is_some() {
            return Err(SimError::Capturing(stream));
        }
        Ok(state.captures.begin(slot))
    }

    /// Ends the capture that `stream` began, for all the streams that joined it.
    ///
    /// # Errors
    /// [`SimError::UnknownStream`]; [`SimError::NotCapturing`], also for a stream that joined;
    /// [`SimError::CaptureInvalidated`], and then the capture has ended all the same.
    pub fn end_capture(&self, stream: StreamId) -> Result<Graph, SimError> {
        let state = &mut *self.lock();
        let slot = state.slot(stream)?;
        let recording = state.captures.end(slot).ok_or(SimError::NotCapturing(stream))?;
        if recording.spoiled {
            return Err(SimError::CaptureInvalidated(stream));
        }
        Ok(recording.graph)
    }

    /// Ends the capture that `stream` began, spoiled or not, and throws the graph away.
    ///
    /// # Errors
    /// [`SimError::UnknownStream`], [`SimError::NotCapturing`].
    pub fn abort_capture(&self, stream: StreamId) -> Result<(), SimError> {
        match self.end_capture(stream) {
            Ok(_) | Err(SimError::CaptureInvalidated(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Bytes.
impl Device {
    /// Copies the bytes at `address` out, without waiting for work.
    ///
    /// # Errors
    /// [`SimError::OutOfBounds`], [`SimError::NoBytes`].
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), SimError> {
        self.lock().memory.read(address, into)
    }

    /// Copies `from` to the bytes at `address`, without waiting for work.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), SimError> {
        self.lock().memory.write(address, from)
    }

    /// Where `span` lies in host memory; see [`Memory::pointer`].
    ///
    /// # Errors
    /// As [`Device::read`].
    pub fn pointer(&self, span: Span) -> Result<*mut u8, SimError> {
        self.lock().memory.pointer(span)
    }
}

/// What others do to the device.
impl Device {
    /// Lets other processes hold `bytes`. They may be more than is left: then nothing is free, and what
    /// this process holds stays.
    pub fn set_other_use(&self, bytes: u64) {
        self.lock().memory.budget.other_use_bytes = bytes;
    }

    /// Lets this process hold `bytes` that it did not allocate (its context, libraries).
    pub fn set_process_overhead(&self, bytes: u64) {
        self.lock().memory.budget.process_overhead_bytes = bytes;
    }

    /// Fails the `n`-th driver call from now, whichever it is, once; 1 is the next.
    pub fn fail_at(&self, n: u64) {
        self.lock().faults.fail_at(n);
    }

    /// Fails the `n`-th `call` from now, once, with `error`; 1 is the next.
    pub fn fail_call(&self, call: Call, n: u64, error: DriverError) {
        self.lock().faults.fail_call(call, n, error);
    }

    /// Fails every `call` from now on.
    pub fn fail_all(&self, call: Call) {
        self.lock().faults.fail_all(call);
    }

    /// Drops all planned failures.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }
}

/// What happened.
impl Device {
    /// Which of the machine's devices this is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Nanoseconds that all calls took so far, by the table of costs.
    pub fn clock_ns(&self) -> u64 {
        self.lock().clock.ns
    }

    /// How often each call was made.
    pub fn counts(&self) -> CallCounts {
        self.lock().clock.counts
    }

    /// All driver calls so far, failed ones included.
    pub fn calls_made(&self) -> u64 {
        self.lock().faults.calls_made()
    }

    /// Every range that is allocated, by address.
    pub fn live_ranges(&self) -> Vec<Span> {
        self.lock().memory.live_ranges()
    }

    /// Bytes in live ranges and in physical memory.
    pub fn used_bytes(&self) -> u64 {
        self.lock().memory.budget.used_bytes()
    }

    /// The most that [`Device::used_bytes`] ever was.
    pub fn peak_used_bytes(&self) -> u64 {
        self.lock().memory.budget.used_bytes_peak()
    }

    /// Everything that is mapped, by address.
    pub fn mappings(&self) -> Vec<(Span, HandleId)> {
        self.virtual_memory(VirtualMemory::mappings)
    }

    /// Whether all of `span` is mapped in one reserved range and `device` was let in.
    pub fn is_accessible(&self, span: Span, device: u32) -> bool {
        self.virtual_memory(|memory| memory.is_accessible(span, device))
    }

    /// The physical memory behind `handle`, until it is released.
    pub fn physical(&self, handle: HandleId) -> Option<Physical> {
        self.virtual_memory(|memory| memory.physical(handle))
    }

    /// Handles created and not released.
    pub fn live_handles(&self) -> usize {
        self.virtual_memory(VirtualMemory::live_handles)
    }

    /// Addresses reserved and not given back.
    pub fn reserved_address_bytes(&self) -> u64 {
        self.virtual_memory(VirtualMemory::reserved_bytes)
    }

    /// Misuses of memory so far, in the order in which they were seen.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().memory.violations.clone()
    }

    /// What `ask` finds; nothing where there is no virtual memory.
    fn virtual_memory<T: Default>(&self, ask: impl FnOnce(&VirtualMemory) -> T) -> T {
        self.lock().memory.virtual_memory.as_ref().map(ask).unwrap_or_default()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    pub(super) fn slot(&self, stream: StreamId) -> Result<u32, SimError> {
        self.streams.slot(stream).ok_or(SimError::UnknownStream(stream))
    }

    fn launch(&mut self, stream: StreamId, work: Work) -> Result<(), SimError> {
        let slot = self.slot(stream)?;
        match self.captures.of(slot) {
            Some(recording) if recording.spoiled => Err(SimError::CaptureInvalidated(stream)),
            Some(recording) => {
                recording.graph.work.push(work);
                Ok(())
            }
            None => {
                self.streams.launch(slot, work, &mut self.memory);
                Ok(())
            }
        }
    }
}
