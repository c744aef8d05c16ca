//! Messages between the supervisor and its workers: one JSON document a line.

use crate::model::{
    case::{Case, Outcome, PeerAccess},
    finding::Severity,
    measurement::Measurement,
    pair::OrderedPair,
    pci::PciAddress,
    report::{BenchRow, Selftest},
    snapshot::Authenticity,
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
    /// Same-GPU IPC: allocate, fill, export. Answered by `Exported`.
    IpcOwn {
        /// GPU index.
        gpu: u32,
        /// Bytes, a multiple of 2 MiB.
        bytes: u64,
    },
    /// Open the handle, check what is there, write an answer. Answered by `Answer` with the case's id.
    IpcVisit {
        /// The case.
        case: Case,
        /// The handle's 64 bytes.
        handle: Vec<u8>,
    },
    /// Check what the visitor wrote. Answered by `Answer` with the case's id.
    IpcJudge {
        /// The case.
        case: Case,
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
    /// All cases of the request are answered.
    Done,
    /// Result of a self-test.
    Planted(Selftest),
    /// Result of a benchmark.
    Measured(Vec<BenchRow>),
    /// An IPC handle.
    Exported {
        /// 64 bytes.
        handle: Vec<u8>,
    },
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertised {
    /// cuDeviceCanAccessPeer(source, destination).
    pub can_access: bool,
    /// Native atomics over the link.
    pub native_atomics: bool,
    /// Performance rank; lower is faster.
    pub rank: i32,
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
}
