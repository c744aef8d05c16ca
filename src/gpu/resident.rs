//! The kernel of `kernels/resident.ptx`, loaded into one context: two of them wait for each other. Checks what a kernel
//! cannot: alignment, lengths, that all blocks fit the device at once. How an exchange goes is written beside the source.

use super::{
    context::Context,
    kernels::{KernelError, LOWEST_COMPUTE_CAPABILITY, aligned, explain},
    memory::Region,
    stream::{Stream, pointer},
};
use crate::{
    ffi::driver::{Argument, FunctionHandle, ModuleHandle},
    words::Key,
};
use serde::{Deserialize, Serialize};
use std::{ffi::CString, sync::Arc, time::Duration};

/// The committed PTX, compiled by the driver.
pub const RESIDENT_PTX: &str = include_str!("../../kernels/resident.ptx");

/// Threads of a block; THREADS in the source.
const THREADS: u32 = 128;
/// Blocks of a side, each a channel of its own on a multiprocessor of its own: few, so that all of them fit any GPU.
pub const CHANNELS: u32 = 4;
/// Bytes from one channel's flag to the next; FLAG_STRIDE in the source.
pub const FLAG_STRIDE: u64 = 128;
/// Bytes of the report of one channel.
pub const REPORT_BYTES: u64 = 12 * 8;
/// Slots of a channel in the evidence.
pub const EVIDENCE_SLOTS: u64 = 3;

/// What the peer writes to, seen from either side.
#[derive(Debug, Clone, Copy)]
pub struct Mailbox {
    /// Two slots of every channel.
    pub inbox: Region,
    /// One flag every [`FLAG_STRIDE`] bytes.
    pub flags: Region,
}

/// One side of an exchange, as its kernel sees it.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// Where the peer writes.
    pub mailbox: Mailbox,
    /// [`REPORT_BYTES`] a channel, its own.
    pub reports: Region,
    /// [`EVIDENCE_SLOTS`] slots a channel, its own.
    pub evidence: Region,
}

/// What both sides of an exchange share.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// A word in host memory: not 0 ends the exchange. Whoever gives up sets it; sides in different processes have one each.
    pub stop: Region,
    /// Bytes of one channel in one round, whole units.
    pub slot: u64,
    /// Rounds.
    pub rounds: u32,
    /// How long a kernel waits for a flag, by its own clock.
    pub limit: Duration,
    /// How long a payload that was wrong at its flag is read again.
    pub patience: Duration,
}

/// How a channel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All rounds ran.
    Done,
    /// It waited for a flag until its clock ran out.
    Never,
    /// The stop word ended its wait.
    Stopped,
}

/// What one channel reports of what it received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How it ended.
    pub ended: Ended,
    /// Rounds whose payload was judged.
    pub judged: u32,
    /// Rounds whose payload was wrong when the flag was there. Once a round stayed wrong, later ones are only counted.
    pub wrong_rounds: u32,
    /// Of those: rounds whose payload was right a little later.
    pub late_rounds: u32,
    /// The round that the evidence is of, and whether it became right after so long.
    pub kept: Option<(u32, bool, Duration)>,
    /// First flag that was neither its round's nor the next one's: the flag, counted from the start, and the round.
    pub odd: Option<(u32, u32)>,
    /// The last wait.
    pub waited: Duration,
}

/// The module and its kernel in one context.
pub struct Resident {
    context: Arc<Context>,
    module: ModuleHandle,
    exchange: FunctionHandle,
}

impl Resident {
    /// Lets the driver compile the PTX for `context`. Must be done, and the kernel launched once, before any kernel waits.
    pub fn load(context: &Arc<Context>) -> Result<Resident, KernelError> {
        let (major, minor) = context.device().compute_capability;
        if (major, minor) < LOWEST_COMPUTE_CAPABILITY {
            return Err(KernelError::TooOld(major, minor));
        }
        context.bind()?;
        let driver = context.driver();
        let text = CString::new(RESIDENT_PTX)
            .map_err(|_| KernelError::NoJit("the embedded PTX is damaged".into()))?;
        let module = driver.module_load(&text).map_err(explain)?;
        let function = |name| driver.module_function(module, name);
        Ok(Resident {
            exchange: function(c"peerproof_resident")?,
            context: context.clone(),
            module,
        })
    }

    /// Queues one side. `own` lies in this context's memory, `peer` in the other's; the keys are those of what arrives here
    /// and of what is sent, with attempt 0: the kernel counts rounds in it.
    pub fn exchange(
        &self,
        stream: &Stream,
        (own, peer): (&End, &Mailbox),
        (arriving, sent): (Key, Key),
        terms: &Terms,
    ) -> Result<(), KernelError> {
        let channels = u64::from(CHANNELS);
        let (inbox, flags) = (2 * channels * terms.slot, channels * FLAG_STRIDE);
        let needs = [
            (own.mailbox.inbox, inbox),
            (peer.inbox, inbox),
            (own.mailbox.flags, flags),
            (peer.flags, flags),
            (own.reports, channels * REPORT_BYTES),
            (own.evidence, EVIDENCE_SLOTS * channels * terms.slot),
            (terms.stop, 4),
        ];
        if !terms.slot.is_multiple_of(16) || needs.iter().any(|(has, want)| has.bytes() < *want) {
            return Err(KernelError::Layout);
        }
        aligned(&needs.map(|(region, _)| region))?;
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let arguments = [
            pointer(own.mailbox.inbox.address()),
            pointer(peer.inbox.address()),
            pointer(own.mailbox.flags.address()),
            pointer(peer.flags.address()),
            pointer(own.reports.address()),
            pointer(own.evidence.address()),
            pointer(terms.stop.address()),
            Argument::U64(arriving.pack()),
            Argument::U64(sent.pack()),
            Argument::U64(terms.slot),
            Argument::U64(u64::from(terms.rounds)),
            Argument::U64(nanoseconds(terms.limit)),
            Argument::U64(nanoseconds(terms.patience)),
        ];
        Ok(stream.launch(self.exchange, CHANNELS, THREADS, &arguments)?)
    }

    /// Whether `sides` sides of an exchange fit this device at once. Two kernels of which only one can run wait for ever.
    pub fn fits(&self, sides: u32) -> Result<bool, KernelError> {
        self.context.bind()?;
        let each = self.context.driver().occupancy(self.exchange, THREADS)?;
        let all = u64::from(each.max(0) as u32) * u64::from(self.context.device().multiprocessors);
        Ok(all >= u64::from(sides * CHANNELS))
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().module_unload(self.module);
        }
    }
}

/// A channel's report before the launch: all zero but the count from which flags go on.
pub fn fresh_report(epoch: u32) -> [u8; REPORT_BYTES as usize] {
    let mut bytes = [0; REPORT_BYTES as usize];
    if let Some(first) = bytes.first_chunk_mut::<8>() {
        *first = u64::from(epoch).to_le_bytes();
    }
    bytes
}

/// Reads the report of a channel whose flags were counted from `epoch`; `None` when the kernel wrote none.
pub fn read_report(bytes: &[u8], epoch: u32) -> Option<Report> {
    let words: Vec<u64> = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    let [
        _,
        ended,
        judged,
        wrong_rounds,
        late_rounds,
        kept_round,
        kept_late,
        kept_after,
        odd_flags,
        odd_flag,
        odd_round,
        waited,
    ] = *words.as_slice()
    else {
        return None;
    };
    Some(Report {
        ended: match ended {
            1 => Ended::Done,
            2 => Ended::Never,
            3 => Ended::Stopped,
            _ => return None,
        },
        judged: judged as u32,
        wrong_rounds: wrong_rounds as u32,
        late_rounds: late_rounds as u32,
        kept: (kept_round > 0).then(|| {
            let after = Duration::from_nanos(kept_after);
            (kept_round as u32, kept_late != 0, after)
        }),
        odd: (odd_flags > 0).then(|| ((odd_flag as u32).wrapping_sub(epoch), odd_round as u32)),
        waited: Duration::from_nanos(waited),
    })
}
