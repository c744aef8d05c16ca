//! Memory, copies, memsets, IPC.
use super::codes::*;
use super::context::{driver, export, put};
use super::copy::{self, Place};
use super::engine::{Op, Stream};
use super::graph;
use super::memory::Kind;
use super::timeline::Work;
use crate::topology::Engine as Carrier;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

type Pointer = u64;

fn stream_of(handle: *mut c_void) -> Result<Arc<Stream>, Code> {
    driver()?.stream(handle as usize)
}

/// Waits for a copy of a synchronous call and gives the health of its context.
fn finish(op: &Op, gpu: usize) -> Result<(), Code> {
    let driver = driver()?;
    driver.engine.wait_done(op);
    driver.engine.end_of(op);
    driver.context_of(gpu).health()
}

/// Copy on a stream between places of any kind.
fn copy_on(
    stream: *mut c_void,
    to: Place,
    from: Place,
    len: usize,
) -> Result<(Arc<Op>, usize), Code> {
    let stream = stream_of(stream)?;
    Ok((
        copy::submit(driver()?, &stream, to, from, len, None)?,
        stream.gpu,
    ))
}

/// The same without a wait, and so what a capture can take; the places are looked up when it is submitted.
fn enqueue(
    stream: *mut c_void,
    to: Pointer,
    from: Pointer,
    len: usize,
    named: Option<(usize, usize)>,
) -> Result<(), Code> {
    let (driver, stream) = (driver()?, stream_of(stream)?);
    let submit = move |driver: &'static super::context::Driver, stream: &Arc<Stream>| {
        let (to, from) = (Place::any(driver, to), Place::any(driver, from));
        copy::submit(driver, stream, to, from, len, named)
    };
    graph::put(driver, &stream, Arc::new(submit))
}

/// A device address and a host address; a copy of no bytes is nothing.
fn with_host(
    stream: *mut c_void,
    device: Pointer,
    host: Pointer,
    len: usize,
    to_host: bool,
    wait: bool,
) -> Result<(), Code> {
    let driver = driver()?;
    driver.current()?;
    if len == 0 {
        return Ok(());
    }
    if host == 0 {
        return Err(INVALID_VALUE);
    }
    let (d, h) = (
        Place::device(driver, device, len as u64)?,
        Place::any(driver, host),
    );
    if !wait {
        let (to, from) = if to_host {
            (host, device)
        } else {
            (device, host)
        };
        return enqueue(stream, to, from, len, None);
    }
    let (op, gpu) = if to_host {
        copy_on(stream, h, d, len)?
    } else {
        copy_on(stream, d, h, len)?
    };
    finish(&op, gpu)
}

/// Fills `count` times the pattern.
fn fill(
    driver: &'static super::context::Driver,
    stream: &Arc<Stream>,
    to: Pointer,
    pattern: Vec<u8>,
    count: usize,
) -> Result<Arc<Op>, Code> {
    let len = pattern.len() * count;
    let place = Place::device(driver, to, len as u64)?;
    let allows = |a: &Arc<super::memory::Allocation>| a.allows(stream.gpu, true);
    if !place.allocation.as_ref().is_some_and(allows) {
        return Err(INVALID_VALUE);
    }
    let gpu = place.gpu().unwrap_or(stream.gpu);
    let topology = &driver.world.topology;
    let route = topology.peer_route(stream.gpu, gpu, Carrier::Sm);
    let work = Work {
        lead_ns: driver.world.scenario.rates.launch_ns,
        bytes: len as f64,
        links: route.links.into_iter().map(|l| (l, 1.0)).collect(),
        limit: route.limit,
        at_least_ns: 0,
        slow: 1.0,
        posted: (gpu != stream.gpu).then(|| topology.root_of(gpu)),
        crosses: gpu != stream.gpu,
    };
    let run = Box::new(move |_: &Arc<Op>| {
        // SAFETY: the range was checked and `place` keeps its mapping alive.
        let target = unsafe { std::slice::from_raw_parts_mut(place.addr as *mut u8, len) };
        if let [byte] = *pattern {
            target.fill(byte);
        } else {
            for chunk in target.chunks_mut(pattern.len()) {
                chunk.copy_from_slice(&pattern[..chunk.len()]);
            }
        }
        Ok(None)
    });
    Ok(stream.submit(&driver.engine, driver.order(stream), Some(work), false, run))
}

fn set(
    stream: *mut c_void,
    to: Pointer,
    pattern: Vec<u8>,
    count: usize,
    wait: bool,
) -> Result<(), Code> {
    let driver = driver()?;
    let stream = stream_of(stream)?;
    let len = pattern.len().checked_mul(count).ok_or(INVALID_VALUE)?;
    if len == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(INVALID_VALUE);
    }
    if wait {
        let op = fill(driver, &stream, to, pattern, count)?;
        return finish(&op, stream.gpu);
    }
    Place::device(driver, to, len as u64)?;
    let submit = move |driver: &'static _, stream: &Arc<Stream>| {
        fill(driver, stream, to, pattern.clone(), count)
    };
    graph::put(driver, &stream, Arc::new(submit))
}

export! {
    /// Device memory.
    fn cuMemAlloc_v2(out: *mut Pointer, bytes: usize) {
        let driver = driver()?;
        let gpu = driver.current()?.gpu;
        let base = driver.memory.allocate(gpu, bytes as u64, None)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, base) }
    }
    /// Frees device memory after all work of its context.
    fn cuMemFree_v2(base: Pointer) {
        let driver = driver()?;
        driver.current()?;
        if base == 0 { return Ok(()); }
        let kinds = [Kind::Device, Kind::Pool];
        let owner = driver.memory.at(base).filter(|a| a.base == base && kinds.contains(&a.kind)).ok_or(INVALID_VALUE)?;
        driver.drain(owner.context);
        driver.memory.remove(base, &kinds).map(|_| ()).ok_or(INVALID_VALUE)
    }
    /// Pinned host memory, mapped for every context.
    fn cuMemHostAlloc(out: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        let driver = driver()?;
        let gpu = driver.current()?.gpu;
        let base = driver.memory.allocate_host(gpu, bytes as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, base as *mut c_void) }
    }
    /// The same, older name.
    fn cuMemAllocHost_v2(out: *mut *mut c_void, bytes: usize) {
        let driver = driver()?;
        let gpu = driver.current()?.gpu;
        let base = driver.memory.allocate_host(gpu, bytes as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, base as *mut c_void) }
    }
    /// Frees pinned host memory.
    fn cuMemFreeHost(p: *mut c_void) {
        let driver = driver()?;
        let context = driver.current()?;
        if p.is_null() { return Ok(()); }
        driver.drain(context.gpu);
        driver.memory.remove(p as u64, &[Kind::Host]).map(|_| ()).ok_or(INVALID_VALUE)
    }
    /// Device address of pinned host memory: the same one.
    fn cuMemHostGetDevicePointer_v2(out: *mut Pointer, p: *mut c_void, _flags: c_uint) {
        let driver = driver()?;
        driver.current()?;
        driver.memory.at(p as u64).filter(|a| a.gpu.is_none()).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, p as u64) }
    }
    /// Pins memory of the caller.
    fn cuMemHostRegister_v2(p: *mut c_void, bytes: usize, _flags: c_uint) {
        let driver = driver()?;
        let gpu = driver.current()?.gpu;
        driver.memory.register(gpu, p as u64, bytes as u64)
    }
    /// Takes that back.
    fn cuMemHostUnregister(p: *mut c_void) {
        let driver = driver()?;
        let context = driver.current()?;
        driver.drain(context.gpu);
        driver.memory.remove(p as u64, &[Kind::Registered]).map(|_| ()).ok_or(HOST_NOT_REGISTERED)
    }
    /// Copy between any two addresses.
    fn cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: *mut c_void) {
        let driver = driver()?;
        driver.current()?;
        if bytes == 0 { return Ok(()); }
        enqueue(stream, to, from, bytes, None)
    }
    /// The same, done on return.
    fn cuMemcpy(to: Pointer, from: Pointer, bytes: usize) {
        let driver = driver()?;
        driver.current()?;
        if bytes == 0 { return Ok(()); }
        let (op, gpu) = copy_on(std::ptr::null_mut(), Place::any(driver, to), Place::any(driver, from), bytes)?;
        finish(&op, gpu)
    }
    /// Host to device.
    fn cuMemcpyHtoDAsync_v2(to: Pointer, from: *const c_void, bytes: usize, stream: *mut c_void) {
        with_host(stream, to, from as u64, bytes, false, false)
    }
    /// Device to host.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: Pointer, bytes: usize, stream: *mut c_void) {
        with_host(stream, from, to as u64, bytes, true, false)
    }
    /// Host to device, done on return.
    fn cuMemcpyHtoD_v2(to: Pointer, from: *const c_void, bytes: usize) {
        with_host(std::ptr::null_mut(), to, from as u64, bytes, false, true)
    }
    /// Device to host, done on return.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: Pointer, bytes: usize) {
        with_host(std::ptr::null_mut(), from, to as u64, bytes, true, true)
    }
    /// Device to device.
    fn cuMemcpyDtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: *mut c_void) {
        let driver = driver()?;
        driver.current()?;
        if bytes == 0 { return Ok(()); }
        Place::device(driver, to, bytes as u64)?;
        Place::device(driver, from, bytes as u64)?;
        enqueue(stream, to, from, bytes, None)
    }
    /// Device to device, done on return where two devices are involved, ordered by the null stream always.
    fn cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize) {
        let driver = driver()?;
        driver.current()?;
        if bytes == 0 { return Ok(()); }
        let (to, from) = (Place::device(driver, to, bytes as u64)?, Place::device(driver, from, bytes as u64)?);
        let (op, gpu) = copy_on(std::ptr::null_mut(), to, from, bytes)?;
        finish(&op, gpu)
    }
    /// Copy between two contexts: direct where the stream's context has access, else through the host.
    fn cuMemcpyPeerAsync(to: Pointer, to_context: *mut c_void, from: Pointer, from_context: *mut c_void, bytes: usize, stream: *mut c_void) {
        let driver = driver()?;
        driver.current()?;
        let (tc, fc) = (driver.context(to_context as usize)?, driver.context(from_context as usize)?);
        if bytes == 0 { return Ok(()); }
        let (at, of) = (Place::device(driver, to, bytes as u64)?, Place::device(driver, from, bytes as u64)?);
        let fits = |p: &Place, gpu: usize| p.gpu().is_none_or(|g| g == gpu) || p.allocation.as_ref().is_some_and(|a| a.access.is_some() || (a.kind == Kind::Imported && a.context == gpu));
        if !fits(&at, tc.gpu) || !fits(&of, fc.gpu) { return Err(INVALID_VALUE); }
        enqueue(stream, to, from, bytes, Some((tc.gpu, fc.gpu)))
    }
    /// Fills with a byte.
    fn cuMemsetD8Async(to: Pointer, value: u8, count: usize, stream: *mut c_void) {
        set(stream, to, vec![value], count, false)
    }
    /// Fills with a word of 32 bits.
    fn cuMemsetD32Async(to: Pointer, value: c_uint, count: usize, stream: *mut c_void) {
        set(stream, to, value.to_ne_bytes().to_vec(), count, false)
    }
    /// Fills with a byte, on the null stream.
    fn cuMemsetD8_v2(to: Pointer, value: u8, count: usize) {
        set(std::ptr::null_mut(), to, vec![value], count, true)
    }
    /// Fills with a word of 32 bits, on the null stream.
    fn cuMemsetD32_v2(to: Pointer, value: c_uint, count: usize) {
        set(std::ptr::null_mut(), to, value.to_ne_bytes().to_vec(), count, true)
    }
    /// Handle that another process can open.
    fn cuIpcGetMemHandle(handle: *mut [u8; 64], base: Pointer) {
        let driver = driver()?;
        driver.current()?;
        // SAFETY: the caller's pointer.
        unsafe { put(handle, driver.memory.ticket(base)?) }
    }
    /// Opens another process's handle.
    fn cuIpcOpenMemHandle_v2(out: *mut Pointer, handle: Handle, flags: c_uint) {
        let driver = driver()?;
        let context = driver.current()?;
        if flags != 1 { return Err(INVALID_VALUE); }
        let base = driver.memory.open(driver, context.gpu, &handle.0)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, base) }
    }
    /// Closes it.
    fn cuIpcCloseMemHandle(base: Pointer) {
        let driver = driver()?;
        let context = driver.current()?;
        driver.drain(context.gpu);
        driver.memory.close(base)
    }
    /// What an address is: 1 context, 2 memory type, 3 device pointer, 4 host pointer, 9 ordinal, 11 range start, 12 range size.
    fn cuPointerGetAttribute(out: *mut c_void, number: c_int, addr: Pointer) {
        let driver = driver()?;
        let a = driver.memory.at(addr).ok_or(INVALID_VALUE)?;
        let gpu = a.gpu.unwrap_or(a.context);
        // SAFETY: the caller's pointer, of the type that the attribute has.
        unsafe {
            match number {
                1 => put(out.cast::<usize>(), super::context::Driver::context_handle(a.context)),
                2 => put(out.cast::<c_uint>(), if a.gpu.is_some() { 2 } else { 1 }),
                3 => put(out.cast::<u64>(), addr),
                4 if a.gpu.is_none() => put(out.cast::<u64>(), addr),
                9 => put(out.cast::<c_int>(), driver.ordinal(gpu)),
                11 => put(out.cast::<u64>(), a.base),
                12 => put(out.cast::<usize>(), a.size as usize),
                _ => Err(INVALID_VALUE),
            }
        }
    }
    /// First address and length of the allocation of an address.
    fn cuMemGetAddressRange_v2(base: *mut Pointer, bytes: *mut usize, addr: Pointer) {
        let driver = driver()?;
        driver.current()?;
        let a = driver.memory.at(addr).filter(|a| a.gpu.is_some()).ok_or(NOT_FOUND)?;
        // SAFETY: the caller's pointers; each may be null.
        unsafe {
            if !base.is_null() { put(base, a.base)?; }
            if !bytes.is_null() { put(bytes, a.size as usize)?; }
        }
        Ok(())
    }
}

/// CUipcMemHandle, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle([u8; 64]);
