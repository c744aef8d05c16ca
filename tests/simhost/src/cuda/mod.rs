//! Look-alike of libcuda: exported functions in `api_*`, and what they stand on.
mod api_context;
mod api_device;
mod api_graph;
mod api_memory;
mod api_module;
mod api_pool;
mod api_stream;
mod api_vmm;
mod bytes;
pub(crate) mod codes;
pub(crate) mod context;
mod copy;
pub(crate) mod engine;
pub(crate) mod graph;
mod late;
pub(crate) mod memory;
mod pool;
mod shadow;
pub(crate) mod stuck;
pub(crate) mod timeline;
pub(crate) mod view;
mod view_access;
mod vmm;
mod weak;

pub(crate) use api_device::nvml_pci_id;
pub(crate) use context::put_text;

pub use api_context::*;
pub use api_device::*;
pub use api_graph::*;
pub use api_memory::*;
pub use api_module::*;
pub use api_pool::*;
pub use api_stream::*;
pub use api_vmm::*;
