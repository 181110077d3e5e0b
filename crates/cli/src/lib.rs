//! The `aquifer` command as a library, one file per verb, so that its tests can bring a replay
//! engine of their own. Knows arguments, output and exit codes; decides nothing about memory.

mod bytes;
mod chart;
mod choices;
mod compare;
mod engine;
mod exit;
mod expandable;
mod input;
mod min_capacity;
mod plan;
pub mod plan_csv;
mod progress;
mod replay;
mod rows;
mod run;
mod simulated;
mod sparkline;
mod subject;
mod table;
mod tape;
mod tiles;
mod timeline;
mod trace;
mod usage;
mod warmup;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use engine::{CostSpread, Engine, EngineError, NoEngine, ReplayRow, Setup};
pub use simulated::Simulated;
pub use warmup::warmup_end;

/// A caching GPU memory allocator, run and measured without a GPU.
#[derive(Debug, Parser)]
#[command(name = "aquifer", version, after_help = exit::HELP)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Plan(plan::Arguments),
    Replay(replay::Arguments),
    Compare(compare::Arguments),
    Trace(trace::Arguments),
}

/// Runs the command: `arguments` as the system gives them, the command's name first. Rows and help
/// go to stdout, progress and errors to stderr.
pub fn run(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    engine: &dyn Engine,
) -> ExitCode {
    let command = match Command::try_parse_from(arguments) {
        Ok(command) => command,
        Err(error) => {
            // A closed pipe must not hide the exit code.
            let _ = error.print();
            return if error.use_stderr() { exit::Exit::Usage } else { exit::Exit::Done }.into();
        }
    };
    let output = &mut std::io::stdout().lock();
    match command.verb {
        Verb::Plan(arguments) => plan::run(&arguments, output),
        Verb::Replay(arguments) => replay::run(&arguments, engine, output),
        Verb::Compare(arguments) => compare::run(&arguments, engine, output),
        Verb::Trace(arguments) => trace::run(&arguments, output),
    }
    .into()
}
