//! The committed PTX against the host's arithmetic: the same words, the same count of wrong, the same classes. The PTX
//! runs in the look-alike's machine; on a real GPU `peerproof selftest` compares the device with the same arithmetic.
//!
//! `tests/golden/words.txt` holds words that must never change: a report names origins by them. Written once by
//! `BLESS_WORDS=1 cargo test --test kernels -- golden`; a change of it is a change of the protocol.

#![allow(missing_docs, clippy::unwrap_used)]

use peerproof::{
    gpu::kernels::{
        CENSUS_BYTES, Census, INTEGRITY_PTX, MISMATCH_BYTES, read_census, read_mismatch,
    },
    probe::integrity,
    words::{self, Key, Role},
};
use simhost::ptx::{Access, Launch, Memory, Module, Trap, run};
use std::{
    cell::UnsafeCell,
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/words.txt");
/// Device address of the memory under the kernels.
const BASE: u64 = 0x7f00_0000_0000;

/// Packed keys and indices that reach into every field.
fn vectors() -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for (run, source, destination, mechanism, attempt, role) in [
        (0, 0, 0, 0, 0, Role::Payload),
        (1, 0, 1, 0, 1, Role::Payload),
        (0x12_3456, 2, 5, 3, 7, Role::Poison),
        (0xff_ffff, 63, 63, 63, 0xffff, Role::Own),
        (0x80_0001, 7, 6, 5, 0x0103, Role::Guard),
    ] {
        let key = Key {
            run,
            source,
            destination,
            mechanism,
            attempt,
            role,
        }
        .pack();
        for index in [0, 1, 2, 255, 1 << 32, (1 << 38) + 3, (1 << 40) - 1] {
            all.push((key, index));
        }
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The committed vectors: packed key, index, unit in memory order.
fn golden() -> Vec<(u64, u64, String)> {
    let text = std::fs::read_to_string(GOLDEN).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut words = line.split_whitespace();
            let mut number = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            let (key, index) = (number(), number());
            (key, index, words.next().unwrap().to_string())
        })
        .collect()
}

#[test]
fn golden_words_of_the_host() {
    if std::env::var_os("BLESS_WORDS").is_some() {
        let mut text =
            "# packed key, index of the unit, its 16 bytes in memory order; all hexadecimal\n"
                .to_string();
        for (key, index) in vectors() {
            writeln!(
                text,
                "{key:016x} {index:010x} {}",
                hex(&words::unit(key, index))
            )
            .unwrap();
        }
        std::fs::write(GOLDEN, text).unwrap();
    }
    let golden = golden();
    assert_eq!(golden.len(), vectors().len());
    for ((key, index, unit), vector) in golden.into_iter().zip(vectors()) {
        assert_eq!((key, index), vector);
        assert_eq!(hex(&words::unit(key, index)), unit, "{key:016x} {index:x}");
        let bytes = words::unit(key, index);
        assert_eq!(words::origin(bytes), Some((key, index)));
    }
}

/// Memory of one made-up device.
struct Device(UnsafeCell<Vec<u128>>);

// SAFETY: reached through raw pointers only, as device memory is.
#[allow(unsafe_code)]
unsafe impl Sync for Device {}

#[allow(unsafe_code)]
impl Device {
    fn new(bytes: usize) -> Device {
        Device(UnsafeCell::new(vec![0; bytes.div_ceil(16)]))
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: no reference to the contents lives on.
        unsafe { (*self.0.get()).as_mut_ptr().cast() }
    }

    fn bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.0.get()).len() * 16 }
    }

    fn put(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.bytes());
        // SAFETY: in bounds, and no kernel runs.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.base().add(at), data.len()) }
    }

    fn get(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.bytes());
        let mut out = vec![0; bytes];
        // SAFETY: in bounds, and no kernel runs.
        unsafe { std::ptr::copy_nonoverlapping(self.base().add(at), out.as_mut_ptr(), bytes) };
        out
    }
}

impl Memory for Device {
    fn span(&self, address: u64, bytes: usize, _: bool) -> Option<*mut u8> {
        let at = address.checked_sub(BASE)?;
        (at + bytes as u64 <= self.bytes() as u64).then(|| self.base().wrapping_add(at as usize))
    }

    fn globaltimer(&self) -> u64 {
        0
    }
}

fn launch(module: &Module, name: &str, device: &impl Memory, grid: u32, values: &[u64]) {
    let entry = module.entry(name).unwrap();
    assert_eq!(entry.params.len(), values.len());
    let mut params = vec![0; entry.param_bytes];
    for (p, value) in entry.params.iter().zip(values) {
        params[p.offset..p.offset + p.size].copy_from_slice(&value.to_le_bytes()[..p.size]);
    }
    let launch = Launch {
        entry,
        grid: [grid, 1, 1],
        block: [256, 1, 1],
        params: &params,
        dynamic_shared: 0,
    };
    run(&launch, device).unwrap_or_else(|trap| panic!("{name}: {trap}"));
}

#[test]
fn golden_words_of_the_committed_kernel() {
    let module = Module::parse(INTEGRITY_PTX).unwrap();
    let device = Device::new(4096);
    for (key, index, unit) in golden() {
        launch(
            &module,
            "peerproof_fill",
            &device,
            1,
            &[BASE, 16, index, key],
        );
        assert_eq!(hex(&device.get(0, 16)), unit, "{key:016x} {index:x}");
    }
}

/// Where ranges start in a unit, and how long they are: inside one unit, over its end, whole units, and many tiles.
const RANGES: [(u64, u64); 14] = [
    (0, 1),
    (0, 16),
    (0, 2048 + 13),
    (3, 4),
    (5, 11),
    (5, 12),
    (15, 1),
    (15, 18),
    (4, 12),
    (4, 16),
    (8, 4096),
    (5, 4102),
    (9, 20_000),
    (12, 40_004),
];

#[test]
fn ranges_are_filled_and_verified_to_the_byte() {
    let module = Module::parse(INTEGRITY_PTX).unwrap();
    let (room, start) = (48 << 10, 64);
    let result = room as u64;
    let device = Device::new(room + 4096);
    let (key, first) = (vectors()[14].0, 77);
    for (skew, bytes) in RANGES {
        let (at, len) = ((start + skew) as usize, bytes as usize);
        let verify = || {
            let mut cleared = [0u8; MISMATCH_BYTES as usize];
            cleared[8..16].fill(0xff);
            device.put(room, &cleared);
            let arguments = [BASE + start + skew, bytes, first, key, BASE + result];
            launch(&module, "peerproof_verify", &device, 2, &arguments);
            read_mismatch(&device.get(room, MISMATCH_BYTES as usize)).unwrap()
        };
        device.put(0, &vec![0xa5; room]);
        let arguments = [BASE + start + skew, bytes, first, key];
        launch(&module, "peerproof_fill", &device, 3, &arguments);
        let mut wanted = vec![0xa5; room];
        wanted[at..at + len].copy_from_slice(&words::part(key, first, skew, len));
        // Not one byte beside it.
        assert!(device.get(0, room) == wanted, "{skew} {bytes}");
        assert_eq!(verify().wrong, 0, "{skew} {bytes}");

        // Each of these bytes alone is one wrong unit, and it is that one.
        for wrong in [0, len / 2, len.saturating_sub(17), len - 1] {
            let mut one = wanted.clone();
            one[at + wrong] ^= 0x20;
            device.put(0, &one);
            let seen = verify();
            let unit = (skew as usize + wrong) as u64 / 16;
            assert_eq!(
                (seen.wrong, seen.first, seen.last),
                (1, unit, unit),
                "{skew} {bytes} byte {wrong}"
            );
        }
        device.put(at, &vec![0; len]);
        let seen = verify();
        let units = (skew + bytes).div_ceil(16);
        assert_eq!((seen.wrong, seen.first, seen.last), (units, 0, units - 1));
    }
}

#[test]
fn copies_move_a_range_and_nothing_beside_it() {
    let module = Module::parse(INTEGRITY_PTX).unwrap();
    let (room, start) = (48 << 10, 64u64);
    let device = Device::new(2 * room);
    for kernel in [
        "peerproof_copy_load",
        "peerproof_copy_store",
        "peerproof_copy_store4",
    ] {
        for (skew, bytes) in RANGES {
            let (at, len) = ((start + skew) as usize, bytes as usize);
            let sent = words::part(vectors()[3].0, 9, skew, len);
            device.put(0, &vec![0xa5; 2 * room]);
            device.put(room + at, &sent);
            let to = BASE + start + skew;
            launch(&module, kernel, &device, 2, &[to, to + room as u64, bytes]);
            let mut wanted = vec![0xa5; room];
            wanted[at..at + len].copy_from_slice(&sent);
            assert!(device.get(0, room) == wanted, "{kernel} {skew} {bytes}");
        }
    }
}

#[test]
fn atomics_make_the_payload_of_the_poison_and_of_nothing_else() {
    let module = Module::parse(INTEGRITY_PTX).unwrap();
    let (room, start, first) = (48 << 10, 64u64, 1 << 32);
    let device = Device::new(2 * room);
    let (payload, poison) = (key(5, Role::Payload).pack(), key(5, Role::Poison).pack());
    let ranges = RANGES.into_iter();
    for (skew, bytes) in ranges.filter(|(skew, bytes)| skew % 4 == 0 && bytes % 4 == 0) {
        let (at, len) = ((start + skew) as usize, bytes as usize);
        let sent = words::part(payload, first, skew, len);
        let owned = words::part(poison, first, skew, len);
        let run = |found: &[u8]| {
            device.put(0, &vec![0xa5; 2 * room]);
            device.put(at, found);
            device.put(room + at, &sent);
            let to = BASE + start + skew;
            let arguments = [to, to + room as u64, bytes, first, poison];
            launch(&module, "peerproof_atomics", &device, 2, &arguments);
            device.get(0, room)
        };
        let mut wanted = vec![0xa5; room];
        wanted[at..at + len].copy_from_slice(&sent);
        assert!(run(&owned) == wanted, "{skew} {bytes}");
        // On what the owner never wrote all but an exchange go wrong: the result depends on what was there.
        let other = run(&vec![0x11; len]);
        let right = (0..len / 4).filter(|word| {
            let word = at + word * 4..at + word * 4 + 4;
            other[word.clone()] == wanted[word]
        });
        let exchanged = right.count();
        assert!(exchanged <= len / 4 / 4 + 4, "{skew} {bytes}: {exchanged}");
    }
}

#[test]
fn a_contest_needs_every_sum_of_both_sides() {
    let module = Module::parse(INTEGRITY_PTX).unwrap();
    let (bytes, first) = (512, 1234);
    let device = Device::new(4096);
    let (payload, poison) = (key(5, Role::Payload).pack(), key(5, Role::Poison).pack());
    let half = |accessor: u64| {
        let arguments = [BASE, bytes, first, payload, poison, accessor];
        launch(&module, "peerproof_contend", &device, 3, &arguments);
    };
    let wanted = words::stream(payload, first, bytes as usize);
    device.put(0, &words::stream(poison, first, bytes as usize));
    half(0);
    let between = device.get(0, bytes as usize);
    let mut units = between.chunks(16).zip(wanted.chunks(16));
    assert!(units.all(|(seen, want)| seen != want));
    half(1);
    assert!(device.get(0, bytes as usize) == wanted);
    // One sum too many.
    half(1);
    assert!(device.get(0, bytes as usize) != wanted);
}

/// A store may still be under way when a kernel's last instruction has run; only a fence at system scope before its end
/// makes it visible to the owner (pitfall P8 of `docs/method.md`).
#[test]
fn every_kernel_that_writes_to_a_peer_ends_with_a_system_fence() {
    for entry in INTEGRITY_PTX.split(".visible .entry ").skip(1) {
        let name = entry.split('(').next().unwrap();
        let crosses = ["copy_store", "copy_store4", "atomics", "contend"];
        if !crosses.iter().any(|n| name == format!("peerproof_{n}")) {
            continue;
        }
        let last_write = entry.rfind("st.global").max(entry.rfind("atom.global"));
        let fence = entry
            .rfind("membar.sys")
            .or(entry.rfind("fence.acq_rel.sys"));
        assert!(fence > last_write && last_write.is_some(), "{name}");
    }
}

/// The owner's L2 is where writes of peers arrive; its L1 may hold older lines, and so may a reader's (pitfall P7).
#[test]
fn what_is_judged_is_read_past_l1() {
    for entry in INTEGRITY_PTX.split(".visible .entry ").skip(1) {
        let name = entry.split('(').next().unwrap();
        let loads: Vec<&str> = entry
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("ld.") && line.contains("global"))
            .collect();
        let whole = loads.iter().filter(|line| line.contains(".v2."));
        match name {
            "peerproof_verify" | "peerproof_classify" => {
                assert!(whole.clone().count() > 0, "{name}");
                whole.for_each(|line| assert!(line.starts_with("ld.global.cg"), "{name}: {line}"));
                let rims = loads.iter().filter(|line| line.contains(".u8"));
                rims.for_each(|line| assert!(line.contains("volatile"), "{name}: {line}"));
            }
            "peerproof_copy_load" => {
                assert!(!loads.is_empty());
                let past = |line: &&str| line.starts_with("ld.volatile.global");
                assert!(loads.iter().all(past), "{name}: {loads:?}");
            }
            _ => {}
        }
    }
}

const UNITS: usize = 2048;

fn key(attempt: u16, role: Role) -> Key {
    Key {
        run: 0x1234,
        source: 1,
        destination: 2,
        mechanism: 4,
        attempt,
        role,
    }
}

/// Buffers with every class of wrong: what the owner holds instead of units `FIRST..` of the payload.
const FIRST: u64 = 640;

fn wrongs() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = UNITS * 16;
    let stream = |key: Key| words::stream(key.pack(), FIRST, bytes);
    let right = stream(key(5, Role::Payload));
    let poison = stream(key(5, Role::Poison));
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut data = right.clone();
        change(&mut data);
        data
    };
    let moved = |by: usize| [&poison[..by], &right[..bytes - by]].concat();
    let foreign = stream(Key {
        source: 3,
        ..key(5, Role::Payload)
    });
    vec![
        ("right", right.clone()),
        ("poison", poison.clone()),
        ("zero", vec![0; bytes]),
        ("ones", vec![0xff; bytes]),
        (
            "few bits",
            changed(&|d| {
                (0..UNITS)
                    .step_by(97)
                    .for_each(|u| d[u * 16 + u % 16] ^= 0x11)
            }),
        ),
        ("moved by 16", moved(16)),
        ("moved by 3", moved(3)),
        ("moved by 4096", moved(4096)),
        ("an earlier attempt", stream(key(4, Role::Payload))),
        ("an earlier poison", stream(key(3, Role::Poison))),
        (
            "another run",
            stream(Key {
                run: 9,
                ..key(5, Role::Payload)
            }),
        ),
        ("another pair", foreign.clone()),
        (
            "noise",
            changed(&|d| {
                d.iter_mut()
                    .enumerate()
                    .for_each(|(i, b)| *b = (i * i * 31 + i / 7) as u8)
            }),
        ),
        (
            "all at once",
            changed(&|d| {
                d[16 * 100..16 * 200].fill(0);
                d[16 * 300..16 * 310].fill(0xff);
                d[16 * 400 + 5] ^= 1;
                d[16 * 500..16 * 600].copy_from_slice(&poison[16 * 500..16 * 600]);
                d[16 * 700..16 * 800].copy_from_slice(&foreign[16 * 700..16 * 800]);
                d[16 * 900..16 * 903].copy_from_slice(&[0x5a; 48]);
            }),
        ),
    ]
}

#[test]
fn verify_and_classify_count_as_the_host_does() {
    let module = Module::parse(INTEGRITY_PTX).unwrap();
    let bytes = (UNITS * 16) as u64;
    let (mismatch, census) = (bytes, bytes + 64);
    let device = Device::new((census + CENSUS_BYTES) as usize);
    let (payload, poison) = (key(5, Role::Payload), key(5, Role::Poison));
    for (name, data) in wrongs() {
        device.put(0, &data);
        let mut start = [0u8; MISMATCH_BYTES as usize];
        start[8..16].fill(0xff);
        device.put(mismatch as usize, &start);
        let address = [BASE, bytes, FIRST, payload.pack(), BASE + mismatch];
        launch(&module, "peerproof_verify", &device, 2, &address);
        let counted =
            read_mismatch(&device.get(mismatch as usize, MISMATCH_BYTES as usize)).unwrap();

        // As `Kernels::classify` prepares its result.
        let mut start = [0u8; CENSUS_BYTES as usize];
        start[72..144].fill(0xff);
        start[152..160].fill(0x7f);
        start[160..168].fill(0x80);
        device.put(census as usize, &start);
        launch(
            &module,
            "peerproof_classify",
            &device,
            3,
            &[
                BASE,
                bytes,
                FIRST,
                payload.pack(),
                poison.pack(),
                Key::RUN_MASK,
                Key::TRANSFER_MASK,
                BASE + census,
            ],
        );
        let mut device_census =
            read_census(&device.get(census as usize, CENSUS_BYTES as usize)).unwrap();
        let mut host_census = integrity::census(&data, FIRST, payload, poison);
        // Which sixteen of many origins are kept is the kernel's own affair; each must be true.
        for origin in device_census.origins.drain(..) {
            let at = (origin.unit * 16 + origin.skew) as usize;
            let window = *data[at..].first_chunk::<16>().unwrap();
            assert_eq!(
                words::origin(window),
                Some((origin.key, origin.index)),
                "{name}"
            );
        }
        host_census.origins.clear();
        assert_eq!(device_census, host_census, "{name}");
        let right = |census: &Census| census.counts.equal;
        assert_eq!(counted.wrong, UNITS as u64 - right(&host_census), "{name}");
        if counted.wrong > 0 {
            let lowest = host_census.first[1..].iter().flatten().min().copied();
            assert_eq!(Some(counted.first), lowest, "{name}");
            assert_eq!(counted.last, host_census.last_wrong, "{name}");
        }
        assert_eq!(counted.wrong == 0, name == "right");
    }
}

/// A device whose clock goes on by what 64 looks at a flag take, and a host that counts how often it is asked.
struct Lonely {
    device: Device,
    looks: AtomicU64,
    asked: AtomicU64,
}

/// Where the stop word lies: no memory of the device.
const HOST: u64 = BASE << 1;
/// Nanoseconds of 64 looks: those of an H200 times ten, for the sake of the time that the test takes.
const LOOKS: u64 = 450_000;

impl Memory for Lonely {
    fn span(&self, address: u64, bytes: usize, write: bool) -> Option<*mut u8> {
        self.device.span(address, bytes, write)
    }

    fn read(&self, address: u64, out: &mut [u8], _: Access) -> Result<(), Trap> {
        assert_eq!((address, out.len()), (HOST, 4));
        self.asked.fetch_add(1, Ordering::Relaxed);
        out.fill(0);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8], _: Access) -> Result<(), Trap> {
        assert_eq!((address, data.len()), (HOST, 4));
        Ok(())
    }

    fn globaltimer(&self) -> u64 {
        LOOKS * (1 + self.looks.fetch_add(1, Ordering::Relaxed))
    }
}

/// Thousands of threads may wait at once, and their reads of the host take long together: were they asked as soon as a call is
/// a little late, that alone would make the other ranks late, and so on for ever.
#[test]
fn a_rank_that_waits_asks_the_host_seldom() {
    const FLAGS: u64 = 3 * 256 * 8 * 4;
    const ROOM: u64 = 256;
    const STATE: u64 = 8 * 256 + 16 * 256;
    let module = Module::parse(include_str!("../kernels/reduce.ptx")).unwrap();
    for entry in ["peerproof_reduce_words", "peerproof_reduce_push"] {
        for (limit_ms, most) in [(15, 0), (100, 5)] {
            let mailbox = FLAGS + 4 * ROOM;
            let lonely = Lonely {
                device: Device::new((2 * mailbox + STATE + 64) as usize),
                looks: AtomicU64::new(0),
                asked: AtomicU64::new(0),
            };
            let state = 2 * mailbox;
            // Flags and words of the call before this one: nobody else has come.
            lonely.device.put(0, &vec![0xff; 2 * mailbox as usize]);
            lonely.device.put(state as usize, &[0xff; 8 * 256]);
            let mut values = vec![BASE + state + STATE, BASE + state + STATE + 32, 2, 2, 0, 2];
            values.extend((0..8).map(|rank| BASE + mailbox * rank.min(1)));
            values.extend([BASE + state, HOST, ROOM, limit_ms * 1_000_000]);
            launch(&module, entry, &lonely, 1, &values);
            let given_up = lonely.device.get(state as usize + 8 * 256, 8);
            assert_eq!(given_up[7], 1, "{entry} waited for a rank that never came");
            let asked = lonely.asked.load(Ordering::Relaxed);
            assert!(
                asked <= most,
                "{entry} asked the host {asked} times in {limit_ms} ms"
            );
        }
    }
}
