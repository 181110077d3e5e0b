//! Finds steps that nobody marks. A run of sizes that comes again suggests a period; a whole repeat
//! confirms it; from then on a step begins where the sizes come again that stood before the place at
//! which least was in use. Knows sizes and request numbers, no block and no plan.
//!
//! What is found may be wrong: a plan made of it then serves little, and harms nothing.
use super::ring::{CAPACITY, Ring};

/// Sizes in a run.
const RUN: u64 = 32;

/// The shortest period, in requests: what ends and begins a step costs about a microsecond.
const PERIOD_MIN: u64 = 64;

/// The longest period: the ring also holds the run before it and some drift.
const PERIOD_MAX: u64 = CAPACITY - 1024;

/// One of so many runs is remembered, chosen by its hash.
const SAMPLED: u64 = 8;

/// Places of runs remembered, 8 bytes each.
const PLACES: usize = 1 << 14;

/// One of so many requests of a repeat may differ. A request too many or too few differs two or three
/// times until the two are lined up again.
const MISSES: u64 = 16;

/// How far apart they are looked for, in requests, and for how many misses in a row.
const REACH: u64 = 8;

/// One of so many bytes asked for in a period may be in use beyond it.
const KEPT: u64 = 20;

/// Periods after which a step that has not ended is given up. What is left of a step in which a period
/// comes several times, as with accumulated gradients, may be two of them long and a little more.
const PATIENCE: u64 = 3;

/// The same in halves of a period for the first step, which is not to hold two.
const PATIENCE_FIRST_HALVES: u64 = 3;

/// The most anchors.
const ANCHORS_MAX: usize = 16;

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a request means for the step that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing.
    None,
    /// A step begins with it.
    Begins,
    /// The step should have ended long ago: it is none.
    Lost,
}

/// Watches all requests from the first one on.
#[derive(Debug, Default)]
pub(super) struct Finder {
    ring: Ring,
    hash: Rolling,
    places: Vec<Place>,
    trial: Option<Trial>,
    anchors: Anchors,
    /// Whether the next request begins a step.
    is_due: bool,
    /// The request by which the step that goes on must have ended.
    deadline: Option<u64>,
    /// Whether a step has ended by then so far.
    has_ended: bool,
}

impl Finder {
    /// A request of `size` bytes. `is_followed` tells whether the step that goes on is a known one, so
    /// that nothing is looked for inside it. Costs a few nanoseconds, and at most a few more for each
    /// request of a period once that is found.
    #[inline]
    pub(super) fn request(&mut self, size: u64, is_followed: bool) -> Turn {
        let turn = self.turn();
        self.ring.push(size);
        let last = self.ring.next - 1;
        self.hash.roll(size, last.checked_sub(RUN).and_then(|number| self.ring.size(number)));
        if last >= RUN {
            self.check_trial(is_followed);
            if self.hash.is_sampled() {
                self.suggest(is_followed);
            }
            self.is_due = self.anchors.recur(self.hash, last);
        }
        turn
    }

    #[inline]
    fn turn(&mut self) -> Turn {
        let now = self.ring.next;
        if std::mem::take(&mut self.is_due) {
            self.has_ended |= self.deadline.is_some();
            let halves = if self.has_ended { 2 * PATIENCE } else { PATIENCE_FIRST_HALVES };
            self.deadline = Some(now + self.anchors.period_max() * halves / 2);
            return Turn::Begins;
        }
        match self.deadline.take_if(|deadline| *deadline <= now) {
            Some(_) => Turn::Lost,
            None => Turn::None,
        }
    }

    /// Request `number` was freed.
    #[inline]
    pub(super) fn freed(&mut self, number: u64) {
        self.ring.freed(number);
    }

    /// The step is over, though its anchor was not seen: the next request begins another.
    pub(super) fn step_is_over(&mut self) {
        self.is_due = true;
    }

    /// The last run stood elsewhere before: that may be a period ago.
    fn suggest(&mut self, is_followed: bool) {
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let last = self.ring.next - 1;
        let here = Place { check: self.hash.check(), number: last as u32 };
        let before = std::mem::replace(&mut self.places[self.hash.slot(PLACES)], here);
        let period = u64::from(here.number.wrapping_sub(before.number));
        if before.check == here.check
            && !is_followed
            && self.trial.is_none()
            && (PERIOD_MIN..=PERIOD_MAX).contains(&period)
            && self.is_level(period)
        {
            let end = self.ring.next + period;
            self.trial = Some(Trial { period, end, lag: period, misses: 0, misses_in_row: 0 });
        }
    }

    /// Whether about as much was in use a period ago, measured by what was asked for since.
    fn is_level(&self, period: u64) -> bool {
        let last = self.ring.next - 1;
        let Some(before) = last.checked_sub(period) else { return false };
        let growth = self.ring.growth(before, last).unwrap_or(i64::MAX);
        growth.unsigned_abs() <= self.ring.asked(before, last).unwrap_or(0) / KEPT
    }

    #[inline]
    fn check_trial(&mut self, is_followed: bool) {
        let Some(trial) = &mut self.trial else { return };
        if !trial.goes_on(&self.ring) {
            self.trial = None;
        } else if trial.end == self.ring.next {
            let period = trial.period;
            self.trial = None;
            if !is_followed && self.is_level(period) {
                self.add_anchor(period);
            }
        }
    }

    /// Finds the anchor of a period that has just come twice: where least is in use after a run that comes
    /// only once. `n log n` steps for `n` requests.
    #[cold]
    fn add_anchor(&mut self, period: u64) {
        let first = self.ring.next - period;
        let mut hashes: Vec<u64> = self.runs_before(first).map(|(_, hash)| hash.0).collect();
        hashes.sort_unstable();
        // Anchors inside the period are of repeats within the step.
        self.anchors.retain(|anchor| hashes.binary_search(&anchor.hash).is_err());
        let is_alone = |hash: Rolling| {
            let at = hashes.partition_point(|other| *other < hash.0);
            hashes.get(at + 1) != Some(&hash.0)
        };
        let lows = self.runs_before(first).filter(|(_, hash)| is_alone(*hash));
        let low = lows.min_by_key(|(number, _)| self.ring.growth(first, *number));
        if let Some((number, hash)) = low {
            self.anchors.add(Anchor { hash: hash.0, period, seen: number - 1 });
        }
    }

    /// The requests from `first` on, each with the hash of the run before it.
    fn runs_before(&self, first: u64) -> impl Iterator<Item = (u64, Rolling)> {
        let size = |number: u64| self.ring.size(number).unwrap_or(0);
        let mut hash = Rolling::default();
        (first - RUN..first).for_each(|number| hash.roll(size(number), None));
        (first..self.ring.next).map(move |number| {
            let before = hash;
            hash.roll(size(number), Some(size(number - RUN)));
            (number, before)
        })
    }
}

/// The hash of the last [`RUN`] sizes: a polynomial in [`ODD`], modulo 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rolling(u64);

impl Rolling {
    /// Takes in a size; `oldest` is the one that leaves the run, if that is full.
    #[inline]
    fn roll(&mut self, size: u64, oldest: Option<u64>) {
        const LEAVES: u64 = power(ODD, RUN);
        let left = oldest.map_or(0, |oldest| mixed(oldest).wrapping_mul(LEAVES));
        self.0 = self.0.wrapping_mul(ODD).wrapping_add(mixed(size)).wrapping_sub(left);
    }

    #[inline]
    fn is_sampled(self) -> bool {
        (self.0 >> 20).is_multiple_of(SAMPLED)
    }

    /// An index below `slots`, a power of two.
    #[inline]
    fn slot(self, slots: usize) -> usize {
        (self.0 >> 32) as usize & (slots - 1)
    }

    /// Tells runs of one slot apart. Never 0.
    fn check(self) -> u32 {
        (mixed(self.0) as u32) | 1
    }
}

#[inline]
fn mixed(bits: u64) -> u64 {
    let product = bits.wrapping_add(1).wrapping_mul(ODD);
    product ^ (product >> 29)
}

const fn power(of: u64, to: u64) -> u64 {
    let (mut power, mut at) = (1u64, 0);
    while at < to {
        power = power.wrapping_mul(of);
        at += 1;
    }
    power
}

/// Where a run was last.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    check: u32,
    /// Of its last request, modulo 2^32.
    number: u32,
}

/// A period that is being held against the requests that come.
#[derive(Clone, Copy, Debug)]
struct Trial {
    period: u64,
    /// The request with which a whole repeat is over.
    end: u64,
    /// How long ago the same request is supposed to have come.
    lag: u64,
    misses: u64,
    /// Up to the newest request.
    misses_in_row: u64,
}

impl Trial {
    /// Compares the newest request; whether the period may still be one.
    #[inline]
    fn goes_on(&mut self, ring: &Ring) -> bool {
        let last = ring.next - 1;
        if last.checked_sub(self.lag).is_some_and(|then| ring.size(then) == ring.size(last)) {
            self.misses_in_row = 0;
            return true;
        }
        self.misses += 1;
        self.misses_in_row += 1;
        if (2..=REACH).contains(&self.misses_in_row) {
            self.line_up(ring);
        }
        self.misses * MISSES <= self.period
    }

    /// Looks for the last two sizes near where they were expected.
    #[cold]
    fn line_up(&mut self, ring: &Ring) {
        let last = ring.next - 1;
        let sizes = [ring.size(last), ring.size(last - 1)];
        for lag in (1..=REACH).flat_map(|by| [self.lag - by, self.lag + by]) {
            let then = last.wrapping_sub(lag);
            if ring.size(then) == sizes[0] && ring.size(then.wrapping_sub(1)) == sizes[1] {
                self.lag = lag.max(PERIOD_MIN / 2);
                return;
            }
        }
    }
}

/// A place in a period at which its steps begin.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    /// Of the run before.
    hash: u64,
    period: u64,
    /// The last request of that run when it was last seen.
    seen: u64,
}

/// All anchors; of too many the one unseen longest goes.
#[derive(Debug, Default)]
struct Anchors {
    list: Vec<Anchor>,
    /// A bit for each by its hash, so that most requests look no further.
    filter: u64,
}

impl Anchors {
    /// Whether the run that ends with request `last` is that of an anchor, which was not just seen.
    #[inline]
    fn recur(&mut self, hash: Rolling, last: u64) -> bool {
        self.filter & bit(hash.0) != 0 && self.find(hash, last)
    }

    #[cold]
    fn find(&mut self, hash: Rolling, last: u64) -> bool {
        let Some(anchor) = self.list.iter_mut().find(|anchor| anchor.hash == hash.0) else {
            return false;
        };
        let is_late = last - anchor.seen >= anchor.period / 2;
        anchor.seen = if is_late { last } else { anchor.seen };
        is_late
    }

    fn add(&mut self, anchor: Anchor) {
        if self.list.len() == ANCHORS_MAX
            && let Some(oldest) = (0..ANCHORS_MAX).min_by_key(|at| self.list[*at].seen)
        {
            self.list.swap_remove(oldest);
        }
        self.list.push(anchor);
        self.set_filter();
    }

    fn retain(&mut self, is_kept: impl Fn(&Anchor) -> bool) {
        self.list.retain(is_kept);
        self.set_filter();
    }

    fn set_filter(&mut self) {
        self.filter = self.list.iter().fold(0, |filter, anchor| filter | bit(anchor.hash));
    }

    /// The longest period.
    fn period_max(&self) -> u64 {
        self.list.iter().map(|anchor| anchor.period).max().unwrap_or(0)
    }
}

fn bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}
