//! System-scope atomics of the source's multiprocessors on pinned host memory, which the destination's then load. As with peers,
//! each turns poison into a payload word, and where the driver does not advertise them as native they are not issued: over PCIe
//! they would not fail, they would be lost against the CPU's own.

use super::{AtomicsOn, Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct HostAtomics;

impl Mechanism for HostAtomics {
    fn id(&self) -> &'static str {
        "host-atomics"
    }

    fn title(&self) -> &'static str {
        "atomics of the source's multiprocessors on pinned host memory, the destination's load from it"
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

    fn atomics_on(&self) -> Option<AtomicsOn> {
        Some(AtomicsOn::Host)
    }

    fn takes(&self, offset: u64, bytes: u64) -> bool {
        offset.is_multiple_of(4) && bytes.is_multiple_of(4) && bytes <= super::FINE
    }

    fn timed(&self) -> bool {
        // Two streams of two contexts, as in a host exchange.
        false
    }

    fn side(&self) -> Side {
        Side::Host
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        let (source, destination) = (transfer.other()?, transfer.executing);
        let through = source
            .pinned
            .region()
            .part(transfer.from.skew(), transfer.from.bytes());
        let through = through.ok_or_else(|| {
            StartError::CannotRun("the pinned memory is too small for the transfer".to_string())
        })?;
        let (kernels, stream) = (source.kernels()?, &source.stream);
        let poison = transfer.keys.poison;
        kernels.fill(stream, through, transfer.first, poison)?;
        kernels.atomics(stream, (through, transfer.from), transfer.first, poison)?;
        stream.record(&source.filled)?;
        destination.stream.wait_event(&source.filled)?;
        Ok(destination
            .kernels()?
            .copy_load(&destination.stream, transfer.to, through)?)
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
