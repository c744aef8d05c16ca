//! The words of `--help`, at a width that does not depend on the terminal.

use crate::host::{peerproof, run};
use std::process::Command;

const COMMANDS: [&str; 15] = [
    "qualify",
    "map",
    "selftest",
    "bench",
    "recommend",
    "reduce",
    "measure",
    "diagnose",
    "diff",
    "bundle",
    "render",
    "verdict",
    "explain",
    "list",
    "demo",
];

fn help(arguments: &[&str]) -> String {
    let mut command = Command::new(peerproof());
    command
        .args(arguments)
        .arg("--help")
        .env("COLUMNS", "100")
        .env_remove("NO_COLOR");
    let run = run(command);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (Some(0), ""),
        "{arguments:?}"
    );
    for line in run.stdout.lines() {
        assert!(line.chars().count() <= 100, "{arguments:?}: {line}");
    }
    run.stdout
}

#[test]
fn help_of_every_command() {
    let all = help(&[]);
    let listed: Vec<&str> = all
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    // A command that another branch of work adds is tested, too, and gets its golden.
    for name in COMMANDS {
        assert!(listed.contains(&name), "{name} is not listed");
    }
    for name in listed {
        let text = help(&[name]);
        assert!(text.contains("Example"), "{name} shows no example");
        for sentence in descriptions(&text) {
            let ends = sentence.matches(". ").count();
            assert_eq!(ends, 0, "{name}: more than one sentence: {sentence}");
        }
        insta::assert_snapshot!(format!("help_{name}"), text);
    }
    insta::assert_snapshot!("help_peerproof", all);
}

/// What is said of each option and argument.
fn descriptions(text: &str) -> Vec<String> {
    let options = text
        .lines()
        .skip_while(|line| *line != "Options:" && *line != "Arguments:");
    let (mut all, mut one) = (Vec::new(), String::new());
    for line in options.take_while(|line| !line.starts_with("Example")) {
        // clap puts what it adds itself behind a blank line.
        if let Some(words) = line.strip_prefix("          ") {
            one.push_str(words);
            one.push(' ');
        } else if !one.is_empty() {
            all.push(std::mem::take(&mut one).trim().to_string());
        }
    }
    all
}
