//! What does not come back: a worker that outlives SIGKILL, and a driver that does not answer NVML. Neither holds up the report,
//! neither passes, and what they touched is left alone.
//!
//! No test can make a thread sleep uninterruptibly. The simulated host does the next best thing (`stuck`): a tracer holds the worker
//! where it would end, so that SIGKILL takes its threads and leaves the process with its files open, and `waitpid` has
//! nothing to tell. That is all a parent sees of a process in state D. Where a system forbids tracing the worker dies as any
//! other does, and these tests fail by the missing note.

use crate::host::{
    Host, Run, eventually, failures, indicted, line, only, pair, processes_with, summary,
};
use peerproof::{
    model::{
        case::{Outcome, Record},
        pair::GpuIndex,
        report::{Grading, Report},
    },
    render::json,
};
use std::time::{Duration, Instant};

/// A stuck worker costs its deadline and the wait for its end, twice: among others and alone. All else is short.
const BOUND: Duration = Duration::from_secs(180);

/// Runs `qualify` on a host with a fault that leaves a worker behind; nothing of it is left when the program has ended.
fn beside_a_stuck_worker(host: Host, arguments: &[&str]) -> Report {
    let temporary = tempfile::tempdir().unwrap();
    let mark = format!(
        "peerproof-stuck-{}-{}",
        std::process::id(),
        arguments.join("")
    );
    let host = host
        .set("deadline_factor=1")
        .variable("PEERPROOF_TEST_MARK", &mark)
        .variable("TMPDIR", temporary.path().to_str().unwrap());
    let started = Instant::now();
    let report = host.qualify(arguments);
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    eventually("the worker goes when nobody waits for it any more", || {
        processes_with(&mark).is_empty()
    });
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    report
}

/// The one case that hung is told with what became of its worker; its GPUs are quarantined, and no others.
fn left_behind(report: &Report, mechanism: &str) {
    only(report, pair(0, 1), mechanism);
    let failed = failures(report);
    assert_eq!(failed.len(), 1, "tried once alone: {}", summary(report));
    assert!(
        matches!(failed[0].outcome, Outcome::TimedOut { .. }),
        "{}",
        line(failed[0])
    );
    assert!(
        failed[0]
            .notes
            .iter()
            .any(|n| n.contains("could not be killed")),
        "{}",
        line(failed[0])
    );
    let verdict = &report.verdict;
    assert!(
        verdict.headline.contains("cannot be killed") && verdict.next.contains("reboot"),
        "{verdict:?}"
    );
    let touched = |record: &Record| {
        [0, 1]
            .iter()
            .any(|gpu| record.case.subject.touches(GpuIndex(*gpu)))
    };
    let mut quarantined = 0;
    for record in &report.records {
        match &record.outcome {
            Outcome::NotRun { reason } => {
                assert!(
                    touched(record) && reason.contains("quarantined"),
                    "{}",
                    line(record)
                );
                quarantined += 1;
            }
            // Asked before it hung.
            Outcome::Intact | Outcome::NotApplicable { .. } | Outcome::TimedOut { .. } => {}
            _ => panic!("{}", line(record)),
        }
    }
    assert!(quarantined > 0, "{}", summary(report));
}

#[test]
fn a_worker_that_sleeps_in_the_driver_and_cannot_be_killed_does_not_hold_up_the_report() {
    let host = Host::new("hgx-h200-x8").fault("0>1:plain.ce_push=stuck");
    let arguments = [
        "--quick",
        "--gpus",
        "0,1,2,3",
        "--mechanism",
        "bounce,ce-push,ce-pull",
    ];
    let report = beside_a_stuck_worker(host, &arguments);
    left_behind(&report, "ce-push");
    // The others of the round were in the same worker, and are proven in others.
    for (source, destination) in [(2, 3), (3, 2)] {
        let records = report.records.iter();
        let mut own = records
            .filter(|r| r.case.subject.pair() == Some(pair(source, destination)))
            .peekable();
        assert!(own.peek().is_some());
        own.for_each(|r| assert!(r.outcome.is_intact(), "{}", line(r)));
    }
}

#[test]
fn a_rank_that_cannot_be_killed_takes_only_its_pair_along() {
    let host = Host::new("hgx-h200-x8").fault("0>1:ipc.ce_push=stuck");
    let arguments = ["--quick", "--gpus", "0,1,2,3", "--mechanism", "ipc-ce-push"];
    let report = beside_a_stuck_worker(host, &arguments);
    left_behind(&report, "ipc-ce-push");
}

/// Here the worker itself still tells that its kernel hangs, and only then proves to be stuck.
#[test]
fn a_worker_that_told_of_a_hang_and_cannot_be_killed_is_left_behind_too() {
    let host = Host::new("hgx-h200-x8").fault("0>1:plain.sm_store16=stuck");
    let arguments = [
        "--quick",
        "--gpus",
        "0,1,2,3",
        "--mechanism",
        "ce-push,sm-store",
    ];
    left_behind(&beside_a_stuck_worker(host, &arguments), "sm-store");
}

fn silent(report: &Report, says: &str) {
    assert_eq!(report.verdict.grading, Grading::Fail, "{}", summary(report));
    assert!(
        report.verdict.headline.contains(says),
        "{}",
        report.verdict.headline
    );
    assert_eq!(indicted(report), ["gpu-itself"], "{}", summary(report));
}

fn read(run: &Run) -> Report {
    json::read(&run.stdout).unwrap_or_else(|error| panic!("{error}\n{}", run.stderr))
}

#[test]
fn nvml_that_never_answers_is_told_in_bounded_time_and_its_gpus_are_left_alone() {
    let one = Host::new("hgx-h200-x8").set("gpus.1.nvml='never'");
    let all = Host::new("opaque-vm")
        .set("gpus.0.nvml='never'")
        .set("gpus.1.nvml='never'");
    let qualify = [
        "qualify",
        "--no-file",
        "--json",
        "--quick",
        "--mechanism",
        "ce-push",
    ];
    let (report, nothing, map) = std::thread::scope(|scope| {
        let few = [&qualify[..], &["--gpus", "0,1,2"]].concat();
        let report = scope.spawn({
            let one = one.clone();
            move || read(&one.run(&few))
        });
        let nothing = scope.spawn(move || read(&all.run(&qualify[..4])));
        let map = scope.spawn(move || one.run(&["map"]));
        (
            report.join().unwrap(),
            nothing.join().unwrap(),
            map.join().unwrap(),
        )
    });
    silent(&report, "GPU1 does not answer NVML");
    assert_eq!(report.tested_gpus, [0, 2]);
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    let said = &report.coverage.left_out;
    assert!(
        said.iter()
            .any(|words| words.starts_with("GPU1: quarantined")),
        "{said:?}"
    );
    // What does not answer keeps nobody from being asked about the others.
    let claims = &report.snapshot.claims;
    assert!(
        claims
            .get(pair(0, 2))
            .is_some_and(|c| c.p2p_read.known().is_some())
    );
    assert!(
        claims
            .get(pair(0, 1))
            .is_none_or(|c| c.p2p_read.known().is_none())
    );

    silent(&nothing, "NVML answers for none of the 2 GPUs");
    assert!(nothing.records.is_empty() && nothing.tested_gpus.is_empty());

    assert_eq!(map.code, Some(0), "{}", map.stderr);
    assert!(
        map.stdout.contains("GPU1: NVML does not answer for it"),
        "{}",
        map.stdout
    );
    assert!(map.stdout.contains("GPU7"), "{}", map.stdout);
}

#[test]
fn nvml_that_stops_answering_after_a_hang_is_a_wedge() {
    let report = Host::new("hgx-h200-x8")
        .set("gpus.1.nvml='until-hang'")
        .set("deadline_factor=2")
        .fault("0>1:ce_push=hang")
        .qualify(&[
            "--quick",
            "--gpus",
            "0,1,2",
            "--mechanism",
            "ce-push,sm-load",
        ]);
    only(&report, pair(0, 1), "ce-push");
    assert!(
        indicted(&report).contains(&"gpu-itself"),
        "{}",
        summary(&report)
    );
    let quarantined = |record: &&Record| matches!(&record.outcome, Outcome::NotRun { reason } if reason.contains("quarantined"));
    let mut left: Vec<&Record> = report.records.iter().filter(quarantined).collect();
    assert!(!left.is_empty(), "{}", summary(&report));
    left.retain(|record| !record.case.subject.touches(GpuIndex(1)));
    assert!(left.is_empty(), "{}", summary(&report));
    // The GPU that answers goes on.
    let mut alone = report
        .records
        .iter()
        .filter(|r| r.case.subject.pair() == Some(pair(0, 2)) && r.case.mechanism == "sm-load");
    assert!(alone.any(|r| r.outcome.is_intact()), "{}", summary(&report));
}
