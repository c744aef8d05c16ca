//! What is started where a text names images, container tools, Dockerfiles and units: an image is no launch by its name, and
//! what is not read is never left out.

use super::{Invocation, Question, check, read};
use crate::{model::launch::LaunchOutcome, profile::Profiles};

fn launches(text: &str) -> Vec<Invocation> {
    let found = read("f", text, None, &Profiles::embedded().unwrap());
    found.unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refused(text: &str) -> String {
    let found = read("f", text, None, &Profiles::embedded().unwrap());
    match found {
        Ok(found) => panic!("{text}: {found:#?}"),
        Err(error) => error.to_string(),
    }
}

fn value<'a>(launch: &'a Invocation, flag: &str) -> Option<&'a str> {
    launch.value(&[flag.to_string()])
}

/// Each launch as "engine model size", those that are not read as "?".
fn told(text: &str) -> Vec<String> {
    let tell = |one: &Invocation| {
        if one.no_launch {
            assert!(!one.unread.is_empty(), "{text}: {one:#?}");
            return "?".to_string();
        }
        let size = ["-tp", "--tensor-parallel-size", "--tp-size", "--tp"];
        let size = size.iter().find_map(|flag| value(one, flag));
        let model = value(one, "--model").or_else(|| value(one, "--model-path"));
        let model = model.or(one.positional.first().map(String::as_str));
        let engine = one.engine.as_deref().unwrap_or("none");
        format!("{engine} {} {}", model.unwrap_or("-"), size.unwrap_or("-"))
    };
    launches(text).iter().map(tell).collect()
}

fn is_not_judged(text: &str) {
    let profiles = Profiles::embedded().unwrap();
    let checks = launches(text);
    let checks = checks.iter().map(|one| {
        check(one, &Question::default(), &profiles)
            .unwrap()
            .outcome()
    });
    assert!(
        checks.into_iter().any(|o| o == LaunchOutcome::NotJudged),
        "{text}"
    );
}

fn pod(container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nspec:\n  hostIPC: true\n  containers:\n  - name: v\n    image: vllm/vllm-openai:v0.30.0\n    {container}\n"
    )
}

#[test]
fn a_command_takes_the_place_of_the_entry_point() {
    for (container, wanted) in [
        ("args: [--model, M, -tp, '8']", "vllm M 8"),
        ("args: [M, -tp, '8']", "vllm M 8"),
        ("command: [sh, -c, \"vllm serve M -tp 8\"]", "vllm M 8"),
        (
            "command: [/bin/bash, -lc]\n    args: [\"exec vllm serve M -tp 8\"]",
            "vllm M 8",
        ),
        (
            "command: [bash, -e, -o, pipefail, -c, \"sleep 5; vllm serve M -tp 8\"]",
            "vllm M 8",
        ),
        (
            "command: [bash, -c, \"bash /setup.sh; vllm serve M -tp 8\"]",
            "vllm M 8",
        ),
        (
            "command: [bash, -c]\n    args:\n    - |\n      pip install foo\n      vllm serve M \\\n        --tensor-parallel-size 8",
            "vllm M 8",
        ),
        (
            "command: [vllm, serve]\n    args: [M, -tp, '8']",
            "vllm M 8",
        ),
        (
            "command: [python3, -m, sglang.launch_server, --model-path, M, --tp, '8']",
            "sglang M 8",
        ),
        ("command: []\n    args: [--model, M, -tp, '8']", "vllm M 8"),
        ("command: [/bin/bash, /start.sh]", "?"),
        ("command: [bash, -c, \"bash /start.sh\"]", "?"),
        ("command: [sh, -c, /start.sh]", "?"),
        (
            "command: [/start.sh]\n    args: [--tensor-parallel-size, '8']",
            "?",
        ),
        ("command: [sleep, infinity]", "?"),
    ] {
        let text = pod(container);
        assert_eq!(told(&text), [wanted], "{text}");
        if wanted == "?" {
            is_not_judged(&text);
        }
    }
    for (service, wanted) in [
        ("command: --model M -tp 8", "vllm M 8"),
        (
            "entrypoint: [/bin/bash, -c]\n    command: [\"vllm serve M -tp 8\"]",
            "vllm M 8",
        ),
        (
            "entrypoint: []\n    command: [bash, -c, \"vllm serve M -tp 8\"]",
            "vllm M 8",
        ),
        (
            "entrypoint: [python3, -m, vllm.entrypoints.openai.api_server]\n    command: [--model, M, -tp, '8']",
            "vllm M 8",
        ),
        ("entrypoint: /start.sh", "?"),
        ("entrypoint: []\n    command: [--model, M]", "?"),
        ("entrypoint: [sleep]\n    command: [infinity]", "?"),
        // The image alone starts its engine.
        ("ipc: host", "vllm - -"),
    ] {
        let text = format!("services:\n  a:\n    image: vllm/vllm-openai\n    {service}\n");
        assert_eq!(told(&text), [wanted], "{text}");
    }
    // Every launch of a script counts, with its own variables and the container's place.
    let two = pod(
        "command: [sh, -c, \"A=1 vllm serve M -tp 8 & B=1 vllm serve N -tp 2\"]\n    env: [{name: C, value: '1'}]",
    );
    assert_eq!(told(&two), ["vllm M 8", "vllm N 2"]);
    let found = launches(&two);
    assert!(
        found
            .iter()
            .all(|one| one.place == "container v" && one.variables["C"] == "1")
    );
}

#[test]
fn only_run_starts_an_image() {
    for (text, wanted) in [
        (
            "docker run --gpus all vllm/vllm-openai --model M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker create --name c vllm/vllm-openai --model M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker pull vllm/vllm-openai\ndocker run vllm/vllm-openai --model M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker build -t vllm/vllm-openai .\nvllm serve M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker image inspect vllm/vllm-openai || docker load -i vllm-openai.tar\nvllm serve M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "IMAGE=vllm/vllm-openai\necho vllm-openai\nvllm serve M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker run --name vllm-openai nginx\nvllm serve M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker run --entrypoint vllm vllm/vllm-openai serve M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker run --entrypoint bash --ipc host vllm/vllm-openai -c 'vllm serve M -tp 8'",
            vec!["vllm M 8"],
        ),
        (
            "docker run --entrypoint= vllm/vllm-openai vllm serve M -tp 8",
            vec!["vllm M 8"],
        ),
        (
            "docker run --entrypoint bash vllm/vllm-openai /start.sh",
            vec!["?"],
        ),
        (
            "docker run --entrypoint /start.sh vllm/vllm-openai -tp 8",
            vec!["?"],
        ),
        ("docker run lmsysorg/sglang bash /start.sh", vec!["?"]),
        (
            "vllm serve M -tp 1\ndocker run --gpus all my/llm --model N -tp 8",
            vec!["vllm M 1", "?"],
        ),
        (
            "vllm serve M -tp 1\ndocker run $IMAGE --model N -tp 8",
            vec!["vllm M 1", "?"],
        ),
        (
            "vllm serve M -tp 1\nsingularity run docker://vllm/vllm-openai --model N -tp 8",
            vec!["vllm M 1", "?"],
        ),
        (
            "vllm serve M -tp 1\ndocker run prom/prometheus --config.file=x",
            vec!["vllm M 1"],
        ),
    ] {
        assert_eq!(told(text), wanted, "{text}");
    }
    let pulled = "docker pull vllm/vllm-openai:latest\ndocker run --gpus all --ipc=host my/llm --model M -tp 8\n";
    let error = refused(pulled);
    assert!(
        error.contains("line 2: its arguments (--model -tp) stand without a command"),
        "{error}"
    );
    for idle in [
        "docker pull vllm/vllm-openai",
        "podman tag vllm/vllm-openai x",
        "nerdctl push vllm/vllm-openai",
    ] {
        assert!(refused(idle).contains("no launch found"));
    }
    // The operator may name it.
    let found = read("f", pulled, Some("vllm"), &Profiles::embedded().unwrap()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(value(&found[0], "-tp"), Some("8"));
}

#[test]
fn what_stands_beside_a_launch_and_is_not_read_is_named() {
    let ok = "services:\n  ok:\n    image: vllm/vllm-openai\n    command: --model M\n";
    for (more, place) in [
        (
            "  mine:\n    image: acme/llm\n    command: --model N --tensor-parallel-size 8\n",
            "container mine",
        ),
        (
            "  mine:\n    build: .\n    command: -tp 8\n",
            "container mine",
        ),
        (
            "  big:\n    extends: {service: ok}\n    command: --model N -tp 8\n",
            "container big",
        ),
        ("  big:\n    extends: {service: ok}\n", "container big"),
        (
            "  big:\n    image: acme/llm\n    gpus: 8\n    command: /start.sh\n",
            "container big",
        ),
        ("include:\n- other.yaml\n", "'include' of the file"),
        (
            "---\nkind: InferenceService\nmetadata: {name: v}\nspec:\n  predictor:\n    model:\n      modelFormat: {name: vLLM}\n      args: [--tensor-parallel-size=8]\n",
            "container InferenceService v",
        ),
        (
            "---\nkind: InferenceService\nmetadata: {name: v}\nspec:\n  predictor:\n    model:\n      modelFormat: {name: vLLM}\n",
            "container InferenceService v",
        ),
    ] {
        let text = format!("{ok}{more}");
        let found = launches(&text);
        assert_eq!(found.len(), 2, "{text}: {found:#?}");
        let unread = found.iter().find(|one| one.no_launch).unwrap();
        assert_eq!(unread.place, place, "{text}");
        assert!(!unread.unread.is_empty(), "{text}");
        is_not_judged(&text);
    }
    // In any order of documents.
    let first = format!(
        "kind: InferenceService\nspec: {{model: {{args: [--tensor-parallel-size=8]}}}}\n---\n{ok}"
    );
    is_not_judged(&first);
}

#[test]
fn dockerfiles() {
    let from = "FROM vllm/vllm-openai:v0.30.0\n";
    for (text, wanted) in [
        (format!("{from}CMD [\"--model\",\"M\",\"-tp\",\"8\"]\n"), "vllm M 8"),
        (format!("{from}CMD [\"--model\",\"N\"]\nCMD [\"--model\",\"M\",\"-tp\",\"8\"]\n"), "vllm M 8"),
        (format!("ARG BASE=x\nFROM ${{BASE}}:1 AS base\nCMD [\"a\"]\n{from}ENTRYPOINT [\"vllm\",\"serve\",\"M\",\"-tp\",\"8\"]\n"), "vllm M 8"),
        ("# syntax=docker/dockerfile:1\nARG B=vllm/vllm-openai\nFROM --platform=linux/amd64 $B\nCMD [\"--model\", \\\n  # how many\n  \"M\", \"-tp\", \"8\"]\n".to_string(), "vllm M 8"),
        ("FROM nvidia/cuda:13.0\nRUN pip install vllm && vllm serve N\nENTRYPOINT exec vllm serve M -tp 8\nCMD [\"-tp\", \"2\"]\n".to_string(), "vllm M 8"),
        ("FROM lmsysorg/sglang\nCMD python3 -m sglang.launch_server --model-path M --tp 8\n".to_string(), "sglang M 8"),
        ("FROM vllm/vllm-openai AS base\nENTRYPOINT [\"vllm\",\"serve\"]\nCMD [\"N\"]\nFROM base\nCMD [\"M\",\"-tp\",\"8\"]\n".to_string(), "vllm M 8"),
        ("FROM vllm/vllm-openai AS base\nCMD [\"N\"]\nFROM base\nENTRYPOINT [\"vllm\",\"serve\"]\n".to_string(), "vllm - -"),
        (from.to_string(), "vllm - -"),
        (format!("{from}RUN cat > /start.sh <<EOF\nvllm serve N\nEOF\nENTRYPOINT [\"/start.sh\"]\n"), "?"),
        (format!("{from}ENTRYPOINT []\nCMD [\"bash\"]\n"), "?"),
    ] {
        assert_eq!(told(&text), [wanted], "{text}");
    }
    let text = format!(
        "{from}ARG NCCL_SHM_DISABLE=1\nENV NCCL_P2P_DISABLE=1 \\\n    A=\"b c\" D=$A\nENV VLLM_SKIP_P2P_CHECK 0\nENV E=$NCCL_SHM_DISABLE\nRUN export NCCL_P2P_LEVEL=SYS\nCMD [\"--model\",\"M\"]\n"
    );
    let one = &launches(&text)[0];
    assert_eq!(one.place, "Dockerfile");
    assert_eq!(one.variables["NCCL_P2P_DISABLE"], "1");
    assert_eq!(one.variables["VLLM_SKIP_P2P_CHECK"], "0");
    assert_eq!(one.variables["A"], "b c");
    assert!(one.unknown.contains_key("E"), "{one:#?}");
    for name in ["NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL"] {
        assert!(!one.variables.contains_key(name) && !one.not_exported.contains(name));
    }
    // A shell's words are handed to an entry point as they stand.
    is_not_judged("FROM vllm/vllm-openai\nENTRYPOINT [\"vllm\",\"serve\",\"M\"]\nCMD -tp 8\n");
    for (text, told) in [
        (
            "FROM a\nFORM b\n",
            "f: line 2: 'FORM' is no instruction of a Dockerfile",
        ),
        (
            "FROM a AS b\nCMD [\"x\"] \\\n",
            "f: line 2: the file ends in a backslash",
        ),
        ("ARG A\nFROM $A\n", "f: line 2: FROM $A: which image"),
        ("FROM a\nENV A='b\n", "f: line 2: a quote without its end"),
    ] {
        assert!(refused(text).starts_with(told), "{text}: {}", refused(text));
    }
}

#[test]
fn units() {
    let unit = |service: &str| {
        format!(
            "[Unit]\nDescription=it's [here]\n[Service]\n{service}\n[Install]\nWantedBy=multi-user.target\n"
        )
    };
    for (service, wanted) in [
        (
            "ExecStart=/opt/venv/bin/vllm serve M -tp 8 \\\n  # comment\n  --max-num-seqs 32",
            "vllm M 8",
        ),
        ("ExecStart=-/usr/bin/env vllm serve M -tp 8", "vllm M 8"),
        ("ExecStart=@-/opt/vllm name serve M -tp 8", "vllm M 8"),
        (
            "ExecStart=vllm serve N\nExecStart=\nExecStart=vllm serve M -tp 8",
            "vllm M 8",
        ),
        (
            "ExecStart=/bin/bash -lc 'exec vllm serve M -tp 8'",
            "vllm M 8",
        ),
        (
            "Environment=TP=8 \"MORE=--model M\"\nExecStart=python3 -m vllm.entrypoints.openai.api_server $MORE -tp ${TP}",
            "vllm M 8",
        ),
        (
            "ExecStartPre=-/usr/bin/docker pull vllm/vllm-openai\nExecStart=/usr/bin/docker run vllm/vllm-openai --model M -tp 8",
            "vllm M 8",
        ),
        (
            "Environment=VLLM_SKIP_P2P_CHECK=1\nExecStart=/opt/start.sh",
            "?",
        ),
    ] {
        let text = unit(service);
        let found = told(&text);
        assert_eq!(found, [wanted], "{text}");
    }
    let one = &launches(&unit(
        "Environment=GONE=1\nEnvironment=\nEnvironment=NCCL_P2P_DISABLE=1 B=0\n# Environment=C=1\nEnvironment=\"D=e f\" G=\"0\"\nEnvironment='H=%h' I=50%%\nUnsetEnvironment=B\nPassEnvironment=J\nExecStartPre=/bin/sh -c \"export K=1\"\nExecStart=/usr/bin/env vllm serve M -tp 8",
    ))[0];
    let told: Vec<&str> = one.variables.keys().map(String::as_str).collect();
    assert_eq!(told, ["D", "G", "I", "NCCL_P2P_DISABLE"]);
    assert_eq!(one.variables["D"], "e f");
    assert_eq!(one.variables["G"], "0");
    assert_eq!(one.variables["I"], "50%");
    assert!(one.unknown.contains_key("H") && one.unknown.contains_key("J"));
    assert!(
        one.not_exported.is_empty() && one.unread.is_empty(),
        "{one:#?}"
    );
    is_not_judged(&unit(
        "EnvironmentFile=-/etc/default/vllm\nExecStart=vllm serve M",
    ));
    is_not_judged(&unit("ExecStart=NCCL_P2P_DISABLE=1 vllm serve M"));
    // A part that is laid over another unit.
    let part = &launches("[Service]\nEnvironment=NCCL_P2P_DISABLE=1\n")[0];
    assert!(part.no_launch && part.variables["NCCL_P2P_DISABLE"] == "1");
    for (text, told) in [
        (
            "[Service]\nExecStart=/opt/start.sh\n",
            "f: line 2: ExecStart=/opt/start.sh starts no engine",
        ),
        (
            "[Service]\nExecStart=docker run my/llm --model M -tp 8\n",
            "f: line 2: its arguments",
        ),
        (
            "[Service]\nExecStart=vllm serve M \\\n",
            "f: line 2: the file ends in a backslash",
        ),
        ("[Service]\nEnvironment='A=1\n", "f: line 2: a quote"),
        (
            "[Container]\nImage=vllm/vllm-openai\n",
            "f: line 1: a container unit of podman",
        ),
    ] {
        assert!(refused(text).starts_with(told), "{text}: {}", refused(text));
    }
}

#[test]
fn settings_of_this_tool_are_read_as_what_they_are() {
    let body = "services:\n  a:\n    environment: {VLLM_ALLREDUCE_USE_SYMM_MEM: \"0\"}\n    command: [--tp-size, '8', --cuda-graph-max-bs-decode, '32']\n";
    for text in [
        format!("# peerproof recommend: sglang, NCCL\n{body}"),
        // Without the comment the flags tell it.
        body.to_string(),
    ] {
        assert_eq!(told(&text), ["sglang - 8"], "{text}");
    }
    let fork = "# peerproof recommend: vllm-local-inference-lab, x\nVLLM_ENABLE_PCIE_ALLREDUCE=1\n";
    assert_eq!(
        launches(fork)[0].engine.as_deref(),
        Some("vllm-local-inference-lab")
    );
    // Flags that several engines have, and that of the variables has not, name none.
    let several = body.replace(", --cuda-graph-max-bs-decode, '32'", "");
    assert_eq!(told(&several), ["?"]);
    // Two comments name none.
    let two = format!(
        "# peerproof recommend: sglang, x\n# peerproof recommend: llama.cpp, x\n{}",
        several.replace("--tp-size", "--tensor-parallel-size")
    );
    assert_eq!(launches(&two)[0].engine.as_deref(), Some("vllm"));
}
