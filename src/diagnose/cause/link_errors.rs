//! PCIe errors were counted while bytes moved (decision rows D9 and D25): a riser, a retimer, a slot. Rises during the run
//! count; totals since boot do not, because nobody knows what they were. Errors that were corrected are no wrong data. Where no counter
//! was compared, as in pasted texts, lines of the kernel log are what speaks.

use super::super::{evidence::Evidence, weigh::Cause};
use crate::model::{
    aer_line::{AerLine, Weight},
    finding::{Confidence, Finding, Judgement, Severity},
    pair::GpuIndex,
    pci::PciAddress,
    snapshot::{AerCounters, Snapshot},
};
use std::collections::{BTreeMap, BTreeSet};

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

/// A line of a PCIe error, with the GPUs whose link it is.
pub(in crate::diagnose) struct Logged<'a> {
    /// GPUs at or below what the line names; none where these are not known to be a GPU's.
    pub(in crate::diagnose) gpus: Vec<GpuIndex>,
    /// What it says.
    pub(in crate::diagnose) read: AerLine,
    /// The line.
    pub(in crate::diagnose) line: &'a str,
}

/// The lines of a log that tell of PCIe errors. A port that passed on a message of a GPU lies above it, whatever else shows the bus.
pub(in crate::diagnose) fn logged<'a>(
    snapshot: &Snapshot,
    lines: impl Iterator<Item = &'a str>,
) -> Vec<Logged<'a>> {
    let mut whose: BTreeMap<PciAddress, BTreeSet<GpuIndex>> = BTreeMap::new();
    for (gpu, index) in snapshot.gpus.iter().zip(0..) {
        let chain = gpu.bridge_chain.known().into_iter().flatten();
        for address in gpu.pci.known().into_iter().chain(chain) {
            whose.entry(*address).or_default().insert(GpuIndex(index));
        }
    }
    let read: Vec<(AerLine, &str)> = lines
        .filter_map(|line| Some((AerLine::parse(line)?, line)))
        .collect();
    for (line, _) in &read {
        if let Some(gpus) = whose.get(&line.device).cloned() {
            whose.entry(line.reporter).or_insert(gpus);
        }
    }
    let gpus_of = |read: &AerLine| {
        let found = whose.get(&read.device).or_else(|| {
            // A root port that tells of another device tells nothing of the GPUs below it.
            whose
                .get(&read.reporter)
                .filter(|_| read.device == read.reporter)
        });
        found.into_iter().flatten().copied().collect()
    };
    read.into_iter()
        .map(|(read, line)| Logged {
            gpus: gpus_of(&read),
            read,
            line,
        })
        .collect()
}

/// How many errors lines tell of: a port's message and the device's own line are one.
pub(in crate::diagnose) fn events<'a>(lines: impl Iterator<Item = &'a AerLine> + Clone) -> usize {
    let messages = lines.clone().filter(|l| l.message).count();
    messages.max(lines.filter(|l| !l.message).count())
}

/// What to do about a link that logs errors.
pub(in crate::diagnose) const RESEAT: &str = "reseat card and riser, try another slot; cap the slot's speed in the BIOS (Gen4 instead of Gen5) and see whether the counters rest";

/// What errors of this weight mean.
pub(in crate::diagnose) fn meaning(weight: Weight) -> &'static str {
    match weight {
        Weight::Corrected => {
            "PCIe errors were counted and corrected: the link retries, which costs rate and tells of a weak riser or slot. By themselves they make no data wrong"
        }
        _ => {
            "PCIe errors that no retry corrects: a link went down or lost a transaction; expect hangs and Xid 79"
        }
    }
}

/// What the kernel logged of links of GPUs, where nothing was counted before and after transfers.
fn of_the_log(e: &Evidence, lines: &[Logged]) -> Option<Finding> {
    let worst = lines.iter().map(|l| l.read.weight).max()?;
    let of_worst = || lines.iter().filter(|l| l.read.weight == worst);
    let times = events(of_worst().map(|l| &l.read)) as u64;
    let gpus: BTreeSet<GpuIndex> = lines.iter().flat_map(|l| l.gpus.clone()).collect();
    let (severity, confidence) = match worst {
        Weight::Corrected if times < FEW => (Severity::Info, Confidence::Possible),
        _ => (Severity::Warning, Confidence::Probable),
    };
    let mut finding = CAUSE.indicts(severity, confidence, meaning(worst));
    let address = |gpu: &GpuIndex| e.snapshot.gpu(*gpu).and_then(|g| g.pci.known());
    let named: Vec<String> = gpus
        .iter()
        .take(4)
        .map(|gpu| match address(gpu) {
            Some(pci) => format!("GPU{gpu} ({pci})"),
            None => format!("GPU{gpu}"),
        })
        .collect();
    let whose = format!("the PCIe link of {}", named.join(", "));
    finding.title = match worst {
        Weight::Corrected => {
            format!("{whose} logs errors that were corrected, {times} of them here")
        }
        Weight::Uncorrected => format!("{whose} logs errors that no retry corrects"),
        Weight::Contained => format!("{whose} was cut off by its port after an error (DPC)"),
        Weight::Down => format!("{whose} went down"),
    };
    // One of each weight, the worst first, then more of the worst.
    let mut shown: Vec<&str> = Vec::new();
    for weight in [
        Weight::Down,
        Weight::Contained,
        Weight::Uncorrected,
        Weight::Corrected,
    ] {
        shown.extend(
            lines
                .iter()
                .find(|l| l.read.weight == weight)
                .map(|l| l.line),
        );
    }
    let more = of_worst().map(|l| l.line).filter(|l| !shown.contains(l));
    let more: Vec<&str> = more.take(4_usize.saturating_sub(shown.len())).collect();
    shown.extend(more);
    finding.evidence = shown.iter().map(|l| format!("kernel log: {l}")).collect();
    finding.fix = vec![RESEAT.to_string()];
    if worst == Weight::Down {
        finding.fix.push(ASPM.to_string());
    }
    let places: Vec<String> = gpus
        .iter()
        .take(4)
        .filter_map(address)
        .map(ToString::to_string)
        .collect();
    finding.next_test = Some(match places.as_slice() {
        [one] => format!("sudo lspci -vv -s {one} | grep -E 'LnkCap|LnkSta'"),
        _ => "sudo lspci -vvv | grep -E '^[0-9a-f]|LnkCap:|LnkSta:'".to_string(),
    });
    finding.gpus = gpus.into_iter().collect();
    Some(finding)
}

const ASPM: &str = "links that go down when they change speed: kernel parameters 'pcie_aspm=off pcie_port_pm=off' (a community fix; idle power rises)";

fn judge(e: &Evidence) -> Vec<Finding> {
    let log = e.snapshot.host.kernel_log.known().into_iter().flatten();
    let mut lines = logged(e.snapshot, log.map(String::as_str));
    lines.retain(|l| !l.gpus.is_empty());
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
    if compared == 0
        && let Some(finding) = of_the_log(e, &lines)
    {
        return vec![finding];
    }
    // Beside counters of this run, errors of another time say no more than totals do; a link that went down says enough.
    let down: Vec<(Vec<GpuIndex>, &str)> = lines
        .into_iter()
        .filter(|l| l.read.weight == Weight::Down)
        .map(|l| (l.gpus, l.line))
        .collect();
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
    finding.fix = vec![RESEAT.to_string()];
    if !down.is_empty() {
        finding.fix.push(ASPM.to_string());
    }
    finding.next_test = Some("sudo dmesg | grep -E 'AER|PCIe Bus Error'".into());
    finding.gpus = gpus;
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::Host;
    use super::*;
    use crate::model::reading::Reading;

    fn of_log(lines: &[String]) -> Finding {
        let mut host = Host::root_complex(2);
        host.snapshot.host.kernel_log = Reading::Known(lines.to_vec());
        host.judge(judge).remove(0)
    }

    fn address(gpu: usize) -> PciAddress {
        *Host::root_complex(2).snapshot.gpus[gpu]
            .pci
            .known()
            .unwrap()
    }

    #[test]
    fn lines_of_a_log_speak_where_no_counter_was_compared() {
        let gpu = address(1);
        let corrected = format!(
            "[ 1.0] nvidia {gpu}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
        );
        let many = of_log(&vec![corrected.clone(); 20]);
        assert_eq!(many.judgement, Judgement::Indicted);
        assert_eq!(many.severity, Severity::Warning);
        assert_eq!(many.gpus, [GpuIndex(1)]);
        assert!(many.title.contains("20 of them"), "{}", many.title);
        assert_eq!(
            of_log(std::slice::from_ref(&corrected)).severity,
            Severity::Info
        );
        // A port that passed on the GPU's message is above it, and so is what the port says of itself.
        let port = "0000:7f:01.1";
        let fatal =
            format!("[ 2.0] pcieport {port}: AER: Uncorrected (Fatal) error received: {gpu}");
        let cut =
            format!("[ 2.1] pcieport {port}: DPC: containment event, status:0x1f01 source:0x0000");
        let found = of_log(&[corrected.clone(), fatal, cut.clone()]);
        assert_eq!(found.confidence, Confidence::Probable);
        assert!(found.title.contains("cut off"), "{}", found.title);
        assert_eq!(found.evidence.len(), 3, "{:?}", found.evidence);
        assert!(found.next_test.unwrap().contains(&gpu.to_string()));
        // Of some port, and of another device below one, nothing follows for GPUs.
        assert_ne!(of_log(&[cut]).judgement, Judgement::Indicted);
    }
}
