//! The worker process: opens GPUs once, then answers requests until its input closes. The only code that touches CUDA.
//! Standard output is the protocol's alone.

use super::{
    alone, bench, loaded, reduced, resident,
    seat::Seat,
    selftest,
    traffic::{clocked, stand::Stand},
    transfer::{self, Setting},
    wire::{Advertised, Answer, Layout, Open, Opened, OpenedGpu, Reply, Request},
};
use crate::{
    ffi::driver::{code, p2p},
    gpu::{Context, Device, PinnedMemory, System, context::PeerChange},
    model::{
        case::{Case, Rung, Subject},
        finding::Severity,
        pair::{GpuIndex, OrderedPair},
        pci::PciAddress,
        reading::{Absence, Reading},
        snapshot::CudaClaims,
        traffic::Flow,
    },
    words::Key,
};
use std::{
    io::{BufRead, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Peers that a device may have enabled at once without NVSwitch (CUDA programming guide).
const MOST_PEERS: usize = 8;

/// The device at `pci`.
pub(super) fn find(devices: &[Device], pci: PciAddress) -> Result<&Device, String> {
    let found = devices.iter().find(|device| device.pci == pci);
    found.ok_or_else(|| {
        format!("CUDA does not see the GPU at {pci} (hidden by CUDA_VISIBLE_DEVICES?)")
    })
}

/// Opens one GPU with its buffers and kernels.
pub(super) fn take_seat(
    system: &System,
    devices: &[Device],
    (gpu, pci): (u32, PciAddress),
    (layout, pooled): (Layout, bool),
) -> Result<(OpenedGpu, Seat), String> {
    let started = Instant::now();
    let device = find(devices, pci)?;
    let name = |error: crate::ffi::driver::DriverError| format!("GPU{gpu} at {pci}: {error}");
    let context = Context::new(system.driver(), device).map_err(name)?;
    let seat = match pooled {
        true => Seat::open_pooled(gpu, &context, layout),
        false => Seat::open(gpu, &context, layout),
    };
    let seat = seat.map_err(name)?;
    let opened = OpenedGpu {
        gpu,
        name: device.name.clone(),
        compute_capability: device.compute_capability,
        no_kernels: seat.no_kernels().map(|why| why.reason.clone()),
        took_ms: started.elapsed().as_secs_f64() * 1e3,
    };
    Ok((opened, seat))
}

/// An open worker.
struct Worker {
    open: Open,
    system: System,
    seats: Vec<Seat>,
    /// Seats of flows under load.
    flows: Mutex<loaded::Flows>,
    /// What timed transfers need; empty until the first one.
    stand: Stand,
    /// Peer access is enabled per request and disabled after: more peers than a device may have at once.
    per_request: bool,
}

/// Runs the protocol over `input` and `output` until the input closes.
pub fn serve(input: impl BufRead, output: impl Write + Send) -> std::io::Result<()> {
    let output = Mutex::new(output);
    let reply = |reply: Reply| {
        let line = serde_json::to_string(&reply).unwrap_or_default();
        if let Ok(mut output) = output.lock() {
            // A closed pipe means that the parent is gone; the next read says so too.
            let _ = writeln!(output, "{line}").and_then(|()| output.flush());
        }
    };
    let failed = |message: String| {
        reply(Reply::Failed {
            message,
            severity: Severity::Critical,
        })
    };
    let mut worker: Option<Worker> = None;
    for line in input.lines() {
        let request: Request = match serde_json::from_str(&line?) {
            Ok(request) => request,
            Err(error) => {
                failed(format!("a request could not be read: {error}"));
                continue;
            }
        };
        match (request, &mut worker) {
            (Request::Open(open), before) => {
                // Buffers go before others come; the contexts stay.
                let contexts = before.take().map(Worker::into_contexts);
                match Worker::open(open) {
                    Ok((opened, ready)) => {
                        worker = Some(ready);
                        reply(Reply::Opened(opened));
                    }
                    Err(message) => failed(message),
                }
                drop(contexts);
            }
            (_, None) => failed("a request came before the GPUs were opened".to_string()),
            (request, Some(worker)) => worker.answer(request, &reply),
        }
    }
    Ok(())
}

impl Worker {
    fn into_contexts(self) -> Vec<Arc<Context>> {
        let seats = self.seats.iter();
        seats.map(|seat| seat.context.clone()).collect()
    }

    fn open(open: Open) -> Result<(Opened, Worker), String> {
        let system = System::start().map_err(|error| error.to_string())?;
        let devices = system.devices().map_err(|error| error.to_string())?;
        let mut gpus = Vec::new();
        let mut seats = Vec::new();
        for (gpu, pci) in &open.gpus {
            let (opened, seat) =
                take_seat(&system, &devices, (*gpu, *pci), (open.layout, open.pooled))?;
            gpus.push(opened);
            seats.push(seat);
        }
        let per_request = open.peer_access && seats.len() > MOST_PEERS + 1;
        let mut worker = Worker {
            open,
            system,
            seats,
            flows: Mutex::default(),
            stand: Stand::default(),
            per_request,
        };
        let pairs: Vec<OrderedPair> = worker.pairs();
        let mut advertised = Vec::new();
        for pair in &pairs {
            advertised.push((
                *pair,
                worker
                    .advertised(*pair)
                    .map_err(|error| error.to_string())?,
            ));
        }
        let mut refused = Vec::new();
        if worker.open.peer_access && !worker.per_request {
            let open_pairs: Vec<_> = advertised
                .iter()
                .filter(|(_, a)| a.can_access)
                .map(|(pair, _)| *pair)
                .collect();
            refused = worker.set_peer_access(&open_pairs, true)?;
        } else if !worker.open.peer_access {
            // The proof of "off": disabling answers that it was never on.
            if let Some((pair, why, code)) =
                worker.set_peer_access(&pairs, false)?.into_iter().next()
            {
                return Err(format!(
                    "peer access {pair} is not provably off: {why} ({code})"
                ));
            }
        }
        if worker.open.pooled {
            worker.grant(&advertised);
        }
        let opened = Opened {
            authenticity: worker.system.authenticity(),
            deadline_factor: worker.system.deadline_factor(),
            cuda_version: worker.system.version().map_err(|error| error.to_string())?,
            gpus,
            advertised,
            refused,
        };
        Ok((opened, worker))
    }

    fn pairs(&self) -> Vec<OrderedPair> {
        let all = self
            .seats
            .iter()
            .flat_map(|s| self.seats.iter().map(move |d| (s.gpu, d.gpu)));
        all.filter_map(|(s, d)| OrderedPair::new(s, d)).collect()
    }

    fn seat(&self, gpu: GpuIndex) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.gpu == gpu.0)
    }

    fn advertised(&self, pair: OrderedPair) -> Result<Advertised, crate::ffi::driver::DriverError> {
        let (Some(source), Some(destination)) =
            (self.seat(pair.source), self.seat(pair.destination))
        else {
            return Ok(Advertised {
                can_access: false,
                claims: CudaClaims::default(),
            });
        };
        let (s, d) = (
            source.context.device().handle,
            destination.context.device().handle,
        );
        let driver = self.system.driver();
        let can_access = driver.can_access_peer(s, d)?;
        let ask = |attribute: i32| match driver.p2p_attribute(attribute, s, d) {
            Ok(value) => Reading::Known(value),
            // An older driver answers so to the number of an attribute that it does not know.
            Err(error) if error.code == code::INVALID_VALUE => Reading::Absent(
                Absence::NotSupported(format!("attribute {attribute}: {}", error.name)),
            ),
            Err(error) => Reading::Absent(Absence::Failed(error.to_string())),
        };
        let yes = |attribute: i32| ask(attribute).map(|value| value != 0);
        Ok(Advertised {
            can_access,
            claims: CudaClaims {
                can_access: Reading::Known(can_access),
                performance_rank: ask(p2p::PERFORMANCE_RANK),
                access: yes(p2p::ACCESS),
                native_atomics: yes(p2p::NATIVE_ATOMICS),
                array_access: yes(p2p::ARRAY_ACCESS),
                only_partial_atomics: yes(p2p::ONLY_PARTIAL_ATOMICS),
            },
        })
    }

    /// Enables or disables access of each pair's source context to its destination; what was refused comes back. With
    /// `on` false, anything but "was never on" counts as refused.
    fn set_peer_access(
        &self,
        pairs: &[OrderedPair],
        on: bool,
    ) -> Result<Vec<(OrderedPair, String, u32)>, String> {
        let mut refused = Vec::new();
        for pair in pairs {
            let (Some(source), Some(destination)) =
                (self.seat(pair.source), self.seat(pair.destination))
            else {
                continue;
            };
            let change = if on {
                source.context.enable_peer(&destination.context)
            } else {
                source.context.disable_peer(&destination.context)
            };
            match (change, on) {
                (Ok(PeerChange::Done | PeerChange::Already), true)
                | (Ok(PeerChange::Already), false) => {}
                (Ok(PeerChange::Done), false) => refused.push((*pair, "it was on".to_string(), 0)),
                (Ok(PeerChange::Refused(error)), _) => {
                    refused.push((*pair, error.name, error.code))
                }
                // Enabling can also fail outright on a broken host (205, facts F28): that is the pair's answer.
                (Err(error), true) => refused.push((*pair, error.name, error.code)),
                (Err(error), false) => return Err(error.to_string()),
            }
        }
        Ok(refused)
    }

    /// Grants each pool to the GPUs that may reach it by what is advertised; what comes of it is kept by the seats.
    fn grant(&mut self, advertised: &[(OrderedPair, Advertised)]) {
        for (pair, _) in advertised.iter().filter(|(_, a)| a.can_access) {
            let Some(accessor) = self.seat(pair.source).map(|seat| seat.context.clone()) else {
                continue;
            };
            let owner = self
                .seats
                .iter_mut()
                .find(|seat| seat.gpu == pair.destination.0);
            if let Some(owner) = owner {
                owner.grant(pair.source.0, &accessor);
            }
        }
    }

    fn setting(&self, search: bool) -> Setting<'_> {
        Setting {
            seats: &self.seats,
            run: self.open.run,
            generation: self.open.generation,
            factor: self.system.deadline_factor(),
            peer_access: self.open.peer_access,
            search,
        }
    }

    fn answer(&mut self, request: Request, reply: &(impl Fn(Reply) + Sync)) {
        let warn = |message: String| {
            reply(Reply::Failed {
                message,
                severity: Severity::Warning,
            })
        };
        match request {
            Request::Open(_) => {}
            Request::Run {
                cases,
                search,
                pass,
            } => {
                let setting = Setting {
                    run: self.open.run.wrapping_add(u32::from(pass)) & Key::RUN_BITS,
                    ..self.setting(search)
                };
                self.run(&setting, &cases, &|answer| reply(Reply::Answer(answer)));
                reply(Reply::Done);
            }
            Request::Load { millis } => {
                self.load(Duration::from_millis(millis));
                reply(Reply::Done);
            }
            Request::Reduce { gpus, request } => {
                let row = |row| reply(Reply::Row(Box::new(row)));
                reduced::rows(&self.setting(false), &gpus, &request, row);
                reply(Reply::Done);
            }
            Request::Selftest { gpu } => match self.seat(GpuIndex(gpu)) {
                Some(seat) => match selftest::run(&self.setting(false), seat) {
                    Ok(result) => reply(Reply::Planted(result)),
                    Err(error) => warn(error.to_string()),
                },
                None => warn(format!("GPU{gpu} is not open")),
            },
            Request::Bench { gpu, samples } => match self.seat(GpuIndex(gpu)) {
                Some(seat) => match bench::run(&self.setting(false), seat, samples) {
                    Ok(rows) => reply(Reply::Measured(rows)),
                    Err(error) => warn(error.to_string()),
                },
                None => warn(format!("GPU{gpu} is not open")),
            },
            Request::Traffic {
                case,
                reserve,
                patience,
            } => {
                let terms = clocked::Terms { reserve, patience };
                let mut stand = std::mem::take(&mut self.stand);
                let timed = clocked::run(&self.setting(false), &mut stand, *case, &terms);
                self.stand = stand;
                if self.per_request {
                    let pairs: Vec<OrderedPair> =
                        timed.flows.iter().filter_map(Flow::pair).collect();
                    self.let_go(pairs.iter().flat_map(|pair| [*pair, pair.reversed()]));
                }
                reply(Reply::Timed(Box::new(timed)));
            }
        }
    }

    fn run(&self, setting: &Setting, cases: &[Case], emit: &(impl Fn(Answer) + Sync)) {
        let (pairs, singles): (Vec<Case>, Vec<Case>) = cases
            .iter()
            .cloned()
            .partition(|case| !matches!(case.subject, Subject::Gpu(_)));
        // Single-GPU cases of different GPUs run side by side, each GPU's own in order.
        std::thread::scope(|scope| {
            for seat in &self.seats {
                let own: Vec<&Case> = singles
                    .iter()
                    .filter(|c| c.subject == Subject::Gpu(GpuIndex(seat.gpu)))
                    .collect();
                if !own.is_empty() {
                    scope.spawn(move || {
                        let mut lost = false;
                        for case in own {
                            let answer = match lost {
                                true => alone::skipped(case),
                                false => alone::run(setting, seat, case),
                            };
                            lost |= answer.retire;
                            emit(answer);
                        }
                    });
                }
            }
        });
        if pairs.is_empty() {
            return;
        }
        let among = |case: &Case| match case.subject {
            Subject::Gpu(_) => Vec::new(),
            Subject::Pair(pair) => vec![pair],
            Subject::Group(group) => group.pairs().collect(),
        };
        let mut wanted: Vec<OrderedPair> = pairs.iter().flat_map(among).collect();
        wanted.extend(wanted.clone().into_iter().map(OrderedPair::reversed));
        wanted.sort();
        wanted.dedup();
        if self.per_request {
            // A refusal shows in the case itself; the supervisor asks only for advertised pairs.
            let _ = self.set_peer_access(&wanted, true);
        }
        let (reductions, pairs): (Vec<&Case>, Vec<&Case>) =
            pairs.iter().partition(|case| case.all_reduce.is_some());
        let (waiting, pairs): (Vec<&Case>, Vec<&Case>) = pairs
            .into_iter()
            .partition(|case| case.rung == Rung::Resident);
        let (flows, pairs): (Vec<&Case>, Vec<&Case>) =
            pairs.into_iter().partition(|case| case.load.is_some());
        if !flows.is_empty() {
            let mut open = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
            loaded::run(setting, &mut open, &flows, emit);
        }
        if !waiting.is_empty() {
            resident::run(setting, &waiting, emit);
        }
        if !reductions.is_empty() {
            reduced::run(setting, &reductions, emit);
        }
        if !pairs.is_empty() {
            let pairs: Vec<Case> = pairs.into_iter().cloned().collect();
            transfer::run(setting, &pairs, emit);
        }
        if self.per_request {
            self.let_go(wanted.into_iter());
        }
    }

    /// Disables access of each pair's source context to its destination, whether it was on or not.
    fn let_go(&self, pairs: impl Iterator<Item = OrderedPair>) {
        for pair in pairs {
            if let (Some(source), Some(destination)) =
                (self.seat(pair.source), self.seat(pair.destination))
            {
                let _ = source.context.disable_peer(&destination.context);
            }
        }
    }

    /// Keeps every host link busy for `time`. Best effort: it only makes weather for the observer.
    fn load(&self, time: Duration) {
        let started = Instant::now();
        let buffers: Vec<(&Seat, Option<Arc<PinnedMemory>>)> = self
            .seats
            .iter()
            .map(|seat| {
                (
                    seat,
                    PinnedMemory::new(&seat.context, seat.span() as usize)
                        .ok()
                        .map(Arc::new),
                )
            })
            .collect();
        while started.elapsed() < time {
            for (seat, host) in &buffers {
                if let Some(host) = host {
                    for _ in 0..4 {
                        let _ = seat.stream.copy(seat.source.region(), host.region());
                    }
                }
            }
            for (seat, _) in &buffers {
                let _ = seat.stream.wait(transfer::limit(
                    4 * seat.span(),
                    self.system.deadline_factor(),
                ));
            }
        }
    }
}
