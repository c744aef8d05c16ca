//! Timed transfers in tables: row = source, column = destination, the executor and the unit in the title. What nobody
//! measured is `n/a`, never zero; a mark behind a number says how it compares with what its link should carry.

use super::{
    matrix::{Cell, Matrix},
    page::{Options, Page, Tone, banner, count, cut, size},
};
use crate::{
    model::{
        measurement::Unit,
        report::{Grading, Report},
        traffic::{
            Band, Caveat, Comparison, Executor, Expectation, Place, Shape, Streams, Traffic, Way,
        },
    },
    stats::median,
};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// The figures that made the stream question one: 8 GPUs on PCIe 5, both directions at once (founding document of CuPy's
/// DeviceGroup): legacy null stream, non-blocking streams.
const PUBLISHED: (f64, f64) = (20.7, 37.3);
/// Longest list of cases by name.
const LISTED: usize = 10;

/// Writes the page of `peerproof measure`.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    head(report, page)?;
    let view = View {
        traffic: &report.traffic,
        gpus: &report.tested_gpus,
    };
    view.host_links(page)?;
    view.pairs(page)?;
    view.latency(page)?;
    view.curve(page)?;
    view.streams(page)?;
    view.shapes(page)?;
    view.expectations(page)?;
    view.gaps(page)?;
    view.caveats(page)?;
    if let Some(comparison) = &report.comparison {
        compared(comparison, page)?;
    }
    if !report.coverage.left_out.is_empty() {
        page.heading("Left out")?;
        for line in &report.coverage.left_out {
            page.hanging(2, Tone::Plain, line)?;
        }
    }
    page.blank()?;
    page.text(
        0,
        Tone::Faint,
        "GB/s is 1e9 bytes a second, median of the samples; work was queued behind a gate and timed by events of the devices \
         (docs/method.md). Rates prove no content.",
    )?;
    let grading = report.verdict.grading;
    let tone = tone_of(grading);
    let word = format!("exit code {}  {}", grading.exit_code(), grading.word());
    page.line(&[(tone, &word)])
}

fn tone_of(grading: Grading) -> Tone {
    match grading {
        Grading::Pass => Tone::Good,
        Grading::Fail => Tone::Bad,
        Grading::Warn | Grading::Inconclusive => Tone::Doubt,
    }
}

fn head(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    if let Some((word, meaning)) = banner(report.authenticity) {
        let text = format!("{meaning} These are modelled rates.");
        page.labelled(Tone::Bad, &format!("{word}: "), Tone::Strong, &text)?;
    }
    let verdict = &report.verdict;
    let word = verdict.grading.word();
    let label = format!("{word:<6} ");
    page.labelled(tone_of(verdict.grading), &label, Tone::Strong, &verdict.headline)?;
    page.labelled(Tone::Faint, "cause  ", Tone::Plain, &verdict.cause)?;
    page.labelled(Tone::Faint, "next   ", Tone::Plain, &verdict.next)?;
    let snapshot = &report.snapshot;
    let known = |reading: &crate::model::reading::Reading<String>| {
        reading.known().map_or("?".to_string(), |text| cut(text, 60))
    };
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for gpu in &report.tested_gpus {
        let gpu = snapshot.gpus.get(*gpu as usize);
        *names
            .entry(gpu.map_or("?".to_string(), |g| known(&g.name)))
            .or_default() += 1;
    }
    let names: Vec<String> = names.iter().map(|(name, n)| format!("{n} x {name}")).collect();
    let text = format!(
        "host {}, driver {}; {}; fabric {}",
        known(&snapshot.host.name),
        known(&snapshot.driver.version),
        names.join(", "),
        snapshot.topology.class
    );
    page.labelled(Tone::Faint, "where  ", Tone::Plain, &text)
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
        },
        None if case.outcome.is_failure() => Cell::Value {
            text: case.outcome.word().to_string(),
            code: Some("bad"),
            tone: Tone::Bad,
        },
        None if matches!(case.outcome, crate::model::case::Outcome::Refused { .. }) => Cell::Value {
            text: "refused".to_string(),
            code: Some("ref"),
            tone: Tone::Doubt,
        },
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

    fn host_links(&self, page: &mut Page<'_>) -> io::Result<()> {
        let columns: [(&str, Shape, Executor, Way, bool); 5] = [
            ("CE to GPU", Shape::OneWay, Executor::CopyEngine, Way::Pull, true),
            ("CE to host", Shape::OneWay, Executor::CopyEngine, Way::Push, false),
            ("CE both", Shape::BothDirections, Executor::CopyEngine, Way::Push, true),
            ("SM to GPU", Shape::OneWay, Executor::Multiprocessors, Way::Pull, true),
            ("SM to host", Shape::OneWay, Executor::Multiprocessors, Way::Push, false),
        ];
        let rows: Vec<(String, Vec<Option<&Traffic>>)> = self
            .gpus
            .iter()
            .map(|gpu| {
                let place = Place::Gpu(*gpu);
                let cells = columns.iter().map(|(_, shape, executor, way, down)| {
                    let ends = if *down { (Place::Host, place) } else { (place, Place::Host) };
                    self.find(*shape, (*executor, *way), Streams::NonBlocking, ends)
                });
                (format!("GPU{gpu}"), cells.collect())
            })
            .collect();
        if rows.iter().all(|(_, cells)| cells.iter().all(Option::is_none)) {
            return Ok(());
        }
        page.heading(&format!(
            "Host links, GB/s: copies of {} to and from pinned memory by copy engines (CE) and multiprocessors (SM)",
            size(self.usual())
        ))?;
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
        matrix.write(page).map(|_| ())
    }

    /// A table over pairs, if any of its cells was planned.
    fn table(
        &self,
        page: &mut Page<'_>,
        title: &str,
        of: impl Fn(u32, u32) -> Option<&'a Traffic>,
    ) -> io::Result<()> {
        let planned = |s: &u32| self.gpus.iter().any(|d| s != d && of(*s, *d).is_some());
        if !self.gpus.iter().any(planned) {
            return Ok(());
        }
        page.heading(title)?;
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
        matrix.write(page).map(|_| ())
    }

    fn pairs(&self, page: &mut Page<'_>) -> io::Result<()> {
        let bytes = size(self.usual());
        let kinds = [
            (Executor::CopyEngine, Way::Push, "copy engine of the source pushes"),
            (Executor::CopyEngine, Way::Pull, "copy engine of the destination pulls"),
            (Executor::Multiprocessors, Way::Push, "multiprocessors of the source store"),
            (Executor::Multiprocessors, Way::Pull, "multiprocessors of the destination load"),
            (Executor::Staged, Way::Push, "the driver stages through the host (no peer access)"),
        ];
        let both_ways = [
            (Executor::CopyEngine, Way::Push, "copy engines push"),
            (Executor::CopyEngine, Way::Pull, "copy engines pull"),
            (Executor::Multiprocessors, Way::Push, "multiprocessors store"),
            (Executor::Multiprocessors, Way::Pull, "multiprocessors load"),
            (Executor::Staged, Way::Push, "the driver stages"),
        ];
        let kind = Streams::NonBlocking;
        for (executor, way, words) in kinds {
            let title = format!("One way, GB/s, {bytes}: {words}");
            self.table(page, &title, |s, d| {
                let ends = (Place::Gpu(s), Place::Gpu(d));
                self.find(Shape::OneWay, (executor, way), kind, ends)
            })?;
        }
        for (executor, way, words) in both_ways {
            let title = format!("Both directions at once, sum in GB/s, {bytes}: {words}");
            self.table(page, &title, |s, d| {
                let ends = (Place::Gpu(s.min(d)), Place::Gpu(s.max(d)));
                self.find(Shape::BothDirections, (executor, way), kind, ends)
            })?;
        }
        Ok(())
    }

    fn latency(&self, page: &mut Page<'_>) -> io::Result<()> {
        let kind = Streams::NonBlocking;
        let small = self.traffic.iter().find(|c| c.shape == Shape::SmallCopies);
        let bytes = small.map_or(0, |case| case.bytes);
        let hosts: Vec<String> = self
            .gpus
            .iter()
            .filter_map(|gpu| {
                let place = Place::Gpu(*gpu);
                let of = |way, ends| {
                    let case = self.find(Shape::SmallCopies, (Executor::CopyEngine, way), kind, ends);
                    case.and_then(|case| median(&case.whole)).map(number)
                };
                let down = of(Way::Pull, (Place::Host, place))?;
                let up = of(Way::Push, (place, Place::Host))?;
                Some(format!("GPU{gpu} {down} / {up}"))
            })
            .collect();
        self.table(
            page,
            &format!("Copies of {bytes} B one after the other, us each: copy engine of the source pushes, launch hidden"),
            |s, d| {
                let ends = (Place::Gpu(s), Place::Gpu(d));
                let of = |executor| self.find(Shape::SmallCopies, (executor, Way::Push), kind, ends);
                of(Executor::CopyEngine).or_else(|| of(Executor::Staged))
            },
        )?;
        if !hosts.is_empty() {
            let text = format!("from the host / to the host, us: {}", hosts.join(", "));
            page.hanging(2, Tone::Plain, &text)?;
        }
        let both = self
            .traffic
            .iter()
            .filter(|c| c.shape == Shape::FlagRoundTrip)
            .any(|c| c.flows.first().and_then(|f| f.pair()).is_some_and(|p| p.source > p.destination));
        self.table(
            page,
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
    fn curve(&self, page: &mut Page<'_>) -> io::Result<()> {
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
            return Ok(());
        }
        page.heading("By size of a copy, GB/s; one pair of each kind of path")?;
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
        matrix.write(page).map(|_| ())
    }

    /// Name of a row about a shape: groups and kinds of flows apart.
    fn label(case: &Traffic) -> String {
        let between = match (case.shape, case.flows.first().and_then(|f| f.pair())) {
            (Shape::AllGather, _) => format!(" per receiver, G={}", case.gpus().len()),
            (Shape::BothDirections, None) => ", host and GPU".to_string(),
            (Shape::BothDirections, Some(_)) => ", two GPUs".to_string(),
            _ => String::new(),
        };
        format!("{}{between}", case.shape.words())
    }

    /// Concurrent cases by row, in their order.
    fn concurrent(&self) -> Vec<(String, Executor, Vec<&'a Traffic>)> {
        let mut rows: Vec<(String, Executor, Vec<&Traffic>)> = Vec::new();
        for case in self.traffic.iter().filter(|c| c.shape.is_concurrent()) {
            let label = Self::label(case);
            let way = if case.way == Way::Pull { " pull" } else { "" };
            let label = format!("{label}{way}");
            match rows
                .iter_mut()
                .find(|(known, executor, _)| *known == label && *executor == case.executor)
            {
                Some((_, _, cases)) => cases.push(case),
                None => rows.push((label, case.executor, vec![case])),
            }
        }
        rows
    }

    fn streams(&self, page: &mut Page<'_>) -> io::Result<()> {
        let mut rows = Vec::new();
        let mut told: Option<(f64, f64)> = None;
        for (label, executor, cases) in self.concurrent() {
            let of = |kind: Streams| {
                let medians = cases.iter().filter(|c| c.streams == kind);
                let medians: Vec<f64> = medians.filter_map(|c| median(&c.whole)).collect();
                median(&medians)
            };
            let (Some(free), null) = (of(Streams::NonBlocking), of(Streams::LegacyNull)) else {
                continue;
            };
            let Some(null) = null else {
                continue;
            };
            if label == "both directions, two GPUs" && executor != Executor::Multiprocessors {
                told = Some((free, null));
            }
            let value = |value: Option<f64>, tone| match value {
                Some(value) => Cell::Value {
                    text: number(value),
                    code: None,
                    tone,
                },
                None => Cell::Missing,
            };
            let lost = (1.0 - null / free) * 100.0;
            let tone = if lost > 10.0 { Tone::Doubt } else { Tone::Plain };
            rows.push((
                label,
                vec![
                    value(Some(free), Tone::Plain),
                    value(of(Streams::PerThread), Tone::Plain),
                    value(Some(null), Tone::Plain),
                    Cell::Value {
                        text: format!("{lost:.0}%"),
                        code: None,
                        tone,
                    },
                ],
            ));
        }
        if rows.is_empty() {
            return Ok(());
        }
        page.heading("The stream question: the same flows on three kinds of streams, GB/s of all flows together")?;
        let matrix = Matrix {
            corner: "at once".to_string(),
            columns: ["non-blocking", "per-thread", "legacy null", "null loses"]
                .map(str::to_string)
                .to_vec(),
            rows,
            even: false,
            diagonal: "-",
        };
        matrix.write(page)?;
        let Some((free, null)) = told else {
            return Ok(());
        };
        let text = format!(
            "A framework that copies on the legacy null stream gets {} of {} GB/s in both directions between two GPUs here: it loses \
             {:.0}%. Published for 8 GPUs on PCIe 5: {} of {} GB/s.",
            number(null),
            number(free),
            (1.0 - null / free) * 100.0,
            PUBLISHED.0,
            PUBLISHED.1
        );
        page.hanging(2, Tone::Plain, &text)
    }

    fn shapes(&self, page: &mut Page<'_>) -> io::Result<()> {
        let mut rows = Vec::new();
        let mut worst: Option<(&Traffic, f64)> = None;
        for (label, executor, cases) in self.concurrent() {
            let free: Vec<&Traffic> = cases
                .into_iter()
                .filter(|c| c.streams == Streams::NonBlocking)
                .collect();
            let measured = |case: &&Traffic| Some((median(&case.whole)?, case.promised));
            let all: Vec<(f64, Option<f64>)> = free.iter().filter_map(measured).collect();
            let rates: Vec<f64> = all.iter().map(|(rate, _)| *rate).collect();
            let promises: Vec<f64> = all.iter().filter_map(|(_, promise)| *promise).collect();
            let Some(rate) = median(&rates) else {
                continue;
            };
            let kept = |case: &&Traffic| Some(median(&case.whole)? / case.promised?);
            let least = free
                .iter()
                .filter_map(|case| Some((*case, kept(case)?)))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((case, share)) = least
                && worst.is_none_or(|(_, before)| share < before)
            {
                worst = Some((case, share));
            }
            let who = match executor {
                Executor::CopyEngine => "CE",
                Executor::Multiprocessors => "SM",
                Executor::Staged => "staged",
            };
            let text = |text: Option<String>| match text {
                Some(text) => Cell::Value {
                    text,
                    code: None,
                    tone: Tone::Plain,
                },
                None => Cell::Missing,
            };
            let shares: Vec<f64> = free.iter().filter_map(kept).collect();
            rows.push((
                label,
                vec![
                    text(Some(who.to_string())),
                    text(Some(free.len().to_string())),
                    text(Some(number(rate))),
                    text(median(&promises).map(number)),
                    text(median(&shares).map(|share| format!("{:.0}%", share * 100.0))),
                    text(least.map(|(case, share)| {
                        format!("{:.0}% {}", share * 100.0, cut(&case.subject(), 14))
                    })),
                ],
            ));
        }
        // Without single flows there is no promise, and the rates stand above.
        if !self.traffic.iter().any(|case| case.promised.is_some()) {
            return Ok(());
        }
        page.heading("At once, against what single flows promised with each link of a GPU counted once: GB/s of all flows, median over the cases")?;
        let matrix = Matrix {
            corner: "at once".to_string(),
            columns: ["by", "cases", "GB/s", "promised", "kept", "least kept"]
                .map(str::to_string)
                .to_vec(),
            rows,
            even: false,
            diagonal: "-",
        };
        matrix.write(page)?;
        if let Some((case, share)) = worst.filter(|(_, share)| *share < 0.9) {
            let text = format!(
                "Most is lost by {} ({}): {:.0}% of what its single flows promised. What is missing was lost between the GPUs' own \
                 links: uplinks of switches, root complex, sockets.",
                Self::label(case),
                case.subject(),
                share * 100.0
            );
            page.hanging(2, Tone::Doubt, &text)?;
        }
        Ok(())
    }

    fn expectations(&self, page: &mut Page<'_>) -> io::Result<()> {
        let judged: Vec<(&Traffic, &Expectation)> = self
            .traffic
            .iter()
            .filter_map(|case| Some((case, case.expected.as_ref()?)))
            .collect();
        if judged.is_empty() {
            return Ok(());
        }
        page.heading("Against the links: ! below the usual, !! far below, ^ above what the link can carry")?;
        let mut kinds: Vec<(String, usize)> = Vec::new();
        for (case, e) in &judged {
            // The link without the number of its GPU.
            let link = e.link.split(" of GPU").next().unwrap_or(&e.link);
            let text = format!(
                "{}, {} by {}: usual {}, warning below {}, failure below {}, at most {} GB/s ({})",
                link,
                case.shape.words(),
                case.executor.words(),
                number(e.typical),
                number(e.warn_below),
                number(e.fail_below),
                number(e.ceiling),
                e.class
            );
            match kinds.iter_mut().find(|(known, _)| *known == text) {
                Some((_, n)) => *n += 1,
                None => kinds.push((text, 1)),
            }
        }
        for (text, n) in kinds {
            page.hanging(2, Tone::Plain, &format!("{}: {text}", count(n, "case")))?;
        }
        let off: Vec<&(&Traffic, &Expectation)> =
            judged.iter().filter(|(_, e)| e.band != Band::Usual).collect();
        for (case, e) in off.iter().take(LISTED) {
            let rate = median(&case.whole).map_or("n/a".to_string(), number);
            let text = format!(
                "{} {} {} by {}: {rate} GB/s, usual {} ({})",
                mark(Some(e)),
                case.subject(),
                case.way.name(),
                case.executor.words(),
                number(e.typical),
                e.link
            );
            page.hanging(2, tone(Some(e)), &text)?;
        }
        if off.len() > LISTED {
            page.text(2, Tone::Faint, &format!("and {} more", off.len() - LISTED))?;
        }
        Ok(())
    }

    /// What has no numbers, by reason.
    fn gaps(&self, page: &mut Page<'_>) -> io::Result<()> {
        use crate::model::case::Outcome;
        let mut reasons: Vec<(Tone, String, usize)> = Vec::new();
        for case in self.traffic {
            let (tone, text) = match &case.outcome {
                Outcome::Intact => continue,
                Outcome::NotRun { reason } => (Tone::Doubt, format!("not run: {reason}")),
                Outcome::NotApplicable { reason } => {
                    (Tone::Faint, format!("not applicable: {reason}"))
                }
                Outcome::Refused { api, code, name } => {
                    (Tone::Doubt, format!("refused: {api} answered {code} ({name})"))
                }
                Outcome::Corrupt(corruption) => (
                    Tone::Bad,
                    format!("{} {}: {}", case.subject(), corruption.kind, corruption.detail),
                ),
                other => (
                    Tone::Bad,
                    format!("{} {}: {}", case.subject(), case.shape.words(), other.word()),
                ),
            };
            match reasons.iter_mut().find(|(_, known, _)| *known == text) {
                Some((_, _, n)) => *n += 1,
                None => reasons.push((tone, text, 1)),
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        page.heading("Without numbers")?;
        for (tone, text, n) in reasons.iter().take(LISTED) {
            page.hanging(2, *tone, &format!("{}: {text}", count(*n, "case")))?;
        }
        if reasons.len() > LISTED {
            let more = format!("and {} more reasons", reasons.len() - LISTED);
            page.text(2, Tone::Faint, &more)?;
        }
        Ok(())
    }

    fn caveats(&self, page: &mut Page<'_>) -> io::Result<()> {
        let mut kinds: Vec<(&'static str, usize, String)> = Vec::new();
        for case in self.traffic {
            for caveat in &case.caveats {
                let (kind, detail) = doubt(caveat);
                match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                    Some((_, n, _)) => *n += 1,
                    None => kinds.push((kind, 1, format!("{} {}: {detail}", case.subject(), case.shape.words()))),
                }
            }
        }
        if kinds.is_empty() {
            return Ok(());
        }
        page.heading("Doubts")?;
        for (kind, n, first) in kinds {
            let text = format!("{kind}: {}, first {first}", count(n, "case"));
            page.hanging(2, Tone::Doubt, &text)?;
        }
        Ok(())
    }
}

/// Kind of a doubt, and its particulars.
fn doubt(caveat: &Caveat) -> (&'static str, String) {
    match caveat {
        Caveat::ClockChanged {
            gpu,
            before_mhz,
            after_mhz,
        } => (
            "clock changed",
            format!("GPU{gpu} {before_mhz} MHz before, {after_mhz} after"),
        ),
        Caveat::LinkChanged { gpu, before, after } => (
            "link changed",
            format!("GPU{gpu} {before} before, {after} after"),
        ),
        Caveat::LinkUnread { gpu } => (
            "link not read under load",
            format!("GPU{gpu}: nothing is expected of its link"),
        ),
        Caveat::OtherProcesses { gpu, processes } => (
            "other processes",
            format!("{} on GPU{gpu}", count(*processes as usize, "process")),
        ),
        Caveat::FewSamples { samples } => ("few samples", samples.to_string()),
        Caveat::WideSpread { percent } => {
            ("wide spread", format!("{percent:.0}% of the median"))
        }
        Caveat::Outliers { samples, first } => (
            "outliers",
            format!("{samples}{}", if *first { ", the first one among them" } else { "" }),
        ),
        Caveat::GateExpired { samples } => (
            "gate opened by itself",
            format!("{} dropped", count(*samples as usize, "sample")),
        ),
        Caveat::HostIncluded => (
            "time of the host included",
            "the driver needs the host to carry it".to_string(),
        ),
    }
}

fn compared(comparison: &Comparison, page: &mut Page<'_>) -> io::Result<()> {
    page.heading(&format!("Beside {}", comparison.tool))?;
    page.hanging(2, Tone::Faint, &comparison.their_method)?;
    page.hanging(2, Tone::Faint, &comparison.our_method)?;
    let mut tests: Vec<(&str, Vec<&crate::model::traffic::ComparedCell>)> = Vec::new();
    for cell in &comparison.cells {
        match tests.iter_mut().find(|(name, _)| *name == cell.testcase) {
            Some((_, cells)) => cells.push(cell),
            None => tests.push((&cell.testcase, vec![cell])),
        }
    }
    if tests.is_empty() {
        page.text(2, Tone::Doubt, "no number of its is one of ours")?;
    }
    for (name, cells) in tests {
        let percents: Vec<f64> = cells.iter().map(|cell| cell.percent).collect();
        let middle = median(&percents).unwrap_or(0.0);
        let far = cells.iter().max_by(|a, b| a.percent.abs().total_cmp(&b.percent.abs()));
        let far = far.map_or(String::new(), |cell| {
            format!(
                "; farthest {}: theirs {}, ours {} ({:+.1}%)",
                cell.subject,
                number(cell.theirs),
                number(cell.ours),
                cell.percent
            )
        });
        let text = format!(
            "{}: {}, ours {middle:+.1}% in the median{far}",
            cut(name, 50),
            count(cells.len(), "cell")
        );
        page.hanging(2, Tone::Plain, &text)?;
    }
    for line in &comparison.left_out {
        page.hanging(2, Tone::Faint, line)?;
    }
    Ok(())
}
