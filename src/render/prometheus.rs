//! The report as a text file for the textfile collector of Prometheus' node_exporter: base units, one HELP and one TYPE a
//! metric, and labels whose values are few and cannot be free text: positions and PCI addresses of GPUs, ids and versions.
//!
//! Every series carries `authenticity`, so no rule can take a simulated host for a real one. What was not measured has no
//! series: it is never zero. That the file is written beside its name and renamed is the caller's business.

use super::page::banner;
use crate::model::{
    case::{Outcome, Record, Rung, Subject},
    finding::Judgement,
    measurement::Unit,
    pair::{GpuIndex, OrderedPair},
    report::{Gap, Grading, Report},
};
use crate::stats::median;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write},
};

/// Grades in the order of the exit codes 0 to 3.
const GRADES: [Grading; 4] = [
    Grading::Pass,
    Grading::Warn,
    Grading::Fail,
    Grading::Inconclusive,
];

/// Longest label value.
const LONGEST_LABEL: usize = 48;

type Labels = Vec<(&'static str, String)>;

/// A metric and its series; all of them are gauges, because a run that is over counts nothing up.
struct Metric {
    name: &'static str,
    help: &'static str,
    series: Vec<(Labels, f64)>,
}

/// All metrics, and the label that each series ends with.
struct Exposition {
    metrics: Vec<Metric>,
    authenticity: &'static str,
}

impl Exposition {
    fn many(&mut self, name: &'static str, help: &'static str, series: Vec<(Labels, f64)>) {
        self.metrics.push(Metric { name, help, series });
    }

    fn one(&mut self, name: &'static str, help: &'static str, value: impl Into<f64>) {
        self.many(name, help, vec![(Vec::new(), value.into())]);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for metric in &self.metrics {
            let series = metric.series.iter().filter(|(_, v)| v.is_finite());
            let mut lines = String::new();
            for (labels, value) in series {
                let mut all = String::new();
                for (name, label) in labels {
                    let _ = write!(all, "{name}=\"{}\",", escaped(label));
                }
                let authenticity = self.authenticity;
                let _ = writeln!(
                    lines,
                    "{}{{{all}authenticity=\"{authenticity}\"}} {value}",
                    metric.name
                );
            }
            if !lines.is_empty() {
                let (name, help) = (metric.name, metric.help);
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{lines}");
            }
        }
        text
    }
}

/// As the format wants label values. Nothing that passes [`word`] needs it; it holds for whatever will not.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => safe.push_str("\\\\"),
            '"' => safe.push_str("\\\""),
            '\n' => safe.push_str("\\n"),
            other => safe.push(other),
        }
    }
    safe
}

/// An id or a version as a label; "other" for any text that is neither, so that a report from elsewhere brings no free text
/// and no unbounded labels.
fn word(text: &str) -> String {
    let fits = !text.is_empty() && text.len() <= LONGEST_LABEL;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    match fits && text.chars().all(plain) {
        true => text.to_string(),
        false => "other".to_string(),
    }
}

fn pci(report: &Report, gpu: GpuIndex) -> String {
    let address = report.snapshot.gpu(gpu).and_then(|g| g.pci.known());
    address.map_or_else(|| "unknown".to_string(), ToString::to_string)
}

fn gpu_labels(report: &Report, gpu: GpuIndex) -> Labels {
    vec![("gpu", gpu.to_string()), ("pci", pci(report, gpu))]
}

fn pair_labels(report: &Report, pair: OrderedPair) -> Labels {
    vec![
        ("source", pair.source.to_string()),
        ("destination", pair.destination.to_string()),
        ("source_pci", pci(report, pair.source)),
        ("destination_pci", pci(report, pair.destination)),
    ]
}

/// Writes `report`.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mark = banner(report.authenticity).or_else(|| banner(report.snapshot.authenticity));
    let mut page = Exposition {
        metrics: Vec::new(),
        authenticity: mark.map_or("HARDWARE", |(word, _)| word),
    };
    run(report, &mut page);
    coverage(report, &mut page);
    gpus(report, &mut page);
    pairs(report, &mut page);
    groups(report, &mut page);
    failures(report, &mut page);
    out.write_all(page.text().as_bytes())
}

fn run(report: &Report, page: &mut Exposition) {
    let driver = report.snapshot.driver.version.known();
    let budget = report.coverage.budget.as_ref();
    page.many(
        "peerproof_info",
        "Versions and budget of the run; always 1.",
        vec![(
            vec![
                ("version", word(&report.tool_version)),
                (
                    "driver_version",
                    driver.map_or("unknown".to_string(), |v| word(v)),
                ),
                (
                    "budget",
                    budget.map_or("unknown".to_string(), |b| word(&b.name)),
                ),
            ],
            1.0,
        )],
    );
    let started: Option<jiff::Timestamp> = report.started_at.parse().ok();
    if let Some(started) = started {
        page.one(
            "peerproof_run_timestamp_seconds",
            "When the run began, seconds since 1970-01-01 UTC; alert on its age.",
            started.as_second() as f64,
        );
    }
    page.one(
        "peerproof_run_duration_seconds",
        "Wall time of the run.",
        report.took_ms / 1e3,
    );
    page.one(
        "peerproof_run_interrupted",
        "1 when the run was cut short, else 0.",
        u8::from(report.interrupted),
    );
    let grade = report.verdict.grading;
    page.many(
        "peerproof_verdict",
        "1 for the verdict of the run, 0 for the others.",
        GRADES
            .iter()
            .map(|g| {
                let label = vec![("verdict", g.word().to_string())];
                (label, f64::from(u8::from(*g == grade)))
            })
            .collect(),
    );
    page.one(
        "peerproof_verdict_code",
        "The verdict as a number, as exit codes: 0 PASS, 1 WARN, 2 FAIL, 3 INCONCLUSIVE.",
        grade.exit_code(),
    );
    if let Some(selftest) = &report.selftest {
        page.one(
            "peerproof_selftest_passed",
            "1 when the checker named every kind of wrong that was planted, else 0.",
            u8::from(selftest.passed()),
        );
    }
}

fn coverage(report: &Report, page: &mut Exposition) {
    let coverage = &report.coverage;
    let cases = |gaps: &[Gap]| gaps.iter().map(|g| g.cases).sum::<u32>();
    page.one(
        "peerproof_cases_planned",
        "Cases that the budget asked for.",
        coverage.planned,
    );
    page.one(
        "peerproof_cases_ran",
        "Cases that ran to an answer, right or wrong.",
        coverage.ran,
    );
    page.one(
        "peerproof_cases_not_run",
        "Cases that were planned and did not run: gaps.",
        cases(&coverage.not_run),
    );
    page.one(
        "peerproof_cases_not_applicable",
        "Cases that do not exist on this host: no gaps.",
        cases(&coverage.not_applicable),
    );
    if let Some(rate) = coverage.seen_fault_rate {
        page.one(
            "peerproof_detectable_fault_ratio",
            "Share of attempts that a fault must strike to be seen with 95%, for the pair and mechanism tried least.",
            rate,
        );
    }
    page.one(
        "peerproof_gpus_present",
        "NVIDIA GPUs of the host.",
        report.snapshot.gpus.len() as u32,
    );
    page.one(
        "peerproof_gpus_tested",
        "GPUs that were tested; fewer than present when some were in use or left out.",
        report.tested_gpus.len() as u32,
    );
}

/// Median rate in bytes per second of the largest case that was timed with nothing beside it.
fn rate(records: &[&Record]) -> Option<f64> {
    let timed = records.iter().filter_map(|r| {
        let measured = r.rate.as_ref().filter(|m| m.unit == Unit::GbPerS)?;
        let alone = r.alone && r.case.load.is_none() && r.outcome.is_intact();
        let rate = median(&measured.samples).filter(|_| alone)?;
        Some((r.case.bytes, rate * 1e9))
    });
    timed.max_by_key(|(bytes, _)| *bytes).map(|(_, rate)| rate)
}

fn grouped<'a, K: Ord>(
    records: &'a [Record],
    key: impl Fn(&'a Record) -> Option<K>,
) -> BTreeMap<K, Vec<&'a Record>> {
    let mut groups: BTreeMap<K, Vec<&Record>> = BTreeMap::new();
    for record in records {
        if let Some(key) = key(record) {
            groups.entry(key).or_default().push(record);
        }
    }
    groups
}

fn gpus(report: &Report, page: &mut Exposition) {
    let alone = |r: &Record| match r.case.subject {
        Subject::Gpu(gpu) => Some(gpu),
        _ => None,
    };
    let failed = |records: &[&Record]| records.iter().any(|r| r.outcome.is_failure());
    page.many(
        "peerproof_gpu_failed",
        "1 when something failed on the GPU by itself, 0 when it was tested and nothing did.",
        grouped(&report.records, alone)
            .into_iter()
            .filter(|(_, records)| records.iter().any(|r| r.outcome.ran()))
            .map(|(gpu, records)| {
                let value = f64::from(u8::from(failed(&records)));
                (gpu_labels(report, gpu), value)
            })
            .collect(),
    );
    let by_mechanism = grouped(&report.records, |r| {
        Some((alone(r)?, word(&r.case.mechanism)))
    });
    page.many(
        "peerproof_gpu_bytes_per_second",
        "Median rate of a mechanism on the GPU by itself, largest case: its memory and its link to the host.",
        by_mechanism
            .into_iter()
            .filter_map(|((gpu, mechanism), records)| {
                let mut labels = gpu_labels(report, gpu);
                labels.push(("mechanism", mechanism));
                Some((labels, rate(&records)?))
            })
            .collect(),
    );
}

fn pairs(report: &Report, page: &mut Exposition) {
    let of_pairs = grouped(&report.records, |r| r.case.subject.pair());
    let mut failed = Vec::new();
    let mut reached = Vec::new();
    for (pair, records) in &of_pairs {
        if records.iter().any(|r| r.outcome.ran()) {
            let wrong = records.iter().any(|r| r.outcome.is_failure());
            let value = f64::from(u8::from(wrong));
            failed.push((pair_labels(report, *pair), value));
        }
        if let Some(number) = report.standing(*pair).reached.and_then(Rung::number) {
            reached.push((pair_labels(report, *pair), f64::from(number)));
        }
    }
    page.many(
        "peerproof_pair_failed",
        "1 when anything failed on the ordered pair, load included; 0 when it was tested and nothing did.",
        failed,
    );
    page.many(
        "peerproof_pair_rung_reached",
        "Highest rung of the ladder (0 to 7) that the ordered pair proved together with all below it.",
        reached,
    );
    // Copies alone: rates of all mechanisms of all pairs would be thousands of series.
    let copies = grouped(&report.records, |r| {
        let pair = r.case.subject.pair()?;
        (r.case.rung == Rung::Copied).then(|| (pair, word(&r.case.mechanism)))
    });
    page.many(
        "peerproof_pair_bytes_per_second",
        "Median rate of copies by a copy engine over the ordered pair, largest case, nothing beside it.",
        copies
            .into_iter()
            .filter_map(|((pair, mechanism), records)| {
                let mut labels = pair_labels(report, pair);
                labels.push(("mechanism", mechanism));
                Some((labels, rate(&records)?))
            })
            .collect(),
    );
}

fn groups(report: &Report, page: &mut Exposition) {
    let of_groups = grouped(&report.records, |r| r.case.subject.group());
    page.many(
        "peerproof_group_failed",
        "1 when an all-reduce failed on the group of GPUs, 0 when it was tested and nothing did.",
        of_groups
            .into_iter()
            .filter(|(_, records)| records.iter().any(|r| r.outcome.ran()))
            .map(|(group, records)| {
                let wrong = records.iter().any(|r| r.outcome.is_failure());
                // "0-3", "0-1+4".
                let spans = group.to_string().replace("GPUs ", "").replace(',', "+");
                let label = vec![("gpus", spans)];
                (label, f64::from(u8::from(wrong)))
            })
            .collect(),
    );
}

fn failures(report: &Report, page: &mut Exposition) {
    let by_mechanism = grouped(&report.records, |r| Some(word(&r.case.mechanism)));
    let counted = |counts: fn(&Outcome) -> bool| -> Vec<(Labels, f64)> {
        let tried = by_mechanism
            .iter()
            .filter(|(_, records)| records.iter().any(|r| r.outcome.ran()));
        tried
            .map(|(mechanism, records)| {
                let number = records.iter().filter(|r| counts(&r.outcome)).count();
                let label = vec![("mechanism", mechanism.clone())];
                (label, number as f64)
            })
            .collect()
    };
    page.many(
        "peerproof_cases_wrong_data",
        "Cases in which the owner did not hold the bytes that were sent.",
        counted(|o| o.corruption().is_some()),
    );
    page.many(
        "peerproof_cases_failed",
        "Cases that count against the host: wrong data, faults, hangs and deaths.",
        counted(Outcome::is_failure),
    );
    let mut causes: Vec<String> = report
        .findings
        .iter()
        .filter(|f| f.judgement == Judgement::Indicted)
        .map(|f| word(&f.cause))
        .collect();
    causes.sort();
    causes.dedup();
    page.many(
        "peerproof_cause_held",
        "1 for each cause that is held; no series for the others.",
        causes
            .into_iter()
            .map(|cause| (vec![("cause", cause)], 1.0))
            .collect(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_hold_no_free_text() {
        assert_eq!(word("ce-push"), "ce-push");
        assert_eq!(word("580.95.05"), "580.95.05");
        for foreign in ["", "a b", "a\"b", "x\n", "\u{e9}", &"x".repeat(49)] {
            assert_eq!(word(foreign), "other");
        }
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
