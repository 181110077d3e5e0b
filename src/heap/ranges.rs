//! Virtual ranges in the books: segments of which only some pages have memory behind them.
//!
//! A mapped part is like any segment's: blocks that split and merge, known to the policy. The rest are
//! [`State::Unmapped`] blocks of whole pages, known to the books alone. The last page of a range is never
//! mapped, so that no block of a range is ever the only one: a range is never an idle segment.
use super::{Block, BlockView, CutAt, Heap, NONE, State, Wrong};
use aquifer_policies::{BlockId, Cut, Freed};

/// What the books keep for ranges beside the blocks.
#[derive(Default)]
pub(super) struct Ranges {
    /// Bytes of a page; 0 where there are no ranges.
    pub(super) page: u64,
    /// Unmapped blocks, in no order that matters.
    pub(super) unmapped: Vec<u32>,
    /// Counts frees.
    tick: u64,
    /// Per block: the tick at which the newest part of a free block was freed.
    stamps: Vec<u64>,
}

impl Ranges {
    /// A block has become free.
    #[inline(always)]
    pub(super) fn stamp(&mut self, id: u32) {
        if self.page != 0 {
            self.tick += 1;
            self.set_stamp(id, self.tick);
        }
    }

    #[inline]
    fn set_stamp(&mut self, id: u32, tick: u64) {
        if id as usize >= self.stamps.len() {
            self.stamps.resize(id as usize + 1, 0);
        }
        self.stamps[id as usize] = tick;
    }

    #[inline]
    pub(super) fn stamp_of(&self, id: u32) -> u64 {
        self.stamps.get(id as usize).copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn copy_stamp(&mut self, from: u32, to: u32) {
        if self.page != 0 {
            self.set_stamp(to, self.stamp_of(from));
        }
    }
}

/// A virtual range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) band: u8,
    /// Whether nothing in it is mapped.
    pub(crate) empty: bool,
}

/// Whole pages that no block touches, in one free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdleRun {
    pub(crate) block: BlockId,
    pub(crate) band: u8,
    /// First byte of the first page.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// When the newest part of the block was freed.
    pub(crate) stamp: u64,
}

impl IdleRun {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

impl Heap {
    /// Says how large pages are; before the first range.
    pub(crate) fn set_page(&mut self, bytes: u64) {
        self.ranges.page = bytes;
    }

    /// The present of the clock that stamps free blocks.
    pub(crate) fn tick(&self) -> u64 {
        self.ranges.tick
    }

    /// Moves that clock on, so that later stamps are higher than any of another heap's up to now.
    pub(crate) fn set_tick(&mut self, tick: u64) {
        self.ranges.tick = self.ranges.tick.max(tick);
    }

    /// Enters a virtual range, nothing of it mapped.
    pub(crate) fn add_range(&mut self, address: u64, size: u64, band: u8) {
        debug_assert!(self.ranges.page > 0 && size.is_multiple_of(self.ranges.page));
        let id = self.enter_segment(address, size, band, State::Unmapped);
        self.ranges.unmapped.push(id);
    }

    /// The virtual ranges.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.segments.iter().filter(|s| s.size > 0 && s.paged).map(|s| {
            let first = &self.blocks[s.first as usize];
            let empty = first.state == State::Unmapped && first.size == s.size;
            Range { address: s.address, size: s.size, band: s.band, empty }
        })
    }

    fn forget_unmapped(&mut self, id: u32) {
        let at = self.ranges.unmapped.iter().position(|&u| u == id);
        self.ranges.unmapped.swap_remove(at.expect("an unmapped block is listed"));
    }

    /// The pages from `address` on, none of them mapped so far, have memory now and are free.
    pub(crate) fn map_pages(&mut self, address: u64, bytes: u64) -> Freed {
        let covers = |b: &Block| b.address <= address && address + bytes <= b.address + b.size;
        let id = *self
            .ranges
            .unmapped
            .iter()
            .find(|&&u| covers(&self.blocks[u as usize]))
            .expect("what is mapped was unmapped");
        let block = self.blocks[id as usize];
        let front = address - block.address;
        let tail = block.size - front - bytes;
        let fresh = Block { address, size: bytes, state: State::Used, ..block };
        let middle = if front > 0 {
            let middle = self.enter(Block { prev: id, ..fresh });
            let b = &mut self.blocks[id as usize];
            (b.size, b.next) = (front, middle);
            if block.next != NONE {
                self.blocks[block.next as usize].prev = middle;
            }
            middle
        } else {
            self.forget_unmapped(id);
            self.blocks[id as usize] = fresh;
            id
        };
        if tail > 0 {
            let after = Block { address: address + bytes, size: tail, prev: middle, ..block };
            let after = self.enter(after);
            self.blocks[middle as usize].next = after;
            if block.next != NONE {
                self.blocks[block.next as usize].prev = after;
            }
            self.ranges.unmapped.push(after);
        }
        self.reserved_bytes += bytes;
        // New pages make no block younger: nobody has used them since they were got.
        let tick = self.ranges.tick;
        let neighbours = [self.blocks[middle as usize].prev, self.blocks[middle as usize].next];
        let free = |n: &u32| self.blocks.get(*n as usize).is_some_and(|b| b.state == State::Free);
        let stamp = neighbours.iter().filter(|n| free(n)).map(|&n| self.ranges.stamp_of(n)).max();
        let (freed, _) = self.free(BlockId(middle));
        self.ranges.tick = tick;
        self.ranges.set_stamp(freed.result.id.0, stamp.unwrap_or(0));
        freed
    }

    /// Takes whole pages out of free block `id`: they are to have no memory any more.
    ///
    /// # Errors
    /// If they are not free.
    pub(crate) fn unmap_pages(
        &mut self,
        id: BlockId,
        address: u64,
        bytes: u64,
    ) -> Result<Cut, Wrong> {
        let Some(block) = self.blocks.get(id.index()) else { return Err(Wrong::NotFree) };
        let Some(skip) = address.checked_sub(block.address) else { return Err(Wrong::Overrun) };
        let (band, align) = (block.band, self.ranges.page);
        let cut = self.cut(CutAt { block: id, skip, take: bytes, size: bytes, align, band })?;
        let mut id = cut.taken_id.0;
        self.blocks[id as usize].state = State::Unmapped;
        let Block { prev, next, .. } = self.blocks[id as usize];
        let unmapped = |b: Option<&Block>| b.is_some_and(|b| b.state == State::Unmapped);
        if unmapped(self.blocks.get(next as usize)) {
            let after = self.blocks[next as usize];
            let b = &mut self.blocks[id as usize];
            (b.size, b.next) = (b.size + after.size, after.next);
            self.forget_unmapped(next);
            self.vacate(next);
            if after.next != NONE {
                self.blocks[after.next as usize].prev = id;
            }
        }
        if unmapped(self.blocks.get(prev as usize)) {
            let b = self.blocks[id as usize];
            let before = &mut self.blocks[prev as usize];
            (before.size, before.next) = (before.size + b.size, b.next);
            self.vacate(id);
            id = prev;
            if b.next != NONE {
                self.blocks[b.next as usize].prev = id;
            }
        } else {
            self.ranges.unmapped.push(id);
        }
        self.reserved_bytes -= bytes;
        Ok(cut)
    }

    /// Pages in ranges that no block touches.
    pub(crate) fn idle_runs(&self) -> impl Iterator<Item = IdleRun> + '_ {
        (0..self.blocks.len() as u32).filter_map(|id| self.idle_run(BlockId(id)))
    }

    /// The pages in free block `id` that no block touches, if there are any.
    pub(crate) fn idle_run(&self, id: BlockId) -> Option<IdleRun> {
        let page = self.ranges.page;
        let b = self.blocks.get(id.index()).filter(|b| page != 0 && b.state == State::Free)?;
        let address = b.address.next_multiple_of(page);
        let end = (b.address + b.size) / page * page;
        let bytes = end.checked_sub(address).filter(|&bytes| bytes > 0)?;
        let stamp = self.ranges.stamp_of(id.0);
        Some(IdleRun { block: id, band: b.band, address, bytes, stamp })
    }

    /// All ranges, and the runs of each that are mapped.
    pub(crate) fn mapped_ranges(&self) -> Vec<(Range, Vec<(u64, u64)>)> {
        let ranges: Vec<Range> = self.ranges().collect();
        let mut all = Vec::new();
        for range in ranges {
            let inside =
                |b: &BlockView| (range.address..range.address + range.size).contains(&b.address);
            let mapped = self.blocks().filter(|b| inside(b) && !b.unmapped);
            all.push((range, mapped.map(|b| (b.address, b.size)).collect()));
        }
        all
    }

    /// Whether taking `take` bytes `skip` bytes into free block `id` would touch memory that could be put
    /// to another use now: an idle segment, or a page that no block touches.
    #[inline]
    pub(crate) fn touches_idle(&self, id: BlockId, skip: u64, take: u64) -> bool {
        let page = self.ranges.page;
        if page == 0 {
            return self.is_whole(id);
        }
        let Some(b) = self.blocks.get(id.index()) else { return false };
        let (start, end) =
            (b.address.wrapping_add(skip), b.address.wrapping_add(skip).wrapping_add(take));
        let first = (start / page * page).max(b.address.next_multiple_of(page));
        first.saturating_add(page) <= b.address + b.size && first < end
    }
}
