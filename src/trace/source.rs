//! The text of a trace whatever its packing: plain, gzip or zstd, told apart by the first bytes.
//! Does not know what the text says.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use super::error::{Fault, Packing};

/// Text this long passes however small the file was.
const TEXT_BYTES_FREE: u64 = 64 << 20;
/// Beyond that, the text may be this many times the file. gzip cannot exceed 1032.
const TEXT_PER_PACKED_MAX: u64 = 2000;

/// The text of a trace.
pub(super) struct Source<'a> {
    text: Box<dyn Read + 'a>,
    packing: Option<Packing>,
    text_bytes: u64,
    packed_bytes: Rc<Cell<u64>>,
}

impl<'a> Source<'a> {
    /// Looks at the first four bytes and chooses the decoder.
    pub(super) fn new(mut input: impl Read + 'a) -> Result<Source<'a>, Fault> {
        let mut head = Vec::with_capacity(4);
        input.by_ref().take(4).read_to_end(&mut head).map_err(Fault::Io)?;
        let packing = packing(&head);
        let packed_bytes = Rc::new(Cell::new(0));
        let input = io::Cursor::new(head).chain(input);
        let input = Counted { input, bytes: packed_bytes.clone() };
        let text = match packing {
            None => Box::new(input),
            Some(packing) => unpack(packing, input)?,
        };
        Ok(Source { text, packing, text_bytes: 0, packed_bytes })
    }

    /// Reads some of the text; 0 bytes at its end only.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let read = loop {
            match self.text.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result.map_err(|error| self.fault(error))?,
            }
        };
        self.text_bytes += read as u64;
        let packed_bytes = self.packed_bytes.get();
        let text_bytes_max = TEXT_BYTES_FREE.max(TEXT_PER_PACKED_MAX.saturating_mul(packed_bytes));
        if self.packing.is_some() && self.text_bytes > text_bytes_max {
            return Err(Fault::Inflated { text_bytes: self.text_bytes, packed_bytes });
        }
        Ok(read)
    }

    fn fault(&self, error: io::Error) -> Fault {
        match (self.packing, error.kind()) {
            (Some(packing), io::ErrorKind::UnexpectedEof) => Fault::Truncated(packing),
            (Some(packing), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                Fault::Corrupt(packing, error)
            }
            _ => Fault::Io(error),
        }
    }
}

fn packing(head: &[u8]) -> Option<Packing> {
    match head {
        [0x1f, 0x8b, ..] => Some(Packing::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd] => Some(Packing::Zstd),
        // A skippable frame may come first.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Some(Packing::Zstd),
        _ => None,
    }
}

#[cfg(not(feature = "compress"))]
fn unpack<'a>(packing: Packing, _: impl Read + 'a) -> Result<Box<dyn Read + 'a>, Fault> {
    Err(Fault::Compressed(packing))
}

#[cfg(feature = "compress")]
fn unpack<'a>(packing: Packing, input: impl Read + 'a) -> Result<Box<dyn Read + 'a>, Fault> {
    let input = io::BufReader::with_capacity(64 << 10, input);
    Ok(match packing {
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Packing::Zstd => Box::new(super::zstd::Frames::new(input)),
    })
}

/// A reader that tells how much was taken from it.
struct Counted<R> {
    input: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}
