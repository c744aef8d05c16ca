//! The root complex does not route peer writes between root ports or sockets (decision row D3). What remains when no
//! IOMMU translates and no port redirects. Near pairs that fail while far ones pass speak against it only where the far
//! ones used peer access at all.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{Cause, PEERS_OFF, requalify},
};
use crate::model::{
    case::{PeerAccess, Record, Rung},
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
    topology::PathType,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CAUSE: Cause = Cause {
    id: "root-complex-no-route",
    title: "the root complex does not route peer writes",
    judge,
    wants: Some(|e| CAUSE.control_arms(e.path_suspects())),
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let broken = match CAUSE.on_bare_metal(e, "a virtual machine hides the path between root ports")
    {
        Ok(broken) => broken,
        Err(instead) => return vec![*instead],
    };
    if broken.is_empty() {
        return vec![CAUSE.says(
            Judgement::NotApplicable,
            "no pair is broken in a way that a root complex explains",
        )];
    }
    let (crossing, local): (Vec<OrderedPair>, Vec<OrderedPair>) = broken
        .iter()
        .copied()
        .partition(|p| e.path_type(*p).is_some_and(|t| t >= PathType::Phb));
    if !local.is_empty() {
        return vec![if local.iter().any(|p| e.path_type(*p).is_none()) {
            CAUSE.says(
                Judgement::CannotTell,
                "the path type of broken pairs is not known",
            )
        } else {
            CAUSE.says(
                Judgement::Cleared,
                format!(
                    "{} share a switch and are broken too: their bytes need no root complex",
                    name_pairs(&local)
                ),
            )
        }];
    }
    let better: Option<&str> = if crossing
        .iter()
        .any(|p| e.iommu_translates(*p) == Some(true))
    {
        Some("an IOMMU translates for these pairs, or some of them: settle iommu-translation first")
    } else if crossing.iter().any(|p| e.iommu_translates(*p).is_none()) {
        Some("it is not known whether an IOMMU translates for these pairs")
    } else if crossing.iter().any(|p| !e.acs_between(*p).0.is_empty()) {
        Some("ports between some of these GPUs redirect: settle acs-redirect first")
    } else if crossing
        .iter()
        .any(|p| !e.acs_between(*p).1.is_empty() || e.bridges_between(*p).is_empty())
    {
        Some("the ACS control words on the path were not read (needs root)")
    } else {
        None
    };
    if let Some(reason) = better {
        let mut finding = CAUSE.says(Judgement::CannotTell, reason);
        finding.next_test = Some("sudo peerproof qualify".into());
        finding.pairs = crossing;
        return vec![finding];
    }
    vec![outvoted(e, &crossing).unwrap_or_else(|| indict(e, crossing))]
}

/// A root complex that routes most pairs of a path type does not explain the few that fail.
fn outvoted(e: &Evidence, crossing: &[OrderedPair]) -> Option<Finding> {
    let passes = right(e);
    let mut sentences = Vec::new();
    let kinds: BTreeSet<PathType> = crossing.iter().filter_map(|p| e.path_type(*p)).collect();
    for kind in kinds {
        let same = |p: &&OrderedPair| e.path_type(**p) == Some(kind) && !e.has_nvlink(**p);
        let (bad, good) = (
            crossing.iter().filter(same).count(),
            passes.iter().filter(same).count(),
        );
        if good <= bad {
            return None;
        }
        sentences.push(format!(
            "{good} ordered pairs of path {kind} are right and {bad} wrong, so the root complex routes"
        ));
    }
    let mut finding = CAUSE.says(Judgement::Cleared, sentences.join("; "));
    finding.pairs = crossing.to_vec();
    Some(finding)
}

/// Pairs whose bytes went directly and arrived, whatever was refused or left out beside: a refusal says nothing of routes.
fn right(e: &Evidence) -> Vec<OrderedPair> {
    let moved = |p: &OrderedPair| {
        let direct = |r: &&Record| {
            r.case.rung >= Rung::Copied
                && !matches!(r.peer_access, PeerAccess::Off | PeerAccess::NotApplicable)
        };
        e.of_pair(*p).any(|r| direct(&r) && r.outcome.is_intact())
            && !e.of_pair(*p).any(|r| r.outcome.is_failure())
    };
    let pairs: BTreeSet<OrderedPair> = e
        .records
        .iter()
        .filter_map(|r| r.case.subject.pair())
        .collect();
    pairs.into_iter().filter(moved).collect()
}

fn indict(e: &Evidence, crossing: Vec<OrderedPair>) -> Finding {
    let mut tally: BTreeMap<PathType, (usize, usize)> = BTreeMap::new();
    for pair in &crossing {
        if let Some(kind) = e.path_type(*pair) {
            tally.entry(kind).or_default().0 += 1;
        }
    }
    for pair in right(e) {
        if let Some(kind) = e.path_type(pair).filter(|_| !e.has_nvlink(pair)) {
            tally.entry(kind).or_default().1 += 1;
        }
    }
    // A clean cut: no path type both fails and passes, and something passes.
    let clean = tally.values().all(|(bad, good)| *bad == 0 || *good == 0)
        && tally.values().any(|(_, good)| *good > 0);
    let one_way = crossing.iter().all(|p| !crossing.contains(&p.reversed()));
    let mut because = format!(
        "{} cross root ports, no IOMMU translates, no port redirects, and direct copies are wrong",
        name_pairs(&crossing)
    );
    because.push_str(if clean {
        "; failing and passing pairs divide cleanly by path type"
    } else {
        "; BAR placement by the BIOS would look the same"
    });
    if one_way {
        because.push_str("; only one direction fails, which points at BAR placement of one side");
    }
    let confidence = if clean && crossing.iter().all(|p| e.control_arm_complete(*p)) {
        Confidence::Probable
    } else {
        Confidence::Possible
    };
    let mut finding = CAUSE.indicts(Severity::Critical, confidence, because);
    finding.evidence = tally
        .iter()
        .map(|(kind, (bad, good))| format!("{kind}: {bad} ordered pairs wrong, {good} right"))
        .collect();
    let level = if tally.get(&PathType::Phb).is_some_and(|(bad, _)| *bad > 0) {
        "PXB"
    } else {
        "PHB"
    };
    let asserted = super::driver_policy::asserted(e);
    if let Some((word, evidence)) = &asserted {
        finding.because.push_str(&format!(
            "; the driver offers peers here because {word} overrides what it knows of the chipset"
        ));
        finding.evidence.push(evidence.clone());
    }
    finding.fix = vec![
        format!(
            "no software makes the root complex route; keep NCCL off these pairs with NCCL_P2P_LEVEL={level}, or off all where the group must span them: {PEERS_OFF}"
        ),
        "in the BIOS: Above 4G Decoding and Re-Size BAR on, then test again; a newer BIOS may place BARs otherwise".to_string(),
    ];
    if let Some((word, _)) = asserted {
        finding.fix.push(format!(
            "take {word} out (NVreg_RegistryDwords in /etc/modprobe.d, 'sudo update-initramfs -u', reboot): where the driver then says CNS, it knew"
        ));
    }
    // The host path is settled first; then the one thing that looks like a missing route and can be changed.
    let again = requalify(&crossing, &["bounce", "staged", "ce-push", "ce-pull"]);
    finding.next_test = Some(if crossing.iter().all(|p| e.control_arm_complete(*p)) {
        format!(
            "in the BIOS: Above 4G Decoding and Re-Size BAR on; reboot; then {again}: still wrong, it is the root complex"
        )
    } else {
        again
    });
    finding.pairs = crossing;
    finding
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::Host;
    use super::*;
    use crate::model::case::WrongKind;

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    fn two_sockets() -> Host {
        let mut host = Host::root_complex(4);
        let far = |p: OrderedPair| (p.source.0 < 2) != (p.destination.0 < 2);
        host.direct_wrong(WrongKind::Dropped, far);
        for p in OrderedPair::all(4).filter(|p| far(*p)) {
            host.snapshot.topology.pairs.get_mut(p).unwrap().pcie = Some(PathType::Sys);
        }
        host
    }

    #[test]
    fn only_cross_socket_pairs_wrong_is_probable() {
        let found = judged(&two_sockets());
        assert_eq!(found[0].judgement, Judgement::Indicted);
        assert_eq!(found[0].confidence, Confidence::Probable);
        assert_eq!(found[0].pairs.len(), 8);
        assert!(found[0].fix[0].contains("NCCL_P2P_LEVEL=PHB"));
    }

    /// A refused handle or descriptor on a pair whose copies are right takes nothing from what the copies show.
    #[test]
    fn pairs_that_pass_are_counted_whatever_was_refused_beside() {
        let mut host = two_sockets();
        let near: Vec<OrderedPair> = OrderedPair::all(4)
            .filter(|p| (p.source.0 < 2) == (p.destination.0 < 2))
            .collect();
        for p in &near {
            let mut refused = host
                .records
                .iter()
                .find(|r| r.case.subject.pair() == Some(*p) && r.case.mechanism == "ce-push")
                .unwrap()
                .clone();
            refused.case.mechanism = "ipc-push".into();
            refused.case.rung = Rung::Shared;
            refused.outcome = crate::model::case::Outcome::Refused {
                api: "cuIpcGetMemHandle".into(),
                code: 801,
                name: "CUDA_ERROR_NOT_SUPPORTED".into(),
            };
            host.records.push(refused);
        }
        let found = &judged(&host)[0];
        assert!(
            found
                .evidence
                .iter()
                .any(|l| l == "PHB: 0 ordered pairs wrong, 4 right"),
            "{:?}",
            found.evidence
        );
        assert_eq!(found.confidence, Confidence::Probable);
        let next = found.next_test.as_ref().unwrap();
        assert!(
            next.contains("Re-Size BAR") && next.contains("peerproof qualify --pairs"),
            "{next}"
        );
    }

    #[test]
    fn other_suspects_come_first() {
        let mut host = two_sockets();
        host.iommu_all("DMA");
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
        let mut host = two_sockets();
        host.acs_all(None);
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }

    #[test]
    fn a_broken_switch_pair_clears_it_and_healthy_hosts_are_left_alone() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        for p in OrderedPair::all(2) {
            host.snapshot.topology.pairs.get_mut(p).unwrap().pcie = Some(PathType::Pix);
        }
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
        let mut healthy = Host::root_complex(2);
        healthy.all_intact();
        assert_eq!(judged(&healthy)[0].judgement, Judgement::NotApplicable);
    }

    #[test]
    fn an_unread_hypervisor_flag_cannot_tell() {
        let mut host = two_sockets();
        host.snapshot.host.hypervisor = crate::model::reading::Reading::default();
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }

    #[test]
    fn one_wrong_pair_among_many_right_ones_of_its_path_is_not_the_root_complex() {
        let mut host = Host::root_complex(4);
        let one = OrderedPair::new(2, 3).unwrap();
        host.direct_wrong(WrongKind::Zeroed, |p| p == one);
        let found = judged(&host);
        assert_eq!(found[0].judgement, Judgement::Cleared);
        assert_eq!(found[0].pairs, [one]);
        assert!(
            found[0]
                .because
                .contains("11 ordered pairs of path PHB are right and 1 wrong"),
            "{}",
            found[0].because
        );
    }
}
