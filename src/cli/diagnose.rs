//! `peerproof diagnose`: what pasted outputs, logs or a saved report tell of a host that is not at hand.

use super::{Surroundings, again, console, exit::Stop, map, qualify};
use crate::{
    collect::import,
    diagnose::{self, Evidence},
    model::report::Report,
    render,
};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Read from text, alone or several in one file: nvidia-smi, nvidia-smi -q, topo -m, topo -p2p, nvlink -s and -R;\n\
                  lspci -vvv and -tv; /proc/cmdline, dmesg, lscpu, /sys/kernel/iommu_groups/*/type, /proc/driver/nvidia/params;\n\
                  logs of NCCL (NCCL_DEBUG=INFO), vLLM and SGLang. Also reports, journals, hwloc and NCCL topology XML.\n\n\
                  Pasted text is a claim and no measurement: without a report the exit code is 3, or 1 or 2 where a setting or\n\
                  a loss is certain.\n\n\
                  Examples:\n  \
                  peerproof diagnose ticket.txt dmesg.txt vllm.log\n  \
                  sudo lspci -vvv | peerproof diagnose -"
)]
pub(super) struct Options {
    /// Files of one host; `-` reads standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show all evidence, all fixes, what was read from where, and all that was not understood.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON: the ticket taken apart, the snapshot, and the diagnosis.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let mut texts = Vec::new();
    let mut report: Option<(&PathBuf, String, Report)> = None;
    let mut standard_input = false;
    let mut own: Vec<String> = Vec::new();
    for path in &options.files {
        if path.as_os_str() == "-" && std::mem::replace(&mut standard_input, true) {
            return Err(Stop::usage("standard input ('-') can be given once"));
        }
        let (name, bytes) = map::read_file(path)?;
        match saved(&name, &bytes)? {
            None if import::is_own_text(&bytes) => own.push(name),
            None => texts.push((name, bytes)),
            Some(found) => {
                if let Some((_, first, _)) = &report {
                    return Err(Stop::usage(format!(
                        "{first} and {name} are two reports; diagnose takes one, with texts of the same host beside it"
                    )));
                }
                report = Some((path, name, found));
            }
        }
    }
    if let Some(name) = own.first() {
        let said = format!(
            "{name} looks like what peerproof itself printed; that text is made for people, and reading it back would invent symptoms: give the JSON that 'qualify' wrote (peerproof-HOST-TIME.json, or --out)"
        );
        if texts.is_empty() && report.is_none() {
            return Err(Stop::usage(said));
        }
        console::note(&format!("{said}; left out"));
    }
    let base = report
        .as_ref()
        .map(|(_, name, r)| (name.clone(), r.snapshot.clone()));
    let pasted = import::read_all(&texts, base).map_err(|error| Stop::usage(error.to_string()))?;
    let (ticket, snapshot) = (pasted.ticket, pasted.snapshot);
    if report.is_none() && ticket.inputs.is_empty() && ticket.remarks.is_empty() {
        // A known kind that is of no use says what to give instead.
        let named = ticket
            .unread
            .iter()
            .find(|u| u.reason.contains("give "))
            .or(ticket.unread.first());
        let first = named.map_or_else(
            || "the input is empty".to_string(),
            |u| format!("{}: {} ('{}')", u.source, u.reason, u.text),
        );
        return Err(Stop::usage(format!(
            "nothing in these files is known: {first}; 'peerproof diagnose --help' lists what is read"
        )));
    }
    let diagnosis = match &mut report {
        Some((path, _, report)) => {
            report.snapshot = snapshot.clone();
            again::judge(report);
            again::name(report, path);
            let evidence = Evidence::new(&report.snapshot, &report.records, &report.observations)
                .with_ladder(&report.ladder);
            diagnose::ticket(&evidence, &ticket, Some(report.verdict.clone()))
        }
        None => {
            let evidence = Evidence::new(&snapshot, &[], &[]);
            diagnose::ticket(&evidence, &ticket, None)
        }
    };
    let code = diagnosis.grading().exit_code();
    if options.json {
        let whole = serde_json::json!({
            "ticket": ticket,
            "diagnosis": diagnosis,
            "snapshot": snapshot,
        });
        return console::print(|out| {
            serde_json::to_writer_pretty(&mut *out, &whole)?;
            writeln!(out)
        })
        .map(|_| code);
    }
    console::print(|out| {
        render::diagnose::write(
            &ticket,
            &diagnosis,
            &snapshot,
            options.verbose,
            &surroundings.console.options,
            out,
        )
    })
    .map(|_| code)
}

/// A report of ours, or the journal of an unfinished run; `None` for any other file.
pub(super) fn saved(name: &str, bytes: &[u8]) -> Result<Option<Report>, Stop> {
    if let Some(journal) = map::journal_of(bytes) {
        console::note(&format!(
            "{name} is the journal of an unfinished run: {} records were saved",
            journal.records.len()
        ));
        return Ok(Some(qualify::of_journal(journal)));
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Ok(None);
    };
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    render::json::read(text)
        .map(Some)
        .map_err(|error| Stop::usage(format!("{name}: {error}")))
}
