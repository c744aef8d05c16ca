//! Conversions and moves: `cvt`, `cvta`, `mov` with its packing and unpacking.

use super::code::Kind;
use super::decode::{Lower, Op, Res};
use super::float::*;
use super::lanes::{LaneFn, bin, preds, un};
use super::parse::{Arg, Stmt};
use super::types::{Clock, Space, Ty};

impl Lower<'_> {
    pub(super) fn convert(&mut self, st: &Stmt, op: &mut Op) -> Res<bool> {
        match op.name {
            "mov" => self.mov(st, op)?,
            "cvta" => self.cvta(st, op)?,
            "cvt" => self.cvt(st, op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn cvta(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let to = op.take("to");
        let space = op
            .take_map(Space::parse)
            .filter(|s| *s != Space::Param)
            .ok_or_else(|| op.unknown())?;
        if op.ty()?.size() != 8 {
            return Err(op.unknown());
        }
        self.args(st, 2)?;
        let d = self.dst(&st.args[0], Ty::B64)?;
        let a = self.src(&st.args[1], Ty::B64)?;
        let w = Self::window(space);
        let w = self.constant(8, if to { w.wrapping_neg() } else { w });
        self.emit(bin(|a: u64, w: u64| a.wrapping_add(w)), [d, a, w, 0, 0, 0]);
        Ok(())
    }

    fn mov(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let ty = op.ty()?;
        self.args(st, 2)?;
        match (&st.args[0], &st.args[1]) {
            (Arg::Vector(parts), whole) => self.unpack(parts, whole, ty, op),
            (d, Arg::Vector(parts)) => self.pack(d, parts, ty, op),
            (d, Arg::Name(n)) if Clock::parse(n).is_some() => {
                let (clock, size) = Clock::parse(n).ok_or_else(|| op.unknown())?;
                if size != ty.size() {
                    return Err(op.unknown());
                }
                let d = self.dst(d, ty)?;
                self.push(Kind::Clock(clock), [d, 0, 0, 0, 0, 0]);
                Ok(())
            }
            (d, a) => {
                let f = match ty.size() {
                    0 => preds(|a, _| a),
                    2 => un(|a: u16| a),
                    4 => un(|a: u32| a),
                    8 => un(|a: u64| a),
                    _ => return Err(op.unknown()),
                };
                let d = self.dst(d, ty)?;
                let a = self.src(a, ty)?;
                self.emit(f, [d, a, a, 0, 0, 0]);
                Ok(())
            }
        }
    }

    fn unpack(&mut self, parts: &[Arg], whole: &Arg, ty: Ty, op: &Op) -> Res<()> {
        let w = self.src(whole, ty)?;
        let (part, fs): (Ty, Vec<LaneFn>) = match (ty.size(), parts.len()) {
            (4, 2) => (
                Ty::B16,
                vec![un(|v: u32| v as u16), un(|v: u32| (v >> 16) as u16)],
            ),
            (8, 2) => (
                Ty::B32,
                vec![un(|v: u64| v as u32), un(|v: u64| (v >> 32) as u32)],
            ),
            (8, 4) => (
                Ty::B16,
                vec![
                    un(|v: u64| v as u16),
                    un(|v: u64| (v >> 16) as u16),
                    un(|v: u64| (v >> 32) as u16),
                    un(|v: u64| (v >> 48) as u16),
                ],
            ),
            _ => return Err(op.unknown()),
        };
        for (p, f) in parts.iter().zip(fs) {
            let d = self.dst(p, part)?;
            self.emit(f, [d, w, 0, 0, 0, 0]);
        }
        Ok(())
    }

    fn pack(&mut self, d: &Arg, parts: &[Arg], ty: Ty, op: &Op) -> Res<()> {
        let two16 = bin(|a: u16, b: u16| u32::from(a) | u32::from(b) << 16);
        let two32 = bin(|a: u32, b: u32| u64::from(a) | u64::from(b) << 32);
        let d = self.dst(d, ty)?;
        let part = match (ty.size(), parts.len()) {
            (4, 2) | (8, 4) => Ty::B16,
            (8, 2) => Ty::B32,
            _ => return Err(op.unknown()),
        };
        let mut regs = vec![];
        for p in parts {
            regs.push(self.src(p, part)?);
        }
        match regs[..] {
            [a, b] if part == Ty::B16 => self.emit(two16, [d, a, b, 0, 0, 0]),
            [a, b] => self.emit(two32, [d, a, b, 0, 0, 0]),
            [a, b, c, e] => {
                let (lo, hi) = (self.temp(Ty::B32), self.temp(Ty::B32));
                self.emit(two16, [lo, a, b, 0, 0, 0]);
                self.emit(two16, [hi, c, e, 0, 0, 0]);
                self.emit(two32, [d, lo, hi, 0, 0, 0]);
            }
            _ => return Err(op.unknown()),
        }
        Ok(())
    }

    fn cvt(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let (to, from) = match op.tys[..] {
            [to, from] => (to, from),
            _ => return Err(op.unknown()),
        };
        let round = op.take_any(&["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"]);
        let (ftz, sat) = (op.take("ftz"), op.take("sat"));
        if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
            return self.cvt_pair(st, op, to, from, round, ftz || sat);
        }
        self.args(st, 2)?;
        if to.int() && from.int() {
            if round.is_some() || ftz {
                return Err(op.unknown());
            }
            return self.cvt_int(st, op, to, from, sat);
        }
        let f = if from.int() {
            if ftz || sat {
                None
            } else {
                int_to_float(to, from, round)
            }
        } else if to.int() {
            // Out of range values become the nearest of the range with or without `.sat`.
            float_to_int(to, from, round, ftz)
        } else {
            float_to_float(to, from, round, ftz, sat)
        };
        let f = f.ok_or_else(|| op.unknown())?;
        // 8-bit values live in wider registers; those forms are not generated for floats.
        if to.size() == 1 || from.size() == 1 {
            return Err(op.unknown());
        }
        let d = self.dst(&st.args[0], to)?;
        let a = self.src(&st.args[1], from)?;
        self.emit(f, [d, a, 0, 0, 0, 0]);
        Ok(())
    }

    /// `cvt.rn.f16x2.f32 d, a, b`: a goes to the upper half.
    fn cvt_pair(
        &mut self,
        st: &Stmt,
        op: &Op,
        to: Ty,
        from: Ty,
        round: Option<&str>,
        other: bool,
    ) -> Res<()> {
        if from != Ty::F32 || other {
            return Err(op.unknown());
        }
        macro_rules! pair {
            ($f:ident) => {
                bin(|a: f32, b: f32| u32::from($f(a)) << 16 | u32::from($f(b)))
            };
        }
        let f = match (to, round) {
            (Ty::F16x2, Some("rn")) => pair!(f32_to_f16),
            (Ty::F16x2, Some("rz")) => pair!(f32_to_f16_rz),
            (Ty::Bf16x2, Some("rn")) => pair!(f32_to_bf16),
            (Ty::Bf16x2, Some("rz")) => pair!(f32_to_bf16_rz),
            _ => return Err(op.unknown()),
        };
        self.args(st, 3)?;
        let d = self.dst(&st.args[0], to)?;
        let a = self.src(&st.args[1], from)?;
        let b = self.src(&st.args[2], from)?;
        self.emit(f, [d, a, b, 0, 0, 0]);
        Ok(())
    }

    /// Integer to integer. Source and destination registers may be wider than their types.
    fn cvt_int(&mut self, st: &Stmt, op: &Op, to: Ty, from: Ty, sat: bool) -> Res<()> {
        let (src_size, a) = match &st.args[1] {
            Arg::Name(n) if self.is_register(n) => self.any_register(n)?,
            other => {
                let wide = if from.size() == 1 { Ty::B16 } else { from };
                (wide.size(), self.src(other, wide)?)
            }
        };
        let (dst_size, d) = match &st.args[0] {
            Arg::Name(n) => self.any_register(n)?,
            _ => return Err(op.unknown()),
        };
        if src_size < from.size() || dst_size < to.size() || src_size == 0 || dst_size == 0 {
            return Err(op.unknown());
        }
        if !sat && src_size == from.size() && dst_size == to.size() {
            let direct = match (src_size, from.signed(), dst_size) {
                (2, false, 4) => Some(un(|v: u16| u32::from(v))),
                (2, true, 4) => Some(un(|v: i16| i32::from(v))),
                (2, false, 8) => Some(un(|v: u16| u64::from(v))),
                (2, true, 8) => Some(un(|v: i16| i64::from(v))),
                (4, false, 8) => Some(un(|v: u32| u64::from(v))),
                (4, true, 8) => Some(un(|v: i32| i64::from(v))),
                (4, _, 2) => Some(un(|v: u32| v as u16)),
                (8, _, 4) => Some(un(|v: u64| v as u32)),
                (8, _, 2) => Some(un(|v: u64| v as u16)),
                (2, _, 2) => Some(un(|v: u16| v)),
                (4, _, 4) => Some(un(|v: u32| v)),
                (8, _, 8) => Some(un(|v: u64| v)),
                _ => None,
            };
            if let Some(f) = direct {
                self.emit(f, [d, a, 0, 0, 0, 0]);
                return Ok(());
            }
        }
        // By way of 64 bits: widen by the source's type, clamp or wrap to the destination's, fit its register.
        let t = self.temp(Ty::B64);
        macro_rules! widen {
            ($r:ty) => {
                match from {
                    Ty::U8 | Ty::B8 => un(|v: $r| u64::from(v as u8)),
                    Ty::S8 => un(|v: $r| i64::from(v as i8)),
                    Ty::U16 | Ty::B16 => un(|v: $r| u64::from(v as u16)),
                    Ty::S16 => un(|v: $r| i64::from(v as i16)),
                    Ty::U32 | Ty::B32 => un(|v: $r| u64::from(v as u32)),
                    Ty::S32 => un(|v: $r| i64::from(v as i32)),
                    _ => un(|v: $r| v as u64),
                }
            };
        }
        let f = match src_size {
            2 => widen!(u16),
            4 => widen!(u32),
            _ => widen!(u64),
        };
        self.emit(f, [t, a, 0, 0, 0, 0]);
        macro_rules! clamp {
            ($lo:expr, $hi:expr) => {
                if from.signed() {
                    un(|v: i64| i128::from(v).clamp($lo as i128, $hi as i128) as i64)
                } else {
                    un(|v: u64| i128::from(v).clamp($lo as i128, $hi as i128) as i64)
                }
            };
        }
        if sat {
            let f = match to {
                Ty::U8 | Ty::B8 => clamp!(0, u8::MAX),
                Ty::S8 => clamp!(i8::MIN, i8::MAX),
                Ty::U16 | Ty::B16 => clamp!(0, u16::MAX),
                Ty::S16 => clamp!(i16::MIN, i16::MAX),
                Ty::U32 | Ty::B32 => clamp!(0, u32::MAX),
                Ty::S32 => clamp!(i32::MIN, i32::MAX),
                Ty::U64 | Ty::B64 => clamp!(0, u64::MAX),
                _ => clamp!(i64::MIN, i64::MAX),
            };
            self.emit(f, [t, t, 0, 0, 0, 0]);
        }
        macro_rules! fit {
            ($r:ty) => {
                match to {
                    Ty::U8 | Ty::B8 => un(|v: u64| v as u8 as $r),
                    Ty::S8 => un(|v: u64| v as i8 as $r),
                    Ty::U16 | Ty::B16 => un(|v: u64| v as u16 as $r),
                    Ty::S16 => un(|v: u64| v as i16 as $r),
                    Ty::U32 | Ty::B32 => un(|v: u64| v as u32 as $r),
                    Ty::S32 => un(|v: u64| v as i32 as $r),
                    _ => un(|v: u64| v as $r),
                }
            };
        }
        let f = match dst_size {
            2 => fit!(u16),
            4 => fit!(u32),
            _ => fit!(u64),
        };
        self.emit(f, [d, t, 0, 0, 0, 0]);
        Ok(())
    }
}

fn int_to_float(to: Ty, from: Ty, round: Option<&str>) -> Option<LaneFn> {
    if round != Some("rn") {
        return None;
    }
    macro_rules! to {
        ($v:ident => $e:expr) => {
            match from {
                Ty::U16 => Some(un(|$v: u16| $e)),
                Ty::S16 => Some(un(|$v: i16| $e)),
                Ty::U32 => Some(un(|$v: u32| $e)),
                Ty::S32 => Some(un(|$v: i32| $e)),
                Ty::U64 => Some(un(|$v: u64| $e)),
                Ty::S64 => Some(un(|$v: i64| $e)),
                _ => None,
            }
        };
    }
    match to {
        Ty::F32 => to!(v => v as f32),
        Ty::F64 => to!(v => v as f64),
        // Integers that an f64 rounds are far beyond the largest f16.
        Ty::F16 => to!(v => f64_to_f16(v as f64)),
        _ => None,
    }
}

fn float_to_int(to: Ty, from: Ty, round: Option<&str>, ftz: bool) -> Option<LaneFn> {
    macro_rules! ints {
        ($t:ty, $v:ident, $e:expr) => {
            match to {
                Ty::U16 => Some(un(|$v: $t| $e as u16)),
                Ty::S16 => Some(un(|$v: $t| $e as i16)),
                Ty::U32 => Some(un(|$v: $t| $e as u32)),
                Ty::S32 => Some(un(|$v: $t| $e as i32)),
                Ty::U64 => Some(un(|$v: $t| $e as u64)),
                Ty::S64 => Some(un(|$v: $t| $e as i64)),
                _ => None,
            }
        };
    }
    macro_rules! rounds {
        ($t:ty, $v:ident, $x:expr) => {
            match round? {
                "rni" => ints!($t, $v, $x.round_ties_even()),
                "rzi" => ints!($t, $v, $x.trunc()),
                "rmi" => ints!($t, $v, $x.floor()),
                "rpi" => ints!($t, $v, $x.ceil()),
                _ => None,
            }
        };
    }
    match (from, ftz) {
        (Ty::F32, false) => rounds!(f32, v, v),
        (Ty::F32, true) => rounds!(f32, v, flush(v)),
        (Ty::F64, false) => rounds!(f64, v, v),
        (Ty::F16, false) => rounds!(u16, v, f16_to_f32(v)),
        _ => None,
    }
}

fn float_to_float(to: Ty, from: Ty, round: Option<&str>, ftz: bool, sat: bool) -> Option<LaneFn> {
    Some(match (to, from, round, ftz, sat) {
        (Ty::F32, Ty::F16, None, _, false) => un(f16_to_f32),
        (Ty::F32, Ty::Bf16, None, false, false) => un(bf16_to_f32),
        (Ty::F16, Ty::F32, Some("rn"), false, false) => un(f32_to_f16),
        (Ty::F16, Ty::F32, Some("rn"), true, false) => un(|v: f32| f32_to_f16(flush(v))),
        (Ty::F16, Ty::F32, Some("rz"), false, false) => un(f32_to_f16_rz),
        (Ty::Bf16, Ty::F32, Some("rn"), false, false) => un(f32_to_bf16),
        (Ty::Bf16, Ty::F32, Some("rz"), false, false) => un(f32_to_bf16_rz),
        (Ty::F16, Ty::F64, Some("rn"), false, false) => un(f64_to_f16),
        (Ty::F64, Ty::F32, None, false, false) => un(|v: f32| f64::from(v)),
        (Ty::F64, Ty::F16, None, false, false) => un(|v: u16| f64::from(f16_to_f32(v))),
        (Ty::F32, Ty::F64, Some("rn"), false, false) => un(|v: f64| canon(v as f32)),
        (Ty::F32, Ty::F32, None, false, false) => un(canon),
        (Ty::F32, Ty::F32, None, true, false) => un(|v: f32| canon(flush(v))),
        (Ty::F32, Ty::F32, None, false, true) => un(saturate),
        (Ty::F32, Ty::F32, None, true, true) => un(|v: f32| saturate(flush(v))),
        (Ty::F32, Ty::F32, Some("rni"), _, false) => un(|v: f32| canon(v.round_ties_even())),
        (Ty::F32, Ty::F32, Some("rzi"), _, false) => un(|v: f32| canon(v.trunc())),
        (Ty::F32, Ty::F32, Some("rmi"), false, false) => un(|v: f32| canon(v.floor())),
        (Ty::F32, Ty::F32, Some("rpi"), false, false) => un(|v: f32| canon(v.ceil())),
        (Ty::F32, Ty::F32, Some("rmi"), true, false) => un(|v: f32| canon(flush(v).floor())),
        (Ty::F32, Ty::F32, Some("rpi"), true, false) => un(|v: f32| canon(flush(v).ceil())),
        (Ty::F64, Ty::F64, Some("rni"), false, false) => un(|v: f64| v.round_ties_even()),
        (Ty::F64, Ty::F64, Some("rzi"), false, false) => un(|v: f64| v.trunc()),
        (Ty::F64, Ty::F64, Some("rmi"), false, false) => un(|v: f64| v.floor()),
        (Ty::F64, Ty::F64, Some("rpi"), false, false) => un(|v: f64| v.ceil()),
        _ => return None,
    })
}
