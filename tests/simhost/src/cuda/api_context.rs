//! cuInit, errors, contexts, peer access.
use super::codes::*;
use super::context::{Driver, driver, export, initialise, put};
use super::engine::lock;
use crate::scenario::Via;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

const MOST_PEERS: usize = 8;

export! {
    /// Initialises the driver.
    fn cuInit(flags: c_uint) {
        if flags != 0 { return Err(INVALID_VALUE); }
        initialise()
    }
    /// CUDA version of the driver.
    fn cuDriverGetVersion(version: *mut c_int) {
        let world = crate::world::world().ok_or(UNKNOWN)?;
        // SAFETY: the caller's pointer.
        unsafe { put(version, world.scenario.driver.cuda) }
    }
    /// Name of a result code.
    fn cuGetErrorName(code: Code, text: *mut *const c_char) {
        let found = describe(code);
        // SAFETY: the caller's pointer.
        unsafe { put(text, found.map_or(std::ptr::null(), |(name, _)| name.as_ptr()))? };
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }
    /// Sentence of a result code.
    fn cuGetErrorString(code: Code, text: *mut *const c_char) {
        let found = describe(code);
        // SAFETY: the caller's pointer.
        unsafe { put(text, found.map_or(std::ptr::null(), |(_, sentence)| sentence.as_ptr()))? };
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }
    /// Retains the primary context of a device.
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) {
        let driver = driver()?;
        let gpu = driver.device(device)?;
        let own = driver.context_of(gpu);
        own.health()?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, Driver::context_handle(gpu) as *mut c_void)? };
        own.retained.fetch_add(1, Ordering::SeqCst);
        driver.world.slot().ok_or(OUT_OF_MEMORY)?.contexts.fetch_or(1 << gpu, Ordering::SeqCst);
        Ok(())
    }
    /// Releases it; the last release ends the context and everything in it.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let driver = driver()?;
        let context = driver.context_of(driver.device(device)?);
        let before = context.retained.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).map_err(|_| INVALID_CONTEXT)?;
        if before == 1 { driver.destroy(context); }
        Ok(())
    }
    /// Whether the primary context exists.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        let driver = driver()?;
        let context = driver.context_of(driver.device(device)?);
        // SAFETY: the caller's pointers.
        unsafe { put(flags, 0)?; put(active, c_int::from(context.retained.load(Ordering::SeqCst) > 0)) }
    }
    /// Makes a context current on the calling thread.
    fn cuCtxSetCurrent(context: *mut c_void) {
        let driver = driver()?;
        if context.is_null() { Driver::set_current(None); return Ok(()); }
        Driver::set_current(Some(driver.context(context as usize)?.gpu));
        Ok(())
    }
    /// The current context, or null.
    fn cuCtxGetCurrent(context: *mut *mut c_void) {
        let handle = driver()?.current_raw().map_or(0, |c| Driver::context_handle(c.gpu));
        // SAFETY: the caller's pointer.
        unsafe { put(context, handle as *mut c_void) }
    }
    /// Device of the current context.
    fn cuCtxGetDevice(device: *mut c_int) {
        let driver = driver()?;
        let gpu = driver.current_raw().ok_or(INVALID_CONTEXT)?.gpu;
        // SAFETY: the caller's pointer.
        unsafe { put(device, driver.ordinal(gpu)) }
    }
    /// Waits for everything submitted to the current context.
    fn cuCtxSynchronize() {
        let driver = driver()?;
        let context = driver.current()?;
        driver.drain(context.gpu);
        context.health()
    }
    /// Lets the current context reach memory of another one.
    fn cuCtxEnablePeerAccess(peer: *mut c_void, flags: c_uint) {
        let driver = driver()?;
        let context = driver.current()?;
        if flags != 0 { return Err(INVALID_VALUE); }
        let peer = driver.context(peer as usize)?.gpu;
        if peer == context.gpu { return Err(INVALID_DEVICE); }
        driver.may_enable(context.gpu, peer, Via::NONE, PEER_UNSUPPORTED)?;
        let mut peers = lock(&context.peers);
        if peers.contains(&peer) { return Err(PEER_ALREADY); }
        if peers.len() >= MOST_PEERS && !driver.world.topology.has_nvswitch() { return Err(TOO_MANY_PEERS); }
        peers.insert(peer);
        Ok(())
    }
    /// Takes that back.
    fn cuCtxDisablePeerAccess(peer: *mut c_void) {
        let driver = driver()?;
        let context = driver.current()?;
        let peer = driver.context(peer as usize)?.gpu;
        driver.drain(context.gpu);
        if lock(&context.peers).remove(&peer) { Ok(()) } else { Err(PEER_NOT_ENABLED) }
    }
}
