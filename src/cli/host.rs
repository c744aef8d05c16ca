//! This host: reading it, saying that it has no GPU, choosing GPUs and pairs.

use super::{Surroundings, exit::Stop};
use crate::{
    collect::{live, session::Session},
    model::{
        pair::{GpuIndex, OrderedPair},
        pci::PciAddress,
        snapshot::Snapshot,
    },
};

/// Reads this host through the collector.
pub(super) fn read(
    surroundings: &Surroundings,
    depth: live::Depth,
) -> Result<(Session, Snapshot), Stop> {
    surroundings
        .console
        .progress("reading NVML, hwloc and /sys");
    let read = Session::start(&surroundings.roots, depth).map_err(Stop::inconclusive);
    surroundings.console.quiet();
    read
}

/// Stops when there is no GPU: one line with what was looked for and how to see the demo.
pub(super) fn require_gpu(snapshot: &Snapshot) -> Result<(), Stop> {
    if !snapshot.gpus.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = snapshot
        .sources
        .iter()
        .filter(|note| matches!(note.source.as_str(), "nvml" | "nvml init"))
        .filter_map(|note| note.result.absence())
        .map(ToString::to_string)
        .take(1)
        .collect();
    let nvml = missing
        .first()
        .map_or("NVML sees none".to_string(), |why| format!("NVML: {why}"));
    Err(Stop::inconclusive(format!(
        "no NVIDIA GPU on this host: no PCI function of vendor 10de with class 0300 or 0302 in /sys/bus/pci/devices; {nvml}. \
         Nothing was tested. To see it work without a GPU: peerproof demo"
    )))
}

/// GPUs chosen by `--gpus`: indices, UUIDs or PCI addresses; all when `None`.
pub(super) fn choose_gpus(snapshot: &Snapshot, list: Option<&[String]>) -> Result<Vec<u32>, Stop> {
    let count = snapshot.gpus.len() as u32;
    let Some(list) = list else {
        return Ok((0..count).collect());
    };
    let mut chosen = Vec::new();
    for word in list {
        let gpu = find(snapshot, word.trim())?;
        if chosen.contains(&gpu) {
            return Err(Stop::usage(format!(
                "--gpus: GPU{gpu} is named twice ('{}')",
                word.trim()
            )));
        }
        chosen.push(gpu);
    }
    chosen.sort_unstable();
    Ok(chosen)
}

fn find(snapshot: &Snapshot, word: &str) -> Result<u32, Stop> {
    let by_index = word
        .parse::<usize>()
        .ok()
        .filter(|index| *index < snapshot.gpus.len());
    let address = word.parse::<PciAddress>().ok();
    let found = by_index.or_else(|| {
        snapshot.gpus.iter().position(|gpu| {
            gpu.uuid
                .known()
                .is_some_and(|uuid| uuid.eq_ignore_ascii_case(word))
                || address.is_some() && gpu.pci.known() == address.as_ref()
        })
    });
    found.map(|index| index as u32).ok_or_else(|| {
        let known: Vec<String> = snapshot
            .gpus
            .iter()
            .enumerate()
            .map(|(index, gpu)| {
                let pci = gpu.pci.known().map_or("?".to_string(), ToString::to_string);
                format!("{index} ({pci})")
            })
            .collect();
        Stop::usage(format!(
            "--gpus: no GPU '{word}'; this host has {} (an index, a GPU-... UUID or a PCI address)",
            known.join(", ")
        ))
    })
}

/// Pairs chosen by `--pairs`: `2>5`, `2->5` (one direction) or `2-5`, `2:5` (both).
pub(super) fn choose_pairs(chosen: &[u32], list: &[String]) -> Result<Vec<OrderedPair>, Stop> {
    let mut pairs = Vec::new();
    for word in list {
        let bad = || {
            Stop::usage(format!(
                "--pairs: '{word}' is no pair of chosen GPUs; write '2->5' for one direction, quoted, or 2-5 for both"
            ))
        };
        let plain = word.replace("->", ">");
        let (ends, both) = match (plain.split_once('>'), plain.split_once(['-', ':'])) {
            (Some(ends), _) => (ends, false),
            (None, Some(ends)) => (ends, true),
            (None, None) => return Err(bad()),
        };
        let end = |text: &str| {
            text.trim()
                .parse::<u32>()
                .ok()
                .filter(|gpu| chosen.contains(gpu))
        };
        let pair = end(ends.0)
            .zip(end(ends.1))
            .and_then(|(s, d)| OrderedPair::new(s, d));
        let pair = pair.ok_or_else(bad)?;
        pairs.push(pair);
        if both {
            pairs.push(pair.reversed());
        }
    }
    pairs.sort();
    pairs.dedup();
    Ok(pairs)
}

/// GPUs that CUDA_VISIBLE_DEVICES hides from workers, with the reason for each. The variable's indices are read in PCI
/// order, because workers run with CUDA_DEVICE_ORDER=PCI_BUS_ID; as in CUDA, the first entry that names no GPU ends the
/// list.
pub(super) fn hidden_by_cuda(snapshot: &Snapshot, variable: Option<&str>) -> Vec<(u32, String)> {
    let Some(list) = variable else {
        return Vec::new();
    };
    let named = |word: &str| -> Option<u32> {
        let uuid = |gpu: &crate::model::snapshot::Gpu| {
            let known = gpu.uuid.known().map(|uuid| uuid.to_ascii_lowercase());
            word.len() > 4 && known.is_some_and(|u| u.starts_with(&word.to_ascii_lowercase()))
        };
        let by_index = word
            .parse::<usize>()
            .ok()
            .filter(|i| *i < snapshot.gpus.len());
        by_index
            .or_else(|| snapshot.gpus.iter().position(uuid))
            .map(|index| index as u32)
    };
    let visible: Vec<u32> = list
        .split(',')
        .map(|word| named(word.trim()))
        .take_while(Option::is_some)
        .flatten()
        .collect();
    (0..snapshot.gpus.len() as u32)
        .filter(|gpu| !visible.contains(gpu))
        .map(|gpu| {
            let shown: String = list.chars().take(80).collect();
            (gpu, format!("hidden by CUDA_VISIBLE_DEVICES='{shown}'"))
        })
        .collect()
}

/// Removes GPUs that must not be touched, with the reason for each: in use by others, or in MIG mode.
pub(super) fn leave_out_busy(
    snapshot: &Snapshot,
    chosen: Vec<u32>,
    force: bool,
) -> (Vec<u32>, Vec<String>) {
    let mut left_out = Vec::new();
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let hidden = hidden_by_cuda(snapshot, variable.as_deref());
    let driver_lists = snapshot.gpus.iter().any(|g| g.nvml_index.known().is_some());
    let kept = chosen
        .into_iter()
        .filter(|index| {
            let Some(gpu) = snapshot.gpu(GpuIndex(*index)) else {
                return false;
            };
            if let Some((_, why)) = hidden.iter().find(|(gpu, _)| gpu == index) {
                left_out.push(format!("GPU{index}: {why}"));
                return false;
            }
            if let Some(why) = gpu.nvml_index.unanswered() {
                left_out.push(format!(
                    "GPU{index}: quarantined, as NVML does not answer for it ({why}): the GPU or the driver is stuck ('dmesg' may say why)"
                ));
                return false;
            }
            if driver_lists && gpu.nvml_index.known().is_none() {
                left_out.push(format!(
                    "GPU{index}: the driver does not list it (hidden from this container, bound to another driver, or failed)"
                ));
                return false;
            }
            if gpu.pci.known().is_none() {
                left_out.push(format!("GPU{index}: its PCI address is not known"));
                return false;
            }
            if gpu.mig_enabled.known() == Some(&true) {
                left_out.push(format!(
                    "GPU{index}: MIG mode is on; there is no peer access from a MIG slice"
                ));
                return false;
            }
            match live::in_use(gpu) {
                Some(why) if !force => {
                    left_out.push(format!(
                        "GPU{index}: in use ({why}); --force-busy tests it all the same"
                    ));
                    false
                }
                Some(why) => {
                    left_out.push(format!(
                        "a quiet GPU{index}: {why} was there, and the rates of this GPU are under that load (--shared)"
                    ));
                    true
                }
                None => true,
            }
        })
        .collect();
    (kept, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        reading::Reading,
        snapshot::{Gpu, Origin},
    };

    fn host() -> Snapshot {
        let mut snapshot = Snapshot::empty(Origin::Live);
        for index in 0..4 {
            snapshot.gpus.push(Gpu {
                uuid: Reading::Known(format!("GPU-{index}{index}{index}{index}aaaa-0000")),
                pci: format!("0000:{index}1:00.0")
                    .parse()
                    .map_or_else(|_| Reading::default(), Reading::Known),
                ..Gpu::default()
            });
        }
        snapshot
    }

    fn hidden(variable: Option<&str>) -> Vec<u32> {
        let list = hidden_by_cuda(&host(), variable);
        list.into_iter().map(|(gpu, _)| gpu).collect()
    }

    #[test]
    fn visible_devices_are_read_as_cuda_reads_them() {
        assert_eq!(hidden(None), Vec::<u32>::new());
        assert_eq!(hidden(Some("")), [0, 1, 2, 3]);
        assert_eq!(hidden(Some("2,0")), [1, 3]);
        assert_eq!(
            hidden(Some("1,9,2")),
            [0, 2, 3],
            "the first bad entry ends the list"
        );
        assert_eq!(hidden(Some("GPU-3333aaaa, GPU-0000AAAA-0000")), [1, 2]);
    }

    #[test]
    fn gpus_and_pairs_are_chosen_by_any_name() {
        let words = |list: &[&str]| list.iter().map(|w| w.to_string()).collect::<Vec<_>>();
        let chosen = |list: &[&str]| choose_gpus(&host(), Some(&words(list)));
        assert_eq!(
            chosen(&["3", "0000:01:00.0", "GPU-1111aaaa-0000"]).unwrap(),
            [0, 1, 3]
        );
        assert!(chosen(&["4"]).unwrap_err().message.contains("no GPU '4'"));
        let pairs = |list: &[&str]| choose_pairs(&[0, 1, 2], &words(list));
        assert_eq!(pairs(&["0>1", "1->0"]).unwrap().len(), 2);
        assert_eq!(pairs(&["0-2"]).unwrap().len(), 2);
        for bad in ["0>0", "0>3", "x", "1>", ""] {
            assert_eq!(pairs(&[bad]).unwrap_err().code, 64, "{bad}");
        }
    }
}
