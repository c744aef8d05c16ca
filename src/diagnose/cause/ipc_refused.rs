//! Two processes may not share GPU memory (decision row D12): a container's seccomp profile, Yama, a sandboxed kernel. No
//! data is wrong; engines whose ranks are processes hang or fall back. Closed gates alone are no finding: they are a
//! distribution's default, and classic CUDA IPC passes them.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{Cause, PEERS_OFF},
};
use crate::model::{
    case::{Outcome, Record, Rung},
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};
use std::collections::BTreeSet;

pub(crate) const CAUSE: Cause = Cause {
    id: "ipc-refused",
    title: "processes may not share GPU memory",
    judge,
    wants: None,
};

/// Bit of CAP_SYS_PTRACE in a capability mask (linux/capability.h).
const CAP_SYS_PTRACE: u32 = 19;

/// Calls that ask for peer access, on memory of whatever process.
const GRANTS: [&str; 3] = [
    "cuCtxEnablePeerAccess",
    "cuMemSetAccess",
    "cuMemPoolSetAccess",
];

fn judge(e: &Evidence) -> Vec<Finding> {
    let refused: Vec<&Record> = e
        .records
        .iter()
        .filter(|r| r.case.rung == Rung::Shared)
        .filter(|r| match &r.outcome {
            // Peer access that is not granted is none of sharing either.
            Outcome::Refused { api, .. } => !GRANTS.contains(&api.as_str()),
            // A fault of the transfer itself is none of sharing.
            Outcome::Faulted { api, .. } => {
                ["Ipc", "Import", "Export"].iter().any(|w| api.contains(w))
            }
            _ => false,
        })
        .collect();
    let said = e.said(is_refusal);
    let gates = gates(e);
    if refused.is_empty() && said.is_empty() {
        let shared = e
            .records
            .iter()
            .any(|r| r.case.rung == Rung::Shared && r.outcome.is_intact());
        return vec![if shared {
            CAUSE.says(
                Judgement::Cleared,
                "handles were made and opened wherever memory was to be shared between processes, and bytes crossed right by one at least",
            )
        } else if !gates.is_empty() && e.snapshot.gpus.len() > 1 {
            let mut finding = CAUSE.says(
                Judgement::CannotTell,
                "sharing memory between processes was not tried, and something here can forbid it",
            );
            finding.evidence = gates;
            finding.next_test = Some("peerproof qualify".into());
            finding
        } else {
            CAUSE.says(
                Judgement::NotApplicable,
                "sharing memory between processes was not tried, and nothing read here forbids it",
            )
        }];
    }
    let pairs: BTreeSet<OrderedPair> = refused
        .iter()
        .filter_map(|r| r.case.subject.pair())
        .collect();
    let pairs: Vec<OrderedPair> = pairs.into_iter().collect();
    // The refusal was seen; that a gate which is closed is the reason is the inference.
    let confidence = match (refused.is_empty(), gates.is_empty()) {
        (false, false) => Confidence::Established,
        (true, true) => Confidence::Possible,
        _ => Confidence::Probable,
    };
    let place = if pairs.is_empty() {
        "an application's log".to_string()
    } else {
        name_pairs(&pairs)
    };
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        confidence,
        format!(
            "sharing GPU memory between processes was refused ({place}); no data is wrong, but ranks that are processes hang at start or fall back"
        ),
    );
    const SHOWN: usize = 3;
    finding.evidence = refused
        .iter()
        .take(SHOWN)
        .filter_map(|r| match &r.outcome {
            Outcome::Refused { api, code, name } | Outcome::Faulted { api, code, name } => {
                Some(format!(
                    "{} {}: {api} returned {code} ({name})",
                    r.case.subject, r.case.mechanism
                ))
            }
            _ => None,
        })
        .collect();
    finding.evidence.extend(said.into_iter().take(SHOWN));
    let container = e.snapshot.host.container.known().cloned().flatten();
    finding.fix = match container.as_deref() {
        Some("gvisor") => vec![
            format!("gVisor does not pass on every call of the driver: a plain runtime (runc) for multi-GPU work, a newer runsc, or {PEERS_OFF}"),
        ],
        Some("kubernetes") => vec![
            "in the container's securityContext: capabilities.add [\"SYS_PTRACE\"]; or 'sysctl -w kernel.yama.ptrace_scope=0' on the node".to_string(),
        ],
        Some(_) => vec![
            "docker run --cap-add=SYS_PTRACE --ipc=host (podman: the same)".to_string(),
        ],
        None => vec![
            "sudo sysctl -w kernel.yama.ptrace_scope=0 (to stay: a line in /etc/sysctl.d/). Warning: processes of one user may then read each other".to_string(),
        ],
    };
    finding.fix.push(
        "until then: NCCL_CUMEM_ENABLE=0 lets NCCL use classic CUDA IPC; for PyTorch, PYTORCH_CUDA_ALLOC_CONF without expandable_segments".to_string(),
    );
    finding.evidence.extend(gates);
    finding.next_test = Some(
        "grep -E 'Seccomp:|CapEff' /proc/self/status; cat /proc/sys/kernel/yama/ptrace_scope"
            .into(),
    );
    finding.pairs = pairs;
    vec![finding]
}

/// What a process that asks for another's file descriptor is told.
fn is_refusal(line: &str) -> bool {
    let forbidden = line.contains("Operation not permitted") || line.contains("EPERM");
    (forbidden && (line.contains("pidfd") || line.contains("Ipc") || line.contains("IPC")))
        || line.contains("unknown control command 0x3d05")
}

/// What is read to forbid it.
fn gates(e: &Evidence) -> Vec<String> {
    let host = &e.snapshot.host;
    let mut gates = Vec::new();
    if host
        .container
        .known()
        .is_some_and(|c| c.as_deref() == Some("gvisor"))
    {
        gates.push("container: gVisor, a kernel of its own".to_string());
    }
    if host.wsl.known() == Some(&true) {
        gates.push("WSL: CUDA has no classic IPC there".to_string());
    }
    let may_trace = host
        .capabilities
        .known()
        .map(|mask| mask >> CAP_SYS_PTRACE & 1 == 1);
    let confined = host.container.known().is_some_and(Option::is_some);
    if may_trace == Some(false) && confined && host.seccomp.known() == Some(&2) {
        gates.push("/proc/self/status: seccomp filter, and no CAP_SYS_PTRACE".to_string());
    }
    if may_trace != Some(true)
        && let Some(scope) = host
            .ptrace_scope
            .known()
            .filter(|s| **s > 1 || (confined && **s == 1))
    {
        gates.push(format!("/proc/sys/kernel/yama/ptrace_scope: {scope}"));
    }
    gates
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair, refusal};
    use super::*;

    /// No setting of processes brings peer access.
    #[test]
    fn peer_access_that_is_refused_is_none_of_sharing() {
        let mut host = Host::root_complex(2);
        host.climb_all();
        host.set(pair(0, 1), "ipc-ce-push", refusal(217));
        let judged = |host: &Host| host.judge(judge).remove(0).judgement;
        assert_eq!(judged(&host), Judgement::Cleared);
        let mut opened = refusal(201);
        if let Outcome::Refused { api, .. } = &mut opened {
            *api = "cuIpcOpenMemHandle_v2".to_string();
        }
        host.set(pair(0, 1), "ipc-ce-push", opened);
        assert_eq!(judged(&host), Judgement::Indicted);
    }
}
