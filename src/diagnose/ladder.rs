//! How high a pair got.

use super::evidence::{Evidence, PeerClaim};
use crate::model::{
    case::{Outcome, Rung},
    pair::OrderedPair,
};

/// How the cases of one rung fared on a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RungState {
    /// All that ran were intact, at least one ran, none was left out that should have run.
    Intact,
    /// At least one counts against the host.
    Failed,
    /// The driver said a clean no to some of it, or nothing of it exists here.
    Absent,
    /// Not tried, or not all of it.
    Untested,
}

pub(crate) fn rung_state(evidence: &Evidence, pair: OrderedPair, rung: Rung) -> RungState {
    let mut seen = (0u32, 0u32, 0u32);
    let mut refused = false;
    for record in evidence.of_pair(pair).filter(|r| r.case.rung == rung) {
        match &record.outcome {
            outcome if outcome.is_failure() => return RungState::Failed,
            Outcome::Intact => seen.0 += 1,
            Outcome::Refused { .. } => refused = true,
            Outcome::NotApplicable { .. } => seen.1 += 1,
            _ => seen.2 += 1,
        }
    }
    match seen {
        (_, _, missing) if missing > 0 => RungState::Untested,
        // A clean no beside intact cases: the rung is not the pair's.
        _ if refused => RungState::Absent,
        (intact, _, _) if intact > 0 => RungState::Intact,
        (_, absent, _) if absent > 0 => RungState::Absent,
        _ => RungState::Untested,
    }
}

/// The highest rung of which all cases of the pair were intact, with all rungs from 1 up to it intact as well. Rung 0 is a
/// claim: it is what a pair reached of which nothing was tried and NVML says OK, and it holds no other rung back. `None`
/// when not even that is known.
pub fn rung_reached(evidence: &Evidence, pair: OrderedPair) -> Option<Rung> {
    let proven = Rung::LADDER
        .into_iter()
        .filter(|r| *r > Rung::Advertised)
        .take_while(|r| rung_state(evidence, pair, *r) == RungState::Intact)
        .last();
    proven.or_else(|| (evidence.claim(pair) == PeerClaim::Ok).then_some(Rung::Advertised))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Host, pair};
    use super::*;
    use crate::model::case::WrongKind;

    #[test]
    fn the_highest_rung_with_all_below_it_intact() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        assert_eq!(
            host.judge(|e| rung_reached(e, pair(0, 1))),
            Some(Rung::Touched)
        );
        host.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
        assert_eq!(
            host.judge(|e| rung_reached(e, pair(0, 1))),
            Some(Rung::Staged)
        );
        assert_eq!(
            host.judge(|e| rung_reached(e, pair(1, 0))),
            Some(Rung::Touched)
        );
        host.set_wrong(pair(0, 1), "bounce", WrongKind::Flipped);
        assert_eq!(
            host.judge(|e| rung_reached(e, pair(0, 1))),
            Some(Rung::Advertised)
        );
    }

    #[test]
    fn nothing_tried_reaches_the_claim_at_most() {
        let mut host = Host::root_complex(2);
        assert_eq!(
            host.judge(|e| rung_reached(e, pair(0, 1))),
            Some(Rung::Advertised)
        );
        host.claim_all("CNS");
        assert_eq!(host.judge(|e| rung_reached(e, pair(0, 1))), None);
    }

    #[test]
    fn a_case_that_did_not_run_holds_its_rung_back() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        host.set(
            pair(0, 1),
            "sm-load",
            Outcome::NotRun {
                reason: "budget".into(),
            },
        );
        assert_eq!(
            host.judge(|e| rung_reached(e, pair(0, 1))),
            Some(Rung::Copied)
        );
        host.set(
            pair(0, 1),
            "sm-load",
            Outcome::NotApplicable {
                reason: "atomics".into(),
            },
        );
        assert_eq!(
            host.judge(|e| rung_reached(e, pair(0, 1))),
            Some(Rung::Touched)
        );
    }
}
