//! Which GPUs a launch uses: every size by which it has more ranks than its tensor-parallel group, and what it may see.
//! A pair counts as used when any of its groups touches it.

use super::{read::Invocation, traps::Facts};
use crate::{
    diagnose::Evidence,
    model::{finding::Severity, launch::LaunchProblem, pair::GpuIndex},
    profile::Launch,
};

/// What a container was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// So many, whichever.
    Count(u32),
    /// These: indices or UUIDs of the host.
    Named(Vec<String>),
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
    /// What is wrong with it.
    pub(super) problems: Vec<LaunchProblem>,
    /// What could not be read.
    pub(super) unread: Vec<String>,
}

/// The GPUs that `invocation` uses.
pub(super) fn used(
    launch: &Launch,
    invocation: &Invocation,
    facts: &Facts,
    evidence: Option<&Evidence>,
) -> Used {
    let mut used = Used::default();
    let list = visible(launch, invocation, evidence, &mut used);
    let seen = list.as_ref().map(|l| l.count);
    used.visible = list.and_then(|l| l.members);
    count(launch, invocation, facts, seen, evidence, &mut used);
    for name in &launch.hosts {
        let given = invocation.flag(std::slice::from_ref(name));
        if given.is_some_and(|f| f.value.as_deref() != Some("1")) {
            used.unread.push(format!(
                "{name}: a launch over several hosts; this tool knows one host, and which of the ranks run on it is not in the text"
            ));
            used.count = None;
        }
    }
    let host = evidence.map(|e| e.snapshot.gpus.len() as u32);
    let place = match (seen, host) {
        (Some(seen), _) => Some((seen, "the launch may see")),
        (None, Some(host)) => Some((host, "the host of the report has")),
        (None, None) => None,
    };
    if let (Some(needed), Some((there, whose))) = (used.count, place)
        && needed > there
    {
        used.problems.push(LaunchProblem {
            id: "more-gpus-than-visible".to_string(),
            severity: Severity::Critical,
            wrong: format!("{} needs {needed} GPUs, and {whose} {there}: it does not start", used.told),
            change: "make the sizes smaller, or let it see more GPUs (CUDA_VISIBLE_DEVICES, the container's devices)".to_string(),
            settings: Vec::new(),
            source: "the launch itself".to_string(),
        });
    }
    used
}

fn count(
    launch: &Launch,
    invocation: &Invocation,
    facts: &Facts,
    seen: Option<u32>,
    evidence: Option<&Evidence>,
    used: &mut Used,
) {
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
    let mut total = facts.tp_read.then_some(facts.tp);
    used.told = format!("tensor parallel {}", facts.tp);
    for times in &launch.times {
        let Some(value) = invocation.value(&times.flags) else {
            continue;
        };
        if invocation.flag(&times.unless).is_some() {
            continue;
        }
        match value.parse::<u32>() {
            Ok(size) if size > 1 => {
                used.told.push_str(&format!(" x {size} {}", times.what));
                total = total.and_then(|t| t.checked_mul(size));
            }
            Ok(_) => {}
            Err(_) => {
                used.unread
                    .push(format!("{} '{value}' is no number", times.what));
                total = None;
            }
        }
    }
    if invocation.processes > 1 {
        used.told
            .push_str(&format!(" x {} processes", invocation.processes));
        total = total.and_then(|t| t.checked_mul(invocation.processes));
    }
    used.count = total;
}

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
        )),
    };
    let words = |text: &str| -> Vec<String> {
        text.split(',')
            .map(|w| w.trim().to_string())
            .filter(|w| !w.is_empty())
            .collect()
    };
    if let Some(text) = invocation.variables.get("CUDA_VISIBLE_DEVICES") {
        // CUDA stops at the first word that names no GPU.
        let names: Vec<String> = words(text).into_iter().take_while(|w| w != "-1").collect();
        list = Some(resolved(
            "CUDA_VISIBLE_DEVICES",
            &names,
            list.as_ref(),
            evidence,
            used,
        ));
    }
    if let Some(text) = invocation.value(&launch.devices) {
        let names: Vec<String> = words(text)
            .iter()
            .map(|w| w.trim_start_matches("CUDA").to_string())
            .collect();
        let flag = launch.devices.first().cloned().unwrap_or_default();
        list = Some(resolved(&flag, &names, list.as_ref(), evidence, used));
    }
    list
}

fn resolved(
    what: &str,
    names: &[String],
    below: Option<&List>,
    evidence: Option<&Evidence>,
    used: &mut Used,
) -> List {
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
