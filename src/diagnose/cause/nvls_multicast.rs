//! NVLS, NCCL's multicast through NVSwitch, cannot be set up (decision row D14): groups of more than two GPUs hang while
//! pairs are right. None of our transfers uses multicast, so only an application's log can indict it.

use super::super::{evidence::Evidence, weigh::Cause};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    topology::FabricClass,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "nvls-multicast",
    title: "NVLS multicast cannot be set up",
    judge,
    wants: None,
};

fn judge(e: &Evidence) -> Vec<Finding> {
    // A log of a run that works has NVLS lines, too: only a failure counts, or an NVLS line that is the log's last.
    let names = |line: &str| line.contains("NVLS") || line.contains("ulticast");
    let last = e.snapshot.application_log.last().map(|l| l.text.as_str());
    let said = e.said(|line| {
        let failed = ["WARN", "failed", "Failed", "Cuda failure", "CUDA failure"];
        names(line) && (failed.iter().any(|w| line.contains(w)) || last == Some(line))
    });
    if said.is_empty() {
        return vec![CAUSE.says(
            Judgement::NotApplicable,
            "no log of NCCL was given that speaks of NVLS, and nothing here uses it",
        )];
    }
    if e.snapshot.gpus.len() < 3 && e.snapshot.topology.class != FabricClass::Nvswitch {
        return vec![CAUSE.says(
            Judgement::NotApplicable,
            "NVLS is used by groups of more than two GPUs behind NVSwitch",
        )];
    }
    let pairs_right = !e.peer_passes().is_empty() && e.peer_failures().is_empty();
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        if pairs_right { Confidence::Probable } else { Confidence::Possible },
        if pairs_right {
            "NCCL's log stops at the NVLS set-up, and every pair is right by itself: the multicast object, not the links"
        } else {
            "NCCL's log stops at the NVLS set-up; the pairs were not proven by themselves"
        },
    );
    finding.evidence = said.into_iter().take(4).collect();
    if let Some(version) = e.snapshot.driver.version.known() {
        finding.evidence.push(format!("driver {version}"));
    }
    finding.fix = vec![
        "NCCL_NVLS_ENABLE=0 for the engine's processes".to_string(),
        "then a newer NCCL and driver; in containers --ipc=host and a large memlock limit (--ulimit memlock=-1)".to_string(),
    ];
    finding.next_test = Some(
        "NCCL_DEBUG=INFO NCCL_NVLS_ENABLE=0 (the same command: if it runs, it was NVLS)".into(),
    );
    vec![finding]
}
