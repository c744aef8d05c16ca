//! What follows from pasted texts and logs, where nothing or little was measured. Three things are kept apart: what the
//! texts state for certain (a refusal, a setting, a narrow link); which causes would be held *if* direct copies were
//! wrong, asked of the causes themselves with that supposed; and what the texts cannot tell.

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
    ticket::{Conclusion, Diagnosis, Remark, RemarkKind, Ticket, Unknown},
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
    let said = answers(snapshot, ticket);
    // Where no peer access exists, that is the answer, and what engines say of it follows from it.
    let conclusions: Vec<Conclusion> = if all_refused(evidence) {
        held.chain(said).collect()
    } else {
        said.into_iter().chain(held).collect()
    };
    let disagree = ticket.hosts.join("; ");
    if !measured && !disagree.is_empty() {
        let next = "say from which host each file is, and give those of one host".to_string();
        return Diagnosis {
            verdict: Verdict {
                grading: Grading::Inconclusive,
                headline: format!("the files disagree about the GPUs: {disagree}; from which host is each?"),
                cause: "texts of several hosts, or of a host and a container on it, make no one picture, and nothing was concluded from them".to_string(),
                next: next.clone(),
                worst_pair: None,
            },
            next_because: "a suspect that follows from a mixture is invented".to_string(),
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
    let unknown = unknown(evidence, measured);
    let (next, next_because) = next(
        evidence,
        ticket,
        &conclusions,
        &suspects,
        &unknown,
        &verdict,
    );
    let verdict = verdict.unwrap_or_else(|| Verdict {
        grading: grade(&real, ticket),
        headline: headline(evidence, ticket, &conclusions, &suspects),
        cause: "what was pasted are claims and settings; nothing of it was measured by peerproof"
            .to_string(),
        next: next.clone(),
        worst_pair: None,
    });
    Diagnosis {
        verdict,
        next_because,
        conclusions,
        suspects,
        cleared,
        unknown,
        measured,
    }
}

fn conclusion(finding: &Finding) -> Conclusion {
    Conclusion {
        title: finding.title.clone(),
        because: finding.because.clone(),
        evidence: finding.evidence.clone(),
        fix: finding.fix.clone(),
        cause: Some(finding.cause.clone()),
    }
}

/// Nothing that was not measured passes. A finding that is certain by itself counts with its weight.
fn grade(real: &[Finding], ticket: &Ticket) -> Grading {
    let certain = |f: &&Finding| {
        f.judgement == Judgement::Indicted && f.confidence == Confidence::Established
    };
    let worst = real.iter().filter(certain).map(|f| f.severity).max();
    let lost = ticket
        .remarks
        .iter()
        .any(|r| r.kind == RemarkKind::GpuLost && !r.by_person);
    match worst {
        Some(Severity::Critical) => Grading::Fail,
        _ if lost => Grading::Fail,
        Some(Severity::Warning) => Grading::Warn,
        _ => Grading::Inconclusive,
    }
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
    let pairs: Vec<OrderedPair> = OrderedPair::all(count)
        .filter(|p| !evidence.has_nvlink(*p))
        .filter(|p| !matches!(evidence.claim(*p), PeerClaim::Refused(_)))
        .collect();
    if pairs.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let hang = main_remark(ticket).is_some_and(|r| r.kind == RemarkKind::Hang);
    let records: Vec<Record> = pairs.iter().flat_map(|p| suppose(*p, hang)).collect();
    // An IOMMU that is seen to translate names a suspect even where no text says whether this is a guest; the supposition
    // is said with it.
    let translates = snapshot
        .gpus
        .iter()
        .any(|g| g.iommu.known().and_then(|i| i.translates()) == Some(true));
    let taken_for_bare = translates && evidence.is_guest().is_none();
    let mut bare = snapshot.clone();
    if taken_for_bare {
        bare.host.hypervisor = Reading::Known(false);
    }
    let evidence = suppose_all(&bare, &records);
    let reported = ticket.remarks.iter().any(|r| r.kind.suspects_peers());
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

/// What logs say about themselves, in the words of the rules behind them (facts: failures.md part 2, engines.md 2 and 3).
fn answers(snapshot: &Snapshot, ticket: &Ticket) -> Vec<Conclusion> {
    let mut out = Vec::new();
    let said = |kind: RemarkKind| {
        ticket
            .remarks
            .iter()
            .find(|r| r.kind == kind && !r.by_person)
    };
    let line = |r: &Remark| match r.times {
        1 => format!("{} ({})", r.text, r.source),
        n => format!("{} ({}, {n} times)", r.text, r.source),
    };
    let make = |title: String, because: String, evidence: Vec<String>, fix: Vec<&str>| Conclusion {
        title,
        because,
        evidence,
        fix: fix.into_iter().map(str::to_string).collect(),
        cause: None,
    };
    if let Some(lost) = said(RemarkKind::GpuLost) {
        out.push(make(
            "a GPU does not answer any more".to_string(),
            "all that follows from it (hangs, refusals, missing peers) is its consequence; pairs are not to be blamed"
                .to_string(),
            vec![line(lost)],
            vec!["power-cycle the host, then reseat or replace the GPU or its riser; look for Xid 79 and AER lines in 'sudo dmesg'"],
        ));
    }
    if let Some(fault) = said(RemarkKind::IommuFault) {
        out.push(make(
            "the IOMMU refused accesses of a device".to_string(),
            "its domain translates addresses, and what was refused was not delivered".to_string(),
            vec![line(fault)],
            if passes_through(snapshot) {
                vec![
                    "iommu=pt is on the command line already and did not take effect here: see that the log is of the same boot (its own 'Command line:'), that no later iommu=nopt or iommu.passthrough=0 undoes it, and that the log does not say 'Memory encryption detected', which switches it off; then 'grep . /sys/kernel/iommu_groups/*/type'",
                ]
            } else {
                vec!["on bare metal: boot with iommu=pt (Intel: intel_iommu=on iommu=pt), then 'peerproof qualify'"]
            },
        ));
    }
    out.extend(custom_all_reduce(snapshot, ticket));
    for (kind, because, fix) in [
        (
            RemarkKind::SharingFailed,
            "the allocation cannot be shared by CUDA IPC, or the container forbids it: expandable segments and pool memory are the usual reasons",
            "PYTORCH_CUDA_ALLOC_CONF without expandable_segments; in a container --ipc=host --cap-add=SYS_PTRACE; until then --disable-custom-all-reduce",
        ),
        (
            RemarkKind::PeerRefused,
            "a rank asked for a GPU that it may not see or reach: one visible GPU a rank hides its peers",
            "show all GPUs to all ranks (CUDA_VISIBLE_DEVICES unset or equal) and choose by device number",
        ),
        (
            RemarkKind::ShmFull,
            "NCCL puts its segments into /dev/shm when peers are not used; docker gives 64 MiB",
            "docker run --shm-size=1g (8 ranks: 2g) or --ipc=host; remove segments of crashed jobs",
        ),
        (
            RemarkKind::NotInitialised,
            "on an NVSwitch host the fabric manager is absent, of another version than the driver, or not ready; without NVSwitch it is HMM of nvidia_uvm",
            "systemctl status nvidia-fabricmanager; start the version that equals the driver's; without NVSwitch: options nvidia_uvm uvm_disable_hmm=1",
        ),
        (
            RemarkKind::PeersSwitchedOff,
            "NCCL goes through host memory because it was told to; the engines' own all-reduce kernels do not read this variable",
            "unset it after 'peerproof qualify' has proven the pairs",
        ),
    ] {
        if let Some(remark) = said(kind) {
            out.push(make(
                kind.words().to_string(),
                because.to_string(),
                vec![line(remark)],
                vec![fix],
            ));
        }
    }
    if let Some(transport) =
        through_host(ticket).filter(|_| said(RemarkKind::PeersSwitchedOff).is_none())
    {
        out.push(transport);
    }
    out
}

/// Whether the pasted command line asks for identity domains already.
fn passes_through(snapshot: &Snapshot) -> bool {
    let line = snapshot.host.cmdline.known();
    line.is_some_and(|l| {
        l.split_whitespace()
            .any(|w| matches!(w, "iommu=pt" | "iommu.passthrough=1"))
    })
}

/// NCCL's transports, when all of one host go through its memory.
fn through_host(ticket: &Ticket) -> Option<Conclusion> {
    let local = |via: &str| via.starts_with("P2P") || via.starts_with("SHM");
    let shm = ticket
        .transports
        .iter()
        .find(|t| t.via.starts_with("SHM"))?;
    let direct = ticket
        .transports
        .iter()
        .filter(|t| t.via.starts_with("P2P"))
        .count();
    let all = ticket.transports.iter().filter(|t| local(&t.via)).count();
    Some(Conclusion {
        title: match direct {
            0 => "NCCL uses no peer access: all its channels go through host memory".to_string(),
            n => format!("NCCL uses peer access on {n} of {all} paths; the rest go through host memory"),
        },
        because: "NCCL's level allows P2P up to a path type only (across host bridges often not), and never where the driver refuses it; no fault by itself".to_string(),
        evidence: vec![format!(
            "{} -> {} via {} ({})",
            shm.devices.0, shm.devices.1, shm.via, shm.source
        )],
        fix: vec!["NCCL_P2P_LEVEL=SYS uses it on all paths; only after 'peerproof qualify' has proven them".to_string()],
        cause: None,
    })
}

/// Why an engine does not use its own all-reduce.
fn custom_all_reduce(snapshot: &Snapshot, ticket: &Ticket) -> Option<Conclusion> {
    let launch = |about: &str| ticket.launch.iter().find(|f| f.about == about);
    let said = ticket
        .remarks
        .iter()
        .find(|r| r.kind == RemarkKind::CustomAllReduceOff && !r.by_person);
    let asked = ticket
        .remarks
        .iter()
        .find(|r| r.kind == RemarkKind::CustomAllReduceOff && r.by_person);
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    let evidence = suppose_all(snapshot, &[]);
    let joined = |p: &OrderedPair| evidence.has_nvlink(*p);
    let full_nvlink = count > 1 && OrderedPair::all(count).all(|p| joined(&p));
    let nvlink = |class: bool| match class {
        true => format!("NVLink joins all {count} GPUs here, so the topology would allow it"),
        false if count > 1 => format!("not all {count} GPUs are joined by NVLink here"),
        false => "how the GPUs are joined was not given".to_string(),
    };
    let switched = launch("disable_custom_all_reduce").filter(|f| f.value == "True");
    let tp = launch("tensor_parallel_size")
        .or_else(|| launch("tp_size"))
        .and_then(|f| f.value.parse::<u32>().ok());
    if let Some(flag) = switched {
        let mut fix = "remove --disable-custom-all-reduce from the launch".to_string();
        if full_nvlink {
            fix.push_str("; prove the pairs first: peerproof qualify");
        } else {
            fix.push_str(" only after 'peerproof qualify' has proven the pairs; with more than two GPUs and no full NVLink the engine leaves it off all the same");
        }
        return Some(Conclusion {
            title: "custom all-reduce is off because the launch says so".to_string(),
            because: format!(
                "{}; it is a setting and no fault of the host",
                nvlink(full_nvlink)
            ),
            evidence: vec![format!("disable_custom_all_reduce=True ({})", flag.source)],
            fix: vec![fix],
            cause: None,
        });
    }
    let said = match (said, asked) {
        (Some(said), _) => said,
        (None, Some(_)) => {
            let world = tp.filter(|tp| ![1, 2, 4, 6, 8].contains(tp))?;
            let about = launch("tensor_parallel_size").or_else(|| launch("tp_size"))?;
            return Some(Conclusion {
                title: format!("custom all-reduce does not exist for {world} GPUs"),
                because: "the engines have it for groups of 2, 4, 6 and 8".to_string(),
                evidence: vec![format!("{}={world} ({})", about.about, about.source)],
                fix: vec!["a group of 2, 4, 6 or 8, or NCCL".to_string()],
                cause: None,
            });
        }
        _ => return None,
    };
    let text = said.text.as_str();
    let (title, because, fix) = if text.contains("more than two PCIe-only") {
        if full_nvlink {
            (
                "the engine takes this host for PCIe-only, and its topology shows NVLink on every pair",
                format!(
                    "the engine asks NVML for the NVLink status of each pair, not topo -m; {}. Inactive links, an incomplete fabric or a container that hides GPUs make the two differ",
                    nvlink(true)
                ),
                "nvidia-smi topo -p2p n (inside the engine's container) shows what the engine was told",
            )
        } else {
            (
                "custom all-reduce is off by the engine's own rule: more than two GPUs without full NVLink",
                format!(
                    "{}; whether peer access works is not even asked. No fault of the host: NCCL is used",
                    nvlink(false)
                ),
                "nothing to repair; 'peerproof recommend' names the backends for PCIe hosts after 'peerproof qualify'",
            )
        }
    } else if text.contains("lacks GPU P2P") || text.contains("P2P test failed") {
        (
            "custom all-reduce is off because the engine's P2P test failed or the driver offers no peer access",
            match claims(&evidence, count) {
                Some(true) => "the driver claims that peer access is OK on these pairs, so the test failed, or an old answer was read from its cache file (it outlives BIOS and driver changes)".to_string(),
                Some(false) => "the driver offers no peer access on these pairs".to_string(),
                None => "what the driver claims was not given".to_string(),
            },
            match claims(&evidence, count) {
                Some(false) => "nothing to repair in the engine: it goes on with NCCL, which uses host memory here",
                _ => "delete ~/.cache/vllm/gpu_p2p_access_cache_for_*.json, then 'peerproof qualify'",
            },
        )
    } else if text.contains("world size") {
        (
            "custom all-reduce does not exist for this number of GPUs",
            "the engines have it for groups of 2, 4, 6 and 8".to_string(),
            "a group of 2, 4, 6 or 8, or NCCL",
        )
    } else if text.contains("across nodes") || text.contains("spans") {
        (
            "custom all-reduce is off because the group spans several hosts",
            "it works within one host only".to_string(),
            "nothing to repair; NCCL is used",
        )
    } else {
        (
            "custom all-reduce could not be set up",
            "the engine goes on with NCCL; the reason is in its own words below".to_string(),
            "peerproof qualify proves or rules out the pairs; --disable-custom-all-reduce silences it",
        )
    };
    Some(Conclusion {
        title: title.to_string(),
        because,
        evidence: vec![match said.times {
            1 => format!("{text} ({})", said.source),
            n => format!("{text} ({}, {n} ranks or times)", said.source),
        }],
        fix: vec![fix.to_string()],
        cause: None,
    })
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
    let nvlink = OrderedPair::all(count).all(|p| e.has_nvlink(p));
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
        if fabric {
            say("whether the NVLink fabric is complete", "nvidia-smi -q");
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
    conclusions: &[Conclusion],
    suspects: &[Finding],
    unknown: &[Unknown],
    verdict: &Option<Verdict>,
) -> (String, String) {
    if let Some(verdict) = verdict {
        return (
            verdict.next.clone(),
            "it follows from what was measured".to_string(),
        );
    }
    let count = e.snapshot.gpus.len();
    if count == 0 {
        return (
            "nvidia-smi -q".to_string(),
            "no text shows a GPU; this one names all with addresses, links and fabric".to_string(),
        );
    }
    let lost = ticket
        .remarks
        .iter()
        .any(|r| r.kind == RemarkKind::GpuLost && !r.by_person);
    if lost {
        return (
            "sudo dmesg | grep -E 'NVRM|AER|pcieport'".to_string(),
            "a lost GPU explains the rest; these lines say whether it or its link failed"
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
