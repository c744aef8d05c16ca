//! The three hosts that this program exists for: all pairs zeroed, its healthy twin, and one pair that hangs.

use crate::host::{Host, consumer, failures, indicted, kind, line, pair, save, summary};
use peerproof::{
    model::{
        case::{Outcome, Rung, WrongKind},
        finding::{Confidence, ConsumerState, Judgement, Severity},
        pair::OrderedPair,
        report::{Grading, Report},
    },
    render::{self, terminal},
};
use std::collections::BTreeSet;

const PEER_CONSUMERS: [&str; 6] = [
    "nccl-p2p",
    "custom-all-reduce",
    "flashinfer-pcie-ipc",
    "symmetric-memory",
    "llama-cpp-peer-copies",
    "single-process-python",
];

/// The text that `qualify` prints for a report.
fn text(report: &Report, width: usize) -> String {
    let options = render::Options {
        width,
        color: false,
    };
    let closing = terminal::Closing {
        timings: false,
        saved: terminal::Saved::NotAsked,
    };
    let mut out = Vec::new();
    terminal::write(report, &closing, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn pairs_of(report: &Report, rung: Rung, is: impl Fn(&Outcome) -> bool) -> BTreeSet<OrderedPair> {
    report
        .records
        .iter()
        .filter(|record| record.case.rung == rung && is(&record.outcome))
        .filter_map(|record| record.case.subject.pair())
        .collect()
}

#[test]
fn every_pair_zeroed_while_all_claims_say_ok() {
    let report = Host::new("rtxpro6000-x8-zeroed").qualify(&[
        "--mechanism",
        "bounce,staged,host-exchange,ce-push,ce-pull,sm-load,sm-store",
    ]);
    assert_eq!(report.verdict.grading, Grading::Fail);
    let all: BTreeSet<OrderedPair> = OrderedPair::all(8).collect();
    assert_eq!(all.len(), 56);
    // Every peer transfer is wrong, all of one kind; every copy through the host is right; every claim was a yes.
    for record in report
        .records
        .iter()
        .filter(|r| matches!(r.case.rung, Rung::Copied | Rung::Touched) && !r.case.timed)
    {
        assert_eq!(kind(record), Some(WrongKind::Zeroed), "{}", line(record));
    }
    assert_eq!(
        pairs_of(&report, Rung::Copied, |o| o.corruption().is_some()),
        all
    );
    assert_eq!(
        pairs_of(&report, Rung::Touched, |o| o.corruption().is_some()),
        all
    );
    assert_eq!(pairs_of(&report, Rung::Staged, Outcome::is_intact), all);
    assert_eq!(pairs_of(&report, Rung::Advertised, Outcome::is_intact), all);
    for record in failures(&report) {
        assert!(record.case.rung >= Rung::Copied, "{}", line(record));
    }
    // The headline: pair, mechanism, kind, how many, control arm, claim.
    let headline = &report.verdict.headline;
    assert_eq!(report.verdict.worst_pair, Some(pair(0, 1)), "{headline}");
    for words in [
        "0->1 ce-push: zeroed in 1 of 1 attempts",
        "56 of 56 pairs",
        "staged copies intact",
        "contradicts the driver's claim that P2P is OK",
    ] {
        assert!(headline.contains(words), "{words:?} not in {headline:?}");
    }
    // The cause, and nothing else that is critical.
    assert_eq!(
        indicted(&report),
        ["iommu-translation"],
        "{}",
        summary(&report)
    );
    let cause = &report.findings[0];
    assert_eq!(
        (cause.severity, cause.confidence, cause.pairs.len()),
        (Severity::Critical, Confidence::Established, 56)
    );
    assert!(report.verdict.cause.contains("iommu-translation"));
    assert!(
        report.verdict.next.contains("iommu=pt"),
        "{}",
        report.verdict.next
    );
    for id in PEER_CONSUMERS {
        assert_eq!(consumer(&report, id), ConsumerState::Vetoed, "{id}");
    }
    assert_eq!(consumer(&report, "host-staged"), ConsumerState::Proven);
    assert!(report.selftest.as_ref().unwrap().passed());

    let shown = text(&report, 100);
    let matrix: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.starts_with("src\\dst"))
        .skip(1)
        .take(8)
        .collect();
    for (row, line) in matrix.iter().enumerate() {
        assert!(line.starts_with(&format!("GPU{row}")), "{shown}");
        assert_eq!(line.matches("zeroed").count(), 7, "{line}");
    }
    assert!(shown.starts_with("SIMULATED"), "{shown}");
    assert!(shown.contains("exit code 2"), "{shown}");
    // Someone who must act sees verdict, cause and next step on one screen.
    let next = shown
        .lines()
        .position(|line| line.starts_with("next"))
        .unwrap();
    assert!(next < 16, "{shown}");

    recommended(&report);
}

/// `recommend --from` the saved report: both switches that keep the engines off the peers, and sizes by arithmetic.
fn recommended(report: &Report) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeroed.json");
    save(report, &path);
    let from = path.to_str().unwrap();
    for engine in ["vllm", "sglang"] {
        let answer = crate::recommend::ask(&[
            "--engine", engine, "--hidden", "6144", "--tp", "8", "--batch", "32", "--from", from,
        ]);
        assert!(
            answer
                .environment
                .iter()
                .any(|s| s.name == "NCCL_P2P_DISABLE" && s.value.as_deref() == Some("1")),
            "{answer:#?}"
        );
        assert!(
            answer
                .flags
                .iter()
                .any(|s| s.name == "--disable-custom-all-reduce"),
            "{answer:#?}"
        );
    }
}

#[test]
fn the_healthy_twin_passes() {
    let report = Host::new("rtxpro6000-x8-root-complex").qualify(&[]);
    assert_eq!(
        report.verdict.grading,
        Grading::Pass,
        "{}",
        summary(&report)
    );
    assert!(failures(&report).is_empty(), "{}", summary(&report));
    assert!(
        report
            .findings
            .iter()
            .all(|f| f.judgement != Judgement::Indicted),
        "{:#?}",
        report.findings
    );
    assert!(report.coverage.not_run.is_empty(), "{:?}", report.coverage);
    assert_eq!(
        pairs_of(&report, Rung::Touched, Outcome::is_intact).len(),
        56
    );
    for id in PEER_CONSUMERS {
        assert_ne!(consumer(&report, id), ConsumerState::Vetoed, "{id}");
    }
    let shown = text(&report, 100);
    assert!(shown.contains("exit code 0"), "{shown}");
}

#[test]
fn a_pair_that_hangs_does_not_keep_the_others_from_being_judged() {
    // The driver's copies suffice to see it; sm-load shows that the pair's other mechanisms are judged as well.
    let report = Host::new("hang-one-pair").qualify(&["--mechanism", "bounce,ce-push,sm-load"]);
    assert_eq!(
        report.verdict.grading,
        Grading::Fail,
        "{}",
        summary(&report)
    );
    crate::host::only(&report, pair(2, 5), "ce-push");
    let hung: Vec<_> = report
        .records
        .iter()
        .filter(|r| matches!(r.outcome, Outcome::TimedOut { .. }))
        .collect();
    assert_eq!(
        hung.len(),
        1,
        "hung once, not tried again: {}",
        summary(&report)
    );
    for other in OrderedPair::all(8).filter(|p| *p != pair(2, 5)) {
        let judged = report
            .records
            .iter()
            .filter(|r| r.case.subject.pair() == Some(other) && r.outcome.is_intact())
            .map(|r| r.case.mechanism.as_str())
            .collect::<BTreeSet<_>>();
        for mechanism in ["bounce", "ce-push", "sm-load"] {
            assert!(judged.contains(mechanism), "{other}: {judged:?}");
        }
    }
    // What is not run is the hung pair's own rest, and says so.
    for record in &report.records {
        if let Outcome::NotRun { reason } = &record.outcome {
            let of = record.case.subject.pair();
            if reason.starts_with("unsafe after rung 2") {
                assert!(
                    [Some(pair(2, 5)), Some(pair(5, 2))].contains(&of),
                    "{reason}"
                );
                assert!(record.case.rung >= Rung::Resident, "{}", line(record));
                continue;
            }
            assert_eq!(of, Some(pair(2, 5)), "{reason}");
            assert!(reason.contains("already hung"), "{reason}");
        }
    }
    assert!(
        report.verdict.headline.starts_with("2->5 ce-push: hang"),
        "{}",
        report.verdict.headline
    );
    // One limit in company, one alone, the looks for a wedged GPU: not one per case (280 of ce-push).
    let peer: f64 = report
        .timings_ms
        .iter()
        .filter(|(phase, _)| phase == "content, peer access")
        .map(|(_, ms)| *ms)
        .sum();
    assert!(peer < 150_000.0, "{:?}", report.timings_ms);
    let shown = text(&report, 100);
    assert!(shown.contains("2->5") && shown.contains("hang"), "{shown}");
}
