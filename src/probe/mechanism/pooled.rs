//! Rungs 2 and 3 over stream-ordered pools. Peer access of contexts does not cover such memory: each pool says who may
//! reach it, so the process never enables any. The engines and their operations are those of plain memory.

use super::{
    Mechanism, Memory, Place, Side, StartError, Transfer, ce_pull::CePull, ce_push::CePush,
    sm_load::SmLoad, sm_store::SmStore,
};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

/// An operation over pool memory.
pub(super) struct Pooled {
    id: &'static str,
    title: &'static str,
    operation: &'static dyn Mechanism,
}

pub(super) const CE_PUSH: Pooled = Pooled {
    id: "pool-ce-push",
    title: "copy engine of the source writes to a pool of the destination",
    operation: &CePush,
};
pub(super) const CE_PULL: Pooled = Pooled {
    id: "pool-ce-pull",
    title: "copy engine of the destination reads from a pool of the source",
    operation: &CePull,
};
pub(super) const SM_LOAD: Pooled = Pooled {
    id: "pool-sm-load",
    title: "multiprocessors of the destination load from a pool of the source",
    operation: &SmLoad,
};
pub(super) const SM_STORE: Pooled = Pooled {
    id: "pool-sm-store",
    title: "multiprocessors of the source store to a pool of the destination",
    operation: &SmStore,
};

/// The transfer by addresses alone. A copy that names both contexts would be staged by the driver where peer access is not
/// enabled; one that names none is refused unless the executing GPU reaches both ends itself.
fn unnamed<'a>(transfer: &Transfer<'a>) -> Transfer<'a> {
    Transfer {
        executing: transfer.executing,
        other: None,
        from: transfer.from,
        to: transfer.to,
        first: transfer.first,
        keys: transfer.keys,
    }
}

impl Mechanism for Pooled {
    fn id(&self) -> &'static str {
        self.id
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn rung(&self) -> Rung {
        self.operation.rung()
    }

    fn place(&self) -> Place {
        Place::Granted
    }

    fn memory(&self) -> Memory {
        Memory::Pool
    }

    fn needs_kernels(&self) -> bool {
        self.operation.needs_kernels()
    }

    fn timed(&self) -> bool {
        // The engines are those of plain memory; what is its own here is the mapping.
        false
    }

    fn side(&self) -> Side {
        self.operation.side()
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        self.operation.start(&unnamed(transfer))
    }

    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError> {
        self.operation.view(&unnamed(transfer), scratch)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        self.operation.executor(pair)
    }
}
