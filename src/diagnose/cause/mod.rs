//! The roster of causes. A cause is one file here, its line below, and `docs/causes/ID.md`.

use super::weigh::Cause;

mod acs_redirect;
mod allocation_not_shareable;
mod bar1_too_small;
mod confidential_computing;
mod driver_policy;
mod fabric_not_ready;
mod gpu_itself;
mod host_staging_broken;
mod hypervisor_no_peer_delivery;
mod iommu_translation;
mod ipc_refused;
mod kernel_access_broken;
mod kernel_access_staged;
mod link_downtrained;
mod link_errors;
mod mig_mode;
mod nvlink_degraded;
mod nvls_multicast;
mod one_way_pair;
mod peers_invisible;
mod pool_memory_broken;
mod posted_write_collapse;
mod root_complex_no_route;
mod shm_too_small;
mod slow_pair;

pub(super) use iommu_translation::line_words;
pub(super) use link_errors::{RESEAT, events, logged, meaning};

/// All causes, in the order in which a person would ask. Rows D1 to D30 of the decision table (facts: failures.md part 2)
/// stand in their headers; D20, errors 704 and 705, has none because it is no fault.
pub const ROSTER: &[&Cause] = &[
    // A GPU or its way to the host.
    &gpu_itself::CAUSE,
    &host_staging_broken::CAUSE,
    // The path between two GPUs.
    &hypervisor_no_peer_delivery::CAUSE,
    &iommu_translation::CAUSE,
    &acs_redirect::CAUSE,
    &root_complex_no_route::CAUSE,
    &bar1_too_small::CAUSE,
    &one_way_pair::CAUSE,
    &nvlink_degraded::CAUSE,
    &kernel_access_broken::CAUSE,
    &pool_memory_broken::CAUSE,
    // What the driver, the fabric and the mode of the GPUs allow.
    &driver_policy::CAUSE,
    &fabric_not_ready::CAUSE,
    &mig_mode::CAUSE,
    &confidential_computing::CAUSE,
    // Processes and containers.
    &ipc_refused::CAUSE,
    &peers_invisible::CAUSE,
    &allocation_not_shareable::CAUSE,
    &shm_too_small::CAUSE,
    &nvls_multicast::CAUSE,
    // Right and slow.
    &link_downtrained::CAUSE,
    &link_errors::CAUSE,
    &kernel_access_staged::CAUSE,
    &posted_write_collapse::CAUSE,
    &slow_pair::CAUSE,
];
