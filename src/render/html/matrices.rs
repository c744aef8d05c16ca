//! Rates over pairs, one table for each mechanism that was timed alone: the number stands in the cell, its shade only
//! repeats it. Then what was left of rates under load. Rates of transfers that were wrong do not exist.

use super::{
    super::{
        evidence::rung_words,
        loaded,
        outcomes::{decimals, spread},
        page::{cut, size},
    },
    Cell, class,
    markup::Markup,
    pair_table, table,
};
use crate::model::{
    case::{Record, Rung},
    measurement::Unit,
    pair::OrderedPair,
    report::Report,
};
use crate::stats::median;
use std::collections::BTreeMap;

/// Tables that stand open; the others unfold.
const OPEN: usize = 2;
/// Tables at most; the report file has every rate.
const MOST_TABLES: usize = 14;
/// A cell that is this far from the median of its table, on the bad side, is marked.
const FAR: f64 = 0.2;

/// Pairs of one mechanism with the record that speaks for each and its median.
type Timed<'a> = BTreeMap<OrderedPair, (&'a Record, f64)>;

fn timed(report: &Report) -> Vec<((Rung, &str, Unit), Timed<'_>)> {
    let mut all: Vec<((Rung, &str, Unit), Timed<'_>)> = Vec::new();
    for record in &report.records {
        let usable = record.alone && record.case.load.is_none() && record.outcome.is_intact();
        let (Some(pair), Some(rate), true) = (record.case.subject.pair(), &record.rate, usable)
        else {
            continue;
        };
        let Some(middle) = median(&rate.samples) else {
            continue;
        };
        let key = (record.case.rung, record.case.mechanism.as_str(), rate.unit);
        let at = all.iter().position(|(k, _)| *k == key).unwrap_or_else(|| {
            all.push((key, Timed::new()));
            all.len() - 1
        });
        let Some((_, pairs)) = all.get_mut(at) else {
            continue;
        };
        // Of several sizes the largest speaks: small ones measure the start of a transfer.
        let longer = pairs
            .get(&pair)
            .is_none_or(|(known, _)| known.case.bytes <= record.case.bytes);
        if longer {
            pairs.insert(pair, (record, middle));
        }
    }
    // Direct transfers of one process first: they are what a link can do.
    let first = |rung: Rung| match rung {
        Rung::Copied => 0,
        Rung::Touched => 1,
        _ => 2,
    };
    all.sort_by_key(|((rung, ..), _)| (first(*rung), *rung));
    all
}

pub(super) fn write(report: &Report, m: &mut Markup) {
    let all = timed(report);
    if all.is_empty() {
        return;
    }
    m.leaf(
        "p",
        &[("class", "faint")],
        "A darker cell is a larger number, in steps at 25, 50, 75 and 90% of the largest of its table. \u{25bc} marks a rate, and \
         \u{25b2} a time, that is more than a fifth on the bad side of the median of its table. n/a = not measured.",
    );
    // Both kinds of executor in view: copy engines and multiprocessors.
    let mut open: Vec<usize> = Vec::new();
    for rung in [Rung::Copied, Rung::Touched] {
        open.extend(all.iter().position(|((r, ..), _)| *r == rung));
    }
    if open.is_empty() {
        open.extend(0..all.len().min(OPEN));
    }
    for (at, (key, pairs)) in all.iter().take(MOST_TABLES).enumerate() {
        if open.contains(&at) {
            heat(report, *key, pairs, m);
        } else {
            m.element("details", &[], |m| {
                m.leaf("summary", &[], &title(*key));
                heat(report, *key, pairs, m);
            });
        }
    }
    if all.len() > MOST_TABLES {
        let more = all.len() - MOST_TABLES;
        m.leaf(
            "p",
            &[],
            &format!("{more} more mechanisms in the report file."),
        );
    }
}

fn title((rung, mechanism, unit): (Rung, &str, Unit)) -> String {
    let what = match unit {
        Unit::GbPerS => "bandwidth",
        Unit::Us | Unit::Ms => "latency",
    };
    format!(
        "{} {what}, rung {}, {}",
        cut(mechanism, 24),
        rung_words(rung),
        unit.name()
    )
}

fn heat(report: &Report, key: (Rung, &str, Unit), pairs: &Timed<'_>, m: &mut Markup) {
    let values: Vec<f64> = pairs.values().map(|(_, middle)| *middle).collect();
    let most = values.iter().copied().fold(0.0, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let middle = median(&values).unwrap_or(most);
    let mut sizes: Vec<u64> = pairs.values().map(|(r, _)| r.case.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let sizes: Vec<String> = sizes.into_iter().map(size).collect();
    let caption = format!(
        "{}; {} a transfer, one direction; median {}, from {} to {}",
        title(key),
        sizes.join(" or "),
        decimals(middle, middle),
        decimals(least, least),
        decimals(most, most)
    );
    pair_table(m, &caption, &report.tested_gpus, |source, destination| {
        let arrow = format!("{source}->{destination}");
        let found = OrderedPair::new(source, destination).and_then(|p| pairs.get(&p));
        let Some((record, value)) = found else {
            return Cell {
                class: "none",
                text: "n/a".to_string(),
                more: format!("{arrow}: not measured"),
            };
        };
        let far = match key.2 {
            Unit::GbPerS if *value < middle * (1.0 - FAR) => "\u{25bc} ",
            Unit::Us | Unit::Ms if *value > middle * (1.0 + FAR) => "\u{25b2} ",
            _ => "",
        };
        let samples = record
            .rate
            .as_ref()
            .map_or(&[][..], |r| r.samples.as_slice());
        Cell {
            class: step(*value, most),
            text: format!("{far}{}", decimals(*value, *value)),
            more: format!("{arrow}: {} {}", spread(samples), key.2.name()),
        }
    });
}

pub(super) fn step(value: f64, most: f64) -> &'static str {
    match value / most.max(f64::MIN_POSITIVE) {
        s if s > 0.9 => "h5",
        s if s > 0.75 => "h4",
        s if s > 0.5 => "h3",
        s if s > 0.25 => "h2",
        _ => "h1",
    }
}

pub(super) fn under_load(report: &Report, m: &mut Markup) {
    let rows = loaded::rows(report);
    if rows.is_empty() {
        return;
    }
    let rows = rows.into_iter().map(|row| {
        vec![
            ("", row.mechanism),
            ("", row.traffic.to_string()),
            (class(row.tone), row.outcomes),
            ("", row.rates.unwrap_or_else(|| "n/a".to_string())),
        ]
    });
    table(
        m,
        loaded::TITLE,
        &["mechanism", "traffic", "cases", "rates"],
        rows,
    );
}
