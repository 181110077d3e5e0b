//! A naive model of virtual memory: ranges, handles and mappings in lists, asked page by page.
pub mod ops;

use aquifer::driver::HandleId;
use aquifer::driver::sim::Span;

pub const CAPACITY_PAGES: u64 = 24;
pub const ADDRESS_PAGES: u64 = 64;
pub const DEVICES: u32 = 2;

#[derive(Clone, Debug)]
pub struct Handle {
    pub id: HandleId,
    pub bytes: u64,
    /// The byte at both ends of each page.
    pub tags: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Mapping {
    pub number: u64,
    pub span: Span,
    pub handle: HandleId,
    pub let_in: [bool; DEVICES as usize],
}

#[derive(Default)]
pub struct Model {
    pub page: u64,
    /// Where addresses for ranges begin.
    pub start: u64,
    pub ranges: Vec<Span>,
    pub handles: Vec<Handle>,
    /// By address.
    pub mappings: Vec<Mapping>,
    pub allocated_bytes: u64,
    pub other_use_bytes: u64,
    /// Queued work: what it touches, and the mappings that were there.
    pub queued: Vec<(Span, Vec<u64>)>,
}

pub fn end(span: Span) -> u64 {
    span.address + span.bytes
}

pub fn overlap(one: Span, other: Span) -> bool {
    one.address < end(other) && other.address < end(one)
}

pub fn is_in(inner: Span, outer: Span) -> bool {
    outer.address <= inner.address && end(inner) <= end(outer)
}

impl Model {
    pub fn used_bytes(&self) -> u64 {
        self.allocated_bytes + self.handles.iter().map(|handle| handle.bytes).sum::<u64>()
    }

    pub fn left_bytes(&self) -> u64 {
        let capacity = CAPACITY_PAGES * self.page;
        capacity.saturating_sub(self.used_bytes() + self.other_use_bytes)
    }

    /// The lowest gap of `bytes` between ranges.
    pub fn gap(&self, bytes: u64) -> Option<u64> {
        let limit = self.start + ADDRESS_PAGES * self.page;
        let mut places = (self.start..limit).step_by(self.page as usize);
        places.find(|&address| {
            let span = Span { address, bytes };
            end(span) <= limit && !self.ranges.iter().any(|range| overlap(*range, span))
        })
    }

    /// The first page from `start` on where nothing is mapped.
    pub fn first_free_page(&self, start: u64) -> u64 {
        let page = |page| Span { address: start + page * self.page, bytes: self.page };
        let is_free = |n: &u64| !self.mappings.iter().any(|m| overlap(m.span, page(*n)));
        (0..).find(is_free).expect("mappings are few")
    }

    pub fn in_one_range(&self, span: Span) -> bool {
        self.ranges.iter().any(|range| is_in(span, *range))
    }

    /// The mappings that make up `span`, if whole ones do without a gap and in one range.
    pub fn tiles(&self, span: Span) -> Option<Vec<Mapping>> {
        let under = self.mappings.iter().filter(|mapping| overlap(mapping.span, span));
        let under: Vec<Mapping> = under.cloned().collect();
        let whole = under.iter().all(|mapping| is_in(mapping.span, span));
        let bytes: u64 = under.iter().map(|mapping| mapping.span.bytes).sum();
        let fits = whole && bytes == span.bytes && span.bytes > 0 && self.in_one_range(span);
        fits.then_some(under)
    }

    /// The numbers of the mappings under `span`, if `device` may touch each of its pages.
    pub fn accessible(&self, span: Span, device: usize) -> Option<Vec<u64>> {
        let pages = (span.address..end(span)).step_by(self.page as usize);
        let of_page = |address| {
            let page = Span { address, bytes: self.page };
            let mapping = self.mappings.iter().find(|mapping| is_in(page, mapping.span))?;
            mapping.let_in[device].then_some(mapping.number)
        };
        let mut numbers = pages.map(of_page).collect::<Option<Vec<u64>>>()?;
        numbers.dedup();
        (self.in_one_range(span) && span.bytes > 0).then_some(numbers)
    }
}
