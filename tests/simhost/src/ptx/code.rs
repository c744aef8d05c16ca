//! A decoded entry: the form that warps execute. Knows no text.

use super::lanes::LaneFn;
use super::memory::{Access, AtomicOp, FenceKind, Scope, Width};
use super::types::{Clock, Space, Special};

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Lanes(LaneFn),
    Load(u32),
    Store(u32),
    Atomic(u32),
    Branch(u32),
    /// Operand 0 indexes the jump table of this number.
    BranchTable(u32),
    Exit,
    Trap,
    /// Operands: id, thread count or NONE, destination or NONE, source predicate or NONE.
    Barrier(BarrierKind),
    /// Operand 0: member mask. The other warp operations have it in operand 5.
    WarpBarrier,
    Shuffle(Shuffle),
    Vote(Vote),
    MatchAny(usize),
    ActiveMask,
    Clock(Clock),
    Fence(FenceKind, Scope),
    Sleep,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BarrierKind {
    Sync,
    Popc,
    And,
    Or,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy)]
pub(super) struct Inst {
    pub(super) kind: Kind,
    pub(super) o: [u32; 6],
    pub(super) guard: u32,
    pub(super) guard_not: bool,
}

pub(super) struct MemOp {
    pub(super) space: Space,
    pub(super) access: Access,
    pub(super) signed: bool,
    /// Registers of the elements; NONE for one that is thrown away.
    pub(super) regs: [u32; 4],
    /// Bytes of each of these registers.
    pub(super) reg_size: u8,
    pub(super) base: u32,
    pub(super) base_size: u8,
    pub(super) off: u64,
}

pub(super) struct AtomOp {
    pub(super) mem: MemOp,
    pub(super) op: AtomicOp,
    pub(super) width: Width,
    pub(super) dst: u32,
    pub(super) src: [u32; 2],
}

/// A decoded entry.
#[derive(Default)]
pub(super) struct Code {
    pub(super) insts: Vec<Inst>,
    pub(super) lines: Vec<u32>,
    pub(super) mems: Vec<MemOp>,
    pub(super) atoms: Vec<AtomOp>,
    pub(super) tables: Vec<Vec<u32>>,
    /// Register offset, bytes (0: predicate), bits.
    pub(super) consts: Vec<(u32, usize, u64)>,
    pub(super) specials: Vec<(Special, u32)>,
    pub(super) reg_bytes: usize,
    pub(super) shared_bytes: usize,
    /// Where dynamic shared memory begins.
    pub(super) dynamic_at: usize,
    pub(super) local_bytes: usize,
}
