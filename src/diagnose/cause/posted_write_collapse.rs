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

/// The slowest writer below a switch, under load, below this share of a fair part of what one moves alone. Fair writers divide
/// the uplink evenly, however many they are; what was seen in the field is a seventh of a fair part.
const SHARE: f64 = 0.6;
/// Reads above this share are not hit.
const READS: f64 = 0.25;

fn rate(record: &Record) -> Option<f64> {
    let rate = record.rate.as_ref().filter(|m| m.unit == Unit::GbPerS)?;
    median(&rate.samples).filter(|_| record.outcome.is_intact())
}

fn is_read(record: &Record) -> bool {
    record.case.mechanism.contains("pull") || record.case.mechanism.contains("sm-load")
}

/// Rates of one pair and direction, in GB/s.
struct Loaded<'a> {
    pair: OrderedPair,
    mechanism: &'a str,
    load: Option<Load>,
    read: bool,
    alone: f64,
    loaded: f64,
}

fn loaded<'a>(e: &Evidence<'a>) -> Vec<Loaded<'a>> {
    let under_load = e.records.iter().filter(|r| r.case.rung == Rung::Loaded);
    let fastest_alone = |pair: OrderedPair, read: bool| {
        let alone = e
            .of_pair(pair)
            .filter(|o| matches!(o.case.rung, Rung::Copied | Rung::Touched) && is_read(o) == read);
        alone.filter_map(rate).max_by(f64::total_cmp)
    };
    // A pair is loaded in many shapes and was alone once.
    let mut known: BTreeMap<(OrderedPair, bool), Option<f64>> = BTreeMap::new();
    under_load
        .filter_map(|r| {
            let (pair, read) = (r.case.subject.pair()?, is_read(r));
            let alone = *known
                .entry((pair, read))
                .or_insert_with(|| fastest_alone(pair, read));
            let alone = alone?;
            Some(Loaded {
                pair,
                mechanism: &r.case.mechanism,
                load: r.case.load,
                read,
                alone,
                loaded: rate(r)?,
            })
        })
        .collect()
}

/// The switch's port towards the root, and the root port, above a GPU.
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
    let rates = loaded(e);
    if rates.is_empty() {
        return vec![CAUSE.says(Judgement::NotApplicable, "no rate was taken under load")];
    }
    // Writers that wrote at the same time: of one switch, by one mechanism, in one shape. NVLinks are another way.
    type Together<'a> = (PciAddress, &'a str, Option<Load>);
    let mut collapsed: BTreeMap<Together, Vec<(&Loaded, PciAddress)>> = BTreeMap::new();
    for one in rates.iter().filter(|l| !l.read && !e.has_nvlink(l.pair)) {
        if let Some((switch, root)) = above(e, one.pair) {
            let key = (switch, one.mechanism, one.load);
            collapsed.entry(key).or_default().push((one, root));
        }
    }
    collapsed.retain(|_, writers| {
        let slowest = writers
            .iter()
            .map(|(l, _)| l.loaded)
            .fold(f64::MAX, f64::min);
        let alone = writers.iter().map(|(l, _)| l.alone).fold(0.0, f64::max);
        writers.len() > 1 && slowest < SHARE * alone / writers.len() as f64
    });
    let one_root = |writers: &Vec<(&Loaded, PciAddress)>| {
        writers
            .iter()
            .map(|(_, root)| *root)
            .collect::<BTreeSet<_>>()
            .len()
            < 2
    };
    collapsed.retain(|_, writers| !one_root(writers));
    if collapsed.is_empty() {
        return vec![CAUSE.says(
            Judgement::Cleared,
            "no writers below one switch collapse when they write at once",
        )];
    }
    let pairs: BTreeSet<OrderedPair> = collapsed.values().flatten().map(|(l, _)| l.pair).collect();
    let pairs: Vec<OrderedPair> = pairs.into_iter().collect();
    let mut reads = rates
        .iter()
        .filter(|l| l.read && pairs.contains(&l.pair))
        .peekable();
    let reads_fine = reads.peek().is_some() && reads.all(|l| l.loaded > READS * l.alone);
    let mut finding = CAUSE.indicts(
        Severity::Warning,
        if reads_fine { Confidence::Established } else { Confidence::Probable },
        format!(
            "{} write from below one switch to several root ports and collapse when they do it at once; alone each is fast{}. Data is right",
            name_pairs(&pairs),
            if reads_fine { ", and reads under the same load are" } else { "" }
        ),
    );
    finding.evidence = collapsed
        .iter()
        .flat_map(|((switch, ..), writers)| writers.iter().map(move |(l, root)| (switch, l, root)))
        .take(8)
        .map(|(switch, l, root)| {
            format!(
                "{}: {:.1} GB/s alone, {:.1} under load; below switch port {switch}, to root port {root}",
                l.pair, l.alone, l.loaded
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
