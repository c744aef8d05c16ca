//! Two-shot: reduce-scatter, then all-gather. Each rank owns a part of the vector, adds it up for all, and hands it out.

use super::{Algorithm, Tuning};
use crate::gpu::reduce::{Kernel, Shape};

/// Two crossings, but each rank sends its vector about twice instead of once to everybody.
pub(super) struct TwoShot;

impl Algorithm for TwoShot {
    fn id(&self) -> &'static str {
        "two-shot"
    }

    fn title(&self) -> &'static str {
        "reduce-scatter, then all-gather, all peers at once"
    }

    fn takes(&self, ranks: u32) -> bool {
        (2..=8).contains(&ranks)
    }

    fn largest(&self, _ranks: u32) -> u64 {
        64 << 20
    }

    fn shape(&self, ranks: u32, bytes: u64, _tuning: &Tuning) -> Shape {
        let share = bytes.div_ceil(16).div_ceil(u64::from(ranks.max(1)));
        Shape::spread(Kernel::TwoShot, share, (512, 128))
    }
}
