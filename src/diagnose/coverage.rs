//! What was planned, ran, and did not; and the smallest fault rate that would have been seen.

use super::evidence::Evidence;
use crate::model::{
    case::{Outcome, Rung, Subject},
    pair::OrderedPair,
    report::{Coverage, Gap, Sensitivity},
};
use std::collections::BTreeMap;

/// Coverage of the records; `left_out` names what the operator or this version left out.
///
/// A fault that strikes an attempt with probability p stays unseen in n attempts with (1 - p)^n; set to 5% this gives
/// p = 1 - 0.05^(1/n). The figure is that of the pair and mechanism with the fewest judged attempts;
/// a single GPU's few large attempts say nothing of a rate, and attempts under load answer another question.
pub fn coverage(evidence: &Evidence, left_out: &[String]) -> Coverage {
    let not_applicable = counted(evidence.without_answer().filter_map(|r| match &r.outcome {
        Outcome::NotApplicable { reason } => Some(reason.as_str()),
        _ => None,
    }));
    let not_run = counted(evidence.without_answer().filter_map(|r| match &r.outcome {
        Outcome::NotRun { reason } => Some(reason.as_str()),
        _ => None,
    }));
    let without: u32 = not_applicable.values().chain(not_run.values()).sum();
    // A claim is read, not tried: it sees no fault.
    let tried = evidence.by_mechanism().into_iter();
    let tried = tried.filter(|((rung, _), _)| *rung != Rung::Advertised);
    let attempts: BTreeMap<(Rung, &str), Vec<(Subject, u64)>> = tried
        .map(|(kind, fared)| {
            let of_several = fared
                .into_iter()
                .filter(|(subject, _)| !matches!(subject, Subject::Gpu(_)));
            let own = of_several.map(|(subject, fared)| (subject, fared.attempts));
            (kind, own.filter(|(_, attempts)| *attempts > 0).collect())
        })
        .collect();
    let fewest = attempts
        .iter()
        .filter(|((rung, _), _)| *rung != Rung::Loaded)
        .flat_map(|(_, subjects)| subjects.iter().map(|(_, attempts)| *attempts))
        .min();
    let gaps = |reasons: BTreeMap<&str, u32>| {
        reasons
            .into_iter()
            .map(|(reason, cases)| Gap {
                reason: reason.to_string(),
                cases,
            })
            .collect()
    };
    Coverage {
        planned: evidence.records.len() as u32,
        ran: evidence.records.len() as u32 - without,
        not_applicable: gaps(not_applicable),
        not_run: gaps(not_run),
        left_out: left_out.to_vec(),
        budget: None,
        seen_fault_rate: fewest.map(seen_with),
        sensitivity: attempts
            .into_iter()
            .flat_map(|((rung, mechanism), subjects)| sensitivity(rung, mechanism, subjects))
            .collect(),
    }
}

/// How often each reason is given. The same one comes many times in a row.
fn counted<'a>(reasons: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u32> {
    let mut all = BTreeMap::new();
    let mut reasons = reasons.peekable();
    while let Some(reason) = reasons.next() {
        let mut times = 1;
        while reasons.next_if_eq(&reason).is_some() {
            times += 1;
        }
        *all.entry(reason).or_default() += times;
    }
    all
}

/// The smallest fault rate that `attempts` would have shown with 95%.
fn seen_with(attempts: u64) -> f64 {
    1.0 - 0.05f64.powf(1.0 / attempts as f64)
}

/// Pairs of one mechanism with the same number of attempts together, most attempts first; then groups of GPUs, each by
/// itself.
fn sensitivity(rung: Rung, mechanism: &str, tried: Vec<(Subject, u64)>) -> Vec<Sensitivity> {
    let mut groups: BTreeMap<u64, Vec<OrderedPair>> = BTreeMap::new();
    let mut together = Vec::new();
    for (subject, attempts) in tried {
        match subject.pair() {
            Some(pair) => groups.entry(attempts).or_default().push(pair),
            None => together.push(Sensitivity {
                mechanism: mechanism.to_string(),
                rung,
                attempts,
                seen_fault_rate: seen_with(attempts),
                pairs: 0,
                only: vec![subject.to_string()],
            }),
        }
    }
    let largest = groups.values().map(Vec::len).max().unwrap_or(0);
    let mut named = false;
    let groups = groups.into_iter().rev().map(|(attempts, pairs)| {
        // Naming two hundred pairs says less than naming the few others.
        let rest = !named && pairs.len() == largest;
        named |= rest;
        Sensitivity {
            mechanism: mechanism.to_string(),
            rung,
            attempts,
            seen_fault_rate: seen_with(attempts),
            pairs: pairs.len() as u32,
            only: match rest {
                true => Vec::new(),
                false => pairs.iter().map(OrderedPair::to_string).collect(),
            },
        }
    });
    groups.chain(together).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Host, pair};
    use super::*;

    fn covered(host: &Host, left_out: &[String]) -> Coverage {
        host.judge(|e| coverage(e, left_out))
    }

    #[test]
    fn gaps_are_counted_by_reason_and_what_does_not_exist_is_no_gap() {
        let mut host = Host::root_complex(2);
        host.all_intact();
        for mechanism in ["sm-store", "sm-load"] {
            let reason = "unsafe after rung 2".to_string();
            host.set(pair(0, 1), mechanism, Outcome::NotRun { reason });
        }
        let reason = "compute capability 6.1".to_string();
        host.set(pair(1, 0), "sm-load", Outcome::NotApplicable { reason });
        let coverage = covered(&host, &["GPU2".to_string()]);
        assert_eq!((coverage.planned, coverage.ran), (12, 9));
        assert_eq!(coverage.not_run.len(), 1);
        assert_eq!(coverage.not_run[0].cases, 2);
        assert_eq!(coverage.not_applicable[0].cases, 1);
        assert_eq!(coverage.left_out, ["GPU2"]);
    }

    #[test]
    fn the_worst_pair_sets_the_fault_rate() {
        let mut host = Host::root_complex(2);
        assert_eq!(covered(&host, &[]).seen_fault_rate, None);
        host.all_intact();
        for record in &mut host.records {
            record.attempts_ran = 298;
        }
        let rate = covered(&host, &[]).seen_fault_rate.unwrap();
        assert!((rate - 0.01).abs() < 1e-4, "{rate}");
        let even = covered(&host, &[]).sensitivity;
        assert_eq!(even.len(), 6);
        assert!(
            even.iter()
                .all(|s| (s.attempts, s.pairs) == (298, 2) && s.only.is_empty())
        );
        host.records[0].attempts_ran = 1;
        let rate = covered(&host, &[]).seen_fault_rate.unwrap();
        assert!((rate - 0.95).abs() < 1e-9, "{rate}");
        let told = covered(&host, &[]).sensitivity;
        let bounce: Vec<_> = told.iter().filter(|s| s.mechanism == "bounce").collect();
        assert_eq!((bounce[0].attempts, bounce[0].only.len()), (298, 0));
        assert_eq!(
            (bounce[1].attempts, &bounce[1].only[..]),
            (1, &["0->1".to_string()][..])
        );
        // Few attempts under load do not spoil what many quiet ones would have seen.
        for record in &mut host.records {
            record.attempts_ran = 598;
        }
        let (load, intact) = (crate::model::case::Load::AllPairs, Outcome::Intact);
        host.load(pair(0, 1), "ce-push", load, intact, 1.0);
        let rate = covered(&host, &[]).seen_fault_rate.unwrap();
        assert!(rate <= 1.0 / 200.0, "{rate}");
    }
}
