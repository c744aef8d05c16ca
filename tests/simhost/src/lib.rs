//! Look-alikes of the CUDA driver library and of NVML for a simulated multi-GPU host.
pub mod ptx;
