//! The verb `plan` as a shell sees it: where offsets go, and how each outcome ends.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const SMALL: &str = "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,4\nd,9,21,4\ne,0,21,4\n";

/// A file, taken away when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("aquifer-plan-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn plan(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer")).arg("plan").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Buffers that no packing puts into the most that live at a time, 6: the search has to end.
fn tight() -> String {
    let buffers = [(0, 4, 2), (3, 9, 2), (8, 10, 4), (0, 2, 4), (3, 4, 2), (8, 9, 0), (2, 3, 1)];
    rows(buffers.iter().copied())
}

fn rows(buffers: impl Iterator<Item = (u64, u64, u64)>) -> String {
    let mut text = "id,lower,upper,size\n".to_string();
    for (id, (lower, upper, size)) in buffers.enumerate() {
        text += &format!("{id},{lower},{upper},{size}\n");
    }
    text
}

#[test]
fn offsets_go_to_stdout_and_the_summary_to_stderr() {
    let file = File::new("stdout", SMALL);
    let output = plan(&[file.path(), "--capacity", "12"]);
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!((lines.len(), lines[0]), (6, "id,lower,upper,size,offset"));
    assert!(lines[1].starts_with("a,0,3,4,"));
    assert!(text(&output.stderr).contains("optimal"));
}

#[test]
fn offsets_go_to_a_file_and_the_summary_to_stdout() {
    let (file, out) = (File::new("in", SMALL), File::new("out", ""));
    let output = plan(&[file.path(), "--out", out.path()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("file "), "{}", text(&output.stdout));
    assert_eq!(std::fs::read_to_string(&out.0).unwrap().lines().count(), 6);
}

#[test]
fn json_is_one_object_with_the_offsets_in_it() {
    let file = File::new("json", SMALL);
    let output = plan(&[file.path(), "--json", "--capacity", "1KiB"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["buffers"], 5);
    assert_eq!(summary["peak_live_bytes"], 12);
    assert_eq!(summary["capacity_bytes"], 1024);
    assert_eq!(summary["offsets"].as_array().unwrap().len(), 5);
    assert_eq!(summary["offsets"][4]["id"], "e");
}

#[test]
fn the_exit_tells_whether_there_is_a_packing() {
    let (small, tight) = (File::new("small", SMALL), File::new("tight", &tight()));
    for (file, options, code, outcome) in [
        (&small, &["--capacity", "12"][..], 0, "optimal"),
        (&small, &[], 0, "optimal"),
        (&small, &["--capacity", "11"], 5, "does not fit"),
        (&tight, &[], 0, "optimal"),
        (&tight, &["--capacity", "5"], 5, "does not fit"),
    ] {
        let output = plan(&[&[file.path(), "--json"], options].concat());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["outcome"], outcome, "{options:?}");
    }
}

#[test]
fn a_list_that_is_none_ends_with_three_and_says_where() {
    for (name, content, part) in [
        ("empty", "", "line 1: no header"),
        ("backwards", "id,lower,upper,size\na,2,1,1\n", "line 2: lower 2 is not below upper 1"),
        (
            "huge",
            "id,lower,upper,size\na,0,2,9223372036854775808\nb,0,2,9223372036854775808\n",
            "2^64",
        ),
    ] {
        let file = File::new(name, content);
        let output = plan(&[file.path(), "--capacity", "12"]);
        assert_eq!(output.status.code(), Some(3));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
    assert_eq!(plan(&["no/such.csv"]).status.code(), Some(3));
}

#[test]
fn a_file_that_cannot_be_written_ends_with_one() {
    let file = File::new("unwritten", SMALL);
    let output = plan(&[file.path(), "--out", "no/such/folder.csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no/such/folder.csv"));
}
