//! Copies: which way one takes, what goes wrong on it, and how long it takes in modelled time.
use super::bytes::{flip, left_out};
use super::codes::*;
use super::context::{Context, Driver};
use super::engine::{Op, Stream, lock};
use super::memory::{Allocation, Kind as MemoryKind};
use super::stuck::stuck;
use super::timeline::Work;
use super::view::{count_nvlink, die, forever, mirror};
use crate::scenario::{Kind, Mechanism, Via};
use crate::topology::{Engine as Carrier, Route};
use crate::world::Flight;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

/// One end of a copy.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) addr: u64,
    pub(crate) allocation: Option<Arc<Allocation>>,
}

impl Place {
    /// An address that must lie in memory known to the driver.
    pub(crate) fn device(driver: &Driver, addr: u64, len: u64) -> Result<Self, Code> {
        let place = Self::any(driver, addr);
        match &place.allocation {
            Some(a) if a.holds(addr, len) => Ok(place),
            _ => Err(INVALID_VALUE),
        }
    }

    /// An address of any kind; unknown ones are taken as pageable host memory.
    pub(crate) fn any(driver: &Driver, addr: u64) -> Self {
        Self {
            addr,
            allocation: driver.memory.at(addr),
        }
    }

    /// GPU that owns the bytes; None: host memory.
    pub(crate) fn gpu(&self) -> Option<usize> {
        self.allocation.as_ref().and_then(|a| a.gpu)
    }
    fn via(&self) -> Via {
        self.allocation.as_ref().map_or(Via::NONE, |a| a.via())
    }
    fn allows(&self, gpu: usize, write: bool) -> bool {
        self.allocation
            .as_ref()
            .is_none_or(|a| a.allows(gpu, write))
    }
    fn physical(&self) -> u64 {
        self.allocation
            .as_ref()
            .map_or(0, |a| a.physical_at(self.addr))
    }
    /// The part of `len` bytes from here that lies in this range of the allocation.
    fn part(&self, range: &Range<u64>, len: usize) -> Range<usize> {
        let at = self.allocation.as_ref().map_or(0, |a| self.addr - a.base);
        let clamp = |end: u64| (end.saturating_sub(at) as usize).min(len);
        clamp(range.start)..clamp(range.end)
    }
    fn limit(&self) -> u64 {
        self.allocation
            .as_ref()
            .map_or(u64::MAX, |a| a.base + a.size)
    }
}

/// Content by source and destination.
type Carried = HashMap<(usize, usize), Vec<u8>>;

/// What each ordered pair carried last, kept only where some fault wants it.
static CARRIED: LazyLock<Mutex<Carried>> = LazyLock::new(Mutex::default);

struct Plan {
    source: Place,
    destination: Place,
    len: usize,
    /// GPU whose copy engine works.
    executor: usize,
    kinds: Vec<Kind>,
    /// The bytes that they are about.
    part: Range<usize>,
    /// Faults that are asked while it runs, because they want load.
    wait_for_load: Vec<usize>,
    work: Work,
    remember: bool,
    /// Content taken at submission, for pageable sources.
    taken: Option<Vec<u8>>,
}

/// Whether the executor reaches a place directly.
fn direct(driver: &Driver, context: &Context, place: &Place, write: bool) -> bool {
    match (place.gpu(), &place.allocation) {
        (Some(_), Some(a)) if a.access.is_some() => a.allows(context.gpu, write),
        (Some(g), Some(a)) => {
            driver.reaches(context.gpu, g)
                || (a.kind == MemoryKind::Imported && a.context == context.gpu)
        }
        _ => true,
    }
}

/// Submits a copy to a stream; the way follows from the places and from what the stream's context may reach. `named` are
/// the GPUs of the contexts that the call names for destination and source, where it names them: memory that says itself
/// who may reach it is then asked about them, and the copy is staged where the stream's own context is not among them.
/// A call that names none is refused in that case.
pub(crate) fn submit(
    driver: &'static Driver,
    stream: &Arc<Stream>,
    destination: Place,
    source: Place,
    len: usize,
    named: Option<(usize, usize)>,
) -> Result<Arc<Op>, Code> {
    let context = driver.context_of(stream.gpu);
    let (to, from) = named.unwrap_or((stream.gpu, stream.gpu));
    if !destination.allows(to, true) || !source.allows(from, false) {
        return Err(INVALID_VALUE);
    }
    for place in [&destination, &source] {
        if place
            .allocation
            .as_ref()
            .is_some_and(|a| !a.holds(place.addr, len as u64))
        {
            return Err(INVALID_VALUE);
        }
    }
    let topology = &driver.world.topology;
    let rates = &driver.world.scenario.rates;
    let via = source.via().and(destination.via());
    let mut lead = rates.copy_ns;
    let (mechanism, route) = match (source.gpu(), destination.gpu()) {
        (None, None) => (
            None,
            Route {
                links: Vec::new(),
                limit: 20.0,
            },
        ),
        (Some(s), None) => (Some(Mechanism::BounceD2h), topology.host_route(s, true)),
        (None, Some(d)) => (Some(Mechanism::BounceH2d), topology.host_route(d, false)),
        (Some(s), Some(d)) if s == d => (
            Some(Mechanism::Own),
            Route {
                limit: driver.world.scenario.gpu.memory_gbps,
                ..topology.peer_route(s, d, Carrier::Copy)
            },
        ),
        (Some(s), Some(d))
            if direct(driver, context, &source, false)
                && direct(driver, context, &destination, true) =>
        {
            let way = if context.gpu == d {
                Mechanism::CePull
            } else {
                Mechanism::CePush
            };
            if topology.nvlinks(s, d) > 0 {
                count_nvlink(driver, (s, d), len as u64);
            }
            (Some(way), topology.peer_route(s, d, Carrier::Copy))
        }
        (Some(s), Some(d)) => {
            lead += rates.staged_ns;
            (Some(Mechanism::Staged), topology.staged_route(s, d))
        }
    };
    let (mut kinds, mut wait_for_load) = (Vec::new(), Vec::new());
    let mut part = 0..len;
    if let Some(mechanism) = mechanism {
        for (i, fault) in driver
            .world
            .concerned(source.gpu(), destination.gpu(), mechanism, via)
        {
            let place = if destination.gpu().is_some() {
                &destination
            } else {
                &source
            };
            let remote = if destination.gpu() == Some(context.gpu) {
                &source
            } else {
                &destination
            };
            let hit = remote.part(&fault.part, len);
            let here = place.physical() + len as u64 > fault.min_offset
                && len as u64 >= fault.min_bytes
                && !hit.is_empty();
            if here && hit.len() < len {
                part = hit;
            }
            if here && fault.load > 0 {
                wait_for_load.push(i);
            } else if here && driver.world.strikes(i) {
                kinds.push(fault.kind.clone());
            }
        }
    }
    if kinds.contains(&Kind::Death) {
        die();
    }
    if kinds.contains(&Kind::Stuck) {
        stuck();
    }
    let hangs = kinds.contains(&Kind::Hang);
    let work = Work {
        lead_ns: lead,
        bytes: len as f64,
        links: route.links.into_iter().map(|l| (l, 1.0)).collect(),
        limit: route.limit,
        at_least_ns: 0,
        slow: slowness(&kinds),
        posted: (mechanism == Some(Mechanism::CePush))
            .then(|| destination.gpu().map(|d| topology.root_of(d)))
            .flatten(),
        crosses: !matches!(mechanism, None | Some(Mechanism::Own)),
    };
    // Pageable host memory is read before the call returns, as the driver does.
    let pageable = source.allocation.is_none();
    // SAFETY: the caller vouches for `len` readable bytes at a host address.
    let taken = pageable
        .then(|| unsafe { std::slice::from_raw_parts(source.addr as *const u8, len) }.to_vec());
    let remember = driver
        .world
        .faults
        .iter()
        .any(|f| matches!(f.kind, Kind::Stale | Kind::Misrouted { .. }));
    let to_pageable = destination.allocation.is_none();
    let ends = [source.gpu(), destination.gpu()];
    let plan = Plan {
        source,
        destination,
        len,
        executor: context.gpu,
        kinds,
        part,
        wait_for_load,
        work: work.clone(),
        remember,
        taken,
    };
    let op = stream.submit(
        &driver.engine,
        driver.order_copy(stream, ends),
        (!hangs).then_some(work),
        false,
        Box::new(move |_| plan.start(driver)),
    );
    driver.note_copy(stream, ends, &op);
    if to_pageable {
        driver.engine.wait_done(&op);
    }
    Ok(op)
}

/// By how much the faults slow a copy down.
fn slowness(kinds: &[Kind]) -> f64 {
    kinds.iter().fold(1.0_f64, |s, k| {
        if let Kind::Slow { factor } = k {
            s.max(*factor)
        } else {
            s
        }
    })
}

/// Lets a transfer be under way for its real time; the answer is how many others were at most.
pub(crate) fn dwell(driver: &Driver, at_most: Duration) -> u32 {
    let (begun, mut most) = (Instant::now(), 0);
    while begun.elapsed() < at_most {
        most = most.max(driver.world.others_under_way());
        std::thread::sleep(Duration::from_micros(500));
    }
    most
}

impl Plan {
    /// Performs the copy; the answer is work that differs from what was known at submission.
    fn start(mut self, driver: &'static Driver) -> Result<Option<Work>, Code> {
        let flight = self
            .work
            .crosses
            .then(|| Flight::start(driver.world))
            .flatten();
        if flight.is_some() {
            let others = dwell(driver, Flight::DWELL);
            for &i in &self.wait_for_load {
                let fault = &driver.world.faults[i];
                if others >= fault.load && driver.world.strikes(i) {
                    self.kinds.push(fault.kind.clone());
                }
            }
            if self.kinds.contains(&Kind::Death) {
                die();
            }
        }
        let work = (!self.wait_for_load.is_empty()).then(|| Work {
            slow: slowness(&self.kinds),
            ..self.work.clone()
        });
        self.perform(driver).map(|()| work)
    }

    fn perform(self, driver: &'static Driver) -> Result<(), Code> {
        let (from, to) = (self.source.addr, self.destination.addr);
        let pair = self
            .source
            .gpu()
            .zip(self.destination.gpu())
            .filter(|(s, d)| s != d);
        let looks_at_peer = self.source.gpu().is_some_and(|g| g != self.executor);
        if self.kinds.is_empty()
            && self.taken.is_none()
            && !self.remember
            && !(looks_at_peer && driver.world.faults.iter().any(|f| f.kind == Kind::Mirrored))
        {
            // SAFETY: both ranges were checked to lie in mappings that the places keep alive, or the caller vouches for
            // them (host memory).
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, self.len) };
            return Ok(());
        }
        let mut data = match self.taken {
            Some(ref data) => data.clone(),
            // SAFETY: checked range of a living mapping, or host memory that the caller vouches for.
            None => unsafe { std::slice::from_raw_parts(from as *const u8, self.len) }.to_vec(),
        };
        if looks_at_peer {
            mirror(self.executor).overlay(from, &mut data);
        }
        let mut before = None;
        let mut other = None;
        if let (true, Some(pair)) = (self.remember, pair) {
            let mut carried = lock(&CARRIED);
            other = carried
                .iter()
                .find(|(p, c)| **p != pair && !c.is_empty())
                .map(|(_, c)| c.clone());
            before = carried.insert(pair, data.clone());
        }
        // Pieces to write: where and what.
        let part = self.part.clone();
        let sound = [
            (to, data[..part.start].to_vec()),
            (to + part.end as u64, data[part.end..].to_vec()),
        ];
        let (to, len) = (to + part.start as u64, part.len());
        let of = |old: &Vec<u8>| {
            let old = old.get(part.start..).unwrap_or_default();
            old[..len.min(old.len())].to_vec()
        };
        let mut pieces: Vec<(u64, Vec<u8>)> = vec![(to, data[part.clone()].to_vec())];
        for kind in &self.kinds {
            match kind {
                Kind::Zeroed => pieces.iter_mut().for_each(|(_, d)| d.fill(0)),
                Kind::Ones => pieces.iter_mut().for_each(|(_, d)| d.fill(0xff)),
                Kind::Dropped => pieces.clear(),
                Kind::Mirrored => {
                    // A mirror is what the executor sees of another's memory: a pull has none, its target is its own.
                    if self.destination.gpu() != Some(self.executor) {
                        for (at, d) in pieces.drain(..) {
                            // SAFETY: the destination range was checked.
                            let under =
                                unsafe { std::slice::from_raw_parts(at as *const u8, d.len()) }
                                    .to_vec();
                            mirror(self.executor).put(at, &d, &under);
                        }
                    }
                }
                Kind::Stale => {
                    pieces.clear();
                    pieces.extend(before.as_ref().map(|old| (to, of(old))));
                }
                Kind::Misrouted { to: None } => {
                    pieces.clear();
                    pieces.extend(other.as_ref().map(|bytes| (to, of(bytes))));
                }
                Kind::Misrouted { to: Some(gpu) } => {
                    let all = driver.memory.snapshot();
                    let target = all
                        .iter()
                        .filter(|a| a.gpu == Some(*gpu))
                        .max_by_key(|a| a.size)
                        .map(|a| (a.base, a.size));
                    pieces = match (target, pieces.pop()) {
                        (Some((base, size)), Some((_, mut d))) => {
                            d.truncate(size as usize);
                            vec![(base, d)]
                        }
                        _ => Vec::new(),
                    };
                }
                Kind::Spilled { bytes } => {
                    let room = (self.destination.limit() - (to + len as u64)) as usize;
                    let more = (*bytes).min(room).min(len);
                    if let Some((_, d)) = pieces.first_mut() {
                        d.extend_from_within(..more);
                    }
                }
                Kind::Shifted { bytes } => {
                    for (at, d) in &mut pieces {
                        let k = (*bytes).min(d.len());
                        *at += k as u64;
                        d.truncate(d.len() - k);
                    }
                }
                Kind::Flipped { mask, every } => pieces
                    .iter_mut()
                    .for_each(|(_, d)| flip(d, 0, *mask, *every)),
                Kind::Partial { keep, hole } => {
                    let mut kept = Vec::new();
                    for (at, d) in pieces.drain(..) {
                        let cut = (*keep).min(d.len());
                        kept.push((at, d[..cut].to_vec()));
                        if left_out(*keep as u64, *keep, *hole)
                            && *hole > 0
                            && keep + hole < d.len()
                        {
                            kept.push((at + (keep + hole) as u64, d[keep + hole..].to_vec()));
                        }
                    }
                    pieces = kept;
                }
                Kind::Slow { .. }
                | Kind::Refusal { .. }
                | Kind::Death
                | Kind::Late { .. }
                | Kind::LostFlag => {}
                Kind::Hang => forever(),
                Kind::Stuck => stuck(),
                Kind::Sticky { code } => return Err(*code),
            }
        }
        for (at, d) in sound.into_iter().chain(pieces) {
            // SAFETY: every piece lies in the checked destination, in room left in its allocation, or in a whole
            // allocation that the registry holds.
            unsafe { std::ptr::copy(d.as_ptr(), at as *mut u8, d.len()) };
        }
        Ok(())
    }
}
