//! A recorded shape of step: its sequence, its plan, and what was seen of its lifetimes since. Knows
//! neither blocks nor the other families.
use super::grams::Grams;
use super::job::{Plan, PlanJob};
use super::record::{KEPT, NOWHERE, Record, Seen, Sequence};
use super::times::{Times, union};

/// No place in the plan.
pub(super) const NO_OFFSET: u64 = u64::MAX;

/// A family seen once is planned when a step has followed it for one of so many of its requests, and for
/// so many at least.
const EARLY_SHARE: usize = 32;
const EARLY_MIN: usize = 16;

/// One request of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Bytes.
    pub(super) size: u64,
    /// Where it goes in the plan's space, or [`NO_OFFSET`].
    pub(super) offset: u64,
}

/// One shape of step of one kind.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) id: u64,
    pub(super) kind: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) grams: Grams,
    /// Bytes that the plan needs; 0 without one.
    pub(super) height: u64,
    pub(super) is_planned: bool,
    /// The tick of its last occurrence.
    pub(super) used: u64,
    /// The family that came after it the last time.
    pub(super) then: Option<u64>,
    /// When each request of the sequence was freed at the latest, in occurrences since the sequence is
    /// this one, of those that deviated from a plan; 0 if there were none.
    untils: Vec<u32>,
    /// When each request was freed in the next occurrence, at the latest of those that followed at once;
    /// [`KEPT`] if never.
    carried: Vec<u32>,
    /// How often the sequence has changed.
    version: u32,
    occurrences: u32,
    /// How many jobs it has given; the number of the last.
    jobs: u32,
    /// A plan to go over to when no step follows the old one.
    next: Option<Plan>,
}

/// How an occurrence went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Requests found in the sequence.
    pub(super) matched: usize,
    /// Requests that were given an offset.
    pub(super) hinted: usize,
    /// Of them those whose place was found taken.
    pub(super) taken: usize,
}

impl Family {
    /// A family of one occurrence.
    pub(super) fn new(id: u64, kind: u64, seen: &[Seen]) -> Family {
        let unplaced = |seen: &Seen| Entry { size: seen.size, offset: NO_OFFSET };
        let entries: Vec<Entry> = seen.iter().map(unplaced).collect();
        let grams = Grams::new(&entries);
        let untils = seen.iter().map(|seen| seen.until).collect();
        let (height, is_planned, used, then) = (0, false, 0, None);
        let (occurrences, jobs, next) = (1, 0, None);
        let (carried, version) = (vec![KEPT; seen.len()], 0);
        Family {
            id,
            kind,
            entries,
            grams,
            height,
            is_planned,
            used,
            then,
            untils,
            carried,
            version,
            occurrences,
            jobs,
            next,
        }
    }

    /// What the positions of its occurrences are of.
    pub(super) fn sequence(&self) -> Sequence {
        Sequence { family: self.id, version: self.version }
    }

    /// Whether `matched` of `count` requests make an occurrence of this family.
    pub(super) fn is_like(&self, count: usize, matched: usize) -> bool {
        // A step that went through the sequence twice is none: it is too long.
        matched.min(self.entries.len()) * 10 >= count.max(self.entries.len()) * 9
    }

    /// It came again, as `record` with the positions of this family. Gives work if the plan is none or
    /// bad, and the occurrence is the 2nd, 4th, 8th and so on.
    pub(super) fn again(&mut self, record: &Record, outcome: Outcome) -> Option<PlanJob> {
        let count = record.seen.len().max(self.entries.len());
        self.carry(record);
        let carried = self.entries.iter().zip(&self.carried);
        let gain = carried.filter(|(entry, at)| entry.offset == NO_OFFSET && **at != KEPT).count();
        let is_good = self.is_planned
            && gain * 50 <= count
            && outcome.matched * 50 >= count * 49
            && outcome.taken * 50 <= outcome.hinted;
        self.occurrences = self.occurrences.saturating_add(1);
        if is_good {
            return None;
        }
        let times = Times::new(&record.seen, self.entries.len());
        if !self.occurrences.is_power_of_two() {
            self.remember(&record.seen, &times);
            return None;
        }
        self.jobs += 1;
        let mut seen = union(&record.seen, &self.untils, &times);
        let length = seen.len() as u32;
        for seen in seen.iter_mut().filter(|seen| seen.until == KEPT) {
            let carried = self.carried.get(seen.position as usize);
            let until = carried.map_or(KEPT, |until| times.in_step(*until));
            seen.until = until.saturating_add(length);
        }
        Some(PlanJob::new(self.id, self.jobs, seen))
    }

    /// Learns when what the last occurrence kept was freed in this one, which may still go on.
    fn carry(&mut self, record: &Record) {
        let positions = record.seen.iter().map(|seen| seen.position);
        let last = positions.filter(|position| *position != NOWHERE).max();
        let length = last.map_or(0, |last| last as usize + 1);
        let times = Times::new(&record.seen, length);
        for (position, carried) in record.carried(self.sequence()) {
            let Some(at) = self.carried.get_mut(position as usize) else { continue };
            let before = if *at == KEPT { 0 } else { *at };
            *at = times.to_family(carried).max(before);
        }
    }

    /// After how many requests found here a step that may be its second occurrence is taken to be one;
    /// `None` if a job was given before.
    pub(super) fn is_known_after(&self) -> Option<usize> {
        (self.jobs == 0).then(|| (self.entries.len() / EARLY_SHARE).max(EARLY_MIN))
    }

    /// Work for the plan of its only occurrence, while another one goes on.
    pub(super) fn first_job(&mut self, record: &Record) -> PlanJob {
        self.carry(record);
        self.jobs += 1;
        let length = self.entries.len() as u32;
        let seen = |at: usize| {
            let (size, until) = (self.entries[at].size, self.untils[at]);
            let carried = self.carried[at].saturating_add(length);
            Seen { size, position: at as u32, until: if until == KEPT { carried } else { until } }
        };
        let seen = (0..self.entries.len()).map(seen).collect();
        PlanJob::new(self.id, self.jobs, seen)
    }

    fn remember(&mut self, seen: &[Seen], times: &Times) {
        for seen in seen.iter().filter(|seen| seen.position != NOWHERE) {
            let until = &mut self.untils[seen.position as usize];
            *until = times.in_family(seen).max(*until);
        }
    }

    /// Takes a plan that was made for job number `job`, unless a later job was given. It is followed
    /// from the next step on, or at once if it changes nothing but offsets that nobody has yet.
    pub(super) fn adopt(&mut self, job: u32, plan: Plan, is_followed: bool) -> bool {
        if job != self.jobs {
            return false;
        }
        self.next = Some(plan);
        if !is_followed || self.is_only_offsets() {
            self.settle();
        }
        true
    }

    fn is_only_offsets(&self) -> bool {
        let sizes = |entries: &[Entry]| entries.iter().map(|entry| entry.size).collect::<Vec<_>>();
        let next = self.next.as_ref();
        !self.is_planned && next.is_some_and(|next| sizes(&next.entries) == sizes(&self.entries))
    }

    /// Goes over to the new plan, if there is one: no step follows the old.
    pub(super) fn settle(&mut self) {
        let is_only_offsets = self.is_only_offsets();
        let Some(plan) = self.next.take() else { return };
        if !is_only_offsets {
            self.untils.clear();
            self.untils.resize(plan.entries.len(), 0);
            self.carried.clear();
            self.carried.resize(plan.entries.len(), KEPT);
            self.version += 1;
        }
        (self.entries, self.grams, self.height) = (plan.entries, plan.grams, plan.height);
        self.is_planned = true;
    }

    /// Bytes that the plan needs, or the one to come if that is more.
    pub(super) fn height_max(&self) -> u64 {
        self.height.max(self.next.as_ref().map_or(0, |next| next.height))
    }
}
