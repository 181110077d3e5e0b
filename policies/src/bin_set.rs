//! Bins of similar sizes, 8 per doubling, and which of them hold anything. Knows no free block.
use crate::GRAIN;

/// Bins for every size below 2^64 bytes, and some more: a power of two, so that no index into a table
/// by bin needs a check.
pub(crate) const BINS: usize = 512;

/// The bin of a size in bytes, 0 to [`BINS`] - 1; never smaller for a larger size.
///
/// A bin for each multiple of 512 below 8 KiB, then 8 bins of equal width per doubling. The numbers
/// are the exponent and the first 3 bits of the fraction of the size as a floating-point number, in
/// which sizes up to [`SIZE_MAX`](crate::SIZE_MAX) are exact.
#[inline]
pub(crate) fn bin_of(size: u64) -> usize {
    const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    const EXPONENT_OF_1: u64 = f64::MAX_EXP as u64 - 1;
    let bits = ((size / GRAIN) as i64 as f64).to_bits();
    (bits >> (FRACTION_BITS - 3)).saturating_sub(EXPONENT_OF_1 << 3) as usize % BINS
}

/// A set of bins that finds the next member in constant time.
#[derive(Clone, Debug)]
pub(crate) struct BinSet {
    /// Bit n: `eighths[n]` is not 0.
    doublings: u64,
    eighths: [u8; BINS / 8],
}

impl Default for BinSet {
    fn default() -> Self {
        BinSet { doublings: 0, eighths: [0; BINS / 8] }
    }
}

impl BinSet {
    #[inline]
    pub(crate) fn insert(&mut self, bin: usize) {
        self.eighths[bin / 8 % 64] |= 1 << (bin % 8);
        self.doublings |= 1 << (bin / 8 % 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, bin: usize) {
        let eighths = &mut self.eighths[bin / 8 % 64];
        *eighths &= !(1 << (bin % 8));
        self.doublings &= !(u64::from(*eighths == 0) << (bin / 8 % 64));
    }

    /// The first member above `bin`.
    #[inline]
    pub(crate) fn above(&self, bin: usize) -> Option<usize> {
        let doubling = bin / 8 % 64;
        let eighths = self.eighths[doubling] & (0xfe << (bin % 8)) as u8;
        if eighths != 0 {
            return Some(doubling * 8 + eighths.trailing_zeros() as usize);
        }
        let doublings = self.doublings & (!1 << doubling);
        if doublings == 0 {
            return None;
        }
        let doubling = doublings.trailing_zeros() as usize;
        Some(doubling * 8 + self.eighths[doubling % 64].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_each_other_an_eighth_of_a_doubling_wide() {
        let singles: Vec<usize> = (1..=16).map(|grains| bin_of(grains * GRAIN)).collect();
        assert!(singles.is_sorted_by(|a, b| a < b), "{singles:?}");
        assert_eq!((bin_of(512), bin_of(8192), bin_of(8704)), (0, 32, 32));
        assert!(bin_of(u64::MAX) < BINS);
        for bits in 13..62 {
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
        let members = [0, 1, 7, 63, 64, 200, 319, BINS - 1];
        members.iter().for_each(|&bin| set.insert(bin));
        for bin in 0..BINS {
            assert_eq!(set.above(bin), members.into_iter().find(|&member| member > bin));
        }
        members.iter().for_each(|&bin| set.remove(bin));
        assert_eq!(set.above(0), None);
    }
}
