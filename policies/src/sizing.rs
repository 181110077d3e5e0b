//! What a size decides before any free block is looked at: its band, and the segment it would get.
//! Knows two parameters, nothing of free blocks.
use crate::{Band, GRAIN, Growth, Place, Request, SIZE_MAX};

/// How sizes are parted into bands, and how segments grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// The largest size of the small band, in bytes. 0: one band for all sizes.
    pub small: u64,
    /// The size of a new segment.
    pub growth: Growth,
}

impl Sizing {
    /// One band, and the usual growth. (A band of small sizes holds free memory that large
    /// requests cannot have.)
    pub const DEFAULT: Sizing = Sizing { small: 0, growth: Growth::DEFAULT };

    /// The band of a rounded size.
    #[inline]
    pub(crate) fn band(&self, size: u64) -> Band {
        let index = u8::from(self.small != 0 && size > self.small);
        Band { index, size, front: true }
    }

    /// The answer where no free block will do.
    #[inline(always)]
    pub(crate) fn grow(&self, request: &Request) -> Place {
        Place::Grow { bytes: self.segment_bytes(*request) }
    }

    /// Takes the request by value, so that the caller need not have it in memory.
    #[cold]
    fn segment_bytes(&self, request: Request) -> u64 {
        self.growth.bytes(&request, request.size <= self.small)
    }
}

impl Default for Sizing {
    fn default() -> Self {
        Sizing::DEFAULT
    }
}

/// `size` rounded up to a multiple of 512, in bytes.
#[inline]
pub(crate) fn round_to_grain(size: u64) -> u64 {
    debug_assert!(size <= SIZE_MAX);
    (size.max(1) + (GRAIN - 1)) & !(GRAIN - 1)
}
