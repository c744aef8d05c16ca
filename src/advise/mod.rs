//! From evidence and profiles to launch settings: which all-reduce backend, how large its workspace, which flags and
//! variables, each with its reason and its basis. Pure. Rules of engines are data (`profile`); what is here is how
//! evidence weighs on them: a failed pair switches every peer path off, and what was not proven is not built upon.

mod admission;
mod caveats;
mod choose;
mod conditions;
#[cfg(test)]
mod founding;
mod group;
pub mod launch;
mod measured;
mod p2p_cache;
mod ranks;
mod request;
mod settings;
mod sizing;
mod steps;
#[cfg(test)]
mod tests;
mod workspace;
mod worth;

use crate::profile::{Switch, SwitchKind};

pub use admission::{Admitted, admitted};
pub use choose::recommend;
pub use measured::put_measured;
pub use p2p_cache::{CacheError, p2p_cache};
pub use request::{AdviseError, ReductionTime, Request};
pub use sizing::vllm_largest_capture;
pub use steps::{Steps, steps};
pub use workspace::{pcie_ipc_workspace_bytes, trtllm_fusion_workspace_bytes};

/// A switch in words: "unset NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE=1", "--enforce-eager", "no --enable-symm-mem".
pub(crate) fn told(switch: &Switch) -> String {
    match (switch.kind, &switch.value) {
        (SwitchKind::Unset, _) => format!("unset {}", switch.name),
        (SwitchKind::Omit, _) => format!("no {}", switch.name),
        (SwitchKind::Flag, Some(value)) => format!("{} {value}", switch.name),
        (SwitchKind::Configuration, Some(value)) => format!("{}: {value}", switch.name),
        (_, Some(value)) => format!("{}={value}", switch.name),
        (_, None) => switch.name.clone(),
    }
}
