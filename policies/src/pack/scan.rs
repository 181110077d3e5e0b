//! Placed buffers in the order of their offsets, all of which are looked at from the lowest on. The
//! quicker way where many of them live at a time.

use super::state::Span;

/// The buffers placed so far, by offset.
#[derive(Debug, Default)]
pub(super) struct Scan {
    placed: Vec<Placed>,
}

/// Small, since many are read for each that is in the way.
#[derive(Clone, Copy, Debug)]
struct Placed {
    first: u32,
    end: u32,
    offset: u64,
    top: u64,
}

impl Scan {
    /// What a run over so many buffers costs: each looks at half of those before it. A look is the
    /// unit, about a nanosecond.
    pub(super) fn looks(buffers: usize) -> u64 {
        (buffers as u64).saturating_mul(buffers as u64) / 4
    }

    pub(super) fn clear(&mut self) {
        self.placed.clear();
    }

    /// Where the buffer fits, as low as can be.
    pub(super) fn lowest(&self, span: Span) -> u64 {
        let (first, end) = (span.first as u32, span.end as u32);
        let mut offset = 0;
        for other in &self.placed {
            // One condition, since which of the three holds cannot be foretold.
            if (other.first < end) & (first < other.end) & (offset < other.top) {
                if other.offset >= offset + span.size {
                    break;
                }
                offset = other.top;
            }
        }
        offset
    }

    /// The buffer lies there from now on.
    pub(super) fn place(&mut self, span: Span, offset: u64) {
        let at = self.placed.partition_point(|other| other.offset < offset);
        let (first, end) = (span.first as u32, span.end as u32);
        self.placed.insert(at, Placed { first, end, offset, top: offset + span.size });
    }
}
