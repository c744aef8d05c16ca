//! What pasted logs and claims state for certain: what an engine or NCCL says of itself, why it says so, and what to do. In
//! the words of the rules behind them (facts: failures.md part 2, engines.md 2 and 3).

use super::{claims, main_remark, suppose_all};
use crate::diagnose::xid;
use crate::model::{
    pair::OrderedPair,
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
    };
    if let Some(lost) = said(RemarkKind::GpuLost) {
        let who = logged(ticket)
            .find(|(seen, _)| seen.code == 79)
            .map_or_else(
                || "a GPU".to_string(),
                |(seen, _)| format!("GPU {}", seen.gpu),
            );
        out.push(make(
            format!("{who} does not answer any more"),
            "all that follows from it (hangs, refusals, missing peers) is its consequence; pairs are not to be blamed"
                .to_string(),
            vec![line(lost)],
            vec!["power-cycle the host, then reseat or replace the GPU or its riser; AER lines of its port in 'sudo dmesg' say whether the link failed first"],
        ));
    }
    out.extend(xids(snapshot, ticket));
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
    let symptom = main_remark(ticket).filter(|r| r.kind.suspects_peers());
    let switched_off = if symptom.is_some() {
        "NCCL goes through host memory because it was told to, and the symptom is there all the same: it is not NCCL's peer path. The engines' own all-reduce kernels do not read this variable: --disable-custom-all-reduce as well, and if it stays, look at host memory, driver and model rather than at the pairs"
    } else {
        "NCCL goes through host memory because it was told to; the engines' own all-reduce kernels do not read this variable"
    };
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
            RemarkKind::PeersSwitchedOff,
            switched_off,
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
    out.extend(patched_driver(snapshot));
    out
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
        }
    };
    all.into_iter().map(conclude).collect()
}

/// Peer access over PCIe on GeForce GPUs, which no stock driver gives.
fn patched_driver(snapshot: &Snapshot) -> Option<Conclusion> {
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    let evidence = suppose_all(snapshot, &[]);
    let geforce =
        |gpu: &crate::model::snapshot::Gpu| gpu.name.known().is_some_and(|n| n.contains("GeForce"));
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
        title: "GeForce GPUs with peer access over PCIe: the driver is patched".to_string(),
        because: "the stock driver offers none. On such hosts copies and NCCL were right and the engines' own all-reduce kernels returned garbage (club-3090#922)".to_string(),
        evidence: seen,
        fix: vec![
            "--disable-custom-all-reduce, which keeps NCCL's peers; 'peerproof qualify' tries kernels apart from copies".to_string(),
        ],
        cause: None,
    })
}

/// How the host serves until its pairs are proven, which is the test that needs no tool: a symptom that stays with every
/// peer path off is not the pairs'. Said of a symptom of peers that are not known to be refused or switched off.
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
        Some("vLLM") => {
            "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 with --disable-custom-all-reduce"
        }
        Some("SGLang") => {
            "NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce, without --enable-symm-mem"
        }
        _ => {
            "NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce (vLLM also VLLM_ALLREDUCE_USE_SYMM_MEM=0)"
        }
    };
    Some(format!("{with}; a symptom that stays is not the pairs'"))
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
