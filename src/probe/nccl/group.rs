//! The processes of one arm: started, joined into one communicator, asked row by row. Knows the protocol and deadlines; not which
//! rows or arms there are.

use super::{
    NCCL, place,
    wire::{Ask, Measure, Measured, Opened, Reply},
    worker::{NO_LIBRARY, SAMPLE_LIMIT},
};
use crate::probe::cut_short;
use crate::{
    child::{Child, ReceiveError},
    model::{case::Outcome, pci::PciAddress},
    probe::pool::{END_GRACE, OPEN_LIMIT},
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Variables set (`Some`) or removed (`None`) for a process.
pub(super) type Environment = Vec<(String, Option<String>)>;

/// Making a communicator: NCCL looks at the host, opens sockets and exchanges addresses.
const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// Bytes a second that filling and comparing takes on a slow host.
const JUDGED_PER_S: f64 = 2e8;

/// Why an arm ended early.
pub(super) enum Trouble {
    /// No library could be opened.
    NoLibrary(String),
    /// It cannot be run here.
    Cannot(String),
    /// NCCL or the driver answered an error, with the whole sentence.
    Faulted((String, u32, String), String),
    /// Nothing came in time.
    Hung(&'static str, Duration),
    /// A process ended.
    Died(String),
    /// The operator interrupted.
    Interrupted,
}

impl Trouble {
    /// As the outcome of the row at which it came, with notes.
    pub(super) fn outcome(self) -> (Outcome, Vec<String>) {
        match self {
            Trouble::NoLibrary(reason) | Trouble::Cannot(reason) => {
                (Outcome::NotRun { reason }, Vec::new())
            }
            Trouble::Faulted((api, code, name), message) => {
                (Outcome::Faulted { api, code, name }, vec![message])
            }
            Trouble::Hung(what, limit) => (
                Outcome::TimedOut {
                    after_ms: limit.as_millis() as u64,
                },
                vec![what.to_string()],
            ),
            Trouble::Died(how) => (Outcome::Died { how }, Vec::new()),
            Trouble::Interrupted => (
                Outcome::NotRun {
                    reason: cut_short::why().to_string(),
                },
                Vec::new(),
            ),
        }
    }

    fn of(error: ReceiveError, what: &'static str, limit: Duration) -> Trouble {
        match error {
            ReceiveError::TimedOut => Trouble::Hung(what, limit),
            ReceiveError::Interrupted => Trouble::Interrupted,
            ReceiveError::Ended(how) => Trouble::Died(how),
            ReceiveError::Garbled(text) => {
                Trouble::Cannot(format!("a worker was not understood: {text}"))
            }
        }
    }
}

/// The processes of one arm, joined. Dropping it kills them.
pub(super) struct Group {
    children: Vec<Child>,
    /// What they opened; the least memory of all.
    pub(super) opened: Opened,
}

impl Group {
    /// Starts one process for each of `processes`: the ranks that it holds, and its environment.
    pub(super) fn start(
        (gpus, library): (&[(u32, PciAddress)], Option<&Path>),
        processes: &[(Vec<u32>, Environment)],
    ) -> Result<Group, Trouble> {
        let candidates = place::candidates(library);
        let looked = place::looked(&candidates);
        let candidates: Vec<String> = candidates
            .into_iter()
            .filter_map(|path| path.into_string().ok())
            .collect();
        let mut children = Vec::new();
        for (mine, environment) in processes {
            let mut child = Child::spawn(&[NCCL.to_string()], environment)
                .map_err(|error| Trouble::Cannot(error.to_string()))?;
            let open = Ask::Open {
                candidates: candidates.clone(),
                gpus: gpus.to_vec(),
                mine: mine.clone(),
            };
            child
                .send(&open)
                .map_err(|error| Trouble::of(error, "", OPEN_LIMIT))?;
            children.push(child);
        }
        let mut opened: Option<Opened> = None;
        for child in &mut children {
            let own = match receive(child, "a worker did not open its GPUs", OPEN_LIMIT)? {
                Reply::Opened(own) => own,
                Reply::Failed { message } if message.starts_with(NO_LIBRARY) => {
                    return Err(Trouble::NoLibrary(format!(
                        "{message}; looked for {looked} (--nccl PATH names one)"
                    )));
                }
                other => return Err(unexpected(other)),
            };
            opened = Some(match opened {
                None => own,
                Some(first) => Opened {
                    free_bytes: first.free_bytes.min(own.free_bytes),
                    ..first
                },
            });
        }
        let opened = opened.ok_or_else(|| Trouble::Cannot("no process was started".to_string()))?;
        let limit = JOIN_LIMIT * opened.deadline_factor;
        let what = "the communicator was not made in time";
        let id = match children.first_mut() {
            Some(first) => {
                send(first, &Ask::Id, limit)?;
                match receive(first, what, limit)? {
                    Reply::Id(id) => id,
                    other => return Err(unexpected(other)),
                }
            }
            None => return Err(Trouble::Cannot("no process was started".to_string())),
        };
        for child in &mut children {
            send(child, &Ask::Join { id: id.clone() }, limit)?;
        }
        let deadline = Instant::now() + limit;
        for child in &mut children {
            match child.receive(deadline) {
                Ok(Reply::Joined) => {}
                Ok(other) => return Err(unexpected(other)),
                Err(error) => return Err(Trouble::of(error, what, limit)),
            }
        }
        Ok(Group { children, opened })
    }

    /// One row on all processes.
    pub(super) fn measure(&mut self, ask: &Measure, world: usize) -> Result<Measured, Trouble> {
        let factor = self.opened.deadline_factor;
        let samples = u64::from(ask.samples + ask.warmup + 1);
        let judged = (ask.bytes * u64::from(ask.calls) * samples) as f64 * world as f64;
        // A worker gives a hung sample up by itself; this limit is for one that is stuck inside a call.
        let limit = SAMPLE_LIMIT * factor * 2
            + (Duration::from_secs(20) + Duration::from_secs_f64(judged / JUDGED_PER_S)) * factor;
        for child in &mut self.children {
            send(child, &Ask::Measure(*ask), limit)?;
        }
        let deadline = Instant::now() + limit;
        let mut all = Vec::new();
        for child in &mut self.children {
            match child.receive(deadline) {
                Ok(Reply::Measured(measured)) => all.push(measured),
                Ok(other) => return Err(unexpected(other)),
                Err(error) => {
                    return Err(Trouble::of(error, "a worker is stuck inside a call", limit));
                }
            }
        }
        joined(all).ok_or_else(|| Trouble::Cannot("no process answered".to_string()))
    }

    /// Closes them all at once: NCCL's end waits for the other ranks'.
    pub(super) fn end(self) {
        Child::end_all(self.children, END_GRACE);
    }
}

/// What several processes say of one row: the worst outcome, and of each sample the shortest time.
fn joined(all: Vec<Measured>) -> Option<Measured> {
    let weight = |outcome: &Outcome| match outcome {
        Outcome::Corrupt(_) => 3,
        Outcome::Faulted { .. } => 2,
        Outcome::Intact => 0,
        _ => 1,
    };
    all.into_iter().reduce(|a, b| {
        let samples = a.samples_us.iter().zip(&b.samples_us);
        let samples_us = samples.map(|(a, b)| a.min(*b)).collect();
        let mut notes = a.notes;
        notes.extend(
            b.notes
                .into_iter()
                .filter(|note| !notes.contains(note))
                .collect::<Vec<_>>(),
        );
        Measured {
            samples_us,
            calls: a.calls.min(b.calls),
            retire: a.retire || b.retire,
            notes,
            outcome: match weight(&b.outcome) > weight(&a.outcome) {
                true => b.outcome,
                false => a.outcome,
            },
        }
    })
}

fn send(child: &mut Child, ask: &Ask, limit: Duration) -> Result<(), Trouble> {
    child
        .send(ask)
        .map_err(|error| Trouble::of(error, "", limit))
}

fn receive(child: &mut Child, what: &'static str, limit: Duration) -> Result<Reply, Trouble> {
    child
        .receive(Instant::now() + limit)
        .map_err(|error| Trouble::of(error, what, limit))
}

fn unexpected(reply: Reply) -> Trouble {
    match reply {
        Reply::Failed { message } => Trouble::Cannot(message),
        Reply::Refused { told, message } => Trouble::Faulted(told, message),
        other => Trouble::Cannot(format!("a worker answered out of turn: {other:?}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn processes_join_by_the_worst_outcome_and_the_shortest_times() {
        let one = |outcome, samples_us: &[f64], calls| Measured {
            outcome,
            samples_us: samples_us.to_vec(),
            calls,
            retire: false,
            notes: vec!["a".to_string()],
        };
        let hung = Outcome::TimedOut { after_ms: 1 };
        let all = joined(vec![
            one(Outcome::Intact, &[3.0, 9.0], 40),
            one(hung.clone(), &[5.0, 8.0], 20),
        ])
        .unwrap();
        assert_eq!(all.outcome, hung);
        assert_eq!((all.samples_us, all.calls), (vec![3.0, 8.0], 20));
        assert_eq!(all.notes, ["a"]);
        assert!(joined(Vec::new()).is_none());
    }
}
