//! What stands inside a line of YAML, and may go on over more of them: quoted text and flow collections, and the anchors that
//! any value may carry.

use super::document::{Line, Node, Unread, merged, unread};
use std::collections::BTreeMap;

/// Deepest nesting that is read.
pub(super) const DEEPEST: usize = 64;
/// So many values may be repeated by references: more is no launch.
const MOST_REPEATED: usize = 10_000;

/// Values with a name, of one document.
#[derive(Default)]
pub(super) struct Anchors {
    known: BTreeMap<String, Node>,
    repeated: usize,
}

impl Anchors {
    /// Keeps `node` under its name, if it has one.
    pub(super) fn keep(&mut self, name: Option<String>, node: &Node) {
        if let Some(name) = name {
            self.known.insert(name, node.clone());
        }
    }

    /// The value that `*name` stands for.
    pub(super) fn value(&mut self, name: &str, line: usize) -> Result<Node, Unread> {
        let node = self.known.get(name).ok_or_else(|| {
            let what = format!("'*{name}' stands for a value '&{name}', and none is above it");
            unread(line, &what)
        })?;
        self.repeated += size(node);
        if self.repeated > MOST_REPEATED {
            return Err(unread(
                line,
                "references that repeat more than any launch holds",
            ));
        }
        Ok(node.clone())
    }
}

fn size(node: &Node) -> usize {
    match node {
        Node::Scalar(..) => 1,
        Node::Map(entries) => 1 + entries.iter().map(|(.., value)| size(value)).sum::<usize>(),
        Node::List(items) => 1 + items.iter().map(size).sum::<usize>(),
    }
}

/// Takes `&name` and the tags of plain types from the front of a value. Every value is text here, so those say nothing.
pub(super) fn properties(text: &str, line: usize) -> Result<(Option<String>, &str), Unread> {
    let mut anchor = None;
    let mut rest = text;
    loop {
        let end = rest.find([' ', '\t', ',', ']', '}']).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        if let Some(name) = word.strip_prefix('&') {
            anchor = Some(name.to_string());
        } else if word.starts_with('!') && !word.starts_with("!!") {
            let what = format!(
                "the tag '{word}' is not read: write the file out without it ('docker compose config' does that for a compose file)"
            );
            return Err(unread(line, &what));
        } else if !word.starts_with("!!") {
            return Ok((anchor, rest));
        }
        rest = behind.trim_start();
    }
}

/// A plain word as its value: null is the empty text.
pub(super) fn plain(text: &str) -> String {
    match text {
        "~" | "null" => String::new(),
        other => other.to_string(),
    }
}

/// Refuses a text that another program fills in. Scripts, which may hold the like, stand in blocks of text.
pub(super) fn whole(text: &str, line: usize) -> Result<(), Unread> {
    if !text.contains("{{") {
        return Ok(());
    }
    let what = "a template ({{ }}), which another program fills in: give what it writes ('helm template' for a chart)";
    Err(unread(line, what))
}

/// Reads values that begin inside a line.
pub(super) struct Inline<'r, 'a> {
    lines: &'r [Line<'a>],
    /// The next line to be taken.
    next: usize,
    rest: &'a str,
    line: usize,
    anchors: &'r mut Anchors,
}

impl<'r, 'a> Inline<'r, 'a> {
    /// `rest` of line `line`, and behind it those of `lines` from `next` on.
    pub(super) fn new(
        rest: &'a str,
        line: usize,
        lines: &'r [Line<'a>],
        next: usize,
        anchors: &'r mut Anchors,
    ) -> Self {
        Inline {
            lines,
            next,
            rest,
            line,
            anchors,
        }
    }

    /// One value with nothing but a comment behind it, and the first line behind that.
    pub(super) fn whole(mut self, depth: usize) -> Result<(Node, usize), Unread> {
        let node = self.node(depth)?;
        let behind = self.rest.trim_start();
        if behind.is_empty() || (behind.starts_with('#') && behind.len() < self.rest.len()) {
            return Ok((node, self.next));
        }
        let what = format!("'{behind}' behind a value that has ended");
        Err(unread(self.line, &what))
    }

    fn peek(&self) -> Option<char> {
        let more = self.next < self.lines.len();
        self.rest.chars().next().or(more.then_some('\n'))
    }

    fn bump(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        if let Some(c) = chars.next() {
            self.rest = chars.as_str();
            return Some(c);
        }
        let line = self.lines.get(self.next)?;
        self.next += 1;
        self.rest = line.text;
        self.line = line.number;
        Some('\n')
    }

    /// Blanks, ends of lines and comments.
    fn skip(&mut self) {
        let mut blank = false;
        while let Some(c) = self.peek() {
            match c {
                '#' if blank => self.rest = "",
                c if c.is_whitespace() => {
                    blank = true;
                    self.bump();
                }
                _ => return,
            }
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, Unread> {
        self.skip();
        let line = self.line;
        if depth > DEEPEST {
            return Err(unread(line, "nesting that is too deep"));
        }
        let (anchor, rest) = properties(self.rest, line)?;
        self.rest = rest;
        self.skip();
        let node = match self.peek() {
            Some('[') => self.list(depth)?,
            Some('{') => {
                let template = self.rest.get(..2).unwrap_or_default();
                whole(template, line)?;
                self.map(depth)?
            }
            Some('*') => {
                let end = self.rest.find([' ', '\t', ',', ']', '}']);
                let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                self.rest = rest;
                self.anchors.value(word.trim_start_matches('*'), line)?
            }
            _ => {
                let text = self.word()?;
                whole(&text, line)?;
                Node::Scalar(text, line)
            }
        };
        self.anchors.keep(anchor, &node);
        Ok(node)
    }

    /// A key or a scalar.
    fn word(&mut self) -> Result<String, Unread> {
        match self.peek() {
            Some('"') => self.double(),
            Some('\'') => self.single(),
            _ => {
                let end = self.plain_end();
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                Ok(plain(word.trim_end()))
            }
        }
    }

    /// Where plain text inside brackets ends.
    fn plain_end(&self) -> usize {
        let mut before = ' ';
        for (at, c) in self.rest.char_indices() {
            let behind = self.rest.get(at + c.len_utf8()..).unwrap_or_default();
            let next = behind.chars().next().unwrap_or(' ');
            let ends = match c {
                ',' | '[' | ']' | '{' | '}' => true,
                ':' => next.is_whitespace() || ",[]{}".contains(next),
                '#' => before.is_whitespace(),
                _ => false,
            };
            if ends {
                return at;
            }
            before = c;
        }
        self.rest.len()
    }

    fn list(&mut self, depth: usize) -> Result<Node, Unread> {
        let begun = self.line;
        self.bump();
        let mut items = Vec::new();
        loop {
            self.skip();
            if self.peek() == Some(']') {
                self.bump();
                return Ok(Node::List(items));
            }
            let line = self.line;
            let mut item = self.node(depth + 1)?;
            self.skip();
            // [a: b] holds a mapping of one key.
            if let (Some(':'), Node::Scalar(key, _)) = (self.peek(), &item) {
                let key = key.clone();
                self.bump();
                item = Node::Map(vec![(key, line, self.value(depth)?)]);
            }
            items.push(item);
            self.next_or(']', begun)?;
        }
    }

    fn map(&mut self, depth: usize) -> Result<Node, Unread> {
        let begun = self.line;
        self.bump();
        let mut entries: Vec<(String, usize, Node)> = Vec::new();
        loop {
            self.skip();
            if self.peek() == Some('}') {
                self.bump();
                return merged(entries);
            }
            let line = self.line;
            let key = self.word()?;
            if entries.iter().any(|(there, ..)| *there == key) {
                return Err(unread(line, &format!("the key '{key}' twice")));
            }
            self.skip();
            let value = match self.peek() {
                Some(':') => {
                    self.bump();
                    self.value(depth)?
                }
                _ => Node::Scalar(String::new(), line),
            };
            entries.push((key, line, value));
            self.next_or('}', begun)?;
        }
    }

    /// What stands behind a colon; nothing is null.
    fn value(&mut self, depth: usize) -> Result<Node, Unread> {
        self.skip();
        match self.peek() {
            Some(',' | ']' | '}') => Ok(Node::Scalar(String::new(), self.line)),
            _ => self.node(depth + 1),
        }
    }

    /// A comma, or the end that is left for the loop to take.
    fn next_or(&mut self, end: char, begun: usize) -> Result<(), Unread> {
        self.skip();
        match self.peek() {
            Some(',') => {
                self.bump();
                Ok(())
            }
            Some(c) if c == end => Ok(()),
            None => {
                let what = format!("brackets without their '{end}'");
                Err(unread(begun, &what))
            }
            Some(c) => {
                let what = format!("'{c}' where a comma or '{end}' belongs");
                Err(unread(self.line, &what))
            }
        }
    }

    fn single(&mut self) -> Result<String, Unread> {
        let begun = self.line;
        self.bump();
        let mut text = String::new();
        loop {
            match self.bump() {
                None => return Err(unread(begun, "' without its end")),
                Some('\n') => text.push_str(&self.fold()),
                Some('\'') if self.peek() == Some('\'') => {
                    self.bump();
                    text.push('\'');
                }
                Some('\'') => return Ok(text),
                Some(c) => text.push(c),
            }
        }
    }

    fn double(&mut self) -> Result<String, Unread> {
        let begun = self.line;
        self.bump();
        // As JSON, which has the same escapes but for some that no launch holds.
        let mut json = String::from("\"");
        loop {
            match self.bump() {
                None => return Err(unread(begun, "\" without its end")),
                Some('\n') => json.push_str(&self.fold().replace('\n', "\\n")),
                Some('\t') => json.push_str("\\t"),
                Some('\\') => match self.bump() {
                    // The line goes on behind it.
                    Some('\n') => {}
                    Some(c) => json.extend(['\\', c]),
                    None => return Err(unread(begun, "\" without its end")),
                },
                Some('"') => break,
                Some(c) => json.push(c),
            }
        }
        json.push('"');
        let text = serde_json::from_str(&json);
        text.map_err(|_| unread(begun, "an escape that is not understood"))
    }

    /// What the end of a line inside quotes stands for: a blank, or one end of a line less than there are.
    fn fold(&mut self) -> String {
        let mut more = 0;
        while self.rest.is_empty() && self.next < self.lines.len() {
            self.bump();
            more += 1;
        }
        match more {
            0 => " ".to_string(),
            more => "\n".repeat(more),
        }
    }
}
