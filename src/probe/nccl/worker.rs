//! The NCCL worker process: opens NCCL and the GPUs of its ranks, joins the group, and runs one all-reduce after another until its
//! input closes. Every timed call is judged: each has memory of its own, filled before and read afterwards. Standard output is the
//! protocol's alone; NCCL's log goes to a file by its environment.

use super::{
    vectors::{self, Call, POISON, Wrong},
    wire::{Ask, Measure, Measured, Opened, Reply, hex, unhex},
};
use crate::{
    ffi::{
        driver::DriverError,
        nccl::{Nccl, UniqueId},
    },
    gpu::{
        Context, Device, DeviceMemory, Event, Graph, PinnedMemory, Region, Stream, System,
        WaitError,
        nccl::{CommError, Communicators, Part},
    },
    model::{
        case::{Corruption, Outcome},
        pci::PciAddress,
        reduction::Launch,
    },
    probe::worker::find,
};
use std::{
    cell::RefCell,
    ffi::OsStr,
    io::{BufRead, Write},
    sync::Arc,
    time::{Duration, Instant},
};

/// Pinned memory through which vectors come and go, bytes: a whole number of elements of every type.
const WINDOW: u64 = 4 << 20;
/// A sample may take this long before it counts as hung. NCCL's kernels wait for each other without a limit of their own.
pub(super) const SAMPLE_LIMIT: Duration = Duration::from_secs(20);

/// One rank that this process holds.
struct Rank {
    rank: u32,
    gpu: u32,
    context: Arc<Context>,
    stream: Stream,
    begin: Event,
    end: Event,
    window: RefCell<PinnedMemory>,
}

/// An open worker.
struct Worker {
    nccl: Arc<Nccl>,
    system: System,
    world: u32,
    ranks: Vec<Rank>,
    joined: Option<Communicators>,
}

/// What ends a measurement before its last sample.
enum Stop {
    /// A wait that did not end.
    Hung(Duration),
    /// NCCL or the driver.
    Error(CommError),
}

impl From<CommError> for Stop {
    fn from(error: CommError) -> Self {
        Stop::Error(error)
    }
}

impl From<DriverError> for Stop {
    fn from(error: DriverError) -> Self {
        Stop::Error(error.into())
    }
}

impl From<WaitError> for Stop {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut(limit) => Stop::Hung(limit),
            WaitError::Driver(error) => Stop::Error(error.into()),
        }
    }
}

/// Runs the protocol over `input` and `output` until the input closes.
pub fn serve(input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let mut worker: Option<Worker> = None;
    for line in input.lines() {
        let reply = match (serde_json::from_str::<Ask>(&line?), &mut worker) {
            (Err(error), _) => failed(format!("a request could not be read: {error}")),
            (
                Ok(Ask::Open {
                    candidates,
                    gpus,
                    mine,
                }),
                _,
            ) => match Worker::open(&candidates, &gpus, &mine) {
                Ok((opened, ready)) => {
                    worker = Some(ready);
                    Reply::Opened(opened)
                }
                Err(message) => failed(message),
            },
            (Ok(_), None) => failed("a request came before the GPUs were opened".to_string()),
            (Ok(Ask::Id), Some(worker)) => match worker.nccl.unique_id() {
                Ok(id) => Reply::Id(hex(&id.0)),
                Err(error) => refused(&error.into()),
            },
            (Ok(Ask::Join { id }), Some(worker)) => worker.join(&id),
            (Ok(Ask::Measure(ask)), Some(worker)) => Reply::Measured(worker.measure(&ask)),
        };
        let line = serde_json::to_string(&reply).unwrap_or_default();
        writeln!(output, "{line}")?;
        output.flush()?;
    }
    // The group's end is the parent's to ask for, by closing the input; NCCL's own end may wait for other ranks, which the
    // parent closes at the same time.
    drop(worker);
    Ok(())
}

fn failed(message: String) -> Reply {
    Reply::Failed { message }
}

fn refused(error: &CommError) -> Reply {
    Reply::Refused {
        told: error.told(),
        message: error.to_string(),
    }
}

/// The file that NCCL was mapped from: the name alone does not tell which of several was found.
fn mapped() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    let mut own = paths.filter(|path| {
        path.rsplit('/')
            .next()
            .is_some_and(|n| n.starts_with("libnccl"))
    });
    own.next().map(str::to_string)
}

/// Begins the message of a worker that could not open the library itself.
pub(super) const NO_LIBRARY: &str = "no NCCL library: ";

impl Worker {
    fn open(
        candidates: &[String],
        gpus: &[(u32, PciAddress)],
        mine: &[u32],
    ) -> Result<(Opened, Worker), String> {
        let mut whys = Vec::new();
        let opened = candidates
            .iter()
            .find_map(|path| match Nccl::open(OsStr::new(path)) {
                Ok(nccl) => Some((path, nccl)),
                Err(why) => {
                    whys.push(why.to_string());
                    None
                }
            });
        let (path, nccl) = opened.ok_or_else(|| format!("{NO_LIBRARY}{}", whys.join("; ")))?;
        let library = mapped().unwrap_or_else(|| path.clone());
        let version = nccl.version().map_err(|error| error.to_string())?;
        let system = System::start().map_err(|error| error.to_string())?;
        let devices = system.devices().map_err(|error| error.to_string())?;
        let mut ranks = Vec::new();
        let mut free_bytes = u64::MAX;
        for &rank in mine {
            let &(gpu, pci) = gpus
                .get(rank as usize)
                .ok_or("a rank that does not exist")?;
            let device = find(&devices, pci)?;
            let rank = Rank::open(&system, device, (rank, gpu));
            let rank = rank.map_err(|error| format!("GPU{gpu} at {pci}: {error}"))?;
            let (free, _) = rank
                .context
                .memory_info()
                .map_err(|error| error.to_string())?;
            free_bytes = free_bytes.min(free);
            ranks.push(rank);
        }
        let opened = Opened {
            version,
            library,
            authenticity: system.authenticity(),
            deadline_factor: system.deadline_factor(),
            free_bytes,
        };
        let worker = Worker {
            nccl: Arc::new(nccl),
            world: gpus.len() as u32,
            system,
            ranks,
            joined: None,
        };
        Ok((opened, worker))
    }

    fn join(&mut self, id: &str) -> Reply {
        let Some(id) = unhex(id) else {
            return failed("an id that is none".to_string());
        };
        let own: Vec<(u32, Arc<Context>)> = self
            .ranks
            .iter()
            .map(|rank| (rank.rank, rank.context.clone()))
            .collect();
        match Communicators::new(&self.nccl, UniqueId(id), self.world, &own) {
            Ok(joined) => {
                self.joined = Some(joined);
                Reply::Joined
            }
            Err(error) => refused(&error),
        }
    }

    fn measure(&self, ask: &Measure) -> Measured {
        let mut tally = Tally::default();
        let stopped = match &self.joined {
            Some(joined) => Run::new(self, joined, ask).and_then(|run| run.all(&mut tally)),
            None => {
                return tally.measured(Outcome::NotRun {
                    reason: "the group was not made".to_string(),
                });
            }
        };
        let wrong = tally.wrong.take();
        match (stopped, wrong) {
            // Wrong data seen outranks what came later.
            (stopped, Some(mut evidence)) => {
                evidence.wrong_attempts = tally.wrong_samples;
                evidence.attempts_ran = tally.judged_samples;
                tally.retire = stopped.is_err();
                tally.measured(Outcome::Corrupt(Box::new(evidence)))
            }
            (Ok(()), None) => tally.measured(Outcome::Intact),
            (Err(Stop::Hung(limit)), None) => {
                tally.retire = true;
                tally.measured(Outcome::TimedOut {
                    after_ms: limit.as_millis() as u64,
                })
            }
            (Err(Stop::Error(error)), None) => {
                tally.retire = true;
                let (api, code, name) = error.told();
                tally.notes.push(error.to_string());
                tally.measured(Outcome::Faulted { api, code, name })
            }
        }
    }
}

impl Rank {
    fn open(
        system: &System,
        device: &Device,
        (rank, gpu): (u32, u32),
    ) -> Result<Rank, DriverError> {
        let context = Context::new(system.driver(), device)?;
        Ok(Rank {
            rank,
            gpu,
            stream: Stream::new(&context)?,
            begin: Event::new(&context)?,
            end: Event::new(&context)?,
            window: RefCell::new(PinnedMemory::new(&context, WINDOW as usize)?),
            context,
        })
    }
}

/// What a measurement has come to so far.
#[derive(Default)]
struct Tally {
    samples_us: Vec<f64>,
    calls: u64,
    judged_samples: u32,
    wrong_samples: u32,
    wrong: Option<Corruption>,
    retire: bool,
    notes: Vec<String>,
}

impl Tally {
    fn measured(self, outcome: Outcome) -> Measured {
        Measured {
            outcome,
            samples_us: self.samples_us,
            calls: self.calls,
            retire: self.retire,
            notes: self.notes,
        }
    }
}

/// One measurement with its memory.
struct Run<'a> {
    worker: &'a Worker,
    joined: &'a Communicators,
    ask: &'a Measure,
    /// Of each rank: the vectors of all calls, and the sums unless they go in place.
    memory: Vec<(DeviceMemory, Option<DeviceMemory>)>,
    limit: Duration,
}

impl<'a> Run<'a> {
    fn new(worker: &'a Worker, joined: &'a Communicators, ask: &'a Measure) -> Result<Self, Stop> {
        let bytes = ask.bytes * u64::from(ask.calls);
        let mut memory = Vec::new();
        for rank in &worker.ranks {
            let sums = match ask.in_place {
                true => None,
                false => Some(DeviceMemory::new(&rank.context, bytes)?),
            };
            memory.push((DeviceMemory::new(&rank.context, bytes)?, sums));
        }
        Ok(Run {
            worker,
            joined,
            ask,
            memory,
            limit: SAMPLE_LIMIT * worker.system.deadline_factor(),
        })
    }

    /// Vector and sum of one call on one rank.
    fn slot(&self, local: usize, call: u32) -> Option<(Region, Region)> {
        let (vectors, sums) = self.memory.get(local)?;
        let part = |memory: &DeviceMemory| {
            memory
                .region()
                .part(u64::from(call) * self.ask.bytes, self.ask.bytes)
        };
        Some((part(vectors)?, part(sums.as_ref().unwrap_or(vectors))?))
    }

    fn all(&self, tally: &mut Tally) -> Result<(), Stop> {
        // The first call of a size connects what NCCL needs for it, which a capture could not take.
        self.sample(0, None, 1, tally)?;
        let graphs = match self.ask.launch {
            Launch::Eager => None,
            Launch::Graph => Some(self.capture()?),
        };
        for number in 1..=self.ask.warmup + self.ask.samples {
            let us = self.sample(number, graphs.as_deref(), self.ask.calls, tally)?;
            if number > self.ask.warmup {
                tally.samples_us.push(us);
            }
        }
        Ok(())
    }

    /// Queues one call on every rank of this process.
    fn call(&self, call: u32) -> Result<(), Stop> {
        let ranks = self.worker.ranks.iter().enumerate();
        let parts: Vec<Part<'_>> = ranks
            .filter_map(|(local, rank)| {
                let (from, to) = self.slot(local, call)?;
                Some(Part {
                    local,
                    stream: &rank.stream,
                    from,
                    to,
                })
            })
            .collect();
        Ok(self
            .joined
            .all_reduce(&parts, self.ask.bytes, self.ask.dtype)?)
    }

    /// All calls of a sample as one graph per rank.
    fn capture(&self) -> Result<Vec<Graph>, Stop> {
        let ranks = &self.worker.ranks;
        let mut begun = 0;
        let recorded = ranks
            .iter()
            .try_for_each(|rank| {
                Graph::begin(&rank.stream)?;
                begun += 1;
                Ok::<(), DriverError>(())
            })
            .map_err(Stop::from)
            .and_then(|()| (0..self.ask.calls).try_for_each(|call| self.call(call)));
        // Every capture that began must end, also after an error, and all of them before anything is made of the first.
        let ended: Vec<_> = ranks
            .iter()
            .take(begun)
            .map(|rank| Graph::end(&rank.stream))
            .collect();
        recorded?;
        let ready = ended
            .into_iter()
            .zip(ranks)
            .map(|(captured, rank)| captured?.ready(&rank.stream));
        Ok(ready.collect::<Result<_, DriverError>>()?)
    }

    /// Fills, runs, reads and judges one sample of `calls` calls; microseconds of a call.
    fn sample(
        &self,
        number: u32,
        graphs: Option<&[Graph]>,
        calls: u32,
        tally: &mut Tally,
    ) -> Result<f64, Stop> {
        let ask = self.ask;
        let data: Vec<Call> = (0..calls)
            .map(|call| {
                let number = u64::from(number) * u64::from(ask.calls) + u64::from(call);
                Call::new(ask.dtype, self.worker.world, ask.bytes, (ask.seed, number))
            })
            .collect();
        for (local, rank) in self.worker.ranks.iter().enumerate() {
            self.fill(local, rank, &data)?;
        }
        let ranks = &self.worker.ranks;
        match graphs {
            Some(graphs) => {
                for (rank, graph) in ranks.iter().zip(graphs) {
                    rank.stream.record(&rank.begin)?;
                    graph.launch(&rank.stream)?;
                    rank.stream.record(&rank.end)?;
                }
            }
            None => {
                for rank in ranks {
                    rank.stream.record(&rank.begin)?;
                }
                for call in 0..calls {
                    self.call(call)?;
                }
                for rank in ranks {
                    rank.stream.record(&rank.end)?;
                }
            }
        }
        let until = Instant::now() + self.limit;
        for rank in ranks {
            // At least a moment: work that is done is seen as done.
            let left = until.saturating_duration_since(Instant::now());
            rank.stream
                .wait(left.max(Duration::from_millis(1)))
                .map_err(|error| match error {
                    WaitError::TimedOut(_) => Stop::Hung(self.limit),
                    other => other.into(),
                })?;
        }
        self.joined.healthy()?;
        let mut shortest = f64::INFINITY;
        for rank in ranks {
            let ms = rank.begin.elapsed_ms(&rank.end)?;
            shortest = shortest.min(ms * 1e3 / f64::from(calls.max(1)));
        }
        let mut wrong = None;
        for (local, rank) in ranks.iter().enumerate() {
            let found = self.judge(local, rank, &data, number)?;
            wrong = wrong.or(found);
        }
        tally.calls += u64::from(calls);
        tally.judged_samples += 1;
        tally.wrong_samples += u32::from(wrong.is_some());
        if tally.wrong.is_none() {
            tally.wrong = wrong;
        }
        Ok(shortest)
    }

    /// Puts a rank's vectors of all calls in place, and poison where the sums go.
    fn fill(&self, local: usize, rank: &Rank, data: &[Call]) -> Result<(), Stop> {
        let window = rank.window.borrow().region();
        for (call, data) in data.iter().enumerate() {
            let Some((vector, sum)) = self.slot(local, call as u32) else {
                continue;
            };
            if !self.ask.in_place {
                rank.stream.set_bytes(sum, POISON)?;
            }
            let pattern = data.input(rank.rank);
            for (offset, length) in windows(self.ask.bytes) {
                let mut bytes = vec![0; length as usize];
                vectors::repeat(&pattern, offset as usize, &mut bytes);
                rank.window.borrow_mut().write(0, &bytes);
                if let (Some(to), Some(from)) =
                    (vector.part(offset, length), window.part(0, length))
                {
                    rank.stream.copy(to, from)?;
                }
                rank.stream.wait(self.limit)?;
            }
        }
        Ok(rank.stream.wait(self.limit)?)
    }

    /// Reads a rank's sums of all calls and compares them; the first that is wrong.
    fn judge(
        &self,
        local: usize,
        rank: &Rank,
        data: &[Call],
        number: u32,
    ) -> Result<Option<Corruption>, Stop> {
        let window = rank.window.borrow().region();
        for (call, data) in data.iter().enumerate() {
            let Some((_, sum)) = self.slot(local, call as u32) else {
                continue;
            };
            let pattern = data.sum();
            let mut wrong = Wrong::default();
            for (offset, length) in windows(self.ask.bytes) {
                if let (Some(from), Some(to)) = (sum.part(offset, length), window.part(0, length)) {
                    rank.stream.copy(to, from)?;
                }
                rank.stream.wait(self.limit)?;
                let seen = rank.window.borrow().read(0, length as usize);
                let seen = seen.unwrap_or_default();
                wrong.compare(&pattern, offset as usize, &seen, self.ask.dtype);
            }
            if !wrong.is_right() {
                let what = format!("rank {} on GPU{}, call {}", rank.rank, rank.gpu, call + 1);
                return Ok(Some(wrong.evidence(&what, number + 1, (1, 1))));
            }
        }
        Ok(None)
    }
}

/// Pieces of a vector that fit the window.
fn windows(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes.div_ceil(WINDOW)).map(move |n| (n * WINDOW, WINDOW.min(bytes - n * WINDOW)))
}
