//! What a serving engine does by itself: its all-reduce backends with their preconditions, its counting of drafts, its
//! own allocation.

use super::{Clause, Condition, Launch, Named, Trap, Way};
use crate::model::reduction::Dtype;
use serde::Deserialize;

/// One engine: `profiles/engines/ID.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EngineProfile {
    /// Id, also the file's name.
    pub id: String,
    /// As people write it.
    pub name: String,
    /// Other ids by which people ask for it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// When the rules were read, YYYY-MM-DD.
    pub checked: String,
    /// An engine whose profile this one continues: what is not stated here is taken from there, backends, traps and
    /// switches of the same id or name are replaced, others are added.
    pub inherits: Option<String>,
    /// Engines whose traps hold for this one too.
    #[serde(default)]
    pub traps_of: Vec<String>,
    /// Whether it starts only where the tensor-parallel size divides the model's attention heads.
    #[serde(default)]
    pub tp_divides_heads: bool,
    /// Whether a report carries first settings for it.
    #[serde(default)]
    pub in_reports: bool,
    /// Flag that sets the tensor-parallel size; some engines take the visible devices.
    pub tp_flag: Option<String>,
    /// How the engine counts drafts; `None` = not read, and a number of drafts cannot be turned into rows.
    pub speculation: Option<Speculation>,
    /// How it sizes a workspace when nobody tells it; `None` = it has no such workspace.
    pub allocation: Option<AllocationRule>,
    /// How a launch of it looks, for `recommend --check`.
    pub launch: Option<Launch>,
    /// The file in which it keeps a verdict on peer access, if it has one.
    pub p2p_cache: Option<P2pCacheFile>,
    /// What switches every peer path off, together. Half of the list leaves a path on.
    #[serde(default)]
    pub peer_off: Vec<Switch>,
    /// Backends; tried in ascending `order`.
    #[serde(default, rename = "backend")]
    pub backends: Vec<Backend>,
    /// Sentences that hold for every launch of this engine.
    #[serde(default)]
    pub caveats: Vec<String>,
    /// What a program or operator does beside flags.
    #[serde(default, rename = "practice")]
    pub practices: Vec<Practice>,
    /// Wrong choices that people made.
    #[serde(default, rename = "trap")]
    pub traps: Vec<Trap>,
    /// Ways from GPU to GPU beside its all-reduces.
    #[serde(default, rename = "way")]
    pub ways: Vec<Way>,
}

impl EngineProfile {
    /// The backend called `id`.
    pub fn backend(&self, id: &str) -> Option<&Backend> {
        self.backends.iter().find(|b| b.id == id)
    }
}

/// An engine's own file of peer verdicts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct P2pCacheFile {
    /// Where the engine looks for it.
    pub place: String,
    /// What makes the engine read it.
    pub read_when: String,
    /// What the file cannot say.
    pub weaknesses: Vec<String>,
    /// Source of the facts.
    pub source: String,
}

/// Something to do that is neither flag nor variable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Practice {
    /// What to do.
    pub what: String,
    /// Why.
    pub because: String,
    /// Source of the fact.
    pub source: String,
}

/// What a backend was seen to be worth, by others, on a host like the one described.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Worth {
    /// Where it holds; all must be met.
    #[serde(default)]
    pub when: Vec<Condition>,
    /// The observation, with its baseline.
    pub says: String,
    /// Who published it.
    pub source: String,
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
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Switch {
    /// Flag, variable to set, or variable to leave unset.
    pub kind: SwitchKind,
    /// Name.
    pub name: String,
    /// Value, if it takes one.
    pub value: Option<String>,
    /// Where it is needed; empty = everywhere.
    #[serde(default)]
    pub when: Vec<Condition>,
    /// Other settings that do the same for this engine: none of both is missing where one is there.
    #[serde(default)]
    pub same_as: Vec<Named>,
    /// It is about multicast, which no rung tests: nothing is proven of what it switches.
    #[serde(default)]
    pub multicast: bool,
    /// Read by other programs only: advice sets it for what else is started on the host; a launch of this engine without it has
    /// no path left on.
    #[serde(default)]
    pub for_others: bool,
    /// A launch has a use for it only where one of these is met; empty = every launch.
    #[serde(default)]
    pub asked_by: Vec<Clause>,
    /// A launch that meets one of these has no use for it, unless it says the opposite of the switch.
    #[serde(default)]
    pub unless: Vec<Clause>,
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
    /// Command-line flag that must not be there.
    Omit,
    /// Key of the engine's configuration file, or of the program itself.
    Configuration,
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
    /// Whether one that is not on by default is advised once its proofs are there; else it is only named.
    #[serde(default = "yes")]
    pub suggest: bool,
    /// Moves data from GPU to GPU directly.
    pub peer: bool,
    /// Its kernels use multicast of the switch, which no rung tests.
    #[serde(default)]
    pub multicast: bool,
    /// What of a model crosses the links with it.
    #[serde(default)]
    pub moves: Moves,
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
    /// Formula of its workspace, if it has one.
    pub workspace: Option<WorkspaceFormula>,
    /// What else it asks of a launch or program.
    #[serde(default, rename = "practice")]
    pub practices: Vec<Practice>,
    /// What it was seen to be worth.
    #[serde(default)]
    pub worth: Vec<Worth>,
    /// Where this was read.
    pub source: String,
}

impl Backend {
    /// Off unless asked for, and advised once the rungs that it demands are proven: nothing else says that it is better than
    /// what the engine does by itself.
    pub fn is_advised(&self) -> bool {
        let demands = |c: &Condition| matches!(c, Condition::Proven(_));
        !self.by_default && self.suggest && self.when.iter().any(demands)
    }
}

/// What of a model crosses the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moves {
    /// The all-reduces of a forward pass.
    #[default]
    Reductions,
    /// No all-reduce: the activations of a step, of this type, once from each GPU to the next.
    Activations(Dtype),
    /// Whatever the program copies; nothing of it follows from a model.
    Copies,
}

fn yes() -> bool {
    true
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
    /// Payloads strictly between these two sizes in bytes go elsewhere.
    pub hole_bytes: Option<(u64, u64)>,
}

/// Formulas of workspaces, each in bytes per rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceFormula {
    /// FlashInfer's PCIe IPC workspace (facts: engines.md 1.6), so many times over.
    FlashinferPcieIpc(u64),
    /// TensorRT-LLM's fusion workspace: W buffers of this many bytes, three more sets for its lamport kernels, barriers
    /// (facts: engines.md 4).
    TrtllmFusion(u64),
    /// Always this many bytes.
    FixedBytes(u64),
    /// One buffer of the largest payload that it takes.
    LargestPayload,
    /// A file in /dev/shm, shared by both ranks: flags and four payloads of this many bytes (facts: engines.md 3.4).
    HostReduceFile(u64),
}
