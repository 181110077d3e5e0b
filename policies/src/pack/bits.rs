//! A set of small numbers.

/// Numbers under a bound, one bit each.
#[derive(Clone, Debug)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(bound: usize) -> Bits {
        Bits(vec![0; bound.div_ceil(64)])
    }

    pub(super) fn set(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub(super) fn has(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    pub(super) fn join(&mut self, other: &Bits) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    /// Whether any number from `first` to before `end` is in the set.
    pub(super) fn meets(&self, first: usize, end: usize) -> bool {
        (first..end).any(|number| self.has(number))
    }

    /// The least number and one past the greatest, of a set that is not empty.
    pub(super) fn hull(&self) -> (usize, usize) {
        let least = self.0.iter().position(|word| *word != 0).expect("the set is not empty");
        let most = self.0.iter().rposition(|word| *word != 0).expect("the set is not empty");
        let (low, high) = (self.0[least].trailing_zeros(), 64 - self.0[most].leading_zeros());
        (least * 64 + low as usize, most * 64 + high as usize)
    }
}
