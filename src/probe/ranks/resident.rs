//! Leads exchanges between processes: each side exports its mailbox and opens the other's, both are reset before either
//! starts, both are waited for, and each judges what it received. No word in memory is shared but payload and flags: a side
//! that is let down ends by its own clock.

use super::{Lost, Ranks};
use crate::{
    model::case::{Case, Corruption, Outcome, Subject},
    probe::{
        mechanism::Memory,
        resident::{self, State},
        wire::{Answer, Done, Job, Shared, Task},
    },
};
use std::{collections::BTreeMap, time::Instant};

/// Two ranks of one exchange, and how far each came.
struct Meeting<'c> {
    /// The first leads; the other is the other direction, if it was asked for.
    cases: Vec<&'c Case>,
    /// Places in the list of ranks: those of the leading case's source and destination.
    ranks: [usize; 2],
    /// How each side ended; `None`: not yet, or it was never begun because of the other.
    states: [Option<State>; 2],
    /// What each side found wrong with what it received.
    found: [Result<Option<Corruption>, Outcome>; 2],
    /// Whether both sides have opened the other's memory and could be reset.
    ready: bool,
    started: Instant,
}

impl<'c> Meeting<'c> {
    fn arrange(ranks: &Ranks, case: &'c Case) -> Result<Meeting<'c>, Outcome> {
        let both = ranks.two(case.subject);
        Ok(Meeting {
            cases: vec![case],
            ranks: both.map_err(|reason| Outcome::NotRun { reason })?,
            states: [None, None],
            found: [Ok(None), Ok(None)],
            ready: true,
            started: Instant::now(),
        })
    }

    fn lead(&self) -> Option<&'c Case> {
        self.cases.first().copied()
    }

    /// Whether this case is of the same two GPUs.
    fn is_of(&self, case: &Case) -> bool {
        match (self.lead().map(|lead| lead.subject), case.subject) {
            (Some(Subject::Pair(one)), Subject::Pair(other)) => one.reversed() == other,
            _ => false,
        }
    }

    fn fail(&mut self, side: usize, outcome: Outcome) {
        if let Some(state @ None) = self.states.get_mut(side) {
            *state = Some(State::Failed(outcome));
        }
    }

    /// Of a step before the launch: one side that cannot, and neither goes on.
    fn give_up(&mut self, side: usize, done: Done) {
        self.ready = false;
        self.fail(side, unexpected(done));
    }

    /// Whether the ranks are not to be used again: all but a plain no leaves a kernel or a context behind.
    fn retires(&self) -> bool {
        self.states.iter().flatten().any(|state| match state {
            State::Ended(_) => false,
            State::Hung(_) => true,
            State::Failed(outcome) => !matches!(
                outcome,
                Outcome::Refused { .. } | Outcome::NotApplicable { .. }
            ),
        })
    }

    fn answer(&self, case: &Case) -> Answer {
        let rounds = case.attempts;
        let without = State::Failed(resident::not_run(
            "the other process of the exchange could not take part",
        ));
        let [first, second] = self
            .states
            .each_ref()
            .map(|state| state.as_ref().unwrap_or(&without));
        let [at_first, at_second] = &self.found;
        let there = || resident::conclude((first, second), at_second.clone(), rounds);
        let back = || resident::conclude((second, first), at_first.clone(), rounds);
        let (outcome, ran, _) = match (case.subject, self.lead()) {
            (Subject::Gpu(_), _) => resident::worse(there(), back()),
            (subject, Some(lead)) if subject == lead.subject => there(),
            _ => back(),
        };
        Answer {
            attempts_ran: ran,
            took_ms: self.started.elapsed().as_secs_f64() * 1e3,
            retire: self.retires(),
            ..blank(case, outcome)
        }
    }
}

fn blank(case: &Case, outcome: Outcome) -> Answer {
    Answer {
        id: case.id,
        outcome,
        peer_access: Memory::Ipc.peer_access(false),
        executor: resident::executor(case.subject),
        attempts_ran: 0,
        rate: None,
        took_ms: 0.0,
        notes: Vec::new(),
        retire: false,
        reductions: Vec::new(),
    }
}

fn unexpected(done: Done) -> Outcome {
    match done {
        Done::Failed(outcome) => outcome,
        _ => resident::not_run("a rank answered another question than it was asked"),
    }
}

/// Runs the exchanges of disjoint pairs side by side, as [`Ranks::run`] does.
pub(super) fn run(
    ranks: &mut Ranks,
    cases: &[&Case],
    pass: u16,
    deadline: Instant,
) -> (BTreeMap<u32, Answer>, Option<String>) {
    let mut answers = BTreeMap::new();
    let mut meetings: Vec<Meeting> = Vec::new();
    for case in cases {
        if let Some(meeting) = meetings.iter_mut().find(|meeting| meeting.is_of(case)) {
            meeting.cases.push(case);
            continue;
        }
        match Meeting::arrange(ranks, case) {
            Ok(meeting) => meetings.push(meeting),
            Err(outcome) => {
                answers.insert(case.id, blank(case, outcome));
            }
        }
    }
    let mut errand = Errand {
        ranks,
        pass,
        deadline,
    };
    let lost = errand.all(&mut meetings).err();
    let died = |meeting: &mut Meeting| {
        let Some(lost) = &lost else { return true };
        let mut any = false;
        for (side, rank) in meeting.ranks.into_iter().enumerate() {
            if let Some(how) = lost.death_of(rank) {
                let how = how.to_string();
                meeting.fail(side, Outcome::Died { how });
                any = true;
            }
        }
        // Otherwise under way when a rank was lost: no answer.
        any
    };
    let mut ended = lost.as_ref().map(|lost| lost.why.clone());
    for mut meeting in meetings {
        if !died(&mut meeting) {
            continue;
        }
        if meeting.retires() {
            ended.get_or_insert_with(|| "retired after a fault".to_string());
        }
        for case in &meeting.cases {
            answers.insert(case.id, meeting.answer(case));
        }
    }
    (answers, ended)
}

struct Errand<'r> {
    ranks: &'r mut Ranks,
    pass: u16,
    deadline: Instant,
}

/// What came of a job: of which meeting, of which side.
type Came = (usize, usize, Done);

impl Errand<'_> {
    fn all(&mut self, meetings: &mut [Meeting]) -> Result<(), Lost> {
        self.open(meetings)?;
        let reset = self.step(meetings, |meeting, _| meeting.ready.then_some(Task::Reset))?;
        for (at, side, done) in reset {
            if let (Some(meeting), false) = (meetings.get_mut(at), matches!(done, Done::Done)) {
                meeting.give_up(side, done);
            }
        }
        let start = self.step(meetings, |meeting, _| meeting.ready.then_some(Task::Start))?;
        for (at, side, done) in start {
            if let (Some(meeting), false) = (meetings.get_mut(at), matches!(done, Done::Done)) {
                // The other kernel may run by now: it is waited for.
                meeting.fail(side, unexpected(done));
            }
        }
        let wait = self.step(meetings, |meeting, side| {
            let going = meeting.states.get(side).is_some_and(Option::is_none);
            (meeting.ready && going).then_some(Task::Await)
        })?;
        for (at, side, done) in wait {
            let Some(meeting) = meetings.get_mut(at) else {
                continue;
            };
            match (done, meeting.states.get_mut(side)) {
                (Done::Exchanged(ended), Some(state)) => *state = Some(ended),
                (other, _) => meeting.fail(side, unexpected(other)),
            }
        }
        let judge = self.step(meetings, |meeting, side| {
            let ended = matches!(meeting.states.get(side), Some(Some(State::Ended(_))));
            ended.then_some(Task::Judge)
        })?;
        for (at, side, done) in judge {
            let found = meetings.get_mut(at).and_then(|m| m.found.get_mut(side));
            let Some(found) = found else { continue };
            *found = match done {
                Done::Right => Ok(None),
                Done::Concluded(corruption) => Ok(Some(*corruption)),
                other => Err(unexpected(other)),
            };
        }
        self.step(meetings, |meeting, _| {
            (!meeting.retires()).then_some(Task::Close)
        })
        .map(|_| ())
    }

    /// Each side exports what the other one opens.
    fn open(&mut self, meetings: &mut [Meeting]) -> Result<(), Lost> {
        let mut shared: BTreeMap<(usize, usize), Shared> = BTreeMap::new();
        for (at, side, done) in self.step(meetings, |_, _| Some(Task::Export))? {
            match (done, meetings.get_mut(at)) {
                (Done::Exported(memory), _) => {
                    shared.insert((at, 1 - side), memory);
                }
                (other, Some(meeting)) => meeting.give_up(side, other),
                (_, None) => {}
            }
        }
        let mut import = Vec::new();
        for ((at, side), memory) in shared {
            if meetings.get(at).is_some_and(|meeting| meeting.ready) {
                import.push((at, side, Task::Import(memory)));
            }
        }
        for (at, side, done) in self.put(meetings, import)? {
            if let (Some(meeting), false) = (meetings.get_mut(at), matches!(done, Done::Done)) {
                meeting.give_up(side, done);
            }
        }
        Ok(())
    }

    /// A task at each side that has one.
    fn step(
        &mut self,
        meetings: &[Meeting],
        task: impl Fn(&Meeting, usize) -> Option<Task>,
    ) -> Result<Vec<Came>, Lost> {
        let mut put = Vec::new();
        for (at, meeting) in meetings.iter().enumerate() {
            put.extend([0, 1].into_iter().filter_map(|side| {
                let task = task(meeting, side)?;
                Some((at, side, task))
            }));
        }
        self.put(meetings, put)
    }

    fn put(
        &mut self,
        meetings: &[Meeting],
        tasks: Vec<(usize, usize, Task)>,
    ) -> Result<Vec<Came>, Lost> {
        let mut places = Vec::new();
        let mut jobs = Vec::new();
        for (at, side, task) in tasks {
            let Some(meeting) = meetings.get(at) else {
                continue;
            };
            let (Some(case), Some(rank)) = (meeting.lead(), meeting.ranks.get(side)) else {
                continue;
            };
            places.push((at, side));
            jobs.push((
                *rank,
                Job {
                    case: case.clone(),
                    attempt: 0,
                    pass: self.pass,
                    task,
                },
            ));
        }
        let done = self.ranks.put(jobs, self.deadline)?;
        let came = places.into_iter().zip(done);
        Ok(came.map(|((at, side), done)| (at, side, done)).collect())
    }
}
