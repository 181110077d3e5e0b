//! How much paged backing holds, of memory and of addresses, and where it is used at all.
use aquifer::driver::sim::{Device, Sim, Span, Work};
use aquifer::driver::{Call, HandleId, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing, BuildError, Builder, Cap, Fit};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const PAGE: u64 = 2 * MIB;
const A: StreamId = StreamId(0);

fn device(capacity: u64) -> Arc<Device> {
    Sim::builder().capacity(capacity).build().unwrap().device(0).unwrap()
}

fn paged(device: &Arc<Device>, more: impl FnOnce(Builder) -> Builder) -> Allocator {
    more(Allocator::builder(device.clone()).backing(Backing::Paged)).build().unwrap()
}

fn assert_gone(device: &Device) {
    assert_eq!((device.used_bytes(), device.live_handles()), (0, 0));
    assert_eq!((device.reserved_address_bytes(), device.live_events()), (0, 0));
    assert_eq!(device.violations(), []);
}

/// What is mapped between `from` and `from + bytes`.
fn mappings(device: &Device, from: u64, bytes: u64) -> Vec<(Span, HandleId)> {
    let inside = |m: &(Span, HandleId)| (from..from + bytes).contains(&m.0.address);
    device.mappings().into_iter().filter(inside).collect()
}

#[test]
fn pages_that_are_kept_stay_where_they_are() {
    let device = device(64 * MIB);
    let allocator = paged(&device, |b| b);
    let pool = allocator.pool("graph");
    pool.keep_pages(true);
    let blocks = [10, 3, 7].map(|n| pool.allocate(n * MIB, A).unwrap());
    let first = blocks.iter().map(Allocation::address).min().unwrap() / PAGE * PAGE;
    let before = mappings(&device, first, GIB);
    assert!(before.len() >= 10, "{} pages", before.len());
    drop(blocks);
    // More than the rest, twice, on a stream of its own and on the pool's.
    for stream in [device.create_stream(), A] {
        assert!(matches!(allocator.allocate(50 * MIB, stream), Err(AllocError::OutOfMemory(_))));
        drop(allocator.allocate(40 * MIB, stream).unwrap());
    }
    allocator.empty_cache().unwrap();
    pool.empty_cache().unwrap();
    assert_eq!(mappings(&device, first, GIB), before);
    assert_eq!(device.used_bytes(), before.len() as u64 * PAGE);
    let again = pool.allocate(20 * MIB, A).unwrap();
    assert_eq!(mappings(&device, first, GIB), before);
    drop(again);
    pool.keep_pages(false);
    drop(allocator.allocate(60 * MIB, A).unwrap());
    assert_ne!(mappings(&device, first, GIB), before);
    allocator.empty_cache().unwrap();
    assert_eq!(device.used_bytes(), 0);
    drop((pool, allocator));
    assert_gone(&device);
}

#[test]
fn kept_pages_go_back_with_their_pool() {
    for outlives in [false, true] {
        let device = device(64 * MIB);
        let allocator = paged(&device, |b| b);
        let pool = allocator.pool("graph");
        pool.keep_pages(true);
        let [large, small] = [20, 1].map(|n| pool.allocate(n * MIB, A).unwrap());
        drop(large);
        if !outlives {
            drop(small);
            drop(pool);
            assert_eq!(device.used_bytes(), 0);
        } else {
            drop(pool);
            assert!(device.used_bytes() <= 2 * PAGE, "what is idle goes with the pool");
            drop(small);
            assert_eq!(device.used_bytes(), 0);
        }
        drop(allocator);
        assert_gone(&device);
    }
}

/// A range has twice the device's memory at first, later ones less; all together 64 times and four
/// requests for each.
#[test]
fn a_thousand_streams_have_addresses_enough() {
    let device = device(16 * GIB);
    let allocator = paged(&device, |b| b);
    let bytes = 5 * MIB;
    for i in 0..1000 {
        let stream = device.create_stream();
        let memory = allocator.allocate(bytes + i, stream).unwrap_or_else(|e| panic!("{i}: {e}"));
        device.launch(stream, Work::unit()).unwrap();
        drop(memory);
        device.step();
    }
    let bound = 64 * 16 * GIB + 1000 * 4 * (bytes + 4 * PAGE);
    let reserved = device.reserved_address_bytes();
    assert!(reserved <= bound, "{} GiB of addresses", reserved / GIB);
    allocator.audit().unwrap();
    assert!(device.peak_used_bytes() < 64 * MIB, "idle pages go from stream to stream");
    drop(allocator);
    assert_gone(&device);
}

/// Ranges become smaller where addresses are few; where there are none the request fails, and no more.
#[test]
fn few_addresses_are_shared_or_refused() {
    for (addresses, least) in [(0, 0), (PAGE, 0), (32 * MIB, 1), (GIB, 2), (4 * GIB, 8)] {
        let sim = Sim::builder().capacity(256 * MIB).address_bytes(addresses);
        let device = sim.build().unwrap().device(0).unwrap();
        let allocator = paged(&device, |b| b);
        let mut served = 0;
        for i in 0..100 {
            let stream = device.create_stream();
            match allocator.allocate(3 * MIB + i, stream) {
                Ok(_memory) => served += 1,
                Err(AllocError::OutOfMemory(report)) => assert_eq!(report.bytes, 3 * MIB + i),
                Err(error) => panic!("{error}"),
            }
            allocator.audit().unwrap();
        }
        assert!(served >= least, "{served} of 100 streams had {addresses} addresses");
        assert!(device.reserved_address_bytes() <= addresses);
        drop(allocator);
        assert_gone(&device);
    }
}

#[test]
fn a_device_without_virtual_memory_has_segments() {
    let sim = Sim::builder().capacity(64 * MIB).virtual_memory(false).build().unwrap();
    let device = sim.device(0).unwrap();
    let allocator = Allocator::builder(device.clone()).backing(Backing::Auto).build().unwrap();
    drop(allocator.allocate(MIB, A).unwrap());
    let made = device.counts();
    assert_eq!((made.made(Call::Allocate), made.made(Call::Reserve)), (1, 0));
    let paged = Allocator::builder(device).backing(Backing::Paged).build();
    assert!(matches!(paged, Err(BuildError::NoVirtualMemory)));
}

/// What is given back at once has nothing to be moved.
#[test]
fn a_policy_that_keeps_nothing_has_segments_unless_told() {
    for (backing, segments) in [(Backing::Auto, 1), (Backing::Segments, 1), (Backing::Paged, 0)] {
        let device = device(64 * MIB);
        let builder = Allocator::builder(device.clone()).policy("never-cache").backing(backing);
        let allocator = builder.build().unwrap();
        drop(allocator.allocate(MIB, A).unwrap());
        assert_eq!(device.counts().made(Call::Allocate), segments, "{backing:?}");
        drop(allocator);
        assert_gone(&device);
    }
    let device = device(64 * MIB);
    drop(Allocator::new(device.clone()).unwrap().allocate(MIB, A).unwrap());
    assert_eq!(device.counts().made(Call::Allocate), 0, "paged unless said otherwise");
}

/// Steps in which no size comes twice, on two streams.
fn changing_sizes(device: &Arc<Device>, allocator: &Allocator, steps: u64) {
    let streams = [A, device.create_stream()];
    let mut seed = 7u64;
    for step in 0..steps {
        allocator.mark("step");
        let mut live = Vec::new();
        for i in 0..40 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = 100_000 + (seed >> 33) % (12 * MIB);
            let memory = allocator.allocate(bytes, streams[(i + step) as usize % 2]).unwrap();
            device.launch(memory.stream(), Work::unit()).unwrap();
            live.push(memory);
            if i % 3 == 2 {
                drop(live.swap_remove((seed % live.len() as u64) as usize));
            }
        }
        device.run_all();
    }
}

#[test]
fn slack_bounds_what_is_held_above_the_peak_in_use() {
    for (slack, over) in [(None, 1.05), (Some(0.0), 1.0), (Some(0.05), 1.05), (Some(0.5), 1.5)] {
        let device = device(4 * GIB);
        // A budget that is never spent: else slack rises.
        let budget = std::time::Duration::from_secs(3600);
        let allocator = paged(&device, |b| {
            let b = b.step_budget(budget);
            if let Some(slack) = slack { b.slack(slack) } else { b }
        });
        changing_sizes(&device, &allocator, 60);
        let (held, used) = (allocator.max_memory_reserved(), allocator.max_memory_active());
        let limit = (used as f64 * over) as u64 + 6 * PAGE;
        assert!(held <= limit, "slack {slack:?}: {held} held, {used} used");
        assert_eq!(held, device.peak_used_bytes());
    }
}

/// Under a cap a request takes the pages of others at once.
#[test]
fn a_cap_moves_pages_rather_than_fail() {
    for slack in [None, Some(100.0)] {
        let device = device(4 * GIB);
        let allocator = paged(&device, |b| {
            let b = b.cap(Cap::bytes(100 * MIB));
            if let Some(slack) = slack { b.slack(slack) } else { b }
        });
        for round in 0..20 {
            let stream = device.create_stream();
            let memory = allocator.allocate(90 * MIB, stream).unwrap();
            device.launch(stream, Work::unit()).unwrap();
            drop(memory);
            let created = device.counts().made(Call::Create) - device.counts().failed(Call::Create);
            assert!(created <= 50, "round {round}: {created} pages");
        }
        assert!(device.peak_used_bytes() <= 100 * MIB);
        assert!(matches!(allocator.allocate(101 * MIB, A), Err(AllocError::OutOfMemory(_))));
        device.run_all();
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn pages_that_are_kept_are_said_to_be_nobody_elses() {
    let device = device(64 * MIB);
    let allocator = paged(&device, |b| b);
    let pool = allocator.pool("graph");
    pool.keep_pages(true);
    drop(pool.allocate(40 * MIB, A).unwrap());
    assert_eq!(allocator.would_fit(30 * MIB, A), Fit::No);
    let Err(AllocError::OutOfMemory(report)) = allocator.allocate(30 * MIB, A) else {
        panic!("40 of 64 MiB are kept")
    };
    assert_eq!(
        (report.releasable, report.fits_now, report.fits_after_trim),
        (0, 24 * MIB, 24 * MIB)
    );
    assert_eq!(allocator.empty_cache().unwrap().released_bytes, 0);
    pool.keep_pages(false);
    assert_eq!(allocator.would_fit(30 * MIB, A), Fit::Releasing);
    drop(allocator.allocate(30 * MIB, A).unwrap());
}

#[test]
fn what_waits_in_a_front_cache_fits_elsewhere() {
    for backing in [Backing::Paged, Backing::Segments] {
        let device = device(64 * MIB);
        let allocator = Allocator::builder(device.clone()).backing(backing).build().unwrap();
        drop(allocator.allocate(40 * MIB, A).unwrap());
        let other = device.create_stream();
        assert_eq!(allocator.would_fit(50 * MIB, other), Fit::Releasing, "{backing:?}");
        drop(allocator.allocate(50 * MIB, other).unwrap());
    }
}

/// Half a page is of no use.
#[test]
fn what_fits_is_counted_in_pages() {
    let sim = Sim::builder().capacity(40 * MIB).page_bytes(16 * MIB).build().unwrap();
    let device = sim.device(0).unwrap();
    let allocator = paged(&device, |b| b);
    let all = allocator.allocate(32 * MIB, A).unwrap();
    assert_eq!(allocator.would_fit(MIB, A), Fit::No);
    let Err(AllocError::OutOfMemory(report)) = allocator.allocate(MIB, A) else {
        panic!("8 MiB are no page")
    };
    assert_eq!((report.fits_now, report.fits_after_trim), (0, 0));
    drop(all);
    assert_eq!(allocator.would_fit(MIB, A), Fit::Cached);
}

/// A cap that came later than the memory: pages under it move as they are, but segments go back first, and
/// what is over the cap is not had again.
#[test]
fn what_is_over_a_cap_does_not_fit_again() {
    for (backing, fits) in [(Backing::Paged, true), (Backing::Segments, false)] {
        let device = device(64 * MIB);
        let builder = Allocator::builder(device.clone()).backing(backing).share_streams(false);
        let allocator = builder.build().unwrap();
        let kept = allocator.allocate(40 * MIB, A).unwrap();
        drop(allocator.allocate(16 * MIB, device.create_stream()).unwrap());
        allocator.set_cap(Some(Cap::bytes(44 * MIB))).unwrap();
        let fit = allocator.would_fit(6 * MIB, A);
        assert_eq!(fit.fits(), fits, "{backing:?}: {fit:?}");
        assert_eq!(allocator.allocate(6 * MIB, A).is_ok(), fits, "{backing:?}");
        drop(kept);
    }
}
