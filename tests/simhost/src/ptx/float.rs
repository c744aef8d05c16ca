//! Floating-point forms that Rust has no type for, and PTX's rules where they differ from Rust's.

pub(super) const NAN_F16: u16 = 0x7fff;

/// A NaN result of an f32 operation has one form. Told by the bits: to the compiler one NaN is as good as another, and it
/// drops a choice between a NaN and a NaN.
#[inline(always)]
pub(super) fn canon(x: f32) -> f32 {
    let b = x.to_bits();
    f32::from_bits(if b & 0x7fff_ffff > 0x7f80_0000 {
        0x7fff_ffff
    } else {
        b
    })
}

/// `.ftz`: a subnormal becomes zero of the same sign.
#[inline(always)]
pub(super) fn flush(x: f32) -> f32 {
    let b = x.to_bits();
    if b & 0x7f80_0000 == 0 {
        f32::from_bits(b & 0x8000_0000)
    } else {
        x
    }
}

/// `.sat`: into [0, 1]; NaN becomes +0.
#[inline(always)]
pub(super) fn saturate(x: f32) -> f32 {
    if x >= 1.0 {
        1.0
    } else if x > 0.0 {
        x
    } else {
        0.0
    }
}

#[inline(always)]
pub(super) fn min_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        canon(b)
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

#[inline(always)]
pub(super) fn max_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        canon(b)
    } else if b.is_nan() || a > b || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    }
}

#[inline(always)]
pub(super) fn min_f64(a: f64, b: f64) -> f64 {
    if a.is_nan() || !(b.is_nan() || a < b || (a == b && a.is_sign_negative())) {
        b
    } else {
        a
    }
}

#[inline(always)]
pub(super) fn max_f64(a: f64, b: f64) -> f64 {
    if a.is_nan() || !(b.is_nan() || a > b || (a == b && a.is_sign_positive())) {
        b
    } else {
        a
    }
}

/// Every f16 is an f32. The rebias puts a subnormal one step too high; subtracting the smallest normal renormalises it.
#[inline(always)]
pub(super) fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let body = u32::from(h & 0x7fff) << 13;
    let exp = body & 0x0f80_0000;
    let rebased = body + (112 << 23);
    let special = if body > 0x0f80_0000 {
        0x7fff_ffff & !sign
    } else {
        0x7f80_0000
    };
    let subnormal = (f32::from_bits(rebased + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let out = if exp == 0x0f80_0000 {
        special
    } else if exp == 0 {
        subnormal
    } else {
        rebased
    };
    // A NaN loses sign and payload, as the result of an f32 operation does.
    f32::from_bits(if body > 0x0f80_0000 {
        0x7fff_ffff
    } else {
        out | sign
    })
}

/// `cvt.rn.f16.f32`. The subnormal range is rounded by the host's own f32 addition: adding 0.5 leaves the f16 subnormal
/// in the low mantissa bits.
#[inline(always)]
pub(super) fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let f = bits & 0x7fff_ffff;
    let half = f32::from_bits(126 << 23);
    let sub = (f32::from_bits(f.min(113 << 23)) + half)
        .to_bits()
        .wrapping_sub(126 << 23);
    let normal = f
        .wrapping_sub(112 << 23)
        .wrapping_add(0xfff)
        .wrapping_add((f >> 13) & 1)
        >> 13;
    if f > 0x7f80_0000 {
        NAN_F16
    } else if f >= 143 << 23 {
        sign | 0x7c00
    } else if f < 113 << 23 {
        sign | sub as u16
    } else {
        sign | normal as u16
    }
}

/// `cvt.rz.f16.f32`: towards zero; overflow gives the largest finite value.
pub(super) fn f32_to_f16_rz(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let f = bits & 0x7fff_ffff;
    if f > 0x7f80_0000 {
        return NAN_F16;
    }
    if f == 0x7f80_0000 {
        return sign | 0x7c00;
    }
    if f >= 143 << 23 {
        return sign | 0x7bff;
    }
    if f >= 113 << 23 {
        return sign | ((f - (112 << 23)) >> 13) as u16;
    }
    let exp = f >> 23;
    let shift = 126 - exp.max(1);
    let mant = (f & 0x7f_ffff) | u32::from(exp != 0) << 23;
    sign | mant.checked_shr(shift).unwrap_or(0) as u16
}

/// Nearest f16 of an f64, ties to even.
pub(super) fn f64_to_f16(x: f64) -> u16 {
    // An f32 rounded to odd keeps every bit that the second rounding can depend on.
    let narrow = x as f32;
    let back = f64::from(narrow);
    if back == x || x.is_nan() || narrow.is_infinite() {
        return f32_to_f16(narrow);
    }
    let bits = narrow.to_bits();
    let odd = if bits & 1 == 1 {
        bits
    } else if back.abs() > x.abs() {
        // The smallest step down from zero magnitude cannot happen: zero is below every |x|.
        bits - 1
    } else {
        bits + 1
    };
    f32_to_f16(f32::from_bits(odd))
}

/// `fma.rn.f16`: the product of two f16 is exact in f64, and rounding the sum to odd makes the second rounding the only one.
pub(super) fn fma_f16(a: u16, b: u16, c: u16) -> u16 {
    let p = f64::from(f16_to_f32(a)) * f64::from(f16_to_f32(b));
    let c = f64::from(f16_to_f32(c));
    let s = p + c;
    let t = s - p;
    let err = (p - (s - t)) + (c - t);
    if err == 0.0 || !s.is_finite() || s.to_bits() & 1 == 1 {
        return f64_to_f16(s);
    }
    let away = (err > 0.0) == (s > 0.0);
    f64_to_f16(f64::from_bits(if away {
        s.to_bits() + 1
    } else {
        s.to_bits() - 1
    }))
}

#[inline(always)]
pub(super) fn f32_to_bf16(x: f32) -> u16 {
    let b = x.to_bits();
    if b & 0x7fff_ffff > 0x7f80_0000 {
        0x7fff
    } else {
        (b.wrapping_add(0x7fff + ((b >> 16) & 1)) >> 16) as u16
    }
}

pub(super) fn f32_to_bf16_rz(x: f32) -> u16 {
    if x.is_nan() {
        0x7fff
    } else {
        (x.to_bits() >> 16) as u16
    }
}

#[inline(always)]
pub(super) fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(h: u16) -> f64 {
        let (e, m) = (i32::from(h >> 10 & 31), f64::from(h & 0x3ff));
        let v = if e == 0 {
            m * 2f64.powi(-24)
        } else {
            (1.0 + m / 1024.0) * 2f64.powi(e - 15)
        };
        if h & 0x8000 == 0 { v } else { -v }
    }

    #[test]
    fn every_f16_widens_and_returns() {
        for h in 0..=u16::MAX {
            let f = f16_to_f32(h);
            if h & 0x7fff > 0x7c00 {
                assert_eq!(f.to_bits(), 0x7fff_ffff);
                assert_eq!(f32_to_f16(f), NAN_F16);
                continue;
            }
            if h & 0x7fff != 0x7c00 {
                assert_eq!(f64::from(f), value(h), "{h:#x}");
            }
            assert_eq!(f32_to_f16(f), h);
            assert_eq!(f32_to_f16_rz(f), h);
            assert_eq!(f64_to_f16(f64::from(f)), h);
        }
    }

    #[test]
    fn midpoints_go_to_even_and_neighbours_to_their_side() {
        for h in 0..0x7bffu16 {
            let mid = (value(h) + value(h + 1)) / 2.0;
            let even = if h & 1 == 0 { h } else { h + 1 };
            let m32 = mid as f32;
            assert_eq!(f64::from(m32), mid);
            assert_eq!(f32_to_f16(m32), even, "{h:#x}");
            assert_eq!(f32_to_f16(f32::from_bits(m32.to_bits() - 1)), h);
            assert_eq!(f32_to_f16(f32::from_bits(m32.to_bits() + 1)), h + 1);
            assert_eq!(f32_to_f16_rz(f32::from_bits(m32.to_bits() + 1)), h);
            // A hair off the midpoint that an f32 cannot hold.
            assert_eq!(f64_to_f16(mid * (1.0 + 1e-15)), h + 1);
            assert_eq!(f64_to_f16(mid * (1.0 - 1e-15)), h);
        }
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16_rz(1e30), 0x7bff);
    }

    #[test]
    fn fma_f16_rounds_once() {
        // 1 + 2^-10 (f16) squared plus a tiny addend just breaks the tie of the product.
        let a = 0x3c01;
        let tiny = 0x0001;
        let p = value(a) * value(a);
        let exact_up = f64_to_f16(p + value(tiny));
        assert_eq!(fma_f16(a, a, tiny), exact_up);
        assert_eq!(fma_f16(0x3c00, 0x3c00, 0xbc00), 0);
    }
}
