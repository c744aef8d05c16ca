//! Files that tell of a host: saved reports, hwloc XML 1 to 3, NCCL topology XML, pasted outputs and logs. A reader
//! repeats what its file says; what the hardware may have beyond that becomes a note, never a fact.

mod app_log;
mod detect;
mod error;
mod host_text;
mod hwloc_matrix;
mod hwloc_xml;
mod identity;
mod lspci;
mod lspci_tree;
mod mask;
mod merge;
mod nccl_xml;
mod nvbandwidth;
mod part;
mod paste;
mod report_json;
mod smi_query;
mod smi_table;
mod topo_table;
mod topo_text;
mod xml;

pub use detect::{MAX_INPUT_BYTES, is_own_text, read};
pub use error::ImportError;
pub use nvbandwidth::{NvbandwidthError, read_nvbandwidth};
pub use paste::{Pasted, read_all};
