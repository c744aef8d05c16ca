//! What a run leaves when it is torn: killed workers, a killed parent, an interrupt, each in each phase; GPUs that stay busy
//! after a hang; GPUs that others use. Never a wrong verdict, and nothing left behind.

use crate::host::{Host, eventually, failures, finish, peerproof, processes_with, summary};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use peerproof::{
    model::{
        case::Outcome,
        report::{Grading, Report},
    },
    render::json,
};
use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

/// One mechanism of each phase, in order: GPUs alone, staged, granted pools, peer access, kernels that wait, all-reduces; then across
/// processes, with descriptors under way, and again kernels that wait.
const PHASES: [&str; 9] = [
    "memory",
    "bounce",
    "pool-ce-push",
    "ce-push",
    "resident",
    "one-shot-pull",
    "ipc-sm-store",
    "vmm-sm-store",
    "ipc-resident",
];

/// A run in a temporary folder of its own, so that everything it leaves there is seen.
struct Torn {
    folder: tempfile::TempDir,
    mark: String,
    child: Child,
}

impl Torn {
    /// Starts a run and waits until its journal holds a row of `mechanism`.
    fn at(mechanism: &str) -> Torn {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("tmp")).unwrap();
        let mark = format!(
            "peerproof-torn-{}-{:?}-{mechanism}",
            std::process::id(),
            std::thread::current().id()
        );
        let out = folder.path().join("report.json");
        let child = host(&folder.path().join("tmp"), &mark)
            .command(&[
                "qualify",
                "--out",
                out.to_str().unwrap(),
                "--mechanism",
                &PHASES.join(","),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let torn = Torn {
            folder,
            mark,
            child,
        };
        let row = format!("\"{mechanism}\"");
        eventually("a row of the phase", || {
            std::fs::read_to_string(torn.journal()).is_ok_and(|text| text.contains(&row))
                || torn.report().is_file()
        });
        torn
    }

    fn report(&self) -> PathBuf {
        self.folder.path().join("report.json")
    }

    fn journal(&self) -> PathBuf {
        self.folder.path().join("report.journal")
    }

    /// Processes of the run: the parent, and the others by the word that names them.
    fn pids(&self, wanted: impl Fn(&str) -> bool) -> Vec<Pid> {
        let binary = peerproof();
        let binary = binary.to_str().unwrap();
        processes_with(&self.mark)
            .into_iter()
            .filter(|(_, line)| line.starts_with(binary) && wanted(line))
            .map(|(pid, _)| Pid::from_raw(pid))
            .collect()
    }

    fn workers(&self) -> Vec<Pid> {
        self.pids(|line| line.contains(" worker") || line.contains(" rank "))
    }

    fn parent(&self) -> Pid {
        let found = self.pids(|line| line.contains("--out"));
        assert_eq!(found.len(), 1, "{:?}", processes_with(&self.mark));
        found[0]
    }

    /// What lies in its temporary folder.
    fn temporary(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path().join("tmp")).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// No process of it is left, and no memory of the look-alike's GPUs: that hangs on processes alone.
    fn gone(&self) {
        eventually("all processes of the run end", || {
            processes_with(&self.mark).is_empty()
        });
    }
}

fn host(temporary: &Path, mark: &str) -> Host {
    Host::new("opaque-vm")
        .variable("PEERPROOF_TEST_MARK", mark)
        .variable("TMPDIR", temporary.to_str().unwrap())
}

fn read(path: &Path) -> Report {
    json::read(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Nothing counts against this healthy host.
fn unblamed(report: &Report) {
    assert!(failures(report).is_empty(), "{}", summary(report));
    assert_ne!(report.verdict.grading, Grading::Fail, "{}", summary(report));
}

#[test]
fn a_worker_that_is_killed_from_outside_blames_nobody() {
    for phase in PHASES {
        let mut torn = Torn::at(phase);
        let workers = torn.workers();
        for worker in &workers {
            // It may have ended by itself meanwhile.
            let _ = kill(*worker, Signal::SIGKILL);
        }
        let run = finish(&mut torn.child);
        let report = read(&torn.report());
        assert_eq!(
            run.code,
            Some(i32::from(report.verdict.grading.exit_code())),
            "{phase}: {}",
            run.stderr
        );
        unblamed(&report);
        torn.gone();
        assert_eq!(torn.temporary(), [""; 0], "{phase}");
    }
}

#[test]
fn a_killed_parent_leaves_a_journal_and_the_next_run_sweeps_the_rest() {
    for phase in PHASES {
        let mut torn = Torn::at(phase);
        if torn.report().is_file() {
            continue;
        }
        kill(torn.parent(), Signal::SIGKILL).unwrap();
        finish(&mut torn.child);
        torn.gone();
        assert!(!torn.report().exists(), "{phase}");
        let text = std::fs::read_to_string(torn.journal()).unwrap();
        let journal = json::read_journal(&text).unwrap();
        assert!(
            journal.records.iter().all(|r| !r.outcome.is_failure()),
            "{phase}"
        );
        let left = torn.temporary();
        assert!(
            left.iter().any(|name| name.starts_with("peerproof-")),
            "{phase}: killed, so its folder is still there: {left:?}"
        );
        // A second run on the same host starts clean and takes the dead one's folder with it.
        let next = host(&torn.folder.path().join("tmp"), &torn.mark);
        let report = next.qualify(&["--quick", "--mechanism", "ce-push,ipc-sm-store"]);
        unblamed(&report);
        assert!(report.coverage.not_run.is_empty(), "{}", summary(&report));
        let left = torn.temporary();
        assert!(
            !left.iter().any(|name| name.contains("peerproof-")),
            "{phase}: {left:?}"
        );
    }
}

#[test]
fn an_interrupt_in_any_phase_ends_in_a_report_of_what_was_done() {
    for phase in PHASES {
        let mut torn = Torn::at(phase);
        if torn.report().is_file() {
            continue;
        }
        // A late one finds the run at its end.
        let _ = kill(torn.parent(), Signal::SIGINT);
        let run = finish(&mut torn.child);
        let report = read(&torn.report());
        assert_eq!(
            run.code,
            Some(i32::from(report.verdict.grading.exit_code())),
            "{phase}: {}",
            run.stderr
        );
        unblamed(&report);
        assert_eq!(
            report.interrupted,
            report.records.iter().any(
                |r| matches!(&r.outcome, Outcome::NotRun { reason } if reason == "interrupted")
            ) || report.interrupted
        );
        assert!(!torn.journal().exists(), "{phase}: the report replaces it");
        torn.gone();
        assert_eq!(torn.temporary(), [""; 0], "{phase}");
    }
}

#[test]
fn a_gpu_that_stays_busy_after_a_hang_is_left_alone() {
    let arguments = [
        "--quick",
        "--gpus",
        "0,1,2",
        "--mechanism",
        "ce-push,sm-load",
    ];
    let hang = Host::new("rtxpro6000-x8-root-complex").fault("0>1:ce_push=hang");
    let report = hang.qualify(&arguments);
    let quarantined = |report: &Report| {
        report.records.iter().any(
            |r| matches!(&r.outcome, Outcome::NotRun { reason } if reason.contains("GPU1 is quarantined")),
        )
    };
    assert!(!quarantined(&report), "{}", summary(&report));
    let report = hang.set("gpus.1.busy=true").qualify(&arguments);
    assert!(quarantined(&report), "{}", summary(&report));
    for record in &report.records {
        if let Outcome::NotRun { reason } = &record.outcome
            && reason.contains("quarantined")
        {
            assert!(reason.contains("GPU1"), "{reason}");
            assert!(
                record
                    .case
                    .subject
                    .touches(peerproof::model::pair::GpuIndex(1))
            );
        }
    }
}

#[test]
fn gpus_in_use_are_left_alone_unless_told_and_then_the_report_says_who_was_there() {
    let host = Host::new("opaque-vm").set("gpus.1.foreign_processes=[4194000,4194001]");
    let arguments = ["--quick", "--mechanism", "ce-push"];
    let report = host.qualify(&["--quick"]);
    assert_eq!(report.tested_gpus, [0]);
    // A mechanism of pairs alone cannot be tried then, and that is no pass.
    let run = host.run(&["qualify", "--no-file", "--quick", "--mechanism", "ce-push"]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(
        run.stderr.contains("only GPU0 is there and free") && run.stderr.contains("--shared"),
        "{}",
        run.stderr
    );
    let mut shared = arguments.to_vec();
    shared.push("--shared");
    let report = host.qualify(&shared);
    assert_eq!(report.tested_gpus, [0, 1]);
    unblamed(&report);
    let said = &report.coverage.left_out;
    assert!(
        said.iter().any(|words| words.contains("GPU1")
            && words.contains("4194000")
            && words.contains("and 1 more")),
        "{said:?}"
    );
    assert!(
        !said.iter().any(|words| words.contains("a quiet GPU0")),
        "{said:?}"
    );
    // A quarter of the memory: smaller transfers than with the GPUs to itself.
    let alone = Host::new("opaque-vm").qualify(&arguments);
    let largest = |report: &Report| report.records.iter().map(|r| r.case.bytes).max();
    assert!(largest(&report) < largest(&alone));
}
