//! Failures that users of GPU allocators report, where pages with virtual addresses are the answer.
use aquifer::driver::sim::{Device, Sim, Work};
use aquifer::driver::{Call, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const A: StreamId = StreamId(0);

fn paged(capacity: u64) -> (Arc<Device>, Allocator) {
    let device = Sim::builder().capacity(capacity).build().unwrap().device(0).unwrap();
    let builder = Allocator::builder(device.clone()).backing(Backing::Paged);
    (device, builder.build().unwrap())
}

/// Work on A for each allocation, as a program would queue it.
fn get(device: &Device, allocator: &Allocator, bytes: u64) -> Allocation {
    let memory = allocator.allocate(bytes, A).unwrap_or_else(|e| panic!("{bytes}: {e}"));
    device.launch(A, Work::unit()).unwrap();
    memory
}

/// One step: activations come forward, and go backward beside their gradients.
fn train(device: &Device, allocator: &Allocator, batch: u64, scale: u64) {
    allocator.mark("step");
    let mut activations = Vec::new();
    for layer in 1..=12 {
        activations.push(get(device, allocator, batch * layer * 30_000 * scale));
        drop(get(device, allocator, batch * 9_000 * scale));
    }
    while let Some(activation) = activations.pop() {
        let gradient = get(device, allocator, activation.len());
        drop((activation, gradient));
    }
}

/// No gradients: each activation goes once the next one is there.
fn evaluate(device: &Device, allocator: &Allocator, batch: u64, scale: u64) {
    allocator.mark("step");
    let mut last = get(device, allocator, batch * 30_000 * scale);
    for layer in 2..=12 {
        last = get(device, allocator, batch * layer * 30_000 * scale);
        drop(get(device, allocator, batch * 9_000 * scale));
    }
    drop(last);
}

fn ratio(allocator: &Allocator) -> f64 {
    allocator.max_memory_reserved() as f64 / allocator.max_memory_active() as f64
}

/// A model that trained for long in what it has is evaluated between epochs, with a batch and with
/// lengths that training never had. What training left cached is of the wrong sizes, and the first
/// evaluation asks for as much again: the program dies on validation, hours in.
#[test]
fn evaluation_after_training_lives_in_the_memory_of_training() {
    let (device, allocator) = paged(16 * GIB);
    let weights: Vec<_> = (1..30).map(|i| get(&device, &allocator, i * 1_000_000)).collect();
    for epoch in 0..3 {
        (0..10).for_each(|_| train(&device, &allocator, 8, 10));
        for n in 0..10 {
            evaluate(&device, &allocator, 13 + epoch, 9 + n % 4);
        }
        device.run_all();
    }
    let ratio = ratio(&allocator);
    assert!(ratio <= 1.1, "{ratio:.3} of the peak in use was held");
    drop(weights);
    assert_eq!(device.violations(), []);
}

/// A sequence or a mesh grows a little with every step, so that nothing freed is ever large enough again:
/// a stair of cached blocks, each a bit shorter than what is asked for now.
#[test]
fn sizes_that_grow_with_every_step_reuse_what_was_smaller() {
    for percent in [1, 2, 5] {
        let (device, allocator) = paged(16 * GIB);
        let mut bytes = 200_000u64;
        for _ in 0..200 {
            allocator.mark("step");
            let live = [1, 2, 3, 2].map(|n| get(&device, &allocator, n * bytes));
            device.step();
            drop(live);
            bytes = (bytes + bytes * percent / 100).min(GIB);
        }
        let ratio = ratio(&allocator);
        assert!(ratio <= 1.15, "{percent} %: {ratio:.3} of the peak in use was held");
        device.run_all();
        assert_eq!(device.violations(), []);
    }
}

/// Somebody read that emptying the cache helps, and does it after every step.
#[test]
fn a_cache_emptied_every_step_costs_calls_but_no_memory() {
    let (device, allocator) = paged(4 * GIB);
    let weights: Vec<_> = (1..10).map(|i| get(&device, &allocator, i * 500_000)).collect();
    let (mut reserved_first, mut calls_first) = (0, 0);
    for n in 0..1000 {
        let before = device.counts();
        train(&device, &allocator, 8, 2);
        let trimmed = allocator.empty_cache().unwrap();
        let calls = device.counts().since(&before).total();
        if n == 2 {
            (reserved_first, calls_first) = (trimmed.reserved_bytes, calls);
        }
        if n > 2 {
            assert!(trimmed.reserved_bytes <= reserved_first, "step {n}: {trimmed:?}");
            assert!(
                calls <= calls_first + calls_first / 4,
                "step {n}: {calls}, {calls_first} first"
            );
        }
        assert!(device.live_events() <= 2, "{} events", device.live_events());
    }
    let ratio = ratio(&allocator);
    assert!(ratio <= 1.1, "{ratio:.3} of the peak in use was held");
    drop(weights);
}

/// A server makes a stream for each client and never asks whether there is an end to that.
#[test]
fn a_thousand_streams_end_in_a_value_not_in_an_abort() {
    let addresses = 1 << 42;
    let sim = Sim::builder().capacity(8 * GIB).address_bytes(addresses).build().unwrap();
    let device = sim.device(0).unwrap();
    let allocator = Allocator::new(device.clone()).unwrap();
    let mut live = Vec::new();
    let mut refused = 0;
    for _ in 0..1000 {
        let stream = device.create_stream();
        for bytes in [300, 11 * MIB] {
            // A few refusals tell as much as hundreds.
            if refused == 20 {
                continue;
            }
            match allocator.allocate(bytes, stream) {
                Ok(memory) => live.push(memory),
                Err(AllocError::OutOfMemory(report)) => {
                    assert!(report.to_string().starts_with("out of memory"));
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused == 20, "it is more than the device has");
    assert!(live.iter().map(Allocation::len).sum::<u64>() > 7 * GIB);
    assert!(device.reserved_address_bytes() <= addresses);
    assert_eq!(device.counts().made(Call::Synchronize), 0);
    allocator.audit().unwrap();
    drop(live);
    allocator.empty_cache().unwrap();
    assert_eq!((device.used_bytes(), device.violations()), (0, Vec::new()));
    drop(allocator);
    assert_eq!(device.reserved_address_bytes(), 0);
}
