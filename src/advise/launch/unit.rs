//! A systemd unit: the variables that systemd hands to what it starts, and the commands of its service, which no shell reads.

use super::{
    document::{Unread, unread},
    read::{Engines, Invocation, assignment, guess},
    script::Script,
    shell::Word,
};
use std::collections::BTreeMap;

/// A setting of a section.
struct Setting {
    line: usize,
    name: String,
    value: String,
}

/// A command of a setting.
struct Command {
    words: Vec<Word>,
    /// Why it is none that can be read.
    said: Option<String>,
}

/// Whether a text is a unit: it has a section of one.
pub(super) fn is_one(text: &str) -> bool {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|l| !l.is_empty() && !l.starts_with(['#', ';']))
        .take(1)
        .any(|l| matches!(l, "[Unit]" | "[Service]" | "[Install]" | "[Container]"))
}

/// What its service starts.
pub(super) fn launches(text: &str, engines: &Engines) -> Result<Vec<Invocation>, Unread> {
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    let mut unknown: BTreeMap<String, String> = BTreeMap::new();
    let mut unset: Vec<String> = Vec::new();
    let mut files: Vec<String> = Vec::new();
    let mut commands: Vec<Setting> = Vec::new();
    for one in settings(text)? {
        let (line, value) = (one.line, one.value.as_str());
        match one.name.as_str() {
            "Environment" if value.is_empty() => {
                variables.clear();
                unknown.clear();
            }
            "Environment" => {
                for word in words(value, line)? {
                    let Some((name, value)) = assignment(&word) else {
                        let what = format!("'{word}' is no NAME=value");
                        return Err(unread(line, &what));
                    };
                    unknown.remove(name);
                    let (plain, open) = specifiers(value);
                    if open {
                        let said = format!(
                            "'{word}' on line {line} is filled in by systemd: write its value out"
                        );
                        unknown.insert(name.to_string(), said);
                    }
                    variables.insert(name.to_string(), plain);
                }
            }
            "PassEnvironment" => {
                for name in words(value, line)? {
                    if !variables.contains_key(&name) {
                        let said = format!(
                            "{name} is handed on from systemd's own environment (PassEnvironment on line {line}): its value is not in this text"
                        );
                        unknown.insert(name, said);
                    }
                }
            }
            "UnsetEnvironment" if value.is_empty() => unset.clear(),
            "UnsetEnvironment" => unset.extend(words(value, line)?),
            "EnvironmentFile" if value.is_empty() => files.clear(),
            "EnvironmentFile" => files.push(value.trim_start_matches('-').to_string()),
            "ExecStart" | "ExecStartPre" | "ExecStartPost" if value.is_empty() => {
                commands.retain(|own| own.name != one.name);
            }
            "ExecStart" | "ExecStartPre" | "ExecStartPost" => commands.push(one),
            _ => {}
        }
    }
    for word in &unset {
        let (name, only) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        if only.is_none() || only == variables.get(name).map(String::as_str) {
            variables.remove(name);
            unknown.remove(name);
        }
    }
    let mut script = Script::new(engines, variables.clone());
    script.does_not_know(&unknown);
    let mut main = None;
    for one in &commands {
        let starts = one.name == "ExecStart";
        for Command { words, said } in lines_of(one, &variables, &unknown)? {
            if starts && main.is_none() {
                main = Some((
                    one.line,
                    words.first().map_or(String::new(), |w| w.text.clone()),
                ));
            }
            let known = script.count();
            script.argv(&words).map_err(|e| unread(one.line, e.what))?;
            if let Some(said) = said {
                script.not_read(one.line, None, said);
            } else if starts
                && script.count() == known
                && let Some(engine) = guess(&variables, engines)
            {
                // Variables of an engine stand in the unit, so that what it starts may be one.
                let program = words.first().map_or("", |w| w.text.as_str());
                script.not_read(one.line, Some(engine), no_engine(program));
            }
        }
    }
    let mut found = script.finish();
    if found.is_empty() {
        if let Some((line, program)) = main {
            found.push(Invocation {
                place: format!("line {line}"),
                no_launch: true,
                unread: vec![no_engine(&program)],
                ..Invocation::default()
            });
        } else if !variables.is_empty() {
            // A part of a unit, which is laid over another.
            let mut plain = String::new();
            for (name, value) in &variables {
                plain.push_str(&format!("{name}='{}'\n", value.replace('\'', "'\\''")));
            }
            let mut script = Script::new(engines, BTreeMap::new());
            script.does_not_know(&unknown);
            script.run(&plain, 0).map_err(|e| unread(e.line, e.what))?;
            found = script.finish();
        }
    }
    for one in &mut found {
        for file in &files {
            one.variables_open = true;
            one.unread.push(format!(
                "the variables of {file}, which go before those of the unit: check it with --check-file"
            ));
        }
    }
    Ok(found)
}

/// The settings of a unit, continued lines joined.
fn settings(text: &str) -> Result<Vec<Setting>, Unread> {
    let mut all = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut service = false;
    while let Some((at, raw)) = lines.next() {
        let line = at + 1;
        let mut whole = raw.trim().to_string();
        if whole.is_empty() || whole.starts_with(['#', ';']) {
            continue;
        }
        if whole.starts_with('[') {
            if whole == "[Container]" {
                return Err(unread(
                    line,
                    "a container unit of podman is not read: give the 'podman run' that it stands for",
                ));
            }
            service = whole == "[Service]";
            continue;
        }
        while let Some(body) = whole.strip_suffix('\\') {
            whole = format!("{body} ");
            let next = lines.by_ref().map(|(_, l)| l.trim());
            match next.into_iter().find(|l| !l.starts_with(['#', ';'])) {
                Some(next) => whole.push_str(next),
                None => return Err(unread(line, "the file ends in a backslash: give all of it")),
            }
        }
        let Some((name, value)) = whole.split_once('=') else {
            return Err(unread(line, "no 'Name=value' of a systemd unit"));
        };
        if service {
            all.push(Setting {
                line,
                name: name.trim().to_string(),
                value: value.trim().to_string(),
            });
        }
    }
    Ok(all)
}

/// The commands of an Exec setting as their words, with what cannot be read of each.
fn lines_of(
    one: &Setting,
    variables: &BTreeMap<String, String>,
    unknown: &BTreeMap<String, String>,
) -> Result<Vec<Command>, Unread> {
    let line = one.line;
    let body = one.value.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    let prefix = one
        .value
        .get(..one.value.len() - body.len())
        .unwrap_or_default();
    let mut all = Vec::new();
    for command in words(body, line)?.split(|word| word == ";") {
        let mut own: Vec<Word> = Vec::new();
        for (at, text) in command.iter().enumerate() {
            // "@": the second word is the name that the program is told to have.
            if at == 1 && prefix.contains('@') && all.is_empty() {
                continue;
            }
            let plain = at == 0 || prefix.contains(':');
            own.extend(expanded(text, line, plain, variables, unknown));
        }
        let said = own.first().filter(|w| assignment(&w.text).is_some()).map(|w| {
            format!(
                "'{}' on line {line} is taken for the program: systemd sets no variables there; put it into Environment=",
                w.text
            )
        });
        if !own.is_empty() {
            all.push(Command { words: own, said });
        }
    }
    Ok(all)
}

/// A word with its variables: `$NAME` alone is split at blanks, `${NAME}` is filled in where it stands.
fn expanded(
    text: &str,
    line: usize,
    plain: bool,
    variables: &BTreeMap<String, String>,
    unknown: &BTreeMap<String, String>,
) -> Vec<Word> {
    let (text, mut opaque) = specifiers(text);
    let word = |text: String, opaque: bool| Word { text, line, opaque };
    if plain {
        return vec![word(text, opaque)];
    }
    let is_name = |name: &str| !name.is_empty() && assignment(&format!("{name}=")).is_some();
    let value = |name: &str| {
        variables
            .get(name)
            .filter(|_| !unknown.contains_key(name))
            .cloned()
    };
    if let Some(name) = text.strip_prefix('$').filter(|name| is_name(name)) {
        return match value(name) {
            Some(value) => {
                let parts = value.split_whitespace();
                parts.map(|part| word(part.to_string(), opaque)).collect()
            }
            None => vec![word(text.clone(), true)],
        };
    }
    let mut all = String::new();
    let mut rest = text.as_str();
    while let Some((head, tail)) = rest.split_once('$') {
        all.push_str(head);
        if let Some(tail) = tail.strip_prefix('$') {
            all.push('$');
            rest = tail;
            continue;
        }
        let braced = tail.strip_prefix('{').and_then(|t| t.split_once('}'));
        match braced.filter(|(name, _)| is_name(name)) {
            Some((name, behind)) => {
                match value(name) {
                    Some(value) => all.push_str(&value),
                    None => {
                        opaque = true;
                        all.push_str(&format!("${{{name}}}"));
                    }
                }
                rest = behind;
            }
            None => {
                all.push('$');
                rest = tail;
            }
        }
    }
    all.push_str(rest);
    vec![word(all, opaque)]
}

/// `%%` as a percent sign, and whether something else behind one is filled in by systemd.
fn specifiers(text: &str) -> (String, bool) {
    let rest = text.replace("%%", "");
    let mut behind = rest.match_indices('%').map(|(at, _)| rest.get(at + 1..));
    let open = behind.any(|b| b.is_some_and(|b| b.starts_with(|c: char| c.is_ascii_alphabetic())));
    (text.replace("%%", "%"), open)
}

/// Words as systemd splits them: at blanks, with quotes and backslashes taken away.
fn words(text: &str, line: usize) -> Result<Vec<String>, Unread> {
    let mut all = Vec::new();
    let mut open: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                open.get_or_insert_default();
            }
            (_, '\\') => {
                let word = open.get_or_insert_default();
                match chars.next() {
                    Some('n') => word.push('\n'),
                    Some('t') => word.push('\t'),
                    Some('s') => word.push(' '),
                    Some(c @ ('x' | 'u' | 'U' | '0'..='7')) => {
                        let what = format!("the escape '\\{c}' is not read: write the character");
                        return Err(unread(line, &what));
                    }
                    Some(c) => word.push(c),
                    None => {}
                }
            }
            (None, c) if c.is_whitespace() => all.extend(open.take()),
            (_, c) => open.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(unread(line, "a quote without its end"));
    }
    all.extend(open);
    Ok(all)
}

/// Why a program is not judged.
fn no_engine(program: &str) -> String {
    format!("ExecStart={program} starts no engine that is known: give its script with --check-file")
}
