//! `peerproof list`.

use super::{console, exit::Stop};
use crate::{
    diagnose,
    probe::{alone, mechanism, resident},
    profile::Profiles,
    render::format,
};

pub(super) fn run() -> Result<u8, Stop> {
    let profiles = Profiles::embedded().map_err(|error| Stop::failed(&error.to_string()))?;
    console::print(|out| {
        writeln!(out, "mechanisms (qualify --mechanism)")?;
        for (id, title) in alone::ROSTER {
            writeln!(out, "  {id:<24} alone   {title}")?;
        }
        for mechanism in mechanism::ROSTER {
            let rung = mechanism
                .rung()
                .number()
                .map_or(String::new(), |n| format!("rung {n}"));
            writeln!(
                out,
                "  {:<24} {rung:<7} {}",
                mechanism.id(),
                mechanism.title()
            )?;
        }
        for exchange in &resident::ROSTER {
            writeln!(out, "  {:<24} rung 5  {}", exchange.id, exchange.title)?;
        }
        writeln!(
            out,
            "  (with one GPU, those of rung 4 and ipc-resident run between two processes on it)"
        )?;
        writeln!(out, "causes (docs/causes)")?;
        for cause in diagnose::ROSTER {
            writeln!(out, "  {:<24} {}", cause.id, cause.title)?;
        }
        writeln!(out, "engines (recommend --engine)")?;
        for engine in &profiles.engines {
            writeln!(out, "  {:<24} {}", engine.id, engine.name)?;
        }
        writeln!(out, "models (recommend --model)")?;
        for model in &profiles.models {
            let hidden = model
                .hidden
                .map_or("hidden size unknown".to_string(), |h| format!("hidden {h}"));
            writeln!(out, "  {:<44} {hidden}", model.id)?;
        }
        writeln!(out, "forms of a report (render --format)")?;
        for form in &format::ROSTER {
            writeln!(
                out,
                "  {:<24} .{:<6} {}",
                form.name, form.ending, form.title
            )?;
        }
        Ok(())
    })
}
