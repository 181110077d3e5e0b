//! A trace file being written: plain, or gzip by its name's ending. Does not know what it holds.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// An output for [`TraceWriter`](super::TraceWriter). Call [`finish`](TraceFile::finish) at the
/// end: a gzip file dropped unfinished is cut short.
#[derive(Debug)]
pub struct TraceFile(Output);

#[derive(Debug)]
enum Output {
    Plain(File),
    #[cfg(feature = "compress")]
    Gzip(Box<flate2::write::GzEncoder<File>>),
}

impl TraceFile {
    /// Creates or empties the file: gzip if its name ends in `.gz`, else plain text.
    ///
    /// # Errors
    ///
    /// The file's, and [`io::ErrorKind::Unsupported`] for `.zst`, or for `.gz` without the feature
    /// `compress`.
    pub fn create(path: impl AsRef<Path>) -> io::Result<TraceFile> {
        let path = path.as_ref();
        let ending = path.extension().and_then(|ending| ending.to_str());
        match ending {
            Some("gz") => create_gzip(path),
            Some("zst") => Err(unsupported("zstd traces can be read only: name the file `.gz`")),
            _ => Ok(TraceFile(Output::Plain(File::create(path)?))),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Output::Plain(mut file) => file.flush(),
            #[cfg(feature = "compress")]
            Output::Gzip(encoder) => encoder.finish()?.flush(),
        }
    }
}

#[cfg(feature = "compress")]
fn create_gzip(path: &Path) -> io::Result<TraceFile> {
    let level = flate2::Compression::default();
    let encoder = flate2::write::GzEncoder::new(File::create(path)?, level);
    Ok(TraceFile(Output::Gzip(Box::new(encoder))))
}

#[cfg(not(feature = "compress"))]
fn create_gzip(_: &Path) -> io::Result<TraceFile> {
    Err(unsupported("writing gzip needs aquifer's feature `compress`"))
}

fn unsupported(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}

impl Write for TraceFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Output::Plain(file) => file.write(bytes),
            #[cfg(feature = "compress")]
            Output::Gzip(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Output::Plain(file) => file.flush(),
            #[cfg(feature = "compress")]
            Output::Gzip(encoder) => encoder.flush(),
        }
    }
}
