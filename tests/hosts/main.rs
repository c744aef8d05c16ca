//! Recorded hosts: entries of the failure catalogue, written down from public reports (synthesised, not captured), each with
//! the cause that must be found, and healthy hosts against which nothing may be held. The format: `README.md` here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was not tested is said")]

mod build;
mod format;

use build::Built;
use format::{Expect, HostFile};
use peerproof::{
    diagnose::{self, Evidence, ROSTER, WantedCase},
    model::{
        case::{Outcome, Rung},
        finding::{Confidence, Finding, Judgement, Severity},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/hosts")
}

/// All hosts by file name.
fn hosts() -> BTreeMap<String, HostFile> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        if path.extension().is_some_and(|e| e == "toml") && name != "without" {
            let text = fs::read_to_string(&path).unwrap();
            let host = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}.toml: {e}"));
            all.insert(name, host);
        }
    }
    all
}

fn judge(built: &Built) -> Vec<Finding> {
    diagnose::findings(&Evidence::new(
        &built.snapshot,
        &built.records,
        &built.observations,
    ))
}

fn word<T: serde::Serialize>(value: T) -> String {
    serde_json::to_value(value)
        .unwrap()
        .as_str()
        .unwrap()
        .to_string()
}

/// Says what differs from the expectation, if anything.
fn differs(expect: &Expect, found: &[Finding]) -> Option<String> {
    let judged = expect.judgement.as_deref().unwrap_or("indicted");
    let mine: Vec<&Finding> = found
        .iter()
        .filter(|f| f.cause == expect.cause && word(f.judgement) == judged)
        .collect();
    let fits = |f: &&&Finding| {
        let has = |list: &[String], wanted: &Option<String>| {
            wanted
                .as_ref()
                .is_none_or(|w| list.iter().any(|line| line.contains(w.as_str())))
        };
        expect
            .severity
            .as_ref()
            .is_none_or(|s| word(f.severity) == *s)
            && expect
                .confidence
                .as_ref()
                .is_none_or(|c| word(f.confidence) == *c)
            && expect.pairs.is_none_or(|n| f.pairs.len() == n)
            && expect
                .gpus
                .as_ref()
                .is_none_or(|g| f.gpus.iter().map(|g| g.0).eq(g.iter().copied()))
            && has(&f.fix, &expect.fix)
            && has(&f.evidence, &expect.evidence)
            && has(std::slice::from_ref(&f.because), &expect.because)
            && has(f.next_test.as_slice(), &expect.next)
    };
    mine.iter()
        .find(fits)
        .is_none()
        .then(|| format!("expected {expect:?}, found {mine:#?}"))
}

#[test]
fn every_host_is_judged_as_written_and_nothing_else_is_held() {
    let mut wrong = Vec::new();
    for (name, host) in hosts() {
        let built = build::build(&host).unwrap_or_else(|e| panic!("{name}.toml: {e}"));
        let found = judge(&built);
        for expect in &host.expect {
            if let Some(text) = differs(expect, &found) {
                wrong.push(format!("{name}: {text}"));
            }
        }
        let expected: BTreeSet<&str> = host
            .expect
            .iter()
            .filter(|e| e.judgement.as_deref().unwrap_or("indicted") == "indicted")
            .map(|e| e.cause.as_str())
            .collect();
        for finding in found.iter().filter(|f| f.judgement == Judgement::Indicted) {
            if !expected.contains(finding.cause.as_str()) {
                wrong.push(format!("{name}: falsely held: {finding:#?}"));
            }
            if finding.fix.is_empty()
                || finding.evidence.is_empty()
                || finding.next_test.is_none() && finding.severity > Severity::Info
            {
                wrong.push(format!(
                    "{name}: without fix, evidence or next test: {finding:#?}"
                ));
            }
        }
        for cause in ROSTER {
            if !found.iter().any(|f| f.cause == cause.id) {
                wrong.push(format!("{name}: {} says nothing", cause.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_cause_has_a_host_that_triggers_it() {
    let mut triggered = BTreeSet::new();
    for host in hosts().values() {
        let held = judge(&build::build(host).unwrap());
        triggered.extend(
            held.into_iter()
                .filter(|f| f.judgement == Judgement::Indicted)
                .map(|f| f.cause),
        );
    }
    for cause in ROSTER {
        assert!(
            triggered.contains(cause.id),
            "no host triggers {}",
            cause.id
        );
    }
}

#[test]
fn healthy_hosts_hold_nothing_that_is_more_than_information() {
    let mut count = 0;
    for (name, host) in hosts().iter().filter(|(_, h)| h.healthy) {
        count += 1;
        for finding in judge(&build::build(host).unwrap()) {
            let held =
                finding.judgement == Judgement::Indicted && finding.severity > Severity::Info;
            assert!(!held, "{name}: {finding:#?}");
        }
    }
    assert!(count >= 8, "{count} healthy hosts");
}

/// F01 to F70 are hosts here, or stand in `without.toml` with the reason.
#[test]
fn the_whole_catalogue_is_accounted_for() {
    let without: BTreeMap<String, String> =
        toml::from_str(&fs::read_to_string(folder().join("without.toml")).unwrap()).unwrap();
    let mut recorded: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, host) in hosts() {
        assert!(host.synthesised, "{name}: not marked as synthesised");
        for entry in host.entries {
            recorded.entry(entry).or_default().push(name.clone());
        }
    }
    for number in 1..=70 {
        let entry = format!("F{number:02}");
        let (here, there) = (recorded.contains_key(&entry), without.contains_key(&entry));
        assert!(here != there, "{entry}: host {here}, without {there}");
    }
    println!("catalogue entries without a host:");
    for (entry, why) in &without {
        assert!(why.len() > 20, "{entry}");
        println!("  {entry}: {why}");
    }
}

/// Rows of the decision table that the page of a cause names.
fn rows_of_page(cause: &str) -> BTreeSet<String> {
    let page = diagnose::page(cause).unwrap();
    let line = page.lines().find(|l| l.starts_with("Decision row"));
    let text = line.unwrap_or_default().replace("D5 to D8", "D5 D6 D7 D8");
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| {
            w.strip_prefix('D')
                .is_some_and(|n| n.parse::<u32>().is_ok())
        })
        .map(str::to_string)
        .collect()
}

/// Each row of the decision table stands in the page of its cause, and has a host on which a cause whose page names the row
/// is held. Row D20 is no fault: its hosts are healthy.
#[test]
fn every_decision_row_has_a_page_and_a_host() {
    let pages: BTreeSet<String> = ROSTER.iter().flat_map(|c| rows_of_page(c.id)).collect();
    let mut with_host = BTreeSet::new();
    for (name, host) in hosts() {
        for row in &host.rows {
            let held = host.expect.iter().any(|e| {
                e.judgement.as_deref().unwrap_or("indicted") == "indicted"
                    && rows_of_page(&e.cause).contains(row)
            });
            assert!(held || (row == "D20" && host.healthy), "{name}: {row}");
            with_host.insert(row.clone());
        }
    }
    for row in (1..=30).map(|n| format!("D{n}")) {
        assert!(pages.contains(&row), "{row}: no page");
        assert!(with_host.contains(&row), "{row}: no host");
    }
}

/// A cause that is held is expected with how bad it is, how sure, and what to do.
#[test]
fn what_is_held_is_expected_in_full() {
    for (name, host) in hosts() {
        let held = |e: &&Expect| e.judgement.as_deref().unwrap_or("indicted") == "indicted";
        for expect in host.expect.iter().filter(held) {
            let full =
                expect.severity.is_some() && expect.confidence.is_some() && expect.fix.is_some();
            assert!(full, "{name}: {expect:?}");
        }
    }
}

fn wanted(built: &Built) -> Vec<WantedCase> {
    diagnose::wanted(&Evidence::new(
        &built.snapshot,
        &built.records,
        &built.observations,
    ))
}

/// The discriminating cases turn probable into established, and are not asked for twice.
#[test]
fn a_wanted_case_that_ran_settles_the_cause() {
    let host = &hosts()["f11-io-page-fault"];
    let mut built = build::build(host).unwrap();
    let staged: Vec<_> = built
        .records
        .iter()
        .filter(|r| r.case.rung == Rung::Staged)
        .cloned()
        .collect();
    built.records.retain(|r| r.case.rung != Rung::Staged);
    let before = judge(&built);
    let iommu = |found: &[Finding]| {
        let finding = found.iter().find(|f| f.cause == "iommu-translation");
        finding.map(|f| (f.judgement, f.confidence)).unwrap()
    };
    assert_eq!(iommu(&before), (Judgement::Indicted, Confidence::Probable));
    let asked = wanted(&built);
    assert!(!asked.is_empty());
    for record in staged {
        let own = asked
            .iter()
            .any(|w| w.subject == record.case.subject && w.mechanism == record.case.mechanism);
        if own {
            assert_eq!(record.outcome, Outcome::Intact);
            built.records.push(record);
        }
    }
    assert_eq!(
        iommu(&judge(&built)),
        (Judgement::Indicted, Confidence::Established)
    );
    assert!(wanted(&built).is_empty(), "{:?}", wanted(&built));
    // Healthy hosts are asked nothing.
    for (name, host) in hosts().iter().filter(|(_, h)| h.healthy) {
        let asked = wanted(&build::build(host).unwrap());
        assert!(asked.is_empty(), "{name}: {asked:?}");
    }
}

/// Judging is cheap enough to do a thousand times a second in a release build; here only the order of magnitude is held.
#[test]
fn an_eight_gpu_report_is_judged_in_milliseconds() {
    let host = &hosts()["f70-sister-host"];
    let mut built = build::build(host).unwrap();
    let once = built.records.clone();
    for size in 1..6 {
        built.records.extend(once.iter().cloned().map(|mut r| {
            r.case.bytes <<= size;
            r
        }));
    }
    let started = std::time::Instant::now();
    let rounds = 20;
    for _ in 0..rounds {
        assert!(!judge(&built).is_empty());
    }
    let each = started.elapsed() / rounds;
    println!("{} records: {each:?} each", built.records.len());
    assert!(each.as_millis() < 100, "{each:?}");
}
