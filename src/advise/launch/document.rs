//! The part of YAML that compose files and Kubernetes manifests are written in: documents, mappings and lists by indentation,
//! plain, quoted and block scalars, flow collections, anchors with their references and merges. Every scalar is text. What is
//! not understood (a compose file's own tags, templates, keys that are no text) is an error with its line, never a guess.

use super::inline::{self, Anchors, DEEPEST, Inline, properties};

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
                // Fields of a compose file that begin so stand for nothing by themselves.
                let own = entries.iter().filter(|(key, ..)| !key.starts_with("x-"));
                for (_, _, value) in own {
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

/// A line without its indentation and the blanks at its end.
pub(super) struct Line<'a> {
    pub(super) number: usize,
    indent: usize,
    pub(super) text: &'a str,
}

impl Line<'_> {
    fn is_blank(&self) -> bool {
        self.text.is_empty() || self.text.starts_with('#')
    }

    fn is_item(&self) -> bool {
        self.text == "-" || self.text.starts_with("- ")
    }
}

/// Reads the documents of `text`.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, Unread> {
    let mut documents: Vec<Vec<Line>> = vec![Vec::new()];
    for (at, raw) in text.lines().enumerate() {
        let body = raw.trim_start_matches(' ');
        let text = body.trim_end();
        if raw.starts_with("---") && text.trim_start_matches('-').is_empty() {
            documents.push(Vec::new());
            continue;
        }
        if let Some(lines) = documents.last_mut() {
            lines.push(Line {
                number: at + 1,
                indent: raw.len() - body.len(),
                text,
            });
        }
    }
    let mut all = Vec::new();
    for lines in documents {
        if lines.iter().all(Line::is_blank) {
            continue;
        }
        let mut reader = Reader {
            lines,
            at: 0,
            anchors: Anchors::default(),
        };
        all.push(reader.block(0, 0)?);
        reader.skip_blank();
        if let Some(line) = reader.lines.get(reader.at) {
            return Err(reader.stray(line));
        }
    }
    Ok(all)
}

pub(super) fn unread(line: usize, what: &str) -> Unread {
    Unread {
        line,
        what: what.to_string(),
    }
}

/// The mapping of these keys, with those of `<<` that it has not itself.
pub(super) fn merged(entries: Vec<(String, usize, Node)>) -> Result<Node, Unread> {
    let (merges, mut own): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(k, ..)| k == "<<");
    for (_, line, value) in merges {
        let maps = match value {
            Node::List(items) => items,
            one => vec![one],
        };
        for map in maps {
            let Node::Map(entries) = map else {
                return Err(unread(line, "'<<' without a mapping behind it"));
            };
            for entry in entries {
                if own.iter().all(|(key, ..)| *key != entry.0) {
                    own.push(entry);
                }
            }
        }
    }
    Ok(Node::Map(own))
}

struct Reader<'a> {
    lines: Vec<Line<'a>>,
    at: usize,
    anchors: Anchors,
}

impl<'a> Reader<'a> {
    fn skip_blank(&mut self) {
        while self.lines.get(self.at).is_some_and(Line::is_blank) {
            self.at += 1;
        }
    }

    /// Why nothing can be made of a line where it stands.
    fn stray(&self, line: &Line) -> Unread {
        if let Err(template) = inline::whole(line.text, line.number) {
            return template;
        }
        let what = if line.text.starts_with('\t') {
            "a tab as indentation: YAML takes blanks only"
        } else if line.text.starts_with("...") {
            "what '...' stands for is not known: give all of the file"
        } else if line.text.starts_with("? ") {
            "a key behind '?' is not read: write it as 'key: value'"
        } else if line.text.starts_with(['&', '*', '!']) {
            "an anchor, reference or tag in front of a key: put it behind the key's colon"
        } else if key_of(line.text).is_some() || line.is_item() {
            "indentation that fits nothing above it"
        } else {
            "no 'key: value'"
        };
        unread(line.number, what)
    }

    /// The block of lines that are indented by at least `least`.
    fn block(&mut self, least: usize, depth: usize) -> Result<Node, Unread> {
        self.skip_blank();
        let Some(first) = self.lines.get(self.at).filter(|l| l.indent >= least) else {
            return Ok(Node::Scalar(String::new(), 0));
        };
        let (indent, number, text) = (first.indent, first.number, first.text);
        if depth > DEEPEST {
            return Err(unread(number, "nesting that is too deep"));
        }
        if text.starts_with('\t') {
            return Err(self.stray(first));
        }
        if first.is_item() {
            self.list(indent, depth)
        } else if key_of(text).is_some() {
            self.map(indent, depth)
        } else {
            self.at += 1;
            self.value(text, number, least, depth)
        }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Node, Unread> {
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            let Some(line) = self.lines.get_mut(self.at) else {
                break;
            };
            if line.indent != indent || !line.is_item() {
                break;
            }
            let (number, text) = (line.number, line.text);
            let rest = text.strip_prefix('-').unwrap_or_default();
            let body = rest.trim_start();
            if key_of(body).is_some() || body.starts_with("- ") || body == "-" {
                // The item is a block of its own, as if it stood at the place of its first key.
                line.indent = indent + 1 + (rest.len() - body.len());
                line.text = body;
                items.push(self.block(indent + 1, depth + 1)?);
            } else {
                self.at += 1;
                items.push(self.value(body, number, indent + 1, depth)?);
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
                if line.is_item() {
                    break;
                }
                return Err(self.stray(line));
            };
            if entries.iter().any(|(there, ..)| *there == key) {
                return Err(unread(number, &format!("the key '{key}' twice")));
            }
            self.at += 1;
            let (anchor, behind) = properties(rest, number)?;
            let below = behind.is_empty() || behind.starts_with('#');
            if below {
                self.skip_blank();
            }
            // A list may stand at the indentation of its key.
            let next = self.lines.get(self.at).filter(|_| below);
            let value = if next.is_some_and(|l| l.indent == indent && l.is_item()) {
                let list = self.list(indent, depth + 1)?;
                self.anchors.keep(anchor, &list);
                list
            } else {
                self.value(rest, number, indent + 1, depth)?
            };
            entries.push((key, number, value));
        }
        merged(entries)
    }

    /// The value that begins with `text` behind a key or dash, whose further lines are indented by at least `least`.
    fn value(
        &mut self,
        text: &'a str,
        number: usize,
        least: usize,
        depth: usize,
    ) -> Result<Node, Unread> {
        let (anchor, rest) = properties(text, number)?;
        if anchor.is_some() && key_of(rest).is_some() {
            let what = "an anchor in front of a key: put the mapping on lines of its own";
            return Err(unread(number, what));
        }
        let node = if rest.is_empty() || rest.starts_with('#') {
            self.block(least, depth + 1)?
        } else if rest.starts_with(['|', '>']) {
            self.block_scalar(rest, number, least)?
        } else if rest.starts_with("? ") {
            let line = Line {
                number,
                indent: 0,
                text: rest,
            };
            return Err(self.stray(&line));
        } else if rest.starts_with(['[', '{', '"', '\'', '*']) {
            let inline = Inline::new(rest, number, &self.lines, self.at, &mut self.anchors);
            let (node, next) = inline.whole(depth)?;
            self.at = next;
            node
        } else {
            self.plain(rest, number, least)?
        };
        self.anchors.keep(anchor, &node);
        Ok(node)
    }

    /// A text without quotes, which may go on over lines that are indented by at least `least`.
    fn plain(&mut self, text: &str, number: usize, least: usize) -> Result<Node, Unread> {
        let (mut whole, mut ended) = uncommented(text);
        let mut from = number;
        loop {
            if whole.contains(": ") || whole.ends_with(':') {
                let what = "': ' inside a value without quotes: put the value in quotes";
                return Err(unread(from, what));
            }
            let blank = self.lines.get(self.at..).unwrap_or_default();
            let blank = blank.iter().take_while(|l| l.text.is_empty()).count();
            let next = self.lines.get(self.at + blank);
            let Some(next) = next.filter(|l| !ended && l.indent >= least && !l.is_blank()) else {
                break;
            };
            if next.text.starts_with('\t') || key_of(next.text).is_some() || next.is_item() {
                return Err(self.stray(next));
            }
            let (more, last) = uncommented(next.text);
            let glue = match blank {
                0 => " ".to_string(),
                blank => "\n".repeat(blank),
            };
            (from, ended) = (next.number, last);
            whole.push_str(&glue);
            whole.push_str(&more);
            self.at += blank + 1;
        }
        inline::whole(&whole, number)?;
        Ok(Node::Scalar(inline::plain(&whole), number))
    }

    /// Lines below `|` or `>`, without the ends of lines behind the last of them.
    fn block_scalar(&mut self, header: &str, number: usize, least: usize) -> Result<Node, Unread> {
        let folded = header.starts_with('>');
        let marks = header.get(1..).unwrap_or_default();
        let marks = marks.split(" #").next().unwrap_or_default().trim();
        let mut own: Option<usize> = None;
        for mark in marks.chars() {
            match mark.to_digit(10) {
                Some(digit @ 1..=9) => own = Some(least.saturating_sub(1) + digit as usize),
                None if matches!(mark, '+' | '-') => {}
                _ => {
                    return Err(unread(
                        number,
                        &format!("'{header}' begins no block of text"),
                    ));
                }
            }
        }
        let mut lines: Vec<String> = Vec::new();
        while let Some(line) = self.lines.get(self.at) {
            if line.text.is_empty() {
                lines.push(String::new());
                self.at += 1;
                continue;
            }
            let least = *own.get_or_insert(line.indent.max(least));
            if line.indent < least {
                break;
            }
            lines.push(format!("{}{}", " ".repeat(line.indent - least), line.text));
            self.at += 1;
        }
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        let text = match folded {
            true => fold(&lines),
            false => lines.join("\n"),
        };
        Ok(Node::Scalar(text, number))
    }
}

/// A plain text without the comment behind it, and whether there is one.
fn uncommented(text: &str) -> (String, bool) {
    match text.find(" #") {
        Some(at) => (
            text.get(..at).unwrap_or_default().trim_end().to_string(),
            true,
        ),
        None => (text.to_string(), false),
    }
}

/// Lines as one: an end of a line is a blank, but for those around empty lines and lines that are indented further.
fn fold(lines: &[String]) -> String {
    let further = |line: &str| line.starts_with([' ', '\t']);
    let mut text = String::new();
    let mut before: Option<&String> = None;
    let mut empty = 0;
    for line in lines {
        if line.is_empty() {
            empty += 1;
            continue;
        }
        match before {
            Some(last) if further(last) || further(line) => {
                text.push_str(&"\n".repeat(empty + 1));
            }
            Some(_) if empty == 0 => text.push(' '),
            _ => text.push_str(&"\n".repeat(empty)),
        }
        text.push_str(line);
        (before, empty) = (Some(line), 0);
    }
    text
}

/// `key: rest`, with the comment behind it gone; a key in quotes loses them.
fn key_of(text: &str) -> Option<(String, &str)> {
    let (key, rest) = if let Some(quote) = text.chars().next().filter(|c| "\"'".contains(*c)) {
        let inner = text.strip_prefix(quote)?;
        let (key, rest) = inner.split_once(quote)?;
        let rest = rest.trim_start().strip_prefix(':')?;
        (
            key,
            Some(rest).filter(|r| r.is_empty() || r.starts_with(' '))?,
        )
    } else if text.starts_with(['{', '[', '#', '&', '*', '!', '|', '>', '?', '\t']) {
        return None;
    } else {
        let at = text
            .find(": ")
            .or_else(|| text.ends_with(':').then(|| text.len().saturating_sub(1)))?;
        (text.get(..at)?, text.get(at + 1..)?)
    };
    if key.is_empty() || key.contains(['{', '"', '\'']) || key.contains(" #") {
        return None;
    }
    let rest = rest.trim();
    Some((
        key.trim().to_string(),
        if rest.starts_with('#') { "" } else { rest },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Node {
        let mut all = parse(text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        assert_eq!(all.len(), 1, "{text}: {all:?}");
        all.remove(0)
    }

    /// As JSON, without lines.
    fn told(node: &Node) -> serde_json::Value {
        match node {
            Node::Scalar(text, _) => text.as_str().into(),
            Node::Map(entries) => entries
                .iter()
                .map(|(key, _, value)| (key.clone(), told(value)))
                .collect(),
            Node::List(items) => items.iter().map(told).collect(),
        }
    }

    /// Forms of one thing, as YAML 1.2 reads them.
    #[test]
    fn odd_and_legal_forms() {
        for (text, wanted) in [
            // Keys in quotes, with and without a blank.
            (
                "\"a\": 1\n'b' : 2\n\"c d\": e",
                r#"{"a":"1","b":"2","c d":"e"}"#,
            ),
            ("- \"a\": 1\n  'b': 2", r#"[{"a":"1","b":"2"}]"#),
            // Comments, and what is none.
            ("# x\na: 1 # y\n# z\nb: p#q", r#"{"a":"1","b":"p#q"}"#),
            ("a: \"1\" # y\nb: '#2' # z", r##"{"a":"1","b":"#2"}"##),
            ("a: # y\n  # z\n  b: 1", r#"{"a":{"b":"1"}}"#),
            ("a: # y\n- b # z\n# w\n- c", r#"{"a":["b","c"]}"#),
            ("a: [b, # y\n  c] # z", r#"{"a":["b","c"]}"#),
            // Blocks of text keep what looks like structure.
            (
                "a: |\n  b: 1\n  # c\n\n  - d\ne: 1",
                r##"{"a":"b: 1\n# c\n\n- d","e":"1"}"##,
            ),
            ("a: |-\n    b\n      c\n", r#"{"a":"b\n  c"}"#),
            ("a: |2+ # x\n    b\n   c", r#"{"a":"  b\n c"}"#),
            ("a: |\n  ---\n  b", r#"{"a":"---\nb"}"#),
            ("a: |\n  \tb\n", r#"{"a":"\tb"}"#),
            (
                "a: >\n  b\n  c\n\n  d\n    e\n  f\n",
                r#"{"a":"b c\nd\n  e\nf"}"#,
            ),
            ("- >-\n  b\n  c\n- d", r#"["b c","d"]"#),
            ("a:\n- |\n  b\n- c", r#"{"a":["b","c"]}"#),
            // Text that goes on over lines.
            ("a: b\n  c\n\n  d", r#"{"a":"b c\nd"}"#),
            (
                "a:\n  --b 1\n  --c 2\nd: e",
                r#"{"a":"--b 1 --c 2","d":"e"}"#,
            ),
            ("a: \"b\n  c \\\n  d\n\n  e\"", r#"{"a":"b c d\ne"}"#),
            ("a: 'b\n  c''d'", r#"{"a":"b c'd"}"#),
            ("- --b\n  c\n- d", r#"["--b c","d"]"#),
            // Flow collections.
            (
                "a: {b: c, \"d\":e, 'f': [g, h i], j: {}}",
                r#"{"a":{"b":"c","d":"e","f":["g","h i"],"j":{}}}"#,
            ),
            ("a: {b, c: , d: ~}", r#"{"a":{"b":"","c":"","d":""}}"#),
            (
                "a: [\n  \"b\",\n  c, # d\n]\ne: 1",
                r#"{"a":["b","c"],"e":"1"}"#,
            ),
            (
                "a: [b: c, http://d:1/e]",
                r#"{"a":[{"b":"c"},"http://d:1/e"]}"#,
            ),
            ("{\n\t\"a\": [1, true, null]\n}", r#"{"a":["1","true",""]}"#),
            ("a: \"\\\"b\\\" \\u0041\"", r#"{"a":"\"b\" A"}"#),
            // Lists in lists, and at the indentation of their key.
            ("- - a\n  - b\n-\n  - c", r#"[["a","b"],["c"]]"#),
            (
                "a:\n-   b: 1\n    c: 2\nd: 3",
                r#"{"a":[{"b":"1","c":"2"}],"d":"3"}"#,
            ),
            // Values with names.
            (
                "a: &x 1\nb: *x\nc: [*x, &y z, *y]",
                r#"{"a":"1","b":"1","c":["1","z","z"]}"#,
            ),
            ("a: &x\n  b: 1\nc: *x", r#"{"a":{"b":"1"},"c":{"b":"1"}}"#),
            ("a: &x\n- b\nc: *x # d", r#"{"a":["b"],"c":["b"]}"#),
            ("- &x >\n  a\n  b\n- *x", r#"["a b","a b"]"#),
            (
                "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3",
                r#"{"a":{"b":"1","c":"2"},"d":{"c":"3","b":"1"}}"#,
            ),
            (
                "x: [&x {b: 1}, &y {b: 2, c: 3}]\nd: {<<: [*x, *y]}",
                r#"{"x":[{"b":"1"},{"b":"2","c":"3"}],"d":{"b":"1","c":"3"}}"#,
            ),
            ("a: !!str 1\nb: !!map\n  c: 2", r#"{"a":"1","b":{"c":"2"}}"#),
        ] {
            let wanted: serde_json::Value = serde_json::from_str(wanted).unwrap();
            assert_eq!(told(&one(text)), wanted, "{text}");
        }
    }

    #[test]
    fn several_documents() {
        let text = "---\na: 1\n--- \n# nothing\n---\na: &x 2\n";
        let told: Vec<_> = parse(text).unwrap().iter().map(told).collect();
        assert_eq!(
            told,
            [serde_json::json!({"a": "1"}), serde_json::json!({"a": "2"})]
        );
        // A name ends with its document, and lines are those of the file.
        let error = parse("a: &x 1\n---\nb: *x").unwrap_err();
        assert_eq!(error.line, 3);
        assert!(error.what.contains("'&x'"), "{}", error.what);
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn a_compose_file() {
        let text = "services:\n  llm: # the engine\n    image: \"vllm/vllm-openai:v0.30\"\n    environment:\n    - NCCL_P2P_DISABLE=1\n    - 'A=it''s'\n    command: >\n      --model m\n      --tp 8\n    ports: [\"8000:8000\", 1]\n    ipc: host\n";
        let root = one(text);
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
        let root = one(text);
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
        for (text, line, what) in [
            ("a: 1\n\tb: 2", 2, "a tab"),
            ("a: *x", 1, "'&x', and none is above it"),
            ("a: &x\n  b: *x", 2, "none is above it"),
            ("a: 1\na: 2", 2, "the key 'a' twice"),
            ("a: {b: 1,\n b: 2}", 2, "the key 'b' twice"),
            ("a:\n  b: 1\n c: 2", 3, "indentation"),
            ("a: b\n  c: 2", 2, "indentation"),
            ("a: \"b", 1, "\" without its end"),
            ("a: 'b\nc: d", 1, "' without its end"),
            ("a: {b: [c", 1, "without their ']'"),
            ("a: [b\nc: d", 2, "where a comma or ']' belongs"),
            ("a: \"b\" c", 1, "'c' behind a value"),
            ("a: [b] c", 1, "'c' behind a value"),
            ("a: b: c", 1, "put the value in quotes"),
            ("a: 1\nnonsense", 2, "no 'key: value'"),
            ("a: 1\n...", 2, "give all of the file"),
            ("a: !reset []", 1, "docker compose config"),
            ("a: {{ b }}", 1, "helm template"),
            ("a: 1\n{{- if b }}", 2, "helm template"),
            ("a: [b,\n \"{{ c }}\"]", 2, "helm template"),
            ("a:\n- --b={{ c }}", 2, "helm template"),
            ("? a\n: b", 1, "'key: value'"),
            ("&x a: b", 1, "in front of a key"),
            ("- &x a: b", 1, "in front of a key"),
            ("a: 1\n<<: b", 2, "without a mapping"),
            ("a: |x\n  b", 1, "'|x'"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}: {}", error.what);
            assert!(error.what.contains(what), "{text}: {}", error.what);
        }
        assert!(parse(&"- ".repeat(500)).is_err());
        assert!(parse(&"[".repeat(5000)).is_err());
        assert!(parse(&"&a\n".repeat(5000)).is_err());
        // Each name repeats the one before ten times.
        let mut bomb = String::from("a0: &a0 b\n");
        for n in 1..12 {
            let items = format!("*a{}, ", n - 1).repeat(10);
            bomb.push_str(&format!("a{n}: &a{n} [{items}]\n"));
        }
        assert!(
            parse(&bomb)
                .unwrap_err()
                .what
                .contains("more than any launch")
        );
    }
}
