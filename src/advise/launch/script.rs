//! Shell scripts: what is exported when an engine is started, and what a container is given.

use super::{
    read::{Engines, Invocation, assignment, guess, is_flag},
    shell::{self, Values, Word},
};
use std::collections::BTreeMap;

/// A script while it is read.
pub(super) struct Script<'a> {
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

impl<'a> Script<'a> {
    /// A script that begins with `exported` variables.
    pub(super) fn new(engines: &'a Engines<'a>, exported: BTreeMap<String, String>) -> Self {
        Script {
            engines,
            values: Values::new(),
            exported,
            all_exported: false,
            found: Vec::new(),
            others: false,
        }
    }

    /// Reads `text`; `depth` shells around it.
    pub(super) fn run(&mut self, text: &str, depth: usize) -> Result<(), shell::Unclosed> {
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
    pub(super) fn finish(mut self) -> Vec<Invocation> {
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
