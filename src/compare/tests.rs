//! The rules of comparing, on hosts of a few GPUs.

use super::*;
use crate::model::{
    comparison::{MatchedBy, Relation},
    pair::PairTable,
    reading::{Absence, Reading},
    snapshot::{Gpu, Origin, Snapshot},
};

fn host(name: &str, gpus: &[(&str, &str)]) -> Snapshot {
    let mut snapshot = Snapshot::empty(Origin::Live);
    snapshot.host.name = Reading::Known(name.to_string());
    for (uuid, pci) in gpus {
        snapshot.gpus.push(Gpu {
            uuid: match uuid.is_empty() {
                true => Reading::default(),
                false => Reading::Known(uuid.to_string()),
            },
            pci: pci
                .parse()
                .map_or_else(|_| Reading::default(), Reading::Known),
            ..Gpu::default()
        });
    }
    snapshot.claims = PairTable::new(gpus.len() as u32);
    snapshot.topology.pairs = PairTable::new(gpus.len() as u32);
    snapshot
}

fn matched(a: &Snapshot, b: &Snapshot) -> (Relation, Vec<(u32, u32, MatchedBy)>, Matched) {
    let (relation, _) = matching::relation(a, b);
    let matched = Matched::new(a, b, relation);
    let pairs = matched.matching.pairs.iter().map(|m| (m.a, m.b, m.by));
    (relation, pairs.collect(), matched)
}

#[test]
fn one_host_is_matched_by_cards_and_a_replaced_card_by_its_slot() {
    let a = host(
        "n1",
        &[("u0", "01:00.0"), ("u1", "02:00.0"), ("u2", "03:00.0")],
    );
    // Two cards changed places, the third was replaced.
    let b = host(
        "n1",
        &[("u1", "01:00.0"), ("u0", "02:00.0"), ("new", "03:00.0")],
    );
    let (relation, pairs, _) = matched(&a, &b);
    assert_eq!(relation, Relation::SameHost);
    let (uuid, pci) = (MatchedBy::Uuid, MatchedBy::PciAddress);
    assert_eq!(pairs, [(0, 1, uuid), (1, 0, uuid), (2, 2, pci)]);
}

#[test]
fn a_card_that_is_gone_has_no_counterpart() {
    let a = host("n1", &[("u0", "01:00.0"), ("u1", "02:00.0")]);
    let b = host("n1", &[("u0", "01:00.0")]);
    let (_, pairs, matched) = matched(&a, &b);
    assert_eq!(pairs.len(), 1);
    assert_eq!(matched.matching.only_a, [1]);
}

#[test]
fn sister_hosts_are_matched_by_slot_only_where_they_are_laid_out_alike() {
    let (pci, position) = (MatchedBy::PciAddress, MatchedBy::Position);
    let a = host(
        "n1",
        &[("u0", "01:00.0"), ("u1", "02:00.0"), ("u2", "03:00.0")],
    );
    // One address in common by chance would turn the order round.
    let b = host(
        "n2",
        &[("v0", "03:00.0"), ("v1", "e1:00.0"), ("v2", "e2:00.0")],
    );
    let (relation, pairs, _) = matched(&a, &b);
    assert_eq!(relation, Relation::SisterHosts);
    assert_eq!(
        pairs,
        [(0, 0, position), (1, 1, position), (2, 2, position)]
    );
    // Two of three in common, and a third card in another slot.
    let c = host(
        "n3",
        &[("w0", "01:00.0"), ("w1", "02:00.0"), ("w2", "04:00.0")],
    );
    let (_, pairs, _) = matched(&a, &c);
    assert_eq!(pairs, [(0, 0, pci), (1, 1, pci), (2, 2, position)]);
    // Other products at the same addresses are another kind of host.
    let named = |mut host: Snapshot, name: &str| {
        let gpus = host.gpus.iter_mut();
        gpus.for_each(|gpu| gpu.name = Reading::Known(name.to_string()));
        host
    };
    let (one, other) = (named(a.clone(), "NVIDIA L40S"), named(c, "NVIDIA H200"));
    let (_, pairs, _) = matched(&one, &other);
    assert!(pairs.iter().all(|(.., by)| *by == position), "{pairs:?}");
}

#[test]
fn scrubbed_names_prove_nothing() {
    let a = host("scrubbed-host-1", &[("GPU-scrubbed-uuid-1", "01:00.0")]);
    let b = host("n2", &[("v0", "01:00.0")]);
    let (relation, pairs, _) = matched(&a, &b);
    assert_eq!(relation, Relation::Unknown);
    assert_eq!(pairs, [(0, 0, MatchedBy::PciAddress)]);
}

#[test]
fn what_cannot_be_read_is_neither_same_nor_different() {
    let mut tally = Tally::default();
    let known = |text: &str| Reading::Known(text.to_string());
    let hidden = || Reading::<String>::Absent(Absence::NoPermission("config".to_string()));
    let show = |text: &String| text.clone();
    tally.readings("ACS", "p0", &known("off"), &hidden(), show);
    tally.readings("ACS", "p1", &known("off"), &hidden(), show);
    tally.readings("ACS", "p2", &hidden(), &hidden(), show);
    tally.readings("ACS", "p3", &known("off"), &known("off"), show);
    let none = Reading::Absent(Absence::NotSupported("no capability".to_string()));
    tally.readings("ACS", "p4", &known("off"), &none, show);
    tally.readings("ACS", "p5", &known("off"), &none, show);
    assert_eq!(tally.same, 1);
    assert_eq!(tally.not_compared.len(), 1);
    assert_eq!(tally.not_compared[0].count, 2);
    assert!(tally.not_compared[0].one_sided);
    assert_eq!(tally.differences.len(), 1, "equal differences are one");
    assert_eq!(tally.differences[0].of, ["p4", "p5"]);
}
