//! Engines that continue another engine's profile: a fork states what differs, and takes the rest as it stands there.

use super::{EngineProfile, Launch};

/// A profile that continues one which does not exist, or itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    /// The profile.
    pub(super) engine: String,
    /// What it continues.
    pub(super) base: String,
    /// What is wrong and what is allowed.
    pub(super) message: String,
}

/// Every engine of `raw` with what it continues filled in, in order of id.
pub(super) fn resolve(raw: &[EngineProfile]) -> Result<Vec<EngineProfile>, Broken> {
    let mut all = Vec::new();
    for engine in raw {
        let mut chain = vec![engine];
        while let Some(base) = chain.last().and_then(|e| e.inherits.as_ref()) {
            let broken = |message: String| Broken {
                engine: engine.id.clone(),
                base: base.clone(),
                message,
            };
            if chain.iter().any(|seen| seen.id == *base) {
                return Err(broken(format!("'{base}' continues itself")));
            }
            let Some(found) = raw.iter().find(|e| e.id == *base) else {
                return Err(broken(format!(
                    "there is no engine '{base}' to continue (allowed: {})",
                    ids(raw)
                )));
            };
            chain.push(found);
        }
        let mut whole = chain
            .iter()
            .rev()
            .fold(None, |below: Option<EngineProfile>, own| {
                Some(match below {
                    None => (*own).clone(),
                    Some(below) => laid_over(below, own),
                })
            })
            .unwrap_or_else(|| engine.clone());
        for other in &whole.traps_of.clone() {
            let Some(found) = raw.iter().find(|e| e.id == *other) else {
                return Err(Broken {
                    engine: engine.id.clone(),
                    base: other.clone(),
                    message: format!(
                        "there is no engine '{other}' to take traps of (allowed: {})",
                        ids(raw)
                    ),
                });
            };
            for way in &found.ways {
                if !whole.ways.iter().any(|own| own.id == way.id) {
                    whole.ways.push(way.clone());
                }
            }
            for trap in &found.traps {
                if !whole.traps.iter().any(|own| own.id == trap.id) {
                    whole.traps.push(trap.clone());
                }
            }
        }
        all.push(whole);
    }
    all.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(all)
}

fn ids(raw: &[EngineProfile]) -> String {
    let mut ids: Vec<&str> = raw.iter().map(|e| e.id.as_str()).collect();
    ids.sort_unstable();
    ids.join(", ")
}

fn laid_over(below: EngineProfile, own: &EngineProfile) -> EngineProfile {
    let mut whole = own.clone();
    whole.tp_flag = own.tp_flag.clone().or(below.tp_flag);
    whole.speculation = own.speculation.clone().or(below.speculation);
    whole.allocation = own.allocation.or(below.allocation);
    whole.launch = match (own.launch.clone(), below.launch) {
        (Some(own), Some(below)) => Some(launch_over(below, own)),
        (own, below) => own.or(below),
    };
    whole.p2p_cache = own.p2p_cache.clone().or(below.p2p_cache);
    whole.traps_of = merged(below.traps_of, &own.traps_of, |a, b| a == b);
    whole.peer_off = merged(below.peer_off, &own.peer_off, |a, b| {
        a.kind == b.kind && a.name == b.name
    });
    whole.backends = merged(below.backends, &own.backends, |a, b| a.id == b.id);
    whole.caveats = merged(below.caveats, &own.caveats, |a, b| a == b);
    whole.practices = merged(below.practices, &own.practices, |a, b| a.what == b.what);
    whole.traps = merged(below.traps, &own.traps, |a, b| a.id == b.id);
    whole.ways = merged(below.ways, &own.ways, |a, b| a.id == b.id);
    whole.tp_divides_heads = own.tp_divides_heads || below.tp_divides_heads;
    whole
}

/// The commands are the fork's own; of flags, a list that it does not state is the base's.
fn launch_over(below: Launch, own: Launch) -> Launch {
    let either = |own: Vec<String>, below: Vec<String>| if own.is_empty() { below } else { own };
    Launch {
        commands: own.commands,
        images: own.images,
        variables: own.variables,
        tp: either(own.tp, below.tp),
        tp_every_visible: either(own.tp_every_visible, below.tp_every_visible),
        data_parallel: either(own.data_parallel, below.data_parallel),
        expert_parallel: either(own.expert_parallel, below.expert_parallel),
        model: either(own.model, below.model),
        batch: either(own.batch, below.batch),
        running: either(own.running, below.running),
        drafts: either(own.drafts, below.drafts),
        method: either(own.method, below.method),
        dtype: either(own.dtype, below.dtype),
        eager: either(own.eager, below.eager),
        times: if own.times.is_empty() {
            below.times
        } else {
            own.times
        },
        every_visible: own.every_visible || below.every_visible,
        one_gpu: if own.one_gpu.is_empty() {
            below.one_gpu
        } else {
            own.one_gpu
        },
        devices: either(own.devices, below.devices),
        local_replicas: either(own.local_replicas, below.local_replicas),
        first_gpu: either(own.first_gpu, below.first_gpu),
        gpu_step: either(own.gpu_step, below.gpu_step),
        rank_launchers: either(own.rank_launchers, below.rank_launchers),
        hosts: either(own.hosts, below.hosts),
        files: either(own.files, below.files),
        program: own.program || below.program,
    }
}

/// Those of `below` that have no fellow in `own`, in their order, then `own`.
fn merged<T: Clone>(below: Vec<T>, own: &[T], same: impl Fn(&T, &T) -> bool) -> Vec<T> {
    let mut all: Vec<T> = below
        .into_iter()
        .filter(|old| !own.iter().any(|new| same(old, new)))
        .collect();
    all.extend_from_slice(own);
    all
}
