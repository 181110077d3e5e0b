//! What does an operation of a real program cost, from the first request to the last?
//!
//! Expected: between a hit and the mixed case, since training asks for the same sizes again and again;
//! `never-cache` costs the simulated driver at every request. The trace is the bundled training run of a
//! place-recognition network, once per measurement on a fresh allocator; its time is for all of its
//! operations, and the throughput counts one operation as an element. Work never waits on the device.
//!
//! `cargo bench --features compress --bench replay`
use aquifer::driver::StreamId;
use aquifer::driver::sim::Sim;
use aquifer::trace::{Op, Trace};
use aquifer::{Allocation, Allocator, policies};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;

fn allocator(policy: &str) -> Allocator {
    let sim = Sim::builder().capacity(64 << 30).build().expect("the settings are right");
    let device = sim.device(0).expect("there is a device");
    Allocator::builder(device).policy(policy).build().expect("a known policy")
}

fn replay(allocator: &Allocator, trace: &Trace) -> Vec<Option<Allocation>> {
    let mut live: Vec<Option<Allocation>> = (0..trace.slots()).map(|_| None).collect();
    for op in trace.ops() {
        match op {
            Op::Alloc { slot, bytes, stream } => {
                let stream = StreamId(u64::from(stream.0));
                live[slot.index()] = Some(allocator.allocate(bytes, stream).expect("it fits"));
            }
            Op::Free { slot } => live[slot.index()] = None,
            Op::EmptyCache => drop(allocator.empty_cache().expect("nothing fails")),
            Op::RecordStream { .. } | Op::Mark { .. } | Op::Thread { .. } => {}
        }
    }
    live
}

fn replays(c: &mut Criterion) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/netvlad-triplet-fp32.trace.gz");
    let trace = Trace::read(path).expect("the bundled trace is right");
    let mut group = c.benchmark_group("replay netvlad-triplet-fp32");
    group.throughput(Throughput::Elements(trace.op_count()));
    group.sample_size(10);
    for policy in policies::NAMES {
        group.bench_function(*policy, |b| {
            let fresh = || allocator(policy);
            b.iter_batched_ref(fresh, |fresh| replay(fresh, &trace), BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = replays
}
criterion_main!(benches);
