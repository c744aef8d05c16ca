//! What became of content and rates while other traffic ran: for each mechanism and kind of traffic the outcomes, the rate
//! of a pair in the middle, and the pair that lost most beside its rate alone.

use super::{
    outcomes::{decimals, outcome_words},
    page::{Page, Tone, cut},
};
use crate::{
    model::{
        case::{Load, Record, Rung},
        measurement::Unit,
        pair::OrderedPair,
        report::Report,
    },
    stats::median,
};
use std::{collections::BTreeMap, io};

/// A pair that keeps this share of its rate alone lost nothing worth a name.
const UNHURT: f64 = 0.9;

fn rate(record: &Record) -> Option<f64> {
    let rate = record.rate.as_ref().filter(|m| m.unit == Unit::GbPerS)?;
    median(&rate.samples)
}

/// One kind of traffic and what became of a mechanism in it.
pub(super) struct Row {
    /// Mechanism id.
    pub(super) mechanism: String,
    /// The traffic in words.
    pub(super) traffic: &'static str,
    /// How the outcomes are to be taken.
    pub(super) tone: Tone,
    /// "56 intact".
    pub(super) outcomes: String,
    /// Median rate, and the pair that lost most of its rate alone; nothing where no rate was taken.
    pub(super) rates: Option<String>,
}

/// What ran under load, by mechanism and traffic.
pub(super) fn rows(report: &Report) -> Vec<Row> {
    let mut groups: BTreeMap<(&str, Option<Load>), Vec<&Record>> = BTreeMap::new();
    let mut alone: BTreeMap<(&str, OrderedPair), f64> = BTreeMap::new();
    for record in &report.records {
        let mechanism = record.case.mechanism.as_str();
        if record.case.rung == Rung::Loaded {
            let key = (mechanism, record.case.load);
            groups.entry(key).or_default().push(record);
        } else if record.alone
            && record.outcome.is_intact()
            && let (Some(pair), Some(rate)) = (record.case.subject.pair(), rate(record))
        {
            let best = alone.entry((mechanism, pair)).or_insert(rate);
            *best = best.max(rate);
        }
    }
    let row = |((mechanism, load), records): (&(&str, Option<Load>), &Vec<&Record>)| {
        let (tone, outcomes) = outcome_words(records);
        Row {
            mechanism: cut(mechanism, 24),
            traffic: load.map_or("other traffic", Load::words),
            tone,
            outcomes,
            rates: rates(mechanism, records, &alone),
        }
    };
    groups.iter().map(row).collect()
}

fn rates(
    mechanism: &str,
    records: &[&Record],
    alone: &BTreeMap<(&str, OrderedPair), f64>,
) -> Option<String> {
    let rates: Vec<(OrderedPair, f64)> = records
        .iter()
        .filter(|r| r.outcome.is_intact())
        .filter_map(|r| Some((r.case.subject.pair()?, rate(r)?)))
        .collect();
    let all: Vec<f64> = rates.iter().map(|(_, rate)| *rate).collect();
    let middle = median(&all)?;
    let mut text = format!("{} GB/s for each pair, median", decimals(middle, middle));
    let lost = rates
        .iter()
        .filter_map(|(pair, rate)| {
            let quiet = alone.get(&(mechanism, *pair)).filter(|r| **r > 0.0)?;
            Some((pair, *rate, *quiet, rate / quiet))
        })
        .min_by(|a, b| a.3.total_cmp(&b.3));
    if let Some((_, _, _, share)) = lost.filter(|l| l.3 >= UNHURT) {
        let share = (share * 100.0).min(100.0);
        text.push_str(&format!(
            "; each kept {share:.0}% or more of its rate alone"
        ));
    } else if let Some((pair, rate, quiet, share)) = lost {
        text.push_str(&format!(
            "; {pair} kept least: {} GB/s, {:.0}% of its {} alone",
            decimals(rate, rate),
            share * 100.0,
            decimals(quiet, quiet)
        ));
    }
    Some(text)
}

/// Title of the section, here and in other forms of the report.
pub(super) const TITLE: &str = "Under load: content was verified while other pairs moved data, too";

/// Writes the section, if anything was planned under load.
pub(super) fn write(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let rows = rows(report);
    if rows.is_empty() {
        return Ok(());
    }
    page.heading(TITLE)?;
    for row in &rows {
        let label = format!("  {}, {}: ", row.mechanism, row.traffic);
        page.labelled(Tone::Plain, &label, row.tone, &row.outcomes)?;
        if let Some(rates) = &row.rates {
            page.text(4, Tone::Plain, rates)?;
        }
    }
    Ok(())
}
