//! All-reduces in one process over its GPUs, pairs side by side; and as streams of its only one. Nothing is allocated, loaded
//! or read back while a kernel of any of them may be waiting.

use super::{Ran, arrangement, blank, failure, gpus, is_same, series};
use crate::{
    gpu::{Context, reduce::Reduce},
    model::{
        case::{Case, Outcome, Subject},
        reduction::{Arrangement, Reduction},
    },
    probe::{
        reduction::{
            self, Request, Series, Sight,
            group::{Group, Member},
        },
        seat::Seat,
        transfer::Setting,
        wire::Answer,
    },
};
use std::{sync::Arc, time::Instant};

/// One all-reduce: the cases that it answers and its ranks.
struct Meeting<'c> {
    cases: Vec<&'c Case>,
    series: Series,
    gpus: Vec<u32>,
    group: Group,
    sights: Vec<Sight>,
}

/// Runs the all-reduces of disjoint pairs or groups side by side and answers each case.
pub(in crate::probe) fn run(setting: &Setting, cases: &[&Case], mut emit: impl FnMut(Answer)) {
    let started = Instant::now();
    let mut meetings: Vec<Meeting> = Vec::new();
    for case in cases {
        let same = |m: &&mut Meeting| m.cases.first().is_some_and(|lead| is_same(lead, case));
        if let Some(meeting) = meetings.iter_mut().find(same) {
            meeting.cases.push(case);
            continue;
        }
        match arrange(setting, case) {
            Ok(meeting) => meetings.push(meeting),
            Err(outcome) => emit(blank(case, outcome)),
        }
    }
    // All have begun before the first kernel waits.
    let mut live = Vec::new();
    for mut meeting in meetings {
        match meeting.group.begin(&meeting.series, setting.factor) {
            Ok(fitted) => {
                meeting.series = fitted;
                live.push(meeting);
            }
            Err(error) => {
                let outcome = failure(error);
                for case in &meeting.cases {
                    emit(blank(case, outcome.clone()));
                }
            }
        }
    }
    std::thread::scope(|scope| {
        for meeting in &mut live {
            scope.spawn(|| meeting.group.play(&meeting.series, setting.factor));
        }
    });
    for meeting in &mut live {
        meeting.sights = meeting.group.sights(setting.factor);
    }
    for meeting in &live {
        let Some(lead) = meeting.cases.first() else {
            continue;
        };
        let ran = Ran {
            series: &meeting.series,
            gpus: &meeting.gpus,
            arrangement: arrangement(lead),
            sights: &meeting.sights,
            started,
        };
        for (nth, case) in meeting.cases.iter().enumerate() {
            emit(ran.answer(case, nth == 0));
        }
    }
}

/// The members of an all-reduce over these GPUs, in rank order.
fn members(seats: &[Seat], gpus: &[u32]) -> Result<Vec<Member>, Outcome> {
    let members = gpus.iter().map(|gpu| {
        let seat = seats.iter().find(|seat| seat.gpu == *gpu);
        let seat = seat.ok_or_else(|| Outcome::NotRun {
            reason: format!("GPU{gpu} is not open in this worker"),
        })?;
        let kernels = seat.reduce().map_err(|why| why.outcome())?;
        Ok((*gpu, seat.context.clone(), kernels.clone()))
    });
    members.collect()
}

fn arrange<'c>(setting: &Setting, case: &'c Case) -> Result<Meeting<'c>, Outcome> {
    let unknown = || Outcome::NotRun {
        reason: "no algorithm of this name".to_string(),
    };
    let series = series(case, setting.run, 0).ok_or_else(unknown)?;
    let gpus = gpus(case.subject);
    let group = Group::open(
        &members(setting.seats, &gpus)?,
        std::slice::from_ref(&series),
    );
    Ok(Meeting {
        cases: vec![case],
        group: group.map_err(failure)?,
        series,
        gpus,
        sights: Vec::new(),
    })
}

/// Every algorithm that takes two ranks, as two streams on one GPU whose blocks are resident at once; the worst outcome
/// answers, and each algorithm has a row.
pub(in crate::probe) fn same_gpu(setting: &Setting, seat: &Seat, case: &Case) -> Answer {
    let started = Instant::now();
    let mut answer = Answer {
        executor: super::executor(case.subject),
        ..blank(case, Outcome::Intact)
    };
    let two = gpus(Subject::Gpu(crate::model::pair::GpuIndex(seat.gpu)));
    let members = match members(std::slice::from_ref(seat), &two) {
        Ok(members) => members,
        Err(outcome) => return blank(case, outcome),
    };
    for algorithm in reduction::ROSTER.iter().filter(|a| a.takes(2)) {
        let way = super::ROSTER.iter().find(|w| w.algorithm == algorithm.id());
        let Some(series) = way.and_then(|way| super::series_of(way, case, setting.run, 0)) else {
            continue;
        };
        let row = one(
            &members,
            &two,
            series,
            (Arrangement::StreamsOfOneGpu, setting.factor),
        );
        answer.attempts_ran += u32::try_from(row.calls).unwrap_or(0);
        let outcome = match &row.outcome {
            Outcome::Intact => None,
            outcome => Some(outcome.clone()),
        };
        answer.reductions.push(row);
        if let Some(outcome) = outcome {
            answer.notes.push(format!("in {}", algorithm.id()));
            answer.retire = outcome.is_failure() && outcome.corruption().is_none();
            answer.outcome = outcome;
            break;
        }
    }
    answer.took_ms = started.elapsed().as_secs_f64() * 1e3;
    answer
}

/// One series over members that are open, to its row.
fn one(
    members: &[(u32, Arc<Context>, Arc<Reduce>)],
    gpus: &[u32],
    series: Series,
    (arrangement, factor): (Arrangement, u32),
) -> Reduction {
    let begun = Group::open(members, std::slice::from_ref(&series)).and_then(|mut group| {
        let fitted = group.begin(&series, factor)?;
        Ok((group, fitted))
    });
    match begun {
        Ok((mut group, fitted)) => {
            group.play(&fitted, factor);
            let sights = group.sights(factor);
            reduction::conclude(&fitted, gpus, arrangement, &sights)
        }
        Err(error) => reduction::conclude(&series, gpus, arrangement, &lost(gpus, &failure(error))),
    }
}

fn lost(gpus: &[u32], outcome: &Outcome) -> Vec<Sight> {
    let ranks = 0..gpus.len() as u32;
    ranks
        .map(|rank| Sight::lost(rank, outcome.clone()))
        .collect()
}

/// Every series of `request` over `gpus`, a rank on each (one that is named several times holds as many), row by row.
/// Whether the worker must not be used again.
pub(in crate::probe) fn rows(
    setting: &Setting,
    gpus: &[u32],
    request: &Request,
    mut emit: impl FnMut(Reduction),
) -> bool {
    let all = request.series(gpus.len() as u32);
    let shared = gpus
        .first()
        .is_some_and(|first| gpus.get(1..).is_some_and(|rest| rest.contains(first)));
    let arrangement = match shared {
        true => Arrangement::StreamsOfOneGpu,
        false => Arrangement::OneProcess,
    };
    let opened = members(setting.seats, gpus)
        .and_then(|members| Group::open(&members, &all).map_err(failure));
    let mut group = match opened {
        Ok(group) => group,
        Err(outcome) => {
            let lost = lost(gpus, &outcome);
            for series in &all {
                emit(reduction::conclude(series, gpus, arrangement, &lost));
            }
            return false;
        }
    };
    for series in &all {
        let row = match group.begin(series, setting.factor) {
            Ok(fitted) => {
                group.play(&fitted, setting.factor);
                reduction::conclude(&fitted, gpus, arrangement, &group.sights(setting.factor))
            }
            Err(error) => {
                let lost = lost(gpus, &failure(error));
                reduction::conclude(series, gpus, arrangement, &lost)
            }
        };
        let done_for = row.outcome.is_failure()
            && row.outcome.corruption().is_none()
            && !matches!(row.outcome, Outcome::Never { .. });
        emit(row);
        if done_for {
            return true;
        }
    }
    false
}
