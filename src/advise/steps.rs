//! The reductions of a launch's decode steps, as sizes to measure: the row counts of the graphs that the recommended launch
//! captures, one request up to the whole batch. Prefill is larger than any of them and stays out.

use super::{
    choose::{engine_of, heads_divide},
    group::Group,
    request::{AdviseError, Request, shape},
    sizing::{capture_sizes, grouped, rows_per_request},
};
use crate::{
    diagnose::Evidence,
    model::{pair::GpuIndex, reduction::Dtype},
    profile::{Moves, Profiles},
};

/// What is reduced in decode steps of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// Model, or "hidden N".
    pub model: String,
    /// Hidden size in elements.
    pub hidden: u64,
    /// Type of an element.
    pub dtype: Dtype,
    /// Rows of one request, and how that number came about.
    pub rows_per_request: (u64, String),
    /// Rows of each step, ascending: the requests of one graph times the rows of each.
    pub rows: Vec<u64>,
    /// GPUs in rank order.
    pub gpus: Vec<GpuIndex>,
    /// What was assumed.
    pub caveats: Vec<String>,
}

impl Steps {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.hidden.saturating_mul(self.dtype.bytes())
    }

    /// Bytes of each step's vector, as `rows`.
    pub fn bytes(&self) -> Vec<u64> {
        let row = self.row_bytes();
        self.rows.iter().map(|n| n.saturating_mul(row)).collect()
    }

    /// Where the sizes come from, in a sentence.
    pub fn sentence(&self) -> String {
        let (each, why) = &self.rows_per_request;
        let requests: Vec<String> = self
            .rows
            .iter()
            .filter_map(|rows| rows.checked_div(*each))
            .map(|n| n.to_string())
            .collect();
        format!(
            "sizes are those of decode steps of {} ({} hidden, {}): one row is {} bytes; {why}; \
             graphs of {} requests. Prefill is larger and stays with NCCL",
            self.model,
            grouped(self.hidden),
            self.dtype.name(),
            grouped(self.row_bytes()),
            requests.join(", ")
        )
    }
}

/// Sizes and ranks of the reductions of `request`. The engine may be left open where no drafts are counted.
///
/// # Errors
/// As [`super::recommend`], and where nothing is reduced: one rank, or an engine that hands activations on.
pub fn steps(
    evidence: Option<&Evidence>,
    request: &Request,
    profiles: &Profiles,
) -> Result<Steps, AdviseError> {
    let engine = match request.engine.is_empty() {
        true => None,
        false => Some(engine_of(request, profiles)?),
    };
    if request.batch == 0 {
        return Err(AdviseError::Zero("--batch"));
    }
    let group = Group::of(request, evidence, false)?;
    if group.world() < 2 {
        return Err(AdviseError::NothingReduced("--tp 1 is one GPU".to_string()));
    }
    let shape = shape(request, profiles, group.lowest_compute())?.ok_or(AdviseError::NoModel)?;
    if let Some(engine) = engine {
        heads_divide(engine, request, &shape)?;
        let reduces = |moves: Moves| moves == Moves::Reductions;
        if !engine.backends.iter().any(|b| reduces(b.moves)) {
            return Err(AdviseError::NothingReduced(format!(
                "{} hands activations from GPU to GPU",
                engine.name
            )));
        }
    }
    let rows_per_request = match (engine, request.rows_per_request) {
        (Some(engine), _) => rows_per_request(engine, request)?,
        (None, Some(rows)) => (rows, format!("--rows-per-request {rows}, as given")),
        (None, None) if request.draft_tokens.is_none() && request.spec.is_none() => {
            (1, "no speculation: one row per request".to_string())
        }
        (None, None) => return Err(AdviseError::DraftsOfNoEngine),
    };
    let full = request
        .batch
        .checked_mul(rows_per_request.0)
        .and_then(|rows| rows.checked_mul(shape.hidden))
        .and_then(|elements| elements.checked_mul(shape.dtype.bytes()));
    full.ok_or(AdviseError::TooLarge)?;
    Ok(Steps {
        model: shape.label,
        hidden: shape.hidden,
        dtype: shape.dtype,
        rows: capture_sizes(request.batch, rows_per_request.0),
        rows_per_request,
        gpus: group.gpus,
        caveats: shape.caveats,
    })
}

/// The command that times what `request` reduces, for whoever has the host.
pub(super) fn command(request: &Request) -> String {
    let mut words = vec!["peerproof reduce".to_string()];
    let mut add = |flag: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("{flag} {value}")));
    };
    let has_model = request.config.is_some() || request.model.is_some() || request.hidden.is_some();
    // A launch that was only read may not tell how many requests run together.
    if !has_model || request.batch == 0 {
        return "peerproof reduce --arrangement both --report r.json".to_string();
    }
    let number = |n: Option<u64>| n.map(|n| n.to_string());
    match &request.config {
        Some(_) => add("--model-config", Some("config.json".to_string())),
        None => add("--model", request.model.clone()),
    }
    add("--hidden", number(request.hidden));
    add("--tp", Some(request.tp.to_string()));
    add("--batch", Some(request.batch.to_string()));
    match request.rows_per_request {
        Some(rows) => add("--rows-per-request", Some(rows.to_string())),
        None if request.draft_tokens.is_some() || request.spec.is_some() => {
            add("--engine", Some(request.engine.clone()));
            add("--draft-tokens", number(request.draft_tokens));
            add("--spec", request.spec.clone());
        }
        None => {}
    }
    add("--dtype", request.dtype.clone());
    let gpus = request.group.as_ref().map(|gpus| {
        let gpus: Vec<String> = gpus.iter().map(|gpu| gpu.0.to_string()).collect();
        gpus.join(",")
    });
    add("--gpus", gpus);
    if request.eager {
        words.push("--eager".to_string());
    }
    words.push("--report r.json".to_string());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: Request) -> Result<Steps, AdviseError> {
        steps(None, &request, &Profiles::embedded().unwrap())
    }

    fn glm() -> Request {
        Request {
            model: Some("glm-5.2".to_string()),
            tp: 8,
            batch: 32,
            ..Request::default()
        }
    }

    #[test]
    fn a_step_has_the_rows_of_its_requests() {
        let steps = ask(Request {
            engine: "sglang".to_string(),
            draft_tokens: Some(4),
            ..glm()
        })
        .unwrap();
        assert_eq!((steps.hidden, steps.row_bytes()), (6144, 12_288));
        assert_eq!(steps.rows, [4, 8, 16, 32, 64, 128]);
        assert_eq!(steps.bytes().last(), Some(&(128 * 12_288)));
        assert_eq!(steps.gpus.len(), 8);
        let said = steps.sentence();
        assert!(
            said.contains("graphs of 1, 2, 4, 8, 16, 32 requests")
                && said.contains("counts the rows verified"),
            "{said}"
        );
        // The same four are five rows where drafts are counted.
        let vllm = ask(Request {
            engine: "vllm".to_string(),
            draft_tokens: Some(4),
            ..glm()
        });
        assert_eq!(vllm.unwrap().rows, [5, 10, 20, 40, 80, 160]);
    }

    #[test]
    fn no_engine_is_needed_until_drafts_are_counted() {
        assert_eq!(ask(glm()).unwrap().rows, [1, 2, 4, 8, 16, 32]);
        let drafts = Request {
            draft_tokens: Some(4),
            ..glm()
        };
        assert_eq!(ask(drafts), Err(AdviseError::DraftsOfNoEngine));
        let rows = Request {
            rows_per_request: Some(6),
            batch: 3,
            ..glm()
        };
        assert_eq!(ask(rows).unwrap().rows, [6, 12, 18]);
    }

    #[test]
    fn what_reduces_nothing_has_no_steps() {
        let one = ask(Request { tp: 1, ..glm() });
        assert!(
            matches!(one, Err(AdviseError::NothingReduced(_))),
            "{one:?}"
        );
        let copies = ask(Request {
            engine: "python".to_string(),
            ..glm()
        });
        assert!(
            matches!(copies, Err(AdviseError::NothingReduced(_))),
            "{copies:?}"
        );
        assert_eq!(
            ask(Request {
                model: None,
                ..glm()
            }),
            Err(AdviseError::NoModel)
        );
        let refused = ask(Request {
            engine: "vllm".to_string(),
            model: Some("qwen3-32b".to_string()),
            tp: 3,
            ..glm()
        });
        assert!(
            matches!(refused, Err(AdviseError::Heads { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn the_command_asks_the_same_question() {
        let plain = Request {
            group: Some(vec![GpuIndex(4), GpuIndex(5)]),
            tp: 2,
            ..glm()
        };
        assert_eq!(
            command(&plain),
            "peerproof reduce --model glm-5.2 --tp 2 --batch 32 --gpus 4,5 --report r.json"
        );
        let drafts = Request {
            engine: "sglang".to_string(),
            spec: Some("eagle".to_string()),
            draft_tokens: Some(4),
            dtype: Some("fp16".to_string()),
            eager: true,
            ..glm()
        };
        assert_eq!(
            command(&drafts),
            "peerproof reduce --model glm-5.2 --tp 8 --batch 32 --engine sglang --draft-tokens 4 --spec eagle --dtype fp16 --eager --report r.json"
        );
        assert_eq!(
            command(&Request::default()),
            "peerproof reduce --arrangement both --report r.json"
        );
    }
}
