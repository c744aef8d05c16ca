//! Streams and events.
use super::codes::*;
use super::context::{Event, driver, export, put};
use super::engine::{Op, Stream, lock};
use super::graph;
use super::timeline::Work;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

/// Waits for an operation; then its context must be in health.
fn wait(op: &Op, gpu: usize) -> Result<(), Code> {
    let driver = driver()?;
    driver.engine.wait_done(op);
    driver.engine.end_of(op);
    driver.context_of(gpu).health()
}

fn recorded(handle: *mut c_void) -> Result<(Arc<Event>, Option<Arc<Op>>), Code> {
    let event = driver()?.events.get(handle as usize)?;
    if lock(&event.mark).is_some() {
        return Err(CAPTURED_EVENT);
    }
    let op = lock(&event.op).clone();
    Ok((event, op))
}

fn create_stream(out: *mut *mut c_void, flags: c_uint) -> Result<(), Code> {
    let driver = driver()?;
    let context = driver.current()?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let stream = Stream::start(
        &driver.engine,
        context.gpu,
        flags == 0,
        Arc::clone(&context.poison),
    );
    // SAFETY: the caller's pointer.
    unsafe { put(out, driver.streams.insert(stream) as *mut c_void) }
}

fn elapsed(ms: *mut f32, start: *mut c_void, end: *mut c_void) -> Result<(), Code> {
    let driver = driver()?;
    driver.current()?;
    let ((a, a_op), (b, b_op)) = (recorded(start)?, recorded(end)?);
    let (Some(a_op), Some(b_op), true) = (a_op, b_op, a.timed && b.timed) else {
        return Err(INVALID_HANDLE);
    };
    if !a_op.done() || !b_op.done() {
        return Err(NOT_READY);
    }
    // The later one first: then all flows up to it share their links.
    let b = driver.engine.end_of(&b_op).ok_or(NOT_READY)?;
    let a = driver.engine.end_of(&a_op).ok_or(NOT_READY)?;
    // SAFETY: the caller's pointer.
    unsafe { put(ms, ((b as f64 - a as f64) / 1e6) as f32) }
}

export! {
    /// A stream; flag 1: it does not order itself with the null stream.
    fn cuStreamCreate(out: *mut *mut c_void, flags: c_uint) {
        create_stream(out, flags)
    }
    /// A stream with a priority, which changes nothing here.
    fn cuStreamCreateWithPriority(out: *mut *mut c_void, flags: c_uint, _priority: c_int) {
        create_stream(out, flags)
    }
    /// Ends a stream once its work is done.
    fn cuStreamDestroy_v2(stream: *mut c_void) {
        let driver = driver()?;
        driver.streams.remove(stream as usize)?.close();
        Ok(())
    }
    /// Whether all work is done.
    fn cuStreamQuery(stream: *mut c_void) {
        let driver = driver()?;
        let stream = driver.stream(stream as usize)?;
        if let Some(part) = lock(&stream.part).as_ref() { return Err(part.spoil()); }
        match stream.last() {
            Some(op) if !driver.engine.wait_briefly(&op) => Err(NOT_READY),
            Some(op) => {
                driver.engine.end_of(&op);
                driver.context_of(stream.gpu).health()
            }
            None => Ok(()),
        }
    }
    /// Waits until all work is done.
    fn cuStreamSynchronize(stream: *mut c_void) {
        let stream = driver()?.stream(stream as usize)?;
        if let Some(part) = lock(&stream.part).as_ref() { return Err(part.spoil()); }
        stream.last().map_or(Ok(()), |op| wait(&op, stream.gpu))
    }
    /// Lets later work wait for an event; one never recorded holds nobody.
    fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) {
        let driver = driver()?;
        let stream = driver.stream(stream as usize)?;
        let mark = lock(&driver.events.get(event as usize)?.mark).clone();
        if let Some(mark) = mark { return graph::join(&stream, &mark); }
        if let Some(part) = lock(&stream.part).as_ref() { part.spoil(); return Err(CAPTURE_ISOLATION); }
        if let (_, Some(op)) = recorded(event)? { stream.hold_for(op); }
        Ok(())
    }
    /// Calls a function of the host once all work before it is done; what comes after waits for its return. It takes the
    /// time that it took, so that a delay put into a stream delays the stream.
    fn cuLaunchHostFunc(stream: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) {
        let driver = driver()?;
        let stream = driver.stream(stream as usize)?;
        let function = function.ok_or(INVALID_VALUE)?;
        if let Some(part) = lock(&stream.part).as_ref() { return Err(part.spoil()); }
        let data = data as usize;
        let call = move || {
            let begun = std::time::Instant::now();
            // SAFETY: the caller's function, with the caller's data, as the call asks.
            unsafe { function(data as *mut c_void) };
            Ok(Some(Work::fixed(begun.elapsed().as_nanos() as u64)))
        };
        stream.submit(&driver.engine, driver.order(&stream), None, false, Box::new(move |_| call()));
        Ok(())
    }
    /// Context of a stream.
    fn cuStreamGetCtx(stream: *mut c_void, context: *mut *mut c_void) {
        let stream = driver()?.stream(stream as usize)?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, super::context::Driver::context_handle(stream.gpu) as *mut c_void) }
    }
    /// An event; flag 2: it keeps no time.
    fn cuEventCreate(out: *mut *mut c_void, flags: c_uint) {
        let driver = driver()?;
        driver.current()?;
        let event = Arc::new(Event { timed: flags & 2 == 0, op: Mutex::default(), mark: Mutex::default() });
        // SAFETY: the caller's pointer.
        unsafe { put(out, driver.events.insert(event) as *mut c_void) }
    }
    /// Forgets an event.
    fn cuEventDestroy_v2(event: *mut c_void) {
        driver()?.events.remove(event as usize).map(|_| ())
    }
    /// Marks the present end of a stream.
    fn cuEventRecord(event: *mut c_void, stream: *mut c_void) {
        let driver = driver()?;
        let stream = driver.stream(stream as usize)?;
        let event = driver.events.get(event as usize)?;
        let mark = lock(&stream.part).as_ref().map(graph::Part::mark);
        let captured = mark.is_some();
        *lock(&event.mark) = mark;
        if captured { return Ok(()); }
        let op = stream.submit(&driver.engine, driver.order(&stream), Some(Work::fixed(0)), false, Box::new(|_| Ok(None)));
        *lock(&event.op) = Some(op);
        Ok(())
    }
    /// Whether the mark was passed.
    fn cuEventQuery(event: *mut c_void) {
        let driver = driver()?;
        driver.current()?.health()?;
        match recorded(event)?.1 {
            Some(op) if !op.done() => Err(NOT_READY),
            Some(op) => { driver.engine.end_of(&op); Ok(()) }
            None => Ok(()),
        }
    }
    /// Waits for the mark.
    fn cuEventSynchronize(event: *mut c_void) {
        let driver = driver()?;
        let gpu = driver.current()?.gpu;
        recorded(event)?.1.map_or(Ok(()), |op| wait(&op, gpu))
    }
    /// Modelled milliseconds between two marks.
    fn cuEventElapsedTime(ms: *mut f32, start: *mut c_void, end: *mut c_void) {
        elapsed(ms, start, end)
    }
    /// The same, newer name.
    fn cuEventElapsedTime_v2(ms: *mut f32, start: *mut c_void, end: *mut c_void) {
        elapsed(ms, start, end)
    }
}
