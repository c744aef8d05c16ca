//! Which GPUs a launch uses: every size by which it has more ranks than its tensor-parallel group, and what it may see.
//! A pair counts as used when any of its groups touches it.

use super::{read::Invocation, shell::is_left_out, traps::Facts};
use crate::{
    advise::admission::counted,
    diagnose::Evidence,
    model::{finding::Severity, launch::LaunchProblem, pair::GpuIndex},
    profile::{Launch, Times},
};

/// What a container was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// So many, whichever.
    Count(u32),
    /// These: indices or UUIDs of the host.
    Named(Vec<String>),
}

/// A size in ranks, as a launch gives it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Size {
    /// Not given.
    #[default]
    Absent,
    /// So many.
    Ranks(u32),
    /// A word for every GPU that it sees.
    EveryVisible,
    /// Known to a running shell only, which is said where it was read.
    Open,
    /// No engine takes it: what was given.
    Wrong(String),
}

/// The size that the flags `names` give; `every`: words that stand for every visible GPU.
pub(super) fn size(invocation: &Invocation, names: &[String], every: &[String]) -> Size {
    let Some(flag) = invocation.flag(names) else {
        return Size::Absent;
    };
    let Some(value) = flag.value.as_deref() else {
        return Size::Wrong(format!("{} is given without a value", flag.name));
    };
    match value.parse::<u32>() {
        _ if value.contains(['$', '`']) || is_left_out(value) => Size::Open,
        _ if every.iter().any(|word| word == value) => Size::EveryVisible,
        Ok(ranks) if ranks > 0 => Size::Ranks(ranks),
        Ok(_) | Err(_) => Size::Wrong(format!(
            "{} '{value}' is no number of ranks (from 1)",
            flag.name
        )),
    }
}

/// The GPUs of a launch.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Used {
    /// How many; `None` where a size could not be read.
    pub(super) count: Option<u32>,
    /// How that number came about: "tensor parallel 4 x 2 pipeline stages".
    pub(super) told: String,
    /// Those that it may see, in its own order; `None` where the text does not say, or says it by what is not known.
    pub(super) visible: Option<Vec<GpuIndex>>,
    /// The text limits what it may see, whether or not by what is known.
    pub(super) limited: bool,
    /// GPUs among which CUDA's own order decides which ones it gets; `None` where the text names them.
    pub(super) pool: Option<Vec<GpuIndex>>,
    /// What is wrong with it.
    pub(super) problems: Vec<LaunchProblem>,
    /// What could not be read.
    pub(super) unread: Vec<String>,
}

impl Used {
    /// Nothing that was read keeps it from starting.
    pub(super) fn starts(&self) -> bool {
        self.problems
            .iter()
            .all(|problem| problem.severity < Severity::Critical)
    }
}

/// "1 GPU", "4 GPUs".
pub(super) fn gpus(count: u32) -> String {
    counted(u64::from(count), "GPU")
}

/// A GPU that a list names and that is not there.
struct Missing {
    /// "CUDA_VISIBLE_DEVICES names GPU '9', and the host of the report has 8".
    told: String,
    /// CUDA ends the list there; other readers of lists refuse it.
    ends: bool,
}

fn does_not_start(id: &str, wrong: String, change: &str) -> LaunchProblem {
    LaunchProblem {
        id: id.to_string(),
        severity: Severity::Critical,
        wrong,
        change: change.to_string(),
        settings: Vec::new(),
        source: "the launch itself".to_string(),
    }
}

/// The GPUs that `invocation` uses.
pub(super) fn used(
    launch: &Launch,
    invocation: &Invocation,
    facts: &Facts,
    evidence: Option<&Evidence>,
) -> Used {
    let mut used = Used::default();
    let mut missing = None;
    let list = visible(launch, invocation, evidence, &mut used, &mut missing);
    let seen = list.as_ref().map(|l| l.count);
    used.limited = list.is_some();
    used.visible = list.and_then(|l| l.members);
    count(launch, invocation, facts, seen, evidence, &mut used);
    if invocation.no_launch {
        used.unread.push(
            "no launch is in this text: its size and its pairs are not told; give the command that takes these variables, too".to_string(),
        );
        return used;
    }
    if invocation.cut {
        used.told.push_str(", as far as the text goes");
        used.count = None;
    }
    if let Some(missing) = missing {
        let problem = not_there(&missing, seen.unwrap_or(0), &used);
        used.problems.push(problem);
        return used;
    }
    if !used.starts() {
        return used;
    }
    local(launch, invocation, facts, &mut used);
    if let (Some(ranks), Some(count)) = (invocation.ranks, used.count)
        && ranks != count
    {
        used.unread.push(format!(
            "{ranks} MPI ranks are started, and {} is {}: what it makes of that was not read",
            used.told,
            gpus(count)
        ));
        used.count = None;
    }
    if !placed(launch, invocation, facts, evidence, &mut used) {
        return used;
    }
    let host = evidence.map(|e| e.snapshot.gpus.len() as u32);
    if invocation.may_hold(VISIBLE) && used.visible.is_none() {
        // Which GPUs it sees may stand in what was not read; a launch on all of them is on these.
        if launch.every_visible {
            used.count = None;
        }
        used.limited |= used.count.is_none() || used.count != host;
    }
    for name in &launch.hosts {
        let given = invocation.flag(std::slice::from_ref(name));
        if given.is_some_and(|f| f.value.as_deref() != Some("1")) {
            used.unread.push(format!(
                "{name}: a launch over several hosts; this tool knows one host, and which of the ranks run on it is not in the text"
            ));
            used.count = None;
        }
    }
    let place = match (seen, host) {
        (Some(seen), _) => Some((seen, "the launch may see")),
        (None, Some(host)) => Some((host, "the host of the report has")),
        (None, None) => None,
    };
    if let (Some(needed), Some((there, whose))) = (used.count, place)
        && needed > there
    {
        used.problems.push(does_not_start(
            "more-gpus-than-visible",
            format!(
                "{} needs {}, and {whose} {there}: it does not start",
                used.told,
                gpus(needed)
            ),
            "make the sizes smaller, or let it see more GPUs (CUDA_VISIBLE_DEVICES, the container's devices)",
        ));
    }
    used
}

/// Replicas of which only some run on this host.
fn local(launch: &Launch, invocation: &Invocation, facts: &Facts, used: &mut Used) {
    let here = match size(invocation, &launch.local_replicas, &[]) {
        Size::Absent => return,
        Size::Ranks(here) if here == facts.data_parallel => return,
        Size::Ranks(here) if here < facts.data_parallel => Some(here),
        _ => None,
    };
    used.count = here.and_then(|here| {
        let all = used.count.map(|count| count / facts.data_parallel);
        all?.checked_mul(here)
    });
    used.told = match here {
        Some(here) => format!("{} (of which {here} here)", used.told),
        None => format!("{}, and not known how many here", used.told),
    };
    used.unread.push(format!(
        "{}: the other replicas run on another host, of which nothing is judged",
        launch.local_replicas.join(", ")
    ));
}

/// The GPUs that flags count from, and in which steps; whether it starts.
fn placed(
    launch: &Launch,
    invocation: &Invocation,
    facts: &Facts,
    evidence: Option<&Evidence>,
    used: &mut Used,
) -> bool {
    let given = |names: &[String]| invocation.flag(names).map(|f| f.value.clone());
    let (first, step) = (given(&launch.first_gpu), given(&launch.gpu_step));
    if first.is_none() && step.is_none() {
        return true;
    }
    let said = || {
        let flags = launch.first_gpu.iter().chain(&launch.gpu_step);
        flags.cloned().collect::<Vec<_>>().join(" and ")
    };
    let is_open = |v: &Option<Option<String>>| {
        let text = v.as_ref().and_then(Option::as_ref);
        text.is_some_and(|v| v.contains(['$', '`']) || is_left_out(v))
    };
    let number = |v: &Option<Option<String>>, least: u32, absent: u32| match v {
        None => Some(absent),
        Some(text) => text
            .as_ref()
            .and_then(|v| v.parse::<u32>().ok())
            .filter(|n| *n >= least),
    };
    if is_open(&first) || is_open(&step) {
        used.count = None;
        return true;
    }
    let (Some(first), Some(step)) = (number(&first, 0, 0), number(&step, 1, 1)) else {
        used.problems.push(does_not_start(
            "gpu-not-there",
            format!("{}: no number of a GPU, or of GPUs, is given", said()),
            "count GPUs from 0, in steps from 1",
        ));
        return false;
    };
    let Some(count) = used.count.filter(|n| *n > 0) else {
        return true;
    };
    if step > 1 && count != facts.tp {
        used.unread.push(format!(
            "{}: in which steps ranks beside the tensor-parallel ones are placed was not read",
            said()
        ));
        used.count = None;
        return true;
    }
    let places: Option<Vec<u32>> = (0..count)
        .map(|rank| step.checked_mul(rank)?.checked_add(first))
        .collect();
    let host = evidence.map(|e| e.snapshot.gpus.len() as u32);
    let seen = used.visible.as_ref().map(|v| v.len() as u32);
    let there = seen.or(host.filter(|_| !used.limited));
    let last = places.as_ref().and_then(|p| p.last().copied());
    if last.is_none() || last.zip(there).is_some_and(|(last, there)| last >= there) {
        used.problems.push(does_not_start(
            "gpu-not-there",
            format!(
                "{}: {} from {first} in steps of {step} end at GPU {}, and there are {}: it does not start",
                said(),
                gpus(count),
                last.map_or("none".to_string(), |n| n.to_string()),
                there.unwrap_or(0)
            ),
            "begin lower, or take fewer",
        ));
        return false;
    }
    used.told
        .push_str(&format!(" from GPU {first} in steps of {step}"));
    let list = used.visible.take();
    let places = places.unwrap_or_default();
    used.visible = match list {
        Some(list) => places
            .iter()
            .map(|at| list.get(*at as usize).copied())
            .collect(),
        None if used.limited => None,
        None => Some(places.into_iter().map(GpuIndex).collect()),
    };
    used.limited = true;
    true
}

/// What follows from a list with a GPU that is not there, of which `seen` are left.
fn not_there(missing: &Missing, seen: u32, used: &Used) -> LaunchProblem {
    const CHANGE: &str = "name GPUs that are there; if they are, the report is of another host: give its own with --from";
    let told = &missing.told;
    let needed = used.count.unwrap_or(1).max(1);
    let left = match seen {
        0 => "no GPU".to_string(),
        some => gpus(some),
    };
    if !missing.ends {
        let wrong = format!("{told}: it does not start");
        return does_not_start("gpu-not-there", wrong, CHANGE);
    }
    if used.count == Some(0) {
        let wrong = format!("{told}: CUDA ends the list there, and no GPU is left");
        return does_not_start("gpu-not-there", wrong, CHANGE);
    }
    if seen < needed {
        let wrong = format!(
            "{told}: CUDA ends the list there, so {left} {} left, and {} needs {needed}: it does not start",
            if seen > 1 { "are" } else { "is" },
            used.told
        );
        return does_not_start("gpu-not-there", wrong, CHANGE);
    }
    LaunchProblem {
        severity: Severity::Warning,
        ..does_not_start(
            "gpu-not-there",
            format!("{told}: CUDA ends the list there, so the launch sees {left}"),
            CHANGE,
        )
    }
}

fn count(
    launch: &Launch,
    invocation: &Invocation,
    facts: &Facts,
    seen: Option<u32>,
    evidence: Option<&Evidence>,
    used: &mut Used,
) {
    if invocation.no_launch {
        used.told = "no launch, so no size".to_string();
        return;
    }
    if launch.every_visible {
        let one = launch.one_gpu.iter().any(|named| {
            let value = invocation.value(std::slice::from_ref(&named.name));
            value.is_some_and(|v| named.values.iter().any(|n| n == v))
        });
        if one {
            used.count = Some(1);
            used.told = "one GPU by its own word".to_string();
            return;
        }
        used.told = "every GPU that it sees".to_string();
        used.count = seen.or(evidence.map(|e| e.snapshot.gpus.len() as u32));
        return;
    }
    let mut wrong: Vec<String> = Vec::new();
    let (mut total, told) = match &facts.tp_given {
        Size::Absent => (Some(1), "tensor parallel 1".to_string()),
        Size::Ranks(ranks) => (Some(*ranks), format!("tensor parallel {ranks}")),
        Size::EveryVisible => (
            seen.or(evidence.map(|e| e.snapshot.gpus.len() as u32)),
            "every GPU that it sees".to_string(),
        ),
        Size::Open => (None, "a size that only a running shell knows".to_string()),
        Size::Wrong(what) => {
            wrong.push(what.clone());
            (None, "a size that is none".to_string())
        }
    };
    used.told = told;
    let sizes = launch.times.iter().map(|times| {
        let divides = invocation.flag(&times.unless).is_some();
        (
            size(invocation, &times.flags, &[]),
            Some(times).filter(|_| !divides),
        )
    });
    // Data parallelism multiplies nothing where it divides the group, and must be a number all the same.
    let beside = size(invocation, &launch.data_parallel, &[]);
    let local = size(invocation, &launch.local_replicas, &[]);
    let local = match local {
        // None of the replicas run here.
        Size::Wrong(_) if invocation.value(&launch.local_replicas) == Some("0") => Size::Absent,
        local => local,
    };
    for (size, times) in sizes.chain([(beside, None), (local, None)]) {
        match (size, times) {
            (Size::Ranks(size), Some(times)) if size > 1 => {
                used.told.push_str(&format!(" x {size} {}", times.what));
                total = total.and_then(|t| t.checked_mul(size));
            }
            (Size::Open, Some(times)) => {
                used.told.push_str(&format!(" x unknown {}", times.what));
                total = None;
            }
            (Size::Wrong(what), _) => {
                if !wrong.contains(&what) {
                    wrong.push(what);
                }
                total = None;
            }
            _ => {}
        }
    }
    // A flag that spreads experts may stand alone; one that is called a size may not.
    if let Some(flag) = invocation.flag(&launch.expert_parallel)
        && flag.name.ends_with("size")
        && let Size::Wrong(what) = size(invocation, &launch.expert_parallel, &[])
    {
        wrong.push(what);
    }
    if !wrong.is_empty() {
        used.problems.push(does_not_start(
            "size-not-a-number",
            format!(
                "{}. The engine refuses it and does not start, and which GPUs are meant is not known",
                wrong.join("; ")
            ),
            "give the number of ranks",
        ));
    }
    if invocation.processes > 1 {
        used.told
            .push_str(&format!(" x {} processes", invocation.processes));
        total = total.and_then(|t| t.checked_mul(invocation.processes));
    }
    used.count = total;
}

/// Ranks over which a flag without a value spreads the experts.
pub(super) fn experts(launch: &Launch, invocation: &Invocation, tp: u32) -> u32 {
    times(launch, invocation)
        .filter(|(times, _)| times.experts)
        .fold(tp, |ranks, (_, size)| ranks.saturating_mul(size))
}

/// Replicas whose expert layers are one group where the model has some.
pub(super) fn replicas(launch: &Launch, invocation: &Invocation) -> u32 {
    times(launch, invocation)
        .filter(|(times, _)| times.experts && times.alone)
        .fold(1, |ranks, (_, size)| ranks.saturating_mul(size))
}

/// Ranks that exchange data with each other on the GPUs, in groups of any kind.
pub(super) fn exchanging(
    launch: &Launch,
    invocation: &Invocation,
    facts: &Facts,
    count: Option<u32>,
) -> u32 {
    if launch.every_visible {
        return count.unwrap_or(1);
    }
    times(launch, invocation)
        .filter(|(times, _)| {
            let shared = times.experts && facts.replicas_share_experts;
            !times.alone || facts.expert_parallel > 1 || shared
        })
        .fold(facts.tp, |ranks, (_, size)| ranks.saturating_mul(size))
        .saturating_mul(invocation.processes.max(1))
}

/// Sizes beside the tensor-parallel one that multiply the ranks here.
fn times<'a>(
    launch: &'a Launch,
    invocation: &'a Invocation,
) -> impl Iterator<Item = (&'a Times, u32)> {
    let multiplies = |times: &&Times| invocation.flag(&times.unless).is_none();
    launch.times.iter().filter(multiplies).filter_map(|times| {
        match size(invocation, &times.flags, &[]) {
            Size::Ranks(size) => Some((times, size)),
            _ => None,
        }
    })
}

/// CUDA's own list.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A list of GPUs that limits what is seen.
struct List {
    count: u32,
    members: Option<Vec<GpuIndex>>,
}

/// What the launch may see. Lists stand on each other: a flag counts in what CUDA_VISIBLE_DEVICES leaves, and that in what
/// the container was given.
fn visible(
    launch: &Launch,
    invocation: &Invocation,
    evidence: Option<&Evidence>,
    used: &mut Used,
    missing: &mut Option<Missing>,
) -> Option<List> {
    let mut list: Option<List> = match &invocation.devices {
        None => None,
        Some(Given::Count(count)) => {
            let whole = evidence.is_some_and(|e| e.snapshot.gpus.len() as u32 == *count);
            if evidence.is_some() && !whole {
                used.unread.push(format!(
                    "the container is given {count} of the host's GPUs, and the text does not say which"
                ));
            }
            Some(List {
                count: *count,
                members: whole.then(|| (0..*count).map(GpuIndex).collect()),
            })
        }
        Some(Given::Named(names)) => Some(resolved(
            "the container's devices",
            names,
            None,
            evidence,
            used,
            missing,
        )),
    };
    let words = |text: &str| -> Vec<String> {
        text.split(',')
            .map(|w| w.trim().to_string())
            .filter(|w| !w.is_empty())
            .collect()
    };
    used.pool = pool(invocation, list.as_ref(), evidence);
    if let Some(text) = invocation.variables.get(VISIBLE) {
        // CUDA stops at the first word that names no GPU.
        let names: Vec<String> = words(text).into_iter().take_while(|w| w != "-1").collect();
        list = Some(resolved(
            VISIBLE,
            &names,
            list.as_ref(),
            evidence,
            used,
            missing,
        ));
    }
    if let Some(text) = invocation.value(&launch.devices) {
        let names: Vec<String> = words(text)
            .iter()
            .map(|w| w.trim_start_matches("CUDA").to_string())
            .collect();
        let flag = launch.devices.first().cloned().unwrap_or_default();
        list = Some(resolved(
            &flag,
            &names,
            list.as_ref(),
            evidence,
            used,
            missing,
        ));
    }
    list
}

/// The GPUs that CUDA puts in an order of its own before indices count: those of the container, or of the host.
fn pool(
    invocation: &Invocation,
    container: Option<&List>,
    evidence: Option<&Evidence>,
) -> Option<Vec<GpuIndex>> {
    let is = |name: &str, test: &dyn Fn(&str) -> bool| {
        let known = !invocation.unknown.contains_key(name);
        known && invocation.variables.get(name).is_some_and(|v| test(v))
    };
    // A list of UUIDs is an order, too.
    let named = |list: &str| {
        let mut words = list.split(',').map(str::trim);
        words.all(|w| w.starts_with("GPU-") || w.starts_with("MIG-"))
    };
    if is("CUDA_DEVICE_ORDER", &|v| v == "PCI_BUS_ID") || is(VISIBLE, &named) {
        return None;
    }
    match container {
        Some(list) => list.members.clone(),
        None => Some(
            (0..evidence?.snapshot.gpus.len() as u32)
                .map(GpuIndex)
                .collect(),
        ),
    }
}

/// GPUs that nothing of the report tells apart: CUDA has no fastest among them.
pub(super) fn alike(e: &Evidence, pool: &[GpuIndex]) -> bool {
    let mut own = e.gpus().filter(|(index, _)| pool.contains(index));
    let Some((_, first)) = own.next() else {
        return false;
    };
    first.name.known().is_some()
        && own.all(|(_, gpu)| {
            gpu.name.known() == first.name.known()
                && gpu.memory_bytes.known() == first.memory_bytes.known()
                && gpu.compute_capability.known() == first.compute_capability.known()
        })
}

fn resolved(
    what: &str,
    names: &[String],
    below: Option<&List>,
    evidence: Option<&Evidence>,
    used: &mut Used,
    missing: &mut Option<Missing>,
) -> List {
    let ends = what == VISIBLE;
    let (there, whose) = match (below, evidence) {
        (Some(list), _) => (Some(list.count), "what it may see has"),
        (None, Some(e)) => (
            Some(e.snapshot.gpus.len() as u32),
            "the host of the report has",
        ),
        (None, None) => (None, ""),
    };
    // Every UUID of the host is known, and this is none of them.
    let no_uuid = |name: &str| {
        evidence.is_some_and(|e| {
            name.starts_with("GPU-")
                && e.gpus()
                    .all(|(_, g)| g.uuid.known().is_some_and(|u| !u.starts_with(name)))
        })
    };
    let absent = |name: &String| match name.parse::<u32>() {
        Ok(index) => there.is_some_and(|count| index >= count),
        Err(_) => no_uuid(name),
    };
    let first = names.iter().position(absent);
    if let (Some(name), Some(count)) = (first.and_then(|at| names.get(at)), there)
        && missing.is_none()
    {
        *missing = Some(Missing {
            told: format!("{what} names GPU '{name}', and {whose} {count}, without that one"),
            ends,
        });
    }
    let names = first.and_then(|at| names.get(..at)).unwrap_or(names);
    let member = |name: &String| -> Option<GpuIndex> {
        if let Ok(index) = name.parse::<u32>() {
            return match below {
                Some(list) => list.members.as_ref()?.get(index as usize).copied(),
                None => Some(GpuIndex(index)),
            };
        }
        let e = evidence?;
        let mut fit = e.gpus().filter(|(_, g)| {
            let full = |uuid: &String| name.len() > 4 && uuid.starts_with(name.as_str());
            g.uuid.known().is_some_and(full)
        });
        match (fit.next(), fit.next()) {
            (Some((index, _)), None) => Some(index),
            _ => None,
        }
    };
    let members: Option<Vec<GpuIndex>> = names.iter().map(member).collect();
    let twice = (names.iter().enumerate()).find_map(|(at, name)| {
        let same = |other: &String| {
            other == name || (member(name).is_some() && member(other) == member(name))
        };
        names.iter().take(at).any(same).then_some(name)
    });
    match twice {
        Some(name) if ends => used.problems.push(LaunchProblem {
            source: "PyTorch reads the list so, as the driver does".to_string(),
            ..does_not_start(
                "gpu-twice",
                format!(
                    "{what} names GPU '{name}' twice: CUDA shows no GPU then, and nothing runs on one"
                ),
                "name each GPU once",
            )
        }),
        Some(name) => used.unread.push(format!(
            "{what}: GPU '{name}' is named twice, and what the engine makes of that was not read"
        )),
        None => {}
    }
    let unnamed = names
        .iter()
        .find(|n| n.parse::<u32>().is_err() && member(n).is_none());
    if let Some(name) = unnamed {
        used.unread.push(match evidence {
            Some(_) => format!("{what}: '{name}' is no GPU of the report"),
            None if name.contains('$') => {
                format!("{what}: '{name}' is known to a running shell only")
            }
            None => {
                return List {
                    count: names.len() as u32,
                    members,
                };
            }
        });
    }
    List {
        count: names.len() as u32,
        members,
    }
}
