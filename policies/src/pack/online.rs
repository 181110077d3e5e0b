//! Places buffers in the order in which they begin, each in the smallest hole that there is then. Quick
//! with any number of buffers, and the fallback where they are too many for `first_fit`.

use std::collections::{BTreeMap, BTreeSet};

use super::sections::Part;

/// Free ranges below the highest end so far.
#[derive(Default)]
struct Holes {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// The highest end so far.
    top: u64,
}

impl Holes {
    fn insert(&mut self, offset: u64, size: u64) {
        if size > 0 {
            self.by_offset.insert(offset, size);
            self.by_size.insert((size, offset));
        }
    }

    fn remove(&mut self, offset: u64) -> Option<u64> {
        let size = self.by_offset.remove(&offset)?;
        self.by_size.remove(&(size, offset));
        Some(size)
    }

    fn take(&mut self, size: u64) -> u64 {
        if let Some(&(hole, offset)) = self.by_size.range((size, 0)..).next() {
            self.remove(offset);
            self.insert(offset + size, hole - size);
            return offset;
        }
        // On top, from the hole on that reaches there.
        let last = self.by_offset.last_key_value().map(|(offset, size)| (*offset, *size));
        let offset = match last {
            Some((offset, hole)) if offset + hole == self.top => offset,
            _ => self.top,
        };
        self.remove(offset);
        self.top = offset + size;
        offset
    }

    fn give(&mut self, mut offset: u64, mut size: u64) {
        size += self.remove(offset + size).unwrap_or(0);
        let before = self.by_offset.range(..offset).next_back().map(|(at, size)| (*at, *size));
        if let Some((at, hole)) = before
            && at + hole == offset
        {
            self.remove(at);
            (offset, size) = (at, size + hole);
        }
        self.insert(offset, size);
    }
}

/// Offsets of a part, in units.
pub(super) fn pack(part: &Part) -> Vec<u64> {
    let spans = &part.spans;
    let mut begin: Vec<usize> = (0..spans.len()).collect();
    begin.sort_by_key(|at| (spans[*at].first, u64::MAX - spans[*at].size));
    let mut end = begin.clone();
    end.sort_by_key(|at| spans[*at].end);
    let mut over = end.into_iter().peekable();
    let mut holes = Holes::default();
    let mut offsets = vec![0; spans.len()];
    for at in begin {
        while let Some(gone) = over.next_if(|gone| spans[*gone].end <= spans[at].first) {
            holes.give(offsets[gone], spans[gone].size);
        }
        offsets[at] = holes.take(spans[at].size);
    }
    offsets
}
