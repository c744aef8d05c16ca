//! From the file of a host to a snapshot, records and observations, through the model's public types.

use super::format::{Base, HostFile, OutcomeRule};
use peerproof::model::{
    case::{Case, Corruption, Outcome, PeerAccess, Record, Rung, Subject, UnitCounts, WrongKind},
    measurement::{Measurement, Unit},
    pair::{GpuIndex, OrderedPair, PairTable},
    pci::{PciAddress, PciIdentity, PcieLink},
    reading::{Absence, Grade, Reading},
    snapshot::{
        AcsControl, AerCounters, Bridge, BridgeObservation, BridgePort, FabricState, Gpu,
        GpuObservation, HostBridge, IommuGroup, LogLine, NvLink, NvLinkEnd, Observation, Origin,
        PairClaims, RemappedRows, Snapshot,
    },
    topology::{FabricClass, PairPath, PathType},
};

/// What a report would hold.
pub(crate) struct Built {
    pub(crate) snapshot: Snapshot,
    pub(crate) records: Vec<Record>,
    pub(crate) observations: Vec<Observation>,
}

const MIB: u64 = 1 << 20;
const GEN4: PcieLink = PcieLink {
    speed_gts: 16.0,
    width: 16,
};
/// Mechanisms of pairs with their rungs.
const MECHANISMS: [(&str, Rung); 6] = [
    ("bounce", Rung::Staged),
    ("staged", Rung::Staged),
    ("ce-push", Rung::Copied),
    ("ce-pull", Rung::Copied),
    ("sm-store", Rung::Touched),
    ("sm-load", Rung::Touched),
];

fn known<T>(value: T) -> Reading<T> {
    Reading::Known(value)
}

fn unread<T>() -> Reading<T> {
    Reading::Absent(Absence::NoPermission("not read by this user".into()))
}

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn gpu_at(i: u32) -> PciAddress {
    address(&format!("0000:{:02x}:00.0", 0x80 + i))
}

/// How many GPUs hang below one switch; 1 = none.
fn per_switch(base: &Base) -> u32 {
    match base.shape.as_str() {
        "switch-pairs" => 2,
        "switch-quads" => 4,
        _ => 1,
    }
}

/// Bridges from the GPU's parent up.
fn chain(base: &Base, gpu: u32) -> Vec<PciAddress> {
    let size = per_switch(base);
    let group = gpu / size;
    let root = address(&format!("0000:00:{:02x}.1", group + 1));
    if size == 1 {
        return vec![root];
    }
    vec![
        address(&format!("0000:{:02x}:{:02x}.0", 0x40 + group, gpu % size)),
        address(&format!("0000:{:02x}:00.0", 0x20 + group)),
        root,
    ]
}

/// Whether both GPUs are of one half of the host.
fn near(base: &Base, pair: OrderedPair) -> bool {
    let half = (base.gpus / 2).max(1);
    pair.source.0 / half == pair.destination.0 / half
}

fn path(base: &Base, pair: OrderedPair) -> Option<PathType> {
    let size = per_switch(base);
    Some(match base.shape.as_str() {
        "two-sockets" if near(base, pair) => PathType::Node,
        "two-sockets" => PathType::Sys,
        "switch-pairs" | "switch-quads" if pair.source.0 / size == pair.destination.0 / size => {
            PathType::Pix
        }
        "switch-pairs" | "switch-quads" if near(base, pair) => PathType::Node,
        "switch-pairs" | "switch-quads" => PathType::Sys,
        "guest" => return None,
        _ => PathType::Phb,
    })
}

/// NVLinks of the pair, and whether they go through a switch.
fn nvlinks(base: &Base, pair: OrderedPair) -> (u32, bool) {
    match base.shape.as_str() {
        "nvswitch" => (18, true),
        "nvlink-pairs" if pair.source.0 / 2 == pair.destination.0 / 2 => (4, false),
        _ => (0, false),
    }
}

fn links_of(base: &Base, gpu: u32) -> Vec<NvLink> {
    let (count, remote_kind) = match base.shape.as_str() {
        "nvswitch" => (18, NvLinkEnd::Switch),
        "nvlink-pairs" if gpu ^ 1 < base.gpus => (4, NvLinkEnd::Gpu),
        _ => (0, NvLinkEnd::Unknown),
    };
    (0..count)
        .map(|link| NvLink {
            link,
            active: true,
            version: Some(4),
            raw_gb_per_s: Some(26.562),
            remote: None,
            remote_kind,
            errors: None,
        })
        .collect()
}

fn gpu(base: &Base, at: u32) -> Gpu {
    let links = links_of(base, at);
    Gpu {
        pci: known(gpu_at(at)),
        uuid: known(format!("GPU-00000000-0000-0000-0000-{at:012}")),
        name: known(base.name.clone()),
        nvml_index: known(at),
        label: format!("GPU{at}"),
        memory_bytes: known(base.memory_gib << 30),
        bar1_bytes: known(base.bar1_mib.map_or(base.memory_gib << 30, |m| m * MIB)),
        ecc_uncorrected: known(0),
        mig_enabled: known(false),
        nvlinks: if links.is_empty() {
            Reading::Absent(Absence::NotSupported("Not Supported".into()))
        } else {
            known(links)
        },
        fabric: Reading::Absent(Absence::NotSupported("Not Supported".into())),
        link_now: known(GEN4),
        link_max: known(GEN4),
        bridge_chain: known(chain(base, at)),
        p2p_clique: known(None),
        ..Gpu::default()
    }
}

fn bridge(pci: PciAddress, parent: Option<PciAddress>, port: BridgePort, emulated: bool) -> Bridge {
    Bridge {
        pci,
        parent,
        identity: Reading::default(),
        chip: None,
        port,
        emulated,
        acs: known(AcsControl {
            capability: 0x5f,
            control: 0,
        }),
        link_now: known(GEN4),
        link_max: known(GEN4),
        aer: known(AerCounters {
            correctable: 0,
            nonfatal: 0,
            fatal: 0,
        }),
        numa_node: known(0),
    }
}

fn snapshot(base: &Base) -> Result<Snapshot, String> {
    let mut snapshot = Snapshot::empty(Origin::Recorded {
        format: "synthesised".into(),
        file: "tests/hosts".into(),
    });
    let guest = base.shape == "guest";
    let host = &mut snapshot.host;
    host.hypervisor = known(guest);
    host.iommu_classes = known(Vec::new());
    host.kernel_log = known(Vec::new());
    host.cmdline = known("quiet".into());
    host.container = known(None);
    host.shm_bytes = known(64 << 30);
    host.shm_free_bytes = known(64 << 30);
    host.ptrace_scope = known(1);
    host.seccomp = known(0);
    host.capabilities = known(0);
    snapshot.driver.confidential_computing = known(false);
    for at in 0..base.gpus {
        snapshot.gpus.push(gpu(base, at));
        let above = chain(base, at);
        for (up, pci) in above.iter().enumerate() {
            let port = match (above.len(), up) {
                (1, _) | (3, 2) => BridgePort::Root,
                (_, 1) => BridgePort::SwitchUpstream,
                _ => BridgePort::SwitchDownstream,
            };
            if snapshot.bridge(*pci).is_none() {
                let parent = above.get(up + 1).copied();
                snapshot.bridges.push(bridge(*pci, parent, port, guest));
            }
        }
    }
    snapshot.claims = PairTable::new(base.gpus);
    snapshot.topology.pairs = PairTable::new(base.gpus);
    snapshot.topology.class = match base.shape.as_str() {
        "root-complex" => FabricClass::RootComplexSingleSocket,
        "two-sockets" => FabricClass::RootComplexCrossSocket,
        "switch-pairs" | "switch-quads" => FabricClass::PcieSwitch,
        "nvswitch" => FabricClass::Nvswitch,
        "nvlink-pairs" => FabricClass::NvlinkPairs,
        "guest" => FabricClass::VmOpaque,
        other => return Err(format!("base.shape: '{other}'")),
    };
    for pair in OrderedPair::all(base.gpus) {
        let (nvlinks, through_nvswitch) = nvlinks(base, pair);
        let (mut up, mut down) = (chain(base, pair.source.0), chain(base, pair.destination.0));
        // Below the common ancestor, which stays in once: its ports are the ones that could redirect.
        while up.len() > 1 && up.get(up.len() - 2) == down.get(down.len().wrapping_sub(2)) {
            up.pop();
            down.pop();
        }
        if up.last() == down.last() {
            down.pop();
        }
        let path = PairPath {
            pcie: path(base, pair),
            nvlinks,
            nvlink_known: true,
            through_nvswitch,
            bridges: up.into_iter().chain(down.into_iter().rev()).collect(),
            grade: Grade::Advertised,
        };
        snapshot.topology.pairs.set(pair, path);
    }
    Ok(snapshot)
}

fn intact(base: &Base) -> Vec<Record> {
    let mut records = Vec::new();
    if base.untried {
        return records;
    }
    for at in 0..base.gpus {
        records.push(record(
            Subject::Gpu(GpuIndex(at)),
            "memory",
            Rung::Alone,
            MIB,
            0,
        ));
    }
    for pair in OrderedPair::all(base.gpus) {
        let tried = MECHANISMS
            .iter()
            .filter(|(m, _)| !base.not_tried.iter().any(|n| n == m));
        records.extend(tried.map(|(m, rung)| record(Subject::Pair(pair), m, *rung, MIB, 0)));
    }
    records
}

fn record(subject: Subject, mechanism: &str, rung: Rung, bytes: u64, offset: u64) -> Record {
    Record {
        case: Case {
            id: 0,
            subject,
            mechanism: mechanism.into(),
            rung,
            bytes,
            offset,
            attempts: 3,
            timed: false,
            load: None,
            all_reduce: None,
            soak: false,
        },
        outcome: Outcome::Intact,
        peer_access: match rung {
            Rung::Alone => PeerAccess::NotApplicable,
            Rung::Advertised | Rung::Staged => PeerAccess::Off,
            _ => PeerAccess::Both,
        },
        executor: String::new(),
        attempts_ran: 3,
        rate: None,
        alone: true,
        took_ms: 1.0,
        notes: Vec::new(),
    }
}

fn outcome(text: &str) -> Result<Outcome, String> {
    if let Some(kind) = WrongKind::ALL.into_iter().find(|k| k.name() == text) {
        return Ok(Outcome::Corrupt(Box::new(Corruption {
            kind,
            detail: kind.name().into(),
            attempt: 1,
            wrong_attempts: 3,
            attempts_ran: 3,
            first_offset: 0,
            last_offset: MIB,
            wrong_units: 1 << 16,
            units: 1 << 16,
            counts: UnitCounts::default(),
            samples: Vec::new(),
            accessor_sees_right: (kind == WrongKind::Mirrored).then_some(true),
            source_intact: Some(true),
            owner_views_agree: Some(true),
        })));
    }
    let code = |text: &str| {
        text.parse::<u32>()
            .map_err(|e| format!("result '{text}': {e}"))
    };
    Ok(match text.split_once(':').unwrap_or((text, "")) {
        ("intact", _) => Outcome::Intact,
        ("hang", _) => Outcome::TimedOut { after_ms: 5000 },
        ("died", _) => Outcome::Died {
            how: "signal 9 (SIGKILL)".into(),
        },
        ("refused", number) => Outcome::Refused {
            api: "cuCtxEnablePeerAccess".into(),
            code: code(number)?,
            name: "refused".into(),
        },
        ("fault", number) => Outcome::Faulted {
            api: "cuInit".into(),
            code: code(number)?,
            name: "failed".into(),
        },
        ("not-applicable", _) => Outcome::NotApplicable {
            reason: "no peer access".into(),
        },
        ("not-run", why) => Outcome::NotRun { reason: why.into() },
        _ => return Err(format!("result '{text}'")),
    })
}

fn subjects(base: &Base, of: &str) -> Result<Vec<Subject>, String> {
    let pairs = OrderedPair::all(base.gpus);
    Ok(match of {
        "all" => pairs.map(Subject::Pair).collect(),
        "near" => pairs
            .filter(|p| near(base, *p))
            .map(Subject::Pair)
            .collect(),
        "far" => pairs
            .filter(|p| !near(base, *p))
            .map(Subject::Pair)
            .collect(),
        list => {
            let one = |word: &str| -> Option<Subject> {
                if let Some(gpu) = word.strip_prefix("GPU") {
                    return Some(Subject::Gpu(GpuIndex(gpu.parse().ok()?)));
                }
                let (a, b) = word.split_once("->")?;
                OrderedPair::new(a.parse().ok()?, b.parse().ok()?).map(Subject::Pair)
            };
            let words = list.split_whitespace();
            words
                .map(|w| one(w).ok_or_else(|| format!("of: '{w}'")))
                .collect::<Result<_, _>>()?
        }
    })
}

/// Mechanisms by name or group, with their rungs.
fn mechanisms(rule: &OutcomeRule) -> Result<Vec<(String, Rung)>, String> {
    let rung_named = |name: &str| Rung::LADDER.into_iter().find(|r| r.name() == name);
    let own = match &rule.rung {
        Some(name) => Some(rung_named(name).ok_or_else(|| format!("rung '{name}'"))?),
        None => None,
    };
    let mut all = Vec::new();
    for word in &rule.mechanisms {
        let group = |r: Rung| match word.as_str() {
            "all" => true,
            "copies" => r == Rung::Copied,
            "kernels" => r == Rung::Touched,
            "direct" => r >= Rung::Copied,
            _ => false,
        };
        let known = MECHANISMS
            .iter()
            .filter(|(m, r)| m == word || group(*r))
            .map(|(m, r)| (m.to_string(), own.unwrap_or(*r)));
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            // A mechanism of a single GPU, or of a rung that the rule names.
            all.push((word.clone(), own.unwrap_or(Rung::Alone)));
        }
        all.extend(known);
    }
    Ok(all)
}

fn apply(base: &Base, rule: &OutcomeRule, records: &mut Vec<Record>) -> Result<(), String> {
    let result = outcome(&rule.result)?;
    for subject in subjects(base, &rule.of)? {
        for (mechanism, rung) in mechanisms(rule)? {
            let bytes = rule.bytes.unwrap_or(MIB);
            let at = records.iter().position(|r| {
                r.case.subject == subject
                    && r.case.mechanism == mechanism
                    && r.case.rung == rung
                    && (r.case.bytes, r.case.offset) == (bytes, rule.offset)
            });
            let mut row = record(subject, &mechanism, rung, bytes, rule.offset);
            row.outcome = result.clone();
            row.rate = rule.rate.map(|rate| Measurement {
                samples: vec![rate * 0.98, rate, rate * 1.02],
                unit: Unit::GbPerS,
                warmup: 1,
                method: "synthesised".into(),
                caveats: Vec::new(),
            });
            row.alone = rung != Rung::Loaded;
            if let (Rung::Shared, Outcome::Refused { api, .. }) = (rung, &mut row.outcome) {
                *api = "cuIpcOpenMemHandle".into();
            }
            match at.and_then(|at| records.get_mut(at)) {
                Some(place) => *place = row,
                None => records.push(row),
            }
        }
    }
    Ok(())
}

fn readings(file: &HostFile, snapshot: &mut Snapshot) -> Result<(), String> {
    let facts = &file.host;
    let host = &mut snapshot.host;
    match facts.hypervisor.as_deref() {
        None => {}
        Some("yes") => host.hypervisor = known(true),
        Some("no") => host.hypervisor = known(false),
        Some("unread") => host.hypervisor = Reading::default(),
        Some(other) => return Err(format!("host.hypervisor: '{other}'")),
    }
    if let Some((vendor, product)) = facts.dmi.as_deref().and_then(|d| d.split_once(" / ")) {
        host.dmi_vendor = known(vendor.into());
        host.dmi_product = known(product.into());
    }
    if let Some(line) = &facts.cmdline {
        host.cmdline = known(line.clone());
    }
    host.kernel_log = known(facts.kernel_log.clone());
    if let Some(kind) = &facts.container {
        host.container = known(Some(kind.clone()));
    }
    if let Some(mib) = facts.shm_mib {
        host.shm_bytes = known(mib * MIB);
        host.shm_free_bytes = known(mib * MIB);
    }
    let set = |place: &mut Reading<u32>, value: Option<u32>| {
        if let Some(value) = value {
            *place = known(value);
        }
    };
    set(&mut host.ptrace_scope, facts.yama);
    set(&mut host.seccomp, facts.seccomp);
    if let Some(mask) = facts.capabilities {
        host.capabilities = known(mask);
    }
    let class = facts.iommu_class.clone().unwrap_or("ivhd0".into());
    match facts.iommu.as_deref() {
        None | Some("none") => {}
        Some("unread") => host.iommu_classes = unread(),
        Some(kind) => {
            host.iommu_classes = known(vec![class]);
            for (group, gpu) in (0..).zip(&mut snapshot.gpus) {
                gpu.iommu = known(IommuGroup {
                    group,
                    domain_type: known(kind.into()),
                });
            }
        }
    }
    if let Some(control) = facts.acs {
        let redirecting = |b: &&mut Bridge| b.port != BridgePort::SwitchUpstream;
        for bridge in snapshot.bridges.iter_mut().filter(redirecting) {
            bridge.acs = match u16::try_from(control) {
                Ok(control) => known(AcsControl {
                    capability: 0x5f,
                    control,
                }),
                Err(_) => unread(),
            };
        }
    }
    if facts.acs == Some(-1) || facts.iommu.as_deref() == Some("unread") {
        for gpu in &mut snapshot.gpus {
            gpu.p2p_clique = unread();
        }
    }
    if let Some(clique) = facts.clique {
        for gpu in &mut snapshot.gpus {
            gpu.p2p_clique = known(Some(clique));
        }
    }
    if let Some((vendor, device)) = facts.host_bridge.as_deref().and_then(|b| b.split_once(':')) {
        let hex = |t: &str| u16::from_str_radix(t, 16).map_err(|e| e.to_string());
        snapshot.host_bridges.push(HostBridge {
            pci: address("0000:00:00.0"),
            identity: PciIdentity {
                vendor: hex(vendor)?,
                device: hex(device)?,
                class: 0x0600,
            },
        });
    }
    snapshot.application_log = (1..)
        .zip(&facts.application_log)
        .map(|(line, text)| LogLine {
            source: format!("engine.log:{line}"),
            text: text.clone(),
        })
        .collect();
    snapshot.environment = facts.environment.clone().into_iter().collect();
    let driver = &mut snapshot.driver;
    driver.version = known(facts.driver.clone().unwrap_or("580.159.04".into()));
    driver.flavour = known("open".into());
    driver.params = known(facts.params.clone().into_iter().collect());
    if let Some(on) = facts.confidential {
        driver.confidential_computing = known(on);
    }
    if let Some(mode) = &facts.confidential_mode {
        driver.confidential_multi_gpu = known(mode.clone());
    }
    if let Some(off) = facts.hmm_disabled {
        driver.hmm_disabled = known(off);
    }
    set(&mut driver.imex_channels, facts.imex_channels);
    Ok(())
}

fn claims(file: &HostFile, snapshot: &mut Snapshot) -> Result<(), String> {
    let mut set = |pair: OrderedPair, status: &str| {
        let claim = PairClaims {
            p2p_read: known(status.into()),
            p2p_write: known(status.into()),
            ..PairClaims::default()
        };
        snapshot.claims.set(pair, claim);
    };
    match file.host.claims.as_deref() {
        Some("unread") => {}
        status => OrderedPair::all(file.base.gpus).for_each(|p| set(p, status.unwrap_or("OK"))),
    }
    for rule in &file.claim {
        for subject in subjects(&file.base, &rule.of)? {
            if let Some(pair) = subject.pair() {
                set(pair, &rule.status);
            }
        }
    }
    Ok(())
}

fn differing_gpus(file: &HostFile, snapshot: &mut Snapshot) -> Result<(), String> {
    for rule in &file.gpu {
        for at in &rule.gpus {
            let gpu = snapshot
                .gpus
                .get_mut(*at as usize)
                .ok_or("gpu.gpus: no such GPU")?;
            if let Some(on) = rule.mig {
                gpu.mig_enabled = known(on);
            }
            if let Some(state) = &rule.fabric {
                gpu.fabric = known(FabricState {
                    state: state.clone(),
                    status: rule.fabric_status,
                    cluster: "00".repeat(16),
                    clique: rule.clique,
                    health_mask: Some(0),
                });
            }
            if let (Some(down), Reading::Known(links)) = (&rule.links_down, &mut gpu.nvlinks) {
                links
                    .iter_mut()
                    .for_each(|l| l.active = !down.contains(&l.link));
            }
            if let Some((speed_gts, width)) = rule.link_now {
                gpu.link_now = known(PcieLink { speed_gts, width });
            }
            if let Some(failed) = rule.remap_failed {
                gpu.remapped_rows = known(RemappedRows {
                    correctable: 0,
                    uncorrectable: 1,
                    pending: false,
                    failed,
                });
            }
            if rule.hidden == Some(true) {
                gpu.nvml_index = Reading::Absent(Absence::SourceMissing("not in NVML".into()));
            }
        }
    }
    Ok(())
}

fn observations(file: &HostFile, snapshot: &Snapshot) -> Vec<Observation> {
    let at = |list: &[u64], i: usize| list.get(i).map_or_else(Reading::default, |n| known(*n));
    file.look
        .iter()
        .map(|look| Observation {
            moment: look.moment.clone(),
            gpus: (0..snapshot.gpus.len())
                .map(|i| GpuObservation {
                    pcie_replays: at(&look.replays, i),
                    nvlink_errors: at(&look.nvlink_errors, i),
                    link: look
                        .links
                        .get(i)
                        .map_or_else(Reading::default, |(speed, width)| {
                            known(PcieLink {
                                speed_gts: *speed,
                                width: *width,
                            })
                        }),
                    ..GpuObservation::default()
                })
                .collect(),
            bridges: look
                .ports
                .iter()
                .zip(&snapshot.gpus)
                .filter_map(|(count, gpu)| {
                    Some(BridgeObservation {
                        pci: *gpu.bridge_chain.known()?.first()?,
                        aer: AerCounters {
                            correctable: *count,
                            nonfatal: 0,
                            fatal: 0,
                        },
                    })
                })
                .collect(),
        })
        .collect()
}

/// # Errors
/// The word of the file that is not understood.
pub(crate) fn build(file: &HostFile) -> Result<Built, String> {
    let mut snapshot = snapshot(&file.base)?;
    readings(file, &mut snapshot)?;
    claims(file, &mut snapshot)?;
    differing_gpus(file, &mut snapshot)?;
    let mut records = intact(&file.base);
    for rule in &file.outcome {
        apply(&file.base, rule, &mut records)?;
    }
    for (id, record) in (0..).zip(&mut records) {
        record.case.id = id;
    }
    let observations = observations(file, &snapshot);
    Ok(Built {
        snapshot,
        records,
        observations,
    })
}
