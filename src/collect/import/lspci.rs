//! The text of `lspci`, from the plain list to `-vvv`: bridges with their ACS words, links, BARs and ATS, and which bridge
//! a GPU hangs below. What an unprivileged `lspci` leaves out ("<access denied>") is unknown, never off.

use super::part::{Line, Part, bytes_of};
use crate::{
    collect::chips,
    model::{
        pci::{PciAddress, PciIdentity, PcieLink, VENDOR_NVIDIA},
        reading::{Absence, Reading},
        snapshot::{AcsControl, Bridge, BridgePort, HostBridge, IommuGroup, Nic},
        ticket::RemarkKind,
    },
};
use std::collections::BTreeMap;

/// Most functions of one listing.
const MOST_FUNCTIONS: usize = 16_384;
/// Most bridges that are kept.
const MOST_BRIDGES: usize = 1_024;
/// Longest chain of bridges above a device.
const LONGEST_CHAIN: usize = 32;

/// One function as printed.
struct Function {
    address: PciAddress,
    title: String,
    class: Option<u16>,
    ids: Option<(u16, u16)>,
    line: Line,
    port: Option<BridgePort>,
    /// Secondary bus number.
    secondary: Option<u8>,
    numa: Option<i32>,
    group: Option<u32>,
    link_max: Option<PcieLink>,
    link_now: Option<PcieLink>,
    bar1: Option<u64>,
    acs: (Option<u16>, Option<u16>),
    ats: Option<bool>,
    denied: bool,
    /// Capabilities of extended configuration space were listed.
    extended: bool,
    gone: bool,
}

/// Whether a line begins a function: an address, a class, a colon.
pub(super) fn is_head(line: &str) -> bool {
    let Some((slot, rest)) = line.split_once(' ') else {
        return false;
    };
    slot.contains('.')
        && slot.contains(':')
        && slot.parse::<PciAddress>().is_ok()
        && rest.contains(": ")
        && rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '"')
}

pub(super) fn read(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "lspci");
    let mut functions: Vec<Function> = Vec::new();
    for line in lines {
        if is_head(&line.text) {
            if functions.len() >= MOST_FUNCTIONS {
                part.skip(line, "more PCI functions than are read");
                break;
            }
            functions.extend(head(line));
        } else if let Some(function) = functions.last_mut() {
            detail(&mut part, function, line);
        } else if !line.text.trim().is_empty() {
            part.skip(line, "stands before the first function of lspci");
        }
    }
    let verbose = functions.iter().any(|f| f.secondary.is_some());
    let above = parents(&functions);
    if let Some(function) = functions.iter().find(|f| is_virtual(&f.title)) {
        part.snapshot.host.hypervisor = Reading::Known(true);
        let device: String = function.title.chars().take(60).collect();
        part.cite(
            "hypervisor",
            format!("emulated device: {device}"),
            &function.line,
        );
    }
    for function in &functions {
        take(&mut part, function, &functions, &above, verbose);
    }
    let denied = functions.iter().filter(|f| f.denied).count();
    part.gave = format!(
        "{} functions, {} GPUs, {} bridges",
        functions.len(),
        part.snapshot.gpus.len(),
        part.snapshot.bridges.len()
    );
    if denied > 0 {
        part.gave
            .push_str("; capabilities were denied to this user");
    }
    part
}

/// Devices that only a hypervisor makes.
pub(super) fn is_virtual(title: &str) -> bool {
    [
        "Virtio",
        "QEMU",
        "VMware",
        "Hyper-V virtual",
        "VirtualBox",
        "Xen Platform",
    ]
    .iter()
    .any(|w| title.contains(w))
}

/// Class code of a class in words, or in brackets behind them.
fn class_of(words: &str) -> Option<u16> {
    let bracketed = words
        .rsplit_once('[')
        .map(|(_, code)| code.trim_end_matches(']'))
        .filter(|code| code.len() == 4);
    if let Some(code) = bracketed.or((words.len() == 4).then_some(words)) {
        return u16::from_str_radix(code, 16).ok();
    }
    Some(match words {
        "Host bridge" => 0x0600,
        "PCI bridge" => 0x0604,
        "Bridge" => 0x0680,
        "VGA compatible controller" => 0x0300,
        "3D controller" => 0x0302,
        "Display controller" => 0x0380,
        "Ethernet controller" => 0x0200,
        "Infiniband controller" => 0x0207,
        "Network controller" => 0x0280,
        _ => return None,
    })
}

/// Ids in brackets ("[10de:2330]"), else what a name of an unknown device gives away ("NVIDIA Corporation Device 2335").
pub(super) fn ids_of(title: &str) -> Option<(u16, u16)> {
    let bracketed = title.match_indices('[').find_map(|(at, _)| {
        let inner = title.get(at + 1..at + 10)?;
        let (vendor, device) = inner.split_once(':')?;
        let closed = title.as_bytes().get(at + 10) == Some(&b']');
        (vendor.len() == 4 && device.len() == 4 && closed)
            .then(|| Some((hex(vendor)?, hex(device)?)))
            .flatten()
    });
    let known = || {
        let vendor = if title.starts_with("NVIDIA Corporation") {
            VENDOR_NVIDIA
        } else if title.starts_with("Broadcom / LSI PEX890xx") {
            return Some((0x1000, 0xc030));
        } else if title.contains("82G33/G31/P35/P31 Express DRAM Controller") {
            return Some((0x8086, 0x29c0));
        } else if title.contains("440FX - 82441FX PMC") {
            return Some((0x8086, 0x1237));
        } else if title.contains("QEMU PCIe Root port") {
            return Some((0x1b36, 0x000c));
        } else if title.contains("QEMU PCIe Host bridge") {
            return Some((0x1b36, 0x0008));
        } else if title.starts_with("Advanced Micro Devices, Inc. [AMD]") {
            0x1022
        } else if title.starts_with("Intel Corporation") {
            0x8086
        } else if title.starts_with("Broadcom / LSI") {
            0x1000
        } else {
            return None;
        };
        let (_, device) = title.split_once(" Device ")?;
        hex(device.get(..4)?).map(|device| (vendor, device))
    };
    bracketed.or_else(known)
}

fn hex(text: &str) -> Option<u16> {
    u16::from_str_radix(text, 16).ok()
}

fn head(line: &Line) -> Option<Function> {
    let (slot, rest) = line.text.split_once(' ')?;
    let (class, title) = rest.split_once(": ")?;
    let plain_ids = title
        .split_whitespace()
        .next()
        .filter(|w| w.len() == 9)
        .and_then(|w| w.split_once(':'))
        .and_then(|(v, d)| Some((hex(v)?, hex(d)?)));
    Some(Function {
        address: slot.parse().ok()?,
        title: title.chars().take(160).collect(),
        class: class_of(class.trim()),
        ids: ids_of(title).or(plain_ids),
        line: line.clone(),
        port: None,
        secondary: None,
        numa: None,
        group: None,
        link_max: None,
        link_now: None,
        bar1: None,
        acs: (None, None),
        ats: None,
        denied: false,
        extended: false,
        gone: title.contains("(rev ff)"),
    })
}

/// "Speed 32GT/s (downgraded), Width x16".
fn link(text: &str) -> Option<PcieLink> {
    let speed = text.split_once("Speed ")?.1;
    let speed = speed.split_once("GT/s")?.0.trim().parse::<f64>().ok()?;
    let width = text.split_once("Width x")?.1;
    let digits: String = width.chars().take_while(char::is_ascii_digit).collect();
    let width = digits.parse::<u32>().ok()?;
    (speed.is_finite() && speed > 0.0 && speed < 1000.0 && (1..=32).contains(&width)).then_some(
        PcieLink {
            speed_gts: speed,
            width,
        },
    )
}

/// Flags of an ACS line, in the order of the register's bits.
fn acs_word(text: &str) -> Option<u16> {
    let names = [
        "SrcValid",
        "TransBlk",
        "ReqRedir",
        "CmpltRedir",
        "UpstreamFwd",
        "EgressCtrl",
        "DirectTrans",
    ];
    let mut word = 0;
    let mut seen = 0;
    for (bit, name) in names.iter().enumerate() {
        let Some((_, rest)) = text.split_once(name) else {
            continue;
        };
        seen += 1;
        if rest.starts_with('+') {
            word |= 1 << bit;
        }
    }
    // A line that was cut before the redirect bits says nothing of them.
    (seen >= 6).then_some(word)
}

fn detail(part: &mut Part, function: &mut Function, line: &Line) {
    let text = line.text.trim();
    let address = function.address;
    if let Some(node) = text.strip_prefix("NUMA node: ") {
        function.numa = node.trim().parse().ok();
    } else if let Some(group) = text.strip_prefix("IOMMU group: ") {
        function.group = group.trim().parse().ok();
    } else if let Some(rest) = text.strip_prefix("Bus: ") {
        let bus = rest.split_once("secondary=").map(|(_, b)| b);
        let bus = bus.and_then(|b| b.split(',').next());
        function.secondary = bus.and_then(|b| u8::from_str_radix(b.trim(), 16).ok());
    } else if text.contains("<access denied>") {
        function.denied = true;
        part.cite(address.to_string(), "<access denied>", line);
    } else if text.starts_with("Capabilities: [") {
        function.extended |= text
            .split_once('[')
            .and_then(|(_, r)| r.split_once(']'))
            .is_some_and(|(offset, _)| offset.contains(" v"));
        if text.contains("] Express") {
            function.port = Some(if text.contains("Root Port") {
                BridgePort::Root
            } else if text.contains("Upstream Port") {
                BridgePort::SwitchUpstream
            } else if text.contains("Downstream Port") {
                BridgePort::SwitchDownstream
            } else {
                BridgePort::Unknown
            });
        }
    } else if text.starts_with("LnkCap:") {
        function.link_max = link(text);
        if function.class.is_some_and(is_display) {
            part.cite(format!("GPU {address} link max"), text, line);
        }
    } else if text.starts_with("LnkSta:") {
        function.link_now = link(text);
        if function.class.is_some_and(is_display) {
            part.cite(format!("GPU {address} link now"), text, line);
        }
    } else if text.starts_with("Region 1: Memory at") || text.starts_with("Region 2: Memory at") {
        // The aperture that NVIDIA calls BAR1 follows the first region, which takes two numbers where it is 64-bit.
        let size = text.split_once("[size=").map(|(_, s)| s);
        let size = size.and_then(|s| s.split(']').next()).and_then(bytes_of);
        if let Some(size) = size {
            function.bar1 = Some(size);
            if function.class.is_some_and(is_display) {
                part.cite(format!("GPU {address} BAR1"), text, line);
            }
        }
    } else if text.starts_with("ACSCap:") {
        function.acs.0 = acs_word(text);
    } else if text.starts_with("ACSCtl:") {
        function.acs.1 = acs_word(text);
        match function.acs.1 {
            Some(word) => part.cite(
                address.to_string(),
                format!("ACS control {word:#06x}"),
                line,
            ),
            None => part.skip(line, "the ACS control line is cut"),
        }
    } else if text.starts_with("ATSCtl:") {
        function.ats = Some(text.contains("Enable+"));
    } else if let Some(driver) = text.strip_prefix("Kernel driver in use: ") {
        if function.class.is_some_and(is_display) && driver.trim() != "nvidia" {
            part.cite(format!("GPU {address} driver"), driver, line);
        }
    } else if text.starts_with("!!! Unknown header type") {
        function.gone = true;
    }
}

fn is_display(class: u16) -> bool {
    class >> 8 == 3
}

/// For each bus, the bridge whose secondary bus it is.
fn parents(functions: &[Function]) -> BTreeMap<(u32, u8), usize> {
    let mut map = BTreeMap::new();
    for (at, function) in functions.iter().enumerate() {
        if let Some(bus) = function.secondary.filter(|b| *b > 0) {
            map.entry((function.address.domain, bus)).or_insert(at);
        }
    }
    map
}

fn chain(
    address: PciAddress,
    functions: &[Function],
    above: &BTreeMap<(u32, u8), usize>,
) -> Vec<PciAddress> {
    let mut out = Vec::new();
    let mut at = address;
    while out.len() < LONGEST_CHAIN {
        let Some(bridge) = above
            .get(&(at.domain, at.bus))
            .and_then(|i| functions.get(*i))
        else {
            break;
        };
        if out.contains(&bridge.address) {
            break;
        }
        out.push(bridge.address);
        at = bridge.address;
    }
    out
}

fn known<T>(value: Option<T>) -> Reading<T> {
    value.map_or_else(Reading::default, Reading::Known)
}

fn take(
    part: &mut Part,
    function: &Function,
    functions: &[Function],
    above: &BTreeMap<(u32, u8), usize>,
    verbose: bool,
) {
    let address = function.address;
    let identity = function
        .ids
        .zip(function.class)
        .map(|((vendor, device), class)| PciIdentity {
            vendor,
            device,
            class,
        });
    let nvidia = function.title.starts_with("NVIDIA")
        || function.ids.is_some_and(|(v, _)| v == VENDOR_NVIDIA);
    let path = || match verbose {
        true => Reading::Known(chain(address, functions, above)),
        false => Reading::default(),
    };
    match function.class {
        Some(0x0604) => {
            if part.snapshot.bridges.len() >= MOST_BRIDGES {
                return;
            }
            part.snapshot.bridges.push(Bridge {
                pci: address,
                parent: chain(address, functions, above).first().copied(),
                identity: known(identity),
                chip: identity
                    .and_then(chips::chip_name)
                    .map(str::to_string)
                    .or_else(|| Some(function.title.clone())),
                port: function.port.unwrap_or(BridgePort::Unknown),
                emulated: identity.is_some_and(chips::is_emulated) || is_virtual(&function.title),
                acs: acs(function),
                link_now: known(function.link_now),
                link_max: known(function.link_max),
                aer: Reading::default(),
                numa_node: known(function.numa),
            });
        }
        Some(0x0600) => {
            if let Some(identity) = identity
                && part.snapshot.host_bridges.len() < MOST_BRIDGES
            {
                part.snapshot.host_bridges.push(HostBridge {
                    pci: address,
                    identity,
                });
                part.cite("host bridge", function.title.clone(), &function.line);
            }
        }
        Some(0x0680) if nvidia && part.snapshot.nvswitches.len() < 64 => {
            part.snapshot.nvswitches.push(address);
        }
        Some(class) if is_display(class) && nvidia => {
            let chain = path();
            let top = chain.known().map(|c| c.last().copied().unwrap_or(address));
            // Device and slot together, as NVML counts it.
            let slot = chain
                .known()
                .and_then(|c| c.first())
                .and_then(|p| functions.iter().find(|f| f.address == *p))
                .and_then(|f| f.link_max);
            let link_max = match (function.link_max, slot) {
                (Some(own), Some(slot)) => Some(PcieLink {
                    speed_gts: own.speed_gts.min(slot.speed_gts),
                    width: own.width.min(slot.width),
                }),
                (own, _) => own,
            };
            let line = function.line.clone();
            let Some(gpu) = part.gpu_at(address) else {
                return;
            };
            gpu.identity = known(identity);
            gpu.link_now = known(function.link_now);
            gpu.link_max = known(link_max);
            gpu.bar1_bytes = known(function.bar1);
            gpu.numa_node = known(function.numa);
            gpu.bridge_chain = chain;
            gpu.root_bus = known(top.map(|t| format!("{:04x}:{:02x}", t.domain, t.bus)));
            gpu.iommu = known(function.group.map(|group| IommuGroup {
                group,
                domain_type: Reading::default(),
            }));
            gpu.ats = match function.ats {
                Some(on) => Reading::Known(Some(on)),
                None if function.denied => denied(),
                None if function.extended => Reading::Known(None),
                None => Reading::default(),
            };
            part.cite(format!("GPU {address}"), function.title.clone(), &line);
            if function.gone {
                part.remark(RemarkKind::GpuLost, &line.text, &line, false);
            }
        }
        Some(class) if class >> 8 == 2 && part.snapshot.nics.len() < 128 => {
            part.snapshot.nics.push(Nic {
                name: address.to_string(),
                pci: Reading::Known(address),
                bridge_chain: path(),
                numa_node: known(function.numa),
                to_gpus: Vec::new(),
            });
        }
        _ => {}
    }
}

fn denied<T>() -> Reading<T> {
    Reading::Absent(Absence::NoPermission(
        "lspci: Capabilities: <access denied>; needs root".to_string(),
    ))
}

fn acs(function: &Function) -> Reading<AcsControl> {
    match function.acs {
        (capability, Some(control)) => Reading::Known(AcsControl {
            capability: capability.unwrap_or(control),
            control,
        }),
        _ if function.denied => denied(),
        // Extended capabilities were listed to their end, and ACS is not among them.
        (None, None) if function.extended => Reading::Known(AcsControl {
            capability: 0,
            control: 0,
        }),
        _ => Reading::Absent(Absence::SourceMissing(
            "this lspci output lists no capabilities; sudo lspci -vvv does".to_string(),
        )),
    }
}
