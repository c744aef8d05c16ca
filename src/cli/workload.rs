//! What an engine is to serve, as options that `recommend` and `reduce` share: model, requests decoded together, drafts. Knows no
//! engine's way of counting and no host.

use super::{exit::Stop, map};
use crate::{
    advise::Request,
    profile::{self, ModelProfile},
};
use std::path::PathBuf;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Workload {
    /// Model by id or repository name (`peerproof list`).
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// The model's own config.json: hidden size, layers and type are read from it.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub(super) model_config: Option<PathBuf>,
    /// Hidden size in elements, for a model that is not listed; overrides the model's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(super) hidden: Option<u64>,
    /// Requests decoded together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(super) batch: Option<u64>,
    /// The engine's own number of speculative tokens (SGLang counts rows, vLLM counts drafts); for DSPARK the block size.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=65_536))]
    pub(super) draft_tokens: Option<u64>,
    /// Speculative method where it changes what the number means: eagle, mtp, dspark, dflash, ngram, ...
    #[arg(long, value_name = "METHOD")]
    pub(super) spec: Option<String>,
    /// Rows verified per request; overrides --draft-tokens and --spec.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(super) rows_per_request: Option<u64>,
}

impl Workload {
    /// Whether a model, or the size of one, is told.
    pub(super) fn has_model(&self) -> bool {
        self.model.is_some() || self.model_config.is_some() || self.hidden.is_some()
    }

    /// An option that means nothing without a model, where one is given.
    pub(super) fn load(&self) -> Option<&'static str> {
        [
            (self.batch.is_some(), "--batch"),
            (self.draft_tokens.is_some(), "--draft-tokens"),
            (self.spec.is_some(), "--spec"),
            (self.rows_per_request.is_some(), "--rows-per-request"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    /// The model's own configuration, where its file is named.
    pub(super) fn config(&self) -> Result<Option<ModelProfile>, Stop> {
        let Some(path) = &self.model_config else {
            return Ok(None);
        };
        let (name, bytes) = map::read_file(path)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| {
            Stop::usage(format!(
                "{name}: not a model's configuration: not UTF-8 text"
            ))
        })?;
        profile::read_config(&name, text)
            .map(Some)
            .map_err(|error| Stop::usage(error.to_string()))
    }

    /// The question for `tp` ranks of `engine`; one request where nothing says how many.
    pub(super) fn request(&self, engine: &str, tp: u32) -> Result<Request, Stop> {
        Ok(Request {
            engine: engine.to_string(),
            model: self.model.clone(),
            config: self.config()?,
            hidden: self.hidden,
            tp,
            batch: self.batch.unwrap_or(1),
            draft_tokens: self.draft_tokens,
            spec: self.spec.clone(),
            rows_per_request: self.rows_per_request,
            ..Request::default()
        })
    }
}
