//! What can be wrong with a trace, and where. Knows the format's rules only by name: it words what
//! the reader and the builder found.

use std::path::PathBuf;
use std::{fmt, io};

use super::{BYTES_MAX, LINE_BYTES_MAX};

/// A trace that could not be read: the file and the line where known, and what is wrong there.
#[derive(Debug)]
pub struct TraceError {
    /// The file, where the trace came from one.
    pub path: Option<PathBuf>,
    /// The line, counted from 1 in the decompressed text; 0 when the file could not be started.
    pub line: u64,
    /// What is wrong.
    pub fault: Fault,
}

/// One way in which a trace can be wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes could not be read.
    Io(io::Error),
    /// The file holds no operation: it is empty, or blank lines and comments only.
    Empty,
    /// The file is compressed and this build reads plain traces only.
    Compressed(Packing),
    /// The compressed data ends before its end mark; the line is the last one reached.
    Truncated(Packing),
    /// The compressed data cannot be decoded.
    Corrupt(Packing, io::Error),
    /// The text is out of all proportion to the compressed file.
    Inflated {
        /// Bytes of text decoded so far.
        text_bytes: u64,
        /// Bytes of the compressed file they came from.
        packed_bytes: u64,
    },
    /// A line is longer than [`LINE_BYTES_MAX`].
    LineTooLong,
    /// A line is not UTF-8.
    NotUtf8,
    /// A line starts with a word that is no verb of the format.
    UnknownVerb(String),
    /// A line ends before a field its verb needs.
    MissingField {
        /// The verb's line as the format has it.
        usage: &'static str,
        /// The field that is not there.
        field: &'static str,
    },
    /// A field that must be a number in decimal digits is something else.
    NotANumber {
        /// The field.
        field: &'static str,
        /// What stands there, cut short.
        text: String,
    },
    /// A number is larger than its field can be.
    TooLarge {
        /// The field.
        field: &'static str,
        /// The largest value the field takes.
        max: u64,
    },
    /// More words follow the last field.
    TrailingWords {
        /// The verb's line as the format has it.
        usage: &'static str,
        /// What follows, cut short.
        text: String,
    },
    /// An allocation has the id of a block that is still live.
    AlreadyLive {
        /// The id.
        id: u64,
        /// The line that allocated the live block; 0 if it came from no line.
        since_line: u64,
    },
    /// A free names an id of no live block.
    FreeNotLive {
        /// The id.
        id: u64,
    },
    /// A stream record names an id of no live block.
    RecordNotLive {
        /// The id.
        id: u64,
    },
    /// More things of one kind than a trace can tell apart.
    TooMany {
        /// Plural of the thing counted.
        things: &'static str,
        /// The most there can be.
        max: u64,
    },
}

/// The compression of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// gzip, one member or several.
    Gzip,
    /// zstd, one frame or several.
    Zstd,
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        })
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.line) {
            (Some(path), 0) => write!(f, "{}: {}", path.display(), self.fault),
            (Some(path), line) => write!(f, "{}, line {line}: {}", path.display(), self.fault),
            (None, 0) => self.fault.fmt(f),
            (None, line) => write!(f, "line {line}: {}", self.fault),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io(error) => write!(f, "{error}"),
            Fault::Empty => f.write_str("no operation in the trace: expected at least one line"),
            Fault::Compressed(packing) => write!(
                f,
                "compressed with {packing}, which needs aquifer's feature `compress`: \
                 build with it or decompress the file"
            ),
            Fault::Truncated(packing) => {
                write!(f, "the {packing} data ends too early: the file is cut short")
            }
            Fault::Corrupt(packing, error) => write!(f, "damaged {packing} data: {error}"),
            Fault::Inflated { text_bytes, packed_bytes } => write!(
                f,
                "{packed_bytes} compressed bytes gave {text_bytes} bytes of text and more: \
                 decompress the file and read that"
            ),
            Fault::LineTooLong => write!(f, "line longer than {LINE_BYTES_MAX} bytes"),
            Fault::NotUtf8 => f.write_str("not UTF-8: a trace is plain text"),
            Fault::UnknownVerb(text) => {
                write!(f, "unknown verb `{text}`: expected a, f, r, s, e or t")
            }
            Fault::MissingField { usage, field } => {
                write!(f, "missing {field}: expected `{usage}`")
            }
            Fault::NotANumber { field, text } => {
                write!(f, "{field} `{text}` is not a number in decimal digits")
            }
            Fault::TooLarge { field, max } => {
                write!(f, "{field} is too large: at most {max}")?;
                if *max == BYTES_MAX { f.write_str(" (2^62)") } else { Ok(()) }
            }
            Fault::TrailingWords { usage, text } => {
                write!(f, "`{text}` after the last field: expected `{usage}`")
            }
            Fault::AlreadyLive { id, since_line } => {
                write!(f, "id {id} is already live")?;
                match since_line {
                    0 => f.write_str(": free it first"),
                    line => write!(f, " since line {line}: free it first"),
                }
            }
            Fault::FreeNotLive { id } => write!(f, "free of id {id}, which is not live"),
            Fault::RecordNotLive { id } => {
                write!(f, "stream record of id {id}, which is not live")
            }
            Fault::TooMany { things, max } => write!(f, "more than {max} {things}"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io(error) | Fault::Corrupt(_, error) => Some(error),
            _ => None,
        }
    }
}
