//! The interposing library of `tests/interposer`, which is for real drivers: here it stands above the look-alike, so that every
//! kind of its faults is known to be named before it is taken to hardware.

use crate::host::{Host, failures, peerproof, summary};
use peerproof::model::{
    case::{Outcome, WrongKind},
    finding::Judgement,
    report::Grading,
};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

/// Builds the library, and a program that runs peerproof below it.
fn below(folder: &Path) -> std::path::PathBuf {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interposer/build");
    let built = Command::new(build).arg(folder).output().unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let program = folder.join("peerproof");
    let text = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={}:$LD_LIBRARY_PATH exec {} \"$@\"\n",
        folder.display(),
        peerproof().display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn what_an_interposer_spoils_is_named() {
    if !cfg!(target_arch = "x86_64") {
        println!("the interposer's stubs are x86-64: not run");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = below(folder.path());
    let run = |rule: &str| {
        Host::new("opaque-vm")
            .variable("PEERPROOF_INTERPOSE", rule)
            .program(&program)
            .qualify_noisily(&["--quick", "--mechanism", "bounce,ce-push,ce-pull"])
    };
    for (kind, name) in [
        ("zeroed", WrongKind::Zeroed),
        ("dropped", WrongKind::Dropped),
        ("shifted", WrongKind::Shifted),
        ("flipped", WrongKind::Flipped),
        ("partial", WrongKind::Partial),
    ] {
        let report = run(&format!("0>1:push={kind}"));
        assert_eq!(
            report.verdict.grading,
            Grading::Fail,
            "{}",
            summary(&report)
        );
        let pushed: Vec<_> = failures(&report)
            .into_iter()
            .filter(|record| record.case.mechanism == "ce-push")
            .collect();
        assert!(!pushed.is_empty(), "{kind}: {}", summary(&report));
        for record in pushed {
            let pair = record.case.subject.pair().unwrap();
            assert_eq!((pair.source.0, pair.destination.0), (0, 1), "{kind}");
            // Four bytes are too short to be moved by 32 or cut in two.
            if record.case.bytes >= 4096 {
                assert_eq!(record.outcome.corruption().unwrap().kind, name, "{kind}");
            }
        }
    }
    // Late is no fault of content: every copy is right, and the pair is named as slow, in its direction alone.
    let late = Host::new("opaque-vm")
        .variable("PEERPROOF_INTERPOSE", "0>1:push=late:ms=30")
        .program(&program)
        .qualify_noisily(&["--mechanism", "bounce,staged,ce-push,ce-pull"]);
    assert_eq!(late.verdict.grading, Grading::Warn, "{}", summary(&late));
    assert!(failures(&late).is_empty(), "{}", summary(&late));
    let slow: Vec<_> = late
        .findings
        .iter()
        .filter(|f| f.judgement == Judgement::Indicted)
        .collect();
    let named: Vec<&str> = slow.iter().map(|f| f.cause.as_str()).collect();
    assert_eq!(named, ["slow-pair"], "{}", summary(&late));
    assert_eq!(slow[0].pairs.len(), 1);
    assert_eq!(slow[0].pairs[0].to_string(), "0->1");
    // A copy that never ends costs its pair and is called a hang.
    let hang = run("1>0:pull=hang");
    assert_eq!(hang.verdict.grading, Grading::Fail, "{}", summary(&hang));
    let hung: Vec<_> = failures(&hang)
        .into_iter()
        .filter(|record| matches!(record.outcome, Outcome::TimedOut { .. }))
        .collect();
    assert!(!hung.is_empty(), "{}", summary(&hang));
    for record in hung {
        assert_eq!(record.case.subject.pair().unwrap().to_string(), "1->0");
    }
    // Not struck, not blamed.
    let report = run("1>0:push=zeroed:nth=1000000");
    assert!(failures(&report).is_empty(), "{}", summary(&report));
}
