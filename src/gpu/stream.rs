//! Streams, events and waiting under a deadline. Nothing here blocks inside the driver: a hung copy must leave this
//! process able to say so.

use super::{context::Context, memory::Region};
use crate::ffi::driver::{
    Address, Argument, DriverError, EventHandle, FunctionHandle, StreamHandle,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Why waiting ended badly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// Not done at the deadline.
    #[error("not finished after {0:?}")]
    TimedOut(Duration),
    /// The driver answered an error.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A stream of one context: a non-blocking one of our own, or one of its default streams.
pub struct Stream {
    context: Arc<Context>,
    handle: StreamHandle,
    /// Made here, and so destroyed here.
    own: bool,
}

impl Stream {
    /// Makes one in `context`.
    pub fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        context.bind()?;
        Ok(Stream {
            context: context.clone(),
            handle: context.driver().stream_create()?,
            own: true,
        })
    }

    /// The legacy null stream of `context`. Only for measuring what it costs: it orders itself with whatever else the
    /// context does, and a copy between two devices with both of them.
    pub fn legacy_null(context: &Arc<Context>) -> Self {
        Stream {
            context: context.clone(),
            handle: StreamHandle::LEGACY,
            own: false,
        }
    }

    /// The default stream that `context` keeps for each thread. Every call is to come from the same one.
    pub fn per_thread(context: &Arc<Context>) -> Self {
        Stream {
            context: context.clone(),
            handle: StreamHandle::PER_THREAD,
            own: false,
        }
    }

    pub(super) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Queues a copy of `from` to `to`, of equal length. Between contexts with peer access the engine of this stream's
    /// context carries it: on the source's side that is a push, on the destination's a pull.
    pub fn copy(&self, to: Region, from: Region) -> Result<(), DriverError> {
        self.context.bind()?;
        self.context.driver().copy(
            to.address(),
            from.address(),
            from.bytes().min(to.bytes()),
            self.handle,
        )
    }

    /// Queues a copy between the memories of two contexts, naming both: direct with peer access, staged by the driver
    /// without.
    pub fn copy_peer(
        &self,
        to: (Region, &Context),
        from: (Region, &Context),
    ) -> Result<(), DriverError> {
        self.context.bind()?;
        let bytes = from.0.bytes().min(to.0.bytes());
        self.context.driver().copy_peer(
            (to.0.address(), to.1.handle()),
            (from.0.address(), from.1.handle()),
            bytes,
            self.handle,
        )
    }

    /// Queues a fill with one byte.
    pub fn set_bytes(&self, to: Region, value: u8) -> Result<(), DriverError> {
        self.context.bind()?;
        self.context
            .driver()
            .set_bytes(to.address(), value, to.bytes(), self.handle)
    }

    /// Queues a kernel. Only `gpu::kernels` calls this.
    pub(super) fn launch(
        &self,
        function: FunctionHandle,
        grid: u32,
        threads: u32,
        arguments: &[Argument],
    ) -> Result<(), DriverError> {
        self.context.bind()?;
        self.context
            .driver()
            .launch(function, grid, threads, arguments, self.handle)
    }

    /// Records `event` after what is queued.
    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        self.context.bind()?;
        self.context
            .driver()
            .event_record(event.handle, self.handle)
    }

    /// Makes later work wait for `event`, which may belong to another context.
    pub fn wait_event(&self, event: &Event) -> Result<(), DriverError> {
        self.context.bind()?;
        self.context.driver().stream_wait(self.handle, event.handle)
    }

    /// Whether all queued work is done.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        self.context.bind()?;
        self.context.driver().stream_done(self.handle)
    }

    /// Waits until all queued work is done, polling: first busily (a small copy takes microseconds), then with sleeps.
    pub fn wait(&self, limit: Duration) -> Result<(), WaitError> {
        let start = Instant::now();
        loop {
            if self.is_done()? {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited > limit {
                super::HUNG.store(true, std::sync::atomic::Ordering::Relaxed);
                return Err(WaitError::TimedOut(limit));
            }
            match waited.as_micros() {
                0..=200 => std::hint::spin_loop(),
                201..=2000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.own && !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().stream_destroy(self.handle);
        }
    }
}

/// An event with timing.
pub struct Event {
    context: Arc<Context>,
    handle: EventHandle,
}

impl Event {
    /// Makes one in `context`.
    pub fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        context.bind()?;
        Ok(Event {
            context: context.clone(),
            handle: context.driver().event_create()?,
        })
    }

    /// Milliseconds from `self` to `later`; both must have passed.
    pub fn elapsed_ms(&self, later: &Event) -> Result<f64, DriverError> {
        self.context.bind()?;
        self.context
            .driver()
            .event_elapsed_ms(self.handle, later.handle)
            .map(f64::from)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().event_destroy(self.handle);
        }
    }
}

/// An address as an argument of a kernel.
pub(super) fn pointer(address: Address) -> Argument {
    Argument::U64(address.raw())
}
