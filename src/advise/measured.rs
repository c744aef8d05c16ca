//! Reductions of a report as answers to "how long would it take here": which rows count for the question, and which engine's
//! backend works the way that one of this tool's own kernels does. A kernel of ours is not an engine's: it stands in for it, and
//! whatever is said of it says so.

use super::request::{ReductionTime, Request};
use crate::{
    diagnose::reductions::{
        NCCL, NCCL_P2P_OFF, NCCL_P2P_SYS, Standing, crossovers, doubts, middle, standing,
    },
    model::{
        pair::GpuIndex,
        reduction::{Arrangement, Dtype, Launch, Reduction},
    },
};
use std::collections::BTreeSet;

/// Backend of an engine, and the algorithms of ours that move bytes as its kernels do: which side reads or writes, and in how
/// many steps. Where there are several, the fastest at a size counts, as engines choose by size.
const KIN: &[(&str, &[&str])] = &[
    // One-shot and two-shot kernels that load from peers' buffers (vLLM, SGLang).
    ("custom-all-reduce", &["one-shot-pull", "two-shot"]),
    ("custom-all-reduce-legacy", &["one-shot-pull", "two-shot"]),
    // One-shot kernels that store to peers, two-shot above a size (TensorRT-LLM).
    ("one-shot-two-shot", &["one-shot-push", "two-shot"]),
    ("one-shot-two-shot-64-mib", &["one-shot-push", "two-shot"]),
    // The same kernels in FlashInfer's hands (its trtllm all-reduce).
    ("flashinfer-all-reduce", &["one-shot-push", "two-shot"]),
    // Pushes: to all, in turns, or by islands of four (FlashInfer).
    (
        "flashinfer-pcie-ipc",
        &["one-shot-push", "staged-push", "hierarchical"],
    ),
    ("b12x", &["one-shot-push"]),
    // Two ranks through pinned host memory (1Cat).
    ("host-reduce", &["pinned-host"]),
];

/// Puts what `rows` say to the question into `request`. Rows over real links, proven, out of place, launched as the engine would
/// launch, of the type asked for; one process a GPU before one over all.
pub fn put_measured(request: &mut Request, rows: &[Reduction]) {
    let launch = match request.eager {
        true => Launch::Eager,
        false => Launch::Graph,
    };
    let types: &[Dtype] = match request.dtype.as_deref().and_then(Dtype::parse) {
        Some(Dtype::Fp32) => &[Dtype::Fp32],
        // The same size; where both were measured, that of most models counts.
        Some(Dtype::Fp16) => &[Dtype::Fp16, Dtype::Bf16],
        _ => &[Dtype::Bf16, Dtype::Fp16],
    };
    let mut groups: Vec<&[u32]> = rows.iter().map(|row| row.gpus.as_slice()).collect();
    groups.sort_unstable();
    groups.dedup();
    let all = crossovers(rows);
    let sick: BTreeSet<usize> = doubts(rows).into_iter().map(|doubt| doubt.row).collect();
    for gpus in groups {
        let arrangements = [Arrangement::ProcessPerGpu, Arrangement::OneProcess];
        let choices = arrangements
            .into_iter()
            .flat_map(|a| types.iter().map(move |t| (a, *t)));
        let fits = |row: &Reduction, (arrangement, dtype): (Arrangement, Dtype)| {
            row.gpus == gpus
                && row.arrangement == arrangement
                && row.dtype == dtype
                && row.launch == launch
                && !row.in_place
        };
        // The first choice of which anything is proven.
        let proven = |choice: (Arrangement, Dtype)| -> Vec<(usize, &Reduction, (f64, f64, f64))> {
            let own = rows.iter().enumerate().filter(|(_, row)| fits(row, choice));
            own.filter(|(_, row)| standing(rows, row) == Standing::Proven)
                .filter_map(|(at, row)| Some((at, row, middle(row)?)))
                .collect()
        };
        let found = choices
            .map(|choice| (choice, proven(choice)))
            .find(|(_, proven)| !proven.is_empty());
        let Some((choice, proven)) = found else {
            continue;
        };
        let time = |row: &Reduction, (median, low, high): (f64, f64, f64)| ReductionTime {
            backend: NCCL.to_string(),
            ranks: row.ranks(),
            bytes: row.bytes,
            microseconds: median,
            middle: (low, high),
            gpus: gpus.iter().copied().map(GpuIndex).collect(),
            stand_in: None,
        };
        let baseline = proven
            .iter()
            .filter(|(at, row, _)| row.algorithm == NCCL && !sick.contains(at));
        request
            .measured
            .extend(baseline.map(|(_, row, took)| time(row, *took)));
        // Its other arms: what its peers are worth, and how far it may use them.
        for arm in [NCCL_P2P_OFF, NCCL_P2P_SYS] {
            let own = proven
                .iter()
                .filter(|(at, row, _)| row.algorithm == arm && !sick.contains(at));
            request
                .measured
                .extend(own.map(|(_, row, took)| ReductionTime {
                    backend: arm.to_string(),
                    ..time(row, *took)
                }));
        }
        let sizes: BTreeSet<u64> = proven.iter().map(|(_, row, _)| row.bytes).collect();
        for (backend, kin) in KIN {
            for bytes in &sizes {
                let own = proven.iter().filter(|(at, row, _)| {
                    row.bytes == *bytes
                        && kin.contains(&row.algorithm.as_str())
                        && !sick.contains(at)
                });
                if let Some((_, row, took)) = own.min_by(|a, b| a.2.0.total_cmp(&b.2.0)) {
                    request.measured.push(ReductionTime {
                        backend: (*backend).to_string(),
                        stand_in: Some(row.algorithm.clone()),
                        ..time(row, *took)
                    });
                }
            }
        }
        let own = all.iter().filter(|c| {
            c.gpus == gpus
                && (c.arrangement, c.dtype) == choice
                && c.launch == launch
                && !c.in_place
        });
        request.crossovers.extend(own.cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        case::Outcome,
        measurement::{Measurement, Unit},
    };

    fn row(algorithm: &str, bytes: u64, us: f64) -> Reduction {
        Reduction {
            algorithm: algorithm.to_string(),
            gpus: vec![0, 1],
            arrangement: Arrangement::ProcessPerGpu,
            dtype: Dtype::Bf16,
            bytes,
            in_place: false,
            launch: Launch::Graph,
            outcome: Outcome::Intact,
            calls: 400,
            time: Some(Measurement {
                samples: vec![us; 5],
                unit: Unit::Us,
                warmup: 3,
                method: String::new(),
                caveats: Vec::new(),
            }),
            transport: None,
            notes: Vec::new(),
        }
    }

    fn asked(rows: &[Reduction], request: Request) -> Request {
        let mut request = request;
        put_measured(&mut request, rows);
        request
    }

    fn of(request: &Request, backend: &str) -> Vec<(u64, f64, Option<String>)> {
        let own = request.measured.iter().filter(|t| t.backend == backend);
        own.map(|t| (t.bytes, t.microseconds, t.stand_in.clone()))
            .collect()
    }

    #[test]
    fn kernels_of_ours_stand_in_for_those_that_work_alike() {
        let rows = [
            row("nccl", 8192, 9.0),
            row("one-shot-push", 8192, 3.0),
            row("staged-push", 8192, 6.0),
            row("one-shot-pull", 8192, 4.0),
            row("nccl-p2p-off", 8192, 14.0),
        ];
        let request = asked(&rows, Request::default());
        assert_eq!(of(&request, "nccl"), [(8192, 9.0, None)]);
        let push = Some("one-shot-push".to_string());
        assert_eq!(of(&request, "flashinfer-pcie-ipc"), [(8192, 3.0, push)]);
        let pull = Some("one-shot-pull".to_string());
        assert_eq!(of(&request, "custom-all-reduce"), [(8192, 4.0, pull)]);
        assert!(of(&request, "host-reduce").is_empty());
        assert_eq!(request.crossovers.len(), 1);
    }

    #[test]
    fn rows_that_do_not_answer_the_question_are_left_out() {
        let mut rows = vec![row("nccl", 8192, 9.0), row("one-shot-push", 8192, 3.0)];
        rows[1].outcome = Outcome::TimedOut { after_ms: 1 };
        let request = asked(&rows, Request::default());
        assert!(of(&request, "flashinfer-pcie-ipc").is_empty());
        let eager = Request {
            eager: true,
            ..Request::default()
        };
        assert!(asked(&rows, eager).measured.is_empty());
        // Types go by their engines' names, too.
        for single in ["fp32", "float32"] {
            let single = Request {
                dtype: Some(single.to_string()),
                ..Request::default()
            };
            assert!(asked(&rows, single).measured.is_empty());
        }
        rows[0].arrangement = Arrangement::StreamsOfOneGpu;
        assert!(asked(&rows, Request::default()).measured.is_empty());
    }

    #[test]
    fn a_process_per_gpu_goes_before_one_over_all() {
        let mut rows = vec![row("nccl", 8192, 9.0), row("nccl", 8192, 11.0)];
        rows[1].arrangement = Arrangement::OneProcess;
        let request = asked(&rows, Request::default());
        assert_eq!(of(&request, "nccl"), [(8192, 9.0, None)]);
    }

    #[test]
    fn a_sick_baseline_is_none() {
        let rows = [row("nccl", 8192, 400.0), row("one-shot-push", 8192, 3.0)];
        let request = asked(&rows, Request::default());
        assert!(of(&request, "nccl").is_empty());
        assert_eq!(request.crossovers[0].doubts.len(), 1);
    }
}
