//! What is written is read back equal, for traces made up at random.

use aquifer::trace::{Op, Trace, TraceBuilder, TraceWriter};
use proptest::prelude::*;

/// One line of a made-up trace; `pick` chooses among the live blocks.
#[derive(Debug, Clone)]
enum Line {
    Alloc { id: u64, bytes: u64, stream: u64 },
    Free { pick: usize },
    RecordStream { pick: usize, stream: u64 },
    Mark { label: String },
    EmptyCache,
    Thread { thread: u64 },
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, 0..100_000u64, any::<u64>()]
}

fn line() -> impl Strategy<Value = Line> {
    prop_oneof![
        5 => (number(), number(), number()).prop_map(|(id, bytes, stream)| {
            Line::Alloc { id, bytes: bytes >> 2, stream }
        }),
        4 => any::<usize>().prop_map(|pick| Line::Free { pick }),
        1 => (any::<usize>(), number()).prop_map(|(pick, stream)| {
            Line::RecordStream { pick, stream }
        }),
        1 => any::<String>().prop_map(|label| Line::Mark { label }),
        1 => Just(Line::EmptyCache),
        1 => number().prop_map(|thread| Line::Thread { thread }),
    ]
}

/// Builds the trace and keeps its own list of live blocks: what the facts are held against.
fn build(lines: &[Line]) -> (Trace, u64, usize) {
    let mut builder = TraceBuilder::new();
    builder.mark("start");
    let mut live: Vec<(u64, u64)> = Vec::new();
    let (mut peak_bytes, mut peak_blocks) = (0u128, 0);
    for line in lines {
        match *line {
            Line::Alloc { id, bytes, stream } => {
                let taken = live.iter().any(|&(known, _)| known == id);
                assert_eq!(builder.alloc(id, bytes, stream).is_err(), taken);
                if !taken {
                    live.push((id, bytes));
                }
            }
            Line::Free { .. } if live.is_empty() => assert!(builder.free(7).is_err()),
            Line::Free { pick } => {
                let (id, _) = live.swap_remove(pick % live.len());
                builder.free(id).unwrap();
            }
            Line::RecordStream { .. } if live.is_empty() => {}
            Line::RecordStream { pick, stream } => {
                builder.record_stream(live[pick % live.len()].0, stream).unwrap();
            }
            Line::Mark { ref label } => builder.mark(label),
            Line::EmptyCache => builder.empty_cache(),
            Line::Thread { thread } => builder.thread(thread).unwrap(),
        }
        peak_bytes = peak_bytes.max(live.iter().map(|&(_, bytes)| u128::from(bytes)).sum());
        peak_blocks = peak_blocks.max(live.len());
    }
    (builder.finish(), u64::try_from(peak_bytes).unwrap_or(u64::MAX), peak_blocks)
}

fn write(trace: &Trace) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new());
    writer.trace(trace).unwrap();
    writer.finish().unwrap()
}

proptest! {
    #[test]
    fn a_written_trace_is_read_back_equal(lines in prop::collection::vec(line(), 0..200)) {
        let (trace, peak_live_bytes, slots) = build(&lines);
        prop_assert_eq!(trace.peak_live_bytes(), peak_live_bytes);
        prop_assert_eq!(trace.slots(), slots);
        let text = write(&trace);
        let again = Trace::parse(&text[..]).unwrap();
        prop_assert_eq!(&again, &trace);
        prop_assert_eq!(write(&again), text);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Trace::parse(&bytes[..]);
    }

    #[test]
    fn no_near_trace_makes_the_reader_panic(
        text in "([afrset#] ?[0-9]{0,3} [0-9]{0,21}( [0-9])?\r?\n?){0,20}",
    ) {
        if let Ok(trace) = Trace::parse(text.as_bytes()) {
            prop_assert_eq!(Trace::parse(&write(&trace)[..]).unwrap(), trace);
        }
    }
}

#[test]
fn a_refused_allocation_leaves_no_stream_behind() {
    let mut builder = TraceBuilder::new();
    builder.alloc(1, 1, 5).unwrap();
    builder.alloc(1, 1, 6).unwrap_err();
    assert_eq!(builder.finish().streams(), [5]);
}

#[test]
fn labels_are_cleaned_once_and_for_all() {
    let long = "é".repeat(40_000);
    for (label, kept) in [
        (" step 1 ", "step 1"),
        ("two\nlines\r\n", "two lines"),
        ("", "-"),
        ("\0\u{85}", "-"),
        (&long, &long[..65_534]),
    ] {
        let mut builder = TraceBuilder::new();
        builder.mark(label);
        let trace = builder.finish();
        assert_eq!(&*trace.labels()[0], kept);
        assert_eq!(Trace::parse(&write(&trace)[..]).unwrap(), trace);
    }
}

#[test]
fn a_size_the_format_cannot_hold_is_not_written() {
    let mut writer = TraceWriter::new(Vec::new());
    let error = writer.alloc(0, (1 << 62) + 1, 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(writer.finish().unwrap().is_empty());
}

#[test]
fn files_are_written_as_their_names_say() {
    let folder = std::env::temp_dir().join(format!("aquifer-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (trace, ..) = build(&[Line::Alloc { id: 4, bytes: 1 << 20, stream: 7 }, Line::EmptyCache]);
    let plain = folder.join("plain.trace");
    trace.write(&plain).unwrap();
    assert_eq!(std::fs::read(&plain).unwrap(), b"s start\na 0 1048576 7\ne\n");
    let zipped = folder.join("zipped.trace.gz");
    if cfg!(feature = "compress") {
        trace.write(&zipped).unwrap();
        assert_eq!(std::fs::read(&zipped).unwrap()[..2], [0x1f, 0x8b]);
        assert_eq!(Trace::read(&zipped).unwrap(), trace);
    } else {
        assert_eq!(trace.write(&zipped).unwrap_err().kind(), std::io::ErrorKind::Unsupported);
    }
    let error = trace.write(folder.join("x.trace.zst")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_iterator_knows_its_length_and_its_end() {
    let (trace, ..) = build(&[Line::EmptyCache, Line::EmptyCache]);
    assert_eq!(trace.ops().len(), 3);
    assert_eq!(trace.ops().next_back(), Some(Op::EmptyCache));
}
