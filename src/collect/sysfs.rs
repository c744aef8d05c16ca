//! The kernel's view of PCI: which NVIDIA GPUs, NVSwitches and network adapters exist, the bridges above them, their
//! links, error counters, IOMMU groups and NUMA nodes. It needs no driver and no library, and it only ever reads.
//!
//! Chains come from the device links, which is the hierarchy the kernel itself uses (facts: failures.md 3.4). What a
//! hypervisor emulates is marked, not corrected.

use super::{
    chips,
    live::Roots,
    pci_config::{ConfigSpace, ExpressPort},
};
use crate::model::{
    pci::{PciAddress, PciIdentity, PcieLink, VENDOR_NVIDIA},
    reading::{Absence, Reading},
    snapshot::{AerCounters, Bridge, BridgePort, Gpu, HostBridge, IommuGroup, Nic},
};
use std::{
    collections::BTreeMap,
    fs, io,
    io::Read,
    path::{Path, PathBuf},
};

/// Longest attribute that is read; sysfs attributes are at most a page, files of /proc that matter are shorter than this.
const ATTRIBUTE_LIMIT: u64 = 64 * 1024;

/// A GPU as the kernel lists it.
#[derive(Debug, Clone)]
pub struct PciGpu {
    /// Fields that sysfs can answer; the others are absent.
    pub gpu: Gpu,
    /// Kernel driver that holds it: "nvidia", "vfio-pci", "nouveau"; `None` when unbound.
    pub bound_to: Option<String>,
}

/// What was found below /sys/bus/pci.
#[derive(Debug, Clone, Default)]
pub struct PciView {
    /// NVIDIA GPUs by address, in PCI order.
    pub gpus: BTreeMap<PciAddress, PciGpu>,
    /// Bridges above the GPUs, adapters and NVSwitches.
    pub bridges: Vec<Bridge>,
    /// Network adapters; virtual functions are left out.
    pub nics: Vec<Nic>,
    /// NVIDIA functions of class 0680.
    pub nvswitches: Vec<PciAddress>,
    /// Host bridges that are PCI functions themselves.
    pub host_bridges: Vec<HostBridge>,
    /// Functions listed in all.
    pub functions: usize,
    /// Adapters left out because they are virtual functions of another one.
    pub virtual_functions: usize,
}

/// Maps an I/O error to the reason why a reading is missing.
pub fn absence_of(error: &io::Error, what: &str) -> Absence {
    match error.kind() {
        io::ErrorKind::NotFound => Absence::SourceMissing(what.to_string()),
        io::ErrorKind::PermissionDenied => Absence::NoPermission(what.to_string()),
        _ => Absence::Failed(format!("{what}: {error}")),
    }
}

/// Reads a small text file, at most 64 KiB of it, and trims it. Bytes that are no UTF-8 become replacement characters.
///
/// # Errors
/// The absence to report.
pub fn read_text(path: &Path) -> Result<String, Absence> {
    let fail = |error: io::Error| absence_of(&error, &path.display().to_string());
    let mut bytes = Vec::new();
    fs::File::open(path)
        .map_err(fail)?
        .take(ATTRIBUTE_LIMIT)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_string())
}

/// Reads a small text file and parses it.
///
/// # Errors
/// The absence to report; `Unparsed` names the file and shows what stood there.
pub fn read_parsed<T>(path: &Path, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Absence> {
    let text = read_text(path)?;
    parse(&text).ok_or_else(|| {
        let start: String = text.chars().take(60).collect();
        Absence::Unparsed(format!("{}: '{start}'", path.display()))
    })
}

fn reading<T>(result: Result<T, Absence>) -> Reading<T> {
    match result {
        Ok(value) => Reading::Known(value),
        Err(absence) => Reading::Absent(absence),
    }
}

/// 0x-prefixed or plain hexadecimal.
fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Place of a function in the PCI tree, as its link below /sys/bus/pci/devices tells.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Bus of the host bridge, "0000:00".
    root_bus: String,
    /// Bridges from the parent up to the root port.
    chain: Vec<PciAddress>,
}

impl Place {
    /// Parses a link such as `../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0`. A volume management device (VMD)
    /// nests a second host bridge in the path; the last one counts.
    fn parse(link: &str) -> Option<Place> {
        let parts: Vec<&str> = link.split('/').filter(|p| !p.is_empty()).collect();
        let host = parts.iter().rposition(|p| {
            p.strip_prefix("pci")
                .and_then(|bus| bus.split_once(':'))
                .is_some_and(|(domain, bus)| {
                    hexadecimal(domain).is_some() && hexadecimal(bus).is_some()
                })
        })?;
        let root_bus = parts.get(host)?.strip_prefix("pci")?.to_string();
        let below = parts.get(host + 1..)?;
        let (_own, bridges) = below.split_last()?;
        let chain = bridges
            .iter()
            .rev()
            .map(|part| part.parse().ok())
            .collect::<Option<Vec<PciAddress>>>()?;
        Some(Place { root_bus, chain })
    }
}

/// The folder of one function.
struct Function<'a> {
    roots: &'a Roots,
    pci: PciAddress,
    folder: PathBuf,
}

impl Function<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn identity(&self) -> Result<PciIdentity, Absence> {
        let word = |name: &str| read_parsed(&self.at(name), hexadecimal);
        Ok(PciIdentity {
            vendor: word("vendor")? as u16,
            device: word("device")? as u16,
            class: (word("class")? >> 8) as u16,
        })
    }

    fn place(&self) -> Result<Place, Absence> {
        let link = fs::read_link(&self.folder)
            .map_err(|e| absence_of(&e, &format!("link {}", self.folder.display())))?;
        Place::parse(&link.to_string_lossy()).ok_or_else(|| {
            Absence::Unparsed(format!(
                "{}: -> '{}'",
                self.folder.display(),
                link.display()
            ))
        })
    }

    fn numa_node(&self) -> Reading<i32> {
        reading(read_parsed(&self.at("numa_node"), |t| t.parse().ok()))
    }

    fn link(&self, which: &str) -> Reading<PcieLink> {
        reading(read_link_state(&self.folder, which))
    }

    fn iommu(&self) -> Reading<IommuGroup> {
        let link = self.at("iommu_group");
        let target = match fs::read_link(&link) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Reading::Absent(Absence::NotSupported(
                    "the kernel put this device in no IOMMU group".to_string(),
                ));
            }
            Err(error) => {
                return Reading::Absent(absence_of(&error, &link.display().to_string()));
            }
        };
        let number = target
            .file_name()
            .and_then(|n| n.to_string_lossy().parse::<u32>().ok());
        let Some(group) = number else {
            return Reading::Absent(Absence::Unparsed(format!(
                "{}: -> '{}'",
                link.display(),
                target.display()
            )));
        };
        let kind = self
            .roots
            .path("sys/kernel/iommu_groups")
            .join(group.to_string())
            .join("type");
        Reading::Known(IommuGroup {
            group,
            domain_type: reading(read_text(&kind)),
        })
    }

    /// Size of BAR1 from the second line of `resource`: start, end, flags.
    fn bar1(&self) -> Reading<u64> {
        reading(read_parsed(&self.at("resource"), |text| {
            let mut words = text.lines().nth(1)?.split_whitespace();
            let mut address = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
            let (start, end) = (address()?, address()?);
            (end > start).then(|| end - start + 1)
        }))
    }
}

/// Totals of the three AER files of a device folder. Also used by the observer.
pub fn read_aer(folder: &Path) -> Result<AerCounters, Absence> {
    let total = |name: &str, key: &str| {
        read_parsed(&folder.join(name), |text| {
            text.lines().find_map(|line| {
                let (found, count) = line.split_once(char::is_whitespace)?;
                (found == key).then(|| count.trim().parse().ok())?
            })
        })
    };
    Ok(AerCounters {
        correctable: total("aer_dev_correctable", "TOTAL_ERR_COR")?,
        nonfatal: total("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")?,
        fatal: total("aer_dev_fatal", "TOTAL_ERR_FATAL")?,
    })
}

/// `which` is "current" or "max". Also used by the observer.
pub fn read_link_state(folder: &Path, which: &str) -> Result<PcieLink, Absence> {
    let unknown =
        |path: &Path, text: &str| Absence::NotSupported(format!("{}: '{text}'", path.display()));
    let speed_at = folder.join(format!("{which}_link_speed"));
    let text = read_text(&speed_at)?;
    let speed_gts = text
        .split_whitespace()
        .next()
        .and_then(|number| number.parse::<f64>().ok())
        .filter(|speed| speed.is_finite() && *speed > 0.0)
        .ok_or_else(|| unknown(&speed_at, &text))?;
    let width_at = folder.join(format!("{which}_link_width"));
    let text = read_text(&width_at)?;
    // 0 is "no link", 63 and 255 are the all-ones readings of kernels that do not catch them.
    let width = text
        .parse::<u32>()
        .ok()
        .filter(|width| (1..=32).contains(width))
        .ok_or_else(|| unknown(&width_at, &text))?;
    Ok(PcieLink { speed_gts, width })
}

/// Reads everything that matters below /sys/bus/pci/devices.
///
/// # Errors
/// Only when the folder itself cannot be listed; a device that cannot be read has absent fields.
pub fn read(roots: &Roots) -> Result<PciView, Absence> {
    let base = roots.path("sys/bus/pci/devices");
    let listing = fs::read_dir(&base).map_err(|e| absence_of(&e, &base.display().to_string()))?;
    let mut view = PciView::default();
    let mut above: BTreeMap<PciAddress, (Option<PciAddress>, usize)> = BTreeMap::new();
    let mut addresses: Vec<PciAddress> = listing
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .collect();
    addresses.sort_unstable();
    view.functions = addresses.len();
    for pci in addresses {
        let function = Function {
            roots,
            pci,
            folder: base.join(pci.to_string()),
        };
        let Ok(class) = read_parsed(&function.at("class"), hexadecimal) else {
            continue;
        };
        let class = class >> 8;
        if !matches!(class, 0x0200 | 0x0207 | 0x0300 | 0x0302 | 0x0600 | 0x0680) {
            continue;
        }
        let Ok(identity) = function.identity() else {
            continue;
        };
        if class == 0x0600 {
            view.host_bridges.push(HostBridge { pci, identity });
            continue;
        }
        let place = function.place();
        let kept = if identity.is_nvidia_gpu() {
            let found = read_gpu(&function, identity, &place);
            view.gpus.insert(pci, found);
            true
        } else if identity.vendor == VENDOR_NVIDIA && class == 0x0680 {
            view.nvswitches.push(pci);
            true
        } else if matches!(class, 0x0200 | 0x0207) {
            if function.at("physfn").symlink_metadata().is_ok() {
                view.virtual_functions += 1;
                false
            } else {
                view.nics.push(read_nic(&function, &place));
                true
            }
        } else {
            false
        };
        if let (true, Ok(place)) = (kept, &place) {
            for (up, bridge) in place.chain.iter().enumerate() {
                let depth = place.chain.len() - 1 - up;
                above.insert(*bridge, (place.chain.get(up + 1).copied(), depth));
            }
        }
    }
    view.bridges = above
        .into_iter()
        .map(|(pci, (parent, depth))| {
            let function = Function {
                roots,
                pci,
                folder: base.join(pci.to_string()),
            };
            read_bridge(&function, parent, depth)
        })
        .collect();
    limit_links_by_slot(&mut view);
    Ok(view)
}

fn read_gpu(
    function: &Function<'_>,
    identity: PciIdentity,
    place: &Result<Place, Absence>,
) -> PciGpu {
    let config = ConfigSpace::open(&function.at("config"));
    let gpu = Gpu {
        pci: Reading::Known(function.pci),
        identity: Reading::Known(identity),
        bar1_bytes: function.bar1(),
        link_now: function.link("current"),
        link_max: function.link("max"),
        numa_node: function.numa_node(),
        bridge_chain: reading(place.clone().map(|p| p.chain)),
        root_bus: reading(place.clone().map(|p| p.root_bus)),
        iommu: function.iommu(),
        cpu_affinity: reading(read_parsed(&function.at("local_cpulist"), |text| {
            (!text.is_empty()).then(|| text.to_string())
        })),
        p2p_clique: match &config {
            Ok(config) => config.p2p_clique(),
            Err(absence) => Reading::Absent(absence.clone()),
        },
        aer: reading(read_aer(&function.folder)),
        ats: match &config {
            Ok(config) => config.ats(),
            Err(absence) => Reading::Absent(absence.clone()),
        },
        bar1_sizes: reading(read_parsed(&function.at("resource1_resize"), |text| {
            u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
        })),
        ..Gpu::default()
    };
    let bound_to = fs::read_link(function.at("driver"))
        .ok()
        .and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned()));
    PciGpu { gpu, bound_to }
}

/// A GPU of which the PCI tree told nothing, for one reason.
pub fn unlisted(why: &Absence) -> Gpu {
    fn no<T>(why: &Absence) -> Reading<T> {
        Reading::Absent(why.clone())
    }
    Gpu {
        identity: no(why),
        bar1_bytes: no(why),
        link_now: no(why),
        link_max: no(why),
        numa_node: no(why),
        bridge_chain: no(why),
        root_bus: no(why),
        iommu: no(why),
        cpu_affinity: no(why),
        p2p_clique: no(why),
        aer: no(why),
        ats: no(why),
        bar1_sizes: no(why),
        ..Gpu::default()
    }
}

fn read_nic(function: &Function<'_>, place: &Result<Place, Absence>) -> Nic {
    Nic {
        name: nic_name(&function.folder).unwrap_or_else(|| function.pci.to_string()),
        pci: Reading::Known(function.pci),
        bridge_chain: reading(place.clone().map(|p| p.chain)),
        numa_node: function.numa_node(),
        to_gpus: Vec::new(),
    }
}

/// RDMA name first, because that is what NCCL and nvidia-smi print; then the network interface, which virtio hangs one
/// level deeper.
fn nic_name(folder: &Path) -> Option<String> {
    let first_in = |folder: &Path| {
        let names = fs::read_dir(folder).ok()?.flatten();
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .min()
    };
    first_in(&folder.join("infiniband"))
        .or_else(|| first_in(&folder.join("net")))
        .or_else(|| {
            let inner = fs::read_dir(folder).ok()?.flatten().find(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .strip_prefix("virtio")
                    .is_some_and(|n| n.parse::<u32>().is_ok())
            })?;
            first_in(&inner.path().join("net"))
        })
}

/// The port type that a bridge must have `depth` bridges below a host bridge: a root port first, and below it the two
/// kinds of switch port take turns.
pub fn port_by_depth(depth: usize) -> BridgePort {
    match depth {
        0 => BridgePort::Root,
        odd if odd % 2 == 1 => BridgePort::SwitchUpstream,
        _ => BridgePort::SwitchDownstream,
    }
}

fn read_bridge(function: &Function<'_>, parent: Option<PciAddress>, depth: usize) -> Bridge {
    let identity = reading(function.identity());
    let config = ConfigSpace::open(&function.at("config"));
    let (port, acs) = match &config {
        Ok(config) => (config.port(), config.acs()),
        Err(absence) => (
            Reading::Absent(absence.clone()),
            Reading::Absent(absence.clone()),
        ),
    };
    let port = match port {
        Reading::Known(Some(ExpressPort::Root)) => BridgePort::Root,
        Reading::Known(Some(ExpressPort::SwitchUpstream)) => BridgePort::SwitchUpstream,
        Reading::Known(Some(ExpressPort::SwitchDownstream)) => BridgePort::SwitchDownstream,
        Reading::Known(_) => BridgePort::Unknown,
        // The capability lies in the part that only root may read.
        Reading::Absent(_) => port_by_depth(depth),
    };
    let known = identity.known().copied();
    Bridge {
        pci: function.pci,
        parent,
        chip: known
            .and_then(chips::chip_name)
            .map(|name| name.to_string()),
        emulated: known.is_some_and(chips::is_emulated),
        identity,
        port,
        acs,
        link_now: function.link("current"),
        link_max: function.link("max"),
        aer: reading(read_aer(&function.folder)),
        numa_node: function.numa_node(),
    }
}

/// The link's ceiling is that of device and slot together. An emulated port's ceiling is the hypervisor's invention
/// and does not count.
fn limit_links_by_slot(view: &mut PciView) {
    for found in view.gpus.values_mut() {
        let parent = found
            .gpu
            .bridge_chain
            .known()
            .and_then(|chain| chain.first())
            .and_then(|parent| view.bridges.iter().find(|b| b.pci == *parent));
        let Some(slot) = parent
            .filter(|b| !b.emulated)
            .and_then(|b| b.link_max.known())
        else {
            continue;
        };
        if let Reading::Known(link) = &mut found.gpu.link_max {
            link.speed_gts = link.speed_gts.min(slot.speed_gts);
            link.width = link.width.min(slot.width);
        }
    }
}

/// NUMA nodes that are GPU memory (coherent systems), from the driver's own list; the hwloc reader leaves them out.
pub fn gpu_memory_nodes(roots: &Roots) -> Vec<u32> {
    let Ok(listing) = fs::read_dir(roots.path("proc/driver/nvidia/gpus")) else {
        return Vec::new();
    };
    let mut nodes: Vec<u32> = listing
        .flatten()
        .filter_map(|entry| {
            let text = read_text(&entry.path().join("numa_status")).ok()?;
            let node = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("Node:"))?;
            node.trim().parse().ok()
        })
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_the_tree() {
        let place = Place::parse(
            "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
        )
        .unwrap();
        assert_eq!(place.root_bus, "0000:15");
        let chain: Vec<String> = place.chain.iter().map(|b| b.to_string()).collect();
        assert_eq!(chain, ["0000:17:00.0", "0000:16:00.0", "0000:15:01.0"]);
        let flat = Place::parse("../../../devices/pci0000:00/0000:00:06.0").unwrap();
        assert!(flat.chain.is_empty());
        for bad in [
            "",
            "/",
            "../../devices/platform/x",
            "../pci0000:00",
            "pci0000:00/what/0000:00:01.0",
        ] {
            assert!(Place::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn volume_management_devices_start_a_domain_of_their_own() {
        let place = Place::parse(
            "../../../devices/pci0000:e0/0000:e0:00.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0",
        )
        .unwrap();
        assert_eq!(place.root_bus, "10000:e0");
        assert_eq!(place.chain, ["10000:e0:01.0".parse().unwrap()]);
    }

    #[test]
    fn hyper_v_places_hang_below_acpi() {
        let place = Place::parse(
            "../../../devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001-0000-3130-444531444234/pci0001:00/0001:00:00.0",
        )
        .unwrap();
        assert_eq!((place.root_bus.as_str(), place.chain.len()), ("0001:00", 0));
    }
}
