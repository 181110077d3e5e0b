//! Giving memory back: idle segments, closing pools, the cap on cached bytes.
use crate::cache::take_in_returned;
use crate::counters::{ACTIVE, ACTIVE_BLOCKS, ALLOCATED, GAUGES, Gauges};
use crate::driver::{Call, DriverError, StreamId};
use crate::error::AllocError;
use crate::heap::SegmentView;
use crate::lane::{Detached, Lane, flush};
use crate::pool::PoolCore;
use aquifer_policies::BlockId;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often a wait that nobody could repeat may fail before its blocks are given up.
const WAIT_FAILURES_MAX: u32 = 3;

/// What [`crate::Allocator::empty_cache`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes given back to the driver.
    pub released_bytes: u64,
    /// Segments given back to the driver.
    pub released_segments: u64,
    /// Bytes still held from the driver.
    pub reserved_bytes: u64,
    /// Of these, bytes that no caller holds, but that lie in a segment where some caller holds others.
    pub stranded_bytes: u64,
}

/// What a release gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Released {
    pub(crate) released_bytes: u64,
    pub(crate) released_segments: u64,
    /// The first refusal; what was refused is back in the books.
    pub(crate) error: Option<DriverError>,
}

/// Whose idle segments are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    ThisPool,
    AllPools,
}

/// An idle segment and where it is.
struct Idle {
    pool: Arc<PoolCore>,
    lane: &'static Lane,
    block: BlockId,
    segment: Detached,
}

impl PoolCore {
    /// The pools meant, oldest first.
    pub(crate) fn among(self: &Arc<Self>, among: Among) -> Vec<Arc<PoolCore>> {
        match among {
            Among::ThisPool => vec![self.clone()],
            Among::AllPools => {
                self.device.pools.lock().iter().filter_map(std::sync::Weak::upgrade).collect()
            }
        }
    }

    /// Merges what waits in the front caches of all pools: it hides idle memory.
    pub(crate) fn flush_fronts(self: &Arc<Self>) {
        for pool in self.among(Among::AllPools) {
            for lane in pool.lanes() {
                take_in_returned(lane);
                let ours = |p: &PoolCore| std::ptr::eq(p, &*pool);
                let Some(mut both) = lane.both_if(ours) else { continue };
                let (front, books) = both.parts();
                let mut gone = Vec::new();
                flush(front, books, &mut gone);
                drop(both);
                pool.give_up(lane, gone);
            }
        }
    }

    /// Every idle segment, after front caches are flushed: larger ones first, then by address.
    fn idle(self: &Arc<Self>, among: Among) -> Vec<Idle> {
        let mut all = Vec::new();
        for pool in self.among(among) {
            for lane in pool.lanes() {
                take_in_returned(lane);
                let ours = |p: &PoolCore| std::ptr::eq(p, &*pool);
                let Some(mut both) = lane.both_if(ours) else { continue };
                let (front, books) = both.parts();
                let mut gone = Vec::new();
                flush(front, books, &mut gone);
                for (block, s) in books.heap.idle_segments() {
                    let segment = Detached { address: s.address, size: s.size, band: s.band };
                    all.push(Idle { pool: pool.clone(), lane, block, segment });
                }
                drop(both);
                pool.give_up(lane, gone);
            }
        }
        all.sort_by_key(|i| (std::cmp::Reverse(i.segment.size), i.segment.address));
        all
    }

    /// Gives idle segments back to the driver until at least `bytes` are released.
    pub(crate) fn release_idle(self: &Arc<Self>, bytes: u64, among: Among) -> Released {
        let error = match self.device.is_capturing() {
            Ok(None) => None,
            // It would spoil the capture.
            Ok(Some(_)) => Some(DriverError::Capturing(Call::Free)),
            Err(error) => Some(error),
        };
        let mut released = Released { error, ..Released::default() };
        if released.error.is_some() {
            return released;
        }
        match self.device.release_orphans() {
            Ok(bytes) => released.released_bytes += bytes,
            Err(error) => released.error = Some(error),
        }
        if self.device.pages.is_some() {
            let missing = bytes.saturating_sub(released.released_bytes);
            let paged = self.release_pages(missing, among);
            released.released_bytes += paged.released_bytes;
            released.released_segments += paged.released_segments;
            released.error = released.error.or(paged.error);
            return released;
        }
        for idle in choose(self.idle(among), bytes) {
            if released.released_bytes >= bytes {
                break;
            }
            let detached = {
                let ours = |p: &PoolCore| std::ptr::eq(p, &*idle.pool);
                let Some(mut both) = idle.lane.both_if(ours) else { continue };
                let books = both.parts().1;
                // Another thread may have used it since, or another segment may have come to lie there.
                let Detached { address, size, band } = idle.segment;
                let same = |(block, s): (BlockId, SegmentView)| {
                    (block, s.address, s.size, s.band) == (idle.block, address, size, band)
                };
                let still = books.heap.idle_segments().any(same);
                if still { books.detach(idle.block, band) } else { None }
            };
            let Some(segment) = detached else { continue };
            match idle.pool.release_segment(idle.lane, segment) {
                Ok(()) => {
                    released.released_bytes += segment.size;
                    released.released_segments += 1;
                }
                Err(error) => {
                    released.error.get_or_insert(error);
                }
            }
        }
        released
    }

    /// Waits for blocks that other streams use, then gives back every idle segment.
    pub(crate) fn empty(self: &Arc<Self>, among: Among) -> Result<Trimmed, AllocError> {
        if self.is_forked() {
            return Err(AllocError::Forked);
        }
        if let Some(stream) = self.device.is_capturing()? {
            return Err(AllocError::Capturing { stream, bytes: 0 });
        }
        self.poll_pending()?;
        while self.wait_for_one()? {}
        let released = self.release_idle(u64::MAX, among);
        if let Some(recorder) = self.device.recorder.lock().as_mut() {
            recorder.empty_cache();
        }
        match released.error {
            Some(error) => Err(error.into()),
            None => {
                self.device.note_emptied(released.released_bytes);
                Ok(self.trimmed(among, &released))
            }
        }
    }

    pub(crate) fn empty_cache(self: &Arc<Self>) -> Result<Trimmed, AllocError> {
        self.empty(Among::ThisPool)
    }

    fn trimmed(self: &Arc<Self>, among: Among, released: &Released) -> Trimmed {
        let pools = self.among(among);
        let reserved_bytes = pools.iter().map(|p| p.reserved_bytes()).sum::<u64>();
        let active: u64 = pools.iter().map(|p| p.now()[ACTIVE]).sum();
        Trimmed {
            released_bytes: released.released_bytes,
            released_segments: released.released_segments,
            reserved_bytes,
            stranded_bytes: reserved_bytes.saturating_sub(active),
        }
    }

    /// Releases idle segments while cached bytes (reserved, but in no block handed out) are over the cap.
    pub(crate) fn enforce_cached_cap(self: &Arc<Self>) {
        let Some(cap) = self.device.settings.cached_bytes_cap else { return };
        let reserved = self.device.reserved.lock().bytes;
        let cached = reserved.saturating_sub(self.device.now()[ALLOCATED]);
        if cached > cap {
            let released = self.release_idle(cached - cap, Among::AllPools);
            if let Some(error) = released.error {
                self.device.note(error);
            }
        }
    }

    /// Bytes this pool holds from the driver.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let ours = |p: &PoolCore| std::ptr::eq(p, self);
        let boths = self.lanes().into_iter().filter_map(|lane| lane.both_if(ours));
        boths.map(|mut both| both.parts().1.heap.reserved_bytes()).sum()
    }

    /// Sum of this pool's gauges.
    pub(crate) fn now(&self) -> Gauges {
        let mut sum = [0; GAUGES];
        for lane in self.lanes() {
            take_in_returned(lane);
            let ours = |p: &PoolCore| std::ptr::eq(p, self);
            let Some(front) = lane.front_if(ours) else { continue };
            sum.iter_mut().zip(front.counters.now()).for_each(|(s, n)| *s += n);
        }
        sum
    }

    /// Nobody can ask the pool any more: gives idle memory back now, the rest as it is freed.
    pub(crate) fn close(self: &Arc<Self>) {
        self.keeps_pages.store(false, Ordering::Relaxed);
        for lane in self.lanes() {
            lane.begin_closing(self);
        }
        if let Err(error) = self.poll_pending() {
            self.device.note(error);
        }
        self.wait_if_last();
        for lane in self.lanes() {
            take_in_returned(lane);
            self.retire_if_empty(lane);
        }
        let released = self.release_idle(u64::MAX, Among::ThisPool);
        if let Some(error) = released.error {
            self.device.note(error);
        }
    }

    /// Waits for the blocks that other streams use if no pool of the device is open: nobody polls then. A
    /// failing driver is asked a few times more.
    pub(crate) fn wait_if_last(&self) {
        let mut failures = 0;
        while self.device.open_pools.load(Ordering::Acquire) == 0 && failures < WAIT_FAILURES_MAX {
            match self.wait_for_one() {
                Ok(true) => {}
                Ok(false) => return,
                Err(AllocError::Driver(error)) => {
                    self.device.note(error);
                    failures += 1;
                }
                Err(_) => return,
            }
        }
    }

    /// Gives back what is idle in a closing lane, and ends the lane if it holds nothing for anybody.
    pub(crate) fn retire_if_empty(self: &Arc<Self>, lane: &'static Lane) {
        let is_capturing = self.device.is_capturing();
        let mut both = lane.twin.both();
        let (front, books) = both.parts();
        let ours = front.pool.as_deref().is_some_and(|p| std::ptr::eq(p, &**self));
        if !ours || !lane.returned.is_closing() {
            return;
        }
        let mut segments = Vec::new();
        flush(front, books, &mut segments);
        let idle: Vec<(BlockId, u8)> =
            books.heap.idle_segments().map(|(id, s)| (id, s.band)).collect();
        segments.extend(idle.into_iter().filter_map(|(id, band)| books.detach(id, band)));
        let last = (front.counters.now()[ACTIVE_BLOCKS] == 0)
            .then(|| (std::mem::take(&mut front.counters), front.pool.take()));
        let has_ranges = books.heap.ranges().next().is_some();
        let ranges = if last.is_some() { books.heap.mapped_ranges() } else { Vec::new() };
        drop(both);
        if let Some((mut counters, keep_alive)) = last {
            let stream = lane.stream();
            self.forget_lane(lane);
            self.device.remove_lane(lane, &mut counters);
            self.abandon(lane, stream, ranges);
            lane.unbind();
            self.release_or_keep(lane, segments, is_capturing);
            drop(keep_alive);
        } else {
            self.release_or_keep(lane, segments, is_capturing);
            // Under a capture the pages wait for the pool's next free.
            if has_ranges && is_capturing == Ok(None) {
                let released = self.release_idle(u64::MAX, Among::ThisPool);
                released.error.into_iter().for_each(|error| self.device.note(error));
            }
        }
    }

    /// Gives segments back to the driver; those it refuses return to the lane, or to the device if the
    /// lane has gone, and so do all while a stream is captured: a free would spoil the capture.
    pub(crate) fn release_or_keep(
        &self,
        lane: &'static Lane,
        segments: Vec<Detached>,
        is_capturing: Result<Option<StreamId>, DriverError>,
    ) {
        if let Err(error) = is_capturing {
            self.device.note(error);
        }
        for segment in segments {
            if is_capturing != Ok(None) {
                self.attach(lane, segment);
            } else if let Err(error) = self.release_segment(lane, segment) {
                self.device.note(error);
            }
        }
    }
}

/// Which idle segments go when `bytes` are wanted: the smallest one that suffices alone, else larger
/// ones first, so that few calls are made.
fn choose(mut idle: Vec<Idle>, bytes: u64) -> Vec<Idle> {
    if let Some(last_enough) = idle.iter().rposition(|i| i.segment.size >= bytes) {
        idle.swap(0, last_enough);
        idle.truncate(1);
    }
    idle
}
