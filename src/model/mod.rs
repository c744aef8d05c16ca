//! The nouns of peerproof. This floor knows serde and nothing else of the world: no files, no clocks, no CUDA, no
//! colours. Snapshot and records are ground state and are saved; findings and recommendations are derived from them.

pub mod acs_line;
pub mod aer_line;
pub mod case;
pub mod comparison;
pub mod crossover;
pub mod fared;
pub mod finding;
pub mod group;
pub mod iommu_line;
pub mod ladder;
pub mod launch;
pub mod measurement;
pub mod pair;
pub mod pci;
pub mod reading;
pub mod reduction;
pub mod registry;
pub mod report;
pub mod snapshot;
pub mod ticket;
pub mod topology;
pub mod traffic;
pub mod xid;
