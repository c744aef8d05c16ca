//! Pair cases on disjoint pairs, side by side: poison, transfer, look, attempt by attempt; and rates of single flows.

use super::{
    examine::{self, Found, Keys, Target, Views},
    loaded::BURST,
    mechanism::{self, AtomicsOn, Mechanism, Memory, Side, StartError, Transfer},
    seat::{Seat, SeatError},
    wire::Answer,
};
use crate::{
    gpu::{Event, Region, WaitError},
    model::{
        case::{Case, Corruption, Outcome, PeerAccess},
        measurement::{Measurement, Unit},
        pair::{GpuIndex, OrderedPair},
    },
    words::{self, UNIT},
};
use std::time::{Duration, Instant};

/// Rounds before a rate is measured.
const WARMUP: u32 = 2;

/// What all cases of a run share.
pub struct Setting<'a> {
    /// The worker's GPUs.
    pub seats: &'a [Seat],
    /// Run nonce.
    pub run: u32,
    /// Generation of this worker.
    pub generation: u8,
    /// By what deadlines are multiplied.
    pub factor: u32,
    /// Whether peer access was enabled in this worker.
    pub peer_access: bool,
    /// Whether to search other GPUs' buffers for lost words.
    pub search: bool,
}

/// Wall limit of one step over `bytes` bytes: two seconds and a slow link's time (0.2 GB/s), times the look-alike's
/// factor.
pub fn limit(bytes: u64, factor: u32) -> Duration {
    Duration::from_secs_f64((2.0 + bytes as f64 / 2e8) * f64::from(factor))
}

impl Setting<'_> {
    fn seat(&self, gpu: u32) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.gpu == gpu)
    }

    fn keys(&self, pair: OrderedPair, mechanism: u8, attempt: u32) -> Keys {
        let ends = (pair.source.0 as u8, pair.destination.0 as u8);
        Keys::of(self.run, self.generation, ends, mechanism, attempt)
    }
}

/// One case under way.
struct Lane<'a> {
    case: &'a Case,
    pair: OrderedPair,
    mechanism: &'static dyn Mechanism,
    source: &'a Seat,
    destination: &'a Seat,
    from: Region,
    target: Target,
    /// Of the attempt under way.
    keys: Keys,
    limit: Duration,
    started: Instant,
    ran: u32,
    corruption: Option<Corruption>,
    ended: Option<Outcome>,
    retire: bool,
    rate: Option<Measurement>,
}

impl<'a> Lane<'a> {
    fn open(setting: &'a Setting, case: &'a Case) -> Result<Lane<'a>, Outcome> {
        let not_run = |reason: &str| Outcome::NotRun {
            reason: reason.to_string(),
        };
        let pair = case
            .subject
            .pair()
            .ok_or_else(|| not_run("not a pair case"))?;
        let mechanism =
            mechanism::by_id(&case.mechanism).ok_or_else(|| not_run("unknown mechanism"))?;
        let (Some(source), Some(destination)) = (
            setting.seat(pair.source.0),
            setting.seat(pair.destination.0),
        ) else {
            return Err(not_run("a GPU of the pair is not open in this worker"));
        };
        let (executing, other) = match mechanism.side() {
            Side::Source => (source, destination),
            Side::Destination | Side::Host => (destination, source),
        };
        let without = match mechanism.side() {
            Side::Host => executing.no_kernels().or(other.no_kernels()),
            _ => executing.no_kernels(),
        };
        if let (true, Some(why)) = (mechanism.needs_kernels(), without) {
            return Err(why.outcome());
        }
        if mechanism.memory() == Memory::Pool {
            other.granted(executing.gpu)?;
        }
        let lacking = match mechanism.atomics_on() {
            Some(AtomicsOn::Peer) if !executing.context.advertises_atomics(&other.context) => {
                Some((executing.gpu, format!("memory of GPU{}", other.gpu)))
            }
            Some(AtomicsOn::Host) if !source.context.device().host_atomics => {
                Some((source.gpu, "host memory".to_string()))
            }
            _ => None,
        };
        if let Some((gpu, memory)) = lacking {
            let reason = format!("the driver advertises no native atomics of GPU{gpu} on {memory}");
            return Err(Outcome::NotApplicable { reason });
        }
        let from = source.source.region().part(case.offset, case.bytes);
        let room = destination.destination.region();
        let target = Target::of(room, destination.guard(), case.offset, case.bytes);
        let (Some(from), Some(target)) = (from, target) else {
            return Err(not_run("the case does not fit the worker's buffers"));
        };
        Ok(Lane {
            case,
            pair,
            mechanism,
            source,
            destination,
            from,
            target,
            keys: setting.keys(pair, mechanism::number(&case.mechanism), 0),
            limit: limit(case.bytes, setting.factor),
            started: Instant::now(),
            ran: 0,
            corruption: None,
            ended: None,
            retire: false,
            rate: None,
        })
    }

    fn transfer(&self) -> Transfer<'a> {
        let (executing, other) = match self.mechanism.side() {
            Side::Source => (self.source, self.destination),
            Side::Destination | Side::Host => (self.destination, self.source),
        };
        Transfer {
            executing,
            other: Some(other),
            from: self.from,
            to: self.target.to,
            first: self.target.first,
            keys: self.keys,
        }
    }

    /// Words of an attempt that no earlier one had.
    fn begin(&mut self, setting: &Setting) {
        let number = mechanism::number(&self.case.mechanism);
        let attempt = self.destination.next_attempt(self.pair.source.0, number);
        self.keys = setting.keys(self.pair, number, attempt);
    }

    fn live(&self, attempt: u32) -> bool {
        // A flow under load goes on for as long as the others do.
        self.ended.is_none() && (attempt <= self.case.attempts || self.case.load.is_some())
    }

    /// Queues the transfer: once, or under load several times back to back between two events.
    fn start(&self) -> Result<(), SeatError> {
        let transfer = self.transfer();
        if self.case.load.is_none() {
            return Ok(self.mechanism.start(&transfer)?);
        }
        let seat = transfer.executing;
        seat.stream.record(&seat.filled)?;
        for _ in 0..BURST {
            self.mechanism.start(&transfer)?;
        }
        Ok(seat.stream.record(&seat.emptied)?)
    }

    /// Keeps the rate of the burst that has just ended.
    fn take_rate(&mut self) -> Result<(), SeatError> {
        let seat = self.transfer().executing;
        if let (Some(rate), true) = (&mut self.rate, self.case.load.is_some()) {
            let ms = seat.filled.elapsed_ms(&seat.emptied)?;
            let bytes = self.case.bytes as f64 * f64::from(BURST);
            rate.samples.push(bytes / 1e6 / ms.max(1e-6));
        }
        Ok(())
    }

    /// Ends the case by an error of `stage`. A hang counts as this case's own only while its transfer was under way.
    fn fail(&mut self, error: SeatError, transferring: bool) {
        self.retire = true;
        self.ended = Some(failure(error, transferring));
    }

    fn answer(self, peer_access: bool) -> Answer {
        let outcome = match (self.ended, self.corruption) {
            // Corruption seen once outranks any later error.
            (_, Some(mut corruption)) => {
                corruption.attempts_ran = self.ran;
                Outcome::Corrupt(Box::new(corruption))
            }
            (Some(outcome), None) => outcome,
            (None, None) => Outcome::Intact,
        };
        Answer {
            id: self.case.id,
            outcome,
            peer_access: self.mechanism.memory().peer_access(peer_access),
            executor: self.mechanism.executor(self.pair),
            attempts_ran: self.ran,
            rate: self.rate,
            took_ms: self.started.elapsed().as_secs_f64() * 1e3,
            notes: Vec::new(),
            retire: self.retire,
            reductions: Vec::new(),
        }
    }
}

/// What an error makes of the case in whose step it came.
pub(super) fn failure(error: SeatError, transferring: bool) -> Outcome {
    match error {
        SeatError::Wait(WaitError::TimedOut(after)) if transferring => Outcome::TimedOut {
            after_ms: after.as_millis() as u64,
        },
        SeatError::Wait(WaitError::TimedOut(_)) => Outcome::NotRun {
            reason: "its GPUs did not answer before or after the transfer".to_string(),
        },
        SeatError::Wait(WaitError::Driver(error)) | SeatError::Start(StartError::Driver(error)) => {
            Outcome::Faulted {
                api: error.api.to_string(),
                code: error.code,
                name: error.name,
            }
        }
        SeatError::Start(StartError::CannotRun(reason)) => Outcome::NotRun { reason },
        SeatError::Layout => Outcome::NotRun {
            reason: error.to_string(),
        },
    }
}

/// Runs `cases` side by side and answers each.
pub fn run(setting: &Setting, cases: &[Case], mut emit: impl FnMut(Answer)) {
    let mut lanes = Vec::new();
    for case in cases {
        match Lane::open(setting, case) {
            Ok(lane) => lanes.push(lane),
            Err(outcome) => emit(unopened(case, outcome, setting.peer_access)),
        }
    }
    let most = lanes
        .iter()
        .map(|lane| lane.case.attempts)
        .max()
        .unwrap_or(0);
    for attempt in 1..=most {
        step(setting, &mut lanes, attempt, &|| {});
    }
    for mut lane in lanes {
        if lane.case.timed
            && lane.ended.is_none()
            && let Err(error) = time(setting, &mut lane)
        {
            lane.fail(error, true);
        }
        emit(lane.answer(setting.peer_access));
    }
}

/// The answer to a case that could not be begun.
pub(super) fn unopened(case: &Case, outcome: Outcome, peer_access: bool) -> Answer {
    Answer {
        id: case.id,
        outcome,
        peer_access: match peer_access {
            true => PeerAccess::Both,
            false => PeerAccess::Off,
        },
        executor: String::new(),
        attempts_ran: 0,
        rate: None,
        took_ms: 0.0,
        notes: Vec::new(),
        retire: false,
        reductions: Vec::new(),
    }
}

/// One flow of several at once: attempt after attempt for as long as `more` says, which is told how many were judged and
/// whether there will be another. `method` says how its rate is to be read; `meet` waits for the other flows, before each
/// transfer and once it is under way.
pub(super) fn flow(
    setting: &Setting,
    case: &Case,
    method: &str,
    meet: &dyn Fn(),
    mut more: impl FnMut(u32, bool) -> bool,
) -> Answer {
    let mut lane = match Lane::open(setting, case) {
        Ok(lane) => lane,
        Err(outcome) => {
            more(0, true);
            return unopened(case, outcome, setting.peer_access);
        }
    };
    lane.rate = Some(Measurement {
        samples: Vec::new(),
        unit: Unit::GbPerS,
        warmup: 0,
        method: method.to_string(),
        caveats: Vec::new(),
    });
    let mut attempt = 0;
    while more(attempt, lane.ended.is_some()) {
        attempt += 1;
        step(setting, std::slice::from_mut(&mut lane), attempt, meet);
    }
    lane.rate = lane.rate.filter(|rate| !rate.samples.is_empty());
    lane.answer(setting.peer_access)
}

/// One attempt of all live lanes.
fn step(setting: &Setting, lanes: &mut [Lane], attempt: u32, meet: &dyn Fn()) {
    // Owners poison, sources fill; then all of them must be done before the first byte crosses.
    for lane in lanes.iter_mut().filter(|lane| lane.live(attempt)) {
        lane.begin(setting);
        let keys = lane.keys;
        let prepared = lane
            .target
            .poison(lane.destination, keys, lane.limit)
            .and_then(|()| {
                lane.source
                    .fill(lane.from, lane.target.first, keys.payload, lane.limit)
            });
        if let Err(error) = prepared {
            lane.fail(error, false);
        }
    }
    if setting.search {
        poison_others(setting, lanes, attempt);
    }
    for lane in lanes.iter_mut().filter(|lane| lane.live(attempt)) {
        let waited = lane
            .source
            .stream
            .wait(lane.limit)
            .and_then(|()| lane.destination.stream.wait(lane.limit));
        if let Err(error) = waited {
            lane.fail(error.into(), false);
        }
    }
    meet();
    for lane in lanes.iter_mut().filter(|lane| lane.live(attempt)) {
        if let Err(error) = lane.start() {
            lane.fail(error, true);
        }
    }
    meet();
    for lane in lanes.iter_mut().filter(|lane| lane.live(attempt)) {
        let waited = lane.transfer().executing.stream.wait(lane.limit);
        if let Err(error) = waited
            .map_err(SeatError::from)
            .and_then(|()| lane.take_rate())
        {
            lane.fail(error, true);
        }
    }
    // A GPU whose stream hangs answers nobody: do not spend a limit on each of its other lanes.
    let hung: Vec<u32> = lanes
        .iter()
        .filter(|lane| matches!(lane.ended, Some(Outcome::TimedOut { .. })))
        .flat_map(|lane| [lane.source.gpu, lane.destination.gpu])
        .collect();
    for lane in lanes.iter_mut().filter(|lane| lane.live(attempt)) {
        if [lane.source.gpu, lane.destination.gpu]
            .iter()
            .any(|gpu| hung.contains(gpu))
        {
            lane.retire = true;
            let reason = "one of its GPUs hangs in a neighbour's transfer".to_string();
            lane.ended = Some(Outcome::NotRun { reason });
        }
    }
    for at in 0..lanes.len() {
        let Some(lane) = lanes.get_mut(at).filter(|lane| lane.live(attempt)) else {
            continue;
        };
        match look(setting, lane) {
            Ok(None) => lane.ran += 1,
            Ok(Some(mut corruption)) => {
                lane.ran += 1;
                match &mut lane.corruption {
                    Some(first) => first.wrong_attempts += 1,
                    None => {
                        corruption.attempt = attempt;
                        lane.corruption = Some(corruption);
                    }
                }
            }
            Err(error) => lane.fail(error, false),
        }
    }
}

/// The owner looks; when it is wrong, everybody else is asked.
fn look(setting: &Setting, lane: &Lane) -> Result<Option<Corruption>, SeatError> {
    let keys = lane.keys;
    let found = Found::look(lane.destination, lane.target, keys, lane.limit)?;
    if found.is_right() {
        return Ok(None);
    }
    let census = examine::census(lane.destination, lane.target, keys, lane.limit)?;
    let mut views = Views::default();
    let own = accessor_view(
        (lane.mechanism, &lane.transfer()),
        lane.case,
        keys,
        examine::first_wrong(&census),
        lane.limit,
    )?;
    if let Some((right, bytes)) = own {
        views.accessor_sees_right = Some(right);
        views.accessor_bytes = Some(bytes);
    }
    let source = lane
        .source
        .verify(lane.from, lane.target.first, keys.payload, lane.limit)?;
    views.source_intact = Some(source.wrong == 0);
    if setting.search {
        views.found_in = search_others(setting, lane)?;
    }
    let corruption = examine::conclude(
        lane.destination,
        (lane.target, keys),
        (&found, &census),
        &views,
        lane.limit,
    )?;
    Ok(Some(corruption))
}

/// The accessor's own view of a target, by the engine that wrote: whether it is right, and its bytes from `offset` on.
/// `None` where the mechanism has no such view.
pub(super) fn accessor_view(
    (mechanism, transfer): (&dyn Mechanism, &Transfer),
    case: &Case,
    keys: Keys,
    offset: u64,
    limit: Duration,
) -> Result<Option<(bool, Vec<u8>)>, SeatError> {
    let seat = transfer.executing;
    let scratch = seat.scratch.region().part(case.offset, case.bytes);
    let scratch = scratch.ok_or(SeatError::Layout)?;
    if !mechanism.view(transfer, scratch)? {
        return Ok(None);
    }
    seat.stream.wait(limit)?;
    let view = seat.verify(scratch, case.offset / UNIT, keys.payload, limit)?;
    let bytes = examine::SAMPLE_BYTES.min(scratch.bytes() - offset.min(scratch.bytes()));
    let seen = match scratch.part(offset, bytes) {
        Some(part) => seat.read_back(part, bytes, limit)?,
        None => Vec::new(),
    };
    Ok(Some((view.wrong == 0, seen)))
}

/// Writes guard words over the destination buffers of the other GPUs, so that lost words stand out there.
fn poison_others(setting: &Setting, lanes: &mut [Lane], attempt: u32) {
    for lane in lanes.iter_mut().filter(|lane| lane.live(attempt)) {
        let keys = lane.keys;
        for seat in others(setting, lane) {
            let whole = seat.destination.region();
            let limit = limit(whole.bytes(), setting.factor);
            let poisoned = seat
                .fill(whole, 0, keys.guard, limit)
                .and_then(|()| seat.stream.wait(limit).map_err(SeatError::from));
            if let Err(error) = poisoned {
                lane.fail(error, false);
                break;
            }
        }
    }
}

/// The GPU whose destination buffer holds words of this transfer, if one does, wherever in it they lie.
fn search_others(setting: &Setting, lane: &Lane) -> Result<Option<u32>, SeatError> {
    for seat in others(setting, lane) {
        let whole = seat.destination.region();
        let limit = limit(whole.bytes(), setting.factor);
        if holds_words(seat, whole, lane.case, lane.keys, limit)? {
            return Ok(Some(seat.gpu));
        }
    }
    Ok(None)
}

/// Whether a buffer that was filled with guard words holds words of a transfer, wherever in it they lie.
pub(super) fn holds_words(
    seat: &Seat,
    whole: Region,
    case: &Case,
    keys: Keys,
    limit: Duration,
) -> Result<bool, SeatError> {
    let changed = seat.verify(whole, 0, keys.guard, limit)?;
    if changed.wrong == 0 {
        return Ok(false);
    }
    let census = seat.classify(whole, 0, (keys.payload, keys.guard), limit)?;
    if census.counts.equal + census.counts.displaced > 0 {
        return Ok(true);
    }
    // A transfer without a whole unit names nothing.
    let part = whole.part(changed.first * UNIT, 2 * UNIT);
    let Some(part) = part.filter(|_| case.bytes < 2 * UNIT) else {
        return Ok(false);
    };
    let seen = seat.read_back(part, 2 * UNIT, limit)?;
    let (first, skew) = (case.offset / UNIT, case.offset % UNIT);
    let sent = words::part(keys.payload.pack(), first, skew, case.bytes as usize);
    Ok(seen.windows(sent.len()).any(|window| window == sent))
}

/// The GPUs that take no part in a case.
fn others<'a>(setting: &'a Setting, lane: &Lane) -> impl Iterator<Item = &'a Seat> + use<'a> {
    let subject = lane.case.subject;
    setting
        .seats
        .iter()
        .filter(move |seat| !subject.touches(GpuIndex(seat.gpu)))
}

/// Measures the rate of one flow, alone, and judges the content of the last copy.
fn time(setting: &Setting, lane: &mut Lane) -> Result<(), SeatError> {
    if !lane.mechanism.timed() {
        return Ok(());
    }
    lane.begin(setting);
    let keys = lane.keys;
    lane.target.poison(lane.destination, keys, lane.limit)?;
    lane.source
        .fill(lane.from, lane.target.first, keys.payload, lane.limit)?;
    lane.source.stream.wait(lane.limit)?;
    lane.destination.stream.wait(lane.limit)?;
    lane.rate = Some(rate(lane.mechanism, &lane.transfer(), lane.limit)?);
    if let Some(mut corruption) = look(setting, lane)? {
        corruption.attempt = lane.case.attempts + 1;
        lane.corruption.get_or_insert(corruption);
    }
    lane.ran += 1;
    Ok(())
}

/// Times a transfer over and over on the executing seat's stream.
pub(super) fn rate(
    mechanism: &dyn Mechanism,
    transfer: &Transfer,
    limit: Duration,
) -> Result<Measurement, SeatError> {
    let stream = &transfer.executing.stream;
    let (start, end) = (Event::new(stream.context())?, Event::new(stream.context())?);
    let mut samples = Vec::new();
    for round in 0..WARMUP + super::plan::RATE_SAMPLES {
        stream.record(&start)?;
        mechanism.start(transfer)?;
        stream.record(&end)?;
        stream.wait(limit)?;
        if round >= WARMUP {
            let ms = start.elapsed_ms(&end)?;
            // 1e9 bytes per second is 1e6 bytes per millisecond.
            samples.push(transfer.from.bytes() as f64 / 1e6 / ms.max(1e-6));
        }
    }
    Ok(Measurement {
        samples,
        unit: Unit::GbPerS,
        warmup: WARMUP,
        method: "events on a non-blocking stream, one flow alone".to_string(),
        caveats: Vec::new(),
    })
}
