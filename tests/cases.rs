//! Topology files of real hosts, kept outside the project: each is read or refused with a reason, and the class agrees
//! with the folder's INDEX.tsv as `docs/cases.md` explains. The folder comes from PEERPROOF_CASES.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use peerproof::{
    collect::import,
    model::{snapshot::Snapshot, topology::FabricClass},
};
use std::{collections::BTreeMap, path::Path};

/// What an index says of one file.
#[derive(Debug, PartialEq)]
enum Expected {
    /// Read, with one of these classes; the second is true when the hardware is known to have more than the file shows.
    Class(Vec<FabricClass>, bool),
    /// Refused, because the file is not valid.
    Invalid,
    /// The index judges the hardware from what this file's kind does not show.
    Anything,
}

const ALL: [FabricClass; 10] = [
    FabricClass::Nvswitch,
    FabricClass::NvlinkMesh,
    FabricClass::NvlinkPairs,
    FabricClass::PcieSwitch,
    FabricClass::RootComplexSingleSocket,
    FabricClass::RootComplexCrossSocket,
    FabricClass::Mixed,
    FabricClass::VmOpaque,
    FabricClass::None,
    FabricClass::Unknown,
];

/// An index's words as classes: what the file supports, not what the hardware has.
fn expected(words: &str) -> Expected {
    if words.is_empty() {
        return Expected::Anything;
    }
    if words.starts_with("invalid") {
        return Expected::Invalid;
    }
    let more = words.contains("real");
    let file_says = words
        .split(';')
        .next()
        .unwrap_or(words)
        .trim_start_matches("from file:");
    // One GPU below each switch: no two share one, so the switch says nothing of the pairs.
    let alone = ["1 GPU per switch", "one GPU per switch", "1 GPU each"]
        .iter()
        .any(|w| file_says.contains(w));
    if alone {
        return Expected::Class(
            vec![
                FabricClass::RootComplexCrossSocket,
                FabricClass::RootComplexSingleSocket,
                FabricClass::VmOpaque,
            ],
            more,
        );
    }
    if file_says.contains("single") && !file_says.contains("single-socket") {
        return Expected::Class(vec![FabricClass::None], false);
    }
    let first = ALL
        .iter()
        .filter_map(|c| file_says.find(c.name()).map(|at| (at, *c)))
        .min_by_key(|(at, _)| *at);
    match first {
        Some((_, class)) => Expected::Class(vec![class], more),
        // "root-complex": sockets are not printed in that kind of file.
        None if file_says.starts_with("root-complex") => Expected::Class(
            vec![
                FabricClass::RootComplexCrossSocket,
                FabricClass::RootComplexSingleSocket,
            ],
            more,
        ),
        None => panic!("the index says '{words}', which no class answers to"),
    }
}

/// Files where the index is not followed, with what is said instead. Argued in docs/cases.md.
fn exception(file: &str) -> Option<FabricClass> {
    match file {
        "rtx_5gpu_mixed_2numa.txt" => Some(FabricClass::RootComplexCrossSocket),
        "rtx5090x2-x870e-x8x8.lspci-t.cut.txt" => Some(FabricClass::Unknown),
        _ => None,
    }
}

/// Kinds that are known and refused, by file name.
fn refused_kind(file: &str) -> bool {
    [
        ".peers.txt",
        "lspci",
        "smi-q",
        "dmesg",
        "cmdline",
        "numactl",
        ".nvlink",
        "params",
        "sysfs-pci",
        "lstopo_console",
    ]
    .iter()
    .any(|k| file.contains(k))
}

fn index(folder: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(folder.join("INDEX.tsv")).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let column = header
        .iter()
        .position(|h| *h == "expected_class" || *h == "fabric");
    let (mut out, mut above) = (BTreeMap::new(), String::new());
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let words = *column.and_then(|c| cells.get(c)).unwrap_or(&"");
        // "as above" repeats the last row that says a class.
        if words != "as above" && !words.is_empty() {
            above = words.to_string();
        }
        let class = if words.is_empty() {
            String::new()
        } else {
            above.clone()
        };
        out.insert(cells[0].to_string(), class);
    }
    out
}

fn agrees(name: &str, snapshot: &Snapshot, expected: &Expected) -> Result<(), String> {
    let topology = &snapshot.topology;
    let what = || {
        format!(
            "{name}: {} ({}); expected {expected:?}; notes {:#?}",
            topology.class, topology.class_reason, topology.notes
        )
    };
    let (classes, more) = match expected {
        Expected::Class(classes, more) => (classes, *more),
        Expected::Invalid => return Err(format!("{name} was read but is invalid")),
        Expected::Anything => return Ok(()),
    };
    let wanted = exception(name).map_or_else(|| classes.clone(), |c| vec![c]);
    if !wanted.contains(&topology.class) {
        return Err(what());
    }
    let noted = topology.notes.iter().any(|n| n.contains("NVLink"));
    if more && !noted {
        return Err(format!("{}: no note that the hardware has more", what()));
    }
    Ok(())
}

#[test]
fn every_case_file_is_read_or_refused_and_classes_agree() {
    let Some(root) = std::env::var_os("PEERPROOF_CASES") else {
        println!("skipped: PEERPROOF_CASES is not set; it names the folder of recorded hosts");
        return;
    };
    let (mut read, mut refused, mut wrong) = (0, 0, Vec::new());
    for folder in ["hwloc", "nccl", "pci", "topo", "h200"] {
        let folder = Path::new(&root).join(folder);
        let index = index(&folder);
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| n != "INDEX.tsv" && n != "README.txt")
            .collect();
        names.sort();
        for name in names {
            let bytes = std::fs::read(folder.join(&name)).unwrap();
            let expected = expected(index.get(&name).map_or("", String::as_str));
            let outcome = import::read(&name, &bytes);
            let verbose = std::env::var_os("PEERPROOF_CASES_VERBOSE").is_some();
            match outcome {
                Ok(snapshot) => {
                    read += 1;
                    if verbose {
                        let t = &snapshot.topology;
                        println!(
                            "{name}\n  {} | {} | {}",
                            t.class, t.flashinfer_label, t.class_reason
                        );
                        for d in t.disagreements.iter().take(3) {
                            println!("  ! {} {:?} {}", d.about, d.claims, d.resolution);
                        }
                        for n in &t.notes {
                            println!("  - {n}");
                        }
                        for i in &t.islands {
                            println!(
                                "  = {} {:?}",
                                i.joined_by,
                                i.gpus.iter().map(|g| g.0).collect::<Vec<_>>()
                            );
                        }
                    }
                    if refused_kind(&name) && exception(&name).is_none() {
                        wrong.push(format!("{name} was read, but it is no topology"));
                    }
                    wrong.extend(agrees(&name, &snapshot, &expected).err());
                }
                Err(error) => {
                    refused += 1;
                    let line = error.to_string();
                    if verbose {
                        println!("{line}");
                    }
                    if line.lines().count() != 1 {
                        wrong.push(format!("not one line: {line}"));
                    }
                    if expected != Expected::Invalid && !refused_kind(&name) {
                        wrong.push(format!("refused: {line}"));
                    }
                }
            }
        }
    }
    println!("{read} files read, {refused} refused with a reason");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        read >= 90,
        "only {read} files were read: is the folder whole?"
    );
}
