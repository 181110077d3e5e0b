//! The verb `compare`, through the command: its table, its JSON, its picture, and how it ends.

mod shell;

use shell::{File, aquifer, int, rows, text};

const RESNET: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/resnet50-b64-fp32.trace.gz");

/// A short program with a name that XML must not see as it is.
fn short() -> File {
    let step = |i| format!("s step:{i}\na {i} 30000000 0\na 9{i} 700 3\nf {i}\n");
    File::with("short & <sweet>.trace", (0..40).map(step).collect::<String>())
}

#[test]
fn each_combination_has_a_row_and_a_line_of_text() {
    let trace = short();
    let output =
        aquifer(&["compare", trace.path(), "--policies", "first-fit,bins:small=1MiB,grow=0"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let heads =
        ["peak live", "peak reserved", "ratio", "driver calls", "pages made/moved", "host waits"];
    assert!(heads.iter().all(|head| lines[0].contains(head)), "{}", lines[0]);
    let names = ["paged first-fit", "paged bins:small=1MiB,grow=0", "segments first-fit"];
    let names = [&names[..], &["segments bins:small=1MiB,grow=0", "expandable -"]].concat();
    for (line, name) in lines[1..6].iter().zip(&names) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..2].join(" "), *name);
    }
    assert_eq!((lines[6], lines.len()), ("", 14));
    assert!(lines[7].contains("memory over 160 operations"), "{}", lines[7]);
    assert!(lines[13].starts_with("live ") && lines[9..].iter().any(|line| line.contains('█')));
    assert!(lines[12].starts_with("expandable ") && !lines[12].contains('-'));
}

#[test]
fn json_has_the_rows_of_replay() {
    let options = ["--backings", "segments,paged", "--slack", "0.05", "--lag", "8", RESNET];
    let compared = rows(0, &[&["compare"], &options[..]].concat());
    let backings: Vec<&str> = compared.iter().map(|row| row["backing"].as_str().unwrap()).collect();
    assert_eq!(backings, ["segments", "paged"]);
    for mut row in compared {
        let backing = row["backing"].as_str().unwrap().to_string();
        let options = ["replay", "--backing", &backing, "--slack", "0.05", "--lag", "8", RESNET];
        let replayed = rows(0, &options).remove(0);
        for time in ["ns_per_op", "simulated_driver_ns_per_op"] {
            row[time] = replayed[time].clone();
        }
        assert_eq!(row, replayed);
        assert!(int(&row, "peak_reserved_bytes") >= int(&row, "peak_live_bytes"));
    }
}

#[test]
fn the_picture_is_xml_and_has_every_line() {
    let (trace, picture) = (short(), File::with("lines.svg", ""));
    let output = aquifer(&["compare", trace.path(), "--svg", picture.path()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // The table alone: the picture has the rest.
    assert_eq!(text(&output.stdout).lines().count(), 4);
    let svg = std::fs::read_to_string(picture.path()).unwrap();
    let svg = roxmltree::Document::parse(&svg).unwrap();
    let lines = svg.descendants().filter(|node| node.has_tag_name("polyline"));
    let names =
        Vec::from_iter(lines.map(|line| line.first_element_child().unwrap().text().unwrap()));
    assert_eq!(names, ["paged first-fit", "segments first-fit", "expandable"]);
    let told =
        |part: &str| svg.descendants().any(|node| node.text().is_some_and(|t| t.contains(part)));
    for part in ["short & <sweet>: reserved", "operations of the trace", "memory, MiB", "× live"] {
        assert!(told(part), "{part}");
    }
}

#[test]
fn a_trace_without_a_block_is_compared_too() {
    let (trace, picture) = (File::with("empty.trace", "s x\n"), File::with("empty.svg", ""));
    for options in [&[][..], &["--svg", picture.path()]] {
        let output = aquifer(&[&["compare", trace.path()], options].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let svg = std::fs::read_to_string(picture.path()).unwrap();
    assert!(roxmltree::Document::parse(&svg).is_ok() && !svg.contains("NaN"));
}

#[test]
fn what_is_wrong_ends_with_its_code() {
    let trace = short();
    let path = trace.path();
    for (code, arguments, part) in [
        (
            2,
            &[path, "--backings", "paged,paper"][..],
            "unknown backing `paper`: expected one of paged",
        ),
        (2, &[path, "--policies", "worst-fit"], "unknown policy `worst-fit`"),
        (2, &[path, "--backings", ""], "unknown backing ``"),
        (2, &[path, "--slack=-1"], "not a fraction"),
        (2, &[path, path], "unexpected argument"),
        (2, &[path, "--capacity", "3TiB"], "a capacity of 3298534883328 bytes"),
        (3, &["no/such.trace"], "no/such.trace"),
        (1, &[path, "--svg", "no/such/folder/lines.svg"], "no/such/folder/lines.svg"),
        (4, &[path, "--capacity", "8MiB"], "paged first-fit"),
    ] {
        let output = aquifer(&[&["compare"], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
        // A table that was made is shown, whatever became of the picture.
        assert_eq!(output.stdout.is_empty(), code == 2 || code == 3, "{arguments:?}");
    }
}
