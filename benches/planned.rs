//! What does a request cost at the place that a plan names for it, beside the policy's own answer?
//!
//! Expected: less than twice `first-fit` without its front cache, which a plan does without as well: the
//! planner follows the step, and the free block at an address is looked up instead of the lowest. Each round
//! is one marked step of 2,000 requests and as many frees, with up to 1,000 blocks live; what is shown is
//! the time of the whole step. Packing is not in it: that is done once, before.
//!
//! `cargo bench --bench planned`
use aquifer::driver::StreamId;
use aquifer::driver::sim::Sim;
use aquifer::{Allocation, Allocator};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

const LAYERS: usize = 1_000;
const STREAM: StreamId = StreamId(0);

fn allocator(policy: &str, front: bool) -> Allocator {
    let sim = Sim::builder().capacity(8 << 30).build().expect("the settings are right");
    let device = sim.device(0).expect("there is a device");
    let builder = Allocator::builder(device).policy(policy).front_cache(front);
    builder.build().expect("the settings are right")
}

/// Sizes of activations and of scratch memory, as the layers of a network have them.
fn sizes() -> Vec<[u64; 2]> {
    let size = |n: usize, spread: usize| ((n * 7_919) % spread + 1) as u64 * 4096;
    (0..LAYERS).map(|n| [size(n, 97), size(n + 31, 61)]).collect()
}

/// Forward: scratch, an activation that stays, scratch freed. Backward: the activations go in turn.
fn step(allocator: &Allocator, sizes: &[[u64; 2]], kept: &mut Vec<Allocation>) {
    allocator.mark("train");
    for &[activation, scratch] in sizes {
        let scratch = allocator.allocate(black_box(scratch), STREAM).expect("it fits");
        kept.push(allocator.allocate(black_box(activation), STREAM).expect("it fits"));
        drop(scratch);
    }
    while let Some(activation) = kept.pop() {
        drop(activation);
    }
}

fn plan_hits(c: &mut Criterion) {
    let sizes = sizes();
    let mut kept = Vec::with_capacity(LAYERS);
    let mut group = c.benchmark_group("a step of 2000 requests");
    group.throughput(Throughput::Elements(2 * LAYERS as u64));
    for (policy, front) in [("first-fit", true), ("first-fit", false), ("planned", false)] {
        let allocator = allocator(policy, front);
        (0..3).for_each(|_| step(&allocator, &sizes, &mut kept));
        let before = allocator.memory_stats().plan_hits;
        step(&allocator, &sizes, &mut kept);
        let hits = allocator.memory_stats().plan_hits - before;
        let expected = if policy == "planned" { 2 * LAYERS as u64 } else { 0 };
        assert_eq!(hits, expected, "every request is served by the plan, or none");
        let name = match (policy, front) {
            ("planned", _) => "at its place of the plan",
            (_, true) => "first-fit with its front cache",
            (_, false) => "first-fit without",
        };
        group.bench_function(name, |b| b.iter(|| step(&allocator, &sizes, &mut kept)));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = plan_hits
}
criterion_main!(benches);
