//! What does it cost, in the allocator's own time, to serve a stream with pages that another has left idle?
//!
//! Expected: the first row, what the simulated driver takes for the same calls, and a few microseconds
//! that grow little with the number of pages. What a real driver takes is in `driver::sim::Costs`, and
//! is not in any row. Two streams take turns at a block that fills the device.
//!
//! `cargo bench --bench steal`
use aquifer::driver::sim::{Device, Sim};
use aquifer::driver::{Driver, HandleFlags, StreamId};
use aquifer::{Allocator, Backing};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 2 << 20;

fn device(pages: u64) -> Arc<Device> {
    let sim = Sim::builder().capacity(pages * PAGE).build().expect("the settings are right");
    sim.device(0).expect("there is a device")
}

fn steals(c: &mut Criterion) {
    let mut group = c.benchmark_group("steal");
    for pages in [1, 16, 256] {
        let driver = device(pages);
        let create = || driver.create(PAGE, HandleFlags::default()).expect("it fits");
        let handles: Vec<_> = (0..pages).map(|_| create()).collect();
        let ranges = [(); 2].map(|()| driver.reserve(pages * PAGE).expect("there are addresses"));
        let place = |range: u64| {
            for (i, &handle) in handles.iter().enumerate() {
                driver.map(range + i as u64 * PAGE, handle).expect("nothing is mapped there");
            }
            driver.set_access(range, pages * PAGE, &[]).expect("all of it is mapped");
        };
        place(ranges[0]);
        let mut turn = 0;
        group.bench_function(BenchmarkId::new("the simulated driver alone", pages), |b| {
            b.iter(|| {
                driver.unmap(ranges[turn], pages * PAGE).expect("it is mapped");
                turn = 1 - turn;
                place(black_box(ranges[turn]));
            });
        });

        let driver = device(pages);
        let streams = [StreamId(0), driver.create_stream()];
        let built = Allocator::builder(driver.clone()).backing(Backing::Paged).build();
        let allocator = built.expect("the device has virtual memory");
        let mut turn = 0;
        let mut step = || {
            turn = 1 - turn;
            let block = allocator.allocate(black_box(pages * PAGE), streams[turn]);
            drop(block.expect("the other stream's pages are idle"));
        };
        (0..4).for_each(|_| step());
        group.bench_function(BenchmarkId::new("the allocator", pages), |b| b.iter(&mut step));
        assert!(allocator.memory_stats().num_pages_moved > 0, "nothing was stolen");
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = steals
}
criterion_main!(benches);
