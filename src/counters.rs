//! Counters of one lane, kept with plain integers by whoever holds its front, and the device-wide
//! peaks made from them.
//!
//! A device-wide peak needs all lanes, but a hit may touch nothing shared. So each lane holds a
//! *ceiling* per gauge, and the ceilings of all lanes together never exceed the device-wide peak seen so
//! far: while a lane stays under its ceiling there can be no new peak. A lane that must go higher first
//! calls in what the others do not use ([`DevicePeaks::raise`]).

/// What is gauged, in the order of the arrays.
pub(crate) const ALLOCATED: usize = 0;
pub(crate) const REQUESTED: usize = 1;
pub(crate) const ACTIVE: usize = 2;
pub(crate) const ALLOCATIONS: usize = 3;
pub(crate) const ACTIVE_BLOCKS: usize = 4;
/// Number of gauges.
pub(crate) const GAUGES: usize = 5;

/// One value per gauge: bytes, bytes, bytes, count, count.
pub(crate) type Gauges = [u64; GAUGES];

/// What has gone by since the start: allocated and freed, per size range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) allocated_bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) allocations: u64,
    pub(crate) freed_bytes: u64,
    pub(crate) freed_requested_bytes: u64,
    pub(crate) frees: u64,
}

impl Flow {
    pub(crate) fn add(&mut self, o: &Flow) {
        self.allocated_bytes += o.allocated_bytes;
        self.requested_bytes += o.requested_bytes;
        self.allocations += o.allocations;
        self.freed_bytes += o.freed_bytes;
        self.freed_requested_bytes += o.freed_requested_bytes;
        self.frees += o.frees;
    }
}

/// Index into [`Counters::flow`]: requests up to 1 MiB, and larger ones.
#[inline(always)]
pub(crate) fn flow_of(size: u64) -> usize {
    (size > 1 << 20) as usize
}

/// Counters of one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) now: Gauges,
    pub(crate) peak: Gauges,
    /// See the module's page.
    pub(crate) ceiling: Gauges,
    /// The lesser of peak and ceiling: what a hit compares with.
    limit: Gauges,
    pub(crate) flow: [Flow; 2],
    /// Requests served by the front cache.
    pub(crate) front_hits: u64,
}

impl Counters {
    /// Counts a block of `size` bytes handed out for `requested`; whether some gauge passed its limit
    /// ([`Counters::settle_peaks`] and [`DevicePeaks::raise`] are due then).
    #[inline(always)]
    pub(crate) fn allocated(&mut self, size: u64, requested: u64) -> bool {
        let flow = &mut self.flow[flow_of(size)];
        flow.allocated_bytes += size;
        flow.requested_bytes += requested;
        flow.allocations += 1;
        let mut over = false;
        for (gauge, by) in [size, requested, size, 1, 1].into_iter().enumerate() {
            self.now[gauge] += by;
            over |= self.now[gauge] > self.limit[gauge];
        }
        over
    }

    /// Counts a block given back; `pending` where it stays active, waiting for events.
    #[inline(always)]
    pub(crate) fn freed(&mut self, size: u64, requested: u64, pending: bool) {
        let flow = &mut self.flow[flow_of(size)];
        flow.freed_bytes += size;
        flow.freed_requested_bytes += requested;
        flow.frees += 1;
        self.now[ALLOCATED] -= size;
        self.now[REQUESTED] -= requested;
        self.now[ALLOCATIONS] -= 1;
        if !pending {
            self.no_longer_active(size);
        }
    }

    /// Counts a pending block whose events are done.
    #[inline(always)]
    pub(crate) fn no_longer_active(&mut self, size: u64) {
        self.now[ACTIVE] -= size;
        self.now[ACTIVE_BLOCKS] -= 1;
    }

    /// Raises the lane's own peaks; whether a ceiling is passed too.
    pub(crate) fn settle_peaks(&mut self) -> bool {
        let mut over = false;
        for gauge in 0..GAUGES {
            self.peak[gauge] = self.peak[gauge].max(self.now[gauge]);
            over |= self.now[gauge] > self.ceiling[gauge];
        }
        self.set_limits();
        over
    }

    /// The lane's own peak of `gauge`.
    pub(crate) fn peak_now(&self, gauge: usize) -> u64 {
        self.peak[gauge].max(self.now[gauge])
    }

    /// Begins peaks anew from the present values.
    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.now;
        self.set_limits();
    }

    pub(crate) fn set_ceiling(&mut self, ceiling: Gauges) {
        self.ceiling = ceiling;
        self.set_limits();
    }

    fn set_limits(&mut self) {
        for gauge in 0..GAUGES {
            self.limit[gauge] = self.peak[gauge].min(self.ceiling[gauge]);
        }
    }
}

/// Device-wide peaks and how much of them is promised to lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct DevicePeaks {
    pub(crate) peak: Gauges,
    /// Sum of all lanes' ceilings; never above `peak`.
    promised: Gauges,
}

impl DevicePeaks {
    /// Takes back what a lane does not use.
    pub(crate) fn call_in(&mut self, lane: &mut Counters) {
        let mut ceiling = lane.ceiling;
        for (gauge, top) in ceiling.iter_mut().enumerate() {
            let spare = top.saturating_sub(lane.now[gauge]);
            *top -= spare;
            self.promised[gauge] -= spare;
        }
        lane.set_ceiling(ceiling);
    }

    /// Whether what is not promised covers what `lane` is short of.
    pub(crate) fn covers(&self, lane: &Counters) -> bool {
        (0..GAUGES)
            .all(|g| lane.now[g].saturating_sub(lane.ceiling[g]) <= self.peak[g] - self.promised[g])
    }

    /// Lifts the ceilings of `lane` to its present values, and the peaks where what is not promised
    /// does not cover that; then promises it half of the rest.
    pub(crate) fn raise(&mut self, lane: &mut Counters) {
        let mut ceiling = lane.ceiling;
        for (gauge, top) in ceiling.iter_mut().enumerate() {
            let short = lane.now[gauge].saturating_sub(*top);
            let open = self.peak[gauge] - self.promised[gauge];
            self.peak[gauge] += short.saturating_sub(open);
            let more = if short > 0 { open.saturating_sub(short) / 2 } else { 0 };
            *top += short + more;
            self.promised[gauge] += short + more;
        }
        lane.set_ceiling(ceiling);
    }

    /// Forgets the peaks: they begin anew from what is promised once every lane has been called in.
    pub(crate) fn reset(&mut self) {
        self.peak = self.promised;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(lane: usize, bytes: u64, lanes: &mut [Counters], device: &mut DevicePeaks) {
        if lanes[lane].allocated(bytes, bytes) && lanes[lane].settle_peaks() {
            if !device.covers(&lanes[lane]) {
                lanes.iter_mut().for_each(|l| device.call_in(l));
            }
            device.raise(&mut lanes[lane]);
        }
    }

    #[test]
    fn device_peak_is_the_peak_of_the_sum_whatever_the_order() {
        let (mut lanes, mut device) = (vec![Counters::default(); 3], DevicePeaks::default());
        let mut live: Vec<(usize, u64)> = Vec::new();
        let (mut seed, mut peak) = (7u64, 0);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let roll = (seed >> 33) as usize;
            if roll % 5 < 3 && live.len() < 200 {
                let (lane, bytes) = (roll % 3, (roll as u64 % 977 + 1) * 512);
                allocate(lane, bytes, &mut lanes, &mut device);
                live.push((lane, bytes));
            } else if !live.is_empty() {
                let (lane, bytes) = live.swap_remove(roll % live.len());
                lanes[lane].freed(bytes, bytes, false);
            }
            let sum = live.iter().map(|l| l.1).sum::<u64>();
            peak = peak.max(sum);
            assert_eq!(lanes.iter().map(|l| l.now[ALLOCATED]).sum::<u64>(), sum);
            assert_eq!(device.peak[ALLOCATED], peak);
            assert_eq!(device.peak[REQUESTED], peak);
        }
    }
}
