//! FAIL: which record a tired person should see first, in which words, what is blamed for it, and what comes next.

use super::{cause_line, next};
use crate::diagnose::{
    evidence::{ControlArm, Evidence, PeerClaim, name_pairs},
    weigh::{PEERS_OFF, requalify, requalify_group},
};
use crate::model::{
    case::{Outcome, Record, Rung, Subject, WrongKind},
    fared::{Answers, Fared},
    finding::{Confidence, Consumer, ConsumerState, Finding, Judgement, Severity},
    group::Group,
    pair::OrderedPair,
    report::{Grading, Verdict},
};
use std::collections::BTreeSet;

/// The record that a tired person should see first: a GPU that fails alone before any pair, wrong data before hangs,
/// hangs before faults; then the pair with the most failing cases.
pub(super) fn worst_record<'a>(e: &Evidence<'a>) -> Option<&'a Record> {
    let condemned = e.condemned_gpus();
    let of_subjects = e.subjects().map(|(subject, fared)| {
        let blamed = match subject {
            Subject::Pair(p) => {
                !condemned.contains(&p.source) && !condemned.contains(&p.destination)
            }
            Subject::Group(group) => !group.gpus().any(|gpu| condemned.contains(&gpu)),
            Subject::Gpu(_) => true,
        };
        // A pair that fails explains the groups that hold it.
        let failing: u32 = match subject {
            Subject::Pair(_) => fared.iter().map(|f| f.failures).sum(),
            Subject::Gpu(_) | Subject::Group(_) => 0,
        };
        (subject, blamed, failing, fared)
    });
    let failures = of_subjects.flat_map(|(subject, blamed, failing, fared)| {
        let failures = fared.iter().filter_map(|f| Some((f, f.failure()?)));
        failures.map(move |(fared, record)| {
            let kind = match record.outcome {
                Outcome::Corrupt(_) => 3,
                Outcome::TimedOut { .. } | Outcome::Never { .. } => 2,
                _ => 1,
            };
            let rank = (
                matches!(subject, Subject::Gpu(_)),
                blamed,
                kind,
                failing,
                std::cmp::Reverse(subject.pair()),
                std::cmp::Reverse(record.case.rung),
                // The lowest rung first; of its cases the longest, which tells a shift from a drop.
                fared.longest_wrong(),
                // Planned before the others: plain memory before pools and memory of other processes.
                std::cmp::Reverse(record.case.id),
            );
            (rank, record)
        })
    });
    // Of equals the first one, so that the same report always names the same pair.
    let worst = failures.min_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    worst.map(|(_, record)| record)
}

pub(super) fn failed(
    e: &Evidence,
    worst: &Record,
    findings: &[Finding],
    held: &[&Finding],
    consumers: &[Consumer],
) -> Verdict {
    let pair = worst.case.subject.pair();
    let mut headline = format!(
        "{} {}: {}",
        worst.case.subject,
        worst.case.mechanism,
        describe(worst)
    );
    // One pair alone would not show it again.
    let loaded = worst.case.rung == Rung::Loaded || worst.only_together();
    if let Some(load) = worst.case.load {
        headline.push_str(if only_under_load(e, worst) {
            "; wrong only under load: "
        } else {
            "; under load: "
        });
        headline.push_str(load.words());
    }
    if worst.only_together() {
        headline
            .push_str("; right when run again alone: seldom, or only together with other pairs");
    }
    let counted = same_fault(e, worst);
    if let Some(group) = worst.case.subject.group() {
        headline.push_str(&alone_in_groups(e, group));
    }
    if let Some(pair) = pair {
        headline.push_str(&format!(
            "; {} of {} pairs",
            counted.len(),
            e.pairs_moved().len()
        ));
        let all_intact = counted
            .iter()
            .all(|p| e.control_arm(*p) == ControlArm::Intact);
        headline.push_str(match e.control_arm(pair) {
            // The headline itself is about a copy through the host.
            _ if worst.case.rung == Rung::Staged => "",
            ControlArm::Intact if all_intact => "; staged copies intact",
            ControlArm::Intact => "; staged copies of this pair intact, not of all",
            ControlArm::DriverStagedWrong => "; the driver's staged copies wrong too",
            ControlArm::BounceWrong => "; copies through the host wrong too",
            ControlArm::NotRun => "; copies through the host not tried",
        });
        if worst.case.rung >= Rung::Copied && e.claim(pair) == PeerClaim::Ok {
            headline.push_str("; contradicts the driver's claim that P2P is OK");
        }
    }
    let others = other_faults(e, worst, &counted);
    let subjects: BTreeSet<Subject> = others.iter().map(|(subject, _)| *subject).collect();
    if let Some(first) = subjects.first() {
        let names = match subjects.len() - 1 {
            0 => format!("{first} fails"),
            more => format!("{first} and {more} more fail"),
        };
        let by = match others.len() - subjects.len() {
            0 => String::new(),
            _ => format!(", by {} mechanisms in all", others.len()),
        };
        headline.push_str(&format!("; {names} otherwise{by} (see below)"));
    }
    let critical = || held.iter().filter(|f| f.severity == Severity::Critical);
    let blamed = critical().find(|f| concerns(f, worst));
    let mut cause = match (blamed, critical().next()) {
        (Some(finding), _) => cause_line(finding),
        (None, None) => no_cause(findings, worst),
        (None, Some(other)) => format!(
            "{}; {}: {} ({})",
            no_cause(findings, worst),
            match other.pairs.as_slice() {
                [] => "of the rest".to_string(),
                pairs => format!("of {}", name_pairs(pairs)),
            },
            other.title,
            other.cause
        ),
    };
    let vetoed: Vec<&str> = consumers
        .iter()
        .filter(|c| c.state == ConsumerState::Vetoed)
        .map(|c| c.name.as_str())
        .collect();
    if !vetoed.is_empty() {
        cause.push_str(&format!(". Vetoed: {}", vetoed.join(", ")));
    }
    if let Some(pair) = pair.filter(|p| e.has_nvlink(*p) && worst.case.rung >= Rung::Copied) {
        cause.push_str(&format!(
            ". Keep traffic off this pair until it passes: leave GPU{} or GPU{} out (CUDA_VISIBLE_DEVICES), or {PEERS_OFF}",
            pair.source, pair.destination
        ));
    }
    let again = || {
        if let Some(group) = worst.case.subject.group() {
            return requalify_group(group, &worst.case.mechanism);
        }
        let mechanisms = ["bounce", "staged", worst.case.mechanism.as_str()];
        // Load is made by many pairs: one pair alone would not show it again.
        requalify(if loaded { &[] } else { pair.as_slice() }, &mechanisms)
    };
    // A hang says little of its cause: before anything is changed it must be seen again, by itself.
    let blamed = blamed
        .filter(|f| worst.outcome.corruption().is_some() || f.confidence > Confidence::Possible);
    let step = |f: &Finding| match f.confidence {
        // Nothing is left to split: what comes next is the fix.
        Confidence::Established => f.fix.first().cloned(),
        _ => {
            let test = f.next_test.clone();
            test.map(|test| match loaded {
                true => test,
                false => next::for_headline(test, worst),
            })
        }
    };
    let others = findings
        .iter()
        .filter(|f| f.judgement == Judgement::CannotTell && names(f, worst));
    if worst.left_behind() {
        return Verdict {
            grading: Grading::Fail,
            headline,
            cause,
            next: "sudo dmesg | grep -E 'NVRM|Xid'; then reboot: no signal ends a process that is stuck in the driver, and it holds its GPUs until then"
                .to_string(),
            reason: None,
            worst_pair: pair,
        };
    }
    Verdict {
        grading: Grading::Fail,
        headline,
        cause,
        next: blamed
            .and_then(|f| step(f))
            .into_iter()
            .chain(others.filter_map(|f| f.next_test.clone()))
            // What the run that was just made has answered splits nothing: then the fix itself is the test.
            .find(|test| next::is_new(e, test))
            .or_else(|| blamed.and_then(|f| f.fix.first().cloned()))
            .unwrap_or_else(|| next::repeated(e, again())),
        reason: None,
        worst_pair: pair,
    }
}

/// What the pairs and smaller groups in a failing group say of it.
fn alone_in_groups(e: &Evidence, group: Group) -> String {
    let right = |records: &mut dyn Iterator<Item = &Record>| {
        let mut ran = records
            .filter(|r| r.case.rung == Rung::Reduced && r.outcome.ran())
            .peekable();
        ran.peek().is_some() && ran.all(|r| r.outcome.is_intact())
    };
    let pairs: Vec<OrderedPair> = group.pairs().collect();
    let intact = pairs.iter().filter(|p| right(&mut e.of_pair(**p))).count();
    let mut text = match intact {
        0 => "; none of its pairs was tried by itself".to_string(),
        n if n == pairs.len() => format!("; each of its {n} pairs is right by itself"),
        n => format!("; {n} of its {} pairs are right by themselves", pairs.len()),
    };
    let parts: Vec<String> = e
        .groups()
        .filter(|part| *part != group && part.is_within(group))
        .filter(|part| right(&mut e.of_group(*part)))
        .map(|part| part.to_string())
        .collect();
    if !parts.is_empty() {
        text.push_str(&format!(", and so are {}", parts.join(" and ")));
    }
    text
}

/// Whether the mechanism of a record that failed under load was right on the same pair without it.
fn only_under_load(e: &Evidence, failed: &Record) -> bool {
    let Some(pair) = failed.case.subject.pair() else {
        return false;
    };
    let mut quiet = e
        .of_pair(pair)
        .filter(|r| r.case.load.is_none() && r.case.rung > Rung::Advertised && r.outcome.ran())
        .peekable();
    quiet.peek().is_some() && quiet.all(|r| !r.outcome.is_failure())
}

/// Pairs that fail by the mechanism and in the manner of `worst`.
fn same_fault(e: &Evidence, worst: &Record) -> BTreeSet<OrderedPair> {
    let manner = Answers::of(&worst.outcome);
    let loaded = |rung: Rung| rung == Rung::Loaded;
    let same = |fared: &Fared| {
        fared.answers.any_of(manner)
            && loaded(fared.rung) == loaded(worst.case.rung)
            && fared.mechanism == worst.case.mechanism
    };
    let failing = e.subjects().filter(|(_, fared)| fared.iter().any(same));
    failing.filter_map(|(subject, _)| subject.pair()).collect()
}

/// How many further pairs and mechanisms fail in a way that the headline does not tell. The same kind of wrong by another
/// direct mechanism of a counted pair is the same fault; so is what touches a GPU that fails alone.
fn other_faults<'a>(
    e: &Evidence<'a>,
    worst: &Record,
    counted: &BTreeSet<OrderedPair>,
) -> BTreeSet<(Subject, &'a str)> {
    let manner = Answers::of(&worst.outcome);
    let is_direct = |rung: Rung| rung >= Rung::Copied;
    let otherwise = |fared: &Fared| fared.answers.failed_but_for(manner);
    let mut others = BTreeSet::new();
    for (subject, fared) in e.subjects() {
        let untold: &dyn Fn(&Fared) -> bool = match (worst.case.subject, subject) {
            (Subject::Gpu(gpu), subject) if subject.touches(gpu) => continue,
            // The same fault where more ranks take part.
            (Subject::Group(one), Subject::Group(other))
                if one.is_within(other) || other.is_within(one) =>
            {
                &otherwise
            }
            (Subject::Pair(_), Subject::Group(group))
                if counted.iter().any(|p| group.holds(*p)) =>
            {
                &otherwise
            }
            (Subject::Pair(_), Subject::Pair(pair)) if counted.contains(&pair) => &|fared| {
                fared.mechanism != worst.case.mechanism
                    && (otherwise(fared) || is_direct(fared.rung) != is_direct(worst.case.rung))
            },
            _ => &|_| true,
        };
        let failing = fared.iter().filter(|f| f.answers.failed());
        others.extend(
            failing
                .filter(|f| untold(f))
                .map(|f| (subject, f.mechanism)),
        );
    }
    others
}

/// Whether a finding is about what the record is about. A finding that names nothing is about the whole host.
fn concerns(finding: &Finding, record: &Record) -> bool {
    if finding.pairs.is_empty() && finding.gpus.is_empty() {
        return true;
    }
    match record.case.subject {
        Subject::Pair(p) if finding.pairs.is_empty() => finding.gpus.iter().any(|g| p.touches(*g)),
        Subject::Pair(p) => finding.pairs.contains(&p),
        Subject::Gpu(g) => finding.gpus.contains(&g),
        // What a cause holds of a pair explains the group that holds the pair.
        Subject::Group(group) => {
            finding.pairs.iter().any(|p| group.holds(*p))
                || finding.gpus.iter().any(|g| group.touches(*g))
        }
    }
}

/// Whether a finding names what the record is about.
pub(super) fn names(finding: &Finding, record: &Record) -> bool {
    match record.case.subject {
        Subject::Pair(p) => finding.pairs.contains(&p),
        Subject::Gpu(g) => finding.gpus.contains(&g),
        Subject::Group(group) => finding.pairs.iter().any(|p| group.holds(*p)),
    }
}

fn describe(record: &Record) -> String {
    match &record.outcome {
        Outcome::Corrupt(c) => {
            let mut text = format!(
                "{} in {} of {} attempts",
                c.kind, c.wrong_attempts, c.attempts_ran
            );
            if c.kind == WrongKind::Late {
                text.push_str(
                    ": the flag came before the payload that it announces, so its reader takes old bytes",
                );
            }
            if !c.detail.is_empty() && c.detail != c.kind.name() {
                text.push_str(&format!(" ({})", c.detail));
            }
            text
        }
        Outcome::TimedOut { after_ms } if record.left_behind() => {
            format!("hang, not finished after {after_ms} ms, its worker cannot be killed")
        }
        Outcome::TimedOut { after_ms } => format!("hang, killed after {after_ms} ms"),
        Outcome::Never {
            round,
            rounds,
            after_ms,
            missing: Some(missing),
        } => format!(
            "ranks waited in vain: {missing} never came in call {round} of {rounds}, given up after {after_ms} ms"
        ),
        Outcome::Never {
            round,
            rounds,
            after_ms,
            missing: None,
        } => format!(
            "two kernels waited for each other in vain: the flag of round {round} of {rounds} never came in {after_ms} ms"
        ),
        Outcome::Died { how } => format!("its worker died ({how})"),
        Outcome::Faulted { api, code, name } => format!("{api} failed with {code} ({name})"),
        other => other.word().to_string(),
    }
}

fn no_cause(findings: &[Finding], worst: &Record) -> String {
    let open: Vec<String> = findings
        .iter()
        .filter(|f| f.judgement == Judgement::CannotTell && names(f, worst))
        .map(|f| format!("{} cannot tell: {}", f.cause, f.because))
        .collect();
    let against: Vec<&str> = findings
        .iter()
        .filter(|f| f.judgement == Judgement::Cleared && names(f, worst))
        .map(|f| f.because.as_str())
        .collect();
    if open.is_empty() && against.is_empty() {
        "no known cause fits what was seen".to_string()
    } else if open.is_empty() {
        format!("no known cause fits; {}", against.join("; "))
    } else {
        format!("cause not found: {}", open.join("; "))
    }
}
