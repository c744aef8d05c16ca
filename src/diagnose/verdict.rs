//! Three lines and a grade. FAIL beats INCONCLUSIVE beats WARN beats PASS; "not tested" never reads like "passed", and
//! what does not exist on this host is no gap.

use super::{
    evidence::{ControlArm, Evidence, PeerClaim, name_pairs},
    ladder::rung_reached,
    weigh::{requalify, requalify_group},
};
use crate::model::{
    case::{Outcome, Record, Rung, Subject, WrongKind},
    finding::{Confidence, Consumer, ConsumerState, Finding, Judgement, Severity},
    group::Group,
    ladder::{RungState, Standing},
    pair::{GpuIndex, OrderedPair},
    report::{Coverage, Grading, Selftest, Verdict},
    snapshot::Origin,
};
use std::collections::{BTreeMap, BTreeSet};

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
        return from_finding(Grading::Fail, &finding.because, finding);
    }
    if let Some(verdict) = inconclusive(evidence, coverage, selftest) {
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
        };
    }
    if worst_severity == Some(Severity::Warning)
        && let Some(finding) = held.iter().find(|f| f.severity == Severity::Warning)
    {
        let headline = format!("data is right ({}); {}", passed(evidence), finding.title);
        return from_finding(Grading::Warn, &headline, finding);
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
        };
    }
    pass(evidence, coverage, selftest, consumers)
}

/// The verdict on a run that did not come to its end: what it found stands, and what it did not find proves nothing, because a
/// fault may lie behind what it had not come to.
pub fn unfinished(verdict: Verdict) -> Verdict {
    match verdict.grading {
        Grading::Fail => verdict,
        // That the run ended early is why cases did not run, and is said with them.
        Grading::Inconclusive if verdict.headline.contains("did not run") => verdict,
        Grading::Inconclusive => Verdict {
            headline: format!("the run did not end; until then: {}", verdict.headline),
            ..verdict
        },
        Grading::Pass | Grading::Warn => Verdict {
            grading: Grading::Inconclusive,
            headline: format!("the run did not end; until then: {}", verdict.headline),
            cause: "what it had not come to was not tested".to_string(),
            next: "peerproof qualify".to_string(),
            worst_pair: None,
        },
    }
}

/// The record that a tired person should see first: a GPU that fails alone before any pair, wrong data before hangs,
/// hangs before faults; then the pair with the most failing cases.
fn worst_record<'a>(e: &Evidence<'a>) -> Option<&'a Record> {
    let condemned = e.condemned_gpus();
    let mut failing_cases: BTreeMap<OrderedPair, usize> = BTreeMap::new();
    for pair in e.failures().filter_map(|r| r.case.subject.pair()) {
        *failing_cases.entry(pair).or_default() += 1;
    }
    let rank = |record: &Record| {
        let alone = matches!(record.case.subject, Subject::Gpu(_));
        let kind = match record.outcome {
            Outcome::Corrupt(_) => 3,
            Outcome::TimedOut { .. } | Outcome::Never { .. } => 2,
            _ => 1,
        };
        let blamed = match record.case.subject {
            Subject::Pair(p) => {
                !condemned.contains(&p.source) && !condemned.contains(&p.destination)
            }
            Subject::Group(group) => !group.gpus().any(|gpu| condemned.contains(&gpu)),
            Subject::Gpu(_) => true,
        };
        // A pair that fails explains the groups that hold it.
        let failing = match record.case.subject {
            Subject::Pair(p) => failing_cases.get(&p).copied().unwrap_or_default(),
            Subject::Gpu(_) | Subject::Group(_) => 0,
        };
        // The lowest rung first; of its cases the longest, which tells a shift from a drop.
        let units = record.outcome.corruption().map_or(0, |c| c.units);
        (
            alone,
            blamed,
            kind,
            failing,
            std::cmp::Reverse(record.case.subject.pair()),
            std::cmp::Reverse(record.case.rung),
            units,
            // Planned before the others: plain memory before pools and memory of other processes.
            std::cmp::Reverse(record.case.id),
        )
    };
    // Of equals the first one, so that the same report always names the same pair.
    e.failures()
        .fold(None, |best: Option<&Record>, next| match best {
            Some(best) if rank(best) >= rank(next) => Some(best),
            _ => Some(next),
        })
}

fn failed(
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
        describe(&worst.outcome)
    );
    let loaded = worst.case.rung == Rung::Loaded;
    if let Some(load) = worst.case.load {
        headline.push_str(if only_under_load(e, worst) {
            "; wrong only under load: "
        } else {
            "; under load: "
        });
        headline.push_str(load.words());
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
            ". Keep traffic off this pair until it passes: leave GPU{} or GPU{} out (CUDA_VISIBLE_DEVICES), or NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce",
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
    Verdict {
        grading: Grading::Fail,
        headline,
        cause,
        next: blamed
            // A hang says little of its cause: before anything is changed it must be seen again, by itself.
            .filter(|f| worst.outcome.corruption().is_some() || f.confidence > Confidence::Possible)
            .and_then(|f| match f.confidence {
                // Nothing is left to split: what comes next is the fix.
                Confidence::Established => f.fix.first().cloned(),
                _ => f.next_test.clone(),
            })
            .map(|test| {
                if loaded {
                    test
                } else {
                    for_headline(test, worst)
                }
            })
            .or_else(|| {
                findings
                    .iter()
                    .filter(|f| f.judgement == Judgement::CannotTell && names(f, worst))
                    .find_map(|f| f.next_test.clone())
            })
            .unwrap_or_else(again),
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

/// A command that runs pairs again, of a cause that may hold many, turned to the pair and mechanism of the headline.
fn for_headline(test: String, worst: &Record) -> String {
    let (Some(pair), Some((start, list))) =
        (worst.case.subject.pair(), test.split_once(" --mechanism "))
    else {
        return test;
    };
    if !start.starts_with("peerproof qualify --pairs ") || list.contains(' ') {
        return test;
    }
    let mut mechanisms: Vec<&str> = list.split(',').collect();
    if !mechanisms.contains(&worst.case.mechanism.as_str()) {
        mechanisms.push(&worst.case.mechanism);
    }
    requalify(&[pair], &mechanisms)
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

/// Whether two records fail in the same manner.
fn same_kind(one: &Outcome, other: &Outcome) -> bool {
    match (one.corruption(), other.corruption()) {
        (Some(one), Some(other)) => one.kind == other.kind,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

/// Pairs that fail by the mechanism and in the manner of `worst`.
fn same_fault(e: &Evidence, worst: &Record) -> BTreeSet<OrderedPair> {
    e.failures()
        .filter(|r| r.case.mechanism == worst.case.mechanism)
        .filter(|r| (r.case.rung == Rung::Loaded) == (worst.case.rung == Rung::Loaded))
        .filter(|r| same_kind(&r.outcome, &worst.outcome))
        .filter_map(|r| r.case.subject.pair())
        .collect()
}

/// How many further pairs and mechanisms fail in a way that the headline does not tell. The same kind of wrong by another
/// direct mechanism of a counted pair is the same fault; so is what touches a GPU that fails alone.
fn other_faults<'a>(
    e: &Evidence<'a>,
    worst: &Record,
    counted: &BTreeSet<OrderedPair>,
) -> BTreeSet<(Subject, &'a str)> {
    let told = |r: &Record| match (worst.case.subject, r.case.subject) {
        (Subject::Gpu(gpu), subject) => subject.touches(gpu),
        (Subject::Pair(_) | Subject::Group(_), Subject::Gpu(_)) => false,
        // The same fault where more ranks take part.
        (Subject::Group(one), Subject::Group(other)) => {
            (one.is_within(other) || other.is_within(one)) && same_kind(&r.outcome, &worst.outcome)
        }
        (Subject::Pair(_), Subject::Group(group)) => {
            counted.iter().any(|p| group.holds(*p)) && same_kind(&r.outcome, &worst.outcome)
        }
        (Subject::Group(_), Subject::Pair(_)) => false,
        (Subject::Pair(_), Subject::Pair(p)) => {
            let direct = |r: &Record| r.case.rung >= Rung::Copied;
            counted.contains(&p)
                && (r.case.mechanism == worst.case.mechanism
                    || (same_kind(&r.outcome, &worst.outcome) && direct(r) == direct(worst)))
        }
    };
    e.failures()
        .filter(|r| !told(r))
        .map(|r| (r.case.subject, r.case.mechanism.as_str()))
        .collect()
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
fn names(finding: &Finding, record: &Record) -> bool {
    match record.case.subject {
        Subject::Pair(p) => finding.pairs.contains(&p),
        Subject::Gpu(g) => finding.gpus.contains(&g),
        Subject::Group(group) => finding.pairs.iter().any(|p| group.holds(*p)),
    }
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
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

fn from_finding(grading: Grading, headline: &str, finding: &Finding) -> Verdict {
    Verdict {
        grading,
        headline: headline.to_string(),
        cause: cause_line(finding),
        next: finding
            .next_test
            .clone()
            .unwrap_or_else(|| format!("peerproof explain {}", finding.cause)),
        worst_pair: finding.pairs.first().copied(),
    }
}

fn inconclusive(e: &Evidence, coverage: &Coverage, selftest: Option<&Selftest>) -> Option<Verdict> {
    let say = |headline: String, cause: String, next: &str| {
        Some(Verdict {
            grading: Grading::Inconclusive,
            headline,
            cause,
            next: next.to_string(),
            worst_pair: None,
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
            "nothing was tested".to_string(),
            if recorded {
                "this host comes from a file; claims are no proof".to_string()
            } else {
                gap_words(coverage)
                    .or_else(|| {
                        (!coverage.left_out.is_empty()).then(|| coverage.left_out.join("; "))
                    })
                    .unwrap_or_else(|| "no case was planned".to_string())
            },
            "peerproof qualify",
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
        return say(
            format!("{}; no pair was tried", passed(e)),
            match chosen.is_empty() {
                true => "no transfer between two GPUs ran".to_string(),
                false => format!("left out: {}", chosen.join("; ")),
            },
            "peerproof qualify",
        );
    }
    if let Some(gaps) = gap_words(coverage) {
        let missing: u32 = coverage.not_run.iter().map(|g| g.cases).sum();
        return say(
            format!(
                "{missing} of {} planned cases did not run; what ran is right ({})",
                coverage.planned,
                passed(e)
            ),
            gaps,
            "peerproof qualify",
        );
    }
    None
}

fn gap_words(coverage: &Coverage) -> Option<String> {
    let words: Vec<String> = coverage
        .not_run
        .iter()
        .map(|g| format!("not run ({} cases): {}", g.cases, g.reason))
        .collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// What was right, in a few words.
fn passed(e: &Evidence) -> String {
    let pairs = e.pairs_moved();
    if pairs.is_empty() {
        let gpus = e
            .gpus()
            .filter(|(g, _)| e.of_gpu(*g).any(|r| r.outcome.is_intact()))
            .count();
        return match gpus {
            0 => "no data was moved".to_string(),
            1 => "1 GPU right by itself".to_string(),
            n => format!("{n} GPUs right by themselves"),
        };
    }
    match lowest_rung(e) {
        Some(rung) => {
            let mut text = format!(
                "{} of {} ordered pairs intact up to rung {rung}",
                pairs.len(),
                pairs.len()
            );
            let right = |group: &Group| {
                let mut records = e.of_group(*group).filter(|r| r.outcome.ran()).peekable();
                records.peek().is_some() && records.all(|r| r.outcome.is_intact())
            };
            let groups: Vec<Group> = e.groups().filter(right).collect();
            if let Some(largest) = groups.iter().max_by_key(|group| group.count()) {
                text.push_str(&match groups.len() {
                    1 => format!(", and all-reduces over {largest}"),
                    n => format!(", and all-reduces over {n} groups up to {largest}"),
                });
            }
            let standings: Vec<Standing> = pairs.iter().map(|p| e.standing(*p)).collect();
            let loaded = |s: &Standing| matches!(s.loaded, RungState::Intact);
            if rung < Rung::Loaded && standings.iter().all(loaded) {
                text.push_str(", right under load too");
            }
            let lacking = standings.iter().find_map(|s| s.open.as_ref());
            if let Some((rung, missing)) = lacking.filter(|(_, missing)| !missing.is_empty()) {
                text.push_str(&format!(
                    "; rung {rung} is incomplete: {} did not run",
                    missing.join(", ")
                ));
            }
            text
        }
        None => {
            let right = pairs
                .iter()
                .filter(|p| {
                    e.of_pair(**p)
                        .any(|r| r.case.rung > Rung::Advertised && r.outcome.is_intact())
                })
                .count();
            format!(
                "{right} ordered {} right in what was tried",
                if right == 1 { "pair" } else { "pairs" }
            )
        }
    }
}

/// The rung that every pair between which data was moved reached, above the claims.
fn lowest_rung(e: &Evidence) -> Option<Rung> {
    e.pairs_moved()
        .iter()
        .map(|p| rung_reached(e, *p))
        .min()
        .flatten()
        .filter(|r| *r > Rung::Advertised)
}

/// Whether something was left out by the operator's own words, and not by this version or this host.
fn is_choice(left_out: &str) -> bool {
    [
        "mechanisms other than",
        "by --pairs",
        "not chosen by --gpus",
        "CUDA_VISIBLE_DEVICES",
    ]
    .iter()
    .any(|mark| left_out.contains(mark))
}

/// What the number of attempts would have shown, in words.
fn rarest_fault(coverage: &Coverage) -> Option<String> {
    let rate = coverage.seen_fault_rate?;
    if rate <= RARE {
        return Some("a fault of 1 in 200 attempts would have been seen with 95%".to_string());
    }
    let mut text = format!(
        "a fault in more than {:.1}% of attempts would have been seen with 95%",
        rate * 100.0
    );
    let quick = coverage.budget.as_ref().is_some_and(|b| b.name == "quick");
    if quick {
        text.push_str("; one of 1 in 200 would not (--deep looks for it)");
    }
    Some(text)
}

/// A fault of one attempt in so many is what `--deep` is there to find.
const RARE: f64 = 1.0 / 200.0;

/// GPUs on which something ran.
fn tried_gpus(e: &Evidence) -> BTreeSet<GpuIndex> {
    let ran = |gpu: &GpuIndex| {
        let touches = |r: &&Record| r.outcome.ran() && r.case.subject.touches(*gpu);
        e.records.iter().find(touches).is_some()
    };
    e.gpus().map(|(gpu, _)| gpu).filter(ran).collect()
}

fn pass(
    e: &Evidence,
    coverage: &Coverage,
    selftest: Option<&Selftest>,
    consumers: &[Consumer],
) -> Verdict {
    let tried = tried_gpus(e);
    let count = tried.len();
    let mut headline = passed(e);
    if coverage.left_out.iter().any(|what| is_choice(what)) {
        headline.push_str("; only what was chosen was tested");
    }
    let without: Vec<OrderedPair> = OrderedPair::all(e.snapshot.gpus.len() as u32)
        .filter(|p| tried.contains(&p.source) && tried.contains(&p.destination))
        .filter(|p| matches!(e.claim(*p), PeerClaim::Refused(_)) || e.refused(*p).is_some())
        .collect();
    if e.snapshot.gpus.len() == 1 {
        headline.push_str("; with one GPU there are no pairs");
    } else if count < 2 {
        headline.push_str("; no pair was chosen");
    } else if without.len() == count * (count - 1) {
        let status = without.first().map(|p| e.claim(*p));
        headline.push_str(&match status {
            Some(PeerClaim::Refused(status)) => {
                format!("; peer access does not exist here (the driver says {status})")
            }
            _ => "; peer access does not exist here".to_string(),
        });
    } else if !without.is_empty() {
        headline.push_str(&format!("; no peer access on {}", name_pairs(&without)));
    }
    let mut limits = Vec::new();
    limits.extend(rarest_fault(coverage));
    if selftest.is_none() {
        limits.push("the checker was not tested on itself in this run".to_string());
    }
    let named = |wanted: &dyn Fn(&Consumer) -> bool| -> Vec<&str> {
        let these = consumers.iter().filter(|c| wanted(c));
        these.map(|c| c.name.as_str()).collect()
    };
    let proven = named(&|c| c.state == ConsumerState::Proven);
    if !proven.is_empty() {
        limits.push(format!("proven: {}", proven.join(", ")));
    }
    let tested = named(&|c| c.as_far_as_tested);
    if !tested.is_empty() {
        limits.push(format!(
            "proven as far as this version tests: {}",
            tested.join(", ")
        ));
    }
    if !coverage.left_out.is_empty() {
        limits.push(format!("left out: {}", coverage.left_out.join(", ")));
    }
    Verdict {
        grading: Grading::Pass,
        headline,
        cause: if limits.is_empty() {
            "nothing speaks against this host".to_string()
        } else {
            limits.join("; ")
        },
        next: format!("peerproof recommend --engine vllm --model MODEL --tp {count} --batch 32"),
        worst_pair: None,
    }
}

#[cfg(test)]
mod tests;
