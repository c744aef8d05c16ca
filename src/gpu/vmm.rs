//! Memory that is made without an address, travels between processes by a handle, and is mapped where it is used; access is
//! granted mapping by mapping, and enabling peer access says nothing about it.

use super::{context::Context, memory::Region};
use crate::ffi::driver::{
    Address, DriverError,
    vmm::{HandleKind, PhysicalHandle},
};
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

/// A mapping of such memory in one context, of this process's making or another's. Unmapped and let go on drop; the memory is
/// gone when the last process has done so.
pub struct MappedMemory {
    context: Arc<Context>,
    memory: PhysicalHandle,
    /// Whole granules.
    bytes: u64,
    range: Option<Address>,
    mapped: bool,
}

impl MappedMemory {
    /// Makes at least `bytes` on the device of `context`, for handles of `kind`.
    pub fn new(context: &Arc<Context>, bytes: u64, kind: HandleKind) -> Result<Self, DriverError> {
        context.bind()?;
        let (driver, device) = (context.driver(), context.device().handle);
        let bytes = bytes.next_multiple_of(driver.vmm_granularity(device, kind)?.max(1));
        let memory = driver.vmm_create(device, bytes, kind)?;
        Self::place(context, memory, bytes, kind)
    }

    /// Maps what the owner's descriptor stands for; `bytes` is [`Self::bytes`] of the owner.
    pub fn from_descriptor(
        context: &Arc<Context>,
        descriptor: BorrowedFd<'_>,
        bytes: u64,
    ) -> Result<Self, DriverError> {
        context.bind()?;
        let memory = context.driver().vmm_import_descriptor(descriptor)?;
        Self::place(context, memory, bytes, HandleKind::Descriptor)
    }

    /// Maps what the owner's fabric handle stands for.
    pub fn from_fabric(
        context: &Arc<Context>,
        handle: [u8; 64],
        bytes: u64,
    ) -> Result<Self, DriverError> {
        context.bind()?;
        let memory = context.driver().vmm_import_fabric(handle)?;
        Self::place(context, memory, bytes, HandleKind::Fabric)
    }

    fn place(
        context: &Arc<Context>,
        memory: PhysicalHandle,
        bytes: u64,
        kind: HandleKind,
    ) -> Result<Self, DriverError> {
        // Owns the handle from here on: an error below undoes what was done.
        let mut mapping = MappedMemory {
            context: context.clone(),
            memory,
            bytes,
            range: None,
            mapped: false,
        };
        let (driver, device) = (context.driver(), context.device().handle);
        let alignment = driver.vmm_granularity(device, kind)?;
        let range = driver.vmm_reserve(bytes, alignment)?;
        mapping.range = Some(range);
        driver.vmm_map(range, bytes, memory)?;
        mapping.mapped = true;
        driver.vmm_grant(range, bytes, device)?;
        Ok(mapping)
    }

    /// All of it.
    pub fn region(&self) -> Option<Region> {
        let range = self.range?;
        Some(Region::new(range, self.bytes))
    }

    /// Its length in whole granules, which an importer must be told.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor for another process.
    pub fn export_descriptor(&self) -> Result<OwnedFd, DriverError> {
        self.context.bind()?;
        self.context.driver().vmm_export_descriptor(self.memory)
    }

    /// A fabric handle for another process.
    pub fn export_fabric(&self) -> Result<[u8; 64], DriverError> {
        self.context.bind()?;
        self.context.driver().vmm_export_fabric(self.memory)
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        if super::hung() || self.context.bind().is_err() {
            return;
        }
        let driver = self.context.driver();
        // Each may be refused after a sticky error; the process ends soon after.
        if let Some(range) = self.range {
            if self.mapped {
                let _ = driver.vmm_unmap(range, self.bytes);
            }
            let _ = driver.vmm_unreserve(range, self.bytes);
        }
        let _ = driver.vmm_release(self.memory);
    }
}
