//! What pasted logs and claims state for certain: what an engine or NCCL says of itself, why it says so, and what to do. In
//! the words of the rules behind them (facts: failures.md part 2, engines.md 2 and 3).

use super::{claims, main_remark, suppose_all};
use crate::diagnose::cause::gpu_itself;
use crate::model::{
    pair::OrderedPair,
    snapshot::Snapshot,
    ticket::{Conclusion, Remark, RemarkKind, Ticket},
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
        let mut logged = ticket.citations.iter();
        let who = logged
            .find_map(|c| c.about.strip_prefix("Xid 79 of "))
            .map_or_else(|| "a GPU".to_string(), |address| format!("GPU {address}"));
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

/// What an Xid says, and what to do, in the words of NVIDIA's catalogue of Xid errors.
fn meaning(code: u32) -> (&'static str, &'static str, &'static str) {
    const PROGRAM: &str = "mostly a defect of the program that ran then; on a host whose direct copies are wrong also its consequence";
    const MEMORY: &str = "it is the GPU's own memory or its controller, not a path between GPUs";
    match code {
        13 => (
            "a kernel of a program was stopped",
            PROGRAM,
            "find the program by its pid; compute-sanitizer names the access",
        ),
        31 => (
            "a program touched an address that is not mapped",
            PROGRAM,
            "find the program by its pid; where several programs do it, 'peerproof qualify'",
        ),
        43 | 45 => (
            "the work of a program was ended",
            "a consequence of an error before it or of an end by force",
            "look for the first Xid of the same time",
        ),
        48 => (
            "a memory error that cannot be corrected",
            MEMORY,
            "reset the GPU, then 'nvidia-smi -q -d ECC,ROW_REMAPPER'; replace it if it comes back",
        ),
        61 | 62 => (
            "the GPU's controller stopped",
            "it is the GPU, its power or its firmware",
            "power-cycle the host; replace the GPU if it comes back",
        ),
        63 => (
            "a row of memory will be remapped",
            "expected once after an error that could not be corrected",
            "reset the GPU so that it takes effect, then 'nvidia-smi -q -d ROW_REMAPPER'",
        ),
        64 => (
            "a row of memory could not be remapped",
            MEMORY,
            "take the GPU out of service and replace it",
        ),
        74 => (
            "an NVLink failed",
            "it is one GPU, the other end, or what joins them",
            "'nvidia-smi nvlink -e' on both ends: which link counts errors; reseat, then replace",
        ),
        94 => (
            "a memory error was contained: one program was hit",
            MEMORY,
            "restart that program; reset the GPU when nothing runs on it",
        ),
        95 => (
            "a memory error was not contained: any program may be hit",
            MEMORY,
            "end all work on the GPU, reset it, then 'nvidia-smi -q -d ECC,ROW_REMAPPER'",
        ),
        119 | 120 => (
            "the GPU's firmware processor does not answer",
            "it is the firmware, or a GPU that is going",
            "power-cycle the host; where it comes back, another driver version; then replace the GPU",
        ),
        _ => (
            "the driver reported an error of a GPU",
            "the line has the rest",
            "look the number up in NVIDIA's catalogue of Xid errors",
        ),
    }
}

/// Xids that a kernel log names, each GPU and code once. A GPU that is gone is told by itself, and what the cause gpu-itself says of
/// a GPU that other texts show is not said twice.
fn xids(snapshot: &Snapshot, ticket: &Ticket) -> Vec<Conclusion> {
    let mut all: Vec<(&str, u32, &str, Vec<String>)> = Vec::new();
    for citation in &ticket.citations {
        let Some((code, address)) = citation
            .about
            .strip_prefix("Xid ")
            .and_then(|rest| rest.split_once(" of "))
        else {
            continue;
        };
        let Ok(code) = code.parse::<u32>() else {
            continue;
        };
        let told = snapshot.gpus.iter().any(|gpu| {
            let pci = gpu.pci.known();
            pci.is_some_and(|p| p.to_string() == address) && gpu_itself::says(code)
        });
        if code == 79 || told {
            continue;
        }
        let line = format!("{} ({})", citation.value, citation.source);
        match all
            .iter_mut()
            .find(|(a, c, ..)| *a == address && *c == code)
        {
            Some((.., lines)) => lines.push(line),
            None => all.push((address, code, meaning(code).0, vec![line])),
        }
    }
    // Errors of GPUs before those of programs.
    all.sort_by_key(|(_, code, ..)| matches!(code, 13 | 31 | 43 | 45));
    let conclude = |(address, code, what, lines): (&str, u32, &str, Vec<String>)| {
        let (_, because, fix) = meaning(code);
        let times = match lines.len() {
            1 => String::new(),
            n => format!(", {n} times"),
        };
        Conclusion {
            title: format!("Xid {code} of {address}{times}: {what}"),
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
