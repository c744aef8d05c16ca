//! Our own copies through pinned host memory: device to host, then host to device. The control arm: it never uses a peer
//! path, so only its failure clears the fabric.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct Bounce;

impl Mechanism for Bounce {
    fn id(&self) -> &'static str {
        "bounce"
    }

    fn title(&self) -> &'static str {
        "device to host, host to device, through our own pinned memory"
    }

    fn rung(&self) -> Rung {
        Rung::Staged
    }

    fn place(&self) -> Place {
        Place::Off
    }

    fn needs_kernels(&self) -> bool {
        false
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
        let chunk = pinned.bytes().max(1);
        let mut done = 0;
        while done < transfer.from.bytes() {
            let bytes = chunk.min(transfer.from.bytes() - done);
            let (Some(from), Some(through), Some(to)) = (
                transfer.from.part(done, bytes),
                pinned.part(0, bytes),
                transfer.to.part(done, bytes),
            ) else {
                return Err(StartError::CannotRun(
                    "a bounce chunk leaves its buffer".to_string(),
                ));
            };
            // The source's stream fills the pinned chunk after the destination's stream has emptied the last one.
            source.stream.wait_event(&destination.emptied)?;
            source.stream.copy(through, from)?;
            source.stream.record(&source.filled)?;
            destination.stream.wait_event(&source.filled)?;
            destination.stream.copy(to, through)?;
            destination.stream.record(&destination.emptied)?;
            done += bytes;
        }
        Ok(())
    }

    fn view(&self, _: &Transfer, _: Region) -> Result<bool, StartError> {
        Ok(false)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!(
            "copy engines of GPU{} and GPU{}, each over its host link",
            pair.source, pair.destination
        )
    }
}
