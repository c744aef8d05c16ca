//! Streams as threads: each executes its queue in order, and waits for what other streams owe it.
use super::codes::{Code, SUCCESS};
use super::graph::Part;
use super::timeline::{Span, Timeline, Work};
use crate::flows::{self, Flow};
use crate::world::World;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Host time that a call takes, in modelled nanoseconds.
const CALL_NS: u64 = 700;
/// How long a host thread waits for other streams' kernels, so that they take part in the contention.
const SETTLE: Duration = Duration::from_secs(2);

/// Locks; a thread that died inside leaves plain data behind, so its lock is still good.
pub(crate) fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One operation of a stream.
pub(crate) struct Op {
    pub(crate) span: Arc<Span>,
    id: u64,
    stream: usize,
    kernel: bool,
    /// The kernel looks at the time: it may be one that waits for another.
    pub(crate) polls: AtomicBool,
    done: AtomicBool,
    /// Who waits for this one alone, on the lock of `Engine::finished`: not all who wait need to wake at every end.
    over: Condvar,
}

impl Op {
    pub(crate) fn done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
}

/// What a stream thread executes; the answer states work that was not known before.
pub(crate) type Run = Box<dyn FnOnce(&Arc<Op>) -> Result<Option<Work>, Code> + Send>;

struct Job {
    op: Arc<Op>,
    wait_for: Vec<Arc<Op>>,
    run: Run,
}

/// A stream of one context.
pub(crate) struct Stream {
    /// Physical GPU of its context.
    pub(crate) gpu: usize,
    /// Takes part in the null stream's order.
    pub(crate) blocking: bool,
    id: usize,
    queue: Mutex<(VecDeque<Job>, bool)>,
    filled: Condvar,
    last: Mutex<Option<Arc<Op>>>,
    /// Waits put in by cuStreamWaitEvent for the next operation.
    pending: Mutex<Vec<Arc<Op>>>,
    poison: Arc<AtomicU32>,
    /// The capture that the stream is part of.
    pub(crate) part: Mutex<Option<Part>>,
}

impl Stream {
    /// Starts the thread. `poison` is the context's sticky error.
    pub(crate) fn start(
        engine: &'static Engine,
        gpu: usize,
        blocking: bool,
        poison: Arc<AtomicU32>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::SeqCst) as usize;
        let stream = Arc::new(Self {
            gpu,
            blocking,
            id,
            queue: Mutex::default(),
            filled: Condvar::new(),
            last: Mutex::default(),
            pending: Mutex::default(),
            poison,
            part: Mutex::default(),
        });
        let worker = Arc::clone(&stream);
        // Detached: a stream that hangs must not keep the process from ending.
        std::thread::spawn(move || worker.work(engine));
        stream
    }

    fn work(&self, engine: &'static Engine) {
        loop {
            let job = {
                let mut queue = lock(&self.queue);
                loop {
                    if let Some(job) = queue.0.pop_front() {
                        break job;
                    }
                    if queue.1 {
                        return;
                    }
                    queue = self
                        .filled
                        .wait(queue)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            };
            for op in &job.wait_for {
                engine.wait_done(op);
            }
            let result = if self.poison.load(Ordering::SeqCst) == SUCCESS {
                (job.run)(&job.op)
            } else {
                Ok(None)
            };
            let work = result.unwrap_or_else(|code| {
                let _ =
                    self.poison
                        .compare_exchange(SUCCESS, code, Ordering::SeqCst, Ordering::SeqCst);
                None
            });
            engine.finish(&job.op, work);
        }
    }

    /// Ends the thread once its queue is empty.
    pub(crate) fn close(&self) {
        lock(&self.queue).1 = true;
        self.filled.notify_all();
    }

    /// The operation submitted last.
    pub(crate) fn last(&self) -> Option<Arc<Op>> {
        lock(&self.last).clone()
    }

    /// Makes the next operation wait.
    pub(crate) fn hold_for(&self, op: Arc<Op>) {
        lock(&self.pending).push(op);
    }

    /// Puts an operation into the queue. `work` None: its extent is stated by `run`.
    pub(crate) fn submit(
        &self,
        engine: &'static Engine,
        others: Vec<Arc<Op>>,
        work: Option<Work>,
        kernel: bool,
        run: Run,
    ) -> Arc<Op> {
        // One lock over the whole, so that order in the stream, in the timeline and in the queue are the same.
        let mut last = lock(&self.last);
        let mut wait_for = others;
        wait_for.append(&mut lock(&self.pending));
        let after = wait_for
            .iter()
            .chain(last.iter())
            .map(|op| Arc::clone(&op.span))
            .collect();
        let span = Span::new();
        let floor = engine.host_call();
        if let Some(work) = &work {
            engine.publish(self.id, floor, work);
        }
        let id = lock(&engine.timeline).submit(self.id, Arc::clone(&span), after, floor, work);
        let op = Arc::new(Op {
            span,
            id,
            stream: self.id,
            kernel,
            polls: AtomicBool::new(false),
            done: AtomicBool::new(false),
            over: Condvar::new(),
        });
        if kernel {
            lock(&engine.kernels).push(Arc::clone(&op));
        }
        *last = Some(Arc::clone(&op));
        lock(&self.queue).0.push_back(Job {
            op: Arc::clone(&op),
            wait_for,
            run,
        });
        self.filled.notify_one();
        op
    }
}

/// What all streams of the process share.
pub(crate) struct Engine {
    timeline: Mutex<Timeline>,
    kernels: Mutex<Vec<Arc<Op>>>,
    finished: (Mutex<()>, Condvar),
    host_ns: AtomicU64,
    /// Transfers of other processes that were looked at.
    seen: AtomicU64,
    world: &'static World,
}

impl Engine {
    pub(crate) fn new(world: &'static World) -> Self {
        Self {
            timeline: Mutex::new(Timeline::new(
                world.topology.capacity.clone(),
                world.topology.collapses.clone(),
            )),
            kernels: Mutex::default(),
            finished: (Mutex::default(), Condvar::new()),
            host_ns: AtomicU64::new(world.shared().clock.load(Ordering::SeqCst)),
            seen: AtomicU64::new(world.shared().flows.after(u64::MAX).1),
            world,
        }
    }

    /// Tells other processes of a transfer.
    fn publish(&self, stream: usize, floor: u64, work: &Work) {
        if !work.crosses || work.bytes <= 0.0 {
            return;
        }
        let flow = Flow {
            pid: std::process::id(),
            stream: stream as u32,
            floor,
            lead_ns: work.lead_ns,
            bytes: work.bytes,
            limit: work.limit,
            slow: work.slow,
            posted: work.posted,
            links: work.links.clone(),
        };
        self.world.shared().flows.publish(self.world, &flow);
    }

    /// Modelled host time, after one more call.
    fn host_call(&self) -> u64 {
        self.host_ns.fetch_max(
            self.world.shared().clock.load(Ordering::SeqCst),
            Ordering::SeqCst,
        );
        self.host_ns.fetch_add(CALL_NS, Ordering::SeqCst) + CALL_NS
    }

    /// Modelled host time, as of the last call.
    pub(crate) fn host_now(&self) -> u64 {
        self.host_ns.load(Ordering::SeqCst)
    }

    fn host_saw(&self, ns: u64) {
        let now = self
            .host_ns
            .fetch_max(ns + CALL_NS, Ordering::SeqCst)
            .max(ns + CALL_NS);
        self.world.shared().clock.fetch_max(now, Ordering::SeqCst);
    }

    fn finish(&self, op: &Arc<Op>, work: Option<Work>) {
        {
            let mut timeline = lock(&self.timeline);
            match work {
                Some(work) => {
                    if op.kernel && work.crosses {
                        let floor = timeline.start_of(op.stream, op.id);
                        self.publish(op.stream, floor.unwrap_or(0), &work);
                    }
                    timeline.set_work(op.stream, op.id, work);
                }
                // Skipped or failed: it takes no time, but what follows must be able to end.
                None if op.kernel => timeline.set_work(op.stream, op.id, Work::fixed(0)),
                None => {}
            }
        }
        if op.kernel {
            lock(&self.kernels).retain(|k| !Arc::ptr_eq(k, op));
        }
        let _guard = lock(&self.finished.0);
        op.done.store(true, Ordering::SeqCst);
        op.over.notify_all();
        self.finished.1.notify_all();
    }

    /// Waits until the operation was executed.
    pub(crate) fn wait_done(&self, op: &Op) {
        let mut guard = lock(&self.finished.0);
        while !op.done() {
            guard = op.over.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits a moment for the end of an operation. Who asks for it again and again would otherwise take the processor from
    /// the thread that executes it: here, unlike on a GPU, they are the same.
    pub(crate) fn wait_briefly(&self, op: &Op) -> bool {
        const MOMENT: Duration = Duration::from_micros(200);
        let until = Instant::now() + MOMENT;
        let mut guard = lock(&self.finished.0);
        while !op.done() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = op.over.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        op.done()
    }

    /// Says that a kernel looks at the time, so that nobody waits for it merely to model contention.
    pub(crate) fn note_poll(&self, op: &Op) {
        if !op.polls.swap(true, Ordering::SeqCst) {
            let _guard = lock(&self.finished.0);
            self.finished.1.notify_all();
        }
    }

    /// Modelled start of an operation that is being executed.
    pub(crate) fn start_of(&self, op: &Op) -> u64 {
        lock(&self.timeline)
            .start_of(op.stream, op.id)
            .unwrap_or_else(|| self.host_ns.load(Ordering::SeqCst))
    }

    /// Modelled end of an executed operation; the host has then seen it.
    pub(crate) fn end_of(&self, op: &Op) -> Option<u64> {
        self.settle(op);
        let known = op.span.end().is_some();
        if !known {
            flows::meet(self.world);
            let (others, seen) = {
                let seen = self.seen.load(Ordering::SeqCst);
                self.world.shared().flows.after(seen)
            };
            if self.seen.fetch_max(seen, Ordering::SeqCst) < seen {
                let mut timeline = lock(&self.timeline);
                others.into_iter().for_each(|f| timeline.beside(f));
            }
        }
        let end = lock(&self.timeline).resolve(&op.span);
        if !known {
            flows::settled(self.world);
        }
        if let Some(end) = end {
            self.host_saw(end);
        }
        end
    }

    /// Lets kernels of other streams finish, for a while, so that their traffic is known before time is worked out.
    fn settle(&self, target: &Op) {
        if target.span.end().is_some() {
            return;
        }
        let until = Instant::now() + SETTLE;
        let others: Vec<Arc<Op>> = lock(&self.kernels)
            .iter()
            .filter(|k| k.id < target.id || k.stream != target.stream)
            .cloned()
            .collect();
        let mut guard = lock(&self.finished.0);
        for op in &others {
            while !op.done() && !op.polls.load(Ordering::SeqCst) {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                guard = self
                    .finished
                    .1
                    .wait_timeout(guard, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }
}
