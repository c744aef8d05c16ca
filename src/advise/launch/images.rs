//! What a container starts: the entry point of its image, where that is known, or what is put in its place; and which words of
//! a container tool (docker, podman, nerdctl) say so. It knows no image but by its name.

use super::{
    devices::Given,
    read::{Engines, Invocation, guess, is_flag},
    script::Script,
    shell::{self, Word},
};

/// What a container begins with.
pub(super) enum Begun {
    /// An engine, with these arguments.
    Engine(String, Vec<Word>),
    /// A shell, with this script, and all words.
    Script(Word, Vec<Word>),
    /// Flags alone, for an entry point that nothing tells.
    Arguments(Vec<Word>),
    /// A program of its own.
    Program(Vec<Word>),
}

/// A container as its words give it.
#[derive(Default)]
pub(super) struct Container<'c> {
    pub(super) image: Option<&'c str>,
    /// What stands in place of the image's entry point; empty where that is taken away.
    pub(super) entry: Option<Vec<Word>>,
    pub(super) args: Vec<Word>,
    /// It is told here, and more of it elsewhere.
    pub(super) partial: bool,
}

/// What was read of one container or file.
#[derive(Default)]
pub(super) struct Launches {
    pub(super) found: Vec<Invocation>,
    /// Helpers by all signs, unless there is nothing else.
    pub(super) weak: Vec<Invocation>,
}

impl Container<'_> {
    /// What it begins with.
    pub(super) fn begun(&self, engines: &Engines) -> Begun {
        let argv = self.entry.iter().flatten().chain(&self.args);
        let argv: Vec<Word> = argv.cloned().collect();
        let started = engines.started(&argv);
        if let Some((at, script)) = shell_at(&argv)
            && started.as_ref().is_none_or(|(_, place)| at < *place)
            && let Some(script) = argv.get(script)
        {
            return Begun::Script(script.clone(), argv);
        }
        if let Some((engine, place)) = started {
            return Begun::Engine(engine, argv.get(place..).unwrap_or_default().to_vec());
        }
        if self.entry.is_none() {
            if let Some(engine) = self.image.and_then(|image| engines.entry_of(image)) {
                return Begun::Engine(engine, argv);
            }
            if argv.first().is_some_and(|w| is_flag(&w.text)) {
                return Begun::Arguments(argv);
            }
        }
        Begun::Program(argv)
    }

    /// Its launches. `base`: what is known of the container without them.
    pub(super) fn launches(
        &self,
        engines: &Engines,
        mut base: Invocation,
        into: &mut Launches,
    ) -> Result<(), shell::Unclosed> {
        let said = base.unread.len();
        let guessed = guess(&base.variables, engines);
        let of_image = self.image.and_then(|image| engines.of_image(image));
        // NCCL's variables stand beside every engine, and name none.
        let own = guessed.clone().filter(|id| id != "nccl");
        let many = match &base.devices {
            Some(Given::Count(count)) => *count > 1,
            Some(Given::Named(names)) => names.len() > 1,
            None => false,
        };
        let argv = match self.begun(engines) {
            Begun::Engine(engine, own) => {
                let switches = engines.ends_with_program(&engine);
                base.engine = Some(engine);
                base.flags_from(&own, switches.as_deref());
                into.found.push(base);
                return Ok(());
            }
            Begun::Script(script, argv) => {
                let mut inner = Script::new(engines, base.variables.clone());
                inner.does_not_know(&base.unknown);
                inner.run(&script.text, 1)?;
                let inner = inner.finish();
                if inner.iter().any(|one| !one.no_launch) {
                    // The commands are the script's; where they run is the container's.
                    for one in inner {
                        let mut unread = base.unread.clone();
                        unread.extend(one.unread);
                        into.found.push(Invocation {
                            place: base.place.clone(),
                            devices: base.devices.clone(),
                            isolated_shared_memory: base.isolated_shared_memory,
                            shared_memory: base.shared_memory,
                            variables_open: base.variables_open || one.variables_open,
                            unread,
                            ..one
                        });
                    }
                    return Ok(());
                }
                base.unread
                    .push("what its shell is given starts no engine that is known".to_string());
                argv
            }
            Begun::Arguments(argv) => {
                let flags = engines.of_flags(&argv, own.clone());
                let named = engines
                    .wanted()
                    .or_else(|| of_image.clone())
                    .or_else(|| engines.told())
                    .or(flags);
                if let Some(engine) = named {
                    let switches = engines.ends_with_program(&engine);
                    base.engine = Some(engine);
                    base.flags_from(&argv, switches.as_deref());
                    into.found.push(base);
                    return Ok(());
                }
                if guessed.is_some() || engines.has_flag_of(&argv) {
                    base.unread.push(nameless(&argv));
                }
                argv
            }
            Begun::Program(argv) => {
                let suspect = of_image.is_some() || own.is_some() || engines.has_ranks_of(&argv);
                if (suspect || many)
                    && let Some(first) = argv.first()
                {
                    base.unread.push(no_engine(&first.text));
                }
                argv
            }
        };
        base.no_launch = true;
        let told = base.unread.len() > said;
        let suspect = of_image.is_some() || many || self.partial || engines.has_ranks_of(&argv);
        base.engine = of_image.or(guessed);
        if suspect && !told {
            base.unread
                .push("what it starts is not in this text".to_string());
        }
        match base.engine.is_some() || suspect {
            true => into.found.push(base),
            false if told => into.weak.push(base),
            false => {}
        }
        Ok(())
    }
}

/// Why arguments are not judged.
pub(super) fn nameless(argv: &[Word]) -> String {
    let flags = argv.iter().filter(|w| is_flag(&w.text));
    let flags: Vec<&str> = flags.map(|w| w.text.as_str()).collect();
    format!(
        "its arguments ({}) stand without a command, and nothing names the engine that they are for: --engine NAME tells it",
        flags.join(" ")
    )
}

/// Why a program is not judged.
pub(super) fn no_engine(program: &str) -> String {
    format!(
        "it starts {program} in place of an engine, and what that starts is not in this text: give its command, or its script with --check-file"
    )
}

/// Where a shell stands that is given a script (`sh -c`, `bash -e -lc`), and where that script stands.
pub(super) fn shell_at(words: &[Word]) -> Option<(usize, usize)> {
    const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];
    words.iter().enumerate().find_map(|(at, word)| {
        let base = word.text.rsplit('/').next().unwrap_or_default();
        if !SHELLS.contains(&base) {
            return None;
        }
        let mut next = at + 1;
        loop {
            let option = words.get(next)?;
            let text = option.text.as_str();
            if !text.starts_with(['-', '+']) || text.starts_with("--") && text != "--login" {
                return None;
            }
            next += 1;
            if text.ends_with('c') {
                return Some((at, next));
            }
            // -o pipefail
            next += usize::from(text.ends_with('o'));
        }
    })
}

/// What a container tool is told to do.
#[derive(Debug, PartialEq)]
pub(super) enum Told {
    /// To start a container of an image.
    Run(Run),
    /// Something that starts nothing of an image.
    Nothing,
}

/// `docker run` as it reads its words.
#[derive(Debug, PartialEq)]
pub(super) struct Run {
    /// Where the image stands.
    pub(super) image: Option<usize>,
    /// What takes the place of the image's entry point.
    pub(super) entry: Option<Vec<Word>>,
    /// A word in front of the image may be options, or the image itself.
    pub(super) open: bool,
}

/// Whether a word is a program that starts containers of images, in whichever way.
pub(super) fn is_tool(word: &Word) -> bool {
    matches!(
        word.text.rsplit('/').next(),
        Some(
            "apptainer"
                | "singularity"
                | "kubectl"
                | "oc"
                | "ctr"
                | "docker"
                | "podman"
                | "nerdctl"
        )
    )
}

/// What a container tool among `words` does, where that is told by its own words.
pub(super) fn told(words: &[Word]) -> Option<Told> {
    const IDLE: [&str; 42] = [
        "pull", "build", "buildx", "builder", "tag", "push", "save", "load", "import", "export",
        "commit", "image", "images", "inspect", "history", "manifest", "rmi", "search", "ps",
        "logs", "stop", "kill", "rm", "wait", "cp", "network", "volume", "login", "logout",
        "system", "info", "version", "stats", "top", "port", "rename", "update", "attach",
        "events", "context", "trust", "scout",
    ];
    let at = words.iter().position(|w| {
        matches!(
            w.text.rsplit('/').next(),
            Some("docker" | "podman" | "nerdctl")
        )
    })?;
    let known = |w: &Word| {
        let text = w.text.as_str();
        IDLE.contains(&text) || matches!(text, "container" | "run" | "create" | "exec" | "start")
    };
    let mut next = at + 1;
    while words.get(next).is_some_and(|w| is_flag(&w.text)) {
        next += 1;
        // The value of a flag.
        next += usize::from(
            words
                .get(next)
                .is_some_and(|w| !is_flag(&w.text) && !known(w))
                && words
                    .get(next + 1)
                    .is_some_and(|w| is_flag(&w.text) || known(w)),
        );
    }
    if words.get(next)?.text == "container" {
        next += 1;
    }
    let verb = words.get(next)?.text.as_str();
    match verb {
        "run" | "create" => Some(Told::Run(run(words, next + 1))),
        idle if IDLE.contains(&idle) => Some(Told::Nothing),
        _ => None,
    }
}

/// Reads the options of `docker run` from `next` on.
fn run(words: &[Word], mut next: usize) -> Run {
    /// Long options without a value; all others take one.
    const SWITCHES: [&str; 24] = [
        "--rm",
        "--detach",
        "--interactive",
        "--tty",
        "--init",
        "--privileged",
        "--read-only",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--sig-proxy",
        "--publish-all",
        "--disable-content-trust",
        "--help",
        "--quiet",
        "--use-api-socket",
        "--replace",
        "--rmi",
        "--http-proxy",
        "--no-hosts",
        "--no-hostname",
        "--tls-verify",
        "--env-host",
        "--passwd",
        "--env-merge",
    ];
    let mut run = Run {
        image: None,
        entry: None,
        open: false,
    };
    let mut guess = None;
    while let Some(word) = words.get(next) {
        let text = word.text.as_str();
        if !is_flag(text) {
            if word.opaque && text.starts_with('$') {
                run.open = true;
                guess = guess.or(Some(next));
                next += 1;
                continue;
            }
            run.image = Some(next);
            return run;
        }
        next += 1;
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (text, None),
        };
        let takes = match name.strip_prefix("--") {
            Some(_) => joined.is_none() && !SWITCHES.contains(&name),
            // -it, -p8000:8000, -e NAME
            None => {
                let letters = text.get(1..).unwrap_or_default();
                letters.find(|c| !"ditPq".contains(c)) == Some(letters.len().saturating_sub(1))
            }
        };
        let value = match takes {
            true => {
                next += 1;
                words.get(next - 1).map(|w| w.text.clone())
            }
            false => joined,
        };
        if name == "--entrypoint" {
            let value = value.unwrap_or_default();
            let list: Vec<String> =
                serde_json::from_str(&value).unwrap_or_else(|_| vec![value.clone()]);
            let list = list.into_iter().filter(|part| !part.is_empty());
            let list = list.map(|text| Word {
                opaque: text.contains('$'),
                text,
                line: word.line,
            });
            run.entry = Some(list.collect());
        }
    }
    run.image = guess;
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::launch::shell::Values;

    fn words(text: &str) -> Vec<Word> {
        let all = shell::commands(text).unwrap();
        all[0].words(&Values::new())
    }

    #[test]
    fn only_some_words_of_a_container_tool_start_a_container() {
        for text in [
            "docker pull a",
            "sudo docker build -t a .",
            "docker image inspect a",
            "docker --context x tag a b",
            "/usr/bin/podman save a",
            "nerdctl -n k8s.io push a",
            "docker container logs a",
        ] {
            assert_eq!(told(&words(text)), Some(Told::Nothing), "{text}");
        }
        assert_eq!(told(&words("echo docker")), None);
        assert_eq!(told(&words("docker exec a b")), None);
        for (text, image) in [
            ("docker run img a", "img"),
            ("docker run -it --rm -p8000:8000 -e A=b -dit img a", "img"),
            (
                "docker container run --gpus all --ipc=host --name x img a",
                "img",
            ),
            ("podman --log-level debug create -v /a:/b --init img", "img"),
            ("docker run --ipc=host $OPTS img a", "img"),
            ("docker run $IMAGE --model a", "$IMAGE"),
            ("docker run --entrypoint bash img -c x", "img"),
        ] {
            let words = words(text);
            let Some(Told::Run(run)) = told(&words) else {
                panic!("{text}")
            };
            assert_eq!(
                run.image.map(|at| words[at].text.as_str()),
                Some(image),
                "{text}"
            );
        }
    }
}
