//! When pages are too small: a program that gives everything back again and again gets as much again each
//! time, and the driver takes its time for each page, not for each byte.

/// A page has at most this share of the peak in use: what lies around blocks in begun pages stays small.
const PEAK_PER_PAGE: u64 = 800;
/// All ranges' begun pages together have at most this share of it.
const PEAK_PER_PAGES: u64 = 100;
/// No page is larger.
const PAGE_MAX: u64 = 32 << 20;
/// An emptied cache counts if it held this share of the peak.
const PEAK_PER_EMPTIED: u64 = 8;
/// So many such releases are taken for a habit.
const HABIT: u32 = 2;

/// How a program has emptied the cache so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Emptied {
    times: u32,
}

impl Emptied {
    /// The cache was emptied by `released` bytes, where `peak` were in use at most. The bytes that a page
    /// should have from now on, a multiple of `unit`, if the program has the habit.
    pub(crate) fn next_page(
        &mut self,
        released: u64,
        peak: u64,
        ranges: u64,
        unit: u64,
    ) -> Option<u64> {
        if released < (peak / PEAK_PER_EMPTIED).max(1) {
            return None;
        }
        self.times = self.times.saturating_add(1);
        let fair = (peak / PEAK_PER_PAGE).min(PAGE_MAX).next_multiple_of(unit);
        let most = (peak / PEAK_PER_PAGES / ranges.max(1)).min(PAGE_MAX) / unit * unit;
        let page = fair.min(most);
        (self.times >= HABIT && page > unit).then_some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const PEAK: u64 = 16_000 * MIB;

    #[test]
    fn pages_grow_with_the_second_great_release() {
        let mut emptied = Emptied::default();
        let mut next = |released| emptied.next_page(released, PEAK, 2, 2 * MIB);
        assert_eq!(next(PEAK), None);
        assert_eq!((next(PEAK / 9), next(0)), (None, None));
        assert_eq!(next(PEAK / 8), Some(20 * MIB));
    }

    #[test]
    fn begun_pages_stay_a_small_share_of_the_peak() {
        let page = |peak, ranges, unit| {
            let mut emptied = Emptied { times: HABIT };
            emptied.next_page(peak, peak, ranges, unit)
        };
        assert_eq!(page(PEAK, 1, 2 * MIB), Some(20 * MIB));
        assert_eq!(page(PEAK, 16, 2 * MIB), Some(10 * MIB));
        assert_eq!((page(PEAK, 100, 2 * MIB), page(PEAK, 0, 64 * MIB)), (None, None));
        assert_eq!(page(80_000 * MIB, 1, 2 * MIB), Some(32 * MIB));
        assert_eq!((page(0, 0, 512), page(1000 * MIB, 4, 2 * MIB)), (None, None));
        assert_eq!(page(u64::MAX, 1, 16 * MIB), Some(32 * MIB));
    }
}
