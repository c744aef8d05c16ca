//! The source's multiprocessors store into the destination's memory.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct SmStore;

impl Mechanism for SmStore {
    fn id(&self) -> &'static str {
        "sm-store"
    }

    fn title(&self) -> &'static str {
        "multiprocessors of the source store to the destination"
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

    fn side(&self) -> Side {
        Side::Source
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        let seat = transfer.executing;
        Ok(seat
            .kernels()?
            .copy_store(&seat.stream, transfer.to, transfer.from)?)
    }

    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError> {
        let seat = transfer.executing;
        // Uncached loads, in a launch after the stores.
        seat.kernels()?
            .copy_load(&seat.stream, scratch, transfer.to)?;
        Ok(true)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!("multiprocessors of GPU{}", pair.source)
    }
}
