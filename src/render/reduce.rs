//! All-reduces as tables: a row is a size, a column an algorithm; microseconds a call, and for large sizes what the links
//! carried. Who is fastest stands beside the sizes, and what did not run says why below.

use super::{
    outcomes::{decimals, particulars},
    page::{Options, Page, Tone, banner, count, cut, pad, size},
};
use crate::{
    model::{
        case::Outcome,
        crossover::{Crossover, Fastest},
        reduction::{Arrangement, Dtype, Launch, Reduction},
        report::Report,
    },
    stats::{mad, median},
};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// From this size on bandwidth tells more than latency, bytes.
const LARGE: u64 = 1 << 20;

/// What one table is about: everything but algorithm and size.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Table {
    arrangement: Arrangement,
    gpus: Vec<u32>,
    dtype: Dtype,
    launch: Launch,
    in_place: bool,
}

impl Table {
    fn of(row: &Reduction) -> Table {
        Table {
            arrangement: row.arrangement,
            gpus: row.gpus.clone(),
            dtype: row.dtype,
            launch: row.launch,
            in_place: row.in_place,
        }
    }

    fn is_of(&self, crossover: &Crossover) -> bool {
        crossover.gpus == self.gpus
            && crossover.arrangement == self.arrangement
            && crossover.dtype == self.dtype
            && crossover.launch == self.launch
            && crossover.in_place == self.in_place
    }

    fn title(&self) -> String {
        let mut gpus: Vec<String> = self.gpus.iter().map(u32::to_string).collect();
        gpus.dedup();
        let ranks = self.gpus.len();
        format!(
            "{ranks} ranks on GPU{} {}, {}; {}, {}, {}",
            if gpus.len() == 1 { "" } else { "s" },
            gpus.join(" "),
            self.arrangement.words(),
            self.dtype,
            match self.launch {
                Launch::Graph => "replayed as a graph",
                Launch::Eager => "launched call by call",
            },
            if self.in_place {
                "in place"
            } else {
                "out of place"
            }
        )
    }
}

fn is_nccl(row: &Reduction) -> bool {
    row.algorithm == "nccl" || row.algorithm.starts_with("nccl-")
}

/// Writes the all-reduces of `report` with who is fastest where, what must be known to read them, and how the command ends.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    if let Some((word, meaning)) = banner(report.authenticity) {
        page.labelled(
            Tone::Bad,
            &format!("{word}: "),
            Tone::Strong,
            &format!("{meaning} Times are modelled, and mean little where kernels wait."),
        )?;
    }
    tables(&report.reductions, &report.crossovers, page)?;
    for remark in report.coverage.left_out.iter().chain(&report.notes) {
        page.labelled(Tone::Doubt, "  ! ", Tone::Plain, remark)?;
    }
    page.blank()?;
    super::terminal::verdict(report, page)
}

/// Every table, then what is wrong and what did not run.
pub(super) fn tables(
    rows: &[Reduction],
    crossovers: &[Crossover],
    page: &mut Page<'_>,
) -> io::Result<()> {
    let mut all: BTreeMap<Table, Vec<&Reduction>> = BTreeMap::new();
    for row in rows {
        all.entry(Table::of(row)).or_default().push(row);
    }
    for (table, rows) in &all {
        page.heading(&table.title())?;
        times(rows, page)?;
        bandwidths(rows, page)?;
        if let Some(crossover) = crossovers.iter().find(|c| table.is_of(c)) {
            fastest(crossover, rows, page)?;
        }
    }
    wrong(rows, page)?;
    legend(rows, page)
}

/// Algorithms in the order in which they came.
fn algorithms<'r>(rows: &[&'r Reduction]) -> Vec<&'r str> {
    let mut all: Vec<&str> = Vec::new();
    for row in rows {
        if !all.contains(&row.algorithm.as_str()) {
            all.push(&row.algorithm);
        }
    }
    all
}

fn sizes(rows: &[&Reduction]) -> Vec<u64> {
    let mut all: Vec<u64> = rows.iter().map(|row| row.bytes).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn find<'r>(rows: &[&'r Reduction], algorithm: &str, bytes: u64) -> Option<&'r Reduction> {
    let same = |row: &&&Reduction| row.algorithm == algorithm && row.bytes == bytes;
    rows.iter().find(same).copied()
}

/// Microseconds of a row that was right and timed.
fn time(row: &Reduction) -> Option<f64> {
    let time = row.time.as_ref().filter(|_| row.outcome.is_intact())?;
    median(&time.samples)
}

/// One cell: median and deviation, or in a word what became of it.
fn cell(row: Option<&Reduction>) -> (Tone, String) {
    let Some(row) = row else {
        return (Tone::Faint, "-".to_string());
    };
    match (&row.outcome, &row.time) {
        (Outcome::Intact, Some(time)) => match (median(&time.samples), mad(&time.samples)) {
            (Some(middle), Some(off)) => {
                let text = format!("{} ± {}", decimals(middle, middle), decimals(off, middle));
                (Tone::Plain, text)
            }
            _ => (Tone::Doubt, "no time".to_string()),
        },
        (Outcome::Intact, None) => (Tone::Good, "exact".to_string()),
        (outcome, _) if outcome.is_failure() => (Tone::Bad, outcome.word().to_string()),
        (outcome, _) => (Tone::Doubt, outcome.word().to_string()),
    }
}

/// Microseconds a call.
fn times(rows: &[&Reduction], page: &mut Page<'_>) -> io::Result<()> {
    let columns = algorithms(rows);
    let cells = |bytes: u64| -> Vec<(Tone, String)> {
        let row = columns.iter().map(|a| cell(find(rows, a, bytes)));
        row.collect()
    };
    let timed = rows.iter().any(|row| row.time.is_some());
    let corner = if timed { "us a call" } else { "judged" };
    grid(corner, &columns, sizes(rows), cells, page)
}

/// GB/s by algorithm, and what each link carried of it.
fn bandwidths(rows: &[&Reduction], page: &mut Page<'_>) -> io::Result<()> {
    let large: Vec<u64> = sizes(rows)
        .into_iter()
        .filter(|bytes| *bytes >= LARGE)
        .filter(|bytes| {
            rows.iter()
                .any(|row| row.bytes == *bytes && time(row).is_some())
        })
        .collect();
    if large.is_empty() {
        return Ok(());
    }
    let columns = algorithms(rows);
    let cells = |bytes: u64| -> Vec<(Tone, String)> {
        let row = columns.iter().map(|algorithm| {
            let row = find(rows, algorithm, bytes);
            match row.and_then(|row| Some((row.ranks(), time(row)?))) {
                Some((ranks, us)) => {
                    let alg = bytes as f64 / us / 1e3;
                    let n = f64::from(ranks);
                    let bus = alg * 2.0 * (n - 1.0) / n;
                    let text = format!("{} / {}", decimals(alg, alg), decimals(bus, bus));
                    (Tone::Plain, text)
                }
                None => (Tone::Faint, "-".to_string()),
            }
        });
        row.collect()
    };
    grid("GB/s algbw / busbw", &columns, large, cells, page)
}

/// A table with sizes as rows; broken into blocks of columns where the page is narrow.
fn grid(
    corner: &str,
    columns: &[&str],
    sizes: Vec<u64>,
    cells: impl Fn(u64) -> Vec<(Tone, String)>,
    page: &mut Page<'_>,
) -> io::Result<()> {
    let length = |text: &str| text.chars().count();
    let rows: Vec<(String, Vec<(Tone, String)>)> = sizes
        .into_iter()
        .map(|bytes| (size(bytes), cells(bytes)))
        .collect();
    let label = rows.iter().map(|(name, _)| length(name)).max();
    let label = label.unwrap_or(0).max(length(corner));
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let cells = rows.iter().filter_map(|(_, cells)| cells.get(at));
            let widest = cells.map(|(_, text)| length(text)).max().unwrap_or(0);
            widest.max(length(name))
        })
        .collect();
    let mut from = 0;
    while from < columns.len() {
        let (mut to, mut used) = (from, 2 + label);
        while let Some(width) = widths.get(to) {
            if to > from && used + 2 + width > page.width() {
                break;
            }
            used += 2 + width;
            to += 1;
        }
        let mut head = format!("  {}", pad(corner, label));
        for (name, width) in columns.iter().zip(&widths).take(to).skip(from) {
            head.push_str("  ");
            head.push_str(&pad(name, *width));
        }
        page.line(&[(Tone::Faint, head.trim_end())])?;
        for (name, cells) in &rows {
            let mut parts = vec![(Tone::Plain, format!("  {}", pad(name, label)))];
            for ((tone, text), width) in cells.iter().zip(&widths).take(to).skip(from) {
                parts.push((Tone::Plain, "  ".to_string()));
                parts.push((*tone, pad(text, *width)));
            }
            if let Some((_, last)) = parts.last_mut() {
                last.truncate(last.trim_end().len());
            }
            let borrowed: Vec<(Tone, &str)> = parts.iter().map(|(t, s)| (*t, s.as_str())).collect();
            page.line(&borrowed)?;
        }
        from = to;
    }
    Ok(())
}

/// Who is fastest up to which size, how that stands to NCCL, and what follows.
fn fastest(crossover: &Crossover, rows: &[&Reduction], page: &mut Page<'_>) -> io::Result<()> {
    // Nobody is fastest where only one ran.
    if algorithms(rows).len() > 1
        && let Some(first) = crossover.sizes.first()
    {
        let start = crossover
            .changes
            .first()
            .map_or(&first.algorithm, |c| &c.from);
        let mut words = vec![match crossover.changes.first() {
            Some(change) => format!("{start} up to {}", size(change.last_bytes)),
            None => format!("{start} at every size"),
        }];
        let changes = crossover.changes.iter();
        words.extend(changes.map(|c| format!("{} from {} on", c.to, size(c.first_bytes))));
        let text = format!("{} (of what was measured and proven)", words.join(", "));
        page.labelled(Tone::Good, "  fastest  ", Tone::Plain, &text)?;
        let ratio = |f: &Fastest| {
            let times = f
                .against_nccl
                .filter(|_| !f.algorithm.starts_with("nccl"))?;
            Some(format!("{times:.1} at {}", size(f.bytes)))
        };
        let ratios: Vec<String> = crossover.sizes.iter().filter_map(ratio).collect();
        if !ratios.is_empty() {
            let text = format!("NCCL takes so many times as long: {}", ratios.join(", "));
            page.labelled(Tone::Plain, "           ", Tone::Plain, &text)?;
        }
    }
    for doubt in &crossover.doubts {
        page.labelled(Tone::Doubt, "  doubt    ", Tone::Plain, doubt)?;
    }
    for advice in &crossover.advice {
        page.labelled(Tone::Strong, "  advice   ", Tone::Plain, advice)?;
    }
    Ok(())
}

/// Failures one by one; what did not run, by reason.
fn wrong(rows: &[Reduction], page: &mut Page<'_>) -> io::Result<()> {
    let mut failed = rows
        .iter()
        .filter(|row| row.outcome.is_failure())
        .peekable();
    if failed.peek().is_some() {
        page.blank()?;
    }
    for row in failed {
        let what = particulars(&row.outcome).unwrap_or_default();
        let text = format!("{} {}: {what}", row.algorithm, size(row.bytes));
        page.labelled(Tone::Bad, "  wrong  ", Tone::Plain, &text)?;
        for note in &row.notes {
            page.text(9, Tone::Faint, note)?;
        }
    }
    let mut reasons: BTreeMap<String, Vec<&Reduction>> = BTreeMap::new();
    for row in rows {
        let reason = match &row.outcome {
            Outcome::NotRun { reason } | Outcome::NotApplicable { reason } => reason.clone(),
            Outcome::Refused { api, code, name } => format!("{api} answered {code} {name}"),
            _ => continue,
        };
        reasons.entry(reason).or_default().push(row);
    }
    for (reason, rows) in &reasons {
        let names = algorithms(rows).join(", ");
        let text = format!(
            "{} ({}): {}",
            cut(&names, 80),
            count(rows.len(), "row"),
            reason
        );
        page.labelled(Tone::Doubt, "  not run  ", Tone::Plain, &text)?;
    }
    Ok(())
}

/// How the numbers came about, each way once.
fn legend(rows: &[Reduction], page: &mut Page<'_>) -> io::Result<()> {
    let mut methods: Vec<String> = Vec::new();
    let mut say = |text: String| {
        if !methods.contains(&text) {
            methods.push(text);
        }
    };
    for row in rows {
        if let Some(time) = &row.time {
            let (mut head, tail) = (time.method.clone(), time.samples.len());
            head = strip_count(&head);
            say(format!("{tail} samples; {head}"));
        }
        if let (true, Some(transport)) = (is_nccl(row), &row.transport) {
            say(format!("{} went by {transport}", row.algorithm));
        }
    }
    let mut doubts: BTreeMap<&str, Vec<&Reduction>> = BTreeMap::new();
    for row in rows {
        for caveat in row.time.iter().flat_map(|time| &time.caveats) {
            doubts.entry(caveat).or_default().push(row);
        }
    }
    for (caveat, rows) in doubts {
        say(match rows[..] {
            [row] => format!(
                "doubt: {} {}, {}, {}: {caveat}",
                row.algorithm,
                size(row.bytes),
                row.arrangement.words(),
                row.launch.name()
            ),
            _ => format!(
                "doubt: {} of {}: {caveat}",
                count(rows.len(), "row"),
                algorithms(&rows).join(", ")
            ),
        });
    }
    let mut label = "  measured  ";
    for method in methods {
        page.labelled(Tone::Faint, label, Tone::Faint, &method)?;
        label = "            ";
    }
    let judged: u64 = rows.iter().map(|row| row.calls).sum();
    let text = format!(
        "{judged} calls, every sum of every rank compared to the bit; {} of {} rows exact",
        rows.iter().filter(|row| row.outcome.is_intact()).count(),
        rows.len()
    );
    page.labelled(Tone::Faint, "  judged    ", Tone::Faint, &text)
}

/// "a sample is the mean of 100 calls" and of 64 calls are one method.
fn strip_count(method: &str) -> String {
    let words = method.split(' ');
    let kept: Vec<&str> = words.filter(|word| word.parse::<u64>().is_err()).collect();
    kept.join(" ")
}
