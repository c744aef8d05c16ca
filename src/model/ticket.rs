//! What a person handed over instead of a host: pasted outputs and logs, which of their lines say what, and what could be
//! concluded from them. A pasted text is a claim about a host; nothing in it was measured by us.

use super::{
    finding::{Confidence, Finding},
    report::{Grading, Verdict},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files as they were taken apart.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Ticket {
    /// Parts that were recognised, in order.
    pub inputs: Vec<Input>,
    /// Lines that say nothing to us, as ranges, with the reason.
    pub unread: Vec<Unread>,
    /// Where each reading comes from.
    pub citations: Vec<Citation>,
    /// How a serving engine or NCCL was started: "engine", "model", "tensor_parallel_size", flags, versions.
    pub launch: Vec<Citation>,
    /// Symptoms and refusals that somebody or something reported.
    pub remarks: Vec<Remark>,
    /// In what the files contradict, so that they cannot be of one host at one time, a sentence a matter: "number of GPUs:
    /// a.txt shows 8 GPUs; b.txt shows 4 GPUs".
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Files (or lines of one) that were therefore kept apart: nothing of them is in the snapshot.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// Files that name no GPU and were taken for the host of the others because they show as many.
    #[serde(default)]
    pub assumed: Vec<String>,
    /// Texts whose GPUs could not be matched with those of the others, so that what they say of them is left out.
    #[serde(default)]
    pub unmatched: Vec<String>,
    /// Tables that are not whole, each with its place and what is missing of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<String>,
    /// Transports that NCCL chose, one per ordered pair of ranks and transport.
    pub transports: Vec<Transport>,
}

/// A recognised part of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Input {
    /// File and lines: "ticket.txt:3-40".
    pub source: String,
    /// "nvidia-smi -q", "lspci -vvv", "NCCL log", ...
    pub kind: String,
    /// What it gave, in a few words.
    pub gave: String,
}

/// Lines that were not understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unread {
    /// File and lines.
    pub source: String,
    /// Start of the first of them.
    pub text: String,
    /// Why, and what to give instead where there is something.
    pub reason: String,
}

/// A statement and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Citation {
    /// What it is about: "GPU 0000:06:00.0 link now", "0000:00:01.1", "/proc/cmdline".
    pub about: String,
    /// What it says.
    pub value: String,
    /// File and line: "lspci.txt:118".
    pub source: String,
}

/// What a reported symptom is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RemarkKind {
    /// A check of copied bytes failed.
    WrongData,
    /// A model answers garbage.
    Garbage,
    /// Something does not come to an end.
    Hang,
    /// Ranks wait for each other longer than usual: a hang, or work that takes its time.
    Waiting,
    /// The kernel logged a fault of the IOMMU.
    IommuFault,
    /// A GPU is gone from the bus or does not answer.
    GpuLost,
    /// The driver refused peer access.
    PeerRefused,
    /// A process asked for a GPU that it does not see.
    GpuInvisible,
    /// Memory could not be shared between processes.
    SharingFailed,
    /// /dev/shm is full.
    ShmFull,
    /// CUDA says that the system is not initialised (802).
    NotInitialised,
    /// The engine says that it does not use its own all-reduce, and why.
    CustomAllReduceOff,
    /// NCCL was told not to use peers.
    PeersSwitchedOff,
    /// Slower than expected.
    Slow,
    /// A warning of NCCL without a kind of its own.
    NcclWarning,
}

impl RemarkKind {
    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            RemarkKind::WrongData => "copied bytes are wrong",
            RemarkKind::Garbage => "the model answers garbage",
            RemarkKind::Hang => "it hangs",
            RemarkKind::Waiting => "ranks wait for each other: a hang, or work that takes its time",
            RemarkKind::IommuFault => "the IOMMU logged faults",
            RemarkKind::GpuLost => "a GPU is lost",
            RemarkKind::PeerRefused => "peer access refused",
            RemarkKind::GpuInvisible => "a process asked for a GPU that it does not see",
            RemarkKind::SharingFailed => "memory could not be shared between processes",
            RemarkKind::ShmFull => "/dev/shm is full",
            RemarkKind::NotInitialised => "CUDA error 802: system not yet initialised",
            RemarkKind::CustomAllReduceOff => "custom all-reduce is off",
            RemarkKind::PeersSwitchedOff => "NCCL was told not to use peers",
            RemarkKind::Slow => "slower than expected",
            RemarkKind::NcclWarning => "NCCL warns",
        }
    }

    /// Whether it is what broken peer transfers look like from outside.
    pub fn suspects_peers(self) -> bool {
        matches!(
            self,
            RemarkKind::WrongData
                | RemarkKind::Garbage
                | RemarkKind::Hang
                | RemarkKind::Waiting
                | RemarkKind::IommuFault
        )
    }
}

/// A reported symptom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Remark {
    /// What it is.
    pub kind: RemarkKind,
    /// The line.
    pub text: String,
    /// File and line.
    pub source: String,
    /// Whether a person wrote it rather than a program.
    pub by_person: bool,
    /// How often the same was said.
    pub times: u32,
}

/// A transport that NCCL chose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Transport {
    /// Device numbers as NCCL prints them in brackets, source and destination.
    pub devices: (u32, u32),
    /// "P2P/CUMEM", "P2P/IPC", "SHM/direct/direct", "NET/IB/0/GDRDMA".
    pub via: String,
    /// Channels that use it.
    pub channels: u32,
    /// File and line of the first.
    pub source: String,
}

/// What follows from a ticket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Grade, headline, why, and the one command that would tell most.
    pub verdict: Verdict,
    /// Why that command.
    pub next_because: String,
    /// Settings to serve with until then, where peers are suspected. They acquit no pair: each engine has ways of its own to peers, and a
    /// symptom that stays may come by one that is left open. It speaks for the pairs only where every switch of the engine's list is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meanwhile: Option<String>,
    /// What is certain: answers to what a log says, and causes held by what was read.
    pub conclusions: Vec<Conclusion>,
    /// Causes that would be held if direct copies between these GPUs were wrong, first suspect first.
    pub suspects: Vec<Finding>,
    /// Causes that are ruled out.
    pub cleared: Vec<Finding>,
    /// What could not be known, and what would show it.
    pub unknown: Vec<Unknown>,
    /// Whether something was measured: a report of ours is among the inputs.
    pub measured: bool,
}

impl Diagnosis {
    /// The grade.
    pub fn grading(&self) -> Grading {
        self.verdict.grading
    }
}

/// A statement that the inputs carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conclusion {
    /// One sentence.
    pub title: String,
    /// Why, with what follows.
    pub because: String,
    /// Lines that say it, each with file and line.
    pub evidence: Vec<String>,
    /// What to do; empty when nothing.
    pub fix: Vec<String>,
    /// Id of the cause page, if it is one.
    pub cause: Option<String>,
    /// How sure the explanation is; `null` where the texts state all of it themselves.
    #[serde(default)]
    pub confidence: Option<Confidence>,
}

/// Something that the inputs do not tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unknown {
    /// What.
    pub what: String,
    /// Command that shows it.
    pub shown_by: String,
}
