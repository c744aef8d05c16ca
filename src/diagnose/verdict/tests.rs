//! Grades, their precedence, and the three lines.

use super::*;
use crate::diagnose::sample::{Host, pair, refusal, wrong};
use crate::diagnose::{consumers, coverage, findings};
use crate::model::{
    case::{Load, Missing, Subject, WrongKind},
    pair::GpuIndex,
    pci::PcieLink,
    reading::Reading,
    report::{Inconclusive, Plant},
};

fn sound_checker() -> Selftest {
    let plant = |kind| Plant {
        planted: kind,
        reported: kind,
        detail: String::new(),
    };
    Selftest {
        plants: vec![plant(None), plant(Some(WrongKind::Zeroed))],
        device: "GPU0".into(),
    }
}

fn judged(host: &Host, selftest: &Selftest) -> Verdict {
    host.judge(|e| {
        let covered = coverage(e, &[]);
        let held = findings(e);
        let users = consumers(e, &host.group());
        verdict(e, &covered, Some(selftest), &held, &users)
    })
}

fn grade(host: &Host) -> Grading {
    judged(host, &sound_checker()).grading
}

#[test]
fn every_pair_zeroed_while_all_claims_say_ok() {
    let mut host = Host::root_complex(8);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host.iommu_all("DMA-FQ");
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Fail);
    assert_eq!(verdict.grading.exit_code(), 2);
    assert_eq!(
        verdict.headline,
        "0->1 ce-push: zeroed in 3 of 3 attempts; 56 of 56 pairs; staged copies intact; contradicts the driver's claim that P2P is OK"
    );
    assert!(
        verdict.cause.contains("iommu-translation"),
        "{}",
        verdict.cause
    );
    assert!(verdict.cause.contains("DMA-FQ"), "{}", verdict.cause);
    assert!(
        verdict.cause.contains("Vetoed: NCCL P2P"),
        "{}",
        verdict.cause
    );
    assert_eq!(verdict.worst_pair, Some(pair(0, 1)));
}

#[test]
fn the_healthy_twin_passes_with_unproven_consumers() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Pass, "{verdict:?}");
    assert_eq!(
        verdict.headline,
        "56 of 56 ordered pairs intact up to rung 3 touched"
    );
    assert!(verdict.next.starts_with("peerproof recommend"));
}

#[test]
fn two_beats_three_beats_one_beats_zero() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    assert_eq!(grade(&host), Grading::Pass);
    host.snapshot.gpus[0].link_now = Reading::Known(PcieLink {
        speed_gts: 32.0,
        width: 8,
    });
    assert_eq!(grade(&host), Grading::Warn);
    let reason = "the budget was spent".to_string();
    host.set(pair(0, 1), "sm-load", Outcome::NotRun { reason });
    assert_eq!(grade(&host), Grading::Inconclusive);
    host.set_wrong(pair(1, 0), "ce-push", WrongKind::Dropped);
    assert_eq!(grade(&host), Grading::Fail);
}

#[test]
fn a_checker_that_missed_a_plant_is_not_believed() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    let mut selftest = sound_checker();
    selftest.plants[1].reported = None;
    let verdict = judged(&host, &selftest);
    assert_eq!(verdict.grading, Grading::Inconclusive);
    assert!(
        verdict.cause.contains("planted zeroed"),
        "{}",
        verdict.cause
    );
    host.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
    assert_eq!(judged(&host, &selftest).grading, Grading::Fail);
}

#[test]
fn no_gpu_and_nothing_tried_are_inconclusive() {
    let verdict = judged(&Host::root_complex(0), &sound_checker());
    assert_eq!(verdict.grading, Grading::Inconclusive);
    assert_eq!(verdict.headline, "no NVIDIA GPU found");
    assert_eq!(verdict.next, "peerproof demo");
    assert_eq!(grade(&Host::root_complex(4)), Grading::Inconclusive);
}

#[test]
fn one_gpu_and_product_policy_pass_and_say_what_does_not_exist() {
    let mut one = Host::root_complex(1);
    one.put(
        Subject::Gpu(GpuIndex(0)),
        "memory",
        Rung::Alone,
        Outcome::Intact,
    );
    let verdict = judged(&one, &sound_checker());
    assert_eq!(verdict.grading, Grading::Pass);
    assert!(
        verdict.headline.contains("no pairs"),
        "{}",
        verdict.headline
    );
    let mut geforce = Host::root_complex(2);
    geforce.name_all("NVIDIA GeForce RTX 5090");
    geforce.claim_all("GNS");
    geforce.refused();
    let verdict = judged(&geforce, &sound_checker());
    assert_eq!(verdict.grading, Grading::Pass);
    assert!(verdict.headline.contains("peer access does not exist here"));
    assert!(verdict.headline.contains("GNS"));
}

#[test]
fn a_chosen_gpu_of_many_passes_and_says_that_no_pair_was_chosen() {
    let mut host = Host::root_complex(8);
    host.put(
        Subject::Gpu(GpuIndex(3)),
        "memory",
        Rung::Alone,
        Outcome::Intact,
    );
    let verdict = judged(&host, &sound_checker());
    assert_eq!(
        verdict.headline,
        "1 GPU right by itself; no pair was chosen"
    );
}

#[test]
fn an_established_cause_is_followed_by_its_fix_and_a_probable_one_by_its_test() {
    let mut host = Host::root_complex(2);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host.iommu_all("DMA-FQ");
    assert!(judged(&host, &sound_checker()).next.contains("iommu=pt"));
    host.acs_all(None);
    let verdict = judged(&host, &sound_checker());
    assert!(
        verdict.cause.starts_with("probable cause"),
        "{}",
        verdict.cause
    );
    assert_eq!(verdict.next, "sudo peerproof qualify");
}

#[test]
fn advertised_but_refused_warns() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    host.set(pair(0, 1), "ce-push", refusal(217));
    assert_eq!(grade(&host), Grading::Warn);
}

#[test]
fn a_hang_names_its_pair() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    host.set(pair(3, 6), "sm-store", Outcome::TimedOut { after_ms: 5000 });
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Fail);
    assert!(
        verdict
            .headline
            .starts_with("3->6 sm-store: hang, killed after 5000 ms; 1 of 56 pairs"),
        "{}",
        verdict.headline
    );
}

#[test]
fn a_gpu_that_fails_alone_heads_the_verdict() {
    let mut host = Host::root_complex(3);
    host.direct_wrong(WrongKind::Zeroed, |p| p.touches(GpuIndex(2)));
    let outcome = wrong(WrongKind::Flipped);
    host.put(Subject::Gpu(GpuIndex(2)), "memory", Rung::Alone, outcome);
    let verdict = judged(&host, &sound_checker());
    assert!(
        verdict.headline.starts_with("GPU2 memory: flipped"),
        "{}",
        verdict.headline
    );
    assert!(verdict.cause.contains("gpu-itself"), "{}", verdict.cause);
}

#[test]
fn a_gpu_that_reported_a_fatal_error_fails_even_while_its_data_is_right() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    let line = format!(
        "NVRM: Xid (PCI:{}): 79, pid=1",
        crate::diagnose::sample::gpu_address(1)
    );
    host.snapshot.host.kernel_log = Reading::Known(vec![line]);
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Fail);
    assert!(
        verdict.headline.starts_with("GPU1 reported"),
        "{}",
        verdict.headline
    );
    assert!(
        verdict.cause.contains("fell off the bus"),
        "{}",
        verdict.cause
    );
}

#[test]
fn wrong_data_over_nvlink_fails_without_a_pcie_cause() {
    let mut host = Host::nvswitch(2);
    host.direct_wrong(WrongKind::Flipped, |p| p == pair(0, 1));
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Fail);
    assert_eq!(
        verdict.cause.split(". Vetoed").next(),
        Some("no known cause fits what was seen")
    );
    assert!(verdict.next.starts_with("peerproof qualify --pairs '0->1'"));
}

#[test]
fn the_headline_counts_only_its_own_fault() {
    let mut host = Host::root_complex(4);
    host.all_intact();
    for mechanism in ["ce-push", "sm-store"] {
        host.set_wrong(pair(0, 1), mechanism, WrongKind::Zeroed);
    }
    host.set_wrong(pair(2, 3), "ce-push", WrongKind::Flipped);
    host.set_wrong(pair(3, 2), "bounce", WrongKind::Flipped);
    let verdict = judged(&host, &sound_checker());
    assert!(
        verdict.headline.starts_with(
            "0->1 ce-push: zeroed in 3 of 3 attempts; 1 of 12 pairs; staged copies intact;"
        ),
        "{}",
        verdict.headline
    );
    assert!(
        verdict
            .headline
            .ends_with("; 2->3 and 1 more fail otherwise (see below)"),
        "{}",
        verdict.headline
    );
    // What is known of 3->2 is not the cause of 0->1.
    assert!(
        verdict.cause.starts_with("no known cause fits; "),
        "{}",
        verdict.cause
    );
    assert!(
        verdict
            .cause
            .contains("of 3->2: copies through the host are wrong")
    );
    assert_eq!(
        verdict.next,
        "peerproof qualify --pairs '0->1' --mechanism memory,bounce,staged,ce-push"
    );
}

#[test]
fn staged_copies_are_intact_only_where_all_counted_pairs_have_them() {
    let mut host = Host::root_complex(4);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host.records
        .retain(|r| r.case.subject != Subject::Pair(pair(3, 2)) || r.case.rung != Rung::Staged);
    let headline = judged(&host, &sound_checker()).headline;
    assert!(
        headline.contains("12 of 12 pairs; staged copies of this pair intact, not of all"),
        "{headline}"
    );
}

#[test]
fn a_refusal_names_its_direction_and_holds_the_pair_back() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    // What GPU0 needs its access for: pushes and stores of 0->1, pulls and loads of 1->0.
    for (p, mechanism) in [
        (pair(0, 1), "ce-push"),
        (pair(0, 1), "sm-store"),
        (pair(1, 0), "ce-pull"),
        (pair(1, 0), "sm-load"),
    ] {
        host.set(p, mechanism, refusal(217));
    }
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Warn);
    assert_eq!(
        verdict.headline,
        "data is right in what ran; proven up to rung 1 staged; peer access 0->1 refused (217 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)"
    );
}

#[test]
fn a_claim_that_was_read_is_no_pair_that_was_tried() {
    let mut host = Host::root_complex(2);
    for gpu in [GpuIndex(0), GpuIndex(1)] {
        host.put(Subject::Gpu(gpu), "memory", Rung::Alone, Outcome::Intact);
    }
    for p in OrderedPair::all(2) {
        host.put(
            Subject::Pair(p),
            "advertised",
            Rung::Advertised,
            Outcome::Intact,
        );
    }
    let verdict = judged(&host, &sound_checker());
    // A gate must not let a host in of which no pair was looked at.
    assert_eq!(verdict.grading, Grading::Inconclusive);
    assert_eq!(
        verdict.headline,
        "2 GPUs right by themselves; no pair was tried"
    );
    assert_eq!(verdict.next, "peerproof qualify");
}

#[test]
fn the_next_command_tests_the_pair_and_mechanism_of_the_headline() {
    let mut host = Host::root_complex(2);
    host.guest();
    host.all_intact();
    for p in [pair(0, 1), pair(1, 0)] {
        host.set_wrong(p, "ce-push", WrongKind::Mirrored);
    }
    let verdict = judged(&host, &sound_checker());
    assert!(
        verdict.cause.contains("hypervisor-no-peer-delivery"),
        "{}",
        verdict.cause
    );
    // All that a guest can try is in the report already: the step that splits is on the other side.
    assert!(
        verdict.next.starts_with("on the hypervisor: "),
        "{}",
        verdict.next
    );
    host.records.retain(|r| r.case.mechanism != "sm-store");
    let next = judged(&host, &sound_checker()).next;
    assert!(next.ends_with("sm-store,ce-push"), "{next}");
}

fn judged_after(host: &Host, arguments: &str, left_out: &[&str]) -> Verdict {
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_string).collect();
    let left_out: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    let evidence =
        crate::diagnose::Evidence::new(&host.snapshot, &host.records, &host.observations)
            .with_ladder(&host.ladder)
            .made_by(&arguments);
    let covered = coverage(&evidence, &left_out);
    let held = findings(&evidence);
    let users = consumers(&evidence, &host.group());
    verdict(&evidence, &covered, Some(&sound_checker()), &held, &users)
}

#[test]
fn the_run_that_was_just_made_is_never_advised() {
    // Nothing fits, so the pair is tried by itself; where that was done, for longer.
    let mut host = Host::nvswitch(2);
    host.direct_wrong(WrongKind::Flipped, |p| p == pair(0, 1));
    let next = judged_after(&host, "qualify --no-file", &[]).next;
    assert_eq!(
        next,
        "peerproof qualify --pairs '0->1' --mechanism memory,bounce,staged,ce-push"
    );
    for made in [
        "--root /x qualify --pairs 0->1 --mechanism bounce,staged,ce-push --out a.json",
        "qualify --mechanism=ce-push,staged,bounce,memory --pairs=0->1",
    ] {
        let next = judged_after(&host, made, &[]).next;
        assert!(next.ends_with("ce-push --deep=10m"), "{made}: {next}");
    }
    // A finding that asks for the whole run, after the whole run.
    let mut gaps = Host::root_complex(2);
    gaps.all_intact();
    let reason = "no worker could start: 999".to_string();
    gaps.set(pair(0, 1), "sm-load", Outcome::NotRun { reason });
    assert_eq!(
        judged_after(&gaps, "qualify --quick", &[]).next,
        "peerproof qualify"
    );
    let next = judged_after(&gaps, "qualify --out x.json", &[]).next;
    assert!(next.starts_with("nvidia-smi; sudo dmesg"), "{next}");
    let reason = "the time limit of the default budget, 280 s, was reached".to_string();
    gaps.set(pair(0, 1), "sm-load", Outcome::NotRun { reason });
    assert_eq!(
        judged_after(&gaps, "qualify", &[]).next,
        "peerproof qualify --deep"
    );
}

#[test]
fn settings_follow_a_whole_run_and_name_its_report() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    let whole = judged_after(&host, "qualify", &[]);
    assert_eq!(
        whole.next,
        "peerproof recommend --from REPORT --engine vllm --model MODEL --tp 2 --batch 32"
    );
    for choice in [
        "mechanisms other than ce-push",
        "1 of 2 ordered pairs by --pairs",
    ] {
        let part = judged_after(&host, "qualify --pairs 0->1", &[choice]);
        assert_eq!(part.grading, Grading::Pass);
        assert_eq!(part.next, "peerproof qualify", "{choice}");
    }
    // Some GPUs of a host are a group of their own.
    let some = judged_after(&host, "qualify --gpus 0,1", &["GPU2: not chosen by --gpus"]);
    assert!(
        some.next.starts_with("peerproof recommend --from"),
        "{}",
        some.next
    );
}

#[test]
fn a_choice_of_what_needs_peers_says_that_there_are_none() {
    let mut host = Host::root_complex(2);
    host.name_all("NVIDIA GeForce RTX 5090");
    host.claim_all("GNS");
    for gpu in [0, 1] {
        host.put(
            Subject::Gpu(GpuIndex(gpu)),
            "memory",
            Rung::Alone,
            Outcome::Intact,
        );
    }
    let verdict = judged_after(
        &host,
        "qualify --mechanism ce-push",
        &["mechanisms other than ce-push"],
    );
    assert_eq!(verdict.reason, Some(Inconclusive::NoPairTried));
    assert_eq!(
        verdict.headline,
        "2 GPUs right by themselves; no pair was tried; peer access does not exist here (the driver says GNS)"
    );
    assert!(
        verdict.cause.contains("product policy"),
        "{}",
        verdict.cause
    );
}

#[test]
fn a_run_that_did_not_end_is_told_by_its_reason_and_not_by_words() {
    let with = |grading, reason| {
        unfinished(Verdict {
            grading,
            headline: "3 cases did not run".to_string(),
            cause: String::new(),
            next: String::new(),
            worst_pair: None,
            reason,
        })
    };
    let missing = with(Grading::Inconclusive, Some(Inconclusive::CasesMissing));
    assert_eq!(missing.headline, "3 cases did not run");
    let other = with(Grading::Inconclusive, Some(Inconclusive::NothingTested));
    assert!(other.headline.starts_with("the run did not end"));
    assert_eq!(other.reason, Some(Inconclusive::NothingTested));
    let passed = with(Grading::Pass, None);
    assert_eq!(passed.grading, Grading::Inconclusive);
    assert_eq!(passed.reason, Some(Inconclusive::Unfinished));
    assert_eq!(with(Grading::Fail, None).headline, "3 cases did not run");
}

#[test]
fn a_whole_climb_passes_and_says_what_stays_open() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Pass, "{verdict:?}");
    assert_eq!(
        verdict.headline,
        "12 of 12 ordered pairs intact up to rung 6 reduced, and all-reduces over GPUs 0-3, right under load too"
    );
    assert!(
        verdict.cause.contains("proven: NCCL P2P"),
        "{}",
        verdict.cause
    );
    // What an older version left open is said.
    let mut older = Host::root_complex(4);
    older.climb_all();
    older.without_reductions();
    let verdict = judged(&older, &sound_checker());
    assert!(
        verdict
            .cause
            .contains("proven as far as this version tests: NCCL P2P"),
        "{}",
        verdict.cause
    );
    host.records.retain(|r| {
        r.case.mechanism != "vmm-sm-load" || r.case.subject != Subject::Pair(pair(0, 1))
    });
    let headline = judged(&host, &sound_checker()).headline;
    assert!(
        headline.contains("up to rung 3 touched, and all-reduces over GPUs 0-3, right under load too; rung 4 shared is incomplete: vmm-sm-load did not run"),
        "{headline}"
    );
}

#[test]
fn wrong_only_under_load_fails_and_says_so() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    host.load(
        pair(3, 1),
        "ce-push",
        Load::AllPairs,
        wrong(WrongKind::Stale),
        0.0,
    );
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Fail);
    assert!(
        verdict.headline.starts_with(
            "3->1 ce-push: stale in 3 of 3 attempts; wrong only under load: every ordered pair at once; 1 of 12 pairs"
        ),
        "{}",
        verdict.headline
    );
    // One pair alone makes no load.
    assert!(!verdict.next.contains("--pairs"), "{}", verdict.next);
    host.set_wrong(pair(3, 1), "sm-load", WrongKind::Stale);
    let headline = judged(&host, &sound_checker()).headline;
    assert!(!headline.contains("only under load"), "{headline}");
}

#[test]
fn late_and_never_are_told_in_words() {
    let mut host = Host::nvswitch(4);
    host.climb_all();
    let never = Outcome::Never {
        round: 3,
        rounds: 1000,
        after_ms: 2000,
        missing: None,
    };
    host.set(pair(1, 0), "resident", never);
    let headline = judged(&host, &sound_checker()).headline;
    assert!(
        headline.starts_with(
            "1->0 resident: two kernels waited for each other in vain: the flag of round 3 of 1000 never came in 2000 ms"
        ),
        "{headline}"
    );
    host.set_wrong(pair(2, 3), "resident", WrongKind::Late);
    let headline = judged(&host, &sound_checker()).headline;
    assert!(
        headline.starts_with("2->3 resident: late in 3 of 3 attempts: the flag came before"),
        "{headline}"
    );
}

#[test]
fn a_group_that_fails_is_named_with_what_its_parts_say() {
    let mut host = Host::nvswitch(4);
    host.climb_all();
    host.together(0..4, "one-shot-push", wrong(WrongKind::Stale));
    let verdict = judged(&host, &sound_checker());
    assert_eq!(verdict.grading, Grading::Fail);
    assert!(
        verdict
            .headline
            .starts_with("GPUs 0-3 one-shot-push: stale in 3 of 3 attempts"),
        "{}",
        verdict.headline
    );
    assert!(
        verdict
            .headline
            .contains("each of its 12 pairs is right by itself"),
        "{}",
        verdict.headline
    );
    assert_eq!(verdict.worst_pair, None);
    assert_eq!(
        verdict.next,
        "peerproof qualify --gpus 0,1,2,3 --mechanism memory,bounce,staged,one-shot-push"
    );
    // A pair that fails explains the group.
    host.set_wrong(pair(2, 1), "one-shot-push", WrongKind::Stale);
    let verdict = judged(&host, &sound_checker());
    assert!(
        verdict.headline.starts_with("2->1 one-shot-push: stale"),
        "{}",
        verdict.headline
    );
    assert!(
        !verdict.headline.contains("otherwise"),
        "{}",
        verdict.headline
    );
}

#[test]
fn who_never_came_is_named() {
    let mut host = Host::nvswitch(4);
    host.climb_all();
    let never = Outcome::Never {
        round: 7,
        rounds: 24,
        after_ms: 1000,
        missing: Some(Missing {
            rank: 2,
            gpu: GpuIndex(2),
            block: 5,
        }),
    };
    host.together(0..4, "two-shot", never);
    let headline = judged(&host, &sound_checker()).headline;
    assert!(
        headline.starts_with(
            "GPUs 0-3 two-shot: ranks waited in vain: block 5 of rank 2 (GPU2) never came in call 7 of 24"
        ),
        "{headline}"
    );
}

/// Judging again is cheap enough to be asked of every saved report of a fleet.
#[test]
fn an_eight_gpu_report_is_judged_in_milliseconds() {
    for broken in [false, true] {
        let mut host = Host::root_complex(8);
        host.climb_all();
        if broken {
            for p in OrderedPair::all(8) {
                host.set_wrong(p, "ce-push", WrongKind::Zeroed);
            }
        }
        let once = host.records.clone();
        for _ in 1..4 {
            host.records.extend(once.iter().cloned());
        }
        let started = std::time::Instant::now();
        const TIMES: u32 = 5;
        for _ in 0..TIMES {
            judged(&host, &sound_checker());
        }
        let each = started.elapsed() / TIMES;
        println!("{} records, broken {broken}: {each:?}", host.records.len());
        assert!(each.as_millis() < 500, "{each:?}");
    }
}

#[test]
fn a_run_that_did_not_end_proves_nothing_and_keeps_what_it_found() {
    let mut host = Host::root_complex(2);
    host.climb_all();
    let passed = judged(&host, &sound_checker());
    assert_eq!(passed.grading, Grading::Pass);
    let cut = unfinished(passed);
    assert_eq!(cut.grading, Grading::Inconclusive);
    assert!(cut.headline.contains("did not end"), "{}", cut.headline);
    let failed = Verdict {
        grading: Grading::Fail,
        ..cut
    };
    assert_eq!(unfinished(failed.clone()), failed);
}

#[test]
fn what_is_wrong_only_together_is_not_run_again_alone() {
    let mut host = Host::nvswitch(4);
    host.climb_all();
    host.set_wrong(pair(0, 1), "ce-push", WrongKind::Flipped);
    let last = host.records.last_mut().unwrap();
    last.notes = vec![crate::model::case::ONLY_TOGETHER.to_string()];
    let verdict = judged(&host, &sound_checker());
    assert!(
        verdict
            .headline
            .contains("or only together with other pairs"),
        "{}",
        verdict.headline
    );
    assert!(!verdict.next.contains("--pairs"), "{}", verdict.next);
}

#[test]
fn a_worker_that_no_signal_ends_asks_for_a_reboot() {
    let mut host = Host::nvswitch(2);
    host.climb_all();
    host.set(
        pair(0, 1),
        "ce-push",
        Outcome::TimedOut { after_ms: 60_002 },
    );
    let killed = judged(&host, &sound_checker());
    assert!(killed.headline.contains("killed after 60002 ms"));
    assert!(!killed.next.contains("reboot"), "{}", killed.next);
    let last = host.records.last_mut().unwrap();
    last.notes = vec![crate::model::case::LEFT_BEHIND.to_string()];
    let stuck = judged(&host, &sound_checker());
    assert!(
        stuck.headline.contains("cannot be killed"),
        "{}",
        stuck.headline
    );
    assert!(!stuck.headline.contains("killed after"));
    assert!(stuck.next.contains("reboot"), "{}", stuck.next);
}

/// Whichever of the cases under way hung is among those that come next.
#[test]
fn all_that_waited_when_a_run_was_cut_are_run_again() {
    let mut host = Host::nvswitch(4);
    host.climb_all();
    let reason = format!(
        "interrupted, and {} in 20.0 s",
        crate::model::case::NO_ANSWER
    );
    for (p, mechanism) in [(pair(0, 1), "pool-ce-push"), (pair(2, 3), "sm-load")] {
        let reason = reason.clone();
        host.set(p, mechanism, Outcome::NotRun { reason });
    }
    let next = judged(&host, &sound_checker()).next;
    let wanted = "--pairs '0->1,2->3' --mechanism memory,pool-ce-push,sm-load";
    assert!(next.contains(wanted), "{next}");
}

/// Cases that a report lacks without a word are no pass.
#[test]
fn a_hole_that_nothing_explains_is_inconclusive() {
    let mut host = Host::root_complex(2);
    host.climb_all();
    assert_eq!(grade(&host), Grading::Pass);
    host.records.retain(|r| r.case.mechanism != "ce-push");
    let verdict = judged(&host, &sound_checker());
    assert_eq!(
        verdict.reason,
        Some(Inconclusive::CasesMissing),
        "{verdict:?}"
    );
    assert!(verdict.headline.contains("ce-push"), "{}", verdict.headline);
    // What the operator left out is none.
    let left_out = ["mechanisms other than staged, sm-load"];
    let chosen = judged_after(&host, "qualify --mechanism staged,sm-load", &left_out);
    assert_eq!(chosen.grading, Grading::Pass);
}
