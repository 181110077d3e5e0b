//! A recount of everything an allocator keeps, from the blocks up.
use crate::counters::{ACTIVE, ACTIVE_BLOCKS, ALLOCATED, ALLOCATIONS, GAUGES, Gauges, REQUESTED};
use crate::device::Device;
use crate::front::Whereabouts;
use crate::lane::{Lane, LaneGuard};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::Ordering;

impl Device {
    /// Recounts all lanes and what they share.
    ///
    /// # Errors
    /// What does not add up.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut reserved = self.orphaned_bytes();
        let mut sum: Gauges = [0; GAUGES];
        let mut segments: Vec<(u64, u64)> = Vec::new();
        let mut waiting = 0;
        self.take_in_returned();
        for (lane, mut both) in self.boths() {
            let counted = audit_lane(lane, &mut both)?;
            sum.iter_mut().zip(counted).for_each(|(s, c)| *s += c);
            let (front, books) = both.parts();
            reserved += books.heap.reserved_bytes();
            segments.extend(books.heap.segments().map(|s| (s.address, s.size)));
            waiting +=
                front.outside().filter(|(_, h)| h.whereabouts == Whereabouts::Pending).count();
        }
        segments.sort_unstable();
        if let Some(w) = segments.windows(2).find(|w| w[0].0 + w[0].1 > w[1].0) {
            return Err(format!("segments {:#x} and {:#x} of two streams overlap", w[0].0, w[1].0));
        }
        let kept = self.reserved.lock().bytes;
        if kept != reserved {
            return Err(format!("reserved: counted {reserved}, kept {kept}"));
        }
        let pending = self.pending.lock().len();
        let pending_len = self.pending_len.load(Ordering::Relaxed);
        if pending != waiting || pending_len != waiting {
            return Err(format!("{waiting} blocks wait, {pending} entered, {pending_len} counted"));
        }
        let peaks = self.peaks();
        if (0..GAUGES).any(|g| peaks[g] < sum[g]) {
            return Err(format!("peaks {peaks:?} are below what is out, {sum:?}"));
        }
        Ok(())
    }

    /// Live bytes per place that asked for them, most first.
    pub(crate) fn sites(&self) -> Vec<(&'static Location<'static>, u64)> {
        let mut by_site: HashMap<&'static Location<'static>, u64> = HashMap::new();
        for front in self.fronts() {
            for (id, held) in front.outside().filter(|(_, h)| h.is_out()) {
                if let Some(site) = front.more(id).and_then(|more| more.site) {
                    *by_site.entry(site).or_default() += held.requested;
                }
            }
        }
        let mut all: Vec<_> = by_site.into_iter().collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| place(a.0).cmp(&place(b.0))));
        all
    }
}

fn place(l: &Location<'static>) -> (&'static str, u32, u32) {
    (l.file(), l.line(), l.column())
}

/// Checks one lane and returns its recount.
fn audit_lane(lane: &Lane, both: &mut LaneGuard<'_>) -> Result<Gauges, String> {
    let (front, books) = both.parts();
    let of = |what: String| format!("stream {:#x}: {what}", lane.stream().0);
    books.heap.audit().map_err(&of)?;
    let mut outside: HashMap<u32, (u64, u64)> =
        front.outside().map(|(id, h)| (id.0, (h.address, h.size))).collect();
    for block in books.heap.blocks().filter(|b| !b.free && !b.unmapped) {
        let known = outside.remove(&block.id.0);
        if known != Some((block.address, block.size)) {
            return Err(of(format!(
                "block {:#x} is used, the front knows {known:?}",
                block.address
            )));
        }
    }
    if !outside.is_empty() {
        return Err(of(format!("{} blocks are out that the heap has free", outside.len())));
    }
    let mut counted: Gauges = [0; GAUGES];
    let mut cached = 0;
    for (_, held) in front.outside() {
        match held.whereabouts {
            Whereabouts::Out => {
                counted[ALLOCATED] += held.size;
                counted[REQUESTED] += held.requested;
                counted[ALLOCATIONS] += 1;
                counted[ACTIVE] += held.size;
                counted[ACTIVE_BLOCKS] += 1;
            }
            Whereabouts::Pending => {
                counted[ACTIVE] += held.size;
                counted[ACTIVE_BLOCKS] += 1;
            }
            Whereabouts::Cached => cached += held.size,
            Whereabouts::Deferred | Whereabouts::Heap => {}
        }
    }
    if counted != front.counters.now() {
        return Err(of(format!("gauges: counted {counted:?}, kept {:?}", front.counters.now())));
    }
    let listed: u64 = front.cached.blocks().map(|id| front.held(id).size).sum();
    if cached != front.cached.bytes() || cached != listed {
        return Err(of(format!("front cache: {cached} counted, {listed} listed")));
    }
    let flow = &front.counters.flow;
    let current: u64 = flow.iter().map(|f| f.allocated_bytes - f.freed_bytes).sum();
    if current != counted[ALLOCATED] {
        return Err(of(format!("flow says {current} bytes are out")));
    }
    Ok(counted)
}
