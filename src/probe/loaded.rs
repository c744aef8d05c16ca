//! Rung 7: the copies and accesses of lower rungs while others run. Every flow has streams, buffers and result memory of
//! its own, repeats with fresh words, and is judged by the owner while the other flows go on. Knows flows; what a transfer
//! is and how it is judged is `transfer`'s.

use super::{
    seat::Seat,
    transfer::{self, Setting},
    wire::{Answer, Layout},
};
use crate::model::{
    case::{Case, Outcome},
    pair::OrderedPair,
};
use std::{
    collections::BTreeMap,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Mechanisms that run under load, by id.
pub const MECHANISMS: [&str; 5] = ["staged", "ce-push", "ce-pull", "sm-load", "sm-store"];
/// Transfers of one attempt, back to back: the link is busy, and a rate can be taken.
pub const BURST: u32 = 4;
/// A flow that is done goes on for the others' sake, but not for ever. Below the 255 that words can tell apart.
const MOST_ATTEMPTS: u32 = 200;
/// Guard band around a flow's target.
const GUARD: u64 = 4096;

/// Longest wait for the other flows, times the factor on deadlines. One that hangs must not hold the others up for long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Where flows wait for each other, so that their bursts fall together whatever the host's threads do.
struct Meeting {
    patience: Duration,
    /// Flows that still come, how many wait, how often all have met, and whether one failed to come: then nobody waits any more.
    state: Mutex<(usize, usize, u64, bool)>,
    met: Condvar,
}

impl Meeting {
    fn of(flows: usize, factor: u32) -> Meeting {
        Meeting {
            patience: PATIENCE * factor,
            state: Mutex::new((flows, 0, 0, false)),
            met: Condvar::new(),
        }
    }

    /// Waits until all flows that still come are here.
    fn meet(&self) {
        let until = Instant::now() + self.patience;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        let round = state.2;
        self.release(&mut state);
        while state.2 == round && !state.3 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.3 = true;
                self.met.notify_all();
                return;
            }
            let waited = self.met.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// One flow comes no more.
    fn leave(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 -= 1;
        self.release(&mut state);
    }

    fn release(&self, state: &mut (usize, usize, u64, bool)) {
        if state.1 > 0 && state.1 >= state.0 {
            state.1 = 0;
            state.2 += 1;
            self.met.notify_all();
        }
    }
}

/// The seats of all flows that a worker has carried so far: the source's and the destination's of each.
#[derive(Default)]
pub struct Flows(BTreeMap<OrderedPair, [Seat; 2]>);

impl Flows {
    /// Makes the seats of a case's flow if they are not there, or are of another size.
    fn open(&mut self, setting: &Setting, case: &Case) -> Result<(), Outcome> {
        let not_run = |reason: String| Outcome::NotRun { reason };
        let pair = case
            .subject
            .pair()
            .ok_or_else(|| not_run("not a pair case".into()))?;
        let known = self.0.get(&pair).and_then(|seats| seats.first());
        if known.is_some_and(|seat| seat.span() == case.bytes) {
            return Ok(());
        }
        let layout = Layout {
            span: case.bytes,
            guard: GUARD,
            pinned: GUARD,
        };
        let beside = |gpu: u32| {
            let whole = setting.seats.iter().find(|seat| seat.gpu == gpu);
            let whole = whole.ok_or_else(|| {
                not_run("a GPU of the pair is not open in this worker".to_string())
            })?;
            whole
                .beside(layout)
                .map_err(|error| not_run(format!("a flow of its own cannot be set up: {error}")))
        };
        let seats = [beside(pair.source.0)?, beside(pair.destination.0)?];
        self.0.insert(pair, seats);
        Ok(())
    }
}

/// Bytes of device memory that a GPU needs for its end of one flow of `bytes` bytes.
pub fn device_bytes(bytes: u64) -> u64 {
    3 * bytes + 3 * GUARD
}

/// Runs all flows at once and answers each. Every one makes its attempts, and goes on until the last one has made its own,
/// so that each judgement falls into the load.
pub fn run(setting: &Setting, flows: &mut Flows, cases: &[&Case], emit: &(impl Fn(Answer) + Sync)) {
    let opened: Vec<(&Case, Result<(), Outcome>)> = cases
        .iter()
        .map(|case| (*case, flows.open(setting, case)))
        .collect();
    let ready: Vec<(&Case, &[Seat; 2])> = opened
        .iter()
        .filter(|(_, opened)| opened.is_ok())
        .filter_map(|(case, _)| Some((*case, flows.0.get(&case.subject.pair()?)?)))
        .collect();
    let words = |case: &Case| {
        let load = case.load.map_or("nothing else", |load| load.words());
        format!(
            "events on the flow's own stream; under load: {load}, {} flows, bursts of {BURST}",
            ready.len()
        )
    };
    let meeting = Meeting::of(ready.len(), setting.factor);
    let unfinished = AtomicUsize::new(ready.len());
    std::thread::scope(|scope| {
        for (case, seats) in &ready {
            let (meeting, unfinished, words) = (&meeting, &unfinished, &words);
            scope.spawn(move || {
                let own = Setting {
                    seats: seats.as_slice(),
                    run: setting.run,
                    generation: setting.generation,
                    factor: setting.factor,
                    peer_access: setting.peer_access,
                    search: false,
                };
                let mut counted = false;
                let more = |ran, ended| {
                    if !counted && (ended || ran >= case.attempts) {
                        counted = true;
                        unfinished.fetch_sub(1, Ordering::SeqCst);
                    }
                    !ended && ran < MOST_ATTEMPTS && unfinished.load(Ordering::SeqCst) > 0
                };
                let answer = transfer::flow(&own, case, &words(case), &|| meeting.meet(), more);
                meeting.leave();
                emit(answer);
            });
        }
    });
    for (case, outcome) in opened {
        if let Err(outcome) = outcome {
            emit(transfer::unopened(case, outcome, setting.peer_access));
        }
    }
}
