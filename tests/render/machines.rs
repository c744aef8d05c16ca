//! The forms that machines read: JUnit, Prometheus' text, the drain line. Golden texts of several kinds of report; each is read
//! by a strict reader of this file's own, and by xmllint and promtool where they are installed.

use super::{Answer, all_zeroed, corrupt, gap, hosts, intact, ladder, run};
use insta::assert_snapshot;
use peerproof::{
    model::{
        case::{Outcome, Rung, WrongKind},
        finding::{Judgement, Severity},
        ladder::Step,
        pair::{GpuIndex, OrderedPair},
        reduction::{Arrangement, Dtype, Launch, Reduction},
        report::{Grading, Report},
        snapshot::Authenticity,
    },
    render::{drain, junit, prometheus},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    process::{Command, Stdio},
};

fn verdict(mut report: Report, grading: Grading, headline: &str) -> Report {
    report.verdict.grading = grading;
    report.verdict.headline = headline.to_string();
    report
}

/// A mechanism and what it gives; all others are intact.
fn but(wanted: &'static str, outcome: impl Fn(OrderedPair) -> Outcome + 'static) -> Answer {
    Box::new(move |pair, mechanism| match mechanism == wanted {
        true => outcome(pair),
        false => Outcome::Intact,
    })
}

fn simulated_zeroed() -> Report {
    let mut snapshot = hosts::virtual_machine();
    snapshot.authenticity = Authenticity::Simulated;
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "bounce" | "staged" => Outcome::Intact,
        _ => corrupt(WrongKind::Zeroed, pair),
    });
    let mut report = run(snapshot, &answer);
    let mut held = hosts::finding("iommu-translation", "IOMMU", Judgement::Indicted);
    held.pairs = OrderedPair::all(2).collect();
    report.findings.push(held);
    report.verdict.worst_pair = OrderedPair::new(0, 1);
    verdict(
        report,
        Grading::Fail,
        "zeroed: 2 of 2 ordered pairs, worst 0->1 by ce-push",
    )
}

/// A hang, and a worker that died on the way back.
fn hung() -> Report {
    let hung = OrderedPair::new(0, 1).unwrap();
    let report = run(
        hosts::virtual_machine(),
        &but("sm-load", move |pair| match pair == hung {
            true => Outcome::TimedOut { after_ms: 4000 },
            false => Outcome::Died {
                how: "signal 9 (SIGKILL)".to_string(),
            },
        }),
    );
    let mut report = verdict(report, Grading::Fail, "hang: 0->1 by sm-load at rung 3");
    report.verdict.worst_pair = Some(hung);
    report
}

fn gaps() -> Report {
    let report = run(
        hosts::virtual_machine(),
        &but("sm-load", |_| Outcome::NotRun {
            reason: "the time limit of the quick budget, 40 s, was reached".to_string(),
        }),
    );
    let headline = "2 of 18 planned cases did not run; what ran is right";
    let mut report = verdict(report, Grading::Inconclusive, headline);
    report.coverage.not_run = vec![gap(
        "the time limit of the quick budget, 40 s, was reached",
        2,
    )];
    report.ladder = vec![Step {
        mechanism: "resident".to_string(),
        rung: Rung::Resident,
    }];
    report.interrupted = true;
    report
}

fn refused() -> Report {
    let answer: Answer = Box::new(|_, mechanism| match mechanism {
        "bounce" | "staged" => Outcome::Intact,
        "sm-load" => Outcome::NotApplicable {
            reason: "peer access is refused".to_string(),
        },
        _ => Outcome::Refused {
            api: "cuCtxEnablePeerAccess".to_string(),
            code: 217,
            name: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED".to_string(),
        },
    });
    run(hosts::virtual_machine(), &answer)
}

/// Slow, and nothing wrong; an all-reduce besides.
fn warned() -> Report {
    let report = run(hosts::virtual_machine(), &intact());
    let headline = "data is right (2 of 2 pairs); a link runs below its rate";
    let mut report = verdict(report, Grading::Warn, headline);
    let mut slow = hosts::finding("link-downtrained", "link", Judgement::Indicted);
    slow.severity = Severity::Warning;
    slow.gpus = vec![GpuIndex(1)];
    report.findings.push(slow);
    report.reductions = [
        Outcome::Intact,
        corrupt(WrongKind::Stale, OrderedPair::new(0, 1).unwrap()),
    ]
    .into_iter()
    .enumerate()
    .map(|(at, outcome)| Reduction {
        algorithm: "one-shot-pull".to_string(),
        gpus: vec![0, 1],
        arrangement: Arrangement::ProcessPerGpu,
        dtype: Dtype::Bf16,
        bytes: 8192 << at,
        in_place: false,
        launch: Launch::Graph,
        outcome,
        calls: 100,
        time: None,
        transport: None,
        notes: Vec::new(),
    })
    .collect();
    report
}

fn alone() -> Report {
    let mut report = run(hosts::one_gpu(), &intact());
    let record = &mut report.records[1];
    record.outcome = Outcome::Faulted {
        api: "cuMemcpyHtoDAsync".to_string(),
        code: 719,
        name: "CUDA_ERROR_LAUNCH_FAILED".to_string(),
    };
    record.rate = None;
    verdict(report, Grading::Fail, "GPU0 host-to-device: fault")
}

/// All-reduces that are right on every pair and half, and never end on all GPUs.
fn group_never() -> Report {
    ladder::reduced(hosts::nvswitch(), |group| match group.count() {
        8 => ladder::rank_never_came(),
        _ => Outcome::Intact,
    })
}

fn nothing() -> Report {
    let mut report = run(hosts::no_gpu(), &intact());
    report.selftest = None;
    report.coverage.seen_fault_rate = None;
    verdict(report, Grading::Inconclusive, "no NVIDIA GPU found")
}

fn kinds() -> Vec<(&'static str, Report)> {
    let deep = ladder::climb(
        hosts::virtual_machine(),
        &intact(),
        &ladder::right_under_load(),
    );
    vec![
        ("healthy", run(hosts::virtual_machine(), &intact())),
        ("deep", deep),
        ("simulated_zeroed", simulated_zeroed()),
        ("hung", hung()),
        ("gaps", gaps()),
        ("refused", refused()),
        ("warned", warned()),
        ("alone", alone()),
        ("group_never", group_never()),
        ("nothing", nothing()),
    ]
}

fn as_junit(report: &Report) -> String {
    let mut out = Vec::new();
    junit::write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn as_metrics(report: &Report) -> String {
    let mut out = Vec::new();
    prometheus::write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Runs a program over `text`; `None` where it is not installed, which is said.
fn judged_by(program: &str, arguments: &[&str], text: &str) -> Option<(bool, String)> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("{program} is not installed: only this test's own reader judged");
        return None;
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), said.into_owned()))
}

/// Name, group and state of each case, after everything that a reader relies on was checked.
fn read_junit(text: &str) -> Vec<(String, String, &'static str)> {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/junit.xsd");
    if let Some((valid, said)) = judged_by("xmllint", &["--noout", "--schema", schema, "-"], text) {
        assert!(valid, "{said}\n{text}");
    }
    let document = roxmltree::Document::parse(text).unwrap();
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let number = |node: roxmltree::Node<'_, '_>, name: &str| -> usize {
        node.attribute(name).unwrap().parse().unwrap()
    };
    let mut cases = Vec::new();
    let mut totals = [0; 3];
    for suite in root.children().filter(roxmltree::Node::is_element) {
        assert_eq!(suite.tag_name().name(), "testsuite");
        let mut counted = [0; 4];
        let mut names = BTreeSet::new();
        for case in suite.children().filter(|n| n.has_tag_name("testcase")) {
            let inside: Vec<&str> = case
                .children()
                .filter(roxmltree::Node::is_element)
                .map(|n| n.tag_name().name())
                .collect();
            let state = match inside.as_slice() {
                [] | ["system-out"] => "passed",
                ["failure"] => "failure",
                ["error"] => "error",
                ["skipped"] => "skipped",
                other => panic!("{other:?} in a case"),
            };
            counted[0] += 1;
            match state {
                "failure" => counted[1] += 1,
                "error" => counted[2] += 1,
                "skipped" => counted[3] += 1,
                _ => {}
            }
            let trouble = case.children().find(roxmltree::Node::is_element);
            if state != "passed" {
                assert_ne!(trouble.unwrap().attribute("message"), Some(""), "{text}");
            }
            let name = case.attribute("name").unwrap();
            assert!(names.insert(name), "{name} twice");
            let class = case.attribute("classname").unwrap();
            cases.push((class.to_string(), name.to_string(), state));
        }
        for (name, count) in ["tests", "failures", "errors", "skipped"]
            .iter()
            .zip(counted)
        {
            assert_eq!(
                number(suite, name),
                count,
                "{name} of {:?}",
                suite.attribute("name")
            );
        }
        for (total, count) in totals.iter_mut().zip(counted) {
            *total += count;
        }
    }
    for (name, total) in ["tests", "failures", "errors"].iter().zip(totals) {
        assert_eq!(number(root, name), total, "{name}");
    }
    cases
}

/// One series: labels and value.
type Series = (BTreeMap<String, String>, f64);

/// Metrics and their series, after everything that the exposition format demands was checked.
fn read_metrics(text: &str) -> BTreeMap<String, Vec<Series>> {
    assert!(text.ends_with('\n') && !text.contains('\r'));
    if let Some((valid, said)) = judged_by("promtool", &["check", "metrics"], text) {
        assert!(valid && said.trim().is_empty(), "{said}\n{text}");
    }
    let name_of = |word: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(
            word.starts_with("peerproof_") && word.chars().all(fits),
            "{word}"
        );
        word.to_string()
    };
    let mut metrics: BTreeMap<String, Vec<Series>> = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line
            .strip_prefix("# HELP ")
            .unwrap()
            .split_once(' ')
            .unwrap();
        assert!(!help.is_empty() && help.ends_with('.'), "{line}");
        assert_eq!(lines.next(), Some(format!("# TYPE {name} gauge").as_str()));
        let series = metrics.entry(name_of(name)).or_default();
        assert!(series.is_empty(), "{name} twice");
        while let Some(line) = lines.next_if(|l| !l.starts_with('#')) {
            let (labels, value) = line
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('{'))
                .and_then(|rest| rest.rsplit_once("} "))
                .unwrap_or_else(|| panic!("{line}"));
            let labels: BTreeMap<String, String> = labels
                .split(',')
                .map(|label| {
                    let (name, value) = label.split_once("=\"").unwrap();
                    let value = value.strip_suffix('"').unwrap();
                    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:+".contains(c);
                    assert!(value.chars().all(plain) && value.len() <= 48, "{line}");
                    (name.to_string(), value.to_string())
                })
                .collect();
            assert!(labels.contains_key("authenticity"), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite());
            assert!(!series.iter().any(|(l, _)| *l == labels), "{line} twice");
            series.push((labels, value));
        }
        assert!(!series.is_empty(), "{name} has no series");
    }
    metrics
}

#[test]
fn junit_of_every_kind_of_report() {
    for (name, report) in kinds() {
        let text = as_junit(&report);
        let cases = read_junit(&text);
        // Whoever reads only this must see what the exit code says.
        let bad = cases
            .iter()
            .any(|(_, _, s)| ["failure", "error"].contains(s));
        let grading = report.verdict.grading;
        assert_eq!(bad, grading.exit_code() > 1 || name == "warned", "{name}");
        assert_snapshot!(format!("junit_{name}"), text);
    }
}

#[test]
fn metrics_of_every_kind_of_report() {
    for (name, report) in kinds() {
        let text = as_metrics(&report);
        let metrics = read_metrics(&text);
        let ones = metrics["peerproof_verdict"]
            .iter()
            .filter(|(_, v)| *v == 1.0);
        let ones: Vec<&str> = ones.map(|(l, _)| l["verdict"].as_str()).collect();
        assert_eq!(ones, [report.verdict.grading.word()], "{name}");
        let started = metrics["peerproof_run_timestamp_seconds"][0].1;
        assert_eq!(started, 1_767_323_045.0);
        // Measured in GB/s of 1e9 bytes.
        if name == "healthy" {
            let rates = &metrics["peerproof_pair_bytes_per_second"];
            assert_eq!(rates.len(), 4);
            assert!(rates.iter().all(|(_, v)| (5e10..5.4e10).contains(v)));
        }
        assert_snapshot!(format!("prometheus_{name}"), text);
    }
}

/// Every pair of a large host has its case and its series, and no more.
#[test]
fn sixteen_gpus_are_counted_right() {
    let report = run(hosts::sixteen(), &intact());
    let cases = read_junit(&as_junit(&report));
    let pairs = cases
        .iter()
        .filter(|(class, ..)| class.ends_with(".ce-push"));
    assert_eq!(pairs.count(), 240);
    assert!(cases.iter().all(|(_, _, state)| *state == "passed"));
    let metrics = read_metrics(&as_metrics(&report));
    assert_eq!(metrics["peerproof_pair_rung_reached"].len(), 240);
    let all: usize = metrics.values().map(Vec::len).sum();
    assert!(all < 1200, "{all} series");
}

#[test]
fn what_is_simulated_says_so_everywhere() {
    for authenticity in [Authenticity::Simulated, Authenticity::FaultInjected] {
        for mut report in [
            all_zeroed(hosts::rtx_pro()),
            run(hosts::one_gpu(), &intact()),
        ] {
            report.authenticity = authenticity;
            let word = match authenticity {
                Authenticity::Simulated => "SIMULATED",
                _ => "FAULT-INJECTED",
            };
            let text = as_junit(&report);
            for (class, ..) in read_junit(&text) {
                assert!(class.starts_with(&format!("peerproof-{word}.")), "{class}");
            }
            let suites = text.matches("<testsuite ").count();
            assert_eq!(
                text.matches(&format!("<testsuite name=\"{word} ")).count(),
                suites
            );
            for (labels, _) in read_metrics(&as_metrics(&report)).values().flatten() {
                assert_eq!(labels["authenticity"], word);
            }
            assert!(drain::of(&report).starts_with(&format!("peerproof: {word} ")));
        }
    }
}

#[test]
fn drain_lines() {
    let mut lines = String::new();
    for (name, report) in kinds() {
        let line = drain::of(&report);
        assert!(line.len() < 80, "{line}");
        lines.push_str(&format!("{name:<18}{line}\n"));
    }
    let many = drain::of(&all_zeroed(hosts::rtx_pro()));
    lines.push_str(&format!("{:<18}{many}\n", "zeroed"));
    assert_snapshot!("drain_lines", lines);
}

/// Whatever a device or a file names itself: one valid document, bounded labels, a line that no shell can run.
#[test]
fn hostile_names_stay_text() {
    let evil =
        "\u{1b}[2J\"'><!--]]>&x;\u{ffff}\u{202e}\r\n$(reboot)`id`".to_string() + &"x".repeat(5000);
    let mut value = serde_json::to_value(all_zeroed(hosts::rtx_pro())).unwrap();
    super::poison(&mut value, &evil);
    let report: Report = serde_json::from_value(value).unwrap();
    let text = as_junit(&report);
    let document = roxmltree::Document::parse(&text).unwrap();
    let messages: Vec<&str> = document
        .descendants()
        .filter_map(|n| n.attribute("message"))
        .collect();
    assert!(messages.iter().any(|m| m.contains("$(reboot)")));
    read_metrics(&as_metrics(&report));
    let line = drain::of(&report);
    assert!(line.len() < 80);
    assert!(!line.contains(['\'', '"', '$', '`', '\\', '\n']), "{line}");
}
