//! /dev/shm too small for NCCL (decision row D24): docker gives 64 MiB, and NCCL puts its segments there when peers cannot
//! reach each other directly. Where every pair has proven peer access little of it is needed.

use super::super::{
    evidence::{Evidence, PeerClaim},
    weigh::Cause,
};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "shm-too-small",
    title: "/dev/shm is too small for NCCL",
    judge,
    wants: None,
};

/// One segment of NCCL 2.x, in bytes (facts: failures.md F55).
const SEGMENT: u64 = 9_637_888;
/// Channels that a small host opens at least for a path through the host.
const CHANNELS: u64 = 4;

fn judge(e: &Evidence) -> Vec<Finding> {
    let said = e.said(|line| {
        line.contains("No space left on device")
            && ["shm", "fallocate", "segment"]
                .iter()
                .any(|w| line.contains(w))
    });
    let count = e.snapshot.gpus.len() as u64;
    let host = &e.snapshot.host;
    let (total, free) = (
        host.shm_bytes.known().copied(),
        host.shm_free_bytes.known().copied(),
    );
    if count < 2 && said.is_empty() {
        return vec![CAUSE.says(Judgement::NotApplicable, "fewer than two GPUs")];
    }
    let need = SEGMENT * CHANNELS * count;
    let room = free.or(total);
    let small = room.is_some_and(|bytes| bytes < need);
    if said.is_empty() && !small {
        return vec![match room {
            Some(_) => CAUSE.says(Judgement::Cleared, "/dev/shm has room for NCCL's segments"),
            None if !through_the_host(e) => CAUSE.says(
                Judgement::NotApplicable,
                "the size of /dev/shm was not read, and nothing here needs it",
            ),
            None => CAUSE.says(Judgement::CannotTell, "the size of /dev/shm was not read"),
        }];
    }
    if said.is_empty() && !through_the_host(e) {
        let mut finding = CAUSE.says(
            Judgement::Cleared,
            "/dev/shm is small here, and NCCL does not put its data there while every pair has peer access",
        );
        finding.evidence = sizes(total, free);
        return vec![finding];
    }
    // "No space left" of NCCL beside a full or small /dev/shm is its own proof.
    let confidence = if !said.is_empty() && small {
        Confidence::Established
    } else {
        Confidence::Probable
    };
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        confidence,
        format!(
            "NCCL goes through shared memory on this host and needs about {} MiB for {count} ranks (segments of {SEGMENT} bytes, {CHANNELS} channels): it fails with 'No space left on device' or 'unhandled system error'",
            need.div_ceil(1 << 20)
        ),
    );
    finding.evidence = said.into_iter().take(3).chain(sizes(total, free)).collect();
    let kind = host.container.known().cloned().flatten();
    finding.fix = vec![match kind.as_deref() {
        Some("kubernetes") => "mount an emptyDir with medium: Memory and sizeLimit: 1Gi (or more) at /dev/shm".to_string(),
        None => "sudo mount -o remount,size=2G /dev/shm; remove segments of crashed jobs (ls -l /dev/shm/nccl-*)".to_string(),
        Some(_) => "docker run --shm-size=1g (8 ranks and more: 2g), or --ipc=host".to_string(),
    }];
    finding
        .fix
        .push("keep NCCL_SHM_DISABLE unset: it is the path in use".to_string());
    finding.next_test = Some("df -h /dev/shm (in the engine's own container)".into());
    vec![finding]
}

fn sizes(total: Option<u64>, free: Option<u64>) -> Vec<String> {
    let mib = |bytes: u64| bytes >> 20;
    let line = match (total, free) {
        (Some(total), Some(free)) => {
            format!("/dev/shm: {} MiB, {} MiB free", mib(total), mib(free))
        }
        (Some(total), None) => format!("/dev/shm: {} MiB", mib(total)),
        _ => return Vec::new(),
    };
    vec![line]
}

/// Whether some pair has no peer access, by claim or by what was tried.
fn through_the_host(e: &Evidence) -> bool {
    OrderedPair::all(e.snapshot.gpus.len() as u32)
        .any(|p| matches!(e.claim(p), PeerClaim::Refused(_)) || e.refused(p).is_some())
        || !e.peer_failures().is_empty()
}
