//! The part of YAML that compose files and Kubernetes manifests are written in: mappings and lists by indentation, plain
//! and quoted scalars, block scalars, JSON-like flow collections. No anchors, tags or several documents at once: what is
//! not understood is an error with its line, never a guess.

/// A value with the line on which it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// A scalar as text; the empty text also stands for null.
    Scalar(String, usize),
    /// Key, line, value.
    Map(Vec<(String, usize, Node)>),
    /// Items.
    List(Vec<Node>),
}

/// A line that was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unread {
    pub(super) line: usize,
    pub(super) what: String,
}

impl Node {
    /// The value of a key.
    pub(super) fn get(&self, wanted: &str) -> Option<&Node> {
        match self {
            Node::Map(entries) => entries
                .iter()
                .find(|(key, ..)| key == wanted)
                .map(|(_, _, value)| value),
            _ => None,
        }
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Node::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// Every mapping in it, itself first, outermost first.
    pub(super) fn maps(&self) -> Vec<&Node> {
        let mut all = Vec::new();
        self.collect(&mut all);
        all
    }

    fn collect<'a>(&'a self, all: &mut Vec<&'a Node>) {
        match self {
            Node::Scalar(..) => {}
            Node::Map(entries) => {
                all.push(self);
                for (_, _, value) in entries {
                    value.collect(all);
                }
            }
            Node::List(items) => {
                for item in items {
                    item.collect(all);
                }
            }
        }
    }
}

struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// Deepest nesting that is read.
const DEEPEST: usize = 64;

/// Reads `text`.
pub(super) fn parse(text: &str) -> Result<Node, Unread> {
    let mut lines = Vec::new();
    for (at, raw) in text.lines().enumerate() {
        let number = at + 1;
        let body = raw.trim_start_matches(' ');
        if body.starts_with('\t') {
            return Err(unread(number, "a tab as indentation"));
        }
        if body.trim_end() == "---" {
            continue;
        }
        lines.push(Line {
            number,
            indent: raw.len() - body.len(),
            text: body.trim_end(),
        });
    }
    let mut reader = Reader { lines, at: 0 };
    let node = reader.block(0, 0)?;
    reader.skip_blank();
    match reader.lines.get(reader.at) {
        Some(line) => Err(unread(
            line.number,
            "indentation that fits nothing above it",
        )),
        None => Ok(node),
    }
}

fn unread(line: usize, what: &str) -> Unread {
    Unread {
        line,
        what: what.to_string(),
    }
}

struct Reader<'a> {
    lines: Vec<Line<'a>>,
    at: usize,
}

impl Reader<'_> {
    fn skip_blank(&mut self) {
        while self
            .lines
            .get(self.at)
            .is_some_and(|l| l.text.is_empty() || l.text.starts_with('#'))
        {
            self.at += 1;
        }
    }

    /// The block of lines that are indented by at least `least`.
    fn block(&mut self, least: usize, depth: usize) -> Result<Node, Unread> {
        self.skip_blank();
        let Some(first) = self.lines.get(self.at).filter(|l| l.indent >= least) else {
            return Ok(Node::Scalar(String::new(), 0));
        };
        let (indent, number) = (first.indent, first.number);
        if depth > DEEPEST {
            return Err(unread(number, "nesting that is too deep"));
        }
        if first.text == "-" || first.text.starts_with("- ") {
            self.list(indent, depth)
        } else if key_of(first.text).is_some() {
            self.map(indent, depth)
        } else {
            let node = scalar(first.text, number)?;
            self.at += 1;
            Ok(node)
        }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Node, Unread> {
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            let Some(line) = self.lines.get_mut(self.at) else {
                break;
            };
            if line.indent != indent || !(line.text == "-" || line.text.starts_with("- ")) {
                break;
            }
            let rest = line.text.strip_prefix('-').unwrap_or_default();
            let body = rest.trim_start();
            if body.is_empty() {
                self.at += 1;
                items.push(self.block(indent + 1, depth + 1)?);
            } else if body.starts_with('|') || body.starts_with('>') {
                let number = line.number;
                let folded = body.starts_with('>');
                self.at += 1;
                items.push(self.block_scalar(indent, folded, number));
            } else if key_of(body).is_some() || body.starts_with("- ") {
                // The item is a block of its own, as if it stood at the place of its first key.
                line.indent = indent + 1 + (rest.len() - body.len());
                line.text = body;
                items.push(self.block(indent + 1, depth + 1)?);
            } else {
                let node = scalar(body, line.number)?;
                self.at += 1;
                items.push(node);
            }
        }
        Ok(Node::List(items))
    }

    fn map(&mut self, indent: usize, depth: usize) -> Result<Node, Unread> {
        let mut entries: Vec<(String, usize, Node)> = Vec::new();
        loop {
            self.skip_blank();
            let Some(line) = self.lines.get(self.at).filter(|l| l.indent == indent) else {
                break;
            };
            let number = line.number;
            let Some((key, rest)) = key_of(line.text) else {
                if line.text.starts_with('-') {
                    break;
                }
                return Err(unread(number, "no 'key: value'"));
            };
            if entries.iter().any(|(there, ..)| *there == key) {
                return Err(unread(number, &format!("the key '{key}' twice")));
            }
            self.at += 1;
            let value = if rest.starts_with('|') || rest.starts_with('>') {
                self.block_scalar(indent, rest.starts_with('>'), number)
            } else if !rest.is_empty() {
                scalar(rest, number)?
            } else {
                self.skip_blank();
                // A list may stand at the indentation of its key.
                let same = self.lines.get(self.at).is_some_and(|l| {
                    l.indent == indent && (l.text == "-" || l.text.starts_with("- "))
                });
                if same {
                    self.list(indent, depth + 1)?
                } else {
                    self.block(indent + 1, depth + 1)?
                }
            };
            entries.push((key, number, value));
        }
        Ok(Node::Map(entries))
    }

    /// Lines below `|` or `>`.
    fn block_scalar(&mut self, indent: usize, folded: bool, number: usize) -> Node {
        let mut lines = Vec::new();
        while let Some(line) = self.lines.get(self.at) {
            if !line.text.is_empty() && line.indent <= indent {
                break;
            }
            lines.push(line.text);
            self.at += 1;
        }
        let glue = if folded { " " } else { "\n" };
        Node::Scalar(lines.join(glue), number)
    }
}

/// `key: rest`, with the comment behind it gone; a key in quotes loses them.
fn key_of(text: &str) -> Option<(String, &str)> {
    let (key, rest) = if let Some(quote) = text.chars().next().filter(|c| "\"'".contains(*c)) {
        let inner = text.strip_prefix(quote)?;
        let (key, rest) = inner.split_once(quote)?;
        (key, rest.strip_prefix(':')?)
    } else if text.starts_with(['{', '[', '#', '&', '*', '!']) {
        return None;
    } else {
        let at = text
            .find(": ")
            .or_else(|| text.ends_with(':').then(|| text.len().saturating_sub(1)))?;
        (text.get(..at)?, text.get(at + 1..)?)
    };
    if key.is_empty() || key.contains(['{', '"', '\'']) {
        return None;
    }
    let rest = rest.trim();
    Some((
        key.trim().to_string(),
        if rest.starts_with('#') { "" } else { rest },
    ))
}

fn scalar(text: &str, line: usize) -> Result<Node, Unread> {
    let text = text.trim();
    if text.starts_with('[') || text.starts_with('{') {
        return flow(text, line);
    }
    if text.starts_with(['&', '*', '!']) {
        return Err(unread(line, "anchors, references and tags"));
    }
    if let Some(rest) = text.strip_prefix('"') {
        let end = closing(rest, '"').ok_or_else(|| unread(line, "\" without its end"))?;
        let json = format!("\"{}\"", rest.get(..end).unwrap_or_default());
        let value = serde_json::from_str(&json)
            .map_err(|_| unread(line, "an escape that is not understood"))?;
        return Ok(Node::Scalar(value, line));
    }
    if let Some(rest) = text.strip_prefix('\'') {
        let doubled = rest.replace("''", "\u{0}");
        let (inside, _) = doubled
            .split_once('\'')
            .ok_or_else(|| unread(line, "' without its end"))?;
        return Ok(Node::Scalar(inside.replace('\u{0}', "'"), line));
    }
    let plain = text.split(" #").next().unwrap_or_default().trim_end();
    let plain = if plain == "~" || plain == "null" {
        ""
    } else {
        plain
    };
    Ok(Node::Scalar(plain.to_string(), line))
}

/// Place of the closing quote that no backslash escapes.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at),
            _ => {}
        }
    }
    None
}

/// A flow collection on one line, as far as it is JSON; a list may also hold plain words.
fn flow(text: &str, line: usize) -> Result<Node, Unread> {
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text) {
        return Ok(json(value, line));
    }
    let inside = text
        .strip_prefix('[')
        .and_then(|t| t.split(" #").next()?.trim_end().strip_suffix(']'))
        .filter(|t| !t.contains(['[', ']', '{', '}']))
        .ok_or_else(|| {
            unread(
                line,
                "a flow collection that is neither JSON nor a list on one line",
            )
        })?;
    let mut items = Vec::new();
    for item in inside.split(',').filter(|i| !i.trim().is_empty()) {
        items.push(scalar(item, line)?);
    }
    Ok(Node::List(items))
}

fn json(value: serde_json::Value, line: usize) -> Node {
    use serde_json::Value;
    match value {
        Value::Null => Node::Scalar(String::new(), line),
        Value::String(text) => Node::Scalar(text, line),
        Value::Array(items) => Node::List(items.into_iter().map(|v| json(v, line)).collect()),
        Value::Object(map) => Node::Map(
            map.into_iter()
                .map(|(key, value)| (key, line, json(value, line)))
                .collect(),
        ),
        other => Node::Scalar(other.to_string(), line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compose_file() {
        let text = "services:\n  llm: # the engine\n    image: \"vllm/vllm-openai:v0.30\"\n    environment:\n    - NCCL_P2P_DISABLE=1\n    - 'A=it''s'\n    command: >\n      --model m\n      --tp 8\n    ports: [\"8000:8000\", 1]\n    ipc: host\n";
        let root = parse(text).unwrap();
        let llm = root.get("services").unwrap().get("llm").unwrap();
        assert_eq!(
            llm.get("image").unwrap().text(),
            Some("vllm/vllm-openai:v0.30")
        );
        let Some(Node::List(environment)) = llm.get("environment") else {
            panic!("{llm:?}")
        };
        assert_eq!(environment[1], Node::Scalar("A=it's".into(), 6));
        assert_eq!(llm.get("command").unwrap().text(), Some("--model m --tp 8"));
        assert_eq!(llm.get("ipc").unwrap().text(), Some("host"));
        assert_eq!(root.maps().len(), 3);
    }

    #[test]
    fn a_container_of_a_pod() {
        let text = "containers:\n  - name: a\n    env:\n      - name: X\n        value: \"1\"\n      - name: Y\n        value: 'b c'\n    args:\n      - --tp\n      - \"8\"\n";
        let root = parse(text).unwrap();
        let Some(Node::List(list)) = root.get("containers") else {
            panic!("{root:?}")
        };
        let Some(Node::List(env)) = list[0].get("env") else {
            panic!("{list:?}")
        };
        assert_eq!(env[1].get("value").unwrap().text(), Some("b c"));
        assert_eq!(
            list[0].get("args"),
            Some(&Node::List(vec![
                Node::Scalar("--tp".into(), 9),
                Node::Scalar("8".into(), 10)
            ]))
        );
    }

    #[test]
    fn what_is_not_understood_has_a_line() {
        for (text, line) in [
            ("a: 1\n\tb: 2", 2),
            ("a: &x 1", 1),
            ("a: 1\na: 2", 2),
            ("a:\n  b: 1\n c: 2", 3),
            ("a: \"b", 1),
            ("a: {b: [c", 1),
            ("a: 1\nnonsense", 2),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
        assert!(parse(&"- ".repeat(500)).is_err());
        assert_eq!(parse("").unwrap(), Node::Scalar(String::new(), 0));
    }
}
