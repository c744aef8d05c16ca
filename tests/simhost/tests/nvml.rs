//! The look-alike NVML through the product's own wrapper: its answers agree with the scenario and with the processes.
mod harness;

use harness::*;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TopologyLevel,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use simhost::scenario::Scenario;
use simhost::topology::{PathType, Topology};

fn on(name: &str, scenario: &str, settings: &[&str], body: impl FnOnce(&Nvml)) {
    must_pass(in_child(name, scenario, settings, &[], || {
        body(&Nvml::init().unwrap())
    }));
}

fn level(path: PathType) -> TopologyLevel {
    match path {
        PathType::Pix => TopologyLevel::Single,
        PathType::Pxb => TopologyLevel::Multiple,
        PathType::Phb => TopologyLevel::HostBridge,
        PathType::Node => TopologyLevel::Node,
        PathType::Sys => TopologyLevel::System,
    }
}

/// Every pair's common ancestor as a string of letters, row by row.
fn matrix(nvml: &Nvml) -> Vec<String> {
    let n = nvml.device_count().unwrap();
    (0..n)
        .map(|a| {
            let words = (0..n).map(|b| {
                if a == b {
                    return "X";
                }
                let (a, b) = (
                    nvml.device_by_index(a).unwrap(),
                    nvml.device_by_index(b).unwrap(),
                );
                match a.topology_common_ancestor(b).unwrap() {
                    TopologyLevel::Single => "PIX",
                    TopologyLevel::Multiple => "PXB",
                    TopologyLevel::HostBridge => "PHB",
                    TopologyLevel::Node => "NODE",
                    TopologyLevel::System => "SYS",
                    TopologyLevel::Internal => "INT",
                }
            });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn switch_pairs_are_pix_node_and_sys() {
    on(
        "switch_pairs_are_pix_node_and_sys",
        "switch-pairs-x8",
        &[],
        |nvml| {
            let m = matrix(nvml);
            assert_eq!(m[0], "X PIX NODE NODE SYS SYS SYS SYS");
            assert_eq!(m[7], "SYS SYS SYS SYS NODE NODE PIX X");
        },
    );
}

#[test]
fn a_host_without_switches_is_node_and_sys() {
    on(
        "a_host_without_switches_is_node_and_sys",
        "rtxpro6000-x8-root-complex",
        &[],
        |nvml| {
            assert_eq!(matrix(nvml)[1], "NODE X NODE NODE SYS SYS SYS SYS");
        },
    );
}

#[test]
fn a_flat_guest_is_phb() {
    on("a_flat_guest_is_phb", "opaque-vm", &[], |nvml| {
        assert_eq!(matrix(nvml), ["X PHB", "PHB X"]);
        let gpu = nvml.device_by_index(0).unwrap();
        assert_eq!(gpu.pci_info().unwrap().bus_id, "00000000:00:06.0");
        let link = gpu.link_wrapper_for(17);
        assert!(link.is_active().unwrap());
        assert_eq!(link.version().unwrap(), 4);
        assert!(link.remote_pci_info().is_err(), "the switches are hidden");
        assert!(gpu.link_wrapper_for(18).is_active().is_err());
    });
}

#[test]
fn an_ancestor_can_be_a_lie() {
    let claims = r#"claims=[{ pair = "0>1", ancestor = "SYS", p2p = "CNS" }]"#;
    on(
        "an_ancestor_can_be_a_lie",
        "switch-pairs-x8",
        &[claims],
        |nvml| {
            let m = matrix(nvml);
            assert!(
                m[0].starts_with("X SYS NODE") && m[1].starts_with("PIX X"),
                "{m:?}"
            );
            let (a, b) = (
                nvml.device_by_index(0).unwrap(),
                nvml.device_by_index(1).unwrap(),
            );
            assert_eq!(
                a.p2p_status(&b, P2pCapabilitiesIndex::Read).unwrap(),
                P2pStatus::ChipsetNotSupported
            );
            assert_eq!(
                b.p2p_status(&a, P2pCapabilitiesIndex::Read).unwrap(),
                P2pStatus::Ok
            );
        },
    );
}

#[test]
fn nvswitches_carry_all_links() {
    on("nvswitches_carry_all_links", "hgx-h200-x8", &[], |nvml| {
        let scenario = Scenario::resolve("hgx-h200-x8", &[], &[]).unwrap();
        let topology = Topology::new(&scenario).unwrap();
        for i in 0..8 {
            let gpu = nvml.device_by_index(i).unwrap();
            assert_eq!(gpu.name().unwrap(), "NVIDIA H200");
            let mut per_switch = std::collections::BTreeMap::<String, u32>::new();
            for l in 0..18 {
                let link = gpu.link_wrapper_for(l);
                assert!(link.is_active().unwrap());
                // The wrapper's remote_device_type reads a copy and always says Unknown (0.13.0).
                let mut kind = 0;
                let call = nvml
                    .lib()
                    .nvmlDeviceGetNvLinkRemoteDeviceType
                    .as_ref()
                    .unwrap();
                // SAFETY: a living handle and a place for the answer.
                assert_eq!(unsafe { call(gpu.handle(), l, &mut kind) }, 0);
                assert_eq!(kind, 2, "a switch");
                *per_switch
                    .entry(link.remote_pci_info().unwrap().bus_id)
                    .or_default() += 1;
            }
            assert_eq!(
                per_switch.values().copied().collect::<Vec<_>>(),
                [5, 5, 4, 4]
            );
            for j in (0..8).filter(|&j| j != i) {
                let other = nvml.device_by_index(j).unwrap();
                assert_eq!(
                    gpu.p2p_status(&other, P2pCapabilitiesIndex::NvLink)
                        .unwrap(),
                    P2pStatus::Ok
                );
                assert_eq!(
                    gpu.topology_common_ancestor(other).unwrap(),
                    level(topology.path_type(i as usize, j as usize))
                );
            }
        }
    });
}

#[test]
fn health_and_identity_come_from_the_scenario() {
    let settings = [
        "gpus.2.ecc_uncorrected=3",
        "gpus.2.remapped_rows=1",
        "gpus.2.replays=7",
        "gpus.2.width=8",
        "gpus.2.foreign_processes=[4242]",
        "gpus.2.hidden_use_mib=5",
    ];
    on(
        "health_and_identity_come_from_the_scenario",
        "rtxpro6000-x8-root-complex",
        &settings,
        |nvml| {
            assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
            assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13000);
            let (sick, well) = (
                nvml.device_by_index(2).unwrap(),
                nvml.device_by_index(3).unwrap(),
            );
            assert_eq!(
                sick.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Aggregate)
                    .unwrap(),
                3
            );
            assert_eq!(
                well.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Aggregate)
                    .unwrap(),
                0
            );
            assert_eq!(
                (
                    sick.pcie_replay_counter().unwrap(),
                    sick.current_pcie_link_width().unwrap(),
                    sick.max_pcie_link_width().unwrap()
                ),
                (7, 8, 16)
            );
            assert_eq!(
                (
                    well.current_pcie_link_gen().unwrap(),
                    well.max_pcie_link_gen().unwrap()
                ),
                (5, 5)
            );
            let (a, b) = (sick.memory_info().unwrap(), well.memory_info().unwrap());
            assert_eq!((a.used, b.used, b.total), (5 << 20, 0, 32 << 20));
            assert_eq!(well.bar1_memory_info().unwrap().total, 4 << 20);
            let processes = sick.running_compute_processes().unwrap();
            assert_eq!(processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [4242]);
            assert!(well.running_compute_processes().unwrap().is_empty());
            assert_eq!(
                nvml.device_by_uuid(well.uuid().unwrap())
                    .unwrap()
                    .index()
                    .unwrap(),
                3
            );
            assert_eq!(
                nvml.device_by_pci_bus_id("0000:61:00.0")
                    .unwrap()
                    .index()
                    .unwrap(),
                3
            );
            let near = well.cpu_affinity(4).unwrap();
            assert_eq!(near, [u64::MAX, 0, 0, 0]);
            assert_eq!(
                nvml.device_by_index(7).unwrap().cpu_affinity(4).unwrap(),
                [0, u64::MAX, 0, 0]
            );
        },
    );
}

#[test]
fn memory_and_processes_of_cuda_are_seen() {
    on(
        "memory_and_processes_of_cuda_are_seen",
        "rtxpro6000-x8-root-complex",
        &[],
        |nvml| {
            let h = Host::new();
            let p = h.alloc(1, 3 << 20);
            let gpu = nvml.device_by_index(1).unwrap();
            assert_eq!(gpu.memory_info().unwrap().used, 3 << 20);
            let processes = gpu.running_compute_processes().unwrap();
            assert_eq!(processes.len(), 1);
            assert_eq!(processes[0].pid, std::process::id());
            assert!(matches!(processes[0].used_gpu_memory, UsedGpuMemory::Used(n) if n == 3 << 20));
            assert_eq!(h.cu.cuMemFree_v2(p), 0);
            assert_eq!(gpu.memory_info().unwrap().used, 0);
        },
    );
}

#[test]
fn geforce_refuses_by_policy() {
    on(
        "geforce_refuses_by_policy",
        "geforce-x2-refused",
        &[],
        |nvml| {
            let (a, b) = (
                nvml.device_by_index(0).unwrap(),
                nvml.device_by_index(1).unwrap(),
            );
            assert_eq!(
                a.p2p_status(&b, P2pCapabilitiesIndex::Write).unwrap(),
                P2pStatus::GpuNotSupported
            );
            assert!(a.is_ecc_enabled().is_err());
        },
    );
}
