//! The checker is seen to fail: every kind of wrong is planted on one GPU and must be found and named by the same code
//! that judges pairs. A clean report of a checker that cannot fail proves nothing.

use super::{
    examine::{self, Found, Keys, Target, Views},
    seat::{Seat, SeatError},
    transfer::{Setting, limit},
};
use crate::{
    model::{
        case::WrongKind,
        report::{Plant, Selftest},
    },
    words::{self, Key, Role, UNIT},
};
use std::time::Duration;

/// Bytes of the planted target: whole units.
const BYTES: u64 = 64 << 10;
/// Offset and length of the other one, which starts and ends inside units.
const UNALIGNED: (u64, u64) = (4096 + 5, 4096 + 6);
/// By how many bytes the planted shift moves: not a whole unit.
const SHIFT: u64 = 20;

/// Plants all kinds on `seat`.
pub fn run(setting: &Setting, seat: &Seat) -> Result<Selftest, SeatError> {
    let limit = limit(BYTES, setting.factor);
    let room = seat.destination.region();
    let mut plants = Vec::new();
    for (offset, bytes, place) in [
        (0, BYTES, ""),
        (UNALIGNED.0, UNALIGNED.1, " (unaligned)"),
    ] {
        let target = Target::of(room, seat.guard(), offset, bytes).ok_or(SeatError::Layout)?;
        // A buffer at rest cannot be late.
        let kinds = WrongKind::ALL.into_iter().filter(|k| *k != WrongKind::Late);
        for kind in [None].into_iter().chain(kinds.map(Some)) {
            let mut plant = plant(setting, seat, target, kind, limit)?;
            plant.detail.push_str(place);
            plants.push(plant);
        }
        plants.push(vectors(setting, seat, target, limit)?);
    }
    Ok(Selftest {
        plants,
        device: format!(
            "{} {}",
            seat.context.device().pci,
            seat.context.device().name
        ),
    })
}

/// Fill by the kernel against the host's arithmetic: device and host speak of the same words.
fn vectors(
    setting: &Setting,
    seat: &Seat,
    target: Target,
    limit: Duration,
) -> Result<Plant, SeatError> {
    let key = keys(setting).payload;
    let (first, bytes) = ((1 << 38) + 3, target.to.bytes());
    seat.fill(target.to, first, key, limit)?;
    let seen = seat.read_back(target.to, bytes, limit)?;
    let same = seen == words::part(key.pack(), first, target.to.skew(), bytes as usize);
    Ok(Plant {
        planted: None,
        reported: (!same).then_some(WrongKind::Mixed),
        detail: format!(
            "{bytes} bytes written by the device equal the host's arithmetic: {same}"
        ),
    })
}

fn keys(setting: &Setting) -> Keys {
    let key = |role| Key {
        run: setting.run,
        source: 1,
        destination: 2,
        mechanism: 62,
        attempt: 7,
        role,
    };
    Keys {
        payload: key(Role::Payload),
        poison: key(Role::Poison),
        guard: key(Role::Guard),
    }
}

fn plant(
    setting: &Setting,
    seat: &Seat,
    target: Target,
    kind: Option<WrongKind>,
    limit: Duration,
) -> Result<Plant, SeatError> {
    let keys = keys(setting);
    let (skew, bytes) = (target.to.skew(), target.to.bytes());
    let other = |key: Key| words::part(key.pack(), target.first, skew, bytes as usize);
    let payload = other(keys.payload);
    let half = payload.len() / 2;
    let mut held = payload.clone();
    let mut views = Views {
        source_intact: Some(true),
        ..Views::default()
    };
    let mut beyond = None;
    match kind {
        None => {}
        Some(WrongKind::Zeroed) => held.fill(0),
        Some(WrongKind::Ones) => held.fill(0xff),
        Some(WrongKind::Dropped) => held = other(keys.poison),
        Some(WrongKind::Mirrored) => {
            held = other(keys.poison);
            // The accessor's own view: right words in its scratch, judged as a push's view is.
            let scratch = seat.scratch.region().part(skew, bytes);
            let scratch = scratch.ok_or(SeatError::Layout)?;
            seat.fill(scratch, target.first, keys.payload, limit)?;
            views.accessor_sees_right = Some(
                seat.verify(scratch, target.first, keys.payload, limit)?
                    .wrong
                    == 0,
            );
        }
        // Only a resident kernel can see it: `run` does not plant it here.
        Some(WrongKind::Late) => {}
        Some(WrongKind::Stale) => {
            held = other(Key {
                attempt: keys.payload.attempt - 1,
                ..keys.payload
            })
        }
        Some(WrongKind::Misrouted) => {
            held = other(Key {
                source: 3,
                ..keys.payload
            })
        }
        Some(WrongKind::Spilled) => {
            let end = skew + bytes;
            let unit = target.first + end / UNIT;
            beyond = Some(words::part(keys.payload.pack(), unit, end % UNIT, 256));
        }
        Some(WrongKind::Shifted) => {
            let poison = other(keys.poison);
            let rim = poison.get(..SHIFT as usize).unwrap_or_default();
            held = rim
                .iter()
                .chain(payload.iter().take(payload.len() - SHIFT as usize))
                .copied()
                .collect();
        }
        Some(WrongKind::Flipped) => {
            if let Some(byte) = held.get_mut(half) {
                *byte ^= 0x10;
            }
        }
        Some(WrongKind::Partial) => {
            if let Some(rest) = held.get_mut(half..) {
                rest.fill(0);
            }
        }
        Some(WrongKind::Mixed) => {
            held = other(keys.poison);
            if let Some(rest) = held.get_mut(half..) {
                rest.fill(0);
            }
        }
    }
    target.poison(seat, keys, limit)?;
    seat.stream.wait(limit)?;
    write(seat, target.to, &held, limit)?;
    if let Some(beyond) = beyond {
        let part = target
            .after
            .part(0, beyond.len() as u64)
            .ok_or(SeatError::Layout)?;
        write(seat, part, &beyond, limit)?;
    }
    let found = Found::look(seat, target, keys, limit)?;
    if found.is_right() {
        return Ok(Plant {
            planted: kind,
            reported: None,
            detail: "intact".to_string(),
        });
    }
    let census = examine::census(seat, target, keys, limit)?;
    let corruption = examine::conclude(seat, (target, keys), (&found, &census), &views, limit)?;
    Ok(Plant {
        planted: kind,
        reported: Some(corruption.kind),
        detail: corruption.detail,
    })
}

fn write(
    seat: &Seat,
    to: crate::gpu::Region,
    data: &[u8],
    limit: Duration,
) -> Result<(), SeatError> {
    let mut staging = crate::gpu::PinnedMemory::new(&seat.context, data.len())?;
    staging.write(0, data);
    seat.stream.copy(to, staging.region())?;
    Ok(seat.stream.wait(limit)?)
}
