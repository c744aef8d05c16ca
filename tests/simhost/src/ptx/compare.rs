//! Comparison, selection and predicates. Knows which comparisons are true on NaN.

use super::decode::{Lower, Op, Res};
use super::float::{f16_to_f32, flush};
use super::lanes::{LaneFn, cmp, preds, sel};
use super::parse::{Arg, Stmt};
use super::spaces::{is_local, is_shared};
use super::types::Ty;

impl Lower<'_> {
    fn selp(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let ty = op.ty()?;
        let f = match ty.size() {
            2 => sel::<u16>(),
            4 => sel::<u32>(),
            8 => sel::<u64>(),
            _ => return Err(op.unknown()),
        };
        self.args(st, 4)?;
        let o = [
            self.dst(&st.args[0], ty)?,
            self.src(&st.args[1], ty)?,
            self.src(&st.args[2], ty)?,
            self.pred(&st.args[3])?,
            0,
            0,
        ];
        self.emit(f, o);
        Ok(())
    }

    fn pred_logic(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let f = match op.name {
            "and" => preds(|a, b| a & b),
            "or" => preds(|a, b| a | b),
            "xor" => preds(|a, b| a ^ b),
            _ => preds(|a, _| !a),
        };
        let n = if op.name == "not" { 2 } else { 3 };
        self.args(st, n)?;
        let d = self.dst(&st.args[0], Ty::Pred)?;
        let a = self.pred(&st.args[1])?;
        let b = if n == 3 { self.pred(&st.args[2])? } else { a };
        self.emit(f, [d, a, b, 0, 0, 0]);
        Ok(())
    }

    pub(super) fn compare(&mut self, st: &Stmt, op: &mut Op) -> Res<bool> {
        match op.name {
            "setp" => self.setp(st, op)?,
            "selp" => self.selp(st, op)?,
            "and" | "or" | "xor" | "not" if op.tys == [Ty::Pred] => self.pred_logic(st, op)?,
            "isspacep" => self.isspacep(st, op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn setp(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let ty = op.ty()?;
        let boolop = op.take_any(&["and", "or", "xor"]);
        let f = comparison(op, ty).ok_or_else(|| op.unknown())?;
        self.args(st, if boolop.is_some() { 4 } else { 3 })?;
        let (p, q) = match &st.args[0] {
            Arg::Pair(p, q) => (self.dst(p, Ty::Pred)?, Some(self.dst(q, Ty::Pred)?)),
            p => (self.dst(p, Ty::Pred)?, None),
        };
        let a = self.src(&st.args[1], ty)?;
        let b = self.src(&st.args[2], ty)?;
        if boolop.is_none() && q.is_none() {
            self.emit(f, [p, a, b, 0, 0, 0]);
            return Ok(());
        }
        // The third source may be a destination too: compare aside, then combine into the second destination first.
        let t = self.temp(Ty::Pred);
        self.emit(f, [t, a, b, 0, 0, 0]);
        let c = match boolop {
            Some(_) => self.pred(&st.args[3])?,
            None => t,
        };
        let c = if q.is_some() && boolop.is_some() {
            let copy = self.temp(Ty::Pred);
            self.emit(preds(|a, _| a), [copy, c, c, 0, 0, 0]);
            copy
        } else {
            c
        };
        let (yes, no) = match boolop {
            Some("and") => (preds(|t, c| t & c), preds(|t, c| !t & c)),
            Some("or") => (preds(|t, c| t | c), preds(|t, c| !t | c)),
            Some(_) => (preds(|t, c| t ^ c), preds(|t, c| !t ^ c)),
            None => (preds(|t, _| t), preds(|t, _| !t)),
        };
        self.emit(yes, [p, t, c, 0, 0, 0]);
        if let Some(q) = q {
            self.emit(no, [q, t, c, 0, 0, 0]);
        }
        Ok(())
    }

    fn isspacep(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let f = match op
            .take_any(&["global", "shared", "local", "const"])
            .ok_or_else(|| op.unknown())?
        {
            "global" => cmp(|a: u64, _| !is_shared(a) && !is_local(a)),
            "shared" => cmp(|a: u64, _| is_shared(a)),
            "local" => cmp(|a: u64, _| is_local(a)),
            _ => return Err(op.unknown()),
        };
        self.args(st, 2)?;
        let d = self.dst(&st.args[0], Ty::Pred)?;
        let a = self.src(&st.args[1], Ty::B64)?;
        self.emit(f, [d, a, a, 0, 0, 0]);
        Ok(())
    }
}

fn comparison(op: &mut Op, ty: Ty) -> Option<LaneFn> {
    const NAMES: [&str; 18] = [
        "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu",
        "gtu", "geu", "num", "nan",
    ];
    let name = op.take_any(&NAMES)?;
    // The unordered comparisons (`equ`, `ltu`, ...) are true on NaN, the ordered ones false.
    macro_rules! floats {
        ($t:ty, $v:ident) => {
            match name {
                "eq" => Some(cmp(|a: $t, b: $t| $v(a) == $v(b))),
                "ne" => Some(cmp(|a: $t, b: $t| $v(a) < $v(b) || $v(a) > $v(b))),
                "lt" => Some(cmp(|a: $t, b: $t| $v(a) < $v(b))),
                "le" => Some(cmp(|a: $t, b: $t| $v(a) <= $v(b))),
                "gt" => Some(cmp(|a: $t, b: $t| $v(a) > $v(b))),
                "ge" => Some(cmp(|a: $t, b: $t| $v(a) >= $v(b))),
                "equ" => Some(cmp(|a: $t, b: $t| !($v(a) < $v(b) || $v(a) > $v(b)))),
                "neu" => Some(cmp(|a: $t, b: $t| $v(a) != $v(b))),
                "ltu" => Some(cmp(|a: $t, b: $t| {
                    $v(a) < $v(b) || $v(a).is_nan() || $v(b).is_nan()
                })),
                "leu" => Some(cmp(|a: $t, b: $t| {
                    $v(a) <= $v(b) || $v(a).is_nan() || $v(b).is_nan()
                })),
                "gtu" => Some(cmp(|a: $t, b: $t| {
                    $v(a) > $v(b) || $v(a).is_nan() || $v(b).is_nan()
                })),
                "geu" => Some(cmp(|a: $t, b: $t| {
                    $v(a) >= $v(b) || $v(a).is_nan() || $v(b).is_nan()
                })),
                "num" => Some(cmp(|a: $t, b: $t| !$v(a).is_nan() && !$v(b).is_nan())),
                "nan" => Some(cmp(|a: $t, b: $t| $v(a).is_nan() || $v(b).is_nan())),
                _ => None,
            }
        };
    }
    #[inline(always)]
    fn same<T>(v: T) -> T {
        v
    }
    let equality = matches!(name, "eq" | "ne");
    match ty {
        Ty::F32 if op.take("ftz") => floats!(f32, flush),
        Ty::F32 => floats!(f32, same),
        Ty::F64 => floats!(f64, same),
        Ty::F16 => floats!(u16, f16_to_f32),
        Ty::B16 | Ty::B32 | Ty::B64 if !equality => None,
        _ => {
            let name = match (name, ty.signed()) {
                ("lo", false) => "lt",
                ("ls", false) => "le",
                ("hi", false) => "gt",
                ("hs", false) => "ge",
                (n, _) => n,
            };
            match ty {
                Ty::U16 | Ty::B16 => int_compare::<u16>(name),
                Ty::S16 => int_compare::<i16>(name),
                Ty::U32 | Ty::B32 => int_compare::<u32>(name),
                Ty::S32 => int_compare::<i32>(name),
                Ty::U64 | Ty::B64 => int_compare::<u64>(name),
                Ty::S64 => int_compare::<i64>(name),
                _ => None,
            }
        }
    }
}

fn int_compare<T: Copy + Ord>(name: &str) -> Option<LaneFn> {
    Some(match name {
        "eq" => cmp(|a: T, b: T| a == b),
        "ne" => cmp(|a: T, b: T| a != b),
        "lt" => cmp(|a: T, b: T| a < b),
        "le" => cmp(|a: T, b: T| a <= b),
        "gt" => cmp(|a: T, b: T| a > b),
        "ge" => cmp(|a: T, b: T| a >= b),
        _ => return None,
    })
}
