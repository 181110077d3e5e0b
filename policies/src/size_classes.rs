//! Size classes: requests of similar size become equal, so that what one leaves free suits the next.
//! Knows an order of sizes and the rule for new segments.
use crate::index::Index;
use crate::size_order::SizeOrder;
use crate::sizing::round_to_grain;
use crate::{Band, Cut, FreeBlock, Freed, GRAIN, Place, Policy, Request, Sizing};

/// Rounds sizes up to a number of classes per doubling and takes a free block of exactly that size,
/// else the smallest larger one, at the lowest address among equals, from its front.
///
/// With 8 classes rounding adds less than 12.5 % to sizes from 4 KiB on, and only rounds to 512 bytes
/// below. Finds a free block whenever one fits.
#[derive(Debug)]
pub struct SizeClasses {
    sizing: Sizing,
    classes: u32,
    free: SizeOrder,
}

impl SizeClasses {
    /// Classes per doubling unless told otherwise.
    pub const CLASSES: u32 = 8;
    /// The most classes per doubling.
    pub const CLASSES_MAX: u32 = 64;

    /// A policy with no free blocks and a number of size classes per doubling.
    ///
    /// # Panics
    ///
    /// If `classes` is not a power of two from 1 to [`SizeClasses::CLASSES_MAX`].
    pub fn new(sizing: Sizing, classes: u32) -> SizeClasses {
        assert!(classes.is_power_of_two() && classes <= Self::CLASSES_MAX, "classes: {classes}");
        SizeClasses { sizing, classes, free: SizeOrder::default() }
    }

    #[inline]
    fn round(&self, size: u64) -> u64 {
        let size = round_to_grain(size);
        let step = ((1 << size.ilog2()) / u64::from(self.classes)).max(GRAIN);
        (size + (step - 1)) & !(step - 1)
    }
}

impl Policy for SizeClasses {
    #[inline]
    fn band(&self, size: u64) -> Band {
        self.sizing.band(self.round(size))
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        match self.free.smallest(request.size, |block| block.fits(request.size, request.align)) {
            Some(block) => Place::Reuse {
                block: block.id,
                skip: block.skip_to(request.align),
                take: request.size,
            },
            None => self.sizing.grow(request),
        }
    }

    #[inline]
    fn taken(&mut self, cut: &Cut) {
        self.free.cut(cut);
    }

    #[inline]
    fn freed(&mut self, freed: &Freed) {
        self.free.merge(freed);
    }

    fn released(&mut self, block: FreeBlock) {
        self.free.remove(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_adds_less_than_a_class() {
        let policy = SizeClasses::new(Sizing::DEFAULT, 8);
        for (size, rounded) in [(1, 512), (3585, 4096), (4097, 4608), (8193, 9216), (9216, 9216)] {
            assert_eq!(policy.band(size).size, rounded);
        }
        for bits in 12..62 {
            let size = (1u64 << bits) + 512;
            assert!((policy.band(size).size - size) * 8 < size, "{size}");
        }
        assert_eq!(SizeClasses::new(Sizing::DEFAULT, 1).band((1 << 20) + 1).size, 2 << 20);
    }
}
