//! Free blocks searched for the smallest that is large enough. Knows no policy: a search names the
//! least size and what else a block must have.
//!
//! Blocks of similar size lie in short lists that are looked through from end to end. Where many are
//! alike, those that came last lie in a sorted tree instead, so that no search takes long.
use std::collections::BTreeMap;

use crate::FreeBlock;
use crate::bin_set::{BINS, bin_of};
use crate::index::Index;
use crate::size_lists::SizeLists;

/// The most blocks in one list.
const LIST_MAX: u8 = 32;

/// Free blocks by size, then address.
///
/// A search looks at no more than the blocks of one list per bin without a fit, and at the tree in
/// logarithmic time. Updates take constant time while no list is full.
#[derive(Clone, Debug)]
pub(crate) struct SizeOrder {
    lists: SizeLists,
    /// By bin.
    list_lens: [u8; BINS],
    /// The blocks that found their list full, by size and address.
    rest: BTreeMap<(u64, u64), FreeBlock>,
}

impl Default for SizeOrder {
    fn default() -> Self {
        let (lists, rest) = (SizeLists::default(), BTreeMap::new());
        SizeOrder { lists, list_lens: [0; BINS], rest }
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
        if self.rest.is_empty() { listed } else { self.smaller_of_rest(listed, size, fits) }
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
    fn take_rest(&mut self, block: &FreeBlock) -> bool {
        self.rest.remove(&(block.size, block.address)).is_some()
    }
}

impl Index for SizeOrder {
    #[inline]
    fn insert(&mut self, block: &FreeBlock) {
        let len = &mut self.list_lens[bin_of(block.size)];
        if *len < LIST_MAX {
            *len += 1;
            self.lists.insert(block);
        } else {
            self.rest.insert((block.size, block.address), *block);
        }
    }

    #[inline]
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock) {
        if self.rest.is_empty() && bin_of(old.size) == bin_of(new.size) {
            self.lists.change(old, new);
        } else {
            self.move_block(old, new);
        }
    }

    #[inline]
    fn remove(&mut self, block: &FreeBlock) {
        if self.rest.is_empty() || !self.take_rest(block) {
            self.list_lens[bin_of(block.size)] -= 1;
            self.lists.remove(block);
        }
    }
}
