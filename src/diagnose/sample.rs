//! Small synthetic hosts for the tests of this floor.

use super::Evidence;
use crate::model::{
    case::{
        Case, Corruption, Load, Outcome, PeerAccess, Record, Rung, Subject, UnitCounts, WrongKind,
    },
    group::Group,
    ladder::Step,
    measurement::{Measurement, Unit},
    pair::{GpuIndex, OrderedPair, PairTable},
    pci::{PciAddress, PcieLink},
    reading::{Absence, Grade, Reading},
    snapshot::{
        AcsControl, Bridge, BridgePort, Gpu, IommuGroup, Observation, Origin, PairClaims, Snapshot,
    },
    topology::{FabricClass, PairPath, PathType},
};

/// Mechanisms of the first version, with their rungs.
pub(crate) const MECHANISMS: [(&str, Rung); 6] = [
    ("bounce", Rung::Staged),
    ("staged", Rung::Staged),
    ("ce-push", Rung::Copied),
    ("ce-pull", Rung::Copied),
    ("sm-store", Rung::Touched),
    ("sm-load", Rung::Touched),
];

/// What later versions added, with its rungs.
pub(crate) const HIGHER: [(&str, Rung); 19] = [
    ("host-exchange", Rung::Staged),
    ("pool-ce-push", Rung::Copied),
    ("pool-ce-pull", Rung::Copied),
    ("sm-store4", Rung::Touched),
    ("atomics", Rung::Touched),
    ("pool-sm-load", Rung::Touched),
    ("pool-sm-store", Rung::Touched),
    ("ipc-ce-push", Rung::Shared),
    ("ipc-ce-pull", Rung::Shared),
    ("ipc-sm-load", Rung::Shared),
    ("ipc-sm-store", Rung::Shared),
    ("vmm-ce-push", Rung::Shared),
    ("vmm-ce-pull", Rung::Shared),
    ("vmm-sm-load", Rung::Shared),
    ("vmm-sm-store", Rung::Shared),
    ("resident", Rung::Resident),
    ("ipc-resident", Rung::Resident),
    ("one-shot-push", Rung::Reduced),
    ("ipc-one-shot-push", Rung::Reduced),
];

/// All-reduces among them.
pub(crate) const REDUCTIONS: [&str; 2] = ["one-shot-push", "ipc-one-shot-push"];

/// A host under construction.
pub(crate) struct Host {
    pub(crate) snapshot: Snapshot,
    pub(crate) records: Vec<Record>,
    pub(crate) observations: Vec<Observation>,
    pub(crate) ladder: Vec<Step>,
}

pub(crate) fn pair(source: u32, destination: u32) -> OrderedPair {
    OrderedPair::new(source, destination).unwrap()
}

pub(crate) fn gpu_address(i: u32) -> PciAddress {
    format!("0000:{:02x}:00.0", 0x10 + i).parse().unwrap()
}

pub(crate) fn port_address(i: u32) -> PciAddress {
    format!("0000:00:{:02x}.1", i + 1).parse().unwrap()
}

impl Host {
    /// Bare metal, one root port a GPU, all below one host bridge, no IOMMU, ACS clear, claims OK.
    pub(crate) fn root_complex(count: u32) -> Self {
        let mut snapshot = Snapshot::empty(Origin::Live);
        snapshot.host.hypervisor = Reading::Known(false);
        snapshot.host.iommu_classes = Reading::Known(Vec::new());
        snapshot.host.kernel_log = Reading::Known(Vec::new());
        snapshot.host.cmdline = Reading::Known("quiet".into());
        let link = PcieLink {
            speed_gts: 32.0,
            width: 16,
        };
        for i in 0..count {
            snapshot.gpus.push(Gpu {
                pci: Reading::Known(gpu_address(i)),
                name: Reading::Known("NVIDIA RTX PRO 6000 Blackwell Server Edition".into()),
                label: format!("GPU{i}"),
                compute_capability: Reading::Known((12, 0)),
                bridge_chain: Reading::Known(vec![port_address(i)]),
                link_now: Reading::Known(link),
                link_max: Reading::Known(link),
                ecc_uncorrected: Reading::Known(0),
                p2p_clique: Reading::Known(None),
                ..Gpu::default()
            });
            snapshot.bridges.push(Bridge {
                pci: port_address(i),
                parent: None,
                identity: Reading::default(),
                chip: None,
                port: BridgePort::Root,
                emulated: false,
                acs: Reading::Known(AcsControl {
                    capability: 0x5f,
                    control: 0,
                }),
                link_now: Reading::Known(link),
                link_max: Reading::Known(link),
                aer: Reading::default(),
                numa_node: Reading::Known(0),
            });
        }
        snapshot.claims = PairTable::new(count);
        snapshot.topology.pairs = PairTable::new(count);
        snapshot.topology.class = FabricClass::RootComplexSingleSocket;
        for p in OrderedPair::all(count) {
            let path = PairPath {
                pcie: Some(PathType::Phb),
                nvlinks: 0,
                nvlink_known: true,
                through_nvswitch: false,
                bridges: vec![port_address(p.source.0), port_address(p.destination.0)],
                grade: Grade::Observed,
            };
            snapshot.topology.pairs.set(p, path);
        }
        let mut host = Host {
            snapshot,
            records: Vec::new(),
            observations: Vec::new(),
            ladder: Vec::new(),
        };
        host.claim_all("OK");
        host
    }

    /// The same behind NVSwitch.
    pub(crate) fn nvswitch(count: u32) -> Self {
        let mut host = Self::root_complex(count);
        host.snapshot.topology.class = FabricClass::Nvswitch;
        for p in OrderedPair::all(count) {
            let path = host.snapshot.topology.pairs.get_mut(p).unwrap();
            path.nvlinks = 18;
            path.through_nvswitch = true;
        }
        for gpu in &mut host.snapshot.gpus {
            gpu.name = Reading::Known("NVIDIA H200".into());
            gpu.compute_capability = Reading::Known((9, 0));
        }
        host
    }

    pub(crate) fn count(&self) -> u32 {
        self.snapshot.gpus.len() as u32
    }

    pub(crate) fn group(&self) -> Vec<GpuIndex> {
        (0..self.count()).map(GpuIndex).collect()
    }

    pub(crate) fn claim_all(&mut self, status: &str) {
        for p in OrderedPair::all(self.count()) {
            let claims = PairClaims {
                p2p_read: Reading::Known(status.into()),
                p2p_write: Reading::Known(status.into()),
                ..PairClaims::default()
            };
            self.snapshot.claims.set(p, claims);
        }
    }

    pub(crate) fn name_all(&mut self, name: &str) {
        for gpu in &mut self.snapshot.gpus {
            gpu.name = Reading::Known(name.into());
        }
    }

    pub(crate) fn iommu_all(&mut self, domain: &str) {
        self.snapshot.host.iommu_classes = Reading::Known(vec!["ivhd0".into()]);
        for (i, gpu) in self.snapshot.gpus.iter_mut().enumerate() {
            gpu.iommu = Reading::Known(IommuGroup {
                group: i as u32,
                domain_type: Reading::Known(domain.into()),
            });
        }
    }

    pub(crate) fn acs_all(&mut self, control: Option<u16>) {
        for bridge in &mut self.snapshot.bridges {
            bridge.acs = match control {
                Some(control) => Reading::Known(AcsControl {
                    capability: 0x5f,
                    control,
                }),
                None => Reading::Absent(Absence::NoPermission("64 bytes of config".into())),
            };
        }
    }

    pub(crate) fn guest(&mut self) {
        self.snapshot.host.hypervisor = Reading::Known(true);
    }

    pub(crate) fn set(&mut self, p: OrderedPair, mechanism: &str, outcome: Outcome) {
        let mut known = MECHANISMS.iter().chain(&HIGHER);
        let rung = known.find(|(m, _)| *m == mechanism).unwrap().1;
        self.put(Subject::Pair(p), mechanism, rung, outcome);
    }

    pub(crate) fn put(&mut self, subject: Subject, mechanism: &str, rung: Rung, outcome: Outcome) {
        self.records.retain(|r| {
            r.case.subject != subject || r.case.mechanism != mechanism || r.case.rung != rung
        });
        let peer_access = match rung {
            Rung::Alone => PeerAccess::NotApplicable,
            Rung::Advertised | Rung::Staged => PeerAccess::Off,
            _ => PeerAccess::Both,
        };
        self.records.push(Record {
            case: Case {
                id: self.records.len() as u32,
                subject,
                mechanism: mechanism.into(),
                rung,
                bytes: 1 << 20,
                offset: 0,
                attempts: 3,
                timed: false,
                load: None,
                all_reduce: None,
                soak: false,
            },
            attempts_ran: if outcome.ran() { 3 } else { 0 },
            outcome,
            peer_access,
            executor: String::new(),
            rate: None,
            alone: true,
            took_ms: 1.0,
            notes: Vec::new(),
        });
    }

    pub(crate) fn set_wrong(&mut self, p: OrderedPair, mechanism: &str, kind: WrongKind) {
        self.set(p, mechanism, wrong(kind));
    }

    /// Every pair intact in every mechanism.
    pub(crate) fn all_intact(&mut self) {
        for p in OrderedPair::all(self.count()) {
            for (mechanism, _) in MECHANISMS {
                self.set(p, mechanism, Outcome::Intact);
            }
        }
    }

    /// Every pair intact in every mechanism of this version, and under load; the ladder is known.
    pub(crate) fn climb_all(&mut self) {
        self.all_intact();
        for p in OrderedPair::all(self.count()) {
            for (mechanism, _) in HIGHER {
                self.set(p, mechanism, Outcome::Intact);
            }
            for mechanism in ["ce-push", "sm-store"] {
                self.load(p, mechanism, Load::AllPairs, Outcome::Intact, 25.0);
            }
        }
        if self.count() > 2 {
            for mechanism in REDUCTIONS {
                self.together(0..self.count(), mechanism, Outcome::Intact);
            }
        }
        let all = MECHANISMS.iter().chain(&HIGHER);
        self.ladder = all
            .map(|(mechanism, rung)| Step {
                mechanism: mechanism.to_string(),
                rung: *rung,
            })
            .collect();
    }

    /// What became of an all-reduce over these GPUs together.
    pub(crate) fn together(
        &mut self,
        gpus: impl IntoIterator<Item = u32>,
        mechanism: &str,
        outcome: Outcome,
    ) {
        let group = Group::new(gpus).unwrap();
        self.put(Subject::Group(group), mechanism, Rung::Reduced, outcome);
    }

    /// As a version before rung 6 left it.
    pub(crate) fn without_reductions(&mut self) {
        self.records.retain(|r| r.case.rung != Rung::Reduced);
        self.ladder.retain(|step| step.rung != Rung::Reduced);
    }

    /// What became of a pair and mechanism under load, with its rate in GB/s.
    pub(crate) fn load(
        &mut self,
        p: OrderedPair,
        mechanism: &str,
        load: Load,
        outcome: Outcome,
        gbps: f64,
    ) {
        let subject = Subject::Pair(p);
        self.records.retain(|r| {
            r.case.subject != subject || r.case.mechanism != mechanism || r.case.load != Some(load)
        });
        let held: Vec<Record> = std::mem::take(&mut self.records);
        self.put(subject, mechanism, Rung::Loaded, outcome);
        let mut own = self.records.pop().unwrap();
        own.case.id = held.len() as u32;
        own.case.load = Some(load);
        own.alone = false;
        own.rate = own.outcome.is_intact().then(|| Measurement {
            samples: vec![gbps; 3],
            unit: Unit::GbPerS,
            warmup: 1,
            method: format!("under load: {}", load.words()),
            caveats: Vec::new(),
        });
        self.records = held;
        self.records.push(own);
    }

    /// Staged copies intact, direct ones of the chosen pairs wrong.
    pub(crate) fn direct_wrong(&mut self, kind: WrongKind, chosen: impl Fn(OrderedPair) -> bool) {
        self.all_intact();
        for p in OrderedPair::all(self.count()).filter(|p| chosen(*p)) {
            for (mechanism, rung) in MECHANISMS {
                if rung >= Rung::Copied {
                    self.set_wrong(p, mechanism, kind);
                }
            }
        }
    }

    /// Peer access refused with error 217 on every pair, staged copies intact.
    pub(crate) fn refused(&mut self) {
        self.all_intact();
        for p in OrderedPair::all(self.count()) {
            for (mechanism, rung) in MECHANISMS {
                if rung >= Rung::Copied {
                    self.set(p, mechanism, refusal(217));
                }
            }
        }
    }

    pub(crate) fn judge<T>(&self, question: impl FnOnce(&Evidence) -> T) -> T {
        let evidence = Evidence::new(&self.snapshot, &self.records, &self.observations);
        question(&evidence.with_ladder(&self.ladder))
    }
}

pub(crate) fn refusal(code: u32) -> Outcome {
    Outcome::Refused {
        api: "cuCtxEnablePeerAccess".into(),
        code,
        name: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED".into(),
    }
}

pub(crate) fn wrong(kind: WrongKind) -> Outcome {
    Outcome::Corrupt(Box::new(Corruption {
        kind,
        detail: kind.name().into(),
        attempt: 1,
        wrong_attempts: 3,
        attempts_ran: 3,
        first_offset: 0,
        last_offset: 1 << 20,
        wrong_units: 1 << 16,
        units: 1 << 16,
        counts: UnitCounts::default(),
        samples: Vec::new(),
        accessor_sees_right: (kind == WrongKind::Mirrored).then_some(true),
        source_intact: Some(true),
        owner_views_agree: Some(true),
    }))
}
