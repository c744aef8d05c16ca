//! Transfers of other processes: each process publishes what it puts on the links, so that all of them contend in each
//! one's modelled time.
//!
//! Processes start their transfers at moments of the wall, and modelled time knows only what was started. Before a
//! process works out when something ended, it therefore waits a short while for processes that were active just now: a
//! transfer that they start meanwhile counts as one that ran beside its own.
use crate::world::World;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Transfers kept; older ones are written over.
const SLOTS: usize = 512;
/// Links of one transfer.
const LINKS: usize = 24;
/// A process is active for so long after it last started a transfer.
const ACTIVE: Duration = Duration::from_millis(20);
/// Longest wait for the others.
const PATIENCE: Duration = Duration::from_millis(10);

/// One transfer, as numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// Process id.
    pub pid: u32,
    /// Stream of that process.
    pub stream: u32,
    /// Modelled nanoseconds before which it does not start.
    pub floor: u64,
    /// Before its first byte, ns.
    pub lead_ns: u64,
    /// Bytes.
    pub bytes: f64,
    /// Bytes per ns that it cannot exceed.
    pub limit: f64,
    /// Rates divided by this.
    pub slow: f64,
    /// Root behind which it writes, for posted writes to peers.
    pub posted: Option<u32>,
    /// Links with the share of the bytes on each.
    pub links: Vec<(usize, f64)>,
}

/// A place for one transfer. All zero is empty.
#[repr(C)]
struct Slot {
    /// Number of the transfer, from 1; 0 while it is being written.
    number: AtomicU64,
    who: AtomicU64,
    floor: AtomicU64,
    lead: AtomicU64,
    numbers: [AtomicU64; 3],
    posted: AtomicU64,
    count: AtomicU64,
    links: [AtomicU64; LINKS],
    shares: [AtomicU64; LINKS],
}

/// What the processes of a run tell each other of their transfers.
#[repr(C)]
pub struct Flows {
    next: AtomicU64,
    slots: [Slot; SLOTS],
}

/// What one process says of itself.
#[repr(C)]
pub struct Activity {
    /// When it last started a transfer, in nanoseconds of the machine's monotonic clock.
    last: AtomicU64,
    /// Transfers started whose end it has not asked for.
    open: AtomicU32,
    /// When it last asked for ends, on the same clock.
    settled: AtomicU64,
}

fn monotonic_ns() -> u64 {
    // SAFETY: the structure is plain integers and is filled by the call.
    unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

impl Flows {
    /// Tells the others.
    pub fn publish(&self, world: &World, flow: &Flow) {
        if flow.links.len() > LINKS {
            return;
        }
        let number = self.next.fetch_add(1, Ordering::SeqCst) + 1;
        let slot = &self.slots[number as usize % SLOTS];
        let put = |a: &AtomicU64, v: u64| a.store(v, Ordering::SeqCst);
        put(&slot.number, 0);
        put(
            &slot.who,
            u64::from(flow.pid) << 32 | u64::from(flow.stream),
        );
        put(&slot.floor, flow.floor);
        put(&slot.lead, flow.lead_ns);
        for (a, v) in slot.numbers.iter().zip([flow.bytes, flow.limit, flow.slow]) {
            put(a, v.to_bits());
        }
        put(&slot.posted, flow.posted.map_or(0, |p| u64::from(p) + 1));
        put(&slot.count, flow.links.len() as u64);
        for (i, &(link, share)) in flow.links.iter().enumerate() {
            put(&slot.links[i], link as u64);
            put(&slot.shares[i], share.to_bits());
        }
        put(&slot.number, number);
        if let Some(process) = world.slot() {
            process
                .activity
                .last
                .store(monotonic_ns(), Ordering::SeqCst);
            process.activity.open.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Transfers of other processes after number `seen`, oldest first, and the number seen now.
    pub fn after(&self, seen: u64) -> (Vec<Flow>, u64) {
        let last = self.next.load(Ordering::SeqCst);
        let me = std::process::id();
        let from = seen
            .max(last.saturating_sub(SLOTS as u64))
            .saturating_add(1);
        let flows = (from..=last).filter_map(|number| {
            let slot = &self.slots[number as usize % SLOTS];
            let get = |a: &AtomicU64| a.load(Ordering::SeqCst);
            if get(&slot.number) != number {
                return None;
            }
            let who = get(&slot.who);
            let [bytes, limit, slow] = [0, 1, 2].map(|i| f64::from_bits(get(&slot.numbers[i])));
            let links = slot.links.iter().zip(&slot.shares);
            let flow = Flow {
                pid: (who >> 32) as u32,
                stream: who as u32,
                floor: get(&slot.floor),
                lead_ns: get(&slot.lead),
                bytes,
                limit,
                slow,
                posted: (get(&slot.posted) as u32).checked_sub(1),
                links: links
                    .take(get(&slot.count) as usize)
                    .map(|(l, s)| (get(l) as usize, f64::from_bits(get(s))))
                    .collect(),
            };
            // Written over while it was read: gone.
            (get(&slot.number) == number && flow.pid != me).then_some(flow)
        });
        (flows.collect(), last)
    }
}

/// Waits until every other active process has started a transfer since this one last asked for ends, or for a short while.
pub fn meet(world: &World) {
    let Some(mine) = world.slot().map(|s| &s.activity) else {
        return;
    };
    if mine.open.load(Ordering::SeqCst) == 0 {
        return;
    }
    let before = mine.settled.load(Ordering::SeqCst);
    let me = std::process::id();
    let until = monotonic_ns() + PATIENCE.as_nanos() as u64;
    loop {
        let now = monotonic_ns();
        let missing = world.shared().processes.iter().any(|p| {
            let pid = p.pid.load(Ordering::SeqCst);
            let last = p.activity.last.load(Ordering::SeqCst);
            pid != 0
                && pid != me
                && now.saturating_sub(last) < ACTIVE.as_nanos() as u64
                && last <= before
        });
        if !missing || now >= until {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Says that this process has asked for the ends of what it started.
pub fn settled(world: &World) {
    if let Some(slot) = world.slot() {
        slot.activity.open.store(0, Ordering::SeqCst);
        slot.activity
            .settled
            .store(monotonic_ns(), Ordering::SeqCst);
    }
}

/// Forgets what a process before in the same slot said.
pub fn reset(activity: &Activity) {
    activity.last.store(0, Ordering::SeqCst);
    activity.open.store(0, Ordering::SeqCst);
    activity.settled.store(0, Ordering::SeqCst);
}
