//! The hosts for which this tool was made, from the test of the host to the launch: qualified on simulated hosts, saved, and
//! asked by the binary what to launch with.

use crate::{
    host::{Host, peerproof, run, save},
    recommend::ask,
};
use peerproof::model::{
    finding::{Recommendation, Setting, Standing, WorthBasis},
    report::Grading,
};
use std::{path::Path, process::Command};

fn value<'a>(list: &'a [Setting], name: &str) -> Option<&'a str> {
    list.iter().find(|s| s.name == name)?.value.as_deref()
}

fn standing(answer: &Recommendation, backend: &str) -> Standing {
    let place = answer.order.iter().find(|p| p.backend == backend);
    place
        .unwrap_or_else(|| panic!("{backend}: {:?}", answer.order))
        .standing
}

/// `recommend --from REPORT ARGUMENTS`.
fn asked(from: &Path, arguments: &str) -> Recommendation {
    let from = from.to_str().unwrap();
    let mut all: Vec<&str> = arguments.split_whitespace().collect();
    all.extend(["--from", from]);
    ask(&all)
}

/// `recommend --check LAUNCH --from REPORT`: exit code and page.
fn checked(from: &Path, launch: &str) -> (Option<i32>, String) {
    let mut command = Command::new(peerproof());
    command
        .args(["recommend", "--check", launch, "--from"])
        .arg(from);
    let run = run(command);
    (run.code, run.stdout)
}

/// Eight GPUs in two islands of four, proven up to all-reduces over all of them: GLM-5.2 on all eight, DeepSeek-V4-Flash with
/// DSpark on two, Qwen3 with data and expert parallelism on four.
#[test]
fn two_islands_of_four_proven_in_full() {
    let report = Host::new("rtxpro6000-x8-root-complex").qualify(&["--quick"]);
    assert_eq!(report.verdict.grading, Grading::Pass);
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("islands.json");
    save(&report, &from);

    let glm = asked(
        &from,
        "--engine sglang --model zai-org/GLM-5.2-FP8 --tp 8 --batch 64",
    );
    assert_eq!(glm.backend, "flashinfer-pcie-ipc");
    let ranks: Vec<u32> = glm.ranks.iter().map(|g| g.0).collect();
    assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(
        value(&glm.environment, "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"),
        Some("1")
    );
    assert_eq!(
        value(&glm.environment, "SGLANG_PCIE_IPC_MAX_NUMEL"),
        Some("393216")
    );
    let sizing = glm.sizing.unwrap();
    assert_eq!(sizing.workspace_bytes_per_rank, Some(25_199_744));
    assert_eq!(sizing.all_reduces, Some(157));
    let published = |w: &&peerproof::model::finding::Worth| w.basis == WorthBasis::Published;
    assert!(
        glm.worth
            .iter()
            .filter(published)
            .any(|w| w.says.contains("13.62 ms"))
    );

    let deepseek = asked(
        &from,
        "--engine sglang --model deepseek-v4-flash --tp 2 --batch 32 --spec DSPARK --draft-tokens 5",
    );
    let sizing = deepseek.sizing.as_ref().unwrap();
    assert_eq!(
        (sizing.rows_per_request, sizing.needed_elements),
        (6, 786_432)
    );
    assert_eq!(sizing.workspace_bytes_per_rank, Some(12_592_256));
    assert!(
        sizing.admits.contains("with request 33 "),
        "{}",
        sizing.admits
    );
    assert_eq!(
        value(&deepseek.environment, "SGLANG_PCIE_IPC_MAX_NUMEL"),
        Some("786432")
    );
    assert_eq!(value(&deepseek.flags, "--max-running-requests"), Some("32"));

    for (model, more) in [("qwen3-32b", "--dp 2"), ("qwen3-30b-a3b", "--ep 2")] {
        for engine in ["sglang", "vllm"] {
            let plain = format!("--engine {engine} --model {model} --tp 4 --batch 32");
            assert_eq!(asked(&from, &plain).backend, "flashinfer-pcie-ipc");
            let answer = asked(&from, &format!("{plain} {more}"));
            assert_eq!(answer.backend, "nccl", "{engine} {model}");
            assert_eq!(standing(&answer, "flashinfer-pcie-ipc"), Standing::Refused);
            let on = [
                "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
                "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC",
            ];
            assert!(
                on.iter()
                    .all(|name| value(&answer.environment, name).is_none())
            );
        }
    }
    let (code, page) = checked(
        &from,
        "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 sglang serve Qwen/Qwen3-32B --tp 4 --dp-size 2 --cuda-graph-max-bs-decode 32",
    );
    assert_eq!(code, Some(2), "{page}");
    assert!(page.contains("pcie-ipc-beside-other-groups"), "{page}");

    // The same host read by launches that cannot start on it, and by one that keeps its own proofs unused.
    for launch in [
        "vllm serve x --tensor-parallel-size abc",
        "vllm serve x -tp",
        "vllm serve x -tp 16",
        "CUDA_VISIBLE_DEVICES=0,9 vllm serve x -tp 2",
    ] {
        let (code, page) = checked(&from, launch);
        assert_eq!(code, Some(2), "{launch}: {page}");
        assert!(
            page.contains("1 wrong") && !page.contains("every pair"),
            "{launch}: {page}"
        );
    }
    let (code, page) = checked(
        &from,
        "NCCL_P2P_DISABLE=1 vllm serve Qwen/Qwen3-32B -tp 4 --disable-custom-all-reduce",
    );
    assert_eq!(code, Some(1), "{page}");
    for words in [
        "needless-switches",
        "unset NCCL_P2P_DISABLE",
        "974 to 642 us",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// The sister host: claims OK, every direct copy zero. Every engine gets every peer path switched off, and a launch that
/// switches off one of them only is wrong.
#[test]
fn the_sister_host_with_zeroed_buffers() {
    let report = Host::new("rtxpro6000-x8-zeroed").qualify(&[
        "--quick",
        "--mechanism",
        "bounce,staged,host-exchange,ce-push,sm-load,sm-store",
    ]);
    assert_eq!(report.verdict.grading, Grading::Fail);
    assert!(
        report.verdict.headline.contains("zeroed"),
        "{}",
        report.verdict.headline
    );
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("sister.json");
    save(&report, &from);
    for engine in ["vllm", "sglang", "tensorrt-llm", "nccl"] {
        let answer = asked(
            &from,
            &format!("--engine {engine} --model glm-5.2 --tp 8 --batch 32"),
        );
        assert_eq!(answer.backend, "nccl", "{engine}");
        assert_eq!(answer.backend_name, "NCCL through shared host memory");
        assert_eq!(value(&answer.environment, "NCCL_P2P_DISABLE"), Some("1"));
        assert!(value(&answer.environment, "NCCL_P2P_LEVEL").is_none());
    }
    for engine in ["vllm", "sglang"] {
        let answer = asked(
            &from,
            &format!("--engine {engine} --model glm-5.2 --tp 8 --batch 32"),
        );
        assert!(
            answer
                .flags
                .iter()
                .any(|f| f.name == "--disable-custom-all-reduce")
        );
        assert!(answer.unset.iter().any(|s| s.name == "GGML_CUDA_P2P"));
    }
    let llama = asked(&from, "--engine llama.cpp --tp 8");
    assert_eq!(llama.backend, "layer-split");
    assert!(llama.unset.iter().any(|s| s.name == "GGML_CUDA_P2P"));
    let python = asked(&from, "--engine cupy --tp 8");
    assert_eq!(python.backend, "host-copies");
    let told = |words: &str| python.practices.iter().any(|p| p.name.contains(words));
    assert!(told("one non-blocking stream per device") && told("caller's stream at entry"));
    let (code, page) = checked(
        &from,
        "NCCL_P2P_DISABLE=1 vllm serve zai-org/GLM-5.2 -tp 8 --disable-custom-all-reduce",
    );
    assert_eq!(code, Some(2), "{page}");
    assert!(page.contains("VLLM_ALLREDUCE_USE_SYMM_MEM=0"), "{page}");
}

/// Two RTX 8000 without peer access: through pinned host memory, fp16, up to 256 KiB.
#[test]
fn two_turing_gpus_without_peers() {
    let report = Host::new("two-gpus-no-p2p")
        .set("gpu.compute_capability=[7,5]")
        .set("gpu.name=\"Quadro RTX 8000\"")
        .qualify(&[
            "--quick",
            "--mechanism",
            "bounce,staged,host-exchange,host-reduce",
        ]);
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("turing.json");
    save(&report, &from);
    let question =
        "--engine 1cat-vllm --model qwen3.8-27b --tp 2 --spec mtp --draft-tokens 3 --batch";
    let answer = asked(&from, &format!("{question} 6"));
    assert_eq!(answer.backend, "host-reduce");
    let place = answer
        .order
        .iter()
        .find(|p| p.backend == "host-reduce")
        .unwrap();
    assert_eq!(
        (place.takes_bytes, place.takes_rows),
        (Some(262_144), Some(25))
    );
    assert_eq!(answer.sizing.as_ref().unwrap().dtype, "fp16");
    assert_eq!(value(&answer.flags, "--dtype"), Some("float16"));
    // 28 rows of a step of seven requests are 280 KiB.
    assert_eq!(asked(&from, &format!("{question} 7")).backend, "nccl");
}

/// NVSwitch: the engines' own kernels come first, and nothing is switched off.
#[test]
fn an_nvlink_host_keeps_the_custom_all_reduce_first() {
    let report = Host::new("hgx-h200-x8").qualify(&["--quick", "--gpus", "0,1,2,3"]);
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("nvlink.json");
    save(&report, &from);
    let sglang = asked(&from, "--engine sglang --model glm-5.2 --tp 4 --batch 32");
    assert_eq!(sglang.backend, "custom-all-reduce");
    let vllm = asked(
        &from,
        "--engine vllm --engine-version 0.28.1 --model glm-5.2 --tp 4 --batch 32",
    );
    assert_eq!(vllm.backend, "custom-all-reduce");
    for answer in [sglang, vllm] {
        assert_eq!(standing(&answer, "flashinfer-pcie-ipc"), Standing::Refused);
        assert!(value(&answer.environment, "NCCL_P2P_DISABLE").is_none());
        assert!(
            !answer
                .flags
                .iter()
                .any(|f| f.name == "--disable-custom-all-reduce")
        );
    }
}
