//! What the records say, in tables: the rung each pair reached, each GPU by itself, and each mechanism with its
//! outcomes and rates. Rates come only from flows that were timed alone; a shared round says nothing of a link's rate.

use super::{
    evidence::rung_words,
    matrix::{Cell, Form, Matrix},
    page::{Page, Tone, count, cut, pad, pairs_in_words},
};
use crate::model::{
    case::{Outcome, Record, Rung, Subject, WrongKind},
    ladder::{RungState, Standing},
    measurement::Unit,
    pair::{GpuIndex, OrderedPair},
    report::Report,
    snapshot::Gpu,
};
use crate::stats::{mad, median};
use std::{collections::BTreeMap, io};

/// Pairs of the tested GPUs, row by row.
pub(super) fn tested_pairs(report: &Report) -> Vec<OrderedPair> {
    let tested = &report.tested_gpus;
    tested
        .iter()
        .flat_map(|s| tested.iter().filter_map(|d| OrderedPair::new(*s, *d)))
        .collect()
}

/// Three letters for narrow tables.
pub(super) fn code(word: &str) -> &'static str {
    match word {
        "zeroed" => "zer",
        "ones" => "one",
        "dropped" => "drp",
        "mirrored" => "mir",
        "stale" => "stl",
        "misrouted" => "mis",
        "spilled" => "spl",
        "shifted" => "shf",
        "flipped" => "flp",
        "partial" => "prt",
        "late" => "lat",
        "mixed" => "mix",
        "refused" => "ref",
        "fault" => "flt",
        "hang" => "hng",
        "never" => "nvr",
        "died" => "die",
        _ => "bad",
    }
}

/// What a word in the matrix means to somebody who has not read the manual.
fn meaning(word: &str) -> &'static str {
    match word {
        "zeroed" => "zeros arrived",
        "ones" => "all bits one arrived, as from an aborted read",
        "dropped" => "the write never arrived, the owner's poison is untouched",
        "mirrored" => "the writer reads its data back, the owner does not have it",
        "stale" => "data of an earlier attempt arrived",
        "misrouted" => "data of another pair arrived",
        "spilled" => "data landed outside its target",
        "shifted" => "data landed at another offset",
        "flipped" => "a few bits changed",
        "partial" => "a part is right, the rest is not",
        "late" => "the flag came before the payload that it announces; a reader takes old bytes",
        "mixed" => "several kinds of wrong at once, or data of no known origin",
        "refused" => "the driver said no; nothing is known to be wrong",
        "fault" => "a driver call failed",
        "hang" => "not finished at its deadline",
        "never" => {
            "two kernels waited for each other, and a flag never came; they gave up by themselves"
        }
        "died" => "the worker process died",
        _ => "went wrong",
    }
}

/// Highest rung that any record belongs to.
fn highest_tried(report: &Report) -> Option<Rung> {
    report
        .records
        .iter()
        .filter(|r| r.outcome.ran() && r.case.subject.pair().is_some())
        .map(|r| r.case.rung)
        // Load stands on any rung.
        .filter(|rung| *rung < Rung::Loaded)
        .max()
}

pub(super) fn tone_of(report: &Report, rung: Rung) -> Tone {
    if Some(rung) == highest_tried(report) {
        Tone::Good
    } else {
        Tone::Doubt
    }
}

/// A height that pairs reached, and whether they were right under load besides.
pub(super) type Height = (Rung, bool);

pub(super) fn known_at((rung, loaded): Height) -> String {
    let load = if loaded {
        ", and right under load (rung 7)"
    } else {
        ""
    };
    if rung == Rung::Advertised {
        format!("claims were read (rung 0); no rung above them was tried in full{load}")
    } else {
        format!("bytes proven up to rung {}{load}", rung_words(rung))
    }
}

pub(super) fn height_text((rung, loaded): Height) -> String {
    let number = rung.number().unwrap_or_default();
    if loaded {
        format!("{number}+7")
    } else {
        number.to_string()
    }
}

/// Why a pair that nothing failed on did not come higher.
fn held_back(report: &Report, standing: &Standing<'_>) -> Option<String> {
    if let Some(record) = standing.stopped_by {
        let Outcome::Refused { code, name, .. } = &record.outcome else {
            return None;
        };
        let rung = rung_words(record.case.rung);
        let mechanism = cut(&record.case.mechanism, 24);
        return Some(format!(
            "rung {rung} refused: {mechanism} ({code} {name}); nothing is known to be wrong"
        ));
    }
    let (rung, missing) = standing.open.as_ref()?;
    let words = rung_words(*rung);
    if !missing.is_empty() {
        let list: Vec<String> = missing.iter().map(|m| cut(m, 24)).collect();
        return Some(format!(
            "rung {words} incomplete: {} did not run",
            list.join(", ")
        ));
    }
    let known = report.ladder.iter().any(|step| step.rung == *rung);
    let tested = *rung == Rung::Loaded || known || report.ladder.is_empty();
    (!tested).then(|| format!("rung {words} is not tested by this version"))
}

fn notes(
    notes: &BTreeMap<String, Vec<OrderedPair>>,
    all: usize,
    page: &mut Page<'_>,
) -> io::Result<()> {
    for (note, pairs) in notes {
        let text = if pairs.len() == all {
            note.clone()
        } else {
            format!("{note}: {}", pairs_in_words(pairs, all))
        };
        page.labelled(Tone::Faint, "            ", Tone::Faint, &text)?;
    }
    Ok(())
}

/// What a matrix says of one pair.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seen<'a> {
    /// Something went wrong, or was refused on a rung of one process.
    Stopped(&'a Record),
    /// Nothing did, up to here.
    Reached(Height),
    /// Nothing was tested and nothing is claimed.
    Unknown,
}

/// The climbs of all tested pairs, sorted for matrices and their legends.
#[derive(Default)]
pub(super) struct Climbs<'a> {
    /// One for each tested pair.
    pub(super) seen: BTreeMap<OrderedPair, Seen<'a>>,
    /// What stopped pairs, by its word; the word with most pairs first.
    pub(super) stopped: Vec<(&'static str, Vec<(OrderedPair, &'a Record)>)>,
    /// Pairs that nothing stopped, by height.
    pub(super) reached: BTreeMap<Height, usize>,
    /// Why pairs that nothing failed on did not come higher.
    pub(super) open: BTreeMap<String, Vec<OrderedPair>>,
    /// Pairs of which nothing is known.
    pub(super) unknown: usize,
}

/// The climbs of the pairs of all tested GPUs.
pub(super) fn climbs(report: &Report) -> Climbs<'_> {
    let mut all = Climbs::default();
    let mut stopped: BTreeMap<&'static str, Vec<(OrderedPair, &Record)>> = BTreeMap::new();
    for pair in tested_pairs(report) {
        let standing = report.standing(pair);
        let loaded = matches!(standing.loaded, RungState::Intact);
        // A clean no above the single process takes nothing from what was proven below it.
        let stopped_by = standing
            .stopped_by
            .filter(|r| r.outcome.is_failure() || r.case.rung < Rung::Shared);
        if stopped_by.is_none()
            && let Some(note) = held_back(report, &standing)
        {
            all.open.entry(note).or_default().push(pair);
        }
        let seen = match (stopped_by, standing.reached) {
            (Some(record), _) => {
                let word = record.outcome.word();
                stopped.entry(word).or_default().push((pair, record));
                Seen::Stopped(record)
            }
            (None, Some(rung)) => {
                let height = (rung, loaded && rung < Rung::Loaded);
                *all.reached.entry(height).or_default() += 1;
                Seen::Reached(height)
            }
            (None, None) => {
                all.unknown += 1;
                Seen::Unknown
            }
        };
        all.seen.insert(pair, seen);
    }
    all.stopped = stopped.into_iter().collect();
    all.stopped
        .sort_by_key(|(_, records)| std::cmp::Reverse(records.len()));
    all
}

impl Climbs<'_> {
    /// The height, if every pair reached it and nothing else: a matrix of one number says no more than the number.
    pub(super) fn alike(&self) -> Option<Height> {
        let one = self.reached.len() == 1 && self.stopped.is_empty() && self.unknown == 0;
        self.reached.keys().next().copied().filter(|_| one)
    }
}

/// What stopped these pairs, in words: "zeros arrived. By ce-push at rung 2 (copied): all 56 ordered pairs".
pub(super) fn stopped_text(word: &str, records: &[(OrderedPair, &Record)], all: usize) -> String {
    let mut mechanisms: Vec<String> = Vec::new();
    for (_, record) in records {
        let mut name = format!(
            "{} at rung {}",
            cut(&record.case.mechanism, 24),
            rung_words(record.case.rung)
        );
        if let Some(load) = record.case.load {
            name.push_str(&format!(", {}", load.words()));
        }
        if !mechanisms.contains(&name) {
            mechanisms.push(name);
        }
    }
    let list: Vec<OrderedPair> = records.iter().map(|(p, _)| *p).collect();
    format!(
        "{}. By {}: {}",
        meaning(word),
        mechanisms.join(", "),
        pairs_in_words(&list, all)
    )
}

/// The matrix with the rung that each pair reached, or the word of what went wrong; then what the words mean.
pub(super) fn pair_matrix(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let pairs = tested_pairs(report);
    if pairs.is_empty() {
        return Ok(());
    }
    let climbs = climbs(report);
    if let Some(height) = climbs.alike() {
        page.blank()?;
        let label = if pairs.len() > 2 {
            format!("All {} ordered pairs: ", pairs.len())
        } else {
            format!("{}: ", pairs_in_words(&pairs, 0))
        };
        page.labelled(
            tone_of(report, height.0),
            &label,
            Tone::Plain,
            &known_at(height),
        )?;
        return notes(&climbs.open, pairs.len(), page);
    }
    let mut rows = Vec::new();
    for source in &report.tested_gpus {
        let cell = |destination: &u32| {
            let Some(pair) = OrderedPair::new(*source, *destination) else {
                return Cell::Diagonal;
            };
            match climbs.seen.get(&pair) {
                Some(Seen::Stopped(record)) => {
                    let word = record.outcome.word();
                    Cell::Value {
                        text: word.to_string(),
                        code: Some(code(word)),
                        number: None,
                        tone: if record.outcome.is_failure() {
                            Tone::Bad
                        } else {
                            Tone::Doubt
                        },
                    }
                }
                Some(Seen::Reached(height)) => Cell::Value {
                    text: height_text(*height),
                    code: None,
                    number: None,
                    tone: tone_of(report, height.0),
                },
                Some(Seen::Unknown) | None => Cell::Missing,
            }
        };
        let cells = report.tested_gpus.iter().map(cell).collect();
        rows.push((format!("GPU{source}"), cells));
    }
    page.heading("Pairs: rung reached or what went wrong; row = source, column = destination")?;
    let form = Matrix {
        corner: "src\\dst".to_string(),
        columns: report.tested_gpus.iter().map(u32::to_string).collect(),
        rows,
        even: true,
        diagonal: "-",
    }
    .write(page)?;

    for (height, number) in climbs.reached.iter().rev() {
        page.labelled(
            Tone::Faint,
            &format!("  {:<9} ", height_text(*height)),
            Tone::Faint,
            &format!("{}: {}", known_at(*height), count(*number, "pair")),
        )?;
    }
    // Said of all pairs that have a number, it needs no list.
    notes(&climbs.open, climbs.reached.values().sum(), page)?;
    for (word, records) in &climbs.stopped {
        let shown = match form {
            Form::Codes => code(word),
            Form::Words => word,
        };
        let spelled = match form {
            Form::Codes => format!("{word}: "),
            Form::Words => String::new(),
        };
        let failed = records.iter().any(|(_, r)| r.outcome.is_failure());
        page.labelled(
            if failed { Tone::Bad } else { Tone::Doubt },
            &format!("  {shown:<9} "),
            Tone::Plain,
            &format!("{spelled}{}", stopped_text(word, records, pairs.len())),
        )?;
    }
    if climbs.unknown > 0 {
        page.labelled(
            Tone::Doubt,
            "  n/a       ",
            Tone::Plain,
            &format!(
                "nothing tested, nothing claimed: {}",
                count(climbs.unknown, "pair")
            ),
        )?;
    }
    Ok(())
}

/// Median and median absolute deviation of samples, as text: "52.1 ± 0.3".
pub(super) fn spread(samples: &[f64]) -> String {
    let Some(middle) = median(samples) else {
        return "n/a".to_string();
    };
    match mad(samples).filter(|_| samples.len() > 1) {
        None => format!("{} (one sample)", decimals(middle, middle)),
        Some(off) => format!("{} ± {}", decimals(middle, middle), decimals(off, middle)),
    }
}

pub(super) fn decimals(value: f64, scale: f64) -> String {
    if scale.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if scale.abs() >= 1.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

/// Rate of flows timed alone, and which flow was slowest where there are several.
fn rates(records: &[&Record]) -> (String, String) {
    let timed: Vec<(Subject, &[f64], Unit)> = records
        .iter()
        .filter(|r| r.alone && r.case.load.is_none() && r.outcome.is_intact())
        .filter_map(|r| {
            let rate = r.rate.as_ref()?;
            Some((r.case.subject, rate.samples.as_slice(), rate.unit))
        })
        .filter(|(_, samples, _)| !samples.is_empty())
        .collect();
    let Some((_, _, unit)) = timed.first().copied() else {
        return ("n/a".to_string(), String::new());
    };
    let same: Vec<(Subject, &[f64])> = timed
        .iter()
        .filter(|(_, _, u)| *u == unit)
        .map(|(subject, samples, _)| (*subject, *samples))
        .collect();
    let all: Vec<f64> = same.iter().flat_map(|(_, s)| s.iter().copied()).collect();
    let slowest = same
        .iter()
        .filter_map(|(subject, samples)| Some((subject, median(samples)?)))
        .max_by(|(_, a), (_, b)| match unit {
            Unit::GbPerS => b.total_cmp(a),
            Unit::Us | Unit::Ms => a.total_cmp(b),
        })
        .filter(|_| same.len() > 1)
        .map(|(subject, rate)| format!(", slowest {} ({subject})", decimals(rate, rate)))
        .unwrap_or_default();
    (format!("{} {}", spread(&all), unit.name()), slowest)
}

pub(super) fn outcome_words(records: &[&Record]) -> (Tone, String) {
    let mut words: Vec<(&'static str, usize)> = Vec::new();
    let mut tone = Tone::Good;
    for record in records {
        let word = record.outcome.word();
        match words.iter_mut().find(|(w, _)| *w == word) {
            Some((_, number)) => *number += 1,
            None => words.push((word, 1)),
        }
        if record.outcome.is_failure() {
            tone = Tone::Bad;
        } else if !record.outcome.is_intact() && tone == Tone::Good {
            tone = Tone::Doubt;
        }
    }
    words.sort_by_key(|(word, number)| (*word != "intact", std::cmp::Reverse(*number)));
    let text: Vec<String> = words.iter().map(|(w, n)| format!("{n} {w}")).collect();
    (tone, text.join(", "))
}

/// A row of the mechanism table.
pub(super) struct Row {
    pub(super) mechanism: String,
    pub(super) rung: String,
    pub(super) tone: Tone,
    pub(super) outcomes: String,
    pub(super) rate: String,
    /// ", slowest 12.3 (0->1)", or nothing.
    pub(super) slowest: String,
}

/// Mechanisms in the order of their rungs.
pub(super) fn mechanism_table(records: &[&Record]) -> Vec<Row> {
    let mut groups: Vec<((Rung, &str), Vec<&Record>)> = Vec::new();
    // What ran under load has a table of its own.
    for record in records.iter().filter(|r| r.case.rung < Rung::Loaded) {
        let key = (record.case.rung, record.case.mechanism.as_str());
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, group)) => group.push(record),
            None => groups.push((key, vec![record])),
        }
    }
    groups.sort_by_key(|((rung, _), _)| *rung);
    let row = |((rung, mechanism), group): &((Rung, &str), Vec<&Record>)| {
        let (tone, outcomes) = outcome_words(group);
        let (rate, slowest) = rates(group);
        Row {
            mechanism: cut(mechanism, 24),
            rung: rung
                .number()
                .map_or_else(|| rung.name().to_string(), |n| n.to_string()),
            tone,
            outcomes,
            rate,
            slowest,
        }
    };
    groups.iter().map(row).collect()
}

fn mechanism_rows(records: &[&Record], page: &mut Page<'_>) -> io::Result<()> {
    let rows = mechanism_table(records);
    let length = |text: &str| text.chars().count();
    let names = rows
        .iter()
        .map(|r| length(&r.mechanism))
        .max()
        .unwrap_or(0)
        .max(9);
    let outcomes = rows
        .iter()
        .map(|r| length(&r.outcomes))
        .max()
        .unwrap_or(0)
        .clamp(5, 40);
    let front = 2 + names + 2 + 5 + 2;
    let whole = |row: &Row, slowest: bool| {
        front
            + outcomes.max(length(&row.outcomes))
            + 2
            + length(&row.rate)
            + if slowest { length(&row.slowest) } else { 0 }
    };
    // On a narrow page the slowest flow is left to the saved report rather than every row broken in two.
    let slowest = rows.iter().all(|r| whole(r, true) <= page.width());
    let head = format!(
        "  {}  rung   {}  timed alone",
        pad("mechanism", names),
        pad("cases", outcomes)
    );
    page.line(&[(Tone::Faint, &head)])?;
    for row in &rows {
        let start = format!("  {}  {:<5}  ", pad(&row.mechanism, names), row.rung);
        if whole(row, slowest) <= page.width() {
            page.line(&[
                (Tone::Plain, &start),
                (row.tone, &pad(&row.outcomes, outcomes)),
                (Tone::Plain, "  "),
                (Tone::Plain, &row.rate),
                (Tone::Plain, if slowest { &row.slowest } else { "" }),
            ])?;
        } else {
            page.labelled(Tone::Plain, &start, row.tone, &row.outcomes)?;
            let rate = format!("{}{}", row.rate, row.slowest);
            page.labelled(Tone::Plain, &" ".repeat(front), Tone::Plain, &rate)?;
        }
    }
    Ok(())
}

/// Kinds of remarks that are shown; the saved report has all of them.
const MOST_DOUBTS: usize = 6;

/// Remarks on records and doubts about their rates with their mechanism, those that say the same together; most said first.
pub(super) fn remark_kinds<'a>(records: &[&'a Record]) -> Vec<((&'a str, &'a str), usize)> {
    let mut kinds: Vec<((&str, &str), usize)> = Vec::new();
    for record in records {
        let shown = record.rate.as_ref().filter(|_| record.alone);
        let caveats = shown.map_or(&[][..], |m| m.caveats.as_slice());
        for text in record.notes.iter().chain(caveats) {
            let key = (record.case.mechanism.as_str(), text.as_str());
            match kinds.iter_mut().find(|(k, _)| *k == key) {
                Some((_, number)) => *number += 1,
                None => kinds.push((key, 1)),
            }
        }
    }
    kinds.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    kinds
}

fn doubts(records: &[&Record], page: &mut Page<'_>) -> io::Result<()> {
    let kinds = remark_kinds(records);
    for ((mechanism, text), number) in kinds.iter().take(MOST_DOUBTS) {
        let text = format!(
            "{}: {} ({})",
            cut(mechanism, 24),
            cut(text, 200),
            count(*number, "case")
        );
        page.labelled(Tone::Doubt, "  ! ", Tone::Plain, &text)?;
    }
    if kinds.len() > MOST_DOUBTS {
        let more = count(kinds.len() - MOST_DOUBTS, "more kind");
        page.text(2, Tone::Faint, &format!("{more} of remark in the report"))?;
    }
    Ok(())
}

fn oddities(gpu: &Gpu) -> Vec<String> {
    let mut odd = Vec::new();
    if let Some(errors) = gpu.ecc_uncorrected.known().filter(|e| **e > 0) {
        odd.push(format!(
            "{errors} uncorrected ECC errors since the driver loaded"
        ));
    }
    if let Some(rows) = gpu.remapped_rows.known() {
        if rows.failed {
            odd.push("a row remapping failed".to_string());
        }
        if rows.pending {
            odd.push("a row remapping waits for a GPU reset".to_string());
        }
    }
    if gpu.mig_enabled.known() == Some(&true) {
        odd.push("MIG is on: its slices have no peer access to each other".to_string());
    }
    odd
}

/// What went wrong on each GPU by itself, and what it says of its own errors; only GPUs of which there is something to say.
pub(super) fn gpu_remarks(report: &Report) -> Vec<(u32, Vec<String>)> {
    let mut all = Vec::new();
    for index in &report.tested_gpus {
        let own = Subject::Gpu(GpuIndex(*index));
        // One reason is said once, with all the tests that it holds for.
        let mut said: Vec<(String, Vec<String>)> = Vec::new();
        for record in report.records.iter().filter(|r| r.case.subject == own) {
            let Some(what) = particulars_of(record) else {
                continue;
            };
            let test = cut(&record.case.mechanism, 24);
            match said.iter_mut().find(|(known, _)| *known == what) {
                Some((_, tests)) => tests.push(test),
                None => said.push((what, vec![test])),
            }
        }
        let mut remarks: Vec<String> = said
            .into_iter()
            .map(|(what, tests)| format!("{}: {what}", tests.join(", ")))
            .collect();
        if let Some(gpu) = report.snapshot.gpu(GpuIndex(*index)) {
            remarks.extend(oddities(gpu));
        }
        if !remarks.is_empty() {
            all.push((*index, remarks));
        }
    }
    all
}

/// Mechanisms with outcomes and rates, each GPU by itself first; then every GPU with something to say, so that its pairs
/// are not blamed for it.
pub(super) fn mechanisms(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let records: Vec<&Record> = report.records.iter().collect();
    if records.is_empty() && report.tested_gpus.is_empty() {
        return Ok(());
    }
    page.heading(if records.iter().any(|r| r.case.subject.pair().is_some()) {
        "Each GPU alone, then pairs by mechanism"
    } else {
        "Each GPU alone"
    })?;
    if !records.iter().any(|r| r.case.rung == Rung::Alone) {
        page.text(2, Tone::Doubt, "no GPU was tested by itself")?;
    }
    if !records.is_empty() {
        mechanism_rows(&records, page)?;
    }
    doubts(&records, page)?;
    for (index, remarks) in gpu_remarks(report) {
        page.labelled(
            Tone::Bad,
            &format!("  GPU{index}  "),
            Tone::Plain,
            &remarks.join("; "),
        )?;
    }
    Ok(())
}

/// What a record says beyond the word of its outcome, if it did not go well.
pub(super) fn particulars_of(record: &Record) -> Option<String> {
    match record.outcome {
        Outcome::TimedOut { after_ms } if record.left_behind() => Some(format!(
            "hang, not finished after {after_ms} ms; its worker could not be killed"
        )),
        _ => particulars(&record.outcome),
    }
}

/// What an outcome says beyond its word, if it did not go well.
pub(super) fn particulars(outcome: &Outcome) -> Option<String> {
    Some(match outcome {
        Outcome::Intact | Outcome::NotApplicable { .. } => return None,
        Outcome::Corrupt(c) if c.kind == WrongKind::Late => format!(
            "late, the flag came before the payload that it announces ({})",
            c.detail
        ),
        Outcome::Corrupt(c) => format!("{}, {}", c.kind, c.detail),
        Outcome::Refused { api, code, name } => format!("refused, {api} answered {code} {name}"),
        Outcome::Faulted { api, code, name } => format!("fault, {api} answered {code} {name}"),
        Outcome::TimedOut { after_ms } => {
            format!("hang, not finished after {after_ms} ms; its worker was killed")
        }
        Outcome::Never {
            round,
            rounds,
            after_ms,
            missing: None,
        } => format!(
            "the flag of round {round} of {rounds} never came; the kernel gave up by itself after {after_ms} ms"
        ),
        Outcome::Never {
            round,
            rounds,
            after_ms,
            missing: Some(missing),
        } => format!(
            "{missing} never came in call {round} of {rounds}; those that waited for it gave up by themselves after {after_ms} ms"
        ),
        Outcome::Died { how } => format!("the worker died, {how}"),
        Outcome::NotRun { reason } => format!("not run, {reason}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_the_median_and_its_absolute_deviation() {
        assert_eq!(spread(&[10.0, 11.0, 12.0, 100.0, 11.0]), "11.0 ± 1.0");
        assert_eq!(spread(&[7.25]), "7.2 (one sample)");
        assert_eq!(spread(&[]), "n/a");
        assert_eq!(spread(&[4000.0, 4010.0]), "4005 ± 5");
    }
}
