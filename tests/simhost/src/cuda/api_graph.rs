//! Stream capture and graphs as programs call them.
use super::codes::*;
use super::context::{driver, export, put};
use super::engine::lock;
use super::graph::{self, Executable};
use std::cell::Cell;
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::Arc;

/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL.
const THREAD_LOCAL: c_uint = 1;

thread_local! {
    /// Captures of that mode which this thread has begun and not ended. Nothing is instantiated meanwhile: a real driver (580, two
    /// streams captured for NCCL) answers 900.
    static CAPTURES: Cell<u32> = const { Cell::new(0) };
}

fn instantiate(out: *mut *mut c_void, graph: *mut c_void) -> Result<(), Code> {
    let driver = driver()?;
    driver.current()?;
    if CAPTURES.get() > 0 {
        return Err(CAPTURE_UNSUPPORTED);
    }
    let graph = driver.graphs.get(graph as usize)?;
    let made = Executable::new(driver, graph.as_ref().clone());
    // SAFETY: the caller's pointer.
    unsafe {
        put(
            out,
            driver.executables.insert(Arc::new(made)) as *mut c_void,
        )
    }
}

export! {
    /// Starts to record a stream. The null stream cannot be recorded. Of what modes forbid, only
    /// instantiation is.
    fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint) {
        let driver = driver()?;
        if mode > 2 { return Err(INVALID_VALUE); }
        if (stream as usize) < 3 { return Err(CAPTURE_UNSUPPORTED); }
        graph::begin(&*driver.stream(stream as usize)?)?;
        if mode == THREAD_LOCAL { CAPTURES.set(CAPTURES.get() + 1); }
        Ok(())
    }
    /// Ends it and gives the graph.
    fn cuStreamEndCapture(stream: *mut c_void, out: *mut *mut c_void) {
        let driver = driver()?;
        let graph = graph::end(driver, &*driver.stream(stream as usize)?);
        CAPTURES.set(CAPTURES.get().saturating_sub(1));
        if let (Err(_), false) = (&graph, out.is_null()) {
            // SAFETY: the caller's pointer.
            unsafe { put(out, std::ptr::null_mut())? };
        }
        // SAFETY: as above.
        unsafe { put(out, driver.graphs.insert(Arc::new(graph?)) as *mut c_void) }
    }
    /// 0 no, 1 yes, 2 spoilt.
    fn cuStreamIsCapturing(stream: *mut c_void, out: *mut c_uint) {
        let stream = driver()?.stream(stream as usize)?;
        let status = lock(&stream.part).as_ref().map_or(0, |p| 1 + c_uint::from(p.invalid()));
        // SAFETY: the caller's pointer.
        unsafe { put(out, status) }
    }
    /// Makes a graph ready to launch.
    fn cuGraphInstantiateWithFlags(out: *mut *mut c_void, graph: *mut c_void, _flags: c_ulonglong) {
        instantiate(out, graph)
    }
    /// The same; of the parameters the result is set: 0, success.
    fn cuGraphInstantiateWithParams(out: *mut *mut c_void, graph: *mut c_void, parameters: *mut c_void) {
        if parameters.is_null() { return Err(INVALID_VALUE); }
        instantiate(out, graph)?;
        // SAFETY: flags, stream and node of 8 bytes each come before the result.
        unsafe { put(parameters.cast::<u8>().add(24).cast::<c_uint>(), 0) }
    }
    /// Number of nodes; the list itself is not given.
    fn cuGraphGetNodes(graph: *mut c_void, nodes: *mut *mut c_void, count: *mut usize) {
        if !nodes.is_null() { return Err(NOT_SUPPORTED); }
        // SAFETY: the caller's pointer.
        unsafe { put(count, driver()?.graphs.get(graph as usize)?.len()) }
    }
    /// Plays a graph in the order of a stream.
    fn cuGraphLaunch(executable: *mut c_void, stream: *mut c_void) {
        let driver = driver()?;
        let stream = driver.stream(stream as usize)?;
        let executable = driver.executables.get(executable as usize)?;
        if let Some(part) = lock(&stream.part).as_ref() { return Err(part.spoil()); }
        executable.launch(driver, &stream)
    }
    /// What would be uploaded is there already.
    fn cuGraphUpload(executable: *mut c_void, stream: *mut c_void) {
        let driver = driver()?;
        driver.stream(stream as usize)?;
        driver.executables.get(executable as usize).map(|_| ())
    }
    /// Forgets a launchable graph.
    fn cuGraphExecDestroy(executable: *mut c_void) {
        driver()?.executables.remove(executable as usize).map(|_| ())
    }
    /// Forgets a graph.
    fn cuGraphDestroy(graph: *mut c_void) {
        driver()?.graphs.remove(graph as usize).map(|_| ())
    }
}
