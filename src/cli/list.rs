//! `peerproof list`.

use super::{console, exit::Stop};
use crate::{
    diagnose,
    probe::{alone, mechanism, reduced, reduction, resident, traffic::plan::Part},
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
        for way in &reduced::ROSTER {
            let rung = way.rung().number().map_or(String::new(), |n| n.to_string());
            writeln!(out, "  {:<24} rung {rung}  {}", way.id, way.title())?;
        }
        writeln!(
            out,
            "  (with one GPU, those of rung 4 and what begins with ipc- run between two processes on it)"
        )?;
        writeln!(out, "algorithms (reduce --algorithm)")?;
        for algorithm in reduction::ROSTER {
            writeln!(out, "  {:<24} {}", algorithm.id(), algorithm.title())?;
        }
        writeln!(out, "causes (docs/causes)")?;
        for cause in diagnose::ROSTER {
            writeln!(out, "  {:<24} {}", cause.id, cause.title)?;
        }
        writeln!(out, "parts (measure --only)")?;
        let parts = Part::ALL.map(Part::name).join(" ");
        writeln!(out, "  {parts}")?;
        writeln!(out, "classes of hosts (measure; profiles/hosts)")?;
        for class in &profiles.hosts {
            writeln!(out, "  {:<24} {}", class.id, class.name)?;
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
