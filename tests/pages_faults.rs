//! Calls on virtual memory that fail in the middle of something: the books stay right, and all memory
//! comes back.
use aquifer::driver::sim::{Device, Sim, Span, Work};
use aquifer::driver::{Call, DriverError, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(0);

fn paged(capacity: u64) -> (Arc<Device>, Allocator) {
    let device = Sim::builder().capacity(capacity).build().unwrap().device(0).unwrap();
    let builder = Allocator::builder(device.clone()).backing(Backing::Paged);
    (device, builder.build().unwrap())
}

fn failed(call: Call) -> DriverError {
    DriverError::Failed { call, code: 999 }
}

fn assert_sound(device: &Device, allocator: &Allocator) {
    allocator.audit().unwrap();
    assert_eq!(allocator.memory_reserved(), device.used_bytes());
    assert_eq!(device.violations(), []);
}

/// After faults: the whole device can be had, and all of it goes back.
fn assert_recovers(device: &Arc<Device>, allocator: Allocator, live: Vec<Allocation>) {
    device.clear_faults();
    for memory in &live {
        let span = Span { address: memory.address(), bytes: memory.len() };
        assert!(device.is_accessible(span, 0), "{span}");
    }
    let stream = live.first().map_or(A, Allocation::stream);
    drop(live);
    let free = allocator.allocate(60 * MIB, stream).expect("there is nothing else");
    let span = Span { address: free.address(), bytes: free.len() };
    device.launch(stream, Work::touch(span)).unwrap();
    drop(free);
    assert_sound(device, &allocator);
    allocator.empty_cache().unwrap();
    assert_eq!(device.used_bytes(), 0);
    assert_sound(device, &allocator);
    drop(allocator);
    assert_eq!((device.used_bytes(), device.live_handles()), (0, 0));
    assert_eq!((device.reserved_address_bytes(), device.live_events()), (0, 0));
    assert_eq!(device.violations(), []);
}

/// Holes between blocks, so that a request over all of them maps several runs: the blocks that stay.
fn with_holes(device: &Device, allocator: &Allocator) -> Vec<Allocation> {
    let b = device.create_stream();
    let mut blocks: Vec<_> = (0..15).map(|_| allocator.allocate(4 * MIB, b).unwrap()).collect();
    let mut n = 0;
    blocks.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    // Takes the pages of the holes.
    drop(allocator.allocate(32 * MIB, A).unwrap());
    blocks
}

/// Each call that a move or a growth makes fails, once or from then on, at each of its times.
#[test]
fn each_call_may_fail_midway() {
    for call in [Call::SetAccess, Call::Map, Call::Create, Call::Unmap, Call::Reserve] {
        for n in 1..=12 {
            for forever in [false, true] {
                let (device, allocator) = paged(64 * MIB);
                let mut live = with_holes(&device, &allocator);
                device.fail_call(call, n, failed(call));
                if forever {
                    (n + 1..n + 40).for_each(|n| device.fail_call(call, n, failed(call)));
                }
                for stream in [live[0].stream(), A, device.create_stream()] {
                    for bytes in [4 * MIB, 9 * MIB, 20 * MIB] {
                        match allocator.allocate(bytes, stream) {
                            Ok(memory) => live.push(memory),
                            Err(AllocError::Driver(error)) => assert_eq!(error, failed(call)),
                            Err(AllocError::OutOfMemory(_)) => {}
                            Err(error) => panic!("{call}, {n}: {error}"),
                        }
                        assert_sound(&device, &allocator);
                        if live.len() > 9 {
                            drop(live.remove(0));
                        }
                    }
                }
                assert_recovers(&device, allocator, live);
            }
        }
    }
}

/// A refusal for want of memory in the middle of a row of pages is no driver failure.
#[test]
fn a_refusal_midway_takes_pages_instead() {
    for n in 1..=8 {
        let (device, allocator) = paged(64 * MIB);
        let b = device.create_stream();
        drop(allocator.allocate(32 * MIB, b).unwrap());
        device.fail_call(Call::Create, n, DriverError::OutOfMemory { bytes: 2 * MIB });
        let memory = allocator.allocate(40 * MIB, A).unwrap_or_else(|e| panic!("{n}: {e}"));
        assert_sound(&device, &allocator);
        assert!(allocator.memory_reserved() <= 64 * MIB);
        assert_recovers(&device, allocator, vec![memory]);
    }
}

/// What was mapped before access failed cannot be unmapped either, for a while: its addresses are left
/// alone until it can, also by a program that asks for pages ahead.
#[test]
fn addresses_that_cannot_be_unmapped_are_left_alone() {
    for steps in [0, 8] {
        let (device, allocator) = paged(64 * MIB);
        (0..steps).for_each(|_| allocator.mark("step"));
        let kept = allocator.allocate(2 * MIB, A).unwrap();
        device.fail_call(Call::SetAccess, 1, failed(Call::SetAccess));
        device.fail_all(Call::Unmap);
        let error = allocator.allocate(8 * MIB, A).unwrap_err();
        assert_eq!(error, AllocError::Driver(failed(Call::SetAccess)));
        assert_sound(&device, &allocator);
        let mut live = vec![kept];
        for bytes in [MIB, 2 * MIB, 8 * MIB, 3 * MIB] {
            live.extend(allocator.allocate(bytes, A).ok());
            assert_sound(&device, &allocator);
        }
        assert_recovers(&device, allocator, live);
    }
}

/// Pages asked for ahead would lie where a run is stuck.
#[test]
fn pages_ahead_go_around_what_is_stuck() {
    let device = Sim::builder().capacity(1 << 30).build().unwrap().device(0).unwrap();
    let builder = Allocator::builder(device.clone()).backing(Backing::Paged).slack(10.0);
    let allocator = builder.build().unwrap();
    let b = device.create_stream();
    let filler = allocator.allocate(500 * MIB, A).unwrap();
    let [kept, gap, end] = [2, 8, 2].map(|n| allocator.allocate(n * MIB, b).unwrap());
    drop(gap);
    allocator.empty_cache().unwrap();
    drop(end);
    device.fail_call(Call::SetAccess, 1, failed(Call::SetAccess));
    device.fail_call(Call::Unmap, 1, failed(Call::Unmap));
    allocator.allocate(6 * MIB, b).unwrap_err();
    // What is free behind the stuck run goes; the run itself stays stuck for one more request.
    allocator.empty_cache().unwrap();
    device.fail_call(Call::Unmap, 1, failed(Call::Unmap));
    (0..8).for_each(|_| allocator.mark("step"));
    let more = allocator.allocate(4 * MIB, b).unwrap();
    assert_sound(&device, &allocator);
    drop(filler);
    assert_recovers(&device, allocator, vec![kept, more]);
}

/// While unmapping fails nothing can be moved or given back; that is said, and nothing is lost.
#[test]
fn an_unmap_that_fails_for_a_while_loses_nothing() {
    let (device, allocator) = paged(64 * MIB);
    let b = device.create_stream();
    drop(allocator.allocate(60 * MIB, b).unwrap());
    device.fail_all(Call::Unmap);
    assert!(matches!(allocator.allocate(32 * MIB, A), Err(AllocError::OutOfMemory(_))));
    assert_sound(&device, &allocator);
    assert_eq!(allocator.last_driver_error(), Some(failed(Call::Unmap)));
    assert_eq!(allocator.empty_cache(), Err(AllocError::Driver(failed(Call::Unmap))));
    assert_sound(&device, &allocator);
    let again = allocator.allocate(60 * MIB, b).expect("it is all still mapped there");
    assert_recovers(&device, allocator, vec![again]);
}

/// The allocator and its pools go while the driver takes nothing back; a later pool's end finds it.
#[test]
fn what_a_pool_could_not_give_back_goes_with_a_later_one() {
    for call in [Call::Unmap, Call::ReleaseHandle, Call::Unreserve, Call::WaitEvent] {
        let (device, allocator) = paged(64 * MIB);
        let pool = allocator.pool("short");
        let memory = pool.allocate(20 * MIB, A).unwrap();
        let span = Span { address: memory.address(), bytes: memory.len() };
        device.launch(A, Work::touch(span)).unwrap();
        device.fail_all(call);
        drop((memory, pool));
        assert_sound(&device, &allocator);
        assert!(allocator.memory_stats().num_driver_errors > 0, "{call}");
        assert_recovers(&device, allocator, Vec::new());
    }
}

/// The end of everything, with each call failing once.
#[test]
fn the_end_comes_through_one_failure() {
    for n in 1..=40 {
        let (device, allocator) = paged(64 * MIB);
        let live = with_holes(&device, &allocator);
        let late = allocator.allocate(3 * MIB, A).unwrap();
        device.fail_at(n);
        drop(live);
        drop(allocator);
        drop(late);
        device.clear_faults();
        assert_eq!((device.used_bytes(), device.live_handles()), (0, 0), "call {n}");
        assert_eq!((device.reserved_address_bytes(), device.live_events()), (0, 0), "call {n}");
        assert_eq!(device.violations(), []);
    }
}

/// Where no event can mark a stream that is gone, the device is waited for; an older event of that stream
/// that nothing can be learned of does not make it be waited for again and again.
#[test]
fn an_event_that_cannot_be_asked_about_makes_no_endless_wait() {
    let (device, allocator) = paged(64 * MIB);
    let old = device.create_stream();
    drop(allocator.allocate(20 * MIB, old).unwrap());
    device.launch(old, Work::unit()).unwrap();
    device.fail_all(Call::QueryEvent);
    device.fail_call(Call::WaitEvent, 1, failed(Call::WaitEvent));
    let answer = allocator.allocate(60 * MIB, A);
    assert!(matches!(answer, Err(AllocError::Driver(_))), "an event is left behind");
    // The first of these frees is marked, the second is not.
    (0..2).for_each(|_| drop(allocator.allocate(20 * MIB, old).unwrap()));
    device.destroy_stream(old).unwrap();
    // Else the test would not end.
    device.fail_call(Call::Synchronize, 10, failed(Call::Synchronize));
    let answer = allocator.allocate(100 * MIB, A);
    assert!(matches!(answer, Err(AllocError::OutOfMemory(_))), "{answer:?}");
    assert_sound(&device, &allocator);
    drop(allocator.allocate(60 * MIB, A).expect("idle pages are known to be done with"));
    assert_recovers(&device, allocator, Vec::new());
}
