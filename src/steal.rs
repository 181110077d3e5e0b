//! The hub's hand on idle pages: which there are, which of them no work can still be using; taking them
//! out of the heaps, waiting for them, giving them back to the driver.
use crate::cache::Request;
use crate::counters::ACTIVE;
use crate::device::{Device, bump};
use crate::driver::{Capture, DriverError, HandleId, StreamId};
use crate::error::AllocError;
use crate::heap::{Hole, IdleRun, Range};
use crate::lane::{Lane, PLAN_BAND, flush};
use crate::oom::{Stage, Stages};
use crate::pages::{Abandoned, LaneKey, Move, Open, Orphan, Pages};
use crate::pending;
use crate::pool::PoolCore;
use crate::trim::{Among, Released};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Runs of idle pages that a look at the lanes has room for from the start.
const USUAL_RUNS: usize = 64;

/// Idle pages of a lane.
#[derive(Clone, Copy)]
struct Idle {
    lane: &'static Lane,
    run: IdleRun,
}

/// What a look at the lanes showed.
#[derive(Default)]
struct Survey {
    idle: Vec<Idle>,
    /// Lanes with idle pages that no event covers, and their clocks.
    to_mark: SmallVec<[(&'static Lane, u64); 8]>,
    /// Lanes whose stream is gone: no event can mark it.
    unmarked: Vec<(&'static Lane, u64)>,
    /// The first error met; where it was, more may be idle than is known to be done with.
    error: Option<DriverError>,
}

/// Pages that a request is going to lie on: they are not to be taken from under it.
#[derive(Clone, Copy)]
pub(crate) struct Keep {
    lane: LaneKey,
    from: u64,
    to: u64,
    /// The band of the request.
    band: u8,
    /// Whether they are got ahead of the requests: then none of the plan's own pages are taken.
    is_ahead: bool,
}

impl Keep {
    pub(crate) fn new(request: &Request, hole: &Hole) -> Keep {
        let to = hole.address + request.band.size;
        let (lane, band) = (request.lane.key(), request.band.index);
        Keep { lane, from: hole.address, to, band, is_ahead: false }
    }

    /// The same for pages of a plan that nobody has asked for yet.
    pub(crate) fn ahead(request: &Request, hole: &Hole) -> Keep {
        Keep { is_ahead: true, ..Keep::new(request, hole) }
    }

    /// Whether `idle` is to be taken only if nothing else is: the request follows a plan, which needs
    /// these pages where they are.
    fn is_last(&self, idle: &Idle) -> bool {
        self.band == PLAN_BAND && idle.run.band == PLAN_BAND && idle.lane.key() == self.lane
    }

    /// The larger part of `idle` that may be taken.
    fn outside(&self, idle: Idle) -> Option<Idle> {
        let run = idle.run;
        if self.is_ahead && self.is_last(&idle) {
            return None;
        }
        if idle.lane.key() != self.lane || run.end() <= self.from || self.to <= run.address {
            return Some(idle);
        }
        let below = self.from.saturating_sub(run.address) / run.page * run.page;
        let above = run.end().saturating_sub(self.to) / run.page * run.page;
        let (address, bytes) =
            if above >= below { (run.end() - above, above) } else { (run.address, below) };
        (bytes > 0).then_some(Idle { run: IdleRun { address, bytes, ..run }, ..idle })
    }
}

impl Lane {
    pub(crate) fn key(&'static self) -> LaneKey {
        LaneKey(std::ptr::from_ref(self) as usize)
    }
}

impl PoolCore {
    /// Looks for idle pages, after the front caches are flushed: they hide some.
    fn survey(self: &Arc<Self>, among: Among, pages: &mut Pages) -> Survey {
        let mut survey = Survey { idle: Vec::with_capacity(USUAL_RUNS), ..Survey::default() };
        for pool in self.among(among) {
            if pool.keeps_pages.load(Ordering::Relaxed) {
                continue;
            }
            for lane in pool.lanes() {
                let ours = |p: &PoolCore| std::ptr::eq(p, &*pool);
                let Some(mut both) = lane.both_if(ours) else { continue };
                let (front, books) = both.parts();
                let mut gone = Vec::new();
                flush(front, books, &mut gone);
                debug_assert!(gone.is_empty(), "a range is no segment");
                books.heap.set_tick(pages.tick);
                pages.tick = books.heap.tick();
                let mut newest = 0;
                books.heap.take_stock(|run| {
                    newest = newest.max(run.stamp);
                    survey.idle.push(Idle { lane, run });
                });
                if pages.marks.wants(lane.key(), newest) {
                    survey.to_mark.push((lane, pages.tick));
                }
            }
        }
        self.mark(&mut survey, pages);
        if let Err(error) = pages.marks.poll(&*self.device.driver) {
            survey.error.get_or_insert(error);
        }
        survey
    }

    /// Records an event on each stream that has idle pages which no earlier one covers.
    fn mark(&self, survey: &mut Survey, pages: &mut Pages) {
        for (lane, tick) in std::mem::take(&mut survey.to_mark) {
            match pending::record(&*self.device.driver, lane.stream()) {
                Ok(Some(event)) => pages.marks.enter(lane.key(), event, tick),
                Ok(None) => survey.unmarked.push((lane, tick)),
                Err(error) => drop(survey.error.get_or_insert(error)),
            }
        }
    }

    /// Marks what was freed in `lane` up to now, for later moves; stops that once no pages have been moved
    /// for some steps.
    pub(crate) fn mark_frees(self: &Arc<Self>, lane: &'static Lane) {
        let device = &self.device;
        let Some(mut pages) = device.pages().try_lock() else { return };
        if !pages.budget.moves_pages(device.paging_step()) {
            device.set_marks(false);
            return;
        }
        let tick = {
            let Some(mut both) = lane.both_if(|p| std::ptr::eq(p, &**self)) else { return };
            both.parts().1.heap.tick()
        };
        let wants = pages.marks.wants(lane.key(), tick) && !pages.marks.is_full(lane.key());
        if !wants || device.is_capturing() != Ok(None) {
            return;
        }
        match pending::record(&*device.driver, lane.stream()) {
            Ok(Some(event)) => pages.marks.enter(lane.key(), event, tick),
            Ok(None) => {}
            Err(error) => device.note(error),
        }
        if let Err(error) = pages.marks.poll(&*device.driver) {
            device.note(error);
        }
    }

    /// Moves up to `count` idle pages that nothing can be using into the bank, those first that have
    /// been idle longest, and for a plan its own last. None if there are fewer than `least`. Pages of an
    /// earlier size go back to the driver instead; their bytes.
    pub(crate) fn steal(
        self: &Arc<Self>,
        keep: &Keep,
        count: usize,
        least: usize,
        stages: &mut Stages,
        pages: &mut Pages,
    ) -> u64 {
        if count == 0 {
            return 0;
        }
        if pages.budget.moves() {
            self.device.set_marks(true);
        }
        let survey = self.survey(Among::AllPools, pages);
        survey.error.into_iter().for_each(|error| self.device.note(error));
        let clean = |i: &Idle| i.run.stamp <= pages.marks.clean(i.lane.key());
        let mut ready: Vec<Idle> =
            survey.idle.into_iter().filter(clean).filter_map(|i| keep.outside(i)).collect();
        ready.sort_unstable_by_key(|i| {
            (keep.is_last(i), i.run.stamp, std::cmp::Reverse(i.run.address))
        });
        if ready.iter().map(|i| i.run.bytes).sum::<u64>() < least as u64 * pages.bytes {
            stages.note(Stage::Steal, 0);
            return 0;
        }
        let banked = pages.bank.len();
        let mut given = Released::default();
        let mut missing = count as u64 * pages.bytes;
        for idle in ready {
            if missing == 0 {
                break;
            }
            let bytes = missing.next_multiple_of(idle.run.page).min(idle.run.bytes);
            let top = IdleRun { address: idle.run.end() - bytes, bytes, ..idle.run };
            match self.unmap_idle(&Idle { run: top, ..idle }, pages) {
                Ok(got) => missing = missing.saturating_sub(got),
                Err(error) => self.device.note(error),
            }
            if let Err(error) = self.device.release_retired(pages, &mut given) {
                self.device.note(error);
            }
        }
        let maps = (pages.bank.len() - banked) as u64;
        stages.note(Stage::Steal, maps * pages.bytes + given.released_bytes);
        self.device.totals.pages_moved.fetch_add(maps, Ordering::Relaxed);
        pages.budget.spend(Move { maps, accesses: u64::from(maps > 0), ..Move::default() });
        given.released_bytes
    }

    /// Takes idle pages out of their lane and from under their addresses, into the bank; the bytes. 0
    /// where a block has come to lie there, or newer work has used them.
    fn unmap_idle(&self, idle: &Idle, pages: &mut Pages) -> Result<u64, DriverError> {
        let IdleRun { block, band, address, bytes, .. } = idle.run;
        let clean = pages.marks.clean(idle.lane.key());
        let ours = |p: &PoolCore| std::ptr::eq(&*p.device, &*self.device);
        {
            let Some(mut both) = idle.lane.both_if(ours) else { return Ok(0) };
            let books = both.parts().1;
            let still =
                |r: IdleRun| r.stamp <= clean && r.address <= address && address + bytes <= r.end();
            if !books.heap.idle_run(block).is_some_and(still) {
                return Ok(0);
            }
            if !books.unmap_pages(block, address, bytes, band) {
                return Ok(0);
            }
        }
        pages.budget.spend(Move { unmaps: 1, ..Move::default() });
        match self.device.driver.unmap(address, bytes) {
            Ok(()) => {
                pages.bank_run(address, bytes);
                self.device.room.forget();
                Ok(bytes)
            }
            Err(error) => {
                match idle.lane.both_if(ours) {
                    Some(mut both) => {
                        let settings = &self.device.settings;
                        both.parts().1.map_pages(address, bytes, band, settings);
                    }
                    // The lane has ended meanwhile and left its ranges, this run not among what is mapped.
                    None => pages.stuck.push((address, bytes)),
                }
                Err(error)
            }
        }
    }

    /// Waits for the one event that frees `count` pages soonest, or most of them; false where none frees
    /// any.
    pub(crate) fn wait_for_pages(
        self: &Arc<Self>,
        keep: &Keep,
        count: usize,
        stages: &mut Stages,
        pages: &mut Pages,
    ) -> Result<bool, AllocError> {
        let device = &self.device;
        let survey = self.survey(Among::AllPools, pages);
        let mut open: Vec<Open> = pages.marks.open().collect();
        open.sort_by_key(|o| o.order);
        let stale = |i: &&Idle| i.run.stamp > pages.marks.clean(i.lane.key());
        let freed_by = |o: &Open| -> u64 {
            let of_lane = survey.idle.iter().filter(stale).filter(|i| i.lane.key() == o.lane);
            let covered = of_lane.filter(|i| i.run.stamp <= o.tick);
            covered.filter_map(|i| keep.outside(*i)).map(|i| i.run.bytes).sum()
        };
        let wanted = count as u64 * pages.bytes;
        let freed: Vec<(u64, Open)> = open.iter().map(|o| (freed_by(o), *o)).collect();
        let enough = freed.iter().find(|f| f.0 >= wanted);
        let most =
            || freed.iter().filter(|f| f.0 > 0).max_by_key(|f| (f.0, std::cmp::Reverse(f.1.order)));
        if let Some((_, open)) = enough.or_else(most) {
            device.driver.wait_event(open.event)?;
            pages.marks.waited(open);
        } else if survey.unmarked.is_empty() {
            return Ok(false);
        } else {
            device.driver.synchronize()?;
            for (lane, tick) in survey.unmarked {
                pages.marks.all_over(lane.key(), tick);
            }
        }
        bump(&device.totals.host_waits);
        pages.budget.waited();
        stages.note(Stage::WaitPages, 0);
        if let Err(error) = pages.marks.poll(&*device.driver) {
            device.note(error);
        }
        Ok(true)
    }

    /// Gives idle pages back to the driver until at least `bytes` are released, those first that have
    /// been idle longest. Waits for what may still be using them.
    pub(crate) fn release_pages(self: &Arc<Self>, bytes: u64, among: Among) -> Released {
        let mut pages = self.device.pages().lock();
        let mut released = Released::default();
        if let Err(error) = self.release_more(bytes, among, &mut pages, &mut released) {
            released.error.get_or_insert(error);
        }
        released
    }

    fn release_more(
        self: &Arc<Self>,
        bytes: u64,
        among: Among,
        pages: &mut Pages,
        released: &mut Released,
    ) -> Result<(), DriverError> {
        if among == Among::AllPools {
            self.device.release_bank(pages, bytes, released)?;
        }
        let survey = self.survey(among, pages);
        if let Some(error) = survey.error {
            return Err(error);
        }
        self.settle_streams(&survey, pages)?;
        let mut idle = survey.idle;
        idle.sort_unstable_by_key(|i| (i.run.stamp, std::cmp::Reverse(i.run.address)));
        for idle in idle {
            let missing = bytes.saturating_sub(released.released_bytes);
            if missing == 0 {
                break;
            }
            let part = missing.min(idle.run.bytes).next_multiple_of(idle.run.page);
            let top = IdleRun { address: idle.run.end() - part, bytes: part, ..idle.run };
            let got = self.unmap_idle(&Idle { run: top, ..idle }, pages);
            self.device.release_bank(pages, bytes, released)?;
            got?;
        }
        Ok(())
    }

    /// Waits until all idle pages of `survey` are done with.
    fn settle_streams(&self, survey: &Survey, pages: &mut Pages) -> Result<(), DriverError> {
        let device = &self.device;
        let stale = |i: &&Idle| i.run.stamp > pages.marks.clean(i.lane.key());
        let mut lanes: Vec<LaneKey> =
            survey.idle.iter().filter(stale).map(|i| i.lane.key()).collect();
        lanes.sort_unstable();
        lanes.dedup();
        for lane in lanes {
            let last = pages.marks.open().filter(|o| o.lane == lane).last();
            if let Some(open) = last {
                device.driver.wait_event(open.event)?;
                pages.marks.waited(&open);
                bump(&device.totals.host_waits);
            }
        }
        if !survey.unmarked.is_empty() {
            device.driver.synchronize()?;
            bump(&device.totals.host_waits);
            for &(lane, tick) in &survey.unmarked {
                pages.marks.all_over(lane.key(), tick);
            }
        }
        pages.marks.poll(&*device.driver)
    }

    /// The lane is gone and has left these ranges: their pages go back to the driver, now or later.
    pub(crate) fn abandon(
        &self,
        lane: &'static Lane,
        stream: StreamId,
        ranges: Vec<(Range, Vec<(u64, u64)>)>,
    ) {
        let device = &self.device;
        if device.pages.is_none() {
            return;
        }
        {
            let mut pages = device.pages().lock();
            pages.marks.forget(lane.key());
            if !ranges.is_empty() {
                let ranges = ranges.into_iter().map(|(range, runs)| {
                    let Range { address, size, .. } = range;
                    Abandoned { address, size, runs }
                });
                pages.orphans.push(Orphan { stream, event: None, ranges: ranges.collect() });
            }
        }
        if let Err(error) = device.release_orphan_pages() {
            device.note(error);
        }
    }
}

impl Device {
    /// Gives pages that are mapped nowhere back to the driver until `released` comes to `bytes`.
    fn release_bank(
        &self,
        pages: &mut Pages,
        bytes: u64,
        released: &mut Released,
    ) -> Result<(), DriverError> {
        while released.released_bytes < bytes
            && let Some(page) = pages.take_loose()
        {
            self.release_page(page, pages, released)?;
        }
        Ok(())
    }

    /// Gives pages of an earlier size that are mapped nowhere back to the driver.
    fn release_retired(
        &self,
        pages: &mut Pages,
        released: &mut Released,
    ) -> Result<(), DriverError> {
        while let Some(page) = pages.take_retired() {
            self.release_page(page, pages, released)?;
        }
        Ok(())
    }

    /// Gives a page of so many bytes back to the driver; it stays loose if that is refused.
    fn release_page(
        &self,
        (handle, bytes): (HandleId, u64),
        pages: &mut Pages,
        released: &mut Released,
    ) -> Result<(), DriverError> {
        if let Err(error) = self.driver.release(handle) {
            pages.put_back(handle, bytes);
            return Err(error);
        }
        self.gave_back(bytes);
        released.released_bytes += bytes;
        released.released_segments += 1;
        Ok(())
    }

    /// The cache was emptied by `released` bytes: if the program does that again and again, pages are larger
    /// from now on.
    pub(crate) fn note_emptied(&self, released: u64) {
        let Some(pages) = &self.pages else { return };
        let mut pages = pages.lock();
        let unit = pages.unit();
        let is_grown = pages.bytes > unit;
        if is_grown {
            return;
        }
        let ranges = || self.boths().map(|(_, mut both)| both.parts().1.heap.ranges().count());
        let ranges = ranges().sum::<usize>() as u64;
        let peak = self.peaks()[ACTIVE];
        let Some(bytes) = pages.emptied.next_page(released, peak, ranges, unit) else { return };
        pages.set_bytes(bytes);
        self.page_bytes.store(bytes, Ordering::Relaxed);
        for (_, mut both) in self.boths() {
            let books = both.parts().1;
            books.heap.set_page(bytes);
            books.plan = None;
        }
        if let Err(error) = self.release_retired(&mut pages, &mut Released::default()) {
            self.note(error);
        }
    }

    /// Tries to give back what lanes have left and, once no pool is open, the bank; the bytes.
    pub(crate) fn release_orphan_pages(&self) -> Result<u64, DriverError> {
        let Some(pages) = &self.pages else { return Ok(0) };
        if self.is_capturing()?.is_some() {
            return Ok(0);
        }
        let mut pages = pages.lock();
        let mut released = Released::default();
        let mut result = pages.marks.retry_releases(&*self.driver);
        for mut orphan in std::mem::take(&mut pages.orphans) {
            if let Err(error) = self.release_orphan(&mut orphan, &mut pages, &mut released) {
                result = result.and(Err(error));
            }
            if !orphan.ranges.is_empty() {
                pages.orphans.push(orphan);
            }
        }
        if self.open_pools.load(Ordering::Acquire) == 0 {
            result = result.and(self.unstick(&mut pages));
            result = result.and(self.release_bank(&mut pages, u64::MAX, &mut released));
        }
        result.map(|()| released.released_bytes)
    }

    /// Gives back what it can of `orphan`; what it could not stays in it.
    fn release_orphan(
        &self,
        orphan: &mut Orphan,
        pages: &mut Pages,
        released: &mut Released,
    ) -> Result<(), DriverError> {
        let driver = &*self.driver;
        match driver.capture(orphan.stream) {
            Ok(Capture::None) | Err(DriverError::UnknownStream(_)) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
        if orphan.ranges.iter().any(|r| !r.runs.is_empty()) {
            self.await_last_use(orphan)?;
        }
        while let Some(range) = orphan.ranges.last_mut() {
            while let Some(&(address, bytes)) = range.runs.last() {
                driver.unmap(address, bytes)?;
                range.runs.pop();
                pages.bank_run(address, bytes);
                let target = released.released_bytes + bytes;
                self.release_bank(pages, target, released)?;
            }
            if pages.is_stuck(range.address, range.size) {
                self.unstick(pages)?;
            }
            driver.unreserve(range.address)?;
            pages.reserved_addresses -= range.size;
            orphan.ranges.pop();
        }
        pages.marks.give_back(orphan.event.take());
        pages.marks.retry_releases(driver)
    }

    /// Waits for the last use of an orphan's memory.
    fn await_last_use(&self, orphan: &mut Orphan) -> Result<(), DriverError> {
        if orphan.event.is_none() {
            orphan.event = pending::record(&*self.driver, orphan.stream)?;
        }
        match orphan.event {
            Some(event) => self.driver.wait_event(event)?,
            // The stream is gone.
            None => self.driver.synchronize()?,
        }
        bump(&self.totals.host_waits);
        Ok(())
    }

    /// Tries again to unmap what could not be.
    ///
    /// # Errors
    /// The first refusal; what is stuck stays so.
    pub(crate) fn unstick(&self, pages: &mut Pages) -> Result<(), DriverError> {
        let mut result = self.release_retired(pages, &mut Released::default());
        for (address, bytes) in std::mem::take(&mut pages.stuck) {
            match self.driver.unmap(address, bytes) {
                Ok(()) => pages.bank_run(address, bytes),
                Err(error) => {
                    result = result.and(Err(error));
                    pages.stuck.push((address, bytes));
                }
            }
        }
        result
    }
}
