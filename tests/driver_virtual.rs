//! What every driver with virtual memory must do; the device's own side of it is in
//! `driver_virtual_device.rs`.
mod subjects;

use aquifer::driver::sim::{Device, Span, Violation};
use aquifer::driver::{Call, Capture, Driver, DriverError, HandleFlags, HandleId, MemoryInfo};
use subjects::{Subject, UNITS};

const PLAIN: HandleFlags = HandleFlags { gpu_direct: false, shareable: false };

/// Runs `claim` on each driver that has virtual memory; with bytes it needs Linux.
fn each(claim: impl Fn(&Subject)) {
    subjects::each(|subject| {
        if cfg!(target_os = "linux") || subject.driver.page_bytes().is_some() {
            claim(subject);
        }
    });
}

/// All that a call which failed must have left alone.
fn state(device: &Device) -> (Vec<(Span, HandleId)>, usize, u64, u64) {
    let (handles, reserved) = (device.live_handles(), device.reserved_address_bytes());
    (device.mappings(), handles, reserved, device.used_bytes())
}

/// Expects that `call` breaks its contract, says so and changes nothing.
fn refused<T: std::fmt::Debug>(
    device: &Device,
    call: Call,
    error: DriverError,
    make: impl FnOnce() -> Result<T, DriverError>,
) {
    let (before, violations) = (state(device), device.violations().len());
    assert_eq!(make().unwrap_err(), error);
    assert_eq!(state(device), before);
    assert_eq!(device.violations()[violations..], [Violation::Refused { call, error }]);
}

/// A range of `pages` pages, with a new handle of a page at each place in `mapped`, all accessible.
fn range_with(subject: &Subject, pages: u64, mapped: &[u64]) -> (u64, Vec<HandleId>) {
    let Subject { driver, unit, .. } = subject;
    let range = driver.reserve(pages * unit).unwrap();
    let put = |&place: &u64| {
        let handle = driver.create(*unit, PLAIN).unwrap();
        driver.map(range + place * unit, handle).unwrap();
        driver.set_access(range + place * unit, *unit, &[]).unwrap();
        handle
    };
    (range, mapped.iter().map(put).collect())
}

#[test]
fn reserved_ranges_are_aligned_disjoint_and_apart_from_allocated_ones() {
    each(|Subject { driver, unit, device, .. }| {
        let sizes = [1, 3, 2, 500].map(|pages| pages * unit);
        let mut ranges = sizes.map(|bytes| (driver.reserve(bytes).unwrap(), bytes)).to_vec();
        ranges.push((driver.allocate(4 * unit).unwrap(), 4 * unit));
        ranges.sort();
        assert!(ranges.iter().all(|(address, _)| address % unit == 0 && *address > 0));
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert_eq!(device.reserved_address_bytes(), 506 * unit);
        assert_eq!(device.used_bytes(), 4 * unit, "addresses are not memory");
        assert_eq!(driver.page_bytes(), Some(*unit));
    });
}

#[test]
fn sizes_that_are_no_whole_pages_are_invalid() {
    each(|Subject { driver, unit, device, .. }| {
        let near_limits = [u64::MAX, u64::MAX - 511, (1 << 63) + 1];
        for bytes in [0, 1, unit - 1, unit + 1].into_iter().chain(near_limits) {
            let invalid = DriverError::InvalidValue;
            let reserve = || driver.reserve(bytes);
            refused(device, Call::Reserve, invalid(Call::Reserve), reserve);
            refused(device, Call::Create, invalid(Call::Create), || driver.create(bytes, PLAIN));
        }
    });
}

#[test]
fn more_than_is_left_is_out_of_memory_and_changes_nothing() {
    each(|Subject { driver, unit, device, .. }| {
        let allocated = driver.allocate(8 * unit).unwrap();
        let handle = driver.create((UNITS - 16) * unit, PLAIN).unwrap();
        let before = state(device);
        for bytes in [9 * unit, 1 << 63, u64::MAX - (unit - 1)] {
            let short = DriverError::OutOfMemory { bytes };
            assert_eq!(driver.create(bytes, PLAIN), Err(short));
            assert_eq!(driver.allocate(bytes), Err(short));
        }
        for bytes in [1 << 63, u64::MAX - (unit - 1)] {
            assert_eq!(driver.reserve(bytes), Err(DriverError::OutOfMemory { bytes }));
        }
        assert_eq!(state(device), before);
        let info = driver.memory_info().unwrap();
        let (total, free) = (UNITS * unit, 8 * unit);
        assert_eq!(info, MemoryInfo { total, free, held_by_process: Some(total - free) });
        driver.release(handle).unwrap();
        driver.free(allocated).unwrap();
        driver.create(UNITS * unit, PLAIN).unwrap();
        assert_eq!(device.peak_used_bytes(), UNITS * unit);
        assert_eq!(device.violations(), []);
    });
}

#[test]
fn memory_is_mapped_opened_moved_and_given_back() {
    each(|Subject { driver, unit, device, .. }| {
        let range = driver.reserve(4 * unit).unwrap();
        let flags = HandleFlags { gpu_direct: true, shareable: true };
        let handle = driver.create(2 * unit, flags).unwrap();
        for place in [range + 2 * unit, range, range + unit] {
            let span = Span { address: place, bytes: 2 * unit };
            driver.map(place, handle).unwrap();
            assert!(!device.is_accessible(span, 0));
            driver.set_access(place, 2 * unit, &[]).unwrap();
            assert!(device.is_accessible(span, 0));
            assert_eq!(device.mappings(), [(span, handle)]);
            assert_eq!(device.physical(handle).map(|p| (p.flags, p.mappings)), Some((flags, 1)));
            driver.unmap(place, 2 * unit).unwrap();
            assert!(!device.is_accessible(span, 0));
        }
        driver.release(handle).unwrap();
        driver.unreserve(range).unwrap();
        assert_eq!(state(device), (vec![], 0, 0, 0));
        assert_eq!((device.physical(handle), device.violations()), (None, vec![]));
    });
}

#[test]
fn a_handle_can_be_at_several_addresses() {
    each(|subject @ Subject { driver, unit, device, .. }| {
        let (range, handles) = range_with(subject, 4, &[0]);
        driver.map(range + 2 * unit, handles[0]).unwrap();
        assert_eq!(device.physical(handles[0]).unwrap().mappings, 2);
        assert_eq!(device.used_bytes(), *unit);
        driver.unmap(range, *unit).unwrap();
        let mapped = DriverError::InvalidValue(Call::ReleaseHandle);
        refused(device, Call::ReleaseHandle, mapped, || driver.release(handles[0]));
        driver.unmap(range + 2 * unit, *unit).unwrap();
        driver.release(handles[0]).unwrap();
    });
}

#[test]
fn a_handle_is_mapped_whole_in_one_range_where_nothing_is() {
    each(|subject @ Subject { driver, unit, device, .. }| {
        let (range, _) = range_with(subject, 5, &[1]);
        let next = driver.reserve(4 * unit).unwrap();
        assert_eq!(next, range + 5 * unit, "the two adjoin");
        let allocated = driver.allocate(2 * unit).unwrap();
        let handle = driver.create(2 * unit, PLAIN).unwrap();
        let wrong = [
            range,
            range + unit,
            range + 2 * unit + 512,
            range + 4 * unit,
            next + 3 * unit,
            next + 4 * unit,
            range - unit,
            allocated,
            0,
            u64::MAX,
            u64::MAX - (unit - 1),
        ];
        let invalid = DriverError::InvalidValue(Call::Map);
        for address in wrong {
            refused(device, Call::Map, invalid, || driver.map(address, handle));
        }
        driver.map(range + 2 * unit, handle).unwrap();
        driver.map(next, handle).unwrap();
    });
}

#[test]
fn only_whole_mappings_without_gaps_are_unmapped_or_opened() {
    each(|subject @ Subject { driver, unit, device, .. }| {
        let (range, _) = range_with(subject, 6, &[1, 4, 5]);
        let (next, _) = range_with(subject, 1, &[0]);
        let pair = driver.create(2 * unit, PLAIN).unwrap();
        driver.map(range + 2 * unit, pair).unwrap();
        assert_eq!(next, range + 6 * unit, "the two adjoin");
        let wrong = [(0, 2), (1, 0), (1, 2), (3, 1), (2, 1), (0, 1), (4, 3), (5, 2), (7, 1)];
        let wrong = wrong.map(|(first, pages)| (range + first * unit, pages * unit));
        let odd =
            [(range + unit, 512), (range + unit + 512, *unit), (0, *unit), (range + unit, !0)];
        for (address, bytes) in wrong.into_iter().chain(odd) {
            let invalid = DriverError::InvalidValue;
            let open = || driver.set_access(address, bytes, &[]);
            refused(device, Call::SetAccess, invalid(Call::SetAccess), open);
            refused(device, Call::Unmap, invalid(Call::Unmap), || driver.unmap(address, bytes));
        }
        driver.set_access(range + unit, 4 * unit, &[]).unwrap();
        assert!(device.is_accessible(Span { address: range + unit, bytes: 5 * unit }, 0));
        driver.unmap(range + 2 * unit, 4 * unit).unwrap();
        assert_eq!(device.mappings().len(), 2);
    });
}

#[test]
fn what_is_in_use_or_unknown_is_not_given_back() {
    each(|subject @ Subject { driver, unit, device, .. }| {
        let (range, handles) = range_with(subject, 3, &[2]);
        let allocated = driver.allocate(*unit).unwrap();
        let unknown = DriverError::UnknownAddress;
        for address in [0, range + unit, range + 3 * unit, allocated, u64::MAX] {
            let unreserve = || driver.unreserve(address);
            refused(device, Call::Unreserve, unknown(address), unreserve);
        }
        let mapped = DriverError::InvalidValue(Call::Unreserve);
        refused(device, Call::Unreserve, mapped, || driver.unreserve(range));
        for wrong in [range, range + 2 * unit] {
            assert_eq!(driver.free(wrong), Err(unknown(wrong)));
        }
        driver.unmap(range + 2 * unit, *unit).unwrap();
        driver.release(handles[0]).unwrap();
        for handle in [handles[0], HandleId(0), HandleId(u64::MAX)] {
            let unknown = DriverError::UnknownHandle(handle);
            refused(device, Call::ReleaseHandle, unknown, || driver.release(handle));
            refused(device, Call::Map, unknown, || driver.map(range, handle));
        }
        driver.unreserve(range).unwrap();
        refused(device, Call::Unreserve, unknown(range), || driver.unreserve(range));
    });
}

#[test]
fn memory_can_be_added_but_not_taken_away_in_a_capture() {
    type Make = fn(&dyn Driver, u64, u64, HandleId) -> DriverError;
    let calls: [(Call, Make); 3] = [
        (Call::Unmap, |driver, range, unit, _| driver.unmap(range, unit).unwrap_err()),
        (Call::ReleaseHandle, |driver, _, _, handle| driver.release(handle).unwrap_err()),
        (Call::Unreserve, |driver, range, _, _| driver.unreserve(range).unwrap_err()),
    ];
    each(|subject @ Subject { driver, unit, device, .. }| {
        let stream = device.create_stream();
        let graph = device.begin_capture(stream).unwrap();
        let (range, handles) = range_with(subject, 2, &[0]);
        assert_eq!(driver.capture(stream), Ok(Capture::Active(graph)));
        device.end_capture(stream).unwrap();
        for (call, make) in calls {
            device.begin_capture(stream).unwrap();
            let before = state(device);
            let error = make(&**driver, range, *unit, handles[0]);
            assert_eq!(error, DriverError::Capturing(call));
            assert_eq!(driver.capture(stream), Ok(Capture::Invalidated));
            assert_eq!(state(device), before);
            device.abort_capture(stream).unwrap();
        }
        assert_eq!(device.violations(), []);
    });
}

#[test]
fn threads_build_and_take_down_ranges_side_by_side() {
    each(|Subject { driver, device, unit, .. }| {
        let hammer = || {
            for round in 0..30 {
                let pages = 1 + round % 3;
                let range = driver.reserve((pages + 1) * unit).unwrap();
                let handles: Vec<HandleId> = (0..pages)
                    .map(|page| {
                        let handle = driver.create(*unit, PLAIN).unwrap();
                        driver.map(range + page * unit, handle).unwrap();
                        handle
                    })
                    .collect();
                driver.set_access(range, pages * unit, &[]).unwrap();
                driver.unmap(range, pages * unit).unwrap();
                handles.iter().for_each(|&handle| driver.release(handle).unwrap());
                driver.unreserve(range).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(hammer);
            }
        });
        assert_eq!(state(device), (vec![], 0, 0, 0));
        assert_eq!(driver.memory_info().unwrap().free, UNITS * unit);
        assert_eq!(device.violations(), []);
    });
}
