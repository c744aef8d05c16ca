//! Launch settings: what to paste, why each line is there and what proves it, and the arithmetic behind the sizes.

use super::page::{Options, Page, Tone, banner, cut, grouped, size};
use crate::model::{
    finding::{Recommendation, Setting, Sizing},
    snapshot::Authenticity,
};
use std::{
    borrow::Cow,
    io::{self, Write},
};

/// Writes `advice`, with the mark of what stood below the driver when its proofs were made.
///
/// # Errors
/// Those of the writer.
pub fn write(
    advice: &Recommendation,
    authenticity: Authenticity,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    if let Some((word, meaning)) = banner(authenticity) {
        page.labelled(
            Tone::Bad,
            &format!("{word}: "),
            Tone::Strong,
            &format!("{meaning} Do not launch a real host with this."),
        )?;
    }
    let tone = if must_not_serve(advice) {
        Tone::Bad
    } else {
        Tone::Strong
    };
    page.labelled(
        tone,
        &format!("{}: ", cut(&advice.engine, 32)),
        tone,
        &advice.backend_name,
    )?;
    // Whoever reads no further than the lines to paste must know what they rest on.
    let unproven = |caveat: &&String| caveat.starts_with("peers are unproven");
    if let Some(caveat) = advice.caveats.iter().find(unproven) {
        page.labelled(Tone::Doubt, "  ! ", Tone::Plain, caveat)?;
    }
    if !must_not_serve(advice) {
        paste(advice, page)?;
        reasons(advice, page)?;
    }
    if let Some(sizing) = &advice.sizing {
        arithmetic(advice, sizing, page)?;
    }
    if !advice.refused.is_empty() {
        page.heading("Considered and refused")?;
        for (backend, reason) in &advice.refused {
            page.labelled(
                Tone::Plain,
                &format!("  {}: ", cut(backend, 40)),
                Tone::Plain,
                reason,
            )?;
        }
    }
    if advice.caveats.iter().any(|caveat| !unproven(&caveat)) {
        page.heading("Before you trust this")?;
        for caveat in advice.caveats.iter().filter(|caveat| !unproven(caveat)) {
            page.labelled(Tone::Doubt, "  ! ", Tone::Plain, caveat)?;
        }
    }
    Ok(())
}

/// Whether there is no setting with which this group may serve: no backend, and nothing to paste.
pub(super) fn must_not_serve(advice: &Recommendation) -> bool {
    advice.backend == "none"
        && advice.flags.is_empty()
        && advice.environment.is_empty()
        && advice.unset.is_empty()
}

/// Quotes `text` for a POSIX shell where it needs it.
fn quoted(text: &str) -> Cow<'_, str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', "'\\''")))
    }
}

fn variable(setting: &Setting) -> String {
    format!(
        "{}={}",
        setting.name,
        quoted(setting.value.as_deref().unwrap_or(""))
    )
}

fn flag(setting: &Setting) -> String {
    match &setting.value {
        None => setting.name.clone(),
        Some(value) => format!("{} {}", setting.name, quoted(value)),
    }
}

/// Everything in one line: variables, flags, and what to leave unset.
pub(super) fn in_one_line(advice: &Recommendation) -> String {
    let mut words: Vec<String> = advice.environment.iter().map(variable).collect();
    words.extend(advice.flags.iter().map(flag));
    let mut line = words.join(" ");
    if !advice.unset.is_empty() {
        let names: Vec<&str> = advice.unset.iter().map(|s| s.name.as_str()).collect();
        if !line.is_empty() {
            line.push_str("; ");
        }
        line.push_str(&format!("leave unset: {}", names.join(" ")));
    }
    line
}

fn paste(advice: &Recommendation, page: &mut Page<'_>) -> io::Result<()> {
    if advice.environment.is_empty() && advice.flags.is_empty() && advice.unset.is_empty() {
        page.blank()?;
        return page.text(
            0,
            Tone::Plain,
            "Nothing to add: the engine's defaults fit this host.",
        );
    }
    if !advice.environment.is_empty() || !advice.unset.is_empty() {
        page.heading("Before the launch command")?;
        for setting in &advice.unset {
            page.line(&[(Tone::Plain, &format!("unset {}", setting.name))])?;
        }
        for setting in &advice.environment {
            page.line(&[(Tone::Plain, &format!("export {}", variable(setting)))])?;
        }
    }
    if !advice.flags.is_empty() {
        page.heading("At the end of the launch command")?;
        for (position, setting) in advice.flags.iter().enumerate() {
            let more = if position + 1 < advice.flags.len() {
                " \\"
            } else {
                ""
            };
            page.line(&[(Tone::Plain, &format!("  {}{more}", flag(setting)))])?;
        }
    }
    Ok(())
}

fn reasons(advice: &Recommendation, page: &mut Page<'_>) -> io::Result<()> {
    let all: Vec<(String, &Setting)> = advice
        .unset
        .iter()
        .map(|s| (format!("unset {}", s.name), s))
        .chain(advice.environment.iter().map(|s| (variable(s), s)))
        .chain(advice.flags.iter().map(|s| (flag(s), s)))
        .collect();
    if all.is_empty() {
        return Ok(());
    }
    page.heading("Why")?;
    for (what, setting) in all {
        page.text(2, Tone::Strong, &what)?;
        page.text(4, Tone::Plain, &setting.because)?;
        page.labelled(Tone::Faint, "    basis: ", Tone::Faint, &setting.basis)?;
    }
    Ok(())
}

fn arithmetic(advice: &Recommendation, sizing: &Sizing, page: &mut Page<'_>) -> io::Result<()> {
    page.heading(&format!(
        "Sizes for {}, tensor parallel {}, {}",
        cut(&sizing.model, 48),
        sizing.tp,
        cut(&sizing.dtype, 8)
    ))?;
    let rows = [
        (
            "rows per request",
            format!("{}: {}", sizing.rows_per_request, sizing.rows_reason),
        ),
        (
            "rows in a step",
            format!(
                "{} requests x {} rows = {}",
                grouped(sizing.batch),
                grouped(sizing.rows_per_request),
                grouped(sizing.rows)
            ),
        ),
        (
            "elements needed",
            format!(
                "{} rows x {} hidden = {}",
                grouped(sizing.rows),
                grouped(sizing.hidden),
                grouped(sizing.needed_elements)
            ),
        ),
        (
            "engine by itself",
            match sizing.engine_elements {
                None => format!("no such workspace: {}", sizing.engine_reason),
                Some(elements) => {
                    let verdict = match elements.cmp(&sizing.needed_elements) {
                        std::cmp::Ordering::Less => "too few",
                        std::cmp::Ordering::Equal => "what is needed",
                        std::cmp::Ordering::Greater => "more than needed",
                    };
                    format!(
                        "{} elements, {verdict}: {}",
                        grouped(elements),
                        sizing.engine_reason
                    )
                }
            },
        ),
        (
            "payload",
            format!(
                "{} bytes ({}) in one reduction",
                grouped(sizing.payload_bytes),
                size(sizing.payload_bytes)
            ),
        ),
    ];
    for (label, text) in rows {
        page.labelled(Tone::Faint, &format!("  {label:<17} "), Tone::Plain, &text)?;
    }
    let exact = sizing.needed_elements.to_string();
    let setter = advice
        .environment
        .iter()
        .map(|s| (variable(s), s))
        .chain(advice.flags.iter().map(|s| (flag(s), s)))
        .find(|(_, s)| s.value.as_deref() == Some(exact.as_str()));
    if let Some((what, _)) = setter {
        page.labelled(Tone::Faint, "  set by            ", Tone::Strong, &what)?;
    }
    if let Some(bytes) = sizing.workspace_bytes_per_rank {
        let formula = sizing
            .workspace_formula
            .as_deref()
            .map(|f| format!(": {f}"))
            .unwrap_or_default();
        page.labelled(
            Tone::Faint,
            "  workspace         ",
            Tone::Plain,
            &format!(
                "{} bytes ({}) per rank{formula}",
                grouped(bytes),
                size(bytes)
            ),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_for_a_shell_when_they_need_it() {
        assert_eq!(quoted("SYS"), "SYS");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's; rm"), "'it'\\''s; rm'");
        assert_eq!(quoted(""), "''");
    }
}
