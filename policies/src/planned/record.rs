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
    /// Requests of the step made when it was freed, or [`KEPT`].
    pub(super) until: u32,
}

impl Seen {
    pub(super) fn new(size: u64, position: u32) -> Seen {
        Seen { size, position, until: KEPT }
    }
}

/// The step that is going on. Request numbers count from the planner's first.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The requests so far.
    pub(super) seen: Vec<Seen>,
    first: u64,
    is_spilt: bool,
}

impl Record {
    /// Starts anew with request `first`.
    pub(super) fn begin(&mut self, first: u64) {
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

    /// Request `number` was freed. Those of other steps are ignored.
    #[inline]
    pub(super) fn freed(&mut self, number: u64) {
        let now = self.seen.len() as u32;
        let index = usize::try_from(number.wrapping_sub(self.first)).unwrap_or(usize::MAX);
        if let Some(seen) = self.seen.get_mut(index) {
            seen.until = now;
        }
    }
}
