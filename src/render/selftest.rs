//! The checker's own proof: what was planted and what it said.

use super::page::{Options, Page, Tone, banner, count, cut, pad};
use crate::model::{case::WrongKind, report::Selftest, snapshot::Authenticity};
use std::io::{self, Write};

/// Writes `selftest`.
///
/// # Errors
/// Those of the writer.
pub fn write(
    selftest: &Selftest,
    authenticity: Authenticity,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut page = Page::new(out, options);
    let page = &mut page;
    if let Some((word, meaning)) = banner(authenticity) {
        page.labelled(Tone::Bad, &format!("{word}: "), Tone::Strong, meaning)?;
    }
    let found = selftest.plants.iter().filter(|p| p.found()).count();
    let (word, tone) = if selftest.passed() {
        ("PASS", Tone::Good)
    } else {
        ("FAIL", Tone::Bad)
    };
    page.labelled(
        tone,
        &format!("{word}  "),
        Tone::Strong,
        &format!(
            "{found} of {} named by the checker on {}",
            count(selftest.plants.len(), "plant"),
            cut(&selftest.device, 80)
        ),
    )?;
    if selftest.plants.is_empty() {
        return page.text(6, Tone::Doubt, "nothing was planted, so nothing is proven");
    }
    page.blank()?;
    page.line(&[(
        Tone::Faint,
        &format!("  {}  {}  ", pad("planted", 9), pad("reported", 9)),
    )])?;
    for plant in &selftest.plants {
        let words = |kind: Option<WrongKind>| kind.map_or("intact", WrongKind::name);
        let label = format!(
            "  {}  {}  {}  ",
            pad(words(plant.planted), 9),
            pad(words(plant.reported), 9),
            if plant.found() { "ok   " } else { "WRONG" }
        );
        let tone = if plant.found() {
            Tone::Plain
        } else {
            Tone::Bad
        };
        page.labelled(tone, &label, Tone::Plain, &plant.detail)?;
    }
    Ok(())
}
