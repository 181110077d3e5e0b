//! A cursor in a family's sequence, and how it is found again when the program deviates. Knows one
//! family at a time and no offsets.
use super::family::Family;
use super::grams::RUN;
use super::record::Seen;

/// How far from the straight way a request is looked for, in positions.
const REACH: usize = 8;

/// Strays in a row after which runs of sizes are looked up at every request no more, but at every
/// [`LOOKUP_EVERY`]th.
const STRAYS_PATIENT: usize = 64;
const LOOKUP_EVERY: usize = 16;

/// Where a step stands in a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Follower {
    /// The position expected next: of the first stray, if there are any.
    pub(super) cursor: usize,
    /// Requests in a row that were found nowhere.
    pub(super) strays: usize,
}

impl Follower {
    /// Past `position`, which a request was found at.
    pub(super) fn past(position: usize) -> Follower {
        Follower { cursor: position + 1, strays: 0 }
    }

    /// Whether the way from `before` to here leads out of the family's end: a few strays behind it, or
    /// back to its begin.
    pub(super) fn has_left(&self, before: Follower, family: &Family) -> bool {
        let length = family.entries.len();
        let is_behind = self.cursor >= length && self.strays == RUN;
        let is_back = self.cursor <= REACH && before.cursor + REACH >= length;
        is_behind || (is_back && length > 2 * REACH)
    }

    /// The position of a request of `size` bytes that comes after `recent`.
    #[inline]
    pub(super) fn next(&mut self, family: &Family, recent: &[Seen], size: u64) -> Option<usize> {
        let is_expected = family.entries.get(self.cursor).is_some_and(|entry| entry.size == size);
        if is_expected && self.strays == 0 {
            self.cursor += 1;
            return Some(self.cursor - 1);
        }
        self.find(family, recent, size)
    }

    /// Looks near the straight way, then anywhere; until it is found the request is a stray.
    pub(super) fn find(&mut self, family: &Family, recent: &[Seen], size: u64) -> Option<usize> {
        let trail = Trail { family, recent, size };
        let found = self.inserted_or_replaced(&trail).or_else(|| self.near(&trail));
        match found.or_else(|| self.far(&trail)) {
            Some(position) => {
                *self = Follower::past(position);
                Some(position)
            }
            None => {
                self.strays += 1;
                None
            }
        }
    }

    /// After a single stray: what was expected with it, or what comes behind that, if not both.
    fn inserted_or_replaced(&self, trail: &Trail<'_>) -> Option<usize> {
        if self.strays != 1 {
            return None;
        }
        match (trail.run(self.cursor) > 0, trail.run(self.cursor + 1) > 0) {
            (true, false) => Some(self.cursor),
            (false, true) => Some(self.cursor + 1),
            _ => None,
        }
    }

    /// Two sizes in a row, nearest to where it would be had each stray replaced one request.
    fn near(&self, trail: &Trail<'_>) -> Option<usize> {
        let straight = self.cursor + self.strays;
        let is_it = |position: &usize| *position >= self.cursor && trail.run(*position) >= 2;
        let both = |distance| [straight.saturating_sub(distance), straight + distance];
        (0..=REACH).flat_map(both).find(is_it)
    }

    /// Four sizes in a row, at the first place from the cursor on, else before it.
    fn far(&self, trail: &Trail<'_>) -> Option<usize> {
        let is_due = self.strays < STRAYS_PATIENT || self.strays.is_multiple_of(LOOKUP_EVERY);
        if self.strays + 1 < RUN || !is_due {
            return None;
        }
        trail.far(self.cursor)
    }
}

/// The last sizes, held against a family.
pub(super) struct Trail<'a> {
    pub(super) family: &'a Family,
    pub(super) recent: &'a [Seen],
    pub(super) size: u64,
}

impl Trail<'_> {
    /// How many sizes up to the newest agree with those up to `position`; 2 stands for more.
    fn run(&self, position: usize) -> usize {
        let entries = &self.family.entries;
        if entries.get(position).is_none_or(|entry| entry.size != self.size) {
            return 0;
        }
        let before = position.checked_sub(1).map(|at| entries[at].size);
        let agrees = before.is_some() && before == self.recent.last().map(|seen| seen.size);
        1 + usize::from(agrees)
    }

    /// Whether the newest size and up to `RUN` before it agree with those up to `position`; near the
    /// begin of the step, all.
    pub(super) fn is_straight(&self, position: usize) -> bool {
        let entries = &self.family.entries;
        let count = position.min(RUN);
        entries.get(position).is_some_and(|entry| entry.size == self.size)
            && self.recent.len() >= count
            && (1..=count).all(|back| {
                entries[position - back].size == self.recent[self.recent.len() - back].size
            })
    }

    /// Where the last four sizes stand.
    pub(super) fn far(&self, from: usize) -> Option<usize> {
        let before = self.recent.last_chunk::<{ RUN - 1 }>()?;
        let run = [before[0].size, before[1].size, before[2].size, self.size];
        self.family.grams.find(&self.family.entries, run, from)
    }
}
