//! The simulated device's streams against a naive model: what may complete, what must, and when.
use aquifer::driver::sim::{Device, Sim, SimError, Work};
use aquifer::driver::{Call, Capture, Driver, DriverError, EventId, StreamId};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::sync::{Arc, Mutex};

const STREAMS: usize = 4;

fn device(seed: u64) -> Arc<Device> {
    Sim::builder().seed(seed).build().unwrap().device(0).unwrap()
}

#[derive(Clone, Debug)]
enum Op {
    Launch { stream: usize },
    LaunchUntil { stream: usize, ticks: u64 },
    Record { stream: usize },
    StreamWait { stream: usize, event: usize },
    Wait { event: usize },
    Step,
    Advance { ticks: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let stream = 0..STREAMS;
    let op = prop_oneof![
        4 => stream.clone().prop_map(|stream| Op::Launch { stream }),
        3 => (stream.clone(), 0u64..30)
            .prop_map(|(stream, ticks)| Op::LaunchUntil { stream, ticks }),
        3 => stream.clone().prop_map(|stream| Op::Record { stream }),
        3 => (stream, any::<usize>()).prop_map(|(stream, event)| Op::StreamWait { stream, event }),
        1 => any::<usize>().prop_map(|event| Op::Wait { event }),
        4 => Just(Op::Step),
        2 => (0u64..10).prop_map(|ticks| Op::Advance { ticks }),
    ];
    prop::collection::vec(op, 1..120)
}

/// A piece of work: which stream, and where among its work.
type Label = (usize, usize);

#[derive(Clone, Debug)]
enum Item {
    Work {
        due: Option<u64>,
    },
    /// Waits for the first `count` items of `stream`.
    Wait {
        stream: usize,
        count: usize,
    },
}

/// Everything that was ever queued, and how much of it is done by the log.
#[derive(Default)]
struct Model {
    items: [Vec<Item>; STREAMS],
    launched: [usize; STREAMS],
    done: [usize; STREAMS],
    /// Items that are past, waits included.
    passed: [usize; STREAMS],
    tick: u64,
}

impl Model {
    fn launch(&mut self, stream: usize, due: Option<u64>) {
        self.items[stream].push(Item::Work { due });
        self.launched[stream] += 1;
    }

    /// Steps over each wait that holds nothing any more, until none is left.
    fn pass_waits(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for stream in 0..STREAMS {
                if let Some(&Item::Wait { stream: other, count }) = self.head(stream)
                    && self.passed[other] >= count
                {
                    self.passed[stream] += 1;
                    moved = true;
                }
            }
        }
    }

    fn head(&self, stream: usize) -> Option<&Item> {
        self.items[stream].get(self.passed[stream])
    }

    /// Takes over `log`, which must be an order in which its work was free to complete.
    fn follow(&mut self, log: &[Label]) -> Result<(), TestCaseError> {
        self.pass_waits();
        for &(stream, index) in log {
            prop_assert_eq!(index, self.done[stream], "order within stream {}", stream);
            let Some(&Item::Work { due }) = self.head(stream) else {
                return Err(TestCaseError::fail(format!("work of stream {stream} passed a wait")));
            };
            prop_assert!(due.is_none_or(|due| due <= self.tick), "work came early");
            self.done[stream] += 1;
            self.passed[stream] += 1;
            self.pass_waits();
        }
        Ok(())
    }

    /// Whether a piece of work could complete for which `wanted` holds of its tick.
    fn could(&self, wanted: impl Fn(Option<u64>) -> bool) -> bool {
        (0..STREAMS)
            .any(|stream| matches!(self.head(stream), Some(&Item::Work { due }) if wanted(due)))
    }
}

struct Run {
    device: Arc<Device>,
    streams: Vec<StreamId>,
    log: Arc<Mutex<Vec<Label>>>,
    seen: usize,
    model: Model,
    /// Each event with its stream and the items before it there.
    events: Vec<(EventId, usize, usize)>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let device = device(seed);
        let streams = (0..STREAMS).map(|_| device.create_stream()).collect();
        let (log, model) = (Arc::default(), Model::default());
        Run { device, streams, log, seen: 0, model, events: Vec::new() }
    }

    fn launch(&mut self, stream: usize, due: Option<u64>) {
        let label = (stream, self.model.launched[stream]);
        let log = self.log.clone();
        let work = Work::run(move |_| log.lock().unwrap().push(label));
        let work = due.map_or(work.clone(), |due| work.not_before(due));
        self.device.launch(self.streams[stream], work).unwrap();
        self.model.launch(stream, due);
    }

    fn event(&self, choice: usize) -> Option<(EventId, usize, usize)> {
        (!self.events.is_empty()).then(|| self.events[choice % self.events.len()])
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Launch { stream } => self.launch(stream, None),
            Op::LaunchUntil { stream, ticks } => self.launch(stream, Some(self.model.tick + ticks)),
            Op::Record { stream } => {
                let event = self.device.record_event(self.streams[stream]).unwrap();
                self.events.push((event, stream, self.model.items[stream].len()));
            }
            Op::StreamWait { stream, event } => {
                let Some((event, other, count)) = self.event(event) else { return Ok(()) };
                self.device.stream_wait_event(self.streams[stream], event).unwrap();
                self.model.items[stream].push(Item::Wait { stream: other, count });
            }
            Op::Wait { event } => {
                let Some((event, ..)) = self.event(event) else { return Ok(()) };
                self.device.wait_event(event).unwrap();
                prop_assert!(self.device.query_event(event).unwrap());
            }
            Op::Step => {
                let could = self.model.could(|due| due.is_none());
                prop_assert_eq!(self.device.step(), could, "only held work may be left");
            }
            Op::Advance { ticks } => self.device.advance_to(self.model.tick + ticks),
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        self.model.tick = self.device.tick();
        let log = self.log.lock().unwrap().clone();
        self.model.follow(&log[self.seen..])?;
        self.seen = log.len();
        let (model, tick) = (&self.model, self.model.tick);
        prop_assert!(!model.could(|due| due.is_some_and(|due| due <= tick)), "due work is left");
        for &(event, stream, count) in &self.events {
            let passed = self.device.query_event(event).unwrap();
            prop_assert_eq!(passed, model.passed[stream] >= count, "event of stream {}", stream);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Label>, TestCaseError> {
        self.device.run_all();
        self.check()?;
        prop_assert_eq!(self.device.pending(), 0);
        for stream in 0..STREAMS {
            prop_assert_eq!(self.model.done[stream], self.model.launched[stream]);
        }
        for (event, ..) in self.events {
            prop_assert!(self.device.query_event(event).unwrap());
        }
        let log = self.log.lock().unwrap().clone();
        Ok(log)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]
    #[test]
    fn work_completes_in_an_allowed_order_that_the_seed_decides(ops in ops(), seed: u64) {
        let mut logs = Vec::new();
        for _ in 0..2 {
            let mut run = Run::new(seed);
            ops.iter().try_for_each(|op| run.apply(op))?;
            logs.push(run.finish()?);
        }
        prop_assert_eq!(&logs[0], &logs[1]);
    }
}

#[test]
fn seeds_differ_in_order() {
    let order = |seed| {
        let mut run = Run::new(seed);
        (0..40).for_each(|n| run.launch(n % STREAMS, None));
        run.finish().unwrap()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn due_work_completes_in_the_order_of_its_ticks() {
    let mut run = Run::new(0);
    for (stream, due) in [(2, 30), (1, 20), (0, 10), (0, 25)] {
        run.launch(stream, Some(due));
    }
    run.device.advance_to(100);
    assert_eq!(*run.log.lock().unwrap(), [(0, 0), (1, 0), (0, 1), (2, 0)]);
    run.device.advance_to(50);
    assert_eq!(run.device.tick(), 100);
}

#[test]
fn waits_are_counted_only_when_there_is_something_to_wait_for() {
    let device = device(0);
    device.synchronize().unwrap();
    let idle = device.counts();
    assert_eq!((idle.host_waits, idle.host_wait_ticks), (0, 0));
    device.launch(StreamId::default(), Work::until(7)).unwrap();
    let event = device.record_event(StreamId::default()).unwrap();
    device.launch(StreamId::default(), Work::until(10)).unwrap();
    device.wait_event(event).unwrap();
    device.wait_event(event).unwrap();
    device.synchronize().unwrap();
    let counts = device.counts().since(&idle);
    assert_eq!((counts.host_waits, counts.host_wait_ticks), (2, 10));
    assert_eq!((counts.made(Call::WaitEvent), counts.total()), (2, 4));
}

#[test]
fn slots_of_destroyed_streams_serve_again_without_disturbing_old_events() {
    let device = device(0);
    for _ in 0..1000 {
        let stream = device.create_stream();
        device.launch(stream, Work::until(device.tick() + 1)).unwrap();
        let event = device.record_event(stream).unwrap();
        device.destroy_stream(stream).unwrap();
        assert!(!device.query_event(event).unwrap());
        device.advance_to(device.tick() + 1);
        let other = device.create_stream();
        device.launch(other, Work::unit()).unwrap();
        assert!(device.query_event(event).unwrap());
        device.release_event(event).unwrap();
        device.destroy_stream(other).unwrap();
        device.run_all();
    }
    assert_eq!((device.pending(), device.live_events()), (0, 0));
}

#[test]
fn stream_ids_come_back_only_when_asked_for() {
    let make = |reuse| {
        let sim = Sim::builder().reuse_stream_ids(reuse).build().unwrap();
        let device = sim.device(0).unwrap();
        let first = device.create_stream();
        device.launch(first, Work::until(5)).unwrap();
        let event = device.record_event(first).unwrap();
        device.destroy_stream(first).unwrap();
        let second = device.create_stream();
        let idle = device.record_event(second).unwrap();
        assert!(!device.query_event(event).unwrap());
        assert!(device.query_event(idle).unwrap());
        (first, second)
    };
    let (first, second) = make(true);
    assert_eq!(first, second);
    let (first, second) = make(false);
    assert_ne!(first, second);
}

#[test]
fn streams_that_are_not_there_are_refused() {
    let device = device(0);
    for stream in [StreamId(1), StreamId(u64::MAX)] {
        let unknown = SimError::UnknownStream(stream);
        assert_eq!(device.launch(stream, Work::unit()), Err(unknown));
        assert_eq!(device.destroy_stream(stream), Err(unknown));
        assert_eq!(device.begin_capture(stream), Err(unknown));
        assert_eq!(device.abort_capture(stream), Err(unknown));
    }
    let default = StreamId::default();
    assert_eq!(device.destroy_stream(default), Err(SimError::UnknownStream(default)));
}

#[test]
fn captured_work_runs_when_the_graph_is_launched() {
    let device = device(0);
    let (origin, joined) = (device.create_stream(), device.create_stream());
    let log: Arc<Mutex<Vec<u32>>> = Arc::default();
    let say = |n| {
        let log = log.clone();
        Work::run(move |_| log.lock().unwrap().push(n))
    };
    let number = device.begin_capture(origin).unwrap();
    assert_eq!(device.begin_capture(origin), Err(SimError::Capturing(origin)));
    device.launch(origin, say(1)).unwrap();
    let fork = device.record_event(origin).unwrap();
    device.stream_wait_event(joined, fork).unwrap();
    assert_eq!(device.capture(joined), Ok(Capture::Active(number)));
    device.launch(joined, say(2)).unwrap();
    let join = device.record_event(joined).unwrap();
    device.stream_wait_event(origin, join).unwrap();
    assert_eq!(device.end_capture(joined).unwrap_err(), SimError::NotCapturing(joined));
    assert_eq!(device.destroy_stream(joined), Err(SimError::Capturing(joined)));
    let graph = device.end_capture(origin).unwrap();
    assert_eq!((graph.number(), graph.len()), (number, 2));
    assert_eq!(device.capture(joined), Ok(Capture::None));
    assert!(log.lock().unwrap().is_empty() && device.pending() == 0);
    device.launch_graph(joined, &graph).unwrap();
    device.launch_graph(origin, &graph).unwrap();
    device.run_all();
    let mut log = log.lock().unwrap().clone();
    log.sort();
    assert_eq!(log, [1, 1, 2, 2]);
}

#[test]
fn graph_cannot_wait_for_work_outside_it() {
    let device = device(0);
    let stream = device.create_stream();
    let outside = device.record_event(StreamId::default()).unwrap();
    device.begin_capture(stream).unwrap();
    let refused = Err(DriverError::Capturing(Call::StreamWaitEvent));
    assert_eq!(device.stream_wait_event(stream, outside), refused);
    let spoiled = SimError::CaptureInvalidated(stream);
    assert_eq!(device.launch(stream, Work::unit()), Err(spoiled));
    assert_eq!(device.end_capture(stream).unwrap_err(), spoiled);
    assert_eq!(device.capture(stream), Ok(Capture::None));
    device.launch(stream, Work::unit()).unwrap();
}

#[test]
fn million_timed_launches_leave_only_what_is_not_due() {
    let device = device(0);
    let stream = device.create_stream();
    for tick in 0..1_000_000 {
        device.launch(stream, Work::until(tick + 256)).unwrap();
        device.advance_to(tick);
    }
    assert_eq!(device.pending(), 256);
    device.synchronize().unwrap();
    assert_eq!((device.pending(), device.tick()), (0, 999_999 + 256));
}
