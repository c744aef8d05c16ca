//! Copies that were timed: what they are in words, whether their content was right, and where their rates lie against the links.

use super::{
    Matched, Tally,
    matching::Letter,
    verdicts::{told, worse},
};
use crate::model::{
    case::Outcome,
    report::Report,
    traffic::{Flow, Place, Shape, Traffic},
};
use std::collections::{BTreeMap, BTreeSet};

/// Which flows, in A's numbers; and in short.
pub(super) type Flows = (Vec<(Place, Place)>, String);

/// "one way by copy engine, push".
pub(super) fn words(case: &Traffic) -> String {
    let streams = case.streams.words();
    format!(
        "{} by {}, {}, {streams} stream",
        case.shape.words(),
        case.executor.words(),
        case.way.name()
    )
}

/// The flows of a case of `side`, if both have all its GPUs.
pub(super) fn flows(matched: &Matched, side: Letter, case: &Traffic) -> Option<Flows> {
    let place = |place: Place| match place {
        Place::Host => Some(Place::Host),
        Place::Gpu(gpu) => matched.gpu(side, gpu).map(Place::Gpu),
    };
    let ends = case.flows.iter();
    let mut ends: Vec<(Place, Place)> = ends
        .map(|flow| Some((place(flow.source)?, place(flow.destination)?)))
        .collect::<Option<_>>()?;
    // Of a round trip the first is the one that asks; all others are a set.
    if case.shape != Shape::FlagRoundTrip {
        ends.sort_unstable();
    }
    let named = Traffic {
        flows: ends
            .iter()
            .map(|(from, to)| Flow::new(*from, *to))
            .collect(),
        ..case.clone()
    };
    Some((ends, named.subject()))
}

pub(super) fn compare(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
    let one = seen(matched, Letter::A, &a.traffic);
    let other = seen(matched, Letter::B, &b.traffic);
    let keys: BTreeSet<&Key> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let (mine, theirs) = (one.get(key), other.get(key));
        let sides = (
            mine.and_then(|seen| told(seen.outcome)),
            theirs.and_then(|seen| told(seen.outcome)),
        );
        tally.ran(&key.0, &key.1.1, sides);
        let band = |seen: Option<&Seen<'_>>| seen.and_then(|seen| seen.band);
        if let Some((a, b)) = band(mine).zip(band(theirs)) {
            let what = format!("{}, against its link", key.0);
            tally.texts(&what, &key.1.1, a, b);
        }
    }
}

type Key = (String, Flows);

/// What came of a case at all its sizes.
struct Seen<'a> {
    outcome: &'a Outcome,
    band: Option<&'static str>,
}

fn seen<'a>(matched: &Matched, side: Letter, traffic: &'a [Traffic]) -> BTreeMap<Key, Seen<'a>> {
    let mut map: BTreeMap<Key, Seen<'a>> = BTreeMap::new();
    for case in traffic {
        let Some(flows) = flows(matched, side, case) else {
            continue;
        };
        let band = case.expected.as_ref().map(|e| e.band.words());
        let known = map.entry((words(case), flows)).or_insert(Seen {
            outcome: &case.outcome,
            band: None,
        });
        known.outcome = worse(known.outcome, &case.outcome);
        known.band = known.band.or(band);
    }
    map
}
