//! The verdict as one line for a scheduler's drain reason: under 80 characters, what is wrong first, addresses that name the
//! hardware whatever the numbering, and no character that a shell or a scheduler's command could take for more than text.

use super::page::banner;
use crate::model::{
    case::{Record, Subject},
    finding::{Finding, Judgement},
    pair::GpuIndex,
    report::{Grading, Report},
    snapshot::Authenticity,
};

/// Longest line, in characters, all of them ASCII.
pub const LONGEST: usize = 79;

/// The line of a report.
pub fn of(report: &Report) -> String {
    let mark =
        banner(report.authenticity).map_or(report.snapshot.authenticity, |_| report.authenticity);
    let verdict = &report.verdict;
    let words = match verdict.grading {
        Grading::Pass | Grading::Inconclusive => Vec::new(),
        Grading::Warn => held(report).map(|f| found(report, f)).unwrap_or_default(),
        Grading::Fail => failed(report),
    };
    if words.is_empty() {
        return line(verdict.grading, mark, &verdict.headline);
    }
    // The end of a list is left out before any of it is cut.
    let room = LONGEST - head(verdict.grading, mark).len();
    let mut text = String::new();
    for word in words {
        if text.is_empty() || text.len() + 1 + word.len() <= room {
            text = format!("{text} {word}").trim_start().to_string();
        }
    }
    line(verdict.grading, mark, &text)
}

/// The line of anything else that is to be said: why a run has no report.
pub fn line(grading: Grading, authenticity: Authenticity, text: &str) -> String {
    let mut line = format!("{}{}", head(grading, authenticity), plain(text));
    if line.len() > LONGEST {
        line.truncate(LONGEST - 2);
        line = format!("{}..", line.trim_end());
    }
    line.trim_end().to_string()
}

fn head(grading: Grading, authenticity: Authenticity) -> String {
    let mark = banner(authenticity).map_or(String::new(), |(word, _)| format!("{word} "));
    format!("peerproof: {mark}{} ", grading.word())
}

/// Schedulers' helpers hand the line to `eval` in quotes of one kind (NHC: single ones) or the other, and a quote in it would end them:
/// quotes are left out, which costs the sense nothing. Dollars, backslashes and their like become question marks, and the letters
/// of other scripts too (docs/gates.md).
fn plain(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || " .,:;()/+-_>=%#".contains(c);
    let quote = |c: char| "'\"\u{2018}\u{2019}\u{201c}\u{201d}".contains(c);
    let kept = text.chars().filter(|c| !quote(*c)).map(|c| match c {
        c if safe(c) => c,
        c if c.is_whitespace() => ' ',
        _ => '?',
    });
    let text: String = kept.collect();
    text.split(' ')
        .filter(|w| !w.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn address(report: &Report, gpu: GpuIndex) -> String {
    let pci = report.snapshot.gpu(gpu).and_then(|g| g.pci.known());
    pci.map_or_else(|| format!("GPU{gpu}"), ToString::to_string)
}

fn subject(report: &Report, subject: Subject) -> String {
    match subject {
        Subject::Gpu(gpu) => address(report, gpu),
        Subject::Pair(pair) => format!(
            "{}->{}",
            address(report, pair.source),
            address(report, pair.destination)
        ),
        // Positions: the addresses of a whole group would not fit the line.
        Subject::Group(group) => group.to_string(),
    }
}

/// The worst cause that is held.
fn held(report: &Report) -> Option<&Finding> {
    let held = report.findings.iter();
    held.filter(|f| f.judgement == Judgement::Indicted)
        .max_by_key(|f| f.severity)
}

fn found(report: &Report, finding: &Finding) -> Vec<String> {
    let pair = finding.pairs.first().map(|p| Subject::Pair(*p));
    let place = finding.gpus.first().map(|g| Subject::Gpu(*g)).or(pair);
    let mut words = vec![plain(&finding.cause)];
    words.extend(place.map(|p| subject(report, p)));
    words
}

/// Where, by what, what kind of wrong; then how many pairs, and the cause.
fn failed(report: &Report) -> Vec<String> {
    let worst = report.verdict.worst_pair;
    let by_pair = worst.and_then(|pair| report.standing(pair).stopped_by);
    let alone = |r: &&Record| r.outcome.is_failure() && r.case.subject.pair().is_none();
    let any = |r: &&Record| r.outcome.is_failure();
    let record = by_pair
        .or_else(|| report.records.iter().find(alone))
        .or_else(|| report.records.iter().find(any));
    let Some(record) = record else {
        return held(report).map(|f| found(report, f)).unwrap_or_default();
    };
    let mut pairs: Vec<_> = report
        .records
        .iter()
        .filter(|r| r.outcome.is_failure())
        .filter_map(|r| r.case.subject.pair())
        .collect();
    pairs.sort();
    pairs.dedup();
    let mut words = vec![
        subject(report, record.case.subject),
        plain(&record.case.mechanism),
        record.outcome.word().to_string(),
    ];
    if pairs.len() > 1 {
        words.push(format!("({} pairs)", pairs.len()));
    }
    words.extend(held(report).map(|f| plain(&f.cause)));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_short_and_nothing_in_it_can_be_run() {
        let evil = "a'; reboot; echo \"$(id)\" `id` \\ \u{1b}[2J\n\u{202e}| & < \u{e9}";
        for authenticity in [
            Authenticity::Hardware,
            Authenticity::Simulated,
            Authenticity::FaultInjected,
        ] {
            for text in [evil.to_string(), evil.repeat(9), String::new()] {
                let line = line(Grading::Inconclusive, authenticity, &text);
                assert!(line.len() <= LONGEST, "{line}");
                assert!(line.starts_with("peerproof: "));
                let bad = line
                    .chars()
                    .find(|c| !c.is_ascii() || "'\"$`\\|&<\n\u{1b}".contains(*c));
                assert_eq!(bad, None, "{line}");
                assert_eq!(line.trim_end(), line);
            }
        }
        let quoted = "unknown option '--x' (see \"help\"); isn\u{2019}t";
        let told = line(Grading::Inconclusive, Authenticity::Hardware, quoted);
        assert_eq!(
            told,
            "peerproof: INCONCLUSIVE unknown option --x (see help); isnt"
        );
        let line = line(Grading::Fail, Authenticity::Simulated, "x");
        assert_eq!(line, "peerproof: SIMULATED FAIL x");
    }
}
