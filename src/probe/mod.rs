//! From a snapshot to records: which cases, in which workers, with which answers. The parent's half (plan, supervisor)
//! never touches CUDA; the worker's half (worker, seat, transfer, alone, selftest, bench) never decides what to test.

pub mod alone;
pub mod bench;
pub mod examine;
pub mod integrity;
pub mod mechanism;
pub mod plan;
pub mod seat;
pub mod selftest;
pub mod supervisor;
pub mod transfer;
pub mod wire;
pub mod worker;
