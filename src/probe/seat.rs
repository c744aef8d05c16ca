//! One GPU of a worker: context, stream, kernels and the buffers that cases use. Fills and verifies by kernel, or by host
//! copies where kernels cannot run.

use super::{
    integrity::{self, Judged},
    mechanism::StartError,
    wire::Layout,
};
use crate::{
    ffi::driver::DriverError,
    gpu::{
        Context, DeviceMemory, Event, PinnedMemory, Region, Stream, WaitError,
        kernels::{self, CENSUS_BYTES, Census, KernelError, Kernels, MISMATCH_BYTES, Mismatch},
        pool::{Pool, PoolError},
        reduce::Reduce,
        resident::Resident,
    },
    model::case::Outcome,
    words::{self, Key},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

/// Device memory for results of kernels.
const RESULT_BYTES: u64 = 4096;
/// Pinned memory through which results and samples come back.
const READBACK_BYTES: u64 = 1 << 20;

/// Why a GPU runs no kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoKernels {
    /// One sentence.
    pub reason: String,
    /// The product cannot (compute capability): no gap. Otherwise this host's driver could and does not: a gap.
    pub product_limit: bool,
}

impl NoKernels {
    /// What this makes of a case that needs kernels.
    pub fn outcome(&self) -> Outcome {
        let reason = self.reason.clone();
        match self.product_limit {
            true => Outcome::NotApplicable { reason },
            false => Outcome::NotRun { reason },
        }
    }
}

/// The pool of a seat whose buffers are stream-ordered memory.
struct Pooled {
    /// Without one the buffers are plain, and no case uses them.
    pool: Result<Arc<Pool>, PoolError>,
    /// What granting access came to, by accessor.
    answers: BTreeMap<u32, Result<(), PoolError>>,
}

/// A GPU and its buffers.
pub struct Seat {
    /// GPU index of the snapshot.
    pub gpu: u32,
    /// Its context.
    pub context: Arc<Context>,
    /// The stream on which its engine works.
    pub stream: Stream,
    /// What this GPU sends.
    pub source: DeviceMemory,
    /// What this GPU receives, with a guard band on both sides.
    pub destination: DeviceMemory,
    /// The accessor's own view of a destination elsewhere.
    pub scratch: DeviceMemory,
    /// Through which bounces go.
    pub pinned: PinnedMemory,
    /// Recorded when the pinned memory was filled from this GPU.
    pub filled: Event,
    /// Recorded when this GPU has emptied a pinned chunk.
    pub emptied: Event,
    result: DeviceMemory,
    readback: PinnedMemory,
    kernels: Result<Arc<Kernels>, NoKernels>,
    /// Compiled when first asked for.
    resident: OnceLock<Result<Resident, NoKernels>>,
    /// The same; shared with ranks on this GPU.
    reduce: OnceLock<Result<Arc<Reduce>, NoKernels>>,
    layout: Layout,
    pooled: Option<Pooled>,
    /// Attempts that this GPU was the destination of, by source and mechanism.
    attempts: Attempts,
}

/// Counted by source and mechanism; one count for all seats of a GPU.
type Attempts = Arc<Mutex<BTreeMap<(u32, u8), u32>>>;

impl Seat {
    /// Makes context, buffers and kernels on the device of `context`. A device without kernels is still a seat.
    pub fn open(gpu: u32, context: &Arc<Context>, layout: Layout) -> Result<Seat, DriverError> {
        Seat::make(gpu, context, layout, None)
    }

    /// The same with source and destination in a stream-ordered pool, which nobody else may reach before
    /// [`Seat::grant`]. A device without pools is still a seat.
    pub fn open_pooled(
        gpu: u32,
        context: &Arc<Context>,
        layout: Layout,
    ) -> Result<Seat, DriverError> {
        let pooled = Pooled {
            pool: Pool::new(context),
            answers: BTreeMap::new(),
        };
        Seat::make(gpu, context, layout, Some(pooled))
    }

    fn make(
        gpu: u32,
        context: &Arc<Context>,
        layout: Layout,
        pooled: Option<Pooled>,
    ) -> Result<Seat, DriverError> {
        let kernels = match Kernels::load(context) {
            Ok(kernels) => Ok(Arc::new(kernels)),
            Err(KernelError::Driver(error)) => return Err(error),
            Err(other) => Err(NoKernels {
                product_limit: matches!(other, KernelError::TooOld(..)),
                reason: other.to_string(),
            }),
        };
        Seat::with(gpu, context, layout, (kernels, pooled, Attempts::default()))
    }

    /// Another seat on the same GPU, for one flow of several: buffers and stream of its own, the same kernels.
    pub fn beside(&self, layout: Layout) -> Result<Seat, DriverError> {
        let shared = (self.kernels.clone(), None, self.attempts.clone());
        Seat::with(self.gpu, &self.context, layout, shared)
    }

    fn with(
        gpu: u32,
        context: &Arc<Context>,
        layout: Layout,
        (kernels, pooled, attempts): (Result<Arc<Kernels>, NoKernels>, Option<Pooled>, Attempts),
    ) -> Result<Seat, DriverError> {
        let (filled, emptied) = (Event::new(context)?, Event::new(context)?);
        let stream = Stream::new(context)?;
        let pool = pooled.as_ref().and_then(|p| p.pool.as_ref().ok());
        let memory = |bytes| match pool {
            Some(pool) => DeviceMemory::of_pool(pool, bytes, &stream),
            None => DeviceMemory::new(context, bytes),
        };
        let (source, destination) = (
            memory(layout.span)?,
            memory(layout.span + 2 * layout.guard)?,
        );
        Ok(Seat {
            gpu,
            source,
            destination,
            scratch: DeviceMemory::new(context, layout.span)?,
            pinned: PinnedMemory::new(context, layout.pinned as usize)?,
            result: DeviceMemory::new(context, RESULT_BYTES)?,
            readback: PinnedMemory::new(context, READBACK_BYTES as usize)?,
            context: context.clone(),
            filled,
            emptied,
            stream,
            kernels,
            resident: OnceLock::new(),
            reduce: OnceLock::new(),
            layout,
            pooled,
            attempts,
        })
    }

    /// Lets `accessor` reach this seat's pool, and keeps what came of it.
    pub fn grant(&mut self, accessor: u32, context: &Context) {
        if let Some(pooled) = &mut self.pooled
            && let Ok(pool) = &pooled.pool
        {
            pooled.answers.insert(accessor, pool.grant(context));
        }
    }

    /// Whether `accessor` may reach this seat's pool; the outcome of a case that would need it otherwise.
    pub fn granted(&self, accessor: u32) -> Result<(), Outcome> {
        let not_run = |reason: String| Outcome::NotRun { reason };
        let Some(pooled) = &self.pooled else {
            return Err(not_run("this worker has no pool memory".to_string()));
        };
        let answer = match &pooled.pool {
            Ok(_) => pooled.answers.get(&accessor),
            Err(PoolError::Unsupported) => {
                return Err(Outcome::NotApplicable {
                    reason: format!("GPU{}: {}", self.gpu, PoolError::Unsupported),
                });
            }
            Err(error) => return Err(not_run(format!("GPU{} has no pool: {error}", self.gpu))),
        };
        match answer {
            Some(Ok(())) => Ok(()),
            Some(Err(PoolError::Driver(error))) => Err(Outcome::Refused {
                api: error.api.to_string(),
                code: error.code,
                name: error.name.clone(),
            }),
            Some(Err(error)) => Err(not_run(error.to_string())),
            None => Err(not_run(
                "access to the pool was never asked for".to_string(),
            )),
        }
    }

    /// The number of the next attempt from `source` by `mechanism` to this GPU, 1 to 255 and over again: it goes on from
    /// case to case, because words of an earlier case must not pass for those of this one.
    pub fn next_attempt(&self, source: u32, mechanism: u8) -> u32 {
        let attempts = self.attempts.lock();
        let mut attempts = attempts.unwrap_or_else(PoisonError::into_inner);
        let last = attempts.entry((source, mechanism)).or_insert(0);
        *last = *last % 255 + 1;
        *last
    }

    /// Its kernels, or why there are none.
    pub fn kernels(&self) -> Result<&Kernels, StartError> {
        self.kernels
            .as_deref()
            .map_err(|why| StartError::CannotRun(why.reason.clone()))
    }

    /// Why kernels cannot run here, if they cannot.
    pub fn no_kernels(&self) -> Option<&NoKernels> {
        self.kernels.as_ref().err()
    }

    /// Its kernel that waits for a peer, or why there is none. The first call compiles: never while such a kernel runs.
    pub fn resident(&self) -> Result<&Resident, &NoKernels> {
        let load = || {
            self.kernels.as_ref().map_err(Clone::clone)?;
            Resident::load(&self.context).map_err(|error| NoKernels {
                product_limit: matches!(error, KernelError::TooOld(..)),
                reason: error.to_string(),
            })
        };
        self.resident.get_or_init(load).as_ref()
    }

    /// Its kernels that reduce, or why there are none. The first call compiles: never while a kernel waits.
    pub fn reduce(&self) -> Result<&Arc<Reduce>, &NoKernels> {
        let load = || {
            self.kernels.as_ref().map_err(Clone::clone)?;
            let loaded = Reduce::load(&self.context).map_err(|error| NoKernels {
                product_limit: matches!(error, KernelError::TooOld(..)),
                reason: error.to_string(),
            });
            loaded.map(Arc::new)
        };
        self.reduce.get_or_init(load).as_ref()
    }

    /// Guard band in bytes.
    pub fn guard(&self) -> u64 {
        self.layout.guard
    }

    /// Buffer length in bytes.
    pub fn span(&self) -> u64 {
        self.layout.span
    }

    /// Queues the stream of `key` into `to`, whose first byte lies in unit `first`.
    pub fn fill(&self, to: Region, first: u64, key: Key, limit: Duration) -> Result<(), SeatError> {
        match &self.kernels {
            Ok(kernels) => Ok(kernels
                .fill(&self.stream, to, first, key)
                .map_err(StartError::from)?),
            Err(_) => self.fill_from_host(to, first, key, limit),
        }
    }

    /// Writes the same by copies from the host.
    fn fill_from_host(
        &self,
        to: Region,
        first: u64,
        key: Key,
        limit: Duration,
    ) -> Result<(), SeatError> {
        // A scratch of its own: the readback memory must stay free for results.
        let mut staging = PinnedMemory::new(&self.context, READBACK_BYTES as usize)?;
        let mut done = 0;
        while done < to.bytes() {
            let (at, skew, bytes) = step(to, done);
            let data = words::part(key.pack(), first + at, skew, bytes as usize);
            staging.write(0, &data);
            let (Some(part), Some(from)) = (to.part(done, bytes), staging.region().part(0, bytes))
            else {
                return Err(SeatError::Layout);
            };
            self.stream.copy(part, from)?;
            self.stream.wait(limit)?;
            done += bytes;
        }
        Ok(())
    }

    /// Counts units of `from` that differ from `key`'s, whose first byte lies in unit `first`, by a kernel of this GPU; by
    /// the host where there is none.
    pub fn verify(
        &self,
        from: Region,
        first: u64,
        key: Key,
        limit: Duration,
    ) -> Result<Mismatch, SeatError> {
        let Ok(kernels) = &self.kernels else {
            return self.verify_by_host(from, first, key, limit);
        };
        let result = self.result.region();
        kernels
            .verify(&self.stream, from, first, key, result)
            .map_err(StartError::from)?;
        let bytes = self.read_back(result, MISMATCH_BYTES, limit)?;
        kernels::read_mismatch(&bytes).ok_or(SeatError::Layout)
    }

    /// The same by device-to-host copies and the host's arithmetic.
    pub fn verify_by_host(
        &self,
        from: Region,
        first: u64,
        key: Key,
        limit: Duration,
    ) -> Result<Mismatch, SeatError> {
        let mut total = Mismatch {
            wrong: 0,
            first: u64::MAX,
            last: 0,
        };
        let mut done = 0;
        while done < from.bytes() {
            let (at, skew, bytes) = step(from, done);
            let part = from.part(done, bytes).ok_or(SeatError::Layout)?;
            let data = self.read_back(part, bytes, limit)?;
            let expected = words::part(key.pack(), first + at, skew, bytes as usize);
            let pieces = words::pieces(&data, skew).zip(words::pieces(&expected, skew));
            for (unit, (seen, want)) in pieces.enumerate() {
                if seen != want {
                    let unit = at + unit as u64;
                    total.wrong += 1;
                    total.first = total.first.min(unit);
                    total.last = total.last.max(unit);
                }
            }
            done += bytes;
        }
        Ok(total)
    }

    /// Judges every unit of `from`, by a kernel of this GPU or by the host; a unit that `from` holds in part only names
    /// nothing, and is judged by comparison.
    pub fn classify(
        &self,
        from: Region,
        first: u64,
        keys: (Key, Key),
        limit: Duration,
    ) -> Result<Census, SeatError> {
        let (head, whole) = from.whole_units();
        let lead = u64::from(head > 0);
        let units = whole.bytes() / words::UNIT;
        let mut census = match units {
            0 => integrity::census(&[], first, keys.0, keys.1),
            _ => self.classify_whole(whole, first + lead, keys, limit)?,
        };
        integrity::place(&mut census, lead, (from.skew(), from.bytes()));
        let done = head + whole.bytes();
        for (at, offset, bytes) in [(0, 0, head), (lead + units, done, from.bytes() - done)] {
            let Some(part) = from.part(offset, bytes).filter(|_| bytes > 0) else {
                continue;
            };
            let seen = self.read_back(part, bytes, limit)?;
            integrity::count_rim(&mut census, at, (first + at, part.skew()), &seen, keys);
        }
        Ok(census)
    }

    fn classify_whole(
        &self,
        from: Region,
        first: u64,
        (key, poison): (Key, Key),
        limit: Duration,
    ) -> Result<Census, SeatError> {
        let Ok(kernels) = &self.kernels else {
            let mut data = Vec::new();
            while (data.len() as u64) < from.bytes() {
                let done = data.len() as u64;
                let bytes = READBACK_BYTES.min(from.bytes() - done);
                let part = from.part(done, bytes).ok_or(SeatError::Layout)?;
                data.extend(self.read_back(part, bytes, limit)?);
            }
            return Ok(integrity::census(&data, first, key, poison));
        };
        let result = self.result.region();
        kernels
            .classify(&self.stream, from, first, (key, poison), result)
            .map_err(StartError::from)?;
        let bytes = self.read_back(result, CENSUS_BYTES, limit)?;
        kernels::read_census(&bytes).ok_or(SeatError::Layout)
    }

    /// The first `bytes` bytes of `from`, by a device-to-host copy in this context. At most 1 MiB.
    pub fn read_back(
        &self,
        from: Region,
        bytes: u64,
        limit: Duration,
    ) -> Result<Vec<u8>, SeatError> {
        let (Some(part), Some(to)) = (from.part(0, bytes), self.readback.region().part(0, bytes))
        else {
            return Err(SeatError::Layout);
        };
        self.stream.copy(to, part)?;
        self.stream.wait(limit)?;
        self.readback
            .read(0, bytes as usize)
            .ok_or(SeatError::Layout)
    }

    /// Judges a whole region by kernel and by host windows.
    pub fn judge(
        &self,
        from: Region,
        first: u64,
        key: Key,
        limit: Duration,
    ) -> Result<Judged, SeatError> {
        let kernel = self.verify(from, first, key, limit)?;
        // The owner's second opinion: all of a small region, windows of a large one.
        let mut host_wrong = 0;
        for (offset, bytes) in integrity::windows(from.bytes()) {
            let part = from.part(offset, bytes).ok_or(SeatError::Layout)?;
            let at = first + (from.skew() + offset) / words::UNIT;
            host_wrong += self.verify_by_host(part, at, key, limit)?.wrong;
        }
        Ok(Judged { kernel, host_wrong })
    }
}

/// The next piece of `region` from byte `done` on that fits the read-back memory: its unit counted from the region's
/// first, the byte of that unit at which it starts, its length. All pieces but the first start at a unit.
fn step(region: Region, done: u64) -> (u64, u64, u64) {
    let from = region.skew() + done;
    let (at, skew) = (from / words::UNIT, from % words::UNIT);
    (at, skew, (READBACK_BYTES - skew).min(region.bytes() - done))
}

/// Why a seat could not do its part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeatError {
    /// A call or a kernel could not be queued.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It was queued and did not end, or ended in an error.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A region does not fit its buffer: a mistake of this program.
    #[error("a region leaves its buffer (a defect of peerproof)")]
    Layout,
}

impl From<DriverError> for SeatError {
    fn from(error: DriverError) -> Self {
        SeatError::Start(StartError::Driver(error))
    }
}
