//! Rosters and what they list stay the same set: mechanisms and their files, causes and their files and pages, kernels
//! and the host code that launches them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use peerproof::{
    diagnose,
    gpu::{gate::GATE_PTX, kernels::INTEGRITY_PTX, reduce::REDUCE_PTX, resident::RESIDENT_PTX},
    probe::{
        loaded,
        mechanism::{self, Place},
        reduced, reduction, resident,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// Names of the files of a folder with this ending, without it; `mod` and `tests` left out.
fn stems(folder: &str, ending: &str) -> BTreeSet<String> {
    fs::read_dir(root().join(folder))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(ending).map(str::to_string)
        })
        .filter(|stem| stem != "mod" && stem != "tests")
        .collect()
}

fn set<'a>(ids: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for id in ids {
        assert!(
            id.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "'{id}' is not in kebab case"
        );
        assert!(all.insert(id.to_string()), "'{id}' is listed twice");
    }
    all
}

fn kebab(stems: BTreeSet<String>) -> BTreeSet<String> {
    stems.iter().map(|stem| stem.replace('_', "-")).collect()
}

#[test]
fn a_mechanism_is_one_file_and_one_line() {
    let ids = set(mechanism::ROSTER.iter().map(|m| m.id()));
    let mut files = stems("src/probe/mechanism", ".rs");
    // What a mechanism is given.
    assert!(files.remove("ends"));
    let texts: BTreeMap<String, String> = files
        .into_iter()
        .map(|stem| {
            let path = root().join(format!("src/probe/mechanism/{stem}.rs"));
            (stem, fs::read_to_string(path).unwrap())
        })
        .collect();
    // One file each, or one for a family: the same operations over another kind of memory.
    let mut used = BTreeSet::new();
    for id in &ids {
        let named = format!("\"{id}\"");
        let named = texts.iter().filter(|(_, text)| text.contains(&named));
        let stems: Vec<&str> = named.map(|(stem, _)| stem.as_str()).collect();
        assert_eq!(stems.len(), 1, "{id} is named by {stems:?}");
        used.insert(stems[0].to_string());
    }
    assert_eq!(
        used,
        texts.keys().cloned().collect(),
        "files without a mechanism"
    );
    // The number inside words is the place in the roster and has six bits; the highest stands for no mechanism.
    assert!(mechanism::ROSTER.len() < 63);
    for (at, m) in mechanism::ROSTER.iter().enumerate() {
        assert_eq!(usize::from(mechanism::number(m.id())), at);
        assert_eq!(mechanism::by_id(m.id()).map(|m| m.id()), Some(m.id()));
    }
    assert!(
        mechanism::ROSTER.is_sorted_by_key(|m| m.rung()),
        "lowest rung first"
    );
}

#[test]
fn a_mechanism_of_one_gpu_does_not_share_its_name_with_one_of_pairs() {
    let alone = set(peerproof::probe::alone::ROSTER.iter().map(|(id, _)| *id));
    let pairs = set(mechanism::ROSTER.iter().map(|m| m.id()));
    assert!(alone.is_disjoint(&pairs));
    let exchanges = set(resident::ROSTER.iter().map(|exchange| exchange.id));
    assert!(exchanges.is_disjoint(&pairs) && exchanges.is_disjoint(&alone));
    assert!(exchanges.iter().all(|id| resident::by_id(id).is_some()));
}

#[test]
fn what_runs_under_load_is_a_mechanism() {
    for id in loaded::MECHANISMS {
        assert!(mechanism::by_id(id).is_some(), "{id}");
    }
}

#[test]
fn a_cause_is_one_file_one_line_and_one_page() {
    let ids = set(diagnose::ROSTER.iter().map(|cause| cause.id));
    assert_eq!(ids, kebab(stems("src/diagnose/cause", ".rs")));
    assert_eq!(
        ids,
        stems("docs/causes", ".md"),
        "src and docs/causes differ"
    );
    for cause in diagnose::ROSTER {
        let page = fs::read_to_string(root().join(format!("docs/causes/{}.md", cause.id))).unwrap();
        assert!(
            page.starts_with(&format!("# {}", cause.id)),
            "docs/causes/{}.md does not begin with its id",
            cause.id
        );
    }
}

/// Entries of a PTX text with the number of their parameters.
fn entries(ptx: &str) -> BTreeMap<String, usize> {
    ptx.split(".visible .entry ")
        .skip(1)
        .map(|entry| {
            let (name, rest) = entry.split_once('(').unwrap();
            let parameters = rest.split_once(')').unwrap().0;
            let count = parameters.matches(".param ").count();
            (name.trim().to_string(), count)
        })
        .collect()
}

/// What the host code launches: entry, and the number of arguments of the function that launches it.
fn launches(code: &str) -> BTreeMap<String, usize> {
    let field_of = |line: &str| {
        let (field, call) = line.trim().split_once(": function(c\"")?;
        Some((field.to_string(), call.split_once('"')?.0.to_string()))
    };
    let entries: Vec<(String, String)> = code.lines().filter_map(field_of).collect();
    let functions: Vec<&str> = code
        .split("\n    fn ")
        .flat_map(|f| f.split("\n    pub fn "))
        .collect();
    let arguments = |body: &str| {
        let list = body.split_once("let arguments = [")?.1.split_once("];")?.0;
        Some(list.matches("Argument::").count() + list.matches("pointer(").count())
    };
    // Chosen among its kin by a value: the function that launches what was chosen has the arguments of all.
    let kin = code.lines().filter_map(|line| {
        let (_, entry) = line.trim().split_once(" => c\"")?;
        let entry = entry.split_once('"')?.0.to_string();
        let launches = |body: &&&str| body.contains(".launch(self.function(");
        Some((entry, arguments(functions.iter().find(launches)?)?))
    });
    entries
        .iter()
        .filter_map(|(field, entry)| {
            let named = format!("self.{field}");
            // Launched where it is named, or handed on from there to the function that both copies share.
            let body = functions
                .iter()
                .find(|body| !body.starts_with("load(") && mentions(body, &named))?;
            let count = arguments(body).or_else(|| {
                let (before, _) = body.split_once(&format!("({named},"))?;
                let callee = before.rsplit("self.").next()?;
                let shared = functions
                    .iter()
                    .find(|b| b.starts_with(&format!("{callee}(")))?;
                arguments(shared)
            });
            // Or chosen there among its kin for the function that launches them all.
            let count = count.or_else(|| {
                let chooser = format!("self.{}(", body.split_once('(')?.0);
                let users = functions.iter().filter(|b| b.contains(&chooser));
                users.filter_map(|b| arguments(b)).next()
            })?;
            Some((entry.clone(), count))
        })
        .chain(kin)
        .collect()
}

/// Whether `named` occurs in `body` as a whole name.
fn mentions(body: &str, named: &str) -> bool {
    body.match_indices(named).any(|(at, _)| {
        !body[at + named.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '(')
    })
}

#[test]
fn kernels_get_as_many_arguments_as_they_take() {
    for (file, ptx, least) in [
        ("src/gpu/kernels.rs", INTEGRITY_PTX, 5),
        ("src/gpu/resident.rs", RESIDENT_PTX, 1),
        ("src/gpu/reduce.rs", REDUCE_PTX, 9),
        ("src/gpu/gate.rs", GATE_PTX, 2),
    ] {
        let code = fs::read_to_string(root().join(file)).unwrap();
        let (launched, taken) = (launches(&code), entries(ptx));
        assert_eq!(launched, taken, "{file} (left) and its PTX (right) differ");
        assert!(taken.len() >= least, "{taken:?}");
    }
    // What is embedded is all that is committed.
    assert_eq!(stems("kernels", ".ptx").len(), 4);
}

/// Files of the folder that are no algorithm: what all of them share.
const OF_ALL_REDUCTIONS: [&str; 5] = ["conclude", "exact", "group", "rank", "series"];

#[test]
fn an_all_reduce_algorithm_is_one_file_and_one_line() {
    let ids = set(reduction::ROSTER.iter().map(|a| a.id()));
    let mut files = kebab(stems("src/probe/reduction", ".rs"));
    assert!(OF_ALL_REDUCTIONS.iter().all(|file| files.remove(*file)));
    assert_eq!(ids, files);
    for id in &ids {
        let file = format!("src/probe/reduction/{}.rs", id.replace('-', "_"));
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains(&format!("\"{id}\"")), "{id}");
        assert!(reduction::by_id(id).is_some());
    }
    let mechanisms = set(mechanism::ROSTER.iter().map(|m| m.id()));
    assert!(ids.is_disjoint(&mechanisms));
}

#[test]
fn every_kernel_file_is_committed_with_its_ptx() {
    assert_eq!(stems("kernels", ".cu"), stems("kernels", ".ptx"));
}

/// Read by the launch code and by the source, so they must be the same number.
#[test]
fn constants_of_the_launch_are_those_of_the_source() {
    let host = fs::read_to_string(root().join("src/gpu/kernels.rs")).unwrap();
    let device = fs::read_to_string(root().join("kernels/integrity.cu")).unwrap();
    assert!(host.contains("const THREADS: u32 = 256;"));
    assert!(device.contains("#define THREADS 256\n"));
    assert!(host.contains("const TILE: u64 = 1024;"));
    assert!(device.contains("#define UNROLL 4\n#define TILE (THREADS * UNROLL)\n"));
    assert!(host.contains("const SHARES: u64 = 16;"));
    assert!(device.contains("#define SHARES 16\n"));
    let host = fs::read_to_string(root().join("src/gpu/resident.rs")).unwrap();
    let device = fs::read_to_string(root().join("kernels/resident.cu")).unwrap();
    assert!(host.contains("const THREADS: u32 = 128;"));
    assert!(device.contains("#define THREADS 128\n"));
    assert!(host.contains("const FLAG_STRIDE: u64 = 128;"));
    assert!(device.contains("#define FLAG_STRIDE 128\n"));
    let host = fs::read_to_string(root().join("src/gpu/reduce.rs")).unwrap();
    let device = fs::read_to_string(root().join("kernels/reduce.cu")).unwrap();
    for (here, there) in [
        ("THREAD_LIMIT: u32 = 512;", "THREADS 512 "),
        ("BLOCK_LIMIT: u32 = 256;", "BLOCKS 256 "),
        ("RANK_LIMIT: usize = 8;", "RANKS 8 "),
        ("PHASES: u64 = 3;", "PHASES 3\n"),
        ("POISON: u32 = 0x7a5b_7a5b;", "POISON 0x7a5b7a5b\n"),
    ] {
        assert!(
            host.contains(here) && device.contains(&format!("#define {there}")),
            "{here}"
        );
    }
}

#[test]
fn an_all_reduce_of_the_ladder_is_an_algorithm_in_one_kind_of_workers() {
    let ways = set(reduced::ROSTER.iter().map(|way| way.id));
    let others = mechanism::ROSTER.iter().map(|m| m.id());
    let others = others
        .chain(resident::ROSTER.iter().map(|exchange| exchange.id))
        .chain(peerproof::probe::alone::ROSTER.iter().map(|(id, _)| *id));
    assert!(ways.is_disjoint(&set(others)));
    for algorithm in reduction::ROSTER {
        let mine: Vec<_> = reduced::ROSTER
            .iter()
            .filter(|way| way.algorithm == algorithm.id())
            .collect();
        // Host memory of one process is not shared with others.
        let wanted = match algorithm.mailboxes() {
            reduction::Mailboxes::Host => vec![Place::Off],
            reduction::Mailboxes::Peer => vec![Place::On, Place::Ranks],
        };
        let places: Vec<Place> = mine.iter().map(|way| way.place).collect();
        assert_eq!(places, wanted, "{}", algorithm.id());
    }
    for way in &reduced::ROSTER {
        assert!(way.algorithm().is_some(), "{}", way.id);
        let across = way.place == Place::Ranks;
        assert_eq!(way.id.starts_with("ipc-"), across, "{}", way.id);
    }
    // What proves the rung takes two ranks as well as eight.
    for way in reduced::founding().filter(|way| way.place != Place::Off) {
        assert!(way.algorithm().is_some_and(|a| (2..=8).all(|n| a.takes(n))));
    }
}
