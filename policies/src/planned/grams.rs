//! Where runs of four sizes occur in a sequence. Knows sizes and positions only.
use super::family::Entry;

/// Sizes in a run.
pub(super) const RUN: usize = 4;

/// Positions looked at per question.
const LOOKS_MAX: usize = 8;

/// Positions of the last sizes of all runs, in buckets by hash, ascending within a bucket.
#[derive(Debug, Default)]
pub(super) struct Grams {
    begins: Vec<u32>,
    ends_of_runs: Vec<u32>,
    shift: u32,
}

impl Grams {
    /// An index of all runs of `entries`: `n` steps, 8 bytes an entry.
    pub(super) fn new(entries: &[Entry]) -> Grams {
        let bits = usize::BITS - entries.len().leading_zeros() + 1;
        let mut grams =
            Grams { begins: vec![0; (1 << bits) + 1], ends_of_runs: Vec::new(), shift: 64 - bits };
        let hashes = || entries.windows(RUN).map(|run| hash([0, 1, 2, 3].map(|at| run[at].size)));
        for hash in hashes() {
            grams.begins[(hash >> grams.shift) as usize + 1] += 1;
        }
        for bucket in 1..grams.begins.len() {
            grams.begins[bucket] += grams.begins[bucket - 1];
        }
        grams.ends_of_runs = vec![0; entries.len().saturating_sub(RUN - 1)];
        let mut next = grams.begins.clone();
        for (at, hash) in hashes().enumerate() {
            let slot = &mut next[(hash >> grams.shift) as usize];
            grams.ends_of_runs[*slot as usize] = (at + RUN - 1) as u32;
            *slot += 1;
        }
        grams
    }

    /// Where the last size of `run` stands: the first place at or after `from`, else the last before.
    pub(super) fn find(&self, entries: &[Entry], run: [u64; RUN], from: usize) -> Option<usize> {
        let bucket = (hash(run) >> self.shift) as usize;
        let begins = self.begins.get(bucket..bucket + 2)?;
        let places = &self.ends_of_runs[begins[0] as usize..begins[1] as usize];
        let middle = places.partition_point(|place| (*place as usize) < from);
        let is_here = |place: &&u32| {
            let end = **place as usize;
            (0..RUN).all(|at| entries[end + 1 - RUN + at].size == run[at])
        };
        let after = places[middle..].iter().take(LOOKS_MAX).find(is_here);
        let before = || places[..middle].iter().rev().take(LOOKS_MAX).find(is_here);
        after.or_else(before).map(|place| *place as usize)
    }
}

fn hash(run: [u64; RUN]) -> u64 {
    let mix =
        |sum: u64, size: u64| (sum.rotate_left(23) ^ size).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    run.into_iter().fold(0, mix)
}
