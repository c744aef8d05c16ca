//! What was measured: rates of pairs and host links, times of all-reduces, copies alone and at once. Two numbers differ only
//! when they differ by more than either of them wavers.

use super::{
    Matched, amount,
    matching::Letter,
    reductions::{Ranks, way_of, words_of_ranks},
    tally::Tally,
    traffic::{self, Flows},
    verdicts::what,
};
use crate::{
    model::{
        case::{Case, Rung, Subject},
        comparison::{NotCompared, NumberDifference, NumberPair, Summary},
        measurement::Unit,
        reduction::Reduction,
        report::Report,
        traffic::Caveat,
    },
    stats,
};
use std::collections::{BTreeMap, BTreeSet};

/// Fewer samples than this have no spread worth the name.
const FEWEST_SAMPLES: u32 = 3;
/// Below this the quartiles of a wavering number lie together by chance: then no sample of one may lie among the other's.
const FEW_SAMPLES: u32 = 5;
/// Medians nearer than this share of the larger are the same: clocks and temperatures of two runs alone move a rate by
/// some per cent, however steady each run is in itself.
const LEAST_SHARE: f64 = 0.05;

/// The rule for people.
pub(super) const RULE: &str = "two numbers differ when their medians are further apart than the distances between the \
    quartiles of both together, and by more than 5% of the larger; with fewer than 5 samples on a side no sample of one may lie among \
    the other's, and fewer than 3 are not compared";

/// What came of the numbers.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) differences: Vec<NumberDifference>,
    pub(super) same: u32,
    pub(super) not_compared: Vec<NotCompared>,
}

/// What two measurements must share to be compared at all: what it is, of what, at which size, and how it was taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    rung: Option<Rung>,
    what: String,
    bytes: u64,
    of: Of,
    offset: u64,
    alone: bool,
    unit: &'static str,
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Subject(Subject),
    Ranks(Ranks),
    Flows(Flows),
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Of::Subject(subject) => subject.fmt(f),
            Of::Ranks(ranks) => f.write_str(&words_of_ranks(ranks)),
            Of::Flows((_, named)) => f.write_str(named),
        }
    }
}

impl Of {
    /// Whether `report` holds the part that such numbers stand in.
    fn section(&self, report: &Report) -> bool {
        match self {
            Of::Subject(_) => !report.records.is_empty(),
            Of::Ranks(_) => !report.reductions.is_empty(),
            Of::Flows(_) => !report.traffic.is_empty(),
        }
    }
}

/// Things of a side that ran and were not intact: of such no number is taken.
fn wrong(report: &Report, side: Letter, matched: &Matched) -> BTreeSet<(Option<Rung>, String, Of)> {
    let records = report.records.iter().filter_map(|record| {
        let (case, ended) = (&record.case, &record.outcome);
        let subject = matched.subject(side, case.subject)?;
        ended
            .is_failure()
            .then(|| (Some(case.rung), words_of_case(case), Of::Subject(subject)))
    });
    let reductions = report.reductions.iter().filter_map(|row| {
        let ranks = matched.gpus(side, &row.gpus)?;
        let what = words_of_reduction(row);
        row.outcome
            .is_failure()
            .then_some((Some(Rung::Reduced), what, Of::Ranks(ranks)))
    });
    let traffic = report.traffic.iter().filter_map(|case| {
        let flows = traffic::flows(matched, side, case)?;
        case.outcome
            .is_failure()
            .then(|| (None, traffic::words(case), Of::Flows(flows)))
    });
    records.chain(reductions).chain(traffic).collect()
}

fn words_of_reduction(row: &Reduction) -> String {
    format!("all-reduce {}, {}", row.algorithm, way_of(row))
}

/// What was measured of one thing on one side.
#[derive(Debug)]
struct Measured {
    unit: Unit,
    samples: Vec<f64>,
    doubts: BTreeSet<&'static str>,
}

#[derive(Debug, Default)]
struct All(BTreeMap<Key, Measured>);

impl All {
    fn add(&mut self, key: Key, unit: Unit, samples: &[f64], doubts: &[Caveat]) {
        let known = self.0.entry(key).or_insert(Measured {
            unit,
            samples: Vec::new(),
            doubts: BTreeSet::new(),
        });
        let finite = samples.iter().copied().filter(|s| s.is_finite());
        known.samples.extend(finite);
        // How far samples waver is judged by the samples.
        let of_the_host = doubts.iter().filter(|doubt| {
            matches!(
                doubt,
                Caveat::ClockChanged { .. }
                    | Caveat::LinkChanged { .. }
                    | Caveat::OtherProcesses { .. }
                    | Caveat::GateExpired { .. }
            )
        });
        known.doubts.extend(of_the_host.map(Caveat::words));
    }
}

fn gather(report: &Report, side: Letter, matched: &Matched) -> All {
    let mut all = All::default();
    for record in &report.records {
        let case = &record.case;
        let subject = matched.subject(side, case.subject);
        let (Some(rate), Some(subject)) = (&record.rate, subject) else {
            continue;
        };
        let key = Key {
            rung: Some(case.rung),
            what: words_of_case(case),
            bytes: case.bytes,
            of: Of::Subject(subject),
            offset: case.offset,
            alone: record.alone,
            unit: rate.unit.name(),
            method: rate.method.clone(),
        };
        all.add(key, rate.unit, &rate.samples, &[]);
    }
    for row in &report.reductions {
        let (Some(time), Some(ranks)) = (&row.time, matched.gpus(side, &row.gpus)) else {
            continue;
        };
        let key = Key {
            rung: Some(Rung::Reduced),
            what: words_of_reduction(row),
            bytes: row.bytes,
            of: Of::Ranks(ranks),
            offset: 0,
            alone: false,
            unit: time.unit.name(),
            // How many calls a sample is the mean of follows from the memory that was free.
            method: String::new(),
        };
        all.add(key, time.unit, &time.samples, &[]);
    }
    for case in &report.traffic {
        let Some(flows) = traffic::flows(matched, side, case) else {
            continue;
        };
        let host = case.caveats.contains(&Caveat::HostIncluded);
        let key = Key {
            rung: None,
            what: traffic::words(case),
            bytes: case.bytes,
            of: Of::Flows(flows),
            offset: 0,
            alone: false,
            unit: case.unit.name(),
            method: if host {
                Caveat::HostIncluded.words()
            } else {
                ""
            }
            .to_string(),
        };
        if !case.whole.is_empty() {
            all.add(key, case.unit, &case.whole, &case.caveats);
        }
    }
    all
}

fn words_of_case(case: &Case) -> String {
    let what = what(&case.mechanism, case.rung, case.load);
    match case.all_reduce {
        None => what,
        Some(how) => {
            let place = if how.in_place { " in place" } else { "" };
            format!("{what}, {}, {}{place}", how.dtype, how.launch.name())
        }
    }
}

fn summary(samples: &[f64]) -> Option<Summary> {
    let low = stats::quantile(samples, 0.25)?;
    let high = stats::quantile(samples, 0.75)?;
    Some(Summary {
        median: stats::median(samples)?,
        quartiles_apart: high - low,
        samples: samples.len() as u32,
    })
}

/// The rule.
fn differ(a: &Summary, b: &Summary, samples: (&[f64], &[f64])) -> bool {
    let apart = (a.median - b.median).abs();
    let larger = a.median.abs().max(b.median.abs());
    let few = a.samples.min(b.samples) < FEW_SAMPLES;
    apart > a.quartiles_apart + b.quartiles_apart
        && apart > LEAST_SHARE * larger
        && !(few && overlap(samples.0, samples.1))
}

/// Whether a sample of one lies among those of the other.
fn overlap(a: &[f64], b: &[f64]) -> bool {
    let ends = |s: &[f64]| stats::min(s).zip(stats::max(s));
    ends(a)
        .zip(ends(b))
        .is_none_or(|((low_a, high_a), (low_b, high_b))| low_a <= high_b && low_b <= high_a)
}

/// What is compared, and of what. Pairs are set against each other at one size; an all-reduce has one subject and many sizes.
fn words(key: &Key) -> (String, String) {
    let of = key.of.to_string();
    match (&key.of, key.bytes) {
        (_, 0) => (key.what.clone(), of),
        (Of::Ranks(_), bytes) => (key.what.clone(), format!("{}, {of}", amount(bytes))),
        (_, bytes) => (format!("{}, {}", key.what, amount(bytes)), of),
    }
}

pub(super) fn compare(a: &Report, b: &Report, matched: &Matched) -> Numbers {
    let one = gather(a, Letter::A, matched).0;
    let other = gather(b, Letter::B, matched).0;
    let wrong_of_a = wrong(a, Letter::A, matched);
    let wrong_of_b = wrong(b, Letter::B, matched);
    let keys: BTreeSet<&Key> = one.keys().chain(other.keys()).collect();
    let mut numbers = Numbers::default();
    let mut left = Tally::default();
    for key in keys {
        let (what, of) = words(key);
        let (mine, theirs) = (one.get(key), other.get(key));
        let (Some(mine), Some(theirs)) = (mine, theirs) else {
            let (lacks, report, wrong) = match mine {
                None => ("A", a, &wrong_of_a),
                Some(_) => ("B", b, &wrong_of_b),
            };
            if !key.of.section(report) {
                // That one of them has no such part is told with the verdicts.
                continue;
            }
            let why = match wrong.contains(&(key.rung, key.what.clone(), key.of.clone())) {
                true => format!(
                    "none in {lacks}: it was not intact there, and nothing is timed of what is wrong"
                ),
                false => format!("none in {lacks}: not timed there at this size and in this way"),
            };
            left.leave("rates and times", why, true);
            continue;
        };
        let (Some(x), Some(y)) = (summary(&mine.samples), summary(&theirs.samples)) else {
            continue;
        };
        if x.samples < FEWEST_SAMPLES || y.samples < FEWEST_SAMPLES {
            let why = "fewer than 3 samples on a side".to_string();
            left.leave("rates and times", why, false);
            continue;
        }
        let unit = mine.unit;
        let place = numbers
            .differences
            .iter()
            .position(|d| d.what == what && d.unit == unit && d.rung == key.rung);
        let at = place.unwrap_or_else(|| {
            numbers.differences.push(NumberDifference {
                what,
                rung: key.rung,
                unit,
                compared: 0,
                differing: Vec::new(),
            });
            numbers.differences.len() - 1
        });
        let Some(group) = numbers.differences.get_mut(at) else {
            continue;
        };
        group.compared += 1;
        if !differ(&x, &y, (&mine.samples, &theirs.samples)) {
            numbers.same += 1;
            continue;
        }
        let doubts = [("A", mine), ("B", theirs)]
            .into_iter()
            .flat_map(|(letter, side)| {
                let words = side.doubts.iter();
                words.map(move |doubt| format!("{letter}: {doubt}"))
            });
        group.differing.push(NumberPair {
            of,
            a: x,
            b: y,
            ratio: y.median / x.median,
            doubts: doubts.collect(),
        });
    }
    numbers
        .differences
        .retain(|group| !group.differing.is_empty());
    for group in &mut numbers.differences {
        let unit = group.unit;
        // What B lost most comes first; where it lost nothing, what it gained most.
        let gain = |pair: &NumberPair| unit.gain(pair.ratio);
        let lost = group.differing.iter().any(|pair| gain(pair) < 1.0);
        group.differing.sort_by(|x, y| match lost {
            true => gain(x).total_cmp(&gain(y)),
            false => gain(y).total_cmp(&gain(x)),
        });
    }
    numbers.not_compared = left.not_compared;
    numbers
}
