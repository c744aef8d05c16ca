//! Devices below the things they hang on: package, NUMA node, host bridge, bridges, device. A level that no device of
//! the host is known to have is left out and named, so that an empty place is never drawn as a fact.

use super::page::{Page, Tone, count, cut, size};
use crate::model::{
    pci::{PciAddress, PcieLink},
    reading::Reading,
    snapshot::{BridgePort, Gpu, Nic, Snapshot},
};
use std::io;

/// A thing and what hangs below it.
pub(super) struct Node {
    key: String,
    /// What it is, in words.
    pub(super) text: String,
    /// What it is, for a picture.
    pub(super) kind: Kind,
    tone: Tone,
    /// In the order of GPUs, then of NICs.
    pub(super) children: Vec<Node>,
    bridge: bool,
}

/// What a node of the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The top, which is nothing.
    Host,
    /// A CPU package, or that it is not known.
    Package,
    /// A NUMA node, or that it is not known.
    Numa,
    /// A host bridge, or that it is not known.
    HostBridge,
    /// A PCI bridge and its port.
    Bridge(PciAddress),
    /// A GPU by its position.
    Gpu(usize),
    /// A NIC by its position.
    Nic(usize),
}

impl Node {
    fn new(key: String, text: String, kind: Kind) -> Self {
        Node {
            key,
            text,
            kind,
            tone: Tone::Plain,
            children: Vec::new(),
            bridge: false,
        }
    }

    fn child(&mut self, step: Step) -> &mut Node {
        let at = match self.children.iter().position(|c| c.key == step.key) {
            Some(at) => at,
            None => {
                let mut node = Node::new(step.key, step.text, step.kind);
                node.bridge = step.bridge;
                self.children.push(node);
                self.children.len() - 1
            }
        };
        &mut self.children[at]
    }
}

struct Step {
    key: String,
    text: String,
    kind: Kind,
    bridge: bool,
}

/// Which levels some device of the host is known to have.
pub(super) struct Levels {
    package: bool,
    numa: bool,
    host_bridge: bool,
}

/// "gen5 x16", or GT/s where no generation has the rate.
pub(super) fn link(link: &PcieLink) -> String {
    match link.generation() {
        Some(generation) => format!("gen{generation} x{}", link.width),
        None => format!("{} GT/s x{}", link.speed_gts, link.width),
    }
}

fn links(now: &Reading<PcieLink>, most: &Reading<PcieLink>) -> Option<String> {
    match (now.known(), most.known()) {
        (Some(now), Some(most)) if now == most => Some(format!("PCIe {}", link(now))),
        (Some(now), Some(most)) => Some(format!("PCIe {} now, {} at most", link(now), link(most))),
        (Some(now), None) => Some(format!("PCIe {} now", link(now))),
        (None, Some(most)) => Some(format!("PCIe {} at most", link(most))),
        (None, None) => None,
    }
}

/// The name by which a GPU goes in maps: the input's label, else its position.
pub(super) fn gpu_label(gpu: &Gpu, position: usize) -> String {
    if gpu.label.trim().is_empty() {
        format!("GPU{position}")
    } else {
        cut(&gpu.label, 12)
    }
}

fn gpu_text(gpu: &Gpu, position: usize) -> String {
    let mut words = vec![match gpu.name.known() {
        Some(name) => format!("{} {}", gpu_label(gpu, position), cut(name, 48)),
        None => gpu_label(gpu, position),
    }];
    if let Some(pci) = gpu.pci.known() {
        words.push(pci.to_string());
    }
    if let Some(bytes) = gpu.memory_bytes.known() {
        words.push(size((*bytes >> 20) << 20));
    }
    words.extend(links(&gpu.link_now, &gpu.link_max));
    if let Some(nvlinks) = gpu.nvlinks.known().filter(|all| !all.is_empty()) {
        let up = nvlinks.iter().filter(|l| l.active).count();
        words.push(if up == nvlinks.len() {
            count(up, "NVLink")
        } else {
            format!("{up} of {} NVLinks up", nvlinks.len())
        });
    }
    if gpu.mig_enabled.known() == Some(&true) {
        words.push("MIG on".to_string());
    }
    // The name may break at its blanks; a quantity stays with its unit.
    for quantity in words.iter_mut().skip(1) {
        *quantity = quantity.replace(' ', "\u{a0}");
    }
    words.join(", ")
}

fn bridge_step(snapshot: &Snapshot, address: PciAddress) -> Step {
    let text = match snapshot.bridge(address) {
        None => format!("bridge {address}"),
        Some(bridge) => {
            let kind = match bridge.port {
                BridgePort::Root => "root port",
                BridgePort::SwitchUpstream => "switch upstream",
                BridgePort::SwitchDownstream => "switch downstream",
                BridgePort::Unknown => "bridge",
            };
            let mut text = format!("{kind} {address}");
            if let Some(chip) = &bridge.chip {
                text.push_str(&format!(" {}", cut(chip, 32)));
            }
            if let Some(link) = links(&bridge.link_now, &bridge.link_max) {
                text.push_str(&format!(", {link}"));
            }
            if bridge.emulated {
                text.push_str(", emulated");
            }
            text
        }
    };
    Step {
        key: address.to_string(),
        text,
        kind: Kind::Bridge(address),
        bridge: true,
    }
}

fn root_bus(chain: Option<&Vec<PciAddress>>, own: Option<&PciAddress>) -> Option<String> {
    let top = match chain {
        Some(chain) => chain.last().or(own)?,
        None => return None,
    };
    Some(format!("{:04x}:{:02x}", top.domain, top.bus))
}

fn package_of(snapshot: &Snapshot, numa: Option<i32>) -> Option<u32> {
    let node = u32::try_from(numa?).ok()?;
    snapshot
        .packages
        .iter()
        .find(|p| p.numa_nodes.contains(&node))
        .map(|p| p.os_index)
}

fn upper_steps(
    snapshot: &Snapshot,
    levels: &Levels,
    package: Option<u32>,
    numa: Option<i32>,
    root: Option<&str>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let step = |kind: Kind| {
        move |text: String| Step {
            key: text.clone(),
            text,
            kind,
            bridge: false,
        }
    };
    if levels.package {
        let step = step(Kind::Package);
        steps.push(match package {
            None => step("package not known".to_string()),
            Some(index) => {
                let model = snapshot
                    .packages
                    .iter()
                    .find(|p| p.os_index == index)
                    .and_then(|p| p.model.as_deref())
                    .map(|m| format!(": {}", cut(m, 48)))
                    .unwrap_or_default();
                step(format!("package {index}{model}"))
            }
        });
    }
    if levels.numa {
        let step = step(Kind::Numa);
        steps.push(match numa {
            None => step("NUMA node not known".to_string()),
            Some(node) if node < 0 => step("NUMA node not told by the firmware (-1)".to_string()),
            Some(node) => {
                let mut text = format!("NUMA node {node}");
                let found = snapshot
                    .numa_nodes
                    .iter()
                    .find(|n| i64::from(n.os_index) == i64::from(node));
                if let Some(bytes) = found.and_then(|n| n.memory_bytes) {
                    text.push_str(&format!(", {}", size((bytes >> 30) << 30)));
                }
                if let Some(cpus) = found.and_then(|n| n.cpus.as_deref()) {
                    text.push_str(&format!(", CPUs {}", cut(cpus, 32)));
                }
                step(text)
            }
        });
    }
    if levels.host_bridge {
        steps.push(step(Kind::HostBridge)(root.map_or_else(
            || "host bridge not known".to_string(),
            |r| format!("host bridge {}", cut(r, 16)),
        )));
    }
    steps
}

fn nic_text(nic: &Nic, position: usize) -> String {
    let mut text = format!("NIC{position} {}", cut(&nic.name, 32));
    if let Some(pci) = nic.pci.known() {
        text.push_str(&format!(", {pci}"));
    }
    text
}

/// The tree of a snapshot, and which of its levels are known at all.
pub(super) fn build(snapshot: &Snapshot) -> (Node, Levels) {
    let gpu_package = |gpu: &Gpu| {
        gpu.package
            .known()
            .copied()
            .or_else(|| package_of(snapshot, gpu.numa_node.known().copied()))
    };
    let gpu_root = |gpu: &Gpu| {
        gpu.root_bus
            .known()
            .cloned()
            .or_else(|| root_bus(gpu.bridge_chain.known(), gpu.pci.known()))
    };
    let some = |test: &dyn Fn(&Gpu) -> bool| snapshot.gpus.iter().any(test);
    let levels = Levels {
        package: some(&|g| gpu_package(g).is_some()),
        numa: some(&|g| g.numa_node.known().is_some()),
        host_bridge: some(&|g| gpu_root(g).is_some()),
    };

    let mut root = Node::new(String::new(), String::new(), Kind::Host);
    for (position, gpu) in snapshot.gpus.iter().enumerate() {
        let mut steps = upper_steps(
            snapshot,
            &levels,
            gpu_package(gpu),
            gpu.numa_node.known().copied(),
            gpu_root(gpu).as_deref(),
        );
        if let Some(chain) = gpu.bridge_chain.known() {
            steps.extend(chain.iter().rev().map(|a| bridge_step(snapshot, *a)));
        }
        hang(
            &mut root,
            steps,
            format!("gpu {position}"),
            gpu_text(gpu, position),
            Kind::Gpu(position),
        );
    }
    for (position, nic) in snapshot.nics.iter().enumerate() {
        let numa = nic.numa_node.known().copied();
        let chain = nic.bridge_chain.known();
        if numa.is_none() && chain.is_none() {
            continue;
        }
        let root_of = root_bus(chain, nic.pci.known());
        // What hangs below one host bridge hangs below one package, whoever told of it.
        let beside = |gpu: &&Gpu| root_of.is_some() && gpu_root(gpu) == root_of;
        let package = package_of(snapshot, numa)
            .or_else(|| snapshot.gpus.iter().find(beside).and_then(&gpu_package));
        let mut steps = upper_steps(snapshot, &levels, package, numa, root_of.as_deref());
        if let Some(chain) = chain {
            steps.extend(chain.iter().rev().map(|a| bridge_step(snapshot, *a)));
        }
        hang(
            &mut root,
            steps,
            format!("nic {position}"),
            nic_text(nic, position),
            Kind::Nic(position),
        );
    }
    (root, levels)
}

/// Writes the tree. What no source told is named in one line below it.
pub(super) fn write(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let (root, levels) = build(snapshot);
    let some = |test: &dyn Fn(&Gpu) -> bool| snapshot.gpus.iter().any(test);
    // Labels alone stand in the matrix; a tree of them would look like knowledge.
    if root.children.iter().any(|n| !n.children.is_empty()) || some(&|g| g.pci.known().is_some()) {
        for node in &root.children {
            print(node, 0, page)?;
        }
    }
    if !snapshot.nvswitches.is_empty() {
        let list: Vec<String> = snapshot.nvswitches.iter().map(|a| a.to_string()).collect();
        page.labelled(
            Tone::Plain,
            &format!("NVSwitches ({}): ", list.len()),
            Tone::Plain,
            &list.join(" "),
        )?;
    }
    let untold = untold(snapshot, &levels);
    if !untold.is_empty() {
        page.labelled(
            Tone::Doubt,
            "not told by any source: ",
            Tone::Plain,
            &format!("{}.", untold.join(", ")),
        )?;
    }
    Ok(())
}

/// What no source told.
pub(super) fn untold(snapshot: &Snapshot, levels: &Levels) -> Vec<&'static str> {
    let some = |test: &dyn Fn(&Gpu) -> bool| snapshot.gpus.iter().any(test);
    [
        (!some(&|g| g.pci.known().is_some()), "PCI addresses"),
        (!some(&|g| g.name.known().is_some()), "GPU names"),
        (!some(&|g| g.bridge_chain.known().is_some()), "PCIe bridges"),
        (!levels.host_bridge, "host bridges"),
        (!levels.numa, "NUMA nodes"),
        (!levels.package, "CPU packages"),
        (
            !some(&|g| g.link_now.known().is_some() || g.link_max.known().is_some()),
            "PCIe link speeds",
        ),
    ]
    .iter()
    .filter(|(missing, _)| *missing)
    .map(|(_, what)| *what)
    .collect()
}

fn hang(root: &mut Node, steps: Vec<Step>, key: String, text: String, kind: Kind) {
    let mut at = root;
    for step in steps {
        at = at.child(step);
    }
    let mut leaf = Node::new(key, text, kind);
    leaf.tone = match kind {
        Kind::Gpu(_) => Tone::Strong,
        _ => Tone::Plain,
    };
    at.children.push(leaf);
}

fn print(node: &Node, depth: usize, page: &mut Page<'_>) -> io::Result<()> {
    let mut text = node.text.clone();
    let mut at = node;
    // A bridge that leads to one bridge only is the same line: the eye should find the forks.
    while at.bridge && at.children.len() == 1 && at.children.iter().all(|c| c.bridge) {
        if let Some(only) = at.children.first() {
            text.push_str(&format!(" > {}", only.text));
            at = only;
        }
    }
    let indent = 2 * depth.min(12);
    page.hanging(indent, at.tone, &text)?;
    for child in &at.children {
        print(child, depth + 1, page)?;
    }
    Ok(())
}
