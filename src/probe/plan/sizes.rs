//! Sizes and places of transfers, scaled to memory: the same rules fit a 141 GB card and a simulated one of a few MiB.

use super::Budget;

/// Alignment of sizes that are not chosen to be odd.
pub(super) const PAGE: u64 = 4096;

/// One size at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Offset in source and destination buffer, bytes.
    pub(super) offset: u64,
    /// Length, bytes.
    pub(super) bytes: u64,
    /// Attempts, each with fresh poison and fresh words.
    pub(super) attempts: u32,
}

/// All shapes of a budget, and the size at which rates are taken.
pub(super) struct Shapes {
    /// Smallest first; those beyond BAR1 last.
    pub(super) all: Vec<Shape>,
    /// Bytes of a timed transfer.
    pub(super) timed: u64,
}

impl Shapes {
    /// For GPUs with at least `memory` bytes free each and, where known, a BAR1 window of `bar1` bytes.
    pub(super) fn of(memory: u64, bar1: Option<u64>, budget: Budget) -> Shapes {
        let scaled =
            |share: u64, low: u64, high: u64| (memory / share).clamp(low, high) / PAGE * PAGE;
        let middle = scaled(256, 64 << 10, 1 << 20);
        let big = scaled(64, 128 << 10, 64 << 20);
        let attempts = budget.attempts();
        let shape = |offset, bytes| Shape {
            offset,
            bytes,
            attempts,
        };
        // 4 bytes: less than a unit. The tail of the middle size is odd on purpose.
        let mut all = vec![shape(0, 4), shape(0, PAGE), shape(PAGE, middle - 3)];
        if budget != Budget::Quick {
            all.push(shape(0, big));
        }
        if let Some(bar1) =
            bar1.filter(|bar1| *bar1 > 0 && bar1.saturating_add(middle) <= memory / 8)
        {
            all.push(shape(bar1, middle));
        }
        Shapes { all, timed: big }
    }

    /// Bytes that a buffer must have to hold every shape.
    pub(super) fn span(&self) -> u64 {
        self.all
            .iter()
            .map(|shape| shape.offset + shape.bytes)
            .chain([self.timed])
            .max()
            .unwrap_or(PAGE)
            .next_multiple_of(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_scale_with_memory_and_pass_bar1() {
        let of = |memory, bar1| Shapes::of(memory, Some(bar1), Budget::Default);
        let real = of(140 << 30, 256 << 30);
        assert_eq!(real.timed, 64 << 20);
        assert_eq!(
            real.all.len(),
            4,
            "BAR1 larger than memory: nothing lies beyond it"
        );
        let small = of(32 << 20, 2 << 20);
        assert!(
            small.all.iter().any(|shape| shape.offset == 2 << 20),
            "{:?}",
            small.all
        );
        let ada = of(48 << 30, 256 << 20);
        assert!(ada.all.iter().any(|shape| shape.offset == 256 << 20));
    }
}
