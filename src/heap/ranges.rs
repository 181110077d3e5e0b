//! Virtual ranges in the books: segments of which only some pages have memory behind them.
//!
//! A mapped part is like any segment's: blocks that split and merge, known to the policy. The rest are
//! [`State::Unmapped`] blocks of whole pages, known to the books alone. The last page of a range is never
//! mapped, so that no block of a range is ever the only one: a range is never an idle segment.
//!
//! Pages count from the start of their range, and each range has its own size of page: that of the heap
//! when it was entered.
use super::{Block, CutAt, Heap, NONE, Segment, State, Wrong};
use aquifer_policies::{BlockId, Cut, Freed, GRAIN};

/// What the books keep for ranges beside the blocks.
#[derive(Default)]
pub(super) struct Ranges {
    /// Bytes of a page in new ranges; 0 where there are no ranges.
    pub(super) page: u64,
    /// The smallest page of any range so far.
    page_least: u64,
    /// Unmapped blocks, in no order that matters.
    pub(super) unmapped: Vec<u32>,
    /// Counts frees.
    tick: u64,
    /// Per block: the tick at which the newest part of a free block was freed.
    stamps: Vec<u64>,
    /// A bit per block: set where it may have whole pages, because it has become free.
    candidates: Vec<u64>,
}

impl Ranges {
    /// A block of `size` bytes has become free.
    #[inline(always)]
    pub(super) fn stamp(&mut self, id: u32, size: u64) {
        if self.page != 0 {
            self.tick += 1;
            self.set_stamp(id, size, self.tick);
        }
    }

    #[inline]
    fn set_stamp(&mut self, id: u32, size: u64, tick: u64) {
        if id as usize >= self.stamps.len() {
            self.stamps.resize(id as usize + 1, 0);
            self.candidates.resize(id as usize / 64 + 1, 0);
        }
        self.stamps[id as usize] = tick;
        if size >= self.page_least {
            self.candidates[id as usize / 64] |= 1 << (id % 64);
        }
    }

    #[inline]
    pub(super) fn stamp_of(&self, id: u32) -> u64 {
        self.stamps.get(id as usize).copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn copy_stamp(&mut self, from: u32, to: u32, size: u64) {
        if self.page != 0 {
            self.set_stamp(to, size, self.stamp_of(from));
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
    /// Bytes of each of these pages.
    pub(crate) page: u64,
    /// When the newest part of the block was freed.
    pub(crate) stamp: u64,
}

impl IdleRun {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

impl Heap {
    /// Says how large pages are in ranges to come: multiples of 512 bytes. Ranges there are get no more
    /// pages if theirs are of another size.
    pub(crate) fn set_page(&mut self, bytes: u64) {
        let least = self.ranges.page_least;
        self.ranges.page = bytes;
        if least == 0 || bytes < least {
            self.ranges.page_least = bytes;
            // Blocks too small for a page up to now may be large enough for one of these.
            for id in 0..self.blocks.len() as u32 {
                if self.blocks[id as usize].state == State::Free {
                    self.ranges.set_stamp(
                        id,
                        self.blocks[id as usize].size,
                        self.ranges.stamp_of(id),
                    );
                }
            }
        }
    }

    /// Bytes of a page in new ranges; 0 without ranges.
    #[inline(always)]
    pub(crate) fn page_bytes(&self) -> u64 {
        self.ranges.page
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
        self.segments.iter().filter(|s| s.size > 0 && s.page > 0).map(|s| {
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
        self.ranges.set_stamp(freed.result.id.0, freed.result.size, stamp.unwrap_or(0));
        freed
    }

    /// Takes pages out of free block `id`: they are to have no memory any more. Begin and end are those of
    /// pages.
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
        let (band, align) = (block.band, GRAIN);
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
        let least = self.ranges.page_least;
        let can_be = move |b: &Block| b.state == State::Free && b.size >= least;
        let blocks = self.blocks.iter().enumerate().filter(move |(_, b)| can_be(b));
        blocks.filter_map(|(id, _)| self.idle_run(BlockId(id as u32)))
    }

    /// As [`Heap::idle_runs`], by what has become free since it was last asked: blocks that have come
    /// to be used, or are too small, are not looked at again.
    pub(crate) fn take_stock(&mut self, mut found: impl FnMut(IdleRun)) {
        let least = self.ranges.page_least;
        for word in 0..self.ranges.candidates.len() {
            let mut rest = self.ranges.candidates[word];
            while rest != 0 {
                let bit = rest & rest.wrapping_neg();
                rest ^= bit;
                let id = word as u32 * 64 + bit.trailing_zeros();
                let block = &self.blocks[id as usize];
                if block.state != State::Free || block.size < least {
                    self.ranges.candidates[word] ^= bit;
                } else if let Some(run) = self.idle_run(BlockId(id)) {
                    found(run);
                }
            }
        }
    }

    /// The pages in free block `id` that no block touches, if there are any.
    pub(crate) fn idle_run(&self, id: BlockId) -> Option<IdleRun> {
        let b = self.blocks.get(id.index()).filter(|b| b.state == State::Free)?;
        let Segment { address: start, page, .. } = self.segments[b.segment as usize];
        if page == 0 {
            return None;
        }
        let first = (b.address - start).next_multiple_of(page);
        let end = (b.address + b.size - start) / page * page;
        let bytes = end.checked_sub(first).filter(|&bytes| bytes > 0)?;
        let stamp = self.ranges.stamp_of(id.0);
        Some(IdleRun { block: id, band: b.band, address: start + first, bytes, page, stamp })
    }

    /// All ranges, and the runs of each that are mapped.
    pub(crate) fn mapped_ranges(&self) -> Vec<(Range, Vec<(u64, u64)>)> {
        let mut ranges: Vec<(Range, Vec<(u64, u64)>)> =
            self.ranges().map(|range| (range, Vec::new())).collect();
        ranges.sort_unstable_by_key(|(range, _)| range.address);
        for block in self.blocks().filter(|b| !b.unmapped) {
            let above = ranges.partition_point(|(range, _)| range.address <= block.address);
            let Some((range, runs)) = above.checked_sub(1).map(|at| &mut ranges[at]) else {
                continue;
            };
            if block.address - range.address < range.size {
                runs.push((block.address, block.size));
            }
        }
        ranges
    }

    /// Whether taking `take` bytes `skip` bytes into free block `id` would touch memory that could be put
    /// to another use now: an idle segment, or a page that no block touches.
    #[inline]
    pub(crate) fn touches_idle(&self, id: BlockId, skip: u64, take: u64) -> bool {
        if self.ranges.page == 0 {
            return self.is_whole(id);
        }
        let Some(b) = self.blocks.get(id.index()) else { return false };
        let Some(&Segment { address: base, page, .. }) = self.segments.get(b.segment as usize)
        else {
            return false;
        };
        let at = b.address.wrapping_sub(base);
        let (start, end) = (at.wrapping_add(skip), at.wrapping_add(skip).wrapping_add(take));
        let first = (start / page.max(1) * page).max(at.next_multiple_of(page.max(1)));
        first.saturating_add(page) <= at + b.size && first < end
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CutAt, Heap, HoleWant, IdleRun, Rule, State};
    use aquifer_policies::BlockId;

    const PAGE: u64 = 4096;
    const START: u64 = 1 << 30;
    const PAGES: u64 = 24;

    /// A heap beside a naive map of what each page and each block is.
    struct Model {
        heap: Heap,
        page: u64,
        seed: u64,
        mapped: Vec<bool>,
        /// Id, address and bytes.
        used: Vec<(BlockId, u64, u64)>,
    }

    impl Model {
        fn below(&mut self, n: u64) -> u64 {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.seed >> 33) % n
        }

        /// A run of up to `most` pages from a random one on that are all `mapped`, the last page of the range
        /// left out.
        fn run(&mut self, mapped: bool, most: u64) -> Option<(u64, u64)> {
            let first = self.below(PAGES - 1);
            let end = (first + 1 + self.below(most)).min(PAGES - 1);
            let count = (first..end).take_while(|&p| self.mapped[p as usize] == mapped).count();
            (count > 0).then_some((first, count as u64))
        }

        fn map(&mut self) {
            let Some((first, count)) = self.run(false, 4) else { return };
            let freed = self.heap.map_pages(START + first * self.page, count * self.page);
            assert!(freed.result.size >= count * self.page);
            (first..first + count).for_each(|p| self.mapped[p as usize] = true);
        }

        fn unmap(&mut self) {
            let Some((first, count)) = self.run(true, 3) else { return };
            let (address, bytes) = (START + first * self.page, count * self.page);
            let touches = |u: &(BlockId, u64, u64)| u.1 < address + bytes && address < u.1 + u.2;
            let is_idle = !self.used.iter().any(touches);
            let Some(block) = self.heap.free_at(address) else { return assert!(!is_idle) };
            let cut = self.heap.unmap_pages(block.id, address, bytes);
            assert_eq!(cut.is_ok(), is_idle, "{cut:?}");
            if is_idle {
                (first..first + count).for_each(|p| self.mapped[p as usize] = false);
            }
        }

        fn cut(&mut self) {
            let free: Vec<_> = self.heap.blocks().filter(|b| b.free).collect();
            if free.is_empty() {
                return;
            }
            let b = free[self.below(free.len() as u64) as usize];
            let grains = b.size / 512;
            let skip = self.below(grains) * 512;
            let take = (1 + self.below(grains - skip / 512)) * 512;
            let at = CutAt { block: b.id, skip, take, size: take, align: 512, band: 0 };
            let cut = self.heap.cut(at).expect("it lies in a free block");
            self.used.push((cut.taken_id, b.address + skip, take));
        }

        fn free(&mut self) {
            if !self.used.is_empty() {
                let at = self.below(self.used.len() as u64) as usize;
                let (id, ..) = self.used.swap_remove(at);
                let before = self.heap.tick();
                let (freed, _) = self.heap.free(id);
                assert_eq!(self.heap.ranges.stamp_of(freed.result.id.0), before + 1);
            }
        }

        fn check(&mut self) {
            self.heap.audit().expect("sound");
            let pages = self.mapped.iter().filter(|m| **m).count() as u64;
            assert_eq!(self.heap.reserved_bytes(), pages * self.page);
            for b in self.heap.blocks() {
                let first = (b.address - START) / self.page;
                let end = (b.address + b.size - START).div_ceil(self.page);
                let mapped = (first..end).all(|p| self.mapped[p as usize] != b.unmapped);
                assert!(mapped, "{b:?}");
            }
            let runs: Vec<IdleRun> = self.heap.idle_runs().collect();
            let mut stock = Vec::new();
            self.heap.take_stock(|run| stock.push(run));
            assert_eq!(stock, runs);
            for run in runs {
                let touched = |u: &&(BlockId, u64, u64)| u.1 < run.end() && run.address < u.1 + u.2;
                assert_eq!(self.used.iter().find(touched), None);
                assert!(
                    [run.address - START, run.bytes].iter().all(|n| n.is_multiple_of(self.page))
                );
                assert_eq!(run.page, self.page);
                assert!(run.stamp <= self.heap.tick());
            }
            let used = self.heap.blocks().filter(|b| !b.free && !b.unmapped).count();
            assert_eq!(used, self.used.len());
        }
    }

    fn run(seed: u64, ops: u64) -> Model {
        let mut heap = Heap::default();
        // One of them is no power of two, and the range does not start at a multiple of it.
        let page = [PAGE, 3 * PAGE][seed as usize % 2];
        heap.set_page(page);
        heap.add_range(START, PAGES * page, 0);
        let (mapped, used) = (vec![false; PAGES as usize], Vec::new());
        let mut model = Model { heap, page, seed, mapped, used };
        for _ in 0..ops {
            match model.below(5) {
                0 => model.map(),
                1 => model.unmap(),
                2 => model.cut(),
                _ => model.free(),
            }
            model.check();
        }
        model
    }

    #[test]
    fn pages_come_and_go_under_blocks_that_come_and_go() {
        for seed in 0..60 {
            let mut model = run(seed, 300);
            while !model.used.is_empty() {
                model.free();
            }
            let runs: Vec<_> = model.heap.idle_runs().collect();
            for run in runs {
                let id = model.heap.free_at(run.address).expect("it is free").id;
                model.heap.unmap_pages(id, run.address, run.bytes).expect("it is idle");
                model.heap.audit().expect("sound");
            }
            assert_eq!(model.heap.reserved_bytes(), 0);
            assert!(model.heap.ranges().all(|r| r.empty));
            let vacant = |b: &super::Block| b.state == State::Vacant;
            assert_eq!(model.heap.blocks.iter().filter(|b| !vacant(b)).count(), 1);
        }
    }

    /// New pages are as old as what they join; a cut leaves the age of what it leaves.
    #[test]
    fn mapping_makes_no_block_younger() {
        let mut heap = Heap::default();
        heap.set_page(PAGE);
        heap.set_tick(100);
        heap.add_range(START, PAGES * PAGE, 0);
        let first = heap.map_pages(START, PAGE).result.id;
        assert_eq!((heap.tick(), heap.ranges.stamp_of(first.0)), (100, 0));
        let at = CutAt { block: first, skip: 0, take: PAGE, size: PAGE, align: 512, band: 0 };
        let taken = heap.cut(at).expect("free").taken_id;
        let freed = heap.free(taken).0.result.id;
        assert_eq!(heap.ranges.stamp_of(freed.0), 101);
        let joined = heap.map_pages(START + PAGE, 2 * PAGE).result;
        assert_eq!((joined.size, heap.ranges.stamp_of(joined.id.0)), (3 * PAGE, 101));
        let cut = heap.unmap_pages(joined.id, START + PAGE, PAGE).expect("idle");
        let stamps = [cut.front().expect("in front").id, cut.tail().expect("behind").id];
        assert_eq!(stamps.map(|id| heap.ranges.stamp_of(id.0)), [101, 101]);
    }

    /// A range is left alone once pages are larger; its idle ones go, and new ranges have the new pages.
    #[test]
    fn ranges_of_two_page_sizes_lie_side_by_side() {
        let want = |size| HoleWant { band: 0, size, align: 512, rule: Rule::Lowest };
        let mut heap = Heap::default();
        heap.set_page(PAGE);
        heap.add_range(START, PAGES * PAGE, 0);
        let first = heap.map_pages(START, 5 * PAGE).result.id;
        heap.set_page(3 * PAGE);
        assert_eq!(heap.hole_for(&want(PAGE)), None);
        let other = START - 64 * PAGE - 512;
        heap.add_range(other, 6 * 3 * PAGE, 0);
        let hole = heap.hole_for(&want(4 * PAGE)).expect("there is a range");
        assert_eq!((hole.address, &hole.runs[..]), (other, &[(other, 6 * PAGE)][..]));
        assert_eq!((hole.page, hole.more), (3 * PAGE, 9 * PAGE));
        assert!(heap.has_lower_hole(&want(4 * PAGE), first, 0, u64::MAX));
        let second = heap.map_pages(other, 6 * PAGE).result.id;
        let at = |block, skip| CutAt { block, skip, take: 512, size: 512, align: 512, band: 0 };
        heap.cut(at(second, 4 * PAGE)).expect("free");
        heap.cut(at(first, 4 * PAGE)).expect("free");
        heap.audit().expect("sound");
        let mut runs = Vec::new();
        heap.take_stock(|run| runs.push(run));
        runs.sort_by_key(|run| run.address);
        let seen: Vec<_> = runs.iter().map(|run| (run.address, run.bytes, run.page)).collect();
        assert_eq!(seen, [(other, 3 * PAGE, 3 * PAGE), (START, 4 * PAGE, PAGE)]);
        for run in runs {
            heap.unmap_pages(run.block, run.address, run.bytes).expect("idle");
            heap.audit().expect("sound");
        }
        assert_eq!(heap.reserved_bytes(), 4 * PAGE);
        assert_eq!(heap.hole_at(START, PAGE).expect("unmapped").page, PAGE);
    }

    /// Holes of the heap, by search at every grain.
    mod holes {
        use super::super::super::{Heap, HoleWant, Rule};
        use super::{Model, PAGE, PAGES, START, run};

        /// Whether `want` may lie at `at`, and the bytes to map for it.
        fn cost(model: &Model, want: &HoleWant, at: u64) -> Option<u64> {
            let end = at + want.size;
            let is_free = !model.used.iter().any(|u| u.1 < end && at < u.1 + u.2);
            let is_inside =
                end <= START + (PAGES - 1) * model.page && at.is_multiple_of(want.align);
            (is_free && is_inside).then(|| {
                let pages = (at - START) / model.page..(end - START).div_ceil(model.page);
                pages.filter(|&p| !model.mapped[p as usize]).count() as u64 * model.page
            })
        }

        /// The places in holes that have unmapped pages: bytes to map, address.
        fn places(model: &Model, want: &HoleWant) -> Vec<(u64, u64)> {
            let grains = (START..START + PAGES * model.page).step_by(512);
            let all = grains.filter_map(|at| Some((cost(model, want, at)?, at)));
            all.filter(|p| hole_has_unmapped(&model.heap, p.1)).collect()
        }

        fn hole_has_unmapped(heap: &Heap, at: u64) -> bool {
            let blocks: Vec<_> = heap.blocks().collect();
            let used = |i: usize| !blocks[i].free && !blocks[i].unmapped;
            let mine = blocks.iter().position(|b| at < b.address + b.size).expect("in the range");
            let first = (0..mine).rev().find(|&i| used(i)).map_or(0, |i| i + 1);
            let end = (mine..blocks.len()).find(|&i| used(i)).unwrap_or(blocks.len());
            blocks[first..end].iter().any(|b| b.unmapped)
        }

        fn wants(model: &mut Model, rule: Rule) -> HoleWant {
            let size = (1 + model.below(5 * model.page / 512)) * 512;
            let align = [512, 1024, PAGE, 4 * PAGE][model.below(4) as usize];
            HoleWant { band: 0, size, align, rule }
        }

        #[test]
        fn the_hole_found_needs_no_more_pages_than_any_other() {
            for seed in 0..400 {
                let mut model = run(seed, 80 + seed % 60);
                for _ in 0..8 {
                    let want = wants(&mut model, Rule::FewestPages);
                    let fewest = places(&model, &want).into_iter().min();
                    let found = model.heap.hole_for(&want);
                    let Some((bytes, _)) = fewest else {
                        assert_eq!(found, None);
                        continue;
                    };
                    let found = found.expect("there is a place");
                    assert_eq!(cost(&model, &want, found.address), Some(bytes), "{want:?}");
                    assert_eq!(found.bytes(), bytes, "{found:?}");
                    for &(address, bytes) in &found.runs {
                        model.heap.map_pages(address, bytes);
                        let pages =
                            (address - START) / model.page..(address + bytes - START) / model.page;
                        pages.for_each(|p| model.mapped[p as usize] = true);
                        model.check();
                    }
                    let block = model.heap.free_at(found.address).expect("it is mapped now");
                    assert!(found.address + want.size <= block.address + block.size);
                }
            }
        }

        #[test]
        fn a_lower_hole_is_said_to_be_there_when_one_is_found() {
            for seed in 0..400 {
                let mut model = run(seed, 80 + seed % 60);
                let want = wants(&mut model, Rule::Lowest);
                let lowest = places(&model, &want).into_iter().map(|p| p.1).min();
                let hole = model.heap.hole_for(&want);
                let found = hole.as_ref().map(|hole| hole.address);
                assert_eq!(found, lowest, "{want:?}");
                let lacks = hole.map_or(0, |hole| hole.bytes());
                let free: Vec<_> = model.heap.blocks().filter(|b| b.free).collect();
                for b in free {
                    let skip = b.address.next_multiple_of(want.align) - b.address;
                    if skip + want.size <= b.size {
                        let is_lower = found.is_some_and(|at| at < b.address + skip);
                        for (most, is_enough) in [
                            (u64::MAX, true),
                            (lacks, lacks > 0),
                            (lacks.saturating_sub(1), false),
                            (0, false),
                        ] {
                            let is_said = model.heap.has_lower_hole(&want, b.id, skip, most);
                            assert_eq!(is_said, is_lower && is_enough, "{most}: {want:?}");
                        }
                    }
                }
            }
        }
    }
}
