//! The ring of events yields a trace the reader accepts, however often it has gone round.

use std::collections::BTreeMap;

use aquifer::trace::{Block, StreamIndex, Trace, TraceRing};
use proptest::prelude::*;

/// What a program does; `pick` chooses among its live blocks.
#[derive(Debug, Clone)]
enum Step {
    Alloc { bytes: u64, stream: u64, thread: u64 },
    Free { pick: usize, thread: u64 },
    RecordStream { pick: usize, stream: u64 },
    Mark { label: u8 },
    EmptyCache,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<u64>(), 0..4u64, 0..3u64)
            .prop_map(|(bytes, stream, thread)| Step::Alloc { bytes, stream, thread }),
        4 => (any::<usize>(), 0..3u64).prop_map(|(pick, thread)| Step::Free { pick, thread }),
        1 => (any::<usize>(), 0..9u64)
            .prop_map(|(pick, stream)| Step::RecordStream { pick, stream }),
        1 => any::<u8>().prop_map(|label| Step::Mark { label }),
        1 => Just(Step::EmptyCache),
    ]
}

/// A program that tells the ring what it does.
struct Program {
    ring: TraceRing,
    live: BTreeMap<u64, Block>,
    serial: u64,
}

impl Program {
    fn new(capacity: usize) -> Program {
        Program { ring: TraceRing::new(capacity), live: BTreeMap::new(), serial: 0 }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Alloc { bytes, stream, thread } => {
                self.serial += 1;
                let stream = self.ring.stream(stream);
                let block = Block { serial: self.serial, bytes, stream };
                let thread = self.ring.thread(thread);
                self.ring.alloc(block, thread);
                self.live.insert(self.serial, block);
            }
            Step::Free { pick, thread } => {
                let Some(block) = self.pick(pick) else { return };
                self.live.remove(&block.serial);
                let thread = self.ring.thread(thread);
                self.ring.free(block, thread);
            }
            Step::RecordStream { pick, stream } => {
                let Some(block) = self.pick(pick) else { return };
                let (stream, thread) = (self.ring.stream(stream), self.ring.thread(0));
                self.ring.record_stream(block, stream, thread);
            }
            Step::Mark { label } => {
                let thread = self.ring.thread(0);
                self.ring.mark(&format!("step:{label}"), thread);
            }
            Step::EmptyCache => {
                let thread = self.ring.thread(0);
                self.ring.empty_cache(thread);
            }
        }
    }

    fn pick(&self, pick: usize) -> Option<Block> {
        self.live.values().nth(pick % self.live.len().max(1)).copied()
    }

    fn trace(&self, still_live: &[Block]) -> Trace {
        let mut text = Vec::new();
        self.ring.write_to(&mut text, still_live).unwrap();
        Trace::parse(&text[..]).unwrap()
    }
}

fn live_at_end(trace: &Trace) -> u64 {
    let allocs = trace.ops().filter(|op| matches!(op, aquifer::trace::Op::Alloc { .. })).count();
    let frees = trace.ops().filter(|op| matches!(op, aquifer::trace::Op::Free { .. })).count();
    (allocs - frees) as u64
}

proptest! {
    #[test]
    fn any_window_of_any_program_is_a_trace(
        capacity in 0..60usize,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut program = Program::new(capacity);
        steps.iter().for_each(|step| program.run(step));
        prop_assert!(program.ring.len() <= capacity.max(1));
        let unaided = program.trace(&[]);
        prop_assert_eq!(&*unaided.labels()[0], "window-start");
        let still_live: Vec<Block> = program.live.values().copied().collect();
        let whole = program.trace(&still_live);
        prop_assert_eq!(live_at_end(&whole), still_live.len() as u64);
        let kept = program.ring.len() as u64 + program.ring.overwritten();
        prop_assert!(kept <= steps.len() as u64);
    }

    #[test]
    fn contradictory_events_still_make_a_trace(
        capacity in 1..20usize,
        events in prop::collection::vec((0..4u8, 0..5u64, any::<u64>(), 0..9u32), 0..60),
    ) {
        let mut program = Program::new(capacity);
        let thread = program.ring.thread(0);
        for (verb, serial, bytes, stream) in events {
            let block = Block { serial, bytes, stream: StreamIndex(stream * 30_000) };
            match verb {
                0 => program.ring.alloc(block, thread),
                1 => program.ring.free(block, thread),
                2 => program.ring.record_stream(block, StreamIndex(stream), thread),
                _ => program.ring.mark("x", thread),
            }
        }
        program.trace(&[]);
    }
}

#[test]
fn a_ring_that_never_filled_gives_the_program_back() {
    let mut program = Program::new(100);
    let steps = [
        Step::Mark { label: 1 },
        Step::Alloc { bytes: 512, stream: 9, thread: 0 },
        Step::Alloc { bytes: 64, stream: 9, thread: 4 },
        Step::RecordStream { pick: 1, stream: 8 },
        Step::Free { pick: 0, thread: 4 },
        Step::EmptyCache,
    ];
    steps.iter().for_each(|step| program.run(step));
    let mut text = Vec::new();
    program.ring.write_to(&mut text, &[]).unwrap();
    let expected = "s window-start\ns step:1\na 1 512 9\nt 4\na 2 64 9\nt 0\nr 2 8\nt 4\nf 1\n\
                    t 0\ne\n";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

#[test]
fn an_empty_ring_writes_a_trace() {
    assert_eq!(Program::new(4).trace(&[]).len(), 1);
    assert!(Program::new(4).ring.is_empty());
}

#[test]
fn numbered_steps_do_not_use_the_labels_up() {
    let mut ring = TraceRing::new(10);
    let thread = ring.thread(0);
    for step in 0..20_000 {
        ring.mark(&format!("step:{step}"), thread);
    }
    let mut text = Vec::new();
    ring.write_to(&mut text, &[]).unwrap();
    assert!(text.ends_with(b"s step:19998\ns step:19999\n"));
}

#[test]
fn full_tables_degrade_to_a_stand_in() {
    let mut ring = TraceRing::new(10_000);
    let thread = ring.thread(0);
    for step in 0..5000 {
        ring.mark(&format!("step:{step}"), thread);
    }
    let last = (0..70_000).map(|handle| ring.stream(handle)).last().unwrap();
    ring.alloc(Block { serial: 1, bytes: 1, stream: last }, thread);
    let mut text = Vec::new();
    ring.write_to(&mut text, &[]).unwrap();
    assert!(text.ends_with(format!("s -\na 1 1 {}\n", u64::MAX).as_bytes()));
    assert_eq!(ring.overwritten(), 0);
}
