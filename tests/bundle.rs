//! Bundles end to end: what was planted in every text of a report and of the host's files must not be in the archive, and
//! what is in the archive must still be read by every command.

#![allow(missing_docs, clippy::unwrap_used)]

use peerproof::{
    bundle::{
        archive::{self, Member},
        manifest::{MANIFEST, Manifest, REPORT},
    },
    model::report::Report,
    render::json,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

/// What is planted, each with the part of it that must not be found again.
const PLANTED: [(&str, &str); 11] = [
    ("seen on secrethost-17.corp.example today", "secrethost"),
    ("at 10.66.77.88 port 80", "10.66.77.88"),
    ("at 2001:db8:77::66 port 80", "2001:db8"),
    ("via 0a:1b:2c:3d:4e:5f up", "0a:1b:2c"),
    ("card GPU-deadbeef-1234-4321-8888-cafecafecafe", "deadbeef"),
    ("Serial Number: SN77X1234", "SN77X"),
    ("in /home/evelyn/run", "evelyn"),
    ("by evelyn himself", "evelyn"),
    ("user evelyn@secrethost-17", "evelyn@"),
    ("worker-99:12:13 [0] NCCL INFO", "worker-99"),
    ("proxy http://intern.corp.example:3128/", "intern.corp"),
];

fn planted() -> String {
    PLANTED.map(|(text, _)| text).join(" ; ")
}

fn peerproof(arguments: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peerproof"))
        .args(arguments)
        .current_dir(folder)
        .env("USER", "evelyn")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A report as a command writes it on a simulated host of two GPUs. Needs the launcher beside the binary
/// (`cargo build --workspace`).
fn simulated(arguments: &[&str]) -> Value {
    let peerproof = Path::new(env!("CARGO_BIN_EXE_peerproof"));
    let output = Command::new(peerproof.with_file_name("simhost"))
        .args(["run", "opaque-vm-mirrored", "--"])
        .arg(peerproof)
        .args(arguments)
        .arg("--json")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", said(&output)))
}

/// A small report of tests.
fn sample() -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let run = || {
        simulated(&[
            "qualify",
            "--quick",
            "--mechanism",
            "bounce,ce-push",
            "--no-file",
        ])
    };
    SAMPLE.get_or_init(run).clone()
}

/// A report that holds everything that any command writes into one: tests, all-reduces with NCCL's, timed copies, and another
/// tool's numbers.
fn full() -> Value {
    let mut report = sample();
    let reduce = simulated(&[
        "reduce",
        "--bytes",
        "512",
        "--algorithm",
        "one-shot-push",
        "--calls",
        "2",
        "--samples",
        "3",
        "--no-nccl",
    ]);
    let measure = simulated(&["measure", "--only", "latency"]);
    report["reductions"] = reduce["reductions"].clone();
    report["traffic"] = measure["traffic"].clone();
    let mut nccl = report["reductions"][0].clone();
    nccl["algorithm"] = "nccl".into();
    nccl["transport"] = "NET/Socket/0".into();
    nccl["notes"] = serde_json::json!(["set aside: NCCL_CONF_FILE", "b", "c"]);
    report["reductions"].as_array_mut().unwrap().push(nccl);
    report["traffic"][0]["caveats"] = serde_json::json!([
        {"doubt": "link_changed", "gpu": 0, "before": "32 GT/s x16", "after": "32 GT/s x8"},
    ]);
    report["comparison"] = serde_json::json!({
        "tool": "nvbandwidth v0.8",
        "their_method": "theirs",
        "our_method": "ours",
        "cells": [{
            "testcase": "device_to_device_memcpy_write_ce", "subject": "0->1",
            "theirs": 1.0, "ours": 1.0, "unit": "gb_per_s", "percent": 0.0,
        }],
        "left_out": ["a", "b", "c"],
    });
    report["snapshot"]["application_log"] =
        serde_json::json!([{"source": "nccl.log:1", "text": "NCCL INFO"}]);
    report["snapshot"]["environment"] = serde_json::json!([["NCCL_DEBUG_FILE", "x"]]);
    let whole: Report = serde_json::from_value(report.clone()).unwrap();
    assert!(whole.comparison.is_some() && whole.reductions.len() > 1 && !whole.traffic.is_empty());
    report
}

/// Pointers of all texts; those of list members with the same shape are one, the first of them.
fn texts(value: &Value, at: &str, shape: &str, out: &mut Vec<(String, String)>) {
    match value {
        Value::String(_) => out.push((at.to_string(), shape.to_string())),
        Value::Array(list) => {
            for (n, one) in list.iter().enumerate() {
                // A short list is mostly a name with its value.
                let shape = match list.len() {
                    0..=2 => format!("{shape}/{n}"),
                    _ => format!("{shape}/*"),
                };
                texts(one, &format!("{at}/{n}"), &shape, out);
            }
        }
        Value::Object(map) => {
            for (name, one) in map {
                texts(
                    one,
                    &format!("{at}/{name}"),
                    &format!("{shape}/{name}"),
                    out,
                );
            }
        }
        _ => {}
    }
}

/// Texts that decide what the report says: ids, results and words that are looked up.
const MEANING: [&str; 7] = [
    "mechanism",
    "algorithm",
    "cause",
    "id",
    "domain_type",
    "tool_version",
    "started_at",
];

/// Plants into every free text, one of each shape; gives back how many.
fn plant(report: &mut Value) -> usize {
    let (mut all, mut done, mut count) = (Vec::new(), BTreeSet::new(), 0);
    texts(report, "", "", &mut all);
    for (at, shape) in all {
        let last = at
            .rsplit('/')
            .find(|part| part.parse::<u32>().is_err())
            .unwrap_or("");
        // The host's own name is what all others are found by.
        let name = at.starts_with("/snapshot/host/name");
        if name || MEANING.contains(&last) || !done.insert(shape) {
            continue;
        }
        let place = report.pointer_mut(&at).unwrap();
        let before = place.clone();
        *place = Value::String(format!("{} {}", before.as_str().unwrap(), planted()));
        if serde_json::from_value::<Report>(report.clone()).is_err() {
            // A word of the format.
            *report.pointer_mut(&at).unwrap() = before;
        } else {
            count += 1;
        }
    }
    count
}

fn members(bundle: &Path) -> Vec<Member> {
    archive::read(&fs::read(bundle).unwrap(), |_| true).unwrap()
}

fn assert_clean(members: &[Member]) {
    for member in members {
        let text = String::from_utf8_lossy(&member.bytes).to_ascii_lowercase();
        for (_, secret) in PLANTED {
            let secret = secret.to_ascii_lowercase();
            let at = text.find(&secret);
            let around = at.map(|at| {
                text[at.saturating_sub(60)..]
                    .chars()
                    .take(140)
                    .collect::<String>()
            });
            assert!(at.is_none(), "{}: {secret}: {around:?}", member.name);
            assert!(!member.name.contains(&secret));
        }
    }
}

fn manifest(members: &[Member]) -> Manifest {
    assert_eq!(members[0].name, MANIFEST);
    serde_json::from_slice(&members[0].bytes).unwrap()
}

#[test]
fn nothing_planted_in_a_report_is_in_its_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = full();
    report["snapshot"]["host"]["name"] = serde_json::json!({"known": "secrethost-17.corp.example"});
    let planted = plant(&mut report);
    assert!(planted > 90, "only {planted} texts");
    for place in [
        "/reductions/1/transport",
        "/reductions/1/notes/0",
        "/traffic/0/caveats/0/before",
        "/comparison/cells/0/testcase",
        "/comparison/left_out/0",
        "/snapshot/application_log/0/text",
        "/worker_environment/0",
        "/arguments/0",
        "/recommendations/0/flags/0/because",
    ] {
        let text = report.pointer(place).and_then(Value::as_str);
        assert!(
            text.is_some_and(|text| text.contains("secrethost")),
            "{place}: {text:?}"
        );
    }
    let path = folder.path().join("secrethost-17.json");
    fs::write(&path, report.to_string()).unwrap();
    json::read(&report.to_string()).unwrap();

    let run = peerproof(
        &[
            "bundle",
            "--from",
            "secrethost-17.json",
            "--out",
            "b.tar.gz",
        ],
        folder.path(),
    );
    assert_eq!(run.status.code(), Some(0), "{}", said(&run));
    let bundle = folder.path().join("b.tar.gz");
    assert_eq!(
        fs::metadata(&bundle).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let members = members(&bundle);
    assert_clean(&members);
    assert!(
        !fs::read(&bundle)
            .unwrap()
            .windows(6)
            .any(|w| w == b"evelyn")
    );
    let manifest = manifest(&members);
    let counts = manifest.scrubbed.unwrap();
    for kind in [
        "host",
        "user",
        "account",
        "ipv4",
        "ipv6",
        "hardware-address",
        "uuid",
        "serial",
    ] {
        assert!(counts[kind].places >= 50, "{kind}: {counts:?}");
    }
    assert_eq!(manifest.members.len(), members.len() - 1);
    assert!(manifest.left_out.iter().any(|l| l.why.contains("--from")));
    // PCI addresses and product names stay.
    let text = String::from_utf8_lossy(&members[1].bytes).into_owned();
    let original: Report = serde_json::from_value(sample()).unwrap();
    let gpu = &original.snapshot.gpus[0];
    assert!(text.contains(&gpu.pci.known().unwrap().to_string()));
    assert!(text.contains(gpu.name.known().unwrap()));

    // Without scrubbing it is all there.
    let run = peerproof(
        &[
            "bundle",
            "--from",
            "secrethost-17.json",
            "--out",
            "raw.tar.gz",
            "--no-scrub",
        ],
        folder.path(),
    );
    assert_eq!(run.status.code(), Some(0), "{}", said(&run));
    assert!(said(&run).contains("NOT scrubbed"));
    let members = self::members(&folder.path().join("raw.tar.gz"));
    assert!(String::from_utf8_lossy(&members[1].bytes).contains("secrethost-17.corp"));
    assert!(self::manifest(&members).scrubbed.is_none());
}

#[test]
fn nothing_planted_in_files_of_the_host_is_in_its_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let file = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    file("proc/sys/kernel/hostname", "secrethost-17\n");
    for name in [
        "proc/cmdline",
        "proc/version",
        "proc/driver/nvidia/params",
        "proc/driver/nvidia/registry",
        "etc/os-release",
        "sys/class/dmi/id/product_name",
        "sys/class/dmi/id/bios_version",
        "hwloc.xml",
    ] {
        file(name, &format!("NAME=x {}\n", planted()));
    }
    file("sys/class/dmi/id/product_serial", "ZZTOP99\n");
    file("sys/class/net/eth0/address", "02:42:ac:11:00:02\n");
    file(
        "proc/meminfo",
        "MemTotal: 1024 kB ZZTOP99 02:42:ac:11:00:02\n",
    );
    file(
        "dev/kmsg",
        &format!("3,1,1,-;NVRM: Xid (PCI:0000:17:00): 31 {}\n", planted()),
    );
    fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
    let run = peerproof(
        &[
            "--root",
            root.to_str().unwrap(),
            "bundle",
            "--out",
            "b.tar.gz",
        ],
        folder.path(),
    );
    assert_eq!(run.status.code(), Some(0), "{}", said(&run));
    let members = members(&folder.path().join("b.tar.gz"));
    assert_clean(&members);
    let names: Vec<&str> = members.iter().map(|m| m.name.as_str()).collect();
    for expected in [
        "host.jsonl",
        "raw/proc/cmdline.txt",
        "raw/kernel-log.txt",
        "raw/hwloc.xml.txt",
    ] {
        assert!(names.contains(&expected), "{names:?}");
    }
    for member in &members {
        let text = String::from_utf8_lossy(&member.bytes);
        assert!(
            !text.contains("ZZTOP99") && !text.contains("02:42:ac"),
            "{}",
            member.name
        );
    }
    let text = |name: &str| {
        let found = members.iter().find(|m| m.name == name).unwrap();
        String::from_utf8_lossy(&found.bytes).into_owned()
    };
    assert!(text("raw/kernel-log.txt").contains("NVRM: Xid (PCI:0000:17:00): 31"));
    // One value, one placeholder: lines of two files can still be joined.
    let head: Value = serde_json::from_str(text("host.jsonl").lines().next().unwrap()).unwrap();
    let host = head["snapshot"]["host"]["name"]["known"].as_str().unwrap();
    assert!(host.starts_with("scrubbed-host-"), "{host}");
    for name in [
        "raw/proc/cmdline.txt",
        "raw/kernel-log.txt",
        "raw/hwloc.xml.txt",
    ] {
        assert!(
            text(name).contains(&format!("seen on {host} today")),
            "{name}"
        );
    }
    let manifest = manifest(&members);
    let missing = |what: &str| manifest.left_out.iter().any(|l| l.what.contains(what));
    assert!(missing("/proc/self/limits") && missing("other records of the kernel log"));
    // A host without a report is still a host.
    let run = peerproof(&["map", "--from", "b.tar.gz", "--json"], folder.path());
    assert_eq!(run.status.code(), Some(0), "{}", said(&run));
    assert!(said(&run).contains("scrubbed-host-"));
}

#[test]
fn every_command_reads_a_bundle() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("r.json"), sample().to_string()).unwrap();
    let run = peerproof(
        &["bundle", "--from", "r.json", "--out", "b.tar.gz"],
        folder.path(),
    );
    assert_eq!(run.status.code(), Some(0), "{}", said(&run));
    let verdict: Report = serde_json::from_value(sample()).unwrap();
    let grade = i32::from(verdict.verdict.grading.exit_code());
    for (arguments, code, word) in [
        (&["map", "--from", "b.tar.gz"][..], Some(0), "GPU0"),
        (
            &["diagnose", "b.tar.gz"],
            Some(grade),
            verdict.verdict.grading.word(),
        ),
        (
            &[
                "recommend",
                "--engine",
                "vllm",
                "--hidden",
                "4096",
                "--tp",
                "2",
                "--batch",
                "8",
                "--from",
                "b.tar.gz",
            ],
            None,
            "SIMULATED",
        ),
        // Names are replaced on one side: whether it is one host cannot be told, and a path of the operator's may differ.
        (&["diff", "r.json", "b.tar.gz"], None, "cannot be told"),
        (
            &["diff", "b.tar.gz", "b.tar.gz", "--markdown"],
            Some(0),
            "Nothing differs",
        ),
    ] {
        let run = peerproof(arguments, folder.path());
        let ended = run.status.code();
        assert!(
            code.is_none() || ended == code,
            "{arguments:?}\n{}",
            said(&run)
        );
        assert!(said(&run).contains(word), "{arguments:?}\n{}", said(&run));
    }
    let json = peerproof(&["diff", "r.json", "r.json", "--json"], folder.path());
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(value["schema_version"], 1);
    assert_eq!(value["relation"], "same_host");
}

#[test]
fn what_cannot_be_compared_or_read_is_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut hardware = sample();
    hardware["authenticity"] = "HARDWARE".into();
    fs::write(folder.path().join("sim.json"), sample().to_string()).unwrap();
    fs::write(folder.path().join("real.json"), hardware.to_string()).unwrap();
    fs::write(folder.path().join("text.gz"), [0x1f, 0x8b, 8, 0, 1, 2, 3]).unwrap();
    let mut bomb = Vec::new();
    let zeros = vec![0; 60 << 20];
    let mut list: Vec<Member> = vec![Member {
        name: MANIFEST.to_string(),
        bytes: b"{}".to_vec(),
    }];
    list.extend((0..5).map(|n| Member {
        name: format!("{n}-{REPORT}"),
        bytes: zeros.clone(),
    }));
    archive::write(&list, 0, &mut bomb).unwrap();
    fs::File::create(folder.path().join("bomb.tar.gz"))
        .unwrap()
        .write_all(&bomb)
        .unwrap();
    for (arguments, word) in [
        (&["diff", "sim.json", "real.json"][..], "--mixed"),
        (
            &["diff", "sim.json", "missing.json"],
            "failed to read missing.json",
        ),
        (
            &["diff", "sim.json", "text.gz"],
            "not a bundle of peerproof",
        ),
        (&["map", "--from", "bomb.tar.gz"], "more than 256 MiB"),
        (&["diagnose", "text.gz"], "not a bundle"),
        (&["bundle", "--from", "text.gz"], "made of a report"),
        // This machine is not the host of the report.
        (&["bundle", "sim.json"], "not a report of this host"),
    ] {
        let run = peerproof(arguments, folder.path());
        assert_eq!(run.status.code(), Some(64), "{arguments:?}\n{}", said(&run));
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(error.contains(word), "{arguments:?}\n{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
    let run = peerproof(&["diff", "sim.json", "real.json", "--mixed"], folder.path());
    assert!(
        said(&run).starts_with("SIMULATED") || said(&run).contains("SIMULATED:"),
        "{}",
        said(&run)
    );
}
