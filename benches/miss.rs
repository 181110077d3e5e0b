//! What does a request cost that the driver has to serve, in the allocator's own time?
//!
//! Expected: a microsecond or so above the simulated driver's own, which is the first row. What a real
//! driver adds is in `driver::sim::Costs`, and is not in any row. Every round grows by a segment and
//! gives it back: `never-cache` at the free, `first-fit` by emptying the cache.
//!
//! `cargo bench --bench miss`
use aquifer::Allocator;
use aquifer::driver::sim::{Device, Sim};
use aquifer::driver::{Driver, StreamId};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 64 << 20;

fn device() -> Arc<Device> {
    let sim = Sim::builder().capacity(8 << 30).build().expect("the settings are right");
    sim.device(0).expect("there is a device")
}

fn misses(c: &mut Criterion) {
    let mut group = c.benchmark_group("miss 64 MiB");
    let driver = device();
    group.bench_function("the simulated driver alone", |b| {
        b.iter(|| {
            let address = driver.allocate(black_box(BYTES)).expect("it fits");
            driver.free(black_box(address)).expect("it is live");
        });
    });
    let allocator = Allocator::builder(device()).policy("never-cache").build().expect("known");
    group.bench_function("never-cache", |b| {
        b.iter(|| drop(black_box(allocator.allocate(black_box(BYTES), StreamId(0)))));
    });
    let allocator = Allocator::new(device()).expect("the defaults are right");
    group.bench_function("first-fit and empty_cache", |b| {
        b.iter(|| {
            drop(black_box(allocator.allocate(black_box(BYTES), StreamId(0))));
            allocator.empty_cache().expect("nothing fails")
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = misses
}
criterion_main!(benches);
