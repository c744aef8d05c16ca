//! What was planned, ran, and did not; and the smallest fault rate that would have been seen.

use crate::model::{
    case::{Outcome, Record, Rung},
    pair::OrderedPair,
    report::{Coverage, Gap},
};
use std::collections::BTreeMap;

/// Coverage of `records`; `left_out` names what the operator or this version left out.
///
/// A fault that strikes an attempt with probability p stays unseen in n attempts with (1 - p)^n; set to 5% this gives
/// p = 1 - 0.05^(1/n). The figure is that of the pair and mechanism with the fewest judged attempts;
/// a single GPU's few large attempts say nothing of a rate.
pub fn coverage(records: &[Record], left_out: &[String]) -> Coverage {
    let mut not_applicable: BTreeMap<&str, u32> = BTreeMap::new();
    let mut not_run: BTreeMap<&str, u32> = BTreeMap::new();
    let mut attempts: BTreeMap<(OrderedPair, &str), u64> = BTreeMap::new();
    let mut ran = 0;
    for record in records {
        match &record.outcome {
            Outcome::NotApplicable { reason } => *not_applicable.entry(reason).or_default() += 1,
            Outcome::NotRun { reason } => *not_run.entry(reason).or_default() += 1,
            outcome => {
                ran += 1;
                // A claim is read, not tried: it sees no fault.
                let tried = record.case.rung != Rung::Advertised;
                if tried
                    && matches!(outcome, Outcome::Intact | Outcome::Corrupt(_))
                    && let Some(pair) = record.case.subject.pair()
                {
                    let key = (pair, record.case.mechanism.as_str());
                    *attempts.entry(key).or_default() += u64::from(record.attempts_ran);
                }
            }
        }
    }
    let fewest = || attempts.values().copied().filter(|n| *n > 0).min();
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
        planned: records.len() as u32,
        ran,
        not_applicable: gaps(not_applicable),
        not_run: gaps(not_run),
        left_out: left_out.to_vec(),
        budget: None,
        seen_fault_rate: fewest().map(|n| 1.0 - 0.05f64.powf(1.0 / n as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Host, pair};
    use super::*;

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
        let coverage = coverage(&host.records, &["GPU2".to_string()]);
        assert_eq!((coverage.planned, coverage.ran), (12, 9));
        assert_eq!(coverage.not_run.len(), 1);
        assert_eq!(coverage.not_run[0].cases, 2);
        assert_eq!(coverage.not_applicable[0].cases, 1);
        assert_eq!(coverage.left_out, ["GPU2"]);
    }

    #[test]
    fn the_worst_pair_sets_the_fault_rate() {
        let mut host = Host::root_complex(2);
        assert_eq!(coverage(&host.records, &[]).seen_fault_rate, None);
        host.all_intact();
        for record in &mut host.records {
            record.attempts_ran = 298;
        }
        let rate = coverage(&host.records, &[]).seen_fault_rate.unwrap();
        assert!((rate - 0.01).abs() < 1e-4, "{rate}");
        host.records[0].attempts_ran = 1;
        let rate = coverage(&host.records, &[]).seen_fault_rate.unwrap();
        assert!((rate - 0.95).abs() < 1e-9, "{rate}");
    }
}
