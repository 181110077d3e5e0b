//! The baseline: every request gets a segment of its own. Knows nothing.
use crate::sizing::round_to_grain;
use crate::{Band, Cut, FreeBlock, Freed, Place, Policy, Request};

/// Asks the driver for each request and gives each freed segment back at once.
///
/// Finds no free block, even where one fits.
#[derive(Clone, Copy, Debug, Default)]
pub struct NeverCache;

impl Policy for NeverCache {
    #[inline]
    fn band(&self, size: u64) -> Band {
        Band { index: 0, size: round_to_grain(size), front: false }
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        Place::Grow { bytes: request.size }
    }

    fn taken(&mut self, _: &Cut) {}

    fn freed(&mut self, _: &Freed) {}

    fn released(&mut self, _: FreeBlock) {}

    fn keeps(&self, _: FreeBlock) -> bool {
        false
    }
}
