//! Ways of moving bytes from one GPU to another: one file each, and this roster.

use crate::{
    ffi::driver::DriverError,
    gpu::{Region, kernels::KernelError},
    model::{
        case::{PeerAccess, Rung},
        pair::OrderedPair,
    },
};
use serde::{Deserialize, Serialize};

mod across;
mod atomics;
mod bounce;
mod ce_pull;
mod ce_push;
mod ends;
mod host_atomics;
mod host_exchange;
mod pooled;
mod sm_load;
mod sm_store;
mod sm_store4;
mod staged;

pub use ends::Transfer;

/// All pair mechanisms, lowest rung first. The number inside words is the position here.
pub const ROSTER: [&dyn Mechanism; 23] = [
    &bounce::Bounce,
    &staged::Staged,
    &host_exchange::HostExchange,
    &host_atomics::HostAtomics,
    &ce_push::CePush,
    &ce_pull::CePull,
    &pooled::CE_PUSH,
    &pooled::CE_PULL,
    &sm_load::SmLoad,
    &sm_store::SmStore,
    &sm_store4::SmStore4,
    &atomics::Atomics,
    &atomics::Contended,
    &pooled::SM_LOAD,
    &pooled::SM_STORE,
    &across::IPC_CE_PUSH,
    &across::IPC_CE_PULL,
    &across::IPC_SM_LOAD,
    &across::IPC_SM_STORE,
    &across::VMM_CE_PUSH,
    &across::VMM_SM_LOAD,
    &across::VMM_SM_STORE,
    &across::FABRIC_SM_STORE,
];

/// Most bytes of a transfer whose every word is a transaction of its own.
const FINE: u64 = 1 << 20;

/// Which end's engine moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The source's: a push.
    Source,
    /// The destination's: a pull.
    Destination,
    /// Both, or the driver decides.
    Host,
}

/// Whose memory atomics change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicsOn {
    /// The destination's; the executing end issues them.
    Peer,
    /// The host's; the source issues them.
    Host,
}

/// Which worker processes carry a mechanism, in the order in which they are used. Enabling peer access changes the path of
/// later copies in a context, so what enables it has processes of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// One process over all GPUs that never enabled peer access.
    Off,
    /// The same process afterwards, with its buffers in stream-ordered pools that each peer was granted access to. It has not
    /// enabled peer access either.
    Granted,
    /// One process over all GPUs with peer access enabled both ways.
    On,
    /// One process per GPU, as engines run: memory of others is opened by handle.
    Ranks,
}

impl Place {
    /// As phases are named.
    pub fn words(self) -> &'static str {
        match self {
            Place::Off => "staged",
            Place::On => "peer access",
            Place::Granted => "granted pools",
            Place::Ranks => "across processes",
        }
    }
}

/// What kind of memory the far end of a transfer is, and so how the executing GPU may touch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Memory {
    /// cuMemAlloc, in one process with both contexts.
    Plain,
    /// A stream-ordered pool of this process, whose memory is granted to the accessor.
    Pool,
    /// cuMemAlloc of another process, opened by its CUDA IPC handle.
    Ipc,
    /// cuMemCreate of another process, its handle a file descriptor that came over a Unix socket.
    Vmm,
    /// The same with a fabric handle: 64 bytes that also cross hosts.
    Fabric,
}

impl Memory {
    /// What lets the executing GPU touch it, in a worker that enabled peer access (`on`) or never did.
    pub fn peer_access(self, on: bool) -> PeerAccess {
        match (self, on) {
            (Memory::Plain, true) => PeerAccess::Both,
            (Memory::Plain, false) => PeerAccess::Off,
            (Memory::Ipc, _) => PeerAccess::Imported,
            (Memory::Pool | Memory::Vmm | Memory::Fabric, _) => PeerAccess::Granted,
        }
    }
}

/// Why a transfer could not be queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The driver refused the call.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// It cannot be queued here, for a reason of this program.
    #[error("{0}")]
    CannotRun(String),
}

impl From<KernelError> for StartError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Driver(error) => StartError::Driver(error),
            other => StartError::CannotRun(other.to_string()),
        }
    }
}

/// A way of moving bytes.
pub trait Mechanism: Sync {
    /// As in `--mechanism` and in records.
    fn id(&self) -> &'static str;
    /// In words.
    fn title(&self) -> &'static str;
    /// Rung of the ladder.
    fn rung(&self) -> Rung;
    /// Which worker processes carry it.
    fn place(&self) -> Place;
    /// What kind of memory the far end is.
    fn memory(&self) -> Memory {
        Memory::Plain
    }
    /// Whether it needs kernels on the executing GPU.
    fn needs_kernels(&self) -> bool;
    /// Whose memory it issues atomics on, if it does: never where the driver does not advertise them as native.
    fn atomics_on(&self) -> Option<AtomicsOn> {
        None
    }
    /// Whether it can move `bytes` bytes from byte `offset` of a buffer on, in reasonable time.
    fn takes(&self, _offset: u64, _bytes: u64) -> bool {
        true
    }
    /// Whether its rate is taken: events of one stream can time it, and the number tells something of its own.
    fn timed(&self) -> bool {
        true
    }
    /// Which end executes; of `Host`, the destination's stream is the last to be done.
    fn side(&self) -> Side;
    /// Queues the transfer. When the executing seat's stream is done, it is.
    fn start(&self, transfer: &Transfer) -> Result<(), StartError>;
    /// Queues the accessor's own view of the destination into `scratch` on the executing seat, by the engine that wrote;
    /// false when this mechanism has no such view.
    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError>;
    /// The executor in words, for records.
    fn executor(&self, pair: OrderedPair) -> String;
}

/// The mechanism with this id.
pub fn by_id(id: &str) -> Option<&'static dyn Mechanism> {
    ROSTER
        .iter()
        .copied()
        .find(|mechanism| mechanism.id() == id)
}

/// Its number inside words; foreign ids get the highest.
pub fn number(id: &str) -> u8 {
    ROSTER
        .iter()
        .position(|mechanism| mechanism.id() == id)
        .map_or(63, |at| at as u8)
}
