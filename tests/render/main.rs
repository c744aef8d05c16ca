//! Golden texts of the renderers for synthetic hosts, at 80 and 160 columns, pages and tickets, and the saved forms.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod compare;
mod forms;
mod hosts;
mod ladder;
mod machines;
mod reduced;
mod saved;

use hosts::{Answer, all_zeroed, corrupt, gap, run};
use insta::assert_snapshot;
use peerproof::model::{
    case::{Outcome, WrongKind},
    finding::{ConsumerState, Judgement},
    measurement::{Measurement, Unit},
    pair::OrderedPair,
    report::{Bench, BenchRow, Grading, Report, Verdict},
    snapshot::{Authenticity, Snapshot},
};
use peerproof::render::{self, Options, bench, map, recommend, selftest, terminal};
use terminal::{Closing, Saved};

fn options(width: usize) -> Options {
    Options {
        width,
        color: false,
    }
}

fn mapped(snapshot: &Snapshot, width: usize) -> String {
    let mut out = Vec::new();
    map::write(snapshot, &options(width), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn closing() -> Closing {
    Closing {
        timings: false,
        saved: Saved::To("peerproof-hgx-07-20260102T030405Z.json".to_string()),
    }
}

fn told(report: &Report, width: usize) -> String {
    let mut out = Vec::new();
    terminal::write(report, &closing(), &options(width), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    fits(&text, width);
    text
}

/// Every golden that is made for 80 columns has no wider line; paths and commands cannot be broken.
#[test]
fn goldens_of_80_columns_fit_80_columns() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut seen = 0;
    for folder in ["render/snapshots", "snapshots"] {
        for entry in std::fs::read_dir(tests.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            if folder == "render/snapshots" && !name.ends_with("_80.snap") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let body = text.splitn(3, "---\n").nth(2).unwrap();
            for line in body.lines().filter(|l| l.chars().count() > 80) {
                let quoted = line
                    .split_whitespace()
                    .any(|word| word.chars().count() > 60 || word.contains('/'));
                assert!(quoted, "{name}: {line}");
            }
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

/// No line is wider than the terminal, except text to paste and words that cannot be broken.
fn fits(text: &str, width: usize) {
    for line in text.lines() {
        assert!(
            line.chars().count() <= width,
            "{} columns: {line}",
            line.chars().count()
        );
        assert_eq!(line, line.trim_end(), "blanks at the end of a line");
    }
}

fn intact() -> Answer {
    Box::new(|_, _| Outcome::Intact)
}

#[test]
fn maps() {
    for (name, snapshot) in [
        ("nvswitch", hosts::nvswitch()),
        ("rtx_pro", hosts::rtx_pro()),
        ("pasted", hosts::pasted()),
        ("vm", hosts::virtual_machine()),
        ("sixteen", hosts::sixteen()),
        ("one_gpu", hosts::one_gpu()),
        ("no_gpu", hosts::no_gpu()),
    ] {
        for width in [80, 160] {
            let text = mapped(&snapshot, width);
            fits(&text, width);
            assert_snapshot!(format!("map_{name}_{width}"), text);
        }
    }
}

#[test]
fn a_healthy_host_is_short() {
    let report = run(hosts::nvswitch(), &intact());
    for width in [80, 160] {
        let text = told(&report, width);
        assert!(text.lines().count() <= 42, "{} lines", text.lines().count());
        assert_snapshot!(format!("qualify_nvswitch_healthy_{width}"), text);
    }
}

#[test]
fn all_pairs_zeroed_under_a_simulated_driver() {
    let report = all_zeroed(hosts::rtx_pro());
    for width in [80, 160] {
        let text = told(&report, width);
        assert!(text.starts_with("SIMULATED"));
        assert!(text.contains("all 56 ordered pairs"));
        assert_snapshot!(format!("qualify_rtx_pro_zeroed_{width}"), text);
    }
}

#[test]
fn one_hang_leaves_the_others_judged() {
    let hung = OrderedPair::new(2, 5).unwrap();
    let answer: Answer = Box::new(move |pair, mechanism| match mechanism {
        "sm-load" if pair == hung => Outcome::TimedOut { after_ms: 4000 },
        _ => Outcome::Intact,
    });
    let mut report = run(hosts::nvswitch(), &answer);
    report.verdict = Verdict {
        grading: Grading::Fail,
        headline: "hang: 1 of 56 ordered pairs, 2->5 by sm-load at rung 3".to_string(),
        cause: "not known; no cause fits a single hang".to_string(),
        next: "peerproof qualify --pairs 2:5 --mechanism sm-load".to_string(),
        worst_pair: Some(hung),
        reason: None,
    };
    report.consumers[0].state = ConsumerState::Vetoed;
    report.consumers[0].sentence = "vetoed by pair 2->5 at rung 3".to_string();
    for record in &mut report.records {
        if record.case.mechanism == "ce-push" && record.case.subject.pair() == Some(hung.reversed())
        {
            record.notes = vec!["rate above the link's ceiling".to_string()];
        }
    }
    let environment = ("NCCL_P2P_LEVEL".to_string(), "SYS".to_string());
    report.snapshot.environment = vec![environment];
    for width in [80, 160] {
        assert_snapshot!(format!("qualify_hang_{width}"), told(&report, width));
    }
}

#[test]
fn a_mirror_shows_both_views() {
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "ce-push" | "sm-store" => corrupt(WrongKind::Mirrored, pair),
        "sm-load" => Outcome::NotRun {
            reason: "unsafe after rung 2".to_string(),
        },
        _ => Outcome::Intact,
    });
    let mut report = run(hosts::virtual_machine(), &answer);
    report.coverage.not_run = vec![gap("unsafe after rung 2", 2)];
    report.verdict = Verdict {
        grading: Grading::Fail,
        headline: "mirrored: 2 of 2 ordered pairs, worst 0->1 by ce-push at rung 2".to_string(),
        cause: "probably the hypervisor does not deliver peer writes".to_string(),
        next: "ask the provider for GPUDirect P2P cliques".to_string(),
        worst_pair: OrderedPair::new(0, 1),
        reason: None,
    };
    for width in [80, 160] {
        assert_snapshot!(format!("qualify_vm_mirrored_{width}"), told(&report, width));
    }
}

#[test]
fn sixteen_gpus_stay_legible() {
    let answer: Answer =
        Box::new(
            |pair, mechanism| match (mechanism, pair.source.0, pair.destination.0) {
                ("bounce" | "staged", _, _) => Outcome::Intact,
                (_, 3, _) => corrupt(WrongKind::Misrouted, pair),
                ("ce-push", 7, 9) => Outcome::Died {
                    how: "signal 9 (SIGKILL)".to_string(),
                },
                _ => Outcome::Intact,
            },
        );
    let mut report = run(hosts::sixteen(), &answer);
    report.verdict = Verdict {
        grading: Grading::Fail,
        headline: "misrouted: 15 of 240 ordered pairs, worst 3->0 by ce-push at rung 2; died: 7->9"
            .to_string(),
        cause: "not known; all that is misrouted starts at GPU3".to_string(),
        next: "peerproof qualify --gpus 3,7,9".to_string(),
        worst_pair: OrderedPair::new(3, 0),
        reason: None,
    };
    for width in [80, 160] {
        assert_snapshot!(format!("qualify_sixteen_{width}"), told(&report, width));
    }
}

#[test]
fn a_refusal_is_no_wrong_data() {
    let answer: Answer = Box::new(|_, mechanism| match mechanism {
        "bounce" | "staged" => Outcome::Intact,
        _ => Outcome::Refused {
            api: "cuCtxEnablePeerAccess".to_string(),
            code: 217,
            name: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED".to_string(),
        },
    });
    let mut report = run(hosts::virtual_machine(), &answer);
    report.verdict.headline =
        "staged copies intact on 2 of 2 pairs; peer access does not exist here".to_string();
    report.consumers[0].state = ConsumerState::NotApplicable;
    report.consumers[0].sentence = "does not exist here: peer access is refused".to_string();
    let text = told(&report, 80);
    assert!(text.contains("nothing is known to be wrong"));
    assert_snapshot!("qualify_refused_80", text);
}

#[test]
fn one_gpu_and_none() {
    let mut report = run(hosts::one_gpu(), &intact());
    report.coverage.not_applicable = vec![gap("rungs 1 to 3 need a second GPU", 6)];
    report.verdict.headline = "GPU0 proven alone; pairs need a second GPU".to_string();
    report.consumers.clear();
    report.recommendations.clear();
    assert_snapshot!("qualify_one_gpu_80", told(&report, 80));

    let mut report = run(hosts::no_gpu(), &intact());
    report.selftest = None;
    report.findings.clear();
    report.consumers.clear();
    report.recommendations.clear();
    report.coverage.left_out.clear();
    report.coverage.seen_fault_rate = None;
    report.verdict = Verdict {
        grading: Grading::Inconclusive,
        headline: "no NVIDIA GPU found (looked for libnvidia-ml.so.1 and PCI class 0x0302)"
            .to_string(),
        cause: "nothing was tested".to_string(),
        next: "peerproof demo".to_string(),
        worst_pair: None,
        reason: None,
    };
    assert_snapshot!("qualify_no_gpu_80", told(&report, 80));
}

#[test]
fn a_recommendation_can_be_pasted_and_checked() {
    let mut out = Vec::new();
    recommend::write(
        &hosts::advice(),
        Authenticity::Hardware,
        &options(80),
        &mut out,
    )
    .unwrap();
    let text = String::from_utf8(out).unwrap();
    fits(&text, 80);
    assert!(text.contains("192 rows x 4,096 hidden = 786,432"));
    assert_snapshot!("recommend_80", text);
}

#[test]
fn a_selftest_names_what_it_missed() {
    let report = run(hosts::one_gpu(), &intact());
    let mut one = report.selftest.unwrap();
    let mut out = Vec::new();
    selftest::write(&one, Authenticity::Hardware, &options(80), &mut out).unwrap();
    assert_snapshot!("selftest_pass_80", String::from_utf8(out).unwrap());
    one.plants[3].reported = None;
    let mut out = Vec::new();
    selftest::write(&one, Authenticity::Simulated, &options(80), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("FAIL") && text.contains("WRONG"));
    assert_snapshot!("selftest_fail_80", text);
}

#[test]
fn a_bench_has_spread_and_method() {
    let row = |name: &str, samples: &[f64]| BenchRow {
        counts: "bytes".to_string(),
        target: None,
        name: name.to_string(),
        bytes: 4 << 30,
        rate: Measurement {
            samples: samples.to_vec(),
            unit: Unit::GbPerS,
            warmup: 3,
            method: "events on a non-blocking stream, alone".to_string(),
            caveats: Vec::new(),
        },
    };
    let bench = Bench {
        authenticity: Authenticity::Hardware,
        device: "GPU0 NVIDIA H200 0000:19:00.0".to_string(),
        rows: vec![
            row("fill", &[4010.0, 4020.0, 4005.0]),
            row("verify", &[3990.0, 4001.0, 3987.0]),
            row("device copy", &[4100.0]),
        ],
    };
    let mut out = Vec::new();
    bench::write(&bench, &options(80), &mut out).unwrap();
    assert_snapshot!("bench_80", String::from_utf8(out).unwrap());
}

/// Nothing that a device, a file or another host names itself can steer the reader's terminal.
#[test]
fn hostile_names_reach_the_terminal_as_text() {
    let evil = "\u{1b}[2J\u{7}\u{9b}31m\u{202e}\r\n".to_string() + &"x".repeat(5000);
    let mut report = all_zeroed(hosts::rtx_pro());
    let json = serde_json::to_string(&report).unwrap();
    // Every free text of the document at once: those of the fixture that are words are replaced.
    let mut value: serde_json::Value = serde_json::from_str(&json).unwrap();
    poison(&mut value, &evil);
    report = serde_json::from_value(value).unwrap();
    for width in [80, 160] {
        let mut out = Vec::new();
        terminal::write(&report, &closing(), &options(width), &mut out).unwrap();
        map::write(&report.snapshot, &options(width), &mut out).unwrap();
        for one in &report.recommendations {
            recommend::write(one, Authenticity::Hardware, &options(width), &mut out).unwrap();
        }
        selftest::write(
            report.selftest.as_ref().unwrap(),
            Authenticity::Hardware,
            &options(width),
            &mut out,
        )
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\\u{1b}[2J"));
        let raw = text
            .chars()
            .find(|c| *c != '\n' && render::clean(&c.to_string()) != c.to_string());
        assert_eq!(raw, None);
        for line in text.lines().filter(|l| !l.contains("export ")) {
            assert!(line.chars().count() <= width.max(160), "{line}");
        }
        assert!(text.len() < 400_000, "{}", text.len());
    }
}

/// Replaces the strings of a document, where its shape allows any text, by `evil`.
fn poison(value: &mut serde_json::Value, evil: &str) {
    const FREE: [&str; 22] = [
        "name",
        "label",
        "chip",
        "model",
        "title",
        "because",
        "headline",
        "cause",
        "next",
        "mechanism",
        "executor",
        "detail",
        "reason",
        "sentence",
        "root_bus",
        "cpus",
        "class_reason",
        "joined_by",
        "source",
        "device",
        "expected",
        "owner",
    ];
    match value {
        serde_json::Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                if FREE.contains(&key.as_str()) {
                    if inner.is_string() {
                        // Of an absence, `reason` is one of a few fixed words.
                        if key == "reason" && inner.as_str().is_some_and(|r| !r.contains(' ')) {
                            continue;
                        }
                        *inner = evil.into();
                        continue;
                    }
                    if let Some(known) = inner.get_mut("known").filter(|k| k.is_string()) {
                        *known = evil.into();
                        continue;
                    }
                }
                if ["evidence", "fix", "left_out", "caveats"].contains(&key.as_str()) {
                    *inner = serde_json::json!([evil, evil]);
                    continue;
                }
                poison(inner, evil);
            }
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(|v| poison(v, evil)),
        _ => {}
    }
}

/// Colour repeats what a word says: without the escape codes the coloured text is the plain one.
#[test]
fn colour_carries_no_meaning() {
    let report = all_zeroed(hosts::rtx_pro());
    let mut colored = Vec::new();
    let options = Options {
        width: 80,
        color: true,
    };
    terminal::write(&report, &closing(), &options, &mut colored).unwrap();
    let colored = String::from_utf8(colored).unwrap();
    assert!(colored.contains("\u{1b}["));
    let mut plain = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    let trimmed: Vec<&str> = plain.lines().map(str::trim_end).collect();
    let expected = told(&report, 80);
    assert_eq!(trimmed, expected.lines().collect::<Vec<_>>());
}

#[test]
fn a_cleared_cause_is_still_named() {
    let mut report = run(hosts::nvswitch(), &intact());
    report.findings = vec![hosts::finding("x", "downtrained link", Judgement::Cleared)];
    assert!(told(&report, 80).contains("cleared: downtrained link"));
}

/// The rung a pair reached is the height of an unbroken climb.
#[test]
fn a_hole_ends_the_climb_and_hides_no_failure() {
    use peerproof::model::case::Rung;
    let pair = OrderedPair::new(0, 1).unwrap();
    let not_run = || Outcome::NotRun {
        reason: "budget".to_string(),
    };
    let reached = |answer: Answer| {
        let report = run(hosts::virtual_machine(), &answer);
        let standing = report.standing(pair);
        (
            standing.reached,
            standing.stopped_by.map(|r| r.outcome.word()),
        )
    };
    assert_eq!(reached(intact()), (Some(Rung::Touched), None));
    assert_eq!(
        reached(Box::new(move |_, m| if m == "ce-pull" {
            not_run()
        } else {
            Outcome::Intact
        })),
        (Some(Rung::Staged), None)
    );
    assert_eq!(
        reached(Box::new(move |pair, m| match m {
            "ce-pull" => not_run(),
            "sm-load" => corrupt(WrongKind::Flipped, pair),
            _ => Outcome::Intact,
        })),
        (Some(Rung::Staged), Some("flipped"))
    );
    // A rung that does not exist here is stepped over; one without any record proves nothing above it.
    let absent = |m: &str| m.starts_with("ce-");
    assert_eq!(
        reached(Box::new(move |_, m| if absent(m) {
            Outcome::NotApplicable {
                reason: "no".to_string(),
            }
        } else {
            Outcome::Intact
        })),
        (Some(Rung::Touched), None)
    );
    let mut report = run(hosts::virtual_machine(), &intact());
    report.records.retain(|r| r.case.rung != Rung::Copied);
    assert_eq!(report.standing(pair).reached, Some(Rung::Staged));
    // A run again of what a shared round left open closes the hole.
    let mut report = run(hosts::virtual_machine(), &intact());
    let mut again = report
        .records
        .iter()
        .find(|r| r.case.subject.pair() == Some(pair))
        .unwrap()
        .clone();
    again.outcome = not_run();
    report.records.push(again);
    assert_eq!(report.standing(pair).reached, Some(Rung::Touched));
    report.snapshot.claims = peerproof::model::pair::PairTable::new(2);
    report.records.clear();
    assert_eq!(report.standing(pair).reached, None);
}

#[test]
fn an_unwritable_folder_and_timings_are_told() {
    let mut report = run(hosts::one_gpu(), &intact());
    report.interrupted = true;
    let closing = Closing {
        timings: true,
        saved: Saved::Failed("/report: read-only file system".to_string()),
    };
    let mut out = Vec::new();
    terminal::write(&report, &closing, &options(80), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("which changes no verdict: /report: read-only"));
    assert!(text.contains("CUT SHORT"));
    assert!(text.contains("collect          312 ms"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("exit code 0"));
}

#[test]
fn any_width_is_survived() {
    let mut report = all_zeroed(hosts::rtx_pro());
    report.recommendations = vec![hosts::advice()];
    for width in [0, 1, 39, 40, 57, 79, 81, 120, 1000] {
        for snapshot in [
            hosts::sixteen(),
            hosts::pasted(),
            hosts::no_gpu(),
            hosts::nvswitch(),
        ] {
            assert!(mapped(&snapshot, width).contains('\n'));
        }
        let mut out = Vec::new();
        terminal::write(&report, &closing(), &options(width), &mut out).unwrap();
        recommend::write(
            &hosts::advice(),
            Authenticity::FaultInjected,
            &options(width),
            &mut out,
        )
        .unwrap();
        assert!(String::from_utf8(out).unwrap().contains("FAULT-INJECTED"));
    }
}
