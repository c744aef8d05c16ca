//! An existing launch and what is wrong with it, worst first.

use super::page::{Options, Page, Tone, cut};
use crate::model::{
    finding::Severity,
    launch::{LaunchCheck, LaunchOutcome},
};
use std::io::{self, Write};

/// Writes `checks`, one after the other.
///
/// # Errors
/// Those of the writer.
pub fn write(checks: &[LaunchCheck], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    for (at, check) in checks.iter().enumerate() {
        if at > 0 {
            page.blank()?;
        }
        one(check, page)?;
    }
    Ok(())
}

fn one(check: &LaunchCheck, page: &mut Page<'_>) -> io::Result<()> {
    let count = |severity| {
        check
            .problems
            .iter()
            .filter(|p| p.severity == severity)
            .count()
    };
    let (critical, warnings) = (count(Severity::Critical), count(Severity::Warning));
    let (tone, headline) = match (critical, warnings) {
        (0, 0) if check.outcome() == LaunchOutcome::NotJudged => (
            Tone::Doubt,
            format!(
                "not judged: {} of it could not be read; nothing wrong in the rest",
                if check.not_judged.len() == 1 {
                    "one part".to_string()
                } else {
                    format!("{} parts", check.not_judged.len())
                }
            ),
        ),
        (0, 0) => (Tone::Strong, "nothing wrong in what was judged".to_string()),
        (0, n) => (Tone::Doubt, format!("{n} to change")),
        (n, 0) => (Tone::Bad, format!("{n} wrong")),
        (n, m) => (Tone::Bad, format!("{n} wrong, {m} to change")),
    };
    page.labelled(
        tone,
        &format!(
            "{} ({}): ",
            cut(&check.engine_name, 40),
            cut(&check.place, 40)
        ),
        tone,
        &headline,
    )?;
    if !check.read.is_empty() {
        let told: Vec<String> = check.read.iter().map(|(k, v)| format!("{k} {v}")).collect();
        page.labelled(Tone::Faint, "  read: ", Tone::Faint, &told.join(", "))?;
    }
    for problem in &check.problems {
        let (word, tone) = match problem.severity {
            Severity::Critical => ("wrong", Tone::Bad),
            Severity::Warning => ("change", Tone::Doubt),
            Severity::Info => ("know", Tone::Plain),
        };
        page.blank()?;
        page.labelled(
            tone,
            &format!("{word:<7}"),
            Tone::Plain,
            &format!("{} ({})", problem.wrong, problem.id),
        )?;
        page.labelled(Tone::Strong, "  do:  ", Tone::Plain, &problem.change)?;
        for setting in &problem.settings {
            page.text(7, Tone::Strong, setting)?;
        }
        page.labelled(Tone::Faint, "  source: ", Tone::Faint, &problem.source)?;
    }
    page.blank()?;
    for what in &check.judged {
        page.labelled(Tone::Faint, "  judged: ", Tone::Faint, what)?;
    }
    for what in &check.outside {
        page.labelled(Tone::Faint, "  not part of this: ", Tone::Faint, what)?;
    }
    if !check.not_judged.is_empty() {
        page.heading("Not judged")?;
        for gap in &check.not_judged {
            page.labelled(Tone::Doubt, "  ? ", Tone::Plain, gap)?;
        }
    }
    Ok(())
}
