//! This host, or a file, as a [`Snapshot`](crate::model::snapshot::Snapshot).

pub mod hwloc;
pub mod kernel_log;
pub mod live;
pub mod nvml;
mod nvml_links;
pub mod observe;
pub mod pci_config;
pub mod processors;
pub mod sysfs;
pub mod system;

/// Seam until the chip table of the import branch is merged.
mod chips {
    use crate::model::pci::PciIdentity;
    pub(super) fn chip_name(_: PciIdentity) -> Option<&'static str> {
        None
    }
    pub(super) fn is_emulated(identity: PciIdentity) -> bool {
        identity.vendor == 0x1b36
    }
}

/// Seam until the join of the import branch is merged.
mod topology {
    pub(super) fn join(_: &mut crate::model::snapshot::Snapshot) {}
}
