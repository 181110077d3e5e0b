//! Who owns which range: segments, the blocks that tile them, and their neighbours.
//!
//! Integers only. It knows no policy and no driver: it is told what to do, checks that the books allow
//! it, and says what came of it in the words of a policy ([`Cut`], [`Freed`]).
mod audit;
mod holes;
mod ranges;

pub(crate) use holes::{Hole, HoleWant, Rule};
pub(crate) use ranges::{IdleRun, Range};

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
    /// Whole pages of a virtual range with no memory behind them: not the policy's, nobody's.
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Block {
    address: u64,
    size: u64,
    /// Neighbours inside the segment.
    prev: u32,
    next: u32,
    segment: u32,
    state: State,
    band: u8,
}

const _: () = assert!(size_of::<Block>() == 32);

#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    /// 0 where the record is not in use.
    size: u64,
    first: u32,
    band: u8,
    /// Bytes of a page, where it is a virtual range, mapped page by page; else 0.
    page: u64,
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
    pub(crate) unmapped: bool,
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
    Rounding,
}

impl Wrong {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Wrong::NotFree => "named a block that is not free",
            Wrong::OtherBand => "named a block of another band",
            Wrong::OffGrain => "answered with bytes that are no multiple of 512",
            Wrong::Misaligned => "answered with an address that is not aligned as asked",
            Wrong::TooShort => "answered with fewer bytes than asked",
            Wrong::Rounding => "rounded to fewer bytes than asked, or to more than any device has",
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
    ranges: ranges::Ranges,
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
        let id = self.enter_segment(address, size, band, State::Free);
        self.reserved_bytes += size;
        self.idle_bytes += size;
        self.idle_segments += 1;
        Freed::alone(self.view(id))
    }

    /// Enters a segment of one block; the block.
    fn enter_segment(&mut self, address: u64, size: u64, band: u8, state: State) -> u32 {
        debug_assert!(size > 0 && size.is_multiple_of(GRAIN) && address.is_multiple_of(GRAIN));
        let page = if state == State::Unmapped { self.ranges.page } else { 0 };
        let segment = self.vacant_segments.pop().unwrap_or_else(|| {
            self.segments.push(Segment { address: 0, size: 0, first: NONE, band: 0, page });
            self.segments.len() as u32 - 1
        });
        let (prev, next) = (NONE, NONE);
        let id = self.enter(Block { address, size, prev, next, segment, state, band });
        self.segments[segment as usize] = Segment { address, size, first: id, band, page };
        id
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
    #[inline(always)]
    pub(crate) fn cut(&mut self, at: CutAt) -> Result<Cut, Wrong> {
        let id = at.block.0;
        let Some(&block) = self.blocks.get(id as usize) else { return Err(Wrong::NotFree) };
        Self::validate(&block, &at)?;
        let from = self.view_of(&block, id);
        if block.prev == NONE && block.next == NONE {
            self.idle_bytes -= block.size;
            self.idle_segments -= 1;
        }
        let tail_size = block.size - at.skip - at.take;
        let taken_address = block.address + at.skip;
        let taken = Block { address: taken_address, size: at.take, state: State::Used, ..block };
        let (mut front_id, mut taken_id) = (id, id);
        match (at.skip > 0, tail_size > 0) {
            (false, false) => self.blocks[id as usize].state = State::Used,
            (false, true) => {
                taken_id = self.enter(Block { next: id, ..taken });
                self.link(taken_id, block.prev);
            }
            (true, false) => {
                taken_id = self.enter(Block { prev: id, ..taken });
                let b = &mut self.blocks[id as usize];
                (b.next, b.size) = (taken_id, at.skip);
                if block.next != NONE {
                    self.blocks[block.next as usize].prev = taken_id;
                }
            }
            (true, true) => {
                front_id = self.enter(Block { size: at.skip, ..block });
                self.ranges.copy_stamp(id, front_id, at.skip);
                taken_id = self.enter(Block { prev: front_id, next: id, ..taken });
                self.blocks[front_id as usize].next = taken_id;
                self.link(front_id, block.prev);
            }
        }
        if tail_size > 0 {
            let b = &mut self.blocks[id as usize];
            (b.prev, b.address, b.size) = (taken_id, taken_address + at.take, tail_size);
        }
        let (front_id, taken_id) = (BlockId(front_id), BlockId(taken_id));
        Ok(Cut { from, skip: at.skip, take: at.take, front_id, taken_id })
    }

    #[inline(always)]
    fn validate(block: &Block, at: &CutAt) -> Result<(), Wrong> {
        if block.state != State::Free {
            return Err(Wrong::NotFree);
        }
        if block.band != at.band {
            return Err(Wrong::OtherBand);
        }
        if !(at.skip | at.take).is_multiple_of(GRAIN) {
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

    /// Frees used block `id` and merges it with its free neighbours. True if it fills its segment then.
    #[inline(always)]
    pub(crate) fn free(&mut self, id: BlockId) -> (Freed, bool) {
        let id = id.0;
        let block = self.blocks[id as usize];
        debug_assert_eq!(block.state, State::Used);
        let (mut whole, mut keep) = (Block { state: State::Free, ..block }, id);
        let (mut before_size, mut after_size) = (0, 0);
        if let Some(b) = self.blocks.get(block.prev as usize).filter(|b| b.state == State::Free) {
            before_size = b.size;
            whole.size += b.size;
            (whole.address, whole.prev, keep) = (b.address, b.prev, block.prev);
        }
        if let Some(a) = self.blocks.get(block.next as usize).filter(|a| a.state == State::Free) {
            after_size = a.size;
            whole.size += a.size;
            (whole.next, keep) = (a.next, block.next);
        }
        if before_size > 0 && after_size > 0 {
            self.vacate(block.prev);
        }
        if keep != id {
            self.vacate(id);
        }
        self.blocks[keep as usize] = whole;
        if before_size > 0 || keep != id {
            self.link(keep, whole.prev);
            if whole.next != NONE {
                self.blocks[whole.next as usize].prev = keep;
            }
        }
        let is_idle = whole.prev == NONE && whole.next == NONE;
        if is_idle {
            self.idle_bytes += whole.size;
            self.idle_segments += 1;
        }
        self.ranges.stamp(keep, whole.size);
        let freed = Freed {
            result: self.view_of(&whole, keep),
            before_size,
            after_size,
            before_id: BlockId(block.prev),
            freed_id: BlockId(id),
        };
        (freed, is_idle)
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
                let (free, unmapped) = (b.state == State::Free, b.state == State::Unmapped);
                let (address, size, band) = (b.address, b.size, b.band);
                Some(BlockView { id, address, size, band, free, unmapped })
            })
        })
    }

    #[inline]
    fn view(&self, id: u32) -> FreeBlock {
        self.view_of(&self.blocks[id as usize], id)
    }

    #[inline(always)]
    fn view_of(&self, block: &Block, id: u32) -> FreeBlock {
        let start = self.segments[block.segment as usize].address;
        let (address, size) = (block.address, block.size);
        FreeBlock { id: BlockId(id), address, offset: address.wrapping_sub(start), size }
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

    /// Makes `prev` be followed by `id`, or the segment begin with it.
    #[inline]
    fn link(&mut self, id: u32, prev: u32) {
        if let Some(prev) = self.blocks.get_mut(prev as usize) {
            prev.next = id;
        } else {
            let segment = self.blocks[id as usize].segment;
            self.segments[segment as usize].first = id;
        }
    }
}
