//! Rung 7 in the plan: which flows run at the same time. The number of shapes grows with the number of GPUs, not with its
//! square.

use super::{Budget, sizes::PAGE};
use crate::model::{
    case::Load,
    pair::{GpuIndex, OrderedPair},
    topology::{PathType, Topology},
};
use std::collections::BTreeSet;

/// More GPUs than this cannot all have access to each other at once without NVSwitch: a device has at most eight peers.
pub(super) const MOST_TOGETHER: usize = 9;

/// Flows that run at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    /// What they are together.
    pub(super) load: Load,
    /// The flows.
    pub(super) flows: Vec<OrderedPair>,
}

/// Bytes of a flow, for GPUs with `memory` bytes free each: an eighth of the memory at most, all flows together.
pub(super) fn bytes(memory: u64, gpus: usize) -> u64 {
    let flows = 2 * gpus.saturating_sub(1).max(1) as u64;
    let most = memory / (8 * 4 * flows);
    (memory >> 11).clamp(4 * PAGE, 16 << 20).min(most.max(PAGE)) / PAGE * PAGE
}

/// Attempts of a flow in one shape, each judged while the others run.
pub(super) fn attempts(budget: Budget) -> u32 {
    match budget {
        Budget::Quick => 2,
        Budget::Default | Budget::Deep { .. } => 4,
    }
}

/// All shapes over the chosen pairs; `rounds` are those of the tournament. A set of flows comes once, under the first name
/// that fits.
pub(super) fn shapes(
    topology: &Topology,
    gpus: &[u32],
    rounds: &[Vec<OrderedPair>],
    ordered: &[OrderedPair],
    budget: Budget,
) -> Vec<Shape> {
    let shape = |load, flows: &[OrderedPair]| Shape {
        load,
        flows: flows.to_vec(),
    };
    let mut all = Vec::new();
    if budget != Budget::Quick {
        // Each pair of one round by itself; in the others both directions run beside other pairs.
        let first = rounds.first().map(Vec::as_slice).unwrap_or_default();
        let pairs = first.chunk_by(|a, b| *a == b.reversed());
        all.extend(pairs.map(|both| shape(Load::BothDirections, both)));
        all.extend(gpus.iter().filter_map(|source| {
            let flows = one_to_many(topology, *source, ordered)?;
            Some(shape(Load::OneToMany, &flows))
        }));
        all.extend(rounds.iter().map(|round| shape(Load::Round, round)));
    }
    if gpus.len() <= MOST_TOGETHER {
        all.push(shape(Load::AllPairs, ordered));
    }
    let mut seen = BTreeSet::new();
    all.retain(|shape| {
        let flows: BTreeSet<OrderedPair> = shape.flows.iter().copied().collect();
        flows.len() > 1 && seen.insert(flows)
    });
    all
}

/// Two flows out of `source`, to destinations behind different root ports where there are such: posted writes of one
/// source to two roots are what some switches choke on.
fn one_to_many(
    topology: &Topology,
    source: u32,
    ordered: &[OrderedPair],
) -> Option<[OrderedPair; 2]> {
    let mut outgoing = ordered
        .iter()
        .filter(|pair| pair.source == GpuIndex(source));
    let path = |pair: OrderedPair| topology.pairs.get(pair).and_then(|path| path.pcie);
    let apart = |a: OrderedPair, b: OrderedPair| {
        let between = OrderedPair::new(a.destination.0, b.destination.0)?;
        path(between).filter(|path| *path >= PathType::Phb)
    };
    let first = *outgoing.next()?;
    let others: Vec<OrderedPair> = outgoing.copied().collect();
    // The farthest from the first destination, and among equals the first.
    let second = others
        .iter()
        .rev()
        .max_by_key(|other| apart(first, **other))?;
    Some([first, *second])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::plan::tournament;

    fn planned(count: u32, budget: Budget) -> Vec<Shape> {
        let gpus: Vec<u32> = (0..count).collect();
        let ordered: Vec<OrderedPair> = OrderedPair::all(count).collect();
        let rounds: Vec<Vec<OrderedPair>> = tournament(&gpus)
            .into_iter()
            .map(|round| {
                let both = |(a, b)| [OrderedPair::new(a, b), OrderedPair::new(b, a)];
                round.into_iter().flat_map(both).flatten().collect()
            })
            .collect();
        shapes(&Topology::default(), &gpus, &rounds, &ordered, budget)
    }

    #[test]
    fn shapes_grow_with_the_number_of_gpus() {
        let of = |count, load| {
            let shapes = planned(count, Budget::Default);
            shapes.iter().filter(|shape| shape.load == load).count()
        };
        // On two GPUs there is one thing to do at once.
        assert_eq!(planned(2, Budget::Default).len(), 1);
        assert_eq!(of(2, Load::BothDirections), 1);
        for count in [4, 8] {
            let n = count as usize;
            assert_eq!(of(count, Load::BothDirections), n / 2);
            assert_eq!(of(count, Load::OneToMany), n);
            assert_eq!(of(count, Load::Round), n - 1);
            assert_eq!(of(count, Load::AllPairs), 1);
        }
        assert_eq!(
            of(16, Load::AllPairs),
            0,
            "more peers than a device may have"
        );
    }

    #[test]
    fn a_quick_look_is_all_at_once() {
        let shapes = planned(8, Budget::Quick);
        assert_eq!(shapes.len(), 1);
        assert_eq!(
            (shapes[0].load, shapes[0].flows.len()),
            (Load::AllPairs, 56)
        );
    }

    #[test]
    fn flows_fit_an_eighth_of_the_memory() {
        for (memory, gpus) in [(32 << 20, 2), (32 << 20, 8), (24 << 20, 16), (140 << 30, 8)] {
            let flows = 2 * (gpus as u64 - 1);
            let bytes = bytes(memory, gpus);
            assert!(bytes >= PAGE && bytes.is_multiple_of(PAGE));
            let used = flows * crate::probe::loaded::device_bytes(bytes);
            assert!(used <= memory / 8, "{used} of {memory}");
        }
    }
}
