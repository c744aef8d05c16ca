//! The destination's copy engine reads from the source's memory, with peer access on.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct CePull;

impl Mechanism for CePull {
    fn id(&self) -> &'static str {
        "ce-pull"
    }

    fn title(&self) -> &'static str {
        "copy engine of the destination reads from the source"
    }

    fn rung(&self) -> Rung {
        Rung::Copied
    }

    fn place(&self) -> Place {
        Place::On
    }

    fn needs_kernels(&self) -> bool {
        false
    }

    fn side(&self) -> Side {
        Side::Destination
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        transfer.pull(transfer.to, transfer.from)
    }

    fn view(&self, _: &Transfer, _: Region) -> Result<bool, StartError> {
        Ok(false)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!("copy engine of GPU{}", pair.destination)
    }
}
