//! Every kind of fault on one ordered pair and one mechanism of a small host: named, on exactly that pair and mechanism,
//! and nothing else blamed.

use crate::host::{Host, failures, indicted, kind, line, only, pair, summary};
use peerproof::model::{
    case::{Outcome, Record, Rung, WrongKind},
    report::{Grading, Report},
};

/// Two GPUs with NVLink.
const SMALL: &str = "opaque-vm";
/// Transfers below this many bytes are too short to tell all kinds apart: what moves by 8 bytes does not arrive at all.
const TELLING: u64 = 4096;

/// The kinds of all wrong cases that are long enough to tell; asserts that there is one.
fn kinds(report: &Report) -> Vec<WrongKind> {
    let kinds: Vec<WrongKind> = failures(report)
        .into_iter()
        .filter(|record| record.case.bytes >= TELLING)
        .filter_map(kind)
        .collect();
    assert!(!kinds.is_empty(), "{}", summary(report));
    kinds
}

/// Kernels that wait and load are not tried on a pair that failed below.
fn unsafe_now(record: &Record) -> bool {
    record.case.rung >= Rung::Resident
        && matches!(&record.outcome, Outcome::NotRun { reason } if reason.starts_with("unsafe after rung"))
}

#[track_caller]
fn all_are(report: &Report, wanted: WrongKind) {
    for kind in kinds(report) {
        assert_eq!(kind, wanted, "{}", summary(report));
    }
    assert!(
        report.verdict.headline.contains(&format!(": {wanted} in ")),
        "{}",
        report.verdict.headline
    );
}

#[test]
fn wrong_data_is_named_on_its_pair_and_mechanism() {
    for (planted, wanted) in [
        ("zeroed", WrongKind::Zeroed),
        ("ones", WrongKind::Ones),
        ("dropped", WrongKind::Dropped),
        ("mirrored", WrongKind::Mirrored),
        ("spilled", WrongKind::Spilled),
        ("shifted", WrongKind::Shifted),
        ("shifted:bytes=64", WrongKind::Shifted),
        ("flipped", WrongKind::Flipped),
        ("partial", WrongKind::Partial),
    ] {
        let report = Host::new(SMALL)
            .fault(&format!("0>1:ce_push={planted}"))
            .qualify(&["--mechanism", "bounce,ce-push,ce-pull"]);
        only(&report, pair(0, 1), "ce-push");
        all_are(&report, wanted);
        assert_eq!(indicted(&report), Vec::<&str>::new(), "{planted}");
    }
}

#[test]
fn each_mechanism_is_blamed_for_itself() {
    for (planted, blamed, source, destination) in [
        ("1>0:ce_pull=zeroed", "ce-pull", 1, 0),
        ("0>1:sm_load=ones", "sm-load", 0, 1),
        ("1>0:sm_store=zeroed", "sm-store", 1, 0),
        ("0>1:sm_store=mirrored", "sm-store", 0, 1),
    ] {
        let report = Host::new(SMALL)
            .fault(planted)
            .qualify(&["--mechanism", "ce-push,ce-pull,sm-load,sm-store"]);
        only(&report, pair(source, destination), blamed);
    }
}

#[test]
fn staged_copies_that_lie_are_no_peer_fault() {
    let report = Host::new(SMALL)
        .fault("0>1:staged=zeroed")
        .qualify(&["--mechanism", "bounce,staged,ce-push"]);
    only(&report, pair(0, 1), "staged");
    all_are(&report, WrongKind::Zeroed);
    assert_eq!(indicted(&report), ["host-staging-broken"]);
}

#[test]
fn stale_words_name_the_attempt_that_they_are_of() {
    // The third copy of each case brings what the second one brought.
    let report = Host::new(SMALL)
        .fault("0>1:ce_push=stale:nth=3")
        .qualify(&["--mechanism", "ce-push"]);
    only(&report, pair(0, 1), "ce-push");
    let named: Vec<_> = failures(&report)
        .into_iter()
        .filter(|r| kind(r) == Some(WrongKind::Stale))
        .collect();
    assert!(!named.is_empty(), "{}", summary(&report));
    for record in named.iter().filter(|r| r.case.bytes >= TELLING) {
        let found = record.outcome.corruption().unwrap();
        assert!(
            found.detail.contains("of 0->1 by ce-push, attempt"),
            "{}",
            line(record)
        );
        assert_eq!((found.wrong_attempts, found.attempts_ran), (1, 3));
    }
}

#[test]
fn lost_words_are_found_where_they_went() {
    let report = Host::new("hgx-h200-x8")
        .fault("0>1:ce_push=misrouted:to=2")
        .qualify(&["--mechanism", "ce-push", "--gpus", "0,1,2,3"]);
    only(&report, pair(0, 1), "ce-push");
    for record in failures(&report) {
        assert_eq!(kind(record), Some(WrongKind::Misrouted), "{}", line(record));
        let found = record.outcome.corruption().unwrap();
        assert!(found.detail.contains("GPU2"), "{}", line(record));
    }
    // GPU3 wrote to GPU2 meanwhile and is not blamed; the record says why it was looked at twice.
    let neighbour = report
        .records
        .iter()
        .find(|r| {
            r.case.subject.pair() == Some(pair(3, 2))
                && r.notes.iter().any(|n| n.contains("misrouted"))
        })
        .unwrap_or_else(|| panic!("{}", summary(&report)));
    assert!(neighbour.outcome.is_intact() && neighbour.alone);
}

#[test]
fn once_and_every_nth_time_are_seen() {
    let once = Host::new(SMALL)
        .fault("0>1:ce_push=zeroed:once")
        .qualify(&["--mechanism", "bounce,ce-push,ce-pull"]);
    only(&once, pair(0, 1), "ce-push");
    let failed = failures(&once);
    let found = failed[0].outcome.corruption().unwrap();
    assert_eq!(
        (
            failed.len(),
            found.wrong_attempts,
            found.attempts_ran,
            found.attempt
        ),
        (1, 1, 3, 1),
        "{}",
        summary(&once)
    );
    assert!(
        failed[0]
            .notes
            .iter()
            .any(|n| n.contains("intact when run alone")),
        "{:?}",
        failed[0].notes
    );
    let nth = Host::new(SMALL)
        .fault("0>1:ce_push=flipped:nth=5")
        .qualify(&["--mechanism", "bounce,ce-push,ce-pull"]);
    only(&nth, pair(0, 1), "ce-push");
    all_are(&nth, WrongKind::Flipped);
}

/// The first copy is wrong, and the copies that are to confirm it alone never end: what was seen once stands.
#[test]
fn wrong_data_outlasts_a_second_look_that_hangs() {
    let report = Host::new(SMALL)
        .set("deadline_factor=2")
        .fault("0>1:ce_push=zeroed:at=1")
        .fault("0>1:ce_push=hang:after=1")
        .qualify(&["--quick", "--mechanism", "ce-push"]);
    only(&report, pair(0, 1), "ce-push");
    let found = failures(&report)
        .into_iter()
        .find(|record| kind(record) == Some(WrongKind::Zeroed))
        .unwrap_or_else(|| panic!("{}", summary(&report)));
    assert!(!found.alone);
    assert!(
        found
            .notes
            .iter()
            .any(|n| n.contains("run again alone: hang")),
        "{}",
        line(found)
    );
    assert!(
        report.verdict.headline.contains("zeroed"),
        "{}",
        report.verdict.headline
    );
}

/// One attempt in 200 is wrong; or all of them, but only after many transfers and much load. A quick look makes too few attempts to
/// see either, and says so; a soak finds them.
#[test]
fn a_rare_fault_is_found_by_a_soak_and_a_quick_look_says_that_it_could_not_have_seen_it() {
    for when in ["nth=200", "after=150"] {
        let host = Host::new(SMALL).fault(&format!("0>1:ce_push=flipped:{when}"));
        let quick = host.qualify(&["--quick", "--mechanism", "ce-push"]);
        assert_eq!(quick.verdict.grading, Grading::Pass, "{}", summary(&quick));
        assert!(
            quick
                .verdict
                .cause
                .contains("one of 1 in 200 would not (--deep looks for it)"),
            "{}",
            quick.verdict.cause
        );
        let (deep, struck) = host.qualify_counting(&["--deep=6s", "--mechanism", "ce-push"]);
        assert!(struck[0].1 > 0, "the soak was too short for this machine");
        assert_eq!(deep.verdict.grading, Grading::Fail, "{}", summary(&deep));
        for record in failures(&deep) {
            let of = (record.case.subject.pair(), record.case.mechanism.as_str());
            assert_eq!(of, (Some(pair(0, 1)), "ce-push"), "{}", summary(&deep));
        }
        assert!(rate_seen(&quick) > 0.1, "{}", rate_seen(&quick));
        assert!(rate_seen(&deep) < 0.02, "{}", rate_seen(&deep));
        let found = failures(&deep)
            .into_iter()
            .filter_map(|record| record.outcome.corruption())
            .find(|found| found.attempts_ran >= 100)
            .unwrap_or_else(|| panic!("{}", summary(&deep)));
        assert_eq!(found.kind, WrongKind::Flipped);
        if when == "nth=200" {
            let rare = found.wrong_attempts * 100 <= found.attempts_ran;
            assert!(rare, "{}", summary(&deep));
        }
    }
}

/// The smallest fault rate that the report says its quiet attempts by copy engines would have shown with 95%, which follows from their
/// number.
fn rate_seen(report: &Report) -> f64 {
    let rows = report.coverage.sensitivity.iter();
    let mut quiet = rows.filter(|s| s.mechanism == "ce-push" && s.rung == Rung::Copied);
    let row = quiet.next().expect("a row of the mechanism");
    let bound = 1.0 - 0.05f64.powf(1.0 / row.attempts as f64);
    assert!((row.seen_fault_rate - bound).abs() < 1e-12, "{row:?}");
    row.seen_fault_rate
}

#[test]
fn slow_is_slow_and_not_wrong() {
    let rate = |report: &Report, source, destination| {
        let timed = report
            .records
            .iter()
            .find(|r| r.case.timed && r.case.subject.pair() == Some(pair(source, destination)));
        let samples = timed.unwrap().rate.clone().unwrap().samples;
        samples.iter().sum::<f64>() / samples.len() as f64
    };
    let report = Host::new(SMALL)
        .fault("0>1:ce_push=slow:factor=10")
        .qualify(&["--mechanism", "ce-push"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    assert_ne!(report.verdict.grading, Grading::Fail);
    let (slow, other) = (rate(&report, 0, 1), rate(&report, 1, 0));
    assert!(slow * 3.0 < other, "{slow} {other}");
}

#[test]
fn faults_and_deaths_do_not_stop_the_rest() {
    for (planted, mechanism, blamed) in [
        ("0>1:sm_load=sticky", "sm-load", pair(0, 1)),
        ("1>0:ce_pull=sticky:code=719", "ce-pull", pair(1, 0)),
        ("1>0:ce_pull=death", "ce-pull", pair(1, 0)),
        ("0>1:sm_store=death", "sm-store", pair(0, 1)),
    ] {
        let report = Host::new(SMALL)
            .fault(planted)
            .qualify(&["--mechanism", "ce-push,ce-pull,sm-load,sm-store"]);
        only(&report, blamed, mechanism);
        let failed = failures(&report);
        assert_eq!(
            failed.len(),
            1,
            "tried once, then left alone: {}",
            summary(&report)
        );
        match &failed[0].outcome {
            Outcome::Died { how } if planted.ends_with("death") => {
                assert!(how.contains("SIGKILL"), "{how}");
            }
            Outcome::Faulted { code, name, .. } => {
                let (wanted, named) = if planted.contains("719") {
                    (719, "CUDA_ERROR_LAUNCH_FAILED")
                } else {
                    (700, "CUDA_ERROR_ILLEGAL_ADDRESS")
                };
                assert_eq!((*code, name.as_str()), (wanted, named));
            }
            other => panic!("{planted}: {other:?}"),
        }
        for record in &report.records {
            let own =
                record.case.subject.pair() == Some(blamed) && record.case.mechanism == mechanism;
            assert!(
                own || record.outcome.is_intact() || unsafe_now(record),
                "{planted}: {}",
                line(record)
            );
        }
    }
}

#[test]
fn a_hang_of_a_kernel_is_told_from_a_hang_of_a_copy() {
    let report = Host::new(SMALL)
        .fault("1>0:sm_store=hang")
        .qualify(&["--mechanism", "ce-push,sm-store"]);
    only(&report, pair(1, 0), "sm-store");
    assert!(
        matches!(failures(&report)[0].outcome, Outcome::TimedOut { .. }),
        "{}",
        summary(&report)
    );
    for record in &report.records {
        let own =
            record.case.subject.pair() == Some(pair(1, 0)) && record.case.mechanism == "sm-store";
        assert!(
            own || record.outcome.is_intact() || unsafe_now(record),
            "{}",
            line(record)
        );
    }
}

#[test]
fn a_refusal_is_a_clean_no_and_a_warning() {
    let report = Host::new(SMALL).fault("0>1:enable=refusal").qualify(&[]);
    assert_eq!(
        report.verdict.grading,
        Grading::Warn,
        "{}",
        summary(&report)
    );
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    // Refused is whatever GPU0 would have had to reach GPU1 for: its pushes and stores, and its pulls and loads.
    for record in &report.records {
        let Some(of) = record.case.subject.pair() else {
            continue;
        };
        let mechanism = record.case.mechanism.as_str();
        let ends = |endings: &[&str]| endings.iter().any(|end| mechanism.ends_with(end));
        // Pools are granted to a peer, not enabled; an exchange and an all-reduce need both ways.
        let granted = mechanism.starts_with("pool-");
        let by_source = mechanism == "advertised"
            || mechanism.starts_with("atomics")
            || ends(&["ce-push", "sm-store", "sm-store4"]);
        let by_destination = ends(&["ce-pull", "sm-load"]);
        let refused = !granted
            && (by_source && of == pair(0, 1)
                || by_destination && of == pair(1, 0)
                || mechanism.ends_with("resident")
                || record.case.rung == Rung::Reduced);
        match &record.outcome {
            Outcome::Refused { code, name, .. } => {
                assert!(refused, "{}", line(record));
                assert_eq!(
                    (*code, name.as_str()),
                    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED")
                );
            }
            // No NVSwitch here, so no fabric handles, and no native atomics on host memory.
            Outcome::NotApplicable { .. }
                if ["fabric-sm-store", "host-atomics"].contains(&mechanism) => {}
            outcome => assert!(!refused && outcome.is_intact(), "{}", line(record)),
        }
    }
    assert!(
        report.verdict.headline.contains("peer access"),
        "{}",
        report.verdict.headline
    );
}

#[test]
fn claims_that_contradict_each_other_are_a_warning() {
    for (claim, says) in [
        (
            "claims=[{pair='0>1',p2p='OK',can_access=false}]",
            "CUDA says no",
        ),
        (
            "claims=[{pair='0>1',p2p='CNS',can_access=true}]",
            "CUDA says yes",
        ),
    ] {
        let report = Host::new(SMALL)
            .set(claim)
            .qualify(&["--mechanism", "bounce,ce-push"]);
        assert_eq!(
            report.verdict.grading,
            Grading::Warn,
            "{claim}: {}",
            summary(&report)
        );
        assert!(failures(&report).is_empty(), "{}", summary(&report));
        let advertised = report
            .records
            .iter()
            .find(|r| r.case.mechanism == "advertised" && r.case.subject.pair() == Some(pair(0, 1)))
            .unwrap();
        let Outcome::Refused { name, .. } = &advertised.outcome else {
            panic!("{}", line(advertised));
        };
        assert!(name.contains(says), "{name}");
    }
}
