//! ACS sends peer requests up to the root complex (decision rows D2 and D13). A port whose control word could not be read is
//! unknown, never clear; clear ports clear ACS and leave the host as broken as it is; source validation alone is no fault.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::Cause,
};
use crate::model::{
    acs_line::AcsLine,
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
    pci::PciAddress,
    topology::PathType,
};
use std::collections::BTreeSet;

pub(crate) const CAUSE: Cause = Cause {
    id: "acs-redirect",
    title: "ACS redirects peer traffic to the root complex",
    judge,
    wants: Some(|e| CAUSE.control_arms(e.path_suspects())),
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let broken = match CAUSE.on_bare_metal(
        e,
        "in a virtual machine ACS belongs to the host and must stay on there; the guest's ports are emulated",
    ) {
        Ok(broken) => broken,
        Err(instead) => return vec![*instead],
    };
    if broken.is_empty() {
        return vec![slow_switch(e).unwrap_or_else(|| {
            CAUSE.says(
                Judgement::NotApplicable,
                "no pair is broken in a way that ACS explains",
            )
        })];
    }
    let line = acs_line(e);
    let (mut held, mut clear, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let mut told = Vec::new();
    for pair in broken {
        let (redirecting, unread) = e.acs_between(pair);
        if !redirecting.is_empty() {
            held.push(pair);
        } else if unread.iter().any(|p| line.asks(*p).is_some_and(|a| a.0)) {
            told.push(pair);
        } else if !unread.is_empty() || e.bridges_between(pair).is_empty() {
            unknown.push(pair);
        } else {
            clear.push(pair);
        }
    }
    let mut findings = Vec::new();
    if !held.is_empty() {
        findings.push(indict(e, held));
    }
    if !told.is_empty() {
        findings.push(lean(e, told));
    }
    if !unknown.is_empty() {
        let mut finding = CAUSE.says(
            Judgement::CannotTell,
            "the ACS control word of ports between these GPUs was not read: config space past 64 bytes needs root",
        );
        finding.evidence = asked(&line, &ports_between(e, &unknown));
        finding.next_test = Some("sudo peerproof qualify".into());
        finding.pairs = unknown;
        findings.push(finding);
    }
    if !clear.is_empty() {
        let mut finding = CAUSE.says(
            Judgement::Cleared,
            "ACS redirects on no port between these GPUs, and they are broken all the same",
        );
        finding.evidence = words(e, &clear, |_| true);
        finding.evidence.extend(overridden(&line));
        finding.pairs = clear;
        findings.push(finding);
    }
    findings
}

fn acs_line(e: &Evidence) -> AcsLine {
    let line = e.snapshot.host.cmdline.known();
    line.map(|line| AcsLine::of(line)).unwrap_or_default()
}

fn ports_between(e: &Evidence, pairs: &[OrderedPair]) -> BTreeSet<PciAddress> {
    pairs.iter().flat_map(|p| e.bridges_between(*p)).collect()
}

/// What the command line asks of these ports. It was obeyed at boot or not: the control words say.
fn asked(line: &AcsLine, ports: &BTreeSet<PciAddress>) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for (on, what) in [
        (false, "asks the kernel to switch their redirects off"),
        (true, "asks the kernel to switch their redirects on"),
    ] {
        let named: Vec<String> = ports
            .iter()
            .filter(|p| line.asks(**p).is_some_and(|a| a.0 == on))
            .map(ToString::to_string)
            .collect();
        if !named.is_empty() {
            said.push(format!("{}: /proc/cmdline {what}", named.join(", ")));
        }
    }
    said.extend(overridden(line));
    said
}

/// A word that is taken for one about ACS.
fn overridden(line: &AcsLine) -> Option<String> {
    let word = line.overridden.as_ref()?;
    Some(format!(
        "/proc/cmdline: {word} changes IOMMU groups and no control word"
    ))
}

/// No control word was read, and the command line sets redirects.
fn lean(e: &Evidence, pairs: Vec<OrderedPair>) -> Finding {
    let line = acs_line(e);
    let ports: BTreeSet<PciAddress> = ports_between(e, &pairs)
        .into_iter()
        .filter(|p| line.asks(*p).is_some_and(|a| a.0))
        .collect();
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        Confidence::Possible,
        format!(
            "direct copies of {} are wrong, and pci=config_acs on the kernel command line asks for redirects on ports between these GPUs; their control words were not read",
            name_pairs(&pairs)
        ),
    );
    finding.evidence = asked(&line, &ports);
    finding.fix = fixes(&ports);
    finding.next_test = Some("sudo peerproof qualify".into());
    finding.pairs = pairs;
    finding
}

fn redirecting_ports(e: &Evidence, pairs: &[OrderedPair]) -> BTreeSet<PciAddress> {
    pairs.iter().flat_map(|p| e.acs_between(*p).0).collect()
}

fn words(e: &Evidence, pairs: &[OrderedPair], keep: impl Fn(PciAddress) -> bool) -> Vec<String> {
    const SHOWN: usize = 12;
    ports_between(e, pairs)
        .into_iter()
        .filter(|a| keep(*a))
        .take(SHOWN)
        .filter_map(|a| {
            let acs = e.snapshot.bridge(a)?.acs.known()?;
            let bits = acs.bits();
            let bits = if bits.is_empty() {
                "clear".to_string()
            } else {
                bits.join(" ")
            };
            Some(format!("{a}: ACS control {:#06x} ({bits})", acs.control))
        })
        .collect()
}

/// ATS beside ACS: translated requests pass a port directly only where DirectTrans is on as well.
fn translations(e: &Evidence) -> Option<String> {
    let on: Vec<String> = e
        .gpus()
        .filter(|(_, g)| g.ats.known() == Some(&Some(true)))
        .map(|(i, _)| format!("GPU{i}"))
        .collect();
    (!on.is_empty()).then(|| {
        format!(
            "{}: ATS on; ports let translated requests through where DirectTrans is set",
            on.join(", ")
        )
    })
}

fn fixes(ports: &BTreeSet<PciAddress>) -> Vec<String> {
    let mut fixes: Vec<String> = ports
        .iter()
        .map(|p| format!("sudo setpci -s {p} ECAP_ACS+0x6.w=0000"))
        .collect();
    let list = ports
        .iter()
        .map(PciAddress::to_string)
        .collect::<Vec<_>>()
        .join(";");
    fixes.push(format!(
        "setpci lasts until the next boot or hot reset. To stay: kernel parameter 'pci=disable_acs_redir={list}' (semicolons, quoted in GRUB), or ACS off in the BIOS; then read the control words again with 'sudo peerproof map', because kernels from 6.11 until early 2025 may leave some of the bits set. 'pci=noacs' does not exist upstream"
    ));
    fixes.push("Warning: never on a host that passes devices to virtual machines: it merges IOMMU groups and removes the isolation between guests".to_string());
    fixes
}

/// The test that settles it, for a person to run: it changes the host.
fn cleared_and_repeated(ports: &BTreeSet<PciAddress>) -> String {
    let list: Vec<String> = ports.iter().map(PciAddress::to_string).collect();
    format!(
        "sudo sh -c 'for p in {}; do setpci -s $p ECAP_ACS+0x6.w=0000; done' && peerproof qualify",
        list.join(" ")
    )
}

fn indict(e: &Evidence, held: Vec<OrderedPair>) -> Finding {
    let translating = held.iter().any(|p| e.iommu_translates(*p) != Some(false));
    let ports = redirecting_ports(e, &held);
    let (confidence, tail) = if translating {
        (
            Confidence::Possible,
            "; the IOMMU behind the root translates or is not known, so clearing ACS may not be enough: settle iommu-translation first",
        )
    } else {
        (
            Confidence::Probable,
            "; no IOMMU translates, so the redirect itself is the suspect. Only clearing it and repeating the copies settles it",
        )
    };
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        confidence,
        format!(
            "direct copies of {} are wrong and ports between these GPUs redirect peer requests{tail}",
            name_pairs(&held)
        ),
    );
    finding.evidence = words(e, &held, |a| ports.contains(&a));
    finding.evidence.extend(translations(e));
    let line = acs_line(e);
    finding.evidence.extend(asked(&line, &ports));
    finding.fix = fixes(&ports);
    if ports.iter().any(|p| line.asks(*p).is_some_and(|a| !a.0)) {
        // Who reads the word on the line takes ACS for settled.
        finding.fix.insert(ports.len(), "setpci lasts until the next boot or hot reset. The command line asks for it at boot already, and the bits are set all the same: a kernel from 6.11 until early 2025, a reset of the port since, or a line that was changed since. To stay: a newer kernel, or ACS off in the BIOS".to_string());
        finding
            .fix
            .retain(|fix| !fix.contains("To stay: kernel parameter"));
    }
    finding.next_test = Some(cleared_and_repeated(&ports));
    finding.pairs = held;
    finding
}

/// Data is right, but a switch that could route between its own ports sends everything up to the root.
fn slow_switch(e: &Evidence) -> Option<Finding> {
    let pairs: Vec<OrderedPair> = e
        .snapshot
        .topology
        .pairs
        .iter()
        .filter(|(p, path)| {
            matches!(path.pcie, Some(PathType::Pix | PathType::Pxb)) && !e.has_nvlink(*p)
        })
        .map(|(p, _)| p)
        .filter(|p| !e.acs_between(*p).0.is_empty())
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let ports = redirecting_ports(e, &pairs);
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        Confidence::Probable,
        format!(
            "{} share a PCIe switch whose ports redirect peer requests to the root: right, but about half the rate was seen on such hosts",
            name_pairs(&pairs)
        ),
    );
    finding.evidence = words(e, &pairs, |a| ports.contains(&a));
    finding.fix = fixes(&ports);
    finding.next_test = Some(cleared_and_repeated(&ports));
    finding.pairs = pairs;
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::Host;
    use super::*;
    use crate::model::case::WrongKind;

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    fn zeroed() -> Host {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        host
    }

    #[test]
    fn redirecting_ports_without_translation_are_probable() {
        let mut host = zeroed();
        host.acs_all(Some(0x001d));
        host.iommu_all("identity");
        let found = judged(&host);
        assert_eq!(found[0].judgement, Judgement::Indicted);
        assert_eq!(found[0].confidence, Confidence::Probable);
        assert!(found[0].fix[0].starts_with("sudo setpci -s 0000:00:01.1"));
        assert!(found[0].fix.iter().any(|f| f.contains("virtual machines")));
        host.iommu_all("DMA");
        assert_eq!(judged(&host)[0].confidence, Confidence::Possible);
    }

    #[test]
    fn clear_and_still_broken_is_cleared() {
        assert_eq!(judged(&zeroed())[0].judgement, Judgement::Cleared);
    }

    #[test]
    fn source_validation_alone_is_no_redirect() {
        let mut host = zeroed();
        host.acs_all(Some(0x0001));
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
    }

    #[test]
    fn a_missing_permission_is_unknown_not_off() {
        let mut host = zeroed();
        host.acs_all(None);
        let found = judged(&host);
        assert_eq!(found[0].judgement, Judgement::CannotTell);
        assert_eq!(
            found[0].next_test.as_deref(),
            Some("sudo peerproof qualify")
        );
    }

    #[test]
    fn guests_and_healthy_hosts_are_left_alone() {
        let mut host = zeroed();
        host.acs_all(Some(0x001d));
        host.guest();
        assert_eq!(judged(&host)[0].judgement, Judgement::NotApplicable);
        let mut healthy = Host::root_complex(2);
        healthy.all_intact();
        healthy.acs_all(Some(0x001d));
        assert_eq!(judged(&healthy)[0].judgement, Judgement::NotApplicable);
    }

    #[test]
    fn a_redirecting_switch_with_right_data_is_worth_knowing_and_no_fault() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.acs_all(Some(0x001d));
        for p in OrderedPair::all(2) {
            host.snapshot.topology.pairs.get_mut(p).unwrap().pcie = Some(PathType::Pix);
        }
        let found = judged(&host);
        assert_eq!(found[0].judgement, Judgement::Indicted);
        assert_eq!(found[0].severity, Severity::Warning);
    }

    #[test]
    fn an_unread_hypervisor_flag_cannot_tell() {
        let mut host = zeroed();
        host.snapshot.host.hypervisor = crate::model::reading::Reading::default();
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }
}
