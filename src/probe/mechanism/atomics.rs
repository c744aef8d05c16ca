//! System-scope atomics of the source's multiprocessors on the destination's memory, chosen so that each turns the owner's
//! poison into a payload word: a lost, doubled or torn one leaves a unit that does not name itself. Where the driver does
//! not advertise native atomics they are not issued: they would not fail, they would be lost.

use super::{AtomicsOn, Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

/// Sum, exchange, compare-and-swap and exclusive or, on 32-bit and 64-bit words.
pub(super) struct Atomics;

impl Mechanism for Atomics {
    fn id(&self) -> &'static str {
        "atomics"
    }

    fn title(&self) -> &'static str {
        "atomics of the source's multiprocessors on the destination, at system scope"
    }

    fn rung(&self) -> Rung {
        Rung::Touched
    }

    fn place(&self) -> Place {
        Place::On
    }

    fn needs_kernels(&self) -> bool {
        true
    }

    fn atomics_on(&self) -> Option<AtomicsOn> {
        Some(AtomicsOn::Peer)
    }

    fn takes(&self, offset: u64, bytes: u64) -> bool {
        offset.is_multiple_of(4) && bytes.is_multiple_of(4) && bytes <= super::FINE
    }

    fn timed(&self) -> bool {
        false
    }

    fn side(&self) -> Side {
        Side::Source
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        let (seat, ends) = (transfer.executing, (transfer.to, transfer.from));
        let poison = transfer.keys.poison;
        Ok(seat
            .kernels()?
            .atomics(&seat.stream, ends, transfer.first, poison)?)
    }

    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError> {
        super::sm_store::SmStore.view(transfer, scratch)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!("multiprocessors of GPU{}", pair.source)
    }
}

/// Owner and accessor add to the same words at the same time; only all sums together make the payload.
pub(super) struct Contended;

impl Mechanism for Contended {
    fn id(&self) -> &'static str {
        "atomics-contended"
    }

    fn title(&self) -> &'static str {
        "atomics of both GPUs on the same words of the destination at the same time"
    }

    fn rung(&self) -> Rung {
        Rung::Touched
    }

    fn place(&self) -> Place {
        Place::On
    }

    fn needs_kernels(&self) -> bool {
        true
    }

    fn atomics_on(&self) -> Option<AtomicsOn> {
        Some(AtomicsOn::Peer)
    }

    fn takes(&self, offset: u64, bytes: u64) -> bool {
        // Whole units; each of their words is dozens of transactions.
        offset.is_multiple_of(16) && bytes.is_multiple_of(16) && bytes <= 4096
    }

    fn timed(&self) -> bool {
        false
    }

    fn side(&self) -> Side {
        Side::Source
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        let (accessor, owner) = (transfer.executing, transfer.other()?);
        let keys = (transfer.keys.payload, transfer.keys.poison);
        let half = |seat: &crate::probe::seat::Seat, accessor| -> Result<(), StartError> {
            let (stream, to) = (&seat.stream, transfer.to);
            Ok(seat
                .kernels()?
                .contend(stream, to, transfer.first, keys, accessor)?)
        };
        half(owner, false)?;
        owner.stream.record(&owner.filled)?;
        half(accessor, true)?;
        // Done when both are.
        Ok(accessor.stream.wait_event(&owner.filled)?)
    }

    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError> {
        super::sm_store::SmStore.view(transfer, scratch)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!(
            "multiprocessors of GPU{} and GPU{}",
            pair.source, pair.destination
        )
    }
}
