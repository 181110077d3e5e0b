//! The `trace` verb: reads traces and says what is in them. Knows nothing of allocators.

use std::io::{self, Write};
use std::path::PathBuf;

use aquifer::trace::Trace;
use clap::Args;

use crate::bytes::Readable;
use crate::exit::{self, Exit};
use crate::input::{complain, traces};
use crate::table::Table;

/// Read recorded allocation traces and say what is in them.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Arguments {
    /// Traces to read: plain text, gzip or zstd [default: a bundled training run]
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
}

const HEAD: [&str; 7] = ["trace", "ops", "streams", "threads", "labels", "peak live", "bytes"];

/// Writes a table with a row for each trace. What cannot be read is told on stderr and the rest goes
/// on.
pub(crate) fn run(arguments: &Arguments, output: &mut dyn Write) -> Exit {
    let mut table = Table::new(1, &HEAD);
    let (mut exit, mut any) = (Exit::Done, false);
    for (name, read) in traces(&arguments.traces) {
        match read {
            Ok(trace) => {
                table.push(cells(name, &trace));
                any = true;
            }
            Err(error) => {
                complain(&error.to_string());
                exit = Exit::BadInput;
            }
        }
    }
    match any {
        true => exit.max(exit::of_output(write(output, &table))),
        false => exit,
    }
}

fn write(output: &mut dyn Write, table: &Table) -> io::Result<()> {
    write!(output, "{table}")?;
    output.flush()
}

fn cells(name: String, trace: &Trace) -> Vec<String> {
    vec![
        name,
        trace.op_count().to_string(),
        trace.streams().len().to_string(),
        trace.threads().len().to_string(),
        trace.labels().len().to_string(),
        Readable(trace.peak_live_bytes()).to_string(),
        trace.peak_live_bytes().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_trace_read_is_no_table() {
        let mut text = Vec::new();
        let arguments = Arguments { traces: vec!["no/such.trace".into()] };
        assert_eq!((run(&arguments, &mut text), text.len()), (Exit::BadInput, 0));
    }

    #[test]
    fn the_bundled_trace_is_summed_up() {
        let mut text = Vec::new();
        assert_eq!(run(&Arguments { traces: vec![] }, &mut text), Exit::Done);
        let text = String::from_utf8(text).unwrap();
        let row = text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(row.starts_with("netvlad-triplet-fp32 136057 1 1 "), "{row}");
        assert!(row.ends_with(" 6.86 GiB 7364637248"), "{row}");
    }
}
