//! Switches of a launch that turn off what the host's evidence proves: what they are, and what it costs to keep them. One that
//! something else asks for, or that touches nothing which would run here, is none.

use super::{
    clauses::holds,
    forbidden::lacks,
    read::{Invocation, plain},
    traps::Facts,
};
use crate::{
    advise::{
        conditions::{Met, Refusal, Weighing},
        group::{Group, NCCL_P2P, Peers},
        told, worth,
    },
    model::{
        finding::Severity,
        launch::{LaunchCheck, LaunchProblem},
    },
    profile::{Backend, Clause, EngineProfile, Profiles, Switch, SwitchKind},
};

/// Says which switches of the launch are needless where the peers of all its GPUs are proven.
pub(super) fn needless(
    engine: &EngineProfile,
    profiles: &Profiles,
    invocation: &Invocation,
    facts: &Facts,
    weighing: &Weighing,
    whole: Option<&Group>,
    answer: &mut LaunchCheck,
) {
    let Some(Group {
        peers: Peers::Proven(_),
        unfit: None,
        ..
    }) = whole
    else {
        return;
    };
    let Peers::Proven(rung) = &weighing.group.peers else {
        return;
    };
    if weighing.group.world() < 2 {
        return;
    }
    let nccl = profiles.engine("nccl");
    let of_nccl = |switch: &Switch| {
        let uses = |b: &Backend| b.by_default && b.consumer.as_deref() == Some(NCCL_P2P);
        engine.backends.iter().any(uses)
            && nccl.is_some_and(|n| n.peer_off.iter().any(|own| own.name == switch.name))
    };
    let all = engine.peer_off.iter();
    let all = all.chain(engine.backends.iter().flat_map(|b| &b.turn_off));
    let (mut switches, mut idle, mut nccl_off) = (Vec::new(), Vec::<&Backend>::new(), false);
    for switch in all {
        let known = switches.iter().any(|s: &&Switch| s.name == switch.name);
        let asked_for = || wanted_elsewhere(engine, switch, invocation, facts, weighing);
        if known
            || switch.for_others
            || !given(switch, invocation)
            || !weighing.all(&switch.when)
            || asked_for()
        {
            continue;
        }
        let of = |b: &&Backend| b.turn_off.iter().any(|s| s.name == switch.name);
        let multicast = switch.multicast || engine.backends.iter().filter(of).any(|b| b.multicast);
        if multicast {
            let what = format!(
                "whether {} is needless: it is about multicast, which no rung tests",
                told(switch)
            );
            // The engine's switches and those of its backends name it both.
            if !answer.outside.contains(&what) {
                answer.outside.push(what);
            }
            continue;
        }
        let own: Vec<&Backend> = engine
            .backends
            .iter()
            // Kernels of all-reduces need a group to reduce over; NCCL serves every exchange.
            .filter(|b| b.by_default && of(b) && facts.tp > 1)
            .filter(|b| matches!(weighing.refusal(b), None | Some(Refusal::TooLarge(_))))
            .collect();
        if own.is_empty() && !of_nccl(switch) {
            continue;
        }
        nccl_off |= of_nccl(switch);
        idle.extend(own);
        switches.push(switch);
    }
    if switches.is_empty() {
        return;
    }
    let said: Vec<String> = switches.iter().map(|s| told(s)).collect();
    let published = nccl.and_then(|n| n.backend("nccl")).filter(|_| nccl_off);
    let across = nccl_off
        && weighing.group.crosses_root
        && weighing.group.full_nvlink != Some(true)
        && weighing.group.world() > 2;
    answer.problems.push(LaunchProblem {
        id: "needless-switches".to_string(),
        severity: Severity::Warning,
        wrong: format!(
            "{} {} off what is proven on every pair of this group (rung {rung}): needless here; {}",
            said.join(", "),
            if said.len() == 1 { "switches" } else { "switch" },
            worth::cost(weighing, &idle, published),
        ),
        change: if across {
            "leave out what is named; NCCL_P2P_LEVEL=SYS lets NCCL use peers across the CPU, which it does not by itself for more than two GPUs".to_string()
        } else {
            "leave out what is named".to_string()
        },
        settings: switches.into_iter().map(without).collect(),
        source: "records of the report".to_string(),
    });
}

/// The launch has this switch.
fn given(switch: &Switch, invocation: &Invocation) -> bool {
    match switch.kind {
        SwitchKind::Environment | SwitchKind::Flag => !lacks(switch, invocation),
        SwitchKind::Configuration => {
            let value = invocation.value(&[format!("--{}", switch.name)]);
            value.is_some() && value == switch.value.as_deref()
        }
        SwitchKind::Unset | SwitchKind::Omit => false,
    }
}

/// How it is taken out.
fn without(switch: &Switch) -> String {
    match switch.kind {
        SwitchKind::Environment | SwitchKind::Unset => format!("unset {}", switch.name),
        SwitchKind::Flag | SwitchKind::Omit => format!("no {}", switch.name),
        SwitchKind::Configuration => format!("no --{}", switch.name),
    }
}

/// Whether the launch would be wrong without the flag: a trap waits for its absence, and all else of that trap is there.
fn wanted_elsewhere(
    engine: &EngineProfile,
    switch: &Switch,
    invocation: &Invocation,
    facts: &Facts,
    weighing: &Weighing,
) -> bool {
    let names_it = |clause: &Clause| matches!(clause, Clause::NoFlag(names) if names.iter().any(|n| plain(n) == plain(&switch.name)));
    switch.kind == SwitchKind::Flag
        && engine.traps.iter().any(|trap| {
            trap.severity > Severity::Info
                && trap.when.iter().any(names_it)
                && trap
                    .when
                    .iter()
                    .all(|clause| names_it(clause) || holds(clause, invocation, facts))
                && !trap
                    .host
                    .iter()
                    .any(|c| matches!(weighing.met(c), Met::No(_)))
        })
}
