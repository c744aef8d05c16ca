//! The file in which vLLM and SGLang keep their verdict on peer access, written from proofs that are stronger than their
//! own test. It is read instead of a test, so that nothing may stand in it that was not tried on this host.

use super::Request;
use super::group::Group;
use super::request::AdviseError;
use crate::{
    diagnose::{Evidence, rung_reached},
    model::{case::Rung, pair::OrderedPair},
};

/// Why no file can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The group does not exist.
    #[error("{0}")]
    Group(#[from] AdviseError),
    /// A pair was neither proven nor seen to fail.
    #[error(
        "pair {pair} is proven up to {reached} only and did not fail: the file stands for a test across processes (rung 4), so qualify the group up to that rung first"
    )]
    Unproven {
        /// Which.
        pair: OrderedPair,
        /// Highest proven rung in words.
        reached: String,
    },
    /// The group must not serve at all.
    #[error("this group must not serve: {0}")]
    Unfit(String),
}

/// The rung that the engines' own test stands for: a handle opened and written by another process.
const STANDS_FOR: Rung = Rung::Shared;

/// Text of the cache file for the group of `request`: one flat object, a key `i->j` for every ordered pair of visible
/// devices and for each with itself, counted from 0 in the order of ranks.
///
/// # Errors
/// Pairs that were not tried far enough, and groups that do not exist or must not serve.
pub fn p2p_cache(evidence: &Evidence, request: &Request) -> Result<String, CacheError> {
    let group = Group::of(request, Some(evidence), false)?;
    if let Some(why) = group.unfit {
        return Err(CacheError::Unfit(why));
    }
    let failed = evidence.peer_failures();
    let mut lines = Vec::new();
    for (i, source) in group.gpus.iter().enumerate() {
        for (j, destination) in group.gpus.iter().enumerate() {
            let usable = match OrderedPair::new(source.0, destination.0) {
                None => true,
                Some(pair) => usable(evidence, pair, failed.contains(&pair))?,
            };
            lines.push(format!("    \"{i}->{j}\": {usable}"));
        }
    }
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

/// Both directions count: an engine maps a peer's memory and is mapped by it.
fn usable(e: &Evidence, pair: OrderedPair, failed: bool) -> Result<bool, CacheError> {
    let refused = |p: OrderedPair| {
        e.refused(p).is_some() || matches!(e.claim(p), crate::diagnose::PeerClaim::Refused(_))
    };
    let back_failed = e.peer_failures().contains(&pair.reversed());
    if failed || back_failed || refused(pair) || refused(pair.reversed()) {
        return Ok(false);
    }
    for one in [pair, pair.reversed()] {
        let reached = rung_reached(e, one);
        if reached.is_none_or(|rung| rung < STANDS_FOR) {
            return Err(CacheError::Unproven {
                pair: one,
                reached: reached.map_or("nothing".to_string(), |r| format!("rung {r}")),
            });
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        diagnose::sample::{Host, pair},
        model::case::{Outcome, Subject, WrongKind},
    };

    fn shared(host: &mut Host) {
        for p in OrderedPair::all(host.count()) {
            host.put(Subject::Pair(p), "shared", Rung::Shared, Outcome::Intact);
        }
    }

    fn ask(host: &Host) -> Result<String, CacheError> {
        let request = Request {
            tp: host.count(),
            ..Request::default()
        };
        host.judge(|e| p2p_cache(e, &request))
    }

    #[test]
    fn a_proven_group_is_written_with_every_key() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        shared(&mut host);
        assert_eq!(
            ask(&host).unwrap(),
            "{\n    \"0->0\": true,\n    \"0->1\": true,\n    \"1->0\": true,\n    \"1->1\": true\n}\n"
        );
    }

    #[test]
    fn a_broken_pair_is_false_both_ways() {
        let mut host = Host::root_complex(4);
        host.all_intact();
        shared(&mut host);
        host.set_wrong(pair(1, 2), "ce-push", WrongKind::Zeroed);
        let text = ask(&host).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 16);
        assert_eq!(value["1->2"], false);
        assert_eq!(value["2->1"], false);
        assert_eq!(value["0->3"], true);
    }

    #[test]
    fn what_was_not_tried_is_not_written() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        let error = ask(&host).unwrap_err().to_string();
        assert!(
            error.contains("pair 0->1 is proven up to rung 3"),
            "{error}"
        );
        let untried = Host::root_complex(2);
        assert!(ask(&untried).is_err());
        let mut refused = Host::root_complex(2);
        refused.claim_all("CNS");
        refused.refused();
        assert!(ask(&refused).unwrap().contains("\"0->1\": false"));
    }
}
