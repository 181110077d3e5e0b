//! The `compare` verb: one trace through several backings and policies, side by side, as a table and a
//! chart. Knows arguments; replays are the engine's, the drawing is in `chart`.

use std::io::{self, Write};
use std::path::PathBuf;

use aquifer::trace::Trace;
use clap::Args;

use crate::bytes::{self, Readable};
use crate::chart::{Chart, Line};
use crate::choices::{LAG_MAX, NO_POLICY, check_backing, fraction, policies, usual_repeats};
use crate::engine::{Engine, EngineError, ReplayRow, Setup};
use crate::exit::{self, Exit};
use crate::input::{complain, traces};
use crate::progress::Progress;
use crate::rows;
use crate::sparkline::sparkline;
use crate::table::Table;
use crate::timeline;
use crate::warmup::warmup_end;

/// Points of a line in the chart.
const POINTS: usize = 1000;

/// Replay one trace with each combination of backing and policy, side by side.
///
/// The table has a row for each; its columns are those of `replay`, and "driver calls" are of all kinds.
/// Below it, or with --svg in a picture, reserved and live memory over the operations of the trace. The
/// backing `expandable` is a model of PyTorch's rules for expandable segments: it comes once, with the
/// policy -, and a slack is not for it.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Arguments {
    /// The trace: plain text, gzip or zstd [default: a bundled training run]
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,

    /// Policies to run, apart by commas, with options or without, or `all` [default: first-fit]
    #[arg(long, value_name = "POLICIES")]
    policies: Option<String>,

    /// Backings to run, apart by commas: paged, segments, expandable [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    backings: Option<Vec<String>>,

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

    /// Draw reserved and live memory over the operations into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// One JSON object a line, as `replay` has them, instead of a table
    #[arg(long)]
    json: bool,
}

/// What a combination showed.
struct Ran {
    row: ReplayRow,
    line: Line,
}

/// Replays the trace with every combination and writes what each showed. One that cannot be run is told
/// on stderr and the rest goes on.
pub(crate) fn run(arguments: &Arguments, engine: &dyn Engine, out: &mut dyn Write) -> Exit {
    let combinations = match combinations(arguments, engine) {
        Ok(combinations) => combinations,
        Err((exit, text)) => {
            complain(&text);
            return exit;
        }
    };
    let (name, read) = traces(arguments.trace.as_slice()).next().expect("there is one trace");
    let trace = match read {
        Ok(trace) => trace,
        Err(error) => {
            complain(&error.to_string());
            return Exit::BadInput;
        }
    };
    let comparison = Comparison { arguments, engine, name, trace };
    let (mut results, mut exit) = (Vec::new(), Exit::Done);
    for (backing, policy) in combinations {
        match comparison.replay(&backing, &policy) {
            Ok(result) => {
                let ended = if result.row.ooms > 0 { Exit::OutOfMemory } else { Exit::Done };
                exit = exit.max(ended);
                results.push(result);
            }
            Err(error) => {
                complain(&format!("{}: {}: {error}", comparison.name, title(&backing, &policy)));
                let bad_setup = matches!(error, EngineError::BadSetup(_));
                exit = exit.max(if bad_setup { Exit::Usage } else { Exit::Failed });
            }
        }
    }
    if results.is_empty() {
        return exit;
    }
    let drawn = comparison.draw(&results);
    exit.max(exit::of_output(comparison.show(&results, out))).max(drawn)
}

/// Backings and policies, each pair that makes sense once.
fn combinations(
    arguments: &Arguments,
    engine: &dyn Engine,
) -> Result<Vec<(String, String)>, (Exit, String)> {
    if engine.policies().is_empty() || engine.backings().is_empty() {
        return Err((Exit::Failed, EngineError::NoEngine.to_string()));
    }
    let usage = |text| (Exit::Usage, text);
    let policies = policies(arguments.policies.as_deref(), engine).map_err(usage)?;
    let all = || engine.backings().iter().map(|name| name.to_string()).collect();
    let mut combinations = Vec::new();
    for backing in arguments.backings.clone().unwrap_or_else(all) {
        let backing = backing.trim().to_string();
        check_backing(&backing, engine).map_err(usage)?;
        match engine.takes_policy(&backing) {
            true => combinations.extend(policies.iter().map(|p| (backing.clone(), p.clone()))),
            false => combinations.push((backing, NO_POLICY.to_string())),
        }
    }
    Ok(combinations)
}

fn title(backing: &str, policy: &str) -> String {
    if policy == NO_POLICY { backing.to_string() } else { format!("{backing} {policy}") }
}

/// One trace and what is asked about it.
struct Comparison<'a> {
    arguments: &'a Arguments,
    engine: &'a dyn Engine,
    name: String,
    trace: Trace,
}

impl Comparison<'_> {
    fn setup(&self, backing: &str, policy: &str) -> Setup {
        Setup {
            name: self.name.clone(),
            policy: policy.to_string(),
            backing: backing.to_string(),
            slack: self.arguments.slack.filter(|_| self.engine.takes_policy(backing)),
            marks: true,
            lag_ops: self.arguments.lag,
            capacity_bytes: self.arguments.capacity,
            min_capacity: false,
            repeats: usual_repeats(&self.trace),
            warmup_end: warmup_end(&self.trace),
        }
    }

    fn replay(&self, backing: &str, policy: &str) -> Result<Ran, EngineError> {
        let (setup, name) = (self.setup(backing, policy), title(backing, policy));
        let steps = self.trace.len() as u64 * u64::from(setup.repeats);
        let progress = Progress::begin(&format!("{}: {name}", self.name), steps);
        let row = self.engine.replay(&self.trace, &setup, &|done| progress.at(done))?;
        let bytes = self.engine.reserved_over_ops(&self.trace, &setup, POINTS)?;
        Ok(Ran { row, line: Line { name, bytes } })
    }

    /// Writes the picture, if there is to be one.
    fn draw(&self, results: &[Ran]) -> Exit {
        let Some(path) = &self.arguments.svg else { return Exit::Done };
        let chart = Chart {
            title: self.name.clone(),
            ops: self.trace.len(),
            live: timeline::live(&self.trace, POINTS),
            lines: results.iter().map(|result| result.line.clone()).collect(),
        };
        match std::fs::write(path, chart.to_string()) {
            Ok(()) => Exit::Done,
            Err(error) => {
                complain(&format!("{}: {error}", path.display()));
                Exit::Failed
            }
        }
    }

    fn show(&self, results: &[Ran], out: &mut dyn Write) -> io::Result<()> {
        if self.arguments.json {
            for result in results {
                let line = serde_json::to_string(&result.row).expect("a row is numbers and text");
                writeln!(out, "{line}")?;
            }
            return out.flush();
        }
        write!(out, "{}", table(results))?;
        if self.arguments.svg.is_none() {
            write!(out, "\n{}", sparklines(&self.trace, results))?;
        }
        out.flush()
    }
}

fn table(results: &[Ran]) -> Table {
    let head = [
        "backing",
        "policy",
        "peak live",
        "peak reserved",
        "ratio",
        "driver calls",
        "pages made/moved",
        "host waits",
        "ooms",
        "driver ms (low..high)",
        "ns/op",
    ];
    let mut table = Table::new(2, &head);
    for Ran { row, .. } in results {
        table.push(vec![
            row.backing.clone(),
            row.policy.clone(),
            Readable(row.peak_live_bytes).to_string(),
            Readable(row.peak_reserved_bytes).to_string(),
            rows::ratio(row),
            row.driver_calls.values().sum::<u64>().to_string(),
            format!("{}/{}", row.pages_created, row.pages_moved),
            row.host_waits.to_string(),
            row.ooms.to_string(),
            rows::driver_ms(row),
            format!("{:.1}", row.ns_per_op),
        ]);
    }
    table
}

/// Live and reserved memory over the operations as lines of text, all to one scale.
fn sparklines(trace: &Trace, results: &[Ran]) -> Table {
    let live = timeline::live(trace, POINTS);
    let lines = results.iter().map(|result| (result.line.name.as_str(), &result.line.bytes));
    let lines = Vec::from_iter(lines.chain([("live", &live)]));
    let most = lines.iter().flat_map(|line| line.1.iter()).max().copied().unwrap_or(0);
    let over = format!("memory over {} operations, full height {}", trace.len(), Readable(most));
    let mut table = Table::new(2, &["reserved", &over]);
    for (name, bytes) in lines {
        table.push(vec![name.to_string(), sparkline(bytes, most)]);
    }
    table
}
