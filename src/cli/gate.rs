//! What gates ask of `qualify`: which verdicts open them, an end at a known time, and the form that a scheduler's prolog wants
//! (exit code 0 or 1, one line).
//!
//! No level lets INCONCLUSIVE pass, because a FAIL may stand behind it: a run that was cut short before the broken pair, a
//! checker that failed its own test, GPUs that could not be looked at. And under `--prolog` a GPU that was chosen and not
//! tested closes the gate whatever the others gave.

use super::{console, exit::Stop, qualify::duration};
use crate::{
    ffi::process,
    model::{
        report::{Grading, Report},
        snapshot::Authenticity,
    },
    render::drain,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Whole time of a prolog: it fits the 60 s after which Slurm kills a health check, with room for what comes before it.
const PROLOG_LIMIT: Duration = Duration::from_secs(45);
/// From the moment at which a run is told to end to the one at which it is ended: a worker that is killed may take 5 s to go.
const GRACE: Duration = Duration::from_secs(8);
/// Least whole time: the grace, and something before it.
const LEAST: Duration = Duration::from_secs(15);

/// This run is a prolog.
static PROLOG: AtomicBool = AtomicBool::new(false);
/// The prolog's one line was printed.
static TOLD: AtomicBool = AtomicBool::new(false);
/// The time was up.
static EXPIRED: AtomicBool = AtomicBool::new(false);

/// The mildest verdict that closes a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Level {
    /// Anything but PASS.
    Warn,
    /// FAIL and INCONCLUSIVE: wrong data, or not known to be right.
    Fail,
}

#[derive(Debug, clap::Args)]
pub(super) struct Gate {
    /// Mildest verdict with a non-zero exit code: warn, or fail (then WARN gives 0); INCONCLUSIVE is never 0.
    #[arg(
        long,
        value_enum,
        default_value = "warn",
        value_name = "LEVEL",
        hide_possible_values = true
    )]
    exit_on: Level,
    /// Be a scheduler's prolog: quick budget, no report file but one that --out names, exit code 0 or 1, one line for a drain reason, 45 s at most.
    #[arg(long, conflicts_with_all = ["deep", "json", "timings"])]
    pub(super) prolog: bool,
    /// End after this time of the wall clock, whatever happens ('45s', '10m'); what did not run is a gap: INCONCLUSIVE.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    within: Option<Duration>,
}

impl Gate {
    fn limit(&self) -> Option<Duration> {
        self.within.or(self.prolog.then_some(PROLOG_LIMIT))
    }

    /// To be called first: the clock runs from here, and a prolog is quiet from here.
    pub(super) fn start(&self) -> Result<(), Stop> {
        if self.prolog {
            PROLOG.store(true, Ordering::SeqCst);
            console::hush();
        }
        let Some(limit) = self.limit() else {
            return Ok(());
        };
        if limit < LEAST {
            return Err(Stop::usage(format!(
                "--within: {} s is too short; at least {} s, of which the last {} are for ending",
                limit.as_secs(),
                LEAST.as_secs(),
                GRACE.as_secs()
            )));
        }
        // Nobody waits for this thread: it ends with the program, or ends it.
        std::thread::Builder::new()
            .spawn(move || watch(limit))
            .map(drop)
            .map_err(|error| Stop::failed(&format!("failed to start the clock: {error}")))
    }

    /// What the run lacks because its time was up.
    pub(super) fn expired(&self) -> Option<String> {
        let limit = self.limit()?;
        let expired = EXPIRED.load(Ordering::SeqCst);
        expired.then(|| format!("what had not run when the {} s were over", limit.as_secs()))
    }

    /// The exit code of a verdict. A code that `--exit-on` made 0 is told.
    pub(super) fn code(&self, grading: Grading) -> u8 {
        match (grading, self.exit_on) {
            (Grading::Warn, Level::Fail) => {
                console::note("exit code 0 by --exit-on fail; the verdict is WARN");
                0
            }
            (other, _) => other.exit_code(),
        }
    }

    /// The same where files were asked for by name: whoever waits for one that was not written must not see a pass.
    pub(super) fn code_with(&self, grading: Grading, written: bool) -> u8 {
        match (written, grading) {
            (true, _) | (false, Grading::Fail | Grading::Inconclusive) => self.code(grading),
            (false, Grading::Pass | Grading::Warn) => {
                console::complain(
                    "exit code 3: a file that was asked for is not there; the verdict is printed and stays",
                );
                super::exit::INCONCLUSIVE
            }
        }
    }

    /// Prints the line of a prolog. `chosen` is how many GPUs the operator named; all of the host when `None`. `written` is whether every
    /// file that was asked for stands there.
    pub(super) fn prolog_code(
        &self,
        report: &Report,
        chosen: Option<usize>,
        written: bool,
    ) -> Result<u8, Stop> {
        let grading = report.verdict.grading;
        let chosen = chosen.unwrap_or(report.snapshot.gpus.len());
        let untested = chosen.saturating_sub(report.tested_gpus.len());
        let inconclusive =
            |text: &str| drain::line(Grading::Inconclusive, report.authenticity, text);
        let coverage = &report.coverage;
        let (line, open) = match self.limit() {
            _ if grading == Grading::Fail => (drain::of(report), false),
            Some(limit) if EXPIRED.load(Ordering::SeqCst) => {
                let (ran, planned) = (coverage.ran, coverage.planned);
                let text = format!("{ran} of {planned} cases in {} s", limit.as_secs());
                (inconclusive(&text), false)
            }
            _ if untested > 0 => {
                let why = coverage.left_out.iter().find(|l| l.starts_with("GPU"));
                let why = why.map_or("", String::as_str);
                let text = format!("{untested} of {chosen} GPUs not tested: {why}");
                (inconclusive(&text), false)
            }
            _ if !written && self.code(grading) == 0 => (
                inconclusive("a file that was asked for could not be written"),
                false,
            ),
            _ => (drain::of(report), self.code(grading) == 0),
        };
        tell(&line)?;
        Ok(u8::from(!open))
    }
}

/// Tells the run to end, and ends it if it does not.
fn watch(limit: Duration) {
    std::thread::sleep(limit.saturating_sub(GRACE));
    EXPIRED.store(true, Ordering::SeqCst);
    process::interrupt();
    std::thread::sleep(GRACE.saturating_sub(Duration::from_millis(500)));
    let why = format!(
        "not done in {} s and not to be ended: a driver call may be stuck (dmesg)",
        limit.as_secs()
    );
    console::complain(&why);
    process::leave(stopped(&why, super::exit::INCONCLUSIVE));
}

/// Prints the one line, once.
fn tell(line: &str) -> Result<(), Stop> {
    if TOLD.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    console::print(|out| writeln!(out, "{line}")).map(drop)
}

/// A command line that clap refused may have been meant as a prolog: what would have read it has to be answered.
pub(super) fn listen_for_prolog() {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    if asks_for_prolog(words.iter().map(AsRef::as_ref)) {
        PROLOG.store(true, Ordering::SeqCst);
    }
}

/// Options of all commands may stand before `qualify`, and a value that `--prolog` does not take behind it.
fn asks_for_prolog<'w>(mut words: impl Iterator<Item = &'w str>) -> bool {
    words.any(|word| word == "qualify")
        && words.any(|word| word == "--prolog" || word.starts_with("--prolog="))
}

/// The exit code of a run that ended without a verdict: `code`, but of a prolog 1 with its line.
pub(super) fn stopped(message: &str, code: u8) -> u8 {
    if !PROLOG.load(Ordering::SeqCst) {
        return code;
    }
    let line = drain::line(Grading::Inconclusive, Authenticity::Hardware, message);
    // A closed standard output changes nothing about the answer.
    let _ = tell(&line);
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_command_line_that_meant_a_prolog_is_one() {
        for (line, meant) in [
            ("qualify --prolog --deep", true),
            ("--root /x qualify --deep=5m --prolog", true),
            ("qualify --prolog=yes", true),
            ("qualify --deep", false),
            ("explain --prolog", false),
        ] {
            assert_eq!(asks_for_prolog(line.split(' ')), meant, "{line}");
        }
    }

    /// Whoever waits for a file must not take its absence for a pass, and a FAIL stays what it is.
    #[test]
    fn a_missing_file_is_no_pass() {
        let gate = |exit_on| Gate {
            exit_on,
            prolog: false,
            within: None,
        };
        for level in [Level::Warn, Level::Fail] {
            for (grading, code) in [
                (Grading::Pass, 3),
                (Grading::Warn, 3),
                (Grading::Inconclusive, 3),
                (Grading::Fail, 2),
            ] {
                assert_eq!(gate(level).code_with(grading, false), code, "{grading:?}");
            }
        }
        assert_eq!(gate(Level::Warn).code_with(Grading::Pass, true), 0);
        assert_eq!(gate(Level::Fail).code_with(Grading::Warn, true), 0);
    }
}
