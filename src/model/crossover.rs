//! Which proven all-reduce is the fastest at which size, and where that changes: derived from reductions that were run.

use super::reduction::{Arrangement, Dtype, Launch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One group of ranks, one type, one way of launching: the fastest at each size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Crossover {
    /// GPU of each rank, in rank order.
    pub gpus: Vec<u32>,
    /// Where the ranks ran.
    pub arrangement: Arrangement,
    /// Element type.
    pub dtype: Dtype,
    /// Whether the result lies where the input lay.
    pub in_place: bool,
    /// Eager or as a graph.
    pub launch: Launch,
    /// By size, smallest first.
    pub sizes: Vec<Fastest>,
    /// Where the fastest changes.
    pub changes: Vec<Change>,
    /// Why NCCL's own numbers are not to be compared with: a sick baseline. Empty where they are sound.
    pub doubts: Vec<String>,
    /// What follows, as sentences.
    pub advice: Vec<String>,
}

/// The fastest at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fastest {
    /// Bytes of one rank's vector.
    pub bytes: u64,
    /// Algorithm id.
    pub algorithm: String,
    /// Its median, microseconds.
    pub microseconds: f64,
    /// Others whose middle halves of samples overlap with its: no slower as far as was measured.
    pub tied: Vec<String>,
    /// NCCL's median divided by its; `None` where NCCL did not run, was not proven or is sick.
    pub against_nccl: Option<f64>,
}

/// Between two measured sizes another algorithm becomes the fastest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The fastest up to `last_bytes`.
    pub from: String,
    /// The fastest from `first_bytes` on.
    pub to: String,
    /// Largest measured size of the former.
    pub last_bytes: u64,
    /// Smallest measured size of the latter.
    pub first_bytes: u64,
}
