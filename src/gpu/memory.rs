//! Device memory and pinned host memory, and checked ranges of them.

use super::{context::Context, pool::Pool, stream::Stream};
use crate::ffi::driver::{Address, DriverError, HostMemory, IpcHandle, StreamHandle};
use std::sync::Arc;

/// What kernels move in one piece, bytes.
const PIECE: u64 = 16;

/// A range of memory that a copy or kernel may touch: made by the owners below, never beyond their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    address: Address,
    bytes: u64,
}

impl Region {
    /// What an owner in this floor holds.
    pub(super) fn new(address: Address, bytes: u64) -> Region {
        Region { address, bytes }
    }

    /// Byte of a 16-byte unit at which it starts: allocations start at a unit.
    pub fn skew(self) -> u64 {
        self.address.raw() % PIECE
    }

    /// Its whole 16-byte units, and how many bytes lie before them.
    pub fn whole_units(self) -> (u64, Region) {
        let head = (PIECE - self.skew()) % PIECE;
        let head = head.min(self.bytes);
        let bytes = (self.bytes - head) / PIECE * PIECE;
        (
            head,
            Region {
                address: self.address.plus(head),
                bytes,
            },
        )
    }

    /// Where it starts.
    pub fn address(self) -> Address {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// A part of it; `None` when it would leave the region.
    pub fn part(self, offset: u64, bytes: u64) -> Option<Region> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| Region {
            address: self.address.plus(offset),
            bytes,
        })
    }
}

/// Device memory (cuMemAlloc, or of a stream-ordered pool), freed on drop.
pub struct DeviceMemory {
    context: Arc<Context>,
    region: Region,
    /// The pool that it was taken from, kept as long as its memory.
    pool: Option<Arc<Pool>>,
}

impl DeviceMemory {
    /// Allocates `bytes` in `context`. Contents are undefined: poison before use.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<Self, DriverError> {
        context.bind()?;
        let address = context.driver().memory_alloc(bytes)?;
        Ok(DeviceMemory {
            context: context.clone(),
            region: Region { address, bytes },
            pool: None,
        })
    }

    /// Takes `bytes` of `pool`, on whose device `stream` works; the memory is there once the stream has come so far.
    pub fn of_pool(pool: &Arc<Pool>, bytes: u64, stream: &Stream) -> Result<Self, DriverError> {
        Ok(DeviceMemory {
            context: stream.context().clone(),
            region: pool.take(bytes, stream)?,
            pool: Some(pool.clone()),
        })
    }

    /// All of it.
    pub fn region(&self) -> Region {
        self.region
    }

    /// The context that owns it.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// A handle for another process. The memory must be a whole multiple of 2 MiB: the driver shares whole blocks.
    pub fn export(&self) -> Result<IpcHandle, DriverError> {
        self.context.bind()?;
        self.context.driver().ipc_export(self.region.address)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let (driver, address) = (self.context.driver(), self.region.address);
            // Refused after a sticky error; the process ends soon after. Of a pool: in the order of the default stream,
            // as every stream that used it was waited for.
            let _ = match self.pool {
                Some(_) => driver.pool_free(address, StreamHandle::DEFAULT),
                None => driver.memory_free(address),
            };
        }
    }
}

/// Device memory of another process, opened by its handle, closed on drop.
pub struct ImportedMemory {
    context: Arc<Context>,
    region: Region,
}

impl ImportedMemory {
    /// Opens `handle` in `context`; `bytes` is what the owner says that it allocated.
    pub fn open(
        context: &Arc<Context>,
        handle: IpcHandle,
        bytes: u64,
    ) -> Result<Self, DriverError> {
        context.bind()?;
        let address = context.driver().ipc_open(handle)?;
        Ok(ImportedMemory {
            context: context.clone(),
            region: Region { address, bytes },
        })
    }

    /// All of it.
    pub fn region(&self) -> Region {
        self.region
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().ipc_close(self.region.address);
        }
    }
}

/// Page-locked host memory that all contexts can reach, freed on drop.
pub struct PinnedMemory {
    context: Arc<Context>,
    memory: HostMemory,
}

impl PinnedMemory {
    /// Allocates `bytes`.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        context.bind()?;
        let memory = context.driver().host_alloc(bytes)?;
        Ok(PinnedMemory {
            context: context.clone(),
            memory,
        })
    }

    /// All of it, as copies and kernels see it.
    pub fn region(&self) -> Region {
        Region {
            address: self.memory.address(),
            bytes: self.memory.len() as u64,
        }
    }

    /// `bytes` bytes from `offset`; `None` when out of range.
    pub fn read(&self, offset: usize, bytes: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; bytes];
        self.memory.read(offset, &mut out).then_some(out)
    }

    /// Copies `data` to `offset`; false when out of range.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        self.memory.write(offset, data)
    }

    /// Stores a word that a running kernel polls.
    pub fn store_u32(&self, offset: usize, value: u32) -> bool {
        self.memory.store_u32(offset, value)
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().host_free(&mut self.memory);
        }
    }
}
