//! An interpreter for the PTX that the product ships.
//!
//! It executes the committed text of `kernels/*.ptx` itself (CUDA C++ compiled by NVRTC for `compute_70`), so that a test
//! on the simulated host tests the kernels that run on a real GPU. A module is decoded once; a warp of 32 lanes then
//! executes each decoded instruction over a register file laid out register by register.
//!
//! It knows PTX, warps, blocks and barriers. It refuses to know devices, peers, faults and time: those are what the
//! caller's [`Memory`] says. What it cannot execute it refuses when the text is parsed, with the line and the text.
//!
//! # Address spaces
//! Global addresses are the caller's and stay below [`WINDOWS`]. Generic addresses from there up are the interpreter's
//! own windows on shared memory, local memory and module variables (`.global`, `.const`).
//!
//! # Which blocks run together
//! [`resident_blocks`] says how many blocks of an entry can wait for each other. Blocks start in order of their linear
//! index. More blocks join early only when the running ones do nothing but poll, or go on for very long, so kernels that
//! do not wait run almost block by block, and kernels that do wait get all their resident blocks.
//!
//! # Exactness
//! Integer operations, conversions, and `add`, `sub`, `mul`, `fma`, `div.rn`, `rcp.rn`, `sqrt.rn` are exact. A NaN result
//! of an f32 operation is 0x7fffffff. Operations that PTX calls `approx` or `full` are computed more exactly than a GPU
//! would, so their last bits differ from any GPU's.

mod access;
mod alu;
mod code;
mod compare;
mod convert;
mod decode;
mod decode_memory;
mod decode_warp;
mod exec;
mod float;
mod grid;
mod lanes;
mod lex;
mod memory;
mod parse;
mod spaces;
mod types;
mod warp_ops;

pub use grid::{Launch, Stats, resident_blocks, run};
pub use memory::{
    Access, AtomicOp, FenceKind, Memory, Order, Scope, Trap, TrapKind, Width, host_atomic,
};
pub use parse::{Entry, Module, Param, ParseError};
pub use spaces::WINDOWS;
