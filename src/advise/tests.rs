//! Decisions on small synthetic hosts.

use super::{AdviseError, Request, recommend};
use crate::{
    diagnose::{
        consumers,
        sample::{Host, pair},
    },
    model::{
        case::{Outcome, Rung, Subject, WrongKind},
        finding::{ConsumerState, Recommendation, Setting, Standing},
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
        host.climb_all();
        host.set_wrong(pair(2, 5), "sm-store", WrongKind::Dropped);
        let answer = ask(&host, &request(engine, 8));
        assert_eq!(answer.backend, "nccl");
        let p2p = find(&answer.environment, "NCCL_P2P_DISABLE").unwrap();
        assert_eq!(p2p.value.as_deref(), Some("1"));
        assert!(
            p2p.basis.contains("2->5 sm-store: dropped"),
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

/// Memory of pools that fails takes nothing from engines that let peers touch none of it: settings, table and the verdict on
/// consumers are one judgement.
#[test]
fn pool_memory_is_held_against_those_alone_who_use_it() {
    for mechanism in ["pool-sm-store", "pool-ce-push", "pool-sm-load"] {
        let mut host = Host::root_complex(2);
        host.climb_all();
        host.set_wrong(pair(0, 1), mechanism, WrongKind::Dropped);
        for (engine, backend) in [
            ("vllm", "flashinfer-pcie-ipc"),
            ("sglang", "custom-all-reduce-legacy"),
            ("nccl", "nccl"),
        ] {
            let answer = ask(&host, &request(engine, 2));
            assert_eq!(answer.backend, backend, "{engine}: {answer:#?}");
            assert!(
                find(&answer.environment, "NCCL_P2P_DISABLE").is_none(),
                "{engine}"
            );
            assert!(
                answer.refused.iter().all(|(_, why)| !why.contains("pool-")),
                "{engine}: {:?}",
                answer.refused
            );
            assert!(
                answer.caveats.iter().all(|c| !c.contains("pool-")),
                "{engine}: {:?}",
                answer.caveats
            );
        }
        let own = ask(&host, &request("python", 2));
        assert_eq!(own.backend, "host-copies");
        assert!(refusal(&own, "peer-copies").contains(mechanism), "{own:#?}");
    }
    // Kernels that wait were not run beside it: unproven to all, and failed to none but pools.
    let mut host = Host::root_complex(2);
    host.climb_all();
    host.records.retain(|r| r.case.rung < Rung::Resident);
    host.set_wrong(pair(0, 1), "pool-sm-store", WrongKind::Dropped);
    let answer = ask(&host, &request("vllm", 2));
    assert_eq!(answer.backend_name, "NCCL through shared host memory");
    let says = |c: &String| c.starts_with("peers are unproven (");
    assert!(answer.caveats.iter().any(says), "{:?}", answer.caveats);
    assert!(
        refusal(&answer, "custom-all-reduce").starts_with("unproven: "),
        "{answer:#?}"
    );
}

/// A failed way through the host is nobody's proven one.
#[test]
fn settings_and_consumers_say_the_same_of_the_way_through_the_host() {
    for mechanism in ["staged", "bounce", "host-exchange"] {
        let mut host = Host::root_complex(2);
        host.claim_all("GNS");
        host.climb_all();
        host.set_wrong(pair(0, 1), mechanism, WrongKind::Zeroed);
        let answer = ask(&host, &request("vllm", 2));
        assert!(
            answer.backend_name.starts_with("do not serve"),
            "{}",
            answer.backend_name
        );
        let users = host.judge(|e| consumers(e, &host.group()));
        let staged = users.iter().find(|c| c.id == "host-staged").unwrap();
        assert_eq!(
            staged.state,
            ConsumerState::Vetoed,
            "{mechanism}: {staged:?}"
        );
        assert!(staged.sentence.contains(mechanism), "{}", staged.sentence);
    }
}

#[test]
fn a_size_that_does_not_divide_the_heads_is_refused() {
    let profiles = Profiles::embedded().unwrap();
    let config = crate::profile::read_config(
        "config.json",
        r#"{"hidden_size":8192,"num_attention_heads":64,"num_key_value_heads":8}"#,
    )
    .unwrap();
    let asked = |engine: &str, tp: u32| {
        let mut request = request(engine, tp);
        request.config = Some(config.clone());
        recommend(None, &[], &request, &profiles)
    };
    for engine in ["vllm", "sglang", "tensorrt-llm", "1cat-vllm"] {
        let said = asked(engine, 3).unwrap_err().to_string();
        assert!(
            said.contains("64 attention heads") && said.contains("1, 2, 4, 8, 16"),
            "{said}"
        );
        assert!(asked(engine, 4).is_ok());
    }
    for engine in ["nccl", "llama.cpp"] {
        assert!(asked(engine, 3).is_ok(), "{engine}");
    }
}

#[test]
fn a_group_beside_the_broken_pair_keeps_its_peers_and_is_warned() {
    let mut host = Host::root_complex(8);
    host.climb_all();
    host.set_wrong(pair(6, 7), "ce-push", WrongKind::Zeroed);
    let answer = ask(&host, &request("vllm", 4));
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
    assert!(answer.caveats.iter().any(|c| c.contains("6->7")));
    let mut two = request("vllm", 2);
    two.group = Some(vec![GpuIndex(0), GpuIndex(1)]);
    assert_eq!(ask(&host, &two).backend, "flashinfer-pcie-ipc");
}

#[test]
fn a_proven_root_complex_gets_nccl_with_peers_across_the_cpu() {
    let mut host = Host::root_complex(8);
    host.climb_all();
    for engine in ["vllm", "sglang"] {
        // Beside data parallelism there is NCCL alone.
        let mut asked = request(engine, 8);
        asked.data_parallel = 2;
        let answer = ask(&host, &asked);
        assert_eq!(answer.backend, "nccl");
        let level = find(&answer.environment, "NCCL_P2P_LEVEL").unwrap();
        assert_eq!(level.value.as_deref(), Some("SYS"));
        assert!(level.basis.contains("intact up to rung"), "{}", level.basis);
        assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
        assert!(refusal(&answer, "custom-all-reduce").contains("NVLink on every pair"));
        let published = |w: &crate::model::finding::Worth| w.says.contains("peers across the CPU");
        assert!(answer.worth.iter().any(published));
    }
}

/// Right pairs up to rung 3 are no proof for those who stand on higher rungs: the first proven way is the host's, and the
/// others stay in the list with what is missing and the command that would tell.
#[test]
fn what_is_proven_is_chosen_before_what_is_not() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    let gap = "rungs 4 to 6 were not tested";
    for (engine, tp, kernel, gpus) in [
        ("vllm", 2, "custom-all-reduce", "0,1"),
        ("sglang", 2, "custom-all-reduce-legacy", "0,1"),
        ("vllm", 8, "flashinfer-pcie-ipc", "0,1,2,3,4,5,6,7"),
        ("sglang", 8, "flashinfer-pcie-ipc", "0,1,2,3,4,5,6,7"),
    ] {
        let answer = ask(&host, &request(engine, tp));
        assert_eq!(answer.backend, "nccl", "{engine} {tp}");
        assert_eq!(answer.backend_name, "NCCL through shared host memory");
        assert_eq!(answer.proven, Some(Rung::Staged));
        let off = find(&answer.environment, "NCCL_P2P_DISABLE").unwrap();
        assert_eq!(off.value.as_deref(), Some("1"));
        assert!(off.basis.contains(gap), "{}", off.basis);
        assert!(find(&answer.flags, "--disable-custom-all-reduce").is_some());
        assert!(find(&answer.environment, "NCCL_P2P_LEVEL").is_none());
        let place = answer.order.iter().find(|p| p.backend == kernel).unwrap();
        assert_eq!(place.standing, Standing::Possible, "{place:?}");
        let command = format!("'peerproof qualify --gpus {gpus}' would tell");
        assert!(place.because.contains("unproven: "), "{}", place.because);
        assert!(place.because.contains(gap), "{}", place.because);
        assert!(place.because.contains(&command), "{}", place.because);
        let says = |c: &String| c.starts_with("peers are unproven (NCCL P2P: ");
        assert!(answer.caveats.iter().any(says), "{:?}", answer.caveats);
    }
    // With neither peers nor the host path there is nothing to stand on, and that is said.
    let mut open = Host::root_complex(2);
    for p in [pair(0, 1), pair(1, 0)] {
        open.set(p, "ce-push", Outcome::Intact);
    }
    let answer = ask(&open, &request("vllm", 2));
    assert_eq!((answer.backend.as_str(), answer.proven), ("nccl", None));
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_some());
    let says = |c: &String| c.contains("the host path is not proven either");
    assert!(answer.caveats.iter().any(says), "{:?}", answer.caveats);
}

/// NCCL proven by CUDA IPC, symmetric memory not, for nothing was mapped by file descriptor: the one runs, the other is off.
#[test]
fn a_default_backend_that_is_not_proven_is_off_beside_one_that_is() {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    host.records
        .retain(|r| !r.case.mechanism.starts_with("vmm-"));
    let mut asked = request("vllm", 8);
    asked.batch = 16;
    asked.engine_version = Some("0.28.1".parse().unwrap());
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "custom-all-reduce");
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
    assert!(find(&answer.flags, "--disable-custom-all-reduce").is_none());
    let off = find(&answer.environment, "VLLM_ALLREDUCE_USE_SYMM_MEM").unwrap();
    assert_eq!(off.value.as_deref(), Some("0"));
    let missing = "symmetric memory: rung 4 (shared) was not tested";
    assert!(off.basis.contains(missing), "{}", off.basis);
}

/// Whatever one answer sets, the next one sets, unsets or takes back: about any engine, on the host as it was and as it is.
#[test]
fn no_variable_of_an_earlier_answer_is_left_standing() {
    let profiles = Profiles::embedded().unwrap();
    let mut mended = Host::root_complex(4);
    mended.climb_all();
    let mut broken = Host::root_complex(4);
    broken.climb_all();
    broken.direct_wrong(WrongKind::Zeroed, |_| true);
    let mut linked = Host::nvswitch(4);
    linked.climb_all();
    let mut dead = Host::nvswitch(4);
    dead.climb_all();
    dead.direct_wrong(WrongKind::Zeroed, |_| true);
    let answers: Vec<Recommendation> = [&mended, &broken, &linked, &dead]
        .iter()
        .flat_map(|host| {
            let engines = profiles.engines.iter();
            engines.map(|engine| ask(host, &request(&engine.id, 4)))
        })
        .collect();
    let mut vetoes = 0;
    for earlier in &answers {
        for set in &earlier.environment {
            vetoes += usize::from(set.name == "NCCL_P2P_DISABLE");
            for now in &answers {
                let lists = [&now.environment, &now.unset, &now.left_over];
                let told = lists.iter().filter(|l| find(l, &set.name).is_some());
                assert_eq!(
                    told.count(),
                    1,
                    "{} of {} before {} ({})",
                    set.name,
                    earlier.engine,
                    now.engine,
                    now.backend_name
                );
            }
        }
    }
    assert!(vetoes > 4);
    let answer = ask(&mended, &request("vllm", 4));
    for name in [
        "NCCL_P2P_DISABLE",
        "VLLM_ALLREDUCE_USE_SYMM_MEM",
        "NCCL_NVLS_ENABLE",
        "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
        "SGLANG_PCIE_IPC_MAX_NUMEL",
    ] {
        assert!(find(&answer.left_over, name).is_some(), "{name}");
    }
    // What a person chose and this tool never sets is theirs.
    for name in [
        "GGML_CUDA_P2P",
        "VLLM_HOST_STAGED_AR",
        "GGML_CUDA_ALLREDUCE",
    ] {
        assert!(find(&answer.left_over, name).is_none(), "{name}");
    }
    // One GPU has no peers, and no use for vetoes.
    let alone = ask(&mended, &request("vllm", 1));
    assert!(find(&alone.left_over, "NCCL_P2P_DISABLE").is_some());
}

/// A layer split and a program of one's own reduce nothing.
#[test]
fn what_reduces_nothing_gets_no_sizes_of_reductions() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    for engine in ["llama.cpp", "ik-llama.cpp"] {
        let mut asked = request(engine, 4);
        asked.batch = 2;
        asked.crossovers = Vec::new();
        let answer = ask(&host, &asked);
        assert_eq!(answer.backend, "layer-split");
        let sizing = answer.sizing.unwrap();
        assert_eq!(sizing.all_reduces, None);
        assert_eq!(sizing.workspace_bytes_per_rank, None);
        // Two rows of 6144 values of four bytes.
        assert_eq!(
            (sizing.payload_bytes, sizing.dtype.as_str()),
            (49_152, "fp32")
        );
        let crossing = sizing.crossing.unwrap();
        assert!(crossing.contains("49,152 bytes"), "{crossing}");
        assert!(crossing.contains("3 crossings for 4 GPUs"), "{crossing}");
        assert!(answer.worth.iter().all(|w| !w.says.contains("reduction")));
    }
    let python = ask(&host, &request("python", 4));
    assert_eq!(python.sizing, None);
    assert!(python.caveats.iter().any(|c| c.starts_with("no sizes: ")));
    let nccl = ask(&host, &request("nccl", 4)).sizing.unwrap();
    assert_eq!((nccl.all_reduces, nccl.crossing), (Some(157), None));
}

#[test]
fn proven_rungs_turn_the_candidate_into_the_choice() {
    let mut host = Host::root_complex(8);
    host.climb_all();
    // Right pairs are no proof of eight ranks at once.
    let mut apart = Host::root_complex(8);
    apart.climb_all();
    apart.records.retain(|r| r.case.subject.group().is_none());
    let answer = ask(&apart, &request("vllm", 8));
    assert_eq!(answer.backend, "nccl");
    assert!(refusal(&answer, "flashinfer-pcie-ipc").starts_with("candidate, unproven"));
    assert!(answer.caveats.iter().any(|c| c.contains("is a candidate")));
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
    host.climb_all();
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
    host.climb_all();
    // FlashInfer's kernels come before it where the version has them.
    let mut older = request("vllm", 2);
    older.engine_version = Some("0.28.1".parse().unwrap());
    assert_eq!(ask(&host, &older).backend, "custom-all-reduce");
    assert_eq!(
        ask(&host, &request("sglang", 2)).backend,
        "custom-all-reduce-legacy"
    );
    host.name_all("NVIDIA GeForce RTX 3090");
    let answer = ask(&host, &older);
    assert_eq!(answer.backend, "nccl");
    assert!(find(&answer.flags, "--disable-custom-all-reduce").is_some());
    assert!(find(&answer.environment, "NCCL_P2P_DISABLE").is_none());
}

#[test]
fn the_flag_that_makes_sizes_meet_is_printed() {
    let mut host = Host::root_complex(8);
    host.climb_all();
    let mut sglang = request("sglang", 8);
    (sglang.draft_tokens, sglang.spec) = (Some(5), Some("DSPARK".into()));
    sglang.hidden = Some(4096);
    let answer = ask(&host, &sglang);
    let numel = find(&answer.environment, "SGLANG_PCIE_IPC_MAX_NUMEL").unwrap();
    assert_eq!(numel.value.as_deref(), Some("786432"));
    let requests = find(&answer.flags, "--cuda-graph-max-bs-decode").unwrap();
    assert_eq!(requests.value.as_deref(), Some("32"));
    let mut vllm = request("vllm", 8);
    (vllm.draft_tokens, vllm.data_parallel) = (Some(5), 2);
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
    host.climb_all();
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
    host.climb_all();
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
    sound.climb_all();
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
    host.climb_all();
    let profiles = Profiles::embedded().unwrap();
    let error = |request: Request| {
        host.judge(|e| recommend(Some(e), &[], &request, &profiles).unwrap_err())
    };
    let said = error(request("vlm", 2)).to_string();
    assert!(said.contains("nccl, python, sglang"), "{said}");
    assert_eq!(
        error(request("vllm", 4)),
        AdviseError::TooFew { tp: 4, count: 2 }
    );
    let mut absent = request("vllm", 2);
    absent.group = Some(vec![GpuIndex(0), GpuIndex(2)]);
    assert_eq!(
        error(absent),
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
    staged.climb_all();
    staged.set_wrong(pair(0, 1), "staged", WrongKind::Zeroed);
    let mut bounce = Host::root_complex(2);
    bounce.direct_wrong(WrongKind::Zeroed, |_| true);
    bounce.set_wrong(pair(1, 0), "bounce", WrongKind::Flipped);
    let mut memory = Host::root_complex(2);
    memory.climb_all();
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

/// A candidate is told with what it needs, and without a list where it needs nothing more.
#[test]
fn no_sentence_on_a_candidate_ends_in_an_empty_list() {
    let mut host = Host::nvswitch(4);
    host.all_intact();
    for gpu in &mut host.snapshot.gpus {
        gpu.compute_capability = Reading::Known((9, 0));
    }
    let mut told = Vec::new();
    for engine in ["sglang", "vllm"] {
        let answer = ask(&host, &request(engine, 4));
        let candidates = answer.caveats.into_iter();
        told.extend(candidates.filter(|c| c.contains("is a candidate")));
    }
    assert!(
        told.iter()
            .any(|c| c.contains("opt-in by --enable-symm-mem. It has no timeout")),
        "{told:#?}"
    );
    for line in &told {
        assert!(!line.contains("with ."), "{line}");
    }
}

/// Replicas of a mixture of experts exchange data in vLLM; nothing that is said of the tensor-parallel group is said of them.
#[test]
fn replicas_are_independent_where_the_model_is_dense() {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    let told = |engine: &str, model: &str, tp: u32, dp: u32| {
        let mut asked = request(engine, tp);
        (asked.model, asked.data_parallel) = (Some(model.into()), dp);
        let said: Vec<String> = ask(&host, &asked)
            .caveats
            .into_iter()
            .filter(|c| c.contains("data-parallel replicas"))
            .collect();
        said.join("|")
    };
    for tp in [1, 4] {
        let shared = told("vllm", "glm-5.2", tp, 2);
        let all = format!("one group of {} GPUs", 2 * tp);
        assert!(
            shared.contains("not independent") && shared.contains(&all),
            "{shared}"
        );
        let dense = told("vllm", "qwen3-32b", tp, 2);
        assert!(dense.contains("exchange nothing on the GPUs"), "{dense}");
        let open = told("vllm", "glm-4.7", tp, 2);
        assert!(open.contains("is not known"), "{open}");
        assert_eq!(told("vllm", "glm-5.2", tp, 1), "");
        assert_eq!(told("sglang", "glm-5.2", tp, 2), "");
    }
}

/// The launch of two replicas sees the GPUs of both; the settings of one group must not hide the other's.
#[test]
fn replicas_on_one_host_are_not_hidden_from_each_other() {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    let mut asked = request("vllm", 4);
    asked.data_parallel = 2;
    let answer = ask(&host, &asked);
    assert!(find(&answer.environment, "CUDA_VISIBLE_DEVICES").is_none());
    let told = |c: &String| c.contains("replicas take 8 GPUs") && c.contains("GPUs 0, 1, 2, 3");
    assert!(answer.caveats.iter().any(told), "{:?}", answer.caveats);
    // The others of eight GPUs each run elsewhere.
    asked.tp = 8;
    let whole = ask(&host, &asked);
    assert!(find(&whole.environment, "CUDA_VISIBLE_DEVICES").is_some());
}

/// Room that is no workspace of FlashInfer's PCIe kernels is no reason for fewer graphs, and without graphs there are none.
#[test]
fn captured_sizes_are_set_for_what_takes_its_room_from_them() {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    let mut asked = request("vllm", 8);
    asked.draft_tokens = Some(4);
    let linked = ask(&host, &asked);
    assert!(find(&linked.flags, "--compilation-config").is_none());
    asked.eager = true;
    let eager = ask(&host, &asked);
    assert!(find(&eager.flags, "--compilation-config").is_none());
    let sizing = eager.sizing.unwrap();
    assert_eq!(sizing.engine_elements, None);
    assert!(sizing.engine_reason.contains("captures no graph"));
    assert!(!sizing.engine_reason.contains("cudagraph"));
}
