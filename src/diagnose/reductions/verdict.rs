//! What the all-reduces of one run come to together: exact, wrong, or not all of them run.

use super::{Standing, standing};
use crate::model::{
    case::Outcome,
    reduction::Reduction,
    report::{Grading, Verdict},
};

/// What all rows come to.
pub fn verdict(rows: &[Reduction]) -> Verdict {
    // NCCL's result means nothing where its own control failed.
    let counts = |row: &&Reduction| {
        row.outcome.is_failure() && !matches!(standing(rows, row), Standing::Inconclusive(_))
    };
    let failed: Vec<&Reduction> = rows.iter().filter(counts).collect();
    let open = rows
        .iter()
        .filter(|r| matches!(r.outcome, Outcome::NotRun { .. } | Outcome::Refused { .. }))
        .count();
    let exact = rows.iter().filter(|r| r.outcome.is_intact()).count();
    let (grading, headline) = match failed.first() {
        Some(first) => (
            Grading::Fail,
            format!(
                "{} over {} ranks, {} bytes: {}; {} of {} rows failed",
                first.algorithm,
                first.ranks(),
                first.bytes,
                first.outcome.word(),
                failed.len(),
                rows.len()
            ),
        ),
        None if exact == 0 => (Grading::Inconclusive, "no all-reduce ran".to_string()),
        None if open > 0 => (
            Grading::Inconclusive,
            format!(
                "{open} of {} rows did not run; the others are exact",
                rows.len()
            ),
        ),
        None => (
            Grading::Pass,
            format!("every sum of {exact} rows is exact on every rank"),
        ),
    };
    let reason = |row: &&Reduction| match &row.outcome {
        Outcome::NotRun { reason } => Some(format!("{}: {reason}", row.algorithm)),
        Outcome::Refused { api, name, .. } => {
            Some(format!("{}: {api} answered {name}", row.algorithm))
        }
        _ => None,
    };
    let (cause, next) = match (failed.first(), grading) {
        (Some(first), _) => (
            "an all-reduce rests on every pair of its GPUs: 'peerproof qualify' says which pair, which rung and why".to_string(),
            format!("peerproof qualify --gpus {}", list(&first.gpus)),
        ),
        (None, Grading::Pass) => (
            "sums are exact as far as these sizes and algorithms go; pairs, mechanisms and load are tested by 'peerproof qualify'".to_string(),
            "peerproof qualify".to_string(),
        ),
        _ => (
            rows.iter().find_map(|row| reason(&row)).unwrap_or_else(|| "nothing fits these GPUs and options".to_string()),
            "peerproof qualify".to_string(),
        ),
    };
    Verdict {
        grading,
        headline,
        cause,
        next,
        worst_pair: None,
        reason: None,
    }
}

/// GPU indices as `--gpus` takes them, each once.
fn list(gpus: &[u32]) -> String {
    let mut gpus = gpus.to_vec();
    gpus.dedup();
    let gpus: Vec<String> = gpus.iter().map(u32::to_string).collect();
    gpus.join(",")
}
