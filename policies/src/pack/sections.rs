//! From buffers in time and bytes to spans in sections and units, and back to offsets in bytes.
//!
//! A section is a stretch of time in which the same buffers live, a unit what divides all sizes. A
//! part is a run of sections from each of which a buffer goes on to the next: parts do not concern
//! each other.

use super::state::Span;
use super::{Buffer, PackError, Packing};

/// All buffers that take room, in parts.
pub(super) struct Instance {
    /// Bytes of a unit.
    pub(super) unit: u64,
    pub(super) parts: Vec<Part>,
    buffers: usize,
}

/// Buffers whose lifetimes hang together.
pub(super) struct Part {
    /// The place of each among the buffers given.
    buffers: Vec<usize>,
    pub(super) spans: Vec<Span>,
    pub(super) sections: usize,
    /// The most units that live at one time.
    pub(super) peak: u64,
}

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
        let mut parts = Vec::new();
        let mut from = 0;
        while from < live.len() {
            let mut upper = buffers[live[from]].upper;
            let mut to = from + 1;
            while to < live.len() && buffers[live[to]].lower < upper {
                upper = upper.max(buffers[live[to]].upper);
                to += 1;
            }
            parts.push(Part::new(buffers, live[from..to].to_vec(), unit)?);
            from = to;
        }
        Ok(Instance { unit, parts, buffers: buffers.len() })
    }

    /// The most bytes that live at one time.
    pub(super) fn peak(&self) -> u64 {
        self.parts.iter().map(|part| part.peak).max().unwrap_or(0) * self.unit
    }

    /// Bytes from 0 to the highest end, of offsets of each part in units.
    pub(super) fn height(&self, offsets: &[Vec<u64>]) -> u64 {
        let heights = self.parts.iter().zip(offsets).map(|(part, offsets)| part.height(offsets));
        heights.max().unwrap_or(0) * self.unit
    }

    /// Offsets of all buffers in bytes, of those of each part in units.
    pub(super) fn packing(&self, offsets: &[Vec<u64>], nodes: u64) -> Packing {
        let height = self.height(offsets);
        let mut packing = Packing { offsets: vec![0; self.buffers], height, nodes };
        for (part, offsets) in self.parts.iter().zip(offsets) {
            for (at, offset) in part.buffers.iter().zip(offsets) {
                packing.offsets[*at] = offset * self.unit;
            }
        }
        packing
    }
}

impl Part {
    fn new(buffers: &[Buffer], live: Vec<usize>, unit: u64) -> Result<Part, PackError> {
        // Offsets are sums of sizes: with this checked, no offset and no end is out of range.
        let total = live.iter().map(|at| u128::from(buffers[*at].size)).sum::<u128>();
        if total > u128::from(u64::MAX) {
            return Err(PackError::TooLarge);
        }
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
        Ok(Part { buffers: live, spans, sections, peak })
    }

    /// Units from 0 to the highest end.
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
