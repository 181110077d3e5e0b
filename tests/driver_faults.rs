//! Failures on demand, the budget, the log and the costs.
use aquifer::driver::faults::FAULT_CODE;
use aquifer::driver::faulty::Faulty;
use aquifer::driver::limited::Limited;
use aquifer::driver::logged::{Arguments, Logged, Outcome};
use aquifer::driver::sim::{Costs, Device, Sim, Work};
use aquifer::driver::{Call, Driver, DriverError, HandleFlags, StreamId};
use std::sync::{Arc, Mutex};

const UNIT: u64 = 2 << 20;

fn device() -> Arc<Device> {
    Sim::builder().capacity(8 * UNIT).build().unwrap().device(0).unwrap()
}

/// One call of each kind; the first error ends it.
fn each_call_once(driver: &dyn Driver) -> Result<(), DriverError> {
    let stream = StreamId::default();
    driver.memory_info()?;
    driver.capture(stream)?;
    let address = driver.allocate(UNIT)?;
    let event = driver.record_event(stream)?;
    driver.stream_wait_event(stream, event)?;
    driver.query_event(event)?;
    driver.wait_event(event)?;
    driver.release_event(event)?;
    driver.synchronize()?;
    driver.free(address)?;
    let range = driver.reserve(2 * UNIT)?;
    let flags = HandleFlags { gpu_direct: true, shareable: true };
    let handle = driver.create(UNIT, flags)?;
    driver.map(range, handle)?;
    driver.set_access(range, UNIT, &[0])?;
    driver.unmap(range, UNIT)?;
    driver.release(handle)?;
    driver.unreserve(range)
}

/// The state a failed call must leave alone.
fn state(device: &Device) -> (u64, usize, u64, u64) {
    (device.used_bytes(), device.live_events(), device.pending(), device.tick())
}

/// The same of virtual memory: addresses reserved, bytes created, mappings, bytes accessible.
fn virtual_state(device: &Device) -> (u64, u64, usize, u64) {
    let mappings = device.mappings();
    let open = mappings.iter().filter(|(span, _)| device.is_accessible(*span, 0));
    let open_bytes = open.map(|(span, _)| span.bytes).sum();
    let created = device.live_handles() as u64 * UNIT;
    (device.reserved_address_bytes(), created, mappings.len(), open_bytes)
}

/// Fails each call of [`each_call_once`] in turn, planned by `plan`, on a device with work queued.
fn failed_calls_change_nothing(plan: impl Fn(&Arc<Device>, u64) -> Box<dyn Driver>) {
    for n in 1..=Call::ALL.len() as u64 {
        let device = device();
        device.launch(StreamId::default(), Work::until(9)).unwrap();
        let driver = plan(&device, n);
        let error = each_call_once(&*driver).unwrap_err();
        let DriverError::Failed { call, code: FAULT_CODE } = error else { panic!("{error}") };
        // After the wait for the event the work is done; before it, it must not be.
        let before = match call {
            Call::MemoryInfo | Call::Capture | Call::Allocate => (0, 0, 1, 0),
            Call::RecordEvent => (UNIT, 0, 1, 0),
            Call::StreamWaitEvent => (UNIT, 1, 1, 0),
            Call::QueryEvent | Call::WaitEvent => (UNIT, 1, 2, 0),
            Call::ReleaseEvent => (UNIT, 1, 0, 9),
            Call::Reserve | Call::Unreserve | Call::Create => (0, 0, 0, 9),
            _ => (UNIT, 0, 0, 9),
        };
        let virtual_before = match call {
            Call::Create | Call::Unreserve => (2 * UNIT, 0, 0, 0),
            Call::Map | Call::ReleaseHandle => (2 * UNIT, UNIT, 0, 0),
            Call::SetAccess => (2 * UNIT, UNIT, 1, 0),
            Call::Unmap => (2 * UNIT, UNIT, 1, UNIT),
            _ => (0, 0, 0, 0),
        };
        assert_eq!(virtual_state(&device), virtual_before, "{call}");
        assert_eq!(state(&device), before, "{call}");
        assert_eq!(driver.memory_info().map(|info| info.free), Ok(8 * UNIT - before.0));
    }
}

#[test]
fn each_call_can_fail_and_then_changes_nothing() {
    failed_calls_change_nothing(|device, n| {
        device.fail_at(n);
        Box::new(device.clone())
    });
    failed_calls_change_nothing(|device, n| {
        let faulty = Faulty::new(device.clone());
        faulty.fail_at(n);
        Box::new(faulty)
    });
}

#[test]
fn failures_are_counted_by_kind_and_cleared_together() {
    let device = device();
    let no_memory = DriverError::OutOfMemory { bytes: UNIT };
    device.fail_call(Call::Allocate, 2, no_memory);
    device.fail_all(Call::MemoryInfo);
    device.allocate(UNIT).unwrap();
    let vendor = DriverError::Failed { call: Call::MemoryInfo, code: FAULT_CODE };
    assert_eq!(device.memory_info(), Err(vendor));
    assert_eq!(device.memory_info(), Err(vendor));
    assert_eq!(device.allocate(UNIT), Err(no_memory));
    device.allocate(UNIT).unwrap();
    device.fail_at(1);
    device.clear_faults();
    device.memory_info().unwrap();
    let counts = device.counts();
    assert_eq!((counts.made(Call::Allocate), counts.failed(Call::Allocate)), (3, 1));
    assert_eq!((counts.made(Call::MemoryInfo), counts.failed(Call::MemoryInfo)), (3, 2));
    assert_eq!((counts.total(), counts.total_failed(), device.calls_made()), (6, 3, 6));
    assert_eq!(counts.iter().map(|(_, made)| made).sum::<u64>(), 6);
}

#[test]
fn limit_holds_while_it_changes() {
    let driver = Limited::new(device(), 3 * UNIT);
    let info = driver.memory_info().unwrap();
    assert_eq!((info.total, info.free), (3 * UNIT, 3 * UNIT));
    let address = driver.allocate(2 * UNIT).unwrap();
    let short = |bytes| Err(DriverError::OutOfMemory { bytes });
    assert_eq!(driver.allocate(2 * UNIT), short(2 * UNIT));
    driver.set_limit(UNIT);
    let info = driver.memory_info().unwrap();
    assert_eq!((info.total, info.free), (UNIT, 0));
    assert_eq!(driver.allocate(UNIT), short(UNIT));
    driver.set_limit(u64::MAX);
    assert_eq!(driver.memory_info().unwrap().free, 6 * UNIT);
    assert_eq!(driver.allocate(7 * UNIT), short(7 * UNIT));
    assert_eq!((driver.held_bytes(), driver.limit_bytes()), (2 * UNIT, u64::MAX));
    driver.free(address).unwrap();
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn limit_is_one_for_ranges_and_for_physical_memory() {
    let driver = Limited::new(device(), 3 * UNIT);
    let create = |bytes| driver.create(bytes, HandleFlags::default());
    driver.allocate(UNIT).unwrap();
    let handle = create(UNIT).unwrap();
    assert_eq!(create(2 * UNIT), Err(DriverError::OutOfMemory { bytes: 2 * UNIT }));
    assert_eq!((driver.held_bytes(), driver.memory_info().unwrap().free), (2 * UNIT, UNIT));
    driver.inner().fail_all(Call::ReleaseHandle);
    assert!(driver.release(handle).is_err());
    driver.inner().fail_call(Call::Create, 1, DriverError::OutOfMemory { bytes: UNIT });
    assert!(create(UNIT).is_err());
    assert_eq!(driver.held_bytes(), 2 * UNIT);
    driver.inner().clear_faults();
    driver.release(handle).unwrap();
    assert_eq!((driver.held_bytes(), driver.limit_bytes()), (UNIT, 3 * UNIT));
}

#[test]
fn limit_counts_what_the_device_refused_to_free() {
    let driver = Limited::new(device(), 2 * UNIT);
    let address = driver.allocate(2 * UNIT).unwrap();
    driver.inner().fail_at(1);
    assert!(driver.free(address).is_err());
    assert_eq!(driver.held_bytes(), 2 * UNIT);
    driver.free(address).unwrap();
    assert_eq!(driver.held_bytes(), 0);
    let foreign = driver.inner().allocate(UNIT).unwrap();
    driver.free(foreign).unwrap();
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn log_keeps_the_last_calls_and_the_sink_sees_all() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = seen.clone();
    let driver = Logged::new(device(), 3)
        .with_sink(move |entry| sink.lock().unwrap().push(entry.to_string()));
    each_call_once(&driver).unwrap();
    let _ = driver.free(1);
    let lines = [
        "1 memory_info -> 16777216 of 16777216 bytes free",
        "2 capture stream 0x0 -> not captured",
        "3 allocate 2097152 bytes -> 0x40000000000",
        "4 record_event stream 0x0 -> event 0",
        "5 stream_wait_event stream 0x0 event 0 -> done",
        "6 query_event event 0 -> passed",
        "7 wait_event event 0 -> done",
        "8 release_event event 0 -> done",
        "9 synchronize -> done",
        "10 free 0x40000000000 -> done",
        "11 reserve 4194304 bytes -> 0x2000000000000",
        "12 create 2097152 bytes for gpu direct to share -> handle 1",
        "13 map 0x2000000000000 handle 1 -> done",
        "14 set_access 0x2000000000000 2097152 bytes 1 peers -> done",
        "15 unmap 0x2000000000000 2097152 bytes -> done",
        "16 release_handle handle 1 -> done",
        "17 unreserve 0x2000000000000 -> done",
        "18 free 0x1 -> error: address 0x1 is not the start of a live range of the device",
    ];
    assert_eq!(*seen.lock().unwrap(), lines);
    assert_eq!(driver.lines(), lines[15..]);
    let last = driver.entries()[2];
    assert_eq!((last.call, last.arguments), (Call::Free, Arguments::Address(1)));
    assert_eq!(last.outcome, Outcome::Error(DriverError::UnknownAddress(1)));
}

#[test]
fn log_may_keep_nothing() {
    let driver = Logged::new(device(), 0);
    driver.synchronize().unwrap();
    assert!(driver.lines().is_empty());
}

#[test]
fn clock_adds_up_the_costs_of_calls() {
    let costs = Costs::default().with_call(Call::Allocate, 100).with_allocate_per_gib(1 << 30);
    let sim = Sim::builder().capacity(8 * UNIT).costs(costs).build().unwrap();
    let device = sim.device(0).unwrap();
    device.allocate(2 * UNIT).unwrap();
    assert_eq!(device.clock_ns(), 100 + 2 * UNIT);
    assert!(device.allocate(16 * UNIT).is_err());
    assert_eq!(device.clock_ns(), 200 + 2 * UNIT);
    device.synchronize().unwrap();
    assert_eq!(device.clock_ns(), 200 + 2 * UNIT + costs.call_ns(Call::Synchronize));
}

#[test]
fn costs_are_in_order_for_every_call() {
    let tables = [Costs::low(), Costs::default(), Costs::high()];
    for call in Call::ALL {
        assert!(tables.map(|costs| costs.call_ns(call)).is_sorted(), "{call}");
    }
    assert!(tables.map(|costs| costs.allocate_bytes_ns(1 << 30)).is_sorted());
    assert!(tables.map(|costs| costs.mappings_ns(2)).is_sorted());
    assert_eq!(
        Costs::high().allocate_bytes_ns(u64::MAX),
        (u64::MAX >> 30) * 30_000_000 + 29_999_999
    );
}
