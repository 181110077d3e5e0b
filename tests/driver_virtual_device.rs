//! The virtual memory of the simulated device: its limits, work on what is mapped, peers, costs. The
//! bytes behind it are in `driver_virtual_bytes.rs`.
use aquifer::driver::faulty::Faulty;
use aquifer::driver::sim::{Builder, Costs, Device, Sim, SimError, Span, Violation, Work};
use aquifer::driver::{Call, Driver, DriverError, HandleFlags, HandleId, StreamId};
use std::sync::Arc;

const UNIT: u64 = 2 << 20;
const PLAIN: HandleFlags = HandleFlags { gpu_direct: false, shareable: false };
const STREAM: StreamId = StreamId(0);

fn device(builder: Builder) -> Arc<Device> {
    builder.build().unwrap().device(0).unwrap()
}

/// A range of `pages` pages with a handle of a page at each, all accessible.
fn full_range(driver: &dyn Driver, pages: u64) -> (u64, Vec<HandleId>) {
    let unit = driver.page_bytes().unwrap();
    let range = driver.reserve(pages * unit).unwrap();
    let put = |page| {
        let handle = driver.create(unit, PLAIN).unwrap();
        driver.map(range + page * unit, handle).unwrap();
        handle
    };
    let handles = (0..pages).map(put).collect();
    driver.set_access(range, pages * unit, &[]).unwrap();
    (range, handles)
}

#[test]
fn a_device_without_virtual_memory_supports_none_of_it() {
    let device = device(Sim::builder().virtual_memory(false));
    let unsupported = DriverError::Unsupported;
    assert_eq!(device.page_bytes(), None);
    assert_eq!(device.reserve(UNIT), Err(unsupported(Call::Reserve)));
    assert_eq!(device.unreserve(0), Err(unsupported(Call::Unreserve)));
    assert_eq!(device.create(UNIT, PLAIN), Err(unsupported(Call::Create)));
    assert_eq!(device.release(HandleId(1)), Err(unsupported(Call::ReleaseHandle)));
    assert_eq!(device.map(0, HandleId(1)), Err(unsupported(Call::Map)));
    assert_eq!(device.unmap(0, UNIT), Err(unsupported(Call::Unmap)));
    assert_eq!(device.set_access(0, UNIT, &[]), Err(unsupported(Call::SetAccess)));
    assert_eq!((device.mappings(), device.live_handles()), (vec![], 0));
    let nowhere = Span { address: 1 << 50, bytes: 1 };
    assert_eq!(device.pointer(nowhere), Err(SimError::OutOfBounds(nowhere)));
    device.launch(STREAM, Work::touch(nowhere)).unwrap();
    let dead = Violation::DeadAtLaunch { stream: STREAM, span: nowhere };
    assert_eq!(device.violations(), [dead]);
}

#[test]
fn a_thousand_ranges_of_the_whole_device_fit_and_the_limit_holds() {
    let many = device(Sim::builder());
    let ranges: Vec<u64> = (0..1000).map(|_| many.reserve(16 << 30).unwrap()).collect();
    assert_eq!(many.reserved_address_bytes(), 1000 * (16 << 30));
    ranges.into_iter().for_each(|range| many.unreserve(range).unwrap());
    assert_eq!(many.reserve(64 << 40).map(|_| many.reserved_address_bytes()), Ok(64 << 40));

    let few = device(Sim::builder().address_bytes(4 * UNIT));
    let first = few.reserve(3 * UNIT).unwrap();
    let bytes = 2 * UNIT;
    assert_eq!(few.reserve(bytes), Err(DriverError::OutOfMemory { bytes }));
    few.reserve(UNIT).unwrap();
    few.unreserve(first).unwrap();
    assert_eq!(few.reserve(3 * UNIT), Ok(first));
    let none = device(Sim::builder().address_bytes(0));
    assert_eq!(none.reserve(UNIT), Err(DriverError::OutOfMemory { bytes: UNIT }));
}

#[test]
fn pages_have_a_size_of_their_own_and_impossible_ones_are_refused() {
    let device = device(Sim::builder().granularity(16 << 20).page_bytes(64 << 10));
    assert_eq!((device.granularity(), device.page_bytes()), (16 << 20, Some(64 << 10)));
    device.create(64 << 10, PLAIN).unwrap();
    let refused = |builder: Builder| builder.build().unwrap_err();
    assert_eq!(refused(Sim::builder().page_bytes(3)), SimError::PageBytes(3));
    assert_eq!(refused(Sim::builder().page_bytes(1 << 31)), SimError::PageBytes(1 << 31));
    let too_many = (1 << 46) + 1;
    assert_eq!(refused(Sim::builder().address_bytes(too_many)), SimError::AddressBytes(too_many));
}

#[test]
fn devices_keep_their_addresses_apart_and_let_peers_in() {
    let sim = Sim::builder().devices(64).build().unwrap();
    let [first, last] = [0, 63].map(|index| sim.device(index).unwrap());
    let ranges = [&first, &last].map(|device| device.reserve(1 << 46).unwrap());
    assert!(ranges[0] + (1 << 46) <= ranges[1]);
    assert!(last.allocate(UNIT).unwrap() < ranges[0]);

    let handle = first.create(UNIT, PLAIN).unwrap();
    first.map(ranges[0], handle).unwrap();
    let span = Span { address: ranges[0], bytes: UNIT };
    let let_in = || [0, 1, 63, 64, u32::MAX].map(|device| first.is_accessible(span, device));
    let refused = Err(DriverError::InvalidValue(Call::SetAccess));
    assert_eq!(first.set_access(span.address, UNIT, &[1, 64]), refused);
    assert_eq!(let_in(), [false; 5]);
    first.set_access(span.address, UNIT, &[63]).unwrap();
    assert_eq!(let_in(), [true, false, true, false, false]);
    first.set_access(span.address, UNIT, &[1]).unwrap();
    assert_eq!(let_in(), [true, true, true, false, false]);
    first.unmap(span.address, UNIT).unwrap();
    first.map(span.address, handle).unwrap();
    assert_eq!(let_in(), [false; 5], "a new mapping lets nobody in");
}

#[test]
fn work_needs_all_its_bytes_mapped_and_accessible() {
    let device = device(Sim::builder());
    let (range, _) = full_range(&*device, 3);
    let all = Span { address: range, bytes: 3 * UNIT };
    let inner = Span { address: range + UNIT - 1, bytes: UNIT + 2 };
    for span in [all, inner] {
        device.launch(STREAM, Work::touch(span)).unwrap();
    }
    device.run_all();
    assert_eq!(device.violations(), []);

    let beyond = Span { address: range, bytes: 3 * UNIT + 1 };
    device.launch(STREAM, Work::touch(beyond)).unwrap();
    let handle = device.create(UNIT, PLAIN).unwrap();
    device.unmap(range + UNIT, UNIT).unwrap();
    device.launch(STREAM, Work::touch(inner)).unwrap();
    device.map(range + UNIT, handle).unwrap();
    device.launch(STREAM, Work::touch(all)).unwrap();
    let expected =
        [beyond, inner, all].map(|span| Violation::DeadAtLaunch { stream: STREAM, span });
    assert_eq!(device.violations(), expected);
}

#[test]
fn unmap_waits_for_nothing_and_shows_under_work_even_if_mapped_again() {
    let device = device(Sim::builder());
    let (range, handles) = full_range(&*device, 3);
    let span = Span { address: range + UNIT / 2, bytes: UNIT };
    device.launch(STREAM, Work::fill(span, 1).not_before(10)).unwrap();
    device.unmap(range + UNIT, 2 * UNIT).unwrap();
    assert_eq!((device.pending(), device.tick(), device.counts().host_waits), (1, 0, 0));
    device.map(range + UNIT, handles[1]).unwrap();
    device.set_access(range + UNIT, UNIT, &[]).unwrap();
    device.advance_to(10);
    let expected = [
        Violation::UnmappedInUse { span: Span { address: range + UNIT, bytes: UNIT }, uses: 1 },
        Violation::DeadAtCompletion { stream: STREAM, span },
    ];
    assert_eq!(device.violations(), expected);
    device.unmap(range, 2 * UNIT).unwrap();
    assert_eq!(device.violations(), expected, "the work is over");
}

#[test]
fn access_that_fails_midway_leaves_what_was_open_and_can_be_asked_again() {
    let driver = Faulty::new(device(Sim::builder()));
    let device = driver.inner();
    let range = driver.reserve(3 * UNIT).unwrap();
    driver.fail_call(Call::SetAccess, 2, DriverError::OutOfMemory { bytes: UNIT });
    let grow = |page: u64| -> Result<(), DriverError> {
        let handle = driver.create(UNIT, PLAIN)?;
        driver.map(range + page * UNIT, handle)?;
        driver.set_access(range + page * UNIT, UNIT, &[])
    };
    let grown = [grow(0), grow(1), grow(2)].map(|result| result.is_ok());
    assert_eq!(grown, [true, false, true]);
    let page = |page| Span { address: range + page * UNIT, bytes: UNIT };
    let open = || [0, 1, 2].map(|n| device.is_accessible(page(n), 0));
    assert_eq!((device.mappings().len(), open()), (3, [true, false, true]));
    driver.set_access(range, 3 * UNIT, &[]).unwrap();
    assert_eq!(open(), [true; 3]);
    assert_eq!(device.violations(), []);
}

#[test]
fn each_mapping_after_the_first_costs_more() {
    let costs = Costs::default().with_mapping(1_000);
    let device = device(Sim::builder().costs(costs));
    let (range, _) = full_range(&*device, 3);
    let before = device.clock_ns();
    device.unmap(range, 3 * UNIT).unwrap();
    assert_eq!(device.clock_ns() - before, costs.call_ns(Call::Unmap) + 2_000);
    assert_eq!((costs.mappings_ns(0), costs.mappings_ns(1), costs.mappings_ns(9)), (0, 0, 8_000));
}

#[test]
fn hundred_thousand_remappings_leave_nothing() {
    let device = device(Sim::builder());
    let (range, handles) = full_range(&*device, 2_000);
    for round in 0..100_000 {
        let place = range + round * 7 % 2_000 * UNIT;
        let handle = handles[(round * 7 % 2_000) as usize];
        device.unmap(place, UNIT).unwrap();
        device.map(place, handle).unwrap();
    }
    device.unmap(range, 2_000 * UNIT).unwrap();
    handles.iter().for_each(|&handle| device.release(handle).unwrap());
    device.unreserve(range).unwrap();
    assert_eq!((device.used_bytes(), device.live_handles(), device.violations()), (0, 0, vec![]));
}
