//! MIG is on (decision row D29): a slice has no peer access, neither over PCIe nor over NVLink. A choice, not a fault.

use super::super::{evidence::Evidence, weigh::Cause};
use crate::model::finding::{Confidence, Finding, Judgement, Severity};

pub(crate) const CAUSE: Cause = Cause {
    id: "mig-mode",
    title: "MIG is on",
    judge,
    wants: None,
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let (on, read): (Vec<_>, usize) = e.gpus().fold((Vec::new(), 0), |(mut on, read), (i, g)| {
        let known = g.mig_enabled.known();
        if known == Some(&true) {
            on.push(i);
        }
        (on, read + usize::from(known.is_some()))
    });
    if on.is_empty() {
        return vec![if read > 0 {
            CAUSE.says(Judgement::Cleared, "MIG is off on every GPU that has it")
        } else {
            CAUSE.says(Judgement::NotApplicable, "no GPU answers that it has MIG")
        }];
    }
    let names: Vec<String> = on.iter().map(|g| format!("GPU{g}")).collect();
    let mut finding = CAUSE.indicts(
        Severity::Info,
        Confidence::Established,
        format!(
            "{} {} in MIG mode: a slice has no peer access over PCIe or NVLink and no NVLS; NCCL has shared memory and the network only",
            names.join(", "),
            if on.len() == 1 { "is" } else { "are" }
        ),
    );
    finding.evidence = names
        .iter()
        .map(|n| format!("NVML: {n}: MIG enabled"))
        .collect();
    finding.fix = on
        .iter()
        .filter_map(|g| e.snapshot.gpu(*g)?.pci.known())
        .map(|pci| {
            format!(
                "sudo nvidia-smi -i {pci} -mig 0 (destroys the slices; no process may use the GPU)"
            )
        })
        .collect();
    if finding.fix.is_empty() {
        finding.fix.push("sudo nvidia-smi -mig 0".to_string());
    }
    finding.next_test =
        Some("nvidia-smi --query-gpu=pci.bus_id,mig.mode.current --format=csv".into());
    finding.gpus = on;
    vec![finding]
}
