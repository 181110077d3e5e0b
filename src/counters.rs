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

/// What is with callers, or how far that may go: bytes, requested bytes, count.
#[derive(Clone, Copy, Debug, Default)]
struct Out {
    bytes: u64,
    requested: u64,
    blocks: u64,
}

/// Counters of one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// With callers.
    out: Out,
    /// Freed and waiting for events. What is active is that and what is with callers.
    pending_bytes: u64,
    pending_blocks: u64,
    peak: Gauges,
    /// See the module's page.
    ceiling: Gauges,
    /// While no part of `out` is above this, no gauge is above the lesser of its peak and its ceiling.
    limit: Out,
    pub(crate) flow: [Flow; 2],
    /// Requests served by the front cache.
    pub(crate) front_hits: u64,
    /// Requests served at the place that a plan named; those that were not, under a policy that plans.
    pub(crate) plan_hits: u64,
    pub(crate) plan_misses: u64,
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
        let (out, limit) = (&mut self.out, &self.limit);
        out.bytes += size;
        out.requested += requested;
        out.blocks += 1;
        (out.bytes > limit.bytes) | (out.requested > limit.requested) | (out.blocks > limit.blocks)
    }

    /// Counts a block given back; `pending` where it stays active, waiting for events.
    #[inline(always)]
    pub(crate) fn freed(&mut self, size: u64, requested: u64, pending: bool) {
        let flow = &mut self.flow[flow_of(size)];
        flow.freed_bytes += size;
        flow.freed_requested_bytes += requested;
        flow.frees += 1;
        self.out.bytes -= size;
        self.out.requested -= requested;
        self.out.blocks -= 1;
        if pending {
            self.pending_bytes += size;
            self.pending_blocks += 1;
            self.set_limits();
        }
    }

    /// The gauges.
    pub(crate) fn now(&self) -> Gauges {
        let Out { bytes, requested, blocks } = self.out;
        [bytes, requested, bytes + self.pending_bytes, blocks, blocks + self.pending_blocks]
    }

    /// Bytes in blocks with callers.
    #[inline(always)]
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.out.bytes
    }

    /// Counts a pending block whose events are done.
    pub(crate) fn no_longer_active(&mut self, size: u64) {
        self.pending_bytes -= size;
        self.pending_blocks -= 1;
        self.set_limits();
    }

    /// Raises the lane's own peaks; whether a ceiling is passed too.
    pub(crate) fn settle_peaks(&mut self) -> bool {
        let mut over = false;
        for (gauge, now) in self.now().into_iter().enumerate() {
            self.peak[gauge] = self.peak[gauge].max(now);
            over |= now > self.ceiling[gauge];
        }
        self.set_limits();
        over
    }

    /// The lane's own peak of `gauge`.
    pub(crate) fn peak_now(&self, gauge: usize) -> u64 {
        self.peak[gauge].max(self.now()[gauge])
    }

    /// Begins peaks anew from the present values.
    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.now();
        self.set_limits();
    }

    pub(crate) fn set_ceiling(&mut self, ceiling: Gauges) {
        self.ceiling = ceiling;
        self.set_limits();
    }

    fn set_limits(&mut self) {
        let limit = |gauge: usize| self.peak[gauge].min(self.ceiling[gauge]);
        let active_bytes = limit(ACTIVE).saturating_sub(self.pending_bytes);
        let active_blocks = limit(ACTIVE_BLOCKS).saturating_sub(self.pending_blocks);
        self.limit = Out {
            bytes: limit(ALLOCATED).min(active_bytes),
            requested: limit(REQUESTED),
            blocks: limit(ALLOCATIONS).min(active_blocks),
        };
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
        let (now, mut ceiling) = (lane.now(), lane.ceiling);
        for (gauge, top) in ceiling.iter_mut().enumerate() {
            let spare = top.saturating_sub(now[gauge]);
            *top -= spare;
            self.promised[gauge] -= spare;
        }
        lane.set_ceiling(ceiling);
    }

    /// Whether what is not promised covers what `lane` is short of.
    pub(crate) fn covers(&self, lane: &Counters) -> bool {
        let now = lane.now();
        (0..GAUGES)
            .all(|g| now[g].saturating_sub(lane.ceiling[g]) <= self.peak[g] - self.promised[g])
    }

    /// Lifts the ceilings of `lane` to its present values, and the peaks where what is not promised
    /// does not cover that; then promises it half of the rest.
    pub(crate) fn raise(&mut self, lane: &mut Counters) {
        let (now, mut ceiling) = (lane.now(), lane.ceiling);
        for (gauge, top) in ceiling.iter_mut().enumerate() {
            let short = now[gauge].saturating_sub(*top);
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
            assert_eq!(lanes.iter().map(|l| l.now()[ALLOCATED]).sum::<u64>(), sum);
            assert_eq!(device.peak[ALLOCATED], peak);
            assert_eq!(device.peak[REQUESTED], peak);
        }
    }
}
