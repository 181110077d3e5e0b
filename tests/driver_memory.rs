//! The simulated device's memory against a naive model, its bytes, and what it says of misuse.
use aquifer::driver::sim::{Backing, Builder, Device, Sim, SimError, Span, Violation, Work};
use aquifer::driver::{Driver, DriverError, StreamId};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::sync::Arc;

const UNIT: u64 = 2 << 20;

fn device(builder: Builder) -> Arc<Device> {
    builder.build().unwrap().device(0).unwrap()
}

/// A device with bytes and one range of a unit on it.
fn device_with_bytes(builder: Builder) -> (Arc<Device>, u64) {
    let device = device(builder.capacity(8 * UNIT).backing(Backing::HostBytes));
    let address = device.allocate(UNIT).unwrap();
    (device, address)
}

#[derive(Clone, Debug)]
enum Op {
    Allocate {
        units: u64,
    },
    Free {
        choice: usize,
    },
    /// Frees neighbours, so that holes join.
    FreeRun {
        choice: usize,
        ranges: usize,
    },
    OtherUse {
        units: u64,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => prop_oneof![4 => 1u64..4, 1 => 1u64..300].prop_map(|units| Op::Allocate { units }),
        4 => any::<usize>().prop_map(|choice| Op::Free { choice }),
        1 => (any::<usize>(), 1usize..200)
            .prop_map(|(choice, ranges)| Op::FreeRun { choice, ranges }),
        1 => (0u64..2100).prop_map(|units| Op::OtherUse { units }),
    ];
    prop::collection::vec(op, 1..200)
}

/// Ranges by address, searched one by one.
#[derive(Default)]
struct Model {
    live: Vec<Span>,
    other_use: u64,
}

impl Model {
    fn used(&self) -> u64 {
        self.live.iter().map(|span| span.bytes).sum()
    }

    /// The lowest gap that fits, if bytes are left.
    fn allocate(&mut self, start: u64, capacity: u64, bytes: u64) -> Option<u64> {
        if self.used() + self.other_use + bytes > capacity {
            return None;
        }
        let mut address = start;
        let mut index = 0;
        while index < self.live.len() && self.live[index].address - address < bytes {
            address = self.live[index].address + self.live[index].bytes;
            index += 1;
        }
        self.live.insert(index, Span { address, bytes });
        Some(address)
    }
}

/// A device and its model, made to do the same.
struct Pair {
    device: Arc<Device>,
    model: Model,
    start: u64,
    peak: u64,
}

const CAPACITY: u64 = 2000 * UNIT;

impl Pair {
    /// With `comb` ranges and as many holes between them.
    fn new(index: usize, comb: usize) -> Pair {
        let sim = Sim::builder().devices(3).capacity(CAPACITY).build().unwrap();
        let device = sim.device(index).unwrap();
        let start = (index as u64 + 1) << 42;
        let mut pair = Pair { device, model: Model::default(), start, peak: 0 };
        (0..2 * comb).for_each(|_| pair.allocate(1).unwrap());
        (0..comb).for_each(|choice| pair.free(choice).unwrap());
        pair
    }

    fn allocate(&mut self, units: u64) -> Result<(), TestCaseError> {
        let bytes = units * UNIT;
        let expected = self.model.allocate(self.start, CAPACITY, bytes);
        let expected = expected.ok_or(DriverError::OutOfMemory { bytes });
        prop_assert_eq!(self.device.allocate(bytes), expected);
        self.peak = self.peak.max(self.model.used());
        Ok(())
    }

    fn free(&mut self, index: usize) -> Result<(), TestCaseError> {
        let span = self.model.live.remove(index);
        prop_assert_eq!(self.device.free(span.address), Ok(()));
        Ok(())
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let count = self.model.live.len().max(1);
        match *op {
            Op::Allocate { units } => self.allocate(units)?,
            Op::Free { choice } | Op::FreeRun { choice, .. } if self.model.live.is_empty() => {
                let address = choice as u64;
                let unknown = Err(DriverError::UnknownAddress(address));
                prop_assert_eq!(self.device.free(address), unknown);
            }
            Op::Free { choice } => self.free(choice % count)?,
            Op::FreeRun { choice, ranges } => {
                let first = choice % count;
                for _ in 0..ranges.min(count - first) {
                    self.free(first)?;
                }
            }
            Op::OtherUse { units } => {
                self.model.other_use = units * UNIT;
                self.device.set_other_use(self.model.other_use);
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let used = self.model.used();
        prop_assert_eq!(self.device.live_ranges(), self.model.live.clone());
        prop_assert_eq!(self.device.used_bytes(), used);
        prop_assert_eq!(self.device.peak_used_bytes(), self.peak);
        let free = CAPACITY.saturating_sub(used + self.model.other_use);
        prop_assert_eq!(self.device.memory_info().unwrap().free, free);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]
    #[test]
    fn addresses_are_the_lowest_that_fit(
        ops in ops(),
        index in 0usize..3,
        comb in prop_oneof![Just(0usize), 1usize..600],
    ) {
        let mut pair = Pair::new(index, comb);
        ops.iter().try_for_each(|op| pair.apply(op))?;
    }
}

#[test]
fn thousands_of_holes_fill_from_the_lowest() {
    let device = device(Sim::builder().capacity(80 << 30));
    let count = (80 << 30) / UNIT;
    let addresses: Vec<u64> = (0..count).map(|_| device.allocate(UNIT).unwrap()).collect();
    assert!(addresses.is_sorted());
    let holes: Vec<u64> = addresses.into_iter().step_by(2).collect();
    // Far apart, so that the tree of holes grows in no order.
    for step in 0..holes.len() {
        device.free(holes[step * 7919 % holes.len()]).unwrap();
    }
    let again: Vec<u64> = holes.iter().map(|_| device.allocate(UNIT).unwrap()).collect();
    assert_eq!(again, holes);
    assert_eq!(device.memory_info().unwrap().free, 0);
}

#[test]
fn devices_have_memories_of_their_own() {
    let sim = Sim::builder().devices(2).capacity(UNIT).build().unwrap();
    let addresses = [0, 1].map(|index| sim.device(index).unwrap().allocate(UNIT).unwrap());
    assert_ne!(addresses[0], addresses[1]);
    let foreign = sim.device(0).unwrap().free(addresses[1]);
    assert_eq!(foreign, Err(DriverError::UnknownAddress(addresses[1])));
    assert!(sim.device(2).is_none());
    assert_eq!(sim.device_count(), 2);
}

#[test]
fn other_use_above_what_is_free_leaves_what_is_held() {
    let device = device(Sim::builder().capacity(8 * UNIT));
    let address = device.allocate(4 * UNIT).unwrap();
    device.set_process_overhead(UNIT);
    device.set_other_use(u64::MAX);
    let info = device.memory_info().unwrap();
    assert_eq!((info.total, info.free, info.held_by_process), (8 * UNIT, 0, Some(5 * UNIT)));
    assert!(device.allocate(UNIT).is_err());
    device.free(address).unwrap();
    device.set_other_use(0);
    assert_eq!(device.memory_info().unwrap().free, 7 * UNIT);
}

#[test]
fn impossible_machines_are_refused() {
    let refused = |builder: Builder| builder.build().unwrap_err();
    assert_eq!(refused(Sim::builder().devices(0)), SimError::Devices(0));
    assert_eq!(refused(Sim::builder().devices(65)), SimError::Devices(65));
    assert_eq!(refused(Sim::builder().capacity(0)), SimError::Capacity(0));
    assert_eq!(refused(Sim::builder().capacity(u64::MAX)), SimError::Capacity(u64::MAX));
    assert_eq!(refused(Sim::builder().granularity(3)), SimError::Granularity(3));
    assert_eq!(refused(Sim::builder().granularity(1 << 31)), SimError::Granularity(1 << 31));
}

#[test]
fn bytes_start_at_zero_and_keep_what_is_written() {
    let (device, address) = device_with_bytes(Sim::builder());
    let mut bytes = [1; 4];
    device.read(address + UNIT - 4, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    device.write(address + 5, &[1, 2, 3, 4]).unwrap();
    device.read(address + 6, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3, 4, 0]);
    device.free(address).unwrap();
    device.allocate(UNIT).unwrap();
    device.read(address + 5, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn bytes_outside_one_live_range_are_refused() {
    let (device, address) = device_with_bytes(Sim::builder());
    let other = device.allocate(UNIT).unwrap();
    assert_eq!(other, address + UNIT);
    for wrong in [0, address - 1, address + UNIT - 1, other + UNIT - 1, other + UNIT, u64::MAX] {
        let refused = Err(SimError::OutOfBounds(Span { address: wrong, bytes: 2 }));
        assert_eq!(device.read(wrong, &mut [0; 2]), refused);
        assert_eq!(device.write(wrong, &[0; 2]), refused);
    }
    let all = Span { address, bytes: u64::MAX };
    assert_eq!(device.pointer(all), Err(SimError::OutOfBounds(all)));
}

#[test]
fn device_without_bytes_has_none_to_read() {
    let device = device(Sim::builder());
    let address = device.allocate(UNIT).unwrap();
    assert_eq!(device.read(address, &mut [0; 2]), Err(SimError::NoBytes));
    assert_eq!(device.write(address, &[0; 2]), Err(SimError::NoBytes));
}

#[test]
fn pointer_is_aligned_and_sees_what_is_written() {
    let (device, address) = device_with_bytes(Sim::builder());
    let pointer = device.pointer(Span { address: address + 7, bytes: 1 }).unwrap();
    assert_eq!(pointer.addr() % 4096, 7);
    device.write(address + 7, &[42]).unwrap();
    // SAFETY: the byte is in a live range and no one else touches it.
    let byte = unsafe { *pointer };
    assert_eq!(byte, 42);
}

#[test]
fn work_acts_on_bytes_when_it_completes() {
    let (device, address) = device_with_bytes(Sim::builder());
    let (stream, span) = (StreamId::default(), Span { address, bytes: 64 });
    device.launch(stream, Work::fill(span, 7)).unwrap();
    device.launch(stream, Work::copy(span, address + 100)).unwrap();
    device
        .launch(stream, Work::run(move |memory| memory.write(address + 100, &[9]).unwrap()))
        .unwrap();
    let mut bytes = [1; 2];
    device.read(address + 100, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 2]);
    device.synchronize().unwrap();
    device.read(address + 100, &mut bytes).unwrap();
    assert_eq!(bytes, [9, 7]);
    assert_eq!(device.violations(), []);
}

#[test]
fn check_reports_the_first_wrong_byte() {
    let (device, address) = device_with_bytes(Sim::builder());
    let stream = device.create_stream();
    device.launch(stream, Work::fill(Span { address, bytes: 8 }, 7)).unwrap();
    device.launch(stream, Work::check(Span { address, bytes: 9 }, 7)).unwrap();
    device.run_all();
    let wrong = Violation::WrongByte { stream, address: address + 8, expected: 7, found: 0 };
    assert_eq!(device.violations(), [wrong]);
}

#[test]
fn work_on_memory_that_is_not_live_is_reported_at_launch() {
    let device = device(Sim::builder());
    let (stream, address) = (StreamId::default(), device.allocate(UNIT).unwrap());
    let beyond = Span { address, bytes: UNIT + 1 };
    device.launch(stream, Work::touch(beyond)).unwrap();
    device.launch(stream, Work::copy(Span { address, bytes: 8 }, 0)).unwrap();
    let nowhere = Span { address: 0, bytes: 8 };
    let expected = [beyond, nowhere].map(|span| Violation::DeadAtLaunch { stream, span });
    assert_eq!(device.violations(), expected);
    device.free(address).unwrap();
    assert_eq!(device.violations(), expected);
}

#[test]
fn free_under_work_is_reported_even_if_the_address_is_live_again() {
    for free_waits in [true, false] {
        let (device, address) = device_with_bytes(Sim::builder().free_waits(free_waits));
        let (stream, span) = (device.create_stream(), Span { address, bytes: 16 });
        device.launch(stream, Work::fill(span, 1).not_before(10)).unwrap();
        device.free(address).unwrap();
        assert_eq!(device.allocate(UNIT), Ok(address));
        device.advance_to(10);
        let whole = Span { address, bytes: UNIT };
        let expected = [
            Violation::FreedInUse { span: whole, uses: 1 },
            Violation::DeadAtCompletion { stream, span },
        ];
        assert_eq!(device.violations(), if free_waits { &[][..] } else { &expected });
        let mut byte = [9];
        device.read(address, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }
}
