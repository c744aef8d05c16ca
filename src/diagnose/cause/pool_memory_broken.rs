//! Stream-ordered pool memory loses what peers write or read although the pool was granted to them, on pairs whose plain
//! memory is right (catalogue entry F16). The path between the GPUs is not accused: the same engine crossed it.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{ASKED_PAIRS, Cause, requalify},
};
use crate::model::{
    case::Record,
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "pool-memory-broken",
    title: "memory of stream-ordered pools is wrong where plain memory is right",
    judge,
    // The same engine on plain memory, in one run.
    wants: Some(|e| {
        let unsplit = broken(e).into_iter().filter(|p| !e.copies_right(*p));
        let first = unsplit.take(ASKED_PAIRS);
        first
            .flat_map(|p| [CAUSE.wants(p, "ce-push"), CAUSE.wants(p, "ce-pull")])
            .collect()
    }),
};

/// A case on pool memory. Mechanism ids say so.
pub(super) fn is_of_a_pool(record: &Record) -> bool {
    record.case.mechanism.starts_with("pool-")
}

/// Pairs on which a case on pool memory failed.
fn broken(e: &Evidence) -> Vec<OrderedPair> {
    let failed = e.failures().filter(|r| is_of_a_pool(r));
    let mut pairs: Vec<OrderedPair> = failed.filter_map(|r| r.case.subject.pair()).collect();
    pairs.sort();
    pairs.dedup();
    pairs
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let broken = broken(e);
    if broken.is_empty() {
        let tried = e.records.iter().any(|r| is_of_a_pool(r) && r.outcome.ran());
        return vec![match tried {
            true => CAUSE.says(
                Judgement::Cleared,
                "pool memory is right wherever it was tried",
            ),
            false => CAUSE.says(Judgement::NotApplicable, "no pool memory was tried"),
        }];
    }
    let (split, open): (Vec<OrderedPair>, Vec<OrderedPair>) =
        broken.into_iter().partition(|p| e.copies_right(*p));
    if split.is_empty() {
        return vec![CAUSE.says(
            Judgement::CannotTell,
            format!(
                "pool memory is wrong on {}, but plain memory was not right there either, or not tried",
                name_pairs(&open)
            ),
        )];
    }
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        Confidence::Established,
        format!(
            "on {} copies of plain memory are right and those of memory from a stream-ordered pool are not, although the pool was granted to the peer",
            name_pairs(&split)
        ),
    );
    const SHOWN: usize = 4;
    finding.evidence = e
        .failures()
        .filter(|r| is_of_a_pool(r) && r.case.subject.pair().is_some_and(|p| split.contains(&p)))
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
    finding.next_test = Some(requalify(&split, &["ce-push", "pool-ce-push"]));
    finding.pairs = split;
    vec![finding]
}
