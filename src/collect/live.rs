//! This host as a snapshot: asks NVML, hwloc, sysfs and the kernel side by side and joins their answers by PCI address.
//!
//! Nothing here fails as a whole. A source that cannot be read leaves one note and absent fields; a source that panics
//! does the same. Only ever reads.
//!
//! Who is believed: the kernel for the PCI hierarchy, NUMA nodes and IOMMU groups; NVML for what the GPU itself knows,
//! its own PCIe link included (in a guest the configuration space can be the hypervisor's invention); hwloc for packages
//! and NUMA nodes, and as a second opinion on the hierarchy. A difference is a disagreement in the snapshot.
//!
//! NVML and hwloc can block for minutes on a broken host, so this runs in a worker with a deadline. The worker's parent
//! sets [`hwloc::COMPONENTS_VARIABLE`].

use super::{
    hwloc::{self, Attachment, HwlocView},
    kernel_log::{self, KernelLog},
    nvml::{self, NvmlView},
    observe::Observer,
    processors,
    sysfs::{self, PciGpu, PciView},
    system, topology,
};
use crate::model::{
    pair::{OrderedPair, PairTable},
    pci::PciAddress,
    reading::{Absence, Reading},
    snapshot::{
        Authenticity, Driver, Gpu, Host, NvLinkEnd, Origin, PairClaims, Snapshot, SourceNote,
    },
    topology::Disagreement,
};
use std::{
    path::PathBuf,
    thread::{self, ScopedJoinHandle},
    time::Instant,
};

/// Where the host's files are.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    /// `None`: the running host. With a folder, all of /sys, /proc, /dev/kmsg, /etc and hwloc.xml come from below it
    /// (a simulated or recorded host); NVML still comes from wherever the loader finds it.
    pub root: Option<PathBuf>,
}

impl Roots {
    /// The place of `relative` ("sys/bus/pci/devices") on this host.
    pub fn path(&self, relative: &str) -> PathBuf {
        match &self.root {
            Some(root) => root.join(relative),
            None => PathBuf::from("/").join(relative),
        }
    }
}

/// How much is asked. NVML answers one question at a time, and some take milliseconds each (docs/hardware-log.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// What a map shows: devices, links, paths and claims.
    Map,
    /// Counters and capabilities that a run judges, too.
    Full,
}

/// A result and how long it took, in milliseconds of wall time.
struct Timed<T> {
    result: Result<T, Absence>,
    took_ms: f64,
}

fn timed<T>(work: impl FnOnce() -> Result<T, Absence>) -> Timed<T> {
    let start = Instant::now();
    let result = work();
    Timed {
        result,
        took_ms: milliseconds_since(start),
    }
}

/// Whole microseconds, as milliseconds: finer digits are noise.
fn milliseconds_since(start: Instant) -> f64 {
    start.elapsed().as_micros() as f64 / 1e3
}

/// Waits for a reader; one that panicked is a failed source.
fn finish<T>(reader: ScopedJoinHandle<'_, Timed<T>>) -> Timed<T> {
    reader.join().unwrap_or_else(|_| Timed {
        result: Err(Absence::Failed("the reader panicked".to_string())),
        took_ms: 0.0,
    })
}

/// Everything that was read, before the join.
struct Sources {
    nvml_init_ms: f64,
    nvml: Timed<NvmlView>,
    pci: Timed<PciView>,
    hwloc: Timed<HwlocView>,
    host: Timed<(Host, Driver)>,
    log: Timed<KernelLog>,
}

/// Reads this host once.
pub fn collect(roots: &Roots) -> Snapshot {
    collect_and_observe(roots, Depth::Full).0
}

/// Reads this host once and keeps NVML open, because initialising it again would cost as much as all the rest.
pub fn collect_and_observe(roots: &Roots, depth: Depth) -> (Snapshot, Observer) {
    let start = Instant::now();
    let (sources, session) = thread::scope(|scope| {
        let pci = scope.spawn(|| timed(|| sysfs::read(roots)));
        let hwloc = scope.spawn(|| timed(|| read_hwloc(roots)));
        let host =
            scope.spawn(|| timed(|| Ok((system::read_host(roots), system::read_driver(roots)))));
        let log = scope.spawn(|| timed(|| kernel_log::read(roots)));
        let opened = timed(nvml::open);
        let asked = timed(|| match &opened.result {
            Ok(session) => nvml::read(session, roots, depth),
            Err(absence) => Err(absence.clone()),
        });
        let sources = Sources {
            nvml_init_ms: opened.took_ms,
            nvml: asked,
            pci: finish(pci),
            hwloc: finish(hwloc),
            host: finish(host),
            log: finish(log),
        };
        (sources, opened.result)
    });
    let mut snapshot = join(roots, sources);
    let whole_ms = milliseconds_since(start);
    snapshot.sources.push(SourceNote {
        source: "all sources and their join".to_string(),
        result: Reading::Known(format!("GPUs: {}", snapshot.gpus.len())),
        took_ms: whole_ms,
    });
    let observer = Observer::new(session, roots.clone(), &snapshot);
    (snapshot, observer)
}

fn read_hwloc(roots: &Roots) -> Result<HwlocView, Absence> {
    let gpu_memory = sysfs::gpu_memory_nodes(roots);
    match &roots.root {
        Some(_) => hwloc::read_xml(&roots.path("hwloc.xml"), &gpu_memory),
        None => hwloc::read_live(&gpu_memory),
    }
}

/// Joins all sources by PCI address.
fn join(roots: &Roots, sources: Sources) -> Snapshot {
    let mut snapshot = Snapshot::empty(Origin::Live);
    snapshot.sources = notes(roots, &sources);
    snapshot.taken_at = Some(jiff::Timestamp::now().to_string());
    snapshot.environment = system::own_steering_variables();
    let mut disagreements = Vec::new();

    let no_nvml = sources.nvml.result.as_ref().err().cloned();
    let (host, kernel_driver) = sources.host.result.unwrap_or_default();
    snapshot.host = host;
    snapshot.host.kernel_log = match sources.log.result {
        Ok(log) => Reading::Known(log.lines),
        Err(absence) => Reading::Absent(absence),
    };

    let no_pci = sources.pci.result.as_ref().err().cloned();
    let hwloc = sources.hwloc.result.unwrap_or_default();
    let pci = match sources.pci.result {
        Ok(view) => view,
        Err(_) => hwloc.as_pci_view(),
    };
    snapshot.packages = hwloc.packages.clone();
    snapshot.numa_nodes = hwloc.numa_nodes.clone();
    if snapshot.packages.is_empty() {
        (snapshot.packages, snapshot.numa_nodes) = processors::read(roots);
    }

    let nvml = match sources.nvml.result {
        Ok(view) => view,
        Err(why) => NvmlView::nothing(&why),
    };
    snapshot.authenticity = match roots.root {
        // The files of another folder are not this host's, whatever the driver is.
        Some(_) => Authenticity::Simulated,
        None => nvml.authenticity,
    };
    snapshot.driver = join_driver(kernel_driver, nvml.driver, &mut disagreements);
    let listed = Listed {
        gpus: nvml.gpus,
        claims: nvml.claims,
        silent: nvml.silent.into_iter().map(|(_, why)| why).collect(),
        nothing: no_nvml,
    };
    let (gpus, claims) = join_gpus(listed, &pci, &hwloc, no_pci);
    snapshot.gpus = gpus;
    snapshot.claims = claims;
    snapshot.bridges = pci.bridges;
    snapshot.nics = pci.nics;
    snapshot.nvswitches = pci.nvswitches;
    snapshot.host_bridges = pci.host_bridges;
    name_far_ends(&mut snapshot);
    fill_packages(&mut snapshot);
    compare_with_hwloc(&snapshot, &hwloc, &mut disagreements);
    topology::join(&mut snapshot);
    snapshot.topology.disagreements.extend(disagreements);
    snapshot
}

/// One line per source.
fn notes(roots: &Roots, sources: &Sources) -> Vec<SourceNote> {
    fn note<T>(source: &str, timed: &Timed<T>, say: impl FnOnce(&T) -> String) -> SourceNote {
        SourceNote {
            source: source.to_string(),
            result: match &timed.result {
                Ok(value) => Reading::Known(say(value)),
                Err(absence) => Reading::Absent(absence.clone()),
            },
            took_ms: timed.took_ms,
        }
    }
    let mut notes = vec![
        SourceNote {
            source: "nvml init".to_string(),
            result: match &sources.nvml.result {
                Ok(_) => Reading::Known("initialised".to_string()),
                Err(absence) => Reading::Absent(absence.clone()),
            },
            took_ms: sources.nvml_init_ms,
        },
        note("nvml", &sources.nvml, |view| {
            let mut text = format!("GPUs: {}", view.gpus.len());
            for (index, error) in &view.refused {
                text += &format!("; GPU {index} not handed out: {error}");
            }
            for (index, why) in &view.silent {
                text += &format!("; GPU {index}: {why}");
            }
            text
        }),
        note(topology::PCI_SOURCE, &sources.pci, |view| {
            let mut text = format!(
                "functions: {}; GPUs: {}; bridges: {}; adapters: {}; NVSwitches: {}",
                view.functions,
                view.gpus.len(),
                view.bridges.len(),
                view.nics.len(),
                view.nvswitches.len()
            );
            if view.virtual_functions > 0 {
                text += &format!("; virtual functions left out: {}", view.virtual_functions);
            }
            text
        }),
        note("hwloc", &sources.hwloc, |view| {
            let mut text = format!(
                "packages: {}; NUMA nodes: {}; PCI objects: {}",
                view.packages.len(),
                view.numa_nodes.len(),
                view.devices.len()
            );
            if let Some(note) = &view.note {
                text += &format!("; {note}");
            }
            text
        }),
        note("host", &sources.host, |_| "kernel, CPU, limits".to_string()),
        note("kernel log", &sources.log, |log| {
            let mut text = format!(
                "{} of {} records matter",
                log.lines.len() + log.left_out,
                log.records
            );
            if log.left_out > 0 {
                text += &format!("; {} of them left out", log.left_out);
            }
            text
        }),
    ];
    if let Some(root) = &roots.root {
        notes.push(SourceNote {
            source: "root".to_string(),
            result: Reading::Known(format!("files come from below {}", root.display())),
            took_ms: 0.0,
        });
    }
    notes
}

/// Version from NVML where it answers, else from the kernel module; the rest from whoever knows it.
fn join_driver(kernel: Driver, nvml: Driver, disagreements: &mut Vec<Disagreement>) -> Driver {
    if let (Some(module), Some(library)) = (kernel.version.known(), nvml.version.known())
        && module != library
    {
        disagreements.push(Disagreement {
            about: "driver version".to_string(),
            claims: vec![
                ("NVML".to_string(), library.clone()),
                ("/proc/driver/nvidia/version".to_string(), module.clone()),
            ],
            resolution: "NVML, which the GPUs are asked through; reload the driver if it was updated under way"
                .to_string(),
        });
    }
    Driver {
        version: first_known(nvml.version, kernel.version),
        flavour: kernel.flavour,
        params: kernel.params,
        peermem: kernel.peermem,
        hmm_disabled: kernel.hmm_disabled,
        imex_channels: kernel.imex_channels,
        ..nvml
    }
}

/// The first that is known, else the first absence.
fn first_known<T>(first: Reading<T>, second: Reading<T>) -> Reading<T> {
    match (&first, &second) {
        (Reading::Absent(_), Reading::Known(_)) => second,
        _ => first,
    }
}

/// What NVML told of GPUs.
struct Listed {
    gpus: Vec<Gpu>,
    claims: PairTable<PairClaims>,
    /// Reasons of those that it counts and for which it did not answer; it did not tell their addresses either.
    silent: Vec<Absence>,
    /// Why it told nothing at all.
    nothing: Option<Absence>,
}

/// GPUs of NVML and of the PCI tree as one list in PCI order, with NVML's claims moved along.
fn join_gpus(
    listed: Listed,
    pci: &PciView,
    hwloc: &HwlocView,
    no_pci: Option<Absence>,
) -> (Vec<Gpu>, PairTable<PairClaims>) {
    let Listed {
        gpus: from_nvml,
        claims,
        silent,
        nothing: no_nvml,
    } = listed;
    let address = |gpu: &Gpu| gpu.pci.known().copied();
    let mut joined: Vec<(Option<u32>, Gpu)> = Vec::new();
    let listed: Vec<PciAddress> = from_nvml.iter().filter_map(address).collect();
    for (position, gpu) in (0_u32..).zip(from_nvml) {
        let place = address(&gpu);
        let found = place.and_then(|place| pci.gpus.get(&place));
        let hung = place.and_then(|place| hwloc.devices.get(&place));
        joined.push((Some(position), join_gpu(gpu, found, hung, no_pci.as_ref())));
    }
    let unlisted = || pci.gpus.iter().filter(|(place, _)| !listed.contains(place));
    let drivers_own = |found: &PciGpu| found.bound_to.as_deref() == Some("nvidia");
    // As many as are silent: they are those.
    let told_apart = unlisted().filter(|(_, found)| drivers_own(found)).count() == silent.len();
    for (place, found) in unlisted() {
        let stuck = silent
            .first()
            .filter(|_| told_apart && drivers_own(found))
            .cloned();
        let why = no_nvml.clone().or(stuck).unwrap_or_else(|| {
            Absence::SourceMissing(match &found.bound_to {
                Some(driver) if driver == "nvidia" => {
                    "NVML does not list this GPU: hidden from this container, or refused by the driver"
                        .to_string()
                }
                Some(driver) => format!("NVML does not list this GPU: it is bound to {driver}"),
                None => "NVML does not list this GPU: no driver is bound to it".to_string(),
            })
        });
        let gpu = Gpu {
            pci: Reading::Known(*place),
            ..nvml::unanswered(&why)
        };
        let hung = hwloc.devices.get(place);
        joined.push((None, join_gpu(gpu, Some(found), hung, no_pci.as_ref())));
    }
    for why in silent.iter().filter(|_| !told_apart) {
        let gpu = nvml::unanswered(why);
        joined.push((None, join_gpu(gpu, None, None, no_pci.as_ref())));
    }
    // GPUs without an address (NVML refused even that) come last, in NVML's order.
    joined.sort_by_key(|(position, gpu)| {
        let place = address(gpu);
        (place.is_none(), place, *position)
    });
    let mut moved = PairTable::new(joined.len() as u32);
    for pair in OrderedPair::all(joined.len() as u32) {
        let old = |at: usize| joined.get(at).and_then(|(position, _)| *position);
        let cell = old(pair.source.at())
            .zip(old(pair.destination.at()))
            .and_then(|(source, destination)| OrderedPair::new(source, destination))
            .and_then(|old| claims.get(old));
        if let Some(cell) = cell {
            moved.set(pair, cell.clone());
        }
    }
    let gpus = (0..)
        .zip(joined)
        .map(|(at, (_, gpu))| Gpu {
            label: format!("GPU{at}"),
            ..gpu
        })
        .collect();
    (gpus, moved)
}

fn join_gpu(
    nvml: Gpu,
    found: Option<&PciGpu>,
    hung: Option<&Attachment>,
    no_pci: Option<&Absence>,
) -> Gpu {
    let kernel = match found {
        Some(found) => found.gpu.clone(),
        None => {
            let why = no_pci.cloned().unwrap_or_else(|| {
                Absence::SourceMissing("the kernel's PCI list does not show this GPU".to_string())
            });
            sysfs::unlisted(&why)
        }
    };
    let from_hwloc = hung.map_or_else(
        || kernel.bridge_chain.clone(),
        |hung| Reading::Known(hung.chain.clone()),
    );
    Gpu {
        identity: kernel.identity,
        bar1_bytes: first_known(nvml.bar1_bytes, kernel.bar1_bytes),
        link_now: first_known(nvml.link_now, kernel.link_now),
        link_max: first_known(nvml.link_max, kernel.link_max),
        numa_node: kernel.numa_node,
        bridge_chain: first_known(kernel.bridge_chain, from_hwloc),
        root_bus: kernel.root_bus,
        iommu: kernel.iommu,
        cpu_affinity: kernel.cpu_affinity,
        p2p_clique: kernel.p2p_clique,
        aer: kernel.aer,
        ats: kernel.ats,
        bar1_sizes: kernel.bar1_sizes,
        package: match hung {
            Some(hung) => match hung.package {
                Some(package) => Reading::Known(package),
                None => Reading::Absent(Absence::NotSupported(
                    "hwloc attaches this GPU to several packages".to_string(),
                )),
            },
            None => Reading::Absent(Absence::SourceMissing(
                "hwloc does not show this GPU".to_string(),
            )),
        },
        ..nvml
    }
}

/// NVLink ends that NVML does not name, by their address.
fn name_far_ends(snapshot: &mut Snapshot) {
    let gpus: Vec<PciAddress> = snapshot
        .gpus
        .iter()
        .filter_map(|gpu| gpu.pci.known().copied())
        .collect();
    for gpu in &mut snapshot.gpus {
        let Reading::Known(links) = &mut gpu.nvlinks else {
            continue;
        };
        for link in links {
            let (NvLinkEnd::Unknown, Some(remote)) = (link.remote_kind, link.remote) else {
                continue;
            };
            if gpus.contains(&remote) {
                link.remote_kind = NvLinkEnd::Gpu;
            } else if snapshot.nvswitches.contains(&remote) {
                link.remote_kind = NvLinkEnd::Switch;
            }
        }
    }
}

/// Where hwloc gave no package, the NUMA node of the slot does, if only one package has that node.
fn fill_packages(snapshot: &mut Snapshot) {
    for gpu in &mut snapshot.gpus {
        if gpu.package.known().is_some() {
            continue;
        }
        let node = gpu.numa_node.known().and_then(|n| u32::try_from(*n).ok());
        let mut owners = snapshot
            .packages
            .iter()
            .filter(|package| node.is_some_and(|n| package.numa_nodes.contains(&n)));
        if let (Some(owner), None) = (owners.next(), owners.next()) {
            gpu.package = Reading::Known(owner.os_index);
        }
    }
}

/// hwloc reads the same kernel, so a difference means that one of the two readers, or a recorded file, is wrong.
fn compare_with_hwloc(
    snapshot: &Snapshot,
    hwloc: &HwlocView,
    disagreements: &mut Vec<Disagreement>,
) {
    let words = |chain: &[PciAddress]| match chain {
        [] => "directly below a host bridge".to_string(),
        bridges => {
            let names: Vec<String> = bridges.iter().map(ToString::to_string).collect();
            names.join(" < ")
        }
    };
    for gpu in &snapshot.gpus {
        let Some(place) = gpu.pci.known() else {
            continue;
        };
        let Some(hung) = hwloc.devices.get(place) else {
            continue;
        };
        let mut differ = |what: &str, kernel: String, other: String| {
            disagreements.push(Disagreement {
                about: format!("{what} {} ({place})", gpu.label),
                claims: vec![("sysfs".to_string(), kernel), ("hwloc".to_string(), other)],
                resolution: "sysfs, which is the kernel's own hierarchy".to_string(),
            });
        };
        if let Some(chain) = gpu.bridge_chain.known()
            && *chain != hung.chain
        {
            differ("bridges above", words(chain), words(&hung.chain));
        }
        if let Some(node) = gpu.numa_node.known().and_then(|n| u32::try_from(*n).ok())
            && !hung.numa_nodes.is_empty()
            && !hung.numa_nodes.contains(&node)
        {
            differ(
                "NUMA node of",
                node.to_string(),
                hwloc::ranges(&hung.numa_nodes),
            );
        }
    }
}

/// Why a GPU counts as in use, if it does: compute processes, or memory that no visible process explains. A display
/// server alone is no use: it is a graphics process, and what it holds is explained.
///
/// The bound for unexplained memory is the larger of 600 MiB and 1% of the GPU. NVML since R510 counts the driver's
/// own reserve apart, so an idle GPU shows a few MiB; older drivers count it in, which is about 300 to 600 MiB on
/// data centre parts (below 1% of those above 60 GiB), while an engine behind a container's process namespace holds
/// many GiB. On very small (simulated) GPUs a quarter of the memory is the bound. Nothing known gives `None`: whoever
/// asks must look at `compute_processes` for an absence.
pub fn in_use(gpu: &Gpu) -> Option<String> {
    const MIB: u64 = 1 << 20;
    if let Some([first, rest @ ..]) = gpu.compute_processes.known().map(Vec::as_slice) {
        let name = first.name.as_deref().unwrap_or("name not visible");
        let more = match rest.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        return Some(format!("compute process {} ({name}){more}", first.pid));
    }
    let used = *gpu.memory_used_bytes.known()?;
    let total = gpu.memory_bytes.known().copied().unwrap_or(u64::MAX);
    let bound = (total / 100).max(600 * MIB).min(total / 4);
    let explained = match gpu.graphics_processes.known() {
        Some(processes) => processes.iter().fold(0_u64, |sum, process| {
            // A process whose size is not told explains everything.
            sum.saturating_add(process.used_bytes.unwrap_or(u64::MAX))
        }),
        None => 0,
    };
    let unexplained = used.saturating_sub(explained);
    (unexplained > bound).then(|| {
        format!(
            "{} MiB in use with no process visible",
            unexplained.div_ceil(MIB)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::GpuProcess;

    const GIB: u64 = 1 << 30;

    fn idle(total: u64) -> Gpu {
        Gpu {
            memory_bytes: Reading::Known(total),
            memory_used_bytes: Reading::Known(4 << 20),
            compute_processes: Reading::Known(Vec::new()),
            graphics_processes: Reading::Known(Vec::new()),
            ..Gpu::default()
        }
    }

    fn process(used_bytes: Option<u64>) -> GpuProcess {
        GpuProcess {
            pid: 77,
            name: Some("python".to_string()),
            used_bytes,
        }
    }

    #[test]
    fn what_counts_as_in_use() {
        assert_eq!(in_use(&idle(141 * GIB)), None);
        let mut serving = idle(141 * GIB);
        serving.compute_processes = Reading::Known(vec![process(None), process(None)]);
        assert_eq!(
            in_use(&serving).unwrap(),
            "compute process 77 (python) and 1 more"
        );
        let mut hidden = idle(141 * GIB);
        hidden.memory_used_bytes = Reading::Known(120 * GIB);
        assert!(in_use(&hidden).unwrap().contains("no process visible"));
        let mut desktop = idle(24 * GIB);
        desktop.memory_used_bytes = Reading::Known(3 * GIB);
        desktop.graphics_processes = Reading::Known(vec![process(Some(3 * GIB - (100 << 20)))]);
        assert_eq!(in_use(&desktop), None);
        let mut old_driver = idle(80 * GIB);
        old_driver.memory_used_bytes = Reading::Known(700 << 20);
        assert_eq!(in_use(&old_driver), None);
        let mut simulated = idle(64 << 20);
        assert_eq!(in_use(&simulated), None);
        simulated.memory_used_bytes = Reading::Known(40 << 20);
        assert!(in_use(&simulated).is_some());
        assert_eq!(in_use(&Gpu::default()), None);
    }
}
