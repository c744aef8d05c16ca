//! Files that tell of a host: saved reports, hwloc XML 1 to 3, NCCL topology XML, pasted nvidia-smi tables. A reader
//! repeats what its file says; what the hardware may have beyond that becomes a note, never a fact.

mod detect;
mod error;
mod hwloc_matrix;
mod hwloc_xml;
mod mask;
mod nccl_xml;
mod report_json;
mod topo_table;
mod topo_text;
mod xml;

pub use detect::{MAX_INPUT_BYTES, read};
pub use error::ImportError;
