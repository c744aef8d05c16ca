//! Rung 5: kernels that stay resident. Wrong, late and never are told apart, on exactly the direction that has them.

use crate::host::{Host, failures, kind, line, only, pair, summary};
use peerproof::model::{
    case::{Outcome, Record, Rung, WrongKind},
    pair::OrderedPair,
    report::{Grading, Report},
};

/// Two GPUs with NVLink.
const SMALL: &str = "opaque-vm";
const ONLY: &[&str] = &["--mechanism", "resident"];

fn of(report: &Report, pair: OrderedPair) -> &Record {
    let mut records = report
        .records
        .iter()
        .filter(|r| r.case.mechanism == "resident");
    records
        .find(|r| r.case.subject.pair() == Some(pair))
        .unwrap_or_else(|| panic!("{}", summary(report)))
}

#[test]
fn healthy_exchanges_are_silent_also_where_stores_are_weakly_ordered() {
    for setting in ["deadline_factor=5", "weak_memory=3"] {
        let report = Host::new(SMALL).set(setting).qualify(ONLY);
        assert!(failures(&report).is_empty(), "{}", summary(&report));
        assert_eq!(report.verdict.grading, Grading::Pass);
        for direction in [pair(0, 1), pair(1, 0)] {
            let record = of(&report, direction);
            assert!(record.outcome.is_intact(), "{}", line(record));
            assert_eq!(record.case.rung, Rung::Resident);
            assert!(record.attempts_ran > 100 && record.attempts_ran == record.case.attempts);
        }
    }
}

#[test]
fn a_payload_that_comes_after_its_flag_is_late() {
    let report = Host::new(SMALL)
        .fault("0>1:sm_store=late:us=2000")
        .qualify(ONLY);
    only(&report, pair(0, 1), "resident");
    let found = of(&report, pair(0, 1)).outcome.corruption().unwrap();
    assert_eq!(found.kind, WrongKind::Late, "{}", found.detail);
    assert!(
        found.detail.contains("all right") && found.detail.contains("later"),
        "{}",
        found.detail
    );
    assert!(found.wrong_attempts > 1 && found.attempts_ran > 100);
    // What was there at the flag is kept, with what it became.
    let sample = found.samples.first().unwrap();
    assert_ne!(sample.owner, sample.expected);
    assert_eq!(sample.reread.as_ref(), Some(&sample.expected));
    assert!(
        of(&report, pair(1, 0)).outcome.is_intact(),
        "{}",
        summary(&report)
    );
}

#[test]
fn a_flag_that_never_comes_ends_by_the_kernels_own_clock() {
    for planted in ["1>0:sm_store=lost_flag", "1>0:sm_store=mirrored"] {
        let report = Host::new(SMALL).fault(planted).qualify(ONLY);
        only(&report, pair(1, 0), "resident");
        match &of(&report, pair(1, 0)).outcome {
            Outcome::Never {
                round: 1,
                rounds,
                after_ms,
            } => {
                assert!(
                    *rounds > 100 && (900..10_000).contains(after_ms),
                    "{after_ms}"
                );
            }
            other => panic!("{planted}: {other:?}"),
        }
        // The other direction was right as far as it came, and says why it came no further.
        let Outcome::NotRun { reason } = &of(&report, pair(0, 1)).outcome else {
            panic!("{planted}: {}", summary(&report));
        };
        assert!(reason.contains("the other direction"), "{reason}");
    }
}

#[test]
fn content_that_stays_wrong_is_named() {
    for (planted, wanted) in [
        ("0>1:sm_store16=zeroed", WrongKind::Zeroed),
        ("0>1:sm_store16=ones", WrongKind::Ones),
        ("0>1:sm_store16=dropped", WrongKind::Dropped),
        ("0>1:sm_store16=flipped:every=64", WrongKind::Flipped),
    ] {
        let report = Host::new(SMALL).fault(planted).qualify(ONLY);
        only(&report, pair(0, 1), "resident");
        let record = of(&report, pair(0, 1));
        assert_eq!(kind(record), Some(wanted), "{planted}: {}", line(record));
        let found = record.outcome.corruption().unwrap();
        assert_eq!(
            (found.attempt, found.attempts_ran),
            (1, record.case.attempts)
        );
        assert_eq!(found.wrong_attempts, record.case.attempts);
        assert!(!found.samples.is_empty());
        assert!(
            of(&report, pair(1, 0)).outcome.is_intact(),
            "{}",
            summary(&report)
        );
    }
}

#[test]
fn a_fault_and_a_hang_are_the_senders() {
    for planted in ["0>1:sm_store=sticky", "0>1:sm_store=hang"] {
        let report = Host::new(SMALL).fault(planted).qualify(ONLY);
        only(&report, pair(0, 1), "resident");
        let record = of(&report, pair(0, 1));
        match (&record.outcome, planted.ends_with("hang")) {
            (Outcome::TimedOut { .. }, true) => {}
            (Outcome::Faulted { code: 700, .. }, false) => {}
            (other, _) => panic!("{planted}: {other:?}"),
        }
        let other = of(&report, pair(1, 0));
        assert!(
            matches!(other.outcome, Outcome::NotRun { .. }),
            "{}",
            line(other)
        );
    }
}

#[test]
fn no_kernel_waits_on_a_pair_that_failed_below() {
    let arguments = ["--mechanism", "ce-push,resident"];
    let host = Host::new(SMALL).fault("0>1:ce_push=zeroed");
    let report = host.qualify(&arguments);
    for direction in [pair(0, 1), pair(1, 0)] {
        let Outcome::NotRun { reason } = &of(&report, direction).outcome else {
            panic!("{}", summary(&report));
        };
        assert!(reason.contains("unsafe after rung 2"), "{reason}");
    }
    let forced = host.qualify(&[&arguments[..], &["--force-unsafe"]].concat());
    assert!(
        of(&forced, pair(0, 1)).outcome.is_intact(),
        "{}",
        summary(&forced)
    );
}

#[test]
fn one_gpu_exchanges_with_itself() {
    let report = Host::new("one-gpu").qualify(&[]);
    let record = report
        .records
        .iter()
        .find(|r| r.case.mechanism == "resident-same-gpu")
        .unwrap();
    assert!(record.outcome.is_intact(), "{}", line(record));
    assert_eq!(record.attempts_ran, record.case.attempts);
    assert_eq!(
        report.verdict.grading,
        Grading::Pass,
        "{}",
        summary(&report)
    );
}
