//! Free blocks in order of address, searched for the first or the last that is large enough. Knows
//! no policy and no segment: only disjoint ranges with ids.
//!
//! Blocks lie in leaves of up to 32, unordered inside a leaf, so that a search compares 32 sizes with
//! a few vector instructions and an update writes one slot. Leaves are ordered by the addresses they
//! cover. Per leaf there is an upper bound of its largest block; only a search that fails in the leaf
//! mends it, so that shrinking a block costs nothing.
//!
//! Blocks of 512 GiB and more are also kept in a list of their own, where requests of that size are
//! looked up exactly: leaves say no more than "1 TiB or more".
use crate::index::Index;
use crate::leaf::{LEAF_BLOCKS, Leaf, Need, WINDOW, grains};
use crate::{BlockId, FreeBlock, GRAIN};

/// Sizes from here on are looked up in `giants`, in bytes. Half of what a leaf can say, so that a
/// smaller size plus any alignment stays within it.
const GIANT: u64 = (1 << 30) * GRAIN;
/// A leaf with fewer blocks is merged with a neighbour...
const SPARSE: usize = LEAF_BLOCKS / 4;
/// ...if both together have at most this many, which leaves room before the next split.
const MERGED_MAX: usize = LEAF_BLOCKS * 3 / 4;

/// Free blocks by address.
///
/// Finding the lowest or highest that fits takes one look at a bound per leaf and one scan per leaf
/// that may hold a fit. Updates take constant time except where a leaf is found, split or merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressOrder {
    leaves: Vec<Leaf>,
    /// Leaves not in use.
    spare: Vec<u32>,
    /// The leaves in use by ascending address, and the first grain that each covers. The leaves of a
    /// window together cover all of it.
    order: Vec<u32>,
    lows: Vec<u64>,
    /// Where each block is, by id. Stale for ids that are not free.
    entries: Vec<Entry>,
    /// The blocks of at least [`GIANT`] bytes, in no order.
    giants: Vec<FreeBlock>,
}

/// A fit: in which free block, and how many bytes to skip in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) id: BlockId,
    pub(crate) skip: u64,
}

/// Where a block is kept.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    leaf: u32,
    slot: u32,
}

impl AddressOrder {
    /// The lowest block that holds `size` bytes at a multiple of `align`, both at least 512.
    #[inline(always)]
    pub(crate) fn lowest(&self, size: u64, align: u64) -> Option<Spot> {
        if align > GRAIN {
            return self.lowest_aligned(size, align);
        }
        let id = if size >= GIANT {
            self.lowest_aligned(size, align)?.id
        } else {
            let need = Need::new(size, GRAIN);
            self.first(need, self.order.iter(), Leaf::lowest::<false>)?
        };
        Some(Spot { id, skip: 0 })
    }

    #[inline(never)]
    fn lowest_aligned(&self, size: u64, align: u64) -> Option<Spot> {
        let block = if size >= GIANT {
            let giants = self.giants.iter().filter(|block| block.fits(size, align));
            *giants.min_by_key(|block| block.address)?
        } else {
            let need = Need::new(size, align);
            self.block(self.first(need, self.order.iter(), Leaf::lowest::<true>)?)
        };
        Some(Spot { id: block.id, skip: block.skip_to(align) })
    }

    /// The highest block that holds `size` bytes at a multiple of `align`, both at least 512, and as
    /// many bytes skipped as possible.
    pub(crate) fn highest(&self, size: u64, align: u64) -> Option<Spot> {
        let block = if size >= GIANT {
            let giants = self.giants.iter().filter(|block| block.fits(size, align));
            *giants.max_by_key(|block| block.address)?
        } else {
            let need = Need::new(size, align);
            self.block(self.first(need, self.order.iter().rev(), Leaf::highest)?)
        };
        let start = (block.address + (block.size - size)) & !(align - 1);
        Some(Spot { id: block.id, skip: start - block.address })
    }

    /// The block that `scan` picks from the first leaf of `order` that has a fit.
    #[inline]
    fn first<'a>(
        &self,
        need: Need,
        order: impl Iterator<Item = &'a u32>,
        scan: impl Fn(&Leaf, Need) -> Option<BlockId>,
    ) -> Option<BlockId> {
        for &leaf in order {
            let leaf = &self.leaves[leaf as usize];
            if leaf.may_fit(need) {
                if let Some(id) = scan(leaf, need) {
                    return Some(id);
                }
                leaf.mend();
            }
        }
        None
    }

    /// The block that `address` lies in. Its offset is not known here and stays 0.
    pub(crate) fn holding(&self, address: u64) -> Option<FreeBlock> {
        let start = address / GRAIN;
        let after = self.lows.partition_point(|&low| low <= start);
        // All blocks of a leaf may lie higher, and the leaf of a window may be empty.
        let found = (0..after).rev().find_map(|position| {
            let leaf = self.leaf_at(position);
            leaf.last_up_to(start).map(|slot| self.block(leaf.block(slot).0))
        });
        found.filter(|block| address < block.end())
    }

    /// The free block of an id. Its offset is not known here and stays 0.
    fn block(&self, id: BlockId) -> FreeBlock {
        let Entry { leaf, slot } = self.entries[id.index()];
        let (_, start, size) = self.leaves[leaf as usize].block(slot as usize);
        let mut size = size as u64 * GRAIN;
        if size >= GIANT {
            let giant = self.giants.iter().find(|block| block.id == id);
            size = giant.expect("a block of at least GIANT bytes is listed").size;
        }
        FreeBlock { id, address: start * GRAIN, offset: 0, size }
    }

    /// Forgets empty leaves. Called when a segment leaves, so that windows without segments cost
    /// nothing; between, the only leaf of a window is kept empty for its next block.
    pub(crate) fn prune(&mut self) {
        for position in (0..self.order.len()).rev() {
            if self.leaf_at(position).len() == 0 {
                self.close(position);
            }
        }
    }

    /// The leaf that covers a start, with room for a block.
    fn leaf_for(&mut self, start: u64) -> u32 {
        let after = self.lows.partition_point(|&low| low <= start);
        if after > 0 && self.leaf_at(after - 1).covers(start) {
            let leaf = self.order[after - 1];
            let full = self.leaves[leaf as usize].len() == LEAF_BLOCKS;
            return if full { self.split(leaf, start) } else { leaf };
        }
        let low = start / WINDOW * WINDOW;
        self.open(after, low, low + WINDOW)
    }

    /// Parts a full leaf in two halves and answers the one that covers `start`.
    #[cold]
    fn split(&mut self, leaf: u32, start: u64) -> u32 {
        let full = self.leaves[leaf as usize].clone();
        let (position, border) = (full.position, full.middle());
        self.leaves[leaf as usize] = Leaf::empty(full.low, border);
        self.leaves[leaf as usize].position = position;
        let upper = self.open(position as usize + 1, border, full.high);
        for slot in 0..LEAF_BLOCKS {
            let (id, start, size) = full.block(slot);
            self.put(if start < border { leaf } else { upper }, id, start, size);
        }
        if start < border { leaf } else { upper }
    }

    /// Merges a sparse leaf with a neighbour in the same window, if both fit in one with room left. An
    /// empty leaf always merges, so that no window has one among others.
    fn join(&mut self, leaf: u32) {
        let leaf = &self.leaves[leaf as usize];
        let position = leaf.position as usize;
        let joins = |other: &Leaf| leaf.len() == 0 || leaf.len() + other.len() <= MERGED_MAX;
        if !leaf.low.is_multiple_of(WINDOW) && joins(self.leaf_at(position - 1)) {
            self.pour(position, position - 1);
        } else if !leaf.high.is_multiple_of(WINDOW) && joins(self.leaf_at(position + 1)) {
            self.pour(position, position + 1);
        }
    }

    /// Moves all blocks of one leaf to its neighbour, which then covers both ranges.
    #[cold]
    fn pour(&mut self, from: usize, to: usize) {
        let (source, target) = (self.leaf_at(from).clone(), self.order[to]);
        let leaf = &mut self.leaves[target as usize];
        leaf.low = leaf.low.min(source.low);
        leaf.high = leaf.high.max(source.high);
        self.lows[to] = leaf.low;
        for slot in 0..source.len() {
            let (id, start, size) = source.block(slot);
            self.put(target, id, start, size);
        }
        self.close(from);
    }

    #[inline]
    fn leaf_at(&self, position: usize) -> &Leaf {
        &self.leaves[self.order[position] as usize]
    }

    /// An empty leaf for `low..high` at a position in the order.
    fn open(&mut self, position: usize, low: u64, high: u64) -> u32 {
        let empty = Leaf::empty(low, high);
        let leaf = if let Some(spare) = self.spare.pop() {
            self.leaves[spare as usize] = empty;
            spare
        } else {
            self.leaves.push(empty);
            self.leaves.len() as u32 - 1
        };
        self.order.insert(position, leaf);
        self.lows.insert(position, low);
        self.renumber(position);
        leaf
    }

    fn close(&mut self, position: usize) {
        self.spare.push(self.order.remove(position));
        self.lows.remove(position);
        self.renumber(position);
    }

    fn renumber(&mut self, from: usize) {
        for position in from..self.order.len() {
            self.leaves[self.order[position] as usize].position = position as u32;
        }
    }

    /// Adds a block to a leaf that has room.
    #[inline]
    fn put(&mut self, leaf: u32, id: BlockId, start: u64, size: i32) {
        let slot = self.leaves[leaf as usize].push(id, start, size);
        self.entries[id.index()] = Entry { leaf, slot };
    }

    #[cold]
    fn make_entries(&mut self, id: BlockId) {
        self.entries.resize(id.index() + 1, Entry::default());
    }

    #[inline(never)]
    fn move_block(&mut self, old: &FreeBlock, new: &FreeBlock) {
        self.remove(old);
        self.insert(new);
    }
}

impl Index for AddressOrder {
    #[inline]
    fn insert(&mut self, block: &FreeBlock) {
        if block.id.index() >= self.entries.len() {
            self.make_entries(block.id);
        }
        if block.size >= GIANT {
            self.giants.push(*block);
        }
        let start = block.address / GRAIN;
        let leaf = self.leaf_for(start);
        self.put(leaf, block.id, start, grains(block.size));
    }

    #[inline]
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock) {
        let start = new.address / GRAIN;
        let Entry { leaf, slot } = self.entries[new.id.index()];
        let leaf = &mut self.leaves[leaf as usize];
        if leaf.covers(start) && (old.size | new.size) < GIANT {
            leaf.set(slot, start, (new.size / GRAIN) as i32);
        } else {
            self.move_block(old, new);
        }
    }

    fn remove(&mut self, block: &FreeBlock) {
        if block.size >= GIANT {
            self.giants.retain(|giant| giant.id != block.id);
        }
        let Entry { leaf: index, slot } = self.entries[block.id.index()];
        let leaf = &mut self.leaves[index as usize];
        let moved = leaf.remove(slot);
        let sparse = leaf.len() < SPARSE;
        self.entries[moved.index()].slot = slot;
        if sparse && self.order.len() > 1 {
            self.join(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what the search relies on, and both ends of the order against a plain scan.
    fn check(order: &AddressOrder, blocks: &[FreeBlock], size: u64, align: u64) {
        let mut count = 0;
        for position in 0..order.order.len() {
            let leaf = order.leaf_at(position);
            assert_eq!((leaf.position as usize, leaf.low), (position, order.lows[position]));
            let next = order.lows.get(position + 1).copied();
            let ends = leaf.high.is_multiple_of(WINDOW);
            assert!(if ends {
                next.is_none_or(|low| leaf.high <= low)
            } else {
                next == Some(leaf.high)
            });
            assert!(leaf.len() > 0 || (ends && leaf.low.is_multiple_of(WINDOW)));
            for slot in 0..leaf.len() {
                let (id, start, _) = leaf.block(slot);
                assert!(leaf.covers(start) && order.block(id).address == start * GRAIN);
            }
            count += leaf.len();
        }
        assert_eq!(count, blocks.len());
        let fits = || blocks.iter().filter(|block| block.fits(size, align));
        let lowest = fits().min_by_key(|block| block.address);
        let found = order.lowest(size, align);
        assert_eq!(found, lowest.map(|b| Spot { id: b.id, skip: b.skip_to(align) }));
        let highest = fits().max_by_key(|block| block.address);
        let found = order.highest(size, align);
        assert_eq!(found.map(|spot| spot.id), highest.map(|block| block.id));
        for address in blocks.iter().flat_map(|b| [b.address, b.end() - 1, b.end()]) {
            let holding = blocks.iter().find(|b| (b.address..b.end()).contains(&address));
            assert_eq!(order.holding(address), holding.copied());
        }
        if let (Some(spot), Some(block)) = (found, highest) {
            let rest = block.size - size - spot.skip;
            assert!(rest < align && (block.address + spot.skip).is_multiple_of(align));
        }
    }

    #[test]
    fn leaves_split_and_merge_and_both_ends_are_found() {
        let mut order = AddressOrder::default();
        let mut blocks: Vec<FreeBlock> = vec![];
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        for round in 0..6000u64 {
            let growing = round % 2000 < 1000;
            // Cells of 256 MiB over 3 windows and, far above, one more: each holds at most one block.
            let cell = [below(300), below(300) + (1 << 30)][(below(4) / 3) as usize];
            let found = blocks.iter().position(|block| block.address >> 28 == cell);
            let start = (cell << 28) + below(1000) * GRAIN;
            let size = GRAIN << below(18);
            match found {
                None if growing => {
                    let id = (0..).map(BlockId).find(|&id| blocks.iter().all(|b| b.id != id));
                    let block = FreeBlock { id: id.unwrap(), address: start, offset: 0, size };
                    order.insert(&block);
                    blocks.push(block);
                }
                Some(at) if growing => {
                    let new = FreeBlock { address: start, size, ..blocks[at] };
                    order.change(&blocks[at], &new);
                    blocks[at] = new;
                }
                Some(at) => order.remove(&blocks.swap_remove(at)),
                None => {}
            }
            check(&order, &blocks, GRAIN << below(18), GRAIN << below(13));
        }
        for block in blocks {
            order.remove(&block);
        }
        order.prune();
        check(&order, &[], GRAIN, GRAIN);
        assert!(order.order.is_empty() && order.giants.is_empty());
    }

    #[test]
    fn a_block_that_leaves_the_stretch_of_its_leaf_moves() {
        let mut order = AddressOrder::default();
        let block = |id, address| FreeBlock { id: BlockId(id), address, offset: 0, size: 4096 };
        let mut blocks: Vec<_> = (0..64).map(|id| block(id, u64::from(id) << 20)).collect();
        blocks.iter().for_each(|block| order.insert(block));
        for address in [(31 << 20) + 8192, (33 << 20) + 8192, 8192, 40 << 30, 70 << 30] {
            let new = block(31, address);
            order.change(&blocks[31], &new);
            blocks[31] = new;
            check(&order, &blocks, 4096, GRAIN);
        }
    }
}
