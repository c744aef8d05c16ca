//! Words that name themselves: what every 16-byte unit of a test buffer contains, and how to read it back.
//!
//! A unit is a reversible mix of a key (run, source, destination, mechanism, attempt, role) and its own index in the
//! buffer, with a constant 24-bit check field. A unit found anywhere says where it belongs; without the check field no
//! origin is named. The device twin is `kernels/integrity.cu`. Knows bits only: not who copies, nor what a wrong unit
//! means.

/// Bytes of a unit.
pub const UNIT: u64 = 16;

/// What a unit was written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// What a transfer carries.
    Payload,
    /// What the owner writes to the destination before a transfer.
    Poison,
    /// What lies around the destination: no transfer may touch it.
    Guard,
    /// Written by other tests of one GPU.
    Own,
}

/// Who wrote a unit and for what. Packed into 64 bits:
/// run 24 | source 6 | destination 6 | mechanism 6 | attempt 16 | role 2 | zero 4, highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Random per run: words of an older run are stale, not foreign.
    pub run: u32,
    /// GPU index of the source, 0 to 63.
    pub source: u8,
    /// GPU index of the destination, 0 to 63.
    pub destination: u8,
    /// Number of the mechanism in its roster, 0 to 63.
    pub mechanism: u8,
    /// Attempt, counted through the run of the transfer.
    pub attempt: u16,
    /// Payload, poison, guard or own.
    pub role: Role,
}

impl Key {
    /// Selects the run field of a packed key.
    pub const RUN_MASK: u64 = (Key::RUN_BITS as u64) << 40;
    /// Values of the run field itself.
    pub const RUN_BITS: u32 = 0xff_ffff;
    /// Selects what a transfer keeps over its attempts: run, source, destination, mechanism.
    pub const TRANSFER_MASK: u64 = !0 << 22;

    /// As kernels take it. Fields are cut to their width.
    pub fn pack(self) -> u64 {
        let role = match self.role {
            Role::Payload => 0,
            Role::Poison => 1,
            Role::Guard => 2,
            Role::Own => 3,
        };
        u64::from(self.run & 0xff_ffff) << 40
            | u64::from(self.source & 63) << 34
            | u64::from(self.destination & 63) << 28
            | u64::from(self.mechanism & 63) << 22
            | u64::from(self.attempt) << 6
            | role << 4
    }

    /// From a packed key; `None` when the bits that are always zero are not: then it was no key.
    pub fn unpack(packed: u64) -> Option<Key> {
        if packed & 15 != 0 {
            return None;
        }
        let role = match packed >> 4 & 3 {
            0 => Role::Payload,
            1 => Role::Poison,
            2 => Role::Guard,
            _ => Role::Own,
        };
        Some(Key {
            run: (packed >> 40) as u32,
            source: (packed >> 34 & 63) as u8,
            destination: (packed >> 28 & 63) as u8,
            mechanism: (packed >> 22 & 63) as u8,
            attempt: (packed >> 6 & 0xffff) as u16,
            role,
        })
    }
}

const CHECK: u64 = 0xb5_c96d;
const INDEX_SHIFT: u32 = 24;
const OFFSET: u64 = 0x9e37_79b9_7f4a_7c15;
const ROUNDS: [u64; 3] = [
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
];

fn fold(value: u64, round: u64) -> u64 {
    let product = value.wrapping_mul(round);
    product ^ product >> 32
}

/// The unit `index` of packed key `key`, in memory order.
pub fn unit(key: u64, index: u64) -> [u8; 16] {
    let [first, second, third] = ROUNDS;
    let (mut a, mut b) = (index << INDEX_SHIFT | CHECK, key);
    b ^= fold(a.wrapping_add(OFFSET), first);
    a ^= fold(b, second);
    b ^= fold(a, third);
    ((u128::from(b) << 64) | u128::from(a)).to_le_bytes()
}

/// Packed key and index of a unit, if its check field says that it is one.
pub fn origin(bytes: [u8; 16]) -> Option<(u64, u64)> {
    let [first, second, third] = ROUNDS;
    let all = u128::from_le_bytes(bytes);
    let (mut a, mut b) = (all as u64, (all >> 64) as u64);
    b ^= fold(a, third);
    a ^= fold(b, second);
    b ^= fold(a.wrapping_add(OFFSET), first);
    (a & 0xff_ffff == CHECK).then_some((b, a >> INDEX_SHIFT))
}

/// `bytes` bytes of the stream of `key` from unit `first` on: what `peerproof_fill` writes.
pub fn stream(key: u64, first: u64, bytes: usize) -> Vec<u8> {
    let units = bytes.div_ceil(UNIT as usize) as u64;
    let mut all: Vec<u8> = (first..first + units)
        .flat_map(|index| unit(key, index))
        .collect();
    all.truncate(bytes);
    all
}

/// `bytes` bytes of the same stream from byte `skew` of unit `first` on, where `skew` is less than a unit.
pub fn part(key: u64, first: u64, skew: u64, bytes: usize) -> Vec<u8> {
    let mut all = stream(key, first, bytes + skew as usize);
    all.drain(..skew as usize);
    all
}

/// `bytes` that start at byte `skew` of a unit, cut at the boundaries of units: perhaps a rim, whole units, perhaps a rim.
pub fn pieces(bytes: &[u8], skew: u64) -> impl Iterator<Item = &[u8]> {
    let head = ((UNIT - skew % UNIT) % UNIT).min(bytes.len() as u64) as usize;
    let (head, rest) = bytes.split_at(head);
    let head = (!head.is_empty()).then_some(head);
    head.into_iter().chain(rest.chunks(UNIT as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_cut_where_units_end() {
        let packed = key(3, Role::Payload).pack();
        let whole = stream(packed, 7, 64);
        for (skew, bytes, lengths) in [
            (0, 33, vec![16, 16, 1]),
            (5, 7, vec![7]),
            (5, 11, vec![11]),
            (15, 34, vec![1, 16, 16, 1]),
            (3, 29, vec![13, 16]),
        ] {
            let part = part(packed, 7, skew, bytes);
            assert_eq!(part, whole[skew as usize..skew as usize + bytes]);
            let cut: Vec<usize> = pieces(&part, skew).map(<[u8]>::len).collect();
            assert_eq!(cut, lengths);
        }
    }

    fn key(attempt: u16, role: Role) -> Key {
        Key {
            run: 0x12_3456,
            source: 2,
            destination: 5,
            mechanism: 3,
            attempt,
            role,
        }
    }

    #[test]
    fn a_unit_names_itself() {
        for index in [0, 1, 77, 1 << 20, (1 << 40) - 1] {
            for role in [Role::Payload, Role::Poison, Role::Guard, Role::Own] {
                let packed = key(9, role).pack();
                assert_eq!(origin(unit(packed, index)), Some((packed, index)));
                assert_eq!(Key::unpack(packed), Some(key(9, role)));
            }
        }
    }

    #[test]
    fn masks_select_their_fields() {
        let base = key(1, Role::Payload).pack();
        assert_eq!((base ^ key(2, Role::Poison).pack()) & Key::TRANSFER_MASK, 0);
        assert_ne!(
            (base
                ^ Key {
                    source: 3,
                    ..key(1, Role::Payload)
                }
                .pack())
                & Key::TRANSFER_MASK,
            0
        );
        assert_eq!(base & Key::RUN_MASK, 0x12_3456 << 40);
    }

    #[test]
    fn neighbours_and_roles_differ_in_many_bits() {
        let distance = |x: [u8; 16], y: [u8; 16]| {
            (u128::from_le_bytes(x) ^ u128::from_le_bytes(y)).count_ones()
        };
        let packed = key(1, Role::Payload).pack();
        for index in 0..4096 {
            assert!(
                distance(unit(packed, index), unit(packed, index + 1)) > 20,
                "index {index}"
            );
            assert!(
                distance(
                    unit(packed, index),
                    unit(key(1, Role::Poison).pack(), index)
                ) > 20,
                "index {index}"
            );
            assert!(
                distance(
                    unit(packed, index),
                    unit(key(2, Role::Payload).pack(), index)
                ) > 20,
                "index {index}"
            );
            for plain in [[0; 16], [0xff; 16]] {
                assert!(distance(unit(packed, index), plain) > 20, "index {index}");
            }
        }
    }

    #[test]
    fn random_bytes_name_no_origin() {
        let mut state = 1u64;
        let mut named = 0;
        for _ in 0..200_000 {
            let mut bytes = [0u8; 16];
            for byte in &mut bytes {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
            named += usize::from(origin(bytes).is_some());
        }
        // Expected 200,000 / 2^24 = 0.012.
        assert!(named <= 1, "{named} random units named an origin");
    }
}
