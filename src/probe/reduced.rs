//! Rung 6 of the ladder: all-reduces over a pair or a group, put as cases. A case of an ordered pair and its reverse are one
//! all-reduce; the direction from s to r is judged by what rank r lacks of what rank s sent. Knows which algorithm runs in
//! which workers, how a case becomes a series of calls, and how ranks' sights become answers. How an algorithm goes and when
//! a sum is right: [`reduction`].

mod measure;
mod solo;

pub use measure::{Order, measure};
pub(super) use solo::{rows, run, same_gpu};

use super::{
    mechanism::{Memory, Place},
    reduction::{
        self, Algorithm, Mailboxes, Series, Sight, Timing, Tuning, exact::Values, rank::RankError,
    },
    wire::Answer,
};
use crate::{
    gpu::reduce::Verdict,
    model::{
        case::{Case, Outcome, PeerAccess, Rung, Subject},
        reduction::{AllReduce, Arrangement, Launch, Reduction},
    },
};
use std::time::{Duration, Instant};

/// An algorithm in one kind of workers: a mechanism of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// As in `--mechanism` and in records.
    pub id: &'static str,
    /// The algorithm's id.
    pub algorithm: &'static str,
    /// Which workers carry it.
    pub place: Place,
}

const fn way(id: &'static str, algorithm: &'static str, place: Place) -> Way {
    Way {
        id,
        algorithm,
        place,
    }
}

/// All of them. The first one of a place is what a quick look takes, and without which the rung is not proven.
pub const ROSTER: [Way; 11] = [
    way("host-reduce", "pinned-host", Place::Off),
    way("one-shot-push", "one-shot-push", Place::On),
    way("one-shot-pull", "one-shot-pull", Place::On),
    way("two-shot", "two-shot", Place::On),
    way("staged-push", "staged-push", Place::On),
    way("hierarchical", "hierarchical", Place::On),
    way("ipc-one-shot-push", "one-shot-push", Place::Ranks),
    way("ipc-one-shot-pull", "one-shot-pull", Place::Ranks),
    way("ipc-two-shot", "two-shot", Place::Ranks),
    way("ipc-staged-push", "staged-push", Place::Ranks),
    way("ipc-hierarchical", "hierarchical", Place::Ranks),
];

/// The mechanism with this id.
pub fn by_id(id: &str) -> Option<&'static Way> {
    ROSTER.iter().find(|way| way.id == id)
}

/// The first mechanism of each place with peer access: those that make up rung 6. What goes through the host counts on rung 1
/// where it ran, and is not missed there.
pub fn founding() -> impl Iterator<Item = &'static Way> {
    let places = [Place::On, Place::Ranks];
    places
        .into_iter()
        .filter_map(|place| ROSTER.iter().find(|way| way.place == place))
}

impl Way {
    /// Its algorithm; `None` when the roster names one that does not exist.
    pub fn algorithm(&self) -> Option<&'static dyn Algorithm> {
        reduction::by_id(self.algorithm)
    }

    /// Its rung: what goes through the host stands with the other ways through it.
    pub fn rung(&self) -> Rung {
        match self.place {
            Place::Off => Rung::Staged,
            _ => Rung::Reduced,
        }
    }

    /// In words.
    pub fn title(&self) -> String {
        let title = self.algorithm().map_or("", |algorithm| algorithm.title());
        match self.place {
            Place::Ranks => format!("all-reduce, a process per GPU: {title}"),
            _ => format!("all-reduce: {title}"),
        }
    }
}

/// How long a kernel waits for another rank by its own clock: what takes microseconds.
const LIMIT: Duration = Duration::from_secs(1);
/// The same between processes, which begin when each is told to; and between two on one GPU, which get it in turns.
const APART: Duration = Duration::from_secs(2);
const SLICED: Duration = Duration::from_secs(10);
/// How long a kernel of this case waits for another rank.
pub(super) fn patience(case: &Case) -> Duration {
    match (by_id(&case.mechanism).map(|way| way.place), case.subject) {
        (Some(Place::Ranks), Subject::Gpu(_)) => SLICED,
        (Some(Place::Ranks), _) => APART,
        _ => LIMIT,
    }
}

/// Wall time that a case may take before its workers are given up, on real hardware.
pub(super) fn whole(case: &Case) -> Duration {
    let ranks = gpus(case.subject).len() as u32;
    match series(case, 0, 0) {
        Some(series) => reduction::rank::whole(&series, ranks),
        // Every algorithm in turn.
        None => ROSTER
            .iter()
            .filter(|way| way.place != Place::Ranks)
            .filter_map(|way| series_of(way, case, 0, 0))
            .map(|series| reduction::rank::whole(&series, ranks))
            .sum(),
    }
}

/// Calls before the timed ones, which bring the ranks together.
const WARMUP: u32 = 2;

/// The series of calls that a case is, the same for all its ranks. Graphs get random values, whose last bits tell the order
/// of addition; eager calls get integers, whose sums are exact in any order.
pub(super) fn series(case: &Case, run: u32, pass: u16) -> Option<Series> {
    series_of(by_id(&case.mechanism)?, case, run, pass)
}

fn series_of(way: &Way, case: &Case, run: u32, pass: u16) -> Option<Series> {
    let AllReduce {
        dtype,
        in_place,
        launch,
    } = case.all_reduce?;
    let algorithm = way.algorithm()?;
    let count = case.bytes / dtype.bytes();
    // Whole, without its last element, a little over half, whole: what a slot held before is longer or shorter.
    let mut counts = vec![count, count.saturating_sub(1), count / 2 + 1, count];
    counts.retain(|n| (1..=count).contains(n));
    let each = match launch {
        Launch::Eager => 1,
        Launch::Graph => counts.len().max(1) as u32,
    };
    let timing = Timing {
        samples: super::plan::RATE_SAMPLES,
        calls: case.attempts,
        warmup: WARMUP,
    };
    Some(Series {
        algorithm: algorithm.id().to_string(),
        dtype,
        bytes: case.bytes,
        in_place,
        launch,
        values: match launch {
            Launch::Eager => Values::Integers,
            Launch::Graph => Values::Random,
        },
        calls: if case.timed {
            0
        } else {
            case.attempts.div_ceil(each)
        },
        counts,
        timing: case.timed.then_some(timing),
        tuning: Tuning::default(),
        seed: u64::from(run) << 32 | u64::from(pass) << 24 ^ u64::from(case.id),
        limit: patience(case),
    })
}

/// The GPUs of the ranks of a subject, in rank order: ascending, whichever direction of a pair asks.
pub(super) fn gpus(subject: Subject) -> Vec<u32> {
    match subject {
        Subject::Gpu(gpu) => vec![gpu.0, gpu.0],
        Subject::Pair(pair) => {
            let (a, b) = (pair.source.0, pair.destination.0);
            vec![a.min(b), a.max(b)]
        }
        Subject::Group(group) => group.gpus().map(|gpu| gpu.0).collect(),
    }
}

/// Whether two cases are answered by one all-reduce: the directions of a pair.
pub(super) fn is_same(one: &Case, other: &Case) -> bool {
    let same = match (one.subject, other.subject) {
        (Subject::Pair(one), Subject::Pair(other)) => one == other.reversed(),
        _ => false,
    };
    same && one.mechanism == other.mechanism
        && (one.bytes, one.all_reduce, one.timed) == (other.bytes, other.all_reduce, other.timed)
}

/// Who executes, for records.
pub(super) fn executor(subject: Subject) -> String {
    match subject {
        Subject::Gpu(gpu) => format!("multiprocessors of GPU{gpu}, as two ranks"),
        Subject::Pair(pair) => format!(
            "multiprocessors of GPU{} and GPU{}",
            pair.source, pair.destination
        ),
        Subject::Group(group) => format!("multiprocessors of {group}"),
    }
}

/// An answer without a run.
pub(super) fn blank(case: &Case, outcome: Outcome) -> Answer {
    Answer {
        id: case.id,
        outcome,
        peer_access: match by_id(&case.mechanism).map(|way| way.place) {
            Some(Place::Ranks) => Memory::Ipc.peer_access(false),
            Some(Place::On) if !matches!(case.subject, Subject::Gpu(_)) => PeerAccess::Both,
            Some(Place::Off) => PeerAccess::Off,
            _ => PeerAccess::NotApplicable,
        },
        executor: executor(case.subject),
        attempts_ran: 0,
        rate: None,
        took_ms: 0.0,
        notes: Vec::new(),
        retire: false,
        reductions: Vec::new(),
    }
}

/// What cannot be done here, as the outcome of a case: a refusal of the driver is the host's, all else this program's.
pub(super) fn failure(error: RankError) -> Outcome {
    error.outcome()
}

/// An all-reduce that ran: what its ranks saw.
pub(super) struct Ran<'r> {
    pub(super) series: &'r Series,
    pub(super) gpus: &'r [u32],
    pub(super) arrangement: Arrangement,
    pub(super) sights: &'r [Sight],
    pub(super) started: Instant,
}

impl Ran<'_> {
    /// The row for all ranks together.
    pub(super) fn row(&self) -> Reduction {
        reduction::conclude(self.series, self.gpus, self.arrangement, self.sights)
    }

    /// The answer to a case; `lead`: the one of its all-reduce that carries the row.
    pub(super) fn answer(&self, case: &Case, lead: bool) -> Answer {
        let row = self.row();
        let of_case = match case.subject {
            Subject::Pair(pair) => self.direction(pair.source.0, pair.destination.0),
            Subject::Gpu(_) | Subject::Group(_) => row.clone(),
        };
        Answer {
            attempts_ran: u32::try_from(of_case.calls).unwrap_or(u32::MAX),
            took_ms: self.started.elapsed().as_secs_f64() * 1e3,
            retire: self.retires(),
            reductions: Vec::from_iter((lead && case.timed).then_some(row)),
            ..blank(case, of_case.outcome)
        }
    }

    /// Whether its processes are not to be used again: a kernel or a context is left behind. Waits that were given up leave
    /// none.
    pub(super) fn retires(&self) -> bool {
        let failed = self.sights.iter().filter_map(|s| s.failure.as_ref());
        failed.into_iter().any(|outcome| {
            !matches!(
                outcome,
                Outcome::Refused { .. } | Outcome::NotApplicable { .. } | Outcome::NotRun { .. }
            )
        })
    }

    /// The row of one direction of a pair: what came of the bytes that the rank on `from` sent to the one on `to`.
    fn direction(&self, from: u32, to: u32) -> Reduction {
        let rank = |gpu: u32| self.gpus.iter().position(|g| *g == gpu).unwrap_or(0) as u32;
        let (sender, owner) = (rank(from), rank(to));
        // Whoever waited first was let down; the other only waited because of that.
        let waits = self.sights.iter().flat_map(|sight| &sight.given_up);
        let first = waits.min_by_key(|wait| (wait.call, wait.phase)).copied();
        let let_down = first.map(|wait| wait.rank);
        let seen: Vec<Sight> = self
            .sights
            .iter()
            .map(|sight| Sight {
                rank: sight.rank,
                failure: sight.failure.clone().filter(|_| sight.rank == sender),
                verdict: sight.verdict.map(|verdict| {
                    // What came of giving up is no evidence.
                    let whole = first.is_none_or(|wait| {
                        let wrong = verdict.first.map(|(call, _)| call);
                        wrong.is_some_and(|call| call < u64::from(wait.call))
                    });
                    let guilty = contributor(&verdict, self.gpus.len());
                    match whole && guilty.map_or(sight.rank == owner, |guilty| guilty == sender) {
                        true => verdict,
                        false => spotless(&verdict),
                    }
                }),
                given_up: match let_down {
                    Some(rank) if rank == sender => sight.given_up.clone(),
                    _ => Vec::new(),
                },
                us: sight.us.clone(),
            })
            .collect();
        let mut row = reduction::conclude(self.series, self.gpus, self.arrangement, &seen);
        // Calls behind a wait that was given up were made, and prove nothing.
        let whole = first.map_or(row.calls, |wait| row.calls.min(u64::from(wait.call)));
        let open = match &row.outcome {
            Outcome::Intact => first.is_some(),
            Outcome::NotRun { .. } => true,
            _ => false,
        };
        let other = self.row().outcome;
        if open && other.is_failure() {
            row.calls = whole;
            row.outcome = Outcome::NotRun {
                reason: format!(
                    "the all-reduce ended early for want of the other direction ({}); right in {whole} calls until then",
                    other.word()
                ),
            };
        }
        row
    }
}

/// The one rank whose contribution, missing or of another call, explains more of the first wrong sums than any other does,
/// and more than half.
fn contributor(verdict: &Verdict, ranks: usize) -> Option<u32> {
    let explained = verdict.instead.iter().flat_map(|by_rank| {
        let ranks = by_rank.iter().take(ranks).zip(0u32..);
        ranks.filter(|(n, _)| **n > verdict.blamed / 2)
    });
    let mut guilty: Vec<(u64, u32)> = explained.map(|(n, rank)| (*n, rank)).collect();
    guilty.sort_unstable_by(|a, b| b.cmp(a));
    guilty.dedup();
    match guilty.as_slice() {
        [(n, rank), rest @ ..] if rest.iter().all(|(m, other)| m < n || other == rank) => {
            Some(*rank)
        }
        _ => None,
    }
}

/// The same verdict with nothing wrong.
fn spotless(verdict: &Verdict) -> Verdict {
    Verdict {
        wrong: 0,
        first: None,
        got: None,
        wrong_calls: 0,
        judged: verdict.judged,
        blamed: 0,
        poison: 0,
        zero: 0,
        instead: Default::default(),
    }
}

/// The arrangement of a case's ranks.
pub(super) fn arrangement(case: &Case) -> Arrangement {
    match (by_id(&case.mechanism).map(|way| way.place), case.subject) {
        (Some(Place::Ranks), Subject::Gpu(_)) => Arrangement::ProcessesOfOneGpu,
        (Some(Place::Ranks), _) => Arrangement::ProcessPerGpu,
        (_, Subject::Gpu(_)) => Arrangement::StreamsOfOneGpu,
        _ => Arrangement::OneProcess,
    }
}

/// Whether a series leaves its vectors in host memory.
pub(super) fn through_host(series: &Series) -> bool {
    let algorithm = series.algorithm();
    algorithm.is_some_and(|algorithm| algorithm.mailboxes() == Mailboxes::Host)
}
