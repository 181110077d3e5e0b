//! The `replay` verb: runs recorded traces through policies and shows what each would have
//! reserved and cost. Knows arguments; the replay itself is the engine's.

use std::io::Write;
use std::path::PathBuf;

use aquifer::trace::Trace;
use clap::Args;

use crate::bytes;
use crate::choices::{LAG_MAX, NO_POLICY, check_backing, fraction, policies, usual_repeats};
use crate::engine::{Engine, EngineError, Setup};
use crate::exit::{self, Exit};
use crate::input::{complain, traces};
use crate::progress::Progress;
use crate::rows::{Format, Output};
use crate::warmup::warmup_end;

/// Replay recorded allocation traces through allocation policies, on a simulated device.
///
/// In the table, ratio is peak reserved / peak live, frag is 1 - live / reserved (neither is told of a run
/// that ran out of memory), and allocs/frees are segments or pages got from the driver and given back,
/// "moved" is how often a page was mapped again elsewhere. "after warm-up" counts driver calls of all kinds
/// from the mark after the first training step that follows validation on, or from a quarter of the trace
/// on. "driver ms" is the modelled time in the driver, at the usual cost of each call and at the lowest
/// and highest found. ns/op is the processor time of the replay without what the simulated driver takes of
/// it. Runs are on one device of 80 GiB unless told otherwise, with memory in units of 2 MiB. JSON has also
/// the modelled driver time of a step in the second half of the trace.
///
/// The backing `expandable` is no part of the allocator: it is a model of PyTorch's rules for expandable
/// segments, to compare with. It takes no policy, shown as -, and no slack.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Arguments {
    /// Traces to replay: plain text, gzip or zstd [default: a bundled training run]
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// Policies to run, apart by commas, with options or without (bins:small=1MiB,grow=0.25), or
    /// `all` [default: first-fit]
    #[arg(long, value_name = "POLICIES")]
    policy: Option<String>,

    /// Where blocks get their memory: paged, segments or expandable [default: the first]
    #[arg(long, value_name = "NAME")]
    backing: Option<String>,

    /// How far above the peak in use reserved memory may run before idle pages are moved, or idle segments
    /// given back, as a fraction [default: 0.05, which is 5 %, over pages; over segments until the device
    /// refuses]
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    slack: Option<f64>,

    /// How many operations after its free a block's work is done on the device
    #[arg(long, value_name = "OPERATIONS", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(..=LAG_MAX))]
    lag: u64,

    /// The device's memory: 24GiB, 512MiB or plain bytes [default: 80GiB]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    capacity: Option<u64>,

    /// Search for the smallest capacity on which the trace does not run out of memory
    #[arg(long)]
    min_capacity: bool,

    /// Keep the trace's marks from the allocator, as if the program told it of no step
    #[arg(long)]
    no_marks: bool,

    /// Run each trace this many times; times are the median of them [default: 3, or 1 for traces
    /// of over a million operations]
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,

    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// Replays every trace with every policy asked for and writes the rows. What cannot be read or run
/// is told on stderr and the rest goes on.
pub(crate) fn run(arguments: &Arguments, engine: &dyn Engine, rows: &mut dyn Write) -> Exit {
    let plan = match Plan::new(arguments, engine) {
        Ok(plan) => plan,
        Err((exit, text)) => {
            complain(&text);
            return exit;
        }
    };
    let format = Format { json: arguments.json, min_capacity: arguments.min_capacity };
    let mut output = Output::new(format, rows);
    let mut exit = Exit::Done;
    for (name, read) in traces(&arguments.traces) {
        exit = exit.max(match read {
            Ok(trace) => plan.replay(&trace, &name, engine, &mut output),
            Err(error) => {
                complain(&error.to_string());
                Exit::BadInput
            }
        });
    }
    exit.max(exit::of_output(output.finish()))
}

/// What is run on each trace.
struct Plan<'a> {
    arguments: &'a Arguments,
    policies: Vec<String>,
    backing: String,
}

impl<'a> Plan<'a> {
    /// Holds the names asked for to what the engine has.
    fn new(arguments: &'a Arguments, engine: &dyn Engine) -> Result<Plan<'a>, (Exit, String)> {
        let (Some(_), Some(first)) = (engine.policies().first(), engine.backings().first()) else {
            return Err((Exit::Failed, EngineError::NoEngine.to_string()));
        };
        let usage = |text| (Exit::Usage, text);
        let mut policies = policies(arguments.policy.as_deref(), engine).map_err(usage)?;
        let backing = arguments.backing.clone().unwrap_or(first.to_string());
        check_backing(&backing, engine).map_err(usage)?;
        if !engine.takes_policy(&backing) {
            if arguments.policy.is_some() {
                let why = "places blocks by its own rules: leave out --policy";
                return Err(usage(format!("backing `{backing}` {why}")));
            }
            policies = vec![NO_POLICY.to_string()];
        }
        Ok(Plan { arguments, policies, backing })
    }

    fn replay(&self, trace: &Trace, name: &str, engine: &dyn Engine, output: &mut Output) -> Exit {
        let mut exit = Exit::Done;
        for policy in &self.policies {
            let setup = self.setup(trace, name, policy);
            let steps = trace.len() as u64 * u64::from(setup.repeats);
            let progress = Progress::begin(&format!("{name}: {policy}"), steps);
            let row = engine.replay(trace, &setup, &|done| progress.at(done));
            drop(progress);
            exit = exit.max(match row {
                Ok(row) => {
                    let ended = if row.ooms > 0 { Exit::OutOfMemory } else { Exit::Done };
                    output.push(row);
                    ended
                }
                Err(error) => {
                    complain(&format!("{name}: {policy}: {error}"));
                    match error {
                        EngineError::BadSetup(_) => Exit::Usage,
                        _ => Exit::Failed,
                    }
                }
            });
        }
        exit
    }

    fn setup(&self, trace: &Trace, name: &str, policy: &str) -> Setup {
        Setup {
            name: name.to_string(),
            policy: policy.to_string(),
            backing: self.backing.clone(),
            slack: self.arguments.slack,
            marks: !self.arguments.no_marks,
            lag_ops: self.arguments.lag,
            capacity_bytes: self.arguments.capacity,
            min_capacity: self.arguments.min_capacity,
            repeats: self.arguments.repeats.unwrap_or_else(|| usual_repeats(trace)),
            warmup_end: warmup_end(trace),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;
    use crate::engine::{CostSpread, ReplayRow};

    /// Answers with a row made of its setup; runs out of memory below 1 MiB.
    struct Echo;

    impl Engine for Echo {
        fn policies(&self) -> &[&'static str] {
            &["first-fit", "broken"]
        }

        fn check_policy(&self, spec: &str) -> Result<(), String> {
            let name = spec.split(':').next().unwrap();
            let known = self.policies().contains(&name);
            known.then_some(()).ok_or(format!("unknown policy `{name}`"))
        }

        fn backings(&self) -> &[&'static str] {
            &["segments", "pages", "fixed"]
        }

        fn takes_policy(&self, backing: &str) -> bool {
            backing != "fixed"
        }

        fn replay(
            &self,
            trace: &Trace,
            setup: &Setup,
            progress: &dyn Fn(u64),
        ) -> Result<ReplayRow, EngineError> {
            progress(trace.len() as u64);
            if setup.policy == "broken" {
                return Err(EngineError::Broken("two blocks overlap".into()));
            }
            if setup.capacity_bytes == Some(0) {
                return Err(EngineError::BadSetup("no such device".into()));
            }
            Ok(ReplayRow {
                trace: setup.name.clone(),
                policy: setup.policy.clone(),
                backing: setup.backing.clone(),
                ops: trace.op_count(),
                peak_live_bytes: trace.peak_live_bytes(),
                peak_reserved_bytes: 2 * trace.peak_live_bytes(),
                fragmentation: ReplayRow::fragmentation(1, 2),
                driver_calls: BTreeMap::from([("allocate".into(), 3), ("free".into(), 2)]),
                driver_calls_after_warmup: setup.warmup_end as u64,
                pages_created: 6,
                pages_moved: 7,
                modelled_driver_ns: 2_000_000,
                modelled_driver_ns_low: 1_000_000,
                modelled_driver_ns_high: 3_000_000,
                driver_ns_per_step_second_half: Some(CostSpread { low: 1, default: 2, high: 3 }),
                host_waits: setup.lag_ops,
                plan_hits: u64::from(setup.marks),
                plan_misses: 9,
                plan_hits_second_half: 0,
                plan_misses_second_half: 4,
                ooms: u64::from(setup.capacity_bytes.is_some_and(|bytes| bytes < 1 << 20)),
                ns_per_op: 12.34,
                simulated_driver_ns_per_op: 5.6,
                min_capacity_bytes: setup.min_capacity.then_some(5 << 30),
                driver_ns_per_step_second_half_at_min_capacity: None,
                driver_calls_at_min_capacity: None,
            })
        }

        fn reserved_over_ops(
            &self,
            _: &Trace,
            _: &Setup,
            parts: usize,
        ) -> Result<Vec<u64>, EngineError> {
            Ok(vec![1 << 30; parts])
        }
    }

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn replay(arguments: &[&str]) -> (Exit, String) {
        let words = ["replay"].iter().chain(arguments);
        let arguments = Command::try_parse_from(words).unwrap().arguments;
        let mut rows = Vec::new();
        let exit = run(&arguments, &Echo, &mut rows);
        (exit, String::from_utf8(rows).unwrap())
    }

    #[test]
    fn the_bundled_trace_and_first_fit_are_taken_when_none_is_named() {
        let (exit, rows) = replay(&["--min-capacity"]);
        let row = rows.lines().nth(1).unwrap();
        assert!(row.starts_with("netvlad-triplet-fp32  segments  first-fit   6.86 GiB"), "{row}");
        assert!(row.ends_with("  5.00 GiB"), "{row}");
        assert_eq!((exit, rows.lines().count()), (Exit::Done, 2));
    }

    #[test]
    fn json_has_one_object_a_line_with_the_rows_fields() {
        let options = ["--json", "--policy", "first-fit,first-fit", "--backing", "pages"];
        let (_, rows) = replay(&options);
        assert_eq!(rows.lines().count(), 2);
        let expected = "{\"trace\":\"netvlad-triplet-fp32\",\"policy\":\"first-fit\",\
            \"backing\":\"pages\",\"ops\":136057,\"peak_live_bytes\":7364637248,\
            \"peak_reserved_bytes\":14729274496,\"fragmentation\":0.5,\
            \"driver_calls\":{\"allocate\":3,\"free\":2},\
            \"driver_calls_after_warmup\":74626,\"pages_created\":6,\"pages_moved\":7,\
            \"modelled_driver_ns\":2000000,\
            \"modelled_driver_ns_low\":1000000,\"modelled_driver_ns_high\":3000000,\
            \"driver_ns_per_step_second_half\":{\"low\":1,\"default\":2,\"high\":3},\
            \"host_waits\":0,\"plan_hits\":1,\"plan_misses\":9,\"plan_hits_second_half\":0,\
            \"plan_misses_second_half\":4,\"ooms\":0,\"ns_per_op\":12.34,\
            \"simulated_driver_ns_per_op\":5.6,\"min_capacity_bytes\":null,\
            \"driver_ns_per_step_second_half_at_min_capacity\":null,\
            \"driver_calls_at_min_capacity\":null}";
        assert_eq!(rows.lines().next(), Some(expected));
    }

    #[test]
    fn the_exit_tells_what_went_wrong_and_the_rest_goes_on() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let resnet =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/resnet50-b64-fp32.trace.gz");
        for (options, exit, rows) in [
            (&["--policy", "all"][..], Exit::Failed, 1),
            (&["--policy", "worst-fit"], Exit::Usage, 0),
            (&["--backing", "paper"], Exit::Usage, 0),
            (&["--backing", "fixed", "--policy", "first-fit"], Exit::Usage, 0),
            (&["--capacity", "0"], Exit::Usage, 0),
            (&["--policy", "first-fit", "--capacity", "4KiB"], Exit::OutOfMemory, 1),
            (&["--policy", "first-fit", "no/such.trace", manifest, resnet], Exit::BadInput, 1),
        ] {
            let (found, text) = replay(&[options, &["--json"]].concat());
            assert_eq!((found, text.lines().count()), (exit, rows), "{options:?}");
        }
    }

    #[test]
    fn a_backing_without_policy_has_a_dash_for_it() {
        let (exit, rows) = replay(&["--backing", "fixed", "--json"]);
        assert!(rows.contains("\"policy\":\"-\",\"backing\":\"fixed\""), "{rows}");
        assert_eq!(exit, Exit::Done);
    }

    #[test]
    fn without_an_engine_nothing_is_replayed() {
        let arguments = Command::try_parse_from(["replay"]).unwrap().arguments;
        let mut rows = Vec::new();
        assert_eq!(run(&arguments, &crate::NoEngine, &mut rows), Exit::Failed);
        assert!(rows.is_empty());
    }
}
