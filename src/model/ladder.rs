//! How the cases of a rung fared on one pair, and how high a pair climbed. One set of rules for what is judged and what is
//! printed. Knows what became of cases only, not why.

use super::{
    case::{Record, Rung},
    fared::Fared,
};
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RungState {
    /// Each mechanism that applies ran, and all of it was intact.
    Intact,
    /// At least one case counts against the host.
    Failed,
    /// The driver said a clean no to some of it.
    Refused,
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

/// The state of `rung` of one pair; `ladder` says which mechanisms belong to it (those that `rows` show belong to it in any
/// case).
pub fn rung_state(rows: &[Fared], rung: Rung, ladder: &[Step]) -> RungState {
    let here = || rows.iter().filter(|fared| fared.rung == rung);
    if here().any(|fared| fared.answers.failed()) {
        return RungState::Failed;
    }
    if here().any(|fared| fared.refused.is_some()) {
        return RungState::Refused;
    }
    let known = |mechanism: &str| here().any(|fared| fared.mechanism == mechanism);
    let open = here().filter(|fared| fared.open.is_some());
    let untried = ladder
        .iter()
        .filter(|step| step.rung == rung && !known(&step.mechanism));
    let missing: Vec<String> = open
        .map(|fared| fared.mechanism)
        .chain(untried.map(|step| step.mechanism.as_str()))
        .map(str::to_string)
        .collect();
    let ran = here().any(|fared| fared.answers.intact());
    match (ran, missing.is_empty(), here().next().is_none()) {
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
    pub loaded: RungState,
}

/// The climb of one pair.
pub fn climb<'a>(rows: &[Fared<'a>], ladder: &[Step]) -> Standing<'a> {
    let (mut reached, mut open) = (None, None);
    // Load stands on any rung and is no step above the sixth.
    let steps = Rung::LADDER.into_iter();
    for rung in steps.filter(|r| (Rung::Staged..Rung::Loaded).contains(r)) {
        match rung_state(rows, rung, ladder) {
            RungState::Intact => reached = Some(rung),
            RungState::Absent => {}
            RungState::Failed | RungState::Refused => break,
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
    let lowest = |what: fn(&Fared<'a>) -> Option<&'a Record>| {
        let all = rows.iter().filter_map(what);
        all.min_by_key(|r| (r.case.rung, r.case.id))
    };
    let corrupt = rows
        .iter()
        .filter_map(|fared| Some((fared.rung, fared.first_corrupt()?, fared.corrupt?)))
        .min_by_key(|(rung, first, _)| (*rung, *first));
    Standing {
        reached,
        stopped_by: corrupt
            .map(|(.., longest)| longest)
            .or_else(|| lowest(|fared| fared.broken))
            .or_else(|| lowest(|fared| fared.refused)),
        open,
        loaded: rung_state(rows, Rung::Loaded, &[]),
    }
}
