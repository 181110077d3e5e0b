//! Runs the search again and again, each time in another order, until one run comes to an end. Knows
//! orders and limits, not how the search works.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::random::Random;
use super::search::{Run, Search};
use super::sections::Part;
use super::state::Span;
use super::{Effort, PackError};

/// Nodes of the first run. With this and the next two, the eleven public instances of MiniMalloc take
/// 24,753 nodes in all (`cargo test -p aquifer-policies public -- --nocapture`).
const RUN_NODES: f64 = 500.0;

/// How much longer runs get each time all orders have been tried.
const GROWTH: f64 = 1.3;

/// How much of its key a buffer's place may be off in rounds after the first.
const NOISE: f64 = 0.3;

/// Which buffer is tried first where several are possible.
const ORDERS: [fn(&Span) -> f64; 6] = [
    |span| -(span.first as f64),
    |span| -((span.end - span.first) as f64),
    |span| -(span.end as f64),
    |span| -(span.size as f64),
    |span| -((span.end - span.first) as f64 * span.size as f64),
    |span| span.first as f64,
];

/// More buffers than this in one part are not searched: a node would take milliseconds, and the
/// memory of its blame goes with the square.
const BUFFERS_MAX: usize = 1 << 14;

/// What is left of an effort.
pub(super) struct Budget<'a> {
    effort: Effort<'a>,
    spent: u64,
}

impl<'a> Budget<'a> {
    pub(super) fn new(effort: Effort<'a>) -> Budget<'a> {
        Budget { effort, spent: 0 }
    }

    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    pub(super) fn left(&self) -> u64 {
        self.effort.nodes - self.spent
    }

    /// Counts a node if there is one left and nobody objects.
    pub(super) fn spend(&mut self) -> bool {
        if self.left() == 0 {
            return false;
        }
        self.spent += 1;
        if self.spent.is_multiple_of(256)
            && let Some(watch) = &mut self.effort.watch
            && watch(self.spent) == ControlFlow::Break(())
        {
            self.effort.nodes = self.spent;
        }
        true
    }

    /// Does something with a part of what is left.
    pub(super) fn lend<T>(&mut self, nodes: u64, work: impl FnOnce(&mut Budget<'a>) -> T) -> T {
        let all = self.effort.nodes;
        let limit = self.spent + nodes.min(self.left());
        self.effort.nodes = limit;
        let done = work(self);
        // Where somebody objected, nothing is left.
        if self.effort.nodes == limit {
            self.effort.nodes = all;
        }
        done
    }
}

/// Offsets of a part under a capacity, in units.
pub(super) fn solve(
    part: &Part,
    capacity: u64,
    budget: &mut Budget<'_>,
) -> Result<Vec<u64>, PackError> {
    if part.spans.len() > BUFFERS_MAX {
        return Err(PackError::Stopped { nodes: budget.spent() });
    }
    let mut search = Search::new(part.spans.clone(), part.sections, capacity);
    let mut random = Random(1);
    let mut nodes = RUN_NODES;
    for round in 0.. {
        for order in ORDERS {
            let rank = ranks(&part.spans, order, if round == 0 { 0.0 } else { NOISE }, &mut random);
            match search.run(rank, nodes as u64, budget) {
                Run::Solved => return Ok(search.offsets().to_vec()),
                Run::Exhausted => return Err(PackError::Exhausted { nodes: budget.spent() }),
                Run::Stopped if budget.left() == 0 => {
                    return Err(PackError::Stopped { nodes: budget.spent() });
                }
                Run::Stopped => {}
            }
        }
        nodes *= GROWTH;
    }
    unreachable!("the budget ends before the rounds do")
}

/// The place of each buffer in an order.
fn ranks(spans: &[Span], order: fn(&Span) -> f64, noise: f64, random: &mut Random) -> Vec<u32> {
    let mut keyed: Vec<(f64, usize)> = Vec::with_capacity(spans.len());
    for (at, span) in spans.iter().enumerate() {
        keyed.push((order(span) * (1.0 + noise * random.fraction()), at));
    }
    keyed.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    let mut ranks = vec![0; spans.len()];
    for (rank, (_, at)) in keyed.into_iter().enumerate() {
        ranks[at] = rank as u32;
    }
    ranks
}
