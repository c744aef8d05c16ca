//! Each GPU by itself, before any pair is blamed: its memory, its host link both ways, and host memory as its kernels see it.
//! With one GPU the mechanisms across processes run, too, between two processes on it (`ranks`).

use super::{
    integrity::{self, Evidence},
    reduced, resident,
    seat::{Seat, SeatError},
    transfer::{Setting, limit},
    wire::Answer,
};
use crate::{
    gpu::{DeviceMemory, Event, Region, WaitError, kernels::Census},
    model::{
        case::{Case, Corruption, Outcome, PeerAccess, Sample},
        measurement::{Measurement, Unit},
    },
    words::{self, Key, Role, UNIT},
};
use std::time::{Duration, Instant};

/// Fill and verify of a large piece of the GPU's own memory.
pub const MEMORY: &str = "memory";
/// Host to device.
pub const HOST_WRITE: &str = "host-write";
/// Device to host.
pub const HOST_READ: &str = "host-read";
/// Loads and stores of pinned host memory by kernels.
pub const PINNED: &str = "pinned-host";

/// Two resident kernels that exchange payload and flag on one GPU.
pub const RESIDENT_SAME_GPU: &str = "resident-same-gpu";
/// Two ranks on one GPU add up their vectors.
pub const REDUCE_SAME_GPU: &str = "reduce-same-gpu";

/// All of them with their titles, in the order in which they run.
pub const ROSTER: [(&str, &str); 6] = [
    (MEMORY, "fill and verify of the GPU's own memory"),
    (HOST_WRITE, "copies from pinned host memory to the GPU"),
    (HOST_READ, "copies from the GPU to pinned host memory"),
    (PINNED, "kernels load and store pinned host memory"),
    (
        RESIDENT_SAME_GPU,
        "two resident kernels on this GPU exchange payload and flag",
    ),
    (
        REDUCE_SAME_GPU,
        "two ranks on this GPU reduce, by every algorithm in turn",
    ),
];

/// Number inside words: above all pair mechanisms.
fn number(id: &str) -> u8 {
    32 + ROSTER
        .iter()
        .position(|(known, _)| *known == id)
        .unwrap_or(31) as u8
}

/// Key of an attempt of a single-GPU case.
fn key(setting: &Setting, gpu: u32, mechanism: &str, attempt: u32) -> Key {
    Key {
        run: setting.run,
        source: gpu as u8,
        destination: gpu as u8,
        mechanism: number(mechanism),
        attempt: u16::from(setting.generation) << 8 | (attempt as u16 & 0xff),
        role: Role::Own,
    }
}

/// What a region should hold and what is wrong with it.
fn corruption(
    seat: &Seat,
    region: Region,
    key: Key,
    attempt: u32,
    limit: Duration,
) -> Result<Option<Corruption>, SeatError> {
    let judged = seat.judge(region, 0, key, limit)?;
    if judged.is_right() {
        return Ok(None);
    }
    let poison = Key {
        role: Role::Poison,
        ..key
    };
    let census = seat.classify(region, 0, (key, poison), limit)?;
    let first = super::examine::first_wrong(&census);
    let bytes = (64 << 10).min(region.bytes() - first.min(region.bytes()));
    let seen = match region.part(first, bytes) {
        Some(part) => seat.read_back(part, bytes, limit)?,
        None => Vec::new(),
    };
    let agree = (judged.kernel.wrong == 0) == (judged.host_wrong == 0);
    Ok(Some(conclude(
        &census,
        key,
        attempt,
        (first, &seen),
        Some(agree),
    )))
}

fn conclude(
    census: &Census,
    key: Key,
    attempt: u32,
    (first, seen): (u64, &[u8]),
    agree: Option<bool>,
) -> Corruption {
    let (kind, detail) = integrity::name(&Evidence {
        key,
        target: census,
        accessor_sees_right: None,
        spilled: None,
        guard_damage: 0,
        found_in: None,
    });
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let expected = words::stream(key.pack(), first / UNIT, seen.len());
    let samples = seen
        .chunks(16)
        .zip(expected.chunks(16))
        .enumerate()
        .filter(|(_, (seen, want))| seen != want);
    let counts = census.counts;
    let wrong = counts.poison
        + counts.zero
        + counts.ones
        + counts.few_bits
        + counts.displaced
        + counts.stale
        + counts.foreign
        + counts.unknown;
    Corruption {
        kind,
        detail,
        attempt,
        wrong_attempts: 1,
        attempts_ran: attempt,
        first_offset: first,
        last_offset: if wrong == 0 {
            0
        } else {
            (census.last_wrong + 1) * UNIT
        },
        wrong_units: wrong,
        units: wrong + counts.equal,
        counts,
        samples: samples
            .take(16)
            .map(|(unit, (seen, want))| Sample {
                offset: first + unit as u64 * UNIT,
                expected: hex(want),
                owner: hex(seen),
                accessor: None,
                reread: None,
                origin: None,
            })
            .collect(),
        accessor_sees_right: None,
        source_intact: None,
        owner_views_agree: agree,
    }
}

/// The result of one case: corruption if any, rate if measured.
type Found = (Option<Corruption>, Option<Measurement>);

/// Runs one single-GPU case.
pub fn run(setting: &Setting, seat: &Seat, case: &Case) -> Answer {
    let started = Instant::now();
    let result = match case.mechanism.as_str() {
        MEMORY => memory(setting, seat, case),
        HOST_WRITE => host_write(setting, seat, case),
        HOST_READ => host_read(setting, seat, case),
        PINNED => match seat.no_kernels() {
            None => pinned(setting, seat, case),
            Some(why) => return answer(case, why.outcome(), None, started, false),
        },
        REDUCE_SAME_GPU => return reduced::same_gpu(setting, seat, case),
        RESIDENT_SAME_GPU => {
            let (outcome, ran, retire) = resident::same_gpu(setting, seat, case);
            let mut answer = answer(case, outcome, None, started, retire);
            answer.attempts_ran = ran;
            return answer;
        }
        other => {
            let outcome = Outcome::NotRun {
                reason: format!("unknown single-GPU test '{other}'"),
            };
            return answer(case, outcome, None, started, false);
        }
    };
    conclude_answer(case, result, started)
}

/// The answer to a case of a GPU that was lost in an earlier one.
pub fn skipped(case: &Case) -> Answer {
    let reason = "this GPU hung or faulted in an earlier test of its own".to_string();
    answer(case, Outcome::NotRun { reason }, None, Instant::now(), true)
}

fn conclude_answer(case: &Case, result: Result<Found, SeatError>, started: Instant) -> Answer {
    match result {
        Ok((Some(corruption), rate)) => answer(
            case,
            Outcome::Corrupt(Box::new(corruption)),
            rate,
            started,
            false,
        ),
        Ok((None, rate)) => answer(case, Outcome::Intact, rate, started, false),
        Err(SeatError::Wait(WaitError::TimedOut(after))) => answer(
            case,
            Outcome::TimedOut {
                after_ms: after.as_millis() as u64,
            },
            None,
            started,
            true,
        ),
        Err(
            SeatError::Wait(WaitError::Driver(e))
            | SeatError::Start(super::mechanism::StartError::Driver(e)),
        ) => {
            let outcome = Outcome::Faulted {
                api: e.api.to_string(),
                code: e.code,
                name: e.name,
            };
            answer(case, outcome, None, started, true)
        }
        Err(other) => answer(
            case,
            Outcome::NotRun {
                reason: other.to_string(),
            },
            None,
            started,
            true,
        ),
    }
}

fn answer(
    case: &Case,
    outcome: Outcome,
    rate: Option<Measurement>,
    started: Instant,
    retire: bool,
) -> Answer {
    Answer {
        id: case.id,
        attempts_ran: if outcome.ran() { case.attempts } else { 0 },
        outcome,
        peer_access: PeerAccess::NotApplicable,
        executor: case.subject.to_string(),
        rate,
        took_ms: started.elapsed().as_secs_f64() * 1e3,
        notes: Vec::new(),
        retire,
        reductions: Vec::new(),
    }
}

fn memory(setting: &Setting, seat: &Seat, case: &Case) -> Result<Found, SeatError> {
    let room = DeviceMemory::new(&seat.context, case.bytes)?;
    let limit = limit(case.bytes, setting.factor);
    for attempt in 1..=case.attempts {
        let key = key(setting, seat.gpu, MEMORY, attempt);
        seat.fill(room.region(), 0, key, limit)?;
        seat.stream.wait(limit)?;
        if let Some(found) = corruption(seat, room.region(), key, attempt, limit)? {
            return Ok((Some(found), None));
        }
    }
    Ok((None, None))
}

/// Times `samples` runs of a copy queued by `queue`.
fn timed(
    seat: &Seat,
    bytes: u64,
    limit: Duration,
    mut queue: impl FnMut() -> Result<(), SeatError>,
) -> Result<Measurement, SeatError> {
    let (start, end) = (Event::new(&seat.context)?, Event::new(&seat.context)?);
    let mut samples = Vec::new();
    for round in 0..2 + super::plan::RATE_SAMPLES {
        seat.stream.record(&start)?;
        queue()?;
        seat.stream.record(&end)?;
        seat.stream.wait(limit)?;
        if round >= 2 {
            samples.push(bytes as f64 / 1e6 / start.elapsed_ms(&end)?.max(1e-6));
        }
    }
    let method = "events on a non-blocking stream, pinned memory, GPUs side by side".to_string();
    Ok(Measurement {
        samples,
        unit: Unit::GbPerS,
        warmup: 2,
        method,
        caveats: Vec::new(),
    })
}

fn host_write(setting: &Setting, seat: &Seat, case: &Case) -> Result<Found, SeatError> {
    let limit = limit(case.bytes, setting.factor);
    let mut host = crate::gpu::PinnedMemory::new(&seat.context, case.bytes as usize)?;
    let to = seat
        .source
        .region()
        .part(0, case.bytes)
        .ok_or(SeatError::Layout)?;
    for attempt in 1..=case.attempts {
        let key = key(setting, seat.gpu, HOST_WRITE, attempt);
        host.write(0, &words::stream(key.pack(), 0, case.bytes as usize));
        seat.fill(
            to,
            0,
            Key {
                role: Role::Poison,
                ..key
            },
            limit,
        )?;
        seat.stream.copy(to, host.region())?;
        seat.stream.wait(limit)?;
        if let Some(found) = corruption(seat, to, key, attempt, limit)? {
            return Ok((Some(found), None));
        }
    }
    Ok((
        None,
        Some(timed(seat, case.bytes, limit, || {
            Ok(seat.stream.copy(to, host.region())?)
        })?),
    ))
}

fn host_read(setting: &Setting, seat: &Seat, case: &Case) -> Result<Found, SeatError> {
    let limit = limit(case.bytes, setting.factor);
    let mut host = crate::gpu::PinnedMemory::new(&seat.context, case.bytes as usize)?;
    let from = seat
        .source
        .region()
        .part(0, case.bytes)
        .ok_or(SeatError::Layout)?;
    for attempt in 1..=case.attempts {
        let key = key(setting, seat.gpu, HOST_READ, attempt);
        let poison = Key {
            role: Role::Poison,
            ..key
        };
        host.write(0, &words::stream(poison.pack(), 0, case.bytes as usize));
        seat.fill(from, 0, key, limit)?;
        seat.stream.copy(host.region(), from)?;
        seat.stream.wait(limit)?;
        let seen = host.read(0, case.bytes as usize).ok_or(SeatError::Layout)?;
        if let Some(found) = host_corruption(&seen, key, attempt) {
            return Ok((Some(found), None));
        }
    }
    Ok((
        None,
        Some(timed(seat, case.bytes, limit, || {
            Ok(seat.stream.copy(host.region(), from)?)
        })?),
    ))
}

/// Judges bytes that the host holds.
fn host_corruption(seen: &[u8], key: Key, attempt: u32) -> Option<Corruption> {
    if seen == words::stream(key.pack(), 0, seen.len()) {
        return None;
    }
    let census = integrity::census(
        seen,
        0,
        key,
        Key {
            role: Role::Poison,
            ..key
        },
    );
    let first = super::examine::first_wrong(&census);
    let window = seen.get(first as usize..).unwrap_or_default();
    let window = window
        .get(..(64 << 10).min(window.len()))
        .unwrap_or_default();
    Some(conclude(&census, key, attempt, (first, window), None))
}

fn pinned(setting: &Setting, seat: &Seat, case: &Case) -> Result<Found, SeatError> {
    let limit = limit(case.bytes, setting.factor);
    let mut host = crate::gpu::PinnedMemory::new(&seat.context, case.bytes as usize)?;
    let device = seat
        .source
        .region()
        .part(0, case.bytes)
        .ok_or(SeatError::Layout)?;
    for attempt in 1..=case.attempts {
        // Stores: the kernel writes host memory, the host looks.
        let stored = key(setting, seat.gpu, PINNED, 2 * attempt);
        let poison = Key {
            role: Role::Poison,
            ..stored
        };
        host.write(0, &words::stream(poison.pack(), 0, case.bytes as usize));
        seat.fill(device, 0, stored, limit)?;
        seat.kernels()?
            .copy_store(&seat.stream, host.region(), device)
            .map_err(super::mechanism::StartError::from)?;
        seat.stream.wait(limit)?;
        let seen = host.read(0, case.bytes as usize).ok_or(SeatError::Layout)?;
        if let Some(found) = host_corruption(&seen, stored, attempt) {
            return Ok((Some(found), None));
        }
        // Loads: the host writes, the kernel reads into its own memory and its owner looks.
        let loaded = key(setting, seat.gpu, PINNED, 2 * attempt + 1);
        host.write(0, &words::stream(loaded.pack(), 0, case.bytes as usize));
        seat.fill(
            device,
            0,
            Key {
                role: Role::Poison,
                ..loaded
            },
            limit,
        )?;
        seat.kernels()?
            .copy_load(&seat.stream, device, host.region())
            .map_err(super::mechanism::StartError::from)?;
        seat.stream.wait(limit)?;
        if let Some(found) = corruption(seat, device, loaded, attempt, limit)? {
            return Ok((Some(found), None));
        }
    }
    Ok((None, None))
}
