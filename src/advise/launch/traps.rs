//! One launch against all traps: those that profiles state, those that are arithmetic, and what the evidence of the host
//! forbids.

use super::{
    clauses::{holds, is_asked_for, may_be_undone},
    devices::{self, Size, Used},
    forbidden::{forbidden, idle},
    needless::needless,
    parser,
    read::Invocation,
    sizes, spelling, variables,
    ways::ways,
};
use crate::{
    advise::{
        conditions::{Met, Weighing},
        group::{Group, Peers, pools},
        measured::put_measured,
        request::{AdviseError, Request, is_mixture, shape},
        sizing::{rows_per_request, sizing},
        told,
    },
    diagnose::{Evidence, consumers_of},
    model::{
        finding::{Severity, Sizing},
        launch::{LaunchCheck, LaunchProblem},
        pair::GpuIndex,
        reduction::Reduction,
    },
    profile::{EngineProfile, ModelProfile, Names, Profiles, Trap, Version},
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
    /// Reductions measured on the host.
    pub reductions: &'a [Reduction],
}

/// The numbers of a launch.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Facts {
    pub(super) tp: u32,
    /// The tensor-parallel size as it was given.
    pub(super) tp_given: Size,
    pub(super) data_parallel: u32,
    pub(super) expert_parallel: u32,
    /// The model is a mixture of experts, and its data-parallel replicas exchange what its expert layers make.
    pub(super) replicas_share_experts: bool,
    /// Ranks that exchange data on the GPUs, in groups of any kind.
    pub(super) exchanging: u32,
    /// The text does not tell whether there is a tensor-parallel group.
    pub(super) group_open: bool,
    /// The text does not tell how many ranks there are.
    pub(super) ranks_open: bool,
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
    let launch = engine.launch.clone().unwrap_or_default();
    let names = spelling::own_list(engine, profiles);
    let mut taken = parser::taken(invocation, &engine.name, &launch, names);
    taken.invocation.flags_open |= taken.invocation.flag(&launch.files).is_some();
    let beside = profiles.names.iter();
    let beside = beside.filter(|n| n.of == "nccl" && names.is_none_or(|own| own.of != n.of));
    let lists: Vec<&Names> = names.into_iter().chain(beside).collect();
    let read = variables::as_read(&lists, &mut taken.invocation);
    let invocation = &taken.invocation;
    answer.problems.extend(taken.notes);
    answer.problems.extend(read.notes);
    answer.not_judged.extend(taken.open);
    spelling::names(engine, names, profiles, invocation, &mut answer);
    let matters = spelling::matters(engine, names, profiles);
    let unknown = invocation.unknown.iter();
    let unknown = unknown.filter(|(name, _)| matters(name) && !read.refused.contains_key(*name));
    answer
        .not_judged
        .extend(unknown.map(|(_, said)| said.clone()));
    lost(engine, invocation, &matters, &mut answer);
    let request = request(engine, invocation, question, &mut facts, &mut answer);
    let replicas = devices::replicas(&launch, invocation);
    if replicas > 1 && facts.expert_parallel <= 1 {
        let mixture = is_mixture(&request, profiles);
        facts.replicas_share_experts = mixture == Some(true);
        if mixture.is_none() {
            answer.not_judged.push(format!(
                "whether {} is a mixture of experts is not known: expert layers of {replicas} data-parallel replicas are one group that exchanges data at every step, replicas without them exchange nothing; --model-config tells it",
                request.model.as_deref().unwrap_or("the model")
            ));
        }
    }
    let mut used = devices::used(&launch, invocation, &facts, question.evidence);
    used.problems.splice(0..0, taken.refused).for_each(drop);
    let reads = match facts.tp_given {
        Size::Absent => invocation.no_launch,
        Size::Ranks(ranks) => ranks > 1,
        _ => true,
    };
    let refused = read.refused.into_values();
    used.problems
        .extend(refused.map(|p| refused_by_ranks(p, reads, engine)));
    if used.starts() && engine.tp_divides_heads {
        used.problems.extend(sizes::heads(
            engine, profiles, &launch, invocation, &facts, &request,
        ));
    }
    answer.not_judged.extend(used.unread.iter().cloned());
    answer.problems.extend(used.problems.iter().cloned());
    if facts.tp_given == Size::EveryVisible {
        facts.tp = used.count.unwrap_or(1);
    }
    facts.exchanging = devices::exchanging(&launch, invocation, &facts, used.count);
    let elsewhere = invocation.no_launch || invocation.flag(&launch.files).is_some();
    facts.group_open = match &facts.tp_given {
        Size::Absent => elsewhere,
        Size::EveryVisible => used.count.is_none(),
        given => *given == Size::Open,
    };
    facts.ranks_open = facts.group_open || elsewhere || used.count.is_none();
    // What does not start uses no GPU, and nothing of the host is judged for it.
    let evidence = question.evidence.filter(|_| used.starts());
    let mut request = Request {
        tp: facts.tp,
        group: members(&used, facts.tp, evidence),
        ..request
    };
    put_measured(&mut request, question.reductions);
    let judge = |group: &Group| match evidence {
        Some(e) => consumers_of(e, &group.gpus, &profiles.consumers),
        None => Vec::new(),
    };
    let pools = pools(engine, &profiles.consumers);
    let whole =
        whole_launch(&used, &request, question, evidence, pools, &mut answer).map(|group| {
            let users = judge(&group);
            group.used_by(engine, &users)
        });
    // Of GPUs of which it is not known which they are, nothing is known.
    let group = group(
        &request,
        evidence.filter(|_| whole.is_some()),
        pools,
        &mut answer,
    )?;
    let users = match whole {
        Some(_) => judge(&group),
        None => Vec::new(),
    };
    // A launch without a tensor-parallel group is weighed by all GPUs that exchange data.
    let group = match &whole {
        Some(all) if facts.tp == 1 && facts.exchanging > 1 => all.clone(),
        _ => group.used_by(engine, &users),
    };
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
    let weighing = Weighing {
        evidence: evidence.filter(|_| whole.is_some()),
        consumers: &users,
        group: &group,
        sizing: sized.as_ref(),
        request: &request,
    };
    let order = other_order(&used, evidence.zip(whole.as_ref()), |pool, found| {
        let request = Request {
            tp: pool.len() as u32,
            group: Some(pool.to_vec()),
            ..request.clone()
        };
        let Ok(group) = Group::of(&request, evidence, pools) else {
            return;
        };
        let users = judge(&group);
        let group = group.used_by(engine, &users);
        let weighing = Weighing {
            consumers: &users,
            group: &group,
            ..weighing
        };
        forbidden(engine, invocation, &facts, &weighing, Some(&group), found);
        ways(
            engine,
            invocation,
            &facts,
            question,
            &weighing,
            Some(&group),
            found,
        );
    });
    answer.not_judged.extend(order.iter().cloned());
    forbidden(
        engine,
        invocation,
        &facts,
        &weighing,
        whole.as_ref(),
        &mut answer,
    );
    needless(
        engine,
        profiles,
        invocation,
        &facts,
        &weighing,
        whole.as_ref(),
        &mut answer,
    );
    if used.starts() {
        ways(
            engine,
            invocation,
            &facts,
            question,
            &weighing,
            whole.as_ref(),
            &mut answer,
        );
    }
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
        // Variables alone do not show which flags they will stand beside, and a part of a command not what else it has.
        if trap.when.iter().any(|c| may_be_undone(c, invocation)) {
            if trap.severity == Severity::Info {
                continue;
            }
            answer.not_judged.push(format!(
                "{}: {} in this text; the launch then also needs {}",
                trap.id,
                match invocation.no_launch {
                    true => "the flags are not",
                    false => "not all flags and variables are",
                },
                trap.set.iter().map(told).collect::<Vec<_>>().join(", ")
            ));
            continue;
        }
        let met: Vec<Met> = trap.host.iter().map(|c| weighing.met(c)).collect();
        if met.iter().any(|m| matches!(m, Met::No(_))) {
            continue;
        }
        let mut about = trap.backends.iter().filter_map(|id| engine.backend(id));
        let idle = about
            .clone()
            .next()
            .and_then(|b| idle(b, &weighing))
            .filter(|_| about.all(|b| idle(b, &weighing).is_some()));
        if idle.is_some() && !trap.caution {
            continue;
        }
        if met.iter().all(|m| *m == Met::Yes) {
            answer.problems.push(as_problem(trap, idle));
        } else if trap.severity > Severity::Info
            && (question.evidence.is_some() || trap.when.iter().any(is_asked_for))
        {
            // The launch asks for something that only the host can allow.
            host_asked.push(trap.id.as_str());
        } else {
            host_traps.push(trap.id.as_str());
        }
    }
    if !host_asked.is_empty() && used.starts() {
        answer.not_judged.push(format!(
            "{} not judged without more of the host: {}",
            host_asked.join(", "),
            match question.evidence {
                None => "--from REPORT tells it",
                Some(_) =>
                    "the report does not hold it, or which of its GPUs are meant is not known",
            }
        ));
    }
    if let Some(program) = &invocation.program {
        answer.outside.push(format!(
            "what {program} does by itself, and its own arguments"
        ));
    }
    scope(
        engine,
        &used,
        &facts,
        question,
        whole.as_ref().filter(|_| order.is_none()),
        &host_traps,
        &mut answer,
    );
    answer.problems.extend(sizes::problems(
        engine,
        invocation,
        &facts,
        shape.as_ref(),
        sized.as_ref(),
    ));
    not_exported(engine, profiles, invocation, &mut answer);
    answer.not_judged.sort();
    answer.not_judged.dedup();
    // One sentence once: a trap of the profile may say what the evidence forbids.
    answer
        .problems
        .sort_by_key(|p| std::cmp::Reverse(p.severity));
    Ok(answer)
}

/// A variable whose text stops the ranks of a group, which are who reads it.
fn refused_by_ranks(problem: LaunchProblem, group: bool, engine: &EngineProfile) -> LaunchProblem {
    match group {
        true => LaunchProblem {
            wrong: format!(
                "{}: every rank of the group stops with an error there, and {} does not start",
                problem.wrong, engine.name
            ),
            ..problem
        },
        false => LaunchProblem {
            severity: Severity::Info,
            wrong: format!(
                "{}: the ranks of a group stop with an error there, and this launch has no group",
                problem.wrong
            ),
            ..problem
        },
    }
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
    let meant = meant(&launch.tp, invocation, answer);
    let mut size = |what: &str, names: &[String], every: &[String]| -> Size {
        if let Some(value) = invocation.value(names) {
            answer.read.push((what.to_string(), value.to_string()));
        }
        devices::size(invocation, names, every)
    };
    facts.tp_given = match size("tensor parallel", &launch.tp, &launch.tp_every_visible) {
        Size::Absent => meant,
        given => given,
    };
    facts.tp = match facts.tp_given {
        Size::Ranks(ranks) => ranks,
        _ => 1,
    };
    facts.data_parallel = match size("data parallel", &launch.data_parallel, &[]) {
        Size::Ranks(ranks) => ranks,
        _ => 1,
    };
    let mut number = |what: &str, names: &[String]| -> Option<u64> {
        let flag = invocation.flag(names)?;
        let Some(value) = flag.value.as_deref() else {
            answer
                .not_judged
                .push(format!("{what}: {} is given without a value", flag.name));
            return None;
        };
        answer.read.push((what.to_string(), value.to_string()));
        let parsed = value.parse().ok();
        if parsed.is_none() {
            answer
                .not_judged
                .push(format!("{what} '{value}' is no number"));
        }
        parsed
    };
    facts.batch = number("requests of a step", &launch.batch);
    facts.running = number("running requests", &launch.running);
    let drafts = number("drafts", &launch.drafts);
    // A flag without a value spreads the experts over the whole group.
    facts.expert_parallel = match invocation.flag(&launch.expert_parallel) {
        None => 1,
        Some(flag) => match flag.value.as_deref().and_then(|v| v.parse().ok()) {
            Some(size) => size,
            None => devices::experts(&launch, invocation, facts.tp),
        },
    };
    let mut text = |what: &str, names: &[String]| -> Option<String> {
        let value = invocation.value(names)?;
        answer.read.push((what.to_string(), value.to_string()));
        Some(value.to_string())
    };
    let model = text("model", &launch.model).or_else(|| {
        let first = invocation.positional.first()?;
        let what = match &invocation.program {
            Some(_) => "program",
            None => "model",
        };
        answer.read.push((what.to_string(), first.clone()));
        Some(first.clone()).filter(|_| invocation.program.is_none())
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

/// The size that a flag was meant to give which is misspelt, or cut short: the engine may start with another number than the
/// default, and its GPUs are not known.
fn meant(names: &[String], invocation: &Invocation, answer: &LaunchCheck) -> Size {
    let misspelt = answer.problems.iter().find(|p| {
        p.id == spelling::FLAG_NOT_KNOWN && p.settings.iter().any(|near| names.contains(near))
    });
    if let Some(problem) = misspelt {
        return Size::Wrong(problem.wrong.clone());
    }
    let short = invocation.flags.iter().any(|flag| {
        let begins = |name: &String| name.starts_with(&flag.name);
        flag.name.starts_with("--") && !names.contains(&flag.name) && names.iter().any(begins)
    });
    if short || invocation.cut || invocation.flags_open {
        Size::Open
    } else {
        Size::Absent
    }
}

/// The first `count` GPUs that the launch sees, where there is a host to find them on. A launch that nothing limits takes the
/// first ones of the host, tested or not.
fn members(used: &Used, count: u32, evidence: Option<&Evidence>) -> Option<Vec<GpuIndex>> {
    evidence?;
    match &used.visible {
        Some(seen) => seen.get(..count as usize).map(<[GpuIndex]>::to_vec),
        None if used.limited => None,
        None => Some((0..count).map(GpuIndex).collect()),
    }
}

/// All GPUs of the launch as one group: what any of its groups touches counts as used.
fn whole_launch(
    used: &Used,
    request: &Request,
    question: &Question,
    evidence: Option<&Evidence>,
    pools: bool,
    answer: &mut LaunchCheck,
) -> Option<Group> {
    question.evidence?;
    if !used.starts() {
        answer.not_judged.push(
            "the host: the launch does not start as it is, so no pair of GPUs was judged for it"
                .to_string(),
        );
        return None;
    }
    let group = used
        .count
        .filter(|n| *n > 0)
        .and_then(|count| Some((count, members(used, count, evidence)?)));
    let Some((count, group)) = group else {
        answer.not_judged.push(
            "which GPUs of the host it uses is not known, so their pairs were not judged"
                .to_string(),
        );
        return None;
    };
    let all = Request {
        tp: count,
        group: Some(group),
        ..request.clone()
    };
    match Group::of(&all, evidence, pools) {
        Ok(group) => Some(group),
        Err(error) => {
            answer.not_judged.push(format!("the host: {error}"));
            None
        }
    }
}

/// Where CUDA's own order of GPUs decides which ones the launch gets, and others of them than in the order of the report would
/// be wrong for it: what is said of that. `judge` finds what is wrong with all of them together.
fn other_order(
    used: &Used,
    host: Option<(&Evidence, &Group)>,
    judge: impl Fn(&[GpuIndex], &mut LaunchCheck),
) -> Option<String> {
    let (e, group) = host?;
    let pool = used.pool.as_ref()?;
    if pool.iter().all(|gpu| group.gpus.contains(gpu)) {
        return None;
    }
    let mut found = LaunchCheck::default();
    judge(pool, &mut found);
    let alone = group.world() < 2;
    let wrong = found.problems.into_iter().find(|p| {
        let unfit = p.id == "group-must-not-serve";
        p.severity == Severity::Critical && (unfit || !alone)
    });
    let alike = devices::alike(e, pool);
    let open = found.not_judged.into_iter().next();
    let why = match wrong {
        Some(problem) => problem.wrong,
        None => open.filter(|_| !alike && !alone)?,
    };
    Some(format!(
        "which GPUs it gets: CUDA's own order is fastest first, and the report counts in PCI order{}; with other GPUs of this host it may be wrong ({why}): set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUIDs",
        match alike {
            true =>
                " (these GPUs are alike, so both are one in practice, which CUDA does not promise)",
            false => "",
        }
    ))
}

/// What this answer speaks of, and what it does not.
fn scope(
    engine: &EngineProfile,
    used: &Used,
    facts: &Facts,
    question: &Question,
    whole: Option<&Group>,
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
            format!(
                "{}: {} ({})",
                used.told,
                devices::gpus(count),
                names.join(",")
            )
        }
        (Some(count), None) => format!("{}: {}", used.told, devices::gpus(count)),
        (None, _) => used.told.clone(),
    };
    match (question.evidence, whole) {
        // Why not stands among what was not judged.
        (Some(_), None) => {}
        (Some(_), Some(group)) if group.world() < 2 => answer.judged.push(format!(
            "the GPU that the launch uses, against the report; {gpus}, so there are no pairs"
        )),
        (Some(_), Some(group))
            if matches!(group.peers, Peers::Unproven(_)) && group.unfit.is_none() => {}
        (Some(_), Some(_)) => answer.judged.push(format!(
            "every pair of GPUs that the launch uses, against the report; {gpus}"
        )),
        (None, _) => {
            if used.starts() && used.count.is_some() {
                answer.judged.push(match facts.exchanging {
                    1 => format!("{gpus}; one GPU has no all-reduce, so no size of one was judged"),
                    _ => format!("sizes; {gpus}"),
                });
            }
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
    pools: bool,
    answer: &mut LaunchCheck,
) -> Result<Group, AdviseError> {
    match Group::of(request, evidence, pools) {
        Ok(group) => Ok(group),
        Err(error) => {
            answer.not_judged.push(format!("the host: {error}"));
            let alone = Request {
                group: None,
                candidates: Vec::new(),
                tp: request.tp.max(1),
                ..request.clone()
            };
            Group::of(&alone, None, pools)
        }
    }
}

/// `idle`: why its backend cannot run here.
fn as_problem(trap: &Trap, idle: Option<String>) -> LaunchProblem {
    let caution = idle.map_or_else(String::new, |why| {
        format!(
            " (said out of caution: in the version that was read this backend stays off here: {why}; another version may run it)"
        )
    });
    LaunchProblem {
        id: trap.id.clone(),
        severity: trap.severity,
        wrong: format!("{}{caution}", trap.wrong),
        change: trap.change.clone(),
        settings: trap.set.iter().map(told).collect(),
        source: trap.source.clone(),
    }
}

/// Variables that stand outside a command which does not hand them on.
fn lost(
    engine: &EngineProfile,
    invocation: &Invocation,
    matters: &dyn Fn(&str) -> bool,
    answer: &mut LaunchCheck,
) {
    for (name, by) in invocation.lost.iter().filter(|(name, _)| matters(name)) {
        answer.problems.push(LaunchProblem {
            id: "variable-not-handed-on".to_string(),
            severity: Severity::Warning,
            wrong: format!(
                "{name} is set outside {by}, which does not hand it on: {} does not see it",
                engine.name
            ),
            change: format!("give it to {by} itself"),
            settings: Vec::new(),
            source: format!("manual of {by}"),
        });
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
