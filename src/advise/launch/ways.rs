//! Ways from GPU to GPU beside the all-reduces: experts' all-to-all, KV caches handed on, multicast. Each is held to what its
//! profile says it stands on, as consumers are; one of which no rung tests a part is never called proven.

use super::{
    clauses::{holds, may_be_met},
    forbidden::{left_on, may_be_off},
    read::Invocation,
    traps::{Facts, Question},
};
use crate::{
    advise::{
        conditions::{Met, Weighing},
        group::{Group, Peers},
        told,
    },
    diagnose::{Evidence, consumers_of},
    model::{
        finding::{Consumer, ConsumerState, Severity},
        launch::{LaunchCheck, LaunchProblem},
        pair::GpuIndex,
    },
    profile::{ConsumerPath, ConsumerProfile, EngineProfile, Reach, Way},
};

/// Judges the ways that this launch goes. `whole`: all its GPUs, where they are known.
pub(super) fn ways(
    engine: &EngineProfile,
    invocation: &Invocation,
    facts: &Facts,
    question: &Question,
    weighing: &Weighing,
    whole: Option<&Group>,
    answer: &mut LaunchCheck,
) {
    let goes = |way: &&Way| {
        let asked = way.when.iter().all(|c| holds(c, invocation, facts));
        let kept_off = way.unless.iter().any(|c| holds(c, invocation, facts))
            || (!way.off.is_empty() && way.off.iter().all(|s| !left_on(s, invocation)));
        let here = way
            .host
            .iter()
            .all(|c| !matches!(weighing.met(c), Met::No(_)));
        let grouped = way.reach != Reach::Group || facts.tp > 1 || facts.group_open;
        asked && !kept_off && here && grouped
    };
    for way in engine.ways.iter().filter(goes) {
        let (Some(e), Some(group)) = (weighing.evidence, whole) else {
            // Where there is a report, why it says nothing of this launch is said already.
            if question.evidence.is_none() && !way.when.is_empty() {
                answer.not_judged.push(format!(
                    "{}: {}; not judged without the host: --from REPORT tells it",
                    way.name, way.because
                ));
            }
            continue;
        };
        if group.unfit.is_none() {
            let group = match way.reach {
                Reach::Group => weighing.group,
                Reach::Launch | Reach::Host => group,
            };
            let off = way.off.iter();
            let off = off.filter(|s| left_on(s, invocation));
            let open = !way.off.is_empty()
                && (off.clone().all(|s| may_be_off(s, invocation))
                    || way.unless.iter().any(|c| may_be_met(c, invocation)));
            let problems = answer.problems.len();
            one(way, e, question, group, answer);
            // What keeps it off may stand in what was not read.
            if open {
                for problem in answer.problems.drain(problems..) {
                    answer.not_judged.push(format!(
                        "{}; what was not read of this launch may or may not keep it off",
                        problem.wrong
                    ));
                }
            }
        }
    }
}

fn one(way: &Way, e: &Evidence, question: &Question, group: &Group, answer: &mut LaunchCheck) {
    let others: Vec<GpuIndex> = match way.reach {
        Reach::Launch | Reach::Group => Vec::new(),
        Reach::Host => question
            .candidates
            .iter()
            .copied()
            .filter(|gpu| !group.gpus.contains(gpu))
            .collect(),
    };
    if group.world() < 2 && others.is_empty() {
        return;
    }
    // The engine goes it by itself: no word of the launch was left unjudged.
    if way.when.is_empty() {
        let open = way.untested.iter();
        answer
            .outside
            .extend(open.map(|what| format!("{} is not tested: {what}", way.name)));
        return;
    }
    let judged = judged(way, e, &group.gpus, &others);
    let vetoed = match (&judged, &group.peers) {
        (Some(c), _) if c.state == ConsumerState::Vetoed => Some(format!("it is {}", c.sentence)),
        (Some(_), Peers::Failed(seen)) if way.reach != Reach::Host => {
            Some(format!("peers of this group failed ({seen})"))
        }
        _ => None,
    };
    if let Some(seen) = vetoed {
        let elsewhere = match way.reach {
            Reach::Launch | Reach::Group => "",
            Reach::Host => " where its other end is on this host",
        };
        answer.problems.push(LaunchProblem {
            id: "way-over-failed-peers".to_string(),
            severity: Severity::Critical,
            wrong: format!("{}: {}{elsewhere}, and {seen}", way.name, way.because),
            change: "keep it off peers, or leave it out".to_string(),
            settings: way.off.iter().map(told).collect(),
            source: format!("records of the report; {}", way.source),
        });
        return;
    }
    let tell = |why: String| format!("{}: cannot tell: {why}", way.name);
    match (judged, &way.untested) {
        (None, None) => {}
        (None, Some(what)) => answer.not_judged.push(tell(what.clone())),
        (Some(c), _) if c.state == ConsumerState::NotApplicable => {
            answer.not_judged.push(tell(format!(
                "{}, and it {}; whether it then takes another way, or does not start, was not read",
                way.because, c.sentence
            )));
        }
        (Some(c), Some(what)) => answer
            .not_judged
            .push(tell(format!("{what}. What it stands on is {}", c.sentence))),
        (Some(c), None) if c.state == ConsumerState::Proven || c.as_far_as_tested => {
            answer.judged.push(format!("{}: {}", way.name, c.sentence));
        }
        (Some(c), None) => answer.not_judged.push(tell(c.sentence)),
    }
}

/// The verdict on what the way stands on: over the launch's own GPUs, and over each other one that may be its far end; the
/// worst counts. `None` for one that stands on nothing that is tested.
fn judged(way: &Way, e: &Evidence, own: &[GpuIndex], others: &[GpuIndex]) -> Option<Consumer> {
    if way.needs.is_empty() {
        return None;
    }
    let kind = ConsumerProfile {
        id: way.id.clone(),
        name: way.name.clone(),
        path: ConsumerPath::Direct,
        needs: way.needs.clone(),
        without_peer_access: Vec::new(),
        unused: Vec::new(),
        source: way.source.clone(),
    };
    let groups: Vec<Vec<GpuIndex>> = match others {
        [] => vec![own.to_vec()],
        some => some
            .iter()
            .map(|other| own.iter().chain([other]).copied().collect())
            .collect(),
    };
    let weight = |c: &Consumer| match c.state {
        ConsumerState::Vetoed => 3,
        ConsumerState::Unproven => 2,
        ConsumerState::NotApplicable => 1,
        ConsumerState::Proven => 0,
    };
    groups
        .iter()
        .filter_map(|group| consumers_of(e, group, std::slice::from_ref(&kind)).pop())
        .max_by_key(weight)
}
