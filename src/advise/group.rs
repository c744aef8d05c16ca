//! What the evidence says of the group that an engine is to run on: its fabric, its peers, its compute capability.

use super::{
    choose::host_path,
    conditions::{gap, is_open, is_proven},
    ranks,
    request::{AdviseError, Request},
};
use crate::{
    diagnose::{Evidence, PeerClaim, ROSTER, involves_host, rung_reached},
    model::{
        case::{Record, Rung},
        finding::{Consumer, Finding, Judgement},
        pair::{GpuIndex, OrderedPair},
        topology::{FabricClass, PathType},
    },
    profile::{Backend, ConsumerProfile, EngineProfile},
};

/// The consumer that is NCCL's own peer path.
pub(super) const NCCL_P2P: &str = "nccl-p2p";

/// What may be built upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Wrong data, faults or hangs of a peer mechanism (rung 2 and up): what was seen.
    Failed(String),
    /// No peer access on some pair: which, and who says so.
    Refused(String),
    /// Nobody has proven the pairs: what is missing.
    Unproven(String),
    /// Every pair is intact up to this rung, 3 or higher.
    Proven(Rung),
}

/// The group as the evidence shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) gpus: Vec<GpuIndex>,
    pub(crate) pairs: Vec<OrderedPair>,
    pub(crate) peers: Peers,
    /// Why nothing may be served here: bytes through the host, or a GPU by itself, are not right, and no backend avoids
    /// either.
    pub(crate) unfit: Option<String>,
    pub(crate) fabric: FabricClass,
    /// NVLink on every pair; `None` when the sources would not have shown it.
    pub(crate) full_nvlink: Option<bool>,
    /// Some pair crosses a host bridge without NVLink.
    pub(crate) crosses_root: bool,
    /// Compute capabilities, one for each GPU whose is known.
    pub(crate) compute: Vec<(u32, u32)>,
    /// GeForce GPUs with PCIe peer access: a patched driver.
    pub(crate) patched: bool,
    /// Kernels reach peers of this group through the host, many times slower than copies do: what was measured.
    pub(crate) staged_kernels: Option<String>,
    /// Broken pairs of the host outside the group.
    pub(crate) broken_elsewhere: Vec<OrderedPair>,
    /// The operator named the members.
    pub(crate) given: bool,
    /// The order of ranks differs from that of the candidates.
    pub(crate) reordered: bool,
    /// All members are known to hang on one NUMA node, or on several.
    pub(crate) one_numa_node: Option<bool>,
    /// Rung up to which every pair is intact through the host.
    pub(crate) host_path: Option<Rung>,
    /// Other GPUs of the host, as many, without a broken pair, where this group has one.
    pub(crate) sound_instead: Option<Vec<GpuIndex>>,
}

impl Group {
    /// The group of `request` on the host of `evidence`; without evidence a group of which nothing is known. `pools`: whether
    /// the engine lets peers touch memory of stream-ordered pools ([`pools`]); what fails there alone is nothing to others.
    pub(crate) fn of(
        request: &Request,
        evidence: Option<&Evidence>,
        pools: bool,
    ) -> Result<Self, AdviseError> {
        if request.tp == 0 {
            return Err(AdviseError::Zero("--tp"));
        }
        let first = |count: usize| -> Vec<GpuIndex> {
            match request.candidates.get(..count) {
                Some(chosen) => chosen.to_vec(),
                None => (0..request.tp).map(GpuIndex).collect(),
            }
        };
        let gpus: Vec<GpuIndex> = match &request.group {
            Some(given) => given.clone(),
            None => first(request.tp as usize),
        };
        if gpus.len() != request.tp as usize {
            return Err(AdviseError::GroupSize {
                members: gpus.len(),
                tp: request.tp,
            });
        }
        for (i, gpu) in gpus.iter().enumerate() {
            if gpus.iter().take(i).any(|other| other == gpu) {
                return Err(AdviseError::Twice(*gpu));
            }
        }
        let Some(e) = evidence else {
            return Ok(Group {
                gpus,
                pairs: Vec::new(),
                peers: Peers::Unproven("no host was looked at".to_string()),
                unfit: None,
                fabric: FabricClass::Unknown,
                full_nvlink: None,
                crosses_root: false,
                compute: Vec::new(),
                patched: false,
                staged_kernels: None,
                broken_elsewhere: Vec::new(),
                given: request.group.is_some(),
                reordered: false,
                one_numa_node: None,
                host_path: None,
                sound_instead: None,
            });
        };
        let count = e.snapshot.gpus.len();
        if request.group.is_none() && gpus.len() > count {
            return Err(AdviseError::TooFew {
                tp: request.tp,
                count,
            });
        }
        if let Some(gpu) = gpus.iter().find(|g| g.at() >= count) {
            return Err(AdviseError::NoSuchGpu { gpu: *gpu, count });
        }
        let given = request.group.is_some();
        let as_named = gpus.clone();
        let gpus = if given {
            gpus
        } else {
            ranks::contiguous(e, &gpus)
        };
        let pairs: Vec<OrderedPair> = gpus
            .iter()
            .flat_map(|s| gpus.iter().filter_map(|d| OrderedPair::new(s.0, d.0)))
            .collect();
        let full_nvlink = full_nvlink(e, &pairs);
        let peers = peers(e, &gpus, &pairs, pools);
        let geforce = gpus.iter().any(|g| {
            e.snapshot
                .gpu(*g)
                .and_then(|gpu| gpu.name.known())
                .is_some_and(|n| n.contains("GeForce"))
        });
        let in_group = |p: &OrderedPair| gpus.contains(&p.source) && gpus.contains(&p.destination);
        Ok(Group {
            patched: geforce
                && full_nvlink != Some(true)
                && matches!(peers, Peers::Proven(_) | Peers::Unproven(_)),
            staged_kernels: staged_kernels(e, &pairs),
            unfit: unfit(e, &gpus, &pairs),
            fabric: fabric(e, &pairs),
            crosses_root: pairs
                .iter()
                .any(|p| !e.has_nvlink(*p) && e.path_type(*p).is_some_and(|t| t >= PathType::Phb)),
            compute: gpus
                .iter()
                .filter_map(|g| e.snapshot.gpu(*g)?.compute_capability.known().copied())
                .collect(),
            broken_elsewhere: e
                .pairs()
                .into_iter()
                .filter(|p| !in_group(p))
                .filter(|p| e.of_pair(*p).any(|r| counts(r, pools)))
                .collect(),
            sound_instead: matches!(peers, Peers::Failed(_))
                .then(|| {
                    let all: Vec<GpuIndex> = if request.candidates.is_empty() {
                        (0..count as u32).map(GpuIndex).collect()
                    } else {
                        request.candidates.clone()
                    };
                    ranks::sound_window(e, &ranks::contiguous(e, &all), gpus.len())
                })
                .flatten(),
            given,
            reordered: gpus != as_named,
            one_numa_node: one_numa_node(e, &gpus),
            host_path: host_path(e, &pairs),
            full_nvlink,
            peers,
            pairs,
            gpus,
        })
    }

    /// The same group as `engine` may use it. Whether its peers are proven is the verdict on whoever the engine uses them
    /// through by itself, NCCL before others: pairs that are right up to some rung are no proof for one who stands on a
    /// higher, and what it does not use is not held against it.
    pub(crate) fn used_by(mut self, engine: &EngineProfile, consumers: &[Consumer]) -> Self {
        let through = |b: &&Backend| b.consumer.as_deref() == Some(NCCL_P2P);
        let defaults = || engine.backends.iter().filter(|b| b.by_default);
        let backend = defaults()
            .find(through)
            .or_else(|| defaults().find(|b| b.peer));
        let consumer = backend
            .and_then(|b| b.consumer.as_ref())
            .and_then(|id| consumers.iter().find(|c| c.id == *id));
        let Some(consumer) = consumer else {
            return self;
        };
        self.peers = match self.peers {
            Peers::Proven(_) if is_open(consumer) => Peers::Unproven(gap(consumer)),
            // The first pair that stops it, and what is missing in all.
            Peers::Unproven(seen) if is_open(consumer) => {
                Peers::Unproven(format!("{seen}; {}", gap(consumer)))
            }
            Peers::Unproven(_) if is_proven(consumer) => {
                Peers::Proven(consumer.reached.unwrap_or(Rung::Touched))
            }
            as_seen => as_seen,
        };
        self
    }

    /// The command that would tell what is not proven of this group.
    pub(crate) fn would_tell(&self) -> String {
        if self.pairs.is_empty() {
            return "'peerproof qualify', then '--from REPORT', would tell".to_string();
        }
        let mut gpus = self.gpus.clone();
        gpus.sort();
        let list: Vec<String> = gpus.iter().map(GpuIndex::to_string).collect();
        format!("'peerproof qualify --gpus {}' would tell", list.join(","))
    }

    /// The lowest compute capability of the group, where all are known.
    pub(crate) fn lowest_compute(&self) -> Option<(u32, u32)> {
        (self.compute.len() == self.gpus.len())
            .then(|| self.compute.iter().min().copied())
            .flatten()
    }

    /// Group size.
    pub(crate) fn world(&self) -> u32 {
        self.gpus.len() as u32
    }

    /// Every GPU is known to have compute capability 10.x.
    pub(crate) fn is_blackwell_datacenter(&self) -> bool {
        !self.compute.is_empty()
            && self.compute.len() == self.gpus.len()
            && self.compute.iter().all(|(major, _)| *major == 10)
    }
}

/// "record 19: 0->1 staged: zeroed".
fn told(record: &Record) -> String {
    format!(
        "record {}: {} {}: {}",
        record.case.id,
        record.case.subject,
        record.case.mechanism,
        record.outcome.word()
    )
}

fn unfit(e: &Evidence, gpus: &[GpuIndex], pairs: &[OrderedPair]) -> Option<String> {
    let own = e
        .condemned_gpus()
        .iter()
        .copied()
        .find(|g| gpus.contains(g))
        .map(|gpu| {
            let failed = e
                .of_gpu(gpu)
                .filter(|r| r.case.rung == Rung::Alone && r.outcome.is_failure())
                .min_by_key(|r| involves_host(r));
            match failed {
                Some(record) if involves_host(record) => {
                    format!("the host path failed: {}", told(record))
                }
                Some(record) => format!("GPU{gpu} fails by itself: {}", told(record)),
                None => format!("GPU{gpu} reported errors after which it is not to be trusted"),
            }
        });
    own.or_else(|| {
        pairs
            .iter()
            .flat_map(|p| e.of_pair(*p))
            .find(|r| r.case.rung == Rung::Staged && r.outcome.is_failure())
            .map(|record| format!("the host path failed: {}", told(record)))
    })
}

/// Whether `engine` lets peers touch memory of stream-ordered pools: one of those through whom it uses peers needs that.
pub(crate) fn pools(engine: &EngineProfile, consumers: &[ConsumerProfile]) -> bool {
    let own = |c: &&ConsumerProfile| {
        let mut backends = engine.backends.iter();
        backends.any(|b| b.consumer.as_deref() == Some(c.id.as_str()))
    };
    let mut sets = consumers
        .iter()
        .filter(own)
        .flat_map(|c| c.needs.iter().flat_map(|need| need.one_of.iter().flatten()));
    sets.any(|mechanism| mechanism.starts_with(POOL))
}

/// Beginning of mechanisms on memory of stream-ordered pools.
const POOL: &str = "pool-";

/// Whether a record takes the peers from whoever may touch pools, or may not.
fn counts(record: &Record, pools: bool) -> bool {
    record.outcome.is_failure()
        && record.case.rung >= Rung::Copied
        && (pools || !record.case.mechanism.starts_with(POOL))
}

fn peers(e: &Evidence, gpus: &[GpuIndex], pairs: &[OrderedPair], pools: bool) -> Peers {
    let failed = pairs
        .iter()
        .flat_map(|p| e.of_pair(*p))
        .find(|r| counts(r, pools))
        .or_else(|| e.group_failure(gpus));
    if let Some(record) = failed {
        return Peers::Failed(told(record));
    }
    for pair in pairs {
        if let PeerClaim::Refused(status) = e.claim(*pair) {
            return Peers::Refused(format!("NVML says {status} for pair {pair}"));
        }
        if let Some(record) = e.refused(*pair) {
            return Peers::Refused(format!(
                "record {}: peer access was refused on pair {pair}",
                record.case.id
            ));
        }
    }
    let lowest = pairs.iter().map(|p| (rung_reached(e, *p), *p)).min();
    match lowest {
        // Right pairs are no proof of more ranks at once.
        Some((Some(Rung::Reduced), _)) if !e.reduces_together(gpus) => {
            Peers::Proven(Rung::Resident)
        }
        Some((Some(rung), _)) if rung >= Rung::Touched => Peers::Proven(rung),
        Some((Some(Rung::Advertised), pair)) => Peers::Unproven(format!(
            "pair {pair} is advertised as OK, and no rung above that was tried in full"
        )),
        Some((Some(rung), pair)) => Peers::Unproven(format!(
            "pair {pair} is proven up to rung {rung} only, and kernels need rung 3"
        )),
        Some((None, pair)) => Peers::Unproven(format!("nothing is proven of pair {pair}")),
        None => Peers::Unproven("one GPU has no pairs".to_string()),
    }
}

/// What the cause of slow kernels holds against a pair of the group, with its first line of evidence.
fn staged_kernels(e: &Evidence, pairs: &[OrderedPair]) -> Option<String> {
    let cause = ROSTER.iter().find(|c| c.id == "kernel-access-staged")?;
    let held = |f: &Finding| f.judgement == Judgement::Indicted;
    let finding = (cause.judge)(e).into_iter().find(held)?;
    let own = finding.pairs.iter().any(|p| pairs.contains(p));
    own.then(|| finding.evidence.first().cloned().unwrap_or(finding.because))
}

fn one_numa_node(e: &Evidence, gpus: &[GpuIndex]) -> Option<bool> {
    let mut homes = Vec::new();
    for gpu in gpus {
        homes.push(
            e.snapshot
                .gpu(*gpu)?
                .numa_node
                .known()
                .copied()
                .filter(|n| *n >= 0)?,
        );
    }
    Some(homes.windows(2).all(|w| matches!(w, [a, b] if a == b)))
}

fn full_nvlink(e: &Evidence, pairs: &[OrderedPair]) -> Option<bool> {
    if pairs.is_empty() {
        return None;
    }
    let known = pairs.iter().all(|p| {
        e.snapshot
            .topology
            .pairs
            .get(*p)
            .is_some_and(|path| path.nvlink_known || path.nvlinks > 0)
    });
    known.then(|| pairs.iter().all(|p| e.has_nvlink(*p)))
}

/// Fabric of the group: NVLink first, then the nearest PCIe path that any two members share.
fn fabric(e: &Evidence, pairs: &[OrderedPair]) -> FabricClass {
    if pairs.is_empty() {
        return FabricClass::None;
    }
    let paths: Vec<_> = pairs
        .iter()
        .filter_map(|p| e.snapshot.topology.pairs.get(*p))
        .collect();
    if paths.len() < pairs.len() {
        return FabricClass::Unknown;
    }
    if paths.iter().all(|p| p.nvlinks > 0) {
        return if paths.iter().all(|p| p.through_nvswitch) {
            FabricClass::Nvswitch
        } else {
            FabricClass::NvlinkMesh
        };
    }
    if paths.iter().any(|p| p.nvlinks > 0) {
        return FabricClass::NvlinkPairs;
    }
    if e.snapshot.topology.class == FabricClass::VmOpaque {
        return FabricClass::VmOpaque;
    }
    let kinds: Vec<PathType> = paths.iter().filter_map(|p| p.pcie).collect();
    if kinds.len() < paths.len() {
        FabricClass::Unknown
    } else if kinds
        .iter()
        .any(|k| matches!(k, PathType::Pix | PathType::Pxb))
    {
        FabricClass::PcieSwitch
    } else if kinds.contains(&PathType::Sys) {
        FabricClass::RootComplexCrossSocket
    } else {
        FabricClass::RootComplexSingleSocket
    }
}
