//! CUDA graphs: what a stream was about to do, captured once and replayed.

use super::{context::Context, stream::Stream};
use crate::ffi::driver::{
    DriverError,
    graph::{CapturedHandle, GraphHandle},
};
use std::sync::Arc;

/// A captured graph, destroyed on drop.
pub struct Graph {
    context: Arc<Context>,
    handle: GraphHandle,
}

impl Graph {
    /// Captures what `work` queues on `stream`, and brings it to the device. `work` may queue kernels and copies on that
    /// stream and nothing else.
    pub fn capture<E: From<DriverError>>(
        stream: &Stream,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        Graph::begin(stream)?;
        let queued = work();
        // A capture is ended whatever came of it.
        let captured = Graph::end(stream);
        queued?;
        Ok(captured?.ready(stream)?)
    }

    /// Begins a capture, where several streams capture at the same time. Must be ended, whatever happens.
    pub fn begin(stream: &Stream) -> Result<(), DriverError> {
        stream.context().bind()?;
        stream.context().driver().capture_begin(stream.handle())
    }

    /// Ends it. What was recorded is made ready when every capture of this thread has ended: before, the driver refuses.
    pub fn end(stream: &Stream) -> Result<Captured, DriverError> {
        stream.context().bind()?;
        let handle = stream.context().driver().capture_end(stream.handle())?;
        Ok(Captured(handle))
    }

    /// Queues one replay.
    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        self.context.bind()?;
        self.context
            .driver()
            .graph_launch(self.handle, stream.handle())
    }
}

/// What a stream was about to do.
pub struct Captured(CapturedHandle);

impl Captured {
    /// Makes it ready to launch and brings it to the device of `stream`, on which it was captured.
    pub fn ready(self, stream: &Stream) -> Result<Graph, DriverError> {
        let context = stream.context();
        context.bind()?;
        let driver = context.driver();
        let graph = Graph {
            handle: driver.graph_instantiate(self.0)?,
            context: context.clone(),
        };
        driver.graph_upload(graph.handle, stream.handle())?;
        Ok(graph)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().graph_destroy(self.handle);
        }
    }
}
