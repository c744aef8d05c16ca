//! What was read of a host before anything was tried. Ground state: saved in the report, never recomputed.

use super::{
    pair::{GpuIndex, OrderedPair, PairTable},
    pci::{PciAddress, PciIdentity, PcieLink},
    reading::{Absence, Reading},
    topology::Topology,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a snapshot comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// Read from the running host.
    Live,
    /// Read from a file; such a snapshot is never probed.
    Recorded {
        /// "hwloc-xml 2.0", "nccl-topology-xml", "nvidia-smi topo -m", "peerproof-report".
        format: String,
        /// File name as given.
        file: String,
    },
}

/// What stood below the driver interface. Set by marker symbols of the loaded libraries; nothing can clear it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub enum Authenticity {
    /// A driver without a marker.
    #[default]
    Hardware,
    /// Look-alike drivers: no GPU was involved.
    Simulated,
    /// A real driver behind a library that plants faults.
    FaultInjected,
}

/// Everything read of one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Live or from which file.
    pub origin: Origin,
    /// Hardware, simulated or fault-injected.
    pub authenticity: Authenticity,
    /// When it was read, RFC 3339, UTC; `None` for foreign files.
    pub taken_at: Option<String>,
    /// The machine and its kernel.
    pub host: Host,
    /// Driver and libraries.
    pub driver: Driver,
    /// NVIDIA GPUs in PCI order; `GpuIndex` is the position here.
    pub gpus: Vec<Gpu>,
    /// PCI-to-PCI bridges above GPUs, NICs and NVSwitches.
    pub bridges: Vec<Bridge>,
    /// CPU packages.
    pub packages: Vec<Package>,
    /// NUMA nodes with CPUs or memory of the host; GPU memory nodes are left out.
    pub numa_nodes: Vec<NumaNode>,
    /// Network adapters.
    pub nics: Vec<Nic>,
    /// NVSwitches visible as PCI functions.
    pub nvswitches: Vec<PciAddress>,
    /// NVML's claims for ordered pairs; no cell where NVML was not asked.
    pub claims: PairTable<PairClaims>,
    /// The join of all sources.
    pub topology: Topology,
    /// One line per source: what was read, or why not, and how long it took.
    pub sources: Vec<SourceNote>,
    /// Environment variables that steer CUDA, NCCL or visibility, as the operator had them.
    pub environment: Vec<(String, String)>,
    /// Host bridges that show themselves as PCI functions. In a guest they tell the virtual chipset.
    #[serde(default)]
    pub host_bridges: Vec<HostBridge>,
    /// Lines of logs of NCCL and engines that the operator handed over, in order. A live run has none.
    #[serde(default)]
    pub application_log: Vec<LogLine>,
}

/// A host bridge (PCI class 0600).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostBridge {
    /// Its address.
    pub pci: PciAddress,
    /// Vendor, device and class.
    pub identity: PciIdentity,
}

/// A line of an application's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// File and line number: "nccl.log:118".
    pub source: String,
    /// The line.
    pub text: String,
}

/// A source that was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SourceNote {
    /// "nvml", "hwloc", "sysfs", "kernel log", ...
    pub source: String,
    /// Known: what was found in a few words. Absent: why not.
    pub result: Reading<String>,
    /// Wall time in milliseconds.
    pub took_ms: f64,
}

/// The machine, its kernel and its confinement.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Host name.
    pub name: Reading<String>,
    /// Kernel release.
    pub kernel: Reading<String>,
    /// Distribution, as /etc/os-release names it.
    pub os: Reading<String>,
    /// CPU model name.
    pub cpu_model: Reading<String>,
    /// Logical CPUs.
    pub logical_cpus: Reading<u32>,
    /// Physical memory in bytes.
    pub memory_bytes: Reading<u64>,
    /// Kernel command line.
    pub cmdline: Reading<String>,
    /// DMI system vendor.
    pub dmi_vendor: Reading<String>,
    /// DMI product name.
    pub dmi_product: Reading<String>,
    /// DMI BIOS date and version.
    pub bios: Reading<String>,
    /// Whether the CPU carries the hypervisor flag.
    pub hypervisor: Reading<bool>,
    /// Names in /sys/class/iommu (dmar0, ivhd0, ...); empty = no IOMMU active.
    pub iommu_classes: Reading<Vec<String>>,
    /// Container kind by its marks ("docker", "podman", "gvisor", ...); `Known(None)` = none seen.
    pub container: Reading<Option<String>>,
    /// Bytes of /dev/shm: total.
    pub shm_bytes: Reading<u64>,
    /// RLIMIT_MEMLOCK soft limit in bytes; u64::MAX = unlimited.
    pub memlock_bytes: Reading<u64>,
    /// kernel.yama.ptrace_scope; `Known(0)` also when the file does not exist.
    pub ptrace_scope: Reading<u32>,
    /// Seccomp mode of this process: 0, 1, 2.
    pub seccomp: Reading<u32>,
    /// Bytes of /dev/shm that are free: segments of crashed jobs stay in it.
    #[serde(default)]
    pub shm_free_bytes: Reading<u64>,
    /// Effective capabilities of this process (CapEff of /proc/self/status), as a mask.
    #[serde(default)]
    pub capabilities: Reading<u64>,
    /// kernel.numa_balancing: 0 off, 1 on, 2 memory tiering.
    #[serde(default)]
    pub numa_balancing: Reading<u32>,
    /// Whether the kernel is that of the Windows Subsystem for Linux.
    #[serde(default)]
    pub wsl: Reading<bool>,
    /// Lines of the kernel log that speak of GPUs, IOMMU faults or PCIe errors, in order. Silence proves nothing.
    pub kernel_log: Reading<Vec<String>>,
}

/// Driver and user-mode libraries.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Driver {
    /// Kernel driver version, "580.159.04".
    pub version: Reading<String>,
    /// "open", "proprietary", from /proc/driver/nvidia/version.
    pub flavour: Reading<String>,
    /// NVML version.
    pub nvml_version: Reading<String>,
    /// CUDA version of the driver, 1000*major + 10*minor (13000).
    pub cuda_version: Reading<i32>,
    /// `Name: value` lines of /proc/driver/nvidia/params that matter (RegistryDwords, NvLinkDisable, ...).
    pub params: Reading<Vec<(String, String)>>,
    /// Confidential computing on.
    pub confidential_computing: Reading<bool>,
    /// Multi-GPU mode of confidential computing: "none", "protected_pcie", "nvle".
    #[serde(default)]
    pub confidential_multi_gpu: Reading<String>,
    /// Whether nvidia_peermem is loaded.
    #[serde(default)]
    pub peermem: Reading<bool>,
    /// Whether nvidia_uvm was told to leave HMM off (uvm_disable_hmm).
    #[serde(default)]
    pub hmm_disabled: Reading<bool>,
    /// IMEX channels in /dev/nvidia-caps-imex-channels; 0 also when the folder does not exist.
    #[serde(default)]
    pub imex_channels: Reading<u32>,
}

/// One GPU. Keys are `pci` and `uuid`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// PCI address; absent only where the input has none (pasted tables).
    pub pci: Reading<PciAddress>,
    /// Vendor, device and class.
    pub identity: Reading<PciIdentity>,
    /// "GPU-..." UUID.
    pub uuid: Reading<String>,
    /// Product name.
    pub name: Reading<String>,
    /// NVML index, a label.
    pub nvml_index: Reading<u32>,
    /// The label the input used ("GPU0"), for recorded hosts.
    pub label: String,
    /// Compute capability, major and minor.
    pub compute_capability: Reading<(u32, u32)>,
    /// Device memory in bytes.
    pub memory_bytes: Reading<u64>,
    /// Device memory in use, in bytes, when the snapshot was taken.
    pub memory_used_bytes: Reading<u64>,
    /// BAR1 aperture in bytes.
    pub bar1_bytes: Reading<u64>,
    /// BAR1 in use, bytes.
    pub bar1_used_bytes: Reading<u64>,
    /// ECC mode on.
    pub ecc_enabled: Reading<bool>,
    /// Uncorrected ECC errors since the driver loaded.
    pub ecc_uncorrected: Reading<u64>,
    /// Remapped rows: correctable, uncorrectable, pending, failed.
    pub remapped_rows: Reading<RemappedRows>,
    /// Compute processes (pid, bytes used when known).
    pub compute_processes: Reading<Vec<GpuProcess>>,
    /// Graphics processes (display servers and their clients): they explain memory in use and are not 'in use'.
    #[serde(default)]
    pub graphics_processes: Reading<Vec<GpuProcess>>,
    /// MIG mode on.
    pub mig_enabled: Reading<bool>,
    /// Virtualization mode as NVML words it: "None", "PassThrough", ...
    pub virtualization: Reading<String>,
    /// Fabric registration.
    pub fabric: Reading<FabricState>,
    /// NVLinks of this GPU.
    pub nvlinks: Reading<Vec<NvLink>>,
    /// PCIe link now. Idle GPUs show a low speed by design.
    pub link_now: Reading<PcieLink>,
    /// PCIe link at most, device and slot together.
    pub link_max: Reading<PcieLink>,
    /// PCIe replay counter.
    pub pcie_replays: Reading<u64>,
    /// NUMA node of the slot; `Known(-1)` as sysfs says "unknown" (virtual machines, firmware).
    pub numa_node: Reading<i32>,
    /// CPU package (socket) os index, joined through hwloc.
    pub package: Reading<u32>,
    /// Bridges from the GPU's parent up to the root port.
    pub bridge_chain: Reading<Vec<PciAddress>>,
    /// Host bridge (root bus) it hangs below, "0000:00".
    pub root_bus: Reading<String>,
    /// IOMMU group and its default domain type (identity, DMA, DMA-FQ).
    pub iommu: Reading<IommuGroup>,
    /// CPU affinity list as text ("0-31,64-95").
    pub cpu_affinity: Reading<String>,
    /// GPUDirect clique capability of a hypervisor, if the config space could be read.
    pub p2p_clique: Reading<Option<u32>>,
    /// AER counters: correctable, nonfatal, fatal totals.
    pub aer: Reading<AerCounters>,
    /// GPU utilisation in percent.
    pub utilization_percent: Reading<u32>,
    /// Address translation services of the function: on or off; `Known(None)` without the capability. Root only.
    #[serde(default)]
    pub ats: Reading<Option<bool>>,
    /// Sizes that BAR1 can take, as resource1_resize shows them: bit n stands for 2^n MiB. Root only.
    #[serde(default)]
    pub bar1_sizes: Reading<u64>,
}

/// Rows remapped by the GPU's memory controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemappedRows {
    /// After correctable errors.
    pub correctable: u32,
    /// After uncorrectable errors.
    pub uncorrectable: u32,
    /// A remapping waits for a reset.
    pub pending: bool,
    /// A remapping failed.
    pub failed: bool,
}

/// A process seen on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuProcess {
    /// Process id as the driver sees it.
    pub pid: u32,
    /// Name from /proc, if visible.
    pub name: Option<String>,
    /// Device memory in bytes.
    pub used_bytes: Option<u64>,
}

/// NVML's fabric info.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FabricState {
    /// "not_supported", "not_started", "in_progress", "completed".
    pub state: String,
    /// nvmlReturn of the registration; 0 = success.
    pub status: u32,
    /// Cluster UUID, hex.
    pub cluster: String,
    /// Clique id.
    pub clique: u32,
    /// Health mask, if reported.
    pub health_mask: Option<u32>,
}

/// One NVLink of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NvLink {
    /// Link number.
    pub link: u32,
    /// Link is up.
    pub active: bool,
    /// NVLink version.
    pub version: Option<u32>,
    /// Raw rate in GB/s per direction, as `nvidia-smi nvlink -s` prints.
    pub raw_gb_per_s: Option<f64>,
    /// PCI address at the other end; `None` when the driver hides it (ff:ff.f).
    pub remote: Option<PciAddress>,
    /// What the other end is.
    pub remote_kind: NvLinkEnd,
    /// CRC, replay and recovery errors, if readable.
    pub errors: Option<u64>,
}

/// The far end of an NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NvLinkEnd {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// A CPU (POWER, Grace).
    Cpu,
    /// Not told.
    Unknown,
}

/// IOMMU group of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IommuGroup {
    /// Group number.
    pub group: u32,
    /// Default domain type: identity, DMA, DMA-FQ, blocked, unmanaged; trimmed text.
    pub domain_type: Reading<String>,
}

impl IommuGroup {
    /// Whether the default domain translates addresses (DMA or DMA-FQ); `None` when the type is unknown.
    pub fn translates(&self) -> Option<bool> {
        self.domain_type
            .known()
            .map(|t| matches!(t.as_str(), "DMA" | "DMA-FQ"))
    }
}

/// Totals of sysfs aer_dev_* files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AerCounters {
    /// aer_dev_correctable TOTAL_ERR_COR.
    pub correctable: u64,
    /// aer_dev_nonfatal TOTAL_ERR_NONFATAL.
    pub nonfatal: u64,
    /// aer_dev_fatal TOTAL_ERR_FATAL.
    pub fatal: u64,
}

/// A PCI-to-PCI bridge: root port, switch port or a bridge on a card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bridge {
    /// Its address.
    pub pci: PciAddress,
    /// Parent bridge; `None` directly below a host bridge.
    pub parent: Option<PciAddress>,
    /// Vendor, device and class.
    pub identity: Reading<PciIdentity>,
    /// Chip in words ("Broadcom PEX890xx", "Intel Gen5 root port"), from the ids.
    pub chip: Option<String>,
    /// Root port, switch upstream or downstream.
    pub port: BridgePort,
    /// Emulated by a hypervisor: its speed and place are not to be believed.
    pub emulated: bool,
    /// ACS control word. Unprivileged readers get an absence, never "off".
    pub acs: Reading<AcsControl>,
    /// Link now.
    pub link_now: Reading<PcieLink>,
    /// Link at most.
    pub link_max: Reading<PcieLink>,
    /// AER counters.
    pub aer: Reading<AerCounters>,
    /// NUMA node.
    pub numa_node: Reading<i32>,
}

/// The kind of a bridge's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BridgePort {
    /// Below a host bridge.
    Root,
    /// A switch's port towards the root.
    SwitchUpstream,
    /// A switch's port away from the root.
    SwitchDownstream,
    /// A PCI Express to PCI bridge or a bridge whose kind the input does not tell.
    Unknown,
}

/// ACS capability and control words of a port (PCIe base specification; bits in facts: failures.md 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcsControl {
    /// Capability word; 0 with `control` 0 when the port has no ACS capability.
    pub capability: u16,
    /// Control word.
    pub control: u16,
}

impl AcsControl {
    /// P2P request redirect, completion redirect or egress control is on: peer traffic is sent to the root complex.
    pub fn redirects(self) -> bool {
        self.control & 0b10_1100 != 0
    }

    /// Names of the control bits that are set, as lspci shortens them.
    pub fn bits(self) -> Vec<&'static str> {
        let names = [
            "SrcValid",
            "TransBlk",
            "ReqRedir",
            "CmpltRedir",
            "UpstreamFwd",
            "EgressCtrl",
            "DirectTrans",
        ];
        names
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.control >> bit & 1 == 1)
            .map(|(_, name)| *name)
            .collect()
    }
}

/// A CPU package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Package {
    /// Os index, a label.
    pub os_index: u32,
    /// NUMA nodes inside, os indices.
    pub numa_nodes: Vec<u32>,
    /// Model, if the source tells.
    pub model: Option<String>,
}

/// A NUMA node of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NumaNode {
    /// Os index, a label: not dense on many hosts.
    pub os_index: u32,
    /// Local memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// CPU list as text.
    pub cpus: Option<String>,
}

/// A network adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Nic {
    /// Name: "mlx5_0", "eth0" or the input's label.
    pub name: String,
    /// PCI address.
    pub pci: Reading<PciAddress>,
    /// Bridges from the NIC's parent up to the root port.
    pub bridge_chain: Reading<Vec<PciAddress>>,
    /// NUMA node.
    pub numa_node: Reading<i32>,
    /// Path type to each GPU, in GPU order; `None` = not known.
    pub to_gpus: Vec<Option<super::topology::PathType>>,
}

/// What NVML and CUDA claim of an ordered pair. Advertised, never proof.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PairClaims {
    /// nvmlDeviceGetTopologyCommonAncestor: 0, 10, 20, 30, 40, 50.
    pub common_ancestor: Reading<u32>,
    /// P2P status for reads, in nvidia-smi's letters: OK, CNS, GNS, TNS, DR, NS, U.
    pub p2p_read: Reading<String>,
    /// The same for writes.
    pub p2p_write: Reading<String>,
    /// The same for NVLink.
    pub p2p_nvlink: Reading<String>,
    /// The same for atomics.
    pub p2p_atomics: Reading<String>,
    /// The same for the way over PCIe.
    #[serde(default, skip_serializing_if = "Reading::is_unasked")]
    pub p2p_pcie: Reading<String>,
    /// NVLinks from source to destination, where a table of pairs states them (nvidia-smi's `NV18`, hwloc's matrix);
    /// the link lists of the GPUs are the finer source.
    #[serde(default)]
    pub nvlink_count: Reading<u32>,
    /// What CUDA says of access from the source to memory of the destination; its workers are asked, not the collector.
    #[serde(default, skip_serializing_if = "CudaClaims::is_unasked")]
    pub cuda: CudaClaims,
}

/// CUDA's claims of an ordered pair: cuDeviceCanAccessPeer and the attributes of cuDeviceGetP2PAttribute (CUdevice_P2PAttribute
/// in cuda.h), each known or absent with the driver's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CudaClaims {
    /// cuDeviceCanAccessPeer.
    pub can_access: Reading<bool>,
    /// PERFORMANCE_RANK (1): how this pair ranks among all; lower is faster.
    pub performance_rank: Reading<i32>,
    /// ACCESS_SUPPORTED (2).
    pub access: Reading<bool>,
    /// NATIVE_ATOMIC_SUPPORTED (3).
    pub native_atomics: Reading<bool>,
    /// CUDA_ARRAY_ACCESS_SUPPORTED (4).
    pub array_access: Reading<bool>,
    /// ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED (5), from CUDA 13 on: some atomics are native and others not.
    pub only_partial_atomics: Reading<bool>,
}

impl CudaClaims {
    /// Whether CUDA was not asked.
    pub fn is_unasked(&self) -> bool {
        *self == CudaClaims::default()
    }

    /// All of them missing, for one reason.
    pub fn absent(why: &Absence) -> CudaClaims {
        CudaClaims {
            can_access: Reading::Absent(why.clone()),
            performance_rank: Reading::Absent(why.clone()),
            access: Reading::Absent(why.clone()),
            native_atomics: Reading::Absent(why.clone()),
            array_access: Reading::Absent(why.clone()),
            only_partial_atomics: Reading::Absent(why.clone()),
        }
    }
}

impl Snapshot {
    /// A snapshot of nothing yet, to be filled by readers.
    pub fn empty(origin: Origin) -> Self {
        Snapshot {
            origin,
            authenticity: Authenticity::Hardware,
            taken_at: None,
            host: Host::default(),
            driver: Driver::default(),
            gpus: Vec::new(),
            bridges: Vec::new(),
            packages: Vec::new(),
            numa_nodes: Vec::new(),
            nics: Vec::new(),
            nvswitches: Vec::new(),
            claims: PairTable::new(0),
            topology: Topology::default(),
            sources: Vec::new(),
            environment: Vec::new(),
            host_bridges: Vec::new(),
            application_log: Vec::new(),
        }
    }

    /// The GPU at `index`.
    pub fn gpu(&self, index: GpuIndex) -> Option<&Gpu> {
        self.gpus.get(index.at())
    }

    /// Keeps what CUDA claimed of pairs. Of all other pairs that NVML speaks of it is said that CUDA was not asked, and why.
    pub fn keep_cuda_claims(&mut self, learned: &[(OrderedPair, CudaClaims)], why_not: &str) {
        for (pair, claims) in learned {
            let mut cell = self.claims.get(*pair).cloned().unwrap_or_default();
            cell.cuda = claims.clone();
            self.claims.set(*pair, cell);
        }
        let why = Absence::SourceMissing(format!("CUDA was not asked: {why_not}"));
        for pair in OrderedPair::all(self.claims.count()) {
            if let Some(cell) = self.claims.get_mut(pair)
                && cell.cuda.is_unasked()
            {
                cell.cuda = CudaClaims::absent(&why);
            }
        }
    }

    /// The bridge at `address`.
    pub fn bridge(&self, address: PciAddress) -> Option<&Bridge> {
        self.bridges.iter().find(|b| b.pci == address)
    }
}

/// What the observer saw at one moment of the run. Ground state, like records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// What was going on: "before", "under load: ce-push 0->1", "after".
    pub moment: String,
    /// One per GPU, in GPU order.
    pub gpus: Vec<GpuObservation>,
    /// AER counters of the bridges above the GPUs, where they could be read.
    #[serde(default)]
    pub bridges: Vec<BridgeObservation>,
}

/// Counters of one bridge at one moment. A bad riser is often counted by the port above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BridgeObservation {
    /// Its address.
    pub pci: PciAddress,
    /// AER counters.
    pub aer: AerCounters,
}

/// Counters of one GPU at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GpuObservation {
    /// PCIe link at that moment.
    pub link: Reading<PcieLink>,
    /// PCIe replay counter.
    pub pcie_replays: Reading<u64>,
    /// AER counters.
    pub aer: Reading<AerCounters>,
    /// Sum of NVLink error counters.
    pub nvlink_errors: Reading<u64>,
    /// GPU utilisation in percent.
    pub utilization_percent: Reading<u32>,
    /// Compute processes, ours left out.
    pub foreign_processes: Reading<Vec<GpuProcess>>,
    /// Uncorrected ECC errors.
    pub ecc_uncorrected: Reading<u64>,
    /// Clock of the multiprocessors in MHz.
    #[serde(default)]
    pub sm_clock_mhz: Reading<u32>,
    /// Clock of the memory in MHz.
    #[serde(default)]
    pub memory_clock_mhz: Reading<u32>,
}
