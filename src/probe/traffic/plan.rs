//! Which transfers are timed, at which sizes and on which kinds of streams. Pure: scales to the memory of the smallest GPU,
//! and leaves out what does not exist on a host with a reason.

use crate::model::{
    case::Outcome,
    measurement::Unit,
    pair::{GpuIndex, OrderedPair},
    pci::PciAddress,
    snapshot::{BridgePort, Snapshot},
    traffic::{Executor, Flow, Place, Shape, Streams, Traffic, Way},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

/// Bytes of a copy whose rate is taken: long past what start and end of a copy cost, on any link.
const USUAL: u64 = 64 << 20;
/// Sizes of the curve, and those that `--full` adds.
const CURVE: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];
const FULL_CURVE: [u64; 10] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
];
/// Bytes of a small copy.
const SMALL: u64 = 16;
/// Small copies in one sample.
const SMALL_COPIES: u32 = 64;
/// Round trips in one sample that count.
pub(super) const ROUND_TRIPS: u32 = 200;
/// Group sizes of the all-gather.
const GROUPS: [usize; 3] = [2, 4, 8];
const PAGE: u64 = 4096;
/// Memory assumed where the driver does not tell, bytes.
const UNKNOWN_MEMORY: u64 = 1 << 30;
/// One copy may take this share of the smallest GPU's free memory: sources and targets of all flows must fit.
const SHARE: u64 = 64;

/// A part of what can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Single flows and both directions.
    Copies,
    /// Rates by size.
    Curve,
    /// Small copies and the round trip of a flag.
    Latency,
    /// All that runs at once, on each kind of stream.
    Streams,
    /// Many flows at once.
    Shapes,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 5] = [
        Part::Copies,
        Part::Curve,
        Part::Latency,
        Part::Streams,
        Part::Shapes,
    ];

    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Part::Copies => "copies",
            Part::Curve => "curve",
            Part::Latency => "latency",
            Part::Streams => "streams",
            Part::Shapes => "shapes",
        }
    }
}

/// What the operator wants measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// GPU indices, ascending.
    pub gpus: Vec<u32>,
    /// Which parts.
    pub parts: Vec<Part>,
    /// Longer curve, more executors, more samples.
    pub full: bool,
    /// The GPUs are in use by others: a quarter of what is free must do.
    pub shared: bool,
    /// Bytes of a copy instead of the usual ones.
    pub bytes: Option<u64>,
}

/// Memory that the worker keeps for the whole plan, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reserve {
    /// Device memory that is read, of each GPU.
    pub source: u64,
    /// Device memory that is written, of each GPU.
    pub sink: u64,
    /// Pinned host memory that each GPU reads, and as much that it writes.
    pub host: u64,
    /// The same of the first GPU, where a curve goes further.
    pub first_host: u64,
}

/// How long one case may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patience {
    /// Samples that are taken in any case.
    pub least: u32,
    /// Samples after which it ends in any case.
    pub most: u32,
    /// Between the two it ends when samples agree, or after so many milliseconds.
    pub millis: u32,
}

impl Patience {
    /// The same as a duration.
    pub fn time(self) -> Duration {
        Duration::from_millis(u64::from(self.millis))
    }
}

/// What will be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// In order.
    pub cases: Vec<Traffic>,
    /// Memory for all of them.
    pub reserve: Reserve,
    /// Time for each.
    pub patience: Patience,
    /// What is left out, and why.
    pub left_out: Vec<String>,
}

/// Builds the plan. `access` tells whether the context of the first GPU may reach memory of the second.
pub fn build(snapshot: &Snapshot, wish: &Wish, access: &dyn Fn(u32, u32) -> bool) -> Plan {
    let room = room(snapshot, wish);
    let usual = wish.bytes.unwrap_or(USUAL).min(room).max(PAGE) / PAGE * PAGE;
    let mut maker = Maker {
        snapshot,
        wish,
        access,
        usual,
        most: (room * 8).max(PAGE),
        cases: Vec::new(),
        left_out: Vec::new(),
    };
    if let Some(asked) = wish.bytes.filter(|asked| *asked > usual) {
        maker.left_out.push(format!(
            "copies of {asked} bytes: {usual} fit beside each other on the smallest GPU"
        ));
    }
    maker.singles();
    maker.both_directions();
    maker.shapes();
    maker.curve();
    maker.latency();
    let (cases, left_out) = (maker.cases, maker.left_out);
    Plan {
        reserve: reserve(&cases, wish.gpus.first().copied()),
        patience: match wish.full {
            true => Patience {
                least: 10,
                most: 60,
                millis: 150,
            },
            false => Patience {
                least: 5,
                most: 25,
                millis: 40,
            },
        },
        cases,
        left_out,
    }
}

/// Bytes that one of many buffers on each GPU may take.
fn room(snapshot: &Snapshot, wish: &Wish) -> u64 {
    let free = |gpu: &u32| {
        let gpu = snapshot.gpu(GpuIndex(*gpu))?;
        let used = gpu.memory_used_bytes.known().copied().unwrap_or(0);
        Some(gpu.memory_bytes.known()?.saturating_sub(used))
    };
    let smallest = wish.gpus.iter().filter_map(free).min();
    let smallest = smallest.unwrap_or(UNKNOWN_MEMORY) / if wish.shared { 4 } else { 1 };
    (smallest / SHARE / PAGE * PAGE).max(PAGE)
}

/// What the cases need of each buffer.
fn reserve(cases: &[Traffic], first: Option<u32>) -> Reserve {
    let mut need = Reserve::default();
    for case in cases
        .iter()
        .filter(|case| case.shape != Shape::FlagRoundTrip)
    {
        for gpu in case.gpus() {
            let into = |flow: &&Flow| flow.destination == Place::Gpu(gpu);
            let from = |flow: &&Flow| flow.source == Place::Gpu(gpu);
            let count = |n: usize| case.bytes.next_multiple_of(PAGE) * n.max(1) as u64;
            let slices = match case.shape {
                Shape::AllToAll => case.flows.iter().filter(from).count(),
                _ => 1,
            };
            need.source = need.source.max(count(slices));
            need.sink = need.sink.max(count(case.flows.iter().filter(into).count()));
            let host = |flow: &Flow| flow.source == Place::Host || flow.destination == Place::Host;
            if case.flows.iter().any(host) {
                let most = if Some(gpu) == first {
                    &mut need.first_host
                } else {
                    &mut need.host
                };
                *most = (*most).max(count(1));
            }
        }
    }
    need
}

struct Maker<'a> {
    snapshot: &'a Snapshot,
    wish: &'a Wish,
    access: &'a dyn Fn(u32, u32) -> bool,
    /// Bytes of a copy.
    usual: u64,
    /// Bytes of the longest one that fits alone.
    most: u64,
    cases: Vec<Traffic>,
    left_out: Vec<String>,
}

/// Copies in one sample: enough that start and end do not count, few enough to be queued behind the gate.
fn copies(executor: Executor, bytes: u64, flows: usize) -> u32 {
    let usual = match executor {
        Executor::Multiprocessors => 2,
        _ if flows > 2 => 2,
        _ => 4,
    };
    let small = (4 << 20) / bytes.max(1);
    usual.max(small.min(if flows > 2 { 8 } else { 32 }) as u32)
}

impl Maker<'_> {
    fn wants(&self, part: Part) -> bool {
        self.wish.parts.contains(&part)
    }

    fn add(
        &mut self,
        shape: Shape,
        (executor, way): (Executor, Way),
        streams: Streams,
        bytes: u64,
        flows: Vec<Flow>,
    ) {
        let count = flows.len();
        let (copies, unit) = match shape {
            Shape::SmallCopies => (SMALL_COPIES, Unit::Us),
            Shape::FlagRoundTrip => (ROUND_TRIPS, Unit::Us),
            _ => (copies(executor, bytes, count), Unit::GbPerS),
        };
        self.cases.push(Traffic {
            shape,
            executor,
            way,
            streams,
            bytes,
            copies,
            flows,
            unit,
            whole: Vec::new(),
            warmup: 0,
            outcome: Outcome::NotRun {
                reason: "not reached".to_string(),
            },
            caveats: Vec::new(),
            promised: None,
            expected: None,
        });
    }

    fn pairs(&self) -> Vec<OrderedPair> {
        let gpus = &self.wish.gpus;
        let all = gpus.iter().flat_map(|s| gpus.iter().map(move |d| (*s, *d)));
        all.filter_map(|(s, d)| OrderedPair::new(s, d)).collect()
    }

    /// Whether the side that works may reach the other one.
    fn reaches(&self, pair: OrderedPair, way: Way) -> bool {
        let (s, d) = (pair.source.0, pair.destination.0);
        match way {
            Way::Push => (self.access)(s, d),
            Way::Pull => (self.access)(d, s),
        }
    }

    fn singles(&mut self) {
        let (copies, shapes) = (self.wants(Part::Copies), self.wants(Part::Shapes));
        let (host, usual) = (Place::Host, self.usual);
        let single = |make: &mut Self, how, from, to| {
            let flow = vec![Flow::new(from, to)];
            make.add(Shape::OneWay, how, Streams::NonBlocking, usual, flow);
        };
        let engines = [Executor::CopyEngine, Executor::Multiprocessors];
        for gpu in self.wish.gpus.clone().into_iter().filter(|_| copies) {
            for executor in engines {
                single(self, (executor, Way::Pull), host, Place::Gpu(gpu));
                single(self, (executor, Way::Push), Place::Gpu(gpu), host);
            }
        }
        for pair in self.pairs().into_iter().filter(|_| copies || shapes) {
            let (from, to) = (Place::Gpu(pair.source.0), Place::Gpu(pair.destination.0));
            if !self.reaches(pair, Way::Push) && !self.reaches(pair, Way::Pull) {
                single(self, (Executor::Staged, Way::Push), from, to);
                continue;
            }
            for executor in engines {
                for way in [Way::Push, Way::Pull] {
                    let base = (executor, way) == (Executor::CopyEngine, Way::Push);
                    if self.reaches(pair, way) && (copies || base) {
                        single(self, (executor, way), from, to);
                    }
                }
            }
        }
    }

    /// Kinds of streams that a case is to run on.
    fn kinds(&self) -> &'static [Streams] {
        match self.wants(Part::Streams) {
            true => &Streams::ALL,
            false => &Streams::ALL[..1],
        }
    }

    /// The same flows on each kind of stream, by copy engines; by the driver where no flow is direct.
    fn on_each(&mut self, shape: Shape, flows: Vec<(u32, u32)>) {
        let direct: Vec<bool> = flows.iter().map(|(s, d)| (self.access)(*s, *d)).collect();
        let executor = match (direct.iter().all(|d| *d), direct.iter().any(|d| *d)) {
            (true, _) => Executor::CopyEngine,
            (false, false) => Executor::Staged,
            (false, true) => {
                let what = shape.words();
                self.left_out.push(format!(
                    "{what}: some of its pairs have peer access and some have not"
                ));
                return;
            }
        };
        let flow = |(s, d): &(u32, u32)| Flow::new(Place::Gpu(*s), Place::Gpu(*d));
        let flows: Vec<Flow> = flows.iter().map(flow).collect();
        for kind in self.kinds() {
            let how = (executor, Way::Push);
            self.add(shape, how, *kind, self.usual, flows.clone());
        }
        if self.wish.full && executor == Executor::CopyEngine && shape.is_concurrent() {
            let how = (Executor::Multiprocessors, Way::Push);
            self.add(shape, how, Streams::NonBlocking, self.usual, flows);
        }
    }

    fn both_directions(&mut self) {
        if !self.wants(Part::Copies) && !self.wants(Part::Streams) {
            return;
        }
        for gpu in self.wish.gpus.clone() {
            for kind in self.kinds() {
                let flows = vec![
                    Flow::new(Place::Host, Place::Gpu(gpu)),
                    Flow::new(Place::Gpu(gpu), Place::Host),
                ];
                let how = (Executor::CopyEngine, Way::Push);
                self.add(Shape::BothDirections, how, *kind, self.usual, flows);
            }
        }
        for pair in self.pairs() {
            let (s, d) = (pair.source.0, pair.destination.0);
            if s < d {
                self.on_each(Shape::BothDirections, vec![(s, d), (d, s)]);
            }
            if s < d
                && self.wish.full
                && self.reaches(pair, Way::Pull)
                && self.reaches(pair.reversed(), Way::Pull)
            {
                let flow = |s, d| Flow::new(Place::Gpu(s), Place::Gpu(d));
                for executor in [Executor::CopyEngine, Executor::Multiprocessors] {
                    let how = (executor, Way::Pull);
                    let flows = vec![flow(s, d), flow(d, s)];
                    let kind = Streams::NonBlocking;
                    self.add(Shape::BothDirections, how, kind, self.usual, flows);
                }
            }
        }
    }

    fn shapes(&mut self) {
        if !self.wants(Part::Shapes) && !self.wants(Part::Streams) {
            return;
        }
        let gpus = self.wish.gpus.clone();
        let others = |gpu: u32| gpus.iter().copied().filter(move |o| *o != gpu);
        if gpus.len() > 2 {
            for gpu in &gpus {
                self.on_each(Shape::OneToMany, others(*gpu).map(|o| (*gpu, o)).collect());
            }
            for gpu in &gpus {
                self.on_each(Shape::ManyToOne, others(*gpu).map(|o| (o, *gpu)).collect());
            }
            let next = gpus.iter().cycle().skip(1);
            let ring = gpus.iter().zip(next).map(|(s, d)| (*s, *d)).collect();
            self.on_each(Shape::Ring, ring);
            self.on_each(Shape::AllToAll, all_pairs(&gpus));
        }
        for group in GROUPS {
            if let Some(members) = gpus.get(..group) {
                self.on_each(Shape::AllGather, all_pairs(members));
            }
        }
        self.switch_shapes(&gpus);
    }

    /// Two GPUs below one switch write to GPUs behind one other root, and to GPUs behind two.
    fn switch_shapes(&mut self, gpus: &[u32]) {
        let mut switches: Vec<(PciAddress, Vec<u32>)> = Vec::new();
        for gpu in gpus {
            let Some(switch) = self.switch_of(*gpu) else {
                continue;
            };
            match switches.iter_mut().find(|(at, _)| *at == switch) {
                Some((_, members)) => members.push(*gpu),
                None => switches.push((switch, vec![*gpu])),
            }
        }
        let pair = switches.iter().find(|(_, members)| members.len() > 1);
        let Some((_, members)) = pair else {
            self.left_out.push(
                "one switch to one root and to two: no two of the GPUs are known to share a switch"
                    .to_string(),
            );
            return;
        };
        let (a, b) = match members.as_slice() {
            [a, b, ..] => (*a, *b),
            _ => return,
        };
        let own = self.root_of(a);
        let far: Vec<(u32, PciAddress)> = gpus
            .iter()
            .filter_map(|gpu| Some((*gpu, self.root_of(*gpu)?)))
            .filter(|(_, root)| Some(*root) != own)
            .collect();
        let partner = |same: bool| {
            far.iter().find_map(|(c, root)| {
                let other = far.iter().find(|(d, r)| d != c && (r == root) == same)?;
                Some((*c, other.0))
            })
        };
        for (shape, found) in [
            (Shape::SwitchToOneRoot, partner(true)),
            (Shape::SwitchToTwoRoots, partner(false)),
        ] {
            match found {
                Some((c, d)) => self.on_each(shape, vec![(a, c), (b, d)]),
                None => self.left_out.push(format!(
                    "{}: no such GPUs behind other roots",
                    shape.words()
                )),
            }
        }
    }

    /// The upstream port of the switch nearest to a GPU.
    fn switch_of(&self, gpu: u32) -> Option<PciAddress> {
        let chain = self.snapshot.gpu(GpuIndex(gpu))?.bridge_chain.known()?;
        chain.iter().copied().find(|at| {
            let bridge = self.snapshot.bridge(*at);
            bridge.is_some_and(|b| b.port == BridgePort::SwitchUpstream && !b.emulated)
        })
    }

    /// The root port above a GPU.
    fn root_of(&self, gpu: u32) -> Option<PciAddress> {
        let chain = self.snapshot.gpu(GpuIndex(gpu))?.bridge_chain.known()?;
        chain.last().copied()
    }

    fn curve(&mut self) {
        if !self.wants(Part::Curve) {
            return;
        }
        let Some(first) = self.wish.gpus.first().copied() else {
            return;
        };
        let sizes: &[u64] = if self.wish.full { &FULL_CURVE } else { &CURVE };
        let fitting: Vec<u64> = sizes.iter().copied().filter(|s| *s <= self.most).collect();
        if let Some(longest) = sizes.iter().filter(|s| **s > self.most).min() {
            self.left_out.push(format!(
                "the curve from {longest} bytes on: the smallest GPU has no room for it"
            ));
        }
        // One pair of each kind of path stands for the others.
        let mut seen = BTreeSet::new();
        let pairs = self.pairs().into_iter().filter(|pair| {
            let path = self.snapshot.topology.pairs.get(*pair);
            let label = path.map_or_else(|| "?".to_string(), |p| p.label());
            self.reaches(*pair, Way::Push) && seen.insert(label)
        });
        let pairs: Vec<OrderedPair> = pairs.collect();
        for bytes in fitting {
            let one = |make: &mut Self, how, from, to| {
                let flow = vec![Flow::new(from, to)];
                let known = |case: &Traffic| {
                    case.shape == Shape::OneWay
                        && case.bytes == bytes
                        && (case.executor, case.way) == how
                        && case.flows == flow
                };
                if !make.cases.iter().any(known) {
                    make.add(Shape::OneWay, how, Streams::NonBlocking, bytes, flow);
                }
            };
            let engine = Executor::CopyEngine;
            one(self, (engine, Way::Pull), Place::Host, Place::Gpu(first));
            one(self, (engine, Way::Push), Place::Gpu(first), Place::Host);
            for pair in &pairs {
                let (from, to) = (Place::Gpu(pair.source.0), Place::Gpu(pair.destination.0));
                one(self, (engine, Way::Push), from, to);
                one(self, (Executor::Multiprocessors, Way::Push), from, to);
                if self.wish.full && self.reaches(*pair, Way::Pull) {
                    one(self, (engine, Way::Pull), from, to);
                    one(self, (Executor::Multiprocessors, Way::Pull), from, to);
                }
            }
        }
    }

    fn latency(&mut self) {
        if !self.wants(Part::Latency) {
            return;
        }
        let kind = Streams::NonBlocking;
        for gpu in self.wish.gpus.clone() {
            let (host, gpu) = (Place::Host, Place::Gpu(gpu));
            for (way, from, to) in [(Way::Pull, host, gpu), (Way::Push, gpu, host)] {
                let how = (Executor::CopyEngine, way);
                self.add(
                    Shape::SmallCopies,
                    how,
                    kind,
                    SMALL,
                    vec![Flow::new(from, to)],
                );
            }
        }
        for pair in self.pairs() {
            let (from, to) = (Place::Gpu(pair.source.0), Place::Gpu(pair.destination.0));
            let both = self.reaches(pair, Way::Push) && self.reaches(pair, Way::Pull);
            let executor = match self.reaches(pair, Way::Push) {
                true => Executor::CopyEngine,
                false => Executor::Staged,
            };
            let how = (executor, Way::Push);
            self.add(
                Shape::SmallCopies,
                how,
                kind,
                SMALL,
                vec![Flow::new(from, to)],
            );
            // The way there and back is the same whoever begins.
            if both && (self.wish.full || pair.source < pair.destination) {
                let how = (Executor::Multiprocessors, Way::Push);
                let flows = vec![Flow::new(from, to), Flow::new(to, from)];
                self.add(Shape::FlagRoundTrip, how, kind, 4, flows);
            }
        }
    }
}

fn all_pairs(gpus: &[u32]) -> Vec<(u32, u32)> {
    let all = gpus.iter().flat_map(|s| gpus.iter().map(move |d| (*s, *d)));
    all.filter(|(s, d)| s != d).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        reading::Reading,
        snapshot::{Gpu, Origin},
    };

    fn host(gpus: u32, mib: u64) -> (Snapshot, Wish) {
        let mut snapshot = Snapshot::empty(Origin::Live);
        for _ in 0..gpus {
            snapshot.gpus.push(Gpu {
                memory_bytes: Reading::Known(mib << 20),
                ..Gpu::default()
            });
        }
        let wish = Wish {
            gpus: (0..gpus).collect(),
            parts: Part::ALL.to_vec(),
            full: false,
            shared: false,
            bytes: None,
        };
        (snapshot, wish)
    }

    fn count(plan: &Plan, shape: Shape, streams: Streams) -> usize {
        let cases = plan.cases.iter();
        cases
            .filter(|c| c.shape == shape && c.streams == streams)
            .count()
    }

    #[test]
    fn eight_gpus_get_every_pair_and_every_shape_on_every_kind_of_stream() {
        let (snapshot, wish) = host(8, 90_000);
        let plan = build(&snapshot, &wish, &|_, _| true);
        let pairs = |executor, way| {
            let cases = plan.cases.iter().filter(|c| c.shape == Shape::OneWay);
            let of = cases.filter(|c| (c.executor, c.way) == (executor, way) && c.bytes == USUAL);
            of.filter(|c| c.flows[0].pair().is_some()).count()
        };
        for executor in [Executor::CopyEngine, Executor::Multiprocessors] {
            assert_eq!(
                (pairs(executor, Way::Push), pairs(executor, Way::Pull)),
                (56, 56)
            );
        }
        for kind in Streams::ALL {
            // 28 pairs and 8 host links.
            assert_eq!(count(&plan, Shape::BothDirections, kind), 36);
            assert_eq!(count(&plan, Shape::OneToMany, kind), 8);
            assert_eq!(count(&plan, Shape::AllGather, kind), 3);
            assert_eq!(count(&plan, Shape::AllToAll, kind), 1);
        }
        assert_eq!(plan.reserve.sink, 7 * USUAL);
        assert_eq!(plan.reserve.source, 7 * USUAL);
    }

    #[test]
    fn small_gpus_get_small_copies_and_what_does_not_fit_is_said() {
        let (snapshot, mut wish) = host(2, 32);
        let plan = build(&snapshot, &wish, &|_, _| true);
        assert!(plan.cases.iter().all(|case| case.bytes <= 4 << 20));
        assert!(
            plan.left_out.iter().any(|l| l.contains("curve")),
            "{:?}",
            plan.left_out
        );
        assert!(plan.reserve.sink + plan.reserve.source <= 16 << 20);
        wish.bytes = Some(1 << 30);
        let plan = build(&snapshot, &wish, &|_, _| true);
        assert!(
            plan.left_out.iter().any(|l| l.contains("1073741824")),
            "{:?}",
            plan.left_out
        );
    }

    #[test]
    fn without_peer_access_the_driver_carries_everything() {
        let (snapshot, wish) = host(2, 24_000);
        let plan = build(&snapshot, &wish, &|_, _| false);
        let between = plan.cases.iter().filter(|c| c.flows[0].pair().is_some());
        assert!(between.clone().count() > 2);
        assert!(between.clone().all(|c| c.executor == Executor::Staged));
        assert_eq!(count(&plan, Shape::FlagRoundTrip, Streams::NonBlocking), 0);
    }
}
