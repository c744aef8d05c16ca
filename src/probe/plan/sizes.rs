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
    /// What memory or budget leave out, in words.
    pub(super) left_out: Vec<String>,
}

/// The largest transfer: copies of 256 MiB and more have gone wrong where smaller ones did not.
const LARGEST: u64 = (256 << 20) + PAGE;
/// Of the free memory, the part that one of a GPU's three buffers may take.
const SHARE: u64 = 6;

impl Shapes {
    /// For GPUs with at least `memory` bytes free each and, where known, a BAR1 window of `bar1` bytes.
    pub(super) fn of(memory: u64, bar1: Option<u64>, budget: Budget) -> Shapes {
        let scaled =
            |share: u64, low: u64, high: u64| (memory / share).clamp(low, high) / PAGE * PAGE;
        let middle = scaled(512, 64 << 10, 1 << 20);
        let big = scaled(128, 128 << 10, 64 << 20);
        let small = middle.min(64 << 10);
        let (most, quick) = (memory / SHARE, budget == Budget::Quick);
        let mut left_out = Vec::new();
        let mut all = Vec::new();
        let mut add = |offset: u64, bytes: u64, attempts: u32| {
            all.push(Shape {
                offset,
                bytes,
                attempts,
            });
        };
        let attempts = budget.attempts();
        // Less than a unit; one page; a page and a bit that starts and ends inside units; an odd length.
        add(0, 4, attempts);
        if !quick {
            add(0, PAGE, attempts);
        }
        add(PAGE + 5, PAGE + 6, attempts);
        if !quick && small < middle {
            add(0, small, attempts);
        }
        add(PAGE, middle - 3, attempts);
        if quick {
            left_out.push(format!(
                "transfers above {} and repeated attempts, by --quick",
                size(middle)
            ));
        } else {
            add(0, big, 1);
            if big < 64 << 20 {
                left_out.push(format!(
                    "transfers above {} in less than 8 GiB of free memory: the smallest GPU has {}",
                    size(big),
                    size(memory)
                ));
            } else if LARGEST <= most {
                add(0, LARGEST, 1);
            } else {
                left_out.push(format!(
                    "a transfer of 256 MiB and a page: it is more than a sixth of the free memory, {}",
                    size(memory)
                ));
            }
        }
        match bar1.filter(|bar1| *bar1 > 0) {
            None => left_out.push("offsets beyond BAR1: its size is not known".to_string()),
            // No memory of the GPU lies beyond its window.
            Some(bar1) if bar1 >= memory => {}
            Some(bar1) if bar1.saturating_add(middle) <= most => {
                add(bar1, middle, attempts);
                // On a small GPU the window is large beside everything else.
                let longest = if big < 64 << 20 { 4 * big } else { LARGEST };
                let length = bar1 + PAGE;
                match (quick, length <= longest) {
                    (false, true) if length != LARGEST => add(0, length, 1),
                    (false, false) => left_out.push(format!(
                        "a transfer longer than BAR1, {}: it would be larger than all others",
                        size(bar1)
                    )),
                    _ => {}
                }
            }
            Some(bar1) => left_out.push(format!(
                "offsets beyond BAR1, {}: they lie outside a sixth of the free memory",
                size(bar1)
            )),
        }
        Shapes {
            all,
            timed: big,
            left_out,
        }
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

/// A size in the largest unit that it fills.
fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1024 => (1, "bytes"),
        1024..0x10_0000 => (1 << 10, "KiB"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    format!("{} {name}", bytes / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(memory: u64, bar1: u64, budget: Budget) -> Shapes {
        Shapes::of(memory, Some(bar1), budget)
    }

    /// Offsets and lengths, with attempts.
    fn all(shapes: &Shapes) -> Vec<(u64, u64, u32)> {
        let all = shapes.all.iter();
        all.map(|s| (s.offset, s.bytes, s.attempts)).collect()
    }

    #[test]
    fn a_large_gpu_gets_every_size() {
        let h200 = shapes(140 << 30, 256 << 30, Budget::Default);
        let wanted = [
            (0, 4, 3),
            (0, 4096, 3),
            (4101, 4102, 3),
            (0, 64 << 10, 3),
            (4096, (1 << 20) - 3, 3),
            (0, 64 << 20, 1),
            (0, (256 << 20) + 4096, 1),
        ];
        assert_eq!(all(&h200), wanted);
        // Nothing of it lies beyond its window, so nothing is missing.
        assert_eq!(h200.left_out, Vec::<String>::new());
        assert!(3 * h200.span() < (140 << 30) / 2);
    }

    #[test]
    fn beyond_bar1_in_offset_and_in_length() {
        let ada = shapes(48 << 30, 256 << 20, Budget::Default);
        assert!(all(&ada).contains(&(256 << 20, 1 << 20, 3)));
        // Longer than the window and 256 MiB and a page are the same transfer here.
        assert_eq!(all(&ada).iter().filter(|s| s.1 > 256 << 20).count(), 1);
        let simulated = shapes(64 << 20, 2 << 20, Budget::Default);
        assert!(all(&simulated).contains(&(2 << 20, 128 << 10, 3)));
        let far = shapes(80 << 30, 64 << 30, Budget::Default);
        assert!(far.left_out.iter().any(|text| text.contains("beyond BAR1")));
        let unknown = Shapes::of(80 << 30, None, Budget::Default);
        let texts = unknown.left_out;
        assert!(texts.iter().any(|text| text.contains("not known")), "{texts:?}");
    }

    #[test]
    fn memory_is_never_exceeded_and_what_does_not_fit_is_said() {
        for memory in [16 << 20, 32 << 20, 64 << 20, 1 << 30, 8 << 30, 80u64 << 30] {
            for bar1 in [1 << 20, 8 << 20, 256 << 20, 64u64 << 30] {
                for budget in [Budget::Quick, Budget::Default] {
                    let shapes = shapes(memory, bar1, budget);
                    assert!(3 * shapes.span() <= memory / 2, "{memory} {bar1} {budget:?}");
                    assert!(shapes.all.iter().all(|s| s.bytes > 0 && s.attempts > 0));
                    let whole = budget == Budget::Default && memory >= 8 << 30;
                    let within = bar1 <= 256 << 20 || bar1 >= memory;
                    assert_eq!(
                        shapes.left_out.is_empty(),
                        whole && within,
                        "{memory} {bar1} {budget:?} {:?}",
                        shapes.left_out
                    );
                }
            }
        }
    }

    #[test]
    fn some_transfers_start_and_end_inside_units() {
        for budget in [Budget::Quick, Budget::Default] {
            let shapes = shapes(64 << 20, 8 << 20, budget);
            assert!(shapes.all.iter().any(|s| s.offset % 16 != 0
                && s.offset % 4 != 0
                && (s.offset + s.bytes) % 16 != 0));
        }
    }
}
