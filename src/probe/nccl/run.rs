//! The parent's half: which arms run, in which processes, with which answers. Knows processes and rows; never loads NCCL.

use super::{
    arms::Arm,
    group::{Group, Trouble},
    transport::Transports,
    wire::{Measure, Measured, Opened},
};
use crate::{
    model::{
        case::Outcome,
        measurement::{Measurement, Unit},
        pci::PciAddress,
        reduction::{Arrangement, Dtype, Launch, Reduction},
        snapshot::Authenticity,
    },
    probe::{folder::PrivateFolder, pool::fixed_environment},
    stats,
};
use std::{collections::BTreeSet, path::PathBuf};

/// Calls of one sample, at most: what a launch costs and when the ranks begin is shared by all of them.
const CALLS: u64 = 20;
/// Bytes of one sample's vectors on one rank, at most: all of them are filled and compared by the host.
const SAMPLE_BYTES: u64 = 32 << 20;
/// Samples that are judged but not timed.
const WARMUP: u32 = 3;

/// What is asked of NCCL.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// GPU and address of every rank, in rank order.
    pub gpus: Vec<(u32, PciAddress)>,
    /// `OneProcess`, `ProcessPerGpu` or both; the others do not exist with NCCL.
    pub arrangements: Vec<Arrangement>,
    /// Bytes of one rank's vector.
    pub sizes: Vec<u64>,
    /// Element types.
    pub dtypes: Vec<Dtype>,
    /// Eager, as a graph, or both.
    pub launches: Vec<Launch>,
    /// Out of place (false), in place (true), or both.
    pub in_place: Vec<bool>,
    /// Timed samples of each row.
    pub samples: u32,
    /// The library to open instead of looking for one.
    pub library: Option<PathBuf>,
}

/// What NCCL came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Rows: the control arm's first, as they ran.
    pub reductions: Vec<Reduction>,
    /// What a reader should know beside the rows: the library's version and place, or where it was looked for.
    pub notes: Vec<String>,
    /// What stood below the driver; `None` where no worker came so far.
    pub authenticity: Option<Authenticity>,
}

/// One row that is asked for.
#[derive(Debug, Clone, Copy)]
struct Row {
    dtype: Dtype,
    launch: Launch,
    in_place: bool,
    bytes: u64,
}

/// Runs the arms of `request`, each in processes of its own: the control arm, NCCL as it chooses, and where that is shared memory
/// also P2P at any distance. `progress` is told what begins.
pub fn run(request: &Request, progress: &mut dyn FnMut(&str)) -> Answer {
    let mut answer = Answer {
        reductions: Vec::new(),
        notes: Vec::new(),
        authenticity: None,
    };
    let distinct: BTreeSet<u32> = request.gpus.iter().map(|(gpu, _)| *gpu).collect();
    if request.gpus.len() < 2 || distinct.len() < request.gpus.len() {
        answer.reductions.extend(none_on_one_gpu(request));
        return answer;
    }
    let folder = PrivateFolder::new();
    if folder.is_none() {
        let note = "no private folder for NCCL's log: transports stay unknown";
        answer.notes.push(note.to_string());
    }
    let mut session = Session {
        request,
        operator: operator(),
        folder,
        answer,
        logs: 0,
    };
    for &arrangement in &request.arrangements {
        if !matches!(
            arrangement,
            Arrangement::OneProcess | Arrangement::ProcessPerGpu
        ) {
            continue;
        }
        // The control first: a hang of the others can leave GPUs that answer nobody.
        for arm in [Arm::P2pOff, Arm::Default] {
            progress(&format!("{}, {}", arm.id(), arrangement.words()));
            let Some(end) = session.arm(arm, arrangement) else {
                return session.answer;
            };
            if arm == Arm::Default && end.transports.shares_memory() && !end.broken {
                progress(&format!("{}, {}", Arm::P2pSys.id(), arrangement.words()));
                if session.arm(Arm::P2pSys, arrangement).is_none() {
                    return session.answer;
                }
            }
        }
    }
    session.answer
}

/// The row that says why there is no other.
fn none_on_one_gpu(request: &Request) -> Option<Reduction> {
    let reason = "NCCL refuses two ranks on one device (\"Duplicate GPU detected\"): on one GPU there is no all-reduce of NCCL's to stand beside ours";
    Some(Reduction {
        algorithm: Arm::Default.id().to_string(),
        gpus: request.gpus.iter().map(|(gpu, _)| *gpu).collect(),
        arrangement: *request.arrangements.first()?,
        dtype: *request.dtypes.first()?,
        bytes: *request.sizes.first()?,
        in_place: *request.in_place.first()?,
        launch: *request.launches.first()?,
        outcome: Outcome::NotApplicable {
            reason: reason.to_string(),
        },
        calls: 0,
        time: None,
        transport: None,
        notes: Vec::new(),
    })
}

/// NCCL's variables that the operator has set.
fn operator() -> Vec<(String, String)> {
    let mut own: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| {
            let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .filter(|(name, _)| name.starts_with("NCCL_"))
        .collect();
    own.sort();
    own
}

/// What an arm left behind.
struct End {
    transports: Transports,
    /// It hung, died or took an error: what comes after it on these GPUs means little.
    broken: bool,
}

/// All arms of one request.
struct Session<'a> {
    request: &'a Request,
    operator: Vec<(String, String)>,
    folder: Option<PrivateFolder>,
    answer: Answer,
    /// Logs so far: every process of every arm writes one.
    logs: u32,
}

impl Session<'_> {
    fn rows(&self) -> Vec<Row> {
        let request = self.request;
        let mut rows = Vec::new();
        for &dtype in &request.dtypes {
            for &launch in &request.launches {
                for &in_place in &request.in_place {
                    rows.extend(request.sizes.iter().map(|&bytes| Row {
                        dtype,
                        launch,
                        in_place,
                        bytes,
                    }));
                }
            }
        }
        rows
    }

    /// Runs one arm; `None` when there is no NCCL, so that no other arm need be tried.
    fn arm(&mut self, arm: Arm, arrangement: Arrangement) -> Option<End> {
        let world = self.request.gpus.len() as u32;
        let processes: Vec<Vec<u32>> = match arrangement {
            Arrangement::ProcessPerGpu => (0..world).map(|rank| vec![rank]).collect(),
            _ => vec![(0..world).collect()],
        };
        let logs: Vec<PathBuf> = processes
            .iter()
            .map(|_| {
                self.logs += 1;
                match &self.folder {
                    Some(folder) => folder.path().join(format!("nccl-{}.log", self.logs)),
                    None => PathBuf::from("/dev/null"),
                }
            })
            .collect();
        let mut notes = arm.told(&self.operator);
        let (results, opened) = match self.start(arm, processes, &logs) {
            Ok(mut group) => {
                let opened = group.opened.clone();
                let results = self.measure(&mut group);
                group.end();
                (results, Some(opened))
            }
            Err(Trouble::NoLibrary(why)) if self.answer.reductions.is_empty() => {
                self.answer.notes.push(format!("NCCL was not run: {why}"));
                return None;
            }
            Err(trouble) => (self.after(0, trouble), None),
        };
        let mut transports = Transports::default();
        for log in logs.iter().filter(|_| self.folder.is_some()) {
            // A log that is not there says nothing, which is what an empty one says.
            let text = std::fs::read(log).unwrap_or_default();
            transports.read(&String::from_utf8_lossy(&text));
        }
        notes.extend(arm.foreign(&transports.settings));
        if transports.is_peer() && transports.shares_memory() {
            notes.push(format!(
                "ranks joined by shared memory: {}",
                transports.shared_pairs()
            ));
        }
        if let Some(opened) = &opened {
            let version = version(opened.version);
            let told = format!("NCCL {version} from {}", opened.library);
            if !self.answer.notes.contains(&told) {
                self.answer.notes.push(told);
            }
            self.answer.authenticity = Some(opened.authenticity);
            notes.push(format!("NCCL {version}"));
        }
        let broken = results
            .iter()
            .any(|(_, result)| result.outcome.is_failure() || !result.outcome.ran());
        for (row, result) in results {
            self.answer.reductions.push(self.reduction(
                (arm, arrangement, transports.told()),
                (row, result),
                &notes,
            ));
        }
        Some(End { transports, broken })
    }

    fn start(
        &self,
        arm: Arm,
        processes: Vec<Vec<u32>>,
        logs: &[PathBuf],
    ) -> Result<Group, Trouble> {
        let temporary = std::env::temp_dir();
        let cache = self.folder.as_ref();
        let cache = cache.map_or(temporary.as_path(), PrivateFolder::path);
        let processes: Vec<_> = processes
            .into_iter()
            .zip(logs)
            .map(|(mine, log)| {
                let mut environment = fixed_environment(cache);
                environment.extend(arm.environment(log));
                (mine, environment)
            })
            .collect();
        let library = self.request.library.as_deref();
        Group::start((&self.request.gpus, library), &processes)
    }

    fn measure(&self, group: &mut Group) -> Vec<(Row, Measured)> {
        let rows = self.rows();
        let mut results = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let ask = self.ask(row, &group.opened, at);
            match group.measure(&ask, self.request.gpus.len()) {
                Ok(measured) => {
                    let retire = measured.retire;
                    let why = measured.outcome.word();
                    results.push((*row, measured));
                    if retire {
                        let reason = format!(
                            "the processes were given up after a {why} at {} bytes",
                            row.bytes
                        );
                        let rest = rows.iter().skip(at + 1);
                        results.extend(rest.map(|row| (*row, not_run(reason.clone()))));
                        break;
                    }
                }
                Err(trouble) => {
                    results.extend(self.after(at, trouble));
                    break;
                }
            }
        }
        results
    }

    /// The rows from `first` on, of an arm that ended there: the first tells how, the others are not run.
    fn after(&self, first: usize, trouble: Trouble) -> Vec<(Row, Measured)> {
        let (outcome, notes) = trouble.outcome();
        let reason = match &outcome {
            Outcome::NotRun { reason } => reason.clone(),
            other => format!("the arm ended before: {}", other.word()),
        };
        let rows = self.rows().into_iter().skip(first).enumerate();
        rows.map(|(at, row)| {
            let measured = match at {
                0 => Measured {
                    outcome: outcome.clone(),
                    notes: notes.clone(),
                    ..not_run(String::new())
                },
                _ => not_run(reason.clone()),
            };
            (row, measured)
        })
        .collect()
    }

    fn ask(&self, row: &Row, opened: &Opened, at: usize) -> Measure {
        // Vectors and sums, and NCCL needs memory of its own.
        let room = opened.free_bytes / 4 / (2 * row.bytes).max(1);
        let calls = (SAMPLE_BYTES / row.bytes.max(1)).min(room).clamp(1, CALLS);
        Measure {
            bytes: row.bytes,
            dtype: row.dtype,
            in_place: row.in_place,
            launch: row.launch,
            samples: self.request.samples,
            warmup: WARMUP,
            calls: calls as u32,
            seed: at as u32 + 1,
        }
    }

    fn reduction(
        &self,
        (arm, arrangement, transport): (Arm, Arrangement, String),
        (row, result): (Row, Measured),
        notes: &[String],
    ) -> Reduction {
        let mut notes = notes.to_vec();
        notes.extend(result.notes);
        let intact = result.outcome.is_intact();
        if !intact && !result.samples_us.is_empty() {
            notes.push("no time is kept of sums that were wrong or never came".to_string());
        }
        let time = (intact && !result.samples_us.is_empty()).then(|| {
            let launch = match row.launch {
                Launch::Graph => "one graph of several calls a rank".to_string(),
                Launch::Eager => "several calls".to_string(),
            };
            Measurement {
                caveats: stats::caveats(&result.samples_us),
                samples: result.samples_us,
                unit: Unit::Us,
                warmup: WARMUP,
                method: format!(
                    "events on each rank's stream around {launch}, divided by the calls; the shortest of the ranks, as the others also waited for the last one's launch"
                ),
            }
        });
        Reduction {
            algorithm: arm.id().to_string(),
            gpus: self.request.gpus.iter().map(|(gpu, _)| *gpu).collect(),
            arrangement,
            dtype: row.dtype,
            bytes: row.bytes,
            in_place: row.in_place,
            launch: row.launch,
            outcome: result.outcome,
            calls: result.calls,
            time,
            transport: Some(transport),
            notes,
        }
    }
}

/// "2.28.3" of 22803; NCCL before 2.9 counted with two digits less.
fn version(number: u32) -> String {
    let (major, rest) = match number {
        n if n >= 10_000 => (n / 10_000, n % 10_000),
        n => (n / 1000, n % 1000),
    };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

fn not_run(reason: String) -> Measured {
    Measured {
        outcome: Outcome::NotRun { reason },
        samples_us: Vec::new(),
        calls: 0,
        retire: false,
        notes: Vec::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version(22803), "2.28.3");
        assert_eq!(version(2708), "2.7.8");
    }
}
