//! What a scenario is: one TOML file that states a host, what its drivers claim of it, and what is wrong with it.
pub mod fault;
mod fault_text;
mod idle;
mod load;
pub mod pci;
pub mod shipped;
pub mod spec;

pub use fault::{Fault, Kind, Mechanism, Occurrence, Via};
pub use idle::never_strikes;
pub use pci::PciAddress;
pub use spec::{Error, Scenario};
