//! The saved forms: the report as one JSON document, the journal as JSON lines, and the published schema. A reader takes
//! its own schema version and older ones and refuses newer ones: a field it does not know could change a verdict.

use crate::model::{
    case::{Outcome, Record, Subject},
    pair::OrderedPair,
    reduction::Reduction,
    report::{Report, SCHEMA_VERSION, Selftest},
    snapshot::{Authenticity, CudaClaims, Observation, Snapshot},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    io::{self, Write},
};

/// More GPUs than any host has; tables over pairs grow with the square.
const MOST_GPUS: usize = 256;

/// Why a saved document could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not JSON, or JSON of another shape.
    #[error("not a peerproof report: {0}")]
    Shape(#[from] serde_json::Error),
    /// No schema version: some other tool's JSON.
    #[error("not a peerproof report: it has no schema_version")]
    NoVersion,
    /// Written by a newer peerproof.
    #[error(
        "schema version {found} is newer than this peerproof reads (up to {SCHEMA_VERSION}); use the peerproof that wrote it, or a newer one"
    )]
    Newer {
        /// Version in the file.
        found: u64,
    },
    /// Version 0 or below the oldest that was ever published.
    #[error("schema version {found} was never published (1 to {SCHEMA_VERSION} are)")]
    NeverPublished {
        /// Version in the file.
        found: u64,
    },
    /// Parts of the document contradict each other.
    #[error("the report contradicts itself: {0}")]
    Contradiction(String),
    /// A line of a journal, not the last, is damaged.
    #[error("line {line} of the journal is damaged: {error}")]
    JournalLine {
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// A whole report, written on one line.
    #[error("a whole report, no journal")]
    WholeReport,
    /// The journal holds nothing.
    #[error("the journal is empty")]
    EmptyJournal,
}

/// First line of a journal: what its records need to be understood.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JournalHead {
    /// Version of the shapes below.
    pub schema_version: u32,
    /// peerproof's version.
    pub tool_version: String,
    /// SHA-256 of the embedded kernels, hex.
    pub kernels_sha256: String,
    /// Hardware, simulated or fault-injected.
    pub authenticity: Authenticity,
    /// Start, RFC 3339 UTC.
    pub started_at: String,
    /// Arguments as given.
    pub arguments: Vec<String>,
    /// What was read.
    pub snapshot: Snapshot,
    /// GPUs tested, by snapshot index.
    pub tested_gpus: Vec<u32>,
}

/// What a journal holds beside its records: a line each, of one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// What the observer saw.
    Observation(Observation),
    /// The checker's test of itself.
    Selftest(Selftest),
    /// An all-reduce that was timed.
    Reduction(Reduction),
    /// What CUDA claims of the pairs.
    Claims(Vec<(OrderedPair, CudaClaims)>),
}

/// A journal that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Journal {
    /// Its first line.
    pub head: JournalHead,
    /// Its records, in order.
    pub records: Vec<Record>,
    /// The rest of its lines, in order.
    pub beside: Vec<Beside>,
    /// Whether the last line was torn, as it is after a crash; it is left out.
    pub torn: bool,
}

/// Writes `report` as indented JSON with a line end.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}

/// Writes the first line of a journal.
///
/// # Errors
/// Those of the writer.
pub fn write_journal_head(head: &JournalHead, out: &mut dyn Write) -> io::Result<()> {
    line(head, out)
}

/// Writes one record as a line and flushes it, so that a crash costs at most the line being written.
///
/// # Errors
/// Those of the writer.
pub fn write_journal_record(record: &Record, out: &mut dyn Write) -> io::Result<()> {
    line(record, out)
}

/// Writes something else as a line, in the same manner.
///
/// # Errors
/// Those of the writer.
pub fn write_journal_beside(beside: &Beside, out: &mut dyn Write) -> io::Result<()> {
    line(beside, out)
}

fn line<T: Serialize>(value: &T, out: &mut dyn Write) -> io::Result<()> {
    // One write per line: a torn line can then only be the last.
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    out.write_all(&text)?;
    out.flush()
}

#[derive(Deserialize)]
struct VersionOnly {
    schema_version: Option<u64>,
}

#[derive(Deserialize)]
struct VerdictOnly {
    verdict: Option<serde::de::IgnoredAny>,
}

fn check_version(text: &str) -> Result<(), ReadError> {
    let version: VersionOnly = serde_json::from_str(text)?;
    match version.schema_version {
        None => Err(ReadError::NoVersion),
        Some(found) if found > u64::from(SCHEMA_VERSION) => Err(ReadError::Newer { found }),
        Some(0) => Err(ReadError::NeverPublished { found: 0 }),
        Some(_) => Ok(()),
    }
}

/// Reads a saved report of this schema version or an older one.
///
/// # Errors
/// Text that is no such report, with line and column; a newer version; a report whose parts contradict each other.
pub fn read(text: &str) -> Result<Report, ReadError> {
    check_version(text)?;
    let report: Report = serde_json::from_str(text)?;
    check(&report.snapshot, &report.tested_gpus, &report.records)?;
    let (planned, records) = (report.coverage.planned, report.records.len());
    if records > 0 && planned as usize != records {
        return Err(ReadError::Contradiction(format!(
            "{planned} cases were planned, and it has the records of {records}"
        )));
    }
    if report.took_ms < 0.0 {
        return Err(ReadError::Contradiction(format!(
            "the run took {} ms",
            report.took_ms
        )));
    }
    Ok(report)
}

/// Reads a journal that was left behind. A torn last line is left out and told.
///
/// # Errors
/// As [`read`]; also a damaged line that is not the last.
pub fn read_journal(text: &str) -> Result<Journal, ReadError> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    let (_, first) = lines.next().ok_or(ReadError::EmptyJournal)?;
    check_version(first)?;
    // A report on one line has all that the head of a journal has.
    let whole: VerdictOnly = serde_json::from_str(first)?;
    if whole.verdict.is_some() {
        return Err(ReadError::WholeReport);
    }
    let head: JournalHead = serde_json::from_str(first)?;
    let mut records = Vec::new();
    let mut beside = Vec::new();
    let mut torn = false;
    let mut lines = lines.peekable();
    while let Some((number, line)) = lines.next() {
        // Every record has a case; nothing else begins so.
        let row = match line.starts_with("{\"case\"") {
            true => serde_json::from_str(line).map(|record| records.push(record)),
            false => serde_json::from_str(line).map(|other| beside.push(other)),
        };
        match row {
            Ok(()) => {}
            Err(_) if lines.peek().is_none() && !text.ends_with('\n') => torn = true,
            Err(error) => {
                return Err(ReadError::JournalLine {
                    line: number + 1,
                    error,
                });
            }
        }
    }
    check(&head.snapshot, &head.tested_gpus, &records)?;
    Ok(Journal {
        head,
        records,
        beside,
        torn,
    })
}

/// Whatever a reader would otherwise trust: sizes of tables and positions of GPUs.
fn check(snapshot: &Snapshot, tested: &[u32], records: &[Record]) -> Result<(), ReadError> {
    let gpus = snapshot.gpus.len();
    let wrong = |what: String| Err(ReadError::Contradiction(what));
    for (name, size) in [
        ("claims", snapshot.claims.count()),
        ("topology.pairs", snapshot.topology.pairs.count()),
    ] {
        if size != 0 && size as usize != gpus {
            return wrong(format!(
                "{name} is a table of {size} GPUs, the snapshot has {gpus}"
            ));
        }
    }
    if gpus > MOST_GPUS {
        return wrong(format!("{gpus} GPUs; no host has more than {MOST_GPUS}"));
    }
    let mut seen = BTreeSet::new();
    if let Some(index) = tested.iter().find(|i| !seen.insert(**i)) {
        return wrong(format!("GPU {index} is listed twice as tested"));
    }
    let known = |index: u32| (index as usize) < gpus;
    if let Some(index) = tested.iter().find(|i| !known(**i)) {
        return wrong(format!(
            "GPU {index} was tested, the snapshot has {gpus} GPUs"
        ));
    }
    let mut ids = BTreeSet::new();
    for record in records {
        let id = record.case.id;
        if !ids.insert(id) {
            return wrong(format!("case {id} has two records"));
        }
        let judged = matches!(record.outcome, Outcome::Intact | Outcome::Corrupt(_));
        if judged && record.attempts_ran == 0 {
            return wrong(format!(
                "case {id} is said to be {}, and no attempt of it ran",
                record.outcome.word()
            ));
        }
        let named: Vec<u32> = match record.case.subject {
            Subject::Gpu(gpu) => vec![gpu.0],
            Subject::Pair(pair) if pair.source == pair.destination => {
                return wrong(format!("case {id} pairs GPU {} with itself", pair.source));
            }
            Subject::Pair(pair) => vec![pair.source.0, pair.destination.0],
            Subject::Group(group) => group.gpus().map(|gpu| gpu.0).collect(),
        };
        if let Some(index) = named.iter().find(|i| !known(**i)) {
            return wrong(format!(
                "case {id} is about GPU {index}, the snapshot has {gpus} GPUs"
            ));
        }
        if record.outcome.ran()
            && let Some(index) = named.iter().find(|i| !seen.contains(*i))
        {
            return wrong(format!(
                "case {id} ran on GPU {index}, which is not among the tested ones"
            ));
        }
    }
    Ok(())
}

/// The JSON Schema of a report, as published in `docs/report.schema.json`.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Report).to_value()
}
