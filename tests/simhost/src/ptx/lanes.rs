//! Register file and the loops over 32 lanes.
//!
//! A register of N bytes is an array of 32 values of N bytes, a predicate one word with a bit per lane. An operation is a
//! closure over values of one lane; the wrappers here turn it into a loop over the lanes, compiled for the baseline CPU
//! and for AVX2 and chosen when the module is parsed.

use std::sync::{Mutex, PoisonError};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// "No such operand".
pub(super) const NONE: u32 = u32::MAX;

/// Executes one operation on the lanes in the mask; all bits set is the fast path.
///
/// # Safety
/// The pointer is the start of a register file laid out for the code the operands belong to.
pub(super) type LaneFn = unsafe fn(*mut u8, &[u32; 6], u32);

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Bytes aligned to 64. What they hold before `clear` is whatever a launch before left there.
pub(super) struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

/// Memory of launches that ended, for those to come, and how many lines it comes to: most launches are short, and would
/// spend a good part of their time on fresh pages.
static SPARE: Mutex<(Vec<Vec<Line>>, usize)> = Mutex::new((Vec::new(), 0));
/// Lines that are kept at most: 16 MiB.
const SPARE_LINES: usize = 1 << 18;

impl Aligned {
    pub(super) fn new(len: usize) -> Aligned {
        let wanted = len.div_ceil(64);
        Aligned {
            lines: Self::spare(wanted).unwrap_or_else(|| vec![Line([0; 64]); wanted]),
            len,
        }
    }
    fn spare(wanted: usize) -> Option<Vec<Line>> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |v: &Vec<Line>| wanted > 0 && (wanted..=2 * wanted).contains(&v.len());
        let place = spare.0.iter().rposition(fits)?;
        let kept = spare.0.swap_remove(place);
        spare.1 -= kept.len();
        Some(kept)
    }
    pub(super) fn ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
    pub(super) fn clear(&mut self) {
        self.lines[..self.len.div_ceil(64)].fill(Line([0; 64]));
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        let mine = std::mem::take(&mut self.lines);
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if !mine.is_empty() && spare.1 + mine.len() <= SPARE_LINES {
            spare.1 += mine.len();
            spare.0.push(mine);
        }
    }
}

/// The value of a zero-sized closure type.
#[inline(always)]
fn conjure<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "a lane operation captures nothing") };
    // SAFETY: F has no bytes, is Copy, and the caller of `un`, `bin`, ... had a value of it.
    unsafe { std::ptr::NonNull::<F>::dangling().as_ptr().read() }
}

/// Lanes handled at once: operands are read before results are written, so a destination may be a source too.
const CHUNK: usize = 8;

macro_rules! lane_loop {
    ($name:ident, $body:ident, $base:ident, $wide:ident, [$($t:ident = $k:literal),*]) => {
        #[inline(always)]
        unsafe fn $body<D: Copy, $($t: Copy,)* F: Fn($($t),*) -> D + Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
            let f = conjure::<F>();
            // SAFETY: offsets come from the decoder, which gave each register 32 values of its own size; a chunk lies inside.
            unsafe {
                let d = regs.add(o[0] as usize).cast::<[D; CHUNK]>();
                let mut c = 0;
                while c < LANES / CHUNK {
                    let old = *d.add(c);
                    #[allow(non_snake_case)]
                    let ($($t,)*) = ($(*regs.add(o[$k] as usize).cast::<[$t; CHUNK]>().add(c),)*);
                    let new: [D; CHUNK] = std::array::from_fn(|i| f($($t[i]),*));
                    if mask == !0 {
                        *d.add(c) = new;
                    } else {
                        let m = mask >> (c * CHUNK);
                        *d.add(c) = std::array::from_fn(|i| if m >> i & 1 != 0 { new[i] } else { old[i] });
                    }
                    c += 1;
                }
            }
        }
        unsafe fn $base<D: Copy, $($t: Copy,)* F: Fn($($t),*) -> D + Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
            // SAFETY: as for the body.
            unsafe { $body::<D, $($t,)* F>(regs, o, mask) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
        unsafe fn $wide<D: Copy, $($t: Copy,)* F: Fn($($t),*) -> D + Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
            // SAFETY: as for the body.
            unsafe { $body::<D, $($t,)* F>(regs, o, mask) }
        }
        /// The closure over all lanes: operand 0 is the destination, the sources follow.
        pub(super) fn $name<D: Copy, $($t: Copy,)* F: Fn($($t),*) -> D + Copy>(_: F) -> LaneFn {
            #[cfg(target_arch = "x86_64")]
            if wide() {
                return $wide::<D, $($t,)* F>;
            }
            $base::<D, $($t,)* F>
        }
    };
}

lane_loop!(un, un_body, un_base, un_wide, [A = 1]);
lane_loop!(bin, bin_body, bin_base, bin_wide, [A = 1, B = 2]);
lane_loop!(tern, tern_body, tern_base, tern_wide, [A = 1, B = 2, C = 3]);
lane_loop!(
    quad,
    quad_body,
    quad_base,
    quad_wide,
    [A = 1, B = 2, C = 3, E = 4]
);

#[cfg(target_arch = "x86_64")]
fn wide() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("bmi1") && has!("bmi2") && has!("fma") && has!("lzcnt") && has!("popcnt")
}

#[inline(always)]
unsafe fn cmp_body<A: Copy, F: Fn(A, A) -> bool + Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
    let f = conjure::<F>();
    // SAFETY: as for lane_loop; the destination is a predicate, one aligned word.
    unsafe {
        let a = &*regs.add(o[1] as usize).cast::<[A; LANES]>();
        let b = &*regs.add(o[2] as usize).cast::<[A; LANES]>();
        let mut bytes = [0u8; LANES];
        for i in 0..LANES {
            bytes[i] = u8::from(f(a[i], b[i]));
        }
        let mut bits = 0u32;
        for (k, eight) in bytes.chunks_exact(8).enumerate() {
            let v = u64::from_le_bytes([
                eight[0], eight[1], eight[2], eight[3], eight[4], eight[5], eight[6], eight[7],
            ]);
            // Gathers the low bits of eight bytes into the top byte, first byte lowest.
            bits |= ((v.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32) << (8 * k);
        }
        let d = regs.add(o[0] as usize).cast::<u32>();
        *d = (*d & !mask) | (bits & mask);
    }
}
unsafe fn cmp_base<A: Copy, F: Fn(A, A) -> bool + Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
    // SAFETY: as for the body.
    unsafe { cmp_body::<A, F>(regs, o, mask) }
}
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
unsafe fn cmp_wide<A: Copy, F: Fn(A, A) -> bool + Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
    // SAFETY: as for the body.
    unsafe { cmp_body::<A, F>(regs, o, mask) }
}
/// A comparison over all lanes into a predicate.
pub(super) fn cmp<A: Copy, F: Fn(A, A) -> bool + Copy>(_: F) -> LaneFn {
    #[cfg(target_arch = "x86_64")]
    if wide() {
        return cmp_wide::<A, F>;
    }
    cmp_base::<A, F>
}

unsafe fn preds_body<F: Fn(u32, u32) -> u32 + Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
    let f = conjure::<F>();
    // SAFETY: all three operands are predicates, aligned words of the register file.
    unsafe {
        let at = |k: usize| regs.add(o[k] as usize).cast::<u32>();
        let v = f(*at(1), *at(2));
        *at(0) = (*at(0) & !mask) | (v & mask);
    }
}
/// Bitwise operation on two predicates, all lanes at once.
pub(super) fn preds<F: Fn(u32, u32) -> u32 + Copy>(_: F) -> LaneFn {
    preds_body::<F>
}

#[inline(always)]
unsafe fn sel_body<T: Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
    // SAFETY: as for lane_loop; operand 3 is a predicate.
    unsafe {
        let p = *regs.add(o[3] as usize).cast::<u32>();
        let d = regs.add(o[0] as usize).cast::<[T; CHUNK]>();
        for c in 0..LANES / CHUNK {
            let old = *d.add(c);
            let a = *regs.add(o[1] as usize).cast::<[T; CHUNK]>().add(c);
            let b = *regs.add(o[2] as usize).cast::<[T; CHUNK]>().add(c);
            let (p, m) = (p >> (c * CHUNK), mask >> (c * CHUNK));
            *d.add(c) = std::array::from_fn(|i| {
                let v = if p >> i & 1 != 0 { a[i] } else { b[i] };
                if m >> i & 1 != 0 { v } else { old[i] }
            });
        }
    }
}
unsafe fn sel_base<T: Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
    // SAFETY: as for the body.
    unsafe { sel_body::<T>(regs, o, mask) }
}
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn sel_wide<T: Copy>(regs: *mut u8, o: &[u32; 6], mask: u32) {
    // SAFETY: as for the body.
    unsafe { sel_body::<T>(regs, o, mask) }
}
/// `selp`: operand 3, a predicate, chooses between operands 1 and 2.
pub(super) fn sel<T: Copy>() -> LaneFn {
    #[cfg(target_arch = "x86_64")]
    if wide() {
        return sel_wide::<T>;
    }
    sel_base::<T>
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an operation on registers 0 (destination, all ones before) to 3.
    fn apply(f: LaneFn, mask: u32) -> Vec<u8> {
        let mut regs = Aligned::new(4 * 256);
        let p = regs.ptr();
        for i in 0..128u64 {
            // SAFETY: inside the 1024 bytes.
            unsafe {
                *p.cast::<u64>().add(i as usize) = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i << 30)
            };
        }
        // SAFETY: four registers of 256 bytes, whatever the operand's size.
        unsafe {
            std::ptr::write_bytes(p, 0xff, 256);
            f(p, &[0, 256, 512, 768, 0, 0], mask);
            std::slice::from_raw_parts(p, 256).to_vec()
        }
    }

    fn alike<D: Copy, A: Copy, B: Copy, C: Copy, F: Fn(A, B, C) -> D + Copy>(f: F) {
        for mask in [!0, 0, 1, 0x8000_0001, 0x0f0f_3c5a] {
            let base = apply(tern_base::<D, A, B, C, F>, mask);
            assert_eq!(base, apply(tern(f), mask));
            let whole = apply(tern(f), !0);
            for lane in 0..LANES {
                let bytes = lane * size_of::<D>()..(lane + 1) * size_of::<D>();
                let kept = base[bytes.clone()].iter().all(|b| *b == 0xff);
                assert!(if mask >> lane & 1 == 1 {
                    base[bytes.clone()] == whole[bytes]
                } else {
                    kept
                });
            }
        }
    }

    #[test]
    fn baseline_and_wide_code_agree_and_keep_masked_lanes() {
        alike(|a: u64, b: u64, c: u64| a.wrapping_mul(b) ^ c >> 7);
        alike(|a: u32, b: u32, c: u32| a.wrapping_add(b).rotate_left(c & 31));
        alike(|a: f32, b: f32, c: f32| super::super::float::canon(a.mul_add(b, c)));
        alike(|a: u16, b: u64, c: u32| a.wrapping_add(b as u16) ^ c as u16);
        fn both<F: Fn(i64, i64) -> bool + Copy>(f: F, mask: u32) {
            assert_eq!(apply(cmp_base::<i64, F>, mask), apply(cmp(f), mask));
        }
        for mask in [!0, 0x1234_5678] {
            both(|a, b| a < b, mask);
            assert_eq!(apply(sel_base::<u64>, mask), apply(sel::<u64>(), mask));
        }
    }
}
