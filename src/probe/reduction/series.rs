//! What all ranks do alike: an algorithm at a size, calls to judge, samples to time. Knows no GPU.

use super::{Algorithm, MOST_RANKS, by_id, exact::Values};
use crate::{
    gpu::reduce::{BLOCK_LIMIT, Shape, THREAD_LIMIT},
    model::reduction::{Dtype, Launch},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What may be set by hand, to find better tables on a machine. What is not set comes from the algorithm's own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tuning {
    /// Blocks of a rank.
    pub blocks: Option<u32>,
    /// Threads of a block, a multiple of 32.
    pub threads: Option<u32>,
    /// Bytes up to which words carry their own epoch; above, a flag follows each block's payload.
    pub words_up_to: Option<u64>,
}

/// How calls are timed: `samples` times, `calls` calls back to back behind a gate, after `warmup` calls behind the same gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Samples kept.
    pub samples: u32,
    /// Timed calls of a sample, each with input and output of its own.
    pub calls: u32,
    /// Calls before them, which bring the ranks together. They are judged too.
    pub warmup: u32,
}

impl Timing {
    /// Enough calls to hide how an event is recorded, few enough for `room` bytes of vectors on a rank.
    pub fn of(samples: u32, bytes: u64, room: u64) -> Timing {
        let warmup = 2;
        let fit = room / vector_stride(bytes).max(1) / 2;
        let wanted = (64 << 20) / bytes.max(1);
        let calls = wanted
            .clamp(10, 100)
            .min(fit.saturating_sub(u64::from(warmup)));
        Timing {
            samples,
            calls: calls.max(1) as u32,
            warmup,
        }
    }
}

/// One series of all-reduces. Serialisable: it is the same on every rank, in whatever process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Id of the algorithm.
    pub algorithm: String,
    /// Element type.
    pub dtype: Dtype,
    /// Bytes of one rank's vector, whole elements.
    pub bytes: u64,
    /// Whether the result replaces the input.
    pub in_place: bool,
    /// Eager or as a graph.
    pub launch: Launch,
    /// What the vectors hold.
    pub values: Values,
    /// Calls that are judged and not timed, each with fresh data. As a graph: replays, each of as many calls as `counts`.
    pub calls: u32,
    /// Element counts that the untimed calls take in turn: the whole vector, and shorter ones, so that a slot holds
    /// leavings of another length.
    pub counts: Vec<u64>,
    /// How it is timed, if at all.
    pub timing: Option<Timing>,
    /// Set by hand.
    pub tuning: Tuning,
    /// Random per run: inputs derive from it.
    pub seed: u64,
    /// How long a kernel waits for another rank, by its own clock.
    pub limit: Duration,
}

/// Memory that a rank has to have for a series, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Needs {
    /// Where others write, or read: reachable by all ranks.
    pub mailbox: u64,
    /// Inputs and outputs, its own.
    pub vectors: u64,
}

impl Needs {
    /// Enough for both.
    pub fn max(self, other: Needs) -> Needs {
        Needs {
            mailbox: self.mailbox.max(other.mailbox),
            vectors: self.vectors.max(other.vectors),
        }
    }
}

/// From one vector to the next: each starts where a large access may start.
pub(super) fn vector_stride(bytes: u64) -> u64 {
    bytes.next_multiple_of(256)
}

impl Series {
    /// Its algorithm; `None` for an id of no algorithm.
    pub fn algorithm(&self) -> Option<&'static dyn Algorithm> {
        by_id(&self.algorithm)
    }

    /// Elements of the vector.
    pub fn count(&self) -> u64 {
        self.bytes / self.dtype.bytes()
    }

    /// Kernel, blocks and threads over so many ranks.
    pub fn shape(&self, ranks: u32) -> Option<Shape> {
        let shape = self.algorithm()?.shape(ranks, self.bytes, &self.tuning);
        Some(Shape {
            blocks: self
                .tuning
                .blocks
                .unwrap_or(shape.blocks)
                .clamp(1, BLOCK_LIMIT),
            threads: (self.tuning.threads.unwrap_or(shape.threads) / 32 * 32)
                .clamp(32, THREAD_LIMIT),
            ..shape
        })
    }

    /// Vectors of a rank that are in use at the same time.
    pub(super) fn slots(&self) -> u64 {
        let timed = self.timing.map_or(0, |timing| timing.calls + timing.warmup);
        u64::from(timed).max(self.counts.len() as u64).max(2)
    }

    /// What a rank needs for it.
    pub fn needs(&self, ranks: u32) -> Needs {
        let slots = self.slots() * if self.in_place { 1 } else { 2 };
        Needs {
            mailbox: self
                .shape(ranks)
                .map_or(0, |shape| shape.kernel.mailbox_bytes(ranks, self.bytes)),
            vectors: slots * vector_stride(self.bytes),
        }
    }
}

/// Many series at once: every combination that the algorithms take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Ids of algorithms.
    pub algorithms: Vec<String>,
    /// Element types.
    pub dtypes: Vec<Dtype>,
    /// Bytes of a vector.
    pub sizes: Vec<u64>,
    /// Eager, graph.
    pub launches: Vec<Launch>,
    /// Out of place (false), in place (true).
    pub in_place: Vec<bool>,
    /// What the vectors hold.
    pub values: Values,
    /// Untimed calls of each series.
    pub calls: u32,
    /// Samples of each series; 0: none is timed.
    pub samples: u32,
    /// Bytes for inputs and outputs of a rank, at most.
    pub room: u64,
    /// Set by hand.
    pub tuning: Tuning,
    /// Random per run.
    pub seed: u64,
    /// How long a kernel waits for another rank, by its own clock.
    pub limit: Duration,
}

impl Request {
    /// The series of it for so many ranks. What an algorithm does not take is left out.
    pub fn series(&self, ranks: u32) -> Vec<Series> {
        let mut all = Vec::new();
        let known = self.algorithms.iter().filter_map(|id| by_id(id));
        for algorithm in known.filter(|a| ranks <= MOST_RANKS && a.takes(ranks)) {
            for dtype in &self.dtypes {
                for size in &self.sizes {
                    let bytes = size / dtype.bytes() * dtype.bytes();
                    if bytes == 0 || bytes > algorithm.largest(ranks) {
                        continue;
                    }
                    for launch in &self.launches {
                        for in_place in &self.in_place {
                            all.push(self.one(algorithm.id(), *dtype, bytes, (*launch, *in_place)));
                        }
                    }
                }
            }
        }
        all
    }

    fn one(
        &self,
        id: &str,
        dtype: Dtype,
        bytes: u64,
        (launch, in_place): (Launch, bool),
    ) -> Series {
        let count = bytes / dtype.bytes();
        // Whole, without its last element, a little over half, whole again: what a slot held before is longer or shorter.
        let mut counts = vec![count, count - 1, count / 2 + 1, count];
        counts.retain(|n| *n > 0);
        Series {
            algorithm: id.to_string(),
            dtype,
            bytes,
            in_place,
            launch,
            values: self.values,
            calls: self.calls,
            counts,
            timing: (self.samples > 0).then(|| Timing::of(self.samples, bytes, self.room)),
            tuning: self.tuning,
            seed: self.seed,
            limit: self.limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_sample_fit_the_room_and_hide_the_events() {
        assert_eq!(Timing::of(5, 8 << 10, 1 << 30).calls, 100);
        assert_eq!(Timing::of(5, 1 << 20, 1 << 30).calls, 64);
        assert_eq!(Timing::of(5, 16 << 20, 1 << 30).calls, 10);
        let tight = Timing::of(5, 1 << 20, 16 << 20);
        assert_eq!(tight.calls + tight.warmup, 8);
        assert_eq!(Timing::of(5, 16 << 20, 1 << 20).calls, 1);
    }
}
