//! One run of a trace through a new allocator on a new device. Knows what each operation means; does
//! not know what becomes of the figures.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use aquifer::Allocator;
use aquifer::driver::sim::{Device, Sim, Work};
use aquifer::driver::{Driver, StreamId};
use aquifer::trace::{Op, Slot, ThreadIndex, Trace};
use cpu_time::ThreadTime;

use crate::engine::{EngineError, Setup};
use crate::expandable::Expandable;
use crate::min_capacity::GRANULARITY;
use crate::subject::{EXPANDABLE, Planned, Subject};
use crate::tape::{Tape, Taped};
use crate::timeline::Watched;
use crate::usage::Usage;

/// What a run takes place in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World<'a> {
    /// The backing, the policy, the slack and the end of the warm-up are taken from it.
    pub(crate) setup: &'a Setup,
    /// The index of the operation with which the second half begins.
    pub(crate) second_half: usize,
    pub(crate) capacity_bytes: u64,
    pub(crate) lag_ops: u64,
    /// Whether the first request without memory ends the run.
    pub(crate) stops_at_oom: bool,
}

/// What a run showed.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Processor time of the operations, the simulated driver's included, summed over the threads.
    pub(crate) time: Duration,
    pub(crate) usage: Usage,
    /// What was asked of the device up to the end of the warm-up.
    pub(crate) warmup_usage: Usage,
    /// The same up to the second half.
    pub(crate) first_half_usage: Usage,
    /// Where requests were served over the whole trace.
    pub(crate) planned: Planned,
    /// The same up to the second half.
    pub(crate) first_half_planned: Planned,
    pub(crate) ooms: u64,
    pub(crate) peak_reserved_bytes: u64,
}

/// Runs `trace` once.
///
/// # Errors
/// [`EngineError::BadSetup`] if there can be no such device or allocator, [`EngineError::Broken`].
pub(crate) fn run(trace: &Trace, world: &World) -> Result<Outcome, EngineError> {
    let device = device(world)?;
    over(device.clone(), trace, world, device)
}

/// Runs `trace` once, the driver's answers recorded.
///
/// # Errors
/// As [`run`].
pub(crate) fn record(trace: &Trace, world: &World) -> Result<Arc<Tape>, EngineError> {
    let device = device(world)?;
    let taped = Arc::new(Taped::recording(device.clone()));
    over(taped.clone(), trace, world, device)?;
    Ok(taped.tape())
}

/// The processor time of the operations of `trace` over a driver that only repeats what it said when the tape
/// was recorded in the same world, without a lag.
///
/// # Errors
/// As [`run`]; [`EngineError::Broken`] also if the allocator took another way than then.
pub(crate) fn play_tape(
    trace: &Trace,
    world: &World,
    tape: &Arc<Tape>,
) -> Result<Duration, EngineError> {
    let taped = Arc::new(Taped::<Arc<Device>>::playing(tape.clone()));
    let outcome = over(taped.clone(), trace, world, device(world)?);
    if taped.is_astray() {
        return Err(EngineError::Broken("two runs asked other things of the driver".into()));
    }
    Ok(outcome?.time)
}

/// Runs `trace` once through an allocator on `driver`; work is queued on `device`.
fn over(
    driver: Arc<dyn Driver>,
    trace: &Trace,
    world: &World,
    device: Arc<Device>,
) -> Result<Outcome, EngineError> {
    match world.setup.backing.as_str() {
        EXPANDABLE => play::<Expandable, _>(trace.ops(), trace, world, driver, device)?.outcome(),
        _ => play::<Allocator, _>(trace.ops(), trace, world, driver, device)?.outcome(),
    }
}

/// Runs `trace` once: the most bytes reserved in each of `parts` parts of its operations.
///
/// # Errors
/// As [`run`].
pub(crate) fn watch(trace: &Trace, world: &World, parts: usize) -> Result<Vec<u64>, EngineError> {
    let device = device(world)?;
    let ops = Watched::new(trace.ops(), device.clone(), parts);
    match world.setup.backing.as_str() {
        EXPANDABLE => play::<Expandable, _>(ops, trace, world, device.clone(), device)?.watched(),
        _ => play::<Allocator, _>(ops, trace, world, device.clone(), device)?.watched(),
    }
}

fn device(world: &World) -> Result<Arc<Device>, EngineError> {
    let sim = Sim::builder().capacity(world.capacity_bytes).granularity(GRANULARITY);
    let sim = sim.costs(Usage::costs()).build();
    let sim = sim.map_err(|error| EngineError::BadSetup(error.to_string()))?;
    Ok(sim.device(0).expect("a machine has a first device"))
}

/// Plays all of a trace.
fn play<'a, S: Subject, I: Iterator<Item = Op> + Send>(
    ops: I,
    trace: &'a Trace,
    world: &World<'a>,
    driver: Arc<dyn Driver>,
    device: Arc<Device>,
) -> Result<Run<'a, S, I>, EngineError> {
    let mut run = Run::new(ops, trace, world, driver, device)?;
    if trace.threads().len() > 1 {
        run = play_on_threads(run, trace.threads().len());
    } else {
        while run.play().is_some() {}
    }
    Ok(run)
}

/// Gives the run from thread to thread as the trace switches between them, each of its threads
/// having a real one to itself.
fn play_on_threads<'a, S: Subject, I: Iterator<Item = Op> + Send>(
    run: Run<'a, S, I>,
    threads: usize,
) -> Run<'a, S, I> {
    let (give_back, given_back) = mpsc::channel();
    thread::scope(|scope| {
        let turns = Vec::from_iter((0..threads).map(|_| {
            let (turn, my_turn) = mpsc::channel::<Box<Run<S, I>>>();
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

/// A run under way.
struct Run<'a, S: Subject, I> {
    ops: I,
    /// Operations played.
    played: usize,
    /// When the usage is to be noted next.
    next_note: usize,
    trace: &'a Trace,
    world: World<'a>,
    device: Arc<Device>,
    subject: S,
    /// The device's stream for each of the trace's.
    streams: Vec<StreamId>,
    slots: Vec<Option<S::Block>>,
    /// The further streams of live blocks; kept only with a lag.
    further: HashMap<Slot, Vec<StreamId>>,
    time: Duration,
    warmup_usage: Usage,
    first_half_usage: Usage,
    first_half_planned: Planned,
    ooms: u64,
    failed: Option<S::Error>,
}

impl<'a, S: Subject, I: Iterator<Item = Op>> Run<'a, S, I> {
    fn new(
        ops: I,
        trace: &'a Trace,
        world: &World<'a>,
        driver: Arc<dyn Driver>,
        device: Arc<Device>,
    ) -> Result<Run<'a, S, I>, EngineError> {
        let stream = |&handle: &u64| match handle {
            0 => StreamId(0),
            _ => device.create_stream(),
        };
        Ok(Run {
            ops,
            played: 0,
            next_note: 0,
            trace,
            world: *world,
            subject: S::new(world.setup, driver, world.capacity_bytes)?,
            streams: trace.streams().iter().map(stream).collect(),
            device,
            slots: Vec::from_iter((0..trace.slots()).map(|_| None)),
            further: HashMap::new(),
            time: Duration::ZERO,
            warmup_usage: Usage::default(),
            first_half_usage: Usage::default(),
            first_half_planned: Planned::default(),
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
            if self.played == self.next_note {
                self.note_usage();
            }
            self.played += 1;
            if self.world.lag_ops > 0 {
                self.device.advance_to(self.device.tick() + 1);
            }
            match op {
                Op::Alloc { slot, bytes, stream } => {
                    let stream = self.streams[stream.index()];
                    match self.subject.allocate(bytes, stream) {
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
        if let Some(block) = self.slots[slot.index()].take() {
            if self.world.lag_ops > 0
                && let Some(stream) = self.subject.stream_of(&block)
            {
                self.launch_last_work(slot, stream);
            }
            self.subject.free(block);
        }
    }

    /// Queues work that keeps a block in use for the lag, on its own stream and the further ones.
    fn launch_last_work(&mut self, slot: Slot, stream: StreamId) {
        let work = Work::until(self.device.tick() + self.world.lag_ops);
        let further = self.further.remove(&slot).unwrap_or_default();
        for stream in further.into_iter().chain([stream]) {
            let launched = self.device.launch(stream, work.clone());
            launched.expect("the run's streams are the device's");
        }
    }

    /// Notes what was asked of the device where a part of the trace ends.
    #[cold]
    fn note_usage(&mut self) {
        let ends = [self.world.setup.warmup_end, self.world.second_half];
        for (end, usage) in ends.iter().zip([&mut self.warmup_usage, &mut self.first_half_usage]) {
            if *end == self.played {
                *usage = Usage::of(&self.device);
            }
        }
        if self.world.second_half == self.played {
            self.first_half_planned = self.subject.planned();
        }
        let later = ends.into_iter().filter(|end| *end > self.played);
        self.next_note = later.min().unwrap_or(usize::MAX);
    }

    /// Does what traces seldom ask for; none if the run has failed.
    #[cold]
    fn rare(&mut self, op: Op) -> Option<()> {
        let done = match op {
            Op::RecordStream { slot, stream } => self.record_stream(slot, stream.index()),
            Op::Mark { label } => {
                if self.world.setup.marks {
                    self.subject.mark(&self.trace.labels()[label.index()]);
                }
                Ok(())
            }
            _ => self.subject.empty_cache(),
        };
        done.or_else(|error| self.refused(error).ok_or(())).ok()
    }

    fn record_stream(&mut self, slot: Slot, stream: usize) -> Result<(), S::Error> {
        let Some(block) = &self.slots[slot.index()] else { return Ok(()) };
        let stream = self.streams[stream];
        if self.world.lag_ops > 0 && self.subject.stream_of(block) != Some(stream) {
            self.further.entry(slot).or_default().push(stream);
        }
        self.subject.record_stream(block, stream)
    }

    /// Notes an error; none if the run ends by it.
    #[cold]
    fn refused(&mut self, error: S::Error) -> Option<()> {
        if !S::is_oom(&error) {
            self.failed = Some(error);
            return None;
        }
        self.ooms += 1;
        (!self.world.stops_at_oom).then_some(())
    }

    fn outcome(mut self) -> Result<Outcome, EngineError> {
        if let Some(error) = self.failed.take().or_else(|| self.subject.hidden_error()) {
            return Err(EngineError::Broken(error.to_string()));
        }
        Ok(Outcome {
            time: self.time,
            usage: Usage::of(&self.device),
            warmup_usage: self.warmup_usage,
            first_half_usage: self.first_half_usage,
            planned: self.subject.planned(),
            first_half_planned: self.first_half_planned,
            ooms: self.ooms,
            peak_reserved_bytes: self.subject.peak_reserved_bytes(),
        })
    }
}

impl<S: Subject, I: Iterator<Item = Op>> Run<'_, S, Watched<I>> {
    fn watched(self) -> Result<Vec<u64>, EngineError> {
        match self.failed.or_else(|| self.subject.hidden_error()) {
            Some(error) => Err(EngineError::Broken(error.to_string())),
            None => Ok(self.ops.into_parts()),
        }
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
            marks: true,
            lag_ops: 0,
            capacity_bytes: None,
            min_capacity: false,
            repeats: 1,
            warmup_end: 0,
        }
    }

    fn world(setup: &Setup) -> World<'_> {
        World {
            setup,
            second_half: usize::MAX,
            capacity_bytes: 1 << 30,
            lag_ops: 0,
            stops_at_oom: false,
        }
    }

    /// Plays a trace on a device that fails every `call`, and returns the text of the error.
    fn broken_by<S: Subject>(call: Call, trace: &str) -> String {
        let trace = Trace::parse(trace.as_bytes()).unwrap();
        let setup = setup();
        let world = world(&setup);
        let device = device(&world).unwrap();
        let mut run =
            Run::<S, _>::new(trace.ops(), &trace, &world, device.clone(), device).unwrap();
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
            assert_eq!(broken_by::<Allocator>(call, trace), format!("driver: {}", failed(call)));
        }
    }

    #[test]
    fn a_driver_error_that_no_call_returned_is_found_at_the_end() {
        let text = broken_by::<Allocator>(Call::RecordEvent, "a 1 5 0\nr 1 3\nf 1\n");
        assert!(text.contains("record_event"), "{text}");
    }

    #[test]
    fn a_driver_error_breaks_the_baseline_off_too() {
        let used_twice = "a 1 5 0\nr 1 3\nf 1\na 2 5 0\ne\n";
        for (call, trace) in [
            (Call::Reserve, "a 1 5 0\n"),
            (Call::Create, "a 1 5 0\n"),
            (Call::Map, "a 1 5 0\n"),
            (Call::SetAccess, "a 1 5 0\n"),
            (Call::RecordEvent, used_twice),
            (Call::QueryEvent, used_twice),
            (Call::ReleaseEvent, used_twice),
            (Call::WaitEvent, "a 1 5 0\nr 1 3\nf 1\ne\n"),
            (Call::Synchronize, "a 1 5 0\nf 1\ne\n"),
            (Call::Unmap, "a 1 5 0\nf 1\ne\n"),
            (Call::ReleaseHandle, "a 1 5 0\nf 1\ne\n"),
            (Call::Unreserve, "a 1 5 0\nf 1\ne\n"),
        ] {
            let failed = DriverError::Failed { call, code: 999 }.to_string();
            assert_eq!(broken_by::<Expandable>(call, trace), failed);
        }
    }

    #[test]
    fn each_thread_of_the_trace_has_one_of_its_own() {
        let trace = &b"a 1 5 0\nt 7\nf 1\na 1 5 0\nt 0\nf 1\nt 3\na 1 5 0\nt 7\nf 1\n"[..];
        let trace = Trace::parse(trace).unwrap();
        let setup = setup();
        let world = world(&setup);
        let (played, seen) = mpsc::channel();
        let ops = trace.ops().inspect(move |op| {
            played.send((*op, thread::current().id())).unwrap();
        });
        let device = device(&world).unwrap();
        let run = Run::<Allocator, _>::new(ops, &trace, &world, device.clone(), device).unwrap();
        let run = play_on_threads(run, 3);
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
