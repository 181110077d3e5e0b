//! The replay engine over the simulated device: which runs a row needs, and what is made of them. How
//! one run goes is in `run`.

use std::collections::BTreeMap;
use std::time::Duration;

use aquifer::driver::sim::{CallCounts, Costs};
use aquifer::policies::{NAMES, PolicySpec};
use aquifer::trace::Trace;

use crate::engine::{CostSpread, Engine, EngineError, ReplayRow, Setup};
use crate::min_capacity;
use crate::run::{self, Outcome, World};
use crate::subject::{BACKINGS, EXPANDABLE};
use crate::usage::Usage;
use crate::warmup::second_half;

/// Device memory where none is asked for: that of a large data-centre GPU.
const CAPACITY_BYTES: u64 = 80 << 30;

/// Runs traces through [`aquifer::Allocator`] on a simulated device that keeps addresses only; with the
/// backing `expandable`, through a model of PyTorch's rules for expandable segments instead.
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
        BACKINGS
    }

    fn takes_policy(&self, backing: &str) -> bool {
        backing != EXPANDABLE
    }

    fn replay(
        &self,
        trace: &Trace,
        setup: &Setup,
        progress: &dyn Fn(u64),
    ) -> Result<ReplayRow, EngineError> {
        let half = second_half(trace);
        let world = world(setup, half.map_or(trace.len() / 2, |half| half.begin));
        let first = run::run(trace, &world)?;
        let [ours, drivers] = times(trace, &world, &first, progress)?;
        let least = match setup.min_capacity {
            true => search(trace, &world, first.peak_reserved_bytes)?,
            false => None,
        };
        let per_step = |outcome: &Outcome| {
            let usage = outcome.usage.since(&outcome.first_half_usage);
            half.map(|half| spread(&usage, half.steps))
        };
        let per_op = |time: Duration| time.as_nanos() as f64 / trace.op_count().max(1) as f64;
        let peak_reserved_bytes = first.peak_reserved_bytes;
        let calls = &first.usage.calls;
        let driver_ns = spread(&first.usage, 1);
        Ok(ReplayRow {
            trace: setup.name.clone(),
            policy: setup.policy.clone(),
            backing: setup.backing.clone(),
            ops: trace.op_count(),
            peak_live_bytes: trace.peak_live_bytes(),
            peak_reserved_bytes,
            fragmentation: ReplayRow::fragmentation(trace.peak_live_bytes(), peak_reserved_bytes),
            driver_calls: by_kind(calls),
            driver_calls_after_warmup: calls.since(&first.warmup_usage.calls).total(),
            pages_created: first.usage.pages_created(),
            pages_moved: first.usage.pages_moved(),
            modelled_driver_ns: driver_ns.default,
            modelled_driver_ns_low: driver_ns.low,
            modelled_driver_ns_high: driver_ns.high,
            driver_ns_per_step_second_half: per_step(&first),
            host_waits: calls.host_waits,
            plan_hits: first.planned.hits,
            plan_misses: first.planned.misses,
            plan_hits_second_half: first.planned.hits - first.first_half_planned.hits,
            plan_misses_second_half: first.planned.misses - first.first_half_planned.misses,
            ooms: first.ooms,
            ns_per_op: per_op(ours),
            simulated_driver_ns_per_op: per_op(drivers),
            min_capacity_bytes: least.as_ref().map(|(bytes, _)| *bytes),
            driver_ns_per_step_second_half_at_min_capacity: least
                .as_ref()
                .and_then(|(_, outcome)| per_step(outcome)),
            driver_calls_at_min_capacity: least.map(|(_, outcome)| by_kind(&outcome.usage.calls)),
        })
    }

    fn reserved_over_ops(
        &self,
        trace: &Trace,
        setup: &Setup,
        parts: usize,
    ) -> Result<Vec<u64>, EngineError> {
        run::watch(trace, &world(setup, usize::MAX), parts)
    }
}

fn world(setup: &Setup, second_half: usize) -> World<'_> {
    let capacity_bytes = setup.capacity_bytes.unwrap_or(CAPACITY_BYTES);
    World { setup, second_half, capacity_bytes, lag_ops: setup.lag_ops, stops_at_oom: false }
}

/// The median times of the repeats: the allocator's, over a driver that only repeats its answers, and what
/// the simulated driver takes beyond. All without a lag; the first run is one of them if it had none.
fn times(
    trace: &Trace,
    world: &World,
    first: &Outcome,
    progress: &dyn Fn(u64),
) -> Result<[Duration; 2], EngineError> {
    let world = World { lag_ops: 0, ..*world };
    let tape = run::record(trace, &world)?;
    let mut all = Vec::new();
    let mut ours = Vec::new();
    for repeat in 0..world.setup.repeats {
        ours.push(run::play_tape(trace, &world, &tape)?);
        all.push(match repeat {
            0 if world.setup.lag_ops == 0 => first.time,
            _ => run::run(trace, &world)?.time,
        });
        progress(trace.len() as u64 * (u64::from(repeat) + 1));
    }
    let [all, ours] = [all, ours].map(median);
    Ok([ours, all.saturating_sub(ours)])
}

/// The mean of the two times in the middle.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2
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

/// What a usage costs, shared among so many steps.
fn spread(usage: &Usage, steps: u64) -> CostSpread {
    let ns = |costs| usage.ns(costs) / steps;
    CostSpread { low: ns(Costs::low()), default: ns(Costs::default()), high: ns(Costs::high()) }
}
