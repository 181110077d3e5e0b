//! What do threads cost each other: on streams of their own, on one stream, and freeing for another?
//!
//! Expected: with a stream each, a pair costs what it costs one thread alone, up to the number of cores;
//! on one stream threads take turns at its front, and a pair costs a few times as much; frees by another
//! thread cost the queue on top. Time is from the start of the threads' common run to its end, over the
//! pairs of one thread, so that equal numbers mean that threads do not hinder each other.
//!
//! `cargo bench --bench contention`
use aquifer::driver::StreamId;
use aquifer::driver::sim::Sim;
use aquifer::{Allocation, Allocator};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 10;

fn allocator() -> Allocator {
    let sim = Sim::builder().capacity(8 << 30).build().expect("the settings are right");
    Allocator::new(sim.device(0).expect("there is a device")).expect("the defaults are right")
}

/// Runs `pairs` on each of `threads` and takes the time of the whole.
fn run(
    allocator: &Allocator,
    threads: u64,
    pairs: u64,
    stream: impl Fn(u64) -> StreamId,
) -> Duration {
    let start = Barrier::new(threads as usize + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (start, stream) = (&start, stream(thread));
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..pairs {
                        drop(black_box(allocator.allocate(black_box(BYTES), stream)));
                    }
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        workers.into_iter().for_each(|worker| worker.join().expect("no worker panics"));
        begun.elapsed()
    })
}

/// One thread allocates, another frees.
fn hand_over(allocator: &Allocator, pairs: u64) -> Duration {
    let (sender, receiver) = mpsc::sync_channel::<Allocation>(64);
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || receiver.into_iter().for_each(drop));
        let begun = Instant::now();
        for _ in 0..pairs {
            let block = allocator.allocate(BYTES, StreamId(0)).expect("it fits");
            sender.send(block).expect("the other thread is there");
        }
        drop(sender);
        worker.join().expect("the other thread does not panic");
        begun.elapsed()
    })
}

fn threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("contention");
    for count in [1, 2, 4] {
        let shared = allocator();
        group.bench_function(BenchmarkId::new("a stream each", count), |b| {
            b.iter_custom(|pairs| run(&shared, count, pairs, StreamId));
        });
        let shared = allocator();
        group.bench_function(BenchmarkId::new("one stream", count), |b| {
            b.iter_custom(|pairs| run(&shared, count, pairs, |_| StreamId(0)));
        });
    }
    let shared = allocator();
    group.bench_function("freed by another thread", |b| {
        b.iter_custom(|pairs| hand_over(&shared, pairs));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = threads
}
criterion_main!(benches);
