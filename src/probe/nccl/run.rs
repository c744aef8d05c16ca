//! The parent's half: which arms run, in which processes, with which answers. Knows processes and rows; never loads NCCL.

use super::{
    NCCL,
    arms::Arm,
    place,
    transport::Transports,
    wire::{Ask, Measure, Measured, Opened, Reply},
    worker::SAMPLE_LIMIT,
};
use crate::{
    child::{Child, ReceiveError},
    model::{
        case::Outcome,
        measurement::{Measurement, Unit},
        pci::PciAddress,
        reduction::{Arrangement, Dtype, Launch, Reduction},
        snapshot::Authenticity,
    },
    probe::{
        folder::PrivateFolder,
        pool::{END_GRACE, OPEN_LIMIT, fixed_environment},
    },
    stats,
};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Making a communicator: NCCL looks at the host, opens sockets and exchanges addresses.
const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// Calls of one sample, at most: what a launch costs and when the ranks begin is shared by all of them.
const CALLS: u64 = 20;
/// Bytes of one sample's vectors on one rank, at most: all of them are filled and compared by the host.
const SAMPLE_BYTES: u64 = 32 << 20;
/// Samples that are judged but not timed.
const WARMUP: u32 = 3;
/// Bytes a second that filling and comparing takes on a slow host.
const JUDGED_PER_S: f64 = 2e8;

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
        let (results, opened) = match Group::start(self, arm, &processes, &logs) {
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

/// Why an arm ended early.
enum Trouble {
    /// No library could be opened.
    NoLibrary(String),
    /// It cannot be run here.
    Cannot(String),
    /// NCCL or the driver answered an error, with the whole sentence.
    Faulted((String, u32, String), String),
    /// Nothing came in time.
    Hung(&'static str, Duration),
    /// A process ended.
    Died(String),
    /// The operator interrupted.
    Interrupted,
}

impl Trouble {
    fn outcome(self) -> (Outcome, Vec<String>) {
        match self {
            Trouble::NoLibrary(reason) | Trouble::Cannot(reason) => {
                (Outcome::NotRun { reason }, Vec::new())
            }
            Trouble::Faulted((api, code, name), message) => {
                (Outcome::Faulted { api, code, name }, vec![message])
            }
            Trouble::Hung(what, limit) => (
                Outcome::TimedOut {
                    after_ms: limit.as_millis() as u64,
                },
                vec![what.to_string()],
            ),
            Trouble::Died(how) => (Outcome::Died { how }, Vec::new()),
            Trouble::Interrupted => (
                Outcome::NotRun {
                    reason: "interrupted".to_string(),
                },
                Vec::new(),
            ),
        }
    }

    fn of(error: ReceiveError, what: &'static str, limit: Duration) -> Trouble {
        match error {
            ReceiveError::TimedOut => Trouble::Hung(what, limit),
            ReceiveError::Interrupted => Trouble::Interrupted,
            ReceiveError::Ended(how) => Trouble::Died(how),
            ReceiveError::Garbled(text) => {
                Trouble::Cannot(format!("a worker was not understood: {text}"))
            }
        }
    }
}

/// The processes of one arm, joined. Dropping it kills them.
struct Group {
    children: Vec<Child>,
    opened: Opened,
}

impl Group {
    fn start(
        session: &Session<'_>,
        arm: Arm,
        processes: &[Vec<u32>],
        logs: &[PathBuf],
    ) -> Result<Group, Trouble> {
        let temporary = std::env::temp_dir();
        let cache = session
            .folder
            .as_ref()
            .map_or(temporary.as_path(), PrivateFolder::path);
        let candidates = place::candidates(session.request.library.as_deref());
        let looked = place::looked(&candidates);
        let candidates: Vec<String> = candidates
            .into_iter()
            .filter_map(|path| path.into_string().ok())
            .collect();
        let mut children = Vec::new();
        for (mine, log) in processes.iter().zip(logs) {
            let mut environment = fixed_environment(cache);
            environment.extend(arm.environment(log));
            let mut child = Child::spawn(&[NCCL.to_string()], &environment)
                .map_err(|error| Trouble::Cannot(error.to_string()))?;
            let open = Ask::Open {
                candidates: candidates.clone(),
                gpus: session.request.gpus.clone(),
                mine: mine.clone(),
            };
            child
                .send(&open)
                .map_err(|error| Trouble::of(error, "", OPEN_LIMIT))?;
            children.push(child);
        }
        let mut opened: Option<Opened> = None;
        for child in &mut children {
            let own = match receive(child, "a worker did not open its GPUs", OPEN_LIMIT)? {
                Reply::Opened(own) => own,
                // What it cannot open is most often the library itself.
                Reply::Failed { message } if message.contains("nccl") => {
                    return Err(Trouble::NoLibrary(format!(
                        "{message}; looked for {looked} (--nccl PATH names one)"
                    )));
                }
                other => return Err(unexpected(other)),
            };
            opened = Some(match opened {
                None => own,
                Some(first) => Opened {
                    free_bytes: first.free_bytes.min(own.free_bytes),
                    ..first
                },
            });
        }
        let opened = opened.ok_or_else(|| Trouble::Cannot("no process was started".to_string()))?;
        let limit = JOIN_LIMIT * opened.deadline_factor;
        let what = "the communicator was not made in time";
        let id = match children.first_mut() {
            Some(first) => {
                send(first, &Ask::Id, limit)?;
                match receive(first, what, limit)? {
                    Reply::Id(id) => id,
                    other => return Err(unexpected(other)),
                }
            }
            None => return Err(Trouble::Cannot("no process was started".to_string())),
        };
        for child in &mut children {
            send(child, &Ask::Join { id: id.clone() }, limit)?;
        }
        let deadline = Instant::now() + limit;
        for child in &mut children {
            match child.receive(deadline) {
                Ok(Reply::Joined) => {}
                Ok(other) => return Err(unexpected(other)),
                Err(error) => return Err(Trouble::of(error, what, limit)),
            }
        }
        Ok(Group { children, opened })
    }

    /// One row on all processes.
    fn measure(&mut self, ask: &Measure, world: usize) -> Result<Measured, Trouble> {
        let factor = self.opened.deadline_factor;
        let samples = u64::from(ask.samples + ask.warmup + 1);
        let judged = (ask.bytes * u64::from(ask.calls) * samples) as f64 * world as f64;
        // A worker gives a hung sample up by itself; this limit is for one that is stuck inside a call.
        let limit = SAMPLE_LIMIT * factor * 2
            + (Duration::from_secs(20) + Duration::from_secs_f64(judged / JUDGED_PER_S)) * factor;
        for child in &mut self.children {
            send(child, &Ask::Measure(*ask), limit)?;
        }
        let deadline = Instant::now() + limit;
        let mut all = Vec::new();
        for child in &mut self.children {
            match child.receive(deadline) {
                Ok(Reply::Measured(measured)) => all.push(measured),
                Ok(other) => return Err(unexpected(other)),
                Err(error) => {
                    return Err(Trouble::of(error, "a worker is stuck inside a call", limit));
                }
            }
        }
        joined(all).ok_or_else(|| Trouble::Cannot("no process answered".to_string()))
    }

    /// Closes them all at once: NCCL's end waits for the other ranks'.
    fn end(self) {
        Child::end_all(self.children, END_GRACE);
    }
}

/// What several processes say of one row: the worst outcome, and of each sample the shortest time.
fn joined(all: Vec<Measured>) -> Option<Measured> {
    let weight = |outcome: &Outcome| match outcome {
        Outcome::Corrupt(_) => 3,
        Outcome::Faulted { .. } => 2,
        Outcome::Intact => 0,
        _ => 1,
    };
    all.into_iter().reduce(|a, b| {
        let samples = a.samples_us.iter().zip(&b.samples_us);
        let samples_us = samples.map(|(a, b)| a.min(*b)).collect();
        let mut notes = a.notes;
        notes.extend(
            b.notes
                .into_iter()
                .filter(|note| !notes.contains(note))
                .collect::<Vec<_>>(),
        );
        Measured {
            samples_us,
            calls: a.calls.min(b.calls),
            retire: a.retire || b.retire,
            notes,
            outcome: match weight(&b.outcome) > weight(&a.outcome) {
                true => b.outcome,
                false => a.outcome,
            },
        }
    })
}

fn send(child: &mut Child, ask: &Ask, limit: Duration) -> Result<(), Trouble> {
    child
        .send(ask)
        .map_err(|error| Trouble::of(error, "", limit))
}

fn receive(child: &mut Child, what: &'static str, limit: Duration) -> Result<Reply, Trouble> {
    child
        .receive(Instant::now() + limit)
        .map_err(|error| Trouble::of(error, what, limit))
}

fn unexpected(reply: Reply) -> Trouble {
    match reply {
        Reply::Failed { message } => Trouble::Cannot(message),
        Reply::Refused { told, message } => Trouble::Faulted(told, message),
        other => Trouble::Cannot(format!("a worker answered out of turn: {other:?}")),
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

    #[test]
    fn processes_join_by_the_worst_outcome_and_the_shortest_times() {
        let one = |outcome, samples_us: &[f64], calls| Measured {
            outcome,
            samples_us: samples_us.to_vec(),
            calls,
            retire: false,
            notes: vec!["a".to_string()],
        };
        let hung = Outcome::TimedOut { after_ms: 1 };
        let all = joined(vec![
            one(Outcome::Intact, &[3.0, 9.0], 40),
            one(hung.clone(), &[5.0, 8.0], 20),
        ])
        .unwrap();
        assert_eq!(all.outcome, hung);
        assert_eq!((all.samples_us, all.calls), (vec![3.0, 8.0], 20));
        assert_eq!(all.notes, ["a"]);
        assert!(joined(Vec::new()).is_none());
    }
}
