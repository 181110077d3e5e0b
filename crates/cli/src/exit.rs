//! How the command ends. Knows the codes and their words, not what led to them.

use std::io;
use std::process::ExitCode;

use crate::input::complain;

/// Told at the end of every `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  failed for a reason that none of the others names
  2  the command line is wrong
  3  a trace or a list of buffers could not be read, or is none
  4  the replay ran out of memory (runs that search for the smallest capacity do not count)
  5  no packing within the capacity: there is none, or none was found (the output says which)";

/// How the command ends; where several hold, the last of this list that does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    Done,
    NoFit,
    OutOfMemory,
    Failed,
    BadInput,
    Usage,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::BadInput => 3,
            Exit::OutOfMemory => 4,
            Exit::NoFit => 5,
        })
    }
}

/// What becomes of the command by writing its output. A reader that has seen enough, such as `head`,
/// is no failure.
pub(crate) fn of_output(written: io::Result<()>) -> Exit {
    match written {
        Ok(()) => Exit::Done,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(error) => {
            complain(&format!("output: {error}"));
            Exit::Failed
        }
    }
}
