//! From evidence and profiles to launch settings: which all-reduce backend, how large its workspace, which flags and
//! variables, each with its reason and its basis. Pure. Rules of engines are data (`profile`); what is here is how
//! evidence weighs on them: a failed pair switches every peer path off, and what was not proven is not built upon.

mod caveats;
mod choose;
mod group;
mod request;
mod sizing;
#[cfg(test)]
mod tests;

pub use choose::recommend;
pub use request::{AdviseError, Request};
pub use sizing::{pcie_ipc_workspace_bytes, vllm_largest_capture};
