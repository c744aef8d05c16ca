//! Sets of GPUs that are joined more tightly than the rest.

use crate::model::{
    pair::{GpuIndex, OrderedPair},
    snapshot::Snapshot,
    topology::{Island, PairPath, PathType},
};
use std::collections::BTreeMap;

/// Connected sets of at least two GPUs over the pairs that `joined` accepts.
pub(super) fn components(
    snapshot: &Snapshot,
    joined: impl Fn(&PairPath) -> bool,
) -> Vec<Vec<GpuIndex>> {
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    let mut owner: Vec<u32> = (0..count).collect();
    for pair in OrderedPair::all(count) {
        if snapshot.topology.pairs.get(pair).is_some_and(&joined) {
            let (a, b) = (owner[pair.source.at()], owner[pair.destination.at()]);
            let (keep, drop) = (a.min(b), a.max(b));
            for o in owner.iter_mut().filter(|o| **o == drop) {
                *o = keep;
            }
        }
    }
    let mut sets: BTreeMap<u32, Vec<GpuIndex>> = BTreeMap::new();
    for (owner, n) in owner.iter().zip(0..) {
        sets.entry(*owner).or_default().push(GpuIndex(n));
    }
    sets.into_values().filter(|s| s.len() > 1).collect()
}

/// Islands, tightest first. A wider kind that gives the same sets as the one before it says nothing new and is left out.
pub(super) fn islands(snapshot: &Snapshot) -> Vec<Island> {
    let mut out = Vec::new();
    let mut add = |name: &str, sets: &[Vec<GpuIndex>]| {
        for gpus in sets {
            out.push(Island {
                joined_by: name.to_string(),
                gpus: gpus.clone(),
            });
        }
    };
    add("NVLink", &components(snapshot, |p| p.nvlinks > 0));
    let pix = components(snapshot, |p| p.pcie == Some(PathType::Pix));
    add("PIX", &pix);
    let pxb = components(snapshot, |p| p.pcie.is_some_and(|t| t <= PathType::Pxb));
    if pxb != pix {
        add("PXB", &pxb);
    }
    let mut nodes: BTreeMap<i32, Vec<GpuIndex>> = BTreeMap::new();
    let mut packages: BTreeMap<u32, Vec<GpuIndex>> = BTreeMap::new();
    for (gpu, n) in snapshot.gpus.iter().zip(0..) {
        if let Some(node) = gpu.numa_node.known().filter(|n| **n >= 0) {
            nodes.entry(*node).or_default().push(GpuIndex(n));
        }
        if let Some(set) = super::packages_of(snapshot, &[GpuIndex(n)])
            && let Some(package) = set.first()
        {
            packages.entry(*package).or_default().push(GpuIndex(n));
        }
    }
    for (node, gpus) in nodes.iter().filter(|(_, g)| g.len() > 1) {
        add(&format!("NUMA node {node}"), std::slice::from_ref(gpus));
    }
    let same = nodes.values().eq(packages.values());
    for (package, gpus) in packages.iter().filter(|(_, g)| g.len() > 1 && !same) {
        add(&format!("package {package}"), std::slice::from_ref(gpus));
    }
    out
}
