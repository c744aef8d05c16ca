//! One-shot push: every rank writes its whole vector to every other rank; each adds up what lies in its own memory.

use super::{Algorithm, Tuning};
use crate::gpu::reduce::{Kernel, Shape};

/// The lowest latency there is: one crossing of the link. Traffic grows with the number of ranks.
pub(super) struct OneShotPush;

/// Bytes up to which words carry their own epoch: twice the traffic, but no fence and no flag behind the payload.
pub(super) fn words_up_to(ranks: u32) -> u64 {
    match ranks {
        2 => 256 << 10,
        3 | 4 => 64 << 10,
        _ => 32 << 10,
    }
}

impl Algorithm for OneShotPush {
    fn id(&self) -> &'static str {
        "one-shot-push"
    }

    fn title(&self) -> &'static str {
        "every rank writes its vector to all others; one crossing"
    }

    fn takes(&self, ranks: u32) -> bool {
        (2..=8).contains(&ranks)
    }

    fn largest(&self, ranks: u32) -> u64 {
        (32 << 20) / u64::from(ranks.max(2))
    }

    fn shape(&self, ranks: u32, bytes: u64, tuning: &Tuning) -> Shape {
        let words = tuning.words_up_to.unwrap_or(words_up_to(ranks));
        match bytes <= words {
            // A word of 8 bytes of data to a thread, until the GPU is full of threads.
            true => Shape::spread(Kernel::Words, bytes.div_ceil(8), (256, 128)),
            false => Shape::spread(Kernel::Push, bytes.div_ceil(16), (512, 128)),
        }
    }
}
