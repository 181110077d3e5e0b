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
        let mut blocks = &self.bins[own][..];
        blocks = &blocks[blocks.partition_point(|block| block.size < size)..];
        let mut bin = own;
        loop {
            if let Some(fit) = blocks.iter().find(|block| fits(block)) {
                return Some(fit);
            }
            bin = self.filled.above(bin)?;
            blocks = &self.bins[bin];
        }
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
        let bin = bin_of(old.size);
        if let [block] = &mut self.bins[bin][..]
            && bin == bin_of(new.size)
        {
            *block = *new;
        } else {
            self.remove(old);
            self.insert(new);
        }
    }

    fn remove(&mut self, block: &FreeBlock) {
        let bin = bin_of(block.size);
        let position = self.position(bin, block);
        let blocks = &mut self.bins[bin];
        debug_assert_eq!(blocks[position], *block);
        if position + 1 < blocks.len() {
            blocks.remove(position);
        } else if position == 0 {
            blocks.clear();
            self.filled.remove(bin);
        } else {
            blocks.pop();
        }
    }
}
