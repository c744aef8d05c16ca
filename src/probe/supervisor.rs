//! The run: hands out cases to workers, keeps deadlines, and runs again alone whatever looked wrong in
//! company. Knows processes and records; never touches CUDA, never names a cause.

use super::{
    alone,
    claims::Claims,
    mechanism::{self, Place, Side},
    plan::{Phase, Plan, Round},
    pool::{Look, Pool, Staff, environment_words},
    resident,
    wire::{Answer, Reply, Request},
};
use crate::{
    ffi::process,
    model::{
        case::{Case, Outcome, PeerAccess, Record, Rung, WrongKind},
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
pub(super) struct Supervisor<'a, 'h> {
    pub(super) pool: Pool<'a>,
    pub(super) plan: &'a Plan,
    pub(super) hooks: Hooks<'h>,
    results: Results,
    /// Pairs and mechanisms that were confirmed wrong alone, with the kind, and those that hung, faulted or died.
    pub(super) wrong: BTreeMap<(OrderedPair, String), WrongKind>,
    pub(super) stopped: BTreeSet<(OrderedPair, String)>,
    /// Workers for second looks.
    pub(super) alone: BTreeMap<Place, Staff>,
    claims: Claims<'a>,
    started: Instant,
    /// When no further case is begun; known once a worker told how slow this host's clock is.
    give_up_at: Option<Instant>,
    /// Why the workers of the last round are gone, if they are.
    lost: Option<String>,
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
        started: Instant::now(),
        give_up_at: None,
        lost: None,
    };
    supervisor.whole();
    std::mem::take(&mut supervisor.alone)
        .into_values()
        .for_each(Staff::end);
    supervisor.results.interrupted = process::interrupted();
    supervisor.results
}

impl Supervisor<'_, '_> {
    fn whole(&mut self) {
        self.observe("before");
        let mut staff = match self.timed("start of the first worker", |s| s.pool.open(Place::Off)) {
            Ok(staff) => Some(staff),
            Err(why) => {
                self.results.no_worker = Some(why.clone());
                for case in self.plan.cases().cloned().collect::<Vec<_>>() {
                    self.not_run(case, &format!("no worker could start: {why}"));
                }
                return;
            }
        };
        if let Some(opened) = staff.as_ref().and_then(|staff| staff.opened().next()) {
            self.results.authenticity = opened.authenticity;
            self.results.cuda_version = Some(opened.cuda_version);
            self.claims.learn(opened);
        }
        self.give_up_at = Some(
            self.started + self.plan.budget.time_limit(self.plan.gpus.len()) * self.pool.factor,
        );
        self.timed("self-test", |s| s.selftest(&mut staff));
        let alone = Round {
            cases: self.plan.alone.clone(),
        };
        self.phase("each GPU alone", alone.cases.len());
        self.timed("each GPU alone", |s| {
            s.round(&mut staff, &alone, Place::Off);
            s.observe_under_load(&mut staff);
            s.ipc(&mut staff);
        });
        let (mut at, mut claimed) = (Place::Off, false);
        for phase in &self.plan.phases {
            if phase.place != at {
                // Their memory is needed by those who come.
                self.alone.remove(&at).into_iter().for_each(Staff::end);
                at = phase.place;
                staff.take().into_iter().for_each(Staff::end);
                if !claimed {
                    claimed = true;
                    staff = self.claim_all();
                    if at != Place::On {
                        staff.take().into_iter().for_each(Staff::end);
                    }
                }
            }
            self.phase(&phase.name, phase.cases().count());
            self.timed(&phase.name, |s| match phase.soak {
                Some(time) => s.soak(&mut staff, phase, time),
                None => phase
                    .rounds
                    .iter()
                    .for_each(|round| s.round(&mut staff, round, phase.place)),
            });
        }
        staff.take().into_iter().for_each(Staff::end);
        if !claimed {
            self.claim_all().into_iter().for_each(Staff::end);
        }
        self.observe("after");
    }

    /// Opens the worker with peer access, learns what enabling it answered, and records the claims of rung 0.
    fn claim_all(&mut self) -> Option<Staff> {
        let mut staff = None;
        if self.claims.any_access() && !self.plan.claims.is_empty() {
            match self.timed("start of the peer worker", |s| s.pool.open(Place::On)) {
                Ok(open) => {
                    open.opened().for_each(|opened| self.claims.learn(opened));
                    staff = Some(open);
                }
                Err(why) => self.results.no_worker = Some(why),
            }
        }
        for case in &self.plan.claims {
            let record = self.claim(case);
            self.push(record);
        }
        staff
    }

    /// Repeats a phase's rounds until `time` is over, at least once. All passes of a case make one record.
    fn soak(&mut self, staff: &mut Option<Staff>, phase: &Phase, time: Duration) {
        let until = Instant::now() + time;
        let mut sums: BTreeMap<u32, (Case, Answer)> = BTreeMap::new();
        let mut ended: BTreeSet<u32> = BTreeSet::new();
        for pass in 1..=u16::MAX {
            for round in &phase.rounds {
                let late = Instant::now() >= until && pass > 1;
                if late || process::interrupted() {
                    break;
                }
                let live = round.cases.iter().filter(|case| !ended.contains(&case.id));
                let live = Round {
                    cases: live.cloned().collect(),
                };
                for (case, answer) in self.first_look(staff, &live, phase.place, pass) {
                    match answer {
                        Some(answer)
                            if answer.outcome.is_intact()
                                || answer.outcome.corruption().is_some() =>
                        {
                            let sum = sums.remove(&case.id).map(|(_, sum)| sum);
                            let sum = sum.map_or(answer.clone(), |sum| add(sum, &answer));
                            sums.insert(case.id, (case, sum));
                        }
                        // Hangs, faults and deaths go the way of all suspects: alone, and then no more.
                        other => {
                            ended.insert(case.id);
                            let before = sums.remove(&case.id);
                            match (before, other) {
                                (Some((case, sum)), _) if sum.outcome.corruption().is_some() => {
                                    let record = self.record(case, sum.outcome.clone(), Some(sum));
                                    self.push(record);
                                }
                                // Under load there is no second look without it.
                                (_, Some(answer)) if case.load.is_some() => {
                                    self.remember(&case, &answer);
                                    let record =
                                        self.record(case, answer.outcome.clone(), Some(answer));
                                    self.push(record);
                                }
                                (_, other) => {
                                    self.rerun(vec![(case, other)], None, phase.place, false)
                                }
                            }
                        }
                    }
                }
            }
            if Instant::now() >= until || process::interrupted() {
                break;
            }
        }
        for (case, sum) in sums.into_values() {
            self.remember(&case, &sum);
            let mut record = self.record(case, sum.outcome.clone(), Some(sum));
            record.alone = false;
            self.push(record);
        }
        let pushed: BTreeSet<u32> = self
            .results
            .records
            .iter()
            .map(|record| record.case.id)
            .collect();
        for case in phase.cases().filter(|case| !pushed.contains(&case.id)) {
            self.not_run(case.clone(), "the soak ended before its turn");
        }
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

    /// Why a case is not put to a worker, if so.
    pub(super) fn settled(&self, case: &Case, place: Place) -> Option<Outcome> {
        let not_run = |reason: String| Some(Outcome::NotRun { reason });
        if process::interrupted() {
            return not_run("interrupted".to_string());
        }
        if self.give_up_at.is_some_and(|end| Instant::now() >= end) {
            let limit = self.plan.budget.time_limit(self.plan.gpus.len());
            return not_run(format!(
                "the time limit of the {} budget, {} s, was reached",
                self.plan.budget.name(),
                limit.as_secs()
            ));
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
        // Copies end by themselves; kernels that wait for bytes that do not come, and load on a broken pair, do not.
        if case.rung >= Rung::Resident
            && !self.plan.force
            && let Some(unsafe_after) = self.first_failure(pair)
        {
            return not_run(format!("unsafe after {unsafe_after}"));
        }
        if case.timed && self.wrong.contains_key(&key) {
            return Some(Outcome::NotApplicable {
                reason: "no rate is taken of a transfer that is wrong".to_string(),
            });
        }
        if place == Place::Off {
            return None;
        }
        // Both kernels store into the other's memory.
        if resident::by_id(&case.mechanism).is_some() {
            let both = [pair, pair.reversed()];
            return both
                .into_iter()
                .find_map(|pair| self.claims.hinders(pair, place));
        }
        let accessor = match mechanism::by_id(&case.mechanism).map(mechanism::Mechanism::side) {
            Some(Side::Destination) => pair.reversed(),
            _ => pair,
        };
        self.claims.hinders(accessor, place)
    }

    /// The lowest failed peer case of a pair in either direction, in words. What goes through the host does not count:
    /// no kernel waits for it.
    fn first_failure(&self, pair: OrderedPair) -> Option<String> {
        let failed = self.wrong.keys().chain(&self.stopped);
        failed
            .filter(|(p, _)| *p == pair || *p == pair.reversed())
            .filter_map(|(p, id)| {
                let exchange = resident::by_id(id).map(|e| (Rung::Resident, e.place));
                let known = mechanism::by_id(id).map(|m| (m.rung(), m.place()));
                let (rung, place) = known.or(exchange)?;
                (place != Place::Off).then_some((rung, *p, id))
            })
            .min()
            .map(|(rung, p, id)| format!("rung {rung}: {id} failed on {p}"))
    }

    /// Puts a round to `staff` once. A case without an answer comes back without one; what is settled is recorded here.
    fn first_look(
        &mut self,
        staff: &mut Option<Staff>,
        round: &Round,
        place: Place,
        pass: u16,
    ) -> Vec<(Case, Option<Answer>)> {
        let mut cases = Vec::new();
        for case in &round.cases {
            match self.settled(case, place) {
                // In a soak the passes before count.
                Some(_) if pass > 1 => {}
                Some(outcome) => {
                    let record = self.record(case.clone(), outcome, None);
                    self.push(record);
                }
                None => cases.push(case.clone()),
            }
        }
        if cases.is_empty() {
            return Vec::new();
        }
        if staff.is_none() {
            match self.timed("start of further workers", |s| s.pool.open(place)) {
                Ok(open) => *staff = Some(open),
                Err(why) => {
                    cases.into_iter().for_each(|case| {
                        self.not_run(case, &format!("no worker could start: {why}"))
                    });
                    return Vec::new();
                }
            }
        }
        let how = Look {
            search: false,
            pass,
        };
        let (mut answers, ended) = self.ask(staff, &cases, how);
        self.lost = ended;
        cases
            .into_iter()
            .map(|case| {
                let answer = answers.remove(&case.id);
                (case, answer)
            })
            .collect()
    }

    /// Runs a round in `staff`, and again alone whatever was not right.
    pub(super) fn round(&mut self, staff: &mut Option<Staff>, round: &Round, place: Place) {
        let mut suspects = Vec::new();
        for (case, answer) in self.first_look(staff, round, place, 0) {
            match answer {
                Some(answer) if !needs_rerun(&answer.outcome) => {
                    let record = self.record(case, answer.outcome.clone(), Some(answer));
                    self.push(record);
                }
                // Under load is what is asked: there is no second look without the load, and none is needed, as each of
                // these pairs was right alone.
                Some(mut answer) if case.load.is_some() => {
                    answer.notes.push("under load".to_string());
                    // Wrong under load is not wrong alone, which is what later cases of the pair are told by.
                    if answer.outcome.corruption().is_none() {
                        self.remember(&case, &answer);
                    }
                    let mut record = self.record(case, answer.outcome.clone(), Some(answer));
                    record.alone = false;
                    self.push(record);
                }
                shared => suspects.push((case, shared)),
            }
        }
        let alone_already = suspects.len() == 1 && round.cases.len() == 1;
        let ended = self.lost.take();
        self.rerun(suspects, ended.as_deref(), place, alone_already);
    }

    /// Sends cases and collects answers. A worker that must not be used again is gone afterwards; the text says why.
    pub(super) fn ask(
        &mut self,
        staff: &mut Option<Staff>,
        cases: &[Case],
        look: Look,
    ) -> (BTreeMap<u32, Answer>, Option<String>) {
        let Some(open) = staff else {
            return (BTreeMap::new(), None);
        };
        let deadline = Instant::now() + self.pool.limit(cases);
        let (answers, ended) = open.run(cases, look, deadline);
        if ended.is_some()
            && let Some(open) = staff.take()
            && !open.kill()
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

    pub(super) fn record(&self, case: Case, outcome: Outcome, answer: Option<Answer>) -> Record {
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

    pub(super) fn not_run(&mut self, case: Case, reason: &str) {
        let record = self.record(
            case,
            Outcome::NotRun {
                reason: reason.to_string(),
            },
            None,
        );
        self.push(record);
    }

    pub(super) fn push(&mut self, record: Record) {
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

    fn selftest(&mut self, staff: &mut Option<Staff>) {
        let solo = staff.as_mut().and_then(Staff::solo);
        let (Some(ready), Some(gpu)) = (solo, self.plan.gpus.first()) else {
            return;
        };
        let limit = Duration::from_secs(30) * self.pool.factor;
        match ready.ask(&Request::Selftest { gpu: *gpu }, limit) {
            Ok(Reply::Planted(selftest)) => self.results.selftest = Some(selftest),
            // No self-test is told by its absence; a worker that did not answer is not used again.
            Ok(_) => {}
            Err(_) => {
                if let Some(open) = staff.take() {
                    open.kill();
                }
            }
        }
    }

    fn observe_under_load(&mut self, staff: &mut Option<Staff>) {
        let Some(ready) = staff.as_mut().and_then(Staff::solo) else {
            return;
        };
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
            && let Some(open) = staff.take()
        {
            open.kill();
        }
    }

    /// With one GPU: memory shared by CUDA IPC between two processes on it.
    fn ipc(&mut self, staff: &mut Option<Staff>) {
        let Some(case) = self.plan.ipc.clone() else {
            return;
        };
        if let Some(outcome) = self.settled(&case, Place::Off) {
            let record = self.record(case, outcome, None);
            self.push(record);
            return;
        }
        let outcome = self.ipc_answer(staff, &case);
        let record = match outcome {
            Ok(answer) => self.record(case, answer.outcome.clone(), Some(answer)),
            Err(why) => self.record(case, Outcome::NotRun { reason: why }, None),
        };
        self.push(record);
    }

    fn ipc_answer(&mut self, staff: &mut Option<Staff>, case: &Case) -> Result<Answer, String> {
        let limit = self.pool.limit(std::slice::from_ref(case));
        let owner = staff
            .as_mut()
            .and_then(Staff::solo)
            .ok_or("no worker is open")?;
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
        let mut visitor = self.pool.open_solo(false)?;
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

/// Two answers to the same question, one after the other, as one.
fn add(mut sum: Answer, next: &Answer) -> Answer {
    sum.attempts_ran += next.attempts_ran;
    sum.took_ms += next.took_ms;
    let ran = sum.attempts_ran;
    match (&mut sum.outcome, &next.outcome) {
        (Outcome::Corrupt(first), Outcome::Corrupt(later)) => {
            first.wrong_attempts += later.wrong_attempts;
        }
        (Outcome::Intact, Outcome::Corrupt(later)) => {
            let mut found = later.clone();
            found.attempt += ran - next.attempts_ran;
            sum.outcome = Outcome::Corrupt(found);
        }
        _ => {}
    }
    if let Outcome::Corrupt(found) = &mut sum.outcome {
        found.attempts_ran = ran;
    }
    sum
}

/// Whether an answer from company has to be confirmed alone.
fn needs_rerun(outcome: &Outcome) -> bool {
    outcome.is_failure() || matches!(outcome, Outcome::NotRun { .. })
}

/// Single-GPU tests by id, for `--mechanism` and lists.
pub fn mechanism_ids() -> Vec<&'static str> {
    alone::ROSTER
        .iter()
        .map(|(id, _)| *id)
        .chain(mechanism::ROSTER.iter().map(|m| m.id()))
        .chain(resident::ROSTER.iter().map(|exchange| exchange.id))
        .collect()
}
