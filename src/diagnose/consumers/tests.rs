//! Consumers on small hosts: proofs, vetoes, gaps and islands.

use super::super::sample::{Host, pair, refusal, wrong};
use super::*;
use crate::model::{
    case::{Load, Subject, WrongKind},
    topology::PathType,
};

fn all(host: &Host) -> Vec<Consumer> {
    host.judge(|e| consumers(e, &host.group()))
}

fn whole(host: &Host, id: &str) -> Consumer {
    all(host).into_iter().find(|c| c.id == id).unwrap()
}

fn ask(host: &Host, id: &str) -> (ConsumerState, String) {
    let found = whole(host, id);
    (found.state, found.sentence)
}

fn vetoed(words: &str) -> (ConsumerState, String) {
    (ConsumerState::Vetoed, words.to_string())
}

#[test]
fn a_healthy_climb_is_proven_and_as_far_as_its_version_tested() {
    let mut host = Host::root_complex(2);
    host.climb_all();
    let nccl = whole(&host, "nccl-p2p");
    assert_eq!(nccl.state, ConsumerState::Proven);
    assert_eq!(nccl.sentence, "proven up to rung 6; right under load");
    // Load that one of its mechanisms did not come to is not right load.
    let mut cut = Host::root_complex(2);
    cut.climb_all();
    let of_load = |r: &&mut Record| r.case.rung == Rung::Loaded;
    cut.records
        .iter_mut()
        .filter(of_load)
        .last()
        .unwrap()
        .outcome = Outcome::NotRun {
        reason: "interrupted".into(),
    };
    assert_eq!(ask(&cut, "nccl-p2p").1, "proven up to rung 6");
    host.without_reductions();
    let nccl = whole(&host, "nccl-p2p");
    assert_eq!(nccl.state, ConsumerState::Unproven);
    assert!(nccl.as_far_as_tested);
    assert_eq!(nccl.reached, Some(Rung::Resident));
    assert_eq!(
        nccl.sentence,
        "proven up to rung 5; rung 6 (reduced) is not tested by this version; right under load"
    );
    for (id, sentence) in [
        (
            "single-process-python",
            "proven up to rung 3; right under load",
        ),
        (
            "llama-cpp-peer-copies",
            "proven up to rung 2; right under load",
        ),
        ("host-staged", "proven up to rung 1"),
    ] {
        assert_eq!(
            ask(&host, id),
            (ConsumerState::Proven, sentence.to_string())
        );
    }
    let reason = "not covered: it serves compute capability 7.0 and 7.5";
    assert_eq!(ask(&host, "host-reduce").1, reason);
}

#[test]
fn a_report_of_fewer_rungs_leaves_the_higher_ones_open() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    assert_eq!(
        ask(&host, "llama-cpp-peer-copies"),
        (ConsumerState::Proven, "proven up to rung 2".to_string())
    );
    let (state, sentence) = ask(&host, "nccl-p2p");
    assert_eq!(state, ConsumerState::Unproven);
    assert_eq!(
        sentence,
        "unproven because sm-store4 at rung 3 was not tested; rungs 4 to 6 were not tested; proven up to rung 2"
    );
}

#[test]
fn one_broken_pair_vetoes_the_group_and_leaves_the_host_path() {
    let mut host = Host::root_complex(8);
    host.climb_all();
    host.set_wrong(pair(2, 5), "sm-store", WrongKind::Dropped);
    for id in ["nccl-p2p", "flashinfer-pcie-ipc", "single-process-python"] {
        assert_eq!(
            ask(&host, id),
            vetoed("vetoed by pair 2->5 at rung 3 (sm-store: dropped)"),
            "{id}"
        );
    }
    host.set_wrong(pair(3, 1), "ce-pull", WrongKind::Stale);
    assert_eq!(
        ask(&host, "nccl-p2p"),
        vetoed("vetoed by pair 3->1 at rung 2 (ce-pull: stale; and 1 more pair)")
    );
    assert_eq!(ask(&host, "host-staged").0, ConsumerState::Proven);
    let others = host.judge(|e| consumers(e, &[GpuIndex(0), GpuIndex(1)]));
    assert!(others.iter().all(|c| c.state != ConsumerState::Vetoed));
}

#[test]
fn a_mechanism_vetoes_those_alone_who_use_it() {
    let mut host = Host::root_complex(2);
    host.climb_all();
    host.set_wrong(pair(0, 1), "pool-ce-push", WrongKind::Dropped);
    let states = |host: &Host| -> Vec<String> {
        let hit = all(host)
            .into_iter()
            .filter(|c| c.state == ConsumerState::Vetoed);
        hit.map(|c| c.id).collect()
    };
    assert_eq!(states(&host), ["single-process-python"]);
    let mut host = Host::root_complex(2);
    host.climb_all();
    host.set_wrong(pair(0, 1), "ipc-sm-load", WrongKind::Zeroed);
    assert_eq!(
        states(&host),
        ["nccl-p2p", "custom-all-reduce", "flashinfer-pcie-ipc"]
    );
    let mut host = Host::root_complex(2);
    host.climb_all();
    host.set_wrong(pair(1, 0), "host-exchange", WrongKind::Stale);
    assert_eq!(states(&host), ["host-staged", "host-reduce"]);
}

#[test]
fn wrong_only_under_load_vetoes_and_says_so() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    host.load(
        pair(0, 1),
        "ce-push",
        Load::AllPairs,
        wrong(WrongKind::Zeroed),
        0.0,
    );
    assert_eq!(
        ask(&host, "llama-cpp-peer-copies"),
        vetoed("vetoed by pair 0->1 at rung 7 (ce-push: zeroed, only under load)")
    );
    let reason = "unsafe after rung 2".to_string();
    host.load(
        pair(0, 1),
        "ce-push",
        Load::AllPairs,
        Outcome::NotRun { reason },
        0.0,
    );
    // Load is nobody's need: without it a proof says nothing of load.
    assert_eq!(ask(&host, "llama-cpp-peer-copies").1, "proven up to rung 2");
}

#[test]
fn a_waiting_kernel_that_gave_up_vetoes_kernels_that_wait() {
    let mut host = Host::nvswitch(2);
    host.climb_all();
    let never = Outcome::Never {
        round: 3,
        rounds: 1000,
        after_ms: 2000,
        missing: None,
    };
    host.set(pair(1, 0), "ipc-resident", never);
    assert_eq!(
        ask(&host, "symmetric-memory"),
        vetoed("vetoed by pair 1->0 at rung 5 (ipc-resident: never)")
    );
    assert_eq!(ask(&host, "single-process-python").0, ConsumerState::Proven);
}

#[test]
fn one_way_to_share_memory_is_enough_and_a_refused_one_is_no_veto() {
    let mut host = Host::root_complex(2);
    host.climb_all();
    for p in [pair(0, 1), pair(1, 0)] {
        for mechanism in ["ipc-ce-push", "ipc-ce-pull", "ipc-sm-load", "ipc-sm-store"] {
            host.set(p, mechanism, refusal(801));
        }
    }
    assert!(ask(&host, "nccl-p2p").1.starts_with("proven up to rung 6"));
    assert_eq!(
        ask(&host, "flashinfer-pcie-ipc").1,
        "unproven because ipc-ce-pull at rung 4 was refused on pair 0->1 (801 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED); proven up to rung 3"
    );
    host.without_reductions();
    let reason = "the budget was spent".to_string();
    host.set(pair(0, 1), "vmm-sm-load", Outcome::NotRun { reason });
    assert_eq!(
        ask(&host, "nccl-p2p").1,
        "unproven because vmm-sm-load at rung 4 did not run on pair 0->1 (the budget was spent); rung 6 (reduced) is not tested by this version; proven up to rung 3"
    );
}

#[test]
fn islands_are_asked_when_the_group_fails() {
    let mut host = Host::root_complex(8);
    host.climb_all();
    for p in OrderedPair::all(8) {
        if (p.source.0 < 4) == (p.destination.0 < 4) {
            host.snapshot.topology.pairs.get_mut(p).unwrap().pcie = Some(PathType::Pix);
        }
    }
    let half = |joined_by: &str, from: u32| Island {
        joined_by: joined_by.to_string(),
        gpus: (from..from + 4).map(GpuIndex).collect(),
    };
    host.snapshot.topology.islands = vec![
        half("PIX", 0),
        half("PIX", 4),
        half("NUMA node 0", 0),
        half("NUMA node 1", 4),
    ];
    assert!(whole(&host, "nccl-p2p").islands.is_empty());
    host.set_wrong(pair(1, 2), "sm-load", WrongKind::Zeroed);
    let islands = whole(&host, "nccl-p2p").islands;
    let told: Vec<(&str, ConsumerState)> = islands
        .iter()
        .map(|i| (i.joined_by.as_str(), i.state))
        .collect();
    assert_eq!(
        told,
        [
            ("PIX", ConsumerState::Vetoed),
            ("PIX", ConsumerState::Proven)
        ]
    );
    assert!(islands[1].sentence.starts_with("proven up to rung 6"));
}

#[test]
fn engines_leave_custom_all_reduce_and_symmetric_memory_off_on_large_pcie_groups() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    for id in ["custom-all-reduce", "symmetric-memory"] {
        assert_eq!(ask(&host, id).0, ConsumerState::NotApplicable);
    }
    let mut host = Host::nvswitch(4);
    host.climb_all();
    assert_eq!(ask(&host, "custom-all-reduce").0, ConsumerState::Proven);
    assert_eq!(
        ask(&host, "flashinfer-pcie-ipc").0,
        ConsumerState::NotApplicable
    );
}

#[test]
fn without_peer_access_python_goes_through_the_host() {
    let mut host = Host::root_complex(2);
    host.claim_all("GNS");
    host.refused();
    assert_eq!(
        ask(&host, "nccl-p2p"),
        (
            ConsumerState::NotApplicable,
            "does not exist here: no peer access on pair 0->1".to_string()
        )
    );
    assert_eq!(
        ask(&host, "single-process-python"),
        (
            ConsumerState::Proven,
            "proven up to rung 1 (copies go through the host)".to_string()
        )
    );
    host.claim_all("OK");
    assert_eq!(ask(&host, "nccl-p2p").0, ConsumerState::Unproven);
}

#[test]
fn nothing_tried_is_unproven_and_a_condemned_gpu_vetoes_all() {
    let mut host = Host::root_complex(2);
    assert_eq!(
        ask(&host, "llama-cpp-peer-copies").1,
        "unproven because rung 2 (copied) was not tested"
    );
    host.all_intact();
    let outcome = wrong(WrongKind::Flipped);
    host.put(Subject::Gpu(GpuIndex(1)), "memory", Rung::Alone, outcome);
    assert_eq!(
        ask(&host, "host-staged").1,
        "vetoed by GPU1, which fails by itself"
    );
    let one = Host::root_complex(1);
    assert_eq!(ask(&one, "nccl-p2p").0, ConsumerState::NotApplicable);
}

#[test]
fn a_group_that_fails_together_vetoes_those_who_reduce_over_it() {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    let zeroed = || wrong(WrongKind::Zeroed);
    host.together(0..8, "one-shot-push", zeroed());
    assert_eq!(
        ask(&host, "nccl-p2p"),
        vetoed("vetoed by GPUs 0-7 together at rung 6 (one-shot-push: zeroed)")
    );
    let veto = whole(&host, "nccl-p2p").vetoes.remove(0);
    assert_eq!((veto.pair, veto.group.map(|g| g.count())), (None, Some(8)));
    // Copies are nobody's all-reduce.
    assert_eq!(ask(&host, "llama-cpp-peer-copies").0, ConsumerState::Proven);
    // A part of it is not vetoed, and not proven either until it was asked itself.
    let half: Vec<GpuIndex> = (0..4).map(GpuIndex).collect();
    let of_half = |host: &Host| {
        let mut all = host.judge(|e| consumers(e, &half));
        all.retain(|c| c.id == "nccl-p2p");
        (all[0].state, all[0].sentence.clone())
    };
    assert_eq!(of_half(&host).0, ConsumerState::Unproven);
    for mechanism in ["one-shot-push", "ipc-one-shot-push"] {
        host.together(0..4, mechanism, Outcome::Intact);
    }
    assert_eq!(of_half(&host).0, ConsumerState::Proven);
    host.together(4..8, "ipc-one-shot-push", zeroed());
    assert!(
        ask(&host, "nccl-p2p").1.contains("and 1 more group"),
        "{}",
        ask(&host, "nccl-p2p").1
    );
    assert_eq!(of_half(&host).0, ConsumerState::Proven);
}

#[test]
fn right_pairs_do_not_prove_the_group() {
    let mut host = Host::nvswitch(4);
    host.climb_all();
    host.records.retain(|r| r.case.subject.group().is_none());
    assert_eq!(
        ask(&host, "nccl-p2p"),
        (
            ConsumerState::Unproven,
            "unproven because the group as a whole at rung 6 was not tested; proven up to rung 5"
                .to_string()
        )
    );
    let reason = "unsafe after rung 2".to_string();
    host.together(0..4, "one-shot-push", Outcome::NotRun { reason });
    assert_eq!(
        ask(&host, "nccl-p2p").1,
        "unproven because one-shot-push at rung 6 did not run on GPUs 0-3 (unsafe after rung 2); proven up to rung 5"
    );
}

#[test]
fn rungs_in_words() {
    let rungs = [Rung::Copied, Rung::Shared, Rung::Resident];
    assert_eq!(ranges(&rungs, "was", "were"), "rungs 2 and 4 to 5 were");
    assert_eq!(ranges(&[Rung::Reduced], "is", "are"), "rung 6 (reduced) is");
}
