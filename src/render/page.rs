//! The one way from the renderers to a terminal. A page knows its width, whether it may use colour, and that names
//! which come from devices, files and other people's hosts may hold anything: every text is cleaned here.
//!
//! Width is counted in characters; wide scripts may overhang, which costs beauty and nothing else.

use crate::model::{pair::OrderedPair, snapshot::Authenticity};
use colored::Colorize;
use std::{
    borrow::Cow,
    io::{self, Write},
};

/// How a text is to be laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Columns of the terminal; less than 40 is taken as 40.
    pub width: usize,
    /// Whether colour may be used. The caller decides (terminal, `NO_COLOR`); colour never carries meaning alone.
    pub color: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            width: 80,
            color: false,
        }
    }
}

/// What a piece of text is, for colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Good,
    Bad,
    Doubt,
    Faint,
}

/// Longest paragraph that is printed; the saved report has all of it.
const LONGEST_TEXT: usize = 1200;

/// Makes foreign text harmless for a terminal: control characters (escape sequences begin with one), line and
/// direction marks and invisible characters become visible `\u{..}` escapes. Text without them is returned as it is.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if harmful(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

fn harmful(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// At most `longest` characters of cleaned text; a cut is marked by two dots.
pub(super) fn cut(text: &str, longest: usize) -> String {
    let safe = clean(text.trim());
    if safe.chars().count() <= longest {
        return safe.into_owned();
    }
    let mut short: String = safe.chars().take(longest.saturating_sub(2)).collect();
    short.push_str("..");
    short
}

/// `text` filled with blanks to `width` characters.
pub(super) fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}

/// A size in KiB, MiB or GiB where it is one, with a decimal where it is not whole.
pub(super) fn size(bytes: u64) -> String {
    let steps = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (name, step) in steps {
        if bytes >= step {
            return if bytes.is_multiple_of(step) {
                format!("{} {name}", bytes / step)
            } else {
                format!("{:.1} {name}", bytes as f64 / step as f64)
            };
        }
    }
    format!("{bytes} B")
}

/// A count with its noun: "1 case", "3 cases".
pub(super) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Digits in groups of three: 393,216.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Pairs in words: all of them, a list, or the head of a list and how many more.
pub(super) fn pairs_in_words(pairs: &[OrderedPair], all: usize) -> String {
    const SHOWN: usize = 12;
    if pairs.len() == all && all > 2 {
        return format!("all {all} ordered pairs");
    }
    let mut words: Vec<String> = pairs.iter().take(SHOWN).map(|p| p.to_string()).collect();
    if pairs.len() > SHOWN {
        words.push(format!("and {} more", pairs.len() - SHOWN));
    }
    words.join(" ")
}

/// What must stand above anything that did not come from plain hardware.
pub(super) fn banner(authenticity: Authenticity) -> Option<(&'static str, &'static str)> {
    match authenticity {
        Authenticity::Hardware => None,
        Authenticity::Simulated => Some((
            "SIMULATED",
            "look-alike drivers answered; no GPU was involved.",
        )),
        Authenticity::FaultInjected => Some((
            "FAULT-INJECTED",
            "a library between peerproof and the driver plants faults.",
        )),
    }
}

/// A page being written.
pub(super) struct Page<'a> {
    out: &'a mut dyn Write,
    width: usize,
    color: bool,
}

impl<'a> Page<'a> {
    pub(super) fn new(out: &'a mut dyn Write, options: &Options) -> Self {
        if options.color {
            // `colored` would ask the environment and stdout again; the caller has decided. Uncoloured pages never
            // reach it, so the process-wide switch only ever goes one way.
            colored::control::set_override(true);
        }
        Page {
            out,
            width: options.width.max(40),
            color: options.color,
        }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    fn painted(&self, tone: Tone, text: &str) -> String {
        if !self.color || text.trim().is_empty() {
            return text.to_string();
        }
        match tone {
            Tone::Plain => return text.to_string(),
            Tone::Strong => text.bold(),
            Tone::Good => text.green(),
            Tone::Bad => text.red().bold(),
            Tone::Doubt => text.yellow(),
            Tone::Faint => text.dimmed(),
        }
        .to_string()
    }

    /// One line as it is, never wrapped: table rows and text to paste.
    pub(super) fn line(&mut self, parts: &[(Tone, &str)]) -> io::Result<()> {
        let last = parts.iter().rposition(|(_, text)| !text.trim().is_empty());
        let mut whole = String::new();
        for (position, (tone, text)) in parts.iter().enumerate() {
            let safe = clean(text);
            match last {
                Some(last) if position < last => whole.push_str(&self.painted(*tone, &safe)),
                Some(last) if position == last => {
                    whole.push_str(&self.painted(*tone, safe.trim_end()));
                }
                _ => {}
            }
        }
        writeln!(self.out, "{whole}")
    }

    pub(super) fn blank(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }

    /// A section title after a blank line.
    pub(super) fn heading(&mut self, title: &str) -> io::Result<()> {
        self.blank()?;
        self.wrap(Tone::Strong, "", "", Tone::Strong, title)
    }

    /// A wrapped paragraph, all lines indented.
    pub(super) fn text(&mut self, indent: usize, tone: Tone, text: &str) -> io::Result<()> {
        let blanks = " ".repeat(indent);
        self.wrap(Tone::Plain, &blanks, &blanks, tone, text)
    }

    /// A wrapped paragraph whose further lines stand four columns deeper than its first.
    pub(super) fn hanging(&mut self, indent: usize, tone: Tone, text: &str) -> io::Result<()> {
        let (first, hang) = (" ".repeat(indent), " ".repeat(indent + 4));
        self.wrap(Tone::Plain, &first, &hang, tone, text)
    }

    /// A wrapped paragraph behind a label; further lines stand below the text.
    pub(super) fn labelled(
        &mut self,
        label_tone: Tone,
        label: &str,
        tone: Tone,
        text: &str,
    ) -> io::Result<()> {
        let label = clean(label).into_owned();
        let hang = " ".repeat(label.chars().count().min(self.width / 2));
        self.wrap(label_tone, &label, &hang, tone, text)
    }

    fn wrap(
        &mut self,
        first_tone: Tone,
        first: &str,
        hang: &str,
        tone: Tone,
        text: &str,
    ) -> io::Result<()> {
        let safe = clean(text);
        let long = safe.chars().count() > LONGEST_TEXT;
        let shown: Cow<'_, str> = if long {
            let kept: String = safe.chars().take(LONGEST_TEXT).collect();
            Cow::Owned(format!(
                "{kept} .. ({} more characters in the saved report)",
                safe.chars().count() - LONGEST_TEXT
            ))
        } else {
            safe
        };
        let room = self.width.saturating_sub(hang.chars().count()).max(16);
        let mut lead = self.painted(first_tone, first);
        let rows = broken(&shown, room);
        if rows.is_empty() {
            return writeln!(self.out, "{}", lead.trim_end());
        }
        for row in rows {
            let body = self.painted(tone, &row);
            writeln!(self.out, "{lead}{body}")?;
            lead = hang.to_string();
        }
        Ok(())
    }
}

/// Rows of at most `room` characters, broken at blanks but not at no-break spaces, which print as blanks; a longer word
/// is broken where it must be.
fn broken(text: &str, room: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut row = String::new();
    let mut used = 0;
    for word in text.split(' ').filter(|w| !w.is_empty()) {
        let mut rest: Vec<char> = word.replace('\u{a0}', " ").chars().collect();
        loop {
            let gap = usize::from(used > 0);
            if used + gap + rest.len() <= room {
                if gap == 1 {
                    row.push(' ');
                }
                used += gap + rest.len();
                row.extend(rest);
                break;
            }
            if used > 0 {
                rows.push(std::mem::take(&mut row));
                used = 0;
                continue;
            }
            let tail = rest.split_off(room);
            rows.push(rest.into_iter().collect());
            rest = tail;
        }
    }
    if used > 0 {
        rows.push(row);
    }
    rows
}

/// Prose of the manual in lines of `width` columns: paragraphs are filled anew, list items hang below their mark, and
/// headings, tables and blocks of code stay as they are.
pub fn reflowed(text: &str, width: usize) -> String {
    const MARKS: [&str; 2] = ["- ", "* "];
    let item = |line: &str| -> usize {
        let body = line.trim_start();
        let lead = line.len() - body.len();
        if MARKS.iter().any(|mark| body.starts_with(mark)) {
            return lead + 2;
        }
        let digits = body.bytes().take_while(u8::is_ascii_digit).count();
        let numbered = digits > 0
            && body
                .get(digits..)
                .is_some_and(|rest| rest.starts_with(". "));
        if numbered { lead + digits + 2 } else { 0 }
    };
    let mut out = String::new();
    let mut open: Option<(String, usize)> = None;
    let close = |open: &mut Option<(String, usize)>, out: &mut String| {
        let Some((body, hang)) = open.take() else {
            return;
        };
        let mark: String = body.chars().take(hang).collect();
        let rest: String = body.chars().skip(hang).collect();
        let mut lead = mark;
        for row in broken(&rest, width.saturating_sub(hang).max(16)) {
            out.push_str(&format!("{lead}{row}\n"));
            lead = " ".repeat(hang);
        }
    };
    let mut code = false;
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        let kept = code
            || fence
            || line.trim().is_empty()
            || line.starts_with(['#', '|'])
            || (line.starts_with("    ") && open.is_none());
        if kept {
            close(&mut open, &mut out);
            out.push_str(line.trim_end());
            out.push('\n');
            code ^= fence;
            continue;
        }
        let hang = item(line);
        match &mut open {
            Some((body, _)) if hang == 0 => {
                body.push(' ');
                body.push_str(line.trim());
            }
            _ => {
                close(&mut open, &mut out);
                open = Some((line.trim_end().to_string(), hang));
            }
        }
    }
    close(&mut open, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_become_visible_text() {
        assert_eq!(clean("NVIDIA H200"), "NVIDIA H200");
        assert_eq!(clean("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(clean("\u{9b}31m\u{202e}x"), "\\u{9b}31m\\u{202e}x");
    }

    #[test]
    fn prose_is_filled_anew_and_all_else_stays() {
        let text = "# A heading that is longer than the width and stays as it is\n\nWords of a paragraph\nthat go on here and there until the line is full.\n- an item that is\n  continued\n- another\n\n    code that stays in its one line however long it may be\n\n| a | table |\n";
        let made = reflowed(text, 30);
        assert_eq!(
            made,
            "# A heading that is longer than the width and stays as it is\n\nWords of a paragraph that go\non here and there until the\nline is full.\n- an item that is continued\n- another\n\n    code that stays in its one line however long it may be\n\n| a | table |\n"
        );
    }

    #[test]
    fn words_break_at_blanks_and_long_ones_where_they_must() {
        assert_eq!(broken("ab cd efghij", 5), ["ab cd", "efghi", "j"]);
        assert!(broken("  ", 5).is_empty());
        assert_eq!(broken("a 96\u{a0}GiB", 7), ["a", "96 GiB"]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(393_216), "393,216");
        assert_eq!(grouped(12), "12");
        assert_eq!(size(8 << 20), "8 MiB");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(17), "17 B");
        assert_eq!(cut("abcdefgh", 6), "abcd..");
    }
}
