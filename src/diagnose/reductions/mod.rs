//! From reductions that were run to what may be said of them: which are proven, which of NCCL's own times are sick, and which
//! algorithm is the fastest at which size. Pure; knows algorithms by their ids alone.

mod baseline;
mod crossover;
mod standing;
mod verdict;

pub use baseline::{Doubt, doubts, flag};
pub use crossover::crossovers;
pub use standing::{Standing, standing};
pub use verdict::verdict;

use crate::{
    model::reduction::Reduction,
    stats::{median, quantile},
};

/// NCCL as it chooses: the baseline.
pub const NCCL: &str = "nccl";
/// NCCL with P2P off: its control arm.
pub const NCCL_P2P_OFF: &str = "nccl-p2p-off";
/// NCCL with P2P at any distance.
pub const NCCL_P2P_SYS: &str = "nccl-p2p-sys";

/// Whether a row is one of NCCL's arms.
fn is_nccl(row: &Reduction) -> bool {
    matches!(row.algorithm.as_str(), NCCL | NCCL_P2P_OFF | NCCL_P2P_SYS)
}

/// Rows that may be set beside each other at one size: the same ranks in the same order, the same type and way.
fn comparable(a: &Reduction, b: &Reduction) -> bool {
    (&a.gpus, a.arrangement, a.dtype, a.in_place, a.launch)
        == (&b.gpus, b.arrangement, b.dtype, b.in_place, b.launch)
}

/// Median, and the middle half of the samples (quartiles), microseconds. Two times are told apart only where their middle halves
/// do not overlap.
pub(crate) fn middle(row: &Reduction) -> Option<(f64, f64, f64)> {
    let samples = &row.time.as_ref()?.samples;
    Some((
        median(samples)?,
        quantile(samples, 0.25)?,
        quantile(samples, 0.75)?,
    ))
}

/// "8 KiB", "1.5 MiB", "512 B".
fn amount(bytes: u64) -> String {
    let steps = [("MiB", 1u64 << 20), ("KiB", 1 << 10)];
    match steps.into_iter().find(|(_, step)| bytes >= *step) {
        Some((name, step)) if bytes.is_multiple_of(step) => format!("{} {name}", bytes / step),
        Some((name, step)) => format!("{:.1} {name}", bytes as f64 / step as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
pub(crate) mod sample {
    use crate::model::{
        case::Outcome,
        measurement::{Measurement, Unit},
        reduction::{Arrangement, Dtype, Launch, Reduction},
    };

    /// An intact row over `ranks` GPUs whose samples lie within 2% of `us`.
    pub(crate) fn row(algorithm: &str, ranks: u32, bytes: u64, us: f64) -> Reduction {
        Reduction {
            algorithm: algorithm.to_string(),
            gpus: (0..ranks).collect(),
            arrangement: Arrangement::ProcessPerGpu,
            dtype: Dtype::Bf16,
            bytes,
            in_place: false,
            launch: Launch::Graph,
            outcome: Outcome::Intact,
            calls: 460,
            time: Some(Measurement {
                samples: vec![us * 0.99, us, us * 1.01, us, us * 1.02],
                unit: Unit::Us,
                warmup: 3,
                method: "events".to_string(),
                caveats: Vec::new(),
            }),
            transport: None,
            notes: Vec::new(),
        }
    }
}
