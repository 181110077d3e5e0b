//! Which physical page lies at which address: tables of 256 units, by the address of the first. A page of
//! several units stands at its first one.
use crate::driver::HandleId;
use std::collections::BTreeMap;

/// Units of a part.
const PART: u64 = 256;

#[derive(Debug)]
struct Part {
    units: Box<[Option<HandleId>]>,
    len: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Table {
    parts: BTreeMap<u64, Part>,
}

/// A unit's part, and its place there.
fn split(unit: u64) -> (u64, usize) {
    (unit / PART, (unit % PART) as usize)
}

impl Table {
    /// `handles` lie at unit `first` and every `stride`th after it now, where none lay.
    pub(super) fn enter(&mut self, first: u64, stride: u64, handles: &[HandleId]) {
        let (mut unit, mut rest) = (first, handles);
        while !rest.is_empty() {
            let (number, at) = split(unit);
            let count = rest.len().min((PART - at as u64).div_ceil(stride) as usize);
            let part = self.parts.entry(number).or_insert_with(|| Part {
                units: vec![None; PART as usize].into_boxed_slice(),
                len: 0,
            });
            let slots = part.units[at..].iter_mut().step_by(stride as usize);
            for (slot, &handle) in slots.zip(&rest[..count]) {
                let before = slot.replace(handle);
                debug_assert_eq!(before, None, "two pages at one address");
            }
            part.len += count;
            (unit, rest) = (unit + count as u64 * stride, &rest[count..]);
        }
    }

    /// Appends to `handles` the pages in the `count` units from unit `first` on, which lie nowhere then.
    pub(super) fn take(&mut self, first: u64, count: u64, handles: &mut Vec<HandleId>) {
        let (mut unit, end) = (first, first + count);
        while unit < end {
            let (number, at) = split(unit);
            let count = ((end - unit) as usize).min(PART as usize - at);
            if let Some(part) = self.parts.get_mut(&number) {
                let before = handles.len();
                handles.extend(part.units[at..at + count].iter_mut().filter_map(Option::take));
                part.len -= handles.len() - before;
                if part.len == 0 {
                    self.parts.remove(&number);
                }
            }
            unit += count as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_entered_is_taken_out_across_parts() {
        for stride in [1, 2, 9, 300] {
            let mut table = Table::default();
            let handles: Vec<HandleId> = (0..600).map(HandleId).collect();
            table.enter(200, stride, &handles);
            assert_eq!(table.parts.values().map(|part| part.len).sum::<usize>(), 600);
            let mut taken = Vec::new();
            table.take(200 + 100 * stride, 500 * stride, &mut taken);
            assert_eq!(&taken[..], &handles[100..], "stride {stride}");
            table.enter(200 + 100 * stride, 1, &handles[..1]);
            taken.clear();
            table.take(200, 100 * stride + 1, &mut taken);
            assert_eq!(&taken[..100], &handles[..100]);
            assert_eq!((taken[100], table.parts.len()), (handles[0], 0));
        }
    }
}
