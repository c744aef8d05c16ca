//! What is asked, and why it may not be answerable.

use crate::{
    model::{crossover::Crossover, pair::GpuIndex, reduction::Dtype},
    profile::{ModelProfile, Profiles, Version},
};

/// A question to `recommend`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// Engine id.
    pub engine: String,
    /// Model by id or repository name.
    pub model: Option<String>,
    /// Hidden size in elements; overrides the model's.
    pub hidden: Option<u64>,
    /// Tensor-parallel group size.
    pub tp: u32,
    /// Requests decoded together.
    pub batch: u64,
    /// The engine's own number of speculative tokens.
    pub draft_tokens: Option<u64>,
    /// Speculative method, where it changes the number's meaning.
    pub spec: Option<String>,
    /// Rows verified per request; overrides the number and method.
    pub rows_per_request: Option<u64>,
    /// Activation type; the model's, else bf16.
    pub dtype: Option<String>,
    /// The GPUs of the group, in rank order, as the operator wants them.
    pub group: Option<Vec<GpuIndex>>,
    /// GPUs to take the first `tp` of when there is no `group`, put in an order that keeps islands together.
    pub candidates: Vec<GpuIndex>,
    /// The engine's version; `None` = not told, which is said where it matters.
    pub engine_version: Option<Version>,
    /// A model read from its own configuration; it goes before `model`.
    pub config: Option<ModelProfile>,
    /// Ranks of attention data parallelism; 0 and 1 mean none.
    pub data_parallel: u32,
    /// Ranks of expert parallelism; 0 and 1 mean none.
    pub expert_parallel: u32,
    /// CUDA graphs are off.
    pub eager: bool,
    /// Reductions measured on this host.
    pub measured: Vec<ReductionTime>,
    /// What of them is the fastest where, for the groups of the same rows.
    pub crossovers: Vec<Crossover>,
}

impl Request {
    /// Tensor parallelism only.
    pub(crate) fn plain_tensor_parallel(&self) -> bool {
        self.data_parallel <= 1 && self.expert_parallel <= 1
    }
}

/// How long an all-reduce took on this host.
#[derive(Debug, Clone, PartialEq)]
pub struct ReductionTime {
    /// Backend id as in the engine's profile; "nccl" is the baseline.
    pub backend: String,
    /// Ranks.
    pub ranks: u32,
    /// Payload in bytes.
    pub bytes: u64,
    /// Median in microseconds.
    pub microseconds: f64,
    /// The middle half of the samples, microseconds: two times whose halves overlap are not told apart.
    pub middle: (f64, f64),
    /// GPUs that took part; empty = not told, any of that number.
    pub gpus: Vec<GpuIndex>,
    /// The algorithm of this tool's own that was run in the backend's place, as the backend's kernel was not.
    pub stand_in: Option<String>,
}

/// A question that cannot be answered. Each says what would do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdviseError {
    /// No profile of that engine.
    #[error("unknown engine '{name}' (known: {known})")]
    UnknownEngine {
        /// As asked.
        name: String,
        /// All ids.
        known: String,
    },
    /// No profile of that model.
    #[error(
        "unknown model '{name}' ({near}); or give --hidden with the hidden size of its config.json"
    )]
    UnknownModel {
        /// As asked.
        name: String,
        /// Near names, in words.
        near: String,
    },
    /// The profile does not know the hidden size.
    #[error("the hidden size of '{0}' is not known; give --hidden with the one of its config.json")]
    HiddenUnknown(String),
    /// Drafts were given and nobody read how this engine counts them.
    #[error("how {0} counts drafts was not read; give --rows-per-request")]
    DraftsUnknown(String),
    /// Drafts were given and no engine to count them.
    #[error("engines count drafts differently: give --engine, or --rows-per-request")]
    DraftsOfNoEngine,
    /// Ranks that reduce nothing.
    #[error("{0}: there is no all-reduce to size")]
    NothingReduced(String),
    /// Neither model nor hidden size.
    #[error("a step has no size without --model, --model-config or --hidden")]
    NoModel,
    /// Not an activation type.
    #[error("unknown activation type '{name}' (known: {known})")]
    UnknownDtype {
        /// As asked.
        name: String,
        /// All names.
        known: String,
    },
    /// Not a speculative method of this engine.
    #[error(
        "unknown speculative method '{name}' of {engine} (known: {known}); or give --rows-per-request"
    )]
    UnknownMethod {
        /// As asked.
        name: String,
        /// Engine.
        engine: String,
        /// All names.
        known: String,
    },
    /// A method without its number.
    #[error("method {method} needs --draft-tokens ({flag} of {engine})")]
    DraftTokensMissing {
        /// Method.
        method: String,
        /// The engine's name of the number.
        flag: String,
        /// Engine.
        engine: String,
    },
    /// A number that cannot be zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The group does not have `tp` members.
    #[error("the group has {members} GPU{} and --tp is {tp}", if *members == 1 { "" } else { "s" })]
    GroupSize {
        /// Members given.
        members: usize,
        /// Tensor-parallel size.
        tp: u32,
    },
    /// A group size by which the model's heads cannot be divided.
    #[error(
        "{model} has {heads}, which --tp {tp} does not divide: {engine} refuses to start so (sizes that do: {sizes})"
    )]
    Heads {
        /// Model.
        model: String,
        /// "64 attention heads", with those of keys and values where they are the reason.
        heads: String,
        /// Tensor-parallel size.
        tp: u32,
        /// Engine.
        engine: String,
        /// Sizes that would do.
        sizes: String,
    },
    /// A GPU twice in one group.
    #[error("GPU{0} is in the group twice")]
    Twice(GpuIndex),
    /// Not enough GPUs, or not that one.
    #[error("GPU{gpu} does not exist: this host has {count} GPUs")]
    NoSuchGpu {
        /// As asked.
        gpu: GpuIndex,
        /// GPUs of the host.
        count: usize,
    },
    /// A group larger than the host.
    #[error("--tp {tp} takes as many GPUs, and this host has {count}")]
    TooFew {
        /// Tensor-parallel size.
        tp: u32,
        /// GPUs of the host.
        count: usize,
    },
    /// A product beyond 64 bits.
    #[error("batch x rows x hidden is too large to be meant")]
    TooLarge,
}

/// Beginning of the caveat on a type that was assumed.
pub(super) const TYPE_UNKNOWN: &str = "the activation type is not known";

/// Hidden size and activation type, and how they are called in the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) label: String,
    pub(crate) hidden: u64,
    pub(crate) dtype: Dtype,
    /// Said when the type was assumed, and the profile's own note.
    pub(crate) caveats: Vec<String>,
    /// Attention heads, and those of keys and values.
    pub(crate) heads: Option<u32>,
    pub(crate) kv_heads: Option<u32>,
    /// Reductions of one forward pass under plain tensor parallelism.
    pub(crate) all_reduces: Option<u32>,
    /// The type differs from the model's own, because the GPUs do not have that.
    pub(crate) dtype_forced: bool,
}

/// Whether the model that is asked about is a mixture of experts; `None` where that is not known.
pub(crate) fn is_mixture(request: &Request, profiles: &Profiles) -> Option<bool> {
    let named = request.model.as_ref().and_then(|m| profiles.model(m));
    request.config.as_ref().or(named)?.mixture_of_experts
}

/// Heads of a model that a tensor-parallel size does not divide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Undivided {
    /// "64 attention heads".
    pub(crate) heads: String,
    /// Sizes that would do, up to 16.
    pub(crate) sizes: String,
}

impl Shape {
    /// What `tp` ranks cannot share: each takes as many attention heads as the others, and as many heads of keys and values, or
    /// some ranks hold a copy of one. `None` where it divides, and where the heads are not known. (vLLM's model configuration
    /// and its QKVParallelLinear; SGLang asserts the same.)
    pub(crate) fn undivided(&self, tp: u32) -> Option<Undivided> {
        let divides = |tp: u32| {
            let heads = self.heads.is_none_or(|n| n.is_multiple_of(tp));
            let kv = self
                .kv_heads
                .is_none_or(|n| n.is_multiple_of(tp) || tp.is_multiple_of(n.max(1)));
            (heads, kv)
        };
        let told = match divides(tp.max(1)) {
            (true, true) => return None,
            (false, _) => format!("{} attention heads", self.heads.unwrap_or_default()),
            (true, false) => format!(
                "{} heads of keys and values",
                self.kv_heads.unwrap_or_default()
            ),
        };
        let sizes: Vec<String> = (1..=16)
            .filter(|n| divides(*n) == (true, true))
            .map(|n| n.to_string())
            .collect();
        Some(Undivided {
            heads: told,
            sizes: sizes.join(", "),
        })
    }
}

/// The shape asked for; `None` when neither model nor hidden size was named. `compute`: the lowest compute capability of the
/// group, where it is known.
pub(crate) fn shape(
    request: &Request,
    profiles: &Profiles,
    compute: Option<(u32, u32)>,
) -> Result<Option<Shape>, AdviseError> {
    let asked_type = match &request.dtype {
        None => None,
        Some(name) => Some(Dtype::parse(name).ok_or_else(|| AdviseError::UnknownDtype {
            name: name.clone(),
            known: Dtype::ALL.map(Dtype::name).join(", "),
        })?),
    };
    if request.hidden == Some(0) {
        return Err(AdviseError::Zero("--hidden"));
    }
    let model = match (&request.config, &request.model) {
        (Some(own), _) => Some(own),
        (None, None) => None,
        (None, Some(name)) => match profiles.model(name) {
            Some(model) => Some(model),
            None if request.hidden.is_some() => None,
            None => {
                return Err(AdviseError::UnknownModel {
                    name: name.clone(),
                    near: near(name, profiles),
                });
            }
        },
    };
    let hidden = match (request.hidden, model) {
        (Some(hidden), _) => hidden,
        (None, Some(model)) => model
            .hidden
            .ok_or_else(|| AdviseError::HiddenUnknown(model.id.clone()))?,
        (None, None) => return Ok(None),
    };
    let mut caveats = Vec::new();
    let own_type = model.and_then(|m| m.activation);
    let mut known_type = asked_type.or(own_type);
    // bf16 begins with compute capability 8.0, and engines refuse it below.
    let old = compute.is_some_and(|c| c < (8, 0));
    let dtype_forced = old && asked_type.is_none() && own_type != Some(Dtype::Fp16);
    if dtype_forced {
        known_type = Some(Dtype::Fp16);
        caveats.push("bf16 needs compute capability 8.0, which these GPUs have not: fp16 is taken; the size is the same".to_string());
    }
    if known_type.is_none() {
        caveats.push(format!(
            "{TYPE_UNKNOWN}: bf16 is assumed; --dtype tells it (fp16 has the same size, fp32 twice)"
        ));
    }
    if let Some(model) = model {
        if let Some(note) = &model.note {
            caveats.push(format!("{}: {note}", model.id));
        }
        if request.hidden.is_some_and(|h| Some(h) != model.hidden) {
            caveats.push(format!(
                "--hidden {hidden} is used; the profile of {} says {}",
                model.id,
                model
                    .hidden
                    .map_or("unknown".to_string(), |h| h.to_string())
            ));
        }
    }
    let label = match (&request.model, model) {
        (_, Some(model)) => model.id.clone(),
        (Some(name), None) => name.clone(),
        (None, None) => format!("hidden {hidden}"),
    };
    Ok(Some(Shape {
        label,
        hidden,
        dtype: known_type.unwrap_or(Dtype::Bf16),
        caveats,
        heads: model.and_then(|m| m.heads),
        kv_heads: model.and_then(|m| m.kv_heads),
        all_reduces: model
            .and_then(|m| m.all_reduces)
            .filter(|_| request.plain_tensor_parallel()),
        dtype_forced,
    }))
}

/// "near: glm-5.2, glm-4.7", or where to look when nothing is near.
fn near(name: &str, profiles: &Profiles) -> String {
    const SHOWN: usize = 5;
    let wanted = name.trim().to_ascii_lowercase();
    let mut ranked: Vec<(usize, &str)> = profiles
        .models
        .iter()
        .map(|model| {
            let best = model
                .names()
                .map(|n| distance(&wanted, &n.to_ascii_lowercase()))
                .min()
                .unwrap_or(usize::MAX);
            (best, model.id.as_str())
        })
        .filter(|(far, id)| *far <= wanted.len().max(id.len()) / 2)
        .collect();
    ranked.sort();
    if ranked.is_empty() {
        let known: Vec<&str> = profiles.models.iter().map(|m| m.id.as_str()).collect();
        return format!("known: {}", known.join(", "));
    }
    let names: Vec<&str> = ranked.iter().take(SHOWN).map(|(_, id)| *id).collect();
    format!("near: {}", names.join(", "))
}

/// Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let next = (corner + usize::from(x != *y)).min(left + 1).min(*cell + 1);
            corner = *cell;
            *cell = next;
            left = next;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("glm-5.2", "glm-5.2"), 0);
    }

    #[test]
    fn a_size_divides_heads_or_is_told_those_that_do() {
        let of = |heads: Option<u32>, kv_heads: Option<u32>, tp: u32| {
            let shape = Shape {
                heads,
                kv_heads,
                ..ask(None, Some(64)).unwrap().unwrap()
            };
            shape.undivided(tp).map(|u| (u.heads, u.sizes))
        };
        let (heads, sizes) = of(Some(64), Some(8), 3).unwrap();
        assert_eq!(
            (heads.as_str(), sizes.as_str()),
            ("64 attention heads", "1, 2, 4, 8, 16")
        );
        for tp in [1, 2, 4, 8, 16, 64] {
            assert_eq!(of(Some(64), Some(8), tp), None, "{tp}");
        }
        // 96 heads go to twelve ranks, and four heads of keys to twelve copies; eight to none.
        assert_eq!(of(Some(96), Some(4), 12), None);
        let (heads, _) = of(Some(96), Some(8), 12).unwrap();
        assert_eq!(heads, "8 heads of keys and values");
        assert_eq!(of(None, None, 3), None);
    }

    fn ask(model: Option<&str>, hidden: Option<u64>) -> Result<Option<Shape>, AdviseError> {
        let request = Request {
            model: model.map(String::from),
            hidden,
            ..Request::default()
        };
        shape(&request, &Profiles::embedded().unwrap(), None)
    }

    #[test]
    fn an_unknown_model_lists_near_names() {
        let error = ask(Some("glm-5.3"), None).unwrap_err().to_string();
        assert!(
            error.contains("near: ") && error.contains("glm-5.2"),
            "{error}"
        );
        let error = ask(Some("zzzzzz"), None).unwrap_err().to_string();
        assert!(error.contains("known: "), "{error}");
    }

    #[test]
    fn an_unknown_size_stays_unknown_until_it_is_told() {
        assert_eq!(
            ask(Some("mistral-large-3"), None),
            Err(AdviseError::HiddenUnknown("mistral-large-3".into()))
        );
        let shape = ask(Some("mistral-large-3"), Some(7168)).unwrap().unwrap();
        assert_eq!(shape.hidden, 7168);
        assert!(shape.caveats.iter().any(|c| c.contains("bf16 is assumed")));
        assert_eq!(ask(None, None), Ok(None));
        assert_eq!(ask(None, Some(0)), Err(AdviseError::Zero("--hidden")));
        assert_eq!(
            ask(Some("my-own"), Some(64)).unwrap().unwrap().label,
            "my-own"
        );
    }
}
