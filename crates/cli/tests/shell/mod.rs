//! The command as tests run it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

pub fn aquifer(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer")).args(arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The JSON rows of a command that ends with `code`.
pub fn rows(code: i32, arguments: &[&str]) -> Vec<Value> {
    let output = aquifer(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn int(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or_else(|| panic!("{field} is {}", row[field]))
}

/// A file, taken away when dropped.
pub struct File(PathBuf);

impl File {
    pub fn with(name: &str, bytes: impl AsRef<[u8]>) -> File {
        let path = std::env::temp_dir().join(format!("aquifer-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        File(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A file left behind fails no test.
        let _ = std::fs::remove_file(&self.0);
    }
}
