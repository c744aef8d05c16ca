//! Shell scripts: what is exported when an engine is started, and what a container is given.

use super::{
    blocks::{FUNCTION, Scope},
    devices::Given,
    environment::{Handed, handed},
    images::{self, Begun, Container, Run, Told},
    read::{Engines, Invocation, assignment, guess, is_flag, only_a_shell},
    shell::{self, Values, Word, is_left_out},
};
use std::collections::{BTreeMap, BTreeSet};

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
    /// Launches that stand in words which were not read: where, and why.
    missed: Vec<String>,
    /// Names of its functions.
    functions: BTreeSet<String>,
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
    /// Variables that functions set or unset, which they do when they are called: name, line, and whether it was exported.
    in_functions: BTreeMap<String, (usize, bool)>,
    /// Words that the variable of a loop goes over.
    choices: BTreeMap<String, Vec<String>>,
    /// Files that the text itself writes.
    written: BTreeMap<String, String>,
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
            missed: Vec::new(),
            functions: BTreeSet::new(),
        }
    }

    /// What may hold launches and was not read.
    pub(super) fn missed(&self) -> &[String] {
        &self.missed
    }

    /// Reads `text`; `depth` shells around it.
    pub(super) fn run(&mut self, text: &str, depth: usize) -> Result<(), shell::Unclosed> {
        let base = self.scope.clone();
        self.functions.extend(functions_of(text));
        for command in shell::commands(text)? {
            let scope: Vec<Scope> = base.iter().chain(&command.scope).copied().collect();
            self.leave(&scope);
            self.scope = scope;
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
            let documents = command.documents(&self.state.values);
            let files = command.files(&self.state.values);
            if !self.texts(&words, documents, &files, depth)? {
                self.command(&words, depth)?;
            }
        }
        self.leave(&base);
        self.scope = base;
        Ok(())
    }

    /// What a command is given to read beside its words: a script for a shell, or the text of a file that it writes. Whether
    /// nothing of it is left to read.
    fn texts(
        &mut self,
        words: &[Word],
        documents: Vec<String>,
        files: &[String],
        depth: usize,
    ) -> Result<bool, shell::Unclosed> {
        let line = words.first().map_or(0, |w| w.line);
        let program = words.iter().find(|w| assignment(&w.text).is_none());
        let writer = program.map(|w| base_name(&w.text).to_string());
        let own = words.iter().rposition(|w| is_shell(&w.text));
        let reads = own.is_some_and(|at| {
            let behind = words.get(at + 1..).unwrap_or_default();
            behind
                .iter()
                .all(|w| is_flag(&w.text) && !ends_in_c(&w.text))
        });
        let far = words.iter().any(|w| base_name(&w.text) == "ssh");
        if let (Some("echo" | "printf"), [file]) = (writer.as_deref(), files) {
            let text: Vec<&str> = words.iter().skip(1).map(|w| w.text.as_str()).collect();
            let before = self.state.written.entry(plain_path(file)).or_default();
            before.push_str(&text.join(" "));
            before.push('\n');
        }
        for text in documents {
            let target = match writer.as_deref() {
                Some("cat") => files.first().cloned(),
                Some("tee") => words
                    .iter()
                    .skip(1)
                    .find(|w| !is_flag(&w.text))
                    .map(|w| w.text.clone()),
                _ => None,
            };
            if let Some(file) = target {
                self.state.written.insert(plain_path(&file), text);
            } else if (reads || far) && depth < NESTED {
                self.others = true;
                self.inside(words, &text, depth)?;
                if reads && !far {
                    return Ok(true);
                }
            } else if writer.as_deref() != Some("cat") && self.holds_launch(&text) {
                self.misses(format!(
                    "the document that {} reads on line {line} holds a launch",
                    writer.as_deref().unwrap_or("a command")
                ));
            }
        }
        Ok(false)
    }

    fn misses(&mut self, what: String) {
        self.others = true;
        self.missed.push(format!(
            "{what}, and was not read: write the launch out as a command of its own, or check it by itself"
        ));
    }

    /// Whether a text starts an engine.
    fn holds_launch(&self, text: &str) -> bool {
        let mut script = Script::new(self.engines, BTreeMap::new());
        let read = script.run(text, NESTED);
        read.is_err() && self.engines.is_named_in(text) || !script.found.is_empty()
    }

    /// A command that calls a function sets what functions set.
    fn calls(&mut self, name: &str, line: usize) {
        if !self.functions.contains(name) || self.scope.iter().any(|s| s.what == FUNCTION) {
            return;
        }
        for (name, (at, exported)) in self.state.in_functions.clone() {
            let said = format!(
                "{name} is set on line {at} in a function, and one is called on line {line}: whether that holds for the launch is not known"
            );
            self.unknown(&name, exported, said);
            // A launch inside of a function has what stands beside it.
            if !self.scope.is_empty() {
                self.state.set.push(Set {
                    name,
                    line,
                    exported,
                    scope: self.scope.clone(),
                });
            }
        }
    }

    /// A command that sets or unsets a variable whose name only a running shell knows.
    fn one_of(&mut self, word: &Word, by: &str) {
        let name: String = word
            .text
            .trim_start_matches(['$', '{'])
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let names: Vec<String> = match self.state.choices.get(&name) {
            Some(words) => words.clone(),
            None => self.state.exported.keys().cloned().collect(),
        };
        for name in names {
            let said = format!(
                "{name} may be what '{by} {}' on line {} means: its value is known to a running shell only",
                word.text, word.line
            );
            self.touch(&name, word.line);
            self.unknown(&name, false, said);
        }
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
        if self.scope.iter().any(|s| s.what == FUNCTION) {
            self.state
                .in_functions
                .insert(name.to_string(), (line, exported));
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
            } else if let Some(name) = element(&first.text) {
                let said = only_a_shell(&first.text, first.line);
                self.unknown(name, false, said);
                self.touch(name, first.line);
            } else if let Some((name, value)) = appended(&first.text) {
                let known = self.state.values.get(name);
                let known = known.filter(|v| v.len() == 1).map(|v| v.join(" "));
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
        self.calls(&first.text, first.line);
        match first.text.as_str() {
            "export" | "declare" | "typeset" | "local" | "readonly" => {
                self.declare(first, tail);
                return Ok(());
            }
            "unset" => {
                for word in tail.iter().filter(|w| !is_flag(&w.text)) {
                    if word.opaque {
                        self.one_of(word, "unset");
                        continue;
                    }
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
                let over = tail.iter().skip_while(|w| w.text != "in").skip(1);
                if let (true, Some(name)) = (
                    first.text == "for" && over.clone().all(|w| !w.opaque),
                    tail.first(),
                ) {
                    let words = over.map(|w| w.text.clone()).collect();
                    self.state.choices.insert(name.text.clone(), words);
                }
                for word in names.filter(|w| !is_flag(&w.text)) {
                    if word.opaque {
                        self.one_of(word, &first.text);
                        continue;
                    }
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
            "printf" if tail.first().is_some_and(|w| w.text.starts_with("-v")) => {
                let joined = tail.first().and_then(|w| w.text.strip_prefix("-v"));
                let joined = joined.filter(|rest| !rest.is_empty());
                let Some(name) = joined.or_else(|| tail.get(1).map(|w| w.text.as_str())) else {
                    return Ok(());
                };
                if let Some(word) = tail.iter().take(2).find(|w| w.opaque) {
                    self.one_of(word, "printf -v");
                    return Ok(());
                }
                let said = format!(
                    "{name} is set by 'printf -v' on line {}: its value is known to a running shell only",
                    first.line
                );
                self.unknown(name, self.state.all_exported, said);
                self.touch(name, first.line);
                return Ok(());
            }
            "alias" => {
                for word in tail {
                    if let Some((name, text)) = assignment(&word.text)
                        && self.holds_launch(text)
                    {
                        self.misses(format!(
                            "the alias '{name}' on line {} holds a launch",
                            word.line
                        ));
                    }
                }
                return Ok(());
            }
            "source" | "." => {
                let file = tail.first().map_or("", |w| w.text.as_str());
                if let Some(text) = self.state.written.get(&plain_path(file)).cloned()
                    && depth < NESTED
                {
                    return self.run(&text, depth + 1);
                }
                self.elsewhere.push(format!(
                    "{file} is read by this script and was not given: its variables are not known"
                ));
                return Ok(());
            }
            "eval" => {
                let text: Vec<&str> = tail.iter().map(|w| w.text.as_str()).collect();
                let open = tail.iter().any(|w| w.opaque);
                self.others |= open;
                if open {
                    self.elsewhere.push(only_a_shell("eval ...", first.line));
                }
                let read = match depth < NESTED {
                    true => self.run(&text.join(" "), depth + 1).is_ok(),
                    false => false,
                };
                if !read {
                    self.misses(format!("eval on line {} may hold a launch", first.line));
                }
                return Ok(());
            }
            _ => {}
        }
        self.others = true;
        if let Some(words) = split_by_env(words)
            && depth < NESTED
        {
            return self.command(&words, depth + 1);
        }
        match images::told(rest) {
            Some(Told::Nothing) => return Ok(()),
            Some(Told::Run(run)) if run.image.is_some() => {
                return self.container(words, rest, run, depth);
            }
            Some(Told::Run(_)) | None => {}
        }
        let skipped = words.len() - rest.len();
        let Some((engine, place)) = self.engines.started(rest) else {
            let (known, missed) = (self.found.len(), self.missed.len());
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
            if self.found.len() == known && self.missed.len() == missed {
                self.left(rest);
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

    /// A command that starts nothing which was read: whether it may start a launch all the same.
    fn left(&mut self, rest: &[Word]) {
        let Some((first, tail)) = rest.split_first() else {
            return;
        };
        let base = base_name(&first.text);
        if matches!(
            base,
            "echo" | "printf" | "logger" | "grep" | "pgrep" | "pkill"
        ) {
            return;
        }
        let text = |w: &&Word| w.text.contains(char::is_whitespace);
        if let Some(word) = tail
            .iter()
            .filter(text)
            .find(|w| self.holds_launch(&w.text))
        {
            let line = word.line;
            self.misses(format!("a word of '{base}' on line {line} holds a launch"));
            return;
        }
        let named = |w: &Word| {
            base_name(&w.text).ends_with(".sh") || (w.text.contains('/') && !is_flag(&w.text))
        };
        let script = match is_shell(&first.text) {
            true => tail.iter().find(|w| !is_flag(&w.text)),
            false => Some(first).filter(|w| named(w)),
        };
        let given = tail.iter().any(|w| self.engines.is_size_flag(&w.text));
        if let Some(script) = script.filter(|_| given) {
            self.misses(format!(
                "'{}' on line {} is a script or program that is given arguments of an engine",
                script.text, script.line
            ));
        }
    }

    fn declare(&mut self, first: &Word, tail: &[Word]) {
        let option = |c: char| {
            let mut flags = tail
                .iter()
                .filter(|w| is_flag(&w.text) && !w.text.starts_with("--"));
            flags.any(|w| w.text.contains(c))
        };
        let undone = (first.text == "export" && option('n'))
            || tail
                .iter()
                .any(|w| w.text.starts_with('+') && w.text.contains('x'));
        let exports = !undone && (first.text == "export" || option('x'));
        for word in tail
            .iter()
            .filter(|w| !is_flag(&w.text) && !w.text.starts_with('+'))
        {
            if word.text.starts_with('$') && !word.text.starts_with("$(") {
                self.one_of(word, &first.text);
            }
            if undone {
                let (name, value) = match assignment(&word.text) {
                    Some((name, value)) => (name, Some(value)),
                    None => (word.text.as_str(), None),
                };
                self.touch(name, word.line);
                self.state.exported.remove(name);
                if let Some(value) = value {
                    self.assign(name.to_string(), value.to_string(), word);
                }
                continue;
            }
            match assignment(&word.text) {
                Some((name, value)) if exports => {
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
        let one_word = |at: &usize| whole.get(*at).is_some_and(|w| w.text.contains(' '));
        let behind = |names: &[&str]| whole.iter().position(|w| names.contains(&base(w).as_str()));
        let last = || whole.len().checked_sub(1);
        // tmux gives one word to a shell; keys that it sends are typed into one of which nothing is known.
        let tmux = behind(&["tmux"]).filter(|at| {
            let rest = whole.get(at + 1..).unwrap_or_default();
            rest.iter().any(|w| {
                matches!(
                    w.text.as_str(),
                    "new"
                        | "new-session"
                        | "new-window"
                        | "neww"
                        | "split-window"
                        | "splitw"
                        | "respawn-pane"
                        | "respawn-window"
                )
            })
        });
        let taken = behind(&["script", "flock", "sbatch"]).and_then(|at| {
            let rest = whole.get(at..)?;
            let place = rest
                .iter()
                .position(|w| matches!(w.text.as_str(), "-c" | "--command" | "--wrap"))?;
            Some(at + place + 1)
        });
        let word = tmux.and_then(|_| last()).filter(one_word).or(taken);
        // A file that the text itself writes.
        let written = whole
            .iter()
            .position(|w| self.state.written.contains_key(&plain_path(&w.text)));
        let written = written.filter(|at| {
            let before = at.checked_sub(1).and_then(|i| whole.get(i));
            let program = match before {
                None => true,
                Some(w) => {
                    is_shell(&w.text)
                        || is_flag(&w.text)
                        || assignment(&w.text).is_some()
                        || matches!(
                            w.text.as_str(),
                            "exec" | "nohup" | "setsid" | "time" | "sudo" | "env"
                        )
                }
            };
            program
                && !matches!(
                    whole.first().map_or("", |w| base_name(&w.text)),
                    "chmod" | "rm" | "cat" | "mv" | "cp"
                )
        });
        if let Some((at, text)) = written.and_then(|at| {
            let name = plain_path(&whole.get(at)?.text);
            Some((at, self.state.written.get(&name)?.clone()))
        }) && depth < NESTED
        {
            return self.inside(whole.get(..at).unwrap_or_default(), &text, depth);
        }
        // What ssh is given as one word is a command of the other host's shell.
        let far = whole.iter().any(|w| base(w) == "ssh");
        let far = far.then(|| whole.iter().rposition(|w| w.text.contains(' ')));
        let (given, inner) = match (shell, user, far.flatten()) {
            (Some((at, script)), ..) => (at, script),
            (None, Some(at), _) => (at, at + 1),
            (None, None, Some(at)) => (at, at),
            (None, None, None) => match word {
                Some(at) => (at, at),
                None => return Ok(()),
            },
        };
        let (Some(inner), true) = (whole.get(inner), depth < NESTED) else {
            return Ok(());
        };
        let text = inner.text.clone();
        self.inside(whole.get(..given).unwrap_or_default(), &text, depth)
    }

    /// Another shell on `text`, behind the words `given`.
    fn inside(&mut self, given: &[Word], text: &str, depth: usize) -> Result<(), shell::Unclosed> {
        let known = self.found.len();
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
        self.state.in_functions.clear();
        self.run(text, depth + 1)?;
        self.state = state;
        self.scope = scope;
        for invocation in self.found.iter_mut().skip(known) {
            invocation.isolated_shared_memory |= options.isolated_shared_memory;
            invocation.shared_memory = invocation.shared_memory.or(options.shared_memory);
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
        if let Some(first) = self.found.first_mut() {
            first.unread.append(&mut self.missed);
        }
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

fn base_name(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or_default()
}

fn plain_path(text: &str) -> String {
    text.trim_start_matches("./").to_string()
}

fn is_shell(text: &str) -> bool {
    matches!(
        base_name(text),
        "sh" | "bash" | "dash" | "ash" | "ksh" | "zsh"
    )
}

/// `-c`, `-lc`: text follows.
fn ends_in_c(text: &str) -> bool {
    text.starts_with('-') && text.ends_with('c')
}

/// Names of functions that a text defines.
fn functions_of(text: &str) -> impl Iterator<Item = String> + '_ {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let bracketed = text.match_indices('(').filter_map(move |(at, _)| {
        let behind = text.get(at + 1..)?.trim_start();
        let before = text.get(..at)?.trim_end_matches([' ', '\t']);
        let begin = before.rfind(|c| !is_name(c)).map_or(0, |i| i + 1);
        let name = before.get(begin..)?;
        (behind.starts_with(')') && !name.is_empty()).then(|| name.to_string())
    });
    let words = text.split_whitespace().collect::<Vec<_>>();
    let named: Vec<String> = words
        .windows(2)
        .filter(|w| w.first() == Some(&"function"))
        .filter_map(|w| Some(w.get(1)?.trim_end_matches(['(', ')', '{']).to_string()))
        .collect();
    bracketed.chain(named)
}

/// `env -S 'A=1 program words'`: the words that env makes of it.
fn split_by_env(words: &[Word]) -> Option<Vec<Word>> {
    let env = words.iter().position(|w| base_name(&w.text) == "env")?;
    let behind = words.get(env + 1..)?;
    let flags = behind.iter().take_while(|w| is_flag(&w.text)).count();
    let split = |w: &Word| -> Option<Option<String>> {
        let text = w.text.as_str();
        if let Some(rest) = text.strip_prefix("--split-string") {
            return Some(rest.strip_prefix('=').map(str::to_string));
        }
        let (short, rest) = text.strip_prefix('-')?.split_once('S')?;
        let cluster = short.chars().all(|c| "iv0".contains(c));
        cluster.then(|| Some(rest.to_string()).filter(|r| !r.is_empty()))
    };
    let at = (0..flags).find(|i| behind.get(*i).and_then(split).is_some())?;
    let option = behind.get(at)?;
    let (text, next) = match split(option)? {
        Some(joined) => (joined, at + 1),
        None => (behind.get(at + 1)?.text.clone(), at + 2),
    };
    let inner = shell::commands(&text).ok()?;
    let inner = inner.first()?.words(&Values::new());
    let mut all: Vec<Word> = words.get(..=env)?.to_vec();
    all.extend(behind.get(..at)?.iter().cloned());
    let empty = option.text.starts_with("-iS") || option.text.starts_with("-viS");
    all.extend(empty.then(|| Word {
        text: "-i".to_string(),
        ..option.clone()
    }));
    all.extend(inner.into_iter().map(|w| Word {
        line: option.line,
        ..w
    }));
    all.extend(behind.get(next..)?.iter().cloned());
    Some(all)
}

/// `NAME[3]=value`.
fn element(text: &str) -> Option<&str> {
    let (head, _) = text.split_once('=')?;
    let (name, index) = head.trim_end_matches('+').split_once('[')?;
    let valid = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (valid && index.ends_with(']')).then_some(name)
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

/// "64m", "16gb": bytes, as docker and compose write them.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_lowercase();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
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
    let (mut shared, mut whole, mut size) = (false, false, None);
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
                whole |= value().is_some_and(|v| v == "host" || v.starts_with("container:"));
            }
            "--shm-size" => {
                shared = true;
                size = value().as_deref().and_then(bytes);
            }
            "-v" | "--volume" => whole |= value().is_some_and(|v| v.contains("/dev/shm")),
            _ => {}
        }
    }
    if let Some(list) = into.variables.get("NVIDIA_VISIBLE_DEVICES")
        && list != "all"
    {
        into.devices = given(&format!("device={list}"));
    }
    into.isolated_shared_memory = !shared && !whole;
    into.shared_memory = size.filter(|_| !whole);
}
