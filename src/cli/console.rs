//! Standard output and standard error: the result goes to the one, everything else to the other; progress only to a
//! terminal.
use super::exit::Stop;
use crate::{ffi::process, render};
use std::{
    io::{IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How to write.
pub(super) struct Console {
    /// Width and colour of the result.
    pub(super) options: render::Options,
    progress: bool,
    open_line: std::cell::Cell<bool>,
}

/// Width where there is no terminal.
const PLAIN_WIDTH: usize = 100;

impl Console {
    pub(super) fn new(color: Color) -> Console {
        let terminal = std::io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let color = match color {
            Color::Auto => terminal && !no_color,
            Color::Always => true,
            Color::Never => false,
        };
        let columns = std::env::var("COLUMNS")
            .ok()
            .and_then(|text| text.parse().ok());
        let width = process::terminal_width().or(columns).unwrap_or(PLAIN_WIDTH);
        Console {
            options: render::Options { width, color },
            progress: std::io::stderr().is_terminal(),
            open_line: std::cell::Cell::new(false),
        }
    }

    /// Shows what is going on, on a terminal only; the next call overwrites it.
    pub(super) fn progress(&self, text: &str) {
        if self.progress && !HUSHED.load(Ordering::Relaxed) {
            let shown: String = text
                .chars()
                .take(self.options.width.saturating_sub(1))
                .collect();
            tell(&format!("\r\x1b[K{shown}"));
            let _ = std::io::stderr().flush();
            self.open_line.set(true);
        }
    }

    /// Clears the progress line.
    pub(super) fn quiet(&self) {
        if self.open_line.replace(false) {
            tell("\r\x1b[K");
        }
    }
}

/// Set when notes are not wanted.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// From here on only complaints reach standard error.
pub(super) fn hush() {
    HUSHED.store(true, Ordering::Relaxed);
}

/// A message on standard error.
pub(super) fn complain(message: &str) {
    tell(&format!("peerproof: {}\n", render::clean(message)));
}

/// Writes to standard error. Nobody may read it any more; that must not end a run.
fn tell(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// A note on standard error that is no error.
pub(super) fn note(message: &str) {
    if HUSHED.load(Ordering::Relaxed) {
        return;
    }
    tell(&format!("{}\n", render::clean(message)));
}

/// Writes a result to standard output; exit code 0.
pub(super) fn print(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<u8, Stop> {
    // Workers have answered by now: from here on a reader that goes away ends this program, as with any filter.
    process::default_sigpipe();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    write(&mut out)
        .and_then(|()| out.flush())
        .map(|()| 0)
        .map_err(|error| Stop::failed(&format!("failed to write the result: {error}")))
}
