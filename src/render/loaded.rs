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

fn rate(record: &Record) -> Option<f64> {
    let rate = record.rate.as_ref().filter(|m| m.unit == Unit::GbPerS)?;
    median(&rate.samples)
}

/// Writes the section, if anything was planned under load.
pub(super) fn write(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
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
    if groups.is_empty() {
        return Ok(());
    }
    page.heading("Under load: content was verified while other pairs moved data, too")?;
    for ((mechanism, load), records) in &groups {
        let (tone, outcomes) = outcome_words(records);
        let traffic = load.map_or("other traffic", Load::words);
        let label = format!("  {}, {traffic}: ", cut(mechanism, 24));
        page.labelled(Tone::Plain, &label, tone, &outcomes)?;
        let rates: Vec<(OrderedPair, f64)> = records
            .iter()
            .filter(|r| r.outcome.is_intact())
            .filter_map(|r| Some((r.case.subject.pair()?, rate(r)?)))
            .collect();
        let all: Vec<f64> = rates.iter().map(|(_, rate)| *rate).collect();
        let Some(middle) = median(&all) else {
            continue;
        };
        let mut text = format!("{} GB/s for each pair, median", decimals(middle, middle));
        let lost = rates
            .iter()
            .filter_map(|(pair, rate)| {
                let quiet = alone.get(&(*mechanism, *pair)).filter(|r| **r > 0.0)?;
                Some((pair, *rate, *quiet, rate / quiet))
            })
            .min_by(|a, b| a.3.total_cmp(&b.3));
        if let Some((pair, rate, quiet, share)) = lost {
            text.push_str(&format!(
                "; {pair} kept least: {} GB/s, {:.0}% of its {} alone",
                decimals(rate, rate),
                share * 100.0,
                decimals(quiet, quiet)
            ));
        }
        page.text(4, Tone::Plain, &text)?;
    }
    Ok(())
}
