//! All-reduces that were run: by which algorithm, over which ranks, whether the sums were right to the bit, and how long one
//! took. Knows neither how an algorithm works nor what follows for an engine.

use super::{case::Outcome, measurement::Measurement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element type of an all-reduce, and of the activations that it sums.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE half precision.
    Fp16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    Fp32,
}

impl Dtype {
    /// All of them.
    pub const ALL: [Dtype; 3] = [Dtype::Fp16, Dtype::Bf16, Dtype::Fp32];

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Fp16 | Dtype::Bf16 => 2,
            Dtype::Fp32 => 4,
        }
    }

    /// As engines spell it.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Fp16 => "fp16",
            Dtype::Bf16 => "bf16",
            Dtype::Fp32 => "fp32",
        }
    }

    /// The type called `name`; engines' long names are known too.
    pub fn parse(name: &str) -> Option<Dtype> {
        match name.to_ascii_lowercase().as_str() {
            "bf16" | "bfloat16" => Some(Dtype::Bf16),
            "fp16" | "float16" | "half" => Some(Dtype::Fp16),
            "fp32" | "float32" | "float" => Some(Dtype::Fp32),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the calls were put to the GPU.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// Launched call by call.
    Eager,
    /// Captured once as a CUDA graph and replayed.
    Graph,
}

impl Launch {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Launch::Eager => "eager",
            Launch::Graph => "graph",
        }
    }
}

/// Where the ranks ran.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Arrangement {
    /// One process over all GPUs, a rank on each.
    OneProcess,
    /// A process per GPU, memory shared by CUDA IPC: as engines run.
    ProcessPerGpu,
    /// Several ranks as streams of one process on one GPU, resident together: kernels are exercised, no link is.
    StreamsOfOneGpu,
    /// Two processes on one GPU, which are time-sliced: correctness only, never a time.
    ProcessesOfOneGpu,
}

impl Arrangement {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Arrangement::OneProcess => "one process over all GPUs",
            Arrangement::ProcessPerGpu => "a process per GPU",
            Arrangement::StreamsOfOneGpu => "ranks as streams on one GPU",
            Arrangement::ProcessesOfOneGpu => "two processes on one GPU",
        }
    }
}

/// Most ranks that an algorithm of this program takes: GPUs of one host as engines group them.
pub const MOST_RANKS: u32 = 8;

/// What an all-reduce is beside algorithm, ranks and bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct AllReduce {
    /// Element type.
    pub dtype: Dtype,
    /// Whether the result lies where the input lay.
    pub in_place: bool,
    /// Eager or as a graph.
    pub launch: Launch,
}

/// One all-reduce at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reduction {
    /// Id as in `peerproof list`: "one-shot-pull", "pinned-host"; "nccl", "nccl-p2p-off" and "nccl-p2p-sys" for NCCL's arms.
    pub algorithm: String,
    /// GPU of each rank, in rank order; one GPU that holds several ranks is named as often.
    pub gpus: Vec<u32>,
    /// Where the ranks ran.
    pub arrangement: Arrangement,
    /// Element type.
    pub dtype: Dtype,
    /// Bytes of one rank's vector.
    pub bytes: u64,
    /// Whether the result lies where the input lay.
    pub in_place: bool,
    /// Eager or as a graph.
    pub launch: Launch,
    /// Whether every judged call was right to the bit on every rank.
    pub outcome: Outcome,
    /// Calls whose results were judged, the timed ones among them.
    pub calls: u64,
    /// Microseconds a call; `None` where none was taken, with the reason in the notes.
    pub time: Option<Measurement>,
    /// NCCL: the transport that its own log names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Particulars: what was set aside in the environment, why no time was taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Reduction {
    /// Ranks that took part.
    pub fn ranks(&self) -> u32 {
        self.gpus.len() as u32
    }
}
