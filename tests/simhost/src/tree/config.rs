//! PCI configuration space: header, PCI Express capability, AER and ACS.
use crate::scenario::Scenario;
use crate::scenario::pci::parse_id;
use crate::scenario::spec::Port;
use crate::topology::{Role, Topology};

const PCIE: usize = 0x40;
const AER: usize = 0x100;
const ACS: usize = 0x150;

/// Ids and class of a PCI function.
pub(super) struct Identity {
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) subsystem: (u16, u16),
    /// Class, subclass and interface.
    pub(super) class: u32,
}

/// Ids and class of a node. A host bridge stands for the function 00.0 of its root bus.
pub(super) fn identity(scenario: &Scenario, topology: &Topology, node: usize) -> Identity {
    let id = |text: &str| parse_id(text).unwrap_or((0, 0));
    let (ids, subsystem, class) = match topology.nodes[node].role {
        Role::HostBridge(_) if scenario.host.hypervisor => (id("8086:0d57"), (0, 0), 0x06_00_00),
        Role::HostBridge(_) if scenario.host.cpu_vendor == "AuthenticAMD" => {
            (id("1022:153a"), (0, 0), 0x06_00_00)
        }
        Role::HostBridge(_) => (id("8086:09a2"), (0, 0), 0x06_00_00),
        Role::Bridge(b) => (id(&scenario.bridges[b].id), (0, 0), 0x06_04_00),
        Role::Gpu(_) => (
            id(&scenario.gpu.id),
            id(&scenario.gpu.subsystem),
            u32::from(scenario.gpu.class) << 8,
        ),
        Role::Nic(n) => {
            let nic = id(&scenario.nics[n].id);
            // InfiniBand where a name says so, else Ethernet.
            let class = if scenario.nics[n].names.iter().any(|n| n.starts_with("ib")) {
                0x02_07_00
            } else {
                0x02_00_00
            };
            (nic, nic, class)
        }
        Role::NvSwitch(_) => (
            id(scenario
                .nvlink
                .as_ref()
                .map_or("10de:22a3", |l| &l.switch_id)),
            (0x10de, 0),
            0x06_80_00,
        ),
    };
    Identity {
        vendor: ids.0,
        device: ids.1,
        subsystem,
        class,
    }
}

/// All 4096 bytes.
pub(super) fn space(scenario: &Scenario, topology: &Topology, node: usize) -> Vec<u8> {
    let mut c = vec![0_u8; 4096];
    let id = identity(scenario, topology, node);
    let n = &topology.nodes[node];
    let put16 =
        |c: &mut Vec<u8>, at: usize, v: u16| c[at..at + 2].copy_from_slice(&v.to_le_bytes());
    let put32 =
        |c: &mut Vec<u8>, at: usize, v: u32| c[at..at + 4].copy_from_slice(&v.to_le_bytes());
    put16(&mut c, 0x00, id.vendor);
    put16(&mut c, 0x02, id.device);
    put16(&mut c, 0x04, 0x0407); // memory, I/O, bus master, no INTx
    put32(&mut c, 0x08, id.class << 8 | 0xa1);
    if matches!(n.role, Role::HostBridge(_)) {
        return c;
    }
    put16(&mut c, 0x06, 0x0010); // has capabilities
    c[0x34] = PCIE as u8;
    let port = match n.role {
        Role::Bridge(b) => Some(scenario.bridges[b].port),
        _ => None,
    };
    if let (Some(_), Some((secondary, subordinate))) = (port, n.buses) {
        c[0x0e] = 1;
        c[0x18..0x1b].copy_from_slice(&[n.at.bus, secondary, subordinate]);
    } else {
        put16(&mut c, 0x2c, id.subsystem.0);
        put16(&mut c, 0x2e, id.subsystem.1);
    }
    let kind = match port {
        None => 0,
        Some(Port::Root) => 4,
        Some(Port::Upstream) => 5,
        Some(Port::Downstream) => 6,
    };
    let ((generation, width), (most_generation, most_width)) =
        (topology.link_now(node), topology.link_most(node));
    c[PCIE] = 0x10;
    put16(&mut c, PCIE + 0x02, 2 | kind << 4);
    put32(&mut c, PCIE + 0x04, 0x8001); // payloads up to 256 bytes
    put16(&mut c, PCIE + 0x08, 0x2930); // payload 256, read request 512, relaxed ordering
    put32(&mut c, PCIE + 0x0c, most_generation | most_width << 4);
    put16(&mut c, PCIE + 0x12, (generation | width << 4) as u16);
    let acs = match n.role {
        Role::Bridge(b) => scenario.bridges[b].acs,
        _ => None,
    };
    put32(
        &mut c,
        AER,
        0x0001 | 2 << 16 | if acs.is_some() { (ACS as u32) << 20 } else { 0 },
    );
    if let Some(control) = acs {
        put32(&mut c, ACS, 0x000d | 1 << 16);
        put16(&mut c, ACS + 4, 0x005f);
        put16(&mut c, ACS + 6, control);
    }
    c
}
