//! What a worker keeps on each GPU to time transfers: buffers whose content names its owner, pinned memory, streams of every
//! kind, the gate and its words in host memory. Knows nothing of cases.

use super::{super::seat::Seat, plan::Reserve};
use crate::{
    ffi::driver::DriverError,
    gpu::{
        DeviceMemory, Event, PinnedMemory, Region, Stream,
        gate::{self, Gate, REPORT_BYTES},
    },
    model::traffic::Streams,
    words::{Key, Role},
};
use std::{collections::BTreeMap, time::Duration};

/// Byte that targets hold before a case: unlike zero, ones and any word of a source.
pub(super) const POISON: u8 = 0x5a;
/// Number in the words of sources: no mechanism has it.
const MECHANISM: u8 = 60;
/// Places of the words in a desk's host memory, far apart: two devices write them.
const WORD: u64 = 0;
const STOP: u64 = 256;
const REPORT: u64 = 512;
const CONTROL_BYTES: usize = 4096;

/// The desks of all GPUs, made when the first case needs them.
#[derive(Default)]
pub struct Stand {
    desks: BTreeMap<u32, Desk>,
    reserve: Option<Reserve>,
}

/// One GPU's things.
pub(super) struct Desk {
    /// Words of this GPU.
    pub(super) source: DeviceMemory,
    /// What others write to.
    pub(super) sink: DeviceMemory,
    /// Words of this GPU, in host memory, and a target there.
    pub(super) host: Option<(PinnedMemory, PinnedMemory)>,
    /// The flag of a round trip.
    pub(super) flag: DeviceMemory,
    /// Without kernels there is no gate.
    pub(super) gate: Option<Gate>,
    control: PinnedMemory,
    streams: Vec<Stream>,
    legacy: Stream,
    per_thread: Stream,
    events: Vec<Event>,
}

/// The words that a GPU's source holds.
pub(super) fn key(run: u32, gpu: u32) -> Key {
    Key {
        run,
        source: gpu as u8,
        destination: gpu as u8,
        mechanism: MECHANISM,
        attempt: 0,
        role: Role::Own,
    }
}

impl Stand {
    /// Makes what is missing. A request with another reserve than the one before starts over.
    pub(super) fn open(
        &mut self,
        (seats, run): (&[Seat], u32),
        reserve: Reserve,
        limit: Duration,
    ) -> Result<(), String> {
        if self.reserve != Some(reserve) {
            self.desks.clear();
            self.reserve = Some(reserve);
        }
        let first = seats.first().map(|seat| seat.gpu);
        for seat in seats {
            if self.desks.contains_key(&seat.gpu) {
                continue;
            }
            let host = match Some(seat.gpu) == first {
                true => reserve.host.max(reserve.first_host),
                false => reserve.host,
            };
            let desk = Desk::new(seat, (reserve.source, reserve.sink, host), run, limit)
                .map_err(|error| format!("GPU{}: {error}", seat.gpu))?;
            self.desks.insert(seat.gpu, desk);
        }
        Ok(())
    }

    pub(super) fn desk(&self, gpu: u32) -> Option<&Desk> {
        self.desks.get(&gpu)
    }

    pub(super) fn desk_mut(&mut self, gpu: u32) -> Option<&mut Desk> {
        self.desks.get_mut(&gpu)
    }
}

impl Desk {
    fn new(
        seat: &Seat,
        (source, sink, host): (u64, u64, u64),
        run: u32,
        limit: Duration,
    ) -> Result<Desk, String> {
        let context = &seat.context;
        let plain = |error: DriverError| error.to_string();
        let memory = |bytes: u64| DeviceMemory::new(context, bytes.max(4096)).map_err(plain);
        let (source, sink, flag) = (memory(source)?, memory(sink)?, memory(4096)?);
        seat.fill(source.region(), 0, key(run, seat.gpu), limit)
            .and_then(|()| Ok(seat.stream.wait(limit)?))
            .map_err(|error| error.to_string())?;
        let pinned = |bytes: u64| PinnedMemory::new(context, bytes as usize).map_err(plain);
        let host = match host {
            0 => None,
            bytes => Some((pinned(bytes)?, pinned(bytes)?)),
        };
        if let Some((from, _)) = &host {
            // The host's words are the first ones of this GPU's own source.
            let mut done = 0;
            while done < from.region().bytes() {
                let bytes = (from.region().bytes() - done).min(source.region().bytes());
                let parts = (
                    from.region().part(done, bytes),
                    source.region().part(0, bytes),
                );
                if let (Some(to), Some(part)) = parts {
                    seat.stream.copy(to, part).map_err(plain)?;
                }
                done += bytes;
            }
            seat.stream.wait(limit).map_err(|error| error.to_string())?;
        }
        let mut desk = Desk {
            source,
            sink,
            host,
            flag,
            gate: match seat.no_kernels() {
                Some(_) => None,
                None => Some(Gate::load(context).map_err(|error| error.to_string())?),
            },
            control: PinnedMemory::new(context, CONTROL_BYTES).map_err(plain)?,
            streams: Vec::new(),
            legacy: Stream::legacy_null(context),
            per_thread: Stream::per_thread(context),
            events: Vec::new(),
        };
        // A kernel must have run once before it may wait.
        desk.reset();
        if desk.gate.is_some() {
            desk.unlock();
            desk.close(&seat.stream, limit)
                .map_err(|error| error.to_string())?;
            seat.stream.wait(limit).map_err(|error| error.to_string())?;
        }
        Ok(desk)
    }

    /// Makes sure that there are so many streams of its own, and events.
    pub(super) fn equip(
        &mut self,
        seat: &Seat,
        streams: usize,
        events: usize,
    ) -> Result<(), DriverError> {
        while self.streams.len() < streams {
            self.streams.push(Stream::new(&seat.context)?);
        }
        while self.events.len() < events {
            self.events.push(Event::new(&seat.context)?);
        }
        Ok(())
    }

    /// The `number`th stream of a kind; default streams are one each.
    pub(super) fn stream(&self, kind: Streams, number: usize) -> Option<&Stream> {
        match kind {
            Streams::NonBlocking => self.streams.get(number),
            Streams::PerThread => Some(&self.per_thread),
            Streams::LegacyNull => Some(&self.legacy),
        }
    }

    pub(super) fn event(&self, number: usize) -> Option<&Event> {
        self.events.get(number)
    }

    fn word(&self, at: u64, bytes: u64) -> Option<Region> {
        self.control.region().part(at, bytes)
    }

    /// Closes the gate, clears the stop word and the report.
    pub(super) fn reset(&mut self) {
        self.control.store_u32(WORD as usize, 0);
        self.control.store_u32(STOP as usize, 0);
        self.control
            .write(REPORT as usize, &[0; REPORT_BYTES as usize]);
    }

    /// Opens the gate.
    pub(super) fn unlock(&self) {
        self.control.store_u32(WORD as usize, 1);
    }

    /// Queues the gate; without kernels there is none.
    pub(super) fn close(
        &self,
        stream: &Stream,
        limit: Duration,
    ) -> Result<bool, crate::gpu::kernels::KernelError> {
        let words = (self.word(WORD, 16), self.word(REPORT, REPORT_BYTES));
        match (&self.gate, words) {
            (Some(gate), (Some(word), Some(report))) => {
                gate.close(stream, word, report, limit).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Stop word and report, for the side of a round trip that this GPU is.
    pub(super) fn control(&self) -> Option<(Region, Region)> {
        Some((self.word(STOP, 16)?, self.word(REPORT, REPORT_BYTES)?))
    }

    /// What the kernel reported.
    pub(super) fn report(&self) -> Option<gate::RoundTrip> {
        gate::read_report(&self.control.read(REPORT as usize, REPORT_BYTES as usize)?)
    }
}
