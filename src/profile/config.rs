//! A model's own `config.json` as a profile. Families spell one thing in many ways and wrap the text model in others, so
//! the wrapped configuration is read before the outer one. What no known key states is unknown.

use super::ModelProfile;
use crate::model::reduction::Dtype;
use serde_json::{Map, Value};

/// Where wrappers keep the text model, outermost key first.
const WRAPPED: [&[&str]; 5] = [
    &["text_config"],
    &["thinker_config", "text_config"],
    &["llm_config"],
    &["language_config"],
    &["language_model_config"],
];
const HIDDEN: [&str; 4] = ["hidden_size", "n_embd", "d_model", "model_dim"];
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
const HEADS: [&str; 4] = ["num_attention_heads", "n_head", "n_heads", "num_heads"];
const KV_HEADS: [&str; 2] = ["num_key_value_heads", "num_kv_heads"];
/// With it keys and values are one latent vector for all heads.
const LATENT: [&str; 1] = ["kv_lora_rank"];
const DTYPE: [&str; 2] = ["dtype", "torch_dtype"];
const DRAFTS: [&str; 3] = [
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
];
const EXPERTS: [&str; 3] = ["n_routed_experts", "num_experts", "num_local_experts"];
const TOP: [&str; 3] = ["num_experts_per_tok", "moe_topk", "num_experts_per_token"];
/// Beginnings of model types whose layers were read to end in two row-parallel layers each (facts: data.md 4.1).
const TWO_PER_LAYER: [&str; 19] = [
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "deepseek", "glm4", "glm_moe", "gpt_oss",
    "kimi", "minimax", "gemma2", "gemma3", "gemma4", "step3", "mimo", "phi3", "olmo2", "granite",
];
/// Largest size that is taken for meant.
const MOST: u64 = 1 << 20;

/// A configuration that gives no shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON.
    #[error("{file}: line {line}: not JSON: {message}")]
    NotJson {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The parser's word.
        message: String,
    },
    /// JSON, but not a configuration with a hidden size.
    #[error("{file}: {message}")]
    NoShape {
        /// File.
        file: String,
        /// What is missing and what would do.
        message: String,
    },
}

/// Reads the text of a `config.json`. `file` names it in errors and as the source.
///
/// # Errors
/// Text that is not JSON (with its line), no hidden size under any known name, and sizes that are no counts.
pub fn read_config(file: &str, text: &str) -> Result<ModelProfile, ConfigError> {
    let no_shape = |message: String| ConfigError::NoShape {
        file: file.to_string(),
        message,
    };
    let value: Value = serde_json::from_str(text).map_err(|error| ConfigError::NotJson {
        file: file.to_string(),
        line: error.line(),
        message: error.to_string(),
    })?;
    let Value::Object(outer) = &value else {
        return Err(no_shape(
            "not a model's configuration: no JSON object".to_string(),
        ));
    };
    let inner = WRAPPED.iter().find_map(|path| {
        path.iter()
            .try_fold(outer, |map, key| map.get(*key)?.as_object())
            .filter(|map| HIDDEN.iter().any(|key| map.contains_key(*key)))
            .map(|map| (path.join("."), map))
    });
    let config = Config {
        inner: inner.as_ref().map(|(_, map)| *map),
        outer,
    };
    let hidden = config.count(&HIDDEN).map_err(no_shape)?.ok_or_else(|| {
        let hint = if outer.contains_key("peft_type") {
            "; this is an adapter: take the configuration of its base model"
        } else {
            ""
        };
        no_shape(format!(
            "no hidden size: looked for {} in text_config first and at the top{hint}; --hidden tells it",
            HIDDEN.join(", ")
        ))
    })?;
    let mut notes = Vec::new();
    if let Some((path, _)) = &inner {
        notes.push(format!("read from {path}, the text model inside a wrapper"));
    }
    let blocks = blocks(&config);
    let layers = match config.count(&LAYERS).map_err(no_shape)? {
        Some(layers) => Some(layers),
        None => blocks.as_ref().map(|blocks| blocks.layers),
    };
    let all_reduces = all_reduces(&config, layers, blocks.as_ref(), &mut notes);
    let draft_layers = drafts(&config, &mut notes).map_err(no_shape)?;
    let activation = activation(&config, &mut notes);
    let experts = config.count(&EXPERTS).map_err(no_shape)?;
    let top = config.count(&TOP).map_err(no_shape)?;
    let small = |n: u64| u32::try_from(n).ok();
    // Counts by layer, and forms that were not read, are unknown.
    let heads = |keys: &[&str]| config.count(keys).ok().flatten().and_then(small);
    let latent = config.first(&LATENT).is_some();
    Ok(ModelProfile {
        id: name(outer).unwrap_or_else(|| file.to_string()),
        repositories: Vec::new(),
        hidden: Some(hidden),
        layers: layers.and_then(small),
        heads: heads(&HEADS),
        kv_heads: heads(&KV_HEADS).filter(|_| !latent),
        activation,
        structure: experts.map(|n| match top {
            Some(k) => format!("{n} experts, top {k}"),
            None => format!("{n} experts"),
        }),
        mixture_of_experts: match experts {
            Some(n) => Some(n > 1),
            None => config.is_dense().then_some(false),
        },
        draft_layers: draft_layers.and_then(small),
        all_reduces: all_reduces.and_then(small),
        source: file.to_string(),
        checked: String::new(),
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    })
}

struct Config<'a> {
    inner: Option<&'a Map<String, Value>>,
    outer: &'a Map<String, Value>,
}

impl<'a> Config<'a> {
    /// The first of `keys` that is stated and not null, the wrapped model before the outer one.
    fn first(&self, keys: &[&str]) -> Option<(String, &'a Value)> {
        [self.inner, Some(self.outer)]
            .into_iter()
            .flatten()
            .find_map(|map| {
                keys.iter().find_map(|key| {
                    let value = map.get(*key).filter(|v| !v.is_null())?;
                    Some(((*key).to_string(), value))
                })
            })
    }

    /// The first of `keys` as a count from 1; `Ok(None)` when none is stated.
    fn count(&self, keys: &[&str]) -> Result<Option<u64>, String> {
        let Some((key, value)) = self.first(keys) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(n) if (1..=MOST).contains(&n) => Ok(Some(n)),
            _ => Err(format!(
                "{key} is {value} (allowed: a whole number from 1 to {MOST})"
            )),
        }
    }

    /// No key speaks of experts: every family that has them counts them somewhere.
    fn is_dense(&self) -> bool {
        let mut maps = [self.inner, Some(self.outer)].into_iter().flatten();
        maps.all(|map| {
            map.keys().all(|key| {
                let key = key.to_ascii_lowercase();
                !key.contains("expert") && !key.contains("moe")
            })
        })
    }

    fn model_type(&self) -> String {
        let found = self.first(&["model_type"]);
        found
            .and_then(|(_, v)| v.as_str())
            .unwrap_or_default()
            .to_ascii_lowercase()
    }
}

fn name(outer: &Map<String, Value>) -> Option<String> {
    let told = outer.get("_name_or_path").and_then(Value::as_str)?;
    let last = told.trim_end_matches('/').rsplit('/').next()?;
    (!last.is_empty() && last.len() <= 80).then(|| last.to_string())
}

/// Layers that are listed one by one, and the reductions that follow from the list.
struct Blocks {
    layers: u64,
    reductions: u64,
    key: &'static str,
}

fn blocks(config: &Config) -> Option<Blocks> {
    if let Some((_, Value::String(pattern))) = config.first(&["hybrid_override_pattern"]) {
        let layers = pattern.chars().filter(|c| !c.is_whitespace()).count() as u64;
        return (layers > 0).then_some(Blocks {
            layers,
            reductions: layers + 1,
            key: "hybrid_override_pattern",
        });
    }
    if let Some((_, Value::Array(list))) = config.first(&["layers_block_type"])
        && config.model_type().starts_with("nemotron_h")
        && !list.is_empty()
    {
        return Some(Blocks {
            layers: list.len() as u64,
            reductions: list.len() as u64 + 1,
            key: "layers_block_type",
        });
    }
    // Layers that a search has thinned out: some have no attention, some no feed-forward part.
    let Some((_, Value::Array(list))) = config.first(&["block_configs"]) else {
        return None;
    };
    let has = |block: &Value, part: &str| -> Option<bool> {
        let part = block.get(part)?;
        Some(part.get("no_op").and_then(Value::as_bool) != Some(true))
    };
    let mut reductions = 1;
    for block in list {
        let (attention, feed) = (has(block, "attention")?, has(block, "ffn")?);
        reductions += u64::from(attention) + u64::from(feed);
    }
    (!list.is_empty()).then_some(Blocks {
        layers: list.len() as u64,
        reductions,
        key: "block_configs",
    })
}

fn all_reduces(
    config: &Config,
    layers: Option<u64>,
    blocks: Option<&Blocks>,
    notes: &mut Vec<String>,
) -> Option<u64> {
    if let Some(blocks) = blocks {
        notes.push(format!("reductions counted from {}", blocks.key));
        return Some(blocks.reductions);
    }
    let kind = config.model_type();
    let layers = layers?;
    if TWO_PER_LAYER.iter().any(|known| kind.starts_with(known)) {
        return Some(2 * layers + 1);
    }
    notes.push(format!(
        "reductions per forward pass are unknown: layers of model type '{kind}' were not read"
    ));
    None
}

/// Two fields that differ are no answer.
fn drafts(config: &Config, notes: &mut Vec<String>) -> Result<Option<u64>, String> {
    let mut stated: Vec<(&str, u64)> = Vec::new();
    for key in DRAFTS {
        let Some((_, value)) = config.first(&[key]) else {
            continue;
        };
        match value.as_u64() {
            Some(n) if n <= MOST => stated.push((key, n)),
            _ => return Err(format!("{key} is {value} (allowed: a whole number)")),
        }
    }
    let agree = stated.windows(2).all(|w| matches!(w, [a, b] if a.1 == b.1));
    if !agree {
        let told: Vec<String> = stated.iter().map(|(k, n)| format!("{k} {n}")).collect();
        notes.push(format!(
            "draft layers are unknown: the fields differ ({})",
            told.join(", ")
        ));
        return Ok(None);
    }
    Ok(stated.first().map(|(_, n)| *n))
}

fn activation(config: &Config, notes: &mut Vec<String>) -> Option<Dtype> {
    let (key, value) = config.first(&DTYPE)?;
    let told = value.as_str().unwrap_or_default();
    let plain = told.strip_prefix("torch.").unwrap_or(told);
    let known = Dtype::parse(plain);
    if known.is_none() {
        notes.push(format!("activation type is unknown: {key} is {value}"));
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ModelProfile {
        read_config("config.json", text).unwrap()
    }

    fn error(text: &str) -> String {
        read_config("config.json", text).unwrap_err().to_string()
    }

    #[test]
    fn a_plain_configuration() {
        let model = read(
            r#"{"model_type":"qwen3","hidden_size":5120,"num_hidden_layers":64,"torch_dtype":"bfloat16"}"#,
        );
        assert_eq!(model.hidden, Some(5120));
        assert_eq!((model.layers, model.all_reduces), (Some(64), Some(129)));
        assert_eq!(model.activation, Some(Dtype::Bf16));
        assert_eq!((model.draft_layers, model.note), (None, None));
        assert_eq!((model.heads, model.kv_heads), (None, None));
    }

    #[test]
    fn heads_are_read_where_they_are_one_number() {
        let heads = |fields: &str| {
            let model = read(&format!(r#"{{"hidden_size":5120,{fields}}}"#));
            (model.heads, model.kv_heads)
        };
        assert_eq!(
            heads(r#""num_attention_heads":64,"num_key_value_heads":8"#),
            (Some(64), Some(8))
        );
        // Latent attention keeps no keys by head, whatever the field says.
        assert_eq!(
            heads(r#""num_attention_heads":128,"num_key_value_heads":128,"kv_lora_rank":512"#),
            (Some(128), None)
        );
        assert_eq!(heads(r#""num_attention_heads":[64,32]"#), (None, None));
    }

    #[test]
    fn the_text_model_comes_before_its_wrapper() {
        let model = read(
            r#"{"hidden_size":1,"dtype":"float32","num_mtp_modules":7,
                "text_config":{"model_type":"minimax_m3","hidden_size":6144,"num_hidden_layers":60,"dtype":"torch.float16",
                "num_local_experts":128,"num_experts_per_tok":4,"num_nextn_predict_layers":1}}"#,
        );
        assert_eq!((model.hidden, model.all_reduces), (Some(6144), Some(121)));
        assert_eq!(model.activation, Some(Dtype::Fp16));
        assert_eq!(model.structure.as_deref(), Some("128 experts, top 4"));
        assert_eq!(model.draft_layers, None, "two fields that differ");
        let note = model.note.unwrap();
        assert!(
            note.contains("text_config") && note.contains("num_mtp_modules 7"),
            "{note}"
        );
    }

    #[test]
    fn experts_are_counted_under_their_names() {
        let mixture =
            |fields: &str| read(&format!(r#"{{"hidden_size":2048{fields}}}"#)).mixture_of_experts;
        for key in EXPERTS {
            assert_eq!(mixture(&format!(r#","{key}":128"#)), Some(true), "{key}");
            assert_eq!(mixture(&format!(r#","{key}":1"#)), Some(false), "{key}");
            let wrapped = format!(r#","text_config":{{"hidden_size":1,"{key}":8}}"#);
            assert_eq!(mixture(&wrapped), Some(true), "{key}");
        }
        assert_eq!(mixture(""), Some(false));
        assert_eq!(mixture(r#","model_type":"llama""#), Some(false));
        // Experts of another spelling, of which no number was read.
        assert_eq!(mixture(r#","moe_num_experts":[64,64]"#), None);
        assert_eq!(
            mixture(r#","num_experts":null,"moe_intermediate_size":768"#),
            None
        );
    }

    #[test]
    fn layers_may_be_a_list() {
        let ultra = read(
            r#"{"model_type":"nemotron_h","hidden_size":8192,"hybrid_override_pattern":"MEM*E"}"#,
        );
        assert_eq!((ultra.layers, ultra.all_reduces), (Some(5), Some(6)));
        let thinned = read(
            r#"{"hidden_size":8192,"num_hidden_layers":2,"model_type":"nemotron-nas","block_configs":[
                {"attention":{"no_op":true},"ffn":{"no_op":false}},{"attention":{"no_op":false},"ffn":{}}]}"#,
        );
        assert_eq!((thinned.layers, thinned.all_reduces), (Some(2), Some(4)));
    }

    #[test]
    fn what_is_not_stated_is_unknown() {
        let model = read(r#"{"n_embd":4096,"n_layer":28,"model_type":"gptj","dtype":null}"#);
        assert_eq!((model.hidden, model.layers), (Some(4096), Some(28)));
        assert_eq!((model.all_reduces, model.activation), (None, None));
        assert!(model.note.unwrap().contains("'gptj'"));
        let odd = read(r#"{"hidden_size":2880,"dtype":"mxfp4"}"#);
        assert_eq!((odd.activation, odd.layers), (None, None));
    }

    #[test]
    fn a_file_that_gives_no_shape_says_what_would_do() {
        assert!(error("{\n\n \"hidden_size\": }").contains("config.json: line 3: not JSON"));
        assert!(error("[1]").contains("no JSON object"));
        let none = error(r#"{"peft_type":"LORA"}"#);
        assert!(
            none.contains("hidden_size, n_embd") && none.contains("base model"),
            "{none}"
        );
        assert!(error(r#"{"hidden_size":0}"#).contains("from 1"));
        assert!(error(r#"{"hidden_size":"4096"}"#).contains("\"4096\""));
        assert!(error(r#"{"hidden_size":-5}"#).contains("-5"));
        assert!(error(r#"{"hidden_size":4096,"num_mtp_modules":"x"}"#).contains("num_mtp_modules"));
    }
}
