//! PASS: what was right, in a few words, and what limits the proof.

use super::next;
use crate::diagnose::evidence::{Evidence, PeerClaim, name_pairs};
use crate::model::{
    case::{Record, Rung},
    finding::{Consumer, ConsumerState},
    group::Group,
    ladder::{RungState, Standing},
    pair::{GpuIndex, OrderedPair},
    report::{Coverage, Grading, Selftest, Verdict, is_choice, leaves_cases},
};
use std::collections::BTreeSet;

pub(super) fn pass(
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
    if e.snapshot.gpus.len() == 1 {
        headline.push_str("; with one GPU there are no pairs");
    } else if count < 2 {
        headline.push_str("; no pair was chosen");
    } else if let Some(words) = absent_peers(e) {
        headline.push_str(&words);
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
        next: match coverage.left_out.iter().any(|what| leaves_cases(what)) {
            // Settings rest on what was proven of every pair by every mechanism that an engine may use.
            true => next::WHOLE.to_string(),
            false => format!(
                "peerproof recommend --from {} --engine vllm --model MODEL --tp {count} --batch 32",
                next::REPORT
            ),
        },
        worst_pair: None,
        reason: None,
    }
}

/// What was right, in a few words.
pub(super) fn passed(e: &Evidence) -> String {
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
    let standings: Vec<Standing> = pairs.iter().map(|p| e.standing(*p)).collect();
    match lowest(&standings) {
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
pub(super) fn lowest_rung(e: &Evidence) -> Option<Rung> {
    let pairs = e.pairs_moved();
    let standings: Vec<Standing> = pairs.iter().map(|p| e.standing(*p)).collect();
    lowest(&standings)
}

/// The same of pairs whose climbs are known.
fn lowest(standings: &[Standing]) -> Option<Rung> {
    standings.iter().map(|s| s.reached).min().flatten()
}

/// Where GPUs that were tried have no peer access, in words that follow a sentence.
pub(super) fn absent_peers(e: &Evidence) -> Option<String> {
    let tried = tried_gpus(e);
    let without: Vec<OrderedPair> = OrderedPair::all(e.snapshot.gpus.len() as u32)
        .filter(|p| tried.contains(&p.source) && tried.contains(&p.destination))
        .filter(|p| matches!(e.claim(*p), PeerClaim::Refused(_)) || e.refused(*p).is_some())
        .collect();
    let first = without.first()?;
    Some(if without.len() < tried.len() * (tried.len() - 1) {
        format!("; no peer access on {}", name_pairs(&without))
    } else if let PeerClaim::Refused(status) = e.claim(*first) {
        format!("; peer access does not exist here (the driver says {status})")
    } else {
        "; peer access does not exist here".to_string()
    })
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
pub(super) fn tried_gpus(e: &Evidence) -> BTreeSet<GpuIndex> {
    let ran = |gpu: &GpuIndex| {
        let touches = |r: &&Record| r.outcome.ran() && r.case.subject.touches(*gpu);
        e.records.iter().find(touches).is_some()
    };
    e.gpus().map(|(gpu, _)| gpu).filter(ran).collect()
}
