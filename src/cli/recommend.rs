//! `peerproof recommend`: launch settings for one engine, from this host, a saved report or numbers alone.

use super::{Surroundings, console, exit::Stop, host, map};
use crate::{
    advise::{self, Request},
    collect::live::Depth,
    diagnose::{self, Evidence},
    model::{
        finding::{Consumer, Recommendation},
        pair::GpuIndex,
        report::{Grading, Report},
        snapshot::Authenticity,
    },
    profile::Profiles,
    render,
};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The meaning of --draft-tokens is the engine's own: SGLang's --speculative-num-draft-tokens counts rows \
                  (the root token included), vLLM's num_speculative_tokens counts drafts (one more row each). The answer \
                  says how rows per request came about.\n\n\
                  Examples:\n  \
                  peerproof recommend --engine sglang --model glm-5.2 --tp 8 --batch 32 --draft-tokens 4 --from report.json\n  \
                  peerproof recommend --engine vllm --hidden 4096 --tp 2 --batch 32 --draft-tokens 5 --no-host"
)]
pub(super) struct Options {
    /// Serving engine: vllm or sglang (`peerproof list`).
    #[arg(long, value_name = "ENGINE")]
    engine: String,
    /// Model by id or repository name (`peerproof list`).
    #[arg(long, value_name = "MODEL", required_unless_present = "hidden")]
    model: Option<String>,
    /// Hidden size in elements, for a model that is not listed; overrides the model's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    hidden: Option<u64>,
    /// Tensor-parallel group size.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    tp: u32,
    /// Requests decoded together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    batch: u64,
    /// The engine's own number of speculative tokens (SGLang counts rows, vLLM counts drafts); for DSPARK the block size.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=65_536))]
    draft_tokens: Option<u64>,
    /// Speculative method where it changes what the number means: eagle, mtp, dspark, dflash, ngram, ...
    #[arg(long, value_name = "METHOD")]
    spec: Option<String>,
    /// Rows verified per request; overrides --draft-tokens and --spec.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    rows_per_request: Option<u64>,
    /// Activation type: bf16, fp16 or fp32; the model's when not given.
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    /// GPUs of the group in rank order, separated by commas; the first --tp tested ones when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Option<Vec<u32>>,
    /// Take the host and its proofs from a saved report.
    #[arg(long, value_name = "REPORT", conflicts_with = "no_host")]
    from: Option<PathBuf>,
    /// Look at no host: arithmetic only.
    #[arg(long)]
    no_host: bool,
    /// Folder with profiles of your own, beside the built-in ones.
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let profiles = match &options.profiles {
        Some(folder) => Profiles::with_folder(folder),
        None => Profiles::embedded(),
    }
    .map_err(|error| Stop::usage(error.to_string()))?;
    let request = Request {
        engine: options.engine.clone(),
        model: options.model.clone(),
        hidden: options.hidden,
        tp: options.tp,
        batch: options.batch,
        draft_tokens: options.draft_tokens,
        spec: options.spec.clone(),
        rows_per_request: options.rows_per_request,
        dtype: options.dtype.clone(),
        group: None,
    };
    let (recommendation, authenticity) = match (&options.from, options.no_host) {
        (Some(path), _) => {
            let report = report_file(path)?;
            let evidence = evidence(&report);
            let tested: Vec<GpuIndex> = report.tested_gpus.iter().copied().map(GpuIndex).collect();
            let answer = ask(Some(&evidence), &tested, request, options, &profiles)?;
            (answer, report.authenticity)
        }
        (None, true) => {
            let answer = ask(None, &[], request, options, &profiles)?;
            (answer, Authenticity::Hardware)
        }
        (None, false) => {
            let (_session, snapshot) = host::read(surroundings, Depth::Full)?;
            if snapshot.gpus.is_empty() {
                console::note(
                    "no GPU on this host: arithmetic only (--from REPORT takes a tested host)",
                );
                let answer = ask(None, &[], request, options, &profiles)?;
                (answer, snapshot.authenticity)
            } else {
                let evidence = Evidence::new(&snapshot, &[], &[]);
                let all: Vec<GpuIndex> = (0..snapshot.gpus.len() as u32).map(GpuIndex).collect();
                let answer = ask(Some(&evidence), &all, request, options, &profiles)?;
                (answer, snapshot.authenticity)
            }
        }
    };
    // A group that must not serve gets no settings, and a script must see that.
    // A sound group of one GPU has no all-reduce either, but it has flags.
    let must_not_serve = recommendation.backend == "none" && recommendation.flags.is_empty();
    let code = if must_not_serve {
        Grading::Fail.exit_code()
    } else {
        0
    };
    if options.json {
        return console::print(|out| {
            serde_json::to_writer_pretty(&mut *out, &recommendation)?;
            writeln!(out)
        })
        .map(|_| code);
    }
    console::print(|out| {
        render::recommend::write(
            &recommendation,
            authenticity,
            &surroundings.console.options,
            out,
        )
    })
    .map(|_| code)
}

/// Puts the question for the group that `--gpus` names, or the first `tp` of `tested`.
fn ask(
    evidence: Option<&Evidence>,
    tested: &[GpuIndex],
    mut request: Request,
    options: &Options,
    profiles: &Profiles,
) -> Result<Recommendation, Stop> {
    request.group = match &options.gpus {
        Some(list) => Some(list.iter().copied().map(GpuIndex).collect()),
        None => tested.get(..request.tp as usize).map(<[GpuIndex]>::to_vec),
    };
    let consumers = match (evidence, &request.group) {
        (Some(evidence), Some(group)) => diagnose::consumers(evidence, group),
        _ => Vec::new(),
    };
    advise::recommend(evidence, &consumers, &request, profiles)
        .map_err(|error| Stop::usage(error.to_string()))
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

fn evidence(report: &Report) -> Evidence<'_> {
    Evidence::new(&report.snapshot, &report.records, &report.observations)
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
        group: Some(group.to_vec()),
        ..Request::default()
    };
    profiles
        .engines
        .iter()
        .filter_map(|engine| {
            advise::recommend(Some(evidence), consumers, &request(&engine.id), &profiles).ok()
        })
        .collect()
}
