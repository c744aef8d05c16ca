//! From units that differ to a kind of wrong. Knows words and counts; refuses to know causes.

use crate::{
    gpu::kernels::{Census, Mismatch, Origin},
    model::case::{UnitCounts, WrongKind},
    words::{self, Key, Role, UNIT},
};

/// Windows that the host reads of a large region: as many, of this size, first and last included.
const WINDOWS: u64 = 8;
/// Bytes of a window, and four times the size up to which a region is read whole.
const WINDOW_BYTES: u64 = 64 << 10;

/// What the owner saw of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// By its kernel.
    pub kernel: Mismatch,
    /// Wrong units in what its device-to-host copies brought.
    pub host_wrong: u64,
}

impl Judged {
    /// Whether both views are right.
    pub fn is_right(self) -> bool {
        self.kernel.wrong == 0 && self.host_wrong == 0
    }
}

/// Offsets and lengths that the host reads of a region of `bytes` bytes: all of it when small, else evenly spread
/// windows with both ends.
pub fn windows(bytes: u64) -> Vec<(u64, u64)> {
    if bytes <= 4 * WINDOW_BYTES {
        return vec![(0, bytes)];
    }
    let last = bytes - WINDOW_BYTES.min(bytes);
    (0..WINDOWS)
        .map(|n| (last * n / (WINDOWS - 1) / UNIT * UNIT, WINDOW_BYTES))
        .collect()
}

/// The host twin of `peerproof_classify`: whole units of `data`, which starts at unit `first`.
pub fn census(data: &[u8], first: u64, key: Key, poison: Key) -> Census {
    let (expected, poisoned) = (key.pack(), poison.pack());
    let mut counts = [0u64; 9];
    let mut lowest = [None; 9];
    let (mut last_wrong, mut shift, mut origins) = (0, None::<(i64, i64)>, Vec::new());
    for (at, unit) in data.as_chunks::<16>().0.iter().enumerate() {
        let at = at as u64;
        let want = words::unit(expected, first + at);
        let apart = (u128::from_le_bytes(*unit) ^ u128::from_le_bytes(want)).count_ones();
        let class = if apart == 0 {
            0
        } else if *unit == words::unit(poisoned, first + at) {
            1
        } else if unit.iter().all(|b| *b == 0) {
            2
        } else if unit.iter().all(|b| *b == 0xff) {
            3
        } else if apart <= 8 {
            4
        } else if let Some((skew, named, index)) = named_at_any_skew(data, at as usize * 16) {
            if origins.len() < 16 {
                origins.push(Origin {
                    unit: at,
                    skew,
                    key: named,
                    index,
                });
            }
            if named == expected {
                let moved = ((first + at) * UNIT + skew) as i64 - (index * UNIT) as i64;
                shift = Some(shift.map_or((moved, moved), |(low, high)| {
                    (moved.min(low), moved.max(high))
                }));
                5
            } else if (named ^ expected) & Key::RUN_MASK != 0
                || (named ^ expected) & Key::TRANSFER_MASK == 0
            {
                6
            } else {
                7
            }
        } else {
            8
        };
        if let (Some(count), Some(low)) = (counts.get_mut(class), lowest.get_mut(class)) {
            *count += 1;
            low.get_or_insert(at);
        }
        if class != 0 {
            last_wrong = at;
        }
    }
    let [
        equal,
        poison,
        zero,
        ones,
        few_bits,
        displaced,
        stale,
        foreign,
        unknown,
    ] = counts;
    Census {
        counts: UnitCounts {
            equal,
            poison,
            zero,
            ones,
            few_bits,
            displaced,
            stale,
            foreign,
            unknown,
        },
        first: lowest,
        last_wrong,
        shift,
        origins,
        extent: (0, data.len() as u64 / UNIT * UNIT),
    }
}

/// Places the census of a region's whole units in the region: `lead` units come before them, and the region starts at a
/// byte of its first unit and has a length, `extent`.
pub fn place(census: &mut Census, lead: u64, extent: (u64, u64)) {
    census.extent = extent;
    for unit in census.first.iter_mut().flatten() {
        *unit += lead;
    }
    for origin in &mut census.origins {
        origin.unit += lead;
    }
    if census.wrong() > 0 {
        census.last_wrong += lead;
    }
}

/// Bytes below which a rim is not compared with what others sent: too few bits to tell.
const TELLING: usize = 4;
/// How far around its place a rim without whole units beside it is looked for, bytes.
const NEAR: i64 = 64;

/// Counts the part of a unit that lies at the rim of a region as unit `at` of `census`: bytes from byte `skew` of unit
/// `index` on. They name nothing and are judged by comparison with the words cut to their length: first with what befell
/// the whole units beside them, because few bytes can look like anything.
pub fn count_rim(
    census: &mut Census,
    at: u64,
    (index, skew): (u64, u64),
    seen: &[u8],
    (key, poison): (Key, Key),
) {
    let cut = |key: u64| words::part(key, index, skew, seen.len());
    // The same stream, from `shift` bytes before.
    let moved = |shift: i64| {
        let from = (index * UNIT + skew) as i64 - shift;
        (from >= 0).then(|| {
            let from = from as u64;
            words::part(key.pack(), from / UNIT, from % UNIT, seen.len())
        })
    };
    let apart: u32 = seen
        .iter()
        .zip(cut(key.pack()))
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    let counts = census.counts;
    let telling = seen.len() >= TELLING;
    let whole = counts.equal + census.wrong() > 0;
    let of = |origin: &Origin| (seen == cut(origin.key)).then_some(*origin);
    let beside = census.origins.iter().find_map(of);
    let mut origin = |key: Key| {
        let key = key.pack();
        let unit = at;
        census.origins.push(Origin {
            unit,
            skew,
            key,
            index,
        });
    };
    let stale = |named: u64| {
        (named ^ key.pack()) & Key::RUN_MASK != 0 || (named ^ key.pack()) & Key::TRANSFER_MASK == 0
    };
    let shifted = |shift: &i64| *shift != 0 && moved(*shift).is_some_and(|moved| moved == seen);
    let class = if apart == 0 {
        0
    } else if let Some(origin) = beside.filter(|origin| origin.key != key.pack()) {
        if stale(origin.key) { 6 } else { 7 }
    } else if counts.displaced > 0
        && let Some((low, high)) = census.shift
        && (shifted(&low) || shifted(&high))
    {
        5
    } else if counts.few_bits > 0 && apart <= 8 {
        4
    } else if seen == cut(poison.pack()) {
        1
    } else if seen.iter().all(|b| *b == 0) {
        2
    } else if seen.iter().all(|b| *b == 0xff) {
        3
    } else if apart <= (seen.len() as u32 / 2).max(2) {
        4
    } else if let Some(key) = earlier(key).find(|key| seen == cut(key.pack())) {
        origin(key);
        6
    } else if let Some(shift) = (-NEAR..=NEAR)
        .filter(|_| telling && !whole)
        .find(|shift| shifted(shift))
    {
        census.shift = Some((shift, shift));
        5
    } else if let Some(key) = others(key).find(|key| telling && seen == cut(key.pack())) {
        origin(key);
        7
    } else {
        8
    };
    let counts = &mut census.counts;
    let count = match class {
        0 => &mut counts.equal,
        1 => &mut counts.poison,
        2 => &mut counts.zero,
        3 => &mut counts.ones,
        4 => &mut counts.few_bits,
        5 => &mut counts.displaced,
        6 => &mut counts.stale,
        7 => &mut counts.foreign,
        _ => &mut counts.unknown,
    };
    *count += 1;
    if let Some(first) = census.first.get_mut(class) {
        *first = Some(first.map_or(at, |first| first.min(at)));
    }
    if class != 0 {
        census.last_wrong = census.last_wrong.max(at);
    }
}

/// The same transfer's earlier attempts in this worker, the latest first.
fn earlier(key: Key) -> impl Iterator<Item = Key> {
    (1..key.attempt & 0xff).rev().map(move |attempt| Key {
        attempt: key.attempt & 0xff00 | attempt,
        ..key
    })
}

/// The same attempt of all other pairs.
fn others(key: Key) -> impl Iterator<Item = Key> {
    let ends = (0..64).flat_map(|source| (0..64).map(move |destination| (source, destination)));
    ends.filter(move |(source, destination)| {
        source != destination && (*source, *destination) != (key.source, key.destination)
    })
    .map(move |(source, destination)| Key {
        source,
        destination,
        ..key
    })
}

/// Packed key, index and skew of the unit that starts at byte `at` of `data`, or inside the 15 bytes after it.
pub(super) fn named_at_any_skew(data: &[u8], at: usize) -> Option<(u64, u64, u64)> {
    (0..16).find_map(|skew| {
        let window = data.get(at + skew..)?.first_chunk::<16>()?;
        words::origin(*window).map(|(key, index)| (skew as u64, key, index))
    })
}

/// What is known of one wrong attempt.
pub struct Evidence<'a> {
    /// Its key.
    pub key: Key,
    /// Census of the target.
    pub target: &'a Census,
    /// Whether the accessor reads its data back right, where it has a view.
    pub accessor_sees_right: Option<bool>,
    /// Words of this transfer found in the guard bands: units, and how far outside the target the farthest lies, bytes.
    pub spilled: Option<(u64, i64)>,
    /// Guard units that are wrong without naming this transfer.
    pub guard_damage: u64,
    /// Another GPU whose buffer holds words of this transfer.
    pub found_in: Option<u32>,
}

/// Names the kind of wrong, and one sentence of particulars.
pub fn name(evidence: &Evidence) -> (WrongKind, String) {
    let counts = &evidence.target.counts;
    let wrong = evidence.target.wrong();
    let total = counts.equal + wrong;
    let outside = |reach: i64| {
        let side = if reach < 0 { "before" } else { "after" };
        format!("up to {} bytes {side} the target", reach.abs())
    };
    let classes = [
        (counts.zero, WrongKind::Zeroed, "zero"),
        (counts.ones, WrongKind::Ones, "all ones"),
        (counts.poison, WrongKind::Dropped, "as the owner left them"),
        (counts.few_bits, WrongKind::Flipped, "off by a few bits"),
        (
            counts.displaced,
            WrongKind::Shifted,
            "from another offset of this transfer",
        ),
        (
            counts.stale,
            WrongKind::Stale,
            "of an earlier attempt or run",
        ),
        (counts.foreign, WrongKind::Misrouted, "of another transfer"),
        (counts.unknown, WrongKind::Mixed, "of no known origin"),
    ];
    if wrong == 0 {
        return match evidence.spilled {
            Some((units, reach)) => (
                WrongKind::Spilled,
                format!(
                    "target right, but {units} units of it also lie {}",
                    outside(reach)
                ),
            ),
            None if evidence.guard_damage > 0 => (
                WrongKind::Spilled,
                format!(
                    "target right, but {} guard units around it were overwritten",
                    evidence.guard_damage
                ),
            ),
            None => (
                WrongKind::Mixed,
                "kernel and host copy of the owner disagree, target right now".to_string(),
            ),
        };
    }
    if evidence.accessor_sees_right == Some(true) {
        let held = classes
            .iter()
            .max_by_key(|class| class.0)
            .map_or("", |class| class.2);
        let detail = format!(
            "the writer reads its own data back, but {wrong} of {total} units at the owner are {held}"
        );
        return (WrongKind::Mirrored, detail);
    }
    if let Some(gpu) = evidence.found_in {
        return (
            WrongKind::Misrouted,
            format!("its words arrived in memory of GPU{gpu} instead"),
        );
    }
    // A shift leaves a rim of poison at one end: the bulk decides.
    if let Some((low, high)) = evidence.target.shift
        && low == high
        && counts.displaced * 2 > wrong
        && counts.zero + counts.ones + counts.foreign + counts.stale + counts.unknown <= wrong / 8
    {
        return (
            WrongKind::Shifted,
            format!(
                "{} of {total} units lie {low:+} bytes from where they belong",
                counts.displaced
            ),
        );
    }
    if let Some((units, reach)) = evidence.spilled {
        // Moved so far that the target saw nothing of it.
        let kind = match counts.poison == total {
            true => WrongKind::Shifted,
            false => WrongKind::Spilled,
        };
        return (kind, format!("{units} units lie {}", outside(reach)));
    }
    // Where a transfer stopped inside a unit, that one is half of this and half of that, or lacks a byte or two only; and a rim
    // may be too short to tell.
    let halves = counts.unknown + counts.few_bits;
    let torn = halves > 0 && halves <= 3 && wrong >= 8 * halves;
    let half = |kind| matches!(kind, WrongKind::Mixed | WrongKind::Flipped);
    let present: Vec<_> = classes
        .iter()
        .filter(|class| class.0 > 0 && !(torn && half(class.1)))
        .collect();
    let [(count, kind, words)] = present.as_slice() else {
        let parts: Vec<String> = present
            .iter()
            .map(|(count, _, words)| format!("{count} {words}"))
            .collect();
        return (
            WrongKind::Mixed,
            format!("of {total} units: {}", parts.join(", ")),
        );
    };
    let origin = evidence
        .target
        .origins
        .first()
        .and_then(|o| Key::unpack(o.key));
    let (kind, words) = match (kind, origin) {
        // Older words of the way back between the same two GPUs: what this path carried before, not what it carries for others.
        (WrongKind::Misrouted, Some(origin)) if went_before(origin, evidence.key) => (
            &WrongKind::Stale,
            &"of an earlier transfer between the same two GPUs",
        ),
        _ => (kind, words),
    };
    let detail = match kind {
        WrongKind::Stale | WrongKind::Misrouted => origin.map_or_else(String::new, |origin| {
            format!(": {}", origin_text(origin, evidence.key))
        }),
        WrongKind::Shifted => match evidence.target.shift {
            Some((low, high)) => format!(", displaced by {low:+} to {high:+} bytes"),
            None => String::new(),
        },
        _ => String::new(),
    };
    let detail = match torn {
        true => format!("{detail}, {halves} half so"),
        false => detail,
    };
    let sentence = format!("{count} of {total} units are {words}{detail}");
    match kind {
        // A few bits here and there are flips however few units they hit; displaced units without one shift are a mix.
        WrongKind::Flipped => (WrongKind::Flipped, sentence),
        WrongKind::Shifted => (WrongKind::Mixed, sentence),
        kind if counts.equal == 0 => (*kind, sentence),
        _ => (
            WrongKind::Partial,
            format!(
                "{} of {total} units are right, {count} are {words}{detail}, {}",
                counts.equal,
                extent(evidence.target)
            ),
        ),
    }
}

/// Whether `found` is poison of an earlier attempt of the same mechanism in the other direction of the pair of `expected`: what
/// the writer's look through its own window brought over this path before. Payload of the way back never went this way.
fn went_before(found: Key, expected: Key) -> bool {
    let back = (found.source, found.destination) == (expected.destination, expected.source);
    let same_worker = (found.run, found.attempt >> 8) == (expected.run, expected.attempt >> 8);
    back && found.role == Role::Poison
        && found.mechanism == expected.mechanism
        && same_worker
        && found.attempt & 0xff < expected.attempt & 0xff
}

/// From where to where the wrong units lie.
fn extent(census: &Census) -> String {
    let (first, last) = (census.first_wrong().unwrap_or(0), census.last_wrong);
    let (start, end) = (census.bytes_of(first).0, census.bytes_of(last).1);
    match last + 1 - first == census.wrong() {
        true => format!("bytes {start} to {end}"),
        false => format!("scattered over bytes {start} to {end}"),
    }
}

/// What a key says, relative to the one that was expected.
pub fn origin_text(found: Key, expected: Key) -> String {
    if found.run != expected.run {
        return "words of another run".to_string();
    }
    let role = match found.role {
        Role::Payload => "payload",
        Role::Poison => "poison",
        Role::Guard => "guard",
        Role::Own => "single-GPU test",
    };
    if let Some(exchange) = super::resident::of_number(found.mechanism) {
        let (source, destination, round) = (found.source, found.destination, found.attempt);
        return format!("{role} of {source}->{destination} by {exchange}, round {round}");
    }
    let mechanism = super::mechanism::ROSTER
        .get(usize::from(found.mechanism))
        .map_or("another test", |m| m.id());
    let (source, destination, attempt) = (found.source, found.destination, found.attempt & 0xff);
    // The upper half of an attempt counts workers, the lower one goes on from case to case.
    let when = match (expected.attempt & 0xff).checked_sub(attempt) {
        _ if found.attempt >> 8 != expected.attempt >> 8 => " in another worker".to_string(),
        Some(1) => ", the one before".to_string(),
        Some(ago @ 2..) => format!(", {ago} before this one"),
        _ => String::new(),
    };
    format!("{role} of {source}->{destination} by {mechanism}, attempt {attempt}{when}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(attempt: u16, role: Role) -> Key {
        Key {
            run: 77,
            source: 0,
            destination: 1,
            mechanism: 2,
            attempt,
            role,
        }
    }

    fn judged(change: impl FnOnce(&mut Vec<u8>)) -> (WrongKind, String) {
        let payload = key(5, Role::Payload);
        let mut data = words::stream(payload.pack(), 64, 4096);
        change(&mut data);
        let target = census(&data, 64, payload, key(5, Role::Poison));
        name(&Evidence {
            key: payload,
            target: &target,
            accessor_sees_right: None,
            spilled: None,
            guard_damage: 0,
            found_in: None,
        })
    }

    #[test]
    fn each_kind_is_named() {
        let stream = |k: Key, first: u64, bytes: usize| words::stream(k.pack(), first, bytes);
        assert_eq!(judged(|d| d.fill(0)).0, WrongKind::Zeroed);
        assert_eq!(judged(|d| d.fill(0xff)).0, WrongKind::Ones);
        assert_eq!(
            judged(|d| *d = stream(key(5, Role::Poison), 64, 4096)).0,
            WrongKind::Dropped
        );
        assert_eq!(
            judged(|d| *d = stream(key(4, Role::Payload), 64, 4096)).0,
            WrongKind::Stale
        );
        let other_run = Key {
            run: 78,
            ..key(5, Role::Payload)
        };
        assert_eq!(
            judged(|d| *d = stream(other_run, 64, 4096)).0,
            WrongKind::Stale
        );
        let other_pair = Key {
            source: 3,
            ..key(5, Role::Payload)
        };
        assert_eq!(
            judged(|d| *d = stream(other_pair, 64, 4096)).0,
            WrongKind::Misrouted
        );
        let back = |attempt| Key {
            source: 1,
            destination: 0,
            ..key(attempt, Role::Poison)
        };
        let (kind, words) = judged(|d| *d = stream(back(4), 64, 4096));
        assert_eq!(kind, WrongKind::Stale, "{words}");
        assert!(words.contains("same two GPUs"), "{words}");
        // Of the same attempt it is traffic of the moment.
        assert_eq!(
            judged(|d| *d = stream(back(5), 64, 4096)).0,
            WrongKind::Misrouted
        );
        assert_eq!(judged(|d| d[100] ^= 4).0, WrongKind::Flipped);
        assert_eq!(judged(|d| d[2048..].fill(0)).0, WrongKind::Partial);
        // A transfer that ends inside a unit, however much of that one arrived.
        for end in 2033..2048 {
            let rest = stream(key(5, Role::Poison), 64, 4096);
            let (kind, words) = judged(|d| d[end..].copy_from_slice(&rest[end..]));
            assert_eq!(kind, WrongKind::Partial, "{end}: {words}");
        }
        assert_eq!(
            judged(|d| {
                d[..2048].fill(0);
                d[2048..].fill(0xff);
            })
            .0,
            WrongKind::Mixed
        );
    }

    #[test]
    fn a_transfer_shorter_than_a_unit_is_named_by_comparison() {
        let payload = key(5, Role::Payload);
        let poison = key(5, Role::Poison);
        let four = |key: Key| words::stream(key.pack(), 0, 4);
        let mut flipped = four(payload);
        flipped[2] ^= 1;
        for (seen, kind) in [
            (vec![0; 4], WrongKind::Zeroed),
            (vec![0xff; 4], WrongKind::Ones),
            (four(poison), WrongKind::Dropped),
            (four(key(3, Role::Payload)), WrongKind::Stale),
            (flipped, WrongKind::Flipped),
            (vec![1, 2, 3, 4], WrongKind::Mixed),
        ] {
            let mut target = census(&[], 0, payload, poison);
            place(&mut target, 0, (0, 4));
            count_rim(&mut target, 0, (0, 0), &seen, (payload, poison));
            let (named, detail) = name(&Evidence {
                key: payload,
                target: &target,
                accessor_sees_right: None,
                spilled: None,
                guard_damage: 0,
                found_in: None,
            });
            assert_eq!(named, kind, "{detail}");
        }
    }

    /// What a seat makes of `data`, which lies from byte `skew` of unit 64 on.
    fn unaligned(data: &[u8], skew: u64) -> Census {
        let (payload, poison) = (key(5, Role::Payload), key(5, Role::Poison));
        let head = (16 - skew as usize) % 16;
        let units = (data.len() - head) / 16;
        let lead = u64::from(head > 0);
        let whole = &data[head..head + units * 16];
        let mut found = census(whole, 64 + lead, payload, poison);
        place(&mut found, lead, (skew, data.len() as u64));
        let tail = lead + units as u64;
        let rims = [
            (0, skew, &data[..head]),
            (tail, 0, &data[head + units * 16..]),
        ];
        for (at, skew, seen) in rims.into_iter().filter(|rim| !rim.2.is_empty()) {
            count_rim(&mut found, at, (64 + at, skew), seen, (payload, poison));
        }
        found
    }

    #[test]
    fn rims_follow_the_units_beside_them() {
        let bytes = 4102;
        for skew in [1u64, 5, 9] {
            let stream = |k: Key| words::part(k.pack(), 64, skew, bytes);
            let payload = key(5, Role::Payload);
            let right = stream(payload);
            let torn = [&right[..2051], &vec![0; bytes - 2051][..]].concat();
            let moved = [&stream(key(5, Role::Poison))[..32], &right[..bytes - 32]].concat();
            let mut flipped = right.clone();
            flipped[0] ^= 1;
            flipped[bytes - 1] ^= 1;
            let other = Key {
                source: 3,
                ..payload
            };
            for (data, wanted, says) in [
                (vec![0; bytes], WrongKind::Zeroed, "257 of 257"),
                (vec![0xff; bytes], WrongKind::Ones, "257 of 257"),
                (
                    stream(key(5, Role::Poison)),
                    WrongKind::Dropped,
                    "257 of 257",
                ),
                (
                    stream(key(4, Role::Payload)),
                    WrongKind::Stale,
                    "attempt 4, the one before",
                ),
                (
                    stream(key(2, Role::Payload)),
                    WrongKind::Stale,
                    "3 before this one",
                ),
                (stream(other), WrongKind::Misrouted, "of 3->1"),
                (flipped, WrongKind::Flipped, "2 of 257"),
                (moved, WrongKind::Shifted, "+32 bytes"),
                (torn, WrongKind::Partial, "to 4102"),
            ] {
                let target = unaligned(&data, skew);
                let counted = target.wrong() + target.counts.equal;
                assert_eq!(counted, 257, "a rim counts as one unit");
                let (named, detail) = name(&Evidence {
                    key: payload,
                    target: &target,
                    accessor_sees_right: None,
                    spilled: None,
                    guard_damage: 0,
                    found_in: None,
                });
                assert_eq!(named, wanted, "{skew}: {detail}");
                assert!(detail.contains(says), "{skew}: {detail}");
            }
        }
    }

    #[test]
    fn a_transfer_that_lies_all_outside_its_target_is_shifted() {
        let (payload, poison) = (key(5, Role::Payload), key(5, Role::Poison));
        let left = words::stream(poison.pack(), 0, 4);
        let mut target = census(&[], 0, payload, poison);
        place(&mut target, 0, (0, 4));
        count_rim(&mut target, 0, (0, 0), &left, (payload, poison));
        let (named, detail) = name(&Evidence {
            key: payload,
            target: &target,
            accessor_sees_right: None,
            spilled: Some((1, 32)),
            guard_damage: 0,
            found_in: None,
        });
        assert_eq!(named, WrongKind::Shifted, "{detail}");
        assert!(detail.contains("32 bytes after"), "{detail}");
    }

    #[test]
    fn a_shift_is_measured_in_bytes() {
        for shift in [3usize, 16, 160] {
            let (kind, detail) = judged(|d| {
                let poison = words::stream(key(5, Role::Poison).pack(), 64, 4096);
                let moved: Vec<u8> = poison[..shift]
                    .iter()
                    .chain(&d[..4096 - shift])
                    .copied()
                    .collect();
                *d = moved;
            });
            assert_eq!(kind, WrongKind::Shifted, "{detail}");
            assert!(detail.contains(&format!("+{shift} bytes")), "{detail}");
        }
    }

    #[test]
    fn windows_cover_both_ends() {
        assert_eq!(windows(4096), vec![(0, 4096)]);
        let spread = windows(64 << 20);
        assert_eq!(spread.first().map(|w| w.0), Some(0));
        assert_eq!(spread.last().map(|w| w.0 + w.1), Some(64 << 20));
    }
}
