//! hwloc XML of versions 1, 2 and 3. No installed hwloc reads all three, and the schema is small. Devices are told by PCI
//! vendor and class, never by `osdev_type`, whose numbers changed between versions. Bridges that the capture filtered
//! out are noticed by bus numbers that do not follow, and then the path is not known rather than short.

use super::{
    error::{ImportError, quoted},
    hwloc_matrix,
    mask::Mask,
    xml::{MAX_FUNCTIONS, MAX_GPUS, MAX_NICS, Xml, hex16},
};
use crate::{
    collect::{chips, topology::PCI_SOURCE},
    model::{
        pair::PairTable,
        pci::{PciAddress, PciIdentity, PcieLink},
        reading::{Absence, Reading},
        snapshot::{Bridge, BridgePort, Gpu, Nic, NumaNode, Origin, Package, Snapshot, SourceNote},
    },
};
use roxmltree::Node;
use std::collections::{BTreeMap, BTreeSet};

/// Most NUMA nodes, and most packages.
const MAX_PLACES: usize = 1024;

/// What an object of a NVLink matrix is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatrixEnd {
    /// A GPU, by the address of its PCI function.
    Gpu(PciAddress),
    /// An NVSwitch or another bridge of NVIDIA's.
    Switch(PciAddress),
    /// A CPU package.
    Cpu,
}

/// Where a walk stands: what lies above the object.
#[derive(Clone, Default)]
struct Place {
    /// Bridges from the parent up to the root port; `None` once a bridge is known to be missing.
    chain: Option<Vec<PciAddress>>,
    root_bus: Option<String>,
    /// Domain and bus that children of the nearest bridge have.
    below: Option<(u32, u8)>,
    numa: Option<u32>,
    package: Option<u32>,
    /// Nearest PCI function, for OS devices.
    function: Option<PciAddress>,
}

struct Reader<'x, 'a> {
    xml: &'x Xml<'a>,
    snapshot: Snapshot,
    ends: BTreeMap<(String, u64), MatrixEnd>,
    functions: usize,
    foreign: BTreeMap<(u16, u16), u32>,
    gaps: usize,
    seen: BTreeSet<PciAddress>,
    /// Packages that hold a NUMA node.
    package_of_numa: BTreeMap<u32, BTreeSet<u32>>,
}

pub(super) fn read(file: &str, xml: &Xml<'_>) -> Result<Snapshot, ImportError> {
    let root = xml.root();
    let version = match root.attribute("version") {
        None => "1.x".to_string(),
        Some(v) if v.starts_with("2.") || v.starts_with("3.") => v.chars().take(16).collect(),
        Some(v) => {
            return Err(xml.error_in(
                root,
                "version",
                format!(
                    "hwloc XML version {} is not known (1.x, 2.x and 3.x are)",
                    quoted(v)
                ),
            ));
        }
    };
    let Some(machine) = objects(root).next() else {
        return Err(xml.error(root, "hwloc XML without a Machine object; export it again"));
    };
    let mut reader = Reader {
        xml,
        snapshot: Snapshot::empty(Origin::Recorded {
            format: format!("hwloc-xml {version}"),
            file: file.to_string(),
        }),
        ends: BTreeMap::new(),
        functions: 0,
        foreign: BTreeMap::new(),
        gaps: 0,
        seen: BTreeSet::new(),
        package_of_numa: BTreeMap::new(),
    };
    reader.machine(machine);
    reader.nodes_and_packages(root);
    reader.walk(machine, &Place::default())?;
    let Reader {
        mut snapshot,
        ends,
        functions,
        foreign,
        gaps,
        ..
    } = reader;
    snapshot.gpus.sort_by_key(|g| g.pci.known().copied());
    for (gpu, n) in snapshot.gpus.iter_mut().zip(0_u32..) {
        gpu.label = format!("GPU{n}");
    }
    snapshot.claims = PairTable::new(u32::try_from(snapshot.gpus.len()).unwrap_or(0));
    hwloc_matrix::read(xml, root, &ends, &mut snapshot)?;
    let found = format!(
        "{functions} PCI functions, {} NVIDIA GPUs, {} bridges",
        snapshot.gpus.len(),
        snapshot.bridges.len()
    );
    snapshot.sources.push(SourceNote {
        source: PCI_SOURCE.to_string(),
        result: if functions == 0 {
            Reading::Absent(Absence::NotInInput)
        } else {
            Reading::Known(found)
        },
        took_ms: 0.0,
    });
    if functions == 0 {
        note(
            &mut snapshot,
            "the file has no PCI objects: it was captured without I/O (lstopo --whole-io host.xml keeps them)",
        );
    }
    if gaps > 0 {
        note(
            &mut snapshot,
            format!(
                "captured with PCI bridges filtered out ({gaps} devices hang below a bridge that is not in the file): switches are not known, which is not the same as none"
            ),
        );
    }
    if !foreign.is_empty() {
        let list: Vec<String> = foreign
            .iter()
            .map(|((v, d), n)| format!("{n}x {v:04x}:{d:04x}"))
            .collect();
        note(
            &mut snapshot,
            format!(
                "display or compute devices of other vendors are left out: {}",
                list.join(", ")
            ),
        );
    }
    Ok(snapshot)
}

fn note(snapshot: &mut Snapshot, text: impl Into<String>) {
    snapshot.topology.notes.push(text.into());
}

/// Child objects.
fn objects<'x, 'a>(node: Node<'x, 'a>) -> impl Iterator<Item = Node<'x, 'a>> {
    node.children().filter(|n| n.has_tag_name("object"))
}

/// All objects of a kind, one more than is accepted at most.
fn every<'x, 'a>(root: Node<'x, 'a>, wanted: &'static str) -> impl Iterator<Item = Node<'x, 'a>> {
    root.descendants()
        .filter(move |n| n.has_tag_name("object") && kind(*n) == wanted)
        .take(MAX_PLACES + 1)
}

fn kind<'x>(node: Node<'x, '_>) -> &'x str {
    match node.attribute("type").unwrap_or("") {
        "Socket" => "Package",
        other => other,
    }
}

fn info<'x>(node: Node<'x, '_>, name: &str) -> Option<&'x str> {
    node.children()
        .filter(|n| n.has_tag_name("info"))
        .find(|n| n.attribute("name") == Some(name))
        .and_then(|n| n.attribute("value"))
        .filter(|v| !v.is_empty())
}

fn mask(node: Node<'_, '_>, attribute: &str) -> Option<Mask> {
    node.attribute(attribute).and_then(Mask::parse)
}

fn os_index(node: Node<'_, '_>) -> Option<u32> {
    node.attribute("os_index")?.parse().ok()
}

fn reading<T>(value: Option<T>) -> Reading<T> {
    value.map_or_else(Reading::default, Reading::Known)
}

impl Reader<'_, '_> {
    fn machine(&mut self, machine: Node<'_, '_>) {
        let text = |name: &str| reading(info(machine, name).map(str::to_string));
        let host = &mut self.snapshot.host;
        host.name = text("HostName");
        host.kernel = text("OSRelease");
        host.dmi_vendor = text("DMISysVendor");
        host.dmi_product = text("DMIProductName");
        host.cpu_model = text("CPUModel");
        // The file has no CPU flags. Names that only hypervisors carry say yes; other names say nothing.
        let product = info(machine, "DMIProductName").unwrap_or("");
        let vendor = info(machine, "DMISysVendor").unwrap_or("");
        let virtual_product = product.starts_with("Standard PC (")
            || matches!(
                product,
                "KVM" | "Virtual Machine" | "Google Compute Engine" | "HVM domU"
            );
        if virtual_product || matches!(vendor, "QEMU" | "VMware, Inc." | "Xen" | "innotek GmbH") {
            host.hypervisor = Reading::Known(true);
        }
        if let Some(version) = info(machine, "hwlocVersion") {
            let line = format!("written by hwloc {version}");
            note(&mut self.snapshot, line);
        }
    }

    /// NUMA nodes and packages come first: devices are placed by them.
    fn nodes_and_packages(&mut self, root: Node<'_, '_>) {
        let mut device_memory = 0;
        for node in every(root, "NUMANode") {
            let Some(os_index) = os_index(node) else {
                continue;
            };
            let cpus = mask(node, "cpuset");
            let without_cpus = cpus.as_ref().is_none_or(Mask::is_empty);
            // A node without CPUs that hwloc 1 shows is a GPU's memory (POWER9); hwloc 2 says so itself. CXL memory
            // has a subtype of its own and stays.
            let subtype = node.attribute("subtype").unwrap_or("");
            let of_gpu =
                subtype == "GPUMemory" || (without_cpus && root.attribute("version").is_none());
            if of_gpu {
                device_memory += 1;
                continue;
            }
            self.snapshot.numa_nodes.push(NumaNode {
                os_index,
                memory_bytes: node.attribute("local_memory").and_then(|m| m.parse().ok()),
                cpus: cpus.filter(|c| !c.is_empty()).map(|c| c.list()),
            });
        }
        self.snapshot.numa_nodes.sort_by_key(|n| n.os_index);
        self.snapshot.numa_nodes.dedup_by_key(|n| n.os_index);
        if device_memory > 0 {
            note(
                &mut self.snapshot,
                format!("{device_memory} NUMA nodes are GPU memory and are left out"),
            );
        }
        for node in every(root, "Package") {
            let Some(os_index) = os_index(node) else {
                continue;
            };
            let nodes = mask(node, "nodeset")
                .map(|m| self.host_nodes(&m))
                .unwrap_or_default();
            for numa in &nodes {
                self.package_of_numa
                    .entry(*numa)
                    .or_default()
                    .insert(os_index);
            }
            let model = info(node, "CPUModel").map(str::to_string);
            if self.snapshot.host.cpu_model.known().is_none() {
                self.snapshot.host.cpu_model = reading(model.clone());
            }
            self.snapshot.packages.push(Package {
                os_index,
                numa_nodes: nodes,
                model,
            });
        }
    }

    /// Nodes of a mask that have CPUs.
    fn host_nodes(&self, mask: &Mask) -> Vec<u32> {
        let nodes = self.snapshot.numa_nodes.iter().filter(|n| n.cpus.is_some());
        nodes
            .map(|n| n.os_index)
            .filter(|n| mask.contains(*n))
            .collect()
    }

    /// The place below an object that is not I/O.
    fn beside(&self, node: Node<'_, '_>, above: &Place) -> Place {
        let mut place = above.clone();
        if kind(node) == "Package" {
            place.package = os_index(node);
        }
        if let Some(nodeset) = mask(node, "nodeset") {
            let nodes = self.host_nodes(&nodeset);
            place.numa = match nodes.as_slice() {
                [only] => Some(*only),
                _ => None,
            };
            let packages: BTreeSet<u32> = nodes
                .iter()
                .flat_map(|n| self.package_of_numa.get(n).into_iter().flatten().copied())
                .collect();
            if packages.len() == 1 && kind(node) != "Package" {
                place.package = packages.first().copied();
            }
        }
        if let [only] = self.snapshot.packages.as_slice() {
            place.package = Some(only.os_index);
        }
        place
    }

    /// Depth is bounded by the XML layer.
    fn walk(&mut self, node: Node<'_, '_>, above: &Place) -> Result<(), ImportError> {
        let place = match kind(node) {
            "Bridge" => self.bridge(node, above)?,
            "PCIDev" => self.function(node, above)?,
            "OSDev" => {
                self.remember(node, above.function);
                above.clone()
            }
            // Cores and caches by the thousand place nothing.
            other if other != "Package" && objects(node).next().is_none() => return Ok(()),
            _ => {
                let place = self.beside(node, above);
                if kind(node) == "Package" {
                    self.end(node, MatrixEnd::Cpu);
                }
                place
            }
        };
        for child in objects(node) {
            self.walk(child, &place)?;
        }
        Ok(())
    }

    fn end(&mut self, node: Node<'_, '_>, end: MatrixEnd) {
        if let Some(gp) = node.attribute("gp_index").and_then(|g| g.parse().ok()) {
            self.ends.insert((kind(node).to_string(), gp), end);
        }
    }

    fn remember(&mut self, node: Node<'_, '_>, function: Option<PciAddress>) {
        let Some(pci) = function else { return };
        let name = node.attribute("name").unwrap_or("");
        if let Some(gpu) = self
            .snapshot
            .gpus
            .iter_mut()
            .find(|g| g.pci.known() == Some(&pci))
        {
            if let Some(index) = name.strip_prefix("nvml").and_then(|n| n.parse().ok()) {
                gpu.nvml_index = Reading::Known(index);
            }
            if let Some(uuid) = info(node, "NVIDIAUUID") {
                gpu.uuid = Reading::Known(uuid.to_string());
            }
            if let Some(model) = info(node, "GPUModel") {
                gpu.name = Reading::Known(model.to_string());
            }
            self.end(node, MatrixEnd::Gpu(pci));
        }
    }

    fn bridge(&mut self, node: Node<'_, '_>, above: &Place) -> Result<Place, ImportError> {
        let mut place = above.clone();
        let buses = node.attribute("bridge_pci").and_then(secondary);
        let Some(_) = node.attribute("pci_busid") else {
            // A host bridge: no function of its own.
            place.chain = Some(Vec::new());
            place.below = buses;
            place.root_bus = buses.map(|(domain, bus)| format!("{domain:04x}:{bus:02x}"));
            return Ok(place);
        };
        let pci = self.xml.address(node, "pci_busid")?;
        self.once(node, pci)?;
        let follows = above.below == Some((pci.domain, pci.bus));
        if !follows {
            place.chain = None;
        }
        let level = place.chain.as_ref().map(Vec::len);
        let identity = identity(node);
        self.snapshot.bridges.push(Bridge {
            pci,
            parent: place.chain.as_ref().and_then(|c| c.first().copied()),
            identity: reading(identity),
            chip: identity.and_then(chips::chip_name).map(str::to_string),
            port: match level {
                None => BridgePort::Unknown,
                Some(0) => BridgePort::Root,
                Some(n) if n % 2 == 1 => BridgePort::SwitchUpstream,
                Some(_) => BridgePort::SwitchDownstream,
            },
            emulated: identity.is_some_and(chips::is_emulated),
            acs: Reading::default(),
            link_now: reading(link(node)),
            link_max: Reading::default(),
            aer: Reading::default(),
            numa_node: reading(place.numa.and_then(|n| i32::try_from(n).ok())),
        });
        if let Some(chain) = &mut place.chain {
            chain.insert(0, pci);
        }
        place.below = buses;
        Ok(place)
    }

    fn once(&mut self, node: Node<'_, '_>, pci: PciAddress) -> Result<(), ImportError> {
        let listed = [
            ("GPUs", self.snapshot.gpus.len(), MAX_GPUS),
            ("network adapters", self.snapshot.nics.len(), MAX_NICS),
            ("PCI functions", self.seen.len(), MAX_FUNCTIONS),
            ("NUMA nodes", self.snapshot.numa_nodes.len(), MAX_PLACES),
            ("packages", self.snapshot.packages.len(), MAX_PLACES),
        ];
        if let Some((what, _, most)) = listed.iter().find(|(_, n, most)| n > most) {
            return Err(self.xml.error(
                node,
                format!("more than {most} {what}; no host has as many"),
            ));
        }
        if self.seen.insert(pci) {
            return Ok(());
        }
        Err(self.xml.error_in(
            node,
            "pci_busid",
            format!("{pci} is listed twice; export the topology again"),
        ))
    }

    fn function(&mut self, node: Node<'_, '_>, above: &Place) -> Result<Place, ImportError> {
        let pci = self.xml.address(node, "pci_busid")?;
        self.once(node, pci)?;
        self.functions += 1;
        let mut place = above.clone();
        place.function = Some(pci);
        let Some(identity) = identity(node) else {
            return Ok(place);
        };
        if above.below != Some((pci.domain, pci.bus)) {
            place.chain = None;
        }
        let numa_node = reading(place.numa.and_then(|n| i32::try_from(n).ok()));
        if identity.is_nvidia_gpu() {
            self.gaps += usize::from(place.chain.is_none());
            self.snapshot.gpus.push(Gpu {
                pci: Reading::Known(pci),
                identity: Reading::Known(identity),
                name: reading(
                    info(node, "PCIDevice")
                        .map(str::to_string)
                        .or_else(|| chips::part(identity).map(|p| p.name.to_string())),
                ),
                link_now: reading(link(node)),
                numa_node,
                package: reading(place.package),
                bridge_chain: reading(place.chain.clone()),
                root_bus: reading(place.root_bus.clone()),
                ..Gpu::default()
            });
            self.end(node, MatrixEnd::Gpu(pci));
        } else if chips::is_nvswitch(identity) {
            self.snapshot.nvswitches.push(pci);
            self.end(node, MatrixEnd::Switch(pci));
        } else if identity.class >> 8 == 0x03 || identity.class >> 8 == 0x12 {
            *self
                .foreign
                .entry((identity.vendor, identity.device))
                .or_default() += 1;
        } else if identity.class >> 8 == 0x02
            && let Some(name) = nic_name(node)
        {
            self.snapshot.nics.push(Nic {
                name,
                pci: Reading::Known(pci),
                bridge_chain: reading(place.chain.clone()),
                numa_node,
                to_gpus: Vec::new(),
            });
        }
        Ok(place)
    }
}

/// The verbs name where there is one, else the network interface.
fn nic_name(node: Node<'_, '_>) -> Option<String> {
    let devices = || objects(node).filter(|n| kind(*n) == "OSDev");
    let named = |has: &str| {
        devices()
            .find(|d| info(*d, has).is_some())
            .and_then(|d| d.attribute("name"))
            .map(str::to_string)
    };
    named("NodeGUID").or_else(|| named("Address"))
}

/// `pci_type="0302 [10de:15f9] [10de:116b] a1"`: class, vendor and device.
fn identity(node: Node<'_, '_>) -> Option<PciIdentity> {
    let text = node.attribute("pci_type")?;
    let (class, rest) = text.split_once(' ')?;
    let ids = rest.trim_start().strip_prefix('[')?.split_once(']')?.0;
    let (vendor, device) = ids.split_once(':')?;
    Some(PciIdentity {
        vendor: hex16(vendor)?,
        device: hex16(device)?,
        class: hex16(class)?,
    })
}

/// `bridge_pci="0002:[01-01]"`: domain and secondary bus.
fn secondary(text: &str) -> Option<(u32, u8)> {
    let (domain, rest) = text.split_once(":[")?;
    let (bus, _) = rest.split_once('-')?;
    Some((
        u32::from_str_radix(domain, 16).ok()?,
        u8::from_str_radix(bus, 16).ok()?,
    ))
}

/// hwloc writes GB/s per direction after line coding; 0 means unknown. Several rates and widths give one figure
/// (Gen3 x16 = Gen4 x8): the widest is taken, and the ceiling is the same either way. Within 2 %.
fn link(node: Node<'_, '_>) -> Option<PcieLink> {
    let rate: f64 = node.attribute("pci_link_speed")?.parse().ok()?;
    if !rate.is_finite() || rate <= 0.0 {
        return None;
    }
    let mut best: Option<(f64, PcieLink)> = None;
    for width in [16, 8, 4, 2, 1] {
        for speed_gts in [2.5, 5.0, 8.0, 16.0, 32.0, 64.0] {
            let link = PcieLink { speed_gts, width };
            let off = (link.ceiling_gb_per_s() / rate - 1.0).abs();
            if off < 0.02 && best.is_none_or(|(b, _)| off < b - 1e-6) {
                best = Some((off, link));
            }
        }
    }
    best.map(|(_, link)| link)
}
