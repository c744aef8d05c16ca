//! Global memory as one kernel on one GPU sees it: its own, pinned host memory, and peers that its context may reach,
//! with the faults of each way. What no rule allows is an illegal address, as on the real thing.
//!
//! In the weak mode, plain stores to peers and to the host are held back (`weak`); otherwise they take effect at once.
use super::bytes::arrive;
use super::context::{Context, Driver};
use super::copy::dwell;
use super::engine::{Op, lock};
use super::late::Late;
use super::memory::{Allocation, Kind as MemoryKind, Snapshot, find};
use super::shadow::Shadow;
use super::stuck::stuck;
use super::timeline::Work;
use super::weak::Delayed;
use crate::ptx::{Stats, Trap, TrapKind};
use crate::scenario::{Kind, Mechanism};
use crate::topology::Engine as Carrier;
use crate::world::Flight;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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

pub(super) fn sent(source: usize, destination: usize) -> Arc<Shadow> {
    Arc::clone(lock(&SENT).entry((source, destination)).or_default())
}

/// What is known of one fault in one launch: whether it strikes is asked once.
#[derive(Default)]
pub(super) struct Asked {
    strikes: OnceLock<bool>,
    /// It was seen to have an effect.
    noted: AtomicBool,
}

/// A fault that concerns one way into one allocation.
pub(super) struct Armed {
    pub(super) fault: usize,
    asked: Arc<Asked>,
    /// Only accesses of so many bytes, from and to.
    sizes: (usize, usize),
}

/// One allocation as this kernel may use it.
pub(super) struct Window {
    reachable: bool,
    pub(super) writable: bool,
    /// Neither own memory nor host memory.
    pub(super) peer: Option<usize>,
    pub(super) host: bool,
    pub(super) loads: Vec<Armed>,
    pub(super) stores: Vec<Armed>,
    pub(super) atomics: Vec<Armed>,
    pub(super) read: AtomicU64,
    pub(super) written: AtomicU64,
}

impl Window {
    /// Bytes leave the GPU.
    pub(super) fn remote(&self) -> bool {
        self.peer.is_some() || self.host
    }
}

/// The memory of one launch.
pub(crate) struct View {
    pub(super) driver: &'static Driver,
    pub(super) gpu: usize,
    pub(super) all: Snapshot,
    windows: Vec<Window>,
    /// Index of the allocation that was accessed last.
    last: AtomicUsize,
    pub(super) op: Arc<Op>,
    pub(super) begun: Instant,
    pub(super) start: OnceLock<u64>,
    pub(super) last_timer: AtomicU64,
    pub(super) delayed: Option<Delayed>,
    pub(super) late: Late,
    /// Some fault of the scenario asks for load.
    loaded: bool,
    flight: OnceLock<(Instant, Option<Flight>)>,
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
        let mut once: HashMap<usize, Arc<Asked>> = HashMap::new();
        let windows = all
            .iter()
            .map(|a| window(driver, gpu, &peers, a, &mut once))
            .collect();
        Self {
            driver,
            gpu,
            all,
            windows,
            last: AtomicUsize::new(0),
            op,
            begun: Instant::now(),
            start: OnceLock::new(),
            last_timer: AtomicU64::new(0),
            delayed: driver
                .world
                .scenario
                .weak_memory
                .map(|seed| Delayed::new(seed ^ gpu as u64)),
            late: Late::default(),
            loaded: driver.world.loaded(),
            flight: OnceLock::new(),
        }
    }

    pub(super) fn at(&self, addr: u64, len: u64) -> Option<(&Arc<Allocation>, &Window)> {
        // Accesses come in runs within one allocation.
        let last = self.last.load(Ordering::Relaxed);
        let (i, allocation) = match self.all.get(last).filter(|a| a.holds(addr, len)) {
            Some(allocation) => (last, allocation),
            None => find(&self.all, addr, len)?,
        };
        self.last.store(i, Ordering::Relaxed);
        let window = self.windows.get(i)?;
        if self.loaded && window.reachable && window.remote() {
            let start = || (Instant::now(), Flight::start(self.driver.world));
            self.flight.get_or_init(start);
        }
        window.reachable.then_some((allocation, window))
    }

    /// Faults of a way that strike this launch, at this place, for an access of so many bytes.
    pub(super) fn striking<'a>(
        &'a self,
        armed: &'a [Armed],
        allocation: &'a Allocation,
        addr: u64,
        len: usize,
    ) -> impl Iterator<Item = (&'a Armed, &'a Kind)> {
        armed.iter().filter_map(move |a| {
            let fault = &self.driver.world.faults[a.fault];
            let here = allocation.physical_at(addr) >= fault.min_offset
                && fault.part.contains(&(addr - allocation.base))
                && allocation.size >= fault.min_bytes
                && (a.sizes.0..=a.sizes.1).contains(&len);
            (here && *a.asked.strikes.get_or_init(|| self.ask(a.fault))).then_some((a, &fault.kind))
        })
    }

    fn ask(&self, fault: usize) -> bool {
        let world = self.driver.world;
        let load = world.faults[fault].load;
        (load == 0 || dwell(self.driver, Flight::DWELL) >= load) && world.strikes(fault)
    }

    /// Notes the effect of a fault that strikes only when a flag follows, once in a launch.
    pub(super) fn note(&self, armed: &Armed) {
        if !armed.asked.noted.swap(true, Ordering::SeqCst) {
            self.driver.world.struck(armed.fault);
        }
    }

    /// The same for all stores that were held back.
    pub(super) fn note_late(&self) {
        for armed in self.windows.iter().flat_map(|w| &w.stores) {
            let late = matches!(
                self.driver.world.faults[armed.fault].kind,
                Kind::Late { .. }
            );
            if late && armed.asked.strikes.get() == Some(&true) {
                self.note(armed);
            }
        }
    }

    pub(super) fn clean(&self, armed: &[Armed]) -> bool {
        armed.iter().all(|a| a.asked.strikes.get() == Some(&false))
    }

    /// Delivers what is under way to a range.
    pub(super) fn settle(&self, addr: u64, len: usize) {
        if let Some(delayed) = &self.delayed {
            delayed.settle(addr, len, arrive);
        }
        self.late.settle(addr, len);
    }

    /// Kinds that end or hold the kernel.
    pub(super) fn act(&self, kind: &Kind, addr: u64) -> Result<(), Trap> {
        match kind {
            Kind::Hang => forever(),
            Kind::Stuck => stuck(),
            Kind::Death => die(),
            Kind::Sticky { code } => Err(Trap::new(
                TrapKind::Device(*code),
                format!("planted fault at 0x{addr:x}"),
            )),
            _ => Ok(()),
        }
    }

    /// Another GPU's memory at the same offset.
    pub(super) fn elsewhere(
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
        let (mut posted, mut crosses) = (None, false);
        for window in &self.windows {
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
                crosses |= window.remote();
                if let (Some(p), true) = (window.peer, outwards) {
                    posted = Some(world.topology.root_of(p));
                }
                total += amount;
                alone = alone.max(amount / route.limit.max(1e-9));
                for link in route.links {
                    *bytes.entry(link).or_default() += amount;
                }
            }
            for armed in window
                .loads
                .iter()
                .chain(&window.stores)
                .chain(&window.atomics)
            {
                if let (Kind::Slow { factor }, Some(true)) = (
                    &self.driver.world.faults[armed.fault].kind,
                    armed.asked.strikes.get(),
                ) {
                    slow = slow.max(*factor);
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
            posted,
            crosses,
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
    once: &mut HashMap<usize, Arc<Asked>>,
) -> Window {
    let imported = a.kind == MemoryKind::Imported;
    let peer = a.gpu.filter(|&g| g != gpu);
    let reachable = match (a.gpu, &a.access) {
        (_, Some(_)) => a.allows(gpu, false),
        (None, _) => true,
        (Some(g), _) => g == gpu || peers.contains(&g) || (imported && a.context == gpu),
    };
    let mut arm = |source, destination, mechanism| -> Vec<Armed> {
        let sizes = match mechanism {
            Mechanism::SmStore4 => (0, 4),
            Mechanism::SmStore16 => (16, 16),
            _ => (0, usize::MAX),
        };
        let concerned = driver
            .world
            .concerned(source, destination, mechanism, a.via());
        concerned
            .map(|(fault, _)| Armed {
                fault,
                asked: Arc::clone(once.entry(fault).or_default()),
                sizes,
            })
            .collect()
    };
    let me = Some(gpu);
    let (loads, stores, atomics) = match (peer, a.gpu) {
        (Some(_), _) => {
            let mut stores = arm(me, peer, Mechanism::SmStore);
            stores.extend(arm(me, peer, Mechanism::SmStore4));
            stores.extend(arm(me, peer, Mechanism::SmStore16));
            (
                arm(peer, me, Mechanism::SmLoad),
                stores,
                arm(me, peer, Mechanism::Atomic),
            )
        }
        (None, Some(_)) => (Vec::new(), arm(me, me, Mechanism::Own), Vec::new()),
        (None, None) => (
            arm(None, me, Mechanism::HostLoad),
            arm(me, None, Mechanism::HostStore),
            arm(me, None, Mechanism::HostAtomic),
        ),
    };
    Window {
        reachable,
        writable: a.allows(gpu, true),
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

impl Drop for View {
    /// The end of a kernel is a release of everything it wrote.
    fn drop(&mut self) {
        if let Some(delayed) = &self.delayed {
            delayed.flush(arrive);
        }
        if let Some((begun, Some(_))) = self.flight.get() {
            std::thread::sleep(Flight::DWELL.saturating_sub(begun.elapsed()));
        }
    }
}
