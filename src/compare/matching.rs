//! Which GPU of one report is which of the other. On one host a UUID is a card and a PCI address a slot. On two hosts an
//! address is the same slot only where the hosts are laid out alike, which one shared address does not show; else their GPUs
//! are taken in the order of their addresses, a guess that is told as one.

use super::is_scrubbed;
use crate::model::{
    case::Subject,
    comparison::{GpuMatch, MatchedBy, Matching, Relation},
    group::Group,
    pair::{GpuIndex, OrderedPair},
    snapshot::{Gpu, Snapshot},
};
use std::collections::{BTreeMap, BTreeSet};

fn uuids(snapshot: &Snapshot) -> BTreeSet<&str> {
    let known = snapshot.gpus.iter().filter_map(|gpu| gpu.uuid.known());
    known.map(String::as_str).collect()
}

/// One host or two, and why.
pub(super) fn relation(a: &Snapshot, b: &Snapshot) -> (Relation, String) {
    let (in_a, in_b) = (uuids(a), uuids(b));
    let shared = in_a.intersection(&in_b).count();
    let names = a.host.name.known().zip(b.host.name.known());
    let named = names.map(|(a, b)| a == b);
    if shared > 0 {
        let of = in_a.len().max(in_b.len());
        let other = match names {
            Some((a, b)) if a != b => format!("; its name changed from {a} to {b}"),
            _ => String::new(),
        };
        return (
            Relation::SameHost,
            format!("{shared} of {of} GPUs have the same UUID{other}"),
        );
    }
    let scrubbed: Vec<&str> = [(a, "A"), (b, "B")]
        .into_iter()
        .filter(|(snapshot, _)| is_scrubbed(snapshot))
        .map(|(_, side)| side)
        .collect();
    if !scrubbed.is_empty() {
        let sides = scrubbed.join(" and ");
        return (
            Relation::Unknown,
            format!("names and UUIDs were replaced in {sides}"),
        );
    }
    if !in_a.is_empty() && !in_b.is_empty() {
        let also = if named == Some(true) {
            ", though both have one name"
        } else {
            ""
        };
        return (
            Relation::SisterHosts,
            format!("no GPU has the same UUID{also}"),
        );
    }
    match named {
        Some(true) => (
            Relation::SameHost,
            "the host names are equal; UUIDs are not known on both sides".to_string(),
        ),
        Some(false) => (
            Relation::SisterHosts,
            "the host names differ; UUIDs are not known on both sides".to_string(),
        ),
        None => (
            Relation::Unknown,
            "neither UUIDs nor host names are known on both sides".to_string(),
        ),
    }
}

/// Whether an address of one host is the same slot on the other: more than half of the smaller one's GPUs have the address of
/// one of the other, and a like product at it where both are known. A single bus number that two machines share by chance, and
/// by which their GPUs would change places, says nothing.
fn laid_out_alike(a: &Snapshot, b: &Snapshot) -> bool {
    let shared = a.gpus.iter().filter(|gpu| {
        let mut others = b.gpus.iter();
        let other = others.find(|o| gpu.pci.known().is_some() && o.pci.known() == gpu.pci.known());
        other.is_some_and(|other| match gpu.name.known().zip(other.name.known()) {
            Some((one, other)) => one == other,
            None => true,
        })
    });
    2 * shared.count() > a.gpus.len().min(b.gpus.len())
}

/// One of the two reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Letter {
    A,
    B,
}

/// The matching with look-ups in both directions.
pub(super) struct Matched {
    pub(super) relation: Relation,
    pub(super) matching: Matching,
    from_b: BTreeMap<u32, u32>,
}

impl Matched {
    /// One host: by UUID, and what is left by PCI address; a GPU without a counterpart was taken out or put in. Other hosts: by
    /// PCI address where they are laid out alike, and what is left by position.
    pub(super) fn new(a: &Snapshot, b: &Snapshot, relation: Relation) -> Matched {
        let mut pairs: Vec<GpuMatch> = Vec::new();
        let mut left_a: Vec<u32> = (0..a.gpus.len() as u32).collect();
        let mut left_b: Vec<u32> = (0..b.gpus.len() as u32).collect();
        let mut take = |by: MatchedBy, equal: &dyn Fn(&Gpu, &Gpu) -> bool| {
            left_a.retain(|&at| {
                let Some(gpu) = a.gpu(GpuIndex(at)) else {
                    return true;
                };
                let found = left_b
                    .iter()
                    .position(|&other| b.gpu(GpuIndex(other)).is_some_and(|o| equal(gpu, o)));
                match found {
                    Some(place) => {
                        pairs.push(GpuMatch {
                            a: at,
                            b: left_b.remove(place),
                            by,
                        });
                        false
                    }
                    None => true,
                }
            });
        };
        if relation == Relation::SameHost {
            take(MatchedBy::Uuid, &|a, b| {
                a.uuid.known().is_some() && a.uuid.known() == b.uuid.known()
            });
        }
        if relation == Relation::SameHost || laid_out_alike(a, b) {
            take(MatchedBy::PciAddress, &|a, b| {
                a.pci.known().is_some() && a.pci.known() == b.pci.known()
            });
        }
        let nameless = |snapshot: &Snapshot, left: &[u32]| {
            let mut gpus = left.iter().filter_map(|at| snapshot.gpu(GpuIndex(*at)));
            gpus.all(|gpu| gpu.uuid.known().is_none() && gpu.pci.known().is_none())
        };
        if relation != Relation::SameHost || nameless(a, &left_a) || nameless(b, &left_b) {
            let both = left_a.len().min(left_b.len());
            let rest: Vec<u32> = left_b.drain(..both).collect();
            for (a, b) in left_a.drain(..both).zip(rest) {
                pairs.push(GpuMatch {
                    a,
                    b,
                    by: MatchedBy::Position,
                });
            }
        }
        pairs.sort_by_key(|m| m.a);
        let from_b = pairs.iter().map(|m| (m.b, m.a)).collect();
        Matched {
            relation,
            matching: Matching {
                pairs,
                only_a: left_a,
                only_b: left_b,
            },
            from_b,
        }
    }

    /// A's number of a GPU of `side`; of A's own, whether it has a counterpart at all.
    pub(super) fn gpu(&self, side: Letter, gpu: u32) -> Option<u32> {
        match side {
            Letter::A => self.from_b.values().any(|a| *a == gpu).then_some(gpu),
            Letter::B => self.from_b.get(&gpu).copied(),
        }
    }

    /// The same of several, as A numbers them.
    pub(super) fn gpus(&self, side: Letter, gpus: &[u32]) -> Option<Vec<u32>> {
        let mut all: Vec<u32> = gpus
            .iter()
            .map(|gpu| self.gpu(side, *gpu))
            .collect::<Option<_>>()?;
        all.sort_unstable();
        Some(all)
    }

    /// The same of what a case is about.
    pub(super) fn subject(&self, side: Letter, subject: Subject) -> Option<Subject> {
        let gpu = |gpu: GpuIndex| self.gpu(side, gpu.0);
        Some(match subject {
            Subject::Gpu(one) => Subject::Gpu(GpuIndex(gpu(one)?)),
            Subject::Pair(pair) => {
                Subject::Pair(OrderedPair::new(gpu(pair.source)?, gpu(pair.destination)?)?)
            }
            Subject::Group(group) => {
                let all: Option<Vec<u32>> = group.gpus().map(gpu).collect();
                Subject::Group(Group::new(all?)?)
            }
        })
    }

    /// Matched ordered pairs: A's and B's.
    pub(super) fn pairs(&self) -> Vec<(OrderedPair, OrderedPair)> {
        let all = &self.matching.pairs;
        let mut out = Vec::new();
        for source in all {
            for destination in all {
                let a = OrderedPair::new(source.a, destination.a);
                let b = OrderedPair::new(source.b, destination.b);
                out.extend(a.zip(b));
            }
        }
        out
    }
}
