//! The one message that a refused file gets.

use std::fmt;

/// Why a file was not read. One message; with the place where there is text to point at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ImportError {
    /// File name as given.
    pub file: String,
    /// Line, counted from 1.
    pub line: Option<u32>,
    /// Column in characters, counted from 1.
    pub column: Option<u32>,
    /// What is wrong and what to give instead.
    pub message: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
            if let Some(column) = self.column {
                write!(f, ":{column}")?;
            }
        }
        write!(f, ": {}", self.message)
    }
}

impl ImportError {
    /// About the file as a whole.
    pub(super) fn whole(file: &str, message: impl Into<String>) -> Self {
        // Parsers quote the input in their words; one line and a bounded one is our promise.
        let mut message: String = message
            .into()
            .chars()
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        if let Some((cut, _)) = message.char_indices().nth(400) {
            message.truncate(cut);
            message.push_str("...");
        }
        ImportError {
            file: file.to_string(),
            line: None,
            column: None,
            message,
        }
    }

    /// At a line and column, counted from 1.
    pub(super) fn at(file: &str, line: u32, column: u32, message: impl Into<String>) -> Self {
        ImportError {
            line: Some(line),
            column: Some(column),
            ..ImportError::whole(file, message)
        }
    }
}

/// Text of a foreign file made fit for a one-line message: control characters replaced, cut after 48 characters.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(48)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(48).is_some() {
        shown.push_str("...");
    }
    format!("'{shown}'")
}
