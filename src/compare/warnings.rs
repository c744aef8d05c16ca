//! What must be known before a difference is believed: the two did not look at the same, or not in the same way.

use crate::model::{
    comparison::{MatchedBy, Matching},
    report::Report,
    snapshot::Authenticity,
};
use std::collections::BTreeSet;

fn word(authenticity: Authenticity) -> &'static str {
    match authenticity {
        Authenticity::Hardware => "of hardware",
        Authenticity::Simulated => "SIMULATED",
        Authenticity::FaultInjected => "FAULT-INJECTED",
    }
}

fn one_is_empty(a: &Report, b: &Report) -> bool {
    holds(a).is_empty() || holds(b).is_empty()
}

/// What a report holds beside the reading of its host.
fn holds(report: &Report) -> Vec<&'static str> {
    [
        (!report.records.is_empty(), "tests of transfers"),
        // A host that is wrong below them times none: that was told by what it was tested for.
        (
            report.records.is_empty() && !report.reductions.is_empty(),
            "timed all-reduces",
        ),
        (!report.traffic.is_empty(), "timed copies"),
    ]
    .into_iter()
    .filter_map(|(has, what)| has.then_some(what))
    .collect()
}

pub(super) fn of(a: &Report, b: &Report, matching: &Matching) -> Vec<String> {
    let mut warnings = Vec::new();
    if a.authenticity != b.authenticity {
        warnings.push(format!(
            "A is {}, B is {}: a difference between them says nothing of a host",
            word(a.authenticity),
            word(b.authenticity)
        ));
    }
    for (side, report) in [("A", a), ("B", b)] {
        if report.interrupted {
            warnings.push(format!(
                "{side} was cut short: it holds {} of what was planned",
                match report.coverage.planned {
                    0 => "a part".to_string(),
                    planned => format!("{} of {planned} cases", report.coverage.ran),
                }
            ));
        }
        if holds(report).is_empty() {
            warnings.push(format!("nothing was tested in {side}"));
        }
    }
    let (one, other) = (holds(a), holds(b));
    if one != other && !one.is_empty() && !other.is_empty() {
        let kinds = match a.kind() == b.kind() {
            true => String::new(),
            false => format!("{}: ", super::verdicts::of_two_kinds(a, b)),
        };
        warnings.push(format!(
            "{kinds}A holds {}, B holds {}; only what both hold is compared",
            one.join(" and "),
            other.join(" and ")
        ));
    }
    let algorithms = |report: &Report| -> BTreeSet<String> {
        let alone = report
            .reductions
            .iter()
            .filter(|_| report.records.is_empty());
        alone
            .map(|r| format!("all-reduce {}", r.algorithm))
            .collect()
    };
    let budget = |report: &Report| report.coverage.budget.as_ref().map(|b| b.name.clone());
    if let (Some(one), Some(other)) = (budget(a), budget(b))
        && one != other
    {
        warnings.push(format!(
            "other coverage: A ran the {one} budget ({} cases), B the {other} one ({}); what one of them did not try is not compared",
            a.coverage.ran, b.coverage.ran
        ));
    }
    let mechanisms = |report: &Report| -> BTreeSet<String> {
        report
            .records
            .iter()
            .map(|r| r.case.mechanism.clone())
            .collect()
    };
    let all = [
        (mechanisms(a), mechanisms(b)),
        (algorithms(a), algorithms(b)),
    ];
    for (one, other) in all {
        if !one.is_empty() && !other.is_empty() {
            for (side, mine, theirs) in [("A", &one, &other), ("B", &other, &one)] {
                let only: Vec<&str> = mine.difference(theirs).map(String::as_str).collect();
                if !only.is_empty() {
                    warnings.push(format!(
                        "other coverage: only {side} was to run {}",
                        only.join(", ")
                    ));
                }
            }
        }
    }
    if a.tested_gpus.len() != b.tested_gpus.len() && !one_is_empty(a, b) {
        warnings.push(format!(
            "other coverage: {} GPUs were tested in A, {} in B",
            a.tested_gpus.len(),
            b.tested_gpus.len()
        ));
    }
    let guessed = matching
        .pairs
        .iter()
        .filter(|m| m.by == MatchedBy::Position)
        .count();
    if guessed > 0 {
        let why = "the two hosts are not laid out alike by PCI address, or addresses are not known";
        warnings.push(match guessed {
            1 => format!("a GPU was matched by position only: {why}"),
            many => format!("{many} GPUs were matched by position only: {why}"),
        });
    }
    warnings
}
