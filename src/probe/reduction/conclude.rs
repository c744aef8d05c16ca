//! From what each rank saw to one row: whether the sums were right, who never came, how long a call took. Pure.

use super::{
    Series, Sight,
    exact::{self, Order},
};
use crate::{
    gpu::reduce::{GivenUp, How, Verdict},
    model::{
        case::{Corruption, Missing, Outcome, UnitCounts, WrongKind},
        measurement::{Measurement, Unit},
        pair::GpuIndex,
        reduction::{Arrangement, Launch, Reduction},
    },
    stats::caveats,
};

/// The row of a series whose ranks ran on `gpus`, in rank order.
pub fn conclude(
    series: &Series,
    gpus: &[u32],
    arrangement: Arrangement,
    sights: &[Sight],
) -> Reduction {
    let ranks = gpus.len() as u32;
    let mut notes = Vec::new();
    let calls = sights
        .iter()
        .map(|sight| sight.verdict.map_or(0, |verdict| verdict.judged))
        .min()
        .unwrap_or(0);
    let outcome = corrupt(series, ranks, sights)
        .or_else(|| failure(sights))
        .or_else(|| never(series, gpus, sights, &mut notes))
        .unwrap_or_else(
            || match calls == planned(series) && sights.len() == gpus.len() {
                true => Outcome::Intact,
                false => Outcome::NotRun {
                    reason: format!("{calls} of {} calls were judged", planned(series)),
                },
            },
        );
    let time = match arrangement {
        Arrangement::ProcessesOfOneGpu => {
            notes.push("no time: two processes on one GPU take turns".to_string());
            None
        }
        _ => outcome.is_intact().then(|| time(series, sights)).flatten(),
    };
    if let Some(shape) = series.shape(ranks) {
        notes.push(format!(
            "{} blocks of {} threads",
            shape.blocks, shape.threads
        ));
    }
    Reduction {
        algorithm: series.algorithm.clone(),
        gpus: gpus.to_vec(),
        arrangement,
        dtype: series.dtype,
        bytes: series.bytes,
        in_place: series.in_place,
        launch: series.launch,
        outcome,
        calls,
        time,
        transport: None,
        notes,
    }
}

/// Calls that are judged when all goes well; at least one, because no call is no proof.
fn planned(series: &Series) -> u64 {
    let each = match series.launch {
        Launch::Eager => 1,
        Launch::Graph => series.counts.len() as u64,
    };
    let timed = series.timing.map_or(0, |timing| {
        u64::from(timing.samples) * u64::from(timing.calls + timing.warmup)
    });
    (u64::from(series.calls) * each + timed).max(1)
}

/// Of each sample the slowest rank: the call is over when all have its result.
fn time(series: &Series, sights: &[Sight]) -> Option<Measurement> {
    let timing = series.timing?;
    let samples: Vec<f64> = (0..timing.samples as usize)
        .map(|nth| {
            let mut all = sights.iter().map(|sight| sight.us.get(nth).copied());
            all.try_fold(0f64, |most, us| us.map(|us| most.max(us)))
        })
        .collect::<Option<_>>()?;
    let how = match series.launch {
        Launch::Eager => "launches",
        Launch::Graph => "calls of one graph",
    };
    Some(Measurement {
        caveats: caveats(&samples),
        samples,
        unit: Unit::Us,
        warmup: timing.warmup,
        method: format!(
            "a sample is the mean of {} {how} back to back, each on vectors of its own, queued behind a gate; events on a non-blocking stream, slowest rank",
            timing.calls
        ),
    })
}

/// A rank that hung, faulted or died: what came of it first.
fn failure(sights: &[Sight]) -> Option<Outcome> {
    let severity = |outcome: &Outcome| match outcome {
        Outcome::Died { .. } => 0,
        Outcome::Faulted { .. } => 1,
        Outcome::TimedOut { .. } => 2,
        Outcome::Refused { .. } => 3,
        _ => 4,
    };
    let all = sights.iter().filter_map(|sight| sight.failure.as_ref());
    all.min_by_key(|outcome| severity(outcome)).cloned()
}

/// Who never came. Of all waits that were given up, that of the earliest call and phase was the first: whoever waits for a
/// rank that waits itself is later. Of equals, the longest.
fn never(
    series: &Series,
    gpus: &[u32],
    sights: &[Sight],
    notes: &mut Vec<String>,
) -> Option<Outcome> {
    let waits = sights
        .iter()
        .flat_map(|sight| sight.given_up.iter().map(move |wait| (sight.rank, wait)));
    let first = |wait: &GivenUp| (wait.call, wait.phase, std::cmp::Reverse(wait.waited_us));
    // The stop word ends waits of which nobody's clock ran out.
    let (waiter, wait) = waits.min_by_key(|(_, wait)| (wait.how == How::Stopped, first(wait)))?;
    notes.push(format!(
        "rank {} block {} never came: rank {waiter} waited for it {} ms in call {}, phase {}",
        wait.rank,
        wait.block,
        wait.waited_us / 1000,
        wait.call + 1,
        wait.phase + 1
    ));
    Some(Outcome::Never {
        round: wait.call.saturating_add(1),
        rounds: u32::try_from(planned(series)).unwrap_or(u32::MAX),
        after_ms: wait.waited_us / 1000,
        missing: gpus.get(wait.rank as usize).map(|gpu| Missing {
            rank: wait.rank,
            gpu: GpuIndex(*gpu),
            block: wait.block,
        }),
    })
}

/// Wrong sums. Those of a call in which some wait was given up, and of later ones, are what came of giving up: no evidence.
fn corrupt(series: &Series, ranks: u32, sights: &[Sight]) -> Option<Outcome> {
    let waits = sights.iter().flat_map(|sight| &sight.given_up);
    let whole = waits.map(|wait| u64::from(wait.call)).min();
    let wrong: Vec<(u32, Verdict)> = sights
        .iter()
        .filter_map(|sight| Some((sight.rank, sight.verdict.filter(|v| v.wrong > 0)?)))
        .collect();
    // The earliest call in which a sum was wrong.
    let (rank, verdict) = wrong.iter().min_by_key(|(_, v)| v.first)?;
    let (call, element) = verdict
        .first
        .filter(|(call, _)| whole.is_none_or(|whole| *call < whole))?;
    let (kind, what) = name(verdict, ranks);
    let all: Vec<String> = wrong.iter().map(|(rank, _)| rank.to_string()).collect();
    let order = series.algorithm().map_or(Order::Ranks, |a| a.order());
    let place = (call, element);
    let want = exact::expected(
        series.dtype,
        (series.values, order),
        (series.seed, ranks),
        place,
    );
    let digits = 2 * series.dtype.bytes() as usize;
    let got = verdict
        .got
        .map_or("other bits".to_string(), |got| format!("0x{got:0digits$x}"));
    let detail = format!(
        "rank {rank}: {what}; first in call {}, element {element}: {got} where 0x{want:0digits$x} belongs; wrong sums on rank{} {}",
        call + 1,
        if all.len() == 1 { "" } else { "s" },
        all.join(", ")
    );
    let elements = verdict.judged * series.count();
    Some(Outcome::Corrupt(Box::new(Corruption {
        kind,
        detail,
        attempt: u32::try_from(call + 1).unwrap_or(u32::MAX),
        wrong_attempts: verdict.wrong_calls as u32,
        attempts_ran: verdict.judged as u32,
        first_offset: element * series.dtype.bytes(),
        last_offset: series.bytes,
        // Elements here: a sum has no units that name themselves.
        wrong_units: verdict.wrong,
        units: elements,
        counts: UnitCounts {
            equal: elements.saturating_sub(verdict.wrong),
            unknown: verdict.wrong,
            ..Default::default()
        },
        samples: Vec::new(),
        accessor_sees_right: None,
        source_intact: None,
        owner_views_agree: None,
    })))
}

/// The kind of wrong that explains most wrong elements of the first wrong call, and in words.
fn name(verdict: &Verdict, ranks: u32) -> (WrongKind, String) {
    let all = verdict.blamed;
    if verdict.poison == all {
        return (
            WrongKind::Dropped,
            format!("{all} elements were never written"),
        );
    }
    let kinds = [
        (WrongKind::Zeroed, "is missing"),
        (WrongKind::Stale, "is that of the call before"),
        (WrongKind::Stale, "is that of two calls before"),
    ];
    let mut fitting = Vec::new();
    for ((kind, words), by_rank) in kinds.into_iter().zip(&verdict.instead) {
        let some = by_rank.iter().zip(0..ranks).filter(|(n, _)| **n > all / 2);
        fitting.extend(some.map(|(n, rank)| (*n, kind, rank, words)));
    }
    fitting.sort_by_key(|(n, ..)| std::cmp::Reverse(*n));
    match fitting.as_slice() {
        // One rank explains more than any other; before the first call there is none to be late from.
        [(n, kind, rank, words), rest @ ..]
            if rest.iter().all(|(m, _, other, _)| m < n || other == rank) =>
        {
            (
                *kind,
                format!("in {n} of {all} wrong elements the contribution of rank {rank} {words}"),
            )
        }
        _ if verdict.zero == all => (WrongKind::Zeroed, format!("{all} elements are zero")),
        _ => (
            WrongKind::Mixed,
            format!("{all} elements are wrong, in no way that one rank's contribution explains"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::reduction::Dtype,
        probe::reduction::{Request, Timing, Tuning, exact::Values},
    };
    use std::time::Duration;

    fn series(calls: u32) -> Series {
        let request = Request {
            algorithms: vec!["two-shot".into()],
            dtypes: vec![Dtype::Bf16],
            sizes: vec![4096],
            launches: vec![Launch::Eager],
            in_place: vec![false],
            values: Values::Integers,
            calls,
            samples: 0,
            room: 1 << 20,
            tuning: Tuning::default(),
            seed: 1,
            limit: Duration::from_secs(1),
        };
        request.series(2).remove(0)
    }

    fn verdict(judged: u64, wrong: Option<(u64, u64)>) -> Verdict {
        let mut instead = [[0; 8]; 3];
        instead[2][1] = 7;
        Verdict {
            wrong: if wrong.is_some() { 9 } else { 0 },
            first: wrong,
            got: Some(0x4000),
            wrong_calls: u64::from(wrong.is_some()),
            judged,
            blamed: 9,
            poison: 0,
            zero: 0,
            instead,
        }
    }

    fn sight(rank: u32, judged: u64) -> Sight {
        Sight {
            rank,
            failure: None,
            verdict: Some(verdict(judged, None)),
            given_up: Vec::new(),
            us: Vec::new(),
        }
    }

    fn wait(how: How, rank: u32, call: u32, phase: u32) -> GivenUp {
        GivenUp {
            how,
            rank,
            block: 3,
            phase,
            call,
            waited_us: 1_000_000,
        }
    }

    fn row(series: &Series, sights: &[Sight]) -> Reduction {
        conclude(series, &[4, 6], Arrangement::OneProcess, sights)
    }

    #[test]
    fn intact_only_when_every_planned_call_was_judged_on_every_rank() {
        let row_of = |calls, a, b| row(&series(calls), &[sight(0, a), sight(1, b)]).outcome;
        assert_eq!(row_of(8, 8, 8), Outcome::Intact);
        assert!(matches!(row_of(8, 8, 7), Outcome::NotRun { .. }));
        // No call is no proof.
        assert!(matches!(row_of(0, 0, 0), Outcome::NotRun { .. }));
        let one = row(&series(8), &[sight(0, 8)]);
        assert!(matches!(one.outcome, Outcome::NotRun { .. }));
    }

    #[test]
    fn the_earliest_wait_names_who_never_came() {
        let (mut a, mut b) = (sight(0, 8), sight(1, 8));
        a.given_up = vec![wait(How::Never, 1, 5, 1), wait(How::Stopped, 1, 4, 0)];
        b.given_up = vec![wait(How::Never, 0, 6, 0)];
        let row = row(&series(8), &[a, b]);
        assert!(
            matches!(
                row.outcome,
                Outcome::Never {
                    round: 6,
                    rounds: 8,
                    after_ms: 1000,
                    ..
                }
            ),
            "{:?}",
            row.outcome
        );
        let says = "rank 1 block 3 never came: rank 0 waited for it 1000 ms in call 6, phase 2";
        assert_eq!(row.notes[0], says);
    }

    #[test]
    fn what_came_of_giving_up_is_no_wrong_data() {
        let with = |wrong_call| {
            let (mut a, b) = (sight(0, 8), sight(1, 8));
            a.verdict = Some(verdict(8, Some((wrong_call, 20))));
            a.given_up = vec![wait(How::Never, 1, 5, 0)];
            row(&series(8), &[a, b]).outcome
        };
        assert!(matches!(with(5), Outcome::Never { .. }));
        let Outcome::Corrupt(found) = with(4) else {
            panic!("{:?}", with(4));
        };
        assert_eq!((found.kind, found.attempt), (WrongKind::Stale, 5));
        assert_eq!(found.first_offset, 40);
        let says = "rank 0: in 7 of 9 wrong elements the contribution of rank 1 is that of two calls before; first in call 5, element 20: 0x4000 where 0x";
        assert!(found.detail.starts_with(says), "{}", found.detail);
    }

    #[test]
    fn a_death_outranks_what_the_others_waited_for() {
        let how = "signal 9 (SIGKILL)".to_string();
        let mut a = sight(0, 3);
        a.given_up = vec![wait(How::Never, 1, 3, 0)];
        let lost = Sight::lost(1, Outcome::Died { how: how.clone() });
        assert_eq!(row(&series(8), &[a, lost]).outcome, Outcome::Died { how });
    }

    #[test]
    fn a_time_is_that_of_the_slowest_rank_and_only_of_right_sums() {
        let mut timed = series(0);
        timed.timing = Some(Timing {
            samples: 2,
            calls: 10,
            warmup: 2,
        });
        let (mut a, mut b) = (sight(0, 24), sight(1, 24));
        (a.us, b.us) = (vec![3.0, 5.0], vec![4.0, 4.5]);
        let time = |sights: &[Sight]| row(&timed, sights).time.map(|time| time.samples);
        assert_eq!(time(&[a.clone(), b.clone()]), Some(vec![4.0, 5.0]));
        let shared = [a.clone(), b.clone()];
        let row = conclude(&timed, &[4, 4], Arrangement::ProcessesOfOneGpu, &shared);
        assert_eq!((row.outcome, row.time), (Outcome::Intact, None));
        b.verdict = Some(verdict(24, Some((23, 0))));
        assert_eq!(time(&[a, b]), None);
    }
}
