//! The verdict as a small file for other programs: who may rely on what, the state of the host that it was true of, and
//! when it ends. Derived from a report; knows neither clocks nor files.

use crate::model::{
    case::Rung,
    finding::{ConsumerState, Veto},
    report::{Grading, Report, leaves_cases},
    snapshot::{Authenticity, Gpu, Snapshot},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Version of this document's shape. A reader refuses any other.
pub const VERDICT_VERSION: u32 = 1;

/// Days after which a verdict is not to be trusted though no key changed: links and memory age without telling.
pub const VALID_DAYS: i64 = 30;

/// A verdict that other programs may act on while it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerdictFile {
    /// Version of this document's shape.
    pub verdict_version: u32,
    /// peerproof's version.
    pub tool_version: String,
    /// Hardware, simulated or fault-injected. Only `HARDWARE` speaks of GPUs.
    pub authenticity: Authenticity,
    /// When the run began, RFC 3339 UTC.
    pub tested_at: String,
    /// After this it holds no longer, RFC 3339 UTC.
    pub valid_until: String,
    /// The rule, for people.
    pub expires: String,
    /// The grade of the whole run.
    pub verdict: Grading,
    /// Exit code of the run.
    pub exit_code: u8,
    /// The verdict's first line.
    pub headline: String,
    /// "quick", "default" or "deep".
    pub budget: Option<String>,
    /// What must be as it was.
    pub keys: Keys,
    /// GPUs that were tested, by index in `keys.gpus`.
    pub tested_gpus: Vec<u32>,
    /// Pairs and mechanisms of them that the operator left out; nothing is known of those.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// Who may rely on what, for all tested GPUs together.
    pub consumers: Vec<ConsumerVerdict>,
}

/// The state of a host that a verdict is true of. `null` = could not be read; a value that was read and no longer can be
/// counts as changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Kernel driver version.
    pub driver_version: Option<String>,
    /// Kernel release.
    pub kernel_release: Option<String>,
    /// Kernel command line.
    pub kernel_command_line: Option<String>,
    /// BIOS date and version.
    pub bios: Option<String>,
    /// All NVIDIA GPUs of the host in PCI order.
    pub gpus: Vec<GpuKey>,
}

/// One GPU and its links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuKey {
    /// PCI address.
    pub pci: Option<String>,
    /// UUID.
    pub uuid: Option<String>,
    /// Fastest PCIe rate of device and slot in GT/s. The present rate is no key: an idle GPU lowers it by design.
    pub pcie_gts: Option<f64>,
    /// PCIe lanes in use.
    pub pcie_width: Option<u32>,
    /// NVLinks that are up.
    pub nvlinks_up: Option<u32>,
}

/// A consumer and what it may rely on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumerVerdict {
    /// Id: "nccl-p2p", "custom-all-reduce", ... (`profiles/consumers.toml`).
    pub id: String,
    /// Proven, vetoed, unproven, or not applicable.
    pub state: ConsumerState,
    /// Highest rung proven on every pair; `null` when none is.
    pub proven_up_to: Option<u32>,
    /// Unproven only for rungs that this version does not test.
    pub as_far_as_tested: bool,
    /// In words.
    pub sentence: String,
    /// Pairs that veto it, lowest rung first.
    pub vetoed_by: Vec<Veto>,
    /// The same for parts of the group, tightest first; empty unless the group may not rely on it.
    pub islands: Vec<IslandVerdict>,
}

/// A part of the group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IslandVerdict {
    /// What joins it.
    pub joined_by: String,
    /// Members, by index in `keys.gpus`.
    pub gpus: Vec<u32>,
    /// Proven, vetoed or unproven.
    pub state: ConsumerState,
    /// In words.
    pub sentence: String,
}

/// Why a verdict file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not JSON, or of another shape.
    #[error("not a verdict file of peerproof: {0}")]
    Shape(#[from] serde_json::Error),
    /// Another version of the shape.
    #[error(
        "verdict version {found} is not the one that this peerproof reads ({VERDICT_VERSION}); write it anew with 'peerproof qualify --verdict-file FILE'"
    )]
    Version {
        /// Version in the file.
        found: u64,
    },
    /// Two of its entries cannot both be true.
    #[error(
        "it contradicts itself: verdict {} has exit_code {}, and this file says {found}; it was altered, so nothing in it counts: write it anew with 'peerproof qualify --verdict-file FILE'",
        verdict.word(),
        verdict.exit_code()
    )]
    Contradiction {
        /// The grade in the file.
        verdict: Grading,
        /// The exit code in the file.
        found: u8,
    },
}

fn gpu_key(gpu: &Gpu) -> GpuKey {
    GpuKey {
        pci: gpu.pci.known().map(ToString::to_string),
        uuid: gpu.uuid.known().cloned(),
        pcie_gts: gpu.link_max.known().map(|link| link.speed_gts),
        pcie_width: gpu.link_now.known().map(|link| link.width),
        nvlinks_up: gpu
            .nvlinks
            .known()
            .map(|links| links.iter().filter(|l| l.active).count() as u32),
    }
}

impl Keys {
    /// Of a host as it was read.
    pub fn of(snapshot: &Snapshot) -> Keys {
        Keys {
            driver_version: snapshot.driver.version.known().cloned(),
            kernel_release: snapshot.host.kernel.known().cloned(),
            kernel_command_line: snapshot.host.cmdline.known().cloned(),
            bios: snapshot.host.bios.known().cloned(),
            gpus: snapshot.gpus.iter().map(gpu_key).collect(),
        }
    }

    /// What is different now, one line each; empty when all is as it was.
    pub fn changes(&self, now: &Keys) -> Vec<String> {
        let mut changes = Vec::new();
        let mut compare = |what: &str, then: Option<String>, now: Option<String>| {
            if then != now {
                let word = |value: Option<String>| value.unwrap_or_else(|| "not readable".into());
                changes.push(format!("{what}: was {}, is {}", word(then), word(now)));
            }
        };
        for (what, then, now) in [
            ("driver version", &self.driver_version, &now.driver_version),
            ("kernel release", &self.kernel_release, &now.kernel_release),
            (
                "kernel command line",
                &self.kernel_command_line,
                &now.kernel_command_line,
            ),
            ("BIOS", &self.bios, &now.bios),
        ] {
            compare(what, then.clone(), now.clone());
        }
        let count = |keys: &Keys| Some(keys.gpus.len().to_string());
        compare("number of GPUs", count(self), count(now));
        for (at, (then, now)) in self.gpus.iter().zip(&now.gpus).enumerate() {
            let mut gpu = |what: &str, then: Option<String>, now: Option<String>| {
                compare(&format!("GPU{at} {what}"), then, now);
            };
            gpu("PCI address", then.pci.clone(), now.pci.clone());
            gpu("UUID", then.uuid.clone(), now.uuid.clone());
            let text = |n: Option<u32>| n.map(|n| n.to_string());
            let rate = |r: Option<f64>| r.map(|r| format!("{r} GT/s"));
            gpu("fastest PCIe rate", rate(then.pcie_gts), rate(now.pcie_gts));
            gpu("PCIe lanes", text(then.pcie_width), text(now.pcie_width));
            gpu("NVLinks up", text(then.nvlinks_up), text(now.nvlinks_up));
        }
        changes
    }
}

impl VerdictFile {
    /// Of a finished report; `valid_until` is RFC 3339 UTC.
    pub fn of(report: &Report, valid_until: String) -> VerdictFile {
        let number = |rung: Option<Rung>| rung.and_then(Rung::number);
        VerdictFile {
            verdict_version: VERDICT_VERSION,
            tool_version: report.tool_version.clone(),
            authenticity: report.authenticity,
            tested_at: report.started_at.clone(),
            valid_until,
            expires: "holds until valid_until, and only while every key is as it was; 'peerproof verdict FILE --check' compares".to_string(),
            verdict: report.verdict.grading,
            exit_code: report.verdict.grading.exit_code(),
            headline: report.verdict.headline.clone(),
            budget: report.coverage.budget.as_ref().map(|b| b.name.clone()),
            keys: Keys::of(&report.snapshot),
            tested_gpus: report.tested_gpus.clone(),
            left_out: report
                .coverage
                .left_out
                .iter()
                .filter(|what| leaves_cases(what))
                .cloned()
                .collect(),
            consumers: report
                .consumers
                .iter()
                .map(|c| ConsumerVerdict {
                    id: c.id.clone(),
                    state: c.state,
                    proven_up_to: number(c.reached),
                    as_far_as_tested: c.as_far_as_tested,
                    sentence: c.sentence.clone(),
                    vetoed_by: c.vetoes.clone(),
                    islands: c
                        .islands
                        .iter()
                        .map(|island| IslandVerdict {
                            joined_by: island.joined_by.clone(),
                            gpus: island.gpus.iter().map(|g| g.0).collect(),
                            state: island.state,
                            sentence: island.sentence.clone(),
                        })
                        .collect(),
                })
                .collect(),
        }
    }

    /// Why it does not hold on a host that reads as `snapshot` at `now` (seconds since 1970; `until` is `valid_until` in
    /// the same); empty when it holds.
    pub fn objections(&self, snapshot: &Snapshot, now: i64, until: i64) -> Vec<String> {
        let mut all = self.keys.changes(&Keys::of(snapshot));
        if self.authenticity != snapshot.authenticity {
            all.push("the drivers: a verdict on simulated hosts says nothing of hardware, nor the other way round".to_string());
        }
        if now > until {
            all.push(format!("time: it held until {}", self.valid_until));
        }
        all
    }

    /// GPUs of the host that were not tested, by index in `keys.gpus`: it says nothing of them.
    pub fn untested(&self) -> Vec<u32> {
        (0..self.keys.gpus.len() as u32)
            .filter(|gpu| !self.tested_gpus.contains(gpu))
            .collect()
    }

    /// Writes it as indented JSON with a line end.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }
}

/// Reads a verdict file.
///
/// # Errors
/// Text that is no such file; another version of it.
pub fn read(text: &str) -> Result<VerdictFile, ReadError> {
    #[derive(Deserialize)]
    struct VersionOnly {
        verdict_version: u64,
    }
    let version: VersionOnly = serde_json::from_str(text)?;
    if version.verdict_version != u64::from(VERDICT_VERSION) {
        let found = version.verdict_version;
        return Err(ReadError::Version { found });
    }
    let file: VerdictFile = serde_json::from_str(text)?;
    if file.exit_code != file.verdict.exit_code() {
        return Err(ReadError::Contradiction {
            verdict: file.verdict,
            found: file.exit_code,
        });
    }
    Ok(file)
}

/// Whether bytes are a verdict file, of whatever version.
pub fn is_one(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Marks {
        #[serde(rename = "verdict_version")]
        _verdict_version: u64,
        #[serde(rename = "tool_version")]
        _tool_version: String,
    }
    serde_json::from_slice::<Marks>(bytes).is_ok()
}

/// The JSON Schema of a verdict file, as published in `docs/verdict.schema.json`.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(VerdictFile).to_value()
}
