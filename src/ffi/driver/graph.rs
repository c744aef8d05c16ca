//! Stream capture and graphs. Drivers from R470 on have all of it.

use super::{
    Driver, DriverError, StreamHandle,
    sys::{CUgraph, CUgraphExec},
};

/// A captured graph, ready to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphHandle(CUgraphExec);
// SAFETY: the driver's handles are process-wide values; launches of one graph are ordered by their callers.
unsafe impl Send for GraphHandle {}
// SAFETY: as above.
unsafe impl Sync for GraphHandle {}

/// What a stream was about to do, not yet made ready to launch.
#[derive(Debug)]
pub struct CapturedHandle(CUgraph);

/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do meanwhile does not spoil it.
const THREAD_LOCAL: u32 = 1;

impl Driver {
    /// From here on, work queued on `stream` is recorded instead.
    pub fn capture_begin(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let api = "cuStreamBeginCapture_v2";
        let begin = self.table.cuStreamBeginCapture_v2;
        let begin = begin.ok_or_else(|| self.lacks(api))?;
        // SAFETY: a stream of ours.
        let code = unsafe { begin(stream.0, THREAD_LOCAL) };
        self.check(api, code)
    }

    /// Ends it. While another stream of this thread still captures, nothing can be made of it (900).
    pub fn capture_end(&self, stream: StreamHandle) -> Result<CapturedHandle, DriverError> {
        let api = "cuStreamEndCapture";
        let end = self.table.cuStreamEndCapture;
        let end = end.ok_or_else(|| self.lacks(api))?;
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: a stream of ours and a pointer to a live local.
        let code = unsafe { end(stream.0, &mut graph) };
        self.check(api, code).map(|()| CapturedHandle(graph))
    }

    /// Makes it ready to launch.
    pub fn graph_instantiate(&self, captured: CapturedHandle) -> Result<GraphHandle, DriverError> {
        let api = "cuGraphInstantiateWithFlags";
        let mut made: CUgraphExec = std::ptr::null_mut();
        let code = match self.table.cuGraphInstantiateWithFlags {
            // SAFETY: a captured graph and a pointer to a live local.
            Some(make) => Ok(unsafe { make(&mut made, captured.0, 0) }),
            None => Err(self.lacks(api)),
        };
        if let Some(destroy) = self.table.cuGraphDestroy {
            // SAFETY: the graph that was captured; what was made of it is a copy.
            unsafe { destroy(captured.0) };
        }
        self.check(api, code?).map(|()| GraphHandle(made))
    }

    /// Brings it to the device, so that the first launch is like all others.
    pub fn graph_upload(
        &self,
        graph: GraphHandle,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let api = "cuGraphUpload";
        let upload = self.table.cuGraphUpload.ok_or_else(|| self.lacks(api))?;
        // SAFETY: handles of ours.
        let code = unsafe { upload(graph.0, stream.0) };
        self.check(api, code)
    }

    /// Queues it.
    pub fn graph_launch(
        &self,
        graph: GraphHandle,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let api = "cuGraphLaunch";
        let launch = self.table.cuGraphLaunch.ok_or_else(|| self.lacks(api))?;
        // SAFETY: handles of ours.
        let code = unsafe { launch(graph.0, stream.0) };
        self.check(api, code)
    }

    /// Destroys it.
    pub fn graph_destroy(&self, graph: GraphHandle) -> Result<(), DriverError> {
        let api = "cuGraphExecDestroy";
        let destroy = self.table.cuGraphExecDestroy;
        let destroy = destroy.ok_or_else(|| self.lacks(api))?;
        // SAFETY: a handle of ours, which its owner gives up.
        let code = unsafe { destroy(graph.0) };
        self.check(api, code)
    }
}
