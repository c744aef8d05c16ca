//! The ladder matrix, and what its words mean.

use super::{
    super::{
        outcomes::{self, Climbs, Height, Seen},
        page::{Tone, count, pairs_in_words},
    },
    Cell, class,
    markup::Markup,
    pair_table,
};
use crate::model::{pair::OrderedPair, report::Report};

pub(super) fn write(report: &Report, m: &mut Markup) {
    let pairs = outcomes::tested_pairs(report);
    if pairs.is_empty() {
        let why = match report.tested_gpus.len() {
            0 => "No GPU was tested, so no pair was.",
            _ => "One GPU was tested: there is no pair.",
        };
        m.leaf("p", &[], why);
        return;
    }
    let climbs = outcomes::climbs(report);
    if let Some(height) = climbs.alike() {
        let all = format!("All {} ordered pairs: ", pairs.len());
        m.element("p", &[], |m| {
            m.leaf("strong", &[], &all);
            m.text(&format!("{}.", outcomes::known_at(height)));
        });
    }
    let caption = "Row = source, column = destination: the rung reached, or what went wrong. The diagonal is no pair.";
    pair_table(m, caption, &report.tested_gpus, |source, destination| {
        cell(report, &climbs, source, destination)
    });
    legend(report, &climbs, pairs.len(), m);
}

/// GPUs beyond which a cell holds three letters instead of a word.
const WORDS_FIT: usize = 10;

/// A word as it stands in the matrix.
fn shown<'a>(report: &Report, word: &'a str) -> &'a str {
    match report.tested_gpus.len() > WORDS_FIT {
        true => outcomes::code(word),
        false => word,
    }
}

fn cell(report: &Report, climbs: &Climbs<'_>, source: u32, destination: u32) -> Cell {
    let seen = OrderedPair::new(source, destination).and_then(|p| climbs.seen.get(&p));
    let arrow = format!("{source}->{destination}");
    match seen {
        Some(Seen::Stopped(record)) => {
            let failed = record.outcome.is_failure();
            let (sign, tone) = if failed {
                ("\u{2716}", Tone::Bad)
            } else {
                ("\u{25cb}", Tone::Doubt)
            };
            let rung = super::super::evidence::rung_words(record.case.rung);
            let word = record.outcome.word();
            let mechanism = super::super::page::cut(&record.case.mechanism, 24);
            Cell {
                class: class(tone),
                text: format!("{sign} {}", shown(report, word)),
                more: format!("{arrow}: {word} by {mechanism} at rung {rung}"),
            }
        }
        Some(Seen::Reached(height)) => Cell {
            class: class(outcomes::tone_of(report, height.0)),
            text: outcomes::height_text(*height),
            more: format!("{arrow}: {}", outcomes::known_at(*height)),
        },
        Some(Seen::Unknown) | None => Cell {
            class: "none",
            text: "n/a".to_string(),
            more: format!("{arrow}: nothing tested, nothing claimed"),
        },
    }
}

fn legend(report: &Report, climbs: &Climbs<'_>, all: usize, m: &mut Markup) {
    let mut rows: Vec<(&str, String, String)> = Vec::new();
    for (word, records) in &climbs.stopped {
        let failed = records.iter().any(|(_, r)| r.outcome.is_failure());
        let (tone, sign) = if failed {
            ("bad", "\u{2716}")
        } else {
            ("doubt", "\u{25cb}")
        };
        let text = outcomes::stopped_text(word, records, all);
        let shown = match shown(report, word) {
            whole if whole == *word => format!("{sign} {word}"),
            code => format!("{sign} {code} = {word}"),
        };
        rows.push((tone, shown, text));
    }
    for (height, number) in climbs.reached.iter().rev() {
        let height: Height = *height;
        let tone = class(outcomes::tone_of(report, height.0));
        let text = format!(
            "{}: {}",
            outcomes::known_at(height),
            count(*number, "ordered pair")
        );
        rows.push((tone, outcomes::height_text(height), text));
    }
    if climbs.unknown > 0 {
        let text = format!(
            "nothing tested, nothing claimed: {}",
            count(climbs.unknown, "ordered pair")
        );
        rows.push(("none", "n/a".to_string(), text));
    }
    m.element("dl", &[("class", "facts")], |m| {
        for (tone, word, text) in &rows {
            m.leaf("dt", &[("class", tone)], word);
            m.leaf("dd", &[], text);
        }
    });
    let reached: usize = climbs.reached.values().sum();
    for (note, pairs) in &climbs.open {
        let text = if pairs.len() == reached {
            format!("{note}.")
        } else {
            format!("{note}: {}.", pairs_in_words(pairs, all))
        };
        m.leaf("p", &[("class", "faint")], &text);
    }
}
