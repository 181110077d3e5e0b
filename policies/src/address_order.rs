//! Free blocks in order of address, searched for the first that is large enough. Knows
//! no policy and no segment: only disjoint ranges with ids.
//!
//! Blocks lie in leaves of up to 32, unordered inside a leaf, so that a search compares 32 sizes with
//! a few vector instructions and an update writes one slot. Leaves are ordered by the addresses they
//! cover. Per leaf there is an upper bound of its largest block; only a search that fails in the leaf
//! mends it, so that shrinking a block costs nothing.
//!
//! Leaves hold numbers of 32 bits. Addresses are therefore taken within windows of 32 GiB that no
//! leaf crosses, and sizes stop at 1 TiB: blocks of 512 GiB and more are also kept in a list of their
//! own, where requests of that size are looked up exactly.
use std::cell::Cell;

use crate::index::Index;
use crate::{BlockId, FreeBlock, GRAIN};

/// Blocks per leaf.
const LEAF_BLOCKS: usize = 32;
/// Bits of a slot number.
const SLOT_BITS: u32 = 5;
/// Slots compared in one step of a scan: two vectors of 128 bits.
const LANES: usize = 8;
/// Bits of an address within its window, in grains: 32 GiB.
const WINDOW_BITS: u32 = 31 - SLOT_BITS;
/// Grains of a window.
const WINDOW: u64 = 1 << WINDOW_BITS;
/// Sizes from here on are looked up in `giants`, in bytes. Half of what a leaf can say, so that a
/// smaller size plus any alignment stays within 31 bits of grains.
const GIANT: u64 = (1 << 30) * GRAIN;
/// Up to this many blocks are compared one by one: a vector read of a slot that was just written
/// waits until the write has left the store buffer.
const FEW: u32 = 3;
/// A leaf with fewer blocks is merged with a neighbour...
const SPARSE: u32 = LEAF_BLOCKS as u32 / 4;
/// ...if both together have at most this many, which leaves room before the next split.
const MERGED_MAX: u32 = LEAF_BLOCKS as u32 * 3 / 4;

/// Free blocks by address.
///
/// Finding the lowest that fits takes one look at a bound per leaf and one scan per leaf
/// that may hold a fit. Updates take constant time except where a leaf is split or merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressOrder {
    leaves: Vec<Leaf>,
    /// Leaves not in use.
    spare: Vec<u32>,
    /// The leaves in use by ascending address, and the first grain that each covers.
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

/// What a block must have, in grains.
#[derive(Clone, Copy)]
struct Need {
    size: i32,
    /// The alignment less one.
    mask: i32,
}

/// Up to [`LEAF_BLOCKS`] blocks, in no order, whose starts lie in `low..high` (in grains), a part of
/// one window. The leaves of a window cover all of it.
#[derive(Clone, Debug)]
struct Leaf {
    /// Grains, at most `i32::MAX`; 0 beyond `len`, so that empty slots never fit.
    sizes: [i32; LEAF_BLOCKS],
    /// Sign bit, then the start within the window in grains, then the slot: negative numbers whose
    /// order is that of the addresses, and whose minimum names its slot.
    keys: [i32; LEAF_BLOCKS],
    ids: [BlockId; LEAF_BLOCKS],
    /// At least the largest size in here.
    bound: Cell<i32>,
    len: u32,
    /// Index of this leaf in `order`.
    position: u32,
    low: u64,
    high: u64,
}

impl AddressOrder {
    /// The lowest block that holds `size` bytes at a multiple of `align`, both at least 512.
    #[inline]
    pub(crate) fn lowest(&self, size: u64, align: u64) -> Option<Spot> {
        if align > GRAIN || size >= GIANT {
            return self.lowest_aligned(size, align);
        }
        let need = Need::new(size, align);
        let id = self.first(need, self.order.iter(), Leaf::lowest::<false>)?;
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

    /// The free block of an id. Its offset is not known here and stays 0.
    fn block(&self, id: BlockId) -> FreeBlock {
        let Entry { leaf, slot } = self.entries[id.index()];
        let leaf = &self.leaves[leaf as usize];
        let start = (leaf.low & !(WINDOW - 1)) | u64::from(start_of(leaf.keys[slot as usize]));
        let mut size = leaf.sizes[slot as usize] as u64 * GRAIN;
        if size >= GIANT {
            let giant = self.giants.iter().find(|block| block.id == id);
            size = giant.expect("a block of at least GIANT bytes is listed").size;
        }
        FreeBlock { id, address: start * GRAIN, offset: 0, size }
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
            if leaf.bound.get() < need.size {
                continue;
            }
            if let Some(id) = scan(leaf, need) {
                return Some(id);
            }
            leaf.mend();
        }
        None
    }

    /// Forgets empty leaves. Called when a segment leaves, so that windows without segments cost
    /// nothing; between, an empty leaf is kept for the next block.
    pub(crate) fn prune(&mut self) {
        for position in (0..self.order.len()).rev() {
            let leaf = &self.leaves[self.order[position] as usize];
            let (low, high) = (leaf.low, leaf.high);
            if leaf.len == 0 && low % WINDOW == 0 && high % WINDOW == 0 {
                self.close(position);
            }
        }
    }

    /// The leaf that covers a start, with room for a block.
    fn leaf_for(&mut self, start: u64) -> u32 {
        let after = self.lows.partition_point(|&low| low <= start);
        if after > 0 {
            let leaf = self.order[after - 1];
            if self.leaves[leaf as usize].covers(start) {
                if (self.leaves[leaf as usize].len as usize) < LEAF_BLOCKS {
                    return leaf;
                }
                return self.split(leaf, start);
            }
        }
        let low = start & !(WINDOW - 1);
        self.open(after, low, low + WINDOW)
    }

    /// Parts a full leaf in two halves and answers the one that covers `start`.
    #[cold]
    fn split(&mut self, leaf: u32, start: u64) -> u32 {
        let full = self.leaves[leaf as usize].clone();
        let mut keys = full.keys;
        keys.sort_unstable();
        let middle = start_of(keys[LEAF_BLOCKS / 2]);
        let border = (full.low & !(WINDOW - 1)) | u64::from(middle);
        let upper = self.open(full.position as usize + 1, border, full.high);
        self.leaves[leaf as usize].high = border;
        self.leaves[leaf as usize].clear();
        for slot in 0..LEAF_BLOCKS {
            let start = start_of(full.keys[slot]);
            let target = if start < middle { leaf } else { upper };
            self.put(target, full.ids[slot], start, full.sizes[slot]);
        }
        if start < border { leaf } else { upper }
    }

    /// Merges a sparse leaf with a neighbour in the same window, if both fit in one with room left.
    fn join(&mut self, leaf: u32) {
        let Leaf { position, low, high, len, .. } = self.leaves[leaf as usize];
        let position = position as usize;
        let joins = |other: &Leaf| len == 0 || len + other.len <= MERGED_MAX;
        if position > 0 && low % WINDOW != 0 && joins(self.leaf_at(position - 1)) {
            self.pour(position, position - 1);
        } else if high % WINDOW != 0 && joins(self.leaf_at(position + 1)) {
            self.pour(position, position + 1);
        }
    }

    fn leaf_at(&self, position: usize) -> &Leaf {
        &self.leaves[self.order[position] as usize]
    }

    /// Moves all blocks of one leaf to its neighbour, which then covers both ranges.
    #[cold]
    fn pour(&mut self, from: usize, to: usize) {
        let (source, target) = (self.leaf_at(from).clone(), self.order[to]);
        let leaf = &mut self.leaves[target as usize];
        leaf.low = leaf.low.min(source.low);
        leaf.high = leaf.high.max(source.high);
        self.lows[to] = leaf.low;
        for slot in 0..source.len as usize {
            self.put(target, source.ids[slot], start_of(source.keys[slot]), source.sizes[slot]);
        }
        self.close(from);
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
    fn put(&mut self, leaf: u32, id: BlockId, start: u32, size: i32) {
        let target = &mut self.leaves[leaf as usize];
        let slot = target.len;
        target.len += 1;
        target.ids[slot as usize] = id;
        target.set(slot, start, size);
        self.entries[id.index()] = Entry { leaf, slot };
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
            self.entries.resize(block.id.index() + 1, Entry::default());
        }
        if block.size >= GIANT {
            self.giants.push(*block);
        }
        let start = block.address / GRAIN;
        let leaf = self.leaf_for(start);
        self.put(leaf, block.id, in_window(start), grains(block.size));
    }

    #[inline]
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock) {
        let start = new.address / GRAIN;
        let Entry { leaf, slot } = self.entries[new.id.index()];
        let leaf = &mut self.leaves[leaf as usize];
        if leaf.covers(start) && (old.size | new.size) < GIANT {
            leaf.set(slot, in_window(start), (new.size / GRAIN) as i32);
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
        leaf.len -= 1;
        let last = leaf.len as usize % LEAF_BLOCKS;
        let moved = leaf.ids[last];
        leaf.ids[slot as usize] = moved;
        leaf.set(slot, start_of(leaf.keys[last]), leaf.sizes[last]);
        leaf.sizes[last] = 0;
        let len = leaf.len;
        self.entries[moved.index()].slot = slot;
        if len < SPARSE && self.order.len() > 1 {
            self.join(index);
        }
    }
}

impl Leaf {
    fn empty(low: u64, high: u64) -> Leaf {
        Leaf {
            sizes: [0; LEAF_BLOCKS],
            keys: [0; LEAF_BLOCKS],
            ids: [BlockId(0); LEAF_BLOCKS],
            bound: Cell::new(0),
            len: 0,
            position: 0,
            low,
            high,
        }
    }

    #[inline]
    fn covers(&self, start: u64) -> bool {
        start.wrapping_sub(self.low) < self.high - self.low
    }

    #[inline]
    fn set(&mut self, slot: u32, start: u32, size: i32) {
        let index = slot as usize % LEAF_BLOCKS;
        self.sizes[index] = size;
        self.keys[index] = key(start, slot);
        let bound = self.bound.get_mut();
        *bound = size.max(*bound);
    }

    fn clear(&mut self) {
        self.len = 0;
        self.sizes = [0; LEAF_BLOCKS];
        self.bound.set(0);
    }

    /// Makes the bound exact.
    fn mend(&self) {
        self.bound.set(self.sizes.into_iter().fold(0, i32::max));
    }

    /// The lowest block that fits. Written for the compiler to turn into vector instructions: no
    /// branch, whole steps of [`LANES`] slots.
    #[inline]
    fn lowest<const ALIGNED: bool>(&self, need: Need) -> Option<BlockId> {
        let key_of = |size, key| if need.met::<ALIGNED>(size, key) { key } else { 0 };
        let mut best = 0;
        if self.len <= FEW {
            for slot in 0..self.len.min(FEW) as usize {
                best = best.min(key_of(self.sizes[slot], self.keys[slot]));
            }
        } else {
            let mut bests = [0; LANES];
            for (sizes, keys) in self.steps() {
                for lane in 0..LANES {
                    bests[lane] = bests[lane].min(key_of(sizes[lane], keys[lane]));
                }
            }
            best = bests.into_iter().fold(0, i32::min);
        }
        (best < 0).then(|| self.ids[slot_of(best)])
    }

    /// The highest block that fits.
    fn highest(&self, need: Need) -> Option<BlockId> {
        let mut bests = [-1; LANES];
        for (sizes, keys) in self.steps() {
            for lane in 0..LANES {
                let fits = need.met::<true>(sizes[lane], keys[lane]);
                bests[lane] = bests[lane].max(if fits { keys[lane] & i32::MAX } else { -1 });
            }
        }
        let best = bests.into_iter().fold(-1, i32::max);
        (best >= 0).then(|| self.ids[slot_of(best)])
    }

    /// Sizes and keys, [`LANES`] at a time, as far as the leaf is filled.
    #[inline]
    fn steps(&self) -> impl Iterator<Item = (&[i32; LANES], &[i32; LANES])> {
        let (sizes, keys) = (self.sizes.as_chunks().0, self.keys.as_chunks().0);
        sizes.iter().zip(keys).take((self.len as usize).div_ceil(LANES))
    }
}

impl Need {
    #[inline]
    fn new(size: u64, align: u64) -> Need {
        debug_assert!(align.is_power_of_two() && align <= GIANT);
        Need { size: grains(size.max(GRAIN)), mask: (align / GRAIN).max(1) as i32 - 1 }
    }

    #[inline]
    fn met<const ALIGNED: bool>(self, size: i32, key: i32) -> bool {
        if ALIGNED {
            let skip = (key >> SLOT_BITS).wrapping_neg() & self.mask;
            size >= self.size + skip
        } else {
            size >= self.size
        }
    }
}

#[inline]
fn key(start: u32, slot: u32) -> i32 {
    (1 << 31 | start << SLOT_BITS | slot) as i32
}

#[inline]
fn slot_of(key: i32) -> usize {
    key as usize % LEAF_BLOCKS
}

/// The start within the window, in grains.
#[inline]
fn start_of(key: i32) -> u32 {
    (key & i32::MAX) as u32 >> SLOT_BITS
}

#[inline]
fn in_window(start: u64) -> u32 {
    (start % WINDOW) as u32
}

#[inline]
fn grains(size: u64) -> i32 {
    i32::try_from(size / GRAIN).unwrap_or(i32::MAX)
}
