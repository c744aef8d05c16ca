//! How fast a saved report is judged again, how fast the program starts, and how much memory a report of sixteen GPUs costs
//! the parent. Wall time on whatever runs it: a benchmark, not a test; docs/performance.md says what came of it.
//!
//!     cargo bench --bench again
//!
//! The report is that of a run on the simulated host where the launcher lies beside the binary, else one that is made up.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use peerproof::{
    diagnose::{self, Evidence},
    model::{pair::GpuIndex, report::Report},
    render::json,
};
use std::{
    fs,
    hint::black_box,
    path::Path,
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
    let coverage = diagnose::coverage(&report.records, &report.coverage.left_out);
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

/// Times a thing for about two seconds: the median of rounds, in seconds.
fn median(mut thing: impl FnMut()) -> f64 {
    let (start, mut rounds) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(2) || rounds.len() < 5 {
        let round = Instant::now();
        thing();
        rounds.push(round.elapsed().as_secs_f64());
    }
    peerproof::stats::median(&rounds).unwrap()
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
    let folder = tempfile::tempdir().unwrap();
    for scenario in ["rtxpro6000-x8-root-complex", "rtxpro6000-x8-zeroed"] {
        let path = folder.path().join(format!("{scenario}.json"));
        let Some(report) = simulated(scenario, &[], &path) else {
            println!("{scenario}: no simulated host beside the binary (cargo build --workspace)");
            continue;
        };
        let whole = median(|| judge(&report));
        println!(
            "{scenario}: {} records, {} KiB",
            report.records.len(),
            fs::metadata(&path).unwrap().len() >> 10
        );
        line(
            "  judged again in memory",
            1.0 / whole,
            "a second",
            IN_MEMORY_A_SECOND,
            true,
        );
        let read = median(|| {
            let text = fs::read_to_string(&path).unwrap();
            judge(&json::read(&text).unwrap());
        });
        line(
            "  read from its file and judged",
            1.0 / read,
            "a second",
            FROM_FILE_A_SECOND,
            true,
        );
        let parts: [(&str, &dyn Fn()); 4] = [
            ("causes", &|| {
                let evidence =
                    Evidence::new(&report.snapshot, &report.records, &report.observations)
                        .with_ladder(&report.ladder);
                black_box(diagnose::findings(&evidence));
            }),
            ("consumers", &|| {
                let group: Vec<GpuIndex> =
                    report.tested_gpus.iter().copied().map(GpuIndex).collect();
                let evidence =
                    Evidence::new(&report.snapshot, &report.records, &report.observations)
                        .with_ladder(&report.ladder);
                black_box(diagnose::consumers(&evidence, &group));
            }),
            ("coverage", &|| {
                black_box(diagnose::coverage(
                    &report.records,
                    &report.coverage.left_out,
                ));
            }),
            ("reading the JSON", &|| {
                let text = fs::read_to_string(&path).unwrap();
                black_box(json::read(&text).unwrap());
            }),
        ];
        for (what, part) in parts {
            println!("    {what}: {:.2} ms", median(part) * 1e3);
        }
        let pair = median(|| {
            black_box(peerproof::compare::compare(&report, &report, ("a", "b")));
        });
        println!("    compared with itself: {:.2} ms", pair * 1e3);
    }
    let start = median(|| {
        Command::new(env!("CARGO_BIN_EXE_peerproof"))
            .arg("--help")
            .stdout(Stdio::null())
            .status()
            .unwrap();
    });
    line("peerproof --help", start * 1e3, "ms", START_MS, false);
}
