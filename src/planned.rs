//! The hub under a plan: a request goes where the plan of its step says, if nothing is in the way there;
//! else where the policy says; and if that would ask for pages, first high up in the plan's space, since
//! pages that move there and back with each step that strays from the plan cost more than a place of it.
//! What the plan is, the planner knows; here it is asked, told what came of its answer, and given room.
use crate::allocation::Allocation;
use crate::cache::{Ask, Request};
use crate::device::{Device, bump};
use crate::driver::DriverError;
use crate::error::AllocError;
use crate::front::{Front, Held};
use crate::lane::{self, Detached, FrontGuard, InPlan, Lane, PLAN_BAND, PlanSpace};
use crate::paged::Job;
use crate::pool::PoolCore;
use crate::trim::Among;
use aquifer_policies::planned::Planner;
use aquifer_policies::{Band, GRAIN};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a label says of a step's kind: all before the first colon, so that `train:1` and `train:2` are
/// of one kind. FNV-1a.
pub(crate) fn kind_of(label: &str) -> u64 {
    let kind = label.split(':').next().unwrap_or(label);
    kind.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The band of planned requests of so many bytes.
fn plan_band(size: u64) -> Band {
    Band { index: PLAN_BAND, size, front: false }
}

impl Request {
    /// The same request, for the space of the plan.
    pub(crate) fn in_plan(&self) -> Request {
        Request { band: plan_band(self.band.size), ..*self }
    }
}

/// The planner of a lane that plans.
fn planner(front: &mut Front) -> &mut Planner {
    front.planner.as_deref_mut().expect("lanes of a policy that plans have a planner")
}

impl Device {
    /// Packs the plans that wait for it, with nothing held.
    pub(crate) fn make_plans(&self) {
        if self.settings.plans {
            self.lanes().into_iter().for_each(|lane| {
                self.make_plan(lane);
            });
        }
    }

    /// Packs the plan that waits for it in `lane`, with nothing held meanwhile.
    fn make_plan(&self, lane: &'static Lane) {
        let ours = |pool: &PoolCore| std::ptr::eq(&*pool.device, self);
        let job = lane.front_if(ours).and_then(|mut front| front.planner.as_mut()?.job());
        let Some(done) = job.map(|job| job.pack()) else { return };
        if let Some(mut front) = lane.front_if(ours)
            && let Some(planner) = &mut front.planner
        {
            planner.adopt(done);
            front.plan_is_new = true;
        }
    }
}

impl PoolCore {
    /// A block for `ask` in a lane that plans.
    #[inline(never)]
    pub(crate) fn allocate_planned(
        self: &Arc<Self>,
        lane: &'static Lane,
        mut front: FrontGuard<'_>,
        ask: Ask,
        band: Band,
    ) -> Result<Allocation, AllocError> {
        if ask.align > GRAIN {
            // Places of the plan are aligned to 512 bytes.
            drop(front);
            return self.miss_further(lane, None, ask, band);
        }
        if front.plan_is_new
            || planner(&mut front).has_job()
            || self.device.pending_len.load(Ordering::Relaxed) > 0
        {
            drop(front);
            front = self.before_planned(lane);
        }
        let ticket = planner(&mut front).request(band.size);
        if ticket.begins {
            self.device.found_step();
        }
        let mut both = match front.into_both() {
            Ok(both) => both,
            Err(front) => {
                drop(front);
                lane.twin.both()
            }
        };
        let (front, books) = both.parts();
        if let Some(offset) = ticket.offset {
            match books.cut_planned(offset, band.size) {
                InPlan::Cut(taken) => {
                    let held = Held::new(&taken, plan_band(band.size));
                    planner(front).placed(ticket, taken.id, true);
                    front.counters.plan_hits += 1;
                    return Ok(self.hand_out_new(lane, front, taken.id, held, ask));
                }
                InPlan::Taken => {}
                InPlan::Hole(_) | InPlan::NoSpace => {
                    drop(both);
                    if let Some(allocation) = self.place_in_hole(lane, ask, offset, band.size) {
                        let mut front = lane.twin.front();
                        planner(&mut front).placed(ticket, allocation.block, true);
                        front.counters.plan_hits += 1;
                        return Ok(allocation);
                    }
                    both = lane.twin.both();
                }
            }
        }
        let mut gone = None;
        let (front, books) = both.parts();
        front.counters.plan_misses += 1;
        if let Some(taken) = lane::place_plainly(front, books, band, &mut gone) {
            let held = Held::new(&taken, band);
            planner(front).placed(ticket, taken.id, false);
            return Ok(self.hand_out_new(lane, front, taken.id, held, ask));
        }
        if gone.is_none()
            && !ticket.outlives
            && !books.lowest_first()
            && let Some(taken) = books.cut_above_plan(band.size)
        {
            let held = Held::new(&taken, plan_band(band.size));
            planner(front).placed(ticket, taken.id, false);
            return Ok(self.hand_out_new(lane, front, taken.id, held, ask));
        }
        drop(both);
        let allocation = self.miss_further(lane, gone, ask, band)?;
        planner(&mut lane.twin.front()).placed(ticket, allocation.block, false);
        Ok(allocation)
    }

    /// Does what is due before a request is told to the planner.
    #[cold]
    fn before_planned<'a>(self: &Arc<Self>, lane: &'static Lane) -> FrontGuard<'a> {
        self.poll_noted();
        self.device.make_plan(lane);
        if std::mem::take(&mut lane.twin.front().plan_is_new) {
            self.prepare_plan(lane);
        }
        lane.twin.front()
    }

    /// Gives the plan addresses and, over pages, what idle memory there is. Errors are noted: what has no
    /// place in the plan gets one from the policy.
    fn prepare_plan(self: &Arc<Self>, lane: &'static Lane) {
        let (height, step) = {
            let mut front = lane.twin.front();
            (planner(&mut front).height(), planner(&mut front).counts().steps)
        };
        if height == 0 || self.device.is_capturing() != Ok(None) {
            return;
        }
        let _growing = lane.growing.lock();
        let had = lane.twin.both().parts().1.plan;
        let space = match had.filter(|space| space.size >= height) {
            Some(space) => Some(space),
            None if self.device.pages.is_some() => self.plan_range(lane, height),
            None => self.plan_segment(lane, height),
        };
        {
            let mut both = lane.twin.both();
            let books = both.parts().1;
            match space {
                Some(space) => books.plan = Some(space),
                None => books.plan_refused_in = Some(step),
            }
        }
        if let Some(PlanSpace { address, .. }) = space
            && self.device.pages.is_some()
        {
            self.fill_plan(lane, PlanSpace { address, size: height });
        }
    }

    /// Addresses for a plan of so many bytes.
    fn plan_range(&self, lane: &'static Lane, height: u64) -> Option<PlanSpace> {
        let mut pages = self.device.pages().lock();
        self.noted(self.add_range(&plan_request(lane, height), &mut pages))?
    }

    /// A segment for a plan of so many bytes, in place of the one there was and of what is idle.
    fn plan_segment(self: &Arc<Self>, lane: &'static Lane, height: u64) -> Option<PlanSpace> {
        if let Some(error) = self.release_idle(u64::MAX, Among::ThisPool).error {
            self.device.note(error);
        }
        let size = height.next_multiple_of(self.device.granularity);
        let address = match self.device.reserve(size) {
            Err(DriverError::OutOfMemory { .. }) => return None,
            answer => self.noted(answer.map_err(AllocError::from))?,
        };
        self.attach(lane, Detached { address, size, band: PLAN_BAND });
        Some(PlanSpace { address, size })
    }

    /// Moves idle pages under a new plan at once, as far as there are any, in its order of addresses: one
    /// by one, as requests come, they would cost a few calls each.
    fn fill_plan(self: &Arc<Self>, lane: &'static Lane, space: PlanSpace) {
        let request = plan_request(lane, space.size);
        let mut pages = self.device.pages().lock();
        let hole = lane.twin.both().parts().1.heap.hole_at(space.address, space.size);
        let Some(hole) = hole else { return };
        self.noted(self.fill_idle(&request, &hole, &mut pages));
    }

    /// The place `offset` bytes into the plan, got ready for a request of `size` bytes; `None` where that
    /// cannot be.
    #[cold]
    fn place_in_hole(
        self: &Arc<Self>,
        lane: &'static Lane,
        ask: Ask,
        offset: u64,
        size: u64,
    ) -> Option<Allocation> {
        let request = Request { ask, ..plan_request(lane, size) };
        if self.has_no_space(lane, offset, size) {
            self.prepare_plan(lane);
        }
        let _growing = lane.growing.lock();
        let mut job = Job::new(request);
        let mut is_filled = false;
        loop {
            let mut hole = {
                let mut both = lane.twin.both();
                let (front, books) = both.parts();
                match books.cut_planned(offset, size) {
                    InPlan::Cut(taken) => {
                        return Some(self.hand_out_placed(&request, front, &taken));
                    }
                    InPlan::Hole(hole) => hole,
                    InPlan::Taken => return None,
                    InPlan::NoSpace => {
                        books.plan_refused_in = Some(planner(front).counts().steps);
                        return None;
                    }
                }
            };
            if self.device.is_capturing() != Ok(None) {
                return None;
            }
            let mut pages = self.device.pages().lock();
            if !std::mem::replace(&mut is_filled, true) {
                self.noted(self.fill_ahead(lane, &hole, &mut pages));
                continue;
            }
            if self.noted(self.fill(&mut job, &mut hole, &mut pages))? {
                if let Some(allocation) = self.enter_pages(&request, &hole) {
                    return Some(allocation);
                }
                continue;
            }
            if job.is_refused {
                return None;
            }
            job.is_refused = true;
            bump(&self.device.totals.retries);
            self.tighten(&mut pages);
            drop(pages);
            self.noted(self.device.release_orphans().map_err(AllocError::from));
        }
    }

    /// Whether the plan has no addresses there, and may be given some in this step.
    fn has_no_space(&self, lane: &'static Lane, offset: u64, size: u64) -> bool {
        let mut both = lane.twin.both();
        let (front, books) = both.parts();
        let end = offset.saturating_add(size);
        let lacks = books.plan.is_none_or(|space| space.size < end);
        lacks && books.plan_refused_in != Some(planner(front).counts().steps)
    }

    /// The value; an error concerns the plan, not the request, and is only noted.
    fn noted<T>(&self, answer: Result<T, AllocError>) -> Option<T> {
        if let Err(AllocError::Driver(error)) = &answer {
            self.device.note(*error);
        }
        answer.ok()
    }
}

/// A request for so many bytes of the plan's space.
pub(crate) fn plan_request(lane: &'static Lane, bytes: u64) -> Request {
    let ask = Ask::new(bytes, lane.stream());
    Request { lane, ask, band: plan_band(bytes), align: GRAIN }
}
