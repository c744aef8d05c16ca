//! A launch: blocks in turn, barriers, and the wait for other host threads.
//!
//! Knows which blocks run together and when nothing but polling is left to do. Knows no instruction but the barrier.

use std::time::Duration;

use super::code::{BarrierKind, Code, Kind};
use super::exec::{Env, Wait, Warp};
use super::lanes::{Aligned, NONE};
use super::memory::{Memory, Trap, TrapKind};
use super::parse::Entry;
use super::types::Special;

/// Threads that can be resident at once, as `resident_blocks` divides them: one block of 1024 on each of 256
/// multiprocessors, more than any GPU has.
const RESIDENT_THREADS: u64 = 262_144;
/// Most resident blocks.
const RESIDENT_BLOCKS: u64 = 2048;
/// Most threads of a block.
const BLOCK_THREADS: u64 = 1024;
/// Most shared memory of a block, bytes.
const BLOCK_SHARED: usize = 227 << 10;
/// Rounds in which no block ended before more blocks join the running ones all the same: a kernel may wait and look busy.
const PATIENCE: u32 = 256;
/// Rounds without news before the host thread sleeps instead of yielding.
const YIELDS: u32 = 256;
const NAP: Duration = Duration::from_micros(50);

/// A kernel launch.
pub struct Launch<'a> {
    /// The kernel.
    pub entry: &'a Entry,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; 1024 in all at most.
    pub block: [u32; 3],
    /// Parameter bytes, laid out as [`Entry::params`] says.
    pub params: &'a [u8],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared: usize,
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions times lanes.
    pub instructions: u64,
    /// Bytes loaded from global memory, atomics included.
    pub bytes_read: u64,
    /// Bytes stored to global memory, atomics included.
    pub bytes_written: u64,
}

/// How many blocks of this size can wait for each other: 262,144 threads' worth, at most 2048.
///
/// A launch whose blocks wait for one another must not have more blocks than this. The whole device counts, not one
/// multiprocessor: an occupancy answer per multiprocessor times their number must not exceed it.
pub fn resident_blocks(threads_per_block: u32) -> u32 {
    let warps = u64::from(threads_per_block.max(1)).div_ceil(32);
    (RESIDENT_THREADS / (warps * 32)).clamp(1, RESIDENT_BLOCKS) as u32
}

struct Block {
    id: [u32; 3],
    warps: Vec<Warp>,
    shared: Aligned,
}

enum Round {
    News,
    Idle,
    Done,
}

/// Runs a launch to its end on the calling thread.
///
/// The trap, if any, is that of the first lane that trapped; what other lanes had written before stays written.
pub fn run(launch: &Launch<'_>, mem: &dyn Memory) -> Result<Stats, Trap> {
    let entry = launch.entry;
    let code = &entry.code;
    let count = |d: [u32; 3]| {
        d.iter()
            .try_fold(1u64, |acc, &n| acc.checked_mul(u64::from(n)))
    };
    let invalid = |what: String| {
        Err(Trap::new(
            TrapKind::InvalidLaunch,
            format!("{what}; in `{}`", entry.name),
        ))
    };
    let most = entry
        .max_threads
        .map_or(BLOCK_THREADS, |m| u64::from(m).min(BLOCK_THREADS));
    let threads = match count(launch.block) {
        Some(n) if n > 0 && n <= most => n as u32,
        _ => {
            return invalid(format!(
                "block {:?} has no thread or more than {most}",
                launch.block
            ));
        }
    };
    let Some(blocks) = count(launch.grid).filter(|&n| n > 0) else {
        return invalid(format!("grid {:?} has no block or too many", launch.grid));
    };
    if launch.params.len() < entry.param_bytes {
        return invalid(format!(
            "{} parameter bytes where {} are needed",
            launch.params.len(),
            entry.param_bytes
        ));
    }
    let dynamic_at = if launch.dynamic_shared > 0 {
        code.dynamic_at
    } else {
        entry.shared_bytes
    };
    let shared_len = dynamic_at.saturating_add(launch.dynamic_shared);
    if shared_len > BLOCK_SHARED {
        return invalid(format!(
            "{shared_len} bytes of shared memory where {BLOCK_SHARED} is most"
        ));
    }
    let mut env = Env {
        entry,
        code,
        data: &entry.data,
        mem,
        params: launch.params,
        shared: std::ptr::null_mut(),
        shared_len,
        ctaid: [0; 3],
        block: launch.block,
        stats: Stats::default(),
    };
    let resident = u64::from(resident_blocks(threads)).min(blocks) as usize;
    let (mut wanted, mut next, mut idle_rounds, mut same_blocks) = (1usize, 0u64, 0u32, 0u32);
    let mut running: Vec<Block> = Vec::new();
    let mut spare: Vec<Block> = Vec::new();
    loop {
        while running.len() < wanted && next < blocks {
            let mut b = spare.pop().unwrap_or_else(|| Block {
                id: [0; 3],
                warps: (0..threads.div_ceil(32))
                    .map(|i| Warp::new(code, i))
                    .collect(),
                shared: Aligned::new(shared_len),
            });
            b.start(
                launch,
                code,
                next,
                threads,
                mem.sm_count().max(1),
                shared_len,
            );
            next += 1;
            running.push(b);
        }
        if running.is_empty() {
            return Ok(env.stats);
        }
        let (mut news, mut ended) = (false, false);
        let mut i = 0;
        while i < running.len() {
            match running[i].round(&mut env)? {
                Round::News => news = true,
                Round::Idle => {}
                Round::Done => {
                    ended = true;
                    spare.push(running.remove(i));
                    continue;
                }
            }
            i += 1;
        }
        news |= ended;
        same_blocks = if ended { 0 } else { same_blocks + 1 };
        if (!news || same_blocks >= PATIENCE) && wanted < resident && next < blocks {
            wanted = (wanted * 2).min(resident);
            same_blocks = 0;
        } else if news {
            idle_rounds = 0;
        } else {
            idle_rounds += 1;
            if idle_rounds > YIELDS {
                std::thread::sleep(NAP);
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Block {
    fn start(
        &mut self,
        launch: &Launch<'_>,
        code: &Code,
        n: u64,
        threads: u32,
        sms: u32,
        shared_len: usize,
    ) {
        let [gx, gy, _] = launch.grid.map(u64::from);
        self.id = [(n % gx) as u32, (n / gx % gy) as u32, (n / gx / gy) as u32];
        self.shared.clear();
        let [bx, by, _] = launch.block;
        let id = self.id;
        let special = |s: Special, t: u32| {
            let lane = t % 32;
            match s {
                Special::Tid(0) => t % bx,
                Special::Tid(1) => t / bx % by,
                Special::Tid(_) => t / bx / by,
                Special::Ntid(d) => launch.block[d as usize],
                Special::Ctaid(d) => id[d as usize],
                Special::Nctaid(d) => launch.grid[d as usize],
                Special::Laneid => lane,
                Special::Warpid => t / 32,
                Special::Nwarpid => threads.div_ceil(32),
                Special::Smid => (n % u64::from(sms)) as u32,
                Special::Nsmid => sms,
                Special::LanemaskEq => 1 << lane,
                Special::LanemaskLt => (1 << lane) - 1,
                Special::LanemaskLe => u32::MAX >> (31 - lane),
                Special::LanemaskGe => u32::MAX << lane,
                Special::LanemaskGt => !(u32::MAX >> (31 - lane)),
                Special::DynamicSmem => launch.dynamic_shared as u32,
                Special::TotalSmem => shared_len as u32,
            }
        };
        for (i, w) in self.warps.iter_mut().enumerate() {
            w.reset(code, threads - 32 * i as u32, special);
        }
    }

    /// One turn of every warp, then the barriers.
    fn round(&mut self, env: &mut Env<'_>) -> Result<Round, Trap> {
        env.shared = self.shared.ptr();
        env.shared_len = self.shared.len();
        env.ctaid = self.id;
        let (mut news, mut ran) = (false, false);
        for w in self.warps.iter_mut().filter(|w| w.live != 0) {
            if env.mem.cancelled() {
                return Err(Trap::new(
                    TrapKind::Cancelled,
                    format!("stopped while `{}` ran", env.entry.name),
                ));
            }
            let turn = env.turn(w)?;
            ran |= turn.ran;
            news |= turn.news;
        }
        let live: u32 = self.warps.iter().map(|w| w.live.count_ones()).sum();
        if live == 0 {
            return Ok(Round::Done);
        }
        if self.open_barriers(env.code, live) {
            return Ok(Round::News);
        }
        if !ran {
            // Every group waits; name one.
            let found = self
                .warps
                .iter()
                .find_map(|w| w.groups.first().map(|g| (w, *g)));
            let trap = Trap::new(
                TrapKind::Deadlock,
                "every thread of the block waits for another one",
            );
            return Err(found.map_or(trap.clone(), |(w, g)| env.at(w, trap, g.pc, g.mask)));
        }
        Ok(if news { Round::News } else { Round::Idle })
    }

    /// Opens every barrier that all its threads have reached.
    fn open_barriers(&mut self, code: &Code, live: u32) -> bool {
        let mut waiting = [(0u32, NONE, 0u32); 16];
        for w in &mut self.warps {
            let regs = w.regs.ptr();
            for g in &w.groups {
                let Wait::Barrier(id) = g.wait else { continue };
                let inst = &code.insts[g.pc as usize];
                let slot = &mut waiting[id as usize];
                slot.0 += g.mask.count_ones();
                slot.1 = if inst.o[1] == NONE {
                    live
                } else {
                    // SAFETY: the thread count is a 32-bit register of this register file.
                    unsafe {
                        *regs
                            .add(inst.o[1] as usize)
                            .cast::<u32>()
                            .add(g.mask.trailing_zeros() as usize)
                    }
                };
                if inst.o[3] != NONE {
                    // SAFETY: operand 3 is a predicate.
                    slot.2 += unsafe { *regs.add(inst.o[3] as usize).cast::<u32>() & g.mask }
                        .count_ones();
                }
            }
        }
        let mut opened = false;
        for w in &mut self.warps {
            let regs = w.regs.ptr();
            for g in &mut w.groups {
                let Wait::Barrier(id) = g.wait else { continue };
                let (arrived, expected, votes) = waiting[id as usize];
                if arrived < expected {
                    continue;
                }
                let inst = &code.insts[g.pc as usize];
                let vote = match inst.kind {
                    Kind::Barrier(BarrierKind::And) => votes == arrived,
                    _ => votes != 0,
                };
                if let Kind::Barrier(BarrierKind::Popc) = inst.kind {
                    for i in super::access::lanes(g.mask) {
                        // SAFETY: the destination is a 32-bit register.
                        unsafe { *regs.add(inst.o[2] as usize).cast::<u32>().add(i) = votes };
                    }
                } else if inst.o[2] != NONE {
                    // SAFETY: the destination is a predicate.
                    unsafe {
                        let d = regs.add(inst.o[2] as usize).cast::<u32>();
                        *d = if vote { *d | g.mask } else { *d & !g.mask };
                    }
                }
                g.pc += 1;
                g.wait = Wait::No;
                opened = true;
            }
        }
        opened
    }
}
