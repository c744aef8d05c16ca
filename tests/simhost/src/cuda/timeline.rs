//! Modelled time: when operations would have started and ended on the modelled links.
//!
//! Operations are executed by threads as fast as this machine can; *when* they took place is worked out afterwards, by a
//! small simulation of flows that share links. It runs only as far as a host thread wants to know, so that everything
//! submitted before takes part in the contention, whatever thread happened to run first. A host thread's own time moves
//! only when it learns that something ended. Flows of other processes are laid beside as they publish them (`flows`), and
//! their clock is seen through the shared page, so time is monotone across a run.
use crate::flows::Flow;
use crate::topology::{Collapse, LinkId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const OPEN: u64 = u64::MAX;

/// Start and end of an operation in modelled nanoseconds, once known.
#[derive(Debug)]
pub(crate) struct Span {
    start: AtomicU64,
    end: AtomicU64,
}

impl Span {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: AtomicU64::new(OPEN),
            end: AtomicU64::new(OPEN),
        })
    }
    pub(crate) fn start(&self) -> Option<u64> {
        Some(self.start.load(Ordering::SeqCst)).filter(|&v| v != OPEN)
    }
    pub(crate) fn end(&self) -> Option<u64> {
        Some(self.end.load(Ordering::SeqCst)).filter(|&v| v != OPEN)
    }
}

/// What an operation asks of the links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    /// Before its first byte.
    pub(crate) lead_ns: u64,
    /// Bytes of the flow.
    pub(crate) bytes: f64,
    /// Links with the share of the bytes that crosses each.
    pub(crate) links: Vec<(LinkId, f64)>,
    /// Bytes per ns it cannot exceed by itself.
    pub(crate) limit: f64,
    /// At least so long in all.
    pub(crate) at_least_ns: u64,
    /// All rates divided by this.
    pub(crate) slow: f64,
    /// Root behind which it writes, for posted writes to peers.
    pub(crate) posted: Option<u32>,
    /// Bytes leave a GPU.
    pub(crate) crosses: bool,
}

impl Work {
    /// Something that takes a fixed time.
    pub(crate) fn fixed(ns: u64) -> Self {
        Self {
            lead_ns: ns,
            limit: f64::INFINITY,
            slow: 1.0,
            ..Self::default()
        }
    }
    fn alone(&self) -> f64 {
        let flow = if self.bytes > 0.0 && self.limit > 0.0 {
            self.bytes * self.slow / self.limit
        } else {
            0.0
        };
        self.lead_ns as f64 + flow
    }
}

struct Op {
    id: u64,
    span: Arc<Span>,
    after: Vec<Arc<Span>>,
    floor: u64,
    work: Option<Work>,
    /// Bytes left, once started; the flow starts at `flows_from`.
    left: Option<(f64, f64)>,
}

/// The simulation of one process.
pub(crate) struct Timeline {
    now: f64,
    next: u64,
    /// What has not ended yet, by stream: only the first of each can run.
    queues: BTreeMap<usize, VecDeque<Op>>,
    capacity: Vec<f64>,
    collapses: Vec<Collapse>,
}

impl Timeline {
    pub(crate) fn new(capacity: Vec<f64>, collapses: Vec<Collapse>) -> Self {
        Self {
            now: 0.0,
            next: 0,
            queues: BTreeMap::new(),
            capacity,
            collapses,
        }
    }

    /// Lays a transfer of another process beside, unless it is over by now.
    pub(crate) fn beside(&mut self, flow: Flow) {
        let work = Work {
            lead_ns: flow.lead_ns,
            bytes: flow.bytes,
            links: flow.links,
            limit: flow.limit,
            at_least_ns: 0,
            slow: flow.slow,
            posted: flow.posted,
            crosses: true,
        };
        if flow.floor as f64 + work.alone() <= self.now {
            return;
        }
        // Streams of other processes have numbers of their own, and their transfers take turns.
        let stream = 1 << 63 | (flow.pid as usize) << 24 | flow.stream as usize & 0xff_ffff;
        self.submit(stream, Span::new(), Vec::new(), flow.floor, Some(work));
    }

    /// What the links carry at most just now: less where posted writes pile up as a rule says.
    fn capacities(&self) -> Vec<f64> {
        let mut all = self.capacity.clone();
        for rule in &self.collapses {
            let writes = |(_, op): (usize, &Op)| match (op.left, &op.work) {
                (Some((from, left)), Some(work))
                    if from <= self.now
                        && left > 0.0
                        && work
                            .links
                            .iter()
                            .any(|(l, share)| *l == rule.link && *share > 0.0) =>
                {
                    work.posted
                }
                _ => None,
            };
            let roots: Vec<u32> = self.fronts().filter_map(writes).collect();
            let distinct: std::collections::BTreeSet<u32> = roots.iter().copied().collect();
            if roots.len() >= rule.writers && distinct.len() >= rule.roots {
                all[rule.link] = all[rule.link].min(rule.gbps);
            }
        }
        all
    }

    /// Adds an operation to a stream. It starts when `after` and what the stream holds have ended, and not before
    /// `floor`. Work may come later.
    pub(crate) fn submit(
        &mut self,
        stream: usize,
        span: Arc<Span>,
        after: Vec<Arc<Span>>,
        floor: u64,
        work: Option<Work>,
    ) -> u64 {
        let id = self.next;
        self.next += 1;
        let op = Op {
            id,
            span,
            after,
            floor,
            work,
            left: None,
        };
        self.queues.entry(stream).or_default().push_back(op);
        id
    }

    fn find(&mut self, stream: usize, id: u64) -> Option<&mut Op> {
        let queue = self.queues.get_mut(&stream)?;
        let i = queue.binary_search_by_key(&id, |op| op.id).ok()?;
        queue.get_mut(i)
    }

    /// First operations of the streams.
    fn fronts(&self) -> impl Iterator<Item = (usize, &Op)> {
        self.queues
            .iter()
            .filter_map(|(&stream, queue)| Some((stream, queue.front()?)))
    }

    fn front(&mut self, stream: usize) -> Option<&mut Op> {
        self.queues.get_mut(&stream)?.front_mut()
    }

    fn end(&mut self, stream: usize, at: u64) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            if let Some(op) = queue.pop_front() {
                op.span.end.store(at, Ordering::SeqCst);
            }
            if queue.is_empty() {
                self.queues.remove(&stream);
            }
        }
    }

    /// States the work of an operation whose extent was not known at submission.
    pub(crate) fn set_work(&mut self, stream: usize, id: u64, work: Work) {
        if let Some(op) = self.find(stream, id) {
            op.work = Some(work);
        }
    }

    /// Start of an operation, if everything before it has ended; works out as much as that needs.
    pub(crate) fn start_of(&mut self, stream: usize, id: u64) -> Option<u64> {
        let after: Vec<Arc<Span>> = self.find(stream, id)?.after.clone();
        for span in &after {
            self.resolve(span)?;
        }
        let op = self.find(stream, id)?;
        let floor = op.floor;
        Some(after.iter().filter_map(|s| s.end()).fold(floor, u64::max))
    }

    /// Runs until the operation has ended; None if something before it has no known work.
    pub(crate) fn resolve(&mut self, span: &Span) -> Option<u64> {
        loop {
            if let Some(end) = span.end() {
                return Some(end);
            }
            if !self.step() {
                return None;
            }
        }
    }

    /// Advances to the next start or end. False when nothing can move.
    fn step(&mut self) -> bool {
        // What could start, and when.
        let mut next_start: Option<(f64, usize)> = None;
        for (stream, op) in self.fronts() {
            if op.left.is_none() && op.work.is_some() && op.after.iter().all(|s| s.end().is_some())
            {
                let at = op
                    .after
                    .iter()
                    .filter_map(|s| s.end())
                    .fold(op.floor, u64::max) as f64;
                if next_start.is_none_or(|(t, _)| at < t) {
                    next_start = Some((at, stream));
                }
            }
        }
        let capacity = self.capacities();
        let mut load = vec![0.0; self.capacity.len()];
        for (_, op) in self.fronts() {
            if let (Some((from, left)), Some(work)) = (op.left, &op.work)
                && from <= self.now
                && left > 0.0
            {
                for &(link, share) in &work.links {
                    if let Some(l) = load.get_mut(link) {
                        *l += share;
                    }
                }
            }
        }
        // Next moment at which a running operation changes: its flow begins, or it ends.
        let mut next_change: Option<(f64, usize)> = None;
        for (stream, op) in self.fronts() {
            let (Some((from, left)), Some(work)) = (op.left, &op.work) else {
                continue;
            };
            let at = if from > self.now || left <= 0.0 {
                from.max(self.now)
            } else {
                self.now + left / rate(work, &load, &capacity)
            };
            if next_change.is_none_or(|(t, _)| at < t) {
                next_change = Some((at, stream));
            }
        }
        match (next_start, next_change) {
            (None, None) => return false,
            (Some((start, stream)), change) if change.is_none_or(|(t, _)| start <= t) => {
                self.advance(start.max(self.now), &load, &capacity);
                self.begin(stream, start);
            }
            (_, Some((at, stream))) => {
                self.advance(at, &load, &capacity);
                let now = self.now;
                let Some(op) = self.front(stream) else {
                    return false;
                };
                let over = op
                    .left
                    .is_some_and(|(from, left)| left <= 0.5 && from <= now);
                if over {
                    let start = op.span.start().unwrap_or(0);
                    let least = op.work.as_ref().map_or(0, |w| w.at_least_ns);
                    self.end(stream, (now.ceil() as u64).max(start + least));
                } else if let Some((_, left)) = &mut op.left
                    && *left <= 0.5
                {
                    *left = 0.0;
                }
            }
            (Some(_), None) => return false,
        }
        true
    }

    fn advance(&mut self, to: f64, load: &[f64], capacity: &[f64]) {
        let by = to - self.now;
        if by > 0.0 {
            let running = |(stream, op): (usize, &Op)| match (op.left, &op.work) {
                (Some((from, left)), Some(work)) if from <= self.now && left > 0.0 => {
                    Some((stream, rate(work, load, capacity)))
                }
                _ => None,
            };
            let rates: Vec<(usize, f64)> = self.fronts().filter_map(running).collect();
            for (stream, rate) in rates {
                if let Some((_, left)) = self.front(stream).and_then(|op| op.left.as_mut()) {
                    *left = (*left - by * rate).max(0.0);
                }
            }
            self.now = to;
        }
    }

    /// Starts an operation at `start`. One that the simulation has already passed (its extent came late) is taken as
    /// having run alone up to now.
    fn begin(&mut self, stream: usize, start: f64) {
        let now = self.now;
        let Some(op) = self.front(stream) else {
            return;
        };
        let Some(work) = &op.work else { return };
        op.span.start.store(start as u64, Ordering::SeqCst);
        let alone = work.alone().max(work.at_least_ns as f64);
        if start + alone <= now {
            self.end(stream, (start + alone).ceil() as u64);
            return;
        }
        let from = start + work.lead_ns as f64;
        let gone = if now > from && work.limit > 0.0 {
            (now - from) * work.limit / work.slow.max(1.0)
        } else {
            0.0
        };
        op.left = Some((from, (work.bytes - gone).max(0.0)));
    }
}

fn rate(work: &Work, load: &[f64], capacity: &[f64]) -> f64 {
    let shared = work
        .links
        .iter()
        .filter(|(_, share)| *share > 0.0)
        .filter_map(|&(l, _)| Some(capacity.get(l)? / load.get(l)?.max(1e-12)));
    (shared.fold(work.limit, f64::min) / work.slow.max(1.0)).max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(bytes: f64, links: &[LinkId], limit: f64) -> Work {
        Work {
            bytes,
            links: links.iter().map(|&l| (l, 1.0)).collect(),
            limit,
            slow: 1.0,
            ..Work::default()
        }
    }

    #[test]
    fn flows_share_a_link_and_take_turns_in_a_stream() {
        let mut t = Timeline::new(vec![10.0, 10.0], vec![]);
        let (a, b, c) = (Span::new(), Span::new(), Span::new());
        t.submit(0, a.clone(), vec![], 0, Some(flow(1000.0, &[0], 10.0)));
        t.submit(1, b.clone(), vec![], 0, Some(flow(1000.0, &[0], 10.0)));
        t.submit(
            0,
            c.clone(),
            vec![a.clone()],
            0,
            Some(flow(1000.0, &[1], 10.0)),
        );
        assert_eq!(t.resolve(&a), Some(200));
        assert_eq!(t.resolve(&b), Some(200));
        assert_eq!(t.resolve(&c), Some(300));
        assert_eq!(c.start(), Some(200));
    }

    #[test]
    fn unknown_work_blocks_only_what_follows() {
        let mut t = Timeline::new(vec![10.0], vec![]);
        let (kernel, after, other) = (Span::new(), Span::new(), Span::new());
        let id = t.submit(0, kernel.clone(), vec![], 0, None);
        t.submit(
            0,
            after.clone(),
            vec![kernel.clone()],
            0,
            Some(Work::fixed(5)),
        );
        t.submit(1, other.clone(), vec![], 0, Some(flow(500.0, &[0], 10.0)));
        assert_eq!(t.resolve(&other), Some(50));
        assert_eq!(t.resolve(&after), None);
        t.set_work(0, id, Work::fixed(20));
        assert_eq!(t.resolve(&after), Some(25));
    }

    #[test]
    fn a_slow_fault_divides_the_rate_and_lead_time_counts() {
        let mut t = Timeline::new(vec![10.0], vec![]);
        let a = Span::new();
        t.submit(
            0,
            a.clone(),
            vec![],
            7,
            Some(Work {
                slow: 4.0,
                lead_ns: 100,
                ..flow(1000.0, &[0], 10.0)
            }),
        );
        assert_eq!(t.resolve(&a), Some(7 + 100 + 400));
    }

    #[test]
    fn writes_behind_two_roots_collapse_and_others_do_not() {
        let rule = Collapse {
            link: 0,
            writers: 2,
            roots: 2,
            gbps: 1.0,
        };
        let time = |roots: [Option<u32>; 2]| {
            let mut t = Timeline::new(vec![10.0], vec![rule]);
            let spans = roots.map(|posted| {
                let span = Span::new();
                let work = Work {
                    posted,
                    ..flow(1000.0, &[0], 10.0)
                };
                t.submit(
                    posted.map_or(9, |p| p as usize),
                    span.clone(),
                    vec![],
                    0,
                    Some(work),
                );
                span
            });
            t.resolve(&spans[0])
        };
        assert_eq!(time([Some(1), Some(2)]), Some(2000));
        assert_eq!(time([Some(1), None]), Some(200));
    }

    #[test]
    fn flows_of_other_processes_share_links() {
        let mut t = Timeline::new(vec![10.0], vec![]);
        let a = Span::new();
        t.submit(0, a.clone(), vec![], 0, Some(flow(1000.0, &[0], 10.0)));
        t.beside(Flow {
            pid: 77,
            bytes: 1000.0,
            limit: 10.0,
            slow: 1.0,
            links: vec![(0, 1.0)],
            ..Flow::default()
        });
        assert_eq!(t.resolve(&a), Some(200));
    }
}
