//! Stream-ordered memory as programs call it.
use super::api_vmm::{AccessWish, Location, judge};
use super::codes::*;
use super::context::{driver, export, put};
use super::memory::Kind;
use super::pool::Pool;
use super::timeline::Work;
use super::vmm::POSIX_FD;
use crate::scenario::Via;
use std::ffi::{c_int, c_uint, c_ushort, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// CUmemPoolProps.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProperties {
    kind: c_int,
    types: c_uint,
    location: Location,
    windows: *mut c_void,
    most: usize,
    usage: c_ushort,
    reserved: [u8; 54],
}

fn pool(handle: *mut c_void) -> Result<Arc<Pool>, Code> {
    driver()?
        .pools
        .get(handle as usize)
        .map_err(|_| INVALID_VALUE)
}

/// Pool memory is there at once here; what a program sees of a stream's order is the same.
fn take(
    out: *mut u64,
    bytes: usize,
    from: Option<*mut c_void>,
    stream: *mut c_void,
) -> Result<(), Code> {
    let driver = driver()?;
    let stream = driver.stream(stream as usize)?;
    let pool = match from {
        Some(handle) => pool(handle)?,
        None => pool(driver.pool_of(stream.gpu)? as *mut c_void)?,
    };
    let gpu = pool.gpu;
    // SAFETY: the caller's pointer.
    unsafe { put(out, driver.memory.allocate(gpu, bytes as u64, Some(pool))?) }
}

export! {
    /// A pool on one device.
    fn cuMemPoolCreate(out: *mut *mut c_void, properties: *const PoolProperties) {
        let driver = driver()?;
        if properties.is_null() { return Err(INVALID_VALUE); }
        // SAFETY: the caller's pointer; older headers end before `most`, inside the same 88 bytes.
        let p = unsafe { properties.read_unaligned() };
        if p.kind != 1 { return Err(INVALID_VALUE); }
        let gpu = p.location.gpu(driver)?;
        if p.types & !POSIX_FD != 0 || !driver.world.scenario.driver.pools { return Err(NOT_SUPPORTED); }
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.pools.insert(Arc::new(Pool::new(gpu, false))) as *mut c_void) }
    }
    /// Forgets a pool; what was taken from it stays until it is freed.
    fn cuMemPoolDestroy(handle: *mut c_void) {
        let driver = driver()?;
        if pool(handle)?.default { return Err(INVALID_VALUE); }
        driver.forget_pool(handle as usize);
        driver.pools.remove(handle as usize).map(|_| ())
    }
    /// Says which other devices may use the memory of a pool, that which exists and that to come.
    fn cuMemPoolSetAccess(handle: *mut c_void, wishes: *const AccessWish, count: usize) {
        let driver = driver()?;
        let pool = pool(handle)?;
        // SAFETY: the caller's array.
        let all = unsafe { judge(driver, pool.gpu, Via::POOL, wishes, count)? };
        // The owner cannot be locked out.
        if all.iter().any(|&(gpu, flags)| gpu == pool.gpu && flags != 3) { return Err(INVALID_VALUE); }
        all.iter().for_each(|&(gpu, flags)| pool.access.set(gpu, flags));
        Ok(())
    }
    /// What a device may do with the memory of a pool.
    fn cuMemPoolGetAccess(out: *mut c_uint, handle: *mut c_void, location: *mut Location) {
        let driver = driver()?;
        let pool = pool(handle)?;
        if location.is_null() { return Err(INVALID_VALUE); }
        // SAFETY: the caller's pointers.
        unsafe { put(out, c_uint::from(pool.access.of(location.read_unaligned().gpu(driver)?))) }
    }
    /// Attributes: 1 to 3 reuse rules (int), 4 release threshold, 6 and 8 high marks (only to 0).
    fn cuMemPoolSetAttribute(handle: *mut c_void, number: c_uint, value: *mut c_void) {
        let pool = pool(handle)?;
        if value.is_null() { return Err(INVALID_VALUE); }
        // SAFETY: the caller's pointer, of the type that the attribute has.
        unsafe {
            match number {
                1..=3 => pool.kept[number as usize].store(value.cast::<c_int>().read_unaligned() as u64, Ordering::SeqCst),
                4 => pool.kept[4].store(value.cast::<u64>().read_unaligned(), Ordering::SeqCst),
                6 | 8 if value.cast::<u64>().read_unaligned() == 0 => pool.reset_most(),
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }
    /// The same and 5 to 8: bytes reserved and used, now and at most.
    fn cuMemPoolGetAttribute(handle: *mut c_void, number: c_uint, value: *mut c_void) {
        let pool = pool(handle)?;
        let (used, most) = pool.usage();
        // SAFETY: the caller's pointer, of the type that the attribute has.
        unsafe {
            match number {
                1..=3 => put(value.cast::<c_int>(), pool.kept[number as usize].load(Ordering::SeqCst) as c_int),
                4 => put(value.cast::<u64>(), pool.kept[4].load(Ordering::SeqCst)),
                5 | 7 => put(value.cast::<u64>(), used),
                6 | 8 => put(value.cast::<u64>(), most),
                _ => Err(INVALID_VALUE),
            }
        }
    }
    /// Gives back what is not in use: here nothing is ever kept.
    fn cuMemPoolTrimTo(handle: *mut c_void, _keep: usize) {
        pool(handle).map(|_| ())
    }
    /// The pool that a device was born with.
    fn cuDeviceGetDefaultMemPool(out: *mut *mut c_void, device: c_int) {
        let driver = driver()?;
        let gpu = driver.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.default_pool(gpu)? as *mut c_void) }
    }
    /// The pool that cuMemAllocAsync takes from.
    fn cuDeviceGetMemPool(out: *mut *mut c_void, device: c_int) {
        let driver = driver()?;
        let gpu = driver.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.pool_of(gpu)? as *mut c_void) }
    }
    /// Chooses it.
    fn cuDeviceSetMemPool(device: c_int, handle: *mut c_void) {
        let driver = driver()?;
        let gpu = driver.device(device)?;
        if pool(handle)?.gpu != gpu { return Err(INVALID_VALUE); }
        driver.choose_pool(gpu, handle as usize);
        Ok(())
    }
    /// Memory of the stream's device, from its current pool.
    fn cuMemAllocAsync(out: *mut u64, bytes: usize, stream: *mut c_void) {
        take(out, bytes, None, stream)
    }
    /// Memory of a pool.
    fn cuMemAllocFromPoolAsync(out: *mut u64, bytes: usize, handle: *mut c_void, stream: *mut c_void) {
        take(out, bytes, Some(handle), stream)
    }
    /// Frees when the stream comes to it.
    fn cuMemFreeAsync(base: u64, stream: *mut c_void) {
        let driver = driver()?;
        let stream = driver.stream(stream as usize)?;
        if base == 0 { return Ok(()); }
        let kinds = [Kind::Pool, Kind::Device];
        let found = driver.memory.at(base).filter(|a| a.base == base && kinds.contains(&a.kind)).ok_or(INVALID_VALUE)?;
        if found.freed.swap(true, Ordering::SeqCst) { return Err(INVALID_VALUE); }
        let run = Box::new(move |_: &Arc<super::engine::Op>| {
            driver.memory.remove(base, &kinds);
            Ok(None)
        });
        stream.submit(&driver.engine, driver.order(&stream), Some(Work::fixed(0)), false, run);
        Ok(())
    }
}
