//! Which band a size belongs to. Knows one limit, nothing of free blocks.
use crate::{Band, GRAIN, SIZE_MAX};

/// Largest size that may wait in the front cache, in bytes. Kept blocks of at most 1 MiB raised the
/// memory in use by at most 0.3 % on the training traces measured.
const FRONT_MAX: u64 = 1 << 20;

/// How sizes are parted into bands: small ones and the others, or all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bands {
    /// The largest size of the small band, in bytes. 0: one band for all sizes.
    pub small: u64,
}

impl Bands {
    /// Two bands, parted at 1 MiB.
    pub const DEFAULT: Bands = Bands { small: 1 << 20 };

    /// Whether a rounded size belongs to the small band.
    #[inline]
    pub fn is_small(&self, size: u64) -> bool {
        size <= self.small
    }

    /// The band of a rounded size.
    #[inline]
    pub(crate) fn band(&self, size: u64) -> Band {
        let index = u8::from(self.small != 0 && !self.is_small(size));
        Band { index, size, front: size <= FRONT_MAX }
    }
}

impl Default for Bands {
    fn default() -> Self {
        Bands::DEFAULT
    }
}

/// `size` rounded up to a multiple of 512, in bytes.
#[inline]
pub(crate) fn round_to_grain(size: u64) -> u64 {
    debug_assert!(size <= SIZE_MAX);
    (size.max(1) + (GRAIN - 1)) & !(GRAIN - 1)
}
