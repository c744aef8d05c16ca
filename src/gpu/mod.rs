//! Safe use of the CUDA driver: devices, contexts, memory, streams, events, kernels, peer access, IPC.
//! Knows lifetimes and deadlines; refuses to know pairs, cases, findings and NVML. Never used by the parent process: a
//! driver call can block for minutes or take the process with it.

pub mod context;
pub mod device;
pub mod kernels;
pub mod memory;
pub mod stream;

pub use context::Context;
pub use device::{Device, System};
pub use memory::{DeviceMemory, PinnedMemory, Region};
pub use stream::{Event, Stream, WaitError};
