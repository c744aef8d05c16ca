//! The cases that this tool was made for, from evidence to settings (facts: failures.md F66 and F70, engines.md 3.4 and 7.3).

use super::{Request, recommend};
use crate::{
    diagnose::sample::{Host, pair},
    model::{
        case::{Outcome, Rung, WrongKind},
        finding::{Place, Recommendation, Setting, Standing, WorthBasis},
        pair::{GpuIndex, OrderedPair},
        reading::Reading,
        topology::{FabricClass, PathType},
    },
    profile::{Condition, Profiles, SwitchKind},
};

fn ask(host: &Host, request: &Request) -> Recommendation {
    let profiles = Profiles::embedded().unwrap();
    host.judge(|e| recommend(Some(e), &[], request, &profiles).unwrap())
}

fn value<'a>(list: &'a [Setting], name: &str) -> Option<&'a str> {
    list.iter().find(|s| s.name == name)?.value.as_deref()
}

fn has(list: &[Setting], name: &str) -> bool {
    list.iter().any(|s| s.name == name)
}

fn place<'a>(answer: &'a Recommendation, id: &str) -> &'a Place {
    answer.order.iter().find(|p| p.backend == id).unwrap()
}

/// Eight GPUs, 0-3 and 4-7 on two NUMA nodes, no NVLink.
fn four_and_four() -> Host {
    let mut host = Host::root_complex(8);
    host.snapshot.topology.class = FabricClass::RootComplexCrossSocket;
    for (i, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
        gpu.numa_node = Reading::Known(i as i32 / 4);
    }
    for p in OrderedPair::all(8) {
        let path = host.snapshot.topology.pairs.get_mut(p).unwrap();
        path.pcie = Some(if p.source.0 / 4 == p.destination.0 / 4 {
            PathType::Node
        } else {
            PathType::Sys
        });
    }
    host
}

fn prove_all_rungs(host: &mut Host) {
    host.climb_all();
}

fn request(engine: &str, model: &str, tp: u32, batch: u64) -> Request {
    Request {
        engine: engine.into(),
        model: Some(model.into()),
        tp,
        batch,
        ..Request::default()
    }
}

/// F70, the sister host: every direct copy arrives as zeros while the claims say OK.
#[test]
fn the_sister_host_switches_every_path_of_every_engine_off() {
    let mut host = four_and_four();
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    let profiles = Profiles::embedded().unwrap();
    for engine in &profiles.engines {
        let answer = ask(&host, &request(&engine.id, "glm-5.2", 8, 32));
        for place in &answer.order {
            let backend = engine.backend(&place.backend).unwrap();
            if backend.peer {
                assert_eq!(
                    place.standing,
                    Standing::Refused,
                    "{} {}",
                    engine.id,
                    place.backend
                );
                assert!(place.because.contains("zeroed") || place.because.contains("vetoed"));
            }
        }
        for switch in &engine.peer_off {
            let needed = switch
                .when
                .iter()
                .all(|c| !matches!(c, Condition::Fabric(_) | Condition::ComputeCapability(_)));
            let list = match switch.kind {
                SwitchKind::Flag => &answer.flags,
                SwitchKind::Environment => &answer.environment,
                SwitchKind::Unset => &answer.unset,
                SwitchKind::Omit => &answer.omit,
                SwitchKind::Configuration => &answer.configuration,
            };
            assert!(
                !needed || has(list, &switch.name),
                "{} {}",
                engine.id,
                switch.name
            );
        }
        assert!(
            !answer
                .order
                .iter()
                .any(|p| p.standing == Standing::Possible
                    && engine.backend(&p.backend).unwrap().peer)
        );
        assert_eq!(answer.proven, Some(Rung::Staged), "{}", engine.id);
        assert!(!has(&answer.environment, "NCCL_P2P_LEVEL"));
    }
}

/// F70, the good host: GLM-5.2 over two islands of four.
#[test]
fn glm_over_four_and_four_gets_the_pcie_kernel_once_its_rungs_are_proven() {
    let mut host = four_and_four();
    prove_all_rungs(&mut host);
    let answer = ask(&host, &request("sglang", "zai-org/GLM-5.2-FP8", 8, 64));
    assert_eq!(answer.backend, "flashinfer-pcie-ipc");
    assert_eq!(
        value(&answer.environment, "SGLANG_PCIE_IPC_MAX_NUMEL"),
        Some("393216")
    );
    assert_eq!(value(&answer.environment, "NCCL_P2P_LEVEL"), Some("SYS"));
    let ranks: Vec<u32> = answer.ranks.iter().map(|g| g.0).collect();
    assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6, 7]);
    let sizing = answer.sizing.as_ref().unwrap();
    assert_eq!(sizing.workspace_bytes_per_rank, Some(25_199_744));
    assert_eq!(sizing.all_reduces, Some(157));
    assert_eq!(
        place(&answer, "flashinfer-pcie-ipc").workspace_bytes,
        Some(25_199_744)
    );
    assert!(
        answer
            .practices
            .iter()
            .any(|p| p.name.contains("autotune context"))
    );
    assert!(
        answer
            .practices
            .iter()
            .any(|p| p.name.contains("before the process groups"))
    );
    assert!(
        answer
            .worth
            .iter()
            .any(|w| w.basis == WorthBasis::Published && w.says.contains("13.62 ms"))
    );
    assert!(answer.worth.iter().any(|w| w.basis == WorthBasis::Unknown));
    // Without the upper rungs it is a candidate, and NCCL stays.
    let mut lower = four_and_four();
    lower.all_intact();
    let answer = ask(&lower, &request("sglang", "glm-5.2", 8, 64));
    assert_eq!(answer.backend, "nccl");
    assert_eq!(
        place(&answer, "flashinfer-pcie-ipc").standing,
        Standing::Possible
    );
}

/// engines.md 7.3: six rows per request, 786,432 elements.
#[test]
fn deepseek_with_dspark_verifies_six_rows() {
    let mut host = Host::root_complex(2);
    prove_all_rungs(&mut host);
    let mut asked = request("sglang", "deepseek-v4-flash", 2, 32);
    (asked.spec, asked.draft_tokens) = (Some("DSPARK".into()), Some(5));
    let answer = ask(&host, &asked);
    let sizing = answer.sizing.as_ref().unwrap();
    assert_eq!(sizing.rows_per_request, 6);
    assert_eq!(sizing.needed_elements, 786_432);
    assert_eq!(sizing.workspace_bytes_per_rank, Some(12_592_256));
    assert_eq!(sizing.workspace_bytes_all_ranks, Some(25_184_512));
    assert!(
        sizing.admits.contains("with request 33 "),
        "{}",
        sizing.admits
    );
    assert_eq!(
        value(&answer.environment, "SGLANG_PCIE_IPC_MAX_NUMEL"),
        Some("786432")
    );
    assert_eq!(value(&answer.flags, "--max-running-requests"), Some("32"));
    // Two ranks on PCIe have the engine's own kernel before it, up to 8 MiB.
    assert_eq!(answer.backend, "custom-all-reduce-legacy");
    assert_eq!(
        place(&answer, "flashinfer-pcie-ipc").standing,
        Standing::Possible
    );
}

/// engines.md 3.4: two RTX 8000 without peers.
#[test]
fn two_turing_gpus_without_peers_reduce_through_the_host() {
    let mut host = Host::root_complex(2);
    host.claim_all("CNS");
    host.refused();
    host.name_all("Quadro RTX 8000");
    for gpu in &mut host.snapshot.gpus {
        gpu.compute_capability = Reading::Known((7, 5));
    }
    let mut asked = request("1cat-vllm", "qwen3.8-27b", 2, 6);
    (asked.spec, asked.draft_tokens) = (Some("mtp".into()), Some(3));
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "host-reduce");
    let chosen = place(&answer, "host-reduce");
    assert_eq!(
        (chosen.takes_bytes, chosen.takes_rows),
        (Some(262_144), Some(25))
    );
    assert_eq!(answer.sizing.as_ref().unwrap().dtype, "fp16");
    assert_eq!(value(&answer.flags, "--dtype"), Some("float16"));
    assert_eq!(answer.proven, Some(Rung::Staged));
    assert!(answer.practices.iter().any(|p| p.name.contains("/dev/shm")));
    // A seventh request is 28 rows: the step goes to NCCL, and smaller ones stay.
    asked.batch = 7;
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "nccl");
    assert_eq!(answer.backend_name, "NCCL through shared host memory");
    assert_eq!(place(&answer, "host-reduce").standing, Standing::Runs);
    // Plain vLLM has no such backend, and bf16 is not taken for fp16 where it was asked for.
    assert_eq!(
        ask(&host, &request("vllm", "qwen3.8-27b", 2, 6)).backend,
        "nccl"
    );
    asked.dtype = Some("bf16".into());
    asked.batch = 6;
    assert!(
        place(&ask(&host, &asked), "host-reduce")
            .because
            .contains("not for bf16")
    );
}

/// sglang#34528: launches that have more groups than the tensor-parallel one.
#[test]
fn pcie_ipc_is_not_offered_beside_data_or_expert_parallelism() {
    let mut host = Host::root_complex(4);
    prove_all_rungs(&mut host);
    for (model, data, expert) in [("qwen3-32b", 2, 1), ("qwen3-30b-a3b", 1, 2)] {
        for engine in ["sglang", "vllm"] {
            let mut asked = request(engine, model, 4, 32);
            assert_eq!(
                ask(&host, &asked).backend,
                "flashinfer-pcie-ipc",
                "{engine}"
            );
            (asked.data_parallel, asked.expert_parallel) = (data, expert);
            let answer = ask(&host, &asked);
            assert_eq!(answer.backend, "nccl", "{engine} {model}");
            let ipc = place(&answer, "flashinfer-pcie-ipc");
            assert_eq!(ipc.standing, Standing::Refused);
            assert!(ipc.because.contains("not offered"), "{}", ipc.because);
            assert!(!has(
                &answer.environment,
                "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
            ));
            assert_eq!(answer.sizing.unwrap().all_reduces, None);
        }
    }
}

#[test]
fn an_nvlink_host_gets_the_engines_own_kernel_first() {
    let mut host = Host::nvswitch(8);
    prove_all_rungs(&mut host);
    let answer = ask(&host, &request("sglang", "glm-5.2", 8, 32));
    assert_eq!(answer.backend, "custom-all-reduce");
    assert_eq!(
        place(&answer, "flashinfer-pcie-ipc").standing,
        Standing::Refused
    );
    let mut asked = request("vllm", "glm-5.2", 8, 16);
    asked.engine_version = Some("0.28.1".parse().unwrap());
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "custom-all-reduce");
    assert!(
        place(&answer, "flashinfer-all-reduce")
            .because
            .contains("needs version 0.29")
    );
    asked.engine_version = None;
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "flashinfer-all-reduce");
    assert!(
        answer
            .caveats
            .iter()
            .any(|c| c.contains("--engine-version"))
    );
    let answer = ask(&host, &request("trtllm", "glm-5.2", 8, 16));
    assert_eq!(answer.backend, "one-shot-two-shot");
}

/// F66: one process that copies between its devices.
#[test]
fn single_process_programs_get_the_advice_on_streams() {
    let mut host = Host::root_complex(2);
    host.climb_all();
    let mut asked = request("cupy", "", 2, 1);
    asked.model = None;
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "peer-copies");
    let told: Vec<&str> = answer.practices.iter().map(|p| p.name.as_str()).collect();
    assert!(
        told.iter()
            .any(|p| p.contains("one non-blocking stream per device"))
    );
    assert!(
        told.iter()
            .any(|p| p.contains("wait for the caller's stream at entry"))
    );
    assert!(!has(&answer.environment, "NCCL_P2P_LEVEL"));
    host.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "host-copies");
    assert!(has(&answer.configuration, "copies between devices"));
}

#[test]
fn tp4_inside_one_numa_node_is_worth_roughly_nothing() {
    let mut host = four_and_four();
    prove_all_rungs(&mut host);
    let mut asked = request("sglang", "qwen3-32b", 4, 32);
    asked.candidates = host.group();
    let says = |asked: &Request| -> bool {
        let answer = ask(&host, asked);
        answer
            .worth
            .iter()
            .any(|w| w.says.contains("expect roughly nothing"))
    };
    assert!(says(&asked));
    asked.group = Some([0, 1, 4, 5].map(GpuIndex).to_vec());
    assert!(!says(&asked));
}

#[test]
fn a_measured_crossing_is_told_with_what_it_means_per_step() {
    let mut host = four_and_four();
    prove_all_rungs(&mut host);
    let mut asked = request("sglang", "glm-5.2", 8, 32);
    let time = |backend: &str, bytes: u64, microseconds: f64| super::ReductionTime {
        backend: backend.into(),
        ranks: 8,
        bytes,
        microseconds,
        middle: (microseconds, microseconds),
        gpus: Vec::new(),
        stand_in: None,
    };
    asked.measured = vec![
        time("nccl", 12_288, 50.0),
        time("nccl", 393_216, 90.0),
        time("flashinfer-pcie-ipc", 12_288, 20.0),
        time("flashinfer-pcie-ipc", 393_216, 80.0),
    ];
    let answer = ask(&host, &asked);
    let of = |basis| answer.worth.iter().find(|w| w.basis == basis);
    let measured = of(WorthBasis::Measured).unwrap();
    assert!(
        measured.says.contains("faster than NCCL at every size"),
        "{}",
        measured.says
    );
    let inferred = |answer: &Recommendation| -> Vec<String> {
        let own = answer.worth.iter();
        own.filter(|w| w.basis == WorthBasis::Inferred)
            .map(|w| w.says.clone())
            .collect()
    };
    let steps = inferred(&answer);
    let [one, full] = &steps[..] else {
        panic!("{steps:?}");
    };
    assert!(
        one.contains("157 reductions of 12,288 bytes")
            && one.contains("-4.71 ms for every step of one request"),
        "{one}"
    );
    assert!(
        full.contains("157 reductions of 393,216 bytes")
            && full.contains("-1.57 ms for every step of a full batch"),
        "{full}"
    );
    assert!(of(WorthBasis::Unknown).is_none());
    // A batch whose size nobody measured is told with the command that does.
    let larger = Request {
        batch: 64,
        ..asked.clone()
    };
    let answer = ask(&host, &larger);
    assert_eq!(inferred(&answer).len(), 1);
    let unknown = answer.worth.iter().find(|w| w.basis == WorthBasis::Unknown);
    let unknown = &unknown.unwrap().says;
    assert!(
        unknown.contains("786,432 bytes, a size that was not measured")
            && unknown.contains("peerproof reduce --model glm-5.2 --tp 8 --batch 64"),
        "{unknown}"
    );
    // NCCL alone: what its share of a step is, and without peers where those are not proven.
    let alone = Request {
        engine: "nccl".into(),
        ..asked.clone()
    };
    let steps = inferred(&ask(&host, &alone));
    assert!(
        steps[1].contains("90.0 us with NCCL: 14.13 ms of every step of a full batch are NCCL's"),
        "{steps:?}"
    );
    let unproven = Host::root_complex(8);
    let mut off = asked.clone();
    assert!(inferred(&ask(&unproven, &off)).is_empty());
    off.measured.push(time("nccl-p2p-off", 393_216, 200.0));
    let steps = inferred(&ask(&unproven, &off));
    assert!(
        steps.len() == 1 && steps[0].contains("200.0 us with NCCL without peers: 31.40 ms"),
        "{steps:?}"
    );
    // What a kernel of ours took says so.
    for time in asked.measured.iter_mut().filter(|t| t.backend != "nccl") {
        time.stand_in = Some("hierarchical".into());
    }
    let answer = ask(&host, &asked);
    let measured = answer
        .worth
        .iter()
        .find(|w| w.basis == WorthBasis::Measured);
    assert!(
        measured
            .unwrap()
            .says
            .contains("as measured with this tool's own kernels (hierarchical)")
    );
    // Of other GPUs, though as many.
    for time in &mut asked.measured {
        time.gpus = (8..16).map(GpuIndex).collect();
    }
    let answer = ask(&host, &asked);
    assert!(answer.worth.iter().all(|w| w.basis != WorthBasis::Measured));
    // Times of another group size say nothing of this one.
    for time in &mut asked.measured {
        time.ranks = 4;
    }
    let answer = ask(&host, &asked);
    assert!(answer.worth.iter().all(|w| w.basis != WorthBasis::Measured));
}

/// The order is the engine's; what speaks against it on this host is said with the switch, and with what such times are not.
#[test]
fn a_choice_that_was_measured_slower_is_told_with_its_switch() {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    for gpu in &mut host.snapshot.gpus {
        gpu.compute_capability = crate::model::reading::Reading::Known((9, 0));
    }
    let mut asked = request("vllm", "glm-5.2", 8, 32);
    asked.engine_version = Some("0.30.0".parse().unwrap());
    let time = |backend: &str, bytes: u64, microseconds: f64| super::ReductionTime {
        backend: backend.into(),
        ranks: 8,
        bytes,
        microseconds,
        middle: (microseconds - 1.0, microseconds + 1.0),
        gpus: Vec::new(),
        stand_in: (backend != "nccl").then(|| "one-shot-push".to_string()),
    };
    let told = |asked: &Request| -> Option<String> {
        let answer = ask(&host, asked);
        assert_eq!(answer.backend, "flashinfer-all-reduce");
        let mut own = answer.worth.into_iter();
        own.find(|w| w.says.contains("turns it off"))
            .map(|w| w.says)
    };
    assert_eq!(told(&asked), None);
    asked.measured = vec![
        time("nccl", 12_288, 20.0),
        time("nccl", 393_216, 30.0),
        time("flashinfer-all-reduce", 12_288, 50.0),
        time("flashinfer-all-reduce", 393_216, 60.0),
        // No step of this launch.
        time("nccl", 1_048_576, 90.0),
        time("flashinfer-all-reduce", 1_048_576, 10.0),
    ];
    let says = told(&asked).unwrap();
    for words in [
        "FlashInfer all-reduce (trtllm or mnnvl) was slower than NCCL at 2 of the 6 step sizes that it takes here, and faster at none",
        "50.0 us against 20.0 us at 12,288 bytes, 60.0 us against 30.0 us at 393,216 bytes",
        "this tool's own kernels (one-shot-push): those of flashinfer-all-reduce were not run",
        "VLLM_ALLREDUCE_USE_FLASHINFER=0 turns it off, and PyTorch symmetric memory (multicast) takes them then",
        "not of prefill",
    ] {
        assert!(says.contains(words), "{words}: {says}");
    }
    // One size at which it wins, or times that are not told apart, and there is no such advice.
    let mut wins = asked.clone();
    wins.measured.retain(|t| t.bytes != 12_288);
    wins.measured.push(time("nccl", 12_288, 50.0));
    wins.measured
        .push(time("flashinfer-all-reduce", 12_288, 20.0));
    assert_eq!(told(&wins), None);
    let mut level = asked.clone();
    for time in &mut level.measured {
        time.middle = (1.0, 100.0);
    }
    assert_eq!(told(&level), None);
    // One that stands before the choice for the smaller steps is told by those.
    let mut larger = asked.clone();
    larger.batch = 64;
    let answer = ask(&host, &larger);
    assert_ne!(answer.backend, "flashinfer-all-reduce");
    assert!(
        answer
            .worth
            .iter()
            .any(|w| w.says.contains("slower than NCCL at 2 of the 6 step sizes")),
        "{:#?}",
        answer.worth
    );
}

#[test]
fn ranks_keep_islands_together_and_broken_pairs_are_gone_around() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    for (i, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
        gpu.numa_node = Reading::Known(i as i32 % 2);
    }
    let mut asked = request("vllm", "glm-5.2", 8, 32);
    asked.candidates = host.group();
    let answer = ask(&host, &asked);
    assert_eq!(
        value(&answer.environment, "CUDA_VISIBLE_DEVICES"),
        Some("0,2,4,6,1,3,5,7")
    );
    let mut host = four_and_four();
    host.all_intact();
    host.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
    asked.candidates = host.group();
    asked.tp = 4;
    let answer = ask(&host, &asked);
    assert_eq!(answer.backend, "nccl");
    assert!(
        answer.caveats.iter().any(|c| c.contains("--gpus 1,2,3,4")),
        "{:?}",
        answer.caveats
    );
}

#[test]
fn nothing_tried_proves_nothing() {
    let profiles = Profiles::embedded().unwrap();
    let asked = request("vllm", "glm-5.2", 8, 32);
    let answer = recommend(None, &[], &asked, &profiles).unwrap();
    assert_eq!(answer.proven, None);
    assert_eq!(ask(&four_and_four(), &asked).proven, None);
    let mut half = four_and_four();
    half.all_intact();
    let reason = "budget".to_string();
    half.set(pair(0, 7), "staged", Outcome::NotRun { reason });
    assert_eq!(ask(&half, &asked).proven, None);
}
