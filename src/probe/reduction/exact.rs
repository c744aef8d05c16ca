//! What vectors hold and what their sum must be, to the bit: the host's twin of fill and verify in `kernels/reduce.cu`.
//! Knows numbers only.
//!
//! The sum of an element is made in single precision: it starts at +0, adds the ranks in order, and is rounded once to the
//! element type, to nearest, ties to even. By islands: each half of the ranks so, and then lower half plus upper half.

use crate::model::reduction::Dtype;
use serde::{Deserialize, Serialize};

/// What vectors hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Integers so small that every sum over eight ranks is exact, in whatever order: |x| at most 31 for bf16, 255 for
    /// fp16, 2^20 - 1 for fp32.
    Integers,
    /// Numbers of either sign from eight binades: the last bits depend on order and rounding.
    Random,
}

/// The order of addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Rank by rank, rounded once.
    Ranks,
    /// Two islands rank by rank, each sum rounded; then the two sums, rounded again.
    Islands,
}

/// One rank's contribution to one call.
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    dtype: Dtype,
    values: Values,
    key: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const ROUNDS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

fn stir(value: u64, round: u64) -> u64 {
    let product = (value ^ value >> 32).wrapping_mul(round);
    product ^ product >> 29
}

impl Vector {
    /// What `rank` puts into `call`.
    pub fn new(dtype: Dtype, values: Values, seed: u64, (rank, call): (u32, u64)) -> Vector {
        let place = call.wrapping_mul(8).wrapping_add(u64::from(rank));
        let [first, _] = ROUNDS;
        Vector {
            dtype,
            values,
            key: stir(seed.wrapping_add(place.wrapping_mul(GOLDEN)), first),
        }
    }

    /// The bits of element `index`.
    pub fn bits(&self, index: u64) -> u32 {
        let [_, second] = ROUNDS;
        let v = stir((index ^ self.key).wrapping_mul(GOLDEN), second);
        let (low, high) = (v as u32, (v >> 32) as u32);
        let binade = high & 7;
        match (self.values, self.dtype) {
            (Values::Integers, dtype) => {
                let most: u32 = match dtype {
                    Dtype::Bf16 => 31,
                    Dtype::Fp16 => 255,
                    Dtype::Fp32 => (1 << 20) - 1,
                };
                let drawn = (u64::from(high) * u64::from(2 * most + 1)) >> 32;
                narrow(dtype, (drawn as i32 - most as i32) as f32)
            }
            (Values::Random, Dtype::Fp32) => low & 0x807f_ffff | (120 + binade) << 23,
            (Values::Random, Dtype::Bf16) => low & 0x807f | (120 + binade) << 7,
            (Values::Random, Dtype::Fp16) => low & 0x83ff | (8 + binade) << 10,
        }
    }
}

/// The bits of the sum of `terms`, bits in rank order.
pub fn sum(dtype: Dtype, order: Order, terms: &[u32]) -> u32 {
    let add = |terms: &[u32]| {
        let sum = terms
            .iter()
            .fold(0f32, |sum, bits| sum + widen(dtype, *bits));
        narrow(dtype, sum)
    };
    match order {
        Order::Ranks => add(terms),
        Order::Islands => {
            let (lower, upper) = terms.split_at(terms.len() / 2);
            add(&[add(lower), add(upper)])
        }
    }
}

/// The bits of an element of a call's result over `ranks` ranks.
pub fn expected(
    dtype: Dtype,
    (values, order): (Values, Order),
    (seed, ranks): (u64, u32),
    (call, index): (u64, u64),
) -> u32 {
    let terms: Vec<u32> = (0..ranks)
        .map(|rank| Vector::new(dtype, values, seed, (rank, call)).bits(index))
        .collect();
    sum(dtype, order, &terms)
}

/// The value of bits.
pub fn widen(dtype: Dtype, bits: u32) -> f32 {
    match dtype {
        Dtype::Fp32 => f32::from_bits(bits),
        Dtype::Bf16 => f32::from_bits(bits << 16),
        Dtype::Fp16 => {
            let (sign, exponent, fraction) = ((bits & 0x8000) << 16, bits >> 10 & 31, bits & 0x3ff);
            match exponent {
                31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
                // Subnormal: exact as a product of two powers.
                0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
                _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
            }
        }
    }
}

/// The bits of a finite value, rounded to nearest, ties to even; beyond the largest: infinity.
pub fn narrow(dtype: Dtype, value: f32) -> u32 {
    let bits = value.to_bits();
    match dtype {
        Dtype::Fp32 => bits,
        Dtype::Bf16 => (bits + 0x7fff + (bits >> 16 & 1)) >> 16,
        Dtype::Fp16 => {
            let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
            if magnitude >= 143 << 23 {
                return sign | 0x7c00;
            }
            // Below 2^-14 a half counts in steps of 2^-24: adding a number whose own step that is rounds to it.
            if magnitude < 113 << 23 {
                let half = f32::from_bits(magnitude) + 0.5;
                return sign | (half.to_bits() - 0.5f32.to_bits());
            }
            let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
            sign | (rounded - (112 << 23)) >> 13
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_and_returns() {
        for dtype in [Dtype::Fp16, Dtype::Bf16] {
            for bits in 0..=0xffffu32 {
                let value = widen(dtype, bits);
                if value.is_finite() {
                    assert_eq!(narrow(dtype, value), bits, "{dtype} {bits:04x}");
                }
            }
        }
        assert_eq!(widen(Dtype::Fp16, 0x3c00), 1.0);
        assert_eq!(widen(Dtype::Fp16, 0x0001), 2f32.powi(-24));
        assert_eq!(widen(Dtype::Fp16, 0xfbff), -65504.0);
        assert_eq!(widen(Dtype::Bf16, 0x4049), 3.140_625);
    }

    #[test]
    fn midpoints_go_to_even_and_neighbours_to_their_side() {
        for dtype in [Dtype::Fp16, Dtype::Bf16] {
            for bits in 0..0x7b00u32 {
                let (here, next) = (widen(dtype, bits), widen(dtype, bits + 1));
                let middle = here + (next - here) / 2.0;
                let even = bits + (bits & 1);
                assert_eq!(narrow(dtype, middle), even, "{dtype} {bits:04x}");
                let below = f32::from_bits(middle.to_bits() - 1);
                let above = f32::from_bits(middle.to_bits() + 1);
                if below > here && above < next {
                    assert_eq!(
                        (narrow(dtype, below), narrow(dtype, above)),
                        (bits, bits + 1)
                    );
                }
            }
        }
        assert_eq!(narrow(Dtype::Fp16, 65520.0), 0x7c00);
    }

    #[test]
    fn integers_stay_exact_over_eight_ranks_in_any_order() {
        for dtype in Dtype::ALL {
            let mut seen = 0f32;
            for index in 0..2000 {
                let terms: Vec<u32> = (0..8)
                    .map(|rank| Vector::new(dtype, Values::Integers, 7, (rank, 3)).bits(index))
                    .collect();
                let exact: f64 = terms.iter().map(|t| f64::from(widen(dtype, *t))).sum();
                seen = terms
                    .iter()
                    .fold(seen, |m, t| m.max(widen(dtype, *t).abs()));
                for order in [Order::Ranks, Order::Islands] {
                    let bits = sum(dtype, order, &terms);
                    assert_eq!(f64::from(widen(dtype, bits)), exact, "{dtype} {index}");
                }
            }
            let most = match dtype {
                Dtype::Bf16 => 31.0,
                Dtype::Fp16 => 255.0,
                Dtype::Fp32 => 1_048_575.0,
            };
            assert!(seen <= most && seen > most * 0.9, "{dtype}: {seen}");
        }
    }

    #[test]
    fn random_values_tell_the_orders_apart() {
        for dtype in Dtype::ALL {
            let different = (0..2000).filter(|index| {
                let of = |order| expected(dtype, (Values::Random, order), (1, 8), (0, *index));
                of(Order::Ranks) != of(Order::Islands)
            });
            assert!(different.count() > 100, "{dtype}");
        }
    }

    #[test]
    fn ranks_calls_elements_and_seeds_differ() {
        let of = |seed, rank, call, index| {
            Vector::new(Dtype::Fp32, Values::Integers, seed, (rank, call)).bits(index)
        };
        let base = of(1, 0, 5, 9);
        let others = [
            of(2, 0, 5, 9),
            of(1, 1, 5, 9),
            of(1, 0, 4, 9),
            of(1, 0, 5, 10),
        ];
        assert!(others.iter().all(|other| *other != base));
    }
}
