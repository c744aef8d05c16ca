//! How fast a saved report is judged again, and how fast the program starts, in processor time of one core: that is nearly
//! the same on a busy machine, where wall time says nothing. A benchmark, not a test; docs/performance.md says what came of it.
//!
//!     cargo build --workspace --release && cargo bench --bench again
//!     cargo build --workspace && cargo bench --profile dev --bench again     # a development build
//!
//! With files (`-- report.json ..`) it takes those instead. Else the reports are those of runs on simulated hosts of eight GPUs; the launcher must lie beside the binary.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use peerproof::{
    diagnose::{self, Evidence},
    model::{pair::GpuIndex, report::Report},
    profile::Profiles,
    render::json,
};
use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// What is asked for (reports a second, seconds, MiB), and of what.
const IN_MEMORY_A_SECOND: f64 = 1000.0;
const FROM_FILE_A_SECOND: f64 = 100.0;
const START_MS: f64 = 20.0;

/// Judges as `peerproof diagnose` does: causes, consumers, coverage, verdict.
fn judge(report: &Report) {
    let group: Vec<GpuIndex> = report.tested_gpus.iter().copied().map(GpuIndex).collect();
    let evidence = Evidence::new(&report.snapshot, &report.records, &report.observations)
        .with_ladder(&report.ladder);
    let coverage = diagnose::coverage(&evidence, &report.coverage.left_out);
    let findings = diagnose::findings(&evidence);
    let consumers = diagnose::consumers(&evidence, &group);
    let verdict = diagnose::verdict(
        &evidence,
        &coverage,
        report.selftest.as_ref(),
        &findings,
        &consumers,
    );
    black_box((coverage, findings, consumers, verdict));
}

/// Processor seconds that `who` has used.
fn used(who: UsageWho) -> f64 {
    let usage = getrusage(who).unwrap();
    (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6
}

/// Processor seconds of one round, over about two seconds of rounds.
fn each(who: UsageWho, mut thing: impl FnMut()) -> f64 {
    thing();
    let (start, before, mut rounds) = (Instant::now(), used(who), 0);
    while start.elapsed() < Duration::from_secs(2) || rounds < 10 {
        thing();
        rounds += 1;
    }
    (used(who) - before) / f64::from(rounds)
}

/// Processor seconds of one round of something small.
fn quick(mut thing: impl FnMut()) -> f64 {
    thing();
    let before = used(UsageWho::RUSAGE_SELF);
    (0..100).for_each(|_| thing());
    (used(UsageWho::RUSAGE_SELF) - before) / 100.0
}

fn own(thing: impl FnMut()) -> f64 {
    each(UsageWho::RUSAGE_SELF, thing)
}

fn line(what: &str, value: f64, unit: &str, target: f64, more_is_better: bool) {
    let good = (value >= target) == more_is_better;
    let mark = if good { "ok" } else { "off target" };
    println!("{what:<52} {value:>9.1} {unit:<10} target {target:>6} {mark}");
}

/// A whole run on a simulated host.
fn simulated(scenario: &str, budget: &[&str], out: &Path) -> Option<Report> {
    let peerproof = Path::new(env!("CARGO_BIN_EXE_peerproof"));
    let launcher = peerproof.with_file_name("simhost");
    Command::new(launcher)
        .args(["run", scenario, "--"])
        .arg(peerproof)
        .args(["qualify", "--out"])
        .arg(out)
        .args(budget)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()?;
    json::read(&fs::read_to_string(out).ok()?).ok()
}

fn main() {
    let files: Vec<PathBuf> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .map(PathBuf::from)
        .collect();
    for path in &files {
        let report = json::read(&fs::read_to_string(path).unwrap()).unwrap();
        again(&path.display().to_string(), path, &report);
    }
    let folder = tempfile::tempdir().unwrap();
    for (scenario, budget) in [
        ("rtxpro6000-x8-root-complex", &["--quick"][..]),
        ("rtxpro6000-x8-root-complex", &[]),
        ("rtxpro6000-x8-zeroed", &[]),
    ] {
        if !files.is_empty() {
            break;
        }
        let path = folder.path().join(format!("{scenario}.json"));
        match simulated(scenario, budget, &path) {
            Some(report) => again(&format!("{scenario} {}", budget.join(" ")), &path, &report),
            None => println!(
                "{scenario}: no simulated host beside the binary (cargo build --workspace)"
            ),
        }
    }
    let start = each(UsageWho::RUSAGE_CHILDREN, || {
        Command::new(env!("CARGO_BIN_EXE_peerproof"))
            .arg("--help")
            .stdout(Stdio::null())
            .status()
            .unwrap();
    });
    line("peerproof --help", start * 1e3, "ms", START_MS, false);
}

/// One report, judged again and again.
fn again(name: &str, path: &Path, report: &Report) {
    let whole = own(|| judge(report));
    let bytes = fs::metadata(path).unwrap().len();
    println!(
        "{name}: {} records, {} KiB",
        report.records.len(),
        bytes >> 10
    );
    line(
        "  judged again in memory",
        1.0 / whole,
        "a second",
        IN_MEMORY_A_SECOND,
        true,
    );
    let read = own(|| {
        let text = fs::read_to_string(path).unwrap();
        judge(&json::read(&text).unwrap());
    });
    println!(
        "  read from its file and judged: {:.1} a second",
        1.0 / read
    );
    line(
        "  the same for each MiB of the file",
        bytes as f64 / f64::from(1 << 20) / read,
        "a second",
        FROM_FILE_A_SECOND,
        true,
    );
    let parts: [(&str, &dyn Fn()); 5] = [
        ("reading the profiles (for launch settings)", &|| {
            black_box(Profiles::embedded().unwrap());
        }),
        ("causes", &|| {
            let evidence = Evidence::new(&report.snapshot, &report.records, &report.observations)
                .with_ladder(&report.ladder);
            black_box(diagnose::findings(&evidence));
        }),
        ("consumers", &|| {
            let group: Vec<GpuIndex> = report.tested_gpus.iter().copied().map(GpuIndex).collect();
            let evidence = Evidence::new(&report.snapshot, &report.records, &report.observations)
                .with_ladder(&report.ladder);
            black_box(diagnose::consumers(&evidence, &group));
        }),
        ("coverage", &|| {
            let evidence = Evidence::new(&report.snapshot, &report.records, &report.observations);
            black_box(diagnose::coverage(&evidence, &report.coverage.left_out));
        }),
        ("reading the JSON", &|| {
            let text = fs::read_to_string(path).unwrap();
            black_box(json::read(&text).unwrap());
        }),
    ];
    for (what, part) in parts {
        println!("    {what}: {:.2} ms", own(part) * 1e3);
    }
    let evidence = Evidence::new(&report.snapshot, &report.records, &report.observations)
        .with_ladder(&report.ladder);
    let verdict = own(|| {
        black_box(diagnose::verdict(
            &evidence,
            &report.coverage,
            report.selftest.as_ref(),
            &report.findings,
            &report.consumers,
        ));
    });
    println!("    verdict: {:.2} ms", verdict * 1e3);
    let mut causes: Vec<(f64, &str)> = diagnose::ROSTER
        .iter()
        .map(|cause| {
            (
                quick(|| drop(black_box((cause.judge)(&evidence)))),
                cause.id,
            )
        })
        .collect();
    causes.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (seconds, id) in causes.iter().take(8) {
        println!("      cause {id}: {:.3} ms", seconds * 1e3);
    }
    println!(
        "    sorting the records: {:.3} ms",
        1e3 * quick(|| {
            black_box(Evidence::new(
                &report.snapshot,
                &report.records,
                &report.observations,
            ));
        })
    );
    let pair = own(|| {
        black_box(peerproof::compare::compare(report, report, ("a", "b")));
    });
    println!("    compared with itself: {:.2} ms", pair * 1e3);
}
