//! All-reduces that were run: whether they were exact, which way NCCL's bytes went, who is the fastest at which size. An
//! algorithm that only one side ran makes no other one the fastest.

use super::{
    Matched, Tally,
    matching::Letter,
    verdicts::{told, worse},
};
use crate::model::{
    case::Outcome,
    crossover::{Crossover, Fastest},
    group::Group,
    reduction::{Arrangement, Dtype, Launch, Reduction},
    report::Report,
};
use std::collections::{BTreeMap, BTreeSet};

/// NCCL as it chooses: the baseline.
const NCCL: &str = "nccl";

/// A's names of the ranks' GPUs, ascending; a GPU that holds several ranks is named as often.
pub(super) type Ranks = Vec<u32>;

/// "GPUs 0-7"; "GPU0, 4 ranks".
pub(super) fn words_of_ranks(ranks: &[u32]) -> String {
    match (ranks, Group::new(ranks.iter().copied())) {
        (_, Some(group)) => group.to_string(),
        ([first, rest @ ..], None) if rest.iter().all(|gpu| gpu == first) => {
            format!("GPU{first}, {} ranks", ranks.len())
        }
        _ => {
            let all: Vec<String> = ranks.iter().map(u32::to_string).collect();
            format!("GPUs {}", all.join(","))
        }
    }
}

/// How its calls were made: "bf16, graph, one process over all GPUs".
pub(super) fn way(
    dtype: Dtype,
    launch: Launch,
    in_place: bool,
    arrangement: Arrangement,
) -> String {
    let place = if in_place { " in place" } else { "" };
    format!("{dtype}, {}{place}, {}", launch.name(), arrangement.words())
}

pub(super) fn way_of(row: &Reduction) -> String {
    way(row.dtype, row.launch, row.in_place, row.arrangement)
}

pub(super) fn compare(a: &Report, b: &Report, matched: &Matched, tally: &mut Tally) {
    let (one, other) = (
        Rows::new(matched, Letter::A, a),
        Rows::new(matched, Letter::B, b),
    );
    outcomes(&one, &other, tally);
    transports(&one, &other, tally);
    fastest(&one, &other, tally);
}

/// The rows of one side over GPUs that both have.
struct Rows<'a> {
    matched: Vec<(Ranks, &'a Reduction)>,
    crossovers: BTreeMap<(Ranks, String), &'a Crossover>,
}

impl<'a> Rows<'a> {
    fn new(matched: &Matched, side: Letter, report: &'a Report) -> Rows<'a> {
        let rows = report.reductions.iter();
        let known = rows.filter_map(|row| Some((matched.gpus(side, &row.gpus)?, row)));
        let crossovers = report.crossovers.iter().filter_map(|one| {
            let ranks = matched.gpus(side, &one.gpus)?;
            let way = way(one.dtype, one.launch, one.in_place, one.arrangement);
            Some(((ranks, way), one))
        });
        Rows {
            matched: known.collect(),
            crossovers: crossovers.collect(),
        }
    }

    /// Whether `algorithm` has a time there.
    fn timed(&self, ranks: &Ranks, way: &str, bytes: u64, algorithm: &str) -> bool {
        self.matched.iter().any(|(gpus, row)| {
            gpus == ranks
                && row.bytes == bytes
                && row.algorithm == algorithm
                && row.time.is_some()
                && way_of(row) == way
        })
    }

    /// What is odd about NCCL's times there, in few words; `None` where it has none.
    fn baseline(&self, ranks: &Ranks, way: &str) -> Option<&'static str> {
        let nccl = |row: &Reduction| row.algorithm == NCCL && row.time.is_some();
        let mut rows = self.matched.iter();
        rows.any(|(gpus, row)| gpus == ranks && nccl(row) && way_of(row) == way)
            .then(|| {
                let found = self.crossovers.get(&(ranks.clone(), way.to_string()));
                match found.is_some_and(|crossover| !crossover.doubts.is_empty()) {
                    true => "sick",
                    false => "sound",
                }
            })
    }
}

fn outcomes(one: &Rows<'_>, other: &Rows<'_>, tally: &mut Tally) {
    type Key = (String, Ranks);
    fn worst<'a>(rows: &Rows<'a>) -> BTreeMap<Key, &'a Outcome> {
        let mut map: BTreeMap<Key, &Outcome> = BTreeMap::new();
        for (ranks, row) in &rows.matched {
            let what = format!("all-reduce {}, {}", row.algorithm, row.arrangement.words());
            let known = map.entry((what, ranks.clone())).or_insert(&row.outcome);
            *known = worse(known, &row.outcome);
        }
        map
    }
    let (one, other) = (worst(one), worst(other));
    let keys: BTreeSet<&Key> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let sides = (
            one.get(key).copied().and_then(told),
            other.get(key).copied().and_then(told),
        );
        tally.ran(&key.0, &words_of_ranks(&key.1), sides);
    }
}

/// NCCL falls back without a word in its result; its own log tells.
fn transports(one: &Rows<'_>, other: &Rows<'_>, tally: &mut Tally) {
    type Key = (String, Ranks);
    fn all(rows: &Rows<'_>) -> BTreeMap<Key, BTreeSet<String>> {
        let mut map: BTreeMap<Key, BTreeSet<String>> = BTreeMap::new();
        for (ranks, row) in &rows.matched {
            if let Some(transport) = &row.transport {
                let what = format!(
                    "transport of {}, {}",
                    row.algorithm,
                    row.arrangement.words()
                );
                let known = map.entry((what, ranks.clone())).or_default();
                known.insert(transport.clone());
            }
        }
        map
    }
    let (one, other) = (all(one), all(other));
    for (key, mine) in &one {
        let Some(theirs) = other.get(key) else {
            continue;
        };
        let words = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        tally.texts(
            &key.0,
            &words_of_ranks(&key.1),
            &words(mine),
            &words(theirs),
        );
    }
}

fn fastest(one: &Rows<'_>, other: &Rows<'_>, tally: &mut Tally) {
    for (key, mine) in &one.crossovers {
        let Some(theirs) = other.crossovers.get(key) else {
            continue;
        };
        let (ranks, way) = key;
        let where_to = format!("({way}, {})", words_of_ranks(ranks));
        let what = format!("fastest all-reduce {where_to}");
        for first in &mine.sizes {
            let Some(second) = theirs.sizes.iter().find(|s| s.bytes == first.bytes) else {
                continue;
            };
            let size = super::amount(first.bytes);
            let both = |algorithm: &str| {
                let times = |rows: &Rows<'_>| rows.timed(ranks, way, first.bytes, algorithm);
                times(one) && times(other)
            };
            let (x, y) = (first.algorithm.as_str(), second.algorithm.as_str());
            if level(first, y) && level(second, x) || x == y {
                tally.values(&what, &size, None, None);
            } else if both(x) && both(y) {
                tally.texts(&what, &size, x, y);
            } else {
                let why = "one side did not time the fastest of the other".to_string();
                tally.leave(&what, why, true);
            }
        }
        if let Some((a, b)) = one.baseline(ranks, way).zip(other.baseline(ranks, way)) {
            let what = format!("NCCL's times as a baseline {where_to}");
            tally.texts(&what, "", a, b);
        }
    }
}

/// Whether `algorithm` is no slower than the fastest there, as far as was measured.
fn level(fastest: &Fastest, algorithm: &str) -> bool {
    fastest.algorithm == algorithm || fastest.tied.iter().any(|tied| tied == algorithm)
}
