//! Stream capture and graphs. Drivers before CUDA 11.4 lack a part of it, so every call may answer that the function is not there.

use super::{Driver, DriverError, ExecutableHandle, GraphHandle, StreamHandle};

/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: calls that a capture forbids are forbidden to this thread alone. NCCL may call such
/// from threads of its own.
const THREAD_LOCAL: u32 = 1;

impl Driver {
    /// Begins to record what is put into `stream`.
    pub fn capture_begin(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let api = "cuStreamBeginCapture_v2";
        let begin = self.table.cuStreamBeginCapture_v2;
        let begin = begin.ok_or_else(|| self.lacks(api))?;
        // SAFETY: a stream handle made by `stream_create`.
        let code = unsafe { begin(stream.0, THREAD_LOCAL) };
        self.check(api, code)
    }

    /// Ends that; the stream is as before, whether a graph came of it or not.
    pub fn capture_end(&self, stream: StreamHandle) -> Result<GraphHandle, DriverError> {
        let api = "cuStreamEndCapture";
        let end = self.table.cuStreamEndCapture;
        let end = end.ok_or_else(|| self.lacks(api))?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream handle of ours, and a pointer to a live local.
        let code = unsafe { end(stream.0, &mut graph) };
        self.check(api, code).map(|()| GraphHandle(graph))
    }

    /// Makes a graph ready to launch. The graph itself may go afterwards.
    pub fn graph_instantiate(&self, graph: GraphHandle) -> Result<ExecutableHandle, DriverError> {
        let api = "cuGraphInstantiateWithFlags";
        let instantiate = self.table.cuGraphInstantiateWithFlags;
        let instantiate = instantiate.ok_or_else(|| self.lacks(api))?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: a handle made by `capture_end`, and a pointer to a live local.
        let code = unsafe { instantiate(&mut executable, graph.0, 0) };
        self.check(api, code).map(|()| ExecutableHandle(executable))
    }

    /// Plays it in the order of `stream`.
    pub fn graph_launch(
        &self,
        executable: ExecutableHandle,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let api = "cuGraphLaunch";
        let launch = self.table.cuGraphLaunch.ok_or_else(|| self.lacks(api))?;
        // SAFETY: handles of ours.
        let code = unsafe { launch(executable.0, stream.0) };
        self.check(api, code)
    }

    /// Forgets what a capture came to.
    pub fn graph_destroy(&self, graph: GraphHandle) -> Result<(), DriverError> {
        let api = "cuGraphDestroy";
        let destroy = self.table.cuGraphDestroy.ok_or_else(|| self.lacks(api))?;
        // SAFETY: a handle made by `capture_end`, not used after.
        let code = unsafe { destroy(graph.0) };
        self.check(api, code)
    }

    /// Forgets a graph that was ready to launch; the caller has waited for its last launch.
    pub fn executable_destroy(&self, executable: ExecutableHandle) -> Result<(), DriverError> {
        let api = "cuGraphExecDestroy";
        let destroy = self.table.cuGraphExecDestroy;
        let destroy = destroy.ok_or_else(|| self.lacks(api))?;
        // SAFETY: a handle made by `graph_instantiate`, not used after.
        let code = unsafe { destroy(executable.0) };
        self.check(api, code)
    }
}
