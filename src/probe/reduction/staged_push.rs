//! Staged push: the two-shot in rounds, so that at any instant a rank has one stream going out and one coming in.

use super::{Algorithm, Tuning};
use crate::gpu::reduce::{Kernel, Shape};

/// For PCIe, where streams from several ranks to one slow each other down. Round k sends to rank + k.
pub(super) struct StagedPush;

impl Algorithm for StagedPush {
    fn id(&self) -> &'static str {
        "staged-push"
    }

    fn title(&self) -> &'static str {
        "reduce-scatter, then all-gather, in rounds of one stream out and one in"
    }

    fn takes(&self, ranks: u32) -> bool {
        (2..=8).contains(&ranks)
    }

    fn largest(&self, _ranks: u32) -> u64 {
        64 << 20
    }

    fn shape(&self, ranks: u32, bytes: u64, _tuning: &Tuning) -> Shape {
        let share = bytes.div_ceil(16).div_ceil(u64::from(ranks.max(1)));
        // Few blocks: each is a stream of its own rounds, and PCIe wants few.
        Shape::spread(Kernel::Staged, share, (512, 16))
    }
}
