//! Launches held against a host: what is called judged, and which of their switches are needless there.

use super::{Question, tests::judged};
use crate::{
    diagnose::{
        reductions::sample::row,
        sample::{Host, pair, wrong},
    },
    model::{
        case::{Rung, Subject, WrongKind},
        finding::Severity,
        launch::{LaunchCheck, LaunchOutcome},
        pair::GpuIndex,
        reading::Reading,
    },
};

/// What is said of `text` on `host`.
pub(super) fn on(host: &Host, text: &str) -> LaunchCheck {
    host.judge(|e| {
        let group = host.group();
        let question = Question {
            evidence: Some(e),
            candidates: &group,
            ..Question::default()
        };
        judged(text, &question)
    })
}

/// Nothing is said to be judged of GPUs that are not there, or of which it is not known which they are.
#[test]
fn pairs_are_called_judged_only_where_they_were() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    for (i, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
        gpu.uuid = Reading::Known(format!("GPU-{i}{i}{i}{i}"));
    }
    let pairs = |answer: &LaunchCheck| {
        let mut all = answer.judged.iter();
        all.any(|j| j.starts_with("every pair of GPUs"))
    };
    for (text, id, words) in [
        (
            "vllm serve x --tensor-parallel-size abc",
            "size-not-a-number",
            "--tensor-parallel-size 'abc'",
        ),
        (
            "vllm serve x -tp",
            "size-not-a-number",
            "-tp is given without a value",
        ),
        (
            "vllm serve x -tp --enforce-eager",
            "size-not-a-number",
            "without a value",
        ),
        ("vllm serve x -tp 0", "size-not-a-number", "-tp '0'"),
        ("vllm serve x -tp -2", "size-not-a-number", "-tp '-2'"),
        (
            "vllm serve x -tp 2 -pp two",
            "size-not-a-number",
            "-pp 'two'",
        ),
        (
            "vllm serve x -tp 2 -dp",
            "size-not-a-number",
            "-dp is given",
        ),
        (
            "sglang serve x --tp 2 --dp-size x --enable-dp-attention",
            "size-not-a-number",
            "--dp-size 'x'",
        ),
        (
            "sglang serve x --tp 2 --ep-size all",
            "size-not-a-number",
            "--ep-size 'all'",
        ),
        (
            "trtllm-serve x --tp_size four",
            "size-not-a-number",
            "'four'",
        ),
        (
            "torchrun --nproc-per-node many t.py",
            "size-not-a-number",
            "'many'",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,9 vllm serve x -tp 2",
            "gpu-not-there",
            "so 1 GPU is left, and tensor parallel 2 needs 2",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,9,1 sglang serve x --tp 2",
            "gpu-not-there",
            "names GPU '9', and the host of the report has 4",
        ),
        (
            "CUDA_VISIBLE_DEVICES=GPU-none vllm serve x",
            "gpu-not-there",
            "GPU-none",
        ),
        (
            "CUDA_VISIBLE_DEVICES=7 llama-server -m x.gguf",
            "gpu-not-there",
            "no GPU is left",
        ),
        (
            "CUDA_VISIBLE_DEVICES=2,3 llama-server -m x.gguf --device CUDA0,CUDA2",
            "gpu-not-there",
            "--device names GPU '2', and what it may see has 2",
        ),
        (
            "docker run --gpus '\"device=2,5\"' --ipc=host img vllm serve x -tp 2",
            "gpu-not-there",
            "'5'",
        ),
        (
            "vllm serve x -tp 16",
            "more-gpus-than-visible",
            "needs 16 GPUs",
        ),
    ] {
        let answer = on(&host, text);
        let worst: Vec<_> = answer
            .problems
            .iter()
            .filter(|p| p.severity == Severity::Critical)
            .collect();
        assert_eq!(worst.len(), 1, "{text}: {answer:#?}");
        assert_eq!(worst[0].id, id, "{text}");
        assert!(worst[0].wrong.contains(words), "{text}: {}", worst[0].wrong);
        assert!(!pairs(&answer), "{text}: {:?}", answer.judged);
        assert!(
            answer
                .judged
                .iter()
                .all(|j| !j.contains("tensor parallel 1")),
            "{text}: {:?}",
            answer.judged
        );
        assert_eq!(
            answer.not_judged,
            ["the host: the launch does not start as it is, so no pair of GPUs was judged for it"],
            "{text}"
        );
    }
    // Without a host what the text shows by itself is wrong all the same.
    for text in [
        "vllm serve x -tp abc",
        "CUDA_VISIBLE_DEVICES=0,1 llama-server -m x --device CUDA5",
    ] {
        let answer = judged(text, &Question::default());
        assert_eq!(
            answer.worst(),
            Some(Severity::Critical),
            "{text}: {answer:?}"
        );
        assert!(
            answer.judged.iter().all(|j| !j.starts_with("sizes")),
            "{answer:?}"
        );
    }
    // Some of it is left: that much is judged, and the rest is said.
    let some = on(&host, "CUDA_VISIBLE_DEVICES=0,1,9 llama-server -m x.gguf");
    assert_eq!(some.worst(), Some(Severity::Warning), "{some:?}");
    assert!(
        pairs(&some) && some.problems[0].wrong.contains("sees 2 GPUs"),
        "{some:?}"
    );
    // A shell alone knows it: open, and not wrong.
    for text in ["vllm serve x -tp $TP", "vllm serve x -tp 2 -pp $PP"] {
        let answer = on(&host, text);
        assert_eq!(answer.outcome(), LaunchOutcome::NotJudged, "{answer:?}");
        assert!(!pairs(&answer), "{answer:?}");
    }
    // Misspelt it does not start; cut short some engines take it.
    let near = on(&host, "vllm serve x --tensor-paralel-size 4");
    assert_eq!(near.worst(), Some(Severity::Critical), "{near:?}");
    assert!(!pairs(&near), "{near:?}");
    let short = on(&host, "vllm serve x --tensor-parallel 4");
    assert_eq!(short.outcome(), LaunchOutcome::NotJudged, "{short:?}");
    assert!(!pairs(&short), "{short:?}");
    let every = on(&host, "torchrun --nproc-per-node gpu t.py");
    assert!(
        pairs(&every) && every.judged.iter().any(|j| j.contains("4 GPUs")),
        "{every:?}"
    );
    assert!(pairs(&on(&host, "vllm serve x -tp 4")));
    // One GPU has no pairs; one that fails by itself is found all the same.
    let alone = on(&host, "vllm serve x");
    assert!(
        !pairs(&alone) && alone.judged.iter().any(|j| j.contains("no pairs")),
        "{alone:?}"
    );
    host.put(
        Subject::Gpu(GpuIndex(0)),
        "memory",
        Rung::Alone,
        wrong(WrongKind::Flipped),
    );
    let sick = on(&host, "vllm serve x");
    assert!(
        sick.problems.iter().any(|p| p.id == "group-must-not-serve"),
        "{sick:?}"
    );
    // GPUs that nobody tested are not those that somebody did.
    let mut half = Host::root_complex(4);
    half.climb_all();
    half.records.retain(|r| {
        r.case
            .subject
            .pair()
            .is_none_or(|p| p.source.0 > 1 && p.destination.0 > 1)
    });
    let untested = half.judge(|e| {
        let tested = [2, 3].map(GpuIndex);
        let question = Question {
            evidence: Some(e),
            candidates: &tested,
            ..Question::default()
        };
        judged("vllm serve x -tp 2", &question)
    });
    assert!(!pairs(&untested), "{untested:?}");
    assert_eq!(untested.outcome(), LaunchOutcome::NotJudged);
}

/// Where peers are proven, switching them off is needless, and what that costs is said: measured, or published.
#[test]
fn switches_that_turn_off_what_is_proven_are_needless() {
    let mut host = Host::root_complex(4);
    host.climb_all();
    let found = |answer: &LaunchCheck| {
        let found = answer.problems.iter().find(|p| p.id == "needless-switches");
        found.map(|p| (p.wrong.clone(), p.settings.clone(), p.change.clone()))
    };
    let all = "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 vllm serve x --disable-custom-all-reduce -tp";
    let (wrong, settings, _) = found(&on(&host, &format!("{all} 2"))).unwrap();
    assert_eq!(
        settings,
        ["unset NCCL_P2P_DISABLE", "no --disable-custom-all-reduce"]
    );
    assert!(wrong.contains("12 to 14% of prefill"), "{wrong}");
    assert_eq!(
        on(&host, &format!("{all} 2")).worst(),
        Some(Severity::Warning)
    );
    // The custom kernel does not run on four GPUs without NVLink, and to switch it off changes nothing.
    let (wrong, settings, change) = found(&on(&host, &format!("{all} 4"))).unwrap();
    assert_eq!(settings, ["unset NCCL_P2P_DISABLE"]);
    assert!(wrong.contains("974 to 642 us"), "{wrong}");
    assert!(change.contains("NCCL_P2P_LEVEL=SYS"), "{change}");
    for text in [
        "NCCL_P2P_DISABLE=1 sglang serve x --tp 2",
        "NCCL_P2P_DISABLE=1 all_reduce_perf -g 2",
    ] {
        assert!(found(&on(&host, text)).is_some(), "{text}");
    }
    for text in [
        "vllm serve x -tp 2",
        "NCCL_P2P_DISABLE=0 vllm serve x -tp 2",
        "NCCL_P2P_DISABLE=1 vllm serve x",
        "vllm serve x -tp 4 --disable-custom-all-reduce",
        // The flag is there for another reason.
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve x -tp 2 --disable-custom-all-reduce",
    ] {
        assert_eq!(found(&on(&host, text)), None, "{text}");
    }
    // Not proven, or not right: not needless.
    let mut low = Host::root_complex(4);
    low.all_intact();
    let mut bad = Host::root_complex(4);
    bad.climb_all();
    bad.set_wrong(pair(0, 1), "sm-store", WrongKind::Dropped);
    let mut cards = Host::root_complex(4);
    cards.climb_all();
    cards.name_all("NVIDIA GeForce RTX 3090");
    for host in [&low, &bad] {
        assert_eq!(found(&on(host, &format!("{all} 2"))), None);
    }
    let (_, settings, _) = found(&on(&cards, &format!("{all} 2"))).unwrap();
    assert_eq!(settings, ["unset NCCL_P2P_DISABLE"]);
    // Measured here goes before published elsewhere.
    let rows: Vec<_> = [
        ("nccl", 10.0),
        ("nccl-p2p-off", 25.0),
        ("one-shot-pull", 5.0),
    ]
    .into_iter()
    .map(|(name, us)| row(name, 2, 8192, us))
    .collect();
    let measured = host.judge(|e| {
        let group = host.group();
        let question = Question {
            evidence: Some(e),
            candidates: &group,
            reductions: &rows,
            ..Question::default()
        };
        judged(&format!("{all} 2"), &question)
    });
    let (wrong, ..) = found(&measured).unwrap();
    assert!(
        wrong.contains(
            "measured here: NCCL with peers is 2.5 times as fast as without (at 8,192 bytes)"
        ),
        "{wrong}"
    );
    assert!(
        wrong.contains("custom-all-reduce is faster than NCCL at every size"),
        "{wrong}"
    );
    assert!(!wrong.contains("prefill"), "{wrong}");
    // Whose kernels were run is part of the number.
    assert!(
        wrong.contains(
            "this tool's own kernels (one-shot-pull): those of custom-all-reduce were not run"
        ),
        "{wrong}"
    );
    // Nothing measured, nothing published: how to know.
    let mut linked = Host::nvswitch(4);
    linked.climb_all();
    let (wrong, ..) = found(&on(&linked, "NCCL_P2P_DISABLE=1 sglang serve x --tp 4")).unwrap();
    assert!(wrong.contains("peerproof reduce"), "{wrong}");
}

/// The problem of that id.
pub(super) fn said<'a>(
    answer: &'a LaunchCheck,
    id: &str,
) -> Option<&'a crate::model::launch::LaunchProblem> {
    answer.problems.iter().find(|p| p.id == id)
}

/// NCCL knows two settings that keep it off every peer, and both are taken for that everywhere.
#[test]
fn a_level_of_no_peers_is_the_switch_by_another_name() {
    let mut bad = Host::root_complex(2);
    bad.direct_wrong(WrongKind::Zeroed, |_| true);
    let mut good = Host::root_complex(2);
    good.climb_all();
    let rest = "VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 vllm serve x -tp 2";
    for set in [
        "NCCL_P2P_DISABLE=1",
        "NCCL_P2P_LEVEL=LOC",
        "NCCL_P2P_LEVEL=0",
    ] {
        let whole = on(&bad, &format!("{set} {rest} --disable-custom-all-reduce"));
        assert!(
            said(&whole, "failed-peers-in-use").is_none(),
            "{set}: {whole:#?}"
        );
        let half = on(&bad, &format!("{set} {rest}"));
        assert_eq!(
            said(&half, "failed-peers-in-use").unwrap().settings,
            ["--disable-custom-all-reduce"],
            "{set}"
        );
        assert!(said(&half, "nccl-off-custom-on").is_some(), "{set}");
        let text = format!("{set} vllm serve x -tp 2");
        let needless = on(&good, &text);
        let ids: Vec<&str> = needless.problems.iter().map(|p| p.id.as_str()).collect();
        let level = ids.contains(&"level-keeps-proven-peers-off");
        assert!(
            level != ids.contains(&"needless-switches"),
            "{set}: {ids:?}"
        );
    }
    for set in [
        "NCCL_P2P_LEVEL=PXB",
        "NCCL_P2P_DISABLE=0",
        "NCCL_P2P_LEVEL=loc",
    ] {
        let open = on(&bad, &format!("{set} {rest} --disable-custom-all-reduce"));
        assert_eq!(
            said(&open, "failed-peers-in-use").unwrap().settings,
            ["NCCL_P2P_DISABLE=1"],
            "{set}"
        );
    }
}

/// A GPU twice is no GPU at all, and heads that ranks cannot share are refused by the engine.
#[test]
fn lists_and_heads_that_do_not_start_are_said() {
    let mut host = Host::root_complex(8);
    host.climb_all();
    for (i, gpu) in host.snapshot.gpus.iter_mut().enumerate() {
        gpu.uuid = Reading::Known(format!("GPU-{i}{i}{i}{i}"));
    }
    for list in ["0,0", "0,1,0", "GPU-0000,GPU-0000", "0,GPU-0000"] {
        for engine in [
            "vllm serve x -tp 2",
            "sglang serve x --tp 2",
            "llama-server -m x",
        ] {
            let answer = on(&host, &format!("CUDA_VISIBLE_DEVICES={list} {engine}"));
            let problem = said(&answer, "gpu-twice");
            assert!(
                problem.is_some_and(|p| p.severity == Severity::Critical),
                "{list}: {answer:#?}"
            );
            assert!(
                answer.judged.iter().all(|j| !j.starts_with("every pair")),
                "{answer:#?}"
            );
        }
    }
    assert!(
        said(
            &judged(
                "CUDA_VISIBLE_DEVICES=1,1 vllm serve x",
                &Question::default()
            ),
            "gpu-twice"
        )
        .is_some()
    );
    let config = crate::profile::read_config(
        "config.json",
        r#"{"model_type":"qwen3","hidden_size":5120,"num_hidden_layers":64,"num_attention_heads":64,"num_key_value_heads":8}"#,
    )
    .unwrap();
    let answer = |text: &str| {
        host.judge(|e| {
            let group = host.group();
            let question = Question {
                evidence: Some(e),
                candidates: &group,
                config: Some(config.clone()),
                ..Question::default()
            };
            judged(text, &question)
        })
    };
    for text in [
        "vllm serve x -tp 3",
        "sglang serve x --tp 6",
        "trtllm-serve x --tp_size 5",
    ] {
        let refused = answer(text);
        let problem = said(&refused, "heads-not-divided");
        let problem = problem.unwrap_or_else(|| panic!("{text}: {refused:#?}"));
        assert!(
            problem.wrong.contains("64 attention heads"),
            "{}",
            problem.wrong
        );
        assert!(
            problem.change.ends_with("1, 2, 4, 8, 16"),
            "{}",
            problem.change
        );
        assert_eq!(refused.problems.len(), 1, "{refused:#?}");
    }
    for text in [
        "vllm serve x -tp 4",
        // Attention has two ranks here.
        "sglang serve x --tp 6 --dp-size 3 --enable-dp-attention",
        "all_reduce_perf -g 3",
        "llama-server -m x",
    ] {
        assert!(said(&answer(text), "heads-not-divided").is_none(), "{text}");
    }
}
