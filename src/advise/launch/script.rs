//! Shell scripts: what is exported when an engine is started, and what a container is given.

use super::{
    blocks::{FUNCTION, Scope},
    devices::Given,
    environment::{Handed, handed},
    images::{self, Begun, Container, Run, Told},
    read::{Engines, Invocation, assignment, guess, is_flag, only_a_shell},
    shell::{self, Values, Word, is_left_out},
};
use std::collections::BTreeMap;

/// A script while it is read.
pub(super) struct Script<'a> {
    engines: &'a Engines<'a>,
    state: State,
    found: Vec<Invocation>,
    /// What it takes from elsewhere.
    elsewhere: Vec<String>,
    /// It holds commands beside assignments.
    others: bool,
    /// What the command that is read stands in.
    scope: Vec<Scope>,
    /// What is said of the variables that this command is filled in with.
    notes: Vec<String>,
}

/// What one shell knows.
#[derive(Clone, Default)]
struct State {
    values: Values,
    exported: BTreeMap<String, String>,
    all_exported: bool,
    /// Variables whose value is not known, with what is said of them.
    opaque: BTreeMap<String, String>,
    /// Variables that were set where it may not hold behind it.
    set: Vec<Set>,
    /// Launches in functions, which run where those are called: which one, and the function's scope.
    functions: Vec<(usize, Scope)>,
}

#[derive(Clone)]
struct Set {
    name: String,
    line: usize,
    exported: bool,
    scope: Vec<Scope>,
}

/// How often one text may start a shell on another.
const NESTED: usize = 4;

impl<'a> Script<'a> {
    /// A script that begins with `exported` variables.
    pub(super) fn new(engines: &'a Engines<'a>, exported: BTreeMap<String, String>) -> Self {
        Script {
            engines,
            state: State {
                exported,
                ..State::default()
            },
            found: Vec::new(),
            elsewhere: Vec::new(),
            others: false,
            scope: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads `text`; `depth` shells around it.
    pub(super) fn run(&mut self, text: &str, depth: usize) -> Result<(), shell::Unclosed> {
        for command in shell::commands(text)? {
            self.leave(&command.scope);
            self.scope.clone_from(&command.scope);
            let said = command.names().into_iter();
            let said = said.filter_map(|name| self.state.opaque.get(name).cloned());
            self.notes = said.collect();
            let words = command.words(&self.state.values);
            let line = words.first().map_or(0, |w| w.line);
            for array in command.arrays(&self.state.values) {
                let name = array.name.clone();
                self.state.values.array(array);
                self.state.opaque.remove(&name);
                self.touch(&name, line);
            }
            self.command(&words, depth)?;
        }
        self.leave(&[]);
        self.scope.clear();
        Ok(())
    }

    /// These come from outside the text, with a value that is not known.
    pub(super) fn does_not_know(&mut self, variables: &BTreeMap<String, String>) {
        for (name, said) in variables {
            self.unknown(name, true, said.clone());
        }
    }

    /// What was set in a scope that ends before `scope` is not known any more.
    fn leave(&mut self, scope: &[Scope]) {
        let (stay, gone): (Vec<Set>, Vec<Set>) = std::mem::take(&mut self.state.set)
            .into_iter()
            .partition(|set| scope.starts_with(&set.scope));
        self.state.set = stay;
        for set in gone {
            let left = set.scope.iter().find(|s| !scope.contains(s));
            let what = left.map_or("", |s| s.what);
            let said = format!(
                "{} is set on line {} {what}: whether that holds for the launch is not known",
                set.name, set.line
            );
            self.unknown(&set.name, set.exported, said);
        }
    }

    fn unknown(&mut self, name: &str, exported: bool, said: String) {
        self.state.values.forget(name);
        self.state.opaque.insert(name.to_string(), said);
        if exported || self.state.exported.contains_key(name) {
            self.state.exported.insert(name.to_string(), String::new());
        }
    }

    /// Notes that a variable was set, or unset, by the command that is read.
    fn touch(&mut self, name: &str, line: usize) {
        let before = self.state.set.iter().rev().find(|s| s.name == name);
        let exported = self.state.exported.contains_key(name) || before.is_some_and(|s| s.exported);
        if !self.scope.is_empty() {
            self.state.set.push(Set {
                name: name.to_string(),
                line,
                exported,
                scope: self.scope.clone(),
            });
        }
        for (at, function) in &self.state.functions {
            if let Some(launch) = self.found.get_mut(*at)
                && !self.scope.contains(function)
                && exported
            {
                launch.variables.remove(name);
                launch.unknown.insert(
                    name.to_string(),
                    format!(
                        "{name} is set on line {line}, behind the function that starts the launch: whether before its call is not known"
                    ),
                );
            }
        }
    }

    fn command(&mut self, words: &[Word], depth: usize) -> Result<(), shell::Unclosed> {
        const BEFORE: [&str; 15] = [
            "if", "then", "else", "elif", "do", "!", "time", "exec", "nohup", "command", "while",
            "until", "{", "setsid", "--",
        ];
        let words = match words {
            [first, _, rest @ ..] if first.text == "function" => rest,
            all => all,
        };
        let mut rest = words;
        let mut own: Vec<(String, String, &Word)> = Vec::new();
        while let Some((first, tail)) = rest.split_first() {
            if let Some((name, value)) = assignment(&first.text) {
                own.push((name.to_string(), value.to_string(), first));
            } else if let Some((name, value)) = appended(&first.text) {
                let known = self.state.values.get(name).map(|v| v.join(" "));
                match known.filter(|_| !first.opaque) {
                    Some(known) => own.push((name.to_string(), format!("{known}{value}"), first)),
                    None => {
                        let said = only_a_shell(&first.text, first.line);
                        self.unknown(name, false, said);
                        self.touch(name, first.line);
                    }
                }
            } else if !BEFORE.contains(&first.text.as_str()) {
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
            for (name, value, word) in own {
                self.assign(name, value, word);
            }
            return Ok(());
        };
        match first.text.as_str() {
            "export" | "declare" | "typeset" | "local" | "readonly" => {
                self.declare(first, tail);
                return Ok(());
            }
            "unset" => {
                for word in tail {
                    let name = &word.text;
                    self.touch(name, word.line);
                    self.state.values.remove(name);
                    self.state.exported.remove(name);
                    self.state.opaque.remove(name);
                }
                return Ok(());
            }
            "read" | "getopts" | "mapfile" | "readarray" | "for" | "select" => {
                let names = tail.iter().take_while(|w| w.text != "in");
                for word in names.filter(|w| !is_flag(&w.text)) {
                    let said = format!(
                        "{} is set by '{}' on line {}: its value is known to a running shell only",
                        word.text, first.text, first.line
                    );
                    self.unknown(&word.text, false, said);
                    self.touch(&word.text, word.line);
                }
                return Ok(());
            }
            "set" => {
                let texts: Vec<&str> = tail.iter().map(|w| w.text.as_str()).collect();
                if texts.contains(&"-a") || texts.contains(&"allexport") {
                    self.state.all_exported = true;
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
            _ => {}
        }
        self.others = true;
        match images::told(rest) {
            Some(Told::Nothing) => return Ok(()),
            Some(Told::Run(run)) if run.image.is_some() => {
                return self.container(words, rest, run, depth);
            }
            Some(Told::Run(_)) | None => {}
        }
        let skipped = words.len() - rest.len();
        let Some((engine, place)) = self.engines.started(rest) else {
            let known = self.found.len();
            self.inner_shell(words, depth)?;
            let image = rest
                .iter()
                .find(|w| self.engines.entry_of(&w.text).is_some());
            let tool = rest.iter().find(|w| images::is_tool(w));
            if let (Some(image), Some(tool)) = (image, tool)
                && self.found.len() == known
                && rest.iter().any(|w| w.text == "run")
            {
                let engine = self.engines.entry_of(&image.text);
                let said = format!(
                    "how {} starts a container of {} is not read: give the command that runs in it",
                    tool.text, image.text
                );
                self.not_read(first.line, engine, said);
            }
            return Ok(());
        };
        let before = words.get(..skipped + place).unwrap_or_default();
        self.launch(
            engine,
            before,
            rest.get(place..).unwrap_or_default(),
            first.line,
        );
        Ok(())
    }

    /// `docker run`: what its image, or what stands in place of that image's entry point, starts.
    fn container(
        &mut self,
        words: &[Word],
        rest: &[Word],
        run: Run,
        depth: usize,
    ) -> Result<(), shell::Unclosed> {
        let line = rest.first().map_or(0, |w| w.line);
        let at = run.image.unwrap_or_default();
        let image = rest.get(at).map_or("", |w| w.text.as_str());
        let options = words
            .get(..words.len() - rest.len() + at + 1)
            .unwrap_or_default();
        // Where the image stands is open: an engine's own command tells its place by itself.
        let direct = self
            .engines
            .started(rest)
            .filter(|_| run.open && run.entry.is_none());
        if let Some((engine, place)) = direct {
            let before = words
                .get(..words.len() - rest.len() + place)
                .unwrap_or_default();
            self.launch(engine, before, rest.get(place..).unwrap_or_default(), line);
            return Ok(());
        }
        let container = Container {
            image: Some(image),
            entry: run.entry,
            args: rest.get(at + 1..).unwrap_or_default().to_vec(),
            partial: false,
        };
        let of_image = self.engines.of_image(image);
        let (argv, said) = match container.begun(self.engines) {
            Begun::Engine(engine, own) => {
                self.launch(engine, options, &own, line);
                return Ok(());
            }
            Begun::Script(_, argv) => {
                let known = self.found.len();
                let whole: Vec<Word> = options.iter().chain(&argv).cloned().collect();
                self.inner_shell(&whole, depth)?;
                if self.found.len() > known {
                    return Ok(());
                }
                let said = "what its shell is given starts no engine that is known";
                (argv, said.to_string())
            }
            Begun::Arguments(own) => {
                if let Some(engine) = self.engines.wanted().or(of_image) {
                    self.launch(engine, options, &own, line);
                } else if self.engines.has_flag_of(&own) {
                    let said = images::nameless(&own);
                    self.not_read(line, None, said);
                }
                return Ok(());
            }
            Begun::Program(argv) => {
                let first = argv.first().map_or(image, |w| w.text.as_str());
                let said = images::no_engine(first);
                (argv, said)
            }
        };
        if of_image.is_some() || self.engines.has_ranks_of(&argv) {
            self.not_read(line, of_image, said);
        }
        Ok(())
    }

    /// Something that may be a launch, and is none that can be read.
    pub(super) fn not_read(&mut self, line: usize, engine: Option<String>, said: String) {
        self.found.push(Invocation {
            engine,
            place: format!("line {line}"),
            no_launch: true,
            unread: vec![said],
            ..Invocation::default()
        });
    }

    /// Takes one command as its words, without a shell around it.
    pub(super) fn argv(&mut self, words: &[Word]) -> Result<(), shell::Unclosed> {
        self.command(words, 0)
    }

    /// Launches that were found so far.
    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// One launch: its own words, and those in front of it.
    fn launch(&mut self, engine: String, before: &[Word], own: &[Word], line: usize) {
        let mut invocation = Invocation {
            engine: Some(engine),
            place: format!("line {line}"),
            ..Invocation::default()
        };
        self.outside(before, is_container(before), &mut invocation);
        let launch = invocation.engine.as_deref().unwrap_or_default();
        let (launchers, switches) = (
            self.engines.rank_launchers(launch),
            self.engines.ends_with_program(launch),
        );
        processes(before, &launchers, &mut invocation);
        invocation.flags_from(own, switches.as_deref());
        invocation.unread.append(&mut self.notes);
        let function = self.scope.iter().find(|s| s.what == FUNCTION);
        if let Some(function) = function {
            self.state.functions.push((self.found.len(), *function));
        }
        self.found.push(invocation);
    }

    /// What stands in front of a launch gives to it.
    fn outside(&self, before: &[Word], container: bool, into: &mut Invocation) {
        let handed = handed(before, &self.state.exported, &self.state.opaque);
        if container {
            // A container starts with variables of its own.
            container_options(before, &handed, into);
            return;
        }
        into.variables_open = !handed.open.is_empty() || !self.elsewhere.is_empty();
        into.unread.extend(handed.open);
        into.unread.extend(self.elsewhere.iter().cloned());
        into.variables = handed.variables;
        into.unknown = handed.unknown;
        into.lost = handed.lost;
        into.not_exported = self
            .state
            .values
            .keys()
            .filter(|name| {
                !into.variables.contains_key(*name)
                    && !into.unknown.contains_key(*name)
                    && !into.lost.contains_key(*name)
            })
            .cloned()
            .collect();
    }

    fn declare(&mut self, first: &Word, tail: &[Word]) {
        let exports = first.text == "export" || tail.iter().any(|w| w.text == "-x");
        for word in tail.iter().filter(|w| !is_flag(&w.text)) {
            match assignment(&word.text) {
                Some((name, value))
                    if exports || first.text == "declare" || first.text == "typeset" =>
                {
                    self.state
                        .exported
                        .insert(name.to_string(), value.to_string());
                    self.assign(name.to_string(), value.to_string(), word);
                }
                Some((name, value)) => self.assign(name.to_string(), value.to_string(), word),
                None if word.opaque => {
                    self.elsewhere
                        .push(only_a_shell(&format!("export {}", word.text), word.line));
                }
                None if exports => {
                    let known = self.state.values.get(&word.text).map(|v| v.join(" "));
                    let unknown = self.state.opaque.contains_key(&word.text);
                    if known.is_some() || unknown {
                        let value = known.unwrap_or_default();
                        self.state.exported.insert(word.text.clone(), value);
                        self.touch(&word.text, word.line);
                    }
                }
                None => {}
            }
        }
    }

    /// `docker run ... bash -c "..."`: the launch is inside.
    fn inner_shell(&mut self, whole: &[Word], depth: usize) -> Result<(), shell::Unclosed> {
        let base = |w: &Word| w.text.rsplit('/').next().unwrap_or_default().to_string();
        let shell = images::shell_at(whole);
        let user = whole
            .iter()
            .position(|w| matches!(base(w).as_str(), "su" | "runuser"));
        let user = user.and_then(|at| {
            let behind = whole.get(at..)?.iter();
            let mut behind = behind.enumerate();
            behind.find_map(|(i, w)| {
                matches!(w.text.as_str(), "-c" | "-lc" | "--command").then_some(at + i)
            })
        });
        // What ssh is given as one word is a command of the other host's shell.
        let far = whole.iter().any(|w| base(w) == "ssh");
        let far = far.then(|| whole.iter().rposition(|w| w.text.contains(' ')));
        let (given, inner) = match (shell, user, far.flatten()) {
            (Some((at, script)), ..) => (at, script),
            (None, Some(at), _) => (at, at + 1),
            (None, None, Some(at)) => (at, at),
            (None, None, None) => return Ok(()),
        };
        let (Some(inner), true) = (whole.get(inner), depth < NESTED) else {
            return Ok(());
        };
        let known = self.found.len();
        let given = whole.get(..given).unwrap_or_default();
        let mut options = Invocation::default();
        self.outside(given, is_container(given), &mut options);
        let state = self.state.clone();
        let scope = self.scope.clone();
        self.state.exported.clone_from(&options.variables);
        self.state.opaque.clone_from(&options.unknown);
        for name in options.unknown.keys() {
            self.state.values.forget(name);
            self.state.exported.entry(name.clone()).or_default();
        }
        self.state.set.clear();
        self.state.functions.clear();
        let text = inner.text.clone();
        self.run(&text, depth + 1)?;
        self.state = state;
        self.scope = scope;
        for invocation in self.found.iter_mut().skip(known) {
            invocation.isolated_shared_memory |= options.isolated_shared_memory;
            invocation.variables_open |= options.variables_open;
            invocation.devices = invocation.devices.take().or(options.devices.clone());
            invocation.unread.extend(options.unread.iter().cloned());
            for (name, by) in &options.lost {
                if !invocation.variables.contains_key(name) {
                    invocation.lost.insert(name.clone(), by.clone());
                }
            }
        }
        Ok(())
    }

    /// What only a running shell knows stays unread wherever it is used, and is not filled in elsewhere either.
    fn assign(&mut self, name: String, value: String, word: &Word) {
        if self.state.all_exported || self.state.exported.contains_key(&name) {
            self.state.exported.insert(name.clone(), value.clone());
        }
        if word.opaque {
            let said = only_a_shell(&word.text, word.line);
            self.state.opaque.insert(name.clone(), said);
            self.state.values.forget(&name);
        } else {
            self.state.opaque.remove(&name);
            self.state.values.insert(name.clone(), vec![value]);
        }
        self.touch(&name, word.line);
    }

    /// Text of nothing but variables is an environment file, whose lines need no `export`.
    pub(super) fn finish(mut self) -> Vec<Invocation> {
        if self.found.is_empty() && !self.others {
            let mut variables: BTreeMap<String, String> = self
                .state
                .values
                .into_known()
                .into_iter()
                .map(|(name, value)| (name, value.join(" ")))
                .collect();
            variables.extend(std::mem::take(&mut self.state.exported));
            for name in self.state.opaque.keys() {
                variables.entry(name.clone()).or_default();
            }
            let unread: Vec<String> = self.elsewhere;
            if !variables.is_empty() {
                self.found.push(Invocation {
                    engine: guess(&variables, self.engines),
                    place: "variables".to_string(),
                    no_launch: true,
                    variables_open: !unread.is_empty(),
                    variables,
                    unknown: self.state.opaque,
                    unread,
                    ..Invocation::default()
                });
            }
        }
        self.found
    }
}

/// `NAME+=value`.
fn appended(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once("+=")?;
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    valid.then_some((name, value))
}

/// How often a starter in front of the engine starts it.
fn processes(words: &[Word], launchers: &[String], into: &mut Invocation) {
    let Some(at) = words.iter().position(|w| {
        matches!(
            w.text.rsplit('/').next(),
            Some("mpirun" | "mpiexec" | "srun")
        )
    }) else {
        return;
    };
    let starter = words.get(at..).unwrap_or_default();
    let of = |names: &[&str]| {
        (0..starter.len()).find_map(|at| {
            let word = starter.get(at)?;
            let value = match word.text.split_once('=') {
                Some((option, value)) => names.contains(&option).then_some(value),
                None => names
                    .contains(&word.text.as_str())
                    .then(|| starter.get(at + 1))
                    .flatten()
                    .map(|w| w.text.as_str()),
            };
            value?.parse::<u32>().ok()
        })
    };
    let given = of(&["-np", "-n", "--np", "--ntasks", "--ntasks-per-node"]);
    let name = starter.first().map_or("", |w| w.text.as_str());
    if of(&["-N", "--nodes"]).is_some_and(|nodes| nodes > 1) && name.ends_with("srun") {
        into.unread.push(format!(
            "{name} starts it on several hosts; this tool knows one, and which of the ranks run on it is not in the text"
        ));
    }
    let by_rank = |w: &Word| {
        let base = w.text.rsplit('/').next().unwrap_or_default();
        launchers.iter().any(|own| own == base)
    };
    if starter.iter().any(by_rank) {
        into.ranks = given;
        return;
    }
    match given {
        Some(count) => into.processes = count,
        None => into.unread.push(format!(
            "{name} starts it, and how often was not read (-np N)"
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

fn is_container(words: &[Word]) -> bool {
    words.iter().enumerate().any(|(at, word)| {
        matches!(
            word.text.rsplit('/').next(),
            Some("docker" | "podman" | "nerdctl")
        ) && words
            .iter()
            .skip(at + 1)
            .take(3)
            .any(|w| matches!(w.text.as_str(), "run" | "create"))
    })
}

/// What a container gets: variables and shared memory.
fn container_options(words: &[Word], outer: &Handed, into: &mut Invocation) {
    /// Options without a value: what stands behind them is a word by itself.
    const SWITCHES: [&str; 8] = [
        "--rm",
        "-it",
        "-ti",
        "-i",
        "-t",
        "-d",
        "--init",
        "--privileged",
    ];
    let mut shared = false;
    let mut before = "";
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let last = std::mem::replace(&mut before, word.text.as_str());
        let (option, value) = match word.text.split_once('=') {
            Some((option, value)) if option.starts_with('-') => (option, Some(value.to_string())),
            _ => (word.text.as_str(), None),
        };
        if word.opaque {
            into.unread.push(only_a_shell(&word.text, word.line));
            // It may be options of its own, unless it is the value of one.
            into.variables_open |= !is_flag(&word.text)
                && (!is_flag(last) || last.contains('=') || SWITCHES.contains(&last));
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
                        if value.contains(['$', '`']) {
                            let said = only_a_shell(&given, word.line);
                            into.unknown.insert(name.to_string(), said);
                        }
                        into.variables.insert(name.to_string(), value.to_string());
                    }
                    // The name alone hands the caller's value on.
                    None => {
                        if let Some(said) = outer.unknown.get(&given) {
                            into.unknown.insert(given.clone(), said.clone());
                        }
                        if let Some(value) = outer.variables.get(&given) {
                            into.variables.insert(given, value.clone());
                        }
                    }
                }
            }
            "--env-file" => {
                let file = value().unwrap_or_default();
                into.variables_open = true;
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
