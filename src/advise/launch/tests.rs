//! Launches as people paste them, and what is said of them.

use super::{Invocation, Question, check, on_a_host::on, read};
use crate::{
    diagnose::sample::{Host, pair},
    model::{
        case::WrongKind,
        finding::Severity,
        launch::{LaunchCheck, LaunchOutcome, LaunchProblem},
    },
    profile::Profiles,
};

fn launches(text: &str) -> Vec<Invocation> {
    read("text", text, None, &Profiles::embedded().unwrap()).unwrap()
}

fn one(text: &str) -> Invocation {
    let mut all = launches(text);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The problem of this id, if it was found.
pub(super) fn found<'a>(answer: &'a LaunchCheck, id: &str) -> Option<&'a LaunchProblem> {
    answer.problems.iter().find(|p| p.id == id)
}

pub(super) fn judged(text: &str, question: &Question) -> LaunchCheck {
    check(&one(text), question, &Profiles::embedded().unwrap()).unwrap()
}

fn ids(text: &str) -> Vec<String> {
    let answer = judged(text, &Question::default());
    answer.problems.into_iter().map(|p| p.id).collect()
}

#[test]
fn engines_are_recognised_however_they_are_started() {
    for (text, engine) in [
        ("vllm serve Qwen/Qwen3-32B -tp 4", "vllm"),
        ("A=1 exec /opt/bin/vllm serve x", "vllm"),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model x",
            "vllm",
        ),
        (
            "cd /x && nohup python -m sglang.launch_server --model-path x --tp 8 > log 2>&1 &",
            "sglang",
        ),
        ("trtllm-serve x --tp_size 4", "tensorrt-llm"),
        ("./llama-server -m x.gguf", "llama.cpp"),
        (
            "docker run --gpus all -e NCCL_P2P_DISABLE=1 vllm/vllm-openai:v0.30 --model x",
            "vllm",
        ),
        ("env -u X A=1 numactl -N 0 vllm serve x", "vllm"),
        ("bash -c 'export A=1; vllm serve x'", "vllm"),
        ("if true; then\n  vllm serve x\nfi", "vllm"),
    ] {
        assert_eq!(one(text).engine.as_deref(), Some(engine), "{text}");
    }
    let error = read("f", "ls -l\necho hi", None, &Profiles::embedded().unwrap());
    let said = error.unwrap_err().to_string();
    assert!(
        said.contains("f: no launch found") && said.contains("vllm serve"),
        "{said}"
    );
    let error = read(
        "f",
        "a\nvllm serve 'x",
        None,
        &Profiles::embedded().unwrap(),
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "f: line 2: ' without its end"
    );
}

#[test]
fn variables_reach_the_engine_as_a_shell_would_hand_them_on() {
    let script = "#!/bin/bash\nset -e\nexport A=1\nB=2\nC=3\nexport C\nunset A\nD=4 vllm serve x\n";
    let launch = one(script);
    let names: Vec<&str> = launch.variables.keys().map(String::as_str).collect();
    assert_eq!(names, ["C", "D"]);
    assert!(launch.not_exported.contains("B"));
    assert_eq!(one("set -a\nA=1\nvllm serve x").variables["A"], "1");
    let launch = one(
        "TP=8\nARGS=(--tensor-parallel-size $TP\n --enforce-eager)\nvllm serve x \"${ARGS[@]}\"",
    );
    assert_eq!(launch.flags.len(), 2);
    assert_eq!(launch.flags[0].value.as_deref(), Some("8"));
    let launch = one("export A=1\ndocker run -e A -e B=2 -e C img vllm serve x");
    assert_eq!(launch.variables.len(), 2);
    assert!(launch.isolated_shared_memory);
    assert!(!one("docker run --ipc=host img vllm serve x").isolated_shared_memory);
    let unread = one("vllm serve $MODEL").unread;
    assert!(unread[0].contains("$MODEL"), "{unread:?}");
}

#[test]
fn flags_of_json_are_read_one_by_one() {
    let launch = one(
        "vllm serve x --speculative_config '{\"method\":\"mtp\",\"num_speculative_tokens\":3}' --temp -1 --x=y",
    );
    let value = |name: &str| launch.value(&[name.to_string()]);
    assert_eq!(
        value("--speculative-config.num_speculative_tokens"),
        Some("3")
    );
    assert_eq!(value("--temp"), Some("-1"));
    assert_eq!(value("--x"), Some("y"));
}

#[test]
fn compose_and_kubernetes() {
    let compose = "services:\n  llm:\n    image: vllm/vllm-openai\n    environment:\n      NCCL_P2P_DISABLE: \"1\"\n    command: --model x --tensor-parallel-size 2\n";
    let launch = one(compose);
    assert_eq!(launch.place, "container llm");
    assert_eq!(launch.variables["NCCL_P2P_DISABLE"], "1");
    assert!(launch.isolated_shared_memory);
    let found = ids(compose);
    for id in [
        "nccl-off-custom-on",
        "nccl-off-symm-mem-on",
        "isolated-shared-memory",
    ] {
        assert!(found.iter().any(|f| f == id), "{id}: {found:?}");
    }
    let pod = "spec:\n  containers:\n  - name: sgl\n    image: lmsysorg/sglang\n    command: [\"python3\", \"-m\", \"sglang.launch_server\"]\n    args:\n    - --model-path\n    - x\n    - --tp\n    - \"8\"\n    env:\n    - name: SGLANG_ENABLE_PCIE_IPC_ALLREDUCE\n      value: \"1\"\n    volumeMounts:\n    - name: shm\n      mountPath: /dev/shm\n";
    let launch = one(pod);
    assert_eq!(launch.engine.as_deref(), Some("sglang"));
    assert!(!launch.isolated_shared_memory);
    assert!(ids(pod).contains(&"workspace-of-64-rows".to_string()));
    let shell = "services:\n  a:\n    image: x\n    entrypoint: [\"/bin/bash\", \"-c\"]\n    command:\n      - |\n        export VLLM_SKIP_P2P_CHECK=0\n        vllm serve m -tp 4\n    ipc: host\n";
    let launch = one(shell);
    assert_eq!(launch.variables["VLLM_SKIP_P2P_CHECK"], "0");
    assert_eq!(launch.value(&["-tp".to_string()]), Some("4"));
}

#[test]
fn environment_files_are_judged_by_whose_variables_they_hold() {
    let launch = one("# comment\nNCCL_P2P_DISABLE=1\nSGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1\n");
    assert_eq!(launch.engine.as_deref(), Some("sglang"));
    assert!(ids("GGML_CUDA_P2P=0\n").contains(&"ggml-p2p-by-presence".to_string()));
    assert_eq!(one("NCCL_DEBUG=INFO").engine.as_deref(), Some("nccl"));
}

/// One launch for every trap that a profile states without a host, and none of them on a plain launch.
#[test]
fn traps_fire_on_their_launch() {
    for (id, text) in [
        (
            "nccl-off-custom-on",
            "NCCL_P2P_DISABLE=1 vllm serve x -tp 4",
        ),
        (
            "nccl-off-symm-mem-on",
            "NCCL_P2P_DISABLE=1 vllm serve x -tp 4 --disable-custom-all-reduce",
        ),
        (
            "nccl-off-pcie-ipc-on",
            "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x -tp 2",
        ),
        (
            "nccl-off-pcie-ipc-on",
            "NCCL_P2P_DISABLE=1 SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=yes sglang serve x --tp 2",
        ),
        (
            "both-paths-disabled",
            "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 vllm serve x -tp 2",
        ),
        (
            "nccl-memcpy",
            "NCCL_P2P_USE_CUDA_MEMCPY=1 sglang serve x --tp 2",
        ),
        (
            "level-beside-disable",
            "NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=SYS vllm serve x -tp 2",
        ),
        ("ggml-p2p-by-presence", "GGML_CUDA_P2P=0 llama-server -m x"),
        ("ggml-p2p-by-presence", "GGML_CUDA_P2P=0 vllm serve x"),
        (
            "all-reduce-word-not-known",
            "GGML_CUDA_ALLREDUCE=fast llama-server -m x",
        ),
        ("row-split", "llama-server -m x --split-mode row"),
        ("level-by-number", "NCCL_P2P_LEVEL=5 vllm serve x -tp 4"),
        ("level-not-a-word", "NCCL_P2P_LEVEL=loc vllm serve x -tp 4"),
        (
            "symm-mem-takes-pcie-ipc",
            "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 sglang serve x --enable-symm-mem",
        ),
        (
            "pcie-ipc-beside-other-groups",
            "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 sglang serve x --tp 4 --dp-size 2",
        ),
        (
            "pcie-ipc-beside-other-groups",
            "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 sglang serve x --tp 4 --ep 2",
        ),
        (
            "pcie-ipc-beside-other-groups",
            "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x -tp 4 --enable-expert-parallel",
        ),
        (
            "pcie-ipc-is-bf16",
            "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 sglang serve x --dtype half",
        ),
        (
            "pcie-ipc-without-graphs",
            "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x --enforce-eager",
        ),
        (
            "p2p-check-that-trusts",
            "SGLANG_SKIP_P2P_CHECK=1 sglang serve x --enable-p2p-check",
        ),
        (
            "uuids-in-visible-devices",
            "CUDA_VISIBLE_DEVICES=GPU-1234 vllm serve x",
        ),
        (
            "expandable-segments",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve x -tp 2",
        ),
        ("check-that-trusts", "VLLM_SKIP_P2P_CHECK=1 vllm serve x"),
        (
            "check-with-a-stale-cache",
            "VLLM_SKIP_P2P_CHECK=0 vllm serve x",
        ),
        (
            "host-reduce-by-the-other-name",
            "1cat-vllm serve x --kernel-config '{\"host_reduce\":{\"enabled\":true}}'",
        ),
        (
            "lowprecision-never-starts",
            "trtllm-serve x --allreduce_strategy LOWPRECISION",
        ),
        (
            "isolated-shared-memory",
            "docker run img vllm serve x -tp 2",
        ),
        ("variable-not-exported", "NCCL_P2P_DISABLE=1\nvllm serve x"),
        (
            "pcie-ipc-group-size",
            "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 sglang serve x --tp 6",
        ),
        (
            "draft-tokens-are-rows",
            "sglang serve x --speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-num-draft-tokens 5",
        ),
        (
            "workspace-not-a-multiple-of-8",
            "SGLANG_PCIE_IPC_MAX_NUMEL=131071 sglang serve x",
        ),
        (
            "workspace-without-backend",
            "SGLANG_PCIE_IPC_MAX_NUMEL=131072 sglang serve x",
        ),
    ] {
        let found = ids(text);
        assert!(found.iter().any(|f| f == id), "{id}: {text}: {found:?}");
    }
    for plain in [
        "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --port 8000 --gpu-memory-utilization 0.9 -O3 --no-enable-prefix-caching",
        "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 8 --cuda-graph-max-bs-decode 32",
        "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 vllm serve x -tp 4 --disable-custom-all-reduce",
        "llama-server -m x.gguf",
        "trtllm-serve x --tp_size 4",
    ] {
        assert_eq!(ids(plain), Vec::<String>::new(), "{plain}");
        let answer = judged(plain, &Question::default());
        assert_eq!(answer.outcome(), LaunchOutcome::NothingWrong, "{answer:?}");
        assert!(!answer.judged.is_empty(), "what was judged is listed");
        assert!(answer.outside.iter().any(|o| o.contains("--from REPORT")));
    }
}

/// What was not read is never clear.
#[test]
fn nothing_is_clear_over_what_was_not_read() {
    for (text, said) in [
        ("vllm serve x -tp $TP", "'-tp $TP' on line 1"),
        ("TP=$1\nvllm serve x -tp $TP", "$TP"),
        ("NCCL_P2P_DISABLE=$OFF vllm serve x -tp 4", "$OFF"),
        (
            "export NCCL_P2P_DISABLE=$(cat off)\nvllm serve x -tp 4",
            "$(...)",
        ),
        ("source ./env.sh\nvllm serve x -tp 4", "./env.sh"),
        (
            "vllm serve x -tp 4 --config serve.yaml",
            "--config serve.yaml",
        ),
        ("trtllm-serve x --extra_llm_api_options a.yml", "a.yml"),
        ("vllm serve x -tp 4 --nnodes 2", "several hosts"),
        ("sglang serve x --tp 16 --nnodes 2", "several hosts"),
        ("vllm serve x --wibble-wobble 3", "--wibble-wobble"),
        ("VLLM_WIBBLE_WOBBLE=1 vllm serve x", "VLLM_WIBBLE_WOBBLE"),
        ("vllm serve x --tensor-parallel 4", "write it out"),
        ("mpirun all_reduce_perf -g 1", "mpirun"),
        ("vllm serve x -tp 4 \"$@\"", "$@"),
        (
            "docker run --env-file a.env --ipc=host img vllm serve x",
            "a.env",
        ),
        (
            "services:\n  a:\n    image: vllm/vllm-openai\n    ipc: host\n    environment:\n      NCCL_P2P_DISABLE: ${OFF}\n    command: --model x\n",
            "${OFF}",
        ),
        (
            "services:\n  a:\n    image: vllm/vllm-openai\n    ipc: host\n    command: [\"--model\", \"x\", \"-tp\", \"${TP}\"]\n",
            "${TP}",
        ),
    ] {
        let answer = judged(text, &Question::default());
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NotJudged,
            "{text}: {answer:?}"
        );
        assert!(
            answer.not_judged.iter().any(|n| n.contains(said)),
            "{text}: {:?}",
            answer.not_judged
        );
    }
}

#[test]
fn misspelt_names_get_their_neighbour() {
    for (text, id, near) in [
        (
            "vllm serve x --disable-custom-all-redcue",
            "flag-not-known",
            "--disable-custom-all-reduce",
        ),
        (
            "vllm serve x --tensor-paralel-size 4",
            "flag-not-known",
            "--tensor-parallel-size",
        ),
        (
            "sglang serve x --enable-p2p-chek",
            "flag-not-known",
            "--enable-p2p-check",
        ),
        ("trtllm-serve x --tp_sise 4", "flag-not-known", "--tp-size"),
        (
            "NCCL_P2P_DISABEL=1 vllm serve x",
            "variable-not-known",
            "NCCL_P2P_DISABLE",
        ),
        (
            "NCLL_P2P_DISABLE=1 vllm serve x",
            "variable-not-known",
            "NCCL_P2P_DISABLE",
        ),
        (
            "CUDA_VISIBLE_DEVICE=0,1 vllm serve x",
            "variable-not-known",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            "VLLM_SKIP_P2P_CHEK=0 vllm serve x",
            "variable-not-known",
            "VLLM_SKIP_P2P_CHECK",
        ),
    ] {
        let answer = judged(text, &Question::default());
        let found = answer.problems.iter().find(|p| p.id == id);
        let found = found.unwrap_or_else(|| panic!("{text}: {answer:?}"));
        assert_eq!(found.settings, [near], "{text}");
        assert_eq!(answer.outcome(), LaunchOutcome::Problem);
    }
}

/// Every group of a launch uses pairs: stages, replicas, experts, all visible GPUs, threads, processes.
#[test]
fn pairs_of_every_group_of_the_launch_are_judged() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    host.set_wrong(pair(6, 7), "sm-store", WrongKind::Dropped);
    let ask = |text: &str| on(&host, text);
    for text in [
        "vllm serve x -tp 4 -pp 2",
        "vllm serve x -tp 2 --pipeline-parallel-size 2 --data-parallel-size 2",
        "vllm serve x -tp 4 -dp 2 --enable-expert-parallel",
        "sglang serve x --tp 4 --pp-size 2",
        "sglang serve x --tp 4 --dp-size 2",
        "trtllm-serve x --tp_size 4 --pp_size 2",
        "llama-server -m x.gguf -sm tensor",
        "CUDA_VISIBLE_DEVICES=0,6,7 llama-server -m x.gguf -sm tensor",
        "all_reduce_perf -b 8 -e 1M -g 8",
        "all_reduce_perf -g 2 -t 4",
        "mpirun -np 8 all_reduce_perf -g 1",
        "torchrun --nproc-per-node 8 train.py --anything 3",
        "CUDA_VISIBLE_DEVICES=6,7 vllm serve x -tp 2",
        "docker run --gpus '\"device=6,7\"' --ipc=host img vllm serve x -tp 2",
    ] {
        let answer = ask(text);
        assert!(
            answer
                .problems
                .iter()
                .any(|p| p.id == "failed-peers-in-use"),
            "{text}: {answer:?}"
        );
    }
    for text in [
        "vllm serve x -tp 2 -pp 2",
        "sglang serve x --tp 4 --dp-size 2 --enable-dp-attention",
        "llama-server -m x.gguf --split-mode none",
        "CUDA_VISIBLE_DEVICES=0,1 llama-server -m x.gguf -sm tensor",
        "llama-server -m x.gguf -sm tensor --device CUDA0,CUDA2",
        "all_reduce_perf -g 4",
        "docker run --gpus '\"device=2,3\"' --ipc=host img vllm serve x -tp 2",
    ] {
        let answer = ask(text);
        assert!(
            !answer
                .problems
                .iter()
                .any(|p| p.id == "failed-peers-in-use"),
            "{text}: {answer:?}"
        );
    }
    // Which of the host's GPUs a number of them means is not in the text.
    let some = ask("docker run --gpus 2 --ipc=host img vllm serve x -tp 2");
    assert!(
        some.not_judged
            .iter()
            .any(|n| n.contains("does not say which")),
        "{some:?}"
    );
}

#[test]
fn more_ranks_than_gpus_do_not_start() {
    for text in [
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve x -tp 4",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve x -tp 4 -pp 2",
        "docker run --gpus 2 --ipc=host img sglang serve x --tp 4",
        "spec:\n  containers:\n  - name: a\n    image: vllm/vllm-openai\n    args: [\"--model\", \"x\", \"-tp\", \"8\"]\n    resources:\n      limits:\n        nvidia.com/gpu: \"4\"\n    volumeMounts:\n    - mountPath: /dev/shm\n      name: s\n",
    ] {
        let answer = judged(text, &Question::default());
        let found = answer
            .problems
            .iter()
            .find(|p| p.id == "more-gpus-than-visible");
        assert!(found.is_some(), "{text}: {answer:?}");
    }
    let right = judged(
        "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve x -tp 2 -pp 2",
        &Question::default(),
    );
    assert_eq!(right.outcome(), LaunchOutcome::NothingWrong, "{right:?}");
}

#[test]
fn every_trap_of_the_profiles_can_be_reached() {
    // Those that a host decides have one in `field_traps`.
    let shown = concat!(include_str!("tests.rs"), include_str!("field_traps.rs"));
    for engine in Profiles::embedded().unwrap().engines {
        for trap in engine.traps.iter().filter(|t| t.host.is_empty()) {
            assert!(
                shown.contains(&format!("\"{}\"", trap.id)),
                "{} {}",
                engine.id,
                trap.id
            );
        }
    }
}

/// engines.md 7.3 and 8: sizes.
#[test]
fn sizes_of_a_launch() {
    let base = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 SGLANG_PCIE_IPC_MAX_NUMEL=@N python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Flash --tp 2 --cuda-graph-max-bs-decode 32 --speculative-algorithm DSPARK --speculative-num-draft-tokens 6 --max-running-requests @R --disable-custom-all-reduce";
    let with = |numel: &str, run: &str| {
        judged(
            &base.replace("@N", numel).replace("@R", run),
            &Question::default(),
        )
    };
    let find =
        |answer: &LaunchCheck, id: &str| answer.problems.iter().find(|p| p.id == id).cloned();
    let forgotten = find(&with("131072", "32"), "draft-width-forgotten").unwrap();
    assert!(
        forgotten
            .wrong
            .contains("5 requests of 6 rows; with request 6 the step has 36 rows"),
        "{}",
        forgotten.wrong
    );
    assert_eq!(forgotten.settings, ["SGLANG_PCIE_IPC_MAX_NUMEL=786432"]);
    // The published recipe: 48 running requests do not fit.
    let recipe = find(&with("786432", "48"), "more-running-than-admitted").unwrap();
    assert!(recipe.wrong.contains("288 rows"), "{}", recipe.wrong);
    assert_eq!(recipe.settings[0], "--max-running-requests 32");
    let prefill = find(&with("67108864", "32"), "prefill-sized-workspace").unwrap();
    assert!(prefill.wrong.contains("85 times"), "{}", prefill.wrong);
    let right = with("786432", "32");
    assert!(
        right.problems.iter().all(|p| p.severity == Severity::Info),
        "{right:?}"
    );

    let captures = "vllm serve zai-org/GLM-5.2 -tp 8 --max-num-seqs 32 --speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":5}' --compilation-config '{\"cudagraph_capture_sizes\":[1,2,32]}'";
    let short = find(
        &judged(captures, &Question::default()),
        "captures-count-tokens",
    )
    .unwrap();
    assert!(
        short.wrong.contains("32 requests of 6 rows have 192"),
        "{}",
        short.wrong
    );
    let unknown = judged(
        &base
            .replace("deepseek-ai/DeepSeek-V4-Flash", "/models/x")
            .replace("@N", "131072")
            .replace("@R", "32"),
        &Question::default(),
    );
    assert!(
        unknown
            .not_judged
            .iter()
            .any(|n| n.starts_with("sizes: unknown model '/models/x'"))
    );
    let told = Question {
        hidden: Some(4096),
        ..Question::default()
    };
    let told = judged(
        &base
            .replace("deepseek-ai/DeepSeek-V4-Flash", "/models/x")
            .replace("@N", "131072")
            .replace("@R", "32"),
        &told,
    );
    assert!(find(&told, "draft-width-forgotten").is_some());
}

#[test]
fn failed_peers_must_be_off_in_every_consumer() {
    let mut host = Host::root_complex(8);
    host.all_intact();
    host.set_wrong(pair(2, 5), "sm-store", WrongKind::Dropped);
    let ask = |text: &str| on(&host, text);
    let half = ask("NCCL_P2P_DISABLE=1 vllm serve x -tp 8 --disable-custom-all-reduce");
    let found = half
        .problems
        .iter()
        .find(|p| p.id == "failed-peers-in-use")
        .unwrap();
    assert_eq!(found.severity, Severity::Critical);
    assert!(
        found.wrong.contains("2->5 sm-store: dropped"),
        "{}",
        found.wrong
    );
    assert!(
        found
            .settings
            .iter()
            .any(|s| s == "VLLM_ALLREDUCE_USE_SYMM_MEM=0")
    );
    assert!(
        found
            .settings
            .iter()
            .any(|s| s == "VLLM_ALLREDUCE_USE_FLASHINFER=0")
    );
    assert!(
        !found
            .settings
            .iter()
            .any(|s| s.contains("NCCL_P2P_DISABLE"))
    );
    let whole = ask(
        "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 vllm serve x -tp 8 --disable-custom-all-reduce",
    );
    assert!(whole.problems.is_empty(), "{:?}", whole.problems);
    // Two GPUs beside the broken pair are free to use their peers.
    let beside = ask("CUDA_VISIBLE_DEVICES=0,1 vllm serve x -tp 2");
    assert!(beside.problems.is_empty(), "{:?}", beside.problems);
}

#[test]
fn what_depends_on_the_host_is_told_and_not_guessed() {
    let text = "VLLM_ALLREDUCE_USE_FLASHINFER=1 vllm serve x -tp 4";
    let alone = judged(text, &Question::default());
    assert!(alone.problems.is_empty());
    assert!(
        alone
            .not_judged
            .iter()
            .any(|n| n.contains("flashinfer-without-table") && n.contains("--from"))
    );
    let mut host = Host::root_complex(4);
    host.climb_all();
    let ask = on;
    let found = ask(&host, text);
    let ids: Vec<&str> = found.problems.iter().map(|p| p.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "flashinfer-without-table",
            "custom-all-reduce-is-for-nvlink",
            "level-below-proof"
        ]
    );
    host.name_all("NVIDIA GeForce RTX 3090");
    let found = ask(&host, "vllm serve x -tp 2");
    assert!(
        found
            .problems
            .iter()
            .any(|p| p.id == "patched-driver-custom-on")
    );
    let mut vm = Host::root_complex(4);
    vm.all_intact();
    vm.snapshot.topology.class = crate::model::topology::FabricClass::VmOpaque;
    let found = ask(
        &vm,
        "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x -tp 4",
    );
    assert!(
        found.problems.iter().any(|p| p.id == "pcie-ipc-in-a-vm"),
        "{found:?}"
    );
    let small = ask(&vm, "vllm serve x -tp 16");
    assert!(
        small.problems.iter().any(|p| p
            .wrong
            .contains("needs 16 GPUs, and the host of the report has 4")),
        "{small:?}"
    );
}

#[test]
fn no_text_makes_it_panic() {
    let profiles = Profiles::embedded().unwrap();
    let seeds = [
        "vllm serve x --a '{\"b\":[1,2]}' $A \"$B\" `c` ${D:-e} <<E\nx\nE\n",
        "services:\n  a:\n    image: \"x\"\n    environment:\n    - A=1\n    command: [\"a\", 'b']\n",
        "A=(b 'c' \"d\")\nexport A=1 B\ndocker run -e C --ipc host img bash -c 'vllm serve $1'",
    ];
    for seed in seeds {
        let chars: Vec<char> = seed.chars().collect();
        for cut in 0..chars.len() {
            let head: String = chars[..cut].iter().collect();
            let tail: String = chars[cut..].iter().collect();
            for text in [head.clone(), tail.clone(), format!("{tail}{head}")] {
                if let Ok(found) = read("t", &text, None, &profiles) {
                    for launch in found {
                        let _ = check(&launch, &Question::default(), &profiles);
                    }
                }
            }
        }
    }
}
