//! Derived statements: causes judged, findings held, consumers proven or vetoed, recommendations with their basis.

use super::{
    case::Rung,
    group::Group,
    pair::{GpuIndex, OrderedPair},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bad, if true.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; no fault.
    Info,
    /// Works, but slower or other than claimed.
    Warning,
    /// Do not serve on it.
    Critical,
}

/// How sure.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Fits, as others do.
    Possible,
    /// The signals of its decision row are present; its discriminating test was not run.
    Probable,
    /// The discriminating test was run.
    Established,
}

/// What a cause says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Held.
    Indicted,
    /// Ruled out.
    Cleared,
    /// Evidence is missing; the sentence says which.
    CannotTell,
    /// Nothing to explain, or not this kind of host.
    NotApplicable,
}

/// Start of a line among the fixes of a cause that is no fix but what must be known before one of them is applied. Wherever a
/// fix is shown, these are shown.
pub const WARNING: &str = "Warning: ";

/// A possible cause and what the evidence says of it. Cleared suspects are printed too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Cause id, as in `docs/causes/`: "iommu-translation".
    pub cause: String,
    /// Title.
    pub title: String,
    /// Held, cleared, cannot tell.
    pub judgement: Judgement,
    /// How bad.
    pub severity: Severity,
    /// How sure.
    pub confidence: Confidence,
    /// Ordered pairs concerned; empty = the whole host.
    pub pairs: Vec<OrderedPair>,
    /// GPUs concerned, for findings about single devices.
    pub gpus: Vec<GpuIndex>,
    /// Why: one or two sentences.
    pub because: String,
    /// Each signal seen, with its value and where it was read.
    pub evidence: Vec<String>,
    /// The exact fix: parameter, file, command; empty when cleared.
    pub fix: Vec<String>,
    /// The test that would split this cause from the next, as a command.
    pub next_test: Option<String>,
}

/// Something that relies on peer transfers, and what it may rely on. Veto only: one broken pair condemns the group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Consumer {
    /// Id: "nccl-p2p", "custom-all-reduce", ...
    pub id: String,
    /// Name as people say it.
    pub name: String,
    /// Rungs it relies on.
    pub needs: Vec<Rung>,
    /// Proven, vetoed or unproven.
    pub state: ConsumerState,
    /// "proven up to rung 3", "vetoed by pair 2->5 at rung 3 (sm-load: zeroed)", "unproven because ...".
    pub sentence: String,
    /// Highest rung proven on every pair of the group by the mechanisms that it uses, with all its lower ones.
    #[serde(default)]
    pub reached: Option<Rung>,
    /// Unproven for nothing but rungs that the version which ran does not test: all that it could test was proven.
    #[serde(default)]
    pub as_far_as_tested: bool,
    /// What vetoes it, lowest rung first, each pair and group once.
    #[serde(default)]
    pub vetoes: Vec<Veto>,
    /// When the group may not rely on it: the same question for each island of the group, tightest first.
    #[serde(default)]
    pub islands: Vec<IslandConsumer>,
}

/// A pair or group that vetoes a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Veto {
    /// The pair; `None` where a group fails together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<OrderedPair>,
    /// The GPUs that fail together; `None` where a pair fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Rung of the case that failed.
    pub rung: Rung,
    /// Its mechanism.
    pub mechanism: String,
    /// What went wrong, in one word: "zeroed", "hang", "never".
    pub word: String,
}

/// What an island of the group may rely on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IslandConsumer {
    /// What joins it: "NVLink", "PIX", "NUMA node 0".
    pub joined_by: String,
    /// Its GPUs, ascending.
    pub gpus: Vec<GpuIndex>,
    /// Proven, vetoed or unproven.
    pub state: ConsumerState,
    /// As for the group.
    pub sentence: String,
}

/// The verdict on a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConsumerState {
    /// All rungs it needs were proven on all pairs of the group.
    Proven,
    /// A pair failed at a rung it needs.
    Vetoed,
    /// Not all it needs was tested.
    #[default]
    Unproven,
    /// Does not exist on this host.
    NotApplicable,
}

/// Launch settings for one engine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Recommendation {
    /// Engine id: "vllm", "sglang".
    pub engine: String,
    /// All-reduce backend id chosen.
    pub backend: String,
    /// The backend in words.
    pub backend_name: String,
    /// Flags to add to the launch command, in order.
    pub flags: Vec<Setting>,
    /// Environment variables to set.
    pub environment: Vec<Setting>,
    /// Variables to leave unset (some are tested for presence).
    pub unset: Vec<Setting>,
    /// Variables that an earlier answer of this tool may have left in the environment of whoever asks, and that must no longer
    /// hold. Empty in a report, whose settings nobody evaluates one after the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_over: Vec<Setting>,
    /// Workspace arithmetic, if a model was named.
    pub sizing: Option<Sizing>,
    /// Backends considered and refused, with the reason.
    pub refused: Vec<(String, String)>,
    /// Sentences a reader must know before trusting this.
    pub caveats: Vec<String>,
    /// Highest rung that is proven on every pair of the group along the path that these settings use; `None` = nothing
    /// was tried, and the settings rest on caution alone.
    #[serde(default)]
    pub proven: Option<Rung>,
    /// The GPUs of the group in rank order; empty when no host was looked at.
    #[serde(default)]
    pub ranks: Vec<GpuIndex>,
    /// Flags that must not be given.
    #[serde(default)]
    pub omit: Vec<Setting>,
    /// Keys of the engine's configuration file, or of the program itself.
    #[serde(default)]
    pub configuration: Vec<Setting>,
    /// Backends in the order in which the engine asks them.
    #[serde(default)]
    pub order: Vec<Place>,
    /// What the choice is worth, and who says so.
    #[serde(default)]
    pub worth: Vec<Worth>,
    /// What to do that is neither flag nor variable.
    #[serde(default)]
    pub practices: Vec<Setting>,
}

/// One backend's place in an engine's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Backend id.
    pub backend: String,
    /// In words.
    pub name: String,
    /// Whether it would run here.
    pub standing: Standing,
    /// Largest payload in bytes that it takes here; `None` = no limit of its own.
    pub takes_bytes: Option<u64>,
    /// Rows that are that much, where the model's size is known.
    pub takes_rows: Option<u64>,
    /// Its own memory in bytes per rank, where a formula was read.
    pub workspace_bytes: Option<u64>,
    /// Why it stands where it stands; of one that runs, what proves it.
    pub because: String,
}

/// Whether a backend would run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The choice: the first that runs and takes a full decode step.
    Chosen,
    /// Runs too, for what those before it leave.
    Runs,
    /// Could be switched on; is not advised.
    Possible,
    /// Does not run here, or must not.
    Refused,
}

/// What a choice is worth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worth {
    /// Measured on this host, published by others, or worked out from either.
    pub basis: WorthBasis,
    /// The statement.
    pub says: String,
    /// Record, publication or arithmetic behind it.
    pub source: String,
}

/// How a worth is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorthBasis {
    /// Measured on this host.
    Measured,
    /// Published by others, on other hosts.
    Published,
    /// Worked out from measurements.
    Inferred,
    /// Nobody has measured it.
    Unknown,
}

/// One flag or variable with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Flag or variable name.
    pub name: String,
    /// Value, if it takes one.
    pub value: Option<String>,
    /// Why.
    pub because: String,
    /// What proves it: a record, a reading, a source of a fact.
    pub basis: String,
}

/// How many elements an all-reduce workspace must hold, and how the number came about.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Sizing {
    /// Model id or "hidden 6144".
    pub model: String,
    /// Hidden size in elements.
    pub hidden: u64,
    /// Tensor-parallel group size.
    pub tp: u32,
    /// Requests decoded together.
    pub batch: u64,
    /// Rows verified per request.
    pub rows_per_request: u64,
    /// How rows per request came about.
    pub rows_reason: String,
    /// Rows in one decode step.
    pub rows: u64,
    /// Elements needed: rows x hidden.
    pub needed_elements: u64,
    /// Elements the engine would allocate by itself; `None` when it has no such backend.
    pub engine_elements: Option<u64>,
    /// How that came about.
    pub engine_reason: String,
    /// Payload in bytes of one reduction; without reductions, of one crossing.
    pub payload_bytes: u64,
    /// Workspace in bytes per rank, if the backend has one.
    pub workspace_bytes_per_rank: Option<u64>,
    /// Formula of the workspace and its source.
    pub workspace_formula: Option<String>,
    /// Activation type: "bf16", "fp16", "fp32".
    pub dtype: String,
    /// Workspace in bytes of all ranks together.
    #[serde(default)]
    pub workspace_bytes_all_ranks: Option<u64>,
    /// Row counts to tune for: powers of two up to the largest step, and that step.
    #[serde(default)]
    pub tune_rows: Vec<u64>,
    /// What a workspace of the needed size admits, and what happens past it.
    #[serde(default)]
    pub admits: String,
    /// What the engine's own size admits, where that is less.
    #[serde(default)]
    pub engine_admits: Option<String>,
    /// Why prefill is left out.
    #[serde(default)]
    pub prefill: String,
    /// All-reduces of one such tensor in a forward pass; `None` = not known for this model and parallelism, or none at all.
    #[serde(default)]
    pub all_reduces: Option<u32>,
    /// What crosses the links where the choice reduces nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossing: Option<String>,
}
