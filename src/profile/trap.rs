//! How a launch of an engine looks, and the wrong choices that people made with it.

use super::{Condition, Need, Switch};
use crate::model::finding::Severity;
use serde::Deserialize;

/// By what a launch is recognised, and which of its flags mean what.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Launch {
    /// Words that follow each other in a command: ["vllm", "serve"]. A word also matches the last part of a path.
    pub commands: Vec<Vec<String>>,
    /// Parts of the names of images whose entry point is the engine.
    #[serde(default)]
    pub images: Vec<String>,
    /// Beginnings of variables that belong to this engine alone.
    #[serde(default)]
    pub variables: Vec<String>,
    /// Flags of the tensor-parallel size.
    #[serde(default)]
    pub tp: Vec<String>,
    /// Values of that size that stand for every visible GPU.
    #[serde(default)]
    pub tp_every_visible: Vec<String>,
    /// Flags of attention data parallelism.
    #[serde(default)]
    pub data_parallel: Vec<String>,
    /// Flags of expert parallelism: a size, or a flag without a value.
    #[serde(default)]
    pub expert_parallel: Vec<String>,
    /// Flags that name the model.
    #[serde(default)]
    pub model: Vec<String>,
    /// Flags that count the requests of the largest captured or decoded step.
    #[serde(default)]
    pub batch: Vec<String>,
    /// Flags that bound the requests that run at once.
    #[serde(default)]
    pub running: Vec<String>,
    /// Flags of the number of speculative tokens.
    #[serde(default)]
    pub drafts: Vec<String>,
    /// Flags of the speculative method.
    #[serde(default)]
    pub method: Vec<String>,
    /// Flags of the activation type.
    #[serde(default)]
    pub dtype: Vec<String>,
    /// Flags that switch CUDA graphs off.
    #[serde(default)]
    pub eager: Vec<String>,
    /// Sizes by which the launch has more GPUs than its tensor-parallel group.
    #[serde(default)]
    pub times: Vec<Times>,
    /// Without a size every visible GPU is used.
    #[serde(default)]
    pub every_visible: bool,
    /// Flags with values that keep such a launch on one GPU.
    #[serde(default)]
    pub one_gpu: Vec<Named>,
    /// Flags that list the GPUs: "0,1" or "CUDA0,CUDA1".
    #[serde(default)]
    pub devices: Vec<String>,
    /// Flags that spread the launch over hosts.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Flags of the number of data-parallel replicas on this host.
    #[serde(default)]
    pub local_replicas: Vec<String>,
    /// Flags of the first GPU.
    #[serde(default)]
    pub first_gpu: Vec<String>,
    /// Flags of the step from one rank's GPU to the next one's.
    #[serde(default)]
    pub gpu_step: Vec<String>,
    /// Commands in front of it whose MPI ranks are its own ranks.
    #[serde(default)]
    pub rank_launchers: Vec<String>,
    /// Flags that name a file with further settings.
    #[serde(default)]
    pub files: Vec<String>,
    /// Behind the first word that is no flag stands a program of the user's, with flags of its own.
    #[serde(default)]
    pub program: bool,
}

/// A size by which the number of GPUs is multiplied: pipeline stages, replicas.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Times {
    /// What it counts, in words.
    pub what: String,
    /// Its flags.
    pub flags: Vec<String>,
    /// Flags beside which it divides the tensor-parallel group and multiplies nothing.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Experts are spread over these ranks, too, where a flag without a value spreads them.
    #[serde(default)]
    pub experts: bool,
    /// Replicas that exchange nothing on the GPUs, unless experts are spread over them, or `experts` holds and the model is a
    /// mixture of experts: its expert layers are one group over all of them, spread or not.
    #[serde(default)]
    pub alone: bool,
}

/// Flags of a launch that say one thing, and what kind of thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting<'a> {
    /// Any of these says it.
    pub flags: &'a [String],
    /// What a value of theirs is.
    pub kind: SettingKind,
}

/// What the value of a setting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// A number of ranks; experts may be spread by a flag without a value.
    Ranks,
    /// One value of another kind, that the engine needs behind the flag.
    Value,
    /// None, or several: a switch, a file, a place.
    Other,
}

impl Launch {
    /// Every setting that this launch is read for.
    pub fn settings(&self) -> Vec<Setting<'_>> {
        use SettingKind::{Other, Ranks, Value};
        let own = [
            (&self.tp, Ranks),
            (&self.data_parallel, Ranks),
            (&self.expert_parallel, Ranks),
            (&self.model, Value),
            (&self.batch, Value),
            (&self.running, Value),
            (&self.drafts, Value),
            (&self.method, Value),
            (&self.dtype, Value),
            (&self.devices, Value),
            (&self.local_replicas, Ranks),
            (&self.first_gpu, Value),
            (&self.gpu_step, Value),
            (&self.eager, Other),
            (&self.hosts, Other),
            (&self.files, Other),
        ];
        let times = self.times.iter().map(|t| (&t.flags, Ranks));
        let beside = self.times.iter().map(|t| (&t.unless, Other));
        let all = own.into_iter().chain(times).chain(beside);
        let mut all: Vec<Setting<'_>> = all.map(|(flags, kind)| Setting { flags, kind }).collect();
        all.extend(self.one_gpu.iter().map(|named| Setting {
            flags: std::slice::from_ref(&named.name),
            kind: Value,
        }));
        all
    }
}

/// A wrong choice that a launch may hold.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Trap {
    /// Id, unique among the traps that an engine has.
    pub id: String,
    /// How bad.
    pub severity: Severity,
    /// What a launch must hold; all must be met.
    pub when: Vec<Clause>,
    /// What the host and group must be; all must be met, and what is not known of the host is said.
    #[serde(default)]
    pub host: Vec<Condition>,
    /// The backends that it is about: where the host shows that none of them can run, it does not count.
    #[serde(default)]
    pub backends: Vec<String>,
    /// Where its backends cannot run it is said all the same, as caution: another version may run it.
    #[serde(default)]
    pub caution: bool,
    /// What is wrong with it.
    pub wrong: String,
    /// What to change, in words; the switches follow.
    pub change: String,
    /// Settings that mend it.
    #[serde(default)]
    pub set: Vec<Switch>,
    /// Source of the fact.
    pub source: String,
}

/// A way by which a launch moves data from GPU to GPU that is none of the engine's all-reduces: experts' all-to-all, KV
/// caches handed on, multicast.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Way {
    /// Id, unique among the ways that an engine has.
    pub id: String,
    /// In words: "experts' all-to-all by DeepEP".
    pub name: String,
    /// What a launch must hold to go this way; all must be met. Empty: the engine goes it by itself.
    #[serde(default)]
    pub when: Vec<Clause>,
    /// What the host and group must be: the tensor-parallel group, and without one all GPUs that exchange data.
    #[serde(default)]
    pub host: Vec<Condition>,
    /// Any of these keeps it off peers.
    #[serde(default)]
    pub unless: Vec<Clause>,
    /// Which pairs it uses.
    pub reach: Reach,
    /// Mechanisms that it relies on, as consumers do: a failure in any of them vetoes it.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// What of it no rung tests: with this it is never called proven.
    pub untested: Option<String>,
    /// What keeps it off peers.
    #[serde(default)]
    pub off: Vec<Switch>,
    /// How it reaches peers.
    pub because: String,
    /// Source of the fact.
    pub source: String,
}

/// Pairs of GPUs that a way uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// Those among the launch's own GPUs.
    Launch,
    /// Those of its tensor-parallel group; a launch without one does not go it.
    Group,
    /// Those between its GPUs and any other of the host: the other end is another launch.
    Host,
}

/// What a launch holds. Closed: there are no expressions. Flags are written with their dashes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clause {
    /// One of these flags is given.
    Flag(Vec<String>),
    /// None of these flags is given.
    NoFlag(Vec<String>),
    /// A flag has one of these values.
    FlagIs(Named),
    /// A flag is given with a value that is none of these.
    FlagIsNot(Named),
    /// A variable is set, to anything.
    Variable(String),
    /// A variable is not set by the launch.
    NoVariable(String),
    /// A variable has one of these values.
    VariableIs(Named),
    /// A variable is set to something that is none of these.
    VariableIsNot(Named),
    /// One of these variables has one of its values: two names of one setting.
    AnyVariableIs(Vec<Named>),
    /// A variable's value contains one of these.
    VariableContains(Named),
    /// A variable is set to a list, with commas, that has none of these; a list of exceptions (`^` in front) has them.
    VariableLacks(Named),
    /// The tensor-parallel size is larger than this. Where the text does not tell it, there may be a group (1).
    TpAbove(u32),
    /// More ranks than this exchange data, in groups of any kind. Where the text does not tell it, some may (1).
    RanksAbove(u32),
    /// Attention data parallelism or expert parallelism is on.
    MoreThanTensorParallel(bool),
    /// Experts are spread over ranks.
    ExpertParallel(bool),
    /// Data-parallel replicas are not alone, though experts are not spread: the expert layers of all of them are one group.
    ReplicasShareExperts(bool),
    /// It runs in a container that was given neither the host's IPC nor shared memory.
    IsolatedSharedMemory(bool),
}

/// A name with values.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Named {
    /// Flag or variable.
    pub name: String,
    /// Values; case counts.
    pub values: Vec<String>,
}
