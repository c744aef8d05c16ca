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
        resident::Resident,
    },
    model::case::Outcome,
    words::{self, Key},
};
use std::{
    sync::{Arc, OnceLock},
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
    layout: Layout,
}

impl Seat {
    /// Makes context, buffers and kernels on the device of `context`. A device without kernels is still a seat.
    pub fn open(gpu: u32, context: &Arc<Context>, layout: Layout) -> Result<Seat, DriverError> {
        let kernels = match Kernels::load(context) {
            Ok(kernels) => Ok(Arc::new(kernels)),
            Err(KernelError::Driver(error)) => return Err(error),
            Err(other) => Err(NoKernels {
                product_limit: matches!(other, KernelError::TooOld(..)),
                reason: other.to_string(),
            }),
        };
        Seat::with(gpu, context, layout, kernels)
    }

    /// Another seat on the same GPU, for one flow of several: buffers and stream of its own, the same kernels.
    pub fn beside(&self, layout: Layout) -> Result<Seat, DriverError> {
        Seat::with(self.gpu, &self.context, layout, self.kernels.clone())
    }

    fn with(
        gpu: u32,
        context: &Arc<Context>,
        layout: Layout,
        kernels: Result<Arc<Kernels>, NoKernels>,
    ) -> Result<Seat, DriverError> {
        let (filled, emptied) = (Event::new(context)?, Event::new(context)?);
        let stream = Stream::new(context)?;
        Ok(Seat {
            gpu,
            source: DeviceMemory::new(context, layout.span)?,
            destination: DeviceMemory::new(context, layout.span + 2 * layout.guard)?,
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
            layout,
        })
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

    /// Guard band in bytes.
    pub fn guard(&self) -> u64 {
        self.layout.guard
    }

    /// Buffer length in bytes.
    pub fn span(&self) -> u64 {
        self.layout.span
    }

    /// Queues the units of `key` from index `first` on into `to`.
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
            let bytes = READBACK_BYTES.min(to.bytes() - done);
            let data = words::stream(key.pack(), first + done / words::UNIT, bytes as usize);
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

    /// Counts units of `from` that differ from `key`'s, by a kernel of this GPU; by the host where there is none.
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
            let bytes = READBACK_BYTES.min(from.bytes() - done);
            let part = from.part(done, bytes).ok_or(SeatError::Layout)?;
            let data = self.read_back(part, bytes, limit)?;
            let at = done / words::UNIT;
            let expected = words::stream(key.pack(), first + at, bytes as usize);
            for (unit, (seen, want)) in data.chunks(16).zip(expected.chunks(16)).enumerate() {
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

    /// Judges every unit of `from`, by a kernel of this GPU or by the host.
    pub fn classify(
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
            host_wrong += self
                .verify_by_host(part, first + offset / words::UNIT, key, limit)?
                .wrong;
        }
        Ok(Judged { kernel, host_wrong })
    }
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
