//! Any bytes: the reader of buffer lists gives a list or an error; a list it gave is written and read back
//! equal; and what is packed of it, or refused, passes the sweep.
//!
//! `cargo +nightly fuzz run plan_csv fuzz/corpus/plan_csv fuzz/seeds/plan_csv`
#![no_main]

use aquifer::policies::pack::{Effort, check, lower_bound, pack_fast, pack_within};
use aquifer_cli::plan_csv;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let rows = match plan_csv::read(bytes) {
        Ok(rows) => rows,
        Err(error) => return assert!(error.to_string().starts_with("line ")),
    };
    let mut text = Vec::new();
    plan_csv::write(&rows, &vec![0; rows.ids.len()], &mut text).expect("memory takes every write");
    assert_eq!(plan_csv::read(&text).as_ref(), Ok(&rows));
    let Ok(peak) = lower_bound(&rows.buffers) else { return };
    let fast = pack_fast(&rows.buffers).expect("the sizes add up");
    assert_eq!(check(&rows.buffers, &fast.offsets), Ok(fast.height));
    if let Ok(packing) = pack_within(&rows.buffers, peak, Effort::nodes(200)) {
        assert_eq!(check(&rows.buffers, &packing.offsets), Ok(peak));
    }
});
