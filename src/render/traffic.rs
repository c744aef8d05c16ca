//! Timed transfers in tables: row = source, column = destination, the executor and the unit in the title. What nobody
//! measured is `n/a`, never zero; a mark behind a number says how it compares with what its link should carry.

mod at_once;
mod remarks;

use self::remarks::compared;
use super::{
    matrix::{Cell, Matrix},
    page::{Options, Page, Tone, banner, size},
};
use crate::{
    model::{
        measurement::Unit,
        report::Report,
        traffic::{Band, Executor, Expectation, Place, Shape, Streams, Traffic, Way},
    },
    stats::median,
};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// A piece of what is told of timed transfers; the page, HTML and Markdown each write it in their way.
pub(super) enum Block {
    /// What follows.
    Heading(String),
    /// A table.
    Table(Matrix),
    /// A sentence.
    Line(Tone, String),
}

/// What is told, in order.
#[derive(Default)]
pub(super) struct Told(pub(super) Vec<Block>);

impl Told {
    fn heading(&mut self, text: impl Into<String>) {
        self.0.push(Block::Heading(text.into()));
    }

    fn table(&mut self, matrix: Matrix) {
        self.0.push(Block::Table(matrix));
    }

    fn line(&mut self, tone: Tone, text: impl Into<String>) {
        self.0.push(Block::Line(tone, text.into()));
    }
}

/// How the numbers were made, at the end of every form.
pub(super) const METHOD: &str = "GB/s is 1e9 bytes a second, median of the samples; work was queued behind a gate and timed by \
                                 events of the devices (docs/method.md). Rates prove no content.";

/// All that is told of the timed transfers of `report`.
pub(super) fn told(report: &Report) -> Told {
    let mut told = Told::default();
    let view = View {
        traffic: &report.traffic,
        gpus: &report.tested_gpus,
    };
    view.host_links(&mut told);
    view.pairs(&mut told);
    view.latency(&mut told);
    view.curve(&mut told);
    view.streams(&mut told);
    view.shapes(&mut told);
    view.expectations(&mut told);
    view.gaps(&mut told);
    view.caveats(&mut told);
    if let Some(comparison) = &report.comparison {
        compared(comparison, &mut told);
    }
    told
}

/// Writes the page of `peerproof measure`.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    head(report, page)?;
    body(report, page)?;
    if !report.coverage.left_out.is_empty() {
        page.heading("Left out")?;
        for line in &report.coverage.left_out {
            page.hanging(2, Tone::Plain, line)?;
        }
    }
    page.blank()?;
    page.text(0, Tone::Faint, METHOD)?;
    let grading = report.verdict.grading;
    let tone = super::terminal::tone_of(grading);
    let word = format!("exit code {}  {}", grading.exit_code(), grading.word());
    page.line(&[(tone, &word)])
}

/// Tables and sentences alone.
pub(super) fn body(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    for block in told(report).0 {
        match block {
            Block::Heading(text) => page.heading(&text)?,
            Block::Table(matrix) => {
                matrix.write(page)?;
            }
            Block::Line(tone, text) => page.hanging(2, tone, &text)?,
        }
    }
    Ok(())
}

fn head(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    if let Some((word, meaning)) = banner(report.authenticity) {
        let text = format!("{meaning} These are modelled rates.");
        page.labelled(Tone::Bad, &format!("{word}: "), Tone::Strong, &text)?;
    }
    super::terminal::verdict(report, page)
}

struct View<'a> {
    traffic: &'a [Traffic],
    gpus: &'a [u32],
}

/// Digits that fit a table: three that count.
fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Behind a number: how it compares with its link.
fn mark(expected: Option<&Expectation>) -> &'static str {
    match expected.map(|e| e.band) {
        Some(Band::Warn) => "!",
        Some(Band::Fail) => "!!",
        Some(Band::Above) => "^",
        Some(Band::Usual) | None => "",
    }
}

fn tone(expected: Option<&Expectation>) -> Tone {
    match expected.map(|e| e.band) {
        Some(Band::Usual) => Tone::Good,
        Some(Band::Warn | Band::Above) => Tone::Doubt,
        Some(Band::Fail) => Tone::Bad,
        None => Tone::Plain,
    }
}

/// A cell of what became of a case.
fn cell(case: Option<&Traffic>) -> Cell {
    let Some(case) = case else {
        return Cell::Missing;
    };
    match median(&case.whole) {
        Some(value) => Cell::Value {
            text: format!("{}{}", number(value), mark(case.expected.as_ref())),
            code: None,
            tone: tone(case.expected.as_ref()),
            number: Some(value),
        },
        None if case.outcome.is_failure() => Cell::Value {
            text: case.outcome.word().to_string(),
            code: Some("bad"),
            tone: Tone::Bad,
            number: None,
        },
        None if matches!(case.outcome, crate::model::case::Outcome::Refused { .. }) => {
            Cell::Value {
                text: "refused".to_string(),
                code: Some("ref"),
                tone: Tone::Doubt,
                number: None,
            }
        }
        None => Cell::Missing,
    }
}

impl<'a> View<'a> {
    fn find(
        &self,
        shape: Shape,
        (executor, way): (Executor, Way),
        streams: Streams,
        (from, to): (Place, Place),
    ) -> Option<&'a Traffic> {
        let fits = |case: &&Traffic| {
            (case.shape, case.executor, case.way, case.streams) == (shape, executor, way, streams)
                && case
                    .flows
                    .first()
                    .is_some_and(|f| (f.source, f.destination) == (from, to))
        };
        let size = self.usual();
        let all = self.traffic.iter().filter(fits);
        // The curve has other sizes of the same flow.
        all.min_by_key(|case| case.bytes.abs_diff(size))
    }

    /// Bytes of a copy in the tables.
    fn usual(&self) -> u64 {
        let of = |curve: bool| {
            let cases = self.traffic.iter().filter(|c| c.unit == Unit::GbPerS);
            cases
                .filter(|c| curve || c.shape.is_concurrent())
                .map(|c| c.bytes)
                .max()
        };
        of(false).or_else(|| of(true)).unwrap_or(0)
    }

    fn host_links(&self, told: &mut Told) {
        let columns: [(&str, Shape, Executor, Way, bool); 5] = [
            (
                "CE to GPU",
                Shape::OneWay,
                Executor::CopyEngine,
                Way::Pull,
                true,
            ),
            (
                "CE to host",
                Shape::OneWay,
                Executor::CopyEngine,
                Way::Push,
                false,
            ),
            (
                "CE both",
                Shape::BothDirections,
                Executor::CopyEngine,
                Way::Push,
                true,
            ),
            (
                "SM to GPU",
                Shape::OneWay,
                Executor::Multiprocessors,
                Way::Pull,
                true,
            ),
            (
                "SM to host",
                Shape::OneWay,
                Executor::Multiprocessors,
                Way::Push,
                false,
            ),
        ];
        let rows: Vec<(String, Vec<Option<&Traffic>>)> = self
            .gpus
            .iter()
            .map(|gpu| {
                let place = Place::Gpu(*gpu);
                let cells = columns.iter().map(|(_, shape, executor, way, down)| {
                    let ends = if *down {
                        (Place::Host, place)
                    } else {
                        (place, Place::Host)
                    };
                    self.find(*shape, (*executor, *way), Streams::NonBlocking, ends)
                });
                (format!("GPU{gpu}"), cells.collect())
            })
            .collect();
        if rows
            .iter()
            .all(|(_, cells)| cells.iter().all(Option::is_none))
        {
            return;
        }
        told.heading(format!(
            "Host links, GB/s: copies of {} to and from pinned memory by copy engines (CE) and multiprocessors (SM)",
            size(self.usual())
        ));
        let matrix = Matrix {
            corner: String::new(),
            columns: columns.iter().map(|column| column.0.to_string()).collect(),
            rows: rows
                .into_iter()
                .map(|(label, cells)| (label, cells.into_iter().map(cell).collect()))
                .collect(),
            even: false,
            diagonal: "-",
        };
        told.table(matrix);
    }

    /// A table over pairs, if any of its cells was planned.
    fn table(&self, told: &mut Told, title: &str, of: impl Fn(u32, u32) -> Option<&'a Traffic>) {
        let planned = |s: &u32| self.gpus.iter().any(|d| s != d && of(*s, *d).is_some());
        if !self.gpus.iter().any(planned) {
            return;
        }
        told.heading(title);
        let row = |s: &u32| {
            let cells = self.gpus.iter().map(|d| match s == d {
                true => Cell::Diagonal,
                false => cell(of(*s, *d)),
            });
            (format!("GPU{s}"), cells.collect())
        };
        let matrix = Matrix {
            corner: "src\\dst".to_string(),
            columns: self.gpus.iter().map(u32::to_string).collect(),
            rows: self.gpus.iter().map(row).collect(),
            even: true,
            diagonal: "-",
        };
        told.table(matrix);
    }

    fn pairs(&self, told: &mut Told) {
        let bytes = size(self.usual());
        let kinds = [
            (
                Executor::CopyEngine,
                Way::Push,
                "copy engine of the source pushes",
            ),
            (
                Executor::CopyEngine,
                Way::Pull,
                "copy engine of the destination pulls",
            ),
            (
                Executor::Multiprocessors,
                Way::Push,
                "multiprocessors of the source store",
            ),
            (
                Executor::Multiprocessors,
                Way::Pull,
                "multiprocessors of the destination load",
            ),
            (
                Executor::Staged,
                Way::Push,
                "the driver stages through the host (no peer access)",
            ),
        ];
        let both_ways = [
            (Executor::CopyEngine, Way::Push, "copy engines push"),
            (Executor::CopyEngine, Way::Pull, "copy engines pull"),
            (
                Executor::Multiprocessors,
                Way::Push,
                "multiprocessors store",
            ),
            (Executor::Multiprocessors, Way::Pull, "multiprocessors load"),
            (Executor::Staged, Way::Push, "the driver stages"),
        ];
        let kind = Streams::NonBlocking;
        for (executor, way, words) in kinds {
            let title = format!("One way, GB/s, {bytes}: {words}");
            self.table(told, &title, |s, d| {
                let ends = (Place::Gpu(s), Place::Gpu(d));
                self.find(Shape::OneWay, (executor, way), kind, ends)
            });
        }
        for (executor, way, words) in both_ways {
            let title = format!("Both directions at once, sum in GB/s, {bytes}: {words}");
            self.table(told, &title, |s, d| {
                let ends = (Place::Gpu(s.min(d)), Place::Gpu(s.max(d)));
                self.find(Shape::BothDirections, (executor, way), kind, ends)
            });
        }
    }

    fn latency(&self, told: &mut Told) {
        let kind = Streams::NonBlocking;
        let small = self.traffic.iter().find(|c| c.shape == Shape::SmallCopies);
        let bytes = small.map_or(0, |case| case.bytes);
        let hosts: Vec<String> = self
            .gpus
            .iter()
            .filter_map(|gpu| {
                let place = Place::Gpu(*gpu);
                let of = |way, ends| {
                    let case =
                        self.find(Shape::SmallCopies, (Executor::CopyEngine, way), kind, ends);
                    case.and_then(|case| median(&case.whole)).map(number)
                };
                let down = of(Way::Pull, (Place::Host, place))?;
                let up = of(Way::Push, (place, Place::Host))?;
                Some(format!("GPU{gpu} {down} / {up}"))
            })
            .collect();
        self.table(
            told,
            &format!("Copies of {bytes} B one after the other, us each: copy engine of the source pushes, launch hidden"),
            |s, d| {
                let ends = (Place::Gpu(s), Place::Gpu(d));
                let of = |executor| self.find(Shape::SmallCopies, (executor, Way::Push), kind, ends);
                of(Executor::CopyEngine).or_else(|| of(Executor::Staged))
            },
        );
        if !hosts.is_empty() {
            let text = format!("from the host / to the host, us: {}", hosts.join(", "));
            told.line(Tone::Plain, &text);
        }
        let both = self
            .traffic
            .iter()
            .filter(|c| c.shape == Shape::FlagRoundTrip)
            .any(|c| {
                c.flows
                    .first()
                    .and_then(|f| f.pair())
                    .is_some_and(|p| p.source > p.destination)
            });
        self.table(
            told,
            "Round trip of a flag between two kernels that stay, us: multiprocessors; the source leads",
            |s, d| {
                let (from, to) = if both { (s, d) } else { (s.min(d), s.max(d)) };
                let how = (Executor::Multiprocessors, Way::Push);
                let ends = (Place::Gpu(from), Place::Gpu(to));
                self.find(Shape::FlagRoundTrip, how, kind, ends)
            },
        )
    }

    /// Rates by size, where a flow was timed at several.
    fn curve(&self, told: &mut Told) {
        type Flow = (Executor, Way, Place, Place);
        let mut flows: BTreeMap<Flow, BTreeMap<u64, &Traffic>> = BTreeMap::new();
        for case in self.traffic.iter().filter(|c| c.shape == Shape::OneWay) {
            if let Some(flow) = case.flows.first() {
                let key = (case.executor, case.way, flow.source, flow.destination);
                flows.entry(key).or_default().insert(case.bytes, case);
            }
        }
        flows.retain(|_, sizes| sizes.len() > 2);
        if flows.is_empty() {
            return;
        }
        told.heading("By size of a copy, GB/s; one pair of each kind of path");
        let mut sizes: Vec<u64> = flows.values().flat_map(|s| s.keys().copied()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let title = |(executor, way, from, to): &Flow| {
            let who = match executor {
                Executor::CopyEngine => "CE",
                Executor::Multiprocessors => "SM",
                Executor::Staged => "staged",
            };
            format!("{from}->{to} {who} {}", way.name())
        };
        let matrix = Matrix {
            corner: "size".to_string(),
            columns: sizes.iter().map(|bytes| size(*bytes)).collect(),
            rows: flows
                .iter()
                .map(|(flow, cases)| {
                    let cells = sizes.iter().map(|bytes| cell(cases.get(bytes).copied()));
                    (title(flow), cells.collect())
                })
                .collect(),
            even: false,
            diagonal: "-",
        };
        told.table(matrix);
    }
}
