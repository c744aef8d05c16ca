//! The checker is seen to fail, and a checker that cannot be trusted says so.

use crate::host::{Host, failures, summary};
use peerproof::model::{case::WrongKind, report::Grading};

#[test]
fn every_kind_of_wrong_is_planted_and_named() {
    let host = Host::new("one-gpu");
    let run = host.run(&["selftest"]);
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("26 of 26"), "{}", run.stdout);
    for kind in WrongKind::ALL.into_iter().filter(|k| *k != WrongKind::Late) {
        assert!(run.stdout.contains(kind.name()), "{kind}\n{}", run.stdout);
    }
    // The same as part of a report.
    let report = host.qualify(&["--mechanism", "host-write"]);
    let selftest = report.selftest.unwrap();
    assert!(selftest.passed());
    for kind in WrongKind::ALL.into_iter().filter(|k| *k != WrongKind::Late) {
        assert!(
            selftest
                .plants
                .iter()
                .any(|p| p.planted == Some(kind) && p.reported == Some(kind)),
            "{kind}: {selftest:#?}"
        );
    }
    // A buffer with nothing wrong, and the device's words against the host's arithmetic.
    assert_eq!(
        selftest
            .plants
            .iter()
            .filter(|p| p.planted.is_none())
            .count(),
        4
    );
    let unaligned = selftest
        .plants
        .iter()
        .filter(|p| p.detail.ends_with("(unaligned)"));
    assert_eq!(unaligned.count(), 12);
}

#[test]
fn on_a_gpu_whose_memory_lies_the_self_test_does_not_pass() {
    let host = Host::new("one-gpu").fault("0>0:own=flipped");
    let run = host.run(&["selftest"]);
    assert_eq!(run.code, Some(3), "{}\n{}", run.stdout, run.stderr);
    let report = host.qualify(&[]);
    assert!(!report.selftest.as_ref().unwrap().passed());
    assert!(!failures(&report).is_empty());
    assert_eq!(
        report.verdict.grading,
        Grading::Fail,
        "{}",
        summary(&report)
    );
}
