//! The words of `--help`, at a width that does not depend on the terminal.

use crate::host::{peerproof, run};
use std::process::Command;

#[test]
fn help_of_every_command() {
    for (name, arguments) in [
        ("peerproof", &["--help"][..]),
        ("qualify", &["qualify", "--help"]),
        ("map", &["map", "--help"]),
        ("selftest", &["selftest", "--help"]),
        ("bench", &["bench", "--help"]),
        ("measure", &["measure", "--help"]),
        ("recommend", &["recommend", "--help"]),
        ("diff", &["diff", "--help"]),
        ("bundle", &["bundle", "--help"]),
        ("verdict", &["verdict", "--help"]),
        ("explain", &["explain", "--help"]),
        ("list", &["list", "--help"]),
        ("demo", &["demo", "--help"]),
    ] {
        let mut command = Command::new(peerproof());
        command
            .args(arguments)
            .env("COLUMNS", "100")
            .env_remove("NO_COLOR");
        let run = run(command);
        assert_eq!(run.code, Some(0), "{name}");
        assert_eq!(run.stderr, "", "{name}");
        for line in run.stdout.lines() {
            assert!(line.chars().count() <= 100, "{name}: {line}");
        }
        insta::assert_snapshot!(format!("help_{name}"), run.stdout);
    }
}
