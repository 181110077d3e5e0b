//! The command as a shell sees it: exit codes, and what goes to stdout and to stderr.

use std::process::{Command, Output};

fn aquifer(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_wrong_command_line_ends_with_two_and_says_what_would_be_right() {
    for (arguments, part) in [
        (&[][..], "Usage: aquifer"),
        (&["dance"], "unrecognized subcommand 'dance'"),
        (&["replay", "--capacity", "24GB"], "did you mean 24GiB?"),
        (&["replay", "--slack", "-1"], "unexpected argument '-1'"),
        (&["replay", "--slack=-1"], "not a fraction: write 0, 0.05 or 0.25"),
        (&["replay", "--slack=nan"], "not a fraction"),
        (&["replay", "--repeats", "0"], "0 is not in 1.."),
        (
            &["replay", "--policy", "worst-fit"],
            "unknown policy `worst-fit`: expected one of first-fit",
        ),
        (&["replay", "--policy", "bins:grow=much"], "expected grow=a share"),
        (&["replay", "--policy", ""], "unknown policy ``"),
        (&["replay", "--backing", "pages"], "unknown backing `pages`: expected one of paged"),
        (&["replay", "--capacity", "3TiB"], "a capacity of 3298534883328 bytes, not 1 to 2^41"),
    ] {
        let output = aquifer(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_lists_the_exit_codes_on_stdout() {
    for arguments in
        [&["--help"][..], &["replay", "--help"], &["compare", "--help"], &["trace", "--help"]]
    {
        let output = aquifer(arguments);
        assert_eq!(output.status.code(), Some(0));
        for line in ["2  the command line is wrong", "4  the replay ran out of memory"] {
            assert!(text(&output.stdout).contains(line), "{}", text(&output.stdout));
        }
    }
}

#[test]
fn output_that_is_no_terminal_has_no_colour() {
    for arguments in [&["--help"][..], &["dance"]] {
        let output = aquifer(arguments);
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b));
    }
}
