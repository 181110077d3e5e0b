//! The blocks that tile the ranges of one pool of [`Expandable`](crate::expandable::Expandable), and
//! which of them are free or unmapped. Knows no driver.

use std::collections::BTreeSet;

use aquifer::driver::StreamId;

/// A remainder of at least this many bytes is cut off.
const REMAINDER_BYTES_MIN: u64 = 512;

/// A block's place in its pool's list, the same as long as it is handed out.
pub(crate) type BlockIndex = u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Handed out, or waiting for other streams.
    Used,
    Free,
    Unmapped,
}

#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: StreamId,
    pub(crate) state: State,
    /// The neighbours in the same range.
    previous: Option<BlockIndex>,
    pub(crate) next: Option<BlockIndex>,
    /// Where the range begins.
    range: u64,
    /// The further streams that use it.
    pub(crate) uses: Vec<StreamId>,
    /// How many events it waits for.
    pub(crate) events: usize,
}

pub(crate) struct Tiles {
    handle_bytes: u64,
    blocks: Vec<Block>,
    /// Places in `blocks` that hold none.
    vacant: Vec<BlockIndex>,
    /// By stream, bytes and address.
    free: BTreeSet<(StreamId, u64, u64, BlockIndex)>,
    /// By stream and address.
    unmapped: BTreeSet<(StreamId, u64, BlockIndex)>,
}

impl Tiles {
    pub(crate) fn new(handle_bytes: u64) -> Tiles {
        Tiles {
            handle_bytes,
            blocks: Vec::new(),
            vacant: Vec::new(),
            free: BTreeSet::new(),
            unmapped: BTreeSet::new(),
        }
    }

    pub(crate) fn block(&self, block: BlockIndex) -> &Block {
        &self.blocks[block as usize]
    }

    pub(crate) fn block_mut(&mut self, block: BlockIndex) -> &mut Block {
        &mut self.blocks[block as usize]
    }

    /// All free blocks, by stream, bytes and address.
    pub(crate) fn free_blocks(&self) -> Vec<BlockIndex> {
        self.free.iter().map(|key| key.3).collect()
    }

    /// The smallest free block that fits, the lowest of several. A block that can grow counts as the
    /// size to which it can: a larger one that can grow less goes before it.
    pub(crate) fn best_fit(&self, stream: StreamId, bytes: u64) -> Option<BlockIndex> {
        let fitting = self.free.range((stream, bytes, 0, 0)..);
        let mut fitting = fitting.take_while(|key| key.0 == stream).map(|key| key.3);
        let mut best = fitting.next()?;
        for next in fitting {
            let is_whole = self.block(best).previous.or(self.block(best).next).is_none();
            if is_whole || self.reach(next) >= self.reach(best) {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// The bytes of a block with the unmapped ones behind it.
    fn reach(&self, block: BlockIndex) -> u64 {
        let found = self.block(block);
        let behind = found.next.map(|next| self.block(next));
        let behind = behind.filter(|next| next.state == State::Unmapped);
        found.bytes + behind.map_or(0, |next| next.bytes)
    }

    /// The first block of the lowest place that begins with an unmapped block, or with the free one
    /// before it, and has room for `bytes` before the next block in use.
    pub(crate) fn place(&self, stream: StreamId, bytes: u64) -> Option<BlockIndex> {
        let unmapped = self.unmapped.range((stream, 0, 0)..).take_while(|key| key.0 == stream);
        let mut begins = unmapped
            .map(|key| self.in_state(self.block(key.2).previous, State::Free).unwrap_or(key.2));
        begins.find(|begin| self.has_room(*begin, bytes))
    }

    fn has_room(&self, begin: BlockIndex, bytes: u64) -> bool {
        let (mut room, mut at) = (0, Some(begin));
        while let Some(block) = at.map(|at| self.block(at)).filter(|b| b.state != State::Used) {
            room += block.bytes;
            if room >= bytes {
                return true;
            }
            at = block.next;
        }
        false
    }

    /// Takes the first `bytes` of a free block and leaves the rest free.
    pub(crate) fn take(&mut self, block: BlockIndex, bytes: u64) {
        self.remove(block);
        if self.block(block).bytes - bytes >= REMAINDER_BYTES_MIN {
            let rest = self.cut(block, bytes);
            self.insert(rest);
        }
        self.block_mut(block).state = State::Used;
    }

    /// Makes a block in use a free one.
    pub(crate) fn give(&mut self, block: BlockIndex) {
        self.settle(block, State::Free);
    }

    /// An unmapped block that is a whole new range.
    pub(crate) fn enter_range(&mut self, range: u64, bytes: u64, stream: StreamId) -> BlockIndex {
        let block = self.enter(Block {
            address: range,
            bytes,
            stream,
            state: State::Unmapped,
            previous: None,
            next: None,
            range,
            uses: Vec::new(),
            events: 0,
        });
        self.insert(block);
        block
    }

    /// The first `bytes` of an unmapped block are mapped now: it becomes a free block of these and its
    /// free neighbours.
    pub(crate) fn set_mapped(&mut self, block: BlockIndex, bytes: u64) {
        self.remove(block);
        if self.block(block).bytes > bytes {
            let rest = self.cut(block, bytes);
            self.insert(rest);
        }
        self.settle(block, State::Free);
    }

    /// The addresses and bytes of the handles that lie wholly in a block.
    pub(crate) fn whole_handles(&self, block: BlockIndex) -> Option<(u64, u64)> {
        let Block { address, bytes, range, .. } = *self.block(block);
        let begin = (address - range).next_multiple_of(self.handle_bytes);
        let end = address + bytes - range;
        let whole = (end - end % self.handle_bytes).checked_sub(begin)?;
        (whole > 0).then_some((range + begin, whole))
    }

    /// These bytes of a free block are mapped no longer. The beginning of its range if all of that is
    /// unmapped now: then it is forgotten.
    pub(crate) fn set_unmapped(
        &mut self,
        mut block: BlockIndex,
        address: u64,
        bytes: u64,
    ) -> Option<u64> {
        self.remove(block);
        if self.block(block).address < address {
            let before = block;
            block = self.cut(before, address - self.block(before).address);
            self.insert(before);
        }
        if self.block(block).bytes > bytes {
            let behind = self.cut(block, bytes);
            self.insert(behind);
        }
        self.settle(block, State::Unmapped);
        let Block { range, previous: None, next: None, .. } = *self.block(block) else {
            return None;
        };
        self.remove(block);
        self.vacant.push(block);
        Some(range)
    }

    /// Merges a block that is in no index with neighbours of its new state, and enters it in an index.
    fn settle(&mut self, block: BlockIndex, state: State) {
        self.block_mut(block).state = state;
        if let Some(previous) = self.in_state(self.block(block).previous, state) {
            self.remove(previous);
            let Block { address, bytes, previous: before, .. } = *self.block(previous);
            let grown = self.block_mut(block);
            (grown.address, grown.bytes, grown.previous) = (address, grown.bytes + bytes, before);
            if let Some(before) = before {
                self.block_mut(before).next = Some(block);
            }
            self.vacant.push(previous);
        }
        if let Some(next) = self.in_state(self.block(block).next, state) {
            self.remove(next);
            let Block { bytes, next: behind, .. } = *self.block(next);
            let grown = self.block_mut(block);
            (grown.bytes, grown.next) = (grown.bytes + bytes, behind);
            if let Some(behind) = behind {
                self.block_mut(behind).previous = Some(block);
            }
            self.vacant.push(next);
        }
        self.insert(block);
    }

    fn in_state(&self, block: Option<BlockIndex>, state: State) -> Option<BlockIndex> {
        block.filter(|block| self.block(*block).state == state)
    }

    /// Cuts a block that is in no index behind `bytes`; the part behind, of the same state and in no
    /// index.
    fn cut(&mut self, block: BlockIndex, bytes: u64) -> BlockIndex {
        let front = self.block(block);
        let behind = Block {
            address: front.address + bytes,
            bytes: front.bytes - bytes,
            previous: Some(block),
            ..front.clone()
        };
        let next = behind.next;
        let behind = self.enter(behind);
        let front = self.block_mut(block);
        (front.bytes, front.next) = (bytes, Some(behind));
        if let Some(next) = next {
            self.block_mut(next).previous = Some(behind);
        }
        behind
    }

    fn enter(&mut self, block: Block) -> BlockIndex {
        match self.vacant.pop() {
            Some(vacant) => {
                *self.block_mut(vacant) = block;
                vacant
            }
            None => {
                self.blocks.push(block);
                BlockIndex::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks")
            }
        }
    }

    fn insert(&mut self, block: BlockIndex) {
        let Block { address, bytes, stream, state, .. } = *self.block(block);
        match state {
            State::Used => {}
            State::Free => drop(self.free.insert((stream, bytes, address, block))),
            State::Unmapped => drop(self.unmapped.insert((stream, address, block))),
        }
    }

    fn remove(&mut self, block: BlockIndex) {
        let Block { address, bytes, stream, state, .. } = *self.block(block);
        match state {
            State::Used => {}
            State::Free => drop(self.free.remove(&(stream, bytes, address, block))),
            State::Unmapped => drop(self.unmapped.remove(&(stream, address, block))),
        }
    }
}
