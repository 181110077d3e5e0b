//! Chooses where the search branches. Knows the state, not what has been tried.
//!
//! A *valley* is a run of sections of one floor between higher ones.

use super::state::{Part, Span, State};

/// Where to branch.
pub(super) struct Choice {
    pub(super) section: usize,
    score: u64,
    /// The height under which the section stays empty if none of its buffers lies on its floor;
    /// `None` where there is no room for that.
    pub(super) waste: Option<u64>,
    /// The sections of its valley.
    pub(super) valley: (usize, usize),
}

const NO_VALLEY: u32 = u32::MAX;

/// The valleys of a part, and which sections were dead ends.
pub(super) struct Valleys {
    /// How often a section was a dead end, and 1.
    weight: Vec<u64>,
    /// The valley of a section.
    number: Vec<u32>,
    valleys: Vec<(usize, usize)>,
    /// Room for the change in the number of options from one section to the next.
    options: Vec<i64>,
}

impl Valleys {
    pub(super) fn new(sections: usize) -> Valleys {
        Valleys {
            weight: vec![1; sections],
            number: vec![NO_VALLEY; sections],
            valleys: Vec::new(),
            options: vec![0; sections + 1],
        }
    }

    /// Notes a dead end.
    pub(super) fn blame(&mut self, section: usize) {
        self.weight[section] += 1;
    }

    /// Lets dead ends so far count for half.
    pub(super) fn forgive(&mut self) {
        self.weight.iter_mut().for_each(|weight| *weight = 1 + (*weight - 1) / 2);
    }

    /// The section with the fewest branches, twice the buffers and the one of waste, by its weight.
    pub(super) fn choose(&mut self, state: &State, part: Part) -> Choice {
        self.find(state, part);
        self.options[part.first..=part.end].fill(0);
        for (_, span) in state.buffers(part) {
            if self.holds(span) {
                self.options[span.first] += 1;
                self.options[span.end] -= 1;
            }
        }
        let mut best: Option<Choice> = None;
        for valley in 0..self.valleys.len() {
            let (first, end) = self.valleys[valley];
            let mut count = 0;
            for section in first..end {
                count += self.options[section];
                let score = |branches: u64| (branches << 40) / self.weight[section];
                let at_least = score(2 * count as u64);
                if best.as_ref().is_some_and(|best| at_least >= best.score) {
                    continue;
                }
                let waste = waste(state, part, section, (first, end));
                let score = score(2 * count as u64 + u64::from(waste.is_some()));
                if best.as_ref().is_none_or(|best| score < best.score) {
                    best = Some(Choice { section, score, waste, valley: (first, end) });
                }
            }
        }
        best.expect("the lowest floor is a valley's")
    }

    /// The buffers that may lie on the floor of a section in a valley, one of each kind.
    pub(super) fn options(&self, state: &State, part: Part, section: usize) -> Vec<u32> {
        let mut seen: Vec<Span> = Vec::new();
        let mut options = Vec::new();
        for (buffer, span) in state.buffers(part) {
            if span.covers(section) && self.holds(span) && !seen.contains(&span) {
                seen.push(span);
                options.push(buffer);
            }
        }
        options
    }

    fn find(&mut self, state: &State, part: Part) {
        self.valleys.clear();
        let mut first = part.first;
        while first < part.end {
            let floor = state.floor[first];
            let run = state.floor[first..part.end].iter().take_while(|other| **other == floor);
            let end = first + run.count();
            let is_lower = |other: usize| state.floor[other] > floor;
            let is_valley =
                (first == part.first || is_lower(first - 1)) && (end == part.end || is_lower(end));
            let number = if is_valley { self.valleys.len() as u32 } else { NO_VALLEY };
            self.number[first..end].fill(number);
            if is_valley {
                self.valleys.push((first, end));
            }
            first = end;
        }
    }

    /// Whether the buffer lies within a valley, and so on its floor.
    fn holds(&self, span: Span) -> bool {
        let valley = self.number[span.first];
        valley != NO_VALLEY && self.valleys[valley as usize].1 >= span.end
    }
}

/// [`Choice::waste`] of a section in a valley.
fn waste(state: &State, part: Part, section: usize, valley: (usize, usize)) -> Option<u64> {
    let floor = state.floor[section];
    let room = state.capacity - floor - state.rest[section];
    if room == 0 {
        return None;
    }
    let mut height = u64::MAX;
    if valley.0 > part.first {
        height = state.floor[valley.0 - 1];
    }
    if valley.1 < part.end {
        height = height.min(state.floor[valley.1]);
    }
    // A buffer of the section that lies higher within the valley lies on another one there.
    let inside = || {
        let spans = state.buffers(part).map(|(_, span)| span);
        spans.filter(|span| valley.0 <= span.first && span.end <= valley.1)
    };
    let (mut first, mut end) = (section, section);
    for span in inside().filter(|span| span.covers(section)) {
        (first, end) = (first.min(span.first), end.max(span.end));
    }
    for span in inside().filter(|span| !span.covers(section) && span.meets(first, end)) {
        height = height.min(floor + span.size);
    }
    (height <= floor + room).then_some(height)
}
