//! Shapes of models, as published configurations give them.

use crate::model::reduction::Dtype;
use serde::Deserialize;

/// What is known of a model's shape. `None` is unknown, never zero.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelProfile {
    /// Short lower-case id: "glm-5.2".
    pub id: String,
    /// Repositories whose configuration has this shape, as OWNER/NAME.
    pub repositories: Vec<String>,
    /// Hidden size in elements.
    pub hidden: Option<u64>,
    /// Layers (or blocks).
    pub layers: Option<u32>,
    /// Attention heads, which tensor parallelism divides.
    pub heads: Option<u32>,
    /// Heads of keys and values; `None` also where the attention keeps none by head (MLA).
    pub kv_heads: Option<u32>,
    /// Activation type of the configuration. A quantised checkpoint still reduces in this type.
    pub activation: Option<Dtype>,
    /// Experts and mixers in words.
    pub structure: Option<String>,
    /// Whether its layers choose among experts.
    pub mixture_of_experts: Option<bool>,
    /// Next-token layers that the configuration declares; recipes call one layer again and again.
    pub draft_layers: Option<u32>,
    /// All-reduces of one rows x hidden tensor in a forward pass under plain tensor parallelism.
    pub all_reduces: Option<u32>,
    /// Where the numbers were read.
    pub source: String,
    /// When, as YYYY-MM-DD.
    pub checked: String,
    /// What a reader should know.
    pub note: Option<String>,
}

impl ModelProfile {
    /// Whether `name` means this model: its id, OWNER/NAME, or NAME alone; case does not matter.
    pub fn is_called(&self, name: &str) -> bool {
        self.names()
            .any(|own| own.eq_ignore_ascii_case(name.trim()))
    }

    /// All names by which it can be asked for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let repositories = self.repositories.iter().flat_map(|full| {
            let short = full.rsplit_once('/').map(|(_, name)| name);
            [Some(full.as_str()), short].into_iter().flatten()
        });
        std::iter::once(self.id.as_str()).chain(repositories)
    }
}
