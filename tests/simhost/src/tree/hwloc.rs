//! The scenario as hwloc 2 would export it, I/O objects included.
use super::config::identity;
use super::cpu_mask;
use crate::scenario::Scenario;
use crate::scenario::pci::coded_rate;
use crate::topology::{Role, Topology};
use std::fmt::Write;

struct Writer<'a> {
    out: String,
    next: u32,
    scenario: &'a Scenario,
    topology: &'a Topology,
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

impl Writer<'_> {
    fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.out, "{}{text}", "  ".repeat(depth));
    }
    fn index(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
    fn info(&mut self, depth: usize, name: &str, value: &str) {
        self.line(
            depth,
            &format!("<info name=\"{name}\" value=\"{}\"/>", escape(value)),
        );
    }

    /// Start of an object that has processors.
    fn place(
        &mut self,
        depth: usize,
        kind: &str,
        os_index: Option<u32>,
        cpus: &[[u32; 2]],
        nodes: &[u32],
        more: &str,
    ) {
        let (cpus, nodes) = (
            cpu_mask(cpus, "0x"),
            cpu_mask(&nodes.iter().map(|&n| [n, n]).collect::<Vec<_>>(), "0x"),
        );
        let os = os_index.map_or(String::new(), |i| format!(" os_index=\"{i}\""));
        let id = self.index();
        self.line(depth, &format!("<object type=\"{kind}\"{os} cpuset=\"{cpus}\" complete_cpuset=\"{cpus}\" nodeset=\"{nodes}\" complete_nodeset=\"{nodes}\"{more} gp_index=\"{id}\""));
    }

    /// Closes the start tag written by `place`.
    fn shut(&mut self, end: &str) {
        self.out.truncate(self.out.trim_end().len());
        let _ = writeln!(self.out, "{end}");
    }

    fn host_bridges(&mut self, depth: usize, numa: i32) {
        for (node, n) in self.topology.nodes.iter().enumerate() {
            if matches!(n.role, Role::HostBridge(h) if self.scenario.host_bridges[h].numa == numa) {
                self.io(depth, node, 0);
            }
        }
    }

    fn io(&mut self, depth: usize, node: usize, level: u32) {
        let n = self.topology.nodes[node].clone();
        let id = self.index();
        let function = |w: &Self| {
            let i = identity(w.scenario, w.topology, node);
            let (generation, width) = w.topology.link_now(node);
            let class = i.class >> 8;
            format!(
                " pci_busid=\"{}\" pci_type=\"{class:04x} [{:04x}:{:04x}] [{:04x}:{:04x}] a1\" pci_link_speed=\"{:.6}\"",
                n.at,
                i.vendor,
                i.device,
                i.subsystem.0,
                i.subsystem.1,
                coded_rate(generation, width)
            )
        };
        match (n.role, n.buses) {
            (Role::HostBridge(_), Some((from, to))) => {
                self.line(depth, &format!("<object type=\"Bridge\" gp_index=\"{id}\" bridge_type=\"0-1\" depth=\"{level}\" bridge_pci=\"{:04x}:[{from:02x}-{to:02x}]\">", n.at.domain));
            }
            (Role::Bridge(_), Some((from, to))) => {
                let function = function(self);
                self.line(depth, &format!("<object type=\"Bridge\" gp_index=\"{id}\" bridge_type=\"1-1\" depth=\"{level}\" bridge_pci=\"{:04x}:[{from:02x}-{to:02x}]\"{function}>", n.at.domain));
            }
            (role, _) => {
                let subtype = if matches!(role, Role::NvSwitch(_)) {
                    " subtype=\"NVSwitch\""
                } else {
                    ""
                };
                let function = function(self);
                self.line(
                    depth,
                    &format!("<object type=\"PCIDev\" gp_index=\"{id}\"{subtype}{function}>"),
                );
                if let Role::Nic(nic) = role {
                    for name in self.scenario.nics[nic].names.clone() {
                        let (kind, id) =
                            (if name.starts_with("mlx") { 3 } else { 2 }, self.index());
                        self.line(depth + 1, &format!("<object type=\"OSDev\" gp_index=\"{id}\" name=\"{}\" osdev_type=\"{kind}\"/>", escape(&name)));
                    }
                }
            }
        }
        for child in n.children {
            self.io(depth + 1, child, level + 1);
        }
        self.line(depth, "</object>");
    }
}

/// The document.
pub fn xml(scenario: &Scenario, topology: &Topology) -> String {
    let mut w = Writer {
        out: String::new(),
        next: 0,
        scenario,
        topology,
    };
    w.line(0, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    w.line(0, "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">");
    w.line(0, "<topology version=\"2.0\">");
    let all: Vec<[u32; 2]> = scenario
        .packages
        .iter()
        .flat_map(|p| &p.nodes)
        .map(|n| n.cpus)
        .collect();
    let ids: Vec<u32> = scenario
        .packages
        .iter()
        .flat_map(|p| &p.nodes)
        .map(|n| n.id)
        .collect();
    let allowed = format!(
        " allowed_cpuset=\"{}\" allowed_nodeset=\"{}\"",
        cpu_mask(&all, "0x"),
        cpu_mask(&ids.iter().map(|&n| [n, n]).collect::<Vec<_>>(), "0x")
    );
    w.place(1, "Machine", Some(0), &all, &ids, &allowed);
    w.shut(">");
    for (name, value) in [
        ("DMIProductName", &scenario.host.product),
        ("DMISysVendor", &scenario.host.vendor),
        ("HostName", &scenario.host.name),
        ("OSRelease", &scenario.host.kernel),
    ] {
        w.info(2, name, value);
    }
    for (name, value) in [
        ("OSName", "Linux"),
        ("Architecture", "x86_64"),
        ("Backend", "Linux"),
        ("hwlocVersion", "2.9.0"),
    ] {
        w.info(2, name, value);
    }
    for (number, package) in scenario.packages.iter().enumerate() {
        let cpus: Vec<[u32; 2]> = package.nodes.iter().map(|n| n.cpus).collect();
        let nodes: Vec<u32> = package.nodes.iter().map(|n| n.id).collect();
        w.place(2, "Package", Some(number as u32), &cpus, &nodes, "");
        w.shut(">");
        w.info(3, "CPUVendor", &scenario.host.cpu_vendor);
        w.info(3, "CPUModel", &scenario.host.cpu_model);
        // With several nodes in a package, each is a group of its own that owns its bridges.
        let grouped = package.nodes.len() > 1;
        let depth = if grouped { 4 } else { 3 };
        for node in &package.nodes {
            if grouped {
                w.place(
                    3,
                    "Group",
                    None,
                    &[node.cpus],
                    &[node.id],
                    " kind=\"1001\" subkind=\"0\"",
                );
                w.shut(">");
            }
            let memory = format!(" local_memory=\"{}\"", node.memory_mib << 20);
            w.place(
                depth,
                "NUMANode",
                Some(node.id),
                &[node.cpus],
                &[node.id],
                &memory,
            );
            w.shut("/>");
            for cpu in node.cpus[0]..=node.cpus[1] {
                w.place(depth, "Core", Some(cpu), &[[cpu, cpu]], &[node.id], "");
                w.shut(">");
                w.place(depth + 1, "PU", Some(cpu), &[[cpu, cpu]], &[node.id], "");
                w.shut("/>");
                w.line(depth, "</object>");
            }
            w.host_bridges(depth, node.id as i32);
            if grouped {
                w.line(3, "</object>");
            }
        }
        w.line(2, "</object>");
    }
    w.host_bridges(2, -1);
    w.line(1, "</object>");
    w.line(0, "</topology>");
    w.out
}
