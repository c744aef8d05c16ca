//! The matrix: every kind of fault on every mechanism, at the first, a middle and the last part of a transfer, on one
//! direction, one pair and all pairs, several faults a run on disjoint pairs; and healthy hosts with many seeds. What was
//! planted must be found on its pair and mechanism, called by its name, and nothing else may be blamed.
//!
//! The test runs a fixed selection. `PEERPROOF_MATRIX=all` (`./x matrix`) runs every cell and 50 seeds, and prints the figures
//! of `docs/method.md`; the names of healthy scenarios with commas between (`./x matrix NAME...`) run 50 seeds of those alone.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(
    clippy::print_stdout,
    reason = "the figures are what a person runs it for"
)]

mod cells;
#[path = "../simulated/host.rs"]
#[allow(
    dead_code,
    reason = "shared with the simulated tests, which use all of it"
)]
mod host;

use cells::{Cell, Expect, Place, Spread, Touch};
use host::{Host, line};
use peerproof::model::{
    case::{Outcome, Record, Rung, WrongKind},
    pair::OrderedPair,
    report::{Grading, Report},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Cells of the fixed selection.
const FIXED: usize = 200;
/// Eight GPUs behind NVSwitches.
const SCENARIO: &str = "hgx-h200-x8";
/// Transfers below this many bytes are too short to tell all kinds apart: what moves by 32 bytes does not arrive at all.
const TELLING: u64 = 4096;

fn whole() -> bool {
    std::env::var("PEERPROOF_MATRIX").is_ok_and(|value| value == "all")
}

/// What one cell came to.
struct Result {
    name: String,
    /// Failing records of its pairs and mechanism.
    found: bool,
    /// What it was called; `None` = as expected.
    misnamed: Option<String>,
    /// How often the fault struck.
    struck: u64,
}

/// Cells that share a run, with the pairs on which each is planted.
type Batch = Vec<(Cell, Vec<OrderedPair>)>;

fn ordered(a: u32, b: u32) -> OrderedPair {
    OrderedPair::new(a, b).unwrap()
}

/// Packs cells: four that hit one pair each share a run, on disjoint pairs and on mechanisms of their own; a cell that hits all
/// pairs has four GPUs for itself.
fn batches(cells: &[Cell]) -> Vec<Batch> {
    let mut out: Vec<Batch> = Vec::new();
    let mut open: Vec<Batch> = Vec::new();
    // A worker that dies or hangs takes its neighbours' answers along: such cells meet each other only.
    let ends = |cell: &Cell| !matches!(cell.kind.expect, Expect::Wrong(_));
    for cell in cells {
        if cell.spread == Spread::AllPairs {
            // Each hang takes its deadline: two GPUs are all there are then.
            let gpus = if ends(cell) { 2 } else { 4 };
            let all = (0..gpus).flat_map(|a| (0..gpus).filter_map(move |b| OrderedPair::new(a, b)));
            out.push(vec![(*cell, all.collect())]);
            continue;
        }
        let at = open.iter().position(|batch| {
            batch.iter().all(|(other, _)| {
                other.way.family() != cell.way.family() && ends(other) == ends(cell)
            })
        });
        let mut batch = at.map(|at| open.remove(at)).unwrap_or_default();
        let (a, b) = (2 * batch.len() as u32, 2 * batch.len() as u32 + 1);
        let pairs = match cell.spread {
            Spread::OneDirection => vec![ordered(a, b)],
            _ => vec![ordered(a, b), ordered(b, a)],
        };
        batch.push((*cell, pairs));
        if batch.len() == 4 {
            out.push(batch);
        } else {
            open.push(batch);
        }
    }
    out.extend(open);
    out
}

/// Where the longest content case of each mechanism lies in its buffers: offset and bytes, learnt from a healthy run.
type Extents = BTreeMap<String, (u64, u64)>;

fn extents() -> Extents {
    let report = Host::new(SCENARIO).qualify(&["--quick", "--gpus", "0,1"]);
    let mut longest = Extents::new();
    for record in report
        .records
        .iter()
        .filter(|r| !r.case.timed && r.case.load.is_none())
    {
        let (offset, bytes) = (record.case.offset, record.case.bytes);
        let kept = longest
            .entry(record.case.mechanism.clone())
            .or_insert((offset, bytes));
        if bytes > kept.1 {
            *kept = (offset, bytes);
        }
    }
    longest
}

/// Guard band before a target (src/probe/plan).
const GUARD: u64 = 4096;
/// Bytes hit where a fault is confined to a part of the transfer: a few units.
const PART: u64 = 256;

/// The fault of a cell on one ordered pair, as the simulated host reads it.
fn fault(cell: &Cell, pair: OrderedPair, extents: &Extents) -> String {
    let (kind, options) = match cell.kind.fault.split_once(':') {
        Some((kind, options)) => (kind, format!(":{options}")),
        None => (cell.kind.fault, String::new()),
    };
    let part = cell.place.map_or(String::new(), |place| {
        let (offset, bytes) = extents[cell.way.mechanism];
        // A reader is hit where it reads, in the source; all others in the target behind its guard.
        let start = offset
            + if cell.way.touch == Touch::Reads {
                0
            } else {
                GUARD
            };
        let from = match place {
            Place::First => start,
            Place::Middle => start + (bytes / 2).next_multiple_of(16),
            Place::Last => (start + bytes - PART) / 16 * 16,
        };
        let from = from / 16 * 16;
        format!(":from={from}:until={}", from + PART)
    });
    format!(
        "{}>{}:{}={kind}{options}{part}",
        pair.source, pair.destination, cell.way.fault
    )
}

fn run(batch: &Batch, extents: &Extents) -> (Vec<Result>, Vec<String>) {
    let mut host = Host::new(SCENARIO);
    let mut pairs = BTreeSet::new();
    let mut mechanisms = BTreeSet::from(["bounce"]);
    for (cell, hit) in batch {
        for pair in hit {
            host = host.fault(&fault(cell, *pair, extents));
            pairs.insert((
                pair.source.0.min(pair.destination.0),
                pair.source.0.max(pair.destination.0),
            ));
        }
        mechanisms.insert(cell.way.mechanism);
    }
    let join = |list: Vec<String>| list.join(",");
    let gpus: BTreeSet<u32> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let gpus = join(gpus.iter().map(ToString::to_string).collect());
    let pairs = join(pairs.iter().map(|(a, b)| format!("{a}-{b}")).collect());
    let mechanisms = join(mechanisms.iter().map(ToString::to_string).collect());
    let (report, struck) = host.qualify_counting(&[
        "--quick",
        "--gpus",
        &gpus,
        "--pairs",
        &pairs,
        "--mechanism",
        &mechanisms,
    ]);
    let mut results = Vec::new();
    let mut claimed: BTreeSet<u32> = BTreeSet::new();
    for (cell, hit) in batch {
        let mine: Vec<&Record> = report
            .records
            .iter()
            .filter(|record| record.outcome.is_failure())
            .filter(|record| {
                record.case.mechanism == cell.way.mechanism
                    && record
                        .case
                        .subject
                        .pair()
                        .is_some_and(|pair| hit.contains(&pair))
            })
            .collect();
        claimed.extend(mine.iter().map(|record| record.case.id));
        let seen = |pair: &OrderedPair| {
            mine.iter()
                .any(|record| record.case.subject.pair() == Some(*pair))
        };
        // A pair that hung or lost its worker is not tried again in the other direction.
        let every = match cell.kind.expect {
            // An exchange is one for both directions, and the first that is wrong ends it.
            Expect::Wrong(_) if cell.way.touch == Touch::Resident => {
                hit.iter().all(|pair| seen(pair) || seen(&pair.reversed()))
            }
            Expect::Wrong(_) => hit.iter().all(seen),
            _ => hit.iter().any(seen),
        };
        results.push(Result {
            name: cell.name(),
            found: every && report.verdict.grading == Grading::Fail,
            misnamed: misnamed(cell, &mine),
            struck: hit
                .iter()
                .map(|pair| fault(cell, *pair, extents))
                .filter_map(|text| struck.iter().find(|(fault, _)| *fault == text))
                .map(|(_, times)| times)
                .sum(),
        });
    }
    let alarms = report
        .records
        .iter()
        .filter(|record| record.outcome.is_failure() && !claimed.contains(&record.case.id))
        .filter(|record| !follows(record, batch))
        .map(|record| {
            format!(
                "{} beside {}",
                line(record),
                batch
                    .iter()
                    .map(|(c, _)| c.name())
                    .collect::<Vec<_>>()
                    .join(" | ")
            )
        })
        .collect();
    (results, alarms)
}

/// Whether a failure is what a planted one does to the other direction of its pair: words that are sent astray arrive there, and
/// an exchange that one direction breaks is broken for both.
fn follows(record: &Record, batch: &Batch) -> bool {
    batch.iter().any(|(cell, hit)| {
        let astray = cell.kind.expect == Expect::Wrong(WrongKind::Misrouted);
        (astray || cell.way.touch == Touch::Resident)
            && record.case.mechanism == cell.way.mechanism
            && record
                .case
                .subject
                .pair()
                .is_some_and(|pair| hit.contains(&pair.reversed()))
    })
}

/// What a cell's records called it, if one that is long enough to tell called it something else.
fn misnamed(cell: &Cell, records: &[&Record]) -> Option<String> {
    let telling =
        |record: &&&Record| record.case.bytes >= TELLING || record.case.rung == Rung::Resident;
    let right = |record: &Record| match (&record.outcome, cell.kind.expect) {
        (Outcome::Corrupt(found), Expect::Wrong(kind)) => {
            let nothing_older = matches!(kind, WrongKind::Stale | WrongKind::Misrouted);
            let words = names(&found.detail, kind)
                || nothing_older && names(&found.detail, WrongKind::Dropped);
            found.kind == kind
                // Two devices add to one word: what comes out names nothing.
                || cell.way.mechanism == "atomics-contended"
                // Where the transfer before carried less, the rest of this one does not arrive.
                || nothing_older && (found.kind == WrongKind::Dropped || words)
                || cell.place.is_some() && found.kind == WrongKind::Partial && words
                // A store that also lands further on is overwritten there, or not, as the order falls.
                || kind == WrongKind::Spilled && found.kind == WrongKind::Shifted
                || cell.way.touch == Touch::Resident && words
        }
        (Outcome::TimedOut { .. } | Outcome::Never { .. }, Expect::Hang) => true,
        // Every store of the exchange is hit, and its flags are stores too: one that is lost, or brings an older round's number,
        // announces nothing, so the right name is "never".
        (Outcome::Never { .. }, Expect::Wrong(WrongKind::Dropped | WrongKind::Stale)) => {
            cell.way.touch == Touch::Resident && cell.place.is_none()
        }
        (Outcome::Faulted { .. }, Expect::Fault) => true,
        (Outcome::Died { .. }, Expect::Died) => true,
        _ => false,
    };
    records
        .iter()
        .filter(telling)
        .find(|record| !right(record))
        .map(|record| line(record))
}

/// Whether the words of a partial finding say of what kind the missing part is.
fn names(detail: &str, kind: WrongKind) -> bool {
    let words: &[&str] = match kind {
        WrongKind::Zeroed => &["are zero"],
        WrongKind::Ones => &["all ones"],
        WrongKind::Dropped => &["as the owner left them"],
        WrongKind::Stale => &["of an earlier attempt"],
        WrongKind::Misrouted => &["of another transfer", "arrived in memory of"],
        WrongKind::Flipped => &["few bits"],
        _ => &[],
    };
    words.iter().any(|word| detail.contains(word))
}

/// Runs batches on as many threads as there are processors, and sums up.
fn judge(cells: &[Cell]) {
    let started = Instant::now();
    let batches = batches(cells);
    let extents = extents();
    let (next, results, alarms) = (
        AtomicUsize::new(0),
        Mutex::new(Vec::new()),
        Mutex::new(Vec::new()),
    );
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (found, wrong) = run(batch, &extents);
                    results.lock().unwrap().extend(found);
                    alarms.lock().unwrap().extend(wrong);
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let alarms = alarms.into_inner().unwrap();
    let idle: Vec<&Result> = results.iter().filter(|r| r.struck == 0).collect();
    let missed: Vec<&Result> = results
        .iter()
        .filter(|r| r.struck > 0 && !r.found)
        .collect();
    let misnamed: Vec<&Result> = results
        .iter()
        .filter(|r| r.found && r.misnamed.is_some())
        .collect();
    println!(
        "{} cells in {} runs, {:.0} s: {} found, {} missed, {} misnamed, {} never struck, {} false alarms",
        results.len(),
        batches.len(),
        started.elapsed().as_secs_f64(),
        results.len() - missed.len() - idle.len(),
        missed.len(),
        misnamed.len(),
        idle.len(),
        alarms.len()
    );
    for result in &idle {
        println!("never struck: {}", result.name);
    }
    for result in &missed {
        println!("missed: {}", result.name);
    }
    for result in &misnamed {
        println!(
            "misnamed: {}: {}",
            result.name,
            result.misnamed.as_deref().unwrap_or_default()
        );
    }
    for alarm in &alarms {
        println!("false alarm: {alarm}");
    }
    assert!(
        idle.is_empty(),
        "a planted fault that never strikes tests nothing"
    );
    assert!(missed.is_empty() && alarms.is_empty());
    assert!(
        misnamed.len() * 20 <= results.len(),
        "at least 95% are called by their name"
    );
}

/// A fixed selection that touches every kind and every mechanism: every n-th cell.
fn selection(mut cells: Vec<Cell>) -> Vec<Cell> {
    if whole() {
        return cells;
    }
    let total = cells.len();
    let step = [7, 11, 13]
        .into_iter()
        .find(|n| !total.is_multiple_of(*n))
        .unwrap();
    let mut at: Vec<usize> = (0..total).map(|n| n * step % total).collect();
    at.truncate(FIXED);
    at.sort_unstable();
    at.dedup();
    let mut index = 0;
    cells.retain(|_| {
        index += 1;
        at.binary_search(&(index - 1)).is_ok()
    });
    cells
}

#[test]
fn every_planted_fault_is_found_and_named() {
    let (possible, not) = cells::all();
    println!("{} cells can exist, {} cannot:", possible.len(), not.len());
    let reasons: BTreeSet<&str> = not.iter().map(|(_, why)| *why).collect();
    for why in reasons {
        println!(
            "  {}: {}",
            not.iter().filter(|(_, w)| *w == why).count(),
            why
        );
    }
    judge(&selection(possible));
}

/// Every scenario that promises a pass, with many seeds of the weak memory mode: not one false alarm.
#[test]
fn healthy_hosts_raise_no_alarm() {
    let asked = std::env::var("PEERPROOF_MATRIX").unwrap_or_default();
    let all = || HEALTHY.iter().chain(LARGE).copied();
    let named: Vec<&str> = asked.split(',').filter(|name| !name.is_empty()).collect();
    let (seeds, scenarios): (u64, Vec<&str>) = match named[..] {
        [] => (3, HEALTHY.to_vec()),
        ["all"] => (50, all().collect()),
        _ => (50, named),
    };
    for name in &scenarios {
        assert!(
            all().any(|known| known == *name),
            "{name} is no healthy scenario"
        );
    }
    let started = Instant::now();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut alarms: Vec<String> = Vec::new();
    // One scenario after the other, so that a run that is cut off has said what it came to.
    for name in scenarios {
        let (next, found) = (AtomicU64::new(1), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(seed) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed <= seeds)
                    {
                        let report = Host::new(name)
                            .set(&format!("weak_memory={seed}"))
                            .qualify(&["--quick"]);
                        let wrong = alarm(&report).into_iter();
                        let wrong = wrong.map(|text| format!("{name} seed {seed}: {text}"));
                        found.lock().unwrap().extend(wrong);
                    }
                });
            }
        });
        let found = found.into_inner().unwrap();
        println!(
            "{name}: {seeds} healthy runs, {} false alarms, {:.0} s so far",
            found.len(),
            started.elapsed().as_secs_f64()
        );
        alarms.extend(found);
    }
    for alarm in &alarms {
        println!("{alarm}");
    }
    assert!(alarms.is_empty());
}

/// A scenario without a fault that takes as long as all others together: only where everything is asked for.
const LARGE: &[&str] = &["sixteen-gpus"];

/// Scenarios without a fault.
const HEALTHY: &[&str] = &[
    "geforce-x2-refused",
    "hgx-h200-x8",
    "one-gpu",
    "opaque-vm",
    "rtxpro6000-x8-root-complex",
    "switch-pairs-x8",
    "two-gpus-no-p2p",
];

fn alarm(report: &Report) -> Vec<String> {
    let mut wrong: Vec<String> = report
        .records
        .iter()
        .filter(|r| r.outcome.is_failure())
        .map(line)
        .collect();
    if report.verdict.grading != Grading::Pass {
        wrong.push(format!(
            "{}: {}",
            report.verdict.grading.word(),
            report.verdict.headline
        ));
    }
    wrong
}
