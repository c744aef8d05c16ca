//! The list in front of every bundle: members with their hashes, what was replaced (how often, never what), what is missing
//! and why.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Version of this document's shape.
pub const BUNDLE_VERSION: u32 = 1;
/// Name of the list.
pub const MANIFEST: &str = "manifest.json";
/// Name of the report.
pub const REPORT: &str = "report.json";
/// Name of the journal of a run that did not end.
pub const JOURNAL: &str = "journal.jsonl";
/// Name of the host as it was read when the bundle was made: a journal without records.
pub const HOST: &str = "host.jsonl";

/// The list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this document's shape.
    pub bundle_version: u32,
    /// peerproof's version.
    pub tool_version: String,
    /// RFC 3339 UTC.
    pub created_at: String,
    /// What was replaced, by kind; `null` = nothing was (`--no-scrub`).
    pub scrubbed: Option<BTreeMap<String, Replaced>>,
    /// Members besides this list.
    pub members: Vec<Listed>,
    /// What is not in it, and why.
    pub left_out: Vec<LeftOut>,
}

/// How often values of one kind were replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Replaced {
    /// Different values.
    pub values: u64,
    /// Places.
    pub places: u64,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Name in the archive.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256, hex.
    pub sha256: String,
}

/// Something that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// SHA-256 in hex.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Listed {
    /// Of a member.
    pub fn of(name: &str, bytes: &[u8]) -> Listed {
        Listed {
            name: name.to_string(),
            bytes: bytes.len() as u64,
            sha256: sha256(bytes),
        }
    }
}
