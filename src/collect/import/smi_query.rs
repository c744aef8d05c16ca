//! The text of `nvidia-smi -q`: one block of indented "Name : value" lines for each GPU. A value is read by the headings
//! above it; in excerpts that lost their headings a bare "Current" says nothing and is left alone.

use super::part::{Line, Part, bytes_of, speed_of};
use crate::model::{
    pci::{PciAddress, PciIdentity, PcieLink, VENDOR_NVIDIA},
    reading::{Absence, Reading},
    snapshot::{FabricState, Gpu, GpuProcess, RemappedRows},
};

/// Values of one GPU that belong together.
#[derive(Default)]
struct Block {
    generation: (Option<u32>, Option<u32>),
    width: (Option<u32>, Option<u32>),
    rows: [Option<u32>; 2],
    rows_pending: Option<bool>,
    rows_failed: Option<bool>,
    class: Option<(u16, u16)>,
    device: Option<u16>,
    process: Option<GpuProcess>,
    fabric: Option<FabricState>,
    uncorrected: Option<u64>,
}

pub(super) fn read(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "nvidia-smi -q");
    let mut headings: Vec<(usize, String)> = Vec::new();
    let mut place: Option<PciAddress> = None;
    let mut block = Block::default();
    let mut count = 0_u32;
    let mut attached: Option<usize> = None;
    for line in lines {
        let text = line.text.trim_end();
        let name_and_value = text.split_once(" : ").or_else(|| {
            text.split_once(": ")
                .filter(|(n, _)| !n.trim().starts_with("GPU "))
        });
        let trimmed = text.trim();
        if trimmed.is_empty() || trimmed.starts_with('=') {
            continue;
        }
        if let Some(address) = trimmed
            .strip_prefix("GPU ")
            .filter(|_| name_and_value.is_none())
            .and_then(|a| a.parse::<PciAddress>().ok())
        {
            finish(&mut part, place, std::mem::take(&mut block));
            place = Some(address);
            headings.clear();
            if let Some(gpu) = part.gpu_at(address) {
                gpu.nvml_index = Reading::Known(count);
                gpu.label = format!("GPU{count}");
                count += 1;
                part.cite(format!("GPU {address}"), "listed by nvidia-smi -q", line);
            }
            continue;
        }
        let indent = text.len() - text.trim_start().len();
        headings.retain(|(depth, _)| *depth < indent);
        let Some((name, value)) = name_and_value else {
            headings.push((indent, trimmed.trim_end_matches(':').to_string()));
            continue;
        };
        let (name, value) = (name.trim(), value.trim());
        let Some(address) = place else {
            if name == "Attached GPUs" {
                attached = value.parse().ok();
            }
            of_driver(&mut part, name, value, line);
            continue;
        };
        let path: Vec<&str> = headings.iter().map(|(_, h)| h.as_str()).collect();
        of_gpu(&mut part, address, &mut block, &path, name, value, line);
    }
    finish(&mut part, place, block);
    part.whole = attached == Some(part.snapshot.gpus.len());
    if attached.is_some() && !part.whole {
        // Of chosen GPUs (-i) the place in the text is not the index.
        for gpu in &mut part.snapshot.gpus {
            gpu.nvml_index = Reading::default();
        }
    }
    part.gave = match part.snapshot.gpus.len() {
        1 => "1 GPU".to_string(),
        n => format!("{n} GPUs"),
    };
    part
}

/// "13.0" as 13000.
pub(super) fn cuda_version(text: &str) -> Option<i32> {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    let (major, minor): (i32, i32) = (major.parse().ok()?, minor.parse().ok()?);
    (0..1000)
        .contains(&major)
        .then_some(major * 1000 + minor.clamp(0, 99) * 10)
}

fn of_driver(part: &mut Part, name: &str, value: &str, line: &Line) {
    match name {
        "Driver Version" => {
            part.snapshot.driver.version = said(value, |v| Some(v.to_string()));
            part.cite("driver version", value, line);
        }
        "CUDA Version" => {
            part.snapshot.driver.cuda_version = said(value, cuda_version);
            part.cite("CUDA version", value, line);
        }
        _ => {}
    }
}

/// A value, or why there is none: nvidia-smi's own word.
fn said<T>(value: &str, read: impl Fn(&str) -> Option<T>) -> Reading<T> {
    match value {
        "N/A" | "[N/A]" | "Not Supported" => {
            Reading::Absent(Absence::NotSupported(value.to_string()))
        }
        "ERR!" | "Unknown Error" | "[Unknown Error]" | "GPU is lost" | "[GPU is lost]" => {
            Reading::Absent(Absence::Failed(format!("nvidia-smi: {value}")))
        }
        "Insufficient Permissions" | "[Insufficient Permissions]" => {
            Reading::Absent(Absence::NoPermission(format!("nvidia-smi: {value}")))
        }
        _ => match read(value) {
            Some(value) => Reading::Known(value),
            None => Reading::Absent(Absence::Unparsed(
                value.chars().take(60).collect::<String>(),
            )),
        },
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "Enabled" | "Yes" | "On" => Some(true),
        "Disabled" | "No" | "Off" => Some(false),
        _ => None,
    }
}

fn number(value: &str) -> Option<u32> {
    value.trim_end_matches(['x', '%', ' ']).parse().ok()
}

fn of_gpu(
    part: &mut Part,
    address: PciAddress,
    block: &mut Block,
    path: &[&str],
    name: &str,
    value: &str,
    line: &Line,
) {
    let text = |v: &str| Some(v.to_string());
    if value == "GPU is lost" || value == "[GPU is lost]" {
        part.remark(
            crate::model::ticket::RemarkKind::GpuLost,
            &line.text,
            line,
            false,
        );
    }
    let above = path.last().copied().unwrap_or("");
    let top = path.first().copied().unwrap_or("");
    let Some(gpu) = part.gpu_at(address) else {
        return;
    };
    let about: &str = match (top, above, name) {
        ("", _, "Product Name") => {
            gpu.name = said(value, text);
            "name"
        }
        ("", _, "GPU UUID") => {
            gpu.uuid = said(value, text);
            return;
        }
        (_, "MIG Mode", "Current") => {
            gpu.mig_enabled = said(value, switch);
            "MIG mode"
        }
        (_, "GPU Virtualization Mode", "Virtualization Mode") => {
            gpu.virtualization = said(value, text);
            // The driver says so where it sees a hypervisor; "None" says nothing, some hypervisors hide.
            if matches!(value, "Pass-Through" | "VGPU") {
                part.snapshot.host.hypervisor = Reading::Known(true);
                part.cite(
                    "hypervisor",
                    format!("nvidia-smi: Virtualization Mode {value}"),
                    line,
                );
            }
            "virtualization mode"
        }
        (_, "PCI", "Device Id") => {
            block.device = value
                .strip_prefix("0x")
                .and_then(|hex| u32::from_str_radix(hex, 16).ok())
                .filter(|id| id & 0xffff == u32::from(VENDOR_NVIDIA))
                .and_then(|id| u16::try_from(id >> 16).ok());
            return;
        }
        (_, _, "Device Id") if block.device.is_none() => {
            // The heading "PCI" is missing in excerpts; the value names its vendor itself.
            block.device = value
                .strip_prefix("0x")
                .and_then(|hex| u32::from_str_radix(hex, 16).ok())
                .filter(|id| id & 0xffff == u32::from(VENDOR_NVIDIA))
                .and_then(|id| u16::try_from(id >> 16).ok());
            return;
        }
        (_, "PCI", "Base Classcode") => {
            block.class = hex16(value).map(|base| (base, 0));
            return;
        }
        (_, "PCI", "Sub Classcode") => {
            block.class = block.class.zip(hex16(value)).map(|((b, _), s)| (b, s));
            return;
        }
        (_, "PCIe Generation", "Max") => {
            block.generation.1 = number(value);
            "PCIe generation max"
        }
        (_, "PCIe Generation", "Current") => {
            block.generation.0 = number(value);
            "PCIe generation now"
        }
        (_, "Link Width", "Max") => {
            block.width.1 = number(value);
            "link width max"
        }
        (_, "Link Width", "Current") => {
            block.width.0 = number(value);
            "link width now"
        }
        (_, _, "Replays Since Reset") => {
            gpu.pcie_replays = said(value, |v| v.parse().ok());
            "PCIe replays"
        }
        (_, "FB Memory Usage", "Total") => {
            gpu.memory_bytes = said(value, bytes_of);
            "memory"
        }
        (_, "FB Memory Usage", "Used") => {
            gpu.memory_used_bytes = said(value, bytes_of);
            return;
        }
        (_, "BAR1 Memory Usage", "Total") => {
            gpu.bar1_bytes = said(value, bytes_of);
            "BAR1"
        }
        (_, "BAR1 Memory Usage", "Used") => {
            gpu.bar1_used_bytes = said(value, bytes_of);
            return;
        }
        (_, "ECC Mode", "Current") => {
            gpu.ecc_enabled = said(value, switch);
            "ECC mode"
        }
        ("ECC Errors", "Volatile", word) if word.contains("Uncorrectable") => {
            if let Ok(errors) = value.parse::<u64>() {
                let sum = block.uncorrected.unwrap_or(0).saturating_add(errors);
                block.uncorrected = Some(sum);
                if errors == 0 {
                    return;
                }
            }
            "uncorrected ECC errors"
        }
        (_, "Remapped Rows", "Correctable Error") => {
            block.rows[0] = number(value);
            return;
        }
        (_, "Remapped Rows", "Uncorrectable Error") => {
            block.rows[1] = number(value);
            "remapped rows after uncorrectable errors"
        }
        (_, "Remapped Rows", "Pending") => {
            block.rows_pending = switch(value);
            "remapping pending"
        }
        (_, "Remapped Rows", "Remapping Failure Occurred") => {
            block.rows_failed = switch(value);
            "remapping failed"
        }
        (_, "Utilization", "Gpu" | "GPU") => {
            gpu.utilization_percent = said(value, number);
            return;
        }
        (_, "Fabric", "State") => {
            let state = value.to_ascii_lowercase().replace([' ', '-'], "_");
            let state = match state.as_str() {
                "n/a" => "not_supported".to_string(),
                _ => state,
            };
            block.fabric = Some(FabricState {
                state,
                status: 0,
                cluster: String::new(),
                clique: 0,
                health_mask: None,
            });
            "fabric state"
        }
        (_, "Fabric", "Status") => {
            if let Some(fabric) = &mut block.fabric {
                // The text form has words, not nvmlReturn numbers; 999 is NVML's "unknown".
                fabric.status = u32::from(!matches!(value, "Success" | "N/A")) * 999;
            }
            "fabric status"
        }
        (_, "Fabric", "CliqueId" | "Clique ID") => {
            if let (Some(fabric), Ok(clique)) = (&mut block.fabric, value.parse()) {
                fabric.clique = clique;
            }
            "fabric clique"
        }
        (_, "Fabric", "ClusterUUID" | "Cluster UUID") => {
            if let Some(fabric) = &mut block.fabric {
                fabric.cluster = value.replace('-', "");
            }
            return;
        }
        ("" | "Processes", _, "Processes") if value == "None" => {
            gpu.compute_processes = Reading::Known(Vec::new());
            return;
        }
        ("Processes", _, "Process ID") => {
            push_process(gpu, block.process.take());
            block.process = number(value).map(|pid| GpuProcess {
                pid,
                name: None,
                used_bytes: None,
            });
            return;
        }
        ("Processes", _, "Type") => {
            // Only what computes counts as use.
            if value == "G" {
                block.process = None;
            }
            return;
        }
        ("Processes", _, "Name") => {
            if let Some(process) = &mut block.process {
                process.name = Some(value.chars().take(80).collect());
            }
            return;
        }
        ("Processes", _, "Used GPU Memory") => {
            if let Some(process) = &mut block.process {
                process.used_bytes = bytes_of(value);
            }
            return;
        }
        _ => return,
    };
    part.cite(format!("GPU {address} {about}"), value, line);
}

fn hex16(value: &str) -> Option<u16> {
    u16::from_str_radix(value.strip_prefix("0x")?, 16).ok()
}

fn push_process(gpu: &mut Gpu, process: Option<GpuProcess>) {
    let Some(process) = process else { return };
    match &mut gpu.compute_processes {
        Reading::Known(list) if list.len() < 256 => list.push(process),
        Reading::Known(_) => {}
        absent => *absent = Reading::Known(vec![process]),
    }
}

fn finish(part: &mut Part, place: Option<PciAddress>, block: Block) {
    let Some(gpu) = place.and_then(|p| part.gpu_at(p)) else {
        return;
    };
    let link = |generation: Option<u32>, width: Option<u32>| {
        let (speed_gts, width) = (speed_of(generation?)?, width.filter(|w| *w > 0)?);
        Some(PcieLink { speed_gts, width })
    };
    if let Some(now) = link(block.generation.0, block.width.0) {
        gpu.link_now = Reading::Known(now);
    }
    if let Some(max) = link(block.generation.1, block.width.1) {
        gpu.link_max = Reading::Known(max);
    }
    if let [Some(correctable), Some(uncorrectable)] = block.rows {
        gpu.remapped_rows = Reading::Known(RemappedRows {
            correctable,
            uncorrectable,
            pending: block.rows_pending == Some(true),
            failed: block.rows_failed == Some(true),
        });
    }
    if let Some(device) = block.device {
        let (base, sub) = block.class.unwrap_or((3, 2));
        gpu.identity = Reading::Known(PciIdentity {
            vendor: VENDOR_NVIDIA,
            device,
            class: (base & 0xff) << 8 | (sub & 0xff),
        });
    }
    if let Some(errors) = block.uncorrected {
        gpu.ecc_uncorrected = Reading::Known(errors);
    }
    if let Some(fabric) = block.fabric {
        gpu.fabric = Reading::Known(fabric);
    }
    push_process(gpu, block.process);
}
