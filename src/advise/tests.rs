//! Decisions on small synthetic hosts.

use super::{AdviseError, Request, recommend};
use crate::{
    diagnose::{
        consumers,
        sample::{Host, pair},
    },
    model::{
        case::{Outcome, Rung, Subject, WrongKind},
        finding::{Recommendation, Setting},
        pair::GpuIndex,
        reading::Reading,
    },
    profile::Profiles,
};

fn request(engine: &str, tp: u32) -> Request {
    Request {
        engine: engine.into(),
        model: Some("glm-5.2".into()),
        tp,
        batch: 32,
        ..Request::default()
    }
}

fn ask(host: &Host, request: &Request) -> Recommendation {
    let profiles = Profiles::embedded().unwrap();
    host.judge(|e| {
        let users = consumers(e, &host.group());
        recommend(Some(e), &users, request, &profiles).unwrap()
    })
}

fn find<'a>(list: &'a [Setting], name: &str) -> Option<&'a Setting> {
    list.iter().find(|s| s.name == name)
}

fn refusal<'a>(answer: &'a Recommendation, id: &str) -> &'a str {
    &answer.refused.iter().find(|(b, _)| b == id).unwrap().1
}

#[test]
fn a_failed_pair_switches_every_peer_path_off_together() {
    for engine in ["vllm", "sglang"] {
        let mut host = Host::root_complex(8);
        host.all_intact();
        host.set_wrong(pair(2, 5), "sm-store", WrongKind::Dropped);
        let answer = ask(&host, &request(engine, 8));
        assert_eq!(answer.backend, "nccl");
        let p2p = find(&answer.environment, "NCCL_P2P_DISABLE").unwrap();
        assert_eq!(p2p.value.as_deref(), Some("1"));
        assert!(
            p2p.basis.contains("2->5 sm-store was dropped"),
            "{}",
            p2p.basis
        );
        assert!(find(&answer.flags, "--disable-custom-all-reduce").is_some());
        let symmetric = find(&answer.environment, "VLLM_ALLREDUCE_USE_SYMM_MEM").unwrap();
        assert_eq!(symmetric.value.as_deref(), Some("0"));
        assert!(find(&answer.unset, "GGML_CUDA_P2P").is_some());
        assert!(find(&answer.unset, "NCCL_SHM_DISABLE").is_some());
        assert!(find(&answer.environment, "NCCL_P2P_LEVEL").is_none());
        assert!(find(&answer.environment, "SGLANG_PCIE_IPC_MAX_NUMEL").is_none());
        assert!(refusal(&answer, "custom-all-reduce").contains("2->5"));
    }
}

#[test]
fn a_group_beside_the_broken_pair_keeps_its_peers_and_is_warned() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    host.set_wrong(pair(6, 7), "ce-push", WrongKind::Zeroed);
    let answer = ask(&host, &request("vllm", 4));
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
    assert!(answer.caveats.iter().any(|c| c.contains("6->7")));
    let mut two = request("vllm", 2);
    two.group = Some(vec![GpuIndex(0), GpuIndex(1)]);
    assert_eq!(ask(&host, &two).backend, "custom-all-reduce");
}

#[test]
fn a_proven_root_complex_gets_nccl_with_peers_across_the_cpu() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    for engine in ["vllm", "sglang"] {
        let answer = ask(&host, &request(engine, 8));
        assert_eq!(answer.backend, "nccl");
        let level = find(&answer.environment, "NCCL_P2P_LEVEL").unwrap();
        assert_eq!(level.value.as_deref(), Some("SYS"));
        assert!(level.basis.contains("rung 3"));
        assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
        assert!(refusal(&answer, "custom-all-reduce").contains("NVLink on every pair"));
        assert!(refusal(&answer, "flashinfer-pcie-ipc").starts_with("candidate, unproven"));
        assert!(answer.caveats.iter().any(|c| c.contains("is a candidate")));
    }
}

#[test]
fn proven_rungs_turn_the_candidate_into_the_choice() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    for p in crate::model::pair::OrderedPair::all(8) {
        for rung in [Rung::Shared, Rung::Resident, Rung::Reduced] {
            host.put(Subject::Pair(p), rung.name(), rung, Outcome::Intact);
        }
    }
    // Right pairs are no proof of eight ranks at once.
    let answer = ask(&host, &request("vllm", 8));
    assert_ne!(answer.backend, "flashinfer-pcie-ipc");
    host.together(0..8, "one-shot-push", Outcome::Intact);
    let answer = ask(&host, &request("vllm", 8));
    assert_eq!(answer.backend, "flashinfer-pcie-ipc");
    assert!(find(&answer.flags, "--compilation-config").is_some());
    let answer = ask(&host, &request("sglang", 8));
    assert_eq!(answer.backend, "flashinfer-pcie-ipc");
    let on = find(&answer.environment, "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE").unwrap();
    assert_eq!(on.value.as_deref(), Some("1"));
    let numel = find(&answer.environment, "SGLANG_PCIE_IPC_MAX_NUMEL").unwrap();
    assert_eq!(numel.value.as_deref(), Some("196608"));
}

#[test]
fn nvswitch_keeps_the_engines_own_kernels() {
    let mut host = Host::nvswitch(8);
    host.all_intact();
    for engine in ["vllm", "sglang"] {
        let answer = ask(&host, &request(engine, 8));
        assert_ne!(answer.backend, "nccl", "{engine}");
        assert!(find(&answer.environment, "NCCL_P2P_LEVEL").is_none());
        assert!(find(&answer.flags, "--disable-custom-all-reduce").is_none());
    }
    let mut large = request("vllm", 8);
    large.batch = 512;
    let answer = ask(&host, &large);
    assert_eq!(answer.backend, "torch-symmetric-memory");
    assert!(refusal(&answer, "custom-all-reduce").contains("262,128"));
}

#[test]
fn nothing_known_keeps_to_the_host_path_and_says_so() {
    let profiles = Profiles::embedded().unwrap();
    let answer = recommend(None, &[], &request("vllm", 8), &profiles).unwrap();
    assert_eq!(answer.backend, "nccl");
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_some());
    assert!(
        answer
            .caveats
            .iter()
            .any(|c| c.contains("peerproof qualify"))
    );
    let untried = ask(&Host::nvswitch(8), &request("vllm", 8));
    assert_eq!(untried.backend, "nccl");
    assert!(untried.caveats.iter().any(|c| c.contains("unproven")));
}

#[test]
fn two_gpus_without_peers_go_through_the_host() {
    let mut host = Host::root_complex(2);
    host.claim_all("CNS");
    host.refused();
    let answer = ask(&host, &request("sglang", 2));
    assert_eq!(answer.backend, "nccl");
    assert_eq!(answer.backend_name, "NCCL through shared host memory");
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
    assert!(answer.caveats.iter().any(|c| c.contains("--shm-size")));
    assert!(refusal(&answer, "custom-all-reduce").contains("CNS"));
}

#[test]
fn two_proven_pcie_gpus_get_the_custom_kernel_unless_the_driver_is_patched() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    assert_eq!(ask(&host, &request("vllm", 2)).backend, "custom-all-reduce");
    assert_eq!(
        ask(&host, &request("sglang", 2)).backend,
        "custom-all-reduce-legacy"
    );
    host.name_all("NVIDIA GeForce RTX 3090");
    let answer = ask(&host, &request("vllm", 2));
    assert_eq!(answer.backend, "nccl");
    assert!(find(&answer.flags, "--disable-custom-all-reduce").is_some());
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
}

#[test]
fn the_flag_that_makes_sizes_meet_is_printed() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    let mut sglang = request("sglang", 8);
    (sglang.draft_tokens, sglang.spec) = (Some(5), Some("DSPARK".into()));
    sglang.hidden = Some(4096);
    let answer = ask(&host, &sglang);
    let numel = find(&answer.environment, "SGLANG_PCIE_IPC_MAX_NUMEL").unwrap();
    assert_eq!(numel.value.as_deref(), Some("786432"));
    let requests = find(&answer.flags, "--cuda-graph-max-bs-decode").unwrap();
    assert_eq!(requests.value.as_deref(), Some("32"));
    let mut vllm = request("vllm", 8);
    vllm.draft_tokens = Some(5);
    let answer = ask(&host, &vllm);
    assert_eq!(
        find(&answer.flags, "--max-num-seqs")
            .unwrap()
            .value
            .as_deref(),
        Some("32")
    );
    // The engine's own graphs hold a full decode step and NCCL needs no workspace: the flag is named, and not pressed on
    // anyone.
    assert!(find(&answer.flags, "--compilation-config").is_none());
    let reason = answer.sizing.unwrap().engine_reason;
    assert!(
        reason.contains("{\"cudagraph_capture_sizes\":[6,12,24,48,96,192]}"),
        "{reason}"
    );
    vllm.batch = 128;
    let answer = ask(&host, &vllm);
    let config = find(&answer.flags, "--compilation-config").unwrap();
    assert!(config.value.as_ref().unwrap().ends_with(",768]}"));
}

#[test]
fn other_group_sizes_are_not_rounded() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    let answer = ask(&host, &request("vllm", 6));
    assert!(refusal(&answer, "flashinfer-pcie-ipc").starts_with("not covered"));
    assert!(
        answer
            .caveats
            .iter()
            .any(|c| c.contains("TP 6 is not covered"))
    );
    assert_eq!(answer.sizing.unwrap().workspace_bytes_per_rank, None);
    let one = ask(&host, &request("vllm", 1));
    assert_eq!(one.backend, "none");
}

#[test]
fn traps_of_the_environment_and_rank_order_are_said() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    host.snapshot.environment = vec![
        ("GGML_CUDA_P2P".into(), "0".into()),
        (
            "PYTORCH_CUDA_ALLOC_CONF".into(),
            "expandable_segments:True".into(),
        ),
    ];
    for (i, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
        gpu.numa_node = Reading::Known(i as i32 % 2);
    }
    let mut given = request("sglang", 8);
    given.group = Some((0..8).map(GpuIndex).collect());
    let answer = ask(&host, &given);
    for word in ["presence alone", "expandable_segments", "rank order"] {
        assert!(answer.caveats.iter().any(|c| c.contains(word)), "{word}");
    }
    let mut ordered = request("sglang", 8);
    ordered.group = Some([0, 2, 4, 6, 1, 3, 5, 7].map(GpuIndex).to_vec());
    let answer = ask(&host, &ordered);
    assert!(!answer.caveats.iter().any(|c| c.contains("rank order")));
    let visible = find(&answer.environment, "CUDA_VISIBLE_DEVICES").unwrap();
    assert_eq!(visible.value.as_deref(), Some("0,2,4,6,1,3,5,7"));
}

#[test]
fn every_setting_has_a_reason_and_a_basis() {
    let mut broken = Host::root_complex(8);
    broken.direct_wrong(WrongKind::Zeroed, |_| true);
    let mut sound = Host::nvswitch(8);
    sound.all_intact();
    for host in [broken, sound] {
        for engine in ["vllm", "sglang"] {
            let answer = ask(&host, &request(engine, 8));
            let all = answer
                .flags
                .iter()
                .chain(&answer.environment)
                .chain(&answer.unset);
            for setting in all {
                assert!(!setting.because.is_empty() && !setting.basis.is_empty());
            }
        }
    }
}

#[test]
fn questions_without_an_answer_say_what_would_do() {
    let mut host = Host::root_complex(2);
    host.all_intact();
    let profiles = Profiles::embedded().unwrap();
    let error = |request: Request| {
        host.judge(|e| recommend(Some(e), &[], &request, &profiles).unwrap_err())
    };
    let said = error(request("vlm", 2)).to_string();
    assert!(said.contains("nccl, python, sglang"), "{said}");
    assert_eq!(
        error(request("vllm", 4)),
        AdviseError::NoSuchGpu {
            gpu: GpuIndex(2),
            count: 2
        }
    );
    assert_eq!(error(request("vllm", 0)), AdviseError::Zero("--tp"));
    let mut group = request("vllm", 2);
    group.group = Some(vec![GpuIndex(0)]);
    assert_eq!(error(group), AdviseError::GroupSize { members: 1, tp: 2 });
    let mut twice = request("vllm", 2);
    twice.group = Some(vec![GpuIndex(1), GpuIndex(1)]);
    assert_eq!(error(twice), AdviseError::Twice(GpuIndex(1)));
    let mut huge = request("vllm", 2);
    huge.batch = u64::MAX;
    assert_eq!(error(huge), AdviseError::TooLarge);
    let mut zero = request("vllm", 2);
    zero.batch = 0;
    assert_eq!(error(zero), AdviseError::Zero("--batch"));
}

#[test]
fn profiles_name_consumers_that_exist() {
    let host = Host::root_complex(2);
    let known: Vec<String> = host
        .judge(|e| consumers(e, &host.group()))
        .into_iter()
        .map(|c| c.id)
        .collect();
    for engine in Profiles::embedded().unwrap().engines {
        for backend in engine.backends {
            // Reductions through pinned host memory are judged by the staged rung until they have a consumer of their own.
            let consumer = backend.consumer.unwrap();
            let judged = known.contains(&consumer) || consumer == "host-reduce";
            assert!(judged, "{}: {consumer}", backend.id);
        }
    }
}

#[test]
fn a_broken_host_path_or_gpu_gets_no_settings_and_is_blamed_for_itself() {
    let mut staged = Host::root_complex(2);
    staged.all_intact();
    staged.set_wrong(pair(0, 1), "staged", WrongKind::Zeroed);
    let mut bounce = Host::root_complex(2);
    bounce.direct_wrong(WrongKind::Zeroed, |_| true);
    bounce.set_wrong(pair(1, 0), "bounce", WrongKind::Flipped);
    let mut memory = Host::root_complex(2);
    memory.all_intact();
    memory.put(
        Subject::Gpu(GpuIndex(1)),
        "memory",
        Rung::Alone,
        crate::diagnose::sample::wrong(WrongKind::Flipped),
    );
    for (host, why) in [
        (staged, "the host path failed: record "),
        (bounce, "the host path failed: record "),
        (memory, "GPU1 fails by itself: record "),
    ] {
        for engine in ["vllm", "sglang"] {
            let answer = ask(&host, &request(engine, 2));
            assert_eq!(answer.backend, "none");
            let headline = format!("do not serve on this group: {why}");
            assert!(
                answer.backend_name.starts_with(&headline),
                "{}",
                answer.backend_name
            );
            let settings = answer.flags.len() + answer.environment.len() + answer.unset.len();
            assert_eq!(settings, 0);
            assert!(answer.sizing.is_some());
            assert!(answer.refused.iter().all(|(_, r)| r.starts_with(why)));
        }
    }
}

#[test]
fn one_condemned_gpu_is_no_group_of_one() {
    let mut host = Host::root_complex(1);
    host.put(
        Subject::Gpu(GpuIndex(0)),
        "memory",
        Rung::Alone,
        crate::diagnose::sample::wrong(WrongKind::Flipped),
    );
    let answer = ask(&host, &request("vllm", 1));
    assert!(answer.flags.is_empty());
    assert!(answer.backend_name.starts_with("do not serve"));
}
