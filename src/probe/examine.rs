//! One destination after one attempt: is it right, and if not, all the evidence that will be gone after the next poison.

use super::{
    integrity::{self, Evidence, Judged},
    seat::{Seat, SeatError},
};
use crate::{
    gpu::{
        Region,
        kernels::{Census, Mismatch},
    },
    model::case::{Corruption, Sample, WrongKind},
    words::{self, Key, Role, UNIT},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most samples kept of a corruption.
const SAMPLES: usize = 16;
/// How much of the target is read for samples, from the first wrong unit on.
pub(super) const SAMPLE_BYTES: u64 = 64 << 10;

/// Index of the first guard unit of each band.
const BEFORE: u64 = 0;
const AFTER: u64 = 1 << 32;
/// Shortest transfer that is looked for by its bytes: fewer are found anywhere by chance.
const TELLING: usize = 4;

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
        let rim = offset % UNIT;
        Some(Target {
            to: all.part(guard + offset, bytes)?,
            first: offset / UNIT,
            before: all.part(offset - rim, guard + rim)?,
            after: all.part(guard + offset + bytes, guard - UNIT)?,
        })
    }

    /// Queues poison and guards.
    pub fn poison(self, seat: &Seat, keys: Keys, limit: Duration) -> Result<(), SeatError> {
        seat.fill(self.before, BEFORE, keys.guard, limit)?;
        seat.fill(self.to, self.first, keys.poison, limit)?;
        seat.fill(self.after, AFTER, keys.guard, limit)
    }
}

/// What the owner found.
pub struct Found {
    judged: Judged,
    /// Guard units that are wrong, before and after.
    guards: [Mismatch; 2],
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
        let before = seat.verify(target.before, BEFORE, keys.guard, limit)?;
        let after = seat.verify(target.after, AFTER, keys.guard, limit)?;
        Ok(Found {
            judged,
            guards: [before, after],
        })
    }

    /// Whether all is as it should be.
    pub fn is_right(&self) -> bool {
        self.judged.is_right() && self.guards.iter().all(|band| band.wrong == 0)
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

/// The census of a wrong target, taken before views are asked for: they need to know where to look.
pub fn census(
    seat: &Seat,
    target: Target,
    keys: Keys,
    limit: Duration,
) -> Result<Census, SeatError> {
    let keyed = (keys.payload, keys.poison);
    seat.classify(target.to, target.first, keyed, limit)
}

/// Offset of the first wrong unit in a census, bytes.
pub fn first_wrong(census: &Census) -> u64 {
    let first = census.first_wrong();
    first.map_or(0, |unit| census.bytes_of(unit).0)
}

/// Names what is wrong and keeps the evidence.
pub fn conclude(
    seat: &Seat,
    (target, keys): (Target, Keys),
    (found, census): (&Found, &Census),
    views: &Views,
    limit: Duration,
) -> Result<Corruption, SeatError> {
    let (spilled, guard_damage) = around(seat, (target, keys), found, limit)?;
    let (kind, mut detail) = integrity::name(&Evidence {
        key: keys.payload,
        target: census,
        accessor_sees_right: views.accessor_sees_right,
        spilled,
        guard_damage,
        found_in: views.found_in,
    });
    let counts = census.counts;
    let wrong_units = census.wrong();
    let first_offset = first_wrong(census);
    let (samples, flips) = samples(seat, target, keys, first_offset, views, limit)?;
    if let (WrongKind::Flipped, Some(flips)) = (kind, flips) {
        detail = format!("{detail}: {flips}");
    }
    Ok(Corruption {
        kind,
        detail,
        attempt: 1,
        wrong_attempts: 1,
        attempts_ran: 1,
        first_offset,
        last_offset: match wrong_units {
            0 => 0,
            _ => census.bytes_of(census.last_wrong).1,
        },
        wrong_units,
        units: wrong_units + counts.equal,
        counts,
        samples,
        accessor_sees_right: views.accessor_sees_right,
        source_intact: views.source_intact,
        owner_views_agree: Some((found.judged.kernel.wrong == 0) == (found.judged.host_wrong == 0)),
    })
}

/// What the guard bands say: units with words of this transfer and how far away the farthest lies (negative: before the
/// target), and units that are damaged without naming it.
fn around(
    seat: &Seat,
    (target, keys): (Target, Keys),
    found: &Found,
    limit: Duration,
) -> Result<(Option<(u64, i64)>, u64), SeatError> {
    let mut spilled: Option<(u64, i64)> = None;
    let mut damage = 0;
    for (band, first, wrong) in [
        (target.before, BEFORE, found.guards[0]),
        (target.after, AFTER, found.guards[1]),
    ] {
        if wrong.wrong == 0 {
            continue;
        }
        let census = seat.classify(band, first, (keys.guard, keys.poison), limit)?;
        let ours = census.origins.iter().any(|o| o.key == keys.payload.pack());
        let reach = match (ours, first) {
            (true, BEFORE) => {
                let start = census.bytes_of(wrong.first).0;
                Some(start as i64 - band.bytes() as i64)
            }
            (true, _) => Some(census.bytes_of(wrong.last).1 as i64),
            (false, _) => short(seat, (target, keys), (band, wrong, &census), limit)?,
        };
        match reach {
            Some(reach) => {
                let (units, farthest) = spilled.unwrap_or((0, 0));
                let farther = reach.abs() > farthest.abs();
                spilled = Some((units + wrong.wrong, if farther { reach } else { farthest }));
            }
            None => damage += wrong.wrong,
        }
    }
    Ok((spilled, damage))
}

/// How far from its target a transfer without a whole unit lies in a damaged band, if it does. Its bytes name nothing, so
/// they are looked for as they are.
fn short(
    seat: &Seat,
    (target, keys): (Target, Keys),
    (band, wrong, census): (Region, Mismatch, &Census),
    limit: Duration,
) -> Result<Option<i64>, SeatError> {
    let bytes = target.to.bytes() as usize;
    if target.to.whole_units().1.bytes() > 0 || bytes < TELLING {
        return Ok(None);
    }
    let (start, end) = (
        census.bytes_of(wrong.first).0,
        census.bytes_of(wrong.last).1,
    );
    let length = (end - start).min(SAMPLE_BYTES);
    let part = band.part(start, length).ok_or(SeatError::Layout)?;
    let seen = seat.read_back(part, length, limit)?;
    let sent = words::part(keys.payload.pack(), target.first, target.to.skew(), bytes);
    let at = seen.windows(bytes).position(|window| window == sent);
    // Region by region the same number line: where in the destination buffer it lies, less where it belongs.
    let place = |region: Region| region.address().raw() as i64;
    Ok(at.map(|at| place(band) + start as i64 + at as i64 - place(target.to)))
}

/// Up to [`SAMPLES`] wrong units from `offset` on: expected, as the owner read it, as the accessor did, re-read; and which
/// bits of them differ, in words, where it is few.
fn samples(
    seat: &Seat,
    target: Target,
    keys: Keys,
    offset: u64,
    views: &Views,
    limit: Duration,
) -> Result<(Vec<Sample>, Option<String>), SeatError> {
    let bytes = SAMPLE_BYTES.min(target.to.bytes() - offset.min(target.to.bytes()));
    let Some(part) = target
        .to
        .part(offset, bytes)
        .filter(|part| part.bytes() > 0)
    else {
        return Ok((Vec::new(), None));
    };
    let seen = seat.read_back(part, bytes, limit)?;
    let again = seat.read_back(part, bytes, limit)?;
    let (skew, first) = (part.skew(), (target.to.skew() + offset) / UNIT);
    let expected = words::part(
        keys.payload.pack(),
        target.first + first,
        skew,
        bytes as usize,
    );
    let accessor = views.accessor_bytes.as_deref().unwrap_or_default();
    let (mut samples, flips) = differing((&seen, &again), (&expected, skew), offset, keys.payload);
    for sample in &mut samples {
        let at = (sample.offset - offset) as usize;
        let end = at + sample.owner.len() / 2;
        sample.accessor = accessor.get(at..end).map(hex);
    }
    Ok((samples, flips))
}

/// Up to [`SAMPLES`] units in which what the owner read differs from `expected`, which starts at a byte of a unit; `again`
/// is what it read later. The bytes begin at `offset` of the target. And which bits differ, in words.
pub(super) fn differing(
    (seen, again): (&[u8], &[u8]),
    (expected, skew): (&[u8], u64),
    offset: u64,
    payload: Key,
) -> (Vec<Sample>, Option<String>) {
    let (mut rows, mut flips, mut at) = (Vec::new(), Flips::default(), 0);
    for (own, want) in words::pieces(seen, skew).zip(words::pieces(expected, skew)) {
        let here = at..at + own.len();
        at = here.end;
        if own == want {
            continue;
        }
        // A rim starts inside its unit.
        flips.add((skew as usize + here.start) % UNIT as usize, own, want);
        if rows.len() == SAMPLES {
            continue;
        }
        let origin = integrity::named_at_any_skew(seen, here.start).and_then(|(_, key, index)| {
            let text = integrity::origin_text(Key::unpack(key)?, payload);
            Some(format!("{text}, offset {}", index * UNIT))
        });
        rows.push(Sample {
            offset: offset + here.start as u64,
            expected: hex(want),
            owner: hex(own),
            accessor: None,
            reread: again.get(here).map(hex),
            origin,
        });
    }
    (rows, flips.words())
}

/// Which bits of units differ.
#[derive(Default)]
struct Flips {
    /// Bits by their place in a unit, and whether they were seen set where they should be clear, and the reverse.
    bits: std::collections::BTreeMap<(usize, u32), [bool; 2]>,
}

impl Flips {
    fn add(&mut self, start: usize, seen: &[u8], want: &[u8]) {
        for (at, (seen, want)) in seen.iter().zip(want).enumerate() {
            for bit in (0..8).filter(|bit| (seen ^ want) >> bit & 1 == 1) {
                let ways = self.bits.entry((start + at, bit)).or_default();
                ways[usize::from(seen >> bit & 1)] = true;
            }
        }
    }

    /// Not more than eight are listed.
    fn words(&self) -> Option<String> {
        let way = |ways: &[bool; 2]| match ways {
            [true, true] => "set and cleared",
            [true, false] => "cleared",
            _ => "set",
        };
        let all = self.bits.iter();
        let list = all.map(|((byte, bit), ways)| format!("bit {bit} of byte {byte} {}", way(ways)));
        let list: Vec<String> = list.collect();
        match list.len() {
            0 => None,
            1 => Some(format!("always {}", list.join(", "))),
            2..=8 => Some(list.join(", ")),
            many => Some(format!("{many} different bits of the unit's 128")),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
