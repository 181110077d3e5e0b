//! The hub's slow path over virtual ranges: a place for the request, pages for the place.
//!
//! The pages' lock is held from the choice of a place to the entry of its pages: nobody else maps or
//! unmaps meanwhile. Blocks come and go freely, so a chosen place may be taken when its pages are there;
//! then another one is chosen.
use crate::allocation::Allocation;
use crate::cache::Request;
use crate::counters::ACTIVE;
use crate::device::bump;
use crate::driver::DriverError;
use crate::error::AllocError;
use crate::heap::{Hole, HoleWant, Rule};
use crate::lane::{Lane, PLAN_BAND, PlanSpace, Shortage, Want, flush, place};
use crate::oom::{Stage, Stages};
use crate::pages::Pages;
use crate::planned::plan_request;
use crate::pool::PoolCore;
use crate::steal::Keep;
use aquifer_policies::SIZE_MAX;
use std::sync::Arc;

/// Slack over pages unless told otherwise: a twentieth of the peak in use.
pub(crate) const SLACK: f64 = 0.05;
/// A first range has this many times the device's memory in addresses.
const RANGE_OF_TOTAL: u64 = 2;
/// All ranges together have at most this many times the device's memory; each new one at most a
/// sixteenth of what is left of that.
const RANGES_OF_TOTAL: u64 = 64;
const RANGE_SHARE: u64 = 16;
/// A range has room for at least this many requests like the one it is made for.
const RANGE_REQUESTS: u64 = 4;

/// From this step on a program is taken to be past its start: what it needs beyond that is asked for
/// with a thirty-second of all pages more, so that later steps find it mapped.
const LATE_STEP: u64 = 3;
const AHEAD_SHARE: u64 = 32;

/// Memory is nearly short when the driver and the cap would give less than this part of what is held.
const NEAR_SHARE: u64 = 16;

/// A request on its way, and what was tried for it.
pub(crate) struct Job {
    pub(crate) request: Request,
    stages: Stages,
    /// The driver or the cap has refused.
    pub(crate) is_refused: bool,
    /// There were not enough pages for the lowest place: now the one that needs the fewest.
    wants_fewest: bool,
}

impl Job {
    pub(crate) fn new(request: Request) -> Job {
        Job { request, stages: Stages::default(), is_refused: false, wants_fewest: false }
    }
}

/// What came of looking for a place.
enum Spot {
    Placed(Allocation),
    /// Here it would go if pages were mapped.
    Hole(Hole),
    /// There are no addresses for it.
    Nowhere,
}

impl PoolCore {
    /// Serves `request` in a lane with virtual ranges.
    pub(crate) fn slow_paged(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Allocation, AllocError> {
        let _growing = request.lane.growing.lock();
        if let Some(allocation) = self.place(request, request.lane.twin.both())? {
            return Ok(allocation);
        }
        self.refuse_while_capturing(request)?;
        let mut job = Job::new(*request);
        loop {
            let mut pages = self.device.pages().lock();
            if let Err(error) = self.device.unstick(&mut pages) {
                self.device.note(error);
            }
            match self.spot(&job, &mut pages)? {
                Spot::Placed(allocation) => return Ok(allocation),
                Spot::Hole(mut hole) => {
                    if self.fill(&mut job, &mut hole, &mut pages)? {
                        match self.enter_pages(&job.request, &hole) {
                            Some(allocation) => return Ok(allocation),
                            None => continue,
                        }
                    }
                }
                Spot::Nowhere => {}
            }
            if !job.is_refused {
                job.is_refused = true;
                bump(&self.device.totals.retries);
                self.tighten(&mut pages);
                drop(pages);
                if let Err(error) = self.device.release_orphans() {
                    self.device.note(error);
                }
                continue;
            }
            if !std::mem::replace(&mut job.wants_fewest, true) {
                continue;
            }
            drop(pages);
            if self.device.settings.plans && job.request.band.index != PLAN_BAND {
                job.request = job.request.in_plan();
                continue;
            }
            job.request.band = request.band;
            if !self.wait_for_one()? {
                bump(&self.device.totals.ooms);
                return Err(AllocError::OutOfMemory(Box::new(self.report(request, job.stages))));
            }
            job.wants_fewest = false;
            job.stages.note(Stage::Wait, 0);
        }
    }

    /// Memory is short: from now on every request goes as low as it can.
    pub(crate) fn tighten(&self, pages: &mut Pages) {
        pages.budget.fall();
        self.device.stop_front_caches();
        self.device.run_short(Shortage::Refused);
    }

    /// Places the request, or says where it would go.
    fn spot(self: &Arc<Self>, job: &Job, pages: &mut Pages) -> Result<Spot, AllocError> {
        let request = &job.request;
        loop {
            let mut both = request.lane.twin.both();
            let (front, books) = both.parts();
            let mut gone = Vec::new();
            flush(front, books, &mut gone);
            let want = Want { band: request.band, align: request.align, fresh: None };
            let placed = place(front, books, &want, &self.device.settings, &mut gone);
            if let Some(taken) = placed.map_err(|wrong| self.bad_policy(wrong))? {
                return Ok(Spot::Placed(self.hand_out_placed(request, front, &taken)));
            }
            let is_lowest = books.lowest_first() && !job.wants_fewest;
            let rule = if is_lowest { Rule::Lowest } else { Rule::FewestPages };
            let (size, align, band) = (request.band.size, request.align, request.band.index);
            let wanted = HoleWant { band, size, align, rule };
            let mapped = if job.is_refused { books.heap.free_for(&wanted) } else { None };
            let hole = mapped.or_else(|| books.heap.hole_for(&wanted));
            drop(both);
            if let Some(hole) = hole {
                return Ok(Spot::Hole(hole));
            }
            if request.band.index == PLAN_BAND || self.add_range(request, pages)?.is_none() {
                return Ok(Spot::Nowhere);
            }
        }
    }

    /// Gets addresses for requests like this one; none where there are none.
    pub(crate) fn add_range(
        &self,
        request: &Request,
        pages: &mut Pages,
    ) -> Result<Option<PlanSpace>, AllocError> {
        let device = &self.device;
        let page = pages.bytes;
        let total = device.driver.memory_info()?.total;
        // One page is never mapped; the request may have to be aligned.
        let whole = |bytes: u64| bytes.checked_next_multiple_of(page);
        let least = request.band.size.saturating_add(request.align).saturating_add(2 * page);
        let Some(least) = whole(least) else { return Ok(None) };
        let left = (RANGES_OF_TOTAL.saturating_mul(total)).saturating_sub(pages.reserved_addresses);
        let usual = (RANGE_OF_TOTAL.saturating_mul(total)).min(left / RANGE_SHARE);
        let wanted = usual.max(least.saturating_mul(RANGE_REQUESTS));
        let mut bytes = whole(wanted).unwrap_or(least).max(least);
        loop {
            match device.driver.reserve(bytes) {
                Ok(address) => {
                    pages.reserved_addresses += bytes;
                    let mut both = request.lane.twin.both();
                    let heap = &mut both.parts().1.heap;
                    heap.set_page(page);
                    heap.add_range(address, bytes, request.band.index);
                    return Ok(Some(PlanSpace { address, size: bytes - page }));
                }
                Err(DriverError::OutOfMemory { .. }) if bytes > least => {
                    bytes = whole(bytes / 2).unwrap_or(least).max(least);
                }
                Err(DriverError::OutOfMemory { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gets pages for `hole` and maps them; false where there are not enough.
    pub(crate) fn fill(
        self: &Arc<Self>,
        job: &mut Job,
        hole: &mut Hole,
        pages: &mut Pages,
    ) -> Result<bool, AllocError> {
        let is_old = !hole.runs.is_empty() && hole.page != pages.bytes;
        if is_old || hole.runs.iter().any(|r| pages.is_stuck(r.0, r.1)) {
            return Ok(false);
        }
        pages.budget.request(self.device.paging_step());
        let is_banked = pages.bank.len() as u64 * pages.bytes >= hole.bytes();
        let room = if is_banked || job.is_refused {
            0
        } else {
            self.pages_within_slack(&job.request, pages)
        };
        if !is_banked && !job.is_refused && !self.may_create(hole, room, pages) {
            // As if refused: what there is must come together first.
            job.stages.note(Stage::Driver, 0);
            return Ok(false);
        }
        let needed = (hole.bytes() / pages.bytes) as usize;
        self.gather(job, hole, needed, room, pages)?;
        if pages.bank.len() < needed {
            return Ok(false);
        }
        for (done, &(address, bytes)) in hole.runs.iter().enumerate() {
            let count = (bytes / pages.bytes) as usize;
            if let Err(error) = self.map_run(address, count, pages) {
                self.enter_runs(&job.request, &hole.runs[..done]);
                return Err(error.into());
            }
        }
        Ok(true)
    }

    /// Maps idle pages from the start of `hole` on, as many as there are, and enters them.
    pub(crate) fn fill_idle(
        self: &Arc<Self>,
        request: &Request,
        hole: &Hole,
        pages: &mut Pages,
    ) -> Result<(), AllocError> {
        if hole.page != pages.bytes {
            return Ok(());
        }
        let keep = Keep::ahead(request, hole);
        let needed = (hole.bytes() / pages.bytes) as usize;
        let lacks = |pages: &Pages| needed.saturating_sub(pages.bank.len());
        let mut stages = Stages::default();
        pages.budget.request(self.device.paging_step());
        self.steal(&keep, lacks(pages), 0, &mut stages, pages);
        if lacks(pages) > 0
            && pages.budget.may_wait()
            && self.wait_for_pages(&keep, lacks(pages), &mut stages, pages)?
        {
            self.steal(&keep, lacks(pages), 0, &mut stages, pages);
        }
        for &(address, bytes) in &hole.runs {
            let count = pages.bank.len().min((bytes / pages.bytes) as usize);
            let bytes = count as u64 * pages.bytes;
            if count == 0 || pages.is_stuck(address, bytes) {
                return Ok(());
            }
            self.map_run(address, count, pages)?;
            self.enter_runs(request, &[(address, bytes)]);
        }
        Ok(())
    }

    /// Moves idle pages under `hole`, a place of the lane's plan, and what follows it, as far as there are
    /// any: the next requests go there.
    pub(crate) fn fill_ahead(
        self: &Arc<Self>,
        lane: &'static Lane,
        hole: &Hole,
        pages: &mut Pages,
    ) -> Result<(), AllocError> {
        let mut hole = hole.clone();
        let share = (pages.total_bytes() / AHEAD_SHARE).next_multiple_of(pages.bytes);
        let Some(last) = hole.runs.last_mut() else { return Ok(()) };
        last.1 += share.min(hole.more);
        let end = last.0 + last.1;
        self.fill_idle(&plan_request(lane, end - hole.address), &hole, pages)
    }

    /// Whether the driver and the cap would give what `hole` lacks, which looks ahead if they would. Slack has
    /// `room` for so many pages.
    fn may_create(&self, hole: &mut Hole, room: usize, pages: &Pages) -> bool {
        let banked = pages.bank.len() as u64 * pages.bytes;
        let creatable = self.creatable(pages) as u64 * pages.bytes;
        if creatable < pages.total_bytes() / NEAR_SHARE {
            self.device.run_short(Shortage::Near);
        }
        let Some(spare) = creatable.saturating_add(banked).checked_sub(hole.bytes()) else {
            return false;
        };
        self.look_ahead(hole, room as u64 * pages.bytes, spare, pages);
        true
    }

    /// Lets the last run of `hole` go on by no more than `spare` bytes, if the program is late to grow and
    /// slack allows it.
    fn look_ahead(&self, hole: &mut Hole, room: u64, spare: u64, pages: &Pages) {
        if self.device.step() < LATE_STEP {
            return;
        }
        let Some(room) = room.checked_sub(hole.bytes()).map(|room| room.min(spare)) else { return };
        let share = (pages.total_bytes() / AHEAD_SHARE).next_multiple_of(pages.bytes);
        if let Some(last) = hole.runs.last_mut() {
            let ahead = share.min(room).min(hole.more);
            if !pages.is_stuck(last.0, last.1 + ahead) {
                last.1 += ahead;
            }
        }
    }

    /// Brings the bank up to `needed` pages if it can. Slack has `room` for so many.
    fn gather(
        self: &Arc<Self>,
        job: &mut Job,
        hole: &Hole,
        needed: usize,
        room: usize,
        pages: &mut Pages,
    ) -> Result<(), AllocError> {
        let lacks = |pages: &Pages| needed.saturating_sub(pages.bank.len());
        if lacks(pages) == 0 {
            return Ok(());
        }
        let keep = Keep::new(&job.request, hole);
        let stages = &mut job.stages;
        if !job.is_refused {
            self.create(lacks(pages).min(room), stages, pages)?;
            if lacks(pages) == 0 {
                return Ok(());
            }
            if self.steal(&keep, lacks(pages), 0, stages, pages) > 0 {
                let room = self.pages_within_slack(&job.request, pages);
                self.create(lacks(pages).min(room), stages, pages)?;
            }
            while lacks(pages) > 0
                && pages.budget.may_wait()
                && self.wait_for_pages(&keep, lacks(pages), stages, pages)?
            {
                self.steal(&keep, lacks(pages), 0, stages, pages);
            }
            return self.create(lacks(pages), stages, pages);
        }
        loop {
            // Nothing is moved or got for a request that would fail all the same.
            let mut creatable = self.creatable(pages);
            let mut least = lacks(pages).saturating_sub(creatable);
            // What goes back to the driver is not always there for us: others may hold more than fits.
            while self.steal(&keep, lacks(pages), least, stages, pages) > 0 {
                creatable = self.creatable(pages);
                least = lacks(pages).saturating_sub(creatable);
                if least == 0 {
                    break;
                }
            }
            if lacks(pages) <= creatable {
                self.create(lacks(pages), stages, pages)?;
            } else {
                stages.note(Stage::Driver, 0);
            }
            if lacks(pages) == 0 || !self.wait_for_pages(&keep, lacks(pages), stages, pages)? {
                return Ok(());
            }
        }
    }

    /// How many pages the driver and the cap would still give, as far as they say. Lanes hear of it.
    fn creatable(&self, pages: &Pages) -> usize {
        let device = &self.device;
        let free = device.driver.memory_info().map_or(u64::MAX, |info| info.free);
        let room = device.cap_room().unwrap_or(u64::MAX);
        let creatable = free.min(room) / pages.bytes;
        device.room.hear(creatable.saturating_mul(pages.bytes).saturating_add(pages.bank_bytes()));
        creatable as usize
    }

    /// How many pages may be asked for before others are moved.
    fn pages_within_slack(&self, request: &Request, pages: &mut Pages) -> usize {
        let device = &self.device;
        let in_use = device.now()[ACTIVE].saturating_add(request.band.size);
        let peak = device.peaks()[ACTIVE].max(in_use);
        let slack = device.settings.slack.unwrap_or(SLACK);
        let rise = pages.budget.rise(device.settings.step_budget_ns);
        let limit = (peak as f64 * (1.0 + slack + rise)) as u64;
        // Whatever the slack, the sum with a page is a number.
        let limit = limit.min(SIZE_MAX).next_multiple_of(pages.bytes);
        (limit.saturating_sub(pages.total_bytes()) / pages.bytes) as usize
    }

    /// Asks the driver for up to `count` pages; fewer where it has no more.
    fn create(
        &self,
        count: usize,
        stages: &mut Stages,
        pages: &mut Pages,
    ) -> Result<(), AllocError> {
        let bytes = pages.bytes;
        for _ in 0..count {
            let flags = self.device.settings.handle_flags;
            match self.device.got(bytes, || self.device.driver.create(bytes, flags)) {
                Ok(handle) => {
                    stages.note(Stage::Driver, bytes);
                    pages.bank.push(handle);
                }
                Err(DriverError::OutOfMemory { .. }) => {
                    stages.note(Stage::Driver, 0);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Maps the last `count` pages of the bank from `address` on. What was mapped before a call failed is
    /// unmapped again.
    fn map_run(&self, address: u64, count: usize, pages: &mut Pages) -> Result<(), DriverError> {
        let driver = &*self.device.driver;
        let page = pages.bytes;
        let first = pages.bank.len() - count;
        let mut failed = None;
        let mut mapped = 0;
        for &handle in &pages.bank[first..] {
            if let Err(error) = driver.map(address + mapped as u64 * page, handle) {
                failed = Some(error);
                break;
            }
            mapped += 1;
        }
        let bytes = count as u64 * page;
        let failed = failed.map_or_else(
            || driver.set_access(address, bytes, &self.device.settings.peers).err(),
            Some,
        );
        pages.enter_banked(address, first..first + mapped);
        let Some(error) = failed else { return Ok(()) };
        let bytes = mapped as u64 * page;
        if mapped > 0 {
            match driver.unmap(address, bytes) {
                Ok(()) => pages.bank_run(address, bytes),
                Err(_) => pages.stuck.push((address, bytes)),
            }
        }
        Err(error)
    }

    /// Enters the pages of a filled hole and places the request there, if nobody else is there.
    pub(crate) fn enter_pages(
        self: &Arc<Self>,
        request: &Request,
        hole: &Hole,
    ) -> Option<Allocation> {
        let mut both = request.lane.twin.both();
        let (front, books) = both.parts();
        for &(address, bytes) in &hole.runs {
            books.map_pages(address, bytes, request.band.index, &self.device.settings);
        }
        let want = Want { band: request.band, align: request.align, fresh: None };
        let taken = books.cut_at(hole.address, &want)?;
        Some(self.hand_out_placed(request, front, &taken))
    }

    /// Enters mapped pages, for whoever needs them.
    fn enter_runs(&self, request: &Request, runs: &[(u64, u64)]) {
        let mut both = request.lane.twin.both();
        for &(address, bytes) in runs {
            both.parts().1.map_pages(address, bytes, request.band.index, &self.device.settings);
        }
    }
}
