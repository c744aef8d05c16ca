//! Archives for support: what is in one, how identifying values are replaced in it, and how one is read that may come from
//! anybody. Works on bytes in memory; knows nothing of files, hosts or reports.

pub mod archive;
pub mod manifest;
mod marks;
pub mod scrub;
