//! Writes a trace as the reader reads it. Knows the format's words; does not follow which ids are
//! live.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::file::TraceFile;
use super::op::Op;
use super::{BYTES_MAX, Trace, clean_label};

/// Writes operations as lines, buffered. Call [`finish`](TraceWriter::finish) at the end: what is
/// dropped unfinished may be cut short.
///
/// The caller keeps the format's rule that an id is unique among live blocks.
///
/// ```
/// use aquifer::trace::{Trace, TraceWriter};
///
/// let mut writer = TraceWriter::new(Vec::new());
/// writer.mark("step:0")?;
/// writer.alloc(3, 2048, 0)?;
/// writer.free(3)?;
/// let text = writer.finish()?;
/// assert_eq!(text, b"s step:0\na 3 2048 0\nf 3\n");
/// # std::io::Result::Ok(())
/// ```
pub struct TraceWriter<W: Write> {
    lines: BufWriter<W>,
}

const BUFFER_BYTES: usize = 64 << 10;

impl<W: Write> TraceWriter<W> {
    /// A writer of plain text.
    pub fn new(output: W) -> TraceWriter<W> {
        TraceWriter { lines: BufWriter::with_capacity(BUFFER_BYTES, output) }
    }

    /// Writes an allocation.
    ///
    /// # Errors
    ///
    /// The output's, and [`io::ErrorKind::InvalidInput`] for more than [`BYTES_MAX`] bytes.
    pub fn alloc(&mut self, id: u64, bytes: u64, stream: u64) -> io::Result<()> {
        if bytes > BYTES_MAX {
            let text = format!("{bytes} bytes in one allocation: a trace takes at most 2^62");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        writeln!(self.lines, "a {id} {bytes} {stream}")
    }

    /// Writes a free.
    ///
    /// # Errors
    ///
    /// The output's, as for each verb below.
    pub fn free(&mut self, id: u64) -> io::Result<()> {
        writeln!(self.lines, "f {id}")
    }

    /// Writes the use of a block on a further stream.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn record_stream(&mut self, id: u64, stream: u64) -> io::Result<()> {
        writeln!(self.lines, "r {id} {stream}")
    }

    /// Writes a mark; its label is cleaned as by [`TraceBuilder::mark`](super::TraceBuilder::mark).
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn mark(&mut self, label: &str) -> io::Result<()> {
        writeln!(self.lines, "s {}", clean_label(label))
    }

    /// Writes a request to give the cached memory back.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn empty_cache(&mut self) -> io::Result<()> {
        writeln!(self.lines, "e")
    }

    /// Writes a switch: what follows belongs to this thread.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn thread(&mut self, thread: u64) -> io::Result<()> {
        writeln!(self.lines, "t {thread}")
    }

    /// Writes every operation of a trace; the ids are its slots.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn trace(&mut self, trace: &Trace) -> io::Result<()> {
        for op in trace.ops() {
            match op {
                Op::Alloc { slot, bytes, stream } => {
                    self.alloc(slot.0.into(), bytes, trace.streams()[stream.index()])
                }
                Op::Free { slot } => self.free(slot.0.into()),
                Op::RecordStream { slot, stream } => {
                    self.record_stream(slot.0.into(), trace.streams()[stream.index()])
                }
                Op::Mark { label } => self.mark(&trace.labels()[label.index()]),
                Op::EmptyCache => self.empty_cache(),
                Op::Thread { thread } => self.thread(trace.threads()[thread.index()]),
            }?;
        }
        Ok(())
    }

    /// Hands out what is buffered and returns the output.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn finish(self) -> io::Result<W> {
        let mut output = self.lines.into_inner().map_err(io::IntoInnerError::into_error)?;
        output.flush()?;
        Ok(output)
    }
}

impl Trace {
    /// Writes the trace to a file: gzip if its name ends in `.gz`, else plain text. What is read
    /// back equals this trace.
    ///
    /// # Errors
    ///
    /// The file's, and [`io::ErrorKind::Unsupported`] for `.zst`, or for `.gz` without the feature
    /// `compress`.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut writer = TraceWriter::new(TraceFile::create(path.as_ref())?);
        writer.trace(self)?;
        writer.finish()?.finish()
    }
}
