//! The traces a verb works on: files, or the one that is built in. Does not know what is done with
//! them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use aquifer::trace::{Trace, TraceError};

/// The trace taken when none is named: triplet training of a place-recognition network.
const BUNDLED_NAME: &str = "netvlad-triplet-fp32";
const BUNDLED: &[u8] = include_bytes!("../../../traces/netvlad-triplet-fp32.trace.gz");

pub(crate) type NamedTrace = (String, Result<Trace, TraceError>);

/// The traces in `paths` with their names, each read when its turn comes; the bundled one if there
/// is no path.
pub(crate) fn traces(paths: &[PathBuf]) -> Box<dyn Iterator<Item = NamedTrace> + '_> {
    if paths.is_empty() {
        let bundled = || (BUNDLED_NAME.to_string(), Trace::parse(BUNDLED));
        return Box::new(std::iter::once_with(bundled));
    }
    Box::new(paths.iter().map(|path| (name(path), Trace::read(path))))
}

/// The file's name without its folder and endings.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    name.strip_suffix(".trace").unwrap_or(name).to_string()
}

/// Tells what went wrong on stderr.
pub(crate) fn complain(text: &str) {
    // Nobody is there to be told if stderr is closed.
    let _ = writeln!(io::stderr(), "error: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_loses_its_folder_and_endings() {
        for (path, expected) in [
            ("a/b.trace.gz", "b"),
            ("b.trace.zst", "b"),
            ("c.trace", "c"),
            ("d.txt", "d.txt"),
            ("..", ".."),
        ] {
            assert_eq!(name(Path::new(path)), expected);
        }
    }
}
