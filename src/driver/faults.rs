//! Which driver calls are to fail, and with what. Knows the kinds of call and their order, no device.
use super::{Call, DriverError};

/// The code in a planned [`DriverError::Failed`]: CUDA's `CUDA_ERROR_UNKNOWN`.
pub const FAULT_CODE: i32 = 999;

const KINDS: usize = Call::ALL.len();

/// Driver calls that are to fail.
///
/// A call fails before it reaches the device, so it changes nothing there. Counting starts at the
/// moment of planning: 1 is the next call, 0 plans nothing.
///
/// ```
/// use aquifer::driver::{Call, DriverError, faults::FaultPlan};
///
/// let mut plan = FaultPlan::default();
/// plan.fail_call(Call::Allocate, 2, DriverError::OutOfMemory { bytes: 64 });
/// assert!(plan.check(Call::Allocate).is_ok());
/// assert!(plan.check(Call::Free).is_ok());
/// assert!(plan.check(Call::Allocate).is_err());
/// assert!(plan.check(Call::Allocate).is_ok());
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    made: u64,
    made_by_call: [u64; KINDS],
    once: Vec<Fault>,
    always: [bool; KINDS],
}

/// One call that fails: the one that brings the counter (of its kind, or of all) to `at`.
#[derive(Clone, Copy, Debug)]
struct Fault {
    call: Option<Call>,
    at: u64,
    error: Option<DriverError>,
}

impl FaultPlan {
    /// Fails the `n`-th call from now, whichever it is, once, with [`FAULT_CODE`].
    pub fn fail_at(&mut self, n: u64) {
        self.plan(Fault { call: None, at: n, error: None });
    }

    /// Fails the `n`-th `call` from now, once, with `error`.
    pub fn fail_call(&mut self, call: Call, n: u64, error: DriverError) {
        self.plan(Fault { call: Some(call), at: n, error: Some(error) });
    }

    /// Fails every `call` from now on with [`FAULT_CODE`].
    pub fn fail_all(&mut self, call: Call) {
        self.always[call.index()] = true;
    }

    /// Drops all that is planned; the counters stay.
    pub fn clear(&mut self) {
        self.once.clear();
        self.always = [false; KINDS];
    }

    /// Calls counted so far, failed ones included.
    pub fn calls_made(&self) -> u64 {
        self.made
    }

    /// Counts one `call`.
    ///
    /// # Errors
    /// The planned one, if the call is to fail. Of several planned for one call the first planned
    /// counts, and all are spent.
    pub fn check(&mut self, call: Call) -> Result<(), DriverError> {
        self.made += 1;
        self.made_by_call[call.index()] += 1;
        let spent = self.spend(call);
        let vendor = DriverError::Failed { call, code: FAULT_CODE };
        match spent {
            Some(fault) => Err(fault.error.unwrap_or(vendor)),
            None if self.always[call.index()] => Err(vendor),
            None => Ok(()),
        }
    }

    fn plan(&mut self, fault: Fault) {
        if fault.at == 0 {
            return;
        }
        let at = self.counter(fault.call).saturating_add(fault.at);
        self.once.push(Fault { at, ..fault });
    }

    fn counter(&self, call: Option<Call>) -> u64 {
        call.map_or(self.made, |call| self.made_by_call[call.index()])
    }

    fn spend(&mut self, call: Call) -> Option<Fault> {
        if self.once.is_empty() {
            return None;
        }
        let (made, made_of_kind) = (self.made, self.made_by_call[call.index()]);
        let hit = |fault: &Fault| match fault.call {
            None => fault.at == made,
            Some(kind) => kind == call && fault.at == made_of_kind,
        };
        let first = self.once.iter().copied().find(hit);
        self.once.retain(|fault| !hit(fault));
        first
    }
}
