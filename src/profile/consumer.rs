//! Who relies on peer transfers, as data: `profiles/consumers.toml` as types. States what a consumer uses; what that means
//! for a host is judged elsewhere.

use crate::model::case::Rung;
use serde::Deserialize;
use std::sync::LazyLock;

/// A consumer of peer transfers: the part of an engine or library that breaks when they are wrong.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConsumerProfile {
    /// Id, as engine profiles name it.
    pub id: String,
    /// Name as people say it.
    pub name: String,
    /// The way its bytes go.
    pub path: ConsumerPath,
    /// What it relies on, lowest rung first.
    pub needs: Vec<Need>,
    /// What is left of its needs without peer access; for `path = "either"` only.
    #[serde(default)]
    pub without_peer_access: Vec<Need>,
    /// Groups in which engines do not use it.
    #[serde(default)]
    pub unused: Vec<Unused>,
    /// Where this was read.
    pub source: String,
}

/// The way a consumer's bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConsumerPath {
    /// Between the GPUs; it does not exist without peer access.
    Direct,
    /// Between the GPUs, and through the host without peer access.
    Either,
    /// Through the host.
    Host,
}

/// Mechanisms of a rung that a consumer relies on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Need {
    /// The rung.
    pub rung: Rung,
    /// Sets of mechanism ids, of which one set must be proven whole; a failure in any of them is a veto. `ipc-*` stands for
    /// all mechanisms of the rung with that beginning. Empty: the rung as a whole.
    #[serde(default)]
    pub one_of: Vec<Vec<String>>,
}

/// A kind of group in which engines do not use a consumer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Unused {
    /// Holds where NVLink does (true) or does not (false) join every pair; either, when not given.
    pub full_nvlink: Option<bool>,
    /// Holds for groups of more GPUs than this.
    #[serde(default)]
    pub above: usize,
    /// Holds for groups of other sizes than these; any size, when empty.
    #[serde(default)]
    pub sizes_other_than: Vec<usize>,
    /// Holds where a GPU of the group has another compute capability than these; any, when empty.
    #[serde(default)]
    pub compute_capability_other_than: Vec<(u32, u32)>,
    /// What to say.
    pub because: String,
}

/// A file of consumers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConsumerFile {
    /// Them.
    #[serde(rename = "consumer")]
    pub(super) consumers: Vec<ConsumerProfile>,
}

/// The consumers inside the binary. A test parses them; without it the list would be empty and nothing proven.
pub fn embedded_consumers() -> &'static [ConsumerProfile] {
    static CONSUMERS: LazyLock<Vec<ConsumerProfile>> =
        LazyLock::new(|| super::load::consumers_of_embedded().unwrap_or_default());
    &CONSUMERS
}

/// What is wrong with a consumer that parses.
pub(super) fn defect(consumer: &ConsumerProfile) -> Option<String> {
    let say = |what: &str| Some(format!("consumer '{}': {what}", consumer.id));
    if consumer.needs.is_empty() {
        return say("it needs nothing, so nothing could veto it");
    }
    if !consumer.needs.is_sorted_by_key(|n| n.rung) {
        return say("its needs are not in the order of the rungs");
    }
    if consumer.path == ConsumerPath::Either && consumer.without_peer_access.is_empty() {
        return say("path 'either' has to say what it needs without-peer-access");
    }
    if consumer.path != ConsumerPath::Either && !consumer.without_peer_access.is_empty() {
        return say("without-peer-access is for path 'either'");
    }
    let needs = consumer.needs.iter().chain(&consumer.without_peer_access);
    for need in needs {
        if matches!(need.rung, Rung::Alone | Rung::Advertised | Rung::Loaded) {
            return say("a need is of rungs 1 to 6: the GPUs alone and load veto every consumer");
        }
        if need.one_of.iter().any(Vec::is_empty) {
            return say("an empty set of mechanisms proves nothing");
        }
    }
    if consumer.source.trim().is_empty() {
        return say("it has no source");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_consumers_are_sound_and_keep_their_ids() {
        let ids: Vec<&str> = embedded_consumers().iter().map(|c| c.id.as_str()).collect();
        assert_eq!(
            ids,
            [
                "nccl-p2p",
                "custom-all-reduce",
                "flashinfer-pcie-ipc",
                "symmetric-memory",
                "llama-cpp-peer-copies",
                "single-process-python",
                "host-staged",
                "host-reduce"
            ]
        );
        for consumer in embedded_consumers() {
            assert_eq!(defect(consumer), None);
        }
    }

    #[test]
    fn engines_name_consumers_that_exist() {
        let profiles = super::super::Profiles::embedded().unwrap();
        let named = profiles.engines.iter().flat_map(|e| &e.backends);
        for id in named.filter_map(|b| b.consumer.as_deref()) {
            assert!(embedded_consumers().iter().any(|c| c.id == id), "{id}");
        }
        assert_eq!(profiles.consumers, embedded_consumers());
    }

    #[test]
    fn a_folder_adds_and_replaces_consumers_and_nonsense_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("consumers.toml");
        let own = |needs: &str| {
            format!(
                "[[consumer]]\nid = \"own\"\nname = \"ours\"\npath = \"direct\"\nneeds = [{needs}]\nsource = \"our code\"\n"
            )
        };
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            super::super::Profiles::with_folder(folder.path())
        };
        let good = own("{ rung = \"copied\", one-of = [[\"ce-push\"]] }");
        let profiles = load(&good).unwrap();
        assert_eq!(profiles.consumers.len(), embedded_consumers().len() + 1);
        let replaced = load(&good.replace("\"own\"", "\"nccl-p2p\"")).unwrap();
        assert_eq!(replaced.consumers.len(), embedded_consumers().len());
        assert_eq!(replaced.consumers[0].name, "ours");
        for (text, word) in [
            (own(""), "needs nothing"),
            (own("{ rung = \"loaded\" }"), "rungs 1 to 6"),
            (
                own("{ rung = \"touched\" }, { rung = \"copied\" }"),
                "order",
            ),
            (own("{ rung = \"copied\", one-of = [[]] }"), "empty set"),
            (good.replace("direct", "either"), "without-peer-access"),
            (good.replace("one-of", "all-of"), "all-of"),
        ] {
            let error = load(&text).unwrap_err().to_string();
            assert!(
                error.contains(word) && error.contains("consumers.toml"),
                "{error}"
            );
        }
    }
}
