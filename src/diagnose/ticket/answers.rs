//! What pasted logs and claims state: what an engine or NCCL says of itself, why it says so, and what to do. In the words of
//! the rules behind them (facts: failures.md part 2, engines.md 2 and 3). A line of a log is certain of what it reports and of
//! nothing behind it: the reason for it is at most probable, and the other reasons are told with what tells them apart.

use super::{
    claims,
    joined::switched,
    links::{self, LinkBefore},
    main_remark, suppose_all,
};
use crate::diagnose::{cause::line_words, weigh::PEERS_OFF, xid};
use crate::model::{
    finding::{Confidence, WARNING},
    pair::OrderedPair,
    pci::PciAddress,
    snapshot::Snapshot,
    ticket::{Citation, Conclusion, Remark, RemarkKind, Ticket},
    xid::Xid,
};

/// What logs say about themselves.
pub(super) fn answers(snapshot: &Snapshot, ticket: &Ticket) -> Vec<Conclusion> {
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
        confidence: Some(Confidence::Probable),
    };
    if let Some(lost) = said(RemarkKind::GpuLost) {
        let who = logged(ticket)
            .find(|(seen, _)| seen.code == 79)
            .map_or_else(
                || "a GPU".to_string(),
                |(seen, _)| format!("GPU {}", seen.gpu),
            );
        let mut evidence = vec![line(lost)];
        let fix = match links::and_loss(ticket) {
            LinkBefore::Failed(error) => {
                evidence.insert(0, error);
                "the port counted an error that cannot be corrected before the GPU was missed: slot, riser and power first, then the GPU. Power-cycle the host, reseat, and see that the link comes back at full width (LnkSta in 'sudo lspci -vvv')"
            }
            LinkBefore::Corrected(error) => {
                evidence.insert(0, error);
                "the link had counted errors, corrected ones, when the GPU was missed: riser and slot are suspects as much as the GPU. Power-cycle the host, reseat card and riser, and see that the link comes back at full width (LnkSta in 'sudo lspci -vvv')"
            }
            LinkBefore::After(error) => {
                evidence.push(error);
                "power-cycle the host, then reseat or replace the GPU or its riser; the AER lines of this log come after the loss and may follow from it"
            }
            LinkBefore::Silent => {
                "power-cycle the host, then reseat or replace the GPU or its riser; no AER line is among these texts: those of its port in the whole 'sudo dmesg' say whether the link failed first"
            }
        };
        out.push(make(
            format!("{who} does not answer any more"),
            "the GPU, its power, its riser or its slot; hangs, refusals and missing peers of that time follow from it, and pairs are not to be blamed for them"
                .to_string(),
            evidence,
            vec![fix],
        ));
    }
    out.extend(xids(snapshot, ticket));
    out.extend(links::of_unknown(snapshot, ticket));
    if let Some(fault) = said(RemarkKind::IommuFault) {
        let (device, text) = first_fault(snapshot, ticket).unwrap_or((None, line(fault)));
        out.push(iommu_fault(snapshot, text, device));
    }
    out.extend(custom_all_reduce(snapshot, ticket));
    let symptom = main_remark(ticket).filter(|r| r.kind.suspects_peers());
    for kind in [
        RemarkKind::SharingFailed,
        RemarkKind::PeerRefused,
        RemarkKind::GpuInvisible,
        RemarkKind::ShmFull,
    ] {
        if let Some(remark) = said(kind) {
            let Reason {
                because,
                fix,
                confidence,
            } = match kind {
                RemarkKind::SharingFailed => sharing_failed(&remark.text),
                RemarkKind::PeerRefused => peer_refused(snapshot),
                RemarkKind::GpuInvisible => invisible(snapshot, &remark.text),
                _ => shm_full(),
            };
            out.push(Conclusion {
                confidence: Some(confidence),
                ..make(kind.words().to_string(), because, vec![line(remark)], fix)
            });
        }
    }
    if let Some(remark) = said(RemarkKind::PeersSwitchedOff) {
        let because = match symptom {
            Some(_) => format!(
                "NCCL was told to go through host memory; the engines' own all-reduce kernels do not read this variable. If the symptom is of this very run, it is not of NCCL's copies between peers; the other ways to peers are open until all of the list is set: {PEERS_OFF}. Only where it stays with every switch of the engine's list, look at host memory, driver and model first"
            ),
            None => {
                "NCCL goes through host memory because it was told to; the engines' own all-reduce kernels do not read this variable".to_string()
            }
        };
        out.push(Conclusion {
            // NCCL prints what it read.
            confidence: None,
            ..make(
                remark.kind.words().to_string(),
                because,
                vec![line(remark)],
                vec!["unset it after 'peerproof qualify' has proven the pairs"],
            )
        });
    }
    if let Some(transport) =
        through_host(ticket).filter(|_| said(RemarkKind::PeersSwitchedOff).is_none())
    {
        out.push(transport);
    }
    out.extend(patched_driver(snapshot));
    out.extend(switched(snapshot));
    out.extend(iommu_by_line(snapshot));
    out
}

/// What the kernel command line says of the IOMMU, where no text shows a GPU whose path it would be judged for.
pub(super) fn iommu_by_line(snapshot: &Snapshot) -> Option<Conclusion> {
    if !snapshot.gpus.is_empty() {
        return None;
    }
    let evidence = suppose_all(snapshot, &[]);
    let line = evidence.iommu_line();
    let words = line.words().join(" ");
    if words.is_empty() {
        return None;
    }
    let (title, confidence) = match line.translates(evidence.has_iommu()) {
        Some(true) => ("the IOMMU translates", None),
        Some(false) => ("the IOMMU does not translate", None),
        None if line.leans_to_translation() => {
            ("the IOMMU probably translates", Some(Confidence::Probable))
        }
        None => ("whether the IOMMU translates is not set", None),
    };
    let matters = line.translates(true) != Some(false);
    Some(Conclusion {
        title: format!("{title}, by the kernel command line: {words}"),
        because: format!(
            "{}{}",
            line_words(line),
            match matters {
                true => ". On bare metal a translating IOMMU is the first suspect where copies between GPUs over PCIe are wrong; by itself it is no fault",
                false => ". It is no suspect, then, where copies between GPUs are wrong",
            }
        ),
        evidence: vec![format!("/proc/cmdline: {words}")],
        fix: match matters {
            true => vec!["only where copies are wrong: iommu=pt (Intel: intel_iommu=on iommu=pt) in place of these words, then 'peerproof qualify'".to_string()],
            false => Vec::new(),
        },
        cause: None,
        confidence,
    })
}

/// Why a line may be there, and what to do.
struct Reason {
    because: String,
    fix: Vec<&'static str>,
    confidence: Confidence,
}

/// The device that a fault names, as AMD and Intel spell it: "nvidia 0000:21:00.0: AMD-Vi", "device [01:00.0]", "device=21:00.0".
fn device_of(text: &str) -> Option<PciAddress> {
    let mut words = text.split([' ', '[', ']', '=', ',']);
    words.find_map(|word| {
        let word = word.trim_end_matches(':');
        (word.contains(':') && word.contains('.'))
            .then(|| word.parse().ok())
            .flatten()
    })
}

/// The fault of the IOMMU that says most, with its line: one of a GPU before others.
fn first_fault(snapshot: &Snapshot, ticket: &Ticket) -> Option<(Option<PciAddress>, String)> {
    let is_gpu = |device: PciAddress| {
        let mut gpus = snapshot.gpus.iter().filter_map(|gpu| gpu.pci.known());
        gpus.any(|pci| *pci == device)
    };
    let faults = ticket.citations.iter().filter(|c| {
        c.about == "kernel log"
            && (c.value.contains("IO_PAGE_FAULT") || c.value.contains("DMAR: [DMA"))
    });
    let all = faults.map(|c| (device_of(&c.value), format!("{} ({})", c.value, c.source)));
    all.min_by_key(|(device, _)| !device.is_some_and(is_gpu))
}

/// Where every fault that was logged is of a device that is none of the GPUs: what is to be said of it.
pub(super) fn foreign_fault(snapshot: &Snapshot, ticket: &Ticket) -> Option<Conclusion> {
    let mut gpus = snapshot.gpus.iter().filter_map(|gpu| gpu.pci.known());
    let known = gpus.clone().count() == snapshot.gpus.len() && !snapshot.gpus.is_empty();
    let (device, line) = first_fault(snapshot, ticket)?;
    let device = device?;
    (known && gpus.all(|pci| *pci != device)).then(|| iommu_fault(snapshot, line, Some(device)))
}

fn iommu_fault(snapshot: &Snapshot, line: String, device: Option<PciAddress>) -> Conclusion {
    let mut gpus = snapshot.gpus.iter().filter_map(|gpu| gpu.pci.known());
    let known = gpus.clone().next().is_some();
    let of_a_gpu = device.is_some_and(|device| gpus.any(|pci| *pci == device));
    let (title, confidence) = match (device, of_a_gpu, known) {
        (Some(device), true, _) => (
            format!("the IOMMU refused accesses of GPU {device}"),
            Confidence::Probable,
        ),
        (Some(device), false, true) => (
            format!(
                "the IOMMU refused accesses of {device}, which is none of the GPUs that these texts show"
            ),
            Confidence::Possible,
        ),
        (Some(device), ..) => (
            format!("the IOMMU refused accesses of {device}"),
            Confidence::Possible,
        ),
        (None, ..) => (
            "the IOMMU refused accesses of a device".to_string(),
            Confidence::Possible,
        ),
    };
    let fix = if passes_through(snapshot) {
        "iommu=pt is on the command line already and did not take effect here: see that the log is of the same boot (its own 'Command line:'), that no later iommu=nopt or iommu.passthrough=0 undoes it, and that the log does not say 'Memory encryption detected', which switches it off; then 'grep . /sys/kernel/iommu_groups/*/type'"
    } else {
        "on bare metal: boot with iommu=pt (Intel: intel_iommu=on iommu=pt), then 'peerproof qualify'"
    };
    Conclusion {
        title,
        because: "its domain translates addresses, and what was refused was not delivered; a driver that uses an address it gave back, and a device that fails, are refused the same way".to_string(),
        evidence: vec![line],
        fix: vec![fix.to_string()],
        cause: None,
        confidence: Some(confidence),
    }
}

fn sharing_failed(text: &str) -> Reason {
    let (because, fix) = if text.contains("pidfd_getfd") {
        (
            "passing descriptors between processes was refused: a container's seccomp profile without SYS_PTRACE, or kernel.yama.ptrace_scope of 1 and more; expandable segments take this way, plain buffers do not",
            vec![
                "PYTORCH_CUDA_ALLOC_CONF without expandable_segments; in a container --ipc=host --cap-add=SYS_PTRACE; which gate it is: grep Seccomp /proc/self/status; cat /proc/sys/kernel/yama/ptrace_scope; until then --disable-custom-all-reduce",
            ],
        )
    } else if text.contains("cuMemImportFromShareableHandle") {
        (
            "a handle of another process could not be taken in: that process's GPU is not visible here, the handle needs an IMEX channel, or a sandboxed kernel does not pass the call on",
            vec![
                "nvidia-smi -L in each rank's container: the lists must be the same; NCCL_CUMEM_ENABLE=0 tells whether it is this kind of handle",
            ],
        )
    } else {
        (
            "memory of expandable segments or a pool has no handle for CUDA IPC; other reasons: ranks that do not see each other's GPUs, and containers without a common IPC namespace",
            vec![
                "PYTORCH_CUDA_ALLOC_CONF without expandable_segments; in a container --ipc=host --cap-add=SYS_PTRACE; until then --disable-custom-all-reduce",
            ],
        )
    };
    Reason {
        because: because.to_string(),
        fix,
        confidence: Confidence::Probable,
    }
}

/// Error 217: enabled on a pair that has no peer access.
fn peer_refused(snapshot: &Snapshot) -> Reason {
    let claimed: Vec<&String> = snapshot
        .claims
        .iter()
        .flat_map(|(_, claims)| [claims.p2p_read.known(), claims.p2p_write.known()])
        .flatten()
        .collect();
    if claimed.iter().any(|status| *status != "OK") {
        return Reason {
            because: "the driver offers no peer access on pairs of this host, as its claims say too: a program enabled it without asking first (217), or did so on such a pair".to_string(),
            fix: vec![
                "nothing to repair in the host: an engine or version that asks before it enables, or its settings for going through the host",
            ],
            confidence: Confidence::Probable,
        };
    }
    Reason {
        because: format!(
            "a program enabled peer access on a pair that has none (217): product policy, chipset or guest (CNS, GNS), a registry key (DR), MIG or confidential computing{}",
            match claimed.is_empty() {
                true => "; what the driver claims was not given",
                false =>
                    "; the claims given here say OK, so they are of other GPUs or another time, or NVML and CUDA differ",
            }
        ),
        fix: vec![
            "nvidia-smi topo -p2p r (where the program runs): which pairs the driver refuses, and why",
        ],
        confidence: Confidence::Possible,
    }
}

/// Error 101, and NVML's "Not Found".
fn invisible(snapshot: &Snapshot, text: &str) -> Reason {
    let narrowed = snapshot.environment.iter().find(|(name, value)| {
        matches!(
            name.as_str(),
            "CUDA_VISIBLE_DEVICES" | "NVIDIA_VISIBLE_DEVICES"
        ) && !matches!(value.as_str(), "" | "all" | "void")
    });
    let seen = |because: &str| match narrowed {
        Some((name, value)) => format!("{because} ({name}={value} is set)"),
        None => because.to_string(),
    };
    if text.contains("invalid device ordinal") {
        return Reason {
            because: seen(
                "a process asked for a device number that it does not have: more ranks than visible GPUs, one visible GPU a rank and numbers of all, or a GPU that is gone",
            ),
            fix: vec![
                "nvidia-smi -L (where the ranks run) against the number of ranks; then all GPUs to all ranks (CUDA_VISIBLE_DEVICES unset or equal), chosen by device number",
            ],
            confidence: match narrowed {
                Some(_) => Confidence::Probable,
                None => Confidence::Possible,
            },
        };
    }
    Reason {
        because: seen(
            "NVML does not show a GPU that a peer uses: a container for each GPU, one visible GPU a rank, or a GPU that is gone",
        ),
        fix: vec![
            "nvidia-smi -L (in each rank's container): the lists must be the same; then show all GPUs to all ranks and choose by device number",
        ],
        confidence: Confidence::Probable,
    }
}

fn shm_full() -> Reason {
    Reason {
        because: "NCCL puts its segments into /dev/shm where peers are not used: it is small (docker gives 64 MiB), or full of segments of crashed jobs or of other programs".to_string(),
        fix: vec![
            "'df -h /dev/shm' in the engine's container; where it is small: docker run --shm-size=1g (8 ranks: 2g) or --ipc=host; where it is full: remove segments of crashed jobs (ls -l /dev/shm/nccl-*)",
        ],
        confidence: Confidence::Probable,
    }
}

/// Xids that a kernel log names, with the lines.
pub(super) fn logged(ticket: &Ticket) -> impl Iterator<Item = (Xid, &Citation)> {
    let all = ticket.citations.iter();
    all.filter_map(|citation| Some((Xid::parse(&citation.value)?, citation)))
}

/// Each GPU and code once. A GPU that is gone is told by itself, and what the cause gpu-itself says of a GPU that other texts show is
/// not said twice.
fn xids(snapshot: &Snapshot, ticket: &Ticket) -> Vec<Conclusion> {
    let of_the_gpu = |code: u32| xid::meaning(code).is_some_and(|m| m.of_the_gpu);
    let mut all: Vec<(Xid, Vec<String>)> = Vec::new();
    for (seen, citation) in logged(ticket) {
        let mut gpus = snapshot.gpus.iter();
        let shown = gpus.any(|gpu| gpu.pci.known() == Some(&seen.gpu));
        if seen.code == 79 || shown && of_the_gpu(seen.code) {
            continue;
        }
        let line = format!("{} ({})", citation.value, citation.source);
        match all.iter_mut().find(|(known, _)| *known == seen) {
            Some((_, lines)) => lines.push(line),
            None => all.push((seen, vec![line])),
        }
    }
    // Errors of GPUs before those of programs, and what is not known between them.
    all.sort_by_key(|(seen, _)| match xid::meaning(seen.code) {
        Some(meaning) if meaning.of_the_gpu => 0,
        None => 1,
        Some(_) => 2,
    });
    let conclude = |(Xid { gpu, code }, lines): (Xid, Vec<String>)| {
        let (what, because, fix) = match xid::meaning(code) {
            Some(known) => (known.what, known.because, known.fix),
            None => (
                "the driver reported an error of a GPU",
                "the line has the rest",
                "look the number up in NVIDIA's catalogue of Xid errors",
            ),
        };
        let times = match lines.len() {
            1 => String::new(),
            n => format!(", {n} times"),
        };
        Conclusion {
            title: format!("Xid {code} of {gpu}{times}: {what}"),
            because: because.to_string(),
            evidence: lines.into_iter().take(2).collect(),
            fix: vec![fix.to_string()],
            cause: None,
            confidence: xid::meaning(code).map(|_| Confidence::Probable),
        }
    };
    all.into_iter().map(conclude).collect()
}

/// Peer access over PCIe on GeForce GPUs of a generation to which stock drivers do not offer it.
fn patched_driver(snapshot: &Snapshot) -> Option<Conclusion> {
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    let evidence = suppose_all(snapshot, &[]);
    // Pascal and what came before it had it (facts: failures.md F25).
    let geforce = |gpu: &crate::model::snapshot::Gpu| {
        let name = gpu.name.known();
        name.is_some_and(|n| n.contains("GeForce") && !n.contains("GTX"))
    };
    let over_pcie = OrderedPair::all(count).any(|p| !evidence.has_nvlink(p));
    let is_offered = |p: OrderedPair| {
        let read = snapshot.claims.get(p).and_then(|c| c.p2p_read.known());
        read.is_some_and(|status| status == "OK")
    };
    let offered = count > 1 && OrderedPair::all(count).all(is_offered);
    if !(offered && over_pcie && snapshot.gpus.iter().all(geforce)) {
        return None;
    }
    let mut seen = vec![format!(
        "NVML: OK for all {} ordered pairs",
        count * (count - 1)
    )];
    let params = snapshot.driver.params.known().into_iter().flatten();
    seen.extend(
        params
            .filter(|(name, value)| name.starts_with("RegistryDwords") && !value.is_empty())
            .map(|(name, value)| format!("/proc/driver/nvidia/params: {name}: {value}")),
    );
    Some(Conclusion {
        title: "GeForce GPUs with peer access over PCIe: the driver is patched, or an early one that claims too much".to_string(),
        because: "stock drivers offer none on these GPUs, but for early ones of the 525 line, which claimed it and did not deliver. On patched hosts copies and NCCL were right and the engines' own all-reduce kernels returned garbage (club-3090#922)".to_string(),
        evidence: seen,
        fix: vec![
            "--disable-custom-all-reduce, which keeps NCCL's peers; 'peerproof qualify' tries kernels apart from copies".to_string(),
            format!("{WARNING}a patched driver is unsupported by NVIDIA; what was proven holds for this very build of it"),
        ],
        cause: None,
        confidence: Some(Confidence::Probable),
    })
}

/// How the host serves until its pairs are proven. Said of a symptom of peers that are not known to be refused or switched off. It is a
/// test of the pairs only as far as it is whole: each engine has ways of its own to peers, and one that is left open keeps the symptom.
pub(super) fn meanwhile(snapshot: &Snapshot, ticket: &Ticket) -> Option<String> {
    main_remark(ticket).filter(|r| r.kind.suspects_peers())?;
    let off = |r: &Remark| r.kind == RemarkKind::PeersSwitchedOff && !r.by_person;
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    let refused = claims(&suppose_all(snapshot, &[]), count) == Some(false);
    if count < 2 || refused || ticket.remarks.iter().any(off) {
        return None;
    }
    let engine = ticket.launch.iter().find(|f| f.about == "engine");
    let with = match engine.map(|f| f.value.as_str()) {
        Some("vLLM") => PEERS_OFF.replace("ENGINE", "vllm"),
        Some("SGLang") => PEERS_OFF.replace("ENGINE", "sglang"),
        _ => PEERS_OFF.to_string(),
    };
    // Multicast through NVSwitches, and a pass of vLLM that is on by itself there, are further ways.
    let switched = snapshot.gpus.iter().filter_map(|gpu| gpu.name.known());
    let switched = switched.clone().any(|name| {
        ["H100", "H200", "H800", "H20", "HBM3", "B200", "B300"]
            .iter()
            .any(|n| name.contains(n))
    });
    let further = match switched {
        true => {
            "; on GPUs that NVSwitches join also NCCL_NVLS_ENABLE=0 and, for vLLM, fuse_allreduce_rms:false in its pass config"
        }
        false => "",
    };
    Some(format!(
        "{with}{further}. A symptom that stays clears the pairs only where every switch of the engine's list is set"
    ))
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
        because: "NCCL's level allows P2P up to a path type only (across host bridges often not), and never where the driver refuses it or ranks do not see each other's GPUs; no fault by itself".to_string(),
        evidence: vec![format!(
            "{} -> {} via {} ({})",
            shm.devices.0, shm.devices.1, shm.via, shm.source
        )],
        fix: vec!["NCCL_P2P_LEVEL=SYS uses it on all paths where the driver offers it; only after 'peerproof qualify' has proven them".to_string()],
        cause: None,
        confidence: Some(Confidence::Probable),
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
    let shown = |p: OrderedPair| {
        let path = snapshot.topology.pairs.get(p);
        evidence.path_type(p).is_some() || path.is_some_and(|path| path.nvlink_known)
    };
    let told = count > 1 && OrderedPair::all(count).all(shown);
    let nvlink = |class: bool| match class {
        true => format!("NVLink joins all {count} GPUs here, so the topology would allow it"),
        false if told => format!("not all {count} GPUs are joined by NVLink here"),
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
            confidence: None,
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
                confidence: None,
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
        // The engine names its rule itself; why its test of peers failed it does not know.
        confidence: text
            .contains("P2P test failed")
            .then_some(Confidence::Probable),
    })
}
