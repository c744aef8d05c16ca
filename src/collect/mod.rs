//! This host, or a file that tells of one, as a `Snapshot`. Readers say what they read and why not; only `topology`
//! concludes, and it concludes the same way from live and from recorded facts.

pub mod chips;
pub mod import;
pub mod topology;
