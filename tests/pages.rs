//! Paged backing under pressure: pages move all the time, and no work sees it.
use aquifer::driver::sim::{Backing as Behind, Device, Sim, Span, Work};
use aquifer::driver::{Call, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);

/// Bytes at each end of a block that a pattern is written to.
const PATTERN_BYTES: u64 = 16 * KIB;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.0 >> 33) % n
    }
}

fn paged(device: &Arc<Device>) -> Allocator {
    Allocator::builder(device.clone()).backing(Backing::Paged).build().unwrap()
}

/// The first and the last bytes of a block; all of it where it is short.
fn ends(memory: &Allocation) -> Vec<Span> {
    let (address, bytes) = (memory.address(), memory.len());
    if bytes <= 2 * PATTERN_BYTES {
        return vec![Span { address, bytes }];
    }
    let last = address + bytes - PATTERN_BYTES;
    [address, last].map(|address| Span { address, bytes: PATTERN_BYTES }).to_vec()
}

struct Block {
    memory: Allocation,
    byte: u8,
}

impl Block {
    fn fill(memory: Allocation, byte: u8, device: &Device) -> Block {
        let fill = |span| device.launch(memory.stream(), Work::fill(span, byte)).unwrap();
        ends(&memory).into_iter().for_each(fill);
        Block { memory, byte }
    }

    /// Looks at the pattern and gives the block back while the look is still queued.
    fn check_and_free(self, device: &Device) {
        let Block { memory, byte } = self;
        let check = |span| device.launch(memory.stream(), Work::check(span, byte)).unwrap();
        ends(&memory).into_iter().for_each(check);
    }
}

/// A program that fills its device again and again, now mostly on one stream, now on another.
struct Program {
    device: Arc<Device>,
    allocator: Allocator,
    streams: [StreamId; 3],
    live: Vec<Block>,
    random: Random,
    page: u64,
}

impl Program {
    fn new(device: Arc<Device>, page: u64, seed: u64) -> Program {
        let streams = [A, device.create_stream(), device.create_stream()];
        let allocator = paged(&device);
        Program { device, allocator, streams, live: Vec::new(), random: Random(seed), page }
    }

    fn run(&mut self, ops: u64, steps_in: u64) {
        for n in 0..ops {
            match self.random.below(4) {
                0 | 1 => self.allocate(n),
                2 if !self.live.is_empty() => {
                    let at = self.random.below(self.live.len() as u64) as usize;
                    self.live.swap_remove(at).check_and_free(&self.device);
                }
                _ if self.random.below(steps_in) == 0 => drop(self.device.step()),
                _ => {}
            }
            if n % 64 == 0 {
                self.allocator.audit().unwrap();
                assert_eq!(self.allocator.memory_reserved(), self.device.used_bytes());
            }
        }
    }

    fn allocate(&mut self, n: u64) {
        let favourite = self.random.below(4) > 0;
        let pick = if favourite { n / 80 % 3 } else { self.random.below(3) };
        let bytes = match self.random.below(4) {
            0 => 1 + self.random.below(self.page / 16),
            1 => 1 + self.random.below(self.page),
            _ => 1 + self.random.below(4 * self.page),
        };
        match self.allocator.allocate(bytes, self.streams[pick as usize]) {
            Ok(memory) => {
                let byte = self.random.below(255) as u8 + 1;
                self.live.push(Block::fill(memory, byte, &self.device));
            }
            // Half of what is live goes.
            Err(AllocError::OutOfMemory(_)) => {
                let half = self.live.len() / 2;
                self.live.drain(half..).for_each(|block| block.check_and_free(&self.device));
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends the program; everything goes back.
    fn end(self) {
        let Program { device, allocator, live, .. } = self;
        live.into_iter().for_each(|block| block.check_and_free(&device));
        let made = device.counts();
        assert_eq!(made.made(Call::Synchronize), 0, "every stream can be marked with events");
        drop(allocator);
        device.run_all();
        assert_eq!(device.violations(), []);
        assert_gone(&device);
    }
}

fn assert_gone(device: &Device) {
    assert_eq!((device.used_bytes(), device.live_handles()), (0, 0));
    assert_eq!((device.reserved_address_bytes(), device.live_events()), (0, 0));
}

/// Every combination of the unit of segments and of pages, with bytes behind the addresses.
#[test]
fn contents_survive_while_pages_move() {
    for (granularity, page, ops) in [
        (64 * KIB, 64 * KIB, 4000),
        (2 * MIB, 2 * MIB, 2500),
        (16 * MIB, 16 * MIB, 1000),
        (2 * MIB, 64 * KIB, 2500),
        (64 * KIB, 2 * MIB, 2500),
    ] {
        let sim = Sim::builder().capacity(32 * page).granularity(granularity).page_bytes(page);
        let sim = sim.backing(Behind::HostBytes).seed(page / granularity).build().unwrap();
        let mut program = Program::new(sim.device(0).unwrap(), page, page);
        program.run(ops, 2);
        let made = program.device.counts();
        let creates = made.made(Call::Create) - made.failed(Call::Create);
        let maps = made.made(Call::Map);
        assert!(maps > 4 * creates, "{page}: {maps} maps of {creates} pages");
        program.end();
    }
}

#[test]
fn no_page_is_unmapped_under_work_in_any_order_of_it() {
    let mut waits = 0;
    for seed in 0..120 {
        let sim = Sim::builder().capacity(16 * MIB).granularity(MIB).seed(seed).build().unwrap();
        let mut program = Program::new(sim.device(0).unwrap(), MIB, seed);
        // From work that is nearly done with at once to work that lags all the time.
        program.run(300, 1 + seed % 9 * 4);
        waits += program.device.counts().made(Call::WaitEvent);
        program.end();
    }
    assert!(waits > 120, "only {waits} waits");
}

/// The whole device is one stream's, freed under work that lags; another stream asks for all of it.
#[test]
fn a_page_under_work_is_waited_for_and_its_stream_alone() {
    let device = Sim::builder().capacity(64 * MIB).build().unwrap().device(0).unwrap();
    let allocator = paged(&device);
    let [b, other] = [device.create_stream(), device.create_stream()];
    let memory = allocator.allocate(64 * MIB, b).unwrap();
    let span = Span { address: memory.address(), bytes: memory.len() };
    device.launch(b, Work::touch(span).not_before(1000)).unwrap();
    device.launch(other, Work::until(1_000_000)).unwrap();
    drop(memory);
    let before = device.counts();
    let again = allocator.allocate(64 * MIB, A).unwrap();
    let made = device.counts().since(&before);
    assert_eq!((made.made(Call::WaitEvent), made.made(Call::Synchronize)), (1, 0));
    assert_eq!((device.pending(), device.tick()), (1, 1000), "the other stream still works");
    assert_eq!(made.made(Call::Create) - made.failed(Call::Create), 0);
    assert_eq!(allocator.memory_stats().num_host_waits, 1);
    drop(again);
    device.run_all();
    assert_eq!(device.violations(), []);
}

/// A stream's work lags behind thousands of frees, so that more events are due than are kept.
#[test]
fn memory_freed_after_many_marks_is_still_found() {
    let device = Sim::builder().capacity(64 * MIB).build().unwrap().device(0).unwrap();
    let allocator = paged(&device);
    let b = device.create_stream();
    // Pages are moved once, so that frees are marked from now on.
    drop(allocator.allocate(64 * MIB, A).unwrap());
    drop(allocator.allocate(64 * MIB, b).unwrap());
    device.launch(b, Work::until(1000)).unwrap();
    for _ in 0..10_000 {
        // The last block freed is left unmerged, so only one of three is a free to be marked.
        drop([0; 3].map(|_| allocator.allocate(3 * MIB, b).unwrap()));
    }
    assert_eq!(device.live_events(), 64, "more are not kept");
    let memory = allocator.allocate(60 * MIB, b).unwrap();
    let span = Span { address: memory.address(), bytes: memory.len() };
    device.launch(b, Work::touch(span).not_before(2000)).unwrap();
    drop(memory);
    let memory = allocator.allocate(60 * MIB, A).expect("it is idle once the work is done");
    assert_eq!((device.tick(), device.violations()), (2000, Vec::new()));
    drop(memory);
    allocator.empty_cache().unwrap();
    assert_eq!(device.used_bytes(), 0);
}

/// Two threads allocate on streams of their own, each most of the device, a third one frees.
#[test]
fn two_threads_take_pages_from_each_other() {
    let device = Sim::builder().capacity(48 * MIB).build().unwrap().device(0).unwrap();
    let allocator = paged(&device);
    std::thread::scope(|scope| {
        let (send, receive) = channel::<Allocation>();
        scope.spawn(move || receive.into_iter().for_each(drop));
        for seed in [1, 2] {
            let (send, device, allocator) = (send.clone(), &device, allocator.clone());
            let stream = device.create_stream();
            scope.spawn(move || allocate_on(stream, seed, device, &allocator, &send));
        }
    });
    device.run_all();
    allocator.audit().unwrap();
    assert_eq!(allocator.memory_allocated(), 0);
    assert_eq!(device.violations(), []);
    drop(allocator);
    assert_gone(&device);
}

/// Asks again and again: what the third thread has yet to free is served in the end.
fn allocate_on(
    stream: StreamId,
    seed: u64,
    device: &Device,
    allocator: &Allocator,
    send: &Sender<Allocation>,
) {
    let mut random = Random(seed);
    let mut served = 0;
    while served < 300 {
        match allocator.allocate(1 + random.below(12 * MIB), stream) {
            Ok(memory) => {
                served += 1;
                let span = Span { address: memory.address(), bytes: memory.len() };
                device.launch(stream, Work::touch(span)).unwrap();
                send.send(memory).unwrap();
            }
            Err(AllocError::OutOfMemory(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// One thread moves pages all the time, another meets a new stream with every request.
#[test]
fn a_stream_may_be_new_while_another_thread_moves_pages() {
    let device = Sim::builder().capacity(32 * MIB).build().unwrap().device(0).unwrap();
    let allocator = paged(&device);
    let b = device.create_stream();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..2000 {
                drop(allocator.allocate(28 * MIB, [A, b][i % 2]));
            }
        });
        scope.spawn(|| {
            for _ in 0..400 {
                drop(allocator.allocate(1000, device.create_stream()));
            }
        });
    });
    allocator.audit().unwrap();
    assert_eq!(device.violations(), []);
}
