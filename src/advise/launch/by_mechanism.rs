//! Verdicts by what a launch really uses: backends that cannot run on the host, splits that reduce nothing, passes that eager
//! mode leaves out, GPUs that CUDA may count in another order.

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
        reading::Reading,
    },
};

const V: &str = "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 NCCL_NVLS_ENABLE=0";

fn bad(count: u32) -> Host {
    let mut host = Host::root_complex(count);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host
}

/// Eight GPUs behind NVSwitch, of which one pair is broken.
fn switched() -> Host {
    let mut host = Host::nvswitch(8);
    host.climb_all();
    host.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
    host
}

fn is(host: &Host, text: &str, wanted: LaunchOutcome) -> LaunchCheck {
    let answer = on(host, text);
    assert_eq!(answer.outcome(), wanted, "{text}: {answer:#?}");
    answer
}

fn all_off() -> String {
    format!("{V} vllm serve M -tp 8 --disable-custom-all-reduce")
}

#[test]
fn asynchronous_tensor_parallelism_is_a_way_of_its_own() {
    let all = all_off();
    let off = "\"fuse_allreduce_rms\":false";
    for pass in ["fuse_gemm_comms", "enable_async_tp"] {
        let config = format!("{{\"pass_config\":{{\"{pass}\":true,\"enable_sp\":true,{off}}}}}");
        let text = format!("{all} --compilation-config '{config}'");
        let answer = is(&switched(), &text, LaunchOutcome::Problem);
        let way = said(&answer, "way-over-failed-peers").is_some();
        assert!(way, "{answer:#?}");
        // Proven peers prove nothing of what its kernels do inside.
        let mut good = Host::nvswitch(8);
        good.climb_all();
        let text = format!("vllm serve M -tp 8 -cc.pass_config.{pass}=true");
        is(&good, &text, LaunchOutcome::NotJudged);
    }
    let config = format!("{{\"pass_config\":{{\"fuse_gemm_comms\":false,{off}}}}}");
    let text = format!("{all} --compilation-config '{config}'");
    is(&switched(), &text, LaunchOutcome::NothingWrong);
}

/// CUDA counts the fastest first unless it is told otherwise.
#[test]
fn another_order_of_gpus_may_meet_a_broken_pair() {
    let order = |answer: &LaunchCheck| -> Option<String> {
        let mut all = answer.not_judged.iter();
        all.find(|n| n.contains("CUDA's own order")).cloned()
    };
    let pairs = |answer: &LaunchCheck| answer.judged.iter().any(|j| j.starts_with("every pair"));
    let mut host = switched();
    for (i, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
        gpu.uuid = Reading::Known(format!("GPU-{i}{i}{i}{i}"));
    }
    for set in [
        "CUDA_VISIBLE_DEVICES=2,3",
        "CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA_VISIBLE_DEVICES=2,3",
    ] {
        let text = format!("{set} vllm serve M -tp 2");
        let answer = is(&host, &text, LaunchOutcome::NotJudged);
        let told = order(&answer).unwrap();
        assert!(told.contains("alike") && told.contains("0->1"), "{told}");
        assert!(told.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{told}");
        assert!(!pairs(&answer), "{answer:#?}");
    }
    for text in [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,3 vllm serve M -tp 2".to_string(),
        "CUDA_VISIBLE_DEVICES=GPU-2222,GPU-3333 vllm serve M -tp 2".to_string(),
        "docker run --gpus '\"device=2,3\"' --ipc=host img vllm serve M -tp 2".to_string(),
        // Nothing can be hit.
        format!(
            "CUDA_VISIBLE_DEVICES=2,3 {V} vllm serve M -tp 2 --disable-custom-all-reduce --enforce-eager"
        ),
    ] {
        let answer = on(&host, &text);
        assert_eq!(order(&answer), None, "{text}");
        assert!(pairs(&answer), "{text}: {answer:#?}");
    }
    // A sound host.
    let mut good = Host::nvswitch(8);
    good.climb_all();
    let answer = on(&good, "CUDA_VISIBLE_DEVICES=2,3 vllm serve M -tp 2");
    assert!(pairs(&answer) && order(&answer).is_none(), "{answer:#?}");
    // GPUs that differ.
    let mut mixed = Host::root_complex(4);
    mixed.climb_all();
    mixed.snapshot.gpus[0].name = Reading::Known("another".into());
    mixed.set_wrong(pair(0, 1), "ce-push", WrongKind::Zeroed);
    let answer = on(&mixed, "CUDA_VISIBLE_DEVICES=2,3 vllm serve M -tp 2");
    assert!(order(&answer).is_some_and(|n| !n.contains("alike")));
}

/// What stops a kernel that never runs here stops nothing.
#[test]
fn traps_of_a_backend_count_where_it_can_run() {
    let mut good = Host::root_complex(8);
    good.climb_all();
    let mut full = Host::nvswitch(8);
    full.climb_all();
    for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
        for engine in ["vllm serve M -tp", "sglang serve M --tp"] {
            let found = |host: &Host, size: u32| {
                let text = format!("{name}=expandable_segments:True {engine} {size}");
                let mut problems = on(host, &text).problems.into_iter();
                problems.any(|p| p.id.starts_with("expandable"))
            };
            let at = [2, 3, 4, 8].map(|size| found(&good, size));
            assert_eq!(at, [true, false, false, false], "{name} {engine}");
            assert!(found(&full, 8), "{name} {engine}");
        }
    }
    // On broken peers they are said as what they are there.
    let answer = on(&bad(8), "NCCL_P2P_DISABLE=1 vllm serve M -tp 8");
    for id in [
        "nccl-off-custom-on",
        "nccl-off-symm-mem-on",
        "failed-peers-in-use",
    ] {
        let wrong = &said(&answer, id).unwrap().wrong;
        assert!(wrong.contains("out of caution"), "{wrong}");
    }
    let two = on(&bad(2), "NCCL_P2P_DISABLE=1 vllm serve M -tp 2");
    let wrong = &said(&two, "nccl-off-custom-on").unwrap().wrong;
    assert!(!wrong.contains("out of caution"), "{wrong}");
}

/// A layer split reduces nothing.
#[test]
fn llama_cpp_is_judged_by_its_split() {
    for program in [
        "llama-server -m m.gguf -ngl 99",
        "llama-bench -m m.gguf -ngl 99",
    ] {
        for split in ["", "-sm layer", "--split-mode layer"] {
            let text = format!("{program} {split}");
            is(&bad(8), &text, LaunchOutcome::NothingWrong);
        }
        for split in ["-sm tensor", "--split-mode row"] {
            let answer = on(&bad(8), &format!("{program} {split}"));
            let problem = said(&answer, "failed-peers-in-use").unwrap();
            assert_eq!(problem.settings, ["NCCL_P2P_DISABLE=1"], "{split}");
        }
        let copies = on(&bad(8), &format!("GGML_CUDA_P2P=1 {program}"));
        let problem = said(&copies, "failed-peers-in-use").unwrap();
        assert_eq!(problem.settings, ["unset GGML_CUDA_P2P"]);
        for open in ["$EXTRA", "-sm $MODE"] {
            let text = format!("{program} {open}");
            is(&bad(8), &text, LaunchOutcome::NotJudged);
        }
    }
    let answer = on(
        &bad(8),
        "LLAMA_ARG_SPLIT_MODE=tensor llama-server -m m.gguf",
    );
    assert!(
        said(&answer, "failed-peers-in-use").is_some(),
        "{answer:#?}"
    );
}

/// A size that is said counts as one that is not.
#[test]
fn shared_memory_is_judged_by_its_size() {
    for (size, small) in [
        ("", true),
        ("    shm_size: 64m\n", true),
        ("    shm_size: \"67108864\"\n", true),
        ("    shm_size: 1gb\n", false),
        ("    shm_size: 64m\n    ipc: host\n", false),
    ] {
        let text = format!(
            "services:\n  a:\n    image: vllm/vllm-openai:v0.30.0\n{size}    command: --model x -tp 8\n"
        );
        let answer = judged(&text, &Question::default());
        let problem = said(&answer, "isolated-shared-memory");
        assert_eq!(problem.is_some(), small, "{size}: {answer:#?}");
        let right = |wrong: &str| wrong.contains("No space left") && !wrong.contains("different");
        assert!(problem.is_none_or(|p| p.severity == Severity::Critical && right(&p.wrong)));
    }
    for (option, small) in [
        ("--shm-size 64m", true),
        ("--shm-size=16g", false),
        ("--shm-size=64m --ipc=host", false),
    ] {
        let text = format!("docker run {option} img vllm serve x -tp 8");
        let answer = judged(&text, &Question::default());
        let found = said(&answer, "isolated-shared-memory").is_some();
        assert_eq!(found, small, "{option}");
    }
}

/// The fusion pass is on by itself where vLLM compiles.
#[test]
fn eager_needs_no_word_about_the_fusion_pass() {
    let all = all_off();
    for eager in ["--enforce-eager", "-O0", "-O1", "--optimization-level 0"] {
        let text = format!("{all} {eager}");
        is(&switched(), &text, LaunchOutcome::NothingWrong);
    }
    for pass in [
        "",
        "-O2",
        "-O3",
        "-O1 -cc.pass_config.fuse_allreduce_rms=true",
        "--enforce-eager --no-enforce-eager",
    ] {
        let answer = on(&switched(), &format!("{all} {pass}"));
        let found = said(&answer, "failed-peers-in-use").is_some();
        assert!(found, "{pass}: {answer:#?}");
    }
}
