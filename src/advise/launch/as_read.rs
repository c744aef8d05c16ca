//! Variables held against what their reader makes of their text.

use super::{
    Question,
    on_a_host::on,
    tests::{found, judged},
};
use crate::{
    diagnose::sample::Host,
    model::{
        case::WrongKind,
        finding::Severity,
        launch::{LaunchCheck, LaunchOutcome},
    },
};

fn alone(text: &str) -> LaunchCheck {
    judged(text, &Question::default())
}

/// Two GPUs whose peers failed.
fn failed() -> Host {
    let mut host = Host::root_complex(2);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host
}

const VARIABLES: [&str; 4] = [
    "VLLM_ALLREDUCE_USE_SYMM_MEM",
    "VLLM_ALLREDUCE_USE_FLASHINFER",
    "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC",
    "VLLM_USE_NCCL_SYMM_MEM",
];

/// int() of 'false' is an error, and no wish: nothing is said to be asked for, and nothing of the host is judged.
#[test]
fn words_where_a_number_is_read_stop_the_ranks() {
    let host = failed();
    for name in VARIABLES {
        for (word, instead) in [
            ("false", Some("0")),
            ("False", Some("0")),
            ("no", Some("0")),
            ("off", Some("0")),
            ("true", Some("1")),
            ("True", Some("1")),
            ("on", Some("1")),
            ("yes", Some("1")),
            ("''", None),
            ("1.0", None),
            ("bf16", None),
        ] {
            let text = format!(
                "NCCL_P2P_DISABLE=1 {name}={word} vllm serve x -tp 2 --disable-custom-all-reduce"
            );
            for answer in [alone(&text), on(&host, &text)] {
                let problem = found(&answer, "engine-refuses");
                let problem = problem.unwrap_or_else(|| panic!("{text}: {answer:#?}"));
                assert_eq!(problem.severity, Severity::Critical, "{text}");
                assert!(
                    problem.wrong.contains("does not start"),
                    "{}",
                    problem.wrong
                );
                let wanted: Vec<String> = instead.iter().map(|v| format!("{name}={v}")).collect();
                assert_eq!(problem.settings, wanted, "{text}");
                for id in [
                    "nccl-off-symm-mem-asked",
                    "nccl-off-pcie-ipc-on",
                    "nccl-off-windows-on",
                    "failed-peers-in-use",
                ] {
                    assert!(found(&answer, id).is_none(), "{text}: {answer:#?}");
                }
                assert!(
                    answer.not_judged.iter().all(|n| !n.starts_with(name)),
                    "{text}: {answer:#?}"
                );
            }
            // One rank has no group, and reads none of them.
            let single = alone(&format!("{name}={word} vllm serve x"));
            assert_eq!(single.outcome(), LaunchOutcome::NothingWrong, "{single:#?}");
            assert!(found(&single, "engine-refuses").is_some_and(|p| p.severity == Severity::Info));
        }
    }
    // The same by every other road.
    for text in [
        "export VLLM_ALLREDUCE_USE_SYMM_MEM=false\nvllm serve x -tp 2",
        "VLLM_ALLREDUCE_USE_SYMM_MEM=false\n",
        "docker run --ipc=host -e VLLM_ALLREDUCE_USE_SYMM_MEM=false vllm/vllm-openai --model x -tp 2",
        "services:\n  a:\n    image: vllm/vllm-openai\n    ipc: host\n    environment:\n      VLLM_ALLREDUCE_USE_SYMM_MEM: false\n    command: --model x -tp 2\n",
        "VLLM_ALLREDUCE_USE_SYMM_MEM=false vllm serve x -tp $TP",
    ] {
        let answer = alone(text);
        let problem = found(&answer, "engine-refuses");
        assert!(
            problem.is_some_and(|p| p.severity == Severity::Critical),
            "{text}: {answer:#?}"
        );
    }
    // What compose hands on is not known, and is no error.
    for own in [
        "      VLLM_ALLREDUCE_USE_SYMM_MEM:\n",
        "      - VLLM_ALLREDUCE_USE_SYMM_MEM\n",
    ] {
        let text = format!(
            "services:\n  a:\n    image: vllm/vllm-openai\n    ipc: host\n    environment:\n{own}    command: --model x -tp 2\n"
        );
        let answer = alone(&text);
        assert_eq!(
            answer.outcome(),
            LaunchOutcome::NotJudged,
            "{text}: {answer:#?}"
        );
        assert!(
            answer
                .not_judged
                .iter()
                .any(|n| n.contains("comes from elsewhere")),
            "{answer:#?}"
        );
    }
}

/// Any spelling of the number is the number.
#[test]
fn numbers_count_however_they_are_written() {
    let host = failed();
    let off = "NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_FLASHINFER=0";
    let tail = "vllm serve x -tp 2 --disable-custom-all-reduce";
    for (value, left_on) in [
        ("0", false),
        ("00", false),
        ("' 0 '", false),
        ("1", true),
        ("2", true),
        ("-1", true),
    ] {
        let text = format!("{off} VLLM_ALLREDUCE_USE_SYMM_MEM={value} {tail}");
        let answer = on(&host, &text);
        assert_eq!(
            found(&answer, "failed-peers-in-use").is_some(),
            left_on,
            "{text}: {answer:#?}"
        );
        assert_eq!(
            found(&answer, "nccl-off-symm-mem-asked").is_some(),
            left_on,
            "{text}: {answer:#?}"
        );
    }
    // A variable that is off by default may stand there as a no.
    for (name, value, left_on) in [
        ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "0", false),
        ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "1", true),
        ("VLLM_USE_NCCL_SYMM_MEM", "0", false),
        ("VLLM_USE_NCCL_SYMM_MEM", "3", true),
        ("NCCL_SHM_DISABLE", "0", false),
        ("NCCL_SHM_DISABLE", "false", false),
        ("NCCL_SHM_DISABLE", "1", true),
    ] {
        let text = format!("{name}={value} {off} VLLM_ALLREDUCE_USE_SYMM_MEM=0 {tail}");
        let answer = on(&host, &text);
        let settings = found(&answer, "failed-peers-in-use").map(|p| p.settings.join(" "));
        let unset = left_on.then(|| format!("unset {name}"));
        assert_eq!(settings, unset, "{text}: {answer:#?}");
    }
}

/// Other readers take other words.
#[test]
fn each_reader_has_its_own_words() {
    let pcie = |value: &str| {
        alone(&format!(
            "NCCL_P2P_DISABLE=1 SGLANG_ENABLE_PCIE_IPC_ALLREDUCE={value} sglang serve x --tp 2 --disable-custom-all-reduce"
        ))
    };
    for (value, on, told) in [
        ("1", true, false),
        ("True", true, false),
        ("YES", true, false),
        ("0", false, false),
        ("False", false, false),
        ("n", false, false),
        ("on", false, true),
        ("off", false, true),
        ("2", false, true),
    ] {
        let answer = pcie(value);
        assert_eq!(
            found(&answer, "nccl-off-pcie-ipc-on").is_some(),
            on,
            "{value}: {answer:#?}"
        );
        let note = found(&answer, "switch-by-another-word");
        assert_eq!(note.is_some(), told, "{value}: {answer:#?}");
        assert!(note.is_none_or(
            |n| n.severity == Severity::Warning && n.wrong.contains("counts as not set")
        ));
    }
    for (value, told) in [
        ("1", false),
        ("0", false),
        ("false", false),
        ("true", true),
        ("01", false),
    ] {
        let answer = alone(&format!("VLLM_SKIP_P2P_CHECK={value} vllm serve x -tp 2"));
        assert_eq!(
            found(&answer, "check-that-trusts").is_some(),
            value == "1",
            "{value}"
        );
        assert_eq!(
            found(&answer, "check-with-a-stale-cache").is_some(),
            value != "1",
            "{value}"
        );
        let note = found(&answer, "switch-by-another-word");
        assert_eq!(note.is_some(), told, "{value}: {answer:#?}");
        assert!(note.is_none_or(|n| n.wrong.contains("only the text 1 does")));
    }
    for (value, memcpy) in [
        ("1", true),
        ("2", true),
        ("0", false),
        ("false", false),
        ("true", false),
    ] {
        let answer = alone(&format!(
            "NCCL_P2P_USE_CUDA_MEMCPY={value} vllm serve x -tp 2"
        ));
        assert_eq!(
            found(&answer, "nccl-memcpy").is_some(),
            memcpy,
            "{value}: {answer:#?}"
        );
        assert_eq!(
            found(&answer, "switch-by-another-word").is_some(),
            value == "true",
            "{value}"
        );
    }
    // Empty is not set to NCCL, and nothing is odd about it.
    let empty = alone("NCCL_SHM_DISABLE= NCCL_NVLS_ENABLE= vllm serve x -tp 2");
    assert!(
        found(&empty, "switch-by-another-word").is_none(),
        "{empty:#?}"
    );
    let open = alone("NCCL_NVLS_ENABLE=false vllm serve x -tp 2");
    assert_eq!(open.outcome(), LaunchOutcome::NotJudged, "{open:#?}");
    assert!(
        open.not_judged
            .iter()
            .any(|n| n.contains("older versions read it as 0")),
        "{open:#?}"
    );
}
