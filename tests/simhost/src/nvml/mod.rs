//! Look-alike of libnvidia-ml. It answers from the scenario and from the page that the processes of a run share; it
//! touches no CUDA state, as NVML does not.
mod device;
mod link;
mod system;

pub use device::*;
pub use link::*;
pub use system::*;
