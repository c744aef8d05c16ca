//! What follows from pasted texts and logs, where nothing or little was measured. Three things are kept apart: what the
//! texts state for certain (a refusal, a setting, a narrow link); which causes would be held *if* direct copies were
//! wrong, asked of the causes themselves with that supposed; and what the texts cannot tell.

mod answers;
mod joined;
mod links;
mod settings;

use super::{
    evidence::{Evidence, PeerClaim},
    weigh::findings,
};
use crate::model::{
    case::{Case, Corruption, Outcome, PeerAccess, Record, Rung, Subject, UnitCounts, WrongKind},
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
    reading::Reading,
    report::{Grading, Verdict},
    snapshot::Snapshot,
    ticket::{Citation, Conclusion, Diagnosis, Remark, RemarkKind, Ticket, Unknown},
    xid::Xid,
};

/// What tells whether bytes arrive.
const NEXT_QUALIFY: &str = "peerproof qualify";

/// Judges a ticket. `verdict` is that of a report among the inputs: then something was measured, and it stands.
pub fn ticket(evidence: &Evidence, ticket: &Ticket, verdict: Option<Verdict>) -> Diagnosis {
    let snapshot = evidence.snapshot;
    let real = findings(evidence);
    let measured = verdict.is_some();
    let held = real
        .iter()
        .filter(|f| f.judgement == Judgement::Indicted)
        .map(conclusion);
    // A fault of a disk is no symptom of GPUs.
    let of_gpus;
    let foreign = answers::foreign_fault(snapshot, ticket);
    let ticket = match foreign.is_some() {
        true => {
            let mut rest = ticket.clone();
            rest.remarks
                .retain(|r| r.kind != RemarkKind::IommuFault || r.by_person);
            of_gpus = rest;
            &of_gpus
        }
        false => ticket,
    };
    let mut said = answers::answers(snapshot, ticket);
    said.extend(foreign);
    // Where no peer access exists, that is the answer, and what engines say of it follows from it.
    let mut conclusions: Vec<Conclusion> = if all_refused(evidence) {
        held.chain(said).collect()
    } else {
        said.into_iter().chain(held).collect()
    };
    if !measured && let Some(first) = ticket.hosts.first() {
        let next = "say from which host each file is, and give those of one host".to_string();
        let most = ticket.hosts.len() - 1;
        let more = match most {
            0 => String::new(),
            1 => " (and one more contradiction)".to_string(),
            n => format!(" (and {n} more contradictions)"),
        };
        return Diagnosis {
            verdict: Verdict {
                grading: Grading::Inconclusive,
                headline: format!("the files cannot be of one host at one time: {}{more}", short(first)),
                cause: "texts of several hosts, of one before and after a change, or of a host and a container on it, make no one picture: nothing was concluded from them".to_string(),
                next,
                worst_pair: None,
                reason: None,
            },
            next_because: "a suspect that follows from a mixture is invented; 'peerproof diff A B' compares two reports".to_string(),
            meanwhile: None,
            conclusions: Vec::new(),
            suspects: Vec::new(),
            cleared: Vec::new(),
            unknown: Vec::new(),
            measured,
        };
    }
    let (suspects, mut cleared) = if measured {
        (Vec::new(), Vec::new())
    } else {
        supposed(snapshot, ticket, &real)
    };
    if measured {
        cleared.extend(
            real.iter()
                .filter(|f| f.judgement == Judgement::Cleared)
                .cloned(),
        );
    }
    // What settings do is worth knowing, and the answer only where there is no other.
    let settings = settings::settings(snapshot);
    if suspects.is_empty() && conclusions.is_empty() {
        conclusions.extend(settings.iter().cloned());
    }
    let unknown = unknown(evidence, measured);
    let (next, next_because) = next(
        evidence,
        ticket,
        &real,
        &conclusions,
        &suspects,
        &unknown,
        &verdict,
    );
    let verdict = verdict.unwrap_or_else(|| Verdict {
        grading: grade(&real, ticket),
        headline: headline(evidence, ticket, &conclusions, &suspects),
        cause: "claims and settings: nothing of it was measured by peerproof".to_string(),
        next: next.clone(),
        worst_pair: None,
        reason: None,
    });
    if !conclusions.iter().any(|c| settings.contains(c)) {
        conclusions.extend(settings);
    }
    let meanwhile = answers::meanwhile(snapshot, ticket).filter(|_| !measured);
    Diagnosis {
        verdict,
        next_because,
        meanwhile,
        conclusions,
        suspects,
        cleared,
        unknown,
        measured,
    }
}

/// A sentence on a headline.
fn short(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}..", text.get(..at).unwrap_or(text)),
        None => text.to_string(),
    }
}

fn conclusion(finding: &Finding) -> Conclusion {
    Conclusion {
        title: finding.title.clone(),
        because: finding.because.clone(),
        evidence: finding.evidence.clone(),
        fix: finding.fix.clone(),
        cause: Some(finding.cause.clone()),
        confidence: Some(finding.confidence),
    }
}

/// Nothing that was not measured passes. A finding that is certain by itself counts with its weight.
fn grade(real: &[Finding], ticket: &Ticket) -> Grading {
    let certain = |f: &&Finding| {
        f.judgement == Judgement::Indicted && f.confidence == Confidence::Established
    };
    let worst = real.iter().filter(certain).map(|f| f.severity).max();
    match worst {
        Some(Severity::Critical) => Grading::Fail,
        _ if is_lost(ticket) => Grading::Fail,
        Some(Severity::Warning) => Grading::Warn,
        _ => Grading::Inconclusive,
    }
}

/// Whether a program says that a GPU is gone.
fn is_lost(ticket: &Ticket) -> bool {
    let lost = |r: &Remark| r.kind == RemarkKind::GpuLost && !r.by_person;
    ticket.remarks.iter().any(lost)
}

/// The remark that says most, programs before persons.
fn main_remark(ticket: &Ticket) -> Option<&Remark> {
    ticket
        .remarks
        .iter()
        .filter(|r| r.kind != RemarkKind::NcclWarning)
        .min_by_key(|r| {
            (
                !r.kind.suspects_peers() && r.kind != RemarkKind::GpuLost,
                r.kind,
                r.by_person,
            )
        })
}

fn headline(
    e: &Evidence,
    ticket: &Ticket,
    conclusions: &[Conclusion],
    suspects: &[Finding],
) -> String {
    let gpus = e.snapshot.gpus.len();
    let reported = main_remark(ticket);
    // A GPU that is gone explains faults that the IOMMU logged of it, and not the other way round.
    if is_lost(ticket)
        && let Some(first) = conclusions.first()
    {
        return first.title.clone();
    }
    if let Some(remark) = reported.filter(|r| r.kind.suspects_peers()) {
        let first = suspects.first().map(|f| {
            format!(
                "; first suspect: {} ({})",
                f.title,
                match f.confidence {
                    Confidence::Possible => "possible",
                    _ => "probable",
                }
            )
        });
        return format!(
            "{} ({}){}",
            remark.kind.words(),
            remark.source,
            first.unwrap_or_else(|| "; no suspect follows from these texts".to_string())
        );
    }
    if let Some(first) = conclusions.first() {
        return first.title.clone();
    }
    match (gpus, suspects.first()) {
        (0, _) => "no GPU is shown by these texts".to_string(),
        (1, _) => "one GPU: there are no pairs".to_string(),
        (_, Some(first)) => format!(
            "no symptom is reported; if copies between GPUs are wrong here, suspect first: {}",
            first.title
        ),
        _ => {
            "no symptom is reported, and nothing that was read speaks against this host".to_string()
        }
    }
}

/// Causes as they would judge if direct copies between these GPUs were wrong and copies through the host right. Only pairs
/// that the driver does not refuse and that no NVLink joins are supposed: others do not use the path in question.
fn supposed(
    snapshot: &Snapshot,
    ticket: &Ticket,
    real: &[Finding],
) -> (Vec<Finding>, Vec<Finding>) {
    let evidence = suppose_all(snapshot, &[]);
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    // GPUs of a board with NVSwitches talk over NVLink, though lspci shows their PCIe ports only.
    let pairs: Vec<OrderedPair> = OrderedPair::all(count)
        .filter(|p| !joined::over_nvlink(&evidence, *p))
        .filter(|p| !matches!(evidence.claim(*p), PeerClaim::Refused(_)))
        .collect();
    if pairs.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let hang = main_remark(ticket)
        .is_some_and(|r| matches!(r.kind, RemarkKind::Hang | RemarkKind::Waiting));
    let records: Vec<Record> = pairs.iter().flat_map(|p| suppose(*p, hang)).collect();
    // An IOMMU that is seen to translate names a suspect even where no text says whether this is a guest; the supposition
    // is said with it.
    let line = evidence.iommu_line();
    let translates = snapshot
        .gpus
        .iter()
        .any(|g| g.iommu.known().and_then(|i| i.translates()) == Some(true))
        || line.translates(evidence.has_iommu()) == Some(true)
        || line.leans_to_translation();
    let taken_for_bare = translates && evidence.is_guest().is_none();
    let mut bare = snapshot.clone();
    if taken_for_bare {
        bare.host.hypervisor = Reading::Known(false);
    }
    let evidence = suppose_all(&bare, &records);
    let mut remarks = ticket.remarks.iter();
    let reported = remarks.any(|r| r.kind.suspects_peers() && r.kind != RemarkKind::Waiting);
    let most = if reported {
        Confidence::Probable
    } else {
        Confidence::Possible
    };
    let held_already = |f: &Finding| {
        real.iter()
            .any(|r| r.cause == f.cause && r.judgement == Judgement::Indicted)
    };
    let (mut suspects, mut cleared) = (Vec::new(), Vec::new());
    for mut finding in findings(&evidence) {
        match finding.judgement {
            Judgement::Indicted if !held_already(&finding) => {
                finding.confidence = finding.confidence.min(most);
                if taken_for_bare {
                    finding.evidence.push(
                        "supposed: bare metal; no text says so (systemd-detect-virt does)"
                            .to_string(),
                    );
                }
                suspects.push(finding);
            }
            Judgement::Cleared => cleared.push(finding),
            // What a cause could not tell is asked for below, once and not once a cause.
            _ => {}
        }
    }
    // What the supposition itself decides is no finding: all directions are supposed wrong, nothing ran alone or through
    // the host. Only what a reading of these texts clears is cleared, and then that reading is shown.
    cleared.retain(|f| {
        let decided = ["host-staging-broken", "gpu-itself", "one-way-pair"];
        !f.evidence.is_empty() && !decided.contains(&f.cause.as_str())
    });
    (suspects, cleared)
}

/// Evidence of a snapshot and supposed records.
fn suppose_all<'a>(snapshot: &'a Snapshot, records: &'a [Record]) -> Evidence<'a> {
    Evidence::new(snapshot, records, &[])
}

/// Right copies through the host and a wrong direct copy.
fn suppose(pair: OrderedPair, hang: bool) -> [Record; 3] {
    const BYTES: u64 = 1 << 20;
    let record = |mechanism: &str, rung: Rung, outcome: Outcome, peer_access: PeerAccess| Record {
        case: Case {
            id: 0,
            subject: Subject::Pair(pair),
            mechanism: mechanism.to_string(),
            rung,
            bytes: BYTES,
            offset: 0,
            attempts: 1,
            timed: false,
            load: None,
            all_reduce: None,
            soak: false,
        },
        outcome,
        peer_access,
        executor: "supposed".to_string(),
        attempts_ran: 1,
        rate: None,
        alone: false,
        took_ms: 0.0,
        notes: Vec::new(),
    };
    let units = BYTES / 16;
    let wrong = if hang {
        Outcome::TimedOut { after_ms: 0 }
    } else {
        Outcome::Corrupt(Box::new(Corruption {
            kind: WrongKind::Zeroed,
            detail: "supposed".to_string(),
            attempt: 1,
            wrong_attempts: 1,
            attempts_ran: 1,
            first_offset: 0,
            last_offset: BYTES,
            wrong_units: units,
            units,
            counts: UnitCounts {
                zero: units,
                ..UnitCounts::default()
            },
            samples: Vec::new(),
            accessor_sees_right: None,
            source_intact: None,
            owner_views_agree: None,
        }))
    };
    [
        record("bounce", Rung::Staged, Outcome::Intact, PeerAccess::Off),
        record("staged", Rung::Staged, Outcome::Intact, PeerAccess::Off),
        record("ce-push", Rung::Copied, wrong, PeerAccess::Both),
    ]
}

/// Whether the driver offers no peer access on any pair.
fn all_refused(e: &Evidence) -> bool {
    let count = u32::try_from(e.snapshot.gpus.len()).unwrap_or(0);
    count > 1 && OrderedPair::all(count).all(|p| matches!(e.claim(p), PeerClaim::Refused(_)))
}

/// What the driver claims of all pairs: all OK, some refused, or not known.
fn claims(e: &Evidence, count: u32) -> Option<bool> {
    let mut known = false;
    for pair in OrderedPair::all(count) {
        match e.claim(pair) {
            PeerClaim::Refused(_) => return Some(false),
            PeerClaim::Ok => known = true,
            PeerClaim::Unknown => {}
        }
    }
    known.then_some(true)
}

/// What the texts do not tell of a host with pairs, most telling first.
fn unknown(e: &Evidence, measured: bool) -> Vec<Unknown> {
    let mut out: Vec<Unknown> = Vec::new();
    let mut say = |what: &str, shown_by: &str| {
        let new = Unknown {
            what: what.to_string(),
            shown_by: shown_by.to_string(),
        };
        if !out.contains(&new) {
            out.push(new);
        }
    };
    let snapshot = e.snapshot;
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    if count == 0 {
        say("which GPUs there are", "nvidia-smi -q");
        return out;
    }
    if count < 2 {
        return out;
    }
    if !measured {
        say("whether bytes arrive: no claim proves it", NEXT_QUALIFY);
    }
    let nvlink = OrderedPair::all(count).all(|p| joined::over_nvlink(e, p));
    if all_refused(e) {
        // Nothing of the path between the GPUs is used.
        return out;
    }
    let claimed = snapshot
        .claims
        .iter()
        .any(|(_, c)| c.p2p_read.known().is_some() || c.p2p_write.known().is_some());
    if !claimed && !nvlink {
        say(
            "what the driver claims of peer access",
            "nvidia-smi topo -p2p r",
        );
    }
    let path = OrderedPair::all(count).any(|p| e.path_type(p).is_none() && !e.has_nvlink(p));
    if path {
        say("what joins the GPUs", "nvidia-smi topo -m");
    }
    if nvlink {
        let fabric = snapshot.gpus.iter().any(|g| g.fabric.known().is_none());
        let names = snapshot.gpus.iter().filter_map(|g| g.name.known());
        let names: Vec<&str> = names.map(String::as_str).collect();
        if fabric {
            say(
                "whether the NVLink fabric is complete",
                match joined::tells_fabric(&names) {
                    Some(false) => "systemctl status nvidia-fabricmanager",
                    _ => "nvidia-smi -q",
                },
            );
        }
        return out;
    }
    if e.is_guest().is_none() {
        say("whether this is a virtual machine", "systemd-detect-virt");
    }
    if e.is_guest() != Some(true) {
        let domain = OrderedPair::all(count).any(|p| e.iommu_translates(p).is_none());
        if domain {
            say(
                "whether the IOMMU translates for the GPUs",
                "grep . /sys/kernel/iommu_groups/*/type",
            );
        }
        let acs = OrderedPair::all(count)
            .any(|p| e.bridges_between(p).is_empty() || !e.acs_between(p).1.is_empty());
        if acs {
            say("ACS on the ports between the GPUs", "sudo lspci -vvv");
        }
        if snapshot.host.kernel_log.known().is_none() {
            say("what the kernel logged", "sudo dmesg");
        }
    }
    out
}

/// The one command that would tell most, and why.
fn next(
    e: &Evidence,
    ticket: &Ticket,
    real: &[Finding],
    conclusions: &[Conclusion],
    suspects: &[Finding],
    unknown: &[Unknown],
    verdict: &Option<Verdict>,
) -> (String, String) {
    if let Some(verdict) = verdict {
        // The page with the fixes and their warnings may be another one.
        let warning = match verdict.next.contains("setpci") {
            true => {
                ". Warning: not on a host that passes devices to virtual machines, whose guests ACS keeps apart"
            }
            false => "",
        };
        return (
            verdict.next.clone(),
            format!("it follows from what was measured{warning}"),
        );
    }
    // Nothing of CUDA runs before the fabric does, this tool's own tests no more than the engine.
    let not_ready = ticket
        .remarks
        .iter()
        .any(|r| r.kind == RemarkKind::NotInitialised && !r.by_person);
    let fabric = real
        .iter()
        .find(|f| f.cause == "fabric-not-ready" && f.judgement == Judgement::Indicted);
    if let Some(test) = fabric
        .and_then(|f| f.next_test.clone())
        .filter(|_| not_ready)
    {
        return (
            test,
            "on the host, not in a container or guest: until CUDA is ready it answers 802 to everything, to 'peerproof qualify' too"
                .to_string(),
        );
    }
    if is_lost(ticket) && answers::logged(ticket).next().is_some() {
        return (
            "sudo lspci -vvv".to_string(),
            "a lost GPU explains the rest; whether its port still has a link, and what the port counted, stands there".to_string(),
        );
    }
    let reboot = |(seen, line): (Xid, &Citation)| seen.code == 154 && line.value.contains("Reboot");
    if answers::logged(ticket).any(reboot) {
        return (
            "sudo dmesg | grep -E 'NVRM|Xid'".to_string(),
            "the first Xid of that time says why; the driver itself asks for a reboot of the node, after which 'peerproof qualify' proves the GPUs"
                .to_string(),
        );
    }
    let count = e.snapshot.gpus.len();
    if count == 0 && answers::iommu_by_line(e.snapshot).is_some() {
        return (
            "nvidia-smi -q; grep . /sys/kernel/iommu_groups/*/type".to_string(),
            "the one names the GPUs, the other the domain types that hold, whatever the command line says"
                .to_string(),
        );
    }
    if count == 0 && !links::of_unknown(e.snapshot, ticket).is_empty() {
        return (
            "sudo lspci -vvv".to_string(),
            "it names the devices below the ports of these errors, and whether their links have width and speed"
                .to_string(),
        );
    }
    if count == 0 {
        return (
            "nvidia-smi -q".to_string(),
            "no text shows a GPU; this one names all with addresses, links and fabric".to_string(),
        );
    }
    if is_lost(ticket) {
        return (
            "sudo dmesg | grep -E 'NVRM|AER|pcieport'".to_string(),
            "a lost GPU explains the rest; these lines say whether it or its link failed"
                .to_string(),
        );
    }
    let link = real
        .iter()
        .find(|f| f.cause == "link-errors" && f.judgement == Judgement::Indicted);
    if main_remark(ticket).is_none()
        && let Some(test) = link.and_then(|f| f.next_test.clone())
    {
        return (
            test,
            "a link that counts errors often runs narrow or slow: LnkSta against LnkCap shows it; 'peerproof qualify' then counts errors while bytes move"
                .to_string(),
        );
    }
    let contradiction = conclusions.iter().any(|c| {
        c.title
            .starts_with("the engine takes this host for PCIe-only")
    });
    if contradiction {
        return (
            "nvidia-smi topo -p2p n".to_string(),
            "run where the engine runs: it shows what the engine was told of NVLink".to_string(),
        );
    }
    let needs_root = unknown
        .iter()
        .any(|u| u.shown_by.starts_with("sudo ") || u.shown_by.contains("iommu_groups"));
    if count == 1 {
        return (
            NEXT_QUALIFY.to_string(),
            "with one GPU there are no pairs; it tests the GPU's memory, its way to the host, and sharing between processes"
                .to_string(),
        );
    }
    let names: Vec<&str> = suspects.iter().take(2).map(|f| f.cause.as_str()).collect();
    let command = if needs_root {
        format!("sudo {NEXT_QUALIFY}")
    } else {
        NEXT_QUALIFY.to_string()
    };
    let root = if needs_root {
        "; as root it also reads ACS, the IOMMU and the kernel log"
    } else {
        ""
    };
    let because = match names.as_slice() {
        [one, other] => format!(
            "it copies on every ordered pair, directly and through the host, which splits {one} from {other}{root}"
        ),
        [one] => format!(
            "it copies on every ordered pair, directly and through the host, which proves or clears {one}{root}"
        ),
        _ if all_refused(e) => {
            "no peer access exists here, so nothing is to be repaired; it proves the way through the host that is used instead".to_string()
        }
        _ => format!("no text shows whether bytes arrive; it tries every ordered pair{root}"),
    };
    (command, because)
}
