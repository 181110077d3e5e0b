//! What does a free and an allocation cost among many live blocks of mixed sizes?
//!
//! Expected: more than a hit and no more than a few hundred nanoseconds at 1,000 live blocks; growing
//! slowly with their number for policies that search by address, hardly at all for those that search by
//! size. A block in a seeded order is freed and one of another size allocated; sizes are spread evenly
//! over their logarithm.
//!
//! `cargo bench --bench mixed`
use aquifer::driver::StreamId;
use aquifer::driver::sim::Sim;
use aquifer::{Allocation, Allocator, policies};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::time::Duration;

const STEPS: usize = 1 << 14;

/// A generator of seeded numbers (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// 512 B to 1 MiB, evenly over the logarithm.
fn size(state: &mut u64) -> u64 {
    let exponent = 9.0 + 11.0 * (random(state) >> 11) as f64 / (1u64 << 53) as f64;
    exponent.exp2() as u64
}

struct Mix {
    allocator: Allocator,
    live: Vec<Allocation>,
    steps: Vec<(usize, u64)>,
    at: usize,
}

impl Mix {
    fn new(policy: &str, live: usize) -> Mix {
        let sim = Sim::builder().capacity(64 << 30).build().expect("the settings are right");
        let device = sim.device(0).expect("there is a device");
        let allocator = Allocator::builder(device).policy(policy).build().expect("a known policy");
        let mut state = 7;
        let mut fill = || allocator.allocate(size(&mut state), StreamId(0)).expect("it fits");
        let live: Vec<Allocation> = (0..live).map(|_| fill()).collect();
        let step = |_| (random(&mut state) as usize % live.len(), size(&mut state));
        let steps = (0..STEPS).map(step).collect();
        Mix { allocator, live, steps, at: 0 }
    }

    fn step(&mut self) {
        let (slot, bytes) = self.steps[self.at % STEPS];
        self.at += 1;
        drop(self.live.swap_remove(slot));
        self.live.push(self.allocator.allocate(bytes, StreamId(0)).expect("it fits"));
    }
}

fn mixes(c: &mut Criterion) {
    let mut group = c.benchmark_group("mixed");
    for policy in policies::NAMES.iter().filter(|name| **name != "never-cache") {
        for live in [100, 1_000, 10_000] {
            let mut mix = Mix::new(policy, live);
            (0..STEPS).for_each(|_| mix.step());
            group.bench_function(BenchmarkId::new(*policy, live), |b| b.iter(|| mix.step()));
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = mixes
}
criterion_main!(benches);
