//! The destination's multiprocessors load from the source's memory.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct SmLoad;

impl Mechanism for SmLoad {
    fn id(&self) -> &'static str {
        "sm-load"
    }

    fn title(&self) -> &'static str {
        "multiprocessors of the destination load from the source"
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
        Side::Destination
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        let seat = transfer.executing;
        Ok(seat
            .kernels()?
            .copy_load(&seat.stream, transfer.to, transfer.from)?)
    }

    fn view(&self, _: &Transfer, _: Region) -> Result<bool, StartError> {
        Ok(false)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!("multiprocessors of GPU{}", pair.destination)
    }
}
