//! The same engines across processes, as serving engines run: one process per GPU, and the far end's memory is another
//! process's, opened by CUDA IPC, or made with cuMemCreate and mapped from a file descriptor or fabric handle. What moves
//! the bytes is the operation of rung 2 or 3; what differs is how the memory became reachable.

use super::{
    Mechanism, Memory, Place, Side, StartError, Transfer, ce_pull::CePull, ce_push::CePush,
    sm_load::SmLoad, sm_store::SmStore,
};
use crate::{
    gpu::Region,
    model::{case::Rung, pair::OrderedPair},
};

/// An operation over memory of another process.
pub(super) struct Across {
    id: &'static str,
    title: &'static str,
    memory: Memory,
    operation: &'static dyn Mechanism,
}

pub(super) const IPC_CE_PUSH: Across = Across {
    id: "ipc-ce-push",
    title: "copy engine of the source writes to the destination, opened by CUDA IPC",
    memory: Memory::Ipc,
    operation: &CePush,
};
pub(super) const IPC_CE_PULL: Across = Across {
    id: "ipc-ce-pull",
    title: "copy engine of the destination reads from the source, opened by CUDA IPC",
    memory: Memory::Ipc,
    operation: &CePull,
};
pub(super) const IPC_SM_LOAD: Across = Across {
    id: "ipc-sm-load",
    title: "multiprocessors of the destination load from the source, opened by CUDA IPC",
    memory: Memory::Ipc,
    operation: &SmLoad,
};
pub(super) const IPC_SM_STORE: Across = Across {
    id: "ipc-sm-store",
    title: "multiprocessors of the source store to the destination, opened by CUDA IPC",
    memory: Memory::Ipc,
    operation: &SmStore,
};
pub(super) const VMM_CE_PUSH: Across = Across {
    id: "vmm-ce-push",
    title: "copy engine of the source writes to the destination, mapped from a file descriptor",
    memory: Memory::Vmm,
    operation: &CePush,
};
pub(super) const VMM_SM_LOAD: Across = Across {
    id: "vmm-sm-load",
    title: "multiprocessors of the destination load from the source, mapped from a file descriptor",
    memory: Memory::Vmm,
    operation: &SmLoad,
};
pub(super) const VMM_SM_STORE: Across = Across {
    id: "vmm-sm-store",
    title: "multiprocessors of the source store to the destination, mapped from a file descriptor",
    memory: Memory::Vmm,
    operation: &SmStore,
};
pub(super) const FABRIC_SM_STORE: Across = Across {
    id: "fabric-sm-store",
    title: "multiprocessors of the source store to the destination, mapped from a fabric handle",
    memory: Memory::Fabric,
    operation: &SmStore,
};

impl Mechanism for Across {
    fn id(&self) -> &'static str {
        self.id
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn rung(&self) -> Rung {
        Rung::Shared
    }

    fn place(&self) -> Place {
        Place::Ranks
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn needs_kernels(&self) -> bool {
        self.operation.needs_kernels()
    }

    fn timed(&self) -> bool {
        // The engine and the link are those of the lower rung; what IPC or a mapping may cost shows in either direction.
        self.memory != Memory::Fabric && self.operation.timed()
    }

    fn side(&self) -> Side {
        self.operation.side()
    }

    fn start(&self, transfer: &Transfer) -> Result<(), StartError> {
        self.operation.start(transfer)
    }

    fn view(&self, transfer: &Transfer, scratch: Region) -> Result<bool, StartError> {
        self.operation.view(transfer, scratch)
    }

    fn executor(&self, pair: OrderedPair) -> String {
        self.operation.executor(pair)
    }
}
