//! Leads all-reduces between processes: every rank takes its place and exports its mailbox, opens those of the others, begins,
//! and only when all have begun each runs its whole series by itself. No word in memory is shared but mailboxes: a rank that
//! is let down ends by its own clock, and one that dies is named.

use super::{Lost, Ranks};
use crate::{
    model::{
        case::{Case, Outcome},
        reduction::{Arrangement, Reduction},
    },
    probe::{
        reduced::{self, Ran},
        reduction::{self, Series, Sight, rank::Place},
        wire::{Answer, Done, Job, Seating, Shared, Task},
    },
};
use std::{collections::BTreeMap, time::Instant};

/// One all-reduce and how far its ranks came.
pub(super) struct Meeting<'c> {
    /// The first leads; others are answered by the same all-reduce.
    cases: Vec<&'c Case>,
    series: Series,
    gpus: Vec<u32>,
    /// Places in the list of ranks, in rank order.
    ranks: Vec<usize>,
    /// Mailboxes in rank order, and the blocks that fit each GPU.
    mailboxes: Vec<Option<Shared>>,
    blocks: u64,
    sights: Vec<Option<Sight>>,
    /// Whether all ranks came as far as the last step.
    ready: bool,
    arrangement: Arrangement,
    started: Instant,
}

impl<'c> Meeting<'c> {
    pub(super) fn arrange(
        ranks: &Ranks,
        case: &'c Case,
        series: Series,
    ) -> Result<Meeting<'c>, Outcome> {
        // Ranks of a pair are in the order of their GPUs, whichever direction leads.
        let gpus = reduced::gpus(case.subject);
        let two = ranks.of(case.subject);
        let mut two = two.map_err(|reason| Outcome::NotRun { reason })?;
        two.sort_by_key(|at| ranks.members.get(*at).map(|member| member.place));
        Ok(Meeting {
            cases: vec![case],
            mailboxes: two.iter().map(|_| None).collect(),
            sights: two.iter().map(|_| None).collect(),
            blocks: u64::MAX,
            ready: true,
            arrangement: reduced::arrangement(case),
            started: Instant::now(),
            ranks: two,
            series,
            gpus,
        })
    }

    fn place(&self, nth: usize) -> Place {
        Place {
            rank: nth as u32,
            ranks: self.ranks.len() as u32,
            // Two processes on one GPU take turns: they need not fit it at once.
            sharing: 1,
        }
    }

    /// One rank could not do its step: nobody goes on.
    fn give_up(&mut self, nth: usize, done: Done) {
        self.ready = false;
        let outcome = match done {
            Done::Failed(outcome) => outcome,
            _ => Outcome::NotRun {
                reason: "a rank answered another question than it was asked".to_string(),
            },
        };
        self.lose(nth, outcome);
    }

    fn lose(&mut self, nth: usize, outcome: Outcome) {
        if let Some(sight @ None) = self.sights.get_mut(nth) {
            *sight = Some(Sight::lost(nth as u32, outcome));
        }
    }

    /// What each rank saw; of those that were not begun, that.
    fn seen(&self) -> Vec<Sight> {
        let reason = "another rank of the all-reduce could not take part".to_string();
        let none = |nth: usize| {
            let reason = reason.clone();
            Sight::lost(nth as u32, Outcome::NotRun { reason })
        };
        let sights = self.sights.iter().enumerate();
        sights
            .map(|(nth, sight)| sight.clone().unwrap_or_else(|| none(nth)))
            .collect()
    }

    fn answers(&self) -> Vec<Answer> {
        let sights = self.seen();
        let ran = self.ran(&sights);
        let cases = self.cases.iter().enumerate();
        cases
            .map(|(nth, case)| ran.answer(case, nth == 0))
            .collect()
    }

    fn ran<'r>(&'r self, sights: &'r [Sight]) -> Ran<'r> {
        Ran {
            series: &self.series,
            gpus: &self.gpus,
            arrangement: self.arrangement,
            sights,
            started: self.started,
        }
    }

    /// The row for all ranks.
    fn row(&self) -> Reduction {
        self.ran(&self.seen()).row()
    }
}

/// Runs the all-reduces of disjoint pairs or groups side by side, as [`Ranks::run`] does.
pub(super) fn run(
    ranks: &mut Ranks,
    cases: &[&Case],
    (run, pass): (u32, u16),
    deadline: Instant,
) -> (BTreeMap<u32, Answer>, Option<String>) {
    let mut answers = BTreeMap::new();
    let mut meetings: Vec<Meeting> = Vec::new();
    for case in cases {
        let same = |m: &&mut Meeting| {
            m.cases
                .first()
                .is_some_and(|lead| reduced::is_same(lead, case))
        };
        if let Some(meeting) = meetings.iter_mut().find(same) {
            meeting.cases.push(case);
            continue;
        }
        let unknown = || Outcome::NotRun {
            reason: "no algorithm of this name".to_string(),
        };
        let series = reduced::series(case, run, pass).ok_or_else(unknown);
        match series.and_then(|series| Meeting::arrange(ranks, case, series)) {
            Ok(meeting) => meetings.push(meeting),
            Err(outcome) => {
                answers.insert(case.id, reduced::blank(case, outcome));
            }
        }
    }
    let lost = lead(ranks, &mut meetings, deadline);
    let mut ended = lost.as_ref().map(|lost| lost.why.clone());
    for meeting in &meetings {
        // Under way when a rank of another all-reduce was lost: no answer.
        if lost.is_some() && !meeting.is_over(lost.as_ref()) {
            continue;
        }
        for answer in meeting.answers() {
            if answer.retire {
                ended.get_or_insert_with(|| "retired after a fault".to_string());
            }
            answers.insert(answer.id, answer);
        }
    }
    (answers, ended)
}

/// Runs one series over the GPUs of `case`, whose own terms do not count.
pub(in crate::probe) fn one(
    ranks: &mut Ranks,
    case: &Case,
    series: Series,
    deadline: Instant,
) -> (Reduction, bool) {
    let row_of = |outcome: Outcome, series: &Series| {
        let gpus = reduced::gpus(case.subject);
        let sights: Vec<Sight> = (0..gpus.len() as u32)
            .map(|rank| Sight::lost(rank, outcome.clone()))
            .collect();
        reduction::conclude(series, &gpus, reduced::arrangement(case), &sights)
    };
    let meeting = Meeting::arrange(ranks, case, series.clone());
    let mut meetings = match meeting {
        Ok(meeting) => vec![meeting],
        Err(outcome) => return (row_of(outcome, &series), false),
    };
    let lost = lead(ranks, &mut meetings, deadline).is_some();
    match meetings.first() {
        Some(meeting) => {
            let retire = meeting.answers().iter().any(|answer| answer.retire);
            (meeting.row(), lost || retire)
        }
        None => (
            row_of(
                Outcome::NotRun {
                    reason: String::new(),
                },
                &series,
            ),
            lost,
        ),
    }
}

impl Meeting<'_> {
    /// Whether it can be answered although a rank was lost: that rank died in this all-reduce, or all was seen before.
    fn is_over(&self, lost: Option<&Lost>) -> bool {
        let own = lost.is_some_and(|lost| lost.died && self.ranks.contains(&lost.rank));
        own || self.sights.iter().all(Option::is_some)
    }
}

/// Takes all meetings through their steps. A rank that is lost is remembered in its meeting.
fn lead(ranks: &mut Ranks, meetings: &mut [Meeting], deadline: Instant) -> Option<Lost> {
    let mut errand = Errand { ranks, deadline };
    let lost = errand.all(meetings).err()?;
    for meeting in meetings.iter_mut() {
        let nth = meeting.ranks.iter().position(|rank| *rank == lost.rank);
        if let (Some(nth), true) = (nth, lost.died) {
            let how = match meeting.gpus.as_slice() {
                [_, _] => lost.why.clone(),
                gpus => {
                    let gpu = gpus.get(nth).copied().unwrap_or_default();
                    format!("rank {nth} on GPU{gpu}: {}", lost.why)
                }
            };
            meeting.lose(nth, Outcome::Died { how });
        }
    }
    Some(lost)
}

struct Errand<'r> {
    ranks: &'r mut Ranks,
    deadline: Instant,
}

/// What came of a job: of which meeting, of which rank.
type Came = (usize, usize, Done);

impl Errand<'_> {
    fn all(&mut self, meetings: &mut [Meeting]) -> Result<(), Lost> {
        let seat = self.step(meetings, |meeting, nth| {
            let ranks = meeting.ranks.len() as u32;
            Some(Task::Seat(Box::new(Seating {
                needs: meeting.series.needs(ranks),
                series: meeting.series.clone(),
                place: meeting.place(nth),
            })))
        })?;
        for (at, nth, done) in seat {
            let Some(meeting) = meetings.get_mut(at) else {
                continue;
            };
            match (done, meeting.mailboxes.get_mut(nth)) {
                (Done::Seated { mailbox, blocks }, Some(place)) => {
                    *place = Some(mailbox);
                    meeting.blocks = meeting.blocks.min(blocks);
                }
                (other, _) => meeting.give_up(nth, other),
            }
        }
        self.all_or_none(meetings, |meeting, nth| {
            let others = meeting.mailboxes.iter().enumerate();
            let others = others.map(|(at, mailbox)| mailbox.clone().filter(|_| at != nth));
            Task::Gather(others.collect())
        })?;
        self.all_or_none(meetings, |meeting, _| {
            let ranks = meeting.ranks.len() as u32;
            let wanted = meeting.series.shape(ranks).map_or(1, |shape| shape.blocks);
            let fit = u32::try_from(meeting.blocks).unwrap_or(u32::MAX).max(1);
            Task::Begin(match meeting.series.tuning.blocks {
                Some(by_hand) => by_hand,
                None => wanted.min(fit),
            })
        })?;
        for (at, nth, done) in self.reduce(meetings)? {
            let sight = meetings.get_mut(at).and_then(|m| m.sights.get_mut(nth));
            match (done, sight) {
                (Done::Saw(seen), Some(sight)) => *sight = Some(*seen),
                (other, _) => {
                    if let Some(meeting) = meetings.get_mut(at) {
                        meeting.give_up(nth, other);
                    }
                }
            }
        }
        self.step(meetings, |meeting, _| {
            (!meeting.ran(&meeting.seen()).retires()).then_some(Task::Close)
        })
        .map(|_| ())
    }

    /// The ranks run; when one dies, the others still answer: they wait for it in vain and end by their own clocks.
    fn reduce(&mut self, meetings: &mut [Meeting]) -> Result<Vec<Came>, Lost> {
        self.step(meetings, |meeting, _| meeting.ready.then_some(Task::Reduce))
    }

    /// A step that every rank of a meeting must do, or none goes on.
    fn all_or_none(
        &mut self,
        meetings: &mut [Meeting],
        task: impl Fn(&Meeting, usize) -> Task,
    ) -> Result<(), Lost> {
        let came = self.step(meetings, |meeting, nth| {
            meeting.ready.then(|| task(meeting, nth))
        })?;
        for (at, nth, done) in came {
            if let (Some(meeting), false) = (meetings.get_mut(at), matches!(done, Done::Done)) {
                meeting.give_up(nth, done);
            }
        }
        Ok(())
    }

    /// A task at each rank that has one.
    fn step(
        &mut self,
        meetings: &[Meeting],
        task: impl Fn(&Meeting, usize) -> Option<Task>,
    ) -> Result<Vec<Came>, Lost> {
        let (mut places, mut jobs) = (Vec::new(), Vec::new());
        for (at, meeting) in meetings.iter().enumerate() {
            let Some(case) = meeting.cases.first() else {
                continue;
            };
            for (nth, rank) in meeting.ranks.iter().enumerate() {
                let Some(task) = task(meeting, nth) else {
                    continue;
                };
                places.push((at, nth));
                jobs.push((
                    *rank,
                    Job {
                        case: (*case).clone(),
                        attempt: 0,
                        pass: 0,
                        task,
                    },
                ));
            }
        }
        let done = self.ranks.put(jobs, self.deadline)?;
        let came = places.into_iter().zip(done);
        Ok(came.map(|((at, nth), done)| (at, nth, done)).collect())
    }
}
