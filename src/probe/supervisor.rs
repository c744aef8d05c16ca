//! The run: hands out cases to workers, keeps deadlines, and runs again alone whatever looked wrong in
//! company. Knows processes and records; never touches CUDA, never names a cause.

use super::{
    alone,
    claims::Claims,
    cut_short,
    mechanism::{self, Place, Side},
    plan::{Phase, Plan, Round},
    pool::{Look, Pool, Staff, environment_words},
    reduced, resident,
    suspects::unanswered,
    wire::{Answer, Reply, Request},
};
use crate::{
    child::ReceiveError,
    ffi::process,
    model::{
        case::{
            BUDGET_SPENT, Case, LEFT_BEHIND, Outcome, PeerAccess, Record, Rung, SOAK_ENDED,
            Subject, WrongKind,
        },
        pair::{GpuIndex, OrderedPair},
        reduction::Reduction,
        report::Selftest,
        snapshot::{Authenticity, CudaClaims, Observation, Snapshot},
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
    /// Called for whatever comes, as it comes: journal, progress.
    pub came: &'a mut dyn FnMut(Came),
    /// Called when a phase begins: name, cases in it.
    pub phase: &'a mut dyn FnMut(&str, usize),
    /// Asks the observer, if there is one.
    /// It is told this run's worker processes, so that they do not count as foreign.
    pub observe: &'a mut dyn FnMut(&str, &[u32]) -> Option<Observation>,
}

/// What a run brings, one by one, before it is kept.
pub enum Came<'r> {
    /// A case with its answer; notes may be added.
    Record(&'r mut Record),
    /// What the observer saw.
    Observation(&'r Observation),
    /// The checker's test of itself.
    Selftest(&'r Selftest),
    /// An all-reduce that was timed.
    Reduction(&'r Reduction),
    /// What CUDA claims of the pairs.
    Claims(&'r [(OrderedPair, CudaClaims)]),
}

/// All that a run brought.
#[derive(Debug, Default)]
pub struct Results {
    /// One per planned case.
    pub records: Vec<Record>,
    /// Before, under load, after.
    pub observations: Vec<Observation>,
    /// All-reduces that were timed.
    pub reductions: Vec<Reduction>,
    /// Planted faults.
    pub selftest: Option<Selftest>,
    /// What the CUDA library's markers said.
    pub authenticity: Authenticity,
    /// What CUDA claims of the pairs, once a worker opened.
    pub cuda_claims: Vec<(OrderedPair, CudaClaims)>,
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
    pub(super) results: Results,
    /// Pairs or groups and mechanisms that were confirmed wrong alone, with the kind, and those that hung, faulted or died.
    pub(super) wrong: BTreeMap<(Subject, String), WrongKind>,
    pub(super) stopped: BTreeSet<(Subject, String)>,
    /// Workers for second looks.
    pub(super) alone: BTreeMap<Place, Staff>,
    claims: Claims<'a>,
    started: Instant,
    /// When no further case is begun; known once a worker told how slow this host's clock is.
    give_up_at: Option<Instant>,
    /// Places whose workers did not answer when they were to open their GPUs, and what was said: not waited for again.
    shut: BTreeMap<Place, String>,
    /// Why the workers of the last round are gone, if they are.
    lost: Option<String>,
    /// Time of the phase under way, by mechanism.
    shares: BTreeMap<String, Duration>,
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
        shut: BTreeMap::new(),
        lost: None,
        shares: BTreeMap::new(),
    };
    supervisor.whole();
    supervisor.timed("end of workers", |s| {
        std::mem::take(&mut s.alone)
            .into_values()
            .for_each(|staff| s.pool.close(staff));
        s.pool.close_all();
    });
    supervisor.results.interrupted = process::interrupted();
    supervisor.results
}

impl Supervisor<'_, '_> {
    fn whole(&mut self) {
        if self.plan.gpus.is_empty() {
            return;
        }
        self.observe("before");
        self.quarantine_silent();
        if self.plan.ahead {
            // In the order in which they are asked for. The claims of rung 0 need the workers with peer access.
            let places = self.plan.phases.iter().map(|phase| phase.place);
            let mut places: BTreeSet<Place> = places.chain([Place::Off]).collect();
            // The first worker goes on as this one.
            places.remove(&Place::Granted);
            if !self.plan.claims.is_empty() {
                places.insert(Place::On);
            }
            self.pool.start_ahead(places.into_iter());
        }
        let mut staff = match self.start(Place::Off) {
            Ok(staff) => Some(staff),
            Err(why) => {
                self.results.no_worker = Some(why.clone());
                for case in self.plan.cases().cloned().collect::<Vec<_>>() {
                    self.not_run(case, &format!("no worker could start: {why}"));
                }
                return;
            }
        };
        if let Some(opened) = staff
            .as_ref()
            .and_then(|staff| staff.opened().first().copied())
        {
            self.results.authenticity = opened.authenticity;
            self.results.cuda_version = Some(opened.cuda_version);
            self.claims.learn(opened);
            self.results.cuda_claims = self.claims.of_cuda();
            (self.hooks.came)(Came::Claims(&self.results.cuda_claims));
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
        });
        // Tests of single GPUs run side by side: nobody's share.
        self.shares.clear();
        let (mut at, mut claimed) = (Place::Off, false);
        for phase in &self.plan.phases {
            if phase.place != at {
                // Their memory is needed by those who come.
                let again = self.alone.remove(&at);
                let before = std::mem::replace(&mut at, phase.place);
                staff = self.timed("end of workers", |s| {
                    again.into_iter().for_each(|staff| s.pool.close(staff));
                    match (before, at, staff.take()) {
                        // A worker that cannot go on so is started anew when it is needed.
                        (Place::Off, Place::Granted, Some(Staff::Solo(ready))) => {
                            s.pool.reopen(ready, at).ok()
                        }
                        (_, _, staff) => {
                            staff.into_iter().for_each(|staff| s.pool.close(staff));
                            None
                        }
                    }
                });
                if !claimed && at != Place::Granted {
                    claimed = true;
                    staff = self.claim_all();
                    if at != Place::On {
                        staff
                            .take()
                            .into_iter()
                            .for_each(|staff| self.pool.close(staff));
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
            for (mechanism, took) in std::mem::take(&mut self.shares) {
                self.spent(&format!("{}: {mechanism}", phase.name), took);
            }
        }
        staff
            .take()
            .into_iter()
            .for_each(|staff| self.pool.close(staff));
        if !claimed {
            self.claim_all()
                .into_iter()
                .for_each(|staff| self.pool.close(staff));
        }
        self.observe("after");
    }

    /// GPUs for which NVML answered when the host was read, and does not now that the run begins.
    fn quarantine_silent(&mut self) {
        let before = self.results.observations.first();
        let silent = |gpu: &&u32| {
            let seen = before.and_then(|seen| seen.gpus.get(**gpu as usize));
            seen.is_some_and(|gpu| gpu.utilization_percent.unanswered().is_some())
        };
        let silent: Vec<u32> = self.plan.gpus.iter().filter(silent).copied().collect();
        self.pool.quarantined.extend(silent);
    }

    /// Opens the worker with peer access, learns what enabling it answered, and records the claims of rung 0.
    fn claim_all(&mut self) -> Option<Staff> {
        let mut staff = None;
        if self.claims.any_access() && !self.plan.claims.is_empty() {
            match self.start(Place::On) {
                Ok(open) => {
                    let opened = open.opened().into_iter();
                    opened.for_each(|opened| self.claims.learn(opened));
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
        let why = match process::interrupted() {
            true => cut_short::why().to_string(),
            false => format!("{SOAK_ENDED} before its turn"),
        };
        for case in phase.cases().filter(|case| !pushed.contains(&case.id)) {
            self.not_run(case.clone(), &why);
        }
    }

    fn timed<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let started = Instant::now();
        let result = work(self);
        self.spent(name, started.elapsed());
        result
    }

    /// Adds to the time of `name`; what happens several times is one row.
    fn spent(&mut self, name: &str, took: Duration) {
        let took = took.as_secs_f64() * 1e3;
        let rows = &mut self.results.timings_ms;
        match rows.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += took,
            None => rows.push((name.to_string(), took)),
        }
    }

    /// Opens workers of a place.
    fn start(&mut self, place: Place) -> Result<Staff, String> {
        let opened = self.timed(&format!("start of workers, {}", place.words()), |s| {
            s.pool.open(place)
        });
        if let Err(why) = &opened
            && why.ends_with(&ReceiveError::TimedOut.to_string())
        {
            self.shut.insert(place, why.clone());
        }
        opened
    }

    fn phase(&mut self, name: &str, cases: usize) {
        (self.hooks.phase)(name, cases);
    }

    fn observe(&mut self, moment: &str) {
        if let Some(observation) = (self.hooks.observe)(moment, &self.pool.pids) {
            self.keep(observation);
        }
    }

    pub(super) fn keep(&mut self, observation: Observation) {
        (self.hooks.came)(Came::Observation(&observation));
        self.results.observations.push(observation);
    }

    /// Why a case is not put to a worker, if so.
    pub(super) fn settled(&self, case: &Case, place: Place) -> Option<Outcome> {
        let not_run = |reason: String| Some(Outcome::NotRun { reason });
        if process::interrupted() {
            return not_run(cut_short::why().to_string());
        }
        if let Some(why) = self.shut.get(&place) {
            return not_run(format!("no worker could start: {why}"));
        }
        if self.give_up_at.is_some_and(|end| Instant::now() >= end) {
            let limit = self.plan.budget.time_limit(self.plan.gpus.len());
            return not_run(format!(
                "{BUDGET_SPENT} {} budget, {} s, was reached",
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
                "GPU{gpu} is quarantined: it hung, was lost or stopped answering, so nothing that it touches would prove anything"
            ));
        }
        let subject = case.subject;
        let key = (subject, case.mechanism.clone());
        if self.stopped.contains(&key) {
            return not_run(format!(
                "{subject} already hung or faulted in {}",
                case.mechanism
            ));
        }
        let pairs: Vec<OrderedPair> = match subject {
            // On a GPU that does not keep its own words, flags do not come either: each kernel would wait its limit out.
            Subject::Gpu(_) => {
                let alone = self.results.records.iter().find(|record| {
                    record.case.rung == Rung::Alone
                        && record.case.subject == subject
                        && record.outcome.is_failure()
                });
                let waits = case.rung >= Rung::Resident && !self.plan.force;
                return alone.filter(|_| waits).map(|record| Outcome::NotRun {
                    reason: format!("unsafe: {subject} failed alone, {}", record.case.mechanism),
                });
            }
            Subject::Pair(pair) => vec![pair],
            Subject::Group(group) => group.pairs().collect(),
        };
        // Copies end by themselves; kernels that wait for bytes that do not come, and load on a broken pair, do not.
        if case.rung >= Rung::Resident
            && !self.plan.force
            && let Some(unsafe_after) = self.first_failure(subject)
        {
            return not_run(format!(
                "unsafe after {unsafe_after} (what waits, or runs under load, could hang)"
            ));
        }
        if case.timed && self.wrong.contains_key(&key) {
            return Some(Outcome::NotApplicable {
                reason: "no rate is taken of a transfer that is wrong".to_string(),
            });
        }
        if place == Place::Off {
            return None;
        }
        let side = mechanism::by_id(&case.mechanism).map(mechanism::Mechanism::side);
        let needed = pairs.into_iter().flat_map(|pair| match side {
            Some(Side::Destination) => vec![pair.reversed()],
            Some(_) => vec![pair],
            // Kernels that wait for each other store into each other's memory.
            None => vec![pair, pair.reversed()],
        });
        let mut needed = needed.filter_map(|accessor| self.claims.hinders(accessor, place));
        needed.next()
    }

    /// The lowest failed peer case of a pair in either direction, or within a group, in words. What goes through the host
    /// does not count: no kernel waits for it.
    fn first_failure(&self, of: Subject) -> Option<String> {
        let failed = self.wrong.keys().chain(&self.stopped);
        failed
            .filter(|(failed, _)| match (*failed, of) {
                (Subject::Pair(p), Subject::Pair(own)) => p == own || p == own.reversed(),
                (Subject::Pair(p), Subject::Group(group)) => group.holds(p),
                (Subject::Group(part), Subject::Group(group)) => part.is_within(group),
                (Subject::Group(_), Subject::Pair(_)) => false,
                (Subject::Gpu(_), _) | (_, Subject::Gpu(_)) => false,
            })
            .filter_map(|(p, id)| {
                let exchange = resident::by_id(id).map(|e| (Rung::Resident, e.place));
                let all_reduce = reduced::by_id(id).map(|way| (way.rung(), way.place));
                let known = mechanism::by_id(id).map(|m| (m.rung(), m.place()));
                let (rung, place) = known.or(exchange).or(all_reduce)?;
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
            match self.start(place) {
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
        let began = Instant::now();
        let (mut answers, ended) = self.ask(staff, &cases, how);
        self.lost = ended;
        let (answered, open): (Vec<Case>, Vec<Case>) = cases
            .into_iter()
            .partition(|case| answers.contains_key(&case.id) || !process::interrupted());
        // There is no second look any more; in a soak the passes before count.
        for case in open.into_iter().filter(|_| pass < 2) {
            self.not_run(case, &cut_short::why_unanswered(began.elapsed()));
        }
        let answered = answered.into_iter();
        answered
            .map(|case| {
                let answer = answers.remove(&case.id);
                (case, answer)
            })
            .collect()
    }

    /// Runs a round in `staff`, and again alone whatever was not right.
    pub(super) fn round(&mut self, staff: &mut Option<Staff>, round: &Round, place: Place) {
        let started = Instant::now();
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
        // An exchange is both directions of its pair: with no other pair beside it, it was alone.
        let one_exchange = round.cases.iter().all(|case| {
            let waits = case.rung == Rung::Resident || case.all_reduce.is_some();
            let pair = case.subject.pair().filter(|_| waits);
            let first = round.cases.first().and_then(|case| case.subject.pair());
            pair.is_some() && (pair == first || pair.map(OrderedPair::reversed) == first)
        });
        let alone_already = one_exchange || suspects.len() == 1 && round.cases.len() == 1;
        let ended = self.lost.take();
        self.rerun(suspects, ended.as_deref(), place, alone_already);
        if let Some(case) = round.cases.first() {
            let share = self.shares.entry(case.mechanism.clone()).or_default();
            *share += started.elapsed();
        }
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
        let began = Instant::now();
        if open.complete(&mut self.pool, cases, look) {
            let name = format!("start of workers, {}", Place::Ranks.words());
            self.spent(&name, began.elapsed());
        }
        let deadline = Instant::now() + self.pool.limit(cases);
        let (mut answers, ended) = open.run(cases, look, deadline);
        for answer in answers.values_mut() {
            for reduction in &answer.reductions {
                (self.hooks.came)(Came::Reduction(reduction));
            }
            self.results.reductions.append(&mut answer.reductions);
        }
        if ended.is_some()
            && let Some(open) = staff.take()
            && !open.kill()
            && !process::interrupted()
        {
            self.left_behind(cases, &mut answers, began.elapsed());
        }
        (answers, ended)
    }

    /// A worker that a kill does not end is stuck in the driver, and is left behind. Of a case that was put by itself this is the
    /// answer where it gave none, and what it touches is not safe to probe further. Of several it is not known whose doing it
    /// is: the second look asks each by itself.
    fn left_behind(&mut self, cases: &[Case], answers: &mut BTreeMap<u32, Answer>, took: Duration) {
        let [case] = cases else { return };
        let gpus = self.plan.gpus.iter();
        let touched = gpus.filter(|gpu| case.subject.touches(GpuIndex(**gpu)));
        self.pool.quarantined.extend(touched);
        let after_ms = took.as_millis() as u64;
        let answer = answers
            .entry(case.id)
            .or_insert_with(|| unanswered(case, Outcome::TimedOut { after_ms }, took));
        answer.notes.push(LEFT_BEHIND.to_string());
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
        let alone = case.timed || matches!(case.subject, Subject::Gpu(_));
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

    pub(super) fn push(&mut self, mut record: Record) {
        (self.hooks.came)(Came::Record(&mut record));
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
            Ok(Reply::Planted(selftest)) => {
                (self.hooks.came)(Came::Selftest(&selftest));
                self.results.selftest = Some(selftest);
            }
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
        .chain(reduced::ROSTER.iter().map(|way| way.id))
        .collect()
}
