//! Safe use of the CUDA driver: devices, contexts, memory, streams, events, kernels, peer access, IPC.
//! Knows lifetimes and deadlines; refuses to know pairs, cases, findings and NVML. Never used by the parent process: a
//! driver call can block for minutes or take the process with it.

use std::sync::atomic::{AtomicBool, Ordering};

pub mod context;
pub mod device;
pub mod gate;
pub mod graph;
pub mod kernels;
pub mod memory;
pub mod nccl;
pub mod pool;
pub mod reduce;
pub mod resident;
pub mod stream;
pub mod vmm;

pub use context::Context;
pub use device::{Device, System};
pub use graph::Graph;
pub use memory::{DeviceMemory, PinnedMemory, Region};
pub use stream::{Event, Stream, WaitError};
pub use vmm::MappedMemory;

/// Set when work did not end at its limit. From then on nothing is freed or destroyed: those calls wait for the device,
/// and the process that holds it is about to be retired.
static HUNG: AtomicBool = AtomicBool::new(false);

fn hung() -> bool {
    HUNG.load(Ordering::Relaxed)
}
