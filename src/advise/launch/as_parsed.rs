//! Launches held against what the engine's own parser makes of their words.

use super::{
    Question,
    on_a_host::on,
    tests::{found, judged},
};
use crate::{
    diagnose::sample::Host,
    model::{case::WrongKind, finding::Severity, launch::LaunchOutcome},
};

/// Two GPUs whose peers failed.
fn failed() -> Host {
    let mut host = Host::root_complex(2);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host
}

const VLLM: &str = "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 vllm serve x -tp 2";

#[test]
fn the_last_word_of_a_switch_counts() {
    let host = failed();
    let off = "--disable-custom-all-reduce";
    for (words, left_on) in [
        (off.to_string(), false),
        ("--disable_custom_all_reduce".to_string(), false),
        (format!("--no-disable-custom-all-reduce {off}"), false),
        (format!("--enable-custom-all-reduce {off}"), false),
        (format!("{off} --no-disable-custom-all-reduce"), true),
        (format!("{off} --enable-custom-all-reduce"), true),
        (format!("{off} {off} --no_disable_custom_all_reduce"), true),
        ("--no-disable-custom-all-reduce".to_string(), true),
    ] {
        let answer = on(&host, &format!("{VLLM} {words}"));
        let problem = found(&answer, "failed-peers-in-use");
        assert_eq!(problem.is_some(), left_on, "{words}: {answer:#?}");
        assert!(problem.is_none_or(|p| p.settings == [off]), "{words}");
        let undone = left_on && words.starts_with(off);
        assert_eq!(
            found(&answer, "undone-by-a-later-word").is_some(),
            undone,
            "{words}: {answer:#?}"
        );
    }
    // A short form and its long opposite are one switch.
    let answer = judged(
        "vllm serve x -tp 2 -ep --no-enable-expert-parallel",
        &Question::default(),
    );
    assert_eq!(answer.outcome(), LaunchOutcome::NothingWrong, "{answer:#?}");
}

/// What argparse answers with an error keeps the engine from starting, and nothing of the host is judged for it.
#[test]
fn what_the_engine_refuses_is_said_to_be_refused() {
    let host = failed();
    for (text, words) in [
        (
            "vllm serve x -tp 2 --disable-custom-all-reduce=false",
            "takes no value",
        ),
        (
            "vllm serve x -tp 2 --disable-custom-all-reduce=true",
            "takes no value",
        ),
        (
            "vllm serve x -tp 2 --disable-custom-all-reduce false",
            "'false' behind it",
        ),
        (
            "vllm serve --model x -tp 2 --disable-custom-all-reduce false",
            "'false' behind it",
        ),
        (
            "vllm serve x -tp 2 --no-disable-custom-all-reduce=1",
            "takes no value",
        ),
        ("vllm serve x -tp2", "-tp2 is no flag"),
        ("vllm serve x -tp16", "-tp16 is no flag"),
        ("vllm serve x -tp 2 -pp2", "-pp2 is no flag"),
        (
            "sglang serve x --tp 2 --disable-custom-all-reduce=false",
            "takes no value",
        ),
        (
            "sglang serve x --tp 2 --disable-custom-all-reduce false",
            "'false' behind it",
        ),
        (
            "sglang serve x --tp 2 --no-disable-custom-all-reduce",
            "has no opposite",
        ),
        ("sglang serve --tp 2 --trust-remote-code x", "'x' behind it"),
        ("sglang serve x --tp_size 2", "underscores"),
    ] {
        let answer = on(&host, text);
        let problem = found(&answer, "engine-refuses");
        let problem = problem.unwrap_or_else(|| panic!("{text}: {answer:#?}"));
        assert_eq!(problem.severity, Severity::Critical, "{text}");
        assert!(problem.wrong.contains(words), "{text}: {}", problem.wrong);
        assert!(problem.wrong.contains("does not start"), "{text}");
        assert_eq!(answer.problems.len(), 1, "{text}: {answer:#?}");
        assert_eq!(
            answer.not_judged,
            ["the host: the launch does not start as it is, so no pair of GPUs was judged for it"],
            "{text}"
        );
        let alone = judged(text, &Question::default());
        assert_eq!(
            alone.worst(),
            Some(Severity::Critical),
            "{text}: {alone:#?}"
        );
    }
}

#[test]
fn sizes_are_read_as_the_parser_reads_them() {
    let tp = |text: &str| -> Vec<String> {
        let answer = judged(text, &Question::default());
        assert_eq!(
            answer.worst().filter(|w| *w > Severity::Info),
            None,
            "{text}: {answer:#?}"
        );
        let own = answer
            .read
            .iter()
            .filter(|(what, _)| what == "tensor parallel");
        own.map(|(_, value)| value.clone()).collect()
    };
    for text in [
        "vllm serve x -tp=2",
        "vllm serve x -tp 2",
        "vllm serve x --tensor_parallel_size=2",
        "vllm serve x -tp 4 --tensor-parallel-size 2",
        "vllm serve x --tensor-parallel-size 4 --tensor-parallel-size=2",
        "all_reduce_perf -g2",
        "all_reduce_perf -g 2",
    ] {
        assert_eq!(tp(text), ["2"], "{text}");
    }
    let twice = judged(
        "vllm serve x -tp 4 --tensor-parallel-size 2",
        &Question::default(),
    );
    let note = found(&twice, "given-twice").unwrap();
    assert!(
        note.wrong.contains("-tp 4 and --tensor-parallel-size 2"),
        "{}",
        note.wrong
    );
    let same = judged("vllm serve x -tp 2 -tp 2", &Question::default());
    assert!(found(&same, "given-twice").is_none());
    // The model behind a flag that takes no value is the model, and no value.
    let model = judged(
        "vllm serve --enforce-eager Qwen/Qwen3-32B -tp 2",
        &Question::default(),
    );
    assert!(
        model
            .read
            .contains(&("model".to_string(), "Qwen/Qwen3-32B".to_string())),
        "{model:#?}"
    );
    assert_eq!(model.outcome(), LaunchOutcome::NothingWrong, "{model:#?}");
}

/// argparse takes the last object whole; vLLM makes single keys into one that takes its place.
#[test]
fn an_object_given_again_takes_the_place_of_the_first() {
    let fuse = "--compilation-config '{\"pass_config\":{\"fuse_allreduce_rms\":false}}'";
    let mut host = Host::nvswitch(2);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    let lacks = |rest: &str| {
        let text = format!("NCCL_NVLS_ENABLE=0 {VLLM} --disable-custom-all-reduce {rest}");
        let answer = on(&host, &text);
        let left = found(&answer, "failed-peers-in-use").is_some();
        (left, found(&answer, "object-given-twice").is_some())
    };
    assert_eq!(lacks(fuse), (false, false));
    assert_eq!(
        lacks(&format!("{fuse} --compilation-config '{{\"mode\":3}}'")),
        (true, true)
    );
    assert_eq!(
        lacks(&format!("--compilation-config '{{\"mode\":3}}' {fuse}")),
        (false, true)
    );
    assert_eq!(
        lacks(&format!("{fuse} --compilation-config.mode 3")),
        (true, true)
    );
    assert_eq!(
        lacks(
            "--compilation-config.mode 3 --compilation-config.pass_config.fuse_allreduce_rms false"
        ),
        (false, false)
    );
}

/// A key of a JSON flag by itself, by its long or short name, is what the object says.
#[test]
fn dotted_keys_are_read_as_the_object_is() {
    let mut host = Host::nvswitch(2);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    let left = |rest: &str| {
        let text = format!("NCCL_NVLS_ENABLE=0 {VLLM} --disable-custom-all-reduce {rest}");
        found(&on(&host, &text), "failed-peers-in-use").is_some()
    };
    for (rest, on) in [
        (
            "-cc '{\"pass_config\":{\"fuse_allreduce_rms\":false}}'",
            false,
        ),
        ("-cc.pass_config.fuse_allreduce_rms=false", false),
        ("-cc.pass_config.fuse_allreduce_rms false", false),
        ("-cc.pass_config '{\"fuse_allreduce_rms\":false}'", false),
        (
            "--compilation-config.pass_config.fuse_allreduce_rms=false",
            false,
        ),
        (
            "--compilation_config.pass_config.fuse_allreduce_rms=false",
            false,
        ),
        ("-cc.pass_config.fuse_allreduce_rms=true", true),
        ("-cc.mode 3", true),
        // The object that single keys make takes the place of one that is given whole.
        (
            "--compilation-config '{\"pass_config\":{\"fuse_allreduce_rms\":false}}' -cc.mode 3",
            true,
        ),
        ("", true),
    ] {
        assert_eq!(left(rest), on, "{rest}");
    }
    for spelt in [
        "--speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":5}'",
        "-sc '{\"method\":\"mtp\",\"num_speculative_tokens\":5}'",
        "--speculative-config.method mtp --speculative-config.num_speculative_tokens 5",
        "-sc.method=mtp -sc.num_speculative_tokens=5",
        "--spec-method mtp --spec-tokens 5",
    ] {
        let text = format!(
            "vllm serve zai-org/GLM-5.2 -tp 8 --max-num-seqs 32 {spelt} -cc.cudagraph_capture_sizes '[1,2,32]'"
        );
        let answer = judged(&text, &Question::default());
        let short = found(&answer, "captures-count-tokens");
        let short = short.unwrap_or_else(|| panic!("{text}: {answer:#?}"));
        assert!(
            short.wrong.contains("32 requests of 6 rows have 192"),
            "{text}: {}",
            short.wrong
        );
        assert_eq!(answer.not_judged, [""; 0], "{text}");
    }
    let open = judged(
        "vllm serve x -tp 2 --kv-transfer-config.kv_connector P2pNcclConnector",
        &Question::default(),
    );
    assert!(
        open.not_judged.iter().any(|n| n.contains("by NCCL")),
        "{open:#?}"
    );
    let other = judged(
        "vllm serve x -tp 2 --kv-transfer-config.kv_connector FooConnector",
        &Question::default(),
    );
    assert!(
        other
            .not_judged
            .iter()
            .any(|n| n.contains("not known here")),
        "{other:#?}"
    );
}

/// What is missing of a command may hold what it seems to lack: nothing is called wrong, or right, for its absence.
#[test]
fn a_command_that_is_cut_off_is_not_judged_as_whole() {
    let mut good = Host::nvswitch(4);
    good.climb_all();
    let bad = failed();
    for text in [
        "vllm serve Qwen/Qwen3-32B -tp 2 \\",
        "vllm serve Qwen/Qwen3-32B -tp 2 \\\n",
        "vllm serve Qwen/Qwen3-32B -tp 2 ...",
        "vllm serve Qwen/Qwen3-32B -tp 2 \u{2026}",
        "vllm serve Qwen/Qwen3-32B -tp ...",
        "vllm serve Qwen/Qwen3-32B -tp 2 --enforce-eager \\",
        "sglang serve x --tp 2 --disable-cuda-graph ...",
        "vllm serve Qwen/Qwen3-32B -tp 2 --disable-custom-all-re...",
        "vllm serve Qwen/Qwen3-32B ... --dtype half",
        "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 vllm serve Qwen/Qwen3-32B -tp 2 \\",
        "NCCL_P2P_DISABLE=1 sglang serve x --tp 2 \\",
        "sglang serve x ...",
        "torchrun --nproc-per-node \\",
        "docker run --ipc=host vllm/vllm-openai --model x -tp 2 \\",
        "services:\n  a:\n    image: vllm/vllm-openai\n    ipc: host\n    command: --model x -tp 2 ...\n",
    ] {
        for answer in [
            judged(text, &Question::default()),
            on(&good, text),
            on(&bad, text),
        ] {
            assert_eq!(
                answer.outcome(),
                LaunchOutcome::NotJudged,
                "{text}: {answer:#?}"
            );
            let told = |n: &&String| n.contains("the command is cut off at");
            assert_eq!(answer.not_judged.iter().filter(told).count(), 1, "{text}");
            assert!(
                answer.problems.iter().all(|p| p.severity == Severity::Info),
                "{text}: {answer:#?}"
            );
            assert!(
                answer.judged.iter().all(|j| !j.starts_with("every pair")),
                "{text}: {answer:#?}"
            );
        }
    }
    // What stands in it is wrong all the same.
    let wrong = judged(
        "vllm serve x --disable-custom-all-reduce=false \\",
        &Question::default(),
    );
    assert!(found(&wrong, "engine-refuses").is_some(), "{wrong:#?}");
    // Variables whose command is missing.
    let variables = judged("NCCL_P2P_DISABLE=1 \\", &Question::default());
    assert!(
        variables.not_judged.iter().any(|n| n.contains("cut off")),
        "{variables:#?}"
    );
    // A backslash that joins lines cuts nothing, however they end.
    let whole = judged("vllm serve x \\\r\n -tp 2", &Question::default());
    assert_eq!(whole.outcome(), LaunchOutcome::NothingWrong, "{whole:#?}");
}

/// NCCL knows its words by their letters, and takes any other value for none.
#[test]
fn levels_that_are_no_words_are_told() {
    for (value, told) in [
        ("FOO", true),
        ("loc", true),
        ("sys", true),
        ("NODE", true),
        ("", true),
        ("LOC", false),
        ("NVL", false),
        ("PHB", false),
        ("SYS", false),
        ("3", false),
    ] {
        for engine in ["vllm serve x -tp 2", "all_reduce_perf -g 2"] {
            let text = format!("NCCL_P2P_LEVEL={value} {engine}");
            let answer = judged(&text, &Question::default());
            let found = found(&answer, "level-not-a-word");
            assert_eq!(found.is_some(), told, "{text}: {answer:#?}");
            assert!(found.is_none_or(|p| p.wrong.contains("not set")));
        }
    }
}

/// A flag that takes a value takes the next one for none: the engine does not start.
#[test]
fn flags_without_their_value_are_refused() {
    for (text, flag) in [
        ("vllm serve x -tp 2 --dtype", "--dtype"),
        ("vllm serve x -tp 2 --dtype --enforce-eager", "--dtype"),
        ("vllm serve x --max-num-seqs --dtype half", "--max-num-seqs"),
        ("vllm serve --model -tp 2", "--model"),
        ("vllm serve x -sc.method", "--speculative-config.method"),
        ("sglang serve x --tp 2 --dtype", "--dtype"),
        (
            "sglang serve x --speculative-num-draft-tokens --tp 2",
            "--speculative-num-draft-tokens",
        ),
    ] {
        let answer = judged(text, &Question::default());
        let problem = found(&answer, "engine-refuses");
        let problem = problem.unwrap_or_else(|| panic!("{text}: {answer:#?}"));
        assert_eq!(problem.severity, Severity::Critical);
        assert!(
            problem
                .wrong
                .contains(&format!("{flag} is given without a value")),
            "{text}: {}",
            problem.wrong
        );
    }
    let size = judged(
        "vllm serve x --tensor-parallel-size --enforce-eager",
        &Question::default(),
    );
    assert!(found(&size, "size-not-a-number").is_some(), "{size:#?}");
    // Of other flags it was not read whether they need one.
    for text in [
        "vllm serve x --port",
        "vllm serve x --config",
        "sglang serve x --mem-fraction-static",
        "torchrun --rdzv-id --standalone t.py",
    ] {
        let answer = judged(text, &Question::default());
        assert_eq!(answer.outcome(), LaunchOutcome::NotJudged, "{answer:#?}");
        let told = |n: &String| n.contains("is given without a value");
        assert!(answer.not_judged.iter().any(told), "{text}: {answer:#?}");
    }
    for text in [
        "vllm serve x -tp 2 --enforce-eager --no-enable-prefix-caching -ep -O3",
        "sglang serve x --tp 2 --disable-cuda-graph",
    ] {
        let answer = judged(text, &Question::default());
        let told = |n: &String| n.contains("without a value");
        assert!(!answer.not_judged.iter().any(told), "{text}: {answer:#?}");
    }
}
