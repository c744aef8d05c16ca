//! The join: bridge chains, NUMA nodes, packages, NVML's claims and NVLink lists become paths, islands and a fabric class.
//! Pure, and the same for live and recorded hosts. What no source shows stays unknown; where sources differ, both are
//! kept and the difference is reported.

mod class;
mod islands;
mod nvlink;

pub use class::{class_of, flashinfer_label};

use crate::model::{
    pair::{GpuIndex, OrderedPair, PairTable},
    pci::PciAddress,
    reading::{Grade, Reading},
    snapshot::{BridgePort, Gpu, Nic, Snapshot},
    topology::{Disagreement, PairPath, PathType},
};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the `SourceNote` that says whether PCI functions were listed at all. Absent: no GPUs does not mean none.
pub const PCI_SOURCE: &str = "pci";

/// Most disagreements that are spelled out; the rest are counted.
const MAX_DISAGREEMENTS: usize = 64;

/// Joins all that `snapshot` holds into `snapshot.topology` and into the NICs' distances. Notes that a reader left there
/// are kept. Calling it again gives the same result.
pub fn join(snapshot: &mut Snapshot) {
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    let (links, mut notes, mut disagreements) = nvlink::links(snapshot);
    let switches = switch_ports(snapshot);
    let mut pairs = PairTable::new(count);
    let mut far_sys = 0_u32;
    for pair in OrderedPair::all(count) {
        let (Some(source), Some(destination)) =
            (snapshot.gpu(pair.source), snapshot.gpu(pair.destination))
        else {
            continue;
        };
        let (a, b) = (End::of_gpu(source), End::of_gpu(destination));
        let chain = between(&a, &b, &switches);
        let claim = snapshot
            .claims
            .get(pair)
            .and_then(|c| c.common_ancestor.known())
            .and_then(|level| path_of_level(*level));
        if let (Some(seen), Some(claimed)) = (&chain, claim)
            && seen.exact
            && seen.path != claimed
            && pair.source < pair.destination
        {
            disagreements.push(Disagreement {
                about: format!("path type {pair}"),
                claims: vec![
                    ("PCI bridge chain".to_string(), seen.path.to_string()),
                    ("NVML common ancestor".to_string(), claimed.to_string()),
                ],
                resolution: "the bridge chain is followed: it names each bridge on the way"
                    .to_string(),
            });
        }
        if claim == Some(PathType::Sys) && a.numa.is_some() && a.numa == b.numa {
            far_sys += 1;
        }
        let link = links.get(pair).copied().unwrap_or_default();
        let (pcie, bridges, grade) = match (chain, claim) {
            (Some(seen), claim) if seen.exact || claim.is_none() => {
                let grade = if seen.exact {
                    Grade::Advertised
                } else {
                    Grade::Inferred
                };
                (Some(seen.path), seen.bridges, grade)
            }
            (_, Some(claimed)) => (Some(claimed), Vec::new(), Grade::Advertised),
            (_, None) => (None, Vec::new(), Grade::Assumed),
        };
        pairs.set(
            pair,
            PairPath {
                pcie,
                nvlinks: link.count,
                nvlink_known: link.known,
                through_nvswitch: link.through_nvswitch,
                bridges,
                grade,
            },
        );
    }
    if far_sys > 0 {
        notes.push(format!(
            "{} pairs read SYS although both GPUs are on one NUMA node: SYS does not mean another socket here",
            far_sys / 2
        ));
    }
    asymmetric_claims(snapshot, &mut disagreements);
    join_nics(snapshot, &switches);
    if disagreements.len() > MAX_DISAGREEMENTS {
        notes.push(format!(
            "{} more disagreements of the same kinds are not listed",
            disagreements.len() - MAX_DISAGREEMENTS
        ));
        disagreements.truncate(MAX_DISAGREEMENTS);
    }
    snapshot.topology.pairs = pairs;
    snapshot.topology.disagreements = disagreements;
    snapshot.topology.islands = islands::islands(snapshot);
    let all: Vec<GpuIndex> = (0..count).map(GpuIndex).collect();
    let (class, reason) = class_of(snapshot, &all);
    let label = flashinfer_label(snapshot, &all);
    let topology = &mut snapshot.topology;
    topology.class = class;
    topology.class_reason = reason;
    topology.flashinfer_label = label;
    for note in notes {
        if !topology.notes.contains(&note) {
            topology.notes.push(note);
        }
    }
}

/// nvmlGpuTopologyLevel as a path type; 0 (two GPUs of one board) counts as one switch.
pub(in crate::collect) fn path_of_level(level: u32) -> Option<PathType> {
    match level {
        0 | 10 => Some(PathType::Pix),
        20 => Some(PathType::Pxb),
        30 => Some(PathType::Phb),
        40 => Some(PathType::Node),
        50 => Some(PathType::Sys),
        _ => None,
    }
}

/// A device as far as its place matters.
struct End<'s> {
    chain: Option<&'s [PciAddress]>,
    root: Option<String>,
    numa: Option<i32>,
    package: Option<u32>,
}

impl<'s> End<'s> {
    fn of_gpu(gpu: &'s Gpu) -> Self {
        End {
            chain: gpu.bridge_chain.known().map(Vec::as_slice),
            root: gpu.root_bus.known().cloned(),
            numa: gpu.numa_node.known().copied().filter(|n| *n >= 0),
            package: gpu.package.known().copied(),
        }
    }

    /// A NIC's root bus is where its topmost bridge, or the NIC itself, sits; only where host bridges are known at all.
    fn of_nic(nic: &'s Nic, host_bridges_known: bool) -> Self {
        let chain = nic.bridge_chain.known().map(Vec::as_slice);
        let top = chain.and_then(|c| c.last().or(nic.pci.known()));
        End {
            chain,
            root: top
                .filter(|_| host_bridges_known)
                .map(|t| format!("{:04x}:{:02x}", t.domain, t.bus)),
            numa: nic.numa_node.known().copied().filter(|n| *n >= 0),
            package: None,
        }
    }
}

/// A path as chains and places show it.
struct Seen {
    path: PathType,
    bridges: Vec<PciAddress>,
    /// False for what follows from places alone: no bridge chains, or no host bridges so that PHB and NODE look alike.
    /// What NVML states of the pair then counts for more.
    exact: bool,
}

/// Ports that stand for one switch each: upstream ports.
fn switch_ports(snapshot: &Snapshot) -> BTreeMap<PciAddress, BridgePort> {
    snapshot.bridges.iter().map(|b| (b.pci, b.port)).collect()
}

/// As nvidia-smi has it: PIX through one switch, PXB through several, PHB over one host bridge, NODE within a NUMA node,
/// SYS beyond it.
fn between(a: &End<'_>, b: &End<'_>, ports: &BTreeMap<PciAddress, BridgePort>) -> Option<Seen> {
    if let (Some(up), Some(down)) = (a.chain, b.chain)
        && let Some((i, j)) = up
            .iter()
            .enumerate()
            .find_map(|(i, x)| down.iter().position(|y| y == x).map(|j| (i, j)))
    {
        let mut bridges: Vec<PciAddress> = up[..=i].to_vec();
        bridges.extend(down[..j].iter().rev());
        let known = bridges
            .iter()
            .all(|b| !matches!(ports.get(b), None | Some(BridgePort::Unknown)));
        let switches = if known {
            bridges
                .iter()
                .filter(|b| ports.get(b) == Some(&BridgePort::SwitchUpstream))
                .count()
        } else {
            // Without port kinds: one port below the common bridge on each side is one switch.
            1 + i.max(j) / 2
        };
        let path = if switches <= 1 {
            PathType::Pix
        } else {
            PathType::Pxb
        };
        return Some(Seen {
            path,
            bridges,
            exact: true,
        });
    }
    let plain = |path, exact| {
        Some(Seen {
            path,
            bridges: Vec::new(),
            exact,
        })
    };
    let chains = a.chain.is_some() && b.chain.is_some();
    let same_root = match (&a.root, &b.root) {
        (Some(x), Some(y)) => Some(x == y),
        _ => None,
    };
    if same_root == Some(true) {
        // With a bridge missing from the input, PIX, PXB and PHB look alike.
        return if chains {
            plain(PathType::Phb, true)
        } else {
            None
        };
    }
    match (a.numa, b.numa) {
        (Some(x), Some(y)) if x != y => return plain(PathType::Sys, chains),
        (Some(_), Some(_)) if same_root == Some(false) => return plain(PathType::Node, chains),
        (Some(_), Some(_)) if chains => return plain(PathType::Node, false),
        _ => {}
    }
    match (a.package, b.package) {
        (Some(x), Some(y)) if x != y => plain(PathType::Sys, chains),
        _ => None,
    }
}

fn asymmetric_claims(snapshot: &Snapshot, disagreements: &mut Vec<Disagreement>) {
    for (pair, claims) in snapshot
        .claims
        .iter()
        .filter(|(p, _)| p.source < p.destination)
    {
        let Some(back) = snapshot.claims.get(pair.reversed()) else {
            continue;
        };
        if let (Some(x), Some(y)) = (claims.common_ancestor.known(), back.common_ancestor.known())
            && x != y
        {
            let word = |level: u32| {
                path_of_level(level).map_or_else(|| level.to_string(), |p| p.to_string())
            };
            disagreements.push(Disagreement {
                about: format!("path type of GPUs {} and {}", pair.source, pair.destination),
                claims: vec![
                    (pair.to_string(), word(*x)),
                    (pair.reversed().to_string(), word(*y)),
                ],
                resolution: "each direction is shown as stated; a path has one type, so the table was edited or mixed"
                    .to_string(),
            });
        }
    }
}

fn join_nics(snapshot: &mut Snapshot, ports: &BTreeMap<PciAddress, BridgePort>) {
    let host_bridges_known = snapshot.gpus.iter().any(|g| g.root_bus.known().is_some());
    let mut nics = std::mem::take(&mut snapshot.nics);
    for nic in nics.iter_mut() {
        if nic.pci.known().is_none()
            && nic.to_gpus.len() == snapshot.gpus.len()
            && !nic.to_gpus.is_empty()
        {
            // A pasted table states the distances itself.
            continue;
        }
        let to_gpus = {
            let end = End::of_nic(nic, host_bridges_known);
            snapshot
                .gpus
                .iter()
                .map(|g| between(&End::of_gpu(g), &end, ports).map(|s| s.path))
                .collect()
        };
        nic.to_gpus = to_gpus;
    }
    snapshot.nics = nics;
}

/// Packages of a group's GPUs, through their own reading or through their NUMA node; `None` when one is not known.
fn packages_of(snapshot: &Snapshot, group: &[GpuIndex]) -> Option<BTreeSet<u32>> {
    let package_of_numa = |numa: i32| {
        let numa = u32::try_from(numa).ok()?;
        let mut holders = snapshot
            .packages
            .iter()
            .filter(|p| p.numa_nodes.contains(&numa));
        let first = holders.next()?;
        holders.next().is_none().then_some(first.os_index)
    };
    group
        .iter()
        .map(|g| {
            let gpu = snapshot.gpu(*g)?;
            match (&gpu.package, snapshot.packages.as_slice()) {
                (Reading::Known(package), _) => Some(*package),
                (_, [only]) => Some(only.os_index),
                _ => gpu.numa_node.known().copied().and_then(package_of_numa),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
