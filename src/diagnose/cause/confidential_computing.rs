//! Confidential computing is on (decision row D30). Without a multi-GPU mode the driver gives no peer access, and pinning of
//! host memory is refused too, so NCCL's shared memory fails with it.

use super::super::{
    evidence::{Evidence, PeerClaim},
    weigh::Cause,
};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "confidential-computing",
    title: "confidential computing without a multi-GPU mode",
    judge,
    wants: None,
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let driver = &e.snapshot.driver;
    match driver.confidential_computing.known() {
        Some(true) if e.snapshot.gpus.len() > 1 => {}
        Some(true) => return vec![CAUSE.says(Judgement::NotApplicable, "fewer than two GPUs")],
        Some(false) => {
            return vec![CAUSE.says(Judgement::Cleared, "confidential computing is off")];
        }
        None => {
            return vec![CAUSE.says(
                Judgement::NotApplicable,
                "the driver does not answer whether confidential computing is on",
            )];
        }
    }
    let mode = driver.confidential_multi_gpu.known().map(String::as_str);
    if matches!(mode, Some("protected_pcie" | "nvle")) {
        return vec![CAUSE.says(
            Judgement::Cleared,
            "confidential computing is on with a multi-GPU mode",
        )];
    }
    if !e.peer_passes().is_empty() {
        return vec![CAUSE.says(
            Judgement::Cleared,
            "confidential computing is on, and direct transfers work",
        )];
    }
    let without = OrderedPair::all(e.snapshot.gpus.len() as u32)
        .any(|p| matches!(e.claim(p), PeerClaim::Refused(_)) || e.refused(p).is_some());
    let confidence = match (mode, without) {
        (Some("none"), true) => Confidence::Established,
        _ => Confidence::Probable,
    };
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        confidence,
        "the GPUs are in confidential mode without a multi-GPU mode: the driver gives no peer access, and registered host memory is refused as well, so NCCL has no transport between them",
    );
    finding.evidence = vec![format!(
        "NVML: confidential computing on, multi-GPU mode {}",
        mode.unwrap_or("not known")
    )];
    finding.fix = vec![
        "protected PCIe (Hopper) or NVLE (Blackwell) mode, for all GPUs and switches of the host, with the matching driver and firmware: NVIDIA's nvtrust repository has gpu-admin-tools for it".to_string(),
        "or one GPU per confidential guest, and no tensor parallelism".to_string(),
    ];
    finding.next_test = Some("nvidia-smi conf-compute -q".into());
    vec![finding]
}
