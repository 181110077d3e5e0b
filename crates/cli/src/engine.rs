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

    /// The backings it can run, by name; the first is the one taken if none is asked for.
    fn backings(&self) -> &[&'static str];

    /// Replays a trace once for each of `setup.repeats` and returns the row of the whole.
    /// `progress` is told the operations done of `trace.len() * repeats`, as often as the engine
    /// likes, and never within the part that is timed.
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
}

/// What one replay is run with.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The trace's name, for the row.
    pub name: String,
    /// One of [`Engine::policies`].
    pub policy: String,
    /// One of [`Engine::backings`].
    pub backing: String,
    /// How far above the peak in use reserved memory may run before idle pages are stolen, as a
    /// fraction; finite and not negative.
    pub slack: f64,
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayRow {
    /// The trace's name.
    pub trace: String,
    /// The policy's name.
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
    /// Driver calls in one run, by kind.
    pub driver_calls: BTreeMap<String, u64>,
    /// Driver calls after the warm-up, all kinds together.
    pub driver_calls_after_warmup: u64,
    /// Modelled time in the driver in nanoseconds, each call at its default cost.
    pub modelled_driver_ns: u64,
    /// The same with each call at the lowest cost found for it.
    pub modelled_driver_ns_low: u64,
    /// The same with each call at the highest.
    pub modelled_driver_ns_high: u64,
    /// How often the host waited for the device.
    pub host_waits: u64,
    /// Requests for which there was no memory; those of a search for the smallest capacity do not
    /// count.
    pub ooms: u64,
    /// The allocator's own time in nanoseconds an operation, the least of the repeats.
    pub ns_per_op: f64,
    /// The smallest capacity without running out, if it was searched for.
    pub min_capacity_bytes: Option<u64>,
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
}

/// Why a replay could not be run to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// This build of the command has no engine.
    NoEngine,
    /// The allocator answered against its own rules: a bug, in its words.
    Broken(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::NoEngine => f.write_str("this build has no replay engine"),
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

    fn backings(&self) -> &[&'static str] {
        &[]
    }

    fn replay(&self, _: &Trace, _: &Setup, _: &dyn Fn(u64)) -> Result<ReplayRow, EngineError> {
        Err(EngineError::NoEngine)
    }
}
