//! The shipped binary, end to end, on simulated hosts: the launcher puts look-alike drivers below the unmodified program,
//! plants faults, and the program must say what was planted, blame nothing else, and end with the right exit code.
//!
//! Needs the launcher beside the binary: `cargo build --workspace` (or plain `cargo build`) makes it.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod alone;
mod bad_hosts;
mod faults;
mod files;
mod founding;
mod gates;
mod help;
mod host;
mod interposed;
mod isolation;
mod loaded;
mod measured;
mod mechanisms;
mod nccl;
mod ranks;
mod recommend;
mod reduced;
mod refusals;
mod resident;
mod scenarios;
mod selftest;
mod wedged;
mod writers_window;
