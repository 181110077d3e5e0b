//! aquifer as a subject: the whole allocator over the simulated device, statistics, locks and all.
use crate::Subject;
use crate::work::cpu_ns;
use aquifer::driver::StreamId;
use aquifer::driver::sim::Sim;
use aquifer::{Allocation, Allocator, Backing};
use std::hint::black_box;

pub struct Ours {
    allocator: Allocator,
    name: &'static str,
}

fn allocator(policy: &str, front: bool, backing: Backing) -> Allocator {
    let sim = Sim::builder().capacity(256 << 30).build().expect("a device");
    let device = sim.device(0).expect("the first device");
    let builder = Allocator::builder(device).policy(policy).backing(backing);
    builder.front_cache(front).build().expect("an allocator")
}

impl Ours {
    pub fn new(policy: &str, front: bool, backing: Backing, name: &'static str) -> Self {
        Ours { allocator: allocator(policy, front, backing), name }
    }
}

impl Subject for Ours {
    type Block = Allocation;

    fn name(&self) -> &'static str {
        self.name
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Allocation {
        self.allocator.allocate(bytes, StreamId(0)).expect("it fits")
    }

    #[inline]
    fn free(&mut self, block: Allocation) {
        drop(block);
    }
}

/// CPU ns per pair of `count` threads at once, each on its own stream.
pub fn threads(count: u64) -> f64 {
    const PAIRS: u64 = 300_000;
    let allocator = allocator("first-fit", true, Backing::Segments);
    let total: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|i| {
                let allocator = &allocator;
                scope.spawn(move || {
                    for _ in 0..PAIRS / 10 {
                        drop(allocator.allocate(64 << 10, StreamId(i)));
                    }
                    let start = cpu_ns();
                    for _ in 0..PAIRS {
                        drop(black_box(allocator.allocate(black_box(64 << 10), StreamId(i))));
                    }
                    cpu_ns() - start
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().expect("no panic")).sum()
    });
    total as f64 / (PAIRS * count) as f64
}
