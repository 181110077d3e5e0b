//! What is mapped at which addresses, who may touch it and which queued work will. Knows no reserved
//! ranges and no bytes.
//!
//! Where a span is asked about, no bytes count as one.
use super::memory::Span;
use crate::driver::HandleId;
use std::collections::BTreeMap;

/// Mappings by address, no two overlapping.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    by_address: BTreeMap<u64, Mapping>,
    made: u64,
}

/// One handle at one address.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) handle: HandleId,
    pub(super) bytes: u64,
    /// Devices that were let in, a bit each.
    pub(super) accessors: u64,
    /// Whether the host can touch it.
    pub(super) is_open: bool,
    /// Accesses by work that is queued.
    pub(super) uses: u64,
    /// Grows with each mapping that is made.
    serial: u64,
}

impl Mappings {
    /// Maps `handle` at `span`, where nothing is mapped; nobody is let in.
    pub(super) fn insert(&mut self, span: Span, handle: HandleId) {
        self.made += 1;
        let (bytes, serial) = (span.bytes, self.made);
        let mapping = Mapping { handle, bytes, accessors: 0, is_open: false, uses: 0, serial };
        self.by_address.insert(span.address, mapping);
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<Mapping> {
        self.by_address.remove(&address)
    }

    pub(super) fn get_mut(&mut self, address: u64) -> Option<&mut Mapping> {
        self.by_address.get_mut(&address)
    }

    pub(super) fn all(&self) -> Vec<(Span, HandleId)> {
        let span = |(&address, mapping): (&u64, &Mapping)| {
            (Span { address, bytes: mapping.bytes }, mapping.handle)
        };
        self.by_address.iter().map(span).collect()
    }

    /// Whether anything is mapped in `span`.
    pub(super) fn any_in(&self, span: Span) -> bool {
        self.under(span).next().is_some()
    }

    /// Where the mappings start that tile `span` exactly.
    pub(super) fn tiles(&self, span: Span) -> Option<Vec<u64>> {
        let (mut next, mut starts) = (span.address, Vec::new());
        for (start, mapping) in self.under(span) {
            if start != next {
                return None;
            }
            next = start + mapping.bytes;
            starts.push(start);
        }
        (next > span.address && next - span.address == span.bytes).then_some(starts)
    }

    /// Lets `accessors` into all that is mapped in `span`.
    pub(super) fn let_in(&mut self, span: Span, accessors: u64) {
        self.under_mut(span).for_each(|(_, mapping)| mapping.accessors |= accessors);
    }

    /// Whether all of `span` is mapped and `device` was let in.
    pub(super) fn is_accessible(&self, span: Span, device: u32) -> bool {
        let bit = 1u64.checked_shl(device).unwrap_or(0);
        let mut next = span.address;
        for (start, mapping) in self.under(span) {
            if start > next || mapping.accessors & bit == 0 {
                return false;
            }
            next = start + mapping.bytes;
        }
        next - span.address >= span.bytes.max(1)
    }

    /// Notes that queued work is going to touch all that is mapped in `span`: the number of the newest
    /// mapping there is.
    pub(super) fn hold(&mut self, span: Span) -> u64 {
        self.under_mut(span).for_each(|(_, mapping)| mapping.uses += 1);
        self.made
    }

    /// Ends what [`Mappings::hold`] began: whether all of `span` is still mapped as it was then. Mappings
    /// do not move, so one with an older number was there.
    pub(super) fn let_go(&mut self, span: Span, newest: u64) -> bool {
        let mut next = span.address;
        for (start, mapping) in self.under_mut(span).filter(|(_, m)| m.serial <= newest) {
            mapping.uses -= 1;
            if start <= next {
                next = start + mapping.bytes;
            }
        }
        next - span.address >= span.bytes.max(1)
    }

    fn under(&self, span: Span) -> impl Iterator<Item = (u64, &Mapping)> {
        let (first, end) = self.bounds(span);
        self.by_address.range(first..end).map(|(&start, mapping)| (start, mapping))
    }

    fn under_mut(&mut self, span: Span) -> impl Iterator<Item = (u64, &mut Mapping)> {
        let (first, end) = self.bounds(span);
        self.by_address.range_mut(first..end).map(|(&start, mapping)| (start, mapping))
    }

    /// Between which addresses the mappings start that overlap `span`.
    fn bounds(&self, span: Span) -> (u64, u64) {
        let end = span.address.saturating_add(span.bytes.max(1));
        let below = self.by_address.range(..=span.address).next_back();
        let reaching = below.filter(|(start, mapping)| span.address - *start < mapping.bytes);
        (reaching.map_or(span.address, |(&start, _)| start), end)
    }
}
