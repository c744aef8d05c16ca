//! Rates of the kernels on one device, as a table.

use super::{
    outcomes::spread,
    page::{Options, Page, Tone, banner, cut, pad, size},
};
use crate::model::report::Bench;
use std::io::{self, Write};

/// Writes `bench`.
///
/// # Errors
/// Those of the writer.
pub fn write(bench: &Bench, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    if let Some((word, meaning)) = banner(bench.authenticity) {
        page.labelled(
            Tone::Bad,
            &format!("{word}: "),
            Tone::Strong,
            &format!("{meaning} These are modelled rates."),
        )?;
    }
    page.text(0, Tone::Strong, &bench.device)?;
    if bench.rows.is_empty() {
        return page.text(2, Tone::Doubt, "nothing was measured");
    }
    let name = |text: &str| cut(text, 40);
    let label =
        |row: &crate::model::report::BenchRow| name(&format!("{} ({})", row.name, row.counts));
    let widest = bench
        .rows
        .iter()
        .map(|r| label(r).chars().count())
        .chain(["what".len()])
        .max()
        .unwrap_or(0);
    let unit = bench.rows.first().map(|r| r.rate.unit);
    let one_unit = bench.rows.iter().all(|r| Some(r.rate.unit) == unit);
    let head = format!(
        "  {}  {:>10}  {:>7}  median ± deviation{}",
        pad("what", widest),
        "bytes",
        "samples",
        unit.filter(|_| one_unit)
            .map(|u| format!(", {}", u.name()))
            .unwrap_or_default()
    );
    page.line(&[(Tone::Faint, &head)])?;
    for row in &bench.rows {
        let samples = &row.rate.samples;
        let mut text = format!(
            "  {}  {:>10}  {:>7}  {}",
            pad(&label(row), widest),
            size(row.bytes),
            samples.len(),
            spread(samples)
        );
        if !one_unit {
            text.push_str(&format!(" {}", row.rate.unit.name()));
        }
        page.line(&[(Tone::Plain, &text)])?;
        if let Some((target, reason)) = &row.target {
            let reached = crate::stats::median(samples).is_some_and(|median| median >= *target);
            let (tone, word) = if reached {
                (Tone::Good, "reached")
            } else {
                (Tone::Bad, "MISSED")
            };
            let unit = row.rate.unit.name();
            page.labelled(
                tone,
                &format!("    target {word}: "),
                Tone::Plain,
                &format!("{target:.0} {unit}, {reason}"),
            )?;
        }
        for caveat in &row.rate.caveats {
            page.labelled(Tone::Doubt, "    ! ", Tone::Plain, caveat)?;
        }
    }
    let mut methods: Vec<&str> = Vec::new();
    for row in &bench.rows {
        if !methods.contains(&row.rate.method.as_str()) {
            methods.push(&row.rate.method);
        }
    }
    page.labelled(
        Tone::Faint,
        "  measured: ",
        Tone::Faint,
        &format!(
            "{}; deviation is the median absolute deviation; GB is 1e9 bytes",
            methods.join("; ")
        ),
    )
}
