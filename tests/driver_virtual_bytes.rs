//! The bytes behind virtual memory: they move with the physical memory, and what is not mapped faults.
#![cfg(target_os = "linux")]
use aquifer::driver::sim::{Backing, Builder, Device, Sim, SimError, Span, Violation, Work};
use aquifer::driver::{Driver, HandleFlags, HandleId, StreamId};
use std::sync::Arc;

const UNIT: u64 = 2 << 20;
const STREAM: StreamId = StreamId(0);

/// A device of 64 pages of `page_bytes`, with bytes.
fn device(page_bytes: u64) -> Arc<Device> {
    let builder: Builder = Sim::builder().capacity(64 * page_bytes).page_bytes(page_bytes);
    builder.backing(Backing::HostBytes).build().unwrap().device(0).unwrap()
}

/// A range of `pages` pages with a handle of a page at each, all accessible.
fn full_range(device: &Device, pages: u64) -> (u64, Vec<HandleId>) {
    let unit = device.page_bytes().unwrap();
    let range = device.reserve(pages * unit).unwrap();
    let put = |page| {
        let handle = device.create(unit, HandleFlags::default()).unwrap();
        device.map(range + page * unit, handle).unwrap();
        handle
    };
    let handles = (0..pages).map(put).collect();
    device.set_access(range, pages * unit, &[]).unwrap();
    (range, handles)
}

fn read(device: &Device, address: u64) -> Result<u8, SimError> {
    let mut byte = [0];
    device.read(address, &mut byte).map(|()| byte[0])
}

#[test]
fn bytes_are_zero_at_first_and_move_with_the_handle() {
    for unit in [64 << 10, UNIT, 16 << 20] {
        let device = device(unit);
        let (range, handles) = full_range(&device, 2);
        assert_eq!(read(&device, range + 2 * unit - 1), Ok(0));
        device.write(range + unit - 2, &[1, 2, 3, 4]).unwrap();
        device.unmap(range, 2 * unit).unwrap();
        device.map(range, handles[1]).unwrap();
        device.map(range + unit, handles[0]).unwrap();
        device.set_access(range, 2 * unit, &[]).unwrap();
        let mut bytes = [0; 2];
        device.read(range, &mut bytes).unwrap();
        assert_eq!(bytes, [3, 4]);
        device.read(range + 2 * unit - 2, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2]);
    }
}

#[test]
fn bytes_of_new_memory_are_zero_where_old_memory_was() {
    let device = device(UNIT);
    for _ in 0..3 {
        let (range, handles) = full_range(&device, 4);
        let all = Span { address: range, bytes: 4 * UNIT };
        device.launch(STREAM, Work::check(all, 0)).unwrap();
        device.launch(STREAM, Work::fill(all, 7)).unwrap();
        device.launch(STREAM, Work::check(all, 7)).unwrap();
        device.run_all();
        device.unmap(range, 4 * UNIT).unwrap();
        handles.into_iter().for_each(|handle| device.release(handle).unwrap());
        device.unreserve(range).unwrap();
    }
    assert_eq!(device.violations(), []);
}

#[test]
fn bytes_are_refused_where_nothing_is_mapped_or_nobody_was_let_in() {
    let device = device(UNIT);
    let (range, handles) = full_range(&device, 3);
    device.unmap(range + UNIT, UNIT).unwrap();
    let refused = |address, bytes| {
        let span = Span { address, bytes };
        assert_eq!(device.pointer(span), Err(SimError::OutOfBounds(span)));
        let mut into = vec![0; bytes as usize];
        assert_eq!(device.read(address, &mut into), Err(SimError::OutOfBounds(span)));
        assert_eq!(device.write(address, &into), Err(SimError::OutOfBounds(span)));
    };
    let nowhere = || {
        refused(range + UNIT, 1);
        refused(range + UNIT - 1, 2);
        refused(range + 2 * UNIT - 1, 2);
        refused(range, 3 * UNIT);
    };
    nowhere();
    device.map(range + UNIT, handles[1]).unwrap();
    nowhere();
    device.set_access(range + UNIT, UNIT, &[]).unwrap();
    refused(range + 3 * UNIT - 1, 2);
    refused(range - 1, 2);
    assert_eq!(read(&device, range + UNIT), Ok(0));
}

#[test]
fn bytes_of_one_handle_are_the_same_at_all_its_addresses() {
    let device = device(UNIT);
    let (range, handles) = full_range(&device, 1);
    let other = device.reserve(UNIT).unwrap();
    device.map(other, handles[0]).unwrap();
    device.set_access(other, UNIT, &[]).unwrap();
    device.write(range + 9, &[42]).unwrap();
    assert_eq!(read(&device, other + 9), Ok(42));
}

#[test]
fn pointers_hold_across_handles_and_follow_what_is_mapped() {
    let device = device(UNIT);
    let (range, handles) = full_range(&device, 2);
    let span = Span { address: range, bytes: 2 * UNIT };
    let pointer = device.pointer(span).unwrap();
    assert_eq!(pointer.addr() % 4096, 0);
    // SAFETY: the bytes are mapped and open, and no one else touches them.
    unsafe { pointer.wrapping_add(UNIT as usize - 1).cast::<[u8; 2]>().write([5, 6]) };
    assert_eq!((read(&device, range + UNIT - 1), read(&device, range + UNIT)), (Ok(5), Ok(6)));
    device.unmap(range, UNIT).unwrap();
    device.unmap(range + UNIT, UNIT).unwrap();
    device.map(range, handles[1]).unwrap();
    device.set_access(range, UNIT, &[]).unwrap();
    assert_eq!(device.pointer(Span { address: range, bytes: UNIT }), Ok(pointer));
    // SAFETY: as above.
    assert_eq!(unsafe { *pointer }, 6);
}

#[test]
fn bytes_of_allocated_and_mapped_memory_are_copied_to_and_fro() {
    let device = device(UNIT);
    let (range, _) = full_range(&device, 2);
    let allocated = device.allocate(UNIT).unwrap();
    let middle = Span { address: range + UNIT - 3, bytes: 6 };
    device.launch(STREAM, Work::fill(middle, 7)).unwrap();
    device.launch(STREAM, Work::copy(middle, allocated)).unwrap();
    let back = Span { address: allocated, bytes: 6 };
    device.launch(STREAM, Work::copy(back, range + 100)).unwrap();
    device.launch(STREAM, Work::check(Span { address: range + 100, bytes: 6 }, 7)).unwrap();
    device.launch(STREAM, Work::check(Span { address: range + 105, bytes: 2 }, 7)).unwrap();
    device.run_all();
    let (stream, address) = (STREAM, range + 106);
    let wrong = Violation::WrongByte { stream, address, expected: 7, found: 0 };
    assert_eq!(device.violations(), [wrong]);
}

#[test]
fn work_on_memory_unmapped_under_it_leaves_the_bytes_alone() {
    let device = device(UNIT);
    let (range, handles) = full_range(&device, 2);
    let span = Span { address: range, bytes: 2 * UNIT };
    device.launch(STREAM, Work::fill(span, 1)).unwrap();
    device.unmap(range, UNIT).unwrap();
    device.run_all();
    assert_eq!(read(&device, range + UNIT), Ok(0));
    let part = Span { address: range, bytes: UNIT };
    let expected = [
        Violation::UnmappedInUse { span: part, uses: 1 },
        Violation::DeadAtCompletion { stream: STREAM, span },
    ];
    assert_eq!((device.violations(), handles.len()), (expected.to_vec(), 2));
}

/// Which signal ends a forked child that reads the byte at `pointer`, if any does.
fn signal_of_reading(pointer: *const u8) -> Option<i32> {
    // SAFETY: the child reads one byte and ends, and neither allocates nor locks.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: no preconditions. The handler that reports overflown stacks is not wanted.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            // SAFETY: whether the byte can be read is what is tested; where not, the child dies.
            let _ = unsafe { pointer.read_volatile() };
            // SAFETY: no preconditions; nothing of the parent's is torn down.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(waited, child);
            libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
        }
    }
}

#[test]
fn a_touch_faults_where_nothing_is_mapped_or_nobody_was_let_in() {
    let device = device(UNIT);
    let (range, handles) = full_range(&device, 3);
    let start = device.pointer(Span { address: range, bytes: 3 * UNIT }).unwrap();
    let signals = || {
        let edges = [UNIT - 1, UNIT, 2 * UNIT - 1, 2 * UNIT];
        edges.map(|at| signal_of_reading(start.wrapping_add(at as usize)))
    };
    let faults = [None, Some(libc::SIGSEGV), Some(libc::SIGSEGV), None];
    assert_eq!(signals(), [None; 4]);
    device.unmap(range + UNIT, UNIT).unwrap();
    assert_eq!(signals(), faults);
    device.map(range + UNIT, handles[1]).unwrap();
    assert_eq!(signals(), faults);
    device.set_access(range + UNIT, UNIT, &[]).unwrap();
    assert_eq!(signals(), [None; 4]);
}
