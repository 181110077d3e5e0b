//! From buffers in time and bytes to spans in sections and units, and back to offsets in bytes.
//!
//! A section is a stretch of time in which the same buffers live, a unit what divides all sizes. A
//! part is a run of sections from each of which a buffer goes on to the next: parts do not concern each
//! other. A buffer that lives through all of a part may as well lie at its bottom, since all others are
//! above or below it: it is put there, and what is left may part again.

use super::state::Span;
use super::{Buffer, PackError, Packing};

/// All buffers that take room, in parts.
pub(super) struct Instance {
    /// Bytes of a unit.
    pub(super) unit: u64,
    pub(super) parts: Vec<Part>,
    /// Buffers at the bottom of what were parts, with their offsets in units.
    bottom: Vec<(usize, u64)>,
    /// The highest end of those.
    bottom_height: u64,
    buffers: usize,
}

/// Buffers whose lifetimes hang together, above what lies at the bottom.
pub(super) struct Part {
    /// The place of each among the buffers given.
    buffers: Vec<usize>,
    pub(super) spans: Vec<Span>,
    pub(super) sections: usize,
    /// Units at the bottom, where other buffers are.
    pub(super) base: u64,
    /// The most units that live at one time above the base.
    pub(super) peak: u64,
}

/// How often a part may lose those that live through it: each time takes a look at all the others.
const BOTTOMS_MAX: usize = 64;

impl Instance {
    pub(super) fn new(buffers: &[Buffer]) -> Result<Instance, PackError> {
        let mut live = Vec::new();
        for (at, buffer) in buffers.iter().enumerate() {
            if buffer.lower > buffer.upper {
                return Err(PackError::Backwards { buffer: at });
            }
            if buffer.lower < buffer.upper && buffer.size > 0 {
                live.push(at);
            }
        }
        live.sort_by_key(|at| buffers[*at].lower);
        let unit = live.iter().fold(0, |unit, at| divisor(unit, buffers[*at].size)).max(1);
        let (parts, bottom) = (Vec::new(), Vec::new());
        let mut instance =
            Instance { unit, parts, bottom, bottom_height: 0, buffers: buffers.len() };
        for run in runs(buffers, &live) {
            // Offsets are sums of sizes: with this checked, no offset and no end is out of range.
            let total = run.iter().map(|at| u128::from(buffers[*at].size)).sum::<u128>();
            if total > u128::from(u64::MAX) {
                return Err(PackError::TooLarge);
            }
            instance.divide(buffers, run);
        }
        Ok(instance)
    }

    /// Takes buffers that hang together, in the order in which they begin.
    fn divide(&mut self, buffers: &[Buffer], run: &[usize]) {
        let mut waiting = vec![(run.to_vec(), 0, 0)];
        while let Some((run, mut base, times)) = waiting.pop() {
            let lower = run.iter().map(|at| buffers[*at].lower).min();
            let upper = run.iter().map(|at| buffers[*at].upper).max();
            let goes_through =
                |at: &usize| Some(buffers[*at].lower) == lower && Some(buffers[*at].upper) == upper;
            let (through, left): (Vec<_>, Vec<_>) = run.iter().copied().partition(goes_through);
            if through.is_empty() || times == BOTTOMS_MAX {
                self.parts.push(Part::new(buffers, run, self.unit, base));
                continue;
            }
            for at in through {
                self.bottom.push((at, base));
                base += buffers[at].size / self.unit;
            }
            self.bottom_height = self.bottom_height.max(base);
            waiting.extend(runs(buffers, &left).map(|run| (run.to_vec(), base, times + 1)));
        }
    }

    /// The most bytes that live at one time.
    pub(super) fn peak(&self) -> u64 {
        let peaks = self.parts.iter().map(|part| part.base + part.peak);
        peaks.fold(self.bottom_height, u64::max) * self.unit
    }

    /// Bytes from 0 to the highest end, of offsets of each part in units above its base.
    pub(super) fn height(&self, offsets: &[Vec<u64>]) -> u64 {
        let parts = self.parts.iter().zip(offsets);
        let heights = parts.map(|(part, offsets)| part.base + part.height(offsets));
        heights.fold(self.bottom_height, u64::max) * self.unit
    }

    /// Offsets of all buffers in bytes, of those of each part in units above its base.
    pub(super) fn packing(&self, offsets: &[Vec<u64>], nodes: u64) -> Packing {
        let height = self.height(offsets);
        let mut packing = Packing { offsets: vec![0; self.buffers], height, nodes };
        for (at, offset) in &self.bottom {
            packing.offsets[*at] = offset * self.unit;
        }
        for (part, offsets) in self.parts.iter().zip(offsets) {
            for (at, offset) in part.buffers.iter().zip(offsets) {
                packing.offsets[*at] = (part.base + offset) * self.unit;
            }
        }
        packing
    }
}

/// Parts buffers, which come in the order in which they begin, where none lives on.
fn runs<'a>(buffers: &'a [Buffer], live: &'a [usize]) -> impl Iterator<Item = &'a [usize]> {
    let mut upper = 0;
    live.chunk_by(move |before, next| {
        upper = upper.max(buffers[*before].upper);
        buffers[*next].lower < upper
    })
}

impl Part {
    fn new(buffers: &[Buffer], live: Vec<usize>, unit: u64, base: u64) -> Part {
        let mut times: Vec<u64> = Vec::with_capacity(2 * live.len());
        times.extend(live.iter().flat_map(|at| [buffers[*at].lower, buffers[*at].upper]));
        times.sort_unstable();
        times.dedup();
        let section = |time| times.partition_point(|other| *other < time);
        let spans: Vec<Span> = live
            .iter()
            .map(|at| {
                let Buffer { lower, upper, size } = buffers[*at];
                Span { first: section(lower), end: section(upper), size: size / unit }
            })
            .collect();
        let sections = times.len() - 1;
        let peak = peak(&spans, sections);
        Part { buffers: live, spans, sections, base, peak }
    }

    /// Units from the base to the highest end.
    pub(super) fn height(&self, offsets: &[u64]) -> u64 {
        let ends = self.spans.iter().zip(offsets).map(|(span, offset)| offset + span.size);
        ends.max().unwrap_or(0)
    }
}

fn peak(spans: &[Span], sections: usize) -> u64 {
    let (mut begun, mut ended) = (vec![0; sections + 1], vec![0; sections + 1]);
    for span in spans {
        begun[span.first] += span.size;
        ended[span.end] += span.size;
    }
    let (mut live, mut peak) = (0, 0);
    for (begun, ended) in begun.iter().zip(&ended) {
        live = live - ended + begun;
        peak = peak.max(live);
    }
    peak
}

/// The greatest number that divides both.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}
