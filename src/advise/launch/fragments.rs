//! Compose files and Kubernetes manifests in the forms that people write them in, and parts of them.

use super::{Invocation, Question, read, tests::judged};
use crate::{model::launch::LaunchOutcome, profile::Profiles};

fn launches(text: &str) -> Vec<Invocation> {
    let found = read("f.yaml", text, None, &Profiles::embedded().unwrap());
    found.unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refused(text: &str) -> String {
    let found = read("f.yaml", text, None, &Profiles::embedded().unwrap());
    found.unwrap_err().to_string()
}

fn value<'a>(launch: &'a Invocation, flag: &str) -> Option<&'a str> {
    launch.value(&[flag.to_string()])
}

/// One launch, written in every form that YAML has for it.
#[test]
fn one_launch_in_many_forms() {
    for text in [
        "services:\n  llm:\n    image: vllm/vllm-openai # pinned\n    environment: # of NCCL\n      NCCL_P2P_DISABLE: \"1\" # off\n    command: --model x -tp 2 # two\n",
        "\"services\":\n  \"llm\":\n    \"image\": 'vllm/vllm-openai'\n    'environment': {\"NCCL_P2P_DISABLE\": \"1\"}\n    \"command\": [--model, x, -tp, 2]\n",
        "services: {llm: {image: vllm/vllm-openai, environment: [NCCL_P2P_DISABLE=1], command: \"--model x -tp 2\"}}\n",
        "services:\n  llm:\n    image: vllm/vllm-openai\n    environment:\n    - NCCL_P2P_DISABLE=1\n    command: >-\n      --model x\n      -tp 2\n",
        "services:\n  llm:\n    image: vllm/vllm-openai\n    environment:\n      - \"NCCL_P2P_DISABLE=1\"\n    command: |\n      --model x\n      -tp 2\n",
        "services:\n  llm:\n    image: vllm/vllm-openai\n    environment:\n      - NCCL_P2P_DISABLE=1\n    command:\n      --model x\n      -tp 2\n",
        "services:\n  llm:\n    image: vllm/vllm-openai\n    environment:\n      - NCCL_P2P_DISABLE=1\n    command: [\n      \"--model\", \"x\", # which\n      \"-tp\", \"2\",\n    ]\n",
        "x-nccl: &nccl\n  NCCL_P2P_DISABLE: 1\nservices:\n  llm:\n    image: vllm/vllm-openai\n    environment:\n      <<: *nccl\n    command: --model x -tp 2\n",
        "x-llm: &llm\n  image: vllm/vllm-openai\n  environment: &env {NCCL_P2P_DISABLE: 0}\n  command: --model y\nservices:\n  llm:\n    <<: *llm\n    environment: {<<: *env, NCCL_P2P_DISABLE: 1}\n    command: &c [--model, x, -tp, '2']\n",
        "---\nkind: Service\nmetadata: {name: a}\n---\n# the engine\nkind: Pod\nmetadata: {name: b}\nspec:\n  containers:\n  - name: llm\n    image: vllm/vllm-openai\n    args: [\"--model\", \"x\", \"-tp\", \"2\"]\n    env:\n    - {name: NCCL_P2P_DISABLE, value: \"1\"}\n",
        "{\n  \"kind\": \"Pod\",\n  \"spec\": {\n    \"containers\": [{\"name\": \"llm\", \"image\": \"vllm/vllm-openai\",\n      \"args\": [\"--model\", \"x\", \"-tp\", \"2\"],\n      \"env\": [{\"name\": \"NCCL_P2P_DISABLE\", \"value\": \"1\"}]}]\n  }\n}\n",
    ] {
        let found = launches(text);
        let [launch] = found.as_slice() else {
            panic!("{text}: {found:#?}")
        };
        assert_eq!(launch.place, "container llm", "{text}");
        assert_eq!(launch.engine.as_deref(), Some("vllm"), "{text}");
        assert_eq!(value(launch, "-tp"), Some("2"), "{text}: {launch:#?}");
        assert_eq!(value(launch, "--model"), Some("x"), "{text}");
        assert_eq!(launch.variables["NCCL_P2P_DISABLE"], "1", "{text}");
        assert!(launch.unread.is_empty(), "{text}: {launch:#?}");
    }
}

/// A script in a block of text keeps its lines, and what of it looks like YAML.
#[test]
fn scripts_in_blocks_of_text() {
    let text = "services:\n  a:\n    image: mine\n    entrypoint: [bash, -c]\n    command:\n      - |\n        # key: value\n        export NCCL_P2P_DISABLE=1\n\n        vllm serve x \\\n          -tp 4\n    ipc: host\n---\nother: 1\n";
    let found = launches(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(value(&found[0], "-tp"), Some("4"));
    assert_eq!(found[0].variables["NCCL_P2P_DISABLE"], "1");
    assert!(!found[0].isolated_shared_memory);
}

/// What is not read of a file is said once, with its line and what to do.
#[test]
fn what_is_not_read_says_what_to_do() {
    for (text, told) in [
        (
            "services:\n  a:\n    image: x\n    command: *c\n",
            "f.yaml: line 4: '*c' stands for a value '&c', and none is above it",
        ),
        (
            "services:\n  a:\n    image: x\n    environment: !override {}\n",
            "f.yaml: line 4: the tag '!override' is not read: write the file out without it ('docker compose config'",
        ),
        (
            "services:\n  a:\n    image: x\n    command: [a, b\n",
            "f.yaml: line 4: brackets without their ']'",
        ),
        (
            "kind: Pod\nspec:\n  containers:\n  {{- range .Values.a }}\n  - image: x\n",
            "f.yaml: line 4: a template ({{ }}), which another program fills in: give what it writes ('helm template'",
        ),
    ] {
        let error = refused(text);
        assert!(error.starts_with(told), "{text}: {error}");
        assert!(!error.contains('\n'));
    }
}

/// Arguments without a command belong to the engine of their image; where nothing names one, that is said.
#[test]
fn arguments_without_a_command() {
    let args = "args: [\"--model\", \"x\", \"--tensor-parallel-size\", \"4\"]";
    for (image, engine) in [
        ("vllm/vllm-openai:v0.30.0", "vllm"),
        ("ghcr.io/acme/vllm:0.11@sha256:00", "vllm"),
        ("registry:5000/acme/VLLM-runtime", "vllm"),
        ("acme/1cat-vllm:latest", "1cat-vllm"),
        ("lmsysorg/sglang:v0.5.3-cu129", "sglang"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.0", "tensorrt-llm"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "llama.cpp"),
    ] {
        for key in ["env:\n    - {name: NCCL_DEBUG, value: INFO}", "ports: []"] {
            let text =
                format!("containers:\n  - name: a\n    image: {image}\n    {args}\n    {key}\n");
            let found = launches(&text);
            assert_eq!(found.len(), 1, "{text}: {found:#?}");
            assert_eq!(found[0].engine.as_deref(), Some(engine), "{text}");
            assert!(!found[0].no_launch);
            assert_eq!(
                value(&found[0], "--tensor-parallel-size"),
                Some("4"),
                "{text}"
            );
        }
    }
    // Variables of an engine name it, too.
    let own = format!(
        "containers:\n- image: acme/llm\n  env: [{{name: VLLM_SKIP_P2P_CHECK, value: \"1\"}}]\n  {args}\n"
    );
    let answer = judged(&own, &Question::default());
    assert!(
        answer
            .read
            .contains(&("tensor parallel".to_string(), "4".to_string())),
        "{answer:#?}"
    );
    for image in [
        "image: acme/llm:1",
        "image: acme/vllmx",
        "image: pytorch/pytorch",
        "image: vllm.example:5000/acme/llm",
        "name: a",
    ] {
        let told = "its arguments (--model --tensor-parallel-size) stand without a command, and nothing names the engine that they are for: --engine NAME tells it";
        // NCCL's variables can be judged alone.
        let text = format!(
            "containers:\n- {image}\n  env: [{{name: NCCL_P2P_DISABLE, value: \"1\"}}]\n  {args}\n"
        );
        let answer = judged(&text, &Question::default());
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NotJudged,
            "{text}: {answer:#?}"
        );
        assert!(answer.problems.is_empty(), "{text}: {answer:#?}");
        assert!(
            answer.not_judged.iter().any(|n| n == told),
            "{text}: {answer:#?}"
        );
        assert!(
            answer.judged.iter().all(|j| !j.contains("1 GPU")),
            "{text}: {answer:#?}"
        );
        // Without any there is nothing to judge.
        let error = refused(&format!("containers:\n- {image}\n  {args}\n"));
        let place = match image {
            "name: a" => "a",
            _ => "of the file",
        };
        assert_eq!(
            error,
            format!("f.yaml: container {place}: {told}"),
            "{text}"
        );
    }
    // The operator may name it.
    let text = format!("containers:\n- image: acme/llm\n  {args}\n");
    let found = read("f", &text, Some("vllm"), &Profiles::embedded().unwrap()).unwrap();
    assert_eq!(value(&found[0], "--tensor-parallel-size"), Some("4"));
    // Helpers beside an engine are none.
    let beside = format!(
        "containers:\n- image: vllm/vllm-openai\n  {args}\n- image: acme/proxy\n  args: [--model, y]\n- image: nginx\n  args: [-g, daemon off]\n"
    );
    assert_eq!(launches(&beside).len(), 1);
    assert!(
        refused("containers:\n- image: nginx\n  args: [-g, daemon off]\n")
            .contains("no launch found")
    );
}
