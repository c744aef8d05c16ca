//! Workers that can be started: their fixed environment, their private folder, how they open, and requests to a single
//! one. Knows processes and the wire; not which cases are put, nor what answers mean.

use super::{
    folder::PrivateFolder,
    mechanism::Place,
    plan::Plan,
    ranks::Ranks,
    reduced, resident, transfer,
    wire::{Answer, Open, Opened, Reply, Request},
};
use crate::{
    child::{Child, ReceiveError},
    model::{
        case::{Case, Rung},
        pair::GpuIndex,
        pci::PciAddress,
        report::{BenchRow, Selftest},
        snapshot::{Authenticity, Snapshot},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Starting a worker: driver load, contexts and kernel compilation on up to 16 GPUs.
pub(super) const OPEN_LIMIT: Duration = Duration::from_secs(180);
/// How long a worker may take to end by itself.
pub(super) const END_GRACE: Duration = Duration::from_secs(5);
/// Hidden subcommand of a worker.
pub const WORKER: &str = "worker";
/// Hidden subcommand of a rank.
pub const RANK: &str = "rank";

/// Variables fixed for workers: name, value (`None` = unset).
pub(super) fn fixed_environment(cache: &std::path::Path) -> Vec<(String, Option<String>)> {
    let set = |name: &str, value: &str| (name.to_string(), Some(value.to_string()));
    let unset = |name: &str| (name.to_string(), None);
    vec![
        set("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        set("CUDA_MODULE_LOADING", "EAGER"),
        set("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        set("CUDA_CACHE_PATH", &cache.to_string_lossy()),
        unset("CUDA_LAUNCH_BLOCKING"),
        unset("CUDA_DISABLE_PTX_JIT"),
        unset("CUDA_FORCE_PTX_JIT"),
    ]
}

/// The fixed environment in words, with what it replaces.
pub(super) fn environment_words(fixed: &[(String, Option<String>)]) -> Vec<String> {
    let words = fixed.iter().map(|(name, value)| {
        let now = match value {
            Some(_) if name == "CUDA_CACHE_PATH" => {
                "a private folder, removed after the run".to_string()
            }
            Some(value) => value.clone(),
            None => "unset".to_string(),
        };
        match std::env::var(name) {
            Ok(had) => format!(
                "{name}: {now} (the operator had '{}')",
                had.chars().take(80).collect::<String>()
            ),
            Err(_) => format!("{name}: {now}"),
        }
    });
    words.collect()
}

/// Workers that can be started.
pub struct Pool<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) plan: &'a Plan,
    pub(super) environment: Vec<(String, Option<String>)>,
    _folder: Option<PrivateFolder>,
    pub(super) run: u32,
    generation: u8,
    pub(super) factor: u32,
    pub(super) quarantined: BTreeSet<u32>,
    /// All workers of the run, ended ones too.
    pub(super) pids: Vec<u32>,
    /// GPUs on which no rank could start, and why: not tried again.
    pub(super) no_rank: BTreeMap<u32, String>,
    /// Workers that were started before they are asked for.
    ahead: BTreeMap<Place, Opening>,
    /// The same of ranks.
    ranks_ahead: Option<Ranks>,
    /// Waiting for workers that were told to end.
    closing: Vec<std::thread::JoinHandle<()>>,
}

/// A worker that was asked to open these GPUs and has not answered.
struct Opening {
    gpus: Vec<(u32, PciAddress)>,
    child: Child,
}

/// A worker and what it said when it opened.
pub struct Ready {
    pub(super) child: Child,
    /// Its first answer.
    pub opened: Opened,
}

impl<'a> Pool<'a> {
    /// Prepares for workers over the plan's GPUs.
    pub fn new(snapshot: &'a Snapshot, plan: &'a Plan) -> Pool<'a> {
        let folder = PrivateFolder::new();
        let path = folder
            .as_ref()
            .map_or_else(std::env::temp_dir, |folder| folder.path().to_path_buf());
        let clock = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos());
        let run = (clock as u64 ^ u64::from(std::process::id()) << 13)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 40;
        Pool {
            snapshot,
            plan,
            environment: fixed_environment(&path),
            _folder: folder,
            run: run as u32,
            generation: 0,
            factor: 1,
            quarantined: BTreeSet::new(),
            pids: Vec::new(),
            no_rank: BTreeMap::new(),
            ahead: BTreeMap::new(),
            ranks_ahead: None,
            closing: Vec::new(),
        }
    }

    /// Starts workers with contexts on all GPUs that are not quarantined. Ranks start when their first case comes.
    pub(super) fn open(&mut self, place: Place) -> Result<Staff, String> {
        match place {
            Place::Off | Place::On | Place::Granted => self.solo(place).map(Staff::Solo),
            Place::Ranks => Ok(Staff::Ranks(match self.ranks_ahead.take() {
                Some(ranks) => ranks,
                None => Ranks::new(self.next_generation(), self.run),
            })),
        }
    }

    /// Starts the workers of these places and does not wait for them: they are ready by the time they are asked for.
    pub(super) fn start_ahead(&mut self, places: impl Iterator<Item = Place>) {
        for place in places {
            match place {
                Place::Ranks => {
                    let mut ranks = Ranks::new(self.next_generation(), self.run);
                    ranks.start_ahead(self);
                    self.ranks_ahead = Some(ranks);
                }
                // What hinders it is told when it is asked for.
                solo => {
                    if let Ok(opening) = self.begin(solo) {
                        self.ahead.insert(solo, opening);
                    }
                }
            }
        }
    }

    /// Closes workers: at once where others need their memory, else beside what comes next.
    pub(super) fn close(&mut self, staff: Staff) {
        match self.plan.ahead {
            true => self.closing.push(std::thread::spawn(move || staff.end())),
            false => staff.end(),
        }
    }

    /// Closes what nobody asked for, and waits for the end of all.
    pub(super) fn close_all(&mut self) {
        let mut idle: Vec<Child> = std::mem::take(&mut self.ahead)
            .into_values()
            .map(|opening| opening.child)
            .collect();
        idle.extend(
            self.ranks_ahead
                .take()
                .into_iter()
                .flat_map(Ranks::into_children),
        );
        Child::end_all(idle, END_GRACE);
        for closing in self.closing.drain(..) {
            // A thread that only waits does not panic.
            let _ = closing.join();
        }
    }

    fn next_generation(&mut self) -> u8 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Chosen GPUs that are not quarantined, with their addresses.
    pub(super) fn usable(&self) -> Vec<(u32, PciAddress)> {
        let chosen = self.plan.gpus.iter();
        let chosen = chosen.filter(|gpu| !self.quarantined.contains(gpu));
        chosen
            .filter_map(|gpu| Some((*gpu, *self.snapshot.gpu(GpuIndex(*gpu))?.pci.known()?)))
            .collect()
    }

    /// One process over all GPUs, with peer access enabled everywhere or never.
    pub(super) fn open_solo(&mut self, peer_access: bool) -> Result<Ready, String> {
        self.solo(if peer_access { Place::On } else { Place::Off })
    }

    /// The same process with other buffers: contexts stay, so a start is saved.
    pub(super) fn reopen(&mut self, mut ready: Ready, place: Place) -> Result<Staff, String> {
        let (open, _) = self.opening(place);
        let sent = ready.child.send(&open).map_err(|error| error.to_string());
        match sent.and_then(|()| self.opened(ready.child)) {
            Ok(ready) => Ok(Staff::Solo(ready)),
            Err(why) => Err(why),
        }
    }

    fn solo(&mut self, place: Place) -> Result<Ready, String> {
        let usable = self.usable();
        let child = match self.ahead.remove(&place) {
            Some(opening) if opening.gpus == usable => opening.child,
            stale => {
                if let Some(stale) = stale {
                    stale.child.kill();
                }
                self.begin(place)?.child
            }
        };
        self.opened(child)
    }

    /// Waits for a worker to say that its GPUs are open.
    fn opened(&mut self, mut child: Child) -> Result<Ready, String> {
        match child.receive::<Reply>(Instant::now() + OPEN_LIMIT) {
            Ok(Reply::Opened(opened)) => {
                self.factor = opened.deadline_factor;
                Ok(Ready { child, opened })
            }
            Ok(Reply::Failed { message, .. }) => {
                child.end(END_GRACE);
                Err(message)
            }
            Ok(other) => Err(format!("a worker answered out of turn: {other:?}")),
            Err(error) => Err(format!("a worker did not start: {error}")),
        }
    }

    /// Starts a worker over all usable GPUs and asks it to open them.
    fn begin(&mut self, place: Place) -> Result<Opening, String> {
        let (open, gpus) = self.opening(place);
        let mut child = Child::spawn(&[WORKER.to_string()], &self.environment)
            .map_err(|error| error.to_string())?;
        self.pids.push(child.pid());
        child.send(&open).map_err(|error| error.to_string())?;
        Ok(Opening { gpus, child })
    }

    /// What asks a worker to open all usable GPUs, and which those are.
    fn opening(&mut self, place: Place) -> (Request, Vec<(u32, PciAddress)>) {
        let gpus = self.usable();
        let open = Request::Open(Open {
            gpus: gpus.clone(),
            run: self.run,
            generation: self.next_generation(),
            peer_access: place == Place::On,
            pooled: place == Place::Granted,
            layout: self.plan.layout,
        });
        (open, gpus)
    }

    /// Wall limit of a request.
    pub(super) fn limit(&self, cases: &[Case]) -> Duration {
        limit(cases, self.factor)
    }
}

/// Wall limit of a request. A worker ends a case at the first step that misses its own limit, so a few of those and time for
/// its arithmetic are enough; this limit is for a worker that is stuck inside the driver.
pub(super) fn limit(cases: &[Case], factor: u32) -> Duration {
    let step = |case: &Case| transfer::limit(case.bytes, factor);
    let longest = cases.iter().map(step).max().unwrap_or_default();
    // What the cases take on a slow link, attempt by attempt: single-GPU cases run one after the other.
    let work: f64 = cases
        .iter()
        .map(|case| case.bytes as f64 * f64::from(case.attempts) / 1e9)
        .sum();
    let waiting = cases
        .iter()
        .filter(|case| case.rung == Rung::Resident && case.all_reduce.is_none());
    let reductions = cases.iter().filter(|case| case.all_reduce.is_some());
    let waiting = waiting
        .map(resident::whole)
        .chain(reductions.map(reduced::whole))
        .max()
        .map(|whole| whole * factor);
    longest * 3
        + waiting.unwrap_or_default()
        + Duration::from_secs_f64(work * f64::from(factor))
        + Duration::from_secs(5) * factor
}

/// How cases are put.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    /// Whether to look for lost words in the other GPUs' buffers: only meaningful for a case that runs alone.
    pub(super) search: bool,
    /// Pass of a soak: moves the seeds.
    pub(super) pass: u16,
}

/// The open worker processes of one place.
pub(super) enum Staff {
    /// One process over all GPUs.
    Solo(Ready),
    /// One process per GPU.
    Ranks(Ranks),
}

impl Staff {
    /// What its workers said when they opened.
    pub(super) fn opened(&self) -> Vec<&Opened> {
        match self {
            Staff::Solo(ready) => vec![&ready.opened],
            Staff::Ranks(ranks) => ranks.opened().collect(),
        }
    }

    /// Starts what is still missing for these cases; whether anything was.
    pub(super) fn complete(&mut self, pool: &mut Pool, cases: &[Case], look: Look) -> bool {
        match self {
            Staff::Solo(_) => false,
            Staff::Ranks(ranks) => ranks.complete(pool, cases, look),
        }
    }

    /// The one process over all GPUs, if this is it.
    pub(super) fn solo(&mut self) -> Option<&mut Ready> {
        match self {
            Staff::Solo(ready) => Some(ready),
            Staff::Ranks(_) => None,
        }
    }

    /// Runs cases side by side. The text says why these workers must not be used again, if so.
    pub(super) fn run(
        &mut self,
        cases: &[Case],
        look: Look,
        deadline: Instant,
    ) -> (BTreeMap<u32, Answer>, Option<String>) {
        match self {
            Staff::Solo(ready) => ready.run(cases, look, deadline),
            Staff::Ranks(ranks) => ranks.run(cases, look, deadline),
        }
    }

    /// Closes them.
    pub(super) fn end(self) {
        match self {
            Staff::Solo(ready) => ready.end(),
            Staff::Ranks(ranks) => Child::end_all(ranks.into_children(), END_GRACE),
        }
    }

    /// Kills them; false when one of them cannot be killed.
    pub(super) fn kill(self) -> bool {
        match self {
            Staff::Solo(ready) => ready.child.kill(),
            Staff::Ranks(ranks) => Child::kill_all(ranks.into_children()),
        }
    }
}

impl Ready {
    fn run(
        &mut self,
        cases: &[Case],
        look: Look,
        deadline: Instant,
    ) -> (BTreeMap<u32, Answer>, Option<String>) {
        let mut answers = BTreeMap::new();
        let mut ended = None;
        let mut sent = self.child.send(&Request::Run {
            cases: cases.to_vec(),
            search: look.search,
            pass: look.pass,
        });
        loop {
            let reply = match sent {
                Ok(()) => self.child.receive::<Reply>(deadline),
                Err(error) => Err(error),
            };
            sent = Ok(());
            match reply {
                Ok(Reply::Answer(answer)) => {
                    if answer.retire {
                        ended = Some("retired after a fault".to_string());
                    }
                    answers.insert(answer.id, answer);
                }
                Ok(Reply::Done) => break,
                Ok(other) => {
                    ended = Some(format!("a worker answered out of turn: {other:?}"));
                    break;
                }
                Err(error) => {
                    ended = Some(match error {
                        ReceiveError::Ended(how) => how,
                        other => other.to_string(),
                    });
                    break;
                }
            }
        }
        (answers, ended)
    }

    /// Sends one request and waits for one reply.
    pub fn ask(&mut self, request: &Request, limit: Duration) -> Result<Reply, ReceiveError> {
        self.child.send(request)?;
        self.child.receive(Instant::now() + limit)
    }

    /// Closes it.
    pub fn end(self) {
        self.child.end(END_GRACE);
    }
}

/// Runs the self-test alone on the first chosen GPU.
pub fn selftest(snapshot: &Snapshot, plan: &Plan) -> Result<(Selftest, Authenticity), String> {
    let mut pool = Pool::new(snapshot, plan);
    let mut ready = pool.open_solo(false)?;
    let gpu = *plan.gpus.first().ok_or("no GPU was chosen")?;
    let limit = Duration::from_secs(60) * pool.factor;
    let reply = ready.ask(&Request::Selftest { gpu }, limit);
    let authenticity = ready.opened.authenticity;
    ready.end();
    match reply {
        Ok(Reply::Planted(selftest)) => Ok((selftest, authenticity)),
        Ok(Reply::Failed { message, .. }) => Err(message),
        Ok(other) => Err(format!("a worker answered out of turn: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Measures kernels and host link on the first chosen GPU.
pub fn bench(
    snapshot: &Snapshot,
    plan: &Plan,
    samples: u32,
) -> Result<(Vec<BenchRow>, Authenticity), String> {
    let mut pool = Pool::new(snapshot, plan);
    let mut ready = pool.open_solo(false)?;
    let gpu = *plan.gpus.first().ok_or("no GPU was chosen")?;
    let limit = Duration::from_secs(120) * pool.factor;
    let reply = ready.ask(&Request::Bench { gpu, samples }, limit);
    let authenticity = ready.opened.authenticity;
    ready.end();
    match reply {
        Ok(Reply::Measured(rows)) => Ok((rows, authenticity)),
        Ok(Reply::Failed { message, .. }) => Err(message),
        Ok(other) => Err(format!("a worker answered out of turn: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}
