//! Look-alikes of the CUDA driver library, of NVML and of NCCL for a simulated multi-GPU host, and the launcher that puts them
//! below an unmodified program.
//!
//! - [`scenario`]: the host as a TOML file states it, with its faults;
//! - [`topology`]: the PCI and NVLink tree of a scenario, path types, and the links a transfer crosses;
//! - [`tree`]: hwloc XML and the /sys, /proc and kernel-log files of a scenario;
//! - [`launcher`]: runs a program on a scenario;
//! - [`ptx`]: executes the kernels that the product ships;
//! - [`flows`]: what processes of one run tell each other of their transfers;
//! - `cuda`, `nvml`, `nccl`: the exported functions;
//! - `world`: the scenario of this process, and what the processes of one run share.
#![allow(non_snake_case, reason = "exported names are NVIDIA's")]

pub mod cuda;
pub mod flows;
pub mod launcher;
pub mod nccl;
pub mod nvml;
pub mod ptx;
pub mod scenario;
pub mod topology;
pub mod tree;
pub mod world;

/// GPUs that one scenario may have.
pub const MAX_GPUS: usize = 16;

/// Marks the library as a simulation; the answer is the factor by which wall-clock deadlines are to be multiplied.
#[unsafe(no_mangle)]
pub extern "C" fn peerproof_simulated() -> u32 {
    world::world().map_or(1, |w| w.scenario.deadline_factor.max(1))
}
