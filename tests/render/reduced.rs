//! Golden tables of all-reduces, from rows that are made up for the purpose.

use super::{fits, hosts, intact, options};
use insta::assert_snapshot;
use peerproof::{
    diagnose::reductions,
    model::{
        case::{Missing, Outcome, WrongKind},
        measurement::{Measurement, Unit},
        pair::{GpuIndex, OrderedPair},
        reduction::{Arrangement, Dtype, Launch, Reduction},
        report::{Grading, Report},
        snapshot::Authenticity,
    },
    render::reduce,
};

pub(crate) fn row(algorithm: &str, gpus: &[u32], bytes: u64, us: Option<f64>) -> Reduction {
    Reduction {
        algorithm: algorithm.to_string(),
        gpus: gpus.to_vec(),
        arrangement: Arrangement::OneProcess,
        dtype: Dtype::Bf16,
        bytes,
        in_place: false,
        launch: Launch::Graph,
        outcome: Outcome::Intact,
        calls: 1318,
        time: us.map(|us| Measurement {
            samples: vec![us * 0.98, us, us * 1.03],
            unit: Unit::Us,
            warmup: 2,
            method: "a sample is the mean of 100 calls of one graph back to back; slowest rank"
                .to_string(),
            caveats: Vec::new(),
        }),
        transport: None,
        notes: Vec::new(),
    }
}

fn told(report: &Report, remarks: &[String], width: usize) -> String {
    let mut out = Vec::new();
    let mut report = report.clone();
    report.crossovers = reductions::crossovers(&report.reductions);
    report.coverage.left_out = remarks.to_vec();
    reduce::write(&report, &options(width), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    fits(&text, width);
    text
}

fn report(rows: Vec<Reduction>, grading: Grading, headline: &str) -> Report {
    let mut report = hosts::run(hosts::nvswitch(), &intact());
    report.authenticity = Authenticity::Simulated;
    report.reductions = rows;
    (report.verdict.grading, report.verdict.headline) = (grading, headline.to_string());
    report
}

#[test]
fn times_bandwidths_and_who_is_fastest() {
    let sizes = [512, 8 << 10, 256 << 10, 4 << 20, 16 << 20];
    let mut rows = Vec::new();
    for (at, bytes) in sizes.into_iter().enumerate() {
        let gpus: Vec<u32> = (0..8).collect();
        let us = |base: f64, slope: f64| Some(base + slope * bytes as f64 / 1024.0);
        rows.push(row("one-shot-push", &gpus, bytes, us(3.0, 0.09)));
        rows.push(row("two-shot", &gpus, bytes, us(5.2, 0.02)));
        rows.push(row("hierarchical", &gpus, bytes, us(8.0, 0.015)));
        let mut nccl = row("nccl", &gpus, bytes, us(11.0, 0.03));
        nccl.transport = Some("P2P/CUMEM".to_string());
        rows.push(nccl);
        if at > 3 {
            rows.retain(|row| row.algorithm != "one-shot-push" || row.bytes < 16 << 20);
        }
    }
    let report = report(
        rows,
        Grading::Pass,
        "every sum of 19 rows is exact on every rank",
    );
    for width in [80, 160] {
        assert_snapshot!(format!("reduce_times_{width}"), told(&report, &[], width));
    }
}

#[test]
fn what_is_wrong_never_came_or_did_not_run_is_said() {
    let two = [0, 1];
    let mut rows = vec![
        row("one-shot-push", &two, 512, Some(3.1)),
        row("one-shot-push", &two, 8192, Some(3.4)),
    ];
    let mut wrong = row("one-shot-pull", &two, 512, None);
    wrong.outcome = super::corrupt(WrongKind::Zeroed, OrderedPair::new(0, 1).unwrap());
    rows.push(wrong);
    let mut never = row("two-shot", &two, 512, None);
    never.outcome = Outcome::Never {
        round: 3,
        rounds: 200,
        after_ms: 2000,
        missing: Some(Missing {
            rank: 1,
            gpu: GpuIndex(1),
            block: 4,
        }),
    };
    never.notes = vec!["64 blocks of 512 threads".to_string()];
    rows.push(never);
    for bytes in [512, 8192] {
        let mut absent = row("staged-push", &two, bytes, None);
        let reason = "no peer access on pair 0->1: CUDA says no".to_string();
        absent.outcome = Outcome::NotApplicable { reason };
        rows.push(absent);
    }
    let mut sliced = row("one-shot-push", &[0, 0], 512, None);
    sliced.arrangement = Arrangement::ProcessesOfOneGpu;
    rows.push(sliced);
    let remarks = ["hierarchical do not run over 2 ranks".to_string()];
    let report = report(
        rows,
        Grading::Fail,
        "one-shot-pull over 2 ranks, 512 bytes: zeroed; 2 of 7 rows failed",
    );
    assert_snapshot!("reduce_wrong_80", told(&report, &remarks, 80));
}
