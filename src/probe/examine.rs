//! One destination after one attempt: is it right, and if not, all the evidence that will be gone after the next poison.

use super::{
    integrity::{self, Evidence, Judged},
    seat::{Seat, SeatError},
};
use crate::{
    gpu::{Region, kernels::Census},
    model::case::{Corruption, Sample},
    words::{self, Key, Role, UNIT},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most samples kept of a corruption.
const SAMPLES: usize = 16;
/// How much of the target is read for samples, from the first wrong unit on.
pub(super) const SAMPLE_BYTES: u64 = 64 << 10;

/// The keys of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// What must arrive.
    pub payload: Key,
    /// What the owner wrote to the target before.
    pub poison: Key,
    /// What the owner wrote around it.
    pub guard: Key,
}

impl Keys {
    /// Those of one attempt of a transfer between `ends` (source and destination GPU). The worker's generation is part of
    /// them, so that words of a predecessor are stale.
    pub fn of(run: u32, generation: u8, ends: (u8, u8), mechanism: u8, attempt: u32) -> Keys {
        let key = |role| Key {
            run,
            source: ends.0,
            destination: ends.1,
            mechanism,
            attempt: u16::from(generation) << 8 | (attempt as u16 & 0xff),
            role,
        };
        Keys {
            payload: key(Role::Payload),
            poison: key(Role::Poison),
            guard: key(Role::Guard),
        }
    }
}

/// A target inside a destination buffer, with its guard bands.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Where the payload must arrive.
    pub to: Region,
    /// Index of the payload's first unit.
    pub first: u64,
    /// The band before it.
    pub before: Region,
    /// The band after it.
    pub after: Region,
}

impl Target {
    /// The target at `offset` of a destination buffer with bands of `guard` bytes; `None` when it does not fit.
    pub fn of(all: Region, guard: u64, offset: u64, bytes: u64) -> Option<Target> {
        Some(Target {
            to: all.part(guard + offset, bytes)?,
            first: offset / UNIT,
            before: all.part(offset, guard)?,
            // A tail shorter than a unit leaves the guard starting at the next unit boundary.
            after: all.part(
                (guard + offset + bytes).next_multiple_of(UNIT),
                guard - UNIT,
            )?,
        })
    }

    /// Queues poison and guards.
    pub fn poison(self, seat: &Seat, keys: Keys, limit: Duration) -> Result<(), SeatError> {
        seat.fill(self.before, 0, keys.guard, limit)?;
        seat.fill(self.to, self.first, keys.poison, limit)?;
        seat.fill(self.after, 1 << 32, keys.guard, limit)
    }
}

/// What the owner found.
pub struct Found {
    judged: Judged,
    /// Guard units that are wrong, before and after.
    guards: [u64; 2],
}

impl Found {
    /// Looks at target and guards, as the owner.
    pub fn look(
        seat: &Seat,
        target: Target,
        keys: Keys,
        limit: Duration,
    ) -> Result<Found, SeatError> {
        let judged = seat.judge(target.to, target.first, keys.payload, limit)?;
        let before = seat.verify(target.before, 0, keys.guard, limit)?.wrong;
        let after = seat.verify(target.after, 1 << 32, keys.guard, limit)?.wrong;
        Ok(Found {
            judged,
            guards: [before, after],
        })
    }

    /// Whether all is as it should be.
    pub fn is_right(&self) -> bool {
        self.judged.is_right() && self.guards == [0, 0]
    }
}

/// What others than the owner can add.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Views {
    /// Whether the accessor reads its data back right.
    pub accessor_sees_right: Option<bool>,
    /// The accessor's bytes from the first wrong unit on.
    pub accessor_bytes: Option<Vec<u8>>,
    /// Whether the source still holds its words.
    pub source_intact: Option<bool>,
    /// Another GPU whose buffer holds words of this transfer.
    pub found_in: Option<u32>,
}

/// The census of a wrong target, taken before views are asked for: they need to know where to look. A tail shorter than
/// a unit names nothing; it is judged by comparison and counted as one unit.
pub fn census(
    seat: &Seat,
    target: Target,
    keys: Keys,
    limit: Duration,
) -> Result<Census, SeatError> {
    let keyed = (keys.payload, keys.poison);
    let mut census = seat.classify(target.to, target.first, keyed, limit)?;
    let whole = target.to.bytes() / UNIT;
    let tail = target.to.bytes() % UNIT;
    if let Some(part) = target.to.part(whole * UNIT, tail).filter(|_| tail > 0) {
        let seen = seat.read_back(part, tail, limit)?;
        integrity::count_tail(&mut census, whole, &seen, target.first + whole, keyed);
    }
    Ok(census)
}

/// Offset of the first wrong unit in a census, bytes.
pub fn first_wrong(census: &Census) -> u64 {
    census
        .first
        .iter()
        .skip(1)
        .flatten()
        .min()
        .copied()
        .unwrap_or(0)
        * UNIT
}

/// Names what is wrong and keeps the evidence.
pub fn conclude(
    seat: &Seat,
    (target, keys): (Target, Keys),
    (found, census): (&Found, &Census),
    views: &Views,
    limit: Duration,
) -> Result<Corruption, SeatError> {
    let mut spilled: Option<(u64, i64)> = None;
    let mut damage = 0;
    for (band, wrong, first) in [
        (target.before, found.guards[0], 0),
        (target.after, found.guards[1], 1 << 32),
    ] {
        if wrong == 0 {
            continue;
        }
        let band_census = seat.classify(band, first, (keys.guard, keys.poison), limit)?;
        let ours = band_census
            .origins
            .iter()
            .filter(|o| o.key == keys.payload.pack());
        let reach = |unit: u64| match first {
            0 => band.bytes() as i64 - (unit * UNIT) as i64,
            _ => ((unit + 1) * UNIT) as i64,
        };
        match ours.map(|o| reach(o.unit)).max() {
            Some(farthest) => {
                let (units, reach) = spilled.unwrap_or((0, 0));
                spilled = Some((units + wrong, reach.max(farthest)));
            }
            None => damage += wrong,
        }
    }
    let (kind, detail) = integrity::name(&Evidence {
        key: keys.payload,
        target: census,
        accessor_sees_right: views.accessor_sees_right,
        spilled,
        guard_damage: damage,
        found_in: views.found_in,
    });
    let counts = census.counts;
    let units = target.to.bytes().div_ceil(UNIT);
    let first_offset = first_wrong(census);
    let wrong_units = units - counts.equal.min(units);
    Ok(Corruption {
        kind,
        detail,
        attempt: 1,
        wrong_attempts: 1,
        attempts_ran: 1,
        first_offset,
        last_offset: if wrong_units == 0 {
            0
        } else {
            ((census.last_wrong + 1) * UNIT).min(target.to.bytes())
        },
        wrong_units,
        units,
        counts,
        samples: samples(seat, target, keys, first_offset, views, limit)?,
        accessor_sees_right: views.accessor_sees_right,
        source_intact: views.source_intact,
        owner_views_agree: Some((found.judged.kernel.wrong == 0) == (found.judged.host_wrong == 0)),
    })
}

/// Up to [`SAMPLES`] wrong units from `offset` on: expected, as the owner read it, as the accessor did, re-read.
fn samples(
    seat: &Seat,
    target: Target,
    keys: Keys,
    offset: u64,
    views: &Views,
    limit: Duration,
) -> Result<Vec<Sample>, SeatError> {
    let bytes = SAMPLE_BYTES.min(target.to.bytes() - offset.min(target.to.bytes()));
    let Some(part) = target
        .to
        .part(offset, bytes)
        .filter(|part| part.bytes() > 0)
    else {
        return Ok(Vec::new());
    };
    let seen = seat.read_back(part, bytes, limit)?;
    let again = seat.read_back(part, bytes, limit)?;
    let expected = words::stream(
        keys.payload.pack(),
        target.first + offset / UNIT,
        bytes as usize,
    );
    let accessor = views.accessor_bytes.as_deref().unwrap_or_default();
    let rows = seen
        .chunks(16)
        .zip(expected.chunks(16))
        .zip(again.chunks(16))
        .enumerate();
    Ok(rows
        .filter(|(_, ((seen, expected), _))| seen != expected)
        .take(SAMPLES)
        .map(|(unit, ((seen, expected), again))| Sample {
            offset: offset + unit as u64 * UNIT,
            expected: hex(expected),
            owner: hex(seen),
            accessor: accessor.get(unit * 16..unit * 16 + seen.len()).map(hex),
            reread: Some(hex(again)),
            origin: <[u8; 16]>::try_from(seen)
                .ok()
                .and_then(words::origin)
                .and_then(|(key, index)| {
                    let text = integrity::origin_text(Key::unpack(key)?, keys.payload);
                    Some(format!("{text}, offset {}", index * UNIT))
                }),
        })
        .collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
