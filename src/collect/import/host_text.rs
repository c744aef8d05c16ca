//! Texts about the machine itself: kernel log, kernel command line, CPU listings, types of IOMMU groups, parameters and
//! version of the driver, answers of short commands. Silence of a log proves nothing; a word that is not on the command
//! line says nothing either, because the kernel's default is a choice of its builder.

use super::part::{Line, Part};
use crate::{
    collect::kernel_log,
    model::{
        pci::{PciAddress, PciIdentity, VENDOR_NVIDIA},
        reading::Reading,
        ticket::RemarkKind,
    },
};
use std::collections::BTreeMap;

/// Most IOMMU groups that are kept.
const MOST_GROUPS: usize = 4_096;

/// What the kernel logs of an IOMMU that it set up. It names its default domain type on machines without one, too.
const AMD_IOMMU_AT_WORK: &[&str] = &[
    "AMD-Vi: Found IOMMU",
    "AMD-Vi: Interrupt remapping",
    "AMD-Vi: Extended features",
    "AMD-Vi: AMD IOMMUv2 loaded",
    "Detected AMD IOMMU #",
];
const INTEL_IOMMU_AT_WORK: &[&str] = &[
    "DMAR: Intel(R) Virtualization Technology for Directed I/O",
    "DMAR: IOMMU enabled",
];

/// Types of IOMMU groups and the devices in them, as far as texts show; joined after all texts are read.
#[derive(Debug, Default)]
pub(super) struct Domains {
    /// Type by group: "DMA-FQ", "identity".
    pub(super) types: BTreeMap<u32, (String, String)>,
    /// Group of a device.
    pub(super) groups: BTreeMap<PciAddress, u32>,
    /// Default type that the kernel log names, with its place.
    pub(super) default: Option<(String, String)>,
    /// Whether the command line switches the IOMMU off, with its place.
    pub(super) off: Option<String>,
    /// An IOMMU was set up, by the kernel log: class name and place.
    pub(super) active: Option<(String, String)>,
}

pub(super) fn read_command_line(file: &str, lines: &[Line], domains: &mut Domains) -> Part {
    let mut part = Part::new(file, "/proc/cmdline");
    let words = lines.iter().find(|l| !l.text.trim().is_empty());
    if let Some(line) = words {
        command_line(&mut part, line.text.trim(), line, domains);
    }
    part.gave = "kernel command line".to_string();
    part
}

fn command_line(part: &mut Part, text: &str, line: &Line, domains: &mut Domains) {
    let text: String = text.chars().take(4096).collect();
    let longer = part
        .snapshot
        .host
        .cmdline
        .known()
        .is_none_or(|old| old.len() < text.len());
    if !longer {
        return;
    }
    let off = text
        .split_whitespace()
        .find(|w| matches!(*w, "iommu=off" | "amd_iommu=off" | "intel_iommu=off"));
    if off.is_some() {
        domains.off = Some(part.at(line));
    }
    let iommu: Vec<&str> = text
        .split_whitespace()
        .filter(|w| w.contains("iommu") || w.contains("acs") || w.contains("NVreg_"))
        .collect();
    let shown = match iommu.as_slice() {
        [] => "no iommu word".to_string(),
        words => words.join(" "),
    };
    part.citations.retain(|c| c.about != "/proc/cmdline");
    part.cite("/proc/cmdline", shown, line);
    part.snapshot.host.cmdline = Reading::Known(text);
}

/// dmesg, journalctl -k, /dev/kmsg.
pub(super) fn read_log(file: &str, lines: &[Line], domains: &mut Domains) -> Part {
    let mut part = Part::new(file, "kernel log");
    let text: Vec<&str> = lines.iter().map(|l| l.text.as_str()).collect();
    let kept = kernel_log::filter(&text.join("\n"));
    for line in lines {
        log_line(&mut part, line, domains);
    }
    let mut rest = lines.iter();
    for relevant in &kept.lines {
        let body = relevant
            .split_once("] ")
            .map_or(relevant.as_str(), |(_, b)| b);
        let body: String = body.chars().take(40).collect();
        let from = rest.as_slice();
        match rest.find(|l| l.text.contains(&body)) {
            Some(line) => part.cite("kernel log", relevant.trim(), line),
            None => rest = from.iter(),
        }
    }
    part.gave = format!("{} of {} lines matter", kept.lines.len(), kept.records);
    part.snapshot.host.kernel_log = Reading::Known(kept.lines);
    part
}

fn log_line(part: &mut Part, line: &Line, domains: &mut Domains) {
    let text = line.text.as_str();
    let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest.trim());
    if let Some(words) = after("Command line: ").or_else(|| after("Kernel command line: ")) {
        command_line(part, words, line, domains);
    } else if text.contains("Hypervisor detected:")
        || text.contains("Booting paravirtualized kernel on KVM")
    {
        part.snapshot.host.hypervisor = Reading::Known(true);
        part.cite("hypervisor", text.trim(), line);
    } else if text.contains("Booting paravirtualized kernel on bare hardware") {
        part.snapshot.host.hypervisor = Reading::Known(false);
        part.cite("hypervisor", text.trim(), line);
    } else if let Some(dmi) = after("DMI: ") {
        if let Some((product, bios)) = dmi.split_once(", BIOS ") {
            part.snapshot.host.dmi_product = Reading::Known(product.chars().take(80).collect());
            part.snapshot.host.bios = Reading::Known(bios.chars().take(60).collect());
            part.cite("DMI", product, line);
        }
    } else if let Some(kind) = after("iommu: Default domain type:") {
        let translated = kind.starts_with("Translated");
        let kind = if translated { "DMA" } else { "identity" };
        domains.default = Some((kind.to_string(), part.at(line)));
    } else if text.contains("DMA domain TLB invalidation policy: lazy") {
        if let Some((kind, _)) = &mut domains.default
            && kind == "DMA"
        {
            *kind = "DMA-FQ".to_string();
        }
    } else if let Some(group) = after("Adding to iommu group ") {
        let address = text
            .split_once("pci ")
            .and_then(|(_, r)| r.split_once(": Adding"))
            .and_then(|(a, _)| a.trim().parse().ok());
        if let (Some(address), Ok(group)) = (address, group.parse())
            && domains.groups.len() < MOST_GROUPS
        {
            domains.groups.insert(address, group);
        }
    } else if text.contains("NVRM: loading NVIDIA UNIX") {
        let version = text
            .split_whitespace()
            .find(|w| w.contains('.') && w.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
        if let Some(version) = version {
            driver(part, version, text, line);
        }
    } else if text.contains("type 00 class 0x03") && text.contains("[10de:") {
        listed_gpu(part, text, line);
    }
    let at_work = |marks: &[&str]| marks.iter().any(|mark| text.contains(mark));
    if at_work(AMD_IOMMU_AT_WORK) {
        domains.active = Some(("ivhd".to_string(), part.at(line)));
    } else if at_work(INTEL_IOMMU_AT_WORK) {
        domains.active = Some(("dmar".to_string(), part.at(line)));
    }
    if text.contains("error status/mask=") && text.contains("[10de:") {
        detail(part, text, line);
    }
    if text.contains("IO_PAGE_FAULT") || text.contains("DMAR: [DMA") {
        part.remark(RemarkKind::IommuFault, text, line, false);
    }
    if text.contains("NVRM: Xid") && (text.contains("): 79,") || text.contains("fallen off")) {
        part.remark(RemarkKind::GpuLost, text, line, false);
    }
}

fn driver(part: &mut Part, version: &str, text: &str, line: &Line) {
    let open = text.contains("Open Kernel Module");
    let flavour = if open { "open" } else { "proprietary" };
    part.snapshot.driver.version = Reading::Known(version.to_string());
    part.snapshot.driver.flavour = Reading::Known(flavour.to_string());
    part.cite("driver version", format!("{version} ({flavour})"), line);
}

/// "vfio-pci 0000:06:00.0:   device [10de:2bb1] error status/mask=00000001/0000a000": whose errors these are, told once.
fn detail(part: &mut Part, text: &str, line: &Line) {
    let mut words = text.split_whitespace();
    let address = words.find_map(|word| {
        let word = word.strip_suffix(':').filter(|w| w.contains('.'))?;
        word.parse::<PciAddress>().ok()
    });
    let known = |part: &Part, told: &str| {
        let mut all = part.citations.iter();
        all.any(|c| c.about == "PCIe device" && c.value == told)
    };
    let ids = text.split_once("[10de:");
    if let (Some(address), Some((_, ids))) = (address, ids) {
        let ids: String = ids.chars().take(4).collect();
        let told = format!("{address} 10de:{ids}");
        if !known(part, &told) {
            part.cite("PCIe device", told, line);
        }
    }
}

/// "pci 0000:75:00.0: [10de:2bb5] type 00 class 0x030200".
fn listed_gpu(part: &mut Part, text: &str, line: &Line) {
    let address = text
        .split_once("pci ")
        .and_then(|(_, r)| r.split_once(": ["))
        .and_then(|(a, _)| a.parse::<PciAddress>().ok());
    let device = text
        .split_once("[10de:")
        .and_then(|(_, r)| u16::from_str_radix(r.get(..4)?, 16).ok());
    let class = text
        .split_once("class 0x")
        .and_then(|(_, r)| u16::from_str_radix(r.get(..4)?, 16).ok());
    if let (Some(address), Some(device), Some(class)) = (address, device, class)
        && address.function == 0
        && let Some(gpu) = part.gpu_at(address)
    {
        gpu.identity = Reading::Known(PciIdentity {
            vendor: VENDOR_NVIDIA,
            device,
            class,
        });
        part.cite(format!("GPU {address}"), format!("10de:{device:04x}"), line);
    }
}

/// lscpu, or /proc/cpuinfo.
pub(super) fn read_cpu(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "lscpu");
    let mut whole = false;
    for line in lines {
        let Some((name, value)) = line.text.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match name.trim() {
            "Model name" | "model name" => {
                part.snapshot.host.cpu_model = Reading::Known(value.chars().take(80).collect());
            }
            "CPU(s)" => {
                if let Ok(count) = value.parse() {
                    part.snapshot.host.logical_cpus = Reading::Known(count);
                }
            }
            "Hypervisor vendor" => {
                part.snapshot.host.hypervisor = Reading::Known(true);
                part.cite("hypervisor", format!("lscpu: {value}"), line);
            }
            "Flags" | "flags" => {
                let guest = value.split_whitespace().any(|f| f == "hypervisor");
                // A line that was cut may have lost the word.
                if guest || value.split_whitespace().count() > 60 {
                    part.snapshot.host.hypervisor = Reading::Known(guest);
                    let shown = if guest {
                        "flag hypervisor"
                    } else {
                        "no flag hypervisor: bare metal"
                    };
                    part.cite("hypervisor", format!("CPU flags: {shown}"), line);
                    whole = true;
                }
            }
            _ => {}
        }
    }
    part.gave = match part.snapshot.host.hypervisor.known() {
        Some(true) => "a virtual machine".to_string(),
        Some(false) if whole => "bare metal".to_string(),
        _ => "CPU, without its flags".to_string(),
    };
    part
}

/// "/sys/kernel/iommu_groups/31/type DMA-FQ", or with a colon as grep prints it.
pub(super) fn group_type(text: &str) -> Option<(u32, &str)> {
    let (_, rest) = text.split_once("/iommu_groups/")?;
    let (group, rest) = rest.split_once("/type")?;
    let kind = rest.trim_start_matches([':', ' ', '\t']).trim();
    let known = ["DMA", "DMA-FQ", "identity", "blocked", "unmanaged", "auto"];
    known
        .contains(&kind)
        .then(|| Some((group.parse().ok()?, kind)))
        .flatten()
}

pub(super) fn read_group_types(file: &str, lines: &[Line], domains: &mut Domains) -> Part {
    let mut part = Part::new(file, "/sys/kernel/iommu_groups/*/type");
    for line in lines {
        match group_type(&line.text) {
            Some((group, kind)) if domains.types.len() < MOST_GROUPS => {
                let place = part.at(line);
                domains.types.insert(group, (kind.to_string(), place));
            }
            Some(_) => {}
            None if line.text.trim().is_empty() => {}
            None => part.skip(line, "no type of an IOMMU group"),
        }
    }
    part.gave = format!("types of {} groups", domains.types.len());
    part
}

/// Parameters of the driver that are about peers, by the names of /proc/driver/nvidia/params.
fn matters(name: &str) -> bool {
    name.starts_with("RegistryDwords")
        || matches!(
            name,
            "NvLinkDisable"
                | "DmaRemapPeerMmio"
                | "EnableResizableBar"
                | "GrdmaPciTopoCheckOverride"
                | "PeerMappingOverride"
                | "EnablePCIERelaxedOrderingMode"
                | "EnableGpuFirmware"
        )
}

/// Parameters that a line of modprobe.d gives the module: "options nvidia NVreg_NvLinkDisable=1". They keep their prefix: asked for
/// is not in force.
fn modprobe(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = text.strip_prefix("options nvidia ").unwrap_or_default();
    let words = words.split_whitespace();
    let pairs = words.filter_map(|word| word.trim_matches(['"', '\'']).split_once('='));
    pairs.filter(|(name, _)| name.strip_prefix("NVreg_").is_some_and(matters))
}

/// /proc/driver/nvidia/params and /proc/driver/nvidia/version, and lines of modprobe.d.
pub(super) fn read_driver(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "/proc/driver/nvidia");
    let mut params = Vec::new();
    for line in lines {
        for (name, value) in modprobe(line.text.trim()) {
            let plain: String = value.trim_matches(['"', '\'']).chars().take(400).collect();
            part.cite(format!("params {name}"), plain.clone(), line);
            params.push((name.to_string(), plain));
        }
        let Some((name, value)) = line.text.split_once(':') else {
            continue;
        };
        let (name, value) = (name.trim(), value.trim());
        if name == "NVRM version" {
            let version = value
                .split_whitespace()
                .find(|w| w.contains('.') && w.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
            if let Some(version) = version {
                driver(&mut part, version, value, line);
            }
            continue;
        }
        let plain: String = value.trim_matches('"').chars().take(400).collect();
        if matters(name) && params.len() < 64 {
            part.cite(format!("params {name}"), plain.clone(), line);
            params.push((name.to_string(), plain));
        }
    }
    part.gave = format!("{} parameters of the driver", params.len());
    if !params.is_empty() {
        part.snapshot.driver.params = Reading::Known(params);
    }
    part
}

/// What a short command answered. `None` for a command that is not known to us.
pub(super) fn read_answer(file: &str, command: &str, at: &Line, lines: &[Line]) -> Option<Part> {
    let mut part = Part::new(file, command);
    let first = lines.iter().find(|l| !l.text.trim().is_empty());
    let text = first.map(|l| l.text.trim()).unwrap_or_default();
    let line = first.unwrap_or(at);
    let host = &mut part.snapshot.host;
    if command.contains("grep") && command.contains("hypervisor") && command.contains("cpuinfo") {
        let count: u64 = text.parse().ok()?;
        host.hypervisor = Reading::Known(count > 0);
        part.cite("hypervisor", format!("{command}: {count}"), line);
    } else if command.starts_with("systemd-detect-virt") {
        host.hypervisor = Reading::Known(!text.starts_with("none"));
        part.cite("hypervisor", format!("{command}: {text}"), line);
    } else if command.contains("ls") && command.contains("/sys/class/iommu") {
        let names: Vec<String> = lines
            .iter()
            .flat_map(|l| l.text.split_whitespace())
            .filter(|w| ["dmar", "ivhd", "smmu"].iter().any(|k| w.starts_with(k)))
            .take(256)
            .map(str::to_string)
            .collect();
        if names.is_empty() && !text.is_empty() {
            return None;
        }
        part.cite("IOMMU classes", names.join(" "), line);
        part.snapshot.host.iommu_classes = Reading::Known(names);
    } else if command.contains("ptrace_scope") {
        host.ptrace_scope = Reading::Known(text.parse().ok()?);
        part.cite("ptrace_scope", text, line);
    } else if command.starts_with("uname -r") {
        host.kernel = Reading::Known(text.chars().take(80).collect());
    } else if command.starts_with("hostname") {
        host.name = Reading::Known(text.chars().take(80).collect());
    } else {
        return None;
    }
    part.gave = text.chars().take(40).collect();
    Some(part)
}
