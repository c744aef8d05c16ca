//! The command that comes next. It has to tell something new: never the run that was just made, and no test whose cases the
//! report holds already, but for one: what was seen once has to be seen again.

use crate::diagnose::{
    evidence::Evidence,
    weigh::{DEEP, requalify},
};
use crate::model::case::{Record, Rung, Subject};
use std::collections::BTreeSet;

/// Stands for the file of the report where a command takes it; who knows the file puts its name there.
pub const REPORT: &str = "REPORT";

/// All that is planned for this host.
pub(super) const WHOLE: &str = "peerproof qualify";

/// What a run of `qualify` looks at.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    root: bool,
    gpus: BTreeSet<String>,
    pairs: BTreeSet<String>,
    mechanisms: BTreeSet<String>,
    budget: Option<&'static str>,
}

impl Asked {
    /// Of the words after `qualify`. With `strict`, a word that chooses nothing makes it another command than a run.
    fn of<'w>(words: impl Iterator<Item = &'w str>, strict: bool) -> Option<Asked> {
        let mut asked = Asked::default();
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            let (name, own) = match word.split_once('=') {
                Some((name, value)) if word.starts_with("--") => (name, Some(value)),
                _ => (word, None),
            };
            let list = match name {
                "--gpus" => &mut asked.gpus,
                "--pairs" => &mut asked.pairs,
                "--mechanism" => &mut asked.mechanisms,
                "--deep" => {
                    asked.budget = Some("deep");
                    continue;
                }
                "--quick" | "--prolog" => {
                    asked.budget = Some("quick");
                    continue;
                }
                _ if strict => return None,
                _ => continue,
            };
            let value = own.or_else(|| words.next())?;
            let bare = |item: &str| item.trim_matches('\'').to_string();
            list.extend(value.split(',').map(bare));
        }
        // Each GPU by itself is tested in any case.
        asked.mechanisms.remove("memory");
        Some(asked)
    }

    /// Of a line that is a run of this program and nothing else.
    fn of_line(line: &str) -> Option<Asked> {
        let (root, line) = match line.strip_prefix("sudo ") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let rest = line.strip_prefix(WHOLE)?;
        let asked = Asked::of(rest.split_whitespace(), true)?;
        Some(Asked { root, ..asked })
    }
}

/// Whether `line` is the run that made this report.
pub(super) fn is_made(e: &Evidence, line: &str) -> bool {
    let mut made = e.arguments.iter().map(String::as_str);
    if !made.by_ref().any(|word| word == "qualify") {
        return false;
    }
    Asked::of(made, false).is_some_and(|made| Asked::of_line(line) == Some(made))
}

/// Whether the report holds an answer to every case of a run of some mechanisms already.
fn is_answered(e: &Evidence, line: &str) -> bool {
    let Some(asked) = Asked::of_line(line) else {
        return false;
    };
    if asked.root || asked.budget == Some("deep") || asked.mechanisms.is_empty() {
        return false;
    }
    let about = |record: &&Record| match record.case.subject {
        Subject::Pair(pair) => asked.pairs.is_empty() || asked.pairs.contains(&pair.to_string()),
        Subject::Gpu(_) | Subject::Group(_) => true,
    };
    let quiet = e.records.iter().filter(|r| r.case.rung != Rung::Loaded);
    let ran: BTreeSet<&str> = quiet
        .filter(|r| r.outcome.ran())
        .filter(about)
        .map(|r| r.case.mechanism.as_str())
        .collect();
    asked.mechanisms.iter().all(|m| ran.contains(m.as_str()))
}

/// Whether a command would tell what the report does not.
pub(super) fn is_new(e: &Evidence, line: &str) -> bool {
    !is_made(e, line) && !is_answered(e, line)
}

/// A run that is to show again what was seen; a longer one where it is the run that was made.
pub(super) fn repeated(e: &Evidence, line: String) -> String {
    match is_made(e, &line) {
        false => line,
        true => format!("{line} {DEEP}"),
    }
}

/// A command that runs pairs again, of a cause that may hold many, turned to the pair and mechanism of the headline.
pub(super) fn for_headline(test: String, worst: &Record) -> String {
    let (Some(pair), Some((start, list))) =
        (worst.case.subject.pair(), test.split_once(" --mechanism "))
    else {
        return test;
    };
    if !start.starts_with("peerproof qualify --pairs ") || list.contains(' ') {
        return test;
    }
    let mut mechanisms: Vec<&str> = list.split(',').collect();
    if !mechanisms.contains(&worst.case.mechanism.as_str()) {
        mechanisms.push(&worst.case.mechanism);
    }
    requalify(&[pair], &mechanisms)
}
