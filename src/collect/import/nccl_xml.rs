//! NCCL topology XML: dumps, and the files that clouds ship. Each `pci` element of bridge class is one whole switch, and
//! the NUMA node takes the place of the host bridge, so two GPUs below one `cpu` may share a host bridge or not. Many
//! files leave out vendors, NVLinks, or the GPUs themselves: not in the file is not the same as not on the host.

use super::{
    error::{ImportError, quoted},
    mask,
    xml::{MAX_FUNCTIONS, MAX_GPUS, MAX_NICS, Xml, hex16, strict_address},
};
use crate::{
    collect::{chips, topology::PCI_SOURCE},
    model::{
        pair::PairTable,
        pci::{PciAddress, PciIdentity, PcieLink, VENDOR_NVIDIA},
        reading::{Absence, Reading},
        snapshot::{
            Bridge, BridgePort, Gpu, Nic, NumaNode, NvLink, NvLinkEnd, Origin, Package, Snapshot,
            SourceNote,
        },
    },
};
use roxmltree::Node;
use std::collections::{BTreeMap, BTreeSet};

/// Most links of one `nvlink` element that are believed; parts have up to 18.
const MAX_LINKS: u32 = 72;

struct Reader<'x, 'a> {
    xml: &'x Xml<'a>,
    snapshot: Snapshot,
    seen: BTreeSet<PciAddress>,
    functions: usize,
    foreign: u32,
    without_vendor: u32,
    made_up: u32,
    self_links: u32,
}

pub(super) fn read(file: &str, xml: &Xml<'_>) -> Result<Snapshot, ImportError> {
    let root = xml.root();
    let version = root.attribute("version").unwrap_or("1");
    let mut snapshot = Snapshot::empty(Origin::Recorded {
        format: format!(
            "nccl-topology-xml {}",
            version.chars().take(8).collect::<String>()
        ),
        file: file.to_string(),
    });
    let mut cpus: Vec<Node<'_, '_>> = root.children().filter(|n| n.has_tag_name("cpu")).collect();
    if cpus.is_empty() {
        return Err(xml.error(
            root,
            "an NCCL topology without cpu elements; give a dump of NCCL_TOPO_DUMP_FILE",
        ));
    }
    if cpus.len() > 1024 {
        return Err(xml.error(root, "more than 1024 cpu elements; no host has as many"));
    }
    // Several hosts in one file (multi-node NVLink): addresses repeat, so only one host can be read as a host.
    let hosts: BTreeSet<&str> = cpus
        .iter()
        .filter_map(|c| c.attribute("host_hash"))
        .collect();
    if hosts.len() > 1 {
        let first = cpus.iter().find_map(|c| c.attribute("host_hash"));
        cpus.retain(|c| c.attribute("host_hash") == first);
        snapshot.topology.notes.push(format!(
            "{} hosts in one file: only the first (host_hash {}) is read; peerproof tells of one host at a time",
            hosts.len(),
            quoted(first.unwrap_or(""))
        ));
    }
    let mut reader = Reader {
        xml,
        snapshot,
        seen: BTreeSet::new(),
        functions: 0,
        foreign: 0,
        without_vendor: 0,
        made_up: 0,
        self_links: 0,
    };
    for cpu in &cpus {
        reader.cpu(*cpu)?;
    }
    reader.packages(&cpus);
    Ok(reader.finish())
}

fn number(xml: &Xml<'_>, node: Node<'_, '_>, name: &str) -> Result<Option<i64>, ImportError> {
    let Some(text) = node.attribute(name).filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    text.trim().parse().map(Some).map_err(|_| {
        xml.error_in(
            node,
            name,
            format!(
                "{name} {} is not a decimal number; NCCL writes one: the file was edited",
                quoted(text)
            ),
        )
    })
}

fn reading<T>(value: Option<T>) -> Reading<T> {
    value.map_or_else(Reading::default, Reading::Known)
}

impl Reader<'_, '_> {
    fn cpu(&mut self, cpu: Node<'_, '_>) -> Result<(), ImportError> {
        let numa = number(self.xml, cpu, "numaid")?.and_then(|n| i32::try_from(n).ok());
        if let Some(os_index) = numa.and_then(|n| u32::try_from(n).ok())
            && !self
                .snapshot
                .numa_nodes
                .iter()
                .any(|n| n.os_index == os_index)
        {
            let affinity = cpu.attribute("affinity").filter(|a| !a.is_empty());
            let parsed = affinity.and_then(mask::Mask::parse);
            if affinity.is_some() && parsed.is_none() {
                self.snapshot.topology.notes.push(format!(
                    "the CPU mask of NUMA node {os_index} could not be read: {}",
                    quoted(affinity.unwrap_or(""))
                ));
            }
            self.snapshot.numa_nodes.push(NumaNode {
                os_index,
                memory_bytes: None,
                cpus: parsed.filter(|m| !m.is_empty()).map(|m| m.list()),
            });
        }
        for child in cpu.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => self.pci(child, numa, &[])?,
                "nic" => self.nic(child, None, numa, &[]),
                _ => {}
            }
        }
        Ok(())
    }

    /// Depth is bounded by the XML layer. `chain` goes from the parent up.
    fn pci(
        &mut self,
        node: Node<'_, '_>,
        numa: Option<i32>,
        chain: &[PciAddress],
    ) -> Result<(), ImportError> {
        let pci = self.xml.address(node, "busid")?;
        let listed = [
            ("GPUs", self.snapshot.gpus.len(), MAX_GPUS),
            ("network adapters", self.snapshot.nics.len(), MAX_NICS),
            ("PCI functions", self.seen.len(), MAX_FUNCTIONS),
        ];
        if let Some((what, _, most)) = listed.iter().find(|(_, n, most)| n > most) {
            return Err(self.xml.error(
                node,
                format!("more than {most} {what}; no host has as many"),
            ));
        }
        if !self.seen.insert(pci) {
            return Err(self.xml.error_in(
                node,
                "busid",
                format!("{pci} is listed twice; a host has one function per address"),
            ));
        }
        self.functions += 1;
        let gpu = node.children().find(|n| n.has_tag_name("gpu"));
        let identity = self.identity(node, gpu.is_some())?;
        let below = |chain: &[PciAddress]| {
            let mut longer = vec![pci];
            longer.extend_from_slice(chain);
            longer
        };
        let class = identity.map(|i| i.class);
        if class.is_some_and(|c| c >> 8 == 0x03 || c == 0x1200) || gpu.is_some() {
            self.gpu(node, gpu, pci, identity, numa, chain)?;
        } else if class == Some(0x0604) {
            let known = identity.filter(|i| i.vendor != 0 && i.vendor != 0xffff);
            self.made_up += u32::from(pci.domain == 0xffff && pci.bus == 0xff);
            self.snapshot.bridges.push(Bridge {
                pci,
                parent: chain.first().copied(),
                identity: reading(known),
                chip: known.and_then(chips::chip_name).map(str::to_string),
                port: BridgePort::SwitchUpstream,
                emulated: known.is_some_and(chips::is_emulated),
                acs: Reading::default(),
                link_now: reading(link(node)),
                link_max: Reading::default(),
                aer: Reading::default(),
                numa_node: reading(numa),
            });
            let longer = below(chain);
            for child in node.children().filter(|n| n.has_tag_name("pci")) {
                self.pci(child, numa, &longer)?;
            }
        } else {
            for child in node.children().filter(|n| n.has_tag_name("pci")) {
                self.pci(child, numa, chain)?;
            }
        }
        for nic in node.children().filter(|n| n.has_tag_name("nic")) {
            self.nic(nic, Some(pci), numa, chain);
        }
        Ok(())
    }

    fn identity(
        &mut self,
        node: Node<'_, '_>,
        has_gpu: bool,
    ) -> Result<Option<PciIdentity>, ImportError> {
        let ids = |name: &str| -> Result<Option<u16>, ImportError> {
            let Some(text) = node.attribute(name).filter(|t| !t.is_empty()) else {
                return Ok(None);
            };
            let value = hex16(text).ok_or_else(|| {
                self.xml.error_in(
                    node,
                    name,
                    format!("{name} {} is not a 16-bit id", quoted(text)),
                )
            })?;
            Ok(Some(value))
        };
        let class = match node.attribute("class").filter(|t| !t.is_empty()) {
            None => None,
            Some(text) => Some(class16(text).ok_or_else(|| {
                self.xml.error_in(
                    node,
                    "class",
                    format!("class {} is not a PCI class (as 0x030200)", quoted(text)),
                )
            })?),
        };
        let (vendor, device) = (ids("vendor")?, ids("device")?);
        let Some(class) = class.or(has_gpu.then_some(0x0302)) else {
            return Ok(None);
        };
        Ok(Some(PciIdentity {
            vendor: vendor.unwrap_or(0),
            device: device.unwrap_or(0),
            class,
        }))
    }

    fn gpu(
        &mut self,
        node: Node<'_, '_>,
        gpu: Option<Node<'_, '_>>,
        pci: PciAddress,
        identity: Option<PciIdentity>,
        numa: Option<i32>,
        chain: &[PciAddress],
    ) -> Result<(), ImportError> {
        let amd = gpu.is_some_and(|g| g.has_attribute("gcn"));
        let vendor = identity.map_or(0, |i| i.vendor);
        // Without a vendor, a GPU in an NCCL file is taken for NVIDIA's; RCCL marks its own with gcn or class 0380.
        let missing = vendor == 0 || vendor == 0xffff;
        let class = identity.map_or(0, |i| i.class);
        if amd || (!missing && vendor != VENDOR_NVIDIA) || !matches!(class, 0x0300 | 0x0302) {
            self.foreign += 1;
            return Ok(());
        }
        self.without_vendor += u32::from(missing);
        let identity = identity.filter(|_| !missing);
        let part = identity.and_then(chips::part);
        let sm = match gpu {
            Some(g) => number(self.xml, g, "sm")?.and_then(|n| u32::try_from(n).ok()),
            None => None,
        };
        if let (Some(sm), Some(part)) = (sm, part) {
            let (major, minor) = part.compute_capability;
            if sm != major * 10 + minor {
                self.snapshot.topology.notes.push(format!(
                    "{pci}: sm {sm} contradicts the device id ({}, which is sm {}): the file was edited",
                    part.name,
                    major * 10 + minor
                ));
            }
        }
        let nvlinks = match gpu {
            // Only a dump that describes the GPU (sm) would have shown its links.
            Some(g) if sm.is_some() || g.children().any(|n| n.has_tag_name("nvlink")) => {
                Reading::Known(self.nvlinks(g, pci)?)
            }
            _ => Reading::default(),
        };
        if let Some(c2c) = gpu.and_then(|g| g.children().find(|n| n.has_tag_name("c2c"))) {
            self.snapshot.topology.notes.push(format!(
                "{pci} reaches its CPU over NVLink-C2C ({} MB/s in the file); its PCIe link says little",
                c2c.attribute("bw").unwrap_or("?").chars().take(12).collect::<String>()
            ));
        }
        self.snapshot.gpus.push(Gpu {
            pci: Reading::Known(pci),
            identity: reading(identity),
            name: reading(part.map(|p| p.name.to_string())),
            nvml_index: match gpu {
                Some(g) => reading(number(self.xml, g, "dev")?.and_then(|n| u32::try_from(n).ok())),
                None => Reading::default(),
            },
            compute_capability: reading(sm.map(|s| (s / 10, s % 10))),
            link_now: reading(link(node)),
            numa_node: reading(numa),
            bridge_chain: Reading::Known(chain.to_vec()),
            nvlinks,
            ..Gpu::default()
        });
        Ok(())
    }

    fn nvlinks(&mut self, gpu: Node<'_, '_>, own: PciAddress) -> Result<Vec<NvLink>, ImportError> {
        let mut links = Vec::new();
        for node in gpu.children().filter(|n| n.has_tag_name("nvlink")) {
            let text = node.attribute("target").unwrap_or("");
            // All ones: the driver hides what is there, which it does for NVSwitches only.
            let ones = text.trim().to_ascii_lowercase();
            let hidden = ones.ends_with(":ff:ff.0")
                && ones.trim_end_matches(":ff:ff.0").bytes().all(|b| b == b'f');
            let target = strict_address(text).filter(|_| !hidden);
            if target.is_none() && !hidden {
                return Err(self.xml.error_in(
                    node,
                    "target",
                    format!("target {} is not a PCI address", quoted(text)),
                ));
            }
            let count = number(self.xml, node, "count")?.unwrap_or(1);
            let count = u32::try_from(count).unwrap_or(0);
            if count > MAX_LINKS {
                return Err(self.xml.error_in(
                    node,
                    "count",
                    format!("{count} NVLinks; no part has more than 18"),
                ));
            }
            let switch = node.attribute("tclass").and_then(class16) == Some(0x0680);
            let cpu = node.attribute("tclass").and_then(class16) == Some(0x0604);
            let (remote, remote_kind) = if target == Some(own) {
                self.self_links += 1;
                (None, NvLinkEnd::Gpu)
            } else if hidden {
                (None, NvLinkEnd::Switch)
            } else if switch {
                (target, NvLinkEnd::Switch)
            } else if cpu {
                (None, NvLinkEnd::Cpu)
            } else {
                (target, NvLinkEnd::Gpu)
            };
            for _ in 0..count {
                links.push(NvLink {
                    link: u32::try_from(links.len()).unwrap_or(u32::MAX),
                    active: true,
                    version: None,
                    raw_gb_per_s: None,
                    remote,
                    remote_kind,
                    errors: None,
                });
            }
            if links.len() > 4096 {
                return Err(self.xml.error(node, "more than 4096 NVLinks on one GPU"));
            }
        }
        Ok(links)
    }

    fn nic(
        &mut self,
        nic: Node<'_, '_>,
        pci: Option<PciAddress>,
        numa: Option<i32>,
        chain: &[PciAddress],
    ) {
        for net in nic.children().filter(|n| n.has_tag_name("net")) {
            if self.snapshot.nics.len() > MAX_NICS {
                return;
            }
            let Some(name) = net.attribute("name") else {
                continue;
            };
            self.snapshot.nics.push(Nic {
                name: name.chars().take(64).collect(),
                pci: reading(pci),
                bridge_chain: pci.map_or_else(Reading::default, |_| Reading::Known(chain.to_vec())),
                numa_node: reading(numa),
                to_gpus: Vec::new(),
            });
        }
    }

    /// The file has no packages. One case follows from the CPU itself: no EPYC has fewer than eight cores, so a host
    /// that is at most sixteen CPUs wide is one socket however many NUMA nodes it shows.
    fn packages(&mut self, cpus: &[Node<'_, '_>]) {
        let epyc = |c: &Node<'_, '_>| {
            let family: u32 = c
                .attribute("familyid")
                .and_then(|f| f.parse().ok())
                .unwrap_or(0);
            c.attribute("vendor") == Some("AuthenticAMD")
                && matches!(family, 23 | 25 | 26 | 143 | 175 | 191)
        };
        let width = cpus
            .iter()
            .filter_map(|c| c.attribute("affinity"))
            .map(mask::width)
            .max()
            .unwrap_or(0);
        if self.snapshot.numa_nodes.len() < 2
            || !cpus.iter().all(epyc)
            || !(1..=16).contains(&width)
        {
            return;
        }
        self.snapshot.packages.push(Package {
            os_index: 0,
            numa_nodes: self
                .snapshot
                .numa_nodes
                .iter()
                .map(|n| n.os_index)
                .collect(),
            model: None,
        });
        for gpu in &mut self.snapshot.gpus {
            gpu.package = Reading::Known(0);
        }
        self.snapshot.topology.notes.push(format!(
            "one socket, inferred: the CPU masks are {width} wide and an EPYC socket has at least eight cores with two threads each"
        ));
    }

    fn finish(self) -> Snapshot {
        let mut snapshot = self.snapshot;
        // Switches told only by NVLink targets.
        let targets: BTreeSet<PciAddress> = snapshot
            .gpus
            .iter()
            .filter_map(|g| g.nvlinks.known())
            .flatten()
            .filter(|l| l.remote_kind == NvLinkEnd::Switch)
            .filter_map(|l| l.remote)
            .collect();
        let gpus: BTreeMap<PciAddress, ()> = snapshot
            .gpus
            .iter()
            .filter_map(|g| g.pci.known().map(|p| (*p, ())))
            .collect();
        snapshot.nvswitches = targets
            .into_iter()
            .filter(|t| !gpus.contains_key(t))
            .collect();
        snapshot.gpus.sort_by_key(|g| g.pci.known().copied());
        for (gpu, n) in snapshot.gpus.iter_mut().zip(0_u32..) {
            gpu.label = format!("GPU{n}");
        }
        snapshot.claims = PairTable::new(u32::try_from(snapshot.gpus.len()).unwrap_or(0));
        snapshot.sources.push(SourceNote {
            source: PCI_SOURCE.to_string(),
            // A file without any GPU is legal: NCCL merges it with what it detects itself.
            result: if snapshot.gpus.is_empty() && self.foreign == 0 {
                Reading::Absent(Absence::NotInInput)
            } else {
                Reading::Known(format!(
                    "{} PCI functions, {} NVIDIA GPUs, {} switches",
                    self.functions,
                    snapshot.gpus.len(),
                    snapshot.bridges.len()
                ))
            },
            took_ms: 0.0,
        });
        let notes = &mut snapshot.topology.notes;
        let mut say = |count: u32, text: &str| {
            if count > 0 {
                notes.push(format!("{count} {text}"));
            }
        };
        say(self.foreign, "GPUs of other vendors are left out");
        say(
            self.without_vendor,
            "GPUs are told by their class only; they are taken for NVIDIA's because the file is NCCL's",
        );
        say(
            self.made_up,
            "switches have made-up addresses (ffff:ff): they stand for what the file's author says, not for what was seen",
        );
        say(
            self.self_links,
            "GPUs name themselves as the far end of their NVLinks: who is joined with whom is not in the file",
        );
        if snapshot.gpus.is_empty() && self.foreign == 0 {
            notes.push("the file lists no GPUs: it is meant to be merged with what NCCL detects on the host".to_string());
        }
        snapshot
    }
}

/// `0x030200`, `0x0302`: class without the programming interface.
fn class16(text: &str) -> Option<u16> {
    let digits = text.trim().trim_start_matches("0x");
    match digits.len() {
        6 if digits.is_char_boundary(4) => {
            hex16(&digits[..4]).filter(|_| hex16(&digits[4..]).is_some())
        }
        1..=4 => hex16(digits),
        _ => None,
    }
}

/// `link_speed="16.0 GT/s PCIe"`, `"8 GT/s"`, `""`; width 0 = unknown.
fn link(node: Node<'_, '_>) -> Option<PcieLink> {
    let text = node.attribute("link_speed")?;
    let speed_gts: f64 = text.split_once("GT/s")?.0.trim().parse().ok()?;
    let width: u32 = node.attribute("link_width")?.trim().parse().ok()?;
    let sane = speed_gts > 0.0 && speed_gts <= 256.0 && (1..=32).contains(&width);
    sane.then_some(PcieLink { speed_gts, width })
}
