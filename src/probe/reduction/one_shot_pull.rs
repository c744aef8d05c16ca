//! One-shot pull: every rank lays its vector out in its own memory; each reads those of all others.

use super::{Algorithm, Tuning};
use crate::gpu::reduce::{Kernel, Shape};

/// One crossing as well, but a load has to come back: for links whose loads are as quick as their stores.
pub(super) struct OneShotPull;

impl Algorithm for OneShotPull {
    fn id(&self) -> &'static str {
        "one-shot-pull"
    }

    fn title(&self) -> &'static str {
        "every rank reads the vectors of all others; one crossing there and back"
    }

    fn takes(&self, ranks: u32) -> bool {
        (2..=8).contains(&ranks)
    }

    fn largest(&self, ranks: u32) -> u64 {
        (32 << 20) / u64::from(ranks.max(2))
    }

    fn shape(&self, _ranks: u32, bytes: u64, _tuning: &Tuning) -> Shape {
        Shape::spread(Kernel::Pull, bytes.div_ceil(16), (512, 128))
    }
}
