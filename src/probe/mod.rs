//! From a snapshot to records: which cases, in which workers, with which answers. The parent's half (plan, pool, ranks, supervisor,
//! suspects, claims) never touches CUDA; the worker's half (worker, rank, seat, transfer, alone, selftest, bench) never decides
//! what to test.

pub mod alone;
pub mod bench;
mod claims;
mod cut_short;
pub mod examine;
mod folder;
pub mod integrity;
pub mod loaded;
pub mod mechanism;
pub mod nccl;
pub mod plan;
pub mod pool;
pub mod rank;
mod ranks;
pub mod reduced;
pub mod reduction;
pub mod resident;
pub mod seat;
pub mod selftest;
pub mod supervisor;
mod suspects;
pub mod traffic;
pub mod transfer;
pub mod wire;
pub mod worker;
