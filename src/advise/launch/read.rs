//! From pasted text to launches: which engine, with which flags and variables, inside which container.

use super::{
    document::{self, Node},
    shell::{self, Values, Word},
};
use crate::profile::{EngineProfile, Profiles};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One launch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Invocation {
    /// Engine id; `None` where only variables were found.
    pub engine: Option<String>,
    /// Where it was read.
    pub place: String,
    /// Flags in their order; values of JSON flags also one by one, as `--flag.key`.
    pub flags: Vec<Flag>,
    /// Words that are no flag and follow the command.
    pub positional: Vec<String>,
    /// Variables that the engine gets from this text.
    pub variables: BTreeMap<String, String>,
    /// Variables that are assigned and not exported: the engine does not get them.
    pub not_exported: BTreeSet<String>,
    /// It runs in a container that was given neither the host's IPC nor shared memory.
    pub isolated_shared_memory: bool,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// A flag as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// With its dashes; underscores are dashes.
    pub name: String,
    /// Its value, if a word follows that is none.
    pub value: Option<String>,
}

/// Text that holds no launch that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Not closed, or not understood.
    #[error("{name}: line {line}: {what}")]
    Unread {
        /// File or option.
        name: String,
        /// Line, from 1.
        line: usize,
        /// What.
        what: String,
    },
    /// Neither a launch nor variables.
    #[error(
        "{name}: no launch found (known: {known}); a script, a command, NAME=value lines, a compose file or a Kubernetes manifest would do"
    )]
    Nothing {
        /// File or option.
        name: String,
        /// Commands that are known.
        known: String,
    },
}

/// Flags are compared with dashes for underscores: some engines take both.
pub(super) fn plain(flag: &str) -> String {
    flag.replace('_', "-")
}

impl Invocation {
    /// The flag that is called one of `names`; the last one counts, as for the engines.
    pub(super) fn flag(&self, names: &[String]) -> Option<&Flag> {
        self.flags
            .iter()
            .rev()
            .find(|f| names.iter().any(|n| plain(n) == f.name))
    }

    /// Its value.
    pub(super) fn value(&self, names: &[String]) -> Option<&str> {
        self.flag(names)?.value.as_deref()
    }

    fn flags_from(&mut self, words: &[Word]) {
        let mut rest = words.iter().peekable();
        while let Some(word) = rest.next() {
            if word.opaque {
                self.unread.push(format!(
                    "'{}' on line {} is known to a running shell only",
                    word.text, word.line
                ));
            }
            if !is_flag(&word.text) {
                self.positional.push(word.text.clone());
                continue;
            }
            let (name, value) = match word.text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string())),
                None => {
                    let next = rest.next_if(|next| !is_flag(&next.text));
                    (word.text.as_str(), next.map(|w| w.text.clone()))
                }
            };
            let name = plain(name);
            if let Some(Value::Object(map)) =
                value.as_deref().and_then(|v| serde_json::from_str(v).ok())
            {
                flatten(&name, &map, &mut self.flags);
            }
            self.flags.push(Flag { name, value });
        }
    }
}

fn is_flag(text: &str) -> bool {
    text.len() > 1
        && text.starts_with('-')
        && !text
            .get(1..)
            .is_some_and(|rest| rest.parse::<f64>().is_ok())
}

fn flatten(prefix: &str, map: &serde_json::Map<String, Value>, flags: &mut Vec<Flag>) {
    for (key, value) in map {
        let name = format!("{prefix}.{}", plain(key));
        match value {
            Value::Object(inner) => flatten(&name, inner, flags),
            Value::String(text) => flags.push(Flag {
                name,
                value: Some(text.clone()),
            }),
            other => flags.push(Flag {
                name,
                value: Some(other.to_string()),
            }),
        }
    }
}

/// Reads the launches of `text`, which `name` names. `wanted`: the engine that the operator named, where commands of
/// several engines look the same.
///
/// # Errors
/// Text that is not closed or not understood, with its line, and text without a launch.
pub fn read(
    name: &str,
    text: &str,
    wanted: Option<&str>,
    profiles: &Profiles,
) -> Result<Vec<Invocation>, ReadError> {
    let unread = |line: usize, what: &str| ReadError::Unread {
        name: name.to_string(),
        line,
        what: what.to_string(),
    };
    let engines = Engines { profiles, wanted };
    let found = if is_document(text) {
        let root = document::parse(text).map_err(|e| unread(e.line, &e.what))?;
        containers(&root, &engines).map_err(|e| unread(e.line, e.what))?
    } else {
        let mut script = Script {
            engines: &engines,
            values: Values::new(),
            exported: BTreeMap::new(),
            all_exported: false,
            found: Vec::new(),
            others: false,
        };
        script.run(text, 0).map_err(|e| unread(e.line, e.what))?;
        script.finish()
    };
    if found.is_empty() {
        return Err(ReadError::Nothing {
            name: name.to_string(),
            known: engines.commands().join(", "),
        });
    }
    Ok(found)
}

/// Whether the text is a compose file or manifest: it has keys that shell text cannot have at the beginning of a line.
fn is_document(text: &str) -> bool {
    text.lines().any(|line| {
        let body = line.trim_start().trim_start_matches("- ");
        [
            "services:",
            "environment:",
            "env:",
            "command:",
            "args:",
            "image:",
            "apiVersion:",
            "containers:",
        ]
        .iter()
        .any(|key| body.starts_with(key))
    })
}

struct Engines<'a> {
    profiles: &'a Profiles,
    wanted: Option<&'a str>,
}

impl Engines<'_> {
    /// Engines, the wanted one first, then those that continue no other.
    fn in_order(&self) -> Vec<&EngineProfile> {
        let wanted = self.wanted.and_then(|id| self.profiles.engine(id));
        let mut all: Vec<&EngineProfile> = self.profiles.engines.iter().collect();
        all.sort_by_key(|e| (wanted.is_none_or(|w| w.id != e.id), e.inherits.is_some()));
        all
    }

    fn commands(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .in_order()
            .iter()
            .filter_map(|e| e.launch.as_ref())
            .flat_map(|l| l.commands.iter().map(|c| c.join(" ")))
            .collect();
        all.sort();
        all.dedup();
        all
    }

    /// The engine that `words` start, and where its arguments begin.
    fn started(&self, words: &[Word]) -> Option<(String, usize)> {
        let is = |word: &Word, wanted: &str| {
            word.text == wanted || word.text.rsplit('/').next() == Some(wanted)
        };
        for engine in self.in_order() {
            let Some(launch) = &engine.launch else {
                continue;
            };
            for command in &launch.commands {
                let place = words.windows(command.len().max(1)).position(|window| {
                    !command.is_empty()
                        && window.iter().zip(command).all(|(word, own)| is(word, own))
                });
                if let Some(place) = place {
                    return Some((engine.id.clone(), place + command.len()));
                }
            }
        }
        // An image whose entry point is the engine.
        for engine in self.in_order() {
            let Some(launch) = &engine.launch else {
                continue;
            };
            let place = words
                .iter()
                .position(|w| launch.images.iter().any(|image| w.text.contains(image)));
            if let Some(place) = place {
                return Some((engine.id.clone(), place + 1));
            }
        }
        None
    }
}

struct Script<'a> {
    engines: &'a Engines<'a>,
    values: Values,
    exported: BTreeMap<String, String>,
    all_exported: bool,
    found: Vec<Invocation>,
    /// It holds commands beside assignments.
    others: bool,
}

/// How often one text may start a shell on another.
const NESTED: usize = 4;

impl Script<'_> {
    fn run(&mut self, text: &str, depth: usize) -> Result<(), shell::Unclosed> {
        for command in shell::commands(text)? {
            for (name, words) in command.arrays(&self.values) {
                self.values.insert(name, words);
            }
            let words = command.words(&self.values);
            self.command(&words, depth)?;
        }
        Ok(())
    }

    fn command(&mut self, words: &[Word], depth: usize) -> Result<(), shell::Unclosed> {
        const BEFORE: [&str; 14] = [
            "if", "then", "else", "do", "!", "time", "exec", "nohup", "command", "env", "sudo",
            "while", "{", "setsid",
        ];
        let mut rest = words;
        let mut own: BTreeMap<String, String> = BTreeMap::new();
        let mut dropped: Vec<String> = Vec::new();
        let mut last_option = false;
        while let Some((first, tail)) = rest.split_first() {
            if let Some((name, value)) = assignment(&first.text) {
                own.insert(name.to_string(), value.to_string());
            } else if let ("-u" | "--unset", Some(name)) = (first.text.as_str(), tail.first())
                && last_option
            {
                dropped.push(name.text.clone());
                rest = tail.get(1..).unwrap_or_default();
                continue;
            } else if BEFORE.contains(&first.text.as_str()) || (last_option && is_flag(&first.text))
            {
                last_option = true;
            } else {
                break;
            }
            rest = tail;
        }
        let Some((first, tail)) = rest.split_first() else {
            for (name, value) in own {
                self.assign(name, value);
            }
            return Ok(());
        };
        match first.text.as_str() {
            "export" | "declare" | "typeset" => {
                for word in tail {
                    match assignment(&word.text) {
                        Some((name, value)) => self.export(name, value),
                        None => {
                            let known = self.values.get(&word.text).map(|v| v.join(" "));
                            if let Some(value) = known {
                                self.export(&word.text, &value);
                            }
                        }
                    }
                }
                return Ok(());
            }
            "unset" => {
                for word in tail {
                    self.values.remove(&word.text);
                    self.exported.remove(&word.text);
                }
                return Ok(());
            }
            "set" => {
                let texts: Vec<&str> = tail.iter().map(|w| w.text.as_str()).collect();
                if texts.contains(&"-a") || texts.contains(&"allexport") {
                    self.all_exported = true;
                }
                return Ok(());
            }
            "sh" | "bash" | "/bin/sh" | "/bin/bash" if depth < NESTED => {
                let inner = tail
                    .iter()
                    .position(|w| is_flag(&w.text) && w.text.ends_with('c'))
                    .and_then(|at| tail.get(at + 1));
                if let Some(inner) = inner {
                    let before = self.exported.clone();
                    self.exported.extend(own);
                    self.run(&inner.text, depth + 1)?;
                    self.exported = before;
                    return Ok(());
                }
            }
            _ => {}
        }
        self.others = true;
        let container = is_container(first, tail);
        let Some((engine, place)) = self.engines.started(rest) else {
            return self.inner_shell(rest, depth);
        };
        let mut invocation = Invocation {
            engine: Some(engine),
            place: format!("line {}", first.line),
            ..Invocation::default()
        };
        if container {
            // A container starts with variables of its own.
            let before = rest.get(..place).unwrap_or_default();
            container_options(before, &self.exported, &mut invocation);
        } else {
            invocation.variables = self.exported.clone();
            for name in &dropped {
                invocation.variables.remove(name);
            }
            invocation.variables.extend(own);
            invocation.not_exported = self
                .values
                .keys()
                .filter(|name| !invocation.variables.contains_key(*name))
                .cloned()
                .collect();
        }
        invocation.flags_from(rest.get(place..).unwrap_or_default());
        self.found.push(invocation);
        Ok(())
    }

    /// `docker run ... bash -c "..."`: the launch is inside.
    fn inner_shell(&mut self, words: &[Word], depth: usize) -> Result<(), shell::Unclosed> {
        let place = words.windows(2).position(|w| {
            matches!(w, [a, b] if matches!(a.text.rsplit('/').next(), Some("sh" | "bash"))
                && is_flag(&b.text) && b.text.ends_with('c'))
        });
        let (Some(place), true) = (place, depth < NESTED) else {
            return Ok(());
        };
        let Some(inner) = words.get(place + 2) else {
            return Ok(());
        };
        let (first, tail) = match words.split_first() {
            Some(split) => split,
            None => return Ok(()),
        };
        let known = self.found.len();
        let before = self.exported.clone();
        let mut options = Invocation::default();
        let container = is_container(first, tail);
        if container {
            let given = words.get(..place).unwrap_or_default();
            container_options(given, &before, &mut options);
            self.exported = options.variables.clone();
        }
        self.run(&inner.text, depth + 1)?;
        self.exported = before;
        for invocation in self.found.iter_mut().skip(known) {
            invocation.isolated_shared_memory |= options.isolated_shared_memory;
        }
        Ok(())
    }

    fn assign(&mut self, name: String, value: String) {
        if self.all_exported || self.exported.contains_key(&name) {
            self.exported.insert(name.clone(), value.clone());
        }
        self.values.insert(name, vec![value]);
    }

    fn export(&mut self, name: &str, value: &str) {
        self.exported.insert(name.to_string(), value.to_string());
        self.values
            .insert(name.to_string(), vec![value.to_string()]);
    }

    /// Text of nothing but variables is an environment file, whose lines need no `export`.
    fn finish(mut self) -> Vec<Invocation> {
        if self.found.is_empty() && !self.others {
            let mut variables: BTreeMap<String, String> = self
                .values
                .into_iter()
                .map(|(name, value)| (name, value.join(" ")))
                .collect();
            variables.extend(std::mem::take(&mut self.exported));
            if !variables.is_empty() {
                self.found.push(Invocation {
                    engine: guess(&variables, self.engines),
                    place: "variables".to_string(),
                    variables,
                    ..Invocation::default()
                });
            }
        }
        self.found
    }
}

/// The engine to which most of the variables belong.
fn guess(variables: &BTreeMap<String, String>, engines: &Engines) -> Option<String> {
    if let Some(wanted) = engines.wanted.and_then(|id| engines.profiles.engine(id)) {
        return Some(wanted.id.clone());
    }
    let own = |engine: &EngineProfile| {
        let Some(launch) = &engine.launch else {
            return 0;
        };
        let is_own = |name: &&String| {
            launch
                .variables
                .iter()
                .any(|v| name.starts_with(v.as_str()))
        };
        variables.keys().filter(is_own).count()
    };
    engines
        .in_order()
        .into_iter()
        .rev()
        .filter(|e| own(e) > 0)
        .max_by_key(|e| own(e))
        .map(|e| e.id.clone())
}

fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    valid.then_some((name, value))
}

fn is_container(first: &Word, tail: &[Word]) -> bool {
    matches!(
        first.text.rsplit('/').next(),
        Some("docker" | "podman" | "nerdctl")
    ) && tail.iter().take(3).any(|w| w.text == "run")
}

/// What a container gets: variables and shared memory.
fn container_options(words: &[Word], outer: &BTreeMap<String, String>, into: &mut Invocation) {
    let mut shared = false;
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let (option, value) = match word.text.split_once('=') {
            Some((option, value)) if option.starts_with('-') => (option, Some(value.to_string())),
            _ => (word.text.as_str(), None),
        };
        let mut value = || {
            value
                .clone()
                .or_else(|| rest.next().map(|w| w.text.clone()))
        };
        match option {
            "-e" | "--env" => {
                let Some(given) = value() else { continue };
                match assignment(&given) {
                    Some((name, value)) => {
                        into.variables.insert(name.to_string(), value.to_string());
                    }
                    // The name alone hands the caller's value on.
                    None => {
                        if let Some(value) = outer.get(&given) {
                            into.variables.insert(given, value.clone());
                        }
                    }
                }
            }
            "--env-file" => {
                let file = value().unwrap_or_default();
                into.unread.push(format!(
                    "the variables of {file}: check it with --check-file"
                ));
            }
            "--ipc" => {
                shared |= value().is_some_and(|v| v == "host" || v.starts_with("container:"))
            }
            "--shm-size" => {
                shared = true;
                value();
            }
            "-v" | "--volume" => shared |= value().is_some_and(|v| v.contains("/dev/shm")),
            _ => {}
        }
    }
    into.isolated_shared_memory = !shared;
}

/// Every container of a compose file or manifest.
fn containers(root: &Node, engines: &Engines) -> Result<Vec<Invocation>, shell::Unclosed> {
    let mut found = Vec::new();
    let host_ipc = |map: &Node| {
        map.get("ipc").and_then(Node::text) == Some("host")
            || map.get("hostIPC").and_then(Node::text) == Some("true")
    };
    let pod_ipc = root
        .maps()
        .into_iter()
        .any(|m| m.get("hostIPC").and_then(Node::text) == Some("true"));
    for map in root.maps() {
        let has = ["environment", "env", "command", "args", "entrypoint"]
            .iter()
            .any(|key| map.get(key).is_some());
        if !has {
            continue;
        }
        let mut invocation = Invocation::default();
        for key in ["environment", "env"] {
            if let Some(node) = map.get(key) {
                variables(node, &mut invocation);
            }
        }
        let mut words = Vec::new();
        if let Some(image) = map.get("image").and_then(Node::text) {
            words.push(Word {
                text: image.to_string(),
                line: 0,
                opaque: false,
            });
        }
        for key in ["entrypoint", "command", "args"] {
            if let Some(node) = map.get(key) {
                words.extend(as_words(node)?);
            }
        }
        let inner = words.windows(2).position(|w| {
            matches!(w, [a, b] if matches!(a.text.rsplit('/').next(), Some("sh" | "bash"))
                && is_flag(&b.text) && b.text.ends_with('c'))
        });
        let mut nested = Vec::new();
        if let Some(text) = inner.and_then(|at| words.get(at + 2)) {
            let mut script = Script {
                engines,
                values: Values::new(),
                exported: invocation.variables.clone(),
                all_exported: false,
                found: Vec::new(),
                others: true,
            };
            script.run(&text.text, 1)?;
            nested = script.finish();
        }
        let shared =
            host_ipc(map) || pod_ipc || map.get("shm_size").is_some() || mounts_shared_memory(map);
        let name = map
            .get("container_name")
            .or_else(|| map.get("name"))
            .and_then(Node::text)
            .map_or_else(|| service(root, map), |n| Some(n.to_string()))
            .unwrap_or_else(|| "of the file".to_string());
        if map.get("env_file").is_some() || map.get("envFrom").is_some() {
            invocation
                .unread
                .push("variables of other files: check them with --check-file".to_string());
        }
        invocation.isolated_shared_memory = !shared;
        invocation.place = format!("container {name}");
        if let Some((engine, place)) = engines.started(&words) {
            invocation.engine = Some(engine);
            invocation.flags_from(words.get(place..).unwrap_or_default());
        } else if let Some(first) = nested.into_iter().next() {
            invocation.engine = first.engine;
            invocation.flags = first.flags;
            invocation.positional = first.positional;
            invocation.variables = first.variables;
            invocation.unread.extend(first.unread);
        } else if !invocation.variables.is_empty() {
            invocation.engine = guess(&invocation.variables, engines);
        }
        if invocation.engine.is_some() {
            found.push(invocation);
        }
    }
    Ok(found)
}

/// The key below which a compose file keeps this service.
fn service(root: &Node, wanted: &Node) -> Option<String> {
    let Some(Node::Map(services)) = root.get("services") else {
        return None;
    };
    services
        .iter()
        .find(|(_, _, value)| std::ptr::eq(value, wanted))
        .map(|(key, ..)| key.clone())
}

fn mounts_shared_memory(map: &Node) -> bool {
    let Some(Node::List(mounts)) = map.get("volumeMounts").or_else(|| map.get("volumes")) else {
        return false;
    };
    mounts.iter().any(|m| {
        m.get("mountPath").and_then(Node::text) == Some("/dev/shm")
            || m.text().is_some_and(|t| t.contains("/dev/shm"))
    })
}

fn variables(node: &Node, into: &mut Invocation) {
    match node {
        Node::Map(entries) => {
            for (key, _, value) in entries {
                if let Some(text) = value.text() {
                    into.variables.insert(key.clone(), unescaped(text));
                }
            }
        }
        Node::List(items) => {
            for item in items {
                let name = item.get("name").and_then(Node::text);
                if let Some((name, value)) = item.text().and_then(assignment) {
                    into.variables.insert(name.to_string(), unescaped(value));
                } else if let Some(name) = name {
                    match item.get("value").and_then(Node::text) {
                        Some(value) => {
                            into.variables.insert(name.to_string(), unescaped(value));
                        }
                        None => into
                            .unread
                            .push(format!("the value of {name} comes from elsewhere")),
                    }
                }
            }
        }
        Node::Scalar(..) => {}
    }
}

/// Compose files write `$` twice where one is meant.
fn unescaped(text: &str) -> String {
    text.replace("$$", "$")
}

fn as_words(node: &Node) -> Result<Vec<Word>, shell::Unclosed> {
    match node {
        Node::Scalar(text, line) => {
            let mut words = Vec::new();
            for command in shell::commands(text).map_err(|e| shell::Unclosed {
                line: line + e.line.saturating_sub(1),
                what: e.what,
            })? {
                words.extend(command.words(&Values::new()));
            }
            Ok(words)
        }
        Node::List(items) => Ok(items
            .iter()
            .filter_map(|item| match item {
                Node::Scalar(text, line) => Some(Word {
                    text: unescaped(text),
                    line: *line,
                    opaque: false,
                }),
                _ => None,
            })
            .collect()),
        Node::Map(_) => Ok(Vec::new()),
    }
}
