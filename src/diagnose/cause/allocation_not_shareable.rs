//! Buffers of a kind that CUDA IPC cannot open (decision row D22): expandable segments, pools, virtual memory. The host is
//! sound; the allocator's setting is not. Only an application's own log shows it, because our buffers are plain ones.

use super::super::{evidence::Evidence, weigh::Cause};
use crate::model::finding::{Confidence, Finding, Judgement, Severity};

pub(crate) const CAUSE: Cause = Cause {
    id: "allocation-not-shareable",
    title: "the allocator's buffers cannot be shared between processes",
    judge,
    wants: None,
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let set: Vec<String> = e
        .snapshot
        .environment
        .iter()
        .filter(|(name, value)| {
            name.starts_with("PYTORCH_") && value.contains("expandable_segments:True")
        })
        .map(|(name, value)| format!("environment: {name}={value}"))
        .collect();
    let said = e.said(|line| {
        let lower = line.to_ascii_lowercase();
        lower.contains("invalid argument")
            && ["ipc", "custom_all_reduce", "register_buffer"]
                .iter()
                .any(|word| lower.contains(word))
            || lower.contains("pidfd_getfd") && !set.is_empty()
    });
    if said.is_empty() {
        return vec![if set.is_empty() {
            CAUSE.says(
                Judgement::NotApplicable,
                "no allocator setting and no log line speaks of it",
            )
        } else {
            let mut finding = CAUSE.says(
                Judgement::CannotTell,
                "expandable segments are on in this environment; buffers that ranks share must not be of that kind, and no log of an engine was given",
            );
            finding.evidence = set;
            finding
        }];
    }
    let confidence = if set.is_empty() {
        Confidence::Possible
    } else {
        Confidence::Probable
    };
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        confidence,
        "an engine could not open another rank's buffer: memory from expandable segments, pools or the virtual memory calls has no classic IPC handle",
    );
    finding.evidence = said.into_iter().take(3).chain(set).collect();
    finding.fix = vec![
        "start the engine with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False (newer PyTorch: PYTORCH_ALLOC_CONF), or with the variable unset".to_string(),
        "own code: allocate what is shared with cudaMalloc, outside the framework's pool".to_string(),
    ];
    finding.next_test = Some("env | grep -E 'PYTORCH_(CUDA_)?ALLOC_CONF'".into());
    vec![finding]
}
