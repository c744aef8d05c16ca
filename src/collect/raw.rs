//! The files behind a snapshot, as text, for a support bundle: what the kernel says of itself, the driver, and each PCI
//! function that matters. Reads again, when asked; knows what it could not read and why. What is no business of support
//! (mounts, processes, the whole kernel log) is not among it.

use super::{
    kernel_log,
    live::Roots,
    sysfs::{absence_of, read_text},
};
use crate::model::{
    pci::PciAddress,
    reading::Absence,
    snapshot::{Origin, Snapshot},
};
use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// Largest file that is taken whole.
const LARGEST: u64 = 4 << 20;
/// PCI Express configuration space.
const CONFIG_BYTES: u64 = 4096;
/// Id of the extended capability that holds a device's serial number (PCI Express base specification, 7.9.3).
const DEVICE_SERIAL: u32 = 0x0003;

/// Files below the root that are taken as they are.
const FILES: [&str; 26] = [
    "proc/cmdline",
    "proc/version",
    "proc/meminfo",
    "proc/self/limits",
    "proc/self/status",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/kernel/yama/ptrace_scope",
    "proc/sys/kernel/dmesg_restrict",
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/registry",
    "etc/os-release",
    "sys/class/dmi/id/sys_vendor",
    "sys/class/dmi/id/product_name",
    "sys/class/dmi/id/board_vendor",
    "sys/class/dmi/id/board_name",
    "sys/class/dmi/id/bios_vendor",
    "sys/class/dmi/id/bios_date",
    "sys/class/dmi/id/bios_version",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
    "sys/module/nvidia/version",
    "sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
    "sys/module/pcie_aspm/parameters/policy",
    "sys/kernel/mm/transparent_hugepage/enabled",
];

/// Attributes of a PCI function.
const ATTRIBUTES: [&str; 19] = [
    "vendor",
    "device",
    "class",
    "subsystem_vendor",
    "subsystem_device",
    "revision",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "numa_node",
    "local_cpulist",
    "power_state",
    "resource",
    "resource1_resize",
    "iommu_group/type",
    "aer_dev_correctable",
    "aer_dev_nonfatal",
    "aer_dev_fatal",
];

/// Files whose values name this machine: (file, what it is). They are read only to be replaced elsewhere.
const NAMING: [(&str, Identifier); 7] = [
    ("sys/class/dmi/id/product_serial", Identifier::Serial),
    ("sys/class/dmi/id/board_serial", Identifier::Serial),
    ("sys/class/dmi/id/chassis_serial", Identifier::Serial),
    ("sys/class/dmi/id/chassis_asset_tag", Identifier::Serial),
    ("sys/class/dmi/id/product_uuid", Identifier::Uuid),
    ("etc/machine-id", Identifier::Uuid),
    ("proc/sys/kernel/hostname", Identifier::Host),
];

/// What a value that names this machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identifier {
    /// Host name.
    Host,
    /// Serial number or asset tag.
    Serial,
    /// UUID of the machine or its installation.
    Uuid,
    /// Hardware address.
    Hardware,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Raw {
    /// Path below the root, and content.
    pub files: Vec<(String, String)>,
    /// Path, and why it is not there.
    pub left_out: Vec<(String, String)>,
}

impl Raw {
    fn take(&mut self, name: &str, content: Result<String, Absence>) {
        match content {
            Ok(text) => self.files.push((name.to_string(), text)),
            Err(why) => self.left_out.push((format!("/{name}"), why.to_string())),
        }
    }
}

fn whole(path: &Path) -> Result<String, Absence> {
    let shown = path.display().to_string();
    let fail = |error: std::io::Error| absence_of(&error, &shown);
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(fail)?;
    file.take(LARGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    if bytes.len() as u64 > LARGEST {
        return Err(Absence::Failed(format!(
            "{shown} is larger than {} MiB",
            LARGEST >> 20
        )));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the files behind `snapshot` on this host. `mask_serials` blanks the serial numbers in configuration spaces, where
/// no search for text would find them.
pub fn read(roots: &Roots, snapshot: &Snapshot, mask_serials: bool) -> Raw {
    let mut raw = Raw::default();
    if snapshot.origin != Origin::Live {
        return raw;
    }
    for name in FILES {
        raw.take(name, whole(&roots.path(name)));
    }
    raw.take("proc/cpuinfo", cpuinfo(roots));
    for name in listed(roots, "proc/driver/nvidia/gpus") {
        let file = format!("proc/driver/nvidia/gpus/{name}/information");
        raw.take(&file, whole(&roots.path(&file)));
    }
    for name in listed(roots, "sys/devices/system/node") {
        if name.starts_with("node") {
            for attribute in ["cpulist", "distance", "meminfo"] {
                let file = format!("sys/devices/system/node/{name}/{attribute}");
                raw.take(&file, whole(&roots.path(&file)));
            }
        }
    }
    let classes = listed(roots, "sys/class/iommu").join("\n");
    raw.take("sys/class/iommu", Ok(classes));
    for address in functions(snapshot) {
        function(roots, address, mask_serials, &mut raw);
    }
    match kernel_log::read(roots) {
        Ok(log) => {
            let rest = log.records - log.lines.len().min(log.records);
            raw.take("kernel-log", Ok(log.lines.join("\n")));
            raw.left_out.push((
                format!("{rest} other records of the kernel log"),
                "they do not speak of GPUs, IOMMU faults or PCIe".to_string(),
            ));
        }
        Err(why) => raw
            .left_out
            .push(("kernel log".to_string(), why.to_string())),
    }
    match &roots.root {
        Some(_) => raw.take("hwloc.xml", whole(&roots.path("hwloc.xml"))),
        None => raw.left_out.push((
            "hwloc XML".to_string(),
            "not written by peerproof; what hwloc said is in the host's reading ('lstopo host.xml' writes one)"
                .to_string(),
        )),
    }
    raw
}

/// The first processor: the others repeat it.
fn cpuinfo(roots: &Roots) -> Result<String, Absence> {
    let text = read_text(&roots.path("proc/cpuinfo"))?;
    Ok(text.split("\n\n").next().unwrap_or_default().to_string())
}

fn listed(roots: &Roots, folder: &str) -> Vec<String> {
    let Ok(listing) = fs::read_dir(roots.path(folder)) else {
        return Vec::new();
    };
    let names = listing
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let sorted: BTreeSet<String> = names.collect();
    sorted.into_iter().collect()
}

/// Functions that the snapshot speaks of.
fn functions(snapshot: &Snapshot) -> BTreeSet<PciAddress> {
    let gpus = snapshot
        .gpus
        .iter()
        .filter_map(|gpu| gpu.pci.known().copied());
    let nics = snapshot
        .nics
        .iter()
        .filter_map(|nic| nic.pci.known().copied());
    gpus.chain(nics)
        .chain(snapshot.bridges.iter().map(|bridge| bridge.pci))
        .chain(snapshot.host_bridges.iter().map(|bridge| bridge.pci))
        .chain(snapshot.nvswitches.iter().copied())
        .collect()
}

/// All that is read of one function, as one text with a title for each attribute.
fn function(roots: &Roots, address: PciAddress, mask_serials: bool, raw: &mut Raw) {
    let name = format!("sys/bus/pci/devices/{address}");
    let folder = roots.path(&name);
    let mut text = String::new();
    let mut part = |title: &str, content: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "== {title}\n{}", content.trim_end());
    };
    if let Ok(link) = fs::read_link(&folder) {
        part("link", &link.display().to_string());
    }
    if let Ok(link) = fs::read_link(folder.join("driver")) {
        let driver = link.file_name().map_or(PathBuf::new(), PathBuf::from);
        part("driver", &driver.display().to_string());
    }
    let mut missing: Vec<&str> = Vec::new();
    let mut refused: Vec<(String, Absence)> = Vec::new();
    for attribute in ATTRIBUTES {
        match read_text(&folder.join(attribute)) {
            Ok(content) => part(attribute, &content),
            Err(Absence::SourceMissing(_)) => missing.push(attribute),
            Err(why) => refused.push((attribute.to_string(), why)),
        }
    }
    match config(&folder.join("config")) {
        Ok(bytes) => {
            part("config", &config_text(&bytes, mask_serials));
            if bytes.len() <= 64 {
                let why = "the kernel shows only 64 bytes without CAP_SYS_ADMIN".to_string();
                refused.push((
                    "config past 64 bytes".to_string(),
                    Absence::NoPermission(why),
                ));
            }
        }
        Err(why) => refused.push(("config".to_string(), why)),
    }
    if !missing.is_empty() {
        raw.left_out.push((
            format!("/{name}: {}", missing.join(", ")),
            "not there".to_string(),
        ));
    }
    for (attribute, why) in refused {
        raw.left_out
            .push((format!("/{name}/{attribute}"), why.to_string()));
    }
    raw.files.push((name, text));
}

fn config(path: &Path) -> Result<Vec<u8>, Absence> {
    let fail = |error: std::io::Error| absence_of(&error, &path.display().to_string());
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(fail)?;
    file.take(CONFIG_BYTES)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    Ok(bytes)
}

/// As `lspci -xxxx` prints it: `10: 00 00 ..`; masked bytes are `xx`.
fn config_text(bytes: &[u8], mask_serials: bool) -> String {
    let masked = match mask_serials {
        true => serial_at(bytes),
        false => None,
    };
    let mut text = String::new();
    for (line, row) in bytes.chunks(16).enumerate() {
        let start = line * 16;
        let _ = write!(text, "{start:02x}:");
        for (column, byte) in row.iter().enumerate() {
            let at = start + column;
            if masked.is_some_and(|from| (from..from + 8).contains(&at)) {
                text.push_str(" xx");
            } else {
                let _ = write!(text, " {byte:02x}");
            }
        }
        text.push('\n');
    }
    text
}

/// Where the eight bytes of the device's serial number are: derived from a hardware address on network adapters.
fn serial_at(bytes: &[u8]) -> Option<usize> {
    let word = |at: usize| -> Option<u32> {
        let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(four))
    };
    let mut at = 0x100;
    // A list has at most as many members as fit; a damaged one may be a circle.
    for _ in 0..(CONFIG_BYTES as usize - 0x100) / 8 {
        let header = word(at)?;
        if header & 0xffff == DEVICE_SERIAL {
            return Some(at + 4);
        }
        at = (header >> 20) as usize & !3;
        if at < 0x100 {
            return None;
        }
    }
    None
}

/// Values that name this machine, as far as this user may read them.
pub fn identifiers(roots: &Roots) -> Vec<(Identifier, String)> {
    let mut found = Vec::new();
    for (name, kind) in NAMING {
        if let Ok(value) = read_text(&roots.path(name)) {
            found.push((kind, value));
        }
    }
    for adapter in listed(roots, "sys/class/net") {
        let address = roots.path("sys/class/net").join(adapter).join("address");
        if let Ok(value) = read_text(&address) {
            found.push((Identifier::Hardware, value));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_in_configuration_space_are_masked() {
        let mut bytes = vec![0_u8; 4096];
        // AER at 0x100, next 0x148; device serial number there.
        bytes[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
        bytes[0x148..0x14c].copy_from_slice(&0x0001_0003_u32.to_le_bytes());
        bytes[0x14c..0x154].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4]);
        let shown = config_text(&bytes, false);
        assert!(shown.contains("de ad be ef"));
        let masked = config_text(&bytes, true);
        assert!(!masked.contains("de ad") && masked.contains("xx xx xx xx"));
        assert_eq!(masked.matches("xx").count(), 8);
        // A circle ends, and 64 bytes have no extended list.
        bytes[0x148..0x14c].copy_from_slice(&0x1001_0002_u32.to_le_bytes());
        assert_eq!(serial_at(&bytes), None);
        assert_eq!(serial_at(&bytes[..64]), None);
    }
}
