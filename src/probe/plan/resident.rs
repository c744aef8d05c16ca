//! Rung 5 in the plan: how many rounds, how large a payload. Every pair once, both directions together.

use super::{Budget, sizes::PAGE};
use crate::gpu::resident::CHANNELS;

/// Rounds of an exchange: each one waits for both directions, so they cost latency, not bandwidth. Far fewer than the
/// 65,535 that words can tell apart.
pub(super) fn rounds(budget: Budget) -> u32 {
    match budget {
        Budget::Quick => 32,
        Budget::Default => 256,
        Budget::Deep { .. } => 4096,
    }
}

/// Rounds between two processes on one GPU: each takes a slice of the GPU's time from both.
pub(super) const SLICED: u32 = 8;

/// Bytes of one round and direction: what an engine's all-reduce sends for a few tokens, on a GPU with `memory` bytes free.
pub(super) fn bytes(memory: u64) -> u64 {
    let slot = (memory >> 15).clamp(PAGE / 4, 16 * PAGE) / 16 * 16;
    slot * u64::from(CHANNELS)
}
