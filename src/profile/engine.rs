//! What a serving engine does by itself: its all-reduce backends with their preconditions, its counting of drafts, its
//! own allocation.

use crate::model::{case::Rung, topology::FabricClass};
use serde::Deserialize;
use std::fmt;

/// One engine: `profiles/engines/ID.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EngineProfile {
    /// Id, also the file's name.
    pub id: String,
    /// As people write it.
    pub name: String,
    /// When the rules were read, YYYY-MM-DD.
    pub checked: String,
    /// Flag that sets the tensor-parallel size.
    pub tp_flag: String,
    /// How the engine counts drafts.
    pub speculation: Speculation,
    /// How it sizes a workspace when nobody tells it.
    pub allocation: AllocationRule,
    /// What switches every peer path off, together. Half of the list leaves a path on.
    pub peer_off: Vec<Switch>,
    /// Backends; tried in ascending `order`.
    #[serde(rename = "backend")]
    pub backends: Vec<Backend>,
    /// Sentences that hold for every launch of this engine.
    #[serde(default)]
    pub caveats: Vec<String>,
}

/// How an engine counts speculative tokens.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Speculation {
    /// The engine's own name of the number.
    pub flag: String,
    /// Meaning when no method is named.
    pub meaning: DraftMeaning,
    /// Methods whose number means something of their own, or that have a default.
    #[serde(default, rename = "method")]
    pub methods: Vec<SpeculationMethod>,
    /// Where this was read.
    pub source: String,
}

/// One speculative method.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SpeculationMethod {
    /// Upper-case names.
    pub names: Vec<String>,
    /// What the number means for it.
    pub meaning: DraftMeaning,
    /// The engine's default number, if it has one.
    pub default: Option<u64>,
}

/// What a number of speculative tokens counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DraftMeaning {
    /// Rows verified per request; the bonus row is inside.
    Rows,
    /// Drafted tokens; one bonus row comes on top.
    Drafts,
    /// A block size; one row comes on top.
    Block,
}

/// How an engine sizes a workspace by itself (facts: engines.md 7.2 and 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocationRule {
    /// Captured requests x draft rows x hidden; 64 rows x hidden when the captured number is not known.
    CapturedRequests,
    /// Largest captured graph, in tokens, x hidden.
    CapturedTokens,
}

/// A flag or variable that turns something on or off.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Switch {
    /// Flag, variable to set, or variable to leave unset.
    pub kind: SwitchKind,
    /// Name.
    pub name: String,
    /// Value, if it takes one.
    pub value: Option<String>,
    /// Why it is needed.
    pub because: String,
    /// Source of the fact.
    pub source: String,
}

/// Where a switch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchKind {
    /// Command-line flag.
    Flag,
    /// Environment variable to set.
    Environment,
    /// Environment variable that must not be there: some are tested for presence, whatever the value.
    Unset,
}

/// One all-reduce backend.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Backend {
    /// Id: "custom-all-reduce".
    pub id: String,
    /// In words.
    pub name: String,
    /// Place in the engine's dispatch; lower is asked first.
    pub order: u32,
    /// Used without being asked for, where its preconditions hold.
    pub by_default: bool,
    /// Moves data from GPU to GPU directly.
    pub peer: bool,
    /// Consumer (`diagnose::consumers`) that vetoes or proves it.
    pub consumer: Option<String>,
    /// All must hold.
    #[serde(default)]
    pub when: Vec<Condition>,
    /// Largest payloads; the first row that fits group size and compute capability counts. No row that fits: not usable.
    #[serde(default)]
    pub caps: Vec<Cap>,
    /// How it is turned on, if it is not on by default.
    #[serde(default)]
    pub turn_on: Vec<Switch>,
    /// How it is turned off.
    #[serde(default)]
    pub turn_off: Vec<Switch>,
    /// Formula of its workspace, if it has one that is sized by the model.
    pub workspace: Option<WorkspaceFormula>,
    /// Where this was read.
    pub source: String,
}

/// A limit of payload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cap {
    /// Group sizes.
    pub world: Vec<u32>,
    /// Compute capabilities as [major, minor]; empty = any.
    #[serde(default)]
    pub compute: Vec<(u32, u32)>,
    /// Largest payload in bytes, itself included.
    pub max_bytes: u64,
}

/// A precondition. Closed: there are no expressions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// The group has one of these sizes.
    WorldSize(Vec<u32>),
    /// Groups larger than this need NVLink on every pair.
    FullNvlinkAbove(u32),
    /// The group's fabric is one of these.
    Fabric(Vec<FabricClass>),
    /// Every GPU has one of these compute capabilities, [major, minor].
    ComputeCapability(Vec<(u32, u32)>),
    /// Activation type.
    Dtype(Vec<Dtype>),
    /// The largest decode payload is at least this many bytes.
    PayloadAtLeast(u64),
    /// The largest decode payload is at most this many bytes.
    PayloadAtMost(u64),
    /// Elements are a multiple of this.
    ElementsMultipleOf(u64),
    /// Every ordered pair has peer access (true), or none has (false).
    PeerAccess(bool),
    /// All cases of this rung were intact on every pair of the group.
    Proven(Rung),
    /// Something only the operator can see: an engine option, a release, a library version.
    EngineOption(String),
}

/// Activation types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    Fp16,
    /// IEEE single.
    Fp32,
}

impl Dtype {
    /// All types, in the order of `name`s printed in errors.
    pub const ALL: [Dtype; 3] = [Dtype::Bf16, Dtype::Fp16, Dtype::Fp32];

    /// Bytes per element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Bf16 | Dtype::Fp16 => 2,
            Dtype::Fp32 => 4,
        }
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "bf16",
            Dtype::Fp16 => "fp16",
            Dtype::Fp32 => "fp32",
        }
    }

    /// The type called `name`; engines' long names are known too.
    pub fn parse(name: &str) -> Option<Dtype> {
        match name.to_ascii_lowercase().as_str() {
            "bf16" | "bfloat16" => Some(Dtype::Bf16),
            "fp16" | "float16" | "half" => Some(Dtype::Fp16),
            "fp32" | "float32" | "float" => Some(Dtype::Fp32),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Formulas of workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceFormula {
    /// FlashInfer's PCIe IPC workspace (facts: engines.md 1.6).
    FlashinferPcieIpc,
}
