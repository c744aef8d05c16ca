//! The run: hands out cases to workers, keeps deadlines, and runs again alone whatever looked wrong in
//! company. Knows processes and records; never touches CUDA, never names a cause.

use super::{
    alone,
    claims::Claims,
    mechanism::{self, Side},
    plan::{Plan, Round},
    pool::{Pool, Ready, environment_words},
    wire::{Answer, Reply, Request},
};
use crate::{
    child::ReceiveError,
    ffi::process,
    model::{
        case::{Case, Outcome, PeerAccess, Record, Subject, WrongKind},
        pair::{GpuIndex, OrderedPair},
        report::Selftest,
        snapshot::{Authenticity, Observation, Snapshot},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Wall time of the load under which links are observed.
const LOAD: Duration = Duration::from_millis(150);

/// What the supervisor needs from its caller.
pub struct Hooks<'a> {
    /// Called for each record as it comes: journal, progress.
    pub record: &'a mut dyn FnMut(&Record),
    /// Called when a phase begins: name, cases in it.
    pub phase: &'a mut dyn FnMut(&str, usize),
    /// Asks the observer, if there is one.
    /// It is told this run's worker processes, so that they do not count as foreign.
    pub observe: &'a mut dyn FnMut(&str, &[u32]) -> Option<Observation>,
}

/// All that a run brought.
#[derive(Debug, Default)]
pub struct Results {
    /// One per planned case.
    pub records: Vec<Record>,
    /// Before, under load, after.
    pub observations: Vec<Observation>,
    /// Planted faults.
    pub selftest: Option<Selftest>,
    /// What the CUDA library's markers said.
    pub authenticity: Authenticity,
    /// CUDA version of the driver, once a worker opened.
    pub cuda_version: Option<i32>,
    /// Phase and milliseconds.
    pub timings_ms: Vec<(String, f64)>,
    /// What the workers' environment fixed, and what the operator had.
    pub worker_environment: Vec<String>,
    /// Cut short by the operator.
    pub interrupted: bool,
    /// Why no worker could start, if none could.
    pub no_worker: Option<String>,
}

/// The state of a run.
struct Supervisor<'a, 'h> {
    pool: Pool<'a>,
    plan: &'a Plan,
    hooks: Hooks<'h>,
    results: Results,
    /// Pairs and mechanisms that were confirmed wrong alone, with the kind, and those that hung, faulted or died.
    wrong: BTreeMap<(OrderedPair, String), WrongKind>,
    stopped: BTreeSet<(OrderedPair, String)>,
    /// Workers for reruns, by peer access.
    alone: BTreeMap<bool, Ready>,
    claims: Claims<'a>,
}

/// Runs `plan`.
pub fn run(snapshot: &Snapshot, plan: &Plan, hooks: Hooks) -> Results {
    let pool = Pool::new(snapshot, plan);
    let worker_environment = environment_words(&pool.environment);
    let mut supervisor = Supervisor {
        pool,
        plan,
        hooks,
        results: Results {
            worker_environment,
            ..Results::default()
        },
        wrong: BTreeMap::new(),
        stopped: BTreeSet::new(),
        alone: BTreeMap::new(),
        claims: Claims::new(snapshot),
    };
    supervisor.whole();
    for (_, ready) in std::mem::take(&mut supervisor.alone) {
        ready.end();
    }
    supervisor.results.interrupted = process::interrupted();
    supervisor.results
}

impl Supervisor<'_, '_> {
    fn whole(&mut self) {
        self.observe("before");
        let mut worker = match self.timed("start of the first worker", |s| s.pool.open(false)) {
            Ok(ready) => Some(ready),
            Err(why) => {
                self.results.no_worker = Some(why.clone());
                for case in self.plan.cases().cloned().collect::<Vec<_>>() {
                    self.not_run(case, &format!("no worker could start: {why}"));
                }
                return;
            }
        };
        if let Some(ready) = &worker {
            self.results.authenticity = ready.opened.authenticity;
            self.results.cuda_version = Some(ready.opened.cuda_version);
            self.claims.learn(&ready.opened);
        }
        self.timed("self-test", |s| s.selftest(&mut worker));
        let alone = Round {
            cases: self.plan.alone.clone(),
        };
        self.phase("each GPU alone", alone.cases.len());
        self.timed("each GPU alone", |s| {
            s.round(&mut worker, &alone, false);
            s.observe_under_load(&mut worker);
            s.ipc(&mut worker);
        });
        self.rounds(
            "staged",
            &mut worker,
            &self.plan.off,
            &self.plan.off_rates,
            false,
        );
        if let Some(ready) = worker.take() {
            ready.end();
        }
        let access = self.claims.any_access();
        let mut worker = None;
        if access && !self.plan.claims.is_empty() {
            match self.timed("start of the peer worker", |s| s.pool.open(true)) {
                Ok(ready) => {
                    self.claims.learn(&ready.opened);
                    worker = Some(ready);
                }
                Err(why) => self.results.no_worker = Some(why),
            }
        }
        for case in &self.plan.claims {
            let record = self.claim(case);
            self.push(record);
        }
        self.rounds(
            "peer access",
            &mut worker,
            &self.plan.on,
            &self.plan.on_rates,
            true,
        );
        if let Some(ready) = worker.take() {
            ready.end();
        }
        self.observe("after");
    }

    fn timed<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let started = Instant::now();
        let result = work(self);
        self.results
            .timings_ms
            .push((name.to_string(), started.elapsed().as_secs_f64() * 1e3));
        result
    }

    fn phase(&mut self, name: &str, cases: usize) {
        (self.hooks.phase)(name, cases);
    }

    fn observe(&mut self, moment: &str) {
        if let Some(observation) = (self.hooks.observe)(moment, &self.pool.pids) {
            self.results.observations.push(observation);
        }
    }

    fn rounds(
        &mut self,
        name: &str,
        worker: &mut Option<Ready>,
        rounds: &[Round],
        rates: &[Case],
        peer: bool,
    ) {
        self.phase(name, rounds.iter().map(|round| round.cases.len()).sum());
        self.timed(&format!("content, {name}"), |s| {
            rounds.iter().for_each(|round| s.round(worker, round, peer))
        });
        self.phase(&format!("rates, {name}"), rates.len());
        self.timed(&format!("rates, {name}"), |s| {
            for case in rates {
                s.round(
                    worker,
                    &Round {
                        cases: vec![case.clone()],
                    },
                    peer,
                );
            }
        });
    }

    /// Why a case is not put to a worker, if so.
    fn settled(&self, case: &Case, peer: bool) -> Option<Outcome> {
        let not_run = |reason: String| Some(Outcome::NotRun { reason });
        if process::interrupted() {
            return not_run("interrupted".to_string());
        }
        if let Some(gpu) = self
            .pool
            .quarantined
            .iter()
            .find(|gpu| case.subject.touches(GpuIndex(**gpu)))
        {
            return not_run(format!(
                "GPU{gpu} is quarantined: it hung or was lost, so nothing that it touches would prove anything"
            ));
        }
        let pair = case.subject.pair()?;
        let key = (pair, case.mechanism.clone());
        if self.stopped.contains(&key) {
            return not_run(format!(
                "{pair} already hung or faulted in {}",
                case.mechanism
            ));
        }
        if case.timed && self.wrong.contains_key(&key) {
            return Some(Outcome::NotApplicable {
                reason: "no rate is taken of a transfer that is wrong".to_string(),
            });
        }
        if !peer {
            return None;
        }
        let accessor = match mechanism::by_id(&case.mechanism).map(mechanism::Mechanism::side) {
            Some(Side::Destination) => pair.reversed(),
            _ => pair,
        };
        self.claims.hinders(accessor)
    }

    /// Runs a round in `worker`, and again alone whatever was not right.
    fn round(&mut self, worker: &mut Option<Ready>, round: &Round, peer: bool) {
        let mut cases = Vec::new();
        for case in &round.cases {
            match self.settled(case, peer) {
                Some(outcome) => {
                    let record = self.record(case.clone(), outcome, None);
                    self.push(record);
                }
                None => cases.push(case.clone()),
            }
        }
        if cases.is_empty() {
            return;
        }
        if worker.is_none() {
            match self.pool.open(peer) {
                Ok(ready) => *worker = Some(ready),
                Err(why) => {
                    cases.into_iter().for_each(|case| {
                        self.not_run(case, &format!("no worker could start: {why}"))
                    });
                    return;
                }
            }
        }
        let (answers, ended) = self.ask(worker, &cases, false);
        let mut suspects = Vec::new();
        for case in cases {
            match answers.get(&case.id) {
                Some(answer) if !needs_rerun(&answer.outcome) => {
                    let record = self.record(case, answer.outcome.clone(), Some(answer.clone()));
                    self.push(record);
                }
                shared => suspects.push((case, shared.cloned())),
            }
        }
        let alone_already = suspects.len() == 1 && round.cases.len() == 1;
        self.rerun(suspects, ended.as_deref(), peer, alone_already);
    }

    /// Sends cases and collects answers. A worker that must not be used again is gone afterwards; the text says why.
    fn ask(
        &mut self,
        worker: &mut Option<Ready>,
        cases: &[Case],
        search: bool,
    ) -> (BTreeMap<u32, Answer>, Option<String>) {
        let mut answers = BTreeMap::new();
        let Some(ready) = worker else {
            return (answers, None);
        };
        let deadline = Instant::now() + self.pool.limit(cases);
        let mut sent = ready.child.send(&Request::Run {
            cases: cases.to_vec(),
            search,
        });
        let mut ended = None;
        loop {
            let reply = match sent {
                Ok(()) => ready.child.receive::<Reply>(deadline),
                Err(error) => Err(error),
            };
            sent = Ok(());
            match reply {
                Ok(Reply::Answer(answer)) => {
                    if answer.retire {
                        ended = Some("retired after a fault".to_string());
                    }
                    answers.insert(answer.id, answer);
                }
                Ok(Reply::Done) => break,
                Ok(other) => {
                    ended = Some(format!("a worker answered out of turn: {other:?}"));
                    break;
                }
                Err(error) => {
                    ended = Some(match error {
                        ReceiveError::Ended(how) => how,
                        other => other.to_string(),
                    });
                    break;
                }
            }
        }
        if ended.is_some()
            && let Some(ready) = worker.take()
            && !ready.child.kill()
        {
            // Stuck in the driver: whatever these cases touch is not safe to probe further.
            self.quarantine(cases, &answers);
        }
        (answers, ended)
    }

    /// Quarantines the GPUs of the cases that were not answered.
    fn quarantine(&mut self, cases: &[Case], answers: &BTreeMap<u32, Answer>) {
        for case in cases.iter().filter(|case| !answers.contains_key(&case.id)) {
            let touched = self
                .plan
                .gpus
                .iter()
                .filter(|gpu| case.subject.touches(GpuIndex(**gpu)));
            self.pool.quarantined.extend(touched);
        }
    }

    /// After a hang: a GPU that stays busy with no process is wedged, and later results on it are worthless.
    fn look_for_wedge(&mut self, case: &Case) {
        let busy = |observation: &Observation, gpu: u32| {
            let gpu = observation.gpus.get(gpu as usize);
            gpu.is_some_and(|g| {
                g.utilization_percent.known().is_some_and(|u| *u >= 95)
                    && g.foreign_processes.known().is_some_and(Vec::is_empty)
            })
        };
        let mut seen: Option<BTreeSet<u32>> = None;
        for _ in 0..3 {
            // NVML's utilisation covers up to the last second.
            std::thread::sleep(Duration::from_millis(600));
            let Some(observation) = (self.hooks.observe)("after a hang", &self.pool.pids) else {
                return;
            };
            let touched = self
                .plan
                .gpus
                .iter()
                .copied()
                .filter(|gpu| case.subject.touches(GpuIndex(*gpu)));
            let now: BTreeSet<u32> = touched.filter(|gpu| busy(&observation, *gpu)).collect();
            seen = Some(seen.map_or(now.clone(), |seen| {
                seen.intersection(&now).copied().collect()
            }));
            if seen.as_ref().is_none_or(BTreeSet::is_empty) {
                return;
            }
        }
        self.pool.quarantined.extend(seen.unwrap_or_default());
    }

    /// Runs suspects again, each alone, in a worker that has not seen a fault.
    fn rerun(
        &mut self,
        suspects: Vec<(Case, Option<Answer>)>,
        ended: Option<&str>,
        peer: bool,
        alone_already: bool,
    ) {
        let mut finished: Vec<(Case, Option<Answer>, Answer)> = Vec::new();
        for (case, shared) in suspects {
            let confirmed = case
                .subject
                .pair()
                .and_then(|p| self.wrong.get(&(p, case.mechanism.clone())).copied());
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
            if let Some(outcome) = self.settled(&case, peer) {
                let record = self.record(case, outcome, None);
                self.push(record);
                continue;
            }
            let mut worker = match self.alone.remove(&peer) {
                Some(ready) => Some(ready),
                None => match self.pool.open(peer) {
                    Ok(ready) => Some(ready),
                    Err(why) => {
                        self.not_run(
                            case,
                            &format!("no worker could start for a second look: {why}"),
                        );
                        continue;
                    }
                },
            };
            let started = Instant::now();
            let (mut answers, gone) = self.ask(&mut worker, std::slice::from_ref(&case), false);
            let dropped = answers.get(&case.id).is_some_and(is_dropped);
            if dropped && self.plan.gpus.len() > 2 {
                let (searched, _) = self.ask(&mut worker, std::slice::from_ref(&case), true);
                let found = |answer: &Answer| answer.outcome.corruption().is_some();
                answers.extend(searched.into_iter().filter(|(_, answer)| found(answer)));
            }
            if let Some(ready) = worker {
                self.alone.insert(peer, ready);
            }
            let answer = answers.remove(&case.id).unwrap_or_else(|| {
                let took = started.elapsed();
                let how = gone.clone().unwrap_or_default();
                let outcome = if process::interrupted() {
                    Outcome::NotRun {
                        reason: "interrupted".to_string(),
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
            if alone.outcome.is_intact() {
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
                        alone.notes.push(
                            "intact when run alone: wrong only together with other pairs"
                                .to_string(),
                        );
                        is_alone = false;
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

    /// Keeps what an answer given alone means for later cases of its pair and mechanism.
    fn remember(&mut self, case: &Case, answer: &Answer) {
        let pair = match case.subject {
            Subject::Pair(pair) => pair,
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
        };
        let key = (pair, case.mechanism.clone());
        match &answer.outcome {
            Outcome::Corrupt(found) => {
                self.wrong.insert(key, found.kind);
            }
            Outcome::TimedOut { .. } => {
                self.stopped.insert(key);
                self.look_for_wedge(case);
            }
            Outcome::Faulted { .. } | Outcome::Died { .. } => {
                self.stopped.insert(key);
            }
            _ => {}
        }
    }

    fn record(&self, case: Case, outcome: Outcome, answer: Option<Answer>) -> Record {
        let (attempts_ran, rate, took_ms, notes, peer_access, executor) = match answer {
            Some(a) => (
                a.attempts_ran,
                a.rate,
                a.took_ms,
                a.notes,
                a.peer_access,
                a.executor,
            ),
            None => (
                0,
                None,
                0.0,
                Vec::new(),
                PeerAccess::NotApplicable,
                String::new(),
            ),
        };
        let alone = case.timed || case.subject.pair().is_none();
        Record {
            case,
            outcome,
            peer_access,
            executor,
            attempts_ran,
            rate,
            alone,
            took_ms,
            notes,
        }
    }

    fn not_run(&mut self, case: Case, reason: &str) {
        let record = self.record(
            case,
            Outcome::NotRun {
                reason: reason.to_string(),
            },
            None,
        );
        self.push(record);
    }

    fn push(&mut self, record: Record) {
        (self.hooks.record)(&record);
        self.results.records.push(record);
    }

    /// Rung 0: what the claims of CUDA and NVML come to.
    fn claim(&self, case: &Case) -> Record {
        let outcome = case.subject.pair().map_or_else(
            || Outcome::NotRun {
                reason: "not a pair".to_string(),
            },
            |pair| self.claims.outcome(pair),
        );
        let mut record = self.record(case.clone(), outcome, None);
        record.executor = "claims of CUDA and NVML".to_string();
        record.attempts_ran = 1;
        record
    }

    fn selftest(&mut self, worker: &mut Option<Ready>) {
        let (Some(ready), Some(gpu)) = (worker.as_mut(), self.plan.gpus.first()) else {
            return;
        };
        let limit = Duration::from_secs(30) * self.pool.factor;
        match ready.ask(&Request::Selftest { gpu: *gpu }, limit) {
            Ok(Reply::Planted(selftest)) => self.results.selftest = Some(selftest),
            // No self-test is told by its absence; a worker that did not answer is not used again.
            Ok(_) => {}
            Err(_) => {
                if let Some(ready) = worker.take() {
                    ready.child.kill();
                }
            }
        }
    }

    fn observe_under_load(&mut self, worker: &mut Option<Ready>) {
        let Some(ready) = worker.as_mut() else { return };
        if ready
            .child
            .send(&Request::Load {
                millis: LOAD.as_millis() as u64,
            })
            .is_err()
        {
            return;
        }
        std::thread::sleep(LOAD / 2);
        let gpus: Vec<String> = self
            .plan
            .gpus
            .iter()
            .map(|gpu| format!("GPU{gpu}"))
            .collect();
        self.observe(&format!("under load: host to device on {}", gpus.join(" ")));
        let limit = Instant::now() + (LOAD + Duration::from_secs(10)) * self.pool.factor;
        if !matches!(ready.child.receive::<Reply>(limit), Ok(Reply::Done))
            && let Some(ready) = worker.take()
        {
            ready.child.kill();
        }
    }

    /// With one GPU: memory shared by CUDA IPC between two processes on it.
    fn ipc(&mut self, worker: &mut Option<Ready>) {
        let Some(case) = self.plan.ipc.clone() else {
            return;
        };
        if let Some(outcome) = self.settled(&case, false) {
            let record = self.record(case, outcome, None);
            self.push(record);
            return;
        }
        let outcome = self.ipc_answer(worker, &case);
        let record = match outcome {
            Ok(answer) => self.record(case, answer.outcome.clone(), Some(answer)),
            Err(why) => self.record(case, Outcome::NotRun { reason: why }, None),
        };
        self.push(record);
    }

    fn ipc_answer(&mut self, worker: &mut Option<Ready>, case: &Case) -> Result<Answer, String> {
        let limit = self.pool.limit(std::slice::from_ref(case));
        let owner = worker.as_mut().ok_or("no worker is open")?;
        let gpu = *self.plan.gpus.first().ok_or("no GPU was chosen")?;
        let handle = match owner.ask(
            &Request::IpcOwn {
                gpu,
                bytes: case.bytes,
            },
            limit,
        ) {
            Ok(Reply::Exported { handle }) => handle,
            Ok(Reply::Failed { message, .. }) => {
                return Err(format!("memory could not be exported: {message}"));
            }
            Ok(other) => return Err(format!("a worker answered out of turn: {other:?}")),
            Err(error) => return Err(error.to_string()),
        };
        let mut visitor = self.pool.open(false)?;
        let visited = visitor.ask(
            &Request::IpcVisit {
                case: case.clone(),
                handle,
            },
            limit,
        );
        // The visitor has closed the handle when it answers: the owner may free after.
        visitor.end();
        let visited = match visited {
            Ok(Reply::Answer(answer)) => answer,
            Ok(other) => return Err(format!("a worker answered out of turn: {other:?}")),
            Err(error) => return Err(error.to_string()),
        };
        if !visited.outcome.is_intact() {
            return Ok(visited);
        }
        match owner.ask(&Request::IpcJudge { case: case.clone() }, limit) {
            Ok(Reply::Answer(answer)) => Ok(answer),
            Ok(other) => Err(format!("a worker answered out of turn: {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Whether nothing arrived: perhaps it arrived elsewhere.
fn is_dropped(answer: &Answer) -> bool {
    let found = answer.outcome.corruption();
    found.is_some_and(|corruption| corruption.kind == WrongKind::Dropped)
}

/// Whether an answer from company has to be confirmed alone.
fn needs_rerun(outcome: &Outcome) -> bool {
    outcome.is_failure() || matches!(outcome, Outcome::NotRun { .. })
}

fn unanswered(case: &Case, outcome: Outcome, took: Duration) -> Answer {
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
    }
}

/// Single-GPU tests by id, for `--mechanism` and lists.
pub fn mechanism_ids() -> Vec<&'static str> {
    alone::ROSTER
        .iter()
        .map(|(id, _)| *id)
        .chain(mechanism::ROSTER.iter().map(|m| m.id()))
        .collect()
}
