//! Greedy packing: buffers one after the other, each as low as it fits, in several orders. Knows parts
//! in units, and what a run costs; not how those in the way are found.

use super::online;
use super::scan::Scan;
use super::sections::Part;
use super::state::Span;
use super::tree::Tree;

/// Which buffers go first: of the orders that found the lowest packing of recorded steps, that by size
/// did most often.
const ORDERS: [fn(&Span) -> u128; 5] = [
    |span| u128::MAX - u128::from(span.size),
    |span| u128::MAX - u128::from(span.size) * (span.end - span.first) as u128,
    |span| u128::MAX - (span.end - span.first) as u128,
    |span| span.first as u128,
    |span| u128::MAX - span.end as u128,
];

/// What greedy packing may cost, and when it is content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Buffers looked at, a nanosecond each or so. A part for which they are too few is packed by
    /// [`online`] alone.
    pub(super) looks: u64,
    /// Runs over a part, orders included; those behind the orders are of the best of them with what did
    /// not fit moved up.
    pub(super) runs: u32,
}

impl Work {
    /// A second or less with any number of buffers, a sixth of one with hundreds.
    pub(super) const FULL: Work = Work { looks: 120_000_000, runs: 200 };

    /// Whether a run over a part is paid for, which it then is.
    fn pays(&mut self, looks: u64, runs: u32) -> bool {
        let is_paid = runs < self.runs && looks <= self.looks;
        self.looks -= if is_paid { looks } else { 0 };
        is_paid
    }
}

/// Offsets of a part in units: the lowest packing found, or the first that is no higher than `enough`.
pub(super) fn pack(part: &Part, enough: u64, work: &mut Work) -> Vec<u64> {
    let enough = enough.max(part.peak);
    let mut best = online::pack(part);
    let mut height = part.height(&best);
    if height <= enough {
        return best;
    }
    let mut fit = FirstFit::new(part);
    let mut runs = 0_u32..;
    let mut may_run = |looks| work.pays(looks, runs.next().unwrap_or(u32::MAX));
    let mut best_order: Option<Vec<u32>> = None;
    for key in ORDERS {
        if height <= enough || !may_run(fit.looks) {
            return best;
        }
        let mut order: Vec<u32> = (0..part.spans.len() as u32).collect();
        order.sort_by_cached_key(|at| key(&part.spans[*at as usize]));
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

/// Places buffers as low as they fit.
struct FirstFit<'a> {
    spans: &'a [Span],
    placed: Placed<'a>,
    offset: Vec<u64>,
    /// What a run costs, see [`Work::looks`].
    looks: u64,
}

/// The buffers placed so far. Both answer the same; which is quicker depends on how many buffers there
/// are and how many of them live at a time.
enum Placed<'a> {
    Scan(Scan),
    Tree(Tree<'a>),
}

impl<'a> FirstFit<'a> {
    fn new(part: &'a Part) -> FirstFit<'a> {
        let spans = &part.spans[..];
        let tree = Tree::new(part);
        let (by_tree, by_scan) = (tree.looks(), Scan::looks(spans.len()));
        let placed =
            if by_tree < by_scan { Placed::Tree(tree) } else { Placed::Scan(Scan::default()) };
        FirstFit { spans, placed, offset: vec![0; spans.len()], looks: by_tree.min(by_scan) }
    }

    /// Places all in this order and returns the height; or the place in the order of the first that
    /// would end above `height_max`.
    fn run(&mut self, order: &[u32], height_max: u64) -> Result<u64, usize> {
        match &mut self.placed {
            Placed::Scan(scan) => scan.clear(),
            Placed::Tree(tree) => tree.clear(),
        }
        let mut height = 0;
        for (place, &at) in order.iter().enumerate() {
            let span = self.spans[at as usize];
            let offset = match &mut self.placed {
                Placed::Scan(scan) => scan.lowest(span),
                Placed::Tree(tree) => tree.lowest(at, &self.offset),
            };
            if offset + span.size > height_max {
                return Err(place);
            }
            height = height.max(offset + span.size);
            self.offset[at as usize] = offset;
            match &mut self.placed {
                Placed::Scan(scan) => scan.place(span, offset),
                Placed::Tree(tree) => tree.place(at),
            }
        }
        Ok(height)
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::super::sections::Instance;
    use super::super::{Buffer, check};
    use super::*;

    fn buffers(count: u64, length: u64, seed: u64) -> Vec<Buffer> {
        let mut random = Random(seed);
        let mut below = |n: u64| random.bits() % n;
        let buffer = |_| {
            let lower = below(2 * count);
            Buffer { lower, upper: lower + 1 + below(length), size: 1 + below(300) }
        };
        (0..count).map(buffer).collect()
    }

    #[test]
    fn a_scan_and_a_tree_place_alike() {
        for (seed, length) in [(1, 3), (2, 30), (3, 300)] {
            for part in &Instance::new(&buffers(300, length, seed)).unwrap().parts {
                let order: Vec<u32> = (0..part.spans.len() as u32).rev().collect();
                let mut fit = FirstFit::new(part);
                fit.placed = Placed::Scan(Scan::default());
                let by_scan = (fit.run(&order, u64::MAX), fit.offset.clone());
                fit.placed = Placed::Tree(Tree::new(part));
                assert_eq!((fit.run(&order, u64::MAX), fit.offset.clone()), by_scan);
                let height = by_scan.0.unwrap();
                let too_high = fit.run(&order, height - 1);
                fit.placed = Placed::Scan(Scan::default());
                assert_eq!(fit.run(&order, height - 1), too_high);
            }
        }
    }

    #[test]
    fn work_that_is_spent_leaves_the_packing_so_far() {
        let buffers = buffers(400, 100, 4);
        let instance = Instance::new(&buffers).unwrap();
        let mut before = u64::MAX;
        for looks in [0, 10_000, 50_000, 100_000, 1_000_000] {
            let mut work = Work { looks, ..Work::FULL };
            let parts = instance.parts.iter();
            let offsets: Vec<Vec<u64>> = parts.map(|part| pack(part, 0, &mut work)).collect();
            let packing = instance.packing(&offsets, 0);
            assert_eq!(check(&buffers, &packing.offsets), Ok(packing.height));
            assert!(packing.height <= before, "{looks} looks are worse than fewer");
            before = packing.height;
        }
        let online: Vec<Vec<u64>> = instance.parts.iter().map(online::pack).collect();
        assert!(before < instance.height(&online), "looks are of use here");
    }
}
