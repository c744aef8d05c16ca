//! A rank: one process with one GPU, as serving engines run them. It exports memory, opens that of others, and does its part
//! of each attempt when the parent says so. It never waits for another rank: every step is its own GPU's work alone. A kernel
//! of an exchange does, by its own clock.

mod reduced;
mod resident;

use super::{
    examine::{self, Found, Keys, Target},
    mechanism::{self, Mechanism, Memory, Side, StartError, Transfer},
    seat::{Seat, SeatError},
    transfer::{self, limit},
    wire::{Done, Job, Opened, RankOpen, RankReply, RankRequest, Shared, Task},
    worker,
};
use crate::{
    ffi::{
        driver::{DriverError, IpcHandle, code, vmm::HandleKind},
        socket::Line,
    },
    gpu::{MappedMemory, Region, System, device, kernels::Census, memory::ImportedMemory},
    model::case::{Case, Outcome, Subject},
    words::{Key, UNIT},
};
use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
    os::fd::AsFd,
    time::Duration,
};

/// An end of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Source,
    Destination,
}

/// Memory of another rank.
enum Opening {
    Ipc(ImportedMemory),
    Mapped(MappedMemory),
}

impl Opening {
    fn region(&self) -> Option<Region> {
        match self {
            Opening::Ipc(memory) => Some(memory.region()),
            Opening::Mapped(memory) => memory.region(),
        }
    }
}

/// An open rank. Fields drop from the top: what was opened of others goes before what is its own.
struct Rank {
    /// Its part in all-reduces.
    member: reduced::Member,
    opened: BTreeMap<u32, Opening>,
    /// Buffers of its own that are not the seat's, of one kind of memory at a time.
    rooms: BTreeMap<(Memory, End), MappedMemory>,
    /// Between a look that found something and its conclusion.
    found: BTreeMap<u32, (Found, Census)>,
    seat: Seat,
    system: System,
    open: RankOpen,
    line: Line,
}

/// Runs the protocol over `input` and `output` until the input closes; descriptors pass over the line that was inherited under
/// `number`.
///
/// # Errors
/// Those of the input, and of a line that is not there.
pub fn serve(number: i32, input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let mut line = Some(Line::inherited(number)?);
    let mut rank: Option<Rank> = None;
    for text in input.lines() {
        let reply = match (serde_json::from_str::<RankRequest>(&text?), &mut rank) {
            (Err(error), _) => RankReply::Failed(format!("a request could not be read: {error}")),
            (Ok(RankRequest::Open(open)), None) => match line.take() {
                None => RankReply::Failed("a rank opens once".to_string()),
                Some(line) => match Rank::open(open, line) {
                    Ok((opened, ready)) => {
                        rank = Some(ready);
                        RankReply::Opened(opened)
                    }
                    Err(why) => RankReply::Failed(why),
                },
            },
            (Ok(RankRequest::Step(jobs)), Some(rank)) => RankReply::Done(rank.step(&jobs)),
            (Ok(_), _) => RankReply::Failed("a request came out of turn".to_string()),
        };
        writeln!(output, "{}", serde_json::to_string(&reply)?)?;
        output.flush()?;
    }
    Ok(())
}

/// How a case looks from here.
struct Part {
    mechanism: &'static dyn Mechanism,
    keys: Keys,
    limit: Duration,
}

/// Why a job was not done.
enum Stop {
    /// The case ends with this.
    With(Outcome),
    /// Something of the seat failed.
    Seat(SeatError),
}

impl From<SeatError> for Stop {
    fn from(error: SeatError) -> Self {
        Stop::Seat(error)
    }
}

impl From<StartError> for Stop {
    fn from(error: StartError) -> Self {
        Stop::Seat(error.into())
    }
}

impl Rank {
    fn open(open: RankOpen, line: Line) -> Result<(Opened, Rank), String> {
        let system = System::start().map_err(|error| error.to_string())?;
        let devices = system.devices().map_err(|error| error.to_string())?;
        for (_, pci) in &open.gpus {
            worker::find(&devices, *pci)?;
        }
        let own = open.gpus.iter().find(|(gpu, _)| *gpu == open.gpu);
        let own = *own.ok_or("a rank's own GPU is not among the chosen ones")?;
        let (gpu, seat) = worker::take_seat(&system, &devices, own, (open.layout, false))?;
        let opened = Opened {
            authenticity: system.authenticity(),
            deadline_factor: system.deadline_factor(),
            cuda_version: system.version().map_err(|error| error.to_string())?,
            gpus: vec![gpu],
            advertised: Vec::new(),
            refused: Vec::new(),
        };
        let rank = Rank {
            member: reduced::Member::default(),
            opened: BTreeMap::new(),
            rooms: BTreeMap::new(),
            found: BTreeMap::new(),
            seat,
            system,
            open,
            line,
        };
        Ok((opened, rank))
    }

    /// Queues what can be queued, then waits for it; the rest is done in order.
    fn step(&mut self, jobs: &[Job]) -> Vec<Done> {
        let mut results: Vec<Option<Done>> = Vec::new();
        for job in jobs {
            results.push(match self.begin(job) {
                Ok(done) => done,
                Err(Stop::With(outcome)) => Some(Done::Failed(outcome)),
                Err(Stop::Seat(error)) => Some(failed(error, job)),
            });
        }
        let waited = jobs.iter().zip(results).map(|(job, result)| {
            result.unwrap_or_else(|| match self.seat.stream.wait(self.limit(job)) {
                Ok(()) => Done::Done,
                Err(error) => failed(error.into(), job),
            })
        });
        waited.collect()
    }

    fn limit(&self, job: &Job) -> Duration {
        let bytes = match job.task {
            Task::Stain | Task::Search => self.open.layout.span * 2,
            _ => job.case.bytes,
        };
        limit(bytes, self.system.deadline_factor())
    }

    fn part(&self, job: &Job) -> Result<Part, Stop> {
        let mechanism = mechanism::by_id(&job.case.mechanism)
            .ok_or_else(|| StartError::CannotRun("unknown mechanism".to_string()))?;
        let ends = match job.case.subject {
            Subject::Pair(pair) => (pair.source.0 as u8, pair.destination.0 as u8),
            Subject::Gpu(gpu) => (gpu.0 as u8, gpu.0 as u8),
            Subject::Group(_) => return Err(SeatError::Layout.into()),
        };
        let number = mechanism::number(&job.case.mechanism);
        let run = self.open.run.wrapping_add(u32::from(job.pass)) & Key::RUN_BITS;
        Ok(Part {
            mechanism,
            keys: Keys::of(run, self.open.generation, ends, number, job.attempt),
            limit: self.limit(job),
        })
    }

    /// `None`: queued on the seat's stream.
    fn begin(&mut self, job: &Job) -> Result<Option<Done>, Stop> {
        if job.case.all_reduce.is_some() {
            return self.reduce(job).map(Some);
        }
        if super::resident::by_id(&job.case.mechanism).is_some() {
            return self.exchange(job).map(Some);
        }
        let Part {
            mechanism,
            keys,
            limit,
        } = self.part(job)?;
        let case = &job.case;
        let first = case.offset / UNIT;
        Ok(match &job.task {
            Task::Export => Some(Done::Exported(self.export(case, mechanism)?)),
            Task::Import(shared) => {
                self.import(case, mechanism, shared)?;
                Some(Done::Done)
            }
            Task::Poison => {
                self.target(case, mechanism)?
                    .poison(&self.seat, keys, limit)?;
                None
            }
            Task::Fill => {
                let from = self.payload(case, mechanism)?;
                self.seat.fill(from, first, keys.payload, limit)?;
                None
            }
            Task::Stain => {
                for whole in self.stained() {
                    self.seat.fill(whole, 0, keys.guard, limit)?;
                }
                None
            }
            Task::Move => {
                mechanism.start(&self.transfer(case, mechanism, keys)?)?;
                None
            }
            Task::Time => Some(Done::Measured(transfer::rate(
                mechanism,
                &self.transfer(case, mechanism, keys)?,
                limit,
            )?)),
            Task::Look => {
                let target = self.target(case, mechanism)?;
                let found = Found::look(&self.seat, target, keys, limit)?;
                if found.is_right() {
                    Some(Done::Right)
                } else {
                    let census = examine::census(&self.seat, target, keys, limit)?;
                    let from = examine::first_wrong(&census);
                    self.found.insert(case.id, (found, census));
                    Some(Done::Wrong { from })
                }
            }
            Task::View { from } => Some(Done::Seen(transfer::accessor_view(
                (mechanism, &self.transfer(case, mechanism, keys)?),
                case,
                keys,
                *from,
                limit,
            )?)),
            Task::Reread => {
                let from = self.payload(case, mechanism)?;
                let seen = self.seat.verify(from, first, keys.payload, limit)?;
                Some(Done::Holds(seen.wrong == 0))
            }
            Task::Search => {
                let mut holds = false;
                for whole in self.stained() {
                    holds |= transfer::holds_words(&self.seat, whole, case, keys, limit)?;
                }
                Some(Done::Holds(holds))
            }
            Task::Conclude(views) => {
                let (found, census) = self.found.remove(&case.id).ok_or(SeatError::Layout)?;
                let target = self.target(case, mechanism)?;
                let evidence = (&found, &census);
                let concluded =
                    examine::conclude(&self.seat, (target, keys), evidence, views, limit)?;
                Some(Done::Concluded(Box::new(concluded)))
            }
            Task::Close => {
                self.opened.remove(&case.id);
                Some(Done::Done)
            }
            // Of exchanges and all-reduces alone.
            Task::Reset
            | Task::Start
            | Task::Await
            | Task::Judge
            | Task::Seat(_)
            | Task::Gather(_)
            | Task::Begin(_)
            | Task::Reduce => {
                return Err(SeatError::Layout.into());
            }
        })
    }

    /// Makes the buffer that the executing rank needs reachable for it.
    fn export(&mut self, case: &Case, mechanism: &dyn Mechanism) -> Result<Shared, Stop> {
        let end = far_end(mechanism);
        let memory = mechanism.memory();
        // One kind at a time: nobody has the other kind open, as each case closes what it opened.
        self.rooms.retain(|(kind, _), _| *kind == memory);
        let kind = match memory {
            Memory::Plain | Memory::Pool => return Err(SeatError::Layout.into()),
            Memory::Ipc => {
                let buffer = match end {
                    End::Source => &self.seat.source,
                    End::Destination => &self.seat.destination,
                };
                let handle = buffer.export().map_err(refusal)?;
                return Ok(Shared {
                    bytes: buffer.region().bytes(),
                    handle: handle.0.to_vec(),
                });
            }
            Memory::Vmm => HandleKind::Descriptor,
            Memory::Fabric => HandleKind::Fabric,
        };
        self.claims(memory)?;
        let key = (memory, end);
        if !self.rooms.contains_key(&key) {
            let bytes = match end {
                End::Source => self.seat.source.region().bytes(),
                End::Destination => self.seat.destination.region().bytes(),
            };
            let room = MappedMemory::new(&self.seat.context, bytes, kind);
            let room = room.map_err(|error| match memory {
                Memory::Fabric => no_fabric(error),
                _ => refusal(error),
            })?;
            self.rooms.insert(key, room);
        }
        let room = self.rooms.get(&key).ok_or(SeatError::Layout)?;
        let handle = match kind {
            HandleKind::Descriptor => {
                let descriptor = room.export_descriptor().map_err(refusal)?;
                let sent = self.line.send(u64::from(case.id), descriptor.as_fd());
                sent.map_err(|error| {
                    StartError::CannotRun(format!("a descriptor could not be sent: {error}"))
                })?;
                Vec::new()
            }
            HandleKind::Fabric => room.export_fabric().map_err(no_fabric)?.to_vec(),
        };
        Ok(Shared {
            bytes: room.bytes(),
            handle,
        })
    }

    /// Whether the device claims what a kind of memory needs.
    fn claims(&self, memory: Memory) -> Result<(), Stop> {
        let own = self.seat.context.device();
        let (yes, what, attribute) = match memory {
            Memory::Plain | Memory::Pool | Memory::Ipc => return Ok(()),
            _ if !own.maps_memory => (false, "virtual memory management", device::MAPS_MEMORY),
            Memory::Vmm => (
                own.shares_descriptors,
                "memory handles as file descriptors",
                device::SHARES_DESCRIPTORS,
            ),
            Memory::Fabric => (own.shares_fabric, "fabric handles", device::SHARES_FABRIC),
        };
        match yes {
            true => Ok(()),
            false => Err(Stop::With(Outcome::NotApplicable {
                reason: format!("no {what}: CUDA says 0 to device attribute {attribute}"),
            })),
        }
    }

    /// Opens what the other rank has exported.
    fn import(
        &mut self,
        case: &Case,
        mechanism: &dyn Mechanism,
        shared: &Shared,
    ) -> Result<(), Stop> {
        if let (true, Some(why)) = (mechanism.needs_kernels(), self.seat.no_kernels()) {
            return Err(Stop::With(why.outcome()));
        }
        let handle = || {
            let bytes = <[u8; 64]>::try_from(shared.handle.as_slice());
            bytes.map_err(|_| StartError::CannotRun("a handle has not 64 bytes".to_string()))
        };
        self.claims(mechanism.memory())?;
        let context = &self.seat.context;
        let opening = match mechanism.memory() {
            Memory::Plain | Memory::Pool => return Err(SeatError::Layout.into()),
            Memory::Ipc => {
                let handle = IpcHandle(handle()?);
                let memory = ImportedMemory::open(context, handle, shared.bytes);
                Opening::Ipc(memory.map_err(refusal)?)
            }
            Memory::Vmm => {
                let descriptor = loop {
                    let (tag, descriptor) = self.line.receive().map_err(|error| {
                        StartError::CannotRun(format!("no descriptor came: {error}"))
                    })?;
                    // One of a case that ended before it was opened is closed here.
                    if tag == u64::from(case.id) {
                        break descriptor;
                    }
                };
                let memory =
                    MappedMemory::from_descriptor(context, descriptor.as_fd(), shared.bytes);
                Opening::Mapped(memory.map_err(refusal)?)
            }
            Memory::Fabric => {
                let memory = MappedMemory::from_fabric(context, handle()?, shared.bytes);
                Opening::Mapped(memory.map_err(no_fabric)?)
            }
        };
        self.opened.insert(case.id, opening);
        Ok(())
    }

    /// This rank's own buffer for an end of a case.
    fn own(&self, mechanism: &dyn Mechanism, end: End) -> Result<Region, Stop> {
        let mapped = matches!(mechanism.memory(), Memory::Vmm | Memory::Fabric);
        if mapped && end == far_end(mechanism) {
            let room = self.rooms.get(&(mechanism.memory(), end));
            let region = room.and_then(MappedMemory::region);
            return Ok(region.ok_or(SeatError::Layout)?);
        }
        Ok(match end {
            End::Source => self.seat.source.region(),
            End::Destination => self.seat.destination.region(),
        })
    }

    fn target(&self, case: &Case, mechanism: &dyn Mechanism) -> Result<Target, Stop> {
        self.target_in(self.own(mechanism, End::Destination)?, case)
    }

    fn target_in(&self, whole: Region, case: &Case) -> Result<Target, Stop> {
        let target = Target::of(whole, self.open.guard, case.offset, case.bytes);
        Ok(target.ok_or(SeatError::Layout)?)
    }

    fn payload(&self, case: &Case, mechanism: &dyn Mechanism) -> Result<Region, Stop> {
        let whole = self.own(mechanism, End::Source)?;
        Ok(whole
            .part(case.offset, case.bytes)
            .ok_or(SeatError::Layout)?)
    }

    /// The transfer as the executing rank sees it.
    fn transfer(
        &self,
        case: &Case,
        mechanism: &dyn Mechanism,
        keys: Keys,
    ) -> Result<Transfer<'_>, Stop> {
        let far = self.opened.get(&case.id).and_then(Opening::region);
        let far = far.ok_or(SeatError::Layout)?;
        let (from, to) = match far_end(mechanism) {
            End::Destination => (
                self.payload(case, mechanism)?,
                self.target_in(far, case)?.to,
            ),
            End::Source => (
                far.part(case.offset, case.bytes).ok_or(SeatError::Layout)?,
                self.target(case, mechanism)?.to,
            ),
        };
        Ok(Transfer {
            executing: &self.seat,
            other: None,
            from,
            to,
            first: case.offset / UNIT,
            keys,
        })
    }

    /// Whole destination buffers, in which lost words of others would lie.
    fn stained(&self) -> Vec<Region> {
        let rooms = self.rooms.iter();
        let rooms = rooms.filter(|((_, end), _)| *end == End::Destination);
        let mut all: Vec<Region> = rooms.filter_map(|(_, room)| room.region()).collect();
        all.push(self.seat.destination.region());
        all
    }
}

/// Which end the executing rank reaches through memory of another.
fn far_end(mechanism: &dyn Mechanism) -> End {
    match mechanism.side() {
        Side::Source => End::Destination,
        Side::Destination | Side::Host => End::Source,
    }
}

fn failed(error: SeatError, job: &Job) -> Done {
    let transferring = matches!(job.task, Task::Move | Task::Time);
    Done::Failed(transfer::failure(error, transferring))
}

/// A call that makes memory reachable said no. Unless the context is lost with it, that is the pair's answer.
fn refusal(error: DriverError) -> Stop {
    Stop::With(match error.code {
        code if code::loses_context(code) => Outcome::Faulted {
            api: error.api.to_string(),
            code,
            name: error.name,
        },
        code::OUT_OF_MEMORY => Outcome::NotRun {
            reason: error.to_string(),
        },
        code => Outcome::Refused {
            api: error.api.to_string(),
            code,
            name: error.name,
        },
    })
}

/// Fabric handles need a channel of the IMEX service, whatever the device claims.
fn no_fabric(error: DriverError) -> Stop {
    match error.code {
        code::NOT_PERMITTED | code::NOT_SUPPORTED => Stop::With(Outcome::NotApplicable {
            reason: format!("no fabric handles: {error}, as without a channel of the IMEX service"),
        }),
        _ => refusal(error),
    }
}
