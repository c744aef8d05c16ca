//! What the memory model asks of kernels that wait for each other, held against the committed PTX of every kernel file:
//! a flag leaves by a release of system scope (or after a fence of system scope) and is read by an acquire of system
//! scope, and none is an atomic, because peers without native atomics lose those. One kernel sends words that carry their
//! own epoch instead of a flag (docs/decisions/0009): in it, and nowhere else, such a word is a relaxed access of system
//! scope and 64 bits.

#![allow(missing_docs, clippy::unwrap_used)]

use std::{collections::BTreeMap, fs, path::Path};

/// Texts of all committed PTX files by name.
fn committed() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "ptx"))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// Entries of a PTX file with their instructions, predicates cut off.
fn entries(ptx: &str) -> Vec<(String, Vec<String>)> {
    ptx.split(".visible .entry ")
        .skip(1)
        .map(|entry| {
            let (name, body) = entry.split_once('(').unwrap();
            let instructions = body
                .lines()
                .map(|line| line.trim())
                .map(|line| {
                    line.strip_prefix('@')
                        .map_or(line, |l| l.split_once(' ').unwrap().1)
                })
                .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
                .map(str::to_string);
            (name.trim().to_string(), instructions.collect())
        })
        .collect()
}

/// The one kernel whose words are their own flags.
const WORDS: &str = "peerproof_reduce_words";

/// Whether an access of payload is a word that carries its epoch as it must be: every element 64 bits, seen by all.
fn is_word(parts: &[&str]) -> bool {
    parts.get(1..) == Some(&["relaxed", "sys", "global", "v2", "u64"])
}

/// What an entry does wrong. It waits for another kernel when it acquires or looks at the time; in such an entry every
/// global access of 32 bits is a flag.
fn wrongs(name: &str, instructions: &[String]) -> Vec<String> {
    let waits = instructions
        .iter()
        .any(|i| i.contains(".acquire") || i.contains("globaltimer"));
    let mut found = Vec::new();
    let mut fenced = false;
    for instruction in instructions {
        let mnemonic = instruction.split_whitespace().next().unwrap();
        let parts: Vec<&str> = mnemonic.split('.').collect();
        let has = |word: &str| parts.contains(&word);
        let narrow = ["u32", "s32", "b32"].iter().any(|width| has(width));
        let words = name == WORDS && has("v2");
        match parts[0] {
            "ld" | "st" if words && !is_word(&parts) => {
                found.push(format!(
                    "{name}: {instruction}: a word that is not one relaxed access of system scope"
                ));
            }
            "ld" | "st" if words => {}
            "ld" | "st" if has("relaxed") && !narrow => {
                found.push(format!(
                    "{name}: {instruction}: a word without a flag in a kernel that uses flags"
                ));
            }
            "fence" | "membar" => fenced = has("sys"),
            "st" if has("release") && !has("sys") => {
                found.push(format!(
                    "{name}: {instruction}: a release of less than system scope"
                ));
            }
            "st" if has("release") => {}
            "st" if has("global") || has("volatile") || has("relaxed") => {
                if waits && narrow && !fenced {
                    found.push(format!("{name}: {instruction}: a flag without release"));
                }
                fenced = false;
            }
            "ld" if has("acquire") && !has("sys") => {
                found.push(format!(
                    "{name}: {instruction}: an acquire of less than system scope"
                ));
            }
            "ld" if has("acquire") => {}
            "ld" if has("global") && waits && narrow => {
                found.push(format!("{name}: {instruction}: a flag without acquire"));
            }
            // What came over a link and was announced by a flag must not be answered by a cache.
            "ld" if has("global") && waits && has("v2") && !has("volatile") && !has("relaxed") => {
                found.push(format!(
                    "{name}: {instruction}: a payload that a cache may answer"
                ));
            }
            "atom" | "red" if waits => found.push(format!("{name}: {instruction}: an atomic")),
            _ => {}
        }
    }
    found
}

#[test]
fn flags_are_released_and_acquired_at_system_scope_and_never_atomic() {
    let all = committed();
    assert!(all.len() >= 3, "{:?}", all.keys());
    let (mut releases, mut acquires) = (0, 0);
    for (file, ptx) in &all {
        let entries = entries(ptx);
        assert!(!entries.is_empty(), "{file} has no entry");
        for (name, instructions) in entries {
            assert_eq!(wrongs(&name, &instructions), Vec::<String>::new(), "{file}");
            releases += instructions
                .iter()
                .filter(|i| i.contains("st.release.sys"))
                .count();
            acquires += instructions
                .iter()
                .filter(|i| i.contains("ld.acquire.sys"))
                .count();
        }
    }
    assert!(
        releases >= 2 && acquires >= 2,
        "{releases} releases, {acquires} acquires"
    );
}

/// The rule is seen to fail.
#[test]
fn a_weakened_flag_is_seen() {
    let all = committed();
    for (from, to, says) in [
        (
            "st.release.sys.global.u32",
            "st.relaxed.sys.global.u32",
            "a flag without release",
        ),
        (
            "st.release.sys.global.u32",
            "st.global.u32",
            "a flag without release",
        ),
        (
            "st.release.sys.global.u32",
            "st.release.gpu.global.u32",
            "less than system scope",
        ),
        (
            "ld.acquire.sys.global.u32",
            "ld.acquire.gpu.global.u32",
            "less than system scope",
        ),
        (
            "ld.acquire.sys.global.u32",
            "ld.global.u32",
            "a flag without acquire",
        ),
        (
            "ld.volatile.global.v2.u64",
            "ld.global.ca.v2.u64",
            "a payload that a cache may answer",
        ),
        (
            "st.release.sys.global.u32",
            "red.global.add.u32",
            "an atomic",
        ),
    ] {
        for file in ["resident.ptx", "reduce.ptx"] {
            seen(&all[file], from, to, says);
        }
    }
    for (from, to, says) in [
        (
            "st.relaxed.sys.global.v2.u64",
            "st.global.v2.u64",
            "not one relaxed access",
        ),
        (
            "st.relaxed.sys.global.v2.u64",
            "st.relaxed.gpu.global.v2.u64",
            "not one relaxed access",
        ),
        (
            "ld.relaxed.sys.global.v2.u64",
            "ld.volatile.global.v2.u64",
            "not one relaxed access",
        ),
        (
            "ld.volatile.global.v2.u64",
            "ld.relaxed.sys.global.v2.u64",
            "without a flag in a kernel",
        ),
    ] {
        seen(&all["reduce.ptx"], from, to, says);
    }
}

fn seen(ptx: &str, from: &str, to: &str, says: &str) {
    let weak = ptx.replace(from, to);
    assert_ne!(ptx, weak, "{from} is not there");
    let found: Vec<String> = entries(&weak)
        .iter()
        .flat_map(|(name, instructions)| wrongs(name, instructions))
        .collect();
    assert!(
        found.iter().any(|f| f.contains(says)),
        "{from} to {to}: {found:?}"
    );
}

/// The exception is as narrow as it is said to be: one kernel, whose only flag is the stop word.
#[test]
fn one_kernel_sends_words_that_are_their_own_flags() {
    let all = entries(&committed()["reduce.ptx"]);
    let with_words: Vec<&str> = all
        .iter()
        .filter(|(_, instructions)| instructions.iter().any(|i| i.contains(".relaxed.")))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(with_words, [WORDS]);
}
