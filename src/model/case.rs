//! The question put to hardware (a case), its answer (an outcome), and the row that keeps both (a record).

use super::{
    fared::Answers,
    group::Group,
    measurement::Measurement,
    pair::{GpuIndex, OrderedPair},
    reduction::AllReduce,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far up the ladder a case stands. Each rung condemns hosts that the ones below it pass.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Each GPU by itself: memory, host link. Comes before the ladder.
    Alone,
    /// 0: what NVML, CUDA and PCI configuration claim.
    Advertised,
    /// 1: do bytes survive through the host?
    Staged,
    /// 2: copy-engine push and pull with peer access on, one process.
    Copied,
    /// 3: loads and stores by multiprocessors, one process.
    Touched,
    /// 4: 2 and 3 across processes.
    Shared,
    /// 5: two kernels that stay resident and depend on each other.
    Resident,
    /// 6: a micro all-reduce.
    Reduced,
    /// 7: 2 to 6 under load.
    Loaded,
}

impl Rung {
    /// All rungs of the ladder, bottom first, without `Alone`.
    pub const LADDER: [Rung; 8] = [
        Rung::Advertised,
        Rung::Staged,
        Rung::Copied,
        Rung::Touched,
        Rung::Shared,
        Rung::Resident,
        Rung::Reduced,
        Rung::Loaded,
    ];

    /// 0 to 7; `None` for `Alone`.
    pub fn number(self) -> Option<u32> {
        Rung::LADDER
            .iter()
            .position(|r| *r == self)
            .map(|n| n as u32)
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Alone => "alone",
            Rung::Advertised => "advertised",
            Rung::Staged => "staged",
            Rung::Copied => "copied",
            Rung::Touched => "touched",
            Rung::Shared => "shared",
            Rung::Resident => "resident",
            Rung::Reduced => "reduced",
            Rung::Loaded => "loaded",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(n) => write!(f, "{n} {}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

/// What a case is about.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// One GPU by itself.
    Gpu(GpuIndex),
    /// An ordered pair.
    Pair(OrderedPair),
    /// Several GPUs together: an island, or all that were chosen.
    Group(Group),
}

impl Subject {
    /// The pair, if it is one.
    pub fn pair(self) -> Option<OrderedPair> {
        match self {
            Subject::Pair(pair) => Some(pair),
            Subject::Gpu(_) | Subject::Group(_) => None,
        }
    }

    /// The group, if it is one.
    pub fn group(self) -> Option<Group> {
        match self {
            Subject::Group(group) => Some(group),
            Subject::Gpu(_) | Subject::Pair(_) => None,
        }
    }

    /// Whether `gpu` takes part.
    pub fn touches(self, gpu: GpuIndex) -> bool {
        match self {
            Subject::Gpu(own) => own == gpu,
            Subject::Pair(pair) => pair.touches(gpu),
            Subject::Group(group) => group.touches(gpu),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Gpu(gpu) => write!(f, "GPU{gpu}"),
            Subject::Pair(pair) => write!(f, "{pair}"),
            Subject::Group(group) => write!(f, "{group}"),
        }
    }
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Case {
    /// Unique in the run.
    pub id: u32,
    /// GPU, ordered pair or group.
    pub subject: Subject,
    /// Mechanism id, as in `peerproof list`: "ce-push", "sm-load", "bounce", ...
    pub mechanism: String,
    /// Rung it belongs to.
    pub rung: Rung,
    /// Bytes moved in one attempt.
    pub bytes: u64,
    /// Offset of the transfer in the destination buffer, in bytes.
    pub offset: u64,
    /// How often it is tried, each time with fresh poison and fresh words.
    pub attempts: u32,
    /// Whether a rate is measured after the content was judged.
    pub timed: bool,
    /// What else moves meanwhile, for cases of rung 7; `None` = nothing planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// How the vectors of an all-reduce are, for cases of one; its mechanism is the algorithm, its attempts are calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_reduce: Option<AllReduce>,
    /// Part of the soak of `--deep`: more of what other cases of its mechanism try already, so that no rung is open for the
    /// want of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soak: bool,
}

/// Traffic under which a case of rung 7 is judged: which flows run at the same time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Both directions of the pair.
    BothDirections,
    /// One source to several destinations at once.
    OneToMany,
    /// Both directions of disjoint pairs that together cover all GPUs.
    Round,
    /// Every ordered pair.
    AllPairs,
}

impl Load {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Load::BothDirections => "both directions at once",
            Load::OneToMany => "one source to several destinations",
            Load::Round => "disjoint pairs over all GPUs",
            Load::AllPairs => "every ordered pair at once",
        }
    }
}

/// Peer access between two contexts during a case, as proven by the driver's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerAccess {
    /// Not a pair case.
    NotApplicable,
    /// Never enabled in this process: disabling answered 705 in both directions.
    Off,
    /// Enabled (0 or 704) in both directions.
    Both,
    /// Enabled from the source's context to the destination only.
    SourceToDestination,
    /// Enabled from the destination's context to the source only.
    DestinationToSource,
    /// Memory of another process, opened by its IPC handle: opening it made it reachable.
    Imported,
    /// Granted per allocation (virtual memory management, stream-ordered pools); cuCtxEnablePeerAccess was never called.
    Granted,
}

// Why cases did not run is said in words, and saved so. Those that decide what comes next are these, on both sides of a report.

/// In the reason of a case that was under way when its run ended early.
pub const NO_ANSWER: &str = "no answer had come";
/// In the reasons of a run whose time was limited by its caller, and up.
pub const TIME_IS_UP: &str = "the time given was up";
/// In the reasons of a run that somebody ended.
pub const INTERRUPTED: &str = "interrupted";
/// In the reasons of a run that came to the end of its budget's time; the budget and its seconds stand around it.
pub const BUDGET_SPENT: &str = "the time limit of the";
/// In the reasons of cases to which a soak did not come.
pub const SOAK_ENDED: &str = "the soak ended";

/// Said of a case whose worker outlived SIGKILL.
pub const LEFT_BEHIND: &str =
    "its worker could not be killed: it is stuck in the driver and was left behind";
/// Said of a case that was wrong in a shared round and right by itself.
pub const ONLY_TOGETHER: &str = "intact when run alone: wrong only together with other pairs";

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    /// The owner holds the bytes that the writer sent, in every attempt.
    Intact,
    /// It does not.
    Corrupt(Box<Corruption>),
    /// A clean no (peer access unsupported, capability absent); the context is still good.
    Refused {
        /// Driver call.
        api: String,
        /// CUresult.
        code: u32,
        /// The driver's name for it.
        name: String,
    },
    /// A driver call failed; the context is not trusted any more.
    Faulted {
        /// Driver call.
        api: String,
        /// CUresult.
        code: u32,
        /// The driver's name for it.
        name: String,
    },
    /// Not finished at the deadline; the worker was killed.
    TimedOut {
        /// The deadline in milliseconds of wall time.
        after_ms: u64,
    },
    /// A resident kernel waited for its peer's flag until its own clock ran out, and gave up by itself.
    Never {
        /// Round whose flag never came, from 1.
        round: u32,
        /// Rounds planned.
        rounds: u32,
        /// How long it waited, milliseconds of the GPU's clock.
        after_ms: u64,
        /// Who never came to an all-reduce, whose rounds are calls.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing: Option<Missing>,
    },
    /// The worker died.
    Died {
        /// "signal 9 (SIGKILL)", "exit status 70".
        how: String,
    },
    /// Does not exist here and is no gap: product policy, one GPU, compute capability.
    NotApplicable {
        /// Why.
        reason: String,
    },
    /// Was planned and did not run: a gap.
    NotRun {
        /// Why.
        reason: String,
    },
}

impl Outcome {
    /// Whether the data was right.
    pub fn is_intact(&self) -> bool {
        matches!(self, Outcome::Intact)
    }

    /// Whether data was wrong.
    pub fn corruption(&self) -> Option<&Corruption> {
        match self {
            Outcome::Corrupt(corruption) => Some(corruption),
            _ => None,
        }
    }

    /// Whether the case ran to an answer about the hardware (right, wrong, refused, faulted, hung, died).
    pub fn ran(&self) -> bool {
        !matches!(self, Outcome::NotRun { .. } | Outcome::NotApplicable { .. })
    }

    /// Whether this counts against the host: wrong data, fault, hang or death.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Outcome::Corrupt(_)
                | Outcome::Faulted { .. }
                | Outcome::TimedOut { .. }
                | Outcome::Never { .. }
                | Outcome::Died { .. }
        )
    }

    /// Whether it shows what a fault that lies between two GPUs looks like.
    pub fn is_path_symptom(&self) -> bool {
        Answers::of(self).path_symptom()
    }

    /// Short word for matrices and rows.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Intact => "intact",
            Outcome::Corrupt(c) => c.kind.name(),
            Outcome::Refused { .. } => "refused",
            Outcome::Faulted { .. } => "fault",
            Outcome::TimedOut { .. } => "hang",
            Outcome::Never { .. } => "never",
            Outcome::Died { .. } => "died",
            Outcome::NotApplicable { .. } => "n/a",
            Outcome::NotRun { .. } => "not run",
        }
    }
}

/// The part of an all-reduce that others waited for in vain.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Missing {
    /// Rank, from 0.
    pub rank: u32,
    /// Its GPU.
    pub gpu: GpuIndex,
    /// Block of its kernel, from 0.
    pub block: u32,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { rank, gpu, block } = self;
        write!(f, "block {block} of rank {rank} (GPU{gpu})")
    }
}

/// Kinds of wrong. Each points at other causes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WrongKind {
    /// Zeros arrived.
    Zeroed,
    /// All bits one: an aborted read.
    Ones,
    /// The owner's poison is untouched: the write never arrived.
    Dropped,
    /// The accessor reads its data back, the owner does not have it.
    Mirrored,
    /// Words of an earlier attempt or run.
    Stale,
    /// Words of another pair.
    Misrouted,
    /// Right words also, or only, outside the target.
    Spilled,
    /// Right words at another offset.
    Shifted,
    /// A few bits differ.
    Flipped,
    /// A part is right, the rest is of one kind of wrong.
    Partial,
    /// The flag was there before the payload that it announces; later the payload was right.
    Late,
    /// Several kinds at once, or words of no known origin.
    Mixed,
}

impl WrongKind {
    /// All kinds.
    pub const ALL: [WrongKind; 12] = [
        WrongKind::Zeroed,
        WrongKind::Ones,
        WrongKind::Dropped,
        WrongKind::Mirrored,
        WrongKind::Stale,
        WrongKind::Misrouted,
        WrongKind::Spilled,
        WrongKind::Shifted,
        WrongKind::Flipped,
        WrongKind::Partial,
        WrongKind::Late,
        WrongKind::Mixed,
    ];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            WrongKind::Zeroed => "zeroed",
            WrongKind::Ones => "ones",
            WrongKind::Dropped => "dropped",
            WrongKind::Mirrored => "mirrored",
            WrongKind::Stale => "stale",
            WrongKind::Misrouted => "misrouted",
            WrongKind::Spilled => "spilled",
            WrongKind::Shifted => "shifted",
            WrongKind::Flipped => "flipped",
            WrongKind::Partial => "partial",
            WrongKind::Late => "late",
            WrongKind::Mixed => "mixed",
        }
    }
}

impl fmt::Display for WrongKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Evidence of wrong data, from the first attempt that was wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Corruption {
    /// The kind.
    pub kind: WrongKind,
    /// One sentence with what is particular: "shifted by +32 bytes", "words of 3->5".
    pub detail: String,
    /// Attempt, from 1; the first one counts most.
    pub attempt: u32,
    /// Attempts that were wrong, of those that ran.
    pub wrong_attempts: u32,
    /// Attempts that ran.
    pub attempts_ran: u32,
    /// Offset of the first wrong byte's unit in the target, in bytes.
    pub first_offset: u64,
    /// Offset just past the last wrong unit.
    pub last_offset: u64,
    /// Wrong units of 16 bytes.
    pub wrong_units: u64,
    /// Units judged.
    pub units: u64,
    /// Units by class, as the classifying kernel counted them.
    pub counts: UnitCounts,
    /// Up to 16 samples.
    pub samples: Vec<Sample>,
    /// The accessor's own view of the destination, where one exists (pushes): whether it reads right.
    pub accessor_sees_right: Option<bool>,
    /// Whether the source, re-read by its owner, still holds what it should.
    pub source_intact: Option<bool>,
    /// Whether the owner's kernel and the owner's device-to-host copy agree.
    pub owner_views_agree: Option<bool>,
}

/// How many units fell into each class. Order of judging: equal, poison, zero, ones, few bits, then unmixed origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UnitCounts {
    /// As expected.
    pub equal: u64,
    /// This attempt's poison.
    pub poison: u64,
    /// All zero.
    pub zero: u64,
    /// All ones.
    pub ones: u64,
    /// At most 8 bits of 128 differ.
    pub few_bits: u64,
    /// A word of this transfer from another offset.
    pub displaced: u64,
    /// A word of an earlier attempt of this case, or its older poison.
    pub stale: u64,
    /// A word of another pair or mechanism.
    pub foreign: u64,
    /// None of these.
    pub unknown: u64,
}

/// One wrong unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Offset in the target in bytes.
    pub offset: u64,
    /// Expected, 32 hex digits in memory order.
    pub expected: String,
    /// As the owner read it.
    pub owner: String,
    /// As the accessor read it, if it has a view.
    pub accessor: Option<String>,
    /// As the owner read it again.
    pub reread: Option<String>,
    /// What the unit says of itself, if it could be unmixed.
    pub origin: Option<String>,
}

/// A case with its answer: one row of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The question.
    pub case: Case,
    /// The answer.
    pub outcome: Outcome,
    /// Peer access during the case.
    pub peer_access: PeerAccess,
    /// Who moved the bytes: "copy engine of GPU2", "multiprocessors of GPU5", "driver, through the host".
    pub executor: String,
    /// Attempts judged.
    pub attempts_ran: u32,
    /// Rate, if it was measured.
    pub rate: Option<Measurement>,
    /// Run alone after a suspicion (true), or in a shared round.
    pub alone: bool,
    /// Wall time in milliseconds.
    pub took_ms: f64,
    /// Remarks: "retired the worker", "rate above the link's ceiling".
    pub notes: Vec<String>,
}

/// Mechanism id of our own copies through pinned host memory: the control arm. Only its failure clears the fabric.
pub const BOUNCE: &str = "bounce";

/// Mechanism id of the driver's own copy through the host.
pub const STAGED: &str = "staged";

impl Record {
    /// Whether its bytes went through the host, on whatever rung it stands: under load the two ways through the host are tried,
    /// too, and without peer access the driver takes a direct copy through the host.
    pub fn went_through_host(&self) -> bool {
        self.was_staged_by_driver() || Record::is_by_host(&self.case.mechanism)
    }

    /// Whether its worker is stuck in the driver, and was left there.
    pub fn left_behind(&self) -> bool {
        self.notes.iter().any(|note| note == LEFT_BEHIND)
    }

    /// Whether it was wrong together with other pairs and right by itself.
    pub fn only_together(&self) -> bool {
        self.notes.iter().any(|note| note == ONLY_TOGETHER)
    }

    /// Whether bytes moved without peer access: then the driver took them through the host.
    pub(crate) fn was_staged_by_driver(&self) -> bool {
        let moved = matches!(self.outcome, Outcome::Intact | Outcome::Corrupt(_));
        moved && self.peer_access == PeerAccess::Off
    }

    /// Whether a mechanism takes every byte through the host. Ids say so.
    pub(crate) fn is_by_host(mechanism: &str) -> bool {
        matches!(mechanism, BOUNCE | STAGED) || mechanism.starts_with("host-")
    }
}
