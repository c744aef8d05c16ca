//! peerproof proves, for every ordered pair of GPUs of a host, that the bytes the owner holds are the bytes the writer
//! sent, says why where they are not, and prints what a serving engine should be launched with.
//!
//! The map of the house, in floor order; a floor imports only from floors below it (`tests/architecture.rs`).
//!
//! | floor | module | knows |
//! |---|---|---|
//! | 0 | [`model`] | the nouns; serde only |
//! | 1 | [`stats`] | median, spread, doubts; pure |
//! | 1 | [`profile`] | engines, models and classes of hosts as data |
//! | 1 | [`words`] | self-naming test data |
//! | 1 | [`bundle`] | archives for support, and what is scrubbed from them |
//! | 1 | [`child`] | worker processes |
//! | 1 | [`ffi`] | foreign functions; the only `unsafe` |
//! | 1 | [`gpu`] | safe use of the CUDA driver |
//! | 2 | [`collect`] | this host or a file as a snapshot |
//! | 2 | [`probe`] | from a snapshot to records |
//! | 3 | [`advise`] | findings and profiles to launch settings |
//! | 3 | [`compare`] | two reports against each other |
//! | 3 | [`diagnose`] | from records to findings and a verdict |
//! | 3 | [`render`] | from a report to bytes |
//! | 4 | [`cli`] | commands and exit codes |

pub mod advise;
pub mod bundle;
pub mod child;
pub mod cli;
pub mod collect;
pub mod compare;
pub mod diagnose;
pub mod ffi;
pub mod gpu;
pub mod model;
pub mod probe;
pub mod profile;
pub mod render;
pub mod stats;
pub mod words;
