//! What moving pages may cost: a modelled driver time per step, and how slack rises when it is spent.
//!
//! The costs are middle values of published ones: an unmap 18 us a call, a map 1.5 us a page, an access
//! change 28 us a call. No clock is read: the same program moves the same pages on every run.

/// Nanoseconds of driver time.
const UNMAP_NS: u64 = 18_000;
const MAP_NS: u64 = 1_500;
const ACCESS_NS: u64 = 28_000;

/// How much slack rises in a step whose budget is spent.
const RISE: f64 = 0.02;
/// How far it may rise.
const RISE_MAX: f64 = 0.15;
/// Host waits per step, before memory is asked for instead; those not used by a step are left to later
/// ones, up to a limit.
const WAITS_PER_STEP: u32 = 2;
const WAITS_MAX: u32 = 64;
/// Steps without a move after which a program is taken to move no more pages.
const QUIET_STEPS: u64 = 3;
/// Where steps are neither marked nor found, so many requests that found no room count as one.
const STEP_REQUESTS: u64 = 4096;

/// The calls of one move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) unmaps: u64,
    pub(crate) maps: u64,
    pub(crate) accesses: u64,
}

impl Move {
    fn ns(&self) -> u64 {
        self.unmaps * UNMAP_NS + self.maps * MAP_NS + self.accesses * ACCESS_NS
    }
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Budget {
    step: u64,
    requests: u64,
    spent_ns: u64,
    waits_left: u32,
    /// The last step in which pages were moved.
    last_move: Option<u64>,
    /// Whether slack has risen in this step.
    has_risen: bool,
    /// What slack has risen by.
    rise: f64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            step: 0,
            requests: 0,
            spent_ns: 0,
            waits_left: WAITS_MAX,
            last_move: None,
            has_risen: false,
            rise: 0.0,
        }
    }
}

impl Budget {
    /// A request needs pages in step `step`.
    pub(crate) fn request(&mut self, step: u64) {
        self.requests += 1;
        if step != self.step || self.requests > STEP_REQUESTS {
            let steps = u32::try_from(step - self.step).unwrap_or(u32::MAX).max(1);
            let more = steps.saturating_mul(WAITS_PER_STEP);
            self.waits_left = self.waits_left.saturating_add(more).min(WAITS_MAX);
            (self.step, self.requests, self.spent_ns, self.has_risen) = (step, 0, 0, false);
        }
    }

    /// Pages were moved.
    pub(crate) fn spend(&mut self, calls: Move) {
        self.spent_ns += calls.ns();
    }

    /// The host has waited for a page.
    pub(crate) fn waited(&mut self) {
        self.waits_left = self.waits_left.saturating_sub(1);
    }

    pub(crate) fn may_wait(&self) -> bool {
        self.waits_left > 0
    }

    /// Pages are being moved; whether that is new.
    pub(crate) fn moves(&mut self) -> bool {
        self.last_move.replace(self.step).is_none()
    }

    /// Whether pages were moved in one of the last steps before `step`.
    pub(crate) fn moves_pages(&mut self, step: u64) -> bool {
        let recent = self.last_move.is_some_and(|last| step - last <= QUIET_STEPS);
        if !recent {
            self.last_move = None;
        }
        recent
    }

    /// What is added to the slack for a move in a step that may cost `budget_ns`.
    pub(crate) fn rise(&mut self, budget_ns: u64) -> f64 {
        if self.spent_ns >= budget_ns && !self.has_risen {
            self.has_risen = true;
            self.rise = (self.rise + RISE).min(RISE_MAX);
        }
        self.rise
    }

    /// Memory is short: what slack has risen by is taken back.
    pub(crate) fn fall(&mut self) {
        self.rise = 0.0;
    }
}
