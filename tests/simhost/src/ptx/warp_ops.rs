//! What lanes of a warp tell each other: shuffles, votes, matches. Knows no scheduling.

use super::access::{get, lanes, put};
use super::code::{Shuffle, Vote};
use super::exec::Warp;
use super::lanes::{LANES, NONE};

/// Operands: destination, destination predicate or NONE, value, lane operand, clamp and segment operand.
pub(super) fn shuffle(w: &mut Warp, mode: Shuffle, o: &[u32; 6], m: u32) {
    let regs = w.regs.ptr();
    // SAFETY: the decoder gave each operand 32 values of 4 bytes, and the predicate one word.
    unsafe {
        let row = |k: usize| *regs.add(o[k] as usize).cast::<[u32; LANES]>();
        let (value, b, c) = (row(2), row(3), row(4));
        let mut inside = 0u32;
        for i in lanes(m) {
            let lane = i as i32;
            let (bval, clamp, seg) = (
                (b[i] & 31) as i32,
                (c[i] & 31) as i32,
                (c[i] >> 8 & 31) as i32,
            );
            let max = (lane & seg) | (clamp & !seg);
            let min = lane & seg;
            let (j, ok) = match mode {
                Shuffle::Up => (lane - bval, lane - bval >= max),
                Shuffle::Down => (lane + bval, lane + bval <= max),
                Shuffle::Bfly => (lane ^ bval, lane ^ bval <= max),
                Shuffle::Idx => {
                    let j = min | (bval & !seg);
                    (j, j <= max)
                }
            };
            let from = if ok { j & 31 } else { lane };
            inside |= u32::from(ok) << i;
            put(
                regs.add(o[0] as usize),
                i,
                4,
                u64::from(value[from as usize]),
            );
        }
        if o[1] != NONE {
            let p = regs.add(o[1] as usize).cast::<u32>();
            *p = (*p & !m) | inside;
        }
    }
}

/// Operands: destination, source predicate. `m` holds the executing lanes, all of them members.
pub(super) fn vote(w: &mut Warp, vote: Vote, o: &[u32; 6], m: u32) {
    let regs = w.regs.ptr();
    // SAFETY: the source is a predicate; the destination a predicate or 32 values of 4 bytes.
    unsafe {
        let votes = *regs.add(o[1] as usize).cast::<u32>() & m;
        let d = regs.add(o[0] as usize);
        let all = match vote {
            Vote::All => votes == m,
            Vote::Any => votes != 0,
            Vote::Uni => votes == m || votes == 0,
            Vote::Ballot => {
                for i in lanes(m) {
                    put(d, i, 4, u64::from(votes));
                }
                return;
            }
        };
        let d = d.cast::<u32>();
        *d = if all { *d | m } else { *d & !m };
    }
}

/// Operands: destination, value of `size` bytes.
pub(super) fn match_any(w: &mut Warp, size: usize, o: &[u32; 6], m: u32) {
    let regs = w.regs.ptr();
    // SAFETY: the value register holds 32 values of `size` bytes, the destination 32 of 4.
    unsafe {
        let value = |i: usize| get(regs.add(o[1] as usize), i, size as u8);
        let mut found = [0u32; LANES];
        for i in lanes(m) {
            found[i] = lanes(m)
                .filter(|&j| value(j) == value(i))
                .fold(0, |acc, j| acc | 1 << j);
        }
        for i in lanes(m) {
            put(regs.add(o[0] as usize), i, 4, u64::from(found[i]));
        }
    }
}
