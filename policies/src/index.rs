//! What a policy's index of free blocks must do, and how cuts and merges become those steps. Knows
//! the id rules of [`Cut`] and [`Freed`], not where a request goes.
use crate::{Cut, FreeBlock, Freed};

/// An index of free blocks that can be asked by id.
pub(crate) trait Index {
    /// A free block that was not there before, under an id that was not in use.
    fn insert(&mut self, block: &FreeBlock);

    /// A free block has another address or size under the same id.
    fn change(&mut self, old: &FreeBlock, new: &FreeBlock);

    /// A free block vanished.
    fn remove(&mut self, block: &FreeBlock);

    /// Follows [`Policy::taken`](crate::Policy::taken).
    #[inline]
    fn cut(&mut self, cut: &Cut) {
        let front = cut.front.as_ref();
        match cut.tail.as_ref().or(front) {
            Some(heir) => self.change(&cut.from, heir),
            None => self.remove(&cut.from),
        }
        if let (Some(front), Some(_)) = (front, &cut.tail) {
            self.insert_second(front);
        }
    }

    /// Inserts the second piece that a cut from the middle left, which few cuts do: kept out of the
    /// way of the others.
    #[cold]
    fn insert_second(&mut self, block: &FreeBlock) {
        self.insert(block);
    }

    /// Follows [`Policy::freed`](crate::Policy::freed).
    #[inline]
    fn merge(&mut self, freed: &Freed) {
        let before = freed.before.as_ref();
        if let (Some(before), Some(_)) = (before, &freed.after) {
            self.remove(before);
        }
        match freed.after.as_ref().or(before) {
            Some(old) => self.change(old, &freed.result),
            None => self.insert(&freed.result),
        }
    }
}
