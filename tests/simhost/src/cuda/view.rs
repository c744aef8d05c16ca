//! Global memory as one kernel on one GPU sees it: its own, pinned host memory, and peers that its context may reach,
//! with the faults of each way. What no rule allows is an illegal address, as on the real thing.
//!
//! In the weak mode, plain stores to peers and to the host are held back (`weak`); otherwise they take effect at once.
use super::context::{Context, Driver};
use super::engine::{Op, lock};
use super::memory::{Allocation, Kind as MemoryKind, Snapshot, find};
use super::shadow::Shadow;
use super::timeline::Work;
use super::weak::Delayed;
use crate::ptx::{
    Access, AtomicOp, FenceKind, Memory, Order, Scope, Stats, Trap, TrapKind, Width, host_atomic,
};
use crate::scenario::{Kind, Mechanism};
use crate::topology::Engine as Carrier;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Instant;

/// What each GPU believes of its peers' memory; shared by kernels and copies of the process.
static MIRRORS: LazyLock<Vec<Shadow>> =
    LazyLock::new(|| (0..crate::MAX_GPUS).map(|_| Shadow::default()).collect());
/// Memory of transfers by source and destination.
type Sent = HashMap<(usize, usize), Arc<Shadow>>;
/// What each ordered pair carried last, for stale faults of loads and stores.
static SENT: LazyLock<Mutex<Sent>> = LazyLock::new(Mutex::default);

/// The mirror of a GPU.
pub(crate) fn mirror(gpu: usize) -> &'static Shadow {
    &MIRRORS[gpu]
}

fn sent(source: usize, destination: usize) -> Arc<Shadow> {
    Arc::clone(lock(&SENT).entry((source, destination)).or_default())
}

/// A fault that concerns one way into one allocation; whether it strikes this launch is asked once.
struct Armed {
    fault: usize,
    strikes: Arc<OnceLock<bool>>,
}

/// One allocation as this kernel may use it.
struct Window {
    reachable: bool,
    /// Neither own memory nor host memory.
    peer: Option<usize>,
    host: bool,
    loads: Vec<Armed>,
    stores: Vec<Armed>,
    atomics: Vec<Armed>,
    read: AtomicU64,
    written: AtomicU64,
}

/// The memory of one launch.
pub(crate) struct View {
    driver: &'static Driver,
    gpu: usize,
    all: Snapshot,
    windows: Vec<Window>,
    op: Arc<Op>,
    begun: Instant,
    start: OnceLock<u64>,
    last_timer: AtomicU64,
    delayed: Option<Delayed>,
}

impl View {
    /// What a kernel of this context sees from now on.
    pub(crate) fn new(
        driver: &'static Driver,
        context: &Context,
        all: Snapshot,
        op: Arc<Op>,
    ) -> Self {
        let gpu = context.gpu;
        let peers = lock(&context.peers).clone();
        let mut once: HashMap<usize, Arc<OnceLock<bool>>> = HashMap::new();
        let windows = all
            .iter()
            .map(|a| window(driver, gpu, &peers, a, &mut once))
            .collect();
        Self {
            driver,
            gpu,
            all,
            windows,
            op,
            begun: Instant::now(),
            start: OnceLock::new(),
            last_timer: AtomicU64::new(0),
            delayed: driver
                .world
                .scenario
                .weak_memory
                .map(|seed| Delayed::new(seed ^ gpu as u64)),
        }
    }

    fn at(&self, addr: u64, len: u64) -> Option<(&Arc<Allocation>, &Window)> {
        let (i, allocation) = find(&self.all, addr, len)?;
        let window = self.windows.get(i)?;
        window.reachable.then_some((allocation, window))
    }

    /// Faults of a way that strike this launch, at this place.
    fn striking<'a>(
        &'a self,
        armed: &'a [Armed],
        allocation: &'a Allocation,
        addr: u64,
    ) -> impl Iterator<Item = &'a Kind> {
        armed.iter().filter_map(move |a| {
            let fault = &self.driver.world.faults[a.fault];
            let here = allocation.physical_at(addr) >= fault.min_offset
                && allocation.size >= fault.min_bytes;
            (here && *a.strikes.get_or_init(|| self.driver.world.strikes(a.fault)))
                .then_some(&fault.kind)
        })
    }

    fn clean(&self, armed: &[Armed]) -> bool {
        armed.iter().all(|a| a.strikes.get() == Some(&false))
    }

    /// Delivers what is under way to a range.
    fn settle(&self, addr: u64, len: usize) {
        if let Some(delayed) = &self.delayed {
            delayed.settle(addr, len, arrive);
        }
    }

    /// Kinds that end or hold the kernel.
    fn act(&self, kind: &Kind, addr: u64) -> Result<(), Trap> {
        match kind {
            Kind::Hang => forever(),
            Kind::Death => die(),
            Kind::Sticky { code } => Err(Trap::new(
                TrapKind::Device(*code),
                format!("planted fault at 0x{addr:x}"),
            )),
            _ => Ok(()),
        }
    }

    /// Another GPU's memory at the same offset.
    fn elsewhere(
        &self,
        allocation: &Allocation,
        addr: u64,
        len: u64,
        to: Option<usize>,
    ) -> Option<u64> {
        let offset = addr - allocation.base;
        let fits = |a: &&Arc<Allocation>| {
            a.gpu.is_some()
                && a.gpu != allocation.gpu
                && to.is_none_or(|t| a.gpu == Some(t))
                && a.holds(a.base + offset, len)
        };
        self.all
            .iter()
            .filter(fits)
            .max_by_key(|a| (a.gpu != Some(self.gpu), a.size))
            .map(|a| a.base + offset)
    }

    /// What the launch asked of the links.
    pub(crate) fn work(&self, stats: &Stats) -> Work {
        let world = self.driver.world;
        let rates = &world.scenario.rates;
        let instructions = stats.instructions as f64
            / (rates.instructions_per_ns * f64::from(world.scenario.gpu.multiprocessors));
        let (mut bytes, mut limit, mut slow) =
            (HashMap::<usize, f64>::new(), f64::INFINITY, 1.0_f64);
        let (mut total, mut alone) = (0.0_f64, instructions);
        for (allocation, window) in self.all.iter().zip(&self.windows) {
            let (read, written) = (
                window.read.load(Ordering::Relaxed) as f64,
                window.written.load(Ordering::Relaxed) as f64,
            );
            for (amount, outwards) in [(read, false), (written, true)] {
                if amount <= 0.0 {
                    continue;
                }
                let route = match (window.peer, window.host, outwards) {
                    (Some(p), _, true) => world.topology.peer_route(self.gpu, p, Carrier::Sm),
                    (Some(p), _, false) => world.topology.peer_route(p, self.gpu, Carrier::Sm),
                    (None, true, out) => world.topology.host_route(self.gpu, out),
                    (None, false, _) => world.topology.peer_route(self.gpu, self.gpu, Carrier::Sm),
                };
                if let (Some(p), true) = (
                    window.peer,
                    self.driver
                        .world
                        .topology
                        .nvlinks(self.gpu, window.peer.unwrap_or(self.gpu))
                        > 0,
                ) {
                    count_nvlink(
                        self.driver,
                        if outwards {
                            (self.gpu, p)
                        } else {
                            (p, self.gpu)
                        },
                        amount as u64,
                    );
                }
                total += amount;
                alone = alone.max(amount / route.limit.max(1e-9));
                for link in route.links {
                    *bytes.entry(link).or_default() += amount;
                }
            }
            for armed in [&window.loads, &window.stores, &window.atomics] {
                for kind in self.striking(armed, allocation, allocation.base + allocation.size - 1)
                {
                    if let Kind::Slow { factor } = kind {
                        slow = slow.max(*factor);
                    }
                }
            }
        }
        if total > 0.0 && alone > 0.0 {
            limit = total / alone;
        }
        let start = self.start.get().copied().unwrap_or(0);
        Work {
            lead_ns: rates.launch_ns + if total > 0.0 { 0 } else { instructions as u64 },
            bytes: total,
            links: bytes.into_iter().map(|(l, b)| (l, b / total)).collect(),
            limit,
            at_least_ns: self.last_timer.load(Ordering::SeqCst).saturating_sub(start),
            slow,
        }
    }
}

/// Adds to the NVLink counters of both ends.
pub(crate) fn count_nvlink(driver: &Driver, (source, destination): (usize, usize), bytes: u64) {
    let counters = &driver.world.shared().nvlink_bytes;
    counters[source][0].fetch_add(bytes, Ordering::Relaxed);
    counters[destination][1].fetch_add(bytes, Ordering::Relaxed);
}

fn window(
    driver: &'static Driver,
    gpu: usize,
    peers: &std::collections::BTreeSet<usize>,
    a: &Allocation,
    once: &mut HashMap<usize, Arc<OnceLock<bool>>>,
) -> Window {
    let imported = a.kind == MemoryKind::Imported;
    let peer = a.gpu.filter(|&g| g != gpu);
    let reachable = match a.gpu {
        None => true,
        Some(g) => g == gpu || peers.contains(&g) || (imported && a.context == gpu),
    };
    let mut arm = |source: usize, destination: usize, mechanism| -> Vec<Armed> {
        let concerned =
            driver
                .world
                .concerned(Some(source), Some(destination), mechanism, imported);
        concerned
            .map(|(fault, _)| Armed {
                fault,
                strikes: Arc::clone(once.entry(fault).or_default()),
            })
            .collect()
    };
    let (loads, stores, atomics) = match peer {
        Some(p) => (
            arm(p, gpu, Mechanism::SmLoad),
            arm(gpu, p, Mechanism::SmStore),
            arm(gpu, p, Mechanism::Atomic),
        ),
        None if a.gpu == Some(gpu) => (Vec::new(), arm(gpu, gpu, Mechanism::Own), Vec::new()),
        None => (Vec::new(), Vec::new(), Vec::new()),
    };
    Window {
        reachable,
        peer,
        host: a.gpu.is_none(),
        loads,
        stores,
        atomics,
        read: AtomicU64::new(0),
        written: AtomicU64::new(0),
    }
}

/// A transfer that never ends; only the end of the process ends the thread.
pub(crate) fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Death of the process, as by a driver that takes it down.
pub(crate) fn die() -> ! {
    // SAFETY: a signal to this very process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    forever()
}

/// Inverts bits of each `every`-th byte, counted from the start of the allocation.
pub(crate) fn flip(data: &mut [u8], offset: u64, mask: u8, every: usize) {
    for (i, b) in data.iter_mut().enumerate() {
        if (offset + i as u64).is_multiple_of(every as u64) {
            *b ^= mask;
        }
    }
}

/// Whether an offset lies in what a partial transfer leaves out.
pub(crate) fn left_out(offset: u64, keep: usize, hole: usize) -> bool {
    offset >= keep as u64 && (hole == 0 || offset < (keep + hole) as u64)
}

/// Reads memory that other threads may be writing.
///
/// # Safety
/// The range must be mapped.
unsafe fn fetch(addr: u64, out: &mut [u8]) {
    match out.len() {
        // Naturally aligned words in one piece, so that flags are never torn.
        // SAFETY: aligned and mapped.
        4 if addr.is_multiple_of(4) => {
            out.copy_from_slice(&unsafe { (addr as *const u32).read_volatile() }.to_ne_bytes())
        }
        // SAFETY: as above.
        8 if addr.is_multiple_of(8) => {
            out.copy_from_slice(&unsafe { (addr as *const u64).read_volatile() }.to_ne_bytes())
        }
        // SAFETY: mapped, and a slice of ours does not overlap it.
        n => unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), n) },
    }
}

/// Writes memory that other threads may be reading.
///
/// # Safety
/// The range must be mapped.
unsafe fn store(addr: u64, data: &[u8]) {
    match *data {
        // SAFETY: aligned and mapped.
        [a, b, c, d] if addr.is_multiple_of(4) => unsafe {
            (addr as *mut u32).write_volatile(u32::from_ne_bytes([a, b, c, d]))
        },
        // SAFETY: as above.
        [a, b, c, d, e, f, g, h] if addr.is_multiple_of(8) => unsafe {
            (addr as *mut u64).write_volatile(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
        },
        // SAFETY: mapped, and a slice of ours does not overlap it.
        _ => unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), addr as *mut u8, data.len()) },
    }
}

/// Writes a store that was checked when it was taken in; its mapping lives as long as the view.
fn arrive(addr: u64, data: &[u8]) {
    // SAFETY: as said.
    unsafe { store(addr, data) };
}

impl Drop for View {
    /// The end of a kernel is a release of everything it wrote.
    fn drop(&mut self) {
        if let Some(delayed) = &self.delayed {
            delayed.flush(arrive);
        }
    }
}

impl Memory for View {
    fn span(&self, addr: u64, len: usize, write: bool) -> Option<*mut u8> {
        let (_, window) = self.at(addr, len as u64)?;
        let armed = if write { &window.stores } else { &window.loads };
        // Own memory that holds a mirror of nothing is plain; a peer's may be overlaid, so stores with faults make loads slow too.
        let mirrored = !write && window.peer.is_some() && !window.stores.is_empty();
        let delayed = self.delayed.is_some() && (window.peer.is_some() || window.host);
        if delayed || mirrored || !(armed.is_empty() || self.clean(armed)) {
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
        let Some(peer) = window.peer else {
            return Ok(());
        };
        mirror(self.gpu).overlay(addr, out);
        for kind in self.striking(&window.loads, allocation, addr) {
            self.act(kind, addr)?;
            match *kind {
                Kind::Zeroed => out.fill(0),
                // A lost read completes with ones.
                Kind::Ones | Kind::Dropped => out.fill(0xff),
                Kind::Stale => {
                    let log = sent(peer, self.gpu);
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
        window.written.fetch_add(len, Ordering::Relaxed);
        let offset = addr - allocation.base;
        let (mut data, mut target, mut extra) = (data.to_vec(), Some(addr), None);
        for kind in self.striking(&window.stores, allocation, addr) {
            self.act(kind, addr)?;
            match *kind {
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
                    let log = sent(self.gpu, window.peer.unwrap_or(self.gpu));
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
        let remote = window.peer.is_some() || window.host;
        for to in target.into_iter().chain(extra) {
            match &self.delayed {
                Some(delayed) if remote && access.order == Order::Weak => {
                    delayed.take(to, &data, arrive)
                }
                _ => {
                    self.settle(to, data.len());
                    arrive(to, &data);
                }
            }
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
        window.written.fetch_add(len as u64, Ordering::Relaxed);
        let mut operands = operands;
        self.settle(addr, len);
        for kind in self.striking(&window.atomics, allocation, addr) {
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
        if let (Some(delayed), Scope::Sys) = (&self.delayed, scope)
            && kind != FenceKind::Acquire
        {
            delayed.flush(arrive);
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
        self.last_timer.fetch_max(now, Ordering::SeqCst).max(now)
    }

    fn sm_count(&self) -> u32 {
        self.driver.world.scenario.gpu.multiprocessors.max(1) as u32
    }

    fn cancelled(&self) -> bool {
        self.driver.context_of(self.gpu).health().is_err()
    }
}
