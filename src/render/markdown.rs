//! The report for an issue or a ticket: verdict, matrix, causes with evidence and fix, coverage, versions. It stays below
//! what such a place takes, and says when rows were left out. Text of devices and hosts stays text: what Markdown or a
//! forge would read as markup, link, mention or reference is taken apart.

use super::{
    Options, evidence,
    map::host_words,
    outcomes,
    page::{Page, banner, clean, count, cut, size},
    recommend::{self, must_not_serve},
    reduce, terminal, traffic,
};
use crate::model::{
    finding::{ConsumerState, Finding, Judgement},
    report::{Gap, Kind, Report},
};
use std::io::{self, Write};

/// Bytes at most. GitHub takes 65,536 characters in an issue or comment.
const LIMIT: usize = 60_000;
/// Kept back for headings and notes on what was left out.
const RESERVE: usize = 3_000;
/// Columns of a block.
const WIDTH: usize = 110;
/// Rows of a list at the end, which must fit whole.
const MOST_GAPS: usize = 24;
/// Longest text of one row.
const LONGEST_TEXT: usize = 1_200;

/// Writes `report` as Markdown.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut tail = Text::up_to(LIMIT / 3);
    coverage(report, &mut tail);
    versions(report, &mut tail);
    let mut text = Text::up_to(LIMIT - RESERVE - tail.text.len());
    head(report, &mut text);
    if report.kind() == Kind::Ladder {
        pairs(report, &mut text)?;
        causes(report, &mut text);
        consumers(report, &mut text);
        wrong_data(report, &mut text)?;
        launch(report, &mut text);
    }
    numbers(report, &mut text)?;
    out.write_all(text.text.as_bytes())?;
    out.write_all(tail.text.as_bytes())
}

/// Foreign text as text: no markup, no link, no mention, no reference, no HTML, one line. It never begins a line here: a word of
/// this program stands before it, so that nothing in it can be a heading, list or quotation.
fn plain(text: &str) -> String {
    let safe = clean(text.trim());
    let all = safe.chars().count();
    let mut out = String::with_capacity(safe.len() + 16);
    let characters: Vec<char> = safe.chars().take(LONGEST_TEXT).collect();
    for (at, character) in characters.iter().enumerate() {
        let next = characters.get(at + 1).copied();
        match character {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '$' => {
                out.push('\\');
                out.push(*character);
            }
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            // A comment between the two is nothing to a reader and keeps a forge from calling people or linking.
            '@' | '#' if next.is_some_and(char::is_alphanumeric) => {
                out.push(*character);
                out.push_str("<!-- -->");
            }
            ':' if next == Some('/') => out.push_str(":<!-- -->"),
            '.' if ends_with_www(&characters, at) => out.push_str("<!-- -->."),
            other => out.push(*other),
        }
    }
    if all > LONGEST_TEXT {
        out.push_str(&format!(
            " .. ({} more characters in the report file)",
            all - LONGEST_TEXT
        ));
    }
    out
}

fn ends_with_www(characters: &[char], at: usize) -> bool {
    let before = at.checked_sub(3).and_then(|from| characters.get(from..at));
    before.is_some_and(|w| w.iter().all(|c| c.eq_ignore_ascii_case(&'w')))
}

/// The longest run of backticks in `text`.
fn ticks(text: &str) -> usize {
    let (mut longest, mut run) = (0, 0);
    for character in text.chars() {
        run = if character == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// A command in one line, to be copied.
fn code(text: &str) -> String {
    let safe = clean(text.trim());
    let safe: String = safe.chars().take(LONGEST_TEXT).collect();
    if safe.is_empty() {
        return String::new();
    }
    let fence = "`".repeat(ticks(&safe) + 1);
    let blank = if safe.starts_with('`') || safe.ends_with('`') {
        " "
    } else {
        ""
    };
    format!("{fence}{blank}{safe}{blank}{fence}")
}

/// Rows up to a size; the others are counted.
struct Text {
    text: String,
    limit: usize,
    left_out: usize,
}

impl Text {
    fn up_to(limit: usize) -> Text {
        Text {
            text: String::new(),
            limit,
            left_out: 0,
        }
    }

    /// A row, if it still fits.
    fn row(&mut self, row: &str) {
        if self.text.len() + row.len() < self.limit {
            self.text.push_str(row);
            self.text.push('\n');
        } else {
            self.left_out += 1;
        }
    }

    /// Lines that mean what they are, in a fence that they cannot close.
    fn block(&mut self, body: &str) {
        let fence = "`".repeat((ticks(body) + 1).max(3));
        let room = self.limit.saturating_sub(self.text.len());
        if room < 200 {
            self.left_out += body.lines().count();
            return;
        }
        self.text.push_str(&fence);
        self.text.push_str("text\n");
        let end = self.limit - fence.len() - 1;
        for line in body.lines() {
            if self.text.len() + line.len() < end {
                self.text.push_str(line);
                self.text.push('\n');
            } else {
                self.left_out += 1;
            }
        }
        self.text.push_str(&fence);
        self.text.push('\n');
    }

    fn heading(&mut self, title: &str) {
        self.close();
        self.row(&format!("\n### {title}\n"));
    }

    /// Says how much of what was just written did not fit. There is always room for it: that is what was kept back.
    fn close(&mut self) {
        if self.left_out > 0 {
            let rows = count(self.left_out, "row");
            self.text.push_str(&format!(
                "\n_{rows} left out to keep this short; the report file has all._\n"
            ));
            self.left_out = 0;
        }
    }
}

/// What the terminal prints of a part, without its heading.
fn printed(write: impl FnOnce(&mut Page<'_>) -> io::Result<()>) -> io::Result<String> {
    let options = Options {
        width: WIDTH,
        color: false,
    };
    let mut bytes = Vec::new();
    write(&mut Page::new(&mut bytes, &options))?;
    Ok(String::from_utf8_lossy(&bytes)
        .trim_matches('\n')
        .to_string())
}

fn head(report: &Report, text: &mut Text) {
    let mark = banner(report.authenticity).or_else(|| banner(report.snapshot.authenticity));
    if let Some((word, meaning)) = mark {
        text.row(&format!(
            "> **{word}**: {meaning} This is no report of a real host.\n"
        ));
    }
    let verdict = &report.verdict;
    let name = report.snapshot.host.name.known();
    let name = name.map_or_else(|| "unnamed host".to_string(), |n| cut(n, 64));
    let simulated = mark.map_or_else(String::new, |(word, _)| format!("{word}: "));
    text.row(&format!(
        "## {simulated}{}: peerproof on {}\n",
        verdict.grading.word(),
        plain(&name)
    ));
    if report.interrupted {
        text.row("**CUT SHORT**: the run was interrupted; this is what was done until then.\n");
    }
    for (label, said) in [
        ("what", &verdict.headline),
        (terminal::second_line(verdict.grading), &verdict.cause),
        ("next", &verdict.next),
    ] {
        text.row(&format!("- **{label}**: {}", plain(said)));
    }
    text.row(&format!(
        "- **where**: {}",
        plain(&terminal::host_line(report))
    ));
    let code = verdict.grading.exit_code();
    text.row(&format!(
        "- **exit code {code}**: {}",
        plain(&terminal::why(report))
    ));
    text.close();
}

fn pairs(report: &Report, text: &mut Text) -> io::Result<()> {
    let matrix = printed(|page| outcomes::pair_matrix(report, page))?;
    if !matrix.is_empty() {
        text.heading("Pairs");
        text.block(&matrix);
    }
    Ok(())
}

/// All-reduces and timed transfers, as their own commands print them.
fn numbers(report: &Report, text: &mut Text) -> io::Result<()> {
    if !report.reductions.is_empty() {
        let sums = printed(|page| reduce::tables(&report.reductions, &report.crossovers, page))?;
        text.heading("All-reduces");
        text.block(&sums);
    }
    if !report.traffic.is_empty() {
        let transfers = printed(|page| traffic::body(report, page))?;
        text.heading("Timed transfers");
        text.block(&transfers);
    }
    Ok(())
}

fn causes(report: &Report, text: &mut Text) {
    let held = terminal::judged(report, Judgement::Indicted);
    let open = terminal::judged(report, Judgement::CannotTell);
    let cleared = terminal::judged(report, Judgement::Cleared);
    if held.is_empty() && open.is_empty() && cleared.is_empty() {
        return;
    }
    text.heading("Causes");
    if held.is_empty() {
        text.row("No cause is held.\n");
    }
    for (position, finding) in held.iter().enumerate() {
        indicted(report, position + 1, finding, text);
    }
    for finding in open {
        let title = plain(&cut(&finding.title, 120));
        let mut row = format!("- cannot tell: **{title}**: {}", plain(&finding.because));
        if let Some(test) = &finding.next_test {
            row.push_str(&format!("; to tell: {}", code(test)));
        }
        text.row(&row);
    }
    if !cleared.is_empty() {
        let titles: Vec<String> = cleared.iter().map(|f| plain(&cut(&f.title, 60))).collect();
        text.row(&format!("- ruled out: {}", titles.join("; ")));
    }
}

fn indicted(report: &Report, number: usize, finding: &Finding, text: &mut Text) {
    text.row(&format!(
        "{number}. **{}** ({}, {}; {})",
        plain(&cut(&finding.title, 120)),
        terminal::severity_word(finding.severity),
        terminal::confidence_word(finding.confidence),
        code(&format!("peerproof explain {}", cut(&finding.cause, 64)))
    ));
    text.row(&format!(
        "   - where: {}",
        plain(&terminal::place_words(report, finding))
    ));
    text.row(&format!("   - why: {}", plain(&finding.because)));
    for (label, list) in [("seen", &finding.evidence), ("fix", &finding.fix)] {
        for line in list {
            text.row(&format!("   - {label}: {}", plain(line)));
        }
    }
    if let Some(test) = &finding.next_test {
        text.row(&format!("   - proof: {}", code(test)));
    }
    text.row("");
}

fn consumers(report: &Report, text: &mut Text) {
    if report.consumers.is_empty() {
        return;
    }
    text.heading("Who may rely on it");
    text.row("| | consumer | because |\n|---|---|---|");
    for (state, word) in [
        (ConsumerState::Vetoed, "\u{2716} vetoed"),
        (ConsumerState::Unproven, "? unproven"),
        (ConsumerState::Proven, "\u{2714} proven"),
        (ConsumerState::NotApplicable, "n/a"),
    ] {
        for one in report.consumers.iter().filter(|c| c.state == state) {
            let (name, sentence) = (plain(&cut(&one.name, 48)), plain(&one.sentence));
            text.row(&format!("| {word} | {name} | {sentence} |"));
        }
    }
}

fn wrong_data(report: &Report, text: &mut Text) -> io::Result<()> {
    let body = printed(|page| evidence::write(report, page))?;
    if !body.is_empty() {
        text.heading("What exactly was wrong");
        text.block(&body);
    }
    Ok(())
}

fn launch(report: &Report, text: &mut Text) {
    if report.recommendations.is_empty() {
        text.close();
        return;
    }
    text.heading("Launch settings");
    for one in &report.recommendations {
        let (engine, backend) = (
            plain(&cut(&one.engine, 32)),
            plain(&cut(&one.backend_name, 120)),
        );
        if must_not_serve(one) {
            text.row(&format!(
                "- **{engine}**: {backend}. There is no setting with which this group may serve."
            ));
            continue;
        }
        text.row(&format!("- **{engine}**: {backend}\n"));
        let lines: Vec<String> = recommend::lines(one)
            .iter()
            .map(|l| clean(l).into_owned())
            .collect();
        if !lines.is_empty() {
            text.block(&lines.join("\n"));
        }
    }
    text.close();
}

fn coverage(report: &Report, text: &mut Text) {
    let coverage = &report.coverage;
    let sum = |gaps: &[Gap]| gaps.iter().map(|g| g.cases as usize).sum::<usize>();
    text.heading("Coverage");
    text.row(&format!(
        "- {} planned, {} ran, {} not run, {} not applicable",
        count(coverage.planned as usize, "case"),
        coverage.ran,
        sum(&coverage.not_run),
        sum(&coverage.not_applicable)
    ));
    for (word, gaps) in [
        ("not run", &coverage.not_run),
        ("not applicable", &coverage.not_applicable),
    ] {
        let gaps = terminal::gap_groups(gaps);
        for gap in gaps.iter().take(MOST_GAPS) {
            let (reason, cases) = (
                plain(&cut(&gap.reason, 240)),
                count(gap.cases as usize, "case"),
            );
            text.row(&format!("- {word}: {reason} ({cases})"));
        }
        text.left_out += gaps.len().saturating_sub(MOST_GAPS);
    }
    for what in coverage.left_out.iter().take(MOST_GAPS) {
        text.row(&format!("- left out: {}", plain(&cut(what, 240))));
    }
    text.left_out += coverage.left_out.len().saturating_sub(MOST_GAPS);
    let seen = coverage.seen_fault_rate.map_or_else(
        || "n/a".to_string(),
        |rate| format!("{}, worst case", terminal::share_of_attempts(rate)),
    );
    text.row(&format!(
        "- smallest fault rate that would be seen (95%): {seen}"
    ));
    let (_, selftest) = terminal::selftest_words(report);
    text.row(&format!("- self-test of the checker: {}", plain(&selftest)));
    text.close();
}

fn versions(report: &Report, text: &mut Text) {
    let host = &report.snapshot.host;
    let known = |value: Option<&String>| {
        value.map_or_else(|| "not known".to_string(), |v| plain(&cut(v, 400)))
    };
    text.heading("Versions");
    for note in report.notes.iter().take(MOST_GAPS) {
        text.row(&format!("- {}", plain(&cut(note, 240))));
    }
    let kernels: String = report.kernels_sha256.chars().take(12).collect();
    text.row(&format!(
        "- peerproof {}, kernels {}, schema {}; tested {} in {:.1} s",
        plain(&cut(&report.tool_version, 32)),
        plain(&kernels),
        report.schema_version,
        plain(&cut(&report.started_at, 32)),
        report.took_ms / 1e3
    ));
    text.row(&format!("- {}", plain(&host_words(&report.snapshot))));
    text.row(&format!(
        "- kernel {}; OS {}",
        known(host.kernel.known()),
        known(host.os.known())
    ));
    text.row(&format!(
        "- kernel command line: {}",
        known(host.cmdline.known())
    ));
    text.row(&format!("- BIOS {}", known(host.bios.known())));
    if let Some(gpu) = report.snapshot.gpus.first() {
        let memory = gpu
            .memory_bytes
            .known()
            .map_or_else(|| "memory not known".to_string(), |b| size(*b));
        let name = known(gpu.name.known());
        text.row(&format!(
            "- {}, the first: {name}, {memory}",
            count(report.snapshot.gpus.len(), "GPU")
        ));
    }
    text.close();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_taken_apart_where_markdown_would_read_it() {
        assert_eq!(plain("a*b_c`d|e"), "a\\*b\\_c\\`d\\|e");
        assert_eq!(
            plain("<script>alert(1)</script>"),
            "&lt;script>alert(1)&lt;/script>"
        );
        assert_eq!(plain("0->1 & 2"), "0->1 &amp; 2");
        assert_eq!(plain("x\n# y"), "x\\\\n# y");
        assert_eq!(
            plain("ask @team in #12"),
            "ask @<!-- -->team in #<!-- -->12"
        );
        assert_eq!(
            plain("http://x www.y.z"),
            "http:<!-- -->//x www<!-- -->.y.z"
        );
        assert_eq!(plain("![a](b)"), "!\\[a\\](b)");
    }

    #[test]
    fn a_fence_is_longer_than_what_it_holds() {
        assert_eq!(code("a `` b"), "```a `` b```");
        assert_eq!(code("`x`"), "`` `x` ``");
        let mut text = Text::up_to(1000);
        text.block("```\nx");
        assert_eq!(text.text, "````text\n```\nx\n````\n");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut text = Text::up_to(20);
        for _ in 0..5 {
            text.row("0123456789");
        }
        text.close();
        assert!(text.text.contains("_4 rows left out"), "{}", text.text);
    }
}
