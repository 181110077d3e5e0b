//! Bytes over the operations of a trace, as the most in each of so many equal parts. Knows no
//! allocator.

use std::sync::Arc;

use aquifer::driver::sim::Device;
use aquifer::trace::{Op, Trace};

/// The highest of the values of each part, put in one operation after the other.
#[derive(Debug, Clone)]
pub(crate) struct Peaks {
    ops: usize,
    played: usize,
    parts: Vec<u64>,
}

impl Peaks {
    /// At most `parts` of them, of `ops` operations.
    pub(crate) fn new(ops: usize, parts: usize) -> Peaks {
        Peaks { ops, played: 0, parts: vec![0; parts.min(ops)] }
    }

    fn push(&mut self, bytes: u64) {
        let part = (self.played as u128 * self.parts.len() as u128 / self.ops as u128) as usize;
        self.parts[part] = self.parts[part].max(bytes);
        self.played += 1;
    }

    pub(crate) fn into_parts(self) -> Vec<u64> {
        self.parts
    }
}

/// The operations of a trace, with a look at what the device has given after each.
pub(crate) struct Watched<I> {
    ops: I,
    device: Arc<Device>,
    began: bool,
    peaks: Peaks,
}

impl<I: ExactSizeIterator<Item = Op>> Watched<I> {
    pub(crate) fn new(ops: I, device: Arc<Device>, parts: usize) -> Watched<I> {
        let peaks = Peaks::new(ops.len(), parts);
        Watched { ops, device, began: false, peaks }
    }
}

impl<I> Watched<I> {
    pub(crate) fn into_parts(self) -> Vec<u64> {
        self.peaks.into_parts()
    }
}

impl<I: Iterator<Item = Op>> Iterator for Watched<I> {
    type Item = Op;

    /// The operation before is over when the next one is asked for.
    fn next(&mut self) -> Option<Op> {
        if std::mem::replace(&mut self.began, true) && self.peaks.played < self.peaks.ops {
            self.peaks.push(self.device.used_bytes());
        }
        self.ops.next()
    }
}

/// The bytes asked for by live blocks.
pub(crate) fn live(trace: &Trace, parts: usize) -> Vec<u64> {
    let mut peaks = Peaks::new(trace.len(), parts);
    let (mut live, mut slots) = (0u64, vec![0; trace.slots()]);
    for op in trace.ops() {
        match op {
            Op::Alloc { slot, bytes, .. } => {
                slots[slot.index()] = bytes;
                live = live.saturating_add(bytes);
            }
            Op::Free { slot } => live = live.saturating_sub(slots[slot.index()]),
            _ => {}
        }
        peaks.push(live);
    }
    peaks.into_parts()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_holds_the_most_of_its_operations() {
        let trace = Trace::parse(&b"a 1 5 0\nf 1\na 1 3 0\ns x\na 2 4 0\nf 2\nf 1\n"[..]).unwrap();
        assert_eq!(live(&trace, 3), [5, 7, 3]);
        assert_eq!(live(&trace, 99), [5, 0, 3, 3, 7, 3, 0]);
    }
}
