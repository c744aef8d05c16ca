//! Packages and NUMA nodes from sysfs, for hosts whose hwloc cannot be asked (a recorded tree without hwloc.xml). hwloc
//! comes first: it also knows the model names and marks GPU memory.

use super::{
    hwloc::ranges,
    live::Roots,
    sysfs::{gpu_memory_nodes, read_parsed, read_text},
};
use crate::model::snapshot::{NumaNode, Package};
use std::{collections::BTreeMap, fs};

/// CPUs that are looked at, at most; Linux supports 8192.
const CPU_LIMIT: u32 = 1 << 16;

/// Packages and NUMA nodes in order of their os indices; both empty when sysfs shows neither.
pub fn read(roots: &Roots) -> (Vec<Package>, Vec<NumaNode>) {
    let gpu_memory = gpu_memory_nodes(roots);
    let mut node_of_cpu: BTreeMap<u32, u32> = BTreeMap::new();
    let mut nodes = Vec::new();
    for os_index in numbered(roots, "sys/devices/system/node", "node") {
        let folder = roots
            .path("sys/devices/system/node")
            .join(format!("node{os_index}"));
        let cpus = read_parsed(&folder.join("cpulist"), expand).unwrap_or_default();
        let memory_bytes = read_text(&folder.join("meminfo")).ok().and_then(|text| {
            let line = text.lines().find(|line| line.contains("MemTotal:"))?;
            let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
            kib.checked_mul(1024)
        });
        if gpu_memory.contains(&os_index) || (cpus.is_empty() && memory_bytes.unwrap_or(0) == 0) {
            continue;
        }
        node_of_cpu.extend(cpus.iter().map(|cpu| (*cpu, os_index)));
        nodes.push(NumaNode {
            os_index,
            memory_bytes: memory_bytes.filter(|bytes| *bytes > 0),
            cpus: (!cpus.is_empty()).then(|| ranges(&cpus)),
        });
    }
    let mut packages: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for cpu in numbered(roots, "sys/devices/system/cpu", "cpu") {
        let id = roots
            .path("sys/devices/system/cpu")
            .join(format!("cpu{cpu}/topology/physical_package_id"));
        // -1 stands for a CPU that does not know its package.
        let Ok(package) = read_parsed(&id, |text| text.parse::<u32>().ok()) else {
            continue;
        };
        let own = packages.entry(package).or_default();
        if let Some(node) = node_of_cpu.get(&cpu)
            && !own.contains(node)
        {
            own.push(*node);
        }
    }
    let packages = packages
        .into_iter()
        .map(|(os_index, mut numa_nodes)| {
            numa_nodes.sort_unstable();
            Package {
                os_index,
                numa_nodes,
                model: None,
            }
        })
        .collect();
    (packages, nodes)
}

/// Numbers of the entries `<prefix>N` of a folder, ascending.
fn numbered(roots: &Roots, folder: &str, prefix: &str) -> Vec<u32> {
    let Ok(listing) = fs::read_dir(roots.path(folder)) else {
        return Vec::new();
    };
    let mut numbers: Vec<u32> = listing
        .flatten()
        .filter_map(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .strip_prefix(prefix)?
                .parse()
                .ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Members of a kernel list such as "0-31,64-95"; an empty list is a node without CPUs.
fn expand(text: &str) -> Option<Vec<u32>> {
    let mut members = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (start, end) = part.split_once('-').unwrap_or((part, part));
        let (start, end): (u32, u32) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
        if end >= CPU_LIMIT {
            return None;
        }
        members.extend(start..=end);
    }
    Some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists() {
        assert_eq!(expand("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!(expand(""), Some(vec![]));
        assert_eq!(expand("0-4000000000"), None);
        assert_eq!(expand("x"), None);
    }
}
