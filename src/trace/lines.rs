//! Cuts a text into lines through one large buffer. Does not know what a line says.

use super::LINE_BYTES_MAX;
use super::error::Fault;
use super::source::Source;

const BUFFER_BYTES: usize = 4 * LINE_BYTES_MAX;

/// The lines of a source, each lent until the next is asked for.
pub(super) struct Lines<'a> {
    source: Source<'a>,
    buffer: Box<[u8]>,
    /// What has been read and not lent yet is `buffer[start..end]`.
    start: usize,
    end: usize,
    number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(source: Source<'a>) -> Lines<'a> {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Lines { source, buffer, start: 0, end: 0, number: 0 }
    }

    /// The number of the last line that was lent or, after an error, the one reached; from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its line feed; none at the end of the text.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        self.number += 1;
        let unread = &self.buffer[self.start..self.end];
        let length = match unread.iter().position(|&byte| byte == b'\n') {
            Some(length) => length,
            None => match self.fill_line()? {
                Some(length) => length,
                None => return Ok(None),
            },
        };
        if length > LINE_BYTES_MAX {
            return Err(Fault::LineTooLong);
        }
        let start = self.start;
        self.start = (start + length + 1).min(self.end);
        Ok(Some(&self.buffer[start..start + length]))
    }

    /// Reads until the line at `start` is whole and returns its length; none if no text is left.
    #[cold]
    fn fill_line(&mut self) -> Result<Option<usize>, Fault> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            if self.end > LINE_BYTES_MAX {
                return Err(Fault::LineTooLong);
            }
            let read = self.source.read(&mut self.buffer[self.end..])?;
            if read == 0 {
                return Ok((self.end > 0).then_some(self.end));
            }
            let fresh = &self.buffer[self.end..self.end + read];
            let line_feed = fresh.iter().position(|&byte| byte == b'\n');
            let length = line_feed.map(|at| self.end + at);
            self.end += read;
            if length.is_some() {
                return Ok(length);
            }
        }
    }
}
