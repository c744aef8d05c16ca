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
pub(super) fn read(surroundings: &Surroundings) -> Result<(Session, Snapshot), Stop> {
    surroundings
        .console
        .progress("reading NVML, hwloc and /sys");
    let read = Session::start(&surroundings.roots).map_err(Stop::inconclusive);
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
        chosen.push(find(snapshot, word.trim())?);
    }
    chosen.sort_unstable();
    chosen.dedup();
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
                "--pairs: '{word}' is no pair of chosen GPUs; write 2>5 for one direction or 2-5 for both"
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

/// Removes GPUs that must not be touched, with the reason for each: in use by others, or in MIG mode.
pub(super) fn leave_out_busy(
    snapshot: &Snapshot,
    chosen: Vec<u32>,
    force: bool,
) -> (Vec<u32>, Vec<String>) {
    let mut left_out = Vec::new();
    let kept = chosen
        .into_iter()
        .filter(|index| {
            let Some(gpu) = snapshot.gpu(GpuIndex(*index)) else {
                return false;
            };
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
                _ => true,
            }
        })
        .collect();
    (kept, left_out)
}
