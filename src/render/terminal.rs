//! The report of `qualify` for a tired person: what is wrong, why, what to do next; then the tables that show it; then
//! what was not tested. A healthy host gets a short page, because nothing on it needs reading twice.

use super::{
    evidence, groups, loaded,
    map::{host_words, recorded_words},
    outcomes,
    page::{Options, Page, Tone, banner, count, cut, grouped, pad, pairs_in_words, size},
    recommend,
};
use crate::model::{
    case::{Outcome, Rung, WrongKind},
    finding::{Confidence, ConsumerState, Finding, IslandConsumer, Judgement, Severity},
    report::{Coverage, Gap, Grading, Report},
};
use std::{
    cmp::Reverse,
    io::{self, Write},
};

/// What became of the report file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// Written there.
    To(String),
    /// Nobody wanted one.
    NotAsked,
    /// Could not be written, and why.
    Failed(String),
}

/// What the command knows and the report does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closing {
    /// Show where the time went.
    pub timings: bool,
    /// What became of the report file.
    pub saved: Saved,
}

/// Writes `report` as text.
///
/// # Errors
/// Those of the writer.
pub fn write(
    report: &Report,
    closing: &Closing,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    head(report, page)?;
    outcomes::pair_matrix(report, page)?;
    groups::write(report, page)?;
    outcomes::mechanisms(report, page)?;
    loaded::write(report, page)?;
    consumers(report, page)?;
    causes(report, page)?;
    evidence::write(report, page)?;
    recommendations(report, page)?;
    coverage(report, page)?;
    if closing.timings {
        timings(report, page)?;
    }
    last_line(report, closing, page)
}

pub(super) fn tone_of(grading: Grading) -> Tone {
    match grading {
        Grading::Pass => Tone::Good,
        Grading::Warn | Grading::Inconclusive => Tone::Doubt,
        Grading::Fail => Tone::Bad,
    }
}

fn head(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let mark = banner(report.authenticity).or_else(|| banner(report.snapshot.authenticity));
    if let Some((word, meaning)) = mark {
        page.labelled(Tone::Bad, &format!("{word}: "), Tone::Strong, meaning)?;
    }
    if report.interrupted {
        page.labelled(
            Tone::Doubt,
            "CUT SHORT: ",
            Tone::Plain,
            "the run was interrupted; this is what was done until then.",
        )?;
    }
    verdict(report, page)
}

/// The verdict: what, why, what to do, and where that is so.
pub(super) fn verdict(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let verdict = &report.verdict;
    let word = verdict.grading.word();
    let second = second_line(verdict.grading);
    let width = word.len().max(second.len()) + 2;
    let tone = tone_of(verdict.grading);
    page.labelled(tone, &pad(word, width), Tone::Strong, &verdict.headline)?;
    page.labelled(
        Tone::Plain,
        &pad(second, width),
        Tone::Plain,
        &verdict.cause,
    )?;
    page.labelled(Tone::Plain, &pad("next", width), Tone::Plain, &verdict.next)?;
    page.labelled(
        Tone::Faint,
        &pad("where", width),
        Tone::Faint,
        &host_line(report),
    )
}

/// What the verdict's second line is: a host that passed has no cause of anything.
pub(super) fn second_line(grading: Grading) -> &'static str {
    match grading {
        Grading::Pass => "limits",
        Grading::Inconclusive => "why",
        Grading::Warn | Grading::Fail => "cause",
    }
}

/// Which host, driver and GPUs, in one line.
pub(super) fn host_line(report: &Report) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for gpu in &report.snapshot.gpus {
        let name = gpu
            .name
            .known()
            .map_or_else(|| "GPU of unknown name".to_string(), |n| cut(n, 48));
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, number)) => *number += 1,
            None => kinds.push((name, 1)),
        }
    }
    let gpus: Vec<String> = kinds
        .iter()
        .map(|(name, number)| format!("{number} x {name}"))
        .collect();
    let gpus = if gpus.is_empty() {
        "no NVIDIA GPU".to_string()
    } else {
        gpus.join(", ")
    };
    let mut line = format!("{}; {gpus}", host_words(&report.snapshot));
    if !report.snapshot.gpus.is_empty() {
        line.push_str(&format!("; fabric {}", report.snapshot.topology.class));
    }
    if let Some(recorded) = recorded_words(&report.snapshot) {
        line.push_str(&format!("; {recorded}"));
    }
    line
}

fn consumers(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    if report.consumers.is_empty() {
        return Ok(());
    }
    page.heading("Who may rely on it")?;
    let names = report
        .consumers
        .iter()
        .map(|c| cut(&c.name, 36).chars().count())
        .max()
        .unwrap_or(0);
    for state in [
        ConsumerState::Vetoed,
        ConsumerState::Unproven,
        ConsumerState::Proven,
        ConsumerState::NotApplicable,
    ] {
        let (mark, tone) = mark_of(state);
        for one in report.consumers.iter().filter(|c| c.state == state) {
            let label = format!("  {mark} {}  ", pad(&cut(&one.name, 36), names));
            page.labelled(tone, &label, Tone::Plain, &one.sentence)?;
        }
    }
    islands(report, page)
}

/// An island and how consumers fare on it, those that fare alike together: state, sentence, names.
pub(super) type Fared<'a> = Vec<(ConsumerState, &'a str, Vec<String>)>;

/// What parts of the group may rely on where the whole may not: each island once.
pub(super) fn island_groups(report: &Report) -> Vec<(&IslandConsumer, Fared<'_>)> {
    let mut all: Vec<(&IslandConsumer, Fared<'_>)> = Vec::new();
    for (consumer, island) in report
        .consumers
        .iter()
        .flat_map(|c| c.islands.iter().map(move |i| (c, i)))
    {
        let same = |(known, _): &(&IslandConsumer, Fared<'_>)| known.gpus == island.gpus;
        let at = all.iter().position(same).unwrap_or_else(|| {
            all.push((island, Vec::new()));
            all.len() - 1
        });
        let Some((_, fared)) = all.get_mut(at) else {
            continue;
        };
        let (name, sentence) = (cut(&consumer.name, 36), island.sentence.as_str());
        match fared.iter_mut().find(|(_, s, _)| *s == sentence) {
            Some((_, _, names)) => names.push(name),
            None => fared.push((island.state, sentence, vec![name])),
        }
    }
    all
}

fn islands(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let all = island_groups(report);
    if all.is_empty() {
        return Ok(());
    }
    page.text(
        2,
        Tone::Faint,
        "parts of the group, for those that the whole group cannot serve:",
    )?;
    for (island, fared) in &all {
        let gpus: Vec<String> = island.gpus.iter().map(ToString::to_string).collect();
        let name = format!("GPUs {} ({})", gpus.join(" "), cut(&island.joined_by, 24));
        page.text(4, Tone::Strong, &name)?;
        for (state, sentence, names) in fared {
            let (mark, tone) = mark_of(*state);
            let text = format!("{}: {sentence}", names.join(", "));
            page.labelled(tone, &format!("      {mark} "), Tone::Plain, &text)?;
        }
    }
    Ok(())
}

/// A sign and a tone for a state.
pub(super) fn mark_of(state: ConsumerState) -> (&'static str, Tone) {
    match state {
        ConsumerState::Vetoed => ("x", Tone::Bad),
        ConsumerState::Unproven => ("?", Tone::Doubt),
        ConsumerState::Proven => ("+", Tone::Good),
        ConsumerState::NotApplicable => ("-", Tone::Faint),
    }
}

/// Findings of one judgement, the worst and surest first.
pub(super) fn judged(report: &Report, judgement: Judgement) -> Vec<&Finding> {
    let mut list: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|f| f.judgement == judgement)
        .collect();
    list.sort_by_key(|f| (Reverse(f.severity), Reverse(f.confidence)));
    list
}

/// In words.
pub(super) fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Info => "for information",
    }
}

/// In words.
pub(super) fn confidence_word(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Established => "established by test",
        Confidence::Probable => "probable",
        Confidence::Possible => "possible",
    }
}

/// Pairs and GPUs that a finding is about.
pub(super) fn place_words(report: &Report, finding: &Finding) -> String {
    let mut place = Vec::new();
    if !finding.pairs.is_empty() {
        let tested = report.tested_gpus.len();
        let all = tested * tested.saturating_sub(1);
        place.push(pairs_in_words(&finding.pairs, all));
    }
    if !finding.gpus.is_empty() {
        let list: Vec<String> = finding.gpus.iter().map(|g| format!("GPU{g}")).collect();
        place.push(list.join(" "));
    }
    if place.is_empty() {
        place.push("the whole host".to_string());
    }
    place.join("; ")
}

fn causes(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let (held, open, cleared) = (
        judged(report, Judgement::Indicted),
        judged(report, Judgement::CannotTell),
        judged(report, Judgement::Cleared),
    );
    if held.is_empty() && open.is_empty() && cleared.is_empty() {
        return Ok(());
    }
    if held.is_empty() && open.is_empty() {
        page.blank()?;
        return page.labelled(
            Tone::Good,
            "Causes cleared: ",
            Tone::Plain,
            &titles(&cleared),
        );
    }
    page.heading("Causes")?;
    for (position, finding) in held.iter().enumerate() {
        indicted(report, position + 1, finding, page)?;
    }
    for finding in open {
        page.labelled(
            Tone::Doubt,
            "  cannot tell: ",
            Tone::Plain,
            &format!("{}: {}", cut(&finding.title, 80), finding.because),
        )?;
        if let Some(test) = &finding.next_test {
            page.labelled(Tone::Plain, "    to tell: ", Tone::Plain, test)?;
        }
    }
    if !cleared.is_empty() {
        page.labelled(Tone::Good, "  cleared: ", Tone::Plain, &titles(&cleared))?;
    }
    Ok(())
}

fn titles(findings: &[&Finding]) -> String {
    let list: Vec<String> = findings.iter().map(|f| cut(&f.title, 60)).collect();
    list.join("; ")
}

fn indicted(
    report: &Report,
    number: usize,
    finding: &Finding,
    page: &mut Page<'_>,
) -> io::Result<()> {
    let severity = severity_word(finding.severity);
    let confidence = confidence_word(finding.confidence);
    let tone = match finding.severity {
        Severity::Critical => Tone::Bad,
        Severity::Warning => Tone::Doubt,
        Severity::Info => Tone::Plain,
    };
    page.labelled(
        tone,
        &format!("  {number}. "),
        Tone::Strong,
        &format!("{} ({severity}, {confidence})", cut(&finding.title, 120)),
    )?;
    let place = place_words(report, finding);
    page.labelled(Tone::Faint, "     where   ", Tone::Plain, &place)?;
    page.labelled(Tone::Faint, "     why     ", Tone::Plain, &finding.because)?;
    let mut label = "     seen    ";
    for evidence in &finding.evidence {
        page.labelled(Tone::Faint, label, Tone::Plain, evidence)?;
        label = "             ";
    }
    let mut label = "     fix     ";
    for fix in &finding.fix {
        page.labelled(Tone::Faint, label, Tone::Strong, fix)?;
        label = "             ";
    }
    if let Some(test) = &finding.next_test {
        page.labelled(Tone::Faint, "     proof   ", Tone::Plain, test)?;
    }
    Ok(())
}

fn recommendations(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    if report.recommendations.is_empty() {
        return Ok(());
    }
    page.heading("Launch settings")?;
    for one in &report.recommendations {
        let label = format!("  {}  ", cut(&one.engine, 16));
        let (mark, words) = if recommend::must_not_serve(one) {
            (Tone::Bad, Tone::Bad)
        } else {
            (Tone::Strong, Tone::Plain)
        };
        page.labelled(mark, &label, words, &one.backend_name)?;
        let indent = " ".repeat(label.chars().count());
        let settings = recommend::in_one_line(one);
        if !settings.is_empty() {
            page.labelled(Tone::Plain, &indent, Tone::Plain, &settings)?;
        }
        for caveat in &one.caveats {
            page.labelled(Tone::Doubt, &format!("{indent}! "), Tone::Plain, caveat)?;
        }
    }
    page.labelled(
        Tone::Faint,
        "  reasons and sizes: ",
        Tone::Faint,
        "peerproof recommend --engine ENGINE --model MODEL",
    )
}

fn coverage(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let coverage = &report.coverage;
    let sum = |gaps: &[Gap]| gaps.iter().map(|g| g.cases as usize).sum::<usize>();
    let (missing, absent) = (sum(&coverage.not_run), sum(&coverage.not_applicable));
    page.heading("Coverage")?;
    let tone = if missing > 0 || coverage.ran == 0 {
        Tone::Doubt
    } else {
        Tone::Plain
    };
    let mut line = format!(
        "{} planned, {} ran, {missing} not run",
        count(coverage.planned as usize, "case"),
        coverage.ran
    );
    if absent > 0 {
        line.push_str(&format!(", {absent} not applicable"));
    }
    page.text(2, tone, &line)?;
    for (word, tone, gaps) in [
        ("not run", Tone::Doubt, &coverage.not_run),
        ("not applicable", Tone::Faint, &coverage.not_applicable),
    ] {
        for gap in gap_groups(gaps) {
            page.labelled(
                tone,
                &format!("  {word}: "),
                Tone::Plain,
                &format!("{} ({})", gap.reason, count(gap.cases as usize, "case")),
            )?;
        }
    }
    if !coverage.left_out.is_empty() {
        page.labelled(
            Tone::Faint,
            "  left out: ",
            Tone::Plain,
            &coverage.left_out.join("; "),
        )?;
    }
    if !report.snapshot.environment.is_empty() {
        let set: Vec<String> = report
            .snapshot
            .environment
            .iter()
            .map(|(name, value)| format!("{}={}", cut(name, 48), cut(value, 48)))
            .collect();
        page.labelled(
            Tone::Faint,
            "  environment as found: ",
            Tone::Plain,
            &set.join(" "),
        )?;
    }
    if let Some(budget) = &coverage.budget {
        let text = format!(
            "{}: {} on each GPU, {} of pinned host memory, {:.0} s expected, no case begun after {:.0} s",
            cut(&budget.name, 16),
            size(budget.device_bytes),
            size(budget.host_bytes),
            budget.expected_s.ceil(),
            budget.limit_s
        );
        page.labelled(Tone::Faint, "  budget: ", Tone::Plain, &text)?;
    }
    if let Some(rate) = coverage.seen_fault_rate {
        page.text(
            2,
            Tone::Plain,
            &format!(
                "smallest fault rate that would be seen (95%): {}, worst case",
                share_of_attempts(rate)
            ),
        )?;
        sensitivity(coverage, page)?;
        let quick = coverage.budget.as_ref().is_some_and(|b| b.name == "quick");
        if rate <= RARE {
            let text = "a fault of 1 in 200 attempts would have been seen";
            page.text(2, Tone::Good, text)?;
        } else if quick {
            let text = "a fault of 1 in 200 attempts would not have been seen; --deep looks for it";
            page.text(2, Tone::Doubt, text)?;
        }
    }
    let (tone, line) = selftest_words(report);
    page.text(2, tone, &format!("selftest: {line}"))
}

/// What the self-test gave.
pub(super) fn selftest_words(report: &Report) -> (Tone, String) {
    match &report.selftest {
        None => (
            Tone::Doubt,
            "not run, so the checker itself was not seen to fail".to_string(),
        ),
        Some(selftest) => {
            let found = selftest.plants.iter().filter(|p| p.found()).count();
            let tone = if selftest.passed() {
                Tone::Good
            } else {
                Tone::Bad
            };
            let mut line = format!("{found} of {} named", count(selftest.plants.len(), "plant"));
            if !selftest.passed() {
                let word = |kind: Option<WrongKind>| kind.map_or("intact", WrongKind::name);
                for plant in selftest.plants.iter().filter(|p| !p.found()) {
                    let (planted, reported) = (word(plant.planted), word(plant.reported));
                    line.push_str(&format!("; {planted} was reported as {reported}"));
                }
                line.push_str("; do not trust what this report passes");
            }
            (tone, line)
        }
    }
}

/// Gaps for reasons that differ in their pair or GPU alone, as one: the first reason, how many more, and the cases of all.
pub(super) fn gap_groups(gaps: &[Gap]) -> Vec<Gap> {
    let mut groups: Vec<(String, &str, usize, u32)> = Vec::new();
    for gap in gaps {
        let kind = without_numbers(&gap.reason);
        match groups.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., more, cases)) => {
                *more += 1;
                *cases = cases.saturating_add(gap.cases);
            }
            None => groups.push((kind, &gap.reason, 0, gap.cases)),
        }
    }
    let one = |(_, reason, more, cases): (String, &str, usize, u32)| Gap {
        reason: match more {
            0 => reason.to_string(),
            more => format!("{reason}; and {more} more such"),
        },
        cases,
    };
    groups.into_iter().map(one).collect()
}

/// A reason without the numbers of pairs ("0->1") and of GPUs ("GPU3").
fn without_numbers(reason: &str) -> String {
    let is_pair = |word: &str| {
        let ends = word.split_once("->");
        ends.is_some_and(|(s, d)| s.parse::<u32>().is_ok() && d.parse::<u32>().is_ok())
    };
    let is_gpu = |word: &str| {
        word.strip_prefix("GPU")
            .is_some_and(|n| n.parse::<u32>().is_ok())
    };
    let words = reason.split(' ').map(|word| {
        let bare = word.trim_end_matches([',', ';', ':', '.']);
        match (is_pair(bare), is_gpu(bare)) {
            (true, _) => "N->M",
            (_, true) => "GPU",
            _ => word,
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What `--deep` is there to find: one attempt in so many.
const RARE: f64 = 1.0 / 200.0;

/// Mechanisms whose pair with the fewest attempts had the same number of them: under load or not, attempts, the share of
/// attempts that would have been seen, and their names.
pub(super) fn sensitivity_groups(coverage: &Coverage) -> Vec<(bool, u64, f64, Vec<String>)> {
    let mut worst: Vec<(bool, &str, u64, f64)> = Vec::new();
    for one in &coverage.sensitivity {
        let key = (one.rung == Rung::Loaded, one.mechanism.as_str());
        let rate = one.seen_fault_rate;
        match worst.iter_mut().find(|(l, m, ..)| (*l, *m) == key) {
            Some(known) if known.2 <= one.attempts => {}
            Some(known) => (known.2, known.3) = (one.attempts, rate),
            None => worst.push((key.0, key.1, one.attempts, rate)),
        }
    }
    let mut groups: Vec<(bool, u64, f64, Vec<String>)> = Vec::new();
    for (loaded, mechanism, attempts, rate) in worst {
        let name = cut(mechanism, 24);
        match groups
            .iter_mut()
            .find(|(l, n, ..)| (*l, *n) == (loaded, attempts))
        {
            Some((.., names)) => names.push(name),
            None => groups.push((loaded, attempts, rate, vec![name])),
        }
    }
    groups.sort_by_key(|(loaded, attempts, ..)| (*loaded, Reverse(*attempts)));
    // One number for all needs no list of them.
    let alike = groups.iter().filter(|(loaded, ..)| !loaded).count() == 1;
    for (_, _, _, names) in groups.iter_mut().filter(|(loaded, ..)| alike && !loaded) {
        if names.len() > 1 {
            *names = vec!["every mechanism of pairs".to_string()];
        }
    }
    groups
}

fn sensitivity(coverage: &Coverage, page: &mut Page<'_>) -> io::Result<()> {
    for (loaded, attempts, rate, names) in &sensitivity_groups(coverage) {
        let tries = count(*attempts as usize, "attempt");
        let load = if *loaded { "under load, " } else { "" };
        let label = format!("    {load}{} ({tries}): ", share_of_attempts(*rate));
        page.labelled(Tone::Faint, &label, Tone::Plain, &names.join(", "))?;
    }
    Ok(())
}

/// A share of all attempts: percent, or one in so many where percent would need zeros.
pub(super) fn share_of_attempts(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 {
        format!("{percent:.0}% of attempts")
    } else if percent >= 0.1 {
        format!("{percent:.1}% of attempts")
    } else if share > 0.0 {
        format!("1 in {} attempts", grouped((1.0 / share) as u64))
    } else {
        format!("{share} of attempts")
    }
}

fn timings(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    page.heading("Where the time went")?;
    let name = |text: &str| cut(text, 48);
    let widest = report
        .timings_ms
        .iter()
        .map(|(phase, _)| name(phase).chars().count())
        .chain(["whole run".len()])
        .max()
        .unwrap_or(0);
    for (phase, took) in &report.timings_ms {
        let row = format!("  {}  {took:>9.0} ms", pad(&name(phase), widest));
        page.line(&[(Tone::Plain, &row)])?;
    }
    let row = format!("  {}  {:>9.0} ms", pad("whole run", widest), report.took_ms);
    page.line(&[(Tone::Strong, &row)])
}

fn last_line(report: &Report, closing: &Closing, page: &mut Page<'_>) -> io::Result<()> {
    let (tone, file) = match &closing.saved {
        Saved::To(path) => (Tone::Plain, path.clone()),
        Saved::NotAsked => (Tone::Faint, "no file was asked for".to_string()),
        Saved::Failed(reason) => (
            Tone::Bad,
            format!("could not be written, which changes no verdict: {reason}"),
        ),
    };
    page.blank()?;
    page.labelled(Tone::Plain, "report file  ", tone, &file)?;
    let grading = report.verdict.grading;
    page.labelled(
        tone_of(grading),
        &format!("exit code {}  ", grading.exit_code()),
        Tone::Plain,
        &why(report),
    )
}

/// Why the run ends with its exit code, in words that are true of this run.
pub(super) fn why(report: &Report) -> String {
    match report.verdict.grading {
        Grading::Pass => "PASS: all that applies passed".to_string(),
        Grading::Warn => {
            "WARN: no wrong data was seen, something else is not as it should be".to_string()
        }
        Grading::Inconclusive if report.coverage.ran == 0 => {
            "INCONCLUSIVE: nothing was tested".to_string()
        }
        Grading::Inconclusive if report.interrupted => {
            "INCONCLUSIVE: interrupted before the end, nothing wrong seen until then".to_string()
        }
        Grading::Inconclusive => {
            "INCONCLUSIVE: not all that was planned could be judged".to_string()
        }
        Grading::Fail => {
            let any =
                |test: &dyn Fn(&Outcome) -> bool| report.records.iter().any(|r| test(&r.outcome));
            let quiet = report
                .records
                .iter()
                .any(|r| r.outcome.corruption().is_some() && r.case.rung != Rung::Loaded);
            let wrong = if quiet {
                "wrong data"
            } else {
                "wrong data, only under load"
            };
            let seen: Vec<&str> = [
                (any(&|o| o.corruption().is_some()), wrong),
                (
                    any(&|o| matches!(o, Outcome::Faulted { .. })),
                    "a failed driver call",
                ),
                (any(&|o| matches!(o, Outcome::TimedOut { .. })), "a hang"),
                (
                    any(&|o| matches!(o, Outcome::Never { .. })),
                    "kernels that waited for each other in vain",
                ),
                (any(&|o| matches!(o, Outcome::Died { .. })), "a dead worker"),
            ]
            .iter()
            .filter(|(found, _)| *found)
            .map(|(_, word)| *word)
            .collect();
            if seen.is_empty() {
                "FAIL: see the verdict".to_string()
            } else {
                format!("FAIL: {}", seen.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_that_differ_in_their_pair_alone_are_one() {
        let gap = |reason: &str| Gap {
            reason: reason.to_string(),
            cases: 3,
        };
        let gaps = [
            gap("ce-pull failed on 0->1"),
            gap("ce-pull failed on 0->2"),
            gap("no atomics of GPU0 on memory of GPU1"),
            gap("ce-pull failed on 1->0"),
        ];
        let groups = gap_groups(&gaps).into_iter().map(|g| (g.reason, g.cases));
        let first = "ce-pull failed on 0->1; and 2 more such".to_string();
        let second = "no atomics of GPU0 on memory of GPU1".to_string();
        assert_eq!(groups.collect::<Vec<_>>(), [(first, 9), (second, 3)]);
    }

    #[test]
    fn shares_keep_a_digit_that_is_not_zero() {
        assert_eq!(share_of_attempts(0.632), "63% of attempts");
        assert_eq!(share_of_attempts(0.03), "3.0% of attempts");
        assert_eq!(share_of_attempts(3.0e-6), "1 in 333,333 attempts");
    }
}
