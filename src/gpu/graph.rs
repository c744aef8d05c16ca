//! Recording what is put into a stream, and playing it again.

use super::{context::Context, stream::Stream};
use crate::ffi::driver::{DriverError, ExecutableHandle};
use std::sync::Arc;

/// A recorded piece of work, ready to be played on the stream that it was recorded from.
pub struct Graph {
    context: Arc<Context>,
    executable: ExecutableHandle,
}

impl Stream {
    /// Begins to record: what is put into this stream from now on does not run.
    pub fn begin_capture(&self) -> Result<(), DriverError> {
        self.context().bind()?;
        self.context().driver().capture_begin(self.handle())
    }

    /// Ends the recording. After an error the stream is usable again, and nothing was recorded.
    pub fn end_capture(&self) -> Result<Graph, DriverError> {
        self.context().bind()?;
        let driver = self.context().driver();
        let graph = driver.capture_end(self.handle())?;
        let executable = driver.graph_instantiate(graph);
        let _ = driver.graph_destroy(graph);
        Ok(Graph {
            context: self.context().clone(),
            executable: executable?,
        })
    }

    /// Plays a recording of this stream.
    pub fn play(&self, graph: &Graph) -> Result<(), DriverError> {
        self.context().bind()?;
        let driver = self.context().driver();
        driver.graph_launch(graph.executable, self.handle())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !super::hung() && self.context.bind().is_ok() {
            let _ = self.context.driver().executable_destroy(self.executable);
        }
    }
}
