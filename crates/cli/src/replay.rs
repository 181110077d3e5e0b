//! The `replay` verb: runs recorded traces through policies and shows what each would have
//! reserved and cost. Knows arguments and output; the replay itself is the engine's.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use aquifer::trace::{Trace, TraceError};
use clap::{Args, ValueEnum};

use crate::bytes::{self, Readable};
use crate::engine::{Engine, EngineError, ReplayRow, Setup};
use crate::exit::{self, Exit};
use crate::progress::Progress;
use crate::table::Table;
use crate::warmup::warmup_end;

/// The trace replayed when none is named: triplet training of a place-recognition network.
const BUNDLED_NAME: &str = "netvlad-triplet-fp32";
const BUNDLED: &[u8] = include_bytes!("../../../traces/netvlad-triplet-fp32.trace.gz");

/// Replay recorded allocation traces through allocation policies, on a simulated device.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Arguments {
    /// Traces to replay: plain text, gzip or zstd [default: a bundled training run]
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// Policies to run, apart by commas, or `all`
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    policy: Vec<String>,

    /// Where segments get their memory [default: the engine's first]
    #[arg(long, value_name = "NAME")]
    backing: Option<String>,

    /// How far above the peak in use reserved memory may run, as a fraction (0.05 is 5 %)
    #[arg(long, value_name = "FRACTION", default_value = "0.05", value_parser = fraction)]
    slack: f64,

    /// How many operations later the device has finished the work given to it
    #[arg(long, value_name = "OPERATIONS", default_value_t = 0)]
    lag: u64,

    /// The device's memory: 24GiB, 512MiB or plain bytes [default: as much as is needed]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    capacity: Option<u64>,

    /// Search for the smallest capacity on which the trace does not run out of memory
    #[arg(long)]
    min_capacity: bool,

    /// Run each trace this many times; times are the least of them
    #[arg(long, value_name = "TIMES", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,

    /// The cost of a driver call that the table shows; JSON has all three
    #[arg(long, value_enum, default_value_t = Cost::Default)]
    cost: Cost,

    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Cost {
    Low,
    Default,
    High,
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(fraction) if fraction.is_finite() && fraction >= 0.0 => Ok(fraction),
        _ => Err("not a fraction: write 0, 0.05 or 0.25".into()),
    }
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
    let mut output = Output::new(arguments, rows);
    let mut exit = Exit::Done;
    for (name, read) in traces(arguments) {
        exit = exit.max(match read {
            Ok(trace) => plan.replay(&trace, &name, engine, &mut output),
            Err(error) => {
                complain(&error.to_string());
                Exit::BadInput
            }
        });
    }
    match output.finish() {
        Ok(()) => exit,
        Err(error) => exit.max(output_failed(&error)),
    }
}

/// The traces to replay with their names, each read when its turn comes.
fn traces(arguments: &Arguments) -> Box<dyn Iterator<Item = NamedTrace> + '_> {
    if arguments.traces.is_empty() {
        let bundled = || (BUNDLED_NAME.to_string(), Trace::parse(BUNDLED));
        return Box::new(std::iter::once_with(bundled));
    }
    Box::new(arguments.traces.iter().map(|path| (trace_name(path), Trace::read(path))))
}

type NamedTrace = (String, Result<Trace, TraceError>);

fn complain(text: &str) {
    // Nobody is there to be told if stderr is closed.
    let _ = writeln!(io::stderr(), "error: {text}");
}

/// A reader that has seen enough, such as `head`, is no failure.
fn output_failed(error: &io::Error) -> Exit {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Exit::Done;
    }
    complain(&format!("output: {error}"));
    Exit::Failed
}

/// The file's name without its folder and endings.
fn trace_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    name.strip_suffix(".trace").unwrap_or(name).to_string()
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
        let (known, backings) = (engine.policies(), engine.backings());
        let (Some(_), Some(first)) = (known.first(), backings.first()) else {
            return Err((Exit::Failed, EngineError::NoEngine.to_string()));
        };
        let policies = match &arguments.policy[..] {
            [all] if all == "all" => known.iter().map(|name| name.to_string()).collect(),
            names => names.to_vec(),
        };
        for name in &policies {
            check_name("policy", name, known)?;
        }
        let backing = arguments.backing.clone().unwrap_or(first.to_string());
        check_name("backing", &backing, backings)?;
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
                Ok(row) => output.push(row),
                Err(error) => {
                    complain(&format!("{name}: {policy}: {error}"));
                    Exit::Failed
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
            lag_ops: self.arguments.lag,
            capacity_bytes: self.arguments.capacity,
            min_capacity: self.arguments.min_capacity,
            repeats: self.arguments.repeats,
            warmup_end: warmup_end(trace),
        }
    }
}

fn check_name(kind: &str, name: &str, known: &[&str]) -> Result<(), (Exit, String)> {
    if known.contains(&name) {
        return Ok(());
    }
    Err((Exit::Usage, format!("unknown {kind} `{name}`: there are {}", known.join(", "))))
}

/// Where rows go: each as a line of JSON at once, or all in a table at the end.
struct Output<'a> {
    writer: &'a mut dyn Write,
    json: bool,
    cost: Cost,
    table: Table,
    failed: Option<io::Error>,
}

const HEAD: [&str; 14] = [
    "trace",
    "policy",
    "backing",
    "ops",
    "peak live",
    "peak reserved",
    "fragmentation",
    "driver calls",
    "after warm-up",
    "driver ms",
    "host waits",
    "ns/op",
    "ooms",
    "min capacity",
];

impl<'a> Output<'a> {
    fn new(arguments: &Arguments, writer: &'a mut dyn Write) -> Output<'a> {
        let (json, cost) = (arguments.json, arguments.cost);
        Output { writer, json, cost, table: Table::new(3, &HEAD), failed: None }
    }

    fn push(&mut self, row: ReplayRow) -> Exit {
        if self.json {
            let line = serde_json::to_string(&row).expect("a row is numbers and text");
            let written = writeln!(self.writer, "{line}");
            self.failed = self.failed.take().or(written.err());
        } else {
            self.table.push(cells(&row, self.cost));
        }
        if row.ooms > 0 { Exit::OutOfMemory } else { Exit::Done }
    }

    fn finish(self) -> io::Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.json {
            write!(self.writer, "{}", self.table)?;
        }
        self.writer.flush()
    }
}

fn cells(row: &ReplayRow, cost: Cost) -> Vec<String> {
    let driver_ns = match cost {
        Cost::Low => row.modelled_driver_ns_low,
        Cost::Default => row.modelled_driver_ns,
        Cost::High => row.modelled_driver_ns_high,
    };
    let min_capacity = row.min_capacity_bytes.map(|bytes| Readable(bytes).to_string());
    vec![
        row.trace.clone(),
        row.policy.clone(),
        row.backing.clone(),
        row.ops.to_string(),
        Readable(row.peak_live_bytes).to_string(),
        Readable(row.peak_reserved_bytes).to_string(),
        format!("{:.2} %", row.fragmentation * 100.0),
        row.driver_calls.values().sum::<u64>().to_string(),
        row.driver_calls_after_warmup.to_string(),
        format!("{:.2}", driver_ns as f64 / 1e6),
        row.host_waits.to_string(),
        format!("{:.1}", row.ns_per_op),
        row.ooms.to_string(),
        min_capacity.unwrap_or("-".into()),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;

    /// Answers with a row made of its setup; runs out of memory below 1 MiB.
    struct Echo;

    impl Engine for Echo {
        fn policies(&self) -> &[&'static str] {
            &["first-fit", "broken"]
        }

        fn backings(&self) -> &[&'static str] {
            &["segments", "pages"]
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
            Ok(ReplayRow {
                trace: setup.name.clone(),
                policy: setup.policy.clone(),
                backing: setup.backing.clone(),
                ops: trace.op_count(),
                peak_live_bytes: trace.peak_live_bytes(),
                peak_reserved_bytes: 2 * trace.peak_live_bytes(),
                fragmentation: ReplayRow::fragmentation(1, 2),
                driver_calls: BTreeMap::from([("mem_alloc".into(), 3), ("mem_free".into(), 2)]),
                driver_calls_after_warmup: setup.warmup_end as u64,
                modelled_driver_ns: 2_000_000,
                modelled_driver_ns_low: 1_000_000,
                modelled_driver_ns_high: 3_000_000,
                host_waits: setup.lag_ops,
                ooms: u64::from(setup.capacity_bytes.is_some_and(|bytes| bytes < 1 << 20)),
                ns_per_op: 12.34,
                min_capacity_bytes: setup.min_capacity.then_some(5 << 30),
            })
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
    fn the_bundled_trace_is_replayed_when_none_is_named() {
        let (exit, rows) = replay(&["--policy", "first-fit", "--cost", "high", "--min-capacity"]);
        let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split("  ").collect()).collect();
        let words: Vec<&str> =
            rows[1].iter().map(|cell| cell.trim()).filter(|cell| !cell.is_empty()).collect();
        let expected = "netvlad-triplet-fp32,first-fit,segments,136057,6.86 GiB,13.72 GiB,50.00 %,\
                        5,74626,3.00,0,12.3,0,5.00 GiB";
        assert_eq!((exit, words.join(",")), (Exit::Done, expected.to_string()));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn json_has_one_object_a_line_with_the_rows_fields() {
        let options = ["--json", "--policy", "first-fit,first-fit", "--backing", "pages"];
        let (_, rows) = replay(&options);
        assert_eq!(rows.lines().count(), 2);
        let expected = "{\"trace\":\"netvlad-triplet-fp32\",\"policy\":\"first-fit\",\
            \"backing\":\"pages\",\"ops\":136057,\"peak_live_bytes\":7364637248,\
            \"peak_reserved_bytes\":14729274496,\"fragmentation\":0.5,\
            \"driver_calls\":{\"mem_alloc\":3,\"mem_free\":2},\
            \"driver_calls_after_warmup\":74626,\"modelled_driver_ns\":2000000,\
            \"modelled_driver_ns_low\":1000000,\"modelled_driver_ns_high\":3000000,\
            \"host_waits\":0,\"ooms\":0,\"ns_per_op\":12.34,\"min_capacity_bytes\":null}";
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
            (&["--policy", "first-fit", "--capacity", "4KiB"], Exit::OutOfMemory, 1),
            (&["--policy", "first-fit", "no/such.trace", manifest, resnet], Exit::BadInput, 1),
        ] {
            let (found, text) = replay(&[options, &["--json"]].concat());
            assert_eq!((found, text.lines().count()), (exit, rows), "{options:?}");
        }
    }

    #[test]
    fn without_an_engine_nothing_is_replayed() {
        let arguments = Command::try_parse_from(["replay"]).unwrap().arguments;
        let mut rows = Vec::new();
        assert_eq!(run(&arguments, &crate::NoEngine, &mut rows), Exit::Failed);
        assert!(rows.is_empty());
    }

    #[test]
    fn a_name_loses_its_folder_and_endings() {
        for (path, name) in [
            ("a/b.trace.gz", "b"),
            ("b.trace.zst", "b"),
            ("c.trace", "c"),
            ("d.txt", "d.txt"),
            ("..", ".."),
        ] {
            assert_eq!(trace_name(Path::new(path)), name);
        }
    }
}
