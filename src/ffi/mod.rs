//! The only code of the product that may be `unsafe`: the CUDA driver's entry points, NCCL's, NVML calls that no wrapper
//! covers, and process calls. Knows C interfaces and nothing of pairs, cases or reports.
#![expect(
    unsafe_code,
    reason = "foreign functions; every block states why it is sound"
)]

pub mod driver;
pub mod nccl;
pub mod nvml_extra;
pub mod process;
pub mod socket;
