//! Shell text as commands: words, quotes, comments, assignments, here-documents, and variables as far as the text itself
//! sets them. It runs nothing: what only a running shell could know is marked as not read.

use super::blocks::{Blocks, Ended, Scope};
use std::collections::{BTreeMap, BTreeSet};

/// One word of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// After quotes and known variables.
    pub(super) text: String,
    /// Line on which it began, from 1.
    pub(super) line: usize,
    /// It holds something that only a running shell knows.
    pub(super) opaque: bool,
}

/// A quote or bracket without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unclosed {
    pub(super) line: usize,
    pub(super) what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// Name, what stands in for it when unset, and whether it was in double quotes.
    Variable(String, Option<String>, bool),
    Opaque(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Raw {
    pieces: Vec<Piece>,
    line: usize,
    /// Words of `NAME=(...)`.
    array: Option<Vec<Raw>>,
}

impl Raw {
    /// Its text where nothing of it is filled in.
    fn bare(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Text(text)] if self.array.is_none() => Some(text),
            _ => None,
        }
    }

    fn push(&mut self, c: char) {
        if let Some(Piece::Text(text)) = self.pieces.last_mut() {
            text.push(c);
        } else {
            self.pieces.push(Piece::Text(c.to_string()));
        }
    }
}

/// A command before its variables are filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    words: Vec<Raw>,
    /// The text ends in a backslash, so that a line is missing.
    cut: bool,
    /// What it stands in that may not run, outermost first.
    pub(super) scope: Vec<Scope>,
    /// Texts that it is given to read: here-documents and here-strings.
    documents: Vec<Document>,
    /// Files that it writes.
    files: Vec<Raw>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Document {
    /// As it stands, where its delimiter is quoted.
    Plain(String),
    /// Variables are filled in.
    Filled(Raw),
}

/// What stands in place of words that the text does not hold any more.
const CUT: &str = "\\";

/// Whether a word stands for others, or for a part of itself, that were left out of the text: "...", a backslash at its end.
pub(super) fn is_left_out(text: &str) -> bool {
    text == CUT || text.ends_with("...") || text.ends_with('\u{2026}')
}

/// Values by name; an array has several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Values {
    known: BTreeMap<String, Vec<String>>,
    /// Set, and to what only a running shell knows: no default stands in for them.
    unknown: BTreeSet<String>,
    /// Arrays of which some words are known to a running shell only.
    partly: BTreeSet<String>,
}

impl Values {
    pub(super) fn new() -> Self {
        Values::default()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Vec<String>> {
        self.known.get(name)
    }

    pub(super) fn insert(&mut self, name: String, value: Vec<String>) {
        self.remove(&name);
        self.known.insert(name, value);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.known.remove(name);
        self.unknown.remove(name);
        self.partly.remove(name);
    }

    /// It is set, and to what is not known.
    pub(super) fn forget(&mut self, name: &str) {
        self.remove(name);
        self.unknown.insert(name.to_string());
    }

    /// Takes an array.
    pub(super) fn array(&mut self, array: Array) {
        let mut words = array.words;
        let mut opaque = array.opaque;
        if array.appends {
            if self.unknown.contains(&array.name) {
                return;
            }
            opaque |= self.partly.contains(&array.name);
            let before = self.known.get(&array.name).cloned().unwrap_or_default();
            words.splice(0..0, before);
        }
        self.insert(array.name.clone(), words);
        if opaque {
            self.partly.insert(array.name);
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.known.keys()
    }

    pub(super) fn into_known(self) -> BTreeMap<String, Vec<String>> {
        self.known
    }
}

/// `NAME=(...)` or `NAME+=(...)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Array {
    pub(super) name: String,
    pub(super) words: Vec<String>,
    /// Some of the words are known to a running shell only.
    pub(super) opaque: bool,
    appends: bool,
}

/// Splits `text` into commands.
pub(super) fn commands(text: &str) -> Result<Vec<Command>, Unclosed> {
    let mut reader = Reader {
        chars: text.chars().collect(),
        at: 0,
        line: 1,
        cut: false,
        ended: Ended::Sequence,
        documents: Vec::new(),
        files: Vec::new(),
    };
    let mut all: Vec<Command> = Vec::new();
    let mut blocks = Blocks::new();
    loop {
        let line = reader.line;
        let (words, end) = reader.command(None)?;
        let ended = match end && reader.ended == Ended::Sequence {
            true => Ended::Text,
            false => reader.ended,
        };
        let plain: Vec<Option<&str>> = words.iter().map(Raw::bare).collect();
        let line = words.first().map_or(line, |w| w.line);
        let sure = succeeds(&words);
        let (scope, wraps) = blocks.command(&plain, line, sure, ended, all.len());
        if !words.is_empty() {
            all.push(Command {
                words,
                cut: reader.cut,
                scope,
                documents: std::mem::take(&mut reader.documents),
                files: std::mem::take(&mut reader.files),
            });
        }
        for wrap in wraps {
            for command in all.iter_mut().skip(wrap.from) {
                let at = wrap.depth.min(command.scope.len());
                command.scope.insert(at, wrap.scope);
            }
        }
        if end {
            return Ok(all);
        }
    }
}

/// Whether a command cannot fail: nothing but variables that are set to what the text says.
fn succeeds(words: &[Raw]) -> bool {
    let sets = |raw: &Raw| {
        let opaque = raw.pieces.iter().any(|p| matches!(p, Piece::Opaque(_)));
        let head = matches!(raw.pieces.first(), Some(Piece::Text(t)) if t.contains('='));
        head && !opaque
    };
    let rest = match words.first().and_then(Raw::bare) {
        Some("export") => words.get(1..).unwrap_or_default(),
        _ => words,
    };
    !rest.is_empty() && rest.iter().all(sets)
}

impl Command {
    /// The words with the variables of `values` filled in, arrays left out. A variable outside quotes is split at blanks, as
    /// a shell does.
    ///
    /// A command that is cut off ends in a word that [is left out](is_left_out).
    pub(super) fn words(&self, values: &Values) -> Vec<Word> {
        let whole = self.words.iter().filter(|raw| raw.array.is_none());
        let mut words: Vec<Word> = whole.flat_map(|raw| expand(raw, values)).collect();
        if let Some(last) = self.words.last().filter(|_| self.cut) {
            words.push(Word {
                text: CUT.to_string(),
                line: last.line,
                opaque: false,
            });
        }
        words
    }

    /// Variables that it is filled in with.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        let pieces = self.words.iter().flat_map(|raw| &raw.pieces);
        pieces
            .filter_map(|piece| match piece {
                Piece::Variable(name, ..) => Some(bare_name(name)),
                Piece::Text(_) | Piece::Opaque(_) => None,
            })
            .collect()
    }

    /// The texts that it is given to read, with the variables of `values` filled in.
    pub(super) fn documents(&self, values: &Values) -> Vec<String> {
        let text = |document: &Document| match document {
            Document::Plain(text) => text.clone(),
            Document::Filled(raw) => {
                let words = expand(raw, values).into_iter().map(|w| w.text);
                words.collect::<Vec<_>>().join(" ")
            }
        };
        self.documents.iter().map(text).collect()
    }

    /// The files that it writes.
    pub(super) fn files(&self, values: &Values) -> Vec<String> {
        let all = self.files.iter().flat_map(|raw| expand(raw, values));
        all.map(|w| w.text).collect()
    }

    /// `NAME=(...)` of this command with its words.
    pub(super) fn arrays(&self, values: &Values) -> Vec<Array> {
        self.words
            .iter()
            .filter_map(|raw| {
                let array = raw.array.as_ref()?;
                let Some(Piece::Text(head)) = raw.pieces.first() else {
                    return None;
                };
                let head = head.trim_end_matches('=');
                let words: Vec<Word> = array.iter().flat_map(|w| expand(w, values)).collect();
                Some(Array {
                    name: head.trim_end_matches('+').to_string(),
                    opaque: words.iter().any(|w| w.opaque),
                    words: words.into_iter().map(|w| w.text).collect(),
                    appends: head.ends_with('+'),
                })
            })
            .collect()
    }
}

/// The variable of `NAME[...]`.
fn bare_name(name: &str) -> &str {
    name.split('[').next().unwrap_or(name)
}

/// What a shell puts in the place of a variable that has the words `all`: of an array the first one, unless more is asked for.
fn chosen(name: &str, all: &[String], quoted: bool) -> Vec<String> {
    let index = name
        .split_once('[')
        .map(|(_, rest)| rest.trim_end_matches(']'));
    match index {
        Some("@") => all.to_vec(),
        Some("*") if quoted => vec![all.join(" ")],
        Some("*") => all.to_vec(),
        other => {
            let at = other.map_or(Some(0), |i| i.parse::<usize>().ok());
            let one = at.and_then(|at| all.get(at));
            vec![one.cloned().unwrap_or_default()]
        }
    }
}

fn expand(raw: &Raw, values: &Values) -> Vec<Word> {
    let mut words = vec![String::new()];
    let mut opaque = false;
    let mut partly = false;
    let mut vanished = true;
    for piece in &raw.pieces {
        match piece {
            Piece::Text(text) => {
                vanished = false;
                if let Some(last) = words.last_mut() {
                    last.push_str(text);
                }
            }
            Piece::Opaque(text) => {
                vanished = false;
                opaque = true;
                if let Some(last) = words.last_mut() {
                    last.push_str(text);
                }
            }
            Piece::Variable(name, default, quoted) => {
                let bare = bare_name(name);
                let found = values.get(bare).map(|all| chosen(name, all, *quoted));
                let default = default.clone().filter(|_| !values.unknown.contains(bare));
                opaque |= found.is_none() && default.as_ref().is_some_and(|d| d.contains('$'));
                let list = found.or_else(|| default.map(|d| vec![d]));
                let Some(list) = list else {
                    vanished = false;
                    opaque = true;
                    if let Some(last) = words.last_mut() {
                        last.push_str(&format!("${name}"));
                    }
                    continue;
                };
                partly |= values.partly.contains(bare);
                let parts: Vec<String> = if *quoted {
                    list
                } else {
                    list.iter()
                        .flat_map(|v| v.split_whitespace().map(str::to_string))
                        .collect()
                };
                for (i, part) in parts.iter().enumerate() {
                    vanished = false;
                    match words.last_mut() {
                        Some(last) if i == 0 => last.push_str(part),
                        _ => words.push(part.clone()),
                    }
                }
                vanished = vanished && !*quoted;
            }
        }
    }
    // An unquoted variable that is empty leaves no word; '' leaves one.
    if vanished && !raw.pieces.is_empty() {
        return Vec::new();
    }
    words
        .into_iter()
        .map(|text| Word {
            opaque: opaque || (partly && text.contains(['$', '`'])),
            text,
            line: raw.line,
        })
        .collect()
}

/// The words of a command so far.
#[derive(Default)]
struct Line {
    words: Vec<Raw>,
    /// The word that is being read.
    open: Option<Raw>,
    /// What the next word is, where it is none of the command's.
    next: Next,
    documents: Vec<Document>,
    files: Vec<Raw>,
}

/// What a word is to its command.
#[derive(Default)]
enum Next {
    #[default]
    Word,
    /// A file that is read.
    Read,
    /// A file that is written.
    Written,
    /// Text that is read.
    Text,
}

impl Line {
    /// The word that is being read, begun on `line`.
    fn word(&mut self, line: usize) -> &mut Raw {
        self.open.get_or_insert_with(|| Raw {
            line,
            ..Raw::default()
        })
    }

    fn end(&mut self) {
        let Some(raw) = self.open.take() else {
            return;
        };
        match std::mem::take(&mut self.next) {
            Next::Word => self.words.push(raw),
            Next::Read => {}
            Next::Written => self.files.push(raw),
            Next::Text => self.documents.push(Document::Filled(raw)),
        }
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    line: usize,
    /// The text ends in a backslash.
    cut: bool,
    /// What ended the last command.
    ended: Ended,
    /// What the command reads and writes beside its words.
    documents: Vec<Document>,
    files: Vec<Raw>,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    /// Behind a backslash at the end of a line: another line belongs to it, and none is there where the text is cut off.
    fn joined(&mut self) {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        self.cut |= rest.iter().all(|c| c.is_whitespace());
    }

    fn take(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.next();
        }
        there
    }

    /// Words up to the end of a command, or to `until` inside `NAME=(...)`; whether the text is at its end.
    fn command(&mut self, until: Option<char>) -> Result<(Vec<Raw>, bool), Unclosed> {
        let mut line = Line::default();
        let mut heredocs: Vec<(String, bool)> = Vec::new();
        let begun = self.line;
        self.ended = Ended::Sequence;
        loop {
            let here = self.line;
            let Some(c) = self.next() else {
                if until.is_some() {
                    return Err(Unclosed {
                        line: begun,
                        what: "'(' without its ')'",
                    });
                }
                return Ok((self.taken(line), true));
            };
            match c {
                '#' if line.open.is_none() => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                '\\' => match self.next() {
                    Some('\r') if self.take('\n') => self.joined(),
                    Some('\n') | None => self.joined(),
                    Some(escaped) => line.word(here).push(escaped),
                },
                '\'' => {
                    let word = line.word(here);
                    word.pieces.push(Piece::Text(String::new()));
                    loop {
                        match self.next() {
                            None => {
                                return Err(Unclosed {
                                    line: here,
                                    what: "' without its end",
                                });
                            }
                            Some('\'') => break,
                            Some(inner) => word.push(inner),
                        }
                    }
                }
                '"' => {
                    let word = line.word(here);
                    word.pieces.push(Piece::Text(String::new()));
                    self.double_quoted(word, here)?;
                }
                '$' => {
                    let piece = self.variable(false)?;
                    line.word(here).pieces.push(piece);
                }
                '`' => {
                    while self.peek().is_some_and(|c| c != '`') {
                        self.next();
                    }
                    if self.next().is_none() {
                        return Err(Unclosed {
                            line: here,
                            what: "` without its end",
                        });
                    }
                    let piece = Piece::Opaque("`...`".to_string());
                    line.word(here).pieces.push(piece);
                }
                '(' if line.open.as_ref().is_some_and(ends_with_equals) => {
                    let (array, _) = self.command(Some(')'))?;
                    line.word(here).array = Some(array);
                }
                ')' if until == Some(')') => {
                    line.end();
                    return Ok((line.words, false));
                }
                '\n' if until.is_some() => line.end(),
                ' ' | '\t' | '\r' => line.end(),
                '>' | '<' if self.peek() == Some('(') => {
                    // A file that another command makes.
                    let piece = self.variable(false)?;
                    line.word(here).pieces.push(piece);
                }
                '&' if self.peek() == Some('>') => line.end(),
                '>' | '<' => {
                    // A number before it is a file descriptor.
                    let descriptor = line.open.as_ref().is_some_and(|raw| {
                        matches!(raw.pieces.as_slice(), [Piece::Text(t)] if t.bytes().all(|b| b.is_ascii_digit()))
                    });
                    if descriptor {
                        line.open = None;
                    } else {
                        line.end();
                    }
                    let document = c == '<' && self.take('<');
                    if document {
                        if self.take('<') {
                            line.next = Next::Text;
                        } else {
                            self.take('-');
                            heredocs.push(self.delimiter());
                        }
                        continue;
                    }
                    let mut copied = false;
                    while let Some(c) = self.peek().filter(|c| "><&|-".contains(*c)) {
                        copied |= c == '&';
                        self.next();
                    }
                    line.next = match c {
                        '>' if !copied => Next::Written,
                        _ => Next::Read,
                    };
                }
                '\n' | ';' | '&' | '|' | '(' | ')' => {
                    line.end();
                    if c == '\n' {
                        for (delimiter, quoted) in heredocs.drain(..) {
                            let at = self.line;
                            let text = self.document(&delimiter);
                            line.documents.push(document(text, quoted, at));
                        }
                    } else if !heredocs.is_empty() {
                        continue;
                    }
                    self.ended = match c {
                        '&' if self.take('&') => Ended::And,
                        '&' => Ended::Background,
                        '|' if self.take('|') => Ended::Or,
                        '|' => {
                            self.take('&');
                            Ended::Pipe
                        }
                        '(' => Ended::Opens,
                        ')' => Ended::Closes,
                        ';' if self.take(';') => {
                            self.take('&');
                            Ended::Case
                        }
                        _ => Ended::Sequence,
                    };
                    return Ok((self.taken(line), self.peek().is_none()));
                }
                plain => line.word(here).push(plain),
            }
        }
    }

    fn double_quoted(&mut self, raw: &mut Raw, line: usize) -> Result<(), Unclosed> {
        loop {
            match self.next() {
                None => {
                    return Err(Unclosed {
                        line,
                        what: "\" without its end",
                    });
                }
                Some('"') => return Ok(()),
                Some('\\') => match self.next() {
                    Some('\n') => {}
                    Some(c @ ('$' | '`' | '"' | '\\')) => raw.push(c),
                    Some(c) => {
                        raw.push('\\');
                        raw.push(c);
                    }
                    None => {}
                },
                Some('$') => {
                    let piece = self.variable(true)?;
                    raw.pieces.push(piece);
                }
                Some(c) => raw.push(c),
            }
        }
    }

    /// What follows a `$`.
    fn variable(&mut self, quoted: bool) -> Result<Piece, Unclosed> {
        let line = self.line;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match self.peek() {
            Some('(') => {
                let mut depth = 0usize;
                loop {
                    match self.next() {
                        Some('(') => depth += 1,
                        Some(')') => {
                            depth -= 1;
                            if depth == 0 {
                                return Ok(Piece::Opaque("$(...)".to_string()));
                            }
                        }
                        Some(_) => {}
                        None => {
                            return Err(Unclosed {
                                line,
                                what: "'$(' without its ')'",
                            });
                        }
                    }
                }
            }
            Some('{') => {
                self.next();
                let mut inside = String::new();
                loop {
                    match self.next() {
                        Some('}') => break,
                        Some(c) => inside.push(c),
                        None => {
                            return Err(Unclosed {
                                line,
                                what: "'${' without its '}'",
                            });
                        }
                    }
                }
                let end = inside.find(|c: char| !is_name(c)).unwrap_or(inside.len());
                let (name, rest) = inside.split_at(end);
                if name.is_empty() {
                    return Ok(Piece::Opaque(format!("${{{inside}}}")));
                }
                let default = rest.strip_prefix(":-").or_else(|| rest.strip_prefix('-'));
                match (rest, default) {
                    (rest, _) if is_index(rest) => {
                        Ok(Piece::Variable(format!("{name}{rest}"), None, quoted))
                    }
                    (_, Some(default)) => Ok(Piece::Variable(
                        name.to_string(),
                        Some(default.to_string()),
                        quoted,
                    )),
                    _ => Ok(Piece::Opaque(format!("${{{inside}}}"))),
                }
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.peek().filter(|c| is_name(*c)) {
                    name.push(c);
                    self.next();
                }
                Ok(Piece::Variable(name, None, quoted))
            }
            Some(c @ ('@' | '*' | '#' | '?' | '$' | '!' | '-' | '0'..='9')) => {
                self.next();
                Ok(Piece::Opaque(format!("${c}")))
            }
            _ => Ok(Piece::Text("$".to_string())),
        }
    }

    /// The words of a command that is at its end; what it reads and writes is kept beside them.
    fn taken(&mut self, mut line: Line) -> Vec<Raw> {
        line.end();
        self.documents.append(&mut line.documents);
        self.files.append(&mut line.files);
        line.words
    }

    /// The word that ends a here-document, quotes dropped, and whether there were some.
    fn delimiter(&mut self) -> (String, bool) {
        let mut word = String::new();
        let mut quoted = false;
        while self.peek().is_some_and(|c| c == ' ' || c == '\t') {
            self.next();
        }
        while let Some(c) = self
            .peek()
            .filter(|c| !c.is_whitespace() && !";|&>)".contains(*c))
        {
            self.next();
            match "'\"\\".contains(c) {
                true => quoted = true,
                false => word.push(c),
            }
        }
        (word, quoted)
    }

    fn document(&mut self, delimiter: &str) -> String {
        let mut text = String::new();
        loop {
            let mut line = String::new();
            loop {
                match self.next() {
                    None => break,
                    Some('\n') => break,
                    Some(c) => line.push(c),
                }
            }
            let ends = line.trim_start_matches('\t').trim_end() == delimiter;
            if !ends {
                text.push_str(&line);
                text.push('\n');
            }
            if ends || self.peek().is_none() {
                return text;
            }
        }
    }
}

/// A here-document that begins on `line`: without quotes a shell reads it as it reads double quotes.
fn document(text: String, quoted: bool, line: usize) -> Document {
    if quoted || !text.contains(['$', '`', '\\']) {
        return Document::Plain(text);
    }
    let mut reader = Reader {
        chars: (text.replace('"', "\\\"") + "\"").chars().collect(),
        at: 0,
        line,
        cut: false,
        ended: Ended::Sequence,
        documents: Vec::new(),
        files: Vec::new(),
    };
    let mut raw = Raw {
        line,
        ..Raw::default()
    };
    match reader.double_quoted(&mut raw, line) {
        Ok(()) => Document::Filled(raw),
        Err(_) => Document::Plain(text),
    }
}

/// Nothing, `[@]`, `[*]` or `[3]`.
fn is_index(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    text.is_empty()
        || inner.is_some_and(|i| {
            matches!(i, "@" | "*") || (!i.is_empty() && i.bytes().all(|b| b.is_ascii_digit()))
        })
}

fn ends_with_equals(raw: &Raw) -> bool {
    matches!(raw.pieces.last(), Some(Piece::Text(text)) if text.ends_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<Vec<String>> {
        let mut values = Values::new();
        values.insert("TP".to_string(), vec!["8".to_string()]);
        commands(text)
            .unwrap()
            .iter()
            .map(|c| c.words(&values).into_iter().map(|w| w.text).collect())
            .collect()
    }

    #[test]
    fn words_and_quotes() {
        assert_eq!(
            split("vllm serve 'a b' \"c\\\"d\" e\\ f ''"),
            [["vllm", "serve", "a b", "c\"d", "e f", ""]]
        );
        assert_eq!(
            split("a \\\n  b # no\nc;d&&e|f"),
            vec![vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"], vec!["f"]]
        );
        assert_eq!(
            split("x '{\"k\":[1,2]}' a#b"),
            [["x", "{\"k\":[1,2]}", "a#b"]]
        );
    }

    #[test]
    fn a_text_that_ends_in_a_backslash_is_cut_off() {
        for text in ["a b \\", "a b \\\n", "a b \\\r\n", "a b\\\n  \n"] {
            assert_eq!(split(text), [["a", "b", CUT]], "{text:?}");
        }
        assert_eq!(split("a \\\r\n b"), [["a", "b"]]);
        assert_eq!(split("a 'b\\'"), [["a", "b\\"]]);
        assert_eq!(split("a # b\\"), [["a"]]);
    }

    #[test]
    fn redirections_are_no_words() {
        assert_eq!(split("a >out 2>&1 b < in"), [["a", "b"]]);
        assert_eq!(
            split("cat <<'E' >f\nvllm serve x\nE\nb"),
            vec![vec!["cat"], vec!["b"]]
        );
    }

    #[test]
    fn variables_are_filled_in_where_the_text_sets_them() {
        assert_eq!(split("a $TP \"${TP}x\" '$TP'"), [["a", "8", "8x", "$TP"]]);
        assert_eq!(split("a ${NONE:-4} $(date) b"), [["a", "4", "$(...)", "b"]]);
        let mut values = Values::new();
        values.insert("F".to_string(), vec!["--tp 4".to_string()]);
        let all = commands("a $F \"$F\" $G").unwrap();
        let words = all[0].words(&values);
        let texts: Vec<&str> = words.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(texts, ["a", "--tp", "4", "--tp 4", "$G"]);
        assert!(words[4].opaque && !words[3].opaque);
    }

    #[test]
    fn arrays() {
        let all = commands("A=(--tp 8\n  'b c') \nrun \"${A[@]}\"").unwrap();
        let arrays = all[0].arrays(&Values::new());
        assert_eq!(arrays[0].name, "A");
        assert_eq!(arrays[0].words, ["--tp", "8", "b c"]);
        let mut values = Values::new();
        arrays.into_iter().for_each(|array| values.array(array));
        let words = all[1].words(&values);
        let texts: Vec<&str> = words.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(texts, ["run", "--tp", "8", "b c"]);
    }

    #[test]
    fn what_is_not_closed_is_named_with_its_line() {
        assert_eq!(commands("a\nb 'c\nd").unwrap_err().line, 2);
        assert_eq!(commands("a \"b").unwrap_err().what, "\" without its end");
        for text in ["a $(b", "a ${b", "A=(b", "a `b"] {
            assert!(commands(text).is_err(), "{text}");
        }
    }
}
