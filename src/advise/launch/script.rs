//! Shell scripts: what is exported when an engine is started, and what a container is given.

use super::{
    devices::Given,
    read::{Engines, Invocation, assignment, guess, is_flag, only_a_shell},
    shell::{self, Values, Word, is_left_out},
};
use std::collections::BTreeMap;

/// A script while it is read.
pub(super) struct Script<'a> {
    engines: &'a Engines<'a>,
    values: Values,
    exported: BTreeMap<String, String>,
    all_exported: bool,
    found: Vec<Invocation>,
    /// Variables whose value only a running shell knows, with what is said of them.
    opaque: BTreeMap<String, String>,
    /// What it takes from elsewhere.
    elsewhere: Vec<String>,
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
            opaque: BTreeMap::new(),
            elsewhere: Vec::new(),
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
        let mut own_opaque: Vec<String> = Vec::new();
        let mut dropped: Vec<String> = Vec::new();
        let mut last_option = false;
        while let Some((first, tail)) = rest.split_first() {
            if let Some((name, value)) = assignment(&first.text) {
                own.insert(name.to_string(), value.to_string());
                self.note_opaque(name, first);
                if first.opaque {
                    own_opaque.push(only_a_shell(&first.text, first.line));
                }
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
        // Variables, and a command that is not there any more.
        if let [word] = rest
            && is_left_out(&word.text)
        {
            self.elsewhere.push(format!(
                "the text is cut off at '{}' on line {}: which command gets the variables is not known",
                word.text, word.line
            ));
            rest = &[];
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
                        Some((name, value)) => {
                            self.note_opaque(name, word);
                            self.export(name, value);
                        }
                        None if word.opaque => {
                            self.elsewhere
                                .push(only_a_shell(&format!("export {}", word.text), word.line));
                        }
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
                    self.opaque.remove(&word.text);
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
            "source" | "." => {
                let file = tail.first().map_or("", |w| w.text.as_str());
                self.elsewhere.push(format!(
                    "{file} is read by this script and was not given: its variables are not known"
                ));
                return Ok(());
            }
            "eval" => {
                self.elsewhere.push(only_a_shell("eval ...", first.line));
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
            for name in invocation.variables.keys() {
                invocation.unread.extend(
                    self.opaque
                        .get(name)
                        .filter(|_| !own.contains_key(name))
                        .cloned(),
                );
            }
            invocation.unread.extend(own_opaque);
            invocation.variables.extend(own);
            invocation.unread.extend(self.elsewhere.iter().cloned());
            let before = rest.get(..place).unwrap_or_default();
            processes(before, &mut invocation);
            invocation.not_exported = self
                .values
                .keys()
                .filter(|name| !invocation.variables.contains_key(*name))
                .cloned()
                .collect();
        }
        let switches = invocation
            .engine
            .as_deref()
            .and_then(|id| self.engines.ends_with_program(id));
        invocation.flags_from(rest.get(place..).unwrap_or_default(), switches.as_deref());
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
            invocation.devices = invocation.devices.take().or(options.devices.clone());
            invocation.unread.extend(options.unread.iter().cloned());
        }
        Ok(())
    }

    /// What a running shell alone knows stays unread wherever it is used.
    fn note_opaque(&mut self, name: &str, word: &Word) {
        if word.opaque {
            let said = only_a_shell(&word.text, word.line);
            self.opaque.insert(name.to_string(), said);
        } else {
            self.opaque.remove(name);
        }
    }

    fn assign(&mut self, name: String, value: String) {
        if self.all_exported || self.exported.contains_key(&name) {
            self.exported.insert(name.clone(), value.clone());
        }
        self.keep(&name, value);
    }

    /// A value that is not known is not filled in elsewhere either.
    fn keep(&mut self, name: &str, value: String) {
        if self.opaque.contains_key(name) {
            self.values.remove(name);
        } else {
            self.values.insert(name.to_string(), vec![value]);
        }
    }

    fn export(&mut self, name: &str, value: &str) {
        self.exported.insert(name.to_string(), value.to_string());
        self.keep(name, value.to_string());
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
            for name in self.opaque.keys() {
                variables.entry(name.clone()).or_default();
            }
            let unread: Vec<String> = self.opaque.into_values().chain(self.elsewhere).collect();
            if !variables.is_empty() {
                self.found.push(Invocation {
                    engine: guess(&variables, self.engines),
                    place: "variables".to_string(),
                    variables,
                    unread,
                    ..Invocation::default()
                });
            }
        }
        self.found
    }
}

/// How often a starter in front of the engine starts it.
fn processes(words: &[Word], into: &mut Invocation) {
    let Some(at) = words.iter().position(|w| {
        matches!(
            w.text.rsplit('/').next(),
            Some("mpirun" | "mpiexec" | "srun")
        )
    }) else {
        return;
    };
    let starter = words.get(at..).unwrap_or_default();
    let counts = ["-np", "-n", "--np", "--ntasks", "--ntasks-per-node"];
    let given = starter.windows(2).find_map(|pair| match pair {
        [option, value] if counts.contains(&option.text.as_str()) => value.text.parse().ok(),
        _ => None,
    });
    match given {
        Some(count) => into.processes = count,
        None => into.unread.push(format!(
            "{} starts it, and how often was not read (-np N)",
            starter.first().map_or("", |w| w.text.as_str())
        )),
    }
}

/// "device=0,2", "all", "4": the GPUs that `docker run --gpus` hands on.
pub(super) fn given(text: &str) -> Option<Given> {
    let text = text.trim_matches(['"', '\'']);
    if let Some(list) = text.strip_prefix("device=") {
        let names = list.split(',').map(|n| n.trim().to_string());
        return Some(Given::Named(names.filter(|n| !n.is_empty()).collect()));
    }
    text.trim_start_matches("count=")
        .parse()
        .ok()
        .map(Given::Count)
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
        if word.opaque {
            into.unread.push(only_a_shell(&word.text, word.line));
        }
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
            "--gpus" => {
                if let Some(text) = value() {
                    into.devices = given(&text);
                }
            }
            "--device" => {
                if let Some(text) = value()
                    && let Some(list) = text.strip_prefix("nvidia.com/gpu=").filter(|n| *n != "all")
                {
                    into.devices = given(&format!("device={list}"));
                }
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
    if let Some(list) = into.variables.get("NVIDIA_VISIBLE_DEVICES")
        && list != "all"
    {
        into.devices = given(&format!("device={list}"));
    }
    into.isolated_shared_memory = !shared;
}
