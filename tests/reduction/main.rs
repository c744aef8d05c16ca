//! Micro all-reduces on the simulated GPU: the committed kernels against the host's arithmetic (`kernels`, straight in the
//! PTX machine), and whole series through the driver's look-alike (`series`), with faults planted.

#![allow(missing_docs, clippy::unwrap_used)]

mod kernels;
mod machine;
mod series;
