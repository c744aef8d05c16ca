//! Three lines and a grade. FAIL beats INCONCLUSIVE beats WARN beats PASS; "not tested" never reads like "passed", and
//! what does not exist on this host is no gap.

mod failed;
mod inconclusive;
mod next;
mod passed;

use super::evidence::{Evidence, PeerClaim, name_pairs};
use crate::model::{
    case::{Outcome, Rung},
    finding::{Confidence, Consumer, Finding, Judgement, Severity},
    pair::OrderedPair,
    report::{Coverage, Grading, Selftest, Verdict},
};
use failed::{failed, worst_record};
use inconclusive::inconclusive;
use passed::{lowest_rung, pass, passed};
use std::collections::BTreeMap;

pub use inconclusive::unfinished;
pub use next::REPORT;

/// The verdict on the tested host.
pub fn verdict(
    evidence: &Evidence,
    coverage: &Coverage,
    selftest: Option<&Selftest>,
    findings: &[Finding],
    consumers: &[Consumer],
) -> Verdict {
    let held: Vec<&Finding> = findings
        .iter()
        .filter(|f| f.judgement == Judgement::Indicted)
        .collect();
    let worst_severity = held.iter().map(|f| f.severity).max();
    if let Some(worst) = worst_record(evidence) {
        return failed(evidence, worst, findings, &held, consumers);
    }
    if let Some(finding) = held.iter().find(|f| f.severity == Severity::Critical) {
        return from_finding(evidence, Grading::Fail, &finding.because, finding);
    }
    if let Some(verdict) = inconclusive(evidence, coverage, selftest, findings) {
        return verdict;
    }
    let contradicted: BTreeMap<OrderedPair, String> = evidence
        .peer_refusals()
        .filter(|(accessor, _)| evidence.claim(*accessor) == PeerClaim::Ok)
        .collect();
    if let Some((first, words)) = contradicted.first_key_value() {
        let pairs: Vec<OrderedPair> = contradicted.keys().copied().collect();
        let policy = held.iter().find(|f| f.cause == "driver-policy");
        let proven = lowest_rung(evidence)
            .map(|rung| format!("proven up to rung {rung}; "))
            .unwrap_or_default();
        return Verdict {
            grading: Grading::Warn,
            headline: format!(
                "data is right in what ran; {proven}peer access {} refused ({words})",
                name_pairs(&pairs)
            ),
            cause: policy.map_or_else(
                || "the driver's claim and its answer differ".to_string(),
                |f| cause_line(f),
            ),
            next: "nvidia-smi topo -p2p w".to_string(),
            worst_pair: Some(*first),
            reason: None,
        };
    }
    if worst_severity == Some(Severity::Warning)
        && let Some(finding) = held.iter().find(|f| f.severity == Severity::Warning)
    {
        let headline = format!("data is right ({}); {}", passed(evidence), finding.title);
        return from_finding(evidence, Grading::Warn, &headline, finding);
    }
    let at_odds: Vec<(OrderedPair, &str)> = evidence
        .records
        .iter()
        .filter(|r| r.case.rung == Rung::Advertised)
        .filter_map(|r| match &r.outcome {
            Outcome::Refused { name, .. } => Some((r.case.subject.pair()?, name.as_str())),
            _ => None,
        })
        .collect();
    if let Some((first, words)) = at_odds.first() {
        let pairs: Vec<OrderedPair> = at_odds.iter().map(|(pair, _)| *pair).collect();
        return Verdict {
            grading: Grading::Warn,
            headline: format!(
                "data is right ({}); CUDA and NVML differ about peer access on {}",
                passed(evidence),
                name_pairs(&pairs)
            ),
            cause: format!("{first}: {words}; engines trust the one or the other"),
            next: "nvidia-smi topo -p2p r".to_string(),
            worst_pair: Some(*first),
            reason: None,
        };
    }
    pass(evidence, coverage, selftest, consumers)
}

fn cause_line(finding: &Finding) -> String {
    let sure = match finding.confidence {
        Confidence::Established => "established",
        Confidence::Probable => "probable",
        Confidence::Possible => "possible",
    };
    const SIGNALS: usize = 3;
    let seen = if finding.severity < Severity::Critical || finding.evidence.is_empty() {
        finding.because.clone()
    } else {
        let shown: Vec<&str> = finding
            .evidence
            .iter()
            .take(SIGNALS)
            .map(String::as_str)
            .collect();
        format!("seen: {}", shown.join("; "))
    };
    format!(
        "{sure} cause: {} ({}): {seen}",
        finding.title, finding.cause
    )
}

fn from_finding(e: &Evidence, grading: Grading, headline: &str, finding: &Finding) -> Verdict {
    Verdict {
        grading,
        headline: headline.to_string(),
        cause: cause_line(finding),
        next: finding
            .next_test
            .clone()
            .filter(|test| !next::is_made(e, test))
            .or_else(|| finding.fix.first().cloned())
            .unwrap_or_else(|| format!("peerproof explain {}", finding.cause)),
        worst_pair: finding.pairs.first().copied(),
        reason: None,
    }
}

#[cfg(test)]
mod tests;
