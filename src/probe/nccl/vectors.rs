//! Vectors whose sum is known to the bit. Elements are small integers, so that the sum over all ranks and every partial sum is
//! exact in every type and any order of addition gives the same bits. They follow from element, rank and call; they repeat after
//! a prime number of elements, so that a buffer is filled and compared by whole pieces, and a vector that is shifted or swapped
//! by any of NCCL's own strides differs all the same.

use crate::model::{
    case::{Corruption, Sample, UnitCounts, WrongKind},
    reduction::Dtype,
};

/// Elements after which a vector repeats.
const PERIOD: usize = 16_381;
/// Integers up to here are exact in bf16, the type with the fewest digits (8 bits).
const EXACT: i32 = 256;
/// What an output is filled with before a call: no sum has these bytes in any of the types.
pub(super) const POISON: u8 = 0xa5;

/// Largest magnitude of an element, so that no partial sum of `ranks` leaves the exact range.
fn most(ranks: u32) -> i32 {
    (EXACT / ranks.max(1) as i32).clamp(1, 31)
}

/// The element of a rank's vector.
fn element(seed: u64, rank: u32, at: usize, most: i32) -> i32 {
    let mut word = seed ^ (u64::from(rank) << 48) ^ at as u64;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^= word >> 31;
    (word % (2 * most as u64 + 1)) as i32 - most
}

/// An integer of at most 256 as the type writes it, little endian.
fn write(value: i32, dtype: Dtype, out: &mut Vec<u8>) {
    let single = (value as f32).to_bits();
    match dtype {
        Dtype::Fp32 => out.extend(single.to_le_bytes()),
        // The upper half of the single, whose lower half is zero for such integers.
        Dtype::Bf16 => out.extend(((single >> 16) as u16).to_le_bytes()),
        Dtype::Fp16 => {
            let half = match value {
                0 => 0,
                // Sign, exponent with its bias changed from 127 to 15, upper ten bits of the fraction.
                _ => {
                    ((single >> 16) & 0x8000)
                        | ((((single >> 23) & 0xff) - 112) << 10)
                        | ((single >> 13) & 0x3ff)
                }
            };
            out.extend((half as u16).to_le_bytes());
        }
    }
}

fn pattern(dtype: Dtype, elements: usize, value: impl Fn(usize) -> i32) -> Vec<u8> {
    let mut out = Vec::with_capacity(elements * dtype.bytes() as usize);
    for at in 0..elements {
        write(value(at), dtype, &mut out);
    }
    out
}

/// One call's vectors: each rank's, and the sum.
pub(super) struct Call {
    dtype: Dtype,
    seed: u64,
    ranks: u32,
    elements: usize,
}

impl Call {
    /// Of `bytes` bytes over `ranks` ranks; `number` tells calls apart.
    pub(super) fn new(dtype: Dtype, ranks: u32, bytes: u64, (seed, number): (u32, u64)) -> Call {
        let seed = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Call {
            dtype,
            seed: seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93),
            ranks,
            elements: PERIOD.min((bytes / dtype.bytes()) as usize),
        }
    }

    /// What a rank puts in, up to where it repeats.
    pub(super) fn input(&self, rank: u32) -> Vec<u8> {
        let most = most(self.ranks);
        pattern(self.dtype, self.elements, |at| {
            element(self.seed, rank, at, most)
        })
    }

    /// What every rank must hold afterwards.
    pub(super) fn sum(&self) -> Vec<u8> {
        let most = most(self.ranks);
        pattern(self.dtype, self.elements, |at| {
            let parts = (0..self.ranks).map(|rank| element(self.seed, rank, at, most));
            parts.sum()
        })
    }
}

/// Fills `out`, which lies at `offset` of a vector, with its repeating pattern.
pub(super) fn repeat(pattern: &[u8], offset: usize, out: &mut [u8]) {
    let mut at = offset % pattern.len().max(1);
    let mut rest = out;
    while !rest.is_empty() && !pattern.is_empty() {
        let piece = pattern.get(at..).unwrap_or_default();
        let n = piece.len().min(rest.len());
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(piece.get(..n).unwrap_or_default());
        rest = tail;
        at = 0;
    }
}

/// What was found wrong of one vector.
#[derive(Debug, Default)]
pub(super) struct Wrong {
    elements: u64,
    wrong: u64,
    zero: u64,
    ones: u64,
    poison: u64,
    first: Option<u64>,
    last: u64,
    sample: Option<(Vec<u8>, Vec<u8>)>,
}

impl Wrong {
    /// Compares `got`, which lies at `offset`, with the pattern that belongs there. Both in whole elements.
    pub(super) fn compare(&mut self, pattern: &[u8], offset: usize, got: &[u8], dtype: Dtype) {
        let width = dtype.bytes() as usize;
        self.elements += (got.len() / width) as u64;
        let mut at = offset % pattern.len().max(1);
        let mut done = 0;
        while done < got.len() && !pattern.is_empty() {
            let belongs = pattern.get(at..).unwrap_or_default();
            let n = belongs.len().min(got.len() - done);
            let belongs = belongs.get(..n).unwrap_or_default();
            let seen = got.get(done..done + n).unwrap_or_default();
            // Nearly always equal, and then as fast as memory.
            if belongs != seen {
                self.count(belongs, seen, (offset + done) as u64, width);
            }
            done += n;
            at = 0;
        }
    }

    fn count(&mut self, belongs: &[u8], seen: &[u8], offset: u64, width: usize) {
        let pairs = belongs.chunks_exact(width).zip(seen.chunks_exact(width));
        for (at, (belongs, seen)) in pairs.enumerate().filter(|(_, (b, s))| b != s) {
            let place = offset + (at * width) as u64;
            self.wrong += 1;
            self.last = place + width as u64;
            if self.first.is_none() {
                self.first = Some(place);
                self.sample = Some((belongs.to_vec(), seen.to_vec()));
            }
            let all = |byte: u8| seen.iter().all(|b| *b == byte);
            self.zero += u64::from(all(0));
            self.ones += u64::from(all(0xff));
            self.poison += u64::from(all(POISON));
        }
    }

    /// Whether all was right.
    pub(super) fn is_right(&self) -> bool {
        self.wrong == 0
    }

    /// As evidence. The kind is that of all wrong elements, or mixed: a sum says little of how its parts went wrong.
    pub(super) fn evidence(self, what: &str, attempt: u32, attempts: (u32, u32)) -> Corruption {
        let kind = match self.wrong {
            n if n == self.poison => WrongKind::Dropped,
            n if n == self.zero => WrongKind::Zeroed,
            n if n == self.ones => WrongKind::Ones,
            _ => WrongKind::Mixed,
        };
        let offset = self.first.unwrap_or_default();
        let text = |bytes: &[u8]| super::wire::hex(bytes);
        let sample = self.sample.as_ref().map(|(expected, owner)| Sample {
            offset,
            expected: text(expected),
            owner: text(owner),
            accessor: None,
            reread: None,
            origin: None,
        });
        Corruption {
            kind,
            detail: format!(
                "{what}: {} of {} elements are not the sum",
                self.wrong, self.elements
            ),
            attempt,
            wrong_attempts: attempts.0,
            attempts_ran: attempts.1,
            first_offset: offset,
            last_offset: self.last,
            wrong_units: self.wrong,
            units: self.elements,
            counts: UnitCounts {
                equal: self.elements - self.wrong,
                poison: self.poison,
                zero: self.zero,
                ones: self.ones,
                unknown: self.wrong - (self.poison + self.zero + self.ones).min(self.wrong),
                ..UnitCounts::default()
            },
            samples: sample.into_iter().collect(),
            accessor_sees_right: None,
            source_intact: None,
            owner_views_agree: None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn read(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
        let wide = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
        bytes
            .chunks_exact(dtype.bytes() as usize)
            .map(|b| match dtype {
                Dtype::Fp32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                Dtype::Bf16 => f32::from_bits(u32::from(wide(b)) << 16),
                Dtype::Fp16 => {
                    let half = u32::from(wide(b));
                    let (exponent, fraction) = ((half >> 10) & 31, half & 1023);
                    let size = (1.0 + fraction as f32 / 1024.0) * 2f32.powi(exponent as i32 - 15);
                    let size = if half & 0x7fff == 0 { 0.0 } else { size };
                    if half & 0x8000 == 0 { size } else { -size }
                }
            })
            .collect()
    }

    /// In every type, added in single precision and rounded to the type after each step, in two orders.
    #[test]
    fn sums_are_exact_in_any_order() {
        for dtype in Dtype::ALL {
            for ranks in [2, 3, 7, 8, 16] {
                let call = Call::new(dtype, ranks, 65_536, (7, 3));
                let parts: Vec<Vec<f32>> =
                    (0..ranks).map(|r| read(&call.input(r), dtype)).collect();
                let sum = read(&call.sum(), dtype);
                for at in 0..call.elements {
                    let step = |sum: f32, part: &Vec<f32>| {
                        let mut bytes = Vec::new();
                        let next = sum + part[at];
                        assert!(next.abs() <= 256.0);
                        write(next as i32, dtype, &mut bytes);
                        assert_eq!(read(&bytes, dtype), [next]);
                        next
                    };
                    assert_eq!(parts.iter().fold(0.0, step), sum[at]);
                    assert_eq!(parts.iter().rev().fold(0.0, step), sum[at]);
                }
                assert!(sum.iter().any(|s| *s > 20.0) && sum.iter().any(|s| *s < 0.0));
            }
        }
    }

    #[test]
    fn calls_ranks_and_places_differ() {
        let call = |number| Call::new(Dtype::Fp16, 2, 1 << 20, (1, number));
        assert_ne!(call(1).input(0), call(2).input(0));
        assert_ne!(call(1).input(0), call(1).input(1));
        assert_eq!(call(1).input(0).len(), PERIOD * 2);
        let (pattern, mut out) = (call(1).input(0), vec![0; 80_000]);
        repeat(&pattern, 10, &mut out);
        assert_eq!(out[0], pattern[10]);
        assert_eq!(out[PERIOD * 2], pattern[10]);
    }

    #[test]
    fn what_is_wrong_is_counted_and_named() {
        let call = Call::new(Dtype::Bf16, 4, 100_000, (1, 1));
        let sum = call.sum();
        let mut got = vec![0; 100_000];
        repeat(&sum, 0, &mut got);
        let judged = |got: &[u8]| {
            let mut wrong = Wrong::default();
            wrong.compare(&sum, 0, &got[..60_000], Dtype::Bf16);
            wrong.compare(&sum, 60_000, &got[60_000..], Dtype::Bf16);
            wrong
        };
        assert!(judged(&got).is_right());
        assert_eq!(judged(&got).elements, 50_000);
        got[70_000] ^= 0x40;
        let wrong = judged(&got);
        assert_eq!((wrong.wrong, wrong.first), (1, Some(70_000)));
        assert_eq!(wrong.evidence("rank 1", 2, (1, 3)).kind, WrongKind::Mixed);
        let poisoned = judged(&vec![POISON; 100_000]);
        assert_eq!(poisoned.wrong, 50_000);
        let evidence = poisoned.evidence("rank 0", 1, (1, 1));
        assert_eq!(evidence.kind, WrongKind::Dropped);
        assert!(evidence.detail.contains("50000 of 50000"));
        let zeroed = judged(&vec![0; 100_000]).evidence("rank 0", 1, (1, 1));
        assert_eq!(zeroed.kind, WrongKind::Zeroed);
    }
}
