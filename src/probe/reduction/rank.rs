//! One rank: its stream, its memory, its part in a series. Knows the other ranks by their mailboxes only, wherever those
//! come from; refuses to judge the group.
//!
//! Between the begin and the end of a series this process allocates, frees and loads nothing: a kernel of some rank may be
//! waiting.

use super::{
    Mailboxes, Series,
    exact::{Order, Values},
    series::vector_stride,
};
use crate::{
    ffi::driver::DriverError,
    gpu::{
        Context, DeviceMemory, Event, Graph, PinnedMemory, Region, Stream, WaitError,
        kernels::KernelError,
        reduce::{
            CALLS_BYTES, Call, Contents, EPOCH_BYTES, GIVEN_UP_BYTES, GivenUp, Reduce, STATE_BYTES,
            Shape, VERDICT_BYTES, Verdict, fresh_verdict, read_given_up, read_verdict,
        },
    },
    model::{case::Outcome, reduction::Launch},
};
use serde::{Deserialize, Serialize};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What CUDA shares between processes in one piece, bytes.
const SHARED_BLOCK: u64 = 2 << 20;
/// A rank's own words in device memory: state, the two counts of calls, the verdict.
const OWN_BYTES: u64 = STATE_BYTES + 2 * CALLS_BYTES + VERDICT_BYTES;
/// In pinned memory: the stop word, the gate, and where what is read back lies. No two in a line of any cache.
const STOP: u64 = 0;
const GATE: u64 = 256;
const READBACK: u64 = 4096;
const PINNED_BYTES: usize = 16 << 10;
/// Calls queued before the host waits: few enough for the driver's queue.
const BATCH: u32 = 150;
/// What a stream may take to end once it was told to stop.
const GRACE: Duration = Duration::from_secs(2);
/// Wall time of a call that goes well with all that is done around it, beside its bytes; far above what any link needs.
const CALL: Duration = Duration::from_millis(10);
/// Bytes that a slow link carries in a second.
const SLOW: f64 = 2e8;

/// Which rank of how many, and how many of them share its GPU as streams of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its number.
    pub rank: u32,
    /// Ranks in all.
    pub ranks: u32,
    /// Ranks of this process on its GPU, itself included.
    pub sharing: u32,
}

/// Why a rank could not do its part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// The driver refused a call.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Work was queued and did not end, or ended in an error.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// It cannot be done here.
    #[error("{0}")]
    CannotRun(String),
}

impl From<KernelError> for RankError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Driver(error) => RankError::Driver(error),
            other => RankError::CannotRun(other.to_string()),
        }
    }
}

impl RankError {
    /// What this makes of a row.
    pub fn outcome(self) -> Outcome {
        match self {
            RankError::Driver(error) | RankError::Wait(WaitError::Driver(error)) => {
                Outcome::Faulted {
                    api: error.api.to_string(),
                    code: error.code,
                    name: error.name,
                }
            }
            RankError::Wait(WaitError::TimedOut(after)) => Outcome::TimedOut {
                after_ms: after.as_millis() as u64,
            },
            RankError::CannotRun(reason) => Outcome::NotRun { reason },
        }
    }
}

/// What one rank saw of a series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sight {
    /// Its number.
    pub rank: u32,
    /// How it ended otherwise than by itself: hung, faulted, died.
    pub failure: Option<Outcome>,
    /// What its results held; none when they could not be read.
    pub verdict: Option<Verdict>,
    /// Waits that its blocks gave up.
    pub given_up: Vec<GivenUp>,
    /// Microseconds a call, by sample.
    pub us: Vec<f64>,
}

impl Sight {
    /// Of a rank that ended without an answer.
    pub fn lost(rank: u32, failure: Outcome) -> Sight {
        Sight {
            rank,
            failure: Some(failure),
            verdict: None,
            given_up: Vec::new(),
            us: Vec::new(),
        }
    }
}

/// A piece of a series between two waits of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many calls (as a graph: replays), each filled, poisoned, reduced and judged.
    Calls(u32),
    /// A sample: all vectors filled, calls behind a gate, all results judged.
    Sample,
}

/// The pieces of a series, the same on every rank.
pub fn steps(series: &Series) -> Vec<Step> {
    let batch = match series.launch {
        Launch::Eager => BATCH,
        Launch::Graph => (BATCH / series.counts.len().max(1) as u32).max(1),
    };
    let whole = (0..series.calls / batch).map(|_| Step::Calls(batch));
    let rest = Some(series.calls % batch).filter(|n| *n > 0);
    let samples = series.timing.map_or(0, |timing| timing.samples);
    whole
        .chain(rest.map(Step::Calls))
        .chain((0..samples).map(|_| Step::Sample))
        .collect()
}

/// A series under way.
struct Begun {
    series: Series,
    shape: Shape,
    contents: Contents,
    mailboxes: Vec<Region>,
    /// One judged call after the other, for each of the series' counts.
    calls: Option<Graph>,
    /// The timed calls.
    timed: Option<Graph>,
    /// Untimed calls queued so far: they take counts in turn.
    queued: u64,
    us: Vec<f64>,
    failure: Option<Outcome>,
}

/// Wall time of a step that goes well, on a slow link.
fn time_of(series: &Series, step: Step, ranks: u32) -> Duration {
    let calls = match (step, series.launch) {
        (Step::Calls(n), Launch::Eager) => u64::from(n),
        (Step::Calls(n), Launch::Graph) => u64::from(n) * series.counts.len() as u64,
        (Step::Sample, _) => series
            .timing
            .map_or(0, |timing| u64::from(timing.calls + timing.warmup)),
    };
    // Between two processes that take turns on one GPU a wait lasts as long as its limit says it may.
    let patient = series.limit.as_secs_f64() / 100.0;
    let bytes = series.bytes as f64 * f64::from(ranks);
    let each = CALL.as_secs_f64().max(patient) + bytes / SLOW;
    GRACE + Duration::from_secs_f64(each * calls as f64)
}

/// Wall time within which every rank has answered, whatever happened, on real hardware.
pub fn whole(series: &Series, ranks: u32) -> Duration {
    let steps = steps(series).into_iter();
    let work: Duration = steps.map(|step| time_of(series, step, ranks)).sum();
    work + 2 * series.limit + 3 * GRACE
}

/// One rank and its memory.
pub struct Rank {
    /// GPU index of the snapshot.
    pub gpu: u32,
    place: Place,
    stream: Stream,
    kernels: Arc<Reduce>,
    mailbox: DeviceMemory,
    vectors: DeviceMemory,
    own: DeviceMemory,
    pinned: PinnedMemory,
    start: Event,
    end: Event,
    begun: Option<Begun>,
}

impl Rank {
    /// Makes the memory of a rank. `needs` is the most that any series to come needs.
    pub fn open(
        gpu: u32,
        context: &Arc<Context>,
        kernels: &Arc<Reduce>,
        place: Place,
        needs: super::Needs,
    ) -> Result<Rank, RankError> {
        let mailbox = needs.mailbox.max(1).next_multiple_of(SHARED_BLOCK);
        Ok(Rank {
            gpu,
            place,
            stream: Stream::new(context)?,
            kernels: kernels.clone(),
            mailbox: DeviceMemory::new(context, mailbox)?,
            vectors: DeviceMemory::new(context, needs.vectors.max(256))?,
            own: DeviceMemory::new(context, OWN_BYTES)?,
            pinned: PinnedMemory::new(context, PINNED_BYTES)?,
            start: Event::new(context)?,
            end: Event::new(context)?,
            begun: None,
        })
    }

    /// What others have to reach, whole blocks that CUDA shares between processes.
    pub fn mailbox(&self) -> &DeviceMemory {
        &self.mailbox
    }

    /// Begins a series: launches every kernel once with nothing to wait for, resets mailbox and counts, captures. Mailboxes
    /// in rank order, its own among them. No rank may queue anything of the series before all ranks have begun it.
    pub fn begin(
        &mut self,
        series: &Series,
        mailboxes: &[Region],
        limit: Duration,
    ) -> Result<(), RankError> {
        self.begun = None;
        let cannot = |why: &str| RankError::CannotRun(why.to_string());
        let algorithm = series
            .algorithm()
            .ok_or_else(|| cannot("no algorithm of this name"))?;
        let shape = series
            .shape(self.place.ranks)
            .ok_or_else(|| cannot("no algorithm of this name"))?;
        let room = self
            .kernels
            .resident(shape.kernel, shape.threads, self.place.sharing)?;
        let wanted = u64::from(shape.blocks * self.place.sharing);
        if room < wanted {
            return Err(RankError::CannotRun(format!(
                "{wanted} blocks of {} threads wait for each other on GPU{}, which is sure to hold {room} of them at once",
                shape.threads, self.gpu
            )));
        }
        let needs = series.needs(self.place.ranks);
        let own = mailboxes
            .get(self.place.rank as usize)
            .and_then(|own| own.part(0, needs.mailbox))
            .filter(|_| mailboxes.len() == self.place.ranks as usize)
            .ok_or_else(|| cannot("the mailboxes do not fit the series"))?;
        if self.vectors.region().bytes() < needs.vectors {
            return Err(cannot("the vectors do not fit the memory of the rank"));
        }
        let mut begun = Begun {
            series: series.clone(),
            shape,
            contents: Contents {
                dtype: series.dtype,
                seed: series.seed,
                random: series.values == Values::Random,
                islands: algorithm.order() == Order::Islands,
            },
            mailboxes: mailboxes.to_vec(),
            calls: None,
            timed: None,
            queued: 0,
            us: Vec::new(),
            failure: None,
        };
        self.pinned.store_u32(STOP as usize, 0);
        self.pinned.store_u32(GATE as usize, 0);
        self.rehearse(&begun, own)?;
        self.stream.wait(limit)?;
        self.reset(own, algorithm.mailboxes())?;
        self.stream.wait(limit)?;
        if series.launch == Launch::Graph {
            let counts = &series.counts;
            begun.calls = Some(Graph::capture(&self.stream, || {
                (0..counts.len() as u64).try_for_each(|nth| self.judged_call(&begun, nth))
            })?);
            if let Some(timing) = series.timing {
                begun.timed = Some(Graph::capture(&self.stream, || {
                    let timed = timing.warmup..timing.warmup + timing.calls;
                    timed.into_iter().try_for_each(|nth| {
                        self.reduce(&begun, u64::from(nth), begun.series.count())
                    })
                })?);
            }
            self.stream.wait(limit)?;
        }
        self.begun = Some(begun);
        Ok(())
    }

    /// Launches every kernel of the series once, alone.
    fn rehearse(&self, begun: &Begun, own: Region) -> Result<(), RankError> {
        let (input, output) = self.vector(begun, 0)?;
        let call = Call {
            shape: begun.shape,
            dtype: begun.series.dtype,
            count: 0,
            input,
            output,
            rank: 0,
            mailboxes: &[own],
            state: self.own_part(0, STATE_BYTES)?,
            stop: self.pinned_part(STOP, 4)?,
            largest: begun.series.bytes,
            limit: begun.series.limit,
        };
        self.kernels.reduce(&self.stream, &call)?;
        let gate = self.pinned_part(GATE, 4)?;
        self.kernels.gate(&self.stream, gate, Duration::ZERO)?;
        self.fill(begun, 0, 0)?;
        self.verify(begun, 0, 0)
    }

    /// Sets everything to its start: epochs to -1, so that the first call passes zero.
    fn reset(&mut self, own: Region, mailboxes: Mailboxes) -> Result<(), RankError> {
        match mailboxes {
            Mailboxes::Peer => self.stream.set_bytes(own, 0xff)?,
            // A fill of host memory is not promised to work; a copy to it is.
            Mailboxes::Host => {
                let ones = self.vectors.region();
                self.stream.set_bytes(ones, 0xff)?;
                let mut done = 0;
                while done < own.bytes() {
                    let bytes = ones.bytes().min(own.bytes() - done);
                    self.stream
                        .copy(part(own, done, bytes)?, part(ones, 0, bytes)?)?;
                    done += bytes;
                }
            }
        }
        self.stream.set_bytes(self.own.region(), 0)?;
        self.stream
            .set_bytes(self.own_part(0, EPOCH_BYTES)?, 0xff)?;
        let verdict = self.own_part(OWN_BYTES - VERDICT_BYTES, VERDICT_BYTES)?;
        self.pinned.write(READBACK as usize, &fresh_verdict());
        let fresh = self.pinned_part(READBACK, VERDICT_BYTES)?;
        Ok(self.stream.copy(verdict, fresh)?)
    }

    fn own_part(&self, at: u64, bytes: u64) -> Result<Region, RankError> {
        part(self.own.region(), at, bytes)
    }

    fn pinned_part(&self, at: u64, bytes: u64) -> Result<Region, RankError> {
        part(self.pinned.region(), at, bytes)
    }

    /// Input and output of the `nth` call: vectors are used in turn.
    fn vector(&self, begun: &Begun, nth: u64) -> Result<(Region, Region), RankError> {
        let series = &begun.series;
        let stride = vector_stride(series.bytes);
        let at = nth % series.slots() * stride;
        let input = part(self.vectors.region(), at, series.bytes)?;
        let output = match series.in_place {
            true => input,
            false => part(
                self.vectors.region(),
                series.slots() * stride + at,
                series.bytes,
            )?,
        };
        Ok((input, output))
    }

    fn fill(&self, begun: &Begun, nth: u64, count: u64) -> Result<(), RankError> {
        let vectors = self.vector(begun, nth)?;
        let calls = self.own_part(STATE_BYTES, CALLS_BYTES)?;
        let what = (count, self.place.rank);
        Ok(self
            .kernels
            .fill(&self.stream, vectors, what, &begun.contents, calls)?)
    }

    fn verify(&self, begun: &Begun, nth: u64, count: u64) -> Result<(), RankError> {
        let (_, output) = self.vector(begun, nth)?;
        let calls = self.own_part(STATE_BYTES + CALLS_BYTES, CALLS_BYTES)?;
        let verdict = self.own_part(OWN_BYTES - VERDICT_BYTES, VERDICT_BYTES)?;
        let what = (count, self.place.ranks);
        Ok(self.kernels.verify(
            &self.stream,
            output,
            what,
            &begun.contents,
            (calls, verdict),
        )?)
    }

    fn reduce(&self, begun: &Begun, nth: u64, count: u64) -> Result<(), RankError> {
        let (input, output) = self.vector(begun, nth)?;
        let call = Call {
            shape: begun.shape,
            dtype: begun.series.dtype,
            count,
            input,
            output,
            rank: self.place.rank,
            mailboxes: &begun.mailboxes,
            state: self.own_part(0, STATE_BYTES)?,
            stop: self.pinned_part(STOP, 4)?,
            largest: begun.series.bytes,
            limit: begun.series.limit,
        };
        Ok(self.kernels.reduce(&self.stream, &call)?)
    }

    fn judged_call(&self, begun: &Begun, nth: u64) -> Result<(), RankError> {
        let counts = &begun.series.counts;
        let count = counts.get(nth as usize % counts.len().max(1));
        let count = count.copied().unwrap_or(begun.series.count());
        self.fill(begun, nth, count)?;
        self.reduce(begun, nth, count)?;
        self.verify(begun, nth, count)
    }

    fn sample(&self, begun: &Begun) -> Result<(), RankError> {
        let Some(timing) = begun.series.timing else {
            return Ok(());
        };
        let count = begun.series.count();
        let all = 0..u64::from(timing.warmup + timing.calls);
        let (warmup, timed) = (
            0..u64::from(timing.warmup),
            u64::from(timing.warmup)..all.end,
        );
        all.clone()
            .try_for_each(|nth| self.fill(begun, nth, count))?;
        let gate = self.pinned_part(GATE, 4)?;
        self.kernels.gate(&self.stream, gate, begun.series.limit)?;
        warmup
            .into_iter()
            .try_for_each(|nth| self.reduce(begun, nth, count))?;
        self.stream.record(&self.start)?;
        match &begun.timed {
            Some(graph) => graph.launch(&self.stream)?,
            None => timed
                .into_iter()
                .try_for_each(|nth| self.reduce(begun, nth, count))?,
        }
        self.stream.record(&self.end)?;
        all.into_iter()
            .try_for_each(|nth| self.verify(begun, nth, count))
    }

    /// Queues a step. Ranks of one process queue it one after the other and then open their gates.
    pub fn queue(&mut self, step: Step) {
        let Some(mut begun) = self.begun.take() else {
            return;
        };
        let queued = match (step, &begun.calls) {
            _ if begun.failure.is_some() => Ok(()),
            (Step::Sample, _) => {
                self.pinned.store_u32(GATE as usize, 0);
                self.sample(&begun)
            }
            (Step::Calls(n), Some(graph)) => {
                (0..n).try_for_each(|_| Ok(graph.launch(&self.stream)?))
            }
            (Step::Calls(n), None) => {
                let from = begun.queued;
                begun.queued += u64::from(n);
                (from..begun.queued).try_for_each(|nth| self.judged_call(&begun, nth))
            }
        };
        if let Err(error) = queued {
            begun.failure = Some(error.outcome());
            self.stop();
        }
        self.begun = Some(begun);
    }

    /// Lets what is queued behind the gate go.
    pub fn open_gate(&self) {
        self.pinned.store_u32(GATE as usize, 1);
    }

    /// Ends every wait of this rank.
    pub fn stop(&self) {
        self.pinned.store_u32(STOP as usize, 1);
    }

    /// Whether its stop word is set: by the host, or by a block that gave up.
    pub fn stopped(&self) -> bool {
        self.pinned
            .read(STOP as usize, 4)
            .is_none_or(|word| word.iter().any(|byte| *byte != 0))
    }

    /// Waits until what is queued has ended. Past the time of a step and the kernels' own limit it is told to stop.
    pub fn finish(&mut self, step: Step, factor: u32) {
        let Some(mut begun) = self.begun.take() else {
            return;
        };
        let limit = (time_of(&begun.series, step, self.place.ranks) + begun.series.limit) * factor;
        if let Err(error) = self.settle(limit, factor) {
            begun.failure.get_or_insert(error.outcome());
        } else if let (Step::Sample, Some(timing)) = (step, begun.series.timing) {
            match self.start.elapsed_ms(&self.end) {
                Ok(ms) => begun.us.push(ms * 1e3 / f64::from(timing.calls.max(1))),
                Err(error) => {
                    begun
                        .failure
                        .get_or_insert(RankError::from(error).outcome());
                }
            }
        }
        self.begun = Some(begun);
    }

    fn settle(&self, limit: Duration, factor: u32) -> Result<(), RankError> {
        let deadline = Instant::now() + limit;
        let begin = Instant::now();
        while !self.stream.is_done()? {
            if Instant::now() > deadline {
                self.stop();
                break;
            }
            match begin.elapsed().as_micros() {
                0..=500 => std::hint::spin_loop(),
                501..=5000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        Ok(self.stream.wait(GRACE * factor)?)
    }

    /// Whether going on makes sense.
    pub fn well(&self) -> bool {
        let failed = self.begun.as_ref().is_none_or(|b| b.failure.is_some());
        !failed && !self.stopped()
    }

    /// Ends the series and says what was seen. Nothing of it may be queued any more.
    pub fn sight(&mut self, factor: u32) -> Sight {
        let Some(begun) = self.begun.take() else {
            let reason = "the series was not begun".to_string();
            return Sight::lost(self.place.rank, Outcome::NotRun { reason });
        };
        let mut sight = Sight {
            rank: self.place.rank,
            failure: begun.failure,
            verdict: None,
            given_up: Vec::new(),
            us: begun.us,
        };
        match self.read(GRACE * factor) {
            Ok((verdict, given_up)) => {
                sight.verdict = verdict;
                sight.given_up = given_up;
            }
            Err(error) => {
                sight.failure.get_or_insert(error.outcome());
            }
        }
        sight
    }

    fn read(&self, limit: Duration) -> Result<(Option<Verdict>, Vec<GivenUp>), RankError> {
        let read = |from: Region| {
            let to = self.pinned_part(READBACK, from.bytes())?;
            self.stream.copy(to, from)?;
            self.stream.wait(limit)?;
            let seen = self.pinned.read(READBACK as usize, from.bytes() as usize);
            seen.ok_or_else(|| RankError::CannotRun("a result has no room".to_string()))
        };
        let verdict = read(self.own_part(OWN_BYTES - VERDICT_BYTES, VERDICT_BYTES)?)?;
        let given_up = read(self.own_part(EPOCH_BYTES, GIVEN_UP_BYTES)?)?;
        Ok((read_verdict(&verdict), read_given_up(&given_up)))
    }

    /// All of a series that was begun, where this is the only rank that this thread leads.
    pub fn run(&mut self, factor: u32) -> Sight {
        let steps = self.begun.as_ref().map(|begun| steps(&begun.series));
        for step in steps.unwrap_or_default() {
            self.queue(step);
            self.open_gate();
            self.finish(step, factor);
            if !self.well() {
                break;
            }
        }
        self.sight(factor)
    }
}

fn part(region: Region, at: u64, bytes: u64) -> Result<Region, RankError> {
    region.part(at, bytes).ok_or_else(|| {
        RankError::CannotRun("a region leaves its memory (a defect of peerproof)".into())
    })
}
