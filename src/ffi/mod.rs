//! The only home of `unsafe`.

pub mod nvml_extra;
