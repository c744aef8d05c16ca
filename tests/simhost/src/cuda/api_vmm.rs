//! Virtual memory management as programs call it.
use super::codes::*;
use super::context::{Driver, driver, export, put};
use super::memory::READ_WRITE;
use super::vmm::{FABRIC, GRANULARITY, POSIX_FD, Physical};
use crate::scenario::Via;
use std::ffi::{c_int, c_uint, c_ulonglong, c_ushort, c_void};
use std::sync::Arc;

const DEVICE: c_int = 1;
const PINNED: c_int = 1;

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: c_int,
    id: c_int,
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    kind: c_int,
    types: c_uint,
    location: Location,
    windows: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: c_ushort,
    reserved: [u8; 4],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessWish {
    pub(super) location: Location,
    pub(super) flags: c_uint,
}

impl Location {
    /// Physical GPU of a location that is a device.
    pub(super) fn gpu(self, driver: &Driver) -> Result<usize, Code> {
        if self.kind != DEVICE {
            return Err(INVALID_VALUE);
        }
        driver.device(self.id)
    }
}

/// GPUs and flags of a list of wishes for memory of `owner`, every one of them judged before any is granted.
///
/// # Safety
/// `wishes` must be null or an array of `count`.
pub(super) unsafe fn judge(
    driver: &Driver,
    owner: usize,
    via: Via,
    wishes: *const AccessWish,
    count: usize,
) -> Result<Vec<(usize, u8)>, Code> {
    if wishes.is_null() || count == 0 {
        return Err(INVALID_VALUE);
    }
    let mut all = Vec::new();
    for i in 0..count {
        // SAFETY: as the caller promises.
        let wish = unsafe { wishes.add(i).read_unaligned() };
        let gpu = wish.location.gpu(driver).map_err(|_| INVALID_VALUE)?;
        if !matches!(wish.flags, 0 | 1 | 3) {
            return Err(INVALID_VALUE);
        }
        if gpu != owner && wish.flags != 0 {
            driver.may_enable(gpu, owner, via, INVALID_DEVICE)?;
        }
        all.push((gpu, wish.flags as u8));
    }
    Ok(all)
}

/// GPU of properties that can be had; else why not.
///
/// # Safety
/// `wanted` must be null or valid.
unsafe fn wanted(driver: &Driver, wanted: *const Properties) -> Result<(usize, Properties), Code> {
    if wanted.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    let p = unsafe { wanted.read_unaligned() };
    if p.kind != PINNED || p.location.kind != DEVICE {
        return Err(INVALID_VALUE);
    }
    let gpu = p.location.gpu(driver)?;
    if p.types & !(POSIX_FD | FABRIC) != 0 || !driver.world.scenario.driver.vmm {
        return Err(NOT_SUPPORTED);
    }
    Ok((gpu, p))
}

export! {
    /// Sizes and addresses must be multiples of this.
    fn cuMemGetAllocationGranularity(out: *mut usize, properties: *const Properties, option: c_uint) {
        if option > 1 { return Err(INVALID_VALUE); }
        // SAFETY: the caller's pointers.
        unsafe { wanted(driver()?, properties)?; put(out, GRANULARITY as usize) }
    }
    /// Physical memory without an address.
    fn cuMemCreate(out: *mut u64, bytes: usize, properties: *const Properties, flags: c_ulonglong) {
        let driver = driver()?;
        // SAFETY: the caller's pointer.
        let (gpu, p) = unsafe { wanted(driver, properties)? };
        if flags != 0 || bytes == 0 || !(bytes as u64).is_multiple_of(GRANULARITY) { return Err(INVALID_VALUE); }
        // A fabric handle needs a channel of the IMEX service, which no simulated host has.
        if p.types & FABRIC != 0 { return Err(if driver.world.topology.has_nvswitch() { NOT_PERMITTED } else { NOT_SUPPORTED }); }
        let memory = Physical::create(driver, gpu, bytes as u64, p.types)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.handles.insert(Arc::new(memory)) as u64) }
    }
    /// Forgets a handle; mappings keep the memory.
    fn cuMemRelease(handle: u64) {
        driver()?.handles.remove(handle as usize).map(|_| ()).map_err(|_| INVALID_VALUE)
    }
    /// Another handle of the memory at an address.
    fn cuMemRetainAllocationHandle(out: *mut u64, addr: *mut c_void) {
        let driver = driver()?;
        let a = driver.memory.at(addr as u64).ok_or(INVALID_VALUE)?;
        let super::memory::Origin::Mapped(memory) = &a.origin else { return Err(INVALID_VALUE) };
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.handles.insert(Arc::clone(memory)) as u64) }
    }
    /// Properties of a handle.
    fn cuMemGetAllocationPropertiesFromHandle(out: *mut Properties, handle: u64) {
        let driver = driver()?;
        let memory = driver.handles.get(handle as usize).map_err(|_| INVALID_VALUE)?;
        let location = Location { kind: DEVICE, id: driver.ordinal(memory.gpu) };
        let answer = Properties { kind: PINNED, types: memory.types, location, windows: std::ptr::null_mut(), compression: 0, rdma: 0, usage: 0, reserved: [0; 4] };
        // SAFETY: the caller's pointer.
        unsafe { put(out, answer) }
    }
    /// An address range with nothing in it. The wished address is not heeded, as a driver need not.
    fn cuMemAddressReserve(out: *mut u64, bytes: usize, alignment: usize, _wish: u64, flags: c_ulonglong) {
        let driver = driver()?;
        if flags != 0 { return Err(INVALID_VALUE); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.ranges.reserve(driver, bytes as u64, alignment as u64)?) }
    }
    /// Gives a whole range back.
    fn cuMemAddressFree(base: u64, bytes: usize) {
        let driver = driver()?;
        driver.ranges.free(driver, base, bytes as u64)
    }
    /// Puts memory into a range. Nobody may touch it before cuMemSetAccess.
    fn cuMemMap(base: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let driver = driver()?;
        if flags != 0 { return Err(INVALID_VALUE); }
        let memory = driver.handles.get(handle as usize).map_err(|_| INVALID_VALUE)?;
        driver.ranges.map(driver, base, bytes as u64, offset as u64, memory)
    }
    /// Takes whole mappings out of a range.
    fn cuMemUnmap(base: u64, bytes: usize) {
        let driver = driver()?;
        driver.ranges.unmap(driver, base, bytes as u64)
    }
    /// Says which GPUs may use whole mappings. cuCtxEnablePeerAccess says nothing about them.
    fn cuMemSetAccess(base: u64, bytes: usize, wishes: *const AccessWish, count: usize) {
        let driver = driver()?;
        let mappings = driver.memory.mappings(base, bytes as u64).ok_or(INVALID_VALUE)?;
        for a in &mappings {
            let (Some(owner), Some(table)) = (a.gpu, &a.access) else { return Err(INVALID_VALUE) };
            // SAFETY: the caller's array.
            for (gpu, flags) in unsafe { judge(driver, owner, Via::VMM, wishes, count)? } {
                if flags & READ_WRITE != table.of(gpu) { table.set(gpu, flags & READ_WRITE); }
            }
        }
        Ok(())
    }
    /// What a GPU may do with the mapping of an address.
    fn cuMemGetAccess(out: *mut c_ulonglong, location: *const Location, addr: u64) {
        let driver = driver()?;
        let a = driver.memory.at(addr).ok_or(INVALID_VALUE)?;
        let (Some(table), false) = (&a.access, location.is_null()) else { return Err(INVALID_VALUE) };
        // SAFETY: the caller's pointers.
        unsafe { put(out, c_ulonglong::from(table.of(location.read_unaligned().gpu(driver)?))) }
    }
    /// A descriptor for another process.
    fn cuMemExportToShareableHandle(out: *mut c_void, handle: u64, kind: c_uint, flags: c_ulonglong) {
        let driver = driver()?;
        let memory = driver.handles.get(handle as usize).map_err(|_| INVALID_VALUE)?;
        if flags != 0 || kind != POSIX_FD || memory.types & kind == 0 { return Err(INVALID_VALUE); }
        // SAFETY: the caller's pointer, of the type that the handle type has.
        unsafe { put(out.cast::<c_int>(), memory.export()?) }
    }
    /// A handle of what a descriptor holds, also of this process's own.
    fn cuMemImportFromShareableHandle(out: *mut u64, os_handle: *mut c_void, kind: c_uint) {
        let driver = driver()?;
        match kind {
            POSIX_FD => {}
            FABRIC => return Err(NOT_PERMITTED),
            _ => return Err(INVALID_VALUE),
        }
        let fd = c_int::try_from(os_handle as usize).map_err(|_| UNKNOWN)?;
        let memory = Physical::import(driver, fd)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.handles.insert(Arc::new(memory)) as u64) }
    }
}
