//! The worst wrong buffers, unit by unit: what was expected, what the owner has, what the accessor sees. Two cases at
//! most; the saved report has all of them.

use super::{
    outcomes::particulars_of,
    page::{Page, Tone, count, cut, grouped, pairs_in_words, size},
};
use crate::model::{
    case::{Corruption, Outcome, PeerAccess, Record, Rung, Sample, Subject},
    pair::OrderedPair,
    report::Report,
};
use std::{cmp::Reverse, io};

/// All wrong buffers, the one most worth a look first.
pub(super) fn wrong(report: &Report) -> Vec<(&Record, &Corruption)> {
    let mut all: Vec<(&Record, &Corruption)> = report
        .records
        .iter()
        .filter_map(|r| r.outcome.corruption().map(|c| (r, c)))
        .collect();
    all.sort_by_key(|(r, c)| {
        (
            // A GPU by itself first, then the pair of the verdict.
            match r.case.subject {
                Subject::Gpu(_) => false,
                Subject::Pair(pair) => Some(pair) != report.verdict.worst_pair,
                Subject::Group(_) => report.verdict.worst_pair.is_some(),
            },
            r.case.rung,
            Reverse(c.wrong_units),
            r.case.id,
        )
    });
    all
}

/// The record most worth a look, and one of another kind of wrong if there is one.
fn worst(report: &Report) -> Vec<(&Record, &Corruption)> {
    let all = wrong(report);
    let Some(first) = all.first().copied() else {
        return Vec::new();
    };
    let second = all.iter().copied().find(|(_, c)| c.kind != first.1.kind);
    [Some(first), second].into_iter().flatten().collect()
}

/// Groups of failures without data that are shown; the saved report has all of them.
const MOST_GROUPS: usize = 8;

/// Writes the evidence, if anything went wrong or was refused.
pub(super) fn write(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let shown = worst(report);
    let others = without_data(report);
    if shown.is_empty() && others.is_empty() {
        return Ok(());
    }
    let all = report
        .records
        .iter()
        .filter(|r| r.outcome.corruption().is_some())
        .count();
    page.heading(&if shown.is_empty() {
        "Evidence".to_string()
    } else {
        format!(
            "Evidence: {} with wrong data, {} shown",
            count(all, "case"),
            shown.len()
        )
    })?;
    for (position, (record, corruption)) in shown.iter().enumerate() {
        one(record, corruption, if position == 0 { 3 } else { 2 }, page)?;
    }
    for group in others.iter().take(MOST_GROUPS) {
        let (who, how) = (group.who(), group.mechanisms.join(", "));
        page.text(2, Tone::Plain, &format!("{who} by {how}: {}", group.what))?;
    }
    if others.len() > MOST_GROUPS {
        let more = count(others.len() - MOST_GROUPS, "more kind");
        page.text(2, Tone::Faint, &format!("{more} of failure in the report"))?;
    }
    Ok(())
}

/// Failures and refusals that leave no data to look at, those that say the same together.
pub(super) struct Group {
    pub(super) what: String,
    pub(super) pairs: Vec<OrderedPair>,
    /// Groups of GPUs, in words.
    pub(super) groups: Vec<String>,
    pub(super) mechanisms: Vec<String>,
}

impl Group {
    /// "0->1 and 2->3", "GPUs 0-3".
    pub(super) fn who(&self) -> String {
        let mut who = self.groups.clone();
        if !self.pairs.is_empty() {
            who.insert(0, pairs_in_words(&self.pairs, usize::MAX));
        }
        who.join(" and ")
    }
}

pub(super) fn without_data(report: &Report) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for record in &report.records {
        if matches!(record.case.subject, Subject::Gpu(_)) {
            continue;
        }
        if !matches!(
            record.outcome,
            Outcome::Refused { .. }
                | Outcome::Faulted { .. }
                | Outcome::TimedOut { .. }
                | Outcome::Never { .. }
                | Outcome::Died { .. }
        ) {
            continue;
        }
        let Some(what) = particulars_of(record) else {
            continue;
        };
        let mechanism = cut(&record.case.mechanism, 24);
        let at = match groups.iter().position(|g| g.what == what) {
            Some(at) => at,
            None => {
                groups.push(Group {
                    what,
                    pairs: Vec::new(),
                    groups: Vec::new(),
                    mechanisms: Vec::new(),
                });
                groups.len() - 1
            }
        };
        if let Some(group) = groups.get_mut(at) {
            match record.case.subject {
                Subject::Pair(pair) if !group.pairs.contains(&pair) => group.pairs.push(pair),
                Subject::Group(together) if !group.groups.contains(&together.to_string()) => {
                    group.groups.push(together.to_string());
                }
                _ => {}
            }
            if !group.mechanisms.contains(&mechanism) {
                group.mechanisms.push(mechanism);
            }
        }
    }
    groups
}

/// "2 (copied)".
pub(super) fn rung_words(rung: Rung) -> String {
    match rung.number() {
        Some(number) => format!("{number} ({})", rung.name()),
        None => rung.name().to_string(),
    }
}

/// "0->1 by ce-push at rung 2 (copied): case 12, 8 MiB at offset 0x0".
pub(super) fn case_words(record: &Record) -> String {
    let case = &record.case;
    format!(
        "{} by {} at rung {}{}: case {}, {} at offset {:#x}",
        case.subject,
        cut(&case.mechanism, 24),
        rung_words(case.rung),
        case.load
            .map_or_else(String::new, |load| format!(", {}", load.words())),
        case.id,
        size(case.bytes),
        case.offset
    )
}

/// What is known of a wrong buffer beyond its samples, a sentence each.
pub(super) fn sentences(record: &Record, c: &Corruption) -> Vec<String> {
    let access = match record.peer_access {
        PeerAccess::NotApplicable => None,
        PeerAccess::Off => Some("peer access never enabled"),
        PeerAccess::Both => Some("peer access enabled both ways"),
        PeerAccess::SourceToDestination => {
            Some("peer access enabled from source to destination only")
        }
        PeerAccess::DestinationToSource => {
            Some("peer access enabled from destination to source only")
        }
        PeerAccess::Imported => Some("memory of another process, opened by its handle"),
        PeerAccess::Granted => Some("access granted for this allocation alone"),
    };
    let mut moved = format!("moved by {}", cut(&record.executor, 60));
    if let Some(access) = access {
        moved.push_str(&format!(", {access}"));
    }
    moved.push_str(&format!(
        "; wrong in {} of {}, first in attempt {}",
        c.wrong_attempts,
        count(c.attempts_ran as usize, "attempt"),
        c.attempt
    ));
    let mut said = vec![moved];
    let classes = [
        ("right", c.counts.equal),
        ("poison", c.counts.poison),
        ("zero", c.counts.zero),
        ("ones", c.counts.ones),
        ("few bits off", c.counts.few_bits),
        ("displaced", c.counts.displaced),
        ("stale", c.counts.stale),
        ("of another pair", c.counts.foreign),
        ("of no known origin", c.counts.unknown),
    ];
    let counted: Vec<String> = classes
        .iter()
        .filter(|(_, number)| *number > 0)
        .map(|(name, number)| format!("{} {name}", grouped(*number)))
        .collect();
    said.push(format!(
        "{} of {} units of 16 bytes wrong, from offset {:#x} to {:#x}: {}",
        grouped(c.wrong_units),
        grouped(c.units),
        c.first_offset,
        c.last_offset,
        counted.join(", ")
    ));
    if !c.detail.trim().is_empty() {
        said.push(c.detail.clone());
    }
    let answers: Vec<&str> = [
        (
            c.source_intact,
            "source still intact",
            "source itself wrong",
        ),
        (
            c.accessor_sees_right,
            "accessor reads it right",
            "accessor reads it wrong too",
        ),
        (
            c.owner_views_agree,
            "owner's kernel and owner's copy agree",
            "owner's kernel and owner's copy disagree",
        ),
    ]
    .iter()
    .filter_map(|(answer, yes, no)| answer.map(|a| if a { *yes } else { *no }))
    .collect();
    if !answers.is_empty() {
        said.push(answers.join("; "));
    }
    said
}

fn one(record: &Record, c: &Corruption, samples: usize, page: &mut Page<'_>) -> io::Result<()> {
    let label = format!("  {} ", c.kind);
    page.labelled(Tone::Bad, &label, Tone::Strong, &case_words(record))?;
    for sentence in sentences(record, c) {
        page.text(4, Tone::Plain, &sentence)?;
    }
    for sample in c.samples.iter().take(samples) {
        unit(sample, page)?;
    }
    if c.samples.len() > samples {
        page.text(
            4,
            Tone::Faint,
            &format!(
                "{} in the report",
                count(c.samples.len() - samples, "more sample")
            ),
        )?;
    }
    Ok(())
}

fn unit(sample: &Sample, page: &mut Page<'_>) -> io::Result<()> {
    let same = sample.reread.as_ref() == Some(&sample.owner);
    let views = [
        ("expected", Some(&sample.expected)),
        (
            if same { "owner, twice" } else { "owner" },
            Some(&sample.owner),
        ),
        ("owner, again", sample.reread.as_ref().filter(|_| !same)),
        ("accessor", sample.accessor.as_ref()),
        ("says it is", sample.origin.as_ref()),
    ];
    let mut place = format!("{:#010x}", sample.offset);
    for (name, value) in views {
        let Some(value) = value else { continue };
        let tone = if name.starts_with("owner") {
            Tone::Bad
        } else {
            Tone::Plain
        };
        let label = format!("    {place:<10}  {name:<12}  ");
        page.labelled(Tone::Faint, &label, tone, value)?;
        place.clear();
    }
    Ok(())
}
