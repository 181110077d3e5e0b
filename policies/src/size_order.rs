//! Free blocks in order of size, then address. Knows no policy: a search names the least size and
//! what else a block must have.
//!
//! The order is cut into bins of similar sizes, each a sorted list: most hold a few blocks, so that an
//! update moves little, and the first block of a bin above the one searched for is found at once.
use crate::FreeBlock;
use crate::bin_set::{BINS, BinSet, bin_of};
use crate::index::Index;

/// Free blocks by size and address.
///
/// Finding the smallest takes a binary search in one bin; an update takes one and moves the blocks
/// behind it in its bin, 32 bytes each.
#[derive(Clone, Debug)]
pub(crate) struct SizeOrder {
    /// By bin: ascending by size, then address.
    bins: Vec<Vec<FreeBlock>>,
    filled: BinSet,
}

impl Default for SizeOrder {
    fn default() -> Self {
        SizeOrder { bins: vec![Vec::new(); BINS], filled: BinSet::default() }
    }
}

impl SizeOrder {
    /// The first block of at least `size` bytes that `fits`, smallest first, then lowest address.
    #[inline]
    pub(crate) fn smallest(
        &self,
        size: u64,
        fits: impl Fn(&FreeBlock) -> bool,
    ) -> Option<&FreeBlock> {
        let own = bin_of(size);
        let blocks = &self.bins[own];
        let large = &blocks[blocks.partition_point(|block| block.size < size)..];
        let larger = self.filled.from(own + 1).flat_map(|bin| &self.bins[bin]);
        large.iter().chain(larger).find(|block| fits(block))
    }

    /// Where a block is, or would go, in the list of its bin.
    #[inline]
    fn position(&self, bin: usize, block: &FreeBlock) -> usize {
        let key = (block.size, block.address);
        self.bins[bin].partition_point(|other| (other.size, other.address) < key)
    }
}

impl Index for SizeOrder {
    fn insert(&mut self, block: &FreeBlock) {
        let bin = bin_of(block.size);
        let position = self.position(bin, block);
        self.bins[bin].insert(position, *block);
        self.filled.insert(bin);
    }

    #[inline]
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock) {
        self.remove(old);
        self.insert(new);
    }

    fn remove(&mut self, block: &FreeBlock) {
        let bin = bin_of(block.size);
        let position = self.position(bin, block);
        let removed = self.bins[bin].remove(position);
        debug_assert_eq!(removed, *block);
        if self.bins[bin].is_empty() {
            self.filled.remove(bin);
        }
    }
}
