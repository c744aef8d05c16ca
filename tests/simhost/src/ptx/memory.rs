//! What a running kernel needs from the world outside it: global memory, fences, time, and the wish that it stop.
//!
//! Knows how a PTX access is described and how atomics act on host memory. Knows no device and no fault.

use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// How an access is ordered, from PTX's `.weak`, `.volatile`, `.relaxed`, `.acquire`, `.release`, `.acq_rel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// An ordinary access; `.nc` and cache operators included.
    Weak,
    /// `.volatile`: as relaxed at system scope.
    Volatile,
    /// Atomic, not ordering.
    Relaxed,
    /// Later accesses stay later.
    Acquire,
    /// Earlier accesses stay earlier.
    Release,
    /// Both.
    AcqRel,
}

/// Who is meant to observe an ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Threads of the block.
    Cta,
    /// Threads of the GPU.
    Gpu,
    /// All GPUs and the host.
    Sys,
}

/// One lane's access: `count` elements of `width` bytes each, contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Bytes of one element: 1, 2, 4 or 8.
    pub width: u8,
    /// Elements: 1, 2 or 4.
    pub count: u8,
    /// Ordering.
    pub order: Order,
    /// Scope of the ordering; `Sys` for weak and volatile accesses.
    pub scope: Scope,
}

/// `membar`, `fence.acq_rel`, `fence.sc`, and the halves that release and acquire accesses imply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceKind {
    /// Called before the store or atomic of a release.
    Release,
    /// Called after the load or atomic of an acquire.
    Acquire,
    /// `fence.acq_rel`.
    AcqRel,
    /// `fence.sc` and `membar`.
    SeqCst,
}

/// Width of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16 bits (`atom.cas.b16`).
    W16,
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// Bytes.
    pub fn bytes(self) -> usize {
        match self {
            Width::W16 => 2,
            Width::W32 => 4,
            Width::W64 => 8,
        }
    }
}

/// What an atomic does; operands are passed as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are PTX's")]
pub enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    Exch,
    /// Operands: compare, then new.
    Cas,
    /// Unsigned.
    MinU,
    MaxU,
    /// Signed.
    MinS,
    MaxS,
    /// Wraps to 0 above the operand.
    Inc,
    /// Wraps to the operand below 0 or above it.
    Dec,
    AddF32,
    AddF64,
}

impl AtomicOp {
    /// The new value. `a` is the operand, `b` the second one of a compare-and-swap.
    pub fn apply(self, width: Width, old: u64, a: u64, b: u64) -> u64 {
        let bits = width.bytes() as u32 * 8;
        let mask = u64::MAX >> (64 - bits);
        let signed = |v: u64| ((v << (64 - bits)) as i64) >> (64 - bits);
        (match self {
            AtomicOp::Add => old.wrapping_add(a),
            AtomicOp::And => old & a,
            AtomicOp::Or => old | a,
            AtomicOp::Xor => old ^ a,
            AtomicOp::Exch => a,
            AtomicOp::Cas => {
                if old == a {
                    b
                } else {
                    old
                }
            }
            AtomicOp::MinU => old.min(a),
            AtomicOp::MaxU => old.max(a),
            AtomicOp::MinS => signed(old).min(signed(a)) as u64,
            AtomicOp::MaxS => signed(old).max(signed(a)) as u64,
            AtomicOp::Inc => {
                if old >= a {
                    0
                } else {
                    old + 1
                }
            }
            AtomicOp::Dec => {
                if old == 0 || old > a {
                    a
                } else {
                    old - 1
                }
            }
            AtomicOp::AddF32 => u64::from(
                super::float::canon(f32::from_bits(old as u32) + f32::from_bits(a as u32))
                    .to_bits(),
            ),
            AtomicOp::AddF64 => (f64::from_bits(old) + f64::from_bits(a)).to_bits(),
        }) & mask
    }
}

/// Why a kernel ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapKind {
    /// An address that nothing is mapped at. CUDA error 700.
    IllegalAddress,
    /// An address that is not a multiple of the access's size. CUDA error 716.
    MisalignedAddress,
    /// The kernel executed `trap`. CUDA error 715.
    IllegalInstruction,
    /// Every thread of a block waits for another one. A GPU would hang; here it is CUDA error 719.
    Deadlock,
    /// Grid, block, parameters or shared memory do not fit the entry. CUDA error 1.
    InvalidLaunch,
    /// [`Memory::cancelled`] said so. CUDA error 709, context is destroyed.
    Cancelled,
    /// A CUDA error of the caller's choice, from its own `read`, `write` or `atomic`.
    Device(u32),
}

/// Why and where a kernel ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Why.
    pub kind: TrapKind,
    /// Where: entry, line of the PTX, block and thread, address.
    pub detail: String,
}

impl Trap {
    /// A trap with a detail; `run` adds the place.
    pub fn new(kind: TrapKind, detail: impl Into<String>) -> Trap {
        Trap {
            kind,
            detail: detail.into(),
        }
    }

    /// Nothing is mapped at `addr`.
    pub fn illegal_address(addr: u64) -> Trap {
        Trap::new(TrapKind::IllegalAddress, format!("no memory at 0x{addr:x}"))
    }

    /// The CUDA driver's number for it.
    pub fn cuda_error(&self) -> u32 {
        match self.kind {
            TrapKind::IllegalAddress => 700,
            TrapKind::MisalignedAddress => 716,
            TrapKind::IllegalInstruction => 715,
            TrapKind::Deadlock => 719,
            TrapKind::InvalidLaunch => 1,
            TrapKind::Cancelled => 709,
            TrapKind::Device(code) => code,
        }
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} (CUDA error {}): {}",
            self.kind,
            self.cuda_error(),
            self.detail
        )
    }
}

impl std::error::Error for Trap {}

/// Global memory and time as one executing device sees them.
///
/// The interpreter asks [`span`](Memory::span) first, for a whole warp's range where the lanes lie close together, then
/// for each lane, and falls back to `read` and `write` lane by lane where the answer is `None`. Around every release and
/// acquire it calls [`fence`](Memory::fence), whichever path the access itself takes, so a memory that delays plain
/// stores knows when it must deliver them.
pub trait Memory: Sync {
    /// The host address of `[addr, addr+len)` if all of it is plain contiguous memory that may be accessed without
    /// further treatment. With `write`, not every byte of the range need be written. The pointer must stay valid for the
    /// rest of the run and must be aligned as `addr` is (up to 16).
    fn span(&self, addr: u64, len: usize, write: bool) -> Option<*mut u8>;

    /// A load where `span` gave nothing.
    fn read(&self, addr: u64, out: &mut [u8], access: Access) -> Result<(), Trap> {
        let _ = (out, access);
        Err(Trap::illegal_address(addr))
    }

    /// A store where `span` gave nothing.
    fn write(&self, addr: u64, data: &[u8], access: Access) -> Result<(), Trap> {
        let _ = (data, access);
        Err(Trap::illegal_address(addr))
    }

    /// An atomic, for every address; returns the old value. By default a host atomic over `span`.
    fn atomic(
        &self,
        addr: u64,
        op: AtomicOp,
        width: Width,
        operands: [u64; 2],
        access: Access,
    ) -> Result<u64, Trap> {
        let _ = access;
        let p = self
            .span(addr, width.bytes(), true)
            .ok_or_else(|| Trap::illegal_address(addr))?;
        // SAFETY: span vouches for the range; the interpreter has checked the alignment.
        Ok(unsafe { host_atomic(p, op, width, operands) })
    }

    /// A fence. By default a sequentially consistent one on the host.
    fn fence(&self, kind: FenceKind, scope: Scope) {
        let _ = (kind, scope);
        fence(Ordering::SeqCst);
    }

    /// `%globaltimer`, nanoseconds.
    fn globaltimer(&self) -> u64;

    /// `%clock64`, cycles. By default a clock of 1 GHz.
    fn clock(&self) -> u64 {
        self.globaltimer()
    }

    /// `%nsmid`; block `i` says it runs on `%smid` `i` modulo this.
    fn sm_count(&self) -> u32 {
        1
    }

    /// True when the run must end; asked at least once per few thousand instructions of a warp.
    fn cancelled(&self) -> bool {
        false
    }
}

/// An atomic read-modify-write on host memory, sequentially consistent; returns the old value.
///
/// # Safety
/// `p` must be valid for the width and aligned to it, and other threads may touch it only by atomics or as PTX kernels do.
pub unsafe fn host_atomic(p: *mut u8, op: AtomicOp, width: Width, operands: [u64; 2]) -> u64 {
    let [a, b] = operands;
    macro_rules! rmw {
        ($atomic:ty, $t:ty) => {{
            // SAFETY: the caller vouches for validity and alignment.
            let cell = unsafe { <$atomic>::from_ptr(p.cast()) };
            let old = match op {
                AtomicOp::Add => cell.fetch_add(a as $t, Ordering::SeqCst),
                AtomicOp::Exch => cell.swap(a as $t, Ordering::SeqCst),
                _ => {
                    let mut old = cell.load(Ordering::SeqCst);
                    loop {
                        let new = op.apply(width, u64::from(old), a, b) as $t;
                        match cell.compare_exchange_weak(
                            old,
                            new,
                            Ordering::SeqCst,
                            Ordering::SeqCst,
                        ) {
                            Ok(_) => break old,
                            Err(seen) => old = seen,
                        }
                    }
                }
            };
            u64::from(old)
        }};
    }
    match width {
        Width::W16 => rmw!(AtomicU16, u16),
        Width::W32 => rmw!(AtomicU32, u32),
        Width::W64 => rmw!(AtomicU64, u64),
    }
}
