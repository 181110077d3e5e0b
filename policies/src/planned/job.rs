//! Packing a recorded step, apart from the planner so that no lock need be held. Knows sizes and
//! lifetimes only.
use super::family::{Entry, NO_OFFSET};
use super::grams::Grams;
use super::record::{KEPT, Seen};
use crate::pack::{Buffer, pack_quick};

/// Work for [`PlanJob::pack`]: a recorded step. It owns its data.
#[derive(Debug)]
pub struct PlanJob {
    family: u64,
    number: u32,
    seen: Vec<Seen>,
}

/// What came of a [`PlanJob`], for [`Planner::adopt`](super::Planner::adopt).
#[derive(Debug)]
pub struct PlanDone {
    pub(super) family: u64,
    pub(super) number: u32,
    pub(super) plan: Plan,
}

/// A sequence with offsets.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) entries: Vec<Entry>,
    pub(super) grams: Grams,
    pub(super) height: u64,
}

impl PlanJob {
    pub(super) fn new(family: u64, number: u32, seen: Vec<Seen>) -> PlanJob {
        PlanJob { family, number, seen }
    }

    /// The family whose plan this is to become.
    pub(super) fn family(&self) -> u64 {
        self.family
    }

    /// Packs: a few microseconds per request and 20 ms of search at most, see [`pack_quick`]. What was kept
    /// beyond the step gets no place; nor does anything if the sizes sum up to more than 64 bits.
    pub fn pack(self) -> PlanDone {
        let PlanJob { family, number, seen } = self;
        let is_planned = |seen: &&Seen| seen.until != KEPT;
        let lifetimes = seen.iter().enumerate().filter(|(_, seen)| is_planned(seen));
        let buffers: Vec<Buffer> = lifetimes.map(|(at, seen)| buffer(at, seen)).collect();
        let packing = pack_quick(&buffers).unwrap_or_default();
        let mut offsets = packing.offsets.into_iter();
        let mut place = |seen: &Seen| {
            let offset = if is_planned(&seen) { offsets.next() } else { None };
            Entry { size: seen.size, offset: offset.unwrap_or(NO_OFFSET) }
        };
        let entries: Vec<Entry> = seen.iter().map(&mut place).collect();
        let grams = Grams::new(&entries);
        PlanDone { family, number, plan: Plan { entries, grams, height: packing.height } }
    }
}

fn buffer(at: usize, seen: &Seen) -> Buffer {
    let lower = at as u64;
    Buffer { lower, upper: u64::from(seen.until).max(lower + 1), size: seen.size }
}
