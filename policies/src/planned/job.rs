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
    /// beyond the next step gets no place; nor does anything if the sizes sum up to more than 64 bits.
    pub fn pack(self) -> PlanDone {
        let PlanJob { family, number, seen } = self;
        let lives: Vec<Life> = (0..seen.len()).filter_map(|at| Life::new(at, &seen)).collect();
        let turn = quietest(&lives, seen.len() as u64);
        let buffers: Vec<Buffer> =
            lives.iter().map(|life| life.turned(turn, seen.len() as u64)).collect();
        let packing = pack_quick(&buffers).unwrap_or_default();
        let entry = |seen: &Seen| Entry { size: seen.size, offset: NO_OFFSET };
        let mut entries: Vec<Entry> = seen.iter().map(entry).collect();
        for (life, offset) in lives.iter().zip(&packing.offsets) {
            entries[life.begin as usize].offset = *offset;
        }
        let grams = Grams::new(&entries);
        PlanDone { family, number, plan: Plan { entries, grams, height: packing.height } }
    }
}

/// When a request lives, in a circle of steps: it may end in the step after its own.
#[derive(Clone, Copy, Debug)]
struct Life {
    begin: u64,
    end: u64,
    size: u64,
}

impl Life {
    /// Of request `at`; none if it lives on, or meets the same request of the next step.
    fn new(at: usize, seen: &[Seen]) -> Option<Life> {
        let Seen { size, until, .. } = seen[at];
        let begin = at as u64;
        let end = u64::from(until).max(begin + 1);
        (until != KEPT && end - begin <= seen.len() as u64).then_some(Life { begin, end, size })
    }

    /// The same where time begins with `turn`. What lives then is taken to live all the time.
    fn turned(&self, turn: u64, length: u64) -> Buffer {
        let Life { begin, end, size } = *self;
        let lives = |time: u64| begin < time && time < end;
        if lives(turn) || lives(turn + length) {
            return Buffer { lower: 0, upper: length, size };
        }
        let lower = if begin < turn { begin + length - turn } else { begin - turn };
        Buffer { lower, upper: lower + (end - begin), size }
    }
}

/// The time in a circle of `length`, over 0, over which the fewest bytes are kept; the first of several.
fn quietest(lives: &[Life], length: u64) -> u64 {
    // Sums wrap: they are bytes in use, of changes that come in any order.
    let mut changes = vec![0u64; length as usize + 1];
    let mut keep = |from: u64, to: u64, size: u64| {
        let (from, to) = (from.min(length) as usize, to.min(length) as usize);
        changes[from] = changes[from].wrapping_add(size);
        changes[to] = changes[to].wrapping_sub(size);
    };
    for Life { begin, end, size } in lives {
        keep(begin + 1, *end, *size);
        keep(0, end.saturating_sub(length), *size);
    }
    let mut kept = 0u64;
    let kept_at = changes.iter().take(length as usize).map(|change| {
        kept = kept.wrapping_add(*change);
        kept
    });
    kept_at.enumerate().min_by_key(|(_, kept)| *kept).map_or(0, |(at, _)| at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::check;

    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (*state >> 33) % below
    }

    /// A step of which a tenth lives on into the next one and a few for ever.
    fn seen(state: &mut u64, length: u32) -> Vec<Seen> {
        let one = |at: u32| {
            let most = if random(state, 10) == 0 { 2 * length } else { length - at };
            let until = at + 1 + random(state, u64::from(most)) as u32;
            let until = if random(state, 50) == 0 { KEPT } else { until };
            Seen { size: 512 * (1 + random(state, 100)), position: at, until }
        };
        (0..length).map(one).collect()
    }

    #[test]
    fn steps_in_a_row_never_overlap() {
        let mut state = 1;
        for length in (1..60).chain([300, 1_000]) {
            let seen = seen(&mut state, length);
            let plan = PlanJob::new(0, 1, seen.clone()).pack().plan;
            let (mut buffers, mut offsets) = (Vec::new(), Vec::new());
            for (at, (seen, entry)) in seen.iter().zip(&plan.entries).enumerate() {
                let meets_itself = u64::from(seen.until) > u64::from(length) + at as u64;
                assert_eq!(entry.offset == NO_OFFSET, seen.until == KEPT || meets_itself);
                assert!(entry.offset == NO_OFFSET || entry.offset + entry.size <= plan.height);
                for step in (0..3).filter(|_| entry.offset != NO_OFFSET) {
                    let begin = u64::from(step * length);
                    let (lower, upper) = (begin + at as u64, begin + u64::from(seen.until));
                    buffers.push(Buffer { lower, upper, size: seen.size });
                    offsets.push(entry.offset);
                }
            }
            check(&buffers, &offsets).unwrap();
        }
    }

    #[test]
    fn a_circle_is_cut_where_least_is_kept() {
        // One block in the first step, one into the second, and a large one across the middle.
        let lives = [(0, 4, 1), (8, 12, 1), (1, 9, 5), (9, 10, 9)];
        let lives = lives.map(|(begin, end, size)| Life { begin, end, size });
        assert_eq!(quietest(&lives, 10), 0);
        assert_eq!(quietest(&lives[..2], 10), 4);
        assert_eq!(quietest(&lives[2..], 10), 0);
        assert_eq!(quietest(&[Life { begin: 3, end: 13, size: 1 }], 10), 3);
    }
}
