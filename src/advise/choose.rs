//! The decision: which backends would run, in the engine's own order, which is the choice, and the settings that follow.

use super::{
    caveats,
    conditions::{Refusal, Weighing, is_custom_kernel, is_peer_kernel, is_proven},
    group::{Group, NCCL_P2P, Peers, pools},
    request::{AdviseError, Request, Shape, TYPE_UNKNOWN, is_mixture, shape},
    settings::{add, left_over, size},
    sizing::sizing,
    workspace, worth,
};
use crate::{
    diagnose::{Evidence, consumers_of, rung_reached},
    model::{
        case::Rung,
        finding::{Consumer, ConsumerState, Place, Recommendation, Setting, Standing},
        pair::GpuIndex,
    },
    profile::{Backend, EngineProfile, Moves, Practice, Profiles},
};

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
    let engine = engine_of(request, profiles)?;
    let group = Group::of(request, evidence, pools(engine, &profiles.consumers))?;
    let own = evidence.map(|e| consumers_of(e, &group.gpus, &profiles.consumers));
    let consumers = own.as_deref().unwrap_or(consumers);
    let group = group.used_by(engine, consumers);
    let shape = shape(request, profiles, group.lowest_compute())?;
    if let Some(shape) = &shape {
        heads_divide(engine, request, shape)?;
    }
    let sizing = match &shape {
        Some(shape) => Some(sizing(
            engine,
            request,
            shape,
            group.is_blackwell_datacenter(),
        )?),
        None => None,
    };
    let dtype_forced = shape.as_ref().is_some_and(|s| s.dtype_forced);
    let mut answer = Recommendation {
        engine: engine.id.clone(),
        sizing,
        caveats: shape.map(|s| s.caveats).unwrap_or_default(),
        proven: group.host_path,
        ranks: match evidence {
            Some(_) => group.gpus.clone(),
            None => Vec::new(),
        },
        ..Recommendation::default()
    };
    let mixture = is_mixture(request, profiles);
    if let Some(why) = &group.unfit {
        // Nothing to paste: whatever is launched here reads wrong bytes.
        answer.backend = "none".to_string();
        answer.backend_name = format!("do not serve on this group: {why}");
        let every = engine.backends.iter();
        answer.refused = every.map(|b| (b.id.clone(), why.clone())).collect();
        answer.proven = None;
        caveats::warn(engine, evidence, &group, request, mixture, &mut answer);
        return Ok(answer);
    }
    place(engine, request, evidence, &group, &mut answer);
    if group.world() == 1 {
        answer.backend = "none".to_string();
        answer.backend_name = "no all-reduce: one GPU".to_string();
        answer.proven = Some(Rung::Alone);
        answer.sizing = None;
        answer.caveats.retain(|c| !c.starts_with(TYPE_UNKNOWN));
        let replicas = caveats::replicas(engine, request, mixture);
        answer.caveats.extend(replicas);
        answer.left_over = left_over(profiles, &answer);
        return Ok(answer);
    }
    if dtype_forced && let Some(flag) = engine.launch.as_ref().and_then(|l| l.dtype.first()) {
        answer.flags.push(Setting {
            name: flag.clone(),
            value: Some("float16".to_string()),
            because: "bf16 needs compute capability 8.0".to_string(),
            basis: "compute capability of the group".to_string(),
        });
    }
    let known = answer.sizing.clone();
    let weighing = Weighing {
        evidence,
        consumers,
        group: &group,
        sizing: known.as_ref(),
        request,
    };
    choose(engine, &weighing, &mut answer);
    crossing(engine, &group, &mut answer);
    answer.worth = worth::of(engine, &weighing, &answer);
    size(engine, request, &group, &mut answer);
    caveats::warn(engine, evidence, &group, request, mixture, &mut answer);
    answer.left_over = left_over(profiles, &answer);
    Ok(answer)
}

/// The profile of the engine that is asked about.
pub(super) fn engine_of<'a>(
    request: &Request,
    profiles: &'a Profiles,
) -> Result<&'a EngineProfile, AdviseError> {
    let known = || profiles.engines.iter().map(|e| e.id.as_str());
    profiles
        .engine(&request.engine)
        .ok_or_else(|| AdviseError::UnknownEngine {
            name: request.engine.clone(),
            known: known().collect::<Vec<_>>().join(", "),
        })
}

/// Whether `engine` starts with these heads on so many ranks.
pub(super) fn heads_divide(
    engine: &EngineProfile,
    request: &Request,
    shape: &Shape,
) -> Result<(), AdviseError> {
    let asked = engine.tp_divides_heads && request.data_parallel <= 1;
    match shape.undivided(request.tp).filter(|_| asked) {
        None => Ok(()),
        Some(undivided) => Err(AdviseError::Heads {
            model: shape.label.clone(),
            heads: undivided.heads,
            tp: request.tp,
            engine: engine.name.clone(),
            sizes: undivided.sizes,
        }),
    }
}

/// What crosses the links in place of reductions, where the choice reduces nothing.
fn crossing(engine: &EngineProfile, group: &Group, answer: &mut Recommendation) {
    let Some(backend) = engine.backend(&answer.backend) else {
        return;
    };
    if backend.moves == Moves::Reductions {
        return;
    }
    answer.caveats.retain(|c| !c.starts_with(TYPE_UNKNOWN));
    match (backend.moves, answer.sizing.as_mut()) {
        (Moves::Activations(dtype), Some(sizing)) => sizing.cross(group.world(), dtype),
        (Moves::Copies, Some(_)) => {
            answer.sizing = None;
            answer.caveats.push(format!(
                "no sizes: {} moves what its program copies, and nothing of that follows from a model",
                engine.name
            ));
        }
        _ => {}
    }
}

/// How many GPUs the launch takes in all, where data-parallel replicas take further groups of this host beside the one that is
/// judged.
fn further_groups(engine: &EngineProfile, e: Option<&Evidence>, request: &Request) -> Option<u32> {
    let launch = engine.launch.as_ref()?;
    let mut times = launch.times.iter();
    times.find(|t| t.flags == launch.data_parallel && t.unless.is_empty())?;
    let all = request.tp.checked_mul(request.data_parallel)?;
    (request.data_parallel > 1 && all as usize <= e?.snapshot.gpus.len()).then_some(all)
}

/// Group size and members.
fn place(
    engine: &EngineProfile,
    request: &Request,
    evidence: Option<&Evidence>,
    group: &Group,
    answer: &mut Recommendation,
) {
    if let Some(flag) = &engine.tp_flag {
        answer.flags.push(Setting {
            name: flag.clone(),
            value: Some(group.world().to_string()),
            because: "the group that was asked for".to_string(),
            basis: "--tp".to_string(),
        });
    }
    if evidence.is_none() && !group.given {
        return;
    }
    let members: Vec<String> = group.gpus.iter().map(GpuIndex::to_string).collect();
    let because = if group.reordered {
        "the members of the group, in rank order, islands together, visible to all ranks"
    } else {
        "the members of the group, in rank order, visible to all ranks"
    };
    let mut settings = vec![(
        "CUDA_DEVICE_ORDER",
        "PCI_BUS_ID".to_string(),
        "CUDA's own order is fastest first; indices here are in PCI order",
    )];
    match further_groups(engine, evidence, request) {
        None => settings.push(("CUDA_VISIBLE_DEVICES", members.join(","), because)),
        Some(all) => answer.caveats.push(format!(
            "{} data-parallel replicas take {all} GPUs: this is judged for one group, GPUs {}, and CUDA_VISIBLE_DEVICES is left to you, because the launch must see all of them; ask again with --gpus for each of the other groups",
            request.data_parallel,
            members.join(", ")
        )),
    }
    for (name, value, because) in settings {
        answer.environment.push(Setting {
            name: name.to_string(),
            value: Some(value),
            because: because.to_string(),
            basis: if group.given {
                "the group as given".to_string()
            } else {
                "paths between the GPUs, as read".to_string()
            },
        });
    }
}

fn choose(engine: &EngineProfile, weighing: &Weighing, answer: &mut Recommendation) {
    let group = weighing.group;
    let mut backends: Vec<&Backend> = engine.backends.iter().collect();
    backends.sort_by_key(|b| b.order);
    let mut chosen: Option<&Backend> = None;
    for backend in backends {
        let wanted = backend.by_default || backend.is_advised();
        let (standing, reason) = match (weighing.refusal(backend), chosen) {
            // Takes the smaller steps, and leaves the larger ones to those behind it.
            (Some(refusal @ Refusal::TooLarge(_)), _) if backend.by_default => {
                (Standing::Runs, Some(refusal.into_reason(backend)))
            }
            (Some(refusal @ Refusal::Unproven(_)), _) => {
                (Standing::Possible, Some(refusal.into_reason(backend)))
            }
            (Some(refusal), _) => (Standing::Refused, Some(refusal.into_reason(backend))),
            (None, Some(first)) => {
                let standing = if backend.by_default {
                    Standing::Runs
                } else {
                    Standing::Possible
                };
                (standing, Some(format!("{} comes first", first.name)))
            }
            // An opt-in backend is taken only where records prove the rungs that it asks for; without such a demand
            // nothing says that it is better than what the engine does by itself.
            (None, None) if !wanted => (
                Standing::Possible,
                Some(
                    "can be used here, but is off unless asked for, and nothing measured says that it is faster"
                        .to_string(),
                ),
            ),
            (None, None) => {
                chosen = Some(backend);
                (Standing::Chosen, None)
            }
        };
        answer
            .order
            .push(entry(weighing, backend, standing, reason.as_deref()));
        if let Some(reason) = reason {
            answer.refused.push((backend.id.clone(), reason));
        }
    }
    // The loader demands a default backend without preconditions, so one is always chosen.
    if let Some(backend) = chosen {
        answer.backend = backend.id.clone();
        answer.backend_name = backend.name.clone();
        if !backend.by_default {
            let basis = "every rung it asks for is proven on every pair of the group";
            add(weighing, answer, &backend.turn_on, basis);
        }
        let assumed = weighing.assumptions(backend);
        if !assumed.is_empty() {
            answer
                .caveats
                .push(format!("{} asks for: {}", backend.name, assumed.join("; ")));
        }
    }
    practices(engine, answer);
    let through_host = !matches!(group.peers, Peers::Proven(_));
    if through_host && answer.backend == "nccl" {
        answer.backend_name = "NCCL through shared host memory".to_string();
    }
    match &group.peers {
        Peers::Failed(seen) => {
            add(weighing, answer, &engine.peer_off, seen);
            other_ways(engine, answer);
        }
        Peers::Unproven(missing) => add(weighing, answer, &engine.peer_off, missing),
        Peers::Refused(_) => {}
        Peers::Proven(rung) => {
            answer.proven = Some(*rung);
            proven_peers(engine, weighing, *rung, answer);
        }
    }
}

/// Set by this code, not by a profile: how far NCCL uses peers.
pub(super) const NCCL_LEVEL: &str = "NCCL_P2P_LEVEL";

/// What proven peers still ask for.
fn proven_peers(
    engine: &EngineProfile,
    weighing: &Weighing,
    rung: Rung,
    answer: &mut Recommendation,
) {
    let group = weighing.group;
    if group.patched {
        let basis = "GeForce with PCIe peer access: a patched driver (club-3090#922)";
        for backend in engine.backends.iter().filter(|b| is_custom_kernel(b)) {
            add(weighing, answer, &backend.turn_off, basis);
        }
    }
    if let Some(seen) = &group.staged_kernels {
        // NCCL's kernels load and store, too: its own choice of path is left to it.
        for backend in engine.backends.iter().filter(|b| is_peer_kernel(b)) {
            add(weighing, answer, &backend.turn_off, seen);
        }
    }
    // NCCL may be proven where another default backend is not.
    for backend in engine.backends.iter().filter(|b| b.by_default) {
        if let Some(Refusal::Unproven(missing)) = weighing.refusal(backend) {
            add(weighing, answer, &backend.turn_off, &missing);
        }
    }
    let uses_nccl = engine
        .backends
        .iter()
        .any(|b| b.by_default && b.consumer.as_deref() == Some(NCCL_P2P));
    let across = group.full_nvlink != Some(true) && group.crosses_root;
    if uses_nccl && group.world() > 2 && across && group.staged_kernels.is_none() {
        answer.environment.push(Setting {
            name: NCCL_LEVEL.to_string(),
            value: Some("SYS".to_string()),
            because: "NCCL by itself uses P2P up to a PCIe switch only, and shared host memory across the CPU; these pairs are proven".to_string(),
            basis: format!("records: every pair of the group intact up to rung {rung}; NCCL 2.30 source, graph/paths"),
        });
    }
    for way in engine.ways.iter().filter(|w| w.when.is_empty()) {
        if let Some(what) = way.untested.as_ref().filter(|_| weighing.all(&way.host)) {
            answer
                .caveats
                .push(format!("{} is not tested: {what}", way.name));
        }
    }
    // A consumer of the choice whose own rungs are not all proven is vouched for by less than it needs.
    let first = answer.order.iter().find(|p| p.standing == Standing::Chosen);
    let open = first
        .and_then(|p| engine.backend(&p.backend))
        .and_then(|b| weighing.consumer(b))
        .filter(|c| c.state == ConsumerState::Unproven);
    if let Some(consumer) = open {
        answer.caveats.push(format!(
            "{} is {}. The first path of this engine that is proven in full is the one through host memory: {}",
            consumer.name,
            consumer.sentence,
            engine
                .peer_off
                .iter()
                .filter(|s| weighing.all(&s.when))
                .map(super::told)
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
}

/// What else goes from GPU to GPU once a launch asks for it: no setting above keeps it off.
fn other_ways(engine: &EngineProfile, answer: &mut Recommendation) {
    let asked: Vec<&str> = engine
        .ways
        .iter()
        .filter(|w| !w.when.is_empty() && !w.needs.is_empty())
        .map(|w| w.name.as_str())
        .collect();
    if !asked.is_empty() {
        answer.caveats.push(format!(
            "these go from GPU to GPU, too, and are off unless a launch asks for them: {}. Do not ask for them here; 'peerproof recommend --check' finds them in a launch",
            asked.join("; ")
        ));
    }
}

/// What engine and choice, or a candidate for it, ask of the operator beside flags.
fn practices(engine: &EngineProfile, answer: &mut Recommendation) {
    let near = answer
        .order
        .iter()
        .filter(|p| match p.standing {
            Standing::Chosen => true,
            Standing::Possible => p.because.starts_with("candidate, unproven"),
            Standing::Runs | Standing::Refused => false,
        })
        .filter_map(|p| engine.backend(&p.backend))
        .flat_map(|b| b.practices.iter().map(move |p| (Some(b), p)));
    let all: Vec<Setting> = engine
        .practices
        .iter()
        .map(|p| (None, p))
        .chain(near)
        .map(|(backend, practice)| as_setting(backend, practice))
        .collect();
    answer.practices = all;
}

fn as_setting(backend: Option<&Backend>, practice: &Practice) -> Setting {
    Setting {
        name: practice.what.clone(),
        value: None,
        because: practice.because.clone(),
        basis: match backend {
            Some(backend) => format!("{}; {}", backend.name, practice.source),
            None => practice.source.clone(),
        },
    }
}

fn entry(
    weighing: &Weighing,
    backend: &Backend,
    standing: Standing,
    reason: Option<&str>,
) -> Place {
    let takes_bytes = weighing.cap(backend).map(|cap| cap.max_bytes);
    let sizing = weighing.sizing;
    let row_bytes = sizing.and_then(|s| s.payload_bytes.checked_div(s.rows));
    let because = match reason {
        Some(reason) => reason.to_string(),
        None if backend.multicast => format!(
            "{}; its multicast is tested by no rung",
            proof(weighing, backend)
        ),
        None => proof(weighing, backend),
    };
    let running = matches!(
        standing,
        Standing::Chosen | Standing::Runs | Standing::Possible
    );
    Place {
        backend: backend.id.clone(),
        name: backend.name.clone(),
        standing,
        takes_bytes,
        takes_rows: takes_bytes
            .zip(row_bytes)
            .and_then(|(bytes, row)| bytes.checked_div(row)),
        workspace_bytes: backend.workspace.filter(|_| running).and_then(|formula| {
            workspace::bytes(
                formula,
                weighing.group.world(),
                sizing.map(|s| s.needed_elements),
                takes_bytes,
            )
        }),
        because,
    }
}

/// What is proven of a backend that nothing speaks against.
fn proof(weighing: &Weighing, backend: &Backend) -> String {
    match (
        backend.peer || matches!(weighing.group.peers, Peers::Proven(_)),
        weighing.consumer(backend),
    ) {
        (true, Some(consumer)) if is_proven(consumer) => {
            format!("{}: {}", consumer.name, consumer.sentence)
        }
        _ => weighing.host_path_proof(),
    }
}

impl Weighing<'_> {
    /// What is proven of the path that a backend without peers of its own takes.
    fn host_path_proof(&self) -> String {
        match (&self.group.peers, self.group.host_path) {
            (Peers::Proven(rung), _) => {
                format!("every pair of the group is intact up to rung {rung}")
            }
            (_, Some(rung)) => {
                format!("bytes through host memory are intact on every pair (rung {rung})")
            }
            (_, None) => "nothing was tried on this group".to_string(),
        }
    }
}

/// The rung up to which every pair is intact along the host path.
pub(super) fn host_path(e: &Evidence, group: &[crate::model::pair::OrderedPair]) -> Option<Rung> {
    let all = !group.is_empty()
        && group
            .iter()
            .all(|p| rung_reached(e, *p).is_some_and(|r| r >= Rung::Staged));
    all.then_some(Rung::Staged)
}
