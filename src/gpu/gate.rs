//! The kernels of `kernels/gate.ptx`, loaded into one context: a gate behind which work is queued, and one side of a flag's
//! round trip. Checks lengths and alignment; what is queued behind a gate is the caller's business.

use super::{
    context::Context,
    kernels::{KernelError, LOWEST_COMPUTE_CAPABILITY, aligned, explain},
    memory::Region,
    stream::{Stream, pointer},
};
use crate::ffi::driver::{Argument, FunctionHandle, ModuleHandle};
use std::{ffi::CString, sync::Arc, time::Duration};

/// The committed PTX, compiled by the driver.
pub const GATE_PTX: &str = include_str!("../../kernels/gate.ptx");

/// Bytes of the report of either kernel.
pub const REPORT_BYTES: u64 = 24;

/// How a kernel that waits ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// As it should.
    Done,
    /// Its own clock ran out.
    Never,
    /// The other side gave up.
    Stopped,
}

/// What a side of a round trip reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// How it ended.
    pub ended: Ended,
    /// Rounds done.
    pub rounds: u64,
    /// Time of those that count.
    pub took: Duration,
}

/// One side of a round trip.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    /// Its flag, in its own memory, zero.
    pub flag: Region,
    /// The other side's flag.
    pub peer_flag: Region,
    /// A word in host memory that ends both sides.
    pub stop: Region,
    /// [`REPORT_BYTES`] in host or own memory.
    pub report: Region,
    /// Whether it sends first.
    pub leads: bool,
}

/// The module and its kernels in one context.
pub struct Gate {
    context: Arc<Context>,
    module: ModuleHandle,
    gate: FunctionHandle,
    round_trip: FunctionHandle,
}

impl Gate {
    /// Lets the driver compile the PTX for `context`. Must be done, and each kernel launched once, before any kernel waits.
    pub fn load(context: &Arc<Context>) -> Result<Gate, KernelError> {
        let (major, minor) = context.device().compute_capability;
        if (major, minor) < LOWEST_COMPUTE_CAPABILITY {
            return Err(KernelError::TooOld(major, minor));
        }
        context.bind()?;
        let driver = context.driver();
        let text = CString::new(GATE_PTX)
            .map_err(|_| KernelError::NoJit("the embedded PTX is damaged".into()))?;
        let module = driver.module_load(&text).map_err(explain)?;
        let function = |name| driver.module_function(module, name);
        Ok(Gate {
            gate: function(c"peerproof_gate")?,
            round_trip: function(c"peerproof_round_trip")?,
            context: context.clone(),
            module,
        })
    }

    /// Queues a gate that opens when the word at `word` is set, or by itself after `limit` of its own clock.
    pub fn close(
        &self,
        stream: &Stream,
        word: Region,
        report: Region,
        limit: Duration,
    ) -> Result<(), KernelError> {
        fits(&[(word, 4), (report, REPORT_BYTES)])?;
        let arguments = [
            pointer(word.address()),
            pointer(report.address()),
            Argument::U64(nanoseconds(limit)),
        ];
        Ok(stream.launch(self.gate, 1, 1, &arguments)?)
    }

    /// Queues one side of `rounds` round trips, of which the first `skip` do not count. Each wait may take `limit`.
    pub fn round_trip(
        &self,
        stream: &Stream,
        side: &Side,
        (rounds, skip): (u64, u64),
        limit: Duration,
    ) -> Result<(), KernelError> {
        fits(&[
            (side.flag, 4),
            (side.peer_flag, 4),
            (side.stop, 4),
            (side.report, REPORT_BYTES),
        ])?;
        let arguments = [
            pointer(side.flag.address()),
            pointer(side.peer_flag.address()),
            pointer(side.stop.address()),
            pointer(side.report.address()),
            Argument::U64(u64::from(side.leads)),
            Argument::U64(rounds),
            Argument::U64(skip),
            Argument::U64(nanoseconds(limit)),
        ];
        Ok(stream.launch(self.round_trip, 1, 1, &arguments)?)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().module_unload(self.module);
        }
    }
}

fn fits(needs: &[(Region, u64)]) -> Result<(), KernelError> {
    if needs.iter().any(|(has, want)| has.bytes() < *want) {
        return Err(KernelError::Layout);
    }
    needs.iter().try_for_each(|(region, _)| aligned(&[*region]))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads what a gate or a side of a round trip reports; `None` when the kernel wrote nothing.
pub fn read_report(bytes: &[u8]) -> Option<RoundTrip> {
    let mut words = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    let ended = match words.next()? {
        1 => Ended::Done,
        2 => Ended::Never,
        3 => Ended::Stopped,
        _ => return None,
    };
    Some(RoundTrip {
        ended,
        rounds: words.next()?,
        took: Duration::from_nanos(words.next()?),
    })
}
