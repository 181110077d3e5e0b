//! The books of paged backing: which physical page lies where, the bank of pages that lie nowhere, what
//! is known of the device's progress, what moving pages has cost.
//!
//! Knows neither heaps nor policies. Heaps know which addresses are mapped; here is by what.
mod budget;
mod marks;
mod size;
mod table;

pub(crate) use budget::{Budget, Move};
pub(crate) use marks::{LaneKey, Marks, Open};
pub(crate) use size::Emptied;

use crate::driver::{EventId, HandleId, StreamId};
use std::ops::Range;
use table::Table;

/// A range that its lane has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Abandoned {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Mapped runs: address and bytes.
    pub(crate) runs: Vec<(u64, u64)>,
}

/// Ranges of a lane that is gone, until the driver has taken all of them back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) stream: StreamId,
    /// Ends the last use of their memory; none until it could be recorded.
    pub(crate) event: Option<EventId>,
    pub(crate) ranges: Vec<Abandoned>,
}

/// See the module's page.
#[derive(Default)]
pub(crate) struct Pages {
    /// Bytes of a page, as they are got and mapped now: a multiple of `unit`.
    pub(crate) bytes: u64,
    /// Bytes of the smallest page that the driver has.
    unit: u64,
    mapped: Table,
    mapped_bytes: u64,
    /// Physical pages mapped nowhere, of the present size.
    pub(crate) bank: Vec<HandleId>,
    /// Pages of an earlier size that are mapped nowhere, until the driver has taken them back; bytes of each.
    retired: Vec<(HandleId, u64)>,
    /// How the program has emptied the cache.
    pub(crate) emptied: Emptied,
    /// Runs that could not be unmapped after a later call had failed: their addresses are of no use.
    pub(crate) stuck: Vec<(u64, u64)>,
    pub(crate) orphans: Vec<Orphan>,
    pub(crate) marks: Marks,
    pub(crate) budget: Budget,
    /// The highest clock of a heap that was seen.
    pub(crate) tick: u64,
    /// Bytes of addresses reserved.
    pub(crate) reserved_addresses: u64,
}

impl Pages {
    pub(crate) fn new(bytes: u64) -> Pages {
        Pages { bytes, unit: bytes, ..Pages::default() }
    }

    /// From now on pages are of so many bytes, a multiple of those at first.
    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        let size = std::mem::replace(&mut self.bytes, bytes);
        self.retired.extend(self.bank.drain(..).map(|handle| (handle, size)));
    }

    /// Bytes of the smallest page that the driver has.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// These pages of the bank lie from `address` on now.
    pub(crate) fn enter_banked(&mut self, address: u64, which: Range<usize>) {
        let handles = &self.bank[which.clone()];
        self.mapped.enter(address / self.unit, self.bytes / self.unit, handles);
        self.mapped_bytes += handles.len() as u64 * self.bytes;
        self.bank.drain(which);
    }

    /// The pages of a run in one range, which is mapped no more, go into the bank; those of an earlier
    /// size are retired.
    pub(crate) fn bank_run(&mut self, address: u64, bytes: u64) {
        let before = self.bank.len();
        self.mapped.take(address / self.unit, bytes / self.unit, &mut self.bank);
        self.mapped_bytes -= bytes;
        let size = bytes / (self.bank.len() - before).max(1) as u64;
        if size != self.bytes {
            self.retired.extend(self.bank.drain(before..).map(|handle| (handle, size)));
        }
    }

    /// A page that is mapped nowhere, and its bytes; retired ones first.
    pub(crate) fn take_loose(&mut self) -> Option<(HandleId, u64)> {
        self.retired.pop().or_else(|| Some((self.bank.pop()?, self.bytes)))
    }

    /// A retired page and its bytes.
    pub(crate) fn take_retired(&mut self) -> Option<(HandleId, u64)> {
        self.retired.pop()
    }

    /// What was taken is still there.
    pub(crate) fn put_back(&mut self, handle: HandleId, bytes: u64) {
        if bytes == self.bytes {
            self.bank.push(handle);
        } else {
            self.retired.push((handle, bytes));
        }
    }

    /// Whether a run touches one that is stuck.
    pub(crate) fn is_stuck(&self, address: u64, bytes: u64) -> bool {
        self.stuck.iter().any(|&(a, b)| address < a + b && a < address + bytes)
    }

    /// Bytes in pages that are mapped nowhere.
    pub(crate) fn bank_bytes(&self) -> u64 {
        let retired: u64 = self.retired.iter().map(|page| page.1).sum();
        self.bank.len() as u64 * self.bytes + retired
    }

    /// Bytes of memory that no lane has mapped.
    pub(crate) fn outside_bytes(&self) -> u64 {
        let orphaned = self.orphans.iter().flat_map(|o| &o.ranges).flat_map(|r| &r.runs);
        let lost: u64 = self.stuck.iter().chain(orphaned).map(|r| r.1).sum();
        self.bank_bytes() + lost
    }

    /// Bytes in pages, wherever they lie.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.bank_bytes() + self.mapped_bytes
    }
}
