//! Decodes a zstd file of one or more frames and checks their checksums. Does not know what the
//! text says.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The largest window decoded: what RFC 8878 (section 3.1.1.1.2) asks every decoder to take, and
/// what the `zstd` command uses up to level 19. A file of a few bytes can ask for no more memory.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// The text of every frame of a zstd file, one after the other.
///
/// A read fails with [`io::ErrorKind::UnexpectedEof`] if the file ends within a frame, with
/// [`io::ErrorKind::InvalidData`] if the data is damaged, and else as the input failed.
pub(super) struct Frames<R> {
    input: Watched<R>,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(input: R) -> Frames<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        let input = Watched { input, ended: false, failed: None };
        Frames { input, decoder, in_frame: false }
    }

    /// Starts the next frame, or skips one that holds no text; false at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        if self.input.input.fill_buf()?.is_empty() {
            return Ok(false);
        }
        match self.decoder.init(&mut self.input) {
            Ok(()) => self.in_frame = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => self.skip(u64::from(length))?,
            Err(error) => return Err(self.failure(error)),
        }
        Ok(true)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.input.input.by_ref().take(bytes), &mut io::sink())?;
        if skipped == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let written = self.decoder.get_checksum_from_data();
        if written.is_some() && written != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "wrong checksum"));
        }
        Ok(())
    }

    fn failure(&mut self, error: FrameDecoderError) -> io::Error {
        match self.input.failed.take() {
            Some(failed) => failed,
            None if self.input.ended => io::ErrorKind::UnexpectedEof.into(),
            None => io::Error::new(io::ErrorKind::InvalidData, worded(error)),
        }
    }
}

fn worded(error: FrameDecoderError) -> String {
    match error {
        FrameDecoderError::WindowSizeTooBig { requested, .. } => format!(
            "a window of {requested} bytes, at most {WINDOW_BYTES_MAX} are decoded: \
             compress without --ultra and --long"
        ),
        error => error.to_string(),
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 || !self.in_frame {
            if !self.in_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
            } else if self.decoder.is_finished() {
                self.end_frame()?;
            } else {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.input, one);
                decoded.map_err(|error| self.failure(error))?;
            }
        }
        self.decoder.read(buffer)
    }
}

/// A reader that remembers why it stopped, which the decoder's errors hide.
struct Watched<R> {
    input: R,
    ended: bool,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.input.read(buffer) {
            Ok(read) => {
                self.ended |= read == 0 && !buffer.is_empty();
                Ok(read)
            }
            Err(error) => {
                let kind = error.kind();
                if kind != io::ErrorKind::Interrupted {
                    self.failed = Some(error);
                }
                Err(kind.into())
            }
        }
    }
}
