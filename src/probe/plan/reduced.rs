//! Rung 6 in the plan: which algorithms, over which GPUs, how many calls, how large. Every pair, every island, all together;
//! a quick look takes one algorithm and one size.

use super::{Budget, Cases, Phase, Round};
use crate::{
    model::{
        case::{Case, Subject},
        group::Group,
        reduction::{AllReduce, Dtype, Launch, MOST_RANKS},
        topology::Topology,
    },
    probe::{
        mechanism::Place,
        reduced::{ROSTER, Way},
        reduction::{Needs, Timing},
    },
};

/// Calls of a case whose results are all judged.
fn calls(budget: Budget) -> u32 {
    match budget {
        Budget::Quick => 8,
        Budget::Default => 24,
        Budget::Deep { .. } => 4096,
    }
}

/// Calls between two processes on one GPU: each takes slices of the GPU's time from both.
const SLICED: u32 = 4;
/// Sizes at which an all-reduce is timed on GPUs with memory enough, bytes: what engines send for a few tokens, and more.
const TIMED: [u64; 4] = [8 << 10, 64 << 10, 256 << 10, 1 << 20];

/// What is asked of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    bytes: u64,
    calls: u32,
    all_reduce: AllReduce,
    timed: bool,
}

/// Bytes of a vector: what an engine sends for one token, on a GPU with `memory` bytes free.
fn small(memory: u64) -> u64 {
    (memory >> 17).clamp(256, 8 << 10) / 16 * 16
}

/// Enough for several blocks.
fn large(memory: u64) -> u64 {
    (memory >> 16).clamp(1 << 10, 512 << 10) / 16 * 16
}

/// Shapes whose sums are judged and not timed: a small vector for the first algorithm, a larger one for all of them.
fn judged(memory: u64, budget: Budget, first: bool) -> Vec<Shape> {
    let shape = |bytes, dtype, (launch, in_place)| Shape {
        bytes,
        calls: calls(budget),
        all_reduce: AllReduce {
            dtype,
            in_place,
            launch,
        },
        timed: false,
    };
    let mut all = Vec::new();
    if first || budget != Budget::Default {
        all.push(shape(small(memory), Dtype::Bf16, (Launch::Eager, false)));
    }
    if budget != Budget::Quick {
        // An odd number of elements, in place, replayed.
        let odd = large(memory) - Dtype::Fp16.bytes();
        all.push(shape(odd, Dtype::Fp16, (Launch::Graph, true)));
    }
    if matches!(budget, Budget::Deep { .. }) {
        all.push(shape(large(memory), Dtype::Fp32, (Launch::Graph, false)));
    }
    all
}

/// Shapes that are timed as well: as engines run them, and no more than a run has time for.
fn timed(memory: u64) -> Vec<Shape> {
    // Vectors of all calls of a sample lie side by side.
    let room = (memory >> 13).min(64 << 20);
    let mut sizes: Vec<u64> = TIMED
        .iter()
        .map(|bytes| (*bytes).min((memory >> 17) / 16 * 16).max(256))
        .collect();
    sizes.dedup();
    let shapes = sizes.into_iter().map(|bytes| Shape {
        bytes,
        calls: Timing::of(super::RATE_SAMPLES, bytes, room).calls,
        all_reduce: AllReduce {
            dtype: Dtype::Bf16,
            in_place: false,
            launch: Launch::Graph,
        },
        timed: true,
    });
    shapes.collect()
}

/// GPUs that are asked together, the smallest first: islands, and all of them. Two GPUs are a pair; more than an algorithm
/// takes are no group.
pub(super) fn groups(topology: &Topology, gpus: &[u32]) -> Vec<Group> {
    let islands = topology.islands.iter().map(|island| {
        let own = island.gpus.iter().map(|gpu| gpu.0);
        Group::new(own.filter(|gpu| gpus.contains(gpu)))
    });
    let mut all: Vec<Group> = islands
        .chain([Group::new(gpus.iter().copied())])
        .flatten()
        .filter(|group| (3..=MOST_RANKS).contains(&group.count()))
        .collect();
    all.sort_by_key(|group| (group.count(), *group));
    all.dedup();
    all
}

/// Groups of equal size that share no GPU run side by side.
fn side_by_side(groups: &[Group]) -> Vec<Vec<Subject>> {
    let mut rounds: Vec<Vec<Group>> = Vec::new();
    for group in groups {
        let apart = |round: &&mut Vec<Group>| {
            round.iter().all(|other| {
                other.count() == group.count() && !other.gpus().any(|gpu| group.touches(gpu))
            })
        };
        match rounds.iter_mut().find(apart) {
            Some(round) => round.push(*group),
            None => rounds.push(vec![*group]),
        }
    }
    let subjects = |round: Vec<Group>| round.into_iter().map(Subject::Group).collect();
    rounds.into_iter().map(subjects).collect()
}

/// Whom all-reduces are asked of.
pub(super) struct Asked<'a> {
    /// Both directions of disjoint pairs; or the only GPU.
    pub(super) pairs: &'a [Vec<Subject>],
    /// Islands and the whole.
    pub(super) groups: &'a [Group],
    /// Bytes free on the GPU that has least.
    pub(super) memory: u64,
    pub(super) budget: Budget,
}

impl Asked<'_> {
    /// The phase of a place, if there is anything in it.
    pub(super) fn phase(
        &self,
        make: &mut Cases,
        place: Place,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<Phase> {
        let ways: Vec<&Way> = ROSTER
            .iter()
            .filter(|way| way.place == place && wanted(way.id))
            .take(match self.budget {
                Budget::Quick => 1,
                _ => usize::MAX,
            })
            .collect();
        let together = side_by_side(self.groups);
        let rounds = self.pairs.iter().chain(&together);
        // The largest group, or the only pair, is what is timed.
        let last = rounds.clone().count().saturating_sub(1);
        let mut all = Vec::new();
        for (at, subjects) in rounds.enumerate() {
            for (nth, way) in ways.iter().enumerate() {
                let ranks = subjects.first().map_or(0, |subject| ranks(*subject));
                let takes = way.algorithm().is_some_and(|a| a.takes(ranks));
                let mut shapes = judged(self.memory, self.budget, nth == 0);
                let alone = subjects.first().is_some_and(|first| {
                    matches!(first, Subject::Group(_))
                        || self.groups.is_empty() && self.pairs.len() == 1
                });
                if self.budget != Budget::Quick && at == last && alone && place != Place::Ranks {
                    shapes.extend(timed(self.memory));
                }
                for shape in shapes.iter().filter(|_| takes) {
                    let cases = subjects
                        .iter()
                        .map(|subject| self.case(make, *subject, way, shape));
                    all.push(Round {
                        cases: cases.collect(),
                    });
                }
            }
        }
        (!all.is_empty()).then(|| Phase {
            name: format!("reduced, {}", place.words()),
            place,
            rounds: all,
            soak: None,
        })
    }

    fn case(&self, make: &mut Cases, subject: Subject, way: &Way, shape: &Shape) -> Case {
        let calls = match subject {
            Subject::Gpu(_) => SLICED,
            Subject::Pair(_) | Subject::Group(_) => shape.calls,
        };
        Case {
            all_reduce: Some(shape.all_reduce),
            ..make.make(
                subject,
                (way.id, way.rung()),
                (0, shape.bytes),
                calls,
                shape.timed,
            )
        }
    }
}

/// The case in which two ranks share the only GPU, for every algorithm in turn.
pub(super) fn same_gpu(case: Case, memory: u64, budget: Budget) -> Case {
    let first = timed(memory).into_iter().next();
    let shape = match budget {
        Budget::Quick => judged(memory, budget, true).into_iter().next(),
        _ => first,
    };
    match shape {
        None => case,
        Some(shape) => Case {
            bytes: shape.bytes,
            attempts: shape.calls,
            all_reduce: Some(shape.all_reduce),
            timed: shape.timed,
            ..case
        },
    }
}

/// Ranks of a subject.
fn ranks(subject: Subject) -> u32 {
    match subject {
        Subject::Gpu(_) | Subject::Pair(_) => 2,
        Subject::Group(group) => group.count(),
    }
}

/// Device memory that a GPU needs for its rank of a case, bytes: all that it may have at the same time.
pub(super) fn device_bytes(case: &Case) -> u64 {
    let Some(series) = crate::probe::reduced::series(case, 0, 0) else {
        return 0;
    };
    let Needs { mailbox, vectors } = series.needs(ranks(case.subject));
    let sharing = if matches!(case.subject, Subject::Gpu(_)) {
        2
    } else {
        1
    };
    // Mailboxes come in whole blocks that processes can share.
    sharing * (mailbox.next_multiple_of(super::IPC_BLOCK) + vectors + (1 << 20))
}

/// Wall time of a case that goes well, seconds: three launches a call, and every rank's bytes over a usual link.
pub(super) fn seconds(case: &Case, link: f64) -> f64 {
    let samples = if case.timed { super::RATE_SAMPLES } else { 1 };
    let calls = f64::from(case.attempts) * f64::from(samples);
    let bytes = case.bytes as f64 * f64::from(ranks(case.subject));
    5e-3 + calls * (3e-5 + bytes / link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{pair::GpuIndex, topology::Island};

    fn islands(sets: &[&[u32]]) -> Topology {
        Topology {
            islands: sets
                .iter()
                .map(|gpus| Island {
                    joined_by: "PIX".to_string(),
                    gpus: gpus.iter().copied().map(GpuIndex).collect(),
                })
                .collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn islands_and_the_whole_are_asked_once_each() {
        let halves = islands(&[&[0, 1], &[0, 1, 2, 3], &[4, 5, 6, 7], &[0, 1, 2, 3]]);
        let all: Vec<u32> = (0..8).collect();
        let named: Vec<String> = groups(&halves, &all).iter().map(Group::to_string).collect();
        assert_eq!(named, ["GPUs 0-3", "GPUs 4-7", "GPUs 0-7"]);
        assert_eq!(side_by_side(&groups(&halves, &all)).len(), 2);
        // What was not chosen takes no part; two are a pair; more than eight are no group.
        assert_eq!(groups(&halves, &[0, 1, 2]).len(), 1);
        assert!(groups(&halves, &[0, 1]).is_empty());
        let sixteen: Vec<u32> = (0..16).collect();
        assert_eq!(groups(&halves, &sixteen).len(), 2);
    }

    #[test]
    fn sizes_scale_with_memory_and_a_quick_look_is_one() {
        assert_eq!(judged(140 << 30, Budget::Quick, true).len(), 1);
        let (big, tiny) = (timed(140 << 30), timed(48 << 20));
        let sizes: Vec<u64> = big.iter().map(|shape| shape.bytes).collect();
        assert_eq!(sizes, TIMED);
        assert_eq!(tiny.len(), 1);
        assert!(tiny[0].bytes <= 512 && tiny[0].calls < 100);
        for shape in judged(48 << 20, Budget::Default, true).iter().chain(&big) {
            assert!(shape.bytes.is_multiple_of(shape.all_reduce.dtype.bytes()));
        }
    }
}
