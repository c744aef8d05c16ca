//! What gates get: exit codes by `--exit-on`, the one line of `--prolog`, an end in time, files for other programs.

use crate::host::{Host, Run, peerproof, run};
use peerproof::model::{case::Outcome, report::Grading};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// More than any machine needs: the limit is not what these tests are about.
const LONG: &str = "--within=200s";

fn line(run: &Run) -> &str {
    let line = run.stdout.strip_suffix('\n').unwrap_or_default();
    assert!(!line.contains('\n'), "{}", run.stdout);
    assert!(line.starts_with("peerproof: ") && line.len() < 80, "{line}");
    line
}

#[test]
fn a_prolog_says_one_line_and_0_or_1() {
    let few = ["qualify", "--prolog", LONG, "--mechanism", "bounce,ce-push"];
    let folder = tempfile::tempdir().unwrap();
    let mut healthy = Host::new("geforce-x2-refused").command(&few);
    healthy.current_dir(folder.path());
    let healthy = run(healthy);
    assert_eq!(
        healthy.code,
        Some(0),
        "{}{}",
        healthy.stdout,
        healthy.stderr
    );
    assert!(
        line(&healthy).contains("SIMULATED PASS"),
        "{}",
        healthy.stdout
    );
    assert_eq!(healthy.stderr, "");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "a prolog leaves no report: {left:?}");

    let broken = Host::new("opaque-vm-mirrored").run(&few);
    assert_eq!(broken.code, Some(1));
    let said = line(&broken);
    assert!(
        said.contains("SIMULATED FAIL 0000:00:05.0->0000:00:06.0 ce-push mirrored"),
        "{said}"
    );
}

#[test]
fn a_prolog_answers_in_its_form_whatever_is_wrong() {
    // No GPU here, wrong words, a time that is too short, no place for the verdict.
    for arguments in [
        &["qualify", "--prolog"][..],
        &["qualify", "--prolog", "--no-such-option"],
        &["qualify", "--prolog", "--json"],
        &["--root", "/", "qualify", "--deep=5m", "--prolog"],
        &["qualify", "--prolog", "--within=3s"],
        &[
            "qualify",
            "--prolog",
            "--verdict-file",
            "/no/such/folder/verdict.json",
        ],
    ] {
        let mut command = Command::new(peerproof());
        command.args(arguments);
        let run = run(command);
        assert_eq!(run.code, Some(1), "{arguments:?}");
        assert!(line(&run).contains("INCONCLUSIVE"), "{}", run.stdout);
        assert_ne!(run.stderr, "", "the whole message is on standard error");
    }
}

/// What stands there is somebody's file until it shows that it is a verdict.
#[test]
fn a_file_that_is_no_verdict_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("precious.json");
    std::fs::write(&file, "{\"mine\": true}").unwrap();
    let name = file.display().to_string();
    let host = Host::new("one-gpu");
    let refused = host.run(&["qualify", "--no-file", "--verdict-file", &name]);
    assert_eq!(refused.code, Some(64), "{}", refused.stdout);
    assert!(
        refused.stderr.contains("no verdict file of peerproof"),
        "{}",
        refused.stderr
    );
    let prolog = host.run(&["qualify", "--prolog", LONG, "--verdict-file", &name]);
    assert_eq!(prolog.code, Some(1));
    assert!(
        line(&prolog).contains("INCONCLUSIVE --verdict-file: "),
        "{}",
        prolog.stdout
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"mine\": true}");
}

/// `--out` beside `--prolog` keeps the report for a job's log.
#[test]
fn a_prolog_leaves_the_report_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report.json");
    let name = out.display().to_string();
    let run = Host::new("one-gpu").run(&["qualify", "--prolog", LONG, "--out", &name]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    line(&run);
    let text = std::fs::read_to_string(&out).unwrap();
    peerproof::render::json::read(&text).unwrap();
}

/// A GPU that was chosen and is in use closes the gate although all that was tested is right.
#[test]
fn a_gpu_in_use_is_not_fit_for_a_job() {
    let host = Host::new("opaque-vm").set("gpus.1.foreign_processes=[4194000]");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("verdict.json").display().to_string();
    let prolog = ["qualify", "--prolog", LONG, "--verdict-file", &file];
    let run = host.run(&prolog);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert!(
        line(&run).contains("INCONCLUSIVE 1 of 2 GPUs not tested: GPU1"),
        "{}",
        run.stdout
    );
    // The verdict on the other GPU holds, and is not taken for one on all.
    let holds = host.run(&["verdict", &file, "--check"]);
    assert_eq!(holds.code, Some(0), "{}", holds.stdout);
    let of_all = host.run(&["verdict", &file, "--check", "--all-gpus"]);
    assert_eq!(of_all.code, Some(3));
    assert!(
        of_all.stdout.contains("GPUs 1: were not tested"),
        "{}",
        of_all.stdout
    );
}

/// A verdict on some pairs is none on all of them.
#[test]
fn pairs_that_were_left_out_close_the_gate() {
    let host = Host::new("opaque-vm");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("verdict.json").display().to_string();
    let few = [
        "qualify",
        "--quick",
        "--no-file",
        "--pairs",
        "0->1",
        "--verdict-file",
        &file,
    ];
    let run = host.run(&few);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let told = host.run(&["verdict", &file]);
    let words = "left out: 1 of 2 ordered pairs by --pairs";
    assert!(told.stdout.contains(words), "{}", told.stdout);
    let of_all = host.run(&["verdict", &file, "--check", "--all-gpus"]);
    assert_eq!(of_all.code, Some(3), "{}", of_all.stdout);
    assert!(
        of_all.stdout.contains("1 of 2 ordered pairs"),
        "{}",
        of_all.stdout
    );
}

#[test]
fn levels_let_warnings_pass_and_nothing_else() {
    let warned = Host::new("downtrained-link");
    let few = ["--gpus", "2,3", "--mechanism", "bounce,ce-push"];
    let mut all = vec!["qualify", "--no-file", "--json"];
    all.extend(few);
    let run = warned.run(&all);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let report = peerproof::render::json::read(&run.stdout).unwrap();
    assert_eq!(report.verdict.grading, Grading::Warn);
    all.push("--exit-on=fail");
    let run = warned.run(&all);
    assert_eq!(run.code, Some(0));
    assert!(run.stderr.contains("the verdict is WARN"), "{}", run.stderr);

    let hidden = Host::new("opaque-vm-mirrored").run(&[
        "qualify",
        "--no-file",
        "--quick",
        "--mechanism",
        "ce-push",
        "--exit-on=fail",
    ]);
    assert_eq!(hidden.code, Some(2), "FAIL is FAIL at every level");
}

/// Sixteen GPUs, which take far longer than they are given here.
#[test]
fn the_time_given_is_the_time_taken() {
    let started = Instant::now();
    let run = Host::new("sixteen-gpus").run(&["qualify", "--prolog", "--within=15s"]);
    let took = started.elapsed();
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert!(line(&run).contains("INCONCLUSIVE"), "{}", run.stdout);
    // The launcher builds the host before and removes it after.
    assert!(took < Duration::from_secs(45), "{} s", took.as_secs());
}

#[test]
fn what_was_under_way_when_the_time_was_up_is_named() {
    // A deadline longer than the time given: the hang is not judged, and is not to be lost either.
    let report = Host::new("opaque-vm")
        .set("deadline_factor=30")
        .fault("0>1:ce_push=hang")
        .qualify_noisily(&["--quick", "--within=22s"]);
    assert!(report.interrupted);
    let reasons: Vec<(String, String)> = report
        .records
        .iter()
        .filter_map(|record| match &record.outcome {
            Outcome::NotRun { reason } => Some((record.case.mechanism.clone(), reason.clone())),
            _ => None,
        })
        .collect();
    let under_way: Vec<&(String, String)> = reasons
        .iter()
        .filter(|(_, reason)| reason.contains("no answer had come in"))
        .collect();
    assert!(!under_way.is_empty(), "{reasons:?}");
    for (mechanism, reason) in under_way {
        assert!(mechanism.ends_with("ce-push"), "{mechanism}: {reason}");
        assert!(reason.starts_with("the time given was up"), "{reason}");
    }
    assert!(report.verdict.cause.contains("no answer had come in"));
}

#[test]
fn files_for_machines_are_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (junit, metrics) = (path("junit.xml"), path("peerproof.prom"));
    let run = Host::new("opaque-vm-mirrored").run(&[
        "qualify",
        "--no-file",
        "--quick",
        "--mechanism",
        "bounce,ce-push",
        "--junit",
        &junit,
        "--prometheus",
        &metrics,
    ]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    let junit = std::fs::read_to_string(junit).unwrap();
    assert!(junit.contains("<failure message=\"mirrored"), "{junit}");
    let metrics = std::fs::read_to_string(metrics).unwrap();
    assert!(
        metrics.contains("peerproof_verdict{verdict=\"FAIL\",authenticity=\"SIMULATED\"} 1\n"),
        "{metrics}"
    );
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 2, "drafts are renamed");
}
