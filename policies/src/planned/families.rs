//! The families kept: which one a step follows, which one it was, which one goes. Knows no block.
use super::family::{Family, Outcome};
use super::follow::{Follower, Trail};
use super::grams::RUN;
use super::job::{PlanDone, PlanJob};
use super::record::{NOWHERE, Record, Seen};

/// The most families kept.
const FAMILIES_MAX: usize = 16;

/// The most requests kept, all families together: 48 MiB or so.
const REQUESTS_MAX: usize = 1 << 19;

/// Of so many families without a plan the one unused longest goes, before any with one.
const UNPLANNED_MAX: usize = 4;

/// Samples by which it is guessed whether a step is one of a family.
const SAMPLES: usize = 32;

/// Every family, and the work that they wait for.
#[derive(Debug, Default)]
pub(super) struct Families {
    pub(super) list: Vec<Family>,
    pub(super) waiting: Vec<PlanJob>,
    ids: u64,
    tick: u64,
}

/// A step on its way through the families of its kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Course {
    pub(super) kind: u64,
    /// Index of the family followed.
    pub(super) family: Option<usize>,
    pub(super) follower: Follower,
    /// Whether the positions before are not all of this family.
    pub(super) is_mixed: bool,
}

impl Families {
    /// The course of a step of `kind` that begins: along the family that came after the last one the
    /// last time, else along the last one; planned ones first.
    pub(super) fn begin(&mut self, kind: u64) -> Course {
        let last = self.best(kind, |family| (family.used, true));
        let then = last.and_then(|last| self.list[last].then);
        let first = self.best(kind, |family| (family.used, Some(family.id) == then));
        Course { kind, family: first, follower: Follower::default(), is_mixed: false }
    }

    fn best(&self, kind: u64, key: impl Fn(&Family) -> (u64, bool)) -> Option<usize> {
        let key = |family: &Family| {
            let (used, is_next) = key(family);
            (family.is_planned, is_next, used)
        };
        let of_kind = self.list.iter().enumerate().filter(|(_, family)| family.kind == kind);
        of_kind.max_by_key(|(_, family)| key(family)).map(|(at, _)| at)
    }

    /// The position of a request that was not the one expected; the course may go over to another
    /// family for it.
    pub(super) fn find(&self, course: &mut Course, recent: &[Seen], size: u64) -> Option<usize> {
        let current = course.family?;
        if course.follower.strays == 0
            && let Some(position) = self.fork(course, recent, size)
        {
            return Some(position);
        }
        let found = course.follower.find(&self.list[current], recent, size);
        found.or_else(|| self.elsewhere(course, recent, size))
    }

    /// The other families that the course may go over to.
    fn others(&self, course: &Course) -> impl Iterator<Item = (usize, &Family)> {
        let (kind, current) = (course.kind, course.family);
        let of_kind =
            move |(at, family): &(usize, &Family)| family.kind == kind && Some(*at) != current;
        self.list.iter().enumerate().filter(of_kind)
    }

    fn is_planned(&self, course: &Course) -> bool {
        course.family.is_some_and(|at| self.list[at].is_planned)
    }

    /// A family that was the same so far and goes on with `size`: the last used, and never from a plan to
    /// none.
    fn fork(&self, course: &mut Course, recent: &[Seen], size: u64) -> Option<usize> {
        let position = course.follower.cursor;
        let fits = |family: &Family| Trail { family, recent, size }.is_straight(position);
        let is_planned = self.is_planned(course);
        let fits =
            |(_, family): &(usize, &Family)| (family.is_planned || !is_planned) && fits(family);
        let others = self.others(course).filter(fits);
        let (at, _) = others.max_by_key(|(_, family)| (family.is_planned, family.used))?;
        course.go_over(at, position);
        Some(position)
    }

    /// A family in which the last sizes occur, if the step has been astray for as many. From a plan also to
    /// one without that may get its first.
    fn elsewhere(&self, course: &mut Course, recent: &[Seen], size: u64) -> Option<usize> {
        if course.follower.strays < RUN || !course.follower.strays.is_multiple_of(RUN) {
            return None;
        }
        let from = course.follower.cursor;
        let find = |(at, family): (usize, &Family)| {
            let position = Trail { family, recent, size }.far(from)?;
            Some((family.is_planned, family.used, at, position))
        };
        let is_planned = self.is_planned(course);
        let may_go = |(_, family): &(usize, &Family)| {
            family.is_planned || !is_planned || family.is_known_after().is_some()
        };
        let (_, _, at, position) = self.others(course).filter(may_go).filter_map(find).max()?;
        course.go_over(at, position);
        Some(position)
    }

    /// A step is over: it was one of the families, or is a new one.
    pub(super) fn end(&mut self, course: &Course, record: &mut Record, outcome: Outcome) {
        let last = self.best(course.kind, |family| (family.used, true));
        let last = last.map(|last| self.list[last].id);
        let (family, matched) = match self.classify(course, record, outcome.matched) {
            Some(found) => found,
            None => (self.add(course.kind, record), 0),
        };
        self.tick += 1;
        self.list[family].used = self.tick;
        let id = self.list[family].id;
        if let Some(last) = last.and_then(|last| self.list.iter_mut().find(|it| it.id == last)) {
            last.then = Some(id);
        }
        if matched > 0 {
            let job = self.list[family].again(record, Outcome { matched, ..outcome });
            self.waiting.retain(|waiting| job.is_none() || waiting.family() != id);
            self.waiting.extend(job);
        }
        record.is_of = Some(self.list[family].sequence());
        self.list.iter_mut().for_each(Family::settle);
    }

    /// The step that follows `family` is its second occurrence, as it seems: that one is to be packed.
    pub(super) fn is_known(&mut self, family: usize, record: &Record) {
        let job = self.list[family].first_job(record);
        self.waiting.push(job);
    }

    /// The family that `record` is an occurrence of, and how many requests they share. Leaves the
    /// positions of that family in the record.
    fn classify(
        &self,
        course: &Course,
        record: &mut Record,
        matched: usize,
    ) -> Option<(usize, usize)> {
        let count = record.seen.len();
        if let Some(followed) = course.family
            && !course.is_mixed
            && self.list[followed].is_like(count, matched)
        {
            return Some((followed, matched));
        }
        let of_kind = self.list.iter().enumerate().filter(|(_, family)| family.kind == course.kind);
        let mut likely: Vec<(usize, &Family)> =
            of_kind.filter(|(_, family)| looks_like(family, &record.seen)).collect();
        likely.sort_by_key(|(at, family)| (Some(*at) != course.family, u64::MAX - family.used));
        likely.into_iter().find_map(|(at, family)| {
            let matched = align(family, &mut record.seen);
            family.is_like(count, matched).then_some((at, matched))
        })
    }

    /// Makes room for a new family and adds it. The positions in the record become its own.
    fn add(&mut self, kind: u64, record: &mut Record) -> usize {
        let requests = |list: &[Family]| list.iter().map(|it| it.entries.len()).sum::<usize>();
        while self.list.len() >= FAMILIES_MAX
            || requests(&self.list) + record.seen.len() > REQUESTS_MAX
        {
            self.evict();
        }
        for (at, seen) in record.seen.iter_mut().enumerate() {
            seen.position = at as u32;
        }
        self.ids += 1;
        self.list.push(Family::new(self.ids, kind, &record.seen));
        self.list.len() - 1
    }

    fn evict(&mut self) {
        let unplanned = self.list.iter().filter(|family| !family.is_planned).count();
        let spares_planned = unplanned >= UNPLANNED_MAX;
        let key = |family: &Family| (spares_planned && family.is_planned, family.used);
        let oldest = self.list.iter().enumerate().min_by_key(|(_, family)| key(family));
        let Some((at, _)) = oldest else { return };
        let family = self.list.swap_remove(at);
        self.waiting.retain(|job| job.family() != family.id);
    }

    /// Gives a plan to its family, if that is still there and waits for no newer one. `followed` is the
    /// index of the family that a step follows now.
    pub(super) fn adopt(&mut self, done: PlanDone, followed: Option<usize>) -> bool {
        let family = self.list.iter_mut().enumerate().find(|(_, it)| it.id == done.family);
        family
            .is_some_and(|(at, family)| family.adopt(done.number, done.plan, followed == Some(at)))
    }

    /// Bytes that the tallest plan needs.
    pub(super) fn height(&self) -> u64 {
        self.list.iter().map(Family::height_max).max().unwrap_or(0)
    }
}

impl Course {
    fn go_over(&mut self, family: usize, position: usize) {
        self.family = Some(family);
        self.follower = Follower::past(position);
        self.is_mixed = true;
    }
}

/// Whether half of a few runs of sizes occur in the family, and the lengths are alike.
fn looks_like(family: &Family, seen: &[Seen]) -> bool {
    let (shorter, longer) =
        (seen.len().min(family.entries.len()), seen.len().max(family.entries.len()));
    if shorter * 10 < longer * 9 {
        return false;
    }
    let runs = seen.len().saturating_sub(RUN);
    let samples = SAMPLES.min(runs);
    let is_found = |sample: &usize| {
        let at = sample * runs / samples;
        let run = [0, 1, 2, 3].map(|back| seen[at + back].size);
        family.grams.find(&family.entries, run, at).is_some()
    };
    (0..samples).filter(is_found).count() * 2 >= samples
}

/// Follows a whole step along a family: leaves the positions in `seen` and counts them. Gives up after
/// a tenth of strays.
fn align(family: &Family, seen: &mut [Seen]) -> usize {
    let mut follower = Follower::default();
    let (mut matched, mut strays) = (0, 0);
    for at in 0..seen.len() {
        let position = follower.next(family, &seen[..at], seen[at].size);
        seen[at].position = position.map_or(NOWHERE, |position| position as u32);
        matched += usize::from(position.is_some());
        strays += usize::from(position.is_none());
        if strays * 10 > seen.len() {
            return 0;
        }
    }
    matched
}
