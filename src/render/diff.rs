//! A comparison for people: on a terminal, and as Markdown for a ticket. Configuration first, then what was found, then
//! numbers; what is the same is one line.

use super::page::{Options, Page, Tone, banner, clean, count};
use crate::model::{
    comparison::{
        Comparison, Difference, MatchedBy, NotCompared, NumberDifference, NumberPair, Relation,
        Side,
    },
    group::Group,
    measurement::Unit,
    pair::OrderedPair,
    snapshot::Authenticity,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

/// Subjects named in a line before the rest is counted.
const NAMED: usize = 10;
/// So many numbers of a kind are shown all, of more the first few; all of them are in the JSON.
const ALL_NUMBERS: usize = 6;
const SOME_NUMBERS: usize = 3;

/// Writes a comparison for a terminal.
///
/// # Errors
/// Those of the writer.
pub fn write(comparison: &Comparison, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(out, options);
    for authenticity in marks(comparison) {
        if let Some((word, rest)) = banner(authenticity) {
            page.labelled(Tone::Bad, &format!("{word}: "), Tone::Plain, rest)?;
        }
    }
    for (letter, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        page.labelled(
            Tone::Strong,
            &format!("{letter}  "),
            Tone::Plain,
            &side_words(side),
        )?;
    }
    page.text(0, Tone::Plain, &relation_words(comparison))?;
    page.text(0, Tone::Plain, &matching_words(comparison))?;
    for warning in &comparison.warnings {
        page.labelled(Tone::Doubt, "beware  ", Tone::Plain, warning)?;
    }
    for (title, list) in [
        ("Configuration", &comparison.configuration),
        ("Verdicts", &comparison.verdicts),
    ] {
        if list.is_empty() {
            continue;
        }
        page.heading(&format!("{title} (A => B)"))?;
        for difference in &together(list) {
            page.hanging(2, Tone::Plain, &difference_words(difference))?;
        }
    }
    if !comparison.numbers.is_empty() {
        page.heading("Numbers (A => B)")?;
        for group in &comparison.numbers {
            page.hanging(2, Tone::Plain, &number_words(group))?;
            for pair in group.differing.iter().take(shown(group)) {
                page.hanging(6, Tone::Plain, &pair_words(group, pair))?;
            }
        }
        page.text(
            2,
            Tone::Faint,
            &format!("Rule: {}.", comparison.numbers_rule),
        )?;
    }
    if !comparison.not_compared.is_empty() {
        page.heading("Not compared")?;
        for left in not_compared_words(&comparison.not_compared) {
            page.hanging(2, Tone::Plain, &left)?;
        }
    }
    page.blank()?;
    page.text(0, Tone::Strong, &end_words(comparison))
}

/// Writes a comparison as Markdown.
///
/// # Errors
/// Those of the writer.
pub fn markdown(comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    for authenticity in marks(comparison) {
        if let Some((word, rest)) = banner(authenticity) {
            writeln!(out, "> **{word}**: {rest}\n")?;
        }
    }
    writeln!(out, "**{}**\n", plain(&end_words(comparison)))?;
    for (letter, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        writeln!(out, "- **{letter}**: {}", plain(&side_words(side)))?;
    }
    writeln!(out, "- {}", plain(&relation_words(comparison)))?;
    writeln!(out, "- {}", plain(&matching_words(comparison)))?;
    for warning in &comparison.warnings {
        writeln!(out, "- **Beware**: {}", plain(warning))?;
    }
    for (title, list) in [
        ("Configuration", &comparison.configuration),
        ("Verdicts", &comparison.verdicts),
    ] {
        if list.is_empty() {
            continue;
        }
        writeln!(
            out,
            "\n### {title}\n\n| what | of | A | B |\n|---|---|---|---|"
        )?;
        for difference in &together(list) {
            let value = |value: &Option<String>| plain(value.as_deref().unwrap_or("none"));
            writeln!(
                out,
                "| {} | {} | {} | {} |",
                plain(&difference.what),
                plain(&subjects(&difference.of)),
                value(&difference.a),
                value(&difference.b)
            )?;
        }
    }
    if !comparison.numbers.is_empty() {
        writeln!(
            out,
            "\n### Numbers\n\n| what | of | A | B | B/A |\n|---|---|---|---|---|"
        )?;
        for group in &comparison.numbers {
            for pair in group.differing.iter().take(shown(group)) {
                writeln!(
                    out,
                    "| {} | {} | {} {unit} | {} {unit} | {:.2}{} |",
                    plain(&group.what),
                    plain(&pair.of),
                    digits(pair.a.median),
                    digits(pair.b.median),
                    pair.ratio,
                    match pair.doubts.is_empty() {
                        true => String::new(),
                        false => format!(" (beware, {})", plain(&pair.doubts.join(", "))),
                    },
                    unit = group.unit.name()
                )?;
            }
            let rest = group.differing.len() - shown(group);
            if rest > 0 {
                writeln!(
                    out,
                    "| {} | and {rest} more; {} were compared | | | |",
                    plain(&group.what),
                    group.compared
                )?;
            }
        }
        writeln!(out, "\nRule: {}.", plain(&comparison.numbers_rule))?;
    }
    if !comparison.not_compared.is_empty() {
        writeln!(out, "\n### Not compared\n")?;
        for left in not_compared_words(&comparison.not_compared) {
            writeln!(out, "- {}", plain(&left))?;
        }
    }
    Ok(())
}

/// The JSON Schema of a comparison, as published in `docs/diff.schema.json`.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Comparison).to_value()
}

/// Text of other people's hosts must not become markup: what Markdown or HTML would read is escaped.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for character in clean(text).chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '|' | '`' | '*' | '_' | '[' | ']' | '\\' | '#' | '~' | '!' => {
                out.push('\\');
                out.push(character);
            }
            // A mention would call somebody.
            '@' => out.push_str("&#64;"),
            other => out.push(other),
        }
    }
    out
}

fn marks(comparison: &Comparison) -> Vec<Authenticity> {
    let (a, b) = (comparison.a.authenticity, comparison.b.authenticity);
    if a == b { vec![a] } else { vec![a, b] }
}

fn side_words(side: &Side) -> String {
    let host = side.host.as_deref().unwrap_or("host not known");
    let budget = side
        .budget
        .as_deref()
        .map_or(String::new(), |b| format!(", {b} budget"));
    format!(
        "{}: {host}, {}, {}: {}; {} of {} tested, {} of {} cases ran{budget}",
        side.file,
        side.started_at,
        side.grading.word(),
        side.headline,
        side.tested_gpus,
        count(side.gpus as usize, "GPU"),
        side.ran,
        side.planned
    )
}

fn relation_words(comparison: &Comparison) -> String {
    let word = match comparison.relation {
        Relation::SameHost => "One host",
        Relation::SisterHosts => "Two hosts",
        Relation::Unknown => "One host or two, which cannot be told",
    };
    format!("{word}: {}.", comparison.relation_because)
}

fn matching_words(comparison: &Comparison) -> String {
    let matching = &comparison.matching;
    let by = |by: MatchedBy| matching.pairs.iter().filter(|m| m.by == by).count();
    let slot = match comparison.relation {
        Relation::SameHost => "by PCI address (the same slot)",
        _ => "by PCI address (the hosts are laid out alike)",
    };
    let ways: Vec<String> = [
        (by(MatchedBy::Uuid), "by UUID (the same card)"),
        (by(MatchedBy::PciAddress), slot),
        (
            by(MatchedBy::Position),
            "by position (in the order of their addresses, a guess)",
        ),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, way)| format!("{count} {way}"))
    .collect();
    let mut text = match ways.is_empty() {
        true => "No GPU of A was matched with one of B".to_string(),
        false => format!("GPUs matched: {}", ways.join(", ")),
    };
    for (list, side) in [(&matching.only_a, "A"), (&matching.only_b, "B")] {
        if !list.is_empty() {
            let gpus: Vec<String> = list.iter().map(|gpu| format!("GPU{gpu}")).collect();
            text += &format!("; only in {side}: {}", gpus.join(" "));
        }
    }
    let moved = matching.pairs.iter().filter(|m| m.a != m.b);
    let moved: Vec<String> = moved
        .map(|m| format!("GPU{} is GPU{} of B", m.a, m.b))
        .collect();
    if !moved.is_empty() {
        text += &format!("; {}", moved.join(", "));
    }
    format!("{text}. Numbers of GPUs below are A's.")
}

/// GPUs and pairs by spans, all else by name: forty names of pairs hide the pattern that says what is wrong.
fn subjects(of: &[String]) -> String {
    let gpus: Option<Vec<u32>> = of
        .iter()
        .map(|name| name.strip_prefix("GPU")?.parse().ok())
        .collect();
    if let Some(group) = gpus.and_then(Group::new) {
        return group.to_string();
    }
    let pairs = of.iter().map(|name| pair_of(name));
    if let Some(pairs) = pairs.collect::<Option<BTreeSet<OrderedPair>>>()
        && let Some(text) = spans_of_pairs(&pairs)
    {
        return text;
    }
    let mut words: Vec<String> = of.iter().take(NAMED).cloned().collect();
    if of.len() > NAMED {
        words.push(format!("and {} more", of.len() - NAMED));
    }
    let apart = if words.iter().any(|w| w.contains(' ')) {
        ", "
    } else {
        " "
    };
    words.join(apart)
}

fn pair_of(name: &str) -> Option<OrderedPair> {
    let (source, destination) = name.split_once("->")?;
    OrderedPair::new(source.parse().ok()?, destination.parse().ok()?)
}

/// "32 pairs: 0-3->4-7 4-7->0-3", "every pair of GPUs 0-7"; `None` of a single pair, and where spans say no more than names.
fn spans_of_pairs(pairs: &BTreeSet<OrderedPair>) -> Option<String> {
    let ends: BTreeSet<u32> = pairs
        .iter()
        .flat_map(|pair| [pair.source.0, pair.destination.0])
        .collect();
    let all = Group::new(ends)?;
    if pairs.len() > 2 && pairs.len() == all.pairs().count() {
        return Some(format!("every pair of {all}"));
    }
    // Sources that reach the same destinations are one term.
    let mut reached: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for pair in pairs {
        let to = reached.entry(pair.source.0).or_default();
        to.insert(pair.destination.0);
    }
    let mut terms: Vec<(BTreeSet<u32>, BTreeSet<u32>)> = Vec::new();
    for (source, to) in reached {
        match terms.iter_mut().find(|(_, known)| *known == to) {
            Some((sources, _)) => {
                sources.insert(source);
            }
            None => terms.push((BTreeSet::from([source]), to)),
        }
    }
    if terms.len() > NAMED || terms.len() * 2 > pairs.len() {
        return None;
    }
    let span = |gpus: &BTreeSet<u32>| match Group::new(gpus.iter().copied()) {
        Some(group) => group.to_string().replacen("GPUs ", "", 1),
        None => gpus.first().map_or(String::new(), u32::to_string),
    };
    let words = terms
        .iter()
        .map(|(from, to)| format!("{}->{}", span(from), span(to)));
    let words: Vec<String> = words.collect();
    Some(format!("{} pairs: {}", pairs.len(), words.join(" ")))
}

fn difference_words(difference: &Difference) -> String {
    let of = match difference.of.len() {
        0 => String::new(),
        _ => format!(" ({})", subjects(&difference.of)),
    };
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_string());
    format!(
        "{}{of}: {} => {}",
        difference.what,
        value(&difference.a),
        value(&difference.b)
    )
}

fn number_words(group: &NumberDifference) -> String {
    let differing = group.differing.len();
    let gain = |pair: &NumberPair| group.unit.gain(pair.ratio);
    let worse = group.differing.iter().filter(|p| gain(p) < 1.0).count();
    let (lost, gained) = match group.unit {
        Unit::GbPerS => ("lower", "higher"),
        Unit::Us | Unit::Ms => ("longer", "shorter"),
    };
    let direction = match (worse, differing - worse) {
        (_, 0) => format!("{lost} in B"),
        (0, _) => format!("{gained} in B"),
        (worse, better) => format!("{worse} {lost} in B, {better} {gained}"),
    };
    let more = match (shown(group), worse) {
        (all, _) if all == differing => ":".to_string(),
        (some, 0) => format!("; the {some} that gained most:"),
        (some, _) => format!("; the {some} that lost most:"),
    };
    format!(
        "{}: {differing} of {}, {direction}{more}",
        group.what, group.compared
    )
}

/// How many numbers of a kind are shown.
fn shown(group: &NumberDifference) -> usize {
    match group.differing.len() {
        few if few <= ALL_NUMBERS => few,
        _ => SOME_NUMBERS,
    }
}

fn pair_words(group: &NumberDifference, pair: &NumberPair) -> String {
    let samples = match pair.a.samples == pair.b.samples {
        true => count(pair.a.samples as usize, "sample"),
        false => format!("{} and {} samples", pair.a.samples, pair.b.samples),
    };
    let doubts = match pair.doubts.is_empty() {
        true => String::new(),
        false => format!("; beware, {}", pair.doubts.join(", ")),
    };
    format!(
        "{}: {} => {} {} (x{:.2}; quartiles {}, {} apart; {samples}{doubts})",
        pair.of,
        digits(pair.a.median),
        digits(pair.b.median),
        group.unit.name(),
        pair.ratio,
        digits(pair.a.quartiles_apart),
        digits(pair.b.quartiles_apart),
    )
}

/// Three digits that mean something.
fn digits(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// What was left uncompared, by its reason: "not known of B (not run), 112 times: resident, ipc-resident at rung 5".
fn not_compared_words(list: &[NotCompared]) -> Vec<String> {
    let mut reasons: Vec<(&str, u32, Vec<&str>)> = Vec::new();
    for left in list {
        match reasons.iter_mut().find(|(why, ..)| *why == left.why) {
            Some((_, count, whats)) => {
                *count += left.count;
                whats.push(&left.what);
            }
            None => reasons.push((&left.why, left.count, vec![&left.what])),
        }
    }
    let words = reasons.into_iter().map(|(why, count, whats)| {
        let times = match count {
            1 => String::new(),
            many => format!(", {many} times"),
        };
        format!("{why}{times}: {}", joined(&whats))
    });
    words.collect()
}

/// Differences that follow each other and are the same but for the mechanism are one.
fn together(list: &[Difference]) -> Vec<Difference> {
    let mut all: Vec<(Difference, Vec<&str>)> = Vec::new();
    for one in list {
        match all.last_mut() {
            Some((known, whats))
                if !one.of.is_empty()
                    && (&known.of, &known.a, &known.b) == (&one.of, &one.a, &one.b) =>
            {
                whats.push(&one.what);
            }
            _ => all.push((one.clone(), vec![&one.what])),
        }
    }
    let merged = all.into_iter().map(|(mut one, whats)| {
        one.what = joined(&whats);
        one
    });
    merged.collect()
}

/// "ce-pull, ce-push at rung 2; sm-load at rung 3": the rung is said once.
fn joined(whats: &[&str]) -> String {
    const RUNG: &str = " at rung ";
    let mut parts: Vec<(Vec<&str>, &str)> = Vec::new();
    for what in whats {
        let (name, rung) = what.split_once(RUNG).unwrap_or((what, ""));
        let known = parts
            .iter_mut()
            .find(|(_, known)| *known == rung && !rung.is_empty());
        match known {
            Some((names, _)) => names.push(name),
            None => parts.push((vec![name], rung)),
        }
    }
    let words = parts.iter().map(|(names, rung)| match rung.is_empty() {
        true => names.join(", "),
        false => format!("{}{RUNG}{rung}", names.join(", ")),
    });
    words.collect::<Vec<_>>().join("; ")
}

fn end_words(comparison: &Comparison) -> String {
    let same = &comparison.same;
    let numbers: usize = comparison
        .numbers
        .iter()
        .map(|group| group.differing.len())
        .sum();
    let head = match (comparison.differs(), comparison.one_sided()) {
        (false, false) => "Nothing differs".to_string(),
        (false, true) => "Nothing that could be compared differs; not all could be".to_string(),
        (true, _) => format!(
            "Different: {} of configuration, {}, {}",
            count(comparison.configuration.len(), "value"),
            count(comparison.verdicts.len(), "verdict"),
            count(numbers, "number")
        ),
    };
    format!(
        "{head}. The same: {} of configuration, {}, {}.",
        count(same.configuration as usize, "value"),
        count(same.verdicts as usize, "verdict"),
        count(same.numbers as usize, "number")
    )
}
