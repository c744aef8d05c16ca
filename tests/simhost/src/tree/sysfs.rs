//! The parts of /sys that a topology reader looks at.
use super::config::{identity, space};
use super::{Files, cpu_list, cpu_mask};
use crate::scenario::Scenario;
use crate::scenario::pci::transfer_rate;
use crate::topology::{Role, Topology};
use std::collections::BTreeMap;
use std::io;

pub(super) fn write(files: &Files, scenario: &Scenario, topology: &Topology) -> io::Result<()> {
    for node in 0..topology.nodes.len() {
        function(files, scenario, topology, node)?;
    }
    groups(files, scenario, topology)?;
    machine(files, scenario)?;
    nodes(files, scenario)
}

/// Path of a node below the root folder. A host bridge's own function is 00.0 of its root bus.
fn path(topology: &Topology, node: usize) -> String {
    let (root, chain) = topology.chain(node);
    let at = topology.nodes[root].at;
    let mut path = format!("sys/devices/pci{:04x}:{:02x}", at.domain, at.bus);
    for n in if chain.is_empty() { vec![node] } else { chain } {
        path.push_str(&format!("/{}", topology.nodes[n].at));
    }
    path
}

fn speed(generation: u32) -> String {
    format!("{} GT/s PCIe", transfer_rate(generation))
}

fn function(
    files: &Files,
    scenario: &Scenario,
    topology: &Topology,
    node: usize,
) -> io::Result<()> {
    let n = &topology.nodes[node];
    let at = path(topology, node);
    let id = identity(scenario, topology, node);
    let file = |name: &str, content: &str| files.line(&format!("{at}/{name}"), content);
    file("vendor", &format!("0x{:04x}", id.vendor))?;
    file("device", &format!("0x{:04x}", id.device))?;
    file("subsystem_vendor", &format!("0x{:04x}", id.subsystem.0))?;
    file("subsystem_device", &format!("0x{:04x}", id.subsystem.1))?;
    file("class", &format!("0x{:06x}", id.class))?;
    file("revision", "0xa1")?;
    file("enable", "1")?;
    file("numa_node", &topology.numa(node).to_string())?;
    let near: Vec<[u32; 2]> = scenario
        .packages
        .iter()
        .flat_map(|p| &p.nodes)
        .filter(|m| topology.numa(node) < 0 || m.id as i32 == topology.numa(node))
        .map(|m| m.cpus)
        .collect();
    file("local_cpulist", &cpu_list(near.iter().copied()))?;
    file("local_cpus", &cpu_mask(&near, ""))?;
    let mut config = space(scenario, topology, node);
    config.truncate(if scenario.host.unprivileged {
        64
    } else {
        config.len()
    });
    files.bytes(&format!("{at}/config"), &config)?;
    if topology.link_now(node).1 > 0 {
        let ((generation, width), (most_generation, most_width)) =
            (topology.link_now(node), topology.link_most(node));
        file("current_link_speed", &speed(generation))?;
        file("current_link_width", &width.to_string())?;
        file("max_link_speed", &speed(most_generation))?;
        file("max_link_width", &most_width.to_string())?;
        let replays = if let Role::Gpu(g) = n.role {
            scenario.gpus[g].replays
        } else {
            0
        };
        files.text(&format!("{at}/aer_dev_correctable"), &format!("RxErr 0\nBadTLP 0\nBadDLLP 0\nRollover 0\nTimeout {replays}\nNonFatalErr 0\nCorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR {replays}\n"))?;
        for (name, total) in [
            ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
            ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
        ] {
            files.text(&format!("{at}/{name}"), &format!("Undefined 0\nDLP 0\nSDES 0\nTLP 0\nFCP 0\nCmpltTO 0\nCmpltAbrt 0\nUnxCmplt 0\nRxOF 0\nMalfTLP 0\nECRC 0\nUnsupReq 0\nACSViol 0\nUncorrIntErr 0\n{total} 0\n"))?;
        }
    }
    let bars: Vec<(u64, u64)> = match n.role {
        Role::Gpu(g) => vec![
            (0x9000_0000 + g as u64 * 0x0200_0000, 16 << 20),
            (
                0x1000_0000_0000 + ((g as u64) << 38),
                scenario.gpu.bar1_mib << 20,
            ),
            (0x2000_0000_0000 + ((g as u64) << 26), 32 << 20),
        ],
        _ => Vec::new(),
    };
    let mut resource = String::new();
    for i in 0..13 {
        // 64-bit BARs take two lines each, the second empty: 0, 1, 3.
        let bar = match (i, bars.as_slice()) {
            (0, [b, ..]) | (1, [_, b, ..]) | (3, [_, _, b, ..]) => Some(b),
            _ => None,
        };
        let (start, end, flags) = bar.map_or((0, 0, 0), |&(start, len)| {
            (
                start,
                start + len - 1,
                if i == 0 { 0x0004_0200_u64 } else { 0x0014_220c },
            )
        });
        resource.push_str(&format!("0x{start:016x} 0x{end:016x} 0x{flags:016x}\n"));
    }
    files.text(&format!("{at}/resource"), &resource)?;
    let driver = match n.role {
        Role::Gpu(_) => Some("nvidia"),
        Role::Bridge(_) => Some("pcieport"),
        Role::Nic(k) if scenario.nics[k].id.starts_with("15b3") => Some("mlx5_core"),
        Role::Nic(_) => Some("virtio-pci"),
        _ => None,
    };
    if let Some(driver) = driver {
        files.folder(&format!("sys/bus/pci/drivers/{driver}"))?;
        files.link(
            &format!("{at}/driver"),
            &format!("sys/bus/pci/drivers/{driver}"),
        )?;
        files.link(&format!("sys/bus/pci/drivers/{driver}/{}", n.at), &at)?;
    }
    if let Role::Nic(k) = n.role {
        for name in &scenario.nics[k].names {
            let class = if name.starts_with("mlx") {
                "infiniband"
            } else {
                "net"
            };
            files.link(&format!("{at}/{class}/{name}/device"), &at)?;
            files.link(
                &format!("sys/class/{class}/{name}"),
                &format!("{at}/{class}/{name}"),
            )?;
        }
    }
    files.link(&format!("sys/bus/pci/devices/{}", n.at), &at)
}

/// Groups: everything below the highest port that does not isolate its side (request and completion redirect, upstream
/// forwarding and source validation all on) is one group.
fn groups(files: &Files, scenario: &Scenario, topology: &Topology) -> io::Result<()> {
    const ISOLATES: u16 = 0x1d;
    files.folder("sys/kernel/iommu_groups")?;
    files.folder("sys/class/iommu")?;
    for unit in &scenario.iommu.units {
        files.folder(&format!("sys/devices/virtual/iommu/{unit}/devices"))?;
        files.link(
            &format!("sys/class/iommu/{unit}"),
            &format!("sys/devices/virtual/iommu/{unit}"),
        )?;
    }
    let Some(domain) = &scenario.iommu.domain else {
        return Ok(());
    };
    let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
    for node in 0..topology.nodes.len() {
        if matches!(topology.nodes[node].role, Role::HostBridge(_)) {
            continue;
        }
        let (_, chain) = topology.chain(node);
        let open = |n: &usize| matches!(topology.nodes[*n].role, Role::Bridge(b) if scenario.bridges[b].acs.is_none_or(|a| a & ISOLATES != ISOLATES) && scenario.bridges[b].acs.is_some());
        let key = chain.iter().copied().find(|n| open(n)).unwrap_or(node);
        let next = numbers.len();
        let number = *numbers.entry(key).or_insert(next);
        files.link(
            &format!("{}/iommu_group", path(topology, node)),
            &format!("sys/kernel/iommu_groups/{number}"),
        )?;
        files.link(
            &format!(
                "sys/kernel/iommu_groups/{number}/devices/{}",
                topology.nodes[node].at
            ),
            &path(topology, node),
        )?;
    }
    for number in 0..numbers.len() {
        files.line(&format!("sys/kernel/iommu_groups/{number}/type"), domain)?;
    }
    Ok(())
}

fn machine(files: &Files, scenario: &Scenario) -> io::Result<()> {
    for (name, value) in [
        ("sys_vendor", scenario.host.vendor.as_str()),
        ("product_name", &scenario.host.product),
        ("product_version", "1.0"),
        ("board_vendor", &scenario.host.vendor),
        ("board_name", &scenario.host.product),
        ("bios_vendor", "SimHost"),
        ("bios_version", "1.2"),
        ("bios_date", "01/01/2026"),
        ("chassis_vendor", &scenario.host.vendor),
    ] {
        files.line(&format!("sys/devices/virtual/dmi/id/{name}"), value)?;
    }
    files.link("sys/class/dmi/id", "sys/devices/virtual/dmi/id")?;
    files.line("sys/module/nvidia/version", &scenario.driver.version)?;
    files.line("sys/module/nvidia/refcnt", "8")?;
    files.folder("sys/module/nvidia/parameters")
}

fn nodes(files: &Files, scenario: &Scenario) -> io::Result<()> {
    let all: Vec<_> = scenario
        .packages
        .iter()
        .enumerate()
        .flat_map(|(p, package)| package.nodes.iter().map(move |n| (p, n)))
        .collect();
    let online = cpu_list(all.iter().map(|(_, n)| [n.id, n.id]));
    for name in ["online", "possible", "has_cpu", "has_memory"] {
        files.line(&format!("sys/devices/system/node/{name}"), &online)?;
    }
    let cpus = cpu_list(all.iter().map(|(_, n)| n.cpus));
    for name in ["online", "possible", "present"] {
        files.line(&format!("sys/devices/system/cpu/{name}"), &cpus)?;
    }
    for (package, node) in &all {
        let at = format!("sys/devices/system/node/node{}", node.id);
        files.line(
            &format!("{at}/cpulist"),
            &cpu_list(std::iter::once(node.cpus)),
        )?;
        files.line(&format!("{at}/cpumap"), &cpu_mask(&[node.cpus], ""))?;
        let distance: Vec<String> = all
            .iter()
            .map(|(p, n)| {
                if n.id == node.id {
                    "10"
                } else if p == package {
                    "12"
                } else {
                    "32"
                }
                .to_string()
            })
            .collect();
        files.line(&format!("{at}/distance"), &distance.join(" "))?;
        let total = node.memory_mib * 1024;
        files.text(
            &format!("{at}/meminfo"),
            &format!(
                "Node {0} MemTotal:       {total} kB\nNode {0} MemFree:        {1} kB\n",
                node.id,
                total / 10 * 9
            ),
        )?;
    }
    Ok(())
}
