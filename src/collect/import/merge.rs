//! Several partial snapshots of one host as one: GPUs are matched by PCI address, else by NVML's index, else by order where
//! the numbers agree. The first source of a reading is followed; one that says something else is a disagreement with both
//! places named, never dropped. Texts that cannot be of that host (`identity`) are not joined at all.

use super::{
    host_text::Domains,
    identity,
    part::{MOST_GPUS, Part},
};
use crate::{
    collect::{chips, topology},
    model::{
        pair::{OrderedPair, PairTable},
        pci::PciAddress,
        reading::Reading,
        snapshot::{
            CudaClaims, Driver, Gpu, Host, IommuGroup, Origin, PairClaims, Snapshot, SourceNote,
        },
        ticket::{Citation, RemarkKind, Ticket},
        topology::Disagreement,
    },
};
use std::collections::BTreeMap;

/// Stands for the number of an IOMMU group that no text names, where all groups are of one type.
const UNNAMED_GROUP: u32 = u32::MAX;
/// Most disagreements that are kept.
const MOST_DISAGREEMENTS: usize = 64;
/// Most lines of logs that are kept.
const MOST_LOG_LINES: usize = 512;

/// Fills readings and remembers where they differ.
struct Filler {
    disagreements: Vec<Disagreement>,
    /// Source of each reading that was filled.
    origin: BTreeMap<String, String>,
    /// The report among the inputs.
    base: String,
    source: String,
}

impl Filler {
    fn fill<T: Clone>(
        &mut self,
        about: &str,
        into: &mut Reading<T>,
        from: &Reading<T>,
        show: impl Fn(&T) -> String,
        same: impl Fn(&T, &T) -> bool,
    ) {
        match (&*into, from) {
            (Reading::Known(old), Reading::Known(new)) => {
                if !same(old, new) && self.disagreements.len() < MOST_DISAGREEMENTS {
                    // What no text filled in stood in the report already.
                    let first = self.origin.get(about).unwrap_or(&self.base).clone();
                    self.disagreements.push(Disagreement {
                        about: about.to_string(),
                        claims: vec![(first, show(old)), (self.source.clone(), show(new))],
                        resolution: "the one that was given first; are all files from one host and one time?"
                            .to_string(),
                    });
                }
            }
            (Reading::Absent(_), Reading::Known(_)) => {
                *into = from.clone();
                self.origin.insert(about.to_string(), self.source.clone());
            }
            // A reason is better than "not in the input".
            (Reading::Absent(old), Reading::Absent(new)) => {
                use crate::model::reading::Absence;
                if *old == Absence::NotInInput && *new != Absence::NotInInput {
                    *into = from.clone();
                }
            }
            (Reading::Known(_), Reading::Absent(_)) => {}
        }
    }

    /// Values that must agree.
    fn agree<T: Clone + PartialEq + std::fmt::Debug>(
        &mut self,
        about: &str,
        into: &mut Reading<T>,
        from: &Reading<T>,
    ) {
        let show = |v: &T| {
            format!("{v:?}")
                .trim_matches('"')
                .chars()
                .take(120)
                .collect()
        };
        self.fill(about, into, from, show, T::eq);
    }

    /// Values that change by themselves or are counted in another way.
    fn first<T: Clone>(&mut self, about: &str, into: &mut Reading<T>, from: &Reading<T>) {
        self.fill(about, into, from, |_| String::new(), |_, _| true);
    }

    /// Texts of which one may be cut.
    fn text(&mut self, about: &str, into: &mut Reading<String>, from: &Reading<String>) {
        let bare = |t: &str| t.trim_end_matches('.').trim().to_string();
        let related = |a: &String, b: &String| {
            let (a, b) = (bare(a), bare(b));
            a.starts_with(&b) || b.starts_with(&a)
        };
        self.fill(
            about,
            into,
            from,
            |t| t.chars().take(120).collect(),
            related,
        );
        if let (Reading::Known(old), Reading::Known(new)) = (&*into, from)
            && related(old, new)
            && bare(new).len() > bare(old).len()
        {
            *into = from.clone();
        }
    }
}

/// Joins all parts, in the order given.
pub(super) fn join(
    parts: Vec<(String, Part)>,
    base: Option<(String, Snapshot)>,
    domains: &Domains,
    ticket: &mut Ticket,
) -> Snapshot {
    let alone = base.is_some() && parts.is_empty();
    let (name, mut snapshot) = base.unwrap_or_else(|| {
        let mut kinds: Vec<&str> = Vec::new();
        for input in &ticket.inputs {
            if !kinds.contains(&input.kind.as_str()) && kinds.len() < 12 {
                kinds.push(&input.kind);
            }
        }
        let mut files: Vec<&str> = Vec::new();
        for (_, part) in &parts {
            if !files.contains(&part.file.as_str()) && files.len() < 12 {
                files.push(&part.file);
            }
        }
        let origin = Origin::Recorded {
            format: kinds.join(", "),
            file: files.join(", "),
        };
        (String::new(), Snapshot::empty(origin))
    });
    if alone {
        return snapshot;
    }
    let mut filler = Filler {
        disagreements: Vec::new(),
        origin: BTreeMap::new(),
        base: name.clone(),
        source: name.clone(),
    };
    let base = (!name.is_empty()).then_some((name.as_str(), &snapshot));
    let apart = identity::apart(base, &parts);
    ticket.hosts = apart.sentences;
    ticket.left_out = apart.names;
    let mut at = 0..;
    let mut parts = parts;
    parts.retain(|_| at.next().is_none_or(|at| !apart.parts.contains(&at)));
    line_up(&mut snapshot, &parts);
    ticket.assumed = assumed(&snapshot, &parts);
    for (source, part) in parts {
        filler.source = source;
        one(&mut snapshot, &mut filler, part, ticket);
    }
    iommu(&mut snapshot, domains, ticket);
    name_by_lspci(&mut snapshot, ticket);
    snapshot
        .topology
        .disagreements
        .append(&mut filler.disagreements);
    let found = std::mem::take(&mut snapshot.topology.disagreements);
    topology::join(&mut snapshot);
    // Joining writes its own list; what the files disagree about comes first.
    let own = std::mem::take(&mut snapshot.topology.disagreements);
    let mut all = found;
    for one in own {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    snapshot.topology.disagreements = all;
    snapshot
}

/// Names of GPUs that no driver named: what lspci calls them, else the part of their ids. Last of all, because lspci and the driver
/// spell one product differently.
fn name_by_lspci(snapshot: &mut Snapshot, ticket: &Ticket) {
    for gpu in &mut snapshot.gpus {
        let Some(pci) = gpu.pci.known().filter(|_| gpu.name.known().is_none()) else {
            continue;
        };
        let about = format!("GPU {pci}");
        let titles = ticket.citations.iter().filter(|c| c.about == about);
        let listed = titles.filter_map(|c| bracketed(&c.value)).next();
        let part = gpu.identity.known().and_then(|ids| chips::part(*ids));
        let name = listed.or_else(|| part.map(|part| part.name.to_string()));
        if let Some(name) = name {
            gpu.name = Reading::Known(name);
        }
    }
}

/// "GB202GL [RTX PRO 6000 Blackwell Server Edition] (rev a1)": the product, which ids in brackets are not.
fn bracketed(title: &str) -> Option<String> {
    let rest = title.strip_prefix("NVIDIA Corporation")?;
    let (_, inner) = rest.split_once('[')?;
    let (inner, _) = inner.split_once(']')?;
    let told = inner.len() > 1 && !inner.contains([':', '[']);
    told.then(|| inner.chars().take(80).collect())
}

/// Makes the list of GPUs before anything is filled: all that some text gives an address, in PCI order; without any
/// address, those of the text that lists most.
fn line_up(snapshot: &mut Snapshot, parts: &[(String, Part)]) {
    if !snapshot.gpus.is_empty() {
        return;
    }
    let mut addresses: BTreeMap<PciAddress, Option<u32>> = BTreeMap::new();
    for gpu in parts.iter().flat_map(|(_, p)| &p.snapshot.gpus) {
        if let Some(pci) = gpu.pci.known()
            && (addresses.len() < MOST_GPUS || addresses.contains_key(pci))
        {
            let index = addresses.entry(*pci).or_default();
            *index = index.or(gpu.nvml_index.known().copied());
        }
    }
    if addresses.is_empty() {
        let most = parts
            .iter()
            .map(|(_, p)| &p.snapshot.gpus)
            .max_by_key(|gpus| gpus.len());
        snapshot.gpus = most
            .into_iter()
            .flatten()
            .take(MOST_GPUS)
            .enumerate()
            .map(|(at, gpu)| Gpu {
                nvml_index: gpu.nvml_index.clone(),
                label: format!("GPU{at}"),
                ..Gpu::default()
            })
            .collect();
    } else {
        snapshot.gpus = addresses
            .into_iter()
            .enumerate()
            .map(|(at, (pci, index))| Gpu {
                pci: Reading::Known(pci),
                nvml_index: index.map_or_else(Reading::default, Reading::Known),
                label: format!("GPU{at}"),
                ..Gpu::default()
            })
            .collect();
    }
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    snapshot.claims = PairTable::new(count);
}

/// Texts whose GPUs are taken for those of the others by number alone: they name none.
fn assumed(snapshot: &Snapshot, parts: &[(String, Part)]) -> Vec<String> {
    let named = |gpu: &Gpu| {
        gpu.pci.known().is_some() || gpu.uuid.known().is_some() || gpu.name.known().is_some()
    };
    let of_others = |file: &str| {
        let mut others = parts.iter().filter(|(_, part)| part.file != file);
        others.any(|(_, part)| part.snapshot.gpus.iter().any(named))
            || snapshot.gpus.iter().any(|gpu| gpu.uuid.known().is_some())
    };
    let mut files: Vec<String> = Vec::new();
    for (_, part) in parts {
        let gpus = &part.snapshot.gpus;
        // A file that names its GPUs elsewhere speaks of them throughout.
        let mut own = parts.iter().filter(|(_, other)| other.file == part.file);
        let names = own.any(|(_, other)| other.snapshot.gpus.iter().any(named));
        if !gpus.is_empty() && !names && of_others(&part.file) && !files.contains(&part.file) {
            files.push(part.file.clone());
        }
    }
    files
}

/// Position of each of the part's GPUs in the joined list.
fn places(snapshot: &Snapshot, part: &Snapshot) -> Vec<Option<usize>> {
    let by_order = part.gpus.len() == snapshot.gpus.len();
    let place = |(at, gpu): (usize, &Gpu)| {
        if let Some(pci) = gpu.pci.known() {
            return snapshot
                .gpus
                .iter()
                .position(|g| g.pci.known() == Some(pci));
        }
        let index = gpu.nvml_index.known();
        let by_index = index.and_then(|i| {
            snapshot
                .gpus
                .iter()
                .position(|g| g.nvml_index.known() == Some(i))
        });
        by_index.or_else(|| by_order.then_some(at))
    };
    part.gpus.iter().enumerate().map(place).collect()
}

fn one(snapshot: &mut Snapshot, filler: &mut Filler, part: Part, ticket: &mut Ticket) {
    let Part {
        snapshot: from,
        citations,
        launch,
        remarks,
        transports,
        gave,
        ..
    } = part;
    let places = places(snapshot, &from);
    let lost = places.iter().filter(|p| p.is_none()).count();
    if lost > 0 {
        let told = format!(
            "{}: {lost} of its {} GPUs could not be matched with the {} of the other texts; what it says of them is left out (nvidia-smi -q has both numbers and addresses)",
            filler.source,
            from.gpus.len(),
            snapshot.gpus.len()
        );
        ticket.unmatched.push(told.clone());
        snapshot.topology.notes.push(told);
    }
    for (gpu, place) in from.gpus.iter().zip(&places) {
        if let Some(into) = place.and_then(|at| snapshot.gpus.get_mut(at)) {
            fill_gpu(filler, into, gpu);
        }
    }
    claims(snapshot, filler, &from, &places);
    fill_host(filler, &mut snapshot.host, &from.host);
    fill_driver(filler, &mut snapshot.driver, &from.driver);
    for bridge in from.bridges {
        match snapshot.bridges.iter_mut().find(|b| b.pci == bridge.pci) {
            None => snapshot.bridges.push(bridge),
            Some(old) => {
                let about = format!("ACS of {}", old.pci);
                filler.fill(
                    &about,
                    &mut old.acs,
                    &bridge.acs,
                    |acs| match acs.bits().as_slice() {
                        [] => "off".to_string(),
                        bits => bits.join(" "),
                    },
                    |a, b| a.control == b.control,
                );
                filler.first("", &mut old.identity, &bridge.identity);
                filler.first("", &mut old.link_now, &bridge.link_now);
                filler.first("", &mut old.link_max, &bridge.link_max);
                if old.port == crate::model::snapshot::BridgePort::Unknown {
                    old.port = bridge.port;
                }
                old.chip = old.chip.take().or(bridge.chip);
                old.emulated |= bridge.emulated;
            }
        }
    }
    for nic in from.nics {
        let known = snapshot.nics.iter().any(|n| {
            n.name == nic.name || (n.pci.known().is_some() && n.pci.known() == nic.pci.known())
        });
        if !known && snapshot.nics.len() < 256 {
            snapshot.nics.push(nic);
        }
    }
    for switch in from.nvswitches {
        if !snapshot.nvswitches.contains(&switch) {
            snapshot.nvswitches.push(switch);
        }
    }
    for bridge in from.host_bridges {
        if !snapshot.host_bridges.contains(&bridge) {
            snapshot.host_bridges.push(bridge);
        }
    }
    for node in from.numa_nodes {
        if !snapshot
            .numa_nodes
            .iter()
            .any(|n| n.os_index == node.os_index)
        {
            snapshot.numa_nodes.push(node);
        }
    }
    if snapshot.packages.is_empty() {
        snapshot.packages = from.packages;
    }
    for note in from.topology.notes {
        if !snapshot.topology.notes.contains(&note) {
            snapshot.topology.notes.push(note);
        }
    }
    for line in from.application_log {
        if snapshot.application_log.len() < MOST_LOG_LINES {
            snapshot.application_log.push(line);
        }
    }
    for (name, value) in from.environment {
        if !snapshot.environment.iter().any(|(n, _)| *n == name) {
            snapshot.environment.push((name, value));
        }
    }
    if !gave.is_empty() {
        snapshot.sources.push(SourceNote {
            source: filler.source.clone(),
            result: Reading::Known(gave),
            took_ms: 0.0,
        });
    }
    ticket.citations.extend(citations);
    for fact in launch {
        let known = ticket
            .launch
            .iter()
            .any(|f| f.about == fact.about && f.value == fact.value);
        if !known {
            ticket.launch.push(fact);
        }
    }
    for remark in remarks {
        let same = ticket
            .remarks
            .iter_mut()
            .find(|r| r.kind == remark.kind && r.by_person == remark.by_person);
        match same {
            Some(first) => first.times = first.times.saturating_add(remark.times),
            None => ticket.remarks.push(remark),
        }
    }
    ticket.transports.extend(transports);
}

fn fill_gpu(f: &mut Filler, into: &mut Gpu, from: &Gpu) {
    let who = into
        .pci
        .known()
        .map_or_else(|| into.label.clone(), |p| format!("GPU {p}"));
    let named = |what: &str| format!("{who} {what}");
    f.first("", &mut into.pci, &from.pci);
    f.fill(
        &named("device id"),
        &mut into.identity,
        &from.identity,
        |i| format!("{:04x}:{:04x}", i.vendor, i.device),
        |a, b| (a.vendor, a.device) == (b.vendor, b.device),
    );
    f.agree(&named("UUID"), &mut into.uuid, &from.uuid);
    f.text(&named("name"), &mut into.name, &from.name);
    f.first("", &mut into.nvml_index, &from.nvml_index);
    f.first("", &mut into.compute_capability, &from.compute_capability);
    f.first("", &mut into.memory_bytes, &from.memory_bytes);
    f.first("", &mut into.memory_used_bytes, &from.memory_used_bytes);
    f.agree(&named("BAR1"), &mut into.bar1_bytes, &from.bar1_bytes);
    f.first("", &mut into.bar1_used_bytes, &from.bar1_used_bytes);
    f.agree(&named("ECC mode"), &mut into.ecc_enabled, &from.ecc_enabled);
    f.first("", &mut into.ecc_uncorrected, &from.ecc_uncorrected);
    f.first("", &mut into.remapped_rows, &from.remapped_rows);
    f.first("", &mut into.compute_processes, &from.compute_processes);
    f.first("", &mut into.graphics_processes, &from.graphics_processes);
    f.agree(&named("MIG mode"), &mut into.mig_enabled, &from.mig_enabled);
    f.agree(
        &named("virtualization mode"),
        &mut into.virtualization,
        &from.virtualization,
    );
    f.first("", &mut into.fabric, &from.fabric);
    f.first("", &mut into.nvlinks, &from.nvlinks);
    f.first("", &mut into.link_now, &from.link_now);
    f.first("", &mut into.link_max, &from.link_max);
    f.first("", &mut into.pcie_replays, &from.pcie_replays);
    numa_node(f, &named("NUMA node"), &mut into.numa_node, &from.numa_node);
    f.first("", &mut into.package, &from.package);
    f.fill(
        &named("bridges above"),
        &mut into.bridge_chain,
        &from.bridge_chain,
        |chain| match chain.as_slice() {
            [] => "none".to_string(),
            all => all
                .iter()
                .map(PciAddress::to_string)
                .collect::<Vec<_>>()
                .join(" "),
        },
        Vec::eq,
    );
    f.agree(&named("root bus"), &mut into.root_bus, &from.root_bus);
    f.first("", &mut into.iommu, &from.iommu);
    f.first("", &mut into.cpu_affinity, &from.cpu_affinity);
    f.first("", &mut into.p2p_clique, &from.p2p_clique);
    f.first("", &mut into.aer, &from.aer);
    f.first("", &mut into.utilization_percent, &from.utilization_percent);
    f.agree(&named("ATS"), &mut into.ats, &from.ats);
    f.first("", &mut into.bar1_sizes, &from.bar1_sizes);
}

/// -1 is the kernel's "the firmware did not tell": no node, and no other one than a text names.
fn numa_node(f: &mut Filler, about: &str, into: &mut Reading<i32>, from: &Reading<i32>) {
    let told = |reading: &Reading<i32>| reading.known().is_some_and(|node| *node >= 0);
    if told(from) && into.known().is_some() && !told(into) {
        *into = from.clone();
        f.origin.insert(about.to_string(), f.source.clone());
    } else if told(from) || into.known().is_none() {
        f.agree(about, into, from);
    }
}

fn fill_host(f: &mut Filler, into: &mut Host, from: &Host) {
    // A name may stand with its domain or without.
    let short = |name: &String| name.split('.').next().map(str::to_ascii_lowercase);
    f.fill(
        "host name",
        &mut into.name,
        &from.name,
        String::clone,
        |a, b| short(a) == short(b),
    );
    f.agree("kernel", &mut into.kernel, &from.kernel);
    f.first("", &mut into.os, &from.os);
    f.first("", &mut into.cpu_model, &from.cpu_model);
    f.first("", &mut into.logical_cpus, &from.logical_cpus);
    f.first("", &mut into.memory_bytes, &from.memory_bytes);
    f.text("kernel command line", &mut into.cmdline, &from.cmdline);
    f.first("", &mut into.dmi_vendor, &from.dmi_vendor);
    f.first("", &mut into.dmi_product, &from.dmi_product);
    f.first("", &mut into.bios, &from.bios);
    f.agree("hypervisor", &mut into.hypervisor, &from.hypervisor);
    f.first("", &mut into.iommu_classes, &from.iommu_classes);
    f.first("", &mut into.container, &from.container);
    f.first("", &mut into.shm_bytes, &from.shm_bytes);
    f.first("", &mut into.ptrace_scope, &from.ptrace_scope);
    match (&mut into.kernel_log, &from.kernel_log) {
        (Reading::Known(lines), Reading::Known(more)) => {
            let new: Vec<String> = more
                .iter()
                .filter(|l| !lines.contains(l))
                .cloned()
                .collect();
            lines.extend(new.into_iter().take(MOST_LOG_LINES));
        }
        (absent, Reading::Known(more)) => *absent = Reading::Known(more.clone()),
        _ => {}
    }
}

fn fill_driver(f: &mut Filler, into: &mut Driver, from: &Driver) {
    f.agree("driver version", &mut into.version, &from.version);
    f.agree("driver flavour", &mut into.flavour, &from.flavour);
    f.first("", &mut into.nvml_version, &from.nvml_version);
    f.first("", &mut into.cuda_version, &from.cuda_version);
    match (&mut into.params, &from.params) {
        // What is in force and what a file asks for have names of their own.
        (Reading::Known(params), Reading::Known(more)) => {
            for (name, value) in more.iter().take(64) {
                if !params.iter().any(|(known, _)| known == name) {
                    params.push((name.clone(), value.clone()));
                }
            }
        }
        (absent, Reading::Known(more)) => *absent = Reading::Known(more.clone()),
        _ => {}
    }
}

fn claims(snapshot: &mut Snapshot, f: &mut Filler, from: &Snapshot, places: &[Option<usize>]) {
    for (pair, new) in from.claims.iter() {
        let place = |at: usize| {
            let at = places.get(at).copied().flatten()?;
            u32::try_from(at).ok()
        };
        let Some(moved) = place(pair.source.at())
            .zip(place(pair.destination.at()))
            .and_then(|(s, d)| OrderedPair::new(s, d))
        else {
            continue;
        };
        let mut cell = snapshot.claims.get(moved).cloned().unwrap_or_default();
        let PairClaims {
            common_ancestor,
            p2p_read,
            p2p_write,
            p2p_nvlink,
            p2p_atomics,
            p2p_pcie,
            nvlink_count,
            cuda,
        } = &mut cell;
        let about = |what: &str| format!("{what} {moved}");
        let path = |level: &u32| match topology::path_of_level(*level) {
            Some(path) => path.to_string(),
            None => level.to_string(),
        };
        let ancestor = &new.common_ancestor;
        f.fill(
            &about("path type"),
            common_ancestor,
            ancestor,
            path,
            u32::eq,
        );
        f.agree(&about("P2P status for reads"), p2p_read, &new.p2p_read);
        f.agree(&about("P2P status for writes"), p2p_write, &new.p2p_write);
        f.agree(&about("P2P status for NVLink"), p2p_nvlink, &new.p2p_nvlink);
        f.agree(
            &about("P2P status for atomics"),
            p2p_atomics,
            &new.p2p_atomics,
        );
        f.agree(&about("P2P status over PCIe"), p2p_pcie, &new.p2p_pcie);
        f.agree(&about("NVLinks"), nvlink_count, &new.nvlink_count);
        if *cuda == CudaClaims::default() {
            cuda.clone_from(&new.cuda);
        }
        snapshot.claims.set(moved, cell);
    }
}

/// Default domain of each GPU, where the texts carry it: the type of its group, else the kernel's default for a GPU that the
/// kernel log or lspci puts into a group. The kernel logs a default even where its command line switches the IOMMU off.
fn iommu(snapshot: &mut Snapshot, domains: &Domains, ticket: &mut Ticket) {
    let mut cite = |about: String, value: &str, source: &str| {
        let citation = Citation {
            about,
            value: value.to_string(),
            source: source.to_string(),
        };
        if !ticket.citations.contains(&citation) {
            ticket.citations.push(citation);
        }
    };
    let only = {
        let mut kinds = domains.types.values();
        kinds
            .next()
            .filter(|first| kinds.all(|k| k.0 == first.0))
            .cloned()
    };
    // Without addresses or groups the kernel's default still holds for every GPU where the IOMMU is seen at work.
    let at_work = domains.off.is_none()
        && (domains.active.is_some()
            || !domains.groups.is_empty()
            || ticket
                .remarks
                .iter()
                .any(|r| r.kind == RemarkKind::IommuFault && !r.by_person));
    let for_all = only
        .as_ref()
        .or(domains.default.as_ref().filter(|_| at_work));
    let mut in_groups = false;
    for gpu in &mut snapshot.gpus {
        let own = gpu.iommu.known().map(|g| g.group);
        let group = own.or_else(|| {
            let pci = gpu.pci.known()?;
            domains.groups.get(pci).copied()
        });
        in_groups |= group.is_some();
        let typed = gpu
            .iommu
            .known()
            .is_some_and(|g| g.domain_type.known().is_some());
        if typed {
            continue;
        }
        let kind = match group {
            Some(group) => domains
                .types
                .get(&group)
                .or(only.as_ref())
                .or(domains.default.as_ref()),
            None => for_all,
        };
        let Some(group) = group.or(kind.map(|_| UNNAMED_GROUP)) else {
            continue;
        };
        let domain_type = match kind {
            Some((kind, source)) => {
                cite(format!("default domain {kind}"), kind, source);
                Reading::Known(kind.clone())
            }
            None => Reading::default(),
        };
        gpu.iommu = Reading::Known(IommuGroup { group, domain_type });
    }
    if snapshot.host.iommu_classes.known().is_some() {
        return;
    }
    if let Some((class, source)) = &domains.active {
        cite("IOMMU".to_string(), class, source);
        snapshot.host.iommu_classes = Reading::Known(vec![class.clone()]);
    } else if let Some(source) = domains.off.as_ref().filter(|_| !in_groups) {
        cite("IOMMU".to_string(), "off on the command line", source);
        snapshot.host.iommu_classes = Reading::Known(Vec::new());
    }
}
