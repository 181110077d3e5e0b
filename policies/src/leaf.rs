//! Up to 32 free blocks of one stretch of addresses, compared all at once. Knows neither its
//! neighbours nor what is searched for beyond a size and an alignment.
//!
//! A leaf holds numbers of 32 bits, of which four fit in a vector instruction that every x86-64 and
//! aarch64 has. Addresses therefore count within windows of 32 GiB that no leaf crosses, and sizes
//! stop at 1 TiB.
use std::cell::Cell;

use crate::{BlockId, GRAIN};

/// Blocks per leaf.
pub(crate) const LEAF_BLOCKS: usize = 32;
/// Bits of a slot number.
const SLOT_BITS: u32 = 5;
/// Grains of a window: what remains of 31 bits.
pub(crate) const WINDOW: u64 = 1 << (31 - SLOT_BITS);
/// Slots compared in one step of a scan: two vectors of 128 bits.
const LANES: usize = 8;
/// Up to this many blocks are compared one by one: a vector read of a slot that was just written
/// waits until the write has left the store buffer.
const FEW: u32 = 3;

/// Free blocks, in no order, whose starts lie in `low..high` (in grains), a part of one window.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// Grains, at most `i32::MAX`; 0 beyond `len`, so that empty slots never fit.
    sizes: [i32; LEAF_BLOCKS],
    /// Sign bit, then the start within the window in grains, then the slot: negative numbers whose
    /// order is that of the addresses, and whose minimum names its slot.
    keys: [i32; LEAF_BLOCKS],
    ids: [BlockId; LEAF_BLOCKS],
    /// At least the largest size in here. Raised by what comes, lowered only after a failed scan.
    bound: Cell<i32>,
    len: u32,
    /// Where the owner keeps this leaf in its order.
    pub(crate) position: u32,
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// What a block must have, in grains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    size: i32,
    /// The alignment less one.
    mask: i32,
}

impl Need {
    /// From bytes, both at least 512; their sum under 1 TiB.
    #[inline]
    pub(crate) fn new(size: u64, align: u64) -> Need {
        debug_assert!(align.is_power_of_two() && size + align < (1 << 31) * GRAIN);
        Need { size: (size / GRAIN).max(1) as i32, mask: (align / GRAIN) as i32 - 1 }
    }

    #[inline]
    fn met<const ALIGNED: bool>(self, size: i32, key: i32) -> bool {
        let skip = if ALIGNED { (key >> SLOT_BITS).wrapping_neg() & self.mask } else { 0 };
        size >= self.size + skip
    }
}

/// A size in grains as a leaf holds it.
#[inline]
pub(crate) fn grains(size: u64) -> i32 {
    i32::try_from(size / GRAIN).unwrap_or(i32::MAX)
}

impl Leaf {
    pub(crate) fn empty(low: u64, high: u64) -> Leaf {
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
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn covers(&self, start: u64) -> bool {
        start.wrapping_sub(self.low) < self.high - self.low
    }

    /// Adds a block and answers its slot. There must be room.
    #[inline]
    pub(crate) fn push(&mut self, id: BlockId, start: u64, size: i32) -> u32 {
        let slot = self.len;
        self.len += 1;
        self.ids[slot as usize] = id;
        self.set(slot, start, size);
        slot
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: u32, start: u64, size: i32) {
        let index = slot as usize % LEAF_BLOCKS;
        self.sizes[index] = size;
        self.keys[index] = key((start % WINDOW) as u32, slot);
        let bound = self.bound.get_mut();
        *bound = size.max(*bound);
    }

    /// Empties a slot, moves the last block into it and answers that block's id.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> BlockId {
        self.len -= 1;
        let last = self.len as usize % LEAF_BLOCKS;
        let index = slot as usize % LEAF_BLOCKS;
        self.ids[index] = self.ids[last];
        self.sizes[index] = self.sizes[last];
        self.keys[index] = key(start_of(self.keys[last]), slot);
        self.sizes[last] = 0;
        self.ids[index]
    }

    /// Id, start and size of a slot, in grains.
    pub(crate) fn block(&self, slot: usize) -> (BlockId, u64, i32) {
        let start = self.low / WINDOW * WINDOW + u64::from(start_of(self.keys[slot]));
        (self.ids[slot], start, self.sizes[slot])
    }

    /// The start of the block in the middle of a full leaf.
    pub(crate) fn middle(&self) -> u64 {
        let mut starts = std::array::from_fn::<_, LEAF_BLOCKS, _>(|slot| self.block(slot).1);
        starts.sort_unstable();
        starts[LEAF_BLOCKS / 2]
    }

    /// Whether a block may fit: false only if none does.
    #[inline]
    pub(crate) fn may_fit(&self, need: Need) -> bool {
        self.bound.get() >= need.size
    }

    /// Makes [`Leaf::may_fit`] exact for sizes.
    pub(crate) fn mend(&self) {
        self.bound.set(self.sizes.into_iter().fold(0, i32::max));
    }

    /// The lowest block that fits. Written for the compiler to turn into vector instructions: no
    /// branch, whole steps of [`LANES`] slots.
    #[inline]
    pub(crate) fn lowest<const ALIGNED: bool>(&self, need: Need) -> Option<BlockId> {
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
    pub(crate) fn highest(&self, need: Need) -> Option<BlockId> {
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

    /// The slot of the last block that starts at `start` (in grains, at least `low`) or before.
    #[inline]
    pub(crate) fn last_up_to(&self, start: u64) -> Option<usize> {
        let most = if start < self.high {
            key((start % WINDOW) as u32, LEAF_BLOCKS as u32 - 1)
        } else {
            -1
        };
        let keys = self.keys[..self.len()].iter();
        keys.copied().filter(|&key| key <= most).max().map(slot_of)
    }

    /// Sizes and keys, [`LANES`] at a time, as far as the leaf is filled.
    #[inline]
    fn steps(&self) -> impl Iterator<Item = (&[i32; LANES], &[i32; LANES])> {
        let (sizes, keys) = (self.sizes.as_chunks().0, self.keys.as_chunks().0);
        sizes.iter().zip(keys).take(self.len().div_ceil(LANES))
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
