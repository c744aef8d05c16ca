//! What the evidence of a host forbids in a launch: peers that failed are off in every consumer or not at all, kernels that
//! reach their peers through the host are slower than NCCL, ranks that tear islands apart.

use super::{
    clauses::{holds, may_be_met},
    read::{Invocation, plain},
    traps::Facts,
};
use crate::{
    advise::{
        caveats::{islands, registry_words},
        conditions::{Met, Weighing, is_peer_kernel},
        group::{Group, Peers},
        told,
    },
    model::{
        finding::Severity,
        launch::{LaunchCheck, LaunchProblem},
    },
    profile::{Backend, Clause, Condition, EngineProfile, Switch, SwitchKind},
};

/// What the host's evidence forbids: peers that failed must be off in every consumer, not in one.
pub(super) fn forbidden(
    engine: &EngineProfile,
    invocation: &Invocation,
    facts: &Facts,
    weighing: &Weighing,
    whole: Option<&Group>,
    answer: &mut LaunchCheck,
) {
    let group = whole.unwrap_or(weighing.group);
    if let Some(why) = &group.unfit {
        answer.problems.push(LaunchProblem {
            id: "group-must-not-serve".to_string(),
            severity: Severity::Critical,
            wrong: format!("this group reads wrong bytes whatever it is launched with: {why}"),
            change: "do not serve on it until the fault is gone".to_string(),
            settings: Vec::new(),
            source: "records of the report".to_string(),
        });
        return;
    }
    if group.world() < 2 {
        return;
    }
    if let Some(e) = weighing.evidence {
        let mut said = Vec::new();
        islands(e, group, &mut said);
        for sentence in said {
            answer.problems.push(LaunchProblem {
                id: "islands-interleaved".to_string(),
                severity: Severity::Warning,
                wrong: sentence,
                change: "name the GPUs island by island in CUDA_VISIBLE_DEVICES".to_string(),
                settings: Vec::new(),
                source: "FlashInfer pcie_ipc; b12x".to_string(),
            });
        }
    }
    if weighing.request.tp > 1 {
        slow_kernels(engine, invocation, group, answer);
    }
    let mut switches = engine.peer_off.iter();
    if switches.any(|s| s.name == "NCCL_P2P_DISABLE" && !left_on(s, invocation))
        && let Some(wrong) = weighing.evidence.and_then(registry_words)
    {
        answer.problems.push(LaunchProblem {
            id: "registry-words-without-peers".to_string(),
            severity: Severity::Info,
            wrong,
            change: "delete the NVreg_RegistryDwords line from /etc/modprobe.d, or let the launch use its peers once they are proven".to_string(),
            settings: Vec::new(),
            source: "club-3090".to_string(),
        });
    }
    match &group.peers {
        Peers::Failed(seen) => {
            let missing: Vec<&Switch> = engine
                .peer_off
                .iter()
                .filter(|s| {
                    s.when
                        .iter()
                        .all(|c| !matches!(weighing.met(c), Met::No(_)))
                })
                .filter(|s| !s.for_others)
                .filter(|s| left_on(s, invocation))
                .filter(|s| of_use(s, invocation, facts) != Some(false))
                .collect();
            let (missing, unsure): (Vec<&Switch>, Vec<&Switch>) = missing
                .into_iter()
                .partition(|s| of_use(s, invocation, facts) == Some(true));
            if !unsure.is_empty() {
                let unsure: Vec<String> = unsure.into_iter().map(told).collect();
                answer.not_judged.push(format!(
                    "peers of this group failed ({seen}), and what was not read of this launch decides whether it needs {}",
                    unsure.join(", ")
                ));
            }
            let (open, missing): (Vec<&Switch>, Vec<&Switch>) =
                missing.into_iter().partition(|s| may_be_off(s, invocation));
            if !open.is_empty() {
                let open: Vec<String> = open.into_iter().map(told).collect();
                answer.not_judged.push(format!(
                    "peers of this group failed ({seen}), and what was not read of this launch may or may not hold {}",
                    open.join(", ")
                ));
            }
            if missing.is_empty() {
                return;
            }
            answer.problems.push(LaunchProblem {
                id: "failed-peers-in-use".to_string(),
                severity: Severity::Critical,
                wrong: format!(
                    "peers of this group failed ({seen}), and this launch leaves paths to them on{}",
                    as_caution(engine, weighing, &missing)
                ),
                change: "switch every one of them off; half of the list leaves a path on"
                    .to_string(),
                settings: missing.into_iter().map(told).collect(),
                source: "records of the report".to_string(),
            });
        }
        Peers::Unproven(why) if weighing.evidence.is_some() => answer
            .not_judged
            .push(format!("whether peers may be used: {why}")),
        _ => {}
    }
}

/// Whether the launch has a use for the switch; `None` where what was not read of it decides.
fn of_use(switch: &Switch, invocation: &Invocation, facts: &Facts) -> Option<bool> {
    let meets = |clause: &&Clause| holds(clause, invocation, facts);
    if switch.unless.iter().any(|c| meets(&c)) && !says_the_opposite(switch, invocation) {
        return Some(false);
    }
    let unread = |clause: &&Clause| match clause {
        Clause::FlagIs(named) | Clause::FlagIsNot(named) => invocation
            .value(std::slice::from_ref(&named.name))
            .is_some_and(|v| v.contains(['$', '`'])),
        _ => false,
    };
    let mut asked = switch.asked_by.iter().filter(meets).peekable();
    if switch.asked_by.is_empty() {
        Some(true)
    } else if asked.peek().is_some() {
        asked.any(|c| !unread(&c)).then_some(true)
    } else if switch.asked_by.iter().any(|c| may_be_met(c, invocation)) {
        None
    } else {
        Some(false)
    }
}

/// A key of the switch's object is given with another value.
fn says_the_opposite(switch: &Switch, invocation: &Invocation) -> bool {
    let object = switch.value.as_deref().map(serde_json::from_str);
    let Some(Ok(serde_json::Value::Object(map))) = object else {
        return false;
    };
    let mut wanted = Vec::new();
    leaves(&plain(&switch.name), &map, &mut wanted);
    wanted.iter().any(|(name, value)| {
        let given = invocation.value(std::slice::from_ref(name));
        given.is_some_and(|v| v != value)
    })
}

/// Why a backend cannot run on this group whatever its peers can do; `None` where it can, or where that is not known.
pub(super) fn idle(backend: &Backend, weighing: &Weighing) -> Option<String> {
    let fixed = |c: &&Condition| match c {
        Condition::WorldSize(_) => true,
        Condition::FullNvlinkAbove(_)
        | Condition::FullNvlink(_)
        | Condition::Fabric(_)
        | Condition::ComputeCapability(_)
        | Condition::ComputeAtLeast(_) => weighing.evidence.is_some(),
        _ => false,
    };
    let mut all = backend.when.iter().filter(fixed);
    all.find_map(|c| match weighing.met(c) {
        Met::No(why) => Some(why),
        _ => None,
    })
}

/// What is said of those of `missing` whose backends stay off on this group by themselves.
fn as_caution(engine: &EngineProfile, weighing: &Weighing, missing: &[&Switch]) -> String {
    let idle_by = |switch: &&&Switch| {
        let own = |b: &&Backend| {
            let mut all = b.turn_on.iter().chain(&b.turn_off);
            all.any(|s| s.name == switch.name)
        };
        let mut backends = engine.backends.iter().filter(own).peekable();
        backends.peek().is_some() && backends.all(|b| idle(b, weighing).is_some())
    };
    let said: Vec<String> = missing.iter().filter(idle_by).map(|s| told(s)).collect();
    match said.is_empty() {
        true => String::new(),
        false => format!(
            "; {} out of caution: in the version that was read its backend stays off on this group by itself, and another version may run it",
            said.join(", ")
        ),
    }
}

/// Kernels that reach their peers through the host are slower than NCCL, whatever is proven of their bytes.
fn slow_kernels(
    engine: &EngineProfile,
    invocation: &Invocation,
    group: &Group,
    answer: &mut LaunchCheck,
) {
    let Some(seen) = &group.staged_kernels else {
        return;
    };
    // A backend that wants NVLink for this group is off by itself.
    let nvlink_only = |b: &Backend| {
        b.when.iter().any(|c| match c {
            Condition::FullNvlinkAbove(limit) => group.world() > *limit,
            Condition::FullNvlink(wanted) => *wanted,
            _ => false,
        })
    };
    let mut left: Vec<&Switch> = Vec::new();
    let kernels = engine.backends.iter().filter(|b| is_peer_kernel(b));
    for switch in kernels
        .filter(|b| !nvlink_only(b))
        .flat_map(|b| &b.turn_off)
    {
        if left_on(switch, invocation) && !left.contains(&switch) {
            left.push(switch);
        }
    }
    left.retain(|switch| !may_be_off(switch, invocation));
    if left.is_empty() {
        return;
    }
    answer.problems.push(LaunchProblem {
        id: "kernels-through-the-host".to_string(),
        severity: Severity::Warning,
        wrong: format!(
            "kernels reach peers of this group through the host ({seen}), and this launch leaves all-reduces by kernels on: about fifteen times slower than NCCL was seen"
        ),
        change: "switch them off, keep NCCL".to_string(),
        settings: left.into_iter().map(told).collect(),
        source: "records of the report; rtx6kpro notes".to_string(),
    });
}

/// Whether the launch lacks a switch that is needed, and every other setting that does the same.
pub(super) fn left_on(switch: &Switch, invocation: &Invocation) -> bool {
    let same = switch.same_as.iter().any(|named| {
        let value = invocation.variables.get(&named.name);
        let known = !invocation.unknown.contains_key(&named.name);
        known && value.is_some_and(|v| named.values.contains(v))
    });
    !same && lacks(switch, invocation)
}

/// Whether a switch that seems to be missing may stand in what was not read.
pub(super) fn may_be_off(switch: &Switch, invocation: &Invocation) -> bool {
    let same = switch.same_as.iter();
    match switch.kind {
        SwitchKind::Environment => {
            invocation.may_hold(&switch.name)
                || same
                    .map(|n| &n.name)
                    .any(|name| invocation.may_hold(name) && !invocation.variables_open)
        }
        SwitchKind::Unset => invocation.unknown.contains_key(&switch.name),
        SwitchKind::Flag | SwitchKind::Configuration => invocation.may_hold_flags(),
        SwitchKind::Omit => false,
    }
}

/// Whether the launch lacks exactly this switch.
pub(super) fn lacks(switch: &Switch, invocation: &Invocation) -> bool {
    let names = [switch.name.clone()];
    match switch.kind {
        SwitchKind::Environment if invocation.unknown.contains_key(&switch.name) => true,
        SwitchKind::Unset => {
            invocation.variables.contains_key(&switch.name)
                && !invocation.switched_off.contains(&switch.name)
        }
        SwitchKind::Omit => invocation.flag(&names).is_some(),
        SwitchKind::Environment => invocation.variables.get(&switch.name) != switch.value.as_ref(),
        SwitchKind::Flag => match switch.value.as_deref() {
            None => invocation.flag(&names).is_none(),
            Some(value) => match serde_json::from_str(value) {
                Ok(serde_json::Value::Object(map)) => {
                    let mut wanted = Vec::new();
                    leaves(&plain(&switch.name), &map, &mut wanted);
                    wanted.iter().any(|(name, value)| {
                        invocation.value(std::slice::from_ref(name)) != Some(value.as_str())
                    })
                }
                _ => invocation.value(&names) != Some(value),
            },
        },
        // Not part of a command line; one that is absent is the default.
        SwitchKind::Configuration => {
            invocation.value(&[format!("--{}", switch.name)]) != switch.value.as_deref()
                && switch
                    .value
                    .as_deref()
                    .is_some_and(|v| !v.starts_with("off"))
        }
    }
}

fn leaves(
    prefix: &str,
    map: &serde_json::Map<String, serde_json::Value>,
    all: &mut Vec<(String, String)>,
) {
    for (key, value) in map {
        let name = format!("{prefix}.{key}");
        match value {
            serde_json::Value::Object(inner) => leaves(&name, inner, all),
            other => all.push((name, other.to_string())),
        }
    }
}
