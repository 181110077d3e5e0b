//! Where the search stands: floors, what is left to place, and the trail that takes it back. Knows
//! nothing of what is tried or why.

/// A buffer: it lives in the sections `first..end` and takes `size` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) size: u64,
}

impl Span {
    pub(super) fn covers(&self, section: usize) -> bool {
        self.first <= section && section < self.end
    }

    pub(super) fn meets(&self, first: usize, end: usize) -> bool {
        self.first < end && first < self.end
    }
}

/// The sections `first..end` and the buffers `list[from..to]`, all those left to place there. Some
/// buffer goes on from each of the sections to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

#[derive(Clone, Copy, Debug)]
enum Undo {
    Floor { section: usize, was: u64 },
    Offset { buffer: u32, was: u64 },
    Placed { buffer: u32 },
}

pub(super) struct State {
    pub(super) spans: Vec<Span>,
    pub(super) capacity: u64,
    /// Units of each section under which nothing more goes.
    pub(super) floor: Vec<u64>,
    /// Units of each section's buffers that are not placed.
    pub(super) rest: Vec<u64>,
    /// Where a buffer lies, or the lowest it could: the highest floor of its sections.
    pub(super) offset: Vec<u64>,
    /// The buffers, those of a part together.
    list: Vec<u32>,
    trail: Vec<Undo>,
    /// Room for the lowest offset in each section.
    lowest: Vec<u64>,
    /// Room for sums over sections.
    covering: Vec<i64>,
    crossing: Vec<i64>,
}

impl State {
    pub(super) fn new(spans: Vec<Span>, sections: usize, capacity: u64) -> State {
        State {
            capacity,
            floor: vec![0; sections],
            rest: vec![0; sections],
            offset: vec![0; spans.len()],
            list: Vec::new(),
            trail: Vec::new(),
            lowest: vec![0; sections],
            covering: vec![0; sections + 1],
            crossing: vec![0; sections + 1],
            spans,
        }
    }

    /// Takes everything back, without the trail. Returns the whole.
    pub(super) fn reset(&mut self) -> Part {
        self.floor.fill(0);
        self.rest.fill(0);
        self.offset.fill(0);
        self.trail.clear();
        self.list = (0..self.spans.len() as u32).collect();
        for span in &self.spans {
            self.rest[span.first..span.end].iter_mut().for_each(|rest| *rest += span.size);
        }
        Part { first: 0, end: self.floor.len(), from: 0, to: self.list.len() }
    }

    /// The buffers of a part, with their spans.
    pub(super) fn buffers(&self, part: Part) -> impl Iterator<Item = (u32, Span)> {
        let list = self.list[part.from..part.to].iter();
        list.map(|&buffer| (buffer, self.spans[buffer as usize]))
    }

    pub(super) fn trail_length(&self) -> usize {
        self.trail.len()
    }

    /// Raises each floor to the lowest offset of the section's buffers. Returns a section in which
    /// the rest does not fit any more.
    pub(super) fn raise_floors(&mut self, part: Part) -> Option<usize> {
        let lowest = &mut self.lowest;
        lowest[part.first..part.end].fill(u64::MAX);
        for &buffer in &self.list[part.from..part.to] {
            let (span, offset) = (self.spans[buffer as usize], self.offset[buffer as usize]);
            for low in &mut lowest[span.first..span.end] {
                *low = (*low).min(offset);
            }
        }
        for (section, &low) in (part.first..).zip(&lowest[part.first..part.end]) {
            let was = self.floor[section];
            if low > was {
                self.trail.push(Undo::Floor { section, was });
                self.floor[section] = low;
            }
            let floor = self.floor[section];
            if floor > self.capacity || self.rest[section] > self.capacity - floor {
                return Some(section);
            }
        }
        None
    }

    /// Places a buffer of the part at its offset. Returns what is left, in parts.
    pub(super) fn place(&mut self, part: Part, buffer: u32) -> Vec<Part> {
        let list = &mut self.list[part.from..part.to];
        let at = list.iter().position(|other| *other == buffer).expect("the part has the buffer");
        let last = list.len() - 1;
        list.swap(at, last);
        let span = self.spans[buffer as usize];
        self.rest[span.first..span.end].iter_mut().for_each(|rest| *rest -= span.size);
        self.trail.push(Undo::Placed { buffer });
        let top = self.offset[buffer as usize] + span.size;
        // The part's list keeps it, at its end.
        let left = Part { to: part.to - 1, ..part };
        self.raise((span.first, span.end), top, left);
        self.split(left)
    }

    /// Raises floors, and with them the buffers of the part that live there.
    pub(super) fn raise(&mut self, (first, end): (usize, usize), height: u64, part: Part) {
        for section in first..end {
            self.trail.push(Undo::Floor { section, was: self.floor[section] });
            self.floor[section] = height;
        }
        for &buffer in &self.list[part.from..part.to] {
            let was = self.offset[buffer as usize];
            if was < height && self.spans[buffer as usize].meets(first, end) {
                self.trail.push(Undo::Offset { buffer, was });
                self.offset[buffer as usize] = height;
            }
        }
    }

    /// Parts what is left where no buffer crosses, the smallest part last.
    pub(super) fn split(&mut self, part: Part) -> Vec<Part> {
        let mut parts = Vec::new();
        if part.from == part.to {
            return parts;
        }
        // Of buffers that cover a section, and of those that go on into it from the one before.
        let (covering, crossing) = (&mut self.covering, &mut self.crossing);
        covering[part.first..=part.end].fill(0);
        crossing[part.first..=part.end].fill(0);
        for &buffer in &self.list[part.from..part.to] {
            let span = self.spans[buffer as usize];
            covering[span.first] += 1;
            covering[span.end] -= 1;
            crossing[span.first + 1] += 1;
            crossing[span.end] -= 1;
        }
        let (mut covers, mut crosses) = (0, 0);
        for section in part.first..part.end {
            covers += covering[section];
            crosses += crossing[section];
            if covers > 0 && crosses == 0 {
                parts.push(Part { first: section, end: section + 1, ..part });
            } else if covers > 0 {
                parts.last_mut().expect("what goes on has begun").end = section + 1;
            }
        }
        let mut from = part.from;
        for each in &mut parts {
            let mut to = from;
            for at in from..part.to {
                if self.spans[self.list[at] as usize].first < each.end {
                    self.list.swap(at, to);
                    to += 1;
                }
            }
            (each.from, each.to) = (from, to);
            from = to;
        }
        parts.sort_by_key(|part| std::cmp::Reverse(part.to - part.from));
        parts
    }

    /// Takes back all since the trail was `length` long; tells `floors` of each floor and its height.
    pub(super) fn undo(&mut self, length: usize, mut floors: impl FnMut(usize, u64)) {
        while self.trail.len() > length {
            match self.trail.pop().expect("the trail is longer") {
                Undo::Floor { section, was } => {
                    floors(section, self.floor[section]);
                    self.floor[section] = was;
                }
                Undo::Offset { buffer, was } => self.offset[buffer as usize] = was,
                Undo::Placed { buffer } => {
                    let span = self.spans[buffer as usize];
                    self.rest[span.first..span.end].iter_mut().for_each(|r| *r += span.size);
                }
            }
        }
    }
}
