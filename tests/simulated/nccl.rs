//! NCCL's arms on simulated hosts: which run, which transport each used by its own log, what is wrong where peers are, and what
//! is said where NCCL does not apply.

use crate::host::{Host, Run, save};
use peerproof::model::{
    case::Outcome,
    crossover::Crossover,
    finding::{Recommendation, WorthBasis},
    measurement::{Measurement, Unit},
    reduction::{Arrangement, Dtype, Launch, Reduction},
    snapshot::Authenticity,
};
use peerproof::stats::median;

#[derive(serde::Deserialize)]
struct Page {
    authenticity: Authenticity,
    notes: Vec<String>,
    reductions: Vec<Reduction>,
    crossovers: Vec<Crossover>,
}

/// `nccl-bench ARGUMENTS` with few samples.
fn bench(host: &Host, arguments: &[&str]) -> (Page, Run) {
    let mut all = vec!["nccl-bench", "--samples", "3"];
    all.extend(arguments);
    let run = host.run(&all);
    let page = serde_json::from_str(&run.stdout)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", run.stdout, run.stderr));
    (page, run)
}

fn of<'a>(page: &'a Page, arm: &str) -> Vec<&'a Reduction> {
    page.reductions
        .iter()
        .filter(|row| row.algorithm == arm)
        .collect()
}

fn told(page: &Page) -> String {
    let rows = page.reductions.iter();
    let lines = rows.map(|r| {
        format!(
            "{} {} {} {:?} {:?} {:?} {:?}",
            r.algorithm,
            r.bytes,
            r.arrangement.words(),
            r.launch,
            r.outcome,
            r.transport,
            r.notes
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn on_nvlink_peers_are_used_and_are_faster_than_the_host() {
    let (page, run) = bench(
        &Host::new("hgx-h200-x8"),
        &[
            "--gpus",
            "0,1",
            "--sizes",
            "8K,64K",
            "--dtypes",
            "fp16,bf16,fp32",
        ],
    );
    assert_eq!(run.code, Some(0), "{}\n{}", told(&page), run.stderr);
    assert_eq!(page.authenticity, Authenticity::Simulated);
    assert!(
        page.notes
            .iter()
            .any(|n| n.starts_with("NCCL 2.28.3 from ")),
        "{:?}",
        page.notes
    );
    // Two arms, two arrangements, three types, two ways, two sizes.
    assert_eq!(page.reductions.len(), 2 * 2 * 3 * 2 * 2);
    for row in &page.reductions {
        assert_eq!(row.outcome, Outcome::Intact, "{}", told(&page));
        // The first call, three samples before and three timed, of twenty calls each.
        assert_eq!(row.calls, 1 + 6 * 20);
        assert_eq!(row.time.as_ref().unwrap().samples.len(), 3);
    }
    let transport = |row: &Reduction| row.transport.clone().unwrap();
    for row in of(&page, "nccl") {
        let expected = match row.arrangement {
            Arrangement::OneProcess => "P2P/direct pointer/read",
            _ => "P2P/CUMEM/read",
        };
        assert_eq!(transport(row), expected);
    }
    let off = of(&page, "nccl-p2p-off");
    assert!(off.iter().all(|row| transport(row) == "SHM/direct/direct"));
    assert!(of(&page, "nccl-p2p-sys").is_empty());
    // Modelled after two real H200: 8.9 and 14.4 us.
    let time = |arm: &str| {
        let rows = of(&page, arm);
        let row = rows.iter().find(|r| {
            (r.bytes, r.launch, r.arrangement) == (8192, Launch::Graph, Arrangement::ProcessPerGpu)
        });
        median(&row.unwrap().time.as_ref().unwrap().samples).unwrap()
    };
    assert!((8.0..10.0).contains(&time("nccl")), "{}", time("nccl"));
    assert!(
        (13.0..18.0).contains(&time("nccl-p2p-off")),
        "{}",
        time("nccl-p2p-off")
    );
    assert!(page.crossovers.iter().all(|c| c.doubts.is_empty()));
    assert!(
        page.crossovers
            .iter()
            .all(|c| c.sizes.iter().all(|s| s.algorithm == "nccl"))
    );
}

#[test]
fn shared_memory_by_default_brings_a_third_arm() {
    let host = Host::new("rtxpro6000-x8-root-complex")
        .variable("NCCL_P2P_DISABLE", "1")
        .variable("NCCL_NVLS_ENABLE", "0");
    let (page, run) = bench(
        &host,
        &["--gpus", "0,1,2,3", "--sizes", "8K", "--one-process"],
    );
    assert_eq!(run.code, Some(0), "{}\n{}", told(&page), run.stderr);
    // What the operator had is set aside: shared memory is NCCL's own choice here, between four on a root complex.
    for row in of(&page, "nccl") {
        assert_eq!(row.transport.as_deref(), Some("SHM/direct/direct"));
        let note = |text: &str| row.notes.iter().any(|n| n == text);
        assert!(
            note("set aside for this arm: NCCL_P2P_DISABLE=1"),
            "{:?}",
            row.notes
        );
        assert!(note("inherited: NCCL_NVLS_ENABLE=0"), "{:?}", row.notes);
    }
    let far = of(&page, "nccl-p2p-sys");
    assert_eq!(far.len(), 2, "{}", told(&page));
    for row in far {
        assert_eq!(row.transport.as_deref(), Some("P2P/direct pointer/read"));
        assert_eq!(row.outcome, Outcome::Intact);
    }
    let advice: Vec<&String> = page.crossovers.iter().flat_map(|c| &c.advice).collect();
    assert!(
        advice
            .iter()
            .any(|a| a.starts_with("with NCCL_P2P_LEVEL=SYS NCCL itself is faster")),
        "{advice:?}"
    );
}

#[test]
fn zeroed_peers_are_wrong_and_the_control_arm_is_right() {
    // Two ranks on AMD: NCCL uses P2P at any distance.
    let (page, run) = bench(
        &Host::new("rtxpro6000-x8-zeroed"),
        &["--gpus", "0,1", "--sizes", "8K", "--in-place"],
    );
    assert_eq!(run.code, Some(2), "{}", told(&page));
    for row in of(&page, "nccl") {
        let wrong = row.outcome.corruption();
        let wrong = wrong.unwrap_or_else(|| panic!("{}", told(&page)));
        assert!(wrong.detail.contains("are not the sum"), "{}", wrong.detail);
        assert!(wrong.wrong_attempts == wrong.attempts_ran && wrong.attempts_ran == 7);
        assert_eq!(row.time, None);
        assert!(row.transport.as_deref().unwrap().starts_with("P2P/"));
        assert!(row.notes.iter().all(|n| !n.contains("inconclusive")));
    }
    for row in of(&page, "nccl-p2p-off") {
        assert_eq!(row.outcome, Outcome::Intact, "{}", told(&page));
    }
    assert_eq!(of(&page, "nccl").len(), 8);
    // Only what is proven is the fastest of anything.
    for crossover in &page.crossovers {
        assert!(
            crossover
                .sizes
                .iter()
                .all(|s| s.algorithm == "nccl-p2p-off")
        );
    }
}

#[test]
fn a_control_that_fails_too_makes_peers_inconclusive() {
    let host = Host::new("hgx-h200-x8")
        .fault("0>host:host_store=flipped")
        .fault("0>1:sm_store=flipped");
    let (page, run) = bench(&host, &["--gpus", "0,1", "--sizes", "8K", "--one-process"]);
    assert_eq!(run.code, Some(2), "{}", told(&page));
    for row in &page.reductions {
        assert!(row.outcome.corruption().is_some(), "{}", told(&page));
        let inconclusive = row
            .notes
            .iter()
            .any(|n| n.starts_with("inconclusive: the control arm"));
        assert_eq!(inconclusive, row.algorithm == "nccl", "{}", told(&page));
    }
    assert!(page.crossovers.is_empty());
}

#[test]
fn a_rank_that_dies_or_waits_for_ever_ends_its_arm_alone() {
    for (fault, died) in [("0>1:sm_store=death", true), ("0>1:sm_store=hang", false)] {
        let host = Host::new("hgx-h200-x8")
            .fault(fault)
            .set("deadline_factor=1");
        let (page, run) = bench(
            &host,
            &["--gpus", "0,1", "--sizes", "8K,64K", "--one-process"],
        );
        assert_eq!(run.code, Some(2), "{}", told(&page));
        let peers = of(&page, "nccl");
        match &peers[0].outcome {
            Outcome::Died { how } if died => assert!(how.contains("SIGKILL"), "{how}"),
            Outcome::TimedOut { .. } if !died => {}
            other => panic!("{fault}: {other:?}"),
        }
        let rest = &peers[1..];
        assert!(
            rest.len() == 3
                && rest
                    .iter()
                    .all(|r| matches!(r.outcome, Outcome::NotRun { .. }))
        );
        assert!(
            of(&page, "nccl-p2p-off")
                .iter()
                .all(|r| r.outcome == Outcome::Intact)
        );
    }
}

#[test]
fn one_gpu_has_no_all_reduce_of_nccls() {
    let (page, run) = bench(&Host::new("one-gpu"), &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let [row] = page.reductions.as_slice() else {
        panic!("{}", told(&page));
    };
    let Outcome::NotApplicable { reason } = &row.outcome else {
        panic!("{:?}", row.outcome);
    };
    assert!(
        reason.starts_with("NCCL refuses two ranks on one device"),
        "{reason}"
    );
}

#[test]
fn where_there_is_no_nccl_it_says_where_it_looked() {
    let (page, run) = bench(
        &Host::new("hgx-h200-x8"),
        &["--gpus", "0,1", "--nccl", "/nowhere/libnccl.so.2"],
    );
    assert_eq!(run.code, Some(3));
    assert!(page.reductions.is_empty());
    assert!(
        page.notes
            .iter()
            .any(|n| n.starts_with("NCCL was not run") && n.contains("/nowhere/libnccl.so.2")),
        "{:?}",
        page.notes
    );
}

/// A saved report with reductions written by hand: what was measured is in the answer, and whose kernels they were.
#[test]
fn recommend_answers_from_the_reductions_of_a_report() {
    let mut report = Host::new("hgx-h200-x8").qualify(&["--gpus", "0,1", "--quick"]);
    let row = |algorithm: &str, bytes: u64, us: f64| Reduction {
        algorithm: algorithm.to_string(),
        gpus: vec![0, 1],
        arrangement: Arrangement::ProcessPerGpu,
        dtype: Dtype::Bf16,
        bytes,
        in_place: false,
        launch: Launch::Graph,
        outcome: Outcome::Intact,
        calls: 461,
        time: Some(Measurement {
            samples: vec![us, us * 1.01, us * 0.99, us, us],
            unit: Unit::Us,
            warmup: 3,
            method: "events".to_string(),
            caveats: Vec::new(),
        }),
        transport: None,
        notes: Vec::new(),
    };
    report.reductions = vec![
        row("nccl", 8192, 8.9),
        row("nccl", 262_144, 11.0),
        row("nccl", 4 << 20, 35.0),
        row("one-shot-pull", 8192, 3.0),
        row("one-shot-pull", 262_144, 5.0),
        row("one-shot-pull", 4 << 20, 60.0),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    save(&report, &path);
    let arguments = [
        "recommend",
        "--engine",
        "vllm",
        "--hidden",
        "4096",
        "--tp",
        "2",
        "--batch",
        "32",
        "--gpus",
        "0,1",
        "--from",
        path.to_str().unwrap(),
    ];
    let mut json = arguments.to_vec();
    json.push("--json");
    let run = Host::new("hgx-h200-x8").run(&json);
    let answer: Recommendation = serde_json::from_str(&run.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", run.stdout, run.stderr));
    let measured: Vec<&str> = answer
        .worth
        .iter()
        .filter(|w| w.basis == WorthBasis::Measured)
        .map(|w| w.says.as_str())
        .collect();
    assert!(
        measured.contains(&"one-shot-pull is the fastest proven from 8 KiB to 256 KiB, 2.2 to 3.0 times as fast as NCCL (this tool's own kernel; an engine's may differ)"),
        "{measured:?}"
    );
    assert!(
        measured.contains(&"nccl is the fastest proven at 4 MiB"),
        "{measured:?}"
    );
    if answer.backend == "custom-all-reduce" {
        assert!(
            measured
                .iter()
                .any(|m| m.contains("as measured with this tool's own kernels (one-shot-pull)")),
            "{measured:?}"
        );
    }
    let text = Host::new("hgx-h200-x8").run(&arguments);
    assert!(text.stdout.contains("measured here"), "{}", text.stdout);
    // A baseline that is sick gives no ratio, and says why.
    report.reductions[0] = row("nccl", 8192, 205.0);
    save(&report, &path);
    let text = Host::new("hgx-h200-x8").run(&arguments).stdout;
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("NCCL's own times are odd here"), "{text}");
}
