//! A translating IOMMU on bare metal drops or misplaces peer writes (decision rows D1 and D13). Presence is no fault: identity
//! domains do not translate. In a guest the signals describe a virtual IOMMU and are not used.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{Cause, PEERS_OFF, kernel_parameter, requalify},
};
use crate::model::{
    case::Rung,
    finding::{Confidence, Finding, Judgement, Severity},
    iommu_line::IommuLine,
    pair::{GpuIndex, OrderedPair},
    reading::Reading,
    topology::PathType,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CAUSE: Cause = Cause {
    id: "iommu-translation",
    title: "the IOMMU translates peer traffic",
    judge,
    wants: Some(|e| CAUSE.control_arms(e.path_suspects())),
};

/// What shows the type of every domain.
const DOMAIN_TYPES: &str = "for f in /sys/kernel/iommu_groups/*/type; do echo $f $(cat $f); done";

const FAULT_MARKS: [&str; 3] = ["IO_PAGE_FAULT", "DMAR: [DMA", "NVRM: IOMMU mapping failed"];

fn judge(e: &Evidence) -> Vec<Finding> {
    let broken = match CAUSE.on_bare_metal(
        e,
        "a guest sees a virtual IOMMU; what it shows says nothing of the host's",
    ) {
        Ok(broken) => broken,
        Err(instead) => return vec![*instead],
    };
    if broken.is_empty() {
        return vec![nothing_broken(e)];
    }
    let side = |wanted: Option<bool>| -> Vec<OrderedPair> {
        broken
            .iter()
            .copied()
            .filter(|p| e.iommu_translates(*p) == wanted)
            .collect()
    };
    let (held, clear, mut unknown) = (side(Some(true)), side(Some(false)), side(None));
    let mut findings = Vec::new();
    if !unknown.is_empty() && e.iommu_line().leans_to_translation() {
        findings.push(lean(e, std::mem::take(&mut unknown)));
    }
    if !held.is_empty() {
        findings.push(indict(e, held));
    }
    if !unknown.is_empty() {
        let mut finding = CAUSE.says(
            Judgement::CannotTell,
            "the default domain type of these GPUs is not known; an absent kernel parameter says nothing, the default is a build choice",
        );
        finding.evidence = domains(e, &unknown);
        finding.next_test = Some(DOMAIN_TYPES.to_string());
        finding.pairs = unknown;
        findings.push(finding);
    }
    if !clear.is_empty() {
        let mut finding = CAUSE.says(
            Judgement::Cleared,
            "neither GPU of these pairs has a translating domain (identity, or no IOMMU), and they are broken all the same",
        );
        finding.evidence = domains(e, &clear);
        finding.pairs = clear;
        findings.push(finding);
    }
    findings
}

fn nothing_broken(e: &Evidence) -> Finding {
    let translating: Vec<GpuIndex> = e
        .gpus()
        .filter(|(_, g)| g.iommu.known().and_then(|i| i.translates()) == Some(true))
        .map(|(i, _)| i)
        .collect();
    if translating.is_empty() || e.snapshot.gpus.len() < 2 {
        return CAUSE.says(
            Judgement::NotApplicable,
            "no pair is broken in a way that an IOMMU explains",
        );
    }
    let tried = e
        .records
        .iter()
        .any(|r| r.case.rung >= Rung::Copied && r.outcome.is_intact());
    let mut finding = if tried {
        CAUSE.says(
            Judgement::Cleared,
            "the IOMMU translates for some GPUs, and direct copies over the same path are right",
        )
    } else {
        let mut finding = CAUSE.says(
            Judgement::CannotTell,
            "the IOMMU translates for some GPUs, and no direct copy has been tried",
        );
        finding.next_test = Some("peerproof qualify".into());
        finding
    };
    finding.gpus = translating;
    finding
}

/// What the command line says of the default domain, and what it leaves to the kernel, in words.
pub(in crate::diagnose) fn line_words(line: &IommuLine) -> String {
    let mut text = match (&line.switch, &line.translated) {
        (Some((false, word)), _) => format!("{word} switches the IOMMU off"),
        (_, Some((false, word))) => format!("{word} passes addresses through untranslated"),
        (Some((true, on)), Some((true, word))) => {
            format!("{on} switches the IOMMU on and {word} lets it translate")
        }
        (_, Some((true, word))) => format!(
            "{word} lets the IOMMU translate wherever one is on: AMD's is by default where the firmware offers it, Intel's needs intel_iommu=on or a kernel built with CONFIG_INTEL_IOMMU_DEFAULT_ON"
        ),
        (Some((true, on)), None) => format!(
            "{on} switches the IOMMU on, and without iommu=pt it translates, unless the kernel was built with CONFIG_IOMMU_DEFAULT_PASSTHROUGH"
        ),
        (None, None) => {
            "whether the IOMMU is on and translates is left to the kernel's build and the firmware"
                .to_string()
        }
    };
    if let Some((strict, word)) = &line.strict {
        text.push_str(&format!(
            "; {word} is about {} invalidation where it translates, not whether it does",
            if *strict { "strict" } else { "lazy" }
        ));
    }
    for word in &line.ignored {
        text.push_str(&format!(
            "; {word} is no setting that the kernel knows and changes nothing"
        ));
    }
    text
}

/// No domain type was read, and the command line speaks for translation.
fn lean(e: &Evidence, pairs: Vec<OrderedPair>) -> Finding {
    let line = e.iommu_line();
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        Confidence::Possible,
        format!(
            "direct copies of {} are wrong on bare metal, and by the kernel command line the IOMMU probably translates: {}",
            name_pairs(&pairs),
            line_words(line)
        ),
    );
    finding.evidence = domains(e, &pairs);
    let words = line.words().join(" ");
    finding.evidence.push(format!("/proc/cmdline: {words}"));
    finding.fix = fixes(e);
    finding.next_test = Some(DOMAIN_TYPES.to_string());
    finding.pairs = pairs;
    finding
}

fn indict(e: &Evidence, held: Vec<OrderedPair>) -> Finding {
    let faults = e.log_lines(&FAULT_MARKS);
    let faulted = faults.as_ref().is_some_and(|lines| !lines.is_empty());
    // A switch can route between its own ports without the IOMMU seeing it; a pass there clears nothing.
    let passing_through_root: Vec<OrderedPair> = e
        .peer_passes()
        .iter()
        .copied()
        .filter(|p| !e.has_nvlink(*p) && e.iommu_translates(*p) == Some(true))
        .filter(|p| e.path_type(*p).is_some_and(|t| t >= PathType::Phb))
        .collect();
    let controlled = held.iter().all(|p| e.control_arm_complete(*p));
    let acs_open = held.iter().any(|p| {
        let (redirecting, unknown) = e.acs_between(*p);
        !redirecting.is_empty() || !unknown.is_empty() || e.bridges_between(*p).is_empty()
    });
    let acs_unread = held.iter().any(|p| !e.acs_between(*p).1.is_empty());
    let confidence = if !passing_through_root.is_empty() {
        Confidence::Possible
    } else if controlled && (!acs_open || faulted) {
        Confidence::Established
    } else {
        Confidence::Probable
    };
    let mut because = format!(
        "direct copies of {} are wrong on bare metal and the IOMMU translates for these GPUs",
        name_pairs(&held)
    );
    because.push_str(if controlled {
        "; the same bytes through the host are right, so it is the path between the GPUs"
    } else {
        "; copies through the host were not all tried, so the path is not yet split from memory and link"
    });
    if !passing_through_root.is_empty() {
        because.push_str(&format!(
            "; but {} pass the same translating root, which speaks against it",
            name_pairs(&passing_through_root)
        ));
    } else if controlled && acs_open && !faulted {
        because.push_str("; ACS on the path is on or unreadable and may share the blame");
    }
    let mut finding = CAUSE.indicts(Severity::Critical, confidence, because);
    finding.evidence = domains(e, &held);
    if let Some(line) = e.snapshot.host.cmdline.known() {
        let words: Vec<&str> = line
            .split_whitespace()
            .filter(|w| w.contains("iommu"))
            .collect();
        finding.evidence.push(if words.is_empty() {
            "/proc/cmdline: no iommu word, so the kernel's build default applies".to_string()
        } else {
            format!("/proc/cmdline: {}", words.join(" "))
        });
    }
    match &faults {
        Some(lines) if lines.is_empty() => finding
            .evidence
            .push("kernel log: no IOMMU fault (silence proves nothing)".to_string()),
        Some(lines) => finding
            .evidence
            .extend(lines.iter().take(3).map(|l| format!("kernel log: {l}"))),
        None => finding
            .evidence
            .push("kernel log: not readable".to_string()),
    }
    finding.fix = fixes(e);
    finding.next_test = Some(if !controlled {
        requalify(&held, &["bounce", "staged", "ce-push"])
    } else if faults.is_none() {
        "sudo dmesg | grep -E 'AMD-Vi|DMAR:|IOMMU'".to_string()
    } else if acs_unread {
        "sudo peerproof qualify".to_string()
    } else {
        "peerproof qualify (after a boot with iommu=pt)".to_string()
    });
    finding.pairs = held;
    finding
}

/// What is known of the domains, GPUs of one state in one line: "GPU0, GPU1: default domain DMA-FQ".
fn domains(e: &Evidence, pairs: &[OrderedPair]) -> Vec<String> {
    let gpus: BTreeSet<GpuIndex> = pairs
        .iter()
        .flat_map(|p| [p.source, p.destination])
        .collect();
    let mut states: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let line = e.iommu_line();
    let by_line = match line.words().is_empty() {
        true => String::new(),
        false => format!("; by the command line: {}", line_words(line)),
    };
    for index in gpus {
        let Some(gpu) = e.snapshot.gpu(index) else {
            continue;
        };
        let state = match &gpu.iommu {
            Reading::Known(group) => match &group.domain_type {
                Reading::Known(kind) => {
                    format!("default domain {kind} (/sys/kernel/iommu_groups/*/type)")
                }
                Reading::Absent(why) => format!("domain type not known: {why}{by_line}"),
            },
            Reading::Absent(why) => format!("no IOMMU group: {why}{by_line}"),
        };
        states.entry(state).or_default().push(index.0);
    }
    states
        .into_iter()
        .map(|(state, gpus)| format!("{}: {state}", runs(&gpus)))
        .collect()
}

/// Ascending GPUs, three and more in a row as one run: "GPU0 to GPU3, GPU6".
fn runs(gpus: &[u32]) -> String {
    let in_a_row = gpus.chunk_by(|a, b| a + 1 == *b);
    let words = in_a_row.map(|run| match run {
        [first, _, .., last] => format!("GPU{first} to GPU{last}"),
        few => few
            .iter()
            .map(|gpu| format!("GPU{gpu}"))
            .collect::<Vec<_>>()
            .join(", "),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn fixes(e: &Evidence) -> Vec<String> {
    let classes = e
        .snapshot
        .host
        .iommu_classes
        .known()
        .cloned()
        .unwrap_or_default();
    let line = e.iommu_line();
    let intel_word = |(_, word): &(bool, String)| word.starts_with("intel_iommu");
    let intel = classes.iter().any(|c| c.starts_with("dmar"))
        || classes.is_empty() && line.switch.as_ref().is_some_and(intel_word);
    let amd = classes.iter().any(|c| c.starts_with("ivhd")) || classes.is_empty() && line.amd;
    let pass_through = if intel {
        "intel_iommu=on iommu=pt"
    } else {
        "iommu=pt"
    };
    let off = match (intel, amd) {
        (true, false) => "intel_iommu=off",
        (false, true) => "amd_iommu=off",
        _ => "amd_iommu=off (AMD) or intel_iommu=off (Intel)",
    };
    let mut fixes = Vec::new();
    let already = e
        .snapshot
        .host
        .cmdline
        .known()
        .is_some_and(|l| l.split_whitespace().any(|w| w == "iommu=pt"));
    let translating = line
        .translated
        .as_ref()
        .filter(|(translates, _)| *translates);
    if already {
        fixes.push("iommu=pt is on the command line and the domain translates all the same: of iommu=pt, iommu=nopt and iommu.passthrough= the last word wins; remove the others".to_string());
    } else if let Some((_, word)) = translating {
        fixes.push(format!(
            "in place of {word}, {}",
            kernel_parameter(pass_through)
        ));
    } else {
        fixes.push(kernel_parameter(pass_through));
    }
    fixes.push(format!(
        "if it persists: {off}, or switch IOMMU / VT-d / AMD-Vi off in the BIOS. Warning: device pass-through to virtual machines stops working without an IOMMU"
    ));
    fixes.push(format!("until then: {PEERS_OFF}"));
    fixes
}

#[cfg(test)]
mod tests {
    use super::super::super::{
        sample::{Host, pair, wrong},
        weigh::findings,
    };
    use super::*;
    use crate::model::case::{Load, PeerAccess, WrongKind};

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    #[test]
    fn a_translating_host_with_zeroed_copies_is_indicted() {
        let mut host = Host::root_complex(4);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        host.iommu_all("DMA-FQ");
        let found = judged(&host);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].judgement, Judgement::Indicted);
        assert_eq!(found[0].confidence, Confidence::Established);
        assert_eq!(found[0].pairs.len(), 12);
        assert!(found[0].fix[0].contains("iommu=pt"));
    }

    #[test]
    fn it_stays_probable_without_the_control_arm_or_with_acs_unread() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Dropped, |_| true);
        host.iommu_all("DMA");
        host.acs_all(None);
        assert_eq!(judged(&host)[0].confidence, Confidence::Probable);
        host.acs_all(Some(0));
        host.records.retain(|r| r.case.mechanism != "staged");
        let found = judged(&host);
        assert_eq!(found[0].confidence, Confidence::Probable);
        assert!(found[0].next_test.as_ref().unwrap().contains("staged"));
    }

    #[test]
    fn a_fault_in_the_kernel_log_settles_it() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Dropped, |_| true);
        host.iommu_all("DMA");
        host.acs_all(None);
        host.snapshot.host.kernel_log = Reading::Known(vec![
            "AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1 address=0x2 flags=0x20]".into(),
        ]);
        assert_eq!(judged(&host)[0].confidence, Confidence::Established);
    }

    #[test]
    fn identity_is_cleared_and_still_broken() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        host.iommu_all("identity");
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
    }

    #[test]
    fn an_unread_domain_cannot_tell() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        host.snapshot.host.iommu_classes = Reading::default();
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }

    /// Nobody read a domain type: what the command line decides is a reading, and what it leaves open is at most possible.
    #[test]
    fn the_command_line_stands_in_for_domain_types_that_were_not_read() {
        let with = |line: &str| {
            let mut host = Host::root_complex(2);
            host.direct_wrong(WrongKind::Zeroed, |_| true);
            host.snapshot.host.iommu_classes = Reading::default();
            host.snapshot.host.cmdline = Reading::Known(format!("quiet {line}"));
            judged(&host).remove(0)
        };
        for (line, judgement, confidence) in [
            ("", Judgement::CannotTell, Confidence::Possible),
            (
                "iommu.strict=1",
                Judgement::CannotTell,
                Confidence::Possible,
            ),
            ("intel_iommu=on", Judgement::Indicted, Confidence::Possible),
            ("iommu=nopt", Judgement::Indicted, Confidence::Possible),
            (
                "amd_iommu=on iommu.passthrough=0",
                Judgement::Indicted,
                Confidence::Possible,
            ),
            (
                "intel_iommu=on iommu=nopt",
                Judgement::Indicted,
                Confidence::Established,
            ),
            (
                "intel_iommu=on iommu=pt",
                Judgement::Cleared,
                Confidence::Possible,
            ),
            ("amd_iommu=off", Judgement::Cleared, Confidence::Possible),
        ] {
            let found = with(line);
            assert_eq!(
                (found.judgement, found.confidence),
                (judgement, confidence),
                "{line}: {found:?}"
            );
        }
        let found = with("iommu=nopt");
        assert!(
            found.fix[0].starts_with("in place of iommu=nopt, add 'iommu=pt'"),
            "{:?}",
            found.fix
        );
        assert!(
            found.because.contains("Intel's needs intel_iommu=on"),
            "{}",
            found.because
        );
    }

    /// Under load the driver's copies through the host stand on rung 7, and are no peer traffic there either.
    #[test]
    fn wrong_copies_through_the_host_under_load_accuse_no_path() {
        let mut host = Host::root_complex(2);
        host.refused();
        host.iommu_all("DMA-FQ");
        host.set_wrong(pair(0, 1), "staged", WrongKind::Zeroed);
        host.load(
            pair(0, 1),
            "staged",
            Load::AllPairs,
            wrong(WrongKind::Zeroed),
            0.0,
        );
        host.records.last_mut().unwrap().peer_access = PeerAccess::Off;
        assert!(
            judged(&host)
                .iter()
                .all(|f| f.judgement != Judgement::Indicted)
        );
        assert!(host.judge(|e| e.peer_failures().is_empty()));
        let all = host.judge(findings);
        let held: Vec<&str> = all
            .iter()
            .filter(|f| f.judgement == Judgement::Indicted && f.severity == Severity::Critical)
            .map(|f| f.cause.as_str())
            .collect();
        assert_eq!(held, ["host-staging-broken"]);
    }

    #[test]
    fn guests_bounces_and_healthy_hosts_are_left_alone() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        assert_eq!(judged(&host)[0].judgement, Judgement::NotApplicable);
        host.iommu_all("DMA");
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
        host.direct_wrong(WrongKind::Zeroed, |_| true);
        host.set_wrong(pair(0, 1), "bounce", WrongKind::Flipped);
        host.set_wrong(pair(1, 0), "bounce", WrongKind::Flipped);
        assert!(
            judged(&host)
                .iter()
                .all(|f| f.judgement != Judgement::Indicted)
        );
        let mut guest = Host::root_complex(2);
        guest.direct_wrong(WrongKind::Zeroed, |_| true);
        guest.iommu_all("DMA");
        guest.guest();
        assert_eq!(judged(&guest)[0].judgement, Judgement::NotApplicable);
    }

    #[test]
    fn flipped_bits_are_not_an_iommu() {
        let mut host = Host::root_complex(2);
        host.direct_wrong(WrongKind::Flipped, |_| true);
        host.iommu_all("DMA");
        assert!(
            judged(&host)
                .iter()
                .all(|f| f.judgement != Judgement::Indicted)
        );
    }

    #[test]
    fn a_translating_pair_that_passes_the_root_weakens_it() {
        let mut host = Host::root_complex(4);
        host.direct_wrong(WrongKind::Zeroed, |p| p.source.0 == 0);
        host.iommu_all("DMA");
        assert_eq!(judged(&host)[0].confidence, Confidence::Possible);
    }

    /// Far pairs without peer access pass because their bytes go through the host: they clear nothing.
    #[test]
    fn staged_far_pairs_do_not_speak_for_the_fabric() {
        let mut host = Host::root_complex(4);
        let near = |p: OrderedPair| (p.source.0 < 2) == (p.destination.0 < 2);
        host.refused();
        for p in OrderedPair::all(4).filter(|p| near(*p)) {
            for mechanism in ["ce-push", "ce-pull", "sm-store", "sm-load"] {
                host.set_wrong(p, mechanism, WrongKind::Zeroed);
            }
        }
        host.iommu_all("DMA");
        let found = judged(&host);
        assert_eq!(found[0].confidence, Confidence::Established);
        assert_eq!(found[0].pairs.len(), 4);
    }

    #[test]
    fn an_unread_hypervisor_flag_cannot_tell() {
        let mut host = {
            let mut host = Host::root_complex(2);
            host.direct_wrong(WrongKind::Zeroed, |_| true);
            host.iommu_all("DMA");
            host
        };
        host.snapshot.host.hypervisor = crate::model::reading::Reading::default();
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }
}
