//! What was measured: rates of pairs and host links, times of all-reduces. Two numbers differ only when they differ by more
//! than either of them wavers.

use super::{
    Matched,
    tally::Tally,
    verdicts::{group_from_b, group_words, of_a, of_b, what},
};
use crate::{
    model::{
        case::{Load, Rung, Subject},
        comparison::{NotCompared, NumberDifference, NumberPair, Summary},
        measurement::{Measurement, Unit},
        pair::GpuIndex,
        reduction::Reduction,
        report::Report,
    },
    stats,
};
use std::collections::{BTreeMap, BTreeSet};

/// Fewer samples than this have no spread worth the name.
const FEWEST_SAMPLES: u32 = 3;
/// Medians nearer than this share of the larger are the same: clocks and temperatures of two runs alone move a rate by
/// some per cent, however steady each run is in itself.
const LEAST_SHARE: f64 = 0.05;

/// The rule for people.
pub(super) const RULE: &str = "two numbers differ when their medians are further apart than the distances between the \
    quartiles of both together, and by more than 5% of the larger; fewer than 3 samples on a side are not compared";

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
    subject: Of,
    offset: u64,
    alone: bool,
    unit: &'static str,
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Subject(Subject),
    Group(Vec<u32>),
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Of::Subject(subject) => subject.fmt(f),
            Of::Group(gpus) => f.write_str(&group_words(gpus)),
        }
    }
}

type Samples = BTreeMap<Key, (Unit, Vec<f64>)>;

fn add(samples: &mut Samples, key: Key, measured: &Measurement) {
    let (_, list) = samples.entry(key).or_insert((measured.unit, Vec::new()));
    list.extend(measured.samples.iter().copied().filter(|s| s.is_finite()));
}

fn gather(
    report: &Report,
    subject: impl Fn(Subject) -> Option<Subject>,
    group: impl Fn(&[u32]) -> Option<Vec<u32>>,
) -> Samples {
    let mut samples = Samples::new();
    for record in &report.records {
        let case = &record.case;
        let (Some(rate), Some(subject)) = (&record.rate, subject(case.subject)) else {
            continue;
        };
        let load: Option<Load> = case.load;
        let key = Key {
            rung: Some(case.rung),
            what: what(&case.mechanism, case.rung, load),
            bytes: case.bytes,
            subject: Of::Subject(subject),
            offset: case.offset,
            alone: record.alone,
            unit: rate.unit.name(),
            method: rate.method.clone(),
        };
        add(&mut samples, key, rate);
    }
    for reduction in &report.reductions {
        let (Some(time), Some(gpus)) = (&reduction.time, group(&reduction.gpus)) else {
            continue;
        };
        let key = Key {
            rung: Some(Rung::Reduced),
            what: reduction_words(reduction),
            bytes: reduction.bytes,
            subject: Of::Group(gpus),
            offset: 0,
            alone: false,
            unit: time.unit.name(),
            method: time.method.clone(),
        };
        add(&mut samples, key, time);
    }
    samples
}

fn reduction_words(reduction: &Reduction) -> String {
    format!(
        "all-reduce {} {} {}{}, {}",
        reduction.algorithm,
        reduction.dtype,
        reduction.launch.name(),
        if reduction.in_place { " in place" } else { "" },
        reduction.arrangement.words()
    )
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
fn differ(a: &Summary, b: &Summary) -> bool {
    let apart = (a.median - b.median).abs();
    let larger = a.median.abs().max(b.median.abs());
    apart > a.quartiles_apart + b.quartiles_apart && apart > LEAST_SHARE * larger
}

/// A size in words.
fn size(bytes: u64) -> String {
    match bytes {
        whole if whole >= 1 << 30 && whole.is_multiple_of(1 << 30) => {
            format!("{} GiB", whole >> 30)
        }
        whole if whole >= 1 << 20 && whole.is_multiple_of(1 << 20) => {
            format!("{} MiB", whole >> 20)
        }
        whole if whole >= 1 << 10 && whole.is_multiple_of(1 << 10) => {
            format!("{} KiB", whole >> 10)
        }
        other => format!("{other} B"),
    }
}

pub(super) fn compare(a: &Report, b: &Report, matched: &Matched) -> Numbers {
    let of_matched = |gpus: &[u32]| {
        let all = gpus.iter().all(|gpu| matched.knows(GpuIndex(*gpu)));
        all.then(|| gpus.to_vec())
    };
    let one = gather(a, |subject| of_a(matched, subject), of_matched);
    let other = gather(
        b,
        |subject| of_b(matched, subject),
        |gpus| group_from_b(matched, gpus),
    );
    let keys: BTreeSet<&Key> = one.keys().chain(other.keys()).collect();
    let mut numbers = Numbers::default();
    let mut left = Tally::default();
    for key in keys {
        let what = match key.bytes {
            0 => key.what.clone(),
            bytes => format!("{}, {}", key.what, size(bytes)),
        };
        let (mine, theirs) = (one.get(key), other.get(key));
        let (Some((unit, mine)), Some((_, theirs))) = (mine, theirs) else {
            let side = if mine.is_none() { "A" } else { "B" };
            // Where a transfer is wrong no rate is taken; that was told among the verdicts.
            left.one_sided("rates and times", side, "not measured in that way");
            continue;
        };
        let (Some(mine), Some(theirs)) = (summary(mine), summary(theirs)) else {
            continue;
        };
        if mine.samples < FEWEST_SAMPLES || theirs.samples < FEWEST_SAMPLES {
            left.leave(
                "rates and times: fewer than 3 samples on a side".to_string(),
                false,
            );
            continue;
        }
        let place = numbers
            .differences
            .iter()
            .position(|d| d.what == what && d.unit == *unit && d.rung == key.rung);
        let at = place.unwrap_or_else(|| {
            numbers.differences.push(NumberDifference {
                what,
                rung: key.rung,
                unit: *unit,
                compared: 0,
                differing: Vec::new(),
            });
            numbers.differences.len() - 1
        });
        let Some(group) = numbers.differences.get_mut(at) else {
            continue;
        };
        group.compared += 1;
        if !differ(&mine, &theirs) {
            numbers.same += 1;
            continue;
        }
        group.differing.push(NumberPair {
            of: key.subject.to_string(),
            a: mine,
            b: theirs,
            ratio: theirs.median / mine.median,
        });
    }
    numbers
        .differences
        .retain(|group| !group.differing.is_empty());
    for group in &mut numbers.differences {
        // A rate is bad when it is low, a time when it is high.
        let badness = |pair: &NumberPair| match group.unit {
            Unit::GbPerS => pair.ratio,
            Unit::Us | Unit::Ms => -pair.ratio,
        };
        group
            .differing
            .sort_by(|x, y| badness(x).total_cmp(&badness(y)));
    }
    numbers.not_compared = left.not_compared;
    numbers
}
