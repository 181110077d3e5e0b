//! The `aquifer` command: hands its arguments and the replay engine to the library.
use std::process::ExitCode;

fn main() -> ExitCode {
    aquifer_cli::run(std::env::args_os(), &aquifer_cli::Simulated)
}
