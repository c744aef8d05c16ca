//! What the driver says through NVML: identity, memory, links, peers, processes. All of it is a claim.
//!
//! NVML's error stays in the absence, in NVML's words. GPUs are asked side by side, because many answers cost a round
//! trip to the GPU's firmware, and each under a deadline, because a wedged one never answers. Nothing is set.

use super::{
    deadline::begin,
    live::{Depth, Roots},
    nvml_links,
    system::process_names,
};
use crate::{
    ffi::nvml_extra,
    model::{
        pair::{OrderedPair, PairTable},
        pci::{PciAddress, PcieLink},
        reading::{Absence, Reading},
        snapshot::{
            Authenticity, Driver, FabricState, Gpu, GpuObservation, GpuProcess, PairClaims,
            RemappedRows,
        },
    },
};
use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{
        Clock, EccCounter, GpuVirtualizationMode, MemoryError, P2pCapabilitiesIndex, P2pStatus,
        TopologyLevel,
    },
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::{PciInfo, ProcessInfo},
};
use std::{sync::Arc, time::Duration};

/// How long NVML's start may take: without persistence mode it wakes one GPU after the other, seconds each.
const START_LIMIT: Duration = Duration::from_secs(75);
/// How long all answers of one kind may take. The slowest known take tens of milliseconds, and NVML gives them one after the other.
const READ_LIMIT: Duration = Duration::from_secs(15);

/// NVML, shared with threads that may not come back.
pub type Session = Arc<Nvml>;

/// What NVML said.
#[derive(Debug, Clone)]
pub struct NvmlView {
    /// NVML's part of the driver facts.
    pub driver: Driver,
    /// GPUs in NVML's order; fields that NVML does not answer are absent.
    pub gpus: Vec<Gpu>,
    /// Claims by position in `gpus`.
    pub claims: PairTable<PairClaims>,
    /// By the marker symbols of the loaded library.
    pub authenticity: Authenticity,
    /// GPUs that NVML counts and does not hand out: index and error.
    pub refused: Vec<(u32, String)>,
    /// GPUs that NVML counts and for which it did not answer in time: index and reason.
    pub silent: Vec<(u32, Absence)>,
}

impl NvmlView {
    /// The view of a host whose NVML did not answer, for one reason.
    pub fn nothing(why: &Absence) -> Self {
        NvmlView {
            driver: Driver {
                version: Reading::Absent(why.clone()),
                nvml_version: Reading::Absent(why.clone()),
                cuda_version: Reading::Absent(why.clone()),
                confidential_computing: Reading::Absent(why.clone()),
                confidential_multi_gpu: Reading::Absent(why.clone()),
                ..Driver::default()
            },
            gpus: Vec::new(),
            claims: PairTable::new(0),
            authenticity: Authenticity::Hardware,
            refused: Vec::new(),
            silent: Vec::new(),
        }
    }
}

/// Loads libnvidia-ml.so.1 and initialises it. This is the slow step: the driver wakes the GPUs.
///
/// # Errors
/// `SourceMissing` without the library; `NoAnswer` when it does not come back; otherwise NVML's word ("NVIDIA driver is not
/// loaded", a version mismatch).
pub fn open() -> Result<Session, Absence> {
    let started = begin(|| Nvml::init().map(Arc::new)).within(START_LIMIT)?;
    started.map_err(|error| absence(&error))
}

/// The reason for a missing reading, in NVML's words.
pub fn absence(error: &NvmlError) -> Absence {
    let text = error.to_string();
    match error {
        NvmlError::NotSupported => Absence::NotSupported(text),
        NvmlError::NoPermission => Absence::NoPermission(text),
        NvmlError::LibloadingError(_)
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::FunctionNotFound
        | NvmlError::LibraryNotFound => Absence::SourceMissing(text),
        NvmlError::Utf8Error(_) | NvmlError::IncorrectBits(_) => Absence::Unparsed(text),
        // A return code that the wrapper has no name for arrives the same way as an unknown enum value.
        NvmlError::UnexpectedVariant(code) => Absence::Failed(format!("NVML code or value {code}")),
        _ => Absence::Failed(text),
    }
}

fn reading<T>(result: Result<T, NvmlError>) -> Reading<T> {
    match result {
        Ok(value) => Reading::Known(value),
        Err(error) => Reading::Absent(absence(&error)),
    }
}

/// Asks everything once.
///
/// # Errors
/// `NoAnswer` when NVML does not even say how many GPUs there are.
pub fn read(nvml: &Session, roots: &Roots, depth: Depth) -> Result<NvmlView, Absence> {
    let asked = nvml.clone();
    let (driver, count) = begin(move || (read_driver(&asked), asked.device_count().unwrap_or(0)))
        .within(READ_LIMIT)?;
    let (mut refused, mut silent) = (Vec::new(), Vec::new());
    let (mut listed, mut gpus) = (Vec::new(), Vec::new());
    let questions: Vec<_> = (0..count)
        .map(|index| {
            let (nvml, roots) = (nvml.clone(), roots.clone());
            begin(move || match nvml.device_by_index(index) {
                Ok(device) => Ok(read_gpu(&device, index, &roots, depth)),
                Err(error) => Err(error.to_string()),
            })
        })
        .collect();
    for (index, question) in (0..).zip(questions) {
        match question.within(READ_LIMIT) {
            Ok(Ok(gpu)) => {
                listed.push(index);
                gpus.push(gpu);
            }
            Ok(Err(error)) => refused.push((index, error)),
            Err(why @ Absence::NoAnswer(_)) => silent.push((index, why)),
            Err(why) => {
                listed.push(index);
                gpus.push(unanswered(&why));
            }
        }
    }
    // Only now: a claim about a GPU that does not answer would hold up those about the others. Beside the GPUs it would be no
    // faster, as NVML answers one question at a time.
    let rows: Vec<_> = (0..listed.len())
        .map(|at| {
            let (nvml, listed) = (nvml.clone(), listed.clone());
            begin(move || claims_row(&nvml, &listed, at, depth))
        })
        .collect();
    let mut claims = PairTable::new(listed.len() as u32);
    for row in rows {
        for (pair, claim) in row.within(READ_LIMIT).unwrap_or_default() {
            claims.set(pair, claim);
        }
    }
    Ok(NvmlView {
        driver,
        gpus,
        claims,
        authenticity: authenticity(nvml),
        refused,
        silent,
    })
}

/// By marker symbols; a look-alike outranks planted faults.
pub fn authenticity(nvml: &Nvml) -> Authenticity {
    let seen = nvml_extra::markers(nvml);
    if seen.contains(&nvml_extra::MARKER_SIMULATED) {
        Authenticity::Simulated
    } else if seen.contains(&nvml_extra::MARKER_FAULT_INJECTED) {
        Authenticity::FaultInjected
    } else {
        Authenticity::Hardware
    }
}

fn read_driver(nvml: &Nvml) -> Driver {
    Driver {
        version: reading(nvml.sys_driver_version()),
        nvml_version: reading(nvml.sys_nvml_version()),
        cuda_version: reading(nvml.sys_cuda_driver_version()),
        confidential_computing: reading(nvml_extra::confidential_computing(nvml)),
        confidential_multi_gpu: reading(nvml_extra::confidential_multi_gpu(nvml)).map(|mode| {
            match mode {
                0 => "none".to_string(),
                1 => "protected_pcie".to_string(),
                2 => "nvle".to_string(),
                other => format!("mode {other}"),
            }
        }),
        ..Driver::default()
    }
}

/// A GPU of which NVML told nothing, for one reason.
pub fn unanswered(why: &Absence) -> Gpu {
    fn no<T>(why: &Absence) -> Reading<T> {
        Reading::Absent(why.clone())
    }
    Gpu {
        uuid: no(why),
        name: no(why),
        nvml_index: no(why),
        compute_capability: no(why),
        memory_bytes: no(why),
        memory_used_bytes: no(why),
        bar1_bytes: no(why),
        bar1_used_bytes: no(why),
        ecc_enabled: no(why),
        ecc_uncorrected: no(why),
        remapped_rows: no(why),
        compute_processes: no(why),
        graphics_processes: no(why),
        mig_enabled: no(why),
        virtualization: no(why),
        fabric: no(why),
        nvlinks: no(why),
        link_now: no(why),
        link_max: no(why),
        pcie_replays: no(why),
        utilization_percent: no(why),
        ..Gpu::default()
    }
}

fn read_gpu(device: &Device<'_>, index: u32, roots: &Roots, depth: Depth) -> Gpu {
    let full = depth == Depth::Full;
    let memory = device
        .memory_info()
        .map(|m| (m.total, m.used))
        .or_else(|_| nvml_extra::memory_first_form(device));
    let (memory_bytes, memory_used_bytes) = match memory {
        Ok((total, used)) => (Reading::Known(total), Reading::Known(used)),
        Err(error) => (
            Reading::Absent(absence(&error)),
            Reading::Absent(absence(&error)),
        ),
    };
    let bar1 = reading(device.bar1_memory_info());
    let fabric = reading(nvml_extra::fabric_info(device)).map(fabric_state);
    Gpu {
        pci: match device.pci_info() {
            Ok(info) => address_of(&info),
            Err(error) => Reading::Absent(absence(&error)),
        },
        uuid: reading(device.uuid()),
        name: reading(device.name()),
        nvml_index: Reading::Known(index),
        compute_capability: reading(
            device
                .cuda_compute_capability()
                .map(|c| (c.major.unsigned_abs(), c.minor.unsigned_abs())),
        ),
        memory_bytes,
        memory_used_bytes,
        bar1_bytes: bar1.clone().map(|b| b.total),
        bar1_used_bytes: bar1.map(|b| b.used),
        ecc_enabled: reading(device.is_ecc_enabled().map(|state| state.currently_enabled)),
        ecc_uncorrected: asked(full, || ecc_uncorrected(device)),
        remapped_rows: reading(nvml_extra::remapped_rows(device).map(|rows| RemappedRows {
            correctable: rows.correctable,
            uncorrectable: rows.uncorrectable,
            pending: rows.pending,
            failed: rows.failed,
        })),
        compute_processes: processes(device.running_compute_processes(), roots),
        graphics_processes: processes(device.running_graphics_processes(), roots),
        mig_enabled: reading(device.mig_mode().map(|mode| mode.current == 1)),
        virtualization: reading(device.virtualization_mode().map(|mode| {
            match mode {
                GpuVirtualizationMode::Bare => "None",
                GpuVirtualizationMode::PassThrough => "PassThrough",
                GpuVirtualizationMode::Vgpu => "VGPU",
                GpuVirtualizationMode::HostVgpu => "Host VGPU",
                GpuVirtualizationMode::HostVsga => "Host VSGA",
            }
            .to_string()
        })),
        nvlinks: nvml_links::read(device, fabric.known()),
        fabric,
        link_now: link_now(device),
        link_max: link(device.max_pcie_link_gen(), device.max_pcie_link_width()),
        pcie_replays: asked(full, || pcie_replays(device)),
        utilization_percent: asked(full, || utilization(device)),
        ..Gpu::default()
    }
}

/// Counters of one GPU for the observer: `links` are its active NVLinks, and processes with a pid in `ours` are left out.
/// AER is not NVML's to tell.
pub fn observe(device: &Device<'_>, roots: &Roots, links: &[u32], ours: &[u32]) -> GpuObservation {
    GpuObservation {
        link: link_now(device),
        pcie_replays: pcie_replays(device),
        nvlink_errors: nvml_links::error_sum(device, links),
        utilization_percent: utilization(device),
        foreign_processes: processes(
            device.running_compute_processes().map(|mut all| {
                all.retain(|process| !ours.contains(&process.pid));
                all
            }),
            roots,
        ),
        ecc_uncorrected: ecc_uncorrected(device),
        sm_clock_mhz: reading(device.clock_info(Clock::SM)),
        memory_clock_mhz: reading(device.clock_info(Clock::Memory)),
        ..GpuObservation::default()
    }
}

/// An observation of a GPU that cannot be asked, for one reason.
pub fn unobserved(why: &Absence) -> GpuObservation {
    GpuObservation {
        link: Reading::Absent(why.clone()),
        pcie_replays: Reading::Absent(why.clone()),
        aer: Reading::Absent(why.clone()),
        nvlink_errors: Reading::Absent(why.clone()),
        utilization_percent: Reading::Absent(why.clone()),
        foreign_processes: Reading::Absent(why.clone()),
        ecc_uncorrected: Reading::Absent(why.clone()),
        sm_clock_mhz: Reading::Absent(why.clone()),
        memory_clock_mhz: Reading::Absent(why.clone()),
    }
}

/// NVML prints `00000000:17:00.0`; the numbers stand in when the text is not an address.
pub(super) fn address_of(info: &PciInfo) -> Reading<PciAddress> {
    if let Ok(address) = info.bus_id.parse() {
        return Reading::Known(address);
    }
    match (u8::try_from(info.bus), u8::try_from(info.device)) {
        (Ok(bus), Ok(device)) if device < 32 => Reading::Known(PciAddress {
            domain: info.domain,
            bus,
            device,
            function: 0,
        }),
        _ => Reading::Absent(Absence::Unparsed(format!(
            "NVML PCI address '{}'",
            info.bus_id.escape_debug()
        ))),
    }
}

/// The answer to a question that a map does not ask.
fn asked<T>(wanted: bool, question: impl FnOnce() -> Reading<T>) -> Reading<T> {
    match wanted {
        true => question(),
        false => Reading::Absent(Absence::SourceMissing("not asked for a map".to_string())),
    }
}

fn ecc_uncorrected(device: &Device<'_>) -> Reading<u64> {
    reading(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile))
}

fn pcie_replays(device: &Device<'_>) -> Reading<u64> {
    reading(device.pcie_replay_counter().map(u64::from))
}

fn utilization(device: &Device<'_>) -> Reading<u32> {
    reading(device.utilization_rates().map(|rates| rates.gpu))
}

fn link_now(device: &Device<'_>) -> Reading<PcieLink> {
    link(
        device.current_pcie_link_gen(),
        device.current_pcie_link_width(),
    )
}

/// Rate per lane in GT/s of PCIe generations 1 to 6 (PCIe base specification).
const GENERATION_GTS: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];

fn link(generation: Result<u32, NvmlError>, width: Result<u32, NvmlError>) -> Reading<PcieLink> {
    let (generation, width) = match (generation, width) {
        (Ok(generation), Ok(width)) => (generation, width),
        (Err(error), _) | (_, Err(error)) => return Reading::Absent(absence(&error)),
    };
    let speed = (generation as usize)
        .checked_sub(1)
        .and_then(|at| GENERATION_GTS.get(at));
    match speed {
        Some(speed) if width > 0 => Reading::Known(PcieLink {
            speed_gts: *speed,
            width,
        }),
        _ => Reading::Absent(Absence::Unparsed(format!(
            "NVML PCIe generation {generation}, width {width}"
        ))),
    }
}

fn processes(list: Result<Vec<ProcessInfo>, NvmlError>, roots: &Roots) -> Reading<Vec<GpuProcess>> {
    reading(list).map(|list| {
        let pids: Vec<u32> = list.iter().map(|process| process.pid).collect();
        let names = process_names(roots, &pids);
        list.into_iter()
            .zip(names.into_iter().chain(std::iter::repeat(None)))
            .map(|(process, name)| GpuProcess {
                pid: process.pid,
                name,
                used_bytes: match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
            })
            .collect()
    })
}

fn fabric_state(info: nvml_extra::FabricInfo) -> FabricState {
    FabricState {
        state: match info.state {
            0 => "not_supported".to_string(),
            1 => "not_started".to_string(),
            2 => "in_progress".to_string(),
            3 => "completed".to_string(),
            other => format!("state {other}"),
        },
        status: info.status,
        cluster: info.cluster.iter().map(|b| format!("{b:02x}")).collect(),
        clique: info.clique,
        health_mask: info.health_mask,
    }
}

/// Claims of one GPU as source, towards all others, by their places in `listed`.
fn claims_row(
    nvml: &Nvml,
    listed: &[u32],
    at: usize,
    depth: Depth,
) -> Vec<(OrderedPair, PairClaims)> {
    let device = |at: usize| nvml.device_by_index(*listed.get(at)?).ok();
    let Some(source) = device(at) else {
        return Vec::new();
    };
    // A registered fabric says more of NVLinks than this status does.
    let nvlink = depth == Depth::Full
        || nvml_extra::fabric_info(&source).map_or(true, |f| (f.state, f.status) != (3, 0));
    let others = (0..listed.len()).filter_map(|to| {
        let pair = OrderedPair::new(at as u32, to as u32)?;
        Some((pair, claims_of(nvml, &source, &device(to)?, depth, nvlink)))
    });
    others.collect()
}

fn claims_of(
    nvml: &Nvml,
    source: &Device<'_>,
    destination: &Device<'_>,
    depth: Depth,
    nvlink: bool,
) -> PairClaims {
    let status = |index| reading(source.p2p_status(destination, index).map(letters));
    PairClaims {
        common_ancestor: reading(
            nvml.topology_common_ancestor(source, destination)
                .map(|level| match level {
                    TopologyLevel::Internal => 0,
                    TopologyLevel::Single => 10,
                    TopologyLevel::Multiple => 20,
                    TopologyLevel::HostBridge => 30,
                    TopologyLevel::Node => 40,
                    TopologyLevel::System => 50,
                }),
        ),
        p2p_read: status(P2pCapabilitiesIndex::Read),
        p2p_write: status(P2pCapabilitiesIndex::Write),
        p2p_nvlink: asked(nvlink, || status(P2pCapabilitiesIndex::NvLink)),
        p2p_atomics: asked(depth == Depth::Full, || {
            status(P2pCapabilitiesIndex::Atomics)
        }),
        // Its number in newer headers is that of the older PROP.
        p2p_pcie: asked(depth == Depth::Full, || status(P2pCapabilitiesIndex::Prop)),
        // The link lists of the GPUs say this better.
        ..PairClaims::default()
    }
}

/// The letters of `nvidia-smi topo -p2p`.
fn letters(status: P2pStatus) -> String {
    match status {
        P2pStatus::Ok => "OK",
        P2pStatus::ChipsetNotSupported => "CNS",
        P2pStatus::GpuNotSupported => "GNS",
        P2pStatus::IohTopologyNotSupported => "TNS",
        P2pStatus::DisabledByRegkey => "DR",
        P2pStatus::NotSupported => "NS",
        P2pStatus::Unknown => "U",
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvml_errors_keep_their_word() {
        let cases = [
            (
                NvmlError::NotSupported,
                "not supported (the requested operation",
            ),
            (NvmlError::NoPermission, "no permission (the current user"),
            (
                NvmlError::DriverNotLoaded,
                "failed (NVIDIA driver is not loaded)",
            ),
            (
                NvmlError::UnexpectedVariant(28),
                "failed (NVML code or value 28)",
            ),
        ];
        for (error, start) in cases {
            let text = absence(&error).to_string();
            assert!(text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn generations_become_lane_rates() {
        assert_eq!(
            link(Ok(5), Ok(16)),
            Reading::Known(PcieLink {
                speed_gts: 32.0,
                width: 16
            })
        );
        assert!(link(Ok(0), Ok(16)).known().is_none());
        assert!(link(Ok(9), Ok(16)).known().is_none());
        assert!(link(Err(NvmlError::NotSupported), Ok(16)).known().is_none());
    }

    #[test]
    fn hidden_far_ends_are_not_addresses_of_devices() {
        let info = |bus_id: &str, bus, device, domain| PciInfo {
            bus,
            bus_id: bus_id.to_string(),
            device,
            domain,
            pci_device_id: 0,
            pci_sub_system_id: None,
        };
        let shown = address_of(&info("00000000:17:00.0", 0x17, 0, 0));
        assert_eq!(
            shown.known().map(ToString::to_string).as_deref(),
            Some("0000:17:00.0")
        );
        assert!(
            address_of(&info("FFFFFFFF:FF:FF.F", 0xff, 0xff, u32::MAX))
                .known()
                .is_none()
        );
        assert!(address_of(&info("", 0x117, 0, 0)).known().is_none());
    }
}
