//! Markup that cannot be malformed and text that cannot become markup. Names of elements and attributes are words of this
//! program; everything else is escaped on its way in, whatever it holds, and there is no way around that. An element is
//! closed by the call that opened it. What comes out is both HTML and well-formed XML.

use super::page::clean;
use std::fmt::Write as _;

/// An attribute: a word of this program, and any text.
pub(super) type Attribute<'a> = (&'static str, &'a str);

/// Longest text of one element or attribute; the report file has all of it.
const LONGEST_TEXT: usize = 4000;

/// Elements after which a line ends, so that a page can be compared line by line.
const BLOCKS: [&str; 26] = [
    "html", "head", "body", "header", "main", "footer", "nav", "section", "div", "p", "ul", "ol",
    "li", "dl", "dt", "dd", "h1", "h2", "h3", "h4", "tr", "table", "details", "svg", "g",
    "caption",
];

/// A document being written.
#[derive(Debug, Default)]
pub(super) struct Markup {
    text: String,
}

impl Markup {
    pub(super) fn new() -> Self {
        Markup::default()
    }

    /// An element and what stands in it.
    pub(super) fn element(
        &mut self,
        tag: &'static str,
        attributes: &[Attribute<'_>],
        inside: impl FnOnce(&mut Markup),
    ) {
        self.open(tag, attributes, ">");
        inside(self);
        let _ = write!(self.text, "</{tag}>");
        self.end_line(tag);
    }

    /// An element that holds text alone.
    pub(super) fn leaf(&mut self, tag: &'static str, attributes: &[Attribute<'_>], text: &str) {
        self.element(tag, attributes, |m| m.text(text));
    }

    /// An element that can hold nothing: `meta`, `br`, and the shapes of a picture.
    pub(super) fn void(&mut self, tag: &'static str, attributes: &[Attribute<'_>]) {
        self.open(tag, attributes, "/>");
    }

    fn open(&mut self, tag: &'static str, attributes: &[Attribute<'_>], end: &str) {
        self.text.push('<');
        self.text.push_str(tag);
        for (name, value) in attributes {
            let _ = write!(self.text, " {name}=\"");
            self.escaped(value);
            self.text.push('"');
        }
        self.text.push_str(end);
    }

    fn end_line(&mut self, tag: &str) {
        if BLOCKS.contains(&tag) {
            self.text.push('\n');
        }
    }

    /// A line end between elements.
    pub(super) fn line_end(&mut self) {
        self.text.push('\n');
    }

    /// Text, and nothing but text.
    pub(super) fn text(&mut self, text: &str) {
        self.escaped(text);
    }

    /// Lines of text to be pasted as they are; only the line ends between them are kept.
    pub(super) fn lines<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) {
        for (position, line) in lines.into_iter().enumerate() {
            if position > 0 {
                self.text.push('\n');
            }
            self.escaped(line);
        }
    }

    /// A stylesheet of this program.
    pub(super) fn stylesheet(&mut self, css: &'static str) {
        debug_assert!(!css.contains(['<', '&']));
        self.text.push_str("<style>\n");
        self.text.push_str(css);
        self.text.push_str("</style>\n");
    }

    /// The finished part of another document.
    pub(super) fn append(&mut self, other: Markup) {
        self.text.push_str(&other.text);
    }

    /// Whether nothing was written.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// All of it.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn escaped(&mut self, text: &str) {
        let safe = clean(text);
        let length = safe.chars().count();
        for character in safe.chars().take(LONGEST_TEXT) {
            match character {
                '&' => self.text.push_str("&amp;"),
                '<' => self.text.push_str("&lt;"),
                '>' => self.text.push_str("&gt;"),
                '"' => self.text.push_str("&quot;"),
                '\'' => self.text.push_str("&#39;"),
                // No XML may hold them in any spelling.
                '\u{fffe}' | '\u{ffff}' => self.text.extend(character.escape_default()),
                other => self.text.push(other),
            }
        }
        if length > LONGEST_TEXT {
            let more = length - LONGEST_TEXT;
            let _ = write!(self.text, " .. ({more} more characters in the report file)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_wherever_it_stands() {
        let mut m = Markup::new();
        let evil = "\"><img onerror='x'>&amp;]]>\u{1b}\u{ffff}";
        m.element("p", &[("title", evil)], |m| m.text(evil));
        let escaped = "&quot;&gt;&lt;img onerror=&#39;x&#39;&gt;&amp;amp;]]&gt;\\u{1b}\\u{ffff}";
        let expected = format!("<p title=\"{escaped}\">{escaped}</p>\n");
        assert_eq!(m.into_text(), expected);
    }

    #[test]
    fn long_text_is_cut_and_counted() {
        let mut m = Markup::new();
        m.text(&"<".repeat(LONGEST_TEXT + 7));
        let text = m.into_text();
        assert!(text.ends_with("&lt; .. (7 more characters in the report file)"));
    }
}
