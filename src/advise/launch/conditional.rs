//! What a text does not say for sure: code that may not run, variables that a command in front does not hand on, files and
//! variables that were not read. None of it is clear, and none of it wrong.

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

const V: &str =
    "export NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0";
const E: &str = "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0";
const L: &str = "vllm serve M -tp 2 --disable-custom-all-reduce";

fn bad() -> Host {
    let mut host = Host::root_complex(2);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host
}

fn open(answer: &LaunchCheck, text: &str, words: &str) {
    assert_eq!(
        answer.outcome(),
        LaunchOutcome::NotJudged,
        "{text}: {answer:#?}"
    );
    let told = answer.not_judged.iter().any(|n| n.contains(words));
    assert!(told, "{words}: {text}: {:#?}", answer.not_judged);
}

#[test]
fn what_may_not_run_is_not_known() {
    let host = bad();
    for (text, line) in [
        (format!("if false; then {V}; fi\n{L}"), 1),
        (format!("if [ a = b ]\nthen\n  :\nelse\n  {V}\nfi\n{L}"), 5),
        (format!("off() {{ {V}; }}\n{L}"), 1),
        (format!("off()\n{{\n{V}\n}}\noff\n{L}"), 3),
        (format!("function off {{ {V}; }}\n{L}"), 1),
        (format!("function off {{\n {V}\n}}\n{L}"), 2),
        (format!("[ -n \"$SAFE\" ] && {V}\n{L}"), 1),
        (format!("[ -n \"$SAFE\" ] || {V}; {L}"), 1),
        (format!("[ -n \"$SAFE\" ] &&\n {V}\n{L}"), 2),
        (format!("[ -n \"$SAFE\" ] && {{ {V}; }}\n{L}"), 1),
        (format!("[ -n \"$SAFE\" ] && {V} && (ls)\n{L}"), 1),
        (format!("case $1 in safe) {V};; esac\n{L}"), 1),
        (
            format!("case $1 in\n a|b) ls;;\n (safe)\n {V}\n ;;\nesac\n{L}"),
            4,
        ),
        (format!("( {V} )\n{L}"), 1),
        (format!("{V} | cat\n{L}"), 1),
        (format!("echo | {V}\n{L}"), 1),
        (format!("{{ {V}; }} | cat\n{L}"), 1),
        (format!("{V} &\n{L}"), 1),
        (format!("{{ {V}; }} &\n{L}"), 1),
        (format!("while read x; do {V}; done < /dev/null\n{L}"), 1),
        (format!("for x in $Y; do {V}; done\n{L}"), 1),
        (
            format!("{V}\nif [ $1 ]; then unset NCCL_P2P_DISABLE; fi\n{L}"),
            2,
        ),
    ] {
        let said = format!("NCCL_P2P_DISABLE is set on line {line} ");
        open(&on(&host, &text), &text, &said);
    }
    // Where the launch stands beside them, they hold.
    for text in [
        format!("if true; then {V}; {L}; fi"),
        format!("run() {{\n{V}\n{L} | tee log\n}}\nrun"),
        format!("{V} && {L}"),
        format!("cd /x && {V} && {L}"),
        format!("( {V}; {L} ) &"),
        format!("{V}; {L} &> log"),
        format!("{{ {V}; }}\n{L}"),
        format!("{V}\nif [ $1 ]; then\n exec {L}\nfi"),
        format!("{V}\nfor i in 1 2; do {L}; done"),
        format!("X=1 && {V}\n{L}"),
    ] {
        let answer = on(&host, &text);
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NothingWrong,
            "{text}: {answer:#?}"
        );
    }
    // Experts go by NCCL, which may be off its peers.
    let text = format!("if [ $1 ]; then {V}; fi\n{L} -ep");
    open(&on(&host, &text), &text, "may or may not keep it off");
    // What comes behind a function may come before its call.
    let text = format!("run() {{ {L}; }}\n{V}\nrun");
    open(&on(&host, &text), &text, "behind the function");
    // Variables that nobody reads here are nobody's matter.
    let text = format!("if [ $1 ]; then export HF_HOME=/x; fi\n{V}\n{L}");
    assert_eq!(on(&host, &text).outcome(), LaunchOutcome::NothingWrong);
}

#[test]
fn flags_and_sizes_that_may_not_be_set_are_not_known() {
    let host = bad();
    for text in [
        format!(
            "if [ -z \"$UNSAFE\" ]; then CAR=--disable-custom-all-reduce; fi; {V}; vllm serve M -tp 2 $CAR"
        ),
        format!(
            "if true; then TP=2; else TP=1; fi; {V}; vllm serve M -tp $TP --disable-custom-all-reduce"
        ),
        format!(
            "if true; then TP=2; fi; {V}; vllm serve M -tp ${{TP:-1}} --disable-custom-all-reduce"
        ),
        format!(
            "{V}\nARGS=(-tp 2)\nif x; then ARGS+=(--disable-custom-all-reduce); fi\nvllm serve M \"${{ARGS[@]}}\""
        ),
        format!("{V}\nA=($X)\nvllm serve M -tp 2 \"${{A[@]}}\""),
        format!("{V}\nfor TP in 1 2; do vllm serve M -tp $TP --disable-custom-all-reduce; done"),
        format!("{V}; read TP; vllm serve M -tp $TP --disable-custom-all-reduce"),
    ] {
        let answer = on(&host, &text);
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NotJudged,
            "{text}: {answer:#?}"
        );
        let pairs = answer.judged.iter().any(|j| j.contains("no pairs"));
        assert!(!pairs, "{text}: {answer:#?}");
    }
    let text = "if true; then TP=2; fi\nvllm serve M -tp $TP";
    open(
        &judged(text, &Question::default()),
        text,
        "TP is set on line 1 in an if",
    );
    // Words that are added are there.
    let text = format!(
        "{V}\nARGS=(-tp 2)\nARGS+=(--disable-custom-all-reduce)\nvllm serve M \"${{ARGS[@]}}\""
    );
    assert_eq!(on(&host, &text).outcome(), LaunchOutcome::NothingWrong);
}

#[test]
fn commands_that_keep_variables_back_keep_them_back() {
    let host = bad();
    for text in [
        format!("{E} sudo {L}"),
        format!("{V}; sudo -u me {L}"),
        format!("{V}; sudo bash -c '{L}'"),
        format!("{E} docker exec -it c1 {L}"),
        format!("{E} podman exec c1 {L}"),
        format!("{E} kubectl exec pod -- {L}"),
        format!("{E} ssh host {L}"),
        format!("{V}; ssh -p 22 host '{L}'"),
        format!("{V}; su - me -c '{L}'"),
    ] {
        let answer = on(&host, &text);
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NotJudged,
            "{text}: {answer:#?}"
        );
    }
    for text in [
        format!("{V}; env -i PATH=/usr/bin {L}"),
        format!("{E} systemd-run --user {L}"),
        format!("{V}; srun --export=NONE -n 1 {L}"),
    ] {
        let answer = on(&host, &text);
        assert!(
            said(&answer, "failed-peers-in-use").is_some(),
            "{text}: {answer:#?}"
        );
        let told = said(&answer, "variable-not-handed-on");
        assert!(told.is_some(), "{text}: {answer:#?}");
    }
    let systemd: String = E.split(' ').map(|e| format!("-E {e} ")).collect();
    for text in [
        format!("sudo {E} {L}"),
        format!("{E} sudo -E {L}"),
        format!(
            "{V}; sudo --preserve-env=NCCL_P2P_DISABLE,VLLM_ALLREDUCE_USE_SYMM_MEM,VLLM_ALLREDUCE_USE_FLASHINFER {L}"
        ),
        format!("{V}; sudo -E bash -c '{L}'"),
        format!("env -i {E} {L}"),
        format!("systemd-run --user {systemd}{L}"),
        format!("{V}; systemd-run --user --scope {L}"),
        format!("{V}; srun -n 1 {L}"),
        format!("{V}; srun --export=ALL,A=1 -n 1 {L}"),
        format!("{V}; nohup numactl -N 0 {L} > log 2>&1 &"),
        format!("{V}; su me -c '{L}'"),
    ] {
        let answer = on(&host, &text);
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NothingWrong,
            "{text}: {answer:#?}"
        );
    }
}

#[test]
fn what_was_not_read_may_hold_what_is_missing() {
    let host = bad();
    for text in [
        format!("{E} vllm serve M -tp 2 $EXTRA"),
        format!("{E} vllm serve M -tp 2 --enforce-eager $EXTRA"),
        format!("{E} vllm serve M -tp 2 --config c.yml"),
        format!("docker run --ipc=host --env-file foo.env img {L}"),
        format!("docker run --ipc=host $OPTS img {L}"),
        format!("source env.sh\n{L}"),
        format!(
            "NCCL_P2P_DISABLE=$OFF VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 {L}"
        ),
        "NCCL_P2P_DISABLE=1 trtllm-serve M --tp_size 2 --extra_llm_api_options c.yml".to_string(),
    ] {
        let answer = on(&host, &text);
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NotJudged,
            "{text}: {answer:#?}"
        );
    }
    // What no unread part can hold is missing.
    for text in [
        "vllm serve M -tp 2 $EXTRA".to_string(),
        format!("{E} vllm serve $M -tp 2 --port $PORT"),
        "docker run --ipc=host --env-file foo.env img vllm serve M -tp 2".to_string(),
    ] {
        let answer = on(&host, &text);
        assert!(
            said(&answer, "failed-peers-in-use").is_some(),
            "{text}: {answer:#?}"
        );
    }
}

#[test]
fn variables_alone_have_no_size() {
    let env = E.replace(' ', "\n");
    let compose = format!(
        "services:\n  a:\n    image: mine\n    environment:\n{}",
        E.split(' ')
            .map(|e| format!("      - {e}\n"))
            .collect::<String>()
    );
    for text in [env, compose] {
        for answer in [judged(&text, &Question::default()), on(&bad(), &text)] {
            open(&answer, &text, "no launch is in this text");
            let pairs = |j: &String| j.contains("no pairs") || j.contains("tensor parallel");
            assert!(!answer.judged.iter().any(pairs), "{answer:#?}");
        }
    }
}

#[test]
fn sglang_counts_from_its_base() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    host.set_wrong(pair(2, 3), "sm-store", WrongKind::Dropped);
    for text in [
        "sglang serve x --tp 2 --base-gpu-id 2",
        "CUDA_VISIBLE_DEVICES=0,2,3 sglang serve x --tp 2 --base-gpu-id 1",
        "CUDA_VISIBLE_DEVICES=2,0,3 sglang serve x --tp 2 --gpu-id-step 2",
    ] {
        let answer = on(&host, text);
        assert!(
            said(&answer, "failed-peers-in-use").is_some(),
            "{text}: {answer:#?}"
        );
    }
    for text in [
        "sglang serve x --tp 2",
        "sglang serve x --tp 2 --gpu-id-step 2",
        "sglang serve x --tp 2 --base-gpu-id 1 --gpu-id-step 2",
    ] {
        let answer = on(&host, text);
        assert!(
            said(&answer, "failed-peers-in-use").is_none(),
            "{text}: {answer:#?}"
        );
    }
    for text in [
        "sglang serve x --tp 2 --base-gpu-id 3",
        "sglang serve x --tp 2 --gpu-id-step 4",
        "sglang serve x --tp 2 --base-gpu-id two",
        "CUDA_VISIBLE_DEVICES=2,3 sglang serve x --tp 2 --base-gpu-id 2",
    ] {
        let answer = on(&host, text);
        let problem = said(&answer, "gpu-not-there");
        assert!(
            problem.is_some_and(|p| p.severity == Severity::Critical),
            "{text}: {answer:#?}"
        );
    }
    let text = "sglang serve x --tp 2 --base-gpu-id $N";
    let answer = on(&host, text);
    assert_eq!(answer.outcome(), LaunchOutcome::NotJudged, "{answer:#?}");
}

#[test]
fn right_launches_start() {
    let mut host = Host::root_complex(2);
    host.climb_all();
    for starter in ["mpirun -n 2", "srun -n 2", "srun --ntasks=2"] {
        let text = format!("{starter} trtllm-llmapi-launch trtllm-serve M --tp_size 2");
        let answer = on(&host, &text);
        assert!(
            said(&answer, "more-gpus-than-visible").is_none(),
            "{answer:#?}"
        );
        let pairs = |j: &String| j.starts_with("every pair") && j.contains("2 GPUs");
        assert!(answer.judged.iter().any(pairs), "{answer:#?}");
    }
    let text = "mpirun -n 4 trtllm-llmapi-launch trtllm-serve M --tp_size 2";
    open(&on(&host, text), text, "4 MPI ranks");
    for text in [
        "vllm serve M -tp 2 -dp 2 --data-parallel-size-local 1",
        "vllm serve M -tp 2 -dp 2 -dpl 1 --data-parallel-address 10.0.0.1",
    ] {
        let answer = on(&host, text);
        assert!(
            answer.worst() < Some(Severity::Critical),
            "{text}: {answer:#?}"
        );
        open(&answer, text, "another host");
        let pairs = |j: &String| j.starts_with("every pair") && j.contains("2 GPUs");
        assert!(answer.judged.iter().any(pairs), "{text}: {answer:#?}");
    }
    let whole = on(&host, "vllm serve M -tp 2 -dp 2 -dpl 2");
    assert!(
        said(&whole, "more-gpus-than-visible").is_some(),
        "{whole:#?}"
    );
    let text = "llama-server -m x -ngl 0";
    let answer = on(&bad(), text);
    assert_eq!(answer.worst(), None, "{answer:#?}");
}

#[test]
fn values_that_the_engine_refuses_are_refused() {
    for text in [
        "vllm serve M --speculative-config {\"num_speculative_tokens\":3}",
        "vllm serve M --compilation-config {mode:3}",
        "vllm serve M -cc {mode:3}",
        "vllm serve M --kv-transfer-config '{\"kv_connector\":\"NixlConnector\"'",
        "vllm serve M --gpu-memory-utilization high",
        "vllm serve M --max-num-seqs 2.5",
        "sglang serve M --mem-fraction-static=most",
    ] {
        let answer = judged(text, &Question::default());
        let problem = said(&answer, "engine-refuses");
        assert!(
            problem.is_some_and(|p| p.severity == Severity::Critical && p.wrong.contains("is not")),
            "{text}: {answer:#?}"
        );
    }
    for text in [
        "vllm serve M --speculative-config '{\"num_speculative_tokens\":3}' --gpu-memory-utilization .9",
        "vllm serve M -cc.mode 3 --max-num-seqs 64 --seed -1",
        "vllm serve M --gpu-memory-utilization $U",
    ] {
        let answer = judged(text, &Question::default());
        assert!(said(&answer, "engine-refuses").is_none(), "{answer:#?}");
    }
}
