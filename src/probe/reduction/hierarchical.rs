//! Hierarchical: two islands of equally many ranks. Sums are made inside each, and only those cross between them.

use super::{Algorithm, Tuning, exact::Order};
use crate::gpu::reduce::{Kernel, Shape};

/// The link between the islands carries each island's sum once in each direction, in the element type: less is not possible.
pub(super) struct Hierarchical;

impl Algorithm for Hierarchical {
    fn id(&self) -> &'static str {
        "hierarchical"
    }

    fn title(&self) -> &'static str {
        "sums inside two islands (ranks 0 to n/2-1, and the rest); only the sums cross between them"
    }

    fn takes(&self, ranks: u32) -> bool {
        matches!(ranks, 4 | 8)
    }

    fn largest(&self, _ranks: u32) -> u64 {
        64 << 20
    }

    fn order(&self) -> Order {
        Order::Islands
    }

    fn shape(&self, ranks: u32, bytes: u64, _tuning: &Tuning) -> Shape {
        let share = bytes.div_ceil(16).div_ceil(u64::from((ranks / 2).max(1)));
        Shape::spread(Kernel::Islands, share, (512, 64))
    }
}
