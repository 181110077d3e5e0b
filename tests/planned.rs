//! The policy `planned`: steps that repeat lie at the same addresses, steps that do not lose nothing.
use aquifer::driver::sim::{Backing as Behind, Device, Sim, Span, Work};
use aquifer::driver::{Call, DriverError, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);
const BACKINGS: [Backing; 2] = [Backing::Paged, Backing::Segments];

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.0 >> 33) % n
    }
}

fn planned(device: &Arc<Device>, backing: Backing) -> Allocator {
    let builder = Allocator::builder(device.clone()).policy("planned").backing(backing);
    builder.build().unwrap()
}

fn device(mib: u64, seed: u64) -> Arc<Device> {
    let sim = Sim::builder().capacity(mib * MIB).granularity(64 * KIB).seed(seed);
    sim.backing(Behind::HostBytes).build().unwrap().device(0).unwrap()
}

/// One thing that a step does.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Asks for bytes; the block is known by its number in the step.
    Ask {
        block: usize,
        bytes: u64,
    },
    Free {
        block: usize,
    },
}

/// What a network does: activations on the way there, freed on the way back, and scratch in between.
fn step(layers: usize, seed: u64) -> Vec<Act> {
    let mut random = Random(seed);
    let mut acts = Vec::new();
    let mut blocks = 0;
    let mut ask = |acts: &mut Vec<Act>, bytes: u64| {
        acts.push(Act::Ask { block: blocks, bytes });
        blocks += 1;
        blocks - 1
    };
    let mut kept = Vec::new();
    for _ in 0..layers {
        let scratch = ask(&mut acts, 1 + random.below(300 * KIB));
        kept.push(ask(&mut acts, 1 + random.below(200 * KIB)));
        acts.push(Act::Free { block: scratch });
    }
    let mut gradient = ask(&mut acts, 4);
    while let Some(activation) = kept.pop() {
        let next = ask(&mut acts, 1 + random.below(200 * KIB));
        acts.push(Act::Free { block: gradient });
        acts.push(Act::Free { block: activation });
        gradient = next;
    }
    acts.push(Act::Free { block: gradient });
    acts
}

struct Block {
    memory: Allocation,
    byte: u8,
}

/// A program of steps on one stream: every block is filled when it is got and looked at when it is freed.
struct Program {
    device: Arc<Device>,
    allocator: Allocator,
    stream: StreamId,
    random: Random,
    /// Blocks kept beyond their step.
    kept: Vec<Block>,
    steps: u64,
    /// Whether steps are marked.
    marks: bool,
}

impl Program {
    fn new(backing: Backing, seed: u64) -> Program {
        let device = device(64, seed);
        let allocator = planned(&device, backing);
        let (stream, random) = (device.create_stream(), Random(seed));
        Program { device, allocator, stream, random, kept: Vec::new(), steps: 0, marks: true }
    }

    fn fill(&self, memory: Allocation, byte: u8) -> Block {
        let span = Span { address: memory.address(), bytes: memory.len() };
        self.device.launch(self.stream, Work::fill(span, byte)).unwrap();
        Block { memory, byte }
    }

    fn check_and_free(&self, block: Block) {
        let span = Span { address: block.memory.address(), bytes: block.memory.len() };
        self.device.launch(self.stream, Work::check(span, block.byte)).unwrap();
    }

    fn ask(&mut self, bytes: u64) -> Option<Block> {
        match self.allocator.allocate(bytes, self.stream) {
            Ok(memory) => {
                let byte = self.random.below(255) as u8 + 1;
                Some(self.fill(memory, byte))
            }
            Err(AllocError::OutOfMemory(_) | AllocError::Driver(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs a step; where each block lay.
    fn step(&mut self, kind: &str, acts: &[Act]) -> Vec<u64> {
        if self.marks {
            self.allocator.mark(&format!("{kind}:{}", self.steps));
        }
        self.steps += 1;
        let mut addresses = Vec::new();
        let mut blocks: Vec<Option<Block>> = Vec::new();
        for act in acts {
            match *act {
                Act::Ask { block, bytes } => {
                    let got = self.ask(bytes);
                    blocks.resize_with(block + 1, || None);
                    addresses.resize(block + 1, 0);
                    addresses[block] = got.as_ref().map_or(0, |b| b.memory.address());
                    blocks[block] = got;
                }
                Act::Free { block } => {
                    if let Some(block) = blocks.get_mut(block).and_then(Option::take) {
                        self.check_and_free(block);
                    }
                }
            }
            if self.random.below(8) == 0 {
                self.device.step();
            }
        }
        // What the step did not free outlives it.
        self.kept.extend(blocks.into_iter().flatten());
        self.assert_sound();
        addresses
    }

    fn plan_hits(&self) -> u64 {
        self.allocator.memory_stats().plan_hits
    }

    fn assert_sound(&self) {
        self.allocator.audit().unwrap();
        assert_eq!(self.allocator.memory_reserved(), self.device.used_bytes());
        assert_eq!(self.device.violations(), []);
    }

    /// Ends the program; everything goes back.
    fn end(mut self) {
        for block in std::mem::take(&mut self.kept) {
            self.check_and_free(block);
        }
        self.device.clear_faults();
        self.device.run_all();
        self.assert_sound();
        drop(self.allocator);
        assert_eq!((self.device.used_bytes(), self.device.live_handles()), (0, 0));
        assert_eq!((self.device.reserved_address_bytes(), self.device.live_events()), (0, 0));
        assert_eq!(self.device.violations(), []);
    }
}

fn asks(acts: &[Act]) -> u64 {
    acts.iter().filter(|act| matches!(act, Act::Ask { .. })).count() as u64
}

#[test]
fn a_step_lies_at_the_same_addresses_from_its_second_time_on() {
    for backing in BACKINGS {
        let mut program = Program::new(backing, 1);
        let acts = step(40, 5);
        program.step("train", &acts);
        assert_eq!(program.plan_hits(), 0, "a step seen once may not come again");
        let second = program.step("train", &acts);
        let before = program.plan_hits();
        // The second time it is known after a few requests, which have no place yet.
        assert_eq!(before, asks(&acts) - 16, "{backing:?}");
        let first = program.step("train", &acts);
        assert_eq!(&second[16..], &first[16..]);
        assert_eq!(program.plan_hits() - before, asks(&acts), "{backing:?}");
        for _ in 0..5 {
            assert_eq!(program.step("train", &acts), first);
        }
        assert_eq!(program.plan_hits() - before, 6 * asks(&acts), "{backing:?}");
        program.end();
    }
}

#[test]
fn training_and_validation_keep_a_plan_each() {
    for backing in BACKINGS {
        let mut program = Program::new(backing, 3);
        let (train, val) = (step(40, 7), step(25, 8));
        for _ in 0..3 {
            program.step("train", &train);
            program.step("val", &val);
        }
        let before = program.plan_hits();
        let first = [program.step("train", &train), program.step("val", &val)];
        for _ in 0..3 {
            let again = [program.step("train", &train), program.step("val", &val)];
            assert_eq!(again, first);
        }
        let share = program.plan_hits() - before;
        assert_eq!(share, 4 * (asks(&train) + asks(&val)), "{backing:?}");
        program.end();
    }
}

#[test]
fn a_step_that_no_plan_fits_lies_in_the_memory_of_the_plan() {
    for backing in BACKINGS {
        let mut program = Program::new(backing, 3);
        let (often, rare) = (step(40, 7), step(30, 30));
        let counts = |program: &Program| {
            let stats = program.allocator.memory_stats();
            (stats.num_pages_moved, program.allocator.memory_reserved())
        };
        (0..4).for_each(|_| drop(program.step("train", &often)));
        program.device.run_all();
        let before = counts(&program);
        program.step("train", &rare);
        assert_eq!(counts(&program), before, "{backing:?}");
        let hits = program.plan_hits();
        program.step("train", &often);
        assert_eq!(program.plan_hits() - hits, asks(&often), "{backing:?}");
        program.end();
    }
}

/// One request or free of a step is left out, made twice, changed or late.
fn deviate(acts: &[Act], at: usize, random: &mut Random) -> Vec<Act> {
    let mut acts = acts.to_vec();
    match (random.below(4), acts[at]) {
        (0, _) => drop(acts.remove(at)),
        (1, Act::Ask { .. }) => {
            // A block that nobody of this step frees.
            let block = asks(&acts) as usize;
            acts.insert(at, Act::Ask { block, bytes: 1 + random.below(400 * KIB) });
        }
        (2, Act::Ask { block, .. }) => {
            acts[at] = Act::Ask { block, bytes: 1 + random.below(600 * KIB) };
        }
        (_, act) => {
            acts.remove(at);
            let later = at + random.below((acts.len() - at) as u64 + 1) as usize;
            acts.insert(later, act);
        }
    }
    acts
}

#[test]
fn a_step_that_deviates_loses_no_byte_and_the_plan_goes_on() {
    for backing in BACKINGS {
        let acts = step(30, 9);
        let mut program = Program::new(backing, 4);
        let mut random = Random(10);
        (0..3).for_each(|_| drop(program.step("train", &acts)));
        for at in 0..acts.len() {
            let other = deviate(&acts, at, &mut random);
            let before = program.plan_hits();
            program.step("train", &other);
            let hits = program.plan_hits() - before;
            assert!(hits > asks(&other) / 2, "{hits} of {} at {at} {backing:?}", asks(&other));
            for block in std::mem::take(&mut program.kept) {
                program.check_and_free(block);
            }
        }
        let first = program.step("train", &acts);
        assert_eq!(program.step("train", &acts), first);
        program.end();
    }
}

/// Steps of all kinds, with deviations, blocks that live on, another stream that takes pages, a device that
/// is too small.
fn wild(backing: Backing, seed: u64, faults: Option<Call>) -> Program {
    let mut program = Program::new(backing, seed);
    let kinds = [("train", step(40, seed)), ("val", step(20, seed + 1)), ("", step(10, seed + 2))];
    let other = program.device.create_stream();
    let mut others: Vec<Allocation> = Vec::new();
    for n in 0..40u64 {
        let kind = if n < 6 { n % 2 } else { program.random.below(3) } as usize;
        let (name, acts) = &kinds[kind];
        let mut acts = acts.clone();
        for _ in 0..program.random.below(4) {
            let at = program.random.below(acts.len() as u64) as usize;
            acts = deviate(&acts, at, &mut program.random);
        }
        if let Some(call) = faults {
            let in_calls = 1 + program.random.below(6);
            program.device.fail_call(call, in_calls, DriverError::Failed { call, code: 999 });
        }
        program.step(name, &acts);
        match program.random.below(5) {
            0 => drop(program.allocator.empty_cache()),
            1 => others.clear(),
            2 => others.extend(program.allocator.allocate(9 * MIB, other)),
            3 => {
                let most = program.random.below(4) as usize;
                let at = program.kept.len().saturating_sub(most);
                for block in program.kept.split_off(at) {
                    program.check_and_free(block);
                }
            }
            _ => {}
        }
        if program.kept.len() > 60 {
            for block in program.kept.split_off(20) {
                program.check_and_free(block);
            }
        }
        program.assert_sound();
    }
    program
}

#[test]
fn wild_steps_lose_no_byte() {
    for backing in BACKINGS {
        for seed in 0..12 {
            let program = wild(backing, seed, None);
            assert!(program.plan_hits() > 0, "{backing:?} {seed}");
            program.end();
        }
    }
}

#[test]
fn driver_calls_may_fail_at_any_time() {
    let paged = [Call::Reserve, Call::Create, Call::Map, Call::SetAccess, Call::Unmap];
    let segments = [Call::Allocate, Call::Free, Call::MemoryInfo, Call::RecordEvent];
    for seed in 0..4 {
        for call in paged {
            wild(Backing::Paged, seed, Some(call)).end();
        }
        for call in segments {
            wild(Backing::Segments, seed, Some(call)).end();
        }
    }
}

#[test]
fn a_request_that_only_the_plan_has_room_for_is_served() {
    for backing in BACKINGS {
        let device = device(16, 1);
        let allocator = planned(&device, backing);
        for n in 0..3 {
            allocator.mark(&format!("train:{n}"));
            let large = allocator.allocate(6 * MIB, A).unwrap();
            let small = allocator.allocate(4 * MIB, A).unwrap();
            drop(large);
            drop(small);
        }
        // The plan has 10 MiB. One block holds it; what is free beside it is all that there is.
        allocator.mark("train:3");
        let large = allocator.allocate(6 * MIB, A).unwrap();
        let rest = 16 * MIB - allocator.memory_reserved().max(10 * MIB);
        let others: Vec<_> = (0..rest / MIB).map(|_| allocator.allocate(MIB, A).unwrap()).collect();
        let last = allocator.allocate(3 * MIB, A).unwrap();
        allocator.audit().unwrap();
        assert_eq!(device.violations(), []);
        drop((large, others, last));
    }
}

#[test]
fn a_captured_step_gets_its_places_and_asks_the_driver_for_nothing() {
    for backing in BACKINGS {
        let mut program = Program::new(backing, 5);
        let acts = step(30, 11);
        let places = (0..5).map(|_| program.step("train", &acts)).last().unwrap();
        program.device.run_all();
        program.allocator.mark("train:5");
        program.device.begin_capture(program.stream).unwrap();
        let before = program.device.counts();
        let mut blocks = Vec::new();
        for act in &acts {
            match *act {
                Act::Ask { bytes, .. } => {
                    let memory = program.allocator.allocate(bytes, program.stream).unwrap();
                    blocks.push(Some(memory));
                    let at = blocks.len() - 1;
                    assert_eq!(blocks[at].as_ref().unwrap().address(), places[at]);
                }
                Act::Free { block } => drop(blocks[block].take()),
            }
        }
        let made = program.device.counts().since(&before);
        for call in [Call::Create, Call::Map, Call::Unmap, Call::Allocate, Call::RecordEvent] {
            assert_eq!(made.made(call), 0, "{call:?} {backing:?}");
        }
        program.device.end_capture(program.stream).unwrap();
        program.end();
    }
}

#[test]
fn threads_of_one_stream_share_a_plan() {
    for backing in BACKINGS {
        let device = device(64, 7);
        let allocator = planned(&device, backing);
        for n in 0..12 {
            allocator.mark(&format!("train:{n}"));
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let allocator = &allocator;
                    scope.spawn(move || {
                        let mut random = Random(thread);
                        let mut live = Vec::new();
                        for _ in 0..300 {
                            let bytes = 1 + random.below(100 * KIB);
                            live.push(allocator.allocate(bytes, A).unwrap());
                            if live.len() > 20 {
                                let at = random.below(20) as usize;
                                drop(live.swap_remove(at));
                            }
                        }
                    });
                }
            });
            allocator.audit().unwrap();
        }
        drop(allocator);
        assert_eq!((device.used_bytes(), device.live_handles()), (0, 0));
    }
}

#[test]
fn a_private_pool_has_plans_of_its_own() {
    for backing in BACKINGS {
        let device = device(64, 8);
        let allocator = planned(&device, backing);
        let pool = allocator.pool("graphs");
        let mut first = None;
        for n in 0..5 {
            allocator.mark(&format!("train:{n}"));
            let blocks: Vec<_> = (1..9).map(|i| pool.allocate(i * 100 * KIB, A).unwrap()).collect();
            let addresses: Vec<u64> = blocks.iter().map(Allocation::address).collect();
            if n >= 2 {
                assert_eq!(first.get_or_insert_with(|| addresses.clone()), &addresses);
            }
        }
        assert_eq!(allocator.memory_stats().plan_hits, 3 * 8, "{backing:?}");
        drop(pool);
        assert_eq!(allocator.memory_reserved(), 0);
        allocator.audit().unwrap();
    }
}

/// A program of which nobody marks the steps.
fn unmarked(backing: Backing) -> Program {
    Program { marks: false, ..Program::new(backing, 2) }
}

#[test]
fn steps_that_nobody_marks_are_found() {
    for backing in BACKINGS {
        let mut program = unmarked(backing);
        let acts = step(60, 6);
        (0..6).for_each(|_| drop(program.step("", &acts)));
        let before = program.plan_hits();
        let first = program.step("", &acts);
        assert_eq!(program.step("", &acts), first, "{backing:?}");
        assert_eq!(program.plan_hits() - before, 2 * asks(&acts), "{backing:?}");
        program.end();
    }
}

#[test]
fn unmarked_steps_that_deviate_lose_no_byte() {
    for backing in BACKINGS {
        let mut program = unmarked(backing);
        let (acts, mut random) = (step(60, 6), Random(12));
        (0..6).for_each(|_| drop(program.step("", &acts)));
        let (before, mut asked) = (program.plan_hits(), 0);
        for at in (0..acts.len()).step_by(3) {
            let other = deviate(&acts, at, &mut random);
            asked += asks(&other);
            program.step("", &other);
            for block in std::mem::take(&mut program.kept) {
                program.check_and_free(block);
            }
        }
        let hits = program.plan_hits() - before;
        assert!(hits * 4 > asked * 3, "{hits} of {asked} {backing:?}");
        program.end();
    }
}
