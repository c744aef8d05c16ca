//! Kernels of both GPUs meet in pinned host memory that both map: the source's multiprocessors store there, the
//! destination's load. What serving engines fall back to where peers cannot reach each other; it uses no path between GPUs.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct HostExchange;

impl Mechanism for HostExchange {
    fn id(&self) -> &'static str {
        "host-exchange"
    }

    fn title(&self) -> &'static str {
        "multiprocessors of the source store to pinned host memory, the destination's load from it"
    }

    fn rung(&self) -> Rung {
        Rung::Staged
    }

    fn place(&self) -> Place {
        Place::Off
    }

    fn needs_kernels(&self) -> bool {
        true
    }

    fn timed(&self) -> bool {
        // Two streams of two contexts: events of one cannot time the other.
        false
    }

    fn side(&self) -> Side {
        Side::Host
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        let (source, destination) = (transfer.other()?, transfer.executing);
        let pinned = source.pinned.region();
        // The first piece starts inside a unit, there as here; all others at one.
        let (mut skew, mut done) = (transfer.from.skew(), 0);
        while done < transfer.from.bytes() {
            let room = pinned.bytes() / 16 * 16 - skew;
            let bytes = room.min(transfer.from.bytes() - done);
            let (Some(from), Some(through), Some(to)) = (
                transfer.from.part(done, bytes),
                pinned.part(skew, bytes),
                transfer.to.part(done, bytes),
            ) else {
                return Err(StartError::CannotRun(
                    "a piece of an exchange leaves its buffer".to_string(),
                ));
            };
            source.stream.wait_event(&destination.emptied)?;
            source.kernels()?.copy_store(&source.stream, through, from)?;
            source.stream.record(&source.filled)?;
            destination.stream.wait_event(&source.filled)?;
            destination
                .kernels()?
                .copy_load(&destination.stream, to, through)?;
            destination.stream.record(&destination.emptied)?;
            (skew, done) = (0, done + bytes);
        }
        Ok(())
    }

    fn view(&self, _: &Transfer, _: Region) -> Result<bool, StartError> {
        Ok(false)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!(
            "multiprocessors of GPU{} and GPU{}, through pinned host memory",
            pair.source, pair.destination
        )
    }
}
