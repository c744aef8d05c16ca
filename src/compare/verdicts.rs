//! What was found: grade, how far each pair climbed, what each mechanism did, causes held, who may rely on what. A case
//! that only one side ran says nothing of the other.

use super::{Matched, Tally};
use crate::model::{
    case::{Load, Outcome, Record, Rung, Subject},
    finding::{Confidence, ConsumerState, Finding, Judgement},
    ladder::{self, Standing},
    pair::{GpuIndex, OrderedPair},
    report::Report,
};
use std::collections::{BTreeMap, BTreeSet};

/// What was tried: subject in A's numbers, mechanism, rung, load.
type Tried<'a> = (Rung, &'a str, Option<Load>, Subject);

pub(super) fn compare(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
    let grades = (a.verdict.grading.word(), b.verdict.grading.word());
    tally.texts("verdict", "", grades.0, grades.1);
    climbs(a, b, matched, tally);
    mechanisms(a, b, matched, tally);
    reductions(a, b, matched, tally);
    causes(&a.findings, &b.findings, tally);
    consumers(a, b, tally);
    if let Some((one, other)) = a.selftest.as_ref().zip(b.selftest.as_ref()) {
        let word = |passed: bool| if passed { "passed" } else { "failed" };
        tally.texts("selftest", "", word(one.passed()), word(other.passed()));
    }
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

fn climbs(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
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
        let mine = ladder::climb(mine, &a.ladder);
        let theirs = ladder::climb(theirs, &b.ladder);
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
            .and_modify(|known| {
                if weight(&record.outcome) > weight(known) {
                    *known = &record.outcome;
                }
            })
            .or_insert(&record.outcome);
    }
    map
}

/// A subject of A that has a counterpart.
pub(super) fn of_a(matched: &Matched, subject: Subject) -> Option<Subject> {
    let known = match subject {
        Subject::Gpu(gpu) => matched.knows(gpu),
        Subject::Pair(pair) => matched.knows(pair.source) && matched.knows(pair.destination),
    };
    known.then_some(subject)
}

/// A subject of B in A's numbers.
pub(super) fn of_b(matched: &Matched, subject: Subject) -> Option<Subject> {
    Some(match subject {
        Subject::Gpu(gpu) => Subject::Gpu(matched.gpu_from_b(gpu)?),
        Subject::Pair(pair) => Subject::Pair(matched.pair_from_b(pair)?),
    })
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
    let one = tried(a, |subject| of_a(matched, subject));
    let other = tried(b, |subject| of_b(matched, subject));
    let keys: BTreeSet<&Tried<'_>> = one.keys().chain(other.keys()).collect();
    for key @ (rung, mechanism, load, subject) in keys {
        let told = |map: &BTreeMap<Tried<'_>, &Outcome>| {
            let outcome = map.get(key).copied();
            outcome
                .filter(|o| !matches!(o, Outcome::NotRun { .. }))
                .map(|o| o.word().to_string())
        };
        let what = what(mechanism, *rung, *load);
        match (told(&one), told(&other)) {
            (Some(a), Some(b)) => tally.texts(&what, &subject.to_string(), &a, &b),
            (Some(_), None) => tally.one_sided(&what, "B", "not run"),
            (None, Some(_)) => tally.one_sided(&what, "A", "not run"),
            (None, None) => {}
        }
    }
}

fn reductions(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
    type Key = (String, Vec<u32>);
    fn worst(
        report: &Report,
        gpus: impl Fn(&[u32]) -> Option<Vec<u32>>,
    ) -> BTreeMap<Key, &Outcome> {
        let mut map: BTreeMap<Key, &Outcome> = BTreeMap::new();
        for reduction in &report.reductions {
            let Some(gpus) = gpus(&reduction.gpus) else {
                continue;
            };
            let words = reduction.arrangement.words();
            let key = (format!("all-reduce {}, {words}", reduction.algorithm), gpus);
            map.entry(key)
                .and_modify(|known| {
                    if weight(&reduction.outcome) > weight(known) {
                        *known = &reduction.outcome;
                    }
                })
                .or_insert(&reduction.outcome);
        }
        map
    }
    let one = worst(a, |gpus| {
        gpus.iter()
            .all(|g| matched.knows(GpuIndex(*g)))
            .then(|| gpus.to_vec())
    });
    let other = worst(b, |gpus| group_from_b(matched, gpus));
    let keys: BTreeSet<&Key> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let word = |map: &BTreeMap<Key, &Outcome>| map.get(key).map(|o| o.word().to_string());
        match (word(&one), word(&other)) {
            (Some(a), Some(b)) => tally.texts(&key.0, &group_words(&key.1), &a, &b),
            (Some(_), None) => tally.one_sided(&key.0, "B", "not run"),
            (None, Some(_)) => tally.one_sided(&key.0, "A", "not run"),
            (None, None) => {}
        }
    }
}

/// A group of B's GPUs in A's numbers.
pub(super) fn group_from_b(matched: &Matched, gpus: &[u32]) -> Option<Vec<u32>> {
    let moved = gpus.iter().map(|g| matched.gpu_from_b(GpuIndex(*g)));
    moved.map(|g| g.map(|g| g.0)).collect()
}

/// "GPUs 0,1,2".
pub(super) fn group_words(gpus: &[u32]) -> String {
    let words: Vec<String> = gpus.iter().map(u32::to_string).collect();
    format!("GPUs {}", words.join(","))
}

/// A cause is held or it is not; why it is not held (cleared, no evidence) is no difference of the host.
fn causes(a: &[Finding], b: &[Finding], tally: &mut Tally) {
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
        tally.texts(&format!("cause {cause}"), "", &a, &b);
    }
}

fn consumers(a: &Report, b: &Report, tally: &mut Tally) {
    for one in &a.consumers {
        let Some(other) = b.consumers.iter().find(|c| c.id == one.id) else {
            tally.one_sided(&one.name, "B", "that version does not know it");
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
        tally.texts(&one.name, "", &a, &b);
    }
    for other in &b.consumers {
        if !a.consumers.iter().any(|c| c.id == other.id) {
            tally.one_sided(&other.name, "A", "that version does not know it");
        }
    }
}
