//! The roster of causes. A cause is one file here, its line below, and `docs/causes/ID.md`.

use super::weigh::Cause;

mod acs_redirect;
mod driver_policy;
mod gpu_itself;
mod host_staging_broken;
mod hypervisor_no_peer_delivery;
mod iommu_translation;
mod link_downtrained;
mod root_complex_no_route;
mod slow_pair;

/// All causes, in the order in which a person would ask.
pub const ROSTER: &[&Cause] = &[
    &gpu_itself::CAUSE,
    &host_staging_broken::CAUSE,
    &hypervisor_no_peer_delivery::CAUSE,
    &iommu_translation::CAUSE,
    &acs_redirect::CAUSE,
    &root_complex_no_route::CAUSE,
    &driver_policy::CAUSE,
    &link_downtrained::CAUSE,
    &slow_pair::CAUSE,
];
