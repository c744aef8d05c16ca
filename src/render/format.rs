//! The forms in which a whole report can be had. One list: the command line takes its names from it, and `peerproof list`
//! prints it. A new form is one entry here and one module beside this one.

use super::{Options, html, json, junit, markdown, prometheus, reduce, terminal, traffic};
use crate::model::report::{Kind, Report};
use std::io::{self, Write};
use terminal::Closing;

/// A form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As `qualify` prints it.
    Text,
    /// The saved document.
    Json,
    /// One page that needs nothing else.
    Html,
    /// For an issue or a ticket.
    Markdown,
    /// For CI systems.
    Junit,
    /// For the textfile collector of node_exporter.
    Prometheus,
}

/// A form and what is said of it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The form.
    pub format: Format,
    /// Its name on the command line.
    pub name: &'static str,
    /// How names of its files end, without the dot.
    pub ending: &'static str,
    /// One line for people.
    pub title: &'static str,
}

/// All forms.
pub const ROSTER: [Entry; 6] = [
    Entry {
        format: Format::Text,
        name: "text",
        ending: "txt",
        title: "the page that the run printed",
    },
    Entry {
        format: Format::Json,
        name: "json",
        ending: "json",
        title: "the report file: all that was read and tried, and what follows from it",
    },
    Entry {
        format: Format::Html,
        name: "html",
        ending: "html",
        title: "one self-contained page with pictures, for people and tickets",
    },
    Entry {
        format: Format::Markdown,
        name: "markdown",
        ending: "md",
        title: "for an issue or a ticket: verdict, matrix, causes, coverage, versions",
    },
    Entry {
        format: Format::Junit,
        name: "junit",
        ending: "xml",
        title: "JUnit XML for CI systems: suite = mechanism, case = ordered pair",
    },
    Entry {
        format: Format::Prometheus,
        name: "prometheus",
        ending: "prom",
        title: "metrics for the textfile collector of node_exporter",
    },
];

impl Format {
    /// The form of that name.
    pub fn named(name: &str) -> Option<Format> {
        ROSTER.iter().find(|e| e.name == name).map(|e| e.format)
    }

    /// The form whose files end so.
    pub fn of_ending(ending: &str) -> Option<Format> {
        let same = |e: &&Entry| e.ending.eq_ignore_ascii_case(ending);
        ROSTER.iter().find(same).map(|e| e.format)
    }

    /// Writes `report` in this form. `closing` and `options` are for text alone.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(
        self,
        report: &Report,
        closing: &Closing,
        options: &Options,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        match self {
            Format::Text => match report.kind() {
                Kind::Ladder => terminal::write(report, closing, options, out),
                Kind::Reductions => reduce::write(report, options, out),
                Kind::Traffic => traffic::write(report, options, out),
            },
            Format::Json => json::write(report, out),
            Format::Html => html::write(report, out),
            Format::Markdown => markdown::write(report, out),
            Format::Junit => junit::write(report, out),
            Format::Prometheus => prometheus::write(report, out),
        }
    }
}
