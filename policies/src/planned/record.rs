//! One step as it happens: the sizes asked for and how long each was kept. Knows no plan but the
//! positions that the follower tells.

/// Not in the plan's sequence.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Not freed within the step. Later than every time.
pub(super) const KEPT: u32 = u32::MAX;

/// The longest step that is recorded, in requests.
pub(super) const STEP_MAX: usize = 1 << 18;

/// One request of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Bytes.
    pub(super) size: u64,
    /// Where the followed family has it, or [`NOWHERE`].
    pub(super) position: u32,
    /// Requests of the step made when it was freed, or [`KEPT`]. Those of the next step count on, where
    /// that is of the same sequence.
    pub(super) until: u32,
}

impl Seen {
    pub(super) fn new(size: u64, position: u32) -> Seen {
        Seen { size, position, until: KEPT }
    }
}

/// The step that is going on, and the one before. Request numbers count from the planner's first.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The requests so far.
    pub(super) seen: Vec<Seen>,
    first: u64,
    is_spilt: bool,
    /// What the step was found to be, once it is over.
    pub(super) is_of: Option<Sequence>,
    before: Before,
}

/// Which sequence the positions of a step are of: a family, and how often its sequence has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) family: u64,
    pub(super) version: u32,
}

/// The step that ended where the present one began; empty without one.
#[derive(Debug, Default)]
struct Before {
    seen: Vec<Seen>,
    first: u64,
    is_of: Option<Sequence>,
    /// Requests of the present step made when each was freed, or [`KEPT`].
    carried: Vec<u32>,
}

impl Record {
    /// Starts anew with request `first`.
    pub(super) fn begin(&mut self, first: u64) {
        let before = &mut self.before;
        std::mem::swap(&mut self.seen, &mut before.seen);
        if self.is_spilt || first != self.first + before.seen.len() as u64 {
            before.seen.clear();
        }
        (before.first, before.is_of) = (self.first, self.is_of.take());
        before.carried.clear();
        before.carried.resize(before.seen.len(), KEPT);
        self.seen.clear();
        self.first = first;
        self.is_spilt = false;
    }

    /// One more request. A step longer than [`STEP_MAX`] is forgotten whole: it looks empty from then on.
    #[inline]
    pub(super) fn push(&mut self, seen: Seen) {
        if self.seen.len() < STEP_MAX && !self.is_spilt {
            self.seen.push(seen);
        } else {
            self.seen.clear();
            self.is_spilt = true;
        }
    }

    /// Request `number` was freed. Those of other steps than the last two are ignored.
    #[inline]
    pub(super) fn freed(&mut self, number: u64) {
        let now = self.seen.len() as u32;
        let index = |first: u64| usize::try_from(number.wrapping_sub(first)).unwrap_or(usize::MAX);
        if let Some(seen) = self.seen.get_mut(index(self.first)) {
            seen.until = now;
        } else if let Some(carried) = self.before.carried.get_mut(index(self.before.first)) {
            *carried = now;
        }
    }

    /// Of the requests of the step before, if that was one of this sequence, those that were freed in the
    /// present one: their positions, and how many requests this one had made then.
    pub(super) fn carried(&self, sequence: Sequence) -> impl Iterator<Item = (u32, u32)> {
        let before = &self.before;
        let is_it = before.is_of == Some(sequence);
        let all = before.seen.iter().zip(&before.carried).filter(move |_| is_it);
        let carried = all.map(|(seen, carried)| (seen.position, *carried));
        carried.filter(|(position, carried)| *position != NOWHERE && *carried != KEPT)
    }
}
