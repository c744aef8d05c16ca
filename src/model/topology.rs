//! What lies between GPUs, as joined from all sources: path types, islands, fabric class, disagreements.

use super::{
    pair::{GpuIndex, PairTable},
    pci::PciAddress,
    reading::Grade,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The nearest thing that two devices share, in nvidia-smi's words, nearest first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum PathType {
    /// At most a single PCIe bridge (one switch).
    Pix,
    /// Several PCIe bridges, not the host bridge.
    Pxb,
    /// One PCIe host bridge.
    Phb,
    /// Between host bridges of one NUMA node.
    Node,
    /// Across NUMA nodes (the SMP interconnect).
    Sys,
}

impl fmt::Display for PathType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathType::Pix => "PIX",
            PathType::Pxb => "PXB",
            PathType::Phb => "PHB",
            PathType::Node => "NODE",
            PathType::Sys => "SYS",
        })
    }
}

/// The fabric that joins a group of GPUs. A group is as good as the weakest of its pairs; see `docs/cases.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FabricClass {
    /// Every pair joined through NVSwitch.
    Nvswitch,
    /// GPUs joined by direct NVLinks beyond pairs: full mesh or cube mesh.
    NvlinkMesh,
    /// NVLink joins pairs only.
    NvlinkPairs,
    /// Some pairs share a PCIe switch.
    PcieSwitch,
    /// No switch shared, all GPUs on one CPU package.
    RootComplexSingleSocket,
    /// No switch shared, GPUs on several CPU packages.
    RootComplexCrossSocket,
    /// Several of the above with no common description.
    Mixed,
    /// A virtual machine hides the path: the PCIe picture says nothing of the hardware.
    VmOpaque,
    /// Fewer than two NVIDIA GPUs.
    None,
    /// The input cannot tell.
    Unknown,
}

impl FabricClass {
    /// The name used in reports and case indices.
    pub fn name(self) -> &'static str {
        match self {
            FabricClass::Nvswitch => "nvswitch",
            FabricClass::NvlinkMesh => "nvlink-mesh",
            FabricClass::NvlinkPairs => "nvlink-pairs",
            FabricClass::PcieSwitch => "pcie-switch",
            FabricClass::RootComplexSingleSocket => "root-complex-single-socket",
            FabricClass::RootComplexCrossSocket => "root-complex-cross-socket",
            FabricClass::Mixed => "mixed",
            FabricClass::VmOpaque => "vm-opaque",
            FabricClass::None => "none",
            FabricClass::Unknown => "unknown",
        }
    }
}

impl fmt::Display for FabricClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The label by which FlashInfer partitions its tune cache. It looks at PCIe ancestry only: an NVLink host without shared
/// switches is labelled `rootcplx-noswitch` too (facts: engines.md 1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FlashInferLabel {
    /// Some pair of the group has a common ancestor below the host bridge.
    PcieswitchPairs,
    /// No pair has, or it could not be found out.
    RootcplxNoswitch,
}

impl fmt::Display for FlashInferLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FlashInferLabel::PcieswitchPairs => "pcieswitch-pairs",
            FlashInferLabel::RootcplxNoswitch => "rootcplx-noswitch",
        })
    }
}

/// What lies between two GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairPath {
    /// PCIe path type; `None` when the sources do not show it.
    pub pcie: Option<PathType>,
    /// NVLinks usable from source to destination: direct ones, or through NVSwitch. 0 = none seen; see `nvlink_known`.
    pub nvlinks: u32,
    /// Whether the sources would have shown NVLinks if there were any.
    pub nvlink_known: bool,
    /// Whether the NVLinks go through NVSwitch.
    pub through_nvswitch: bool,
    /// Bridges from the source's parent up to, and down from, the common ancestor, both ends included; empty when unknown.
    pub bridges: Vec<PciAddress>,
    /// How the path type is known.
    pub grade: Grade,
}

impl PairPath {
    /// nvidia-smi's cell: `NV18`, `PIX`, ... or `?` when unknown.
    pub fn label(&self) -> String {
        if self.nvlinks > 0 {
            format!("NV{}", self.nvlinks)
        } else {
            self.pcie.map_or_else(|| "?".to_string(), |p| p.to_string())
        }
    }
}

/// Two sources that say different things of one matter. Printed first: a wrong map misleads all that follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Disagreement {
    /// What it is about: "path type 0->1", "NVLink count 1->0".
    pub about: String,
    /// Source and what it says, two or more.
    pub claims: Vec<(String, String)>,
    /// Which one this report follows, and why.
    pub resolution: String,
}

/// A set of GPUs mutually joined at or below a path type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Island {
    /// What joins them: "NVLink", "PIX", "NUMA node 0", ...
    pub joined_by: String,
    /// Members, ascending.
    pub gpus: Vec<GpuIndex>,
}

/// The join of all sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    /// Path of each ordered pair.
    pub pairs: PairTable<PairPath>,
    /// Islands, tightest first.
    pub islands: Vec<Island>,
    /// Class of the whole host.
    pub class: FabricClass,
    /// One sentence: why this class.
    pub class_reason: String,
    /// FlashInfer's label of the whole host.
    pub flashinfer_label: FlashInferLabel,
    /// Where sources differ.
    pub disagreements: Vec<Disagreement>,
    /// Things a reader should know: "captured with bridges filtered out", "two hosts in one file".
    pub notes: Vec<String>,
}

impl Default for Topology {
    fn default() -> Self {
        Topology {
            pairs: PairTable::new(0),
            islands: Vec::new(),
            class: FabricClass::Unknown,
            class_reason: "nothing was read".to_string(),
            flashinfer_label: FlashInferLabel::RootcplxNoswitch,
            disagreements: Vec::new(),
            notes: Vec::new(),
        }
    }
}
