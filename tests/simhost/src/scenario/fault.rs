//! Faults: which ordered pair, which mechanism, what goes wrong, how often. One line of text each:
//!
//! `SRC>DST:MECHANISM=KIND[:WHEN][:name=value...]`
//!
//! SRC and DST are where bytes come from and go to: a GPU number, `*`, or `host`. A mechanism may carry a word in front
//! that says through what kind of memory only: `ipc.`, `vmm.`, `pool.` or `plain.` (none of these).

/// Ways in which bytes move, as they can be told apart below the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Copy engine of the source GPU, peer access on.
    CePush,
    /// Copy engine of the destination GPU, peer access on.
    CePull,
    /// The driver's copy through host memory, peer access off.
    Staged,
    /// Device to host.
    BounceD2h,
    /// Host to device.
    BounceH2d,
    /// Loads of an SM from a peer: the source is the owner of the memory.
    SmLoad,
    /// Stores of an SM to a peer.
    SmStore,
    /// Stores of an SM to a peer, of at most 4 bytes a lane.
    SmStore4,
    /// Stores of an SM to a peer, of 16 bytes a lane.
    SmStore16,
    /// Atomics of an SM on a peer: the source is the GPU that executes.
    Atomic,
    /// Loads of an SM from pinned host memory.
    HostLoad,
    /// Stores of an SM to pinned host memory.
    HostStore,
    /// Atomics of an SM on pinned host memory: the source is the GPU.
    HostAtomic,
    /// Own memory of one GPU, written by its kernels.
    Own,
    /// Enabling peer access: the source is the context that enables. With a word in front: opening an IPC handle
    /// (`ipc.`), cuMemSetAccess (`vmm.`), cuMemPoolSetAccess (`pool.`).
    Enable,
}

impl Mechanism {
    /// Stores of an SM to memory that is not its own.
    pub fn stores(self) -> bool {
        matches!(
            self,
            Self::SmStore | Self::SmStore4 | Self::SmStore16 | Self::HostStore
        )
    }
}

/// Through what kind of memory bytes move, as a set; the empty one is cuMemAlloc's in the same process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Via(u8);

impl Via {
    /// Nothing special.
    pub const NONE: Via = Via(0);
    /// A mapping opened with cuIpcOpenMemHandle.
    pub const IPC: Via = Via(1);
    /// A mapping made with cuMemMap.
    pub const VMM: Via = Via(2);
    /// Memory of a stream-ordered pool.
    pub const POOL: Via = Via(4);

    /// Both.
    pub fn and(self, other: Via) -> Via {
        Via(self.0 | other.0)
    }
    fn touches(self, other: Via) -> bool {
        self.0 & other.0 != 0
    }
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Zeros arrive.
    Zeroed,
    /// Ones arrive, as in an aborted read.
    Ones,
    /// Nothing arrives.
    Dropped,
    /// The accessor sees the data, the owner does not.
    Mirrored,
    /// What the transfer before carried arrives.
    Stale,
    /// Another pair's bytes arrive, or the bytes go to GPU `to`.
    Misrouted {
        /// GPU that gets the bytes.
        to: Option<usize>,
    },
    /// Also written past the end.
    Spilled {
        /// How far.
        bytes: usize,
    },
    /// Everything lands some bytes further.
    Shifted {
        /// How far.
        bytes: usize,
    },
    /// Bits are inverted.
    Flipped {
        /// Bits of one byte.
        mask: u8,
        /// One byte in so many.
        every: usize,
    },
    /// Only the first bytes arrive, or all but a hole.
    Partial {
        /// Where the missing part starts.
        keep: usize,
        /// Length of the missing part; 0: to the end.
        hole: usize,
    },
    /// Takes longer in modelled time.
    Slow {
        /// Factor.
        factor: f64,
    },
    /// Never completes.
    Hang,
    /// The call never returns, and no signal ends the process, as where a thread sleeps in the driver and cannot be woken.
    Stuck,
    /// Poisons the context.
    Sticky {
        /// Result code.
        code: u32,
    },
    /// Kills the process.
    Death,
    /// Peer access is refused.
    Refusal {
        /// Result code.
        code: u32,
    },
    /// A flag overtakes the stores before it: they arrive only some time after it, at the latest when the kernel ends.
    Late {
        /// Microseconds of real time.
        us: u64,
    },
    /// Plain stores arrive, flags (stores that are volatile, relaxed or release) do not.
    LostFlag,
}

/// When a fault strikes; the unit is one copy, or one launch that touches the pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Occurrence {
    /// Each time.
    Always,
    /// The first time only, in the whole run, whatever process.
    Once,
    /// Each n-th time.
    Every(u64),
    /// Each time after the first n.
    After(u64),
    /// The n-th time only.
    At(u64),
    /// Each time with a probability; which times follows from the seed.
    Random {
        /// Between 0 and 1.
        probability: f64,
        /// Seed.
        seed: u64,
    },
}

/// One end of a pair pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Any GPU.
    Any,
    /// This GPU.
    Gpu(usize),
    /// Host memory.
    Host,
}

impl End {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "*" => Some(End::Any),
            "host" => Some(End::Host),
            n => n.parse().ok().map(End::Gpu),
        }
    }
    pub(super) fn fits(self, place: Option<usize>) -> bool {
        match self {
            End::Any => place.is_some(),
            End::Gpu(n) => place == Some(n),
            End::Host => place.is_none(),
        }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// As written.
    pub text: String,
    pub(super) source: End,
    pub(super) destination: End,
    pub(super) mechanisms: Vec<Mechanism>,
    /// Only through this kind of memory; the empty set: only through none of them.
    pub(super) only: Option<Via>,
    /// What goes wrong.
    pub kind: Kind,
    /// How often.
    pub when: Occurrence,
    /// Only at or past this offset of device memory.
    pub min_offset: u64,
    /// Only these bytes of the allocation that is not the executor's own (of the destination, where nobody reaches over):
    /// of a transfer only the part that lies in them.
    pub part: std::ops::Range<u64>,
    /// Only for transfers of at least so many bytes.
    pub min_bytes: u64,
    /// Only while at least so many other transfers of the run are under way.
    pub load: u32,
}

impl Fault {
    /// GPUs that the fault names.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        let to = match self.kind {
            Kind::Misrouted { to } => to,
            _ => None,
        };
        [self.source, self.destination]
            .into_iter()
            .filter_map(|e| if let End::Gpu(n) = e { Some(n) } else { None })
            .chain(to)
    }

    /// Whether the fault is about this pair (None is host memory), mechanism and kind of memory.
    pub fn concerns(
        &self,
        source: Option<usize>,
        destination: Option<usize>,
        mechanism: Mechanism,
        via: Via,
    ) -> bool {
        let own = mechanism == Mechanism::Own;
        // Ways of enabling are told apart; all else concerns every kind of memory unless it says which.
        let only = self
            .only
            .or((mechanism == Mechanism::Enable).then_some(Via::NONE));
        (own || source != destination || source.is_none())
            && self.mechanisms.contains(&mechanism)
            && self.source.fits(source)
            && self.destination.fits(destination)
            && only.is_none_or(|o| {
                if o == Via::NONE {
                    via == o
                } else {
                    via.touches(o)
                }
            })
    }

    /// Whether it strikes the `count`-th time (from 0).
    pub fn strikes(&self, count: u64) -> bool {
        match self.when {
            Occurrence::Always => true,
            Occurrence::Once => count == 0,
            Occurrence::Every(n) => (count + 1).is_multiple_of(n.max(1)),
            Occurrence::After(n) => count >= n,
            Occurrence::At(n) => count + 1 == n,
            Occurrence::Random { probability, seed } => {
                // splitmix64 of seed and count, as a number between 0 and 1.
                let mut z = (seed ^ count.wrapping_mul(0xd1b5_4a32_d192_ed03))
                    .wrapping_add(0x9e37_79b9_7f4a_7c15);
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 <= probability
            }
        }
    }
}
