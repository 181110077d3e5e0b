//! What the `replay` verb asks of a replay engine and gets from it. Knows neither how a replay is
//! run nor how its rows are shown.

use std::collections::BTreeMap;
use std::fmt;

use aquifer::trace::Trace;
use serde::Serialize;

/// Runs traces through an allocator on a simulated device.
pub trait Engine {
    /// The policies it can run, by name; what `--policy all` means, in this order.
    fn policies(&self) -> &[&'static str];

    /// Whether it can run a policy, given as a name or as a name with options.
    ///
    /// # Errors
    ///
    /// A message that says what would be right.
    fn check_policy(&self, spec: &str) -> Result<(), String>;

    /// The backings it can run, by name; the first is the one taken if none is asked for.
    fn backings(&self) -> &[&'static str];

    /// Whether a policy and a slack matter with a backing. One with which they do not is run with the
    /// policy `-` and no slack.
    fn takes_policy(&self, backing: &str) -> bool {
        let _ = backing;
        true
    }

    /// Replays a trace once for each of `setup.repeats` and returns the row of the whole.
    /// `progress` is told the operations done of `trace.len() * repeats`, as often as the engine
    /// likes, and never within the part that is timed. Runs beyond those are not in its count.
    ///
    /// # Errors
    ///
    /// [`EngineError`]. Running out of memory is no error: the row counts it.
    fn replay(
        &self,
        trace: &Trace,
        setup: &Setup,
        progress: &dyn Fn(u64),
    ) -> Result<ReplayRow, EngineError>;

    /// Replays a trace once more: the most bytes reserved in each of `parts` equal parts of its
    /// operations, or of each operation if there are fewer.
    ///
    /// # Errors
    ///
    /// As [`Engine::replay`].
    fn reserved_over_ops(
        &self,
        trace: &Trace,
        setup: &Setup,
        parts: usize,
    ) -> Result<Vec<u64>, EngineError>;
}

/// What one replay is run with.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The trace's name, for the row.
    pub name: String,
    /// A policy that [`Engine::check_policy`] takes, or `-` as [`Engine::takes_policy`] says.
    pub policy: String,
    /// One of [`Engine::backings`].
    pub backing: String,
    /// How far above the peak in use reserved memory may run before idle memory is moved or given back, as
    /// a fraction, finite and not negative; none for what is usual with the backing.
    pub slack: Option<f64>,
    /// Whether the allocator is told of the trace's marks.
    pub marks: bool,
    /// How many operations later the device has finished the work given to it.
    pub lag_ops: u64,
    /// The device's memory in bytes; the engine's choice if none.
    pub capacity_bytes: Option<u64>,
    /// Whether to search for the smallest capacity on which the trace runs without running out.
    pub min_capacity: bool,
    /// How many times the trace is run, at least 1.
    pub repeats: u32,
    /// The index in [`Trace::ops`] at which the warm-up ends.
    pub warmup_end: usize,
}

/// What a replay showed. The fields' names are those of the JSON output.
///
/// Memory, calls and waits are those of the first run up to the trace's last operation: what is
/// live then is freed afterwards and does not count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayRow {
    /// The trace's name.
    pub trace: String,
    /// The policy as it was given.
    pub policy: String,
    /// The backing's name.
    pub backing: String,
    /// Allocations, frees and cache releases.
    pub ops: u64,
    /// The highest sum of the bytes asked for.
    pub peak_live_bytes: u64,
    /// The most bytes got from the driver.
    pub peak_reserved_bytes: u64,
    /// 1 - peak live / peak reserved; 0 if nothing was reserved.
    pub fragmentation: f64,
    /// Driver calls by kind, those that failed included; every kind is there.
    pub driver_calls: BTreeMap<String, u64>,
    /// Driver calls after the warm-up, all kinds together: also those that only ask, such as
    /// `memory_info`, `query_event` and `capture`.
    pub driver_calls_after_warmup: u64,
    /// Pages of physical memory created; 0 where memory is not paged.
    pub pages_created: u64,
    /// How often a page was mapped again, elsewhere.
    pub pages_moved: u64,
    /// Modelled time in the driver in nanoseconds, each call at its default cost; waits for the
    /// device's work are not in it.
    pub modelled_driver_ns: u64,
    /// The same with each call at the lowest cost found for it.
    pub modelled_driver_ns_low: u64,
    /// The same with each call at the highest.
    pub modelled_driver_ns_high: u64,
    /// The same for a step, on average from the first mark in the second half of the trace on; none if
    /// there is no mark.
    pub driver_ns_per_step_second_half: Option<CostSpread>,
    /// How often the host waited for the device.
    pub host_waits: u64,
    /// Requests served where a plan of the step says; 0 but under the policy `planned`.
    pub plan_hits: u64,
    /// Requests that this policy served elsewhere.
    pub plan_misses: u64,
    /// The requests of `plan_hits` from the first mark in the second half of the trace on, or from its
    /// middle if there is no such mark.
    pub plan_hits_second_half: u64,
    /// Those of `plan_misses` from there on.
    pub plan_misses_second_half: u64,
    /// Requests for which there was no memory; those of a search for the smallest capacity do not
    /// count.
    pub ooms: u64,
    /// Processor time of the replay in nanoseconds an operation, the median of the repeats, over a driver
    /// that only repeats what the simulated one has answered: the allocator's own time. Runs are timed
    /// without lag, whose work on the simulated device would be timed with them.
    pub ns_per_op: f64,
    /// How much longer the same takes over the simulated driver, in nanoseconds an operation. It says nothing
    /// of a real driver: [`ReplayRow::modelled_driver_ns`] does.
    pub simulated_driver_ns_per_op: f64,
    /// The smallest capacity found without running out, if it was searched for and there is one.
    pub min_capacity_bytes: Option<u64>,
    /// As `driver_ns_per_step_second_half`, in the run at that capacity.
    pub driver_ns_per_step_second_half_at_min_capacity: Option<CostSpread>,
    /// Driver calls by kind in the run at that capacity.
    pub driver_calls_at_min_capacity: Option<BTreeMap<String, u64>>,
}

/// Modelled time in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CostSpread {
    /// Each call at the lowest cost found for it.
    pub low: u64,
    /// At the usual cost.
    pub default: u64,
    /// At the highest.
    pub high: u64,
}

impl ReplayRow {
    /// 1 - live / reserved, both peaks; 0 if nothing was reserved.
    ///
    /// ```
    /// assert_eq!(aquifer_cli::ReplayRow::fragmentation(3, 4), 0.25);
    /// ```
    pub fn fragmentation(peak_live_bytes: u64, peak_reserved_bytes: u64) -> f64 {
        match peak_reserved_bytes {
            0 => 0.0,
            reserved => 1.0 - peak_live_bytes as f64 / reserved as f64,
        }
    }

    /// Reserved / live, both peaks; none if nothing was live, or if requests were refused: what is live in the
    /// trace was not all there then.
    pub fn ratio(&self) -> Option<f64> {
        let is_told = self.peak_live_bytes > 0 && self.ooms == 0;
        let live = is_told.then_some(self.peak_live_bytes as f64);
        live.map(|live| self.peak_reserved_bytes as f64 / live)
    }
}

/// Why a replay could not be run to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// This build of the command has no engine.
    NoEngine,
    /// The engine cannot run with such a setup, in its words.
    BadSetup(String),
    /// The allocator answered against its own rules: a bug, in its words.
    Broken(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::NoEngine => f.write_str("this build has no replay engine"),
            EngineError::BadSetup(text) => f.write_str(text),
            EngineError::Broken(text) => write!(f, "the replay broke off: {text}"),
        }
    }
}

impl std::error::Error for EngineError {}

/// Stands where an engine will: it runs no policy.
#[derive(Debug, Clone, Copy)]
pub struct NoEngine;

impl Engine for NoEngine {
    fn policies(&self) -> &[&'static str] {
        &[]
    }

    fn check_policy(&self, _: &str) -> Result<(), String> {
        Err(EngineError::NoEngine.to_string())
    }

    fn backings(&self) -> &[&'static str] {
        &[]
    }

    fn replay(&self, _: &Trace, _: &Setup, _: &dyn Fn(u64)) -> Result<ReplayRow, EngineError> {
        Err(EngineError::NoEngine)
    }

    fn reserved_over_ops(&self, _: &Trace, _: &Setup, _: usize) -> Result<Vec<u64>, EngineError> {
        Err(EngineError::NoEngine)
    }
}
