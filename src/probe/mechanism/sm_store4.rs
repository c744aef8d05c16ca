//! The source's multiprocessors store 4 bytes at a time into the destination's memory. Wide stores cover a unit whole;
//! with narrow ones a lost or torn piece of a unit stays visible.

use super::{Mechanism, Place, Side, StartError, Transfer};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

pub(super) struct SmStore4;

impl Mechanism for SmStore4 {
    fn id(&self) -> &'static str {
        "sm-store4"
    }

    fn title(&self) -> &'static str {
        "multiprocessors of the source store to the destination, 4 bytes at a time"
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

    fn takes(&self, _offset: u64, bytes: u64) -> bool {
        bytes <= super::FINE
    }

    fn timed(&self) -> bool {
        // A rate of narrow stores says how fast they are issued.
        false
    }

    fn side(&self) -> Side {
        Side::Source
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        let seat = transfer.executing;
        Ok(seat
            .kernels()?
            .copy_store4(&seat.stream, transfer.to, transfer.from)?)
    }

    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError> {
        super::sm_store::SmStore.view(transfer, scratch)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        format!("multiprocessors of GPU{}", pair.source)
    }
}
