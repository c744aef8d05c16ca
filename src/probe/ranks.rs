//! The parent's half of the mechanisms across processes: starts one rank per GPU (two on the only GPU), leads cases through
//! their steps, attempt by attempt, and relays file descriptors. All ranks of a step work side by side, and none ever waits
//! for another: whoever misses a deadline is seen from here.

mod reduced;
mod resident;

pub(in crate::probe) use reduced::one as reduce_one;

use super::{
    mechanism::{self, Mechanism, Memory, Side},
    plan::IPC_BLOCK,
    pool::{Look, OPEN_LIMIT, Pool, RANK},
    wire::{Answer, Done, Job, Layout, Opened, RankOpen, RankReply, RankRequest, Shared, Task},
};
use crate::{
    child::{Child, ReceiveError},
    ffi::socket::Line,
    model::{
        case::{Case, Corruption, Outcome, Rung, Subject},
        measurement::Measurement,
        pair::GpuIndex,
    },
    probe::examine::Views,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// A rank: its GPU, and whether it is the second on it.
type Place = (u32, bool);

/// A started rank.
struct Member {
    place: Place,
    child: Child,
    line: Line,
    opened: Opened,
}

/// The ranks that were started so far, of one generation.
pub(super) struct Ranks {
    members: Vec<Member>,
    /// Started, and not yet asked whether they are open.
    starting: Vec<(Place, Child, Line)>,
    generation: u8,
    /// Run nonce.
    run: u32,
    /// Attempts so far: words of an attempt are unlike those of all before it.
    attempts: BTreeMap<(Subject, String), u32>,
}

impl Ranks {
    /// None yet.
    pub(super) fn new(generation: u8, run: u32) -> Ranks {
        Ranks {
            members: Vec::new(),
            starting: Vec::new(),
            generation,
            run,
            attempts: BTreeMap::new(),
        }
    }

    /// What they said when they opened.
    pub(super) fn opened(&self) -> impl Iterator<Item = &Opened> {
        self.members.iter().map(|member| &member.opened)
    }

    /// Their processes.
    pub(super) fn into_children(self) -> Vec<Child> {
        let members = self.members.into_iter().map(|m| m.child);
        members
            .chain(self.starting.into_iter().map(|(_, child, _)| child))
            .collect()
    }

    /// Starts one on every usable GPU, or two on the only one, and does not wait for them.
    pub(super) fn start_ahead(&mut self, pool: &mut Pool) {
        let gpus: Vec<u32> = pool.usable().iter().map(|(gpu, _)| *gpu).collect();
        let places: Vec<Place> = match gpus.as_slice() {
            [only] => vec![(*only, false), (*only, true)],
            all => all.iter().map(|gpu| (*gpu, false)).collect(),
        };
        for place in places {
            // What hinders it is told when it is asked for.
            if let Ok((child, line)) = self.start(pool, place) {
                self.starting.push((place, child, line));
            }
        }
    }

    /// Starts, side by side, the ranks that these cases still need; whether there were any. A GPU on which none starts is
    /// remembered in the pool, and its cases end as not run.
    pub(super) fn complete(&mut self, pool: &mut Pool, cases: &[Case], look: Look) -> bool {
        let usable: BTreeSet<u32> = pool.usable().iter().map(|(gpu, _)| *gpu).collect();
        let mut wanted: BTreeSet<Place> = BTreeSet::new();
        for case in cases {
            wanted.extend(places(case.subject));
            if look.search {
                wanted.extend(usable.iter().map(|gpu| (*gpu, false)));
            }
        }
        let missing = wanted.into_iter().filter(|place| {
            usable.contains(&place.0)
                && !pool.no_rank.contains_key(&place.0)
                && self.at(*place).is_none()
        });
        let missing: Vec<Place> = missing.collect();
        let (mut starting, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.starting)
            .into_iter()
            .partition(|(place, ..)| missing.contains(place));
        self.starting = later;
        let begun: Vec<Place> = starting.iter().map(|(place, ..)| *place).collect();
        for place in missing.iter().filter(|place| !begun.contains(place)) {
            match self.start(pool, *place) {
                Ok((child, line)) => starting.push((*place, child, line)),
                Err(why) => {
                    pool.no_rank.insert(place.0, why);
                }
            }
        }
        let deadline = Instant::now() + OPEN_LIMIT;
        for (place, mut child, line) in starting {
            let why = match child.receive::<RankReply>(deadline) {
                Ok(RankReply::Opened(opened)) => {
                    pool.factor = opened.deadline_factor;
                    self.members.push(Member {
                        place,
                        child,
                        line,
                        opened,
                    });
                    continue;
                }
                Ok(RankReply::Failed(why)) => why,
                Ok(other) => out_of_turn(&other),
                // Nothing is known of this GPU then.
                Err(ReceiveError::Interrupted) => continue,
                Err(error) => error.to_string(),
            };
            child.kill();
            pool.no_rank.insert(place.0, why);
        }
        !missing.is_empty()
    }

    fn start(&self, pool: &mut Pool, (gpu, second): Place) -> Result<(Child, Line), String> {
        let spawned = Child::spawn_with_line(&[RANK.to_string()], &pool.environment);
        let (mut child, line) = spawned.map_err(|error| error.to_string())?;
        pool.pids.push(child.pid());
        let open = RankRequest::Open(RankOpen {
            gpus: pool.usable(),
            gpu,
            second,
            run: pool.run,
            generation: self.generation,
            layout: Layout {
                span: pool.plan.rank_span.next_multiple_of(IPC_BLOCK),
                guard: IPC_BLOCK / 2,
                // No bounces here: a stop word, and where an exchange's flags and reports are made.
                pinned: 4 * 4096,
            },
            guard: pool.plan.layout.guard,
        });
        child.send(&open).map_err(|error| error.to_string())?;
        Ok((child, line))
    }

    fn at(&self, place: Place) -> Option<usize> {
        self.members.iter().position(|m| m.place == place)
    }

    /// Leads cases on disjoint pairs through their attempts. The text says why these ranks must not be used again, if so;
    /// cases without an answer are then those that were still under way.
    pub(super) fn run(
        &mut self,
        cases: &[Case],
        look: Look,
        deadline: Instant,
    ) -> (BTreeMap<u32, Answer>, Option<String>) {
        let (reductions, cases): (Vec<&Case>, Vec<&Case>) =
            cases.iter().partition(|case| case.all_reduce.is_some());
        if !reductions.is_empty() {
            // A round is of one mechanism.
            let seed = (self.run, look.pass);
            return reduced::run(self, &reductions, seed, deadline);
        }
        let (exchanges, cases): (Vec<&Case>, Vec<&Case>) = cases
            .into_iter()
            .partition(|case| case.rung == Rung::Resident);
        let (mut answers, lost) = match exchanges.is_empty() {
            true => (BTreeMap::new(), None),
            false => resident::run(self, &exchanges, look.pass, deadline),
        };
        if lost.is_some() {
            return (answers, lost);
        }
        let mut lanes = Vec::new();
        for case in cases {
            match Lane::open(self, case) {
                Ok(lane) => lanes.push(lane),
                Err(reason) => {
                    let outcome = Outcome::NotRun { reason };
                    answers.insert(case.id, blank(case, outcome));
                }
            }
        }
        let mut errand = Errand {
            ranks: self,
            look,
            deadline,
        };
        let lost = errand.all(&mut lanes).err();
        let mut ended = lost.clone();
        for lane in lanes {
            if lane.retire {
                ended.get_or_insert_with(|| "retired after a fault".to_string());
            }
            // Under way when a rank was lost: no answer, unless wrong data was seen before.
            if lost.is_none() || lane.ended.is_some() || lane.corruption.is_some() {
                answers.insert(lane.case.id, lane.answer());
            }
        }
        (answers, ended)
    }
}

/// Where the ranks of a subject are: source first; a group's in order. On one GPU, two processes.
fn places(subject: Subject) -> Vec<Place> {
    match subject {
        Subject::Pair(pair) => vec![(pair.source.0, false), (pair.destination.0, false)],
        Subject::Gpu(gpu) => vec![(gpu.0, false), (gpu.0, true)],
        Subject::Group(group) => group.gpus().map(|gpu| (gpu.0, false)).collect(),
    }
}

impl Ranks {
    /// The ranks of a subject, by their places in the list.
    fn of(&self, subject: Subject) -> Result<Vec<usize>, String> {
        let found = places(subject).into_iter().map(|place| {
            let at = self.at(place);
            at.ok_or_else(|| format!("no worker could start on GPU{}", place.0))
        });
        found.collect()
    }

    /// The two ranks of a subject that has two: source and destination.
    fn two(&self, subject: Subject) -> Result<[usize; 2], String> {
        let all = self.of(subject)?;
        <[usize; 2]>::try_from(all).map_err(|_| "it is not about two ranks".to_string())
    }
}

/// Who moves the bytes, in words.
fn executor(mechanism: &dyn Mechanism, subject: Subject) -> String {
    match subject {
        Subject::Pair(pair) => mechanism.executor(pair),
        Subject::Gpu(gpu) => {
            let engine = match mechanism.needs_kernels() {
                true => "multiprocessors",
                false => "copy engine",
            };
            format!("{engine} of GPU{gpu}, between two processes on it")
        }
        Subject::Group(group) => group.to_string(),
    }
}

fn blank(case: &Case, outcome: Outcome) -> Answer {
    let mechanism = mechanism::by_id(&case.mechanism);
    Answer {
        id: case.id,
        outcome,
        peer_access: mechanism
            .map_or(Memory::Plain, Mechanism::memory)
            .peer_access(false),
        executor: mechanism.map_or(String::new(), |m| executor(m, case.subject)),
        attempts_ran: 0,
        rate: None,
        took_ms: 0.0,
        notes: Vec::new(),
        retire: false,
        reductions: Vec::new(),
    }
}

fn out_of_turn(reply: &RankReply) -> String {
    let mut text = format!("a rank answered out of turn: {reply:?}");
    text.truncate(text.floor_char_boundary(200));
    text
}

/// One case under way; ranks by their place in the list.
struct Lane<'c> {
    case: &'c Case,
    mechanism: &'static dyn Mechanism,
    source: usize,
    destination: usize,
    started: Instant,
    opened: bool,
    /// Number of the attempt under way, as words carry it.
    number: u32,
    ran: u32,
    corruption: Option<Corruption>,
    ended: Option<Outcome>,
    retire: bool,
    rate: Option<Measurement>,
}

impl<'c> Lane<'c> {
    fn open(ranks: &Ranks, case: &'c Case) -> Result<Lane<'c>, String> {
        let mechanism = mechanism::by_id(&case.mechanism).ok_or("unknown mechanism")?;
        let [source, destination] = ranks.two(case.subject)?;
        Ok(Lane {
            case,
            mechanism,
            source,
            destination,
            started: Instant::now(),
            opened: false,
            number: 0,
            ran: 0,
            corruption: None,
            ended: None,
            retire: false,
            rate: None,
        })
    }

    /// The rank whose engine moves the bytes, and the one whose memory it opens.
    fn roles(&self) -> (usize, usize) {
        match self.mechanism.side() {
            Side::Source => (self.source, self.destination),
            Side::Destination | Side::Host => (self.destination, self.source),
        }
    }

    fn live(&self, attempt: u32) -> bool {
        self.ended.is_none() && attempt <= self.case.attempts
    }

    fn end(&mut self, outcome: Outcome) {
        // What the product or a policy says leaves the ranks as they are.
        self.retire |= !matches!(
            outcome,
            Outcome::Refused { .. } | Outcome::NotApplicable { .. }
        );
        self.ended = Some(outcome);
    }

    fn answer(self) -> Answer {
        let outcome = match (self.ended, self.corruption) {
            // Corruption seen once outranks any later error.
            (_, Some(mut corruption)) => {
                corruption.attempts_ran = self.ran;
                Outcome::Corrupt(Box::new(corruption))
            }
            (Some(outcome), None) => outcome,
            (None, None) => Outcome::Intact,
        };
        Answer {
            attempts_ran: self.ran,
            rate: self.rate,
            took_ms: self.started.elapsed().as_secs_f64() * 1e3,
            retire: self.retire,
            ..blank(self.case, outcome)
        }
    }
}

/// One request of the supervisor.
struct Errand<'r> {
    ranks: &'r mut Ranks,
    look: Look,
    deadline: Instant,
}

/// A job: for which lane, at which rank.
type Put = (usize, usize, Task);

impl Errand<'_> {
    fn all(&mut self, lanes: &mut [Lane]) -> Result<(), String> {
        self.open(lanes)?;
        let most = lanes.iter().map(|lane| lane.case.attempts).max();
        for attempt in 1..=most.unwrap_or(0) {
            let live = |lane: &Lane| lane.live(attempt);
            self.attempt(lanes, attempt, &live, false)?;
        }
        let timed = |lane: &Lane| lane.case.timed && lane.mechanism.timed() && lane.ended.is_none();
        if lanes.iter().any(timed) {
            self.attempt(lanes, most.unwrap_or(0) + 1, &timed, true)?;
        }
        let close = on(lanes, &|lane: &Lane| lane.opened && !lane.retire, |lane| {
            vec![(lane.roles().0, Task::Close)]
        });
        self.step(lanes, close).map(|_| ())
    }

    /// Owners export, executing ranks open. The parent relays descriptors and closes its copies.
    fn open(&mut self, lanes: &mut [Lane]) -> Result<(), String> {
        let export = on(lanes, &all, |lane| vec![(lane.roles().1, Task::Export)]);
        let mut import: Vec<Put> = Vec::new();
        for (at, done) in self.step(lanes, export)? {
            let Some(lane) = lanes.get_mut(at) else {
                continue;
            };
            match done {
                Done::Exported(shared) => match self.relay(lane, &shared) {
                    Ok(()) => import.push((at, lane.roles().0, Task::Import(shared))),
                    Err(reason) => lane.end(Outcome::NotRun { reason }),
                },
                other => unexpected(lane, other),
            }
        }
        for (at, done) in self.step(lanes, import)? {
            let Some(lane) = lanes.get_mut(at) else {
                continue;
            };
            match done {
                Done::Done => lane.opened = true,
                other => unexpected(lane, other),
            }
        }
        Ok(())
    }

    fn relay(&self, lane: &Lane, shared: &Shared) -> Result<(), String> {
        if !shared.handle.is_empty() {
            return Ok(());
        }
        let (executing, owner) = lane.roles();
        let member = |at: usize| self.ranks.members.get(at).ok_or("no such rank");
        let (from, to) = (member(owner)?, member(executing)?);
        let wrong = |error: std::io::Error| format!("a file descriptor was not passed on: {error}");
        let descriptor = loop {
            let (tag, descriptor) = from.line.receive().map_err(wrong)?;
            // One of a case that ended before it was relayed is closed here.
            if tag == u64::from(lane.case.id) {
                break descriptor;
            }
        };
        to.line
            .send(u64::from(lane.case.id), descriptor.as_fd())
            .map_err(wrong)
    }

    /// One attempt of the lanes that are meant: prepare, move, look.
    fn attempt(
        &mut self,
        lanes: &mut [Lane],
        attempt: u32,
        meant: &dyn Fn(&Lane) -> bool,
        timed: bool,
    ) -> Result<(), String> {
        for lane in lanes.iter_mut().filter(|lane| meant(lane)) {
            let key = (lane.case.subject, lane.case.mechanism.clone());
            let count = self.ranks.attempts.entry(key).or_default();
            *count += 1;
            lane.number = *count;
        }
        // Owners poison, sources fill; all of them are done before the first byte crosses.
        let mut prepare = on(lanes, meant, |lane| {
            vec![(lane.destination, Task::Poison), (lane.source, Task::Fill)]
        });
        if self.look.search {
            prepare.extend(self.others(lanes, meant, &Task::Stain));
        }
        for (at, done) in self.step(lanes, prepare)? {
            if let Some(lane) = lanes.get_mut(at)
                && !matches!(done, Done::Done)
            {
                unexpected(lane, done);
            }
        }
        let carry = on(lanes, meant, |lane| {
            let task = if timed { Task::Time } else { Task::Move };
            vec![(lane.roles().0, task)]
        });
        let mut hung = BTreeSet::new();
        for (at, done) in self.step(lanes, carry)? {
            let Some(lane) = lanes.get_mut(at) else {
                continue;
            };
            match done {
                Done::Done => {}
                Done::Measured(rate) => lane.rate = Some(rate),
                other => {
                    unexpected(lane, other);
                    if matches!(lane.ended, Some(Outcome::TimedOut { .. })) {
                        hung.insert(lane.roles().0);
                    }
                }
            }
        }
        // A rank whose stream hangs answers nobody: do not spend a limit on each of its other lanes.
        for lane in lanes.iter_mut().filter(|lane| meant(lane)) {
            if hung.contains(&lane.source) || hung.contains(&lane.destination) {
                let reason = "one of its GPUs hangs in a neighbour's transfer".to_string();
                lane.end(Outcome::NotRun { reason });
            }
        }
        let look = on(lanes, meant, |lane| vec![(lane.destination, Task::Look)]);
        let mut wrong = Vec::new();
        for (at, done) in self.step(lanes, look)? {
            let Some(lane) = lanes.get_mut(at) else {
                continue;
            };
            match done {
                Done::Right => lane.ran += 1,
                Done::Wrong { from } => {
                    lane.ran += 1;
                    match &mut lane.corruption {
                        Some(first) => first.wrong_attempts += 1,
                        None => wrong.push((at, from)),
                    }
                }
                other => unexpected(lane, other),
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        self.explain(lanes, attempt, &wrong)
    }

    /// Of the first wrong attempt of a lane everybody else is asked, and the owner concludes.
    fn explain(
        &mut self,
        lanes: &mut [Lane],
        attempt: u32,
        wrong: &[(usize, u64)],
    ) -> Result<(), String> {
        let mut ask: Vec<Put> = Vec::new();
        for (at, from) in wrong {
            let Some(lane) = lanes.get(*at) else { continue };
            ask.push((*at, lane.roles().0, Task::View { from: *from }));
            ask.push((*at, lane.source, Task::Reread));
            if self.look.search {
                let only = std::slice::from_ref(lane);
                let others = self.others(only, &all, &Task::Search);
                ask.extend(others.into_iter().map(|(_, rank, task)| (*at, rank, task)));
            }
        }
        let asked: Vec<(usize, bool)> = ask
            .iter()
            .map(|(_, rank, task)| (*rank, matches!(task, Task::Search)))
            .collect();
        let mut views: BTreeMap<usize, Views> = wrong
            .iter()
            .map(|(at, _)| (*at, Views::default()))
            .collect();
        for ((at, done), (rank, search)) in self.step(lanes, ask)?.into_iter().zip(asked) {
            let (Some(lane), Some(view)) = (lanes.get_mut(at), views.get_mut(&at)) else {
                continue;
            };
            match done {
                Done::Seen(None) => {}
                Done::Seen(Some((right, bytes))) => {
                    view.accessor_sees_right = Some(right);
                    view.accessor_bytes = Some(bytes);
                }
                Done::Holds(holds) if search => {
                    let gpu = self.ranks.members.get(rank).map(|member| member.place.0);
                    view.found_in = view.found_in.or(gpu.filter(|_| holds));
                }
                Done::Holds(holds) => view.source_intact = Some(holds),
                other => unexpected(lane, other),
            }
        }
        let conclude = views.into_iter().filter_map(|(at, views)| {
            Some((at, lanes.get(at)?.destination, Task::Conclude(views)))
        });
        let conclude = conclude.collect();
        for (at, done) in self.step(lanes, conclude)? {
            let Some(lane) = lanes.get_mut(at) else {
                continue;
            };
            match done {
                Done::Concluded(mut corruption) => {
                    corruption.attempt = attempt;
                    lane.corruption = Some(*corruption);
                }
                other => unexpected(lane, other),
            }
        }
        Ok(())
    }

    /// `task` at every rank that takes no part in a lane.
    fn others(&self, lanes: &[Lane], meant: &dyn Fn(&Lane) -> bool, task: &Task) -> Vec<Put> {
        let mut put = Vec::new();
        for (at, lane) in lanes.iter().enumerate().filter(|(_, lane)| meant(lane)) {
            for (rank, member) in self.ranks.members.iter().enumerate() {
                if !lane.case.subject.touches(GpuIndex(member.place.0)) {
                    put.push((at, rank, task.clone()));
                }
            }
        }
        put
    }

    /// Puts jobs to their ranks, all at once, and brings the results in the order of the jobs. An error says which rank is lost.
    fn step(&mut self, lanes: &[Lane], put: Vec<Put>) -> Result<Vec<(usize, Done)>, String> {
        let mut lane_of = Vec::new();
        let mut jobs = Vec::new();
        for (at, rank, task) in put {
            let Some(lane) = lanes.get(at) else { continue };
            lane_of.push(at);
            jobs.push((
                rank,
                Job {
                    case: lane.case.clone(),
                    attempt: lane.number,
                    pass: self.look.pass,
                    task,
                },
            ));
        }
        let done = self.ranks.put(jobs, self.deadline);
        let done = done.map_err(|lost| lost.why)?;
        Ok(lane_of.into_iter().zip(done).collect())
    }
}

/// How long the other ranks of a step are still listened to when one is lost: whoever dies of the same step does it at once.
const ALSO_LOST: Duration = Duration::from_millis(500);

/// A rank that no longer answers as it should.
struct Lost {
    /// Its place in the list.
    rank: usize,
    /// How it ended, or what it answered.
    why: String,
    /// Whether its process ended.
    died: bool,
    /// Other ranks whose processes ended in the same step, and how.
    also: Vec<(usize, String)>,
}

impl Lost {
    fn of(rank: usize, error: &ReceiveError) -> Lost {
        let why = match error {
            ReceiveError::Ended(how) => how.clone(),
            other => other.to_string(),
        };
        Lost {
            rank,
            died: matches!(error, ReceiveError::Ended(_)),
            why,
            also: Vec::new(),
        }
    }

    /// How the process of `rank` ended, if it did.
    fn death_of(&self, rank: usize) -> Option<&str> {
        let own = (self.died && self.rank == rank).then_some(&self.why);
        let also = self.also.iter().find(|(other, _)| *other == rank);
        own.or(also.map(|(_, how)| how)).map(String::as_str)
    }

    fn confused(rank: usize, why: String) -> Lost {
        Lost {
            rank,
            why,
            died: false,
            also: Vec::new(),
        }
    }
}

impl Ranks {
    /// Puts jobs to their ranks, all at once, and brings the results in the order of the jobs.
    fn put(&mut self, jobs: Vec<(usize, Job)>, deadline: Instant) -> Result<Vec<Done>, Lost> {
        let mut batches: BTreeMap<usize, (Vec<usize>, Vec<Job>)> = BTreeMap::new();
        // Until the answers are there.
        let mut results: Vec<Done> = jobs.iter().map(|_| Done::Done).collect();
        for (order, (rank, job)) in jobs.into_iter().enumerate() {
            let (orders, jobs) = batches.entry(rank).or_default();
            orders.push(order);
            jobs.push(job);
        }
        for (rank, (_, jobs)) in &mut batches {
            if let Some(member) = self.members.get_mut(*rank) {
                let sent = member.child.send(&RankRequest::Step(std::mem::take(jobs)));
                sent.map_err(|error| Lost::of(*rank, &error))?;
            }
        }
        let mut lost: Option<Lost> = None;
        for (rank, (orders, _)) in batches {
            let Some(member) = self.members.get_mut(rank) else {
                continue;
            };
            let until = match &lost {
                Some(_) => deadline.min(Instant::now() + ALSO_LOST),
                None => deadline,
            };
            let reply = member.child.receive::<RankReply>(until);
            let done = match (reply, &mut lost) {
                (Ok(RankReply::Done(done)), _) if done.len() == orders.len() => done,
                (Err(ReceiveError::Ended(how)), Some(lost)) => {
                    lost.also.push((rank, how));
                    continue;
                }
                (_, Some(_)) => continue,
                (Err(error), None) => {
                    let ended = matches!(error, ReceiveError::Ended(_));
                    lost = Some(Lost::of(rank, &error));
                    if ended {
                        continue;
                    }
                    break;
                }
                (Ok(RankReply::Failed(why)), None) => return Err(Lost::confused(rank, why)),
                (Ok(other), None) => return Err(Lost::confused(rank, out_of_turn(&other))),
            };
            for (order, done) in orders.into_iter().zip(done) {
                if let Some(slot) = results.get_mut(order) {
                    *slot = done;
                }
            }
        }
        lost.map_or(Ok(results), Err)
    }
}

/// Jobs for the lanes that are meant.
fn on(
    lanes: &[Lane],
    meant: &dyn Fn(&Lane) -> bool,
    tasks: impl Fn(&Lane) -> Vec<(usize, Task)>,
) -> Vec<Put> {
    let lanes = lanes.iter().enumerate().filter(|(_, lane)| meant(lane));
    lanes
        .flat_map(|(at, lane)| {
            let tasks = tasks(lane).into_iter();
            tasks.map(move |(rank, task)| (at, rank, task))
        })
        .collect()
}

fn all(_: &Lane) -> bool {
    true
}

/// Ends a lane by an answer that is not what its step is about.
fn unexpected(lane: &mut Lane, done: Done) {
    if lane.ended.is_some() {
        return;
    }
    lane.end(match done {
        Done::Failed(outcome) => outcome,
        _ => Outcome::NotRun {
            reason: "a rank answered another question than it was asked".to_string(),
        },
    });
}
