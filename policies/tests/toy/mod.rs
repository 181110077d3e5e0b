//! A toy allocator around a planner: it gives a block the offset that the planner names if nothing lies
//! there, packs at once, and watches that nothing overlaps.
use aquifer_policies::BlockId;
use aquifer_policies::planned::Planner;
use std::collections::BTreeMap;

pub const KIND: u64 = 7;

/// One thing that a step does; blocks are numbered by the step's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Ask(u64),
    Free(usize),
}

/// Numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.0 >> 33) % n
    }
}

/// A planner, and where its live blocks lie.
#[derive(Default)]
pub struct Toy {
    pub planner: Planner,
    /// Begin to end and id of each block in the plan's space.
    planned: BTreeMap<u64, (u64, BlockId)>,
    offsets: BTreeMap<BlockId, u64>,
    /// Steps that tickets said to begin.
    pub begun: u64,
    free_ids: Vec<u32>,
    ids: u32,
}

impl Toy {
    /// A request; where it was placed, if in the plan.
    pub fn ask(&mut self, size: u64) -> (BlockId, Option<u64>) {
        while let Some(job) = self.planner.job() {
            self.planner.adopt(job.pack());
        }
        let ticket = self.planner.request(size);
        self.begun += u64::from(ticket.begins);
        let offset = ticket.offset.filter(|offset| self.is_free(*offset, size));
        let id = BlockId(self.free_ids.pop().unwrap_or(self.ids));
        self.ids = self.ids.max(id.0 + 1);
        if let Some(offset) = offset {
            assert!(offset + size <= self.planner.height());
            self.planned.insert(offset, (offset + size, id));
            self.offsets.insert(id, offset);
        }
        self.planner.placed(ticket, id, offset.is_some());
        (id, offset)
    }

    pub fn free(&mut self, id: BlockId) {
        if let Some(offset) = self.offsets.remove(&id) {
            self.planned.remove(&offset);
        }
        self.free_ids.push(id.0);
        self.planner.freed(id);
    }

    fn is_free(&self, offset: u64, size: u64) -> bool {
        let end = offset.checked_add(size).expect("a place ends within 64 bits");
        let before = self.planned.range(..end).next_back();
        before.is_none_or(|(_, (end_before, _))| *end_before <= offset)
    }

    /// Whether no two blocks in the plan's space overlap.
    pub fn is_apart(&self) -> bool {
        let begins = self.planned.keys().skip(1);
        self.planned.values().zip(begins).all(|((end, _), begin)| end <= begin)
    }

    /// Runs a step without a mark; where each request lay, and the blocks that it kept.
    pub fn run(&mut self, acts: &[Act]) -> (Vec<Option<u64>>, Vec<BlockId>) {
        let mut run = Run::default();
        self.go_on(&mut run, acts);
        (run.offsets, run.blocks.into_iter().flatten().collect())
    }

    /// More of a step.
    pub fn go_on(&mut self, run: &mut Run, acts: &[Act]) {
        for act in acts {
            match *act {
                Act::Ask(size) => {
                    let (id, offset) = self.ask(size);
                    run.offsets.push(offset);
                    run.blocks.push(Some(id));
                }
                Act::Free(at) => {
                    if let Some(id) = run.blocks.get_mut(at).and_then(Option::take) {
                        self.free(id);
                    }
                }
            }
        }
    }

    /// Runs a marked step that keeps nothing: what it did not free is freed behind it.
    pub fn step(&mut self, kind: u64, acts: &[Act]) -> Vec<Option<u64>> {
        self.planner.mark(kind);
        self.step_unmarked(acts)
    }

    /// The same without its mark.
    pub fn step_unmarked(&mut self, acts: &[Act]) -> Vec<Option<u64>> {
        let (offsets, kept) = self.run(acts);
        kept.into_iter().for_each(|id| self.free(id));
        offsets
    }
}

/// A step so far, by its requests: where each lay, and the block if it lives.
#[derive(Default)]
pub struct Run {
    pub offsets: Vec<Option<u64>>,
    pub blocks: Vec<Option<BlockId>>,
}

/// Requests of a step.
pub fn asks(acts: &[Act]) -> usize {
    acts.iter().filter(|act| matches!(act, Act::Ask(_))).count()
}

/// Requests that were served in the plan.
pub fn served(offsets: &[Option<u64>]) -> usize {
    offsets.iter().flatten().count()
}

/// A network's step: activations on the way there, freed on the way back, and scratch between.
pub fn step(layers: usize, seed: u64) -> Vec<Act> {
    let mut random = Random(seed);
    let mut size = || (1 + random.below(400)) * 512;
    let mut acts = Vec::new();
    for layer in 0..layers {
        acts.extend([Act::Ask(size()), Act::Ask(size()), Act::Free(2 * layer)]);
    }
    for layer in (0..layers).rev() {
        let gradient = asks(&acts);
        acts.extend([Act::Ask(size()), Act::Free(2 * layer + 1), Act::Free(gradient)]);
    }
    acts
}

/// The step with so many of its requests of another size.
pub fn with_deviations(acts: &[Act], count: usize, random: &mut Random) -> Vec<Act> {
    let mut acts = acts.to_vec();
    let requests: Vec<usize> =
        (0..acts.len()).filter(|at| matches!(acts[*at], Act::Ask(_))).collect();
    for _ in 0..count {
        let at = requests[random.below(requests.len() as u64) as usize];
        acts[at] = Act::Ask((1 + random.below(400)) * 512);
    }
    acts
}

/// The step with its request number `at` left out, or another one before it.
pub fn deviates_at(acts: &[Act], at: usize, leaves_out: bool) -> Vec<Act> {
    let renumbered = |block: usize| match leaves_out {
        true if block > at => block - 1,
        false if block >= at => block + 1,
        _ => block,
    };
    let (mut other, mut number) = (Vec::new(), 0);
    for act in acts {
        match *act {
            Act::Ask(size) => {
                let is_it = number == at;
                if is_it && !leaves_out {
                    other.push(Act::Ask(77 * 512));
                }
                if !is_it || !leaves_out {
                    other.push(Act::Ask(size));
                }
                number += 1;
            }
            Act::Free(block) if leaves_out && block == at => {}
            Act::Free(block) => other.push(Act::Free(renumbered(block))),
        }
    }
    other
}
