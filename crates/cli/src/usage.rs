//! What was asked of a device, as far as its cost depends on it, so that one run can be priced by any
//! table of costs. Knows no run.

use aquifer::driver::Call;
use aquifer::driver::sim::{CallCounts, Costs, Device};

/// Counted up to some moment, or between two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) calls: CallCounts,
    /// Bytes of segments.
    allocated_bytes: u64,
    /// Mappings after the first that one call was about.
    further_mappings: u64,
}

/// A clock that runs on a device of [`Usage::costs`] counts segments in these bytes below this bit, and
/// further mappings from it on.
const UNIT_BYTES: u64 = 2 << 20;
const MAPPINGS_BIT: u32 = 32;

impl Usage {
    /// The table that a device must have for [`Usage::of`]: calls cost nothing, so that its clock
    /// counts what a call costs on top.
    pub(crate) fn costs() -> Costs {
        let free =
            Call::ALL.into_iter().fold(Costs::default(), |costs, call| costs.with_call(call, 0));
        free.with_allocate_per_gib((1 << 30) / UNIT_BYTES).with_mapping(1 << MAPPINGS_BIT)
    }

    /// What was asked of a device so far.
    pub(crate) fn of(device: &Device) -> Usage {
        let clock = device.clock_ns();
        Usage {
            calls: device.counts(),
            allocated_bytes: (clock & ((1 << MAPPINGS_BIT) - 1)) * UNIT_BYTES,
            further_mappings: clock >> MAPPINGS_BIT,
        }
    }

    /// What was asked after `earlier`.
    pub(crate) fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            calls: self.calls.since(&earlier.calls),
            allocated_bytes: self.allocated_bytes - earlier.allocated_bytes,
            further_mappings: self.further_mappings - earlier.further_mappings,
        }
    }

    /// The nanoseconds it takes by a table.
    pub(crate) fn ns(&self, costs: Costs) -> u64 {
        let calls = self.calls.iter().map(|(call, made)| made * costs.call_ns(call)).sum::<u64>();
        let bytes = costs.allocate_bytes_ns(self.allocated_bytes);
        calls + bytes + costs.mappings_ns(self.further_mappings + 1)
    }

    /// Handles that were created.
    pub(crate) fn pages_created(&self) -> u64 {
        self.done(Call::Create)
    }

    /// Handles that were mapped a further time.
    pub(crate) fn pages_moved(&self) -> u64 {
        self.done(Call::Map).saturating_sub(self.pages_created())
    }

    fn done(&self, call: Call) -> u64 {
        self.calls.made(call) - self.calls.failed(call)
    }
}

#[cfg(test)]
mod tests {
    use aquifer::driver::sim::Sim;
    use aquifer::driver::{Driver, HandleFlags};

    use super::*;

    /// Allocates, maps three pages and moves one.
    fn use_device(costs: Costs) -> std::sync::Arc<Device> {
        let device = Sim::builder().costs(costs).build().unwrap().device(0).unwrap();
        let page = device.page_bytes().unwrap();
        device.allocate(10 << 30).unwrap();
        let range = device.reserve(10 * page).unwrap();
        for i in 0..3 {
            let handle = device.create(page, HandleFlags::default()).unwrap();
            device.map(range + i * page, handle).unwrap();
            if i == 2 {
                device.unmap(range + i * page, page).unwrap();
                device.map(range + i * page, handle).unwrap();
            }
        }
        device.set_access(range, 3 * page, &[]).unwrap();
        device
    }

    #[test]
    fn a_usage_costs_what_a_device_with_that_table_spends() {
        let usage = Usage::of(&use_device(Usage::costs()));
        for costs in [Costs::low(), Costs::default(), Costs::high()] {
            assert_eq!(usage.ns(costs), use_device(costs).clock_ns());
        }
        assert_eq!((usage.pages_created(), usage.pages_moved()), (3, 1));
        let nothing = usage.since(&usage);
        assert_eq!((nothing.ns(Costs::high()), nothing.calls.total()), (0, 0));
    }
}
