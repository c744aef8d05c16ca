//! The driver's own copy between two GPUs in a process that never enabled peer access. It goes through the host, by the
//! driver's word; nobody tests it, so it is itself under test.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct Staged;

impl Mechanism for Staged {
    fn id(&self) -> &'static str {
        "staged"
    }

    fn title(&self) -> &'static str {
        "driver's copy without peer access, staged through the host"
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

    fn side(&self) -> Side {
        Side::Host
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        transfer.other()?;
        transfer.pull(transfer.to, transfer.from)
    }

    fn view(&self, _: &Transfer, _: Region) -> Result<bool, StartError> {
        Ok(false)
    }

    fn executor(&self, _: OrderedPair) -> String {
        "driver, through the host".to_string()
    }
}
