//! No GPU, and wrong command lines: one clear message, the right exit code.

use crate::host::{Host, Run, peerproof, run};
use std::process::Command;

/// peerproof on this machine, with an empty root: no GPU, whatever the machine has.
fn without_gpu(arguments: &[&str]) -> Run {
    let empty = tempfile::tempdir().unwrap();
    for folder in ["sys/bus/pci/devices", "proc", "dev"] {
        std::fs::create_dir_all(empty.path().join(folder)).unwrap();
    }
    let mut command = Command::new(peerproof());
    command
        .arg("--root")
        .arg(empty.path())
        .args(arguments)
        // A driver of this machine is not to be found either.
        .env("LD_LIBRARY_PATH", empty.path());
    run(command)
}

fn one_line(run: &Run) -> &str {
    assert_eq!(run.stdout, "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.starts_with("peerproof: "), "{}", run.stderr);
    &run.stderr
}

#[test]
fn without_a_gpu_it_says_what_was_looked_for_and_how_to_see_the_demo() {
    for arguments in [&["qualify", "--no-file"][..], &["selftest"], &["bench"]] {
        let run = without_gpu(arguments);
        assert_eq!(run.code, Some(3), "{}", run.stderr);
        let line = one_line(&run);
        for words in [
            "no NVIDIA GPU",
            "10de",
            "/sys/bus/pci/devices",
            "NVML",
            "peerproof demo",
        ] {
            assert!(line.contains(words), "{words:?} not in {line:?}");
        }
    }
    let scenario = Host::new("opaque-vm").set("gpus=[]").set("nvlink.links=0");
    let run = scenario.run(&["qualify", "--no-file"]);
    assert_eq!(run.code, Some(3), "{}\n{}", run.stdout, run.stderr);
    assert!(one_line(&run).contains("no NVIDIA GPU"));
}

#[test]
fn wrong_words_are_answered_with_the_right_ones() {
    let host = Host::new("opaque-vm");
    for (arguments, words) in [
        (
            &["--mechanism", "ce-pusch"][..],
            &["--mechanism", "'ce-pusch'", "ce-push", "sm-load"][..],
        ),
        (&["--gpus", "5"], &["--gpus", "'5'", "0000:00:06.0"]),
        (&["--gpus", "0,GPU-nonsense"], &["--gpus", "'GPU-nonsense'"]),
        (&["--pairs", "0>0"], &["--pairs", "'0>0'", "2>5"]),
        (&["--pairs", "0>7"], &["--pairs", "'0>7'"]),
        (&["--pairs", "first"], &["--pairs", "'first'"]),
        (
            &["--gpus", "0", "--pairs", "0>1"],
            &["--pairs", "'0>1'", "chosen"],
        ),
    ] {
        let mut all = vec!["qualify", "--no-file"];
        all.extend(arguments);
        let run = host.run(&all);
        assert_eq!(run.code, Some(64), "{arguments:?}\n{}", run.stderr);
        let line = one_line(&run);
        for word in words {
            assert!(line.contains(word), "{word:?} not in {line:?}");
        }
    }
}

#[test]
fn files_that_cannot_be_read_are_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let absent = folder
        .path()
        .join("absent.json")
        .to_str()
        .unwrap()
        .to_string();
    let newer = file("newer.json", br#"{"schema_version": 99, "records": []}"#);
    let other = file("other.json", br#"{"name": "some other tool"}"#);
    let torn = file("torn.json", br#"{"schema_version": 1, "tool_"#);
    let binary = file("binary.json", &[0xff, 0xfe, 0x00, 0x80]);
    for (path, words) in [
        (&absent, &["absent.json", "o such file"][..]),
        (&newer, &["newer.json", "99", "newer"]),
        (&other, &["other.json", "schema_version"]),
        (&torn, &["torn.json", "line 1 column"]),
        (&binary, &["binary.json"]),
    ] {
        for command in ["recommend", "map"] {
            let mut line = Command::new(peerproof());
            line.args([command, "--from", path]);
            if command == "recommend" {
                line.args([
                    "--engine", "vllm", "--hidden", "4096", "--tp", "2", "--batch", "8",
                ]);
            }
            let run = run(line);
            assert_eq!(run.code, Some(64), "{command} {path}\n{}", run.stderr);
            let said = one_line(&run);
            if command == "recommend" {
                for word in words {
                    assert!(said.contains(word), "{word:?} not in {said:?}");
                }
            }
        }
    }
}

#[test]
fn unknown_options_and_commands_are_usage_errors() {
    for arguments in [
        &["qualify", "--nonsense"][..],
        &["nonsense"],
        &[],
        &["qualify", "--out", "x.json", "--no-file"],
        &["recommend", "--engine", "vllm", "--tp", "2", "--batch", "8"],
        &[
            "recommend",
            "--engine",
            "vllm",
            "--hidden",
            "0",
            "--tp",
            "2",
            "--batch",
            "8",
        ],
    ] {
        let mut command = Command::new(peerproof());
        command.args(arguments);
        let run = run(command);
        assert_eq!(run.code, Some(64), "{arguments:?}\n{}", run.stderr);
        assert_eq!(run.stdout, "", "{arguments:?}");
        assert!(!run.stderr.is_empty(), "{arguments:?}");
    }
}

/// Every cause that a report can name has its page, and the next command that a verdict prints is one that exists.
#[test]
fn explain_knows_every_cause() {
    let list = without_gpu(&["list"]);
    let causes: Vec<&str> = list
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("causes"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(causes.len() >= 8, "{causes:?}");
    for cause in causes {
        let page = without_gpu(&["explain", cause]);
        assert_eq!(page.code, Some(0), "{cause}");
        assert!(
            page.stdout.starts_with(&format!("# {cause}: ")),
            "{}",
            page.stdout
        );
    }
    let unknown = without_gpu(&["explain", "gremlins"]);
    assert_eq!(unknown.code, Some(64));
    assert!(
        unknown.stderr.contains("no cause 'gremlins'"),
        "{}",
        unknown.stderr
    );
}
