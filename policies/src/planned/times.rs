//! Translates between the times of a step, in requests, and those of the family it follows. Knows
//! sizes and offsets of neither.
use super::record::{KEPT, NOWHERE, Seen};

/// For each time of the one the time of the other.
#[derive(Debug)]
pub(super) struct Times {
    to_family: Vec<u32>,
    to_step: Vec<u32>,
}

impl Times {
    /// Of a step with positions in a family of `length` requests. A time becomes that of the first
    /// request from then on that both have, else the end.
    pub(super) fn new(seen: &[Seen], length: usize) -> Times {
        let mut to_family = vec![length as u32; seen.len() + 1];
        let mut to_step = vec![seen.len() as u32; length + 1];
        for (at, seen) in seen.iter().enumerate().rev() {
            to_family[at] = to_family[at + 1];
            if seen.position != NOWHERE {
                to_family[at] = seen.position;
                to_step[seen.position as usize] = at as u32;
            }
        }
        for at in (0..length).rev() {
            to_step[at] = to_step[at].min(to_step[at + 1]);
        }
        Times { to_family, to_step }
    }

    /// When `seen`, which has a position, was freed in the family's time.
    pub(super) fn in_family(&self, seen: &Seen) -> u32 {
        let until = self.to_family.get(seen.until as usize).copied();
        until.map_or(KEPT, |until| until.max(seen.position + 1))
    }

    /// A time of the step in the family's.
    pub(super) fn to_family(&self, time: u32) -> u32 {
        self.to_family.get(time as usize).copied().unwrap_or(KEPT)
    }

    /// A time of the family, or [`KEPT`], in the step's time.
    pub(super) fn in_step(&self, until: u32) -> u32 {
        self.to_step.get(until as usize).copied().unwrap_or(KEPT)
    }
}

/// The step, with lifetimes as long as the longer of its own and those of the family.
pub(super) fn union(seen: &[Seen], family: &[u32], times: &Times) -> Vec<Seen> {
    let longer = |seen: &Seen| {
        let other = family.get(seen.position as usize).map_or(0, |until| times.in_step(*until));
        Seen { until: seen.until.max(other), ..*seen }
    };
    seen.iter().map(longer).collect()
}
