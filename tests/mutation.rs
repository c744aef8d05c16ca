//! Mutated inputs: whatever a file holds, the readers answer with a snapshot or with one line, in bounded time, without a
//! panic. Seeded, so that a find has a number. PEERPROOF_MUTATION_SECONDS=N runs each format for N seconds instead.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and says how much it tried"
)]

use peerproof::{
    collect::{import, topology},
    model::{
        pair::GpuIndex,
        report::{Coverage, Grading, Report, SCHEMA_VERSION, Verdict},
        snapshot::{Authenticity, Snapshot},
    },
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Inputs per format when no time is given.
const INPUTS: u64 = 20_000;
/// Longest time for one input; the inputs are a few kilobytes.
const SLOWEST: Duration = Duration::from_secs(5);

/// xorshift64*, seeded per input so that input N is the same on every machine and in every order.
struct Dice(u64);

impl Dice {
    fn new(format: &str, number: u64) -> Self {
        let mut state = 0xcbf2_9ce4_8422_2325_u64;
        for byte in format.bytes().chain(number.to_le_bytes()) {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Dice(state | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to `limit` - 1; 0 for an empty range.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap() % limit.max(1)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "7",
    "18",
    "64",
    "255",
    "256",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "99999999999999999999999999",
    "1e309",
    "-0",
    "0x10",
    "NaN",
    "inf",
    "0.000001",
];
const WORDS: &[&str] = &[
    "\u{0}",
    "\u{1b}[4m",
    "\t",
    "\n",
    "\r\n",
    "\u{a0}",
    "é",
    "中",
    "\u{1f600}",
    "\u{202e}",
    "\u{feff}",
    "\"",
    "<",
    ">",
    "&",
    "/>",
    "-->",
    "<!--",
    "<![CDATA[",
    "]]>",
    "<?x",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "GPU0",
    "GPU1\tX",
    "NIC0",
    " X ",
    "NV",
    "NV99",
    "NODE",
    "SYS",
    "OK",
    "PIX",
    "ffff:ff:ff.f",
    "0000:01:00.0",
    "fffffff:ff:ff.0",
    "CPU Affinity",
    "null",
    "<!DOCTYPE a [<!ENTITY b \"c\">]>",
    "xmlns:a=\"b\"",
];

fn mutate(seeds: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut input = seeds[dice.below(seeds.len())].clone();
    // One change most of the time: each further one makes it likelier that nothing is read.
    let changes = 1 + dice.below(2) * dice.below(4);
    for _ in 0..changes {
        once(&mut input, seeds, dice);
        if input.len() > 1 << 18 {
            input.truncate(1 << 18);
        }
    }
    input
}

fn once(input: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(input.len() + 1);
    match dice.below(20) {
        0 if at < input.len() => input[at] ^= 1 << dice.below(8),
        1 if at < input.len() => input[at] = dice.next().to_le_bytes()[3],
        2 => input.truncate(at),
        3 => {
            let end = (at + dice.below(64)).min(input.len());
            input.drain(at..end);
        }
        4..=6 => lines(input, dice),
        7 | 8 | 14 | 15 | 16 => number(input, at, dice),
        9 => {
            let word = dice.pick(WORDS);
            input.splice(at..at, word.bytes());
        }
        10 => {
            let text: String = (0..dice.below(8))
                .filter_map(|_| char::from_u32(u32::try_from(dice.below(0x11_0000)).unwrap()))
                .collect();
            input.splice(at..at, text.into_bytes());
        }
        11 => {
            // Deep nesting, or a long run of one piece.
            let piece: &[u8] = match dice.below(6) {
                0 => b"<object type=\"Bridge\">",
                1 => b"<pci busid=\"0000:01:00.0\" class=\"0x060400\">",
                2 => b"[",
                3 => b"{\"a\":",
                4 => b"NODE\t",
                _ => b"GPU0\t",
            };
            let run = piece.repeat(1 + dice.below(600));
            input.splice(at..at, run);
        }
        12 => {
            let other = &seeds[dice.below(seeds.len())];
            let from = dice.below(other.len());
            let to = (from + dice.below(400)).min(other.len());
            input.splice(at..at, other[from..to].to_vec());
        }
        _ => attribute(input, at, dice),
    }
}

fn lines(input: &mut Vec<u8>, dice: &mut Dice) {
    let mut all: Vec<Vec<u8>> = input.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    let (a, b) = (dice.below(all.len()), dice.below(all.len()));
    match dice.below(3) {
        0 => all.insert(a, all[b].clone()),
        1 => {
            all.remove(a);
        }
        _ => all.swap(a, b),
    }
    *input = all.join(&b'\n');
}

/// Replaces the next run of digits.
fn number(input: &mut Vec<u8>, at: usize, dice: &mut Dice) {
    let Some(from) = input[at..]
        .iter()
        .position(u8::is_ascii_digit)
        .map(|p| at + p)
    else {
        return;
    };
    let run = input[from..]
        .iter()
        .take_while(|b| b.is_ascii_hexdigit())
        .count();
    let new = dice.pick(NUMBERS);
    input.splice(from..from + run, new.bytes());
}

/// Empties the next quoted text, or gives it another's.
fn attribute(input: &mut Vec<u8>, at: usize, dice: &mut Dice) {
    let quoted = |from: usize, input: &[u8]| {
        // Stand outside of quotes first, so that texts are replaced and not what lies between them.
        let inside = input[..from].iter().filter(|b| **b == b'"').count() % 2;
        let mut quotes = input[from..]
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'"');
        let open = from + quotes.nth(inside)?.0 + 1;
        let close = from + quotes.next()?.0;
        Some(open..close)
    };
    let (Some(to), Some(from)) = (quoted(at, input), quoted(dice.below(input.len()), input)) else {
        return;
    };
    let new = if dice.below(3) == 0 {
        Vec::new()
    } else {
        input[from].to_vec()
    };
    input.splice(to, new);
}

fn fixtures(prefix: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import");
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.sort();
    let wanted = names
        .iter()
        .filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    let seeds: Vec<Vec<u8>> = wanted.map(|p| std::fs::read(p).unwrap()).collect();
    assert!(!seeds.is_empty(), "no fixture begins with {prefix}");
    seeds
}

/// A run by time also starts from recorded hosts, where PEERPROOF_CASES names their folder.
fn with_cases(mut seeds: Vec<Vec<u8>>, folder: &str, wanted: &str) -> Vec<Vec<u8>> {
    let by_time = std::env::var_os("PEERPROOF_MUTATION_SECONDS").is_some();
    let Some(root) = std::env::var_os("PEERPROOF_CASES").filter(|_| by_time) else {
        return seeds;
    };
    for entry in std::fs::read_dir(PathBuf::from(root).join(folder)).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().ends_with(wanted) {
            seeds.push(std::fs::read(path).unwrap());
        }
    }
    seeds
}

/// A small saved report.
fn report() -> Vec<u8> {
    let seed = &fixtures("nccl-pairs-asymmetric")[0];
    let snapshot = import::read("seed", seed).unwrap();
    let report = Report {
        schema_version: SCHEMA_VERSION,
        tool_version: String::new(),
        kernels_sha256: String::new(),
        authenticity: Authenticity::Hardware,
        started_at: String::new(),
        took_ms: 0.0,
        arguments: Vec::new(),
        snapshot,
        tested_gpus: vec![0, 1],
        ladder: Vec::new(),
        records: Vec::new(),
        observations: Vec::new(),
        reductions: Vec::new(),
        traffic: Vec::new(),
        crossovers: Vec::new(),
        notes: Vec::new(),
        comparison: None,
        selftest: None,
        coverage: Coverage::default(),
        findings: Vec::new(),
        consumers: Vec::new(),
        recommendations: Vec::new(),
        verdict: Verdict {
            grading: Grading::Pass,
            headline: String::new(),
            cause: String::new(),
            next: String::new(),
            worst_pair: None,
            reason: None,
        },
        timings_ms: Vec::new(),
        worker_environment: Vec::new(),
        interrupted: false,
    };
    serde_json::to_vec_pretty(&report).unwrap()
}

/// What must hold for any input; whether it was read.
fn hold(input: &[u8], dice: &mut Dice) -> bool {
    match import::read("mutant", input) {
        Ok(snapshot) => {
            sound(&snapshot, dice);
            true
        }
        Err(error) => {
            let line = error.to_string();
            assert_eq!(line.lines().count(), 1, "more than one line: {line:?}");
            assert!(line.len() < 1000, "a message of {} bytes", line.len());
            assert!(error.line != Some(0) && error.column != Some(0), "{line}");
            false
        }
    }
}

fn sound(snapshot: &Snapshot, dice: &mut Dice) {
    let count = u32::try_from(snapshot.gpus.len()).unwrap();
    assert_eq!(snapshot.claims.count(), count);
    assert_eq!(snapshot.topology.pairs.count(), count);
    assert!(!snapshot.topology.class_reason.contains('\n'));
    for island in &snapshot.topology.islands {
        assert!(island.gpus.iter().all(|g| snapshot.gpu(*g).is_some()));
    }
    let group: Vec<GpuIndex> = (0..dice.below(6))
        .map(|_| GpuIndex(u32::try_from(dice.below(count as usize + 2)).unwrap()))
        .collect();
    let _ = topology::class_of(snapshot, &group);
    let _ = topology::flashinfer_label(snapshot, &group);
}

fn run(format: &str, seeds: &[Vec<u8>]) {
    let seconds: Option<u64> = std::env::var("PEERPROOF_MUTATION_SECONDS")
        .ok()
        .map(|s| s.parse().unwrap());
    let until = seconds.map(|s| Instant::now() + Duration::from_secs(s));
    // The plain run starts at 0 everywhere; a run by time goes on to inputs that the plain one does not reach.
    let (next, tried, read) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let over = match until {
                        Some(until) => Instant::now() > until,
                        None => number >= INPUTS,
                    };
                    if over {
                        break;
                    }
                    let mut dice = Dice::new(format, number);
                    let input = mutate(seeds, &mut dice);
                    let started = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| hold(&input, &mut dice)));
                    tried.fetch_add(1, Ordering::Relaxed);
                    read.fetch_add(u64::from(matches!(outcome, Ok(true))), Ordering::Relaxed);
                    let slow = started.elapsed() > SLOWEST;
                    if outcome.is_err() || slow {
                        let path =
                            std::env::temp_dir().join(format!("peerproof-find-{format}-{number}"));
                        std::fs::write(&path, &input).unwrap();
                        panic!(
                            "{format} input {number} {}: kept as {}",
                            if slow {
                                "took too long"
                            } else {
                                "broke a rule"
                            },
                            path.display()
                        );
                    }
                }
            });
        }
    });
    let (tried, read) = (tried.into_inner(), read.into_inner());
    println!("{format}: {tried} inputs, {read} of them still read");
    // Mutants that all die at the door would test the door only.
    assert!(read * 20 > tried, "{format}: {read} of {tried} were read");
}

#[test]
fn hwloc_1() {
    run(
        "hwloc1",
        &with_cases(fixtures("hwloc1"), "hwloc", ".v1.xml"),
    );
}

#[test]
fn hwloc_2() {
    run(
        "hwloc2",
        &with_cases(fixtures("hwloc2"), "hwloc", ".v2.xml"),
    );
}

#[test]
fn hwloc_3() {
    run(
        "hwloc3",
        &with_cases(fixtures("hwloc3"), "hwloc", ".v3.xml"),
    );
}

#[test]
fn nccl() {
    run("nccl", &with_cases(fixtures("nccl"), "nccl", ".xml"));
}

#[test]
fn topo_text() {
    run("topo", &with_cases(fixtures("topo"), "topo", ".txt"));
}

#[test]
fn saved_report() {
    run("report", &[report()]);
}
