//! The file of a recorded host: a base, what differs from it, and what must be said of it. Unknown words are errors.

use serde::Deserialize;
use std::collections::BTreeMap;

/// One host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostFile {
    /// Catalogue entries that it stands for; empty for healthy hosts and for rows without an entry.
    #[serde(default)]
    pub(crate) entries: Vec<String>,
    /// Rows of the decision table that it stands for.
    #[serde(default)]
    pub(crate) rows: Vec<String>,
    /// Where the facts come from.
    #[expect(dead_code, reason = "for readers of the file")]
    pub(crate) source: String,
    /// Always true: put together from a public text, not captured.
    pub(crate) synthesised: bool,
    /// Nothing may be held against it but information.
    #[serde(default)]
    pub(crate) healthy: bool,
    /// Count, name and shape.
    pub(crate) base: Base,
    /// Readings that differ from those of a sound bare-metal host.
    #[serde(default)]
    pub(crate) host: Readings,
    /// Outcomes that differ from "all intact", in order.
    #[serde(default)]
    pub(crate) outcome: Vec<OutcomeRule>,
    /// Claims that differ from `host.claims`.
    #[serde(default)]
    pub(crate) claim: Vec<ClaimRule>,
    /// GPUs that differ from the base.
    #[serde(default)]
    pub(crate) gpu: Vec<GpuRule>,
    /// What an observer saw, in order.
    #[serde(default)]
    pub(crate) look: Vec<Look>,
    /// What must be found; any other held finding is an error.
    #[serde(default)]
    pub(crate) expect: Vec<Expect>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Base {
    pub(crate) gpus: u32,
    pub(crate) name: String,
    /// "root-complex", "two-sockets", "switch-pairs", "switch-quads", "nvswitch", "nvlink-pairs", "guest".
    pub(crate) shape: String,
    #[serde(default = "memory_gib")]
    pub(crate) memory_gib: u64,
    /// `None`: as large as the memory.
    pub(crate) bar1_mib: Option<u64>,
    /// Nothing was tried.
    #[serde(default)]
    pub(crate) untried: bool,
    /// Mechanisms that were not tried.
    #[serde(default)]
    pub(crate) not_tried: Vec<String>,
}

fn memory_gib() -> u64 {
    24
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Readings {
    /// "yes", "no", "unread"; by shape when not given.
    pub(crate) hypervisor: Option<String>,
    pub(crate) dmi: Option<String>,
    /// "none", "identity", "DMA", "DMA-FQ", "unread".
    pub(crate) iommu: Option<String>,
    /// "ivhd0", "dmar0".
    pub(crate) iommu_class: Option<String>,
    /// Control word of every port; -1 = not read.
    pub(crate) acs: Option<i32>,
    pub(crate) claims: Option<String>,
    pub(crate) clique: Option<u32>,
    pub(crate) host_bridge: Option<String>,
    pub(crate) cmdline: Option<String>,
    #[serde(default)]
    pub(crate) kernel_log: Vec<String>,
    #[serde(default)]
    pub(crate) application_log: Vec<String>,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) params: BTreeMap<String, String>,
    pub(crate) driver: Option<String>,
    pub(crate) container: Option<String>,
    pub(crate) shm_mib: Option<u64>,
    pub(crate) yama: Option<u32>,
    pub(crate) seccomp: Option<u32>,
    pub(crate) capabilities: Option<u64>,
    pub(crate) confidential: Option<bool>,
    pub(crate) confidential_mode: Option<String>,
    pub(crate) hmm_disabled: Option<bool>,
    pub(crate) imex_channels: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutcomeRule {
    /// "all", "near", "far", or a list such as "0->1 1->0"; "GPU0 GPU1" for single GPUs.
    pub(crate) of: String,
    /// Mechanisms, or "copies", "kernels", "direct", "all".
    pub(crate) mechanisms: Vec<String>,
    /// "intact", a kind of wrong, "hang", "died", "refused:217", "fault:700", "not-applicable", "not-run".
    pub(crate) result: String,
    /// A rung other than the mechanism's own: these are added.
    pub(crate) rung: Option<String>,
    pub(crate) bytes: Option<u64>,
    #[serde(default)]
    pub(crate) offset: u64,
    /// Rate in GB/s.
    pub(crate) rate: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimRule {
    pub(crate) of: String,
    pub(crate) status: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GpuRule {
    pub(crate) gpus: Vec<u32>,
    pub(crate) mig: Option<bool>,
    /// "completed", ... and status.
    pub(crate) fabric: Option<String>,
    #[serde(default)]
    pub(crate) fabric_status: u32,
    #[serde(default)]
    pub(crate) clique: u32,
    /// Numbers of NVLinks that are down.
    pub(crate) links_down: Option<Vec<u32>>,
    /// Width and GT/s now.
    pub(crate) link_now: Option<(f64, u32)>,
    pub(crate) remap_failed: Option<bool>,
    /// Not shown by NVML.
    pub(crate) hidden: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Look {
    pub(crate) moment: String,
    #[serde(default)]
    pub(crate) replays: Vec<u64>,
    #[serde(default)]
    pub(crate) nvlink_errors: Vec<u64>,
    /// Corrected errors of the port above each GPU.
    #[serde(default)]
    pub(crate) ports: Vec<u64>,
    /// Width and GT/s of each link.
    #[serde(default)]
    pub(crate) links: Vec<(f64, u32)>,
}

/// What must be said.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) cause: String,
    pub(crate) judgement: Option<String>,
    pub(crate) severity: Option<String>,
    pub(crate) confidence: Option<String>,
    pub(crate) pairs: Option<usize>,
    pub(crate) gpus: Option<Vec<u32>>,
    /// Words that one line must hold.
    pub(crate) fix: Option<String>,
    pub(crate) evidence: Option<String>,
    pub(crate) because: Option<String>,
    pub(crate) next: Option<String>,
}
