//! The live readers against small /sys, /proc and kernel-log trees that each test builds for itself.
#![allow(clippy::unwrap_used)]

use peerproof::{
    collect::live::{Depth, Roots, collect, collect_and_observe, in_use},
    model::{
        reading::{Absence, Reading},
        snapshot::{Authenticity, BridgePort, Snapshot},
    },
};
use std::{fs, os::unix::fs::symlink, path::PathBuf};

/// A tree below a temporary folder.
struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("sys/bus/pci/devices")).unwrap();
        Tree { folder }
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// A function at `place` ("pci0000:15/0000:15:01.0"), linked from the bus folder as the kernel does it.
    fn function(&self, place: &str, vendor: u16, device: u16, class: u32, config: &[u8]) -> String {
        let bdf = place.rsplit('/').next().unwrap();
        let base = format!("sys/devices/{place}");
        self.write(&format!("{base}/vendor"), format!("{vendor:#06x}\n"));
        self.write(&format!("{base}/device"), format!("{device:#06x}\n"));
        self.write(&format!("{base}/class"), format!("{class:#08x}\n"));
        self.write(&format!("{base}/config"), config);
        symlink(
            format!("../../../devices/{place}"),
            self.folder.path().join("sys/bus/pci/devices").join(bdf),
        )
        .unwrap();
        base
    }

    fn link(&self, base: &str, now: (&str, u32), max: (&str, u32)) {
        for (which, (speed, width)) in [("current", now), ("max", max)] {
            self.write(&format!("{base}/{which}_link_speed"), format!("{speed}\n"));
            self.write(&format!("{base}/{which}_link_width"), format!("{width}\n"));
        }
    }

    fn iommu(&self, base: &str, group: u32, kind: &str) {
        self.write(&format!("sys/kernel/iommu_groups/{group}/type"), kind);
        let up = "../".repeat(base.matches('/').count());
        symlink(
            format!("{up}kernel/iommu_groups/{group}"),
            self.folder.path().join(base).join("iommu_group"),
        )
        .unwrap();
    }

    fn roots(&self) -> Roots {
        Roots {
            root: Some(PathBuf::from(self.folder.path())),
        }
    }

    fn collect(&self) -> Snapshot {
        collect(&self.roots())
    }
}

/// Configuration space with a PCI Express capability of a port type and, if wanted, ACS words at 0x148.
fn config(port: u8, acs: Option<(u16, u16)>) -> Vec<u8> {
    let mut bytes = vec![0_u8; 4096];
    bytes[0..4].copy_from_slice(&[0x00, 0x10, 0x30, 0xc0]);
    bytes[0x06] = 0x10;
    bytes[0x34] = 0x40;
    bytes[0x40] = 0x10;
    bytes[0x42] = port << 4 | 2;
    bytes[0x100..0x104].copy_from_slice(&(0x0001_u32 | 2 << 16 | 0x148 << 20).to_le_bytes());
    let id = if acs.is_some() { 0x000d_u32 } else { 0x000e };
    bytes[0x148..0x14c].copy_from_slice(&(id | 1 << 16).to_le_bytes());
    let (capability, control) = acs.unwrap_or_default();
    bytes[0x14c..0x14e].copy_from_slice(&capability.to_le_bytes());
    bytes[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
    bytes
}

const SWITCH: &str = "pci0000:15/0000:15:01.0/0000:16:00.0";

/// Two GPUs and an adapter below one switch; ACS redirects on the first GPU's port only.
fn switch_host() -> Tree {
    let tree = Tree::new();
    let root = tree.function(
        "pci0000:15/0000:15:01.0",
        0x8086,
        0x352a,
        0x06_0400,
        &config(4, Some((0xff, 0))),
    );
    tree.link(&root, ("32.0 GT/s PCIe", 16), ("32.0 GT/s PCIe", 16));
    tree.function(SWITCH, 0x1000, 0xc030, 0x06_0400, &config(5, None));
    for (slot, control) in [(0, 0x1d), (1, 0x01), (2, 0x00)] {
        let port = tree.function(
            &format!("{SWITCH}/0000:17:0{slot}.0"),
            0x1000,
            0xc030,
            0x06_0400,
            &config(6, Some((0x5f, control))),
        );
        tree.link(&port, ("16.0 GT/s PCIe", 8), ("16.0 GT/s PCIe", 16));
    }
    for (slot, bus) in [(0, 0x18), (1, 0x19)] {
        let gpu = tree.function(
            &format!("{SWITCH}/0000:17:0{slot}.0/0000:{bus:02x}:00.0"),
            0x10de,
            0x2bb5,
            0x03_0200,
            &config(0, None),
        );
        tree.link(&gpu, ("2.5 GT/s PCIe", 8), ("32.0 GT/s PCIe", 16));
        tree.write(&format!("{gpu}/numa_node"), "1\n");
        tree.write(&format!("{gpu}/local_cpulist"), "32-63,96-127\n");
        tree.write(
            &format!("{gpu}/resource"),
            "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n\
             0x0000206000000000 0x0000207fffffffff 0x000000000014220c\n\
             0x0000000000000000 0x0000000000000000 0x0000000000000000\n",
        );
        tree.write(
            &format!("{gpu}/aer_dev_correctable"),
            "RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7\n",
        );
        tree.write(&format!("{gpu}/aer_dev_nonfatal"), "TOTAL_ERR_NONFATAL 0\n");
        tree.write(&format!("{gpu}/aer_dev_fatal"), "TOTAL_ERR_FATAL 0\n");
        // Old kernels end the type without a newline.
        tree.iommu(
            &gpu,
            40 + slot,
            if slot == 0 { "DMA-FQ\n" } else { "identity" },
        );
    }
    let nic = tree.function(
        &format!("{SWITCH}/0000:17:02.0/0000:1a:00.0"),
        0x15b3,
        0x1021,
        0x02_0700,
        &config(0, None),
    );
    tree.write(&format!("{nic}/infiniband/mlx5_3/node_type"), "1");
    tree.write(&format!("{nic}/net/ib3/mtu"), "4092");
    tree.write(&format!("{nic}/numa_node"), "1");
    let virtual_function = tree.function(
        &format!("{SWITCH}/0000:17:02.0/0000:1a:00.1"),
        0x15b3,
        0x101e,
        0x02_0700,
        &config(0, None),
    );
    symlink(
        "../0000:1a:00.0",
        tree.folder.path().join(virtual_function).join("physfn"),
    )
    .unwrap();
    tree
}

#[test]
fn a_switch_host_is_read_whole() {
    let snapshot = switch_host().collect();
    assert_eq!(snapshot.authenticity, Authenticity::Simulated);
    let addresses: Vec<String> = snapshot
        .gpus
        .iter()
        .map(|gpu| gpu.pci.known().unwrap().to_string())
        .collect();
    assert_eq!(addresses, ["0000:18:00.0", "0000:19:00.0"]);
    let gpu = &snapshot.gpus[0];
    let chain: Vec<String> = gpu
        .bridge_chain
        .known()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(chain, ["0000:17:00.0", "0000:16:00.0", "0000:15:01.0"]);
    assert_eq!(gpu.root_bus, Reading::Known("0000:15".to_string()));
    assert_eq!(gpu.numa_node, Reading::Known(1));
    assert_eq!(gpu.bar1_bytes, Reading::Known(128 << 30));
    assert_eq!(gpu.cpu_affinity, Reading::Known("32-63,96-127".to_string()));
    assert_eq!(gpu.p2p_clique, Reading::Known(None));
    assert_eq!(gpu.aer.known().unwrap().correctable, 7);
    // The slot gives 16 GT/s although the GPU could do 32.
    assert_eq!(gpu.link_max.known().unwrap().generation(), Some(4));
    assert_eq!(gpu.link_now.known().unwrap().generation(), Some(1));
    let iommu = gpu.iommu.known().unwrap();
    assert_eq!((iommu.group, iommu.translates()), (40, Some(true)));
    let other = snapshot.gpus[1].iommu.known().unwrap();
    assert_eq!((other.group, other.translates()), (41, Some(false)));

    let ports: Vec<BridgePort> = snapshot.bridges.iter().map(|b| b.port).collect();
    assert_eq!(
        ports,
        [
            BridgePort::Root,
            BridgePort::SwitchUpstream,
            BridgePort::SwitchDownstream,
            BridgePort::SwitchDownstream,
            BridgePort::SwitchDownstream
        ]
    );
    let redirects: Vec<bool> = snapshot
        .bridges
        .iter()
        .map(|b| b.acs.known().unwrap().redirects())
        .collect();
    assert_eq!(redirects, [false, false, true, false, false]);
    assert_eq!(snapshot.bridges[0].parent, None);
    assert_eq!(snapshot.bridges[2].parent, Some(snapshot.bridges[1].pci));

    assert_eq!(snapshot.nics.len(), 1, "virtual functions are left out");
    assert_eq!(snapshot.nics[0].name, "mlx5_3");
}

#[test]
fn without_root_acs_is_no_permission_and_ports_follow_from_their_place() {
    let tree = switch_host();
    let devices = tree.folder.path().join("sys/bus/pci/devices");
    for entry in fs::read_dir(devices).unwrap() {
        let config = entry.unwrap().path().join("config");
        let short = fs::read(&config).unwrap()[..64].to_vec();
        fs::write(&config, short).unwrap();
    }
    let snapshot = tree.collect();
    for bridge in &snapshot.bridges {
        assert!(
            matches!(bridge.acs, Reading::Absent(Absence::NoPermission(_))),
            "{:?}",
            bridge.acs
        );
    }
    let ports: Vec<BridgePort> = snapshot.bridges.iter().map(|b| b.port).collect();
    assert_eq!(
        ports[..3],
        [
            BridgePort::Root,
            BridgePort::SwitchUpstream,
            BridgePort::SwitchDownstream
        ]
    );
    assert!(matches!(
        snapshot.gpus[0].p2p_clique,
        Reading::Absent(Absence::NoPermission(_))
    ));
}

#[test]
fn an_opaque_guest_keeps_its_minus_one() {
    let tree = Tree::new();
    for slot in [6, 7] {
        let gpu = tree.function(
            &format!("pci0000:00/0000:00:0{slot}.0"),
            0x10de,
            0x2335,
            0x03_0200,
            &config(0, None),
        );
        tree.write(&format!("{gpu}/numa_node"), "-1\n");
        tree.link(&gpu, ("32.0 GT/s PCIe", 16), ("32.0 GT/s PCIe", 16));
        symlink(
            "../../../bus/pci/drivers/nvidia",
            tree.folder.path().join(&gpu).join("driver"),
        )
        .unwrap();
    }
    let nic = tree.function("pci0000:00/0000:00:03.0", 0x1af4, 0x1041, 0x02_0000, &[]);
    tree.write(&format!("{nic}/virtio2/net/eth0/mtu"), "1500");
    tree.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu vme hypervisor lahf_lm\n\n");
    let snapshot = tree.collect();
    assert_eq!(snapshot.gpus.len(), 2);
    assert_eq!(snapshot.gpus[0].numa_node, Reading::Known(-1));
    assert_eq!(snapshot.gpus[0].bridge_chain, Reading::Known(Vec::new()));
    assert_eq!(
        snapshot.gpus[0].root_bus,
        Reading::Known("0000:00".to_string())
    );
    assert!(matches!(
        snapshot.gpus[0].iommu,
        Reading::Absent(Absence::NotSupported(_))
    ));
    assert!(matches!(
        snapshot.gpus[0].aer,
        Reading::Absent(Absence::SourceMissing(_))
    ));
    assert!(snapshot.bridges.is_empty());
    assert_eq!(snapshot.nics[0].name, "eth0");
    assert_eq!(snapshot.host.hypervisor, Reading::Known(true));
    assert_eq!(
        snapshot.host.iommu_classes.known(),
        None,
        "no /sys/class to look into"
    );
}

#[test]
fn a_vmd_domain_is_wider_than_sixteen_bits() {
    let tree = Tree::new();
    tree.function(
        "pci0000:e0/0000:e0:00.5/pci10000:e0/10000:e0:01.0",
        0x8086,
        0x352a,
        0x06_0400,
        &config(4, None),
    );
    tree.function(
        "pci0000:e0/0000:e0:00.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0",
        0x10de,
        0x26b9,
        0x03_0200,
        &config(0, None),
    );
    let snapshot = tree.collect();
    assert_eq!(
        snapshot.gpus[0].pci.known().unwrap().to_string(),
        "10000:e1:00.0"
    );
    assert_eq!(
        snapshot.gpus[0].root_bus,
        Reading::Known("10000:e0".to_string())
    );
    assert_eq!(snapshot.bridges.len(), 1);
    assert_eq!(snapshot.bridges[0].pci.domain, 0x10000);
}

#[test]
fn host_and_driver_files_are_read_below_the_root() {
    let tree = Tree::new();
    tree.write("proc/sys/kernel/hostname", "sim-host\n")
        .write("proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
        .write("proc/meminfo", "MemTotal:       2113453056 kB\nMemFree: 1 kB\n")
        .write("proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt pci=disable_acs_redir=0000:15:01.0\n")
        .write("proc/self/limits", "Limit Soft Hard Units\nMax locked memory         8388608              8388608              bytes     \n")
        .write("proc/self/status", "Name:\tcat\nSeccomp:\t2\nSeccomp_filters:\t1\n")
        .write("proc/sys/kernel/yama/ptrace_scope", "1\n")
        .write("proc/1/cgroup", "0::/kubepods.slice/kubepods-burstable.slice\n")
        .write("proc/mounts", "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k,inode64 0 0\n")
        .write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22)\nGCC version:  gcc version 13\n")
        .write("proc/driver/nvidia/params", "NvLinkDisable: 1\nRegistryDwords: \"RMForceP2PType=1\"\nModifyDeviceFiles: 1\n")
        .write("sys/class/dmi/id/sys_vendor", "Supermicro\n")
        .write("sys/class/dmi/id/product_name", "SYS-521GE-TNRT\n")
        .write("sys/class/dmi/id/bios_date", "03/12/2025\n")
        .write("sys/class/dmi/id/bios_version", "2.5\n")
        .write("sys/devices/system/cpu/online", "0-127\n")
        .write("etc/os-release", "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 24.04.3 LTS\"\n")
        .write("dev/kmsg", "6,10,100,-;iommu: Default domain type: Passthrough (set via kernel command line)\n6,11,200,-;usb 1-1: new device\n4,12,90000000,-;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n");
    let host = tree.collect();
    let driver = host.driver.clone();
    let host = host.host;
    assert_eq!(host.name, Reading::Known("sim-host".to_string()));
    assert_eq!(host.memory_bytes, Reading::Known(2_113_453_056 * 1024));
    assert_eq!(host.memlock_bytes, Reading::Known(8_388_608));
    assert_eq!(host.seccomp, Reading::Known(2));
    assert_eq!(host.ptrace_scope, Reading::Known(1));
    assert_eq!(
        host.container,
        Reading::Known(Some("kubernetes".to_string()))
    );
    assert_eq!(host.shm_bytes, Reading::Known(64 << 20));
    assert_eq!(host.bios, Reading::Known("03/12/2025 2.5".to_string()));
    assert_eq!(host.logical_cpus, Reading::Known(128));
    assert_eq!(host.os, Reading::Known("Ubuntu 24.04.3 LTS".to_string()));
    assert_eq!(host.iommu_classes, Reading::Known(Vec::new()));
    assert_eq!(host.kernel_log.known().unwrap().len(), 2);
    assert_eq!(driver.version, Reading::Known("580.159.04".to_string()));
    assert_eq!(driver.flavour, Reading::Known("open".to_string()));
    assert_eq!(
        driver.params.known().unwrap(),
        &[
            ("NvLinkDisable".to_string(), "1".to_string()),
            ("RegistryDwords".to_string(), "RMForceP2PType=1".to_string())
        ]
    );
}

#[test]
fn packages_come_from_sysfs_where_hwloc_has_no_file() {
    let tree = Tree::new();
    for node in 0..2 {
        tree.write(
            &format!("sys/devices/system/node/node{node}/cpulist"),
            format!("{node}\n"),
        );
        tree.write(
            &format!("sys/devices/system/node/node{node}/meminfo"),
            format!("Node {node} MemTotal:       1048576 kB\n"),
        );
        tree.write(
            &format!("sys/devices/system/cpu/cpu{node}/topology/physical_package_id"),
            format!("{node}\n"),
        );
    }
    // GPU memory of a coherent system, and a node held back for its slices.
    tree.write(
        "sys/devices/system/node/node2/meminfo",
        "Node 2 MemTotal: 98566144 kB\n",
    );
    tree.write("sys/devices/system/node/node2/cpulist", "\n");
    tree.write("sys/devices/system/node/node3/cpulist", "\n");
    tree.write(
        "proc/driver/nvidia/gpus/0009:01:00.0/numa_status",
        "Node: 2\nStatus: online\n",
    );
    let gpu = tree.function("pci0000:15/0000:15:01.0", 0x10de, 0x2bb5, 0x03_0200, &[]);
    tree.write(&format!("{gpu}/numa_node"), "1\n");
    let snapshot = tree.collect();
    let nodes: Vec<u32> = snapshot.numa_nodes.iter().map(|n| n.os_index).collect();
    assert_eq!(nodes, [0, 1]);
    assert_eq!(snapshot.numa_nodes[0].memory_bytes, Some(1 << 30));
    assert_eq!(snapshot.packages.len(), 2);
    assert_eq!(snapshot.packages[1].numa_nodes, [1]);
    assert_eq!(snapshot.gpus[0].package, Reading::Known(1));
}

#[test]
fn garbage_in_every_file_is_absence_not_panic() {
    let tree = switch_host();
    let base = format!("{SWITCH}/0000:17:00.0/0000:18:00.0");
    for name in [
        "numa_node",
        "resource",
        "config",
        "current_link_speed",
        "current_link_width",
        "max_link_speed",
        "local_cpulist",
        "aer_dev_correctable",
        "aer_dev_fatal",
    ] {
        tree.write(
            &format!("sys/devices/{base}/{name}"),
            [0xff, 0x00, b'-', b'9', b'\n', 0xfe],
        );
    }
    for path in [
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/self/limits",
        "proc/self/status",
        "proc/mounts",
        "dev/kmsg",
        "etc/os-release",
        "proc/driver/nvidia/version",
        "proc/driver/nvidia/params",
        "hwloc.xml",
        "sys/devices/system/cpu/online",
    ] {
        tree.write(path, [0xff, 0x00, b':', b'"', b'\n', 0xfe, b'-']);
    }
    let snapshot = tree.collect();
    assert_eq!(snapshot.gpus.len(), 2);
    assert!(matches!(
        snapshot.gpus[0].numa_node,
        Reading::Absent(Absence::Unparsed(_))
    ));
    assert!(snapshot.gpus[0].aer.known().is_none());
    assert!(snapshot.gpus[0].link_now.known().is_none());
    assert!(matches!(
        snapshot.driver.flavour,
        Reading::Absent(Absence::Unparsed(_))
    ));
    let hwloc = snapshot
        .sources
        .iter()
        .find(|s| s.source == "hwloc")
        .unwrap();
    assert!(matches!(
        hwloc.result,
        Reading::Absent(Absence::Unparsed(_))
    ));
}

#[test]
fn without_a_driver_every_source_says_what_it_found() {
    let (snapshot, observer) = collect_and_observe(&switch_host().roots(), Depth::Full);
    let note = |name: &str| {
        &snapshot
            .sources
            .iter()
            .find(|s| s.source == name)
            .unwrap()
            .result
    };
    if let Reading::Absent(why) = note("nvml") {
        // This machine has no driver: the two GPUs of the tree are there, and each says why NVML knows nothing.
        assert_eq!(snapshot.gpus[0].name.absence(), Some(why));
        let seen = observer.observe("before", &[]);
        assert_eq!(seen.gpus.len(), 2);
        assert!(seen.gpus[0].utilization_percent.known().is_none());
        // The tree is gone by now, and so are its counters.
        assert!(matches!(
            seen.gpus[0].aer,
            Reading::Absent(Absence::SourceMissing(_))
        ));
        assert_eq!(in_use(&snapshot.gpus[0]), None);
    }
    assert!(note("pci").known().unwrap().contains("GPUs: 2"));
    assert!(matches!(
        note("hwloc"),
        Reading::Absent(Absence::SourceMissing(_))
    ));
    assert!(matches!(
        note("kernel log"),
        Reading::Absent(Absence::SourceMissing(_))
    ));
}

#[test]
fn this_machine_is_read_as_it_is() {
    let snapshot = collect(&Roots::default());
    let names: Vec<&str> = snapshot.sources.iter().map(|s| s.source.as_str()).collect();
    assert_eq!(
        names,
        [
            "nvml init",
            "nvml",
            "pci",
            "hwloc",
            "host",
            "kernel log",
            "all sources and their join"
        ]
    );
    assert!(snapshot.host.kernel.known().is_some());
    assert!(
        snapshot
            .host
            .memory_bytes
            .known()
            .is_some_and(|b| *b > 1 << 28)
    );
    assert!(!snapshot.packages.is_empty());
    if snapshot.sources[0].result.known().is_none()
        && !std::path::Path::new("/proc/driver/nvidia").exists()
    {
        assert_eq!(snapshot.authenticity, Authenticity::Hardware);
        assert!(snapshot.gpus.is_empty());
        let why = snapshot.sources[0].result.absence().unwrap().to_string();
        assert!(why.contains("libnvidia-ml.so.1"), "{why}");
    }
    let text = serde_json::to_string(&snapshot).unwrap();
    let again: Snapshot = serde_json::from_str(&text).unwrap();
    assert_eq!(again, snapshot);
}

/// A machine of one package with a GPU behind a root port and a two-level switch, as hwloc 2 exports it; `port` is the
/// downstream port's bus address. A second NUMA node is GPU memory.
fn hwloc_xml(port: &str) -> String {
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" allowed_cpuset="0x00000003" nodeset="0x00000003" complete_nodeset="0x00000003" allowed_nodeset="0x00000003" gp_index="1">
    <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2" local_memory="1073741824"/>
    <object type="NUMANode" os_index="1" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="3" local_memory="2147483648" subtype="GPUMemory"/>
    <object type="Package" os_index="4" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000003" complete_nodeset="0x00000003" gp_index="4">
      <info name="CPUModel" value="Test CPU"/>
      <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000003" complete_nodeset="0x00000003" gp_index="5"/>
      <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000003" complete_nodeset="0x00000003" gp_index="6"/>
    </object>
    <object type="Bridge" gp_index="7" bridge_type="0-1" depth="0" bridge_pci="0000:[15-1f]">
      <object type="Bridge" gp_index="8" bridge_type="1-1" depth="1" bridge_pci="0000:[16-1f]" pci_busid="0000:15:01.0" pci_type="0604 [8086:352a] [0000:0000] 04" pci_link_speed="0.000000">
        <object type="Bridge" gp_index="9" bridge_type="1-1" depth="2" bridge_pci="0000:[17-1f]" pci_busid="0000:16:00.0" pci_type="0604 [1000:c030] [0000:0000] b0" pci_link_speed="0.000000">
          <object type="Bridge" gp_index="10" bridge_type="1-1" depth="3" bridge_pci="0000:[18-18]" pci_busid="{port}" pci_type="0604 [1000:c030] [0000:0000] b0" pci_link_speed="0.000000">
            <object type="PCIDev" gp_index="11" pci_busid="0000:18:00.0" pci_type="0302 [10de:2bb5] [10de:204e] a1" pci_link_speed="0.000000"/>
          </object>
        </object>
      </object>
    </object>
  </object>
</topology>
"#
    )
}

#[test]
fn hwloc_stands_in_for_an_unreadable_pci_tree() {
    let tree = Tree::new();
    fs::remove_dir_all(tree.folder.path().join("sys")).unwrap();
    tree.write("hwloc.xml", hwloc_xml("0000:17:00.0"));
    let snapshot = tree.collect();
    let hwloc = snapshot
        .sources
        .iter()
        .find(|s| s.source == "hwloc")
        .unwrap();
    assert!(hwloc.result.known().is_some(), "{hwloc:?}");
    assert_eq!(snapshot.gpus.len(), 1);
    let gpu = &snapshot.gpus[0];
    let chain: Vec<String> = gpu
        .bridge_chain
        .known()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(chain, ["0000:17:00.0", "0000:16:00.0", "0000:15:01.0"]);
    assert_eq!(gpu.package, Reading::Known(4));
    assert_eq!(gpu.identity.known().unwrap().device, 0x2bb5);
    assert!(gpu.iommu.known().is_none());
    let ports: Vec<BridgePort> = snapshot.bridges.iter().map(|b| b.port).collect();
    assert_eq!(
        ports,
        [
            BridgePort::Root,
            BridgePort::SwitchUpstream,
            BridgePort::SwitchDownstream
        ]
    );
    assert_eq!(snapshot.packages[0].model.as_deref(), Some("Test CPU"));
    let nodes: Vec<u32> = snapshot.numa_nodes.iter().map(|n| n.os_index).collect();
    assert_eq!(nodes, [0], "GPU memory is no NUMA node of the host");
}

#[test]
fn a_hierarchy_that_hwloc_sees_otherwise_is_a_disagreement() {
    let about = |port: &str| -> Vec<String> {
        let tree = switch_host();
        tree.write("hwloc.xml", hwloc_xml(port));
        let snapshot = tree.collect();
        let chain = snapshot.gpus[0].bridge_chain.known().unwrap();
        assert_eq!(
            chain[0].to_string(),
            "0000:17:00.0",
            "the kernel is followed"
        );
        let told = snapshot.topology.disagreements.iter();
        told.map(|d| d.about.clone())
            .filter(|about| about.contains("GPU0"))
            .collect()
    };
    // The tree says NUMA node 1, which hwloc knows as GPU memory, so only node 0 is left for the place.
    assert_eq!(about("0000:17:00.0"), ["NUMA node of GPU0 (0000:18:00.0)"]);
    assert_eq!(
        about("0000:17:05.0"),
        [
            "bridges above GPU0 (0000:18:00.0)",
            "NUMA node of GPU0 (0000:18:00.0)"
        ]
    );
}
