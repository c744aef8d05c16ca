//! CUDA graphs: what a stream was about to do, captured once and replayed.

use super::{context::Context, stream::Stream};
use crate::ffi::driver::{DriverError, graph::GraphHandle};
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
        let context = stream.context();
        context.bind()?;
        let driver = context.driver();
        driver.capture_begin(stream.handle())?;
        let queued = work();
        // A capture is ended whatever came of it.
        let captured = driver.capture_end(stream.handle());
        queued?;
        let graph = Graph {
            context: context.clone(),
            handle: captured?,
        };
        driver.graph_upload(graph.handle, stream.handle())?;
        Ok(graph)
    }

    /// Queues one replay.
    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        self.context.bind()?;
        self.context
            .driver()
            .graph_launch(self.handle, stream.handle())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().graph_destroy(self.handle);
        }
    }
}
