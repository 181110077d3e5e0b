//! What every driver must do with memory, events, streams and captures; virtual memory is in
//! `driver_virtual.rs`.
mod subjects;

use aquifer::driver::sim::Work;
use aquifer::driver::{Call, Capture, Driver, DriverError, EventId, StreamId};
use subjects::{Subject, UNITS};

/// Runs `claim` on each driver there is, and expects no misuse of memory.
fn each(claim: impl Fn(&Subject)) {
    subjects::each(|subject| {
        claim(subject);
        assert_eq!(subject.device.violations(), [], "{}", subject.name);
    });
}

#[test]
fn allocated_ranges_are_aligned_and_disjoint() {
    each(|Subject { driver, unit, .. }| {
        let mut ranges: Vec<(u64, u64)> = [1, 3, 2, 5, 1]
            .map(|units| (driver.allocate(units * unit).unwrap(), units * unit))
            .to_vec();
        ranges.sort();
        let alignment = driver.granularity().min(2 << 20);
        assert!(ranges.iter().all(|(address, _)| address % alignment == 0 && *address > 0));
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    });
}

#[test]
fn sizes_that_are_no_whole_units_are_invalid() {
    each(|Subject { driver, unit, .. }| {
        let near_limits = [u64::MAX, u64::MAX - 511, (1 << 63) + 1, (1 << 63) - 1];
        for bytes in [0, 1, unit - 1, unit + 1].into_iter().chain(near_limits) {
            let refused = Err(DriverError::InvalidValue(Call::Allocate));
            assert_eq!(driver.allocate(bytes), refused, "{bytes}");
        }
    });
}

#[test]
fn more_than_is_left_is_out_of_memory_and_changes_nothing() {
    each(|Subject { driver, unit, device, .. }| {
        let held = driver.allocate(UNITS / 2 * unit).unwrap();
        let before = driver.memory_info().unwrap();
        for bytes in [(UNITS / 2 + 1) * unit, 1 << 63, u64::MAX - (unit - 1)] {
            assert_eq!(driver.allocate(bytes), Err(DriverError::OutOfMemory { bytes }));
        }
        assert_eq!(driver.memory_info().unwrap(), before);
        assert_eq!(device.live_ranges().len(), 1);
        driver.free(held).unwrap();
        assert!(driver.allocate(UNITS * unit).is_ok());
    });
}

#[test]
fn memory_info_follows_what_is_held() {
    each(|Subject { driver, unit, .. }| {
        let empty = driver.memory_info().unwrap();
        assert_eq!((empty.total, empty.free), (UNITS * unit, UNITS * unit));
        let address = driver.allocate(3 * unit).unwrap();
        let held = driver.memory_info().unwrap();
        assert_eq!((held.total, held.free), (UNITS * unit, (UNITS - 3) * unit));
        assert_eq!(held.held_by_process, Some(3 * unit));
        driver.free(address).unwrap();
        assert_eq!(driver.memory_info().unwrap(), empty);
    });
}

#[test]
fn only_the_start_of_a_live_range_can_be_freed() {
    each(|Subject { driver, unit, device, .. }| {
        let address = driver.allocate(2 * unit).unwrap();
        for wrong in [0, 1, address + 1, address + unit, address + 2 * unit, u64::MAX] {
            assert_eq!(driver.free(wrong), Err(DriverError::UnknownAddress(wrong)));
        }
        assert_eq!(device.used_bytes(), 2 * unit);
        device.launch(StreamId::default(), Work::unit()).unwrap();
        assert_eq!(driver.free(1), Err(DriverError::UnknownAddress(1)));
        assert_eq!(device.pending(), 1, "a free that fails does not wait");
        driver.free(address).unwrap();
        assert_eq!(driver.free(address), Err(DriverError::UnknownAddress(address)));
        assert_eq!(device.used_bytes(), 0);
    });
}

#[test]
fn event_passes_when_the_work_before_it_is_done() {
    each(|Subject { driver, device, .. }| {
        let stream = device.create_stream();
        device.launch(stream, Work::until(5)).unwrap();
        let event = driver.record_event(stream).unwrap();
        device.launch(stream, Work::until(9)).unwrap();
        assert!(!driver.query_event(event).unwrap());
        device.advance_to(4);
        assert!(!driver.query_event(event).unwrap());
        device.advance_to(5);
        assert!(driver.query_event(event).unwrap());
        assert_eq!(device.pending(), 1);
    });
}

#[test]
fn wait_event_waits_for_the_work_before_it_and_no_more() {
    each(|Subject { driver, device, .. }| {
        let stream = device.create_stream();
        device.launch(stream, Work::unit()).unwrap();
        device.launch(stream, Work::until(5)).unwrap();
        let event = driver.record_event(stream).unwrap();
        device.launch(stream, Work::until(9)).unwrap();
        driver.wait_event(event).unwrap();
        assert!(driver.query_event(event).unwrap());
        assert_eq!((device.pending(), device.tick()), (1, 5));
    });
}

#[test]
fn synchronize_and_free_wait_for_all_streams() {
    each(|Subject { driver, device, unit, .. }| {
        let address = driver.allocate(*unit).unwrap();
        let streams = [StreamId::default(), device.create_stream()];
        let queue = || streams.map(|stream| device.launch(stream, Work::unit()).unwrap());
        queue();
        driver.synchronize().unwrap();
        assert_eq!(device.pending(), 0);
        queue();
        driver.free(address).unwrap();
        assert_eq!(device.pending(), 0);
    });
}

#[test]
fn stream_wait_event_holds_later_work_only() {
    each(|Subject { driver, device, .. }| {
        let (first, second) = (device.create_stream(), device.create_stream());
        device.launch(first, Work::until(9)).unwrap();
        let source = driver.record_event(first).unwrap();
        let before = driver.record_event(second).unwrap();
        driver.stream_wait_event(second, source).unwrap();
        let after = driver.record_event(second).unwrap();
        assert!(driver.query_event(before).unwrap());
        assert!(!driver.query_event(after).unwrap());
        driver.wait_event(after).unwrap();
        assert!(driver.query_event(source).unwrap());
    });
}

#[test]
fn released_event_is_unknown_but_still_holds_who_waits() {
    each(|Subject { driver, device, .. }| {
        let (first, second) = (device.create_stream(), device.create_stream());
        device.launch(first, Work::until(9)).unwrap();
        let source = driver.record_event(first).unwrap();
        driver.stream_wait_event(second, source).unwrap();
        driver.release_event(source).unwrap();
        let after = driver.record_event(second).unwrap();
        let unknown = DriverError::UnknownEvent(source);
        assert_eq!(driver.query_event(source), Err(unknown));
        assert_eq!(driver.wait_event(source), Err(unknown));
        assert_eq!(driver.stream_wait_event(second, source), Err(unknown));
        assert_eq!(driver.release_event(source), Err(unknown));
        assert!(!driver.query_event(after).unwrap());
        device.advance_to(9);
        assert!(driver.query_event(after).unwrap());
        driver.release_event(after).unwrap();
        assert_eq!(device.live_events(), 0);
    });
}

#[test]
fn destroyed_stream_is_unknown_but_its_work_completes() {
    each(|Subject { driver, device, .. }| {
        let stream = device.create_stream();
        device.launch(stream, Work::until(3)).unwrap();
        let event = driver.record_event(stream).unwrap();
        device.destroy_stream(stream).unwrap();
        let unknown = DriverError::UnknownStream(stream);
        assert_eq!(driver.record_event(stream), Err(unknown));
        assert_eq!(driver.stream_wait_event(stream, event), Err(unknown));
        assert_eq!(driver.capture(stream), Err(unknown));
        assert!(!driver.query_event(event).unwrap());
        assert_ne!(device.create_stream(), stream);
        driver.wait_event(event).unwrap();
        assert_eq!(device.pending(), 0);
    });
}

#[test]
fn calls_that_ask_or_change_memory_spoil_a_capture() {
    type Make = fn(&dyn Driver, u64, EventId) -> DriverError;
    let calls: [(Call, Make); 5] = [
        (Call::Allocate, |driver, _, _| driver.allocate(driver.granularity()).unwrap_err()),
        (Call::Free, |driver, address, _| driver.free(address).unwrap_err()),
        (Call::QueryEvent, |driver, _, event| driver.query_event(event).unwrap_err()),
        (Call::WaitEvent, |driver, _, event| driver.wait_event(event).unwrap_err()),
        (Call::Synchronize, |driver, _, _| driver.synchronize().unwrap_err()),
    ];
    each(|Subject { driver, device, unit, .. }| {
        let address = driver.allocate(*unit).unwrap();
        let event = driver.record_event(StreamId::default()).unwrap();
        let stream = device.create_stream();
        for (call, make) in calls {
            let graph = device.begin_capture(stream).unwrap();
            assert_eq!(driver.capture(stream), Ok(Capture::Active(graph)));
            assert_eq!(driver.capture(StreamId::default()), Ok(Capture::None));
            assert_eq!(make(&**driver, address, event), DriverError::Capturing(call));
            assert_eq!(driver.capture(stream), Ok(Capture::Invalidated));
            let refused = Err(DriverError::Capturing(Call::RecordEvent));
            assert_eq!(driver.record_event(stream), refused);
            device.abort_capture(stream).unwrap();
            assert_eq!(driver.capture(stream), Ok(Capture::None));
        }
        assert_eq!(device.used_bytes(), *unit);
        assert!(driver.query_event(event).unwrap());
    });
}

#[test]
fn event_of_a_graph_is_nothing_the_host_can_ask_about() {
    each(|Subject { driver, device, .. }| {
        let stream = device.create_stream();
        device.begin_capture(stream).unwrap();
        let event = driver.record_event(stream).unwrap();
        device.end_capture(stream).unwrap();
        let refused = |call| DriverError::Capturing(call);
        assert_eq!(driver.query_event(event), Err(refused(Call::QueryEvent)));
        assert_eq!(driver.wait_event(event), Err(refused(Call::WaitEvent)));
        let wait = driver.stream_wait_event(stream, event);
        assert_eq!(wait, Err(refused(Call::StreamWaitEvent)));
        driver.release_event(event).unwrap();
    });
}

#[test]
fn threads_get_disjoint_ranges_and_give_all_back() {
    each(|Subject { driver, device, unit, .. }| {
        let hammer = || {
            for round in 0..50 {
                let bytes = (1 + round % 3) * unit;
                let address = driver.allocate(bytes).unwrap();
                let event = driver.record_event(StreamId::default()).unwrap();
                driver.wait_event(event).unwrap();
                driver.release_event(event).unwrap();
                driver.free(address).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(hammer);
            }
        });
        assert_eq!((device.used_bytes(), device.live_events()), (0, 0));
        assert!(device.peak_used_bytes() <= 12 * unit);
        assert_eq!(driver.memory_info().unwrap().free, UNITS * unit);
    });
}
