//! PCIe errors were counted while bytes moved (decision rows D9 and D25): a riser, a retimer, a slot. Rises during the run
//! count; totals since boot do not, because nobody knows what they were. Errors that were corrected are no wrong data.

use super::super::{evidence::Evidence, weigh::Cause};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::GpuIndex,
    pci::PciAddress,
    snapshot::AerCounters,
};
use std::collections::BTreeSet;

pub(crate) const CAUSE: Cause = Cause {
    id: "link-errors",
    title: "a PCIe link counts errors",
    judge,
    wants: None,
};

/// Corrected errors or replays of one run that are none: links that leave their idle speed may cost a few.
const FEW: u64 = 16;

/// What rose.
struct Risen {
    what: String,
    corrected: u64,
    uncorrected: u64,
}

fn difference(what: String, before: AerCounters, after: AerCounters) -> Risen {
    let nonfatal = after.nonfatal.saturating_sub(before.nonfatal);
    Risen {
        what,
        corrected: after.correctable.saturating_sub(before.correctable),
        uncorrected: nonfatal + after.fatal.saturating_sub(before.fatal),
    }
}

/// GPUs below a port.
fn below(e: &Evidence, port: PciAddress) -> Vec<GpuIndex> {
    e.gpus()
        .filter(|(_, g)| g.bridge_chain.known().is_some_and(|c| c.contains(&port)))
        .map(|(i, _)| i)
        .collect()
}

/// Lines of links that went down at a GPU or a port above one.
fn down_lines<'a>(e: &Evidence<'a>) -> Vec<(Vec<GpuIndex>, &'a str)> {
    let mut ports: BTreeSet<PciAddress> = BTreeSet::new();
    for (_, gpu) in e.gpus() {
        ports.extend(gpu.pci.known());
        ports.extend(gpu.bridge_chain.known().into_iter().flatten());
    }
    let lines = e.log_lines(&["Surprise Link Down", "Surprise Down"]);
    let lines = lines.unwrap_or_default().into_iter();
    lines
        .filter_map(|line| {
            let port = ports.iter().find(|p| line.contains(&p.to_string()))?;
            let own = e.gpus().find(|(_, g)| g.pci.known() == Some(port));
            Some((own.map_or_else(|| below(e, *port), |(i, _)| vec![i]), line))
        })
        .collect()
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let down = down_lines(e);
    let looks = e.observations.first().zip(e.observations.last());
    let mut risen: Vec<(Vec<GpuIndex>, Risen)> = Vec::new();
    let mut compared = 0;
    if let Some((first, last)) = looks.filter(|_| e.observations.len() > 1) {
        for (index, _) in e.gpus() {
            let (Some(before), Some(after)) =
                (first.gpus.get(index.at()), last.gpus.get(index.at()))
            else {
                continue;
            };
            if let (Some(from), Some(to)) =
                (before.pcie_replays.known(), after.pcie_replays.known())
            {
                compared += 1;
                risen.push((
                    vec![index],
                    Risen {
                        what: format!("GPU{index}: PCIe replay counter"),
                        corrected: to.saturating_sub(*from),
                        uncorrected: 0,
                    },
                ));
            }
            if let (Some(from), Some(to)) = (before.aer.known(), after.aer.known()) {
                compared += 1;
                risen.push((
                    vec![index],
                    difference(format!("GPU{index}: AER"), *from, *to),
                ));
            }
        }
        for before in &first.bridges {
            let Some(after) = last.bridges.iter().find(|b| b.pci == before.pci) else {
                continue;
            };
            compared += 1;
            let what = format!("port {}: AER", before.pci);
            risen.push((
                below(e, before.pci),
                difference(what, before.aer, after.aer),
            ));
        }
    }
    risen.retain(|(_, r)| r.corrected >= FEW || r.uncorrected > 0);
    if risen.is_empty() && down.is_empty() {
        return vec![if compared > 0 {
            CAUSE.says(
                Judgement::Cleared,
                "replay and AER counters did not rise during the run, where they could be read",
            )
        } else {
            CAUSE.says(
                Judgement::NotApplicable,
                "no counter was read before and after transfers",
            )
        }];
    }
    let uncorrected = !down.is_empty() || risen.iter().any(|(_, r)| r.uncorrected > 0);
    let of_down = down.iter().flat_map(|(gpus, _)| gpus.clone());
    let of_risen = risen.iter().flat_map(|(gpus, _)| gpus.clone());
    let mut gpus: Vec<GpuIndex> = of_risen.chain(of_down).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        if risen.is_empty() { Confidence::Probable } else { Confidence::Established },
        if uncorrected {
            "PCIe errors that no retry corrects: a link went down or lost a transaction; expect hangs and Xid 79"
        } else {
            "PCIe errors were counted and corrected while bytes moved: the link retries, which costs rate and tells of a weak riser or slot"
        },
    );
    finding.evidence = risen
        .iter()
        .map(|(_, r)| match r.uncorrected {
            0 => format!("{} rose by {} during this run", r.what, r.corrected),
            n => format!(
                "{} rose by {n} uncorrected and {} corrected during this run",
                r.what, r.corrected
            ),
        })
        .chain(down.iter().take(2).map(|(_, l)| format!("kernel log: {l}")))
        .collect();
    finding.fix = vec![
        "reseat card and riser, try another slot; cap the slot's speed in the BIOS (Gen4 instead of Gen5) and see whether the counters rest".to_string(),
    ];
    if !down.is_empty() {
        finding.fix.push("links that go down when they change speed: kernel parameters 'pcie_aspm=off pcie_port_pm=off' (a community fix; idle power rises)".to_string());
    }
    finding.next_test = Some("sudo dmesg | grep -E 'AER|PCIe Bus Error'".into());
    finding.gpus = gpus;
    vec![finding]
}
