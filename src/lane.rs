//! A lane: the front, the heap and the policies that serve one stream in one pool.
//!
//! Lanes live in static memory: a lane whose pool is gone is emptied and used again for another
//! stream, so that a handle may point at its lane without counting references.
use crate::driver::StreamId;
use crate::front::{Front, Whereabouts};
use crate::heap::{CutAt, Heap, Hole, HoleWant, Rule, Wrong};
use crate::pool::PoolCore;
use crate::returned::Returned;
use crate::settings::Settings;
use crate::sync::{self, Both, Twin};
use aquifer_policies::{
    BANDS_MAX, Band, BlockId, Direct, FirstFit, FreeBlock, GRAIN, Place, Policy, Request, Sizing,
};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How short memory has come to be over virtual ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shortage {
    #[default]
    None,
    /// The device is nearly full: idle pages are spared.
    Near,
    /// The driver or the cap has refused: requests go to the lowest place that can hold them, whether or not
    /// it is mapped.
    Refused,
}

/// Bytes that pages could be got for when the driver and the cap were last asked; [`u64::MAX`] until they
/// are asked, and again once memory has been given back or a step has begun. All lanes of a device see it.
#[derive(Clone)]
pub(crate) struct Room(Arc<AtomicU64>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Room {
    pub(crate) fn hear(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.hear(u64::MAX);
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The heap with the policies that decide in it.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) heap: Heap,
    pub(crate) shortage: Shortage,
    /// What the device has left.
    room: Room,
    /// The tick of the heap at which the next event is due, where frees are marked.
    next_mark: u64,
    bands: [Option<BandPolicy>; BANDS_MAX + 1],
    /// Where planned requests go; none before the first plan, and after its segment was released.
    pub(crate) plan: Option<PlanSpace>,
    /// The step of the planner in which there was no room for a plan.
    pub(crate) plan_refused_in: Option<u64>,
}

/// The band beyond those of a policy, in which planned requests lie.
pub(crate) const PLAN_BAND: u8 = BANDS_MAX as u8;

/// The addresses that offsets of a plan count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanSpace {
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// What came of a request for a place of the plan.
pub(crate) enum InPlan {
    Cut(FreeBlock),
    /// It is free, but has pages that are not mapped.
    Hole(Hole),
    /// Another block is in the way.
    Taken,
    /// The plan has no addresses there.
    NoSpace,
}

/// Frees between two marks.
const MARK_FREES: u64 = 128;

struct BandPolicy {
    policy: Direct,
}

/// What a new segment's size depends on beside the request; see [`Request`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) room: u64,
}

/// What is asked of a lane's books.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) band: Band,
    pub(crate) align: u64,
    /// The wholly free segment that was got for this request.
    pub(crate) fresh: Option<FreeBlock>,
}

impl BandPolicy {
    fn new(index: u8, settings: &Settings) -> Self {
        if index == PLAN_BAND {
            // Places come from the plan; what is needed is an index of free blocks by address.
            return BandPolicy { policy: Direct::FirstFit(FirstFit::new(Sizing::default())) };
        }
        BandPolicy { policy: settings.policy() }
    }

    /// The free block that `address` lies in, where the policy can tell faster than the heap.
    fn holding(&self, address: u64) -> Option<Option<FreeBlock>> {
        match &self.policy {
            Direct::FirstFit(policy) => Some(policy.holding(address)),
            _ => None,
        }
    }
}

impl Books {
    #[inline(always)]
    fn band(&mut self, index: u8, settings: &Settings) -> Result<&mut BandPolicy, Wrong> {
        if index == PLAN_BAND && !settings.plans {
            return Err(Wrong::OtherBand);
        }
        let slot = self.bands.get_mut(index as usize).ok_or(Wrong::OtherBand)?;
        Ok(slot.get_or_insert_with(|| BandPolicy::new(index, settings)))
    }

    /// Bytes that a lower place may lack for an answer to be passed over; no place is looked for if 0.
    #[inline(always)]
    fn lower_within(&self) -> u64 {
        if self.lowest_first() { self.room.bytes() } else { 0 }
    }

    /// Whether requests go to the lowest place that can hold them, mapped or not.
    #[inline(always)]
    pub(crate) fn lowest_first(&self) -> bool {
        self.shortage == Shortage::Refused
    }

    /// Whether the blocks that wait in `front` are worth merging before idle memory is touched. Where idle
    /// pages are not short, less than a page of them is not.
    #[inline(always)]
    fn spares_idle(&self, front: &Front) -> bool {
        let little = if self.shortage == Shortage::None { self.heap.page_bytes() } else { 0 };
        front.cached.bytes() > little || !front.deferred.is_empty()
    }

    /// Where the policy would place `want` now.
    #[inline(always)]
    fn answer(&mut self, want: &Want, settings: &Settings) -> Result<Place, Wrong> {
        let request = Request {
            size: want.band.size,
            align: want.align,
            reserved: 0,
            free: 0,
            room: u64::MAX,
            frugal: false,
        };
        Ok(self.band(want.band.index, settings)?.policy.place(&request))
    }

    /// Bytes of the segment the policy would like for `want`; nothing changes.
    pub(crate) fn wanted(
        &mut self,
        want: &Want,
        growth: &Growth,
        settings: &Settings,
    ) -> Result<u64, Wrong> {
        let size = want.band.size;
        let request = Request {
            size,
            align: want.align,
            reserved: growth.reserved,
            free: growth.free,
            room: growth.room,
            frugal: settings.slack.is_some(),
        };
        match self.band(want.band.index, settings)?.policy.place(&request) {
            Place::Grow { bytes } if bytes < size => Err(Wrong::TooShort),
            Place::Grow { bytes } => Ok(bytes),
            Place::Reuse { .. } => Ok(size),
        }
    }

    /// Whether enough was freed since the last mark for another one; then that one counts as made.
    #[cold]
    pub(crate) fn is_mark_due(&mut self) -> bool {
        let tick = self.heap.tick();
        let due = tick >= self.next_mark;
        if due {
            self.next_mark = tick + MARK_FREES;
        }
        due
    }

    /// Whether an answer is passed over for a lower place that is not mapped.
    fn has_lower_place(&self, want: &Want, block: BlockId, skip: u64) -> bool {
        let most = self.lower_within();
        let Band { index, size, .. } = want.band;
        let want = HoleWant { band: index, size, align: want.align, rule: Rule::Lowest };
        most > 0 && self.heap.has_lower_hole(&want, block, skip, most)
    }

    /// The pages from `address` on have memory now.
    pub(crate) fn map_pages(
        &mut self,
        address: u64,
        bytes: u64,
        band: u8,
        settings: &Settings,
    ) -> FreeBlock {
        let freed = self.heap.map_pages(address, bytes);
        let entry = self.band(band, settings).expect("the band was checked when it was asked for");
        entry.policy.freed(&freed);
        freed.result
    }

    /// Whole pages of free block `id` are to have no memory any more; whether they were free.
    pub(crate) fn unmap_pages(&mut self, id: BlockId, address: u64, bytes: u64, band: u8) -> bool {
        let Ok(cut) = self.heap.unmap_pages(id, address, bytes) else { return false };
        if let Some(entry) = &mut self.bands[band as usize] {
            entry.policy.unmapped(&cut);
        }
        true
    }

    /// Cuts `want` out of a free block at `address`, where that can be.
    pub(crate) fn cut_at(&mut self, address: u64, want: &Want) -> Option<FreeBlock> {
        let (size, band) = (want.band.size, want.band.index);
        let entry = self.bands[band as usize].as_mut()?;
        let found = entry.holding(address);
        let block = found.unwrap_or_else(|| self.heap.free_at(address))?;
        let skip = address.checked_sub(block.address)?;
        let at = CutAt { block: block.id, skip, take: size, size, align: want.align, band };
        let cut = self.heap.cut(at).ok()?;
        entry.policy.taken(&cut);
        Some(cut.taken())
    }

    /// Cuts `size` bytes out of the plan's space, `offset` bytes in, if they are free and mapped.
    pub(crate) fn cut_planned(&mut self, offset: u64, size: u64) -> InPlan {
        let Some(space) = self.plan else { return InPlan::NoSpace };
        if offset.checked_add(size).is_none_or(|end| end > space.size) {
            return InPlan::NoSpace;
        }
        let address = space.address + offset;
        let band = Band { index: PLAN_BAND, size, front: false };
        if let Some(taken) = self.cut_at(address, &Want { band, align: GRAIN, fresh: None }) {
            return InPlan::Cut(taken);
        }
        self.heap.hole_at(address, size).map_or(InPlan::Taken, InPlan::Hole)
    }

    /// Cuts `size` bytes out of the plan's space where it is free and mapped, as high as can be: the plan
    /// of a step that is not the largest has nothing there.
    pub(crate) fn cut_above_plan(&mut self, size: u64) -> Option<FreeBlock> {
        let band = PLAN_BAND;
        let entry = self.bands[band as usize].as_mut()?;
        let Direct::FirstFit(policy) = &mut entry.policy else { return None };
        let (block, skip) = policy.highest(size, GRAIN)?;
        let at = CutAt { block, skip, take: size, size, align: GRAIN, band };
        let cut = self.heap.cut(at).ok()?;
        policy.taken(&cut);
        Some(cut.taken())
    }

    /// Enters a segment from the driver or from another lane.
    pub(crate) fn add_segment(&mut self, segment: Detached, settings: &Settings) -> FreeBlock {
        let freed = self.heap.add_segment(segment.address, segment.size, segment.band);
        let band =
            self.band(segment.band, settings).expect("the band was checked when it was asked for");
        band.policy.freed(&freed);
        freed.result
    }

    /// Takes out the segment that free block `id` fills.
    pub(crate) fn detach(&mut self, id: BlockId, band: u8) -> Option<Detached> {
        let gone = self.heap.remove_segment(id)?;
        if self.plan.is_some_and(|space| space.address == gone.address) {
            self.plan = None;
        }
        let entry = self.bands[band as usize].as_mut()?;
        entry.policy.released(gone);
        Some(Detached { address: gone.address, size: gone.size, band })
    }

    /// Frees used block `id` of `band`. Some(detached) where its segment is idle and the policy does not
    /// keep it.
    #[inline(always)]
    pub(crate) fn free(&mut self, id: BlockId, band: u8) -> Option<Detached> {
        let entry = self.bands[band as usize].as_mut().expect("the block came from this band");
        let unwanted = match &mut entry.policy {
            Direct::FirstFit(policy) => merge(policy, &mut self.heap, id),
            Direct::Bins(policy) => merge(policy, &mut self.heap, id),
            Direct::Other(policy) => merge_apart(&mut **policy, &mut self.heap, id),
        };
        self.detach(unwanted?, band)
    }

    /// Tells the policies that a step begins.
    pub(crate) fn mark(&mut self, step: u64) {
        self.bands.iter_mut().flatten().for_each(|b| b.policy.mark(step));
    }
}

/// A segment on its way: out of one heap, not yet in another or back with the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Detached {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) band: u8,
}

/// How a lane over virtual ranges begins.
pub(crate) struct Paging {
    pub(crate) page_bytes: u64,
    pub(crate) shortage: Shortage,
    pub(crate) room: Room,
}

/// Front and books of a lane, held.
pub(crate) type LaneGuard<'a> = Both<'a, Front, Books>;
/// The front of a lane, held.
pub(crate) type FrontGuard<'a> = crate::sync::Front<'a, Front, Books>;

/// See the module's page.
pub(crate) struct Lane {
    pub(crate) twin: Twin<Front, Books>,
    /// Blocks freed while another thread held the front.
    pub(crate) returned: Returned,
    stream: AtomicU64,
    /// The fork epoch it was made in.
    epoch: AtomicU32,
    /// Held while the lane grows, so that two threads do not both ask the driver for what one segment
    /// would have served.
    pub(crate) growing: sync::Mutex<()>,
}

/// Lanes that serve nobody.
static VACANT: Mutex<Vec<&'static Lane>> = Mutex::new(Vec::new());

/// The vacant lanes. In a forked child only tried: a thread that is not there may hold the lock for ever,
/// and lanes are left then.
/// In a model of loom's they are left as well: nothing may outlive one run of it.
fn vacant() -> Option<MutexGuard<'static, Vec<&'static Lane>>> {
    if cfg!(loom) {
        return None;
    }
    if crate::fork::epoch() == 0 { Some(VACANT.lock()) } else { VACANT.try_lock() }
}

impl Lane {
    fn new() -> Self {
        Lane {
            twin: Twin::new(Front::vacant(), Books::default()),
            returned: Returned::new(),
            stream: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            growing: sync::Mutex::new(()),
        }
    }

    /// A vacant lane, bound to `stream` with a fresh front.
    pub(crate) fn bind(stream: StreamId, front: Front, paging: Option<Paging>) -> &'static Lane {
        // A lane of the parent's may be locked for ever in a forked child.
        let epoch = crate::fork::epoch();
        let found = vacant().and_then(|mut vacant| {
            let at = vacant.iter().position(|l| l.epoch.load(Ordering::Relaxed) == epoch)?;
            Some(vacant.swap_remove(at))
        });
        let lane = found.unwrap_or_else(|| Box::leak(Box::new(Lane::new())));
        lane.epoch.store(epoch, Ordering::Relaxed);
        lane.stream.store(stream.0, Ordering::Relaxed);
        lane.returned.reopen();
        {
            let mut both = lane.twin.both();
            let (own, books) = both.parts();
            *own = front;
            if let Some(Paging { page_bytes, shortage, room }) = paging {
                books.heap.set_page(page_bytes);
                books.shortage = shortage;
                books.room = room;
            }
        }
        lane
    }

    /// Empties the lane for the next user. Nothing of it may be out.
    pub(crate) fn unbind(&'static self) {
        {
            let mut both = self.twin.both();
            let (front, books) = both.parts();
            *front = Front::vacant();
            *books = Books::default();
        }
        if let Some(mut vacant) = vacant() {
            vacant.push(self);
        }
    }

    /// The stream it serves.
    #[inline(always)]
    pub(crate) fn stream(&self) -> StreamId {
        StreamId(self.stream.load(Ordering::Relaxed))
    }

    /// Whether this process is a forked child of the one that made the lane.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) != crate::fork::epoch()
    }

    /// The front, if `serves` says yes of the pool that the lane serves now: it may have come from a list
    /// that is older than that.
    pub(crate) fn front_if(
        &'static self,
        serves: impl FnOnce(&PoolCore) -> bool,
    ) -> Option<FrontGuard<'static>> {
        let front = self.twin.front();
        front.pool.as_deref().is_some_and(serves).then_some(front)
    }

    /// As [`Lane::front_if`], front and books.
    pub(crate) fn both_if(
        &'static self,
        serves: impl FnOnce(&PoolCore) -> bool,
    ) -> Option<LaneGuard<'static>> {
        let mut both = self.twin.both();
        both.parts().0.pool.as_deref().is_some_and(serves).then_some(both)
    }

    /// Says that the lane is to go, if it serves `pool`. Blocks freed from now on are not left in the
    /// queue.
    pub(crate) fn begin_closing(&'static self, pool: &PoolCore) {
        let Some(front) = self.front_if(|p| std::ptr::eq(p, pool)) else { return };
        self.returned.close();
        drop(front);
    }

    /// Leaves a freed block for whoever comes next; whether that is the caller.
    #[cold]
    pub(crate) fn leave(&self, id: BlockId) -> bool {
        self.returned.leave(id, || self.twin.try_front().is_some())
    }
}

/// Cuts a block for a request of `band`, if that takes nothing but the policy's answer. A segment the
/// policy does not want to keep is put into `gone`, and the request not placed.
#[inline(always)]
pub(crate) fn place_plainly(
    front: &mut Front,
    books: &mut Books,
    band: Band,
    gone: &mut Option<Detached>,
) -> Option<FreeBlock> {
    if let Some(last) = front.cached.take_last() {
        *gone = merge_into_heap(front, books, last);
        if gone.is_some() {
            return None;
        }
    }
    let placing =
        Placing { spares_idle: books.spares_idle(front), lower_within: books.lower_within() };
    let entry = books.bands.get_mut(band.index as usize)?.as_mut()?;
    match &mut entry.policy {
        Direct::FirstFit(policy) => cut(policy, &mut books.heap, band, placing),
        Direct::Bins(policy) => cut(policy, &mut books.heap, band, placing),
        Direct::Other(policy) => cut_apart(&mut **policy, &mut books.heap, band, placing),
    }
}

/// What an answer is passed over for.
#[derive(Clone, Copy)]
struct Placing {
    /// Idle memory is to be spared while freed blocks wait unmerged.
    spares_idle: bool,
    /// A lower place, though it lacks so many bytes of pages, comes first.
    lower_within: u64,
}

/// What `policy` would take for a request of `band`, cut; `None` where it would grow, answers wrongly, or
/// would touch idle memory that is to be spared.
///
/// One copy per policy: the compiler sees through the whole of policy, check and books, and of the check
/// little is left.
#[inline(always)]
fn cut(
    policy: &mut (impl Policy + ?Sized),
    heap: &mut Heap,
    band: Band,
    placing: Placing,
) -> Option<FreeBlock> {
    let Band { index, size, .. } = band;
    let Place::Reuse { block, skip, take } = policy.place(&Request::new(size, GRAIN)) else {
        return None;
    };
    if placing.spares_idle && heap.touches_idle(block, skip, take) {
        return None;
    }
    if placing.lower_within > 0 {
        let want = HoleWant { band: index, size, align: GRAIN, rule: Rule::Lowest };
        if heap.has_lower_hole(&want, block, skip, placing.lower_within) {
            return None;
        }
    }
    let cut = heap.cut(CutAt { block, skip, take, size, align: GRAIN, band: index }).ok()?;
    policy.taken(&cut);
    Some(cut.taken())
}

#[inline(never)]
fn cut_apart(
    policy: &mut dyn Policy,
    heap: &mut Heap,
    band: Band,
    placing: Placing,
) -> Option<FreeBlock> {
    cut(policy, heap, band, placing)
}

/// Frees used block `id`; the segment that is idle then, if `policy` does not want to keep it.
#[inline(always)]
fn merge(policy: &mut (impl Policy + ?Sized), heap: &mut Heap, id: BlockId) -> Option<BlockId> {
    let (freed, is_idle) = heap.free(id);
    policy.freed(&freed);
    (is_idle && !policy.keeps(freed.result)).then_some(freed.result.id)
}

#[inline(never)]
fn merge_apart(policy: &mut dyn Policy, heap: &mut Heap, id: BlockId) -> Option<BlockId> {
    merge(policy, heap, id)
}

/// Cuts a block for `want`, if the policy finds one and the heap agrees. The front cache is merged into
/// the heap first where the request would else touch idle memory or find nothing; segments the policy
/// does not want to keep then are put into `gone`. A policy that would grow again gets the front of the
/// segment that it asked for.
pub(crate) fn place(
    front: &mut Front,
    books: &mut Books,
    want: &Want,
    settings: &Settings,
    gone: &mut Vec<Detached>,
) -> Result<Option<FreeBlock>, Wrong> {
    if let Some(last) = front.cached.take_last() {
        gone.extend(merge_into_heap(front, books, last));
    }
    let mut answer = books.answer(want, settings)?;
    if books.spares_idle(front) {
        let touches_idle = match answer {
            Place::Reuse { block, skip, take } => books.heap.touches_idle(block, skip, take),
            Place::Grow { .. } => true,
        };
        if touches_idle {
            flush(front, books, gone);
            answer = books.answer(want, settings)?;
        }
    }
    let (size, band) = (want.band.size, want.band.index);
    let (block, skip, take) = match answer {
        Place::Reuse { block, skip, .. } if books.has_lower_place(want, block, skip) => {
            return Ok(None);
        }
        Place::Reuse { block, skip, take } => (block, skip, take),
        Place::Grow { .. } => match want.fresh {
            Some(block) => (block.id, block.skip_to(want.align), size),
            None => return Ok(None),
        },
    };
    let cut = books.heap.cut(CutAt { block, skip, take, size, align: want.align, band })?;
    if let Some(entry) = &mut books.bands[band as usize] {
        entry.policy.taken(&cut);
    }
    Ok(Some(cut.taken()))
}

/// Puts a block that is nobody's into the heap. Some(detached) where its segment is idle and the policy
/// does not keep it.
#[inline(always)]
pub(crate) fn put_into_heap(front: &mut Front, books: &mut Books, id: BlockId) -> Option<Detached> {
    let band = front.put(id, Whereabouts::Heap);
    if let Some(planner) = &mut front.planner {
        planner.freed(id);
    }
    books.free(id, band)
}

/// As [`put_into_heap`], out of line.
#[inline(never)]
fn merge_into_heap(front: &mut Front, books: &mut Books, id: BlockId) -> Option<Detached> {
    put_into_heap(front, books, id)
}

/// Merges into the heap the freed blocks that waited for it and all of the front cache.
pub(crate) fn flush(front: &mut Front, books: &mut Books, gone: &mut Vec<Detached>) {
    let mut ids = std::mem::take(&mut front.deferred);
    front.cached.drain(|id| ids.push(id));
    for id in ids.drain(..) {
        gone.extend(merge_into_heap(front, books, id));
    }
    front.deferred = ids;
}
