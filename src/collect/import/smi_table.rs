//! Shorter texts of nvidia-smi: its plain table, the list of `-L`, and the links of `nvlink -s` and `nvlink -R`.

use super::{
    part::{Line, MOST_GPUS, Part, bytes_of},
    smi_query::cuda_version,
};
use crate::model::{
    pci::PciAddress,
    reading::Reading,
    snapshot::{Gpu, GpuProcess, NvLink, NvLinkEnd},
    ticket::RemarkKind,
};

/// The plain table.
pub(super) fn read_table(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "nvidia-smi");
    let mut current: Option<PciAddress> = None;
    let mut in_processes = false;
    for line in lines {
        let text = line.text.trim();
        if let Some(rest) = after(text, "Driver Version:") {
            let version = word(rest);
            part.snapshot.driver.version = Reading::Known(version.to_string());
            part.cite("driver version", version, line);
            if let Some(cuda) = after(text, "CUDA Version:")
                .map(word)
                .and_then(cuda_version)
            {
                part.snapshot.driver.cuda_version = Reading::Known(cuda);
            }
            continue;
        }
        if text.contains("Processes:") {
            in_processes = true;
            // Below the last of the GPUs.
            part.whole = !part.snapshot.gpus.is_empty();
        }
        if !text.starts_with('|') {
            continue;
        }
        if text.contains("ERR!") || text.contains("GPU is lost") {
            part.remark(RemarkKind::GpuLost, text, line, false);
        }
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        if in_processes {
            process(&mut part, &cells);
            continue;
        }
        let address = cells
            .get(1)
            .and_then(|c| c.split_whitespace().next())
            .filter(|w| w.contains(':'))
            .and_then(|w| w.parse::<PciAddress>().ok());
        match (address, cells.first()) {
            (Some(address), Some(first)) => {
                let mut words: Vec<&str> = first.split_whitespace().collect();
                let index = words.first().and_then(|w| w.parse::<u32>().ok());
                if matches!(words.last(), Some(&("On" | "Off"))) {
                    words.pop();
                }
                let name = words.get(1..).unwrap_or_default().join(" ");
                let Some(gpu) = part.gpu_at(address) else {
                    continue;
                };
                if let Some(index) = index {
                    gpu.nvml_index = Reading::Known(index);
                    gpu.label = format!("GPU{index}");
                }
                if !name.is_empty() {
                    gpu.name = Reading::Known(name.clone());
                }
                part.cite(format!("GPU {address} name"), name, line);
                current = Some(address);
            }
            (None, _) => {
                if let (Some(address), Some(memory)) = (current, cells.get(1))
                    && let Some((used, total)) = memory.split_once('/')
                    && let (Some(used), Some(total)) = (bytes_of(used), bytes_of(total))
                    && let Some(gpu) = part.gpu_at(address)
                {
                    gpu.memory_used_bytes = Reading::Known(used);
                    gpu.memory_bytes = Reading::Known(total);
                }
            }
            _ => {}
        }
    }
    part.gave = format!("{} GPUs", part.snapshot.gpus.len());
    part
}

/// "0 N/A N/A 12345 C python 1234MiB".
fn process(part: &mut Part, cells: &[&str]) {
    let words: Vec<&str> = cells
        .first()
        .map(|c| c.split_whitespace().collect())
        .unwrap_or_default();
    let Some(index) = words.first().and_then(|w| w.parse::<u32>().ok()) else {
        return;
    };
    let Some(kind) = words.iter().position(|w| matches!(*w, "C" | "C+G")) else {
        return;
    };
    let pid = kind
        .checked_sub(1)
        .and_then(|at| words.get(at))
        .and_then(|w| w.parse().ok());
    let gpu = part
        .snapshot
        .gpus
        .iter_mut()
        .find(|g| g.nvml_index.known() == Some(&index));
    if let (Some(pid), Some(gpu)) = (pid, gpu) {
        let process = GpuProcess {
            pid,
            name: words.get(kind + 1).map(|w| w.chars().take(80).collect()),
            used_bytes: words.last().and_then(|w| bytes_of(w)),
        };
        match &mut gpu.compute_processes {
            Reading::Known(list) if list.len() < 256 => list.push(process),
            Reading::Known(_) => {}
            absent => *absent = Reading::Known(vec![process]),
        }
    }
}

fn after<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    text.split_once(mark).map(|(_, rest)| rest.trim_start())
}

fn word(text: &str) -> &str {
    text.split(|c: char| c.is_whitespace() || c == '|')
        .next()
        .unwrap_or_default()
}

/// `nvidia-smi -L`, `nvlink -s`, `nvlink -R`: "GPU 0: NAME (UUID: ...)" and lines of links below.
pub(super) fn read_links(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "nvidia-smi nvlink");
    let mut links = 0_usize;
    for line in lines {
        let text = line.text.trim();
        if let Some((index, rest)) = text
            .strip_prefix("GPU ")
            .and_then(|r| r.split_once(':'))
            .and_then(|(n, rest)| Some((n.trim().parse::<u32>().ok()?, rest)))
        {
            if part.snapshot.gpus.len() >= MOST_GPUS {
                part.skip(line, "more GPUs than any host has");
                continue;
            }
            let (name, uuid) = rest.split_once("(UUID:").unwrap_or((rest, ""));
            let uuid = uuid.trim().trim_end_matches(')').trim();
            part.cite(format!("GPU{index}"), name.trim(), line);
            part.snapshot.gpus.push(Gpu {
                label: format!("GPU{index}"),
                nvml_index: Reading::Known(index),
                name: Reading::Known(name.trim().to_string()),
                uuid: match uuid {
                    "" => Reading::default(),
                    uuid => Reading::Known(uuid.to_string()),
                },
                ..Gpu::default()
            });
            continue;
        }
        let Some((number, rest)) = text
            .strip_prefix("Link ")
            .and_then(|r| r.split_once(':'))
            .and_then(|(n, rest)| Some((n.trim().parse::<u32>().ok()?, rest.trim())))
        else {
            if !text.is_empty() {
                part.skip(line, "no line of nvidia-smi nvlink");
            }
            continue;
        };
        let active = !rest.contains("inactive") && !rest.contains("Inactive");
        let raw_gb_per_s = rest
            .strip_suffix("GB/s")
            .and_then(|v| v.trim().parse::<f64>().ok())
            .filter(|v| v.is_finite() && *v >= 0.0);
        let remote = after(rest, "Remote Device")
            .and_then(|r| r.split_once(": Link").map(|(a, _)| a))
            .and_then(|a| a.trim().parse::<PciAddress>().ok())
            .filter(|a| a.bus != 0xff);
        let mut added = None;
        if let Some(gpu) = part.snapshot.gpus.last_mut() {
            let list = match &mut gpu.nvlinks {
                Reading::Known(list) => list,
                absent => {
                    *absent = Reading::Known(Vec::new());
                    match absent {
                        Reading::Known(list) => list,
                        Reading::Absent(_) => continue,
                    }
                }
            };
            if list.len() < 64 && !list.iter().any(|l| l.link == number) {
                list.push(NvLink {
                    link: number,
                    active,
                    version: None,
                    raw_gb_per_s,
                    remote,
                    remote_kind: NvLinkEnd::Unknown,
                    errors: None,
                });
                links += 1;
                added = (!active).then(|| gpu.label.clone());
            }
        }
        if let Some(label) = added {
            part.cite(format!("{label} NVLink {number}"), "inactive", line);
        }
    }
    part.gave = match links {
        0 => format!("{} GPUs", part.snapshot.gpus.len()),
        n => format!("{} GPUs, {n} NVLinks", part.snapshot.gpus.len()),
    };
    part
}
