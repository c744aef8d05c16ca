//! `peerproof explain WORD`: the page of a cause or the paragraph of a term, from the texts in `docs/` that the same build
//! carries; with `--from REPORT`, what that report's evidence says of the cause, before the page.

use super::{Surroundings, console, exit::Stop, recommend};
use crate::{
    diagnose::{self, Evidence},
    model::{
        finding::{Confidence, Finding, Judgement, Severity},
        report::Report,
    },
    probe::mechanism,
    profile::{ConsumerPath, Profiles, edits},
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
    /// A cause or a finding's id (`peerproof list` has them), or a term (PIX, busbw, rung 5), all of which
    /// 'terms' lists.
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

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let width = surroundings.console.options.width;
    let report = match &options.from {
        Some(path) => Some(recommend::report_file(path)?),
        None => None,
    };
    let word = options.words.join(" ");
    if word.is_empty() {
        return match report {
            Some(report) => console::print(|out| overview(&judged(&report), width, out)),
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
                    show(finding, width, out)?;
                }
            }
            write!(out, "{}", render::reflowed(page, width))
        });
    }
    if let Some(term) = find(&word) {
        return console::print(|out| {
            writeln!(out, "{}", term.names.join(" / "))?;
            write!(out, "{}", render::reflowed(term.text, width))
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
    if let Some(told) = of_profiles(&word) {
        return console::print(|out| write!(out, "{}", render::reflowed(&told, width)));
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

/// A consumer or an engine's backend, by id or name, from the profiles.
fn of_profiles(word: &str) -> Option<String> {
    let wanted = plain(word);
    let is = |id: &str, name: &str| plain(id) == wanted || plain(name) == wanted;
    let profiles = Profiles::embedded().ok()?;
    if let Some(one) = profiles.consumers.iter().find(|c| is(&c.id, &c.name)) {
        let rungs: Vec<String> = one.needs.iter().map(|n| n.rung.to_string()).collect();
        let way = match one.path {
            ConsumerPath::Direct => "between the GPUs; it does not exist without peer access",
            ConsumerPath::Either => "between the GPUs, and through the host without peer access",
            ConsumerPath::Host => "through the host",
        };
        return Some(format!(
            "{} ({})\nA consumer of transfers between GPUs. Its bytes go {way}. It relies on rungs {}.\nRead in: {}",
            one.name,
            one.id,
            rungs.join(", "),
            one.source
        ));
    }
    let rows: Vec<String> = profiles
        .engines
        .iter()
        .flat_map(|engine| engine.backends.iter().map(move |b| (engine, b)))
        .filter(|(_, b)| is(&b.id, &b.name))
        .map(|(engine, b)| {
            format!(
                "{}: {} ({}), {}, {}. Read in: {}",
                engine.name,
                b.name,
                b.id,
                if b.peer {
                    "writes or reads peer memory"
                } else {
                    "uses no peer memory of its own"
                },
                if b.by_default {
                    "on by default"
                } else {
                    "off unless asked for"
                },
                b.source
            )
        })
        .collect();
    (!rows.is_empty()).then(|| format!("An all-reduce backend of an engine.\n{}", rows.join("\n")))
}

/// The term of this name; a number of NVLinks stands for all of them.
fn find(word: &str) -> Option<Term> {
    let mut wanted = plain(word);
    let links = wanted.strip_prefix("nv").unwrap_or_default();
    if !links.is_empty() && links.chars().all(|c| c.is_ascii_digit()) {
        wanted = "nv#".to_string();
    }
    if let Some((reached, "7")) = word.trim().split_once('+')
        && reached.parse::<u32>().is_ok_and(|n| n < 7)
    {
        wanted = plain("4+7");
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

fn overview(findings: &[Finding], width: usize, out: &mut dyn Write) -> io::Result<()> {
    for finding in findings {
        let line = format!(
            "{}: {}: {}",
            finding.cause,
            heading(finding),
            render::clean(&finding.because)
        );
        write!(out, "{}", render::reflowed(&line, width))?;
    }
    Ok(())
}

fn show(finding: &Finding, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut told = |label: &str, text: &str| -> io::Result<()> {
        // A label hangs as the mark of a list does.
        let mut lead = format!("  {label:<6} ");
        for row in render::reflowed(text, width.saturating_sub(lead.len())).lines() {
            writeln!(out, "{lead}{row}")?;
            lead = " ".repeat(lead.len());
        }
        Ok(())
    };
    told("In this report:", &heading(finding))?;
    let pairs = finding.pairs.iter().map(ToString::to_string);
    let gpus = finding.gpus.iter().map(|g| format!("GPU{g}"));
    let place: Vec<String> = pairs.chain(gpus).collect();
    if !place.is_empty() {
        told("where", &place.join(" "))?;
    }
    told("why", &render::clean(&finding.because))?;
    let lists = [
        ("seen", &finding.evidence),
        ("fix", &finding.fix),
        ("next", &finding.next_test.iter().cloned().collect()),
    ];
    for (label, lines) in lists {
        for line in lines {
            told(label, &render::clean(line))?;
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

    /// Every word that a report can print is explained. The lists are the model's own, and a new variant does not compile
    /// here before it is named.
    #[test]
    fn every_printed_word_has_its_paragraph() {
        use crate::model::{
            case::{Corruption, Outcome, Rung},
            report::Grading,
        };
        let text = String::new;
        let (api, name, reason) = (text(), text(), text());
        let refused = Outcome::Refused {
            api: api.clone(),
            code: 0,
            name: name.clone(),
        };
        let mut outcomes = vec![
            Outcome::Intact,
            refused,
            Outcome::Faulted { api, code: 0, name },
            Outcome::TimedOut { after_ms: 0 },
            Outcome::Never {
                round: 1,
                rounds: 1,
                after_ms: 0,
                missing: None,
            },
            Outcome::Died { how: text() },
            Outcome::NotApplicable {
                reason: reason.clone(),
            },
            Outcome::NotRun { reason },
        ];
        outcomes.retain(|o| match o {
            Outcome::Intact
            | Outcome::Refused { .. }
            | Outcome::Faulted { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Never { .. }
            | Outcome::Died { .. }
            | Outcome::NotApplicable { .. }
            | Outcome::NotRun { .. } => true,
            // Its word is the kind of wrong.
            Outcome::Corrupt(_) => {
                let _: Option<Corruption> = None;
                false
            }
        });
        let gradings = [
            Grading::Pass,
            Grading::Warn,
            Grading::Fail,
            Grading::Inconclusive,
        ];
        for grading in gradings {
            match grading {
                Grading::Pass | Grading::Warn | Grading::Fail | Grading::Inconclusive => {}
            }
        }
        let profiles = Profiles::embedded().unwrap();
        let words = outcomes
            .iter()
            .map(|o| o.word().to_string())
            .chain(gradings.map(|g| g.word().to_string()))
            .chain(Rung::LADDER.map(|r| r.name().to_string()))
            .chain([Rung::Alone.name().to_string()])
            .chain(
                profiles
                    .consumers
                    .iter()
                    .flat_map(|c| [c.id.clone(), c.name.clone()]),
            )
            .chain(
                profiles
                    .engines
                    .iter()
                    .flat_map(|e| e.backends.iter().map(|b| b.id.clone())),
            )
            .chain(mechanism::ROSTER.iter().map(|m| m.id().to_string()))
            .chain(
                crate::probe::supervisor::mechanism_ids()
                    .into_iter()
                    .map(ToString::to_string),
            )
            .chain(
                [
                    "pcie_ipc",
                    "NCCL P2P",
                    "symmetric memory",
                    "4+7",
                    "2+7",
                    "DMA-FQ",
                    "identity",
                    "n/a",
                    "died",
                ]
                .map(str::to_string),
            );
        let known = |word: &str| {
            find(word).is_some()
                || of_profiles(word).is_some()
                || mechanism::ROSTER
                    .iter()
                    .any(|m| plain(m.id()) == plain(word))
        };
        let missing: Vec<String> = words.filter(|word| !known(word)).collect();
        assert!(missing.is_empty(), "nothing explains {missing:?}");
    }

    #[test]
    fn unknown_words_get_neighbours() {
        assert!(nearest("iommu-translatoin").contains(&"iommu-translation"));
        assert!(nearest("iommu").contains(&"IOMMU"));
        assert!(nearest("PHX").iter().any(|n| matches!(*n, "PHB" | "PIX")));
        assert!(nearest("gremlins").is_empty(), "{:?}", nearest("gremlins"));
    }
}
