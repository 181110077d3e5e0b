//! Which physical page lies at which address: tables of 256 pages, by the address of the first.
use crate::driver::HandleId;
use std::collections::BTreeMap;

/// Pages of a part.
const PART: u64 = 256;

#[derive(Debug)]
struct Part {
    pages: Box<[Option<HandleId>]>,
    len: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Table {
    parts: BTreeMap<u64, Part>,
    len: usize,
}

/// A page's part, and its place there.
fn split(page: u64) -> (u64, usize) {
    (page / PART, (page % PART) as usize)
}

impl Table {
    /// How many pages lie somewhere.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// `handles` lie at page number `first` and the following ones now, where none lay.
    pub(super) fn enter(&mut self, first: u64, handles: &[HandleId]) {
        let (mut page, mut rest) = (first, handles);
        while !rest.is_empty() {
            let (number, at) = split(page);
            let count = rest.len().min(PART as usize - at);
            let part = self.parts.entry(number).or_insert_with(|| Part {
                pages: vec![None; PART as usize].into_boxed_slice(),
                len: 0,
            });
            for (slot, &handle) in part.pages[at..at + count].iter_mut().zip(rest) {
                let before = slot.replace(handle);
                debug_assert_eq!(before, None, "two pages at one address");
            }
            part.len += count;
            (page, rest) = (page + count as u64, &rest[count..]);
        }
        self.len += handles.len();
    }

    /// Appends to `handles` the `count` pages from page number `first` on, which lie nowhere then.
    pub(super) fn take(&mut self, first: u64, count: u64, handles: &mut Vec<HandleId>) {
        let (mut page, end) = (first, first + count);
        while page < end {
            let (number, at) = split(page);
            let count = ((end - page) as usize).min(PART as usize - at);
            let part = self.parts.get_mut(&number).expect("a mapped page is entered");
            let taken = part.pages[at..at + count].iter_mut();
            handles.extend(taken.map(|page| page.take().expect("a mapped page is entered")));
            part.len -= count;
            if part.len == 0 {
                self.parts.remove(&number);
            }
            page += count as u64;
        }
        self.len -= count as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_entered_is_taken_out_across_parts() {
        let mut table = Table::default();
        let handles: Vec<HandleId> = (0..600).map(HandleId).collect();
        table.enter(200, &handles);
        assert_eq!((table.len(), table.parts.len()), (600, 4));
        let mut taken = Vec::new();
        table.take(300, 500, &mut taken);
        assert_eq!((table.len(), &taken[..]), (100, &handles[100..]));
        table.enter(300, &handles[..1]);
        taken.clear();
        table.take(200, 101, &mut taken);
        assert_eq!(&taken[..100], &handles[..100]);
        assert_eq!((taken[100], table.len(), table.parts.len()), (handles[0], 0, 0));
    }
}
