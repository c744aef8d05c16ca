//! `peerproof render`: a saved report in another form; and the further forms that `qualify` writes beside its report.

use super::{Surroundings, again, console, diagnose, exit::Stop, file, map};
use crate::{
    model::report::Report,
    render::{
        format::{Format, ROSTER},
        terminal::{Closing, Saved},
    },
};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "What follows from the rows of a report (causes, consumers, verdict) is worked out anew by this version; the rows stay \
                  as they are. The exit code is 0 when the form was written, whatever the verdict is.\n\n\
                  Examples:\n  \
                  peerproof render report.json --out report.html\n  \
                  peerproof render report.json --format markdown | xclip\n  \
                  peerproof render report.json --out results.xml          JUnit, for a CI system"
)]
pub(super) struct Options {
    /// Report, or journal of a run that did not end; `-` reads standard input.
    #[arg(value_name = "REPORT")]
    report: PathBuf,
    /// Form; by the ending of --out when not given, else text.
    #[arg(long, value_name = "FORM", value_parser = parser())]
    format: Option<Format>,
    /// File to write instead of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Names of forms, from their list.
fn parser() -> impl TypedValueParser<Value = Format> {
    let names = ROSTER.map(|e| PossibleValue::new(e.name).help(e.title));
    // The names come from the list that is asked.
    PossibleValuesParser::new(names).try_map(|name| Format::named(&name).ok_or("no such form"))
}

/// Forms of the report that are written beside it; a new form of `ROSTER` gets its line here.
#[derive(Debug, clap::Args)]
pub(super) struct Also {
    /// Also write the report there as one self-contained HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the report there as Markdown, for an issue or a ticket.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Also write the report there as JUnit XML, for a CI system.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Also write metrics there for node_exporter's textfile collector; the name must end in .prom to be read by it.
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
}

impl Also {
    fn files(&self) -> impl Iterator<Item = (Format, &'static str, &Path)> {
        [
            (Format::Html, "--html", &self.html),
            (Format::Markdown, "--markdown", &self.markdown),
            (Format::Junit, "--junit", &self.junit),
            (Format::Prometheus, "--prometheus", &self.prometheus),
        ]
        .into_iter()
        .filter_map(|(format, option, path)| Some((format, option, path.as_deref()?)))
    }

    /// Refuses files that cannot be written, and two that are one; `others` are files of other options.
    pub(super) fn check(&self, others: &[(&'static str, Option<&Path>)]) -> Result<(), Stop> {
        let own = self.files().map(|(_, option, path)| (option, path));
        let others = others
            .iter()
            .filter_map(|(option, path)| Some((*option, (*path)?)));
        let all: Vec<(&str, &Path)> = own.chain(others).collect();
        for (at, (option, path)) in all.iter().enumerate() {
            if let Some((other, _)) = all.iter().skip(at + 1).find(|(_, p)| p == path) {
                return Err(Stop::usage(format!(
                    "{option} and {other} name the same file: the one would replace the other"
                )));
            }
        }
        self.files()
            .try_for_each(|(_, option, path)| file::check(option, path))
    }

    /// Writes them, and says whether all stand there. What fails is told and changes no verdict.
    pub(super) fn write(
        &self,
        surroundings: &Surroundings,
        report: &Report,
        saved: &Saved,
    ) -> bool {
        let mut all = true;
        for (format, option, path) in self.files() {
            match save(surroundings, report, format, saved.clone(), path) {
                Ok(()) => console::note(&format!("{} written", path.display())),
                Err(error) => {
                    all = false;
                    console::complain(&format!(
                        "{option}: {} could not be written: {error}",
                        path.display()
                    ));
                }
            }
        }
        all
    }
}

fn save(
    surroundings: &Surroundings,
    report: &Report,
    format: Format,
    saved: Saved,
    path: &Path,
) -> std::io::Result<()> {
    let closing = Closing {
        timings: false,
        saved,
    };
    let options = crate::render::Options {
        color: false,
        ..surroundings.console.options
    };
    file::replace(path, |out| format.write(report, &closing, &options, out))
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let by_ending = || {
        let ending = options.out.as_ref()?.extension()?.to_str()?;
        Format::of_ending(ending)
    };
    let format = options.format.or_else(by_ending).unwrap_or(Format::Text);
    if let Some(out) = &options.out {
        file::check("--out", out)?;
        file::not_onto("--out", out, &options.report)?;
    }
    let (name, bytes) = map::read_file(&options.report)?;
    let Some(mut report) = diagnose::saved(&name, &bytes)? else {
        return Err(Stop::usage(format!(
            "{name} is neither a report nor the journal of a run; 'peerproof diagnose {name}' reads other texts"
        )));
    };
    again::judge(&mut report);
    again::name(&mut report, &options.report);
    let saved = Saved::To(name);
    match &options.out {
        Some(out) => save(surroundings, &report, format, saved, out).map_err(|error| {
            Stop::failed(&format!("failed to write {}: {error}", out.display()))
        })?,
        None => {
            let closing = Closing {
                timings: false,
                saved,
            };
            console::print(|out| {
                format.write(&report, &closing, &surroundings.console.options, out)
            })?;
        }
    }
    Ok(0)
}
