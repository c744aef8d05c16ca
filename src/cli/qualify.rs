//! `peerproof qualify`: the straight line. Collect, plan, probe, diagnose, advise, render.

use super::{Surroundings, again, console, exit::Stop, file, gate::Gate, host, render::Also};
use crate::{
    collect::{live::Depth, session::Session},
    diagnose,
    gpu::kernels,
    model::{
        case::{Record, Rung},
        ladder::Step,
        pair::GpuIndex,
        report::{Coverage, Grading, Report, SCHEMA_VERSION, Spending, Verdict},
        snapshot::{Authenticity, Snapshot},
    },
    probe::{
        mechanism::{self, AtomicsOn},
        plan, reduced, resident,
        supervisor::{self, Came},
    },
    render::{
        json,
        terminal::{self, Closing, Saved},
    },
};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 pass, 1 warn, 2 fail, 3 inconclusive or nothing tested, 64 usage, 70 peerproof itself failed; with \
                  --prolog 0 or 1 (docs/gates.md).\n\n\
                  Examples:\n  \
                  peerproof qualify                                     every free GPU, report file in this folder\n  \
                  peerproof qualify --gpus 0,7 --mechanism bounce,ce-push   narrow down what failed\n  \
                  peerproof qualify --deep=10m --out night.json         go on with moving seeds\n  \
                  peerproof qualify --prolog --exit-on fail             for a scheduler: one line, exit code 0 or 1"
)]
pub(super) struct Options {
    /// GPUs to test: indices, UUIDs or PCI addresses, separated by commas; all free ones when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Option<Vec<String>>,
    /// Pairs to test, separated by commas: '2->5' (quoted) for one direction, 2-5 for both; all when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pairs: Option<Vec<String>>,
    /// Mechanisms to test, separated by commas (`peerproof list` has them); all when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    mechanism: Option<Vec<String>>,
    /// A look in a few seconds: every mechanism, few sizes, one attempt each.
    #[arg(long, conflicts_with = "deep")]
    quick: bool,
    /// The default tests, then a soak with moving seeds for this long ('90s', '10m', '2h'; 5 minutes when not given).
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "5m", value_parser = duration)]
    deep: Option<Duration>,
    /// Test GPUs that other processes use, too, with a quarter of the memory that is free; their work and our rates suffer.
    #[arg(long, alias = "force-busy")]
    shared: bool,
    /// Run kernels that wait for each other, and load, also on pairs that failed a lower rung, where they may hang.
    #[arg(long)]
    force_unsafe: bool,
    /// Report file; peerproof-HOST-UTC.json in the current folder when not given.
    #[arg(long, value_name = "FILE", conflicts_with = "no_file")]
    out: Option<PathBuf>,
    /// Write no report file.
    #[arg(long)]
    no_file: bool,
    /// Also write the verdict there, small and for other programs (docs/verdict.md); an old one is taken away first, any other file refused.
    #[arg(long, value_name = "FILE")]
    verdict_file: Option<PathBuf>,
    #[command(flatten)]
    also: Also,
    #[command(flatten)]
    gate: Gate,
    /// Print the report as JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Show where the time went.
    #[arg(long)]
    timings: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let started = Instant::now();
    options.gate.start()?;
    let started_at = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    check_destination(options)?;
    let verdict_file = ("--verdict-file", options.verdict_file.as_deref());
    let report_file = ("--out", options.out.as_deref());
    options.also.check(&[verdict_file, report_file])?;
    let (mut session, snapshot) = host::read(surroundings, Depth::Full)?;
    host::require_gpu(&snapshot)?;
    let collected_ms = started.elapsed().as_secs_f64() * 1e3;
    let (selection, mut left_out) = select(&snapshot, options)?;
    crate::ffi::process::catch_interrupts();
    if options.verdict_file.is_some() && options.verdict_file == options.out {
        return Err(Stop::usage(
            "--verdict-file and --out name the same file: the one would replace the other",
        ));
    }
    if let Some(file) = &options.verdict_file {
        super::verdict::make_way(file)?;
    }
    let mut plan = plan::build(&snapshot, &selection);
    nothing_of_it(&plan, &selection, options)?;
    let spending = spending(&plan);
    announce(&plan, &spending);
    if let Some(out) = &options.out {
        file::tell_replaced(out);
    }
    left_out.append(&mut plan.left_out);

    let path = destination(options, &snapshot, &started_at);
    let mut journal = Journal::open(path.as_deref(), &snapshot, &plan.gpus, &started_at);
    let first = Errand {
        plan: &plan,
        snapshot: &snapshot,
        moments: "",
        note: &|_| {},
    };
    let results = probe(surroundings, &mut session, &first, &mut journal);

    let mut report = Report {
        schema_version: SCHEMA_VERSION,
        tool_version: env!("CARGO_PKG_VERSION").to_string(),
        kernels_sha256: kernels::sha256(),
        authenticity: mark(snapshot.authenticity, results.authenticity),
        started_at,
        took_ms: started.elapsed().as_secs_f64() * 1e3,
        arguments: std::env::args().skip(1).collect(),
        tested_gpus: plan.gpus.clone(),
        ladder: ladder(),
        records: results.records,
        observations: results.observations,
        reductions: results.reductions,
        traffic: Vec::new(),
        crossovers: Vec::new(),
        notes: Vec::new(),
        comparison: None,
        selftest: results.selftest,
        coverage: Coverage {
            budget: Some(spending),
            ..Coverage::default()
        },
        findings: Vec::new(),
        consumers: Vec::new(),
        recommendations: Vec::new(),
        verdict: nothing_yet(),
        timings_ms: results.timings_ms,
        worker_environment: results.worker_environment,
        interrupted: results.interrupted,
        snapshot,
    };
    report.snapshot.authenticity = report.authenticity;
    let why_not = match &results.no_worker {
        Some(why) => format!("no worker could start: {why}"),
        None => "these GPUs were not chosen".to_string(),
    };
    report
        .snapshot
        .keep_cuda_claims(&results.cuda_claims, &why_not);
    report
        .timings_ms
        .insert(0, ("reading the host".to_string(), collected_ms));
    left_out.extend(options.gate.expired());
    derive(&mut report, &left_out);
    ask_further(&mut report, &plan, &left_out, |errand| {
        probe(surroundings, &mut session, errand, &mut journal)
    });
    drop(session);
    report.took_ms = started.elapsed().as_secs_f64() * 1e3;
    let saved = save(&report, path.as_deref(), journal);
    if let Saved::Failed(why) = &saved {
        console::complain(&format!("no report file: {why}"));
    }
    // Only what was asked for by name is missed: a folder that takes no report of its own accord is told, and no more.
    let mut written = options.out.is_none() || !matches!(saved, Saved::Failed(_));
    if let Some(file) = &options.verdict_file
        && let Err(error) = super::verdict::save(&report, file)
    {
        written = false;
        console::complain(&format!("no verdict file: {}: {error}", file.display()));
    }
    if let (Saved::To(_), Some(path)) = (&saved, &path) {
        again::name(&mut report, path);
    }
    written &= options.also.write(surroundings, &report, &saved);
    if options.gate.prolog {
        let chosen = options.gpus.as_ref().map(Vec::len);
        return options.gate.prolog_code(&report, chosen, written);
    }
    if options.json {
        console::print(|out| json::write(&report, out))?;
    } else {
        let closing = Closing {
            timings: options.timings,
            saved,
        };
        console::print(|out| {
            terminal::write(&report, &closing, &surroundings.console.options, out)
        })?;
    }
    Ok(options.gate.code_with(report.verdict.grading, written))
}

/// Which GPUs, pairs and mechanisms; and what is thereby left out.
fn select(snapshot: &Snapshot, options: &Options) -> Result<(plan::Selection, Vec<String>), Stop> {
    let chosen = host::choose_gpus(snapshot, options.gpus.as_deref())?;
    let mut left_out: Vec<String> = (0..snapshot.gpus.len() as u32)
        .filter(|gpu| !chosen.contains(gpu))
        .map(|gpu| format!("GPU{gpu}: not chosen by --gpus"))
        .collect();
    let (gpus, mut busy) = host::leave_out_busy(snapshot, chosen, options.shared);
    left_out.append(&mut busy);
    let pairs = options
        .pairs
        .as_ref()
        .map(|list| host::choose_pairs(&gpus, list))
        .transpose()?;
    if let Some(unknown) = options
        .mechanism
        .iter()
        .flatten()
        .find(|id| !supervisor::mechanism_ids().contains(&id.as_str()))
    {
        let known = supervisor::mechanism_ids().join(", ");
        return Err(Stop::usage(format!(
            "--mechanism: no mechanism '{unknown}'; there are {known}"
        )));
    }
    let mechanisms = options.mechanism.clone();
    Ok((
        plan::Selection {
            gpus,
            pairs,
            mechanisms,
            budget: match (options.quick || options.gate.prolog, options.deep) {
                (true, _) => plan::Budget::Quick,
                (false, Some(soak)) => plan::Budget::Deep { soak },
                (false, None) => plan::Budget::Default,
            },
            force: options.force_unsafe,
            shared: options.shared,
        },
        left_out,
    ))
}

/// Refuses mechanisms of which nothing can be tried on what was chosen: GPUs alone would pass in their place.
fn nothing_of_it(
    plan: &plan::Plan,
    selection: &plan::Selection,
    options: &Options,
) -> Result<(), Stop> {
    let Some(asked) = &selection.mechanisms else {
        return Ok(());
    };
    let planned = |id: &String| plan.cases().any(|case| case.mechanism == *id);
    if asked.iter().any(planned) {
        return Ok(());
    }
    let gpus: Vec<String> = plan.gpus.iter().map(|g| format!("GPU{g}")).collect();
    // The operator chose them, or they are what is free: the one is a wrong command line, the other a host of which nothing was tested.
    let stop = match options.gpus {
        Some(_) => Stop::usage,
        None => Stop::inconclusive,
    };
    let left = match options.gpus {
        Some(_) => "was chosen",
        None => "is there and free ('peerproof map' shows all; --shared also takes GPUs in use)",
    };
    Err(stop(format!(
        "--mechanism {}: nothing of it can be tried: {}",
        asked.join(","),
        match gpus.as_slice() {
            [] => "no GPU is left to test".to_string(),
            [one] => format!("it moves data between two GPUs, and only {one} {left}"),
            many if selection.pairs.is_some() =>
                format!("no such case on the pairs chosen among {}", many.join(", ")),
            many => format!(
                "it is for a host with one GPU, and there are {}",
                many.join(", ")
            ),
        }
    )))
}

/// A time as people write it: a number and s, m or h.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time: a number and s, m or h, as in 90s, 10m, 2h");
    let split = text.len() - text.chars().last().map_or(0, char::len_utf8);
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match number.checked_mul(scale) {
        Some(seconds) if (1..=7 * 24 * 3600).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("'{text}': from one second to 7 days")),
    }
}

/// What the plan may take, for the report.
fn spending(plan: &plan::Plan) -> Spending {
    let needs = plan.needs();
    Spending {
        name: plan.budget.name().to_string(),
        device_bytes: needs.device_bytes,
        host_bytes: needs.host_bytes,
        expected_s: needs.seconds,
        limit_s: plan.budget.time_limit(plan.gpus.len()).as_secs_f64(),
    }
}

/// Says what is about to be taken, before it is.
fn announce(plan: &plan::Plan, spending: &Spending) {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    console::note(&format!(
        "{} budget: {} cases on {} {}, up to {} MiB on each, {} MiB of pinned host memory, about {:.0} s without trouble; \
         no case begins after {:.0} s, and one that hangs then may take {:.0} s more",
        spending.name,
        plan.cases().count(),
        plan.gpus.len(),
        if plan.gpus.len() == 1 { "GPU" } else { "GPUs" },
        mib(spending.device_bytes),
        mib(spending.host_bytes),
        spending.expected_s.ceil(),
        spending.limit_s,
        plan.longest_hang().as_secs_f64().ceil()
    ));
}

/// The mechanisms that make up the rungs in this version.
fn ladder() -> Vec<Step> {
    // Atomics on host memory exist on few platforms, and nothing that goes through the host needs them: where they ran their
    // records count, and a choice of mechanisms without them leaves no rung open.
    let of_a_rung = |m: &&&dyn mechanism::Mechanism| m.atomics_on() != Some(AtomicsOn::Host);
    let moves = mechanism::ROSTER.iter().filter(of_a_rung);
    let moves = moves.map(|m| (m.id(), m.rung()));
    let exchanges = resident::ROSTER.iter().map(|e| (e.id, Rung::Resident));
    // A quick look takes one algorithm: any that ran besides counts by its records.
    let reductions = reduced::founding().map(|way| (way.id, way.rung()));
    let step = |(id, rung): (&str, Rung)| Step {
        mechanism: id.to_string(),
        rung,
    };
    moves.chain(exchanges).chain(reductions).map(step).collect()
}

/// The stronger of two marks: nothing clears one.
pub(super) fn mark(one: Authenticity, other: Authenticity) -> Authenticity {
    match (one, other) {
        (Authenticity::Hardware, other) => other,
        (one, _) => one,
    }
}

/// One run of a plan: the planned one, or that of further questions.
struct Errand<'a> {
    plan: &'a plan::Plan,
    snapshot: &'a Snapshot,
    /// Put before the names of the observer's moments, so that two runs are told apart.
    moments: &'a str,
    /// What is to be added to a record before anybody keeps it.
    note: &'a dyn Fn(&mut Record),
}

fn probe(
    surroundings: &Surroundings,
    session: &mut Session,
    errand: &Errand,
    journal: &mut Journal,
) -> supervisor::Results {
    let console = &surroundings.console;
    let (snapshot, plan) = (errand.snapshot, errand.plan);
    let total = plan.cases().count();
    let done = std::cell::Cell::new(0);
    let phase_name = std::cell::RefCell::new(String::new());
    let results = supervisor::run(
        snapshot,
        plan,
        supervisor::Hooks {
            came: &mut |came| {
                let record = match came {
                    Came::Record(record) => record,
                    Came::Observation(seen) => {
                        return journal.write_beside(json::Beside::Observation(seen.clone()));
                    }
                    Came::Selftest(test) => {
                        return journal.write_beside(json::Beside::Selftest(test.clone()));
                    }
                    Came::Reduction(row) => {
                        return journal.write_beside(json::Beside::Reduction(row.clone()));
                    }
                    Came::Claims(pairs) => {
                        return journal.write_beside(json::Beside::Claims(pairs.to_vec()));
                    }
                };
                (errand.note)(record);
                done.set(done.get() + 1);
                journal.write(record);
                console.progress(&format!(
                    "{}: case {} of {total}",
                    phase_name.borrow(),
                    done.get()
                ));
            },
            phase: &mut |name, _| {
                *phase_name.borrow_mut() = name.to_string();
                console.progress(&format!("{name}: case {} of {total}", done.get()));
            },
            observe: &mut |moment, ours| {
                session.observe(&format!("{}{moment}", errand.moments), ours)
            },
        },
    );
    console.quiet();
    results
}

/// The report that a journal still allows: its records, judged now.
pub(super) fn of_journal(journal: json::Journal) -> Report {
    let mut head = journal.head;
    let (mut observations, mut reductions, mut selftest) = (Vec::new(), Vec::new(), None);
    for beside in journal.beside {
        match beside {
            json::Beside::Observation(seen) => observations.push(seen),
            json::Beside::Reduction(row) => reductions.push(row),
            json::Beside::Selftest(test) => selftest = Some(test),
            json::Beside::Claims(pairs) => head
                .snapshot
                .keep_cuda_claims(&pairs, "these GPUs were not chosen"),
        }
    }
    let mut report = Report {
        schema_version: SCHEMA_VERSION,
        tool_version: head.tool_version,
        kernels_sha256: head.kernels_sha256,
        authenticity: head.authenticity,
        started_at: head.started_at,
        took_ms: 0.0,
        arguments: head.arguments,
        tested_gpus: head.tested_gpus,
        // The journal does not say what was to come: what this version knows and it lacks did not run.
        ladder: ladder(),
        records: journal.records,
        observations,
        reductions,
        traffic: Vec::new(),
        crossovers: Vec::new(),
        notes: Vec::new(),
        comparison: None,
        selftest,
        coverage: Coverage::default(),
        findings: Vec::new(),
        consumers: Vec::new(),
        recommendations: Vec::new(),
        verdict: nothing_yet(),
        timings_ms: Vec::new(),
        worker_environment: Vec::new(),
        interrupted: true,
        snapshot: head.snapshot,
    };
    derive(
        &mut report,
        &["what the unfinished run had not come to".to_string()],
    );
    report
}

pub(super) fn nothing_yet() -> Verdict {
    Verdict {
        grading: Grading::Inconclusive,
        headline: String::new(),
        cause: String::new(),
        next: String::new(),
        worst_pair: None,
        reason: None,
    }
}

/// Puts once the cases that causes ask for to settle what is open, and judges again. GPUs on which something hung, faulted or
/// died are left alone: what the first run quarantined is not known to a second one.
fn ask_further(
    report: &mut Report,
    plan: &plan::Plan,
    left_out: &[String],
    probe: impl FnOnce(&Errand) -> supervisor::Results,
) {
    if report.interrupted {
        return;
    }
    let evidence = diagnose::Evidence::new(&report.snapshot, &report.records, &report.observations)
        .with_ladder(&report.ladder);
    let wanted = diagnose::wanted(&evidence);
    drop(evidence);
    let stopped = |case: &diagnose::WantedCase| {
        report.records.iter().any(|r| {
            let mut gpus = report.tested_gpus.iter().copied().map(GpuIndex);
            r.outcome.is_failure()
                && r.outcome.corruption().is_none()
                && gpus.any(|gpu| r.case.subject.touches(gpu) && case.subject.touches(gpu))
        })
    };
    let questions: Vec<plan::Question> = wanted
        .iter()
        .filter(|case| !stopped(case))
        .map(|case| plan::Question {
            subject: case.subject,
            mechanism: case.mechanism,
            bytes: case.bytes,
            offset: case.offset,
            timed: case.timed,
        })
        .collect();
    let Some(further) = plan.further(&questions) else {
        return;
    };
    let mut results = probe(&Errand {
        plan: &further,
        snapshot: &report.snapshot,
        moments: "further questions: ",
        note: &|record| {
            let case = &record.case;
            let asked = wanted
                .iter()
                .find(|w| w.subject == case.subject && w.mechanism == case.mechanism);
            if let Some(asked) = asked {
                let note = format!("asked by the cause {}", asked.cause);
                record.notes.push(note);
            }
        },
    });
    report.records.append(&mut results.records);
    report.observations.append(&mut results.observations);
    report.reductions.append(&mut results.reductions);
    report.timings_ms.append(&mut results.timings_ms);
    report.interrupted = results.interrupted;
    derive(report, left_out);
}

/// Recomputes all that follows from snapshot and records of a ladder; `again` knows the other kinds of reports.
pub(super) fn derive(report: &mut Report, left_out: &[String]) {
    report.crossovers = diagnose::reductions::crossovers(&report.reductions);
    let group: Vec<GpuIndex> = report.tested_gpus.iter().copied().map(GpuIndex).collect();
    let evidence = diagnose::Evidence::new(&report.snapshot, &report.records, &report.observations)
        .with_ladder(&report.ladder)
        .made_by(&report.arguments);
    let mut coverage = diagnose::coverage(&evidence, left_out);
    coverage.budget = report.coverage.budget.take();
    let findings = diagnose::findings(&evidence);
    let consumers = diagnose::consumers(&evidence, &group);
    let verdict = diagnose::verdict(
        &evidence,
        &coverage,
        report.selftest.as_ref(),
        &findings,
        &consumers,
    );
    let verdict = match report.interrupted {
        true => diagnose::unfinished(verdict),
        false => verdict,
    };
    let recommendations = super::recommend::for_report(&evidence, &consumers, &group);
    report.coverage = coverage;
    report.findings = findings;
    report.consumers = consumers;
    report.verdict = verdict;
    report.recommendations = recommendations;
}

/// Refuses an `--out` or a `--verdict-file` that cannot become a file, before minutes are spent on it.
fn check_destination(options: &Options) -> Result<(), Stop> {
    if let Some(file) = &options.verdict_file {
        super::verdict::check(file)?;
    }
    match &options.out {
        Some(out) => check_report_file("--out", out),
        None => Ok(()),
    }
}

/// Refuses a report file that cannot become one.
pub(super) fn check_report_file(option: &str, out: &Path) -> Result<(), Stop> {
    if out.as_os_str() == "-" {
        return Err(Stop::usage(format!(
            "{option}: '-' is no file; --json prints the report to standard output"
        )));
    }
    file::check(option, out)?;
    // What is left of a run that was killed lies beside its report, and is ours.
    file::check(
        &format!("{option}, its journal"),
        &out.with_extension("journal"),
    )
}

/// Where the report goes.
fn destination(options: &Options, snapshot: &Snapshot, started_at: &str) -> Option<PathBuf> {
    if options.no_file || options.gate.prolog && options.out.is_none() {
        return None;
    }
    if let Some(out) = &options.out {
        return Some(out.clone());
    }
    let host = snapshot.host.name.known().map_or("host", String::as_str);
    let host: String = host
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
        .collect();
    let stamp: String = started_at
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    // Two runs may start in one second, and nothing that is there is overwritten unasked.
    let names = (1..1000).map(|n| match n {
        1 => format!("peerproof-{host}-{stamp}.json"),
        n => format!("peerproof-{host}-{stamp}-{n}.json"),
    });
    names.map(PathBuf::from).find(|path| {
        let journal = path.with_extension("journal");
        !path.exists()
            && match std::fs::File::create_new(&journal) {
                Ok(_) => true,
                // Taken by another run; any other error is the unwritable folder's, and is told when it is written.
                Err(error) => error.kind() != std::io::ErrorKind::AlreadyExists,
            }
    })
}

/// Rows as they come, beside the report to be: what is left of a run that was killed.
struct Journal {
    file: Option<(std::fs::File, PathBuf)>,
    failed: Option<String>,
}

impl Journal {
    fn open(report: Option<&Path>, snapshot: &Snapshot, gpus: &[u32], started_at: &str) -> Journal {
        let Some(report) = report else {
            return Journal {
                file: None,
                failed: None,
            };
        };
        let path = report.with_extension("journal");
        let head = json::JournalHead {
            schema_version: SCHEMA_VERSION,
            tool_version: env!("CARGO_PKG_VERSION").to_string(),
            kernels_sha256: kernels::sha256(),
            authenticity: snapshot.authenticity,
            started_at: started_at.to_string(),
            arguments: std::env::args().skip(1).collect(),
            tested_gpus: gpus.to_vec(),
            snapshot: snapshot.clone(),
        };
        let opened = std::fs::File::create(&path)
            .and_then(|mut file| json::write_journal_head(&head, &mut file).map(|()| file));
        match opened {
            Ok(file) => Journal {
                file: Some((file, path)),
                failed: None,
            },
            Err(error) => Journal {
                file: None,
                failed: Some(format!("{}: {error}", path.display())),
            },
        }
    }

    fn write(&mut self, record: &Record) {
        self.line(|file| json::write_journal_record(record, file));
    }

    fn write_beside(&mut self, beside: json::Beside) {
        self.line(|file| json::write_journal_beside(&beside, file));
    }

    fn line(&mut self, write: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>) {
        if let Some((file, path)) = &mut self.file
            && let Err(error) = write(file)
        {
            self.failed = Some(format!("{}: {error}", path.display()));
            self.file = None;
        }
    }
}

/// Writes the report beside its name and renames it into place; the journal has then done its work.
fn save(report: &Report, path: Option<&Path>, journal: Journal) -> Saved {
    let Some(path) = path else {
        return Saved::NotAsked;
    };
    match file::replace(path, |out| json::write(report, out)) {
        Ok(()) => {
            if let Some((_, journal)) = journal.file {
                // The report holds every row of it.
                let _ = std::fs::remove_file(journal);
            }
            Saved::To(path.display().to_string())
        }
        Err(error) => {
            let also = journal
                .failed
                .map_or(String::new(), |why| format!("; journal: {why}"));
            Saved::Failed(format!("{}: {error}{also}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        diagnose::sample::{Host, pair},
        model::case::{Outcome, Subject, WrongKind},
    };

    fn report(host: &Host) -> Report {
        let mut report = of_journal(json::Journal {
            head: json::JournalHead {
                schema_version: SCHEMA_VERSION,
                tool_version: String::new(),
                kernels_sha256: String::new(),
                authenticity: Authenticity::Simulated,
                started_at: "2026-01-02T03:04:05Z".to_string(),
                arguments: Vec::new(),
                snapshot: host.snapshot.clone(),
                tested_gpus: (0..host.count()).collect(),
            },
            records: host.records.clone(),
            beside: Vec::new(),
            torn: false,
        });
        report.interrupted = false;
        report
    }

    /// Subjects of the cases that are put in a second run, if there is one.
    fn put(host: &Host) -> Option<Vec<Subject>> {
        let plan = plan::build(
            &host.snapshot,
            &plan::Selection {
                gpus: (0..host.count()).collect(),
                budget: plan::Budget::Quick,
                ..plan::Selection::default()
            },
        );
        let mut subjects = None;
        ask_further(&mut report(host), &plan, &[], |errand| {
            subjects = Some(errand.plan.cases().map(|case| case.subject).collect());
            supervisor::Results::default()
        });
        subjects
    }

    /// Both pairs are open questions; on the GPUs of one something hung, and a second run does not know that.
    #[test]
    fn questions_leave_gpus_alone_on_which_something_hung() {
        let mut host = Host::root_complex(4);
        host.set_wrong(pair(0, 1), "sm-store", WrongKind::Zeroed);
        host.set_wrong(pair(2, 3), "sm-store", WrongKind::Zeroed);
        let both = put(&host).unwrap();
        assert!(both.iter().any(|s| s.touches(GpuIndex(0))), "{both:?}");
        host.set(pair(1, 0), "ce-pull", Outcome::TimedOut { after_ms: 1 });
        let asked = put(&host).unwrap();
        assert!(!asked.is_empty());
        for subject in asked {
            assert!(
                !subject.touches(GpuIndex(0)) && !subject.touches(GpuIndex(1)),
                "{subject}"
            );
        }
        host.set(
            pair(3, 2),
            "ce-pull",
            Outcome::Died {
                how: "exit status 70".to_string(),
            },
        );
        assert_eq!(put(&host), None, "nothing is left to ask");
    }
}
