//! Exact search for offsets of one connected part of an instance under a capacity. Knows sections and
//! units, not bytes or time; when to begin anew, and in which order to try, is `restarts`' business.
//!
//! A section is a stretch of time in which the same buffers live. The search fills memory from the
//! bottom: each section has a floor, under which nothing more goes, and a rest, the sizes of its buffers
//! still to place. `floor + rest > capacity` anywhere is a dead end.
//!
//! A *valley* is a run of sections of one floor between higher ones. In a solution whose buffers are all
//! pushed down, the next buffer of a section in a valley lies within the valley and on its floor, or
//! the section is left empty up to the next height at which a buffer could come to lie. Those are the
//! branches: disjoint, few, and of any valley, so that the search takes the section with the fewest,
//! weighed by how often the section was the dead end. Sections that no buffer crosses any more part the
//! rest into independent ones.
//!
//! Each dead end comes with its blame: sections whose floors and buffers are enough for it. A
//! branch outside the blame could not have helped, and its alternatives are skipped. States that failed
//! are kept (`nogoods`), over restarts too.

use std::cmp::Reverse;

use super::bits::Bits;
use super::nogoods::{Key, Nogoods};
use super::restarts::Budget;
use super::state::{Part, Span, State};
use super::valleys::{Choice, Valleys};

/// How one run of the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// The offsets are a solution.
    Solved,
    /// There is no solution.
    Exhausted,
    /// The nodes ran out.
    Stopped,
}

/// A node of the search whose branches are being tried.
struct Frame {
    part: Part,
    /// Length of the trail when the node was entered.
    entered: usize,
    /// Length of the trail with what followed from that.
    inferred: usize,
    key: Key,
    blame: Bits,
    tried: Branches,
}

/// The branches of a node.
struct Branches {
    section: usize,
    /// Up to where the section is left empty in the last branch.
    waste: Option<u64>,
    /// Buffers to try on the section's floor, the last first.
    options: Vec<u32>,
    /// The sections that the branch being tried touches.
    touched: (usize, usize),
    /// What is left to solve of the branch being tried.
    pending: Vec<Part>,
}

/// What is to be done next.
enum Step {
    /// Enter the node of a part.
    Enter(Part),
    /// Take the next branch of the newest node.
    Next,
    /// A part is solved, or what is left of one is to be solved part by part.
    Solved,
    /// What was entered last has no solution.
    Dead(Bits),
}

pub(super) struct Search {
    state: State,
    valleys: Valleys,
    /// Place of a buffer among the options of a node: lower is tried earlier.
    rank: Vec<u32>,
    stack: Vec<Frame>,
    nogoods: Nogoods,
}

impl Search {
    /// All sections are covered, by sizes whose sum is at most `capacity` in each.
    pub(super) fn new(spans: Vec<Span>, sections: usize, capacity: u64) -> Search {
        Search {
            valleys: Valleys::new(sections),
            rank: vec![0; spans.len()],
            stack: Vec::new(),
            nogoods: Nogoods::new(spans.len(), sections),
            state: State::new(spans, sections, capacity),
        }
    }

    /// After [`Run::Solved`], where each buffer lies, in units.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.state.offset
    }

    /// Searches from the bottom, trying buffers in the order of their `rank`, until `nodes` nodes have
    /// been entered or the budget has run out.
    pub(super) fn run(&mut self, rank: Vec<u32>, nodes: u64, budget: &mut Budget<'_>) -> Run {
        self.rank = rank;
        self.stack.clear();
        // The order is another than before, and old dead ends tell less.
        self.valleys.forgive();
        let mut nodes = 0..nodes;
        let mut step = Step::Enter(self.state.reset());
        loop {
            step = match step {
                Step::Enter(_) if nodes.next().is_none() || !budget.spend() => return Run::Stopped,
                Step::Enter(part) => self.enter(part),
                Step::Next => self.branch(),
                Step::Solved => match self.stack.last_mut() {
                    None => return Run::Solved,
                    Some(frame) => match frame.tried.pending.pop() {
                        Some(part) => Step::Enter(part),
                        None => {
                            self.stack.pop();
                            Step::Solved
                        }
                    },
                },
                Step::Dead(_) if self.stack.is_empty() => return Run::Exhausted,
                Step::Dead(blame) => self.refuse(blame),
            };
        }
    }

    /// Draws the conclusions at a new node and chooses where to branch.
    fn enter(&mut self, part: Part) -> Step {
        let entered = self.state.trail_length();
        let mut blame = Bits::new(self.state.floor.len());
        if let Some(section) = self.state.raise_floors(part) {
            self.valleys.blame(section);
            blame.set(section);
            return Step::Dead(self.retreat(part, entered, blame));
        }
        let key = self.key(part);
        if let Some((first, end)) = self.nogoods.find(key) {
            (first..end).for_each(|section| blame.set(section));
            return Step::Dead(self.retreat(part, entered, blame));
        }
        let Choice { section, waste, valley: (first, end), .. } =
            self.valleys.choose(&self.state, part);
        blame.set(section);
        // The walls of the valley keep all other buffers of the section off its floor.
        if first > part.first {
            blame.set(first - 1);
        }
        if end < part.end {
            blame.set(end);
        }
        let mut options = self.valleys.options(&self.state, part, section);
        options.sort_unstable_by_key(|buffer| Reverse(self.rank[*buffer as usize]));
        let (inferred, touched, pending) = (self.state.trail_length(), (0, 0), Vec::new());
        let tried = Branches { section, waste, options, touched, pending };
        self.stack.push(Frame { part, entered, inferred, key, blame, tried });
        Step::Next
    }

    fn key(&self, part: Part) -> Key {
        let mut key = self.nogoods.key();
        self.state.buffers(part).for_each(|(buffer, _)| key.buffer(buffer as usize));
        for section in part.first..part.end {
            key.floor(section, self.state.floor[section]);
        }
        key.done()
    }

    /// Takes the next branch of the newest node.
    fn branch(&mut self) -> Step {
        let Some(frame) = self.stack.last_mut() else { unreachable!("a node is open") };
        let (part, tried) = (frame.part, &mut frame.tried);
        if let Some(buffer) = tried.options.pop() {
            let span = self.state.spans[buffer as usize];
            tried.touched = (span.first, span.end);
            tried.pending = self.state.place(part, buffer);
        } else if let Some(height) = tried.waste.take() {
            tried.touched = (tried.section, tried.section + 1);
            self.state.raise(tried.touched, height, part);
            tried.pending = self.state.split(part);
        } else {
            let Frame { part, entered, key, blame, .. } = self.stack.pop().expect("it is open");
            return Step::Dead(self.close(part, entered, key, blame));
        }
        Step::Solved
    }

    /// The branch being tried is a dead end: on to the next, or out of the node if none could help.
    fn refuse(&mut self, blame: Bits) -> Step {
        let Some(frame) = self.stack.last_mut() else { unreachable!("a node is open") };
        self.state.undo(frame.inferred, |_, _| ());
        if blame.meets(frame.tried.touched.0, frame.tried.touched.1) {
            frame.blame.join(&blame);
            return Step::Next;
        }
        let Frame { part, entered, key, .. } = self.stack.pop().expect("it is open");
        Step::Dead(self.close(part, entered, key, blame))
    }

    /// Notes that a node failed and goes back to before it.
    fn close(&mut self, part: Part, entered: usize, key: Key, blame: Bits) -> Bits {
        self.nogoods.insert(key, blame.hull());
        self.retreat(part, entered, blame)
    }

    /// Goes back to before a node. A floor that was raised there is to blame through the floors that
    /// held up its buffers.
    fn retreat(&mut self, part: Part, entered: usize, mut blame: Bits) -> Bits {
        let mut raised = Vec::new();
        self.state.undo(entered, |section, height| {
            if blame.has(section) {
                raised.push((section, height));
            }
        });
        for (section, height) in raised {
            for (_, span) in self.state.buffers(part).filter(|(_, span)| span.covers(section)) {
                let holds_up = |at: &usize| self.state.floor[*at] >= height;
                let holding = (span.first..span.end).filter(holds_up);
                if !holding.clone().any(|at| blame.has(at)) {
                    let near = holding.min_by_key(|at| at.abs_diff(section));
                    blame.set(near.expect("a buffer lies as high as its highest floor"));
                }
            }
        }
        blame
    }
}
