//! Transfers past the end of BAR1 are wrong and shorter ones right (decision row D28): the window through which a peer
//! reaches the memory is smaller than the memory. The length is as good as the offset; both count.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::{ASKED_PAIRS, Cause, PEERS_OFF, WantedCase, requalify},
};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::OrderedPair,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "bar1-too-small",
    title: "transfers past the end of BAR1 are wrong",
    judge,
    wants: Some(wants),
};

/// Size of the two cases around the edge.
const STEP: u64 = 1 << 20;

/// The owner's BAR1 where it is smaller than its memory.
fn edge(e: &Evidence, pair: OrderedPair) -> Option<u64> {
    let owner = e.snapshot.gpu(pair.destination)?;
    let (bar1, memory) = (*owner.bar1_bytes.known()?, *owner.memory_bytes.known()?);
    (bar1 < memory && bar1 >= STEP).then_some(bar1)
}

/// Just below the edge and just past it, where it was not seen on which side the pair fails.
fn wants(e: &Evidence) -> Vec<WantedCase> {
    let first = e.path_suspects().iter().copied().take(ASKED_PAIRS);
    first
        .filter_map(|pair| Some((pair, edge(e, pair)?)))
        .flat_map(|(pair, edge)| {
            [edge - STEP, edge].map(|offset| WantedCase {
                bytes: Some(STEP),
                offset,
                ..CAUSE.wants(pair, "ce-push")
            })
        })
        .collect()
}

/// Whether a direct transfer that ends past the end of BAR1 ran.
fn tried_past(e: &Evidence) -> bool {
    e.pairs().into_iter().any(|pair| {
        let mut cases = e.peer_cases(pair);
        cases.any(|record| e.ends_past_bar1(pair, record).is_some())
    })
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let held: Vec<(OrderedPair, u64)> = e
        .fabric_failures()
        .iter()
        .filter(|p| !e.copies_right(**p))
        .filter_map(|p| Some((*p, e.only_past_bar1(*p)?)))
        .collect();
    if held.is_empty() {
        let small = e.gpus().any(|(_, g)| {
            let sizes = g.bar1_bytes.known().zip(g.memory_bytes.known());
            sizes.is_some_and(|(bar1, memory)| bar1 < memory)
        });
        return vec![if !small {
            CAUSE.says(
                Judgement::NotApplicable,
                "no GPU with a BAR1 smaller than its memory is known",
            )
        } else if e.fabric_failures().is_empty() && !tried_past(e) {
            CAUSE.says(
                Judgement::NotApplicable,
                "BAR1 is smaller than the memory, and no transfer past its end was tried",
            )
        } else if e.fabric_failures().is_empty() {
            CAUSE.says(
                Judgement::Cleared,
                "BAR1 is smaller than the memory, and no direct transfer is wrong for it",
            )
        } else {
            CAUSE.says(
                Judgement::Cleared,
                "BAR1 is smaller than the memory, and the broken pairs fail inside it, too",
            )
        }];
    }
    let pairs: Vec<OrderedPair> = held.iter().map(|(pair, _)| *pair).collect();
    let mut finding = CAUSE.indicts(
        Severity::Critical,
        // Right below the edge and wrong past it, by the same mechanism of the same pair, is the test.
        Confidence::Established,
        format!(
            "transfers of {} are right inside the owner's BAR1 and wrong past its end",
            name_pairs(&pairs)
        ),
    );
    for (pair, edge) in held.iter().take(4) {
        let owner = e.snapshot.gpu(pair.destination);
        let memory = owner
            .and_then(|g| g.memory_bytes.known().copied())
            .unwrap_or_default();
        finding.evidence.push(format!(
            "{pair}: BAR1 {} MiB, memory {} MiB",
            edge >> 20,
            memory >> 20
        ));
    }
    let sizes = pairs
        .iter()
        .filter_map(|p| e.snapshot.gpu(p.destination)?.bar1_sizes.known())
        .max();
    if let Some(largest) = sizes.and_then(|mask| mask.checked_ilog2()) {
        finding.evidence.push(format!(
            "resource1_resize: BAR1 can take up to {} MiB",
            1_u64 << largest
        ));
    }
    finding.fix = vec![
        "BIOS: Re-Size BAR and Above 4G Decoding on, CSM off; then 'nvidia-smi -q -d MEMORY' must show a BAR1 at least as large as the memory (in a guest: on the host)".to_string(),
        format!("until then: {PEERS_OFF}"),
    ];
    finding.next_test = Some(requalify(&pairs, &["ce-push", "ce-pull"]));
    finding.pairs = pairs;
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair};
    use super::*;
    use crate::model::{case::Outcome, reading::Reading};

    #[test]
    fn only_a_transfer_past_the_end_clears_it() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        let judged = |host: &Host| host.judge(judge).remove(0).judgement;
        for gpu in &mut host.snapshot.gpus {
            gpu.memory_bytes = Reading::Known(96 << 30);
            gpu.bar1_bytes = Reading::Known(256 << 20);
        }
        assert_eq!(judged(&host), Judgement::NotApplicable);
        host.set(pair(0, 1), "ce-push", Outcome::Intact);
        let last = host.records.last_mut().unwrap();
        last.case.offset = 256 << 20;
        assert_eq!(judged(&host), Judgement::Cleared);
    }
}
