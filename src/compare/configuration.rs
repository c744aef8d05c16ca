//! What the hosts are and how they are set up: tool, host, driver, GPUs, paths, bridges, environment. Values that change by
//! themselves (link rate now, memory in use, counters) are no configuration, and neither are names: sister hosts have two.

use super::{Matched, Tally, amount};
use crate::model::{
    comparison::{MatchedBy, Relation},
    pair::GpuIndex,
    pci::PcieLink,
    report::Report,
    snapshot::{Bridge, CudaClaims, Driver, Gpu, Host, Nic, Snapshot},
    topology::FabricClass,
};
use std::collections::{BTreeMap, BTreeSet};

/// Words of a kernel command line that say from which disk it boots: two hosts differ in them, and no GPU cares.
const DISK_WORDS: [&str; 7] = [
    "BOOT_IMAGE=",
    "initrd=",
    "root=",
    "resume=",
    "rd.luks",
    "rd.lvm",
    "rd.md",
];

pub(super) fn compare(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
    let (one, other) = (&a.snapshot, &b.snapshot);
    driver(&one.driver, &other.driver, tally);
    host(&one.host, &other.host, tally);
    fabric(one, other, tally);
    gpus(one, other, matched, tally);
    paths(one, other, matched, tally);
    bridges(one, other, tally);
    adapters(one, other, tally);
    environment(&one.environment, &other.environment, tally);
    libraries(a, b, tally);
    tally.texts("peerproof version", "", &a.tool_version, &b.tool_version);
    tally.texts(
        "kernels (SHA-256)",
        "",
        &a.kernels_sha256,
        &b.kernels_sha256,
    );
}

/// Variables that say where libraries and scratch files lie. What lies there may be the same: which versions were loaded is
/// compared by itself.
const PLACES: [&str; 6] = [
    "LD_LIBRARY_PATH",
    "CUDA_CACHE_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
];

/// Folders whose names change from run to run.
const TEMPORARY: [&str; 4] = ["/tmp/", "/var/tmp/", "/run/", "/dev/shm/"];

fn environment(a: &[(String, String)], b: &[(String, String)], tally: &mut Tally) {
    let value = |list: &[(String, String)], name: &str| {
        let mut all = list.iter();
        all.find(|(n, _)| n == name).map(|(_, value)| value.clone())
    };
    let names: BTreeSet<&String> = a.iter().chain(b).map(|(name, _)| name).collect();
    for name in names {
        let (one, other) = (value(a, name), value(b, name));
        let temporary = |value: &Option<String>| {
            let value = value.as_deref().unwrap_or_default();
            TEMPORARY.iter().any(|folder| value.starts_with(folder))
        };
        let place = PLACES.contains(&name.as_str()) || temporary(&one) && temporary(&other);
        if place && one != other {
            let why = "where something lies is no setting; the versions of the libraries in use are compared";
            tally.leave(&format!("environment {name}"), why.to_string(), false);
        } else {
            tally.values(&format!("environment {name}"), "", one, other);
        }
    }
}

/// Versions of libraries that a run really loaded, as far as it says so; where they were found is none of it.
fn libraries(a: &Report, b: &Report, tally: &mut Tally) {
    let nccl = |report: &Report| -> BTreeSet<String> {
        let rows = report.reductions.iter().flat_map(|row| &row.notes);
        let notes = report.notes.iter().chain(rows);
        let versions = notes.filter_map(|note| {
            let version = note.strip_prefix("NCCL ")?.split_whitespace().next()?;
            version
                .starts_with(|c: char| c.is_ascii_digit())
                .then(|| version.to_string())
        });
        versions.collect()
    };
    let (one, other) = (nccl(a), nccl(b));
    if !one.is_empty() && !other.is_empty() {
        let words = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        tally.texts("NCCL version", "", &words(&one), &words(&other));
    }
}

fn yes(value: &bool) -> String {
    if *value { "yes" } else { "no" }.to_string()
}

fn size(bytes: &u64) -> String {
    match *bytes {
        u64::MAX => "unlimited".to_string(),
        bytes => amount(bytes),
    }
}

fn number<T: std::fmt::Display>(value: &T) -> String {
    value.to_string()
}

/// Named values, each compared by itself; one that only one side has is set there and unset on the other.
fn named(
    section: &str,
    a: BTreeMap<String, String>,
    b: BTreeMap<String, String>,
    tally: &mut Tally,
) {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names {
        let (a, b) = (a.get(name).cloned(), b.get(name).cloned());
        tally.values(&format!("{section} {name}"), "", a, b);
    }
}

fn driver(a: &Driver, b: &Driver, tally: &mut Tally) {
    tally.readings("driver version", "", &a.version, &b.version, number);
    tally.readings("driver flavour", "", &a.flavour, &b.flavour, number);
    tally.readings("NVML version", "", &a.nvml_version, &b.nvml_version, number);
    let cuda = |v: &i32| format!("{}.{}", v / 1000, v % 1000 / 10);
    tally.readings("CUDA version", "", &a.cuda_version, &b.cuda_version, cuda);
    match (a.params.known(), b.params.known()) {
        (Some(a), Some(b)) => named(
            "driver parameter",
            a.iter().cloned().collect(),
            b.iter().cloned().collect(),
            tally,
        ),
        _ => tally.readings("driver parameters", "", &a.params, &b.params, |_| {
            String::new()
        }),
    }
    let confidential = (&a.confidential_computing, &b.confidential_computing);
    tally.readings(
        "confidential computing",
        "",
        confidential.0,
        confidential.1,
        yes,
    );
    let mode = (&a.confidential_multi_gpu, &b.confidential_multi_gpu);
    tally.readings("confidential multi-GPU mode", "", mode.0, mode.1, number);
    tally.readings("nvidia_peermem loaded", "", &a.peermem, &b.peermem, yes);
    tally.readings(
        "HMM switched off",
        "",
        &a.hmm_disabled,
        &b.hmm_disabled,
        yes,
    );
    tally.readings(
        "IMEX channels",
        "",
        &a.imex_channels,
        &b.imex_channels,
        number,
    );
}

fn host(a: &Host, b: &Host, tally: &mut Tally) {
    tally.readings("kernel", "", &a.kernel, &b.kernel, number);
    tally.readings("BIOS", "", &a.bios, &b.bios, number);
    command_line(a, b, tally);
    let classes = |list: &Vec<String>| match list.as_slice() {
        [] => "none active".to_string(),
        names => names.join(" "),
    };
    tally.readings("IOMMUs", "", &a.iommu_classes, &b.iommu_classes, classes);
    tally.readings("distribution", "", &a.os, &b.os, number);
    tally.readings("system vendor", "", &a.dmi_vendor, &b.dmi_vendor, number);
    tally.readings("system product", "", &a.dmi_product, &b.dmi_product, number);
    tally.readings("CPU", "", &a.cpu_model, &b.cpu_model, number);
    tally.readings("logical CPUs", "", &a.logical_cpus, &b.logical_cpus, number);
    // The kernel keeps some of it to itself, more or less from boot to boot: whole GiB are compared.
    let gib = |bytes: &u64| format!("{} GiB", (bytes + (1 << 29)) >> 30);
    tally.readings("memory", "", &a.memory_bytes, &b.memory_bytes, gib);
    tally.readings("virtual machine", "", &a.hypervisor, &b.hypervisor, yes);
    tally.readings("WSL", "", &a.wsl, &b.wsl, yes);
    let container = |kind: &Option<String>| kind.clone().unwrap_or_else(|| "none seen".to_string());
    tally.readings("container", "", &a.container, &b.container, container);
    tally.readings("/dev/shm", "", &a.shm_bytes, &b.shm_bytes, size);
    tally.readings(
        "locked memory limit",
        "",
        &a.memlock_bytes,
        &b.memlock_bytes,
        size,
    );
    tally.readings("ptrace scope", "", &a.ptrace_scope, &b.ptrace_scope, number);
    tally.readings("seccomp mode", "", &a.seccomp, &b.seccomp, number);
    let balancing = (&a.numa_balancing, &b.numa_balancing);
    tally.readings("NUMA balancing", "", balancing.0, balancing.1, number);
    let mask = |mask: &u64| format!("{mask:#x}");
    tally.readings("capabilities", "", &a.capabilities, &b.capabilities, mask);
}

/// Word by word: a whole line of forty words hides the one that was added.
fn command_line(a: &Host, b: &Host, tally: &mut Tally) {
    let (Some(one), Some(other)) = (a.cmdline.known(), b.cmdline.known()) else {
        tally.readings("kernel command line", "", &a.cmdline, &b.cmdline, number);
        return;
    };
    let words = |line: &str| -> Vec<String> {
        line.split_whitespace()
            .filter(|word| !DISK_WORDS.iter().any(|disk| word.starts_with(disk)))
            .map(str::to_string)
            .collect()
    };
    let (one, other) = (words(one), words(other));
    let only = |list: &[String], rest: &[String]| -> String {
        let mut left = rest.to_vec();
        let alone = list.iter().filter(|word| {
            let found = left.iter().position(|other| other == *word);
            found.map(|at| left.remove(at)).is_none()
        });
        alone.cloned().collect::<Vec<_>>().join(" ")
    };
    let (only_one, only_other) = (only(&one, &other), only(&other, &one));
    let shown = |words: String| (!words.is_empty()).then_some(words);
    if only_one.is_empty() && only_other.is_empty() && one != other {
        // Where a word stands twice, the later one counts.
        let what = "kernel command line, order of words";
        tally.texts(what, "", &one.join(" "), &other.join(" "));
    } else {
        let what = "kernel command line, words of one side only";
        tally.values(what, "", shown(only_one), shown(only_other));
    }
}

fn fabric(a: &Snapshot, b: &Snapshot, tally: &mut Tally) {
    let count = |tally: &mut Tally, what: &str, a: usize, b: usize| {
        tally.texts(what, "", &a.to_string(), &b.to_string());
    };
    count(tally, "number of GPUs", a.gpus.len(), b.gpus.len());
    match (a.topology.class, b.topology.class) {
        (FabricClass::Unknown, FabricClass::Unknown) => {}
        (FabricClass::Unknown, _) => tally.one_sided("fabric class", "A", "the input cannot tell"),
        (_, FabricClass::Unknown) => tally.one_sided("fabric class", "B", "the input cannot tell"),
        (a, b) => tally.texts("fabric class", "", a.name(), b.name()),
    }
    let labels = (a.topology.flashinfer_label, b.topology.flashinfer_label);
    tally.texts(
        "FlashInfer label",
        "",
        &labels.0.to_string(),
        &labels.1.to_string(),
    );
    // An input without packages (a pasted table) does not say that there are none.
    let lists = [
        ("CPU packages", a.packages.len(), b.packages.len()),
        ("NUMA nodes", a.numa_nodes.len(), b.numa_nodes.len()),
    ];
    for (what, one, other) in lists {
        match (one, other) {
            (0, 0) => {}
            (0, _) => tally.one_sided(what, "A", "none were read"),
            (_, 0) => tally.one_sided(what, "B", "none were read"),
            (one, other) => count(tally, what, one, other),
        }
    }
    count(tally, "NVSwitches", a.nvswitches.len(), b.nvswitches.len());
    for node in &a.numa_nodes {
        let Some(other) = b.numa_nodes.iter().find(|n| n.os_index == node.os_index) else {
            continue;
        };
        let of = format!("NUMA node {}", node.os_index);
        if node.cpus.is_some() && other.cpus.is_some() {
            tally.values("CPUs", &of, node.cpus.clone(), other.cpus.clone());
        }
    }
}

fn gpus(a: &Snapshot, b: &Snapshot, matched: &Matched, tally: &mut Tally) {
    for found in &matched.matching.pairs {
        let (one, other) = (a.gpu(GpuIndex(found.a)), b.gpu(GpuIndex(found.b)));
        let Some((one, other)) = one.zip(other) else {
            continue;
        };
        let of = format!("GPU{}", found.a);
        // On two hosts all cards differ; on one, a card was replaced.
        if matched.relation == Relation::SameHost {
            tally.readings("card (UUID)", &of, &one.uuid, &other.uuid, number);
        }
        if found.by != MatchedBy::PciAddress {
            tally.readings("PCI address", &of, &one.pci, &other.pci, number);
        }
        gpu(one, other, &of, tally);
    }
}

fn rate(link: &PcieLink) -> String {
    format!("{} GT/s x{}", link.speed_gts, link.width)
}

fn gpu(a: &Gpu, b: &Gpu, of: &str, tally: &mut Tally) {
    tally.readings("product", of, &a.name, &b.name, number);
    let id = |i: &crate::model::pci::PciIdentity| format!("{:04x}:{:04x}", i.vendor, i.device);
    tally.readings("PCI id", of, &a.identity, &b.identity, id);
    let capability = |(major, minor): &(u32, u32)| format!("{major}.{minor}");
    let pair = (&a.compute_capability, &b.compute_capability);
    tally.readings("compute capability", of, pair.0, pair.1, capability);
    tally.readings("device memory", of, &a.memory_bytes, &b.memory_bytes, size);
    tally.readings("BAR1", of, &a.bar1_bytes, &b.bar1_bytes, size);
    let mask = |mask: &u64| format!("{mask:#x}");
    tally.readings(
        "sizes that BAR1 can take",
        of,
        &a.bar1_sizes,
        &b.bar1_sizes,
        mask,
    );
    // The rate now is no configuration: an idle GPU lowers it by design. Lanes stay.
    tally.readings("PCIe link at most", of, &a.link_max, &b.link_max, rate);
    let lanes = |link: &PcieLink| format!("x{}", link.width);
    tally.readings("PCIe lanes in use", of, &a.link_now, &b.link_now, lanes);
    let links = |list: &Vec<crate::model::snapshot::NvLink>| {
        format!(
            "{} of {} up",
            list.iter().filter(|l| l.active).count(),
            list.len()
        )
    };
    tally.readings("NVLinks", of, &a.nvlinks, &b.nvlinks, links);
    let fabric =
        |f: &crate::model::snapshot::FabricState| format!("{}, status {}", f.state, f.status);
    tally.readings("fabric state", of, &a.fabric, &b.fabric, fabric);
    let domain = |group: &crate::model::snapshot::IommuGroup| group.domain_type.clone();
    let domains = (
        a.iommu.clone().map(|g| domain(&g)),
        b.iommu.clone().map(|g| domain(&g)),
    );
    let flat = |reading: crate::model::reading::Reading<crate::model::reading::Reading<String>>| {
        use crate::model::reading::Reading;
        match reading {
            Reading::Known(inner) => inner,
            Reading::Absent(absence) => Reading::Absent(absence),
        }
    };
    tally.readings(
        "IOMMU domain",
        of,
        &flat(domains.0),
        &flat(domains.1),
        number,
    );
    tally.readings("NUMA node", of, &a.numa_node, &b.numa_node, number);
    tally.readings("CPU package", of, &a.package, &b.package, number);
    tally.readings("CPU affinity", of, &a.cpu_affinity, &b.cpu_affinity, number);
    tally.readings("root bus", of, &a.root_bus, &b.root_bus, number);
    let chain = |list: &Vec<crate::model::pci::PciAddress>| match list.as_slice() {
        [] => "none".to_string(),
        all => all
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" "),
    };
    tally.readings("bridges above", of, &a.bridge_chain, &b.bridge_chain, chain);
    let option = |value: &Option<bool>| value.map_or("no capability".to_string(), |v| yes(&v));
    tally.readings("ATS on", of, &a.ats, &b.ats, option);
    let clique = |value: &Option<u32>| value.map_or("none".to_string(), |v| v.to_string());
    tally.readings("GPUDirect clique", of, &a.p2p_clique, &b.p2p_clique, clique);
    tally.readings("ECC", of, &a.ecc_enabled, &b.ecc_enabled, yes);
    tally.readings("MIG mode", of, &a.mig_enabled, &b.mig_enabled, yes);
    tally.readings(
        "virtualization",
        of,
        &a.virtualization,
        &b.virtualization,
        number,
    );
    let rows = |r: &crate::model::snapshot::RemappedRows| match (r.failed, r.pending) {
        (true, _) => "a remapping failed".to_string(),
        (false, true) => "a remapping waits for a reset".to_string(),
        (false, false) => "none failed or waiting".to_string(),
    };
    tally.readings(
        "remapped rows",
        of,
        &a.remapped_rows,
        &b.remapped_rows,
        rows,
    );
}

fn paths(a: &Snapshot, b: &Snapshot, matched: &Matched, tally: &mut Tally) {
    for (one, other) in matched.pairs() {
        let of = one.to_string();
        match (a.topology.pairs.get(one), b.topology.pairs.get(other)) {
            (Some(a), Some(b)) => tally.texts("path", &of, &a.label(), &b.label()),
            (None, Some(_)) => tally.one_sided("paths of pairs", "A", "not in the input"),
            (Some(_), None) => tally.one_sided("paths of pairs", "B", "not in the input"),
            (None, None) => {}
        }
        let Some((a, b)) = a.claims.get(one).zip(b.claims.get(other)) else {
            continue;
        };
        tally.readings("NVML's claim, reads", &of, &a.p2p_read, &b.p2p_read, number);
        tally.readings(
            "NVML's claim, writes",
            &of,
            &a.p2p_write,
            &b.p2p_write,
            number,
        );
        tally.readings(
            "NVML's claim, NVLink",
            &of,
            &a.p2p_nvlink,
            &b.p2p_nvlink,
            number,
        );
        tally.readings(
            "NVML's claim, atomics",
            &of,
            &a.p2p_atomics,
            &b.p2p_atomics,
            number,
        );
        tally.readings("NVML's claim, PCIe", &of, &a.p2p_pcie, &b.p2p_pcie, number);
        cuda(&a.cuda, &b.cuda, &of, tally);
    }
}

fn cuda(a: &CudaClaims, b: &CudaClaims, of: &str, tally: &mut Tally) {
    // Reports of older versions do not hold them.
    if a.is_unasked() || b.is_unasked() {
        if a.is_unasked() != b.is_unasked() {
            let side = if a.is_unasked() { "A" } else { "B" };
            tally.one_sided("CUDA's claims", side, "not in the report");
        }
        return;
    }
    let claims = [
        ("access", &a.can_access, &b.can_access),
        ("access attribute", &a.access, &b.access),
        ("native atomics", &a.native_atomics, &b.native_atomics),
        ("array access", &a.array_access, &b.array_access),
        (
            "only some atomics",
            &a.only_partial_atomics,
            &b.only_partial_atomics,
        ),
    ];
    for (what, one, other) in claims {
        tally.readings(&format!("CUDA's claim, {what}"), of, one, other, yes);
    }
    let rank = (&a.performance_rank, &b.performance_rank);
    tally.readings("CUDA's claim, rank", of, rank.0, rank.1, number);
}

fn bridges(a: &Snapshot, b: &Snapshot, tally: &mut Tally) {
    match (a.bridges.is_empty(), b.bridges.is_empty()) {
        (true, true) => return,
        (true, false) => return tally.one_sided("bridges", "A", "none were read"),
        (false, true) => return tally.one_sided("bridges", "B", "none were read"),
        (false, false) => {}
    }
    let kind = |bridge: &Bridge| {
        let id = bridge.identity.known();
        let by_id = id.map(|i| format!("{:04x}:{:04x}", i.vendor, i.device));
        bridge
            .chip
            .clone()
            .or(by_id)
            .unwrap_or_else(|| "a bridge".to_string())
    };
    for one in &a.bridges {
        let of = one.pci.to_string();
        let Some(other) = b.bridge(one.pci) else {
            tally.values("bridge", &of, Some(kind(one)), None);
            continue;
        };
        tally.texts("bridge", &of, &kind(one), &kind(other));
        let acs = |word: &crate::model::snapshot::AcsControl| match word.bits().as_slice() {
            [] => "off".to_string(),
            bits => bits.join(" "),
        };
        tally.readings("ACS control", &of, &one.acs, &other.acs, acs);
        tally.readings(
            "PCIe link at most",
            &of,
            &one.link_max,
            &other.link_max,
            rate,
        );
        let lanes = |link: &PcieLink| format!("x{}", link.width);
        tally.readings(
            "PCIe lanes in use",
            &of,
            &one.link_now,
            &other.link_now,
            lanes,
        );
    }
    for other in b
        .bridges
        .iter()
        .filter(|bridge| a.bridge(bridge.pci).is_none())
    {
        tally.values("bridge", &other.pci.to_string(), None, Some(kind(other)));
    }
}

fn adapters(a: &Snapshot, b: &Snapshot, tally: &mut Tally) {
    let key = |nic: &Nic| {
        nic.pci
            .known()
            .map_or_else(|| nic.name.clone(), ToString::to_string)
    };
    let list = |snapshot: &Snapshot| -> BTreeMap<String, String> {
        let place = |nic: &Nic| match nic.numa_node.known() {
            Some(node) => format!("NUMA node {node}"),
            None => "there".to_string(),
        };
        snapshot
            .nics
            .iter()
            .map(|nic| (key(nic), place(nic)))
            .collect()
    };
    let (one, other) = (list(a), list(b));
    let all: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for nic in all {
        let (a, b) = (one.get(nic).cloned(), other.get(nic).cloned());
        tally.values("network adapter", nic, a, b);
    }
}
