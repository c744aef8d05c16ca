//! How high a pair got, as far as the evidence holds it.

use super::evidence::{Evidence, PeerClaim};
use crate::model::{case::Rung, pair::OrderedPair};

/// The highest rung that the pair proved together with all rungs from 1 up to it that exist here. Rung 0 is a claim: it is
/// what a pair reached of which nothing is proven and NVML says OK, and it holds no other rung back. `None` when not even
/// that is known.
pub fn rung_reached(evidence: &Evidence, pair: OrderedPair) -> Option<Rung> {
    let claimed = || (evidence.claim(pair) == PeerClaim::Ok).then_some(Rung::Advertised);
    evidence.standing(pair).reached.or_else(claimed)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Host, pair, wrong};
    use super::*;
    use crate::model::{
        case::{Outcome, Record, Subject, WrongKind},
        fared::{Answers, Fared},
        ladder::RungState,
    };

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

    #[test]
    fn a_rung_counts_only_with_each_of_its_mechanisms() {
        let mut host = Host::root_complex(2);
        host.climb_all();
        let standing = |host: &Host| {
            host.judge(|e| {
                let s = e.standing(pair(0, 1));
                (s.reached, s.open, s.loaded == RungState::Intact)
            })
        };
        let whole = (Some(Rung::Reduced), None, true);
        assert_eq!(standing(&host), whole);
        let mut older = Host::root_complex(2);
        older.climb_all();
        older.without_reductions();
        let open = Some((Rung::Reduced, Vec::new()));
        assert_eq!(standing(&older), (Some(Rung::Resident), open, true));
        host.records.retain(|r| r.case.mechanism != "vmm-sm-load");
        let partial = Some((Rung::Shared, vec!["vmm-sm-load".to_string()]));
        assert_eq!(standing(&host), (Some(Rung::Touched), partial, true));
        // A mechanism that does not exist here is no hole.
        let reason = "fabric handles: no".to_string();
        host.set(pair(0, 1), "vmm-sm-load", Outcome::NotApplicable { reason });
        assert_eq!(standing(&host), whole);
    }

    #[test]
    fn a_soak_that_was_cut_leaves_no_rung_open() {
        let mut host = Host::root_complex(2);
        host.climb_all();
        let whole = host.judge(|e| e.standing(pair(0, 1)).reached);
        let mut more: Vec<_> = host.records.clone();
        for record in &mut more {
            record.case.soak = true;
            record.case.bytes = 64 << 10;
            record.outcome = Outcome::NotRun {
                reason: "interrupted".into(),
            };
        }
        let group = host.group();
        host.records.extend(more.clone());
        let standing = host.judge(|e| {
            let s = e.standing(pair(0, 1));
            (s.reached, s.open, s.loaded == RungState::Intact)
        });
        assert_eq!(standing, (whole, None, true));
        let open = host.judge(|e| {
            let consumers = crate::diagnose::consumers(e, &group);
            let unproven = consumers
                .iter()
                .filter(|c| c.sentence.contains("did not run"));
            unproven.count()
        });
        assert_eq!(open, 0);
        // The same cases of no soak are holes.
        let mut host = Host::root_complex(2);
        host.climb_all();
        more.iter_mut().for_each(|record| record.case.soak = false);
        host.records.extend(more);
        let standing = host.judge(|e| e.standing(pair(0, 1)).open.map(|(rung, _)| rung));
        assert_eq!(standing, Some(Rung::Staged));
    }

    #[test]
    fn wrong_data_seen_once_outranks_what_failed_before_and_after_it() {
        let mut host = Host::root_complex(2);
        host.climb_all();
        host.set(pair(0, 1), "ce-pull", Outcome::TimedOut { after_ms: 9 });
        host.set_wrong(pair(0, 1), "sm-load", WrongKind::Stale);
        host.set(pair(0, 1), "resident", Outcome::TimedOut { after_ms: 9 });
        let word = host.judge(|e| e.standing(pair(0, 1)).stopped_by.unwrap().outcome.word());
        assert_eq!(word, "stale");
    }

    /// The kinds of wrong, each with its own bit, and the ones that a path does not make.
    #[test]
    fn each_kind_of_wrong_is_told_from_the_others() {
        let all = WrongKind::ALL.map(|kind| (kind, Answers::of(&wrong(kind))));
        for (kind, own) in all {
            assert!(own.failed() && own.ran() && !own.intact(), "{kind:?}");
            let alike = all.iter().filter(|(_, other)| other.any_of(own));
            assert_eq!(alike.count(), 1, "{kind:?}");
            assert!(!own.failed_but_for(own) && own.failed_but_for(Answers::default()));
            let no_path = matches!(
                kind,
                WrongKind::Flipped | WrongKind::Shifted | WrongKind::Spilled | WrongKind::Misrouted
            );
            assert_eq!(own.path_symptom(), !no_path, "{kind:?}");
        }
        let refused = Outcome::Refused {
            api: String::new(),
            code: 217,
            name: String::new(),
        };
        let refused = Answers::of(&refused);
        assert!(refused.ran() && !refused.failed() && !refused.all_right());
        let hang = Answers::of(&Outcome::TimedOut { after_ms: 1 });
        assert!(hang.failed() && hang.path_symptom());
        let not_run = Answers::of(&Outcome::NotRun {
            reason: String::new(),
        });
        assert!(!not_run.ran() && !not_run.all_right());
    }

    #[test]
    fn the_longest_wrong_case_speaks_and_what_came_later_does_not_hide_it() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        let mut records: Vec<Record> = host.records.clone();
        records.retain(|r| r.case.subject == Subject::Pair(pair(0, 1)));
        records.retain(|r| r.case.mechanism == "ce-push");
        let one = records.remove(0);
        for (id, kind, units) in [
            (3, WrongKind::Dropped, 2),
            (4, WrongKind::Shifted, 900),
            (2, WrongKind::Dropped, 900),
            (1, WrongKind::Dropped, 4),
        ] {
            let mut next = one.clone();
            next.case.id = id;
            next.outcome = wrong(kind);
            if let Outcome::Corrupt(c) = &mut next.outcome {
                c.units = units;
            }
            records.push(next);
        }
        records.push(one);
        let mine: Vec<&Record> = records.iter().collect();
        let all = Fared::all(&mine);
        assert_eq!(all.len(), 1);
        let fared = &all[0];
        assert_eq!((fared.failures, fared.first_corrupt()), (4, Some(1)));
        assert_eq!(fared.failure().map(|r| r.case.id), Some(2));
        assert!(fared.answers.intact() && !fared.answers.all_right());
        assert!(fared.direct.failed() && !fared.through_host.failed());
    }
}
