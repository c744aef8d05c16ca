//! One launch against all traps: those that profiles state, those that are arithmetic, and what the evidence of the host
//! forbids.

use super::{
    devices::{self, Used},
    forbidden::forbidden,
    read::Invocation,
    sizes, spelling,
};
use crate::{
    advise::{
        conditions::{Met, Weighing},
        group::Group,
        request::{AdviseError, Request, shape},
        sizing::{rows_per_request, sizing},
        told,
    },
    diagnose::{Evidence, consumers},
    model::{
        finding::{Severity, Sizing},
        launch::{LaunchCheck, LaunchProblem},
        pair::GpuIndex,
    },
    profile::{Clause, EngineProfile, ModelProfile, Profiles, Trap, Version},
};

/// What is known beside the launch itself.
#[derive(Default)]
pub struct Question<'a> {
    /// The host, if there is one.
    pub evidence: Option<&'a Evidence<'a>>,
    /// GPUs that were tested.
    pub candidates: &'a [GpuIndex],
    /// Engine that the operator named.
    pub engine: Option<&'a str>,
    /// Its version.
    pub engine_version: Option<Version>,
    /// The model, where the launch names a path.
    pub model: Option<&'a str>,
    /// The model's own configuration.
    pub config: Option<ModelProfile>,
    /// Its hidden size.
    pub hidden: Option<u64>,
}

/// The numbers of a launch.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Facts {
    pub(super) tp: u32,
    /// The tensor-parallel size is known: given as a number, or not given and 1.
    pub(super) tp_read: bool,
    pub(super) data_parallel: u32,
    pub(super) expert_parallel: u32,
    pub(super) batch: Option<u64>,
    pub(super) running: Option<u64>,
    pub(super) rows_per_request: u64,
}

/// What is wrong with `invocation`.
///
/// # Errors
/// An engine that is not known, by the operator's name or because nothing in the launch tells it.
pub fn check(
    invocation: &Invocation,
    question: &Question,
    profiles: &Profiles,
) -> Result<LaunchCheck, AdviseError> {
    let name = question
        .engine
        .or(invocation.engine.as_deref())
        .unwrap_or("nccl");
    let engine = profiles
        .engine(name)
        .ok_or_else(|| AdviseError::UnknownEngine {
            name: name.to_string(),
            known: profiles
                .engines
                .iter()
                .map(|e| e.id.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })?;
    let mut answer = LaunchCheck {
        engine: engine.id.clone(),
        engine_name: engine.name.clone(),
        place: invocation.place.clone(),
        read: Vec::new(),
        problems: Vec::new(),
        judged: Vec::new(),
        not_judged: invocation.unread.clone(),
        outside: Vec::new(),
    };
    let mut facts = Facts::default();
    let request = request(engine, invocation, question, &mut facts, &mut answer);
    let launch = engine.launch.clone().unwrap_or_default();
    let used = devices::used(&launch, invocation, &facts, question.evidence);
    answer.not_judged.extend(used.unread.iter().cloned());
    answer.problems.extend(used.problems.iter().cloned());
    let request = Request {
        group: members(&used, facts.tp, question),
        ..request
    };
    let whole = whole_launch(&used, &request, question, &mut answer);
    let group = group(&request, question.evidence, &mut answer)?;
    for name in &launch.files {
        if let Some(file) = invocation.value(std::slice::from_ref(name)) {
            answer.not_judged.push(format!(
                "{name} {file}: the settings in that file were not read; write them out as flags"
            ));
        }
    }
    let sizes_count = sizes::apply(invocation);
    let known = shape(&request, profiles, group.lowest_compute());
    let shape = match known {
        Ok(shape) => shape,
        Err(error) => {
            // No size in the launch depends on it otherwise.
            if sizes_count {
                answer.not_judged.push(format!("sizes: {error}"));
            }
            None
        }
    };
    match rows_per_request(engine, &request) {
        Ok((rows, _)) => facts.rows_per_request = rows,
        Err(error) => {
            // No size in the launch depends on it otherwise.
            if sizes_count {
                answer.not_judged.push(format!("rows per request: {error}"));
            }
            facts.rows_per_request = 1;
        }
    }
    let sized: Option<Sizing> = shape
        .as_ref()
        .filter(|_| request.batch > 0)
        .and_then(|shape| sizing(engine, &request, shape, group.is_blackwell_datacenter()).ok());
    let users = question
        .evidence
        .map(|e| consumers(e, &group.gpus))
        .unwrap_or_default();
    let weighing = Weighing {
        evidence: question.evidence,
        consumers: &users,
        group: &group,
        sizing: sized.as_ref(),
        request: &request,
    };
    forbidden(engine, invocation, &weighing, whole.as_ref(), &mut answer);
    let mut host_traps = Vec::new();
    let mut host_asked = Vec::new();
    for trap in &engine.traps {
        if !trap
            .when
            .iter()
            .all(|clause| holds(clause, invocation, &facts))
        {
            continue;
        }
        // Variables alone do not show which flags they will stand beside.
        if invocation.place == "variables"
            && trap.when.iter().any(|c| matches!(c, Clause::NoFlag(_)))
        {
            if trap.severity == Severity::Info {
                continue;
            }
            answer.not_judged.push(format!(
                "{}: the flags are not in this text; the launch then also needs {}",
                trap.id,
                trap.set.iter().map(told).collect::<Vec<_>>().join(", ")
            ));
            continue;
        }
        let met: Vec<Met> = trap.host.iter().map(|c| weighing.met(c)).collect();
        if met.iter().any(|m| matches!(m, Met::No(_))) {
            continue;
        }
        if met.iter().all(|m| *m == Met::Yes) {
            answer.problems.push(as_problem(trap));
        } else if trap.severity > Severity::Info
            && (question.evidence.is_some() || trap.when.iter().any(is_asked_for))
        {
            // The launch asks for something that only the host can allow.
            host_asked.push(trap.id.as_str());
        } else {
            host_traps.push(trap.id.as_str());
        }
    }
    if !host_asked.is_empty() {
        answer.not_judged.push(format!(
            "{} not judged without more of the host: --from REPORT tells it",
            host_asked.join(", ")
        ));
    }
    scope(engine, &used, question, &host_traps, &mut answer);
    answer.problems.extend(sizes::problems(
        engine,
        invocation,
        &facts,
        shape.as_ref(),
        sized.as_ref(),
    ));
    not_exported(engine, profiles, invocation, &mut answer);
    spelling::names(engine, profiles, invocation, &mut answer);
    answer.not_judged.sort();
    answer.not_judged.dedup();
    // One sentence once: a trap of the profile may say what the evidence forbids.
    answer
        .problems
        .sort_by_key(|p| std::cmp::Reverse(p.severity));
    Ok(answer)
}

/// The launch as a question, and its numbers.
fn request(
    engine: &EngineProfile,
    invocation: &Invocation,
    question: &Question,
    facts: &mut Facts,
    answer: &mut LaunchCheck,
) -> Request {
    let launch = engine.launch.clone().unwrap_or_default();
    let mut number = |what: &str, names: &[String]| -> Option<u64> {
        let value = invocation.value(names)?;
        answer.read.push((what.to_string(), value.to_string()));
        let parsed = value.parse().ok();
        if parsed.is_none() {
            answer
                .not_judged
                .push(format!("{what} '{value}' is no number"));
        }
        parsed
    };
    let small = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok());
    let tp = small(number("tensor parallel", &launch.tp));
    facts.tp_read = tp.is_some_and(|tp| tp > 0) || invocation.value(&launch.tp).is_none();
    facts.tp = tp.unwrap_or(1).max(1);
    facts.data_parallel = small(number("data parallel", &launch.data_parallel)).unwrap_or(1);
    facts.batch = number("requests of a step", &launch.batch);
    facts.running = number("running requests", &launch.running);
    let drafts = number("drafts", &launch.drafts);
    // A flag without a value spreads the experts over the whole group.
    facts.expert_parallel = match invocation.flag(&launch.expert_parallel) {
        None => 1,
        Some(flag) => match flag.value.as_deref().and_then(|v| v.parse().ok()) {
            Some(size) => size,
            None => facts.tp,
        },
    };
    let mut text = |what: &str, names: &[String]| -> Option<String> {
        let value = invocation.value(names)?;
        answer.read.push((what.to_string(), value.to_string()));
        Some(value.to_string())
    };
    let model = text("model", &launch.model).or_else(|| {
        let first = invocation.positional.first()?;
        answer.read.push(("model".to_string(), first.clone()));
        Some(first.clone())
    });
    let mut text = |what: &str, names: &[String]| -> Option<String> {
        let value = invocation.value(names)?;
        answer.read.push((what.to_string(), value.to_string()));
        Some(value.to_string())
    };
    let spec = text("speculative method", &launch.method);
    let dtype = text("type", &launch.dtype).filter(|t| t != "auto");
    Request {
        engine: engine.id.clone(),
        model: question
            .model
            .map(str::to_string)
            .or(model)
            .filter(|_| question.config.is_none()),
        config: question.config.clone(),
        hidden: question.hidden,
        tp: facts.tp,
        batch: facts.batch.unwrap_or(0),
        draft_tokens: drafts,
        // A number in a launch means what its flag means: SGLang's holds DSPARK's extra row already. The method decides only
        // where the engine has a number of its own for it.
        spec: spec
            .map(|s| s.replace('-', "_"))
            .filter(|_| drafts.is_none()),
        dtype,
        candidates: question.candidates.to_vec(),
        engine_version: question.engine_version.clone(),
        data_parallel: facts.data_parallel,
        expert_parallel: facts.expert_parallel,
        eager: invocation.flag(&launch.eager).is_some(),
        ..Request::default()
    }
}

/// The first `count` GPUs that the launch sees, where there is a host to find them on.
fn members(used: &Used, count: u32, question: &Question) -> Option<Vec<GpuIndex>> {
    question.evidence?;
    let seen = used.visible.as_ref()?;
    seen.get(..count as usize).map(<[GpuIndex]>::to_vec)
}

/// All GPUs of the launch as one group: what any of its groups touches counts as used.
fn whole_launch(
    used: &Used,
    request: &Request,
    question: &Question,
    answer: &mut LaunchCheck,
) -> Option<Group> {
    question.evidence?;
    let Some(count) = used.count.filter(|n| *n > 0) else {
        answer.not_judged.push(
            "which GPUs of the host it uses is not known, so their pairs were not judged"
                .to_string(),
        );
        return None;
    };
    let all = Request {
        tp: count,
        group: members(used, count, question),
        ..request.clone()
    };
    match Group::of(&all, question.evidence) {
        Ok(group) => Some(group),
        Err(error) => {
            answer.not_judged.push(format!("the host: {error}"));
            None
        }
    }
}

/// A clause that something in the launch meets, not its absence.
fn is_asked_for(clause: &Clause) -> bool {
    !matches!(
        clause,
        Clause::NoFlag(_) | Clause::NoVariable(_) | Clause::TpAbove(_)
    )
}

/// "1 GPU", "4 GPUs".
fn counted(count: u32) -> String {
    format!("{count} GPU{}", if count == 1 { "" } else { "s" })
}

/// What this answer speaks of, and what it does not.
fn scope(
    engine: &EngineProfile,
    used: &Used,
    question: &Question,
    host_traps: &[&str],
    answer: &mut LaunchCheck,
) {
    answer.judged.push(format!(
        "flags and variables against {} known wrong choices with {} (read {})",
        engine.traps.len(),
        engine.name,
        engine.checked
    ));
    let gpus = match (used.count, &used.visible) {
        (Some(count), Some(seen)) => {
            let names: Vec<String> = seen
                .iter()
                .take(count as usize)
                .map(ToString::to_string)
                .collect();
            format!("{}: {} ({})", used.told, counted(count), names.join(","))
        }
        (Some(count), None) => format!("{}: {}", used.told, counted(count)),
        (None, _) => used.told.clone(),
    };
    match question.evidence {
        Some(_) => answer.judged.push(format!(
            "every pair of GPUs that the launch uses, against the report; {gpus}"
        )),
        None => {
            answer.judged.push(format!("sizes; {gpus}"));
            let traps = if host_traps.is_empty() {
                String::new()
            } else {
                format!(" ({})", host_traps.join(", "))
            };
            answer.outside.push(format!(
                "the host: whether its GPUs may use their peers{traps}; --from REPORT tells it"
            ));
        }
    }
}

/// The group on the host, or one of which nothing is known.
fn group(
    request: &Request,
    evidence: Option<&Evidence>,
    answer: &mut LaunchCheck,
) -> Result<Group, AdviseError> {
    match Group::of(request, evidence) {
        Ok(group) => Ok(group),
        Err(error) => {
            answer.not_judged.push(format!("the host: {error}"));
            let alone = Request {
                group: None,
                candidates: Vec::new(),
                tp: request.tp.max(1),
                ..request.clone()
            };
            Group::of(&alone, None)
        }
    }
}

fn holds(clause: &Clause, invocation: &Invocation, facts: &Facts) -> bool {
    let value_is = |value: &str, values: &[String]| values.iter().any(|v| v == value);
    match clause {
        Clause::Flag(names) => invocation.flag(names).is_some(),
        Clause::NoFlag(names) => invocation.flag(names).is_none(),
        Clause::FlagIs(named) => invocation
            .value(std::slice::from_ref(&named.name))
            .is_some_and(|v| value_is(v, &named.values)),
        Clause::FlagIsNot(named) => invocation
            .value(std::slice::from_ref(&named.name))
            .is_some_and(|v| !value_is(v, &named.values)),
        Clause::Variable(name) => invocation.variables.contains_key(name),
        Clause::NoVariable(name) => !invocation.variables.contains_key(name),
        Clause::VariableIs(named) => invocation
            .variables
            .get(&named.name)
            .is_some_and(|v| value_is(v, &named.values)),
        Clause::VariableIsNot(named) => invocation
            .variables
            .get(&named.name)
            .is_some_and(|v| !value_is(v, &named.values)),
        Clause::VariableContains(named) => invocation
            .variables
            .get(&named.name)
            .is_some_and(|v| named.values.iter().any(|part| v.contains(part))),
        Clause::TpAbove(limit) => facts.tp > *limit,
        Clause::MoreThanTensorParallel(wanted) => {
            (facts.data_parallel > 1 || facts.expert_parallel > 1) == *wanted
        }
        Clause::IsolatedSharedMemory(wanted) => {
            facts.tp > 1 && invocation.isolated_shared_memory == *wanted
        }
    }
}

fn as_problem(trap: &Trap) -> LaunchProblem {
    LaunchProblem {
        id: trap.id.clone(),
        severity: trap.severity,
        wrong: trap.wrong.clone(),
        change: trap.change.clone(),
        settings: trap.set.iter().map(told).collect(),
        source: trap.source.clone(),
    }
}

/// A variable that the engine never sees.
fn not_exported(
    engine: &EngineProfile,
    profiles: &Profiles,
    invocation: &Invocation,
    answer: &mut LaunchCheck,
) {
    let own = |name: &str| {
        let mut known = profiles
            .engines
            .iter()
            .filter(|e| e.id == engine.id || e.id == "nccl")
            .filter_map(|e| e.launch.as_ref())
            .flat_map(|l| &l.variables);
        name.starts_with("CUDA_") || known.any(|prefix| name.starts_with(prefix.as_str()))
    };
    for name in invocation.not_exported.iter().filter(|n| own(n)) {
        answer.problems.push(LaunchProblem {
            id: "variable-not-exported".to_string(),
            severity: Severity::Warning,
            wrong: format!(
                "{name} is assigned on a line of its own and not exported: {} does not see it",
                engine.name
            ),
            change: "export it".to_string(),
            settings: vec![format!("export {name}")],
            source: "POSIX shell".to_string(),
        });
    }
}
