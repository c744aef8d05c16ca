//! nvidia-smi's matrices as a snapshot: what `topo -m` and `topo -p2p` print are claims of NVML about pairs. The text has
//! no PCI addresses, so GPUs are known by their labels.

use super::{
    error::ImportError,
    topo_table::{Cell, Row, Table, TableKind, gpu_number, tables},
};
use crate::model::{
    pair::{OrderedPair, PairTable},
    reading::{Absence, Reading},
    snapshot::{Gpu, Nic, NumaNode, Origin, PairClaims, Snapshot, SourceNote},
    topology::PathType,
};
use std::collections::BTreeMap;

/// Largest pasted text, in bytes. A table of sixteen GPUs and thirty NICs has 20 KB.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// The snapshot, or nothing when the text has no such matrix.
pub(super) fn read(file: &str, text: &str) -> Result<Option<Snapshot>, ImportError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(ImportError::whole(
            file,
            format!(
                "{} bytes of text; cut it down to the tables of nvidia-smi topo",
                text.len()
            ),
        ));
    }
    let all = tables(file, text)?;
    let paths: Vec<&Table> = all.iter().filter(|t| t.kind == TableKind::Paths).collect();
    let statuses: Vec<&Table> = all
        .iter()
        .filter(|t| t.kind == TableKind::Statuses)
        .collect();
    let Some(main) = paths.first().or(statuses.first()).copied() else {
        return Ok(None);
    };
    let format = match main.kind {
        TableKind::Paths => "nvidia-smi topo -m",
        TableKind::Statuses => "nvidia-smi topo -p2p",
    };
    let mut snapshot = Snapshot::empty(Origin::Recorded {
        format: format.to_string(),
        file: file.to_string(),
    });
    let labels: Vec<&str> = main
        .columns
        .iter()
        .map(String::as_str)
        .filter(|c| gpu_number(c).is_some())
        .collect();
    for label in &labels {
        snapshot.gpus.push(Gpu {
            label: (*label).to_string(),
            nvml_index: gpu_number(label).map_or_else(Reading::default, Reading::Known),
            ..Gpu::default()
        });
    }
    snapshot.claims = PairTable::new(u32::try_from(labels.len()).unwrap_or(0));
    if main.kind == TableKind::Paths {
        affinities(main, &mut snapshot);
        path_claims(main, &labels, &mut snapshot);
        nics(main, &labels, text, &mut snapshot);
    }
    for table in &statuses {
        status_claims(file, table, &labels, &mut snapshot);
    }
    notes(&all, &paths, &mut snapshot);
    snapshot.sources.push(SourceNote {
        source: format.to_string(),
        result: Reading::Known(format!(
            "{} GPUs, {} rows, {} NICs",
            labels.len(),
            main.rows.len(),
            snapshot.nics.len()
        )),
        took_ms: 0.0,
    });
    Ok(Some(snapshot))
}

fn notes(all: &[Table], paths: &[&Table], snapshot: &mut Snapshot) {
    let notes = &mut snapshot.topology.notes;
    for table in all {
        let cut: Vec<&str> = table
            .rows
            .iter()
            .filter(|r| r.cut)
            .map(|r| r.label.as_str())
            .collect();
        if !cut.is_empty() {
            notes.push(format!(
                "rows cut in the text: {}; their cells are taken from the other half of the table",
                cut.join(", ")
            ));
        }
        let missing: Vec<&str> = table
            .columns
            .iter()
            .filter(|c| gpu_number(c).is_some() && !table.rows.iter().any(|r| r.label == **c))
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            notes.push(format!("rows missing in the text: {}", missing.join(", ")));
        }
        if !table.header {
            notes.push("the table has no header: columns are told by the rows, the rest are taken for NICs".to_string());
        }
    }
    if paths.len() > 1 {
        notes.push(format!(
            "{} tables of topo -m in one text: only the first is read",
            paths.len()
        ));
    }
}

fn row_of<'t>(table: &'t Table, label: &str) -> Option<&'t Row> {
    table.rows.iter().find(|r| r.label == label)
}

fn cell(table: &Table, from: &str, to: &str) -> Option<Cell> {
    let column = table.columns.iter().position(|c| c == to)?;
    row_of(table, from)?.cells.get(column).copied()
}

/// A cell of its own row, or its mirror image when that was cut: nvidia-smi's tables are symmetric.
fn cell_or_mirror(table: &Table, from: &str, to: &str) -> Option<Cell> {
    cell(table, from, to).or_else(|| cell(table, to, from))
}

fn affinities(table: &Table, snapshot: &mut Snapshot) {
    let mut nodes: BTreeMap<u32, Option<String>> = BTreeMap::new();
    for gpu in &mut snapshot.gpus {
        let Some(row) = row_of(table, &gpu.label) else {
            continue;
        };
        if let Some(cpus) = &row.cpus {
            gpu.cpu_affinity = Reading::Known(cpus.clone());
        }
        if let Some(text) = &row.numa {
            gpu.numa_node = match text.parse::<u32>().ok().and_then(|n| i32::try_from(n).ok()) {
                Some(node) => Reading::Known(node),
                None => Reading::Absent(Absence::NotSupported(text.chars().take(32).collect())),
            };
        }
        if let Some(node) = gpu.numa_node.known().and_then(|n| u32::try_from(*n).ok()) {
            let cpus = nodes.entry(node).or_default();
            if cpus.is_none() {
                *cpus = row.cpus.clone();
            }
        }
    }
    snapshot.numa_nodes = nodes
        .into_iter()
        .map(|(os_index, cpus)| NumaNode {
            os_index,
            memory_bytes: None,
            cpus,
        })
        .collect();
}

/// nvmlGpuTopologyLevel of a path type.
fn level(path: PathType) -> u32 {
    match path {
        PathType::Pix => 10,
        PathType::Pxb => 20,
        PathType::Phb => 30,
        PathType::Node => 40,
        PathType::Sys => 50,
    }
}

fn path_claims(table: &Table, labels: &[&str], snapshot: &mut Snapshot) {
    for pair in OrderedPair::all(snapshot.claims.count()) {
        let (Some(from), Some(to)) = (
            labels.get(pair.source.at()),
            labels.get(pair.destination.at()),
        ) else {
            continue;
        };
        let claims = match cell_or_mirror(table, from, to) {
            Some(Cell::Path(path)) => PairClaims {
                common_ancestor: Reading::Known(level(path)),
                nvlink_count: Reading::Known(0),
                ..PairClaims::default()
            },
            Some(Cell::NvLinks(count)) => PairClaims {
                nvlink_count: Reading::Known(count),
                ..PairClaims::default()
            },
            _ => continue,
        };
        snapshot.claims.set(pair, claims);
    }
}

fn nics(table: &Table, labels: &[&str], text: &str, snapshot: &mut Snapshot) {
    let names = legend(text);
    for column in table.columns.iter().filter(|c| gpu_number(c).is_none()) {
        let to_gpus = labels
            .iter()
            .map(|gpu| match cell_or_mirror(table, gpu, column) {
                Some(Cell::Path(path)) => Some(path),
                _ => None,
            })
            .collect();
        snapshot.nics.push(Nic {
            name: names
                .get(column.as_str())
                .map_or_else(|| column.clone(), |n| (*n).to_string()),
            pci: Reading::default(),
            bridge_chain: Reading::default(),
            numa_node: Reading::default(),
            to_gpus,
        });
    }
}

/// `NIC0: mlx5_0` lines of the "NIC Legend" below newer tables.
fn legend(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .skip_while(|l| !l.contains("NIC Legend"))
        .filter_map(|l| l.trim().split_once(':'))
        .map(|(key, name)| (key.trim(), name.trim()))
        .filter(|(_, name)| !name.is_empty() && name.len() < 64)
        .collect()
}

/// Which status a matrix is about, from the words before it (`-p2p rw`), else from the name of its file.
fn about(file: &str, table: &Table) -> Option<String> {
    let letters = |line: &str| {
        let rest = line.split("p2p").nth(1)?;
        let word = rest
            .split(|c: char| !c.is_ascii_alphabetic())
            .find(|w| !w.is_empty())?;
        let known = word.len() <= 5 && word.bytes().all(|b| b"rwnap".contains(&b));
        known.then(|| word.to_string())
    };
    let before = table.before.iter().rev().find_map(|l| letters(l));
    before.or_else(|| letters(file.rsplit('/').next().unwrap_or(file)))
}

fn status_claims(file: &str, table: &Table, labels: &[&str], snapshot: &mut Snapshot) {
    let about = about(file, table);
    if about.is_none() {
        snapshot.topology.notes.push(
            "the text does not name the capability of its P2P matrix; it is taken for reads (topo -p2p r)".to_string(),
        );
    }
    let about = about.unwrap_or_else(|| "r".to_string());
    for pair in OrderedPair::all(snapshot.claims.count()) {
        let (Some(from), Some(to)) = (
            labels.get(pair.source.at()),
            labels.get(pair.destination.at()),
        ) else {
            continue;
        };
        let Some(Cell::Status(status)) = cell(table, from, to) else {
            continue;
        };
        let mut claims = snapshot.claims.get(pair).cloned().unwrap_or_default();
        for letter in about.bytes() {
            let slot = match letter {
                b'r' => &mut claims.p2p_read,
                b'w' => &mut claims.p2p_write,
                b'n' => &mut claims.p2p_nvlink,
                b'a' => &mut claims.p2p_atomics,
                b'p' => &mut claims.p2p_pcie,
                _ => continue,
            };
            *slot = Reading::Known(status.to_string());
        }
        snapshot.claims.set(pair, claims);
    }
}
