//! peerproof proves, for every ordered pair of GPUs of a host, that the bytes the owner holds are the bytes the writer
//! sent, says why where they are not, and prints what a serving engine should be launched with.
//!
//! The map of the house, in floor order; a floor imports only from floors below it (`tests/architecture.rs`).
//!
//! | floor | module | knows |
//! |---|---|---|
//! | 0 | [`model`] | the nouns; serde only |
//! | 1 | [`ffi`] | the only `unsafe` |
//! | 2 | [`collect`] | this host or a file, as a snapshot |

pub mod collect;
pub mod ffi;
pub mod model;
