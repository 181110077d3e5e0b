//! Greedy packing: buffers one after the other, each as low as it fits, in several orders. Knows parts
//! in units.

use super::online;
use super::sections::Part;
use super::state::Span;

/// Buffers looked at in all, over the orders of a part: a second's work or less.
const LOOKS_MAX: u64 = 20_000_000;

/// Runs in all: orders, and then the best of them with what did not fit moved up.
const RUNS_MAX: u32 = 200;

/// Which buffers go first.
const ORDERS: [fn(&Span) -> u128; 5] = [
    |span| u128::MAX - u128::from(span.size) * (span.end - span.first) as u128,
    |span| u128::MAX - u128::from(span.size),
    |span| u128::MAX - (span.end - span.first) as u128,
    |span| span.first as u128,
    |span| u128::MAX - span.end as u128,
];

/// Offsets of a part in units: the lowest packing found, or the first that is no higher than `enough`.
pub(super) fn pack(part: &Part, enough: u64) -> Vec<u64> {
    let enough = enough.max(part.peak);
    let mut best = online::pack(part);
    let mut height = part.height(&best);
    let mut looks = 0;
    let mut fit = FirstFit::new(part);
    let mut runs = 0;
    let mut may_run = |cost: u64| {
        (looks, runs) = (looks + cost, runs + 1);
        looks <= LOOKS_MAX && runs <= RUNS_MAX
    };
    let mut best_order: Option<Vec<u32>> = None;
    for key in ORDERS {
        if height <= enough || !may_run(fit.looks) {
            return best;
        }
        let mut order: Vec<u32> = (0..part.spans.len() as u32).collect();
        order.sort_by_key(|at| key(&part.spans[*at as usize]));
        let reached = fit.run(&order, u64::MAX).expect("nothing is too high");
        if reached < height || best_order.is_none() {
            best_order = Some(order);
        }
        if reached < height {
            (best, height) = (fit.offset.clone(), reached);
        }
    }
    let mut order = best_order.expect("an order was tried");
    while height > enough && may_run(fit.looks) {
        match fit.run(&order, height - 1) {
            Ok(reached) => (best, height) = (fit.offset.clone(), reached),
            // What did not fit goes ahead of half of those that did.
            Err(at) => order[at / 2..=at].rotate_right(1),
        }
    }
    best
}

/// Places buffers as low as they fit and finds those in the way.
struct FirstFit<'a> {
    spans: &'a [Span],
    /// Buffers by their first section, and where those of each section begin.
    by_first: Vec<u32>,
    begins: Vec<usize>,
    /// A tree over the sections: a placed buffer is kept at the largest nodes that it covers, so that
    /// those that cover a section are kept between its leaf and the root. The root is at 1.
    tree: Vec<Vec<u32>>,
    is_placed: Vec<bool>,
    offset: Vec<u64>,
    /// Buffers looked at in a run.
    looks: u64,
}

impl<'a> FirstFit<'a> {
    fn new(part: &'a Part) -> FirstFit<'a> {
        let spans = &part.spans[..];
        let mut by_first: Vec<u32> = (0..spans.len() as u32).collect();
        by_first.sort_by_key(|at| spans[*at as usize].first);
        let begins: Vec<usize> = (0..=part.sections)
            .map(|section| by_first.partition_point(|at| spans[*at as usize].first < section))
            .collect();
        let starts = |span: &Span| (begins[span.end] - begins[span.first]) as u64;
        let looks = spans.iter().map(|span| 2 * starts(span) + 16).sum();
        FirstFit {
            spans,
            by_first,
            tree: vec![Vec::new(); 2 * part.sections.next_power_of_two()],
            is_placed: vec![false; spans.len()],
            offset: vec![0; spans.len()],
            begins,
            looks,
        }
    }

    /// Places all in this order and returns the height; or the place in the order of the first that
    /// would end above `height_max`.
    fn run(&mut self, order: &[u32], height_max: u64) -> Result<u64, usize> {
        self.tree.iter_mut().for_each(Vec::clear);
        self.is_placed.fill(false);
        let mut taken = Vec::new();
        let mut height = 0;
        for (place, &at) in order.iter().enumerate() {
            self.find_taken(at, &mut taken);
            taken.sort_unstable();
            let size = self.spans[at as usize].size;
            let mut offset = 0;
            for &(begin, end) in &taken {
                if begin >= offset + size {
                    break;
                }
                offset = end.max(offset);
            }
            if offset + size > height_max {
                return Err(place);
            }
            height = height.max(offset + size);
            self.offset[at as usize] = offset;
            self.place(at);
        }
        Ok(height)
    }

    /// The ranges of the placed buffers that live at the same time.
    fn find_taken(&self, at: u32, taken: &mut Vec<(u64, u64)>) {
        taken.clear();
        let range = |at: u32| {
            let offset = self.offset[at as usize];
            (offset, offset + self.spans[at as usize].size)
        };
        let span = self.spans[at as usize];
        // Those that live when it begins, then those that begin later.
        let mut node = self.tree.len() / 2 + span.first;
        while node > 0 {
            taken.extend(self.tree[node].iter().map(|other| range(*other)));
            node /= 2;
        }
        let later = &self.by_first[self.begins[span.first + 1]..self.begins[span.end]];
        let placed = later.iter().filter(|other| self.is_placed[**other as usize]);
        taken.extend(placed.map(|other| range(*other)));
    }

    fn place(&mut self, at: u32) {
        self.is_placed[at as usize] = true;
        let span = self.spans[at as usize];
        let leaves = self.tree.len() / 2;
        let (mut from, mut to) = (leaves + span.first, leaves + span.end);
        while from < to {
            if from % 2 == 1 {
                self.tree[from].push(at);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                self.tree[to].push(at);
            }
            (from, to) = (from / 2, to / 2);
        }
    }
}
