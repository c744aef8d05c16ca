//! NCCL's all-reduce, run beside our own: as NCCL chooses, with P2P off as the control arm, and with P2P across the host bridge
//! where NCCL's choice is shared memory. Each arm is processes of its own with an environment of its own, and says by NCCL's own
//! log which transport it used. libnccl is opened at run time (`ffi::nccl`); NVLS settings are inherited and never made.
//!
//! The parent's half ([`run`], `group`, `place`, `transport`) never loads NCCL; the worker's half (`worker`, `vectors`) decides nothing.

mod arms;
mod group;
mod place;
mod run;
mod transport;
mod vectors;
mod wire;
pub mod worker;

pub use run::{Answer, Request, run};

/// Hidden subcommand of a worker.
pub const NCCL: &str = "nccl-worker";
/// NCCL as it chooses.
pub const DEFAULT: &str = arms::Arm::Default.id();
/// The control arm.
pub const P2P_OFF: &str = arms::Arm::P2pOff.id();
/// P2P at any distance.
pub const P2P_SYS: &str = arms::Arm::P2pSys.id();
