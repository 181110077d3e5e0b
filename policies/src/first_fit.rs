//! First fit: the lowest address that is large enough. Knows an order of addresses and the growth
//! rule; rounds sizes only to 512 bytes.
use crate::address_order::AddressOrder;
use crate::bands::round_to_grain;
use crate::index::Index;
use crate::{Band, Bands, Cut, FreeBlock, Freed, Growth, Place, Policy, Request};

/// Takes the lowest free block that fits, from its front.
///
/// Finds a free block whenever one fits.
#[derive(Debug)]
pub struct FirstFit {
    bands: Bands,
    growth: Growth,
    free: AddressOrder,
}

impl FirstFit {
    /// A policy with no free blocks.
    pub fn new(bands: Bands, growth: Growth) -> FirstFit {
        FirstFit { bands, growth, free: AddressOrder::default() }
    }
}

impl Policy for FirstFit {
    #[inline]
    fn band(&self, size: u64) -> Band {
        self.bands.band(round_to_grain(size))
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        match self.free.lowest(request.size, request.align) {
            Some(spot) => Place::Reuse { block: spot.id, skip: spot.skip, take: request.size },
            None => {
                Place::Grow { bytes: self.growth.bytes(request, self.bands.is_small(request.size)) }
            }
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
        self.free.prune();
    }
}
