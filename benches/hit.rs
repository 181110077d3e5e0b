//! What does a hit cost: a request that finds a freed block of its exact size, and its free?
//!
//! Expected: tens of nanoseconds whatever the size; three times that or more without the front cache,
//! where heap and policy do the work. One thread, one stream; no driver call is in it.
//!
//! `cargo bench --bench hit`
use aquifer::driver::StreamId;
use aquifer::driver::sim::Sim;
use aquifer::{Allocator, policies};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

fn allocator(policy: &str, front: bool) -> Allocator {
    let sim = Sim::builder().capacity(8 << 30).build().expect("the settings are right");
    let device = sim.device(0).expect("there is a device");
    Allocator::builder(device).policy(policy).front_cache(front).build().expect("a known policy")
}

fn pairs(c: &mut Criterion) {
    let mut group = c.benchmark_group("hit");
    for (name, bytes) in
        [("512 B", 512), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("20 MiB", 20 << 20)]
    {
        let allocator = allocator("first-fit", true);
        group.bench_function(BenchmarkId::new("front", name), |b| {
            b.iter(|| drop(black_box(allocator.allocate(black_box(bytes), StreamId(0)))));
        });
    }
    for policy in policies::NAMES.iter().filter(|name| **name != "never-cache") {
        let allocator = allocator(policy, false);
        group.bench_function(BenchmarkId::new("heap 64 KiB", policy), |b| {
            b.iter(|| drop(black_box(allocator.allocate(black_box(64 << 10), StreamId(0)))));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = pairs
}
criterion_main!(benches);
