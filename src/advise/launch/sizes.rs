//! Traps that are arithmetic: drafts counted the other engine's way, a workspace made for prefill or for fewer rows than a
//! step has, graphs that end below a full step (facts: engines.md 7 and 8), ranks that cannot share a model's heads.

use super::{devices::Size, read::Invocation, traps::Facts};
use crate::{
    advise::{
        admission::{admitted, counted},
        request::{Request, Shape, shape},
        sizing::grouped,
        workspace::{PCIE_IPC_WORLDS, pcie_ipc_workspace_bytes},
    },
    model::{
        finding::{Severity, Sizing},
        launch::LaunchProblem,
    },
    profile::{AllocationRule, EngineProfile, Launch, Profiles},
};

/// Requests that SGLang runs at once with drafts when nobody says a number.
const SGLANG_RUNNING_WITH_DRAFTS: u64 = 48;
/// So many times what a decode step needs is no longer a decode size.
const PREFILL_SIZED: u64 = 8;

fn problem(
    id: &str,
    severity: Severity,
    wrong: String,
    change: String,
    settings: Vec<String>,
    source: &str,
) -> LaunchProblem {
    LaunchProblem {
        id: id.to_string(),
        severity,
        wrong,
        change,
        settings,
        source: source.to_string(),
    }
}

/// What is wrong with the numbers of one launch. `shape` and `sizing` are known when the model is.
pub(super) fn problems(
    engine: &EngineProfile,
    invocation: &Invocation,
    facts: &Facts,
    shape: Option<&Shape>,
    sizing: Option<&Sizing>,
) -> Vec<LaunchProblem> {
    let mut all = Vec::new();
    match engine.allocation {
        Some(AllocationRule::CapturedRequests) => {
            all.extend(steps_and_drafts(invocation));
            all.extend(requests_and_rows(facts));
            all.extend(group_size(
                invocation,
                facts,
                "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
            ));
            workspace(invocation, facts, shape, sizing, &mut all);
        }
        Some(AllocationRule::CapturedTokens) => {
            all.extend(group_size(
                invocation,
                facts,
                "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC",
            ));
            all.extend(captures(invocation, facts));
        }
        None => {}
    }
    all
}

/// Whether this launch holds a size that the model's numbers judge.
pub(super) fn apply(invocation: &Invocation) -> bool {
    let variables = ["MAX_NUMEL"];
    let flags = ["capture-sizes", "capture_sizes"];
    invocation
        .variables
        .keys()
        .any(|name| variables.iter().any(|part| name.contains(part)))
        || invocation
            .flags
            .iter()
            .any(|flag| flags.iter().any(|part| flag.name.contains(part)))
}

/// Ranks that cannot share the model's heads. Attention data parallelism that divides the group leaves fewer ranks for them.
pub(super) fn heads(
    engine: &EngineProfile,
    profiles: &Profiles,
    launch: &Launch,
    invocation: &Invocation,
    facts: &Facts,
    request: &Request,
) -> Option<LaunchProblem> {
    let Size::Ranks(tp) = facts.tp_given else {
        return None;
    };
    let divides = launch.times.iter().any(|times| {
        times.flags == launch.data_parallel && invocation.flag(&times.unless).is_some()
    });
    let ranks = match divides {
        true => tp.checked_div(facts.data_parallel.max(1))?,
        false => tp,
    };
    let shape = shape(request, profiles, None).ok().flatten()?;
    let undivided = shape.undivided(ranks)?;
    Some(LaunchProblem {
        id: "heads-not-divided".to_string(),
        severity: Severity::Critical,
        wrong: format!(
            "{} has {}, and {ranks} ranks cannot share them evenly: {} does not start",
            shape.label, undivided.heads, engine.name
        ),
        change: format!(
            "take a tensor-parallel size that divides them: {}",
            undivided.sizes
        ),
        settings: Vec::new(),
        source:
            "vLLM model configuration (0.33.0), SGLang's attention layers; config.json of the model"
                .to_string(),
    })
}

/// Whether there is a group that reduces, or may be one.
fn reduces(facts: &Facts) -> bool {
    facts.tp > 1 || facts.group_open
}

fn switched_on(invocation: &Invocation, variable: &str) -> bool {
    invocation
        .variables
        .get(variable)
        .is_some_and(|v| matches!(v.as_str(), "1" | "true" | "yes" | "y"))
}

fn group_size(invocation: &Invocation, facts: &Facts, variable: &str) -> Option<LaunchProblem> {
    let covered = PCIE_IPC_WORLDS.contains(&facts.tp) || facts.group_open;
    if !switched_on(invocation, variable) || covered {
        return None;
    }
    if facts.tp == 1 {
        return Some(problem(
            "pcie-ipc-group-size",
            Severity::Info,
            "one GPU has no all-reduce, and pcie_ipc nothing to do".to_string(),
            "leave the variable out, or give the launch a tensor-parallel group".to_string(),
            vec![format!("unset {variable}")],
            "FlashInfer pcie_ipc",
        ));
    }
    Some({
        problem(
            "pcie-ipc-group-size",
            Severity::Warning,
            format!(
                "pcie_ipc exists for 2, 4 and 8 ranks, and this launch has {}: every reduction goes to NCCL",
                facts.tp
            ),
            "leave the variable out, or change the group".to_string(),
            vec![format!("unset {variable}")],
            "FlashInfer pcie_ipc",
        )
    })
}

/// SGLang's number of draft tokens holds the root: at top-k 1 it is steps + 1.
fn steps_and_drafts(invocation: &Invocation) -> Option<LaunchProblem> {
    let number =
        |name: &str| -> Option<u64> { invocation.value(&[name.to_string()])?.parse().ok() };
    let steps = number("--speculative-num-steps")?;
    let drafts = number("--speculative-num-draft-tokens")?;
    let top = number("--speculative-eagle-topk").unwrap_or(1);
    (top == 1 && drafts != steps.saturating_add(1)).then(|| {
        problem(
            "draft-tokens-are-rows",
            Severity::Warning,
            format!(
                "{} at top-k 1 verify {}, and --speculative-num-draft-tokens {drafts} says another number: in SGLang it counts rows, the root included (vLLM's num_speculative_tokens counts drafts)",
                counted(steps, "step"),
                counted(steps.saturating_add(1), "row")
            ),
            "say steps + 1".to_string(),
            vec![format!(
                "--speculative-num-draft-tokens {}",
                steps.saturating_add(1)
            )],
            "SGLang server arguments",
        )
    })
}

/// SGLang's captured number counts requests; one that is requests x rows was written for an engine that counts tokens.
fn requests_and_rows(facts: &Facts) -> Option<LaunchProblem> {
    let (captured, running) = (facts.batch?, facts.running?);
    let rows = facts.rows_per_request;
    (rows > 1 && running.checked_mul(rows) == Some(captured)).then(|| {
        problem(
            "captures-count-requests",
            Severity::Warning,
            format!(
                "--cuda-graph-max-bs-decode counts requests in SGLang, and {captured} is {} x {rows} rows: graphs and workspace are made {rows} times too large (vLLM's capture sizes count tokens)",
                counted(running, "running request")
            ),
            "say the requests".to_string(),
            vec![format!("--cuda-graph-max-bs-decode {running}")],
            "SGLang server arguments",
        )
    })
}

/// SGLang's workspace against what the launch decodes.
fn workspace(
    invocation: &Invocation,
    facts: &Facts,
    shape: Option<&Shape>,
    sizing: Option<&Sizing>,
    all: &mut Vec<LaunchProblem>,
) {
    const NAME: &str = "SGLANG_PCIE_IPC_MAX_NUMEL";
    let on = switched_on(invocation, "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE");
    let Some(told) = invocation.variables.get(NAME) else {
        if on
            && facts.batch.is_none()
            && reduces(facts)
            && !invocation.may_hold_flags()
            && !invocation.may_hold(NAME)
        {
            all.push(problem(
                "workspace-of-64-rows",
                Severity::Warning,
                "neither SGLANG_PCIE_IPC_MAX_NUMEL nor the captured number of requests is given: the workspace has 64 rows for the whole run".to_string(),
                "say the number of requests that are captured".to_string(),
                vec!["--cuda-graph-max-bs-decode N".to_string()],
                "sglang#34528",
            ));
        }
        return;
    };
    let Some(elements) = told
        .parse::<u64>()
        .ok()
        .filter(|n| n.is_multiple_of(8) && *n > 0)
    else {
        all.push(problem(
            "workspace-not-a-multiple-of-8",
            Severity::Critical,
            format!("{NAME}={told} is no positive multiple of 8 elements"),
            "give rows x hidden".to_string(),
            Vec::new(),
            "FlashInfer pcie_ipc",
        ));
        return;
    };
    if !on {
        all.push(problem(
            "workspace-without-backend",
            Severity::Info,
            format!("{NAME} is read only with SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1"),
            "set both or none".to_string(),
            Vec::new(),
            "sglang#34528",
        ));
    }
    let Some(shape) = shape.filter(|_| reduces(facts)) else {
        return;
    };
    let room = admitted(elements, shape.hidden, facts.rows_per_request);
    if let Some(sizing) = sizing {
        let needed = sizing.needed_elements;
        let set = vec![format!("{NAME}={needed}")];
        if elements < needed {
            all.push(problem(
                "draft-width-forgotten",
                Severity::Warning,
                format!(
                    "{}; {} of {} {} {}",
                    room.sentence(),
                    counted(sizing.batch, "request"),
                    counted(sizing.rows_per_request, "row"),
                    if sizing.batch == 1 { "needs" } else { "need" },
                    counted(needed, "element")
                ),
                "give requests x rows per request x hidden".to_string(),
                set,
                "sglang#34528",
            ));
            return;
        }
        if elements >= needed.saturating_mul(PREFILL_SIZED) {
            let bytes = pcie_ipc_workspace_bytes(facts.tp, elements).map_or(String::new(), |n| {
                format!(
                    ", and take {} bytes on each GPU (SGLang's own text says half of it)",
                    grouped(n)
                )
            });
            all.push(problem(
                "prefill-sized-workspace",
                Severity::Warning,
                format!(
                    "{} elements are {} times what a decode step needs ({}){bytes}: a workspace's bound is also a routing rule, and prefill-sized tensors are slower here than with NCCL (first token 3176 ms against 1849 ms, 8 ranks, 8k context)",
                    grouped(elements),
                    elements / needed.max(1),
                    grouped(needed)
                ),
                "give the decode size; larger tensors then go to NCCL".to_string(),
                set,
                "sglang#34528",
            ));
            return;
        }
    }
    let running = facts
        .running
        .or((facts.rows_per_request > 1).then_some(SGLANG_RUNNING_WITH_DRAFTS));
    if let Some(running) = running.filter(|n| *n > room.requests) {
        all.push(problem(
            "more-running-than-admitted",
            Severity::Warning,
            format!(
                "{} may run at once, which is {}; {}",
                counted(running, "request"),
                counted(running.saturating_mul(facts.rows_per_request), "row"),
                room.sentence()
            ),
            "bound the running requests, or make room for them".to_string(),
            vec![
                format!("--max-running-requests {}", room.requests),
                format!(
                    "or {NAME}={}",
                    running
                        .saturating_mul(facts.rows_per_request)
                        .saturating_mul(shape.hidden)
                ),
            ],
            "sglang#34528; SGLang sets 48 with a speculative algorithm",
        ));
    }
}

/// vLLM's captured sizes are tokens.
fn captures(invocation: &Invocation, facts: &Facts) -> Option<LaunchProblem> {
    let names = [
        "--compilation-config.cudagraph_capture_sizes".to_string(),
        "--cudagraph-capture-sizes".to_string(),
    ];
    let list = invocation.value(&names)?;
    let largest = list
        .trim_matches(['[', ']'])
        .split(',')
        .filter_map(|n| n.trim().parse::<u64>().ok())
        .max()?;
    let batch = facts.batch?;
    let needed = batch.checked_mul(facts.rows_per_request)?;
    (largest < needed).then(|| {
        problem(
            "captures-count-tokens",
            Severity::Warning,
            format!(
                "captured sizes are tokens: the largest graph has {}, and {} of {} {} {needed}; steps past {} run without a graph, and pcie_ipc has no room for them",
                counted(largest, "row"),
                counted(batch, "request"),
                counted(facts.rows_per_request, "row"),
                if batch == 1 { "has" } else { "have" },
                counted(largest / facts.rows_per_request.max(1), "request")
            ),
            "let the list end at requests x (drafts + 1)".to_string(),
            vec![format!(
                "--compilation-config '{{\"cudagraph_capture_sizes\":[...,{needed}]}}'"
            )],
            "vLLM source, cudagraph_capture_sizes",
        )
    })
}
