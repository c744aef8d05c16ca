//! Pinned host memory: two ranks without peer access leave their vectors for each other in host memory. No processor of the
//! host does anything.

use super::{Algorithm, Mailboxes, Tuning};
use crate::gpu::reduce::{Kernel, Shape};

/// The kernels of the one-shot push; what differs is where the mailboxes lie.
pub(super) struct PinnedHost;

/// Bytes up to which words carry their own epoch: a poll over PCIe then brings the data with it.
const WORDS_UP_TO: u64 = 64 << 10;

impl Algorithm for PinnedHost {
    fn id(&self) -> &'static str {
        "pinned-host"
    }

    fn title(&self) -> &'static str {
        "two ranks push through pinned host memory; no peer access"
    }

    fn takes(&self, ranks: u32) -> bool {
        ranks == 2
    }

    fn largest(&self, _ranks: u32) -> u64 {
        16 << 20
    }

    fn mailboxes(&self) -> Mailboxes {
        Mailboxes::Host
    }

    fn shape(&self, _ranks: u32, bytes: u64, tuning: &Tuning) -> Shape {
        match bytes <= tuning.words_up_to.unwrap_or(WORDS_UP_TO) {
            true => Shape::spread(Kernel::Words, bytes.div_ceil(8), (256, 32)),
            false => Shape::spread(Kernel::Push, bytes.div_ceil(16), (256, 64)),
        }
    }
}
