//! Threads that share an allocator: nothing is lost, nothing is given twice, counts agree at the end.
use aquifer::driver::StreamId;
use aquifer::driver::sim::{Device, Sim, Work};
use aquifer::policies::NAMES;
use aquifer::{AllocError, Allocation, Allocator, Builder};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

const MIB: u64 = 1 << 20;
const THREADS: u64 = 4;

fn device(capacity: u64) -> Arc<Device> {
    Sim::builder().capacity(capacity).build().unwrap().device(0).unwrap()
}

fn allocator(device: &Arc<Device>, set: impl FnOnce(Builder) -> Builder) -> Allocator {
    set(Allocator::builder(device.clone())).build().unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn size(&mut self) -> u64 {
        match self.below(10) {
            0..=5 => 1 + self.below(8) * 700,
            6 | 7 => 40_000 + self.below(50_000),
            8 => MIB + self.below(3 * MIB),
            _ => 4 * MIB + self.below(8) * MIB,
        }
    }
}

/// Every live range and who wrote it: a range given twice is seen at once.
#[derive(Default)]
struct Ranges(Mutex<std::collections::BTreeMap<u64, u64>>);

impl Ranges {
    fn enter(&self, memory: &Allocation) {
        let (start, end) = (memory.address(), memory.address() + memory.len());
        let mut all = self.0.lock().unwrap();
        if let Some((_, &before)) = all.range(..end).next_back() {
            assert!(before <= start, "{start:#x} was given twice");
        }
        all.insert(start, end);
    }

    fn leave(&self, memory: &Allocation) {
        self.0.lock().unwrap().remove(&memory.address());
    }
}

/// One thread's part: it allocates on its stream, and frees what it or another thread allocated.
struct Worker<'a> {
    allocator: &'a Allocator,
    ranges: &'a Ranges,
    stream: StreamId,
    random: Random,
    live: Vec<Allocation>,
    others: Vec<mpsc::Sender<Allocation>>,
    given: mpsc::Receiver<Allocation>,
}

impl Worker<'_> {
    fn run(mut self, steps: u32) {
        for _ in 0..steps {
            self.step();
            if self.live.len() > 40 {
                self.drop_all();
            }
        }
        self.drop_all();
        self.others.clear();
        self.given.iter().for_each(|memory| drop_noted(self.ranges, memory));
    }

    fn step(&mut self) {
        match self.random.below(8) {
            0..=3 => match self.allocator.allocate(self.random.size(), self.stream) {
                Ok(memory) => {
                    self.ranges.enter(&memory);
                    self.live.push(memory);
                }
                Err(AllocError::OutOfMemory(_)) => self.drop_all(),
                Err(other) => panic!("{other}"),
            },
            4 | 5 if !self.live.is_empty() => {
                let at = self.random.below(self.live.len() as u64) as usize;
                drop_noted(self.ranges, self.live.swap_remove(at));
            }
            6 if !self.live.is_empty() => {
                let memory = self.live.swap_remove(0);
                if self.random.below(4) == 0 {
                    memory.record_stream(StreamId(0)).unwrap();
                }
                let to = self.random.below(self.others.len() as u64) as usize;
                self.others[to].send(memory).expect("receivers outlive senders");
            }
            _ => self.given.try_iter().for_each(|memory| drop_noted(self.ranges, memory)),
        }
    }

    fn drop_all(&mut self) {
        self.live.drain(..).for_each(|memory| drop_noted(self.ranges, memory));
    }
}

fn drop_noted(ranges: &Ranges, memory: Allocation) {
    ranges.leave(&memory);
    drop(memory);
}

/// Runs workers on `streams`, one thread more that reads and trims all the while.
fn run_workers(allocator: &Allocator, streams: &[StreamId], steps: u32) {
    let ranges = Ranges::default();
    let (senders, receivers): (Vec<_>, Vec<_>) = streams.iter().map(|_| mpsc::channel()).unzip();
    let (busy, senders) = (AtomicU64::new(streams.len() as u64), senders);
    thread::scope(|scope| {
        for (n, (given, &stream)) in receivers.into_iter().zip(streams).enumerate() {
            let (ranges, busy, others) = (&ranges, &busy, senders.clone());
            let random = Random(n as u64 + 1);
            scope.spawn(move || {
                let live = Vec::new();
                let worker = Worker { allocator, ranges, stream, random, live, others, given };
                worker.run(steps);
                busy.fetch_sub(1, Ordering::Release);
            });
        }
        drop(senders);
        while busy.load(Ordering::Acquire) > 0 {
            allocator.empty_cache().unwrap();
            let stats = allocator.memory_stats();
            assert!(stats.allocated_bytes.peak >= stats.allocated_bytes.current);
            // Others change what is counted meanwhile, so that only its end is asked for.
            let _unsettled = allocator.audit();
        }
    });
}

#[test]
fn threads_on_one_stream_and_on_many_lose_nothing() {
    for (i, policy) in NAMES.iter().enumerate() {
        for many in [false, true] {
            let device = device([64 * MIB, 1 << 30][i % 2]);
            let allocator = allocator(&device, |b| b.policy(policy).front_cache(i % 3 > 0));
            let own = |_| if many { device.create_stream() } else { StreamId(0) };
            let streams: Vec<_> = (0..THREADS).map(own).collect();
            run_workers(&allocator, &streams, 1500);
            allocator.audit().unwrap();
            assert_eq!(allocator.memory_allocated(), 0, "{policy}");
            allocator.empty_cache().unwrap();
            assert_eq!(allocator.memory_reserved(), 0);
            drop(allocator);
            assert_eq!((device.used_bytes(), device.live_events()), (0, 0), "{policy}");
        }
    }
}

#[test]
fn the_last_handle_goes_while_other_threads_free() {
    for round in 0..1000 {
        let device = device(256 * MIB);
        let policy = NAMES[round % NAMES.len()];
        let allocator = allocator(&device, |b| b.policy(policy).front_cache(round % 2 == 0));
        let user = device.create_stream();
        let blocks: Vec<Vec<Allocation>> = (0..THREADS)
            .map(|n| {
                let sizes = [700, 5000, 3 * MIB, 700, 80_000];
                let blocks = sizes.map(|bytes| allocator.allocate(bytes, StreamId(n / 2)).unwrap());
                if round % 3 == 0 {
                    blocks[1].record_stream(user).unwrap();
                }
                blocks.into()
            })
            .collect();
        device.launch(user, Work::unit()).unwrap();
        let start = std::sync::Barrier::new(THREADS as usize + 1);
        thread::scope(|scope| {
            for mine in blocks {
                scope.spawn(|| {
                    start.wait();
                    drop(mine);
                });
            }
            start.wait();
            drop(allocator);
        });
        assert_eq!((device.used_bytes(), device.live_events()), (0, 0), "{policy}, round {round}");
    }
}

#[test]
fn the_device_wide_peak_is_never_under_the_true_one() {
    let device = device(1 << 30);
    let allocator = allocator(&device, |b| b);
    let (least_now, least_peak) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for n in 0..2 {
            let (allocator, least_now, least_peak) = (&allocator, &least_now, &least_peak);
            scope.spawn(move || {
                let (mut random, mut live) = (Random(n), Vec::new());
                let uncount = |memory: Allocation| {
                    least_now.fetch_sub(memory.block_bytes(), Ordering::SeqCst);
                    drop(memory);
                };
                for _ in 0..5000 {
                    if live.len() < 20 && random.below(3) > 0 {
                        // Counted after it is allocated and until it is freed: never more than there is.
                        let memory = allocator.allocate(random.size(), StreamId(n)).unwrap();
                        let bytes = memory.block_bytes();
                        let now = least_now.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        least_peak.fetch_max(now, Ordering::SeqCst);
                        live.push(memory);
                    } else if let Some(memory) = live.pop() {
                        uncount(memory);
                    }
                }
                live.into_iter().for_each(uncount);
            });
        }
    });
    let (peak, least) = (allocator.max_memory_allocated(), least_peak.into_inner());
    assert!(peak >= least, "peak {peak}, but {least} bytes were allocated at once");
    allocator.audit().unwrap();
}

/// Each request fills a segment of its own, so that whoever got it first would leave nothing.
#[test]
fn a_segment_serves_the_thread_that_asked_for_it() {
    let device = device(1 << 30);
    let allocator = allocator(&device, |b| b.front_cache(false));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..300 {
                    drop(allocator.allocate(32 * MIB, StreamId(0)).unwrap());
                    let _other_threads_may_trim = allocator.empty_cache().unwrap();
                }
            });
        }
    });
    allocator.audit().unwrap();
}

/// Lanes are handed from one allocator to another while a third thread reads and resets peaks.
#[test]
fn pools_come_and_go_under_readers() {
    let devices = [device(256 * MIB), device(256 * MIB)];
    let allocators = devices.each_ref().map(|d| allocator(d, |b| b));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let users: Vec<_> = allocators
            .iter()
            .map(|allocator| {
                scope.spawn(|| {
                    for i in 0..2000u64 {
                        let pool = allocator.pool("short");
                        let kept = pool.allocate(1000 + i, StreamId(i % 3)).unwrap();
                        drop(pool);
                        drop(kept);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for allocator in &allocators {
                    allocator.reset_peak();
                    allocator.memory_stats();
                    let _unsettled = allocator.audit();
                    allocator.mark("step");
                }
            }
        });
        let ended: Vec<_> = users.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|e| e.expect("no user panics"));
    });
    for (allocator, device) in allocators.into_iter().zip(&devices) {
        allocator.audit().unwrap();
        assert_eq!(allocator.memory_allocated(), 0);
        drop(allocator);
        assert_eq!(device.used_bytes(), 0);
    }
}
