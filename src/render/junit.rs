//! The report as JUnit XML, for the pages and gates of CI systems: a suite for each mechanism (under load apart), a case for
//! each ordered pair or GPU. Wrong data is a failure; a fault, a hang or a death is an error; what was refused, does not
//! exist here or did not run is skipped with its reason.
//!
//! Whoever reads nothing but this file must not see a host pass that did not: a suite of its own holds the verdict, in which
//! INCONCLUSIVE is an error, and a pair on which a mechanism of the ladder was never tried is a skipped case, not none.

use super::{
    evidence::{case_words, rung_words, sentences},
    markup::{Attribute, Markup},
    outcomes::{particulars, particulars_of, tested_pairs},
    page::{banner, count, cut},
    terminal::gap_groups,
};
use crate::model::{
    case::{Outcome, Record, Rung, Subject},
    finding::Judgement,
    ladder::made_up_for,
    pair::GpuIndex,
    reduction::Reduction,
    report::{Grading, Report, Selftest},
};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// Rows of one failed case that are told in full; the report file has all.
const TOLD_ROWS: usize = 8;

/// How a case went.
enum State {
    Passed,
    Failure,
    Error,
    Skipped,
}

/// What a case has to say beside its state.
#[derive(Default)]
struct Says {
    /// In a word: "zeroed", "hang".
    kind: String,
    /// In one line.
    message: String,
    /// Particulars.
    lines: Vec<String>,
}

/// A row of the page.
struct TestCase {
    name: String,
    state: State,
    says: Says,
    seconds: f64,
}

/// A mechanism, or one of the suites of this program's own.
struct Suite {
    /// Without the mark of what did not come from hardware.
    name: String,
    /// Second part of the class name, under which CI systems group.
    group: String,
    cases: Vec<TestCase>,
}

impl Suite {
    fn count(&self, wanted: impl Fn(&State) -> bool) -> usize {
        self.cases.iter().filter(|c| wanted(&c.state)).count()
    }

    fn seconds(&self) -> f64 {
        self.cases.iter().map(|c| c.seconds).sum()
    }
}

/// Writes `report`.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut suites = vec![verdict(report)];
    suites.extend(report.selftest.as_ref().map(selftest));
    suites.extend(mechanisms(report));
    suites.extend(reductions(report));
    let mark = banner(report.authenticity).or_else(|| banner(report.snapshot.authenticity));
    let mark = mark.map_or("", |(word, _)| word);
    let mut page = Markup::new();
    let total = |wanted: fn(&State) -> bool| -> String {
        let all: usize = suites.iter().map(|s| s.count(wanted)).sum();
        all.to_string()
    };
    let name = marked(mark, "peerproof");
    page.element(
        "testsuites",
        &[
            ("name", &name),
            ("tests", &total(|_| true)),
            ("failures", &total(|s| matches!(s, State::Failure))),
            ("errors", &total(|s| matches!(s, State::Error))),
            ("time", &format!("{:.3}", report.took_ms / 1e3)),
        ],
        |page| {
            for suite in &suites {
                write_suite(report, mark, suite, page);
            }
        },
    );
    out.write_all(b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")?;
    out.write_all(page.into_text().as_bytes())
}

fn marked(mark: &str, name: &str) -> String {
    match mark {
        "" => name.to_string(),
        mark => format!("{mark} {name}"),
    }
}

fn write_suite(report: &Report, mark: &str, suite: &Suite, page: &mut Markup) {
    let name = marked(mark, &suite.name);
    // CI systems show the class of a case, not the name of its suite.
    let class = match mark {
        "" => format!("peerproof.{}.{}", suite.group, suite.name),
        mark => format!("peerproof-{mark}.{}.{}", suite.group, suite.name),
    };
    let (tests, failures) = (
        suite.cases.len().to_string(),
        suite.count(|s| matches!(s, State::Failure)).to_string(),
    );
    let (errors, skipped) = (
        suite.count(|s| matches!(s, State::Error)).to_string(),
        suite.count(|s| matches!(s, State::Skipped)).to_string(),
    );
    let time = format!("{:.3}", suite.seconds());
    let started = started(report);
    let mut attributes: Vec<Attribute<'_>> = vec![
        ("name", &name),
        ("tests", &tests),
        ("failures", &failures),
        ("errors", &errors),
        ("skipped", &skipped),
        ("time", &time),
    ];
    if let Some(started) = &started {
        attributes.push(("timestamp", started));
    }
    if let Some(host) = report.snapshot.host.name.known() {
        attributes.push(("hostname", host));
    }
    page.line_end();
    page.element("testsuite", &attributes, |page| {
        page.line_end();
        page.element("properties", &[], |page| {
            page.line_end();
            for (name, value) in properties(report, &suite.name) {
                page.void("property", &[("name", &name), ("value", &value)]);
                page.line_end();
            }
        });
        for case in &suite.cases {
            write_case(&class, case, page);
        }
    });
}

fn write_case(class: &str, case: &TestCase, page: &mut Markup) {
    let time = format!("{:.3}", case.seconds);
    let attributes = [
        ("name", case.name.as_str()),
        ("classname", class),
        ("time", &time),
    ];
    let says = &case.says;
    let about = [
        ("message", says.message.as_str()),
        ("type", says.kind.as_str()),
    ];
    let lines = |page: &mut Markup| page.lines(says.lines.iter().map(String::as_str));
    page.line_end();
    match case.state {
        State::Passed if says.message.is_empty() => page.void("testcase", &attributes),
        State::Passed => page.element("testcase", &attributes, |page| {
            page.leaf("system-out", &[], &says.message);
        }),
        State::Failure => page.element("testcase", &attributes, |page| {
            page.element("failure", &about, lines);
        }),
        State::Error => page.element("testcase", &attributes, |page| {
            page.element("error", &about, lines);
        }),
        State::Skipped => page.element("testcase", &attributes, |page| {
            page.void("skipped", &[("message", &says.message)]);
        }),
    }
}

/// The start without its zone: the usual schemas take none, and readers take it as UTC. `None` where it is no time.
fn started(report: &Report) -> Option<String> {
    let at: jiff::Timestamp = report.started_at.parse().ok()?;
    Some(at.strftime("%Y-%m-%dT%H:%M:%S").to_string())
}

/// What every suite says of the run, and what the first one says besides.
fn properties(report: &Report, suite: &str) -> Vec<(String, String)> {
    let snapshot = &report.snapshot;
    let authenticity = banner(report.authenticity)
        .or_else(|| banner(snapshot.authenticity))
        .map_or("HARDWARE", |(word, _)| word);
    let mut all = vec![
        ("tool_version".to_string(), report.tool_version.clone()),
        ("authenticity".to_string(), authenticity.to_string()),
    ];
    let mut known = |name: &str, value: Option<&String>| {
        if let Some(value) = value {
            all.push((name.to_string(), value.clone()));
        }
    };
    known("driver_version", snapshot.driver.version.known());
    if suite != VERDICT {
        return all;
    }
    known("kernel_release", snapshot.host.kernel.known());
    known("bios", snapshot.host.bios.known());
    let budget = report.coverage.budget.as_ref().map(|b| &b.name);
    known("budget", budget);
    for index in &report.tested_gpus {
        let Some(gpu) = snapshot.gpu(GpuIndex(*index)) else {
            continue;
        };
        known(&format!("gpu{index}.name"), gpu.name.known());
        known(
            &format!("gpu{index}.pci"),
            gpu.pci.known().map(ToString::to_string).as_ref(),
        );
        known(&format!("gpu{index}.uuid"), gpu.uuid.known());
    }
    let cases = |gaps: &[crate::model::report::Gap]| gaps.iter().map(|g| g.cases).sum::<u32>();
    let coverage = &report.coverage;
    for (name, number) in [
        ("cases_planned", coverage.planned),
        ("cases_ran", coverage.ran),
        ("cases_not_run", cases(&coverage.not_run)),
        ("cases_not_applicable", cases(&coverage.not_applicable)),
    ] {
        all.push((name.to_string(), number.to_string()));
    }
    for left_out in &coverage.left_out {
        all.push(("left_out".to_string(), left_out.clone()));
    }
    all
}

const VERDICT: &str = "verdict";

/// The verdict as a case: findings without a failed case, gaps and a run cut short are seen by nobody otherwise.
fn verdict(report: &Report) -> Suite {
    let verdict = &report.verdict;
    let cut_short = report.interrupted && verdict.grading != Grading::Fail;
    let state = match verdict.grading {
        Grading::Fail => State::Failure,
        Grading::Inconclusive => State::Error,
        Grading::Pass | Grading::Warn if cut_short => State::Error,
        Grading::Pass | Grading::Warn => State::Passed,
    };
    let word = verdict.grading.word();
    let mut message = format!("{word}: {}", verdict.headline);
    if cut_short {
        message = format!("the run was cut short; {message}");
    }
    let mut lines = vec![verdict.cause.clone(), format!("next: {}", verdict.next)];
    for gap in gap_groups(&report.coverage.not_run) {
        lines.push(format!(
            "not run: {} ({})",
            gap.reason,
            count(gap.cases as usize, "case")
        ));
    }
    Suite {
        name: VERDICT.to_string(),
        group: "host".to_string(),
        cases: vec![TestCase {
            name: "the whole host".to_string(),
            state,
            says: Says {
                kind: word.to_string(),
                message,
                lines,
            },
            seconds: 0.0,
        }],
    }
}

fn selftest(selftest: &Selftest) -> Suite {
    let mut cases: Vec<TestCase> = selftest
        .plants
        .iter()
        .map(|plant| {
            let planted = plant.planted.map_or("a clean buffer", |k| k.name());
            let reported = plant.reported.map_or("intact", |k| k.name());
            TestCase {
                name: format!("planted: {planted}"),
                state: match plant.found() {
                    true => State::Passed,
                    false => State::Failure,
                },
                says: match plant.found() {
                    true => Says::default(),
                    false => Says {
                        kind: "missed".to_string(),
                        message: format!("planted {planted}, reported {reported}"),
                        lines: vec![plant.detail.clone()],
                    },
                },
                seconds: 0.0,
            }
        })
        .collect();
    if cases.is_empty() {
        cases.push(TestCase {
            name: "planted: nothing".to_string(),
            state: State::Error,
            says: Says {
                kind: "empty".to_string(),
                message: "nothing was planted, so the checker was not tested".to_string(),
                lines: Vec::new(),
            },
            seconds: 0.0,
        });
    }
    Suite {
        name: "selftest".to_string(),
        group: "checker".to_string(),
        cases,
    }
}

/// One suite for each mechanism that was tried or should have been, in the order of the ladder.
fn mechanisms(report: &Report) -> Vec<Suite> {
    let mut rows: BTreeMap<(Rung, &str), BTreeMap<Subject, Vec<&Record>>> = BTreeMap::new();
    for record in &report.records {
        let key = (record.case.rung, record.case.mechanism.as_str());
        let subjects = rows.entry(key).or_default();
        subjects
            .entry(record.case.subject)
            .or_default()
            .push(record);
    }
    for step in &report.ladder {
        rows.entry((step.rung, step.mechanism.as_str()))
            .or_default();
    }
    let pairs: Vec<Subject> = tested_pairs(report)
        .into_iter()
        .map(Subject::Pair)
        .collect();
    let alone = report
        .tested_gpus
        .iter()
        .map(|g| Subject::Gpu(GpuIndex(*g)));
    let alone: Vec<Subject> = alone.collect();
    for ((rung, _), subjects) in &mut rows {
        let expected = if *rung == Rung::Alone { &alone } else { &pairs };
        // Load is put on chosen flows, and an all-reduce on a group: a pair without a row was not meant to have one.
        if *rung < Rung::Reduced {
            for subject in expected {
                subjects.entry(*subject).or_default();
            }
        }
    }
    let suites = rows
        .into_iter()
        .filter(|(_, subjects)| !subjects.is_empty());
    suites
        .map(|((rung, mechanism), subjects)| Suite {
            name: match rung {
                Rung::Loaded => format!("{mechanism} under load"),
                _ => mechanism.to_string(),
            },
            group: match rung.number() {
                Some(number) => format!("rung-{number}-{}", rung.name()),
                None => rung.name().to_string(),
            },
            cases: subjects
                .into_iter()
                .map(|(subject, records)| judged(report, subject, rung, &records))
                .collect(),
        })
        .collect()
}

/// "GPU0->GPU1 (0000:19:00.0 -> 0000:29:00.0)": positions for the eye, addresses for comparing runs.
fn subject_name(report: &Report, subject: Subject) -> String {
    let pci = |gpu: GpuIndex| {
        let address = report.snapshot.gpu(gpu).and_then(|g| g.pci.known());
        address.map_or_else(|| "address unknown".to_string(), ToString::to_string)
    };
    match subject {
        Subject::Gpu(gpu) => format!("GPU{gpu} ({})", pci(gpu)),
        Subject::Pair(pair) => format!(
            "GPU{}->GPU{} ({} -> {})",
            pair.source,
            pair.destination,
            pci(pair.source),
            pci(pair.destination)
        ),
        Subject::Group(group) => {
            let addresses: Vec<String> = group.gpus().map(pci).collect();
            format!("{group} ({})", addresses.join(", "))
        }
    }
}

/// All rows of one mechanism on one pair or GPU, as one case. Wrong data outranks a fault, a fault a refusal, a refusal a gap.
fn judged(report: &Report, subject: Subject, rung: Rung, records: &[&Record]) -> TestCase {
    let units = |r: &Record| r.outcome.corruption().map_or(0, |c| c.units);
    let wrong = records.iter().filter(|r| r.outcome.corruption().is_some());
    let wrong = wrong.max_by_key(|r| (units(r), std::cmp::Reverse(r.case.id)));
    let broken = records.iter().find(|r| r.outcome.is_failure());
    let refused = records
        .iter()
        .find(|r| matches!(r.outcome, Outcome::Refused { .. }));
    let missing: Vec<(&Record, &String)> = records
        .iter()
        .filter_map(|r| match &r.outcome {
            Outcome::NotRun { reason } if !made_up_for(r, records) => Some((*r, reason)),
            _ => None,
        })
        .collect();
    let absent = records.iter().find_map(|r| match &r.outcome {
        Outcome::NotApplicable { reason } => Some(reason),
        _ => None,
    });
    let skipped = |message: String| {
        let says = Says {
            message,
            ..Says::default()
        };
        (State::Skipped, says)
    };
    let (state, says) = if let Some(record) = wrong {
        (State::Failure, told(report, record, records))
    } else if let Some(record) = broken {
        (State::Error, told(report, record, records))
    } else if let Some(record) = refused {
        skipped(particulars_of(record).unwrap_or_default())
    } else if let Some((_, reason)) = missing.first() {
        skipped(match missing.len() == records.len() {
            true => format!("not run: {reason}"),
            false => format!(
                "{} of {} cases did not run: {reason}; what ran is intact",
                missing.len(),
                records.len()
            ),
        })
    } else if records.is_empty() {
        let rung = rung_words(rung);
        skipped(format!("not tried in this run (rung {rung})"))
    } else if let Some(reason) = absent.filter(|_| !records.iter().any(|r| r.outcome.ran())) {
        skipped(format!("does not exist here: {reason}"))
    } else {
        (State::Passed, Says::default())
    };
    TestCase {
        name: subject_name(report, subject),
        state,
        says,
        seconds: records.iter().map(|r| r.took_ms / 1e3).sum(),
    }
}

/// What is said of a case that went wrong: the row that speaks for it, causes that are held for it, and the other rows.
fn told(report: &Report, record: &Record, records: &[&Record]) -> Says {
    let failed: Vec<&&Record> = records.iter().filter(|r| r.outcome.is_failure()).collect();
    let mut message = particulars_of(record).unwrap_or_default();
    message.push_str(&format!(
        " ({} of {})",
        failed.len(),
        count(records.len(), "case")
    ));
    let pair = record.case.subject.pair();
    for finding in &report.findings {
        let here = finding.pairs.is_empty() || pair.is_some_and(|p| finding.pairs.contains(&p));
        if finding.judgement == Judgement::Indicted && here {
            message.push_str(&format!("; cause: {}", cut(&finding.cause, 48)));
        }
    }
    let mut lines = Vec::new();
    for row in failed.iter().take(TOLD_ROWS) {
        lines.push(case_words(row));
        match row.outcome.corruption() {
            Some(corruption) => {
                let said = sentences(row, corruption);
                lines.extend(said.into_iter().map(|s| format!("  {s}")));
            }
            None => lines.extend(particulars(&row.outcome).map(|s| format!("  {s}"))),
        }
        lines.extend(row.notes.iter().map(|note| format!("  {note}")));
    }
    if failed.len() > TOLD_ROWS {
        lines.push(format!("and {} more", failed.len() - TOLD_ROWS));
    }
    Says {
        kind: record.outcome.word().to_string(),
        message,
        lines,
    }
}

/// All-reduces that were run: a suite for each algorithm, a case for each group, size and way of launching.
fn reductions(report: &Report) -> Vec<Suite> {
    let mut algorithms: BTreeMap<&str, Vec<&Reduction>> = BTreeMap::new();
    for reduction in &report.reductions {
        let name = reduction.algorithm.as_str();
        algorithms.entry(name).or_default().push(reduction);
    }
    let suites = algorithms.into_iter().map(|(algorithm, reductions)| Suite {
        name: format!("all-reduce {algorithm}"),
        group: format!("rung-6-{}", Rung::Reduced.name()),
        cases: reductions.into_iter().map(reduction_case).collect(),
    });
    suites.collect()
}

fn reduction_case(reduction: &Reduction) -> TestCase {
    let gpus: Vec<String> = reduction.gpus.iter().map(u32::to_string).collect();
    let outcome = &reduction.outcome;
    let state = match outcome {
        Outcome::Intact => State::Passed,
        Outcome::Corrupt(_) => State::Failure,
        failed if failed.is_failure() => State::Error,
        _ => State::Skipped,
    };
    let message = match outcome {
        Outcome::NotApplicable { reason } => format!("does not exist here: {reason}"),
        other => particulars(other).unwrap_or_default(),
    };
    TestCase {
        name: format!(
            "GPUs {}: {} bytes of {}, {}, {}{}",
            gpus.join(","),
            reduction.bytes,
            reduction.dtype,
            reduction.launch.name(),
            reduction.arrangement.words(),
            if reduction.in_place { ", in place" } else { "" }
        ),
        state,
        says: Says {
            kind: outcome.word().to_string(),
            message,
            lines: reduction.notes.clone(),
        },
        seconds: 0.0,
    }
}
