//! What a reader must know before trusting a recommendation: what was not proven, and the traps that this host and the
//! operator's environment hold.

use super::{
    group::{Group, Peers},
    request::Request,
};
use crate::{
    diagnose::Evidence,
    model::{case::Rung, finding::Recommendation},
    profile::{Condition, EngineProfile},
};

/// What a reader must know before trusting the answer.
pub(super) fn warn(
    engine: &EngineProfile,
    evidence: Option<&Evidence>,
    group: &Group,
    request: &Request,
    mixture: Option<bool>,
    answer: &mut Recommendation,
) {
    let mut say = Vec::new();
    match &group.peers {
        // The headline says it, and there are no settings to explain.
        _ if group.unfit.is_some() => {}
        Peers::Failed(seen) => say.push(format!("peers of this group are not to be used: {seen}. NCCL_P2P_DISABLE=1 alone is not enough; the settings belong together")),
        Peers::Unproven(missing) => say.push(format!(
            "peers are unproven ({missing}), so this keeps to the host path, the slow and safe one{}; run 'peerproof qualify' and ask again with '--from REPORT'",
            match (evidence, group.host_path) {
                (Some(_), None) => ", and the host path is not proven either: nothing here is",
                _ => "",
            }
        )),
        Peers::Refused(who) => say.push(format!(
            "no peer access ({who}); bytes go through shared host memory: in a container give --ipc=host or --shm-size=1g"
        )),
        Peers::Proven(rung) if *rung < Rung::Reduced => say.push(format!(
            "every pair is proven up to rung {rung}; an all-reduce over the whole group (rung 6 reduced) was not proven"
        )),
        Peers::Proven(_) => {}
    }
    if !group.broken_elsewhere.is_empty() {
        let names: Vec<String> = group
            .broken_elsewhere
            .iter()
            .take(4)
            .map(ToString::to_string)
            .collect();
        say.push(format!(
            "{} broken pairs lie outside this group ({}): do not start another group on them",
            group.broken_elsewhere.len(),
            names.join(", ")
        ));
    }
    if let Some(sound) = &group.sound_instead {
        let names: Vec<String> = sound.iter().map(ToString::to_string).collect();
        say.push(format!(
            "GPUs {} have no broken pair among them: ask again with --gpus {}",
            names.join(", "),
            names.join(",")
        ));
    }
    if request.engine_version.is_none() && versions_matter(engine) {
        say.push(format!(
            "the version of {} is not told, and some rows hold for some versions only: --engine-version tells it",
            engine.name
        ));
    }
    if !request.plain_tensor_parallel() {
        say.push("attention data parallelism or expert parallelism changes which reductions there are and of which group: what is said here holds for the tensor-parallel group alone".to_string());
    }
    say.extend(replicas(engine, request, mixture));
    for (id, reason) in &answer.refused {
        if reason.starts_with("candidate, unproven")
            && let Some(backend) = engine.backends.iter().find(|b| b.id == *id)
        {
            let options: Vec<&str> = backend
                .when
                .iter()
                .filter_map(|c| match c {
                    Condition::EngineOption(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            let switches: Vec<String> = backend
                .turn_on
                .iter()
                .map(|s| match &s.value {
                    Some(value) => format!("{}={value}", s.name),
                    None => s.name.clone(),
                })
                .collect();
            let with = match options.as_slice() {
                [] => String::new(),
                some => format!(", with {}", some.join("; ")),
            };
            say.push(format!(
                "{} is a candidate: opt-in by {}{with}. It has no timeout: a fault is a hang. Not recommended until its rungs are proven",
                backend.name,
                switches.join(" "),
            ));
        }
    }
    if let Some(seen) = &group.staged_kernels {
        say.push(format!(
            "kernels reach peers of this group through the host ({seen}): 'peerproof explain kernel-access-staged'"
        ));
    }
    if let Some(e) = evidence {
        if !matches!(group.peers, Peers::Proven(_)) {
            say.extend(registry_words(e));
        }
        environment_traps(e, &mut say);
        islands(e, group, &mut say);
    }
    if group.compute.iter().any(|(major, _)| *major < 8)
        && answer.sizing.as_ref().is_some_and(|s| s.dtype == "bf16")
    {
        say.push("bf16 needs compute capability 8.0: these GPUs run fp16 (--dtype fp16); the size is the same".to_string());
    }
    say.append(&mut answer.caveats);
    answer.caveats = say;
    answer.caveats.extend(engine.caveats.iter().cloned());
}

/// What data-parallel replicas exchange, where that follows from the model.
pub(super) fn replicas(
    engine: &EngineProfile,
    request: &Request,
    mixture: Option<bool>,
) -> Option<String> {
    let launch = engine.launch.as_ref()?;
    let mut times = launch.times.iter();
    let shares = times.any(|t| t.alone && t.experts && t.flags == launch.data_parallel);
    if !shares || request.data_parallel <= 1 || request.expert_parallel > 1 {
        return None;
    }
    let all = request.tp.saturating_mul(request.data_parallel);
    Some(match mixture {
        Some(true) => format!(
            "this is a mixture of experts: its {} data-parallel replicas are not independent, their expert layers are one group of {all} GPUs that exchanges by NCCL at every step. The pairs between the replicas count, too, and nothing here speaks of them: 'peerproof recommend --check' on the whole launch does",
            request.data_parallel
        ),
        Some(false) => format!(
            "the model is dense: its {} data-parallel replicas exchange nothing on the GPUs",
            request.data_parallel
        ),
        None => format!(
            "whether the model is a mixture of experts is not known: the expert layers of {} data-parallel replicas would be one group of {all} GPUs that exchanges at every step; --model-config tells it",
            request.data_parallel
        ),
    })
}

fn versions_matter(engine: &EngineProfile) -> bool {
    let mut all = engine.backends.iter().flat_map(|b| &b.when);
    all.any(|c| matches!(c, Condition::EngineVersion(_)))
}

/// Registry words of the driver that serve peer access, and cost something where peers are not used.
pub(super) fn registry_words(e: &Evidence) -> Option<String> {
    const WORDS: [&str; 5] = [
        "ForceP2P",
        "RMForceP2PType",
        "RMPcieP2PType",
        "RMForceStaticBar1",
        "PeerMappingOverride",
    ];
    let params = e.snapshot.driver.params.known()?;
    let (_, value) = params.iter().find(|(name, value)| {
        name.starts_with("RegistryDwords") && WORDS.iter().any(|w| value.contains(w))
    })?;
    Some(format!(
        "the driver runs with registry words for peer access ({value}), and these settings leave peers alone: where peers were off such words cost 1.8 to 3.2% of decode (club-3090); take them out, or leave them where peers are used"
    ))
}

/// Variables of the operator's environment that are known to hurt.
fn environment_traps(e: &Evidence, say: &mut Vec<String>) {
    for (name, value) in &e.snapshot.environment {
        match name.as_str() {
            "GGML_CUDA_P2P" => say.push(format!(
                "GGML_CUDA_P2P={value} is set here: its presence alone turns peer copies on, whatever the value; unset it"
            )),
            "NCCL_P2P_USE_CUDA_MEMCPY" if value != "0" => say.push(
                "NCCL_P2P_USE_CUDA_MEMCPY is set here: collectives were seen to finish with wrong results; unset it".to_string(),
            ),
            "NCCL_SHM_DISABLE" if value != "0" => say.push(
                "NCCL_SHM_DISABLE is set here: it takes the fallback away; unset it".to_string(),
            ),
            "PYTORCH_CUDA_ALLOC_CONF" | "PYTORCH_ALLOC_CONF"
                if value.contains("expandable_segments:True") =>
            {
                say.push(format!(
                    "{name} has expandable_segments:True: CUDA IPC of such memory fails ('invalid argument', 'operation not permitted')"
                ));
            }
            "CUDA_VISIBLE_DEVICES" if value.contains("GPU-") || value.contains("MIG-") => say
                .push(
                    "CUDA_VISIBLE_DEVICES holds UUIDs: vLLM reads it as numbers; give indices"
                        .to_string(),
                ),
            _ => {}
        }
    }
}

/// Eight-rank kernels take ranks 0-3 and 4-7 for islands.
pub(super) fn islands(e: &Evidence, group: &Group, say: &mut Vec<String>) {
    if group.world() != 8 || group.full_nvlink == Some(true) {
        return;
    }
    let homes: Vec<i32> = group
        .gpus
        .iter()
        .filter_map(|g| e.snapshot.gpu(*g)?.numa_node.known().copied())
        .filter(|n| *n >= 0)
        .collect();
    let (Some(near), Some(far), 8) = (homes.get(..4), homes.get(4..), homes.len()) else {
        return;
    };
    let one_home = |half: &[i32]| half.iter().all(|n| half.first() == Some(n));
    if !(one_home(near) && one_home(far)) {
        say.push(format!(
            "rank order: eight-rank PCIe kernels take ranks 0-3 and 4-7 for islands, and the NUMA nodes of this group are {homes:?}; reorder with --gpus so that each half is one node"
        ));
    }
}
