//! Loads, stores and atomics of a warp.
//!
//! Knows address spaces, alignment and the order of lanes; asks the caller's memory for everything that is global.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::code::{AtomOp, MemOp};
use super::exec::{Env, Warp};
use super::lanes::{LANES, NONE};
use super::memory::{FenceKind, Order, Trap, TrapKind, host_atomic};
use super::spaces::{DATA, WINDOWS, is_local, is_shared};
use super::types::Space;

/// Widest range asked of the memory for a whole warp at once.
const WARP_SPAN: u64 = 64 << 20;

/// Lanes of a mask, ascending.
pub(super) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let i = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            i
        })
    })
}

/// Where each lane's bytes are on the host. Lanes in `slow` have no host address and go through read and write.
struct Places {
    addr: [u64; LANES],
    ptr: [*mut u8; LANES],
    slow: u32,
    global: u32,
}

#[repr(align(16))]
#[derive(Clone, Copy)]
struct Buffer([u8; 16]);

fn illegal(addr: u64, what: &str) -> Trap {
    Trap::new(
        TrapKind::IllegalAddress,
        format!("no {what} memory at 0x{addr:x}"),
    )
}

impl Env<'_> {
    fn places(&self, w: &mut Warp, op: &MemOp, m: u32, write: bool) -> Result<Places, Trap> {
        let size = op.access.width as usize * op.access.count as usize;
        let mut p = Places {
            addr: [op.off; LANES],
            ptr: [std::ptr::null_mut(); LANES],
            slow: 0,
            global: 0,
        };
        if op.base != NONE {
            // SAFETY: the decoder gave the base register 32 values of its size.
            unsafe {
                let base = w.regs.ptr().add(op.base as usize);
                if op.base_size == 8 {
                    let base = &*base.cast::<[u64; LANES]>();
                    for (a, b) in p.addr.iter_mut().zip(base) {
                        *a = b.wrapping_add(op.off);
                    }
                } else {
                    let base = &*base.cast::<[u32; LANES]>();
                    for (a, b) in p.addr.iter_mut().zip(base) {
                        // Addresses in a 32-bit register wrap at 32 bits.
                        *a = u64::from(b.wrapping_add(op.off as u32));
                    }
                }
            }
        }
        let (mut lo, mut hi, mut low_bits) = (u64::MAX, 0, 0);
        if m == !0 {
            for a in p.addr {
                lo = lo.min(a);
                hi = hi.max(a);
                low_bits |= a;
            }
        } else {
            for i in lanes(m) {
                lo = lo.min(p.addr[i]);
                hi = hi.max(p.addr[i]);
                low_bits |= p.addr[i];
            }
        }
        if low_bits & (size as u64 - 1) != 0 {
            let bad = lanes(m)
                .map(|i| p.addr[i])
                .find(|a| a & (size as u64 - 1) != 0)
                .unwrap_or(lo);
            return Err(Trap::new(
                TrapKind::MisalignedAddress,
                format!("address 0x{bad:x} is not a multiple of the access's {size} bytes"),
            ));
        }
        let within = |addr: u64, len: usize| {
            addr.checked_add(size as u64)
                .is_some_and(|end| end <= len as u64)
        };
        match op.space {
            Space::Param => {
                for i in lanes(m) {
                    if write || !within(p.addr[i], self.params.len()) {
                        return Err(illegal(p.addr[i], "parameter"));
                    }
                    p.ptr[i] = self
                        .params
                        .as_ptr()
                        .wrapping_add(p.addr[i] as usize)
                        .cast_mut();
                }
            }
            Space::Shared => {
                for i in lanes(m) {
                    p.ptr[i] = self
                        .shared(p.addr[i], size)
                        .ok_or_else(|| illegal(p.addr[i], "shared"))?;
                }
            }
            Space::Local => {
                for i in lanes(m) {
                    p.ptr[i] = self
                        .local(w, i, p.addr[i], size)
                        .ok_or_else(|| illegal(p.addr[i], "local"))?;
                }
            }
            Space::Generic if hi >= WINDOWS => {
                for i in lanes(m) {
                    let a = p.addr[i];
                    let low = a & 0xffff_ffff_ffff;
                    if is_shared(a) {
                        p.ptr[i] = self
                            .shared(low, size)
                            .ok_or_else(|| illegal(low, "shared"))?;
                    } else if is_local(a) {
                        p.ptr[i] = self
                            .local(w, i, low, size)
                            .ok_or_else(|| illegal(low, "local"))?;
                    } else {
                        self.lane_place(&mut p, i, size, write)?;
                    }
                }
            }
            _ => {
                p.global = m;
                let range = (hi - lo).saturating_add(size as u64);
                let whole = if range > WARP_SPAN {
                    None
                } else {
                    self.global(lo, range as usize, write)
                };
                match whole {
                    Some(at) => {
                        for i in 0..LANES {
                            p.ptr[i] = at.wrapping_add(p.addr[i].wrapping_sub(lo) as usize);
                        }
                    }
                    None => {
                        for i in lanes(m) {
                            self.lane_place(&mut p, i, size, write)?;
                        }
                    }
                }
            }
        }
        Ok(p)
    }

    fn lane_place(&self, p: &mut Places, i: usize, size: usize, write: bool) -> Result<(), Trap> {
        p.global |= 1 << i;
        match self.global(p.addr[i], size, write) {
            Some(at) => p.ptr[i] = at,
            None if p.addr[i] >= WINDOWS => return Err(illegal(p.addr[i], "global")),
            None => p.slow |= 1 << i,
        }
        Ok(())
    }

    fn global(&self, addr: u64, len: usize, write: bool) -> Option<*mut u8> {
        if addr >= DATA {
            self.data.span(addr, len)
        } else if addr >= WINDOWS || addr + len as u64 > WINDOWS {
            None
        } else {
            self.mem.span(addr, len, write)
        }
    }

    fn shared(&self, addr: u64, size: usize) -> Option<*mut u8> {
        let fits = addr.checked_add(size as u64)? <= self.shared_len as u64;
        fits.then(|| self.shared.wrapping_add(addr as usize))
    }

    fn local(&self, w: &mut Warp, lane: usize, addr: u64, size: usize) -> Option<*mut u8> {
        let each = self.code.local_bytes;
        let fits = addr.checked_add(size as u64)? <= each as u64;
        fits.then(|| w.local.ptr().wrapping_add(lane * each + addr as usize))
    }

    pub(super) fn load(&mut self, w: &mut Warp, op: &MemOp, m: u32, pc: u32) -> Result<(), Trap> {
        let size = op.access.width as usize * op.access.count as usize;
        let mut p = self.places(w, op, m, false)?;
        let mut buffers = [Buffer([0; 16]); LANES];
        for i in lanes(p.slow) {
            self.mem
                .read(p.addr[i], &mut buffers[i].0[..size], op.access)?;
            p.ptr[i] = buffers[i].0.as_mut_ptr();
        }
        self.stats.bytes_read += u64::from(p.global.count_ones()) * size as u64;
        let regs = w.regs.ptr();
        for (k, &reg) in op.regs.iter().enumerate().take(op.access.count as usize) {
            if reg == NONE {
                continue;
            }
            let at = k * op.access.width as usize;
            // SAFETY: every active lane's pointer is valid for the access (places), the register for 32 values.
            unsafe {
                let dst = regs.add(reg as usize);
                match (op.access.order, op.access.width, op.reg_size) {
                    (Order::Weak, 4, 4) => gather::<u32>(&p.ptr, at, dst, m),
                    (Order::Weak, 8, 8) => gather::<u64>(&p.ptr, at, dst, m),
                    (Order::Weak, 2, 2) => gather::<u16>(&p.ptr, at, dst, m),
                    _ => {
                        for i in lanes(m) {
                            let v = load_atomic(p.ptr[i].wrapping_add(at), op);
                            put(dst, i, op.reg_size, v);
                        }
                    }
                }
            }
        }
        if op.access.order == Order::Acquire && p.global != 0 {
            self.mem.fence(FenceKind::Acquire, op.access.scope);
        }
        if op.access.order == Order::Weak {
            w.productive |= p.global != 0;
        } else {
            let reg = op.regs[0];
            let value = |regs: *mut u8, i: usize| {
                if reg == NONE {
                    return 0;
                }
                // SAFETY: as above.
                unsafe { get(regs.add(reg as usize), i, op.reg_size) }
            };
            let seen = lanes(m).fold(0, |h, i| mix(h, p.addr[i], value(regs, i)));
            w.polled(pc, seen);
        }
        Ok(())
    }

    pub(super) fn store(&mut self, w: &mut Warp, op: &MemOp, m: u32) -> Result<(), Trap> {
        let size = op.access.width as usize * op.access.count as usize;
        let mut p = self.places(w, op, m, true)?;
        let mut buffers = [Buffer([0; 16]); LANES];
        for i in lanes(p.slow) {
            p.ptr[i] = buffers[i].0.as_mut_ptr();
        }
        if op.access.order == Order::Release && p.global != 0 {
            self.mem.fence(FenceKind::Release, op.access.scope);
        }
        let regs = w.regs.ptr();
        for (k, &reg) in op.regs.iter().enumerate().take(op.access.count as usize) {
            let at = k * op.access.width as usize;
            // SAFETY: every active lane's pointer is valid for the access (places), the register for 32 values.
            unsafe {
                let src = regs.add(reg as usize);
                match (op.access.order, op.access.width, op.reg_size) {
                    (Order::Weak, 4, 4) => scatter::<u32>(&p.ptr, at, src, m),
                    (Order::Weak, 8, 8) => scatter::<u64>(&p.ptr, at, src, m),
                    (Order::Weak, 2, 2) => scatter::<u16>(&p.ptr, at, src, m),
                    _ => {
                        for i in lanes(m) {
                            store_atomic(p.ptr[i].wrapping_add(at), op, get(src, i, op.reg_size));
                        }
                    }
                }
            }
        }
        for i in lanes(p.slow) {
            self.mem
                .write(p.addr[i], &buffers[i].0[..size], op.access)?;
        }
        self.stats.bytes_written += u64::from(p.global.count_ones()) * size as u64;
        w.productive = true;
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        w: &mut Warp,
        atom: &AtomOp,
        m: u32,
        pc: u32,
    ) -> Result<(), Trap> {
        let op = &atom.mem;
        let size = atom.width.bytes();
        // The memory decides on every global atomic itself; the places serve windows, bounds and alignment.
        let p = self.places(w, op, m, true)?;
        let global = p.global != 0;
        if matches!(op.access.order, Order::Release | Order::AcqRel) && global {
            self.mem.fence(FenceKind::Release, op.access.scope);
        }
        let regs = w.regs.ptr();
        let mut seen = 0;
        for i in lanes(m) {
            // SAFETY: the registers hold 32 values of the atomic's width.
            let operands = unsafe {
                [
                    get(regs.add(atom.src[0] as usize), i, size as u8),
                    get(regs.add(atom.src[1] as usize), i, size as u8),
                ]
            };
            let old = if p.global >> i & 1 != 0 && p.addr[i] < WINDOWS {
                self.mem
                    .atomic(p.addr[i], atom.op, atom.width, operands, op.access)?
            } else {
                // SAFETY: a window's pointer, valid and aligned (places).
                unsafe { host_atomic(p.ptr[i], atom.op, atom.width, operands) }
            };
            seen = mix(seen, p.addr[i], old);
            if atom.dst != NONE {
                // SAFETY: as above.
                unsafe { put(regs.add(atom.dst as usize), i, size as u8, old) };
            }
        }
        if matches!(op.access.order, Order::Acquire | Order::AcqRel) && global {
            self.mem.fence(FenceKind::Acquire, op.access.scope);
        }
        let bytes = u64::from(p.global.count_ones()) * size as u64;
        self.stats.bytes_read += bytes;
        self.stats.bytes_written += bytes;
        if atom.dst == NONE {
            w.productive = true;
        } else {
            w.polled(pc, seen);
        }
        Ok(())
    }
}

fn mix(h: u64, a: u64, v: u64) -> u64 {
    (h ^ a ^ v.rotate_left(32))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(23)
}

/// # Safety
/// Active lanes' pointers are valid for a T at `at`; `dst` holds 32 of them.
unsafe fn gather<T: Copy>(ptr: &[*mut u8; LANES], at: usize, dst: *mut u8, m: u32) {
    // SAFETY: the caller's.
    unsafe {
        let dst = dst.cast::<T>();
        if m == !0 {
            for (i, p) in ptr.iter().enumerate() {
                *dst.add(i) = p.add(at).cast::<T>().read_unaligned();
            }
        } else {
            for i in lanes(m) {
                *dst.add(i) = ptr[i].add(at).cast::<T>().read_unaligned();
            }
        }
    }
}

/// # Safety
/// As for [`gather`].
unsafe fn scatter<T: Copy>(ptr: &[*mut u8; LANES], at: usize, src: *mut u8, m: u32) {
    // SAFETY: the caller's.
    unsafe {
        let src = src.cast::<T>();
        if m == !0 {
            for (i, p) in ptr.iter().enumerate() {
                p.add(at).cast::<T>().write_unaligned(*src.add(i));
            }
        } else {
            for i in lanes(m) {
                ptr[i].add(at).cast::<T>().write_unaligned(*src.add(i));
            }
        }
    }
}

/// A lane's value of a register of `size` bytes.
///
/// # Safety
/// `reg` holds 32 values of that size.
pub(super) unsafe fn get(reg: *const u8, lane: usize, size: u8) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        match size {
            2 => u64::from(*reg.cast::<u16>().add(lane)),
            4 => u64::from(*reg.cast::<u32>().add(lane)),
            _ => *reg.cast::<u64>().add(lane),
        }
    }
}

/// # Safety
/// As for [`get`].
pub(super) unsafe fn put(reg: *mut u8, lane: usize, size: u8, v: u64) {
    // SAFETY: the caller's.
    unsafe {
        match size {
            2 => *reg.cast::<u16>().add(lane) = v as u16,
            4 => *reg.cast::<u32>().add(lane) = v as u32,
            _ => *reg.cast::<u64>().add(lane) = v,
        }
    }
}

/// One element, extended as its type says. Weak elements narrower than their register come here too; parameters, whose
/// bytes may lie at any host alignment, are read byte-wise.
///
/// # Safety
/// `p` is valid for the element.
unsafe fn load_atomic(p: *mut u8, op: &MemOp) -> u64 {
    let order = if op.access.order == Order::Acquire {
        Ordering::Acquire
    } else {
        Ordering::Relaxed
    };
    let width = op.access.width as usize;
    let plain = op.access.order == Order::Weak || p.addr() & (width - 1) != 0;
    // SAFETY: valid by the caller; aligned where an atomic is used.
    let v = unsafe {
        if plain {
            let mut b = [0u8; 8];
            std::ptr::copy_nonoverlapping(p, b.as_mut_ptr(), width);
            u64::from_le_bytes(b)
        } else {
            match width {
                1 => u64::from(AtomicU8::from_ptr(p).load(order)),
                2 => u64::from(AtomicU16::from_ptr(p.cast()).load(order)),
                4 => u64::from(AtomicU32::from_ptr(p.cast()).load(order)),
                _ => AtomicU64::from_ptr(p.cast()).load(order),
            }
        }
    };
    let spare = 64 - 8 * width as u32;
    if op.signed {
        (((v << spare) as i64) >> spare) as u64
    } else {
        v
    }
}

/// # Safety
/// `p` is valid for the element.
unsafe fn store_atomic(p: *mut u8, op: &MemOp, v: u64) {
    let order = if op.access.order == Order::Release {
        Ordering::Release
    } else {
        Ordering::Relaxed
    };
    let width = op.access.width as usize;
    let plain = op.access.order == Order::Weak || p.addr() & (width - 1) != 0;
    // SAFETY: valid by the caller; aligned where an atomic is used.
    unsafe {
        if plain {
            std::ptr::copy_nonoverlapping(v.to_le_bytes().as_ptr(), p, width);
            return;
        }
        match width {
            1 => AtomicU8::from_ptr(p).store(v as u8, order),
            2 => AtomicU16::from_ptr(p.cast()).store(v as u16, order),
            4 => AtomicU32::from_ptr(p.cast()).store(v as u32, order),
            _ => AtomicU64::from_ptr(p.cast()).store(v, order),
        }
    }
}
