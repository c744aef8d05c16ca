//! Whether GPUs talk over NVLink although no text shows the links of their pairs: NVSwitches on the bus, a registered fabric, or
//! modules that are built for nothing else. Their peers then do not cross the PCIe ports, ACS and the IOMMU that texts show.

use super::suppose_all;
use crate::diagnose::evidence::Evidence;
use crate::model::{
    finding::Confidence,
    pair::OrderedPair,
    snapshot::{FabricState, Gpu, Snapshot},
    ticket::Conclusion,
};

/// What speaks for NVLink, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ground {
    Switches,
    Fabric,
    Modules,
}

/// Whether the pair goes over NVLink as far as texts tell: its links are shown, or something else speaks for them and nothing shows
/// that there are none.
pub(super) fn over_nvlink(e: &Evidence, pair: OrderedPair) -> bool {
    let path = e.snapshot.topology.pairs.get(pair);
    let none = path.is_some_and(|p| p.nvlink_known && p.nvlinks == 0);
    match ground(e, pair) {
        _ if e.has_nvlink(pair) => true,
        Some(Ground::Switches) => true,
        Some(_) => !none,
        None => false,
    }
}

fn ground(e: &Evidence, pair: OrderedPair) -> Option<Ground> {
    if !e.snapshot.nvswitches.is_empty() {
        return Some(Ground::Switches);
    }
    let (source, destination) = (
        e.snapshot.gpu(pair.source)?,
        e.snapshot.gpu(pair.destination)?,
    );
    match (source.fabric.known(), destination.fabric.known()) {
        (Some(a), Some(b)) if is_complete(a) && is_complete(b) => {
            ((&a.cluster, a.clique) == (&b.cluster, b.clique)).then_some(Ground::Fabric)
        }
        // The driver says itself that it is not up.
        (Some(a), _) | (_, Some(a)) if a.state != "not_supported" => None,
        _ => (is_module(source) && is_module(destination)).then_some(Ground::Modules),
    }
}

fn is_complete(fabric: &FabricState) -> bool {
    fabric.state == "completed" && fabric.status == 0
}

/// Parts whose boards join every GPU with every other. Those of V100's time join some, and guests get any of them.
fn is_module(gpu: &Gpu) -> bool {
    gpu.name.known().is_some_and(|name| {
        let has = |words: &[&str]| words.iter().any(|w| name.contains(w));
        let card = has(&["PCIe", "NVL", "GH200", "SXM2", "SXM3"]);
        !card && (has(&["SXM", "HBM3", "H200", "B200", "B300"]))
    })
}

const FABRIC_MANAGER: &str = "systemctl status nvidia-fabricmanager (in a guest: on its host)";

/// What `topo -m` shows between GPUs of a board that is whole: links of a pair by generation.
fn links(names: &[&str]) -> &'static str {
    let all = |parts: &[&str]| {
        !names.is_empty()
            && names
                .iter()
                .all(|n| parts.iter().any(|part| n.contains(part)))
    };
    if all(&["A100", "A30"]) {
        "NV12"
    } else if all(&["A800", "H800", "H20 ", "H20-"]) {
        "NV8 or more"
    } else if all(&["V100"]) {
        "NV1 to NV6"
    } else if all(&["H100", "H200", "B200", "B300", "HBM3"]) {
        "NV18"
    } else {
        "NV12 (A100), NV18 (Hopper and later) or the like"
    }
}

/// Whether the driver tells a fabric state of these GPUs: from Hopper on it does. `None` where no name tells the generation.
pub(super) fn tells_fabric(names: &[&str]) -> Option<bool> {
    let has = |parts: &[&str]| {
        names
            .iter()
            .any(|n| parts.iter().any(|part| n.contains(part)))
    };
    if has(&["V100", "A100", "A800", "A30", "A40"]) {
        Some(false)
    } else if has(&["H100", "H200", "H800", "H20", "HBM3", "B200", "B300"]) {
        Some(true)
    } else {
        None
    }
}

/// What shows whether the fabric is up.
fn state_shown_by(names: &[&str]) -> String {
    const QUERY: &str = "nvidia-smi -q (Fabric: State Completed, Status Success)";
    match tells_fabric(names) {
        Some(true) => QUERY.to_string(),
        Some(false) => format!(
            "{FABRIC_MANAGER}: these GPUs tell no fabric state, and CUDA answers error 802 until it is up"
        ),
        None => format!("from Hopper on {QUERY}, before it {FABRIC_MANAGER}"),
    }
}

/// What is to be said where no text shows the links themselves.
pub(super) fn switched(snapshot: &Snapshot) -> Option<Conclusion> {
    let evidence = suppose_all(snapshot, &[]);
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    if OrderedPair::all(count).any(|p| evidence.has_nvlink(p)) {
        return None;
    }
    let switches = &snapshot.nvswitches;
    let mut grounds = OrderedPair::all(count).map(|p| ground(&evidence, p));
    let ground = match grounds.next() {
        None if switches.is_empty() => return None,
        None => Ground::Switches,
        Some(first) => grounds.all(|g| g == first).then_some(first).flatten()?,
    };
    let told = snapshot
        .claims
        .iter()
        .any(|(_, claims)| claims.common_ancestor.known().is_some());
    let who = match ground {
        Ground::Switches => format!("{} NVSwitches", switches.len()),
        Ground::Fabric if count == 2 => "the NVLink fabric is complete on both GPUs".to_string(),
        Ground::Fabric => format!("the NVLink fabric is complete on all {count} GPUs"),
        Ground::Modules => format!("{count} GPUs on SXM modules"),
    };
    let names: Vec<&str> = snapshot
        .gpus
        .iter()
        .filter_map(|gpu| Some(gpu.name.known()?.as_str()))
        .collect();
    let links = links(&names);
    let state = state_shown_by(&names);
    let (title, because, fix) = match (told, ground) {
        (false, Ground::Switches) => (
            format!("{who}: an SXM baseboard, whose GPUs talk over NVLink"),
            "direct copies between these GPUs do not cross the PCIe ports, ACS and the IOMMU that lspci shows, as long as the fabric is up; whether it is, these texts do not say",
            format!("nvidia-smi topo -m ({links} between all GPUs) and {state}"),
        ),
        (false, Ground::Fabric) => (
            format!("{who}: they talk over NVLink, not over PCIe"),
            "only GPUs behind NVSwitches register. Direct copies between them do not cross PCIe ports, ACS, the IOMMU or what a hypervisor lets through of PCIe; a state of Completed can be stale, and a rate tells",
            format!("nvidia-smi topo -m ({links} between all GPUs)"),
        ),
        (false, Ground::Modules) => (
            format!("{who}, whose boards join them by NVLink"),
            "direct copies between such GPUs do not cross PCIe, as long as the links are up and, on boards with NVSwitches, the fabric is; whether they are, these texts do not say",
            format!("nvidia-smi topo -m ({links} between all GPUs) and {state}"),
        ),
        (true, Ground::Fabric) => (
            format!("{who}, and the table shows no NVLink between them"),
            "a registration that went stale, links that are down or switched off, or the table is of another host; copies that the driver lets through then cross PCIe",
            "nvidia-smi nvlink -s; nvidia-smi topo -p2p n".to_string(),
        ),
        (true, _) => (
            format!("{who}, and no NVLink between the GPUs"),
            "the driver shows PCIe paths where an SXM baseboard has NVLink: the fabric is not up (nvidia-fabricmanager), a guest was given GPUs without their links, or the table is of another host",
            match tells_fabric(&names) {
                Some(false) => FABRIC_MANAGER.to_string(),
                _ => format!("{FABRIC_MANAGER}; {state}"),
            },
        ),
    };
    let seen: Vec<String> = match ground {
        Ground::Switches => {
            let shown: Vec<String> = switches.iter().take(8).map(ToString::to_string).collect();
            vec![format!("NVSwitches on the bus: {}", shown.join(", "))]
        }
        Ground::Fabric => vec!["GPU0: fabric state completed, status success".to_string()],
        Ground::Modules => {
            let name = snapshot.gpus.first().and_then(|g| g.name.known());
            vec![format!("GPU0: {}", name.map_or("", String::as_str))]
        }
    };
    Some(Conclusion {
        title,
        because: because.to_string(),
        evidence: seen,
        fix: vec![fix],
        cause: None,
        confidence: (told || ground == Ground::Modules).then_some(Confidence::Probable),
    })
}
