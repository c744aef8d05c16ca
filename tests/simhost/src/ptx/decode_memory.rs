//! Decoding of what touches memory: loads, stores, atomics, fences, prefetches.

use super::code::{AtomOp, Kind, MemOp};
use super::decode::{Lower, Op, Res};
use super::lanes::NONE;
use super::memory::{Access, AtomicOp, FenceKind, Order, Scope, Width};
use super::parse::{Arg, ParseError, Stmt};
use super::types::{Space, Ty};

/// Cache operators and hints that do not change what an access does.
const HINTS: [&str; 12] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "wb",
    "wt",
    "L1::no_allocate",
    "L1::evict_first",
    "L1::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];

fn scope(m: &str) -> Option<Scope> {
    Some(match m {
        "cta" => Scope::Cta,
        "gpu" | "gl" => Scope::Gpu,
        "sys" => Scope::Sys,
        _ => return None,
    })
}

impl Lower<'_> {
    pub(super) fn memory_op(&mut self, st: &Stmt, op: &mut Op) -> Res<bool> {
        match op.name {
            "ld" | "ldu" => self.load_store(st, op, true)?,
            "st" => self.load_store(st, op, false)?,
            "atom" | "red" => self.atomic(st, op)?,
            "membar" => {
                let s = op.take_map(scope).ok_or_else(|| op.unknown())?;
                self.args(st, 0)?;
                self.push(Kind::Fence(FenceKind::SeqCst, s), [0; 6]);
            }
            "fence" => {
                let kind = match op.take_any(&["sc", "acq_rel"]) {
                    Some("sc") => FenceKind::SeqCst,
                    _ => FenceKind::AcqRel,
                };
                let s = op.take_map(scope).ok_or_else(|| op.unknown())?;
                self.args(st, 0)?;
                self.push(Kind::Fence(kind, s), [0; 6]);
            }
            "prefetch" | "prefetchu" => {
                // No effect that a kernel can observe, short of a fault that prefetches do not raise.
                op.take_any(&["global", "local"]);
                op.take_any(&["L1", "L2"]).ok_or_else(|| op.unknown())?;
                self.args(st, 1)?;
                self.address(&st.args[0])?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Base register and its bytes, offset, and the space of a variable named as base.
    fn address(&mut self, arg: &Arg) -> Res<(u32, u8, u64, Option<Space>)> {
        match arg {
            Arg::Address(None, off) => Ok((NONE, 0, *off as u64, None)),
            Arg::Address(Some(name), off) => {
                if let Some((space, at)) = self.symbol(name) {
                    return Ok((NONE, 0, at.wrapping_add(*off as u64), Some(space)));
                }
                let (size, reg) = self.any_register(name)?;
                if size == 4 || size == 8 {
                    Ok((reg, size as u8, *off as u64, None))
                } else {
                    self.bad(format!("register `{name}` cannot hold an address"))
                }
            }
            _ => self.bad("expected an address in brackets"),
        }
    }

    fn bad<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(ParseError::new(self.line(), message))
    }

    /// Puts the address into a space: a variable named in an instruction without a space brings its window along.
    fn placed(&mut self, arg: &Arg, op: &mut Op) -> Res<(Space, u32, u8, u64)> {
        let space = op.take_map(Space::parse);
        let (base, size, mut off, of) = self.address(arg)?;
        let space = match (space, of) {
            (Some(s), None) => s,
            (Some(s), Some(v)) if s == v || (s == Space::Global && v == Space::Const) => s,
            (Some(_), Some(_)) => return self.bad("variable belongs to another address space"),
            (None, None) => Space::Generic,
            (None, Some(Space::Param)) => return self.bad("a parameter has no generic address"),
            (None, Some(v)) => {
                off = off.wrapping_add(Self::window(v));
                Space::Generic
            }
        };
        let wide = matches!(space, Space::Generic | Space::Global | Space::Const);
        if wide && size == 4 {
            return self.bad("a global or generic address needs a 64-bit register");
        }
        Ok((space, base, size, off))
    }

    fn load_store(&mut self, st: &Stmt, op: &mut Op, load: bool) -> Res<()> {
        let ty = op.ty()?;
        let count = match op.take_any(&["v2", "v4"]) {
            None => 1,
            Some("v2") => 2,
            Some(_) => 4,
        };
        // Memory-mapped I/O: every access happens, in its size, as it does here.
        let mmio = op.take("mmio");
        let mut order = Order::Weak;
        if let Some(o) = op.take_any(&["weak", "volatile", "relaxed", "acquire", "release", "cv"]) {
            order = match o {
                "weak" => Order::Weak,
                "volatile" => Order::Volatile,
                // `.cv`: do not use a cached value, which is what a volatile load does.
                "cv" if load => Order::Volatile,
                "relaxed" => Order::Relaxed,
                "acquire" if load => Order::Acquire,
                "release" if !load => Order::Release,
                _ => return Err(op.unknown()),
            };
        }
        let mut sc = Scope::Sys;
        if matches!(order, Order::Relaxed | Order::Acquire | Order::Release) {
            sc = op.take_map(scope).ok_or_else(|| op.unknown())?;
        }
        if mmio && (order != Order::Relaxed || sc != Scope::Sys || count != 1) {
            return Err(op.unknown());
        }
        while op.take_any(&HINTS).is_some() {}
        if op.name == "ldu" && order != Order::Weak {
            return Err(op.unknown());
        }
        self.args(st, 2)?;
        let (addr, value) = if load {
            (&st.args[1], &st.args[0])
        } else {
            (&st.args[0], &st.args[1])
        };
        let nc = load && op.take("nc");
        let (space, base, base_size, off) = self.placed(addr, op)?;
        if nc && space != Space::Global
            || space == Space::Param && !load
            || ty.size() == 0
            || space == Space::Const && !load
        {
            return Err(op.unknown());
        }
        let elements = match (value, count) {
            (Arg::Vector(v), n) if v.len() == n && n > 1 => v.clone(),
            (a, 1) if !matches!(a, Arg::Vector(_)) => vec![a.clone()],
            _ => return self.bad("the vector and its elements do not match"),
        };
        if ty.size() * count > 16 {
            return Err(op.unknown());
        }
        let (mut regs, mut reg_size) = ([NONE; 4], 0);
        for (k, e) in elements.iter().enumerate() {
            let (size, reg) = match e {
                Arg::Name(n) if n == "_" && load => continue,
                Arg::Name(n) if load || self.is_register(n) => self.any_register(n)?,
                _ if load => return self.bad("a destination must be a register"),
                imm => (
                    ty.size().max(2),
                    self.src(imm, if ty.size() == 1 { Ty::B16 } else { ty })?,
                ),
            };
            if size < ty.size()
                || size == 0
                || (reg_size != 0 && size != reg_size)
                || (ty.float() && size != ty.size())
            {
                return self.bad(format!("registers do not fit type {ty:?}"));
            }
            reg_size = size;
            regs[k] = reg;
        }
        let access = Access {
            width: ty.size() as u8,
            count: count as u8,
            order,
            scope: sc,
        };
        let mem = MemOp {
            space,
            access,
            signed: ty.signed(),
            regs,
            reg_size: reg_size as u8,
            base,
            base_size,
            off,
        };
        let n = self.code.mems.len() as u32;
        self.code.mems.push(mem);
        self.push(if load { Kind::Load(n) } else { Kind::Store(n) }, [0; 6]);
        Ok(())
    }

    fn atomic(&mut self, st: &Stmt, op: &mut Op) -> Res<()> {
        let ty = op.ty()?;
        let red = op.name == "red";
        let order = match op.take_any(&["relaxed", "acquire", "release", "acq_rel"]) {
            None | Some("relaxed") => Order::Relaxed,
            Some("acquire") if !red => Order::Acquire,
            Some("release") => Order::Release,
            Some("acq_rel") if !red => Order::AcqRel,
            Some(_) => return Err(op.unknown()),
        };
        let sc = op.take_map(scope).unwrap_or(Scope::Gpu);
        let name = op
            .take_any(&[
                "add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec",
            ])
            .ok_or_else(|| op.unknown())?;
        op.take("noftz");
        let what = match (name, ty) {
            ("add", Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) => AtomicOp::Add,
            ("add", Ty::F32) => AtomicOp::AddF32,
            ("add", Ty::F64) => AtomicOp::AddF64,
            ("and", Ty::B32 | Ty::B64) => AtomicOp::And,
            ("or", Ty::B32 | Ty::B64) => AtomicOp::Or,
            ("xor", Ty::B32 | Ty::B64) => AtomicOp::Xor,
            ("exch", Ty::B32 | Ty::B64) if !red => AtomicOp::Exch,
            ("cas", Ty::B16 | Ty::B32 | Ty::B64) if !red => AtomicOp::Cas,
            ("min", Ty::U32 | Ty::U64) => AtomicOp::MinU,
            ("max", Ty::U32 | Ty::U64) => AtomicOp::MaxU,
            ("min", Ty::S32 | Ty::S64) => AtomicOp::MinS,
            ("max", Ty::S32 | Ty::S64) => AtomicOp::MaxS,
            ("inc", Ty::U32) => AtomicOp::Inc,
            ("dec", Ty::U32) => AtomicOp::Dec,
            _ => return Err(op.unknown()),
        };
        let width = match ty.size() {
            2 => Width::W16,
            4 => Width::W32,
            _ => Width::W64,
        };
        let mut args = st.args.iter();
        let mut next = || args.next().ok_or_else(|| op.unknown());
        let dst = if red { NONE } else { self.dst(next()?, ty)? };
        let at = next()?;
        let a = self.src(next()?, ty)?;
        let b = if what == AtomicOp::Cas {
            self.src(next()?, ty)?
        } else {
            a
        };
        if args.next().is_some() {
            return Err(op.unknown());
        }
        let (space, base, base_size, off) = self.placed(at, op)?;
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return Err(op.unknown());
        }
        let access = Access {
            width: ty.size() as u8,
            count: 1,
            order,
            scope: sc,
        };
        let mem = MemOp {
            space,
            access,
            signed: false,
            regs: [NONE; 4],
            reg_size: 0,
            base,
            base_size,
            off,
        };
        let n = self.code.atoms.len() as u32;
        self.code.atoms.push(AtomOp {
            mem,
            op: what,
            width,
            dst,
            src: [a, b],
        });
        self.push(Kind::Atomic(n), [0; 6]);
        Ok(())
    }
}
