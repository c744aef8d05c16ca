//! Names and capabilities that follow from PCI vendor and device together; device ids repeat across vendors. Tables of
//! public facts (pciutils ids; links per part from vendors' data sheets). An id that is not here is not guessed at.

use crate::model::pci::{PciIdentity, VENDOR_NVIDIA};

/// How a GPU part brings out its NVLinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvLinkForm {
    /// The part has none.
    None,
    /// On the card's edge: a bridge joins two cards.
    Bridge,
    /// On the module's connector: the board joins them, directly or through NVSwitch.
    Module,
}

/// What is known of a GPU part by its device id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Short product name.
    pub name: &'static str,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// How NVLinks leave the part.
    pub form: NvLinkForm,
    /// NVLinks at most; `None` where no source tells.
    pub links: Option<u32>,
    /// Nominal rate of one link in MB/s (1e6 bytes) per direction, as hwloc's matrix counts; 0 without links.
    pub link_mb_per_s: u32,
}

/// The part behind an NVIDIA device id; `None` when the id is not in the table.
pub fn part(identity: PciIdentity) -> Option<Part> {
    if identity.vendor != VENDOR_NVIDIA {
        return None;
    }
    use NvLinkForm::{Bridge, Module, None as Without};
    let (name, compute_capability, form, links, link_mb_per_s) = match identity.device {
        0x06d2 => ("Tesla M2050", (2, 0), Without, Some(0), 0),
        0x11ba => ("Quadro K4000", (3, 0), Without, Some(0), 0),
        0x15f8 => ("P100 PCIe", (6, 0), Without, Some(0), 0),
        0x15f9 => ("P100 SXM2", (6, 0), Module, Some(4), 20_000),
        0x1b81 => ("GeForce GTX 1070", (6, 1), Without, Some(0), 0),
        0x1db1 | 0x1db5 => ("V100 SXM2", (7, 0), Module, Some(6), 25_000),
        0x1db8 => ("V100 SXM3", (7, 0), Module, Some(6), 25_000),
        0x1db4 | 0x1db6 | 0x1df6 => ("V100 PCIe", (7, 0), Without, Some(0), 0),
        0x1e30 | 0x1e78 => ("Quadro RTX 8000/6000", (7, 5), Bridge, Some(2), 25_000),
        0x1eb8 => ("T4", (7, 5), Without, Some(0), 0),
        0x20b0 | 0x20b2 => ("A100 SXM4", (8, 0), Module, Some(12), 25_000),
        0x20f1 | 0x20b5 => ("A100 PCIe", (8, 0), Bridge, Some(12), 25_000),
        0x20bd | 0x20f3 => ("A800 SXM", (8, 0), Module, None, 25_000),
        0x20f5 | 0x20f6 => ("A800 PCIe", (8, 0), Bridge, None, 25_000),
        0x2236 | 0x2237 => ("A10", (8, 6), Without, Some(0), 0),
        0x2235 => ("A40", (8, 6), Bridge, Some(4), 14_063),
        0x2230 => ("RTX A6000", (8, 6), Bridge, Some(4), 14_063),
        0x2204 => ("GeForce RTX 3090", (8, 6), Bridge, Some(4), 14_063),
        0x2684 => ("GeForce RTX 4090", (8, 9), Without, Some(0), 0),
        0x27b2 => ("RTX 4000 Ada", (8, 9), Without, Some(0), 0),
        0x27b8 => ("L4", (8, 9), Without, Some(0), 0),
        0x26b5 => ("L40", (8, 9), Without, Some(0), 0),
        0x26b9 => ("L40S", (8, 9), Without, Some(0), 0),
        0x26ba => ("L20", (8, 9), Without, Some(0), 0),
        0x26b1 => ("RTX 6000 Ada", (8, 9), Without, Some(0), 0),
        0x2330 => ("H100 SXM5", (9, 0), Module, Some(18), 25_000),
        0x2331 => ("H100 PCIe", (9, 0), Bridge, Some(18), 25_000),
        0x2324 => ("H800 SXM5", (9, 0), Module, Some(8), 25_000),
        0x2335 => ("H200 SXM", (9, 0), Module, Some(18), 25_000),
        0x2901 => ("B200", (10, 0), Module, Some(18), 50_000),
        0x31c2 => ("GB300", (10, 3), Module, Some(18), 50_000),
        0x2b85 => ("GeForce RTX 5090", (12, 0), Without, Some(0), 0),
        0x2bb1 | 0x2bb4 | 0x2bb5 => ("RTX PRO 6000 Blackwell", (12, 0), Without, Some(0), 0),
        _ => return None,
    };
    Some(Part {
        name,
        compute_capability,
        form,
        links,
        link_mb_per_s,
    })
}

/// The chip behind a bridge's ids, in words for a reader. Root ports are named by the CPU family that has them. For
/// labels only: nothing is decided by a root port's id.
pub fn chip_name(identity: PciIdentity) -> Option<&'static str> {
    let name = match (identity.vendor, identity.device) {
        (0x10b5, 0x8700..=0x87ff) => "Broadcom/PLX PEX 87xx (Gen3)",
        (0x10b5, 0x9700..=0x97ff) => "Broadcom/PLX PEX 97xx (Gen3)",
        (0x1000, 0xc010 | 0xc012) => "Broadcom PEX 880xx (Gen4)",
        (0x1000, 0xc030 | 0xc034) => "Broadcom PEX 890xx (Gen5)",
        (0x1000, 0xc040) => "Broadcom PEX 90xxx (Gen6)",
        (0x11f8, 0x8531..=0x8576) => "Microchip Switchtec (Gen3)",
        (0x11f8, 0x4000..=0x42ff) => "Microchip Switchtec (Gen4)",
        (0x11f8, 0x5000..=0x52ff) => "Microchip Switchtec (Gen5)",
        (0x11f8, 0x6000..=0x60ff) => "Microchip Switchtec (Gen6)",
        (0x1f18, 0x0001 | 0x0002) => "c-payne switch board (Gen4)",
        (0x1f18, 0x0101 | 0x0102) => "c-payne switch board (Gen5)",
        (0x15b3, 0x1976) => "NVIDIA ConnectX-6 internal bridge",
        (0x15b3, 0x1979) => "NVIDIA ConnectX-7 internal bridge",
        (0x15b3, 0x197b) => "NVIDIA BlueField-3 internal bridge",
        (0x15b3, 0x197c | 0x197d | 0x1024) => "NVIDIA ConnectX-8 internal switch",
        (0x15b3, 0x197e) => "NVIDIA ConnectX-9 internal switch",
        (0x1b21, 0x2806 | 0x2812 | 0x2824) => "ASMedia switch",
        (0x1912, 0x0013) => "Renesas SH7757 switch",
        (0x1bd4, 0x3004) => "Inspur switch",
        (0x1002, 0x14a0 | 0x14a1) => "AMD on-card bridge",
        (0x1d0f, 0x0200) => "Amazon virtual bridge",
        (0x1b36, 0x000c) => "QEMU root port",
        (0x104c, 0x8232) => "TI XIO3130 (as emulated by hypervisors)",
        (0x8086, 0x3408..=0x3411) => "Intel Westmere-era root port",
        (0x8086, 0x3c02..=0x3c0b) => "Intel Sandy Bridge-EP root port",
        (0x8086, 0x2f02..=0x2f0b) => "Intel Haswell-EP root port",
        (0x8086, 0x6f02..=0x6f0b) => "Intel Broadwell-EP root port",
        (0x8086, 0x2030..=0x2033) => "Intel Skylake/Cascade Lake root port",
        (0x8086, 0x347a..=0x347d) => "Intel Ice Lake-SP root port",
        (0x8086, 0x352a..=0x352d) => "Intel Gen5 root port",
        (0x8086, 0x0db0..=0x0db3 | 0x0db6..=0x0db9) => "Intel Granite Rapids root port",
        (0x8086, 0x201d | 0x28c0 | 0x09ab | 0x467f | 0xa77f) => "Intel VMD",
        (0x1022, 0x1453 | 0x1454) => "AMD Zen 1 root port",
        (0x1022, 0x1483 | 0x1484) => "AMD Rome/Milan root port",
        (0x1022, 0x14a5 | 0x14a7 | 0x14aa | 0x14ab) => "AMD Genoa root port",
        (0x1022, 0x153e | 0x1554 | 0x1555) => "AMD Turin root port",
        (0x1022, 0x14db) => "AMD Ryzen root port",
        (0x1014, 0x03dc) => "POWER8 root port",
        (0x1014, 0x04c1) => "POWER9 root port",
        (0x10de, 0x22ce | 0x22d0 | 0x22d1) => "NVIDIA Grace-family root port",
        _ => return None,
    };
    Some(name)
}

/// Whether a bridge is made by a hypervisor: its speed and its place say nothing of the hardware.
pub fn is_emulated(identity: PciIdentity) -> bool {
    matches!(
        (identity.vendor, identity.device),
        (0x1b36, 0x000c) | (0x104c, 0x8232) | (0x1d0f, 0x0200)
    )
}

/// Whether a function is an NVSwitch by its ids. From B200 on, switches are no NVIDIA PCI function.
pub fn is_nvswitch(identity: PciIdentity) -> bool {
    identity.vendor == VENDOR_NVIDIA && identity.class == 0x0680
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(vendor: u16, device: u16) -> PciIdentity {
        PciIdentity {
            vendor,
            device,
            class: 0x0604,
        }
    }

    #[test]
    fn ids_count_only_with_their_vendor() {
        assert_eq!(
            chip_name(ids(0x1000, 0xc030)),
            Some("Broadcom PEX 890xx (Gen5)")
        );
        assert_eq!(chip_name(ids(0x10de, 0xc030)), None);
        assert!(is_emulated(ids(0x1b36, 0x000c)));
        assert!(!is_emulated(ids(0x1000, 0x000c)));
        assert_eq!(part(ids(0x10de, 0x2330)).unwrap().links, Some(18));
        assert_eq!(part(ids(0x8086, 0x2330)), None);
    }
}
