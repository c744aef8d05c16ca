//! The fabric class of a group of GPUs, and FlashInfer's label. How a class is decided: `docs/cases.md`.

use super::{PCI_SOURCE, packages_of};
use crate::{
    collect::chips::{self, NvLinkForm},
    model::{
        pair::{GpuIndex, OrderedPair},
        reading::Reading,
        snapshot::{Gpu, NvLinkEnd, Snapshot},
        topology::{FabricClass, FlashInferLabel, PairPath, PathType},
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// The class of `group` and one sentence why. `join` must have run. Members that do not exist or repeat are ignored.
pub fn class_of(snapshot: &Snapshot, group: &[GpuIndex]) -> (FabricClass, String) {
    let members: BTreeSet<GpuIndex> = group
        .iter()
        .copied()
        .filter(|g| snapshot.gpu(*g).is_some())
        .collect();
    let members: Vec<GpuIndex> = members.into_iter().collect();
    match members.len() {
        0 => return nothing(snapshot),
        1 => {
            return (
                FabricClass::None,
                "one NVIDIA GPU: there is no pair to join".to_string(),
            );
        }
        _ => {}
    }
    by_nvlink(snapshot, &members)
        .or_else(|| bridged_by_part(snapshot, &members))
        .unwrap_or_else(|| by_pcie(snapshot, &members))
}

/// FlashInfer's label: it asks NVML for the common ancestor of each pair and looks for one below the host bridge; what
/// cannot be asked counts as no (facts: engines.md 1.2). Where NVML's answer is not in the input, the bridge chain's is
/// taken, which is what NVML would have said.
pub fn flashinfer_label(snapshot: &Snapshot, group: &[GpuIndex]) -> FlashInferLabel {
    let local = pairs(group).any(|pair| {
        let claim = snapshot
            .claims
            .get(pair)
            .and_then(|c| c.common_ancestor.known());
        match claim {
            Some(level) => *level < 30,
            None => path(snapshot, pair)
                .and_then(|p| p.pcie)
                .is_some_and(|p| p <= PathType::Pxb),
        }
    });
    if local {
        FlashInferLabel::PcieswitchPairs
    } else {
        FlashInferLabel::RootcplxNoswitch
    }
}

fn nothing(snapshot: &Snapshot) -> (FabricClass, String) {
    let unlisted = snapshot
        .sources
        .iter()
        .any(|s| s.source == PCI_SOURCE && s.result.known().is_none());
    if unlisted {
        let why = "the input lists no GPUs or no PCI devices at all: that none is seen does not mean that there is none";
        return (FabricClass::Unknown, why.to_string());
    }
    (FabricClass::None, "no NVIDIA GPU".to_string())
}

fn pairs(group: &[GpuIndex]) -> impl Iterator<Item = OrderedPair> {
    group
        .iter()
        .flat_map(move |s| group.iter().filter_map(move |d| OrderedPair::new(s.0, d.0)))
}

fn path(snapshot: &Snapshot, pair: OrderedPair) -> Option<&PairPath> {
    snapshot.topology.pairs.get(pair)
}

fn names(gpus: &[GpuIndex]) -> String {
    let list: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    list.join(", ")
}

fn by_nvlink(snapshot: &Snapshot, group: &[GpuIndex]) -> Option<(FabricClass, String)> {
    let all: Vec<GpuIndex> = (0..snapshot.topology.pairs.count()).map(GpuIndex).collect();
    let switched: BTreeSet<GpuIndex> = pairs(&all)
        .filter(|p| path(snapshot, *p).is_some_and(|x| x.through_nvswitch))
        .flat_map(|p| [p.source, p.destination])
        .collect();
    let most = pairs(group)
        .filter_map(|p| path(snapshot, p))
        .map(|p| p.nvlinks)
        .max()?;
    let off: Vec<GpuIndex> = group
        .iter()
        .copied()
        .filter(|g| !switched.contains(g))
        .collect();
    if off.is_empty() {
        let untold = pairs(group)
            .filter(|p| path(snapshot, *p).is_none_or(|x| !x.nvlink_known))
            .count();
        let tail = if untold == 0 {
            String::new()
        } else {
            format!(
                "; {untold} ordered pairs are not in the input, but both ends are on the switch"
            )
        };
        return Some((
            FabricClass::Nvswitch,
            format!(
                "all {} GPUs are joined through NVSwitch, up to {most} links a pair{tail}",
                group.len()
            ),
        ));
    }
    let mut partners: BTreeMap<GpuIndex, usize> = group.iter().map(|g| (*g, 0)).collect();
    for pair in pairs(group).filter(|p| joined(snapshot, *p)) {
        *partners.entry(pair.source).or_default() += 1;
    }
    if partners.values().all(|n| *n == 0) {
        return None;
    }
    let alone: Vec<GpuIndex> = partners
        .iter()
        .filter(|(_, n)| **n == 0)
        .map(|(g, _)| *g)
        .collect();
    if off.len() < group.len() {
        return Some((
            FabricClass::Mixed,
            format!("some GPUs are on NVSwitch and GPUs {} are not", names(&off)),
        ));
    }
    if !alone.is_empty() {
        return Some((
            FabricClass::Mixed,
            format!(
                "GPUs {} have no NVLink to the others, which have",
                names(&alone)
            ),
        ));
    }
    let (fewest, largest) = (
        partners.values().min().copied().unwrap_or(0),
        partners.values().max().copied().unwrap_or(0),
    );
    Some(if largest == 1 {
        let pairs = group.len() / 2;
        // Two GPUs of an NVSwitch board and two bridged cards look alike in a table of pairs.
        let listed = group.iter().filter_map(|g| snapshot.gpu(*g)).all(|g| {
            g.nvlinks
                .known()
                .is_some_and(|l| l.iter().any(|l| l.remote.is_some()))
        });
        let tail = if group.len() == 2 && !listed && most > 4 {
            "; whether a switch lies between is not in the input"
        } else {
            ""
        };
        (
            FabricClass::NvlinkPairs,
            format!(
                "NVLink joins {pairs} pair(s) of GPUs and nothing beyond, up to {most} links{tail}"
            ),
        )
    } else if !connected(snapshot, group) {
        (
            FabricClass::Mixed,
            "several NVLink islands of more than two GPUs, with no NVLink between them".to_string(),
        )
    } else if fewest + 1 == group.len() {
        (
            FabricClass::NvlinkMesh,
            format!("every pair has direct NVLinks, up to {most}"),
        )
    } else {
        (
            FabricClass::NvlinkMesh,
            format!(
                "direct NVLinks join each GPU to {} of the {} others: not every pair has one",
                if fewest == largest {
                    fewest.to_string()
                } else {
                    format!("{fewest} to {largest}")
                },
                group.len() - 1
            ),
        )
    })
}

fn joined(snapshot: &Snapshot, pair: OrderedPair) -> bool {
    [pair, pair.reversed()]
        .iter()
        .any(|p| path(snapshot, *p).is_some_and(|x| x.nvlinks > 0))
}

fn connected(snapshot: &Snapshot, group: &[GpuIndex]) -> bool {
    let mut reached: BTreeSet<GpuIndex> = group.iter().take(1).copied().collect();
    loop {
        let more: Vec<GpuIndex> = pairs(group)
            .filter(|p| reached.contains(&p.source) && !reached.contains(&p.destination))
            .filter(|p| joined(snapshot, *p))
            .map(|p| p.destination)
            .collect();
        if more.is_empty() {
            return reached.len() == group.len();
        }
        reached.extend(more);
    }
}

/// Cards whose links lead to one GPU that the input does not name: an NVLink bridge joins two cards.
fn bridged_by_part(snapshot: &Snapshot, group: &[GpuIndex]) -> Option<(FabricClass, String)> {
    let bridged = |gpu: &Gpu| {
        let card = gpu
            .identity
            .known()
            .copied()
            .and_then(chips::part)
            .is_some_and(|p| p.form == NvLinkForm::Bridge);
        let to_gpu = gpu.nvlinks.known().is_some_and(|l| {
            l.iter()
                .any(|l| l.active && l.remote.is_none() && l.remote_kind == NvLinkEnd::Gpu)
        });
        card && to_gpu
    };
    let whole = group.len() == snapshot.gpus.len() && group.len().is_multiple_of(2);
    (whole && snapshot.gpus.iter().all(bridged)).then(|| {
        (
            FabricClass::NvlinkPairs,
            "every card has NVLinks to one other GPU, as bridges of two cards make; which one is not in the input"
                .to_string(),
        )
    })
}

fn by_pcie(snapshot: &Snapshot, group: &[GpuIndex]) -> (FabricClass, String) {
    let paths: Vec<(OrderedPair, Option<PathType>)> = pairs(group)
        .filter(|p| p.source < p.destination)
        .map(|p| {
            let either = path(snapshot, p)
                .and_then(|x| x.pcie)
                .or_else(|| path(snapshot, p.reversed()).and_then(|x| x.pcie));
            (p, either)
        })
        .collect();
    if let Some(why) = hidden_by_vm(snapshot, group, &paths) {
        return (FabricClass::VmOpaque, why);
    }
    let shared: Vec<&OrderedPair> = paths
        .iter()
        .filter(|(_, p)| p.is_some_and(|p| p <= PathType::Pxb))
        .map(|(pair, _)| pair)
        .collect();
    if let Some(first) = shared.first() {
        return (
            FabricClass::PcieSwitch,
            format!(
                "{} of {} pairs share a PCIe switch (GPUs {} and {} for one)",
                shared.len(),
                paths.len(),
                first.source,
                first.destination
            ),
        );
    }
    let untold: Vec<&OrderedPair> = paths
        .iter()
        .filter(|(_, p)| p.is_none())
        .map(|(p, _)| p)
        .collect();
    // A pasted table that lost a cell or two is still judged by the rest.
    if untold.len() * 10 >= paths.len()
        && let Some(first) = untold.first()
    {
        return (
            FabricClass::Unknown,
            format!(
                "the PCIe path of {} of {} pairs is not known (GPUs {} and {} for one): a switch may be there or not",
                untold.len(),
                paths.len(),
                first.source,
                first.destination
            ),
        );
    }
    let (class, why) = sockets(snapshot, group, &paths);
    let tail = match untold.len() {
        0 => String::new(),
        n => format!("; {n} pair(s) are cut from the input"),
    };
    (class, format!("no pair shares a PCIe switch; {why}{tail}"))
}

fn sockets(
    snapshot: &Snapshot,
    group: &[GpuIndex],
    paths: &[(OrderedPair, Option<PathType>)],
) -> (FabricClass, String) {
    if let Some(packages) = packages_of(snapshot, group) {
        return match packages.len() {
            1 => (
                FabricClass::RootComplexSingleSocket,
                "all GPUs are on one CPU package".to_string(),
            ),
            n => (
                FabricClass::RootComplexCrossSocket,
                format!("the GPUs are on {n} CPU packages"),
            ),
        };
    }
    let nodes: Option<BTreeSet<i32>> = group
        .iter()
        .map(|g| {
            snapshot
                .gpu(*g)?
                .numa_node
                .known()
                .copied()
                .filter(|n| *n >= 0)
        })
        .collect();
    let sys = paths.iter().any(|(_, p)| *p == Some(PathType::Sys));
    match nodes.map(|n| n.len()) {
        Some(1) => (
            FabricClass::RootComplexSingleSocket,
            "all GPUs are on one NUMA node".to_string(),
        ),
        Some(n) => (
            FabricClass::RootComplexCrossSocket,
            format!(
                "the GPUs are on {n} NUMA nodes, taken for packages because the input has none (SNC or NPS would look alike)"
            ),
        ),
        None if sys => (
            FabricClass::RootComplexCrossSocket,
            "some pairs cross NUMA nodes (SYS), taken for packages because the input has none"
                .to_string(),
        ),
        None => (
            FabricClass::RootComplexSingleSocket,
            "every pair stays within one NUMA node (PHB, NODE)".to_string(),
        ),
    }
}

/// Why the PCIe picture is a hypervisor's, if it is.
fn hidden_by_vm(
    snapshot: &Snapshot,
    group: &[GpuIndex],
    paths: &[(OrderedPair, Option<PathType>)],
) -> Option<String> {
    let gpus: Vec<&Gpu> = group.iter().filter_map(|g| snapshot.gpu(*g)).collect();
    let made_up: BTreeSet<_> = snapshot
        .bridges
        .iter()
        .filter(|b| b.emulated)
        .map(|b| b.pci)
        .collect();
    let emulated = |gpu: &&Gpu| {
        let chain = gpu.bridge_chain.known();
        chain.is_some_and(|c| c.iter().any(|b| made_up.contains(b)))
    };
    if gpus.iter().any(emulated) {
        return Some(
            "bridges above the GPUs are emulated by a hypervisor: they say nothing of the hardware"
                .to_string(),
        );
    }
    let real = |gpu: &&Gpu| gpu.bridge_chain.known().is_some_and(|c| !c.is_empty());
    if snapshot.host.hypervisor == Reading::Known(true) && !gpus.iter().any(real) {
        return Some(
            "a virtual machine without the hardware's bridges: the PCIe path is hidden".to_string(),
        );
    }
    // A pasted table alone: three or more GPUs on one host bridge of a CPU of 96 threads and more. CPUs of that size
    // spread their x16 ports over several host bridges; one for all is a virtual machine's.
    let one_bridge = paths.iter().all(|(_, p)| *p == Some(PathType::Phb));
    let node = gpus.first().and_then(|g| g.numa_node.known().copied());
    let one_node = node.is_some() && gpus.iter().all(|g| g.numa_node.known().copied() == node);
    let cpus = gpus
        .first()
        .and_then(|g| g.cpu_affinity.known())
        .map_or(0, |l| cpus_in(l));
    let pasted = gpus.iter().all(|g| g.pci.known().is_none());
    (pasted && gpus.len() > 2 && one_bridge && one_node && cpus >= 96).then(|| {
        format!("all GPUs on one host bridge beside {cpus} CPUs of one NUMA node: a virtual machine's picture, not a board's")
    })
}

/// Number of CPUs of a list as "0-31,64-95".
fn cpus_in(list: &str) -> u64 {
    list.split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (from.parse::<u32>().ok()?, to.parse::<u32>().ok()?);
            Some(u64::from(to.checked_sub(from)?) + 1)
        })
        .sum()
}
