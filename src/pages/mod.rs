//! The books of paged backing: which physical page lies where, the bank of pages that lie nowhere, what
//! is known of the device's progress, what moving pages has cost.
//!
//! Knows neither heaps nor policies. Heaps know which addresses are mapped; here is by what.
mod budget;
mod marks;
mod table;

pub(crate) use budget::{Budget, Move};
pub(crate) use marks::{LaneKey, Marks, Open};

use crate::driver::{EventId, HandleId, StreamId};
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
    /// Bytes of a page.
    pub(crate) bytes: u64,
    mapped: Table,
    /// Physical pages mapped nowhere.
    pub(crate) bank: Vec<HandleId>,
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
        Pages { bytes, ..Pages::default() }
    }

    /// `handles` lie from `address` on now.
    pub(crate) fn enter(&mut self, address: u64, handles: &[HandleId]) {
        self.mapped.enter(address / self.bytes, handles);
    }

    /// The pages of a run that is mapped no more go into the bank.
    pub(crate) fn bank_run(&mut self, address: u64, bytes: u64) {
        self.mapped.take(address / self.bytes, bytes / self.bytes, &mut self.bank);
    }

    /// Whether a run touches one that is stuck.
    pub(crate) fn is_stuck(&self, address: u64, bytes: u64) -> bool {
        self.stuck.iter().any(|&(a, b)| address < a + b && a < address + bytes)
    }

    /// Bytes in the bank.
    pub(crate) fn bank_bytes(&self) -> u64 {
        self.bank.len() as u64 * self.bytes
    }

    /// Bytes of memory that no lane has mapped.
    pub(crate) fn outside_bytes(&self) -> u64 {
        let orphaned = self.orphans.iter().flat_map(|o| &o.ranges).flat_map(|r| &r.runs);
        let lost: u64 = self.stuck.iter().chain(orphaned).map(|r| r.1).sum();
        self.bank_bytes() + lost
    }

    /// Bytes in pages, wherever they lie.
    pub(crate) fn total_bytes(&self) -> u64 {
        (self.bank.len() + self.mapped.len()) as u64 * self.bytes
    }
}
