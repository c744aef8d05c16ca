//! A launch as the engine's own parser takes it: which of several words counts, which are undone by a later one, and which it
//! refuses. What is not known of a parser (`profiles/names`) stays as it was read.

use super::{
    read::{Flag, Invocation, plain},
    shell::is_left_out,
};
use crate::{
    model::{finding::Severity, launch::LaunchProblem},
    profile::{Launch, ModelWord, Names, Parser, SettingKind},
};
use std::collections::{BTreeMap, BTreeSet};

/// What the engine makes of a launch.
pub(super) struct Taken {
    /// Its flags, positional words and variables as the engine has them in the end.
    pub(super) invocation: Invocation,
    /// What it refuses: each of these keeps it from starting.
    pub(super) refused: Vec<LaunchProblem>,
    /// What counts otherwise than a reader may think.
    pub(super) notes: Vec<LaunchProblem>,
    /// What it may refuse, or take.
    pub(super) open: Vec<String>,
}

/// `invocation` as the program of `names` takes it.
pub(super) fn taken(
    invocation: &Invocation,
    engine_name: &str,
    launch: &Launch,
    names: Option<&Names>,
) -> Taken {
    let mut taken = Taken {
        invocation: invocation.clone(),
        refused: Vec::new(),
        notes: Vec::new(),
        open: Vec::new(),
    };
    let Some((names, parser)) = names.and_then(|n| Some((n, n.parser?))) else {
        return taken;
    };
    let reader = Reader {
        engine_name,
        launch,
        names,
    };
    reader.stuck(parser, &mut taken);
    if parser == Parser::Argparse {
        reader.values(&mut taken);
        reader.underscores(&mut taken);
        reader.switches(&mut taken);
        reader.short_objects(&mut taken);
        reader.valueless(&mut taken);
        reader.objects(&mut taken);
        reader.several(&mut taken);
    }
    taken
}

struct Reader<'a> {
    engine_name: &'a str,
    launch: &'a Launch,
    names: &'a Names,
}

impl Reader<'_> {
    fn refuses(&self, wrong: String, change: String, settings: Vec<String>) -> LaunchProblem {
        LaunchProblem {
            id: "engine-refuses".to_string(),
            severity: Severity::Critical,
            wrong: format!(
                "{wrong}: {} refuses it and does not start",
                self.engine_name
            ),
            change,
            settings,
            source: format!("command line of {}", self.names.read_in),
        }
    }

    fn note(&self, id: &str, severity: Severity, wrong: String, change: &str) -> LaunchProblem {
        LaunchProblem {
            id: id.to_string(),
            severity,
            wrong,
            change: change.to_string(),
            settings: Vec::new(),
            source: format!("command line of {}", self.names.read_in),
        }
    }

    fn knows(&self, flag: &str) -> bool {
        self.names.flags.iter().any(|own| own == flag)
    }

    /// `-tp2`: a value that sticks to a short flag.
    fn stuck(&self, parser: Parser, taken: &mut Taken) {
        let split = |name: &str| -> Option<(String, String)> {
            if name.starts_with("--") || self.knows(name) || self.names.short.contains_key(name) {
                return None;
            }
            let end = name.find(|c: char| c.is_ascii_digit())?;
            let (flag, value) = (name.get(..end)?, name.get(end..)?);
            let number = value.bytes().all(|b| b.is_ascii_digit());
            (number && self.knows(flag)).then(|| (flag.to_string(), value.to_string()))
        };
        let mut kept = Vec::new();
        for mut flag in std::mem::take(&mut taken.invocation.flags) {
            let Some((short, value)) = split(&flag.name) else {
                kept.push(flag);
                continue;
            };
            let one_letter = short.len() == 2;
            if one_letter && flag.value.is_none() {
                flag.name = short;
                flag.value = Some(value);
                kept.push(flag);
            } else if parser == Parser::Argparse {
                taken.refused.push(self.refuses(
                    format!("{} is no flag: only a flag of one letter takes its value without a blank or '='", flag.name),
                    "put a blank between them".to_string(),
                    vec![format!("{short} {value}")],
                ));
            } else {
                kept.push(flag);
            }
        }
        taken.invocation.flags = kept;
    }

    fn underscores(&self, taken: &mut Taken) {
        if self.names.underscores {
            return;
        }
        let mut kept = Vec::new();
        for flag in std::mem::take(&mut taken.invocation.flags) {
            if flag.underscores && self.knows(&flag.name) {
                taken.refused.push(self.refuses(
                    format!(
                        "{} is written with underscores, which are no dashes here",
                        flag.name
                    ),
                    "write it with dashes".to_string(),
                    vec![flag.name.clone()],
                ));
            } else {
                kept.push(flag);
            }
        }
        taken.invocation.flags = kept;
    }

    /// Flags without a value: the last word counts, and a value is refused or is the model.
    fn switches(&self, taken: &mut Taken) {
        let mut kept: Vec<Flag> = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut moved: Vec<(String, String)> = Vec::new();
        // By long form: how it was written last, and whether that sets it.
        let mut last: BTreeMap<String, (String, bool)> = BTreeMap::new();
        for mut flag in std::mem::take(&mut taken.invocation.flags) {
            let Some(word) = self.names.switch(&flag.name) else {
                let positive = flag
                    .name
                    .strip_prefix("--no-")
                    .map(|rest| format!("--{rest}"));
                match positive.filter(|own| self.names.switches.contains(own)) {
                    Some(own) => taken.refused.push(self.refuses(
                        format!("{} is no flag: {own} has no opposite", flag.name),
                        format!("leave both out where {own} is not wanted"),
                        vec![format!("no {}", flag.name)],
                    )),
                    None => kept.push(flag),
                }
                continue;
            };
            match flag.value.take() {
                // What stands there is said to be missing.
                Some(value) if is_left_out(&value) => {}
                // Known to a running shell only: it may be more flags.
                Some(value) if !flag.joined && value.contains(['$', '`']) => {
                    taken.invocation.flags_open = true;
                }
                Some(value) if flag.joined => {
                    let off = match word.on && self.names.negatable.contains(&word.flag) {
                        true => format!(
                            " (--no-{} switches it off)",
                            word.flag.trim_start_matches("--")
                        ),
                        false => String::new(),
                    };
                    taken.refused.push(self.refuses(
                        format!("{}={value}: this flag takes no value", flag.name),
                        format!("give it without a value to set it, or leave it out{off}"),
                        vec![flag.name.clone()],
                    ));
                }
                Some(value) => moved.push((flag.name.clone(), value)),
                None => {}
            }
            match last.get(&word.flag) {
                Some((before, true)) if !word.on => taken.notes.push(self.note(
                    "undone-by-a-later-word",
                    Severity::Info,
                    format!(
                        "{before} is undone by {} behind it: the last word counts",
                        flag.name
                    ),
                    "leave out the one that is not meant",
                )),
                _ => {}
            }
            last.insert(word.flag.clone(), (flag.name.clone(), word.on));
            kept.retain(|own| own.name != word.flag);
            if word.on {
                flag.name = word.flag;
                kept.push(flag);
            }
        }
        let invocation = &mut taken.invocation;
        let named = invocation.led
            || self
                .launch
                .model
                .iter()
                .any(|name| kept.iter().any(|f| f.name == *name));
        for (flag, word) in moved {
            let room = match self.names.model_word {
                Some(ModelWord::Anywhere) => !named && words.is_empty(),
                Some(ModelWord::First) => false,
                // It was not read where other words go.
                None => true,
            };
            if room {
                words.push(word);
                continue;
            }
            let off = match self.names.negatable.contains(&flag) {
                true => format!(
                    "leave the word out; --no-{} switches it off",
                    flag.trim_start_matches("--")
                ),
                false => "leave the word out; the flag is off where it is not given".to_string(),
            };
            taken.refused.push(self.refuses(
                format!("{flag} takes no value, and '{word}' behind it is a word of its own that has no place"),
                off,
                vec![flag],
            ));
        }
        match invocation.led {
            true => invocation.positional.extend(words),
            false => invocation.positional.splice(0..0, words).for_each(drop),
        }
        invocation.flags = kept;
    }

    /// Flags that take a value and have none. Those of ranks are read where the ranks are counted.
    fn valueless(&self, taken: &mut Taken) {
        let kind = |flag: &Flag| {
            let settings = self.launch.settings();
            let own = settings
                .iter()
                .find(|s| s.flags.iter().any(|name| plain(name) == flag.name));
            own.map(|s| s.kind)
        };
        let mut kept = Vec::new();
        for flag in std::mem::take(&mut taken.invocation.flags) {
            let head = flag.name.split('.').next().unwrap_or_default();
            let takes_one = flag.value.is_none()
                && self.knows(head)
                && self.names.switch(head).is_none()
                && !self.names.optional.iter().any(|own| own == head);
            match kind(&flag) {
                Some(SettingKind::Value) if takes_one => taken.refused.push(self.refuses(
                    format!("{} is given without a value", flag.name),
                    "give it its value, or leave it out".to_string(),
                    vec![format!("{} VALUE", flag.name)],
                )),
                Some(SettingKind::Ranks) => kept.push(flag),
                _ if takes_one => {
                    taken.open.push(format!(
                        "{} is given without a value: {} refuses that of a flag that needs one, and whether this one does was not read",
                        flag.name, self.engine_name
                    ));
                    kept.push(flag);
                }
                _ => kept.push(flag),
            }
        }
        taken.invocation.flags = kept;
    }

    /// Values that are no JSON, or no number, where the engine takes nothing else.
    fn values(&self, taken: &mut Taken) {
        let is = |list: &[String], name: &str| list.iter().any(|own| own == name);
        let mut kept = Vec::new();
        for flag in std::mem::take(&mut taken.invocation.flags) {
            let name = self.names.short_objects.get(&flag.name);
            let name = name.unwrap_or(&flag.name).clone();
            let value = flag.value.clone().unwrap_or_default();
            let open = flag.value.is_none() || value.contains(['$', '`']) || is_left_out(&value);
            let number = value.trim().replace('_', "");
            let wanted = if open || flag.object.is_some() {
                None
            } else if is(&self.names.objects, &name) {
                let json = serde_json::from_str::<serde_json::Value>(&value);
                json.is_err()
                    .then_some(("JSON", "quote the object for the shell: '{\"key\": 1}'"))
            } else if is(&self.names.integers, &name) {
                let none = number.parse::<i64>().is_err();
                none.then_some(("a whole number", "give a whole number"))
            } else if is(&self.names.numbers, &name) {
                let none = number.parse::<f64>().is_err();
                none.then_some(("a number", "give a number"))
            } else {
                None
            };
            match wanted {
                Some((what, change)) => taken.refused.push(self.refuses(
                    format!("{} '{value}' is not {what}", flag.name),
                    change.to_string(),
                    Vec::new(),
                )),
                None => kept.push(flag),
            }
        }
        taken.invocation.flags = kept;
    }

    /// `-cc.mode 3` is `--compilation-config.mode 3`.
    fn short_objects(&self, taken: &mut Taken) {
        for flag in &mut taken.invocation.flags {
            let end = flag.name.find('.').unwrap_or(flag.name.len());
            let (head, keys) = flag.name.split_at(end);
            if let Some(long) = self.names.short_objects.get(head) {
                flag.name = format!("{long}{keys}");
            }
        }
    }

    /// Flags whose value is a JSON object: the last object counts whole, and single keys (--flag.key) make one of their own that
    /// takes its place.
    fn objects(&self, taken: &mut Taken) {
        let head = |flag: &Flag| -> Option<String> {
            flag.name.split_once('.').map(|(head, _)| head.to_string())
        };
        let flags = &taken.invocation.flags;
        let heads: BTreeSet<String> = flags.iter().filter_map(head).collect();
        for own in heads {
            let flags = &taken.invocation.flags;
            let wholes = flags
                .iter()
                .filter(|f| f.name == own && f.value.is_some())
                .count();
            let of = |f: &&Flag| head(f).as_deref() == Some(own.as_str());
            let single = flags.iter().filter(of).any(|f| f.object.is_none());
            let last = flags.iter().filter(of).filter_map(|f| f.object).max();
            if wholes < 2 && !(single && wholes > 0) {
                continue;
            }
            let stays = |f: &Flag| match (single, f.object) {
                (true, object) => object.is_none(),
                (false, object) => object == last,
            };
            let gone: Vec<String> = flags
                .iter()
                .filter(of)
                .filter(|f| !stays(f))
                .map(|f| f.name.clone())
                .filter(|name| !flags.iter().any(|f| f.name == *name && stays(f)))
                .collect();
            taken
                .invocation
                .flags
                .retain(|f| head(f).as_deref() != Some(own.as_str()) || stays(f));
            if !gone.is_empty() {
                taken.notes.push(self.note(
                    "object-given-twice",
                    Severity::Warning,
                    format!("{own} is given more than once: the last object takes the place of the others, and what they say is forgotten ({})", gone.join(", ")),
                    "write one object with all of it",
                ));
            }
        }
    }

    /// One setting with several values: the last counts.
    fn several(&self, taken: &mut Taken) {
        let settings = self.launch.settings();
        let one = settings.iter().filter(|s| s.kind != SettingKind::Other);
        let mut said: BTreeSet<&str> = BTreeSet::new();
        for names in one.map(|s| s.flags) {
            let own: Vec<&Flag> = taken
                .invocation
                .flags
                .iter()
                .filter(|f| names.iter().any(|name| plain(name) == f.name))
                .collect();
            let (Some(first), Some(last)) = (own.first(), own.last()) else {
                continue;
            };
            let differs = own.iter().any(|f| f.value != last.value);
            if !differs || !said.insert(names.first().map_or("", String::as_str)) {
                continue;
            }
            let told = |f: &Flag| match &f.value {
                Some(value) => format!("{} {value}", f.name),
                None => f.name.clone(),
            };
            taken.notes.push(self.note(
                "given-twice",
                Severity::Info,
                format!("{} and {}: the last one counts", told(first), told(last)),
                "leave out the one that is not meant",
            ));
        }
    }
}
