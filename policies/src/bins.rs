//! Bins: the most recently freed block of the first bin of sizes that has a fit. Knows lists by size
//! and the rule for new segments; rounds sizes only to 512 bytes.
use crate::index::Index;
use crate::size_lists::SizeLists;
use crate::sizing::round_to_grain;
use crate::{Band, Cut, FreeBlock, Freed, GRAIN, Place, Policy, Request, Sizing};

/// Blocks looked at among those of similar size, of which some may be too small, before a larger one
/// is taken.
const LOOKS: usize = 4;

/// Takes a free block of the smallest bin that fits, the one most recently put there, from its front.
///
/// Finds a free block whenever one fits; which of similar size depends on what was freed last, so
/// that ties do not go to the lower address. Every step takes constant time, except that before the
/// answer is to grow, and for alignments over 512 bytes, all blocks of a bin are looked at.
#[derive(Debug)]
pub struct Bins {
    sizing: Sizing,
    free: SizeLists,
}

impl Bins {
    /// A policy with no free blocks.
    pub fn new(sizing: Sizing) -> Bins {
        Bins { sizing, free: SizeLists::default() }
    }
}

impl Policy for Bins {
    #[inline(always)]
    fn band(&self, size: u64) -> Band {
        self.sizing.band(round_to_grain(size))
    }

    #[inline(always)]
    fn place(&self, request: &Request) -> Place {
        let Request { size, align, .. } = *request;
        if align == GRAIN {
            let any = || self.free.smallest(size, |_| true).map(|block| block.id);
            return match self.free.newest(size, LOOKS).or_else(any) {
                Some(block) => Place::Reuse { block, skip: 0, take: size },
                None => self.sizing.grow(request),
            };
        }
        match self.free.smallest(size, |block| block.fits(size, align)) {
            Some(block) => Place::Reuse { block: block.id, skip: block.skip_to(align), take: size },
            None => self.sizing.grow(request),
        }
    }

    #[inline(always)]
    fn taken(&mut self, cut: &Cut) {
        self.free.cut(cut);
    }

    #[inline(always)]
    fn freed(&mut self, freed: &Freed) {
        self.free.merge(freed);
    }

    fn released(&mut self, block: FreeBlock) {
        self.free.remove(&block);
    }
}
