//! A communicator: one rank's part of a ring. Ranks meet in a shared file beside the scenario, so it is one and the same whether
//! they are of one process or of several.
use super::number::Type;
use super::transport::{self, Transport};
use super::{Failure, INVALID_ARGUMENT, INVALID_USAGE, SYSTEM};
use crate::MAX_GPUS;
use crate::cuda::codes::Code as DriverCode;
use crate::cuda::context::{Driver, driver};
use crate::cuda::engine::{Op, Stream};
use crate::cuda::graph;
use crate::cuda::stuck::stuck;
use crate::cuda::timeline::Work;
use crate::cuda::view::{die, forever};
use crate::scenario::{Kind, Mechanism, Via};
use crate::topology::Engine as Carrier;
use crate::world::{SCENARIO_VARIABLE, World, uuid_text};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that the ranks exchange at a time.
const PIECE: usize = 1 << 20;
/// Modelled time of an all-reduce before its first step, nanoseconds: the launch of its kernel.
const LAUNCH_NS: u64 = 6_500;
/// Of one step of the ring. Two H200 take 8.9 us over NVLink and 14.4 us over shared memory for 8 KiB.
const NVLINK_STEP_NS: u64 = 1_200;
const PCIE_STEP_NS: u64 = 2_500;
const SHARED_STEP_NS: u64 = 4_000;
const CHANNELS: u32 = 2;

/// What all ranks see. All zero is its valid first state.
#[repr(C)]
struct Meeting {
    ranks: [Seat; MAX_GPUS],
}

#[repr(C)]
struct Seat {
    /// GPU plus one; 0: not there yet.
    gpu: AtomicU32,
    pid: AtomicU32,
    /// Steps that the rank has come to.
    steps: AtomicU64,
}

struct Shared {
    base: *mut u8,
    bytes: usize,
}
// SAFETY: a shared mapping; the meeting is atomics, and pieces are written and read in turns that the meeting orders.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn open(path: &Path, ranks: usize) -> std::io::Result<Self> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let bytes = size_of::<Meeting>().next_multiple_of(4096) + ranks * PIECE;
        file.set_len(bytes as u64)?;
        // SAFETY: a fresh shared mapping of a file of this size.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = base.cast();
        Ok(Self { base, bytes })
    }

    fn meeting(&self) -> &Meeting {
        // SAFETY: page aligned, large enough, made of atomics, and mapped as long as `self` lives.
        unsafe { &*self.base.cast::<Meeting>() }
    }

    fn piece(&self, rank: usize) -> *mut u8 {
        // SAFETY: inside the mapping, by its size.
        unsafe {
            self.base
                .add(size_of::<Meeting>().next_multiple_of(4096) + rank * PIECE)
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`; nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// One rank.
pub(super) struct Comm {
    ranks: usize,
    rank: usize,
    gpu: usize,
    world: &'static World,
    shared: Arc<Shared>,
}

impl Comm {
    /// Takes a rank's place.
    pub(super) fn join(name: &str, ranks: usize, rank: usize, gpu: usize) -> Result<Self, Failure> {
        let world = driver()?.world;
        let scenario = std::env::var_os(SCENARIO_VARIABLE)
            .map(PathBuf::from)
            .unwrap_or_default();
        let path = scenario.with_file_name(name);
        let shared = Shared::open(&path, ranks)
            .map_err(|e| Failure(SYSTEM, format!("{}: {e}", path.display())))?;
        let seat = &shared.meeting().ranks[rank];
        seat.pid.store(std::process::id(), Ordering::SeqCst);
        seat.gpu.store(gpu as u32 + 1, Ordering::SeqCst);
        Ok(Self {
            ranks,
            rank,
            gpu,
            world,
            shared: Arc::new(shared),
        })
    }

    pub(super) fn gpu(&self) -> usize {
        self.gpu
    }

    fn gpu_of(&self, rank: usize) -> usize {
        let gpu = self.shared.meeting().ranks[rank].gpu.load(Ordering::SeqCst);
        (gpu as usize).saturating_sub(1)
    }

    /// Waits until every rank is there, refuses two on one device, and writes the log.
    pub(super) fn wait_for_all(&self) -> Result<(), Failure> {
        let seats = &self.shared.meeting().ranks[..self.ranks];
        while seats.iter().any(|s| s.gpu.load(Ordering::SeqCst) == 0) {
            std::thread::sleep(Duration::from_micros(200));
        }
        for other in (0..self.ranks).filter(|r| *r != self.rank) {
            if self.gpu_of(other) == self.gpu {
                let at = &self.world.scenario.gpus[self.gpu].at;
                return Err(Failure(
                    INVALID_USAGE,
                    format!(
                        "Duplicate GPU detected : rank {} and rank {other} both on CUDA device {at}",
                        self.rank
                    ),
                ));
            }
        }
        self.log();
        Ok(())
    }

    fn next(&self, rank: usize) -> usize {
        (rank + 1) % self.ranks
    }

    fn before(&self, rank: usize) -> usize {
        (rank + self.ranks - 1) % self.ranks
    }

    fn transport(&self, from: usize, to: usize) -> Transport {
        let (farthest, _) = transport::farthest(self.world, self.ranks, |n| std::env::var(n).ok());
        let pair = (self.gpu_of(from), self.gpu_of(to));
        transport::between(&self.world.topology, farthest, pair)
    }

    fn same_process(&self, a: usize, b: usize) -> bool {
        let pid = |r: usize| self.shared.meeting().ranks[r].pid.load(Ordering::SeqCst);
        pid(a) == pid(b)
    }

    /// NCCL's lines, where NCCL_DEBUG asks for them: to NCCL_DEBUG_FILE, else to standard output.
    fn log(&self) {
        let info =
            std::env::var("NCCL_DEBUG").is_ok_and(|v| matches!(v.as_str(), "INFO" | "TRACE"));
        if !info {
            return;
        }
        let (_, mut says) = transport::farthest(self.world, self.ranks, |n| std::env::var(n).ok());
        says.push("NCCL version 2.28.3+cuda13.0".to_string());
        let (rank, next) = (self.rank, self.next(self.rank));
        says.push(format!(
            "comm 0x5e0 rank {rank} nRanks {} nNodes 1 localRanks {} localRank {rank} busId {}",
            self.ranks,
            self.ranks,
            uuid_text(&self.world.uuid(self.gpu))
        ));
        let way = match (self.transport(rank, next), self.same_process(rank, next)) {
            (Transport::Peer, true) => "P2P/direct pointer/read",
            (Transport::Peer, false) => "P2P/CUMEM/read",
            (Transport::SharedMemory, _) => "SHM/direct/direct",
        };
        for channel in 0..CHANNELS {
            says.push(format!(
                "Channel {channel:02}/0 : {rank}[{}] -> {next}[{}] via {way}",
                self.gpu,
                self.gpu_of(next)
            ));
        }
        says.push("Connected all rings, use ring PXN 0 GDR 1".to_string());
        let pid = std::process::id();
        let host = &self.world.scenario.host.name;
        let text: String = says
            .iter()
            .map(|line| format!("{host}:{pid}:{pid} [{}] NCCL INFO {line}\n", self.gpu))
            .collect();
        match std::env::var_os("NCCL_DEBUG_FILE") {
            Some(path) => {
                let file = std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path);
                if let Ok(mut file) = file {
                    let _ = file.write_all(text.as_bytes());
                }
            }
            None => print!("{text}"),
        }
    }

    /// Queues this rank's part of a sum over all ranks.
    pub(super) fn all_reduce(
        &self,
        (from, to): (u64, u64),
        count: usize,
        kind: Type,
        stream: usize,
    ) -> Result<(), Failure> {
        let driver = driver()?;
        let bytes = count * kind.bytes();
        for at in [from, to] {
            let own = driver
                .memory
                .at(at)
                .filter(|a| a.gpu == Some(self.gpu) && a.holds(at, bytes as u64));
            if own.is_none() {
                return Err(Failure(
                    INVALID_ARGUMENT,
                    format!("no device memory of {bytes} bytes at {at:#x}"),
                ));
            }
        }
        let stream = driver.stream(stream)?;
        let part = Part {
            ranks: self.ranks,
            rank: self.rank,
            shared: Arc::clone(&self.shared),
            kind,
            from,
            to,
            bytes,
            source: self.gpu_of(self.before(self.rank)),
            gpu: self.gpu,
            transport: self.transport(self.before(self.rank), self.rank),
            via: match self.same_process(self.before(self.rank), self.rank) {
                true => Via::NONE,
                false => Via::IPC,
            },
        };
        let submit =
            move |driver: &'static Driver, stream: &Arc<Stream>| part.submit(driver, stream);
        Ok(graph::put(driver, &stream, Arc::new(submit))?)
    }
}

/// One rank's part of one call, as often as it is played.
#[derive(Clone)]
struct Part {
    ranks: usize,
    rank: usize,
    shared: Arc<Shared>,
    kind: Type,
    from: u64,
    to: u64,
    bytes: usize,
    /// GPU of the rank before, from which the ring brings everything.
    source: usize,
    gpu: usize,
    transport: Transport,
    via: Via,
}

impl Part {
    /// Faults that strike what this rank receives, this time.
    fn struck(&self, world: &World) -> Vec<Kind> {
        let (source, gpu) = (Some(self.source), Some(self.gpu));
        let ways: &[(Mechanism, Option<usize>, Option<usize>, Via)] = match self.transport {
            Transport::Peer => &[
                (Mechanism::SmStore16, source, gpu, self.via),
                (Mechanism::SmStore, source, gpu, self.via),
            ],
            Transport::SharedMemory => &[
                (Mechanism::HostStore, source, None, Via::NONE),
                (Mechanism::HostLoad, None, gpu, Via::NONE),
            ],
        };
        let mut concerned: Vec<usize> = ways
            .iter()
            .flat_map(|&(m, s, d, via)| world.concerned(s, d, m, via).map(|(i, _)| i))
            .collect();
        concerned.sort_unstable();
        concerned.dedup();
        concerned.retain(|&i| world.strikes(i));
        concerned
            .into_iter()
            .map(|i| world.faults[i].kind.clone())
            .collect()
    }

    fn work(&self, world: &World, kinds: &[Kind]) -> Work {
        let topology = &world.topology;
        let (route, step) = match self.transport {
            Transport::Peer if topology.nvlinks(self.source, self.gpu) > 0 => (
                topology.peer_route(self.source, self.gpu, Carrier::Sm),
                NVLINK_STEP_NS,
            ),
            Transport::Peer => (
                topology.peer_route(self.source, self.gpu, Carrier::Sm),
                PCIE_STEP_NS,
            ),
            Transport::SharedMemory => {
                (topology.staged_route(self.source, self.gpu), SHARED_STEP_NS)
            }
        };
        let steps = 2 * (self.ranks as u64 - 1);
        Work {
            lead_ns: LAUNCH_NS + steps * step,
            bytes: self.bytes as f64 * steps as f64 / self.ranks as f64,
            links: route.links.into_iter().map(|l| (l, 1.0)).collect(),
            limit: route.limit,
            at_least_ns: 0,
            slow: kinds.iter().fold(1.0_f64, |s, k| match k {
                Kind::Slow { factor } => s.max(*factor),
                _ => s,
            }),
            posted: None,
            // The other ranks of the ring model their own part; telling them of it would count it twice.
            crosses: false,
        }
    }

    fn submit(&self, driver: &'static Driver, stream: &Arc<Stream>) -> Result<Arc<Op>, DriverCode> {
        let kinds = self.struck(driver.world);
        if kinds.contains(&Kind::Death) {
            die();
        }
        if kinds.contains(&Kind::Stuck) {
            stuck();
        }
        let work = (!kinds.contains(&Kind::Hang)).then(|| self.work(driver.world, &kinds));
        let part = self.clone();
        let run = Box::new(move |_: &Arc<Op>| part.run(&kinds).map(|()| None));
        Ok(stream.submit(&driver.engine, driver.order(stream), work, false, run))
    }

    /// Waits until every rank has come as far as this one.
    fn step(&self) {
        let seats = &self.shared.meeting().ranks[..self.ranks];
        let mine = seats[self.rank].steps.fetch_add(1, Ordering::SeqCst) + 1;
        let mut looks = 0_u32;
        while seats.iter().any(|s| s.steps.load(Ordering::SeqCst) < mine) {
            looks += 1;
            if looks < 200 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn run(&self, kinds: &[Kind]) -> Result<(), DriverCode> {
        for offset in (0..self.bytes).step_by(PIECE) {
            let len = PIECE.min(self.bytes - offset);
            // SAFETY: the range was checked to lie in an allocation of this GPU when the call was queued; pieces are large
            // enough, and nobody else writes this rank's own.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    (self.from as usize + offset) as *const u8,
                    self.shared.piece(self.rank),
                    len,
                );
            }
            self.step();
            // SAFETY: every rank has written its piece and writes it again only after the next step.
            let piece = |rank| unsafe { std::slice::from_raw_parts(self.shared.piece(rank), len) };
            let mut sums = vec![0.0_f32; len / self.kind.bytes()];
            for rank in (0..self.ranks).filter(|r| *r != self.rank) {
                self.kind.add(piece(rank), &mut sums);
            }
            let mut received = self.kind.write(&sums);
            let kept = kinds.iter().try_fold(true, |kept, kind| {
                spoil(kind, &mut received).map(|arrives| kept && arrives)
            })?;
            let mut sums = vec![0.0_f32; len / self.kind.bytes()];
            self.kind.add(&received, &mut sums);
            self.kind.add(piece(self.rank), &mut sums);
            if kept {
                let out = self.kind.write(&sums);
                // SAFETY: checked as above.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        out.as_ptr(),
                        (self.to as usize + offset) as *mut u8,
                        len,
                    );
                }
            }
            self.step();
        }
        Ok(())
    }
}

/// What a fault makes of the bytes that came from the rank before; false where nothing comes and the sum is never written.
fn spoil(kind: &Kind, received: &mut [u8]) -> Result<bool, DriverCode> {
    match kind {
        Kind::Zeroed | Kind::Misrouted { .. } | Kind::Stale => received.fill(0),
        Kind::Ones => received.fill(0xff),
        Kind::Dropped | Kind::Mirrored => return Ok(false),
        Kind::Shifted { bytes } => {
            let by = (*bytes).min(received.len());
            received.rotate_right(by);
        }
        Kind::Hang => forever(),
        Kind::Stuck => stuck(),
        Kind::Death => die(),
        Kind::Sticky { code } => return Err(*code),
        Kind::Slow { .. } | Kind::Refusal { .. } | Kind::Spilled { .. } => {}
        Kind::Late { .. } | Kind::LostFlag => {}
        // A part or some bits: one byte in the middle says as much of a sum.
        _ => {
            let middle = received.len() / 2;
            if let Some(byte) = received.get_mut(middle) {
                *byte ^= 0x01;
            }
        }
    }
    Ok(true)
}
