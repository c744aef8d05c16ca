//! The shape of `src/`, held by its text: floors that import only downwards, one home for each crate that reaches the
//! world, `unsafe` in one folder, pure floors that stay pure, and a header on every module.
//!
//! Paths are found by scanning, not by compiling: `crate::` and `super::` are how modules of one crate reach each other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A top-level module: name, floor, and the modules that it may import.
const MODULES: &[(&str, u8, &[&str])] = &[
    ("model", 0, &[]),
    ("stats", 1, &["model"]),
    ("profile", 1, &["model"]),
    ("words", 1, &[]),
    ("bundle", 1, &["model"]),
    ("child", 1, &["ffi"]),
    ("ffi", 1, &[]),
    ("gpu", 1, &["ffi", "model", "words"]),
    ("collect", 2, &["child", "ffi", "model"]),
    (
        "probe",
        2,
        &["child", "ffi", "gpu", "model", "stats", "words"],
    ),
    ("compare", 3, &["model", "stats"]),
    ("diagnose", 3, &["model", "profile", "stats"]),
    ("advise", 3, &["diagnose", "model", "profile", "stats"]),
    ("render", 3, &["model", "stats"]),
    (
        "cli",
        4,
        &[
            "advise", "bundle", "collect", "compare", "diagnose", "ffi", "gpu", "model", "probe",
            "profile", "render",
        ],
    ),
];

/// Imports within one floor, each with its reason.
const SAME_FLOOR: &[(&str, &str, &str)] = &[
    (
        "child",
        "ffi",
        "workers die with their parent by a process call",
    ),
    ("gpu", "ffi", "safe code over the driver table"),
    ("gpu", "words", "kernels take keys and are the words' twin"),
    (
        "advise",
        "diagnose",
        "evidence is asked through one set of questions; the arrow of the straight line points this way",
    ),
];

/// Crates that reach the world or a format, and the only files or folders that may name them.
const HOMES: &[(&str, &[&str])] = &[
    ("cudarc", &["ffi/driver.rs"]),
    ("libloading", &["ffi/"]),
    ("nvml_wrapper_sys", &["ffi/nvml_extra.rs"]),
    (
        "nvml_wrapper",
        &[
            "collect/nvml.rs",
            "collect/nvml_links.rs",
            "collect/observe.rs",
            "ffi/nvml_extra.rs",
        ],
    ),
    ("hwlocality", &["collect/hwloc.rs"]),
    ("sysinfo", &["collect/system.rs"]),
    ("nix", &["child.rs", "collect/system.rs", "ffi/process.rs"]),
    (
        "libc",
        &["collect/kernel_log.rs", "ffi/process.rs", "ffi/socket.rs"],
    ),
    ("roxmltree", &["collect/import/"]),
    ("toml", &["profile/load.rs"]),
    ("colored", &["render/page.rs"]),
    ("clap", &["cli/"]),
    ("tar", &["bundle/archive.rs"]),
    ("flate2", &["bundle/archive.rs"]),
];

/// Modules that answer the same for the same input, at any time and place: no files, clocks, environment, processes.
const PURE: &[&str] = &[
    "model", "stats", "words", "bundle", "compare", "diagnose", "advise", "render",
];
const IMPURE: &[&str] = &[
    "std::fs",
    "fs::",
    "std::env::",
    "env::var",
    "Instant",
    "SystemTime",
    "Timestamp::now",
    "std::process",
    "Command::new",
    "std::net",
    "println!",
];

struct Source {
    /// Path below `src/`.
    path: String,
    /// Whole text.
    text: String,
    /// Without comments, doc comments, string contents and test modules at the end of a file.
    code: String,
    /// The same with test modules.
    tested: String,
}

impl Source {
    /// The top-level module: the first part of the path.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// How many `super::` lead to the crate root.
    fn depth(&self) -> usize {
        let parts = self.path.split('/').count();
        if self.path.ends_with("/mod.rs") {
            parts - 1
        } else {
            parts
        }
    }

    /// A file that is a test module by its name.
    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    files.sort();
    files
        .iter()
        .map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let tested = strip(&text);
            let code = tested
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default()
                .to_string();
            let path = file.strip_prefix(&root).unwrap();
            Source {
                path: path.to_string_lossy().into_owned(),
                text,
                code,
                tested,
            }
        })
        .collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// The text without comments and without what stands in string literals; line breaks stay.
fn strip(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut out, mut i) = (String::new(), 0);
    while i < chars.len() {
        let c = at(i);
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            while i < chars.len() && !(at(i) == '*' && at(i + 1) == '/') {
                i += 1;
            }
            i += 2;
        } else if c == 'r'
            && (at(i + 1) == '"' || at(i + 1) == '#')
            && !is_word(at(i.wrapping_sub(1)))
        {
            let hashes = (i + 1..).take_while(|j| at(*j) == '#').count();
            if at(i + 1 + hashes) != '"' {
                out.push(c);
                i += 1;
                continue;
            }
            i += 2 + hashes;
            while i < chars.len() && !(at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#')) {
                i += 1;
            }
            i += 1 + hashes;
        } else if c == '"' {
            i += 1;
            while i < chars.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
            out.push_str("\"\"");
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character, not a lifetime.
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && at(i) != '\'' {
                i += 1;
            }
            i += 1;
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Places of `needle` that begin at a word's beginning.
fn words<'a>(code: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(needle)
        .map(|(at, _)| at)
        .filter(move |at| !code[..*at].chars().next_back().is_some_and(is_word))
}

/// First names of a use tree: `a::b, c::{d, e}` gives a and c.
fn heads(tree: &str) -> Vec<String> {
    let (mut depth, mut part, mut parts) = (0, String::new(), Vec::new());
    for c in tree.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    parts.push(part);
    parts
        .iter()
        .map(|part| part.trim().chars().take_while(|c| is_word(*c)).collect())
        .filter(|head: &String| !head.is_empty())
        .collect()
}

/// Top-level modules that a source names, test modules included.
fn imports(source: &Source) -> BTreeSet<String> {
    let code = &source.tested;
    words(code, "crate::")
        .flat_map(|at| {
            let rest = &code[at + "crate::".len()..];
            match rest.strip_prefix('{') {
                Some(tree) => heads(tree),
                None => vec![rest.chars().take_while(|c| is_word(*c)).collect()],
            }
        })
        .collect()
}

#[test]
fn the_table_names_every_module() {
    let found: BTreeSet<String> = sources()
        .iter()
        .map(|source| source.module().to_string())
        .filter(|module| module != "main" && module != "lib")
        .collect();
    let named: BTreeSet<String> = MODULES.iter().map(|(name, ..)| name.to_string()).collect();
    assert_eq!(found, named, "top-level modules and MODULES differ");

    let map = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    for (name, floor, _) in MODULES {
        assert!(
            map.contains(&format!("//! | {floor} | [`{name}`] |")),
            "the map in src/lib.rs does not put {name} on floor {floor}"
        );
    }
}

#[test]
fn the_table_points_downwards() {
    let floors: BTreeMap<&str, u8> = MODULES.iter().map(|(n, floor, _)| (*n, *floor)).collect();
    for (module, floor, allowed) in MODULES {
        for import in *allowed {
            let excepted = SAME_FLOOR
                .iter()
                .any(|(from, to, _)| (from, to) == (module, import));
            let below = floors[import] < *floor;
            assert!(
                below || (excepted && floors[import] == *floor),
                "{module} (floor {floor}) may not import {import} (floor {})",
                floors[import]
            );
        }
    }
    for (from, to, reason) in SAME_FLOOR {
        let (_, _, allowed) = MODULES.iter().find(|(name, ..)| name == from).unwrap();
        assert!(allowed.contains(to), "{from} -> {to} ({reason}) is unused");
    }
}

#[test]
fn modules_import_what_the_table_allows() {
    let allowed: BTreeMap<&str, &[&str]> = MODULES.iter().map(|(n, _, a)| (*n, *a)).collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for source in sources() {
        let module = source.module().to_string();
        if module == "main" || module == "lib" {
            continue;
        }
        for import in imports(&source) {
            if import == module {
                continue;
            }
            seen += 1;
            if !allowed[module.as_str()].contains(&import.as_str()) {
                wrong.push(format!("src/{} imports {import}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The scan is seen to see: far fewer would mean that it no longer understands how imports are written.
    assert!(seen > 100, "only {seen} imports found");
}

/// `super::` could leave a top-level module by the back door.
#[test]
fn no_path_climbs_to_the_crate_root() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (code, inside) in [(&source.code, 0), (&source.tested, 1)] {
            for at in words(code, "super::") {
                if code[..at].ends_with("super::") {
                    continue;
                }
                let climbs = code[at..]
                    .split("super::")
                    .take_while(|s| s.is_empty())
                    .count();
                if climbs >= source.depth() + inside {
                    wrong.push(format!("src/{}: {climbs} times super", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_that_reach_the_world_stay_at_home() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (name, homes) in HOMES {
            let used = words(&source.code, &format!("{name}::")).next().is_some();
            if used && !homes.iter().any(|home| source.path.starts_with(home)) {
                wrong.push(format!(
                    "src/{} uses {name}, whose place is {}",
                    source.path,
                    homes.join(", ")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_floors_touch_nothing() {
    let mut wrong = Vec::new();
    for source in sources() {
        if !PURE.contains(&source.module()) || source.is_test() {
            continue;
        }
        for needle in IMPURE {
            if words(&source.code, needle).next().is_some() {
                wrong.push(format!("src/{} uses {needle}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_lives_in_one_folder() {
    let mut inside = 0;
    for source in sources() {
        let count = words(&source.tested, "unsafe").filter(|at| {
            let after = &source.tested[at + "unsafe".len()..];
            !after.starts_with(is_word)
        });
        let count = count.count();
        if source.path.starts_with("ffi/") {
            inside += count;
        } else {
            // The lint is switched off for ffi only; `allow(unsafe_code)` contains the word.
            assert_eq!(count, 0, "src/{} is not src/ffi", source.path);
            if source.path != "lib.rs" {
                assert!(
                    !source.tested.contains("unsafe_code"),
                    "src/{} touches the lint on unsafe code",
                    source.path
                );
            }
        }
    }
    assert!(inside > 0, "the scan no longer sees unsafe code");
}

#[test]
fn every_module_says_what_it_knows() {
    for source in sources() {
        assert!(
            source.text.starts_with("//! "),
            "src/{} has no module header",
            source.path
        );
    }
}

#[test]
fn nothing_is_left_to_do() {
    for source in sources() {
        for needle in ["todo!", "unimplemented!"] {
            assert!(
                words(&source.tested, needle).next().is_none(),
                "src/{}: {needle}",
                source.path
            );
        }
    }
}

#[test]
fn no_module_is_a_drawer() {
    for source in sources() {
        for part in source.path.split('/') {
            let name = part.strip_suffix(".rs").unwrap_or(part);
            let drawer = [
                "utils", "util", "helpers", "helper", "common", "manager", "misc",
            ];
            assert!(
                !drawer.contains(&name),
                "src/{}: a name that says nothing",
                source.path
            );
        }
    }
}

#[test]
fn the_scanner_reads_rust() {
    let code = strip(
        "use crate::{a::{b, c}, d}; // crate::e\nlet s = \"crate::f\\\" \"; /* crate::g */ 'x' r#\"crate::h\"#; crate::i::j",
    );
    let source = Source {
        path: "k.rs".into(),
        text: String::new(),
        code: code.clone(),
        tested: code,
    };
    let found: Vec<String> = imports(&source).into_iter().collect();
    assert_eq!(found, ["a", "d", "i"]);
}
