//! The hub: the one place where policy, heap and driver meet. It knows the order of things; how each is
//! done is elsewhere.
//!
//! A request: front cache, then the lane's books, then [`PoolCore::slow`]. Two rules hold everywhere:
//! driver first, books after; and no driver call while a front or a heap is held.
use crate::allocation::Allocation;
use crate::device::{FORKED_FREES, bump};
use crate::driver::{Capture, DriverError, EventId, StreamId};
use crate::error::AllocError;
use crate::front::{Front, Held, Known, TakenBack, Whereabouts};
use crate::heap::Wrong;
use crate::lane::{self, Detached, FrontGuard, Lane, LaneGuard, Want};
use crate::pending::{self, Home};
use crate::pool::PoolCore;
use aquifer_policies::{Band, BlockId, FreeBlock, GRAIN, SIZE_MAX};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Largest alignment, in bytes.
pub(crate) const ALIGN_MAX: u64 = 2 << 20;

/// Largest size that a policy may round a request to, in bytes.
const BAND_SIZE_MAX: u64 = 2 * SIZE_MAX - ALIGN_MAX;

/// What a caller asks for.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    pub(crate) stream: StreamId,
    pub(crate) site: &'static Location<'static>,
}

impl Ask {
    #[inline(always)]
    #[track_caller]
    pub(crate) fn new(bytes: u64, stream: StreamId) -> Ask {
        Ask { bytes, align: GRAIN, stream, site: Location::caller() }
    }
}

/// What is left to do for a freed block once nothing is held.
enum After {
    Nothing,
    /// The block was not out.
    NotOut,
    /// Its segment is idle and not worth keeping. The pool it came from comes along, since the lane may
    /// serve another one as soon as it is let go.
    Release(Detached, Arc<PoolCore>),
    /// A block went to the heap while cached bytes are capped.
    Capped,
    /// An event is to say when what was freed up to now is done with.
    Mark,
    /// Other streams were recorded on it.
    Uses(Vec<StreamId>),
}

/// A request on its way through the slow path.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) lane: &'static Lane,
    pub(crate) ask: Ask,
    pub(crate) band: Band,
    pub(crate) align: u64,
}

impl PoolCore {
    /// A block for `ask`.
    #[inline]
    pub(crate) fn allocate(self: &Arc<Self>, ask: Ask) -> Result<Allocation, AllocError> {
        if ask.bytes.wrapping_sub(1) >= SIZE_MAX || !ask.align.is_power_of_two() {
            return self.allocate_odd(ask);
        }
        let lane = self.lane(ask.stream)?;
        if lane.is_forked() {
            return Err(AllocError::Forked);
        }
        if lane.returned.any() {
            take_in_returned(lane);
        }
        let mut front = lane.twin.front();
        let band = front.band(ask.bytes);
        if band.size < ask.bytes {
            drop(front);
            return Err(self.bad_policy(Wrong::Rounding));
        }
        if ask.align <= GRAIN
            && band.front
            && let Some(id) = front.cached.pop(band.size)
        {
            front.counters.front_hits += 1;
            return Ok(self.hand_out(lane, &mut front, id, ask));
        }
        self.miss(lane, front, ask, band)
    }

    /// Sizes and alignments that are wrong, or nothing at all.
    #[cold]
    fn allocate_odd(&self, ask: Ask) -> Result<Allocation, AllocError> {
        if !ask.align.is_power_of_two() || ask.align > ALIGN_MAX {
            return Err(AllocError::BadAlignment { align: ask.align });
        }
        if ask.bytes > SIZE_MAX {
            return Err(AllocError::TooLarge { bytes: ask.bytes, limit: SIZE_MAX });
        }
        bump(&self.device.totals.zero_sizes);
        Ok(Allocation::nothing())
    }

    #[inline(always)]
    fn miss(
        self: &Arc<Self>,
        lane: &'static Lane,
        front: FrontGuard<'_>,
        ask: Ask,
        band: Band,
    ) -> Result<Allocation, AllocError> {
        if front.planner.is_some() {
            return self.allocate_planned(lane, front, ask, band);
        }
        let plain = ask.align <= GRAIN && self.device.pending_len.load(Ordering::Relaxed) == 0;
        let both = if plain {
            front.into_both().ok()
        } else {
            drop(front);
            None
        };
        let mut gone = None;
        if let Some(mut both) = both {
            let (front, books) = both.parts();
            if let Some(taken) = lane::place_plainly(front, books, band, &mut gone) {
                let held = Held::new(&taken, band);
                return Ok(self.hand_out_new(lane, front, taken.id, held, ask));
            }
        }
        self.miss_further(lane, gone, ask, band)
    }

    #[cold]
    pub(crate) fn miss_further(
        self: &Arc<Self>,
        lane: &'static Lane,
        gone: Option<Detached>,
        ask: Ask,
        band: Band,
    ) -> Result<Allocation, AllocError> {
        self.give_up(lane, gone);
        if ask.align > ALIGN_MAX {
            return Err(AllocError::BadAlignment { align: ask.align });
        }
        if band.size > BAND_SIZE_MAX {
            return Err(self.bad_policy(Wrong::Rounding));
        }
        self.slow(&Request { lane, ask, band, align: ask.align.max(GRAIN) })
    }

    /// Hands out `taken`, which was cut for `request`.
    pub(crate) fn hand_out_placed(
        &self,
        request: &Request,
        front: &mut Front,
        taken: &FreeBlock,
    ) -> Allocation {
        let held = Held::new(taken, request.band);
        self.hand_out_new(request.lane, front, taken.id, held, request.ask)
    }

    /// Places `request` in its lane's books if there is room.
    pub(crate) fn place(
        self: &Arc<Self>,
        request: &Request,
        both: LaneGuard<'_>,
    ) -> Result<Option<Allocation>, AllocError> {
        self.place_or_fill(request, None, both)
    }

    /// Enters a segment got for `request` and places the request before anybody else can.
    pub(crate) fn place_in_new(
        self: &Arc<Self>,
        request: &Request,
        segment: Detached,
    ) -> Result<Option<Allocation>, AllocError> {
        let mut both = request.lane.twin.both();
        let fresh = both.parts().1.add_segment(segment, &self.device.settings);
        self.place_or_fill(request, Some(fresh), both)
    }

    fn place_or_fill(
        self: &Arc<Self>,
        request: &Request,
        fresh: Option<FreeBlock>,
        mut both: LaneGuard<'_>,
    ) -> Result<Option<Allocation>, AllocError> {
        let want = Want { band: request.band, align: request.align, fresh };
        let (front, books) = both.parts();
        let mut gone = Vec::new();
        let placed = lane::place(front, books, &want, &self.device.settings, &mut gone);
        let allocation = match placed {
            Ok(Some(taken)) => Some(self.hand_out_placed(request, front, &taken)),
            Ok(None) => None,
            Err(wrong) => {
                drop(both);
                self.give_up(request.lane, gone);
                return Err(self.bad_policy(wrong));
            }
        };
        if !gone.is_empty() {
            drop(both);
            self.give_up(request.lane, gone);
        }
        Ok(allocation)
    }

    #[cold]
    pub(crate) fn bad_policy(&self, wrong: Wrong) -> AllocError {
        let policy = self.device.settings.policy_name.clone();
        AllocError::Policy { policy, what: wrong.text() }
    }

    /// Hands out block `id` of `lane`, which waited in the front cache.
    #[inline(always)]
    fn hand_out(
        &self,
        lane: &'static Lane,
        front: &mut Front,
        id: BlockId,
        ask: Ask,
    ) -> Allocation {
        let held = *front.held(id);
        self.hand_out_new(lane, front, id, held, ask)
    }

    /// Hands out block `id` of `lane`, of which `held` is known.
    #[inline(always)]
    pub(crate) fn hand_out_new(
        &self,
        lane: &'static Lane,
        front: &mut Front,
        id: BlockId,
        held: Held,
        ask: Ask,
    ) -> Allocation {
        let tag = crate::tags::current();
        let over = front.hand_out(id, held, ask.bytes, tag);
        if over || tag != 0 || front.observed {
            self.tell_allocation(lane, front, id, ask, over);
        }
        Allocation::new(lane, id, held.address, ask.bytes)
    }

    /// Tells of a block handed out whoever wants to know.
    #[cold]
    fn tell_allocation(
        &self,
        lane: &'static Lane,
        front: &mut Front,
        id: BlockId,
        ask: Ask,
        over: bool,
    ) {
        if front.observed {
            let site = self.device.settings.sites.then_some(ask.site);
            front.note(id, site, self.record_allocation(lane, ask));
        }
        let Held { tag, size, .. } = *front.held(id);
        if tag != 0 {
            self.device.tags.allocated(tag, size);
        }
        if over {
            self.device.settle_peaks(front, lane);
        }
    }

    fn record_allocation(&self, lane: &'static Lane, ask: Ask) -> u64 {
        let mut recorder = self.device.recorder.lock();
        recorder.as_mut().map_or(0, |r| r.allocated(ask.bytes, lane.stream()))
    }

    /// Sends segments that no policy wants back to the driver; they return to the lane where it refuses.
    #[cold]
    pub(crate) fn give_up(
        &self,
        lane: &'static Lane,
        segments: impl IntoIterator<Item = Detached>,
    ) {
        let segments: Vec<Detached> = segments.into_iter().collect();
        if !segments.is_empty() {
            self.release_or_keep(lane, segments, self.device.is_capturing());
        }
    }

    /// Gives a detached segment back to the driver, or to its lane where the driver refuses.
    pub(crate) fn release_segment(
        &self,
        lane: &'static Lane,
        segment: Detached,
    ) -> Result<(), DriverError> {
        let answer = self.device.release(&segment);
        if answer.is_err() {
            self.attach(lane, segment);
        }
        answer
    }

    /// Enters a segment into the books of `lane`, or keeps it with the device if the lane has gone.
    pub(crate) fn attach(&self, lane: &'static Lane, segment: Detached) {
        let mut both = lane.twin.both();
        let (front, books) = both.parts();
        let ours = front.pool.as_deref().is_some_and(|p| std::ptr::eq(p, self));
        if ours {
            books.add_segment(segment, &self.device.settings);
        } else {
            drop(both);
            self.device.adopt(segment);
        }
    }

    /// Asks about the events of waiting blocks and takes in those that are over.
    ///
    /// # Errors
    /// What the driver said; nothing is lost by it.
    pub(crate) fn poll_pending(&self) -> Result<(), DriverError> {
        let device = &self.device;
        if device.pending_len.load(Ordering::Relaxed) == 0 || device.is_capturing()?.is_some() {
            return Ok(());
        }
        let polled = device.pending.lock().poll(&*device.driver);
        take_in_ready(polled.ready);
        polled.error.map_or(Ok(()), Err)
    }
}

/// Takes in blocks whose events are over.
pub(crate) fn take_in_ready(ready: Vec<Home>) {
    for Home { lane, block } in ready {
        let mut front = lane.twin.front();
        let Some(pool) = front.pool.clone() else { continue };
        pool.device.pending_len.fetch_sub(1, Ordering::Relaxed);
        let size = front.held(block).size;
        front.counters.no_longer_active(size);
        let after = put_down(front, block);
        settle(&pool, lane, block, after);
    }
}

/// Frees block `id` of `lane`; the end of every [`Allocation`].
#[inline]
pub(crate) fn free(lane: &'static Lane, id: BlockId) {
    if lane.is_forked() {
        bump(&FORKED_FREES);
        return;
    }
    let Some(mut front) = lane.twin.try_front() else {
        if lane.leave(id) {
            take_in_returned(lane);
        }
        return;
    };
    match front.take_back(id) {
        TakenBack::Kept => {
            drop(front);
            finish_free(lane, id, After::Nothing);
        }
        TakenBack::ToHeap(block) => free_into_heap(lane, front, block),
        TakenBack::NotPlain => free_known(lane, front, id),
    }
}

#[inline(always)]
fn finish_free(lane: &'static Lane, id: BlockId, after: After) {
    if !matches!(after, After::Nothing) || lane.returned.calls() {
        after_free(lane, id, after);
    }
}

/// Apart from [`free`], so that a hit does not pay for the registers that this needs.
#[inline(never)]
fn free_into_heap(lane: &'static Lane, front: FrontGuard<'_>, id: BlockId) {
    let after = put_down(front, id);
    finish_free(lane, id, after);
}

#[cold]
fn free_known(lane: &'static Lane, front: FrontGuard<'_>, id: BlockId) {
    let after = give_back_known(lane, front, id);
    finish_free(lane, id, after);
}

/// As [`free`], with the front held and whatever block `id` is.
fn give_back(lane: &Lane, mut front: FrontGuard<'_>, id: BlockId) -> After {
    match front.take_back(id) {
        TakenBack::Kept => After::Nothing,
        TakenBack::ToHeap(block) => put_down(front, block),
        TakenBack::NotPlain => give_back_known(lane, front, id),
    }
}

#[cold]
fn give_back_known(lane: &Lane, mut front: FrontGuard<'_>, id: BlockId) -> After {
    let Some(known) = front.take_back_known(id) else { return After::NotOut };
    tell_free(&front, &known, lane.stream());
    if !known.uses.is_empty() {
        return After::Uses(known.uses);
    }
    match front.keep(id) {
        TakenBack::ToHeap(block) => put_down(front, block),
        TakenBack::Kept | TakenBack::NotPlain => After::Nothing,
    }
}

#[cold]
fn tell_free(front: &Front, known: &Known, stream: StreamId) {
    let device = &front.pool().device;
    if known.tag != 0 {
        device.tags.freed(known.tag, known.size);
    }
    if let Some(recorder) = device.recorder.lock().as_mut() {
        recorder.freed(known.serial, known.requested, stream);
    }
}

/// Puts a block that is nobody's any more into the heap, or where the heap will find it.
#[inline(always)]
fn put_down(front: FrontGuard<'_>, id: BlockId) -> After {
    let mut both = match front.into_both() {
        Ok(both) => both,
        Err(mut front) => {
            front.put(id, Whereabouts::Deferred);
            front.deferred.push(id);
            return After::Nothing;
        }
    };
    let (front, books) = both.parts();
    if let Some(segment) = lane::put_into_heap(front, books, id) {
        return After::Release(segment, front.pool().clone());
    }
    if front.caps_cached {
        return After::Capped;
    }
    if front.marks && books.is_mark_due() {
        return After::Mark;
    }
    After::Nothing
}

#[cold]
fn after_free(lane: &'static Lane, id: BlockId, after: After) {
    let pool = match &after {
        After::Release(_, pool) => Some(pool.clone()),
        _ => lane.twin.front().pool.clone(),
    };
    let Some(pool) = pool else { return };
    settle(&pool, lane, id, after);
    take_in_returned(lane);
}

/// Does what is left to do for a freed block.
fn settle(pool: &Arc<PoolCore>, lane: &'static Lane, id: BlockId, after: After) {
    match after {
        After::Nothing => {}
        After::NotOut => bump(&pool.device.totals.bad_frees),
        After::Release(segment, pool) => pool.give_up(lane, [segment]),
        After::Capped => pool.enforce_cached_cap(),
        After::Mark => pool.mark_frees(lane),
        After::Uses(streams) => {
            pool.wait_for_uses(Home { lane, block: id }, &streams);
            pool.wait_if_last();
        }
    }
    if lane.returned.is_closing() {
        pool.retire_if_empty(lane);
    }
}

/// Takes in the blocks that other threads left while the front was held.
#[cold]
pub(crate) fn take_in_returned(lane: &'static Lane) {
    while let Some(id) = lane.returned.next() {
        let front = lane.twin.front();
        let Some(pool) = front.pool.clone() else { return };
        let after = give_back(lane, front, id);
        settle(&pool, lane, id, after);
    }
}

impl PoolCore {
    /// Marks the uses of a freed block with events and lets it wait for them.
    fn wait_for_uses(&self, home: Home, streams: &[StreamId]) {
        let device = &self.device;
        let mut events: Vec<(StreamId, Option<EventId>)> = Vec::with_capacity(streams.len());
        for &stream in streams {
            let event = pending::record(&*device.driver, stream).unwrap_or_else(|error| {
                device.note(error);
                None
            });
            events.push((stream, event));
        }
        device.pending_len.fetch_add(1, Ordering::Relaxed);
        device.pending.lock().enter(home, &events);
    }

    /// Moves a wholly free segment of another stream's lane into the request's lane; the request's
    /// stream waits for that stream's work first, the calling thread does not.
    /// Segments of more than `most` bytes are left: the rest of one would be out of its own stream's reach.
    pub(crate) fn move_segment(&self, request: &Request, most: u64) -> Result<bool, DriverError> {
        let device = &self.device;
        if !device.settings.share_streams || self.lanes().len() < 2 {
            return Ok(false);
        }
        let to = request.lane.stream();
        if device.driver.capture(to)? != Capture::None {
            return Ok(false);
        }
        let Some((from, segment)) = self.detach_fitting(request, most) else { return Ok(false) };
        match self.order_streams(from.stream(), to) {
            Ok(true) => {
                self.attach(request.lane, segment);
                bump(&device.totals.segments_moved);
                Ok(true)
            }
            Ok(false) => {
                self.attach(from, segment);
                Ok(false)
            }
            Err(error) => {
                self.attach(from, segment);
                Err(error)
            }
        }
    }

    /// Takes the smallest idle segment that fits, of at most `most` bytes, out of another lane of this
    /// pool.
    fn detach_fitting(&self, request: &Request, most: u64) -> Option<(&'static Lane, Detached)> {
        let mut best: Option<(u64, u64, &'static Lane, BlockId)> = None;
        for lane in self.lanes() {
            if std::ptr::eq(lane, request.lane) || lane.returned.is_closing() {
                continue;
            }
            let Some(mut both) = lane.twin.try_both() else { continue };
            let (front, books) = both.parts();
            let mut gone = Vec::new();
            lane::flush(front, books, &mut gone);
            for (id, s) in books.heap.idle_segments() {
                let skip = s.address.wrapping_neg() & (request.align - 1);
                let fits = s.band == request.band.index
                    && s.size <= most
                    && request.band.size.checked_add(skip).is_some_and(|b| b <= s.size);
                if fits && best.is_none_or(|b| (s.size, s.address) < (b.0, b.1)) {
                    best = Some((s.size, s.address, lane, id));
                }
            }
            drop(both);
            self.give_up(lane, gone);
        }
        let (_, address, lane, id) = best?;
        let mut both = lane.twin.try_both()?;
        let books = both.parts().1;
        let band =
            books.heap.idle_segments().find(|(i, s)| *i == id && s.address == address)?.1.band;
        books.detach(id, band).map(|segment| (lane, segment))
    }

    /// Makes later work of `to` wait for the work `from` has now; false where `from` cannot be marked.
    fn order_streams(&self, from: StreamId, to: StreamId) -> Result<bool, DriverError> {
        let driver = &*self.device.driver;
        let Some(event) = pending::record(driver, from)? else { return Ok(false) };
        let waited = driver.stream_wait_event(to, event);
        if let Err(error) = driver.release_event(event) {
            self.device.note(error);
            self.device.pending.lock().keep_unreleased(event);
        }
        waited?;
        bump(&self.device.totals.stream_waits);
        Ok(true)
    }
}
