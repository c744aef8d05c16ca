//! What the parent asks of an NCCL worker and what it answers, one JSON message a line.

use crate::model::{
    case::Outcome,
    pci::PciAddress,
    reduction::{Dtype, Launch},
    snapshot::Authenticity,
};
use serde::{Deserialize, Serialize};

/// To the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Load NCCL and open these GPUs.
    Open {
        /// What to open as NCCL, in order.
        candidates: Vec<String>,
        /// GPU and address of every rank, in rank order.
        gpus: Vec<(u32, PciAddress)>,
        /// The ranks that this process holds.
        mine: Vec<u32>,
    },
    /// Make the id of a new group of ranks.
    Id,
    /// Make this process's communicators.
    Join {
        /// The group's id, hex.
        id: String,
    },
    /// Run and time one all-reduce.
    Measure(Measure),
}

/// One all-reduce at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Measure {
    pub(super) bytes: u64,
    pub(super) dtype: Dtype,
    pub(super) in_place: bool,
    pub(super) launch: Launch,
    /// Timed samples.
    pub(super) samples: u32,
    /// Samples before, judged and not timed.
    pub(super) warmup: u32,
    /// Calls in a sample, each with memory of its own.
    pub(super) calls: u32,
    /// Moves the data of the whole measurement.
    pub(super) seed: u32,
}

/// From the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Reply {
    /// GPUs and library are open.
    Opened(Opened),
    /// A new group's id, hex.
    Id(String),
    /// All ranks have joined.
    Joined,
    /// Done, or given up.
    Measured(Measured),
    /// It cannot be done at all.
    Failed {
        /// Why.
        message: String,
    },
    /// NCCL or the driver answered an error.
    Refused {
        /// Entry point, number and name.
        told: (String, u32, String),
        /// The whole sentence.
        message: String,
    },
}

/// What was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opened {
    /// As NCCL counts: 22803 is 2.28.3.
    pub(super) version: u32,
    /// File that was mapped, or the name that was opened.
    pub(super) library: String,
    pub(super) authenticity: Authenticity,
    pub(super) deadline_factor: u32,
    /// The least free memory of its GPUs, bytes.
    pub(super) free_bytes: u64,
}

/// What came of one all-reduce on the ranks of one process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) outcome: Outcome,
    /// Microseconds of a call, one per sample: the shortest of this process's ranks.
    pub(super) samples_us: Vec<f64>,
    /// Calls whose results were judged on each rank of this process.
    pub(super) calls: u64,
    /// The process must not be used again.
    pub(super) retire: bool,
    /// Particulars.
    pub(super) notes: Vec<String>,
}

/// Bytes as hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// And back; `None` for anything else or another length.
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_travel_as_hex() {
        assert_eq!(unhex::<3>(&hex(&[0, 171, 255])), Some([0, 171, 255]));
        assert_eq!(unhex::<2>("00"), None);
        assert_eq!(unhex::<1>("zz"), None);
    }
}
