//! The decision: which backend, what is refused and why, and the settings that follow.

use super::{
    caveats,
    group::{Group, Peers},
    request::{AdviseError, Request, shape},
    sizing::{PCIE_IPC_WORLDS, capture_sizes, grouped, sizing},
};
use crate::{
    diagnose::{Evidence, consumers as judge_consumers, rung_reached},
    model::{
        finding::{Consumer, ConsumerState, Recommendation, Setting, Sizing},
        pair::GpuIndex,
    },
    profile::{AllocationRule, Backend, Condition, EngineProfile, Profiles, Switch, SwitchKind},
};

/// What a backend is weighed against.
struct Weighing<'a> {
    evidence: Option<&'a Evidence<'a>>,
    consumers: &'a [Consumer],
    group: &'a Group,
    sizing: Option<&'a Sizing>,
}

/// Launch settings of `request.engine`. Without evidence, and wherever pairs are not proven, the answer keeps to the host
/// path and says so. With evidence the consumers are judged again for the group asked for: a veto on a larger group is none
/// on this one. `consumers` counts where there is no evidence.
///
/// # Errors
/// Unknown engine, model, method or type (with the names that would do), and numbers that mean nothing.
pub fn recommend(
    evidence: Option<&Evidence>,
    consumers: &[Consumer],
    request: &Request,
    profiles: &Profiles,
) -> Result<Recommendation, AdviseError> {
    let engine = profiles
        .engine(&request.engine)
        .ok_or_else(|| AdviseError::UnknownEngine {
            name: request.engine.clone(),
            known: profiles
                .engines
                .iter()
                .map(|e| e.id.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })?;
    let shape = shape(request, profiles)?;
    let group = Group::of(request, evidence)?;
    let sizing = match &shape {
        Some(shape) => Some(sizing(
            engine,
            request,
            shape,
            group.is_blackwell_datacenter(),
        )?),
        None => None,
    };
    let mut answer = Recommendation {
        engine: engine.id.clone(),
        backend: String::new(),
        backend_name: String::new(),
        flags: Vec::new(),
        environment: Vec::new(),
        unset: Vec::new(),
        sizing,
        refused: Vec::new(),
        caveats: shape.map(|s| s.caveats).unwrap_or_default(),
    };
    if let Some(why) = &group.unfit {
        // Nothing to paste: whatever is launched here reads wrong bytes.
        answer.backend = "none".to_string();
        answer.backend_name = format!("do not serve on this group: {why}");
        let every = engine.backends.iter();
        answer.refused = every.map(|b| (b.id.clone(), why.clone())).collect();
        caveats::warn(engine, evidence, &group, &mut answer);
        return Ok(answer);
    }
    place(engine, request, &group, &mut answer);
    if group.world() == 1 {
        answer.backend = "none".to_string();
        answer.backend_name = "no all-reduce: one GPU".to_string();
        return Ok(answer);
    }
    let own = evidence.map(|e| judge_consumers(e, &group.gpus));
    let consumers = own.as_deref().unwrap_or(consumers);
    choose(engine, evidence, consumers, &group, &mut answer);
    size(engine, request, &group, &mut answer);
    caveats::warn(engine, evidence, &group, &mut answer);
    Ok(answer)
}

/// Group size and members.
fn place(engine: &EngineProfile, request: &Request, group: &Group, answer: &mut Recommendation) {
    answer.flags.push(Setting {
        name: engine.tp_flag.clone(),
        value: Some(group.world().to_string()),
        because: "the group that was asked for".to_string(),
        basis: "--tp".to_string(),
    });
    if request.group.is_some() {
        let members: Vec<String> = group.gpus.iter().map(GpuIndex::to_string).collect();
        for (name, value, because) in [
            (
                "CUDA_DEVICE_ORDER",
                "PCI_BUS_ID".to_string(),
                "CUDA's own order is fastest first; indices here are in PCI order",
            ),
            (
                "CUDA_VISIBLE_DEVICES",
                members.join(","),
                "the members of the group, in rank order, visible to all ranks",
            ),
        ] {
            answer.environment.push(Setting {
                name: name.to_string(),
                value: Some(value),
                because: because.to_string(),
                basis: "the group as given".to_string(),
            });
        }
    }
}

fn choose(
    engine: &EngineProfile,
    evidence: Option<&Evidence>,
    consumers: &[Consumer],
    group: &Group,
    answer: &mut Recommendation,
) {
    let weighing = Weighing {
        evidence,
        consumers,
        group,
        sizing: answer.sizing.as_ref(),
    };
    let mut backends: Vec<&Backend> = engine.backends.iter().collect();
    backends.sort_by_key(|b| b.order);
    let mut chosen: Option<&Backend> = None;
    let mut refused = Vec::new();
    for backend in backends {
        let reason = match (weighing.refusal(backend), chosen) {
            (Some(reason), _) => reason,
            (None, Some(first)) => format!("{} comes first", first.name),
            // An opt-in backend is taken only where records prove the rungs that it asks for; without such a demand
            // nothing says that it is better than what the engine does by itself.
            (None, None) if !backend.by_default && !demands_proof(backend) => {
                "can be used here, but is off unless asked for, and nothing measured says that it is faster"
                    .to_string()
            }
            (None, None) => {
                chosen = Some(backend);
                continue;
            }
        };
        refused.push((backend.id.clone(), reason));
    }
    // check_engine demands a default backend without preconditions, so one is always chosen.
    if let Some(backend) = chosen {
        answer.backend = backend.id.clone();
        answer.backend_name = backend.name.clone();
        if !backend.by_default {
            let basis = "every rung it asks for is proven on every pair of the group";
            add(answer, &backend.turn_on, basis);
        }
    }
    answer.refused = refused;
    if answer.backend == "nccl" && !matches!(group.peers, Peers::Proven(_)) {
        answer.backend_name = "NCCL through shared host memory".to_string();
    }
    match &group.peers {
        Peers::Failed(seen) => add(answer, &engine.peer_off, seen),
        Peers::Unproven(missing) => add(answer, &engine.peer_off, missing),
        Peers::Refused(_) => {}
        Peers::Proven(rung) => {
            if group.patched {
                let basis = "GeForce with PCIe peer access: a patched driver (club-3090#922)";
                for backend in engine.backends.iter().filter(|b| is_custom_kernel(b)) {
                    add(answer, &backend.turn_off, basis);
                }
            }
            if group.world() > 2 && group.full_nvlink != Some(true) && group.crosses_root {
                answer.environment.push(Setting {
                    name: "NCCL_P2P_LEVEL".to_string(),
                    value: Some("SYS".to_string()),
                    because: "NCCL by itself uses P2P up to a PCIe switch only, and shared host memory across the CPU; these pairs are proven".to_string(),
                    basis: format!("records: every pair of the group intact up to rung {rung}; NCCL 2.30 source, graph/paths"),
                });
            }
        }
    }
}

fn demands_proof(backend: &Backend) -> bool {
    backend
        .when
        .iter()
        .any(|c| matches!(c, Condition::Proven(_)))
}

fn is_custom_kernel(backend: &Backend) -> bool {
    backend.consumer.as_deref() == Some("custom-all-reduce")
}

/// Adds switches; the same flag is needed by several backends and is printed once.
fn add(answer: &mut Recommendation, switches: &[Switch], seen: &str) {
    for switch in switches {
        let list = match switch.kind {
            SwitchKind::Flag => &mut answer.flags,
            SwitchKind::Environment => &mut answer.environment,
            SwitchKind::Unset => &mut answer.unset,
        };
        if list.iter().any(|s| s.name == switch.name) {
            continue;
        }
        list.push(Setting {
            name: switch.name.clone(),
            value: switch.value.clone(),
            because: switch.because.clone(),
            basis: format!("{seen}; {}", switch.source),
        });
    }
}

impl Weighing<'_> {
    /// Why `backend` cannot be built upon here; `None` when nothing speaks against it.
    fn refusal(&self, backend: &Backend) -> Option<String> {
        if backend.peer {
            match &self.group.peers {
                Peers::Failed(seen) => return Some(format!("peers of this group failed: {seen}")),
                Peers::Refused(who) => return Some(format!("no peer access: {who}")),
                Peers::Unproven(missing) => return Some(self.unproven(backend, missing)),
                Peers::Proven(_) => {}
            }
            if self.group.patched && is_custom_kernel(backend) {
                return Some("GeForce with PCIe peer access runs a patched driver; on such hosts copies were right and this kernel returned garbage".to_string());
            }
            let vetoed = backend.consumer.as_ref().and_then(|id| {
                self.consumers
                    .iter()
                    .find(|c| c.id == *id && c.state == ConsumerState::Vetoed)
            });
            if let Some(consumer) = vetoed {
                return Some(consumer.sentence.clone());
            }
        }
        let first = backend.when.iter().find_map(|c| self.unmet(c));
        let open = backend
            .when
            .iter()
            .all(|c| matches!(c, Condition::Proven(_)) || self.unmet(c).is_none());
        match first {
            Some(reason) if open => Some(format!("candidate, unproven: {reason}")),
            Some(reason) => Some(reason),
            None => self.over_cap(backend),
        }
    }

    fn unproven(&self, backend: &Backend, missing: &str) -> String {
        let other = backend
            .when
            .iter()
            .filter(|c| !matches!(c, Condition::Proven(_) | Condition::PeerAccess(_)))
            .find_map(|c| {
                self.unmet(c)
                    .filter(|_| self.evidence.is_some() || is_arithmetic(c))
            });
        other.unwrap_or_else(|| format!("unproven: {missing}"))
    }

    fn unmet(&self, condition: &Condition) -> Option<String> {
        let group = self.group;
        match condition {
            Condition::WorldSize(sizes) => (!sizes.contains(&group.world())).then(|| {
                format!(
                    "not covered: it exists for groups of {}",
                    sizes
                        .iter()
                        .map(u32::to_string)
                        .collect::<Vec<_>>()
                        .join(", ")
                )
            }),
            Condition::FullNvlinkAbove(limit) => (group.world() > *limit
                && group.full_nvlink != Some(true))
            .then(|| match group.full_nvlink {
                Some(_) => format!(
                    "groups of more than {limit} need NVLink on every pair, and this one has not"
                ),
                None => format!(
                    "groups of more than {limit} need NVLink on every pair, which is not known here"
                ),
            }),
            Condition::Fabric(classes) => (!classes.contains(&group.fabric))
                .then(|| format!("not made for this fabric ({})", group.fabric)),
            Condition::ComputeCapability(allowed) => {
                if group.compute.len() < group.gpus.len() {
                    return Some("compute capability is not known".to_string());
                }
                group
                    .compute
                    .iter()
                    .find(|c| !allowed.contains(c))
                    .map(|(major, minor)| {
                        format!("no table for compute capability {major}.{minor}")
                    })
            }
            Condition::Dtype(types) => {
                let own = &self.sizing?.dtype;
                (!types.iter().any(|t| t.name() == own)).then(|| format!("not for {own}"))
            }
            Condition::PayloadAtLeast(bytes) => {
                let payload = self.sizing?.payload_bytes;
                (payload < *bytes).then(|| {
                    format!(
                        "for payloads from {} bytes; a full decode step has {}",
                        grouped(*bytes),
                        grouped(payload)
                    )
                })
            }
            Condition::PayloadAtMost(bytes) => {
                let payload = self.sizing?.payload_bytes;
                (payload > *bytes).then(|| {
                    format!(
                        "for payloads up to {} bytes; a full decode step has {}",
                        grouped(*bytes),
                        grouped(payload)
                    )
                })
            }
            Condition::ElementsMultipleOf(unit) => {
                let elements = self.sizing?.needed_elements;
                (*unit > 0 && elements % unit != 0)
                    .then(|| format!("{elements} elements are no multiple of {unit}"))
            }
            Condition::PeerAccess(wanted) => {
                let has = !matches!(group.peers, Peers::Refused(_));
                (has != *wanted).then(|| {
                    if *wanted {
                        "no peer access".to_string()
                    } else {
                        "for groups without peer access".to_string()
                    }
                })
            }
            Condition::Proven(rung) => {
                let proven = self.evidence.is_some_and(|e| {
                    !group.pairs.is_empty()
                        && group
                            .pairs
                            .iter()
                            .all(|p| rung_reached(e, *p).is_some_and(|r| r >= *rung))
                });
                (!proven).then(|| format!("needs rung {rung} proven on every pair"))
            }
            Condition::EngineOption(_) => None,
        }
    }

    fn over_cap(&self, backend: &Backend) -> Option<String> {
        if backend.caps.is_empty() {
            return None;
        }
        let world = self.group.world();
        let row = backend.caps.iter().find(|cap| {
            cap.world.contains(&world)
                && (cap.compute.is_empty()
                    || (!self.group.compute.is_empty()
                        && self.group.compute.iter().all(|c| cap.compute.contains(c))))
        });
        let Some(cap) = row else {
            return Some("no size table for this group size and compute capability".to_string());
        };
        let payload = self.sizing?.payload_bytes;
        (payload > cap.max_bytes).then(|| {
            format!(
                "takes up to {} bytes here; a full decode step has {}",
                grouped(cap.max_bytes),
                grouped(payload)
            )
        })
    }
}

/// Conditions that need no host to be judged.
fn is_arithmetic(condition: &Condition) -> bool {
    matches!(
        condition,
        Condition::WorldSize(_)
            | Condition::Dtype(_)
            | Condition::PayloadAtLeast(_)
            | Condition::PayloadAtMost(_)
            | Condition::ElementsMultipleOf(_)
    )
}

/// The flags that make needed and allocated elements meet.
fn size(engine: &EngineProfile, request: &Request, group: &Group, answer: &mut Recommendation) {
    let uses_workspace = engine
        .backends
        .iter()
        .any(|b| b.id == answer.backend && b.workspace.is_some());
    let Some(sizing) = answer.sizing.as_mut() else {
        return;
    };
    let needed = sizing.needed_elements;
    let basis = format!(
        "{} requests x {} rows x {} = {} elements ({})",
        sizing.batch,
        sizing.rows_per_request,
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
    match engine.allocation {
        AllocationRule::CapturedRequests => {
            answer.flags.push(setting(
                "--cuda-graph-max-bs-decode",
                request.batch.to_string(),
                "counts requests, not rows; the workspace is sized from it",
            ));
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
                    "SGLANG_PCIE_IPC_MAX_NUMEL",
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
                answer.flags.push(setting(
                    "--compilation-config",
                    value,
                    if short {
                        "counts rows (tokens), not requests; by itself vLLM captures less than a full decode step"
                    } else {
                        "counts rows (tokens), not requests; by itself vLLM makes room for more than a decode step, and room costs time at small batch"
                    },
                ));
            }
        }
    }
    if sizing.workspace_bytes_per_rank.is_none() && !PCIE_IPC_WORLDS.contains(&group.world()) {
        answer.caveats.push(format!(
            "TP {} is not covered by FlashInfer's PCIe kernels (2, 4 and 8 GPUs); the size is not rounded to one of them",
            group.world()
        ));
    }
}
