//! What was found: grade, how far each pair climbed, what each mechanism did, causes held, who may rely on what. A case
//! that only one side ran says nothing of the other, and neither does what follows from it: a side that was not asked for it
//! is not worse for lacking it.

use super::{Matched, Tally, matching::Letter, reductions, traffic};
use crate::model::{
    case::{Load, Outcome, Record, Rung, Subject},
    fared::Fared,
    finding::{Confidence, ConsumerState, Finding, Judgement},
    group::Group,
    ladder::{self, Standing},
    pair::OrderedPair,
    report::{Grading, Report},
};
use std::collections::{BTreeMap, BTreeSet};

/// What was tried: subject in A's numbers, mechanism, rung, load.
type Tried<'a> = (Rung, &'a str, Option<Load>, Subject);

/// Which of the two was asked for less than the other.
#[derive(Debug, Clone, Copy)]
struct Less {
    a: bool,
    b: bool,
}

const LESS: &str = "its run was not asked for all that it rests on";

impl Less {
    /// By cases that the other planned and it did not. Those that a cause asked for in the run follow from what was found.
    fn of(a: &Report, b: &Report, matched: &Matched) -> Less {
        let planned = |report: &Report, side: Letter| -> BTreeSet<(String, bool, Subject)> {
            let own = report.records.iter().filter(|record| {
                let mut notes = record.notes.iter();
                !notes.any(|note| note.starts_with("asked by the cause"))
            });
            own.filter_map(|record| {
                let case = &record.case;
                Some((
                    case.mechanism.clone(),
                    case.load.is_some(),
                    matched.subject(side, case.subject)?,
                ))
            })
            .collect()
        };
        let (one, other) = (planned(a, Letter::A), planned(b, Letter::B));
        Less {
            a: !other.is_subset(&one),
            b: !one.is_subset(&other),
        }
    }

    /// The side that is the weaker one because it was asked for less, if so; `a_weaker` and `b_weaker` say whose statement
    /// says no more than the other's.
    fn excuses(self, a_weaker: bool, b_weaker: bool) -> Option<&'static str> {
        match (self.a && a_weaker, self.b && b_weaker) {
            (true, _) => Some("A"),
            (_, true) => Some("B"),
            _ => None,
        }
    }
}

/// Whether a grade may be what it is because less was asked: it is milder, or says that not enough was tested.
fn is_weaker(grade: Grading, other: Grading) -> bool {
    grade != other
        && match grade {
            Grading::Pass | Grading::Inconclusive => true,
            Grading::Warn => other == Grading::Fail,
            Grading::Fail => false,
        }
}

pub(super) fn compare(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
    let less = Less::of(a, b, matched);
    if a.kind() == b.kind() {
        let grades = (a.verdict.grading, b.verdict.grading);
        let weaker = (is_weaker(grades.0, grades.1), is_weaker(grades.1, grades.0));
        match less.excuses(weaker.0, weaker.1) {
            Some(side) => tally.one_sided("the verdict", side, LESS),
            None => tally.texts("verdict", "", grades.0.word(), grades.1.word()),
        }
    } else {
        // A grade of the ladder and one of rates say different things by the same word.
        tally.leave("the two verdicts", of_two_kinds(a, b), true);
    }
    if both(a, b, "tests of transfers", |r| r.records.len(), tally) {
        climbs(a, b, matched, less, tally);
        mechanisms(a, b, matched, tally);
    }
    if both(a, b, "all-reduces", |r| r.reductions.len(), tally) {
        reductions::compare(a, b, matched, tally);
    }
    if both(a, b, "timed copies", |r| r.traffic.len(), tally) {
        traffic::compare(a, b, matched, tally);
    }
    if both(a, b, "causes", |r| r.findings.len(), tally) {
        causes(&a.findings, &b.findings, less, tally);
    }
    // Both are about the GPUs of a run as one group.
    let group = |side, report: &Report| {
        matched
            .gpus(side, &report.tested_gpus)
            .filter(|gpus| !gpus.is_empty())
    };
    let groups = group(Letter::A, a).zip(group(Letter::B, b));
    let same_group = |what: &str, tally: &mut Tally| match &groups {
        Some((one, other)) if one != other => {
            let why = format!(
                "A is of {} GPUs and B of {}, and not of the same",
                one.len(),
                other.len()
            );
            tally.leave(what, why, true);
            false
        }
        _ => true,
    };
    let what = "who may rely on it";
    if both(a, b, what, |r| r.consumers.len(), tally) && same_group(what, tally) {
        consumers(a, b, less, tally);
        islands(a, b, matched, less, tally);
    }
    let what = "recommended all-reduces";
    if both(a, b, what, |r| r.recommendations.len(), tally) && same_group(what, tally) {
        backends(a, b, less, tally);
    }
    if let Some((one, other)) = a.selftest.as_ref().zip(b.selftest.as_ref()) {
        let word = |passed: bool| if passed { "passed" } else { "failed" };
        tally.texts("selftest", "", word(one.passed()), word(other.passed()));
    }
}

/// "A is a report of 'qualify', B one of 'measure'".
pub(super) fn of_two_kinds(a: &Report, b: &Report) -> String {
    let (one, other) = (a.kind().command(), b.kind().command());
    format!("A is a report of '{one}', B one of '{other}'")
}

/// Whether both hold a part of a report; where only one does, that is said and nothing of it is compared.
fn both(
    a: &Report,
    b: &Report,
    what: &str,
    count: impl Fn(&Report) -> usize,
    tally: &mut Tally,
) -> bool {
    let (has, many, lacks, other) = match (count(a), count(b)) {
        (0, 0) => return false,
        (0, many) => ("B", many, "A", a),
        (many, 0) => ("A", many, "B", b),
        _ => return true,
    };
    let why = match a.kind() == b.kind() {
        true if other.interrupted => format!("{lacks} was cut short before it"),
        true => format!("the run of {lacks} took none"),
        false => format!("{lacks} is a report of '{}'", other.kind().command()),
    };
    tally.only_in(what, many, has, &why);
    false
}

fn by_pair(report: &Report) -> BTreeMap<OrderedPair, Vec<&Record>> {
    let mut map: BTreeMap<OrderedPair, Vec<&Record>> = BTreeMap::new();
    for record in &report.records {
        if let Subject::Pair(pair) = record.case.subject {
            map.entry(pair).or_default().push(record);
        }
    }
    map
}

fn rung_words(rung: Option<Rung>) -> String {
    match rung.and_then(Rung::number) {
        Some(number) => format!("proven up to rung {number}"),
        None => "nothing proven".to_string(),
    }
}

fn climb_words(standing: &Standing<'_>) -> String {
    match standing.stopped_by {
        Some(record) => {
            let rung = record.case.rung;
            let number = rung
                .number()
                .map_or(String::new(), |n| format!(" at rung {n}"));
            format!(
                "{}{number} by {}; {}",
                record.outcome.word(),
                record.case.mechanism,
                rung_words(standing.reached)
            )
        }
        None => rung_words(standing.reached),
    }
}

fn climbs(a: &Report, b: &Report, matched: &Matched, less: Less, tally: &mut Tally) {
    let (in_a, in_b) = (by_pair(a), by_pair(b));
    for (one, other) in matched.pairs() {
        let (Some(mine), Some(theirs)) = (in_a.get(&one), in_b.get(&other)) else {
            match (in_a.contains_key(&one), in_b.contains_key(&other)) {
                (true, false) => tally.one_sided("pairs", "B", "not tested"),
                (false, true) => tally.one_sided("pairs", "A", "not tested"),
                _ => {}
            }
            continue;
        };
        let (all_mine, all_theirs) = (mine, theirs);
        let mine = ladder::climb(&Fared::all(mine), &a.ladder);
        let theirs = ladder::climb(&Fared::all(theirs), &b.ladder);
        // What stopped one of them was not tried on the other.
        let untried = |stopped: &Standing<'_>, records: &[&Record]| {
            stopped.stopped_by.is_some_and(|by| {
                let mut same = records.iter().filter(|r| r.outcome.ran());
                !same.any(|r| r.case.mechanism == by.case.mechanism && r.case.load == by.case.load)
            })
        };
        let stopped = (mine.stopped_by.is_some(), theirs.stopped_by.is_some());
        if less.b && stopped == (true, false) && untried(&mine, all_theirs) {
            tally.one_sided("rungs of pairs", "B", "what stops it was not tried");
            continue;
        }
        if less.a && stopped == (false, true) && untried(&theirs, all_mine) {
            tally.one_sided("rungs of pairs", "A", "what stops it was not tried");
            continue;
        }
        // A climb that ended because nothing further was tried is no worse than one that went on.
        if mine.stopped_by.is_none() && theirs.stopped_by.is_none() {
            let ended = |lower: &Standing<'_>, upper: &Standing<'_>| {
                lower.reached < upper.reached && lower.open.is_some()
            };
            if ended(&mine, &theirs) {
                tally.one_sided("rungs of pairs", "A", "not tested as far up");
                continue;
            }
            if ended(&theirs, &mine) {
                tally.one_sided("rungs of pairs", "B", "not tested as far up");
                continue;
            }
        }
        let words = (climb_words(&mine), climb_words(&theirs));
        tally.texts("pair", &one.to_string(), &words.0, &words.1);
    }
}

/// The worst that was seen of one thing: wrong data before all else, then what ended badly, then a refusal.
fn weight(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Corrupt(_) => 5,
        other if other.is_failure() => 4,
        Outcome::Refused { .. } => 3,
        Outcome::Intact => 2,
        Outcome::NotApplicable { .. } => 1,
        _ => 0,
    }
}

/// The worse of two; the first of equals.
pub(super) fn worse<'a>(a: &'a Outcome, b: &'a Outcome) -> &'a Outcome {
    if weight(b) > weight(a) { b } else { a }
}

/// In a word; nothing of what did not run.
pub(super) fn told(outcome: &Outcome) -> Option<&'static str> {
    let ran = !matches!(outcome, Outcome::NotRun { .. });
    ran.then(|| outcome.word())
}

fn tried<'a>(
    report: &'a Report,
    subject: impl Fn(Subject) -> Option<Subject>,
) -> BTreeMap<Tried<'a>, &'a Outcome> {
    let mut map: BTreeMap<Tried<'a>, &Outcome> = BTreeMap::new();
    for record in &report.records {
        let case = &record.case;
        let Some(subject) = subject(case.subject) else {
            continue;
        };
        map.entry((case.rung, case.mechanism.as_str(), case.load, subject))
            .and_modify(|known| *known = worse(known, &record.outcome))
            .or_insert(&record.outcome);
    }
    map
}

/// Mechanism and rung in words.
pub(super) fn what(mechanism: &str, rung: Rung, load: Option<Load>) -> String {
    let rung = rung
        .number()
        .map_or(String::new(), |n| format!(" at rung {n}"));
    let load = load.map_or(String::new(), |load| format!(", {}", load.words()));
    format!("{mechanism}{rung}{load}")
}

fn mechanisms(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
    let one = tried(a, |subject| matched.subject(Letter::A, subject));
    let other = tried(b, |subject| matched.subject(Letter::B, subject));
    let keys: BTreeSet<&Tried<'_>> = one.keys().chain(other.keys()).collect();
    for key @ (rung, mechanism, load, subject) in keys {
        let what = what(mechanism, *rung, *load);
        let sides = (
            one.get(key).copied().and_then(told),
            other.get(key).copied().and_then(told),
        );
        tally.ran(&what, &subject.to_string(), sides);
    }
}

/// A cause is held or it is not; why it is not held (cleared, no evidence) is no difference of the host.
fn causes(a: &[Finding], b: &[Finding], less: Less, tally: &mut Tally) {
    let held = |list: &[Finding]| -> BTreeMap<String, String> {
        let indicted = list.iter().filter(|f| f.judgement == Judgement::Indicted);
        indicted
            .map(|finding| {
                let sure = match finding.confidence {
                    Confidence::Possible => "possible",
                    Confidence::Probable => "probable",
                    Confidence::Established => "established",
                };
                let of = match (finding.pairs.len(), finding.gpus.len()) {
                    (0, 0) => String::new(),
                    (0, gpus) => format!(", {gpus} GPUs"),
                    (pairs, _) => format!(", {pairs} pairs"),
                };
                (finding.cause.clone(), format!("{sure}{of}"))
            })
            .collect()
    };
    let (one, other) = (held(a), held(b));
    let known: BTreeSet<&String> = a.iter().chain(b).map(|f| &f.cause).collect();
    for cause in known {
        let word = |map: &BTreeMap<String, String>| {
            map.get(cause)
                .cloned()
                .unwrap_or_else(|| "not held".to_string())
        };
        let (a, b) = (word(&one), word(&other));
        let what = format!("cause {cause}");
        // Held by both, of fewer pairs or less surely, it is held all the same.
        let both = one.contains_key(cause) && other.contains_key(cause);
        let side = less.excuses(
            a != b && (both || !one.contains_key(cause)),
            a != b && (both || !other.contains_key(cause)),
        );
        match side {
            Some(side) => tally.one_sided(&what, side, LESS),
            None => tally.texts(&what, "", &a, &b),
        }
    }
}

/// Whether a state may be what it is because less was asked: only a veto, what does not exist, and a proof beside none are
/// statements of their own. A veto comes before what engines do not use, so that a side without one says no more.
fn no_more(state: ConsumerState, other: ConsumerState) -> bool {
    match state {
        ConsumerState::Unproven => true,
        ConsumerState::Proven => matches!(other, ConsumerState::Proven | ConsumerState::Vetoed),
        ConsumerState::NotApplicable => other == ConsumerState::Vetoed,
        ConsumerState::Vetoed => false,
    }
}

fn consumers(a: &Report, b: &Report, less: Less, tally: &mut Tally) {
    for one in &a.consumers {
        let Some(other) = b.consumers.iter().find(|c| c.id == one.id) else {
            let why = format!("peerproof {} does not judge it", b.tool_version);
            tally.one_sided(&one.name, "B", &why);
            continue;
        };
        let word = |consumer: &crate::model::finding::Consumer| {
            let reached = consumer.reached.and_then(Rung::number);
            let state = match consumer.state {
                ConsumerState::Proven => "proven",
                ConsumerState::Vetoed => return "vetoed".to_string(),
                ConsumerState::NotApplicable => return "does not exist here".to_string(),
                ConsumerState::Unproven if consumer.as_far_as_tested => "proven as far as tested",
                ConsumerState::Unproven => "unproven",
            };
            match reached {
                Some(rung) => format!("{state}, up to rung {rung}"),
                None => state.to_string(),
            }
        };
        let (a, b) = (word(one), word(other));
        let weaker = |one, other| a != b && no_more(one, other);
        let side = less.excuses(
            weaker(one.state, other.state),
            weaker(other.state, one.state),
        );
        match side {
            Some(side) => tally.one_sided(&one.name, side, LESS),
            None => tally.texts(&one.name, "", &a, &b),
        }
    }
    for other in &b.consumers {
        if !a.consumers.iter().any(|c| c.id == other.id) {
            let why = format!("peerproof {} does not judge it", a.tool_version);
            tally.one_sided(&other.name, "A", &why);
        }
    }
}

/// Where the whole group may not rely on something, its islands still may.
fn islands(a: &Report, b: &Report, matched: &Matched, less: Less, tally: &mut Tally) {
    let all = |report: &Report, side: Letter| -> BTreeMap<(String, Group), ConsumerState> {
        let consumers = report.consumers.iter();
        let islands = consumers.flat_map(|consumer| {
            let of = consumer.islands.iter();
            of.map(|island| (consumer.name.clone(), island))
        });
        let known = islands.filter_map(|(name, island)| {
            let gpus: Vec<u32> = island.gpus.iter().map(|gpu| gpu.0).collect();
            Some((
                (name, Group::new(matched.gpus(side, &gpus)?)?),
                island.state,
            ))
        });
        known.collect()
    };
    let (one, other) = (all(a, Letter::A), all(b, Letter::B));
    for ((name, group), mine) in &one {
        if let Some(theirs) = other.get(&(name.clone(), *group)) {
            let word = |state: &ConsumerState| match state {
                ConsumerState::Proven => "proven",
                ConsumerState::Vetoed => "vetoed",
                ConsumerState::Unproven => "unproven",
                ConsumerState::NotApplicable => "does not exist here",
            };
            let what = format!("{name}, island alone");
            let weaker = |one, other| one != other && no_more(one, other);
            match less.excuses(weaker(*mine, *theirs), weaker(*theirs, *mine)) {
                Some(side) => tally.one_sided(&what, side, LESS),
                None => tally.texts(&what, &group.to_string(), word(mine), word(theirs)),
            }
        }
    }
}

/// What follows for engines: which all-reduce each is told to use.
fn backends(a: &Report, b: &Report, less: Less, tally: &mut Tally) {
    for one in &a.recommendations {
        if let Some(other) = b.recommendations.iter().find(|r| r.engine == one.engine) {
            let what = "recommended all-reduce";
            let names = (&one.backend_name, &other.backend_name);
            let differ = names.0 != names.1;
            match less.excuses(differ, differ) {
                Some(side) => tally.one_sided(what, side, LESS),
                None => tally.texts(what, &one.engine, names.0, names.1),
            }
        }
    }
}
