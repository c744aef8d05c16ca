//! Arithmetic and logic: which closure an opcode with its types and modifiers is.
//!
//! Knows PTX's arithmetic rules. Comparisons are in `compare`, conversions and moves in `convert`.

use super::decode::{Lower, Op, Res};
use super::float::*;
use super::lanes::{LaneFn, bin, quad, tern, un};
use super::parse::Stmt;
use super::types::Ty;

/// One expression for each integer type; `b` types count as unsigned.
macro_rules! ints {
    ($ty:expr, $w:ident, |$($a:ident),*| $e:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => Some($w(|$($a: u16),*| $e)),
            Ty::S16 => Some($w(|$($a: i16),*| $e)),
            Ty::U32 | Ty::B32 => Some($w(|$($a: u32),*| $e)),
            Ty::S32 => Some($w(|$($a: i32),*| $e)),
            Ty::U64 | Ty::B64 => Some($w(|$($a: u64),*| $e)),
            Ty::S64 => Some($w(|$($a: i64),*| $e)),
            _ => None,
        }
    };
}

/// One expression for each width of bits.
macro_rules! bits {
    ($ty:expr, $w:ident, |$($a:ident),*| $e:expr) => {
        match $ty {
            Ty::B16 => Some($w(|$($a: u16),*| $e)),
            Ty::B32 => Some($w(|$($a: u32),*| $e)),
            Ty::B64 => Some($w(|$($a: u64),*| $e)),
            _ => None,
        }
    };
}

/// One f32 expression under `.ftz` and `.sat`.
macro_rules! f32op {
    ($ftz:expr, $sat:expr, $w:ident, |$($a:ident),*| $e:expr) => {
        Some(match ($ftz, $sat) {
            (false, false) => $w(|$($a: f32),*| canon($e)),
            (false, true) => $w(|$($a: f32),*| saturate($e)),
            (true, false) => $w(|$($a: f32),*| { $(let $a = flush($a);)* flush(canon($e)) }),
            (true, true) => $w(|$($a: f32),*| { $(let $a = flush($a);)* saturate(flush($e)) }),
        })
    };
}

/// One f32 expression on f16 values, alone or in pairs. The f32 result rounded once more is the f16 result, because an
/// f32 holds more than twice the bits of an f16.
macro_rules! f16op {
    ($ty:expr, |$a:ident, $b:ident| $e:expr) => {{
        #[inline(always)]
        fn one(a: u16, b: u16) -> u16 {
            let ($a, $b) = (f16_to_f32(a), f16_to_f32(b));
            f32_to_f16($e)
        }
        match $ty {
            Ty::F16 => Some(bin(one)),
            Ty::F16x2 => Some(bin(|a: u32, b: u32| {
                u32::from(one(a as u16, b as u16))
                    | u32::from(one((a >> 16) as u16, (b >> 16) as u16)) << 16
            })),
            _ => None,
        }
    }};
}

impl Lower<'_> {
    /// Emits the instruction if it is one of this file's; false if it is not.
    pub(super) fn alu(&mut self, st: &Stmt, op: &mut Op) -> Res<bool> {
        match op.name {
            "lop3" | "prmt" | "bfe" | "bfi" | "shf" | "shl" | "shr" => self.bit_fields(st, op)?,
            "popc" | "clz" | "bfind" => self.bit_counts(st, op)?,
            "mul" | "mad" => self.products(st, op)?,
            _ => return self.plain(st, op),
        }
        Ok(true)
    }

    /// Operations whose operands all have the instruction's type.
    fn plain(&mut self, st: &Stmt, op: &mut Op) -> Res<bool> {
        let two = |n: &str| {
            matches!(
                n,
                "add" | "sub" | "min" | "max" | "div" | "rem" | "and" | "or" | "xor"
            )
        };
        let one = |n: &str| {
            matches!(
                n,
                "abs"
                    | "neg"
                    | "not"
                    | "cnot"
                    | "brev"
                    | "sqrt"
                    | "rcp"
                    | "rsqrt"
                    | "ex2"
                    | "lg2"
                    | "sin"
                    | "cos"
            )
        };
        let n = match op.name {
            n if two(n) => 3,
            n if one(n) => 2,
            "fma" | "sad" => 4,
            _ => return Ok(false),
        };
        let ty = op.ty()?;
        let f = if ty.float() {
            float_fn(op, ty)
        } else {
            int_fn(op.name, ty)
        };
        let f = f.ok_or_else(|| op.unknown())?;
        self.args(st, n)?;
        let mut o = [0; 6];
        o[0] = self.dst(&st.args[0], ty)?;
        for (o, a) in o.iter_mut().zip(&st.args).skip(1) {
            *o = self.src(a, ty)?;
        }
        self.emit(f, o);
        Ok(true)
    }

    fn products(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let ty = op.ty()?;
        let mad = op.name == "mad";
        if ty.float() {
            let f = float_fn(op, ty).ok_or_else(|| op.unknown())?;
            let n = if mad { 4 } else { 3 };
            self.args(st, n)?;
            let mut o = [self.dst(&st.args[0], ty)?, 0, 0, 0, 0, 0];
            for (o, a) in o.iter_mut().zip(&st.args).skip(1) {
                *o = self.src(a, ty)?;
            }
            self.emit(f, o);
            return Ok(());
        }
        let part = op
            .take_any(&["lo", "hi", "wide"])
            .ok_or_else(|| op.unknown())?;
        let (f, out) = match (part, mad) {
            ("lo", false) => (ints!(ty, bin, |a, b| a.wrapping_mul(b)), ty),
            ("lo", true) => (
                ints!(ty, tern, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
                ty,
            ),
            ("hi", false) => (
                match ty {
                    Ty::U16 => Some(bin(|a: u16, b: u16| {
                        ((u32::from(a) * u32::from(b)) >> 16) as u16
                    })),
                    Ty::S16 => Some(bin(|a: i16, b: i16| {
                        ((i32::from(a) * i32::from(b)) >> 16) as i16
                    })),
                    Ty::U32 => Some(bin(|a: u32, b: u32| {
                        ((u64::from(a) * u64::from(b)) >> 32) as u32
                    })),
                    Ty::S32 => Some(bin(|a: i32, b: i32| {
                        ((i64::from(a) * i64::from(b)) >> 32) as i32
                    })),
                    Ty::U64 => Some(bin(|a: u64, b: u64| {
                        ((u128::from(a) * u128::from(b)) >> 64) as u64
                    })),
                    Ty::S64 => Some(bin(|a: i64, b: i64| {
                        ((i128::from(a) * i128::from(b)) >> 64) as i64
                    })),
                    _ => None,
                },
                ty,
            ),
            ("hi", true) => (
                match ty {
                    Ty::U32 => Some(tern(|a: u32, b: u32, c: u32| {
                        (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
                    })),
                    Ty::S32 => Some(tern(|a: i32, b: i32, c: i32| {
                        (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)
                    })),
                    Ty::U64 => Some(tern(|a: u64, b: u64, c: u64| {
                        (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
                    })),
                    Ty::S64 => Some(tern(|a: i64, b: i64, c: i64| {
                        (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c)
                    })),
                    _ => None,
                },
                ty,
            ),
            (_, false) => match ty {
                Ty::U16 => (
                    Some(bin(|a: u16, b: u16| u32::from(a) * u32::from(b))),
                    Ty::U32,
                ),
                Ty::S16 => (
                    Some(bin(|a: i16, b: i16| i32::from(a) * i32::from(b))),
                    Ty::S32,
                ),
                Ty::U32 => (
                    Some(bin(|a: u32, b: u32| u64::from(a) * u64::from(b))),
                    Ty::U64,
                ),
                Ty::S32 => (
                    Some(bin(|a: i32, b: i32| i64::from(a) * i64::from(b))),
                    Ty::S64,
                ),
                _ => (None, ty),
            },
            (_, true) => match ty {
                Ty::U16 => (
                    Some(tern(|a: u16, b: u16, c: u32| {
                        (u32::from(a) * u32::from(b)).wrapping_add(c)
                    })),
                    Ty::U32,
                ),
                Ty::S16 => (
                    Some(tern(|a: i16, b: i16, c: i32| {
                        (i32::from(a) * i32::from(b)).wrapping_add(c)
                    })),
                    Ty::S32,
                ),
                Ty::U32 => (
                    Some(tern(|a: u32, b: u32, c: u64| {
                        (u64::from(a) * u64::from(b)).wrapping_add(c)
                    })),
                    Ty::U64,
                ),
                Ty::S32 => (
                    Some(tern(|a: i32, b: i32, c: i64| {
                        (i64::from(a) * i64::from(b)).wrapping_add(c)
                    })),
                    Ty::S64,
                ),
                _ => (None, ty),
            },
        };
        let f = f.ok_or_else(|| op.unknown())?;
        self.args(st, if mad { 4 } else { 3 })?;
        let d = self.dst(&st.args[0], out)?;
        let a = self.src(&st.args[1], ty)?;
        let b = self.src(&st.args[2], ty)?;
        let c = if mad { self.src(&st.args[3], out)? } else { 0 };
        self.emit(f, [d, a, b, c, 0, 0]);
        Ok(())
    }

    fn bit_fields(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let ty = op.ty()?;
        // Each source's type: shift amounts, positions and lengths are 32-bit whatever is shifted.
        let (f, srcs): (Option<LaneFn>, Vec<Ty>) = match (op.name, ty) {
            ("shl", Ty::B16) => (
                Some(bin(|a: u16, b: u32| if b > 15 { 0 } else { a << b })),
                vec![ty, Ty::U32],
            ),
            ("shl", Ty::B32) => (
                Some(bin(|a: u32, b: u32| if b > 31 { 0 } else { a << b })),
                vec![ty, Ty::U32],
            ),
            ("shl", Ty::B64) => (
                Some(bin(|a: u64, b: u32| if b > 63 { 0 } else { a << b })),
                vec![ty, Ty::U32],
            ),
            ("shr", Ty::B16 | Ty::U16) => (
                Some(bin(|a: u16, b: u32| if b > 15 { 0 } else { a >> b })),
                vec![ty, Ty::U32],
            ),
            ("shr", Ty::B32 | Ty::U32) => (
                Some(bin(|a: u32, b: u32| if b > 31 { 0 } else { a >> b })),
                vec![ty, Ty::U32],
            ),
            ("shr", Ty::B64 | Ty::U64) => (
                Some(bin(|a: u64, b: u32| if b > 63 { 0 } else { a >> b })),
                vec![ty, Ty::U32],
            ),
            ("shr", Ty::S16) => (
                Some(bin(|a: i16, b: u32| a >> b.min(15))),
                vec![ty, Ty::U32],
            ),
            ("shr", Ty::S32) => (
                Some(bin(|a: i32, b: u32| a >> b.min(31))),
                vec![ty, Ty::U32],
            ),
            ("shr", Ty::S64) => (
                Some(bin(|a: i64, b: u32| a >> b.min(63))),
                vec![ty, Ty::U32],
            ),
            ("shf", Ty::B32) => {
                let left = op.take_any(&["l", "r"]).ok_or_else(|| op.unknown())? == "l";
                let wrap = op
                    .take_any(&["wrap", "clamp"])
                    .ok_or_else(|| op.unknown())?
                    == "wrap";
                let f = match (left, wrap) {
                    (true, true) => {
                        tern(|a: u32, b: u32, c: u32| ((join(a, b) << (c & 31)) >> 32) as u32)
                    }
                    (true, false) => {
                        tern(|a: u32, b: u32, c: u32| ((join(a, b) << c.min(32)) >> 32) as u32)
                    }
                    (false, true) => tern(|a: u32, b: u32, c: u32| (join(a, b) >> (c & 31)) as u32),
                    (false, false) => {
                        tern(|a: u32, b: u32, c: u32| (join(a, b) >> c.min(32)) as u32)
                    }
                };
                (Some(f), vec![Ty::B32, Ty::B32, Ty::U32])
            }
            ("lop3", Ty::B32) => (
                Some(quad(|a: u32, b: u32, c: u32, lut: u32| {
                    let pick = |k: u32, v: u32| if lut >> k & 1 != 0 { v } else { 0 };
                    pick(0, !a & !b & !c)
                        | pick(1, !a & !b & c)
                        | pick(2, !a & b & !c)
                        | pick(3, !a & b & c)
                        | pick(4, a & !b & !c)
                        | pick(5, a & !b & c)
                        | pick(6, a & b & !c)
                        | pick(7, a & b & c)
                })),
                vec![ty, ty, ty, Ty::U32],
            ),
            ("prmt", Ty::B32) => (Some(prmt(op)), vec![ty, ty, ty]),
            ("bfe", Ty::U32) => (
                Some(tern(|a: u32, p: u32, l: u32| {
                    bfe_u64(u64::from(a), p & 255, l & 255) as u32
                })),
                vec![ty, Ty::U32, Ty::U32],
            ),
            ("bfe", Ty::U64) => (
                Some(tern(|a: u64, p: u32, l: u32| bfe_u64(a, p & 255, l & 255))),
                vec![ty, Ty::U32, Ty::U32],
            ),
            // Sign extension first makes the 32-bit field's clamp at bit 31 the 64-bit one's at bit 63.
            ("bfe", Ty::S32) => (
                Some(tern(|a: i32, p: u32, l: u32| {
                    bfe_s64(i64::from(a), p & 255, l & 255) as i32
                })),
                vec![ty, Ty::U32, Ty::U32],
            ),
            ("bfe", Ty::S64) => (
                Some(tern(|a: i64, p: u32, l: u32| bfe_s64(a, p & 255, l & 255))),
                vec![ty, Ty::U32, Ty::U32],
            ),
            ("bfi", Ty::B32) => (
                Some(quad(|a: u32, b: u32, p: u32, l: u32| {
                    bfi(u64::from(a), u64::from(b), p & 255, l & 255) as u32
                })),
                vec![ty, ty, Ty::U32, Ty::U32],
            ),
            ("bfi", Ty::B64) => (
                Some(quad(|a: u64, b: u64, p: u32, l: u32| {
                    bfi(a, b, p & 255, l & 255)
                })),
                vec![ty, ty, Ty::U32, Ty::U32],
            ),
            _ => (None, vec![]),
        };
        let f = f.ok_or_else(|| op.unknown())?;
        self.args(st, srcs.len() + 1)?;
        let mut o = [self.dst(&st.args[0], ty)?, 0, 0, 0, 0, 0];
        for (k, t) in srcs.into_iter().enumerate() {
            o[k + 1] = self.src(&st.args[k + 1], t)?;
        }
        self.emit(f, o);
        Ok(())
    }

    fn bit_counts(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let ty = op.ty()?;
        let amount = op.name == "bfind" && op.take("shiftamt");
        let f = match (op.name, ty, amount) {
            ("popc", Ty::B32, _) => un(|a: u32| a.count_ones()),
            ("popc", Ty::B64, _) => un(|a: u64| a.count_ones()),
            ("clz", Ty::B32, _) => un(|a: u32| a.leading_zeros()),
            ("clz", Ty::B64, _) => un(|a: u64| a.leading_zeros()),
            ("bfind", Ty::U32, false) => un(|a: u32| 31u32.wrapping_sub(a.leading_zeros())),
            ("bfind", Ty::U64, false) => un(|a: u64| 63u32.wrapping_sub(a.leading_zeros())),
            ("bfind", Ty::S32, false) => {
                un(|a: i32| 31u32.wrapping_sub((a ^ (a >> 31)).leading_zeros()))
            }
            ("bfind", Ty::S64, false) => {
                un(|a: i64| 63u32.wrapping_sub((a ^ (a >> 63)).leading_zeros()))
            }
            ("bfind", Ty::U32, true) => un(|a: u32| if a == 0 { !0 } else { a.leading_zeros() }),
            ("bfind", Ty::U64, true) => un(|a: u64| if a == 0 { !0 } else { a.leading_zeros() }),
            _ => return Err(op.unknown()),
        };
        self.args(st, 2)?;
        let d = self.dst(&st.args[0], Ty::U32)?;
        let a = self.src(&st.args[1], ty)?;
        self.emit(f, [d, a, 0, 0, 0, 0]);
        Ok(())
    }
}

fn int_fn(name: &str, ty: Ty) -> Option<LaneFn> {
    match name {
        "and" => return bits!(ty, bin, |a, b| a & b),
        "or" => return bits!(ty, bin, |a, b| a | b),
        "xor" => return bits!(ty, bin, |a, b| a ^ b),
        "not" => return bits!(ty, un, |a| !a),
        "cnot" => {
            return match ty {
                Ty::B16 => Some(un(|a: u16| u16::from(a == 0))),
                Ty::B32 => Some(un(|a: u32| u32::from(a == 0))),
                Ty::B64 => Some(un(|a: u64| u64::from(a == 0))),
                _ => None,
            };
        }
        "brev" => {
            return match ty {
                Ty::B32 => Some(un(|a: u32| a.reverse_bits())),
                Ty::B64 => Some(un(|a: u64| a.reverse_bits())),
                _ => None,
            };
        }
        _ if matches!(ty, Ty::B16 | Ty::B32 | Ty::B64) => return None,
        _ => {}
    }
    match name {
        "add" => ints!(ty, bin, |a, b| a.wrapping_add(b)),
        "sub" => ints!(ty, bin, |a, b| a.wrapping_sub(b)),
        "min" => ints!(ty, bin, |a, b| if a < b { a } else { b }),
        "max" => ints!(ty, bin, |a, b| if a > b { a } else { b }),
        // What a division by zero gives is unspecified; GPUs give all ones, and the dividend as remainder.
        "div" => ints!(ty, bin, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => ints!(ty, bin, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        "sad" => ints!(ty, tern, |a, b, c| c.wrapping_add(if a > b {
            a.wrapping_sub(b)
        } else {
            b.wrapping_sub(a)
        })),
        "abs" if ty.signed() => match ty {
            Ty::S16 => Some(un(|a: i16| a.wrapping_abs())),
            Ty::S32 => Some(un(|a: i32| a.wrapping_abs())),
            _ => Some(un(|a: i64| a.wrapping_abs())),
        },
        "neg" if ty.signed() => ints!(ty, un, |a| a.wrapping_neg()),
        _ => None,
    }
}

fn float_fn(op: &mut Op, ty: Ty) -> Option<LaneFn> {
    let rn = op.take("rn");
    let approx = op.take_any(&["approx", "full"]).is_some();
    let (ftz, sat) = (op.take("ftz"), op.take("sat"));
    let name = op.name;
    // Where PTX demands a rounding mode or an approximation, exactly one of them must be there.
    let fits = match name {
        "fma" | "mad" => rn && !approx,
        "div" | "rcp" | "sqrt" => rn != approx,
        "rsqrt" | "ex2" | "lg2" | "sin" | "cos" => approx && !rn,
        "add" | "sub" | "mul" => !approx,
        _ => !rn && !approx,
    };
    let may_saturate = matches!(name, "add" | "sub" | "mul" | "fma" | "mad") && ty == Ty::F32;
    if !fits || (sat && !may_saturate) || (ftz && ty != Ty::F32) {
        return None;
    }
    match ty {
        Ty::F32 => match name {
            "add" => f32op!(ftz, sat, bin, |a, b| a + b),
            "sub" => f32op!(ftz, sat, bin, |a, b| a - b),
            "mul" => f32op!(ftz, sat, bin, |a, b| a * b),
            "fma" | "mad" => f32op!(ftz, sat, tern, |a, b, c| a.mul_add(b, c)),
            "div" => f32op!(ftz, false, bin, |a, b| a / b),
            "min" => f32op!(ftz, false, bin, |a, b| min_f32(a, b)),
            "max" => f32op!(ftz, false, bin, |a, b| max_f32(a, b)),
            "sqrt" => f32op!(ftz, false, un, |a| a.sqrt()),
            "rcp" => f32op!(ftz, false, un, |a| 1.0 / a),
            "rsqrt" => f32op!(ftz, false, un, |a| (1.0 / f64::from(a).sqrt()) as f32),
            "ex2" => f32op!(ftz, false, un, |a| a.exp2()),
            "lg2" => f32op!(ftz, false, un, |a| a.log2()),
            "sin" => f32op!(ftz, false, un, |a| a.sin()),
            "cos" => f32op!(ftz, false, un, |a| a.cos()),
            "abs" if ftz => Some(un(|a: f32| flush(a).abs())),
            "neg" if ftz => Some(un(|a: f32| -flush(a))),
            "abs" => Some(un(|a: u32| a & 0x7fff_ffff)),
            "neg" => Some(un(|a: u32| a ^ 0x8000_0000)),
            _ => None,
        },
        Ty::F64 if !approx => Some(match name {
            "add" => bin(|a: f64, b: f64| a + b),
            "sub" => bin(|a: f64, b: f64| a - b),
            "mul" => bin(|a: f64, b: f64| a * b),
            "fma" | "mad" => tern(|a: f64, b: f64, c: f64| a.mul_add(b, c)),
            "div" => bin(|a: f64, b: f64| a / b),
            "min" => bin(min_f64),
            "max" => bin(max_f64),
            "sqrt" => un(|a: f64| a.sqrt()),
            "rcp" => un(|a: f64| 1.0 / a),
            "abs" => un(|a: u64| a & (u64::MAX >> 1)),
            "neg" => un(|a: u64| a ^ (1 << 63)),
            _ => return None,
        }),
        Ty::F16 | Ty::F16x2 => match (name, ty) {
            ("add", _) => f16op!(ty, |a, b| a + b),
            ("sub", _) => f16op!(ty, |a, b| a - b),
            ("mul", _) => f16op!(ty, |a, b| a * b),
            ("fma", Ty::F16) => Some(tern(fma_f16)),
            ("fma", _) => Some(tern(|a: u32, b: u32, c: u32| {
                let hi = |v: u32| (v >> 16) as u16;
                u32::from(fma_f16(a as u16, b as u16, c as u16))
                    | u32::from(fma_f16(hi(a), hi(b), hi(c))) << 16
            })),
            ("neg", Ty::F16) => Some(un(|a: u16| a ^ 0x8000)),
            ("neg", _) => Some(un(|a: u32| a ^ 0x8000_8000)),
            ("abs", Ty::F16) => Some(un(|a: u16| a & 0x7fff)),
            ("abs", _) => Some(un(|a: u32| a & 0x7fff_7fff)),
            _ => None,
        },
        _ => None,
    }
}

#[inline(always)]
fn join(lo: u32, hi: u32) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}

#[inline(always)]
fn low_bits(n: u32) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

#[inline(always)]
fn bfe_u64(a: u64, pos: u32, len: u32) -> u64 {
    if pos > 63 {
        0
    } else {
        (a >> pos) & low_bits(len)
    }
}

#[inline(always)]
fn bfe_s64(a: i64, pos: u32, len: u32) -> i64 {
    if len == 0 {
        return 0;
    }
    let shifted = a >> pos.min(63);
    let spare = 64u32.saturating_sub(len);
    (shifted << spare) >> spare
}

#[inline(always)]
fn bfi(a: u64, b: u64, pos: u32, len: u32) -> u64 {
    if pos > 63 {
        return b;
    }
    let field = low_bits(len) << pos;
    (b & !field) | ((a << pos) & field)
}

/// `prmt`: four bytes chosen from eight, by nibbles or by one of six fixed patterns.
fn prmt(op: &mut Op) -> LaneFn {
    #[inline(always)]
    fn pick(a: u32, b: u32, select: u32) -> u32 {
        let x = join(a, b);
        let mut d = 0;
        for k in 0..4 {
            let s = select >> (4 * k);
            let byte = (x >> (8 * (s & 7))) as u8;
            let byte = if s & 8 != 0 {
                ((byte as i8) >> 7) as u8
            } else {
                byte
            };
            d |= u32::from(byte) << (8 * k);
        }
        d
    }
    /// Selector nibbles of a fixed pattern, one row per value of the control's low two bits.
    macro_rules! rows {
        ($rows:expr) => {
            tern(|a: u32, b: u32, c: u32| {
                const ROWS: [u32; 4] = $rows;
                pick(a, b, ROWS[(c & 3) as usize])
            })
        };
    }
    match op.take_any(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
        None => tern(pick),
        Some("f4e") => rows!([0x3210, 0x4321, 0x5432, 0x6543]),
        Some("b4e") => rows!([0x5670, 0x6701, 0x7012, 0x0123]),
        Some("rc8") => rows!([0x0000, 0x1111, 0x2222, 0x3333]),
        Some("ecl") => rows!([0x3210, 0x3211, 0x3222, 0x3333]),
        Some("ecr") => rows!([0x0000, 0x1110, 0x2210, 0x3210]),
        Some(_) => rows!([0x1010, 0x3232, 0x1010, 0x3232]),
    }
}
