//! The launcher as a person or a test starts it.
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

fn simhost(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_simhost"))
        .args(arguments)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn programs_get_the_root_the_libraries_and_the_scenario() {
    let script = r#"test "$1" = --root && test -f "$2/hwloc.xml" && test -d "$2/sys/bus/pci/devices" && test "$3" = more || exit 9
for n in libcuda.so libcuda.so.1 libnvidia-ml.so.1 libnccl.so.2; do test -f "${LD_LIBRARY_PATH%%:*}/$n" || exit 8; done
grep -q "0>1:ce=zeroed" "$SIMHOST_SCENARIO" || exit 7
echo "$2""#;
    // The launcher puts --root first, so a shell needs a script file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    let mut mode = std::fs::metadata(&file).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&file, mode).unwrap();
    let output = simhost(&[
        "run",
        "opaque-vm",
        "--fault",
        "0>1:ce=zeroed",
        "--",
        file.to_str().unwrap(),
        "more",
    ]);
    assert!(
        output.status.success(),
        "{:?} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let root = said(&output);
    assert!(
        !std::path::Path::new(root.trim()).exists(),
        "the folder is removed"
    );
}

#[test]
fn exit_codes_pass_through() {
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        let mut mode = std::fs::metadata(&file).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&file, mode).unwrap();
        file.to_str().unwrap().to_string()
    };
    let (three, killed) = (program("three", "exit 3"), program("killed", "kill -9 $$"));
    assert_eq!(
        simhost(&["run", "one-gpu", "--", &three]).status.code(),
        Some(3)
    );
    assert_eq!(
        simhost(&["run", "one-gpu", "--", &killed]).status.code(),
        Some(137)
    );
    let output = simhost(&["run", "one-gpu", "--", "/nowhere/program"]);
    assert_eq!(output.status.code(), Some(70));
    assert!(output.status.signal().is_none());
}

#[test]
fn lists_and_shows() {
    let list = said(&simhost(&["list"]));
    assert_eq!(list.lines().count(), 15);
    let shown = said(&simhost(&[
        "show",
        "rtxpro6000-x8-zeroed",
        "--set",
        "gpu.memory_mib=64",
    ]));
    assert!(
        shown.contains("memory_mib = 64")
            && shown.contains("*>*:any=zeroed")
            && !shown.contains("base ="),
        "{shown}"
    );
    for wrong in [
        vec!["run", "one-gpu"],
        vec!["run"],
        vec!["show", "nothing"],
        vec!["--colour"],
        vec!["run", "one-gpu", "--fault", "x", "--", "true"],
    ] {
        let output = simhost(&wrong);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn faults_are_said_before_and_counted_after() {
    let run = |faults: &[&str]| {
        let mut arguments = vec!["run", "geforce-x2-refused"];
        faults
            .iter()
            .for_each(|f| arguments.extend(["--fault", *f]));
        arguments.extend(["--", "/bin/true"]);
        let output = simhost(&arguments);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (fault, reason) in [
        ("0>1:ce_push=zeroed", "the pair has no peer access"),
        ("0>1:sm_store=late", "the pair has no peer access"),
        ("*>*:host_store=zeroed", "no pair"),
        ("1>1:staged=zeroed", "no pair"),
        ("host>1:host_load=mirrored", "changes nothing"),
        ("0>1:staged=zeroed:min_offset=32Mi", "bytes of memory"),
        ("0>1:staged=zeroed:random=0", "probability is 0"),
    ] {
        let said = run(&[fault]);
        assert!(
            said.lines().any(|l| l
                .starts_with(&format!("simhost: fault {fault} can never strike: "))
                && l.contains(reason)),
            "{said}"
        );
        assert!(
            said.contains(&format!("simhost: fault {fault} struck 0 times")),
            "{said}"
        );
    }
    let said = run(&[
        "0>1:staged=zeroed",
        "1>host:host_store=dropped",
        "1>host:bounce_d2h=flipped",
    ]);
    assert!(!said.contains("never"), "{said}");
    assert_eq!(said.matches(" struck 0 times").count(), 3, "{said}");
}
