//! Serves steps that repeat from a plan: records the requests of a step, packs offsets for them apart
//! from the program, and says where each request of a later step goes. Knows no driver, heap or lock.
//!
//! A step that was seen once is packed when one begins in the same way, and again with its lifetimes if
//! the first plan did badly.
//!
//! What lives into the next step, as gradients do, has a place as if steps went in a circle: for it to be
//! free the next step must be of the same family, and the plan is made when that was seen once.
//!
//! A hint is safe to follow only where the place is free: the planner supposes that lifetimes are as
//! they were, and does not look. What is not in the plan gets no offset and is served by the ordinary
//! policy: what outlives the next step, and what deviates. Steps that nobody marks are found by their
//! repeats, until the first mark.

mod blocks;
mod families;
mod family;
mod finder;
mod follow;
mod grams;
mod job;
mod record;
mod ring;
mod times;

pub use job::{PlanDone, PlanJob};

use crate::BlockId;
use blocks::Blocks;
use families::{Course, Families};
use family::{NO_OFFSET, Outcome};
use finder::{Finder, Turn};
use record::{NOWHERE, Record, Seen};

/// The kind of steps that nobody marks.
const UNMARKED: u64 = 0;

/// Records steps and serves them. One per stream and pool.
#[derive(Debug)]
pub struct Planner {
    /// Requests so far, which is the number of the next.
    now: u64,
    blocks: Blocks,
    record: Record,
    /// Where the step stands, if there is one.
    course: Option<Course>,
    families: Families,
    outcome: Outcome,
    /// With so many requests found in its family the step is known to be an occurrence of it, which
    /// matters if there is no plan yet.
    known_after: usize,
    counts: PlanCounts,
    /// Looks for steps until the first is marked.
    finder: Option<Box<Finder>>,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Counts the requests of a planner.
    pub number: u64,
    /// Bytes from the begin of the plan's space; a multiple of 512 if all sizes are. `None`: not in
    /// the plan.
    pub offset: Option<u64>,
    /// Whether such a request outlived the next step when the plan was made, and so has no offset.
    pub outlives: bool,
    /// Whether a step begins with it that nobody marked.
    pub begins: bool,
}

/// What a planner has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// Steps that are over.
    pub steps: u64,
    /// Plans adopted.
    pub plans: u64,
    /// Requests placed in the plan.
    pub planned: u64,
    /// Requests placed elsewhere, those without an offset included.
    pub online: u64,
    /// Of them those that had an offset whose place was taken.
    pub taken: u64,
    /// Families kept now.
    pub families: u64,
}

impl Default for Planner {
    fn default() -> Planner {
        Planner::new()
    }
}

impl Planner {
    /// Knows nothing yet.
    pub fn new() -> Planner {
        Planner {
            now: 0,
            blocks: Blocks::default(),
            record: Record::default(),
            course: None,
            families: Families::default(),
            outcome: Outcome::default(),
            known_after: usize::MAX,
            counts: PlanCounts::default(),
            finder: Some(Box::default()),
        }
    }

    /// The program says that a step of this kind begins. Steps of different kinds are never mixed up.
    /// From the first mark on no step is looked for any more.
    pub fn mark(&mut self, kind: u64) {
        if self.finder.take().is_some() {
            self.course = None;
        }
        self.end();
        self.begin(kind);
    }

    fn begin(&mut self, kind: u64) {
        self.record.begin(self.now);
        self.outcome = Outcome::default();
        self.course = Some(self.families.begin(kind));
        self.set_known_after();
    }

    /// The step follows another family from now on.
    fn set_known_after(&mut self) {
        let family = self.course.and_then(|course| course.family);
        let more = family.and_then(|at| self.families.list[at].is_known_after());
        self.known_after = more.map_or(usize::MAX, |more| self.outcome.matched + more);
    }

    /// The step has followed its family for long enough.
    #[cold]
    fn is_known(&mut self) {
        self.known_after = usize::MAX;
        if let Some(family) = self.course.and_then(|course| course.family) {
            self.families.is_known(family, &self.record);
        }
    }

    fn end(&mut self) {
        let Some(course) = self.course.take() else { return };
        if self.record.seen.is_empty() {
            return;
        }
        self.counts.steps += 1;
        self.families.end(&course, &mut self.record, self.outcome);
    }

    /// A request of `size` bytes, over 0.
    #[inline]
    pub fn request(&mut self, size: u64) -> Ticket {
        let begins = self.find_step(size);
        let number = self.now;
        self.now += 1;
        let entry = self.follow(size);
        let offset = entry.filter(|offset| *offset != NO_OFFSET);
        let outlives = entry.is_some() && offset.is_none();
        self.outcome.hinted += usize::from(offset.is_some());
        Ticket { number, offset, outlives, begins }
    }

    /// Begins a step, or gives one up, if the finder says so of this request; whether it began one.
    #[inline]
    fn find_step(&mut self, size: u64) -> bool {
        let is_followed = self.is_followed();
        let Some(finder) = &mut self.finder else { return false };
        let turn = finder.request(size, is_followed);
        match turn {
            Turn::None => {}
            Turn::Begins => {
                self.end();
                self.begin(UNMARKED);
            }
            Turn::Lost => self.course = None,
        }
        turn == Turn::Begins
    }

    /// Whether a step goes on that is one of a family so far, or is the first of one.
    #[inline]
    fn is_followed(&self) -> bool {
        self.course.is_some_and(|course| {
            course.family.is_none() || self.outcome.matched * 2 >= self.record.seen.len()
        })
    }

    #[inline]
    fn follow(&mut self, size: u64) -> Option<u64> {
        let course = self.course.as_mut()?;
        let entries = course.family.map(|at| &self.families.list[at].entries[..]);
        let follower = &mut course.follower;
        if let Some(entry) = entries.and_then(|entries| entries.get(follower.cursor))
            && entry.size == size
            && follower.strays == 0
        {
            self.record.push(Seen::new(size, follower.cursor as u32));
            follower.cursor += 1;
            self.outcome.matched += 1;
            let offset = entry.offset;
            if self.outcome.matched >= self.known_after {
                self.is_known();
            }
            return Some(offset);
        }
        self.deviate(size)
    }

    #[cold]
    fn deviate(&mut self, size: u64) -> Option<u64> {
        let course = self.course.as_mut()?;
        let (before, family_before) = (course.follower, course.family);
        let found = self.families.find(course, &self.record.seen, size);
        let position = found.map_or(NOWHERE, |position| position as u32);
        self.record.push(Seen::new(size, position));
        self.outcome.matched += usize::from(found.is_some());
        let followed = course.family;
        let family = &self.families.list[followed?];
        let has_left = course.follower.has_left(before, family);
        if let Some(finder) = &mut self.finder
            && has_left
            && self.outcome.matched * 2 >= self.record.seen.len()
        {
            finder.step_is_over();
        }
        let offset = found.map(|position| family.entries[position].offset);
        if followed != family_before {
            self.set_known_after();
        }
        offset
    }

    /// The request of `ticket` is served by `block`; `in_plan` tells whether at the ticket's offset.
    #[inline]
    pub fn placed(&mut self, ticket: Ticket, block: BlockId, in_plan: bool) {
        self.blocks.set(block, ticket.number);
        let is_taken = ticket.offset.is_some() && !in_plan;
        self.outcome.taken += usize::from(is_taken);
        self.counts.taken += u64::from(is_taken);
        self.counts.planned += u64::from(in_plan);
        self.counts.online += u64::from(!in_plan);
    }

    /// `block` was freed. Blocks that were never placed are ignored.
    #[inline]
    pub fn freed(&mut self, block: BlockId) {
        if let Some(number) = self.blocks.take(block) {
            self.record.freed(number);
            if let Some(finder) = &mut self.finder {
                finder.freed(number);
            }
        }
    }

    /// Whether a step waits to be packed.
    #[inline]
    pub fn has_job(&self) -> bool {
        !self.families.waiting.is_empty()
    }

    /// A step to be packed.
    pub fn job(&mut self) -> Option<PlanJob> {
        (!self.families.waiting.is_empty()).then(|| self.families.waiting.remove(0))
    }

    /// Takes a plan, unless it comes too late.
    pub fn adopt(&mut self, done: PlanDone) {
        let has_begun = self.outcome.matched > 0 || !self.record.seen.is_empty();
        let followed = self.course.filter(|_| has_begun).and_then(|course| course.family);
        self.counts.plans += u64::from(self.families.adopt(done, followed));
    }

    /// Bytes that the plan's space needs: those of the tallest plan kept.
    pub fn height(&self) -> u64 {
        self.families.height()
    }

    /// What was done so far.
    pub fn counts(&self) -> PlanCounts {
        PlanCounts { families: self.families.list.len() as u64, ..self.counts }
    }
}
