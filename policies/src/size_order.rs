//! Free blocks searched for the smallest that is large enough. Knows no policy: a search names the
//! least size and what else a block must have.
//!
//! Blocks of similar size lie in short lists that are looked through from end to end. Where many are
//! alike, those that came last lie in a sorted tree instead, so that no search takes long.
use std::collections::BTreeMap;

use crate::FreeBlock;
use crate::bin_set::{BINS, BinSet, bin_of};
use crate::index::Index;
use crate::size_lists::SizeLists;

/// The most blocks in one list.
const LIST_MAX: u32 = 32;

/// Free blocks by size, then address.
///
/// A search looks at no more than the blocks of one list per bin without a fit, and at the tree in
/// logarithmic time. Updates take constant time while no list is full.
#[derive(Clone, Debug)]
pub(crate) struct SizeOrder {
    lists: SizeLists,
    /// By bin: how many blocks lie in its list, and how many in `rest`.
    lens: [Lens; BINS],
    /// The blocks that found their list full, by size and address.
    rest: BTreeMap<(u64, u64), FreeBlock>,
    /// The bins of the blocks in `rest`.
    rest_bins: BinSet,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lens {
    list: u32,
    rest: u32,
}

impl Default for SizeOrder {
    fn default() -> Self {
        SizeOrder {
            lists: SizeLists::default(),
            lens: [Lens::default(); BINS],
            rest: BTreeMap::new(),
            rest_bins: BinSet::default(),
        }
    }
}

impl SizeOrder {
    /// The smallest block of at least `size` bytes that `fits`, at the lowest address among equals.
    #[inline]
    pub(crate) fn smallest(
        &self,
        size: u64,
        fits: impl Fn(&FreeBlock) -> bool,
    ) -> Option<FreeBlock> {
        let listed = self.lists.smallest(size, &fits);
        let (own, last) = (bin_of(size), listed.map_or(BINS, |block| bin_of(block.size)));
        if self.lens[own].rest > 0 || self.rest_bins.above(own).is_some_and(|bin| bin <= last) {
            return self.smaller_of_rest(listed, size, fits);
        }
        listed
    }

    #[inline(never)]
    fn smaller_of_rest(
        &self,
        listed: Option<FreeBlock>,
        size: u64,
        fits: impl Fn(&FreeBlock) -> bool,
    ) -> Option<FreeBlock> {
        let end = listed.map_or((u64::MAX, 0), |block| (block.size, block.address));
        if end.0 < size {
            return listed;
        }
        let smaller = self.rest.range((size, 0)..end).find(|(_, block)| fits(block));
        smaller.map(|(_, block)| *block).or(listed)
    }

    #[inline(never)]
    fn move_block(&mut self, old: &FreeBlock, new: &FreeBlock) {
        self.remove(old);
        self.insert(new);
    }

    #[inline(never)]
    fn insert_rest(&mut self, block: &FreeBlock) {
        let bin = bin_of(block.size);
        self.rest.insert((block.size, block.address), *block);
        self.lens[bin].rest += 1;
        self.rest_bins.insert(bin);
    }

    /// Whether the block was in `rest` and no longer is.
    #[inline(never)]
    fn remove_rest(&mut self, block: &FreeBlock) -> bool {
        let found = self.rest.remove(&(block.size, block.address)).is_some();
        let bin = bin_of(block.size);
        self.lens[bin].rest -= u32::from(found);
        if self.lens[bin].rest == 0 {
            self.rest_bins.remove(bin);
        }
        found
    }
}

impl Index for SizeOrder {
    #[inline]
    fn insert(&mut self, block: &FreeBlock) {
        let len = &mut self.lens[bin_of(block.size)].list;
        if *len < LIST_MAX {
            *len += 1;
            self.lists.insert(block);
        } else {
            self.insert_rest(block);
        }
    }

    #[inline]
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock) {
        let bin = bin_of(old.size);
        if self.lens[bin].rest == 0 && bin == bin_of(new.size) {
            self.lists.change(old, new);
        } else {
            self.move_block(old, new);
        }
    }

    #[inline]
    fn remove(&mut self, block: &FreeBlock) {
        let bin = bin_of(block.size);
        if self.lens[bin].rest == 0 || !self.remove_rest(block) {
            self.lens[bin].list -= 1;
            self.lists.remove(block);
        }
    }
}
