//! From pasted text to launches: which engine, with which flags and variables, inside which container.

use super::{
    containers,
    devices::Given,
    dockerfile, document,
    images::Launches,
    script::Script,
    shell::{Word, is_left_out},
    spelling::own_list,
    unit,
};
use crate::profile::{EngineProfile, Launch, Profiles};
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
    /// The first word behind the command is one of them.
    pub led: bool,
    /// Variables that the engine gets from this text.
    pub variables: BTreeMap<String, String>,
    /// Variables that are assigned and not exported: the engine does not get them.
    pub not_exported: BTreeSet<String>,
    /// It runs in a container that was given neither the host's IPC nor shared memory.
    pub isolated_shared_memory: bool,
    /// Bytes of shared memory that its container was given.
    pub shared_memory: Option<u64>,
    /// GPUs that its container was given.
    pub devices: Option<Given>,
    /// How often a starter in front of it (mpirun) starts it; 0 and 1 are once.
    pub processes: u32,
    /// Words of it are missing, so that a flag which it lacks may be given all the same.
    pub cut: bool,
    /// How many MPI ranks a launcher starts that are its own ranks.
    pub ranks: Option<u32>,
    /// Variables of which it is not known whether, or with which value, the engine gets them, with why.
    pub unknown: BTreeMap<String, String>,
    /// Variables that are set outside a command which does not hand them on: by which.
    pub lost: BTreeMap<String, String>,
    /// Variables whose text is a no to the program that reads it.
    pub switched_off: BTreeSet<String>,
    /// It gets variables that this text does not hold.
    pub variables_open: bool,
    /// It gets flags, or settings of a file, that this text does not hold.
    pub flags_open: bool,
    /// Variables, and no launch that takes them.
    pub no_launch: bool,
    /// The user's own program behind it, whose words are no flags of the engine.
    pub program: Option<String>,
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
    /// The value stands in the same word, behind an equals sign.
    pub joined: bool,
    /// It was written with underscores.
    pub underscores: bool,
    /// It is a key of a JSON object that another flag gives: which of these objects, counted over the launch.
    pub object: Option<usize>,
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
    /// Arguments alone, of an engine that nothing names.
    #[error("{name}: {place}: {what}")]
    Unnamed {
        /// File or option.
        name: String,
        /// "container llm".
        place: String,
        /// What is missing, and what tells it.
        what: String,
    },
    /// A launch may stand in what was not read.
    #[error("{name}: no launch found that can be read: {what}")]
    Missed {
        /// File or option.
        name: String,
        /// Where, why, and what to do.
        what: String,
    },
    /// Neither a launch nor variables.
    #[error(
        "{name}: no launch found (known: {known}); a script, a command, NAME=value lines, a compose file, a Kubernetes manifest, a Dockerfile or a systemd unit would do"
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

    /// A flag that it lacks may be given all the same.
    pub(super) fn may_hold_flags(&self) -> bool {
        self.cut || self.flags_open || self.no_launch
    }

    /// A variable that it lacks, or has, may be another all the same.
    pub(super) fn may_hold(&self, variable: &str) -> bool {
        self.unknown.contains_key(variable)
            || (self.variables_open && !self.variables.contains_key(variable))
    }

    /// Its value.
    pub(super) fn value(&self, names: &[String]) -> Option<&str> {
        self.flag(names)?.value.as_deref()
    }

    /// Takes flags and other words in; `switches`: behind the first other word stands a program of the user's, and behind
    /// these flags stands no value that could be taken for it.
    pub(super) fn flags_from(&mut self, words: &[Word], switches: Option<&[String]>) {
        if self.flags.is_empty() && self.positional.is_empty() {
            self.led = words.first().is_some_and(|word| !is_flag(&word.text));
        }
        let mut rest = words.iter().peekable();
        while let Some(word) = rest.next() {
            if word.opaque {
                self.unread.push(only_a_shell(&word.text, word.line));
            }
            // "..." stands for words; "--tensor-par..." at the end is the rest of one.
            let alone = word
                .text
                .trim_end_matches(['.', '\u{2026}', '\\'])
                .is_empty();
            if is_left_out(&word.text) && (alone || rest.peek().is_none()) {
                self.cut_off(word);
                continue;
            }
            // Where the model stands a variable is one word; elsewhere it may be flags.
            let first = self.led && self.flags.is_empty() && self.positional.is_empty();
            self.flags_open |= word.opaque && !is_flag(&word.text) && !first;
            if !is_flag(&word.text) {
                self.positional.push(word.text.clone());
                if switches.is_some() {
                    self.program = Some(word.text.clone());
                    return;
                }
                continue;
            }
            let (name, value, joined) = match word.text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string()), true),
                None => {
                    let takes = switches.is_none_or(|none| !none.contains(&plain(&word.text)));
                    let next = rest.next_if(|next| takes && !is_flag(&next.text));
                    if let Some(next) = next.filter(|n| is_left_out(&n.text)) {
                        self.cut_off(next);
                    }
                    if let Some(next) = next.filter(|n| n.opaque) {
                        self.unread.push(only_a_shell(
                            &format!("{} {}", word.text, next.text),
                            next.line,
                        ));
                    }
                    (word.text.as_str(), next.map(|w| w.text.clone()), false)
                }
            };
            let underscores = name
                .split('.')
                .next()
                .is_some_and(|head| head.contains('_'));
            let name = plain(name);
            if let Some(Value::Object(map)) =
                value.as_deref().and_then(|v| serde_json::from_str(v).ok())
            {
                let object = self.flags.iter().filter_map(|f| f.object).max();
                let object = object.map_or(0, |last| last + 1);
                flatten(&name, &map, object, &mut self.flags);
            }
            self.flags.push(Flag {
                name,
                value,
                joined,
                underscores,
                object: None,
            });
        }
    }

    fn cut_off(&mut self, word: &Word) {
        self.cut = true;
        let place = match word.line {
            0 => String::new(),
            line => format!(" on line {line}"),
        };
        self.unread.push(format!(
            "the command is cut off at '{}'{place}: what stands there is not known; give all of it",
            word.text
        ));
    }
}

/// Text that only a running shell knows.
pub(super) fn only_a_shell(text: &str, line: usize) -> String {
    let place = if line == 0 {
        String::new()
    } else {
        format!(" on line {line}")
    };
    format!("'{text}'{place} is known to a running shell only: write its value out")
}

pub(super) fn is_flag(text: &str) -> bool {
    text.len() > 1
        && text.starts_with('-')
        && text
            .get(1..)
            .is_none_or(|rest| rest.parse::<f64>().is_err())
}

fn flatten(
    prefix: &str,
    map: &serde_json::Map<String, Value>,
    object: usize,
    flags: &mut Vec<Flag>,
) {
    for (key, value) in map {
        let name = format!("{prefix}.{}", plain(key));
        let value = match value {
            Value::Object(inner) => {
                flatten(&name, inner, object, flags);
                continue;
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        flags.push(Flag {
            name,
            value: Some(value),
            joined: false,
            underscores: false,
            object: Some(object),
        });
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
    let engines = Engines {
        profiles,
        wanted,
        told: own_comment(text, profiles),
    };
    let mut missed = String::new();
    let mut read = Launches::default();
    if dockerfile::is_one(text) {
        dockerfile::launches(text, &engines, &mut read).map_err(|e| unread(e.line, &e.what))?;
    } else if unit::is_one(text) {
        read.found = unit::launches(text, &engines).map_err(|e| unread(e.line, &e.what))?;
    } else if is_document(text) {
        for root in document::parse(text).map_err(|e| unread(e.line, &e.what))? {
            let launches = containers::launches(&root, &engines, &mut read);
            launches.map_err(|e| unread(e.line, e.what))?;
        }
    } else {
        let mut script = Script::new(&engines, BTreeMap::new());
        script.run(text, 0).map_err(|e| unread(e.line, e.what))?;
        missed = script.missed().join("; ");
        read.found = script.finish();
    }
    // Without an engine, or variables of one, there is nothing of it to judge.
    let Launches { found, weak } = read;
    if found.iter().all(|one| one.engine.is_none())
        && let Some(one) = found.iter().chain(&weak).next()
    {
        return Err(ReadError::Unnamed {
            name: name.to_string(),
            place: one.place.clone(),
            what: one.unread.join("; "),
        });
    }
    if found.is_empty() && !missed.is_empty() {
        return Err(ReadError::Missed {
            name: name.to_string(),
            what: missed,
        });
    }
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
    const KEYS: [&str; 9] = [
        "services",
        "environment",
        "env",
        "entrypoint",
        "command",
        "args",
        "image",
        "apiVersion",
        "containers",
    ];
    text.lines().any(|line| {
        let body = line.trim_start().trim_start_matches(['-', '{', ' ']);
        let key = body.split_once(':').map(|(key, _)| key.trim_end());
        key.is_some_and(|key| KEYS.contains(&key.trim_matches(['"', '\''])))
    })
}

/// The engine that a comment of this tool's own settings names, if they are of one.
fn own_comment(text: &str, profiles: &Profiles) -> Option<String> {
    let own = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("# peerproof recommend: "));
    let named: BTreeSet<&str> = own.filter_map(|rest| rest.split(',').next()).collect();
    let only = named.first().filter(|_| named.len() == 1)?;
    profiles.engine(only).map(|e| e.id.clone())
}

/// Engines to recognise a launch by.
pub(super) struct Engines<'a> {
    profiles: &'a Profiles,
    wanted: Option<&'a str>,
    /// The engine that the text says it is for.
    told: Option<String>,
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

    /// The engine that the operator named.
    pub(super) fn wanted(&self) -> Option<String> {
        let engine = self.wanted.and_then(|id| self.profiles.engine(id));
        engine.map(|e| e.id.clone())
    }

    /// The engine of which a name is a word of the image's: the longest, as a fork is called by its parent's name and more.
    pub(super) fn of_image(&self, image: &str) -> Option<String> {
        let image = image.to_lowercase();
        // A registry is no part of the name.
        let image = match image.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) => rest,
            _ => image.as_str(),
        };
        let is_word = |name: &str| {
            image.match_indices(name).any(|(at, _)| {
                let edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
                let (before, behind) = (image.get(..at), image.get(at + name.len()..));
                edge(before.and_then(|t| t.chars().next_back()))
                    && edge(behind.and_then(|t| t.chars().next()))
            })
        };
        let engines = self.in_order().into_iter().filter(|e| {
            let launch = e.launch.as_ref();
            // An image of PyTorch starts anything.
            launch.is_some_and(|l| !l.commands.is_empty() && !l.program)
        });
        let names = engines.flat_map(|e| {
            let own = std::iter::once(&e.id).chain(&e.aliases);
            own.map(move |name| (e, name))
        });
        let named = names.filter(|(_, name)| is_word(name));
        named
            .max_by_key(|(_, name)| name.len())
            .map(|(e, _)| e.id.clone())
    }

    /// The engine that the text says it is for.
    pub(super) fn told(&self) -> Option<String> {
        self.told.clone()
    }

    /// The engine that is the entry point of an image, by the image's name.
    pub(super) fn entry_of(&self, image: &str) -> Option<String> {
        let is_own = |e: &&EngineProfile| {
            let launch = e.launch.as_ref();
            launch.is_some_and(|l| l.images.iter().any(|own| image.contains(own)))
        };
        self.in_order()
            .into_iter()
            .find(is_own)
            .map(|e| e.id.clone())
    }

    /// The engine that knows all these flags, `likely` first, or `likely` where none does; `None` where several others do.
    pub(super) fn of_flags(&self, words: &[Word], likely: Option<String>) -> Option<String> {
        let flags: Vec<String> = words
            .iter()
            .filter(|w| is_flag(&w.text))
            .map(|w| {
                let name = w.text.split(['=', '.']).next().unwrap_or_default();
                plain(name)
            })
            .collect();
        let knows = |engine: &EngineProfile| {
            own_list(engine, self.profiles)
                .is_some_and(|list| flags.iter().all(|f| list.flags.contains(f)))
        };
        let own = likely.as_deref().and_then(|id| self.profiles.engine(id))?;
        if knows(own) {
            return likely;
        }
        let others = self.in_order().into_iter();
        let mut others = others.filter(|e| e.inherits.is_none() && knows(e));
        match (others.next(), others.next()) {
            (Some(other), None) => Some(other.id.clone()),
            (Some(_), Some(_)) => None,
            (None, _) => likely,
        }
    }

    /// Whether one of `words` is a flag by which an engine is given its model or a number of ranks.
    pub(super) fn has_flag_of(&self, words: &[Word]) -> bool {
        self.has(words, |l| l.model.iter().collect()) || self.has_ranks_of(words)
    }

    /// Whether one of `words` is a flag by which an engine is given a number of ranks.
    pub(super) fn has_ranks_of(&self, words: &[Word]) -> bool {
        self.has(words, |l| {
            l.tp.iter()
                .chain(l.times.iter().flat_map(|t| &t.flags))
                .collect()
        })
    }

    fn has(&self, words: &[Word], own: impl Fn(&Launch) -> Vec<&String>) -> bool {
        let launches = self.profiles.engines.iter();
        let mut launches = launches.filter_map(|e| e.launch.as_ref());
        launches.any(|l| {
            own(l).into_iter().any(|flag| {
                words.iter().any(|w| {
                    let name = w.text.split('=').next().unwrap_or_default();
                    // A flag of one letter may be anything.
                    name.len() > 2 && is_flag(name) && plain(flag) == plain(name)
                })
            })
        })
    }

    /// Whether a word is a flag by which an engine is given a number of ranks.
    pub(super) fn is_size_flag(&self, word: &str) -> bool {
        let name = word.split('=').next().unwrap_or_default();
        let launches = self.profiles.engines.iter();
        let mut launches = launches.filter_map(|e| e.launch.as_ref());
        // One letter is a flag of anything.
        name.len() > 2
            && launches.any(|l| {
                let times = l.times.iter().flat_map(|t| &t.flags);
                l.tp.iter()
                    .chain(times)
                    .any(|flag| plain(flag) == plain(name))
            })
    }

    /// Whether a text has the words of a command that starts an engine.
    pub(super) fn is_named_in(&self, text: &str) -> bool {
        self.commands()
            .iter()
            .any(|command| text.contains(command.as_str()))
    }

    /// For an engine whose arguments end with a program of the user's, those of its flags that take no value.
    pub(super) fn ends_with_program(&self, engine: &str) -> Option<Vec<String>> {
        let engine = self.profiles.engine(engine)?;
        engine.launch.as_ref().filter(|l| l.program)?;
        let names = own_list(engine, self.profiles);
        Some(names.map_or_else(Vec::new, |n| {
            n.switches.iter().chain(n.short.keys()).cloned().collect()
        }))
    }

    /// Commands in front of an engine whose MPI ranks are its own.
    pub(super) fn rank_launchers(&self, engine: &str) -> Vec<String> {
        let engine = self.profiles.engine(engine);
        let launch = engine.and_then(|e| e.launch.as_ref());
        launch.map_or_else(Vec::new, |l| l.rank_launchers.clone())
    }

    /// The engine that `words` start, and where its arguments begin.
    pub(super) fn started(&self, words: &[Word]) -> Option<(String, usize)> {
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
        None
    }
}

/// The engine to which most of the variables belong.
pub(super) fn guess(variables: &BTreeMap<String, String>, engines: &Engines) -> Option<String> {
    if let Some(wanted) = engines.wanted.and_then(|id| engines.profiles.engine(id)) {
        return Some(wanted.id.clone());
    }
    if let Some(told) = engines.told() {
        return Some(told);
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
    // NCCL's variables stand beside those of every engine, and decide only where there are no others.
    engines
        .in_order()
        .into_iter()
        .filter(|e| own(e) > 0)
        .max_by_key(|e| (e.id != "nccl", own(e), e.inherits.is_none()))
        .map(|e| e.id.clone())
}

/// `NAME=value` with a name that a shell takes for one.
pub(super) fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    valid.then_some((name, value))
}
