//! `peerproof measure`: rates and latencies alone. Collect, measure, derive, render. It tests no content beyond a look at the
//! last copy of each case; that is what `qualify` is for.

use super::{Surroundings, console, exit::Stop, file, host, qualify};
use crate::{
    collect::{import, live::Depth, session::Session},
    diagnose,
    ffi::process,
    gpu::kernels,
    model::{
        case::Outcome,
        report::{Coverage, Gap, Report, SCHEMA_VERSION},
        snapshot::Snapshot,
        traffic::{OtherTool, Traffic},
    },
    probe::traffic::{self, plan::Part},
    profile::Profiles,
    render::{self, json},
};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// A file of another tool that is longer than this is none.
const MOST_OTHER_BYTES: u64 = 16 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                  peerproof measure                            all copies of all free GPUs\n  \
                  peerproof measure --gpus 0,1 --only latency  one part on one pair\n  \
                  nvbandwidth -j > nb.json; peerproof measure --compare nb.json")]
pub(super) struct Options {
    /// GPUs to measure: indices, UUIDs or PCI addresses, separated by commas; all free ones when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Option<Vec<String>>,
    /// Parts to measure, separated by commas: copies (single flows, both directions), curve (by size), latency, streams (all
    /// that runs at once on three kinds of streams), shapes (many flows at once); all when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Option<Vec<String>>,
    /// A curve up to 1 GiB, shapes and both directions by multiprocessors and as pulls, too, and more samples.
    #[arg(long)]
    full: bool,
    /// Size of the copies whose rates are taken ('64MiB', '1GiB', or bytes); 64 MiB when not given, less on small GPUs.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    size: Option<u64>,
    /// Measure GPUs that other processes use, too, with a quarter of the memory that is free; their work and our rates suffer.
    #[arg(long)]
    shared: bool,
    /// Set the numbers beside those of nvbandwidth: the output of 'nvbandwidth -j'.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Folder with profiles of your own (hosts/*.toml, links.toml), beside the built-in ones.
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
    /// Write the report, all samples in it, as JSON there.
    #[arg(long, visible_alias = "out", value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the report as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let started = Instant::now();
    let started_at = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    // Bad input is told before anything is measured.
    let parts = parts(options)?;
    let other = options.compare.as_deref().map(other).transpose()?;
    let profiles = match &options.profiles {
        Some(folder) => Profiles::with_folder(folder).map_err(|e| Stop::usage(e.to_string()))?,
        None => Profiles::embedded().map_err(|e| Stop::failed(&e.to_string()))?,
    };
    if let Some(report) = &options.report {
        qualify::check_report_file("--report", report)?;
    }
    let (mut session, snapshot) = host::read(surroundings, Depth::Full)?;
    host::require_gpu(&snapshot)?;
    let chosen = host::choose_gpus(&snapshot, options.gpus.as_deref())?;
    let (gpus, mut left_out) = host::leave_out_busy(&snapshot, chosen, options.shared);
    if gpus.is_empty() {
        return Err(Stop::inconclusive(format!(
            "no GPU is free: {}",
            left_out.join("; ")
        )));
    }
    process::catch_interrupts();
    let wish = traffic::plan::Wish {
        gpus: gpus.clone(),
        parts,
        full: options.full,
        shared: options.shared,
        bytes: options.size,
    };
    let results = probe(surroundings, &mut session, &snapshot, &wish)?;
    left_out.extend(results.left_out);
    let mut report = Report {
        schema_version: SCHEMA_VERSION,
        tool_version: env!("CARGO_PKG_VERSION").to_string(),
        kernels_sha256: kernels::sha256(),
        authenticity: qualify::mark(snapshot.authenticity, results.authenticity),
        started_at,
        took_ms: 0.0,
        arguments: std::env::args().skip(1).collect(),
        tested_gpus: gpus,
        ladder: Vec::new(),
        records: Vec::new(),
        observations: results.observations,
        reductions: Vec::new(),
        traffic: results.traffic,
        crossovers: Vec::new(),
        notes: Vec::new(),
        comparison: None,
        selftest: None,
        coverage: Coverage::default(),
        findings: Vec::new(),
        consumers: Vec::new(),
        recommendations: Vec::new(),
        verdict: qualify::nothing_yet(),
        timings_ms: results.timings_ms,
        worker_environment: results.worker_environment,
        interrupted: results.interrupted,
        snapshot,
    };
    report.snapshot.authenticity = report.authenticity;
    report
        .snapshot
        .keep_cuda_claims(&results.cuda_claims, "these GPUs were not chosen");
    derive(&mut report, &profiles, other.as_ref(), left_out);
    report.took_ms = started.elapsed().as_secs_f64() * 1e3;
    session.leave();
    if let Some(path) = &options.report {
        file::tell_replaced(path);
        if let Err(error) = file::replace(path, |out| json::write(&report, out)) {
            console::complain(&format!("no report file: {}: {error}", path.display()));
        }
    }
    let options_of_page = &surroundings.console.options;
    match options.json {
        true => console::print(|out| json::write(&report, out))?,
        false => console::print(|out| render::traffic::write(&report, options_of_page, out))?,
    };
    Ok(report.verdict.grading.exit_code())
}

fn probe(
    surroundings: &Surroundings,
    session: &mut Session,
    snapshot: &Snapshot,
    wish: &traffic::plan::Wish,
) -> Result<traffic::Results, Stop> {
    let console = &surroundings.console;
    let results = traffic::run(
        snapshot,
        wish,
        traffic::Hooks {
            progress: &mut |at, total, case| {
                console.progress(&format!(
                    "{at} of {total}: {} {}, {}",
                    case.shape.words(),
                    case.subject(),
                    case.streams.words()
                ));
            },
            observe: &mut |moment, ours| session.observe(moment, ours),
        },
    );
    console.quiet();
    results.map_err(Stop::inconclusive)
}

/// All that follows from the numbers.
fn derive(
    report: &mut Report,
    profiles: &Profiles,
    other: Option<&OtherTool>,
    left_out: Vec<String>,
) {
    diagnose::traffic::derive(
        &report.snapshot,
        &report.observations,
        &mut report.traffic,
        &profiles.hosts,
        &profiles.nvlinks,
    );
    report.verdict = diagnose::traffic::verdict(&report.traffic, report.interrupted);
    report.comparison =
        other.map(|other| diagnose::compare(&report.snapshot, &report.traffic, other));
    report.coverage = coverage(&report.traffic, left_out);
}

/// All that follows from the numbers of a saved report; what another tool's file said beside it stays as it was.
pub(super) fn judge(report: &mut Report) {
    // The embedded profiles are tested to parse; without them nothing is expected of the links.
    let Ok(profiles) = Profiles::embedded() else {
        return;
    };
    let comparison = report.comparison.take();
    let left_out = std::mem::take(&mut report.coverage.left_out);
    derive(report, &profiles, None, left_out);
    report.comparison = comparison;
}

/// What was planned, ran and did not.
fn coverage(traffic: &[Traffic], left_out: Vec<String>) -> Coverage {
    let gaps = |of: &dyn Fn(&Outcome) -> Option<String>| {
        let mut gaps: Vec<Gap> = Vec::new();
        for reason in traffic.iter().filter_map(|case| of(&case.outcome)) {
            match gaps.iter_mut().find(|gap| gap.reason == reason) {
                Some(gap) => gap.cases += 1,
                None => gaps.push(Gap { reason, cases: 1 }),
            }
        }
        gaps
    };
    Coverage {
        planned: traffic.len() as u32,
        ran: traffic.iter().filter(|case| case.outcome.ran()).count() as u32,
        not_applicable: gaps(&|outcome| match outcome {
            Outcome::NotApplicable { reason } => Some(reason.clone()),
            _ => None,
        }),
        not_run: gaps(&|outcome| match outcome {
            Outcome::NotRun { reason } => Some(reason.clone()),
            _ => None,
        }),
        left_out,
        ..Coverage::default()
    }
}

/// The parts named by `--only`.
fn parts(options: &Options) -> Result<Vec<Part>, Stop> {
    let Some(list) = &options.only else {
        return Ok(Part::ALL.to_vec());
    };
    let known = || Part::ALL.map(Part::name).join(", ");
    list.iter()
        .map(|word| {
            traffic::part(word.trim()).ok_or_else(|| {
                Stop::usage(format!(
                    "--only: no part '{}'; there are {}",
                    render::clean(word.trim()),
                    known()
                ))
            })
        })
        .collect()
}

/// Another tool's file.
fn other(path: &Path) -> Result<OtherTool, Stop> {
    let wrong = |what: String| Stop::usage(format!("--compare: {}: {what}", path.display()));
    let length = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !length.is_file() {
        return Err(wrong("is no file".to_string()));
    }
    if length.len() > MOST_OTHER_BYTES {
        return Err(wrong(format!(
            "is {} bytes long, and no output of nvbandwidth is longer than {MOST_OTHER_BYTES}",
            length.len()
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    import::read_nvbandwidth(&text).map_err(|error| wrong(error.to_string()))
}

/// A size as people write it: bytes, or a number and KiB, MiB or GiB.
fn bytes(text: &str) -> Result<u64, String> {
    let bytes = super::size::bytes(text)?;
    match (4096..=64 << 30).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("'{text}': from 4 KiB to 64 GiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("1 GiB"), Ok(1 << 30));
        assert_eq!(bytes("8192"), Ok(8192));
        for bad in ["", "64MB", "-1", "1.5GiB", "1KiB", "999999GiB", "GiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
