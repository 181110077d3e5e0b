//! Which request each block serves. Knows ids and request numbers only.
use crate::BlockId;

/// Serves no request known.
const NOBODY: u64 = u64::MAX;

/// Ids from here on are ignored, which bounds the table to 128 MiB.
const IDS_MAX: usize = 1 << 24;

/// Request numbers by block id.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    numbers: Vec<u64>,
}

impl Blocks {
    /// `block` serves request `number` from now on.
    #[inline]
    pub(super) fn set(&mut self, block: BlockId, number: u64) {
        match self.numbers.get_mut(block.index()) {
            Some(slot) => *slot = number,
            None => self.extend(block.index(), number),
        }
    }

    #[cold]
    fn extend(&mut self, index: usize, number: u64) {
        if index < IDS_MAX {
            self.numbers.resize(index + 1, NOBODY);
            self.numbers[index] = number;
        }
    }

    /// The request that `block` served, if any; it serves none from now on.
    #[inline]
    pub(super) fn take(&mut self, block: BlockId) -> Option<u64> {
        let slot = self.numbers.get_mut(block.index())?;
        let number = std::mem::replace(slot, NOBODY);
        (number != NOBODY).then_some(number)
    }
}
