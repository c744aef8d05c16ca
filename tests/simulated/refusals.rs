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

/// What is there is announced to be replaced by a run that nothing refuses any more, and not before.
#[test]
fn a_refusal_replaces_nothing_and_announces_nothing() {
    const OLD: &str = "{\n  \"schema_version\": 1,\n  \"tool_version\": \"0.0.1\"\n}\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.json");
    std::fs::write(&path, OLD).unwrap();
    let name = path.to_str().unwrap();
    let host = Host::new("opaque-vm");
    let mut runs = vec![without_gpu(&["qualify", "--out", name])];
    for arguments in [
        &["qualify", "--out", name, "--gpus", "9"][..],
        &[
            "qualify",
            "--out",
            name,
            "--mechanism",
            "ce-push",
            "--gpus",
            "0",
        ],
        &["qualify", "--out", name, "--mechanism", "ce-pusch"],
        &["reduce", "--report", name, "--gpus", "9"],
        &["measure", "--report", name, "--gpus", "9"],
    ] {
        runs.push(host.run(arguments));
    }
    for run in runs {
        assert!(
            matches!(run.code, Some(3 | 64)),
            "{:?}\n{}",
            run.code,
            run.stderr
        );
        assert!(!run.stderr.contains("replaced"), "{}", run.stderr);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), OLD);
    }
    let run = host.run(&["qualify", "--quick", "--out", name]);
    let told = format!("{name} exists and will be replaced");
    assert!(run.stderr.contains(&told), "{}", run.stderr);
    assert_ne!(std::fs::read_to_string(&path).unwrap(), OLD);
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
        (&["--pairs", "0>0"], &["--pairs", "'0>0'", "'2->5'"]),
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
fn what_is_hidden_is_not_suggested() {
    for arguments in [&["qualify", "--report", "x"][..], &["map", "--rooot", "x"]] {
        let mut command = Command::new(peerproof());
        command.args(arguments);
        let run = run(command);
        assert_eq!(run.code, Some(64), "{}", run.stderr);
        assert!(!run.stderr.contains("--root"), "{}", run.stderr);
    }
    // What is not hidden still is.
    let mut command = Command::new(peerproof());
    command.args(["qualify", "--quik"]);
    let run = run(command);
    assert!(run.stderr.contains("--quick"), "{}", run.stderr);
}

#[test]
fn a_mechanism_of_which_nothing_can_run_is_a_usage_error() {
    let host = Host::new("opaque-vm");
    let run = host.run(&[
        "qualify",
        "--no-file",
        "--mechanism",
        "ce-push",
        "--gpus",
        "0",
    ]);
    assert_eq!(run.code, Some(64), "{}\n{}", run.stdout, run.stderr);
    let line = one_line(&run);
    for words in ["ce-push", "between two GPUs", "only GPU0"] {
        assert!(line.contains(words), "{line}");
    }
}

/// A verdict that has expired or was altered is not taken for one that holds.
#[test]
fn verdicts_that_expired_or_contradict_themselves() {
    let report = Host::new("opaque-vm").qualify(&["--quick", "--mechanism", "bounce"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("verdict.json");
    let show = |until: &str, change: &dyn Fn(String) -> String| {
        let file = peerproof::render::verdict_file::VerdictFile::of(&report, until.to_string());
        let mut text = Vec::new();
        file.write(&mut text).unwrap();
        std::fs::write(&path, change(String::from_utf8(text).unwrap())).unwrap();
        let mut command = Command::new(peerproof());
        command.arg("verdict").arg(&path);
        run(command)
    };
    let as_it_is = |text: String| text;
    let code = report.verdict.grading.exit_code();
    let holds = show("2999-01-01T00:00:00Z", &as_it_is);
    assert_eq!(holds.code, Some(i32::from(code)), "{}", holds.stdout);
    assert!(!holds.stdout.contains("EXPIRED"));
    let over = show("2020-01-01T00:00:00Z", &as_it_is);
    assert!(
        over.stdout.contains("EXPIRED: it held until 2020-01-01"),
        "{}",
        over.stdout
    );
    assert_eq!(over.code, Some(3), "{}", over.stdout);
    let other = (code + 1) % 3;
    let altered = show("2999-01-01T00:00:00Z", &|text: String| {
        text.replace(
            &format!("\"exit_code\": {code}"),
            &format!("\"exit_code\": {other}"),
        )
    });
    assert_eq!(altered.code, Some(64), "{}", altered.stdout);
    assert!(
        one_line(&altered).contains("contradicts itself"),
        "{}",
        altered.stderr
    );
}

/// The announced end holds with a pair that hangs.
#[test]
fn the_announced_time_is_kept_when_a_copy_hangs() {
    const FACTOR: f64 = 2.0;
    let host = Host::new("opaque-vm")
        .set("deadline_factor=2")
        .fault("0>1:ce_push=hang");
    let started = std::time::Instant::now();
    let output = host
        .command(&[
            "qualify",
            "--no-file",
            "--quick",
            "--mechanism",
            "bounce,ce-push",
        ])
        .output()
        .unwrap();
    let took = started.elapsed().as_secs_f64();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let number = |before: &str, after: &str| -> f64 {
        let rest = said.split_once(before).unwrap().1;
        rest.split_once(after).unwrap().0.trim().parse().unwrap()
    };
    let last = number("no case begins after", "s, and");
    let more = number("then may take", "s more");
    assert!(last > 0.0 && more > 10.0, "{said}");
    assert!(!said.contains("at most"), "{said}");
    // The look-alike multiplies wall limits by its own factor.
    let bound = (last + more) * FACTOR;
    assert!(took < bound, "{took:.0} s, announced {bound:.0} s");
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
