//! Bins: lists of free blocks of similar size, last in, first out. Knows no order of addresses; the
//! lists are threaded through a table by id.
use crate::bin_set::{BINS, BinSet, bin_of};
use crate::index::Index;
use crate::sizing::round_to_grain;
use crate::{Band, BlockId, Cut, FreeBlock, Freed, GRAIN, Place, Policy, Request, Sizing};

/// Blocks looked at in one bin before the next larger one is tried. In a bin of larger sizes the
/// first one fits unless the alignment is in the way.
const LOOKS: usize = 4;
/// No block: the end of a list.
const NONE: u32 = u32::MAX;

/// Takes a free block of the smallest bin that fits, the one most recently put there, from its front.
///
/// Finds a free block whenever one fits; which of similar size depends on what was freed last, so
/// that ties do not go to the lower address. Every step takes constant time, except that all blocks
/// of fitting bins are looked at before the answer is to grow.
#[derive(Debug)]
pub struct Bins {
    sizing: Sizing,
    free: Lists,
}

impl Bins {
    /// A policy with no free blocks.
    pub fn new(sizing: Sizing) -> Bins {
        Bins { sizing, free: Lists::default() }
    }
}

impl Policy for Bins {
    #[inline]
    fn band(&self, size: u64) -> Band {
        self.sizing.band(round_to_grain(size))
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        match self.free.find(request) {
            Some((block, skip)) => Place::Reuse { block, skip, take: request.size },
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

/// One doubly linked list per bin.
#[derive(Debug)]
struct Lists {
    /// By bin: the first block, or [`NONE`].
    heads: [u32; BINS],
    filled: BinSet,
    /// By id. Stale for ids that are not free.
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    address: u64,
    size: u64,
    /// The neighbours in the list, or [`NONE`]; `previous` of a list's first block is not read.
    previous: u32,
    next: u32,
}

impl Default for Lists {
    fn default() -> Self {
        Lists { heads: [NONE; BINS], filled: BinSet::default(), nodes: Vec::new() }
    }
}

impl Lists {
    /// A fit, and the bytes to skip.
    #[inline]
    fn find(&self, request: &Request) -> Option<(BlockId, u64)> {
        if request.align > GRAIN {
            return self.find_aligned(request, LOOKS);
        }
        let bin = bin_of(request.size);
        let mut id = self.heads[bin];
        for _ in 0..LOOKS {
            let Some(node) = self.nodes.get(id as usize) else { break };
            if node.size >= request.size {
                return Some((BlockId(id), 0));
            }
            id = node.next;
        }
        match self.filled.above(bin) {
            Some(larger) => Some((BlockId(self.heads[larger]), 0)),
            None => self.find_aligned(request, usize::MAX),
        }
    }

    /// A fit, and the bytes to skip, among the first `looks` blocks of every bin that may have one;
    /// else among all blocks.
    #[inline(never)]
    fn find_aligned(&self, request: &Request, looks: usize) -> Option<(BlockId, u64)> {
        let own = bin_of(request.size);
        let larger = std::iter::successors(self.filled.above(own), |&bin| self.filled.above(bin));
        for bin in std::iter::once(own).chain(larger) {
            let fit = self.list(bin).take(looks).find(|b| b.fits(request.size, request.align));
            if let Some(block) = fit {
                return Some((block.id, block.skip_to(request.align)));
            }
        }
        if looks < usize::MAX { self.find_aligned(request, usize::MAX) } else { None }
    }

    fn list(&self, bin: usize) -> impl Iterator<Item = FreeBlock> {
        let block = |id| {
            let Node { address, size, .. } = *self.nodes.get(id as usize)?;
            Some(FreeBlock { id: BlockId(id), address, offset: 0, size })
        };
        let next = move |last: &FreeBlock| block(self.nodes[last.id.index()].next);
        std::iter::successors(block(self.heads[bin]), next)
    }

    #[inline]
    fn link(&mut self, block: &FreeBlock, bin: usize) {
        let id = block.id.0;
        let next = std::mem::replace(&mut self.heads[bin], id);
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = id;
        }
        let node = Node { address: block.address, size: block.size, previous: NONE, next };
        self.nodes[id as usize] = node;
        self.filled.insert(bin);
    }

    #[inline]
    fn unlink(&mut self, id: BlockId, bin: usize) {
        let Node { previous, next, .. } = self.nodes[id.index()];
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = previous;
        }
        if self.heads[bin] != id.0 {
            self.nodes[previous as usize].next = next;
            return;
        }
        self.heads[bin] = next;
        if next == NONE {
            self.filled.remove(bin);
        }
    }
}

impl Index for Lists {
    #[inline]
    fn insert(&mut self, block: &FreeBlock) {
        if block.id.index() >= self.nodes.len() {
            self.nodes.resize(block.id.index() + 1, Node::default());
        }
        self.link(block, bin_of(block.size));
    }

    #[inline]
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock) {
        let (from, to) = (bin_of(old.size), bin_of(new.size));
        if from == to {
            let node = &mut self.nodes[new.id.index()];
            (node.address, node.size) = (new.address, new.size);
        } else {
            self.unlink(old.id, from);
            self.link(new, to);
        }
    }

    #[inline]
    fn remove(&mut self, block: &FreeBlock) {
        self.unlink(block.id, bin_of(block.size));
    }
}
