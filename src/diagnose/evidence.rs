//! The questions that causes, consumers and the verdict may ask of what was read and tried. Answers are about ordered
//! pairs; an answer that the evidence does not hold is `None`, never "no".

use super::{
    sorted::{Kind, OnSubjects, Sorted},
    xid,
};
use crate::model::{
    case::{BOUNCE, NO_ANSWER, Outcome, Record, Rung, STAGED, Subject},
    fared::Fared,
    group::Group,
    iommu_line::IommuLine,
    ladder::{self, Step},
    pair::{GpuIndex, OrderedPair},
    pci::PciAddress,
    snapshot::{Gpu, Observation, Snapshot},
    topology::PathType,
    xid::Xid,
};
use std::{cell::OnceCell, collections::BTreeSet};

/// Everything that was read, tried and observed, sorted once so that each question costs what its own rows cost.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// What was read before anything was tried.
    pub snapshot: &'a Snapshot,
    /// What was tried.
    pub records: &'a [Record],
    /// What the observer saw before, during and after.
    pub observations: &'a [Observation],
    /// The mechanisms of pairs and their rungs, as the version that ran knew them; empty when it did not say.
    pub(crate) ladder: &'a [Step],
    /// The command line of the run, without the program's name; empty when it is not known.
    pub(crate) arguments: &'a [String],
    sorted: Sorted<'a>,
    condemned: OnceCell<BTreeSet<GpuIndex>>,
    iommu_line: OnceCell<IommuLine>,
    failing: OnceCell<BTreeSet<OrderedPair>>,
    on_the_path: OnceCell<Vec<OrderedPair>>,
    fabric: OnceCell<Vec<OrderedPair>>,
    suspects: OnceCell<Vec<OrderedPair>>,
    passes: OnceCell<BTreeSet<OrderedPair>>,
}

/// How bytes fared through the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlArm {
    /// Both ways through the host that were tried were right: what is wrong beside them is the direct path.
    Intact,
    /// The driver's own staged copy was wrong, our bounce was right.
    DriverStagedWrong,
    /// Our own copies through pinned memory were wrong: the fabric between GPUs is not to blame.
    BounceWrong,
    /// Neither ran.
    NotRun,
}

/// What NVML claims of peer reads and writes of an ordered pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerClaim {
    /// Reads and writes OK.
    Ok,
    /// A status other than OK: CNS, GNS, TNS, DR, NS, U.
    Refused(String),
    /// NVML was not asked or did not answer.
    Unknown,
}

/// CUDA_ERROR_SYSTEM_NOT_READY (cuda.h).
pub(crate) const NOT_READY: u32 = 802;

/// Whether CUDA was not ready: its answer to everything before the NVSwitch fabric is up, and no word on a GPU.
pub(crate) fn is_not_ready(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused { code, .. } | Outcome::Faulted { code, .. } if *code == NOT_READY)
}

/// Whether a GPU's failing case by itself involves the host: a copy to or from it, or memory that the GPU's own kernel found
/// right and only the host's copy of it wrong. Link, slot and host memory are as suspect as the GPU.
pub(crate) fn involves_host(record: &Record) -> bool {
    matches!(
        record.case.mechanism.as_str(),
        "host-write" | "host-read" | "pinned-host"
    ) || record
        .outcome
        .corruption()
        .is_some_and(|c| c.owner_views_agree == Some(false) && c.wrong_units == 0)
}

impl<'a> Evidence<'a> {
    /// Sorts the records by what they are about.
    pub fn new(
        snapshot: &'a Snapshot,
        records: &'a [Record],
        observations: &'a [Observation],
    ) -> Self {
        Evidence {
            snapshot,
            records,
            observations,
            ladder: &[],
            arguments: &[],
            sorted: Sorted::of(records),
            condemned: OnceCell::new(),
            iommu_line: OnceCell::new(),
            failing: OnceCell::new(),
            on_the_path: OnceCell::new(),
            fabric: OnceCell::new(),
            suspects: OnceCell::new(),
            passes: OnceCell::new(),
        }
    }

    /// With the mechanisms that make up the rungs, so that a mechanism that nobody tried is missed.
    pub fn with_ladder(self, ladder: &'a [Step]) -> Self {
        Evidence { ladder, ..self }
    }

    /// With the command line of the run, so that it is not advised again.
    pub fn made_by(self, arguments: &'a [String]) -> Self {
        Evidence { arguments, ..self }
    }

    /// Subjects with any record, ascending, and how each mechanism fared there.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = (Subject, &[Fared<'a>])> {
        self.sorted
            .by_subject
            .iter()
            .map(|(subject, own)| (*subject, own.fared.as_slice()))
    }

    /// Mechanisms on their rungs, and how each fared on the subjects that have it, ascending.
    pub(super) fn by_mechanism(&self) -> Vec<(Kind<'a>, OnSubjects<'_, 'a>)> {
        self.sorted.by_kind()
    }

    /// How each mechanism fared on each rung of `subject`, in the order in which they appear.
    pub(crate) fn fared(&self, subject: Subject) -> &[Fared<'a>] {
        self.sorted
            .by_subject
            .get(&subject)
            .map_or(&[], |own| &own.fared)
    }

    /// The same of a pair.
    pub(crate) fn pair_fared(&self, pair: OrderedPair) -> &[Fared<'a>] {
        self.fared(Subject::Pair(pair))
    }

    fn of(&self, subject: Subject) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        let own = self.sorted.by_subject.get(&subject);
        own.into_iter().flat_map(|own| own.records.iter().copied())
    }

    /// Records of `pair`, in order.
    pub fn of_pair(&self, pair: OrderedPair) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        self.of(Subject::Pair(pair))
    }

    /// Records of one GPU by itself.
    pub fn of_gpu(&self, gpu: GpuIndex) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        self.of(Subject::Gpu(gpu))
    }

    /// Groups with any record, ascending.
    pub fn groups(&self) -> impl Iterator<Item = Group> + use<'a, '_> {
        self.sorted.by_subject.keys().filter_map(|s| s.group())
    }

    /// Records of what was asked of all GPUs of `group` together, in order.
    pub fn of_group(&self, group: Group) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        self.of(Subject::Group(group))
    }

    /// Whether all-reduces over these GPUs together are known to be exact: those of the smallest group that was tried and
    /// holds them all ran and were right. A pair is its own group.
    pub fn reduces_together(&self, gpus: &[GpuIndex]) -> bool {
        let holding = self
            .groups()
            .filter(|group| gpus.iter().all(|gpu| group.touches(*gpu)));
        let Some(smallest) = holding.min_by_key(|group| group.count()) else {
            return gpus.len() <= 2;
        };
        let mut records = self
            .of_group(smallest)
            .filter(|r| !matches!(r.outcome, Outcome::NotApplicable { .. }))
            .peekable();
        records.peek().is_some() && records.all(|r| r.outcome.is_intact())
    }

    /// What failed of the groups that lie among these GPUs: wrong data before all else, then the first.
    pub fn group_failure(&self, gpus: &[GpuIndex]) -> Option<&'a Record> {
        let within = |group: Group| group.gpus().all(|gpu| gpus.contains(&gpu));
        let failed = || {
            let inside = self.groups().filter(|group| within(*group));
            inside
                .flat_map(|group| self.of_group(group))
                .filter(|r| r.outcome.is_failure())
        };
        failed()
            .find(|r| r.outcome.corruption().is_some())
            .or_else(|| failed().next())
    }

    /// The climb of one pair.
    pub fn standing(&self, pair: OrderedPair) -> ladder::Standing<'a> {
        ladder::climb(self.pair_fared(pair), self.ladder)
    }

    /// Records that count against the host.
    pub fn failures(&self) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        let all = self.sorted.not_right.iter().copied();
        all.filter(|r| r.outcome.is_failure())
    }

    /// Records of cases that were not run, or do not exist here.
    pub(crate) fn without_answer(&self) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        self.sorted.without_answer.iter().copied()
    }

    /// Their reasons.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = &'a str> + use<'a, '_> {
        self.without_answer().filter_map(|r| match &r.outcome {
            Outcome::NotRun { reason } | Outcome::NotApplicable { reason } => Some(reason.as_str()),
            _ => None,
        })
    }

    /// Cases that were under way when the run ended early, in order: one of them may be what hung.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        self.without_answer().filter(
            |r| matches!(&r.outcome, Outcome::NotRun { reason } if reason.contains(NO_ANSWER)),
        )
    }

    /// Records with a rate, in order.
    pub(crate) fn timed(&self) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        self.sorted.timed.iter().copied()
    }

    /// Pairs with any record, ascending.
    pub fn pairs(&self) -> BTreeSet<OrderedPair> {
        self.sorted
            .by_subject
            .keys()
            .filter_map(|s| s.pair())
            .collect()
    }

    /// Pairs of which at least one case ran to an answer.
    pub fn pairs_tried(&self) -> BTreeSet<OrderedPair> {
        self.pairs_with(|fared| fared.answers.ran())
    }

    /// Pairs between which something was tried: a claim that was read is not among it.
    pub fn pairs_moved(&self) -> BTreeSet<OrderedPair> {
        self.pairs_with(|fared| fared.rung > Rung::Advertised && fared.answers.ran())
    }

    fn pairs_with(&self, wanted: impl Fn(&Fared<'a>) -> bool) -> BTreeSet<OrderedPair> {
        let having = self
            .subjects()
            .filter(|(_, fared)| fared.iter().any(&wanted));
        having.filter_map(|(subject, _)| subject.pair()).collect()
    }

    /// Peer access that the driver was asked for and refused: accessor, owner, and the driver's answer. Access is granted
    /// by direction: a pull or load of a pair needs that of its destination to its source.
    pub fn peer_refusals(&self) -> impl Iterator<Item = (OrderedPair, String)> {
        self.sorted.not_right.iter().filter_map(|r| {
            let pair = r.case.subject.pair()?;
            let Outcome::Refused { api, code, name } = &r.outcome else {
                return None;
            };
            // Rungs above these refuse other things: handles, mappings.
            let direct = matches!(r.case.rung, Rung::Copied | Rung::Touched);
            if !direct && api != "cuCtxEnablePeerAccess" {
                return None;
            }
            let mechanism = r.case.mechanism.as_str();
            let by_destination = mechanism.ends_with("ce-pull") || mechanism.ends_with("sm-load");
            let accessor = if by_destination {
                pair.reversed()
            } else {
                pair
            };
            Some((accessor, format!("{code} {name}")))
        })
    }

    /// GPUs by position.
    pub fn gpus(&self) -> impl Iterator<Item = (GpuIndex, &'a Gpu)> {
        self.snapshot
            .gpus
            .iter()
            .enumerate()
            .map(|(i, gpu)| (GpuIndex(i as u32), gpu))
    }

    /// Whether an operating system below a hypervisor reports all this: `Some(false)` is bare metal, `None` was not read.
    /// A hypervisor that hides its CPU flag still shows by the ports and the board that it emulates.
    pub fn is_guest(&self) -> Option<bool> {
        let emulated = self.snapshot.bridges.iter().any(|b| b.emulated)
            || self
                .snapshot
                .host
                .dmi_vendor
                .known()
                .is_some_and(|v| v == "QEMU");
        let flag = self.snapshot.host.hypervisor.known().copied();
        if emulated { Some(true) } else { flag }
    }

    /// Whether the pair is joined by NVLink, as far as the sources show.
    pub fn has_nvlink(&self, pair: OrderedPair) -> bool {
        self.snapshot
            .topology
            .pairs
            .get(pair)
            .is_some_and(|p| p.nvlinks > 0)
    }

    /// PCIe path type of the pair.
    pub fn path_type(&self, pair: OrderedPair) -> Option<PathType> {
        self.snapshot.topology.pairs.get(pair).and_then(|p| p.pcie)
    }

    /// NVML's claim for the pair: the worse of read and write.
    pub fn claim(&self, pair: OrderedPair) -> PeerClaim {
        let Some(claims) = self.snapshot.claims.get(pair) else {
            return PeerClaim::Unknown;
        };
        match (claims.p2p_read.known(), claims.p2p_write.known()) {
            (Some(r), _) if r != "OK" => PeerClaim::Refused(r.clone()),
            (_, Some(w)) if w != "OK" => PeerClaim::Refused(w.clone()),
            (Some(_), Some(_)) => PeerClaim::Ok,
            _ => PeerClaim::Unknown,
        }
    }

    /// Cases of the pair that used peer access and ran (rung 2 and up).
    pub fn peer_cases(&self, pair: OrderedPair) -> impl Iterator<Item = &'a Record> + use<'a, '_> {
        self.of_pair(pair)
            .filter(|r| r.case.rung >= Rung::Copied && r.outcome.ran() && !r.went_through_host())
    }

    /// Failures of what went through the host between two GPUs, whatever the rung, without those of GPUs by themselves.
    pub fn host_failures(&self) -> impl Iterator<Item = (OrderedPair, &'a Record)> + use<'a, '_> {
        let through_host = self.failures().filter(|r| r.went_through_host());
        through_host.filter_map(|r| Some((r.case.subject.pair()?, r)))
    }

    /// The same by mechanism: each pair with the mechanisms whose copies through the host failed.
    pub(crate) fn host_failing(&self) -> impl Iterator<Item = (OrderedPair, &'a str)> {
        let of_pairs = self
            .subjects()
            .filter_map(|(subject, fared)| Some((subject.pair()?, fared)));
        of_pairs.flat_map(|(pair, fared)| {
            let failing = fared.iter().filter(|fared| fared.through_host.failed());
            failing.map(move |fared| (pair, fared.mechanism))
        })
    }

    /// Whether the driver refused peer access for the pair, whatever the claims say.
    pub fn refused(&self, pair: OrderedPair) -> Option<&'a Record> {
        let direct = self.pair_fared(pair).iter();
        direct
            .filter(|fared| matches!(fared.rung, Rung::Copied | Rung::Touched))
            .filter_map(|fared| fared.refused)
            .find(|refused| !refused.went_through_host())
    }

    /// How the pair's cases from rung 2 up fared that did not go through the host.
    fn direct(&self, pair: OrderedPair) -> impl Iterator<Item = &Fared<'a>> {
        let fared = self.pair_fared(pair).iter();
        fared.filter(|fared| fared.rung >= Rung::Copied && fared.direct.ran())
    }

    /// Pairs that failed on the direct path (rung 2 and up), whatever the reason.
    pub fn peer_failures(&self) -> &BTreeSet<OrderedPair> {
        self.failing.get_or_init(|| {
            self.pairs_with(|fared| fared.rung >= Rung::Copied && fared.direct.failed())
        })
    }

    /// Pairs whose direct path was used and was right in every case. Pairs that had no peer access are not among them:
    /// a far pair that "passes" because its copies went through the host says nothing of the fabric.
    pub fn peer_passes(&self) -> &BTreeSet<OrderedPair> {
        self.passes.get_or_init(|| {
            let passes = |p: &OrderedPair| {
                let mut direct = self.direct(*p).peekable();
                direct.peek().is_some()
                    && direct.all(|fared| fared.direct.all_right() && !fared.access_unknown)
            };
            self.pairs().into_iter().filter(passes).collect()
        })
    }

    /// Whether copy engines moved the pair's bytes between plain memories with peer access on, and were right in every case.
    /// What fails on such a pair is not the path between the GPUs.
    pub fn copies_right(&self, pair: OrderedPair) -> bool {
        let mut copies = self
            .direct(pair)
            .filter(|fared| fared.rung == Rung::Copied && !fared.mechanism.starts_with("pool-"))
            .peekable();
        copies.peek().is_some() && copies.all(|fared| fared.direct.all_right())
    }

    /// Cases that a driver call ended with one of these codes: refused or failed.
    pub fn answered(&self, codes: &[u32]) -> impl Iterator<Item = &'a Record> {
        let answered = |fared: &Fared| fared.refused.is_some() || fared.broken.is_some();
        let having = self.sorted.by_subject.values();
        let having = having.filter(move |own| own.fared.iter().any(answered));
        having.flat_map(|own| own.records.iter().copied()).filter(move |r| {
            matches!(&r.outcome, Outcome::Refused { code, .. } | Outcome::Faulted { code, .. } if codes.contains(code))
        })
    }

    /// Lines of applications' logs for which `marks` holds, with their places: "nccl.log:118: text".
    pub fn said(&self, marks: impl Fn(&str) -> bool) -> Vec<String> {
        let lines = self.snapshot.application_log.iter();
        lines
            .filter(|line| marks(&line.text))
            .map(|line| format!("{}: {}", line.source, line.text))
            .collect()
    }

    /// How bytes of the pair fared through the host.
    pub fn control_arm(&self, pair: OrderedPair) -> ControlArm {
        // Kernels that exchange through host memory stand on this rung, too, and are no copies.
        let staged = |mechanism: &'static str| {
            let fared = self.pair_fared(pair).iter();
            fared.filter(move |f| f.rung == Rung::Staged && f.mechanism == mechanism)
        };
        let failed = |mechanism| staged(mechanism).any(|fared| fared.answers.failed());
        if failed(BOUNCE) {
            ControlArm::BounceWrong
        } else if failed(STAGED) {
            ControlArm::DriverStagedWrong
        } else if staged(BOUNCE)
            .chain(staged(STAGED))
            .any(|f| f.answers.intact())
        {
            ControlArm::Intact
        } else {
            ControlArm::NotRun
        }
    }

    /// Whether both our bounce and the driver's staged copy ran and were right: the discriminating test of a fabric fault.
    pub fn control_arm_complete(&self, pair: OrderedPair) -> bool {
        let intact = |mechanism| {
            let mut fared = self.pair_fared(pair).iter();
            fared.any(|f| f.answers.intact() && f.mechanism == mechanism)
        };
        self.control_arm(pair) == ControlArm::Intact && intact(BOUNCE) && intact(STAGED)
    }

    /// GPUs that failed by themselves: their pairs are not blamed.
    pub fn condemned_gpus(&self) -> &BTreeSet<GpuIndex> {
        self.condemned.get_or_init(|| self.condemn())
    }

    fn condemn(&self) -> BTreeSet<GpuIndex> {
        let failed_alone = |r: &&Record| {
            // Two processes on one GPU may be kept apart by a container: that is no fault of the GPU.
            r.case.rung == Rung::Alone && r.outcome.is_failure() && !is_not_ready(&r.outcome)
        };
        let subjects = self.sorted.by_subject.iter();
        let own = subjects.filter_map(|(subject, own)| match subject {
            Subject::Gpu(gpu) => own.records.iter().any(failed_alone).then_some(*gpu),
            Subject::Pair(_) | Subject::Group(_) => None,
        });
        let rows = self
            .gpus()
            .filter(|(_, g)| g.remapped_rows.known().is_some_and(|rows| rows.failed))
            .map(|(i, _)| i);
        let xid = self
            .xids()
            .into_iter()
            .filter(|(_, code, _)| xid::is_fatal(*code))
            .map(|(gpu, _, _)| gpu);
        own.chain(rows).chain(xid).collect()
    }

    /// Pairs that are wrong because of what lies between the two GPUs: the direct path shows a path's symptom, neither GPU
    /// is condemned, and bytes through the host are not wrong as well. Pairs over NVLink are left out: their bytes do not
    /// cross PCIe.
    pub fn fabric_failures(&self) -> &[OrderedPair] {
        self.fabric.get_or_init(|| {
            let failures = self.path_failures().iter().copied();
            failures.filter(|p| !self.has_nvlink(*p)).collect()
        })
    }

    /// The same with pairs over NVLink among them.
    pub fn path_failures(&self) -> &[OrderedPair] {
        self.on_the_path.get_or_init(|| {
            let condemned = self.condemned_gpus();
            let failing = self.peer_failures().iter().copied();
            failing
                .filter(|p| !condemned.contains(&p.source) && !condemned.contains(&p.destination))
                .filter(|p| self.control_arm(*p) != ControlArm::BounceWrong)
                .filter(|p| self.direct(*p).any(|fared| fared.direct.path_symptom()))
                .collect()
        })
    }

    /// Pairs whose path is suspected: fabric failures that neither right copies over the same path clear, nor right
    /// transfers below the end of BAR1.
    pub fn path_suspects(&self) -> &[OrderedPair] {
        self.suspects.get_or_init(|| {
            let failures = self.fabric_failures().iter().copied();
            failures
                .filter(|p| !self.copies_right(*p) && self.only_past_bar1(*p).is_none())
                .collect()
        })
    }

    /// The size of the owner's BAR1 in bytes, where it is smaller than its memory and a transfer of the pair ends past it.
    pub(crate) fn ends_past_bar1(&self, pair: OrderedPair, record: &Record) -> Option<u64> {
        let pull = matches!(record.case.mechanism.as_str(), "ce-pull" | "sm-load");
        let owner = if pull { pair.source } else { pair.destination };
        let gpu = self.snapshot.gpu(owner)?;
        let (bar1, memory) = (*gpu.bar1_bytes.known()?, *gpu.memory_bytes.known()?);
        let end = record.case.offset.saturating_add(record.case.bytes);
        (bar1 < memory && end > bar1).then_some(bar1)
    }

    /// The size of BAR1 in bytes, if the pair's transfers are right below it and wrong only past it: each failing mechanism
    /// was right in a case that ends inside the owner's BAR1, and every failing case ends outside.
    pub fn only_past_bar1(&self, pair: OrderedPair) -> Option<u64> {
        let past = |r: &Record, edge: u64| r.case.offset.saturating_add(r.case.bytes) > edge;
        let mut found = None;
        for wrong in self.peer_cases(pair).filter(|r| r.outcome.is_failure()) {
            let edge = self.ends_past_bar1(pair, wrong)?;
            let right_below = self.peer_cases(pair).any(|r| {
                r.case.mechanism == wrong.case.mechanism && r.outcome.is_intact() && !past(r, edge)
            });
            if !right_below {
                return None;
            }
            found = Some(edge);
        }
        found
    }

    /// Whether the pair's default IOMMU domains translate: `Some(true)` when either GPU's does, `Some(false)` when both are
    /// known not to (or the host has no IOMMU at all).
    pub fn iommu_translates(&self, pair: OrderedPair) -> Option<bool> {
        let line = self.iommu_line();
        let end = |gpu: GpuIndex| -> Option<bool> {
            match self.snapshot.gpu(gpu)?.iommu.known() {
                // A group is one of an IOMMU at work.
                Some(group) => group.translates().or_else(|| line.translates(true)),
                None if line.translates(self.has_iommu()).is_some() => {
                    line.translates(self.has_iommu())
                }
                // No group and no IOMMU device in the kernel: there is none for this GPU.
                None => self
                    .snapshot
                    .host
                    .iommu_classes
                    .known()
                    .filter(|classes| classes.is_empty())
                    .map(|_| false),
            }
        };
        match (end(pair.source), end(pair.destination)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }

    /// What the kernel command line says of the IOMMU; nothing where it was not read.
    pub fn iommu_line(&self) -> &IommuLine {
        self.iommu_line.get_or_init(|| {
            let line = self.snapshot.host.cmdline.known();
            line.map(|line| IommuLine::of(line)).unwrap_or_default()
        })
    }

    /// Whether an IOMMU is known to be at work.
    pub fn has_iommu(&self) -> bool {
        let classes = self.snapshot.host.iommu_classes.known();
        classes.is_some_and(|classes| !classes.is_empty())
    }

    /// Bridges between the two GPUs, from the join, else from the two bridge chains.
    pub fn bridges_between(&self, pair: OrderedPair) -> Vec<PciAddress> {
        let joined = self
            .snapshot
            .topology
            .pairs
            .get(pair)
            .map(|p| p.bridges.clone())
            .unwrap_or_default();
        if !joined.is_empty() {
            return joined;
        }
        let chain = |gpu: GpuIndex| {
            self.snapshot
                .gpu(gpu)
                .and_then(|g| g.bridge_chain.known())
                .cloned()
                .unwrap_or_default()
        };
        let (up, down) = (chain(pair.source), chain(pair.destination));
        let mut all: Vec<PciAddress> = Vec::new();
        let below_common = |side: &[PciAddress], other: &[PciAddress]| -> Vec<PciAddress> {
            side.iter()
                .copied()
                .take_while(|b| !other.contains(b))
                .collect()
        };
        all.extend(below_common(&up, &down));
        all.extend(below_common(&down, &up));
        all
    }

    /// Ports between the two GPUs that redirect peer traffic, and ports whose control word is not known.
    pub fn acs_between(&self, pair: OrderedPair) -> (Vec<PciAddress>, Vec<PciAddress>) {
        let (mut redirecting, mut unknown) = (Vec::new(), Vec::new());
        for address in self.bridges_between(pair) {
            match self.snapshot.bridge(address).and_then(|b| b.acs.known()) {
                Some(acs) if acs.redirects() => redirecting.push(address),
                Some(_) => {}
                None => unknown.push(address),
            }
        }
        (redirecting, unknown)
    }

    /// Lines of the kernel log that contain one of `marks`; `None` when the log could not be read. Silence proves nothing.
    pub fn log_lines(&self, marks: &[&str]) -> Option<Vec<&'a str>> {
        self.snapshot.host.kernel_log.known().map(|lines| {
            lines
                .iter()
                .map(String::as_str)
                .filter(|line| marks.iter().any(|m| line.contains(m)))
                .collect()
        })
    }

    /// Xid reports of the kernel log that name one of the GPUs: GPU, code, line.
    pub fn xids(&self) -> Vec<(GpuIndex, u32, &'a str)> {
        self.log_lines(&["NVRM: Xid"])
            .unwrap_or_default()
            .into_iter()
            .filter_map(|line| {
                let xid = Xid::parse(line)?;
                let mut gpus = self.gpus();
                let (gpu, _) = gpus.find(|(_, g)| g.pci.known() == Some(&xid.gpu))?;
                Some((gpu, xid.code, line))
            })
            .collect()
    }
}

/// "0->1, 0->2 and 54 more": short enough for a sentence.
pub(crate) fn name_pairs(pairs: &[OrderedPair]) -> String {
    const SHOWN: usize = 4;
    let mut text = pairs
        .iter()
        .take(SHOWN)
        .map(OrderedPair::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    if pairs.len() > SHOWN {
        text.push_str(&format!(" and {} more", pairs.len() - SHOWN));
    }
    text
}
