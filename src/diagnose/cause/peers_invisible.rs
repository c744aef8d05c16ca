//! A rank cannot see its peers' GPUs (decision row D23): one GPU per container, or CUDA_VISIBLE_DEVICES set per rank. CUDA
//! IPC cannot name a device that the process does not have. A choice of one GPU for one process is no fault.

use super::super::{evidence::Evidence, weigh::Cause};
use crate::model::{
    case::{Outcome, Rung},
    finding::{Confidence, Finding, Judgement, Severity},
};

pub(crate) const CAUSE: Cause = Cause {
    id: "peers-invisible",
    title: "ranks do not see each other's GPUs",
    judge,
    wants: None,
};

/// CUDA_ERROR_INVALID_DEVICE.
const INVALID_DEVICE: u32 = 101;

fn judge(e: &Evidence) -> Vec<Finding> {
    let mut seen: Vec<String> = e
        .answered(&[INVALID_DEVICE])
        .filter(|r| r.case.rung >= Rung::Shared)
        .filter_map(|r| match &r.outcome {
            Outcome::Refused { api, code, .. } | Outcome::Faulted { api, code, .. } => {
                Some(format!(
                    "{} {}: {api} returned {code}",
                    r.case.subject, r.case.mechanism
                ))
            }
            _ => None,
        })
        .take(3)
        .collect();
    let said = e.said(|line| {
        line.contains("nvmlDeviceGetHandleByPciBusId") && line.contains("Not Found")
            || line.contains("cuMemImportFromShareableHandle") && line.contains("101")
    });
    seen.extend(said.into_iter().take(3));
    let narrowed: Vec<String> = e
        .snapshot
        .environment
        .iter()
        .filter(|(name, _)| {
            matches!(
                name.as_str(),
                "CUDA_VISIBLE_DEVICES" | "NVIDIA_VISIBLE_DEVICES"
            )
        })
        .filter(|(_, value)| !matches!(value.as_str(), "" | "all" | "void"))
        .map(|(name, value)| format!("environment: {name}={value}"))
        .collect();
    let hidden: Vec<_> = e
        .gpus()
        .filter(|(_, g)| g.pci.known().is_some() && g.nvml_index.absence().is_some())
        .filter(|_| {
            e.snapshot
                .gpus
                .iter()
                .any(|g| g.nvml_index.known().is_some())
        })
        .map(|(index, _)| index)
        .collect();
    if seen.is_empty() {
        return vec![CAUSE.says(
            Judgement::NotApplicable,
            "no process was refused a peer that it could not see",
        )];
    }
    let signals = !narrowed.is_empty() || !hidden.is_empty();
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        if signals {
            Confidence::Probable
        } else {
            Confidence::Possible
        },
        "a process was handed memory of a GPU that it does not see: CUDA IPC names a device by its place among the visible ones",
    );
    finding.evidence = seen;
    finding.evidence.extend(narrowed);
    if !hidden.is_empty() {
        let names: Vec<String> = hidden.iter().map(|g| format!("GPU{g}")).collect();
        finding.evidence.push(format!(
            "in /sys and not in NVML of this container: {}",
            names.join(", ")
        ));
    }
    if e.snapshot.driver.imex_channels.known() == Some(&0) {
        finding.evidence.push(
            "/dev/nvidia-caps-imex-channels: no channel (needed only across hosts)".to_string(),
        );
    }
    finding.fix = vec![
        "show all GPUs of the group to every rank (docker run --gpus all; the same CUDA_VISIBLE_DEVICES for all) and let each choose its own by cudaSetDevice / --local-rank".to_string(),
        "where one GPU per container must stay: NCCL_P2P_DISABLE=1 and NCCL_CUMEM_ENABLE=0, over a shared /dev/shm (--ipc=host)".to_string(),
    ];
    finding.next_test =
        Some("nvidia-smi -L (in each rank's container: the lists must be the same)".into());
    finding.gpus = hidden;
    vec![finding]
}
