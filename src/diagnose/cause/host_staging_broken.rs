//! Bytes are wrong even through the host (decision row D9). Our own bounce through pinned memory uses no path between
//! GPUs: when it is wrong, IOMMU and ACS are not the place to look. The driver's own staged copy wrong beside a right
//! bounce is a fault of ordering in the driver, and a finding of its own.

use super::super::{
    evidence::{ControlArm, Evidence, name_pairs},
    weigh::{Cause, requalify},
};
use crate::model::{
    case::{BOUNCE, Rung, STAGED},
    finding::{Confidence, Finding, Judgement, Severity},
    pair::{GpuIndex, OrderedPair},
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CAUSE: Cause = Cause {
    id: "host-staging-broken",
    title: "copies through the host are wrong",
    judge,
    wants: Some(|e| {
        let broken: Vec<OrderedPair> = e.peer_failures().iter().copied().collect();
        CAUSE.control_arms(&broken)
    }),
};

/// What is wrong of what goes through the host for a pair, on whatever rung: under load both ways are tried again, and kernels
/// that exchange through host memory are no copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Our own copies, or several ways at once.
    Bounce,
    /// The driver's own copies beside right ones of ours.
    Driver,
    /// Kernels that read and write pinned memory, beside right copies.
    Kernels,
}

impl Wrong {
    fn of(mechanism: &str) -> Wrong {
        match mechanism {
            BOUNCE => Wrong::Bounce,
            kernels if kernels.starts_with("host-") => Wrong::Kernels,
            // Without peer access a direct copy is the driver's own copy through the host.
            _ => Wrong::Driver,
        }
    }
}

/// By pair. The driver's copies and our kernels have nothing in common but host memory and the link to it.
fn wrong_pairs(e: &Evidence) -> BTreeMap<OrderedPair, Wrong> {
    let mut found: BTreeMap<OrderedPair, Wrong> = BTreeMap::new();
    for (pair, mechanism) in e.host_failing() {
        let own = Wrong::of(mechanism);
        let known = found.entry(pair).or_insert(own);
        if *known != own {
            *known = Wrong::Bounce;
        }
    }
    found
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let condemned = e.condemned_gpus();
    let is_sound =
        |p: &OrderedPair| !condemned.contains(&p.source) && !condemned.contains(&p.destination);
    let pairs: Vec<OrderedPair> = e.pairs().into_iter().filter(is_sound).collect();
    let sound = || pairs.iter().copied();
    let found = wrong_pairs(e);
    let wrong = |kind: Wrong| -> Vec<OrderedPair> {
        sound().filter(|p| found.get(p) == Some(&kind)).collect()
    };
    let mut findings = Vec::new();
    let bounce = wrong(Wrong::Bounce);
    if !bounce.is_empty() {
        findings.push(bounce_wrong(e, bounce));
    }
    let driver = wrong(Wrong::Driver);
    if !driver.is_empty() {
        findings.push(driver_wrong(e, driver));
    }
    let kernels = wrong(Wrong::Kernels);
    if !kernels.is_empty() {
        findings.push(kernels_wrong(e, kernels));
    }
    if findings.is_empty() {
        findings.push(if sound().any(|p| e.control_arm(p) == ControlArm::Intact) {
            CAUSE.says(
                Judgement::Cleared,
                "every copy through the host that was tried is right",
            )
        } else if e.peer_failures().is_empty() {
            CAUSE.says(
                Judgement::NotApplicable,
                "no copy through the host was tried between two sound GPUs",
            )
        } else {
            let mut finding = CAUSE.says(
                Judgement::CannotTell,
                "direct copies are wrong and none through the host was tried",
            );
            let broken: Vec<OrderedPair> = e.peer_failures().iter().copied().collect();
            finding.next_test = Some(requalify(&broken, &["bounce", "staged"]));
            finding.pairs = broken;
            finding
        });
    }
    findings
}

fn evidence_lines(e: &Evidence, pairs: &[OrderedPair]) -> Vec<String> {
    const SHOWN: usize = 4;
    e.host_failures()
        .filter(|(pair, _)| pairs.contains(pair))
        .take(SHOWN)
        .map(|(_, r)| {
            format!(
                "{} {}{}: {}",
                r.case.subject,
                r.case.mechanism,
                match r.case.rung {
                    Rung::Loaded => ", under load",
                    _ => "",
                },
                r.outcome
                    .corruption()
                    .map_or_else(|| r.outcome.word().to_string(), |c| c.detail.clone())
            )
        })
        .collect()
}

fn bounce_wrong(e: &Evidence, pairs: Vec<OrderedPair>) -> Finding {
    let gpus: BTreeSet<GpuIndex> = pairs
        .iter()
        .flat_map(|p| [p.source, p.destination])
        .collect();
    let alone_right = gpus.iter().all(|g| {
        e.of_gpu(*g)
            .any(|r| r.case.rung == Rung::Alone && r.outcome.is_intact())
    });
    let common: Vec<String> = gpus
        .iter()
        .filter(|g| pairs.len() > 1 && pairs.iter().all(|p| p.touches(**g)))
        .map(|g| format!("GPU{g}"))
        .collect();
    let ours = e
        .host_failures()
        .any(|(pair, r)| r.case.mechanism == BOUNCE && pairs.first() == Some(&pair));
    let mut because = format!(
        "{} of {} through pinned host memory are wrong: host memory, a PCIe link or riser, or the driver, not the path between the GPUs",
        match ours {
            true => "our own copies",
            false => "copies and kernels",
        },
        name_pairs(&pairs)
    );
    if !common.is_empty() {
        because.push_str(&format!("; all of them touch {}", common.join(" and ")));
    }
    because.push_str(if alone_right {
        "; each GPU's own memory and host link were right when tried alone"
    } else {
        "; the GPUs were not all tried alone"
    });
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        if alone_right {
            Confidence::Established
        } else {
            Confidence::Probable
        },
        because,
    );
    finding.evidence = evidence_lines(e, &pairs);
    if let Some(lines) = e.log_lines(&["AER:", "PCIe Bus Error", "EDAC", "Machine check"]) {
        finding
            .evidence
            .extend(lines.iter().take(3).map(|l| format!("kernel log: {l}")));
    }
    finding.fix = vec![
        "serve nothing on these GPUs: no backend avoids the host link".to_string(),
        "reseat card and riser and look at AER and EDAC counters; test host memory. Leave IOMMU and ACS alone: they are not on this path".to_string(),
    ];
    finding.next_test = Some("sudo dmesg | grep -E 'AER|EDAC|Machine check|Xid'".into());
    finding.gpus = gpus.into_iter().collect();
    finding.pairs = pairs;
    finding
}

fn driver_wrong(e: &Evidence, pairs: Vec<OrderedPair>) -> Finding {
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        Confidence::Probable,
        format!(
            "the driver's own staged copies of {} are wrong while our copies through pinned memory are right: the driver's ordering or its staging buffer, not memory and not the fabric",
            name_pairs(&pairs)
        ),
    );
    finding.evidence = evidence_lines(e, &pairs);
    finding.fix = vec![
        "another driver branch; until then applications must stage by themselves (llama.cpp: build with GGML_CUDA_NO_PEER_COPY=ON)".to_string(),
    ];
    let both = |p: &OrderedPair| {
        let ran = |id: &str| {
            let mut fared = e.pair_fared(*p).iter();
            fared.any(|f| f.mechanism == id && f.answers.ran())
        };
        ran(BOUNCE) && ran(STAGED)
    };
    // Where both ways were tried, only another driver tells more.
    finding.next_test = Some(match pairs.iter().all(both) {
        true => "peerproof qualify (under another driver branch)".to_string(),
        false => requalify(&pairs, &["staged", "bounce"]),
    });
    finding.pairs = pairs;
    finding
}

fn kernels_wrong(e: &Evidence, pairs: Vec<OrderedPair>) -> Finding {
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        Confidence::Probable,
        format!(
            "kernels of {} that exchange through pinned host memory are wrong while copies through it are right: how these GPUs' kernels reach host memory (mapping, ordering, caches), not the path between the GPUs",
            name_pairs(&pairs)
        ),
    );
    finding.evidence = evidence_lines(e, &pairs);
    finding.fix = vec![
        "use no all-reduce through pinned host memory on these GPUs; NCCL's copies through shared memory are another way: 'peerproof recommend' says which backends that leaves".to_string(),
    ];
    finding.next_test = Some("sudo dmesg | grep -E 'AER|EDAC|Machine check|IOMMU|Xid'".into());
    finding.pairs = pairs;
    finding
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair, wrong};
    use super::*;
    use crate::model::case::{Load, Outcome, Subject, WrongKind};

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    #[test]
    fn a_wrong_bounce_is_not_the_fabric() {
        let mut host = Host::root_complex(3);
        host.all_intact();
        host.set_wrong(pair(0, 1), "bounce", WrongKind::Flipped);
        host.set_wrong(pair(2, 1), "bounce", WrongKind::Flipped);
        let found = judged(&host);
        assert_eq!(found[0].confidence, Confidence::Probable);
        assert!(found[0].because.contains("all of them touch GPU1"));
        assert!(found[0].fix[1].contains("Leave IOMMU and ACS alone"));
        for gpu in 0..3 {
            host.put(
                Subject::Gpu(GpuIndex(gpu)),
                "memory",
                Rung::Alone,
                Outcome::Intact,
            );
        }
        assert_eq!(judged(&host)[0].confidence, Confidence::Established);
    }

    #[test]
    fn only_the_drivers_staging_wrong_is_the_driver() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.set_wrong(pair(0, 1), "staged", WrongKind::Stale);
        let found = judged(&host);
        assert_eq!(found[0].pairs, [pair(0, 1)]);
        assert!(found[0].because.contains("the driver's own"));
    }

    #[test]
    fn kernels_and_copies_through_host_memory_are_told_apart() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.set_wrong(pair(0, 1), "host-exchange", WrongKind::Stale);
        let found = judged(&host);
        assert!(
            found[0]
                .because
                .contains("while copies through it are right"),
            "{}",
            found[0].because
        );
        // With the driver's copies wrong beside them it is what both have in common.
        host.set_wrong(pair(0, 1), "staged", WrongKind::Stale);
        let found = judged(&host);
        assert!(
            found[0]
                .because
                .contains("host memory, a PCIe link or riser"),
            "{}",
            found[0].because
        );
        // Under load alone, too.
        let mut loaded = Host::root_complex(2);
        loaded.all_intact();
        loaded.load(
            pair(0, 1),
            "staged",
            Load::AllPairs,
            wrong(WrongKind::Zeroed),
            0.0,
        );
        let found = judged(&loaded);
        assert_eq!(found[0].judgement, Judgement::Indicted);
        assert!(
            found[0].evidence[0].starts_with("0->1 staged, under load"),
            "{:?}",
            found[0].evidence
        );
        assert_eq!(
            found[0].next_test.as_deref(),
            Some("peerproof qualify (under another driver branch)")
        );
    }

    #[test]
    fn right_is_cleared_and_untried_cannot_tell() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
        host.records.retain(|r| r.case.rung != Rung::Staged);
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }
}
