//! Every way in which a plain trace can be wrong, by the message its author would read.

use std::io::{self, Read};

use aquifer::trace::{Fault, LINE_BYTES_MAX, Trace, TraceBuilder};

fn message(text: impl AsRef<[u8]>) -> String {
    match Trace::parse(text.as_ref()) {
        Ok(trace) => panic!("accepted: {trace:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_fault_names_its_line_and_what_would_be_right() {
    for (text, expected) in [
        ("x 1", "line 1: unknown verb `x`: expected a, f, r, s, e or t"),
        ("ab 1 2 0", "line 1: unknown verb `ab`: expected a, f, r, s, e or t"),
        ("\n\na 1 512", "line 3: missing stream: expected `a <id> <bytes> <stream>`"),
        ("a 1 ", "line 1: missing bytes: expected `a <id> <bytes> <stream>`"),
        ("a", "line 1: missing id: expected `a <id> <bytes> <stream>`"),
        ("f", "line 1: missing id: expected `f <id>`"),
        ("r 1", "line 1: missing stream: expected `r <id> <stream>`"),
        ("s \t ", "line 1: missing label: expected `s <label>`"),
        ("t", "line 1: missing thread: expected `t <thread>`"),
        ("a 1 4k 0", "line 1: bytes `4k` is not a number in decimal digits"),
        ("a -1 4 0", "line 1: id `-1` is not a number in decimal digits"),
        ("a 1 4 0x10", "line 1: stream `0x10` is not a number in decimal digits"),
        ("f 18446744073709551616", "line 1: id is too large: at most 18446744073709551615"),
        (
            "a 1 4611686018427387905 0",
            "line 1: bytes is too large: at most 4611686018427387904 (2^62)",
        ),
        ("a 1 2 0 9", "line 1: `9` after the last field: expected `a <id> <bytes> <stream>`"),
        ("e now then", "line 1: `now then` after the last field: expected `e`"),
        ("a 7 1 0\na 7 1 0", "line 2: id 7 is already live since line 1: free it first"),
        ("a 7 1 0\nf 7\nf 7", "line 3: free of id 7, which is not live"),
        ("f 99999999999", "line 1: free of id 99999999999, which is not live"),
        ("r 3 1", "line 1: stream record of id 3, which is not live"),
        ("", "no operation in the trace: expected at least one line"),
        ("# only this\n\n", "no operation in the trace: expected at least one line"),
    ] {
        assert_eq!(message(text), expected, "for {text:?}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    for text in [&b"s caf\xe9"[..], b"\xff\xfe", b"a 1 \xff 0", b"e \xff", b"a \xc3\x28 1 0"] {
        assert_eq!(message(text), "line 1: not UTF-8: a trace is plain text");
    }
}

#[test]
fn long_words_are_cut_in_messages() {
    let text = message("y".repeat(1000));
    assert!(text.len() < 120, "{text}");
    assert!(text.contains("..."), "{text}");
}

#[test]
fn a_line_may_have_the_longest_length_and_no_more() {
    let longest = format!("s {}", "x".repeat(LINE_BYTES_MAX - 2));
    for end in ["", "\n", "\ne\n"] {
        let trace = Trace::parse(format!("{longest}{end}").as_bytes()).unwrap();
        assert_eq!(trace.labels()[0].len(), LINE_BYTES_MAX - 2);
    }
    for end in ["", "\n", "x".repeat(1 << 20).as_str()] {
        assert_eq!(message(format!("e\n{longest}x{end}")), "line 2: line longer than 65536 bytes");
    }
}

#[test]
fn a_failing_input_is_reported_with_the_line_reached() {
    let failing = || io::Error::other("the disk is gone");
    let error = Trace::parse(b"e\ne\n".chain(Failing(Some(failing())))).unwrap_err();
    assert_eq!(error.to_string(), "line 3: the disk is gone");
    assert!(matches!(error.fault, Fault::Io(_)));
    let error = Trace::parse(Failing(Some(failing()))).unwrap_err();
    assert_eq!(error.to_string(), "the disk is gone");
}

struct Failing(Option<io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

#[test]
fn a_file_is_named_in_its_errors() {
    let error = Trace::read("no/such.trace").unwrap_err();
    assert!(error.to_string().starts_with("no/such.trace: "), "{error}");
    let manifest = Trace::read("Cargo.toml").unwrap_err();
    let expected = "Cargo.toml, line 1: unknown verb `[workspace]`: expected a, f, r, s, e or t";
    assert_eq!(manifest.to_string(), expected);
}

#[test]
fn a_builder_without_lines_names_none() {
    let mut builder = TraceBuilder::new();
    builder.alloc(1, 1, 0).unwrap();
    let fault = builder.alloc(1, 1, 0).unwrap_err();
    assert_eq!(fault.to_string(), "id 1 is already live: free it first");
    assert!(matches!(fault, Fault::AlreadyLive { id: 1, since_line: 0 }));
}

#[cfg(not(feature = "compress"))]
#[test]
fn a_compressed_file_names_the_feature_it_needs() {
    let expected = |packing| {
        format!(
            "compressed with {packing}, which needs aquifer's feature `compress`: \
             build with it or decompress the file"
        )
    };
    assert_eq!(message(b"\x1f\x8b\x08\x00"), expected("gzip"));
    assert_eq!(message(b"\x28\xb5\x2f\xfd"), expected("zstd"));
}
