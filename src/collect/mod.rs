//! This host, or a file that tells of one, as a [`Snapshot`](crate::model::snapshot::Snapshot). Readers say what they
//! read and why not; only `topology` concludes, and it concludes the same way from live and from recorded facts.

pub mod chips;
mod deadline;
pub mod hwloc;
pub mod import;
pub mod kernel_log;
pub mod live;
pub mod nvml;
mod nvml_links;
pub mod observe;
pub mod pci_config;
pub mod processors;
pub mod raw;
pub mod session;
pub mod sysfs;
pub mod system;
pub mod topology;
