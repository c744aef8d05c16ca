//! One case, timed: its flows are queued behind a gate, start together, and are timed by events of the devices. Knows flows,
//! streams and events; which cases there are, and what a rate means, it does not know.
//!
//! The gate stands on the stream of the first flow. Every other stream waits for the event behind it, so there is one start,
//! whatever the order of the launches; the first stream waits for the end of all others, so the last end is an event of the
//! same device as the start.

use super::{
    plan::{Patience, Reserve},
    stand::{POISON, Stand, key},
};
use crate::{
    ffi::driver::code,
    gpu::{Region, context::PeerChange, gate::Ended},
    model::{
        case::{Corruption, Outcome, UnitCounts, WrongKind},
        measurement::Unit,
        traffic::{Caveat, Executor, Place, Shape, Streams, Traffic, Way},
    },
    probe::{
        mechanism::StartError,
        seat::{Seat, SeatError},
        transfer::{self, Setting},
    },
    stats, words,
};
use std::time::{Duration, Instant};

/// Samples that are run and not kept.
const WARMUP: u32 = 2;
/// The gate opens by itself after this, by the GPU's clock: the host died, or the driver makes it wait for the device. What
/// follows is then queued without a gate.
const GATE_LIMIT: Duration = Duration::from_millis(500);
/// Samples agree when their median absolute deviation is this share of the median.
const AGREED: f64 = 0.004;
/// Bytes that are looked at in each of three places of a target.
const WINDOW: u64 = 4096;

/// What a case is run with.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Memory of the whole plan.
    pub reserve: Reserve,
    /// Time for one case.
    pub patience: Patience,
}

/// Where one flow runs.
struct Lane<'a> {
    executing: &'a Seat,
    other: Option<&'a Seat>,
    from: Region,
    to: Region,
    /// Owner of the words that it moves, and the first of them.
    words: (u32, u64),
    /// GPU whose host memory is its target, if one is.
    to_host: Option<u32>,
    /// Of the executing GPU's streams.
    stream: usize,
    /// Of the executing GPU's events: start and end.
    events: (usize, usize),
}

/// Milliseconds of one sample: the whole, and each flow.
type Sample = (f64, Vec<f64>);

/// Runs `case` and fills in what came of it.
pub fn run(setting: &Setting, stand: &mut Stand, mut case: Traffic, terms: &Terms) -> Traffic {
    let outcome = match case.shape {
        Shape::FlagRoundTrip => super::round_trip::run(setting, stand, &mut case, terms),
        _ => flows(setting, stand, &mut case, terms),
    };
    case.outcome = outcome.unwrap_or_else(|outcome| outcome);
    if !case.outcome.is_intact() {
        // No rate is taken of a transfer that is wrong.
        case.whole.clear();
        case.flows.iter_mut().for_each(|flow| flow.samples.clear());
    }
    case
}

/// Makes memory, and lets `executing` reach `other`.
pub(super) fn open(setting: &Setting, stand: &mut Stand, terms: &Terms) -> Result<(), Outcome> {
    let reserve = terms.reserve;
    let most = reserve.source.max(reserve.sink).max(reserve.first_host);
    let limit = transfer::limit(4 * most, setting.factor);
    stand
        .open((setting.seats, setting.run), reserve, limit)
        .map_err(|reason| Outcome::NotRun { reason })
}

/// Enables access, or says that the driver refuses it.
pub(super) fn reach(executing: &Seat, other: &Seat) -> Result<(), Outcome> {
    let refused = |error: crate::ffi::driver::DriverError| Outcome::Refused {
        api: error.api.to_string(),
        code: error.code,
        name: error.name,
    };
    match executing.context.enable_peer(&other.context) {
        Ok(PeerChange::Done | PeerChange::Already) => Ok(()),
        Ok(PeerChange::Refused(error)) if error.code == code::TOO_MANY_PEERS => {
            Err(Outcome::NotApplicable {
                reason: format!(
                    "GPU{} would need more peers at once than a GPU may have here ({error})",
                    executing.gpu
                ),
            })
        }
        Ok(PeerChange::Refused(error)) | Err(error) => Err(refused(error)),
    }
}

pub(super) fn seat<'a>(setting: &Setting<'a>, gpu: u32) -> Result<&'a Seat, Outcome> {
    let found = setting.seats.iter().find(|seat| seat.gpu == gpu);
    found.ok_or_else(|| Outcome::NotRun {
        reason: format!("GPU{gpu} is not open in this worker"),
    })
}

/// A defect of this program, as an outcome.
pub(super) fn misfit() -> Outcome {
    Outcome::NotRun {
        reason: SeatError::Layout.to_string(),
    }
}

fn failed(error: impl Into<SeatError>) -> Outcome {
    transfer::failure(error.into(), true)
}

fn flows(
    setting: &Setting,
    stand: &mut Stand,
    case: &mut Traffic,
    terms: &Terms,
) -> Result<Outcome, Outcome> {
    open(setting, stand, terms)?;
    let lanes = lanes(setting, stand, case)?;
    let limit = transfer::limit(
        case.bytes * u64::from(case.copies) * lanes.len() as u64,
        setting.factor,
    );
    poison(stand, &lanes, limit)?;
    let begun = Instant::now();
    let mut rounds = 0;
    // The driver may need the host to carry these, and would wait for it behind a gate.
    let mut gated = case.executor != Executor::Staged;
    loop {
        match sample(stand, case, (&lanes, gated), limit)? {
            None => {
                case.caveats.push(Caveat::GateExpired { samples: 1 });
                gated = false;
                continue;
            }
            Some((whole, each)) if rounds >= WARMUP => keep(case, whole, &each),
            Some(_) => {}
        }
        rounds += 1;
        case.warmup = rounds.min(WARMUP);
        if enough(&case.whole, terms.patience, begun.elapsed()) {
            break;
        }
    }
    let judged = rounds * case.copies;
    for lane in &lanes {
        if let Some(corruption) = look(setting, stand, lane, judged, limit)? {
            return Ok(Outcome::Corrupt(Box::new(corruption)));
        }
    }
    Ok(Outcome::Intact)
}

/// Whether more samples would say nothing new, or cost too much.
pub(super) fn enough(samples: &[f64], patience: Patience, took: Duration) -> bool {
    let count = samples.len() as u32;
    // A case that is slow beyond all measure must not hold up the others.
    let too_long = took > patience.time() * 25 && count > 0;
    let agreed = || {
        let middle = stats::median(samples).unwrap_or(0.0);
        stats::mad(samples).is_some_and(|off| off <= AGREED * middle)
    };
    count >= patience.most
        || too_long
        || (count >= patience.least && (took > patience.time() || agreed()))
}

fn keep(case: &mut Traffic, whole_ms: f64, each_ms: &[f64]) {
    let bytes = case.bytes as f64 * f64::from(case.copies);
    let rate = |bytes: f64, ms: f64| bytes / 1e6 / ms.max(1e-6);
    match case.unit {
        Unit::GbPerS => {
            let all = bytes * case.flows.len() as f64 / f64::from(case.receivers());
            case.whole.push(rate(all, whole_ms));
            for (flow, ms) in case.flows.iter_mut().zip(each_ms) {
                flow.samples.push(rate(bytes, *ms));
            }
        }
        Unit::Us => case.whole.push(whole_ms * 1e3 / f64::from(case.copies)),
        Unit::Ms => case.whole.push(whole_ms),
    }
}

/// Gives each flow its GPU, its buffers, its stream and its events.
fn lanes<'a>(
    setting: &Setting<'a>,
    stand: &mut Stand,
    case: &Traffic,
) -> Result<Vec<Lane<'a>>, Outcome> {
    let mut lanes: Vec<Lane<'a>> = Vec::new();
    let slice = case.bytes.next_multiple_of(WINDOW);
    for (at, flow) in case.flows.iter().enumerate() {
        let before = || case.flows.iter().take(at);
        let (from, to) = (flow.source, flow.destination);
        let (working, passive) = match (case.way, from, to) {
            (Way::Push, Place::Gpu(s), d) => (s, d.gpu()),
            (Way::Pull, s, Place::Gpu(d)) => (d, s.gpu()),
            // Between GPU and host it is the GPU that works.
            (_, Place::Host, Place::Gpu(gpu)) | (_, Place::Gpu(gpu), Place::Host) => (gpu, None),
            _ => return Err(misfit()),
        };
        let executing = seat(setting, working)?;
        let other = passive.map(|gpu| seat(setting, gpu)).transpose()?;
        if let (Some(other), true) = (other, case.executor != Executor::Staged) {
            reach(executing, other)?;
        }
        let number = before().filter(|f| f.destination == to).count() as u64;
        let offset = match case.shape {
            Shape::AllToAll => before().filter(|f| f.source == from).count() as u64 * slice,
            _ => 0,
        };
        let desk = |gpu: u32| stand.desk(gpu).ok_or_else(misfit);
        let host = |gpu: u32| desk(gpu)?.host.as_ref().ok_or_else(misfit);
        let (source, words) = match from {
            Place::Gpu(gpu) => (desk(gpu)?.source.region(), (gpu, offset / words::UNIT)),
            Place::Host => (host(working)?.0.region(), (working, 0)),
        };
        let target = match to {
            Place::Gpu(gpu) => desk(gpu)?.sink.region().part(number * slice, case.bytes),
            Place::Host => host(working)?.1.region().part(0, case.bytes),
        };
        let source = source.part(offset, case.bytes);
        let (Some(from), Some(target)) = (source, target) else {
            return Err(misfit());
        };
        let mine = lanes.iter().filter(|l| l.executing.gpu == working).count();
        lanes.push(Lane {
            executing,
            other,
            from,
            to: target,
            words,
            to_host: (to == Place::Host).then_some(working),
            stream: mine,
            // The first two of each GPU are for the whole.
            events: (2 + 2 * mine, 3 + 2 * mine),
        });
    }
    for lane in &lanes {
        let count = lanes
            .iter()
            .filter(|l| l.executing.gpu == lane.executing.gpu)
            .count();
        let desk = stand.desk_mut(lane.executing.gpu).ok_or_else(misfit)?;
        desk.equip(lane.executing, count, 2 + 2 * count)
            .map_err(failed)?;
    }
    Ok(lanes)
}

/// Overwrites the targets, so that what never arrives is seen.
fn poison(stand: &mut Stand, lanes: &[Lane], limit: Duration) -> Result<(), Outcome> {
    for lane in lanes {
        match (lane.to_host, lane.other) {
            (Some(gpu), _) => {
                let desk = stand.desk_mut(gpu).ok_or_else(misfit)?;
                if let Some((_, target)) = &mut desk.host {
                    for (offset, bytes) in windows(lane.to.bytes()) {
                        target.write(offset as usize, &vec![POISON; bytes as usize]);
                    }
                }
            }
            (None, _) => {
                let owner = owner(lane);
                owner.stream.set_bytes(lane.to, POISON).map_err(failed)?;
                owner.stream.wait(limit).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// The GPU that owns a lane's target: the executing one of a pull, the other one of a push.
fn owner<'a>(lane: &Lane<'a>) -> &'a Seat {
    match lane.other {
        Some(other) if lane.words.0 == lane.executing.gpu => other,
        _ => lane.executing,
    }
}

/// Queues everything behind the gate, opens it, and waits. Nothing where the gate gave up.
fn sample(
    stand: &mut Stand,
    case: &mut Traffic,
    (lanes, gated): (&[Lane], bool),
    limit: Duration,
) -> Result<Option<Sample>, Outcome> {
    let Some(first) = lanes.first() else {
        return Err(misfit());
    };
    let lead = first.executing.gpu;
    stand.desk_mut(lead).ok_or_else(misfit)?.reset();
    let queued = queue(stand, case, lanes, gated);
    let desk = stand.desk(lead).ok_or_else(misfit)?;
    // Whatever happened: nothing may be left waiting.
    desk.unlock();
    let gated = queued.map_err(failed)?;
    if !gated && !case.caveats.contains(&Caveat::HostIncluded) {
        case.caveats.push(Caveat::HostIncluded);
    }
    let stream = desk.stream(case.streams, 0).ok_or_else(misfit)?;
    stream.wait(limit).map_err(failed)?;
    let opened = desk
        .report()
        .is_some_and(|report| report.ended == Ended::Done);
    if gated && !opened {
        return Ok(None);
    }
    let between = |gpu: u32, (start, end): (usize, usize)| -> Result<f64, Outcome> {
        let desk = stand.desk(gpu).ok_or_else(misfit)?;
        match (desk.event(start), desk.event(end)) {
            (Some(start), Some(end)) => start.elapsed_ms(end).map_err(failed),
            _ => Err(misfit()),
        }
    };
    let whole = between(lead, (0, 1))?;
    let each = lanes
        .iter()
        .map(|lane| between(lane.executing.gpu, lane.events));
    Ok(Some((whole, each.collect::<Result<_, _>>()?)))
}

/// Queues one sample; whether a gate stands before it.
fn queue(stand: &Stand, case: &Traffic, lanes: &[Lane], gated: bool) -> Result<bool, SeatError> {
    let desk = |lane: &Lane| stand.desk(lane.executing.gpu).ok_or(SeatError::Layout);
    let stream = |lane: &Lane| {
        let stream = desk(lane)?.stream(case.streams, lane.stream);
        stream.ok_or(SeatError::Layout)
    };
    let event = |lane: &Lane, number: usize| desk(lane)?.event(number).ok_or(SeatError::Layout);
    let first = lanes.first().ok_or(SeatError::Layout)?;
    let lead = stream(first)?;
    let gated = match gated {
        true => desk(first)?
            .close(lead, GATE_LIMIT)
            .map_err(StartError::from)?,
        false => false,
    };
    lead.record(event(first, 0)?)?;
    // Default streams are one for each GPU: several lanes share it.
    let own = |at: usize, lane: &Lane| {
        let same = |l: &&Lane| {
            l.executing.gpu == lane.executing.gpu
                && (l.stream == lane.stream || case.streams != Streams::NonBlocking)
        };
        !lanes.iter().take(at).any(|l| same(&l))
    };
    for (at, lane) in lanes.iter().enumerate().skip(1) {
        if own(at, lane) {
            stream(lane)?.wait_event(event(first, 0)?)?;
        }
    }
    for lane in lanes {
        stream(lane)?.record(event(lane, lane.events.0)?)?;
    }
    // In turns, as concurrent work comes in.
    for copy in 1..=case.copies {
        for lane in lanes {
            move_once(case, lane, stream(lane)?)?;
            if copy == case.copies {
                stream(lane)?.record(event(lane, lane.events.1)?)?;
            }
        }
    }
    for lane in lanes.iter().skip(1) {
        lead.wait_event(event(lane, lane.events.1)?)?;
    }
    lead.record(event(first, 1)?)?;
    Ok(gated)
}

fn move_once(case: &Traffic, lane: &Lane, stream: &crate::gpu::Stream) -> Result<(), SeatError> {
    match (case.executor, lane.other) {
        (Executor::Staged, Some(other)) => {
            let (to, from) = match case.way {
                Way::Push => (&other.context, &lane.executing.context),
                Way::Pull => (&lane.executing.context, &other.context),
            };
            Ok(stream.copy_peer((lane.to, to), (lane.from, from))?)
        }
        (Executor::CopyEngine | Executor::Staged, _) => Ok(stream.copy(lane.to, lane.from)?),
        (Executor::Multiprocessors, _) => {
            let kernels = lane.executing.kernels()?;
            // Its stores cross the link, or its loads do.
            let stores = lane.to_host.is_some() || (lane.other.is_some() && case.way == Way::Push);
            let queued = match stores {
                true => kernels.copy_store(stream, lane.to, lane.from),
                false => kernels.copy_load(stream, lane.to, lane.from),
            };
            Ok(queued.map_err(StartError::from)?)
        }
    }
}

/// Begin, middle and end of a target.
fn windows(bytes: u64) -> Vec<(u64, u64)> {
    if bytes <= 3 * WINDOW {
        return vec![(0, bytes)];
    }
    let last = (bytes - WINDOW) / words::UNIT * words::UNIT;
    let middle = last / 2 / words::UNIT * words::UNIT;
    vec![(0, WINDOW), (middle, WINDOW), (last, bytes - last)]
}

/// Looks whether the last copy arrived: the owner reads three places of the target by a copy of its own.
fn look(
    setting: &Setting,
    stand: &Stand,
    lane: &Lane,
    attempts: u32,
    limit: Duration,
) -> Result<Option<Corruption>, Outcome> {
    let packed = key(setting.run, lane.words.0).pack();
    let mut counts = UnitCounts::default();
    let (mut first, mut last) = (None, 0);
    for (offset, bytes) in windows(lane.to.bytes()) {
        let seen = match lane.to_host {
            Some(gpu) => {
                let host = stand.desk(gpu).and_then(|desk| desk.host.as_ref());
                host.and_then(|(_, target)| target.read(offset as usize, bytes as usize))
            }
            None => {
                let part = lane.to.part(offset, bytes).ok_or_else(misfit)?;
                Some(owner(lane).read_back(part, bytes, limit).map_err(failed)?)
            }
        };
        let seen = seen.ok_or_else(misfit)?;
        let at = lane.words.1 + offset / words::UNIT;
        let expected = words::part(packed, at, 0, bytes as usize);
        let units = words::pieces(&seen, 0).zip(words::pieces(&expected, 0));
        for (number, (is, should)) in units.enumerate() {
            let all = |byte: u8| is.iter().all(|b| *b == byte);
            let class = match () {
                () if is == should => &mut counts.equal,
                () if all(POISON) => &mut counts.poison,
                () if all(0) => &mut counts.zero,
                () if all(0xff) => &mut counts.ones,
                () => &mut counts.unknown,
            };
            *class += 1;
            if is != should {
                let place = offset + number as u64 * words::UNIT;
                first.get_or_insert(place);
                last = place + words::UNIT;
            }
        }
    }
    let Some(first_offset) = first else {
        return Ok(None);
    };
    let wrong = counts.poison + counts.zero + counts.ones + counts.unknown;
    let kind = match () {
        () if counts.poison == wrong => WrongKind::Dropped,
        () if counts.zero == wrong => WrongKind::Zeroed,
        () if counts.ones == wrong => WrongKind::Ones,
        () => WrongKind::Mixed,
    };
    Ok(Some(Corruption {
        kind,
        detail: format!(
            "{wrong} of {} units that were looked at after the last timed copy are wrong; 'peerproof qualify' says what became of them",
            wrong + counts.equal
        ),
        attempt: attempts,
        wrong_attempts: 1,
        attempts_ran: attempts,
        first_offset,
        last_offset: last,
        wrong_units: wrong,
        units: wrong + counts.equal,
        counts,
        samples: Vec::new(),
        accessor_sees_right: None,
        source_intact: None,
        owner_views_agree: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        least: 5,
        most: 9,
        millis: 40,
    };

    #[test]
    fn sampling_ends_when_samples_agree_or_time_is_up() {
        let short = Duration::from_millis(1);
        assert!(!enough(&[10.0; 4], PATIENCE, short));
        assert!(enough(&[10.0; 5], PATIENCE, short));
        let apart = [10.0, 12.0, 9.0, 11.0, 10.5];
        assert!(!enough(&apart, PATIENCE, short));
        assert!(enough(&apart, PATIENCE, Duration::from_millis(41)));
        assert!(enough(
            &[10.0, 20.0, 10.0, 20.0, 10.0, 20.0, 10.0, 20.0, 5.0],
            PATIENCE,
            short
        ));
        assert!(!enough(&[], PATIENCE, Duration::from_secs(60)));
        assert!(enough(&[1.0], PATIENCE, Duration::from_secs(60)));
    }

    #[test]
    fn a_target_is_looked_at_in_its_begin_middle_and_end() {
        assert_eq!(windows(16), [(0, 16)]);
        let of = windows(1 << 20);
        assert_eq!(of.first(), Some(&(0, WINDOW)));
        assert_eq!(of.last().map(|(at, bytes)| at + bytes), Some(1 << 20));
        assert!(of.iter().all(|(at, _)| at % words::UNIT == 0));
    }
}
