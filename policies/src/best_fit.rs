//! Best fit: the smallest free block that is large enough. Knows an order of sizes and the rule for
//! new segments; rounds sizes only to 512 bytes.
use crate::index::Index;
use crate::size_order::SizeOrder;
use crate::sizing::round_to_grain;
use crate::{Band, Cut, FreeBlock, Freed, Place, Policy, Request, Sizing};

/// Takes the smallest free block that fits, at the lowest address among equals, from its front.
///
/// Finds a free block whenever one fits.
#[derive(Debug)]
pub struct BestFit {
    sizing: Sizing,
    free: SizeOrder,
}

impl BestFit {
    /// A policy with no free blocks.
    pub fn new(sizing: Sizing) -> BestFit {
        BestFit { sizing, free: SizeOrder::default() }
    }
}

impl Policy for BestFit {
    #[inline]
    fn band(&self, size: u64) -> Band {
        self.sizing.band(round_to_grain(size))
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        let Request { size, align, .. } = *request;
        match self.free.smallest(size, |block| block.fits(size, align)) {
            Some(block) => Place::Reuse { block: block.id, skip: block.skip_to(align), take: size },
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
