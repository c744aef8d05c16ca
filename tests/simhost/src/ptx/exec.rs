//! One warp: its lanes in groups that share a program counter, and the instruction loop.
//!
//! Groups of a diverged warp run lowest program counter first and merge where they meet. A group that polls without
//! seeing anything new gives way to the others, so lanes of one warp may wait for each other.

use super::access::lanes;
use super::code::{Code, Inst, Kind};
use super::grid::Stats;
use super::lanes::{Aligned, LANES, NONE};
use super::memory::{Memory, Trap, TrapKind};
use super::parse::Entry;
use super::spaces::ModuleData;
use super::types::{Clock, Special};
use super::warp_ops;

/// Instructions of one turn of a warp, checked at branches.
const TURN: u64 = 8192;
/// Polls without news that end a turn early.
const POLLS: u32 = 4;
/// Choices of a group in a row before the lowest program counter loses its preference once.
const PICKS: u32 = 4096;

/// What a warp executes against.
pub(super) struct Env<'a> {
    pub(super) entry: &'a Entry,
    pub(super) code: &'a Code,
    pub(super) data: &'a ModuleData,
    pub(super) mem: &'a dyn Memory,
    pub(super) params: &'a [u8],
    /// Shared memory of the block whose warp has its turn.
    pub(super) shared: *mut u8,
    pub(super) shared_len: usize,
    pub(super) ctaid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) stats: Stats,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// At the block barrier of this id, whose instruction the program counter names.
    Barrier(u32),
    /// Until these lanes have come to the same warp operation.
    Members(u32),
    /// Until these lanes have come to any `bar.warp.sync`.
    WarpBarrier(u32),
}

/// What a warp's turn came to.
pub(super) struct Turn {
    pub(super) ran: bool,
    /// It did something other than polling in vain.
    pub(super) news: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) pc: u32,
    pub(super) mask: u32,
    pub(super) wait: Wait,
    /// When it last ran.
    ran: u32,
}

pub(super) struct Warp {
    pub(super) regs: Aligned,
    pub(super) local: Aligned,
    pub(super) groups: Vec<Group>,
    /// Lanes that exist and have not exited.
    pub(super) live: u32,
    /// Within this turn: something happened that a waiting kernel does not repeat.
    pub(super) productive: bool,
    polls: u32,
    seen: [(u32, u64); 8],
    picks: u32,
    clock: u32,
    index: u32,
}

impl Warp {
    pub(super) fn new(code: &Code, index: u32) -> Warp {
        Warp {
            regs: Aligned::new(code.reg_bytes),
            local: Aligned::new(code.local_bytes * LANES),
            groups: Vec::new(),
            live: 0,
            productive: false,
            polls: 0,
            seen: [(NONE, 0); 8],
            picks: 0,
            clock: 0,
            index,
        }
    }

    /// Ready for a new block with this many threads of it in this warp.
    pub(super) fn reset(
        &mut self,
        code: &Code,
        threads: u32,
        special: impl Fn(Special, u32) -> u32,
    ) {
        self.regs.clear();
        self.local.clear();
        self.live = if threads >= 32 {
            !0
        } else {
            (1 << threads) - 1
        };
        self.groups.clear();
        self.groups.push(Group {
            pc: 0,
            mask: self.live,
            wait: Wait::No,
            ran: 0,
        });
        self.seen = [(NONE, 0); 8];
        let regs = self.regs.ptr();
        // SAFETY: the decoder laid the register file out; each register has 32 values of its size, a predicate one word.
        unsafe {
            for &(off, size, bits) in &code.consts {
                let at = regs.add(off as usize);
                match size {
                    0 => *at.cast::<u32>() = if bits != 0 { !0 } else { 0 },
                    2 => *at.cast::<[u16; LANES]>() = [bits as u16; LANES],
                    4 => *at.cast::<[u32; LANES]>() = [bits as u32; LANES],
                    _ => *at.cast::<[u64; LANES]>() = [bits; LANES],
                }
            }
            for &(s, off) in &code.specials {
                *regs.add(off as usize).cast::<[u32; LANES]>() =
                    std::array::from_fn(|i| special(s, self.index * 32 + i as u32));
            }
        }
    }

    /// Notes what a strong load or an atomic saw; the same again at the same place is no news.
    pub(super) fn polled(&mut self, pc: u32, seen: u64) {
        let slot = &mut self.seen[pc as usize % 8];
        if *slot == (pc, seen) {
            self.polls += 1;
        } else {
            *slot = (pc, seen);
            self.productive = true;
        }
    }

    /// Merges groups that can go on together, and picks the one to run.
    fn pick(&mut self) -> Option<usize> {
        for g in &mut self.groups {
            if let Wait::Members(need) | Wait::WarpBarrier(need) = g.wait
                && need & self.live & !g.mask == 0
            {
                g.wait = Wait::No;
            }
        }
        let mut i = 0;
        while i < self.groups.len() {
            let mut j = i + 1;
            while j < self.groups.len() {
                let (a, b) = (self.groups[i], self.groups[j]);
                let barrier =
                    matches!(a.wait, Wait::Barrier(_)) || matches!(b.wait, Wait::Barrier(_));
                if a.pc == b.pc && !barrier {
                    self.groups[i].mask |= b.mask;
                    self.groups[i].wait = Wait::No;
                    self.groups.swap_remove(j);
                    self.picks = 0;
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
        let ready = |g: &&(usize, &Group)| g.1.wait == Wait::No;
        if self.groups.len() == 1 {
            return (self.groups[0].wait == Wait::No).then_some(0);
        }
        self.picks += 1;
        let fair = self.polls > 0 || self.picks > PICKS;
        let groups = self.groups.iter().enumerate();
        let chosen = if fair {
            self.picks = 0;
            groups.filter(|g| ready(&g)).min_by_key(|g| g.1.ran)
        } else {
            groups.filter(|g| ready(&g)).min_by_key(|g| g.1.pc)
        };
        chosen.map(|(i, _)| i).or_else(|| self.open_warp_barrier())
    }

    /// `bar.warp.sync` lets lanes meet from different instructions: opens it for members that have all come.
    fn open_warp_barrier(&mut self) -> Option<usize> {
        let at = |g: &Group| {
            if let Wait::WarpBarrier(need) = g.wait {
                Some(need)
            } else {
                None
            }
        };
        let come = self
            .groups
            .iter()
            .filter(|g| at(g).is_some())
            .fold(0, |acc, g| acc | g.mask);
        for g in &mut self.groups {
            if at(g).is_some_and(|need| need & self.live & !come == 0) {
                g.pc += 1;
                g.wait = Wait::No;
            }
        }
        self.groups.iter().position(|g| g.wait == Wait::No)
    }
}

impl Env<'_> {
    /// Runs the warp until its turn ends, it waits, or it is done. The trap says where.
    pub(super) fn turn(&mut self, w: &mut Warp) -> Result<Turn, Trap> {
        let mut any = false;
        w.productive = false;
        w.polls = 0;
        let mut left = TURN;
        while let Some(g) = w.pick() {
            any = true;
            w.clock += 1;
            w.groups[g].ran = w.clock;
            let before = w.polls;
            let ran = self.group(w, g, left)?;
            left = left.saturating_sub(ran);
            let waits =
                w.polls > before && w.groups.iter().filter(|g| g.wait == Wait::No).count() > 1;
            if left == 0 || (w.polls >= POLLS && !waits) || w.polls >= 4 * POLLS {
                break;
            }
        }
        Ok(Turn {
            ran: any,
            news: any && (w.productive || w.polls == 0),
        })
    }

    /// Runs one group; returns the instructions executed.
    fn group(&mut self, w: &mut Warp, g: usize, left: u64) -> Result<u64, Trap> {
        let Group { mut pc, mask, .. } = w.groups[g];
        let alone = w.groups.len() == 1;
        // Where another group waits to be met, going straight on.
        let stop = w
            .groups
            .iter()
            .map(|o| o.pc)
            .filter(|&p| p > pc)
            .min()
            .unwrap_or(NONE);
        // Lanes that do not exist may compute garbage; only a lane of another group must keep its registers.
        let dead = !w.live;
        let code = self.code;
        let regs = w.regs.ptr();
        let mut ran = 0u64;
        let result = loop {
            if pc == stop {
                break Ok(());
            }
            let inst: &Inst = &code.insts[pc as usize];
            ran += 1;
            let mut m = mask;
            if inst.guard != NONE {
                // SAFETY: a guard is a predicate of this register file.
                let p = unsafe { *regs.add(inst.guard as usize).cast::<u32>() };
                m &= if inst.guard_not { !p } else { p };
                if m == 0 {
                    pc += 1;
                    continue;
                }
            }
            let done = match inst.kind {
                Kind::Lanes(f) => {
                    let m = if m | dead == !0 { !0 } else { m };
                    // SAFETY: operands and register file belong to the same code.
                    unsafe { f(regs, &inst.o, m) };
                    pc += 1;
                    continue;
                }
                Kind::Load(n) => self.load(w, &code.mems[n as usize], m, pc),
                Kind::Store(n) => self.store(w, &code.mems[n as usize], m),
                Kind::Branch(target) => {
                    if m == mask {
                        let back = target <= pc;
                        pc = target;
                        if !alone || (back && (ran >= left || w.polls >= POLLS)) {
                            break Ok(());
                        }
                        continue;
                    }
                    w.groups.push(Group {
                        pc: pc + 1,
                        mask: mask & !m,
                        wait: Wait::No,
                        ran: w.clock,
                    });
                    w.groups[g].mask = m;
                    pc = target;
                    break Ok(());
                }
                kind => match self.rare(w, g, kind, inst, pc, m) {
                    Ok(Next::On) => Ok(()),
                    Ok(Next::Break(to)) => {
                        pc = to;
                        break Ok(());
                    }
                    Ok(Next::Gone) => {
                        self.stats.instructions += ran * u64::from(mask.count_ones());
                        return Ok(ran);
                    }
                    Err(t) => Err(t),
                },
            };
            match done {
                Ok(()) => pc += 1,
                Err(t) => break Err(self.at(w, t, pc, m)),
            }
        };
        self.stats.instructions += ran * u64::from(mask.count_ones());
        w.groups[g].pc = pc;
        result.map(|()| ran)
    }

    /// Instructions that may change who runs.
    fn rare(
        &mut self,
        w: &mut Warp,
        g: usize,
        kind: Kind,
        inst: &Inst,
        pc: u32,
        m: u32,
    ) -> Result<Next, Trap> {
        let mask = w.groups[g].mask;
        let regs = w.regs.ptr();
        // SAFETY: every operand that is read here is a 32-bit register of this register file.
        let first = |k: usize| unsafe {
            *regs
                .add(inst.o[k] as usize)
                .cast::<u32>()
                .add(m.trailing_zeros() as usize)
        };
        // A warp operation needs its members here; lanes whose guard is false pass by first.
        let members = |w: &mut Warp, need: u32| {
            if m != mask {
                w.groups.push(Group {
                    pc: pc + 1,
                    mask: mask & !m,
                    wait: Wait::No,
                    ran: w.clock,
                });
                w.groups[g].mask = m;
            }
            if need & w.live & !m != 0 {
                w.groups[g].wait = Wait::Members(need);
                return Some(Next::Break(pc));
            }
            (m != mask).then_some(Next::Break(pc))
        };
        match kind {
            Kind::Atomic(n) => self.atomic(w, &self.code.atoms[n as usize], m, pc)?,
            Kind::BranchTable(n) => {
                let table = &self.code.tables[n as usize];
                let mut rest = mask & !m;
                let mut targets: Vec<(u32, u32)> = if rest != 0 {
                    vec![(pc + 1, rest)]
                } else {
                    vec![]
                };
                for i in lanes(m) {
                    // SAFETY: operand 0 is a 32-bit register of this register file.
                    let index = unsafe { *regs.add(inst.o[0] as usize).cast::<u32>().add(i) };
                    let Some(&to) = table.get(index as usize) else {
                        return Err(Trap::new(
                            TrapKind::IllegalInstruction,
                            format!("brx.idx {index} is off its table"),
                        ));
                    };
                    match targets.iter_mut().find(|t| t.0 == to) {
                        Some(t) => t.1 |= 1 << i,
                        None => targets.push((to, 1 << i)),
                    }
                }
                rest = targets[0].1;
                w.groups[g].mask = rest;
                for &(pc, mask) in &targets[1..] {
                    w.groups.push(Group {
                        pc,
                        mask,
                        wait: Wait::No,
                        ran: w.clock,
                    });
                }
                return Ok(Next::Break(targets[0].0));
            }
            Kind::Exit => {
                w.live &= !m;
                w.productive = true;
                if m == mask {
                    w.groups.swap_remove(g);
                    return Ok(Next::Gone);
                }
                w.groups[g].mask = mask & !m;
                return Ok(Next::Break(pc + 1));
            }
            Kind::Trap => {
                return Err(Trap::new(
                    TrapKind::IllegalInstruction,
                    "the kernel executed trap",
                ));
            }
            Kind::Barrier(_) => {
                let id = first(0);
                if id > 15 {
                    return Err(Trap::new(
                        TrapKind::IllegalInstruction,
                        format!("barrier {id} does not exist"),
                    ));
                }
                if m != mask {
                    w.groups.push(Group {
                        pc: pc + 1,
                        mask: mask & !m,
                        wait: Wait::No,
                        ran: w.clock,
                    });
                    w.groups[g].mask = m;
                }
                w.groups[g].wait = Wait::Barrier(id);
                return Ok(Next::Break(pc));
            }
            Kind::WarpBarrier => {
                let need = first(0);
                if let Some(next) = members(w, need) {
                    if let Wait::Members(_) = w.groups[g].wait {
                        w.groups[g].wait = Wait::WarpBarrier(need);
                    }
                    return Ok(next);
                }
            }
            Kind::Shuffle(mode) => {
                if let Some(next) = members(w, first(5)) {
                    return Ok(next);
                }
                warp_ops::shuffle(w, mode, &inst.o, m);
            }
            Kind::Vote(v) => {
                if let Some(next) = members(w, first(5)) {
                    return Ok(next);
                }
                warp_ops::vote(w, v, &inst.o, m);
            }
            Kind::MatchAny(size) => {
                if let Some(next) = members(w, first(5)) {
                    return Ok(next);
                }
                warp_ops::match_any(w, size, &inst.o, m);
            }
            Kind::ActiveMask => {
                for i in lanes(m) {
                    // SAFETY: the destination is a 32-bit register.
                    unsafe { *regs.add(inst.o[0] as usize).cast::<u32>().add(i) = m };
                }
            }
            Kind::Clock(clock) => {
                let v = match clock {
                    Clock::Cycles | Clock::CyclesLo | Clock::CyclesHi => self.mem.clock(),
                    _ => self.mem.globaltimer(),
                };
                let v = if matches!(clock, Clock::CyclesHi | Clock::TimerHi) {
                    v >> 32
                } else {
                    v
                };
                let size = if matches!(clock, Clock::Cycles | Clock::Timer) {
                    8
                } else {
                    4
                };
                for i in lanes(m) {
                    // SAFETY: the destination is a register of that size.
                    unsafe { super::access::put(regs.add(inst.o[0] as usize), i, size, v) };
                }
                // Reading a clock again is what a waiting kernel does.
                w.polls += 1;
            }
            Kind::Fence(kind, scope) => self.mem.fence(kind, scope),
            Kind::Sleep => {
                w.polls += POLLS;
                return Ok(Next::Break(pc + 1));
            }
            Kind::Lanes(_) | Kind::Load(_) | Kind::Store(_) | Kind::Branch(_) => {}
        }
        Ok(Next::On)
    }

    /// The trap with its place.
    pub(super) fn at(&self, w: &Warp, t: Trap, pc: u32, m: u32) -> Trap {
        let thread = w.index * 32 + m.trailing_zeros() % 32;
        let [bx, by, _] = self.block;
        Trap {
            kind: t.kind,
            detail: format!(
                "{}; in `{}`, PTX line {}, block {:?}, thread [{}, {}, {}]",
                t.detail,
                self.entry.name,
                self.code.lines[pc as usize],
                self.ctaid,
                thread % bx,
                thread / bx % by,
                thread / bx / by,
            ),
        }
    }
}

enum Next {
    /// To the following instruction.
    On,
    /// The group stops here and is to go on at this instruction.
    Break(u32),
    /// The group has no lanes left.
    Gone,
}
