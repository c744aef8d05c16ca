//! The source's copy engine writes into the destination's memory, with peer access on.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct CePush;

impl Mechanism for CePush {
    fn id(&self) -> &'static str {
        "ce-push"
    }

    fn title(&self) -> &'static str {
        "copy engine of the source writes to the destination"
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
        Side::Source
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        transfer.push(transfer.to, transfer.from)
    }

    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError> {
        transfer.pull(scratch, transfer.to)?;
        Ok(true)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!("copy engine of GPU{}", pair.source)
    }
}
