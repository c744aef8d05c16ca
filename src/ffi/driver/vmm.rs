//! Virtual memory management: physical memory with handles that travel, and address ranges that it is mapped into. Older
//! drivers lack all of it, so every call may answer that the function is not there.

use super::{Address, Driver, DriverError};
use std::{
    ffi::{c_int, c_uint, c_ushort, c_void},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// How a handle travels: CUmemAllocationHandleType.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleKind {
    /// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    Descriptor = 1,
    /// CU_MEM_HANDLE_TYPE_FABRIC
    Fabric = 8,
}

/// Physical memory (CUmemGenericAllocationHandle).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhysicalHandle(u64);

/// CUmemLocation; kind 1 is a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// CUmemAllocationProp; kind 1 is pinned memory of a device.
#[repr(C)]
pub(super) struct Properties {
    kind: c_int,
    handles: c_uint,
    location: Location,
    windows: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: c_ushort,
    reserved: [u8; 4],
}

/// CUmemAccessDesc; flag 3 is read and write.
#[repr(C)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

fn on(device: i32) -> Location {
    Location {
        kind: 1,
        id: device,
    }
}

fn properties(device: i32, kind: HandleKind) -> Properties {
    Properties {
        kind: 1,
        handles: kind as c_uint,
        location: on(device),
        windows: std::ptr::null_mut(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

macro_rules! call_if_there {
    ($self:ident.$name:ident($($arg:expr),* $(,)?)) => {
        match $self.table.$name {
            // SAFETY: pointers in the arguments are to live locals of the types that cuda.h names.
            Some(function) => $self.check(stringify!($name), unsafe { function($($arg),*) }),
            None => Err($self.lacks(stringify!($name))),
        }
    };
}

impl Driver {
    /// Sizes and addresses of such memory on `device` must be multiples of this, bytes.
    pub fn vmm_granularity(&self, device: i32, kind: HandleKind) -> Result<u64, DriverError> {
        let mut bytes = 0usize;
        // CU_MEM_ALLOC_GRANULARITY_MINIMUM
        call_if_there!(self.cuMemGetAllocationGranularity(&mut bytes, &properties(device, kind), 0))
            .map(|()| bytes as u64)
    }

    /// Physical memory on `device`, without an address, whose handle can travel.
    pub fn vmm_create(
        &self,
        device: i32,
        bytes: u64,
        kind: HandleKind,
    ) -> Result<PhysicalHandle, DriverError> {
        let mut handle = 0;
        call_if_there!(self.cuMemCreate(&mut handle, bytes as usize, &properties(device, kind), 0))
            .map(|()| PhysicalHandle(handle))
    }

    /// Lets a handle go; mappings keep the memory.
    pub fn vmm_release(&self, memory: PhysicalHandle) -> Result<(), DriverError> {
        call_if_there!(self.cuMemRelease(memory.0))
    }

    /// An address range with nothing in it.
    pub fn vmm_reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        let mut base = 0;
        call_if_there!(self.cuMemAddressReserve(
            &mut base,
            bytes as usize,
            alignment as usize,
            0,
            0
        ))
        .map(|()| Address(base))
    }

    /// Gives a range back.
    pub fn vmm_unreserve(&self, base: Address, bytes: u64) -> Result<(), DriverError> {
        call_if_there!(self.cuMemAddressFree(base.0, bytes as usize))
    }

    /// Puts memory into a range. Nobody may touch it before [`Driver::vmm_grant`].
    pub fn vmm_map(
        &self,
        base: Address,
        bytes: u64,
        memory: PhysicalHandle,
    ) -> Result<(), DriverError> {
        call_if_there!(self.cuMemMap(base.0, bytes as usize, 0, memory.0, 0))
    }

    /// Takes it out again.
    pub fn vmm_unmap(&self, base: Address, bytes: u64) -> Result<(), DriverError> {
        call_if_there!(self.cuMemUnmap(base.0, bytes as usize))
    }

    /// Lets `device` read and write a mapping.
    pub fn vmm_grant(&self, base: Address, bytes: u64, device: i32) -> Result<(), DriverError> {
        let access = Access {
            location: on(device),
            flags: 3,
        };
        call_if_there!(self.cuMemSetAccess(base.0, bytes as usize, &access, 1))
    }

    /// A file descriptor that stands for the memory in any process that holds it.
    pub fn vmm_export_descriptor(&self, memory: PhysicalHandle) -> Result<OwnedFd, DriverError> {
        let mut descriptor: c_int = -1;
        call_if_there!(self.cuMemExportToShareableHandle(
            std::ptr::from_mut(&mut descriptor).cast(),
            memory.0,
            HandleKind::Descriptor as c_uint,
            0
        ))?;
        // SAFETY: the driver has just made it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// The memory behind a descriptor; the descriptor stays the caller's.
    pub fn vmm_import_descriptor(
        &self,
        descriptor: BorrowedFd<'_>,
    ) -> Result<PhysicalHandle, DriverError> {
        let mut handle = 0;
        // The number itself is passed where a pointer is declared.
        call_if_there!(self.cuMemImportFromShareableHandle(
            &mut handle,
            descriptor.as_raw_fd() as usize as *mut c_void,
            HandleKind::Descriptor as c_uint
        ))
        .map(|()| PhysicalHandle(handle))
    }

    /// A fabric handle: bytes that stand for the memory wherever the fabric reaches.
    pub fn vmm_export_fabric(&self, memory: PhysicalHandle) -> Result<[u8; 64], DriverError> {
        let mut bytes = [0u8; 64];
        call_if_there!(self.cuMemExportToShareableHandle(
            bytes.as_mut_ptr().cast(),
            memory.0,
            HandleKind::Fabric as c_uint,
            0
        ))
        .map(|()| bytes)
    }

    /// The memory behind a fabric handle.
    pub fn vmm_import_fabric(&self, bytes: [u8; 64]) -> Result<PhysicalHandle, DriverError> {
        let (mut handle, mut bytes) = (0, bytes);
        call_if_there!(self.cuMemImportFromShareableHandle(
            &mut handle,
            bytes.as_mut_ptr().cast(),
            HandleKind::Fabric as c_uint
        ))
        .map(|()| PhysicalHandle(handle))
    }
}
