//! Rung 6: micro all-reduces. Every rank holds a vector; afterwards every rank holds the sum of all of them, to the bit.
//! Here are the roster of algorithms, one rank's part in a series of calls, and all ranks of one process.
//!
//! A [`Series`] is what all ranks do alike: one algorithm, one size, so many calls whose results are all judged, then
//! samples whose calls are timed and judged. Nothing in it depends on where a rank runs, so ranks need no messages between
//! its calls: the all-reduce itself keeps them together.
//!
//! **All ranks in one process** ([`group::run`]): over several GPUs, or as streams of one GPU whose blocks are resident at
//! once. It makes a [`Rank`] for each and leads them step by step.
//!
//! **A process per rank** takes the same [`Rank`] apart:
//! 1. Every process makes its rank: `Rank::open(gpu, context, place, needs)`, where `needs` is [`Series::needs`], the largest
//!    over all series to come. It exports `rank.mailbox()` by IPC handle (whole multiples of 2 MiB) and opens the handles of
//!    the others. The stop word is the process's own pinned word.
//! 2. For each series, every process calls `rank.begin(series, mailboxes)` with the mailboxes of all ranks in rank order, its
//!    own among them. That resets the mailbox, loads and launches each kernel once, and captures the graph.
//! 3. **Only when all ranks have begun** does each call `rank.run(factor)`: it queues and judges the whole series and answers
//!    a [`Sight`], serialisable. A rank that waits in vain gives up by its GPU's clock and says for whom it waited.
//! 4. The leader gives all sights to [`conclude`], which answers the row. A rank that died has none: pass
//!    [`Sight::lost`] with how it ended.
//! 5. Nobody frees memory or begins the next series before all have answered.
//!
//! Mailboxes of `pinned-host` lie in host memory that all ranks reach; everything else is the same.

mod conclude;
pub mod exact;
pub mod group;
mod hierarchical;
mod one_shot_pull;
mod one_shot_push;
mod pinned_host;
pub mod rank;
mod series;
mod staged_push;
mod two_shot;

pub use conclude::conclude;
pub use rank::{Rank, Sight};
pub use series::{Needs, Request, Series, Timing, Tuning};

use crate::gpu::reduce::Shape;
use exact::Order;

/// All algorithms, in the order in which tables name them.
pub const ROSTER: [&dyn Algorithm; 6] = [
    &one_shot_push::OneShotPush,
    &one_shot_pull::OneShotPull,
    &two_shot::TwoShot,
    &staged_push::StagedPush,
    &hierarchical::Hierarchical,
    &pinned_host::PinnedHost,
];

pub use crate::model::reduction::MOST_RANKS;

/// Where ranks leave data for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mailboxes {
    /// In device memory of the rank that reads them (of the rank that writes, where others pull): peers reach it.
    Peer,
    /// In pinned host memory: no peer access is needed.
    Host,
}

/// A way of summing over ranks.
pub trait Algorithm: Sync {
    /// As in `peerproof list` and in records.
    fn id(&self) -> &'static str;
    /// In words.
    fn title(&self) -> &'static str;
    /// Whether it can run over so many ranks.
    fn takes(&self, ranks: u32) -> bool;
    /// Bytes of the largest vector for which it is meant.
    fn largest(&self, ranks: u32) -> u64;
    /// Where its mailboxes lie.
    fn mailboxes(&self) -> Mailboxes {
        Mailboxes::Peer
    }
    /// The order in which it adds, which decides the last bits.
    fn order(&self) -> Order {
        Order::Ranks
    }
    /// Kernel, blocks and threads for a vector of `bytes` bytes.
    fn shape(&self, ranks: u32, bytes: u64, tuning: &Tuning) -> Shape;
}

/// The algorithm with this id.
pub fn by_id(id: &str) -> Option<&'static dyn Algorithm> {
    ROSTER
        .iter()
        .copied()
        .find(|algorithm| algorithm.id() == id)
}
