//! Messages between the supervisor and its workers: one JSON document a line.

use super::{
    examine::Views,
    reduction::{self, Needs, Series, Sight, rank::Place},
    resident::State,
    traffic::plan::{Patience, Reserve},
};
use crate::model::{
    case::{Case, Corruption, Outcome, PeerAccess},
    finding::Severity,
    measurement::Measurement,
    pair::OrderedPair,
    pci::PciAddress,
    reduction::Reduction,
    report::{BenchRow, Selftest},
    snapshot::{Authenticity, CudaClaims},
    traffic::Traffic,
};
use serde::{Deserialize, Serialize};

/// A question to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// First message: which GPUs, and how. Answered by `Opened` or `Failed`.
    Open(Open),
    /// Cases to run side by side: pair cases on disjoint pairs (both directions count as one), or single-GPU cases.
    /// Answered by one `Answer` per case, then `Done`.
    Run {
        /// The cases.
        cases: Vec<Case>,
        /// Whether to look for lost words in the other GPUs' buffers: only meaningful for a case that runs alone.
        search: bool,
        /// Pass of a soak, 0 outside one: moves the run field of words, so that those of an earlier pass are stale.
        pass: u16,
    },
    /// Host-to-device copies on all GPUs for a while, so that the observer sees links under load. Answered by `Done`.
    Load {
        /// Wall time in milliseconds.
        millis: u64,
    },
    /// All-reduces over these GPUs, a rank on each; one that is named several times holds as many. Answered by one `Row` each,
    /// then `Done`.
    Reduce {
        /// GPU of each rank, in rank order.
        gpus: Vec<u32>,
        /// Which ones.
        request: reduction::Request,
    },
    /// Plants every kind of wrong on one GPU. Answered by `Planted`.
    Selftest {
        /// GPU index.
        gpu: u32,
    },
    /// Measures kernels against copies on one GPU. Answered by `Measured`.
    Bench {
        /// GPU index.
        gpu: u32,
        /// Samples per row.
        samples: u32,
    },
    /// Times one case of transfers. Answered by `Timed`.
    Traffic {
        /// The case; samples and outcome are filled in.
        case: Box<Traffic>,
        /// Memory for the whole plan, made with the first case.
        reserve: Reserve,
        /// When a case has enough samples.
        patience: Patience,
    },
}

/// How a worker opens its GPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Open {
    /// GPU index of the snapshot and its PCI address.
    pub gpus: Vec<(u32, PciAddress)>,
    /// Run nonce, 24 bits.
    pub run: u32,
    /// Generation of the worker: high byte of attempts in words, so that words of a predecessor are stale.
    pub generation: u8,
    /// Enable peer access between all pairs (true), or never (false).
    pub peer_access: bool,
    /// Buffers in stream-ordered pools that every peer with advertised access is granted access to.
    pub pooled: bool,
    /// Buffers of each GPU.
    pub layout: Layout,
}

/// Sizes of the buffers that a worker allocates on each GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of source, destination and scratch each.
    pub span: u64,
    /// Guard band before and after the destination.
    pub guard: u64,
    /// Pinned host memory of each GPU, for bounces.
    pub pinned: u64,
}

/// An answer of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Ready.
    Opened(Opened),
    /// Cannot start or go on.
    Failed {
        /// Why, in one sentence.
        message: String,
        /// Whether the machine (critical) or only this request (warning) is at fault.
        severity: Severity,
    },
    /// The answer to one case.
    Answer(Answer),
    /// One all-reduce of a request for them.
    Row(Box<Reduction>),
    /// All cases of the request are answered.
    Done,
    /// Result of a self-test.
    Planted(Selftest),
    /// Result of a benchmark.
    Measured(Vec<BenchRow>),
    /// A case of transfers with what came of it.
    Timed(Box<Traffic>),
}

/// What a worker found when it opened its GPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Opened {
    /// Hardware, simulated or fault-injected, by the CUDA library's markers.
    pub authenticity: Authenticity,
    /// By what wall deadlines are to be multiplied.
    pub deadline_factor: u32,
    /// CUDA version of the driver.
    pub cuda_version: i32,
    /// One per GPU asked for.
    pub gpus: Vec<OpenedGpu>,
    /// What CUDA advertises of each ordered pair.
    pub advertised: Vec<(OrderedPair, Advertised)>,
    /// What enabling peer access came to, where it was asked for and not plainly done.
    pub refused: Vec<(OrderedPair, String, u32)>,
}

/// A GPU of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenedGpu {
    /// GPU index.
    pub gpu: u32,
    /// Name as CUDA says it.
    pub name: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Why kernels cannot run, if they cannot.
    pub no_kernels: Option<String>,
    /// Milliseconds that context, memory and kernels took.
    pub took_ms: f64,
}

/// CUDA's claims of an ordered pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertised {
    /// cuDeviceCanAccessPeer(source, destination).
    pub can_access: bool,
    /// The same with the attributes of the pair, to be kept.
    pub claims: CudaClaims,
}

/// The answer to one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// Case id.
    pub id: u32,
    /// What came out.
    pub outcome: Outcome,
    /// Peer access while it ran.
    pub peer_access: PeerAccess,
    /// Who moved the bytes.
    pub executor: String,
    /// Attempts judged.
    pub attempts_ran: u32,
    /// Rate, if measured.
    pub rate: Option<Measurement>,
    /// Wall time in milliseconds.
    pub took_ms: f64,
    /// Remarks.
    pub notes: Vec<String>,
    /// Whether the worker is not to be trusted any more.
    pub retire: bool,
    /// All-reduces that were timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reductions: Vec<Reduction>,
}

/// A question to a rank: a worker with one GPU of its own, whose memory others open and who opens that of others.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankRequest {
    /// First message. Answered by `Opened` or `Failed`.
    Open(RankOpen),
    /// One step of several cases: whatever can be queued is queued first, then all of it is waited for. Answered by `Done`
    /// with one result per job, in order.
    Step(Vec<Job>),
}

/// How a rank opens its GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankOpen {
    /// All chosen GPUs, which it must see, as engines' ranks do.
    pub gpus: Vec<(u32, PciAddress)>,
    /// Its own.
    pub gpu: u32,
    /// Second of two ranks on one GPU: the destination.
    pub second: bool,
    /// Run nonce, 24 bits.
    pub run: u32,
    /// Generation, the same for all ranks that work together.
    pub generation: u8,
    /// Its buffers, whole blocks of what CUDA shares between processes: the bands of the layout only fill up the last block.
    pub layout: Layout,
    /// Guard band before and after a target, bytes.
    pub guard: u64,
}

/// One rank's part in one step of a case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The case.
    pub case: Case,
    /// Number of the attempt, as words carry it.
    pub attempt: u32,
    /// Pass of a soak, 0 outside one.
    pub pass: u16,
    /// What to do.
    pub task: Task,
}

/// What a rank does in a step. The owner of the destination poisons, looks and concludes; the source fills; the executing rank
/// moves, through memory that the other end has exported.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Make the case's buffer reachable for the executing rank. `Exported`; a descriptor goes over the line beforehand.
    Export,
    /// Open it. `Done`.
    Import(Shared),
    /// Write poison and guards. `Done`.
    Poison,
    /// Write the payload. `Done`.
    Fill,
    /// Write guard words over this rank's destination buffers, as one that takes no part. `Done`.
    Stain,
    /// Move the bytes. `Done`.
    Move,
    /// Move them over and over against the clock. `Measured`.
    Time,
    /// Look at the target. `Right` or `Wrong`.
    Look,
    /// Read the target back by the engine that wrote it, its bytes from this offset on. `Seen`.
    View {
        /// Offset of the first wrong unit, bytes.
        from: u64,
    },
    /// Verify the source again. `Holds`.
    Reread,
    /// Look for the case's words in the buffers that were stained. `Holds`.
    Search,
    /// Name what is wrong with the target of the last `Look`. `Concluded`.
    Conclude(Views),
    /// Close what was opened. `Done`.
    Close,
    /// Of an exchange, once both sides have opened the other's memory: launch the kernel once for nothing, poison the inbox
    /// and set flags and reports to their start. `Done`.
    Reset,
    /// Launch the kernel that waits for the other side, and come back at once. `Done`.
    Start,
    /// Wait until it has ended. `Exchanged`.
    Await,
    /// Judge what arrived here. `Right` or `Concluded`.
    Judge,
    /// Of an all-reduce: take a place in it, with memory for a series. `Seated`.
    Seat(Box<Seating>),
    /// Open the mailboxes of the other ranks: one for each place, `None` at the own one. `Done`.
    Gather(Vec<Option<Shared>>),
    /// Begin the series with so many blocks. `Done`.
    Begin(u32),
    /// Make all its calls, which wait for the other ranks. `Saw`.
    Reduce,
}

/// A place in an all-reduce between processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seating {
    /// What all ranks do.
    pub series: Series,
    /// Which rank this one is.
    pub place: Place,
    /// Memory that it has to have.
    pub needs: Needs,
}

/// Memory that another rank can open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shared {
    /// Its length, bytes.
    pub bytes: u64,
    /// Its handle; empty when a file descriptor is the handle.
    pub handle: Vec<u8>,
}

/// An answer of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankReply {
    /// Ready.
    Opened(Opened),
    /// Cannot start or go on: why, in one sentence.
    Failed(String),
    /// Results of a step, one per job.
    Done(Vec<Done>),
}

/// What came of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// As asked.
    Done,
    /// Memory is ready to be opened.
    Exported(Shared),
    /// All as it should be.
    Right,
    /// Not so, from this offset on.
    Wrong {
        /// Offset of the first wrong unit, bytes.
        from: u64,
    },
    /// The accessor's view: whether it is right, and bytes of it; nothing where the mechanism has no such view.
    Seen(Option<(bool, Vec<u8>)>),
    /// Whether the words are there.
    Holds(bool),
    /// The rate.
    Measured(Measurement),
    /// The evidence.
    Concluded(Box<Corruption>),
    /// How this side of an exchange ended.
    Exchanged(State),
    /// A rank has its place: its mailbox is ready to be opened.
    Seated {
        /// The mailbox.
        mailbox: Shared,
        /// Blocks of the series' kernel that its GPU holds at once.
        blocks: u64,
    },
    /// What this rank saw of a series.
    Saw(Box<Sight>),
    /// The case ends with this.
    Failed(Outcome),
}
