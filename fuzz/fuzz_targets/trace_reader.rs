//! Any bytes, plain or compressed: the reader gives a trace or an error, and a trace it gave is
//! written and read back equal.
//!
//! `cargo +nightly fuzz run trace_reader fuzz/corpus/trace_reader fuzz/seeds/trace_reader`
#![no_main]

use aquifer::trace::{Trace, TraceWriter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = Trace::parse(bytes) else { return };
    let mut writer = TraceWriter::new(Vec::new());
    writer.trace(&trace).expect("a trace that was read can be written");
    let text = writer.finish().expect("memory takes every write");
    let again = Trace::parse(&text[..]).expect("what was written can be read");
    assert_eq!(again, trace);
});
