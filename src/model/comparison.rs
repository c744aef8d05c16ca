//! Two reports held against each other: what differs in the hosts, in what was found, and in what was measured. What is the
//! same is counted and never listed; what only one side knows is neither same nor different.

use super::{case::Rung, measurement::Unit, report::Grading, snapshot::Authenticity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of this document's shape.
pub const COMPARISON_VERSION: u32 = 1;

/// The answer of `peerproof diff`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Version of this document's shape.
    pub schema_version: u32,
    /// The first report.
    pub a: Side,
    /// The second report.
    pub b: Side,
    /// One host twice, or two hosts.
    pub relation: Relation,
    /// Why that relation.
    pub relation_because: String,
    /// Which GPU of A is which of B.
    pub matching: Matching,
    /// What must be known before anything is believed: other coverage, other origin.
    pub warnings: Vec<String>,
    /// Differences of the hosts and of the tool.
    pub configuration: Vec<Difference>,
    /// Differences of what was found.
    pub verdicts: Vec<Difference>,
    /// Differences of what was measured, beyond the spread of both.
    pub numbers: Vec<NumberDifference>,
    /// The rule by which numbers differ.
    pub numbers_rule: String,
    /// How much is the same.
    pub same: Counts,
    /// How much only one side knows, or knows too little of.
    pub not_compared: Vec<NotCompared>,
}

impl Comparison {
    /// Whether anything differs.
    pub fn differs(&self) -> bool {
        !(self.configuration.is_empty() && self.verdicts.is_empty() && self.numbers.is_empty())
    }

    /// Whether something that one side knows has no counterpart on the other: then "no difference" is not "the same".
    pub fn one_sided(&self) -> bool {
        self.not_compared.iter().any(|n| n.one_sided)
            || !self.matching.only_a.is_empty()
            || !self.matching.only_b.is_empty()
    }

    /// 0 the same, 1 different, 3 no difference in what both know, and one side knows more: equal is not shown.
    pub fn exit_code(&self) -> u8 {
        match (self.differs(), self.one_sided()) {
            (true, _) => 1,
            (false, true) => 3,
            (false, false) => 0,
        }
    }
}

/// One of the two reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// File as given.
    pub file: String,
    /// Host name, where known.
    pub host: Option<String>,
    /// Start of the run, RFC 3339 UTC.
    pub started_at: String,
    /// peerproof's version.
    pub tool_version: String,
    /// Hardware, simulated or fault-injected.
    pub authenticity: Authenticity,
    /// "quick", "default" or "deep"; `null` in reports of older versions and in journals.
    pub budget: Option<String>,
    /// Grade.
    pub grading: Grading,
    /// The verdict's first line.
    pub headline: String,
    /// GPUs of the host.
    pub gpus: u32,
    /// GPUs tested.
    pub tested_gpus: u32,
    /// Cases planned, or all-reduces or timed copies.
    pub planned: u32,
    /// Cases that ran.
    pub ran: u32,
    /// The run was cut short.
    pub interrupted: bool,
    /// Names and UUIDs were replaced, as in a bundle.
    pub scrubbed: bool,
}

/// What the two reports are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// One host, at two times or with two settings.
    SameHost,
    /// Two hosts.
    SisterHosts,
    /// It cannot be told.
    Unknown,
}

/// Which GPU is which.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Matching {
    /// Matched GPUs in A's order.
    pub pairs: Vec<GpuMatch>,
    /// GPUs of A without a counterpart.
    pub only_a: Vec<u32>,
    /// GPUs of B without a counterpart.
    pub only_b: Vec<u32>,
}

/// A GPU of A and its counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuMatch {
    /// Index in A.
    pub a: u32,
    /// Index in B.
    pub b: u32,
    /// By what.
    pub by: MatchedBy,
}

/// What two GPUs were matched by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatchedBy {
    /// The same card.
    Uuid,
    /// The same slot; of two hosts only where they are laid out alike.
    PciAddress,
    /// The same place among those that were left, in the order of their addresses: a guess.
    Position,
}

/// Something that differs; equal differences of several GPUs, pairs or bridges are one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// What: "BIOS", "GPU PCIe lanes", "ce-push at rung 2".
    pub what: String,
    /// Of which GPUs, pairs, groups, bridges or sizes, in A's numbers; empty for the host.
    pub of: Vec<String>,
    /// Value in A; `null` = A has no such thing.
    pub a: Option<String>,
    /// Value in B; `null` = B has no such thing.
    pub b: Option<String>,
}

/// A kind of measurement that differs on some of its subjects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumberDifference {
    /// What: "ce-push, 64 MiB".
    pub what: String,
    /// Rung, where it belongs to one.
    pub rung: Option<Rung>,
    /// Unit of all numbers below.
    pub unit: Unit,
    /// Subjects compared.
    pub compared: u32,
    /// Those that differ: what B lost most first; where it lost nothing, what it gained most.
    pub differing: Vec<NumberPair>,
}

/// One number on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumberPair {
    /// GPU, pair, group or flows, in A's numbers; of an all-reduce with its size in front.
    pub of: String,
    /// A's samples in short.
    pub a: Summary,
    /// B's samples in short.
    pub b: Summary,
    /// B's median over A's.
    pub ratio: f64,
    /// What was going on that may explain it: "B: other processes".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
}

/// Samples in short, in the unit of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Median.
    pub median: f64,
    /// Distance between the quartiles.
    pub quartiles_apart: f64,
    /// How many samples.
    pub samples: u32,
}

/// Things counted, by section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Values of configuration.
    pub configuration: u32,
    /// Verdicts.
    pub verdicts: u32,
    /// Measurements.
    pub numbers: u32,
}

/// What was left uncompared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotCompared {
    /// What: "ACS control", "ce-push at rung 2".
    pub what: String,
    /// Why: "not known of B (not run)".
    pub why: String,
    /// How many.
    pub count: u32,
    /// One side knows it and the other does not.
    pub one_sided: bool,
}
