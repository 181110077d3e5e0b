//! Bins of similar sizes, 8 per doubling, and which of them hold anything. Knows no free block.
use crate::GRAIN;

/// Bins for every size below 2^64 bytes.
pub(crate) const BINS: usize = 424;
/// Words of 64 bins that hold them all.
const WORDS: usize = BINS.div_ceil(64);

/// The bin of a size in bytes, 0 to [`BINS`] - 1.
///
/// One bin for each multiple of 512 below 8 KiB, then 8 bins of equal width per doubling: every size
/// of a bin is less than all sizes of the next.
#[inline]
pub(crate) fn bin_of(size: u64) -> usize {
    let grains = size / GRAIN;
    let doubling = 63 - (grains | 8).leading_zeros();
    let eighth = grains >> (doubling - 3);
    ((doubling as usize - 3) * 8 + eighth as usize).min(BINS - 1)
}

/// A set of bins that finds the next member in constant time.
#[derive(Clone, Debug, Default)]
pub(crate) struct BinSet {
    words: [u64; WORDS],
    /// Bit n: `words[n]` is not 0.
    summary: u32,
}

impl BinSet {
    #[inline]
    pub(crate) fn insert(&mut self, bin: usize) {
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, bin: usize) {
        let word = &mut self.words[bin / 64];
        *word &= !(1 << (bin % 64));
        self.summary &= !(u32::from(*word == 0) << (bin / 64));
    }

    /// The first member that is at least `bin`.
    #[inline]
    pub(crate) fn next(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let here = self.words.get(word)? >> (bin % 64);
        if here != 0 {
            return Some(bin + here.trailing_zeros() as usize);
        }
        let above = self.summary & (!1 << word);
        let word = above.trailing_zeros() as usize;
        Some(word * 64 + self.words.get(word)?.trailing_zeros() as usize)
    }

    /// The members from `bin` up.
    #[inline]
    pub(crate) fn from(&self, bin: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.next(bin), |&bin| self.next(bin + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_each_other_an_eighth_of_a_doubling_wide() {
        assert_eq!([512, 1024, 7680, 8192, 8704].map(bin_of), [1, 2, 15, 16, 16]);
        assert_eq!((bin_of(1 << 63), bin_of(u64::MAX)), (BINS - 8, BINS - 1));
        for bits in 12..63 {
            let (size, step) = (1u64 << bits, (1u64 << bits) / 8);
            for eighth in 0..8 {
                let low = size + eighth * step;
                assert_eq!(bin_of(low), bin_of(low + step - GRAIN), "{low}");
                assert_eq!(bin_of(low) + 1, bin_of(low + step), "{low}");
            }
        }
    }

    #[test]
    fn members_are_found_in_order() {
        let mut set = BinSet::default();
        let members = [0, 1, 63, 64, 200, 319, BINS - 1];
        members.iter().for_each(|&bin| set.insert(bin));
        assert!(set.from(0).eq(members));
        for bin in 0..BINS {
            assert_eq!(set.next(bin), members.into_iter().find(|&member| member >= bin));
        }
        assert_eq!(set.next(BINS), None);
        members.iter().for_each(|&bin| set.remove(bin));
        assert_eq!(set.next(0), None);
    }
}
