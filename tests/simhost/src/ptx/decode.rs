//! From statements to decoded instructions: registers, constants, labels and control flow.
//!
//! Knows names and where they live. An opcode, type or modifier that no handler takes is an error with line and text.

use std::collections::HashMap;

use super::code::{Code, Inst, Kind};
use super::lanes::{LANES, LaneFn, NONE, preds};
use super::parse::{Arg, Body, Item, ParseError, RegDecl, Stmt, Var, align_up};
use super::spaces::{DATA, LOCAL, SHARED};
use super::types::{Space, Special, Ty};

pub(super) type Res<T> = Result<T, ParseError>;

/// An opcode taken apart at its dots.
pub(super) struct Op<'a> {
    pub(super) name: &'a str,
    pub(super) tys: Vec<Ty>,
    mods: Vec<&'a str>,
    full: &'a str,
    line: u32,
}

impl<'a> Op<'a> {
    fn new(st: &'a Stmt) -> Op<'a> {
        let mut parts = st.op.split('.');
        let name = parts.next().unwrap_or_default();
        let (mut tys, mut mods) = (vec![], vec![]);
        for p in parts {
            match Ty::parse(p) {
                Some(t) => tys.push(t),
                None => mods.push(p),
            }
        }
        Op {
            name,
            tys,
            mods,
            full: &st.op,
            line: st.line,
        }
    }
    pub(super) fn take(&mut self, m: &str) -> bool {
        self.take_any(&[m]).is_some()
    }
    pub(super) fn take_any(&mut self, any: &[&str]) -> Option<&'a str> {
        let at = self.mods.iter().position(|m| any.contains(m))?;
        Some(self.mods.remove(at))
    }
    pub(super) fn take_map<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let at = self.mods.iter().position(|m| f(m).is_some())?;
        f(self.mods.remove(at))
    }
    /// The only type.
    pub(super) fn ty(&self) -> Res<Ty> {
        match self.tys[..] {
            [t] => Ok(t),
            _ => Err(self.unknown()),
        }
    }
    pub(super) fn unknown(&self) -> ParseError {
        ParseError::new(
            self.line,
            format!("`{}` is not supported by the interpreter", self.full),
        )
    }
}

#[derive(Clone, Copy)]
struct Reg {
    size: usize,
    off: u32,
}

pub(super) struct Lower<'a> {
    body: &'a Body,
    vars: Vec<&'a Var>,
    pub(super) code: Code,
    regs: HashMap<(usize, String), Reg>,
    consts: HashMap<(usize, u64), u32>,
    specials: Vec<(Special, u32)>,
    /// Shared offsets of the module's shared variables that this entry uses.
    shared_at: HashMap<String, usize>,
    /// The next free predicate and the end of its line of 16.
    preds: (u32, u32),
    guard: (u32, bool),
    line: u32,
    scope: usize,
    fixups: Vec<(usize, String, usize)>,
    table_fixups: Vec<(usize, String, usize)>,
}

pub(super) fn decode(body: &Body, module_vars: &[Var]) -> Res<Code> {
    let vars: Vec<&Var> = body.vars.iter().chain(module_vars).collect();
    let mut lower = Lower {
        body,
        vars,
        code: Code::default(),
        regs: HashMap::new(),
        consts: HashMap::new(),
        specials: vec![],
        shared_at: HashMap::new(),
        preds: (0, 0),
        guard: (NONE, false),
        line: 0,
        scope: 0,
        fixups: vec![],
        table_fixups: vec![],
    };
    lower.place_variables()?;
    lower.items()?;
    let mut code = lower.code;
    code.specials = lower.specials;
    if code.reg_bytes > 1 << 22 {
        return Err(ParseError::new(
            lower.line,
            format!("entry `{}` uses too many registers", body.name),
        ));
    }
    Ok(code)
}

impl Lower<'_> {
    pub(super) fn err<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(ParseError::new(self.line, message))
    }

    /// Static shared and local variables get their offsets; dynamic shared memory begins where the static part ends.
    fn place_variables(&mut self) -> Res<()> {
        let named = |name: &str| {
            self.body.items.iter().any(|i| match i {
                Item::Stmt(s) => s.args.iter().any(|a| mentions(a, name)),
                _ => false,
            })
        };
        let mut shared = 0;
        for v in self
            .vars
            .iter()
            .filter(|v| v.space == Space::Shared && !v.dynamic && named(&v.name))
        {
            let at = align_up(shared, v.align);
            shared = at + v.size;
            self.shared_at.insert(v.name.clone(), at);
        }
        let dynamic: Vec<&Var> = self.vars.iter().copied().filter(|v| v.dynamic).collect();
        let align = dynamic.iter().map(|v| v.align).max().unwrap_or(16).max(16);
        self.code.dynamic_at = align_up(shared, align);
        for v in dynamic {
            self.shared_at.insert(v.name.clone(), self.code.dynamic_at);
        }
        self.code.shared_bytes = shared;
        let mut local = 0;
        for v in self.body.vars.iter().filter(|v| v.space == Space::Local) {
            local = align_up(local, v.align) + v.size;
        }
        self.code.local_bytes = align_up(local, 16);
        if shared > 1 << 20 || local > 1 << 20 {
            return self.err("shared or local variables are too large");
        }
        Ok(())
    }

    fn items(&mut self) -> Res<()> {
        let body = self.body;
        let mut labels: HashMap<(usize, &str), u32> = HashMap::new();
        let mut targets: HashMap<(usize, &str), usize> = HashMap::new();
        for item in &body.items {
            match item {
                Item::Label(name, scope) => {
                    let at = self.code.insts.len() as u32;
                    if labels.insert((*scope, name), at).is_some() {
                        return self.err(format!("label `{name}` is defined twice"));
                    }
                }
                Item::Targets(name, list, scope) => {
                    let n = self.code.tables.len();
                    self.code.tables.push(vec![]);
                    targets.insert((*scope, name), n);
                    for l in list {
                        self.table_fixups.push((n, l.clone(), *scope));
                    }
                }
                Item::Stmt(st) => self.statement(st)?,
            }
        }
        // Falling off the end of the body is a return.
        self.guard = (NONE, false);
        self.push(Kind::Exit, [0; 6]);
        fn find<V: Copy>(
            map: &HashMap<(usize, &str), V>,
            scopes: &[usize],
            name: &str,
            mut scope: usize,
        ) -> Option<V> {
            loop {
                if let Some(v) = map.get(&(scope, name)) {
                    return Some(*v);
                }
                if scope == 0 {
                    return None;
                }
                scope = scopes[scope];
            }
        }
        for (at, name, scope) in std::mem::take(&mut self.fixups) {
            self.line = self.code.lines[at];
            let inst = &mut self.code.insts[at];
            let found = match inst.kind {
                Kind::BranchTable(_) => {
                    find(&targets, &body.scopes, &name, scope).map(|t| Kind::BranchTable(t as u32))
                }
                _ => find(&labels, &body.scopes, &name, scope).map(Kind::Branch),
            };
            match found {
                Some(kind) => inst.kind = kind,
                None => return self.err(format!("label `{name}` is not defined")),
            }
        }
        for (n, name, scope) in std::mem::take(&mut self.table_fixups) {
            match find(&labels, &body.scopes, &name, scope) {
                Some(at) => self.code.tables[n].push(at),
                None => return self.err(format!("label `{name}` is not defined")),
            }
        }
        Ok(())
    }

    fn statement(&mut self, st: &Stmt) -> Res<()> {
        self.line = st.line;
        self.scope = st.scope;
        self.guard = match &st.guard {
            None => (NONE, false),
            Some((name, not)) => (self.pred(&Arg::Name(name.clone()))?, *not),
        };
        let mut op = Op::new(st);
        let known = self.control(st, &mut op)?
            || self.warp_op(st, &mut op)?
            || self.memory_op(st, &mut op)?
            || self.convert(st, &mut op)?
            || self.compare(st, &mut op)?
            || self.alu(st, &mut op)?;
        if !known || !op.mods.is_empty() {
            Err(op.unknown())
        } else {
            Ok(())
        }
    }

    fn control(&mut self, st: &Stmt, op: &mut Op) -> Res<bool> {
        match op.name {
            "bra" => {
                op.take("uni");
                self.args(st, 1)?;
                self.jump(&st.args[0], Kind::Branch(0), [0; 6])?;
            }
            "brx" => {
                if !op.take("idx") {
                    return Err(op.unknown());
                }
                op.take("uni");
                self.args(st, 2)?;
                let index = self.src(&st.args[0], Ty::U32)?;
                self.jump(&st.args[1], Kind::BranchTable(0), [index, 0, 0, 0, 0, 0])?;
            }
            "ret" | "exit" => {
                op.take("uni");
                self.args(st, 0)?;
                self.push(Kind::Exit, [0; 6]);
            }
            "trap" => {
                self.args(st, 0)?;
                self.push(Kind::Trap, [0; 6]);
            }
            "nanosleep" => {
                if op.ty()? != Ty::U32 {
                    return Err(op.unknown());
                }
                self.args(st, 1)?;
                self.src(&st.args[0], Ty::U32)?;
                self.push(Kind::Sleep, [0; 6]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn jump(&mut self, to: &Arg, kind: Kind, o: [u32; 6]) -> Res<()> {
        let Arg::Name(label) = to else {
            return self.err("a branch needs a label");
        };
        self.fixups
            .push((self.code.insts.len(), label.clone(), self.scope));
        self.push(kind, o);
        Ok(())
    }

    pub(super) fn args(&self, st: &Stmt, n: usize) -> Res<()> {
        if st.args.len() == n {
            Ok(())
        } else {
            self.err(format!(
                "`{}` takes {n} operands, not {}",
                st.op,
                st.args.len()
            ))
        }
    }

    pub(super) fn emit(&mut self, f: LaneFn, o: [u32; 6]) {
        self.push(Kind::Lanes(f), o);
    }

    pub(super) fn push(&mut self, kind: Kind, o: [u32; 6]) {
        self.code.insts.push(Inst {
            kind,
            o,
            guard: self.guard.0,
            guard_not: self.guard.1,
        });
        self.code.lines.push(self.line);
    }

    fn alloc(&mut self, size: usize) -> u32 {
        if size == 0 {
            if self.preds.0 == self.preds.1 {
                let at = self.code.reg_bytes as u32;
                self.code.reg_bytes += 64;
                self.preds = (at, at + 64);
            }
            self.preds.0 += 4;
            return self.preds.0 - 4;
        }
        let at = self.code.reg_bytes as u32;
        self.code.reg_bytes += size * LANES;
        at
    }

    pub(super) fn temp(&mut self, ty: Ty) -> u32 {
        self.alloc(ty.size())
    }

    pub(super) fn constant(&mut self, size: usize, bits: u64) -> u32 {
        let bits = match size {
            0 => u64::from(bits != 0),
            8 => bits,
            n => bits & ((1 << (8 * n)) - 1),
        };
        if let Some(&off) = self.consts.get(&(size, bits)) {
            return off;
        }
        let off = self.alloc(size);
        self.consts.insert((size, bits), off);
        self.code.consts.push((off, size, bits));
        off
    }

    /// A declared register: its bytes (0 for a predicate) and place.
    fn register(&mut self, name: &str) -> Option<Reg> {
        let mut scope = self.scope;
        loop {
            if let Some(&r) = self.regs.get(&(scope, name.to_owned())) {
                return Some(r);
            }
            let fits = |d: &&RegDecl| {
                d.scope == scope
                    && match d.count {
                        None => d.name == name,
                        Some(n) => name
                            .strip_prefix(d.name.as_str())
                            .and_then(|k| k.parse::<u32>().ok())
                            .is_some_and(|k| k < n),
                    }
            };
            if let Some(d) = self.body.regs.iter().find(fits) {
                let size = d.ty.size();
                let r = Reg {
                    size,
                    off: self.alloc(size),
                };
                self.regs.insert((scope, name.to_owned()), r);
                return Some(r);
            }
            if scope == 0 {
                return None;
            }
            scope = self.body.scopes[scope];
        }
    }

    pub(super) fn line(&self) -> u32 {
        self.line
    }

    pub(super) fn is_register(&mut self, name: &str) -> bool {
        self.register(name).is_some()
    }

    /// A register of any size.
    pub(super) fn any_register(&mut self, name: &str) -> Res<(usize, u32)> {
        match self.register(name) {
            Some(r) => Ok((r.size, r.off)),
            None => self.err(format!("register `{name}` is not declared")),
        }
    }

    pub(super) fn dst(&mut self, arg: &Arg, ty: Ty) -> Res<u32> {
        let Arg::Name(name) = arg else {
            return self.err("a destination must be a register");
        };
        if name == "_" {
            return Ok(self.temp(ty));
        }
        let (size, off) = self.any_register(name)?;
        if size != ty.size() {
            self.wrong_size(name, size, ty)
        } else {
            Ok(off)
        }
    }

    fn wrong_size<T>(&self, name: &str, size: usize, ty: Ty) -> Res<T> {
        self.err(format!(
            "register `{name}` of {} bits used as {ty:?}",
            size * 8
        ))
    }

    /// A source of this type: register, immediate, special register or address of a variable.
    pub(super) fn src(&mut self, arg: &Arg, ty: Ty) -> Res<u32> {
        match arg {
            Arg::Name(name) => {
                if let Some(r) = self.register(name) {
                    return if r.size != ty.size() {
                        self.wrong_size(name, r.size, ty)
                    } else {
                        Ok(r.off)
                    };
                }
                if name == "WARP_SZ" {
                    return Ok(self.constant(ty.size(), LANES as u64));
                }
                if let Some(s) = Special::parse(name) {
                    if ty.size() != 4 {
                        return self.wrong_size(name, 4, ty);
                    }
                    return Ok(self.special(s));
                }
                match self.symbol(name) {
                    Some((_, at)) if ty.size() >= 4 && !ty.float() => {
                        Ok(self.constant(ty.size(), at))
                    }
                    Some(_) => self.err(format!("address of `{name}` used as {ty:?}")),
                    None => self.err(format!("`{name}` is not declared or not supported")),
                }
            }
            Arg::Int(v) if !ty.float() => Ok(self.constant(ty.size(), *v)),
            Arg::F32(b) if ty.size() == 4 => Ok(self.constant(4, u64::from(*b))),
            Arg::F64(b) if ty.size() == 8 => Ok(self.constant(8, *b)),
            Arg::F64(b) if ty == Ty::F32 => {
                Ok(self.constant(4, u64::from((f64::from_bits(*b) as f32).to_bits())))
            }
            _ => self.err(format!("operand does not fit type {ty:?}")),
        }
    }

    fn special(&mut self, s: Special) -> u32 {
        if let Some((_, off)) = self.specials.iter().find(|(x, _)| *x == s) {
            return *off;
        }
        let off = self.alloc(4);
        self.specials.push((s, off));
        off
    }

    /// A predicate source, perhaps negated.
    pub(super) fn pred(&mut self, arg: &Arg) -> Res<u32> {
        match arg {
            Arg::Not(inner) => {
                let p = self.pred(inner)?;
                let t = self.temp(Ty::Pred);
                self.emit(preds(|a, _| !a), [t, p, p, 0, 0, 0]);
                Ok(t)
            }
            _ => self.src(arg, Ty::Pred),
        }
    }

    /// The space of a variable or parameter, and its address in that space.
    pub(super) fn symbol(&self, name: &str) -> Option<(Space, u64)> {
        if let Some((_, p)) = self.body.params.iter().find(|(n, _)| n == name) {
            return Some((Space::Param, p.offset as u64));
        }
        if let Some(&at) = self.shared_at.get(name) {
            return Some((Space::Shared, at as u64));
        }
        let mut local = 0;
        for v in &self.vars {
            if v.space == Space::Local {
                local = align_up(local, v.align);
                if v.name == name {
                    return Some((Space::Local, local as u64));
                }
                local += v.size;
            } else if v.name == name {
                return Some((v.space, DATA + v.at as u64));
            }
        }
        None
    }

    /// What `cvta` adds to an address of this space.
    pub(super) fn window(space: Space) -> u64 {
        match space {
            Space::Shared => SHARED,
            Space::Local => LOCAL,
            _ => 0,
        }
    }
}

fn mentions(arg: &Arg, name: &str) -> bool {
    match arg {
        Arg::Name(n) => n == name,
        Arg::Address(Some(n), _) => n == name,
        Arg::Vector(v) => v.iter().any(|a| mentions(a, name)),
        Arg::Not(a) => mentions(a, name),
        Arg::Pair(a, b) => mentions(a, name) || mentions(b, name),
        _ => false,
    }
}
