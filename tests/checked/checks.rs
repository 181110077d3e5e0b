//! What must hold after each thing done, whatever it was.
use super::{Checked, Sums};
use aquifer::Stats;
use aquifer::driver::Driver;
use aquifer::driver::sim::Span;

impl Checked {
    /// What the model says is held by callers.
    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums { allocated: self.lie_bytes, ..Sums::default() };
        for live in &self.live {
            sums.allocated += live.span.bytes;
            sums.requested += live.requested;
            sums.blocks += 1;
        }
        sums.active = sums.allocated;
        sums
    }

    pub(super) fn check(&mut self) -> Result<(), String> {
        self.allocator.audit()?;
        let sums = self.sums();
        let allocated = self.allocator.memory_allocated();
        let requested = self.allocator.memory_requested();
        ensure!(allocated == sums.allocated, "{allocated} bytes allocated, not {}", sums.allocated);
        ensure!(requested == sums.requested, "{requested} bytes requested, not {}", sums.requested);
        let active = self.allocator.memory_active();
        let waiting: u64 = self.waiting.iter().map(|w| w.bytes).sum();
        ensure!(
            (allocated..=allocated + waiting).contains(&active),
            "{active} bytes active, {allocated} allocated and at most {waiting} waiting"
        );
        let (held, _) = self.driver.held_bytes();
        let reserved = self.allocator.memory_reserved();
        ensure!(reserved == held, "{reserved} bytes reserved, {held} are held from the device");
        self.check_ranges()?;
        let violations = self.device.violations();
        ensure!(violations.is_empty(), "the device saw {violations:?}");
        Ok(())
    }

    /// Each live block lies in one range of the device, and shares it with its own pool and stream only.
    fn check_ranges(&self) -> Result<(), String> {
        if self.setup.paged {
            let unmapped = self.live.iter().find(|l| !self.device.is_accessible(l.span, 0));
            return unmapped.map_or(Ok(()), |l| Err(format!("{} is not all mapped", l.span)));
        }
        let ranges = self.device.live_ranges();
        let mut owner: Vec<Option<_>> = vec![None; ranges.len()];
        for live in &self.live {
            let Span { address, bytes } = live.span;
            let at = ranges
                .iter()
                .position(|r| r.address <= address && address + bytes <= r.address + r.bytes)
                .ok_or_else(|| format!("{} is in no live range of the device", live.span))?;
            let own = (live.pool, live.home);
            let other = owner[at].replace(own);
            ensure!(other.is_none_or(|o| o == own), "{} holds {other:?} and {own:?}", ranges[at]);
        }
        Ok(())
    }

    /// Pages in which some block is live.
    pub(super) fn pages_in_use(&self) -> u64 {
        let page = self.setup.granularity;
        let pages = self
            .live
            .iter()
            .flat_map(|l| l.span.address / page..(l.span.address + l.span.bytes).div_ceil(page));
        pages.collect::<std::collections::BTreeSet<u64>>().len() as u64
    }

    /// Reads all counts, which takes in what waits no longer.
    pub(super) fn check_stats(&mut self) -> Result<(), String> {
        let mut stats = self.allocator.memory_stats();
        let device = self.device.clone();
        // A block taken in may send a segment back, which waits for work that was asked about before.
        loop {
            let freed = stats.num_device_free;
            stats = self.allocator.memory_stats();
            if stats.num_device_free == freed {
                break;
            }
        }
        if !self.may_fail && self.captured.is_none() {
            self.forget_waiting(|w| {
                let over = |e: &_| device.query_event(*e).expect("the model's own event");
                !w.unmarked && w.events.iter().all(over)
            });
        }
        let sums = self.sums();
        self.check_current(&stats, &sums)?;
        let peaks = Sums {
            allocated: stats.allocated_bytes.peak,
            requested: stats.requested_bytes.peak,
            active: stats.active_bytes.peak,
            blocks: stats.allocations.peak,
        };
        ensure!(peaks == self.peak, "peaks {peaks:?}, not {:?}", self.peak);
        Ok(())
    }

    fn check_current(&self, stats: &Stats, sums: &Sums) -> Result<(), String> {
        let current = Sums {
            allocated: stats.allocated_bytes.current,
            requested: stats.requested_bytes.current,
            active: stats.active_bytes.current,
            blocks: stats.allocations.current,
        };
        let waiting: u64 = self.waiting.iter().map(|w| w.bytes).sum();
        let wanted = Sums { active: sums.allocated + waiting, ..*sums };
        let unmarked =
            self.may_fail || self.captured.is_some() || self.waiting.iter().any(|w| w.unmarked);
        let alike = current == wanted || unmarked && current.active <= wanted.active;
        ensure!(alike, "{current:?} now, not {wanted:?}");
        for (name, stat) in [
            ("allocated", stats.allocated_bytes),
            ("requested", stats.requested_bytes),
            ("active", stats.active_bytes),
            ("reserved", stats.reserved_bytes),
            ("allocations", stats.allocations),
            ("segments", stats.segments),
        ] {
            let left = stat.allocated - stat.freed;
            ensure!(left == stat.current, "{name}: {stat:?} does not add up");
            ensure!(stat.peak >= stat.current, "{name}: {stat:?} has its peak below");
        }
        let (held, held_peak) = self.driver.held_bytes();
        let reserved = (stats.reserved_bytes.current, stats.reserved_bytes.peak);
        ensure!(reserved == (held, held_peak), "reserved {reserved:?}, not {held}, {held_peak}");
        let segments = (self.device.live_ranges().len() + self.device.live_handles()) as u64;
        ensure!(stats.segments.current == segments, "{segments} segments: {:?}", stats.segments);
        ensure!(
            stats.front_cached_bytes + stats.active_bytes.current <= held,
            "{} bytes in the front caches of {held}",
            stats.front_cached_bytes
        );
        Ok(())
    }

    /// Ends the program: everything must go back to the device. Blocks outlive the allocator if
    /// `blocks_last`.
    ///
    /// # Errors
    /// What did not.
    pub fn end(mut self, blocks_last: bool) -> Result<super::Counts, String> {
        if self.captured.is_some() {
            self.apply(&super::Op::Capture { stream: 0 })?;
        }
        if !blocks_last {
            while !self.live.is_empty() {
                let last = self.live.len() - 1;
                self.free(last)
                    .and_then(|()| self.check())
                    .map_err(|w| format!("at the end: {w}"))?;
            }
        }
        self.forget_waiting(|_| true);
        let Checked { device, driver, faults, allocator, pools, live, counts, .. } = self;
        let raw = live.iter().filter_map(|l| match l.grip {
            super::Grip::Raw(address) => Some(address),
            super::Grip::Handle(_) => None,
        });
        let raw: Vec<_> = raw.map(|a| allocator.from_raw(a).expect("it is live")).collect();
        drop((pools, allocator, faults));
        drop((live, raw));
        ensure!(device.used_bytes() == 0, "{} bytes were not given back", device.used_bytes());
        let addresses = device.reserved_address_bytes();
        ensure!(addresses == 0, "{addresses} bytes of addresses were not given back");
        ensure!(device.live_events() == 0, "{} events were not released", device.live_events());
        let violations = device.violations();
        ensure!(violations.is_empty(), "the device saw {violations:?}");
        drop(driver);
        Ok(counts)
    }
}
