//! The replay engine over the simulated device: which runs a row needs, and what is made of them. How
//! one run goes is in `run`.

use std::collections::BTreeMap;
use std::time::Duration;

use aquifer::driver::sim::{CallCounts, Costs};
use aquifer::policies::{NAMES, PolicySpec};
use aquifer::trace::Trace;

use crate::engine::{Engine, EngineError, ReplayRow, Setup};
use crate::min_capacity;
use crate::run::{self, Outcome, World};

/// Device memory where none is asked for: that of a large data-centre GPU.
const CAPACITY_BYTES: u64 = 80 << 30;

/// Runs traces through [`aquifer::Allocator`] on a simulated device that keeps addresses only.
///
/// Each trace stream is a stream of its own on the device. A trace with several threads runs on as
/// many, one at a time in the trace's order. A request for which there is no memory is counted and
/// skipped with its free, and the replay goes on.
#[derive(Debug, Clone, Copy)]
pub struct Simulated;

impl Engine for Simulated {
    fn policies(&self) -> &[&'static str] {
        NAMES
    }

    fn check_policy(&self, spec: &str) -> Result<(), String> {
        PolicySpec::parse(spec).map(drop).map_err(|error| error.to_string())
    }

    fn backings(&self) -> &[&'static str] {
        &["paged", "segments"]
    }

    fn replay(
        &self,
        trace: &Trace,
        setup: &Setup,
        progress: &dyn Fn(u64),
    ) -> Result<ReplayRow, EngineError> {
        let capacity_bytes = setup.capacity_bytes.unwrap_or(CAPACITY_BYTES);
        let world = World { setup, capacity_bytes, lag_ops: setup.lag_ops, stops_at_oom: false };
        let first = run::run(trace, &world)?;
        let timed = times(trace, &world, &first, progress)?;
        let least = match setup.min_capacity {
            true => search(trace, &world, first.peak_reserved_bytes)?,
            false => None,
        };
        let peak_reserved_bytes = first.peak_reserved_bytes;
        Ok(ReplayRow {
            trace: setup.name.clone(),
            policy: setup.policy.clone(),
            backing: setup.backing.clone(),
            ops: trace.op_count(),
            peak_live_bytes: trace.peak_live_bytes(),
            peak_reserved_bytes,
            fragmentation: ReplayRow::fragmentation(trace.peak_live_bytes(), peak_reserved_bytes),
            driver_calls: by_kind(&first.calls),
            driver_calls_after_warmup: first.calls.since(&first.warmup_calls).total(),
            modelled_driver_ns: driver_ns(&first, Costs::default()),
            modelled_driver_ns_low: driver_ns(&first, Costs::low()),
            modelled_driver_ns_high: driver_ns(&first, Costs::high()),
            host_waits: first.calls.host_waits,
            ooms: first.ooms,
            ns_per_op: timed.as_nanos() as f64 / trace.op_count().max(1) as f64,
            min_capacity_bytes: least.as_ref().map(|(bytes, _)| *bytes),
            driver_calls_at_min_capacity: least.map(|(_, outcome)| by_kind(&outcome.calls)),
        })
    }
}

/// The median time of the repeats; the first run is one of them if it had no lag.
fn times(
    trace: &Trace,
    world: &World,
    first: &Outcome,
    progress: &dyn Fn(u64),
) -> Result<Duration, EngineError> {
    let mut times = match world.lag_ops {
        0 => vec![first.time],
        _ => Vec::new(),
    };
    let repeats = world.setup.repeats as usize;
    while times.len() < repeats {
        progress(trace.len() as u64 * times.len() as u64);
        times.push(run::run(trace, &World { lag_ops: 0, ..*world })?.time);
    }
    progress(trace.len() as u64 * u64::from(world.setup.repeats));
    times.sort_unstable();
    Ok((times[(repeats - 1) / 2] + times[repeats / 2]) / 2)
}

/// The smallest capacity on which the trace runs, and the run there; none if twice the memory
/// reserved on the full device is not enough.
fn search(
    trace: &Trace,
    world: &World,
    peak_reserved_bytes: u64,
) -> Result<Option<(u64, Outcome)>, EngineError> {
    min_capacity::search(trace.peak_live_bytes(), peak_reserved_bytes, |capacity_bytes| {
        let outcome = run::run(trace, &World { capacity_bytes, stops_at_oom: true, ..*world })?;
        Ok((outcome.ooms == 0).then_some(outcome))
    })
}

fn by_kind(calls: &CallCounts) -> BTreeMap<String, u64> {
    calls.iter().map(|(call, made)| (call.name().to_string(), made)).collect()
}

/// What the calls of a run cost by a table.
fn driver_ns(outcome: &Outcome, costs: Costs) -> u64 {
    let calls = outcome.calls.iter().map(|(call, made)| made * costs.call_ns(call)).sum::<u64>();
    calls + costs.allocate_bytes_ns(outcome.reserved_bytes_total)
}
