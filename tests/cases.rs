//! Failures that users of GPU allocators report, each as a test.
use aquifer::driver::sim::{Device, Sim, Work};
use aquifer::driver::{Call, StreamId};
use aquifer::policies::NAMES;
use aquifer::{AllocError, Allocation, Allocator, Cap, OomReport};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const A: StreamId = StreamId(0);
/// The policy whose blocks are powers of two: 800 MiB need more than 1000.
const ROUNDS_UP_FAR: &str = "buddy";

fn device(capacity: u64) -> Arc<Device> {
    Sim::builder().capacity(capacity).build().unwrap().device(0).unwrap()
}

fn allocator(device: &Arc<Device>) -> Allocator {
    Allocator::new(device.clone()).unwrap()
}

/// An allocator whose memory a test looks at range by range.
fn over_segments(device: &Arc<Device>, policy: &str) -> Allocator {
    let builder = Allocator::builder(device.clone()).policy(policy);
    builder.backing(aquifer::Backing::Segments).build().unwrap()
}

fn oom(error: AllocError) -> Box<OomReport> {
    match error {
        AllocError::OutOfMemory(report) => report,
        other => panic!("not out of memory: {other}"),
    }
}

/// Fills the device, then frees a block that stream B still uses and asks for as much on A.
#[test]
fn a_block_freed_under_pending_work_serves_before_out_of_memory() {
    for done in [false, true] {
        let device = device(256 * MIB);
        let allocator = allocator(&device);
        let b = device.create_stream();
        let blocks: Vec<_> = (0..8).map(|_| allocator.allocate(32 * MIB, A).unwrap()).collect();
        device.launch(b, Work::unit()).unwrap();
        blocks[3].record_stream(b).unwrap();
        let (address, before) = (blocks[3].address(), device.counts());
        let mut blocks = blocks;
        drop(blocks.remove(3));
        if done {
            device.run_all();
        }
        let again = allocator.allocate(32 * MIB, A).unwrap();
        let made = device.counts().since(&before);
        assert_eq!(again.address(), address);
        assert_eq!(made.made(Call::Free), 0);
        assert_eq!(made.made(Call::Allocate) - made.failed(Call::Allocate), 0);
        assert_eq!(made.host_waits, u64::from(!done));
    }
}

/// Free ranges between live blocks inside the device's ranges, found with no knowledge of the heap.
fn holes(device: &Device, live: &[Allocation]) -> Vec<u64> {
    let mut holes = Vec::new();
    for range in device.live_ranges() {
        let inside =
            |a: &&Allocation| (range.address..range.address + range.bytes).contains(&a.address());
        let mut blocks: Vec<_> =
            live.iter().filter(inside).map(|a| (a.address(), a.block_bytes())).collect();
        blocks.sort_unstable();
        blocks.push((range.address + range.bytes, 0));
        let mut at = range.address;
        for (start, bytes) in blocks {
            holes.extend((start > at).then_some(start - at));
            at = start + bytes;
        }
    }
    holes
}

#[test]
fn the_report_equals_a_scan_of_all_memory() {
    for policy in NAMES {
        let device = device(256 * MIB);
        let allocator = over_segments(&device, policy);
        device.set_other_use(20 * MIB);
        let mut live = Vec::new();
        for i in 0.. {
            match allocator.allocate(MIB / 2 + (i * 37 % 7) * MIB, StreamId(i % 2)) {
                Ok(memory) => live.push(memory),
                Err(error) => {
                    oom(error);
                    break;
                }
            }
        }
        let mut n = 0;
        live.retain(|_| {
            n += 1;
            n % 3 != 0
        });
        let report = oom(allocator.allocate(200 * MIB, A).unwrap_err());
        let holes = holes(&device, &live);
        let figures = (report.free_blocks, report.free_block_bytes, report.largest_free_block);
        let scanned = (holes.len(), holes.iter().sum(), holes.iter().max().copied().unwrap_or(0));
        assert_eq!(figures, scanned, "{policy}");
        let allocated: u64 = live.iter().map(Allocation::block_bytes).sum();
        let requested: u64 = live.iter().map(Allocation::len).sum();
        assert_eq!((report.allocated, report.requested), (allocated, requested));
        assert_eq!((report.reserved, report.held_by_others), (device.used_bytes(), Some(20 * MIB)));
        assert_eq!(report.device_free, Some(236 * MIB - device.used_bytes()));
    }
}

#[test]
fn the_report_says_the_largest_request_that_fits() {
    for policy in ["first-fit", "best-fit"] {
        let device = device(64 * MIB);
        let allocator = Allocator::builder(device.clone()).policy(policy).build().unwrap();
        let live: Vec<_> = (0..15).map(|_| allocator.allocate(4 * MIB, A).unwrap()).collect();
        let mut kept: Vec<_> = live.into_iter().enumerate().filter(|(i, _)| i % 4 != 1).collect();
        let report = oom(allocator.allocate(40 * MIB, A).unwrap_err());
        assert!(report.fits_now > 0);
        let more = allocator.allocate(report.fits_now + 1, A).unwrap_err();
        assert!(oom(more).fits_now >= report.fits_now);
        kept.push((99, allocator.allocate(report.fits_now, A).expect("the report says it fits")));
    }
}

/// A training step: activations come forward and go backward, weights stay.
fn train(allocator: &Allocator, batch: u64) -> Result<(), AllocError> {
    let mut activations = Vec::new();
    for layer in 1..=12 {
        activations.push(allocator.allocate(batch * layer * 300_000, A)?);
        drop(allocator.allocate(batch * 90_000, A)?);
    }
    while let Some(activation) = activations.pop() {
        let gradient = allocator.allocate(activation.len(), A)?;
        drop((activation, gradient));
    }
    Ok(())
}

#[test]
fn half_the_batch_passes_after_an_out_of_memory() {
    for policy in NAMES {
        // Half the batch needs 60 % of it, rounding left out.
        let device = device(1536 * MIB);
        let allocator = Allocator::builder(device.clone()).policy(policy).build().unwrap();
        let weights: Vec<_> =
            (1..30).map(|i| allocator.allocate(i * 100_000, A).unwrap()).collect();
        let baseline = allocator.memory_stats();
        (0..5).for_each(|_| train(&allocator, 16).unwrap());
        let report = oom(train(&allocator, 64).unwrap_err());
        assert!(report.to_string().starts_with("out of memory: "));
        (0..5).for_each(|_| train(&allocator, 32).unwrap());
        let after = allocator.memory_stats();
        assert_eq!(after.allocated_bytes.current, baseline.allocated_bytes.current, "{policy}");
        assert_eq!(after.requested_bytes.current, baseline.requested_bytes.current);
        assert_eq!(after.num_ooms, 1);
        drop(weights);
        allocator.empty_cache().unwrap();
        assert_eq!(device.used_bytes(), 0);
    }
}

/// With no block in use there is nothing that idle memory could not go around.
#[test]
fn cached_bytes_stay_under_their_cap() {
    for policy in NAMES {
        for front in [true, false] {
            for cap in [0, 64 * MIB] {
                let device = device(4 * GIB);
                let allocator = Allocator::builder(device.clone())
                    .policy(policy)
                    .front_cache(front)
                    .cached_bytes_cap(cap)
                    .build()
                    .unwrap();
                for i in 0..1000 {
                    let memory = allocator.allocate(1 + i * 4567, A).unwrap();
                    drop(memory);
                    let cached = allocator.memory_reserved() - allocator.memory_allocated();
                    assert!(cached <= cap, "{policy}, {front}, {cap}: {cached} after size {i}");
                }
                assert!(allocator.max_memory_reserved() >= 999 * 4567);
                assert_eq!(allocator.max_memory_reserved(), device.peak_used_bytes());
            }
        }
    }
}

#[test]
fn cached_bytes_of_other_streams_count_against_the_cap() {
    let device = device(GIB);
    let built = Allocator::builder(device.clone()).cached_bytes_cap(64 * MIB).front_cache(false);
    let allocator = built.build().unwrap();
    let b = StreamId(1);
    drop(allocator.allocate(60 * MIB, b).unwrap());
    let [one, _other] = [0, 1].map(|_| allocator.allocate(10 * MIB, A).unwrap());
    // The segment of A is not idle by this, but that of B is, and now there is too much of both.
    drop(one);
    let cached = allocator.memory_reserved() - allocator.memory_allocated();
    assert!(cached <= 64 * MIB, "{cached} bytes cached");
}

#[test]
fn an_idle_stream_serves_eighty_percent_of_the_rest() {
    for policy in NAMES.iter().filter(|policy| **policy != ROUNDS_UP_FAR) {
        let device = device(GIB);
        let allocator = Allocator::builder(device.clone()).policy(policy).build().unwrap();
        let b = device.create_stream();
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        for i in 0..48 {
            of_a.push(allocator.allocate(4 * MIB + i * 1000, A).unwrap());
            of_b.push(allocator.allocate(12 * MIB + i * 1000, b).unwrap());
        }
        drop(of_b);
        let rest = GIB - allocator.memory_allocated();
        drop(allocator.allocate(rest / 10 * 8, A).unwrap_or_else(|e| panic!("{policy}: {e}")));
    }
}

#[test]
fn all_dropped_and_emptied_nothing_is_reserved_and_the_rest_is_named() {
    let device = device(GIB);
    device.set_process_overhead(300 * MIB);
    let allocator = allocator(&device);
    let pool = allocator.pool("other");
    let memory: Vec<_> =
        (0..50).map(|i| allocator.allocate(i * 123_456, StreamId(i % 3))).collect();
    let of_pool = pool.allocate(50 * MIB, A).unwrap();
    drop((memory, of_pool));
    let trimmed = allocator.empty_cache().unwrap();
    assert_eq!((trimmed.reserved_bytes, trimmed.stranded_bytes), (0, 0));
    assert_eq!((allocator.memory_reserved(), device.used_bytes()), (0, 0));
    let report = oom(allocator.allocate(GIB, A).unwrap_err());
    assert_eq!(report.held_by_others, Some(300 * MIB));
    assert!(report.to_string().contains("300.00 MiB held by others"));
}

#[test]
fn steps_after_the_first_call_no_driver() {
    for policy in NAMES.iter().filter(|policy| **policy != "never-cache") {
        let device = device(8 * GIB);
        // Two-ended placement goes on learning which blocks live long, and pages follow it.
        let allocator = match *policy {
            "two-ends" => over_segments(&device, policy),
            _ => Allocator::builder(device.clone()).policy(policy).build().unwrap(),
        };
        let step = || {
            train(&allocator, 8).unwrap();
            device.launch(A, Work::unit()).unwrap();
            device.run_all();
            device.counts().total()
        };
        let warm = [step(), step()][1];
        (2..50).for_each(|i| assert_eq!(step(), warm, "{policy}, step {i}"));
    }
}

#[test]
fn cached_blocks_are_given_back_before_a_limit_is_an_error() {
    for policy in NAMES.iter().filter(|policy| **policy != ROUNDS_UP_FAR) {
        let device = device(8 * GIB);
        let built = Allocator::builder(device.clone()).policy(policy);
        let allocator = built.cap(Cap::bytes(1000 * MIB)).build().unwrap();
        drop(allocator.allocate(500 * MIB, A).unwrap());
        let large = allocator.allocate(800 * MIB, A);
        drop(large.unwrap_or_else(|error| panic!("{policy}: {error}")));
        assert!(device.peak_used_bytes() <= 1000 * MIB);
    }
}

#[test]
fn idle_memory_of_another_stream_costs_one_stream_wait() {
    let device = device(GIB);
    let allocator = over_segments(&device, "first-fit");
    let b = device.create_stream();
    let memory = allocator.allocate(40 * MIB, b).unwrap();
    let address = memory.address();
    device.launch(b, Work::unit()).unwrap();
    drop(memory);
    let (before, reserved) = (device.counts(), allocator.memory_reserved());
    let again = allocator.allocate(40 * MIB, A).unwrap();
    let made = device.counts().since(&before);
    assert_eq!(again.address(), address);
    assert_eq!(made.made(Call::StreamWaitEvent), 1);
    assert_eq!((made.made(Call::Allocate), made.made(Call::Free)), (0, 0));
    assert_eq!((made.made(Call::WaitEvent), made.made(Call::Synchronize)), (0, 0));
    // The work on B and the wait for it on A.
    assert_eq!((made.host_waits, device.pending()), (0, 2), "the host does not wait");
    assert_eq!(allocator.memory_reserved(), reserved);
    device.launch(A, Work::unit()).unwrap();
    device.run_all();
    assert!(device.violations().is_empty() && device.live_events() == 0);
}

/// Three streams, random uses; bytes show who came too early.
#[test]
fn three_streams_never_see_each_other_s_bytes() {
    use aquifer::driver::sim::{Backing, Span};
    for (i, policy) in NAMES.iter().enumerate() {
        let sim = Sim::builder().capacity(48 * MIB).backing(Backing::HostBytes).seed(i as u64);
        let device = sim.build().unwrap().device(0).unwrap();
        let allocator = Allocator::builder(device.clone()).policy(policy).build().unwrap();
        let streams = [A, device.create_stream(), device.create_stream()];
        let mut live: Vec<(Allocation, u8)> = Vec::new();
        let mut seed = 99 + i as u64;
        let mut below = |n: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for n in 0..600u64 {
            let stream = streams[below(3) as usize];
            match below(6) {
                0 | 1 => {
                    let bytes = [200, 5000, 70_000, 3 * MIB][below(4) as usize];
                    let Ok(memory) = allocator.allocate(bytes, stream) else { continue };
                    let span = Span { address: memory.address(), bytes };
                    device.launch(stream, Work::fill(span, n as u8)).unwrap();
                    live.push((memory, n as u8));
                }
                2 | 3 if !live.is_empty() => {
                    drop(live.swap_remove(below(live.len() as u64) as usize));
                }
                4 if !live.is_empty() => {
                    let (memory, byte) = &live[below(live.len() as u64) as usize];
                    let span = Span { address: memory.address(), bytes: memory.len() };
                    if stream != memory.stream() {
                        let event =
                            aquifer::driver::Driver::record_event(&*device, memory.stream());
                        let event = event.unwrap();
                        aquifer::driver::Driver::stream_wait_event(&*device, stream, event)
                            .unwrap();
                        aquifer::driver::Driver::release_event(&*device, event).unwrap();
                        memory.record_stream(stream).unwrap();
                    }
                    device.launch(stream, Work::check(span, *byte)).unwrap();
                }
                _ => {
                    device.step();
                }
            }
        }
        device.run_all();
        assert_eq!(device.violations(), [], "{policy}");
    }
}

#[test]
fn a_cap_counts_what_the_process_holds_beside_the_allocator() {
    let device = device(GIB);
    device.set_process_overhead(200 * MIB);
    let built = Allocator::builder(device.clone()).cap(Cap::fraction(0.5));
    let allocator = built.build().unwrap();
    let memory: Vec<_> = std::iter::from_fn(|| allocator.allocate(10 * MIB, A).ok()).collect();
    assert!(device.used_bytes() + 200 * MIB <= GIB / 2);
    assert!(memory.len() >= 25, "{} blocks of 10 MiB in 312", memory.len());
    let report = oom(allocator.allocate(10 * MIB, A).unwrap_err());
    assert_eq!((report.cap_bytes, report.held_by_others), (Some(GIB / 2), Some(200 * MIB)));
}

/// Each process sees the other's memory as other use; whichever comes first, both get their half.
#[test]
fn two_processes_with_half_a_device_each_both_fit() {
    let devices = [device(GIB), device(GIB)];
    let allocators = devices.each_ref().map(|d| {
        d.set_process_overhead(30 * MIB);
        Allocator::builder(d.clone()).cap(Cap::fraction(0.5)).build().unwrap()
    });
    let see_each_other = || {
        for (own, other) in [(0, 1), (1, 0)] {
            devices[own].set_other_use(devices[other].used_bytes() + 30 * MIB);
        }
    };
    see_each_other();
    let mut memory = [Vec::new(), Vec::new()];
    for turn in [0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1] {
        memory[turn].push(allocators[turn].allocate(75 * MIB, A).unwrap());
        see_each_other();
    }
    for own in [0, 1] {
        oom(allocators[own].allocate(75 * MIB, A).unwrap_err());
        assert!(devices[own].used_bytes() + 30 * MIB <= GIB / 2);
        assert_eq!(memory[own].len(), 6);
    }
}

#[test]
fn alignment_is_kept_and_its_waste_is_counted() {
    for policy in NAMES {
        let device = device(4 * GIB);
        let allocator = over_segments(&device, policy);
        let mut live = Vec::new();
        for bits in 0..=21 {
            for bytes in [1, 300, 512, 5000, 65_536, MIB - 1, 2 * MIB, 5 * MIB + 7] {
                let memory = allocator.allocate_aligned(bytes, 1 << bits, A).unwrap();
                assert_eq!(memory.address() % (1 << bits).max(512), 0, "{policy}");
                live.push(memory);
            }
        }
        let stats = allocator.memory_stats();
        let requested: u64 = live.iter().map(Allocation::len).sum();
        let allocated: u64 = live.iter().map(Allocation::block_bytes).sum();
        assert_eq!(stats.requested_bytes.current, requested);
        assert_eq!(stats.allocated_bytes.current, allocated);
        let free: u64 = holes(&device, &live).iter().sum();
        assert_eq!(
            stats.reserved_bytes.current,
            allocated + free,
            "skipped bytes are free, not lost"
        );
        allocator.audit().unwrap();
    }
}
