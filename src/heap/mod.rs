//! Who owns which range: segments, the blocks that tile them, and their neighbours.
//!
//! Integers only. It knows no policy and no driver: it is told what to do, checks that the books allow
//! it, and says what came of it in the words of a policy ([`Cut`], [`Freed`]).
mod audit;

use aquifer_policies::{BlockId, Cut, FreeBlock, Freed, GRAIN};

/// No block, no segment.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The record is not in use.
    Vacant,
    Free,
    /// Handed out, in the front cache, or waiting for events: not the policy's.
    Used,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    size: u64,
    /// Neighbours inside the segment.
    prev: u32,
    next: u32,
    /// Address of the segment.
    start: u64,
    segment: u32,
    state: State,
    band: u8,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    /// 0 where the record is not in use.
    size: u64,
    first: u32,
    band: u8,
}

/// A segment as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentView {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) band: u8,
    /// Its only block, where it is wholly free.
    pub(crate) idle: Option<BlockId>,
}

/// A block as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockView {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) band: u8,
    pub(crate) free: bool,
}

/// What is wrong with a policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    NotFree,
    OtherBand,
    OffGrain,
    Misaligned,
    TooShort,
    Overrun,
}

impl Wrong {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Wrong::NotFree => "named a block that is not free",
            Wrong::OtherBand => "named a block of another band",
            Wrong::OffGrain => "answered with bytes that are no multiple of 512",
            Wrong::Misaligned => "answered with an address that is not aligned as asked",
            Wrong::TooShort => "answered with fewer bytes than asked",
            Wrong::Overrun => "answered with more bytes than the block has",
        }
    }
}

/// Where to cut: a policy's answer with what it must satisfy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutAt {
    pub(crate) block: BlockId,
    pub(crate) skip: u64,
    pub(crate) take: u64,
    pub(crate) size: u64,
    pub(crate) align: u64,
    pub(crate) band: u8,
}

#[derive(Default)]
pub(crate) struct Heap {
    blocks: Vec<Block>,
    vacant_blocks: Vec<u32>,
    segments: Vec<Segment>,
    vacant_segments: Vec<u32>,
    reserved_bytes: u64,
    idle_bytes: u64,
    idle_segments: u32,
}

impl Heap {
    /// Bytes in segments.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Bytes in wholly free segments.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.idle_bytes
    }

    /// Enters a segment, wholly free.
    pub(crate) fn add_segment(&mut self, address: u64, size: u64, band: u8) -> Freed {
        debug_assert!(size > 0 && size % GRAIN == 0 && address % GRAIN == 0);
        let segment = self.vacant_segments.pop().unwrap_or_else(|| {
            self.segments.push(Segment { address: 0, size: 0, first: NONE, band: 0 });
            self.segments.len() as u32 - 1
        });
        let (prev, next, state) = (NONE, NONE, State::Free);
        let block = Block { address, size, prev, next, start: address, segment, state, band };
        let id = self.enter(block);
        self.segments[segment as usize] = Segment { address, size, first: id, band };
        self.reserved_bytes += size;
        self.idle_bytes += size;
        self.idle_segments += 1;
        let result = self.view(id);
        Freed { freed: result, before: None, after: None, result }
    }

    /// Takes out the segment that free block `id` fills wholly; `None` where it does not.
    pub(crate) fn remove_segment(&mut self, id: BlockId) -> Option<FreeBlock> {
        let block = *self.blocks.get(id.index())?;
        if block.state != State::Free || block.prev != NONE || block.next != NONE {
            return None;
        }
        let view = self.view(id.0);
        self.reserved_bytes -= block.size;
        self.idle_bytes -= block.size;
        self.idle_segments -= 1;
        self.segments[block.segment as usize].size = 0;
        self.vacant_segments.push(block.segment);
        self.vacate(id.0);
        Some(view)
    }

    /// Cuts a used block out of a free one, if the answer is right; else nothing changes.
    #[inline]
    pub(crate) fn cut(&mut self, at: CutAt) -> Result<Cut, Wrong> {
        let id = at.block.0;
        let Some(&block) = self.blocks.get(id as usize) else { return Err(Wrong::NotFree) };
        Self::validate(&block, &at)?;
        let from = self.view(id);
        if block.prev == NONE && block.next == NONE {
            self.idle_bytes -= block.size;
            self.idle_segments -= 1;
        }
        let tail_size = block.size - at.skip - at.take;
        let taken_address = block.address + at.skip;
        let mut cut = Cut { from, front: None, taken: from, tail: None };
        let taken = Block { address: taken_address, size: at.take, state: State::Used, ..block };
        match (at.skip > 0, tail_size > 0) {
            (false, false) => {
                self.blocks[id as usize].state = State::Used;
            }
            (false, true) => {
                let new = self.enter(Block { next: id, ..taken });
                self.relink_before(id, new, block.prev);
                let b = &mut self.blocks[id as usize];
                (b.address, b.size) = (taken_address + at.take, tail_size);
                cut.taken = self.view(new);
                cut.tail = Some(self.view(id));
            }
            (true, false) => {
                let new = self.enter(Block { prev: id, ..taken });
                self.relink_after(id, new, block.next);
                self.blocks[id as usize].size = at.skip;
                cut.taken = self.view(new);
                cut.front = Some(self.view(id));
            }
            (true, true) => {
                let front = self.enter(Block { size: at.skip, next: NONE, ..block });
                let new = self.enter(Block { prev: front, next: id, ..taken });
                self.blocks[front as usize].next = new;
                self.link_first(front, block.prev);
                self.blocks[id as usize].prev = new;
                let b = &mut self.blocks[id as usize];
                (b.address, b.size) = (taken_address + at.take, tail_size);
                cut.front = Some(self.view(front));
                cut.taken = self.view(new);
                cut.tail = Some(self.view(id));
            }
        }
        Ok(cut)
    }

    #[inline]
    fn validate(block: &Block, at: &CutAt) -> Result<(), Wrong> {
        if block.state != State::Free {
            return Err(Wrong::NotFree);
        }
        if block.band != at.band {
            return Err(Wrong::OtherBand);
        }
        if (at.skip | at.take) % GRAIN != 0 {
            return Err(Wrong::OffGrain);
        }
        if at.take < at.size {
            return Err(Wrong::TooShort);
        }
        if at.skip > block.size || at.take > block.size - at.skip {
            return Err(Wrong::Overrun);
        }
        if (block.address + at.skip) & (at.align - 1) != 0 {
            return Err(Wrong::Misaligned);
        }
        Ok(())
    }

    /// Frees used block `id` and merges it with its free neighbours.
    #[inline]
    pub(crate) fn free(&mut self, id: BlockId) -> Freed {
        let id = id.0;
        debug_assert_eq!(self.blocks[id as usize].state, State::Used);
        self.blocks[id as usize].state = State::Free;
        let block = self.blocks[id as usize];
        let freed = self.view(id);
        let before = self.free_neighbour(block.prev);
        let after = self.free_neighbour(block.next);
        let keep = match (before, after) {
            (_, Some(after)) => after.id.0,
            (Some(before), None) => before.id.0,
            (None, None) => id,
        };
        let mut whole = block;
        if let Some(b) = before {
            let b = self.blocks[b.id.index()];
            (whole.address, whole.prev) = (b.address, b.prev);
            whole.size += b.size;
        }
        if let Some(a) = after {
            let a = self.blocks[a.id.index()];
            whole.next = a.next;
            whole.size += a.size;
        }
        self.blocks[keep as usize] = whole;
        self.link_first(keep, whole.prev);
        if whole.next != NONE {
            self.blocks[whole.next as usize].prev = keep;
        }
        for gone in [Some(freed), before, after].into_iter().flatten() {
            if gone.id.0 != keep {
                self.vacate(gone.id.0);
            }
        }
        if whole.prev == NONE && whole.next == NONE {
            self.idle_bytes += whole.size;
            self.idle_segments += 1;
        }
        Freed { freed, before, after, result: self.view(keep) }
    }

    /// Whether block `id` fills its segment.
    #[inline]
    pub(crate) fn is_whole(&self, id: BlockId) -> bool {
        self.blocks.get(id.index()).is_some_and(|b| b.prev == NONE && b.next == NONE)
    }

    /// The segments, in no order that matters.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentView> + '_ {
        self.segments.iter().filter(|s| s.size > 0).map(|s| {
            let first = &self.blocks[s.first as usize];
            let idle = first.state == State::Free && first.size == s.size;
            let idle = idle.then_some(BlockId(s.first));
            SegmentView { address: s.address, size: s.size, band: s.band, idle }
        })
    }

    /// The wholly free segments; cheap where there are none.
    pub(crate) fn idle_segments(&self) -> impl Iterator<Item = (BlockId, SegmentView)> + '_ {
        let any = self.idle_segments > 0;
        self.segments().take_while(move |_| any).filter_map(|s| s.idle.map(|id| (id, s)))
    }

    /// Every block, by segment and address.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockView> + '_ {
        let starts = self.segments.iter().filter(|s| s.size > 0).map(|s| s.first);
        starts.flat_map(move |first| {
            let mut at = first;
            std::iter::from_fn(move || {
                let b = self.blocks.get(at as usize)?;
                let id = BlockId(at);
                at = b.next;
                let free = b.state == State::Free;
                Some(BlockView { id, address: b.address, size: b.size, band: b.band, free })
            })
        })
    }

    #[inline]
    fn view(&self, id: u32) -> FreeBlock {
        let b = &self.blocks[id as usize];
        let offset = b.address.wrapping_sub(b.start);
        FreeBlock { id: BlockId(id), address: b.address, offset, size: b.size }
    }

    #[inline]
    fn free_neighbour(&self, id: u32) -> Option<FreeBlock> {
        let b = self.blocks.get(id as usize)?;
        (b.state == State::Free).then(|| self.view(id))
    }

    #[inline]
    fn enter(&mut self, block: Block) -> u32 {
        match self.vacant_blocks.pop() {
            Some(id) => {
                self.blocks[id as usize] = block;
                id
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    #[inline]
    fn vacate(&mut self, id: u32) {
        self.blocks[id as usize].state = State::Vacant;
        self.vacant_blocks.push(id);
    }

    /// Puts `new` between `prev` and `id`.
    #[inline]
    fn relink_before(&mut self, id: u32, new: u32, prev: u32) {
        self.blocks[id as usize].prev = new;
        self.link_first(new, prev);
    }

    /// Puts `new` between `id` and `next`.
    #[inline]
    fn relink_after(&mut self, id: u32, new: u32, next: u32) {
        self.blocks[id as usize].next = new;
        if next != NONE {
            self.blocks[next as usize].prev = new;
        }
    }

    /// Makes `id` follow `prev`, or be its segment's first block.
    #[inline]
    fn link_first(&mut self, id: u32, prev: u32) {
        self.blocks[id as usize].prev = prev;
        if prev == NONE {
            let segment = self.blocks[id as usize].segment;
            self.segments[segment as usize].first = id;
        } else {
            self.blocks[prev as usize].next = id;
        }
    }
}
