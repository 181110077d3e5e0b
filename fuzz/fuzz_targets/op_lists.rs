//! Any bytes as a program: it does the same to an allocator and to a naive model.
//!
//! `cargo +nightly fuzz run op_lists`
#![no_main]

#[path = "../../tests/checked/mod.rs"]
mod checked;

use aquifer::policies::NAMES;
use checked::ops::Choices;
use checked::{Checked, Op, Setup};
use libfuzzer_sys::fuzz_target;

/// Enough to meet every state, few enough that a run is short.
const OPS_MAX: usize = 80;

fn setup(from: &mut Choices) -> Setup {
    let (flags, size) = (from.next(), from.next());
    Setup {
        policy: NAMES[from.next() as usize % NAMES.len()],
        paged: size & 16 > 0,
        front: flags & 1 > 0,
        share_streams: flags & 6 > 0,
        slack: [None, Some(0.0), None, Some(0.25)][flags as usize >> 3 & 3],
        cached_bytes_cap: (flags >> 5 == 7).then_some(u64::from(size) << 18),
        capacity: [8, 24, 64, 200][size as usize & 3] << 20,
        granularity: [2 << 20, 64 << 10, 2 << 20, if size & 16 > 0 { 16 << 20 } else { 4 << 10 }]
            [size as usize >> 2 & 3],
        seed: u64::from(from.next()),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut from = Choices(bytes);
    let setup = setup(&mut from);
    let blocks_last = setup.seed % 2 == 1;
    let mut checked = Checked::new(&setup);
    for _ in 0..OPS_MAX {
        if from.is_over() {
            break;
        }
        let op = Op::read(&mut from);
        checked.apply(&op).unwrap_or_else(|what| panic!("{setup:?}: {what}"));
    }
    checked.end(blocks_last).unwrap_or_else(|what| panic!("{setup:?}: {what}"));
});
