//! What does it cost, in the allocator's own time, to get pages for a request and give them back?
//!
//! Expected: the first row, what the simulated driver takes for the same calls, and a few microseconds.
//! What a real driver takes is in `driver::sim::Costs`, and is not in any row. Every round creates all
//! pages of a block, maps them, and gives them back by emptying the cache; for segments see `miss`.
//!
//! `cargo bench --bench growth`
use aquifer::driver::sim::{Device, Sim};
use aquifer::driver::{Driver, HandleFlags, StreamId};
use aquifer::{Allocator, Backing};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 2 << 20;

fn device() -> Arc<Device> {
    let sim = Sim::builder().capacity(8 << 30).build().expect("the settings are right");
    sim.device(0).expect("there is a device")
}

fn growths(c: &mut Criterion) {
    let mut group = c.benchmark_group("growth");
    for pages in [1, 32, 512] {
        let driver = device();
        let range = driver.reserve(pages * PAGE).expect("there are addresses");
        let mut handles = Vec::new();
        group.bench_function(BenchmarkId::new("the simulated driver alone", pages), |b| {
            b.iter(|| {
                for i in 0..pages {
                    let handle = driver.create(PAGE, HandleFlags::default()).expect("it fits");
                    driver.map(range + i * PAGE, handle).expect("nothing is mapped there");
                    handles.push(handle);
                }
                driver.set_access(range, pages * PAGE, &[]).expect("all of it is mapped");
                driver.unmap(black_box(range), pages * PAGE).expect("it is mapped");
                for handle in handles.drain(..) {
                    driver.release(handle).expect("it is mapped nowhere");
                }
            });
        });

        let built = Allocator::builder(device()).backing(Backing::Paged).build();
        let allocator = built.expect("the device has virtual memory");
        let mut step = || {
            drop(black_box(allocator.allocate(black_box(pages * PAGE), StreamId(0))));
            let report = allocator.empty_cache().expect("nothing fails");
            assert_eq!(allocator.memory_reserved(), 0);
            report
        };
        group.bench_function(BenchmarkId::new("the allocator", pages), |b| b.iter(&mut step));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = growths
}
criterion_main!(benches);
