//! Only one direction of two GPUs is wrong, or offered (decision row D27): ACS or BAR placement on one side, or firmware
//! that maps one GPU out of the other's reach. A pair is used in both directions or not at all: engines that choose a
//! transport for each end misread each other.

use super::super::{
    evidence::{Evidence, PeerClaim, name_pairs},
    weigh::{ASKED_PAIRS, Cause, PEERS_OFF, requalify},
};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};
use std::collections::BTreeSet;

pub(crate) const CAUSE: Cause = Cause {
    id: "one-way-pair",
    title: "only one direction of a pair works",
    judge,
    wants: Some(|e| {
        let suspects = e.path_suspects();
        let unsplit = suspects.iter().filter(|p| {
            let back = p.reversed();
            !suspects.contains(&back) && !e.peer_passes().contains(&back)
        });
        let first = unsplit.take(ASKED_PAIRS);
        first
            .flat_map(|p| ["ce-push", "ce-pull"].map(|m| CAUSE.wants(p.reversed(), m)))
            .collect()
    }),
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let suspects = e.path_suspects();
    let wrong: Vec<OrderedPair> = suspects
        .iter()
        .copied()
        .filter(|p| e.peer_passes().contains(&p.reversed()))
        // Some mechanisms right in this direction: then it is not the direction.
        .filter(|p| !e.peer_cases(*p).any(|r| r.outcome.is_intact()))
        .filter(|p| tells(e, *p))
        .collect();
    let offered: Vec<OrderedPair> = OrderedPair::all(e.snapshot.gpus.len() as u32)
        .filter(|p| {
            matches!(e.claim(*p), PeerClaim::Refused(_)) && e.claim(p.reversed()) == PeerClaim::Ok
        })
        .collect();
    if wrong.is_empty() && offered.is_empty() {
        let failing = e.peer_failures().iter().copied();
        let unlike: Vec<OrderedPair> = failing
            .filter(|p| !e.peer_failures().contains(&p.reversed()))
            .collect();
        return vec![if !unlike.is_empty() {
            // It is no cause of theirs, so that it holds none of them.
            CAUSE.says(
                Judgement::CannotTell,
                format!(
                    "{} and not the other way round: what was tried does not tell whether it is the direction",
                    match unlike.len() {
                        1 => format!("{} fails", unlike[0]),
                        _ => format!("{} fail", name_pairs(&unlike)),
                    }
                ),
            )
        } else if e.peer_passes().is_empty() && suspects.is_empty() {
            CAUSE.says(
                Judgement::NotApplicable,
                "no pair uses peer access in either direction",
            )
        } else {
            CAUSE.says(
                Judgement::Cleared,
                "the two directions of every pair are alike",
            )
        }];
    }
    let mut findings = Vec::new();
    if !wrong.is_empty() {
        findings.push(one_way(e, wrong));
    }
    if !offered.is_empty() {
        let mut finding = CAUSE.indicts(
            Severity::Warning,
            Confidence::Established,
            format!(
                "the driver offers peer access against the direction of {} and not in it: code that asks once for both ends chooses wrongly",
                name_pairs(&offered)
            ),
        );
        finding.evidence = offered
            .iter()
            .take(4)
            .filter_map(|p| match e.claim(*p) {
                PeerClaim::Refused(status) => {
                    Some(format!("NVML: {p} {status}, {} OK", p.reversed()))
                }
                _ => None,
            })
            .collect();
        finding.fix = vec![format!(
            "for groups with these pairs: {PEERS_OFF}; a newer BIOS (Above 4G Decoding, Re-Size BAR) may place the devices otherwise"
        )];
        finding.next_test = Some("nvidia-smi topo -p2p r; nvidia-smi topo -p2p w".into());
        finding.pairs = offered;
        findings.push(finding);
    }
    findings
}

/// One mechanism that hung says little of a direction; wrong data does, and so do two mechanisms.
fn tells(e: &Evidence, pair: OrderedPair) -> bool {
    let failing = || e.peer_cases(pair).filter(|r| r.outcome.is_failure());
    let mechanisms: BTreeSet<&str> = failing().map(|r| r.case.mechanism.as_str()).collect();
    mechanisms.len() > 1 || failing().any(|r| r.outcome.corruption().is_some())
}

fn one_way(e: &Evidence, wrong: Vec<OrderedPair>) -> Finding {
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        Confidence::Possible,
        format!(
            "{} are wrong and the same two GPUs are right the other way: what both directions share (IOMMU domains, sockets, driver) explains it badly; ACS or BAR placement on one side would",
            name_pairs(&wrong)
        ),
    );
    let bars = wrong.iter().take(2).flat_map(|p| [p.source, p.destination]);
    finding.evidence = bars
        .filter_map(|g| {
            let gpu = e.snapshot.gpu(g)?;
            let pci = gpu.pci.known()?;
            let above = gpu.bridge_chain.known().and_then(|c| c.first())?;
            Some(format!("GPU{g} {pci} below port {above}"))
        })
        .collect();
    finding.evidence.insert(
        0,
        format!("wrong: {}; right: their reverse", name_pairs(&wrong)),
    );
    finding.fix = vec![
        format!("use the pair in neither direction; for groups with it: {PEERS_OFF}"),
        "compare both sides: 'sudo lspci -vvv' of each GPU and its ports (ACSCtl, Region 1, bridge windows); BIOS: Above 4G Decoding and Re-Size BAR on; then swap the two cards and see whether the fault moves".to_string(),
    ];
    let both: Vec<OrderedPair> = wrong.iter().flat_map(|p| [*p, p.reversed()]).collect();
    finding.next_test = Some(requalify(&both, &["staged", "ce-push", "ce-pull"]));
    finding.pairs = wrong;
    finding
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair};
    use super::*;
    use crate::model::case::{Outcome, WrongKind};

    fn judged(host: &Host) -> Finding {
        host.judge(judge).remove(0)
    }

    #[test]
    fn directions_that_differ_are_never_said_to_be_alike() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        assert_eq!(judged(&host).judgement, Judgement::Cleared);
        // One mechanism that hung.
        host.set(pair(0, 1), "sm-load", Outcome::TimedOut { after_ms: 9 });
        let hung = judged(&host);
        assert_eq!(hung.judgement, Judgement::CannotTell);
        assert!(hung.because.starts_with("0->1 fails"), "{}", hung.because);
        // The other direction was never tried.
        host.records
            .retain(|r| r.case.subject.pair() != Some(pair(1, 0)));
        assert_eq!(judged(&host).judgement, Judgement::CannotTell);
        // Over NVLink, where other causes are asked.
        let mut linked = Host::nvswitch(2);
        linked.direct_wrong(WrongKind::Zeroed, |p| p == pair(0, 1));
        assert_eq!(judged(&linked).judgement, Judgement::CannotTell);
        let mut both = Host::root_complex(2);
        both.direct_wrong(WrongKind::Zeroed, |_| true);
        assert_eq!(judged(&both).judgement, Judgement::Cleared);
    }
}
