//! Rung 7: the same transfers while others run. What is wrong only then is a failure, under load; what is slow then is slow.

use crate::host::{Host, failures, line, only, pair, summary};
use peerproof::{
    model::{
        case::{Load, Outcome, Record, Rung, WrongKind},
        report::{Grading, Report},
    },
    stats::median,
};
use std::collections::{BTreeMap, BTreeSet};

const ROOTS: &str = "rtxpro6000-x8-root-complex";

fn loaded(report: &Report) -> Vec<&Record> {
    let records = report.records.iter();
    records.filter(|r| r.case.rung == Rung::Loaded).collect()
}

/// Median rate of all flows of a mechanism in a shape.
fn rate(report: &Report, mechanism: &str, load: Load) -> f64 {
    let records = loaded(report).into_iter();
    let samples: Vec<f64> = records
        .filter(|r| r.case.mechanism == mechanism && r.case.load == Some(load))
        .filter_map(|r| median(&r.rate.as_ref()?.samples))
        .collect();
    median(&samples).unwrap()
}

#[test]
fn a_healthy_host_is_right_under_every_load() {
    let report = Host::new(ROOTS).qualify(&["--mechanism", "ce-push"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    let mut flows: BTreeMap<Load, usize> = BTreeMap::new();
    for record in loaded(&report) {
        let load = record.case.load.unwrap();
        *flows.entry(load).or_default() += 1;
        assert!(record.outcome.is_intact(), "{}", line(record));
        assert!(
            record.attempts_ran >= record.case.attempts,
            "{}",
            line(record)
        );
        // A shared rate is told as such, and never counts as one taken alone.
        assert!(!record.alone);
        let rate = record.rate.as_ref().unwrap();
        assert!(rate.method.contains("under load") && rate.method.contains(load.words()));
        assert_eq!(rate.samples.len() as u32, record.attempts_ran);
    }
    let wanted = [
        (Load::BothDirections, 8),
        (Load::OneToMany, 16),
        (Load::Round, 48),
        (Load::AllPairs, 56),
    ];
    // The first round is that of both directions: a set of flows runs once.
    let all: BTreeMap<Load, usize> = wanted.into_iter().collect();
    assert!(flows.keys().eq(all.keys()), "{flows:?}");
    assert_eq!(flows[&Load::AllPairs], 56);
    assert_eq!(flows[&Load::OneToMany], 16);
}

#[test]
fn one_source_writes_to_two_roots() {
    let report = Host::new("switch-pairs-x8").qualify(&["--mechanism", "ce-push"]);
    let mut targets: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for record in loaded(&report) {
        if record.case.load == Some(Load::OneToMany) {
            let pair = record.case.subject.pair().unwrap();
            targets
                .entry(pair.source.0)
                .or_default()
                .insert(pair.destination.0);
        }
    }
    assert_eq!(targets.len(), 8);
    for (source, targets) in targets {
        // GPUs 2n and 2n + 1 share a switch.
        let switches: BTreeSet<u32> = targets.iter().map(|gpu| gpu / 2).collect();
        assert_eq!(
            (targets.len(), switches.len()),
            (2, 2),
            "GPU{source} to {targets:?}"
        );
    }
}

#[test]
fn wrong_only_under_load_is_a_failure_under_load() {
    let report = Host::new(ROOTS)
        .fault("2>5:ce_push=flipped:load=6")
        .qualify(&["--mechanism", "bounce,ce-push"]);
    only(&report, pair(2, 5), "ce-push");
    for record in failures(&report) {
        assert_eq!(record.case.rung, Rung::Loaded, "{}", line(record));
        assert_eq!(
            record.outcome.corruption().unwrap().kind,
            WrongKind::Flipped
        );
        assert!(
            record.notes.iter().any(|n| n == "under load"),
            "{:?}",
            record.notes
        );
    }
    let quiet = report.records.iter().filter(|r| r.case.rung < Rung::Loaded);
    for record in quiet {
        assert!(record.outcome.is_intact(), "{}", line(record));
    }
}

#[test]
fn a_collapse_of_posted_writes_is_slow_and_not_wrong() {
    let of = |scenario: &str| Host::new(scenario).qualify(&["--mechanism", "ce-push,ce-pull"]);
    let (sound, sick) = (of("switch-pairs-x8"), of("posted-write-collapse"));
    assert!(failures(&sick).is_empty(), "{}", summary(&sick));
    assert_ne!(sick.verdict.grading, Grading::Fail);
    let all = Load::AllPairs;
    let (writes, before) = (rate(&sick, "ce-push", all), rate(&sound, "ce-push", all));
    assert!(writes * 3.0 < before, "{writes} {before}");
    let (reads, before) = (rate(&sick, "ce-pull", all), rate(&sound, "ce-pull", all));
    assert!(reads * 2.0 > before, "{reads} {before}");
}

#[test]
fn a_pair_that_failed_below_is_left_out_of_the_load() {
    let report = Host::new(ROOTS).fault("0>1:ce_push=zeroed").qualify(&[
        "--mechanism",
        "ce-push",
        "--quick",
    ]);
    for record in loaded(&report) {
        let own = [pair(0, 1), pair(1, 0)].contains(&record.case.subject.pair().unwrap());
        match &record.outcome {
            Outcome::NotRun { reason } if own => {
                assert!(reason.contains("unsafe after rung 2"), "{reason}")
            }
            outcome => assert!(!own && outcome.is_intact(), "{}", line(record)),
        }
    }
    assert_eq!(loaded(&report).len(), 56);
}

#[test]
fn two_gpus_have_one_load() {
    let report = Host::new("opaque-vm").qualify(&["--mechanism", "staged,ce-push,sm-store"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    let seen: BTreeSet<(&str, Option<Load>)> = loaded(&report)
        .iter()
        .map(|r| (r.case.mechanism.as_str(), r.case.load))
        .collect();
    let both = Some(Load::BothDirections);
    assert_eq!(
        seen,
        BTreeSet::from([("staged", both), ("ce-push", both), ("sm-store", both)])
    );
}
