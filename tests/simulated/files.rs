//! The mark, the report file, the journal, and what is left when a run is cut short.

use crate::host::{Host, eventually, finish, launcher, line, peerproof, processes_with, summary};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use peerproof::{
    model::{
        case::Outcome,
        report::{Grading, Report},
        snapshot::{Authenticity, Observation},
    },
    render::json::{self, Beside},
};
use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

const SHORT: &[&str] = &["--mechanism", "bounce,ce-push"];

fn qualify(host: &Host, out: &Path, more: &[&str]) -> Command {
    let out = out.to_str().unwrap();
    let mut arguments = vec!["qualify", "--out", out];
    arguments.extend(more);
    host.command(&arguments)
}

fn read(path: &Path) -> Report {
    json::read(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn simulated_is_said_everywhere_and_nothing_clears_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    // Whatever an operator might try: variables of any name, colour, width.
    let host = Host::new("opaque-vm")
        .variable("PEERPROOF_SIMULATED", "0")
        .variable("SIMULATED", "0")
        .variable("PEERPROOF_AUTHENTICITY", "hardware")
        .variable("SIMHOST_MARKER", "0")
        .variable("NO_COLOR", "1")
        .variable("COLUMNS", "60");
    let run = crate::host::run(qualify(&host, &path, SHORT));
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.starts_with("SIMULATED"), "{}", run.stdout);
    let report = read(&path);
    assert_eq!(report.authenticity, Authenticity::Simulated);
    assert_eq!(report.snapshot.authenticity, Authenticity::Simulated);
    assert_eq!(names(folder.path()), ["report.json"]);
    let saved = std::fs::read_to_string(&path).unwrap();
    assert!(saved.contains("\"authenticity\": \"SIMULATED\""));

    // Other commands on the host, and commands on the file.
    for arguments in [&["map"][..], &["selftest"], &["bench", "--samples", "1"]] {
        let run = host.run(arguments);
        assert_eq!(
            run.code,
            Some(0),
            "{arguments:?}\n{}\n{}",
            run.stdout,
            run.stderr
        );
        assert!(
            run.stdout.contains("SIMULATED"),
            "{arguments:?}\n{}",
            run.stdout
        );
    }
    let from = path.to_str().unwrap();
    for arguments in [
        &["map", "--from", from][..],
        &[
            "recommend",
            "--engine",
            "vllm",
            "--hidden",
            "4096",
            "--tp",
            "2",
            "--batch",
            "8",
            "--from",
            from,
        ],
    ] {
        let mut command = Command::new(peerproof());
        command.args(arguments);
        let run = crate::host::run(command);
        assert_eq!(run.code, Some(0), "{arguments:?}\n{}", run.stderr);
        assert!(
            run.stdout.contains("SIMULATED"),
            "{arguments:?}\n{}",
            run.stdout
        );
    }
}

#[test]
fn a_file_that_was_named_and_cannot_be_written_is_refused_before_the_run() {
    // A folder in which not even root can make a file.
    let file = Path::new("/proc/report.json");
    let host = Host::new("opaque-vm");
    let run = crate::host::run(qualify(&host, file, SHORT));
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (Some(64), ""),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr.contains("/proc/report.json cannot be written")
            && run.stderr.contains("nothing was done"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

#[test]
fn a_folder_that_takes_no_report_changes_neither_verdict_nor_exit_code() {
    for (host, code) in [
        (Host::new("opaque-vm"), 0),
        (Host::new("opaque-vm").fault("0>1:ce_push=zeroed"), 2),
    ] {
        let mut command = host.command(&[&["qualify"], SHORT].concat());
        command.current_dir("/proc");
        let run = crate::host::run(command);
        assert_eq!(run.code, Some(code), "{}\n{}", run.stdout, run.stderr);
        assert!(run.stderr.contains("no report file"), "{}", run.stderr);
    }
}

/// What can be seen before the run is refused before the run.
#[test]
fn an_out_that_can_be_no_file_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new("opaque-vm");
    for out in [
        folder.path().join("missing/report.json"),
        folder.path().to_path_buf(),
    ] {
        let run = crate::host::run(qualify(&host, &out, SHORT));
        assert_eq!(run.code, Some(64), "{}", run.stderr);
        assert!(run.stderr.contains("--out"), "{}", run.stderr);
        assert_eq!(run.stdout, "");
    }
}

/// A host whose runs can be told from those of other tests by a word in the environment of their processes.
fn marked(host: Host) -> (Host, String) {
    let mark = format!(
        "peerproof-test-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    (host.variable("PEERPROOF_TEST_MARK", &mark), mark)
}

/// Starts a run and waits until its journal has `lines` lines.
fn start(host: &Host, out: &Path, more: &[&str], lines: usize) -> Child {
    let child = qualify(host, out, more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let journal = out.with_extension("journal");
    eventually("a journal with records", || {
        std::fs::read_to_string(&journal).is_ok_and(|text| text.lines().count() > lines)
    });
    child
}

/// The peerproof process of a run: neither launcher nor worker.
fn main_process(mark: &str) -> Pid {
    let found: Vec<i32> = processes_with(mark)
        .into_iter()
        .filter(|(_, line)| {
            line.starts_with(peerproof().to_str().unwrap()) && line.contains("--out")
        })
        .map(|(pid, _)| pid)
        .collect();
    assert_eq!(found.len(), 1, "{:?}", processes_with(mark));
    Pid::from_raw(found[0])
}

#[test]
fn ctrl_c_ends_in_a_report_of_what_was_done_and_leaves_nothing_behind() {
    launcher();
    for (fault, code, grading) in [
        (None, 3, Grading::Inconclusive),
        (Some("*>*:ce_push=zeroed"), 2, Grading::Fail),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let (mut host, mark) = marked(Host::new("hgx-h200-x8"));
        if let Some(fault) = fault {
            host = host.fault(fault);
        }
        // 32 cases of GPUs alone, 56 claims, then some cases of ce-push.
        let mut child = start(&host, &path, &["--mechanism", "ce-push,ce-pull"], 120);
        assert_eq!(
            names(folder.path()),
            ["report.journal"],
            "the report appears only when it is whole"
        );
        kill(main_process(&mark), Signal::SIGINT).unwrap();
        let run = finish(&mut child);
        assert_eq!(run.code, Some(code), "{}\n{}", run.stdout, run.stderr);
        let report = read(&path);
        assert!(report.interrupted);
        assert_eq!(report.verdict.grading, grading, "{}", summary(&report));
        assert!(
            report.records.iter().any(
                |r| matches!(&r.outcome, Outcome::NotRun { reason } if reason == "interrupted")
            )
        );
        // An interrupt is no evidence against the host.
        for record in &report.records {
            assert!(
                !matches!(
                    record.outcome,
                    Outcome::Died { .. } | Outcome::TimedOut { .. } | Outcome::Faulted { .. }
                ),
                "{}",
                line(record)
            );
            assert!(fault.is_some() || record.outcome.corruption().is_none());
        }
        assert!(run.stdout.contains("interrupted"), "{}", run.stdout);
        assert_eq!(names(folder.path()), ["report.json"]);
        assert_eq!(processes_with(&mark), [], "left behind");
    }
}

#[test]
fn a_killed_run_leaves_a_readable_journal_and_no_worker() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let (host, mark) = marked(Host::new("hgx-h200-x8"));
    let mut child = start(&host, &path, &["--mechanism", "ce-push,ce-pull"], 70);
    assert!(
        processes_with(&mark)
            .iter()
            .any(|(_, line)| line.contains("worker")),
        "{:?}",
        processes_with(&mark)
    );
    kill(main_process(&mark), Signal::SIGKILL).unwrap();
    let run = finish(&mut child);
    assert_eq!(run.code, Some(128 + 9), "as a shell shows it");
    eventually("workers die with their parent", || {
        processes_with(&mark).is_empty()
    });
    assert_eq!(names(folder.path()), ["report.journal"]);
    let text = std::fs::read_to_string(folder.path().join("report.journal")).unwrap();
    let journal = json::read_journal(&text).unwrap();
    assert_eq!(journal.head.authenticity, Authenticity::Simulated);
    assert_eq!(journal.head.tested_gpus, (0..8).collect::<Vec<_>>());
    assert!(journal.records.len() >= 60, "{}", journal.records.len());
    assert!(journal.records.iter().all(|r| r.outcome.is_intact()));
    // All that was tried is right, and that proves nothing of what was not.
    let journal = folder.path().join("report.journal");
    let page = Host::new("hgx-h200-x8").run(&["render", journal.to_str().unwrap()]);
    assert!(
        page.stdout.contains("INCONCLUSIVE  the run did not end"),
        "{}",
        page.stdout
    );
}

/// What causes ask in a second run, and all that the observer saw, is in the journal as it comes: where the report cannot be written,
/// the journal tells the same.
#[test]
fn a_journal_holds_further_questions_and_what_was_observed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    // A folder of that name keeps the draft of the report from being written; before the run it would be refused.
    let (begun, draft) = (
        path.with_extension("journal"),
        path.with_extension("json.part"),
    );
    std::thread::spawn(move || {
        crate::host::eventually("the run begins", || begun.exists());
        std::fs::create_dir(draft).unwrap();
    });
    let run = Host::new("opaque-vm").fault("0>1:ce_push=zeroed").run(&[
        "qualify",
        "--json",
        "--quick",
        "--mechanism",
        "ce-push",
        "--out",
        path.to_str().unwrap(),
    ]);
    assert!(run.stderr.contains("no report file"), "{}", run.stderr);
    let report = json::read(&run.stdout).unwrap();
    let text = std::fs::read_to_string(path.with_extension("journal")).unwrap();
    let journal = json::read_journal(&text).unwrap();
    assert_eq!(journal.records, report.records);
    assert!(
        journal.records.iter().any(|r| r.case.mechanism == "bounce"
            && r.notes.iter().any(|n| n.starts_with("asked by the cause "))),
        "{}",
        summary(&report)
    );
    let seen: Vec<&Observation> = journal
        .beside
        .iter()
        .filter_map(|beside| match beside {
            Beside::Observation(seen) => Some(seen),
            _ => None,
        })
        .collect();
    assert_eq!(seen, report.observations.iter().collect::<Vec<_>>());
    let moments: Vec<&str> = seen.iter().map(|seen| seen.moment.as_str()).collect();
    assert!(
        moments.contains(&"after") && moments.contains(&"further questions: after"),
        "{moments:?}"
    );
    let tests = journal.beside.iter();
    let mut tests = tests.filter(|beside| matches!(beside, Beside::Selftest(_)));
    assert!(tests.next().is_some(), "the self-test of the first run");
}
