//! Two reports held against each other: sister hosts, before and after a change, two days. Pure. Knows what is worth
//! comparing and when two numbers differ; judges neither report, and knows nothing of files or printing.

mod configuration;
mod matching;
mod numbers;
mod reductions;
mod tally;
mod traffic;
mod verdicts;
mod warnings;

#[cfg(test)]
mod tests;

use crate::model::{
    comparison::{COMPARISON_VERSION, Comparison, Counts, Side},
    report::{Report, SCRUBBED},
};
use matching::Matched;
use tally::Tally;

/// Compares `a` with `b`. `files` are their names for messages. Both must have been judged by the same rules: what is
/// derived is compared as it stands.
pub fn compare(a: &Report, b: &Report, files: (&str, &str)) -> Comparison {
    let (relation, relation_because) = matching::relation(&a.snapshot, &b.snapshot);
    let matched = Matched::new(&a.snapshot, &b.snapshot, relation);
    let mut configuration = Tally::default();
    configuration::compare(a, b, &matched, &mut configuration);
    let mut verdicts = Tally::default();
    verdicts::compare(a, b, &matched, &mut verdicts);
    let numbers = numbers::compare(a, b, &matched);
    let same = Counts {
        configuration: configuration.same,
        verdicts: verdicts.same,
        numbers: numbers.same,
    };
    let not_compared = [
        configuration.not_compared,
        verdicts.not_compared,
        numbers.not_compared,
    ]
    .concat();
    Comparison {
        schema_version: COMPARISON_VERSION,
        a: side(a, files.0),
        b: side(b, files.1),
        relation,
        relation_because,
        warnings: warnings::of(a, b, &matched.matching),
        configuration: configuration.differences,
        verdicts: verdicts.differences,
        numbers: numbers.differences,
        numbers_rule: numbers::RULE.to_string(),
        same,
        not_compared,
        matching: matched.matching,
    }
}

/// A size in words: "64 KiB".
fn amount(bytes: u64) -> String {
    let steps = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let whole = |(_, step): &(&str, u64)| bytes >= *step && bytes.is_multiple_of(*step);
    match steps.into_iter().find(whole) {
        Some((name, step)) => format!("{} {name}", bytes / step),
        None => format!("{bytes} B"),
    }
}

fn side(report: &Report, file: &str) -> Side {
    let rows = &report.reductions;
    let (planned, ran) = match report.coverage.planned {
        // All-reduces alone are counted by their rows.
        0 => (rows.len(), rows.iter().filter(|r| r.outcome.ran()).count()),
        planned => (planned as usize, report.coverage.ran as usize),
    };
    let (planned, ran) = (planned as u32, ran as u32);
    Side {
        file: file.to_string(),
        host: report.snapshot.host.name.known().cloned(),
        started_at: report.started_at.clone(),
        tool_version: report.tool_version.clone(),
        authenticity: report.authenticity,
        budget: report.coverage.budget.as_ref().map(|b| b.name.clone()),
        grading: report.verdict.grading,
        headline: report.verdict.headline.clone(),
        gpus: report.snapshot.gpus.len() as u32,
        tested_gpus: report.tested_gpus.len() as u32,
        planned,
        ran,
        interrupted: report.interrupted,
        scrubbed: is_scrubbed(&report.snapshot),
    }
}

/// Whether names were replaced, as in a bundle: placeholders say nothing of who is who.
fn is_scrubbed(snapshot: &crate::model::snapshot::Snapshot) -> bool {
    let uuids = snapshot.gpus.iter().filter_map(|gpu| gpu.uuid.known());
    uuids
        .chain(snapshot.host.name.known())
        .any(|text| text.contains(SCRUBBED))
}
