//! Flags and variables: switches of profiles, and the numbers that make needed and allocated sizes meet.

use super::{
    admission::counted,
    choose::NCCL_LEVEL,
    conditions::{Met, Weighing},
    group::{Group, Peers},
    request::Request,
    sizing::{capture_sizes, grouped},
    workspace::PCIE_IPC_WORLDS,
};
use crate::{
    model::finding::{Recommendation, Setting},
    profile::{
        AllocationRule, EngineProfile, Profiles, Switch, SwitchKind, Version, WorkspaceFormula,
    },
};
use serde_json::Value;

/// Set by this code, not by a profile: the size of SGLang's workspace.
const SGLANG_SIZE: &str = "SGLANG_PCIE_IPC_MAX_NUMEL";

/// Variables that an answer of this tool to an earlier question may have set, about any engine and whatever was proven then,
/// and that `answer` neither sets nor unsets: every variable by which a profile switches something off, those by which one
/// that is advised is switched on, and those of this code.
pub(super) fn left_over(profiles: &Profiles, answer: &Recommendation) -> Vec<Setting> {
    let off = profiles.engines.iter().flat_map(|e| {
        let own = e.backends.iter().flat_map(|b| &b.turn_off);
        e.peer_off.iter().chain(own)
    });
    let advised = |e: &'_ EngineProfile| -> Vec<Switch> {
        let own = e.backends.iter().filter(|b| b.is_advised());
        own.flat_map(|b| b.turn_on.clone()).collect()
    };
    let on: Vec<Switch> = profiles.engines.iter().flat_map(advised).collect();
    let set = |s: &&Switch| s.kind == SwitchKind::Environment;
    let stated = off.chain(&on).filter(set).map(|s| {
        let was = s.value.as_deref().unwrap_or_default();
        let because = format!(
            "an earlier answer may have set it to {was} ({}), and this one does not ask for it",
            s.because
        );
        (s.name.as_str(), because, s.source.as_str())
    });
    let own = [NCCL_LEVEL, SGLANG_SIZE].map(|name| {
        let because =
            "an earlier answer may have set it, and this one does not ask for it".to_string();
        (name, because, "earlier settings of this tool")
    });
    let mut all: Vec<Setting> = Vec::new();
    for (name, because, source) in stated.chain(own) {
        let known = answer.environment.iter().chain(&answer.unset).chain(&all);
        if known.into_iter().any(|s| s.name == name) {
            continue;
        }
        all.push(Setting {
            name: name.to_string(),
            value: None,
            because,
            basis: source.to_string(),
        });
    }
    all
}

/// Adds switches that are needed here. The same one is needed by several backends and is printed once.
pub(super) fn add(
    weighing: &Weighing,
    answer: &mut Recommendation,
    switches: &[Switch],
    seen: &str,
) {
    for switch in switches {
        // What is not known of the host does not keep a harmless variable out.
        let needed = switch.when.iter().all(|c| match weighing.met(c) {
            Met::Yes => true,
            Met::No(_) => false,
            Met::Unknown(_) | Met::Untold(_) => switch.kind == SwitchKind::Environment,
        });
        if !needed {
            continue;
        }
        let list = match switch.kind {
            SwitchKind::Flag => &mut answer.flags,
            SwitchKind::Environment => &mut answer.environment,
            SwitchKind::Unset => &mut answer.unset,
            SwitchKind::Omit => &mut answer.omit,
            SwitchKind::Configuration => &mut answer.configuration,
        };
        put(
            list,
            Setting {
                name: switch.name.clone(),
                value: switch.value.clone(),
                because: switch.because.clone(),
                basis: format!("{seen}; {}", switch.source),
            },
        );
    }
}

/// Adds `setting` unless one of its name is there. Two JSON objects for one flag become one: the engine would take the
/// last and forget the first.
fn put(list: &mut Vec<Setting>, setting: Setting) {
    let Some(there) = list.iter_mut().find(|s| s.name == setting.name) else {
        list.push(setting);
        return;
    };
    let object = |s: &Setting| match serde_json::from_str(s.value.as_deref()?).ok()? {
        Value::Object(map) => Some(map),
        _ => None,
    };
    if let (Some(mut whole), Some(more)) = (object(there), object(&setting)) {
        for (key, value) in more {
            whole.entry(key).or_insert(value);
        }
        there.value = Some(Value::Object(whole).to_string());
        there.because = format!("{}; {}", there.because, setting.because);
        there.basis = format!("{}; {}", there.basis, setting.basis);
    }
}

/// The flags that make needed and allocated elements meet.
pub(super) fn size(
    engine: &EngineProfile,
    request: &Request,
    group: &Group,
    answer: &mut Recommendation,
) {
    let uses_workspace = engine
        .backends
        .iter()
        .filter(|b| b.id == answer.backend)
        .any(|b| matches!(b.workspace, Some(WorkspaceFormula::FlashinferPcieIpc(_))));
    let Some(sizing) = answer.sizing.as_mut() else {
        return;
    };
    let Some(allocation) = engine.allocation else {
        return;
    };
    let needed = sizing.needed_elements;
    let basis = format!(
        "{} x {} x {} = {} elements ({})",
        counted(sizing.batch, "request"),
        counted(sizing.rows_per_request, "row"),
        sizing.hidden,
        grouped(needed),
        sizing.rows_reason
    );
    let setting = |name: &str, value: String, because: &str| Setting {
        name: name.to_string(),
        value: Some(value),
        because: because.to_string(),
        basis: basis.clone(),
    };
    // Settings of the workspace itself are printed where it may come to be used: they are noise beside NVLink, and
    // misleading beside a ban on peers.
    let workspace_possible = PCIE_IPC_WORLDS.contains(&group.world())
        && group.full_nvlink != Some(true)
        && !matches!(group.peers, Peers::Failed(_) | Peers::Refused(_));
    match allocation {
        AllocationRule::CapturedRequests => {
            let old = request.engine_version.as_ref().is_some_and(|v| {
                "0.5.15"
                    .parse::<Version>()
                    .is_ok_and(|renamed| *v < renamed)
            });
            answer.flags.push(setting(
                if old {
                    "--cuda-graph-max-bs"
                } else {
                    "--cuda-graph-max-bs-decode"
                },
                request.batch.to_string(),
                "counts requests, not rows; the workspace is sized from it",
            ));
            if sizing.rows_per_request > 1 {
                answer.flags.push(setting(
                    "--max-running-requests",
                    request.batch.to_string(),
                    "with a speculative algorithm and this flag unset SGLang sets 48, and every request past the captured ones sends the step to NCCL",
                ));
            }
            sizing.engine_reason.push_str(&format!(
                "; SGLANG_PCIE_IPC_MAX_NUMEL={needed} makes them meet in any case"
            ));
            // A size beside the order to leave its switch unset would be read as a contradiction.
            let switched_off = answer
                .unset
                .iter()
                .any(|s| s.name == "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE");
            if workspace_possible && !switched_off {
                answer.environment.push(setting(
                    SGLANG_SIZE,
                    needed.to_string(),
                    "decode size, not prefill size: larger tensors go to NCCL, and a larger workspace costs time at small batch. Read only with SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1",
                ));
            }
        }
        AllocationRule::CapturedTokens => {
            answer.flags.push(setting(
                "--max-num-seqs",
                request.batch.to_string(),
                "bounds the requests of a decode step; captured sizes follow from it",
            ));
            // Launched call by call nothing is captured.
            if request.eager {
                return kernels_beyond(engine, group, answer);
            }
            let sizes: Vec<String> = capture_sizes(request.batch, sizing.rows_per_request)
                .iter()
                .map(u64::to_string)
                .collect();
            let value = format!("{{\"cudagraph_capture_sizes\":[{}]}}", sizes.join(","));
            let short = sizing.engine_elements.is_some_and(|own| own < needed);
            sizing
                .engine_reason
                .push_str(&format!("; --compilation-config '{value}' makes them meet"));
            if short || (uses_workspace && sizing.engine_elements != Some(needed)) {
                let flag = setting(
                    "--compilation-config",
                    value,
                    if short {
                        "counts rows (tokens), not requests; by itself vLLM captures less than a full decode step"
                    } else {
                        "counts rows (tokens), not requests; by itself vLLM makes room for more than a decode step, and room costs time at small batch"
                    },
                );
                put(&mut answer.flags, flag);
            }
        }
    }
    kernels_beyond(engine, group, answer);
}

/// Says where the group has no size that FlashInfer's PCIe kernels are made for.
fn kernels_beyond(engine: &EngineProfile, group: &Group, answer: &mut Recommendation) {
    let has_kernels = engine
        .backends
        .iter()
        .any(|b| matches!(b.workspace, Some(WorkspaceFormula::FlashinferPcieIpc(_))));
    if has_kernels && !PCIE_IPC_WORLDS.contains(&group.world()) {
        answer.caveats.push(format!(
            "TP {} is not covered by FlashInfer's PCIe kernels (2, 4 and 8 GPUs); the size is not rounded to one of them",
            group.world()
        ));
    }
}
