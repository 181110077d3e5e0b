//! Placed buffers in a tree over time, which finds those that live with another one without a look at
//! the rest. The quicker way where there are many and few of them live at a time.

use super::sections::Part;
use super::state::Span;

/// What a buffer that is found costs, sorting included, in looks of a [`Scan`](super::scan::Scan).
/// Measured with `cargo bench --features compress --bench pack`.
const FOUND_LOOKS: u64 = 6;

/// The buffers of a part and which of them are placed.
pub(super) struct Tree<'a> {
    spans: &'a [Span],
    /// Buffers by their first section, and where those of each section begin.
    by_first: Vec<u32>,
    begins: Vec<usize>,
    /// A node for each run of sections: a placed buffer is kept at the largest nodes that it covers, so
    /// that those that cover a section are kept between its leaf and the root. The root is at 1.
    nodes: Vec<Vec<u32>>,
    is_placed: Vec<bool>,
    /// The ranges of those found, kept for its memory.
    taken: Vec<(u64, u64)>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(part: &'a Part) -> Tree<'a> {
        let spans = &part.spans[..];
        let mut by_first: Vec<u32> = (0..spans.len() as u32).collect();
        by_first.sort_by_key(|at| spans[*at as usize].first);
        let begins: Vec<usize> = (0..=part.sections)
            .map(|section| by_first.partition_point(|at| spans[*at as usize].first < section))
            .collect();
        Tree {
            spans,
            by_first,
            nodes: vec![Vec::new(); 2 * part.sections.next_power_of_two()],
            is_placed: vec![false; spans.len()],
            begins,
            taken: Vec::new(),
        }
    }

    /// What a run over all buffers costs at most, in looks of a scan.
    pub(super) fn looks(&self) -> u64 {
        let starts = |span: &Span| (self.begins[span.end] - self.begins[span.first]) as u64;
        self.spans.iter().map(|span| FOUND_LOOKS * (2 * starts(span) + 16)).sum()
    }

    pub(super) fn clear(&mut self) {
        self.nodes.iter_mut().for_each(Vec::clear);
        self.is_placed.fill(false);
    }

    /// Where the buffer fits, as low as can be, beside those placed at these offsets.
    pub(super) fn lowest(&mut self, at: u32, offsets: &[u64]) -> u64 {
        let mut taken = std::mem::take(&mut self.taken);
        self.find_taken(at, offsets, &mut taken);
        taken.sort_unstable();
        let size = self.spans[at as usize].size;
        let mut offset = 0;
        for &(begin, end) in &taken {
            if begin >= offset + size {
                break;
            }
            offset = end.max(offset);
        }
        self.taken = taken;
        offset
    }

    /// The ranges of the placed buffers that live at the same time.
    fn find_taken(&self, at: u32, offsets: &[u64], taken: &mut Vec<(u64, u64)>) {
        taken.clear();
        let range = |at: u32| {
            let offset = offsets[at as usize];
            (offset, offset + self.spans[at as usize].size)
        };
        let span = self.spans[at as usize];
        // Those that live when it begins, then those that begin later.
        let mut node = self.nodes.len() / 2 + span.first;
        while node > 0 {
            taken.extend(self.nodes[node].iter().map(|other| range(*other)));
            node /= 2;
        }
        let later = &self.by_first[self.begins[span.first + 1]..self.begins[span.end]];
        let placed = later.iter().filter(|other| self.is_placed[**other as usize]);
        taken.extend(placed.map(|other| range(*other)));
    }

    /// The buffer is placed from now on.
    pub(super) fn place(&mut self, at: u32) {
        self.is_placed[at as usize] = true;
        let span = self.spans[at as usize];
        let leaves = self.nodes.len() / 2;
        let (mut from, mut to) = (leaves + span.first, leaves + span.end);
        while from < to {
            if from % 2 == 1 {
                self.nodes[from].push(at);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                self.nodes[to].push(at);
            }
            (from, to) = (from / 2, to / 2);
        }
    }
}
