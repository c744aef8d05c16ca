//! A PCIe link below what both ends can do (decision row D25). Width counts at any time; speed only under load, because
//! idle links slow down by design. A low rate is a finding of its own and never the cause of wrong data.

use super::super::{evidence::Evidence, weigh::Cause};
use crate::model::{
    finding::{Confidence, Finding, Judgement, Severity},
    pair::GpuIndex,
    pci::PcieLink,
    snapshot::Observation,
};

pub(crate) const CAUSE: Cause = Cause {
    id: "link-downtrained",
    title: "a PCIe link runs below its maximum",
    judge,
    wants: None,
};

fn judge(e: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut compared, mut slow_idle) = (0usize, Vec::new());
    for (index, gpu) in e.gpus() {
        let (Some(now), Some(max)) = (gpu.link_now.known(), gpu.link_max.known()) else {
            continue;
        };
        compared += 1;
        if now.width < max.width {
            findings.push(narrow(e, index, *now, *max));
            continue;
        }
        // The best speed seen in a loaded moment: a link may be caught while it is still training up.
        let loaded = e
            .observations
            .iter()
            .filter(|o| is_under_load(o, index))
            .filter_map(|o| o.gpus.get(index.at())?.link.known().copied())
            .max_by(|a, b| a.speed_gts.total_cmp(&b.speed_gts));
        match loaded {
            Some(link) if link.speed_gts < max.speed_gts => {
                findings.push(slow(e, index, link, *max));
            }
            Some(_) => {}
            None if now.speed_gts < max.speed_gts => slow_idle.push(index),
            None => {}
        }
    }
    if findings.is_empty() {
        findings.push(if compared == 0 {
            CAUSE.says(Judgement::CannotTell, "link states were not read")
        } else if slow_idle.is_empty() {
            CAUSE.says(
                Judgement::Cleared,
                "every link has its full width, and its full speed where that could be seen",
            )
        } else {
            let mut finding = CAUSE.says(
                Judgement::CannotTell,
                "links have their full width and a low speed while idle, as they do by design; no speed was seen under load",
            );
            finding.gpus = slow_idle;
            finding.next_test = Some("peerproof qualify".into());
            finding
        });
    }
    findings
}

/// Whether `gpu` moved bytes in the moment that was observed: the moment says "under load" and names the GPU, alone
/// ("GPU3") or in a pair ("3->5").
fn is_under_load(observation: &Observation, gpu: GpuIndex) -> bool {
    let Some((_, what)) = observation.moment.split_once("under load") else {
        return false;
    };
    what.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '>'))
        .any(|word| {
            let names =
                |text: &str| text.trim_start_matches("GPU").parse::<u32>().ok() == Some(gpu.0);
            match word.split_once("->") {
                Some((source, destination)) => names(source) || names(destination),
                None => word.starts_with("GPU") && names(word),
            }
        })
}

fn words(link: PcieLink) -> String {
    match link.generation() {
        Some(generation) => format!("Gen{generation} x{}", link.width),
        None => format!("{} GT/s x{}", link.speed_gts, link.width),
    }
}

fn counters(e: &Evidence, index: GpuIndex) -> Vec<String> {
    let Some(gpu) = e.snapshot.gpu(index) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    if let Some(replays) = gpu.pcie_replays.known() {
        lines.push(format!("GPU{index}: PCIe replay counter {replays}"));
    }
    if let Some(aer) = gpu.aer.known() {
        lines.push(format!(
            "GPU{index}: AER totals correctable {}, nonfatal {}, fatal {}",
            aer.correctable, aer.nonfatal, aer.fatal
        ));
    }
    lines
}

fn narrow(e: &Evidence, index: GpuIndex, now: PcieLink, max: PcieLink) -> Finding {
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        Confidence::Established,
        format!(
            "GPU{index} has {} of {} lanes: about {:.0} instead of {:.0} GB/s at full speed. It slows its pairs; it does not make their data wrong",
            now.width,
            max.width,
            PcieLink { width: now.width, ..max }.ceiling_gb_per_s(),
            max.ceiling_gb_per_s()
        ),
    );
    finding.evidence = vec![format!(
        "GPU{index}: link {} now, {} at most",
        words(now),
        words(max)
    )];
    finding.evidence.extend(counters(e, index));
    finding.fix = vec![
        "reseat the card; check the slot's bifurcation in the BIOS, the riser, and whether the slot has that many lanes".to_string(),
    ];
    finding.next_test = Some(format!(
        "sudo lspci -vv -s {} | grep -E 'LnkCap|LnkSta'",
        address(e, index)
    ));
    finding.gpus = vec![index];
    finding
}

fn slow(e: &Evidence, index: GpuIndex, loaded: PcieLink, max: PcieLink) -> Finding {
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        Confidence::Established,
        format!(
            "GPU{index} stays at {} under load and can do {}. It slows its pairs; it does not make their data wrong",
            words(loaded),
            words(max)
        ),
    );
    finding.evidence = vec![format!(
        "GPU{index}: best link seen under load {}, at most {}",
        words(loaded),
        words(max)
    )];
    finding.evidence.extend(counters(e, index));
    finding.fix = vec![
        "look for a speed cap of the slot in the BIOS, then for the riser or retimer; rising replay or AER counters speak for the riser".to_string(),
    ];
    finding.next_test = Some(format!(
        "sudo lspci -vv -s {} | grep -E 'LnkCap|LnkSta'",
        address(e, index)
    ));
    finding.gpus = vec![index];
    finding
}

fn address(e: &Evidence, index: GpuIndex) -> String {
    e.snapshot
        .gpu(index)
        .and_then(|g| g.pci.known())
        .map_or_else(|| format!("GPU{index}"), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::Host;
    use super::*;
    use crate::model::{reading::Reading, snapshot::GpuObservation};

    fn judged(host: &Host) -> Vec<Finding> {
        host.judge(judge)
    }

    fn link(speed_gts: f64, width: u32) -> PcieLink {
        PcieLink { speed_gts, width }
    }

    fn observe(host: &mut Host, moment: &str, speed_gts: f64) {
        let gpus = host
            .snapshot
            .gpus
            .iter()
            .map(|_| GpuObservation {
                link: Reading::Known(link(speed_gts, 16)),
                ..GpuObservation::default()
            })
            .collect();
        host.observations.push(Observation {
            moment: moment.into(),
            gpus,
            bridges: Vec::new(),
        });
    }

    #[test]
    fn a_narrow_link_counts_while_idle() {
        let mut host = Host::root_complex(2);
        host.snapshot.gpus[1].link_now = Reading::Known(link(2.5, 8));
        let found = judged(&host);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].gpus, [GpuIndex(1)]);
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(found[0].because.contains("does not make their data wrong"));
    }

    #[test]
    fn a_slow_idle_link_is_no_finding() {
        let mut host = Host::root_complex(2);
        host.snapshot.gpus[0].link_now = Reading::Known(link(2.5, 16));
        observe(&mut host, "before", 2.5);
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
        observe(&mut host, "under load: ce-push 0->1", 32.0);
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
    }

    #[test]
    fn a_slow_loaded_link_is_one_and_bystanders_are_not() {
        let mut host = Host::root_complex(4);
        observe(&mut host, "under load: ce-push 0->1", 16.0);
        let found = judged(&host);
        let gpus: Vec<u32> = found.iter().flat_map(|f| &f.gpus).map(|g| g.0).collect();
        assert_eq!(gpus, [0, 1]);
        observe(&mut host, "under load: ce-push 0->1", 32.0);
        assert_eq!(judged(&host)[0].judgement, Judgement::Cleared);
    }

    #[test]
    fn unread_links_cannot_tell() {
        let mut host = Host::root_complex(1);
        host.snapshot.gpus[0].link_max = Reading::default();
        assert_eq!(judged(&host)[0].judgement, Judgement::CannotTell);
    }
}
