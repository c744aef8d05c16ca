//! How the cases of a rung fared on one pair, and how high a pair climbed. One set of rules for what is judged and what is
//! printed. Knows records only, not why anything is wrong.

use super::case::{Outcome, Record, Rung};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mechanism and the rung on which it stands. The list of them is the ladder as one version of the tool knows it: a rung
/// is proven only when each of its mechanisms that applies ran.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Mechanism id.
    pub mechanism: String,
    /// Its rung.
    pub rung: Rung,
}

/// How the cases of one rung fared on a pair.
#[derive(Debug, Clone, PartialEq)]
pub enum RungState<'a> {
    /// Each mechanism that applies ran, and all of it was intact.
    Intact,
    /// At least one case counts against the host: wrong data before all else, then the first.
    Failed(&'a Record),
    /// The driver said a clean no to some of it.
    Refused(&'a Record),
    /// Nothing of it exists here.
    Absent,
    /// What ran was intact, and these mechanisms did not run, or not at every planned size.
    Partial(Vec<String>),
    /// Nothing of it ran.
    Untested,
}

/// Whether the case of `missing` has another record among `here` that ran, as when a shared round left it open and it was run
/// again alone; or whether it is more of what other cases of its mechanism tried or left open, as all of a soak is.
pub fn made_up_for(missing: &Record, here: &[&Record]) -> bool {
    let mut tried = here
        .iter()
        .filter(|other| !other.case.soak && other.case.mechanism == missing.case.mechanism);
    if missing.case.soak && tried.next().is_some() {
        return true;
    }
    here.iter().any(|other| {
        // Numbers first: names cost more to compare.
        other.case.bytes == missing.case.bytes
            && other.case.offset == missing.case.offset
            && other.outcome.ran()
            && other.case.load == missing.case.load
            && other.case.mechanism == missing.case.mechanism
            && other.case.all_reduce == missing.case.all_reduce
    })
}

/// The state of `rung` from the records of one pair; `ladder` says which mechanisms belong to it (those that `records`
/// show belong to it in any case).
pub fn rung_state<'a>(records: &[&'a Record], rung: Rung, ladder: &[Step]) -> RungState<'a> {
    let here: Vec<&Record> = records
        .iter()
        .copied()
        .filter(|r| r.case.rung == rung)
        .collect();
    state(&here, rung, ladder)
}

/// The state of a rung from its own records.
fn state<'a>(here: &[&'a Record], rung: Rung, ladder: &[Step]) -> RungState<'a> {
    // One look at each record: on a whole host these are thousands.
    let (mut failed, mut refused, mut ran) = (None, None, false);
    let mut open: Vec<&Record> = Vec::new();
    let mut known: Vec<&str> = Vec::new();
    for record in here.iter().copied() {
        match &record.outcome {
            Outcome::Intact => ran = true,
            // Wrong data seen once outranks whatever came later.
            Outcome::Corrupt(_) => return RungState::Failed(record),
            Outcome::Refused { .. } => refused = refused.or(Some(record)),
            Outcome::NotRun { .. } => open.push(record),
            other if other.is_failure() => failed = failed.or(Some(record)),
            _ => {}
        }
        // Cases of one mechanism come one after the other.
        let mechanism = record.case.mechanism.as_str();
        if known.last() != Some(&mechanism) {
            known.push(mechanism);
        }
    }
    if let Some(record) = failed {
        return RungState::Failed(record);
    }
    if let Some(record) = refused {
        return RungState::Refused(record);
    }
    let mut missing: Vec<String> = Vec::new();
    let mut lacks = |mechanism: &str| {
        if !missing.iter().any(|m| m == mechanism) {
            missing.push(mechanism.to_string());
        }
    };
    for record in open {
        if !made_up_for(record, here) {
            lacks(&record.case.mechanism);
        }
    }
    for step in ladder.iter().filter(|s| s.rung == rung) {
        if !known.contains(&step.mechanism.as_str()) {
            lacks(&step.mechanism);
        }
    }
    match (ran, missing.is_empty(), here.is_empty()) {
        (true, true, _) => RungState::Intact,
        (true, false, _) => RungState::Partial(missing),
        (false, true, false) => RungState::Absent,
        (false, ..) => RungState::Untested,
    }
}

/// How far a pair came on the ladder.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing<'a> {
    /// Highest rung proven together with all rungs below it that exist here; `None` when not even rung 1 is.
    pub reached: Option<Rung>,
    /// What stands in the way: wrong data on the lowest rung that has any, else the lowest failure, else the lowest refusal.
    pub stopped_by: Option<&'a Record>,
    /// Where the climb ended without a failure or refusal: the rung, and the mechanisms that it lacks (none named: nothing
    /// of it was tried).
    pub open: Option<(Rung, Vec<String>)>,
    /// Rung 7, which stands on any rung: what was tried under load.
    pub loaded: RungState<'a>,
}

/// The climb of one pair from its records.
pub fn climb<'a>(records: &[&'a Record], ladder: &[Step]) -> Standing<'a> {
    let (mut reached, mut open) = (None, None);
    let mut sorted: Vec<(Rung, &'a Record)> = records.iter().map(|r| (r.case.rung, *r)).collect();
    // Stable: within a rung the order of the run.
    sorted.sort_by_key(|(rung, _)| *rung);
    let (rungs, sorted): (Vec<Rung>, Vec<&Record>) = sorted.into_iter().unzip();
    let state_of = |rung: Rung, ladder: &[Step]| {
        let from = rungs.partition_point(|r| *r < rung);
        let to = rungs.partition_point(|r| *r <= rung);
        state(&sorted[from..to], rung, ladder)
    };
    // Load stands on any rung and is no step above the sixth.
    let steps = Rung::LADDER.into_iter();
    for rung in steps.filter(|r| (Rung::Staged..Rung::Loaded).contains(r)) {
        match state_of(rung, ladder) {
            RungState::Intact => reached = Some(rung),
            RungState::Absent => {}
            RungState::Failed(_) | RungState::Refused(_) => break,
            RungState::Partial(missing) => {
                open = Some((rung, missing));
                break;
            }
            RungState::Untested => {
                open = Some((rung, Vec::new()));
                break;
            }
        }
    }
    let bad = |r: &&Record| r.outcome.is_failure() || matches!(r.outcome, Outcome::Refused { .. });
    let bad: Vec<&Record> = records.iter().copied().filter(bad).collect();
    let lowest = |wanted: &dyn Fn(&Record) -> bool| {
        let all = bad.iter().copied().filter(|r| wanted(r));
        all.min_by_key(|r| (r.case.rung, r.case.id))
    };
    // A transfer of a few bytes cannot tell a shift from a drop: of one mechanism's cases the longest speaks.
    let units = |r: &Record| r.outcome.corruption().map_or(0, |c| c.units);
    let failed = lowest(&|r| r.outcome.corruption().is_some())
        .or_else(|| lowest(&|r| r.outcome.is_failure()))
        .map(|first| {
            let same = records.iter().copied().filter(|r| {
                r.case.mechanism == first.case.mechanism
                    && r.case.rung == first.case.rung
                    && units(r) > units(first)
            });
            same.max_by_key(|r| (units(r), std::cmp::Reverse(r.case.id)))
                .unwrap_or(first)
        });
    Standing {
        reached,
        stopped_by: failed.or_else(|| lowest(&|r| matches!(r.outcome, Outcome::Refused { .. }))),
        open,
        loaded: state_of(Rung::Loaded, &[]),
    }
}
