//! peerproof proves, for every ordered pair of GPUs of a host, that the bytes the owner holds are the bytes the writer
//! sent, says why where they are not, and prints what a serving engine should be launched with.
//!
//! The map of the house, in floor order; a floor imports only from floors below it (`tests/architecture.rs`).
//!
//! | floor | module | knows |
//! |---|---|---|
//! | 0 | [`model`] | the nouns; serde only |
//! | 1 | [`stats`] | order statistics of samples and the doubts they raise |
//! | 1 | [`profile`] | engines and models as data |
//! | 3 | [`diagnose`] | records to findings, consumers, coverage, verdict |
//! | 3 | [`advise`] | findings and profiles to launch settings |

pub mod advise;
pub mod diagnose;
pub mod model;
pub mod profile;
pub mod stats;
