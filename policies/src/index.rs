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
    #[inline(always)]
    fn cut(&mut self, cut: &Cut) {
        match (cut.tail(), cut.front()) {
            (Some(tail), None) => self.change(&cut.from, &tail),
            (None, None) => self.remove(&cut.from),
            (None, Some(front)) => self.change(&cut.from, &front),
            (Some(tail), Some(front)) => {
                self.change(&cut.from, &tail);
                self.insert(&front);
            }
        }
    }

    /// Follows [`Policy::freed`](crate::Policy::freed).
    #[inline(always)]
    fn merge(&mut self, freed: &Freed) {
        match (freed.after(), freed.before()) {
            (Some(after), None) => self.change(&after, &freed.result),
            (None, None) => self.insert(&freed.result),
            (None, Some(before)) => self.change(&before, &freed.result),
            (Some(after), Some(before)) => {
                self.remove(&before);
                self.change(&after, &freed.result);
            }
        }
    }
}
