//! A Dockerfile: what a container of the image that it builds starts, by its last stage. Nothing that runs while the image is
//! built counts, and what `docker run` adds is not in it.

use super::{
    document::{Unread, unread},
    images::{Container, Launches},
    read::{Engines, Invocation, assignment, only_a_shell},
    shell::{Unclosed, Word},
};
use std::collections::BTreeMap;

/// One instruction, continued lines joined.
struct Instruction {
    line: usize,
    name: String,
    rest: String,
}

/// What a stage hands on.
#[derive(Clone, Default)]
struct Stage {
    image: Option<String>,
    variables: BTreeMap<String, String>,
    unknown: BTreeMap<String, String>,
    args: BTreeMap<String, Option<String>>,
    entry: Option<Vec<Word>>,
    /// Its entry point is a shell's, which takes no arguments.
    whole: bool,
    command: Option<Vec<Word>>,
    /// The command is the shell form.
    in_shell: Option<usize>,
    /// The command stands in this stage.
    own_command: bool,
}

/// Whether a text is a Dockerfile: its first instruction is FROM, or ARG with FROM behind it.
pub(super) fn is_one(text: &str) -> bool {
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    let from = lines.find(|line| !line.to_ascii_uppercase().starts_with("ARG "));
    let words: Vec<&str> = from.unwrap_or_default().split_whitespace().collect();
    let Some((first, rest)) = words.split_first() else {
        return false;
    };
    let mut rest: Vec<&str> = rest.to_vec();
    rest.retain(|word| !word.starts_with("--"));
    first.eq_ignore_ascii_case("from")
        && match rest.as_slice() {
            [_] => true,
            [_, by, _] => by.eq_ignore_ascii_case("as"),
            _ => false,
        }
}

/// What the last stage starts.
pub(super) fn launches(text: &str, engines: &Engines, into: &mut Launches) -> Result<(), Unread> {
    let mut outer: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut stages: Vec<(String, Stage)> = Vec::new();
    for one in instructions(text)? {
        let (line, rest) = (one.line, one.rest.as_str());
        let Some((_, stage)) = stages.last_mut().filter(|_| one.name != "FROM") else {
            match one.name.as_str() {
                "FROM" => stages.push(from(line, rest, &outer, &stages)?),
                "ARG" => args(rest, line, &mut outer)?,
                other => {
                    let what = format!("{other} stands in front of the first FROM");
                    return Err(unread(line, &what));
                }
            }
            continue;
        };
        match one.name.as_str() {
            "ARG" => args(rest, line, &mut stage.args)?,
            "ENV" => env(rest, line, stage)?,
            "ENTRYPOINT" => {
                let (words, in_shell) = form(rest, line);
                stage.entry = Some(words);
                stage.whole = in_shell;
                if !stage.own_command {
                    stage.command = None;
                    stage.in_shell = None;
                }
            }
            "CMD" => {
                let (words, in_shell) = form(rest, line);
                stage.command = Some(words);
                stage.in_shell = in_shell.then_some(line);
                stage.own_command = true;
            }
            "RUN" | "LABEL" | "MAINTAINER" | "EXPOSE" | "ADD" | "COPY" | "VOLUME" | "USER"
            | "WORKDIR" | "ONBUILD" | "STOPSIGNAL" | "HEALTHCHECK" | "SHELL" => {}
            other => {
                let what = format!("'{other}' is no instruction of a Dockerfile");
                return Err(unread(line, &what));
            }
        }
    }
    let Some((name, stage)) = stages.pop() else {
        return Ok(());
    };
    let mut base = Invocation {
        place: match name.is_empty() {
            true => "Dockerfile".to_string(),
            false => format!("Dockerfile, stage {name}"),
        },
        variables: stage.variables,
        unknown: stage.unknown,
        ..Invocation::default()
    };
    let image = stage.image.as_deref();
    let behind = stage.entry.is_some() || image.is_some_and(|i| engines.entry_of(i).is_some());
    if let Some(line) = stage.in_shell.filter(|_| behind && !stage.whole) {
        base.unread.push(format!(
            "CMD on line {line} is no list, so that '/bin/sh -c' and its text are handed to the entry point as arguments: write it as [\"word\", \"word\"]"
        ));
    }
    let container = Container {
        image,
        args: match stage.whole {
            true => Vec::new(),
            false => stage.command.unwrap_or_default(),
        },
        entry: stage.entry,
        partial: false,
    };
    let found = container.launches(engines, base, into);
    found.map_err(|Unclosed { line, what }| unread(line, what))
}

/// The instructions of a Dockerfile, without the documents behind them.
fn instructions(text: &str) -> Result<Vec<Instruction>, Unread> {
    let mut all = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, raw)) = lines.next() {
        let line = at + 1;
        let mut whole = raw.trim().to_string();
        if whole.is_empty() || whole.starts_with('#') {
            let directive: String = whole.to_lowercase().split_whitespace().collect();
            if all.is_empty() && directive == "#escape=`" {
                return Err(unread(
                    line,
                    "a Dockerfile with 'escape=`' is not read: write it with backslashes",
                ));
            }
            continue;
        }
        while let Some(body) = whole.strip_suffix('\\') {
            whole = body.to_string();
            // Comments and empty lines inside of an instruction are none of it.
            let next = lines.by_ref().map(|(_, l)| l.trim());
            let next = next
                .into_iter()
                .find(|l| !l.is_empty() && !l.starts_with('#'));
            match next {
                Some(next) => whole.push_str(next),
                None => return Err(unread(line, "the file ends in a backslash: give all of it")),
            }
        }
        let (name, rest) = whole
            .split_once(char::is_whitespace)
            .unwrap_or((&whole, ""));
        let name = name.to_ascii_uppercase();
        if matches!(name.as_str(), "RUN" | "COPY" | "ADD") {
            for end in documents(rest) {
                let closes = |l: &str| l.trim_start_matches('\t') == end;
                if lines.by_ref().all(|(_, l)| !closes(l)) {
                    let what = format!("<<{end} without its end");
                    return Err(unread(line, &what));
                }
            }
        }
        all.push(Instruction {
            line,
            name,
            rest: rest.trim().to_string(),
        });
    }
    Ok(all)
}

/// Words that end the documents of an instruction.
fn documents(rest: &str) -> Vec<String> {
    let words = rest.match_indices("<<").map(|(at, _)| {
        let word = rest
            .get(at + 2..)
            .unwrap_or_default()
            .trim_start_matches('-');
        let word = word.trim_start_matches(['"', '\'']);
        let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        word.get(..end.unwrap_or(word.len()))
            .unwrap_or_default()
            .to_string()
    });
    words
        .filter(|w| w.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
        .collect()
}

/// A stage, begun from an image or from a stage above it.
fn from(
    line: usize,
    rest: &str,
    outer: &BTreeMap<String, Option<String>>,
    stages: &[(String, Stage)],
) -> Result<(String, Stage), Unread> {
    let words: Vec<&str> = rest
        .split_whitespace()
        .filter(|w| !w.starts_with("--"))
        .collect();
    let (image, name) = match words.as_slice() {
        [image] => (*image, ""),
        [image, by, name] if by.eq_ignore_ascii_case("as") => (*image, *name),
        _ => return Err(unread(line, "FROM takes an image, and a name behind AS")),
    };
    let known: BTreeMap<String, String> = outer
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
        .collect();
    let Some(image) = filled(image, &known) else {
        let what =
            format!("FROM {image}: which image that is is known to the build only: write it out");
        return Err(unread(line, &what));
    };
    let above = stages
        .iter()
        .rev()
        .find(|(name, _)| name.eq_ignore_ascii_case(&image));
    let mut stage = match above {
        Some((_, stage)) => stage.clone(),
        None => Stage {
            image: Some(image),
            ..Stage::default()
        },
    };
    stage.args.clear();
    stage.own_command = false;
    Ok((name.to_string(), stage))
}

fn args(
    rest: &str,
    line: usize,
    into: &mut BTreeMap<String, Option<String>>,
) -> Result<(), Unread> {
    for word in words(rest, line)? {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word.as_str(), None),
        };
        into.insert(name.to_string(), value);
    }
    Ok(())
}

fn env(rest: &str, line: usize, stage: &mut Stage) -> Result<(), Unread> {
    let list = words(rest, line)?;
    let pairs: Vec<(String, String)> = match list.first().map(|w| assignment(w).is_some()) {
        Some(true) => {
            let pairs = list.iter().map(|w| {
                let (name, value) = assignment(w)?;
                Some((name.to_string(), value.to_string()))
            });
            let pairs: Option<Vec<_>> = pairs.collect();
            pairs.ok_or_else(|| unread(line, "ENV takes NAME=value, each in one word"))?
        }
        _ => {
            let (name, value) = rest
                .split_once(char::is_whitespace)
                .ok_or_else(|| unread(line, "ENV without a value"))?;
            let value = words(value, line)?.join(" ");
            vec![(name.to_string(), value)]
        }
    };
    let before = stage.variables.clone();
    for (name, value) in pairs {
        stage.unknown.remove(&name);
        let text = filled(&value, &before);
        if text.is_none() {
            let said = format!(
                "{} (an ARG can be another at each build)",
                only_a_shell(&format!("ENV {name}={value}"), line)
            );
            stage.unknown.insert(name.clone(), said);
        }
        stage.variables.insert(name, text.unwrap_or(value));
    }
    Ok(())
}

/// The list form as its words; the shell form as the shell that it is given to, and whether it is that.
fn form(rest: &str, line: usize) -> (Vec<Word>, bool) {
    let word = |text: &str| Word {
        text: text.to_string(),
        line,
        // No shell fills it in. A script in one word is read as one, where each of its words is looked at.
        opaque: text.contains('$') && !text.contains(char::is_whitespace),
    };
    match serde_json::from_str::<Vec<String>>(rest) {
        Ok(list) => (list.iter().map(|text| word(text)).collect(), false),
        Err(_) => (vec![word("/bin/sh"), word("-c"), word(rest)], true),
    }
}

/// Words with their quotes and backslashes taken away.
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
            (None | Some('"'), '\\') => match chars.next() {
                // It stays a dollar, and is none that is filled in.
                Some('$') => open.get_or_insert_default().push('\u{0}'),
                Some(c) => open.get_or_insert_default().push(c),
                None => {}
            },
            (None, c) if c.is_whitespace() => all.extend(open.take()),
            (Some('\''), '$') => open.get_or_insert_default().push('\u{0}'),
            (_, c) => open.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(unread(line, "a quote without its end"));
    }
    all.extend(open);
    Ok(all)
}

/// `$NAME`, `${NAME}` and `${NAME:-text}` filled in; `None` where something is not known.
fn filled(text: &str, known: &BTreeMap<String, String>) -> Option<String> {
    let mut all = String::new();
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once('$') {
        all.push_str(head);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (inside, behind) = match tail.strip_prefix('{') {
            Some(tail) => tail.split_once('}')?,
            None => tail.split_at(tail.find(|c| !is_name(c)).unwrap_or(tail.len())),
        };
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default.to_string())),
            None => (inside, None),
        };
        all.push_str(&known.get(name).cloned().or(default)?);
        rest = behind;
    }
    all.push_str(rest);
    Some(all.replace('\u{0}', "$"))
}
