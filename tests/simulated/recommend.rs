//! `recommend` from saved reports, and its arithmetic from numbers alone.

use crate::host::{Host, Run, peerproof, run, save};
use peerproof::model::{finding::Recommendation, report::Report};
use std::{fs, path::Path, process::Command};

/// `recommend ARGUMENTS`.
pub(crate) fn recommend(arguments: &[&str]) -> Run {
    let mut command = Command::new(peerproof());
    command.arg("recommend").args(arguments);
    run(command)
}

/// `recommend --json ARGUMENTS`, read.
pub(crate) fn ask(arguments: &[&str]) -> Recommendation {
    let mut command = Command::new(peerproof());
    command.args(["recommend", "--json"]).args(arguments);
    let run = run(command);
    assert_eq!(run.code, Some(0), "{arguments:?}\n{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn sizes_by_the_engines_own_counting() {
    // SGLang counts rows: 64 requests of one row, and 32 requests of 6 rows.
    let plain = ask(&[
        "--engine",
        "sglang",
        "--hidden",
        "6144",
        "--tp",
        "8",
        "--batch",
        "64",
        "--no-host",
    ]);
    let sizing = plain.sizing.unwrap();
    assert_eq!((sizing.rows, sizing.needed_elements), (64, 393_216));
    let drafted = ask(&[
        "--engine",
        "sglang",
        "--hidden",
        "4096",
        "--tp",
        "8",
        "--batch",
        "32",
        "--draft-tokens",
        "6",
        "--no-host",
    ]);
    let sizing = drafted.sizing.unwrap();
    assert_eq!(
        (sizing.rows_per_request, sizing.rows, sizing.needed_elements),
        (6, 192, 786_432)
    );
    // vLLM counts drafts: 5 drafts are 6 rows, and by itself it would capture for twice the rows.
    let vllm = ask(&[
        "--engine",
        "vllm",
        "--hidden",
        "4096",
        "--tp",
        "2",
        "--batch",
        "32",
        "--draft-tokens",
        "5",
        "--no-host",
    ]);
    let sizing = vllm.sizing.unwrap();
    assert_eq!(
        (sizing.rows_per_request, sizing.rows, sizing.needed_elements),
        (6, 192, 786_432)
    );
    assert_eq!(
        sizing.engine_elements,
        Some(384 * 4096),
        "{}",
        sizing.engine_reason
    );
    assert!(
        sizing.engine_reason.contains("384"),
        "{}",
        sizing.engine_reason
    );
}

#[test]
fn a_healthy_nvswitch_host_keeps_the_engines_defaults() {
    let report = Host::new("hgx-h200-x8").qualify(&["--quick", "--gpus", "0,1,2,3"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("healthy.json");
    save(&report, &path);
    let from = path.to_str().unwrap();
    for engine in ["vllm", "sglang"] {
        let answer = ask(&[
            "--engine", engine, "--hidden", "6144", "--tp", "4", "--batch", "32", "--from", from,
        ]);
        let names: Vec<&str> = answer
            .flags
            .iter()
            .chain(&answer.environment)
            .map(|s| s.name.as_str())
            .collect();
        for name in ["NCCL_P2P_DISABLE", "--disable-custom-all-reduce"] {
            assert!(!names.contains(&name), "{engine}: {names:?}");
        }
    }
}

const QUESTION: [&str; 8] = [
    "--engine", "vllm", "--hidden", "4096", "--tp", "2", "--batch", "32",
];

fn report_of(host: &Host, folder: &Path) -> (Report, String) {
    let report = host.qualify(&[
        "--gpus",
        "0,1",
        "--mechanism",
        "bounce,staged,host-exchange,ce-push,sm-load,sm-store",
    ]);
    let path = folder.join("report.json");
    save(&report, &path);
    (report, path.to_str().unwrap().to_string())
}

fn asked<'a>(more: &[&'a str]) -> Vec<&'a str> {
    QUESTION
        .iter()
        .copied()
        .chain(more.iter().copied())
        .collect()
}

/// `eval "$(peerproof recommend ... --format shell)"`, in the shells that people use.
#[test]
fn settings_can_be_evaluated_by_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new("rtxpro6000-x8-zeroed");
    let (_, from) = report_of(&host, folder.path());
    for shell in ["sh", "bash"] {
        let script = format!(
            "set -eu\nexport NCCL_SHM_DISABLE=1\neval \"$('{}' recommend {} --batch 600 --from '{from}' --format shell)\"\necho \"$NCCL_P2P_DISABLE ${{NCCL_SHM_DISABLE-unset}} $CUDA_VISIBLE_DEVICES\"\nshow() {{ for word in \"$@\"; do printf '[%s]' \"$word\"; done; echo; }}\neval \"show serve $PEERPROOF_FLAGS\"\n",
            peerproof().display(),
            "--engine vllm --hidden 4096 --tp 2",
        );
        let mut command = Command::new(shell);
        command.args(["-c", &script]);
        let run = run(command);
        assert_eq!(run.code, Some(0), "{shell}: {}", run.stderr);
        let lines: Vec<&str> = run.stdout.lines().collect();
        assert_eq!(lines[0], "1 unset 0,1", "{shell}");
        assert!(
            lines[1].starts_with("[serve][--tensor-parallel-size][2]"),
            "{}",
            lines[1]
        );
        assert!(lines[1].contains("[--disable-custom-all-reduce]"));
        assert!(
            lines[1].contains("[{\"cudagraph_capture_sizes\":[1,2,4,8"),
            "{}",
            lines[1]
        );
    }
    for (format, words) in [
        ("env", &["NCCL_P2P_DISABLE=1\n"][..]),
        (
            "compose",
            &[
                "services:\n  vllm:\n    ipc: host\n",
                "      NCCL_P2P_DISABLE: \"1\"\n",
                "      - \"--disable-custom-all-reduce\"\n",
            ],
        ),
        (
            "kubernetes",
            &[
                "containers:\n  - name: vllm\n",
                "      - name: NCCL_P2P_DISABLE\n        value: \"1\"\n",
                "mountPath: /dev/shm",
            ],
        ),
    ] {
        let run = recommend(&asked(&["--from", &from, "--format", format]));
        assert_eq!(run.code, Some(0), "{format}: {}", run.stderr);
        for word in words {
            assert!(
                run.stdout.contains(word),
                "{format}: {word}: {}",
                run.stdout
            );
        }
        assert!(!run.stdout.contains("NCCL_SHM_DISABLE"));
        assert!(run.stderr.contains("cannot unset") && run.stderr.contains("NCCL_SHM_DISABLE"));
        assert!(run.stdout.contains("NOT OF A REAL HOST"));
        // What we write, we read as a launch without faults.
        let file = folder.path().join(format);
        fs::write(&file, &run.stdout).unwrap();
        let check = recommend(&["--engine", "vllm", "--check-file", file.to_str().unwrap()]);
        if format != "env" {
            assert_eq!(
                check.code,
                Some(0),
                "{format}: {}{}",
                check.stdout,
                check.stderr
            );
        }
    }
    let run = recommend(&asked(&["--from", &from, "--format", "json"]));
    let value: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(value["environment"]["NCCL_P2P_DISABLE"], "1");
    assert_eq!(value["proven"], "staged");
}

/// A host is broken, and mended; the shell stays the same. What the first answer exported must not outlive it, whichever engine
/// the second is about; formats that cannot unset leave it out and say so.
#[test]
fn an_answer_takes_back_what_an_earlier_one_exported() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (broken, mended) = (named("broken.json"), named("mended.json"));
    let bad = Host::new("rtxpro6000-x8-zeroed").qualify(&[
        "--gpus",
        "0,1",
        "--mechanism",
        "bounce,staged,host-exchange,ce-push,sm-load,sm-store",
    ]);
    save(&bad, Path::new(&broken));
    let good = Host::new("rtxpro6000-x8-root-complex").qualify(&["--quick", "--gpus", "0,1"]);
    save(&good, Path::new(&mended));
    for shell in ["sh", "bash"] {
        for (first, then) in [("vllm", "vllm"), ("sglang", "vllm"), ("vllm", "sglang")] {
            let script = format!(
                "set -eu\nask() {{ '{}' recommend --hidden 4096 --tp 2 --batch 32 --format shell \"$@\"; }}\nkey() {{ env | grep -E '^(NCCL_|VLLM_|SGLANG_|GGML_)' | sort; }}\neval \"$(ask --engine {first} --from '{broken}')\"\nkey\necho MENDED\neval \"$(ask --engine {then} --from '{mended}')\"\nkey || true\necho BROKEN\neval \"$(ask --engine {first} --from '{broken}')\"\nkey\n",
                peerproof().display(),
            );
            let mut command = Command::new(shell);
            command.args(["-c", &script]);
            let run = run(command);
            assert_eq!(run.code, Some(0), "{shell}: {}", run.stderr);
            let (before, rest) = run.stdout.split_once("MENDED\n").unwrap();
            let (mended, again) = rest.split_once("BROKEN\n").unwrap();
            for veto in ["NCCL_P2P_DISABLE=1", "VLLM_ALLREDUCE_USE_SYMM_MEM=0"] {
                assert!(before.contains(veto), "{first}: {before}");
                assert!(!mended.contains(veto), "{first} {then}: {mended}");
            }
            assert!(!mended.contains("=0"), "{first} {then}: {mended}");
            assert_eq!(before, again, "{first} {then}");
        }
    }
    for format in ["env", "compose", "kubernetes"] {
        let run = recommend(&asked(&["--from", &mended, "--format", format]));
        assert_eq!(run.code, Some(0), "{format}: {}", run.stderr);
        assert!(!run.stdout.contains("NCCL_P2P_DISABLE"), "{}", run.stdout);
        let said = run.stderr.lines().find(|l| l.contains("must not be set"));
        let said = said.unwrap_or_else(|| panic!("{format}: {}", run.stderr));
        assert!(said.contains("NCCL_P2P_DISABLE"), "{said}");
    }
    let run = recommend(&asked(&["--from", &mended, "--format", "json"]));
    let value: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let unset = value["unset"].as_array().unwrap();
    assert!(unset.iter().any(|name| name == "NCCL_P2P_DISABLE"));
    assert!(value["environment"]["NCCL_P2P_DISABLE"].is_null());
    // A report's own settings are not evaluated one after the other.
    assert!(good.recommendations.iter().all(|r| r.left_over.is_empty()));
}

/// Proven up to rung 3 only: the first proven way is through the host, and the page says what would prove more.
#[test]
fn what_is_not_proven_is_not_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let report = Host::new("rtxpro6000-x8-root-complex").qualify(&[
        "--quick",
        "--gpus",
        "0,1",
        "--mechanism",
        "bounce,staged,host-exchange,ce-push,ce-pull,pool-ce-push,pool-ce-pull,sm-load,sm-store,sm-store4,atomics,atomics-contended,pool-sm-load,pool-sm-store",
    ]);
    let path = folder.path().join("low.json");
    save(&report, &path);
    let from = path.to_str().unwrap();
    let run = recommend(&asked(&["--from", from]));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let page: String = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "vllm: NCCL through shared host memory",
        "peers are unproven (NCCL P2P:",
        "o custom-all-reduce: unproven: custom all-reduce (vLLM, SGLang):",
        "'peerproof qualify --gpus 0,1' would tell",
        "--disable-custom-all-reduce",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let answer = ask(&asked(&["--from", from]));
    assert_eq!(answer.backend, "nccl");
}

/// A layer split has no all-reduces, and the page shows none.
#[test]
fn a_layer_split_shows_what_crosses_the_links() {
    let run = recommend(&[
        "--engine",
        "llama.cpp",
        "--model",
        "qwen3-32b",
        "--tp",
        "2",
        "--batch",
        "4",
        "--no-host",
    ]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    for words in ["between the GPUs", "no all-reduce;", "81,920 bytes"] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    for words in [
        "reductions of that size",
        "in one reduction",
        "tensor parallel",
    ] {
        assert!(!run.stdout.contains(words), "{words}: {}", run.stdout);
    }
}

#[test]
fn where_nothing_is_proven_there_is_nothing_to_run() {
    for format in ["shell", "env", "json", "compose", "kubernetes"] {
        let run = recommend(&asked(&["--no-host", "--format", format]));
        assert_eq!((run.code, run.stdout.as_str()), (Some(3), ""), "{format}");
        assert!(run.stderr.contains("nothing is proven"), "{}", run.stderr);
    }
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new("two-gpus-no-p2p").fault("0>1:staged=zeroed");
    let (_, from) = report_of(&host, folder.path());
    let run = recommend(&asked(&["--from", &from, "--format", "shell"]));
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (Some(2), ""),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("do not serve"), "{}", run.stderr);
}

/// One GPU reduces nothing, and nothing is told of reductions' sizes.
#[test]
fn one_gpu_has_no_sizes_of_reductions() {
    let ask = |tp: &str| {
        recommend(&[
            "--engine",
            "vllm",
            "--hidden",
            "4096",
            "--tp",
            tp,
            "--batch",
            "32",
            "--no-host",
        ])
    };
    let one = ask("1");
    assert_eq!(one.code, Some(0), "{}", one.stderr);
    assert!(
        one.stdout.contains("no all-reduce: one GPU"),
        "{}",
        one.stdout
    );
    for word in ["payload", "reduction", "elements"] {
        assert!(!one.stdout.contains(word), "{word}: {}", one.stdout);
    }
    assert!(ask("2").stdout.contains("in one reduction"));
    let check = recommend(&["--check", "vllm serve x --tensor-parallel-size 1"]);
    assert!(check.stdout.contains("no all-reduce"), "{}", check.stdout);
    assert!(!check.stdout.contains("sizes;"), "{}", check.stdout);
}

#[test]
fn launches_are_checked_with_an_exit_code() {
    let check = |text: &str| recommend(&["--check", text]);
    let good = check("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4");
    assert_eq!(good.code, Some(0), "{}", good.stdout);
    assert!(good.stdout.contains("nothing wrong in what was judged"));
    let bad = check("NCCL_P2P_DISABLE=1 vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4");
    assert_eq!(bad.code, Some(2));
    assert!(
        bad.stdout.contains("--disable-custom-all-reduce"),
        "{}",
        bad.stdout
    );
    let slow = check("vllm serve x --disable-custom-all-redcue");
    assert_eq!(slow.code, Some(1), "{}", slow.stdout);
    // Whether a virtual machine is under it only the host tells; and a shell alone knows $TP.
    for text in [
        "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve x --enforce-eager",
        "vllm serve x -tp $TP",
        "vllm serve x --config serve.yaml",
    ] {
        let open = check(text);
        assert_eq!(open.code, Some(3), "{text}: {}", open.stdout);
        assert!(open.stdout.contains("Not judged"), "{}", open.stdout);
    }
    let nothing = check("ls -l");
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(64), ""));
    // A file's name is no launch, and words without quotes are options of ours.
    for text in [
        "launch.sh",
        "bash ./launch.sh",
        "compose.yaml",
        "Cargo.toml",
    ] {
        let file = check(text);
        assert_eq!((file.code, file.stdout.as_str()), (Some(64), ""), "{text}");
        assert!(
            file.stderr.contains("--check-file"),
            "{text}: {}",
            file.stderr
        );
    }
    for words in [
        &["--check", "--", "vllm", "serve", "x"][..],
        &["--check", "vllm", "serve", "x", "-tp", "2"],
        &["--check"],
    ] {
        let bare = recommend(words);
        assert_eq!(bare.code, Some(64), "{words:?}");
        assert!(
            bare.stderr.contains("in quotes"),
            "{words:?}: {}",
            bare.stderr
        );
    }
    // A launch says its own size: one beside it is never passed over.
    for option in [["--tp", "8"], ["--gpus", "0,1"], ["--batch", "4"]] {
        let beside = recommend(&[&["--check", "vllm serve x"][..], &option].concat());
        assert_eq!((beside.code, beside.stdout.as_str()), (Some(64), ""));
        let told = format!("{}: a launch is judged by what it says itself", option[0]);
        assert!(beside.stderr.contains(&told), "{}", beside.stderr);
    }
    let other = recommend(&["--engine", "vllm", "--tp", "x"]);
    assert!(!other.stderr.contains("in quotes"), "{}", other.stderr);
    let open = check("vllm serve 'x");
    assert_eq!(open.code, Some(64));
    assert!(open.stderr.contains("line 1"), "{}", open.stderr);
    let folder = tempfile::tempdir().unwrap();
    let (_, from) = report_of(&Host::new("rtxpro6000-x8-zeroed"), folder.path());
    let run = recommend(&[
        "--check",
        "vllm serve Qwen/Qwen3-32B -tp 4",
        "--from",
        &from,
    ]);
    assert_eq!(run.code, Some(2), "{}", run.stdout);
    for word in [
        "failed-peers-in-use",
        "NCCL_P2P_DISABLE=1",
        "VLLM_ALLREDUCE_USE_FLASHINFER=0",
    ] {
        assert!(run.stdout.contains(word), "{word}: {}", run.stdout);
    }
}

#[test]
fn a_models_own_configuration_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, r#"{"text_config":{"model_type":"qwen3","hidden_size":5120,"num_hidden_layers":64,"dtype":"bfloat16"}}"#).unwrap();
    let name = path.to_str().unwrap();
    let question = [
        "--engine",
        "sglang",
        "--tp",
        "4",
        "--batch",
        "32",
        "--no-host",
        "--model-config",
        name,
    ];
    let sizing = ask(&question).sizing.unwrap();
    assert_eq!(
        (sizing.needed_elements, sizing.all_reduces),
        (32 * 5120, Some(129))
    );
    fs::write(&path, "{\"hidden_size\": \n}").unwrap();
    let run = recommend(&question);
    assert_eq!((run.code, run.stdout.as_str()), (Some(64), ""));
    assert!(
        run.stderr.contains("config.json: line 2: not JSON"),
        "{}",
        run.stderr
    );
}

/// Only a report of real hardware that proves the pairs across processes may stand in for an engine's own test.
#[test]
fn a_file_of_peer_verdicts_is_written_from_proofs_only() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("cache.json");
    let (mut report, from) = report_of(&Host::new("rtxpro6000-x8-zeroed"), folder.path());
    let question = asked(&["--from", &from, "--write-p2p-cache", out.to_str().unwrap()]);
    let run = recommend(&question);
    assert_eq!(run.code, Some(64));
    assert!(
        run.stderr.contains("not of real hardware"),
        "{}",
        run.stderr
    );
    assert!(!out.exists());
    report.authenticity = peerproof::model::snapshot::Authenticity::Hardware;
    save(&report, Path::new(&from));
    let run = recommend(&question);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(
        run.stderr.contains("weakness: it has no date")
            && run.stderr.contains("VLLM_SKIP_P2P_CHECK=0")
    );
    let text = fs::read_to_string(&out).unwrap();
    assert_eq!(
        text,
        "{\n    \"0->0\": true,\n    \"0->1\": false,\n    \"1->0\": false,\n    \"1->1\": true\n}\n"
    );
    // Intact up to rung 3 says nothing of two processes.
    let (mut healthy, from) = report_of(&Host::new("hgx-h200-x8"), folder.path());
    healthy.authenticity = peerproof::model::snapshot::Authenticity::Hardware;
    save(&healthy, Path::new(&from));
    fs::remove_file(&out).unwrap();
    let run = recommend(&asked(&[
        "--from",
        &from,
        "--write-p2p-cache",
        out.to_str().unwrap(),
    ]));
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(
        run.stderr.contains("rung 4") && !out.exists(),
        "{}",
        run.stderr
    );
}

/// Profiles of one's own are laid over the built-in ones; a bad one is named with file, line and what is allowed.
#[test]
fn profiles_of_ones_own_are_taken_and_bad_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let engines = folder.path().join("engines");
    fs::create_dir(&engines).unwrap();
    let own = engines.join("house.toml");
    let good = "id = \"house\"\nname = \"House engine\"\nchecked = \"2026-11-30\"\ninherits = \"vllm\"\n\n[launch]\ncommands = [[\"house\", \"serve\"]]\n";
    fs::write(&own, good).unwrap();
    let profiles = folder.path().to_str().unwrap();
    let question = |engine: &'static str| {
        recommend(&[
            "--engine",
            engine,
            "--hidden",
            "4096",
            "--tp",
            "2",
            "--batch",
            "32",
            "--no-host",
            "--profiles",
            profiles,
        ])
    };
    let answer = question("house");
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    assert!(answer.stdout.starts_with("house: "), "{}", answer.stdout);
    let check = recommend(&[
        "--profiles",
        profiles,
        "--check",
        "NCCL_P2P_DISABLE=1 house serve x -tp 2",
    ]);
    assert_eq!(check.code, Some(2), "{}", check.stdout);
    assert!(check.stdout.starts_with("House engine"), "{}", check.stdout);
    fs::write(&own, format!("{good}\n[[backend]]\nid = \"x\"\nname = \"X\"\norder = 1\nwhen = [{{ wish = true }}]\nsource = \"none\"\n")).unwrap();
    let refused = question("house");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(64), ""));
    for words in ["house.toml:13:", "`wish`", "`world-size`"] {
        assert!(
            refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
    }
}
