//! Holds the source to the map and the rules of `docs/architecture.md`: who may name whom, where
//! `unsafe` may stand, how long a file may be, what the map lists, what the pages may say.
//!
//! It reads text, not syntax: paths that begin with `crate::` or `super::`, comments left out, and
//! everything from a file's test module on left out too.
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Modules that may name only these others; no module may name one that stands above it.
const ARROWS: &[(&str, &[&str])] = &[
    ("heap", &[]),
    ("driver", &[]),
    ("trace", &[]),
    ("sync", &[]),
    ("fork", &[]),
    ("counters", &[]),
    ("tags", &[]),
    ("settings", &["driver", "policies"]),
    ("pages", &["driver"]),
    ("recorder", &["driver", "trace"]),
    ("pending", &["driver", "lane"]),
    ("global", &["allocator", "error"]),
];

/// The only modules that may name the heap.
const NAME_THE_HEAP: &[&str] = &["lane", "cache", "trim", "paged", "steal"];

/// The only files of the library and the command that may contain `unsafe`.
const UNSAFE: &[&str] =
    &["src/sync.rs", "src/fork.rs", "src/driver/sim/host.rs", "src/driver/sim/remap.rs"];

/// Lines of a file that are neither blank, comment nor test.
const CODE_LINES_MAX: usize = 500;

const ARCHITECTURE_LINES_MAX: usize = 160;

/// Folders whose files the map lists, all of them and no others.
const MAPPED: &[&str] = &["src/", "policies/src/", "crates/cli/src/"];

/// What a page of the project may not contain: places on somebody's machine.
const LOCAL: &[&str] = &["/work/", "/tmp/", "/home/", "/root/", "/Users/", "../shared"];

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The lines that hold code, without comments, up to the test module.
    fn code(&self) -> impl Iterator<Item = &str> {
        let ends = |line: &str| {
            let line = line.replacen("#![", "#[", 1);
            line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test")
        };
        let lines = self.text.lines().take_while(move |line| !ends(line));
        lines.map(|line| line.split("//").next().unwrap_or("").trim()).filter(|l| !l.is_empty())
    }

    /// The names of the modules the file lies in, from the crate's root: `["driver", "sim"]`.
    fn module(&self) -> Vec<&str> {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').filter(|name| *name != "lib").collect()
    }

    /// The modules of the crate's first level that the code names, its own left out.
    fn names(&self) -> BTreeSet<String> {
        let module = self.module();
        let mut names = BTreeSet::new();
        for line in self.code() {
            for (at, _) in line.match_indices("crate::").chain(line.match_indices("super::")) {
                if line[..at].ends_with("::") && line[at..].starts_with("super::") {
                    continue;
                }
                names.extend(first_level(&module, &line[at..]));
            }
        }
        names.remove(module.first().copied().unwrap_or(""));
        names
    }
}

/// The name after the crate's root in a path written in `module`; none if the path ends deeper.
fn first_level(module: &[&str], mut path: &str) -> Option<String> {
    let mut depth = 0;
    match path.strip_prefix("crate::") {
        Some(rest) => path = rest,
        None => {
            depth = module.len();
            while let Some(rest) = path.strip_prefix("super::") {
                (path, depth) = (rest, depth.saturating_sub(1));
            }
        }
    }
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    // A group would hide names: `{` is reported as itself, and no arrow allows it.
    let name = if path.starts_with('{') { "{" } else { &path[..end] };
    (depth == 0).then(|| name.to_string())
}

/// Arrows that turn.
fn wrong_arrows(source: &Source) -> Vec<String> {
    let module = source.module();
    let Some(first) = module.first() else { return Vec::new() };
    let allowed = ARROWS.iter().find(|(name, _)| name == first).map(|(_, allowed)| *allowed);
    let mut wrong = Vec::new();
    for name in source.names() {
        let is_allowed = allowed.is_none_or(|allowed| allowed.contains(&name.as_str()));
        let is_heap_user = name != "heap" || NAME_THE_HEAP.contains(first);
        if !is_allowed || !is_heap_user || name == "{" {
            wrong.push(format!("{} names crate::{name}", source.path));
        }
    }
    let is_driver = *first == "driver";
    for line in source.code().filter(|_| !is_driver) {
        for part in ["driver::sim", "driver::faulty", "driver::limited", "driver::logged"] {
            if line.contains(part) {
                wrong.push(format!("{} names {part}: the trait is all it may know", source.path));
            }
        }
    }
    wrong
}

/// `unsafe` as a word, outside the files that may contain it.
fn wrong_unsafe(source: &Source) -> Vec<String> {
    if UNSAFE.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let has_unsafe = |line: &str| line.split(|c| !is_word(c)).any(|word| word == "unsafe");
    let lines = source.code().filter(|line| has_unsafe(line));
    lines.map(|line| format!("{}: {line}", source.path)).collect()
}

fn too_long(source: &Source) -> Vec<String> {
    let lines = source.code().count();
    let is_long = lines > CODE_LINES_MAX;
    is_long.then(|| format!("{} has {lines} lines of code", source.path)).into_iter().collect()
}

/// Dependencies of the policies' crate, and anything of the allocator in its code.
fn wrong_policies(manifest: &str, sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let table = manifest.split("\n[").find(|table| table.starts_with("dependencies]"));
    let depends = |line: &&str| line.contains('=') && !line.starts_with('#');
    wrong.extend(table.into_iter().flat_map(str::lines).filter(depends).map(str::to_string));
    let root = sources.iter().find(|s| s.path == "policies/src/lib.rs");
    if !root.is_some_and(|root| root.code().any(|line| line == "#![forbid(unsafe_code)]")) {
        wrong.push("policies/src/lib.rs does not forbid unsafe code".into());
    }
    for source in sources {
        wrong.extend(source.code().filter(|l| l.contains("aquifer::")).map(str::to_string));
    }
    wrong
}

/// The files in the map: a tree in a fenced block, two spaces a level, folders ending in `/`; a line may
/// begin with several files, apart by commas.
fn mapped(page: &str) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for block in page.split("```").skip(1).step_by(2) {
        let mut folders: Vec<(usize, &str)> = Vec::new();
        for line in block.lines() {
            let Some(name) = line.split_whitespace().next() else { continue };
            let indent = line.len() - line.trim_start().len();
            folders.retain(|folder| folder.0 < indent);
            if name.ends_with('/') {
                folders.push((indent, name));
            }
            let folder: String = folders.iter().map(|folder| folder.1).collect();
            let names = line.split_whitespace().map(|name| name.trim_end_matches(','));
            let listed = names.take_while(|name| name.ends_with(".rs")).flat_map(alternatives);
            files.extend(listed.map(|name| folder.clone() + &name));
        }
    }
    files
}

/// `{a,b}.rs` as `a.rs` and `b.rs`; any other name as itself.
fn alternatives(name: &str) -> impl Iterator<Item = String> {
    let (head, rest) = name.split_once('{').unwrap_or((name, ""));
    let (inside, tail) = rest.split_once('}').unwrap_or(("", rest));
    inside.split(',').map(move |part| format!("{head}{part}{tail}"))
}

/// Differences between the map and the files there are.
fn wrong_map(page: &str, paths: &BTreeSet<String>) -> Vec<String> {
    let map = mapped(page);
    let in_folders = |path: &&String| MAPPED.iter().any(|folder| path.starts_with(folder));
    let missing = paths.difference(&map).map(|path| format!("the map lacks {path}"));
    let gone = map.difference(paths).filter(in_folders).map(|p| format!("there is no {p}"));
    missing.chain(gone).collect()
}

fn local_paths(page: &Source) -> Vec<String> {
    let found = LOCAL.iter().filter(|part| page.text.contains(**part));
    found.map(|part| format!("{} contains {part}", page.path)).collect()
}

fn read(path: &str) -> Source {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{path}: {error}"));
    Source { path: path.to_string(), text }
}

/// The files under a folder whose names end so, in order.
fn files(folder: &str, ending: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), folder, ending, &mut paths);
    paths.sort();
    assert!(!paths.is_empty(), "no {ending} in {folder}");
    paths.iter().map(|path| read(path)).collect()
}

fn walk(folder: &Path, name: &str, ending: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{name}: {error}")) {
        let entry = entry.expect("the folder can be read");
        let path = format!("{name}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            walk(&entry.path(), &format!("{path}/"), ending, paths);
        } else if path.ends_with(ending) {
            paths.push(path);
        }
    }
}

fn sources() -> Vec<Source> {
    MAPPED.iter().flat_map(|folder| files(folder, ".rs")).collect()
}

#[track_caller]
fn assert_none(wrong: impl IntoIterator<Item = String>) {
    let wrong: Vec<String> = wrong.into_iter().collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn arrows_never_turn() {
    assert_none(files("src/", ".rs").iter().flat_map(wrong_arrows));
}

#[test]
fn policies_depend_on_nothing_and_forbid_unsafe() {
    let manifest = read("policies/Cargo.toml").text;
    assert_none(wrong_policies(&manifest, &files("policies/src/", ".rs")));
}

#[test]
fn unsafe_stands_in_the_listed_files_only() {
    assert_none(sources().iter().flat_map(wrong_unsafe));
    for path in UNSAFE {
        let moved = Source { path: "elsewhere.rs".into(), ..read(path) };
        assert!(!wrong_unsafe(&moved).is_empty(), "{path} needs no place in the list");
    }
}

#[test]
fn no_file_is_too_long() {
    assert_none(sources().iter().flat_map(too_long));
}

#[test]
fn the_map_lists_every_file_and_no_other() {
    let page = read("docs/architecture.md").text;
    assert!(page.lines().count() < ARCHITECTURE_LINES_MAX, "the page is to be read in one sitting");
    assert_none(wrong_map(&page, &sources().into_iter().map(|source| source.path).collect()));
}

#[test]
fn pages_name_no_place_on_a_machine() {
    let pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "traces/README.md"].map(read);
    assert_none(pages.iter().chain(&files("docs/", ".md")).flat_map(local_paths));
}

#[test]
fn readme_names_every_policy() {
    let readme = read("README.md").text;
    let lacking = aquifer::policies::NAMES.iter().filter(|n| !readme.contains(&format!("`{n}`")));
    assert_none(lacking.map(|name| format!("README.md does not tell of {name}")));
}

/// Each check finds the offence it is there for.
mod doctored {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    fn is_wrong(path: &str, text: &str) -> bool {
        !wrong_arrows(&source(path, text)).is_empty()
    }

    #[test]
    fn arrows_that_turn_are_found() {
        assert!(is_wrong("src/heap/mod.rs", "use crate::driver::Driver;"));
        assert!(is_wrong("src/heap/audit.rs", "fn f() { super::super::cache::free() }"));
        assert!(is_wrong("src/driver/sim/memory.rs", "fn f() -> super::super::super::Stats {}"));
        assert!(is_wrong("src/driver/mod.rs", "use super::allocator::Allocator;"));
        assert!(is_wrong("src/stats.rs", "use crate::heap::Heap;"));
        assert!(is_wrong("src/grow.rs", "use crate::{driver, heap};"));
        assert!(is_wrong("src/cache.rs", "use crate::driver::sim::Sim;"));
    }

    #[test]
    fn what_is_allowed_is_not_found() {
        assert!(!is_wrong("src/heap/audit.rs", "use super::Heap;"));
        assert!(!is_wrong("src/driver/sim/memory.rs", "use super::super::StreamId;"));
        assert!(!is_wrong("src/driver/faulty.rs", "use crate::driver::Driver;"));
        assert!(!is_wrong("src/lane.rs", "use crate::heap::Heap;"));
        assert!(!is_wrong(
            "src/heap/mod.rs",
            "//! Not crate::driver.\n#[cfg(test)]\nuse crate::cache;"
        ));
    }

    #[test]
    fn unsafe_is_found_as_a_word() {
        let is_wrong = |text| !wrong_unsafe(&source("src/cache.rs", text)).is_empty();
        assert!(is_wrong("let x = unsafe { *p };"));
        assert!(is_wrong("unsafe impl Send for X {}"));
        assert!(!is_wrong("#![deny(unsafe_code)] // unsafe"));
    }

    #[test]
    fn a_policy_that_depends_is_found() {
        let root = || vec![source("policies/src/lib.rs", "#![forbid(unsafe_code)]")];
        let manifest = "[package]\nname = \"p\"\n[dependencies]\n";
        assert!(wrong_policies(manifest, &root()).is_empty());
        assert!(!wrong_policies(&format!("{manifest}libc = \"0.2\""), &root()).is_empty());
        assert!(!wrong_policies(manifest, &[]).is_empty());
    }

    #[test]
    fn a_long_file_is_found() {
        let long = "let x = 1;\n".repeat(CODE_LINES_MAX);
        assert!(too_long(&source("src/x.rs", &format!("{long}\n// comment\n"))).is_empty());
        assert!(!too_long(&source("src/x.rs", &format!("{long}let y = 2;"))).is_empty());
    }

    #[test]
    fn a_map_that_lacks_or_invents_a_file_is_found() {
        let page = "```text\nsrc/\n  lib.rs   front\n  heap/\n    mod.rs  books\n  sync.rs, fork.rs  locks\n```\n";
        let there = |paths: &[&str]| paths.iter().map(|path| path.to_string()).collect();
        let all = ["src/lib.rs", "src/fork.rs", "src/heap/mod.rs", "src/sync.rs"];
        assert!(wrong_map(page, &there(&all)).is_empty());
        assert_eq!(wrong_map(page, &there(&all[1..])), ["there is no src/lib.rs"]);
        let more = [&all[..], &["src/new.rs"]].concat();
        assert_eq!(wrong_map(page, &there(&more)), ["the map lacks src/new.rs"]);
    }

    #[test]
    fn a_place_on_a_machine_is_found() {
        assert!(local_paths(&source("README.md", "see docs/architecture.md")).is_empty());
        assert!(!local_paths(&source("README.md", "cd /home/me/aquifer")).is_empty());
    }
}
