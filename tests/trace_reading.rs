//! What the reader takes, and what it makes of it.

use aquifer::trace::{LabelIndex, Op, Slot, StreamIndex, ThreadIndex, Trace};

fn parse(text: &str) -> Trace {
    Trace::parse(text.as_bytes()).unwrap()
}

#[test]
fn each_verb_becomes_its_operation() {
    let trace = parse("s step one\na 9 512 77\nr 9 78\nt 3\nf 9\ne\nt 0\n");
    let (slot, label) = (Slot(0), LabelIndex(0));
    let expected = [
        Op::Mark { label },
        Op::Alloc { slot, bytes: 512, stream: StreamIndex(0) },
        Op::RecordStream { slot, stream: StreamIndex(1) },
        Op::Thread { thread: ThreadIndex(1) },
        Op::Free { slot },
        Op::EmptyCache,
        Op::Thread { thread: ThreadIndex(0) },
    ];
    assert!(trace.ops().eq(expected), "{:?}", trace.ops().collect::<Vec<_>>());
    assert_eq!(trace.streams(), [77, 78]);
    assert_eq!(trace.threads(), [0, 3]);
    assert_eq!(&*trace.labels()[0], "step one");
    assert_eq!((trace.op_count(), trace.len(), trace.slots()), (3, 7, 1));
}

#[test]
fn blanks_comments_and_line_ends_of_any_kind_are_skipped() {
    let plain = parse("a 1 2 3\ns x y\nf 1\n");
    let odd = "\u{feff}# first\r\n\r\n  a\t1   2 3 \r\n \t\n#\n s  x y \r\nf 1";
    assert_eq!(parse(odd), plain);
}

#[test]
fn the_largest_numbers_pass() {
    let max = u64::MAX;
    let trace =
        parse(&format!("t {max}\na {max} {} {max}\na 0 0 0\nr 0 {max}\nf {max}", 1u64 << 62));
    assert_eq!(trace.streams(), [max, 0]);
    assert_eq!(trace.peak_live_bytes(), 1 << 62);
}

#[test]
fn peak_live_bytes_stop_at_the_largest_number() {
    let text: String = (0..5).map(|id| format!("a {id} {} 0\n", 1u64 << 62)).collect();
    assert_eq!(parse(&text).peak_live_bytes(), u64::MAX);
}

#[test]
fn slots_are_dense_whatever_the_ids() {
    let sparse = "a 18446744073709551615 8 0\na 5000000000 8 0\nf 18446744073709551615\na 3 8 0\n\
                  f 5000000000\nf 3\na 70000 8 0\n";
    let dense = "a 0 8 0\na 1 8 0\nf 0\na 0 8 0\nf 1\nf 0\na 0 8 0\n";
    assert_eq!(parse(sparse), parse(dense));
    assert_eq!(parse(sparse).slots(), 2);
}

#[test]
fn ids_move_between_table_and_map_without_being_lost() {
    let mut text = String::new();
    for id in (0..3000u64).map(|n| n * 7) {
        text += &format!("a {id} 8 0\n");
    }
    for id in (0..3000u64).map(|n| n * 7) {
        text += &format!("f {id}\na {id} 8 0\nf {id}\n");
    }
    assert_eq!(parse(&text).slots(), 3000);
}

#[test]
fn many_streams_and_threads_keep_their_numbers() {
    let text: String = (0..100).map(|n| format!("t {n}\na {n} 1 {}\n", n * 16)).collect();
    let again: String = (0..100).map(|n| format!("r {n} {}\n", n * 16)).collect();
    let trace = parse(&(text + &again));
    assert_eq!((trace.streams().len(), trace.threads().len()), (100, 100));
}

#[cfg(feature = "compress")]
#[test]
fn the_bundled_traces_have_the_facts_their_page_gives() {
    for (name, op_count, peak_live_bytes, slots) in [
        ("netvlad-triplet-fp32", 136_057, 7_364_637_248, 450),
        ("resnet50-b64-fp32", 39_220, 5_806_879_116, 867),
    ] {
        let trace = Trace::read(format!("traces/{name}.trace.gz")).unwrap();
        assert_eq!(trace.op_count(), op_count);
        assert_eq!(trace.peak_live_bytes(), peak_live_bytes);
        assert_eq!(trace.slots(), slots);
        assert_eq!(trace.streams(), [0]);
    }
}
