//! The tree of `lspci -t` and `-tv`: which bus hangs below which bridge. Siblings stand in one column, so a column names
//! the bus that a line goes on with; a tree that lost its blanks cannot be read. Only `-tv` has names, and so GPUs.

use super::{
    lspci::{ids_of, is_virtual},
    part::{Line, Part},
};
use crate::model::{
    pci::{PciAddress, PciIdentity, VENDOR_NVIDIA},
    reading::{Absence, Reading},
    snapshot::{Bridge, BridgePort},
};
use std::collections::BTreeMap;

/// A bus and what is above it.
#[derive(Debug, Clone)]
struct Bus {
    domain: u32,
    bus: u8,
    chain: Vec<PciAddress>,
}

/// Longest chain of bridges.
const DEEPEST: usize = 32;
/// Most bridges that are kept.
const MOST_BRIDGES: usize = 1_024;

/// Whether a line belongs to such a tree.
pub(super) fn is_line(line: &str) -> bool {
    let rest = line.trim_start_matches([' ', '|', '\t']);
    let tail = rest.trim_start_matches(['-', '+', '\\']);
    let drawn = rest.len() != tail.len();
    let root = tail.starts_with('[')
        && tail
            .get(1..)
            .and_then(|t| t.split(']').next())
            .and_then(|t| t.split_once(':'))
            .is_some_and(|(d, b)| {
                d.len() >= 4
                    && b.len() == 2
                    && d.bytes().chain(b.bytes()).all(|c| c.is_ascii_hexdigit())
            });
    drawn && (root || device_at(tail).is_some())
}

/// "1f.3" at the start of the text.
fn device_at(text: &str) -> Option<(u8, u8)> {
    let bytes = text.as_bytes();
    let (two, dot, function) = (text.get(..2)?, bytes.get(2)?, bytes.get(3)?);
    let ends = bytes.get(4).is_none_or(|b| !b.is_ascii_alphanumeric());
    let device = u8::from_str_radix(two, 16).ok().filter(|d| *d < 32)?;
    let function = (*function as char).to_digit(8)? as u8;
    (*dot == b'.' && ends).then_some((device, function))
}

pub(super) fn read(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "lspci -t");
    let mut columns: BTreeMap<usize, Bus> = BTreeMap::new();
    let mut named = false;
    for line in lines {
        if line.text.trim().is_empty() {
            continue;
        }
        if !one(&mut part, &mut columns, line, &mut named) {
            part.skip(line, "the tree's columns do not fit the lines above");
        }
    }
    part.gave = format!(
        "{} bridges, {}",
        part.snapshot.bridges.len(),
        if named {
            format!("{} GPUs", part.snapshot.gpus.len())
        } else {
            "no names (lspci -tv has them)".to_string()
        }
    );
    part
}

/// Reads one line; false when it cannot be placed.
fn one(part: &mut Part, columns: &mut BTreeMap<usize, Bus>, line: &Line, named: &mut bool) -> bool {
    let text = line.text.as_str();
    let mut here: Option<Bus> = None;
    let mut placed = false;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|r| !r.is_empty()) {
        let width = rest.chars().next().map_or(1, char::len_utf8);
        if rest.starts_with('[') {
            let inner = rest
                .get(1..)
                .and_then(|r| r.split(']').next())
                .unwrap_or_default();
            if let Some((domain, bus)) = inner.split_once(':') {
                let root = (u32::from_str_radix(domain, 16), u8::from_str_radix(bus, 16));
                let (Ok(domain), Ok(bus)) = root else {
                    return false;
                };
                here = Some(Bus {
                    domain,
                    bus,
                    chain: Vec::new(),
                });
                placed = true;
            }
            at += inner.len() + 2;
            continue;
        }
        let boundary = at == 0
            || text
                .as_bytes()
                .get(at - 1)
                .is_some_and(|b| !b.is_ascii_alphanumeric());
        let Some((device, function)) = device_at(rest).filter(|_| boundary) else {
            at += width;
            continue;
        };
        let Some(bus) = here.take().or_else(|| columns.get(&at).cloned()) else {
            return false;
        };
        placed = true;
        columns.retain(|column, _| *column < at);
        columns.insert(at, bus.clone());
        let address = PciAddress {
            domain: bus.domain,
            bus: bus.bus,
            device,
            function,
        };
        let after = rest.get(4..).unwrap_or_default();
        if let Some(inner) = after.strip_prefix("-[").and_then(|r| r.split(']').next()) {
            let secondary = inner.split('-').next().unwrap_or_default();
            let Ok(secondary) = u8::from_str_radix(secondary, 16) else {
                return false;
            };
            bridge(part, address, &bus);
            let mut chain = vec![address];
            chain.extend(bus.chain.iter().copied().take(DEEPEST));
            here = Some(Bus {
                domain: bus.domain,
                bus: secondary,
                chain,
            });
            at += 4 + 2 + inner.len() + 1;
            continue;
        }
        let name = after.trim_start();
        if after.starts_with(' ') && !name.is_empty() {
            *named = true;
            function_named(part, address, &bus, name, line);
            return true;
        }
        at += 4;
    }
    placed
}

fn bridge(part: &mut Part, address: PciAddress, bus: &Bus) {
    let bridges = &mut part.snapshot.bridges;
    if bridges.len() >= MOST_BRIDGES || bridges.iter().any(|b| b.pci == address) {
        return;
    }
    // Below a root port bridges alternate: upstream, downstream.
    let port = match bus.chain.len() {
        0 => BridgePort::Root,
        _ => BridgePort::Unknown,
    };
    bridges.push(Bridge {
        pci: address,
        parent: bus.chain.first().copied(),
        identity: Reading::default(),
        chip: None,
        port,
        emulated: false,
        acs: Reading::Absent(Absence::SourceMissing(
            "lspci -t shows no capabilities; sudo lspci -vvv does".to_string(),
        )),
        link_now: Reading::default(),
        link_max: Reading::default(),
        aer: Reading::default(),
        numa_node: Reading::default(),
    });
}

fn function_named(part: &mut Part, address: PciAddress, bus: &Bus, name: &str, line: &Line) {
    if is_virtual(name) {
        if part.snapshot.host.hypervisor.known().is_none() {
            part.snapshot.host.hypervisor = Reading::Known(true);
            let device: String = name.chars().take(60).collect();
            part.cite("hypervisor", format!("emulated device: {device}"), line);
        }
        return;
    }
    if let Some(ids @ ((0x8086, 0x29c0 | 0x1237) | (0x1b36, 0x0008))) = ids_of(name) {
        part.snapshot
            .host_bridges
            .push(crate::model::snapshot::HostBridge {
                pci: address,
                identity: PciIdentity {
                    vendor: ids.0,
                    device: ids.1,
                    class: 0x0600,
                },
            });
        part.cite("host bridge", name, line);
        return;
    }
    if !name.starts_with("NVIDIA Corporation") || address.function != 0 {
        return;
    }
    if name.contains("NVSwitch") {
        if part.snapshot.nvswitches.len() < 64 {
            part.snapshot.nvswitches.push(address);
        }
        return;
    }
    if ["Audio", "USB", "Serial", "Bridge", "ConnectX", "Mellanox"]
        .iter()
        .any(|w| name.contains(w))
    {
        return;
    }
    let identity = ids_of(name).map(|(vendor, device)| PciIdentity {
        vendor,
        device,
        class: 0x0302,
    });
    let top = bus.chain.last().copied().unwrap_or(address);
    let Some(gpu) = part.gpu_at(address) else {
        return;
    };
    if let Some(identity) = identity.filter(|i| i.vendor == VENDOR_NVIDIA) {
        gpu.identity = Reading::Known(identity);
    }
    gpu.bridge_chain = Reading::Known(bus.chain.clone());
    gpu.root_bus = Reading::Known(format!("{:04x}:{:02x}", top.domain, top.bus));
    part.cite(format!("GPU {address}"), name, line);
}
