//! Preconditions of backends, switches and observations. A closed set: there are no expressions, and a new kind is a
//! change of code on purpose.

use crate::model::{case::Rung, reduction::Dtype, topology::FabricClass};
use serde::Deserialize;
use std::fmt;

/// A precondition.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// The group has one of these sizes.
    WorldSize(Vec<u32>),
    /// Groups larger than this need NVLink on every pair.
    FullNvlinkAbove(u32),
    /// Every pair has NVLink (true), or some pair is known to have none (false).
    FullNvlink(bool),
    /// The group's fabric is one of these.
    Fabric(Vec<FabricClass>),
    /// All members are known to hang on one NUMA node (true), or on several (false).
    OneNumaNode(bool),
    /// Every GPU has one of these compute capabilities, [major, minor].
    ComputeCapability(Vec<(u32, u32)>),
    /// Every GPU has at least this compute capability, [major, minor].
    ComputeAtLeast((u32, u32)),
    /// Activation type.
    Dtype(Vec<Dtype>),
    /// The largest decode payload is at least this many bytes.
    PayloadAtLeast(u64),
    /// The largest decode payload is at most this many bytes.
    PayloadAtMost(u64),
    /// Elements are a multiple of this.
    ElementsMultipleOf(u64),
    /// Each rank gets at least this many elements of the smallest step (one request).
    ElementsPerRankAtLeast(u64),
    /// Every ordered pair has peer access (true), or none has (false).
    PeerAccess(bool),
    /// Peers are not used (true): there is no peer access, or these settings switch it off.
    PeersUnused(bool),
    /// All cases of this rung were intact on every pair of the group.
    Proven(Rung),
    /// The engine captures CUDA graphs.
    CudaGraphs(bool),
    /// GeForce GPUs with PCIe peer access, which a patched driver gives.
    PatchedDriver(bool),
    /// Tensor parallelism only: no attention data parallelism, no expert parallelism.
    PlainTensorParallel(bool),
    /// The engine's version is in this range. An unknown version is not held against a backend, and is said.
    EngineVersion(VersionRange),
    /// Something only the operator can see: an engine option, a library version.
    EngineOption(String),
}

/// A range of versions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VersionRange {
    /// First version, itself included.
    pub from: Option<Version>,
    /// First version that is out again.
    pub before: Option<Version>,
}

impl VersionRange {
    /// Whether `version` is inside.
    pub fn holds(&self, version: &Version) -> bool {
        self.from.as_ref().is_none_or(|from| version >= from)
            && self.before.as_ref().is_none_or(|before| version < before)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.before) {
            (Some(from), Some(before)) => write!(f, "{from} or newer, before {before}"),
            (Some(from), None) => write!(f, "{from} or newer"),
            (None, Some(before)) => write!(f, "before {before}"),
            (None, None) => f.write_str("any version"),
        }
    }
}

/// A version: numbers separated by dots. A word behind them marks a pre-release ("rc1", "dev3"), which sorts before its
/// release; "post" and local parts ("+cu129") count as the release.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Version {
    numbers: Vec<u64>,
    /// False sorts first.
    released: bool,
}

/// Text that is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no version (allowed: numbers separated by dots, as 0.30.0 or 0.30.0rc1)")]
pub struct NotAVersion(String);

impl TryFrom<String> for Version {
    type Error = NotAVersion;

    fn try_from(text: String) -> Result<Self, NotAVersion> {
        text.parse()
    }
}

impl std::str::FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let wrong = || NotAVersion(text.to_string());
        let plain = text.trim();
        let plain = plain.strip_prefix('v').unwrap_or(plain);
        let (plain, _) = plain.split_once('+').unwrap_or((plain, ""));
        let end = plain
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(plain.len());
        let (numbers, word) = plain.split_at(end);
        let mut parts = Vec::new();
        for part in numbers.trim_end_matches('.').split('.') {
            parts.push(part.parse().map_err(|_| wrong())?);
        }
        // 1.0 and 1.0.0 are one version.
        while parts.len() > 1 && parts.last() == Some(&0) {
            parts.pop();
        }
        let word = word.trim_start_matches(['-', '_', '.']);
        let known = ["", "post", "rc", "a", "b", "dev", "alpha", "beta", "pre"];
        let letters = word.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
        if !known.contains(&letters) {
            return Err(wrong());
        }
        Ok(Version {
            numbers: parts,
            released: matches!(letters, "" | "post"),
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers: Vec<String> = self.numbers.iter().map(u64::to_string).collect();
        if numbers.len() == 1 {
            numbers.push("0".to_string());
        }
        write!(f, "{}", numbers.join("."))?;
        if self.released {
            Ok(())
        } else {
            f.write_str(" (pre-release)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_sort_as_releases_do() {
        assert!(version("0.5.12") < version("0.5.15"));
        assert!(version("0.30.0rc1") < version("0.30.0"));
        assert!(version("0.29.1") < version("0.30.0rc1"));
        assert_eq!(version("v0.30"), version("0.30.0.post1"));
        assert_eq!(version("0.30.0+cu129"), version("0.30"));
        assert!(version("0.9") < version("0.10"));
        for wrong in ["", "latest", "0..1", "1.x", "99999999999999999999999"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_range_holds_its_first_version_and_not_its_end() {
        let range = VersionRange {
            from: Some(version("0.29.0")),
            before: Some(version("0.30.0")),
        };
        assert!(range.holds(&version("0.29.0")) && range.holds(&version("0.29.9")));
        assert!(!range.holds(&version("0.30.0")) && !range.holds(&version("0.28")));
        assert_eq!(range.to_string(), "0.29 or newer, before 0.30");
    }
}
