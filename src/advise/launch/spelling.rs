//! Flags and variables of a launch that the engine does not take: misspelt ones do nothing or stop the start, and of the
//! others nothing is known. Without a list of names (`profiles/names`) none is called right.

use super::read::{Invocation, plain};
use crate::{
    model::{
        finding::Severity,
        launch::{LaunchCheck, LaunchProblem},
    },
    profile::{Clause, EngineProfile, Names, Profiles, SwitchKind, nearest},
};
use std::collections::BTreeSet;

/// Id of the finding on a flag that is spelt like another.
pub(super) const FLAG_NOT_KNOWN: &str = "flag-not-known";

/// Names that belong to every engine: CUDA's own, and NCCL's.
const BESIDE: [&str; 2] = ["cuda", "nccl"];

/// Says which names of the launch are not known; `own`: the list of its engine.
pub(super) fn names(
    engine: &EngineProfile,
    own: Option<&Names>,
    profiles: &Profiles,
    invocation: &Invocation,
    answer: &mut LaunchCheck,
) {
    let stated = Stated::of(engine);
    flags(engine, own, &stated, invocation, answer);
    variables(engine, own, &stated, profiles, invocation, answer);
}

/// Which variables may change where data goes: those of the engine and of what it stands on.
pub(super) fn matters(
    engine: &EngineProfile,
    own: Option<&Names>,
    profiles: &Profiles,
) -> impl Fn(&str) -> bool {
    const PARTS: [&str; 12] = [
        "CUDA_",
        "NCCL_",
        "NVIDIA_",
        "NVSHMEM",
        "UCX_",
        "TORCH",
        "PYTORCH_",
        "LD_",
        "FLASHINFER",
        "DEEPEP",
        "MC_",
        "NIXL",
    ];
    let mut begins: Vec<String> = PARTS.iter().map(ToString::to_string).collect();
    begins.extend(engine.launch.iter().flat_map(|l| l.variables.clone()));
    let beside = profiles.names.iter();
    let beside = beside.filter(|n| BESIDE.contains(&n.of.as_str()));
    let mut listed = Stated::of(engine).variables;
    listed.extend(
        own.into_iter()
            .chain(beside)
            .flat_map(|n| n.variables.clone()),
    );
    move |name| listed.contains(name) || begins.iter().any(|part| name.starts_with(part))
}

/// The list of this engine, or of the one whose profile it continues.
pub(super) fn own_list<'a>(engine: &EngineProfile, profiles: &'a Profiles) -> Option<&'a Names> {
    let of = |id: &str| profiles.names.iter().find(|n| n.of == id);
    let mut id = engine.id.as_str();
    // A profile cannot continue itself: the loader refuses it.
    loop {
        if let Some(found) = of(id) {
            return Some(found);
        }
        id = profiles
            .engines
            .iter()
            .find(|e| e.id == id)?
            .inherits
            .as_deref()?;
    }
}

/// What the profile itself speaks of.
struct Stated {
    flags: BTreeSet<String>,
    variables: BTreeSet<String>,
}

impl Stated {
    fn of(engine: &EngineProfile) -> Stated {
        let mut flags: BTreeSet<String> = BTreeSet::new();
        let mut variables: BTreeSet<String> = BTreeSet::new();
        if let Some(l) = &engine.launch {
            // A key of a JSON value is no flag by itself.
            let heads = l.settings().into_iter().flat_map(|s| s.flags);
            flags.extend(heads.map(|f| plain(f.split('.').next().unwrap_or_default())));
        }
        let switches = engine
            .peer_off
            .iter()
            .chain(
                engine
                    .backends
                    .iter()
                    .flat_map(|b| b.turn_on.iter().chain(&b.turn_off)),
            )
            .chain(engine.traps.iter().flat_map(|t| &t.set))
            .chain(engine.ways.iter().flat_map(|w| &w.off));
        for switch in switches {
            match switch.kind {
                SwitchKind::Flag | SwitchKind::Omit => {
                    flags.insert(plain(&switch.name));
                }
                SwitchKind::Environment | SwitchKind::Unset => {
                    variables.insert(switch.name.clone());
                }
                SwitchKind::Configuration => {}
            }
        }
        let traps = engine.traps.iter().flat_map(|t| &t.when);
        let ways = engine.ways.iter();
        let ways = ways.flat_map(|w| w.when.iter().chain(&w.unless));
        for clause in traps.chain(ways) {
            match clause {
                Clause::Flag(names) | Clause::NoFlag(names) => {
                    flags.extend(names.iter().map(|n| plain(n)));
                }
                Clause::FlagIs(named) | Clause::FlagIsNot(named) => {
                    // A key of a JSON value is no flag by itself.
                    let head = named.name.split('.').next().unwrap_or_default();
                    flags.insert(plain(head));
                }
                Clause::AnyVariableIs(all) => {
                    variables.extend(all.iter().map(|named| named.name.clone()));
                }
                Clause::Variable(name) | Clause::NoVariable(name) => {
                    variables.insert(name.clone());
                }
                Clause::VariableIs(named)
                | Clause::VariableIsNot(named)
                | Clause::VariableContains(named)
                | Clause::VariableLacks(named) => {
                    variables.insert(named.name.clone());
                }
                _ => {}
            }
        }
        // Sizes are judged in code.
        for name in [
            "--speculative-num-steps",
            "--speculative-eagle-topk",
            "--cudagraph-capture-sizes",
        ] {
            flags.insert(name.to_string());
        }
        variables.insert("SGLANG_PCIE_IPC_MAX_NUMEL".to_string());
        Stated { flags, variables }
    }
}

fn unknown(
    id: &str,
    name: &str,
    near: &str,
    engine: &EngineProfile,
    read_in: &str,
) -> LaunchProblem {
    LaunchProblem {
        id: id.to_string(),
        severity: Severity::Warning,
        wrong: format!(
            "{name} is not known of {} ({read_in}), and is spelt like {near}: a flag that is not known stops the start, a variable does nothing",
            engine.name
        ),
        change: "spell it right, or see that the installed version takes it".to_string(),
        settings: vec![near.to_string()],
        source: format!("names of {read_in}"),
    }
}

fn flags(
    engine: &EngineProfile,
    own: Option<&Names>,
    stated: &Stated,
    invocation: &Invocation,
    answer: &mut LaunchCheck,
) {
    let read_in = own.map_or("its profile", |n| n.read_in.as_str());
    let listed: BTreeSet<&str> = own
        .iter()
        .flat_map(|n| &n.flags)
        .map(String::as_str)
        .chain(stated.flags.iter().map(String::as_str))
        .collect();
    let mut none_known: Vec<&str> = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for flag in &invocation.flags {
        // Keys of a JSON value belong to their flag; -cc.mode and -O3 are forms of one.
        let head = flag.name.split('.').next().unwrap_or_default();
        let positive = format!("--{}", head.strip_prefix("--no-").unwrap_or_default());
        let level = head
            .strip_prefix("-O")
            .is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
        let known = listed.contains(head)
            || own
                .filter(|n| n.parser.is_some())
                .map_or(listed.contains(positive.as_str()), |n| {
                    n.switch(head).is_some()
                })
            || (level && listed.contains("-O"));
        if known || head.contains('$') || head.contains('`') || !seen.insert(head) {
            continue;
        }
        if own.is_some_and(|n| n.prefixes) && head.starts_with("--") {
            let mut longer = listed.iter().filter(|l| l.starts_with(head));
            if let Some(first) = longer.next() {
                let more = if longer.next().is_some() {
                    " or another"
                } else {
                    ""
                };
                answer.not_judged.push(format!(
                    "{head} is the beginning of {first}{more}: write it out"
                ));
                continue;
            }
        }
        match nearest(head, listed.iter().copied()) {
            Some(near) => {
                answer
                    .problems
                    .push(unknown(FLAG_NOT_KNOWN, head, near, engine, read_in))
            }
            None => none_known.push(head),
        }
    }
    if !none_known.is_empty() {
        answer.not_judged.push(format!(
            "{}: no flag that is known of {} ({read_in}): what it does is not known",
            none_known.join(", "),
            engine.name
        ));
    }
}

fn variables(
    engine: &EngineProfile,
    own: Option<&Names>,
    stated: &Stated,
    profiles: &Profiles,
    invocation: &Invocation,
    answer: &mut LaunchCheck,
) {
    let beside: Vec<&Names> = profiles
        .names
        .iter()
        .filter(|n| BESIDE.contains(&n.of.as_str()))
        .collect();
    let listed: BTreeSet<&str> = own
        .into_iter()
        .chain(beside)
        .flat_map(|n| &n.variables)
        .chain(&stated.variables)
        .map(String::as_str)
        .collect();
    let belongs: Vec<&str> = profiles
        .engines
        .iter()
        .filter(|e| e.id == engine.id || e.id == "nccl")
        .filter_map(|e| e.launch.as_ref())
        .flat_map(|l| &l.variables)
        .map(String::as_str)
        .chain(["CUDA_"])
        .collect();
    let read_in = own.map_or("its profile", |n| n.read_in.as_str());
    let mut none_known: Vec<&str> = Vec::new();
    for name in invocation.variables.keys().chain(&invocation.not_exported) {
        // The debugger's and the profiler's own words are nobody's business here.
        if listed.contains(name.as_str()) {
            continue;
        }
        let of_engine = belongs.iter().any(|prefix| name.starts_with(prefix));
        match nearest(name, listed.iter().copied()).filter(|_| name.len() >= 8) {
            Some(near) => {
                answer
                    .problems
                    .push(unknown("variable-not-known", name, near, engine, read_in))
            }
            None if of_engine && own.is_some() => none_known.push(name),
            None => {}
        }
    }
    if !none_known.is_empty() {
        answer.not_judged.push(format!(
            "{}: no variable that is known of {} ({read_in}): what it does is not known",
            none_known.join(", "),
            engine.name
        ));
    }
}
