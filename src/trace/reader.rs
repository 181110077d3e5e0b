//! Reads a trace: each line into a call of the builder. Knows the format's words; the rules about
//! live ids are the builder's.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::builder::TraceBuilder;
use super::error::{Fault, TraceError};
use super::lines::Lines;
use super::source::Source;
use super::{Trace, clean_label};

impl Trace {
    /// Reads the trace in a file: plain text, or gzip or zstd as its first bytes tell.
    ///
    /// Costs about 0.1 us a line on one core, and 16 bytes of memory an operation
    /// plus 24 a block live at the peak.
    ///
    /// # Errors
    ///
    /// Every [`Fault`], with the path and the line. Compressed files need the feature `compress`.
    pub fn read(path: impl AsRef<Path>) -> Result<Trace, TraceError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| TraceError {
            path: None,
            line: 0,
            fault: Fault::Io(error),
        });
        file.and_then(Trace::parse)
            .map_err(|error| TraceError { path: Some(path.to_path_buf()), ..error })
    }

    /// Reads a trace from a reader, which need not be buffered; compression as in
    /// [`read`](Trace::read).
    ///
    /// Never panics; its memory is in proportion to the text's length, and the text is held to
    /// 64 MiB or 2,000 times the compressed bytes, whichever is more.
    ///
    /// # Errors
    ///
    /// Every [`Fault`], with the line.
    ///
    /// ```
    /// use aquifer::trace::Trace;
    ///
    /// let trace = Trace::parse(&b"s step:0\na 7 512 0\nf 7\n"[..])?;
    /// assert_eq!(trace.ops().count(), 3);
    /// let error = Trace::parse(&b"a 7 512 0\nf 8\n"[..]).unwrap_err();
    /// assert_eq!(error.to_string(), "line 2: free of id 8, which is not live");
    /// # Ok::<(), aquifer::trace::TraceError>(())
    /// ```
    pub fn parse(reader: impl Read) -> Result<Trace, TraceError> {
        let at = |line, fault| TraceError { path: None, line, fault };
        let mut lines = Lines::new(Source::new(reader).map_err(|fault| at(0, fault))?);
        let builder = read_lines(&mut lines).map_err(|fault| at(lines.number(), fault))?;
        let trace = builder.finish();
        if trace.is_empty() { Err(at(0, Fault::Empty)) } else { Ok(trace) }
    }
}

fn read_lines(lines: &mut Lines) -> Result<TraceBuilder, Fault> {
    let mut builder = TraceBuilder::new();
    let mut number = 0;
    while let Some(line) = lines.next()? {
        number += 1;
        builder.at_line(number);
        let line = if number == 1 { strip_byte_order_mark(line) } else { line };
        read_line(line, &mut builder)?;
    }
    Ok(builder)
}

fn strip_byte_order_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

#[inline]
fn read_line(line: &[u8], builder: &mut TraceBuilder) -> Result<(), Fault> {
    let mut fields = Fields { rest: line, usage: "" };
    match fields.word() {
        b"a" => {
            fields.usage = "a <id> <bytes> <stream>";
            let id = fields.number("id")?;
            let bytes = fields.number("bytes")?;
            let stream = fields.number("stream")?;
            fields.end()?;
            builder.alloc(id, bytes, stream)
        }
        b"f" => {
            fields.usage = "f <id>";
            let id = fields.number("id")?;
            fields.end()?;
            builder.free(id)
        }
        verb => read_rare_line(verb, fields, builder),
    }
}

fn read_rare_line(
    verb: &[u8],
    mut fields: Fields,
    builder: &mut TraceBuilder,
) -> Result<(), Fault> {
    match verb {
        b"r" => {
            fields.usage = "r <id> <stream>";
            let id = fields.number("id")?;
            let stream = fields.number("stream")?;
            fields.end()?;
            builder.record_stream(id, stream)
        }
        b"s" => {
            fields.usage = "s <label>";
            builder.mark(fields.text("label")?);
            Ok(())
        }
        b"e" => {
            fields.usage = "e";
            fields.end()?;
            builder.empty_cache();
            Ok(())
        }
        b"t" => {
            fields.usage = "t <thread>";
            let thread = fields.number("thread")?;
            fields.end()?;
            builder.thread(thread)
        }
        [] | [b'#', ..] => Ok(()),
        verb => Err(Fault::UnknownVerb(excerpt(verb)?)),
    }
}

/// What of a line is still to be read. Words are apart by spaces or tabs.
struct Fields<'a> {
    rest: &'a [u8],
    /// The verb's line as the format has it, for errors.
    usage: &'static str,
}

impl<'a> Fields<'a> {
    /// The next word, empty at the line's end.
    #[inline]
    fn word(&mut self) -> &'a [u8] {
        self.skip_space();
        let length = self.rest.iter().position(|&byte| is_space(byte)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        word
    }

    #[inline]
    fn number(&mut self, field: &'static str) -> Result<u64, Fault> {
        self.skip_space();
        let mut value = 0u64;
        let mut length = 0;
        while let Some(&byte) = self.rest.get(length)
            && byte.is_ascii_digit()
        {
            let shifted = value.checked_mul(10);
            let Some(next) = shifted.and_then(|value| value.checked_add(u64::from(byte - b'0')))
            else {
                return Err(Fault::TooLarge { field, max: u64::MAX });
            };
            value = next;
            length += 1;
        }
        if length == 0 || self.rest.get(length).is_some_and(|&byte| !is_space(byte)) {
            return Err(self.not_a_number(field));
        }
        self.rest = &self.rest[length..];
        Ok(value)
    }

    #[cold]
    fn not_a_number(&mut self, field: &'static str) -> Fault {
        match self.word() {
            [] => Fault::MissingField { usage: self.usage, field },
            word => match excerpt(word) {
                Ok(text) => Fault::NotANumber { field, text },
                Err(fault) => fault,
            },
        }
    }

    /// The rest of the line, which may not be blank.
    fn text(&mut self, field: &'static str) -> Result<&'a str, Fault> {
        match std::str::from_utf8(self.rest).map_err(|_| Fault::NotUtf8)?.trim() {
            "" => Err(Fault::MissingField { usage: self.usage, field }),
            text => Ok(text),
        }
    }

    /// Makes sure that no word is left.
    #[inline]
    fn end(&mut self) -> Result<(), Fault> {
        self.skip_space();
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Fault::TrailingWords { usage: self.usage, text: excerpt(self.rest)? })
    }

    #[inline]
    fn skip_space(&mut self) {
        while let [byte, rest @ ..] = self.rest
            && is_space(*byte)
        {
            self.rest = rest;
        }
    }
}

/// A carriage return counts as a space, so that files with CR LF line ends are read.
#[inline]
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

const EXCERPT_CHARS: usize = 40;

/// The start of a text for an error message; control characters become spaces.
#[cold]
fn excerpt(text: &[u8]) -> Result<String, Fault> {
    let text = std::str::from_utf8(text).map_err(|_| Fault::NotUtf8)?;
    let mut short: String = clean_label(text).chars().take(EXCERPT_CHARS).collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() {
        short.push_str("...");
    }
    Ok(short)
}
