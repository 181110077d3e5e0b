//! The `plan` verb: packs buffers whose lifetimes are known. Knows arguments and output; where the buffers
//! go is the library's business.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use aquifer::policies::pack::{
    Effort, PackError, Packing, check, lower_bound, pack_lowest, pack_within,
};
use clap::Args;
use serde::Serialize;

use crate::bytes;
use crate::exit::{self, Exit};
use crate::input::complain;
use crate::plan_csv::{self, Rows};
use crate::progress::Progress;
use crate::table::Table;

/// Find offsets for buffers whose lifetimes are known, so that none overlap and all fit.
///
/// The file is CSV with the columns id, lower, upper and size: a buffer lives from lower to before upper,
/// in any unit of time, and takes size bytes. The answer is the same list with a column offset; it is
/// checked before it is written. Outcomes: "fits" (in the capacity), "optimal" (no packing is lower),
/// "lowest found" (there may be a lower one), "does not fit" (proven), "unknown" (the effort ended).
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Arguments {
    /// Buffers, as CSV
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The memory there is: 24GiB, 512MiB or plain bytes [default: as little as can be found]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    capacity: Option<u64>,

    /// How many nodes a search may take [default: 60,000,000 by the number of buffers, from 1,000 to
    /// 1,000,000: a minute or so]
    #[arg(long, value_name = "NODES")]
    effort: Option<u64>,

    /// Where the offsets go, with the summary on stdout [default: to stdout, with the summary on stderr]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// One JSON object on stdout instead, with the offsets in it unless they go to a file
    #[arg(long)]
    json: bool,
}

/// A node costs about as much more as there are more buffers, some 30 us with 300.
fn usual_effort(buffers: usize) -> u64 {
    (60_000_000 / buffers.max(1) as u64).clamp(1_000, 1_000_000)
}

/// What is told of a plan.
#[derive(Debug, Serialize)]
struct Summary {
    file: String,
    buffers: usize,
    peak_live_bytes: u64,
    capacity_bytes: Option<u64>,
    height_bytes: Option<u64>,
    outcome: &'static str,
    nodes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    offsets: Option<Vec<Offset>>,
}

#[derive(Debug, Serialize)]
struct Offset {
    id: String,
    offset: u64,
}

/// Packs the buffers of a file and writes their offsets and a summary.
pub(crate) fn run(arguments: &Arguments, output: &mut dyn Write) -> Exit {
    let rows = match read(&arguments.file) {
        Ok(rows) => rows,
        Err(text) => {
            complain(&format!("{}: {text}", arguments.file.display()));
            return Exit::BadInput;
        }
    };
    let peak = match lower_bound(&rows.buffers) {
        Ok(peak) => peak,
        Err(error) => {
            complain(&format!("{}: {error}", arguments.file.display()));
            return Exit::BadInput;
        }
    };
    let packed = pack(arguments, &rows);
    if let Ok(packing) = &packed {
        let checked = check(&rows.buffers, &packing.offsets);
        assert_eq!(checked, Ok(packing.height), "a packing is checked before it is shown");
    }
    let summary = Summary::new(arguments, &rows, peak, &packed);
    let written = match &packed {
        Ok(packing) => show(arguments, &rows, packing, summary, output),
        Err(error) => {
            complain(&format!("{}: {error}", arguments.file.display()));
            tell(arguments.json, &summary, output)
        }
    };
    let exit = if packed.is_ok() { Exit::Done } else { Exit::NoFit };
    exit.max(exit::of_output(written))
}

fn read(file: &Path) -> Result<Rows, String> {
    let text = fs::read(file).map_err(|error| error.to_string())?;
    plan_csv::read(&text).map_err(|error| error.to_string())
}

fn pack(arguments: &Arguments, rows: &Rows) -> Result<Packing, PackError> {
    let nodes = arguments.effort.unwrap_or(usual_effort(rows.buffers.len()));
    let progress = Progress::begin(&arguments.file.display().to_string(), nodes);
    let mut watch = |nodes| {
        progress.at(nodes);
        ControlFlow::Continue(())
    };
    let effort = Effort::nodes(nodes).watched_by(&mut watch);
    match arguments.capacity {
        Some(capacity) => pack_within(&rows.buffers, capacity, effort),
        None => pack_lowest(&rows.buffers, effort),
    }
}

impl Summary {
    fn new(
        arguments: &Arguments,
        rows: &Rows,
        peak: u64,
        packed: &Result<Packing, PackError>,
    ) -> Summary {
        let (outcome, nodes) = match packed {
            Ok(packing) if packing.height == peak => ("optimal", packing.nodes),
            Ok(packing) if arguments.capacity.is_some() => ("fits", packing.nodes),
            Ok(packing) => ("lowest found", packing.nodes),
            Err(PackError::Exhausted { nodes }) => ("does not fit", *nodes),
            Err(PackError::Stopped { nodes }) => ("unknown", *nodes),
            Err(_) => ("does not fit", 0),
        };
        Summary {
            file: arguments.file.display().to_string(),
            buffers: rows.buffers.len(),
            peak_live_bytes: peak,
            capacity_bytes: arguments.capacity,
            height_bytes: packed.as_ref().ok().map(|packing| packing.height),
            outcome,
            nodes,
            offsets: None,
        }
    }
}

/// Writes offsets and summary to where they are wanted.
fn show(
    arguments: &Arguments,
    rows: &Rows,
    packing: &Packing,
    mut summary: Summary,
    output: &mut dyn Write,
) -> io::Result<()> {
    if let Some(path) = &arguments.out {
        let written = File::create(path)
            .and_then(|file| plan_csv::write(rows, &packing.offsets, BufWriter::new(file)));
        let named = |error| io::Error::other(format!("{}: {error}", path.display()));
        written.map_err(named)?;
        return tell(arguments.json, &summary, output);
    }
    if arguments.json {
        let offsets = rows.ids.iter().zip(&packing.offsets);
        let offsets = offsets.map(|(id, &offset)| Offset { id: id.clone(), offset });
        summary.offsets = Some(offsets.collect());
        return tell(true, &summary, output);
    }
    plan_csv::write(rows, &packing.offsets, &mut *output)?;
    tell(false, &summary, &mut io::stderr())
}

fn tell(json: bool, summary: &Summary, output: &mut dyn Write) -> io::Result<()> {
    if json {
        let line = serde_json::to_string(summary).expect("a summary is numbers and text");
        writeln!(output, "{line}")?;
    } else {
        write!(output, "{}", table(summary))?;
    }
    output.flush()
}

const HEAD: [&str; 7] =
    ["file", "outcome", "buffers", "peak live bytes", "height bytes", "capacity bytes", "nodes"];

fn table(summary: &Summary) -> Table {
    let number = |number: Option<u64>| number.map_or("-".to_string(), |number| number.to_string());
    let mut table = Table::new(2, &HEAD);
    table.push(vec![
        summary.file.clone(),
        summary.outcome.to_string(),
        summary.buffers.to_string(),
        summary.peak_live_bytes.to_string(),
        number(summary.height_bytes),
        number(summary.capacity_bytes),
        summary.nodes.to_string(),
    ]);
    table
}
