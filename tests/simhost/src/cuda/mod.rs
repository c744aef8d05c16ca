//! Look-alike of libcuda: exported functions in `api_*`, and what they stand on.
mod api_context;
mod api_device;
mod api_memory;
mod api_module;
mod api_stream;
mod codes;
mod context;
mod copy;
mod engine;
mod memory;
mod shadow;
mod timeline;
mod view;
mod weak;

pub(crate) use api_device::nvml_pci_id;
pub(crate) use context::put_text;

pub use api_context::*;
pub use api_device::*;
pub use api_memory::*;
pub use api_module::*;
pub use api_stream::*;
