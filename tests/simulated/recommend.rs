//! `recommend` from saved reports, and its arithmetic from numbers alone.

use crate::host::{Host, peerproof, run, save};
use peerproof::model::finding::Recommendation;
use std::process::Command;

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
    let report = Host::new("hgx-h200-x8")
        .qualify(&["--mechanism", "bounce,staged,ce-push,sm-load,sm-store"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("healthy.json");
    save(&report, &path);
    let from = path.to_str().unwrap();
    for engine in ["vllm", "sglang"] {
        let answer = ask(&[
            "--engine", engine, "--hidden", "6144", "--tp", "8", "--batch", "32", "--from", from,
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
