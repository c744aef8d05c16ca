//! Stores that a flag overtakes: held back until some time after the flag, as where a path does not keep the order of
//! what one GPU sends. At the latest the end of the kernel delivers them, so the bytes are right in the end.
use super::bytes::arrive;
use super::engine::lock;
use super::memory::Allocation;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the thread that delivers looks.
const LOOK: Duration = Duration::from_micros(200);

struct Held {
    addr: u64,
    data: Vec<u8>,
    /// A fence of system scope came after it.
    fenced: bool,
    /// How long after the flag, and when that is, once there was one.
    delay: Duration,
    due: Option<Instant>,
    _memory: Arc<Allocation>,
}

#[derive(Default)]
struct State {
    held: Mutex<Vec<Held>>,
    closed: AtomicBool,
}

impl State {
    /// Delivers, oldest first, what the rule names.
    fn deliver(&self, which: impl Fn(&Held) -> bool) {
        let mut held = lock(&self.held);
        held.retain(|h| {
            let now = which(h);
            if now {
                arrive(h.addr, &h.data);
            }
            !now
        });
    }
}

/// The stores of one launch that wait for a flag to overtake them.
#[derive(Default)]
pub(crate) struct Late {
    state: Arc<State>,
    holding: AtomicBool,
    thread: AtomicBool,
}

impl Late {
    /// Whether any store of this launch was ever held.
    pub(crate) fn holding(&self) -> bool {
        self.holding.load(Ordering::SeqCst)
    }

    /// Holds a store. An older one to the same place goes out first.
    pub(crate) fn hold(&self, memory: &Arc<Allocation>, addr: u64, data: &[u8], delay: Duration) {
        self.settle(addr, data.len());
        lock(&self.state.held).push(Held {
            addr,
            data: data.to_vec(),
            fenced: false,
            delay,
            due: None,
            _memory: Arc::clone(memory),
        });
        self.holding.store(true, Ordering::SeqCst);
    }

    /// Delivers what overlaps a range, so that the device sees its own stores.
    pub(crate) fn settle(&self, addr: u64, len: usize) {
        if self.holding() {
            self.state
                .deliver(|h| h.addr < addr + len as u64 && addr < h.addr + h.data.len() as u64);
        }
    }

    /// A fence: a small store after it may be a flag.
    pub(crate) fn fenced(&self) {
        if self.holding() {
            lock(&self.state.held)
                .iter_mut()
                .for_each(|h| h.fenced = true);
        }
    }

    /// Whether a plain store of this length may be a flag.
    pub(crate) fn may_be_flag(&self, len: usize) -> bool {
        let waits = |h: &Held| h.fenced && h.due.is_none();
        self.holding() && len <= 8 && lock(&self.state.held).iter().any(waits)
    }

    /// A flag has gone out: what is held follows later. Says whether it overtook anything.
    pub(crate) fn overtaken(&self) -> bool {
        if !self.holding() {
            return false;
        }
        let (now, mut any) = (Instant::now(), false);
        for h in lock(&self.state.held)
            .iter_mut()
            .filter(|h| h.due.is_none())
        {
            h.due = Some(now + h.delay);
            any = true;
        }
        if any && !self.thread.swap(true, Ordering::SeqCst) {
            let state = Arc::clone(&self.state);
            std::thread::spawn(move || {
                while !state.closed.load(Ordering::SeqCst) {
                    let now = Instant::now();
                    state.deliver(|h| h.due.is_some_and(|d| d <= now));
                    std::thread::sleep(LOOK);
                }
            });
        }
        any
    }
}

impl Drop for Late {
    /// The end of a kernel is a release of everything it wrote.
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        self.state.deliver(|_| true);
    }
}
