//! The kernels of `kernels/reduce.ptx`, loaded into one context: all-reduces whose kernels wait for each other, and what
//! fills and judges their vectors. Checks what a kernel cannot: lengths, alignment, that blocks fit the device at once. How
//! an all-reduce goes is written beside the source.

use super::{
    context::Context,
    kernels::{KernelError, LOWEST_COMPUTE_CAPABILITY, aligned, explain},
    memory::Region,
    stream::{Stream, pointer},
};
use crate::{
    ffi::driver::{Argument, FunctionHandle, ModuleHandle},
    model::reduction::Dtype,
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::{CStr, CString},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The committed PTX, compiled by the driver.
pub const REDUCE_PTX: &str = include_str!("../../kernels/reduce.ptx");

/// Most threads of a block; THREADS in the source.
pub const THREAD_LIMIT: u32 = 512;
/// Most blocks of a rank; BLOCKS in the source.
pub const BLOCK_LIMIT: u32 = 256;
/// Most ranks; RANKS in the source.
pub const RANK_LIMIT: usize = 8;
/// Phases of a call that have flags of their own; PHASES in the source.
const PHASES: u64 = 3;
/// Bytes of the flags at the start of a mailbox.
pub const FLAG_BYTES: u64 = PHASES * BLOCK_LIMIT as u64 * RANK_LIMIT as u64 * 4;
/// Bytes of a rank's epochs and of what its blocks report when they give up.
pub const STATE_BYTES: u64 = EPOCH_BYTES + GIVEN_UP_BYTES;
/// Bytes of its epochs.
pub const EPOCH_BYTES: u64 = 8 * BLOCK_LIMIT as u64;
/// Bytes of what its blocks report.
pub const GIVEN_UP_BYTES: u64 = 16 * BLOCK_LIMIT as u64;
/// Bytes of a count of calls, as fill and verify keep one each.
pub const CALLS_BYTES: u64 = 8 * BLOCK_LIMIT as u64;
/// Bytes of what verify found.
pub const VERDICT_BYTES: u64 = (9 + 3 * RANK_LIMIT as u64) * 8;
/// What outputs hold before a call: the bits of 32; 16-bit types take the lower half.
pub const POISON: u32 = 0x7a5b_7a5b;
/// The element type in the source.
fn number(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::Fp16 => 0,
        Dtype::Bf16 => 1,
        Dtype::Fp32 => 2,
    }
}

/// A kernel that reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// One-shot push of words that carry their epoch.
    Words,
    /// One-shot push, a flag for each block.
    Push,
    /// One-shot pull.
    Pull,
    /// Reduce-scatter and all-gather, all peers at once.
    TwoShot,
    /// The same in rounds.
    Staged,
    /// Two islands.
    Islands,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 6] = [
        Kernel::Words,
        Kernel::Push,
        Kernel::Pull,
        Kernel::TwoShot,
        Kernel::Staged,
        Kernel::Islands,
    ];

    /// Bytes of a slot for vectors of at most `bytes` bytes.
    fn room(self, ranks: u32, bytes: u64) -> u64 {
        let units = bytes.div_ceil(16);
        let ranks = u64::from(ranks.max(1));
        match self {
            // Eight bytes of data in sixteen.
            Kernel::Words => bytes.div_ceil(8) * 16,
            Kernel::Push | Kernel::Pull => units * 16,
            Kernel::TwoShot | Kernel::Staged => units.div_ceil(ranks) * 16,
            Kernel::Islands => units.div_ceil((ranks / 2).max(1)) * 16,
        }
    }

    /// Bytes of a rank's mailbox for vectors of at most `bytes` bytes: flags, then two sets of slots for each area.
    pub fn mailbox_bytes(self, ranks: u32, bytes: u64) -> u64 {
        let slots = match self {
            // Only its owner writes to it.
            Kernel::Pull => 2,
            Kernel::Words | Kernel::Push => 2 * u64::from(ranks),
            Kernel::TwoShot | Kernel::Staged => 4 * u64::from(ranks),
            Kernel::Islands => 6 * u64::from(ranks),
        };
        FLAG_BYTES + slots * self.room(ranks, bytes)
    }
}

/// A kernel with its grid. Ranks of one call must agree on all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Which one.
    pub kernel: Kernel,
    /// Blocks of a rank, at most [`BLOCK_LIMIT`].
    pub blocks: u32,
    /// Threads of a block, at most [`THREAD_LIMIT`].
    pub threads: u32,
}

impl Shape {
    /// One item to a thread, until there are `most` blocks of `threads` threads.
    pub fn spread(kernel: Kernel, items: u64, (threads, most): (u32, u32)) -> Shape {
        let blocks = items.div_ceil(u64::from(threads.max(1)));
        Shape {
            kernel,
            blocks: blocks.clamp(1, u64::from(most.min(BLOCK_LIMIT))) as u32,
            threads,
        }
    }
}

/// One rank's part in one call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Kernel and grid.
    pub shape: Shape,
    /// Element type.
    pub dtype: Dtype,
    /// Elements.
    pub count: u64,
    /// Its vector, from any element on.
    pub input: Region,
    /// Where the sum goes; may be the input.
    pub output: Region,
    /// Its number.
    pub rank: u32,
    /// Mailboxes of all ranks, in rank order; they say how many ranks there are.
    pub mailboxes: &'a [Region],
    /// [`STATE_BYTES`] of its own.
    pub state: Region,
    /// A word in host memory: not 0 ends every wait. Who gives up sets it.
    pub stop: Region,
    /// Bytes of the largest vector for which the mailboxes are laid out: the same for all ranks and calls.
    pub largest: u64,
    /// How long a thread waits for another rank, by its own clock.
    pub limit: Duration,
}

/// What vectors hold, as kernels take it.
#[derive(Debug, Clone, Copy)]
pub struct Contents {
    /// Element type.
    pub dtype: Dtype,
    /// Random per run.
    pub seed: u64,
    /// Any numbers (true) or integers whose sums are exact.
    pub random: bool,
    /// Whether the sum is made by islands.
    pub islands: bool,
}

/// How a wait was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// By the GPU's clock.
    Never,
    /// By the stop word.
    Stopped,
}

/// A wait that was given up: the first of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// How.
    pub how: How,
    /// The rank that it waited for.
    pub rank: u32,
    /// Its block, and so the block of that rank.
    pub block: u32,
    /// Phase of the call, from 0.
    pub phase: u32,
    /// The call, from 0.
    pub call: u32,
    /// How long it waited, microseconds of the GPU's clock.
    pub waited_us: u64,
}

/// What verify found over many calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Elements that are wrong.
    pub wrong: u64,
    /// Call and element of the first of them.
    pub first: Option<(u64, u64)>,
    /// Its bits, if they were kept.
    pub got: Option<u32>,
    /// Calls with a wrong element.
    pub wrong_calls: u64,
    /// Calls judged.
    pub judged: u64,
    /// Wrong elements of the first wrong call, which is nearest to the cause.
    pub blamed: u64,
    /// Of those: how many hold poison.
    pub poison: u64,
    /// Are zero.
    pub zero: u64,
    /// Would be right without the contribution of a rank; with that of its call before; with that of two calls before.
    pub instead: [[u64; RANK_LIMIT]; 3],
}

/// How an entry point begins in PTX as the compiler writes it.
const ENTRY: &str = ".visible .entry ";

/// Entry points of what fills, judges and holds back.
const TOOLS: [&CStr; 3] = [
    c"peerproof_reduce_gate",
    c"peerproof_reduce_fill",
    c"peerproof_reduce_verify",
];

/// The PTX with these entry points alone. They share no data and call nothing, so each is whole by itself; the driver's
/// compiler, whose time grows with the text, then compiles no algorithm that is not run.
fn part(names: &[&CStr]) -> Option<CString> {
    let (head, entries) = REDUCE_PTX.split_once(ENTRY)?;
    let mut text = head.to_string();
    let mut found = 0;
    for entry in entries.split(ENTRY) {
        let (name, _) = entry.split_once('(')?;
        if names.iter().any(|n| n.to_bytes() == name.as_bytes()) {
            text.push_str(ENTRY);
            text.push_str(entry);
            found += 1;
        }
    }
    (found == names.len())
        .then(|| CString::new(text).ok())
        .flatten()
}

/// A kernel that reduces, and the module that holds it.
#[derive(Clone, Copy)]
struct Loaded {
    kernel: Kernel,
    module: ModuleHandle,
    function: FunctionHandle,
}

/// The kernels in one context: those that fill and judge, and of those that reduce the ones that were asked for.
pub struct Reduce {
    context: Arc<Context>,
    module: ModuleHandle,
    gate: FunctionHandle,
    fill: FunctionHandle,
    verify: FunctionHandle,
    loaded: Mutex<Vec<Loaded>>,
}

impl Kernel {
    /// Its entry point.
    fn entry(self) -> &'static CStr {
        match self {
            Kernel::Words => c"peerproof_reduce_words",
            Kernel::Push => c"peerproof_reduce_push",
            Kernel::Pull => c"peerproof_reduce_pull",
            Kernel::TwoShot => c"peerproof_reduce_two_shot",
            Kernel::Staged => c"peerproof_reduce_staged",
            Kernel::Islands => c"peerproof_reduce_islands",
        }
    }
}

/// Lets the driver compile these entry points.
fn compile(context: &Context, names: &[&CStr]) -> Result<ModuleHandle, KernelError> {
    let text =
        part(names).ok_or_else(|| KernelError::NoJit("the embedded PTX is damaged".into()))?;
    context.bind()?;
    context.driver().module_load(&text).map_err(explain)
}

impl Reduce {
    /// Lets the driver compile what fills and judges for `context`. A kernel that reduces is compiled when [`resident`] first
    /// asks for it. All of that must be done, and each kernel launched once, before any of them waits.
    ///
    /// [`resident`]: Reduce::resident
    pub fn load(context: &Arc<Context>) -> Result<Reduce, KernelError> {
        let (major, minor) = context.device().compute_capability;
        if (major, minor) < LOWEST_COMPUTE_CAPABILITY {
            return Err(KernelError::TooOld(major, minor));
        }
        let module = compile(context, &TOOLS)?;
        let function = |name| context.driver().module_function(module, name);
        Ok(Reduce {
            gate: function(c"peerproof_reduce_gate")?,
            fill: function(c"peerproof_reduce_fill")?,
            verify: function(c"peerproof_reduce_verify")?,
            context: context.clone(),
            module,
            loaded: Mutex::default(),
        })
    }

    fn function(&self, kernel: Kernel) -> Result<FunctionHandle, KernelError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = loaded.iter().find(|l| l.kernel == kernel) {
            return Ok(held.function);
        }
        let name = kernel.entry();
        let module = compile(&self.context, &[name])?;
        let function = self.context.driver().module_function(module, name)?;
        loaded.push(Loaded {
            kernel,
            module,
            function,
        });
        Ok(function)
    }

    /// Queues one rank's part in a call.
    pub fn reduce(&self, stream: &Stream, call: &Call) -> Result<(), KernelError> {
        let ranks = call.mailboxes.len();
        let Shape {
            kernel,
            blocks,
            threads,
        } = call.shape;
        let bytes = call.count * call.dtype.bytes();
        let mailbox = kernel.mailbox_bytes(ranks as u32, call.largest);
        // A rank alone waits for nobody: so is a kernel launched for the first time. Others must exchange something in every
        // call, or slots would be written again too early.
        let fits = (1..=RANK_LIMIT).contains(&ranks)
            && (ranks == 1 || call.count > 0)
            && (call.rank as usize) < ranks
            && (kernel != Kernel::Islands || ranks == 1 || ranks.is_multiple_of(2))
            && bytes <= call.largest
            && [call.input, call.output].iter().all(|vector| {
                vector.bytes() >= bytes && vector.address().raw().is_multiple_of(call.dtype.bytes())
            })
            && call.mailboxes.iter().all(|m| m.bytes() >= mailbox)
            && call.state.bytes() >= STATE_BYTES
            && call.stop.bytes() >= 4
            && (1..=BLOCK_LIMIT).contains(&blocks)
            && (32..=THREAD_LIMIT).contains(&threads);
        if !fits {
            return Err(KernelError::Layout);
        }
        aligned(call.mailboxes)?;
        aligned(&[call.state, call.stop])?;
        // No kernel touches what stands beyond the last rank.
        let at = |rank: usize| call.mailboxes.get(rank).unwrap_or(&call.state).address();
        let arguments = [
            pointer(call.input.address()),
            pointer(call.output.address()),
            Argument::U64(call.count),
            Argument::U32(number(call.dtype)),
            Argument::U32(call.rank),
            Argument::U32(ranks as u32),
            pointer(at(0)),
            pointer(at(1)),
            pointer(at(2)),
            pointer(at(3)),
            pointer(at(4)),
            pointer(at(5)),
            pointer(at(6)),
            pointer(at(7)),
            pointer(call.state.address()),
            pointer(call.stop.address()),
            Argument::U64(kernel.room(ranks as u32, call.largest)),
            Argument::U64(nanoseconds(call.limit)),
        ];
        Ok(stream.launch(self.function(kernel)?, blocks, threads, &arguments)?)
    }

    /// Queues a wait until the word at `gate`, in host memory, is not 0, or until `limit` has passed.
    pub fn gate(&self, stream: &Stream, gate: Region, limit: Duration) -> Result<(), KernelError> {
        aligned(&[gate])?;
        gate.part(0, 4).ok_or(KernelError::Layout)?;
        let arguments = [pointer(gate.address()), Argument::U64(nanoseconds(limit))];
        Ok(stream.launch(self.gate, 1, 32, &arguments)?)
    }

    /// Queues the filling of a rank's vector for the call that `calls` counts, and poison into an output that lies elsewhere.
    pub fn fill(
        &self,
        stream: &Stream,
        (input, output): (Region, Region),
        (count, rank): (u64, u32),
        contents: &Contents,
        calls: Region,
    ) -> Result<(), KernelError> {
        vectors(&[input, output], count, contents.dtype)?;
        calls.part(0, CALLS_BYTES).ok_or(KernelError::Layout)?;
        let arguments = [
            pointer(input.address()),
            pointer(output.address()),
            Argument::U64(count),
            Argument::U32(number(contents.dtype)),
            Argument::U32(rank),
            Argument::U64(contents.seed),
            Argument::U32(u32::from(contents.random)),
            pointer(calls.address()),
        ];
        let (grid, threads) = self.spread(count);
        Ok(stream.launch(self.fill, grid, threads, &arguments)?)
    }

    /// Queues the judging of a sum over `ranks` ranks, of the call that `calls` counts.
    pub fn verify(
        &self,
        stream: &Stream,
        output: Region,
        (count, ranks): (u64, u32),
        contents: &Contents,
        (calls, verdict): (Region, Region),
    ) -> Result<(), KernelError> {
        vectors(&[output], count, contents.dtype)?;
        calls.part(0, CALLS_BYTES).ok_or(KernelError::Layout)?;
        verdict.part(0, VERDICT_BYTES).ok_or(KernelError::Layout)?;
        let arguments = [
            pointer(output.address()),
            Argument::U64(count),
            Argument::U32(number(contents.dtype)),
            Argument::U32(ranks),
            Argument::U64(contents.seed),
            Argument::U32(u32::from(contents.random)),
            Argument::U32(u32::from(contents.islands)),
            pointer(calls.address()),
            pointer(verdict.address()),
        ];
        let (grid, threads) = self.spread(count);
        Ok(stream.launch(self.verify, grid, threads, &arguments)?)
    }

    /// Grid and threads for work on `count` elements that nothing waits for.
    fn spread(&self, count: u64) -> (u32, u32) {
        let shape = Shape::spread(Kernel::Push, count, (256, BLOCK_LIMIT));
        (shape.blocks, shape.threads)
    }

    /// Blocks of this many threads that can wait for each other on the device, where `streams` kernels share it.
    pub fn resident(&self, kernel: Kernel, threads: u32, streams: u32) -> Result<u64, KernelError> {
        let function = self.function(kernel)?;
        self.context.bind()?;
        let each = self.context.driver().occupancy(function, threads)?;
        Ok(waiting_room(
            each.max(0) as u64,
            u64::from(self.context.device().multiprocessors),
            streams,
        ))
    }
}

/// Blocks that are sure to be on a device at once when `each` fit an idle multiprocessor.
///
/// A kernel that has the device to itself gets what occupancy promises. Where `streams` kernels wait for each other, the last one
/// to start finds multiprocessors that hold waiting blocks beside those of kernels that fill and judge, and what these leave behind
/// can be too scattered for a block, although its sum would do. Only a multiprocessor on which nobody waits is sure to take one, so
/// there is one waiting block for each. (One H200, 8 streams with 264 blocks where 264 should fit: the last rank's did not all
/// start in 14 of 24 runs; with 128 in none of 12: docs/hardware-log.md.)
fn waiting_room(each: u64, multiprocessors: u64, streams: u32) -> u64 {
    match streams {
        0 | 1 => each * multiprocessors,
        _ => each.min(1) * multiprocessors,
    }
}

impl Drop for Reduce {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            let modules = loaded.iter().map(|l| l.module);
            for module in modules.chain([self.module]) {
                let _ = self.context.driver().module_unload(module);
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether vectors hold `count` elements and begin at one.
fn vectors(all: &[Region], count: u64, dtype: Dtype) -> Result<(), KernelError> {
    let bytes = count
        .checked_mul(dtype.bytes())
        .ok_or(KernelError::Layout)?;
    all.iter()
        .all(|v| v.bytes() >= bytes && v.address().raw().is_multiple_of(dtype.bytes()))
        .then_some(())
        .ok_or(KernelError::Layout)
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_le_bytes(*word)).collect()
}

/// A verdict before the first call: nothing wrong, and no first.
pub fn fresh_verdict() -> [u8; VERDICT_BYTES as usize] {
    let mut bytes = [0; VERDICT_BYTES as usize];
    if let Some(first) = bytes.get_mut(8..16) {
        first.fill(0xff);
    }
    bytes
}

/// Reads what verify found.
pub fn read_verdict(bytes: &[u8]) -> Option<Verdict> {
    let words = words_of(bytes);
    let (head, rest) = words.split_first_chunk::<9>()?;
    let (ranks, _) = rest.as_chunks::<RANK_LIMIT>();
    let [
        wrong,
        first,
        got,
        wrong_calls,
        _,
        judged,
        blamed,
        poison,
        zero,
    ] = *head;
    let first = (wrong > 0).then_some((first >> 40, first & ((1 << 40) - 1)));
    Some(Verdict {
        wrong,
        got: first
            .filter(|(_, element)| *element as u32 == got as u32)
            .map(|_| (got >> 32) as u32),
        first,
        wrong_calls,
        judged,
        blamed,
        poison,
        zero,
        instead: *ranks.first_chunk::<3>()?,
    })
}

/// Reads the waits that blocks gave up.
pub fn read_given_up(bytes: &[u8]) -> Vec<GivenUp> {
    let words = words_of(bytes);
    let blocks = words.as_chunks::<2>().0.iter().enumerate();
    blocks
        .filter_map(|(block, [what, epoch])| {
            Some(GivenUp {
                how: match what >> 56 {
                    1 => How::Never,
                    2 => How::Stopped,
                    _ => return None,
                },
                rank: (what >> 48 & 0xff) as u32,
                block: block as u32,
                phase: (what >> 40 & 0xff) as u32,
                // The first call has epoch 0.
                call: *epoch as u32,
                waited_us: what & ((1 << 40) - 1),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the other kernels leave behind, some multiprocessor holds no waiting block until the last one has its place.
    #[test]
    fn kernels_that_share_a_gpu_wait_one_block_to_a_multiprocessor() {
        assert_eq!(waiting_room(2, 132, 1), 264);
        for streams in 2..=8 {
            assert_eq!(waiting_room(2, 132, streams), 132);
        }
        assert_eq!(waiting_room(0, 132, 8), 0, "a block that never fits");
    }

    /// A part is the head of the file and what was asked for, and all parts together are all entry points.
    #[test]
    fn parts_of_the_ptx_are_whole() {
        let mut entries = 0;
        let alone = Kernel::ALL.iter().map(|k| vec![k.entry()]);
        for names in alone.chain([TOOLS.to_vec()]) {
            let text = part(&names).unwrap().into_string().unwrap();
            assert!(text.contains(".version") && text.contains(".address_size 64"));
            assert_eq!(text.matches(ENTRY).count(), names.len());
            for name in &names {
                let name = name.to_str().unwrap();
                assert!(text.contains(&format!("{ENTRY}{name}(")), "{name}");
            }
            assert_eq!(text.matches('{').count(), text.matches('}').count());
            entries += names.len();
        }
        assert_eq!(entries, REDUCE_PTX.matches(ENTRY).count());
        assert!(part(&[c"peerproof_reduce_no_such"]).is_none());
        // What every entry point would need stands in the head, which has no data and no function.
        let (head, _) = REDUCE_PTX.split_once(ENTRY).unwrap();
        assert!(!head.contains(".global") && !head.contains(".func") && !head.contains(".const"));
    }
}
