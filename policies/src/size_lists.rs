//! Free blocks in lists of similar size, last in, first out. Knows no policy: a search names the least
//! size and what else a block must have.
use crate::bin_set::{BINS, BinSet, bin_of};
use crate::index::Index;
use crate::{BlockId, FreeBlock};

/// No block: the end of a list.
const NONE: u32 = u32::MAX;

/// One doubly linked list per bin, threaded through a table by id.
///
/// Updates take constant time. The list of a size holds smaller and larger blocks, those of the bins
/// above only larger ones.
#[derive(Clone, Debug)]
pub(crate) struct SizeLists {
    /// By bin: the first block, or [`NONE`].
    heads: [u32; BINS],
    filled: BinSet,
    /// By id. Stale for ids that are not free.
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    address: u64,
    offset: u64,
    size: u64,
    /// The neighbours in the list, or [`NONE`]; `previous` of a list's first block is not read.
    previous: u32,
    next: u32,
}

impl Default for SizeLists {
    fn default() -> Self {
        SizeLists { heads: [NONE; BINS], filled: BinSet::default(), nodes: Vec::new() }
    }
}

impl SizeLists {
    /// The smallest block of at least `size` bytes that `fits`, at the lowest address among equals.
    /// Looks at all blocks of the first bin that holds one.
    #[inline]
    pub(crate) fn smallest(
        &self,
        size: u64,
        fits: impl Fn(&FreeBlock) -> bool,
    ) -> Option<FreeBlock> {
        let mut bin = bin_of(size);
        loop {
            let mut best: Option<FreeBlock> = None;
            for block in self.list(bin) {
                let less = best.is_none_or(|b| (block.size, block.address) < (b.size, b.address));
                if less && block.size >= size && fits(&block) {
                    best = Some(block);
                }
            }
            if best.is_some() {
                return best;
            }
            bin = self.filled.above(bin)?;
        }
    }

    /// A block of at least `size` bytes, from the first `looks` of its own bin or the first of a
    /// larger one.
    #[inline]
    pub(crate) fn newest(&self, size: u64, looks: usize) -> Option<BlockId> {
        let bin = bin_of(size);
        let mut id = self.heads[bin];
        for _ in 0..looks {
            let Some(node) = self.nodes.get(id as usize) else { break };
            if node.size >= size {
                return Some(BlockId(id));
            }
            id = node.next;
        }
        self.filled.above(bin).map(|bin| BlockId(self.heads[bin]))
    }

    /// The blocks of a bin, the newest first.
    #[inline]
    fn list(&self, bin: usize) -> impl Iterator<Item = FreeBlock> {
        let mut next = self.heads[bin];
        std::iter::from_fn(move || {
            let node = self.nodes.get(next as usize)?;
            let id = BlockId(std::mem::replace(&mut next, node.next));
            let Node { address, offset, size, .. } = *node;
            Some(FreeBlock { id, address, offset, size })
        })
    }

    #[cold]
    fn make_nodes(&mut self, id: BlockId) {
        self.nodes.resize(id.index() + 1, Node::default());
    }

    #[inline]
    fn link(&mut self, block: &FreeBlock, bin: usize) {
        let FreeBlock { id: BlockId(id), address, offset, size } = *block;
        let next = std::mem::replace(&mut self.heads[bin], id);
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = id;
        }
        self.nodes[id as usize] = Node { address, offset, size, previous: NONE, next };
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

impl Index for SizeLists {
    #[inline]
    fn insert(&mut self, block: &FreeBlock) {
        if block.id.index() >= self.nodes.len() {
            self.make_nodes(block.id);
        }
        self.link(block, bin_of(block.size));
    }

    #[inline(always)]
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock) {
        let (from, to) = (bin_of(old.size), bin_of(new.size));
        if from == to {
            let FreeBlock { address, offset, size, .. } = *new;
            let node = &mut self.nodes[new.id.index()];
            *node = Node { address, offset, size, ..*node };
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
