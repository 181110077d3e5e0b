//! First fit: the lowest address that is large enough. Knows an order of addresses and the rule for
//! new segments; rounds sizes only to 512 bytes.
use crate::address_order::AddressOrder;
use crate::index::Index;
use crate::sizing::round_to_grain;
use crate::{Band, BlockId, Cut, FreeBlock, Freed, Place, Policy, Request, Sizing};

/// Takes the lowest free block that fits, from its front.
///
/// Finds a free block whenever one fits. Few free blocks are searched in a handful of vector
/// instructions, and a step per 32 thereafter.
#[derive(Debug)]
pub struct FirstFit {
    sizing: Sizing,
    free: AddressOrder,
}

impl FirstFit {
    /// A policy with no free blocks.
    pub fn new(sizing: Sizing) -> FirstFit {
        FirstFit { sizing, free: AddressOrder::default() }
    }

    /// The free block that `address` lies in; its offset is not known and 0.
    #[inline]
    pub fn holding(&self, address: u64) -> Option<FreeBlock> {
        self.free.holding(address)
    }

    /// The free block with the highest place for `size` bytes at a multiple of `align`, and how many of
    /// its bytes lie below that place.
    pub fn highest(&self, size: u64, align: u64) -> Option<(BlockId, u64)> {
        self.free.highest(size, align).map(|spot| (spot.id, spot.skip))
    }
}

impl Policy for FirstFit {
    #[inline(always)]
    fn band(&self, size: u64) -> Band {
        self.sizing.band(round_to_grain(size))
    }

    #[inline(always)]
    fn place(&self, request: &Request) -> Place {
        match self.free.lowest(request.size, request.align) {
            Some(spot) => Place::Reuse { block: spot.id, skip: spot.skip, take: request.size },
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
        self.free.prune();
    }
}
