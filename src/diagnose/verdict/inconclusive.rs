//! INCONCLUSIVE: nothing was tested, not all of it, or by a checker that is not to be believed; and what does not count as a
//! gap.

use super::{
    next,
    passed::{absent_peers, passed, tried_gpus},
};
use crate::diagnose::evidence::Evidence;
use crate::model::{
    case::{
        BUDGET_SPENT, INTERRUPTED, Outcome, Record, Rung, SOAK_ENDED, Subject, TIME_IS_UP,
        WrongKind,
    },
    finding::{Finding, Judgement},
    pair::OrderedPair,
    report::{Coverage, Grading, Inconclusive, Selftest, Verdict, is_choice, leaves_cases},
    snapshot::Origin,
};
use std::collections::BTreeSet;

pub(super) fn inconclusive(
    e: &Evidence,
    coverage: &Coverage,
    selftest: Option<&Selftest>,
    findings: &[Finding],
) -> Option<Verdict> {
    let say = |reason: Inconclusive, headline: String, cause: String, next: &str| {
        Some(Verdict {
            grading: Grading::Inconclusive,
            headline,
            cause,
            next: next.to_string(),
            worst_pair: None,
            reason: Some(reason),
        })
    };
    if e.snapshot.gpus.is_empty() {
        let asked: Vec<String> = e
            .snapshot
            .sources
            .iter()
            .map(|s| match s.result.absence() {
                Some(why) => format!("{}: {why}", s.source),
                None => format!("{}: nothing", s.source),
            })
            .collect();
        return say(
            Inconclusive::NoGpu,
            "no NVIDIA GPU found".to_string(),
            if asked.is_empty() {
                "no source answered".to_string()
            } else {
                format!("looked at {}", asked.join("; "))
            },
            "peerproof demo",
        );
    }
    if let Some(selftest) = selftest.filter(|s| !s.passed()) {
        let missed: Vec<String> = selftest
            .plants
            .iter()
            .filter(|p| !p.found())
            .map(|p| {
                let word = |k: Option<WrongKind>| k.map_or("a clean buffer", |k| k.name());
                format!("planted {}, reported {}", word(p.planted), word(p.reported))
            })
            .collect();
        return say(
            Inconclusive::CheckerFailed,
            "the checker failed its own test: what it says of this host cannot be trusted"
                .to_string(),
            if missed.is_empty() {
                "nothing was planted".to_string()
            } else {
                missed.join("; ")
            },
            "peerproof selftest",
        );
    }
    if !e.records.iter().any(|r| r.outcome.ran()) {
        let recorded = matches!(e.snapshot.origin, Origin::Recorded { .. });
        return say(
            Inconclusive::NothingTested,
            "nothing was tested".to_string(),
            if recorded {
                "this host comes from a file; claims are no proof".to_string()
            } else {
                gap_words(e, coverage)
                    .or_else(|| {
                        (!coverage.left_out.is_empty()).then(|| coverage.left_out.join("; "))
                    })
                    .unwrap_or_else(|| "no case was planned".to_string())
            },
            &after_gaps(e, coverage),
        );
    }
    let moved = e
        .records
        .iter()
        .filter(|r| r.case.rung > Rung::Advertised && !matches!(r.case.subject, Subject::Gpu(_)))
        .any(|r| r.outcome.ran());
    let alone = tried_gpus(e).len();
    if alone > 1 && !moved {
        let chosen: Vec<&str> = coverage
            .left_out
            .iter()
            .map(String::as_str)
            .filter(|what| is_choice(what))
            .collect();
        let absent = absent_peers(e);
        let mut why = match chosen.is_empty() {
            true => "no transfer between two GPUs ran".to_string(),
            false => format!("left out: {}", chosen.join("; ")),
        };
        let policy = findings
            .iter()
            .find(|f| f.cause == "driver-policy" && f.judgement == Judgement::Indicted);
        if let Some(policy) = policy.filter(|_| absent.is_some()) {
            why.push_str(&format!("; {}", policy.because));
        }
        return say(
            Inconclusive::NoPairTried,
            format!(
                "{}; no pair was tried{}",
                passed(e),
                absent.unwrap_or_default()
            ),
            why,
            &after_gaps(e, coverage),
        );
    }
    if let Some((pair, rung, mechanisms)) = untold_hole(e, coverage) {
        return say(
            Inconclusive::CasesMissing,
            format!(
                "{} of rung {rung} did not run on {pair}, and nothing says why; what ran is right ({})",
                mechanisms.join(", "),
                passed(e)
            ),
            "the report lacks cases of its own ladder: it was cut or edited, or the run did not end"
                .to_string(),
            next::WHOLE,
        );
    }
    if let Some(gaps) = gap_words(e, coverage) {
        let missing: u32 = coverage.not_run.iter().map(|g| g.cases).sum();
        return say(
            Inconclusive::CasesMissing,
            format!(
                "{missing} of {} planned cases did not run; what ran is right ({})",
                coverage.planned,
                passed(e)
            ),
            gaps,
            &after_gaps(e, coverage),
        );
    }
    None
}

/// The verdict on a run that did not come to its end: what it found stands, and what it did not find proves nothing, because a
/// fault may lie behind what it had not come to.
pub fn unfinished(verdict: Verdict) -> Verdict {
    let until =
        |verdict: &Verdict| format!("the run did not end; until then: {}", verdict.headline);
    match (verdict.grading, verdict.reason) {
        (Grading::Fail, _) => verdict,
        // That the run ended early is why cases did not run, and is said with them.
        (Grading::Inconclusive, Some(Inconclusive::CasesMissing)) => verdict,
        (Grading::Inconclusive, _) => Verdict {
            headline: until(&verdict),
            ..verdict
        },
        (Grading::Pass | Grading::Warn, _) => Verdict {
            grading: Grading::Inconclusive,
            headline: until(&verdict),
            cause: "what it had not come to was not tested".to_string(),
            next: next::WHOLE.to_string(),
            worst_pair: None,
            reason: Some(Inconclusive::Unfinished),
        },
    }
}

/// What follows a run of which planned cases are missing: the whole run, and where that was it, what tells why they are.
fn after_gaps(e: &Evidence, coverage: &Coverage) -> String {
    let because = |mark: &str| coverage.not_run.iter().any(|gap| gap.reason.contains(mark));
    if let Some(open) = e.unanswered().next() {
        // Whichever of those under way hung: all of them again.
        let pairs: BTreeSet<String> = e
            .unanswered()
            .filter_map(|r| r.case.subject.pair())
            .map(|pair| pair.to_string())
            .collect();
        let mechanisms: BTreeSet<&str> =
            e.unanswered().map(|r| r.case.mechanism.as_str()).collect();
        let again = match open.case.subject.pair() {
            Some(_) => format!(
                "{} --pairs '{}' --mechanism memory,{}",
                next::WHOLE,
                Vec::from_iter(pairs).join(","),
                Vec::from_iter(mechanisms).join(",")
            ),
            None => next::WHOLE.to_string(),
        };
        return format!("sudo dmesg | grep -E 'NVRM|Xid|AER'; {again}");
    }
    if because(TIME_IS_UP) {
        return format!("{} (without a limit, or with a longer one)", next::WHOLE);
    }
    if next::is_new(e, next::WHOLE) {
        return next::WHOLE.to_string();
    }
    if because(INTERRUPTED) {
        return next::WHOLE.to_string();
    }
    if because(BUDGET_SPENT) || because(SOAK_ENDED) {
        return format!("{} --deep", next::WHOLE);
    }
    "nvidia-smi; sudo dmesg | grep -E 'NVRM|Xid|AER' (what kept these cases from running)"
        .to_string()
}

/// A mechanism of the ladder of which a pair that was tried has no record at all, where nothing was left out by choice.
fn untold_hole(e: &Evidence, coverage: &Coverage) -> Option<(OrderedPair, Rung, Vec<String>)> {
    let chosen = coverage.left_out.iter().any(|what| leaves_cases(what));
    if chosen || !coverage.not_run.is_empty() {
        return None;
    }
    let mut holes = e.pairs_moved().into_iter().filter_map(|pair| {
        let (rung, mechanisms) = e.standing(pair).open?;
        Some((pair, rung, mechanisms))
    });
    holes.find(|(.., mechanisms)| !mechanisms.is_empty())
}

fn gap_words(e: &Evidence, coverage: &Coverage) -> Option<String> {
    let under_way = |reason: &str| {
        let same =
            |r: &&Record| matches!(&r.outcome, Outcome::NotRun { reason: own } if own == reason);
        let open = e.unanswered().find(same)?;
        Some(format!(
            ", {} {} first",
            open.case.subject, open.case.mechanism
        ))
    };
    let words: Vec<String> = coverage
        .not_run
        .iter()
        .map(|gap| {
            let who = under_way(&gap.reason).unwrap_or_default();
            format!("not run ({} cases{who}): {}", gap.cases, gap.reason)
        })
        .collect();
    (!words.is_empty()).then(|| words.join("; "))
}
