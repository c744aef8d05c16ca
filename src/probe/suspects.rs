//! Second looks: whatever looked wrong in company runs again alone, in workers that have not seen a fault, before anybody is
//! blamed. Knows suspects and culprits; never which cases come next.

use super::{
    cut_short,
    mechanism::{self, Place},
    pool::{Look, Staff},
    supervisor::Supervisor,
    wire::Answer,
};
use crate::{
    child::ReceiveError,
    ffi::process,
    model::{
        case::{Case, ONLY_TOGETHER, Outcome, PeerAccess, Subject, WrongKind},
        pair::GpuIndex,
        snapshot::Observation,
    },
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

impl Supervisor<'_, '_> {
    /// After a hang: a GPU that stays busy with no process, or that NVML no longer answers for, is wedged, and later results
    /// on it are worthless.
    pub(super) fn look_for_wedge(&mut self, case: &Case) {
        let touched: Vec<u32> = self
            .plan
            .gpus
            .iter()
            .copied()
            .filter(|gpu| case.subject.touches(GpuIndex(*gpu)))
            .filter(|gpu| !self.pool.quarantined.contains(gpu))
            .collect();
        if touched.is_empty() {
            return;
        }
        let answered = |observation: &Observation, gpu: u32| {
            let gpu = observation.gpus.get(gpu as usize);
            gpu.is_some_and(|g| g.utilization_percent.known().is_some())
        };
        let before = self.results.observations.first();
        let answered_before: BTreeSet<u32> = touched
            .iter()
            .copied()
            .filter(|gpu| before.is_some_and(|before| answered(before, *gpu)))
            .collect();
        let busy = |observation: &Observation, gpu: u32| {
            let seen = observation.gpus.get(gpu as usize);
            let busy = seen.is_some_and(|g| {
                g.utilization_percent.known().is_some_and(|u| *u >= 95)
                    && g.foreign_processes.known().is_some_and(Vec::is_empty)
            });
            busy || answered_before.contains(&gpu) && !answered(observation, gpu)
        };
        let mut seen: Option<BTreeSet<u32>> = None;
        let mut last = None;
        for _ in 0..3 {
            // NVML's utilisation covers up to the last second.
            std::thread::sleep(Duration::from_millis(600));
            let Some(observation) = (self.hooks.observe)("after a hang", &self.pool.pids) else {
                // It answered before the hang and does not now: as bad a sign as any.
                if !process::interrupted() {
                    self.pool.quarantined.extend(answered_before);
                }
                return;
            };
            last = Some(observation.clone());
            let touched = touched.iter().copied();
            let now: BTreeSet<u32> = touched.filter(|gpu| busy(&observation, *gpu)).collect();
            seen = Some(seen.map_or(now.clone(), |seen| {
                seen.intersection(&now).copied().collect()
            }));
            if seen.as_ref().is_none_or(BTreeSet::is_empty) {
                return;
            }
        }
        self.pool.quarantined.extend(seen.unwrap_or_default());
        // What the quarantine stands on.
        if let Some(observation) = last {
            self.keep(observation);
        }
    }

    /// Runs suspects again, each alone, in a worker that has not seen a fault.
    pub(super) fn rerun(
        &mut self,
        suspects: Vec<(Case, Option<Answer>)>,
        ended: Option<&str>,
        place: Place,
        alone_already: bool,
    ) {
        let mut finished: Vec<(Case, Option<Answer>, Answer)> = Vec::new();
        let killed = ended.is_some_and(|how| how.starts_with("signal 9 "));
        for (case, shared) in suspects {
            // Neither driver nor kernel send this for what a GPU did: a process killed by it has answered nothing.
            let shared = shared.filter(|answer| {
                let nothing = matches!(
                    answer.outcome,
                    Outcome::Died { .. } | Outcome::NotRun { .. }
                );
                !(killed && nothing)
            });
            let key = (case.subject, case.mechanism.clone());
            let confirmed = self.wrong.get(&key).copied();
            // Where lost words went is seen only alone.
            if let (Some(kind), Some(answer)) = (confirmed, &shared)
                && let Some(corruption) = answer.outcome.corruption()
                && (kind, corruption.kind) != (WrongKind::Misrouted, WrongKind::Dropped)
            {
                let mut answer = answer.clone();
                answer
                    .notes
                    .push("this pair and mechanism were already confirmed wrong alone".to_string());
                let record = self.record(case, answer.outcome.clone(), Some(answer));
                self.push(record);
                continue;
            }
            if let (true, Some(answer)) = (alone_already, shared.clone())
                && (!is_dropped(&answer) || self.plan.gpus.len() < 3)
            {
                self.remember(&case, &answer);
                finished.push((case, None, answer));
                continue;
            }
            if let Some(outcome) = self.settled(&case, place) {
                let record = match shared.filter(|answer| self.stands(&case, answer)) {
                    Some(mut answer) => {
                        if let Outcome::NotRun { reason } = &outcome {
                            let note = format!("not looked at again alone: {reason}");
                            answer.notes.push(note);
                        }
                        let mut record = self.record(case, answer.outcome.clone(), Some(answer));
                        record.alone = false;
                        record
                    }
                    None => self.record(case, outcome, None),
                };
                self.push(record);
                continue;
            }
            let mut worker = match self.alone.remove(&place) {
                Some(ready) => Some(ready),
                None => match self.pool.open(place) {
                    Ok(ready) => Some(ready),
                    Err(why) => {
                        let first = match (&shared, ended) {
                            (Some(answer), _) => answer.outcome.word(),
                            (None, how) => how.unwrap_or("no answer"),
                        };
                        let why = format!(
                            "no worker could start for a second look: {why} (the first, with other pairs: {first})"
                        );
                        match shared.filter(|answer| self.stands(&case, answer)) {
                            Some(mut answer) => {
                                answer.notes.push(why);
                                let outcome = answer.outcome.clone();
                                let mut record = self.record(case, outcome, Some(answer));
                                record.alone = false;
                                self.push(record);
                            }
                            None => self.not_run(case, &why),
                        }
                        continue;
                    }
                },
            };
            let started = Instant::now();
            let (mut answers, gone) =
                self.ask(&mut worker, std::slice::from_ref(&case), Look::default());
            let dropped = answers.get(&case.id).is_some_and(is_dropped);
            if dropped && self.plan.gpus.len() > 2 {
                let (searched, _) = self.ask(
                    &mut worker,
                    std::slice::from_ref(&case),
                    Look {
                        search: true,
                        pass: 0,
                    },
                );
                let found = |answer: &Answer| answer.outcome.corruption().is_some();
                answers.extend(searched.into_iter().filter(|(_, answer)| found(answer)));
            }
            if let Some(ready) = worker {
                self.alone.insert(place, ready);
            }
            let answer = answers.remove(&case.id).unwrap_or_else(|| {
                let took = started.elapsed();
                let how = gone.clone().unwrap_or_default();
                let outcome = if process::interrupted() {
                    Outcome::NotRun {
                        reason: cut_short::why_unanswered(took),
                    }
                } else if how == ReceiveError::TimedOut.to_string() {
                    Outcome::TimedOut {
                        after_ms: took.as_millis() as u64,
                    }
                } else {
                    Outcome::Died { how }
                };
                unanswered(&case, outcome, took)
            });
            self.remember(&case, &answer);
            finished.push((case, shared, answer));
        }
        let culprits: Vec<Case> = finished
            .iter()
            .filter(|(_, _, alone)| alone.outcome.is_failure())
            .map(|(case, _, _)| case.clone())
            .collect();
        let astray = finished.iter().any(|(_, _, alone)| {
            let found = alone.outcome.corruption();
            found.is_some_and(|corruption| corruption.kind == WrongKind::Misrouted)
        });
        for (case, shared, mut alone) in finished {
            let neighbour = culprits.iter().any(|c| {
                c.id != case.id
                    && self.plan.gpus.iter().any(|g| {
                        c.subject.touches(GpuIndex(*g)) && case.subject.touches(GpuIndex(*g))
                    })
            });
            let mut is_alone = true;
            let wrong = |answer: &Answer| answer.outcome.corruption().is_some();
            if let Some(mut seen) = shared.clone().filter(wrong)
                && !alone.outcome.is_intact()
                && !wrong(&alone)
            {
                // Wrong data seen once outranks whatever comes later.
                let later = alone.outcome.word();
                seen.notes.append(&mut alone.notes);
                seen.notes.push(format!(
                    "wrong together with other pairs; run again alone: {later}"
                ));
                alone = seen;
                is_alone = false;
            } else if alone.outcome.is_intact() {
                match shared {
                    Some(shared) if astray && shared.outcome.corruption().is_some() => {
                        alone.notes.push(
                            "intact when run alone: words of a neighbour's misrouted transfer lay in its buffer"
                                .to_string(),
                        );
                    }
                    // Wrong only together with others stays wrong. A fault or hang may be a neighbour's.
                    Some(shared)
                        if shared.outcome.corruption().is_some()
                            || shared.outcome.is_failure() && !neighbour =>
                    {
                        alone = shared;
                        alone.notes.push(ONLY_TOGETHER.to_string());
                        is_alone = false;
                    }
                    // The operator or a memory limit has killed it. What ran again alone is whole.
                    None if killed => {
                        alone.notes.push(
                            "run alone, after its worker was killed from outside (SIGKILL)"
                                .to_string(),
                        );
                    }
                    None if !alone_already && culprits.is_empty() => {
                        let how = ended.unwrap_or("no answer").to_string();
                        alone.outcome = Outcome::Died { how };
                        alone.notes.push(
                            "intact when run alone: the worker was lost while pairs ran side by side".to_string(),
                        );
                        is_alone = false;
                    }
                    _ => {}
                }
            }
            let mut record = self.record(case, alone.outcome.clone(), Some(alone));
            record.alone = is_alone;
            self.push(record);
        }
    }

    /// Whether an answer that was given in company counts where no second look is taken: wrong data does, and a hang whose GPUs are
    /// out of reach since. A fault or a death may be a neighbour's.
    fn stands(&self, case: &Case, answer: &Answer) -> bool {
        let mut out_of_reach = self.pool.quarantined.iter();
        match answer.outcome {
            Outcome::Corrupt(_) => true,
            Outcome::TimedOut { .. } => {
                out_of_reach.any(|gpu| case.subject.touches(GpuIndex(*gpu)))
            }
            _ => false,
        }
    }

    /// Keeps what an answer given alone means for later cases of its pair and mechanism.
    pub(super) fn remember(&mut self, case: &Case, answer: &Answer) {
        match case.subject {
            Subject::Pair(_) | Subject::Group(_) => {}
            // A GPU that hangs or dies alone is the finding: its pairs are not tried, and not blamed.
            Subject::Gpu(gpu) => {
                if matches!(
                    answer.outcome,
                    Outcome::TimedOut { .. } | Outcome::Died { .. }
                ) {
                    self.pool.quarantined.insert(gpu.0);
                }
                return;
            }
        }
        let key = (case.subject, case.mechanism.clone());
        match &answer.outcome {
            Outcome::Corrupt(found) => {
                self.wrong.insert(key, found.kind);
            }
            Outcome::TimedOut { .. } => {
                self.stopped.insert(key);
                // Our own idle workers go first: a GPU that is busy then is so with no process.
                let idle = std::mem::take(&mut self.alone);
                idle.into_values().for_each(Staff::end);
                self.look_for_wedge(case);
            }
            Outcome::Faulted { .. } | Outcome::Died { .. } | Outcome::Never { .. } => {
                self.stopped.insert(key);
            }
            _ => {}
        }
    }
}

/// Whether nothing arrived: perhaps it arrived elsewhere.
fn is_dropped(answer: &Answer) -> bool {
    let found = answer.outcome.corruption();
    found.is_some_and(|corruption| corruption.kind == WrongKind::Dropped)
}

pub(super) fn unanswered(case: &Case, outcome: Outcome, took: Duration) -> Answer {
    let executor = case
        .subject
        .pair()
        .and_then(|pair| mechanism::by_id(&case.mechanism).map(|m| m.executor(pair)))
        .unwrap_or_default();
    Answer {
        id: case.id,
        outcome,
        peer_access: PeerAccess::NotApplicable,
        executor,
        attempts_ran: 0,
        rate: None,
        took_ms: took.as_secs_f64() * 1e3,
        notes: Vec::new(),
        retire: true,
        reductions: Vec::new(),
    }
}
