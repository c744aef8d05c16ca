//! Files that tell of a host, invented and small: every format and version, every class, and the states in which people
//! paste text. What each must give stands in the tables below.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use peerproof::{
    collect::import::{self, ImportError},
    model::{
        pair::OrderedPair,
        report::{Coverage, Grading, Report, SCHEMA_VERSION, Verdict},
        snapshot::{Authenticity, Origin, Snapshot},
        topology::FlashInferLabel,
    },
};
use std::{collections::BTreeSet, path::PathBuf};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import")
}

fn read(name: &str) -> Result<Snapshot, ImportError> {
    import::read(name, &std::fs::read(folder().join(name)).unwrap())
}

/// Row 0 of the matrix, then row 1, as nvidia-smi would print it.
fn rows(snapshot: &Snapshot) -> String {
    let count = snapshot.topology.pairs.count();
    let row = |s: u32| {
        let cells: Vec<String> = (0..count)
            .map(|d| match OrderedPair::new(s, d) {
                None => "X".to_string(),
                Some(pair) => snapshot.topology.pairs.get(pair).unwrap().label(),
            })
            .collect();
        cells.join(" ")
    };
    (0..count.min(2)).map(row).collect::<Vec<_>>().join(" | ")
}

/// File, class, first two rows, a piece of a note or of a disagreement (empty: none is asked for).
const READ: &[(&str, &str, &str, &str)] = &[
    (
        "hwloc1-two-sockets.xml",
        "root-complex-cross-socket",
        "X SYS | SYS X",
        "1 NUMA nodes are GPU memory",
    ),
    (
        "hwloc1-bridges-filtered.xml",
        "unknown",
        "X ? SYS | ? X SYS",
        "bridges filtered out",
    ),
    (
        "hwloc2-switches.xml",
        "pcie-switch",
        "X PIX SYS SYS | PIX X SYS SYS",
        "1x 1a03:2000",
    ),
    (
        "hwloc2-nvlink-mesh.xml",
        "nvlink-mesh",
        "X NV6 NV6 | NV6 X NV6",
        "",
    ),
    (
        "hwloc2-matrix-doubled.xml",
        "nvlink-pairs",
        "X NV18 | NV18 X",
        "halved",
    ),
    (
        "hwloc2-nvlink-pairs-power.xml",
        "nvlink-pairs",
        "X NV2 SYS SYS | NV2 X SYS SYS",
        "",
    ),
    (
        "hwloc3-nvswitch-hetero.xml",
        "nvswitch",
        "X NV18 NV18 | NV18 X NV18",
        "no PCI object",
    ),
    ("hwloc3-no-pci.xml", "unknown", "", "captured without I/O"),
    ("hwloc2-no-nvidia.xml", "none", "", "other vendors"),
    (
        "hwloc2-emulated-ports.xml",
        "vm-opaque",
        "X PHB | PHB X",
        "",
    ),
    ("hwloc2-vm-flat.xml", "vm-opaque", "X PHB | PHB X", ""),
    (
        "hwloc2-snc-one-socket.xml",
        "root-complex-single-socket",
        "X SYS | SYS X",
        "",
    ),
    (
        "hwloc3-vmd-domain.xml",
        "root-complex-single-socket",
        "X NODE | NODE X",
        "",
    ),
    (
        "nccl-nvswitch-hidden.xml",
        "nvswitch",
        "X NV18 | NV18 X",
        "",
    ),
    (
        "nccl-nvswitch-listed.xml",
        "nvswitch",
        "X NV8 NV8 | NV8 X NV8",
        "",
    ),
    (
        "nccl-overdeclared.xml",
        "nvswitch",
        "X NV18 NV18 NV18 | NV18 X NV18 NV18",
        "54 to other GPUs",
    ),
    (
        "nccl-mesh.xml",
        "nvlink-mesh",
        "X NV6 NV6 NV6 | NV6 X NV6 NV6",
        "",
    ),
    (
        "nccl-pairs-asymmetric.xml",
        "nvlink-pairs",
        "X NV1 | NV12 X",
        "NVLink count of GPUs 0 and 1",
    ),
    (
        "nccl-pairs-self.xml",
        "nvlink-pairs",
        "X SYS | SYS X",
        "name themselves",
    ),
    (
        "nccl-root-complex.xml",
        "root-complex-cross-socket",
        "X NODE SYS | NODE X SYS",
        "",
    ),
    (
        "nccl-pseudo-switch-class-only.xml",
        "pcie-switch",
        "X PIX | PIX X",
        "made-up addresses",
    ),
    (
        "nccl-one-gpu-per-switch.xml",
        "root-complex-single-socket",
        "X NODE | NODE X",
        "",
    ),
    (
        "nccl-two-level.xml",
        "pcie-switch",
        "X PIX PXB | PIX X PXB",
        "",
    ),
    (
        "nccl-two-hosts.xml",
        "nvswitch",
        "X NV18 | NV18 X",
        "2 hosts in one file",
    ),
    ("nccl-amd.xml", "none", "", "1 GPUs of other vendors"),
    ("nccl-no-gpu.xml", "unknown", "", "lists no GPUs"),
    (
        "nccl-mixed.xml",
        "mixed",
        "X NV4 NODE | NV4 X NODE",
        "sm 90 contradicts",
    ),
    ("nccl-numa-unknown.xml", "nvswitch", "X NV18 | NV18 X", ""),
    (
        "nccl-epyc-nps.xml",
        "root-complex-single-socket",
        "X SYS | SYS X",
        "one socket, inferred",
    ),
    (
        "nccl-emulated-switch.xml",
        "vm-opaque",
        "X NODE | NODE X",
        "18 NVLinks, which the input does not show",
    ),
    (
        "nccl-module-without-links.xml",
        "pcie-switch",
        "X PIX | PIX X",
        "no active NVLink",
    ),
    (
        "topo-nvswitch-ansi.txt",
        "nvswitch",
        "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 | NV18 X NV18 NV18 NV18 NV18 NV18 NV18",
        "",
    ),
    (
        "topo-root-complex-crlf.txt",
        "root-complex-cross-socket",
        "X PHB SYS SYS | PHB X SYS SYS",
        "",
    ),
    (
        "topo-switch-nics-legend.txt",
        "pcie-switch",
        "X PIX SYS SYS | PIX X SYS SYS",
        "",
    ),
    (
        "topo-blanks-cut-token.txt",
        "pcie-switch",
        "X PIX NODE NODE | PIX X NODE NODE",
        "rows cut in the text: GPU3",
    ),
    (
        "topo-headerless.txt",
        "nvswitch",
        "X NV12 NV12 NV12 | NV12 X NV12 NV12",
        "no header",
    ),
    (
        "topo-vllm-env-yaml.txt",
        "nvlink-pairs",
        "X NV2 | NV2 X",
        "",
    ),
    (
        "topo-quoted-shifted-header.txt",
        "root-complex-single-socket",
        "X NODE NODE | NODE X NODE",
        "",
    ),
    (
        "topo-cells-merged.txt",
        "root-complex-single-socket",
        "X NODE NODE | NODE X NODE",
        "",
    ),
    (
        "topo-old-soc-one-numa.txt",
        "root-complex-cross-socket",
        "X SYS | SYS X",
        "",
    ),
    (
        "topo-vm-one-bridge.txt",
        "vm-opaque",
        "X PHB PHB PHB | PHB X PHB PHB",
        "",
    ),
    (
        "topo-cube-mesh.txt",
        "nvlink-mesh",
        "X NV2 PHB NV2 | NV2 X NV2 PHB",
        "",
    ),
    (
        "topo-blank-affinity-numa-late.txt",
        "nvlink-pairs",
        "X NV4 | NV4 X",
        "",
    ),
    ("topo-single.txt", "none", "X", ""),
    (
        "topo-with-p2p.txt",
        "root-complex-single-socket",
        "X PHB | PHB X",
        "",
    ),
    ("topo-p2p-n.txt", "unknown", "X ? | ? X", ""),
    (
        "topo-asymmetric.txt",
        "pcie-switch",
        "X PIX | NODE X",
        "path type of GPUs 0 and 1",
    ),
    ("topo-utf16.txt", "pcie-switch", "X PIX | PIX X", ""),
    (
        "topo-sys-one-node.txt",
        "root-complex-single-socket",
        "X SYS SYS | SYS X SYS",
        "SYS does not mean another socket",
    ),
];

/// File, line, column (0: no place), piece of the message.
const REFUSED: &[(&str, u32, u32, &str)] = &[
    (
        "bad-nccl-busid.xml",
        3,
        13,
        "'0000:01.0' is not a PCI address",
    ),
    (
        "bad-nccl-duplicate.xml",
        4,
        13,
        "0000:11:00.0 is listed twice",
    ),
    (
        "bad-nccl-numaid.xml",
        2,
        14,
        "numaid '0x1' is not a decimal number",
    ),
    ("bad-nccl-count.xml", 3, 195, "4000000000 NVLinks"),
    ("bad-xml-cut.xml", 3, 271, "not well-formed XML"),
    ("bad-xml-entities.xml", 2, 17, "entities are not accepted"),
    ("bad-xml-nested.xml", 3, 4043, "nested deeper than 96"),
    ("bad-hwloc-version.xml", 1, 20, "version '9.0' is not known"),
    ("bad-hwloc-matrix.xml", 27, 1, "3 objects but 8 values"),
    (
        "bad-hwloc-busid.xml",
        14,
        34,
        "'0000:13:zz.0' is not a PCI address",
    ),
    ("bad-xml-smi.xml", 2, 1, "nvidia-smi -q -x"),
    ("bad-xml-graph.xml", 1, 1, "NCCL graph file"),
    (
        "bad-topo-shifted.txt",
        3,
        1,
        "row 'GPU1' has its X in another column",
    ),
    ("bad-topo-cell.txt", 3, 6, "'PIXEL' is no cell"),
    ("bad-topo-header-only.txt", 1, 1, "no row below it"),
    (
        "bad-topo-too-many-cells.txt",
        2,
        14,
        "more cells than the header has devices",
    ),
    ("bad-empty.txt", 0, 0, "empty"),
    ("bad-prose.txt", 1, 1, "not a kind of file that is known"),
    ("bad-not-utf8.txt", 2, 10, "byte 0xff is not UTF-8"),
    ("bad-gzip.xml", 0, 0, "unpack it first"),
    ("bad-smi-q.txt", 2, 1, "nvidia-smi -q is not read"),
    ("bad-lspci-tv.txt", 1, 1, "the tree of lspci -t"),
    ("bad-nvlink-s.txt", 1, 1, "nvidia-smi nvlink -s"),
    ("bad-report-newer.json", 0, 0, "schema version 99"),
    ("bad-report-cut.json", 4, 1, "not a peerproof report"),
    (
        "bad-json-other.json",
        1,
        12,
        "missing field `schema_version`",
    ),
];

#[test]
fn good_files_give_what_they_say() {
    let mut wrong = Vec::new();
    for (name, class, matrix, told) in READ {
        let snapshot = match read(name) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        let topology = &snapshot.topology;
        if topology.class.name() != *class || rows(&snapshot) != *matrix {
            wrong.push(format!(
                "{name}: {} ({}) {}",
                topology.class,
                topology.class_reason,
                rows(&snapshot)
            ));
        }
        let said = topology.notes.iter().any(|n| n.contains(told))
            || topology
                .disagreements
                .iter()
                .any(|d| format!("{d:?}").contains(told));
        if !told.is_empty() && !said {
            wrong.push(format!(
                "{name}: '{told}' is not said: {:?} {:?}",
                topology.notes, topology.disagreements
            ));
        }
        assert!(matches!(&snapshot.origin, Origin::Recorded { file, .. } if file == name));
        assert_eq!(
            snapshot.claims.count() as usize,
            snapshot.gpus.len(),
            "{name}"
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn bad_files_are_refused_in_one_line_with_a_place() {
    let mut wrong = Vec::new();
    for (name, line, column, message) in REFUSED {
        match read(name) {
            Ok(snapshot) => wrong.push(format!("{name} was read: {}", snapshot.topology.class)),
            Err(error) => {
                let place = (error.line.unwrap_or(0), error.column.unwrap_or(0));
                let text = error.to_string();
                if place != (*line, *column) || !text.contains(message) || text.lines().count() != 1
                {
                    wrong.push(text);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fixture_is_in_a_table() {
    let named: BTreeSet<&str> = READ
        .iter()
        .map(|r| r.0)
        .chain(REFUSED.iter().map(|r| r.0))
        .collect();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // Finds of the mutation test need only an answer of one line.
        assert!(
            named.contains(name.as_str()) || name.starts_with("find-"),
            "{name} is in no table"
        );
        if let Err(error) = read(&name) {
            assert_eq!(error.to_string().lines().count(), 1, "{name}");
        }
    }
}

#[test]
fn every_class_has_a_fixture() {
    let classes: BTreeSet<&str> = READ.iter().map(|r| r.1).collect();
    assert_eq!(classes.len(), 10, "{classes:?}");
}

#[test]
fn hwloc_places_and_names_devices() {
    let s = read("hwloc2-switches.xml").unwrap();
    assert_eq!(s.host.name.known().unwrap(), "invented");
    assert_eq!(s.gpus.len(), 4);
    let gpu = &s.gpus[0];
    assert_eq!(gpu.pci.known().unwrap().to_string(), "0000:13:00.0");
    assert_eq!(gpu.bridge_chain.known().unwrap().len(), 3);
    assert_eq!(gpu.root_bus.known().unwrap(), "0000:10");
    assert_eq!(
        (gpu.numa_node.known(), gpu.package.known()),
        (Some(&0), Some(&0))
    );
    let link = gpu.link_now.known().unwrap();
    assert_eq!((link.generation(), link.width), (Some(5), 16));
    assert_eq!(s.nics.len(), 1);
    assert_eq!(s.nics[0].name, "mlx5_0");
    let words: Vec<String> = s.nics[0]
        .to_gpus
        .iter()
        .map(|p| p.unwrap().to_string())
        .collect();
    assert_eq!(words, ["PIX", "PIX", "SYS", "SYS"]);
    assert_eq!(
        s.bridges[1].chip.as_deref(),
        Some("Broadcom PEX 890xx (Gen5)")
    );
    assert_eq!(
        s.topology.flashinfer_label,
        FlashInferLabel::PcieswitchPairs
    );
    let path = s
        .topology
        .pairs
        .get(OrderedPair::new(0, 1).unwrap())
        .unwrap();
    let bridges: Vec<String> = path.bridges.iter().map(ToString::to_string).collect();
    assert_eq!(bridges, ["0000:12:00.0", "0000:11:00.0", "0000:12:01.0"]);
    let vmd = read("hwloc3-vmd-domain.xml").unwrap();
    assert_eq!(
        vmd.gpus[1].pci.known().unwrap().to_string(),
        "10000:e1:00.0"
    );
    let mesh = read("hwloc2-nvlink-mesh.xml").unwrap();
    assert_eq!(mesh.gpus[0].nvml_index.known(), Some(&2));
}

#[test]
fn tables_fill_claims_nics_and_affinities() {
    let s = read("topo-with-p2p.txt").unwrap();
    let claims = s.claims.get(OrderedPair::new(1, 0).unwrap()).unwrap();
    assert_eq!(claims.common_ancestor.known(), Some(&30));
    assert_eq!(claims.p2p_read.known().unwrap(), "GNS");
    assert_eq!(claims.p2p_write.known().unwrap(), "GNS");
    assert_eq!(claims.p2p_nvlink.known(), None);
    let s = read("topo-p2p-n.txt").unwrap();
    let claims = s.claims.get(OrderedPair::new(0, 1).unwrap()).unwrap();
    assert_eq!(claims.p2p_nvlink.known().unwrap(), "OK");
    assert_eq!(claims.p2p_read.known(), None);
    let s = read("topo-switch-nics-legend.txt").unwrap();
    assert_eq!(s.nics[0].name, "mlx5_bond_0");
    assert_eq!(s.nics[0].to_gpus[3].unwrap().to_string(), "SYS");
    let s = read("topo-blanks-cut-token.txt").unwrap();
    assert_eq!(s.gpus[0].cpu_affinity.known().unwrap(), "112-127,240-255");
    assert_eq!(s.gpus[0].numa_node.known(), Some(&7));
    assert_eq!(s.gpus[3].numa_node.known(), None);
    assert_eq!(s.nics[1].name, "mlx5_2");
    let s = read("topo-blank-affinity-numa-late.txt").unwrap();
    assert_eq!(s.gpus[0].cpu_affinity.known(), None);
    assert_eq!(s.gpus[0].numa_node.known(), Some(&1));
    let s = read("topo-cube-mesh.txt").unwrap();
    assert_eq!(s.gpus[0].numa_node.known(), None);
}

fn report() -> Report {
    let mut snapshot = read("nccl-mesh.xml").unwrap();
    snapshot.authenticity = Authenticity::Simulated;
    Report {
        schema_version: SCHEMA_VERSION,
        tool_version: "0.1.0".to_string(),
        kernels_sha256: String::new(),
        authenticity: Authenticity::Simulated,
        started_at: "2026-01-01T00:00:00Z".to_string(),
        took_ms: 1.0,
        arguments: Vec::new(),
        snapshot,
        tested_gpus: Vec::new(),
        ladder: Vec::new(),
        records: Vec::new(),
        observations: Vec::new(),
        reductions: Vec::new(),
        traffic: Vec::new(),
        crossovers: Vec::new(),
        notes: Vec::new(),
        comparison: None,
        selftest: None,
        coverage: Coverage::default(),
        findings: Vec::new(),
        consumers: Vec::new(),
        recommendations: Vec::new(),
        verdict: Verdict {
            grading: Grading::Inconclusive,
            headline: String::new(),
            cause: String::new(),
            next: String::new(),
            worst_pair: None,
            reason: None,
        },
        timings_ms: Vec::new(),
        worker_environment: Vec::new(),
        interrupted: false,
    }
}

#[test]
fn a_saved_report_gives_its_snapshot_back() {
    let report = report();
    let text = serde_json::to_string_pretty(&report).unwrap();
    let back = import::read("run.json", text.as_bytes()).unwrap();
    assert_eq!(back.topology, report.snapshot.topology);
    assert_eq!(back.gpus, report.snapshot.gpus);
    // Nothing clears the mark of a simulated run.
    assert_eq!(back.authenticity, Authenticity::Simulated);
    let broken = text.replace("\"gpus\": [", "\"gpus\": [7,");
    let error = import::read("run.json", broken.as_bytes()).unwrap_err();
    assert!(
        error.line.unwrap() > 10 && error.message.contains("invalid type"),
        "{error}"
    );
}

#[test]
fn a_report_with_tables_that_do_not_fit_is_refused() {
    let text = serde_json::to_string(&report()).unwrap();
    let broken = text.replace(
        "\"pairs\":{\"count\":4,",
        "\"pairs\":{\"count\":4294967295,",
    );
    assert_ne!(text, broken);
    let error = import::read("run.json", broken.as_bytes()).unwrap_err();
    assert!(error.message.contains("table"), "{error}");
}

#[test]
fn too_large_and_too_hostile_inputs_cost_little() {
    let started = std::time::Instant::now();
    let large = vec![b' '; import::MAX_INPUT_BYTES + 1];
    assert!(
        import::read("x", &large)
            .unwrap_err()
            .message
            .contains("bytes")
    );
    let mut attributes = String::from("<system ");
    for n in 0..200_000 {
        attributes.push_str(&format!("a{n}='1' "));
    }
    attributes.push_str("/>");
    assert!(import::read("x", attributes.as_bytes()).is_err());
    let deep = "<a>".repeat(500_000);
    assert!(
        import::read("x", deep.as_bytes())
            .unwrap_err()
            .message
            .contains("nested")
    );
    let json = "[".repeat(500_000);
    assert!(import::read("x", json.as_bytes()).is_err());
    let json = "{\"schema_version\":".repeat(100_000);
    assert!(import::read("x", json.as_bytes()).is_err());
    let many = format!(
        "{}\n",
        (0..20_000).map(|n| format!("GPU{n}\t")).collect::<String>()
    );
    let _ = import::read("x", many.as_bytes());
    let cells = format!("GPU0 X {}\n", "NODE".repeat(1_000_000));
    let _ = import::read("x", cells.as_bytes());
    let gpu = |n: u32| {
        format!(
            "<pci busid='{:04x}:00:00.0' class='0x030200'><gpu dev='0' sm='90'/></pci>",
            n
        )
    };
    let crowd: String = (0..300).map(gpu).collect();
    let crowd = format!("<system><cpu numaid='0'>{crowd}</cpu></system>");
    let error = import::read("x", crowd.as_bytes()).unwrap_err();
    assert!(error.message.contains("more than 256 GPUs"), "{error}");
    let nodes: String = (0..3000)
        .map(|n| format!("<object type='NUMANode' os_index='{n}' cpuset='0x1'/>"))
        .collect();
    let pci = "<object type='PCIDev' pci_busid='0000:01:00.0' pci_type='0302 [10de:2330]'/>";
    let nodes =
        format!("<topology version='2.0'><object type='Machine'>{nodes}{pci}</object></topology>");
    let error = import::read("x", nodes.as_bytes()).unwrap_err();
    assert!(
        error.message.contains("more than 1024 NUMA nodes"),
        "{error}"
    );
    let text = "a ".repeat(5 << 20);
    assert!(
        import::read("x", text.as_bytes())
            .unwrap_err()
            .message
            .contains("cut it down")
    );
    let tables = "GPU0 X\n".repeat(10_000);
    assert!(
        import::read("x", tables.as_bytes())
            .unwrap_err()
            .message
            .contains("64 tables")
    );
    let nulls = format!("{{\"a\":[{}null]}}", "null,".repeat(2_100_000));
    assert!(
        import::read("x", nulls.as_bytes())
            .unwrap_err()
            .message
            .contains("nulls")
    );
    let namespaces: String = (0..100).map(|n| format!("<a xmlns:n{n}='u'>")).collect();
    assert!(import::read("x", namespaces.as_bytes()).is_err());
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
