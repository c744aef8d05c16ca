//! `peerproof explain WORD`: the page of a cause or the paragraph of a term, from the texts in `docs/` that the same build
//! carries; with `--from REPORT`, what that report's evidence says of the cause, before the page.

use super::{console, exit::Stop, recommend};
use crate::{
    diagnose::{self, Evidence},
    model::{
        finding::{Confidence, Finding, Judgement, Severity},
        report::Report,
    },
    probe::mechanism,
    render,
};
use std::{
    io::{self, Write},
    path::PathBuf,
};

/// The glossary: one `## NAME / OTHER NAME` heading a term.
const TERMS: &str = include_str!("../../docs/terms.md");

/// Lists all terms instead of explaining one.
const ALL_TERMS: &str = "terms";

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                  peerproof explain iommu-translation\n  \
                  peerproof explain iommu-translation --from report.json   what this report's evidence says of it\n  \
                  peerproof explain rung 5")]
pub(super) struct Options {
    /// A cause or a finding's id (`peerproof list` has them), or a term: PIX, busbw, mirror, rung 5. 'terms' lists the terms.
    #[arg(value_name = "WORD", required_unless_present = "from")]
    words: Vec<String>,
    /// Report file: shows what its evidence says of the cause; without a word, of all causes.
    #[arg(long, value_name = "REPORT")]
    from: Option<PathBuf>,
}

/// A paragraph of the glossary.
struct Term {
    names: Vec<&'static str>,
    text: &'static str,
}

fn terms() -> impl Iterator<Item = Term> {
    TERMS.split("\n## ").skip(1).filter_map(|section| {
        let (heading, text) = section.split_once('\n')?;
        Some(Term {
            names: heading.split(" / ").map(str::trim).collect(),
            text: text.trim(),
        })
    })
}

/// Case, blanks and punctuation do not count: "Rung5" is "rung 5", "NV18" is not "NV#".
fn plain(word: &str) -> String {
    word.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '#' | '>'))
        .flat_map(char::to_lowercase)
        .collect()
}

pub(super) fn run(options: &Options) -> Result<u8, Stop> {
    let report = match &options.from {
        Some(path) => Some(recommend::report_file(path)?),
        None => None,
    };
    let word = options.words.join(" ");
    if word.is_empty() {
        return match report {
            Some(report) => console::print(|out| overview(&judged(&report), out)),
            None => Err(Stop::usage("explain what? A cause or a term")),
        };
    }
    if plain(&word) == ALL_TERMS {
        return console::print(|out| {
            terms().try_for_each(|term| writeln!(out, "{}", term.names.join(" / ")))
        });
    }
    if let Some(cause) = diagnose::ROSTER
        .iter()
        .find(|c| plain(c.id) == plain(&word))
    {
        let page = diagnose::page(cause.id)
            .ok_or_else(|| Stop::failed(&format!("no page for '{}'", cause.id)))?;
        return console::print(|out| {
            if let Some(report) = &report {
                for finding in judged(report).iter().filter(|f| f.cause == cause.id) {
                    show(finding, out)?;
                }
            }
            write!(out, "{page}")
        });
    }
    if let Some(term) = find(&word) {
        return console::print(|out| {
            writeln!(out, "{}", term.names.join(" / "))?;
            writeln!(out, "{}", term.text)
        });
    }
    if let Some(mechanism) = mechanism::ROSTER
        .iter()
        .find(|m| plain(m.id()) == plain(&word))
    {
        let rung = mechanism.rung();
        return console::print(|out| {
            writeln!(
                out,
                "{}: {} (rung {rung})",
                mechanism.id(),
                mechanism.title()
            )
        });
    }
    Err(Stop::usage(format!(
        "no cause '{0}', and no term; {1}. 'peerproof list' has the causes, 'peerproof explain terms' the terms",
        render::clean(&word),
        match nearest(&word).as_slice() {
            [] => "nothing is spelt like it".to_string(),
            names => format!("nearest: {}", names.join(", ")),
        }
    )))
}

/// The term of this name; a number of NVLinks stands for all of them.
fn find(word: &str) -> Option<Term> {
    let mut wanted = plain(word);
    let links = wanted.strip_prefix("nv").unwrap_or_default();
    if !links.is_empty() && links.chars().all(|c| c.is_ascii_digit()) {
        wanted = "nv#".to_string();
    }
    terms().find(|term| term.names.iter().any(|name| plain(name) == wanted))
}

/// Up to four names that are spelt like `word` or contain it.
fn nearest(word: &str) -> Vec<&'static str> {
    let wanted = plain(word);
    let causes = diagnose::ROSTER.iter().map(|cause| cause.id);
    let mut all: Vec<(usize, &str)> = causes
        .chain(terms().flat_map(|term| term.names))
        .filter_map(|name| {
            let own = plain(name);
            let distance = if wanted.len() > 2 && own.contains(&wanted) {
                1
            } else {
                edits(&wanted, &own)
            };
            (distance <= 1 + wanted.len() / 4).then_some((distance, name))
        })
        .collect();
    all.sort();
    all.into_iter().take(4).map(|(_, name)| name).collect()
}

/// Insertions, deletions and replacements from one word to the other (Levenshtein).
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

/// Judged anew: a report of an older version gets the causes of this one.
fn judged(report: &Report) -> Vec<Finding> {
    diagnose::findings(&Evidence::new(
        &report.snapshot,
        &report.records,
        &report.observations,
    ))
}

fn heading(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Info => "for information",
    };
    let confidence = match finding.confidence {
        Confidence::Established => "established by test",
        Confidence::Probable => "probable",
        Confidence::Possible => "possible",
    };
    match finding.judgement {
        Judgement::Indicted => format!("held ({severity}, {confidence})"),
        Judgement::Cleared => "cleared".to_string(),
        Judgement::CannotTell => "cannot tell".to_string(),
        Judgement::NotApplicable => "does not apply".to_string(),
    }
}

fn overview(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    for finding in findings {
        writeln!(
            out,
            "{}: {}: {}",
            finding.cause,
            heading(finding),
            render::clean(&finding.because)
        )?;
    }
    Ok(())
}

fn show(finding: &Finding, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "In this report: {}", heading(finding))?;
    let pairs = finding.pairs.iter().map(ToString::to_string);
    let gpus = finding.gpus.iter().map(|g| format!("GPU{g}"));
    let place: Vec<String> = pairs.chain(gpus).collect();
    if !place.is_empty() {
        writeln!(out, "  where  {}", place.join(" "))?;
    }
    writeln!(out, "  why    {}", render::clean(&finding.because))?;
    let lists = [
        ("seen", &finding.evidence),
        ("fix ", &finding.fix),
        ("next", &finding.next_test.iter().cloned().collect()),
    ];
    for (label, lines) in lists {
        for line in lines {
            writeln!(out, "  {label}   {}", render::clean(line))?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn terms_are_found_by_any_name_and_spelling() {
        for word in [
            "PIX",
            "phb",
            "Rung 5",
            "rung5",
            "busbw",
            "bus bandwidth",
            "mirror",
            "push",
            "NV18",
            "NV#",
            "x-nv-gpudirect-clique",
        ] {
            assert!(find(word).is_some(), "{word}");
        }
        assert!(find("rung 9").is_none());
    }

    #[test]
    fn no_name_is_taken_twice_and_every_paragraph_says_something() {
        let mut names = BTreeSet::new();
        let causes = diagnose::ROSTER.iter().map(|c| plain(c.id));
        for name in causes.chain(terms().flat_map(|t| t.names).map(plain)) {
            assert!(names.insert(name.clone()), "{name}");
        }
        assert!(terms().count() > 60);
        for term in terms() {
            assert!(
                term.text.len() > 10 && !term.text.contains("##"),
                "{:?}",
                term.names
            );
        }
    }

    /// What a report prints has its paragraph.
    #[test]
    fn kinds_rungs_and_paths_of_the_model_are_all_explained() {
        use crate::model::{
            case::{Rung, WrongKind},
            topology::PathType,
        };
        let kinds = WrongKind::ALL.iter().map(|k| k.name().to_string());
        let rungs = (0..Rung::LADDER.len()).map(|n| format!("rung {n}"));
        let paths = [
            PathType::Pix,
            PathType::Pxb,
            PathType::Phb,
            PathType::Node,
            PathType::Sys,
        ];
        let missing: Vec<String> = kinds
            .chain(rungs)
            .chain(paths.iter().map(ToString::to_string))
            .filter(|word| find(word).is_none())
            .collect();
        assert!(
            missing.is_empty(),
            "no paragraph in docs/terms.md: {missing:?}"
        );
    }

    #[test]
    fn unknown_words_get_neighbours() {
        assert_eq!(edits("iommu", "iomu"), 1);
        assert!(nearest("iommu-translatoin").contains(&"iommu-translation"));
        assert!(nearest("iommu").contains(&"IOMMU"));
        assert!(nearest("PHX").iter().any(|n| matches!(*n, "PHB" | "PIX")));
        assert!(nearest("gremlins").is_empty(), "{:?}", nearest("gremlins"));
    }
}
