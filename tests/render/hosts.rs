//! Synthetic hosts and runs for the golden texts, built from the model alone. Numbers are plausible, not measured.

use peerproof::model::{
    case::{
        Case, Corruption, Outcome, PeerAccess, Record, Rung, Sample, Subject, UnitCounts, WrongKind,
    },
    finding::{
        Confidence, Consumer, ConsumerState, Finding, Judgement, Recommendation, Setting, Severity,
        Sizing,
    },
    measurement::{Measurement, Unit},
    pair::{GpuIndex, OrderedPair, PairTable},
    pci::{PciAddress, PcieLink},
    reading::{Absence, Grade, Reading},
    report::{Coverage, Gap, Grading, Plant, Report, SCHEMA_VERSION, Selftest, Verdict},
    snapshot::{
        Authenticity, Bridge, BridgePort, Gpu, Nic, NumaNode, NvLink, NvLinkEnd, Origin, Package,
        PairClaims, RemappedRows, Snapshot, SourceNote,
    },
    topology::{Disagreement, FabricClass, FlashInferLabel, Island, PairPath, PathType, Topology},
};

fn known<T>(value: T) -> Reading<T> {
    Reading::Known(value)
}

fn pci(text: &str) -> PciAddress {
    text.parse().unwrap()
}

const GEN5: PcieLink = PcieLink {
    speed_gts: 32.0,
    width: 16,
};

fn gpu(at: u32, name: &str, gib: u64, numa: i32, bus: u8) -> Gpu {
    Gpu {
        pci: known(pci(&format!("0000:{bus:02x}:00.0"))),
        name: known(name.to_string()),
        uuid: known(format!("GPU-00000000-0000-0000-0000-{at:012}")),
        label: format!("GPU{at}"),
        memory_bytes: known(gib << 30),
        ecc_uncorrected: known(0),
        remapped_rows: known(RemappedRows {
            correctable: 0,
            uncorrectable: 0,
            pending: false,
            failed: false,
        }),
        link_now: known(GEN5),
        link_max: known(GEN5),
        numa_node: known(numa),
        package: known(numa.max(0) as u32),
        bridge_chain: known(vec![pci(&format!("0000:{:02x}:01.0", bus - 1))]),
        root_bus: known(format!("0000:{:02x}", bus - 1)),
        cpu_affinity: known(
            if numa == 0 {
                "0-55,112-167"
            } else {
                "56-111,168-223"
            }
            .to_string(),
        ),
        ..Gpu::default()
    }
}

fn root_port(bus: u8) -> Bridge {
    Bridge {
        pci: pci(&format!("0000:{bus:02x}:01.0")),
        parent: None,
        identity: Reading::default(),
        chip: Some("Intel Gen5 root port".to_string()),
        port: BridgePort::Root,
        emulated: false,
        acs: Reading::Absent(Absence::NoPermission("config space".to_string())),
        link_now: known(GEN5),
        link_max: known(GEN5),
        aer: Reading::default(),
        numa_node: Reading::default(),
    }
}

fn named(host: &str) -> Snapshot {
    let mut snapshot = Snapshot::empty(Origin::Live);
    snapshot.taken_at = Some("2026-01-02T03:04:05Z".to_string());
    snapshot.host.name = known(host.to_string());
    snapshot.driver.version = known("580.159.04".to_string());
    snapshot.driver.flavour = known("open".to_string());
    snapshot.driver.cuda_version = known(13000);
    snapshot.sources = vec![
        SourceNote {
            source: "nvml".to_string(),
            result: known("GPUs and links".to_string()),
            took_ms: 61.0,
        },
        SourceNote {
            source: "hwloc".to_string(),
            result: known("packages, bridges".to_string()),
            took_ms: 18.0,
        },
        SourceNote {
            source: "kernel log".to_string(),
            result: Reading::Absent(Absence::NoPermission("/dev/kmsg".to_string())),
            took_ms: 0.1,
        },
    ];
    snapshot
}

fn two_sockets(snapshot: &mut Snapshot) {
    for index in 0..2 {
        snapshot.packages.push(Package {
            os_index: index,
            numa_nodes: vec![index],
            model: Some("Intel(R) Xeon(R) Platinum 8480C".to_string()),
        });
        snapshot.numa_nodes.push(NumaNode {
            os_index: index,
            memory_bytes: Some(1 << 40),
            cpus: Some(["0-55,112-167", "56-111,168-223"][index as usize].to_string()),
        });
    }
}

fn join(snapshot: &mut Snapshot, path: impl Fn(OrderedPair) -> PairPath) {
    let count = snapshot.gpus.len() as u32;
    snapshot.claims = PairTable::new(count);
    snapshot.topology.pairs = PairTable::new(count);
    for pair in OrderedPair::all(count) {
        snapshot.claims.set(pair, PairClaims::default());
        snapshot.topology.pairs.set(pair, path(pair));
    }
}

fn pcie(path: PathType) -> PairPath {
    PairPath {
        pcie: Some(path),
        nvlinks: 0,
        nvlink_known: true,
        through_nvswitch: false,
        bridges: Vec::new(),
        grade: Grade::Advertised,
    }
}

fn halves(pair: OrderedPair, half: u32) -> PathType {
    if (pair.source.0 < half) == (pair.destination.0 < half) {
        PathType::Node
    } else {
        PathType::Sys
    }
}

fn classed(snapshot: &mut Snapshot, class: FabricClass, reason: &str, islands: Vec<Island>) {
    snapshot.topology.class = class;
    snapshot.topology.class_reason = reason.to_string();
    snapshot.topology.flashinfer_label = if class == FabricClass::PcieSwitch {
        FlashInferLabel::PcieswitchPairs
    } else {
        FlashInferLabel::RootcplxNoswitch
    };
    snapshot.topology.islands = islands;
}

fn island(joined_by: &str, range: std::ops::Range<u32>) -> Island {
    Island {
        joined_by: joined_by.to_string(),
        gpus: range.map(GpuIndex).collect(),
    }
}

/// Eight H200 behind NVSwitch, with NICs.
pub(crate) fn nvswitch() -> Snapshot {
    let mut snapshot = named("hgx-07");
    two_sockets(&mut snapshot);
    for at in 0..8u32 {
        let bus = 0x19 + 0x10 * at as u8;
        let mut one = gpu(at, "NVIDIA H200", 141, i32::from(at > 3), bus);
        one.nvlinks = known(
            (0..18)
                .map(|link| NvLink {
                    link,
                    active: true,
                    version: Some(4),
                    raw_gb_per_s: Some(26.562),
                    remote: None,
                    remote_kind: NvLinkEnd::Switch,
                    errors: Some(0),
                })
                .collect(),
        );
        snapshot.bridges.push(root_port(bus - 1));
        snapshot.gpus.push(one);
    }
    snapshot.nvswitches = (0..4).map(|n| pci(&format!("0000:0{n}:00.0"))).collect();
    for at in 0..2u32 {
        let mut to_gpus = vec![Some(PathType::Sys); 8];
        to_gpus[4 * at as usize] = Some(PathType::Node);
        snapshot.nics.push(Nic {
            name: format!("mlx5_{at}"),
            pci: known(pci(&format!("0000:1{at}:00.0"))),
            bridge_chain: known(Vec::new()),
            numa_node: known(at as i32),
            to_gpus,
        });
    }
    join(&mut snapshot, |pair| PairPath {
        nvlinks: 18,
        through_nvswitch: true,
        ..pcie(halves(pair, 4))
    });
    classed(
        &mut snapshot,
        FabricClass::Nvswitch,
        "every pair is joined by 18 NVLinks through NVSwitch",
        vec![island("NVLink", 0..8)],
    );
    snapshot
}

/// Eight RTX PRO 6000 below root ports, four on each socket; simulated.
pub(crate) fn rtx_pro() -> Snapshot {
    let mut snapshot = named("rtx-sim");
    snapshot.authenticity = Authenticity::Simulated;
    two_sockets(&mut snapshot);
    for at in 0..8u32 {
        let bus = 0x19 + 0x10 * at as u8;
        let name = "NVIDIA RTX PRO 6000 Blackwell Server Edition";
        snapshot
            .gpus
            .push(gpu(at, name, 96, i32::from(at > 3), bus));
        snapshot.bridges.push(root_port(bus - 1));
    }
    join(&mut snapshot, |pair| pcie(halves(pair, 4)));
    classed(
        &mut snapshot,
        FabricClass::RootComplexCrossSocket,
        "no PCIe switch is shared and the GPUs hang on two CPU packages",
        vec![island("NUMA node 0", 0..4), island("NUMA node 1", 4..8)],
    );
    snapshot
}

/// A pasted matrix of two GPUs, with nothing else.
pub(crate) fn pasted() -> Snapshot {
    let mut snapshot = Snapshot::empty(Origin::Recorded {
        format: "nvidia-smi topo -m".to_string(),
        file: "paste.txt".to_string(),
    });
    for at in 0..3 {
        snapshot.gpus.push(Gpu {
            label: format!("GPU{at}"),
            ..Gpu::default()
        });
    }
    join(&mut snapshot, |_| pcie(PathType::Phb));
    let cut = OrderedPair::new(0, 2).unwrap();
    snapshot.topology.pairs.get_mut(cut).unwrap().pcie = None;
    snapshot.topology.notes = vec!["the last row was cut in the paste".to_string()];
    snapshot.topology.disagreements = vec![Disagreement {
        about: "path type 1->2".to_string(),
        claims: vec![
            ("row GPU1".to_string(), "PHB".to_string()),
            ("row GPU2".to_string(), "SYS".to_string()),
        ],
        resolution: "the first row, because the other one is cut".to_string(),
    }];
    classed(
        &mut snapshot,
        FabricClass::Unknown,
        "one pair's path is not in the input",
        Vec::new(),
    );
    snapshot
}

/// A virtual machine with two GPUs and no bridges.
pub(crate) fn virtual_machine() -> Snapshot {
    let mut snapshot = named("vm-2");
    for at in 0..2u32 {
        let mut one = gpu(
            at,
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            96,
            -1,
            6 + at as u8,
        );
        one.package = Reading::default();
        one.bridge_chain = known(Vec::new());
        one.root_bus = known("0000:00".to_string());
        one.cpu_affinity = Reading::default();
        snapshot.gpus.push(one);
    }
    join(&mut snapshot, |_| pcie(PathType::Phb));
    classed(
        &mut snapshot,
        FabricClass::VmOpaque,
        "the hypervisor flag is set and no bridge is visible",
        Vec::new(),
    );
    snapshot
}

/// Sixteen GPUs in four groups below PCIe switches.
pub(crate) fn sixteen() -> Snapshot {
    let mut snapshot = named("big-16");
    two_sockets(&mut snapshot);
    for at in 0..16u32 {
        let bus = 0x0c + 0x0d * at as u8;
        let mut one = gpu(at, "NVIDIA L40S", 48, i32::from(at > 7), bus);
        let group = at / 4;
        let (root, up, down) = (
            pci(&format!("000{group}:00:01.0")),
            pci(&format!("000{group}:01:00.0")),
            pci(&format!("000{group}:02:0{}.0", at % 4)),
        );
        one.bridge_chain = known(vec![down, up, root]);
        one.root_bus = known(format!("000{group}:00"));
        for (address, port, parent) in [
            (root, BridgePort::Root, None),
            (up, BridgePort::SwitchUpstream, Some(root)),
            (down, BridgePort::SwitchDownstream, Some(up)),
        ] {
            if snapshot.bridge(address).is_none() {
                snapshot.bridges.push(Bridge {
                    pci: address,
                    parent,
                    port,
                    chip: (port != BridgePort::Root).then(|| "Broadcom PEX890xx".to_string()),
                    ..root_port(0)
                });
            }
        }
        snapshot.gpus.push(one);
    }
    join(&mut snapshot, |pair| {
        pcie(if pair.source.0 / 4 == pair.destination.0 / 4 {
            PathType::Pix
        } else {
            halves(pair, 8)
        })
    });
    classed(
        &mut snapshot,
        FabricClass::PcieSwitch,
        "some pairs share a PCIe switch, in groups of four",
        (0..4).map(|g| island("PIX", 4 * g..4 * g + 4)).collect(),
    );
    snapshot
}

/// One H200.
pub(crate) fn one_gpu() -> Snapshot {
    let mut snapshot = named("single");
    let mut one = gpu(0, "NVIDIA H200", 141, 0, 0x19);
    one.nvlinks = known(Vec::new());
    snapshot.gpus.push(one);
    join(&mut snapshot, |_| pcie(PathType::Sys));
    classed(
        &mut snapshot,
        FabricClass::None,
        "there is only one NVIDIA GPU",
        Vec::new(),
    );
    snapshot
}

/// A host without a driver.
pub(crate) fn no_gpu() -> Snapshot {
    let mut snapshot = Snapshot::empty(Origin::Live);
    snapshot.host.name = known("laptop".to_string());
    snapshot.topology = Topology {
        class: FabricClass::None,
        ..Topology::default()
    };
    snapshot.sources = vec![SourceNote {
        source: "nvml".to_string(),
        result: Reading::Absent(Absence::SourceMissing("libnvidia-ml.so.1".to_string())),
        took_ms: 0.4,
    }];
    snapshot
}

/// What a mechanism does on a pair.
pub(crate) type Answer = Box<dyn Fn(OrderedPair, &str) -> Outcome>;

/// Wrong data of `kind`, all of 8 MiB.
pub(crate) fn corrupt(kind: WrongKind, pair: OrderedPair) -> Outcome {
    let units = (8 << 20) / 16;
    let seen = if kind == WrongKind::Zeroed {
        "00"
    } else {
        "5a"
    };
    Outcome::Corrupt(Box::new(Corruption {
        kind,
        detail: format!("all units of {pair} are {kind}"),
        attempt: 1,
        wrong_attempts: 3,
        attempts_ran: 3,
        first_offset: 0,
        last_offset: 8 << 20,
        wrong_units: units,
        units,
        counts: match kind {
            WrongKind::Zeroed => UnitCounts {
                zero: units,
                ..UnitCounts::default()
            },
            WrongKind::Misrouted => UnitCounts {
                foreign: units,
                ..UnitCounts::default()
            },
            _ => UnitCounts {
                poison: units,
                ..UnitCounts::default()
            },
        },
        samples: (0..4u64)
            .map(|at| Sample {
                offset: at * 16,
                expected: format!("9f3c6a1e{at:08x}d2b4770155aa03c1"),
                owner: seen.repeat(16),
                accessor: (kind == WrongKind::Mirrored)
                    .then(|| format!("9f3c6a1e{at:08x}d2b4770155aa03c1")),
                reread: Some(seen.repeat(16)),
                origin: None,
            })
            .collect(),
        accessor_sees_right: (kind == WrongKind::Mirrored).then_some(true),
        source_intact: Some(true),
        owner_views_agree: Some(true),
    }))
}

fn rate(middle: f64) -> Measurement {
    Measurement {
        samples: [0.0, 0.3, -0.2, 0.1, -0.1].map(|d| middle + d).to_vec(),
        unit: Unit::GbPerS,
        warmup: 2,
        method: "events on a non-blocking stream, alone".to_string(),
        caveats: Vec::new(),
    }
}

/// Mechanisms of rungs 1 to 3 with a plausible rate.
const MECHANISMS: [(&str, Rung, f64); 6] = [
    ("bounce", Rung::Staged, 25.0),
    ("staged", Rung::Staged, 26.0),
    ("ce-push", Rung::Copied, 53.0),
    ("ce-pull", Rung::Copied, 52.0),
    ("sm-store", Rung::Touched, 49.0),
    ("sm-load", Rung::Touched, 47.0),
];

fn record(
    id: u32,
    subject: Subject,
    mechanism: &str,
    rung: Rung,
    outcome: Outcome,
    gbps: f64,
) -> Record {
    let intact = outcome.is_intact();
    Record {
        case: Case {
            id,
            subject,
            mechanism: mechanism.to_string(),
            rung,
            bytes: 8 << 20,
            offset: 0,
            attempts: 3,
            timed: true,
            load: None,
            all_reduce: None,
            soak: false,
        },
        attempts_ran: if outcome.ran() { 3 } else { 0 },
        outcome,
        peer_access: match (subject, rung) {
            (Subject::Gpu(_), _) => PeerAccess::NotApplicable,
            (_, Rung::Staged) => PeerAccess::Off,
            _ => PeerAccess::Both,
        },
        executor: match subject {
            Subject::Gpu(own) => format!("copy engine of GPU{own}"),
            Subject::Pair(pair) => format!("copy engine of GPU{}", pair.source),
            Subject::Group(group) => format!("multiprocessors of {group}"),
        },
        rate: intact.then(|| rate(gbps)),
        alone: true,
        took_ms: 4.2,
        notes: Vec::new(),
    }
}

fn consumer(name: &str, state: ConsumerState, sentence: &str) -> Consumer {
    Consumer {
        id: name.to_lowercase().replace(' ', "-"),
        name: name.to_string(),
        needs: vec![Rung::Copied, Rung::Touched],
        state,
        sentence: sentence.to_string(),
        ..Consumer::default()
    }
}

/// A finding with its title.
pub(crate) fn finding(cause: &str, title: &str, judgement: Judgement) -> Finding {
    Finding {
        cause: cause.to_string(),
        title: title.to_string(),
        judgement,
        severity: Severity::Critical,
        confidence: Confidence::Probable,
        pairs: Vec::new(),
        gpus: Vec::new(),
        because: String::new(),
        evidence: Vec::new(),
        fix: Vec::new(),
        next_test: None,
    }
}

fn setting(name: &str, value: Option<&str>, because: &str, basis: &str) -> Setting {
    Setting {
        name: name.to_string(),
        value: value.map(str::to_string),
        because: because.to_string(),
        basis: basis.to_string(),
    }
}

/// SGLang on a root-complex host with one workspace to size.
pub(crate) fn advice() -> Recommendation {
    Recommendation {
        engine: "sglang".to_string(),
        backend: "pcie-ipc".to_string(),
        backend_name: "PCIe IPC all-reduce".to_string(),
        flags: vec![
            setting(
                "--cuda-graph-max-bs-decode",
                Some("32"),
                "the workspace is sized from it",
                "facts: engines 7.2",
            ),
            setting(
                "--disable-custom-all-reduce",
                None,
                "the custom all-reduce does not serve eight GPUs without NVLink",
                "topology: no NVLink seen on any pair",
            ),
        ],
        environment: vec![setting(
            "SGLANG_PCIE_IPC_MAX_NUMEL",
            Some("786432"),
            "what one step of 192 rows needs",
            "sizing below",
        )],
        unset: vec![setting(
            "NCCL_P2P_DISABLE",
            None,
            "peer copies are proven, and NCCL tests this variable for presence",
            "records: rung 3 on 56 of 56 pairs",
        )],
        sizing: Some(Sizing {
            model: "hidden 4096".to_string(),
            hidden: 4096,
            tp: 8,
            batch: 32,
            rows_per_request: 6,
            rows_reason: "DSPARK block 5 and the bonus row".to_string(),
            rows: 192,
            needed_elements: 786_432,
            engine_elements: Some(262_144),
            engine_reason: "64 rows x 4096 when the batch is not told".to_string(),
            payload_bytes: 1_572_864,
            workspace_bytes_per_rank: Some(50_365_568),
            workspace_formula: Some("a(4*(128*(2+8W)+4)) + 4*W*a(2n)".to_string()),
            dtype: "bf16".to_string(),
            ..Sizing::default()
        }),
        refused: vec![(
            "custom-all-reduce".to_string(),
            "needs NVLink on more than two GPUs".to_string(),
        )],
        caveats: vec!["rungs 4 to 7 were not tested".to_string()],
        ..Recommendation::default()
    }
}

fn selftest() -> Selftest {
    Selftest {
        plants: std::iter::once(None)
            .chain(WrongKind::ALL.map(Some))
            .map(|kind| Plant {
                planted: kind,
                reported: kind,
                detail: kind.map_or("a clean buffer".to_string(), |k| format!("{k} in 4 MiB")),
            })
            .collect(),
        device: "0000:19:00.0".to_string(),
    }
}

/// A run over `snapshot` in which every mechanism of every pair gives what `answer` says.
pub(crate) fn run(snapshot: Snapshot, answer: &Answer) -> Report {
    let gpus = snapshot.gpus.len() as u32;
    let mut records = Vec::new();
    for at in 0..gpus {
        for (name, gbps) in [
            ("memory", 3900.0),
            ("host-to-device", 55.1),
            ("device-to-host", 54.8),
        ] {
            let id = records.len() as u32;
            let subject = Subject::Gpu(GpuIndex(at));
            records.push(record(
                id,
                subject,
                name,
                Rung::Alone,
                Outcome::Intact,
                gbps,
            ));
        }
    }
    for (name, rung, gbps) in MECHANISMS {
        for pair in OrderedPair::all(gpus) {
            let id = records.len() as u32;
            let odd = f64::from(pair.source.0 * gpus + pair.destination.0) * 0.01;
            let outcome = answer(pair, name);
            records.push(record(
                id,
                Subject::Pair(pair),
                name,
                rung,
                outcome,
                gbps - odd,
            ));
        }
    }
    let planned = records.len() as u32;
    let failed = records.iter().any(|r| r.outcome.is_failure());
    let not_run = records.iter().filter(|r| !r.outcome.ran()).count() as u32;
    Report {
        schema_version: SCHEMA_VERSION,
        tool_version: "0.1.0".to_string(),
        kernels_sha256: "0".repeat(64),
        authenticity: snapshot.authenticity,
        started_at: "2026-01-02T03:04:05Z".to_string(),
        took_ms: 14_321.0,
        arguments: vec!["qualify".to_string()],
        tested_gpus: (0..gpus).collect(),
        snapshot,
        ladder: Vec::new(),
        records,
        observations: Vec::new(),
        reductions: Vec::new(),
        traffic: Vec::new(),
        crossovers: Vec::new(),
        notes: Vec::new(),
        comparison: None,
        selftest: Some(selftest()),
        coverage: Coverage {
            budget: None,
            planned,
            ran: planned - not_run,
            not_applicable: Vec::new(),
            not_run: Vec::new(),
            left_out: vec!["rungs 4 to 7: not built yet".to_string()],
            seen_fault_rate: Some(0.632),
            sensitivity: Vec::new(),
        },
        findings: vec![
            finding(
                "iommu-translation",
                "IOMMU translates peer traffic",
                Judgement::Cleared,
            ),
            finding(
                "acs-redirect",
                "ACS redirects peer traffic",
                Judgement::Cleared,
            ),
        ],
        consumers: vec![
            if failed {
                consumer("NCCL P2P", ConsumerState::Vetoed, "vetoed, see the matrix")
            } else {
                consumer("NCCL P2P", ConsumerState::Proven, "proven up to rung 3")
            },
            consumer(
                "IPC all-reduce",
                ConsumerState::Unproven,
                "unproven because rung 4 was not tested",
            ),
        ],
        recommendations: vec![advice()],
        verdict: Verdict {
            grading: Grading::Pass,
            headline: format!(
                "{0} of {0} ordered pairs intact up to rung 3",
                gpus * gpus.saturating_sub(1)
            ),
            cause: "nothing to explain; rungs 4 to 7 were not tested".to_string(),
            next: "peerproof recommend --engine sglang --model MODEL".to_string(),
            worst_pair: None,
            reason: None,
        },
        timings_ms: vec![
            ("collect".to_string(), 312.0),
            ("probe".to_string(), 13_800.0),
        ],
        worker_environment: Vec::new(),
        interrupted: false,
    }
}

/// Every copy over the fabric arrives as zeros; the way through the host is right.
pub(crate) fn all_zeroed(snapshot: Snapshot) -> Report {
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "bounce" | "staged" => Outcome::Intact,
        _ => corrupt(WrongKind::Zeroed, pair),
    });
    let mut report = run(snapshot, &answer);
    report.verdict = Verdict {
        grading: Grading::Fail,
        headline: "zeroed: 56 of 56 ordered pairs, worst 0->1 by ce-push at rung 2".to_string(),
        cause: "probably the IOMMU: domain type DMA on every GPU; staged copies are intact"
            .to_string(),
        next: "boot with iommu=pt, then peerproof qualify --gpus 0,1".to_string(),
        worst_pair: OrderedPair::new(0, 1),
        reason: None,
    };
    report.findings = vec![
        Finding {
            pairs: OrderedPair::all(8).collect(),
            because:
                "peer writes are posted to bus addresses that the IOMMU maps elsewhere or nowhere."
                    .to_string(),
            evidence: vec![
                "domain type DMA for all 8 GPUs (/sys/kernel/iommu_groups/*/type)".to_string(),
                "56 of 56 pairs zeroed at rung 2 while bounce and staged are intact".to_string(),
            ],
            fix: vec![
                "kernel parameter iommu=pt (Intel: intel_iommu=on iommu=pt), then reboot"
                    .to_string(),
            ],
            next_test: Some("peerproof qualify --gpus 0,1 after the reboot".to_string()),
            ..finding(
                "iommu-translation",
                "IOMMU translates peer traffic",
                Judgement::Indicted,
            )
        },
        Finding {
            because: "ACS control words need root to read".to_string(),
            next_test: Some("sudo peerproof map".to_string()),
            ..finding(
                "acs-redirect",
                "ACS redirects peer traffic",
                Judgement::CannotTell,
            )
        },
        finding(
            "driver-policy",
            "driver refuses peer access",
            Judgement::Cleared,
        ),
    ];
    report.consumers = vec![
        consumer(
            "NCCL P2P",
            ConsumerState::Vetoed,
            "vetoed by pair 0->1 at rung 2 (and 55 more)",
        ),
        consumer(
            "custom all-reduce",
            ConsumerState::Vetoed,
            "vetoed by pair 0->1 at rung 2 (and 55 more)",
        ),
        consumer(
            "NCCL through the host",
            ConsumerState::Proven,
            "proven up to rung 1",
        ),
    ];
    report.recommendations = Vec::new();
    report
}

/// A gap of one case.
pub(crate) fn gap(reason: &str, cases: u32) -> Gap {
    Gap {
        reason: reason.to_string(),
        cases,
    }
}
