//! Pages become larger where the cache is emptied again and again: nothing is lost on the way, and memory in
//! pages of the first size still goes to whoever needs it.
use aquifer::driver::sim::{Backing as Behind, Device, Sim, Span, Work};
use aquifer::driver::{Call, DriverError, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const UNIT: u64 = 64 * KIB;
const CAPACITY: u64 = 160 * MIB;
/// What a phase has at most; pages become an eight-hundredth of it.
const PHASE: u64 = 120 * MIB;
const LARGE: u64 = 3 * UNIT;
const A: StreamId = StreamId(0);

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.0 >> 33) % n
    }
}

struct Block {
    memory: Allocation,
    byte: u8,
}

impl Block {
    /// Its first and last bytes.
    fn ends(&self) -> [Span; 2] {
        let (address, len) = (self.memory.address(), self.memory.len());
        let bytes = len.min(4 * KIB);
        [address, address + len - bytes].map(|address| Span { address, bytes })
    }

    fn check_and_free(self, device: &Device) {
        for span in self.ends() {
            device.launch(self.memory.stream(), Work::check(span, self.byte)).unwrap();
        }
    }
}

/// A program on two streams that fills its device and empties the cache again and again.
struct Program {
    device: Arc<Device>,
    allocator: Allocator,
    streams: [StreamId; 2],
    live: Vec<Block>,
    random: Random,
    page_largest: u64,
}

impl Program {
    fn new(policy: &str, seed: u64) -> Program {
        let sim = Sim::builder().capacity(CAPACITY).granularity(UNIT).seed(seed);
        let device = sim.backing(Behind::HostBytes).build().unwrap().device(0).unwrap();
        let builder = Allocator::builder(device.clone()).policy(policy).backing(Backing::Paged);
        let streams = [A, device.create_stream()];
        let (allocator, random) = (builder.build().unwrap(), Random(seed));
        Program { device, allocator, streams, live: Vec::new(), random, page_largest: 0 }
    }

    /// Whether the driver or the device refused.
    fn ask(&mut self, bytes: u64, stream: StreamId) -> bool {
        match self.allocator.allocate(bytes, stream) {
            Ok(memory) => {
                let block = Block { memory, byte: self.random.below(255) as u8 + 1 };
                for span in block.ends() {
                    self.device.launch(stream, Work::fill(span, block.byte)).unwrap();
                }
                let (from, len) = (block.memory.address(), block.memory.len());
                let pages = self.device.mappings();
                let under = pages.iter().filter(|(span, _)| {
                    span.address < from + len && from < span.address + span.bytes
                });
                let largest = under.map(|(span, _)| span.bytes).max().unwrap_or(0);
                self.page_largest = self.page_largest.max(largest);
                self.live.push(block);
                false
            }
            Err(AllocError::OutOfMemory(_) | AllocError::Driver(_)) => true,
            Err(error) => panic!("{error}"),
        }
    }

    fn live_bytes(&self) -> u64 {
        self.live.iter().map(|block| block.memory.len()).sum()
    }

    /// Gives up random blocks until less than `bytes` are live.
    fn shrink(&mut self, bytes: u64) {
        while self.live_bytes() >= bytes && !self.live.is_empty() {
            let at = self.random.below(self.live.len() as u64) as usize;
            self.live.swap_remove(at).check_and_free(&self.device);
        }
    }

    /// Grows to what a phase has, with blocks that come and go, then gives most of it up.
    fn phase(&mut self, name: &str) {
        self.allocator.mark(name);
        let mut refused = 0;
        while self.live_bytes() < PHASE && refused < 20 {
            let most = [40 * KIB, 700 * KIB, 5 * MIB][self.random.below(3) as usize];
            let (bytes, stream) = (1 + self.random.below(most), self.random.below(2) as usize);
            refused += u32::from(self.ask(bytes, self.streams[stream]));
            match self.random.below(8) {
                0 if !self.live.is_empty() => {
                    let at = self.random.below(self.live.len() as u64) as usize;
                    self.live.swap_remove(at).check_and_free(&self.device);
                }
                1..4 => drop(self.device.step()),
                _ => {}
            }
        }
        self.assert_sound();
        self.shrink(PHASE / 20);
    }

    fn assert_sound(&self) {
        self.allocator.audit().unwrap();
        assert_eq!(self.allocator.memory_reserved(), self.device.used_bytes());
        assert_eq!(self.device.violations(), []);
    }

    fn end(mut self) {
        self.device.clear_faults();
        self.shrink(0);
        self.device.run_all();
        self.allocator.empty_cache().unwrap();
        assert_eq!(self.device.used_bytes(), 0);
        self.assert_sound();
        drop(self.allocator);
        assert_eq!((self.device.used_bytes(), self.device.live_handles()), (0, 0));
        assert_eq!((self.device.reserved_address_bytes(), self.device.live_events()), (0, 0));
        assert_eq!(self.device.violations(), []);
    }
}

/// Until the second time that most of the peak goes back, nothing changes.
#[test]
fn pages_are_larger_after_the_second_great_release() {
    for policy in ["first-fit", "bins", "planned"] {
        let mut program = Program::new(policy, 1);
        for n in 0..6u64 {
            program.page_largest = 0;
            let before = program.device.counts();
            program.phase(["train", "val"][n as usize % 2]);
            let made = program.device.counts().since(&before);
            let (creates, page) = (made.made(Call::Create), program.page_largest);
            if n < 2 {
                assert_eq!(page, UNIT, "{policy} {n}");
                assert!(creates > 1000, "{policy} {n}: {creates} pages");
            } else {
                assert_eq!(page, LARGE, "{policy} {n}");
                assert!(creates < 750, "{policy} {n}: {creates} pages");
            }
            let trimmed = program.allocator.empty_cache().unwrap();
            assert!(trimmed.released_bytes > PHASE / 2);
            program.assert_sound();
        }
        program.end();
    }
}

/// Caches that are emptied of little leave pages as they are.
#[test]
fn small_releases_leave_pages_small() {
    let mut program = Program::new("first-fit", 2);
    program.phase("train");
    for _ in 0..20 {
        program.allocator.empty_cache().unwrap();
        program.ask(PHASE / 10, A);
        program.live.pop().unwrap().check_and_free(&program.device);
    }
    program.allocator.empty_cache().unwrap();
    program.phase("train");
    assert_eq!(program.page_largest, UNIT);
    program.end();
}

/// A program whose pages are large, but that has blocks in small ones.
fn grown(seed: u64) -> Program {
    let mut program = Program::new("first-fit", seed);
    program.phase("train");
    program.allocator.empty_cache().unwrap();
    program.phase("val");
    program.shrink(0);
    for stream in program.streams {
        while program.live_bytes() < (1 + u64::from(stream != A)) * 60 * MIB {
            assert!(!program.ask(3 * MIB, stream));
        }
    }
    let kept = program.live.split_off(program.live.len() - 32);
    program.live.drain(..).for_each(|block| block.check_and_free(&program.device));
    program.live = kept;
    program.allocator.empty_cache().unwrap();
    program.assert_sound();
    program
}

/// The whole device is wanted in large pages, while most of it lies idle in small ones.
#[test]
fn idle_pages_of_the_first_size_serve_through_the_driver() {
    let mut program = grown(3);
    let live = program.live_bytes();
    assert!(live > 90 * MIB);
    let oldest = program.live.remove(0);
    program.shrink(MIB);
    assert!(program.device.used_bytes() >= live, "it is idle, not gone");
    let other = program.device.create_stream();
    assert!(!program.ask(CAPACITY - 8 * MIB, other), "all that is idle comes together");
    assert_eq!(program.page_largest, LARGE);
    oldest.check_and_free(&program.device);
    program.assert_sound();
    program.end();
}

/// Others hold more than fits beside what is idle: what goes back is theirs first, and more of it goes back.
#[test]
fn idle_pages_go_back_until_the_device_has_room() {
    let mut program = grown(5);
    program.shrink(MIB);
    program.device.run_all();
    let held = program.device.used_bytes();
    assert!(held > 90 * MIB);
    program.device.set_other_use(CAPACITY - held + 60 * MIB);
    let other = program.device.create_stream();
    assert!(!program.ask(20 * MIB, other), "90 MiB idle are enough for both");
    program.device.set_other_use(0);
    program.assert_sound();
    program.end();
}

/// One page too few for a request is too few: nothing is taken apart for it.
#[test]
fn nothing_moves_for_a_request_that_cannot_be_served() {
    let mut program = grown(4);
    program.shrink(60 * MIB);
    let before = program.device.counts();
    let other = program.device.create_stream();
    assert!(program.ask(CAPACITY - 50 * MIB, other), "more is live than that leaves");
    let made = program.device.counts().since(&before);
    assert_eq!((made.made(Call::Unmap), made.made(Call::ReleaseHandle)), (0, 0));
    program.assert_sound();
    program.end();
}

/// Each call fails at some time of growing, moving between the sizes, and emptying.
#[test]
fn calls_may_fail_while_pages_become_larger() {
    let calls = [
        Call::Reserve,
        Call::Create,
        Call::Map,
        Call::SetAccess,
        Call::Unmap,
        Call::ReleaseHandle,
        Call::RecordEvent,
        Call::QueryEvent,
        Call::WaitEvent,
        Call::MemoryInfo,
    ];
    for (seed, call) in calls.into_iter().enumerate() {
        let mut program = Program::new(["first-fit", "planned"][seed % 2], seed as u64);
        for phase in 0..5u64 {
            let after = [1, 3, 40, 300][program.random.below(4) as usize];
            let failed = DriverError::Failed { call, code: 999 };
            for n in 0..1 + program.random.below(30) {
                program.device.fail_call(call, after + n, failed);
            }
            program.phase(["train", "val"][phase as usize % 2]);
            let _ = program.allocator.empty_cache();
            program.assert_sound();
            // Memory idle in small pages is moved under the other stream's requests.
            let other = program.streams[phase as usize % 2];
            program.ask(CAPACITY / 2, other);
            program.assert_sound();
            program.shrink(PHASE / 30);
            let _ = program.allocator.empty_cache();
            program.device.clear_faults();
            let _ = program.allocator.empty_cache();
            program.assert_sound();
        }
        assert_eq!(program.page_largest, LARGE, "{call}");
        program.end();
    }
}
