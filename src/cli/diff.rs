//! `peerproof diff`: what differs between two reports.

use super::{Surroundings, again, console, exit::Stop, recommend};
use crate::{
    compare,
    model::{comparison::Comparison, report::Report, snapshot::Authenticity},
    render,
};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 the same; 1 something differs; 3 what both reports hold is the same, but one holds more than the \
                  other (see 'Not compared'), so that they are the same is not shown; 64 unreadable, or hardware against a simulation.\n\n\
                  Examples:\n  \
                  peerproof diff good-host.json bad-host.json         sister hosts\n  \
                  peerproof diff before.json after.json --markdown    a BIOS change, for a ticket\n  \
                  peerproof diff monday.tar.gz friday.json            bundles are read like reports"
)]
pub(super) struct Options {
    /// Report, journal or bundle; `-` reads standard input.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The same of the other host or day.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Print JSON: all differences, with every number.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown for a ticket.
    #[arg(long)]
    markdown: bool,
    /// Compare hardware with a simulated or fault-injected run all the same.
    #[arg(long)]
    mixed: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    if options.a.as_os_str() == "-" && options.b.as_os_str() == "-" {
        return Err(Stop::usage("standard input ('-') can be given once"));
    }
    let (a, b) = (judged(&options.a)?, judged(&options.b)?);
    if a.authenticity != b.authenticity && !options.mixed {
        return Err(Stop::usage(format!(
            "{} is {}, {} is {}: a difference between them would say nothing of a host; --mixed compares them all the same",
            options.a.display(),
            word(a.authenticity),
            options.b.display(),
            word(b.authenticity)
        )));
    }
    let names = (
        options.a.to_string_lossy().into_owned(),
        options.b.to_string_lossy().into_owned(),
    );
    let comparison = compare::compare(&a, &b, (&names.0, &names.1));
    let code = comparison.exit_code();
    print(&comparison, options, surroundings).map(|_| code)
}

fn print(
    comparison: &Comparison,
    options: &Options,
    surroundings: &Surroundings,
) -> Result<u8, Stop> {
    console::print(|out| {
        if options.json {
            serde_json::to_writer_pretty(&mut *out, comparison)?;
            writeln!(out)
        } else if options.markdown {
            render::diff::markdown(comparison, out)
        } else {
            render::diff::write(comparison, &surroundings.console.options, out)
        }
    })
}

/// A report, judged by the rules of this version: two reports of two versions would differ in the rules.
fn judged(path: &PathBuf) -> Result<Report, Stop> {
    let mut report = recommend::report_file(path)?;
    again::judge(&mut report);
    Ok(report)
}

fn word(authenticity: Authenticity) -> &'static str {
    match authenticity {
        Authenticity::Hardware => "of hardware",
        Authenticity::Simulated => "SIMULATED",
        Authenticity::FaultInjected => "FAULT-INJECTED",
    }
}
