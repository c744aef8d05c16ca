//! What links carry on which hosts, as data: `profiles/hosts/*.toml` and `profiles/links.toml` as types. A class states
//! shares of what a link carries at most; which link a pair has, and what was measured, is not its business.

use crate::model::topology::{FabricClass, PathType};
use serde::Deserialize;

/// A class of hosts and the rates that are usual there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostClass {
    /// Id: the name of its file.
    pub id: String,
    /// In words.
    pub name: String,
    /// When the sources were read, YYYY-MM-DD.
    pub checked: String,
    /// Parts of CPU model names, one of which must occur; `?` is any one character. Any CPU, when empty.
    #[serde(default)]
    pub cpu_model: Vec<String>,
    /// Fabric classes of the host; any, when empty.
    #[serde(default)]
    pub fabric: Vec<FabricClass>,
    /// Rates.
    #[serde(rename = "expect")]
    pub rates: Vec<ExpectedRate>,
}

/// Between what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Between {
    /// Two GPUs.
    Peers,
    /// A GPU and pinned memory of the host.
    Host,
}

/// Over which kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// NVLink.
    Nvlink,
    /// PCI Express.
    Pcie,
}

/// How many flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directions {
    /// One flow.
    OneWay,
    /// Both directions at once; shares are of twice what the link carries.
    BothDirections,
}

/// Who moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mover {
    /// A copy engine.
    CopyEngine,
    /// Loads and stores of multiprocessors.
    Multiprocessors,
}

/// What a link of this kind carries, as shares of what it carries at most: of an NVLink without its protocol, of PCI
/// Express after line coding.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExpectedRate {
    /// Between what.
    pub between: Between,
    /// Over what.
    pub over: LinkKind,
    /// Path types of PCI Express between peers; any, when empty.
    #[serde(default)]
    pub path: Vec<PathType>,
    /// Flows.
    pub flows: Vec<Directions>,
    /// Who moves the bytes.
    pub executors: Vec<Mover>,
    /// Smallest copies of which this is said, bytes.
    pub from_bytes: u64,
    /// Usual share.
    pub typical: f64,
    /// Share below which a warning is due.
    pub warn_below: f64,
    /// Share below which it is a failure.
    pub fail_below: f64,
    /// Where this was read.
    pub source: String,
}

/// What one NVLink of a version carries.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NvlinkRate {
    /// NVLink version.
    pub version: u32,
    /// GB/s in one direction.
    pub gb_per_s: f64,
    /// Where this was read.
    pub source: String,
}

/// A file of link rates.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkFile {
    /// NVLink versions.
    pub(super) nvlink: Vec<NvlinkRate>,
}

/// What is asked about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// CPU model of the host, if known.
    pub cpu_model: Option<&'a str>,
    /// Fabric class of the host.
    pub fabric: FabricClass,
    /// Between what.
    pub between: Between,
    /// Over what.
    pub over: LinkKind,
    /// Path type, if known.
    pub path: Option<PathType>,
    /// Flows.
    pub flows: Directions,
    /// Who moves the bytes.
    pub executor: Mover,
    /// Bytes of a copy.
    pub bytes: u64,
}

impl HostClass {
    /// Conditions that it has: a class with more of them knows a host better.
    fn narrowness(&self) -> usize {
        usize::from(!self.cpu_model.is_empty()) + usize::from(!self.fabric.is_empty())
    }

    fn holds(&self, asked: &Asked) -> bool {
        let cpu = || {
            let name = asked.cpu_model.unwrap_or_default();
            self.cpu_model.iter().any(|part| contains(name, part))
        };
        (self.cpu_model.is_empty() || cpu())
            && (self.fabric.is_empty() || self.fabric.contains(&asked.fabric))
    }
}

impl ExpectedRate {
    fn holds(&self, asked: &Asked) -> bool {
        self.between == asked.between
            && self.over == asked.over
            && (self.path.is_empty() || asked.path.is_some_and(|path| self.path.contains(&path)))
            && self.flows.contains(&asked.flows)
            && self.executors.contains(&asked.executor)
            && asked.bytes >= self.from_bytes
    }
}

/// The rate that is usual, of the narrowest class that says anything of it.
pub fn expected<'a>(
    classes: &'a [HostClass],
    asked: &Asked,
) -> Option<(&'a HostClass, &'a ExpectedRate)> {
    let mut fitting: Vec<&HostClass> = classes.iter().filter(|c| c.holds(asked)).collect();
    fitting.sort_by_key(|class| std::cmp::Reverse(class.narrowness()));
    fitting
        .into_iter()
        .find_map(|class| Some((class, class.rates.iter().find(|rate| rate.holds(asked))?)))
}

/// Whether `part` occurs in `name`, where `?` in it is any one character.
fn contains(name: &str, part: &str) -> bool {
    let (name, part): (Vec<char>, Vec<char>) = (name.chars().collect(), part.chars().collect());
    !part.is_empty()
        && name.windows(part.len()).any(|window| {
            let mut both = window.iter().zip(&part);
            both.all(|(is, should)| *should == '?' || is == should)
        })
}

/// What is wrong with a rate that parses.
pub(super) fn defect(rate: &ExpectedRate) -> Option<String> {
    let shares = [rate.fail_below, rate.warn_below, rate.typical];
    let sound = shares.iter().all(|share| *share > 0.0 && *share <= 1.0);
    match () {
        () if !sound || !shares.is_sorted() => Some(format!(
            "shares {} {} {} (allowed: above 0, up to 1, fail-below <= warn-below <= typical)",
            rate.fail_below, rate.warn_below, rate.typical
        )),
        () if rate.flows.is_empty() => {
            Some("flows (allowed: one or more of one-way, both-directions)".to_string())
        }
        () if rate.executors.is_empty() => {
            Some("executors (allowed: one or more of copy-engine, multiprocessors)".to_string())
        }
        () if !rate.path.is_empty()
            && (rate.over, rate.between) != (LinkKind::Pcie, Between::Peers) =>
        {
            Some("path (allowed: only between peers over pcie)".to_string())
        }
        () if rate.source.trim().is_empty() => Some("a rate has no source".to_string()),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profiles;

    fn asked(cpu: Option<&str>, path: PathType) -> Asked<'_> {
        Asked {
            cpu_model: cpu,
            fabric: FabricClass::RootComplexCrossSocket,
            between: Between::Peers,
            over: LinkKind::Pcie,
            path: Some(path),
            flows: Directions::OneWay,
            executor: Mover::CopyEngine,
            bytes: 64 << 20,
        }
    }

    #[test]
    fn the_narrowest_class_that_knows_speaks() {
        let classes = Profiles::embedded().unwrap().hosts;
        let of = |asked: &Asked| expected(&classes, asked).map(|(class, _)| class.id.clone());
        let turin = Some("AMD EPYC 9575F 64-Core Processor");
        let genoa = Some("AMD EPYC 9374F 32-Core Processor");
        assert_eq!(
            of(&asked(turin, PathType::Sys)).as_deref(),
            Some("epyc-turin")
        );
        assert_eq!(
            of(&asked(genoa, PathType::Sys)).as_deref(),
            Some("epyc-genoa")
        );
        assert_eq!(of(&asked(None, PathType::Sys)).as_deref(), Some("pcie"));
        assert_eq!(of(&asked(turin, PathType::Pix)).as_deref(), Some("pcie"));
        let small = Asked {
            bytes: 4096,
            ..asked(turin, PathType::Sys)
        };
        assert_eq!(of(&small), None, "size is part of an expectation");
        let unknown = Asked {
            path: None,
            ..asked(turin, PathType::Sys)
        };
        assert_eq!(of(&unknown), None, "an unknown path promises nothing");
    }

    #[test]
    fn question_marks_stand_for_one_character() {
        assert!(contains("AMD EPYC 9374F", "EPYC 9??4"));
        assert!(!contains("AMD EPYC 9575F", "EPYC 9??4"));
        assert!(!contains("EPYC 9", "EPYC 9??4"));
        assert!(!contains("anything", ""));
    }
}
