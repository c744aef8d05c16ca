//! hwloc's view of this host: packages, NUMA nodes, and which PCI device hangs where. Only plain structs leave this file,
//! because hwlocality is an alpha release.
//!
//! hwloc's own GPU components are switched off: they would load CUDA, NVML and OpenCL into this process and can block for
//! minutes. So is its CPUID walk, which binds this thread to every logical CPU in turn and tells nothing that the kernel
//! does not. Two fences stand: the builder refuses the components, and the environment variable
//! [`COMPONENTS_VARIABLE`], which hwloc reads before it opens plug-ins, is set by the parent for the worker that calls
//! this (a process cannot set it for itself without `unsafe`). A missing variable is noted, not fatal.

use super::{
    chips,
    sysfs::{PciGpu, PciView, port_by_depth, unlisted},
};
use crate::model::{
    pci::{PciAddress, PciIdentity, VENDOR_NVIDIA},
    reading::{Absence, Reading},
    snapshot::{Bridge, Gpu, NumaNode, Package},
};
use hwlocality::{
    Topology,
    object::{
        TopologyObject,
        attributes::{ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes},
        types::ObjectType,
    },
    topology::builder::{BuildFlags, TypeFilter},
};
use std::{collections::BTreeMap, io::Read, path::Path};

/// The variable by which hwloc is told which components not to use.
pub const COMPONENTS_VARIABLE: &str = "HWLOC_COMPONENTS";
/// Its value for workers that call [`read_live`].
pub const COMPONENTS_VALUE: &str = "-cuda,-nvml,-opencl,-gl,-rsmi,-levelzero,-x86";
const REFUSED: [&str; 7] = ["cuda", "nvml", "opencl", "gl", "rsmi", "levelzero", "x86"];

/// What hwloc says.
#[derive(Debug, Clone, Default)]
pub struct HwlocView {
    /// CPU packages.
    pub packages: Vec<Package>,
    /// NUMA nodes with CPUs or memory of the host.
    pub numa_nodes: Vec<NumaNode>,
    /// Every PCI device and bridge by address.
    pub devices: BTreeMap<PciAddress, Attachment>,
    /// What a reader of the result should know.
    pub note: Option<String>,
}

/// Where a PCI function is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Vendor, device and class.
    pub identity: PciIdentity,
    /// Bridges from the parent up to the root port.
    pub chain: Vec<PciAddress>,
    /// Package that holds its host bridge; `None` when hwloc attaches it to several.
    pub package: Option<u32>,
    /// NUMA nodes of that place, os indices.
    pub numa_nodes: Vec<u32>,
}

impl HwlocView {
    /// GPUs and the bridges above them as far as hwloc knows them: the stand-in for an unreadable /sys/bus/pci.
    pub fn as_pci_view(&self) -> PciView {
        let why = Absence::NotSupported("hwloc does not tell".to_string());
        let mut view = PciView {
            functions: self.devices.len(),
            ..PciView::default()
        };
        let mut above = BTreeMap::new();
        for (pci, hung) in &self.devices {
            if hung.identity.vendor == VENDOR_NVIDIA && hung.identity.class == 0x0680 {
                view.nvswitches.push(*pci);
            }
            if !hung.identity.is_nvidia_gpu() {
                continue;
            }
            let gpu = Gpu {
                pci: Reading::Known(*pci),
                identity: Reading::Known(hung.identity),
                bridge_chain: Reading::Known(hung.chain.clone()),
                ..unlisted(&why)
            };
            let bound_to = None;
            view.gpus.insert(*pci, PciGpu { gpu, bound_to });
            for (up, bridge) in hung.chain.iter().enumerate() {
                let parent = hung.chain.get(up + 1).copied();
                above.insert(*bridge, (parent, hung.chain.len() - 1 - up));
            }
        }
        view.bridges = above
            .into_iter()
            .map(|(pci, (parent, depth))| {
                let identity = self.devices.get(&pci).map(|hung| hung.identity);
                Bridge {
                    pci,
                    parent,
                    identity: match identity {
                        Some(identity) => Reading::Known(identity),
                        None => Reading::Absent(why.clone()),
                    },
                    chip: identity.and_then(chips::chip_name).map(str::to_string),
                    port: port_by_depth(depth),
                    emulated: identity.is_some_and(chips::is_emulated),
                    acs: Reading::Absent(why.clone()),
                    link_now: Reading::Absent(why.clone()),
                    link_max: Reading::Absent(why.clone()),
                    aer: Reading::Absent(why.clone()),
                    numa_node: Reading::Absent(why.clone()),
                }
            })
            .collect();
        view
    }
}

/// Reads the running host. `gpu_memory` are NUMA nodes known to be GPU memory; hwloc of old versions does not mark them.
///
/// # Errors
/// hwloc's own refusal.
pub fn read_live(gpu_memory: &[u32]) -> Result<HwlocView, Absence> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Absence::Failed(format!("hwloc, {what}: {error}"))
    };
    // hwloc answers "invalid" for a component that it was built without, and the builder is lost with the answer; so each
    // is tried on a builder of its own while the first one keeps hwloc's component list loaded.
    let mut builder = Topology::builder();
    let present: Vec<&str> = REFUSED
        .into_iter()
        .filter(|name| Topology::builder().without_component(name).is_ok())
        .collect();
    for component in present {
        builder = builder
            .without_component(component)
            .map_err(|e| failed(component, &e))?;
    }
    // A container may allow a few CPUs only; the map is of the host.
    let builder = builder
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|e| failed("flags", &e))?
        .with_cpu_cache_type_filter(TypeFilter::KeepNone)
        .and_then(|b| b.with_cpu_icache_type_filter(TypeFilter::KeepNone))
        .map_err(|e| failed("cache filters", &e))?
        .with_io_type_filter(TypeFilter::KeepAll)
        .map_err(|e| failed("device filter", &e))?;
    let topology = builder.build().map_err(|e| failed("discovery", &e))?;
    let mut view = describe(&topology, gpu_memory);
    if std::env::var_os(COMPONENTS_VARIABLE).is_none() {
        view.note = Some(format!(
            "{COMPONENTS_VARIABLE} is not set in this process: hwloc may open its GPU plug-ins"
        ));
    }
    Ok(view)
}

/// Reads the hwloc XML of a simulated or recorded host.
///
/// # Errors
/// A missing file, a version that libhwloc 2 cannot read, or hwloc's refusal.
pub fn read_xml(path: &Path, gpu_memory: &[u32]) -> Result<HwlocView, Absence> {
    let shown = path.display().to_string();
    let mut start = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(2048).read_to_end(&mut start))
        .map_err(|e| super::sysfs::absence_of(&e, &shown))?;
    if String::from_utf8_lossy(&start).contains("<topology version=\"3") {
        return Err(Absence::NotSupported(format!(
            "{shown}: written by hwloc 3, which libhwloc 2 does not read; export it with --export-xml-flags v2"
        )));
    }
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Absence::Unparsed(format!("{shown}: {what}: {error}"))
    };
    let topology = Topology::builder()
        .from_xml_file(path)
        .map_err(|e| failed("opening", &e))?
        .with_io_type_filter(TypeFilter::KeepAll)
        .map_err(|e| failed("filters", &e))?
        .build()
        .map_err(|e| failed("loading", &e))?;
    Ok(describe(&topology, gpu_memory))
}

fn describe(topology: &Topology, gpu_memory: &[u32]) -> HwlocView {
    let mut view = HwlocView::default();
    let mut nodes = Vec::new();
    for object in topology.objects_with_type(ObjectType::NUMANode) {
        let Some(os_index) = os_index(object) else {
            continue;
        };
        let cpus = object
            .cpuset()
            .map(|set| members(set.iter_set().map(usize::from)));
        let cpus = cpus.filter(|list| !list.is_empty());
        let memory = object.total_memory();
        let is_gpu = gpu_memory.contains(&os_index)
            || object
                .subtype()
                .is_some_and(|subtype| subtype.to_bytes() == b"GPUMemory");
        // Coherent systems also announce empty nodes, held back for memory slices of the GPU.
        if is_gpu || (cpus.is_none() && memory == 0) {
            continue;
        }
        nodes.push(os_index);
        view.numa_nodes.push(NumaNode {
            os_index,
            memory_bytes: (memory > 0).then_some(memory),
            cpus: cpus.map(|list| ranges(&list)),
        });
    }
    view.numa_nodes.sort_by_key(|node| node.os_index);
    let host_nodes = |object: &TopologyObject| -> Vec<u32> {
        let all = object
            .nodeset()
            .map(|set| members(set.iter_set().map(usize::from)))
            .unwrap_or_default();
        all.into_iter().filter(|n| nodes.contains(n)).collect()
    };
    let packages: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::Package).collect();
    view.packages = packages
        .iter()
        .filter_map(|package| {
            Some(Package {
                os_index: os_index(package)?,
                numa_nodes: host_nodes(package),
                model: package
                    .infos()
                    .iter()
                    .find(|info| info.name().to_bytes() == b"CPUModel")
                    .map(|info| info.value().to_string_lossy().trim().to_string()),
            })
        })
        .collect();
    view.packages.sort_by_key(|package| package.os_index);
    for device in topology.pci_devices().chain(topology.bridges()) {
        let Some((address, identity)) = function_of(device) else {
            continue;
        };
        let owner = device.first_non_io_ancestor();
        let attachment = Attachment {
            identity,
            chain: device
                .ancestors()
                .take_while(|above| above.object_type().is_io())
                .filter_map(|above| function_of(above).map(|(pci, _)| pci))
                .collect(),
            package: owner.and_then(|owner| package_of(owner, &packages)),
            numa_nodes: owner.map(&host_nodes).unwrap_or_default(),
        };
        view.devices.insert(address, attachment);
    }
    view
}

fn os_index(object: &TopologyObject) -> Option<u32> {
    object.os_index().and_then(|n| u32::try_from(n).ok())
}

/// The package whose CPUs contain all CPUs of the place; with a single package there is no other answer.
fn package_of(owner: &TopologyObject, packages: &[&TopologyObject]) -> Option<u32> {
    if let [only] = packages {
        return os_index(only);
    }
    let own = owner.cpuset()?;
    // A place without CPUs is contained in every package, which says nothing.
    own.iter_set().next()?;
    packages
        .iter()
        .find(|package| package.cpuset().is_some_and(|all| all.includes(own)))
        .and_then(|package| os_index(package))
}

/// Address and identity of a PCI device or bridge; `None` for host bridges and everything else.
fn function_of(object: &TopologyObject) -> Option<(PciAddress, PciIdentity)> {
    let function = |pci: &PCIDeviceAttributes| {
        let address = PciAddress {
            // hwloc 2 leaves out functions whose domain needs more than 16 bits.
            domain: u32::from(pci.domain()),
            bus: pci.bus_id(),
            device: pci.bus_device(),
            function: pci.function(),
        };
        let identity = PciIdentity {
            vendor: pci.vendor_id(),
            device: pci.device_id(),
            class: pci.class_id(),
        };
        (address, identity)
    };
    match object.attributes()? {
        ObjectAttributes::PCIDevice(pci) => Some(function(pci)),
        ObjectAttributes::Bridge(bridge) => {
            let UpstreamAttributes::PCI(pci) = bridge.upstream_attributes()?;
            Some(function(pci))
        }
        _ => None,
    }
}

/// Members of a bitmap, bounded: a damaged file can hold an infinite one.
fn members(set: impl Iterator<Item = usize>) -> Vec<u32> {
    set.take(1 << 16)
        .filter_map(|n| u32::try_from(n).ok())
        .collect()
}

/// A sorted list as the kernel writes CPU lists: "0-31,64-95".
pub fn ranges(sorted: &[u32]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for &n in sorted {
        match spans.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(n) => *end = n,
            _ => spans.push((n, n)),
        }
    }
    let words: Vec<String> = spans
        .iter()
        .map(|(start, end)| match start == end {
            true => start.to_string(),
            false => format!("{start}-{end}"),
        })
        .collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_written_as_the_kernel_does() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[u32::MAX]), "4294967295");
    }

    #[test]
    fn this_machine_has_a_package_and_a_node() {
        let view = read_live(&[]).unwrap();
        assert!(!view.packages.is_empty());
        assert!(!view.numa_nodes.is_empty());
    }

    #[test]
    fn hwloc_3_files_are_refused_with_a_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hwloc.xml");
        std::fs::write(
            &path,
            "<?xml version=\"1.0\"?>\n<topology version=\"3.0\">\n</topology>\n",
        )
        .unwrap();
        let refused = read_xml(&path, &[]).unwrap_err();
        assert!(refused.to_string().contains("hwloc 3"), "{refused}");
        std::fs::write(&path, "<topology version=\"2.0\"><object").unwrap();
        assert!(matches!(read_xml(&path, &[]), Err(Absence::Unparsed(_))));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(
            read_xml(&path, &[]),
            Err(Absence::SourceMissing(_))
        ));
    }
}
