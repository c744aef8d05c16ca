//! Rung 5: kernels that stay resident. Wrong, late and never are told apart, on exactly the direction that has them.

use crate::host::{Host, failures, kind, line, only, pair, summary};
use peerproof::model::{
    case::{Outcome, PeerAccess, Record, Rung, Subject, WrongKind},
    pair::OrderedPair,
    report::{Grading, Report},
};

/// Two GPUs with NVLink.
const SMALL: &str = "opaque-vm";
const ONLY: &[&str] = &["--mechanism", "resident"];

const ACROSS: &[&str] = &["--mechanism", "ipc-resident"];

fn of(report: &Report, pair: OrderedPair) -> &Record {
    of_exchange(report, "resident", pair)
}

fn across(report: &Report, pair: OrderedPair) -> &Record {
    of_exchange(report, "ipc-resident", pair)
}

fn of_exchange<'r>(report: &'r Report, exchange: &str, pair: OrderedPair) -> &'r Record {
    let mut records = report
        .records
        .iter()
        .filter(|r| r.case.mechanism == exchange);
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
                missing: None,
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

#[test]
fn two_processes_exchange_over_memory_opened_by_handle() {
    for setting in ["deadline_factor=5", "weak_memory=3"] {
        let report = Host::new(SMALL).set(setting).qualify(ACROSS);
        assert!(failures(&report).is_empty(), "{}", summary(&report));
        assert_eq!(report.verdict.grading, Grading::Pass);
        for direction in [pair(0, 1), pair(1, 0)] {
            let record = across(&report, direction);
            assert!(record.outcome.is_intact(), "{}", line(record));
            assert_eq!(record.case.rung, Rung::Resident);
            assert_eq!(record.peer_access, PeerAccess::Imported);
            assert!(
                record.executor.contains("wait and judge"),
                "{}",
                record.executor
            );
            assert!(record.attempts_ran > 100 && record.attempts_ran == record.case.attempts);
        }
    }
}

#[test]
fn between_processes_wrong_and_late_are_the_writers_direction_alone() {
    for (planted, wanted) in [
        ("0>1:ipc.sm_store=late:us=2000", WrongKind::Late),
        ("1>0:ipc.sm_store16=zeroed", WrongKind::Zeroed),
        ("0>1:ipc.sm_store16=dropped", WrongKind::Dropped),
    ] {
        let (guilty, other) = match planted.starts_with('0') {
            true => (pair(0, 1), pair(1, 0)),
            false => (pair(1, 0), pair(0, 1)),
        };
        let report = Host::new(SMALL)
            .fault(planted)
            .qualify(&["--mechanism", "resident,ipc-resident"]);
        only(&report, guilty, "ipc-resident");
        let record = across(&report, guilty);
        assert_eq!(kind(record), Some(wanted), "{planted}: {}", line(record));
        let found = record.outcome.corruption().unwrap();
        assert_eq!(found.attempts_ran, record.case.attempts);
        assert!(found.wrong_attempts > 1 && !found.samples.is_empty());
        for right in [across(&report, other), of(&report, guilty)] {
            assert!(right.outcome.is_intact(), "{planted}: {}", line(right));
        }
    }
}

#[test]
fn between_processes_a_flag_that_never_comes_is_told_without_a_shared_stop_word() {
    let report = Host::new(SMALL)
        .fault("1>0:ipc.sm_store=lost_flag")
        .qualify(ACROSS);
    only(&report, pair(1, 0), "ipc-resident");
    let guilty = across(&report, pair(1, 0));
    assert!(
        matches!(guilty.outcome, Outcome::Never { round: 1, rounds, after_ms, missing: None }
            if rounds > 100 && (1900..10_000).contains(&after_ms)),
        "{}",
        line(guilty)
    );
    let Outcome::NotRun { reason } = &across(&report, pair(0, 1)).outcome else {
        panic!("{}", summary(&report));
    };
    assert!(reason.contains("the other direction"), "{reason}");
}

#[test]
fn between_processes_a_hang_a_fault_and_a_death_are_the_senders() {
    for planted in ["hang", "sticky", "death"] {
        let fault = format!("1>0:ipc.sm_store={planted}");
        let report = Host::new(SMALL)
            .fault(&fault)
            .qualify(&[ACROSS, &["--quick"]].concat());
        only(&report, pair(1, 0), "ipc-resident");
        let record = across(&report, pair(1, 0));
        match (planted, &record.outcome) {
            ("hang", Outcome::TimedOut { .. })
            | ("sticky", Outcome::Faulted { code: 700, .. })
            | ("death", Outcome::Died { .. }) => {}
            (_, other) => panic!("{planted}: {other:?}"),
        }
        let other = across(&report, pair(0, 1));
        assert!(
            matches!(other.outcome, Outcome::NotRun { .. }),
            "{planted}: {}",
            line(other)
        );
    }
}

#[test]
fn no_kernel_of_another_process_waits_on_a_pair_that_failed_below() {
    let report = Host::new(SMALL)
        .fault("0>1:ipc.ce_push=zeroed")
        .qualify(&["--mechanism", "ipc-ce-push,ipc-resident"]);
    for direction in [pair(0, 1), pair(1, 0)] {
        let Outcome::NotRun { reason } = &across(&report, direction).outcome else {
            panic!("{}", summary(&report));
        };
        assert!(reason.contains("unsafe after rung 4"), "{reason}");
    }
}

#[test]
fn memory_that_one_process_cannot_open_is_that_directions_refusal() {
    let report = Host::new(SMALL)
        .fault("0>1:ipc.enable=sticky:code=217")
        .qualify(ACROSS);
    let refused = across(&report, pair(0, 1));
    assert!(
        matches!(&refused.outcome, Outcome::Refused { api, code: 217, .. } if api == "cuIpcOpenMemHandle_v2"),
        "{}",
        line(refused)
    );
    let other = across(&report, pair(1, 0));
    assert!(
        matches!(other.outcome, Outcome::NotRun { .. }),
        "{}",
        line(other)
    );
}

#[test]
fn two_processes_on_one_gpu_exchange_a_few_rounds() {
    let report = Host::new("one-gpu").qualify(ACROSS);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    let mut records = report.records.iter();
    let record = records
        .find(|r| r.case.mechanism == "ipc-resident")
        .unwrap();
    assert!(matches!(record.case.subject, Subject::Gpu(_)));
    assert!(record.outcome.is_intact(), "{}", line(record));
    assert_eq!((record.attempts_ran, record.case.attempts), (8, 8));
    assert_eq!(record.peer_access, PeerAccess::Imported);
    assert!(
        record.executor.contains("two processes"),
        "{}",
        record.executor
    );
}
