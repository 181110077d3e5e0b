//! A forked child of a process that has an allocator: refused or a counted no-op, never a hang, and the
//! parent notices nothing. In a test binary of its own, since a fork takes one thread along.
#![cfg(unix)]
use aquifer::driver::StreamId;
use aquifer::driver::sim::{Device, Sim};
use aquifer::{AllocError, Allocator, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);
const NEW_STREAM: StreamId = StreamId(77);
/// A child that hangs is ended by a signal after this many seconds, and then has no exit code.
const CHILD_SECONDS: u32 = 3;

fn device() -> Arc<Device> {
    Sim::builder().capacity(256 * MIB).build().unwrap().device(0).unwrap()
}

/// Runs `part` in a forked child; its exit code, 0 where every claim holds.
fn in_child(part: impl FnOnce() -> Result<(), &'static str>) -> Option<i32> {
    // SAFETY: the child calls only `part` and `_exit`; what `part` may do in it is what is tested.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: no preconditions.
            unsafe { libc::alarm(CHILD_SECONDS) };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(part));
            let code = match ended {
                Ok(Ok(())) => 0,
                Ok(Err(what)) => {
                    eprintln!("in the child: {what}");
                    1
                }
                Err(_) => 2,
            };
            // SAFETY: no preconditions; nothing of the parent's is torn down.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(waited, child);
            libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
        }
    }
}

fn claim(holds: bool, what: &'static str) -> Result<(), &'static str> {
    holds.then_some(()).ok_or(what)
}

fn refused<T>(result: Result<T, AllocError>) -> bool {
    matches!(result, Err(AllocError::Forked))
}

/// Everything a program may ask in the child.
fn ask_everything(allocator: &Allocator, pool: &Pool) -> Result<(), &'static str> {
    claim(refused(allocator.allocate(1000, STREAM)), "allocated on a stream of the parent")?;
    claim(refused(allocator.allocate(1000, NEW_STREAM)), "allocated on a new stream")?;
    claim(refused(pool.allocate(1000, STREAM)), "allocated from a pool of the parent")?;
    claim(refused(pool.allocate(1000, NEW_STREAM)), "allocated from a pool on a new stream")?;
    claim(refused(allocator.pool("new").allocate(1000, STREAM)), "allocated from a new pool")?;
    claim(refused(allocator.empty_cache()), "emptied the cache")?;
    claim(refused(pool.empty_cache()), "emptied the cache of a pool")?;
    claim(refused(allocator.free_raw(12_345)), "freed an address")?;
    claim(refused(allocator.record_stream_raw(12_345, STREAM)), "recorded a stream")?;
    claim(!allocator.would_fit(1000, STREAM).fits(), "something would fit")?;
    claim(allocator.memory_allocated() == 0, "something is allocated")?;
    let _numbers = (allocator.memory_stats(), allocator.memory_summary(), allocator.tag_stats());
    let _sizes = (allocator.memory_reserved(), allocator.max_memory_reserved());
    let _of_pool = (pool.memory_allocated(), pool.memory_reserved());
    let _texts = (allocator.sites(), format!("{allocator:?} {pool:?}"));
    let _ignored = (allocator.audit(), allocator.set_cap(None), allocator.last_driver_error());
    allocator.reset_peak();
    allocator.mark("step");
    allocator.start_recording(16);
    allocator.write_trace(&mut Vec::new()).ok();
    allocator.stop_recording();
    Ok(())
}

#[test]
fn a_child_is_refused_and_frees_are_counted_no_ops() {
    let device = device();
    let allocator = Allocator::new(device.clone()).unwrap();
    let pool = allocator.pool("parent's");
    let kept = allocator.allocate(3 * MIB, STREAM).unwrap();
    let freed_in_child = allocator.allocate(1000, STREAM).unwrap();
    let of_pool = pool.allocate(1000, STREAM).unwrap();
    let calls = device.calls_made();
    let before = allocator.memory_stats();

    let mut given = Some((freed_in_child, of_pool));
    let code = in_child(|| {
        let (one, other) = given.take().expect("the child has its own copy");
        claim(one.record_stream(StreamId(1)) == Err(AllocError::Forked), "recorded a stream")?;
        ask_everything(&allocator, &pool)?;
        claim((one.len(), one.block_bytes()) == (1000, 1000), "an allocation has no length")?;
        drop(one);
        let _address = other.into_raw();
        claim(device.calls_made() == calls, "the driver was called")?;
        let freed = allocator.memory_stats().num_forked_frees;
        claim(freed == 1, "the free was not counted")
    });
    assert_eq!(code, Some(0), "the child's code");

    assert_eq!(allocator.memory_stats(), before, "the parent notices nothing");
    allocator.audit().unwrap();
    drop((kept, given, pool, allocator));
    assert_eq!(device.used_bytes(), 0);
}

#[test]
fn a_child_may_drop_everything_it_inherited() {
    let device = device();
    let allocator = Allocator::new(device.clone()).unwrap();
    let memory = allocator.allocate(1000, STREAM).unwrap();
    let mut all = Some((memory, allocator));
    let code = in_child(|| {
        drop(all.take());
        claim(device.used_bytes() > 0, "the child gave back what is the parent's")
    });
    assert_eq!(code, Some(0), "the child's code");
    drop(all.take());
    assert_eq!(device.used_bytes(), 0);
}

#[test]
fn a_child_builds_an_allocator_of_its_own() {
    let (device, own) = (device(), device());
    let allocator = Allocator::new(device.clone()).unwrap();
    drop(allocator.allocate(1000, STREAM).unwrap());
    let code = in_child(|| {
        let allocator = Allocator::new(own.clone()).map_err(|_| "not built")?;
        let memory = allocator.allocate(1000, STREAM).map_err(|_| "not allocated")?;
        claim(allocator.audit().is_ok(), "the books are wrong")?;
        drop((memory, allocator));
        claim(own.used_bytes() == 0, "memory is left")
    });
    assert_eq!(code, Some(0), "the child's code");
    allocator.audit().unwrap();
}

/// Tells threads to stop, also where a claim fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Locks that another thread of the parent holds at the fork are never free in the child.
#[test]
fn a_child_does_not_hang_on_locks_of_other_threads() {
    let device = device();
    let allocator = Allocator::new(device.clone()).unwrap();
    let pool = allocator.pool("parent's");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        for n in 0..2 {
            let (allocator, pool, stop) = (&allocator, &pool, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(allocator.allocate(700 + n, STREAM));
                    drop(pool.allocate(3 * MIB, StreamId(n)));
                    allocator.pool("short").allocate(1, STREAM).ok();
                    allocator.empty_cache().ok();
                    allocator.memory_stats();
                }
            });
        }
        for _ in 0..30 {
            let mine = allocator.allocate(1000, STREAM).unwrap();
            let mut given = Some(mine);
            let code = in_child(|| {
                drop(given.take());
                ask_everything(&allocator, &pool)
            });
            assert_eq!(code, Some(0), "the child's code; none where it hung");
        }
    });
    allocator.audit().unwrap();
}
