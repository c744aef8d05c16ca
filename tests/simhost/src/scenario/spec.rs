//! The types of a scenario file, its reading (with inheritance) and the checks that make it consistent.
use super::fault::Fault;
use super::load::{apply, load};
use super::pci::{PciAddress, parse_id};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Why a scenario could not be used; the text names the scenario and the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Error {}

/// A host, what its drivers claim of it, and what is wrong with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// One line for `simhost list`.
    pub description: String,
    /// Machine and operating system.
    pub host: Host,
    /// CPU packages with their NUMA nodes.
    pub packages: Vec<Package>,
    /// What the kernel driver says of itself.
    pub driver: Driver,
    /// Properties shared by all GPUs; entries of `gpus` may differ.
    pub gpu: GpuModel,
    /// Host bridges.
    pub host_bridges: Vec<HostBridge>,
    /// PCI-to-PCI bridges: root ports and ports of switches.
    #[serde(default)]
    pub bridges: Vec<Bridge>,
    /// GPUs in PCI order.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// Network adapters.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// NVLink, when the GPUs have it.
    #[serde(default)]
    pub nvlink: Option<NvLink>,
    /// What the drivers claim of pairs, first match wins; without a match: everything is possible.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// IOMMU as the kernel shows it.
    #[serde(default)]
    pub iommu: Iommu,
    /// Rates of the model that do not follow from links.
    #[serde(default)]
    pub rates: Rates,
    /// Links that carry far less while posted writes pile up on them.
    #[serde(default)]
    pub collapses: Vec<Collapse>,
    /// Lines of the kernel log, oldest first, without prefix.
    #[serde(default)]
    pub kernel_log: Vec<String>,
    /// Faults in the notation of [`Fault`].
    #[serde(default)]
    pub faults: Vec<String>,
    /// Seed of the weak mode: plain stores to peers and to the host are held back and delivered out of order until a
    /// fence or release of system scope, so that a missing one shows. Absent: stores take effect at once.
    #[serde(default)]
    pub weak_memory: Option<u64>,
    /// By what factor wall-clock deadlines are to be multiplied (the interpreter is slower than a GPU).
    #[serde(default = "deadline_factor")]
    pub deadline_factor: u32,
}

fn deadline_factor() -> u32 {
    5
}

/// Machine and operating system.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Name in /proc/sys/kernel/hostname.
    pub name: String,
    /// DMI system vendor.
    pub vendor: String,
    /// DMI product name.
    pub product: String,
    /// vendor_id of /proc/cpuinfo.
    pub cpu_vendor: String,
    /// Model name of /proc/cpuinfo.
    pub cpu_model: String,
    /// Kernel release.
    #[serde(default = "kernel")]
    pub kernel: String,
    /// Kernel command line.
    pub command_line: String,
    /// Whether the CPU flags show a hypervisor.
    #[serde(default)]
    pub hypervisor: bool,
    /// NVML virtualisation mode: 0 none, 1 pass-through, 2 vGPU.
    #[serde(default)]
    pub virtualization_mode: u32,
    /// Configuration space shows only its first 64 bytes, as to users who are not root.
    #[serde(default)]
    pub unprivileged: bool,
    /// Whether confidential computing is on.
    #[serde(default)]
    pub confidential: bool,
}

fn kernel() -> String {
    "6.8.0-79-generic".into()
}

/// One CPU package.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// NUMA nodes, in order of their CPUs.
    pub nodes: Vec<NumaNode>,
}

/// One NUMA node with CPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Number the kernel gives it.
    pub id: u32,
    /// First and last CPU.
    pub cpus: [u32; 2],
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// What the kernel driver says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Version, as NVML prints it.
    pub version: String,
    /// CUDA version in the driver's notation (13000 is 13.0).
    pub cuda: i32,
    /// Open kernel module or the closed one.
    #[serde(default = "yes")]
    pub open: bool,
    /// Differences from the usual lines of /proc/driver/nvidia/params.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    /// Result of module loading when not 0: 221 no JIT compiler, 222 PTX too new, 223 JIT switched off.
    #[serde(default)]
    pub jit_error: u32,
    /// Result of cuInit when not 0.
    #[serde(default)]
    pub init_error: u32,
    /// Virtual memory management with POSIX handles (cuMemCreate and its kin).
    #[serde(default = "yes")]
    pub vmm: bool,
    /// Stream-ordered memory pools.
    #[serde(default = "yes")]
    pub pools: bool,
    /// Native atomics of GPUs on host memory, as over NVLink-C2C.
    #[serde(default)]
    pub host_atomics: bool,
    /// Whether nvmlInit returns.
    #[serde(default)]
    pub nvml: Answers,
}

/// Whether NVML answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// Always.
    #[default]
    Always,
    /// Never: calls do not return.
    Never,
    /// No more once a `hang` or `stuck` fault that names the GPU has struck, as where a GPU is wedged by it.
    UntilHang,
}

fn yes() -> bool {
    true
}

/// Properties of a GPU model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuModel {
    /// Product name.
    pub name: String,
    /// PCI vendor:device.
    pub id: String,
    /// PCI subsystem vendor:device.
    #[serde(default = "subsystem")]
    pub subsystem: String,
    /// PCI class: 0x0300 with a display head, 0x0302 without.
    #[serde(default = "class_3d")]
    pub class: u16,
    /// Compute capability as major and minor.
    pub compute_capability: [i32; 2],
    /// Multiprocessors shown. Small, so that full grids stay cheap to interpret.
    #[serde(default = "multiprocessors")]
    pub multiprocessors: i32,
    /// Memory in MiB. Small on purpose.
    #[serde(default = "memory_mib")]
    pub memory_mib: u64,
    /// BAR1 in MiB: smaller than the memory, so that offsets past it exist.
    #[serde(default = "bar1_mib")]
    pub bar1_mib: u64,
    /// Highest PCIe generation of the device.
    pub pcie_generation: u32,
    /// Lanes of the device.
    #[serde(default = "lanes")]
    pub pcie_width: u32,
    /// Memory rate in GB/s, one direction.
    #[serde(default = "memory_gbps")]
    pub memory_gbps: f64,
    /// Whether ECC exists and is on.
    #[serde(default = "yes")]
    pub ecc: bool,
}

fn subsystem() -> String {
    "10de:0000".into()
}
fn class_3d() -> u16 {
    0x0302
}
fn multiprocessors() -> i32 {
    8
}
fn memory_mib() -> u64 {
    32
}
fn bar1_mib() -> u64 {
    4
}
fn lanes() -> u32 {
    16
}
fn memory_gbps() -> f64 {
    1700.0
}

/// A host bridge: the root of one PCI tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostBridge {
    /// `DDDD:BB` of its root bus.
    pub bus: String,
    /// NUMA node, or -1 where the firmware names none.
    pub numa: i32,
}

/// A PCI-to-PCI bridge.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// Its own address.
    pub at: String,
    /// Secondary bus.
    pub bus: u8,
    /// PCI vendor:device.
    pub id: String,
    /// Which port it is.
    pub port: Port,
    /// PCIe generation of the link above it (of the link below, for a root port).
    #[serde(default = "generation")]
    pub generation: u32,
    /// Lanes of that link.
    #[serde(default = "lanes")]
    pub width: u32,
    /// ACS control word; absent: the function has no ACS capability.
    #[serde(default)]
    pub acs: Option<u16>,
}

fn generation() -> u32 {
    5
}

/// Kind of bridge port, with the numbers of the PCIe capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Port {
    /// Port of a root complex.
    Root,
    /// Upstream port of a switch.
    Upstream,
    /// Downstream port of a switch.
    Downstream,
}

/// One GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// PCI address.
    pub at: String,
    /// Current generation, where it differs from the highest (downtrained).
    #[serde(default)]
    pub generation: Option<u32>,
    /// Current width, where it differs.
    #[serde(default)]
    pub width: Option<u32>,
    /// Uncorrected ECC errors to report.
    #[serde(default)]
    pub ecc_uncorrected: u64,
    /// Corrected ECC errors to report.
    #[serde(default)]
    pub ecc_corrected: u64,
    /// Rows remapped after uncorrectable errors.
    #[serde(default)]
    pub remapped_rows: u32,
    /// A remapping waits for a reset.
    #[serde(default)]
    pub remap_pending: bool,
    /// A remapping failed.
    #[serde(default)]
    pub remap_failed: bool,
    /// PCIe replays to report.
    #[serde(default)]
    pub replays: u32,
    /// Whether MIG is on.
    #[serde(default)]
    pub mig: bool,
    /// Memory in use by others, in MiB, with no process to see.
    #[serde(default)]
    pub hidden_use_mib: u64,
    /// Process ids of foreign compute processes.
    #[serde(default)]
    pub foreign_processes: Vec<u32>,
    /// Fully busy whoever looks, with no process to see: as a wedged GPU.
    #[serde(default)]
    pub busy: bool,
    /// Whether NVML's questions about it return.
    #[serde(default)]
    pub nvml: Answers,
}

/// One network adapter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// PCI address.
    pub at: String,
    /// PCI vendor:device.
    #[serde(default = "nic_id")]
    pub id: String,
    /// Names of its devices (`mlx5_0`, `ens1`).
    pub names: Vec<String>,
}

fn nic_id() -> String {
    "15b3:1021".into()
}

/// NVLink of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// NVLink version of the links.
    pub version: u32,
    /// Links of each GPU.
    pub links: u32,
    /// Nominal GB/s of one link and direction.
    pub link_gbps: f64,
    /// Addresses of NVSwitches that are PCI functions. Empty, with no pairs: switches hidden from this host.
    #[serde(default)]
    pub switches: Vec<String>,
    /// PCI id of those switches.
    #[serde(default = "switch_id")]
    pub switch_id: String,
    /// Direct links as [first, second, count]; empty: all links go to switches.
    #[serde(default)]
    pub pairs: Vec<[u32; 3]>,
    /// Links that are down as [gpu, link].
    #[serde(default)]
    pub down: Vec<[u32; 2]>,
}

fn switch_id() -> String {
    "10de:22a3".into()
}

/// What the drivers claim of some pairs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// `SRC>DST` with numbers or `*`.
    pub pair: String,
    /// NVML P2P state for reads and writes: OK, CNS, GNS, TNS, DR, NS, U.
    #[serde(default)]
    pub p2p: Option<String>,
    /// cuDeviceCanAccessPeer; absent: follows `p2p`.
    #[serde(default)]
    pub can_access: Option<bool>,
    /// Result of cuCtxEnablePeerAccess; absent: follows `can_access` (217 when not).
    #[serde(default)]
    pub enable: Option<u32>,
    /// Native atomics; absent: as NVLink has them.
    #[serde(default)]
    pub atomics: Option<bool>,
    /// NVML's common ancestor (PIX PXB PHB NODE SYS); absent: what the tree gives.
    #[serde(default)]
    pub ancestor: Option<String>,
}

/// IOMMU as the kernel shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Iommu {
    /// Domain type of the groups: identity, DMA, DMA-FQ. Absent: no IOMMU, no groups.
    #[serde(default)]
    pub domain: Option<String>,
    /// Entries of /sys/class/iommu.
    #[serde(default)]
    pub units: Vec<String>,
}

/// Rates of the model in GB/s that do not follow from links, and costs in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Between two packages, one direction.
    pub packages_gbps: f64,
    /// Driver's staging through host memory, one flow.
    pub staged_gbps: f64,
    /// Share of nominal NVLink rate that a copy engine reaches.
    pub nvlink_copy: f64,
    /// The same for SM stores and loads.
    pub nvlink_sm: f64,
    /// Share of the link that SM stores and loads reach over PCIe.
    pub pcie_sm: f64,
    /// From start of a copy to its first byte.
    pub copy_ns: u64,
    /// From start of a kernel to its first instruction.
    pub launch_ns: u64,
    /// Added to a staged copy.
    pub staged_ns: u64,
    /// Instructions per nanosecond and multiprocessor.
    pub instructions_per_ns: f64,
}

/// A rule for one link: the way up from a bridge collapses while several posted writes (pushes of copy engines, stores of
/// kernels to peers) cross it to destinations behind several roots. Reads do not count.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collapse {
    /// Address of the bridge.
    pub at: String,
    /// From so many writes at once.
    pub writers: u32,
    /// To destinations behind so many different roots.
    pub roots: u32,
    /// What the link then carries, GB/s.
    pub gbps: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            packages_gbps: 51.0,
            staged_gbps: 24.0,
            nvlink_copy: 0.875,
            nvlink_sm: 0.81,
            pcie_sm: 0.92,
            copy_ns: 1_400,
            launch_ns: 2_200,
            staged_ns: 11_000,
            instructions_per_ns: 32.0,
        }
    }
}

impl Scenario {
    /// Reads a scenario by shipped name or path, follows `base`, applies `settings` (`key.path=value`) and appends
    /// `faults`, then checks the whole.
    pub fn resolve(name: &str, settings: &[String], faults: &[String]) -> Result<Self, Error> {
        let mut table = load(name, 0)?;
        for setting in settings {
            apply(&mut table, setting)?;
        }
        if !faults.is_empty() {
            let list = table
                .entry("faults")
                .or_insert_with(|| toml::Value::Array(Vec::new()));
            let toml::Value::Array(list) = list else {
                return Err(Error(format!("scenario {name}: faults is not a list")));
            };
            list.extend(faults.iter().map(|f| toml::Value::String(f.clone())));
        }
        Self::from_table(name, table)
    }

    /// Reads a scenario that is already complete (as the launcher writes it).
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error(format!("scenario {}: {e}", path.display())))?;
        Self::from_text(&path.display().to_string(), &text)
    }

    /// Reads a complete scenario from text; `name` is for messages.
    pub fn from_text(name: &str, text: &str) -> Result<Self, Error> {
        let scenario: Self =
            toml::from_str(text).map_err(|e| Error(format!("scenario {name}: {e}")))?;
        scenario.check(name)?;
        Ok(scenario)
    }

    fn from_table(name: &str, table: toml::Table) -> Result<Self, Error> {
        let scenario: Self = toml::Value::Table(table)
            .try_into()
            .map_err(|e| Error(format!("scenario {name}: {e}")))?;
        scenario.check(name)?;
        Ok(scenario)
    }

    /// The complete scenario as TOML.
    pub fn to_toml(&self) -> Result<String, Error> {
        toml::to_string(self).map_err(|e| Error(format!("scenario does not serialise: {e}")))
    }

    /// The faults, read.
    pub fn faults(&self) -> Result<Vec<Fault>, Error> {
        self.faults
            .iter()
            .map(|f| f.parse().map_err(Error))
            .collect()
    }

    fn check(&self, name: &str) -> Result<(), Error> {
        let fail = |what: String| Err(Error(format!("scenario {name}: {what}")));
        if self.gpus.len() > crate::MAX_GPUS {
            return fail(format!(
                "{} GPUs, at most {} are simulated",
                self.gpus.len(),
                crate::MAX_GPUS
            ));
        }
        if self.packages.is_empty() || self.packages.iter().any(|p| p.nodes.is_empty()) {
            return fail("every host has at least one package with one NUMA node".into());
        }
        for text in [&self.gpu.id, &self.gpu.subsystem]
            .into_iter()
            .chain(self.bridges.iter().map(|b| &b.id))
            .chain(self.nics.iter().map(|n| &n.id))
        {
            if parse_id(text).is_none() {
                return fail(format!("`{text}` is not a PCI id (vvvv:dddd)"));
            }
        }
        let switches = self.nvlink.iter().flat_map(|l| l.switches.iter());
        let addresses = self
            .bridges
            .iter()
            .map(|b| &b.at)
            .chain(self.gpus.iter().map(|g| &g.at))
            .chain(self.nics.iter().map(|n| &n.at))
            .chain(switches);
        let mut seen = std::collections::BTreeSet::new();
        for text in addresses {
            let Some(address) = PciAddress::parse(text) else {
                return fail(format!("`{text}` is not a PCI address (DDDD:BB:DD.F)"));
            };
            if !seen.insert(address) {
                return fail(format!("PCI address {text} is used twice"));
            }
        }
        for pair in self.nvlink.iter().flat_map(|l| l.pairs.iter()) {
            if pair[0] as usize >= self.gpus.len()
                || pair[1] as usize >= self.gpus.len()
                || pair[0] == pair[1]
            {
                return fail(format!(
                    "NVLink pair {}-{} names a GPU that does not exist",
                    pair[0], pair[1]
                ));
            }
        }
        for fault in &self.faults {
            let fault: Fault = match fault.parse() {
                Ok(fault) => fault,
                Err(e) => return fail(e),
            };
            if let Some(gpu) = fault.gpus().find(|&g| g >= self.gpus.len()) {
                return fail(format!(
                    "fault `{}` names GPU {gpu}, the host has {}",
                    fault.text,
                    self.gpus.len()
                ));
            }
        }
        for claim in &self.claims {
            if crate::topology::PairPattern::parse(&claim.pair).is_none() {
                return fail(format!(
                    "claim for `{}`: not a pair (SRC>DST, numbers or *)",
                    claim.pair
                ));
            }
            if let Some(state) = claim
                .p2p
                .as_deref()
                .filter(|s| crate::topology::p2p_state(s).is_none())
            {
                return fail(format!(
                    "claim for `{}`: P2P state `{state}` is none of OK CNS GNS TNS DR NS U",
                    claim.pair
                ));
            }
            if let Some(level) = claim
                .ancestor
                .as_deref()
                .filter(|s| crate::topology::PathType::parse(s).is_none())
            {
                return fail(format!(
                    "claim for `{}`: ancestor `{level}` is none of PIX PXB PHB NODE SYS",
                    claim.pair
                ));
            }
        }
        crate::topology::Topology::new(self)
            .map(|_| ())
            .or_else(|e| fail(e.0))
    }
}
