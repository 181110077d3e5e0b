//! The parts of a trace that are counted apart: what comes after its first round, and its second half.

use aquifer::trace::{Op, Trace};

/// The index of the operation that ends the warm-up.
///
/// With labels `train:*`, then `val:*`, then `train:*` again, it is the mark after the first of
/// those second training steps: by then the program has done each thing it does once, and gone
/// back. Else it is a quarter of the operations.
pub fn warmup_end(trace: &Trace) -> usize {
    let round = round_end(trace.labels());
    let mark = |number| {
        let is_it = |op| matches!(op, Op::Mark { label } if label.index() == number);
        trace.ops().position(is_it)
    };
    round.and_then(mark).unwrap_or(trace.len() / 4)
}

/// The steps of a trace's second half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SecondHalf {
    /// The index of the first mark in that half.
    pub(crate) begin: usize,
    /// Marks from there on.
    pub(crate) steps: u64,
}

/// None if there is no mark in it.
pub(crate) fn second_half(trace: &Trace) -> Option<SecondHalf> {
    let ops = trace.ops().enumerate().skip(trace.len() / 2);
    let mut marks = ops.filter(|(_, op)| matches!(op, Op::Mark { .. })).map(|(index, _)| index);
    let begin = marks.next()?;
    Some(SecondHalf { begin, steps: 1 + marks.count() as u64 })
}

/// The number of the label after the first training step that follows a validation that follows a
/// training step.
fn round_end(labels: &[impl AsRef<str>]) -> Option<usize> {
    let mut phases = ["train:", "val:", "train:"].into_iter().peekable();
    for (number, label) in labels.iter().enumerate() {
        match phases.peek() {
            Some(phase) if label.as_ref().starts_with(phase) => drop(phases.next()),
            Some(_) => {}
            None => return Some(number),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundled(name: &str) -> Trace {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/");
        Trace::read(format!("{folder}{name}.trace.gz")).unwrap()
    }

    #[test]
    fn a_round_ends_one_step_into_the_second_training() {
        for (name, end, label) in
            [("netvlad-triplet-fp32", 74_626, "train:11"), ("resnet50-b64-fp32", 14_759, "train:9")]
        {
            let trace = bundled(name);
            assert_eq!(warmup_end(&trace), end, "{name}");
            let op = trace.ops().nth(end).unwrap();
            let Op::Mark { label: found } = op else { panic!("{name}: {op:?}") };
            assert_eq!(&*trace.labels()[found.index()], label);
        }
    }

    #[test]
    fn labels_with_sizes_and_other_phases_do_not_matter() {
        let labels =
            ["init", "train:0:8x947", "train:1:8x933", "val:0:16x886", "retrieve:0", "train:2:8x1"];
        assert_eq!(round_end(&labels), None);
        assert_eq!(round_end(&[&labels[..], &["val:1:16x3"]].concat()), Some(6));
    }

    #[test]
    fn programs_without_such_a_round_warm_up_for_a_quarter() {
        for labels in [&["init", "req:0:vit:3x4", "req:1:vit:3x4"][..], &["val:0", "val:1"], &[]] {
            assert_eq!(round_end(labels), None, "{labels:?}");
        }
        let trace = Trace::parse(&b"s train:0\ns val:0\ns train:1\ne\ne\ne\ne\ne\n"[..]).unwrap();
        assert_eq!(warmup_end(&trace), 2);
    }

    #[test]
    fn the_second_half_begins_at_a_mark() {
        let half = |text: &str| second_half(&Trace::parse(text.as_bytes()).unwrap());
        assert_eq!(half("s a\ne\ns b\ne\ns c\ne\n"), Some(SecondHalf { begin: 4, steps: 1 }));
        assert_eq!(half("s a\ns b\ns c\ns d\n"), Some(SecondHalf { begin: 2, steps: 2 }));
        assert_eq!(half("s a\ne\ne\n"), None);
    }
}
