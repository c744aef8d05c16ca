//! Who exchanges data: what is asked of NCCL follows the ranks that do, and what is harmless on one GPU, or where no peers
//! can be used, is called nothing else.

use super::{
    Question,
    on_a_host::{on, said},
    tests::judged,
};
use crate::{
    diagnose::sample::{Host, pair},
    model::{
        case::WrongKind,
        finding::Severity,
        launch::{LaunchCheck, LaunchOutcome},
    },
};

fn alone(text: &str) -> LaunchCheck {
    judged(text, &Question::default())
}

fn outside(answer: &LaunchCheck, words: &str) -> bool {
    answer.outside.iter().any(|line| line.contains(words))
}

/// Experts are spread over tensor x data-parallel ranks: two replicas of one GPU exchange as two tensor-parallel ranks do.
#[test]
fn experts_over_data_parallel_ranks_go_by_nccl() {
    let mut good = Host::nvswitch(2);
    good.climb_all();
    let mut bad = Host::nvswitch(2);
    bad.climb_all();
    bad.set_wrong(pair(0, 1), "ipc-sm-store", WrongKind::Dropped);
    for sizes in ["-tp 2", "-tp 1 -dp 2", "-dp 2", "-dp 1 -pcp 2"] {
        let text = format!("vllm serve x {sizes} --enable-expert-parallel");
        let answer = on(&good, &text);
        let mut judged = answer.judged.iter();
        assert!(
            judged.any(|j| j.starts_with("experts' all-to-all by NCCL: proven")),
            "{text}: {answer:#?}"
        );
        assert!(
            outside(&answer, "NVLink SHARP of NCCL"),
            "{text}: {answer:#?}"
        );
        let wrong = on(&bad, &text);
        let problem = said(&wrong, "way-over-failed-peers");
        let problem = problem.unwrap_or_else(|| panic!("{text}: {wrong:#?}"));
        assert_eq!(problem.severity, Severity::Critical, "{text}");
        let set = said(&wrong, "failed-peers-in-use").unwrap();
        assert!(
            set.settings.iter().any(|s| s == "NCCL_NVLS_ENABLE=0"),
            "{text}: {set:#?}"
        );
        let open = alone(&text);
        let mut lines = open.not_judged.iter();
        assert!(
            lines.any(|n| n.contains("experts' all-to-all by NCCL")),
            "{text}: {open:#?}"
        );
    }
    // Ranks that exchange nothing are not asked: replicas of one GPU, and a stage that has its experts to itself.
    let replicas = on(&good, "vllm serve x -tp 1 -dp 2");
    assert!(!outside(&replicas, "NVLink SHARP"), "{replicas:#?}");
    let stages = on(&good, "vllm serve x -pp 2 --enable-expert-parallel");
    assert!(
        stages.judged.iter().all(|j| !j.contains("experts'")),
        "{stages:#?}"
    );
    // Multicast of symmetric memory is the tensor-parallel group's alone.
    let mut four = Host::nvswitch(4);
    four.climb_all();
    let symmetric = "multicast of PyTorch's symmetric memory";
    for gpu in &mut four.snapshot.gpus {
        gpu.compute_capability = crate::model::reading::Reading::Known((9, 0));
    }
    assert!(outside(&on(&four, "vllm serve x -tp 4"), symmetric));
    assert!(!outside(&on(&four, "vllm serve x -dp 4 -ep"), symmetric));
    // Containers tear apart whoever exchanges, and NCCL's own switch is needless where it serves them.
    let boxed = alone("docker run img vllm serve x -dp 2 -ep");
    assert!(
        said(&boxed, "isolated-shared-memory").is_some(),
        "{boxed:#?}"
    );
    let boxed = alone("docker run img vllm serve x -dp 2");
    assert!(
        said(&boxed, "isolated-shared-memory").is_none(),
        "{boxed:#?}"
    );
    let off = on(&good, "NCCL_P2P_DISABLE=1 vllm serve x -dp 2 -ep");
    let needless = said(&off, "needless-switches").unwrap();
    assert_eq!(needless.settings, ["unset NCCL_P2P_DISABLE"], "{off:#?}");
}

/// Expert layers of data-parallel replicas are one group in vLLM, whether or not experts are spread: such replicas exchange data
/// at every step, and those of a dense model do not.
#[test]
fn replicas_of_a_mixture_of_experts_are_not_alone() {
    const MIXTURE: &str = "zai-org/GLM-5.2";
    const DENSE: &str = "Qwen/Qwen3-32B";
    let mut good = Host::nvswitch(2);
    good.climb_all();
    let mut bad = Host::nvswitch(2);
    bad.climb_all();
    bad.set_wrong(pair(0, 1), "ipc-sm-store", WrongKind::Dropped);
    let way = "expert layers of data-parallel replicas";
    for sizes in ["-tp 1 -dp 2", "-dp 2", "--data-parallel-size=2"] {
        let text = format!("vllm serve {MIXTURE} {sizes}");
        let answer = on(&good, &text);
        let proven = format!("{way} by NCCL: proven");
        assert!(
            answer.judged.iter().any(|j| j.starts_with(&proven)),
            "{text}: {answer:#?}"
        );
        assert!(outside(&answer, "NVLink SHARP of NCCL"), "{answer:#?}");
        let wrong = on(&bad, &text);
        let problem = said(&wrong, "way-over-failed-peers");
        let problem = problem.unwrap_or_else(|| panic!("{text}: {wrong:#?}"));
        assert_eq!(problem.severity, Severity::Critical, "{text}");
        let open = alone(&text);
        assert!(
            open.not_judged.iter().any(|n| n.starts_with(way)),
            "{open:#?}"
        );
        let boxed = alone(&format!("docker run img {text}"));
        assert!(
            said(&boxed, "isolated-shared-memory").is_some(),
            "{boxed:#?}"
        );
        let off = on(&good, &format!("NCCL_P2P_DISABLE=1 {text}"));
        assert!(said(&off, "needless-switches").is_some(), "{off:#?}");

        let text = format!("vllm serve {DENSE} {sizes}");
        let answer = on(&good, &text);
        assert!(!outside(&answer, "NVLink SHARP"), "{answer:#?}");
        assert!(said(&on(&bad, &text), "way-over-failed-peers").is_none());
        for text in [text.clone(), format!("docker run img {text}")] {
            let answer = alone(&text);
            assert_eq!(
                answer.outcome(),
                LaunchOutcome::NothingWrong,
                "{text}: {answer:#?}"
            );
        }

        // Of another model it is not known, and that is said.
        let answer = alone(&format!("vllm serve acme/x {sizes}"));
        assert_eq!(answer.outcome(), LaunchOutcome::NotJudged, "{answer:#?}");
        let told = "whether acme/x is a mixture of experts is not known: expert layers of 2 data-parallel replicas";
        assert!(
            answer.not_judged.iter().any(|n| n.starts_with(told)),
            "{answer:#?}"
        );
    }
    // Its own configuration tells it.
    for (experts, shared) in [(r#","num_experts":128"#, true), ("", false)] {
        let config = format!(
            r#"{{"model_type":"qwen3_moe","hidden_size":2048,"num_hidden_layers":48{experts}}}"#
        );
        let question = Question {
            config: Some(crate::profile::read_config("config.json", &config).unwrap()),
            ..Question::default()
        };
        let answer = judged("vllm serve /models/x -dp 2", &question);
        assert_eq!(
            answer.not_judged.iter().any(|n| n.starts_with(way)),
            shared,
            "{answer:#?}"
        );
        assert!(answer.not_judged.iter().all(|n| !n.starts_with("whether")));
    }
    // Once experts are spread, that way is theirs.
    let spread = on(&good, &format!("vllm serve {MIXTURE} -dp 2 -ep"));
    assert!(
        spread.judged.iter().all(|j| !j.starts_with(way)),
        "{spread:#?}"
    );
    // Which way another backend takes without it was not read.
    let other = on(
        &good,
        &format!("vllm serve {MIXTURE} -dp 2 --all2all-backend deepep_low_latency"),
    );
    assert_eq!(other.outcome(), LaunchOutcome::NotJudged, "{other:#?}");
    assert!(other.not_judged.iter().any(|n| n.starts_with(way)));
    // SGLang's replicas are servers of their own.
    let replicas = on(&good, &format!("sglang serve {MIXTURE} --tp 1 --dp 2"));
    assert!(!outside(&replicas, "NVLink SHARP"), "{replicas:#?}");
}

/// What switches NCCL's peers off hurts nobody on one GPU, or on a host whose GPUs refuse peers to everyone.
#[test]
fn switches_without_peers_are_no_traps() {
    let mut refused = Host::root_complex(2);
    refused.all_intact();
    refused.refused();
    refused.claim_all("NS");
    let mut failed = Host::root_complex(2);
    failed.direct_wrong(WrongKind::Zeroed, |_| true);
    let sets = [
        "NCCL_P2P_DISABLE=1",
        "NCCL_P2P_LEVEL=LOC",
        "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
        "NCCL_P2P_USE_CUDA_MEMCPY=1",
        "NCCL_P2P_LEVEL=FOO",
    ];
    for set in sets {
        for engine in [
            "vllm serve x",
            "vllm serve x -tp 1",
            "sglang serve x --tp 1",
        ] {
            let text = format!("{set} {engine}");
            for answer in [alone(&text), on(&refused, &text), on(&failed, &text)] {
                assert_eq!(answer.problems, [], "{text}");
            }
        }
    }
    for (text, id) in [
        (
            "NCCL_P2P_DISABLE=1 vllm serve x -tp 2",
            "nccl-off-custom-on",
        ),
        (
            "NCCL_P2P_DISABLE=1 vllm serve x -tp 2",
            "nccl-off-symm-mem-on",
        ),
        (
            "NCCL_P2P_LEVEL=LOC sglang serve x --tp 2",
            "nccl-off-custom-on",
        ),
        (
            "NCCL_P2P_DISABLE=1 sglang serve x --tp 2 --enable-symm-mem",
            "nccl-off-symm-mem-on",
        ),
        (
            "NCCL_P2P_DISABLE=1 trtllm-serve x --tp_size 2 --allreduce_strategy AUTO",
            "nccl-off-custom-on",
        ),
    ] {
        assert!(said(&alone(text), id).is_some(), "{text}");
        assert!(said(&on(&failed, text), id).is_some(), "{text}");
        let harmless = on(&refused, text);
        assert!(
            harmless
                .problems
                .iter()
                .all(|p| p.severity < Severity::Critical),
            "{text}: {harmless:#?}"
        );
    }
    // Where the size is not in the text, there may be a group.
    for text in [
        "NCCL_P2P_DISABLE=1\nVLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1\n",
        "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x -tp $TP",
        "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x --config f.yaml",
    ] {
        assert!(
            said(&alone(text), "nccl-off-pcie-ipc-on").is_some(),
            "{text}"
        );
    }
    let both = alone("NCCL_P2P_DISABLE=1\nNCCL_SHM_DISABLE=1\n");
    assert!(said(&both, "both-paths-disabled").is_some(), "{both:#?}");
}

/// One GPU reduces nothing: no size of it is judged, and that is said.
#[test]
fn one_gpu_has_no_all_reduce() {
    let on_one = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 SGLANG_PCIE_IPC_MAX_NUMEL=4096 python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Flash --cuda-graph-max-bs-decode 32 --max-running-requests 48";
    for text in ["vllm serve Qwen/Qwen3-32B", on_one] {
        let answer = alone(text);
        let mut judged = answer.judged.iter();
        assert!(
            judged.any(|j| j.contains("1 GPU; one GPU has no all-reduce")),
            "{answer:#?}"
        );
        assert!(
            answer
                .problems
                .iter()
                .all(|p| p.severity == Severity::Info && !p.wrong.contains("rows")),
            "{answer:#?}"
        );
    }
    let grouped = alone(&format!("{on_one} --tp 2"));
    assert!(
        said(&grouped, "draft-width-forgotten").is_some(),
        "{grouped:#?}"
    );
    let one = alone("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 sglang serve x --tp 1");
    let size = said(&one, "pcie-ipc-group-size").unwrap();
    assert_eq!(size.severity, Severity::Info);
    assert!(size.wrong.contains("one GPU has no all-reduce"));
    assert!(said(&one, "workspace-of-64-rows").is_none(), "{one:#?}");
}

/// torchrun starts a process for each GPU, which talk by NCCL; the program behind it has words of its own.
#[test]
fn torchrun_is_a_process_for_each_gpu() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    for text in [
        "torchrun --nproc-per-node 4 train.py --lr 3e-4 --tp 2",
        "torchrun --nproc_per_node=4 train.py",
        "torchrun --standalone --nproc-per-node=gpu train.py",
        "torchrun --nproc-per-node 4 --standalone train.py --fsdp",
        "torchrun --nproc-per-node 4 -m pkg.train --fsdp",
        "python -m torch.distributed.run --nproc-per-node 4 --nnodes 1 train.py",
        "python3 -m torch.distributed.launch --nproc_per_node 4 --use_env train.py",
    ] {
        let answer = on(&host, text);
        assert_eq!(answer.engine, "torchrun", "{text}");
        assert!(answer.engine_name.contains("one process per GPU"));
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NothingWrong,
            "{text}: {answer:#?}"
        );
        let mut judged = answer.judged.iter();
        assert!(
            judged.any(|j| j.starts_with("every pair of GPUs") && j.contains("4 GPUs")),
            "{text}: {answer:#?}"
        );
        // What the program does is nobody's verdict.
        assert!(outside(&answer, "train"), "{text}: {answer:#?}");
        assert!(
            answer.read.iter().all(|(what, _)| what != "model"),
            "{answer:#?}"
        );
    }
    let mut bad = Host::root_complex(4);
    bad.climb_all();
    bad.set_wrong(pair(2, 3), "sm-store", WrongKind::Dropped);
    let wrong = on(&bad, "torchrun --nproc-per-node 4 train.py");
    let found = said(&wrong, "failed-peers-in-use").unwrap();
    assert_eq!(found.settings, ["NCCL_P2P_DISABLE=1"], "{wrong:#?}");
    let one = on(&bad, "torchrun train.py");
    assert_eq!(one.outcome(), LaunchOutcome::NothingWrong, "{one:#?}");
    let odd = on(&host, "torchrun --nproc-per-node 4 --nnodes 2 train.py");
    assert_eq!(odd.outcome(), LaunchOutcome::NotJudged, "{odd:#?}");
    assert!(
        said(
            &alone("torchrun --nproc-per-node many t.py"),
            "size-not-a-number"
        )
        .is_some()
    );
}

/// One thing is one thing.
#[test]
fn numbers_agree_with_their_nouns() {
    let texts = [
        "CUDA_VISIBLE_DEVICES= vllm serve x -tp 1",
        "CUDA_VISIBLE_DEVICES=0 vllm serve x -tp 2",
        "vllm serve x",
        "vllm serve Qwen/Qwen3-32B -tp 2 --max-num-seqs 8 --compilation-config '{\"cudagraph_capture_sizes\":[1]}'",
        "sglang serve x --tp 2 --speculative-num-steps 1 --speculative-num-draft-tokens 1",
        "sglang serve x --tp 2 --speculative-num-draft-tokens 4 --max-running-requests 1 --cuda-graph-max-bs-decode 4",
        "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 SGLANG_PCIE_IPC_MAX_NUMEL=8 python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Flash --tp 2 --cuda-graph-max-bs-decode 1",
    ];
    let nouns = [
        "GPUs",
        "rows",
        "requests",
        "running requests",
        "steps",
        "elements",
        "ranks",
    ];
    let mut said = 0;
    for text in texts {
        let answer = alone(text);
        let wrong = answer.problems.iter().map(|p| &p.wrong);
        let lines = wrong.chain(&answer.judged).chain(&answer.not_judged);
        for line in lines {
            let padded = format!(" {}", line.replace(['(', ':', ';', ','], " "));
            for noun in nouns {
                assert!(!padded.contains(&format!(" 1 {noun}")), "{text}: {line}");
            }
            said += usize::from(padded.contains(" 1 "));
        }
    }
    assert!(said > 5, "{said}");
    let empty = alone("CUDA_VISIBLE_DEVICES= vllm serve x -tp 1");
    assert!(
        empty
            .problems
            .iter()
            .any(|p| p.wrong.contains("needs 1 GPU, and the launch may see 0")),
        "{empty:#?}"
    );
}
