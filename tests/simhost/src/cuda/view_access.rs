//! Loads, stores and atomics of a kernel, with what faults make of them.
use super::bytes::{arrive, fetch, flip, left_out, store};
use super::view::{View, mirror, sent};
use crate::ptx::{Access, AtomicOp, FenceKind, Memory, Order, Scope, Trap, Width, host_atomic};
use crate::scenario::Kind;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// How far the host's calls may move the time of a kernel that waits.
const MOST_AHEAD_NS: u64 = 2_000_000;
/// Stands for host memory where GPUs are counted.
const HOST: usize = usize::MAX;

impl Memory for View {
    fn span(&self, addr: u64, len: usize, write: bool) -> Option<*mut u8> {
        let (_, window) = self.at(addr, len as u64)?;
        let armed = if write { &window.stores } else { &window.loads };
        // Own memory that holds a mirror of nothing is plain; a peer's may be overlaid, so stores with faults make loads slow too.
        let mirrored = !write && window.peer.is_some() && !window.stores.is_empty();
        let delayed = window.remote() && (self.delayed.is_some() || (write && self.late.holding()));
        if delayed
            || mirrored
            || (write && !window.writable)
            || !(armed.is_empty() || self.clean(armed))
        {
            return None;
        }
        let counter = if write { &window.written } else { &window.read };
        counter.fetch_add(len as u64, Ordering::Relaxed);
        Some(addr as *mut u8)
    }

    fn read(&self, addr: u64, out: &mut [u8], _access: Access) -> Result<(), Trap> {
        let len = out.len() as u64;
        let (allocation, window) = self
            .at(addr, len)
            .ok_or_else(|| Trap::illegal_address(addr))?;
        window.read.fetch_add(len, Ordering::Relaxed);
        let offset = addr - allocation.base;
        self.settle(addr, out.len());
        // SAFETY: the range lies in a mapping that `self.all` keeps alive.
        unsafe { fetch(addr, out) };
        if !window.remote() {
            return Ok(());
        }
        let owner = window.peer.unwrap_or(HOST);
        mirror(self.gpu).overlay(addr, out);
        for (_, kind) in self.striking(&window.loads, allocation, addr, out.len()) {
            self.act(kind, addr)?;
            match *kind {
                Kind::Zeroed => out.fill(0),
                // A lost read completes with ones.
                Kind::Ones | Kind::Dropped => out.fill(0xff),
                Kind::Stale => {
                    let log = sent(owner, self.gpu);
                    let truth = out.to_vec();
                    if let Some(old) = log.get(addr, out.len()) {
                        out.copy_from_slice(&old);
                    }
                    log.put(addr, &truth, &truth);
                }
                Kind::Misrouted { to } => match self.elsewhere(allocation, addr, len, to) {
                    // SAFETY: `elsewhere` answers ranges of living mappings.
                    Some(other) => unsafe { fetch(other, out) },
                    None => out.fill(0xff),
                },
                Kind::Shifted { bytes } => {
                    let from = addr + bytes as u64;
                    if allocation.holds(from, len) {
                        // SAFETY: inside the same mapping.
                        unsafe { fetch(from, out) };
                    }
                }
                Kind::Flipped { mask, every } => flip(out, offset, mask, every),
                Kind::Partial { keep, hole } if left_out(offset, keep, hole) => out.fill(0),
                _ => {}
            }
        }
        Ok(())
    }

    fn write(&self, addr: u64, data: &[u8], access: Access) -> Result<(), Trap> {
        let len = data.len() as u64;
        let (allocation, window) = self
            .at(addr, len)
            .ok_or_else(|| Trap::illegal_address(addr))?;
        if !window.writable {
            return Err(Trap::illegal_address(addr));
        }
        window.written.fetch_add(len, Ordering::Relaxed);
        let offset = addr - allocation.base;
        let (mut data, mut target, mut extra) = (data.to_vec(), Some(addr), None);
        let remote = window.remote();
        let strong = access.order != Order::Weak;
        // A plain store after a fence is taken for a flag where stores before the fence are held back.
        let flag = remote && (strong || self.late.may_be_flag(data.len()));
        let mut late = None;
        for (armed, kind) in self.striking(&window.stores, allocation, addr, data.len()) {
            self.act(kind, addr)?;
            match *kind {
                Kind::Late { us } => late = Some(Duration::from_micros(us)),
                Kind::LostFlag if strong => {
                    target = None;
                    self.note(armed);
                }
                Kind::Zeroed => data.fill(0),
                Kind::Ones => data.fill(0xff),
                Kind::Dropped => target = None,
                Kind::Mirrored => {
                    let mut truth = data.clone();
                    // SAFETY: the range lies in a living mapping.
                    unsafe { fetch(addr, &mut truth) };
                    mirror(self.gpu).put(addr, &data, &truth);
                    target = None;
                }
                Kind::Stale => {
                    let log = sent(self.gpu, window.peer.unwrap_or(HOST));
                    let old = log.get(addr, data.len());
                    log.put(addr, &data, &data);
                    match old {
                        Some(old) => data = old,
                        None => target = None,
                    }
                }
                Kind::Misrouted { to } => target = self.elsewhere(allocation, addr, len, to),
                Kind::Shifted { bytes } => {
                    target = Some(addr + bytes as u64).filter(|&t| allocation.holds(t, len))
                }
                Kind::Spilled { bytes } => {
                    extra = Some(addr + bytes as u64).filter(|&t| allocation.holds(t, len))
                }
                Kind::Flipped { mask, every } => flip(&mut data, offset, mask, every),
                Kind::Partial { keep, hole } if left_out(offset, keep, hole) => target = None,
                _ => {}
            }
        }
        for to in target.into_iter().chain(extra) {
            match (&self.delayed, late) {
                (_, Some(delay)) if !flag && allocation.holds(to, len) => {
                    self.late.hold(allocation, to, &data, delay);
                }
                (Some(delayed), _) if remote && !strong => delayed.take(to, &data, arrive),
                _ => {
                    self.settle(to, data.len());
                    arrive(to, &data);
                }
            }
        }
        if flag && self.late.overtaken() {
            self.note_late();
        }
        Ok(())
    }

    fn atomic(
        &self,
        addr: u64,
        op: AtomicOp,
        width: Width,
        operands: [u64; 2],
        _access: Access,
    ) -> Result<u64, Trap> {
        let len = width.bytes();
        let (allocation, window) = self
            .at(addr, len as u64)
            .ok_or_else(|| Trap::illegal_address(addr))?;
        if !window.writable {
            return Err(Trap::illegal_address(addr));
        }
        window.written.fetch_add(len as u64, Ordering::Relaxed);
        let mut operands = operands;
        self.settle(addr, len);
        for (_, kind) in self.striking(&window.atomics, allocation, addr, len) {
            self.act(kind, addr)?;
            let mut old = [0; 8];
            // SAFETY: the range lies in a living mapping.
            unsafe { fetch(addr, &mut old[..len]) };
            match *kind {
                Kind::Slow { .. } | Kind::Spilled { .. } => {}
                Kind::Zeroed | Kind::Ones => {
                    let fill = if *kind == Kind::Zeroed { 0 } else { 0xff };
                    // SAFETY: as above.
                    unsafe { store(addr, &[fill; 8][..len]) };
                    return Ok(u64::from_ne_bytes(old));
                }
                Kind::Flipped { mask, .. } => operands[0] ^= u64::from(mask),
                Kind::Mirrored => {
                    let mut seen = old;
                    mirror(self.gpu).overlay(addr, &mut seen[..len]);
                    let before = u64::from_ne_bytes(seen);
                    let after = op.apply(width, before, operands[0], operands[1]);
                    mirror(self.gpu).put(addr, &after.to_ne_bytes()[..len], &old[..len]);
                    return Ok(before);
                }
                // All others: the operation is lost.
                _ => return Ok(u64::from_ne_bytes(old)),
            }
        }
        // SAFETY: inside a living mapping; the interpreter has checked the alignment.
        Ok(unsafe { host_atomic(addr as *mut u8, op, width, operands) })
    }

    fn fence(&self, kind: FenceKind, scope: Scope) {
        if scope == Scope::Sys && kind != FenceKind::Acquire {
            if let Some(delayed) = &self.delayed {
                delayed.flush(arrive);
            }
            self.late.fenced();
        }
        fence(Ordering::SeqCst);
    }

    fn globaltimer(&self) -> u64 {
        self.driver.engine.note_poll(&self.op);
        let start = *self
            .start
            .get_or_init(|| self.driver.engine.start_of(&self.op));
        // While a kernel runs, its time is real time, divided by what deadlines are multiplied by.
        let factor = u128::from(self.driver.world.scenario.deadline_factor.max(1));
        let now =
            start + u64::try_from(self.begun.elapsed().as_nanos() / factor).unwrap_or(u64::MAX / 2);
        // Calls that the host has made lie in the past of whoever waits for it; a jump of the host's clock does not.
        let now = now.max(self.driver.engine.host_now().min(now + MOST_AHEAD_NS));
        self.last_timer.fetch_max(now, Ordering::SeqCst).max(now)
    }

    fn sm_count(&self) -> u32 {
        self.driver.world.scenario.gpu.multiprocessors.max(1) as u32
    }

    fn cancelled(&self) -> bool {
        self.driver.context_of(self.gpu).health().is_err()
    }
}
