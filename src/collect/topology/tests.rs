//! The join on facts as a live reader gives them.

use super::*;
use crate::model::{
    pci::PciIdentity,
    snapshot::{
        Bridge, FabricState, NumaNode, NvLink, NvLinkEnd, Origin, Package, PairClaims, Snapshot,
    },
    topology::{FabricClass, FlashInferLabel},
};

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn bridge(pci: &str, parent: Option<&str>, port: BridgePort) -> Bridge {
    Bridge {
        pci: at(pci),
        parent: parent.map(at),
        identity: Reading::default(),
        chip: None,
        port,
        emulated: false,
        acs: Reading::default(),
        link_now: Reading::default(),
        link_max: Reading::default(),
        aer: Reading::default(),
        numa_node: Reading::default(),
    }
}

fn gpu(pci: &str, chain: &[&str], root: &str, numa: i32) -> Gpu {
    Gpu {
        pci: Reading::Known(at(pci)),
        identity: Reading::Known(PciIdentity {
            vendor: 0x10de,
            device: 0x2bb5,
            class: 0x0302,
        }),
        label: pci.to_string(),
        bridge_chain: Reading::Known(chain.iter().map(|b| at(b)).collect()),
        root_bus: Reading::Known(root.to_string()),
        numa_node: Reading::Known(numa),
        ..Gpu::default()
    }
}

/// Two sockets. On the first: a switch with two GPUs whose second leaf holds a third, a fourth GPU on a root port of the
/// same host bridge, a fifth on another host bridge. On the second socket a sixth.
fn host() -> Snapshot {
    use BridgePort::{Root, SwitchDownstream as Down, SwitchUpstream as Up};
    let mut s = Snapshot::empty(Origin::Live);
    s.bridges = vec![
        bridge("0000:10:01.0", None, Root),
        bridge("0000:11:00.0", Some("0000:10:01.0"), Up),
        bridge("0000:12:00.0", Some("0000:11:00.0"), Down),
        bridge("0000:12:01.0", Some("0000:11:00.0"), Down),
        bridge("0000:12:02.0", Some("0000:11:00.0"), Down),
        bridge("0000:15:00.0", Some("0000:12:02.0"), Up),
        bridge("0000:16:00.0", Some("0000:15:00.0"), Down),
        bridge("0000:10:02.0", None, Root),
        bridge("0000:30:01.0", None, Root),
        bridge("0000:80:01.0", None, Root),
    ];
    let top = ["0000:11:00.0", "0000:10:01.0"];
    s.gpus = vec![
        gpu(
            "0000:13:00.0",
            &["0000:12:00.0", top[0], top[1]],
            "0000:10",
            0,
        ),
        gpu(
            "0000:14:00.0",
            &["0000:12:01.0", top[0], top[1]],
            "0000:10",
            0,
        ),
        gpu(
            "0000:17:00.0",
            &[
                "0000:16:00.0",
                "0000:15:00.0",
                "0000:12:02.0",
                top[0],
                top[1],
            ],
            "0000:10",
            0,
        ),
        gpu("0000:20:00.0", &["0000:10:02.0"], "0000:10", 0),
        gpu("0000:31:00.0", &["0000:30:01.0"], "0000:30", 0),
        gpu("0000:81:00.0", &["0000:80:01.0"], "0000:80", 1),
    ];
    s.packages = (0..2)
        .map(|n| Package {
            os_index: n,
            numa_nodes: vec![n],
            model: None,
        })
        .collect();
    s.numa_nodes = (0..2)
        .map(|n| NumaNode {
            os_index: n,
            memory_bytes: None,
            cpus: None,
        })
        .collect();
    s.nics = vec![Nic {
        name: "mlx5_0".to_string(),
        pci: Reading::Known(at("0000:18:00.0")),
        bridge_chain: Reading::Known(vec![
            at("0000:16:00.0"),
            at("0000:15:00.0"),
            at("0000:12:02.0"),
            at(top[0]),
            at(top[1]),
        ]),
        numa_node: Reading::Known(0),
        to_gpus: Vec::new(),
    }];
    s.claims = PairTable::new(6);
    s
}

fn label(s: &Snapshot, a: u32, b: u32) -> String {
    let pair = OrderedPair::new(a, b).unwrap();
    s.topology.pairs.get(pair).unwrap().label()
}

fn group(members: &[u32]) -> Vec<GpuIndex> {
    members.iter().copied().map(GpuIndex).collect()
}

#[test]
fn path_types_are_nvidia_smis() {
    let mut s = host();
    join(&mut s);
    let row: Vec<String> = (1..6).map(|b| label(&s, 0, b)).collect();
    assert_eq!(row, ["PIX", "PXB", "PHB", "NODE", "SYS"]);
    let path = s
        .topology
        .pairs
        .get(OrderedPair::new(0, 2).unwrap())
        .unwrap();
    let names: Vec<String> = path.bridges.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "0000:12:00.0",
            "0000:11:00.0",
            "0000:12:02.0",
            "0000:15:00.0",
            "0000:16:00.0"
        ]
    );
    let nic: Vec<String> = s.nics[0]
        .to_gpus
        .iter()
        .map(|p| p.map_or("?".to_string(), |p| p.to_string()))
        .collect();
    assert_eq!(nic, ["PXB", "PXB", "PIX", "PHB", "NODE", "SYS"]);
    let islands: Vec<(&str, Vec<u32>)> = s
        .topology
        .islands
        .iter()
        .map(|i| (i.joined_by.as_str(), i.gpus.iter().map(|g| g.0).collect()))
        .collect();
    assert_eq!(
        islands,
        [
            ("PIX", vec![0, 1]),
            ("PXB", vec![0, 1, 2]),
            ("NUMA node 0", vec![0, 1, 2, 3, 4])
        ]
    );
}

#[test]
fn classes_are_of_groups() {
    let mut s = host();
    join(&mut s);
    let class = |g: &[u32]| class_of(&s, &group(g)).0;
    assert_eq!(s.topology.class, FabricClass::PcieSwitch);
    assert_eq!(class(&[3, 4]), FabricClass::RootComplexSingleSocket);
    assert_eq!(class(&[3, 4, 5]), FabricClass::RootComplexCrossSocket);
    assert_eq!(class(&[5]), FabricClass::None);
    assert_eq!(class(&[]), FabricClass::None);
    assert_eq!(class(&[0, 0, 99]), FabricClass::None);
    assert_eq!(
        flashinfer_label(&s, &group(&[0, 1, 5])),
        FlashInferLabel::PcieswitchPairs
    );
    assert_eq!(
        flashinfer_label(&s, &group(&[0, 3, 5])),
        FlashInferLabel::RootcplxNoswitch
    );
}

#[test]
fn joining_twice_changes_nothing() {
    let mut once = host();
    join(&mut once);
    let mut twice = once.clone();
    join(&mut twice);
    assert_eq!(once, twice);
}

#[test]
fn nvml_and_bridge_chain_may_differ_and_that_is_said() {
    let mut s = host();
    for (pair, level) in [((0, 1), 40), ((1, 0), 40)] {
        s.claims.set(
            OrderedPair::new(pair.0, pair.1).unwrap(),
            PairClaims {
                common_ancestor: Reading::Known(level),
                ..PairClaims::default()
            },
        );
    }
    join(&mut s);
    assert_eq!(label(&s, 0, 1), "PIX");
    let told = &s.topology.disagreements;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].about, "path type 0->1");
    assert_eq!(told[0].claims[1].1, "NODE");
    // FlashInfer asks NVML only.
    assert_eq!(
        flashinfer_label(&s, &group(&[0, 1])),
        FlashInferLabel::RootcplxNoswitch
    );
}

#[test]
fn what_no_source_shows_stays_unknown() {
    let mut s = host();
    for gpu in &mut s.gpus {
        gpu.bridge_chain = Reading::default();
        gpu.root_bus = Reading::default();
        gpu.numa_node = Reading::Known(-1);
    }
    join(&mut s);
    assert_eq!(label(&s, 0, 1), "?");
    assert_eq!(s.topology.class, FabricClass::Unknown);
    // The package alone tells SYS.
    s.gpus[0].package = Reading::Known(0);
    s.gpus[5].package = Reading::Known(1);
    join(&mut s);
    assert_eq!(label(&s, 0, 5), "SYS");
    assert_eq!(label(&s, 0, 1), "?");
}

/// The two-GPU virtual machine of facts/h200.md: flat PCI, hidden far ends, fabric completed.
fn flat_vm() -> Snapshot {
    let mut s = Snapshot::empty(Origin::Live);
    s.host.hypervisor = Reading::Known(true);
    s.gpus = vec![
        gpu("0000:00:06.0", &[], "0000:00", -1),
        gpu("0000:00:07.0", &[], "0000:00", -1),
    ];
    s.claims = PairTable::new(2);
    for gpu in &mut s.gpus {
        gpu.identity = Reading::Known(PciIdentity {
            vendor: 0x10de,
            device: 0x2335,
            class: 0x0302,
        });
        let link = |link| NvLink {
            link,
            active: true,
            version: Some(4),
            raw_gb_per_s: Some(26.562),
            remote: None,
            remote_kind: NvLinkEnd::Unknown,
            errors: None,
        };
        gpu.nvlinks = Reading::Known((0..18).map(link).collect());
    }
    s
}

#[test]
fn registered_fabric_means_nvswitch() {
    let mut s = flat_vm();
    for gpu in &mut s.gpus {
        gpu.fabric = Reading::Known(FabricState {
            state: "completed".to_string(),
            status: 0,
            cluster: "0".repeat(32),
            clique: 0,
            health_mask: None,
        });
    }
    join(&mut s);
    assert_eq!(label(&s, 0, 1), "NV18");
    assert_eq!(s.topology.class, FabricClass::Nvswitch);
}

#[test]
fn hidden_far_ends_need_a_claim_about_the_pair() {
    let mut s = flat_vm();
    join(&mut s);
    assert_eq!(label(&s, 0, 1), "PHB");
    assert!(
        !s.topology
            .pairs
            .get(OrderedPair::new(0, 1).unwrap())
            .unwrap()
            .nvlink_known
    );
    assert_eq!(s.topology.class, FabricClass::VmOpaque);
    for pair in OrderedPair::all(2) {
        s.claims.set(
            pair,
            PairClaims {
                p2p_nvlink: Reading::Known("OK".to_string()),
                ..PairClaims::default()
            },
        );
    }
    join(&mut s);
    assert_eq!(label(&s, 0, 1), "NV18");
    assert_eq!(s.topology.class, FabricClass::NvlinkPairs);
}

#[test]
fn inactive_links_do_not_join() {
    let mut s = flat_vm();
    let there = at("0000:00:07.0");
    if let Reading::Known(links) = &mut s.gpus[0].nvlinks {
        for (n, link) in links.iter_mut().enumerate() {
            link.remote = Some(there);
            link.remote_kind = NvLinkEnd::Gpu;
            link.active = n < 4;
        }
    }
    join(&mut s);
    assert_eq!(label(&s, 0, 1), "NV4");
}
