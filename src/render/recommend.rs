//! Launch settings: what to paste, why each line is there and what proves it, and the arithmetic behind the sizes.

use super::{
    launch::quoted,
    page::{Options, Page, Tone, banner, count, cut, grouped, size},
};
use crate::model::{
    finding::{Place, Recommendation, Setting, Sizing, Standing, WorthBasis},
    snapshot::Authenticity,
};
use std::io::{self, Write};

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
    worth(advice, page)?;
    practices(advice, page)?;
    if !advice.order.is_empty() {
        order(&advice.order, page)?;
    } else if !advice.refused.is_empty() {
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

pub(super) fn variable(setting: &Setting) -> String {
    format!(
        "{}={}",
        setting.name,
        quoted(setting.value.as_deref().unwrap_or(""))
    )
}

pub(super) fn flag(setting: &Setting) -> String {
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
    if !advice.omit.is_empty() {
        let names: Vec<&str> = advice.omit.iter().map(|s| s.name.as_str()).collect();
        line.push_str(&format!("; leave out: {}", names.join(" ")));
    }
    line
}

/// What to paste, a line each.
pub(super) fn lines(advice: &Recommendation) -> Vec<String> {
    let unset = advice.unset.iter().map(|s| format!("unset {}", s.name));
    let set = advice.environment.iter();
    unset
        .chain(set.map(|s| format!("export {}", variable(s))))
        .chain(advice.flags.iter().map(flag))
        .collect()
}

/// The engine's own order, with what each backend takes.
fn order(places: &[Place], page: &mut Page<'_>) -> io::Result<()> {
    page.heading("In the order in which the engine asks")?;
    for place in places {
        let (mark, tone) = match place.standing {
            Standing::Chosen => ("  > ", Tone::Strong),
            Standing::Runs => ("  + ", Tone::Plain),
            Standing::Possible => ("  o ", Tone::Plain),
            Standing::Refused => ("  x ", Tone::Faint),
        };
        let mut text = place.because.clone();
        if place.standing != Standing::Refused {
            if let Some(bytes) = place.takes_bytes {
                text.push_str(&format!("; takes up to {}", size(bytes)));
                if let Some(rows) = place.takes_rows {
                    text.push_str(&format!(" ({} rows)", grouped(rows)));
                }
            }
            if let Some(bytes) = place.workspace_bytes {
                text.push_str(&format!("; its own memory: {} per rank", size(bytes)));
            }
        }
        let label = format!("{mark}{}: ", cut(&place.backend, 40));
        page.labelled(tone, &label, tone, &text)?;
    }
    page.text(
        2,
        Tone::Faint,
        "> the choice; + runs too; o possible, not advised; x refused",
    )
}

fn worth(advice: &Recommendation, page: &mut Page<'_>) -> io::Result<()> {
    if advice.worth.is_empty() {
        return Ok(());
    }
    page.heading("What it is worth")?;
    for one in &advice.worth {
        let basis = match one.basis {
            WorthBasis::Measured => "measured here",
            WorthBasis::Published => "published",
            WorthBasis::Inferred => "inferred",
            WorthBasis::Unknown => "not known",
        };
        let text = match one.basis {
            WorthBasis::Unknown => one.says.clone(),
            _ => format!("{} ({})", one.says, one.source),
        };
        page.labelled(Tone::Faint, &format!("  {basis:<14} "), Tone::Plain, &text)?;
    }
    Ok(())
}

fn practices(advice: &Recommendation, page: &mut Page<'_>) -> io::Result<()> {
    if advice.practices.is_empty() {
        return Ok(());
    }
    page.heading("Beside flags and variables")?;
    for practice in &advice.practices {
        page.text(2, Tone::Strong, &practice.name)?;
        page.text(4, Tone::Plain, &practice.because)?;
        page.labelled(Tone::Faint, "    basis: ", Tone::Faint, &practice.basis)?;
    }
    Ok(())
}

fn paste(advice: &Recommendation, page: &mut Page<'_>) -> io::Result<()> {
    if advice.environment.is_empty()
        && advice.flags.is_empty()
        && advice.unset.is_empty()
        && advice.configuration.is_empty()
    {
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
    if !advice.left_over.is_empty() && advice.proven.is_some() {
        let names: Vec<&str> = advice.left_over.iter().map(|s| s.name.as_str()).collect();
        page.heading("Left by earlier settings of this tool, if there were any")?;
        page.text(0, Tone::Faint, &format!("unset {}", names.join(" ")))?;
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
    if !advice.omit.is_empty() {
        page.heading("Not in the launch command")?;
        for setting in &advice.omit {
            page.line(&[(Tone::Plain, &format!("  {}", setting.name))])?;
        }
    }
    if !advice.configuration.is_empty() {
        page.heading("In the engine's configuration, or in the program")?;
        for setting in &advice.configuration {
            page.text(2, Tone::Plain, &key(setting))?;
        }
    }
    Ok(())
}

pub(super) fn key(setting: &Setting) -> String {
    format!(
        "{}: {}",
        setting.name,
        setting.value.as_deref().unwrap_or_default()
    )
}

/// Every setting as it is written, with what is known of it.
pub(super) fn all_settings(advice: &Recommendation) -> Vec<(String, &Setting)> {
    advice
        .unset
        .iter()
        .map(|s| (format!("unset {}", s.name), s))
        .chain(advice.environment.iter().map(|s| (variable(s), s)))
        .chain(advice.flags.iter().map(|s| (flag(s), s)))
        .chain(advice.omit.iter().map(|s| (format!("no {}", s.name), s)))
        .chain(advice.configuration.iter().map(|s| (key(s), s)))
        .collect()
}

fn reasons(advice: &Recommendation, page: &mut Page<'_>) -> io::Result<()> {
    let all = all_settings(advice);
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
    if let Some(crossing) = &sizing.crossing {
        let model = cut(&sizing.model, 48);
        let dtype = cut(&sizing.dtype, 8);
        page.heading(&format!("Sizes for {model} on {} GPUs, {dtype}", sizing.tp))?;
        let rows = format!("{}: {}", sizing.rows_per_request, sizing.rows_reason);
        page.labelled(Tone::Faint, "  rows per request  ", Tone::Plain, &rows)?;
        return page.labelled(Tone::Faint, "  between the GPUs  ", Tone::Plain, crossing);
    }
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
                "{} x {} = {}",
                count(sizing.batch as usize, "request"),
                count(sizing.rows_per_request as usize, "row"),
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
    // The workspace is that of one backend; where another was chosen, its size is a footnote.
    if !advice.backend.contains("pcie-ipc") {
        if let (Some(each), Some(all)) = (
            sizing.workspace_bytes_per_rank,
            sizing.workspace_bytes_all_ranks,
        ) {
            let text = format!(
                "FlashInfer pcie_ipc, were it used: {} per rank, {} for all; not chosen here",
                size(each),
                size(all)
            );
            page.labelled(Tone::Faint, "  not used          ", Tone::Faint, &text)?;
        }
        if let Some(count) = sizing.all_reduces {
            let text = format!("{count} reductions of that size in a forward pass");
            page.labelled(Tone::Faint, "  per forward       ", Tone::Plain, &text)?;
        }
        return Ok(());
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
    if let Some(bytes) = sizing.workspace_bytes_all_ranks {
        let text = format!("{} bytes ({})", grouped(bytes), size(bytes));
        page.labelled(Tone::Faint, "  of all ranks      ", Tone::Plain, &text)?;
        page.labelled(
            Tone::Faint,
            "  admits            ",
            Tone::Plain,
            &sizing.admits,
        )?;
        if let Some(own) = &sizing.engine_admits {
            page.labelled(Tone::Faint, "  its own admits    ", Tone::Plain, own)?;
        }
        let rows: Vec<String> = sizing.tune_rows.iter().map(u64::to_string).collect();
        page.labelled(
            Tone::Faint,
            "  rows to tune      ",
            Tone::Plain,
            &rows.join(", "),
        )?;
        page.labelled(
            Tone::Faint,
            "  prefill           ",
            Tone::Plain,
            &sizing.prefill,
        )?;
    }
    if let Some(count) = sizing.all_reduces {
        let text = format!("{count} reductions of that size in a forward pass");
        page.labelled(Tone::Faint, "  per forward       ", Tone::Plain, &text)?;
    }
    Ok(())
}
