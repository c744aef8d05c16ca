//! A hypervisor that lets the guest believe in peer access and does not deliver the writes (decision row D4). The clique
//! capability asserts that peers work; it makes nothing work. The mirror is its sign: the writer sees its words through
//! the window, the owner does not.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{ASKED_PAIRS, Cause, PEERS_OFF, requalify},
};
use crate::model::{
    case::WrongKind,
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "hypervisor-no-peer-delivery",
    title: "the hypervisor does not deliver peer writes",
    judge,
    // The owner's look after the writer's own: the one test that tells a mirror.
    wants: Some(|e| match e.is_guest() {
        Some(true) => {
            let broken = e.fabric_failures();
            let mut cases = CAUSE.control_arms(broken);
            let first = broken.iter().take(ASKED_PAIRS);
            cases.extend(first.map(|p| CAUSE.wants(*p, "sm-store")));
            cases
        }
        _ => Vec::new(),
    }),
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let broken: Vec<OrderedPair> = e.fabric_failures().to_vec();
    match e.is_guest() {
        Some(false) => {
            return vec![CAUSE.says(Judgement::NotApplicable, "not a virtual machine")];
        }
        None if broken.is_empty() => {
            return vec![CAUSE.says(
                Judgement::NotApplicable,
                "no pair is broken in a way that a hypervisor explains",
            )];
        }
        None => {
            let mut finding = CAUSE.says(
                Judgement::CannotTell,
                "it was not read whether a hypervisor is present",
            );
            finding.next_test = Some("grep -c hypervisor /proc/cpuinfo".into());
            finding.pairs = broken;
            return vec![finding];
        }
        Some(true) => {}
    }
    let cliques = cliques(e);
    if broken.is_empty() {
        return vec![if e.peer_passes().iter().any(|p| !e.has_nvlink(*p)) {
            CAUSE.says(
                Judgement::Cleared,
                "a guest whose owners received every direct write over PCIe that was tried",
            )
        } else if cliques.is_empty() {
            CAUSE.says(
                Judgement::NotApplicable,
                "no pair uses peer access over PCIe in this guest",
            )
        } else {
            let mut finding = CAUSE.says(
                Judgement::CannotTell,
                "the hypervisor asserts peer access (clique capability), and no direct copy has been tried",
            );
            finding.evidence = cliques;
            finding.next_test = Some("peerproof qualify".into());
            finding
        }];
    }
    vec![indict(e, broken, cliques)]
}

fn cliques(e: &Evidence) -> Vec<String> {
    e.gpus()
        .filter_map(|(i, gpu)| match gpu.p2p_clique.known() {
            Some(Some(id)) => Some(format!(
                "GPU{i}: vendor capability 'P2P' with clique {id} in config space"
            )),
            _ => None,
        })
        .collect()
}

fn indict(e: &Evidence, broken: Vec<OrderedPair>, cliques: Vec<String>) -> Finding {
    let mirrored: Vec<OrderedPair> = broken
        .iter()
        .copied()
        .filter(|p| {
            e.peer_cases(*p).any(|r| {
                r.outcome.corruption().is_some_and(|c| {
                    c.kind == WrongKind::Mirrored || c.accessor_sees_right == Some(true)
                })
            })
        })
        .collect();
    let controlled = broken.iter().all(|p| e.control_arm_complete(*p));
    let confidence = if !mirrored.is_empty() && !cliques.is_empty() && controlled {
        Confidence::Established
    } else {
        Confidence::Probable
    };
    let mut because = format!(
        "this is a virtual machine and direct copies of {} do not reach their owners",
        name_pairs(&broken)
    );
    if !mirrored.is_empty() {
        because.push_str(&format!(
            "; the writer of {} reads its own words back through the window: a mirror",
            name_pairs(&mirrored)
        ));
    }
    if !cliques.is_empty() {
        because.push_str("; the clique capability asserts peer access that is not delivered");
    }
    let mut finding = CAUSE.indicts(Severity::Critical, confidence, because);
    finding.evidence = vec!["/proc/cpuinfo: hypervisor flag".to_string()];
    let host = &e.snapshot.host;
    if let (Some(vendor), Some(product)) = (host.dmi_vendor.known(), host.dmi_product.known()) {
        finding.evidence.push(format!("DMI: {vendor} {product}"));
    }
    finding.fix = vec![
        if cliques.is_empty() {
            "on the hypervisor: check whether x-nv-gpudirect-clique is set for these devices and remove it; peer access over PCIe in a cloud guest is unproven by default".to_string()
        } else {
            "on the hypervisor: remove x-nv-gpudirect-clique=N from the vfio-pci device lines of this guest and restart it".to_string()
        },
        format!("in the guest, until then: {PEERS_OFF}"),
        "Warning: do not set NCCL_P2P_USE_CUDA_MEMCPY, with it collectives finish with wrong results; and leave ACS on the host on: in a VM's host it is the isolation between guests".to_string(),
        "kernel parameters of the guest (iommu=pt, pci=disable_acs_redir) do not help".to_string(),
    ];
    let unread = e.gpus().any(|(_, g)| g.p2p_clique.known().is_none());
    if cliques.is_empty() && unread {
        finding.evidence.push(
            "clique capability: not read (config space past 64 bytes needs root)".to_string(),
        );
    }
    finding.evidence.extend(cliques);
    if let Some((_, evidence)) = super::driver_policy::asserted(e) {
        finding.evidence.push(format!(
            "{evidence} (asserts peer access, like the capability)"
        ));
    }
    let tried = |id: &str| {
        let mut cases = broken.iter().take(1).flat_map(|p| e.of_pair(*p));
        cases.any(|r| r.case.mechanism == id && r.outcome.ran())
    };
    let mechanisms = ["bounce", "staged", "sm-store"];
    finding.next_test = Some(if unread {
        "sudo peerproof qualify".to_string()
    } else if mechanisms.iter().all(|id| tried(id)) {
        // All that a guest can try was tried: what is left is seen on the host alone.
        "on the hypervisor: virsh dumpxml GUEST | grep -i clique (or the QEMU command line); without it, or on the bare host, 'peerproof qualify' again: a fault that is gone there is the hypervisor's".to_string()
    } else {
        requalify(&broken, &mechanisms)
    });
    finding.pairs = broken;
    finding
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::Host;
    use super::*;
    use crate::model::reading::{Absence, Reading};

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    fn mirror() -> Host {
        let mut host = Host::root_complex(2);
        host.guest();
        host.direct_wrong(WrongKind::Mirrored, |_| true);
        host
    }

    #[test]
    fn mirror_with_clique_is_established() {
        let mut host = mirror();
        for gpu in &mut host.snapshot.gpus {
            gpu.p2p_clique = Reading::Known(Some(1));
        }
        let found = judged(&host);
        assert_eq!(found[0].confidence, Confidence::Established);
        assert!(found[0].fix[0].contains("x-nv-gpudirect-clique"));
        assert!(found[0].evidence.iter().any(|l| l.contains("clique 1")));
    }

    #[test]
    fn without_the_capability_read_it_is_probable() {
        let mut host = mirror();
        for gpu in &mut host.snapshot.gpus {
            gpu.p2p_clique = Reading::Absent(Absence::NoPermission("config".into()));
        }
        let found = judged(&host);
        assert_eq!(found[0].judgement, Judgement::Indicted);
        assert_eq!(found[0].confidence, Confidence::Probable);
        assert_eq!(
            found[0].next_test.as_deref(),
            Some("sudo peerproof qualify")
        );
    }

    #[test]
    fn an_asserted_clique_that_nobody_tried_cannot_tell() {
        let mut host = Host::root_complex(2);
        host.guest();
        host.snapshot.gpus[0].p2p_clique = Reading::Known(Some(0));
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }

    #[test]
    fn bare_metal_healthy_guests_and_nvlink_are_left_alone() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        assert_eq!(judged(&host)[0].judgement, Judgement::NotApplicable);
        let mut healthy = Host::root_complex(2);
        healthy.guest();
        healthy.all_intact();
        assert_eq!(judged(&healthy)[0].judgement, Judgement::Cleared);
        let mut nvlink = Host::nvswitch(2);
        nvlink.guest();
        nvlink.all_intact();
        assert_eq!(judged(&nvlink)[0].judgement, Judgement::NotApplicable);
    }
}
