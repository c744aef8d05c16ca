//! The report: all that a renderer may see, and the document that is saved.

use super::{
    case::{Record, Rung, Subject, WrongKind},
    crossover::Crossover,
    fared::Fared,
    finding::{Consumer, Finding, Recommendation},
    ladder::{self, Step},
    pair::OrderedPair,
    reduction::Reduction,
    snapshot::{Authenticity, Observation, Snapshot},
    traffic::{Comparison, Traffic},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of the saved document. A reader accepts its own and older ones.
pub const SCHEMA_VERSION: u32 = 1;

/// Start of every placeholder that stands for a scrubbed value in a bundle: "scrubbed-host-3f1c09ab27".
pub const SCRUBBED: &str = "scrubbed-";

/// One run, or what a file tells of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this document's shape.
    pub schema_version: u32,
    /// peerproof's version.
    pub tool_version: String,
    /// SHA-256 of the embedded kernels (PTX), hex.
    pub kernels_sha256: String,
    /// Hardware, simulated or fault-injected.
    pub authenticity: Authenticity,
    /// Start, RFC 3339 UTC.
    pub started_at: String,
    /// Wall time in milliseconds.
    pub took_ms: f64,
    /// Arguments as given.
    pub arguments: Vec<String>,
    /// Ground state: what was read.
    pub snapshot: Snapshot,
    /// GPUs tested, by snapshot index.
    pub tested_gpus: Vec<u32>,
    /// Ground state: the mechanisms of pairs and their rungs, as the version that ran knew them; empty in older reports.
    #[serde(default)]
    pub ladder: Vec<Step>,
    /// Ground state: what was tried.
    pub records: Vec<Record>,
    /// Ground state: what the observer saw before, during and after.
    pub observations: Vec<Observation>,
    /// Ground state: all-reduces that were run and timed; empty in older reports and where none was asked for.
    #[serde(default)]
    pub reductions: Vec<Reduction>,
    /// Ground state: transfers that were timed by `peerproof measure`; empty in older reports and where none was asked for.
    #[serde(default)]
    pub traffic: Vec<Traffic>,
    /// Derived: the fastest proven all-reduce by size, and where that changes; empty in older reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crossovers: Vec<Crossover>,
    /// Derived: another tool's numbers beside ours, where its file was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
    /// Planted faults and whether the checker named them.
    pub selftest: Option<Selftest>,
    /// What was planned, ran and did not.
    pub coverage: Coverage,
    /// Derived: causes judged.
    pub findings: Vec<Finding>,
    /// Derived: who may rely on what.
    pub consumers: Vec<Consumer>,
    /// Derived: launch settings.
    pub recommendations: Vec<Recommendation>,
    /// Derived: the verdict.
    pub verdict: Verdict,
    /// Where the time went: phase and milliseconds.
    pub timings_ms: Vec<(String, f64)>,
    /// Environment of the workers: variable, value set or unset, and what the operator had.
    pub worker_environment: Vec<String>,
    /// What a reader of the numbers has to know and is no gap: which NCCL ran beside, what of its environment was set aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// True when the run was cut short (Ctrl-C) and the report holds what was done until then.
    pub interrupted: bool,
}

/// What a report is about, which decides its page and what is derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The ladder, as `qualify` climbs it.
    Ladder,
    /// All-reduces alone, as `reduce` runs them.
    Reductions,
    /// Timed transfers alone, as `measure` runs them.
    Traffic,
}

impl Kind {
    /// The command that makes such reports.
    pub fn command(self) -> &'static str {
        match self {
            Kind::Ladder => "qualify",
            Kind::Reductions => "reduce",
            Kind::Traffic => "measure",
        }
    }
}

impl Report {
    /// What it is about. A report without any rows is one of a ladder: that of a host on which nothing could be tried.
    pub fn kind(&self) -> Kind {
        match (self.records.is_empty(), &self.traffic, &self.reductions) {
            (true, traffic, _) if !traffic.is_empty() => Kind::Traffic,
            (true, _, reductions) if !reductions.is_empty() => Kind::Reductions,
            _ => Kind::Ladder,
        }
    }

    /// How far `pair` came. A rung counts when each of its mechanisms that applies ran, at every planned size, and nothing of
    /// it failed or was refused; a rung that does not exist here is stepped over. Rung 0 is what is left of a pair whose
    /// claims are known and of which nothing else is proven.
    pub fn standing(&self, pair: OrderedPair) -> ladder::Standing<'_> {
        let mine: Vec<&Record> = self
            .records
            .iter()
            .filter(|r| r.case.subject == Subject::Pair(pair))
            .collect();
        let mut standing = ladder::climb(&Fared::all(&mine), &self.ladder);
        let claimed = self.snapshot.claims.get(pair).is_some()
            || mine.iter().any(|r| r.case.rung == Rung::Advertised);
        standing.reached = standing
            .reached
            .or_else(|| claimed.then_some(Rung::Advertised));
        standing
    }
}

/// Rates of the kernels and copies of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bench {
    /// Hardware, simulated or fault-injected.
    pub authenticity: Authenticity,
    /// The device, as PCI address or label, with its name.
    pub device: String,
    /// One per thing measured, in order.
    pub rows: Vec<BenchRow>,
}

/// Planted kinds of wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Selftest {
    /// One per planted kind.
    pub plants: Vec<Plant>,
    /// GPU on which it ran, as PCI address or label.
    pub device: String,
}

/// One planted fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plant {
    /// What was planted; `None` = a clean buffer that must stay silent.
    pub planted: Option<WrongKind>,
    /// What was reported; `None` = intact.
    pub reported: Option<WrongKind>,
    /// Particulars.
    pub detail: String,
}

impl Plant {
    /// Whether the checker said what was planted.
    pub fn found(&self) -> bool {
        self.planted == self.reported
    }
}

impl Selftest {
    /// Whether every plant was found and named, and there was at least one.
    pub fn passed(&self) -> bool {
        !self.plants.is_empty() && self.plants.iter().all(Plant::found)
    }
}

/// Coverage is part of the verdict.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Coverage {
    /// Cases planned within the chosen budget.
    pub planned: u32,
    /// Cases that ran to an answer.
    pub ran: u32,
    /// Cases that do not exist here, and why: no gaps.
    pub not_applicable: Vec<Gap>,
    /// Cases that did not run, and why: gaps.
    pub not_run: Vec<Gap>,
    /// What the operator or budget left out: GPUs, mechanisms, sizes, rungs not built yet.
    pub left_out: Vec<String>,
    /// What the run was allowed to take; `None` in reports of older versions.
    #[serde(default)]
    pub budget: Option<Spending>,
    /// Smallest fault rate per attempt that would have been seen with 95% on each pair and mechanism: 1 - 0.05^(1/n);
    /// the worst over pairs and mechanisms, load apart; `None` when nothing ran.
    pub seen_fault_rate: Option<f64>,
    /// The same for each mechanism, pairs with the same number of attempts together.
    #[serde(default)]
    pub sensitivity: Vec<Sensitivity>,
}

/// Whether the operator left out pairs or mechanisms of the GPUs that were tested.
pub fn leaves_cases(left_out: &str) -> bool {
    ["mechanisms other than", "by --pairs"]
        .iter()
        .any(|mark| left_out.contains(mark))
}

/// Whether something was left out by the operator's own words, and not by this version or this host.
pub fn is_choice(left_out: &str) -> bool {
    leaves_cases(left_out)
        || ["not chosen by --gpus", "CUDA_VISIBLE_DEVICES"]
            .iter()
            .any(|mark| left_out.contains(mark))
}

/// What a number of attempts would have shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sensitivity {
    /// Mechanism id.
    pub mechanism: String,
    /// Its rung; rung 7 is the same mechanism under load.
    pub rung: Rung,
    /// Judged attempts of each of the pairs.
    pub attempts: u64,
    /// A fault that strikes this share of attempts would have been seen with 95%.
    pub seen_fault_rate: f64,
    /// How many ordered pairs; 0 where it is about GPUs together.
    pub pairs: u32,
    /// Which ones, as "0->1" or "GPUs 0-3"; empty for the largest group of the mechanism, which holds all pairs that no other names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
}

/// What a run was allowed to take, worked out before it began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spending {
    /// "quick", "default" or "deep".
    pub name: String,
    /// Device memory on each GPU, bytes.
    pub device_bytes: u64,
    /// Pinned host memory of all GPUs together, bytes.
    pub host_bytes: u64,
    /// Wall time expected, seconds.
    pub expected_s: f64,
    /// Wall time after which no further case was begun, seconds.
    pub limit_s: f64,
}

/// A reason and how many cases it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// Why.
    pub reason: String,
    /// Cases.
    pub cases: u32,
}

/// Pass, warn, fail or inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Grading {
    /// All that applies passed.
    Pass,
    /// Data is right; something else is not as it should be.
    Warn,
    /// Wrong data, faults or hangs.
    Fail,
    /// Nothing tested, or a planned case did not run.
    Inconclusive,
}

impl Grading {
    /// Exit code: 0 pass, 1 warn, 2 fail, 3 inconclusive.
    pub fn exit_code(self) -> u8 {
        match self {
            Grading::Pass => 0,
            Grading::Warn => 1,
            Grading::Fail => 2,
            Grading::Inconclusive => 3,
        }
    }

    /// As printed.
    pub fn word(self) -> &'static str {
        match self {
            Grading::Pass => "PASS",
            Grading::Warn => "WARN",
            Grading::Fail => "FAIL",
            Grading::Inconclusive => "INCONCLUSIVE",
        }
    }
}

/// Three lines a tired person can act on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The grade.
    pub grading: Grading,
    /// Worst pair, mechanism and kind of wrong; or what passed and what does not exist here.
    pub headline: String,
    /// Probable cause with the signals seen; or what limits the proof.
    pub cause: String,
    /// The next command.
    pub next: String,
    /// The pair of the headline, if one.
    pub worst_pair: Option<OrderedPair>,
    /// Why an INCONCLUSIVE is one, for programs; `null` with other grades and in reports of versions before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Inconclusive>,
}

/// Why a run proved nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Inconclusive {
    /// There is no NVIDIA GPU.
    NoGpu,
    /// The checker did not find what was planted for it.
    CheckerFailed,
    /// No case ran.
    NothingTested,
    /// GPUs were tested alone, and no transfer between two of them.
    NoPairTried,
    /// Planned cases did not run.
    CasesMissing,
    /// The run ended before its plan.
    Unfinished,
}

/// One line of `peerproof bench`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchRow {
    /// What was measured: "fill", "verify", "device copy", "host to device", ...
    pub name: String,
    /// Bytes that the rate counts, and which: "bytes written", "bytes read + written".
    pub counts: String,
    /// Bytes of one sample.
    pub bytes: u64,
    /// The rate.
    pub rate: super::measurement::Measurement,
    /// The target, if this row has one: GB/s and where it comes from.
    pub target: Option<(f64, String)>,
}
