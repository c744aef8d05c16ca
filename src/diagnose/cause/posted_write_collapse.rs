//! Writers below one switch that write at once to GPUs behind several root ports collapse (decision row D26): alone each
//! is fast, together they come to a tenth; reads are not hit. Data is right. Only rates taken under load show it.

use super::super::{
    evidence::{Evidence, name_pairs},
    weigh::Cause,
};
use crate::{
    model::{
        case::{Load, Record, Rung},
        finding::{Confidence, Finding, Judgement, Severity},
        measurement::Unit,
        pair::OrderedPair,
        pci::PciAddress,
        snapshot::BridgePort,
    },
    stats::median,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CAUSE: Cause = Cause {
    id: "posted-write-collapse",
    title: "writers below one switch collapse together",
    judge,
    wants: None,
};

/// GPUs below one switch that move data at once divide its uplink: the median one, times how many they are, comes to at least
/// what one moves alone, and to more where their bursts do not fall together. Below this share it collapsed; what was seen in
/// the field is a seventh. The median and not the slowest: a thread of the host that comes late makes single flows slow.
const SHARE: f64 = 0.6;

fn rate(record: &Record) -> Option<f64> {
    let rate = record.rate.as_ref().filter(|m| m.unit == Unit::GbPerS)?;
    median(&rate.samples).filter(|_| record.outcome.is_intact())
}

/// Which way a mechanism moves data between the two GPUs themselves; none for what goes through the host.
fn is_read(record: &Record) -> Option<bool> {
    let has = |part| record.case.mechanism.contains(part);
    match (
        has("pull") || has("sm-load"),
        has("push") || has("sm-store"),
    ) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Rates of one pair, in GB/s, and the root port below its destination.
struct Flow {
    pair: OrderedPair,
    root: PciAddress,
    alone: f64,
    loaded: f64,
}

/// What moved at the same time: data out of one switch, by one mechanism, in one shape.
type Together<'a> = (PciAddress, &'a str, Option<Load>);

/// Flows out of one switch that moved at once to several root ports, pulled by their destinations (`read`) or pushed by
/// their sources. Both cross the same ports in the same direction. NVLinks are another way.
fn together<'a>(e: &Evidence<'a>, read: bool) -> BTreeMap<Together<'a>, Vec<Flow>> {
    // Most hosts have no pair that matters here, and the search of thousands of rates is spared.
    let pairs = e.subjects().filter_map(|(subject, _)| subject.pair());
    let out_of: BTreeMap<OrderedPair, (PciAddress, PciAddress)> = pairs
        .filter(|pair| !e.has_nvlink(*pair))
        .filter_map(|pair| Some((pair, above(e, pair)?)))
        .collect();
    if out_of.is_empty() {
        return BTreeMap::new();
    }
    // A pair is loaded in many shapes and was alone once: the fastest of it.
    let mut alone: BTreeMap<OrderedPair, f64> = BTreeMap::new();
    for r in e.timed().filter(|r| is_read(r) == Some(read)) {
        let quiet = matches!(r.case.rung, Rung::Copied | Rung::Touched);
        if let (true, Some(pair), Some(rate)) = (quiet, r.case.subject.pair(), rate(r)) {
            let fastest = alone.entry(pair).or_insert(rate);
            *fastest = fastest.max(rate);
        }
    }
    let mut groups: BTreeMap<Together, Vec<Flow>> = BTreeMap::new();
    for r in e.timed().filter(|r| r.case.rung == Rung::Loaded) {
        let Some(pair) = r.case.subject.pair() else {
            continue;
        };
        let Some((switch, root)) = out_of.get(&pair).copied() else {
            continue;
        };
        let Some(loaded) = rate(r).filter(|_| is_read(r) == Some(read)) else {
            continue;
        };
        let alone = alone.get(&pair).copied();
        if let Some(alone) = alone {
            let key = (switch, r.case.mechanism.as_str(), r.case.load);
            let flow = Flow {
                pair,
                root,
                alone,
                loaded,
            };
            groups.entry(key).or_default().push(flow);
        }
    }
    groups.retain(|_, flows| flows.iter().any(|f| f.root != flows[0].root));
    groups
}

fn collapsed(flows: &[Flow]) -> bool {
    let loaded: Vec<f64> = flows.iter().map(|f| f.loaded).collect();
    let alone = flows.iter().map(|f| f.alone).fold(0.0, f64::max);
    median(&loaded).is_some_and(|middle| middle * (flows.len() as f64) < SHARE * alone)
}

/// The port towards the root of the switch that a pair's data leaves, and the root port below which it ends.
fn above(e: &Evidence, pair: OrderedPair) -> Option<(PciAddress, PciAddress)> {
    let chain = |gpu| e.snapshot.gpu(gpu)?.bridge_chain.known();
    let up = chain(pair.source)?.iter().find(|b| {
        e.snapshot
            .bridge(**b)
            .is_some_and(|b| b.port == BridgePort::SwitchUpstream)
    })?;
    Some((*up, *chain(pair.destination)?.last()?))
}

fn judge(e: &Evidence) -> Vec<Finding> {
    let direct = |r: &&Record| r.case.rung == Rung::Loaded && is_read(r).is_some();
    if e.timed().filter(direct).filter_map(rate).next().is_none() {
        return vec![CAUSE.says(
            Judgement::NotApplicable,
            "no rate of a direct transfer was taken under load",
        )];
    }
    let mut writers = together(e, false);
    writers.retain(|_, flows| collapsed(flows));
    if writers.is_empty() {
        return vec![CAUSE.says(
            Judgement::Cleared,
            "no writers below one switch collapse when they write at once",
        )];
    }
    // Reads are not hit: where they are as slow in the same shape of load, it is something else.
    let reads = together(e, true);
    let reads_beside = |(switch, _, load): &Together| {
        let beside = reads
            .iter()
            .filter(|((s, _, l), _)| s == switch && l == load);
        beside
            .map(|(_, flows)| !collapsed(flows))
            .collect::<Vec<bool>>()
    };
    writers.retain(|key, _| reads_beside(key).iter().all(|fine| *fine));
    if writers.is_empty() {
        return vec![CAUSE.says(
            Judgement::CannotTell,
            "writers below one switch are slow when they write at once, and so are readers, which a collapse of writes does not hit: run again on a host that does nothing else",
        )];
    }
    let reads_fine = writers.keys().all(|key| !reads_beside(key).is_empty());
    let pairs: BTreeSet<OrderedPair> = writers.values().flatten().map(|f| f.pair).collect();
    let pairs: Vec<OrderedPair> = pairs.into_iter().collect();
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        if reads_fine { Confidence::Established } else { Confidence::Probable },
        format!(
            "{} write from below one switch to several root ports and collapse when they do it at once; alone each is fast{}. Data is right",
            name_pairs(&pairs),
            if reads_fine { ", and reads under the same load are" } else { "" }
        ),
    );
    finding.evidence = writers
        .iter()
        .flat_map(|((switch, ..), flows)| flows.iter().map(move |flow| (switch, flow)))
        .take(8)
        .map(|(switch, f)| {
            format!(
                "{}: {:.1} GB/s alone, {:.1} under load; below switch port {switch}, to root port {}",
                f.pair, f.alone, f.loaded, f.root
            )
        })
        .collect();
    finding.fix = vec![
        "keep groups within a switch, or order the ranks so that each switch sends to the other through one writer (ring); pulls instead of pushes where the engine has the choice".to_string(),
        "do not turn the IOMMU on against it: it hides the collapse, costs rate, and was seen to hang NCCL".to_string(),
    ];
    finding.next_test = Some("peerproof map".into());
    finding.pairs = pairs;
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::{Host, pair};
    use super::*;
    use crate::model::{case::Outcome, measurement::Measurement, reading::Reading};

    /// GPUs 0 and 1 below one switch, 2 and 3 each below a root port of its own; 40 GB/s alone, and at once the four pushes
    /// and the four pulls of the switch as given.
    fn switched(pushes: [f64; 4], pulls: [f64; 4]) -> Host {
        let mut host = Host::root_complex(4);
        host.all_intact();
        for record in &mut host.records {
            record.rate = Some(Measurement {
                samples: vec![40.0; 3],
                unit: Unit::GbPerS,
                warmup: 1,
                method: String::new(),
                caveats: Vec::new(),
            });
        }
        let mut port = host.snapshot.bridges[0].clone();
        port.pci = "0000:01:00.0".parse().unwrap();
        port.port = BridgePort::SwitchUpstream;
        let chain = vec![port.pci, host.snapshot.bridges[0].pci];
        host.snapshot.bridges.push(port);
        for gpu in &mut host.snapshot.gpus[..2] {
            gpu.bridge_chain = Reading::Known(chain.clone());
        }
        let far = [(0, 2), (0, 3), (1, 2), (1, 3)];
        for ((own, other), rate) in far.into_iter().zip(pushes) {
            let pair = pair(own, other);
            host.load(pair, "ce-push", Load::AllPairs, Outcome::Intact, rate);
        }
        for ((own, other), rate) in far.into_iter().zip(pulls) {
            let pair = pair(own, other);
            host.load(pair, "ce-pull", Load::AllPairs, Outcome::Intact, rate);
        }
        host
    }

    fn judged(pushes: [f64; 4], pulls: [f64; 4]) -> Finding {
        switched(pushes, pulls).judge(judge).remove(0)
    }

    #[test]
    fn writers_that_come_to_a_tenth_are_named_and_reads_tell_it_apart() {
        let found = judged([1.0; 4], [10.0; 4]);
        assert_eq!(found.judgement, Judgement::Indicted);
        assert_eq!(found.confidence, Confidence::Established);
        assert_eq!(
            found.pairs,
            [pair(0, 2), pair(0, 3), pair(1, 2), pair(1, 3)]
        );
        // Readers as slow: whatever it is, it is not a collapse of posted writes.
        let alike = judged([1.0; 4], [1.0; 4]);
        assert_eq!(alike.judgement, Judgement::CannotTell);
        assert!(alike.because.contains("so are readers"), "{alike:?}");
    }

    #[test]
    fn an_even_share_of_the_uplink_and_one_late_writer_are_no_collapse() {
        assert_eq!(judged([10.0; 4], [10.0; 4]).judgement, Judgement::Cleared);
        let late = judged([10.0, 9.0, 0.3, 11.0], [10.0; 4]);
        assert_eq!(late.judgement, Judgement::Cleared, "{late:?}");
    }

    #[test]
    fn writers_to_one_root_port_are_another_matter() {
        let mut host = switched([1.0; 4], [10.0; 4]);
        let port = host.snapshot.gpus[2].bridge_chain.clone();
        host.snapshot.gpus[3].bridge_chain = port;
        assert_eq!(host.judge(judge)[0].judgement, Judgement::Cleared);
    }
}
