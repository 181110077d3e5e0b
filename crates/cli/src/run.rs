//! One run of a trace through a new allocator on a new device. Knows what each operation means; does
//! not know what becomes of the figures.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use aquifer::driver::StreamId;
use aquifer::driver::sim::{CallCounts, Device, Sim, Work};
use aquifer::trace::{Op, Slot, ThreadIndex, Trace};
use aquifer::{AllocError, Allocation, Allocator, Backing};
use cpu_time::ThreadTime;

use crate::engine::{EngineError, Setup};
use crate::min_capacity::GRANULARITY;

/// What a run takes place in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World<'a> {
    /// The policy, the slack and the end of the warm-up are taken from it.
    pub(crate) setup: &'a Setup,
    pub(crate) capacity_bytes: u64,
    pub(crate) lag_ops: u64,
    /// Whether the first request without memory ends the run.
    pub(crate) stops_at_oom: bool,
}

/// What a run showed.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Processor time of the operations, summed over the threads.
    pub(crate) time: Duration,
    pub(crate) calls: CallCounts,
    /// The calls made up to the end of the warm-up.
    pub(crate) warmup_calls: CallCounts,
    pub(crate) ooms: u64,
    pub(crate) peak_reserved_bytes: u64,
    /// All bytes ever got from the driver.
    pub(crate) reserved_bytes_total: u64,
}

/// Runs `trace` once.
///
/// # Errors
/// [`EngineError::BadSetup`] if there can be no such device or allocator, [`EngineError::Broken`].
pub(crate) fn run(trace: &Trace, world: &World) -> Result<Outcome, EngineError> {
    let mut run = Run::new(trace.ops(), trace, world)?;
    if trace.threads().len() > 1 {
        run = play_on_threads(run, trace.threads().len());
    } else {
        while run.play().is_some() {}
    }
    run.outcome()
}

/// Gives the run from thread to thread as the trace switches between them, each of its threads
/// having a real one to itself.
fn play_on_threads<I: Iterator<Item = Op> + Send>(run: Run<I>, threads: usize) -> Run<I> {
    let (give_back, given_back) = mpsc::channel();
    thread::scope(|scope| {
        let turns = Vec::from_iter((0..threads).map(|_| {
            let (turn, my_turn) = mpsc::channel::<Box<Run<I>>>();
            let give_back = give_back.clone();
            scope.spawn(move || {
                for mut run in my_turn {
                    let next = run.play();
                    give_back.send((run, next)).expect("the run is waited for");
                }
            });
            turn
        }));
        let (mut run, mut next) = (Box::new(run), Some(ThreadIndex(0)));
        while let Some(thread) = next {
            turns[thread.index()].send(run).expect("threads live while there are turns");
            (run, next) = given_back.recv().expect("the run comes back from its turn");
        }
        *run
    })
}

/// What a backing's name means.
fn backing(name: &str) -> Backing {
    if name == "segments" { Backing::Segments } else { Backing::Paged }
}

/// A run under way.
struct Run<'a, I> {
    ops: I,
    /// Operations played.
    played: usize,
    trace: &'a Trace,
    world: World<'a>,
    device: Arc<Device>,
    allocator: Allocator,
    /// The device's stream for each of the trace's.
    streams: Vec<StreamId>,
    slots: Vec<Option<Allocation>>,
    /// The further streams of live blocks; kept only with a lag.
    further: HashMap<Slot, Vec<StreamId>>,
    time: Duration,
    warmup_calls: CallCounts,
    ooms: u64,
    failed: Option<AllocError>,
}

impl<'a, I: Iterator<Item = Op>> Run<'a, I> {
    fn new(ops: I, trace: &'a Trace, world: &World<'a>) -> Result<Run<'a, I>, EngineError> {
        let sim = Sim::builder().capacity(world.capacity_bytes).granularity(GRANULARITY).build();
        let sim = sim.map_err(|error| EngineError::BadSetup(error.to_string()))?;
        let device = sim.device(0).expect("a machine has a first device");
        let mut builder = Allocator::builder(device.clone())
            .policy(&world.setup.policy)
            .backing(backing(&world.setup.backing));
        if let Some(slack) = world.setup.slack {
            builder = builder.slack(slack);
        }
        let allocator =
            builder.build().map_err(|error| EngineError::BadSetup(error.to_string()))?;
        let stream = |&handle: &u64| match handle {
            0 => StreamId(0),
            _ => device.create_stream(),
        };
        Ok(Run {
            ops,
            played: 0,
            trace,
            world: *world,
            allocator,
            streams: trace.streams().iter().map(stream).collect(),
            device,
            slots: Vec::from_iter((0..trace.slots()).map(|_| None)),
            further: HashMap::new(),
            time: Duration::ZERO,
            warmup_calls: CallCounts::default(),
            ooms: 0,
            failed: None,
        })
    }

    /// Plays on this thread until another one's turn; none at the end.
    fn play(&mut self) -> Option<ThreadIndex> {
        let began = ThreadTime::now();
        let next = self.play_untimed();
        self.time += began.elapsed();
        next
    }

    fn play_untimed(&mut self) -> Option<ThreadIndex> {
        while let Some(op) = self.ops.next() {
            if self.played == self.world.setup.warmup_end {
                self.warmup_calls = self.device.counts();
            }
            self.played += 1;
            if self.world.lag_ops > 0 {
                self.device.advance_to(self.device.tick() + 1);
            }
            match op {
                Op::Alloc { slot, bytes, stream } => {
                    let stream = self.streams[stream.index()];
                    match self.allocator.allocate(bytes, stream) {
                        Ok(allocation) => self.slots[slot.index()] = Some(allocation),
                        Err(error) => self.refused(error)?,
                    }
                }
                Op::Free { slot } => self.free(slot),
                Op::Thread { thread } => return Some(thread),
                rare => self.rare(rare)?,
            }
        }
        None
    }

    #[inline]
    fn free(&mut self, slot: Slot) {
        if let Some(allocation) = self.slots[slot.index()].take() {
            if self.world.lag_ops > 0 && !allocation.is_empty() {
                self.launch_last_work(slot, &allocation);
            }
            drop(allocation);
        }
    }

    /// Queues work that keeps the block in use for the lag, on each of its streams.
    fn launch_last_work(&mut self, slot: Slot, allocation: &Allocation) {
        let work = Work::until(self.device.tick() + self.world.lag_ops);
        let further = self.further.remove(&slot).unwrap_or_default();
        for stream in further.into_iter().chain([allocation.stream()]) {
            let launched = self.device.launch(stream, work.clone());
            launched.expect("the run's streams are the device's");
        }
    }

    /// Does what traces seldom ask for; none if the run has failed.
    #[cold]
    fn rare(&mut self, op: Op) -> Option<()> {
        let done = match op {
            Op::RecordStream { slot, stream } => self.record_stream(slot, stream.index()),
            Op::Mark { label } => {
                self.allocator.mark(&self.trace.labels()[label.index()]);
                Ok(())
            }
            _ => self.allocator.empty_cache().map(drop),
        };
        done.or_else(|error| self.refused(error).ok_or(())).ok()
    }

    fn record_stream(&mut self, slot: Slot, stream: usize) -> Result<(), AllocError> {
        let Some(allocation) = &self.slots[slot.index()] else { return Ok(()) };
        let stream = self.streams[stream];
        if self.world.lag_ops > 0 && stream != allocation.stream() {
            self.further.entry(slot).or_default().push(stream);
        }
        allocation.record_stream(stream)
    }

    /// Notes an error; none if the run ends by it.
    #[cold]
    fn refused(&mut self, error: AllocError) -> Option<()> {
        if error.oom().is_none() {
            self.failed = Some(error);
            return None;
        }
        self.ooms += 1;
        (!self.world.stops_at_oom).then_some(())
    }

    fn outcome(self) -> Result<Outcome, EngineError> {
        if let Some(error) =
            self.failed.or_else(|| Some(self.allocator.last_driver_error()?.into()))
        {
            return Err(EngineError::Broken(error.to_string()));
        }
        let calls = self.device.counts();
        let stats = self.allocator.memory_stats();
        Ok(Outcome {
            time: self.time,
            calls,
            warmup_calls: self.warmup_calls,
            ooms: self.ooms,
            peak_reserved_bytes: stats.reserved_bytes.peak,
            reserved_bytes_total: stats.reserved_bytes.allocated,
        })
    }
}

#[cfg(test)]
mod tests {
    use aquifer::driver::{Call, DriverError};

    use super::*;

    fn setup() -> Setup {
        Setup {
            name: "test".into(),
            policy: "first-fit".into(),
            backing: "segments".into(),
            slack: None,
            lag_ops: 0,
            capacity_bytes: None,
            min_capacity: false,
            repeats: 1,
            warmup_end: 0,
        }
    }

    /// Plays a trace on a device that fails every `call`, and returns the text of the error.
    fn broken_by(call: Call, trace: &str) -> String {
        let trace = Trace::parse(trace.as_bytes()).unwrap();
        let setup = setup();
        let world =
            World { setup: &setup, capacity_bytes: 1 << 30, lag_ops: 0, stops_at_oom: false };
        let mut run = Run::new(trace.ops(), &trace, &world).unwrap();
        run.device.fail_all(call);
        while run.play().is_some() {}
        match run.outcome() {
            Err(EngineError::Broken(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_driver_error_breaks_the_run_off() {
        let failed = |call| DriverError::Failed { call, code: 999 }.to_string();
        for (call, trace) in
            [(Call::Allocate, "a 1 5 0\na 2 5 0\n"), (Call::Free, "a 1 5 0\nf 1\ne\n")]
        {
            assert_eq!(broken_by(call, trace), format!("driver: {}", failed(call)));
        }
    }

    #[test]
    fn a_driver_error_that_no_call_returned_is_found_at_the_end() {
        let text = broken_by(Call::RecordEvent, "a 1 5 0\nr 1 3\nf 1\n");
        assert!(text.contains("record_event"), "{text}");
    }

    #[test]
    fn each_thread_of_the_trace_has_one_of_its_own() {
        let trace = &b"a 1 5 0\nt 7\nf 1\na 1 5 0\nt 0\nf 1\nt 3\na 1 5 0\nt 7\nf 1\n"[..];
        let trace = Trace::parse(trace).unwrap();
        let setup = setup();
        let world =
            World { setup: &setup, capacity_bytes: 1 << 30, lag_ops: 0, stops_at_oom: false };
        let (played, seen) = mpsc::channel();
        let ops = trace.ops().inspect(move |op| {
            played.send((*op, thread::current().id())).unwrap();
        });
        let run = play_on_threads(Run::new(ops, &trace, &world).unwrap(), 3);
        assert_eq!(run.outcome().unwrap().ooms, 0);
        let (ops, threads): (Vec<Op>, Vec<thread::ThreadId>) = seen.iter().unzip();
        assert_eq!(ops, Vec::from_iter(trace.ops()));
        // The operation that switches is the last of the thread before.
        let expected = [0, 0, 7, 7, 7, 0, 0, 3, 3, 7];
        for (i, j) in (0..ops.len()).flat_map(|i| (0..i).map(move |j| (i, j))) {
            assert_eq!(threads[i] == threads[j], expected[i] == expected[j], "{i} and {j}");
        }
        assert!(!threads.contains(&thread::current().id()));
    }
}
