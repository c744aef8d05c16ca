//! Mechanisms across processes: one rank per GPU, two on the only one. What is planted on a kind of memory is found on that
//! mechanism alone, judged by the owner, and what the platform lacks is no gap.

use crate::host::{Host, failures, kind, line, only, pair, summary};
use peerproof::model::{
    case::{Outcome, PeerAccess, Record, Rung, Subject, WrongKind},
    report::{Grading, Report},
};

const SMALL: &str = "opaque-vm";

fn of<'r>(report: &'r Report, mechanism: &str) -> Vec<&'r Record> {
    let records = report.records.iter();
    let found: Vec<&Record> = records.filter(|r| r.case.mechanism == mechanism).collect();
    assert!(!found.is_empty(), "no case of {mechanism}");
    found
}

#[test]
fn memory_of_other_processes_is_moved_by_every_engine_and_says_how_it_was_reached() {
    let report = Host::new(SMALL).qualify(&[
        "--quick",
        "--mechanism",
        "ipc-ce-push,ipc-ce-pull,ipc-sm-load,ipc-sm-store,vmm-ce-push,vmm-sm-load,vmm-sm-store",
    ]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    assert!(report.coverage.not_run.is_empty(), "{}", summary(&report));
    for (mechanism, access, executor) in [
        ("ipc-ce-push", PeerAccess::Imported, "copy engine of GPU0"),
        ("ipc-ce-pull", PeerAccess::Imported, "copy engine of GPU1"),
        (
            "ipc-sm-load",
            PeerAccess::Imported,
            "multiprocessors of GPU1",
        ),
        (
            "ipc-sm-store",
            PeerAccess::Imported,
            "multiprocessors of GPU0",
        ),
        ("vmm-ce-push", PeerAccess::Granted, "copy engine of GPU0"),
        (
            "vmm-sm-load",
            PeerAccess::Granted,
            "multiprocessors of GPU1",
        ),
        (
            "vmm-sm-store",
            PeerAccess::Granted,
            "multiprocessors of GPU0",
        ),
    ] {
        for record in of(&report, mechanism) {
            assert!(record.outcome.is_intact(), "{}", line(record));
            assert_eq!(record.case.rung, Rung::Shared);
            assert_eq!(record.peer_access, access, "{mechanism}");
            if record.case.subject == Subject::Pair(pair(0, 1)) {
                assert_eq!(record.executor, executor);
            }
        }
        let timed = of(&report, mechanism);
        assert!(timed.iter().any(|r| r.rate.is_some()), "{mechanism}");
    }
}

#[test]
fn a_fault_of_one_kind_of_memory_is_found_there_and_nowhere_else() {
    for (planted, mechanism, wanted) in [
        ("0>1:ipc.ce_push=zeroed", "ipc-ce-push", WrongKind::Zeroed),
        (
            "0>1:ipc.sm_store=mirrored",
            "ipc-sm-store",
            WrongKind::Mirrored,
        ),
        ("0>1:ipc.sm_load=flipped", "ipc-sm-load", WrongKind::Flipped),
        ("0>1:vmm.ce_push=dropped", "vmm-ce-push", WrongKind::Dropped),
        (
            "0>1:vmm.sm_store=spilled",
            "vmm-sm-store",
            WrongKind::Spilled,
        ),
    ] {
        let other = if mechanism.starts_with("ipc") {
            "vmm-ce-push"
        } else {
            "ipc-ce-push"
        };
        let list = format!("ce-push,sm-store,{mechanism},{other}");
        let list = if mechanism == other {
            "ce-push,vmm-ce-push".to_string()
        } else {
            list
        };
        let report = Host::new(SMALL)
            .fault(planted)
            .qualify(&["--quick", "--mechanism", &list]);
        only(&report, pair(0, 1), mechanism);
        for record in failures(&report) {
            if record.case.bytes >= 4096 {
                assert_eq!(kind(record), Some(wanted), "{planted}: {}", line(record));
            }
            let found = record.outcome.corruption().unwrap();
            assert_eq!(found.source_intact, Some(true), "{planted}");
            let pushes = record.case.mechanism != "ipc-sm-load";
            assert_eq!(found.accessor_sees_right.is_some(), pushes, "{planted}");
        }
    }
}

/// The others are asked over the wire: a third rank's buffer holds what was lost.
#[test]
fn words_that_land_in_a_third_ranks_buffer_are_found_there() {
    let report = Host::new("rtxpro6000-x8-root-complex")
        .fault("0>1:ipc.ce_push=misrouted:to=2")
        .qualify(&["--quick", "--gpus", "0,1,2", "--mechanism", "ipc-ce-push"]);
    only(&report, pair(0, 1), "ipc-ce-push");
    assert!(
        failures(&report)
            .iter()
            .any(|r| kind(r) == Some(WrongKind::Misrouted)),
        "{}",
        summary(&report)
    );
}

#[test]
fn a_rank_that_hangs_is_replaced_and_only_its_pair_is_blamed() {
    let report = Host::new(SMALL).fault("1>0:ipc.ce_push=hang").qualify(&[
        "--quick",
        "--mechanism",
        "ipc-ce-push,vmm-ce-push",
    ]);
    only(&report, pair(1, 0), "ipc-ce-push");
    let hung = |r: &&Record| matches!(r.outcome, Outcome::TimedOut { .. });
    assert_eq!(
        failures(&report).iter().copied().filter(hung).count(),
        1,
        "{}",
        summary(&report)
    );
    for record in of(&report, "vmm-ce-push") {
        assert!(record.outcome.is_intact(), "{}", line(record));
    }
    for record in of(&report, "ipc-ce-push") {
        if record.case.subject == Subject::Pair(pair(0, 1)) {
            assert!(record.outcome.is_intact(), "{}", line(record));
        }
    }
}

/// A process that dies in a transfer takes nobody with it.
#[test]
fn a_rank_that_dies_is_its_pairs_answer() {
    let report = Host::new(SMALL).fault("0>1:vmm.sm_store=death").qualify(&[
        "--quick",
        "--mechanism",
        "ipc-ce-push,vmm-sm-store",
    ]);
    only(&report, pair(0, 1), "vmm-sm-store");
    assert!(
        failures(&report)
            .iter()
            .all(|r| matches!(r.outcome, Outcome::Died { .. })),
        "{}",
        summary(&report)
    );
}

#[test]
fn a_handle_that_cannot_be_opened_is_a_refusal_and_a_platform_without_handles_no_gap() {
    let report = Host::new(SMALL)
        .fault("0>1:ipc.enable=sticky:code=217")
        .qualify(&["--quick", "--mechanism", "ipc-ce-push"]);
    for record in of(&report, "ipc-ce-push") {
        let refused = matches!(&record.outcome, Outcome::Refused { api, code: 217, .. } if api == "cuIpcOpenMemHandle_v2");
        let wanted = record.case.subject == Subject::Pair(pair(0, 1)) && !record.case.timed;
        assert_eq!(
            refused,
            wanted || record.case.timed && refused,
            "{}",
            line(record)
        );
    }
    let report = Host::new(SMALL).set("driver.vmm=false").qualify(&[
        "--quick",
        "--mechanism",
        "vmm-ce-push,fabric-sm-store",
    ]);
    assert!(report.coverage.not_run.is_empty(), "{}", summary(&report));
    for record in of(&report, "vmm-ce-push") {
        assert!(
            matches!(&record.outcome, Outcome::NotApplicable { reason } if reason.contains("attribute 102")),
            "{}",
            line(record)
        );
    }
    // The attribute says yes, the driver says no without the service that hands out channels.
    let report = Host::new(SMALL).qualify(&["--quick", "--mechanism", "fabric-sm-store"]);
    for record in of(&report, "fabric-sm-store") {
        assert!(
            matches!(&record.outcome, Outcome::NotApplicable { reason } if reason.contains("fabric handles")),
            "{}",
            line(record)
        );
    }
    assert_ne!(
        report.verdict.grading,
        Grading::Fail,
        "{}",
        summary(&report)
    );
}

#[test]
fn two_processes_on_the_only_gpu_prove_export_import_and_descriptors() {
    let report =
        Host::new("one-gpu").qualify(&["--quick", "--mechanism", "ipc-sm-store,vmm-ce-push"]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    for (mechanism, access) in [
        ("ipc-sm-store", PeerAccess::Imported),
        ("vmm-ce-push", PeerAccess::Granted),
    ] {
        for record in of(&report, mechanism) {
            assert!(record.outcome.is_intact(), "{}", line(record));
            assert!(record.case.subject.pair().is_none());
            assert_eq!(record.peer_access, access);
            assert!(
                record.executor.contains("two processes"),
                "{}",
                record.executor
            );
        }
    }
}
