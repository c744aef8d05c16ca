//! Stream-ordered pool memory loses what peers write or read although the pool was granted to them, on pairs whose plain
//! memory is right (catalogue entry F16). The path between the GPUs is not accused: the same engine crossed it.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{ASKED_PAIRS, Cause, NOW_AND_THEN, requalify, tells_apart},
};
use crate::model::{
    fared::Fared,
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};
use std::collections::BTreeSet;

pub(crate) const CAUSE: Cause = Cause {
    id: "pool-memory-broken",
    title: "memory of stream-ordered pools is wrong where plain memory is right",
    judge,
    // The same engine on plain memory, in one run.
    wants: Some(|e| {
        let untold = broken(e)
            .into_iter()
            .filter(|(p, id)| plain(e, *p, id).is_none());
        let first = untold.take(ASKED_PAIRS);
        first
            .filter_map(|(p, id)| Some(CAUSE.wants(p, twin(id)?)))
            .collect()
    }),
};

/// The mechanism that does on plain memory what a pool's does.
fn twin(id: &str) -> Option<&'static str> {
    ["ce-push", "ce-pull", "sm-load", "sm-store"]
        .into_iter()
        .find(|twin| id.strip_prefix("pool-") == Some(twin))
}

/// Whether the twin of a pool's mechanism is right on the pair; `None` where it did not run.
fn plain(e: &Evidence, pair: OrderedPair, id: &str) -> Option<bool> {
    let twin = twin(id)?;
    let ran = |f: &&Fared| f.mechanism == twin && f.answers.ran();
    let mut fared = e.pair_fared(pair).iter().filter(ran).peekable();
    fared.peek()?;
    Some(fared.all(|f| f.answers.all_right()))
}

/// Whether the twin's being right tells anything: it does not beside a failure of now and then.
fn tells(e: &Evidence, pair: OrderedPair, id: &str) -> bool {
    let fared = e.pair_fared(pair);
    let attempts_of = |id: Option<&str>| -> u64 {
        let own = fared.iter().filter(|f| Some(f.mechanism) == id);
        own.map(|f| f.attempts).sum()
    };
    let failing = fared.iter().filter(|f| f.mechanism == id);
    let wrong = failing.clone().map(|f| f.wrong_attempts).sum();
    failing.clone().any(|f| f.broken.is_some())
        || tells_apart(wrong, attempts_of(Some(id)), attempts_of(twin(id)))
}

/// Whether a mechanism works on pool memory. Ids say so.
pub(super) fn is_of_a_pool(mechanism: &str) -> bool {
    mechanism.starts_with("pool-")
}

/// Pairs and mechanisms whose cases on pool memory failed.
fn broken<'a>(e: &Evidence<'a>) -> BTreeSet<(OrderedPair, &'a str)> {
    let of_pairs = e
        .subjects()
        .filter_map(|(subject, fared)| Some((subject.pair()?, fared)));
    of_pairs
        .flat_map(|(pair, fared)| fared.iter().map(move |f| (pair, f)))
        .filter(|(_, f)| f.answers.failed() && is_of_a_pool(f.mechanism))
        .map(|(pair, f)| (pair, f.mechanism))
        .collect()
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let broken = broken(e);
    if broken.is_empty() {
        let mut fared = e.subjects().flat_map(|(_, fared)| fared);
        let tried = fared.any(|f| f.answers.ran() && is_of_a_pool(f.mechanism));
        return vec![match tried {
            true => CAUSE.says(
                Judgement::Cleared,
                "pool memory is right wherever it was tried",
            ),
            false => CAUSE.says(Judgement::NotApplicable, "no pool memory was tried"),
        }];
    }
    let pairs = |all: &BTreeSet<(OrderedPair, &str)>| -> Vec<OrderedPair> {
        let pairs: BTreeSet<OrderedPair> = all.iter().map(|(p, _)| *p).collect();
        pairs.into_iter().collect()
    };
    let (split, rest): (BTreeSet<_>, BTreeSet<_>) = broken
        .into_iter()
        .partition(|(p, id)| plain(e, *p, id) == Some(true));
    let open: BTreeSet<_> = rest
        .into_iter()
        .filter(|(p, id)| plain(e, *p, id).is_none())
        .collect();
    if split.is_empty() {
        return vec![match open.is_empty() {
            true => CAUSE.says(
                Judgement::Cleared,
                "pool memory is wrong only where plain memory is wrong by the same engine",
            ),
            false => CAUSE.says(
                Judgement::CannotTell,
                format!(
                    "pool memory is wrong on {}, and the same engine was not tried on plain memory there",
                    name_pairs(&pairs(&open))
                ),
            ),
        }];
    }
    let split_pairs = pairs(&split);
    let mut ids: Vec<&str> = split.iter().map(|(_, id)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let told = split.iter().any(|(pair, id)| tells(e, *pair, id));
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        if told {
            Confidence::Established
        } else {
            Confidence::Possible
        },
        format!(
            "on {} {} fails on memory from a stream-ordered pool, although the pool was granted to the peer, and the same engine is right on plain memory{}",
            name_pairs(&split_pairs),
            ids.join(", "),
            if told { "" } else { NOW_AND_THEN }
        ),
    );
    const SHOWN: usize = 4;
    finding.evidence = e
        .failures()
        .filter(|r| {
            let pair = r.case.subject.pair();
            pair.is_some_and(|p| split.contains(&(p, r.case.mechanism.as_str())))
        })
        .take(SHOWN)
        .map(|r| {
            format!(
                "{} {}: {}",
                r.case.subject,
                r.case.mechanism,
                r.outcome.word()
            )
        })
        .collect();
    finding.fix = vec![
        "allocate what peers touch with cudaMalloc (cuMemAlloc), not from a pool: for CuPy 'cupy.cuda.set_allocator(None)' before those buffers, for CUDA.jl and own code plain allocations".to_string(),
        "report it to NVIDIA with the driver version; test again after each driver update".to_string(),
    ];
    let both: Vec<&str> = ids
        .iter()
        .flat_map(|id| twin(id).into_iter().chain([*id]))
        .collect();
    finding.next_test = Some(requalify(&split_pairs, &both));
    finding.pairs = split_pairs;
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair};
    use super::*;
    use crate::model::case::{Outcome, WrongKind};

    fn judged(wrong: &[&str], untried: &[&str]) -> Finding {
        let mut host = Host::root_complex(2);
        host.all_intact();
        for mechanism in ["pool-ce-push", "pool-sm-store"] {
            host.set(pair(0, 1), mechanism, Outcome::Intact);
        }
        for mechanism in wrong {
            host.set_wrong(pair(0, 1), mechanism, WrongKind::Zeroed);
        }
        host.records
            .retain(|r| !untried.contains(&r.case.mechanism.as_str()));
        host.judge(judge).remove(0)
    }

    /// Two hosts on one page: stores that are wrong everywhere accuse no pool, though copies are right.
    #[test]
    fn a_pool_is_accused_only_where_the_same_engine_is_right_on_plain_memory() {
        let pool = judged(&["pool-sm-store"], &[]);
        assert_eq!(pool.judgement, Judgement::Indicted);
        assert!(pool.because.contains("pool-sm-store"), "{}", pool.because);
        let next = pool.next_test.unwrap();
        assert!(next.contains("sm-store,pool-sm-store"), "{next}");
        let stores = judged(&["pool-sm-store", "sm-store"], &[]);
        assert_eq!(stores.judgement, Judgement::Cleared);
        let untold = judged(&["pool-sm-store"], &["sm-store"]);
        assert_eq!(untold.judgement, Judgement::CannotTell);
        let both = judged(&["pool-sm-store", "sm-store", "pool-ce-push"], &[]);
        assert!(both.because.contains("pool-ce-push"), "{}", both.because);
        assert!(!both.because.contains("sm-store"), "{}", both.because);
    }

    #[test]
    fn one_wrong_attempt_in_many_establishes_nothing() {
        let seldom = |wrong: u32, ran: u32| {
            let mut host = Host::root_complex(2);
            host.climb_all();
            host.set_wrong(pair(0, 1), "pool-sm-load", WrongKind::Flipped);
            for record in &mut host.records {
                record.attempts_ran = ran;
                if let Outcome::Corrupt(c) = &mut record.outcome {
                    (c.wrong_attempts, c.attempts_ran) = (wrong, ran);
                }
            }
            host.judge(judge).remove(0)
        };
        let found = seldom(2, 60);
        assert_eq!(found.confidence, Confidence::Possible);
        assert!(found.because.contains("by luck"), "{}", found.because);
        assert_eq!(seldom(60, 60).confidence, Confidence::Established);
        // Half the attempts, and ten right ones beside them.
        assert_eq!(seldom(5, 10).confidence, Confidence::Established);
    }
}
