//! `peerproof verdict`: what a saved verdict says, and whether it still holds for this host. Writes verdict files, too.

use super::{Surroundings, console, exit::INCONCLUSIVE, exit::Stop, file, host};
use crate::{
    collect::live::Depth,
    model::{
        finding::ConsumerState,
        report::{Grading, Report},
        snapshot::Authenticity,
    },
    render::{
        clean, reflowed,
        verdict_file::{self, VALID_DAYS, VerdictFile},
    },
};
use std::{
    io,
    path::{Path, PathBuf},
};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --check the exit code is that of the run (0 pass, 1 warn, 2 fail, 3 inconclusive), and 3 for a verdict \
                  that has expired and was no fail. With --check it is 0 when the verdict still holds, whatever it says, and 3 \
                  when it does not.\n\n\
                  Example:\n  \
                  peerproof verdict verdict.json --check && peerproof verdict verdict.json"
)]
pub(super) struct Options {
    /// File written by 'peerproof qualify --verdict-file FILE'.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Compare with this host: driver, kernel, BIOS, GPUs, links and time.
    #[arg(long)]
    check: bool,
    /// With --check: also whether every GPU of this host was tested, and every pair and mechanism of them.
    #[arg(long, requires = "check")]
    all_gpus: bool,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let name = options.file.display();
    let text = std::fs::read_to_string(&options.file)
        .map_err(|error| Stop::usage(format!("{name}: {error}")))?;
    let file =
        verdict_file::read(&text).map_err(|error| Stop::usage(format!("{name}: {error}")))?;
    let until: jiff::Timestamp = file.valid_until.parse().map_err(|_| {
        Stop::usage(format!(
            "{name}: valid_until '{}' is no time as in 2026-01-02T03:04:05Z",
            file.valid_until
        ))
    })?;
    let now = jiff::Timestamp::now();
    if !options.check {
        let expired = now > until;
        tell(&file, expired, surroundings.console.options.width)?;
        // What has expired proves nothing any more; that bytes were wrong it still says.
        return Ok(match file.verdict {
            Grading::Fail => file.verdict.exit_code(),
            _ if expired => INCONCLUSIVE,
            grading => grading.exit_code(),
        });
    }
    let (_session, snapshot) = host::read(surroundings, Depth::Full)?;
    let mut objections = file.objections(&snapshot, now.as_second(), until.as_second());
    let untested = file.untested();
    if options.all_gpus && !untested.is_empty() {
        let list: Vec<String> = untested.iter().map(u32::to_string).collect();
        objections.push(format!("GPUs {}: were not tested", list.join(", ")));
    }
    if options.all_gpus {
        let left_out = file.left_out.iter();
        objections.extend(left_out.map(|what| format!("left out of the run: {what}")));
    }
    console::print(|out| {
        if objections.is_empty() {
            return writeln!(
                out,
                "holds: {} of {}, until {}; nothing that it depends on has changed",
                file.verdict.word(),
                clean(&file.tested_at),
                clean(&file.valid_until)
            );
        }
        writeln!(
            out,
            "does not hold any more ({} of {}):",
            file.verdict.word(),
            clean(&file.tested_at)
        )?;
        for objection in &objections {
            writeln!(out, "  {}", clean(objection))?;
        }
        writeln!(out, "next  peerproof qualify --verdict-file {name}")
    })?;
    Ok(if objections.is_empty() {
        0
    } else {
        INCONCLUSIVE
    })
}

fn tell(file: &VerdictFile, expired: bool, width: usize) -> Result<u8, Stop> {
    console::print(|out| {
        match file.authenticity {
            Authenticity::Hardware => {}
            Authenticity::Simulated => writeln!(out, "SIMULATED: no GPU was involved")?,
            Authenticity::FaultInjected => writeln!(out, "FAULT-INJECTED: faults were planted")?,
        }
        if expired {
            writeln!(
                out,
                "EXPIRED: it held until {}; test again: peerproof qualify",
                clean(&file.valid_until)
            )?;
        }
        let line = format!("{}  {}", file.verdict.word(), clean(&file.headline));
        write!(out, "{}", reflowed(&line, width))?;
        writeln!(
            out,
            "tested {}, {} until {} and only while nothing changed (--check)",
            clean(&file.tested_at),
            if expired { "held" } else { "holds" },
            clean(&file.valid_until)
        )?;
        for what in &file.left_out {
            let line = format!("left out: {}", clean(what));
            write!(out, "{}", reflowed(&line, width))?;
        }
        for consumer in &file.consumers {
            let mark = match consumer.state {
                ConsumerState::Proven => "+",
                ConsumerState::Vetoed => "x",
                ConsumerState::Unproven => "?",
                ConsumerState::NotApplicable => "-",
            };
            let (id, sentence) = (clean(&consumer.id), clean(&consumer.sentence));
            let mut lead = format!("  {mark} ");
            let text = format!("{id}: {sentence}");
            for row in reflowed(&text, width.saturating_sub(lead.len())).lines() {
                writeln!(out, "{lead}{row}")?;
                lead = "    ".to_string();
            }
            for island in &consumer.islands {
                let gpus: Vec<String> = island.gpus.iter().map(u32::to_string).collect();
                writeln!(
                    out,
                    "      {} (GPUs {}): {}",
                    clean(&island.joined_by),
                    gpus.join(","),
                    clean(&island.sentence)
                )?;
            }
        }
        Ok(())
    })
}

/// Refuses a destination that cannot become a file or holds something else than a verdict of ours, and takes away what stands
/// there: while a new run is on, the old verdict is in question, and a run that dies must not leave it behind.
pub(super) fn make_way(path: &Path) -> Result<(), Stop> {
    let shown = path.display();
    let stop = |error: io::Error| {
        Stop::usage(format!(
            "--verdict-file: {shown} cannot be replaced: {error}"
        ))
    };
    check(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(stop(error)),
        _ => Ok(()),
    }
}

/// Refuses a destination without touching it.
pub(super) fn check(path: &Path) -> Result<(), Stop> {
    const OPTION: &str = "--verdict-file";
    file::place(OPTION, path)?;
    // Narrower than for other files: what stands there is removed before the run, and a report is nothing to lose.
    file::holds(
        OPTION,
        path,
        "verdict file of peerproof",
        verdict_file::is_one,
    )
}

/// Writes the verdict of `report` beside its name and renames it into place: a reader sees all of it or nothing.
///
/// # Errors
/// A start time that is none, and those of the file system.
pub(super) fn save(report: &Report, path: &Path) -> io::Result<()> {
    let started: jiff::Timestamp = report.started_at.parse().map_err(io::Error::other)?;
    let until = started + jiff::SignedDuration::from_hours(24 * VALID_DAYS);
    let until = until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    file::replace(path, |out| VerdictFile::of(report, until).write(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_verdict_of_ours_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("verdict.json");
        // Nothing there.
        make_way(&path).unwrap();
        let foreign = [
            "precious",
            "{}",
            "[1]",
            "{\"verdict\": \"pass\"}",
            "{\"schema_version\": 9, \"verdict\": {}}",
        ];
        for text in foreign {
            std::fs::write(&path, text).unwrap();
            let stop = make_way(&path).unwrap_err();
            assert!(stop.message.contains("no verdict file"), "{}", stop.message);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        // Of any version, and one that was only made.
        for text in ["{\"verdict_version\": 99, \"tool_version\": \"9\"}", ""] {
            std::fs::write(&path, text).unwrap();
            make_way(&path).unwrap();
            assert!(!path.exists());
        }
    }
}
