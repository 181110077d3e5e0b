//! Where in the virtual ranges a request may go if pages are mapped for it.
//!
//! A hole is what lies between two blocks in use: free blocks and unmapped ones in turn.
use super::{Block, Heap, NONE, Segment, State};
use aquifer_policies::{BlockId, FreeBlock, GRAIN};

/// Which place is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The one that needs the fewest pages mapped; of these the lowest.
    FewestPages,
    /// The lowest.
    Lowest,
}

/// A place to find.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoleWant {
    pub(crate) band: u8,
    pub(crate) size: u64,
    pub(crate) align: u64,
    pub(crate) rule: Rule,
}

/// A place found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    /// Where the request goes.
    pub(crate) address: u64,
    /// Runs of pages to map first: address and bytes, ascending.
    pub(crate) runs: Vec<(u64, u64)>,
    /// Bytes of unmapped pages that follow the last run.
    pub(crate) more: u64,
    /// Bytes of each of these pages.
    pub(crate) page: u64,
}

impl Hole {
    /// Bytes to map.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|r| r.1).sum()
    }
}

/// Pieces of a hole that there is room for from the start.
const USUAL_PIECES: usize = 16;

/// A piece of a hole.
#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    mapped: bool,
}

impl Heap {
    /// Whether pages are mapped in `block`'s range.
    fn takes_pages(&self, block: &Block) -> bool {
        self.segments[block.segment as usize].page == self.ranges.page
    }

    /// The best place for `want` among the holes that have unmapped pages of the present size.
    pub(crate) fn hole_for(&self, want: &HoleWant) -> Option<Hole> {
        let page = self.ranges.page;
        let mut best: Option<(u64, u64)> = None;
        let mut best_paging = Paging { base: 0, page };
        let mut best_pieces = Vec::with_capacity(USUAL_PIECES);
        let mut pieces = Vec::with_capacity(USUAL_PIECES);
        for &id in &self.ranges.unmapped {
            let block = &self.blocks[id as usize];
            let is_ours = block.band == want.band && self.takes_pages(block);
            if !is_ours || !self.pieces_from(id, &mut pieces) {
                continue;
            }
            let paging = Paging { base: self.segments[block.segment as usize].address, page };
            let Some(found) = best_in(&pieces, want, paging) else { continue };
            let better = |b: (u64, u64)| match want.rule {
                Rule::FewestPages => found < b,
                Rule::Lowest => found.1 < b.1,
            };
            if best.is_none_or(better) {
                best = Some(found);
                best_paging = paging;
                std::mem::swap(&mut best_pieces, &mut pieces);
            }
        }
        let (_, address) = best?;
        let runs: Vec<_> = unmapped_in(&best_pieces, address, want.size, best_paging).collect();
        let more = more_after(&runs, &best_pieces);
        Some(Hole { address, runs, more, page })
    }

    /// What is to be mapped for `size` bytes at `address`; `None` where a block in use is in the way, no
    /// page is missing, or the range ends before.
    pub(crate) fn hole_at(&self, address: u64, size: u64) -> Option<Hole> {
        let end = address.checked_add(size)?;
        let touches = |b: &Block| b.address < end && address < b.address + b.size;
        let unmapped = self.ranges.unmapped.iter();
        let mut first = *unmapped.copied().find(|&u| touches(&self.blocks[u as usize])).as_ref()?;
        while self.blocks[first as usize].address > address {
            first = self.blocks[first as usize].prev;
            self.blocks.get(first as usize).filter(|b| b.state != State::Used)?;
        }
        let mut pieces = Vec::new();
        self.pieces_to_end(first, end, &mut pieces);
        if pieces.last()?.end < end {
            return None;
        }
        let Segment { address: base, page, .. } =
            self.segments[self.blocks[first as usize].segment as usize];
        let runs: Vec<_> = unmapped_in(&pieces, address, size, Paging { base, page }).collect();
        let more = more_after(&runs, &pieces);
        Some(Hole { address, runs, more, page })
    }

    /// The free block that holds `address`.
    pub(crate) fn free_at(&self, address: u64) -> Option<FreeBlock> {
        let holds = |b: &Block| b.address <= address && address < b.address + b.size;
        let at = self.blocks.iter().position(|b| b.state == State::Free && holds(b))?;
        Some(self.view(at as u32))
    }

    /// The lowest place for `want` that is free and mapped, whatever the policy says.
    pub(crate) fn free_for(&self, want: &HoleWant) -> Option<Hole> {
        let free = self.blocks.iter().filter(|b| b.state == State::Free && b.band == want.band);
        let address = free.filter_map(|b| {
            let at = b.address.next_multiple_of(want.align.max(GRAIN));
            (at.saturating_add(want.size) <= b.address + b.size).then_some(at)
        });
        address.min().map(|address| Hole { address, runs: Vec::new(), more: 0, page: 0 })
    }

    /// Whether a hole with unmapped pages has room for `size` bytes below `skip` bytes into block `id`, and
    /// the lowest place there lacks no more than `most` bytes of pages.
    pub(crate) fn has_lower_hole(
        &self,
        want: &HoleWant,
        id: BlockId,
        skip: u64,
        most: u64,
    ) -> bool {
        let Some(block) = self.blocks.get(id.index()).filter(|_| most > 0) else { return false };
        let limit = block.address.saturating_add(skip);
        let align = want.align.max(GRAIN);
        let lower = self.ranges.unmapped.iter().filter_map(|&u| {
            let b = &self.blocks[u as usize];
            if b.address >= limit || b.band != want.band || !self.takes_pages(b) {
                return None;
            }
            let before = self.blocks.get(b.prev as usize).filter(|b| b.state == State::Free);
            let start = before.map_or(b.address, |b| b.address).next_multiple_of(align);
            let missing = self.missing_between(u, start, start.saturating_add(want.size))?;
            (start < limit).then_some((start, missing))
        });
        lower.min().is_some_and(|(_, missing)| missing <= most)
    }

    /// Bytes of pages to map from `start` to `end`, from unmapped block `id` on; `None` where its hole ends
    /// before.
    fn missing_between(&self, id: u32, start: u64, end: u64) -> Option<u64> {
        let mut at = id;
        let mut missing = 0;
        while let Some(b) = self.blocks.get(at as usize).filter(|b| b.state != State::Used) {
            let page = self.segments[b.segment as usize].page;
            let last = if b.next == NONE { page } else { 0 };
            let block_end = b.address + b.size - last;
            if b.state == State::Unmapped {
                // Unmapped blocks begin and end with pages.
                let from = start.saturating_sub(b.address) / page * page;
                let to = end.min(block_end).saturating_sub(b.address).next_multiple_of(page);
                missing += to.saturating_sub(from);
            }
            if block_end >= end {
                return Some(missing);
            }
            at = b.next;
        }
        None
    }

    /// The pieces of the hole that unmapped block `id` lies in; false where an earlier unmapped block
    /// lies in the same one.
    fn pieces_from(&self, id: u32, pieces: &mut Vec<Piece>) -> bool {
        pieces.clear();
        let block = &self.blocks[id as usize];
        if let Some(before) =
            self.blocks.get(block.prev as usize).filter(|b| b.state == State::Free)
        {
            let further = self.blocks.get(before.prev as usize);
            if further.is_some_and(|b| b.state == State::Unmapped) {
                return false;
            }
            pieces.push(piece(before));
        }
        self.pieces_to_end(id, u64::MAX, pieces);
        true
    }

    /// The pieces from block `id` on, up to a block in use, the end of the range or address `end`.
    fn pieces_to_end(&self, id: u32, end: u64, pieces: &mut Vec<Piece>) {
        let mut at = id;
        while let Some(b) = self.blocks.get(at as usize).filter(|b| b.state != State::Used) {
            pieces.push(piece(b));
            if b.next == NONE {
                // The last page stays unmapped.
                let last = pieces.last_mut().expect("just pushed");
                last.end -= self.segments[b.segment as usize].page;
            }
            if b.address + b.size >= end {
                return;
            }
            at = b.next;
        }
    }
}

fn piece(b: &Block) -> Piece {
    Piece { start: b.address, end: b.address + b.size, mapped: b.state == State::Free }
}

/// Where the pages of a range begin.
#[derive(Clone, Copy)]
struct Paging {
    /// First address of the range.
    base: u64,
    page: u64,
}

/// Fewest pages to map, and where, for `want` in one hole.
fn best_in(pieces: &[Piece], want: &HoleWant, paging: Paging) -> Option<(u64, u64)> {
    let (start, end) = (pieces.first()?.start, pieces.last()?.end);
    let align = want.align.max(GRAIN);
    let last = end.checked_sub(want.size)? & !(align - 1);
    let first = start.checked_next_multiple_of(align)?;
    if first > last {
        return None;
    }
    let cost = |at: u64| unmapped_in(pieces, at, want.size, paging).map(|r| r.1).sum::<u64>();
    if want.rule == Rule::Lowest {
        return Some((cost(first), first));
    }
    // The cost changes its slope only where an edge of the request meets an edge of a mapped piece.
    let mapped = pieces.iter().filter(|p| p.mapped);
    let edges = mapped.flat_map(|p| {
        [p.start.next_multiple_of(align), p.end.saturating_sub(want.size) & !(align - 1)]
    });
    let places = edges.chain([first, last]).filter(|at| (first..=last).contains(at));
    places.map(|at| (cost(at), at)).min()
}

/// Unmapped bytes that follow the last run.
fn more_after(runs: &[(u64, u64)], pieces: &[Piece]) -> u64 {
    let end = runs.last().map_or(0, |run| run.0 + run.1);
    let last = pieces.iter().find(|p| !p.mapped && p.start < end && end <= p.end);
    last.map_or(0, |p| p.end - end)
}

/// The runs of unmapped pages under `size` bytes at `address`.
fn unmapped_in(
    pieces: &[Piece],
    address: u64,
    size: u64,
    paging: Paging,
) -> impl Iterator<Item = (u64, u64)> + '_ {
    let Paging { base, page } = paging;
    let from = base + (address - base) / page * page;
    let to = base + (address + size - base).next_multiple_of(page);
    pieces.iter().filter(|p| !p.mapped).filter_map(move |p| {
        let (start, end) = (p.start.max(from), p.end.min(to));
        (start < end).then(|| (start, end - start))
    })
}
