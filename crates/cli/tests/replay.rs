//! Replays on the simulated device, through the command and its JSON.

mod shell;

use std::process::Output;

use aquifer::driver::Call;
use aquifer::policies::NAMES;
use serde_json::Value;

use shell::{File, aquifer, int, rows, text};

const RESNET: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/resnet50-b64-fp32.trace.gz");

fn replay(arguments: &[&str]) -> Output {
    aquifer(&[&["replay"], arguments].concat())
}

/// The rows of a replay that ends with `code`.
fn rows_ending(code: i32, arguments: &[&str]) -> Vec<Value> {
    rows(code, &[&["replay", "--repeats", "1"], arguments].concat())
}

fn row(arguments: &[&str]) -> Value {
    let mut rows = rows_ending(0, arguments);
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

#[test]
fn a_row_has_every_field_and_they_agree() {
    let row = row(&[RESNET, "--min-capacity"]);
    let mut fields: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = [
        "backing",
        "driver_calls",
        "driver_calls_after_warmup",
        "driver_calls_at_min_capacity",
        "driver_ns_per_step_second_half",
        "driver_ns_per_step_second_half_at_min_capacity",
        "fragmentation",
        "host_waits",
        "min_capacity_bytes",
        "modelled_driver_ns",
        "modelled_driver_ns_high",
        "modelled_driver_ns_low",
        "ns_per_op",
        "ooms",
        "ops",
        "pages_created",
        "pages_moved",
        "peak_live_bytes",
        "peak_reserved_bytes",
        "plan_hits",
        "plan_hits_second_half",
        "plan_misses",
        "plan_misses_second_half",
        "policy",
        "simulated_driver_ns_per_op",
        "trace",
    ];
    assert_eq!(fields, expected);
    assert_eq!((&row["trace"], &row["policy"]), (&"resnet50-b64-fp32".into(), &"first-fit".into()));
    assert_eq!((int(&row, "ops"), int(&row, "peak_live_bytes")), (39_220, 5_806_879_116));
    let (live, reserved) = (int(&row, "peak_live_bytes"), int(&row, "peak_reserved_bytes"));
    assert!(live <= reserved && reserved < 2 * live && reserved % (2 << 20) == 0, "{reserved}");
    assert_eq!(row["fragmentation"].as_f64().unwrap(), 1.0 - live as f64 / reserved as f64);
    for calls in ["driver_calls", "driver_calls_at_min_capacity"] {
        let kinds = row[calls].as_object().unwrap();
        assert!(Call::ALL.iter().all(|call| kinds.contains_key(call.name())), "{kinds:?}");
        assert!(kinds["create"].as_u64() > Some(0));
    }
    let [low, default, high] =
        ["_low", "", "_high"].map(|end| int(&row, &format!("modelled_driver_ns{end}")));
    assert!(0 < low && low < default && default < high);
    assert_eq!((int(&row, "ooms"), int(&row, "host_waits")), (0, 0));
    for time in ["ns_per_op", "simulated_driver_ns_per_op"] {
        assert!(row[time].as_f64() > Some(0.0));
    }
    let capacity = int(&row, "min_capacity_bytes");
    assert!(live <= capacity && capacity <= reserved, "{capacity}");
}

#[test]
fn training_that_repeats_itself_calls_no_driver_after_its_warm_up() {
    for arguments in [&[][..], &[RESNET]] {
        assert_eq!(int(&row(arguments), "driver_calls_after_warmup"), 0);
    }
}

fn forget_times(row: &mut Value) {
    for time in ["ns_per_op", "simulated_driver_ns_per_op"] {
        row[time] = Value::Null;
    }
}

#[test]
fn runs_of_one_trace_differ_in_time_alone() {
    let arguments = [RESNET, "--policy", "all", "--lag", "256", "--slack", "0.05"];
    let [first, second] = [(); 2].map(|()| {
        let mut rows = rows_ending(0, &arguments);
        rows.iter_mut().for_each(forget_times);
        rows
    });
    assert_eq!(first, second);
    let policies: Vec<&str> = first.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, NAMES);
}

#[test]
fn repeats_change_no_figure_of_memory() {
    let [once, thrice] = ["1", "3"].map(|repeats| {
        let output = replay(&["--json", "--repeats", repeats, RESNET]);
        let mut row: Value = serde_json::from_slice(&output.stdout).unwrap();
        forget_times(&mut row);
        row
    });
    assert_eq!(once, thrice);
}

#[test]
fn options_of_a_policy_are_obeyed() {
    let segment = File::with("grow.trace", "a 1 5 0\nf 1\n");
    for (policy, bytes) in [("first-fit:floor=64MiB,grow=0", 64 << 20), ("never-cache", 2 << 20)] {
        let row = row(&[segment.path(), "--policy", policy, "--backing", "segments"]);
        assert_eq!((int(&row, "peak_reserved_bytes"), &row["policy"]), (bytes, &policy.into()));
    }
}

#[test]
fn memory_that_does_not_suffice_is_counted_and_ends_with_four() {
    let needs = 8u64 << 20;
    let trace = format!(
        "a 1 {needs} 0\na 2 {needs} 0\nr 2 7\nf 2\na 3 512 0\ns x\nf 1\nf 3\ne\na 4 {needs} 0\n"
    );
    let trace = File::with("oom.trace", trace);
    let rows = rows_ending(4, &["--capacity", "12MiB", trace.path()]);
    assert_eq!((int(&rows[0], "ooms"), int(&rows[0], "peak_reserved_bytes")), (1, 10 << 20));
    assert_eq!(int(&rows[0], "peak_live_bytes"), 2 * needs);
    let rows = rows_ending(4, &["--capacity", "4GiB", RESNET]);
    assert!(int(&rows[0], "ooms") > 0);
    assert!(int(&rows[0], "peak_reserved_bytes") <= 4 << 30);
}

#[test]
fn the_smallest_capacity_is_enough_and_a_little_less_is_not() {
    let least = int(&row(&[RESNET, "--min-capacity"]), "min_capacity_bytes");
    let at = |bytes: u64| ["--capacity".to_string(), bytes.to_string(), RESNET.to_string()];
    row(&at(least).each_ref().map(String::as_str));
    let less = at(least - 5_806_879_116 / 200 - (2 << 20));
    rows_ending(4, &less.each_ref().map(String::as_str));
    let with_slack = row(&[RESNET, "--min-capacity", "--slack", "0"]);
    assert!(int(&with_slack, "min_capacity_bytes") <= int(&with_slack, "peak_reserved_bytes"));
}

#[test]
fn less_slack_reserves_less() {
    let at = |slack| int(&row(&[RESNET, "--slack", slack]), "peak_reserved_bytes");
    let hold = int(&row(&[RESNET]), "peak_reserved_bytes");
    assert!(at("0") < hold && at("0") <= at("0.05"));
}

/// Each round frees a block that a second stream uses, then asks for as much again.
fn two_streams() -> String {
    let round = |i| format!("a {i} 4194304 0\nr {i} 9\nf {i}\n");
    (0..100).map(round).collect()
}

#[test]
fn work_that_lags_delays_reuse_by_another_stream() {
    let trace = File::with("lag.trace", two_streams());
    let grow_little = ["--policy", "first-fit:floor=2MiB,grow=0", trace.path()];
    let at = |lag| row(&[&["--lag", lag], &grow_little[..]].concat());
    let reserved = ["0", "30", "256"].map(|lag| int(&at(lag), "peak_reserved_bytes"));
    // A round has three operations: a block is free again ten rounds after its free.
    assert!(reserved[0] < reserved[1] && reserved[1] < reserved[2], "{reserved:?}");
    assert!(reserved[1] <= 12 * (4 << 20), "{reserved:?}");
    let tight = row(&[&["--lag", "256", "--capacity", "20MiB"], &grow_little[..]].concat());
    assert!(int(&tight, "host_waits") > 0 && int(&tight, "ooms") == 0);
}

#[test]
fn frees_wait_for_work_that_lags() {
    let trace = File::with("wait.trace", "a 1 512 0\nf 1\ne\na 2 512 3\nf 2\ne\n");
    for (lag, waits) in [("0", 0), ("256", 2)] {
        let row = row(&["--lag", lag, "--backing", "segments", trace.path()]);
        assert_eq!((int(&row, "host_waits"), &row["driver_calls"]["free"]), (waits, &2.into()));
    }
}

#[test]
fn threads_take_turns_in_the_traces_order() {
    // Each thread frees what the other allocated.
    let (mut threaded, mut plain) = (String::new(), String::new());
    for i in 0..200 {
        let lines = format!("a {i} 33554432 0\n");
        threaded += &format!("t {}\n{lines}", i % 2 * 5);
        plain += &lines;
        if i > 0 {
            let lines = format!("f {}\n", i - 1);
            threaded += &lines;
            plain += &lines;
        }
    }
    let (threaded, plain) = (File::with("t.trace", threaded), File::with("plain.trace", plain));
    let mut rows = rows_ending(0, &[threaded.path(), plain.path(), "--lag", "3"]);
    for row in &mut rows {
        forget_times(row);
        for field in ["trace", "driver_calls_after_warmup"] {
            row[field] = Value::Null;
        }
    }
    assert_eq!(rows[0], rows[1]);
    assert_eq!(int(&rows[0], "ops"), 399);
}

#[test]
fn blocks_of_no_bytes_and_of_too_many_are_survived() {
    let most = 1u64 << 62;
    let trace = format!("a 1 0 4\nr 1 5\nf 1\na 2 {most} 4\nr 2 5\nf 2\n");
    let trace = File::with("odd.trace", trace);
    let rows = rows_ending(4, &["--lag", "2", trace.path()]);
    assert_eq!((int(&rows[0], "ooms"), int(&rows[0], "peak_reserved_bytes")), (1, 0));
}

#[test]
fn a_damaged_file_ends_with_three_and_is_told() {
    let whole = std::fs::read(RESNET).unwrap();
    let cut = File::with("cut.trace.gz", &whole[..whole.len() / 2]);
    let output = replay(&[cut.path(), RESNET, "--repeats", "1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("the gzip data ends too early: the file is cut short"));
    // The good one is replayed all the same.
    assert_eq!(text(&output.stdout).lines().count(), 2);
    let nothing = replay(&[cut.path()]);
    assert_eq!((nothing.status.code(), nothing.stdout.len()), (Some(3), 0));
}

#[test]
fn without_a_terminal_stderr_gets_one_line_a_replay() {
    let output = replay(&[RESNET, "--policy", "first-fit,bins", "--repeats", "2"]);
    let expected = "resnet50-b64-fp32: first-fit\nresnet50-b64-fp32: bins\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn the_trace_verb_reads_and_sums_up() {
    let trace = File::with("sum.trace", "s x\na 1 5 0\nt 3\na 2 6 9\nf 1\ne\n");
    let output = aquifer(&["trace", trace.path()]);
    let row = text(&output.stdout).lines().nth(1).unwrap().split_whitespace().skip(1);
    assert_eq!(Vec::from_iter(row).join(" "), "4 2 2 1 11 B 11");
    let broken = File::with("sum-broken.trace", "f 1\n");
    assert_eq!(aquifer(&["trace", broken.path()]).status.code(), Some(3));
}
