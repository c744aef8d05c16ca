//! Whether texts can be of one host at one time. What identifies a host (its name, its GPUs by address, UUID, product and
//! number, driver, kernel, command line, processor, bridges, paths) must not contradict; where it does, both places are named
//! and the later one is kept apart. That nothing contradicts proves nothing: most texts name no host.

use super::part::Part;
use crate::{
    collect::topology::path_of_level,
    model::{
        pair::OrderedPair,
        pci::PciAddress,
        reading::Reading,
        snapshot::{BridgePort, Gpu, Origin, Snapshot},
        topology::PathType,
    },
};
use std::collections::BTreeSet;

/// Most matters that are told.
const MOST: usize = 8;
/// Most sides of one that are told.
const MOST_SIDES: usize = 4;

/// How much of a host a text shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// Every GPU that can be seen where it was taken.
    All,
    /// The same in a matrix, by number only.
    Matrix,
    /// Functions of the bus, whatever a container hides; excerpts are common.
    Bus,
    /// Some.
    Part,
}

/// One text, or the report among the inputs.
struct Text<'a> {
    file: &'a str,
    /// File and lines.
    place: &'a str,
    host: &'a Snapshot,
    shows: Shows,
    /// Number among the parts; none of the report.
    part: Option<usize>,
}

/// What contradicts, and what is kept apart because of it.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// One sentence a matter: "number of GPUs: a.txt shows 2 GPUs; b.txt shows 4 GPUs".
    pub(super) sentences: Vec<String>,
    /// Parts that are not to be joined with the first.
    pub(super) parts: BTreeSet<usize>,
    /// Their files; file and lines where one file holds both hosts.
    pub(super) names: Vec<String>,
}

/// Holds all texts against each other, in the order given. `base` is the report among the inputs; it comes first.
pub(super) fn apart(base: Option<(&str, &Snapshot)>, parts: &[(String, Part)]) -> Apart {
    let report = base.map(|(file, host)| Text {
        file,
        place: file,
        host,
        shows: Shows::All,
        part: None,
    });
    let pasted = parts.iter().enumerate().map(|(at, (place, part))| Text {
        file: &part.file,
        place,
        host: &part.snapshot,
        shows: shows(part),
        part: Some(at),
    });
    let texts: Vec<Text<'_>> = report.into_iter().chain(pasted).filter(tells).collect();
    let mut told: Vec<(&'static str, Vec<String>)> = Vec::new();
    let mut kept: Vec<&Text<'_>> = Vec::new();
    let mut files: BTreeSet<&str> = BTreeSet::new();
    let mut out = Apart::default();
    for text in &texts {
        let mut clashed = false;
        for other in &kept {
            let found = clashes(other, text);
            if found.is_empty() {
                continue;
            }
            clashed = true;
            let one_file = other.file == text.file;
            let name = |text: &Text<'_>| match one_file {
                true => text.place.to_string(),
                false => text.file.to_string(),
            };
            for (about, mine, theirs) in found {
                let sides = [
                    format!("{} {mine}", name(other)),
                    format!("{} {theirs}", name(text)),
                ];
                let at = told.iter().position(|(matter, _)| *matter == about);
                let at = at.unwrap_or_else(|| {
                    told.push((about, Vec::new()));
                    told.len() - 1
                });
                let Some((_, list)) = told.get_mut(at) else {
                    continue;
                };
                for side in sides {
                    if !list.contains(&side) && list.len() < MOST_SIDES {
                        list.push(side);
                    }
                }
            }
            match (one_file, text.part) {
                (true, Some(part)) => {
                    out.parts.insert(part);
                }
                _ => {
                    files.insert(text.file);
                }
            }
            let name = name(text);
            if !out.names.contains(&name) {
                out.names.push(name);
            }
        }
        if !clashed {
            kept.push(text);
        }
    }
    let of_files = parts
        .iter()
        .enumerate()
        .filter(|(_, (_, part))| files.contains(part.file.as_str()));
    out.parts.extend(of_files.map(|(at, _)| at));
    out.sentences = told
        .into_iter()
        .take(MOST)
        .map(|(about, sides)| format!("{about}: {}", sides.join("; ")))
        .collect();
    out
}

fn shows(part: &Part) -> Shows {
    let Origin::Recorded { format, .. } = &part.snapshot.origin else {
        return Shows::All;
    };
    match format.as_str() {
        "nvidia-smi topo -m" => Shows::Matrix,
        matrix if matrix.contains("topo") && !matrix.contains("xml") => Shows::Matrix,
        "lspci" | "lspci -t" | "kernel log" => Shows::Bus,
        hwloc if hwloc.starts_with("hwloc") => Shows::Bus,
        _ if part.whole => Shows::All,
        _ => Shows::Part,
    }
}

/// Whether a text says anything by which a host could be told from another.
fn tells(text: &Text<'_>) -> bool {
    let (host, driver) = (&text.host.host, &text.host.driver);
    let words = [
        &host.name,
        &host.kernel,
        &host.cmdline,
        &host.cpu_model,
        &driver.version,
    ];
    !text.host.gpus.is_empty()
        || !text.host.bridges.is_empty()
        || host.hypervisor.known().is_some()
        || words.iter().any(|reading| reading.known().is_some())
}

type Clash = (&'static str, String, String);

/// Matters in which two texts contradict, and what each says.
fn clashes(a: &Text<'_>, b: &Text<'_>) -> Vec<Clash> {
    let mut found = Vec::new();
    found.extend(counts(a, b));
    found.extend(addresses(a, b));
    found.extend(cards(a.host, b.host));
    found.extend(paths(a.host, b.host));
    found.extend(nvlinks(a.host, b.host));
    found.extend(switches(a, b));
    found.extend(nvswitches(a, b));
    found.extend(bridges(a.host, b.host));
    let (x, y) = (&a.host.host, &b.host.host);
    // A name may stand with its domain or without.
    let short = |name: &str| {
        let name = name.split('.').next().unwrap_or(name);
        name.to_ascii_lowercase()
    };
    found.extend(words("host name", &x.name, &y.name, |a, b| {
        short(a) == short(b)
    }));
    let (one, other) = (&a.host.driver.version, &b.host.driver.version);
    found.extend(words("driver version", one, other, |a, b| a == b));
    found.extend(words("kernel", &x.kernel, &y.kernel, |a, b| a == b));
    found.extend(words("processor", &x.cpu_model, &y.cpu_model, |a, b| {
        // One of them may be cut.
        let bare = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (a, b) = (bare(a), bare(b));
        a.starts_with(&b) || b.starts_with(&a)
    }));
    let lines = (&x.cmdline, &y.cmdline);
    found.extend(words("kernel command line", lines.0, lines.1, one_line));
    let kind = |guest: &bool| match guest {
        true => "is of a virtual machine".to_string(),
        false => "is of bare metal".to_string(),
    };
    if let Some((one, other)) = x.hypervisor.known().zip(y.hypervisor.known())
        && one != other
    {
        found.push(("virtual machine", kind(one), kind(other)));
    }
    found
}

fn words(
    about: &'static str,
    a: &Reading<String>,
    b: &Reading<String>,
    same: impl Fn(&str, &str) -> bool,
) -> Option<Clash> {
    let (a, b) = a.known().zip(b.known())?;
    let said = |text: &str| {
        let short: String = text.chars().take(160).collect();
        format!("says {short}")
    };
    (!same(a.trim(), b.trim())).then(|| (about, said(a), said(b)))
}

/// Two command lines of one boot: one may be cut anywhere, and the kernel's builder may add words to what the loader gave.
fn one_line(a: &str, b: &str) -> bool {
    let list = |text: &str| -> Vec<String> {
        let text = text.trim_end_matches('.').trim_end();
        text.split_whitespace().map(str::to_string).collect()
    };
    let (a, b) = (list(a), list(b));
    let within = |few: &[String], many: &[String]| {
        let last = few.len().saturating_sub(1);
        few.iter().enumerate().all(|(at, word)| {
            many.contains(word) || at == last && many.iter().any(|w| w.starts_with(word.as_str()))
        })
    };
    within(&a, &b) || within(&b, &a)
}

fn shown(gpus: usize) -> String {
    match gpus {
        1 => "shows 1 GPU".to_string(),
        n => format!("shows {n} GPUs"),
    }
}

/// A matrix, and any list of all GPUs, has one number where it was taken. Excerpts and the bus may have less than it; the bus
/// more than what a container is shown, but a matrix beside it is then one of a container.
fn counts(a: &Text<'_>, b: &Text<'_>) -> Option<Clash> {
    let (x, y) = (a.host.gpus.len(), b.host.gpus.len());
    if x == 0 || y == 0 || x == y {
        return None;
    }
    let whole = |shows: Shows| matches!(shows, Shows::All | Shows::Matrix);
    let fewer = if x < y { a.shows } else { b.shows };
    let more = if x < y { b.shows } else { a.shows };
    let clash = whole(fewer) && whole(more)
        || fewer == Shows::Matrix
        || fewer == Shows::All && more == Shows::Part;
    clash.then(|| ("number of GPUs", shown(x), shown(y)))
}

/// Addresses of one list of all GPUs and of another text: the other may know fewer. On the bus there may be more.
fn addresses(a: &Text<'_>, b: &Text<'_>) -> Option<Clash> {
    let list = |text: &Text<'_>| -> BTreeSet<PciAddress> {
        let known = text.host.gpus.iter().filter_map(|gpu| gpu.pci.known());
        known.copied().collect()
    };
    let (x, y) = (list(a), list(b));
    if x.is_empty() || y.is_empty() {
        return None;
    }
    let apart = x.is_disjoint(&y);
    let clash = match (a.shows, b.shows) {
        (Shows::All, Shows::All) => x != y,
        (Shows::All, Shows::Part) => !y.is_subset(&x),
        (Shows::Part, Shows::All) => !x.is_subset(&y),
        (Shows::All, Shows::Bus) | (Shows::Bus, Shows::All) => apart,
        // Two excerpts may show one GPU each.
        _ => apart && x.len() > 1 && y.len() > 1,
    };
    let said = |list: &BTreeSet<PciAddress>| {
        let names: Vec<String> = list.iter().take(4).map(ToString::to_string).collect();
        let more = match list.len() > names.len() {
            true => ", ..",
            false => "",
        };
        format!("has {}{more}", names.join(", "))
    };
    // Other numbers have other addresses, and that was told.
    (clash && (x.len() == y.len() || counts(a, b).is_none()))
        .then(|| ("PCI addresses of the GPUs", said(&x), said(&y)))
}

/// The GPU of `host` that `gpu` of another text is, as far as an address or NVML's index tells.
fn same_place<'a>(gpu: &Gpu, host: &'a Snapshot) -> Option<&'a Gpu> {
    if let Some(pci) = gpu.pci.known()
        && host.gpus.iter().any(|g| g.pci.known().is_some())
    {
        return host.gpus.iter().find(|g| g.pci.known() == Some(pci));
    }
    let index = gpu.nvml_index.known()?;
    let mut all = host.gpus.iter();
    all.find(|g| g.nvml_index.known() == Some(index))
}

/// UUID and product of GPUs at one place.
fn cards(a: &Snapshot, b: &Snapshot) -> Vec<Clash> {
    let mut found = Vec::new();
    let bare = |text: &str| {
        let text = text.trim_end_matches('.').trim();
        text.strip_prefix("NVIDIA ").unwrap_or(text).to_string()
    };
    let at = |gpu: &Gpu| match (gpu.pci.known(), gpu.nvml_index.known()) {
        (Some(pci), _) => format!("at {pci}"),
        (None, Some(index)) => format!("as GPU {index}"),
        (None, None) => "there".to_string(),
    };
    for one in &a.gpus {
        let Some(other) = same_place(one, b) else {
            continue;
        };
        let elsewhere = |gpu: &Gpu, host: &Snapshot| {
            let mut all = host.gpus.iter().filter_map(|g| g.uuid.known());
            gpu.uuid.known().is_some_and(|uuid| all.any(|u| u == uuid))
        };
        let by_number = one.pci.known().is_none() || other.pci.known().is_none();
        if by_number && one.uuid != other.uuid && (elsewhere(one, b) || elsewhere(other, a)) {
            // The same cards in another order, as in a container.
            continue;
        }
        if let Some((x, y)) = one.uuid.known().zip(other.uuid.known())
            && x != y
        {
            found.push((
                "UUIDs of the GPUs",
                format!("has {x} {}", at(one)),
                format!("has {y} {}", at(other)),
            ));
        }
        let names = one.name.known().zip(other.name.known());
        let ids = one.identity.known().zip(other.identity.known());
        let other_name = names.filter(|(x, y)| {
            let (x, y) = (bare(x), bare(y));
            !x.starts_with(&y) && !y.starts_with(&x)
        });
        let other_id = ids.filter(|(x, y)| (x.vendor, x.device) != (y.vendor, y.device));
        let said = |text: String, gpu: &Gpu| format!("has {text} {}", at(gpu));
        if let Some((x, y)) = other_name {
            found.push((
                "products",
                said(x.chars().take(60).collect(), one),
                said(y.chars().take(60).collect(), other),
            ));
        } else if let Some((x, y)) = other_id {
            let id = |i: &crate::model::pci::PciIdentity| {
                format!("device {:04x}:{:04x}", i.vendor, i.device)
            };
            found.push(("products", said(id(x), one), said(id(y), other)));
        }
        if found.len() >= 2 {
            // The rest says the same again.
            break;
        }
    }
    found
}

/// Path types of two tables over the same number of GPUs, where no address says that another GPU is meant.
fn paths(a: &Snapshot, b: &Snapshot) -> Option<Clash> {
    if a.gpus.len() != b.gpus.len() {
        return None;
    }
    let level = |host: &Snapshot, pair| {
        let claims = host.claims.get(pair)?;
        claims.common_ancestor.known().copied()
    };
    let index = |host: &Snapshot, at: usize| host.gpus.get(at)?.nvml_index.known().copied();
    let in_order = (0..a.gpus.len()).all(|at| match (index(a, at), index(b, at)) {
        (Some(x), Some(y)) => x == y,
        _ => true,
    });
    if !in_order {
        return None;
    }
    let mut pairs = a.claims.iter();
    let (pair, x, y) = pairs.find_map(|(pair, _)| {
        let (x, y) = (level(a, pair)?, level(b, pair)?);
        // Two GPUs of one board are PIX to nvidia-smi.
        (path_of_level(x) != path_of_level(y)).then_some((pair, x, y))
    })?;
    let said = |level: u32| match path_of_level(level) {
        Some(path) => format!(
            "has {path} between GPUs {} and {}",
            pair.source, pair.destination
        ),
        None => format!("has level {level} for {pair}"),
    };
    Some(("paths between the GPUs", said(x), said(y)))
}

/// A pair that one table joins by NVLinks and the other does not, over the same number of GPUs of which no card is known in
/// both. Links go down: with cards that are the same it would be one host at two times.
fn nvlinks(a: &Snapshot, b: &Snapshot) -> Option<Clash> {
    let known = |host: &Snapshot| host.gpus.iter().any(|gpu| gpu.pci.known().is_some());
    if a.gpus.len() != b.gpus.len() || known(a) && known(b) {
        return None;
    }
    let links = |host: &Snapshot, pair| host.claims.get(pair)?.nvlink_count.known().copied();
    let mut pairs = a.claims.iter();
    let (pair, x, y) = pairs.find_map(|(pair, _)| {
        let (x, y) = (links(a, pair)?, links(b, pair)?);
        ((x == 0) != (y == 0)).then_some((pair, x, y))
    })?;
    let said = |links: u32| {
        let links = match links {
            0 => "none".to_string(),
            some => some.to_string(),
        };
        format!(
            "has {links} between GPUs {} and {}",
            pair.source, pair.destination
        )
    };
    Some(("NVLinks between the GPUs", said(x), said(y)))
}

/// Sizes of the groups of GPUs below one PCIe switch, largest first; `None` where a text does not show it of all. They are the
/// same however the GPUs are numbered.
fn islands(host: &Snapshot) -> Option<Vec<usize>> {
    let count = host.gpus.len();
    let chains: Option<Vec<_>> = host.gpus.iter().map(|gpu| whole_chain(gpu, host)).collect();
    let below_one = |a: usize, b: usize| -> Option<bool> {
        if let Some(chains) = &chains {
            let (one, other) = (chains.get(a)?, chains.get(b)?);
            return Some(one.iter().any(|bridge| other.contains(bridge)));
        }
        let pair = OrderedPair::new(u32::try_from(a).ok()?, u32::try_from(b).ok()?)?;
        let level = host.claims.get(pair)?.common_ancestor.known()?;
        Some(path_of_level(*level)? <= PathType::Pxb)
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for gpu in 0..count {
        let mut home = None;
        for (at, group) in groups.iter().enumerate() {
            for other in group {
                if below_one(gpu, *other)? {
                    home = Some(at);
                }
            }
        }
        match home.and_then(|at| groups.get_mut(at)) {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    let mut sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    Some(sizes)
}

/// The bridges above a GPU, where they are shown up to the root port.
fn whole_chain<'a>(gpu: &'a Gpu, host: &Snapshot) -> Option<&'a [PciAddress]> {
    let chain = gpu.bridge_chain.known()?;
    let top = host.bridge(*chain.last()?)?;
    (top.port == BridgePort::Root && !top.emulated).then_some(chain)
}

/// A matrix has no address and its GPUs no name: what it still shows is which of them share a switch, and so does the bus.
fn switches(a: &Text<'_>, b: &Text<'_>) -> Option<Clash> {
    let matrix_and_bus = matches!(
        (a.shows, b.shows),
        (Shows::Matrix, Shows::Bus | Shows::All) | (Shows::Bus | Shows::All, Shows::Matrix)
    );
    if !matrix_and_bus || a.host.gpus.len() != b.host.gpus.len() || a.host.gpus.len() < 2 {
        return None;
    }
    let (x, y) = (islands(a.host)?, islands(b.host)?);
    let said = |sizes: &[usize]| match sizes.first() {
        Some(1) | None => format!("has no two of its {} GPUs below one switch", sizes.len()),
        _ => {
            let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
            format!("has {} GPUs by switch (PIX, PXB)", sizes.join(" + "))
        }
    };
    (x != y).then(|| ("GPUs below one PCIe switch", said(&x), said(&y)))
}

/// Many links between all of eight and more GPUs go through NVSwitches, and the bus of bare metal shows those.
fn nvswitches(a: &Text<'_>, b: &Text<'_>) -> Option<Clash> {
    const MANY: u32 = 4;
    let links = |text: &Text<'_>| {
        let count = u32::try_from(text.host.gpus.len()).ok()?;
        let all: Option<Vec<u32>> = OrderedPair::all(count)
            .map(|pair| text.host.claims.get(pair)?.nvlink_count.known().copied())
            .collect();
        let least = all?.into_iter().min()?;
        (text.shows == Shows::Matrix && count >= 8 && least >= MANY)
            .then(|| format!("has NV{least} between all of its {count} GPUs"))
    };
    let none = |text: &Text<'_>| {
        let bare = text.shows == Shows::Bus
            && text.host.nvswitches.is_empty()
            && text.host.gpus.len() >= 8
            && text
                .host
                .gpus
                .iter()
                .all(|gpu| whole_chain(gpu, text.host).is_some());
        bare.then(|| "shows no NVSwitch on the bus".to_string())
    };
    let about = "NVSwitches";
    match (links(a).zip(none(b)), none(a).zip(links(b))) {
        (Some((one, other)), _) | (_, Some((one, other))) => Some((about, one, other)),
        _ => None,
    }
}

fn bridges(a: &Snapshot, b: &Snapshot) -> Option<Clash> {
    let mut all = a.bridges.iter();
    all.find_map(|one| {
        let other = b.bridge(one.pci)?;
        let (x, y) = one.identity.known().zip(other.identity.known())?;
        let id = |i: &crate::model::pci::PciIdentity| {
            format!("has {:04x}:{:04x} at {}", i.vendor, i.device, one.pci)
        };
        ((x.vendor, x.device) != (y.vendor, y.device)).then(|| ("bridges", id(x), id(y)))
    })
}
