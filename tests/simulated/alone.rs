//! A GPU that is not sound by itself is the finding; its pairs are not blamed.

use crate::host::{Host, failures, indicted, summary};
use peerproof::model::{
    case::{Rung, Subject},
    finding::{Judgement, Severity},
    pair::GpuIndex,
    report::{Grading, Report},
};

/// The GPU is named in headline and finding, no pair is, and the GPU's own tests are what failed first.
#[track_caller]
fn blames(report: &Report, gpu: u32) {
    assert_eq!(report.verdict.grading, Grading::Fail, "{}", summary(report));
    assert_eq!(report.verdict.worst_pair, None, "{}", summary(report));
    assert!(
        report.verdict.headline.starts_with(&format!("GPU{gpu} ")),
        "{}",
        report.verdict.headline
    );
    let own = failures(report)
        .into_iter()
        .filter(|r| r.case.rung == Rung::Alone);
    assert!(own.count() > 0);
    for record in failures(report) {
        match record.case.subject {
            Subject::Gpu(failed) => assert_eq!(failed, GpuIndex(gpu), "{}", summary(report)),
            subject @ (Subject::Pair(_) | Subject::Group(_)) => {
                assert!(subject.touches(GpuIndex(gpu)), "{}", summary(report));
            }
        }
    }
    let held = indicted(report);
    assert!(held.contains(&"gpu-itself"), "{held:?}");
    assert!(
        !held.contains(&"host-staging-broken"),
        "a single GPU's fault is no fault of staging: {held:?}"
    );
    let finding = &report.findings[0];
    assert_eq!(
        (finding.cause.as_str(), finding.gpus.as_slice()),
        ("gpu-itself", [GpuIndex(gpu)].as_slice())
    );
}

#[test]
fn memory_that_lies_is_the_gpus_own() {
    let report = Host::new("opaque-vm")
        .fault("1>1:own=flipped")
        .qualify(&["--mechanism", "memory,bounce,ce-push"]);
    blames(&report, 1);
    // The self-test ran on the other GPU and is sound.
    assert!(report.selftest.unwrap().passed());
}

#[test]
fn a_host_link_that_lies_is_the_gpus_own() {
    for planted in ["1>host:bounce_d2h=flipped", "host>1:bounce_h2d=zeroed"] {
        let report = Host::new("opaque-vm")
            .fault(planted)
            .qualify(&["--mechanism", "host-write,host-read,bounce"]);
        blames(&report, 1);
    }
}

/// All reports of kernels come back over that link, too: the GPU is not taken out of service for what it may not have done.
#[test]
fn one_gpu_behind_a_link_that_flips_bits_is_not_condemned() {
    let report = Host::new("one-gpu")
        .fault("0>host:bounce_d2h=flipped")
        .qualify(&[]);
    let finding = &report.findings[0];
    assert_eq!(
        finding.title,
        "host link or host memory suspected",
        "{}",
        summary(&report)
    );
    assert!(
        report.verdict.cause.contains("probable"),
        "{}",
        report.verdict.cause
    );
    assert!(
        !report.verdict.next.contains("out of service"),
        "{}",
        report.verdict.next
    );
    assert!(
        report.verdict.next.contains("another slot"),
        "{}",
        report.verdict.next
    );
}

/// Without peers no path between GPUs carries bytes, and no cause of one explains copies through the host.
#[test]
fn wrong_copies_through_the_host_accuse_no_path_between_gpus() {
    let report = Host::new("geforce-x2-refused")
        .fault("0>1:staged=zeroed")
        .qualify(&[]);
    assert_eq!(report.verdict.grading, Grading::Fail);
    let critical = report
        .findings
        .iter()
        .filter(|f| f.judgement == Judgement::Indicted && f.severity == Severity::Critical);
    let causes: Vec<&str> = critical.map(|f| f.cause.as_str()).collect();
    assert_eq!(causes, ["host-staging-broken"], "{}", summary(&report));
    assert!(
        report
            .verdict
            .next
            .ends_with("(under another driver branch)"),
        "{}",
        report.verdict.next
    );
}

#[test]
fn errors_that_the_driver_counted_are_findings_of_the_gpu() {
    for (setting, words) in [
        (
            "gpus=[{at='0000:00:06.0'},{at='0000:00:07.0',ecc_uncorrected=3}]",
            "ECC",
        ),
        (
            "gpus=[{at='0000:00:06.0'},{at='0000:00:07.0',remap_failed=true,remapped_rows=2}]",
            "remap",
        ),
        (
            "kernel_log=['NVRM: Xid (PCI:0000:00:07): 79, pid=1234, GPU has fallen off the bus.']",
            "79",
        ),
    ] {
        let report = Host::new("opaque-vm")
            .set(setting)
            .qualify(&["--mechanism", "memory,ce-push"]);
        assert!(failures(&report).is_empty(), "{}", summary(&report));
        assert_ne!(report.verdict.grading, Grading::Pass, "{setting}");
        assert!(
            indicted(&report).contains(&"gpu-itself"),
            "{setting}: {:#?}",
            report.findings
        );
        let finding = report
            .findings
            .iter()
            .find(|f| f.cause == "gpu-itself")
            .unwrap();
        assert_eq!(finding.gpus, [GpuIndex(1)], "{setting}");
        assert!(
            finding.evidence.iter().any(|e| e.contains(words)),
            "{setting}: {:?}",
            finding.evidence
        );
    }
}
