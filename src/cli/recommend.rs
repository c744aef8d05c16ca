//! `peerproof recommend`: launch settings for one engine, from this host, a saved report or numbers alone.

use super::{Surroundings, console, exit::Stop, file, host, map, workload::Workload};
use crate::{
    advise::{self, Request, launch},
    collect::live::Depth,
    diagnose::Evidence,
    model::{
        finding::{Consumer, Recommendation, Severity},
        launch::LaunchCheck,
        pair::GpuIndex,
        reduction::Reduction,
        report::{Grading, Report},
        snapshot::{Authenticity, Snapshot},
    },
    profile::{Profiles, Version},
    render::{self, launch::Format},
};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The meaning of --draft-tokens is the engine's own: SGLang's --speculative-num-draft-tokens counts rows \
                  (the root token included), vLLM's num_speculative_tokens counts drafts (one more row each). The answer \
                  says how rows per request came about.\n\n\
                  Examples:\n  \
                  peerproof recommend --engine sglang --model glm-5.2 --tp 8 --batch 32 --draft-tokens 4 --from report.json\n  \
                  peerproof recommend --engine vllm --hidden 4096 --tp 2 --batch 32 --draft-tokens 5 --no-host\n  \
                  peerproof recommend --check \"vllm serve M --tensor-parallel-size 8\" --from report.json\n  \
                  peerproof recommend ... --from report.json --reductions r.json    times of 'peerproof reduce --model ... --report r.json'\n  \
                  eval \"$(peerproof recommend ... --from report.json --format shell)\""
)]
pub(super) struct Options {
    /// Serving engine (`peerproof list`): vllm, sglang, tensorrt-llm, llama.cpp, nccl, python, ...
    #[arg(long, value_name = "ENGINE", required_unless_present_any = ["check", "check_file"])]
    engine: Option<String>,
    /// The engine's version, where rows of its profile hold for some versions only: 0.30.0.
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<Version>,
    #[command(flatten)]
    workload: Workload,
    /// Tensor-parallel group size.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), required_unless_present_any = ["check", "check_file"])]
    tp: Option<u32>,
    /// Ranks of attention data parallelism.
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    dp: u32,
    /// Ranks of expert parallelism.
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ep: u32,
    /// Activation type: bf16, fp16 or fp32; the model's when not given.
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    /// The engine runs without CUDA graphs.
    #[arg(long)]
    eager: bool,
    /// GPUs of the group in rank order, separated by commas; the first --tp tested ones when not given, islands together.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Option<Vec<u32>>,
    /// Take the host and its proofs from a saved report.
    #[arg(long, value_name = "REPORT", conflicts_with = "no_host")]
    from: Option<PathBuf>,
    /// All-reduce times from another report of the same host, as 'peerproof reduce --report' writes it, in place of those of
    /// the report that proves its pairs.
    #[arg(long, value_name = "REPORT", conflicts_with = "no_host")]
    reductions: Option<PathBuf>,
    /// Look at no host: arithmetic only.
    #[arg(long)]
    no_host: bool,
    /// Folder with profiles of your own, beside the built-in ones.
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
    /// Say what is wrong with an existing launch command: "vllm serve ..." or "NAME=1 python -m sglang...".
    #[arg(long, value_name = "COMMAND", conflicts_with = "check_file")]
    check: Option<String>,
    /// The same for a file: a script, NAME=value lines, a compose file, a Kubernetes manifest, a Dockerfile or a systemd unit; -
    /// reads standard input.
    #[arg(long, value_name = "FILE")]
    check_file: Option<PathBuf>,
    /// Form of the answer; shell, env, compose, kubernetes and json are for programs and stay empty where nothing is proven.
    #[arg(
        long,
        value_enum,
        default_value = "text",
        value_name = "FORMAT",
        conflicts_with = "json"
    )]
    format: Form,
    /// Write the engine's own file of peer verdicts (vLLM, SGLang), from a report that proves them.
    #[arg(long, value_name = "FILE", requires = "from")]
    write_p2p_cache: Option<PathBuf>,
    /// Print JSON: the whole answer, with reasons.
    #[arg(long)]
    json: bool,
}

/// Forms of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For people, with reasons.
    Text,
    /// Lines for eval.
    Shell,
    /// NAME=value lines.
    Env,
    /// Settings alone.
    Json,
    /// A compose service.
    Compose,
    /// A Kubernetes container.
    Kubernetes,
}

impl Form {
    fn settings(self) -> Option<Format> {
        Some(match self {
            Form::Text => return None,
            Form::Shell => Format::Shell,
            Form::Env => Format::Env,
            Form::Json => Format::Json,
            Form::Compose => Format::Compose,
            Form::Kubernetes => Format::Kubernetes,
        })
    }
}

/// The host that is asked about.
enum Host {
    /// A saved report.
    Report(Box<Report>),
    /// This one, as read and not tested.
    Live(Box<Snapshot>),
    /// None.
    Absent,
}

impl Host {
    fn evidence(&self) -> Option<Evidence<'_>> {
        match self {
            Host::Report(report) => Some(
                Evidence::new(&report.snapshot, &report.records, &report.observations)
                    .with_ladder(&report.ladder),
            ),
            Host::Live(snapshot) => Some(Evidence::new(snapshot, &[], &[])),
            Host::Absent => None,
        }
    }

    fn candidates(&self) -> Vec<GpuIndex> {
        match self {
            Host::Report(report) => report.tested_gpus.iter().copied().map(GpuIndex).collect(),
            Host::Live(snapshot) => (0..snapshot.gpus.len() as u32).map(GpuIndex).collect(),
            Host::Absent => Vec::new(),
        }
    }

    fn authenticity(&self) -> Authenticity {
        match self {
            Host::Report(report) => report.authenticity,
            Host::Live(snapshot) => snapshot.authenticity,
            Host::Absent => Authenticity::Hardware,
        }
    }
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let profiles = match &options.profiles {
        Some(folder) => Profiles::with_folder(folder),
        None => Profiles::embedded(),
    }
    .map_err(|error| Stop::usage(error.to_string()))?;
    if options.check.is_some() || options.check_file.is_some() {
        return check(surroundings, options, &profiles);
    }
    let request = request(options, &profiles)?;
    let host = host_of(surroundings, options)?;
    let evidence = host.evidence();
    let mut request = Request {
        candidates: host.candidates(),
        ..request
    };
    advise::put_measured(&mut request, &reductions(options, &host)?);
    let answer = advise::recommend(evidence.as_ref(), &[], &request, &profiles)
        .map_err(|error| Stop::usage(error.to_string()))?;
    if let Some(path) = &options.write_p2p_cache {
        write_p2p_cache(path, &host, &request, &profiles)?;
    }
    // A group that must not serve gets no settings, and a script must see that.
    // A sound group of one GPU has no all-reduce either, but it has flags.
    let must_not_serve = answer.backend == "none" && answer.proven.is_none();
    let unfinished = matches!(&host, Host::Report(report) if report.interrupted);
    let code = match (must_not_serve, unfinished) {
        (true, _) => Grading::Fail.exit_code(),
        // People are told what is open; a script that takes the lines would not be.
        (false, true) => {
            if options.format.settings().is_some() {
                return Err(Stop::inconclusive(
                    "--from: the run of this report did not end, so nothing is set up from it: run 'peerproof qualify' to its end",
                ));
            }
            console::complain(
                "the run of this report did not end: what it had not come to is unproven",
            );
            Grading::Inconclusive.exit_code()
        }
        (false, false) => 0,
    };
    if let Some(format) = options.format.settings() {
        return settings(format, &answer, host.authenticity(), code);
    }
    if options.json {
        return console::print(|out| {
            serde_json::to_writer_pretty(&mut *out, &answer)?;
            writeln!(out)
        })
        .map(|_| code);
    }
    console::print(|out| {
        render::recommend::write(
            &answer,
            host.authenticity(),
            &surroundings.console.options,
            out,
        )
    })
    .map(|_| code)
}

/// What the options ask, without a host.
fn request(options: &Options, profiles: &Profiles) -> Result<Request, Stop> {
    let engine = options.engine.clone().unwrap_or_default();
    // Engines without a size of their own need no model; those with one would guess it.
    let sized = profiles
        .engine(&engine)
        .is_some_and(|e| e.allocation.is_some());
    let workload = &options.workload;
    let missing = match (sized, workload.has_model(), workload.batch) {
        (true, false, _) => Some("--model, --model-config or --hidden"),
        (true, true, None) => Some("--batch"),
        _ => None,
    };
    if let Some(missing) = missing {
        return Err(Stop::usage(format!(
            "{engine} sizes its workspace from the model and the batch: give {missing}"
        )));
    }
    Ok(Request {
        dtype: options.dtype.clone(),
        group: options
            .gpus
            .as_ref()
            .map(|list| list.iter().copied().map(GpuIndex).collect()),
        engine_version: options.engine_version.clone(),
        data_parallel: options.dp,
        expert_parallel: options.ep,
        eager: options.eager,
        ..workload.request(&engine, options.tp.unwrap_or_default())?
    })
}

/// The host that the options name: a report, none, or this one.
fn host_of(surroundings: &Surroundings, options: &Options) -> Result<Host, Stop> {
    if let Some(path) = &options.from {
        return report_file(path).map(|report| Host::Report(Box::new(report)));
    }
    if options.no_host {
        return Ok(Host::Absent);
    }
    let (_session, snapshot) = host::read(surroundings, Depth::Full)?;
    if snapshot.gpus.is_empty() {
        console::note("no GPU on this host: arithmetic only (--from REPORT takes a tested host)");
        return Ok(Host::Absent);
    }
    Ok(Host::Live(Box::new(snapshot)))
}

/// The all-reduces that were timed on `host`: those of the file that is named, else of its report.
fn reductions(options: &Options, host: &Host) -> Result<Vec<Reduction>, Stop> {
    let Some(path) = &options.reductions else {
        return Ok(match host {
            Host::Report(report) => report.reductions.clone(),
            Host::Live(_) | Host::Absent => Vec::new(),
        });
    };
    let timed = report_file(path)?;
    let refuse = |why: &str| Stop::usage(format!("--reductions: {}: {why}", path.display()));
    if timed.reductions.is_empty() {
        return Err(refuse(
            "no all-reduce was timed in it; 'peerproof reduce --report FILE' writes one",
        ));
    }
    let snapshot = match host {
        Host::Report(report) => &report.snapshot,
        Host::Live(snapshot) => snapshot,
        Host::Absent => {
            return Err(refuse(
                "times are of a host, and none is named: give its report with --from",
            ));
        }
    };
    if timed.authenticity != host.authenticity() {
        return Err(refuse(
            "one of the two reports is of a simulated or fault-injected host, and the other is not",
        ));
    }
    // Rows name GPUs by number, so the numbers must mean the same cards.
    let cards = |snapshot: &Snapshot| -> Option<Vec<String>> {
        let uuids = snapshot.gpus.iter().map(|gpu| gpu.uuid.known().cloned());
        uuids.collect()
    };
    match (cards(&timed.snapshot), cards(snapshot)) {
        (Some(timed), Some(asked)) if timed == asked => {}
        (Some(_), Some(_)) => {
            return Err(refuse(
                "its GPUs are not those of the host that is asked about (UUIDs differ): times of another host say nothing of this one",
            ));
        }
        _ => {
            return Err(refuse(
                "not every GPU has a UUID in both reports, so nothing shows that they are of one host",
            ));
        }
    }
    Ok(timed.reductions)
}

/// Settings for other programs. Where nothing is proven there are none: an empty text does no harm when it is run.
fn settings(
    format: Format,
    answer: &Recommendation,
    authenticity: Authenticity,
    code: u8,
) -> Result<u8, Stop> {
    if code != 0 {
        return Err(Stop {
            message: answer.backend_name.clone(),
            code,
        });
    }
    if answer.proven.is_none() {
        return Err(Stop::inconclusive(
            "nothing is proven of this group, so there are no settings to run, and what an earlier eval set still stands: 'peerproof qualify' first, then --from REPORT",
        ));
    }
    if authenticity != Authenticity::Hardware {
        console::note(
            "these settings rest on a simulated or fault-injected host: do not launch a real one with them",
        );
    }
    let mut notes = Vec::new();
    let code = console::print(|out| {
        notes = render::launch::write(format, answer, authenticity, out)?;
        Ok(())
    })?;
    for note in notes {
        console::note(&note);
    }
    Ok(code)
}

/// What a command line lacks that does not parse and has a launch behind `--check`: quotes.
pub(super) fn unquoted(words: &[String]) -> Option<&'static str> {
    let at = words.iter().position(|word| word == "--check")?;
    let next = words.get(at + 1).map_or("", String::as_str);
    let whole = next.contains(char::is_whitespace);
    (words.get(1).is_some_and(|w| w == "recommend") && !whole).then_some(
        "--check takes the whole launch as one word, in quotes: --check \"vllm serve MODEL -tp 2\"; --check-file FILE reads a script",
    )
}

/// A word of `text` that is a file by its name, or because there is one.
fn file_in(text: &str) -> Option<&str> {
    let ends = [".sh", ".bash", ".yaml", ".yml", ".env"];
    text.split_whitespace()
        .find(|word| ends.iter().any(|end| word.ends_with(end)))
        .or_else(|| Some(text.trim()).filter(|word| Path::new(word).is_file()))
}

/// An option that asks for a launch of one's own, where one is given beside a launch that is to be judged.
fn said_by_the_launch(options: &Options) -> Option<&'static str> {
    [
        (options.tp.is_some(), "--tp"),
        (options.dp != 1, "--dp"),
        (options.ep != 1, "--ep"),
        (options.eager, "--eager"),
        (options.dtype.is_some(), "--dtype"),
        (options.gpus.is_some(), "--gpus"),
    ]
    .into_iter()
    .find_map(|(given, name)| given.then_some(name))
    .or_else(|| options.workload.load())
}

/// Reads an existing launch and says what is wrong with it.
fn check(surroundings: &Surroundings, options: &Options, profiles: &Profiles) -> Result<u8, Stop> {
    if let Some(option) = said_by_the_launch(options) {
        return Err(Stop::usage(format!(
            "{option}: a launch is judged by what it says itself: leave {option} out, or write it into the launch as a flag of the engine"
        )));
    }
    let (name, text) = match (&options.check, &options.check_file) {
        (Some(command), _) => ("--check".to_string(), command.clone()),
        (None, Some(path)) => {
            let (name, bytes) = map::read_file(path)?;
            let text = String::from_utf8(bytes)
                .map_err(|_| Stop::usage(format!("{name}: not UTF-8 text")))?;
            (name, text)
        }
        (None, None) => return Err(Stop::usage("nothing to check")),
    };
    let launches = launch::read(&name, &text, options.engine.as_deref(), profiles)
        .map_err(|error| {
            let file = file_in(&text).filter(|_| options.check.is_some());
            match (&error, file) {
                (launch::ReadError::Nothing { .. }, Some(file)) => Stop::usage(format!(
                    "--check: no launch found in the words themselves, and {file} is a file: --check-file {file} reads it"
                )),
                _ => Stop::usage(error.to_string()),
            }
        })?;
    // A launch is checked against the host it is for; this machine is asked for only by its report.
    let host = match &options.from {
        Some(_) => host_of(surroundings, options)?,
        None => Host::Absent,
    };
    let evidence = host.evidence();
    let candidates = host.candidates();
    let measured = reductions(options, &host)?;
    let question = launch::Question {
        evidence: evidence.as_ref(),
        candidates: &candidates,
        engine: options.engine.as_deref(),
        engine_version: options.engine_version.clone(),
        model: options.workload.model.as_deref(),
        config: options.workload.config()?,
        hidden: options.workload.hidden,
        reductions: &measured,
    };
    let mut checks = Vec::new();
    for one in &launches {
        let checked = launch::check(one, &question, profiles)
            .map_err(|error| Stop::usage(error.to_string()))?;
        checks.push(checked);
    }
    // Something that was not read outranks a warning, as in every verdict: nothing is clear over it.
    let unread = checks.iter().any(|c| !c.not_judged.is_empty());
    let code = match checks.iter().filter_map(LaunchCheck::worst).max() {
        Some(Severity::Critical) => Grading::Fail.exit_code(),
        _ if unread => Grading::Inconclusive.exit_code(),
        Some(Severity::Warning) => Grading::Warn.exit_code(),
        Some(Severity::Info) | None => Grading::Pass.exit_code(),
    };
    if options.json {
        return console::print(|out| {
            let told: Vec<serde_json::Value> = checks
                .iter()
                .map(|check| {
                    let mut told = serde_json::to_value(check)?;
                    told["outcome"] = serde_json::to_value(check.outcome())?;
                    Ok(told)
                })
                .collect::<Result<_, serde_json::Error>>()?;
            serde_json::to_writer_pretty(&mut *out, &told)?;
            writeln!(out)
        })
        .map(|_| code);
    }
    console::print(|out| render::check::write(&checks, &surroundings.console.options, out))
        .map(|_| code)
}

/// Writes the engine's file of peer verdicts, and says what it is not.
fn write_p2p_cache(
    path: &Path,
    host: &Host,
    request: &Request,
    profiles: &Profiles,
) -> Result<(), Stop> {
    let engine = profiles.engine(&request.engine);
    let Some(file) = engine.and_then(|e| e.p2p_cache.as_ref()) else {
        return Err(Stop::usage(format!(
            "--write-p2p-cache: {} keeps no file of peer verdicts (vllm and sglang do)",
            request.engine
        )));
    };
    let (Some(evidence), Authenticity::Hardware) = (host.evidence(), host.authenticity()) else {
        return Err(Stop::usage(
            "--write-p2p-cache: the report is not of real hardware; an engine would take its verdicts for those of a host",
        ));
    };
    let text = advise::p2p_cache(&evidence, request)
        .map_err(|error| Stop::inconclusive(format!("--write-p2p-cache: {error}")))?;
    file::check("--write-p2p-cache", path)?;
    file::replace(path, |out| out.write_all(text.as_bytes())).map_err(|error| {
        Stop::usage(format!(
            "--write-p2p-cache: failed to write {}: {error}",
            path.display()
        ))
    })?;
    console::note(&format!(
        "{} written. The engine looks for it at {}",
        path.display(),
        file.place
    ));
    console::note(&format!("it is read with {}", file.read_when));
    for weakness in &file.weaknesses {
        console::note(&format!("weakness: {weakness}"));
    }
    Ok(())
}

/// A saved report.
pub(super) fn report_file(path: &PathBuf) -> Result<Report, Stop> {
    let (name, bytes) = map::read_file(path)?;
    if let Some(journal) = map::journal_of(&bytes) {
        console::note(&format!(
            "{name} is the journal of an unfinished run: {} records were saved",
            journal.records.len()
        ));
        return Ok(super::qualify::of_journal(journal));
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Stop::usage(format!("{name}: not a peerproof report: not UTF-8 text")))?;
    render::json::read(text).map_err(|error| Stop::usage(format!("{name}: {error}")))
}

/// First recommendations of a report: every engine, for the whole tested group, without a model's numbers.
pub(super) fn for_report(
    evidence: &Evidence,
    consumers: &[Consumer],
    group: &[GpuIndex],
) -> Vec<Recommendation> {
    // The embedded profiles are tested to parse; a report without recommendations is still a report.
    let Ok(profiles) = Profiles::embedded() else {
        return Vec::new();
    };
    if group.len() < 2 {
        return Vec::new();
    }
    let request = |engine: &str| Request {
        engine: engine.to_string(),
        tp: group.len() as u32,
        batch: 32,
        candidates: group.to_vec(),
        ..Request::default()
    };
    profiles
        .engines
        .iter()
        .filter(|engine| engine.in_reports)
        .filter_map(|engine| {
            advise::recommend(Some(evidence), consumers, &request(&engine.id), &profiles).ok()
        })
        .map(|answer| Recommendation {
            left_over: Vec::new(),
            ..answer
        })
        .collect()
}
