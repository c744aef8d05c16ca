//! Which variables reach a program through the commands in front of it: `sudo`, `env -i`, `docker exec` and their like begin with
//! an environment of their own.

use super::{
    read::{assignment, is_flag, only_a_shell},
    shell::Word,
};
use std::collections::BTreeMap;

/// What a program gets.
#[derive(Clone, Default)]
pub(super) struct Handed {
    pub(super) variables: BTreeMap<String, String>,
    /// Set outside, and not handed on: by what.
    pub(super) lost: BTreeMap<String, String>,
    /// Variables of which it is not known whether, or with which value, they arrive.
    pub(super) unknown: BTreeMap<String, String>,
    /// It has variables that the text does not hold: from where.
    pub(super) open: Vec<String>,
}

impl Handed {
    fn set(&mut self, name: &str, value: &str, word: &Word) {
        self.lost.remove(name);
        self.unknown.remove(name);
        if word.opaque {
            let said = only_a_shell(&word.text, word.line);
            self.unknown.insert(name.to_string(), said);
        }
        self.variables.insert(name.to_string(), value.to_string());
    }

    /// Begins with an environment of its own, but for the names in `kept`; `sure`: that is no matter of a configuration.
    fn clear(&mut self, by: &Word, what: &str, kept: &[&str], sure: bool) {
        let names: Vec<String> = self
            .variables
            .keys()
            .chain(self.unknown.keys())
            .cloned()
            .collect();
        for name in names.into_iter().filter(|n| !kept.contains(&n.as_str())) {
            self.variables.remove(&name);
            self.unknown.remove(&name);
            if sure {
                self.lost.insert(name, what.to_string());
            } else {
                let said = format!(
                    "{name} stands outside {what} on line {}, which hands it on only where it is configured to: give it behind {what}",
                    by.line
                );
                self.unknown.insert(name, said);
            }
        }
    }

    /// An option that sets NAME=value, or hands NAME on from `outer`.
    fn option(&mut self, given: &str, word: &Word, outer: &Handed) {
        match assignment(given) {
            Some((name, value)) => self.set(name, value, word),
            None => {
                if let Some(value) = outer.variables.get(given) {
                    self.lost.remove(given);
                    self.variables.insert(given.to_string(), value.clone());
                }
                if let Some(said) = outer.unknown.get(given) {
                    self.unknown.insert(given.to_string(), said.clone());
                }
            }
        }
    }
}

/// The value of one of `names`, in the word at `at` or behind it.
fn value<'a>(words: &'a [Word], at: usize, names: &[&str]) -> Option<(&'a str, &'a Word)> {
    let word = words.get(at)?;
    if names.contains(&word.text.as_str()) {
        let next = words.get(at + 1)?;
        return Some((next.text.as_str(), next));
    }
    let (option, value) = word.text.split_once('=')?;
    names.contains(&option).then_some((value, word))
}

/// What stands behind `words`, the commands and options in front of a program, gets. `opaque`: variables whose value is not
/// known.
pub(super) fn handed(
    words: &[Word],
    exported: &BTreeMap<String, String>,
    opaque: &BTreeMap<String, String>,
) -> Handed {
    const VALUES_OF_SUDO: [&str; 12] = [
        "-u", "-g", "-h", "-p", "-C", "-T", "-R", "-D", "-r", "-t", "--user", "--group",
    ];
    const VALUES_OF_SSH: [&str; 12] = [
        "-p", "-i", "-l", "-o", "-F", "-J", "-L", "-R", "-D", "-W", "-b", "-c",
    ];
    let mut own = Handed {
        variables: exported.clone(),
        ..Handed::default()
    };
    for (name, said) in opaque
        .iter()
        .filter(|(name, _)| exported.contains_key(*name))
    {
        own.unknown.insert(name.clone(), said.clone());
        if exported.get(name).is_some_and(String::is_empty) {
            own.variables.remove(name);
        }
    }
    // Assignments stand at the head of a command, and of what sudo and env start.
    let mut head = true;
    let mut outer = Handed::default();
    let mut options: &[&str] = &[];
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let base = word.text.rsplit('/').next().unwrap_or_default();
        let rest = words.get(at + 1..).unwrap_or_default();
        let behind = |wanted: &str| rest.iter().take(3).any(|w| w.text == wanted);
        let flags = rest
            .iter()
            .take_while(|w| is_flag(&w.text) || w.text == "-");
        at += 1;
        match base {
            _ if head && assignment(&word.text).is_some() => {
                if let Some((name, value)) = assignment(&word.text) {
                    own.set(name, value, word);
                }
            }
            "sudo" | "doas" | "pkexec" => {
                let mut kept: Vec<&str> = Vec::new();
                let mut all = false;
                while let Some(option) = words.get(at).filter(|w| is_flag(&w.text)) {
                    let text = option.text.as_str();
                    let cluster = !text.starts_with("--") && text.contains('E');
                    all |= text == "--preserve-env" || (base == "sudo" && cluster);
                    if let Some(list) = text.strip_prefix("--preserve-env=") {
                        kept.extend(list.split(','));
                    }
                    at += 1 + usize::from(VALUES_OF_SUDO.contains(&text));
                }
                if !all {
                    own.clear(word, base, &kept, false);
                }
                head = true;
            }
            "env" => {
                while let Some(option) = words.get(at).filter(|w| w.text.starts_with('-')) {
                    let text = option.text.as_str();
                    at += 1;
                    match text {
                        "-" | "-i" | "--ignore-environment" => own.clear(word, "env -i", &[], true),
                        "-u" | "--unset" => {
                            if let Some(name) = words.get(at) {
                                own.variables.remove(&name.text);
                                own.unknown.remove(&name.text);
                            }
                            at += 1;
                        }
                        "-C" | "--chdir" => at += 1,
                        _ => {
                            if let Some(name) = text.strip_prefix("--unset=") {
                                own.variables.remove(name);
                                own.unknown.remove(name);
                            }
                        }
                    }
                }
                head = true;
            }
            "docker" | "podman" | "nerdctl" | "kubectl" | "oc" if behind("exec") => {
                outer = own.clone();
                let what = format!("{base} exec");
                own.clear(word, &what, &[], true);
                own.open.push(format!(
                    "{what} on line {}: the variables that the container was made with are not in this text; add them with -e NAME=value",
                    word.line
                ));
                options = &["-e", "--env"];
                head = false;
            }
            "apptainer" | "singularity" if behind("exec") || behind("run") || behind("shell") => {
                let image = |w: &Word| {
                    [".sif", ".simg"].iter().any(|end| w.text.ends_with(end))
                        || w.text.contains("://")
                };
                let own_options: Vec<&Word> = rest.iter().take_while(|w| !image(w)).collect();
                let empty = own_options.iter().find(|w| {
                    matches!(w.text.as_str(), "-e" | "--cleanenv" | "-C" | "--containall")
                });
                let inner = |(name, value): (&String, &String)| {
                    let bare = name
                        .strip_prefix("APPTAINERENV_")
                        .or_else(|| name.strip_prefix("SINGULARITYENV_"))?;
                    Some((bare.to_string(), value.clone()))
                };
                let given: Vec<(String, String)> = own.variables.iter().filter_map(inner).collect();
                if let Some(option) = empty {
                    let what = format!("{base} {}", option.text);
                    own.clear(word, &what, &[], true);
                }
                for (name, value) in given {
                    own.lost.remove(&name);
                    own.variables.insert(name, value);
                }
                for i in 0..own_options.len() {
                    if let Some((list, from)) = value(rest, i, &["--env"]) {
                        for (name, value) in list.split(',').filter_map(assignment) {
                            own.set(name, value, from);
                        }
                    }
                }
                head = false;
            }
            "ray"
                if rest
                    .iter()
                    .take(2)
                    .map(|w| w.text.as_str())
                    .eq(["job", "submit"]) =>
            {
                own.clear(word, "ray job submit", &[], false);
                own.open.push(format!(
                    "ray job submit on line {} starts it with the variables of the cluster's node, and of --runtime-env-json",
                    word.line
                ));
                head = true;
                at += 2;
            }
            "tmux" => {
                own.clear(word, base, &[], false);
                own.open.push(format!(
                    "tmux on line {} starts it with the variables of its server, which may be older than these lines",
                    word.line
                ));
                head = false;
            }
            "lxc" | "incus" if behind("exec") => {
                own.clear(word, base, &[], false);
                head = false;
            }
            "setpriv" if rest.iter().any(|w| w.text == "--reset-env") => {
                own.clear(word, "setpriv --reset-env", &[], true);
                head = false;
            }
            "exec"
                if flags
                    .clone()
                    .any(|w| !w.text.starts_with("--") && w.text.contains('c')) =>
            {
                own.clear(word, "exec -c", &[], true);
                while words.get(at).is_some_and(|w| is_flag(&w.text)) {
                    at += 1;
                }
            }
            "systemd-run" if !rest.iter().any(|w| w.text == "--scope") => {
                outer = own.clone();
                own.clear(word, base, &[], true);
                options = &["-E", "--setenv"];
                head = false;
            }
            "srun" => {
                for i in 0..rest.len() {
                    let Some((list, _)) = value(rest, i, &["--export"]) else {
                        continue;
                    };
                    let names: Vec<&str> = list.split(',').collect();
                    if !names.contains(&"ALL") {
                        own.clear(word, "srun --export", &names, true);
                    }
                    for (name, value) in names.iter().filter_map(|n| assignment(n)) {
                        own.set(name, value, word);
                    }
                }
                head = false;
            }
            "ssh" => {
                own.clear(word, base, &[], false);
                own.open.push(format!(
                    "ssh on line {} starts it on another host, with the variables of that one: whether the report is of it is not known here",
                    word.line
                ));
                while let Some(option) = words.get(at).filter(|w| is_flag(&w.text)) {
                    at += 1 + usize::from(VALUES_OF_SSH.contains(&option.text.as_str()));
                }
                at += 1;
                head = true;
            }
            "su" | "runuser" | "machinectl" => {
                if base == "machinectl"
                    || flags
                        .clone()
                        .any(|w| matches!(w.text.as_str(), "-" | "-l" | "--login"))
                {
                    own.clear(word, base, &[], false);
                    own.open.push(format!(
                        "{base} on line {}: variables of a login of that user",
                        word.line
                    ));
                }
                head = false;
            }
            "--env-file" => own.open.push(format!(
                "the variables of {}: check it with --check-file",
                rest.first().map_or("a file", |w| w.text.as_str())
            )),
            "if" | "then" | "else" | "elif" | "do" | "!" | "time" | "exec" | "nohup"
            | "command" | "while" | "until" | "{" | "setsid" | "--" => {}
            _ => {
                if let Some((given, from)) = value(words, at - 1, options) {
                    own.option(given, from, &outer);
                }
                head = false;
            }
        }
    }
    own
}
